"""The two demos: scripted conversations, and the engine that plays them on a Memory with real compactors.

The engine plays rounds as a host would, times its own calls, and checks every prompt. The same rounds can be played to
agents that compact inside the turn, for comparison.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Any, Self

import yaml

from memory import RECALL_TOOLS, USER, Attachment, Recall, Round, ToolCall, UnknownReference
from memory.events import EventHook
from memory.overlays import Reductions

from ..background import ContextCompactor
from ..compose import Prompt, compose, warm_up
from ..config import CompactorConfig
from ..cost import Prices, cost_optimal
from ..plan import Plan
from ..prompt.token_cache import TokenCache
from ..strategies import compact_rounds, compress_tool_runs, drop, offload_large
from ..summarizers.base import Summary, SummaryRequest
from ..summarizers.extractive import ExtractiveSummarizer
from ..tokens import MESSAGE_TOKENS, count_message, get_counter
from ..triggers import over_tokens
from ..view import View
from .savings import StatsCollector, count_open_calls, count_orphaned_calls, is_verbatim
from .sides import Agent, Bill, BlockingSide, Side, join_text

#: Maximum tokens of each prompt.
BUDGET = 4_000
PLANNER, INTERPRETER, RESPONDER, MONITOR = "Planner", "CodeInterpreter", "Responder", "Monitor"
HEARTBEAT = "heartbeat"
#: How many hits a search of the history asks for, and how many tool results among them are read.
_MAX_HITS, _MAX_READS = 12, 4
_HIT = re.compile(r"^(r\d+\.p\d+) \(", re.MULTILINE)
_RESULT = re.compile(r"^(r\d+\.p\d+) \(tool to ", re.MULTILINE)
_REFERENCE = re.compile(r"\br(\d+)(?:-r(\d+)|\.p(\d+)(?:-p(\d+))?)(?![\w-])")
#: A made-up part of a text: a number from a range, one of several words, or an id.
_PLACEHOLDER = re.compile(r"<(?:(\d+)\.\.(\d+)|([^<>|]+(?:\|[^<>|]+)+)|hex)>")


@dataclass(frozen=True)
class Scenario:
    """A script, its agents and their compaction."""

    command: str
    file: str
    #: Rounds in the script. Longer demos play it again, about other things.
    length: int
    #: The system message of each agent.
    agents: Mapping[str, str]
    #: Plays one round of the script.
    play_round: Callable[[Demo, Mapping[str, Any]], None]
    #: Returns a compactor's options for a role, the current plan and the prices.
    make_options: Callable[[str, Callable[[], Plan], Prices], dict[str, Any]]
    #: When strategies run, for readers, and the figures of that.
    rule: str
    settings: Mapping[str, int]
    #: Tokens of the model's window, which agents that compact inside the turn fill.
    window: int
    #: Whether agents have a plan, and tools to read back text that prompts omit.
    recalls: bool = False

    @property
    def focus(self) -> str:
        """The agent that talks to the user: the first one."""
        return next(iter(self.agents))


@cache
def load_script(file: str) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """Return the two parts of a script: its names and kinds of lines, and its rounds."""
    vocabulary, rounds = yaml.safe_load_all(resources.files(__package__).joinpath(file).read_bytes())
    return vocabulary, rounds


class Demo(Side):
    """A scenario being played, as the side that compacts in the background.

    ``with Demo(...) as demo: demo.play(...)``, then ``demo.compute_figures()``.
    """

    def __init__(
        self, scenario: Scenario, latency: float, seed: int = 0, hooks: Sequence[EventHook] = (), *, model: str = ""
    ) -> None:
        """Prices are those of *model*."""
        self.model, self.prices = model, Prices.of_model(model) if model else Prices()
        super().__init__(self.prices)
        self.scenario, self.latency = scenario, latency
        #: Rounds that were played; the question at the end is none of them.
        self.played = 0
        #: The user's query, for display.
        self.asked = ""
        #: Prompts that lack a pinned text, and prompts that lack the plan while it has pending subtasks.
        self.pins_lost = self.plans_lost = 0
        #: The ids that an agent had read before and needed again: whether the prompt still showed it (``in_prompt``),
        #: the reference that gave it back ("": none), and whether the id found there is ``right``.
        self.lookups: list[dict[str, Any]] = []
        #: What each side answered to the question at the end, where it found that, and whether it is right.
        self.answers: dict[str, dict[str, Any]] = {}
        #: Each reference that prompts contained, and whether it gave back the original.
        self.references: dict[str, bool] = {}
        self._closing = threading.Event()
        self._pause: Callable[[], None] = lambda: None
        self._tick: Callable[[], None] = lambda: None
        self._calls = 0
        self._vocabulary, self._rounds = load_script(scenario.file)
        self._random = random.Random(seed)  # noqa: S311  (figures in made-up output)
        self._names: dict[str, str] = {}
        #: The agent's plan as it stands now.
        self.plan = Plan("")
        self._pinned: list[str] = []
        #: What was said, by round and post number: the text of a message, or the arguments of its calls.
        self._texts: dict[tuple[int, int], str | tuple[str, ...]] = {}
        #: The other side. It hears the same, and compacts inside the turn.
        self.baseline = BlockingSide(self.prices, scenario.window)
        for role in scenario.agents:
            options = scenario.make_options(role, lambda: self.plan, self.prices)
            self._add_agent(self, role, options, hooks)
            self._add_agent(self.baseline, role, {"config": options["config"], "strategies": [compact_rounds]})
        self._recall = Recall(self.memory, scenario.focus)
        self._tools = self._recall.tools() if scenario.recalls else []

    def _add_agent(self, side: Side, role: str, options: dict[str, Any], hooks: Sequence[EventHook] = ()) -> None:
        stats, summarizer = StatsCollector(options["strategies"]), self._make_summarizer(side.bill)
        compactor = ContextCompactor.for_role(side.memory, role, summarizer=summarizer, on_event=stats, **options)
        for hook in hooks:
            compactor.on_event(hook)
        side.agents[role] = Agent(compactor, stats, TokenCache(role, get_counter()), side.bill)

    def _make_summarizer(self, bill: Bill) -> Callable[[SummaryRequest], Summary]:
        """Return the extractive summarizer with a model's latency and price. Closing the demo ends all waits."""
        extract = ExtractiveSummarizer()

        def summarize(request: SummaryRequest) -> Summary:
            self._closing.wait(self.latency)
            summary = extract(request)
            bill.add_summary(request.messages, summary.text)
            return summary

        summarize.deterministic = True  # type: ignore[attr-defined]
        return summarize

    def __enter__(self) -> Self:
        warm_up()  # as a server does: no turn should be charged for it, nor for what stands for a remote model
        ExtractiveSummarizer()(SummaryRequest(rounds=[Round(user_query="Never be cold.")]))
        for agent in self.agents.values():
            agent.compactor.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_exc: object) -> None:
        self._closing.set()
        for agent in self.agents.values():
            agent.compactor.stop(5 if error is None else 0.2)  # whoever interrupts does not want to wait

    def play(
        self, count: int, pause: Callable[[], None] = lambda: None, tick: Callable[[], None] = lambda: None
    ) -> None:
        """Play *count* rounds; call *pause* in place of each model call. Equal seeds give equal texts.

        *tick* is called again and again while the other side waits for a summary.
        """
        self._pause, self._tick = pause, tick
        for number in range(count):
            passes, index = divmod(number, len(self._rounds))
            if index == 0:
                names = self._vocabulary["names"][passes % len(self._vocabulary["names"])]
                self._names = {name: self._fill_placeholders(text) for name, text in names.items()}
            script = self._rounds[index]
            self.asked = self.fill(script["user"])
            if self.scenario.recalls and "plan" in script:
                self.plan = Plan("End the incident", subtasks=[tuple(subtask) for subtask in script["plan"]])
            self._open_round()
            if script.get("pin"):
                with self.clock.measure_call():
                    self.memory.pin(f"r{self.round.number}.p0")
                self._pinned.append(self.asked)
            self.scenario.play_round(self, script)
            self._close_round()
            self.played += 1

    def settle(self, timeout: float) -> bool:
        """Wait for running compactions, then compose once more. Return False if *timeout* seconds are not enough."""
        until = time.monotonic() + timeout
        idle = [agent.compactor.wait_idle(max(0.0, until - time.monotonic())) for agent in self.agents.values()]
        for role in self.agents:
            self._compose(role)
        return all(idle)

    def _open_round(self) -> None:
        self.create_round(self.asked)
        self.baseline.create_round(self.asked)
        self._texts[self.round.number, 0] = self.asked

    def _close_round(self) -> None:
        self.finish_round()
        self.baseline.finish_round()

    def ask(self) -> None:
        """Ask about something said in the second round, and keep what each side answers.

        Nobody has more than a model would: the prompt; and what it leaves out, by the tools that the agent has for it.
        """
        question, role = self._vocabulary["question"], self.scenario.focus
        self.asked, right = self.fill(question["ask"]), self.fill(question["answer"])
        self._open_round()
        self.say(USER, role, self.asked)
        self._compose(role)
        for side, agent in (("without", self.baseline.agents[role]), ("with", self.agents[role])):
            text = "\n".join(str(message.get("content")) for message, _ in agent.prompt)
            covered = agent.compaction.last_round if agent.compaction is not None else 0
            found, source = self._find(question, text), "in its summary" if covered > 1 else "in the round"
            if not found and side == "with":
                found, source = self._search(question, self._recall.call, _HIT)
                source = f"reloads {source}"
            self.answers[side] = {"answer": found, "source": source, "right": found == right}
        self._close_round()

    def _find(self, wanted: Mapping[str, str], text: str) -> str:
        match = re.search(f"{re.escape(self.fill(wanted['pattern']))}[^\\n]*?({wanted['find']})", text)
        return match[1] if match else ""

    def _search(
        self, wanted: Mapping[str, str], call: Callable[[str, str], str], hit: re.Pattern[str]
    ) -> tuple[str, str]:
        """Return what was found in the log and where, by *call* of the tools for that. Only such a *hit* is read."""
        hits = call("search_history", json.dumps({"query": self.fill(wanted["search"]), "limit": _MAX_HITS}))
        for ref in hit.findall(hits)[:_MAX_READS]:
            answer = call("context_reload", json.dumps({"ref": ref, "pattern": self.fill(wanted["pattern"])}))
            if found := self._find(wanted, answer):
                return found, ref
        return "", ""

    def fill(self, text: str) -> str:
        """Return *text* with the names of this pass."""
        return Template(text).safe_substitute(self._names).strip()

    def make_line(self, kind: str, *, wanted: bool = False) -> str:
        """Return a made-up line of this kind, or the *wanted* one if the kind has one."""
        entry = self._vocabulary["kinds"][kind]
        return self.fill(entry["wanted"]) if wanted and "wanted" in entry else self._fill_placeholders(entry["line"])

    def make_result(self, script: Mapping[str, Any]) -> str:
        """Return a tool's result. Its wanted line stands at three fifths: no preview shows it."""
        count, lines = script.get("lines", 0), [self._fill_placeholders(self.fill(script["result"]))]
        if count and (header := self._vocabulary["kinds"][script["of"]].get("header")):
            lines += ["", header]
        lines += [self.make_line(script["of"], wanted=number == count * 3 // 5) for number in range(count)]
        return "\n".join(lines)

    def _fill_placeholders(self, text: str) -> str:
        def replace_placeholder(match: re.Match[str]) -> str:
            first, last, words = match.groups()
            if words:
                return str(self._random.choice(words.split("|")))
            if first:
                return f"{self._random.randint(int(first), int(last)):0{len(first)}}"
            return f"{self._random.getrandbits(40):010x}"

        text, count = _PLACEHOLDER.subn(replace_placeholder, text)
        return self._fill_placeholders(text) if count else text  # ranges may stand inside a choice

    def say(self, send_from: str, send_to: str, text: str, kind: str = "message", **more: str) -> None:
        """Add a message; *more* are its attachments by type, of which empty ones are left out."""
        attachments = tuple(Attachment(type=type_, content=content) for type_, content in more.items() if content)
        self._post(send_from, send_to, text, kind=kind, attachment_list=attachments)

    def think(self, role: str) -> Prompt:
        """Give *role* its next prompt."""
        prompt = self._compose(role)
        self._pause()
        return prompt

    def use(self, role: str, *calls: tuple[str, str, str]) -> Prompt:
        """Make *calls* at once (each: tool, arguments, result), and give *role* its next prompt."""
        numbers = range(self._calls + 1, self._calls + len(calls) + 1)
        self._calls += len(calls)
        tool_calls = tuple(
            ToolCall(id=f"call_{number}", name=tool, arguments=arguments)
            for number, (tool, arguments, _) in zip(numbers, calls, strict=True)
        )
        self._post(role, "tool", tool_calls=tool_calls)
        for call, (_, _, result) in zip(tool_calls, calls, strict=True):
            self._post("tool", role, result, tool_call_id=call.id)
        return self.think(role)

    def look_up(self, role: str, script: Mapping[str, str]) -> None:
        """Find an id as a model would: search, then read the hits, with only the prompts to go by."""

        def call(tool: str, arguments: str) -> str:
            with self.clock.measure_call():
                answer = self._recall.call(tool, arguments)
            return str(self.use(role, (tool, arguments, answer)).messages[-1]["content"])

        right = self._names[script["look_up"]]
        in_prompt = right in join_text(self._compose(role))
        found, source = self._search(script, call, _RESULT)
        self._names["found"] = found
        lookup = {"what": script["look_up"], "in_prompt": in_prompt, "ref": source, "right": found == right}
        self.lookups.append(lookup)

    def _post(self, send_from: str, send_to: str, message: str = "", **more: Any) -> None:
        more |= {"send_from": send_from, "send_to": send_to, "message": message}
        self.baseline.add_post(**more)
        post = self.add_post(**more)
        self._texts[self.round.number, post.number] = tuple(call.arguments for call in post.tool_calls) or message

    def _compose(self, role: str) -> Prompt:
        agent, tools, system = self.agents[role], self._tools, self.scenario.agents[role]
        plan = True if self.scenario.recalls else None
        with self.clock.measure_call():
            prompt = compose(self.memory, role, system=system, budget=BUDGET, tools=tools, plan=plan)
        self.baseline.compose(role, system, self._tick)
        count = get_counter()
        extra = sum(MESSAGE_TOKENS + count(json.dumps(tool)) for tool in tools)
        header = count_message({"role": "system", "content": system}, count)
        rounds = self.memory.rounds_getter(role)()
        agent.stats.add_prompt(
            prompt,
            agent.record_prompt(prompt, extra),
            View(rounds, None, agent.token_cache, header + extra, given_reductions=Reductions()).tokens,
            budget=BUDGET,
            orphaned=count_orphaned_calls(prompt.messages) + count_open_calls(prompt.messages),
            has_query=is_verbatim({"role": "user", "content": self.asked}, prompt.messages),
        )
        if self.scenario.recalls:
            text = join_text(prompt)
            self.pins_lost += any(pinned not in text for pinned in self._pinned)
            self.plans_lost += self.plan.pending and str(self.plan) not in text
            for match in _REFERENCE.finditer(text):
                if match[0] not in self.references:
                    self.references[match[0]] = self._reloads_original(match)
        return prompt

    def _reloads_original(self, match: re.Match[str]) -> bool:
        """Return whether a reference reloads the original: exactly, if it names one message; else all of it."""
        try:
            text = self.memory.reload(match[0], role=self.scenario.focus)
        except UnknownReference:
            return False
        first, last, post, last_post = (int(part) if part else None for part in match.groups())
        assert first is not None  # noqa: S101  (always part of the pattern)
        if post is None:
            texts = [one for (number, _), one in self._texts.items() if first <= number <= (last or first)]
        else:
            posts = range(post, (last_post or post) + 1)
            texts = [self._texts[first, number] for number in posts if (first, number) in self._texts]
            if last_post is None and texts and isinstance(texts[0], str):
                return text == texts[0]
        return bool(texts) and all(part in text for one in texts for part in ((one,) if isinstance(one, str) else one))

    @property
    def wrong_references(self) -> int:
        return sum(not right for right in self.references.values())

    def compute_figures(self) -> dict[str, Any]:
        """Return all figures as the JSON document has them."""
        figures = super().compute_figures() | {
            "rounds": self.played,
            "budget": BUDGET,
            "summarizer": "extractive",
            "summarizer_latency_seconds": self.latency,
            "answers": self.answers,
            "without": self.baseline.compute_figures(),
            **self.scenario.settings,
        }
        if self.scenario.recalls:
            figures |= {
                "pins_lost": self.pins_lost,
                "plans_lost": self.plans_lost,
                "references": len(self.references),
                "references_wrong": self.wrong_references,
                "looked_up": self.lookups,
            }
        return figures


# The sales forecast: a planner and a code interpreter, for `compactor demo`.

_RETAIN = 3


def _play_forecast(demo: Demo, script: Mapping[str, Any]) -> None:
    plan, ask, report, answer = (demo.fill(script.get(name, "")) for name in ("plan", "ask", "report", "answer"))
    demo.say(USER, PLANNER, demo.asked)
    demo.think(PLANNER)
    if ask:
        demo.say(PLANNER, INTERPRETER, ask, plan=plan)
        demo.think(INTERPRETER)
        code = result = plan = ""
        for run in script["runs"]:
            code, result = demo.fill(run["python"]), demo.make_result(run)
            demo.use(INTERPRETER, ("run_python", json.dumps({"code": code}), result))
        demo.say(INTERPRETER, PLANNER, report, python=code, execution_result=result)
        demo.think(PLANNER)
    demo.say(PLANNER, USER, answer, plan=plan)


def _make_forecast_options(role: str, _plan: Callable[[], Plan], prices: Prices) -> dict[str, Any]:
    config = CompactorConfig(
        retain_recent=_RETAIN,
        target_tokens=400,
        prompt_template_path={PLANNER: "planner", INTERPRETER: "code_interpreter"}[role],
    )
    return {"config": config, "strategies": [compact_rounds], "trigger": cost_optimal(prices, budget=BUDGET)}


SALES_FORECAST = Scenario(
    command="compactor demo",
    file="sales_forecast.yaml",
    length=65,
    agents={
        PLANNER: "You plan the user's data project, hand single steps to CodeInterpreter and report to User.",
        INTERPRETER: "You write and run Python for Planner with the tool run_python, and report.",
    },
    play_round=_play_forecast,
    make_options=_make_forecast_options,
    rule=f"Compactions were due when they cost least, and left the last {_RETAIN} rounds as they are.",
    settings={"retain_recent": _RETAIN},
    window=12_000,
)


# The incident: one agent with huge results, for `compactor demo --pressure`.

#: Strategies run while the prompt has more tokens than this.
_MARK = 2_600
_RETAIN_INCIDENT = 2


def _play_incident(demo: Demo, script: Mapping[str, Any]) -> None:
    for _ in range(script.get("status", 0)):
        demo.say(MONITOR, RESPONDER, demo.make_line("heartbeats"), kind=HEARTBEAT)
    demo.think(RESPONDER)
    for step in script["steps"]:
        if "look_up" in step:
            demo.look_up(RESPONDER, step)
            continue
        arguments = demo.fill(json.dumps(step["arguments"]))
        calls = []
        for number in range(1, step.get("times", 1) + 1):
            result = demo.make_result(step | {"result": step["result"].replace("$n", str(number))})
            calls.append((step["tool"], arguments.replace("$n", str(number)), result))
        together = step.get("together", 1)
        for first in range(0, len(calls), together):
            demo.use(RESPONDER, *calls[first : first + together])
    demo.say(RESPONDER, USER, demo.fill(script["answer"]))


def _make_incident_options(_role: str, plan: Callable[[], Plan], _prices: Prices) -> dict[str, Any]:
    heaviest = compress_tool_runs(keep_last=4, scope="current")
    heaviest.__name__ = f"{heaviest.__name__}(current)"  # counted apart from the other
    return {
        "config": CompactorConfig(retain_recent=_RETAIN_INCIDENT, target_tokens=400, prompt_template_path="assistant"),
        "strategies": [
            offload_large(1_600, keep_last=1, preview=160),
            drop(HEARTBEAT, keep_recent=1),
            compress_tool_runs(keep_last=2),
            compact_rounds,
            heaviest,
        ],
        "trigger": over_tokens(_MARK),
        "plan": plan,
    }


INCIDENT = Scenario(
    command="compactor demo --pressure",
    file="incident.yaml",
    length=22,
    agents={
        RESPONDER: (
            "You respond to incidents of a web shop. What the conversation no longer shows in full can be read back"
            f" with {', '.join(RECALL_TOOLS)}; what was done is not to be done again."
        )
    },
    play_round=_play_incident,
    make_options=_make_incident_options,
    rule=(
        f"Strategies ran, from light to heavy, while a prompt was over {_MARK:,} tokens;\n"
        f"the last {_RETAIN_INCIDENT} rounds were not compacted."
    ),
    settings={"mark": _MARK},
    window=16_000,
    recalls=True,
)
