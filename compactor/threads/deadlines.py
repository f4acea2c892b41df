"""Calls that have a deadline: one cannot be ended from outside, only be waited for no longer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from ..errors import CompactionTimeout
from .clock import Clock

__all__ = ["MOST_ABANDONED", "BoundedCalls", "Call"]

#: With this many calls given up and not ended, no further one is made: each holds a thread, or an executor's slot.
MOST_ABANDONED = 4

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
            if self.in_flight >= MOST_ABANDONED:
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
