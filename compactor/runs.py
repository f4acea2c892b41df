"""A cycle on its way, and what follows from how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from memory.errors import SessionPurged, StaleCompaction

from .cost.limits import UNLIMITED, Place
from .errors import LeasedElsewhere, LimitReached
from .summarizers.base import RequestKind

__all__ = ["Outcome", "Run", "outcome_of"]


@dataclass(eq=False, slots=True)
class Run:
    """One cycle on its way. Only the compactor's current run may change anything."""

    forced: bool
    #: A worker has taken it up.
    begun: bool = False
    #: What it has of the limits on calls and spend.
    place: Place = UNLIMITED
    #: Its outcome is known, or it was given up; nothing more that it does counts.
    over: bool = False
    #: The back-off that it began has ended.
    rested: bool = False
    #: It has published a reduction.
    reduced: bool = False
    #: What the summarizer was asked for last.
    asked: RequestKind | None = None
    #: Seconds until what is held is to be looked at again, if nothing happens before.
    look_in: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from how a run ended."""

    #: Results in a row by now that were no longer current.
    discards: int
    #: It failed: that is told and remembered, and the next run is a back-off away.
    is_failure: bool = False
    #: There is to be a look at once: at what is current now, or at whether more is due.
    again: bool = False
    #: Whoever waits for the run is told, though it has no result.
    tells: bool = False
    #: There will be nothing to do any more.
    stops: bool = False


def outcome_of(error: BaseException | None, discards: int, *, forced: bool) -> Outcome:
    """Return what follows from *error*, None where there was none, for a run that was *forced* or not, after so many
    *discards* in a row."""
    if error is None:
        return Outcome(0, tells=forced)
    if isinstance(error, LeasedElsewhere):  # told already, and no failure
        return Outcome(discards, tells=True)
    if isinstance(error, LimitReached):  # likewise; who waits goes on waiting for a turn
        return Outcome(discards, again=True)
    if isinstance(error, SessionPurged):  # nobody can write to this session again
        return Outcome(discards, tells=True, stops=True)
    if not isinstance(error, StaleCompaction):
        return Outcome(discards, is_failure=True, tells=True)
    if error.reason == "interpreter_exit":  # to look again would never end
        return Outcome(discards, tells=True)
    if error.reason == "stopped":
        return Outcome(discards, again=True)
    if discards == 0:
        return Outcome(1, again=True)
    # Rounds that are others at every reading would be paid for again and again.
    return Outcome(discards + 1, is_failure=True, tells=True)
