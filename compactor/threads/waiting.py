"""Those who wait in ``compact_now``, and what they are told."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from types import NoneType

from memory.arguments import require
from memory.hooks import describe_error
from memory.overlays import CompactedMessage

from ..errors import CompactionFailed, CompactionTimeout

__all__ = ["Waiter", "Waiters", "bounded"]


@dataclass(eq=False, slots=True)
class Waiter:
    """Someone in ``compact_now``."""

    done: bool = False
    result: CompactedMessage | None = None
    error: BaseException | None = None


class Waiters:
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
