"""A session's log and the snapshot that it makes: the one place where either is written."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice

from ..entries import (
    NAMES,
    Entry,
    PostAdded,
    PostPinned,
    PostRedacted,
    ReductionPublished,
    ReductionWithdrawn,
    RoundOpened,
    decode,
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
from ..search import forget_texts
from ..stores.base import Store
from .checkpoint import checkpoint_of, resumed
from .redaction import erasures, holding, references_of, unfinished
from .round_store import PURGED, StoredRounds
from .state import ResidentRounds, Snapshot, apply_all

#: What a store raises where it is certain that nothing was written, so that there is nothing to look for.
_REFUSALS = (StoreBusy, StoreClosed, StoreFull, StoreReadOnly)
#: Entries that come before the next checkpoint: at most so many are read at opening beside what the tail needs.
CHECKPOINT_EVERY = 1_000
#: Entries that are taken in at once.
PAGE = 256
INTERRUPTED = (
    "this thread is in the middle of writing to the session, as where a signal's handler writes; nothing was written:"
    " set a flag in the handler, and write when it has returned"
)
#: Numbers of new rounds, and references of what each redaction by others erased.
_News = tuple[range, tuple[tuple[str, ...], ...]] | None


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
        left_open = (item.opened.round_id for item in self.snapshot.live if item.state == "created")
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
        news: _News = None
        try:
            with self._lock:
                if self._writing:
                    raise RuntimeError(INTERRUPTED)
                self._writing = True
                try:
                    return self._catch_up()
                finally:
                    news, self._writing = self._take_news(), False
        finally:
            if news is not None:
                self._announce(*news)

    def _write(
        self,
        records: Callable[[Snapshot], Iterable[Record]],
        made_at: datetime | None = None,
        *,
        emit: bool = False,
    ) -> Snapshot:
        """Append what *records* makes of the present snapshot, and return the one after.

        *records* is called under the lock. When another writer was faster, or wrote about a round that is not known
        here, its entries are read first and *records* is called again. With *emit*, providers are told; of what others
        wrote they are always told. *made_at* is the time of the entries, by default now.
        """
        made_at = self._clock() if made_at is None else made_at
        news: _News = None
        due, written = None, False
        try:
            with self._lock:
                if self._writing:
                    raise RuntimeError(INTERRUPTED)
                self._writing = True
                try:
                    if self._behind:
                        self._catch_up()
                    while not written:
                        now = self.snapshot
                        try:
                            said = list(records(now))
                        except UnknownRound:
                            if not self._catch_up():
                                raise
                        else:
                            written = not said or self._append_all(now, said, made_at)
                    now = self.snapshot
                    if self._indexed is not None:
                        due = self._due()
                finally:
                    news, self._writing = self._take_news(), False
        finally:
            if news is not None or (emit and written):
                self._announce(*(news or ((), ())))
        if due is not None:
            self._keep_checkpoint(due)
        return now

    def _append_all(self, now: Snapshot, records: Sequence[Record], made_at: datetime) -> bool:
        """Append *records* behind *now*, and return whether they are in the log. They are not if others were faster;
        then the others' entries are read. If the store's reply is lost, the append counts as done where its entries are
        found in the log at once."""
        opened: dict[str, int] = {}
        entries: list[Entry] = []
        follows = now.last
        for number, record in enumerate(records, now.number + 1):
            about = record.reduction if type(record) is ReductionPublished else record
            round_id = getattr(about, "round_id", "")
            if type(record) is RoundOpened:
                round_ = opened[round_id] = now.total + len(opened) + 1
            elif round_id:
                round_ = opened.get(round_id, 0) or now.number_of(round_id)
            else:
                round_ = 0
            kind = NAMES[type(record)]
            entries.append(Entry(kind, record=record, created_at=made_at, number=number, round=round_, follows=follows))
            follows = ""
        # Whatever goes wrong from here on, the entries may be in the log. Then they are read back as ours.
        self._appending, self._behind = entries, True
        try:
            self._store.append(self.session_id, entries, now.number)
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
            self._behind = True  # a slow server may store them yet
            raise
        self.snapshot = apply_all(now, entries, records)
        self._note_own(entries, records)
        self._own_entries, self._appending, self._behind = _NO_ENTRIES, (), False
        return True

    def _note_own(self, entries: Iterable[Entry], records: Iterable[Record | None]) -> None:
        """Take note of what this Memory wrote itself."""
        for entry, record in zip(entries, records, strict=True):
            if type(record) is RoundOpened:
                self._own_round, self._taken_over = record.round_id, ()
            elif type(record) is PostRedacted:
                self._to_erase[entry.number] = entry.round

    def _catch_up(self, cause: Conflict | None = None) -> bool:
        """Read what was appended and is not known here; return whether there was anything. Raises ``SessionPurged``,
        from *cause*, where the entries that are known are gone."""
        before = self.snapshot.number
        if self._appending:
            self._own_entries |= {entry.id for entry in self._appending}
            self._appending = ()
        entries = iter(self._store.read(self.session_id, max(before - 1, 0)))
        # The log of a session that was purged and begun anew goes on from another entry.
        if before and getattr(next(entries, None), "id", None) != self.snapshot.last:
            raise SessionPurged(PURGED.format(before)) from cause
        redacted: set[int] = set()
        size = PAGE
        while size == PAGE:
            page: list[Entry] = []
            records: list[Record | None] = []
            try:
                page.extend(islice(entries, PAGE))
            finally:  # what stands before a fault is taken in all the same
                try:
                    decode(page, records)
                finally:
                    self._take_in(page[: len(records)], records, redacted)
            size = len(page)
        self._behind = False
        self._heard |= self.snapshot.number > before
        # What cannot be erased now is hidden all the same. Whoever can write, and can read it all, will erase it.
        with suppress(StoreReadOnly, StoreDamaged, NewerVersion):
            if before:  # what this process put into an index from rounds as they were before
                forget_texts(self._store, self.session_id, self.snapshot, redacted)
            if redacted and self._to_erase:
                self._erase()  # the one who was to do it is still at it, or was interrupted
        return self.snapshot.number > before

    def _take_in(self, page: Sequence[Entry], records: Sequence[Record | None], redacted: set[int]) -> None:
        """Apply entries of the log. Adds to *redacted* the numbers of rounds in which others erased something."""
        own, start = self._own_entries, 0
        for place, (entry, record) in enumerate(zip(page, records, strict=True)):
            if type(record) is PostRedacted and entry.id not in own:
                self._apply(page[start:place], records[start:place])
                number = self.snapshot.number_of(record.round_id)
                redacted.add(number)
                if number and self._is_unfinished(record, number, entry.number):
                    self._to_erase[entry.number] = number
                self._apply([entry], [record])
                self._gone += (references_of(record, number),)
                start = place + 1
            elif entry.round and type(record) is ReductionPublished:  # the store need not be asked for the number
                self.snapshot.archive.numbers[record.reduction.round_id] = entry.round
            elif entry.round and isinstance(record, (ReductionWithdrawn, PostPinned)):
                self.snapshot.archive.numbers[record.round_id] = entry.round
        self._apply(page[start:], records[start:])

    def _apply(self, entries: Sequence[Entry], records: Sequence[Record | None]) -> None:
        try:
            self.snapshot = apply_all(self.snapshot, entries, records)
        except StoreError:  # take in those before the faulty one, which raises again
            for entry, record in zip(entries, records, strict=True):
                self.snapshot = apply_all(self.snapshot, [entry], [record])
            raise
        if self._own_entries:
            own = [pair for pair in zip(entries, records, strict=True) if pair[0].id in self._own_entries]
            self._note_own((entry for entry, _ in own), (record for _, record in own))
            self._own_entries -= {entry.id for entry, _ in own}

    def _is_unfinished(self, record: PostRedacted, number: int, entry: int) -> bool:
        """Return whether the store still has the text that *record* erases: in the round of that *number*, which
        *entry* is about."""
        now = self.snapshot
        settled = number <= now.closed_prefix
        return unfinished(now.archive.before(number, entry) if settled else now.round_at(number), record)

    def _erase(self, *rounds: int) -> None:
        """Erase from the store what its log says is erased, in *rounds* and where it is known not to be done: from its
        index, then from overlays, then from posts."""
        now, begun = self.snapshot, dict(self._to_erase)
        log = list(holding(self._store, self.session_id, [*begun.values(), *rounds]))
        bodies = list(erasures(log, now.archive.numbers.__getitem__))
        numbers = {number for number, _ in bodies}
        said = {entry.round for entry in log if entry.number in numbers and entry.kind in _TEXTS}
        forget_texts(self._store, self.session_id, now, said)
        self._store.redact_all(self.session_id, dict(bodies))
        for number in begun:
            self._to_erase.pop(number, None)

    def _take_news(self) -> _News:
        """Return what nobody was told of yet, for the caller to announce; None where there is nothing."""
        told, total, gone = self._told, self.snapshot.total, self._gone
        if told >= total and not (self._heard or gone):
            return None
        self._told, self._heard, self._gone = max(told, total), False, ()
        return range(told + 1, total + 1), gone

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
