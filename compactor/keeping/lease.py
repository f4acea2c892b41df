"""Whose turn it is to have a role's history summarised, where several processes could: so that one of them pays."""

from __future__ import annotations

from collections.abc import Callable

from memory.errors import StaleCompaction

from ..errors import LeasedElsewhere
from .keeping import Keeping

__all__ = ["MARGIN", "Lease", "Overtaken"]

#: A lease lasts so many seconds longer than the call that it is for: to check the answer, and to publish it.
MARGIN = 30.0


class Overtaken(StaleCompaction):
    """Others wrote something since a cycle looked, or did what it was about to do: the cycle looks again."""

    def __init__(self) -> None:
        super().__init__("generation")


class Lease:
    """One cycle's: taken before the first call, renewed before each."""

    def __init__(self, keeping: Keeping, seconds: float) -> None:
        self._keeping = keeping
        self._seconds = seconds
        self._held = False

    def hold(self, is_current: Callable[[], bool]) -> None:
        """Take or renew it. Raises ``LeasedElsewhere`` where another has it; ``Overtaken`` at most once, where there
        was something to read when it was taken, or what the cycle has seen *is_current* no more."""
        wait = self._keeping.lease(self._seconds)
        if wait > 0:
            raise LeasedElsewhere(wait)
        if not self._held:
            self._held = True
            # Also what another thread of this process has read since: it has nothing left for us to read.
            if self._keeping.refresh() or not is_current():
                raise Overtaken

    @property
    def is_held(self) -> bool:
        return self._held

    def release(self) -> None:
        self._keeping.release()
