"""The state of a session at one moment, and how each entry of the log changes it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, TypeVar

from ..entries import (
    HEADER_MESSAGE,
    NAMES,
    CompactionPrepared,
    CompactionPublished,
    CompactionReverted,
    Entry,
    HeaderAdded,
    PostAdded,
    PostPinned,
    PostRedacted,
    ReductionPublished,
    ReductionWithdrawn,
    RoundFailed,
    RoundFinished,
    RoundOpened,
    RoundUndone,
    UsageRecorded,
)
from ..errors import NewerVersion, SessionPurged, StoreDamaged, StoreError
from ..messages import NO_FIELDS, came_as_message
from ..overlays import CompactedMessage, JournalState, Reduction, Reductions, merge_reductions, without_span
from ..packed import pack_round, unpack_round
from ..rounds import EMPTY, USER, Post, Record, Round, RoundState, copy_with, create_unchecked
from ..stores.base import Store
from ..usage import Pinned, Usage, make_unreadable_pin, read_pinned
from ..values import ValueObject
from ..visibility import Rounds
from .redaction import apply_redaction, erase_posts

R = TypeVar("R", bound=Record)
#: By round id: the round's number, and the numbers of entries about it.
EntriesByRound = Mapping[str, tuple[int, tuple[int, ...]]]

#: Answers and unpublished compactions that are kept for each role, the newest of each. Summaries of single posts would
#: pile up otherwise, and push out a deferred compaction.
MAX_PREPARED = 64
#: Neighbouring entries that are read in one go.
BATCH = 16
#: Maximum places in the log from which overlays are read one by one. From more, all entries of a kind are read at once.
MAX_SPANS = 8
#: Closed rounds that are kept as records. In ``ClosedRounds`` the newest alone, which the next prompt reads; in
#: ``ResidentRounds`` some more, since the next compaction would have to build them from the store.
MAX_UNPACKED, MAX_NEWEST = 1, 4
#: Records that are kept after they were read.
MAX_RECORDS = 4_096

#: Counted in ``Snapshot.said`` for each message beside its texts, and for what is no text, such as an image.
MESSAGE_BOUND, MEDIA_BOUND = 64, 50_000

_NO_REDUCTIONS, _NO_USAGE = Reductions(), Usage()
#: Shared by all snapshots, and never changed.
_NO_ITEMS: Mapping[Any, Any] = {}


_STATES: Mapping[type[Record | None], RoundState] = {RoundFailed: "failed", RoundUndone: "undone"}


@dataclass(slots=True, repr=False)
class OpenRound:
    """A round that may still change. It shares a growing list of posts with its successors and knows how many are its
    own, so adding the thousandth post costs as much as the first.

    It is not frozen, because most entries of the log make one, and that would take thrice as long.
    """

    opened: Final[RoundOpened]
    number: Final[int]
    #: Whether anybody but the user has said something in it; true where the user did not open it.
    answered: Final[bool]
    posts: Final[list[Post]] = field(default_factory=list)
    count: Final[int] = 0
    state: Final[RoundState] = "created"
    #: Who speaks to whom in it: so a role that sees all of its posts need not look at each.
    speakers: Final[frozenset[tuple[str, str]]] = frozenset()
    #: Numbers of entries: the one that opened it, and the newest that closed, failed or erased something in it.
    first_entry: Final[int] = 0
    last_entry: Final[int] = 0
    _round: Round | None = field(default=None, init=False, compare=False)

    @property
    def round(self) -> Round:
        """The round as a record: made when it is first asked for, and the same object from then on."""
        if self._round is None:
            opened, posts = self.opened, tuple(self.posts[: self.count])
            fields: dict[str, Any] = {"id": opened.round_id, "user_query": opened.user_query, "state": self.state}
            fields |= {
                "post_list": posts,
                "created_at": opened.created_at,
                "number": self.number,
                "extra": opened.extra,
            }
            self._round = create_unchecked(Round, fields)
        return self._round

    def apply_record(self, record: Record | None, entry: int = 0) -> OpenRound:
        """Return the round after an entry about it. *entry* is that one's number; 0 if ``last_entry`` stays."""
        opened, answered, posts, count, state = self.opened, self.answered, self.posts, self.count, self.state
        speakers = self.speakers
        if type(record) is PostAdded:
            said = record.post.send_from, record.post.send_to
            speakers = speakers if said in speakers else speakers | {said}
            # Not append(): an interrupted writer may have left a post behind the last one that counts.
            posts[count:] = [record.post]
            answered, count = answered or record.post.send_from != USER, count + 1
        elif type(record) is PostRedacted:
            left = erase_posts(self.round, record.numbers)
            opened = copy_with(opened, user_query=left.user_query, extra=left.extra)
            posts = list(left.post_list)  # readers hold the old list
        elif state not in ("failed", "undone"):
            state = _STATES.get(type(record), "finished")
        first_entry, last_entry = self.first_entry, entry or self.last_entry
        return OpenRound(opened, self.number, answered, posts, count, state, speakers, first_entry, last_entry)


def start_round(opened: RoundOpened, number: int, entry: int) -> OpenRound:
    # Nobody waits for an answer in a round that the user did not open.
    answered = not (opened.user_query or came_as_message(opened.extra))
    return OpenRound(opened, number, answered, first_entry=entry)


class ClosedRounds:
    """The closed rounds of a session, all in one list that only grows. Snapshots share it; each knows how many rounds
    are its own. It also reads records, such as overlays, by the numbers of their entries, and keeps those read last: a
    revert reads all that it will show before it takes the lock."""

    def __init__(self, store: Store, session: str) -> None:
        self.store, self.session = store, session
        #: Numbers of rounds by their ids, also of rounds that are newer than a snapshot.
        self.numbers: dict[str, int] = {}
        self._rounds: list[Round | tuple[Any, ...]] = []  # packed, apart from the newest
        self._records: Mapping[int, Any] = {}  # replaced, never changed

    def find_number(self, round_id: str) -> int:  # noqa: ARG002
        """Return the number of a round that is not in ``numbers``; 0 if there is none."""
        return 0

    def get_round(self, number: int, closed_prefix: int) -> Round:  # noqa: ARG002  (the list knows)
        """Return a round as it was when so many rounds were closed. Its state may be out of date."""
        found = self._rounds[number - 1]
        return found if isinstance(found, Round) else unpack_round(found)

    def read_round_before(self, number: int, entry: int) -> Round:  # noqa: ARG002  (asked while that entry is read)
        """Return a round as the entries before that of number *entry* make it."""
        return self.get_round(number, number)

    def add_closed(self, closed_prefix: int, rounds: Sequence[OpenRound]) -> None:
        """Take over the *rounds* behind the first *closed_prefix*, which are closed."""
        # Not extend(): an interrupted writer may have left more.
        self._rounds[closed_prefix:] = [one.round for one in rounds]
        for index in range(max(closed_prefix - MAX_UNPACKED, 0), len(self._rounds) - MAX_UNPACKED):
            round_ = self._rounds[index]
            if isinstance(round_, Round):
                self._rounds[index] = pack_round(round_)

    def with_change(self, closed_prefix: int, number: int, change: Callable[[Round], Round]) -> ClosedRounds:
        # Readers hold the list, so it is copied. This is rare, and the only step whose cost grows with the history.
        copy = ClosedRounds(self.store, self.session)
        copy.numbers, copy._rounds = self.numbers, self._rounds[:closed_prefix]
        copy._rounds[number - 1] = pack_round(change(self.get_round(number, closed_prefix)))
        return copy

    def read_records(self, numbers: Iterable[int], kind: type[R]) -> Mapping[int, R]:
        """Return the records of these entries, with few questions to the store. Raises ``StoreError``, for instance if
        one is not of that *kind*."""
        known, wanted = self._records, dict.fromkeys(sorted(numbers))
        found = {number: known[number] for number in wanted if number in known}
        if missing := [number for number in wanted if number not in found]:
            with suppress(StoreDamaged, NewerVersion):  # it may be a neighbour that cannot be read
                for entry in self._read_near(missing, kind):
                    if entry.number in wanted and isinstance(record := entry.record, kind):
                        found[entry.number] = record
            for number in missing:
                if number not in found:
                    record = next((one.record for one in self._read_near([number], kind) if one.number == number), None)
                    if not isinstance(record, kind):
                        raise StoreDamaged(f"entry {number} of the log is no {kind.__name__}; restore the session")
                    found[number] = record
            self._records = {**(known if len(known) + len(missing) <= MAX_RECORDS else {}), **found}
        return found

    def _read_near(self, numbers: Iterable[int], kind: type[Record]) -> Iterator[Entry]:
        """Yield these entries and those between neighbours; if they are spread, all of that *kind*."""
        spans: list[tuple[int, int]] = []
        for number in numbers:
            near = spans and number - spans[-1][1] <= BATCH
            spans[-1:] = [(spans[-1][0], number)] if near else [*spans[-1:], (number, number)]
        if len(spans) > MAX_SPANS:
            yield from self.store.read_kinds(self.session, {NAMES[kind]})
        else:
            for first, last in spans:
                yield from self.store.read(self.session, first - 1, last - first + 1)

    def forget_records(self) -> None:
        self._records = {}


class ResidentRounds(ClosedRounds):
    """The closed rounds of a store in this process. They are read from the store, so each text is held once; only the
    newest are kept as records."""

    def __init__(self, store: Store, session: str) -> None:
        super().__init__(store, session)
        #: Of each round the numbers of the entries that opened and closed it.
        self._spans = array("Q")
        #: The newest rounds, each at its number modulo the length.
        self._newest: list[Round | None] = [None] * MAX_NEWEST
        #: The rounds that were changed since, by number; replaced, never changed.
        self._replaced: Mapping[int, tuple[Any, ...]] = {}

    def get_round(self, number: int, closed_prefix: int) -> Round:  # noqa: ARG002
        newest = self._newest[number % MAX_NEWEST]
        if newest is not None and newest.number == number:
            return newest
        if number in self._replaced:
            return unpack_round(self._replaced[number])
        first, last = self._spans[2 * number - 2 : 2 * number]
        read = self.store.read_round(self.session, number, first, last)
        if read is not None and self.numbers.get(read.id) == number:
            return read
        entries = self.store.read(self.session, first - 1, last - first + 1)
        opened = getattr(next(entries, None), "record", None)
        if type(opened) is not RoundOpened or self.numbers.get(opened.round_id) != number:
            raise SessionPurged.at(first)
        found = start_round(opened, number, first)
        for entry in entries:
            record = entry.record
            if getattr(record, "round_id", "") == opened.round_id:
                found = found.apply_record(record)
        return found.round

    def add_closed(self, closed_prefix: int, rounds: Sequence[OpenRound]) -> None:
        del self._spans[2 * closed_prefix :]  # an interrupted writer may have left more, as in ClosedRounds
        for one in rounds:
            self._spans.extend((one.first_entry, one.last_entry))
        for one in rounds[-MAX_NEWEST:]:
            self._newest[one.number % MAX_NEWEST] = one.round

    def with_change(self, closed_prefix: int, number: int, change: Callable[[Round], Round]) -> ResidentRounds:
        copy = ResidentRounds(self.store, self.session)
        copy.numbers, copy._spans = self.numbers, self._spans
        copy._replaced = {**self._replaced, number: pack_round(change(self.get_round(number, closed_prefix)))}
        return copy


@dataclass(frozen=True, eq=False, repr=False)  # no slots: every entry of the log makes a new one, by copying a dict
class Snapshot(ValueObject):
    """A Memory at one moment. Nothing in it changes; of growing lists that it shares, it knows how much is its own."""

    #: Where the rounds before the first open one are found.
    archive: ClosedRounds = field(compare=False)
    #: Number of the last log entry that it takes into account.
    number: int = 0
    #: That entry's id; empty: not known. A session that was purged and begun anew has another one in its place.
    last: str = ""
    header: tuple[Post, ...] = ()
    #: How many rounds come before the first open one.
    closed_prefix: int = 0
    #: The rounds from the first open one on, by number.
    open_rounds: dict[int, OpenRound] = field(default_factory=dict)
    #: How many rounds there are in all.
    total: int = 0
    #: Numbers of the rounds that failed or were undone, ascending; and of those that failed.
    hidden: tuple[int, ...] = ()
    failed: frozenset[int] = frozenset()
    #: By the number of an undone round: the id of the round that begins with copies of its posts, and how many.
    continued: Mapping[int, tuple[str, int]] = field(default_factory=lambda: _NO_ITEMS)
    #: Grows whenever a closed round, or what is shown in its place, changed: then caches made from those are void.
    epoch: int = 0
    #: By role: its state, and its publications that were not reverted, oldest first: each the number of the entry and
    #: of the last round that it covers (0: not known).
    journals: Mapping[str, JournalState] = field(default_factory=lambda: _NO_ITEMS)
    publications: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=lambda: _NO_ITEMS)
    #: Each role's answers of a summarizer that were paid for since its last publication, by the entry's number.
    prepared: Mapping[str, Mapping[int, CompactionPrepared]] = field(default_factory=lambda: _NO_ITEMS)
    #: Each role's current reductions of rounds that its compaction does not cover. A revert reads the others again.
    reductions: Mapping[str, Reductions] = field(default_factory=lambda: _NO_ITEMS)
    #: By role and round id: the round's number, and the entries of its current reductions, in the order of posts.
    reduction_entries: Mapping[str, Mapping[str, tuple[int, tuple[int, ...]]]] = field(
        default_factory=lambda: _NO_ITEMS
    )
    #: What each role's provider counted of its prompts.
    usages: Mapping[str, Usage] = field(default_factory=lambda: _NO_ITEMS)
    #: Round id and number of each pinned post.
    pins: frozenset[tuple[str, int]] = frozenset()
    #: What the pinned posts say, in the order of the log. Every prompt shows it, and no store is asked for it.
    pinned: tuple[Pinned, ...] = ()
    #: How often something was erased. Each time every role gets a new generation, also a role not known yet.
    redactions: int = 0
    #: Which posts of each round were erased since this Memory was opened, by round id, in the order of erasing.
    erased: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: _NO_ITEMS)
    #: Upper bound of the tokens of all that was said since this Memory was opened. Its growth tells at once that a
    #: trigger cannot have become due.
    said: int = field(default=0, compare=False)
    #: Where the header stands in the log.
    header_entries: tuple[int, ...] = ()

    def copy_with(self, **updates: Any) -> Snapshot:
        """Return a copy with *updates*. Takes a tenth of the time of ``dataclasses.replace``."""
        copy = object.__new__(Snapshot)
        object.__setattr__(copy, "__dict__", self.__dict__ | updates)  # it is frozen
        return copy

    def get_rounds(self, role: str = "", *, include_hidden: bool = False) -> Rounds:
        """Return the rounds as *role* sees them."""
        return Rounds(self, role, include_hidden=include_hidden)

    def find_number(self, round_id: str) -> int:
        """Return the number of a round of this snapshot; 0 if there is none of that id. May raise ``StoreError``.

        The store is not asked for rounds with pinned posts: every prompt looks them up, also while the store is away.
        """
        number = self.archive.numbers.get(round_id)
        if not number:
            pinned = (one.round for one in self.pinned if one.round_id == round_id)
            number = next(pinned, 0) or self.archive.find_number(round_id)
        return number if number <= self.total else 0

    def get_round_at(self, number: int) -> Round:
        """Return the round of that number, hidden or not; there must be one. May raise ``StoreError``."""
        if number > self.closed_prefix:
            return self.open_rounds[number].round
        found = self.archive.get_round(number, self.closed_prefix)
        if not self.hidden and found.state == "finished":
            return found
        state = self._get_closed_state(number)
        return found if found.state == state else copy_with(found, state=state)

    def _get_closed_state(self, number: int) -> RoundState:
        index = bisect_left(self.hidden, number)
        if self.hidden[index : index + 1] != (number,):
            return "finished"
        return "failed" if number in self.failed else "undone"

    def find_round(self, round_id: str) -> Round | None:
        """Return a round, hidden or not; None if there is none of that id."""
        number = self.find_number(round_id)
        return self.get_round_at(number) if number else None

    def find_state(self, round_id: str) -> RoundState | None:
        """Return a round's state without reading its posts; None if there is none of that id."""
        number = self.find_number(round_id)
        if number in self.open_rounds:
            return self.open_rounds[number].state
        if not number:
            return None
        return self._get_closed_state(number) if self.hidden else "finished"

    def find_open_round(self, round_id: str) -> OpenRound | None:
        """Return a round that takes posts; None if there is none of that id."""
        found = self.open_rounds.get(self.total)
        if found is None or found.opened.round_id != round_id:  # seldom
            found = self.open_rounds.get(self.find_number(round_id))
        return found if found is not None and found.state == "created" else None

    def get_journal(self, role: str) -> JournalState:
        return self.journals.get(role) or JournalState(self.redactions)

    def list_published_before(self, role: str, number: int) -> tuple[tuple[int, int], ...]:
        """Return *role*'s publications that do not cover the round of that *number*: entries and ends."""
        return tuple((entry, end) for entry, end in self.publications.get(role, ()) if end < number)

    def get_overlay_version(self, role: str) -> tuple[int, int, int]:
        """Return numbers that change whenever *role*'s overlays do, or rounds are hidden."""
        return self.get_journal(role).generation, self.reductions.get(role, _NO_REDUCTIONS).version, len(self.hidden)

    def list_reductions(self, role: str, round_id: str) -> tuple[Reduction, ...]:
        """Return *role*'s current reductions of a round, covered or not. May raise ``StoreError``."""
        shown = self.reductions.get(role, _NO_REDUCTIONS).by_round.get(round_id)
        if shown is not None:
            return shown
        _, entries = self.reduction_entries.get(role, {}).get(round_id, (0, ()))
        found = self.archive.read_records(entries, ReductionPublished)
        return tuple(found[entry].reduction for entry in entries)

    def count_reductions(self, role: str) -> int:
        """Return how many current reductions *role* has, without reading any."""
        return sum(len(entries) for _, entries in self.reduction_entries.get(role, {}).values())

    def list_shown_reductions(self, role: str, current: CompactedMessage | None) -> Mapping[str, tuple[Reduction, ...]]:
        """Return *role*'s current reductions of the rounds that the model's text in *current* does not cover."""
        covered = current.model_end_number if current is not None else 0
        known = self.reductions.get(role, _NO_REDUCTIONS).by_round
        entries_by_round = self.reduction_entries.get(role, {}).items()
        shown = {round_id: entries for round_id, (number, entries) in entries_by_round if number > covered}
        missing = [entry for round_id, entries in shown.items() if round_id not in known for entry in entries]
        self.archive.read_records(missing, ReductionPublished)  # all in one go
        return {round_id: self.list_reductions(role, round_id) for round_id in shown}

    def with_publications(
        self,
        role: str,
        generation: int,
        left: tuple[tuple[int, int], ...],
        *,
        current: CompactedMessage | None = None,
        revert_round_id: str | None = None,
    ) -> Snapshot:
        """Return the snapshot in which only *left* remains of *role*'s publications. *current* is the last of them, and
        is read if it is not given. Prepared answers are stale then, and the next prompt has another length. May raise
        ``StoreError``."""
        if left and current is None:
            entry, current = left[-1][0], self.get_journal(role).current
            if left[-1:] != self.publications.get(role, ())[-1:]:
                current = self.archive.read_records([entry], CompactionPublished)[entry].compaction
        reductions, epoch = self.reductions, self.epoch
        if role in reductions:
            before, shown = reductions[role], self.list_shown_reductions(role, current)
            reductions = {**reductions, role: Reductions(before.version, shown)}
            # Rounds that are shown again may have been counted without their reductions.
            epoch += not shown.keys() <= before.by_round.keys()
        return self.copy_with(
            journals={**self.journals, role: JournalState(generation, current, revert_round_id)},
            publications={**self.publications, role: left},
            prepared={other: answers for other, answers in self.prepared.items() if other != role},
            reductions=reductions,
            usages=forget_length(self.usages, role) if role in self.usages else self.usages,
            epoch=epoch,
        )

    def with_reductions(self, role: str, round_id: str, reductions: tuple[Reduction, ...]) -> Snapshot:
        """Return the snapshot with *reductions* as those of *role* on a round. The last entry published the new one."""
        number, entries_by_round = self.find_number(round_id), dict(self.reduction_entries.get(role, {}))
        _, entries = entries_by_round.pop(round_id, (number, ()))
        known = dict(zip(map(_get_span, self.list_reductions(role, round_id)), entries, strict=True))
        by_round = dict(self.reductions.get(role, _NO_REDUCTIONS).by_round)
        by_round.pop(round_id, None)
        current = self.get_journal(role).current
        if reductions:
            entries_by_round[round_id] = number, tuple(known.get(_get_span(one), self.number) for one in reductions)
            if current is None or number > current.model_end_number:
                by_round[round_id] = reductions
        return self.copy_with(
            reductions={**self.reductions, role: Reductions(self.number, by_round)},
            reduction_entries={**self.reduction_entries, role: entries_by_round},
            usages=forget_length(self.usages, role) if role in self.usages else self.usages,
            epoch=self.epoch + (number <= self.closed_prefix),
        )

    def with_pinned(self, posts: Iterable[Pinned]) -> Snapshot:
        """Return the snapshot in which those *posts* are pinned, and no others."""
        pinned = tuple(sorted(posts))
        return self.copy_with(pinned=pinned, pins=frozenset((one.round_id, one.number) for one in pinned))

    def without_pins(self, round_id: str, numbers: Iterable[int]) -> Snapshot:
        """Return the snapshot in which those posts of a round are not pinned."""
        gone = {(round_id, number) for number in numbers}
        if self.pins.isdisjoint(gone):
            return self
        return self.with_pinned(one for one in self.pinned if (one.round_id, one.number) not in gone)


def _get_span(one: Reduction) -> tuple[int, int]:
    return one.first_number, one.last_number  # no two current ones of a round overlap


def forget_length(usages: Mapping[str, Usage], role: str) -> Mapping[str, Usage]:
    """Return *usages* without the length of *role*'s newest prompt, because the next one will differ."""
    return {**usages, role: copy_with(usages[role], input_tokens=None)}


def apply_entries(now: Snapshot, entries: Sequence[Entry], records: Sequence[Record | None]) -> Snapshot:
    """Return the snapshot after more *entries* of the log, which hold *records*. Raises ``StoreError`` for an entry
    that does not fit there."""
    # The entries of every turn come first and are told apart by class alone: isinstance() is slow for pydantic's
    # classes. One snapshot is made for each.
    for entry, record in zip(entries, records, strict=True):
        number = entry.number
        if type(record) is PostAdded:
            taking = now.find_open_round(record.round_id)
            if taking is None:
                raise StoreError(f"entry {number} of the log adds to a round that is not open; restore the session")
            open_rounds = now.open_rounds | {taking.number: taking.apply_record(record)}
            said = now.said + measure_record(record)
            now = now.copy_with(number=number, last=entry.id, open_rounds=open_rounds, said=said)
        elif type(record) is RoundOpened:
            total = now.total + 1
            now.archive.numbers[record.round_id] = total
            open_rounds = now.open_rounds | {total: start_round(record, total, number)}
            said = now.said + measure_record(record)
            now = now.copy_with(number=number, last=entry.id, open_rounds=open_rounds, total=total, said=said)
        else:
            now = now.copy_with(number=number, last=entry.id)
            if type(record) is RoundFinished or type(record) is RoundFailed or type(record) is RoundUndone:
                now = _close_round(now, record)
            elif type(record) is HeaderAdded:
                now = _add_header(now, record.post)
            elif type(record) is PostRedacted:
                now = apply_redaction(now, record)
            else:
                now = _apply_overlay(now, record)
    return now


def _add_header(now: Snapshot, post: Post) -> Snapshot:
    """Return the snapshot after a system message, which the last entry holds. A host may give another one with each
    call, so one that replaces an appended message takes the place of the replacement before."""
    index = len(now.header)
    if post.kind.startswith(HEADER_MESSAGE):
        part = post.kind, post.send_to
        index = next((at for at, one in enumerate(now.header) if (one.kind, one.send_to) == part), index)
    header, entries = list(now.header), list(now.header_entries)
    header[index : index + 1], entries[index : index + 1] = [post], [now.number]
    return now.copy_with(header=tuple(header), header_entries=tuple(entries))


def preview_records(now: Snapshot, records: Iterable[Record]) -> Snapshot:
    """Return *now* as it will be after *records*, which add messages and are not written yet: for adding more behind
    them. It knows the open rounds and the number of all."""
    for record in records:
        if type(record) is RoundOpened:
            total = now.archive.numbers[record.round_id] = now.total + 1
            now = now.copy_with(total=total, open_rounds=now.open_rounds | {total: start_round(record, total, 0)})
        elif type(record) is HeaderAdded:
            now = now.copy_with(header=(*now.header, record.post))
        elif (taking := now.find_open_round(getattr(record, "round_id", ""))) is not None:
            if type(record) is PostAdded:
                now = now.copy_with(open_rounds=now.open_rounds | {taking.number: taking.apply_record(record)})
            else:
                now = now.copy_with(
                    open_rounds={number: one for number, one in now.open_rounds.items() if one is not taking}
                )
    return now


def measure_record(record: PostAdded | RoundOpened) -> int:
    """Return what ``Snapshot.said`` counts of a post or a query."""
    if isinstance(record, RoundOpened):
        return MESSAGE_BOUND + _estimate_bound(record.user_query, record.extra)
    post = record.post
    said = MESSAGE_BOUND + _estimate_bound(post.message, post.extra) + 4 * (len(post.send_from) + len(post.send_to))
    for call in post.tool_calls:
        said += 2 * MESSAGE_BOUND + _estimate_bound(call.arguments, EMPTY) + 4 * (len(call.name) + len(call.id))
    for one in post.attachment_list:
        said += MESSAGE_BOUND + _estimate_bound(one.content, one.extra)
    return said


def _estimate_bound(text: str, extra: object) -> int:
    """Return the bytes of *text*, or more, and of *extra* as JSON: each is a token at most."""
    tokens = len(text) if text.isascii() else 4 * len(text)
    if extra is EMPTY or extra is NO_FIELDS:
        return tokens
    if isinstance(extra, str):
        return tokens + 6 * len(extra)
    if isinstance(extra, Mapping):
        tokens += 0 if extra.get("type", "text") == "text" else MEDIA_BOUND
        return tokens + sum([8 + _estimate_bound("", part) for pair in extra.items() for part in pair])
    return tokens + (sum([2 + _estimate_bound("", part) for part in extra]) if isinstance(extra, (list, tuple)) else 32)


def _close_round(now: Snapshot, record: RoundFinished | RoundFailed | RoundUndone) -> Snapshot:
    """Return the snapshot after a round was closed. Closed rounds before the first open one go to the archive."""
    state, hides = now.find_state(record.round_id), type(record) is not RoundFinished
    if state is None:
        raise StoreError(f"entry {now.number} of the log closes a round that it does not have; restore the session")
    if state in ("failed", "undone") or (state == "finished" and not hides):
        return now
    number, closed_prefix = now.find_number(record.round_id), now.closed_prefix
    if hides:
        index = bisect_left(now.hidden, number)
        failed = now.failed if type(record) is RoundUndone else now.failed | {number}
        now = now.copy_with(hidden=(*now.hidden[:index], number, *now.hidden[index:]), failed=failed)
        now = withdraw_covering(now, number)
        if type(record) is RoundUndone:
            now = _undo_round(now, record, number)
        if number <= closed_prefix:
            return now.copy_with(epoch=now.epoch + 1)
    open_rounds = now.open_rounds | {number: now.open_rounds[number].apply_record(record, now.number)}
    closed = list(takewhile(lambda item: item.state != "created", open_rounds.values()))
    if closed:
        now.archive.add_closed(closed_prefix, [open_rounds.pop(item.number) for item in closed])
    return now.copy_with(closed_prefix=closed_prefix + len(closed), open_rounds=open_rounds)


def withdraw_covering(now: Snapshot, number: int) -> Snapshot:
    """Return the snapshot without the compactions that cover a round, which is hidden now, so that nothing tells of it.
    Each role that loses one gets a new generation, so that a summary that is being made from that one is stale.

    May raise ``StoreError``, because it reads the compaction that is shown instead: try it before the round is hidden
    in the log."""
    for role, published in now.publications.items():
        if any(end >= number for _, end in reversed(published)):  # the last one reaches furthest
            state, left = now.get_journal(role), now.list_published_before(role, number)
            now = now.with_publications(role, state.generation + 1, left, revert_round_id=state.revert_round_id)
    return now


def _undo_round(now: Snapshot, record: RoundUndone, number: int) -> Snapshot:
    """Return the snapshot without the pins of an undone round. The next prompts have other lengths."""
    if record.continued_in:
        now = now.copy_with(continued={**now.continued, number: (record.continued_in, record.copied)})
    for role in [role for role, usage in now.usages.items() if usage.input_tokens is not None]:
        now = now.copy_with(usages=forget_length(now.usages, role))
    if any(one.round == number for one in now.pinned):
        now = now.with_pinned(one for one in now.pinned if one.round != number)
    return now


def revert_publication(now: Snapshot, role: str, generation: int) -> Snapshot:
    """Return the snapshot in which *role*'s last publication is taken back.

    May raise ``StoreError``, because it reads the compaction before that. So try it before the revert is written:
    nobody could read the log behind one that fails."""
    newest = now.get_round_at(now.total).id if now.total else ""
    return now.with_publications(role, generation, now.publications.get(role, ())[:-1], revert_round_id=newest)


def _apply_overlay(now: Snapshot, record: Record | None) -> Snapshot:
    """Return the snapshot after an entry that changes how the log reads, or corrects a count."""
    match record:
        case CompactionPrepared(role=role, base=base) if base == now.get_journal(role).generation:
            answers = {**now.prepared.get(role, {}), now.number: record}
            is_step = record.compaction is None
            alike = [number for number, one in answers.items() if (one.compaction is None) == is_step]
            if len(alike) > MAX_PREPARED:
                del answers[alike[0]]
            return now.copy_with(prepared={**now.prepared, role: answers})
        case CompactionPublished(role=role, compaction=compaction):
            published = (*now.publications.get(role, ()), (now.number, compaction.end_number or 0))
            return now.with_publications(role, compaction.generation, published, current=compaction)
        case CompactionReverted(role=role, generation=generation):
            return revert_publication(now, role, generation)
        case ReductionPublished(role=role, reduction=reduction):
            merged = merge_reductions(now.list_reductions(role, reduction.round_id), reduction)
            return now if merged is None else now.with_reductions(role, reduction.round_id, merged)
        case ReductionWithdrawn(role=role, round_id=round_id, first_number=first, last_number=last):
            current = now.list_reductions(role, round_id)
            left = without_span(current, first, last)
            return now if len(left) == len(current) else now.with_reductions(role, round_id, left)
        case UsageRecorded(role=role, input_tokens=tokens, counted=counted, current=current, cached_tokens=cached):
            usage = now.usages.get(role, _NO_USAGE).with_prompt(tokens, counted, current=current, cached_tokens=cached)
            return now.copy_with(usages={**now.usages, role: usage})
        case PostPinned(round_id=round_id, number=post, pinned=False):
            return now.without_pins(round_id, (post,))
        case PostPinned(round_id=round_id, number=post) if (round_id, post) not in now.pins:
            return _pin_post(now, round_id, post)
        case _:  # stale, pinned already, or a kind that only a newer version knows
            return now


def _pin_post(now: Snapshot, round_id: str, post: int) -> Snapshot:
    """Return the snapshot in which a post is pinned. May raise ``StoreError``, because it reads the post."""
    number = now.find_number(round_id)
    if not number:
        raise StoreError(f"entry {now.number} of the log pins in a round that is not there; restore the session")
    try:
        found = read_pinned(now.get_round_at(number), post)
    except (StoreDamaged, NewerVersion):
        found = make_unreadable_pin(round_id, number, post)
    return now.with_pinned((*now.pinned, found))
