"""A session whose compactor defers what it has prepared, and does nothing unless it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executors import ManualExecutor
from scene import CONFIG, ROLE, add_round, of_kind

from compactor import CompactorConfig, ContextCompactor, Deferred, Prices
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import Entry, InMemoryStore, Memory, Store, StoreFull

#: Nothing is repaid in a test's lifetime: a new beginning costs a fortune.
DEAR = Prices(cached_input=0.1, cache_write=1_000.0)


class Scene:
    """A session and the compactor of one role, which does nothing unless its executor or the clock is told to."""

    def __init__(
        self,
        rounds: int = 10,
        summarizer: object = None,
        *,
        store: Store | None = None,
        clock: FakeClock | None = None,
        config: CompactorConfig = CONFIG,
        publish: Any = "deferred",
        prices: Prices = DEAR,
        **more: Any,
    ) -> None:
        self.clock = clock if clock is not None else FakeClock()
        self.store = store if store is not None else InMemoryStore()
        self.memory = Memory("session", store=self.store, clock=self.clock.now)
        self.summarizer: Any = ScriptedSummarizer() if summarizer is None else summarizer
        self.executor = ManualExecutor()
        for _ in range(rounds):
            add_round(self.memory)
        self.compactor = ContextCompactor.for_role(
            self.memory, ROLE, config, self.summarizer, publish=publish, prices=prices,
            executor=self.executor, clock=self.clock, rng=lambda: 1.0, **more,
        )  # fmt: skip
        self.compactor.start()
        self.executor.run_all()

    def add(self, rounds: int = 1) -> None:
        """One by one, each looked at."""
        for _ in range(rounds):
            add_round(self.memory)
            self.executor.run_all()

    def events(self, kind: type[Any]) -> list[Any]:
        return of_kind(self.compactor.events, kind)

    @property
    def deferred(self) -> Deferred:
        """What was weighed last."""
        newest: Deferred = self.events(Deferred)[-1]
        return newest

    @property
    def end(self) -> int:
        """Where what is shown ends."""
        _, compaction = self.memory.get_role_rounds(ROLE)
        assert compaction == self.compactor.get_compaction()
        return compaction.end_index if compaction is not None else 0

    def records(self, kind: str) -> list[Any]:
        return [entry.record for entry in self.store.read("session") if entry.kind == kind]


class FullStore(InMemoryStore):
    """A store that has no room for the kinds of entries that a test names."""

    refused: frozenset[str] = frozenset()

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        if any(entry.kind in self.refused for entry in entries):
            raise StoreFull("no room; make some")
        return super().append(session, entries, after)


def requests(scene: Scene) -> list[tuple[int, int, str | None]]:
    """What the summarizer was asked: the span, and how the summary before begins."""
    return [
        (one.start_index, one.end_index, one.previous.summary.partition(" Named: ")[0] if one.previous else None)
        for one in scene.summarizer.requests
    ]


def text(messages: Sequence[dict[str, Any]]) -> str:
    return "\n".join(str(message["content"]) for message in messages)


def long_round(memory: Memory, *, close: bool = True) -> None:
    """Add one of some 650 tokens."""
    round_ = memory.create_round("And now?", id=f"r{len(memory.conversation.rounds) + 1}")
    memory.add_post(round_, send_from=ROLE, send_to="User", message="There is a lot to be said of that. " * 65)
    if close:
        memory.finish_round(round_)
