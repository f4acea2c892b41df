"""An executor whose jobs run when a test says so."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

#: Long enough for any machine, in seconds; only a failing test ever waits for it.
SOON = 20.0


class ManualExecutor(Executor):
    """Runs a job only when told, in the thread that tells it: so a test decides what happens between what."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.is_shut_down = False
        self._submitted = threading.Condition()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        with self._submitted:
            self.jobs.append((future, lambda: fn(*args, **kwargs)))
            self._submitted.notify_all()
        return future

    def run_next(self) -> bool:
        """Run the oldest job that was not cancelled; False if there is none."""
        while self.jobs:
            future, job = self.jobs.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(job())
                return True
        return False

    def run_coming(self) -> None:
        """Run the job that another thread is about to submit, or has."""
        with self._submitted:
            assert self._submitted.wait_for(lambda: bool(self.jobs), SOON)
        self.run_next()

    def run_all(self) -> int:
        """Run jobs until none is left; return how many that were."""
        count = 0
        while self.run_next():
            count += 1
            assert count < 1_000, "jobs without end"
        return count

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_shut_down = True
        if cancel_futures:
            for future, _ in self.jobs:
                future.cancel()
