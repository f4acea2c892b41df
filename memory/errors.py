"""Everything that can go wrong in this library, as one small tree. Each message names the remedy."""

from __future__ import annotations

__all__ = [
    "Conflict",
    "ContextError",
    "MessageError",
    "NewerVersion",
    "OlderVersion",
    "RoundClosed",
    "SessionPurged",
    "StaleCompaction",
    "StoreBusy",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnreachable",
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

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or f"compaction not published: {reason}; it is made again from what is current")
        #: Why, in a word: ``generation``, ``rounds_changed``, ``behind``, ``torn``, ``pinned``, ``newest_query``,
        #: ``stopped``.
        self.reason = reason


class StoreError(ContextError):
    """The store could not read or write; what was acknowledged before is still there."""


class Conflict(StoreError):
    """The log has grown past the number that an append was to follow; read what is new and append after it."""


class StoreBusy(StoreError):
    """Another process kept the store locked for longer than the time-out; nothing was written, try again."""


class StoreFull(StoreError):
    """There is no room left where the store is kept; nothing was written, and what was is unharmed."""


class StoreReadOnly(StoreError):
    """The store may be read and not written: by its file's permissions, its disk's, or its server's."""


class StoreUnreachable(StoreError):
    """The server did not answer, or the connection broke. What was being written may be stored or not: once it is back,
    call ``refresh()`` and look before the same call is made again."""


class StoreDamaged(StoreError):
    """What is stored cannot be read; it is left as it is, and never overwritten."""


class StoreClosed(StoreError):
    """The store was closed; open another on the same URL."""


class SessionPurged(StoreError):
    """The session was purged while a Memory had it open: that one writes no more; go on with a new Memory."""


class OlderVersion(StoreError):
    """An older version of this library made the store, and it was opened only to be read: then nothing is changed."""


class NewerVersion(StoreError):
    """A newer version of this library wrote what is stored; it is left as it is. Upgrade to read it."""
