"""Runs one compaction cycle from the log alone, on the caller's thread; sweeps sessions that nobody evaluated."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack

from memory import CompactedMessage, Memory, Store
from memory.arguments import check_whole_number, require, require_role
from memory.errors import SessionPurged, StoreError
from memory.events import Event, EventHook
from memory.stores.base import DueSession, adapt_store, unescape
from memory.values import ValueObject

from ..background import ContextCompactor, Options
from ..config import CompactorConfig, Settings
from ..cost.limits import Limits
from ..cycle import load_strategies
from ..events import EventHooks, EventLog, Failed, PersistFailed, Prepared, Reduced, Rejected, Skip, Skipped, Stopped
from ..health import find_failures
from ..summarizers import as_summarizer
from ..summarizers.configured import find_summarizer
from ..timers import SYSTEM_CLOCK, Dispatcher

R = TypeVar("R")
#: Retry delay in seconds for a job over the limits, if these give none.
RETRY_SECONDS = 5.0
#: Seconds for which a job over the shared limits keeps its slot, so that many of them do not take the processor time of
#: jobs with a permit.
LIMITED_PAUSE = 0.2
#: Seconds for which a job that has a paid answer waits for a store that takes none; a worker's end gives it 30 seconds.
PATIENCE = 25.0
#: Seconds until a job that raised is retried, because the store was unreachable, and the maximum number of retries.
STORE_RETRY, STORE_RETRIES = 3, 200
#: Seconds between two warnings of jobs that raised errors of one kind.
WARN_SECONDS = 60.0
#: Reasons for publishing nothing, besides those of ``Skip``.
FAILED, BACKING_OFF, SHORTENED = "failed", "backing_off", "shortened"
_LOG = logging.getLogger(__name__)
_warned: dict[str, float] = {}  # by the name of an error: when it was logged


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(ValueObject):
    """The outcome of one ``run_due``."""

    #: The published compaction; None: see ``reason``.
    published: CompactedMessage | None = None
    #: Why nothing was published: a ``Skip``, ``failed``, ``backing_off``, ``shortened`` (shortening messages was
    #: enough), or the reason why the compactor stopped, such as ``session_purged``. Empty after a publication.
    reason: str = ""
    #: Seconds until a retry is worthwhile; None: not before the session grows.
    retry_in: float | None = None
    #: Dollars for the model's answers with known prices.
    spent: float = 0.0


def run_due(
    store: Store,
    session: str,
    role: str,
    *,
    settings: Settings | None = None,
    summarizer: object | None = None,
    budget: int | None = None,
    **options: Unpack[Options],
) -> Outcome:
    """Compact *role* of *session* on this thread if a compaction is due, and return the outcome.

    *settings*, *summarizer* and *options* are those of the role's compactor (``ContextCompactor``), and *budget* is the
    maximum tokens of its prompts; the rest is in the log. After a failure, no model is asked before the retry time
    recorded in the log. While shared limits leave no call free, the session is not even opened. Any number of processes
    may call this at once: one of them compacts, and the others return when its lease ends. A call that outlasts
    ``call_timeout`` counts as failed, and occupies this thread until it ends.

    Raises ``StoreError`` if the store cannot be read or written, and ``ConfigError`` for wrong settings.
    """
    store = adapt_store(store)
    require("session", session, str, "the session's name, as a text")
    require_role(role)
    require("settings", settings, Settings | None, "Settings, such as Settings(CompactorConfig(...))")
    failures = find_failures(store, session, role)
    clock, limits = options.get("clock") or SYSTEM_CLOCK, options.get("limits")
    shared, is_queued = None if isinstance(limits, Limits) else limits, False
    if failures.retry_at is not None and (left := (failures.retry_at - clock.now()).total_seconds()) > 0:
        if shared is not None:
            shared.withdraw_job(session, role)
        return Outcome(reason=BACKING_OFF, retry_in=left)
    config = (settings if settings is not None else Settings()).for_role(role)
    if budget is not None:
        config = config.with_defaults(max_tokens=check_whole_number("budget", budget, 1))
    if shared is not None:
        if summarizer is None and (summarizer := options.pop("llm_api", None)) is None:
            summarizer = find_summarizer(config)
        is_queued, wait = shared.queue_job(session, role, as_summarizer(summarizer))
        if wait:
            events = EventLog(clock, 1, session)
            if (hook := options.get("on_event")) is not None:
                events.add(hook, (Event,))
            events.emit(
                Skipped(role=role, generation=0, reason=Skip.LIMITED, rounds=0, tail=0, closed=0, retry_in=wait)
            )
            return Outcome(reason=str(Skip.LIMITED), retry_in=wait)
    outcome = None
    try:
        outcome = _run_cycle(store, session, role, config, summarizer, options, failures.number)
    finally:  # a permit that no call has taken is another's, and so is the place of a job that is no longer due
        unused = outcome is None or (outcome.published is None and outcome.reason != Skip.LIMITED)
        if shared is not None and is_queued and unused:
            shared.withdraw_job(session, role)
    return outcome


def _run_cycle(
    store: Store,
    session: str,
    role: str,
    config: CompactorConfig,
    summarizer: object | None,
    options: Options,
    failures: int,
) -> Outcome:
    clock = options.get("clock") or SYSTEM_CLOCK
    memory, jobs = Memory(session, store=store, clock=clock.now), _JobQueue()
    outcomes = _OutcomeRecorder(config.backoff_max)
    options["executor"] = jobs
    compactor = ContextCompactor.for_role(memory, role, config, summarizer, **options)
    compactor.on_event(outcomes.record, (Failed, PersistFailed, Prepared, Reduced, Rejected, Skipped, Stopped))
    compactor.remember_failures(failures)
    compactor.wait_for_store(PATIENCE)
    before = compactor.get_compaction()
    try:
        compactor.start()
        jobs.run_all()
    finally:
        compactor.stop(0)
    after = compactor.get_compaction()
    is_new = after is not None and (before is None or after.generation != before.generation)
    return outcomes.make_outcome(after if is_new else None)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Worker(ValueObject):
    """The settings of a worker process; its jobs call ``run``."""

    store: Store
    roles: tuple[str, ...] = ("assistant",)
    settings: Settings = field(default_factory=Settings)
    summarizer: object | None = None
    #: Maximum tokens of the prompts; None: as configured.
    budget: int | None = None
    options: Options = field(default_factory=Options)
    _hooks: EventHooks = field(default_factory=EventHooks, repr=False)

    def __post_init__(self) -> None:
        load_strategies()  # now: another worker may be ready to run the first job sooner

    def on_event(self, callback: EventHook, kinds: tuple[type[Event], ...] = (Event,)) -> Callable[[], None]:
        """Call *callback* with each event of all jobs, like ``ContextCompactor.on_event``; return a function that ends
        this."""
        return self._hooks.add(callback, kinds)

    def wake_by(self, dispatcher: Dispatcher) -> None:
        """Have *dispatcher* run the jobs that shared limits admit. An engine calls this before its first job."""
        if (limits := self.options.get("limits")) is not None:
            limits.wake_by(dispatcher)

    def run(self, session: str, role: str) -> Outcome:
        """Return the outcome of ``run_due``. A purged session is no error."""
        options = self.options.copy()
        options["on_event"] = partial(self._emit, options.get("on_event"))
        try:
            return run_due(
                self.store,
                session,
                role,
                settings=self.settings,
                summarizer=self.summarizer,
                budget=self.budget,
                **options,
            )
        except SessionPurged:
            return Outcome(reason="session_purged")

    def _emit(self, own: EventHook | None, event: Event) -> None:
        """Call *own*, the hook in ``options``, and the hooks of ``on_event``."""
        if own is not None:
            own(event)
        for hook, kinds in self._hooks.hooks:
            if isinstance(event, kinds):
                hook(event)

    def sweep(self, dispatcher: Dispatcher, limit: int = 1_000) -> int:
        """Run ``sweep`` for these roles."""
        return sweep(self.store, dispatcher, self.roles, limit=limit)


def sweep(
    store: Store, dispatcher: Dispatcher, roles: Sequence[str], *, now: datetime | None = None, limit: int = 1_000
) -> int:
    """Enqueue jobs for up to *limit* sessions that were written to and then went idle; return their number.

    Each append marks its session in the same transaction, so no crash of a host loses a due compaction. A session is
    swept after two minutes without writes; its mark is removed once the *dispatcher* has stored a job for each of
    *roles*. Call this every minute, in one process or in several. Raises ``StoreError`` and the dispatcher's errors.
    """
    now, store = datetime.now(UTC) if now is None else now, adapt_store(store)
    marked, enqueued = store.list_due(now, limit), list[DueSession]()
    try:
        for session in marked:
            for role in roles:
                dispatcher.due(session.name, role, None)
            enqueued.append(session)
    finally:  # the dispatcher may have failed after some jobs
        store.clear_due(enqueued)
    return len(marked)


class Retry(NamedTuple):
    """The next run of a job."""

    at: datetime
    #: The reason of the outcome.
    reason: str
    #: Whether the job then goes ahead of all others: its session is leased to a worker that may have been killed.
    first: bool


def run_job(worker: Worker, session: str, role: str) -> Retry | None:
    """Run a queue's job, with its names as ``escape`` returns them; return when it must run again. None: it need not.

    A job over the shared limits keeps this thread for a moment.
    """
    try:
        outcome = worker.run(unescape(session), unescape(role))
    except (StoreError, OSError) as error:
        _warn_rarely(session, error)
        raise
    if outcome.reason == Skip.LIMITED:
        time.sleep(LIMITED_PAUSE)
    if outcome.retry_in is None:
        return None
    at = datetime.now(UTC) + timedelta(seconds=outcome.retry_in)
    return Retry(at, outcome.reason, outcome.reason == Skip.LEASED)


def _warn_rarely(session: str, error: Exception) -> None:
    """Log that a job has raised *error*: engines log nothing, as it runs again."""
    name, now = type(error).__name__, time.monotonic()
    if now - _warned.get(name, -WARN_SECONDS) >= WARN_SECONDS:
        _warned[name] = now
        text = "a job of session %s runs again in %g seconds; %s is not logged again for a minute: %s"
        _LOG.warning(text, session, STORE_RETRY, name, error)


class _JobQueue(Executor):
    """Holds a compactor's jobs until the waiting thread runs them."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        future: Future[R] = Future()
        self._jobs.append((future, partial(fn, *args, **kwargs)))
        return future

    def run_all(self) -> None:
        while self._jobs:
            future, job = self._jobs.popleft()
            future.set_running_or_notify_cancel()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
                raise


class _OutcomeRecorder:
    """Collects the outcome from a compactor's events."""

    def __init__(self, backoff_max: float) -> None:
        self._backoff_max = backoff_max
        self._has_paid = self._is_unnoted = False
        self._spent, self._rejected, self._reason = 0.0, 0.0, ""
        self._retry_in: float | None = None
        self._is_shortened = False

    def record(self, event: Event) -> None:
        match event:
            case PersistFailed(what="event"):
                self._is_unnoted = True
            case Prepared(reused=False, price=price):  # includes earlier attempts
                self._spent, self._rejected, self._has_paid = self._spent + (price or 0.0), 0.0, True
            case Rejected(usage=usage, model=model):
                self._has_paid = True
                if usage and model:
                    from ..models import compute_price  # here: a new worker need not wait for the prices

                    self._rejected += compute_price(model, usage) or 0.0
            case Failed(retry_in=seconds):
                self._reason, self._retry_in = FAILED, seconds
            case Skipped(reason=reason, retry_in=seconds):
                unknown = RETRY_SECONDS if reason in (Skip.LIMITED, Skip.PAUSED) else None
                self._reason, self._retry_in = reason, unknown if seconds is None else seconds
            case Stopped(reason=reason):
                self._reason, self._retry_in = reason, None
            case Reduced():
                self._is_shortened = True

    def make_outcome(self, published: CompactedMessage | None) -> Outcome:
        spent = self._spent + self._rejected
        if published is not None:  # a later event, such as a failure, still sets the retry time
            return Outcome(published, "", self._retry_in, spent)
        if self._is_unnoted and self._retry_in is not None:  # the next run does not find this failure in the log
            self._retry_in = max(self._retry_in, self._backoff_max if self._has_paid else STORE_RETRY)
        has_nothing_left = self._reason in ("", Skip.BELOW_TRIGGER)
        reason = SHORTENED if self._is_shortened and has_nothing_left else self._reason
        return Outcome(None, str(reason), self._retry_in, spent)
