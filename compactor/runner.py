"""The states of a compactor: one run at a time, its deadline, the back-off after it. What it does is in ``cycle``."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from memory.errors import SessionPurged, StaleCompaction
from memory.events import Event
from memory.hooks import describe_error, renewed_after_fork
from memory.overlays import CompactedMessage

from .cost.limits import Limits, Place, Turn
from .cycle import Cycle
from .errors import CompactionFailed, CompactionTimeout, LeasedElsewhere, LimitReached, SummaryRejected
from .events import Deferred, Discarded, EventLog, Failed, Published, Reduced, Skip, Skipped, Stopped
from .summarize import DEFAULT_TRAITS, Traits, traits_of
from .summarizers.base import RequestKind, Summarizer, Summary, SummaryRequest
from .timers import (
    Backoff,
    BoundedCalls,
    Call,
    Clock,
    CompletionWaiters,
    DaemonThread,
    Timer,
    bounded,
    interpreter_is_exiting,
)


class Indexing:
    """A compactor's. *step* does some of it, and returns whether there is more to do.

    *is_idle* says that nothing is due to be compacted, which comes first; it is asked with the lock of *wake* held,
    which guards this too. Without an *executor* all is done on the thread that begins.
    """

    def __init__(
        self,
        wake: threading.Condition,
        step: Callable[[], bool],
        is_idle: Callable[[], bool],
        executor: Executor | None,
    ) -> None:
        self._wake = wake
        self._step = step
        self._is_idle = is_idle
        self._executor = executor
        self._is_due = False  # something was published since it was done
        self._running = False  # a worker is at it, or will be

    def due(self) -> None:
        """Take note that something was published."""
        with self._wake:
            self._is_due = True

    def run(self, *, begun: bool = False) -> None:
        """Do what is due, unless another worker is at it: *begun* says that this is the one.

        After each step an executor has its slot back, which others may be waiting for.
        """
        while (begun or self._is_due) and self._may_run(begun=begun):  # mostly nothing is due: no lock for that
            begun = False
            try:
                begun = self._step()
            finally:
                with self._wake:
                    self._is_due |= begun  # beside what was published meanwhile
                    self._running = begun
            if begun and self._executor is not None:
                self._run_later(self._executor)
                return

    def _may_run(self, *, begun: bool) -> bool:
        """Return whether there is time for a step, and begin it."""
        with self._wake:
            if self._running and not begun:
                return False
            self._running = self._is_due and self._is_idle() and not interpreter_is_exiting()
            if self._running:
                self._is_due = False
            return self._running

    def _run_later(self, executor: Executor) -> None:
        try:
            executor.submit(partial(self.run, begun=True))
        except Exception:  # noqa: BLE001  (it is shut down, which the next run tells; or full: then after that run)
            with self._wake:
                self._running = False


# --- a cycle on its way, and what follows from how it ends --------------------------------------------------------


@dataclass(eq=False, slots=True)
class Run:
    """One cycle on its way, and what it needs meanwhile. Only the compactor's current run may change anything."""

    runner: Runner
    #: Counts the compactor's runs.
    number: int
    #: Somebody waits in ``compact_now``: trigger and back-off do not matter.
    forced: bool
    #: What the summarizer says of itself.
    traits: Traits = DEFAULT_TRAITS
    #: Its share of the limits on calls and spend; None: there are no limits.
    permit: Place | None = None
    #: A worker has taken it up.
    begun: bool = False
    #: Its outcome is known, or it was given up; nothing more that it does counts.
    over: bool = False
    #: It has published a reduction.
    reduced: bool = False
    #: What the summarizer was asked for last.
    asked: RequestKind | None = None
    #: Seconds until a deferred compaction is looked at again, if nothing happens before.
    recheck_in: float | None = None

    def ask(self, request: SummaryRequest) -> str | Summary:
        """Call the summarizer; at its deadline the run is given up, and what it still answers is discarded."""
        return self.runner._ask(self, request)

    def forbidden(self) -> str | None:
        """Return why the run may not publish any more; None: it may."""
        return self.runner._forbidden(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from how a run ended."""

    #: Results in a row by now that were no longer current.
    discards: int
    #: It failed: that is told and remembered, and the next run is a back-off away.
    is_failure: bool = False
    #: There is to be a look at once: at what is current now, or at whether more is due.
    again: bool = False
    #: Whoever waits for the run is told, though it has no result.
    tells: bool = False
    #: There will be nothing to do any more.
    stops: bool = False


def outcome_of(error: BaseException | None, discards: int, *, forced: bool) -> Outcome:
    """Return what follows from *error*, None where there was none, for a run that was *forced* or not, after so many
    *discards* in a row."""
    if error is None:
        return Outcome(0, tells=forced)
    if isinstance(error, LeasedElsewhere):  # told already, and no failure
        return Outcome(discards, tells=True)
    if isinstance(error, LimitReached):  # likewise; who waits goes on waiting for a turn
        return Outcome(discards, again=True)
    if isinstance(error, SessionPurged):  # nobody can write to this session again
        return Outcome(discards, tells=True, stops=True)
    if not isinstance(error, StaleCompaction):
        return Outcome(discards, is_failure=True, tells=True)
    if error.reason == "interpreter_exit":  # to look again would never end
        return Outcome(discards, tells=True)
    if error.reason == "stopped":
        return Outcome(discards, again=True)
    if discards == 0:
        return Outcome(1, again=True)
    # Rounds that are others at every reading would be paid for again and again.
    return Outcome(discards + 1, is_failure=True, tells=True)


# --- the states of a compactor: one run at a time, its deadline, the back-off after it. What it does is in ``cycle``


#: The events from which a runner learns.
_INSTRUCTIVE = (Skipped, Published, Deferred, Reduced)


class State(StrEnum):
    NEW = "new"
    IDLE = "idle"
    COMPACTING = "compacting"
    BACKING_OFF = "backing_off"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Runner:
    """Runs one compactor's cycles, one at a time, on a thread of its own or on a host's executor."""

    def __init__(
        self,
        cycle: Cycle,
        summarizer: Summarizer,
        events: EventLog,
        clock: Clock,
        rng: Callable[[], float],
        executor: Executor | None,
        limits: Limits | None = None,
    ) -> None:
        self._cycle = replace(cycle, emit=self.emit)  # the runner learns from what a run tells
        self._outside = cycle  # and not from what is published beside it: that is no success of a summarizer's
        self._summarizer = summarizer
        self._events = events
        self._clock = clock
        self._executor = executor
        self._limits = limits
        self._backoff = Backoff(cycle.config, rng)
        self._calls = BoundedCalls(clock)
        self._renew()
        renewed_after_fork(self)

    def _renew(self) -> None:
        """Be as new: no thread, no run, no lock held. What is published and what happened stays."""
        self._lock = threading.RLock()  # guards all below it
        self._wake = threading.Condition(self._lock)  # the same lock, to wait on; entering it takes longer
        self._state = State.NEW
        self._pending = True  # something happened that no cycle has looked at
        self._run: Run | None = None
        self._restart = False  # start() came while stopping
        self._waiters = CompletionWaiters(self._wake)
        self._begun = 0  # runs
        self._backing_off_from = 0  # the run after which it backs off: a timer's of an earlier one may come late
        self._rested_from = 0  # the run whose back-off has ended
        self._calls.renew(self._wake)
        self._discards = 0  # results in a row that were no longer current
        self._indexing = Indexing(self._wake, self._index_texts, self._is_idle, self._executor)
        self._turn = Turn(self._limits, partial(_turn_come, weakref.ref(self)))
        self._due = False  # it is to look, whether or not its turn has come to ask a model
        self._look = Timer(self._clock, self._wake, self._look_again)  # a lease expires, or what is held may be shown
        self._rest = Timer(self._clock, self._wake, self._go_on)  # the end of the back-off
        self._why_idle: Skip | None = None
        self._last_error: str | None = None
        self._thread: DaemonThread | None = None
        self._backoff.reset()

    _after_fork = _renew

    def start(self) -> bool:
        """Begin to work, with what is there already; return whether it does now: while stopping, it begins when that is
        through."""
        with self._lock:
            if self._state is State.STOPPING:
                self._restart = True
                return False
            if self._state not in (State.NEW, State.STOPPED):
                return False
            self._state = State.IDLE if self._run is None else State.COMPACTING  # for compact_now
            self._pending = self._cycle.config.enabled
            run = self._claim()
        if not self._cycle.config.enabled:
            self.emit(self._cycle.skipped_unseen(Skip.DISABLED))
        self._dispatch(run)
        return True

    def stop(self, timeout: float | None = 5.0) -> bool:
        """Stop, and return whether no worker is left: ``ContextCompactor.stop``."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        if self._events.inside:
            until = -math.inf
        with self._lock:
            self._restart = False
            self._state = State.STOPPING
            thread = self._thread
            if self._run is not None and not self._run.begun:
                self._run = None  # no worker took it up; when one does, it finds that it is not wanted
            if self._run is None:
                self._come_to_rest()
            self._waiters.resolve(error=CompactionFailed("the compactor was stopped; start() it and ask again"))
            cancel_look = self._look.cancel
            self._wake.notify_all()
            if timeout is not None:  # a call has so long in all, so that several that hang are waited for together
                until = min(until, self._calls.newest_begun + timeout)
            at_rest = self._wake.wait_for(self._at_rest, bounded(until - time.monotonic()))
        cancel_look()
        self._turn.leave()
        if not at_rest:
            self._cycle.keeping.release()  # the process may end here; a run that ends gives it back itself
            return False
        return thread is None or thread.join(bounded(until - time.monotonic()))

    def _at_rest(self) -> bool:
        return self._state is not State.STOPPING and not self._calls.in_flight

    def notify(self, *, published: bool = False, due: bool = False) -> None:
        """Take note that something happened, or was *published* elsewhere, or that a look is *due* which may need no
        model. Never blocks, never raises."""
        with self._lock:
            self._pending = self._cycle.config.enabled  # else no worker is needed to find that out
            self._due |= due
            if published:
                self._indexing.due()
            run = self._claim()
        self._dispatch(run)

    def publish_deferred(self) -> bool:
        """Publish what is held and makes prompts shorter; return whether another compaction is shown now.

        On whatever thread: a back-off goes on, and when a run is to look again is not changed.
        """
        published = self._outside.publish_deferred()
        if published:
            self.notify(published=True)
        return published

    def compact_now(self, timeout: float | None = None) -> CompactedMessage | None:
        """Compact what can be compacted, and return the compaction: ``ContextCompactor.compact_now``."""
        with self._lock:
            waiter = self._waiters.added()
            run = self._claim()
        self._dispatch(run)
        try:
            return self._waiters.outcome(waiter, timeout)
        except CompactionTimeout as timed_out:
            raise self._turn.limit() or timed_out from None

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Return True once all was looked at and nothing runs: ``ContextCompactor.wait_idle``."""
        with self._lock:
            self._wake.wait_for(self._is_through, bounded(timeout))
            return self._run is None and not self._pending and self._state is not State.BACKING_OFF

    def _is_through(self) -> bool:
        return self._run is None and not (self._turn.waiting and self._state is State.IDLE)

    @property
    def state(self) -> State:
        return self._state

    @property
    def skip_reason(self) -> Skip | None:
        return self._why_idle

    @property
    def last_error(self) -> str | None:
        return self._last_error

    @property
    def failures(self) -> int:
        return self._backoff.failures

    @property
    def circuit_open(self) -> bool:
        return self._backoff.circuit_open

    # -- the states ---------------------------------------------------------------------------------------------------

    def _claim(self) -> Run | None:
        """Return the run to dispatch now, made current; None with a reason not to. Called with the lock held."""
        if self._run is not None:  # exactly one at a time; it is looked at again when that one ends
            return None
        if self._turn.waiting and not self._due:  # to look before its turn comes would be in vain
            return None
        if self._waiters:
            return self._begin(forced=True)
        if self._state is not State.IDLE:  # not started, backing off or stopping
            return None
        if not self._pending:
            return None
        return self._begin(forced=False)

    def _begin(self, *, forced: bool) -> Run:
        self._begun += 1
        self._run, self._due = Run(self, self._begun, forced), False
        if self._state in (State.IDLE, State.BACKING_OFF):
            self._state = State.COMPACTING
        return self._run

    def _dispatch(self, run: Run | None) -> None:
        """Hand *run* to a worker. Called without the lock: an executor may do what it likes."""
        if run is None:
            return
        with self._lock:
            if self._run is not run:  # stopped meanwhile: a thread that started now would be one too many
                return
            worker = self._executor if self._executor is not None else self._own_thread()
        try:
            submitted = worker.submit(partial(self._work, run))
        except Exception as error:  # noqa: BLE001  (whatever it is: without a worker the run would never end)
            if isinstance(error, RuntimeError) and self._executor is not None:  # how it says that it is shut down
                self._without_worker(run)
            elif self._close(run):
                self._end(run, None, error)
            return
        if isinstance(submitted, Future):
            submitted.add_done_callback(partial(self._look_for_cancelled, run))

    def _own_thread(self) -> DaemonThread:
        """Called with the lock held."""
        if self._thread is None:
            self._thread = DaemonThread(f"compactor-{self._cycle.role or 'role'}")
        return self._thread

    def _look_for_cancelled(self, run: Run, submitted: Future[object]) -> None:
        """Called by the executor, which may hold its own lock: hooks must wait until it has let go of that."""
        if submitted.cancelled():
            self._clock.call_later(0, partial(self._without_worker, run))

    def _without_worker(self, run: Run) -> None:
        """Come to rest: the executor was shut down, before *run* or with it."""
        with self._lock:
            if self._run is not run:
                return
            self._run, self._restart = None, False
            self._come_to_rest()
            self._waiters.resolve(error=CompactionFailed("the compactor's executor is shut down; give it another"))
            self._wake.notify_all()
        self._turn.leave()
        self.emit(Stopped(role=self._cycle.role, reason="executor_shut_down"))

    def _work(self, run: Run) -> None:
        """One cycle, on a worker."""
        with self._lock:
            if self._run is not run:
                return
            run.begun = True
            self._why_idle = None
            self._pending = False  # before the rounds are read: what comes from now on is looked at again
        with self._events.own_code():
            self._cycle_once(run)
        self._indexing.run()

    def _index_texts(self) -> bool:
        with self._events.own_code():
            return self._cycle.index_texts()

    def _is_idle(self) -> bool:
        return self._run is None and self._state is not State.STOPPED

    def _cycle_once(self, run: Run) -> None:
        result: CompactedMessage | None = None
        error: BaseException | None = None
        try:
            run.permit = self._turn.place() if self._limits is not None else None
            try:
                run.traits = traits_of(self._summarizer)
                result = self._cycle.run(run)
            finally:  # for one that was given up this is where its call has really ended
                if run.permit is not None:
                    run.permit.release()
        except BaseException as raised:  # noqa: BLE001  (a native extension's panic is no Exception; the thread goes on)
            error = raised
        if not self._close(run):
            self.emit(Discarded(role=self._cycle.role, generation=self._cycle.journal.read().generation, reason="late"))
            return
        self._end(run, result, error)

    def _close(self, run: Run) -> bool:
        """Return whether the caller is the first to know how *run* ended: it, or its deadline."""
        with self._lock:
            if self._run is not run or run.over:
                return False
            run.over = True
            return True

    def _end(self, run: Run, result: CompactedMessage | None, error: BaseException | None) -> None:
        """Take *run*'s outcome, and go on to what comes next. Whatever fails here, the run ends."""
        outcome, delay, can_go_on = outcome_of(error, self._discards, forced=run.forced), None, True
        try:
            delay = self._judge(run, error, outcome)
            if delay is not None:
                self._rest.call_in(delay, run.number)
        except BaseException as raised:  # noqa: BLE001  (a journal that cannot be read, a timer that cannot be started)
            error, outcome, delay, can_go_on = raised, outcome_of(raised, 0, forced=run.forced), None, False
        with self._lock:
            if self._run is not run:  # a forked child has begun anew
                return
            self._run = None
            stops = outcome.stops and self._state is State.COMPACTING  # and is not asked to, nor not started
            self._settle(run, result, error, outcome, backing_off=delay is not None)
            following = self._claim() if can_go_on else None  # else when something happens
            unwanted = following is None and not self._turn.waiting
            self._wake.notify_all()
        if unwanted:
            self._turn.give_back()
        if stops:
            self._turn.leave()
            self.emit(Stopped(role=self._cycle.role, reason="session_purged"))
        self._dispatch(following)

    def _judge(self, run: Run, error: BaseException | None, outcome: Outcome) -> float | None:
        """Return the seconds to back off, or None; tell what was discarded or failed."""
        self._discards = outcome.discards
        if error is None:
            self._look.call_in(run.recheck_in)  # None: when something happens, which is looked at as ever
            if run.reduced:
                with self._lock:
                    self._succeeded()
            return None
        if isinstance(error, LeasedElsewhere):
            self._look.call_in(error.seconds if run.recheck_in is None else min(error.seconds, run.recheck_in))
            return None
        if isinstance(error, LimitReached):
            self._without_model(partial(self._outside.publish_deferred, needed=False))
            self._look.call_in(run.recheck_in)
            self._turn.wait(error)
            return None
        generation = self._cycle.journal.read().generation
        if isinstance(error, StaleCompaction):
            self.emit(Discarded(role=self._cycle.role, generation=generation, reason=error.reason))
        if not outcome.is_failure:
            return None
        delay = self._backoff.failed(getattr(error, "retry_after", None))
        self.emit(
            Failed(
                role=self._cycle.role,
                generation=generation,
                error=error.check if isinstance(error, SummaryRejected) else type(error).__name__,
                failures=self._backoff.failures,
                retry_in=delay,
                circuit_open=self._backoff.circuit_open,
            )
        )
        if self._backoff.circuit_open and run.asked in ("rounds", "changes"):
            self._without_model(self._outside.fold_offline)
        self._without_model(partial(self._outside.publish_deferred, needed=False))
        return delay

    def _without_model(self, publish: Callable[[], bool]) -> None:
        """Have *publish* make prompts shorter without a model, for that has failed: by what is held and was to be
        extended first, or by folding in offline what is due."""
        with self._lock:
            if self._state is State.STOPPING:
                return
        try:
            published = publish()
        except Exception:  # noqa: BLE001  (whatever is wrong there: the failure of the run is told, and it tries again)
            return
        if published:
            self._indexing.due()

    def _settle(
        self,
        run: Run,
        result: CompactedMessage | None,
        error: BaseException | None,
        outcome: Outcome,
        *,
        backing_off: bool,
    ) -> None:
        """Change state after *run*. Called with the lock held."""
        if error is not None and (outcome.is_failure or outcome.stops):
            self._last_error = describe_error(error)
        rested = self._rested_from == run.number  # before the state was entered, where the machine was asleep
        if outcome.again or result is not None or rested:
            self._pending = True
        if outcome.tells or result is not None:
            self._waiters.resolve(result=result, error=error)
        if self._state is State.STOPPING or (outcome.stops and self._state is State.COMPACTING):
            self._come_to_rest()
        elif self._state is State.COMPACTING:
            self._state = State.BACKING_OFF if backing_off and not rested else State.IDLE
            self._backing_off_from = run.number
        elif self._thread is not None:  # compact_now of a compactor that is not started
            self._thread.close()
            self._thread = None

    def _come_to_rest(self) -> None:
        """End STOPPING, and begin anew if start() came meanwhile. Called with the lock held."""
        self._state = State.STOPPED
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        if self._restart:
            self._restart = False
            self._state = State.IDLE
            self._pending = True

    def _go_on(self, number: int) -> None:
        """End the back-off that the run of that *number* began."""
        with self._lock:
            self._rested_from = max(self._rested_from, number)
            if self._state is not State.BACKING_OFF or self._backing_off_from != number:
                return
            self._state = State.IDLE
            self._pending = True
            following = self._claim()
            self._wake.notify_all()
        self._dispatch(following)

    def _look_again(self) -> None:
        """Look, now that another process's lease has expired, or what is held may be shown."""
        self.notify(due=True)

    def _take_turn(self) -> bool:
        """Look, now that there is room for a call; return False where nobody wants to know any more."""
        with self._lock:
            run = self._claim()
            wanted = self._run is not None
            self._wake.notify_all()
        self._dispatch(run)
        return wanted

    # -- calls to the summarizer --------------------------------------------------------------------------------------

    def _ask(self, run: Run, request: SummaryRequest) -> str | Summary:
        """Call the summarizer; at its deadline the run is given up, and what it still answers is discarded."""
        if reason := self._forbidden(run):
            raise StaleCompaction(reason)
        run.asked = request.kind
        ask = partial(run.permit.ask, self._summarizer) if run.permit is not None else self._summarizer
        seconds = self._cycle.config.call_timeout
        answer = self._calls.make(partial(ask, request), seconds, partial(self._give_up, run))
        if run.over:
            raise StaleCompaction("late")
        return answer

    def _give_up(self, run: Run, call: Call) -> None:
        """Treat a call as failed. Its thread cannot be stopped: it is left alone, and another takes its place."""
        with self._lock:
            if call.ended or not self._close(run):
                return
            outlived, self._thread = self._thread, None
        timeout = CompactionTimeout(
            f"the summarizer did not answer within call_timeout={self._cycle.config.call_timeout:g} seconds"
        )
        end = partial(self._end_given_up, run, timeout)
        if outlived is None:  # an executor's; all its slots may hang like this one
            end()
            return
        outlived.close()
        with self._lock:
            thread = self._own_thread()
        try:
            thread.submit(end)  # hooks are not to hold up the timer of every compactor
        except RuntimeError:
            end()

    def _end_given_up(self, run: Run, timeout: CompactionTimeout) -> None:
        with self._events.own_code():
            self._end(run, None, timeout)

    def _forbidden(self, run: Run) -> str | None:
        """Return why *run* may not publish any more."""
        if interpreter_is_exiting():
            return "interpreter_exit"
        with self._lock:
            if self._run is not run or run.over:
                return "late"
            if self._state is State.STOPPING:
                return "stopped"
        return None

    def emit(self, event: Event) -> None:
        """Tell *event*, and learn from it."""
        if isinstance(event, _INSTRUCTIVE):
            with self._lock:
                self._learn_from(event)
        self._events.emit(event)

    def _learn_from(self, event: Event) -> None:
        """Called with the lock held."""
        if isinstance(event, Skipped):
            self._why_idle = event.reason
        elif isinstance(event, Published):
            self._indexing.due()
            self._succeeded()
        elif isinstance(event, Deferred) and self._run is not None:
            self._run.recheck_in = event.recheck_in
        elif isinstance(event, Reduced) and self._run is not None:
            self._run.reduced = True  # a success only if what came after it did not fail

    def _succeeded(self) -> None:
        self._discards, self._last_error = 0, None
        self._backoff.reset()


def _turn_come(runner: weakref.ref[Runner]) -> bool:
    return (waiting := runner()) is not None and waiting._take_turn()
