"""A store that lasts as long as the process."""

from __future__ import annotations

import marshal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..entries import (
    BODY_VERSION,
    KINDS,
    NAMES,
    Entry,
    PostAdded,
    PostRedacted,
    RoundFailed,
    RoundFinished,
    RoundOpened,
    RoundUndone,
    UsageRecorded,
)
from ..errors import Conflict, StoreBusy
from ..hooks import renew_after_fork
from ..packed import PACK, UNPACK, pack_stamp, unpack_round, unpack_stamp
from ..rounds import Round, RoundState, create_unchecked
from .base import INTERRUPTED, Extent, Result, Store, make_key
from .limiting import LimitRow, LimitRows, ResidentLimitRows
from .retention import delete_files

#: Neighbouring entries that are held as one object: the bytes of ``marshal``, which is the fastest by far.
BLOCK = 16

#: An entry: id, kind, stamp, round, version, body. If the body is None, its packed record follows.
#: A plain tuple, because there are so many: the garbage collector visits one object, or none if the tuple holds only
#: texts and numbers. An entry with its record takes four objects.
_Line = tuple[Any, ...]
_OPENED, _POST, _REDACTED = NAMES[RoundOpened], NAMES[PostAdded], NAMES[PostRedacted]
_STATES: Mapping[str, RoundState] = {
    NAMES[RoundFinished]: "finished",
    NAMES[RoundFailed]: "failed",
    NAMES[RoundUndone]: "undone",
}
_TURN_KINDS = frozenset((_OPENED, _POST, *_STATES, NAMES[UsageRecorded]))


def _pack_block(log: list[_Line | bytes], start: int) -> None:
    """Hold the lines from *start* on as one block, apart from records of other kinds than those of every turn."""
    lines = log[start : start + BLOCK]
    packed = [line if line[5] is not None or line[1] in _TURN_KINDS else None for line in lines]
    try:
        block = marshal.dumps(packed)
    except ValueError:  # a host's own class of posts or of times is not only texts and numbers
        return
    if marshal.loads(block) != packed:  # noqa: S302  (a text of numpy's would come back as bytes)
        return
    log[start : start + BLOCK] = [line if one is None else block for line, one in zip(lines, packed, strict=True)]


def _unpack(lines: Iterable[_Line | bytes], start: int) -> Iterator[_Line]:
    """Yield *lines*, which begin at the index *start* of the log, without their blocks."""
    block, unpacked = b"", list[_Line]()
    for index, line in enumerate(lines, start):
        if isinstance(line, tuple):
            yield line
            continue
        if line is not block:
            block, unpacked = line, marshal.loads(line)  # noqa: S302  (it never left this process)
        yield unpacked[index % BLOCK]


class InMemoryStore(Store):
    """Sessions in a dict of lists. Several Memories, in several threads, may share one.

    *clock* returns seconds from any origin; leases expire by it.
    """

    is_resident = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "is_resident" not in cls.__dict__:
            cls.is_resident = cls.read is InMemoryStore.read  # entries may be elsewhere, or made otherwise

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, list[_Line | bytes]] = {}
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        #: Holder, and when it expires. A forked child has its own copy of the sessions.
        self._leases: dict[tuple[str, str], tuple[str, float]] = {}
        self._lock = threading.RLock()  # guards _leases, and _sessions and its lists against writers; readers need none
        self._appending = False
        self._limits_lock = threading.RLock()  # guards _limits
        self._limits: dict[str, dict[str, LimitRow]] = {}

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        with self._lock:
            if self._appending:
                raise StoreBusy(INTERRUPTED.format("the store"))
            self._appending = True
            try:
                log = self._sessions.setdefault(session, [])
                if len(log) != after:
                    stored = self.read(session, after, len(entries))
                    if len(log) > after and [one.id for one in stored] == [entry.id for entry in entries]:
                        return after + len(entries)
                    raise Conflict(f"the log ends at {len(log)}, not at {after}; read what is new and append after it")
                if log and entries and entries[0].follows:
                    newest = log[-1]  # else a block, of which it is the last
                    id_ = (newest if isinstance(newest, tuple) else marshal.loads(newest)[-1])[0]  # noqa: S302
                    if entries[0].follows != id_:
                        raise Conflict(f"entry {after} of the log is another one than is known; open the session anew")
                lines: list[_Line | bytes] = []
                for entry in entries:
                    record, pack = entry._record, PACK.get(entry.kind)
                    head = entry.id, entry.kind, pack_stamp(entry.created_at), entry.round, entry.version
                    if record is None or pack is None or entry._body is not None or entry.version > BODY_VERSION:
                        lines.append((*head, entry.body))
                    else:
                        lines.append((*head, None, *pack(record.__dict__)))
                log += lines  # in one step: readers see all of them or none
                if after % BLOCK + len(entries) >= BLOCK:
                    for start in range(after - after % BLOCK, len(log) - BLOCK + 1, BLOCK):
                        _pack_block(log, start)
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
                record=create_unchecked(KINDS[kind], UNPACK[kind](values)) if body is None else None,
                body=body,
                id=id_,
                created_at=unpack_stamp(created_at),
                number=number,
                round=round_,
                version=version,
            )
            for number, (id_, kind, created_at, round_, version, body, *values) in enumerate(
                _unpack(lines, after), after + 1
            )
        )

    def read_round(self, session: str, number: int, first: int, last: int) -> Round | None:
        opening, posts, state = list[Any](), list[Any](), "created"
        lines = self._sessions.get(session, [])[first - 1 : last]
        for _, kind, _, _, _, body, *values in _unpack(lines, first - 1):
            if body is not None or kind == _REDACTED or (kind != _OPENED and not opening):
                return None
            if not opening:
                opening = values
            elif values[0] != opening[0]:
                continue
            elif kind == _POST:
                posts.append(values[1])
            state = _STATES.get(kind, state)
        if not opening:
            return None
        round_id, query, created_at, extra = opening
        return unpack_round((round_id, query, state, posts, created_at, number, extra))

    def sessions(self) -> Sequence[str]:
        with self._lock:
            return sorted(name for name, log in self._sessions.items() if log)

    def get_extent(self, session: str) -> Extent | None:
        if not self.is_resident:
            return super().get_extent(session)
        log = self._sessions.get(session, [])
        number, last, rounds = len(log), None, 0
        for start in range((number - 1) // BLOCK * BLOCK, -1, -BLOCK):  # the newest block first
            lines = [*_unpack(log[start : min(start + BLOCK, number)], start)]
            last = last or lines[-1]
            rounds = next((line[3] for line in reversed(lines) if line[1] == _OPENED), 0)
            if rounds:
                break
        return None if last is None else Extent(number, unpack_stamp(last[2]), rounds)

    def redact(self, session: str, number: int, body: str = "") -> None:
        with self._lock:
            self._refuse_in_append()
            log = self._sessions.get(session, [])
            if not 1 <= number <= len(log):
                raise KeyError(f"this session has no entry {number}; it has {len(log)}")
            id_, kind, created_at, round_, *_ = next(_unpack(log[number - 1 : number], number - 1))
            line = (id_, kind if body else "redacted", created_at, round_, 1, body or "{}")
            block, start = log[number - 1], (number - 1) // BLOCK * BLOCK
            if isinstance(block, bytes):
                lines = marshal.loads(block)  # noqa: S302
                lines[(number - 1) % BLOCK] = line
                packed = marshal.dumps(lines)
                log[start : start + BLOCK] = [packed if one is block else one for one in log[start : start + BLOCK]]
            else:
                log[number - 1] = line

    def purge(self, session: str) -> None:
        with self._lock:
            self._refuse_in_append()  # before the session's files go
        delete_files(self, session)
        with self._lock:
            self._sessions.pop(session, None)
        with self._limits_lock:
            for rows in self._limits.values():
                for row in [row for row in rows.values() if row.session == make_key(session)]:
                    del rows[row.key]

    def evict(self, session: str, number: int, id: str, *, lease_name: str = "", holder: str = "") -> bool:  # noqa: A002
        with self._lock:
            self._refuse_in_append()
            if lease_name and (not holder or self._leases.get((session, lease_name), ("", 0.0))[0] != holder):
                return False
            last = next(self.read(session, number - 1), None)
            if last is None or last.id != id or len(self._sessions[session]) != number:
                return False
            del self._sessions[session]
            return True

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

    def change_limits(self, work: Callable[[LimitRows], Result]) -> Result:
        with self._limits_lock:
            before = {kind: rows.copy() for kind, rows in self._limits.items()}
            try:
                return work(ResidentLimitRows(self._limits, self._clock()))
            except BaseException:
                self._limits = before
                raise

    def close(self) -> None:
        """Do nothing: no resources are open."""
