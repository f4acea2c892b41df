"""Events that belong in the log: what failed or was discarded, which nothing else in there tells."""

from __future__ import annotations

from memory.events import Event

from ..events import Discarded, Exhausted, Failed, Published, StrategyFailed
from ..threads.workers import interpreter_is_exiting
from .keeping import Keeping

__all__ = ["FailuresKept"]

_KEPT = (Discarded, Exhausted, Failed, StrategyFailed)


class FailuresKept:
    """A hook that keeps them. Of those that say the same since the last publication, the 1st, 2nd, 4th, 8th...: so an
    endpoint that fails for weeks leaves a few lines. Where the store fails, nothing is kept and nothing is lost."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._times: dict[tuple[str, ...], int] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Published) and not event.offline:  # that is no success
            self._times.clear()
        elif isinstance(event, _KEPT):
            same = (event.name, *(str(getattr(event, fact, "")) for fact in ("reason", "error", "strategy")))
            times = self._times[same] = self._times.get(same, 0) + 1
            if times & (times - 1) == 0 and not interpreter_is_exiting():
                self._keeping.note(event)
