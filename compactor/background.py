"""ContextCompactor: what a host calls. Its states are in ``runner``, and what a cycle does is in ``cycle``."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from memory import Memory
from memory.arguments import WrongType, check_number, check_whole_number, name_kind, require, require_role, takes
from memory.events import Event, EventHook
from memory.journal import CompactionRecord, Journal, RoleJournal
from memory.memory import RoundsGetter
from memory.messages import from_post
from memory.overlays import CompactedMessage
from memory.values import ValueObject
from memory.visibility import sees

from .config import CompactorConfig, check_config
from .coroutines import Coroutines, HostLoop
from .cost.automatic import RULE, Automatic
from .cost.limits import Limits
from .cost.prices import Prices
from .cost.publication import Deferral, DeferredPublication, Publication, resolve_publication
from .cycle import Cycle, Strategy
from .events import EventHooks, EventLog, Hook, Reverted, Skip
from .host_rounds import adapt_rounds
from .journal import EVENTS_TO_RECORD, JournalWriter, LocalJournal
from .prompt.token_cache import TokenCache, get_token_cache
from .runner import Runner, State
from .summarizers import as_summarizer
from .summarizers.configured import find_summarizer
from .timers import SYSTEM_CLOCK, Clock, Dispatcher, bound_wait
from .tokens import TokenCounter, count_message, get_counter
from .triggers import Condition, default_trigger, when

if TYPE_CHECKING:
    from .cost.shared_limits import SharedLimits


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CompactorStatus(ValueObject):
    """What a compactor is doing, and why not more."""

    state: State
    """What it is doing now."""
    skip_reason: Skip | None
    """Why the last cycle did nothing; None if it did something, or there was none."""
    last_error: str | None
    """The last failure: the message of an error of ours, or the class of another; None after a success."""
    failures: int
    """Failures since the last success."""
    circuit_open: bool
    """Whether attempts are rare, after ``circuit_breaker_failures`` failures in a row."""
    generation: int
    """Counts the role's publications and reverts."""
    end_index: int
    """Rounds that the published compaction covers."""
    behind_since: datetime | None = None
    """When the first round began that no compaction covers, if a compaction is due; None: none is due."""


class Options(TypedDict, total=False):
    """What ``for_role`` passes on to the constructor, which says what each is."""

    trigger: Condition | None
    strategies: Sequence[Strategy] | None
    plan: Callable[[], object] | None
    publish: Publication | str
    prices: Prices | None
    executor: Executor | None
    journal: Journal | None
    clock: Clock | None
    rng: Callable[[], float]
    counter: TokenCounter | None
    header_tokens: Callable[[], int] | None
    on_event: EventHook | None
    history: int
    llm_api: object | None
    limits: Limits | SharedLimits | None
    dispatcher: Dispatcher | None


class ContextCompactor:
    """Keeps one role's compaction up to date on a background thread.

    *rounds_getter* returns the role's visible rounds. *summarizer* (or *llm_api*, another name for it) is a
    callable ``SummaryRequest -> str | Summary`` or an object with ``chat_completion``; without one, *config* may
    name one, or else summaries are extracted offline. *publish* decides when a prepared compaction is shown:
    ``"immediately"``; ``"deferred"``, when *prices* make it worth while (by default those of a trigger that has
    some); or a policy, such as ``deferred()`` returns. *executor* runs the cycles, and no thread is started.
    *dispatcher* has workers do what is due, and only ``compact_now`` compacts here (see ``compactor.workers``).
    *limits* on calls and spend may be shared by any number of compactors, ``SharedLimits`` by those of many processes.
    *rng* gives the jitter, from 0 to 1.
    *plan* returns the agent's plan, as text or a ``Plan``. The constructor starts nothing.
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
        publish: Publication | str = "immediately",
        prices: Prices | None = None,
        executor: Executor | None = None,
        journal: Journal | None = None,
        clock: Clock | None = None,
        rng: Callable[[], float] = random.random,
        counter: TokenCounter | None = None,
        header_tokens: Callable[[], int] | None = None,
        on_event: EventHook | None = None,
        history: int = 512,
        llm_api: object | None = None,
        limits: Limits | SharedLimits | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        functions = {"plan": plan, "rng": rng, "counter": counter, "header_tokens": header_tokens}
        others = {"executor": executor, "journal": journal, "clock": clock, "prices": prices, "limits": limits}
        for name, option in {**functions, **others, "dispatcher": dispatcher}.items():
            if option is not None:
                require(name, option, *_OPTIONS[name])
        config = config if isinstance(config, CompactorConfig) else check_config(config)
        if not isinstance(rounds_getter, RoundsGetter) or isinstance(summarizer, RoundsGetter):
            rounds_getter = _check_getter(rounds_getter, summarizer)
        # A Memory returns rounds at once; another host's getter may block.
        rounds_now = rounds_getter if isinstance(rounds_getter, RoundsGetter) else None
        if summarizer is not None and llm_api is not None:
            raise TypeError("summarizer= and llm_api= are two names of one thing; give one of them")
        require_role(role)
        if rounds_now is not None and role and rounds_now.role not in ("", role):
            raise _make_role_error(role, rounds_now)
        check_whole_number("history", history)
        clock = clock if clock is not None else SYSTEM_CLOCK
        chosen = summarizer if summarizer is not None else llm_api
        self.config = config
        self.role = role
        #: Returns the rounds, as it was passed.
        self.rounds_getter = rounds_getter
        self._coroutines = Coroutines(clock.call_later, config.call_timeout)
        if rounds_now is None:  # it may be asynchronous
            rounds_getter = partial(self._coroutines.call, rounds_getter)
        #: The summarizer as it was passed; if none was, the one that the configuration names, or else the offline one.
        self.summarizer: object = chosen if chosen is not None else find_summarizer(config)
        #: The session that it reads, once it is known.
        self._session = rounds_now.memory.session_id if rounds_now is not None else None
        self._count = counter if counter is not None else get_counter(config.model)
        self._events = EventLog(clock, history, self._session or "")
        if on_event is not None:
            self.on_event(on_event)
        emit = self._events.emit
        self._has_own_journal = journal is None
        if journal is None:
            journal = LocalJournal(lambda: adapt_rounds(rounds_getter(), role), clock.now)
        self._journal = JournalWriter(journal, role, emit, clock)
        #: Returns the rounds without blocking; None: nothing does, or what the journal returns is up to date already.
        self._rounds_now = rounds_now if not isinstance(journal, RoleJournal) else None
        self._events.recorder = Hook(self._journal.record_failure, EVENTS_TO_RECORD)
        model = getattr(self.summarizer, "model", None)
        if trigger is None and isinstance(model, str) and model and not config.model_fields_set & RULE:
            trigger = Automatic(model)
        condition = when(trigger).within(config) if trigger else default_trigger(config)
        publication = partial(resolve_publication, publish, prices, condition, config.max_tokens)
        deferral = Deferral(publication, clock.now, emit) if publish != "immediately" else None
        is_ours = rounds_now is not None and counter is None and header_tokens is None
        is_ours &= isinstance(journal, (LocalJournal, RoleJournal)) and isinstance(publish, (str, DeferredPublication))
        given = _check_strategies(strategies, rounds_now) if strategies is not None else None
        self._cycle = Cycle(
            config=config,
            rounds_getter=rounds_getter,
            rounds_now=rounds_now,
            journal=self._journal,
            trigger=condition,
            given_strategies=given,
            is_automatic=isinstance(trigger, Automatic),
            token_cache=TokenCache(role, self._count),
            emit=emit,
            emit_later=self._events.emit_later,
            monotonic=clock.monotonic,
            coroutines=self._coroutines,
            deferral=deferral,
            header_tokens=header_tokens,
            plan=plan,
            counts_bytes=counter is None,
            calls_host=not is_ours or condition.calls_host,
        )
        #: Reads what a worker has published, where the store sends no notices: one short read, which ``compose`` asks
        #: for. None for a compactor without a dispatcher.
        self.refresh_if_behind = self._journal.refresh_if_behind if dispatcher is not None else None
        self._runner = Runner(
            self._cycle, as_summarizer(self.summarizer), self._events, clock, rng, executor, limits, dispatcher
        )

    def bind(self, memory: Memory, role: str) -> None:
        """Serve *role* of *memory*: ``register_compaction_provider`` calls this.

        Before ``start()``, a compactor made without a role takes this one, and a compactor without a journal of its own
        publishes in *memory*'s log from now on. Raises ``ValueError`` where it serves another role or session, and
        ``RuntimeError`` where it already works for no role.
        """
        if self.role not in ("", role):
            remedy = f"register it for that role, or make another one for {role!r}"
            raise ValueError(f"this compactor is {self.role!r}'s; {remedy}")
        if self._session not in (None, memory.session_id):
            remedy = f"make another one for {memory.session_id!r}"
            raise ValueError(f"this compactor is of the session {self._session!r}; {remedy}")
        getter = self._cycle.rounds_now
        if getter is not None and role and getter.role not in ("", role):
            raise _make_role_error(role, getter)
        if self.role != role or self._has_own_journal:
            if self._runner.state is not State.NEW or self.get_compaction() is not None:
                if self.role == role:
                    return  # what it has published stays where it is
                remedy = f"register it for {role!r} before start()"
                raise RuntimeError(f"this compactor works already, for no role; {remedy}")
            self.role = self._runner.role = role
            self._has_own_journal, self._session, self._events.session = False, memory.session_id, memory.session_id
            self._journal.use(memory.journal(role), role)
            self._rounds_now = None
        # Each round, and each system message, is counted once with all that read this memory.
        cycle, token_cache = self._cycle, get_token_cache(memory, role, self._count)
        cycle.token_cache = token_cache
        token_cache.prompt_limits.is_watched = cycle.deferral is not None or cycle.trigger.goes_by_prompts
        if cycle.header_tokens is None:
            cycle.header_tokens = partial(_count_header, memory, role, self._count)

    def current_plan(self) -> object:
        """Return the agent's plan as it stands; None if there is none."""
        return self._cycle.plan() if self._cycle.plan is not None else None

    @property
    def llm_api(self) -> object:
        """Another name of ``summarizer``."""
        return self.summarizer

    @classmethod
    def for_role(
        cls,
        memory: Memory,
        role: str,
        config: CompactorConfig | None = None,
        summarizer: object | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Return the compactor of *role* in *memory*, registered there; its compactions are published in memory's log.

        *options* are the constructor's. Not started.
        """
        require("memory", memory, Memory, "a Memory, and role behind it the name of an agent")
        require_role(role)
        if options.get("journal") is None:
            options["journal"] = memory.journal(role)
        compactor = cls(config, summarizer, RoundsGetter(memory, role), role=role, **options)
        memory.register_compaction_provider(role, compactor)
        return compactor

    def remember_failures(self, number: int) -> None:
        """Count *number* failures in a row, of a process before this one: the next one waits for longer."""
        self._runner.failures = check_whole_number("number", number)

    def wait_for_store(self, seconds: float) -> None:
        """While the store is away, read-only or locked, keep the thread of a run that has a paid answer for up to so
        many *seconds*: only this compactor has it, and it does not live on."""
        self._journal.patience = check_number("seconds", seconds)

    def start(self) -> None:
        """Begin to work, with the rounds that are there already. While it stops, it begins after that."""
        self._runner.start()

    def stop(self, timeout: float | None = 5.0) -> bool:
        """Stop, and return whether no worker is left; an answer that arrives later is not published.

        If the answer is accepted, it is kept in the log as prepared, and the next start publishes it without asking
        again. Waits for calls in flight, abandoned ones included, until each has taken *timeout* seconds in all:
        several compactors whose calls hang are waited for together. In a hook of this compactor it does not wait.
        """
        timeout = bound_wait(timeout)
        end = self._runner.begin_stop(timeout)
        return end(math.inf if timeout is None else time.monotonic() + timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        """Start. What the host gave that is asynchronous runs on this event loop until it is closed, else on a shared
        one."""
        import asyncio

        self._coroutines.host.enter(asyncio.get_running_loop())
        self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        import asyncio

        await asyncio.to_thread(self.stop)

    def run_on(self, host: HostLoop) -> None:
        """Run what the host gave that is asynchronous on the loop of *host*, which compactors may share."""
        self._coroutines.host = host

    def begin_stop(self, timeout: float | None = None) -> Callable[[float], bool]:
        """Stop without waiting. The function that is returned waits until that time, of ``time.monotonic``, and returns
        whether no worker is left. To stop many, begin with all of them. A call in flight has *timeout* seconds in all,
        if that is given."""
        return self._runner.begin_stop(timeout)

    @property
    def is_in_cycle(self) -> bool:
        """Whether a cycle runs, if only to evaluate, or a call that was given up."""
        return self._runner.is_in_cycle

    @property
    def is_compacting(self) -> bool:
        """Whether a cycle runs that has found something to do, or a call that was given up."""
        return self._runner.is_compacting

    @property
    def circuit_open(self) -> bool:
        """Whether attempts are rare, after ``circuit_breaker_failures`` failures in a row."""
        return self._runner.circuit_open

    @property
    def behind_since(self) -> datetime | None:
        """When the first round began that no compaction covers, if a compaction is due; None: none is due."""
        return self._cycle.behind_since

    @property
    def is_busy(self) -> bool:
        """Whether something would be lost by stopping now: a cycle, a call, a place in the queue."""
        return self._runner.is_busy

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:  # noqa: ARG002  (a hint, not needed)
        """Take note that rounds or posts were added, closed or failed. Never blocks, never raises."""
        self._runner.notify()

    def get_compaction(self) -> CompactedMessage | None:
        """Return the published compaction; never blocks."""
        if self._rounds_now is None:
            return self._journal.read().current
        self._journal.withdraw_lost(self._rounds_now())
        current = self._journal.read().current  # first: a round that is added in between only lengthens the tail
        return self._rounds_now().anchor(current)

    def publish_deferred(self) -> bool:
        """Show the deferred compaction if it makes prompts shorter; return whether another compaction is shown now.
        Calls no model. ``compose`` calls it where a prompt is too long."""
        published = self._cycle.publish_if_shorter()  # on this thread; a back-off goes on
        if published:
            self._runner.notify(published=True)
        return published

    def compact_now(self, timeout: float | None = None) -> CompactedMessage | None:
        """Compact now, regardless of trigger and back-off, and return the compaction; None: there was nothing to do.

        Joins a run in flight. Raises ``CompactionTimeout`` after *timeout* seconds, ``CompactionFailed`` with the cause
        if the run failed, ``RuntimeError`` in a hook of this compactor, and on the event loop that entered it with
        ``async with``: use ``asyncio.to_thread``. Under *limits* it waits in the queue; if its
        turn does not come in time, it raises ``LimitReached``, a ``CompactionTimeout`` that names the seconds, and
        stays in the queue.
        """
        if self._coroutines.host.loop is not None:
            self._coroutines.refuse_to_block("compact_now")
        return self._runner.compact_now(timeout)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Return True once everything that happened so far was evaluated and nothing runs or waits in the queue.

        False while it backs off, if it is not started, and after *timeout* seconds. Raises ``RuntimeError`` where
        ``compact_now`` does.
        """
        if self._coroutines.host.loop is not None:
            self._coroutines.refuse_to_block("wait_idle")
        return self._runner.wait_idle(timeout)

    def revert(self, generation: int | None = None) -> CompactedMessage | None:
        """Make the previous compaction current again and return it; None if there is none left.

        The reverted one stays in the log. Nothing is compacted again until a round is newer than those present. Raises
        ``StaleCompaction`` if *generation*, by default the one shown here, is no longer current: another process has
        published since, and its compaction is shown from then on.
        """
        before = self._journal.read()
        current = self._journal.revert(base=before.generation if generation is None else generation)
        after = self._journal.read()
        if after.generation != before.generation and after.revert_round_id is not None:
            end = current.end_index if current else 0
            self._events.emit(Reverted(role=self.role, generation=after.generation, end=end))
        return current

    def describe(self) -> str:
        """Return how this compactor works and why, in five lines: its budget, prices, when it compacts, how it asks,
        and its strategies. One more says how often that has failed."""
        cycle, failures = self._cycle, self._runner.failures
        names = ", ".join(getattr(one, "__name__", type(one).__name__) for one in cycle.strategies)
        lines = [*cycle.trigger.describe(self.config), cycle.summarizer_stats.describe()]
        if failures:
            compaction = self.get_compaction()
            often = "once" if failures == 1 else f"{failures} times in a row"
            shown = " An extract stands for the newest rounds." if compaction and compaction.is_offline else ""
            lines.append(f"Failed {often}: {self._runner.last_error}.{shown}")
        return "\n".join([*lines, f"Strategies, in this order: {names}."])

    def history(self) -> tuple[CompactionRecord, ...]:
        """Return what became of the role's compactions, oldest first, including those of earlier processes that a
        Memory's store has kept. ``compactor.compare`` tells what is new in one."""
        return self._journal.history()

    def status(self) -> CompactorStatus:
        """Return what it does, how it failed last, and how far it has compacted."""
        compaction, runner = self.get_compaction(), self._runner
        return CompactorStatus(
            state=runner.state,
            skip_reason=runner.skip_reason,
            last_error=runner.last_error,
            failures=runner.failures,
            circuit_open=runner.circuit_open,
            generation=self._journal.read().generation,
            end_index=compaction.end_index if compaction else 0,
            behind_since=self.behind_since,
        )

    @property
    def events(self) -> tuple[Event, ...]:
        """The newest events, oldest first."""
        return self._events.events

    def on_event(self, callback: EventHook, kinds: tuple[type[Event], ...] = (Event,)) -> Callable[[], None]:
        """Call *callback* with each event, on the thread that emits it; return a function that stops that.

        *kinds* are the classes of events that it gets. Leave ``Evaluated`` and ``Skipped`` out where they are not
        needed: they are emitted on the thread that appends. A callback sees the context variables (``contextvars``) of
        the append that led to the event: a request's id, or the span of a trace.
        A callback that calls ``notify_rounds_changed`` at every event makes the compactor evaluate for ever.
        """
        require("callback", callback, Callable, "a function that is called with what has happened")
        return self._events.add(callback, kinds)

    def hand_over_hooks(self, heir: ContextCompactor) -> None:
        """Have *heir*, which takes this one's place, call the callbacks of ``on_event`` too."""
        self._events.hand_over(heir._events)

    def share_hooks(self, hooks: EventHooks) -> None:
        """Call *hooks*, which other compactors call as well, with each event."""
        self._events.shared = hooks


def _count_header(memory: Memory, role: str, count: TokenCounter) -> int:
    """Return the tokens of the system messages that *role* sees before its rounds."""
    return sum(
        count_message(from_post(post, role, only_known=True), count) for post in memory.header if sees(role, post)
    )


#: What optional arguments are: their type, or the methods that they have; and that in words.
_OPTIONS: Mapping[str, tuple[Any, str]] = {
    "plan": (Callable, "a function that returns the plan as it stands (lambda: plan)"),
    "rng": (Callable, "a function that gives a number from 0 to 1"),
    "counter": (Callable, "a function that counts the tokens of a text, such as compactor.get_counter(model)"),
    "header_tokens": (Callable, "a function that gives a number of tokens"),
    "executor": (("submit",), "an Executor, such as ThreadPoolExecutor()"),
    "journal": (("read", "publish"), "a Journal, such as memory.journal(role)"),
    "clock": (("now", "monotonic", "call_later"), "a Clock, such as compactor.testing.FakeClock()"),
    "prices": (Prices, "what Prices(...) or Prices.of_model(...) gives"),
    "limits": (("make_ticket", "status"), "what Limits(...) or SharedLimits(...) gives"),
    "dispatcher": (("due",), "a Dispatcher, such as those of compactor.workers"),
}


def _check_strategies(strategies: Iterable[Any], getter: RoundsGetter | None) -> tuple[Strategy, ...]:
    """Return them in a tuple, for the *getter*'s memory. Raises ``TypeError`` where one of them is none."""
    from .strategies import FACTORIES

    wanted = "a list of functions View -> overlays"
    require("strategies", strategies, Iterable, wanted)
    for one in (checked := tuple(strategies)):
        require("strategies", one, Callable, wanted)
        if one in FACTORIES:
            raise WrongType(("strategies", f"must have what {one.__name__}(...) gives, not {one.__name__} itself"))
    if getter is None:
        return checked
    # A strategy that keeps something beside the log gives one that hears of redactions in this memory.
    made = [(one, getattr(one, "for_memory", None)) for one in checked]
    return tuple([one if make is None else make(getter.memory) for one, make in made])


def _check_getter(rounds_getter: object, summarizer: object) -> Callable[[], Sequence[Any]]:
    """Return *rounds_getter*. Raises ``TypeError`` if it is missing, wrong, or in the summarizer's place."""
    if rounds_getter is None:
        raise TypeError("rounds_getter is missing: a callable that returns the rounds, or use for_role(memory, ...)")
    if (
        isinstance(summarizer, RoundsGetter)
        or not callable(rounds_getter)
        or (isinstance(rounds_getter, type) and not issubclass(rounds_getter, Sequence))
        or hasattr(rounds_getter, "chat_completion")
    ):
        own = "; give memory.rounds_getter(role)" if isinstance(rounds_getter, Memory) else ""
        wanted = "must be a callable that returns the rounds, and"
        order = f"the order is config, summarizer, rounds_getter{own}"
        raise WrongType(("rounds_getter", f"{wanted} {name_kind(rounds_getter)} is none; {order}"))
    if not takes(rounds_getter):
        raise WrongType(("rounds_getter", "is called without arguments; give a function that takes none"))
    return rounds_getter


def _make_role_error(role: str, getter: RoundsGetter) -> ValueError:
    """Return the error for a Memory's *getter* of another role than *role*."""
    remedy = f"give memory.rounds_getter({role!r})"
    return ValueError(f"rounds_getter gives {getter.role!r}'s rounds, and the compactor is {role!r}'s; {remedy}")
