"""Conversations without a name: each gets its own session, which is found again by its messages."""

from __future__ import annotations

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Any
from uuid import uuid4

from memory import Memory, Store, StoreError
from memory.fingerprints import SIZE, Fingerprinter, LogFingerprints, get_print, read_log
from memory.hooks import renew_after_fork
from memory.messages import ASSISTANT, SYSTEM
from memory.stores.base import SessionRow
from memory.sync import Alignment, align

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
#: A value of ``_Known.own``: no message is the session's own. Only a history that begins with all of it finds it.
NEVER = sys.maxsize
_NAME = re.compile(PREFIX + r"[0-9a-f]{4}-([0-9]+)-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class _History:
    """A host's history without its leading system messages."""

    body: Sequence[Mapping[str, Any]]
    prints: bytes
    #: Hashes of its beginnings, leading system messages included: of all, of all but the last message, and so on.
    begins: Sequence[bytes]

    def make_session(self, own: int) -> _Known:
        """Return a new session. Sessions with the same first message share a prefix of the name. It does not reveal the
        message, because the hash is too short."""
        return _Known(f"{self.bucket}{len(self.body)}-{uuid4().hex}", own)

    @property
    def bucket(self) -> str:
        return f"{PREFIX}{self.prints[:2].hex() or '0000'}-"


@dataclass(slots=True, eq=False)
class _Known:
    session_id: str
    #: Index in ``prints`` of the first message that belongs to this conversation alone: others may begin with the
    #: messages of its first call. The session's name contains their number for later processes.
    own: int
    #: Fingerprints of the session's latest history, and that history's hash, its key in ``Unnamed._known``.
    prints: bytes = b""
    key: bytes = b""
    #: Whether it was found in the store. Then it is unknown which histories an earlier process was given twice.
    is_stored: bool = False
    #: Whether the history has lost its oldest messages.
    is_window: bool = False


class Unnamed:
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
        self._known: OrderedDict[bytes, _Known] = OrderedDict()  # by the hash of their latest history
        # By the hash of an earlier history that the latest one does not continue: another conversation may do so.
        self._left: OrderedDict[bytes, _Known] = OrderedDict()
        self._given: OrderedDict[bytes, bool] = OrderedDict()  # hashes of histories; whether given twice
        self._held: set[str] = set()  # ids of all sessions in memory or in use
        # Logs read from the store, by session, each with its number of entries.
        self._read: OrderedDict[str, tuple[int, LogFingerprints]] = OrderedDict()

    @contextmanager
    def find(self, messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the id of the session for the history *messages*. Until the block ends, no other caller finds it."""
        history = _read_history(messages)
        with self._lock:
            common = self._count_common(history)
            found = self._take(history, common)
            logs = [] if found is not None else [(one, one.prints) for one in reversed(self._known.values())]
        if found is None:
            found = self._take_alike(history, common, logs) or self._take_stored(history, common, logs)
        if found is None:
            found = history.make_session(len(history.body))
            self._hold(found)
        try:
            yield found.session_id
        finally:
            self._keep(found, history)

    def _count_common(self, history: _History) -> int:
        """Return the length of the longest beginning that was given twice, perhaps by two conversations. Record the
        history as given."""
        whole = history.begins[0]
        self._given[whole] = self._given.pop(whole, None) is not None
        if len(self._given) > MAX_GIVEN:
            self._given.popitem(last=False)
        less = next((place for place, one in enumerate(history.begins) if self._given.get(one)), len(history.body))
        return max(len(history.body) - less, 0)

    def _take(self, history: _History, common: int) -> _Known | None:
        """Return the session whose latest history *history* continues. If that session has moved on since, return a new
        one."""
        for place, begin in enumerate(history.begins):
            if (known := self._known.pop(begin, None)) is not None:
                known.own = max(known.own, common)
                return known
            if place and (left := self._left.get(begin)) is not None:
                newest = history.prints.rfind(left.prints[-SIZE:])
                if self._known.get(left.key) is left and newest >= 0:  # older messages are back
                    left.own += max((newest + SIZE - len(left.prints)) // SIZE, 0)
                    return self._known.pop(left.key)
                left.own = NEVER  # two conversations continue it: shared messages prove nothing now
                new = history.make_session(NEVER)
                self._held.add(new.session_id)
                return new
        return None

    def _take_alike(self, history: _History, common: int, logs: Sequence[tuple[_Known, bytes]]) -> _Known | None:
        """Return the session in memory that *history* continues after an edit or without its oldest messages."""
        alike = [
            (one, LogFingerprints(prints, kinds=bytes(len(prints) // SIZE)))
            for one, prints in _list_alike(history, logs)
        ]
        best = _choose(history, common, alike, [prints for _, prints in logs])
        if best is None:
            return None
        found, own, is_window = best
        with self._lock:
            if self._known.get(found.key) is not found:  # another caller was faster
                return None
            self._left[found.key] = self._known.pop(found.key)
            if len(self._left) > MAX_UNNAMED:
                self._left.popitem(last=False)
            found.own, found.is_window = own, is_window
        return found

    def _take_stored(self, history: _History, common: int, logs: Sequence[tuple[_Known, bytes]]) -> _Known | None:
        if sum(one["role"] == ASSISTANT for one in history.body) < 2:  # too few answers to prove anything
            return None
        stored: list[tuple[_Known, LogFingerprints]] = []
        with suppress(StoreError):  # the next call that opens a session raises it
            stored += self._read_stored(history.bucket)
        others = [prints for _, prints in logs] + [log.prints for _, log in stored]
        best = _choose(history, common, stored, others)
        if best is None or not self._hold(best[0]):
            return None
        found = best[0]
        found.own, found.is_window = best[1:]
        return found

    def _read_stored(self, bucket: str) -> Iterator[tuple[_Known, LogFingerprints]]:
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
                size, log = self._read.get(row.name, (0, LogFingerprints()))
                if row.name in self._held or (size != row.entries and row.entries > left):
                    continue
            if size != row.entries:
                left -= row.entries
                log = LogFingerprints()
                with suppress(StoreError):  # a damaged log, or a newer version's: its next opener gets the error
                    log = read_log(Memory(row.name, store=self._store).snapshot, log)
                with self._lock:
                    self._read[row.name] = row.entries, log
                    if len(self._read) > MAX_READ:
                        self._read.popitem(last=False)
            yield _Known(row.name, int(name[1]), is_stored=True), log

    def _hold(self, found: _Known) -> bool:
        """Reserve *found* for the caller; return False if another caller has it."""
        with self._lock:
            is_free = found.session_id not in self._held
            self._held.add(found.session_id)
        return is_free

    def _keep(self, found: _Known, history: _History) -> None:
        """Remember *history* as the session's last. Purge a session that can no longer be found: that of another caller
        with the same history, or *found* if it is new and the other may be the conversation's own."""
        key, is_new = history.begins[0], not found.key and not found.is_stored
        with self._lock:
            other = self._known.pop(key, None)
            kept, lost = (other, [found]) if other is not None and is_new else (found, [other])
            kept.prints, kept.key = history.prints, key
            self._known[key] = kept
            self._left.pop(key, None)
            if len(self._known) > MAX_UNNAMED:
                oldest = self._known.popitem(last=False)[1]
                if getattr(self._store, "is_resident", False):
                    lost.append(oldest)
                else:  # it can be found again in the database
                    self._held.discard(oldest.session_id)
        for one in filter(None, lost):
            with suppress(StoreError):
                self._purge(one.session_id)
            self._held.discard(one.session_id)  # not before: another caller would read it from the store


def _read_history(messages: Iterable[Mapping[str, Any]]) -> _History:
    given = [*messages]
    lead = sum(1 for _ in takewhile(lambda one: one["role"] in SYSTEM, given))
    read, told = Fingerprinter(), blake2b(digest_size=SIZE)
    prints, begins = list[bytes](), [told.digest()]
    for message in given:
        prints.append(read(message))
        told.update(prints[-1])
        begins.append(told.digest())
    return _History(given[lead:], b"".join(prints[lead:]), begins[::-1])


def _list_alike(history: _History, logs: Sequence[tuple[_Known, bytes]]) -> Sequence[tuple[_Known, bytes]]:
    """Return the *logs* that share a rare message with *history*, looking from its newest message backwards."""
    place, step = len(history.body) - 1, 1
    while place >= 0:
        wanted = get_print(history.prints, place)
        alike = [one for one in logs if wanted in one[1]]
        if 0 < len(alike) <= MAX_ALIKE:
            return alike
        step *= 1 if place > len(history.body) - 8 else 2
        place -= step
    return ()


def _choose(
    history: _History, common: int, logs: Iterable[tuple[_Known, LogFingerprints]], others: Sequence[bytes]
) -> tuple[_Known, int, bool] | None:
    """Return the session in *logs* that shares most with *history*, the index of its first own message, and whether the
    history lacks the oldest messages. Return None without proof, or if two share as much. First messages that *others*
    begin with, too, are no proof."""
    most, best = 0, list[tuple[_Known, int, bool] | None]()
    for one, log in logs:
        found, own = align(log, history.prints, history.body), one.own
        if found.kept < max(most, len(log.kinds) - found.here):  # less than another, or than it would undo
            continue
        is_window = one.is_window or [*found.starts] != [(0, 0)]
        needed = 1 + is_window + (is_window and found.is_diverged) + one.is_stored
        if not one.prints and not found.is_diverged and not is_window:  # in the store, and continued unchanged
            is_proven = _is_proven(found, 0, 0, 1, history)
        elif is_proven := _is_proven(found, own, common, needed, history):
            own = max([own, *(_count_shared(log.prints, other) for other in others if other is not log.prints)])
            is_proven = _is_proven(found, own, common, needed, history)
        run = next((run for run in found.runs if run.here + run.size > own), None)
        place = run.there + max(own - run.here, 0) if run is not None else found.there
        best = [*(best if found.kept == most else ()), (one, place, is_window) if is_proven else None]
        most = found.kept
    return best[0] if len(best) == 1 else None


def _is_proven(found: Alignment, own: int, common: int, needed: int, history: _History) -> bool:
    """Return whether *found* shares at least *needed* answered questions, from index *own* of the log on."""
    if len(found.starts) > (1 if found.starts[0] != (0, 0) else 2):  # one gap at most
        return False
    if found.is_diverged and sum(one["role"] == "user" for one in history.body[found.there :]) > 1:
        return False  # more than one new turn
    answered = set[bytes]()  # a repeated question counts once
    for run in found.runs:
        asked = b""
        for place in range(max(run.there + max(own - run.here, 0), common), run.there + run.size):
            role = history.body[place]["role"]
            if role == "user":
                asked = get_print(history.prints, place)
            elif role == ASSISTANT and asked:
                answered.add(asked)
        if len(answered) >= needed:
            return True
    return False


def _count_shared(one: bytes, other: bytes) -> int:
    """Return the number of equal first messages."""
    if one[:SIZE] != other[:SIZE]:
        return 0
    low, high = 0, min(len(one), len(other)) // SIZE
    while low < high:
        half = (low + high + 1) // 2
        low, high = (half, high) if one[: half * SIZE] == other[: half * SIZE] else (low, half - 1)
    return low
