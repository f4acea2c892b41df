"""The two sides of a demo: an agent's prompts and their cost, and an agent that compacts inside the turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from memory import Memory, Post, Round
from memory.errors import ContextError
from memory.overlays import CompactedMessage

from ..background import ContextCompactor
from ..compose import Prompt, compose
from ..cost import Prices
from ..difference import Fate, compare
from ..prompt.token_cache import TokenCache
from ..tokens import PROMPT_TOKENS, count_message, get_counter
from .savings import Messages, StatsCollector

#: Seconds between two looks at a summary that a turn waits for.
_TICK = 1 / 12
_UNBOUNDED = 10**9


class Stopwatch:
    """The seconds that each turn was held up by the calls it made."""

    def __init__(self) -> None:
        self.turns: list[float] = []
        self.longest_call = self._turn_seconds = 0.0

    @contextmanager
    def measure_call(self) -> Iterator[None]:
        """Charge the time spent inside to the current turn: a chat would have to wait that long."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - began)

    def add(self, seconds: float) -> None:
        self._turn_seconds += seconds
        self.longest_call = max(self.longest_call, seconds)

    def end_turn(self) -> None:
        self.turns.append(self._turn_seconds)
        self._turn_seconds = 0.0

    @property
    def longest_turn(self) -> float:
        return max([*self.turns, self._turn_seconds])


class Bill:
    """The cost of one side's prompts and summaries. Thread-safe."""

    def __init__(self, prices: Prices) -> None:
        self._prices, self._lock = prices, threading.Lock()  # the lock guards ``dollars``
        self.dollars = 0.0

    def add_prompt(self, cached_tokens: int, new_tokens: int) -> None:
        self._add(cached_tokens * self._prices.cached_input + new_tokens * self._prices.cache_write)

    def add_summary(self, request: Messages, summary: str) -> None:
        count = get_counter()
        read = PROMPT_TOKENS + sum(count_message(message, count) for message in request)
        self._add(read * self._prices.summarizer_input + count(summary) * self._prices.summarizer_output)

    def _add(self, tokens: float) -> None:
        with self._lock:
            self.dollars += tokens * (self._prices.per_token or 0.0)


@dataclass(eq=False)
class Agent:
    """One role of one side: its compactor, the figures of its events and prompts, and its last prompt."""

    compactor: ContextCompactor
    stats: StatsCollector
    #: Counts all messages as they were said.
    token_cache: TokenCache
    bill: Bill
    #: The messages of its last prompt, each with its tokens.
    prompt: list[tuple[Mapping[str, Any], int]] = field(default_factory=list)
    #: The compaction in that prompt, and what became of the sentences of the one before.
    compaction: CompactedMessage | None = None
    sentences: Sequence[tuple[Fate, str]] = ()
    #: Tokens of the longest prompt in each round, the current one last.
    longest: list[int] = field(default_factory=list)

    def record_prompt(self, prompt: Prompt, extra: int = 0) -> int:
        """Keep *prompt* as the last one, charge it and return its tokens, with *extra* ones for tools.

        It is charged as cached as far as it begins like the one before.
        """
        count, before = get_counter(), self.prompt
        pairs = enumerate(zip(before, prompt.messages, strict=False))
        shared = next((i for i, (old, new) in pairs if old[0] != new), min(len(before), len(prompt.messages)))
        self.prompt = before[:shared] + [(one, count_message(one, count)) for one in prompt.messages[shared:]]
        cached = extra + sum(tokens for _, tokens in before[:shared]) if shared else 0
        total = PROMPT_TOKENS + extra + sum(tokens for _, tokens in self.prompt)
        self.bill.add_prompt(cached, total - cached)
        self.longest[-1] = max(self.longest[-1], total)
        current = self.compactor.get_compaction()
        if current is not None and current != self.compaction and current.summary in join_text(prompt):
            changes = compare(self.compaction, current).sentences
            self.sentences = [one for one in changes if not one[1].endswith(":")]  # headings say nothing
            self.compaction = current
        return total


class Side:
    """One side's Memory and agents, the time that its calls take, and its bill."""

    def __init__(self, prices: Prices) -> None:
        self.memory, self.clock, self.bill = Memory(), Stopwatch(), Bill(prices)
        self.agents: dict[str, Agent] = {}
        self.round: Round

    def create_round(self, query: str) -> None:
        with self.clock.measure_call():
            self.round = self.memory.create_round(query)
        for agent in self.agents.values():
            agent.longest.append(0)

    def add_post(self, **post: Any) -> Post:
        with self.clock.measure_call():
            return self.memory.add_post(self.round, **post)

    def finish_round(self) -> None:
        with self.clock.measure_call():
            self.memory.finish_round(self.round)
        self.clock.end_turn()

    def compute_figures(self) -> dict[str, Any]:
        """Return all figures as the JSON document has them."""
        return {
            "longest_turn_ms": round(1000 * self.clock.longest_turn, 3),
            "longest_call_ms": round(1000 * self.clock.longest_call, 3),
            "dollars": round(self.bill.dollars, 6),
            "roles": {
                role: {"covered_rounds": agent.compactor.status().end_index} | agent.stats.get_figures()
                for role, agent in self.agents.items()
            },
        }


class BlockingSide(Side):
    """A side whose agents send all they have, and compact inside the turn when the window is full."""

    def __init__(self, prices: Prices, window: int) -> None:
        super().__init__(prices)
        self.window = window
        #: When the current turn began to wait for a summary; None: it does not.
        self.blocked_since: float | None = None

    def compose(self, role: str, system: str, tick: Callable[[], None]) -> None:
        """Give *role* its next prompt, after a compaction if the window is full; call *tick* while that runs."""
        agent = self.agents[role]
        with self.clock.measure_call():
            prompt = compose(self.memory, role, system=system, budget=_UNBOUNDED)
        if prompt.tokens > self.window:
            self._compact(agent, tick)
            with self.clock.measure_call():
                prompt = compose(self.memory, role, system=system, budget=self.window)
        tokens = agent.record_prompt(prompt)
        agent.stats.add_prompt(prompt, tokens, tokens, budget=self.window, orphaned=0, has_query=True)

    def _compact(self, agent: Agent, tick: Callable[[], None]) -> None:
        done = threading.Event()
        began = self.blocked_since = time.perf_counter()

        def compact() -> None:
            try:
                with suppress(ContextError):  # the prompt is shortened instead
                    agent.compactor.compact_now()
            finally:
                self.clock.add(time.perf_counter() - began)
                done.set()

        threading.Thread(target=compact, daemon=True).start()
        while not done.wait(_TICK):
            tick()
        self.blocked_since = None

    def compute_figures(self) -> dict[str, Any]:
        return {"window": self.window} | super().compute_figures()


def join_text(prompt: Prompt) -> str:
    return "\n".join(str(message.get("content")) for message in prompt.messages)
