"""A session's log and the snapshot that it makes: the one place where either is written."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import NamedTuple, TypeVar

from ..entries import (
    NAMES,
    Entry,
    PostAdded,
    PostPinned,
    PostRedacted,
    ReductionPublished,
    ReductionWithdrawn,
    RoundOpened,
    kinds_of,
)
from ..errors import (
    Conflict,
    NewerVersion,
    SessionPurged,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    UnknownRound,
)
from ..hooks import describe, renewed_after_fork
from ..rounds import Clock, Record
from ..search import forgotten
from ..stores.base import Store
from ..transfer.validate import round_id_of
from .checkpoint import checkpoint_of, resumed
from .redaction import erasures, holding, references_of, unfinished
from .round_store import PURGED, ResidentRounds, StoredRounds
from .state import Snapshot, applied

T = TypeVar("T")

#: What a store raises where it is certain that nothing was written, so that there is nothing to look for.
_REFUSALS = (StoreBusy, StoreClosed, StoreFull, StoreReadOnly)
#: Entries that come before the next checkpoint: at most so many are read at opening beside what the tail needs.
CHECKPOINT_EVERY = 1_000
#: What is often written about rounds that were closed long ago.
_ABOUT_OLD_ROUNDS = (ReductionPublished, ReductionWithdrawn, PostPinned)


class _News(NamedTuple):
    """What is to be told of when the lock is released."""

    #: The numbers of new rounds.
    rounds: range
    #: Whether others wrote.
    heard: bool
    #: References of what each of their redactions erased.
    erased: tuple[tuple[str, ...], ...]


_NO_NEWS = _News(range(0), heard=False, erased=())


class Log(ABC):
    """The log of one session. One writer at a time in a process; several processes find out by ``Conflict``.

    What happens is told of by ``_announce``, each round once, with no lock held.
    """

    _own_round: str  # id of the newest round that this Memory opened
    # What is being appended, or was when something went wrong the last time; and the ids of all that was when something
    # went wrong. Two for one fact: only reading on asks for ids, and takes them then; no append that goes well does.
    _appending: Sequence[Entry]
    _own_entries: frozenset[str]
    _taken_over: tuple[str, ...]  # ids of rounds that were open at opening, which the next one finishes

    def __init__(self, session_id: str, store: Store, clock: Clock, *, take_over: bool = False) -> None:
        self.session_id = session_id
        self._store = store
        self._clock = clock
        self._indexed = store if "indexed" in store.capabilities else None
        self._behind = False  # whether some of its own entries may be in the log that are not known here
        self._heard = False  # whether anything was read that others wrote, and nobody was told of yet
        self._gone: tuple[tuple[str, ...], ...] = ()  # references of what others erased, and nobody was told of yet
        self._to_erase: dict[int, int] = {}  # entries that erase, while that may not be done; and their rounds
        self._after_fork()
        renewed_after_fork(self)
        self.snapshot = self._begun()  # replaced under the lock, read without
        self._checkpoint = self.snapshot.number  # the last entry that was taken into a checkpoint
        self._catch_up()
        self._told = self.snapshot.total  # number of the last round that hooks were told of
        self._heard, self._gone = False, ()
        left_open = (item.opened.id for item in self.snapshot.live if not item.opened.closed)
        if take_over:
            self._taken_over = tuple(left_open)
        self._checkpoint_fault = ""  # the class of the error by which the last one could not be kept
        self._keep_checkpoint(self._due())
        self._checkpoint_fault = ""  # which nobody could hear of yet

    def _after_fork(self) -> None:
        # One writer at a time: held over an append. A thread may enter it again, so that what a signal's handler does
        # in the middle of a write can be refused, and does not wait for itself for ever.
        self._lock = threading.RLock()
        self._writing = False
        # What the parent opened, and was appending, is the parent's: a child that finished it would end its turn.
        self._own_round, self._own_entries, self._appending, self._taken_over = "", _NO_ENTRIES, (), ()

    @abstractmethod
    def _announce(self, rounds: Iterable[int] = (), erased: Iterable[tuple[str, ...]] = ()) -> None:
        """Tell whoever asked of what was *erased*, by its references, of new rounds, by their numbers, and that
        something happened."""

    @abstractmethod
    def _report_checkpoint(self, error: str) -> None:
        """Tell whoever asked that a checkpoint could not be kept."""

    def refresh(self) -> bool:
        """Return whether others have written to the session, and show it from now on: hooks are told of their rounds.

        For a Memory that only reads; one that writes finds out by writing. May raise ``StoreError``, and
        ``SessionPurged`` where the session is gone: go on with a new Memory then.
        """
        grown, news = False, _NO_NEWS
        try:
            with self._alone():
                try:
                    grown = self._catch_up()
                finally:
                    news = self._news()
        finally:
            if news is not _NO_NEWS:
                self._announce(news.rounds, news.erased)
        return grown

    def _write(
        self,
        records: Callable[[Snapshot], Iterable[Record]],
        done: Callable[[Snapshot], T],
        made_at: datetime | None = None,
        *,
        emit: bool = False,
    ) -> T:
        """Append what *records* makes of the present snapshot, and return what *done* makes of the one after.

        Both are called under the lock. When another writer was faster, or wrote of a round that is not known here,
        what it wrote is read first and *records* is asked again. Providers are told where it is something to *tell*,
        and always of what others wrote. The entries are *made_at* that time, by default now.
        """
        made_at = self._clock() if made_at is None else made_at
        written, due, news = False, None, _NO_NEWS
        try:
            with self._alone():
                try:
                    result = self._written(records, done, made_at)
                    written, due = True, None if self._indexed is None else self._due()
                finally:
                    news = self._news()
        finally:
            if news is not _NO_NEWS or (emit and written):
                self._announce(news.rounds, news.erased)
        if due is not None:
            self._keep_checkpoint(due)
        return result

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock. Raises ``RuntimeError`` in a signal's handler that interrupted a write of the same thread."""
        with self._lock:
            if self._writing:
                raise RuntimeError(
                    "this thread is in the middle of writing to the session, as where a signal's handler writes;"
                    " nothing was written: set a flag in the handler, and write when it has returned"
                )
            self._writing = True
            try:
                yield
            finally:
                self._writing = False

    def _written(
        self, records: Callable[[Snapshot], Iterable[Record]], done: Callable[[Snapshot], T], made_at: datetime
    ) -> T:
        if self._behind:
            self._catch_up()
        while True:
            try:
                entries = self._entries(records(self.snapshot), made_at)
            except UnknownRound:
                if not self._catch_up():
                    raise
                continue
            if not entries or self._append_all(entries):
                return done(self.snapshot)

    def _at_hand(self, ahead: Snapshot) -> Snapshot:
        """Return the present snapshot with what *ahead* has in memory: for ``records``, so that nothing is read under
        the lock that could be read before."""
        self.snapshot = self.snapshot.with_at_hand(ahead)
        return self.snapshot

    def _append_all(self, entries: list[Entry]) -> bool:
        """Append *entries*, and return whether they are in the log: not if others were faster, whose entries are read
        then. An append whose reply was lost has succeeded where its entries are found there at once."""
        # Whatever goes wrong from here on, the entries may be in the log: then they are read back as ours.
        self._appending, self._behind = entries, True
        try:
            self._store.append(self.session_id, entries, self.snapshot.number)
        except Conflict as conflict:
            if not self._catch_up(conflict):
                raise SessionPurged(PURGED.format(self.snapshot.number)) from conflict
            return self._own_entries.isdisjoint(entry.id for entry in entries)
        except _REFUSALS:
            raise
        except StoreError:
            with suppress(StoreError):
                self._catch_up()
            if self._own_entries.isdisjoint(entry.id for entry in entries):
                return True
            self._behind = True  # they may be stored yet, by a server that is slow
            raise
        for entry in entries:
            self._apply(entry, self.snapshot.number + 1, ours=True)
        self._own_entries, self._appending, self._behind = _NO_ENTRIES, (), False
        return True

    def _apply(self, entry: Entry, number: int, *, ours: bool) -> None:
        record = entry.record
        self.snapshot = applied(self.snapshot, record, number, entry.id)
        if not ours:
            return
        if type(record) is RoundOpened:
            self._own_round, self._taken_over = record.round_id, ()
        elif type(record) is PostRedacted:
            self._to_erase[number] = entry.round

    def _entries(self, records: Iterable[Record], made_at: datetime) -> list[Entry]:
        """Return an entry for each record, with the number of the round that it is about."""
        opened: dict[str, int] = {}
        entries: list[Entry] = []
        now = self.snapshot
        follows = now.last
        for record in records:
            number = 0
            if type(record) is RoundOpened:
                number = opened[record.round_id] = now.total + len(opened) + 1
            elif round_id := round_id_of(record):
                number = opened.get(round_id, 0) or now.numbers.get(round_id, 0)
            entries.append(Entry(NAMES[type(record)], record=record, created_at=made_at, round=number, follows=follows))
            follows = ""
        return entries

    def _catch_up(self, cause: Conflict | None = None) -> bool:
        """Read what was appended and is not known here; return whether there was anything. *cause*: why it is done."""
        before, redacted = self.snapshot.number, set()
        if self._appending:
            self._own_entries |= {entry.id for entry in self._appending}
            self._appending = ()
        for entry in self._unread(cause):
            record, ours = entry.record, entry.id in self._own_entries
            if isinstance(record, PostRedacted) and not ours:
                redacted.add(self.snapshot.numbers.get(record.round_id, 0))
                if self._is_unfinished(record, entry.number):
                    self._to_erase[entry.number] = self.snapshot.numbers[record.round_id]
            if entry.round and isinstance(record, _ABOUT_OLD_ROUNDS):
                self.snapshot.archive.note(round_id_of(record) or "", entry.round)  # the store need not be asked for it
            self._apply(entry, entry.number, ours=ours)
            if isinstance(record, PostRedacted) and not ours:
                self._gone += (references_of(record, self.snapshot.numbers[record.round_id]),)
            if ours:
                self._own_entries -= {entry.id}
        self._behind = False
        self._heard |= self.snapshot.number > before
        # What cannot be erased now is not shown all the same; whoever can write, and read it all, will do it.
        with suppress(StoreReadOnly, StoreDamaged, NewerVersion):
            if before:  # what this process handed to an index from rounds as they were before
                forgotten(self._store, self.session_id, self.snapshot, redacted)
            if redacted and self._to_erase:
                self._erase()  # whoever was to do it is still at it, or has come to an end before
        return self.snapshot.number > before

    def _unread(self, cause: Conflict | None) -> Iterator[Entry]:
        """Give what is in the log behind the last entry that is known. Raises ``SessionPurged`` where that is gone."""
        known = self.snapshot
        entries = iter(self._store.read(self.session_id, max(known.number - 1, 0)))
        # The log of a session that was purged and begun anew goes on from another entry.
        if known.number and getattr(next(entries, None), "id", None) != known.last:
            raise SessionPurged(PURGED.format(known.number)) from cause
        yield from entries

    def _is_unfinished(self, record: PostRedacted, entry: int) -> bool:
        """Return whether the text is still in the store that the entry of that number erases."""
        now = self.snapshot
        number = now.numbers.get(record.round_id, 0)
        if not 1 <= number <= now.total:
            return False  # which is another fault, and applying it will tell
        settled = number <= now.closed_prefix
        return unfinished(now.archive.before(number, entry) if settled else now.round_at(number), record)

    def _erase(self, *rounds: int) -> None:
        """Erase from the store what its log says is erased, in *rounds* and where it is known not to be done: from its
        index, then from overlays, then from posts."""
        now, begun = self.snapshot, dict(self._to_erase)
        log = list(holding(self._store, self.session_id, [*begun.values(), *rounds]))
        bodies = list(erasures(log, now.numbers.__getitem__))
        numbers = {number for number, _ in bodies}
        said = {entry.round for entry in log if entry.number in numbers and entry.kind in _TEXTS}
        forgotten(self._store, self.session_id, now, said)
        self._store.redact_all(self.session_id, dict(bodies))
        for number in begun:
            self._to_erase.pop(number, None)

    def _news(self) -> _News:
        """Return what nobody was told of yet, for the caller to do so; ``_NO_NEWS`` itself where there is nothing."""
        told, total = self._told, self.snapshot.total
        if told >= total and not (self._heard or self._gone):
            return _NO_NEWS
        news = _News(range(told + 1, total + 1), self._heard, self._gone)
        self._told, self._heard, self._gone = max(told, total), False, ()
        return news

    def _due(self) -> Snapshot | None:
        """Return what a checkpoint is to be made of; None where it is not time, or something is still to be erased:
        whoever opened the session by it would not know of that."""
        now = self.snapshot
        if self._indexed is None or now.number - self._checkpoint < CHECKPOINT_EVERY or self._to_erase:
            return None
        self._checkpoint = now.number
        return now

    def _keep_checkpoint(self, now: Snapshot | None) -> None:
        if now is None or self._indexed is None:
            return
        fault = ""
        try:
            self._indexed.keep_checkpoint(self.session_id, checkpoint_of(now))
        except Exception as error:  # noqa: BLE001  (what was appended is stored: no writer is told otherwise)
            # Without it the next opening reads more, and that is all.
            fault = describe(error)
        known, self._checkpoint_fault = self._checkpoint_fault, fault
        if fault not in ("", known):
            self._report_checkpoint(fault)

    def _begun(self) -> Snapshot:
        """Return what is known without reading the log: what the newest checkpoint says, if there is one."""
        if self._indexed is None:
            return Snapshot(archive=ResidentRounds(self._store, self.session_id))
        archive = StoredRounds(self._indexed, self.session_id)
        kept = self._indexed.checkpoint(self.session_id)
        begun = resumed(kept, self._indexed, self.session_id, archive) if kept is not None else None
        return Snapshot(archive=archive) if begun is None else begun


_TEXTS = kinds_of(RoundOpened, PostAdded)
_NO_ENTRIES: frozenset[str] = frozenset()
