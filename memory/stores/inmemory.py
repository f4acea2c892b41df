"""A store that lasts as long as the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..entries import BODY_VERSION, KINDS, NAMES, Entry, PostAdded, RoundOpened
from ..errors import Conflict, StoreBusy
from ..hooks import renew_after_fork
from ..packed import pack_mapping, pack_post, unpack_mapping, unpack_post
from ..rounds import create_unchecked
from .base import INTERRUPTED, Store
from .retention import delete_files

#: An entry: id, kind, stamp, round, version, body. If the body is None, the values of its record's fields follow.
#: A plain tuple, because there are so many: the garbage collector visits one object, or none if the tuple holds only
#: texts and numbers. An entry with its record takes four objects.
_Line = tuple[Any, ...]
_FIELDS = {kind: tuple(record.model_fields) for kind, record in KINDS.items()}


#: What is packed of the records of every turn: the last of their values.
_PACKED: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    NAMES[PostAdded]: (pack_post, unpack_post),
    NAMES[RoundOpened]: (pack_mapping, unpack_mapping),
}


def _unpack(kind: str, values: Sequence[Any]) -> Sequence[Any]:
    return (*values[:-1], _PACKED[kind][1](values[-1])) if kind in _PACKED else values


class InMemoryStore(Store):
    """Sessions in a dict of lists. Several Memories, in several threads, may share one.

    *clock* returns seconds from any origin; leases expire by it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, list[_Line]] = {}
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        #: Holder, and when it expires. A forked child has its own copy of the sessions.
        self._leases: dict[tuple[str, str], tuple[str, float]] = {}
        self._lock = threading.RLock()  # guards _leases, and _sessions and its lists against writers; readers need none
        self._appending = False

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        with self._lock:
            if self._appending:
                raise StoreBusy(INTERRUPTED.format("the store"))
            self._appending = True
            try:
                log = self._sessions.setdefault(session, [])
                if len(log) != after:
                    stored = log[after : after + len(entries)]
                    if len(log) > after and [line[0] for line in stored] == [entry.id for entry in entries]:
                        return after + len(entries)
                    raise Conflict(f"the log ends at {len(log)}, not at {after}; read what is new and append after it")
                if log and entries and entries[0].follows not in ("", log[-1][0]):
                    raise Conflict(f"entry {after} of the log is another one than is known; open the session anew")
                lines: list[_Line] = []
                for entry in entries:
                    record, fields = entry._record, _FIELDS.get(entry.kind)
                    head = entry.id, entry.kind, entry.created_at, entry.round, entry.version
                    if record is None or fields is None or entry._body is not None or entry.version != BODY_VERSION:
                        lines.append((*head, entry.body))
                    else:
                        values = [record.__dict__[field] for field in fields]
                        if entry.kind in _PACKED:
                            values[-1] = _PACKED[entry.kind][0](values[-1])
                        lines.append((*head, None, *values))
                log += lines  # in one step: readers see all of them or none
                return after + len(entries)
            finally:
                self._appending = False

    def _refuse_in_append(self) -> None:
        """Raise ``StoreBusy`` in a signal handler that interrupts an append of its own thread."""
        if self._appending:
            raise StoreBusy(INTERRUPTED.format("the store"))

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        log = self._sessions.get(session, [])
        lines = log[after:] if limit is None else log[after : after + limit]  # as they are now
        return (
            Entry(
                kind,
                record=create_unchecked(KINDS[kind], dict(zip(_FIELDS[kind], _unpack(kind, values), strict=True)))
                if body is None
                else None,
                body=body,
                id=id_,
                created_at=created_at,
                number=number,
                round=round_,
                version=version,
            )
            for number, (id_, kind, created_at, round_, version, body, *values) in enumerate(lines, after + 1)
        )

    def sessions(self) -> Sequence[str]:
        with self._lock:
            return sorted(name for name, log in self._sessions.items() if log)

    def redact(self, session: str, number: int, body: str = "") -> None:
        with self._lock:
            self._refuse_in_append()
            log = self._sessions.get(session, [])
            if not 1 <= number <= len(log):
                raise KeyError(f"this session has no entry {number}; it has {len(log)}")
            id_, kind, created_at, round_, *_ = log[number - 1]
            log[number - 1] = (id_, kind if body else "redacted", created_at, round_, BODY_VERSION, body or "{}")

    def purge(self, session: str) -> None:
        with self._lock:
            self._refuse_in_append()  # before the session's files go
        delete_files(self, session)
        with self._lock:
            self._sessions.pop(session, None)

    def lease(self, session: str, name: str, holder: str, seconds: float, *, take_over: bool = False) -> float:
        now = self._clock()
        with self._lock:
            owner, until = self._leases.get((session, name), (holder, now))
            if not take_over and owner != holder and until > now:
                return until - now
            self._leases[session, name] = holder, now + seconds
            return 0.0

    def release(self, session: str, name: str, holder: str) -> None:
        with self._lock:
            if self._leases.get((session, name), ("", 0.0))[0] == holder:
                self._leases.pop((session, name), None)

    def close(self) -> None:
        """Do nothing: no resources are open."""
