"""One agent at an incident: results of thousands of tokens, dozens of calls in a round, and ids that it needs again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from memory import RECALL_TOOLS, USER, Post, Recall, Round, UnknownReference

from ..compose import Prompt
from ..config import CompactorConfig
from ..cycle import Strategy
from ..plan import Plan
from ..strategies import compact_rounds, compress_tool_runs, drop, offload_large
from ..triggers import over_tokens
from .pressure_script import FOUND, Call, LookUp, Turn, turns
from .stage import Agent, Stage

ROLE, MONITOR, HEARTBEAT = "Responder", "Monitor", "heartbeat"
SYSTEM = (
    "You respond to incidents of a web shop. What the conversation no longer shows in full can be read back with"
    f" {', '.join(RECALL_TOOLS)}; what was done is not to be done again."
)
#: Strategies run while the prompt is over so many tokens.
MARK = 2_600
RETAIN, TARGET = 2, 400
#: How many messages the agent has searches give, and how many results of tools among them it reads.
_HITS, _TRIES = 12, 4
_RESULT = re.compile(r"^(r\d+\.p\d+) \(tool to ", re.MULTILINE)
_REFERENCE = re.compile(r"\br\d+(?:-r\d+|\.p\d+(?:-p\d+)?)(?![\w-])")


@dataclass(frozen=True, slots=True)
class _Said:
    """What a message holds; *whole*: it is that and nothing else, and no calls."""

    texts: tuple[str, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class LookedUp:
    """An id that the agent needed again."""

    what: str
    #: It stood in the prompt all the same.
    in_prompt: bool
    #: The reference that gave it back; empty where none did.
    ref: str
    found: str
    #: It is the one that was read then.
    right: bool


@dataclass(eq=False)
class Pressure(Stage):
    """An agent under pressure: ``with pressure: pressure.play(...)``, then ``pressure.figures()``."""

    command: ClassVar[str] = "compactor demo --pressure"
    due: ClassVar[str] = (
        f"Strategies ran, from light to heavy, while a prompt was over {MARK:,} tokens;\n"
        f"the last {RETAIN} rounds were not compacted."
    )

    looked_up: list[LookedUp] = field(default_factory=list)
    #: Prompts without what is pinned, and prompts without the plan while anything in it was pending.
    pins_lost: int = 0
    plans_lost: int = 0

    def _enter(self) -> None:
        self._plan = Plan("")
        self._recall = Recall(self.memory, ROLE)
        self._tools = self._recall.tools()
        self._pinned: list[str] = []
        #: Everything that was said, by its place: what references are held against.
        self._said: dict[tuple[int, int], _Said] = {}
        #: Each reference that stood in a prompt, and whether it gave back what was said there.
        self._references: dict[str, bool] = {}
        config = CompactorConfig(retain_recent=RETAIN, target_tokens=TARGET, prompt_template_path="assistant")
        heaviest = compress_tool_runs(keep_last=4, scope="current")
        heaviest.__name__ = f"{heaviest.__name__}(current)"  # counted apart from the other
        strategies: list[Strategy] = [
            offload_large(1_600, keep_last=1, preview=160),
            drop(HEARTBEAT, keep_recent=1),
            compress_tool_runs(keep_last=2),
            compact_rounds,
            heaviest,
        ]
        self._cast(ROLE, SYSTEM, config, strategies, trigger=over_tokens(MARK), plan=lambda: self._plan)

    # -- the conversation ---------------------------------------------------------------------------------------------

    def play(self, count: int, pause: Callable[[], None]) -> None:
        """Go through *count* rounds; *pause* is called wherever a model would be thinking."""
        for turn in turns(count, self.seed):
            self.asked, self._held = turn.user, 0.0
            self._round(turn, pause)
            self.held_up.append(self._held)

    def _round(self, turn: Turn, pause: Callable[[], None]) -> None:
        (agent,) = self.agents
        if turn.plan:
            self._plan = Plan("End the incident", subtasks=turn.plan)
        with self._host():
            round_ = self.memory.create_round(turn.user)
        self._said[round_.number, 0] = _Said((turn.user,), whole=True)
        if turn.pin:
            with self._host():
                self.memory.pin(f"r{round_.number}.p0")
            self._pinned.append(turn.user)
        for status in turn.status:
            self._say(round_, MONITOR, ROLE, status, kind=HEARTBEAT)
        self._compose(agent)
        pause()
        found = ""
        for step in turn.steps:
            if isinstance(step, LookUp):
                found = self._look_up(round_, step, agent, pause)
            else:
                self._use(round_, step, found, agent, pause)
        self._say(round_, ROLE, USER, turn.answer.replace(FOUND, found))
        with self._host():
            self.memory.finish_round(round_)

    def _use(
        self, round_: Round, calls: tuple[Call, ...], found: str, agent: Agent, pause: Callable[[], None]
    ) -> Prompt:
        """Make *calls* at once, and have the next prompt with what they gave."""
        calls = tuple(
            replace(call, arguments=call.arguments.replace(FOUND, found), result=call.result.replace(FOUND, found))
            for call in calls
        )
        asked = tuple(self._call(call.tool, call.arguments) for call in calls)
        post = self._post(round_, ROLE, "tool", tool_calls=asked)
        self._said[round_.number, post.number] = _Said(tuple(call.arguments for call in calls))
        for one, call in zip(asked, calls, strict=True):
            self._say(round_, "tool", ROLE, call.result, tool_call_id=one.id)
        prompt = self._compose(agent)
        pause()
        return prompt

    def _look_up(self, round_: Round, needed: LookUp, agent: Agent, pause: Callable[[], None]) -> str:
        """Find an id as a model would: search, then read what was found back, with nothing but the prompt to go by."""
        in_prompt = needed.id in _text(self._compose(agent))
        hits = self._ask(round_, "search_history", {"query": needed.search, "limit": _HITS}, agent, pause)
        found, gave = "", ""
        for ref in _RESULT.findall(hits)[:_TRIES]:
            answer = self._ask(round_, "context_reload", {"ref": ref, "pattern": needed.pattern}, agent, pause)
            match = re.search(f"{re.escape(needed.pattern)}[^\\n]*?({needed.find})", answer)
            if match:
                found, gave = match[1], ref
                break
        self.looked_up.append(LookedUp(needed.what, in_prompt, gave, found, found == needed.id))
        return found

    def _ask(
        self, round_: Round, tool: str, arguments: Mapping[str, object], agent: Agent, pause: Callable[[], None]
    ) -> str:
        """Call one of the recall tools, and return its answer as the next prompt shows it."""
        written = json.dumps(arguments)
        with self._host():
            answer = self._recall.call(tool, written)
        prompt = self._use(round_, (Call(tool, written, answer),), "", agent, pause)
        return str(prompt.messages[-1]["content"])

    def _say(self, round_: Round, send_from: str, send_to: str, message: str, **more: Any) -> Post:
        post = self._post(round_, send_from, send_to, message, **more)
        self._said[round_.number, post.number] = _Said((message,), whole=True)
        return post

    # -- what its prompts promise -------------------------------------------------------------------------------------

    def _compose(self, agent: Agent) -> Prompt:
        prompt = self._composed(agent, tools=self._tools, plan=True)
        text = _text(prompt)
        self.pins_lost += any(pinned not in text for pinned in self._pinned)
        self.plans_lost += self._plan.pending and str(self._plan) not in text
        for ref in set(_REFERENCE.findall(text)) - self._references.keys():
            self._references[ref] = self._reloads(ref)
        return prompt

    def _reloads(self, ref: str) -> bool:
        """Return whether *ref* gives back what was said there: of one message exactly that, of several all of it."""
        try:
            text = self.memory.reload(ref, role=ROLE)
        except UnknownReference:
            return False
        places = set(_places(ref))
        said = [one for (number, post), one in self._said.items() if {(number, post), (number, None)} & places]
        if len(said) == 1 and said[0].whole and "-" not in ref and "." in ref:
            return text == said[0].texts[0]
        return bool(said) and all(part in text for one in said for part in one.texts)

    def figures(self) -> dict[str, Any]:
        """Return all figures of the demo, as JSON has them."""
        return super().figures() | {
            "mark": MARK,
            "pins_lost": self.pins_lost,
            "plans_lost": self.plans_lost,
            "references": len(self._references),
            "references_wrong": self.references_wrong,
            "looked_up": [
                {"what": one.what, "in_prompt": one.in_prompt, "ref": one.ref, "right": one.right}
                for one in self.looked_up
            ],
        }

    @property
    def references(self) -> int:
        """How many references stood in prompts."""
        return len(self._references)

    @property
    def references_wrong(self) -> int:
        """How many of them did not give back what was said there."""
        return sum(not right for right in self._references.values())


def _text(prompt: Prompt) -> str:
    return "\n".join(str(message.get("content")) for message in prompt.messages)


def _places(ref: str) -> Iterator[tuple[int, int | None]]:
    """Give the round and number of each message behind *ref*; None for the number stands for all of a round's."""
    round_, _, posts = ref.partition(".")
    first, _, last = round_.replace("r", "").partition("-")
    if not posts:
        yield from ((number, None) for number in range(int(first), int(last or first) + 1))
        return
    start, _, stop = posts.replace("p", "").partition("-")
    yield from ((int(first), number) for number in range(int(start), int(stop or start) + 1))
