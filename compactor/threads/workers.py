"""Where cycles run: a daemon thread of the compactor's own, or a host's executor."""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from memory.forking import renewed_after_fork

__all__ = ["DaemonExecutor", "DaemonThread", "Worker", "interpreter_is_exiting", "run_isolated"]

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
