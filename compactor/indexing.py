"""Old rounds made quick to search in the time that compacting leaves: step by step, on one worker at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from .threads.workers import interpreter_is_exiting

__all__ = ["Indexing"]


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
