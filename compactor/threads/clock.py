"""Time, and calls to be made later: one timer thread serves every compactor of the process."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from memory.forking import renewed_after_fork
from memory.rounds import utc_now

from .workers import run_isolated

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


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
