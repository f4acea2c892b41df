"""The errors of this library, as one small tree. Each message names the remedy."""

from __future__ import annotations

from typing import Literal, Self


class ContextError(Exception):
    """The root: ``except ContextError`` catches every error that this library raises on purpose."""


class RoundClosed(ContextError):
    """A post was added to a round that is finished or failed; nothing was written."""


class UnknownRound(ContextError, KeyError):
    """No round of this session has that id."""

    __str__ = Exception.__str__  # KeyError's would put the sentence in quotation marks


class UnknownReference(ContextError, KeyError):
    """A reference is malformed, or there is nothing visible behind it."""

    __str__ = Exception.__str__


class MessageError(ContextError, ValueError):
    """A message for ``append`` or a record's value cannot be stored."""


class HistoryDiverged(ContextError, ValueError):
    """The history that a host gave to ``sync`` goes on otherwise than the log; nothing was written."""

    def __init__(self, index: int, reference: str) -> None:
        super().__init__(
            f"message {index + 1} of this history is not {reference} of the log; give the whole history"
            " of this session, or on_divergence='rewind' if it was changed on purpose"
        )
        #: Index in the host's list of the first message that the log does not have.
        self.index = index
        #: Reference of the first message of the log that the host does not have.
        self.reference = reference


StaleReason = Literal[
    "generation",  # another compaction was published, or one was reverted
    "rounds_changed",  # a covered round failed, or is open, gone or covered already
    "behind",  # the published compaction reaches as far
    "torn",  # the posts of a reduction part a call from its results
    "pinned",  # a reduction covers a pinned post
    "newest_query",  # a reduction covers the newest query
    "stopped",  # the compactor is stopping
    "late",  # the run was given up at its deadline
    "interpreter_exit",  # the interpreter is shutting down
    "evaluate_again",  # others wrote since the cycle read the log: it begins anew
]


class StaleCompaction(ContextError):
    """A compaction was not published, because its source is no longer current."""

    def __init__(self, reason: StaleReason, message: str = "") -> None:
        super().__init__(message or f"compaction not published: {reason}; it is made again from what is current")
        #: Why: ``StaleReason`` lists the reasons.
        self.reason: StaleReason = reason


class StoreError(ContextError):
    """The store could not read or write; acknowledged entries are still there."""


class Conflict(StoreError):
    """The log has grown past the number that an append was to follow; read the new entries and append after them."""


class StoreBusy(StoreError):
    """Another process locked the store for longer than the time-out; nothing was written, try again."""


class ArchiveBusy(StoreBusy):
    """Another process is archiving, restoring or erasing the session; nothing was changed, try again."""


class StoreFull(StoreError):
    """The store's disk is full; nothing was written, and the stored entries are unharmed."""


class StoreReadOnly(StoreError):
    """The permissions of the store's file, disk or server allow reading but not writing."""


class StoreUnreachable(StoreError):
    """The server did not answer, or the connection broke.

    A write in progress may have succeeded: call ``refresh()`` and look before repeating it.
    """


class StoreDamaged(StoreError):
    """Stored data cannot be read; it is left as it is, and never overwritten."""


class StoreClosed(StoreError):
    """The store was closed; open another on the same URL."""


class SessionPurged(StoreError):
    """The session was purged while this Memory had it open; continue with a new Memory."""

    @classmethod
    def at(cls, number: int) -> Self:
        """Return the error about the entry of that *number*, which is not in the log any more."""
        return cls(
            f"entry {number} is gone from the log of this session, as if it had been purged; go on with a new Memory"
        )


class EntriesLost(SessionPurged):
    """The store has lost the newest entries of this session, which had been acknowledged; use a new Memory.

    This happens when a standby that lacks them becomes the primary, or when a backup is restored. Nothing was written.
    A new Memory has only the store's entries. To add the missing ones, pass the host's whole history to its ``sync``,
    or ``append`` the messages that this Memory still shows.
    """

    @classmethod
    def at(cls, number: int) -> Self:
        """Return the error for the entry with that *number*, which is no longer in the log."""
        return cls(
            f"the store has lost entry {number} of this session but has earlier ones, as after a failover to a standby"
            " that was behind or the restoring of a backup. Nothing was written: make a new Memory, and add the missing"
            " messages by sync(messages) or append"
        )


class OlderVersion(StoreError):
    """An older version of this library made the store, and it was opened without ``migrate``; nothing was changed."""


class NewerVersion(StoreError):
    """A newer version of this library wrote the data, which is left as it is. Upgrade to read it."""
