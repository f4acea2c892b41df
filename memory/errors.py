"""Everything that can go wrong in this library, as one small tree. Each message names the remedy."""

from __future__ import annotations

__all__ = [
    "Conflict",
    "ContextError",
    "MessageError",
    "RoundClosed",
    "StaleCompaction",
    "StoreError",
    "UnknownReference",
    "UnknownRound",
]


class ContextError(Exception):
    """The root: ``except ContextError`` catches all that this library raises on purpose."""


class RoundClosed(ContextError):
    """A post was added to a round that is finished or failed; nothing was written."""


class UnknownRound(ContextError, KeyError):
    """No round of this session has that id."""

    __str__ = Exception.__str__  # KeyError's would put the sentence in quotation marks


class UnknownReference(ContextError, KeyError):
    """There is nothing to see behind a reference."""

    __str__ = Exception.__str__


class MessageError(ContextError, ValueError):
    """What was handed to ``append`` or to a record is not a message that can be stored."""


class StaleCompaction(ContextError):
    """A compaction was not published: what it was made from is no longer current."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"compaction not published: {reason}; it is made again from what is current")
        #: Why, in a word: ``generation``, ``rounds_changed``, ``behind``, ``torn``, ``pinned``, ``newest_query``,
        #: ``stopped``.
        self.reason = reason


class StoreError(ContextError):
    """The store could not read or write; what was acknowledged before is still there."""


class Conflict(StoreError):
    """The log has grown past the number that an append was to follow; read what is new and append after it."""
