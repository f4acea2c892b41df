"""What demos have in common: a memory, agents with a compactor each, and counts of all that they are sent."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from memory import Attachment, Memory, Post, Round, ToolCall
from memory.events import EventHook
from memory.overlays import Reductions

from ..background import ContextCompactor
from ..compose import Prompt, compose
from ..config import CompactorConfig
from ..cycle import Strategy
from ..prompt.accounting import Ledger
from ..prompt.groups import MESSAGE_TOKENS, count_message
from ..summarizers.base import Summary, SummaryRequest
from ..summarizers.extractive import ExtractiveSummarizer
from ..tokens import counter_for
from ..view import View
from . import checks
from .savings import LADDER, Rung, by_name, rungs_of
from .watch import Watch

#: Tokens that no prompt exceeds.
BUDGET = 4_000


class SlowSummarizer:
    """The extractive summarizer, made to take as long as a model would; the wait ends at once when *closing* is set."""

    deterministic = True

    def __init__(self, latency: float, closing: threading.Event) -> None:
        self._latency = latency
        self._closing = closing
        self._extract = ExtractiveSummarizer()

    def __call__(self, request: SummaryRequest) -> Summary:
        self._closing.wait(self._latency)
        return self._extract(request)


@dataclass(eq=False)
class Agent:
    """One role's compactor, and what its prompts have cost so far."""

    role: str
    system: str
    compactor: ContextCompactor
    watch: Watch
    #: Counts everything that was said, as it was said.
    ledger: Ledger
    #: Tokens of its last prompt, and of the same with nothing compacted.
    prompt_tokens: int = 0
    raw_tokens: int = 0
    prompts: int = 0
    over_budget: int = 0
    #: Tool calls without their result and results without their call, in any prompt.
    torn_calls: int = 0
    #: Prompts without the newest query as it was said.
    queries_not_whole: int = 0
    #: Tokens of all its prompts, and of the same with nothing compacted.
    sent: int = 0
    raw_sent: int = 0
    ladder: dict[str, Rung] = field(default_factory=lambda: dict.fromkeys(LADDER, Rung()))

    def sees(self, prompt: Prompt, memory: Memory, query: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """Count *prompt*, anew and by what stands in it: what compose says of itself is not asked."""
        count = counter_for()
        extra = sum(MESSAGE_TOKENS + count(json.dumps(tool)) for tool in tools)
        header = count_message({"role": "system", "content": self.system}, count)
        rounds = memory.rounds_getter(self.role)()
        self.raw_tokens = View(rounds, None, self.ledger, header + extra, published=Reductions()).tokens
        self.prompt_tokens = checks.tokens_of(prompt.messages, count) + extra
        self.prompts += 1
        self.over_budget += self.prompt_tokens > BUDGET
        self.torn_calls += checks.torn(prompt.messages) + checks.waiting(prompt.messages)
        self.queries_not_whole += not checks.is_whole({"role": "user", "content": query}, prompt.messages)
        self.sent += self.prompt_tokens
        self.raw_sent += self.raw_tokens
        self.ladder = by_name((self.ladder, rungs_of(prompt)))

    def figures(self) -> dict[str, Any]:
        """Return what came of it, as JSON has it."""
        return {
            "covered_rounds": self.compactor.status().end_index,
            "compactions": self.watch.compactions,
            "reductions": self.watch.reductions,
            "failures": self.watch.failures,
            "background_seconds": round(self.watch.seconds, 3),
            "raw_tokens": self.raw_tokens,
            "prompt_tokens": self.prompt_tokens,
            "prompts": self.prompts,
            "prompts_over_budget": self.over_budget,
            "torn_calls": self.torn_calls,
            "queries_not_whole": self.queries_not_whole,
            "raw_tokens_of_all_prompts": self.raw_sent,
            "tokens_of_all_prompts": self.sent,
            "strategies": {name: saving.figures() for name, saving in self.watch.savings.items()},
            "ladder": {name: level.figures() for name, level in self.ladder.items()},
        }


@dataclass(eq=False)
class Stage(ABC):
    """A conversation of agents: ``with stage: stage.play(...)``, then ``stage.figures()``."""

    #: What it is called by, and when there is work in the background: for readers.
    command: ClassVar[str] = ""
    due: ClassVar[str] = ""

    latency: float
    seed: int = 0
    hooks: Sequence[EventHook] = ()
    memory: Memory = field(default_factory=Memory)
    agents: list[Agent] = field(default_factory=list)
    #: Rounds done, and how long the host's own calls took in each, in seconds.
    held_up: list[float] = field(default_factory=list)
    #: The longest of these calls, in seconds.
    longest_call: float = 0.0
    #: What is said at this moment, for whoever watches.
    asked: str = ""
    doing: str = ""

    def __post_init__(self) -> None:
        self._closing = threading.Event()
        self._held = 0.0
        self._calls = 0
        self._enter()

    @abstractmethod
    def _enter(self) -> None:
        """Bring in the agents."""

    def _cast(
        self, role: str, system: str, config: CompactorConfig, strategies: Sequence[Strategy], **more: Any
    ) -> None:
        """Add an agent with these *strategies*."""
        watch = Watch(strategies)
        compactor = ContextCompactor.for_role(
            self.memory,
            role,
            config,
            SlowSummarizer(self.latency, self._closing),
            strategies=strategies,
            on_event=watch,
            **more,
        )
        for hook in self.hooks:
            compactor.on_event(hook)
        self.agents.append(Agent(role, system, compactor, watch, Ledger(role, counter_for())))

    def __enter__(self) -> Self:
        counter_for()("")  # loads the token tables, which a host does at its start too: no turn should pay for that
        for agent in self.agents:
            agent.compactor.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._closing.set()
        for agent in self.agents:
            agent.compactor.stop()

    # -- the conversation ---------------------------------------------------------------------------------------------

    @abstractmethod
    def play(self, count: int, pause: Callable[[], None]) -> None:
        """Go through *count* rounds; *pause* is called wherever a model would be thinking."""

    def settle(self, timeout: float) -> bool:
        """Let compactions in flight end, and compose once more; return whether they ended in *timeout* seconds."""
        until = time.monotonic() + timeout
        done = [agent.compactor.wait_idle(max(0.0, until - time.monotonic())) for agent in self.agents]
        for agent in self.agents:
            self._compose(agent)
        return all(done)

    def _compose(self, agent: Agent) -> Prompt:
        return self._composed(agent)

    def _composed(self, agent: Agent, *, tools: Sequence[Mapping[str, Any]] = (), plan: object = None) -> Prompt:
        with self._host():
            prompt = compose(self.memory, agent.role, system=agent.system, budget=BUDGET, tools=tools, plan=plan)
        agent.sees(prompt, self.memory, self.asked, tools)
        return prompt

    def _post(
        self,
        round_: Round,
        send_from: str,
        send_to: str,
        message: str = "",
        *,
        tool_calls: tuple[ToolCall, ...] = (),
        tool_call_id: str | None = None,
        kind: str = "message",
        **attached: str,
    ) -> Post:
        attachments = tuple(Attachment(type=kind_, content=text) for kind_, text in attached.items() if text)
        self.doing = f"{send_from} to {send_to}: {message or ', '.join(f'{call.name}(...)' for call in tool_calls)}"
        with self._host():
            return self.memory.add_post(
                round_,
                send_from=send_from,
                send_to=send_to,
                message=message,
                attachment_list=attachments,
                tool_calls=tool_calls,
                tool_call_id=tool_call_id,
                kind=kind,
            )

    def _call(self, name: str, arguments: str) -> ToolCall:
        self._calls += 1
        return ToolCall(id=f"call_{self._calls}", name=name, arguments=arguments)

    @contextmanager
    def _host(self) -> Iterator[None]:
        """Count the time in here as the turn's own: what the chat would have to wait for."""
        began = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self._held += took
            self.longest_call = max(self.longest_call, took)

    # -- what came of it ----------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Return all figures of the demo, as JSON has them."""
        return {
            "rounds": len(self.held_up),
            "budget": BUDGET,
            "summarizer": "extractive",
            "summarizer_latency_seconds": self.latency,
            "longest_turn_ms": round(1000 * max(self.held_up, default=0.0), 3),
            "longest_call_ms": round(1000 * self.longest_call, 3),
            "roles": {agent.role: agent.figures() for agent in self.agents},
        }
