"""ContextCompactor: what a host calls. Its states are in ``runner``, and what a cycle does is in ``cycle``."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Self

from memory import Memory
from memory.events import Event, EventHook
from memory.history import CompactionRecord
from memory.memory import RoundsGetter
from memory.messages import from_post
from memory.overlays import CompactedMessage, Journal
from memory.visibility import sees

from .config import CompactorConfig
from .cost.limits import Limits
from .cost.prices import Prices
from .cost.publication import Publication, budget_in, prices_in, publication_of
from .cycle import Cycle, Strategy
from .eventlog import EventLog
from .events import ModelUnknown, Reverted, Skip
from .holding import Holding
from .host_rounds import rounds_for
from .keeping.failures import FailuresKept
from .keeping.journal import LocalJournal
from .keeping.keeping import Keeping
from .messages.ledger import Ledger, ledger_of
from .messages.units import count_message
from .runner import Runner, State
from .strategies import compact_rounds
from .summarizers import as_summarizer
from .summarizers.extractive import ExtractiveSummarizer
from .threads.clock import SYSTEM_CLOCK, Clock
from .tokens import DEFAULT_ENCODING, TokenCounter, counter_for, encoding_for, window_of
from .triggers import Condition, default_trigger, when

__all__ = ["CompactorStatus", "ContextCompactor", "State"]


@dataclass(frozen=True, slots=True)
class CompactorStatus:
    """What a compactor is doing, and why not more."""

    state: State
    #: The reason for the last cycle that did nothing; None when the last one did something, or there was none.
    why_idle: Skip | None
    #: What failed last, in our words, or the class of the error where it is not ours; None after a success.
    last_error: str | None
    #: Failures since the last success.
    failures: int
    circuit_open: bool
    generation: int
    #: Rounds that the published compaction covers.
    end_index: int


class ContextCompactor:
    """Keeps one role's compaction up to date on a background thread.

    *rounds_getter* returns the role's visible rounds. *summarizer* (or *llm_api*, another name for it) is a callable
    ``SummaryRequest -> str | Summary`` or an object with ``chat_completion``; without one, summaries are extracted
    offline. *publish* says when a compaction that is ready is shown: ``"when_ready"``, at once; ``"when_cheapest"``,
    when *prices* make it worth while (by default those of a trigger that has some); or what ``when_cheapest()`` gives,
    or any callable like that. *executor*: cycles run there, and no thread of the compactor's own is started. *limits*
    on calls and spend may be shared by any number of them. *rng* gives the jitter, from 0 to 1. *plan* gives the
    agent's plan, as text or a ``Plan``. Making one starts nothing.
    """

    def __init__(
        self,
        config: CompactorConfig | None = None,
        summarizer: object | None = None,
        rounds_getter: Callable[[], Sequence[Any]] | None = None,
        *,
        role: str = "",
        trigger: Condition | None = None,
        strategies: Sequence[Strategy] | None = None,
        plan: Callable[[], object] | None = None,
        publish: Publication | str = "when_ready",
        prices: Prices | None = None,
        executor: Executor | None = None,
        journal: Journal | None = None,
        clock: Clock | None = None,
        rng: Callable[[], float] = random.random,
        counter: TokenCounter | None = None,
        ledger: Ledger | None = None,
        header_tokens: Callable[[], int] = lambda: 0,
        on_event: EventHook | None = None,
        history: int = 512,
        llm_api: object | None = None,
        limits: Limits | None = None,
    ) -> None:
        if rounds_getter is None:
            raise TypeError(
                "rounds_getter is missing: a callable that returns the rounds, or use for_role(memory, ...)"
            )
        if summarizer is not None and llm_api is not None:
            raise TypeError("summarizer= and llm_api= are two names of one thing; give one of them")
        self.config = config if config is not None else CompactorConfig()
        self.role = role
        #: Asks the host for the agent's plan as it stands.
        self.current_plan: Callable[[], object] = plan if plan is not None else lambda: None
        chosen_strategies = (compact_rounds,) if strategies is None else tuple(strategies)
        if isinstance(rounds_getter, RoundsGetter):
            chosen_strategies = tuple(_for_memory(one, rounds_getter.memory) for one in chosen_strategies)
        clock = clock if clock is not None else SYSTEM_CLOCK
        chosen = summarizer if summarizer is not None else llm_api
        count = counter if counter is not None else counter_for(self.config.model)
        budgets = [most for most in (self.config.max_tokens, budget_in(trigger)) if most is not None]
        publication = publication_of(publish, prices or prices_in(trigger), min(budgets, default=None))
        self._events = EventLog(clock, history)
        if on_event is not None:
            self._events.add_hook(on_event)
        self._journal: Journal = (
            journal if journal is not None else LocalJournal(lambda: rounds_for(rounds_getter(), role), clock.now)
        )
        # A Memory returns rounds at once; another host's getter may block.
        rounds_now = rounds_getter if isinstance(rounds_getter, RoundsGetter) else None
        self._keeping = Keeping(self._journal, role, self._events.tell, rounds_now)
        self._events.add_hook(FailuresKept(self._keeping))
        cycle = Cycle(
            config=self.config,
            rounds_getter=rounds_getter,
            journal=self._journal,
            keeping=self._keeping,
            trigger=when(trigger).within(self.config) if trigger is not None else default_trigger(self.config),
            strategies=chosen_strategies,
            ledger=ledger if ledger is not None else Ledger(role, count),
            emit=self._events.tell,
            monotonic=clock.monotonic,
            header_tokens=header_tokens,
            plan=self.current_plan,
            holding=Holding(publication, self._keeping, clock.now, self._events.tell) if publication else None,
        )
        ask = as_summarizer(chosen) if chosen is not None else ExtractiveSummarizer()
        self._runner = Runner(cycle, ask, self._events, clock, rng, executor, limits)

    @classmethod
    def for_role(
        cls,
        memory: Memory,
        role: str,
        config: CompactorConfig | None = None,
        summarizer: object | None = None,
        **more: Any,
    ) -> Self:
        """Return the compactor of *role* in *memory*, registered there; its compactions are published in memory's log.

        Takes what the constructor takes. Not started.
        """
        config = config if config is not None else CompactorConfig()
        count = more.get("counter") or counter_for(config.model)

        def header_tokens() -> int:
            return sum(count_message(from_post(post, role), count) for post in memory.header if sees(role, post))

        more.setdefault("journal", memory.journal(role))
        more.setdefault("header_tokens", header_tokens)
        more.setdefault("ledger", ledger_of(memory, role, count))
        compactor = cls(config, summarizer, memory.rounds_getter(role), role=role, **more)
        memory.register_compaction_provider(role, compactor)
        return compactor

    # -- the host's side ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work, with what is there already. While stopping, it begins when that is through."""
        model = self.config.model
        if self._runner.start() and model and (encoding_for(model) is None or window_of(model) is None):
            encoding = encoding_for(model) or DEFAULT_ENCODING
            self._events.tell(ModelUnknown(role=self.role, model=model, encoding=encoding))

    def stop(self, timeout: float | None = 5.0) -> bool:
        """Stop, and return whether no worker is left; an answer that arrives later is discarded.

        Waits at most *timeout* seconds for a call in flight, one that was given up included. From a hook of this
        compactor it does not wait at all.
        """
        return self._runner.stop(timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:  # noqa: ARG002  (a hint, not needed)
        """Take note that rounds or posts were added, closed or failed. Never blocks, never raises."""
        self._runner.notify()

    def get_compaction(self) -> CompactedMessage | None:
        """Return the published compaction; never blocks."""
        return self._keeping.current()

    def publish_held(self) -> bool:
        """Show the compaction that is prepared and held back, if it makes prompts shorter; return whether another one
        is shown now. Asks no model: ``compose`` calls it where a prompt is too long."""
        return self._runner.publish_held()

    def compact_now(self, timeout: float | None = None) -> CompactedMessage | None:
        """Compact what can be compacted, whatever trigger and back-off say, and return the compaction.

        Joins a run in flight. None: there was nothing to do. Raises ``CompactionTimeout`` after *timeout* seconds,
        ``CompactionFailed`` with the cause where it failed, ``RuntimeError`` within a hook of this compactor. Under
        *limits* it waits for its turn as all others do; where that does not come in time it raises ``LimitReached``, a
        ``CompactionTimeout`` that names the seconds, and keeps its place in the line.
        """
        self._refuse_inside("compact_now")
        return self._runner.compact_now(timeout)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Return True once everything that happened so far was looked at and nothing runs; waits for a turn as well.

        False while backing off, while nobody would look (not started), and after *timeout* seconds. Raises
        ``RuntimeError`` within a hook of this compactor.
        """
        self._refuse_inside("wait_idle")
        return self._runner.wait_idle(timeout)

    def revert(self, generation: int | None = None) -> CompactedMessage | None:
        """Make the compaction before the present one current again and return it; None where there is none left.

        The reverted one stays in the log. Nothing is compacted again until a round is newer than those present. Raises
        ``StaleCompaction`` where that of *generation* is no longer current; None: the one that is shown here now.
        Another process may have published since, which is shown from then on.
        """
        before = self._journal.read()
        current = self._keeping.revert(before.generation if generation is None else generation)
        after = self._journal.read()
        if after.generation != before.generation and after.held_round_id is not None:
            end = current.end_index if current else 0
            self._events.tell(Reverted(role=self.role, generation=after.generation, end=end))
        return current

    def history(self) -> tuple[CompactionRecord, ...]:
        """Return what became of the role's compactions, oldest first: those of earlier processes too, where a Memory's
        store has kept them. ``compactor.difference.compared`` tells what is new in one."""
        return self._keeping.history()

    def status(self) -> CompactorStatus:
        generation, compaction, runner = self._journal.read().generation, self.get_compaction(), self._runner
        return CompactorStatus(
            state=runner.state,
            why_idle=runner.why_idle,
            last_error=runner.last_error,
            failures=runner.failures,
            circuit_open=runner.circuit_open,
            generation=generation,
            end_index=compaction.end_index if compaction else 0,
        )

    @property
    def events(self) -> tuple[Event, ...]:
        """The newest events, oldest first."""
        return self._events.events

    def on_event(self, callback: EventHook) -> Callable[[], None]:
        """Call *callback* with each event, on the thread where it happens; return a function that stops that.

        A callback that calls ``notify_rounds_changed`` at every event has the compactor look again for ever.
        """
        return self._events.add_hook(callback)

    def _refuse_inside(self, name: str) -> None:
        if self._events.inside:
            raise RuntimeError(f"{name}() within a hook of the same compactor would wait for itself; call it elsewhere")


def _for_memory(strategy: Strategy, memory: Memory) -> Strategy:
    """Return *strategy*; where it keeps something of its own beside the log, the one that hears of what is redacted."""
    for_memory = getattr(strategy, "for_memory", None)
    return strategy if for_memory is None else for_memory(memory)
