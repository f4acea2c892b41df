"""Time and threads: back-off, one-shot timers, the worker threads that run cycles, and the process's timer thread."""

from __future__ import annotations

import atexit
import heapq
import itertools
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from memory.arguments import check_number, check_whole_number, require
from memory.hooks import renew_after_fork
from memory.rounds import utc_now

from .config import CompactorConfig

Job = Callable[[], object]
#: With the future that tells how it ended, if anybody asks.
_Job = tuple[Future[Any] | None, Job]
R = TypeVar("R")

#: Seconds that a worker thread pauses between being woken and its work: the thread that woke it is in the middle of a
#: chat turn, and would wait for the interpreter's lock. It also turns a turn's notifications into one evaluation.
PAUSE = 0.001

#: Seconds without a job after which a worker thread ends.
IDLE_SECONDS = 5.0

_exiting = threading.Event()
atexit.register(_exiting.set)

#: Return whether the interpreter is shutting down: other threads' modules may be half gone then.
interpreter_is_exiting = _exiting.is_set


def bound_wait(timeout: float | None) -> float | None:
    """Return *timeout* as a wait that every platform's locks accept."""
    if timeout is not None and not isinstance(timeout, (int, float)):
        require("timeout", timeout, int | float | None, "a number of seconds, or None for no end")
    return None if timeout is None or timeout == math.inf else min(max(timeout, 0.0), threading.TIMEOUT_MAX)


def report_uncaught(error: BaseException) -> None:
    """Report *error* as an uncaught exception of this thread is reported; the thread goes on.

    Callers catch ``BaseException``, because a native extension's panic and ``SystemExit`` are not ``Exception``, and
    must not end the thread that other jobs wait for.
    """
    raised = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(raised))


#: The time between paid attempts doubles so often at most: from a minute to an hour.
MAX_DOUBLINGS = 6


def compute_backoff(
    config: CompactorConfig, failures: int, jitter: float, retry_after: object = None, *, paid: bool = False
) -> float:
    """Return the seconds to wait after so many *failures* in a row.

    Half to all of ``initial * 2**(failures - 1)``, by *jitter* from 0 to 1, so that many compactors of one endpoint do
    not return at once ("equal jitter": Brooker, Exponential Backoff and Jitter, AWS Architecture Blog, 2015). At least
    *retry_after* where that is a number, capped at ``backoff_max``. While the circuit is open, attempts are equally
    rare: an outage ends by itself. If each is *paid*, since the model answers and is refused, the time doubles.
    """
    if (more := failures - config.circuit_breaker_failures) >= 0:
        delay = config.circuit_breaker_reset * 2.0 ** (min(more, MAX_DOUBLINGS) if paid else 0)
    else:
        # 2.0**60 seconds is beyond every backoff_max; more would overflow.
        delay = min(config.backoff_initial * 2.0 ** min(failures - 1, 60), config.backoff_max)
    delay *= 0.5 + jitter / 2
    if isinstance(retry_after, bool) or not isinstance(retry_after, (int, float)) or math.isnan(retry_after):
        return delay  # an exception of anybody's may carry anything, such as a header's text
    # One absurd value must not silence compaction for a day: an endpoint that is asked too early says so again.
    return max(delay, min(retry_after, config.backoff_max))


def call_weakly(method: Callable[..., R], *args: object) -> Callable[..., R | None]:
    """Return a function that calls *method* with *args* and its own while its object lives, and keeps that not alive
    itself."""
    weakly = weakref.WeakMethod(method)
    return lambda *more: None if (call := weakly()) is None else call(*args, *more)


class Clock(Protocol):
    """The time that a compactor goes by. ``compactor.testing.FakeClock`` is one for tests."""

    def now(self) -> datetime:
        """Return the time of day, for time stamps."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for durations."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], object]:
        """Call *callback* once, *seconds* from now, on another thread; return a function that cancels the call.

        The callback must be quick: all timers of the process share its thread.
        """


class SystemClock:
    """The machine's time. Its timer thread, a daemon, starts with the first ``call_later``."""

    now = staticmethod(utc_now)
    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._count = itertools.count()
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._due = threading.Condition()  # guards all below it
        self._calls: list[tuple[float, int]] = []  # a heap of times and numbers, cancelled calls included
        self._callbacks: dict[int, Callable[[], None]] = {}  # of the calls that are not cancelled, by number
        self._wakes_at = math.inf  # when the thread looks by itself, if nothing is added before
        self._thread: threading.Thread | None = None

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], object]:
        at, number = time.monotonic() + seconds, next(self._count)
        with self._due:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="compactor-timer", daemon=True)
                thread.start()
                self._thread = thread  # not before: a thread that could not be started is tried again
            # Cancelled calls are dropped once they are most of the heap; each on its own would cost its length.
            if 2 * len(self._callbacks) < len(self._calls):
                self._calls = [call for call in self._calls if call[1] in self._callbacks]
                heapq.heapify(self._calls)
            self._callbacks[number] = callback
            heapq.heappush(self._calls, (at, number))
            if at < self._wakes_at:  # most deadlines are cancelled: each would wake the thread
                self._due.notify()
        return partial(self._callbacks.pop, number, None)

    def _serve(self) -> None:
        due = self._due
        while due is self._due:  # after a fork the clock has another thread
            with due:
                while not self._calls or self._calls[0][0] > time.monotonic():
                    self._wakes_at = self._calls[0][0] if self._calls else math.inf
                    due.wait(bound_wait(self._wakes_at - time.monotonic()))
                self._wakes_at = -math.inf
                callback = self._callbacks.pop(heapq.heappop(self._calls)[1], None)  # now it cannot be cancelled
            try:
                if callback is not None:
                    callback()
            except BaseException as error:  # noqa: BLE001
                report_uncaught(error)
            del callback  # or the last compactor that used the timer would never be freed


#: The clock of every compactor that was not given another.
SYSTEM_CLOCK = SystemClock()


class Dispatcher(Protocol):
    """Has sessions compacted where there are workers: each of its jobs calls ``compactor.workers.run_due``."""

    def due(self, session: str, role: str, not_before: datetime | None = None) -> object:
        """Have *role* of *session* compacted, not before that time; a job that waits already will do for both.

        A time that is over means: at once, whatever a job that waits already waits for, for there is room for a call.

        It may block for as long as an engine takes to keep a job. If it raises, the caller tries again later.
        """


@runtime_checkable
class DatabaseDispatcher(Dispatcher, Protocol):
    """A dispatcher whose jobs are in a database: a store there enqueues them in the transaction of an append."""

    #: The database, as ``Store.is_in`` takes it.
    database: object

    def due_in(self, connection: Any, session: str, role: str) -> bool:
        """Enqueue a job on the driver's *connection*, in its transaction; return whether a new job is there then.

        It does not raise: the append must succeed. The caller then calls ``due``.
        """


class DaemonExecutor(Executor):
    """An executor of at most *max_workers* daemon threads, for ``executor=``; any number of compactors may share it.

    The interpreter's exit waits for none of its jobs, however long a model takes to answer; a ``ThreadPoolExecutor``
    would. Threads start with the jobs, and each ends after *idle_seconds* without one. A compactor without an executor
    has its own, whose one thread is *thread_name*.
    """

    def __init__(self, max_workers: int, thread_name: str = "", idle_seconds: float = IDLE_SECONDS) -> None:
        self._max_workers = check_whole_number("max_workers", max_workers, 1)
        self._thread_name = thread_name
        self._idle_seconds = check_number("idle_seconds", idle_seconds)
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._workers = _Workers(bound_wait(self._idle_seconds))
        weakref.finalize(self, self._workers.jobs.put, None).atexit = False  # a compactor may be dropped without stop()
        self._closed = False  # guarded by the lock of the workers

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        future: Future[R] = Future()
        self.run(partial(fn, *args, **kwargs), future)
        return future

    def run(self, job: Job, future: Future[Any] | None = None) -> None:
        """Run *job* on a thread, and let *future* tell how it ended. Without one nobody is told, and the caller has
        half as much to do."""
        workers = self._workers
        with workers.lock:
            if self._closed:
                raise RuntimeError("this executor is shut down; make another")
            if workers.spare <= 0 and len(workers.threads) < self._max_workers:
                name = self._thread_name or f"compactor-pool-{len(workers.threads)}"
                thread = threading.Thread(target=workers.serve, name=name, daemon=True)
                thread.start()
                workers.threads.append(thread)  # not before: a thread that could not be started is tried again
                workers.spare += 1
            workers.spare -= 1
            workers.jobs.put((future, job))

    def replace_thread(self, thread: threading.Thread) -> None:
        """Count *thread* no longer, if it is one of ours: its job hangs, and it ends with that. Another serves the jobs
        that wait."""
        workers = self._workers
        with workers.lock:
            if thread in workers.threads:
                workers.threads.remove(thread)
                if workers.spare < 0:
                    self.run(lambda: None)  # starts a thread

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs, and cancel those that have not begun if *cancel_futures*; *wait* for the rest to end."""
        cancelled: list[Future[Any]] = []
        workers = self._workers
        with workers.lock:
            self._closed = True
            with suppress(queue.Empty):
                while cancel_futures:
                    waiting = workers.jobs.get_nowait()
                    if waiting is not None and waiting[0] is not None:
                        cancelled.append(waiting[0])
            workers.jobs.put(None)
        for future in cancelled:
            future.cancel()
        if wait:
            self.join(None)

    def join(self, timeout: float | None) -> bool:
        """Wait until all threads have ended, *timeout* seconds for each; return whether they have."""
        threads = [*self._workers.threads]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout)
        return not any(thread.is_alive() for thread in threads)


@dataclass(slots=True, eq=False)
class _Workers:
    """The threads of one executor and their jobs. They do not hold the executor, so that one that was dropped ends."""

    idle_seconds: float | None
    jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)  # None ends the threads
    lock: threading.RLock = field(default_factory=threading.RLock)  # guards both below
    threads: list[threading.Thread] = field(default_factory=list)
    #: Threads that wait for a job, less the jobs that wait for a thread.
    spare: int = 0

    def serve(self) -> None:
        jobs = self.jobs
        while True:
            was_idle = jobs.empty()
            try:
                taken = jobs.get(timeout=self.idle_seconds)
            except queue.Empty:
                with self.lock:
                    if self.spare > 0:  # else a job is there by now
                        self.spare -= 1
                        if (thread := threading.current_thread()) in self.threads:  # not replaced just now
                            self.threads.remove(thread)
                        return
                continue
            if taken is None:
                break
            if was_idle:
                time.sleep(PAUSE)
            future, job = taken
            if future is None or future.set_running_or_notify_cancel():
                try:
                    if future is None:
                        job()
                    else:
                        future.set_result(job())
                except BaseException as error:  # noqa: BLE001  (the future tells it, or the job itself)
                    if future is not None:
                        future.set_exception(error)
            del taken, future, job  # while it waits, the thread keeps nothing of the last cycle alive
            with self.lock:
                if threading.current_thread() not in self.threads:  # replaced
                    return
                self.spare += 1
        jobs.put(None)  # for the next thread


MAX_EVALUATION_THREADS = 4
#: Where compactors without an executor evaluate whether they are due. What is due gets a thread of its own.
EVALUATION_THREADS = DaemonExecutor(MAX_EVALUATION_THREADS, "compactor-evaluations")
#: Where they do so if an evaluation calls functions of the host's own, which may hang.
HOST_EVALUATION_THREADS = DaemonExecutor(1, "compactor-host-evaluations")
#: Seconds after which an evaluation keeps that thread for itself, and the evaluations that wait get another.
HOST_EVALUATION_SECONDS = 0.05
