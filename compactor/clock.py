"""Time, and calls to be made later: one timer thread serves every compactor of the process."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from memory.forking import renewed_after_fork
from memory.rounds import utc_now

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


class Clock(Protocol):
    """What a compactor asks of time. ``compactor.testing.FakeClock`` is one that stands still."""

    def now(self) -> datetime:
        """Return the time of day, for time stamps."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for durations."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Have *callback* called once, *seconds* from now, on another thread; return a function that cancels it.

        The callback must be quick and must not raise.
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
        self._due = threading.Condition()  # guards _calls and _thread
        self._calls: list[_Call] = []
        self._thread: threading.Thread | None = None

    _after_fork = _renew

    def now(self) -> datetime:
        return utc_now()

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        call = _Call(time.monotonic() + seconds, next(self._count), callback)
        with self._due:
            heapq.heappush(self._calls, call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="compactor-timer", daemon=True)
                self._thread.start()
            elif self._calls[0] is call:
                self._due.notify()

        def cancel() -> None:
            call.callback = None  # it leaves the heap when its time comes

        return cancel

    def _serve(self) -> None:
        while True:
            with self._due:
                while not self._calls or self._calls[0].at > time.monotonic():
                    self._due.wait(self._calls[0].at - time.monotonic() if self._calls else None)
                callback = heapq.heappop(self._calls).callback
            if callback is not None:
                callback()
            del callback  # or the last compactor that used the timer would never be freed


#: The clock of every compactor that was not given another.
SYSTEM_CLOCK = SystemClock()
