"""How long to wait after a failure: exponential back-off with jitter, and a circuit that opens after several.

No retry library: those sleep in the thread that failed, and here none may.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..config import CompactorConfig

__all__ = ["Backoff"]


class Backoff:
    """Failures in a row, and what they mean for the next attempt. Changed by one run at a time."""

    def __init__(self, config: CompactorConfig, rng: Callable[[], float]) -> None:
        self._config = config
        self._rng = rng
        self.failures = 0

    @property
    def circuit_open(self) -> bool:
        """Whether attempts are rare now; each that is made then is a half-open circuit's trial."""
        return self.failures >= self._config.circuit_failures

    def reset(self) -> None:
        """Take note of a success."""
        self.failures = 0

    def failed(self, retry_after: object = None) -> float:
        """Take note of a failure; return the seconds to wait, at least *retry_after*, where that is a number, but no
        longer for its sake than ``backoff_max``.

        Half to all of ``initial * 2**(failures - 1)``, so that many compactors of one endpoint do not return at once
        ("equal jitter": Brooker, Exponential Backoff and Jitter, AWS Architecture Blog, 2015).
        """
        self.failures += 1
        if self.circuit_open:
            delay = self._config.circuit_reset
        else:
            # 2.0**60 seconds is beyond every backoff_max; more would overflow.
            delay = min(self._config.backoff_initial * 2.0 ** min(self.failures - 1, 60), self._config.backoff_max)
        delay *= 0.5 + self._rng() / 2
        # One absurd wish must not silence compaction for a day: who is asked too early says so again.
        return max(delay, min(_seconds(retry_after), self._config.backoff_max))


def _seconds(value: object) -> float:
    """Return what an exception of anybody's carries as seconds; 0 for what is none, such as a header's text or NaN."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    return float(value) if is_number else 0.0  # type: ignore[arg-type]
