"""Where cycles run: a daemon thread of the compactor's own, or a host's executor."""

from __future__ import annotations

import atexit
import heapq
import itertools
import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import NoneType
from typing import Any, Protocol, TypeVar
from weakref import WeakMethod

from memory.arguments import require
from memory.hooks import describe_error, renewed_after_fork
from memory.overlays import CompactedMessage
from memory.rounds import utc_now

from .config import CompactorConfig
from .errors import CompactionFailed, CompactionTimeout


class Backoff:
    """Failures in a row, and what they mean for the next attempt. Changed by one run at a time."""

    def __init__(self, config: CompactorConfig, rng: Callable[[], float]) -> None:
        self._config = config
        self._rng = rng
        self.failures = 0

    @property
    def circuit_open(self) -> bool:
        """Whether attempts are rare now; each that is made then is a half-open circuit's trial."""
        return self.failures >= self._config.circuit_breaker_failures

    def reset(self) -> None:
        """Take note of a success."""
        self.failures = 0

    def failed(self, retry_after: object = None) -> float:
        """Take note of a failure; return the seconds to wait, at least *retry_after*, where that is a number, but no
        longer for its sake than ``backoff_max``.

        Half to all of ``initial * 2**(failures - 1)``, so that many compactors of one endpoint do not return at once
        ("equal jitter": Brooker, Exponential Backoff and Jitter, AWS Architecture Blog, 2015).
        """
        self.failures += 1
        if self.circuit_open:
            delay = self._config.circuit_breaker_reset
        else:
            # 2.0**60 seconds is beyond every backoff_max; more would overflow.
            delay = min(self._config.backoff_initial * 2.0 ** min(self.failures - 1, 60), self._config.backoff_max)
        delay *= 0.5 + self._rng() / 2
        # One absurd wish must not silence compaction for a day: who is asked too early says so again.
        return max(delay, min(_seconds(retry_after), self._config.backoff_max))


def _seconds(value: object) -> float:
    """Return what an exception of anybody's carries as seconds; 0 for what is none, such as a header's text or NaN."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    return float(value) if is_number else 0.0  # type: ignore[arg-type]


# --- those who wait in ``compact_now``, and what they are told ----------------------------------------------------


@dataclass(eq=False, slots=True)
class Waiter:
    """Someone in ``compact_now``."""

    done: bool = False
    result: CompactedMessage | None = None
    error: BaseException | None = None


class CompletionWaiters:
    """All of a compactor's. Everything but ``outcome`` is called with the lock of *wake* held, which guards them."""

    def __init__(self, wake: threading.Condition) -> None:
        self._wake = wake
        self._waiting: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def added(self) -> Waiter:
        waiter = Waiter()
        self._waiting.append(waiter)
        return waiter

    def resolve(self, *, result: CompactedMessage | None = None, error: BaseException | None = None) -> None:
        """Tell all who wait how it ended."""
        for waiter in self._waiting:
            waiter.done, waiter.result, waiter.error = True, result, error
        self._waiting = []

    def outcome(self, waiter: Waiter, timeout: float | None) -> CompactedMessage | None:
        """Return what *waiter* is told. Raises ``CompactionTimeout`` and ``CompactionFailed``."""
        with self._wake:
            try:
                self._wake.wait_for(lambda: waiter.done, bounded(timeout))
            finally:  # an interrupt from the keyboard included
                if not waiter.done:
                    self._waiting.remove(waiter)
        if not waiter.done:
            raise CompactionTimeout(
                f"no compaction within {timeout} seconds; the run goes on, ask again or give it more time"
            )
        if isinstance(waiter.error, CompactionFailed):
            raise waiter.error
        if waiter.error is not None:
            raise CompactionFailed(
                f"no compaction: {describe_error(waiter.error)}; what was published before still stands"
            ) from waiter.error
        return waiter.result


def bounded(timeout: float | None) -> float | None:
    """Return *timeout* as a wait that every platform's locks accept."""
    require("timeout", timeout, (int, float, NoneType), "a number of seconds, or None for no end")
    return None if timeout is None or timeout == math.inf else min(max(timeout, 0.0), threading.TIMEOUT_MAX)


# --- where cycles run: a daemon thread of the compactor's own, or a host's executor -------------------------------


Job = Callable[[], object]
R = TypeVar("R")

#: Seconds that a thread lets pass between being woken and its work: what woke it is in the middle of a turn, and would
#: wait for the interpreter's lock there. So it also looks once at what a turn tells of several times.
PAUSE = 0.001


def run_isolated(job: Job) -> None:
    """Run *job*; what it raises is reported as an uncaught exception is, and the thread goes on.

    ``BaseException``, because a native extension's panic and ``SystemExit`` are not ``Exception``, and one job's must
    not take away the thread that others wait for.
    """
    try:
        job()
    except BaseException as error:  # noqa: BLE001
        raised = (type(error), error, error.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(raised))


class Worker(Protocol):
    """Runs jobs some time, on some thread. ``concurrent.futures.Executor`` is one."""

    def submit(self, fn: Job, /) -> object: ...


class DaemonThread:
    """One thread that runs jobs in order. It starts with the first job, and never keeps the interpreter from exiting.

    Not a ``ThreadPoolExecutor``: that one is waited for at exit, however long a model takes to answer.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run yet. Not to be called from two threads at once."""
        if self._thread is None:
            thread = threading.Thread(target=_serve, args=(self._jobs,), name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def submit(self, fn: Job, /) -> None:
        self.start()
        self._jobs.put(fn)

    def close(self) -> None:
        """Let the thread end once it has done what it was given."""
        self._jobs.put(None)

    def join(self, timeout: float | None) -> bool:
        """Wait until the thread has ended; return whether it has."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def __del__(self) -> None:
        self.close()  # a compactor that nobody stopped and nobody holds takes its thread along


class DaemonExecutor(Executor):
    """An executor of at most *max_workers* daemon threads: for ``executor=``, shared by any number of compactors.

    Exit waits for none of its jobs, however long a model takes to answer; for a ``ThreadPoolExecutor``'s it does.
    Threads start with the jobs.
    """

    def __init__(self, max_workers: int) -> None:
        if max_workers < 1:
            raise ValueError(f"max_workers is at least 1, not {max_workers}")
        self._max_workers = max_workers
        self._jobs: queue.SimpleQueue[tuple[Job, Future[Any]] | None] = queue.SimpleQueue()
        self._begin()
        renewed_after_fork(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # guards all below it
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def _after_fork(self) -> None:
        self._jobs = queue.SimpleQueue()
        self._begin()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        future: Future[R] = Future()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001  (whoever waits for the future is told)
                    future.set_exception(error)

        with self._lock:
            if self._closed:
                raise RuntimeError("this executor is shut down; make another")
            if self._jobs.qsize() >= self._idle and len(self._threads) < self._max_workers:
                name = f"compactor-pool-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, args=(self._jobs,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
                self._idle += 1
            self._jobs.put((job, future))
        return future

    def _serve(self, jobs: queue.SimpleQueue[tuple[Job, Future[Any]] | None]) -> None:
        while (taken := jobs.get()) is not None:
            with self._lock:
                self._idle -= 1
            run_isolated(taken[0])
            del taken
            with self._lock:
                self._idle += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs; *wait* until those there are have ended, or are cancelled where *cancel_futures*."""
        cancelled: list[Future[Any]] = []
        with self._lock:
            self._closed, threads = True, list(self._threads)
            with suppress(queue.Empty):
                while cancel_futures:
                    if (waiting := self._jobs.get_nowait()) is not None:
                        cancelled.append(waiting[1])
            for _ in threads:
                self._jobs.put(None)
        for future in cancelled:
            future.cancel()
        for thread in threads if wait else ():
            if thread is not threading.current_thread():
                thread.join()


def _serve(jobs: queue.SimpleQueue[Job | None]) -> None:
    while True:
        idle = jobs.empty()
        if (job := jobs.get()) is None:
            return
        if idle:
            time.sleep(PAUSE)
        run_isolated(job)
        del job  # while it waits, the thread holds on to nothing of the last cycle


_exiting = False


def _note_exit() -> None:
    global _exiting  # noqa: PLW0603  (set once, when the interpreter says so)
    _exiting = True


atexit.register(_note_exit)


def interpreter_is_exiting() -> bool:
    """Return whether the interpreter is shutting down: then other threads' modules may be half gone."""
    return _exiting or sys.is_finalizing()


# --- time, and calls to be made later: one timer thread serves every compactor of the process ---------------------


class Clock(Protocol):
    """What a compactor asks of time. ``compactor.testing.FakeClock`` is one that stands still."""

    def now(self) -> datetime:
        """Return the time of day, for time stamps."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for durations."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Have *callback* called once, *seconds* from now, on another thread; return a function that cancels it.

        The callback must be quick: others wait for their turn.
        """


@dataclass(order=True, slots=True)
class _Call:
    at: float
    count: int
    callback: Callable[[], None] | None = field(compare=False)


class SystemClock:
    """The machine's time. Its timer thread, a daemon, starts with the first call that is to be made later."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self._renew()
        renewed_after_fork(self)

    def _renew(self) -> None:
        self._due = threading.Condition()  # guards all below it
        self._calls: list[_Call] = []
        self._cancelled = 0  # how many of them
        self._wakes_at = math.inf  # when the thread looks by itself, if nothing was added before
        self._thread: threading.Thread | None = None

    _after_fork = _renew

    def now(self) -> datetime:
        return utc_now()

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        call = _Call(time.monotonic() + seconds, next(self._count), callback)
        with self._due:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="compactor-timer", daemon=True)
                thread.start()
                self._thread = thread  # not before: one that could not be started is tried again
            heapq.heappush(self._calls, call)
            if call.at < self._wakes_at:  # deadlines of calls are cancelled as a rule: each would wake the thread
                self._due.notify()

        def cancel() -> None:
            with self._due:
                if call.callback is not None:
                    call.callback = None
                    self._sweep()

        return cancel

    def _sweep(self) -> None:
        """Drop cancelled calls once they are most of the heap; taking each out at once would cost its length."""
        self._cancelled += 1
        if 2 * self._cancelled > len(self._calls):
            self._calls = [call for call in self._calls if call.callback is not None]
            heapq.heapify(self._calls)
            self._cancelled = 0

    def _serve(self) -> None:
        due = self._due
        while due is self._due:  # a renewed clock has another thread
            with due:
                while (wait := self._until_next()) is None or wait > 0:
                    self._wakes_at = math.inf if wait is None else time.monotonic() + wait
                    due.wait(wait)
                self._wakes_at = -math.inf
                callback = self._take()
            if callback is not None:
                run_isolated(callback)
            del callback  # or the last compactor that used the timer would never be freed

    def _until_next(self) -> float | None:
        """Return the seconds until the next call is due; None where there is none. Called with the lock held."""
        if not self._calls:
            return None
        return min(self._calls[0].at - time.monotonic(), threading.TIMEOUT_MAX)

    def _take(self) -> Callable[[], None] | None:
        """Return the callback that is due, which can no longer be cancelled. Called with the lock held."""
        call = heapq.heappop(self._calls)
        callback, call.callback = call.callback, None
        if callback is None:
            self._cancelled -= 1
        return callback


#: The clock of every compactor that was not given another.
SYSTEM_CLOCK = SystemClock()


# --- calls that have a deadline: one cannot be ended from outside, only be waited for no longer -------------------


#: With this many calls given up and not ended, no further one is made: each holds a thread, or an executor's slot.
MAX_ABANDONED = 4

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Call:
    """One call. It changes with the lock held."""

    #: When it was made, by ``time.monotonic``.
    begun: float = field(default_factory=time.monotonic)
    #: It has returned or raised: from here on it is too late to give it up.
    ended: bool = False


class BoundedCalls:
    """A compactor's. Guarded by a lock of its own, or by that of the *wake* which ``renew`` is given; who waits there
    hears of each end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.renew(threading.Condition())

    def renew(self, wake: threading.Condition) -> None:
        """Be as new, with the lock of *wake*. A call that a forked child is in the middle of takes that at its end, for
        nobody there gives back the one before."""
        self._wake = wake
        self._in_flight: set[Call] = set()

    @property
    def in_flight(self) -> int:
        """How many have not ended, given up or not."""
        return len(self._in_flight)

    @property
    def newest_begun(self) -> float:
        """When the newest call in flight was made (``time.monotonic``); infinity without one. Called with the lock."""
        return max((call.begun for call in self._in_flight), default=math.inf)

    def make(self, call: Callable[[], T], seconds: float, expired: Callable[[Call], None]) -> T:
        """Return what *call* returns, however long that takes. After so many *seconds*, *expired* is called, on the
        clock's thread and without the lock: it may find that the call has *ended* meanwhile.

        Raises ``CompactionTimeout`` without making the call where too many have not ended.
        """
        made = Call()
        with self._wake:
            if self.in_flight >= MAX_ABANDONED:
                raise CompactionTimeout(f"{self.in_flight} calls that were given up have not ended; none is made now")
            self._in_flight.add(made)
        try:
            cancel = self._clock.call_later(seconds, partial(expired, made))
            try:
                return call()
            finally:
                cancel()
        finally:
            with self._wake:
                made.ended = True
                self._in_flight.discard(made)
                self._wake.notify_all()


# --- one call to come: who asks for another has that one instead --------------------------------------------------


class Timer:
    """Has *method* called once, some time from now, on another thread.

    Guarded by the lock of *wake*. What the method belongs to is held weakly: what nobody holds any more is not kept
    alive by what it waits for.
    """

    def __init__(self, clock: Clock, wake: threading.Condition, method: Callable[..., object]) -> None:
        self._clock = clock
        self._wake = wake
        self._method = WeakMethod(method)
        self._cancel: Callable[[], object] = _nothing

    @property
    def cancel(self) -> Callable[[], object]:
        """What cancels the call that is to come now, and none that is asked for after this. Not to be called with the
        lock held."""
        return self._cancel

    def call_in(self, seconds: float | None, *args: object) -> None:
        """Have it called in so many *seconds*, with *args*; None: not at all. What was to come before does not."""
        cancel: Callable[[], object] = _nothing
        if seconds is None and self._cancel is _nothing:
            return
        if seconds is not None:
            cancel = self._clock.call_later(seconds, partial(_call, self._method, args))
        with self._wake:
            before, self._cancel = self._cancel, cancel
        before()


def _call(method: WeakMethod[Callable[..., object]], args: tuple[object, ...]) -> None:
    if (call := method()) is not None:
        call(*args)


def _nothing() -> None:
    """There is no call to cancel."""
