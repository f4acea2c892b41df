"""What Memory asks of a store: one append-only log of entries per session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from ..entries import Entry

__all__ = ["Store"]


@runtime_checkable
class Store(Protocol):
    """One append-only log of entries per session, numbered from 1 without gaps."""

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        """Store *entries* behind number *after*, all or none, and return the last one's number.

        Durable before it returns. Raises ``Conflict`` if the log has grown past *after*, unless it grew by these very
        entries (same ids): then they were stored before, and their number is returned.
        """

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Give the entries behind number *after* in order, at most *limit*; none for a session that does not exist."""

    def sessions(self) -> Sequence[str]:
        """Return the names of the sessions that have entries, sorted."""

    def redact(self, session: str, number: int, body: str = "") -> None:
        """Put *body* in the place of one entry's body, so that the old one is no more; id, kind and number stay.

        Without one it becomes an entry of the kind ``redacted`` that says nothing. Raises ``KeyError`` where there is
        no such entry.
        """

    def purge(self, session: str) -> None:
        """Erase a session, entries and all; one that does not exist is no error."""

    def close(self) -> None:
        """Let go of what the store holds; using it afterwards is an error."""
