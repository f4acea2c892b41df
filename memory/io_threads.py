"""asyncio: what may wait for a database runs on a few threads that the whole process shares, not on the event loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from .hooks import renew_after_fork

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

R = TypeVar("R")
#: Calls that wait for a database at the same time; further ones queue.
MAX_THREADS = 4


class _IoThreads:
    """The executor of the process. Its threads start with the first calls; exit waits for calls that were begun."""

    def __init__(self) -> None:
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards the executor, which is made once
        self._executor: Executor | None = None

    def submit(self, job: Callable[[], object]) -> None:
        with self._lock:
            if self._executor is None:
                from concurrent.futures import ThreadPoolExecutor

                self._executor = ThreadPoolExecutor(MAX_THREADS, "memory-io")
            executor = self._executor
        run = partial(_run_last, [job])
        try:
            executor.submit(run)
        except RuntimeError:  # no thread can be started: the loop is held up, and nothing is lost
            with self._lock:
                self._executor = None  # it has miscounted its threads; those that run end with its queue
            run()


def _run_last(jobs: list[Callable[[], object]]) -> None:
    """Take the job and run it, unless it was taken: an executor queues a job before it fails to start a thread."""
    try:
        job = jobs.pop()
    except IndexError:
        return
    job()


_io_threads = _IoThreads()


async def to_thread(call: Callable[[], R]) -> R:
    """Return the result of *call*, made on a shared thread with the caller's context variables. If the caller is
    cancelled, a call that was begun ends."""
    import asyncio  # here: a program without an event loop should not pay for it
    from concurrent.futures import Future

    future: Future[R] = Future()
    _io_threads.submit(partial(_run, future, partial(copy_context().run, call)))
    return await asyncio.wrap_future(future)


def _run(future: Future[R], call: Callable[[], R]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  (the caller gets it)
            future.set_exception(error)


class Lane:
    """Runs calls on the shared threads one at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both below
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.is_busy = False

    async def run(self, call: Callable[[], R]) -> R:
        """Return the result of *call*. If the caller is cancelled, a call that was begun still ends, before the next
        one begins; any other is dropped."""
        import asyncio
        from concurrent.futures import Future

        future: Future[R] = Future()
        with self._lock:
            self._calls.append((future, partial(copy_context().run, call)))
            was_busy, self.is_busy = self.is_busy, True
        if not was_busy:
            _io_threads.submit(self._serve)
        return await asyncio.wrap_future(future)

    def _serve(self) -> None:
        while True:
            with self._lock:
                self.is_busy = bool(self._calls)
                if not self._calls:
                    return
                future, call = self._calls.popleft()
            _run(future, call)
            del future, call  # the thread keeps nothing of them alive
