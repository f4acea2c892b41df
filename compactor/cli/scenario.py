"""The two demos: scripted conversations, and the engine that plays them on a Memory with real compactors.

A script becomes turns, a turn a list of acts. The engine performs the acts as a host would, times its own calls, and
checks every prompt.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from string import Template
from typing import Any, Self

import yaml

from memory import RECALL_TOOLS, USER, Attachment, Memory, Recall, Round, ToolCall, UnknownReference
from memory.events import EventHook
from memory.overlays import Reductions

from ..background import ContextCompactor
from ..compose import Prompt, compose
from ..config import CompactorConfig
from ..plan import Plan
from ..prompt.accounting import Ledger
from ..prompt.groups import MESSAGE_TOKENS, count_message
from ..strategies import compact_rounds, compress_tool_runs, drop, offload_large
from ..summarizers.base import Summary, SummaryRequest
from ..summarizers.extractive import ExtractiveSummarizer
from ..tokens import counter_for
from ..triggers import over_tokens
from ..view import View
from .savings import PromptFigures, Watch, count_open_calls, count_tokens_of, count_torn_calls, is_whole, saving_figures

#: Maximum tokens of each prompt.
BUDGET = 4_000
PLANNER, INTERPRETER, RESPONDER, MONITOR = "Planner", "CodeInterpreter", "Responder", "Monitor"
HEARTBEAT = "heartbeat"
#: Stands for the id that the last ``LookUp`` found.
FOUND = "$found"
#: How many hits a search of the history asks for, and how many tool results among them are read.
_MAX_HITS, _MAX_READS = 12, 4
_RESULT = re.compile(r"^(r\d+\.p\d+) \(tool to ", re.MULTILINE)
_REFERENCE = re.compile(r"\br(\d+)(?:-r(\d+)|\.p(\d+)(?:-p(\d+))?)(?![\w-])")


# --- what scripts are made of ---


@dataclass(frozen=True, slots=True)
class Say:
    """A message. ``attached``: its attachments by type."""

    send_from: str
    send_to: str
    text: str
    kind: str = "message"
    attached: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Think:
    """An agent gets its next prompt."""

    role: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call with its result."""

    tool: str
    arguments: str
    result: str


@dataclass(frozen=True, slots=True)
class Use:
    """An agent calls tools at once, and gets its next prompt."""

    role: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class LookUp:
    """An agent needs an id that it has read before."""

    role: str
    what: str
    #: Words to search the history for, and the text before the id where it was read.
    search: str
    pattern: str
    #: The id's shape, as a regular expression.
    find: str
    #: The right answer. Only the checks use it, never the agent.
    id: str


Act = Say | Think | Use | LookUp


@dataclass(frozen=True, slots=True)
class Turn:
    """One round: a user query and all that follows."""

    user: str
    acts: tuple[Act, ...]
    #: Whether the query is pinned.
    pin: bool = False
    #: The plan's subtasks and their states, where they change.
    plan: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Scenario:
    """A script, its agents and their compaction."""

    command: str
    file: str
    #: Rounds in the script. Longer demos play it again, about other things.
    length: int
    #: The system message of each agent.
    agents: Mapping[str, str]
    #: Returns the names that one pass of the script is about, given the number of the pass.
    names: Callable[[int, random.Random], Mapping[str, str]]
    turn: Callable[[Mapping[str, Any], Mapping[str, str], random.Random], Turn]
    #: Returns a compactor's options for a role and the current plan.
    options: Callable[[str, Callable[[], Plan]], dict[str, Any]]
    #: When strategies run, for readers, and the figures of that.
    rule: str
    settings: Mapping[str, int]
    #: Whether agents have a plan and tools to read back what prompts left out.
    recalls: bool = False

    def turns(self, count: int, seed: int = 0) -> Iterator[Turn]:
        """Yield *count* turns. Equal seeds give equal turns."""
        script = _load_script(self.file)
        figures = random.Random(seed)  # noqa: S311  (figures in made-up output)
        names: Mapping[str, str] = {}
        for number in range(count):
            passes, index = divmod(number, self.length)
            if index == 0:
                names = self.names(passes, figures)
            yield self.turn(script[index], names, figures)


@cache
def _load_script(file: str) -> Sequence[Mapping[str, Any]]:
    return tuple(yaml.safe_load(resources.files(__package__).joinpath(file).read_bytes()))


# --- the engine ---


class SlowSummarizer:
    """The extractive summarizer with a model's latency. Setting *closing* ends all waits."""

    deterministic = True

    def __init__(self, latency: float, closing: threading.Event) -> None:
        self._latency, self._closing = latency, closing
        self._extract = ExtractiveSummarizer()

    def __call__(self, request: SummaryRequest) -> Summary:
        self._closing.wait(self._latency)
        return self._extract(request)


@dataclass(eq=False)
class Agent:
    """One role: its compactor and the figures of its prompts."""

    role: str
    system: str
    compactor: ContextCompactor
    watch: Watch
    #: Counts all messages as they were said.
    ledger: Ledger
    prompts: PromptFigures = field(default_factory=PromptFigures)

    def figures(self) -> dict[str, Any]:
        return {
            "covered_rounds": self.compactor.status().end_index,
            **self.watch.figures(),
            "background_seconds": round(self.watch.seconds, 3),
            **self.prompts.figures(),
            **saving_figures(self.watch.savings, self.prompts.levels),
        }


@dataclass(frozen=True, slots=True)
class LookUpResult:
    what: str
    #: Whether the prompt still showed the id.
    in_prompt: bool
    #: The reference that gave the id back; "" if none did.
    ref: str
    found: str
    #: Whether it is the right id.
    right: bool


@dataclass(eq=False)
class Demo:
    """A scenario being played: ``with Demo(...) as demo: demo.play(...)``, then ``demo.figures()``."""

    scenario: Scenario
    latency: float
    seed: int = 0
    hooks: Sequence[EventHook] = ()
    memory: Memory = field(default_factory=Memory)
    agents: dict[str, Agent] = field(default_factory=dict)
    #: Seconds that the host's own calls took, for each finished round.
    held_up: list[float] = field(default_factory=list)
    longest_call: float = 0.0
    #: The user's query and the newest act, for display.
    asked: str = ""
    doing: str = ""
    #: Prompts that lack a pinned text, and prompts that lack the plan while it has pending subtasks.
    pins_lost: int = 0
    plans_lost: int = 0
    lookups: list[LookUpResult] = field(default_factory=list)
    #: Each reference that prompts contained, and whether it gave back what was said there.
    references: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._closing = threading.Event()
        self._held = 0.0
        self._calls = 0
        self._plan = Plan("")
        self._pinned: list[str] = []
        #: What was said, by round and post number: the text of a message, or the arguments of its calls.
        self._said: dict[tuple[int, int], str | tuple[str, ...]] = {}
        for role, system in self.scenario.agents.items():
            options = self.scenario.options(role, lambda: self._plan)
            watch, summarizer = Watch(options["strategies"]), SlowSummarizer(self.latency, self._closing)
            compactor = ContextCompactor.for_role(self.memory, role, summarizer=summarizer, on_event=watch, **options)
            for hook in self.hooks:
                compactor.on_event(hook)
            self.agents[role] = Agent(role, system, compactor, watch, Ledger(role, counter_for()))
        self._recall = Recall(self.memory, next(iter(self.agents)))
        self._tools = self._recall.tools() if self.scenario.recalls else []

    def __enter__(self) -> Self:
        counter_for()("")  # load the token tables first, as a host does: no turn should be charged for it
        for agent in self.agents.values():
            agent.compactor.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._closing.set()
        for agent in self.agents.values():
            agent.compactor.stop()

    def play(self, count: int, pause: Callable[[], None] = lambda: None) -> None:
        """Play *count* rounds; call *pause* wherever a model would be thinking."""
        for turn in self.scenario.turns(count, self.seed):
            self.asked, self._held = turn.user, 0.0
            if turn.plan:
                self._plan = Plan("End the incident", subtasks=turn.plan)
            with self._timed():
                round_ = self.memory.create_round(turn.user)
            self._said[round_.number, 0] = turn.user
            if turn.pin:
                with self._timed():
                    self.memory.pin(f"r{round_.number}.p0")
                self._pinned.append(turn.user)
            found = ""
            for act in turn.acts:
                found = self._perform(act, round_, found, pause)
            with self._timed():
                self.memory.finish_round(round_)
            self.held_up.append(self._held)

    def settle(self, timeout: float) -> bool:
        """Wait for running compactions, then compose once more. Return False if *timeout* seconds are not enough."""
        until = time.monotonic() + timeout
        idle = [agent.compactor.wait_idle(max(0.0, until - time.monotonic())) for agent in self.agents.values()]
        for role in self.agents:
            self._compose(role)
        return all(idle)

    def _perform(self, act: Act, round_: Round, found: str, pause: Callable[[], None]) -> str:
        """Perform *act* and return the id that was looked up last: *found*, or a new one."""
        match act:
            case Say():
                text = act.text.replace(FOUND, found)
                attachments = tuple(Attachment(type=kind, content=one) for kind, one in act.attached.items() if one)
                self._post(round_, act.send_from, act.send_to, text, kind=act.kind, attachment_list=attachments)
            case Think():
                self._compose(act.role)
                pause()
            case Use():
                calls = [
                    replace(one, arguments=one.arguments.replace(FOUND, found), result=one.result.replace(FOUND, found))
                    for one in act.calls
                ]
                self._use(round_, act.role, calls, pause)
            case LookUp():
                return self._look_up(round_, act, pause)
        return found

    def _use(self, round_: Round, role: str, calls: Sequence[Call], pause: Callable[[], None]) -> Prompt:
        """Post *calls* and their results; return the next prompt."""
        made = []
        for call in calls:
            self._calls += 1
            made.append(ToolCall(id=f"call_{self._calls}", name=call.tool, arguments=call.arguments))
        self._post(round_, role, "tool", tool_calls=tuple(made))
        for one, call in zip(made, calls, strict=True):
            self._post(round_, "tool", role, call.result, tool_call_id=one.id)
        prompt = self._compose(role)
        pause()
        return prompt

    def _look_up(self, round_: Round, needed: LookUp, pause: Callable[[], None]) -> str:
        """Find an id as a model would: search, then read the hits, with only the prompts to go by."""

        def ask(tool: str, arguments: Mapping[str, object]) -> str:
            with self._timed():
                answer = self._recall.call(tool, json.dumps(arguments))
            prompt = self._use(round_, needed.role, (Call(tool, json.dumps(arguments), answer),), pause)
            return str(prompt.messages[-1]["content"])

        in_prompt = needed.id in _text_of(self._compose(needed.role))
        hits = ask("search_history", {"query": needed.search, "limit": _MAX_HITS})
        found, source = "", ""
        for ref in _RESULT.findall(hits)[:_MAX_READS]:
            answer = ask("context_reload", {"ref": ref, "pattern": needed.pattern})
            if match := re.search(f"{re.escape(needed.pattern)}[^\\n]*?({needed.find})", answer):
                found, source = match[1], ref
                break
        self.lookups.append(LookUpResult(needed.what, in_prompt, source, found, found == needed.id))
        return found

    def _post(self, round_: Round, send_from: str, send_to: str, message: str = "", **more: Any) -> None:
        calls: Sequence[ToolCall] = more.get("tool_calls", ())
        self.doing = f"{send_from} to {send_to}: {message or ', '.join(f'{call.name}(...)' for call in calls)}"
        with self._timed():
            post = self.memory.add_post(round_, send_from=send_from, send_to=send_to, message=message, **more)
        self._said[round_.number, post.number] = tuple(call.arguments for call in calls) if calls else message

    def _compose(self, role: str) -> Prompt:
        agent, tools, plan = self.agents[role], self._tools, self.scenario.recalls or None
        with self._timed():
            prompt = compose(self.memory, role, system=agent.system, budget=BUDGET, tools=tools, plan=plan)
        count = counter_for()
        extra = sum(MESSAGE_TOKENS + count(json.dumps(tool)) for tool in tools)
        header = count_message({"role": "system", "content": agent.system}, count)
        rounds = self.memory.rounds_getter(role)()
        agent.prompts.add(
            prompt,
            count_tokens_of(prompt.messages, count) + extra,
            View(rounds, None, agent.ledger, header + extra, published=Reductions()).tokens,
            budget=BUDGET,
            torn=count_torn_calls(prompt.messages) + count_open_calls(prompt.messages),
            whole=is_whole({"role": "user", "content": self.asked}, prompt.messages),
        )
        if self.scenario.recalls:
            text = _text_of(prompt)
            self.pins_lost += any(pinned not in text for pinned in self._pinned)
            self.plans_lost += self._plan.pending and str(self._plan) not in text
            for match in _REFERENCE.finditer(text):
                if match[0] not in self.references:
                    self.references[match[0]] = self._gives_back(match)
        return prompt

    def _gives_back(self, match: re.Match[str]) -> bool:
        """Return whether a reference reloads what was said there: exactly, if it names one message; else all of it."""
        try:
            text = self.memory.reload(match[0], role=next(iter(self.agents)))
        except UnknownReference:
            return False
        round_, last_round, post, last_post = (int(part) if part else None for part in match.groups())
        assert round_ is not None  # noqa: S101  (always part of the pattern)
        if post is None:
            said = [one for (number, _), one in self._said.items() if round_ <= number <= (last_round or round_)]
        else:
            posts = range(post, (last_post or post) + 1)
            said = [self._said[round_, number] for number in posts if (round_, number) in self._said]
            if last_post is None and said and isinstance(said[0], str):
                return text == said[0]
        return bool(said) and all(part in text for one in said for part in ((one,) if isinstance(one, str) else one))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Charge the time spent inside to the current turn: it is what a chat has to wait for."""
        began = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self._held += took
            self.longest_call = max(self.longest_call, took)

    @property
    def wrong_references(self) -> int:
        return sum(not right for right in self.references.values())

    def figures(self) -> dict[str, Any]:
        """Return all figures as the JSON document has them."""
        figures = {
            "rounds": len(self.held_up),
            "budget": BUDGET,
            "summarizer": "extractive",
            "summarizer_latency_seconds": self.latency,
            "longest_turn_ms": round(1000 * max(self.held_up, default=0.0), 3),
            "longest_call_ms": round(1000 * self.longest_call, 3),
            "roles": {role: agent.figures() for role, agent in self.agents.items()},
            **self.scenario.settings,
        }
        if self.scenario.recalls:
            names = ("what", "in_prompt", "ref", "right")
            figures |= {
                "pins_lost": self.pins_lost,
                "plans_lost": self.plans_lost,
                "references": len(self.references),
                "references_wrong": self.wrong_references,
                "looked_up": [{name: getattr(one, name) for name in names} for one in self.lookups],
            }
        return figures


def _text_of(prompt: Prompt) -> str:
    return "\n".join(str(message.get("content")) for message in prompt.messages)


def _fill(text: str, names: Mapping[str, str]) -> str:
    return Template(text).safe_substitute(names).strip()


# --- the sales forecast: a planner and a code interpreter, for `compactor demo` ---

_GROUPS = ("filter coffee", "espresso", "decaf", "cold brew", "cocoa", "loose tea")
_PROMPTS = {PLANNER: "planner", INTERPRETER: "code_interpreter"}
_THRESHOLD, _RETAIN = 8, 3


def _sales_names(passes: int, _figures: random.Random) -> Mapping[str, str]:
    group = _GROUPS[passes % len(_GROUPS)]
    return {"group": group, "slug": group.replace(" ", "_")}


def _sales_turn(script: Mapping[str, Any], names: Mapping[str, str], figures: random.Random) -> Turn:
    user, answer, plan, ask, report = (
        _fill(script.get(name, ""), names) for name in ("user", "answer", "plan", "ask", "report")
    )
    acts: list[Act] = [Say(USER, PLANNER, user), Think(PLANNER)]
    if ask:
        acts += [Say(PLANNER, INTERPRETER, ask, attached={"plan": plan}), Think(INTERPRETER)]
        code = result = plan = ""
        for run in script["runs"]:
            code = _fill(run["python"], names)
            result = _fill(run["result"], names) + _sales_rows(run.get("rows", 0), figures)
            acts.append(Use(INTERPRETER, (Call("run_python", json.dumps({"code": code}), result),)))
        attached = {"python": code, "execution_result": result}
        acts += [Say(INTERPRETER, PLANNER, report, attached=attached), Think(PLANNER)]
    return Turn(user, (*acts, Say(PLANNER, USER, answer, attached={"plan": plan})))


def _sales_rows(count: int, figures: random.Random) -> str:
    """Return *count* rows of weekly sales, printed as a data frame."""
    if not count:
        return ""
    lines = ["\n       store_id         day  units    net_eur  promo_days"]
    for _ in range(count):
        units = figures.randint(90, 1400)
        day = f"2025-{figures.randint(1, 10):02}-{figures.randint(1, 28):02}"
        money = units * figures.uniform(6.1, 7.4)
        index, store = figures.randint(10, 7103), figures.randint(1, 48)
        lines.append(f"{index:<6} {store:>8}  {day}  {units:>5}  {money:>9.2f}  {figures.randint(0, 7):>10}")
    return "\n".join(lines)


def _sales_options(role: str, _plan: Callable[[], Plan]) -> dict[str, Any]:
    config = CompactorConfig(
        threshold=_THRESHOLD, retain_recent=_RETAIN, target_tokens=600, prompt_template_path=_PROMPTS[role]
    )
    return {"config": config, "strategies": [compact_rounds]}


SALES_FORECAST = Scenario(
    command="compactor demo",
    file="sales_forecast.yaml",
    length=65,
    agents={
        PLANNER: "You plan the user's data project, hand single steps to CodeInterpreter and report to User.",
        INTERPRETER: "You write and run Python for Planner with the tool run_python, and report.",
    },
    names=_sales_names,
    turn=_sales_turn,
    options=_sales_options,
    rule=f"Compactions were due after {_THRESHOLD} rounds and left the last {_RETAIN} as they are.",
    settings={"threshold": _THRESHOLD, "retain_recent": _RETAIN},
)


# --- the incident: one agent with huge results, for `compactor demo --pressure` ---

_SERVICES = ("payments-api", "checkout-web", "wallet-api", "voucher-api")
#: Strategies run while the prompt has more tokens than this.
_MARK = 2_600
_RETAIN_INCIDENT = 2


def _incident_names(passes: int, figures: random.Random) -> Mapping[str, str]:
    return {
        "service": _SERVICES[passes % len(_SERVICES)],
        "version": f"2.{41 + passes}.0",
        "deployment": _id("dep", figures),
        "trace": _id("trc", figures),
    }


def _incident_turn(script: Mapping[str, Any], names: Mapping[str, str], figures: random.Random) -> Turn:
    user, answer = _fill(script["user"], names), _fill(script["answer"], names)
    acts: list[Act] = [
        Say(MONITOR, RESPONDER, _heartbeat(figures), kind=HEARTBEAT) for _ in range(script.get("status", 0))
    ]
    acts.append(Think(RESPONDER))
    for step in script["steps"]:
        if "look_up" in step:
            texts = {name: _fill(step[name], names) for name in ("search", "pattern", "find")}
            acts.append(LookUp(RESPONDER, step["look_up"], **texts, id=names[step["look_up"]]))
            continue
        calls = [_tool_call(step, {**names, "n": str(n)}, figures) for n in range(1, step.get("times", 1) + 1)]
        together = step.get("together", 1)
        acts += [Use(RESPONDER, tuple(calls[at : at + together])) for at in range(0, len(calls), together)]
    acts.append(Say(RESPONDER, USER, answer))
    plan = tuple((name, state) for name, state in script.get("plan", ()))
    return Turn(user, tuple(acts), script.get("pin", False), plan)


def _tool_call(step: Mapping[str, Any], names: Mapping[str, str], figures: random.Random) -> Call:
    names = {
        **names,
        "waiting": str(figures.randint(3, 190)),
        "uptime": str(figures.randint(900, 99_000)),
        "attempts": str(figures.randint(1, 5)),
    }
    result = [_fill(step["result"], names)]
    count = step.get("lines", 0)
    for number in range(count):
        make, wanted = _LINES[step["of"]]
        # The line that matters stands at three fifths, where no preview shows it.
        result.append(_fill(wanted, names) if number == count * 3 // 5 else make(figures))
    return Call(step["tool"], _fill(json.dumps(step["arguments"]), names), "\n".join(result))


def _id(prefix: str, figures: random.Random) -> str:
    return f"{prefix}-{figures.getrandbits(40):010x}"


def _clock(figures: random.Random, hour: int = 9) -> str:
    return f"{hour:02}:{figures.randint(0, 59):02}:{figures.randint(0, 59):02}"


def _heartbeat(figures: random.Random) -> str:
    def describe(name: str) -> str:
        state = figures.choice(("ok", "ok", "ok", "slow"))
        return f"{name} {state}, {figures.randint(2, 98)} % busy, {figures.randint(9, 900)} ms"

    parts = map(describe, ("edge", "gateway", "queue", "search", "stock", "mail"))
    return f"Heartbeat {_clock(figures)}: {'; '.join(parts)}."


def _deployment(figures: random.Random) -> str:
    service = figures.choice(("stock-api", "mail-worker", "search-api", "edge-proxy", "price-feed", "admin-web"))
    version = f"{figures.randint(1, 9)}.{figures.randint(0, 40)}.{figures.randint(0, 9)}"
    day = f"2026-03-{figures.randint(8, 14):02} {_clock(figures, figures.randint(6, 20))}"
    name = _id("dep", figures)
    return f"{day}  {service}  {version}  {name}  {figures.choice(('release-bot', 'j.lind', 'm.okafor'))}"


_LOG_LINES = (
    "INFO  request done in {} ms, status 200",
    "INFO  capture queued, {} waiting",
    "WARN  no connection from pool in {} ms",
    "ERROR gateway call given up after 3000 ms, waiting {}",
    "DEBUG heartbeat sent, {} bytes",
)


def _log_line(figures: random.Random) -> str:
    text = figures.choice(_LOG_LINES).format(figures.randint(10, 3000))
    return f"{_clock(figures)}.{figures.randint(0, 999):03}  {text}  {_id('req', figures)}"


def _setting(figures: random.Random) -> str:
    group = figures.choice(("http", "pool", "retry", "cache", "auth", "queue", "trace"))
    name = figures.choice(("timeout_ms", "size", "limit", "window", "burst", "backlog", "keep_alive"))
    value = figures.randint(1, 60_000)
    return f"{group}.{name}_{figures.randint(1, 99)}: {value}  # reviewed by {figures.choice('abcdefgh')}"


def _order(figures: random.Random) -> str:
    amount, number = figures.uniform(5, 400), figures.randint(50_000, 99_999)
    return f"{number}      stuck  {amount:>10.2f}  {figures.randint(1, 5):>8}  {_id('trc', figures)}"


def _job(figures: random.Random) -> str:
    name = figures.choice(("reindex", "backup", "export", "mailing", "price import", "cleanup"))
    start, team = _clock(figures, figures.randint(11, 23)), figures.choice("ABCDEF")
    return f"{start}  {name} {figures.randint(1, 400)}  team {team}  nothing shared"


#: For each kind of output, what makes a line of it, and the one line that the task is about.
_LINES: Mapping[str, tuple[Callable[[random.Random], str], str]] = {
    "deployments": (_deployment, "2026-03-14 09:04:11  $service  $version  $deployment  release-bot"),
    "log": (_log_line, "09:11:20.004  WARN  pool.max is 64, was 256  (read from pool.yaml)"),
    "settings": (_setting, "pool.max: 64  # for the test environment"),
    "orders": (_order, "48121      stuck       84.90         2  $trace"),
    "jobs": (_job, "22:00:00  settlement  team C  needs the pool"),
}


def _incident_options(_role: str, plan: Callable[[], Plan]) -> dict[str, Any]:
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
    names=_incident_names,
    turn=_incident_turn,
    options=_incident_options,
    rule=(
        f"Strategies ran, from light to heavy, while a prompt was over {_MARK:,} tokens;\n"
        f"the last {_RETAIN_INCIDENT} rounds were not compacted."
    ),
    settings={"mark": _MARK},
    recalls=True,
)
