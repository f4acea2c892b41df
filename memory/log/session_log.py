"""A session's log and its snapshot: nothing else writes either."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from ..entries import (
    NAMES,
    Entry,
    PostAdded,
    PostPinned,
    PostRedacted,
    ReductionPublished,
    ReductionWithdrawn,
    RoundOpened,
    RoundUndone,
    decode,
    list_kinds,
)
from ..errors import (
    Conflict,
    EntriesLost,
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
from ..events import Redacted, Rewound
from ..hooks import describe, renew_after_fork
from ..references import make_range_reference
from ..rounds import Clock, Record, make_id
from ..search import forget_texts
from ..stores.base import INTERRUPTED, Joiner, Store
from .redaction import find_erasures, has_erased_text, list_references, read_affected
from .round_store import StoredRounds
from .state import ClosedRounds, ResidentRounds, Snapshot, apply_entries

#: Raised by a store only if certainly nothing was written.
_REFUSALS = (StoreBusy, StoreClosed, StoreFull, StoreReadOnly)
#: Entries between two checkpoints. Opening reads at most so many, beside those of the tail.
CHECKPOINT_EVERY = 1_000
#: Entries that are taken in at once.
PAGE = 256
_TEXTS, _UNDOING = list_kinds(RoundOpened, PostAdded), list_kinds(RoundUndone)
_NO_ENTRIES: frozenset[str] = frozenset()
#: What others erased or undid, and the references.
News = tuple[type[Redacted] | type[Rewound], tuple[str, ...]]
_NO_NEWS: tuple[News, ...] = ()


class Log:
    """The log of one session. A process has one writer at a time; processes notice each other by ``Conflict``.

    ``_announce`` is called for each new round once, with no lock held; ``Memory`` overrides it to call hooks.
    """

    # A dict of more than 30 names shares its keys with no other instance's, and takes a KiB more.
    __slots__ = ("__dict__", "__weakref__", "_clock", "_is_indexed", "_store", "session_id")
    # Ids of the rounds that the next round finishes: the newest that this Memory opened, or those that it took over.
    _own_rounds: tuple[str, ...]
    # The entries being appended, or of the append that failed last; and ids of entries whose append failed. Two
    # attributes, because a successful append needs no ids: only reading on after a failure collects them.
    _appending: Sequence[Entry]
    _own_entries: frozenset[str]
    _joiners: dict[object, Joiner]  # changed without the lock: a compactor that stops waits for no append
    #: Whether ``SessionPurged`` was raised: this Memory cannot write again.
    is_purged = False

    def __init__(self, session_id: str, store: Store, clock: Clock, *, take_over: bool = False) -> None:
        self.session_id = session_id
        self._store = store
        self._clock = clock
        self._is_indexed = "indexed" in store.capabilities
        self._behind = False  # whether the log may have entries of ours that are not known here
        self._heard = False  # whether entries of others were read that were not announced yet
        self._news = _NO_NEWS  # what others erased and undid, not announced yet
        self._to_erase: dict[int, int] = {}  # unfinished redactions: rounds by entry
        self._first: tuple[int, str] | None = None  # number and id of the first entry that was read or written here
        self._after_fork()
        renew_after_fork(self)
        archive_class = StoredRounds if self._is_indexed else ResidentRounds if store.is_resident else ClosedRounds
        archive = archive_class(store, session_id)
        checkpoint = store.get_checkpoint(session_id) if self._is_indexed else None
        resumed = None
        if checkpoint is not None:
            from .checkpoint import resume_from  # defines models; most processes read and write no checkpoint

            resumed = resume_from(checkpoint, archive)
        self.snapshot = resumed or Snapshot(archive)  # replaced under the lock, read without it
        self._checkpoint = self.snapshot.number  # the last entry of the newest checkpoint
        self._catch_up()
        self._announced = self.snapshot.total  # number of the last announced round
        self._heard, self._news = False, _NO_NEWS
        if take_over:
            open_rounds = self.snapshot.open_rounds.values()
            self._own_rounds = tuple(item.opened.round_id for item in open_rounds if item.state == "created")
        self._checkpoint_fault = ""  # class of the error that kept the last one from being stored
        if self._is_indexed:
            self._save_checkpoint(self.snapshot)
            self._checkpoint_fault = ""  # no hook could hear of it yet

    def _after_fork(self) -> None:
        # One writer at a time; held over an append. Re-entrant, so that a signal's handler that writes in the middle of
        # a write is refused instead of waiting for itself for ever.
        self._lock = threading.RLock()
        self._writing = False
        # The parent's rounds and appends stay the parent's: a child that finished its round would end its turn.
        self._own_rounds, self._own_entries, self._appending, self._joiners = (), _NO_ENTRIES, (), {}
        self._writer, self._entry_numbers = (
            make_id()[:24],
            itertools.count(),
        )  # ids of entries: random, then a running number

    def _announce(self, rounds: Iterable[int] = (), news: Iterable[News] = ()) -> None:
        """Announce *news* and numbers of new *rounds*, and that something happened."""

    def _report_checkpoint(self, error: str) -> None:
        """Report that a checkpoint could not be stored."""

    def refresh(self) -> bool:
        """Read the entries that others have written, and return whether there were any. Hooks hear of new rounds.

        For a Memory that only reads: writing reads, too. May raise ``StoreError``, and ``SessionPurged`` if the session
        is gone; go on with a new Memory then.
        """
        return self._write(None)[1]

    def _join_appends(self, database: object, joiner: Joiner) -> Callable[[], object]:
        """Ask *joiner* before each append what is to be done in its transaction, if the store is in *database*. Return
        a function that ends that."""
        if not self._store.is_in(database):
            return lambda: None
        key = object()
        self._joiners[key] = joiner
        return lambda: self._joiners.pop(key, None)

    def _write(
        self,
        records: Callable[[Snapshot], Iterable[Record]] | None,
        created_at: datetime | None = None,
        *,
        emit: bool = False,
    ) -> tuple[Snapshot, bool]:
        """Append the records that *records* makes of the present snapshot; None: read others' entries. Return the new
        snapshot, and whether it has entries of others.

        *records* is called under the lock. If another writer was faster, or wrote about a round that is not known
        here, its entries are read first and *records* is called again. Providers are told of others' entries, and with
        *emit* of these as well. *created_at* is the time of the entries, by default now.
        """
        if created_at is None and records is not None:
            created_at = self._clock()
        rounds, news, heard, written = range(0), _NO_NEWS, False, False
        try:
            with self._lock:
                if self._writing:
                    raise RuntimeError(INTERRUPTED.format("the session"))
                self._writing = True
                try:
                    if self._behind or records is None:
                        self._catch_up()
                    while records is not None and not written:
                        now = self.snapshot
                        try:
                            new = list(records(now))
                        except UnknownRound:
                            if not self._catch_up():
                                raise
                        else:
                            written = not new or self._append_all(now, new, created_at)
                    now = self.snapshot
                finally:
                    rounds = range(self._announced + 1, self.snapshot.total + 1)
                    self._announced = max(self._announced, self.snapshot.total)
                    heard, news = self._heard, self._news
                    self._heard, self._news, self._writing = False, _NO_NEWS, False
        finally:
            if rounds or news or heard or (emit and written):
                self._announce(rounds, news)
        if written and self._is_indexed:
            self._save_checkpoint(now)
        return now, heard

    def _append_all(self, now: Snapshot, records: Sequence[Record], created_at: datetime | None) -> bool:
        """Append *records* behind *now*, and return whether they are in the log. They are not if others were faster;
        then the others' entries are read. If the store's reply is lost, the append counts as done if its entries are
        found in the log at once."""
        opened: dict[str, int] = {}
        erasing: dict[int, int] = {}
        entries: list[Entry] = []
        follows, numbers = now.last, now.archive.numbers
        for number, record in enumerate(records, now.number + 1):
            about = record.reduction if type(record) is ReductionPublished else record
            round_id = getattr(about, "round_id", "")
            if type(record) is RoundOpened:
                round_ = opened[round_id] = now.total + len(opened) + 1
            elif round_id:
                round_ = opened.get(round_id) or numbers.get(round_id) or now.find_number(round_id)
            else:
                round_ = 0
            if type(record) is PostRedacted:
                erasing[number] = round_
            entry_id, kind = f"{self._writer}{next(self._entry_numbers):08x}", NAMES[type(record)]
            entry = Entry(
                kind, record=record, id=entry_id, created_at=created_at, number=number, round=round_, follows=follows
            )
            entries.append(entry)
            follows = ""
        # Whatever goes wrong from here on, the entries may be in the log. Then they are read back as ours.
        self._appending, self._behind = entries, True
        try:
            joiners = tuple(self._joiners.values()) if self._joiners else ()
            work = [do for join in joiners if (do := join(entries)) is not None] if joiners else ()
            append = partial(self._store.append_with, work=work) if work else self._store.append
            append(self.session_id, entries, now.number)
        except Conflict as conflict:
            if not self._catch_up(conflict):
                raise self._make_loss_error() from conflict
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
        self.snapshot = apply_entries(now, entries, records)
        if not now.number:
            self._first = (1, entries[0].id)
        if opened:
            self._own_rounds = (next(reversed(opened)),)
        self._to_erase |= erasing
        self._own_entries, self._appending, self._behind = _NO_ENTRIES, (), False
        return True

    def _catch_up(self, cause: Conflict | None = None) -> bool:
        """Read new entries; return whether there were any. Raises ``SessionPurged``, from *cause*, if the known
        entries are gone, and ``EntriesLost`` if the last of them are."""
        before = self.snapshot.number
        if self._appending:
            self._own_entries |= {entry.id for entry in self._appending}
            self._appending = ()
        entries = iter(self._store.read(self.session_id, max(before - 1, 0)))
        # The log of a session that was purged and begun anew goes on from another entry.
        if before:
            if getattr(next(entries, None), "id", None) != self.snapshot.last:
                raise self._make_loss_error() from cause
            self._first = self._first or (before, self.snapshot.last)
        redacted: set[int] = set()
        size = PAGE
        while size >= PAGE:
            page: list[Entry] = []
            records: list[Record | None] = []
            try:
                page.extend(itertools.islice(entries, PAGE))
                # All rounds that a rewind undoes at once: nobody sees half of it.
                while page and page[-1].kind in _UNDOING and (more := next(entries, None)) is not None:
                    page.append(more)
            finally:
                if page:
                    self._first = self._first or (page[0].number, page[0].id)
                    try:
                        decode(page, records)
                    finally:  # what stands before a fault is taken in all the same
                        self._apply_page(page[: len(records)], records, redacted)
            size = len(page)
        self._behind = False
        self._heard |= self.snapshot.number > before
        # What cannot be erased now is hidden all the same. Whoever can write, and can read it all, will erase it.
        with suppress(StoreReadOnly, StoreDamaged, NewerVersion):
            if before and redacted:  # what this process put into an index from rounds as they were before
                forget_texts(self._store, self.session_id, self.snapshot, redacted)
            if redacted and self._to_erase:
                self._erase()  # the one who was to do it is still at it, or was interrupted
        return self.snapshot.number > before

    def _make_loss_error(self) -> SessionPurged:
        """Return the error for a log in which the last known entry is missing."""
        number, id_ = self._first or (0, "")
        found = next(iter(self._store.read(self.session_id, number - 1, 1)), None) if number else None
        self.is_purged = True
        is_same_log = found is not None and found.id == id_ and number < self.snapshot.number
        return (EntriesLost if is_same_log else SessionPurged).at(self.snapshot.number)

    def _apply_page(self, page: Sequence[Entry], records: Sequence[Record | None], redacted: set[int]) -> None:
        """Apply entries of the log. Adds to *redacted* the numbers of rounds in which others erased something."""
        own, start = self._own_entries, 0
        numbers = self.snapshot.archive.numbers
        for index, (entry, record) in enumerate(zip(page, records, strict=True)):
            if type(record) is PostRedacted and entry.id not in own:
                self._apply(page[start:index], records[start:index])
                now = self.snapshot
                number = now.find_number(record.round_id)
                redacted.add(number)
                if number:
                    is_closed = number <= now.closed_prefix
                    present = (
                        now.archive.read_round_before(number, entry.number) if is_closed else now.get_round_at(number)
                    )
                    if has_erased_text(present, record):
                        self._to_erase[entry.number] = number
                self._apply([entry], [record])
                self._news += ((Redacted, list_references(record, number)),)
                start = index + 1
            elif entry.round and type(record) is ReductionPublished:  # the store need not be asked for the number
                numbers[record.reduction.round_id] = entry.round
            elif entry.round and isinstance(record, (ReductionWithdrawn, PostPinned, RoundUndone)):
                numbers[record.round_id] = entry.round
        self._apply(page[start:], records[start:])
        undone = [entry.round for entry in page if entry.kind in _UNDOING and entry.id not in own]
        if undone:
            self._news += ((Rewound, tuple(map(make_range_reference, undone, undone))),)

    def _apply(self, entries: Sequence[Entry], records: Sequence[Record | None]) -> None:
        try:
            self.snapshot = apply_entries(self.snapshot, entries, records)
        except StoreError:  # take in those before the faulty one, which raises again
            for entry, record in zip(entries, records, strict=True):
                self.snapshot = apply_entries(self.snapshot, [entry], [record])
            raise
        for entry, record in zip(entries, records, strict=True) if self._own_entries else ():
            if entry.id in self._own_entries:
                if type(record) is RoundOpened:
                    self._own_rounds = (record.round_id,)
                elif type(record) is PostRedacted:
                    self._to_erase[entry.number] = entry.round
                self._own_entries -= {entry.id}

    @property
    def has_unfinished_redactions(self) -> bool:
        """Whether the store still has texts that the log says are erased: opening the log could not erase them."""
        return bool(self._to_erase)

    def _erase(self, *rounds: int) -> None:
        """Erase texts from the store that the log says are erased, in *rounds* and in unfinished redactions: from the
        index, then from overlays, then from posts."""
        now, begun = self.snapshot, dict(self._to_erase)
        log = read_affected(self._store, self.session_id, [*begun.values(), *rounds])
        bodies = dict(find_erasures(log, now.find_number))
        rounds_with_texts = {entry.round for entry in log if entry.number in bodies and entry.kind in _TEXTS}
        forget_texts(self._store, self.session_id, now, rounds_with_texts)
        try:
            self._store.redact_all(self.session_id, bodies)
        except KeyError as error:  # the log has ended since it was read
            raise self._make_loss_error() from error
        for number in begun:
            self._to_erase.pop(number, None)

    def _save_checkpoint(self, now: Snapshot) -> None:
        """Store a checkpoint if one is due and no redaction is unfinished: a checkpoint would hide that from the next
        opener."""
        if now.number - self._checkpoint < CHECKPOINT_EVERY or self._to_erase:
            return
        self._checkpoint, fault = now.number, ""
        try:
            from .checkpoint import make_checkpoint  # here, as resume_from above

            self._store.save_checkpoint(self.session_id, make_checkpoint(now))
        except Exception as error:  # noqa: BLE001  (the append succeeded: its writer gets no error)
            # The next opening reads more, and that is all.
            fault = describe(error)
        known, self._checkpoint_fault = self._checkpoint_fault, fault
        if fault not in ("", known):
            self._report_checkpoint(fault)
