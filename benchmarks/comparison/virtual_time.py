"""Time as the comparison's server keeps it: it passes by what calls are said to take, and not by the machine's clock.

A request of a blocking adapter is answered at once, and what it would have taken is charged to the call of the
adapter that it was made in. A background adapter's is held until the conversation has gone on for as long.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

__all__ = ["GRACE", "Charge", "Latency", "VirtualTime"]

#: Real seconds for which a background adapter's call may go on while its request is held: then it waits for that one.
GRACE = 1.0


@dataclass(frozen=True)
class Latency:
    """How long a model takes: so many seconds, and more for each token."""

    seconds: float = 0.3
    per_input: float = 0.000_02
    per_output: float = 0.015

    def of(self, input_tokens: int, output_tokens: int) -> float:
        return self.seconds + self.per_input * input_tokens + self.per_output * output_tokens


@dataclass(slots=True)
class Charge:
    """What the driver must add to the time that it measured of one call, and take from it."""

    #: Virtual seconds that the adapter waited for models.
    waited: float = 0.0
    #: Real seconds in which the server had its request.
    served: float = 0.0


class VirtualTime:
    """One clock, and the requests that wait for it. *grace*: real seconds after which an adapter that has not come back
    waits for a request."""

    def __init__(self, *, grace: float = GRACE) -> None:
        self._grace = grace
        self._changed = threading.Condition()  # guards all below
        self._background = False
        self._now = 0.0
        self._call: Charge | None = None
        self._call_began = 0.0
        self._held: list[float] = []
        self._closed = False

    @property
    def now(self) -> float:
        return self._now

    @property
    def held(self) -> int:
        """How many requests wait for the clock."""
        with self._changed:
            return len(self._held)

    def until_held(self, timeout: float) -> bool:
        """Return once a request waits for the clock; False after *timeout* real seconds, and at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._closed, timeout)
            return bool(self._held)

    def serves(self, *, background: bool) -> None:
        """Hold requests from now on until it is time for them, or answer them at once."""
        with self._changed:
            self._background = background

    def begin(self) -> None:
        """The driver calls the adapter now."""
        with self._changed:
            self._call, self._call_began = Charge(), time.perf_counter()
            self._changed.notify_all()

    def end(self) -> Charge:
        """The driver's call is over; return what to charge for it."""
        with self._changed:
            charge, self._call = self._call or Charge(), None
            return charge

    def passed(self, until: float) -> tuple[float, bool]:
        """Let the time pass up to *until*, or to when the next request is due; return what the clock shows then, and
        whether one is. It is not answered yet: who asked for it may have a clock as well, to be set first."""
        with self._changed:
            self._now = max(self._now, min([until, *self._held]))
            return self._now, any(due <= self._now for due in self._held)

    def answer(self) -> None:
        """Have all that is due answered."""
        with self._changed:
            # Whoever was held for this is gone before anybody counts who is left.
            self._held = [due for due in self._held if due > self._now]
            self._changed.notify_all()

    def served(self, seconds: float) -> None:
        """The server had a request for so many real seconds, in the adapter's call if there is one.

        Those that are held are told by ``wait`` itself.
        """
        with self._changed:
            if self._call is not None and not self._background:
                self._call.served += seconds

    def wait(self, seconds: float) -> None:
        """Return once a request that comes now and takes *seconds* is to be answered."""
        with self._changed:
            if not self._background:
                self._now += seconds
                if self._call is not None:
                    self._call.waited += seconds
                return
            due, arrived = self._now + seconds, time.perf_counter()
            if due <= self._now:
                return
            self._held.append(due)
            self._changed.notify_all()
            while due in self._held and not self._closed:
                if self._call is None:
                    self._changed.wait()
                    continue
                waited = time.perf_counter() - max(arrived, self._call_began)
                if waited < self._grace:
                    self._changed.wait(self._grace - waited)
                elif due == min(self._held):
                    self._call.waited += due - self._now
                    self._call.served += waited
                    self._now = due
                    self._held = [other for other in self._held if other > due]
                    self._changed.notify_all()
                else:
                    self._changed.wait()

    def close(self) -> None:
        """Let go of all that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
