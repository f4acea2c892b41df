"""A store that lasts as long as the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from ..entries import Entry
from ..errors import Conflict
from ..forking import renewed_after_fork

__all__ = ["InMemoryStore"]


class InMemoryStore:
    """Sessions in a dict of lists. Several Memories, in several threads, may share one."""

    def __init__(self) -> None:
        self._sessions: dict[str, list[Entry]] = {}
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards _sessions and its lists against writers; readers need none

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        with self._lock:
            log = self._sessions.setdefault(session, [])
            if len(log) > after:
                stored = log[after : after + len(entries)]
                if [entry.id for entry in stored] == [entry.id for entry in entries]:
                    return after + len(entries)
            if len(log) != after:
                raise Conflict(f"the log ends at {len(log)}, not at {after}; read what is new and append after it")
            log.extend(entry.numbered(number) for number, entry in enumerate(entries, after + 1))
            return len(log)

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        log = self._sessions.get(session, [])
        stop = len(log) if limit is None else min(len(log), after + limit)
        return iter(log[after:stop])

    def sessions(self) -> Sequence[str]:
        with self._lock:
            return sorted(name for name, log in self._sessions.items() if log)

    def redact(self, session: str, number: int, body: str = "") -> None:
        with self._lock:
            log = self._sessions.get(session, [])
            if not 1 <= number <= len(log):
                raise KeyError(f"this session has no entry {number}; it has {len(log)}")
            entry = log[number - 1]
            kind, body = (entry.kind, body) if body else ("redacted", "{}")
            log[number - 1] = Entry(kind, body=body, id=entry.id, created_at=entry.created_at, number=number)

    def purge(self, session: str) -> None:
        with self._lock:
            self._sessions.pop(session, None)

    def close(self) -> None:
        """Nothing is held open."""
