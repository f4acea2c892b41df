"""The states of a compactor: one run at a time, its deadline, the back-off after it. The work itself is in ``cycle``.

Read it from top to bottom: a run's end and its consequences; the host's calls; then a run's way from
``_claim`` through ``_dispatch`` and ``_run_cycle`` to ``_end``; last the timers' calls.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from memory.errors import SessionPurged, StaleCompaction
from memory.hooks import describe_error, renew_after_fork
from memory.overlays import CompactedMessage
from memory.values import ValueObject

from .coroutines import LoopPaused
from .cost.limits import Limits
from .cycle import Cycle
from .errors import (
    CompactionFailed,
    CompactionTimeout,
    LeasedElsewhere,
    LimitReached,
    SummaryRejected,
    classify_failure,
)
from .events import Discarded, EventLog, Failed, IndexingFailed, Skip, Skipped, Stopped
from .summarize import Run
from .summarizers.base import Summarizer, Summary, SummaryRequest
from .timers import (
    EVALUATION_THREADS,
    HOST_EVALUATION_SECONDS,
    HOST_EVALUATION_THREADS,
    Clock,
    DaemonExecutor,
    DatabaseDispatcher,
    Dispatcher,
    Job,
    bound_wait,
    call_weakly,
    compute_backoff,
    interpreter_is_exiting,
    report_uncaught,
)

if TYPE_CHECKING:
    from memory.entries import Entry

    from .cost.shared_limits import SharedLimits

#: At this many calls that were given up and still run, no other is made: each holds a thread or an executor's slot.
MAX_ABANDONED = 4
#: Where compactors with a dispatcher read what workers have published.
_READERS = DaemonExecutor(2, "compactor-readers")
#: Seconds after which the dispatcher is called again, if no worker has published.
HAND_OVER_SECONDS = 60.0


class State(StrEnum):
    """What a compactor does."""

    NEW = "new"
    """It was not started."""
    IDLE = "idle"
    """It waits for the next round."""
    EVALUATING = "evaluating"
    """A cycle finds out whether there is anything to do."""
    COMPACTING = "compacting"
    """A cycle makes a summary, or another overlay."""
    BACKING_OFF = "backing_off"
    """It waits after a failure."""
    STOPPING = "stopping"
    """It was told to stop, and its run has not ended."""
    STOPPED = "stopped"
    """It does nothing any more."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Consequences(ValueObject):
    """The consequences of a run's end."""

    #: Results in a row by now that were no longer current.
    discards: int
    #: It failed: an event says so, and the next run waits for a back-off.
    is_failure: bool = False
    #: Another run follows at once: something else is current now, or more may be due.
    evaluates_again: bool = False
    #: Callers of ``compact_now`` get an answer though there is no result.
    answers: bool = False
    #: The compactor stops: there will be nothing to do any more.
    stops: bool = False


def decide_consequences(error: BaseException | None, discards: int, *, forced: bool) -> Consequences:
    """Return the consequences of *error* (None: the run succeeded) after so many *discards* in a row."""
    match error:
        case None:
            return Consequences(0, answers=forced)
        case LeasedElsewhere() | LoopPaused():  # an event already, and no failure
            return Consequences(discards, answers=True)
        case LimitReached():  # likewise; callers go on waiting, as the compactor does in the queue
            return Consequences(discards, evaluates_again=True)
        case SessionPurged():  # nobody can write to this session again
            return Consequences(discards, answers=True, stops=True)
        case StaleCompaction(reason="interpreter_exit"):  # evaluating again would loop until the exit
            return Consequences(discards, answers=True)
        case StaleCompaction(reason="stopped"):
            return Consequences(discards, evaluates_again=True)
        case StaleCompaction() if discards == 0:
            return Consequences(1, evaluates_again=True)
        case StaleCompaction():  # rounds that change at every reading would be paid for again and again
            return Consequences(discards + 1, is_failure=True, answers=True)
    return Consequences(discards, is_failure=True, answers=True)


class Runner:
    """Runs one compactor's cycles, one at a time, on a thread of its own or on a host's executor."""

    # Slots for some: a dict of more than 30 names shares its keys with no other instance's, and takes a KiB more.
    __slots__ = ("__dict__", "__weakref__", "_clock", "_dispatcher", "_events", "_executor", "_limits", "_rng")

    def __init__(
        self,
        cycle: Cycle,
        summarizer: Summarizer,
        events: EventLog,
        clock: Clock,
        rng: Callable[[], float],
        executor: Executor | None,
        limits: Limits | SharedLimits | None,
        dispatcher: Dispatcher | None,
    ) -> None:
        self._cycle = cycle
        self._config = cycle.config
        self.role = cycle.token_cache.role
        self._summarizer = summarizer
        self._events = events
        self._clock = clock
        self._rng = rng
        self._executor = executor
        self._limits = limits
        self._dispatcher = dispatcher
        self._run: Run | None = None
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        """Be as new: no thread, no run, no lock held. Publications and the history stay."""
        self._lock = threading.RLock()  # guards all below it
        self._wake: threading.Condition | None = None  # the same lock, to wait on; made by the first who waits
        self._state = State.NEW
        self._pending = True  # something happened that no cycle has evaluated
        self._due = False  # an evaluation is due even while the compactor waits in the queue: it may need no model
        if self._run is not None:  # a thread that has forked in a run publishes nothing here
            self._run.over = True
        self._run = None
        self._calls: dict[object, float] = {}  # in flight, given up or not, with the time at which each began
        self._waiters: list[Future[CompactedMessage | None]] = []  # in compact_now
        self._restart = False  # start() came while stopping
        self._discards = 0  # results in a row that were no longer current
        self._backoff: object | None = None  # the current back-off; the late timer of an older one does nothing
        self._index_due = False  # something was published since texts were indexed
        self._indexing = False  # a worker indexes them, or is about to
        self._thread: DaemonExecutor | None = None
        self._cancel: Callable[[], object] | None = None  # the next evaluation, if one is scheduled
        # A weak reference: the queue must not keep the compactor alive.
        limits = self._limits
        call = partial(_notify_permit, weakref.ref(self))
        self._ticket = limits.make_ticket(self._summarizer, call) if limits is not None else None
        self._skip_reason: Skip | None = None  # of the last run
        self._ends: tuple[Callable[[], object], ...] = ()  # to listen to what workers publish, and to join appends
        self._enqueued = ""  # the last entry of the newest append that has enqueued a job, until it is evaluated
        self._handed_over: tuple[int, float] | None = None  # the generation that the dispatcher knows is due, and since
        self.failures = 0  # since the last success
        self._model_failed = False  # whether the last of them came after a model was asked
        self.last_error: str | None = None

    @property
    def state(self) -> State:
        run, state = self._run, self._state
        return State.EVALUATING if state is State.COMPACTING and run is not None and not run.compacting else state

    @property
    def skip_reason(self) -> Skip | None:
        run = self._run
        return run.skip_reason if run is not None and run.begun else self._skip_reason

    @property
    def is_in_cycle(self) -> bool:
        """Whether a cycle runs, if only to evaluate, or a call that was given up."""
        return self._run is not None or bool(self._calls)

    @property
    def is_compacting(self) -> bool:
        """Whether a cycle runs that has found something to do, or a call that was given up."""
        run = self._run
        return (run is not None and run.compacting) or bool(self._calls)

    @property
    def is_busy(self) -> bool:
        """Whether something would be lost by stopping: a cycle, a call, a place in the queue."""
        return self.is_in_cycle or self._indexing or (self._ticket is not None and self._ticket.is_queued)

    @property
    def circuit_open(self) -> bool:
        """Whether attempts are rare now; each one is a half-open circuit's trial."""
        return self.failures >= self._config.circuit_breaker_failures

    # What the host calls: ``ContextCompactor`` documents it.

    def start(self) -> None:
        """Begin to work. While stopping, it begins when that is through."""
        ends = self._follow_log(self._dispatcher) if self._dispatcher is not None and not self._ends else ()
        enabled = self._config.enabled
        with self._lock:
            if not self._ends:  # else another thread was faster
                self._ends, ends = ends, ()
            begins = self._state in (State.NEW, State.STOPPED)
            self._restart = self._restart or self._state is State.STOPPING
            if begins:
                self._state = State.IDLE if self._run is None else State.COMPACTING  # for compact_now
                self._pending = enabled
            run = self._claim() if begins else None
        for end in ends:
            end()
        if begins and not enabled:
            self._skip_reason, generation = Skip.DISABLED, self._cycle.journal.read().generation
            self._events.emit(
                Skipped(role=self.role, generation=generation, reason=Skip.DISABLED, rounds=0, tail=0, closed=0)
            )
        self._dispatch(run)

    def begin_stop(self, timeout: float | None = None) -> Callable[[float], bool]:
        """Stop without waiting. Return a function that waits until a given time, and returns whether no worker is left.
        With a *timeout*, it waits for no call that has taken longer in all: several that hang are waited for together.
        """
        with self._lock:
            ends, self._ends = self._ends, ()
            self._restart = False
            self._state = State.STOPPING
            thread, cancel = self._thread, self._cancel
            if self._run is not None and not self._run.begun:
                self._run = None  # no worker took it up; when one does, it finds that it is not wanted
            if self._run is not None:
                self._run.stopping = True
            else:
                self._come_to_rest()
            if self._waiters:
                self._resolve_waiters(error=CompactionFailed("the compactor was stopped; start() it and ask again"))
            self._notify()
            latest = math.inf if timeout is None else max(self._calls.values(), default=math.inf) + timeout
        for end in ends:
            end()
        waits = threading.get_ident() not in self._events.threads_inside  # else this hook would wait for itself
        return partial(self._finish_stop, thread, cancel, latest if waits else -math.inf)

    def _finish_stop(
        self, thread: DaemonExecutor | None, cancel: Callable[[], object] | None, latest: float, until: float
    ) -> bool:
        until = min(until, latest)
        with self._lock:
            wake = self._wake = self._wake or threading.Condition(self._lock)
            at_rest = wake.wait_for(
                lambda: self._state is not State.STOPPING and not self._calls, bound_wait(until - time.monotonic())
            )
        if cancel is not None:
            cancel()
        if self._ticket is not None:
            self._ticket.leave()
        if not at_rest:
            self._cycle.journal.release()  # the process may exit now, before the run gives it back
            return False
        return thread is None or thread.join(bound_wait(until - time.monotonic()))

    def notify(self, *, published: bool = False) -> None:
        """Take note that something happened, or was *published* beside the runs. Never blocks, never raises."""
        is_due = published or self._pending or self._index_due or self._run is not None
        # Checked on this thread: most of the time nothing is due, and no worker is needed.
        if not is_due and self._state is State.IDLE and self._cycle.stays_undue():
            self._skip_reason = Skip.BELOW_TRIGGER
            return
        with self._lock:
            self._index_due |= published and self._cycle.journal.has_index
            self._pending = self._config.enabled  # a disabled one has nothing to evaluate
            run = self._claim()
            if self._run is not None:
                self._events.context = copy_context()
        self._dispatch(run)

    def compact_now(self, timeout: float | None) -> CompactedMessage | None:
        if threading.get_ident() in self._events.threads_inside:
            raise _make_deadlock_error("compact_now")
        waiter: Future[CompactedMessage | None] = Future()
        with self._lock:
            self._waiters.append(waiter)
            run = self._claim()
            self._events.context = copy_context()
        self._dispatch(run)
        try:
            error = waiter.exception(bound_wait(timeout))
        except TimeoutError:
            reached = self._ticket.limit() if self._ticket is not None else None
            raise reached or CompactionTimeout(
                f"no compaction within {timeout} seconds; the run goes on, ask again or give it more time"
            ) from None
        finally:  # also after KeyboardInterrupt
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        if error is None:
            return waiter.result()
        if isinstance(error, CompactionFailed):
            raise error
        told = f"no compaction: {describe_error(error)}; what was published before still stands"
        raise CompactionFailed(told) from error

    def wait_idle(self, timeout: float | None) -> bool:
        if threading.get_ident() in self._events.threads_inside:
            raise _make_deadlock_error("wait_idle")
        timeout = bound_wait(timeout)  # refused even if there is nothing to wait for
        ticket = self._ticket
        with self._lock:
            wake = self._wake = self._wake or threading.Condition(self._lock)
            wake.wait_for(
                lambda: (
                    self._run is None and not (ticket is not None and ticket.is_queued and self._state is State.IDLE)
                ),
                timeout,
            )
            return self._run is None and not self._pending and self._state is not State.BACKING_OFF

    # A run, from its beginning to its end.

    def _claim(self) -> Run | None:
        """Return the run to dispatch now, made current; None with a reason not to. Called with the lock held."""
        if self._run is not None:  # exactly one at a time; it is evaluated again when that one ends
            return None
        if self._ticket is not None and self._ticket.is_queued and not self._due:  # it may not call a model yet
            return None
        if not self._waiters:
            if self._state is not State.IDLE:  # not started, backing off or stopping
                return None
            if not self._pending:
                return None
        self._due = False
        self._run = Run(self._summarizer, bool(self._waiters), self._ask)
        if self._state in (State.IDLE, State.BACKING_OFF):
            self._state = State.COMPACTING
        return self._run

    def _dispatch(self, run: Run | None) -> None:
        """Hand *run* to a worker. Called without the lock: an executor may do anything."""
        if run is None:
            return
        with self._lock:
            if self._run is not run:  # stopped meanwhile: a thread that started now would be one too many
                return
            job, submitted = partial(self._run_cycle, run), None
            # An evaluation shares a thread, unless texts are indexed behind it: that takes long.
            only_evaluates = not (run.forced or run.evaluation)
            shares = only_evaluates and self._executor is None and not self._index_due
            run.only_evaluates = shares or (only_evaluates and self._dispatcher is not None)
            shared = HOST_EVALUATION_THREADS if self._cycle.calls_host else EVALUATION_THREADS
            thread = shared if shares else self._get_own_thread()
        try:
            if thread is not None:
                thread.run(job)
            elif self._executor is not None:
                submitted = self._executor.submit(job)
        except Exception as error:  # noqa: BLE001  (whatever it is: without a worker the run would never end)
            if isinstance(error, RuntimeError) and self._executor is not None:  # how it says that it is shut down
                self._lose_executor(run)
            elif self._close(run):
                self._end(run, None, error)
            return
        if isinstance(submitted, Future):
            submitted.add_done_callback(partial(self._look_for_cancelled, run))

    @contextmanager
    def _track_own_thread(self) -> Iterator[None]:
        """Mark this thread as running the compactor's own code: waiting for the compactor in there would never end.
        Report uncaught errors."""
        # Read once: a child that is forked in there gets another list.
        inside, thread = self._events.threads_inside, threading.get_ident()
        inside.append(thread)
        try:
            yield
        except BaseException as error:  # noqa: BLE001
            report_uncaught(error)
        finally:
            inside.remove(thread)

    def _work(self, job: Job) -> None:
        with self._track_own_thread():
            job()

    def _run_cycle(self, run: Run) -> None:
        with self._track_own_thread():
            with self._lock:
                if self._run is not run:
                    return
                run.begun = True
                if run.evaluation is None:
                    run.started_at = self._clock.monotonic()
                    self._pending = False  # before the rounds are read: what comes from now on is evaluated again
            result: CompactedMessage | None = None
            error: BaseException | None = None
            timers: list[Callable[[], object]] = []
            try:
                if self._cycle.calls_host:
                    timers = self._limit_host_calls(run)
                takes = self._ticket is not None and not run.only_evaluates
                names = self._events.session, self.role
                permit = run.permit = self._ticket.take_permit(*names) if self._ticket is not None and takes else None
                try:
                    result = self._cycle.run(run)
                finally:  # for a run that was given up this is where its call has really ended
                    for cancel in timers:
                        cancel()
                    if permit is not None:
                        permit.release()
                if run.evaluation is not None and self._continue_or_dispatch(run):
                    return
            except BaseException as raised:  # noqa: BLE001  (a panic of a native extension is no Exception)
                error = raised
            if self._close(run):
                self._end(run, result, error)
            else:
                self._events.emit(
                    Discarded(role=self.role, generation=self._cycle.journal.read().generation, reason="late")
                )
                with self._lock:
                    self._calls.pop(run, None)
                    self._notify()
            if self._index_due:
                self._index_texts()

    def _limit_host_calls(self, run: Run) -> list[Callable[[], object]]:
        """Begin to time the host's functions in *run*; return functions that end that."""
        if len(self._calls) >= MAX_ABANDONED:
            raise _make_hang_error(len(self._calls))
        seconds, call_later = self._config.call_timeout, self._clock.call_later
        timers = [call_later(seconds, partial(self._give_up, run))]
        if run.only_evaluates:
            make_room = partial(HOST_EVALUATION_THREADS.replace_thread, threading.current_thread())
            timers.append(call_later(min(HOST_EVALUATION_SECONDS, seconds), make_room))
        return timers

    def _continue_or_dispatch(self, run: Run) -> bool:
        """Do what *run* has found due on a thread of its own, and return True. With a dispatcher, have a worker do it,
        again if nothing came of that within a minute, and return False."""
        run.check()
        if (dispatcher := self._dispatcher) is None:
            self._dispatch(run)
            return True
        run.evaluation, journal, now = None, self._cycle.journal, self._clock.monotonic()
        generation, known = journal.read().generation, self._handed_over
        waits = known is not None and known[0] == generation and now < known[1] + HAND_OVER_SECONDS
        if not waits and not (known is not None and journal.refresh()):  # news causes an evaluation of its own
            enqueued, self._enqueued = self._enqueued, ""  # a job that came to nothing is enqueued again
            if not enqueued or enqueued != self._cycle.find_last_entry():
                dispatcher.due(self._events.session, self.role, None)
            self._handed_over = generation, now
        run.skip_reason, run.recheck_in = Skip.DISPATCHED, HAND_OVER_SECONDS
        self._events.emit(
            Skipped(role=self.role, generation=generation, reason=Skip.DISPATCHED, rounds=0, tail=0, closed=0)
        )
        return False

    def _ask(self, run: Run, request: SummaryRequest) -> str | Summary:
        """Return the summarizer's answer. At the deadline *run* is given up, and a later answer is discarded."""
        run.check()
        summarizer, permit, call = run.summarizer, run.permit, object()
        run.request_kind = request.kind
        with self._lock:
            if len(self._calls) >= MAX_ABANDONED:
                raise _make_hang_error(len(self._calls))
            self._calls[call] = time.monotonic()
        try:
            cancel = self._clock.call_later(self._config.call_timeout, partial(self._give_up, run, call))
            try:
                answer = summarizer(request) if permit is None else permit.ask(summarizer, request)
            finally:
                cancel()
        finally:
            with self._lock:  # a forked child has another one
                self._calls.pop(call, None)
                self._notify()
        if run.over:
            raise StaleCompaction("late")
        return answer

    def _close(self, run: Run) -> bool:
        """Return whether the caller is the first to know how *run* ended: its worker, or its deadline."""
        with self._lock:
            if self._run is not run or run.over:
                return False
            run.over = True
            return True

    def _end(self, run: Run, result: CompactedMessage | None, error: BaseException | None) -> None:
        """Take *run*'s outcome, and start the next step. The run ends even if this fails."""
        with self._lock:
            self._backoff = None
            self._index_due |= run.has_published and self._cycle.journal.has_index
            # A success ends a row of failures. But a reduction without a model does not prove that the model answers.
            answered = run.request_kind or not self._model_failed
            if run.has_published or (run.has_reduced and error is None and answered):
                self._discards, self.failures, self.last_error = 0, 0, None
            outcome = decide_consequences(error, self._discards, forced=run.forced)
            self._discards = outcome.discards
        may_go_on = True
        try:
            if error is not None or run.recheck_in is not None or self._cancel is not None:  # seldom
                self._follow_up(run, error, outcome)
        except BaseException as raised:  # noqa: BLE001  (a journal that cannot be read, a timer that cannot be started)
            error, outcome = raised, decide_consequences(raised, 0, forced=run.forced)
            may_go_on, self._backoff = False, None
        with self._lock:
            if self._run is not run:  # a forked child has begun anew
                return
            self._run, self._skip_reason = None, run.skip_reason
            rested = may_go_on and outcome.is_failure and self._backoff is None  # over already: the machine slept
            running = self._state is State.COMPACTING  # not asked to stop, and not compact_now without start()
            stops = outcome.stops and running
            if error is not None and (outcome.is_failure or outcome.stops):
                self.last_error = describe_error(error)
            if outcome.evaluates_again or result is not None or rested:
                self._pending = True
            if self._waiters and (outcome.answers or result is not None):
                self._resolve_waiters(result, error)
            if self._state is State.STOPPING or stops:
                self._come_to_rest()
            elif running:
                self._state = State.IDLE if self._backoff is None else State.BACKING_OFF
            elif self._thread is not None:  # compact_now of a compactor that is not started
                self._thread.shutdown(wait=False)
                self._thread = None
            following = self._claim() if may_go_on else None  # else the next event starts it
            queues = self._ticket is not None and self._ticket.is_queued
            is_through = self._run is None and self._backoff is None and not queues
            # The caller's context may hold a whole request.
            self._events.context = None if is_through else self._events.context
            self._notify()
        if self._ticket is not None and following is None:
            self._ticket.give_back()
        if stops:
            self._emit_stopped("session_purged")
        self._dispatch(following)

    def _follow_up(self, run: Run, error: BaseException | None, outcome: Consequences) -> None:
        """Emit the discard or failure, and set the timer."""
        if error is None:
            self._schedule(run.recheck_in)
            return
        if isinstance(error, LeasedElsewhere):
            self._schedule(min(error.seconds, run.recheck_in or math.inf))
            return
        if isinstance(error, LoopPaused):
            try:
                error.loop.call_soon_threadsafe(call_weakly(self._evaluate_again))
            except RuntimeError:  # it was closed just now
                self._schedule(0)
            return
        if isinstance(error, LimitReached) and self._ticket is not None:
            self._publish_without_model()
            self._schedule(run.recheck_in)
            self._ticket.wait(error)
            return
        generation = self._cycle.journal.read().generation
        if isinstance(error, StaleCompaction):
            self._events.emit(Discarded(role=self.role, generation=generation, reason=error.reason))
        if not outcome.is_failure:
            return
        self.failures += 1
        self._model_failed = bool(run.request_kind)
        after, paid = getattr(error, "retry_after", None), isinstance(error, SummaryRejected)
        delay = compute_backoff(self._config, self.failures, self._rng(), after, paid=paid)
        kind, status = classify_failure(error)
        self._events.emit(
            Failed(
                role=self.role,
                generation=generation,
                error=error.check if isinstance(error, SummaryRejected) else type(error).__name__,
                failures=self.failures,
                retry_in=delay,
                circuit_open=self.circuit_open,
                kind=kind,
                status=status,
                seconds=self._clock.monotonic() - run.started_at if run.begun else 0.0,
            )
        )
        if run.compacting or not isinstance(error, CompactionTimeout):  # else what hangs would be called again
            self._publish_without_model(extend_offline=self.circuit_open and run.request_kind in ("rounds", "changes"))
        self._backoff = backoff = object()
        self._schedule(delay, backoff)

    def _publish_without_model(self, *, extend_offline: bool = False) -> None:
        """Make prompts shorter while no model answers: by a deferred compaction and, with *extend_offline*, an extract.

        Errors are ignored: the run's own failure was emitted, and it is tried again.
        """
        ways: list[Callable[[], bool]] = [partial(self._cycle.publish_if_shorter, needed=False)]
        for publish in [self._cycle.extend_offline, *ways] if extend_offline else ways:
            with self._lock:
                if self._state is State.STOPPING:
                    return
            with suppress(Exception):
                if publish():
                    self._index_due = self._cycle.journal.has_index

    def _index_texts(self, *, resumed: bool = False) -> None:
        """Index texts, step by step, while nothing is due to be compacted. *resumed*: this worker took it over.

        On an executor, each step is a job of its own: others may wait for its slot.
        """
        while True:
            with self._lock:
                if self._indexing and not resumed:
                    return
                at_rest = self._run is None and self._state is not State.STOPPED
                self._indexing = self._index_due and at_rest and not interpreter_is_exiting()
                if not self._indexing:
                    return
                self._index_due = False
            resumed = False
            try:
                resumed = self._cycle.journal.index_texts()
            except Exception as error:  # noqa: BLE001  (whatever is wrong with the store: the next search does it)
                self._events.emit(IndexingFailed(role=self.role, error=type(error).__name__))
            finally:
                with self._lock:
                    self._indexing = resumed
                    self._index_due |= resumed
            if resumed and self._executor is not None:
                try:
                    self._executor.submit(partial(self._work, partial(self._index_texts, resumed=True)))
                except Exception:  # noqa: BLE001  (it is shut down or full: the next run goes on)
                    with self._lock:
                        self._indexing = False
                return

    # Called with the lock held.

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.notify_all()

    def _get_own_thread(self) -> DaemonExecutor | None:
        """Return the compactor's thread; None if it has an executor."""
        if self._thread is None and self._executor is None:
            self._thread = DaemonExecutor(1, f"compactor-{self.role or 'role'}")
        return self._thread

    def _resolve_waiters(self, result: CompactedMessage | None = None, error: BaseException | None = None) -> None:
        """Tell everybody in ``compact_now`` how it ended."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if error is None:
                waiter.set_result(result)
            else:
                waiter.set_exception(error)

    def _come_to_rest(self) -> None:
        """End STOPPING, and begin anew if start() came meanwhile."""
        self._state, self._events.context = State.STOPPED, None
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
        if self._restart:
            self._restart, self._state, self._pending = False, State.IDLE, True

    # What appends, timers, the store's notices, the queue of the limits and executors call.

    def _follow_log(self, dispatcher: Dispatcher) -> tuple[Callable[[], object], ...]:
        """Listen to what workers publish, and join appends; return functions that end that."""
        journal = self._cycle.journal
        end_listening = journal.listen(call_weakly(self._read_news))
        if not isinstance(dispatcher, DatabaseDispatcher):
            return (end_listening,)
        return end_listening, journal.join_appends(dispatcher.database, call_weakly(self._join_append, dispatcher))

    def _join_append(self, dispatcher: DatabaseDispatcher, entries: Sequence[Entry]) -> Callable[[Any], object] | None:
        """Return what enqueues a job in the transaction that appends *entries*, if they probably make a compaction due:
        a crash of the host right after it then delays nothing."""

        def enqueue(connection: Any) -> None:
            if dispatcher.due_in(connection, self._events.session, self.role):
                self._enqueued = entries[-1].id

        with suppress(Exception):  # whatever fails in a trigger: the append succeeds, and the evaluation tells
            return enqueue if self._cycle.will_be_due(entries) else None
        return None

    def _read_news(self) -> None:
        """Read what a worker has published, on a thread of the process."""
        _READERS.run(call_weakly(self._cycle.journal.refresh_quietly))

    def _schedule(self, seconds: float | None, backoff: object | None = None) -> None:
        """Replace the scheduled evaluation by one in so many *seconds*; None: by none. Called without the lock."""
        # A weak reference: a pending call must not keep the compactor alive.
        following = (
            None if seconds is None else self._clock.call_later(seconds, call_weakly(self._evaluate_again, backoff))
        )
        with self._lock:
            late = following if self._state is State.STOPPING else None
            cancel, self._cancel = self._cancel, following
        for unwanted in (cancel, late):
            if unwanted is not None:
                unwanted()

    def _evaluate_again(self, backoff: object | None = None) -> None:
        """Evaluate, since *backoff* is over; None: since a lease, or the wait of a deferred compaction, is."""
        with self._lock:
            if backoff is not None:
                if self._backoff is not backoff:
                    return
                self._backoff = None
                if self._state is not State.BACKING_OFF:
                    return
                self._state = State.IDLE
            self._pending, self._due = backoff is not None or self._config.enabled, True
            run = self._claim()
            self._notify()
        self._dispatch(run)

    def _give_up(self, run: Run, call: object | None = None) -> None:
        """Treat *call* of *run*, or its evaluation (None), as failed. Its thread cannot be stopped: it is left alone,
        and another takes its place."""
        seconds, name = self._config.call_timeout, "summarizer"
        with self._lock:
            ended = run.compacting if call is None else call not in self._calls
            if ended or not self._close(run):  # just now
                return
            if call is None:
                self._calls[run], name = time.monotonic() - seconds, "host's trigger, getter or other callable"
            outlived, self._thread = self._thread, None
            thread = self._get_own_thread()  # None with an executor, all of whose slots may hang like this one
        self._cycle.journal.release(expires=True)
        timeout = CompactionTimeout(f"the {name} did not answer within call_timeout={seconds:g} seconds")
        end = partial(self._work, partial(self._end, run, None, timeout))
        if outlived is not None:
            outlived.shutdown(wait=False)
        try:
            if thread is not None:
                thread.run(end)  # not here: hooks would hold up the timer that all compactors share
                return
        except RuntimeError:  # no thread can be started
            pass
        end()

    def _on_permit(self) -> bool:
        """Evaluate, now that the limits have room for a call; return False if nobody waits any more."""
        with self._lock:
            run = self._claim()
            wanted = self._run is not None
            self._notify()
        self._dispatch(run)
        return wanted

    def _look_for_cancelled(self, run: Run, submitted: Future[object]) -> None:
        """Called by the executor, which may hold its own lock: hooks must wait until it has let go of that."""
        if submitted.cancelled():
            self._clock.call_later(0, partial(self._lose_executor, run))

    def _lose_executor(self, run: Run) -> None:
        """Come to rest: the executor was shut down, before *run* or with it."""
        with self._lock:
            if self._run is not run:
                return
            run.over, self._run, self._restart = True, None, False
            self._come_to_rest()
            self._resolve_waiters(error=CompactionFailed("the compactor's executor is shut down; give it another"))
            self._notify()
        self._emit_stopped("executor_shut_down")

    def _emit_stopped(self, reason: str) -> None:
        """Leave the queue, and tell why the compactor stopped by itself."""
        if self._ticket is not None:
            self._ticket.leave()
        self._events.emit(Stopped(role=self.role, reason=reason))


def _notify_permit(runner: weakref.ref[Runner]) -> bool:
    found = runner()
    return found is not None and found._on_permit()


def _make_hang_error(abandoned: int) -> CompactionTimeout:
    return CompactionTimeout(f"{abandoned} calls that were given up have not ended; none is made now")


def _make_deadlock_error(name: str) -> RuntimeError:
    return RuntimeError(f"{name}() within a hook of the same compactor would wait for itself; call it elsewhere")
