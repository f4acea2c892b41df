"""Conversations without a name: each gets its own session, which is found again by its messages."""

from __future__ import annotations

import re
import sys
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from memory import Memory, Store, StoreError
from memory.alignment import Alignment, align
from memory.fingerprints import SIZE, Fingerprinter, LogFingerprints, get_print, read_log
from memory.hooks import renew_after_fork
from memory.messages import ASSISTANT, SYSTEM
from memory.stores.base import SessionRow

V = TypeVar("V")

#: Maximum number of sessions kept in memory (the least recently used are dropped), and of the newest histories that are
#: remembered: one that comes twice may belong to two conversations.
MAX_UNNAMED, MAX_GIVEN = 1_000, 20_000
#: Maximum number of sessions to compare with one history: from memory, from the store with the same first message, and
#: from the store by last use. Then the maximum number of log entries read from the store for one history.
MAX_ALIKE, MAX_ENTRIES = 20, 20_000
#: Maximum number of rows to list from the store, for the same first message and by last use. Then the number of logs to
#: cache for later comparisons.
MAX_LISTED, MAX_READ = 500, 200
PREFIX = "unnamed-"
#: A value of ``_Session.own_from``: no message is its own, and only a history that begins with all of it finds it.
OWNS_NOTHING = sys.maxsize
_NAME = re.compile(PREFIX + r"[0-9a-f]{4}-([0-9]+)-[0-9a-f]{32}")


@dataclass(slots=True, eq=False)
class _Session:
    id: str
    #: Index in ``prints`` of the first message that belongs to this conversation alone: others may begin with the
    #: messages of its first call. The session's name contains their number for later processes.
    own_from: int
    #: Fingerprints of the session's latest history, and that history's hash. Both are empty before its first call here.
    prints: bytes = b""
    latest: bytes = b""
    #: Whether it was found in the store. Then it is unknown which histories an earlier process was given twice.
    is_stored: bool = False
    #: Whether the history has lost its oldest messages.
    is_window: bool = False


@dataclass(frozen=True, slots=True)
class _History:
    """A host's history without its leading system messages."""

    body: Sequence[Mapping[str, Any]]
    prints: bytes
    #: Hashes of its beginnings, leading system messages included: of all, of all but the last message, and so on.
    begins: Sequence[bytes]

    @classmethod
    def read(cls, messages: Iterable[Mapping[str, Any]]) -> _History:
        given = [*messages]
        lead = sum(1 for _ in takewhile(lambda one: one["role"] in SYSTEM, given))
        fingerprint, digest = Fingerprinter(), blake2b(digest_size=SIZE)
        prints, begins = list[bytes](), [digest.digest()]
        for message in given:
            prints.append(fingerprint(message))
            digest.update(prints[-1])
            begins.append(digest.digest())
        return cls(given[lead:], b"".join(prints[lead:]), begins[::-1])

    def make_session(self, own_from: int) -> _Session:
        """Return a new session. Sessions with the same first message share a prefix of the name. It does not reveal the
        message, because the hash is too short."""
        return _Session(f"{self.bucket}{len(self.body)}-{uuid4().hex}", own_from)

    @property
    def bucket(self) -> str:
        return f"{PREFIX}{self.prints[:2].hex() or '0000'}-"


class _Match(NamedTuple):
    session: _Session
    #: The session's ``own_from`` and ``is_window`` with the compared history as its latest.
    own_from: int
    is_window: bool


class UnnamedSessions:
    """Finds the session for a history: the one whose latest history it continues, else the one that shares most of it.

    The second case needs proof that no other conversation has: one answered question if the newest messages were
    edited, two if the oldest were dropped, three if both. In doubt, a new session begins, because the old one may
    belong to another conversation. Sessions not in memory, as after a restart, are looked up in *store*. They need one
    answered question more, unless the history begins with the whole log. *purge* erases a session that can no longer be
    found.
    """

    def __init__(self, store: Store, purge: Callable[[str], object]) -> None:
        self._store, self._purge = store, purge
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._by_latest: OrderedDict[bytes, _Session] = OrderedDict()  # by the hash of their latest history
        # By the hash of an earlier history that the latest one does not continue: another conversation may do so.
        self._by_earlier: OrderedDict[bytes, _Session] = OrderedDict()
        self._given: OrderedDict[bytes, bool] = OrderedDict()  # hashes of histories; whether given twice
        self._claimed: set[str] = set()  # ids of all sessions in memory or in use
        # Logs read from the store, by session, each with its number of entries.
        self._logs: OrderedDict[str, tuple[int, LogFingerprints]] = OrderedDict()

    @contextmanager
    def find(self, messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the id of the session for the history *messages*. Until the block ends, no other caller finds it."""
        history = _History.read(messages)
        with self._lock:
            common = self._count_common(history)
            session = self._continue(history, common)
            recent = [] if session is not None else [(one, one.prints) for one in reversed(self._by_latest.values())]
        if session is None:
            session = self._match(history, common, recent) or history.make_session(len(history.body))
            self._claimed.add(session.id)
        try:
            yield session.id
        finally:
            self._remember(session, history)

    def _count_common(self, history: _History) -> int:
        """Return the length of the longest beginning that was given twice, perhaps by two conversations. Record the
        history as given."""
        latest = history.begins[0]
        _put(self._given, latest, latest in self._given, MAX_GIVEN)
        shorter = next((index for index, one in enumerate(history.begins) if self._given.get(one)), len(history.body))
        return max(len(history.body) - shorter, 0)

    def _continue(self, history: _History, common: int) -> _Session | None:
        """Return the session whose latest history *history* continues; a new one if another conversation has continued
        that history in the meantime."""
        for index, begin in enumerate(history.begins):
            if (session := self._by_latest.pop(begin, None)) is not None:
                session.own_from = max(session.own_from, common)
                return session
            if index and (session := self._by_earlier.get(begin)) is not None:
                newest = history.prints.rfind(session.prints[-SIZE:])
                if self._by_latest.get(session.latest) is session and newest >= 0:  # older messages are back
                    session.own_from += max((newest + SIZE - len(session.prints)) // SIZE, 0)
                    return self._by_latest.pop(session.latest)
                session.own_from = OWNS_NOTHING  # two conversations continue it: shared messages prove nothing now
                new = history.make_session(OWNS_NOTHING)
                self._claimed.add(new.id)
                return new
        return None

    def _match(self, history: _History, common: int, recent: Sequence[tuple[_Session, bytes]]) -> _Session | None:
        """Return the session that *history* continues after an edit or without its oldest messages: from *recent*,
        those in memory, or else from the store."""
        others, alike = [prints for _, prints in recent], _list_alike(history, recent)
        logs = [(one, LogFingerprints(prints, kinds=bytes(len(prints) // SIZE))) for one, prints in alike]
        match = _choose(history, common, logs, others)
        # Fewer than two answers prove nothing about a stored session.
        if match is None and sum(one["role"] == ASSISTANT for one in history.body) > 1:
            stored: list[tuple[_Session, LogFingerprints]] = []
            with suppress(StoreError):  # the next call that opens a session raises it
                stored += self._read_stored(history.bucket)
            match = _choose(history, common, stored, others + [log.prints for _, log in stored])
        return match.session if match is not None and self._claim(match) else None

    def _claim(self, match: _Match) -> bool:
        """Reserve the session of *match* for the caller; return False if another caller was faster."""
        session = match.session
        with self._lock:
            if session.latest:
                is_free = self._by_latest.get(session.latest) is session
                if is_free:
                    _put(self._by_earlier, session.latest, self._by_latest.pop(session.latest), MAX_UNNAMED)
            else:
                is_free = session.id not in self._claimed
                self._claimed.add(session.id)
            if is_free:  # with the lock held: from now on, another caller may set ``own_from``
                session.own_from, session.is_window = match.own_from, match.is_window
        return is_free

    def _read_stored(self, bucket: str) -> Iterator[tuple[_Session, LogFingerprints]]:
        """Yield stored sessions that are not in memory: those in *bucket*, then others, each by last use."""
        rows = self._store.list_sessions("", after=bucket, limit=MAX_LISTED)
        alike = sorted((row for row in rows if row.name.startswith(bucket)), key=lambda row: row.last_activity)
        newest = self._store.list_sessions("", limit=MAX_LISTED, order="activity")
        chosen: dict[str, tuple[SessionRow, re.Match[str]]] = {}
        for group in (reversed(alike), newest):
            named = [(row, name) for row in group if (name := _NAME.fullmatch(row.name)) is not None]
            chosen |= {row.name: (row, name) for row, name in named[:MAX_ALIKE]}
        left = MAX_ENTRIES
        for row, name in chosen.values():
            with self._lock:
                size, log = self._logs.get(row.name, (0, LogFingerprints()))
                if row.name in self._claimed or (size != row.entries and row.entries > left):
                    continue
            if size != row.entries:
                left -= row.entries
                log = LogFingerprints()
                with suppress(StoreError):  # a damaged log, or a newer version's: its next opener gets the error
                    log = read_log(Memory(row.name, store=self._store).snapshot, log)
                with self._lock:
                    _put(self._logs, row.name, (row.entries, log), MAX_READ)
            yield _Session(row.name, int(name[1]), is_stored=True), log

    def _remember(self, session: _Session, history: _History) -> None:
        """Record *history* as the session's latest. Purge a session that can no longer be found: that of another caller
        with the same history, or *session* if it is new and the other may be the conversation's own."""
        key, is_new = history.begins[0], not session.latest and not session.is_stored
        with self._lock:
            other = self._by_latest.pop(key, None)
            winner, lost = (other, [session]) if other is not None and is_new else (session, [other])
            winner.prints, winner.latest = history.prints, key
            self._by_earlier.pop(key, None)
            oldest = _put(self._by_latest, key, winner, MAX_UNNAMED)
            if oldest is not None and getattr(self._store, "is_resident", False):
                lost.append(oldest)
            elif oldest is not None:  # it can be found again in the database
                self._claimed.discard(oldest.id)
        for one in filter(None, lost):
            with suppress(StoreError):
                self._purge(one.id)
            self._claimed.discard(one.id)  # not before: another caller would read it from the store


def _put(cache: OrderedDict[Any, V], key: object, value: V, maximum: int) -> V | None:
    """Make *key* the newest in *cache*, and return the oldest value if that had to be dropped."""
    cache.pop(key, None)
    cache[key] = value
    return cache.popitem(last=False)[1] if len(cache) > maximum else None


def _list_alike(history: _History, recent: Sequence[tuple[_Session, bytes]]) -> Sequence[tuple[_Session, bytes]]:
    """Return the sessions that share a rare message with *history*, looking from its newest message backwards."""
    back = 1
    while back <= len(history.body):
        wanted = get_print(history.prints, len(history.body) - back)
        alike = [one for one in recent if wanted in one[1]]
        if 0 < len(alike) <= MAX_ALIKE:
            return alike
        back += 1 if back < 8 else back // 2
    return ()


def _choose(
    history: _History, common: int, logs: Iterable[tuple[_Session, LogFingerprints]], others: Sequence[bytes]
) -> _Match | None:
    """Return the session in *logs* that shares most with *history*. Return None without proof, or if two share as much.
    First messages that *others* begin with, too, are no proof."""
    most, best = 0, list[_Match | None]()
    for session, log in logs:
        found, own_from = align(log, history.prints, history.body), session.own_from
        if found.kept < max(most, len(log.kinds) - found.log_end):  # less than another, or than it would undo
            continue
        is_window = session.is_window or [*found.anchors] != [(0, 0)]
        needed = 1 + is_window + (is_window and found.is_diverged) + session.is_stored
        if not session.prints and not found.is_diverged and not is_window:  # in the store, and continued unchanged
            is_proven = _is_proven(found, 0, 0, 1, history)
        elif is_proven := _is_proven(found, own_from, common, needed, history):
            shared = (_count_shared(log.prints, other) for other in others if other is not log.prints)
            own_from = max([own_from, *shared])
            is_proven = _is_proven(found, own_from, common, needed, history)
        span = next((one for one in found.spans if one.log_start + one.size > own_from), None)
        index = span.host_start + max(own_from - span.log_start, 0) if span is not None else found.host_end
        match = _Match(session, index, is_window) if is_proven else None
        best, most = [*best, match] if found.kept == most else [match], found.kept
    return best[0] if len(best) == 1 else None


def _is_proven(alignment: Alignment, own_from: int, common: int, needed: int, history: _History) -> bool:
    """Return whether *alignment* shares at least *needed* answered questions, from index *own_from* of the log on."""
    if len(alignment.anchors) > (1 if alignment.anchors[0] != (0, 0) else 2):  # one gap at most
        return False
    if alignment.is_diverged and sum(one["role"] == "user" for one in history.body[alignment.host_end :]) > 1:
        return False  # more than one new turn
    answered = set[bytes]()  # a repeated question counts once
    for host_start, log_start, size in alignment.spans:
        question = b""
        for index in range(max(host_start + max(own_from - log_start, 0), common), host_start + size):
            role = history.body[index]["role"]
            if role == "user":
                question = get_print(history.prints, index)
            elif role == ASSISTANT and question:
                answered.add(question)
    return len(answered) >= needed


def _count_shared(one: bytes, other: bytes) -> int:
    """Return the number of equal first messages."""
    counts = range(1, min(len(one), len(other)) // SIZE + 1)
    return bisect_left(counts, True, key=lambda count: one[: count * SIZE] != other[: count * SIZE])
