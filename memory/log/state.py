"""The state of a session at one moment, and what each entry of the log makes of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from ..entries import (
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
    UsageRecorded,
)
from ..errors import NewerVersion, StoreDamaged, StoreError
from ..messages import came_as_message
from ..overlays import CompactedMessage, JournalState, Reduction, Reductions, merge_reductions, without_span
from ..rounds import USER, Post, Record, Round, RoundState, copy_with, create_unchecked
from ..stores.base import Store
from ..usage import Pinned, Usage, read_pinned, unreadable_pin
from ..visibility import Rounds
from .redaction import with_redacted, without

if TYPE_CHECKING:
    from .round_store import StoredRounds

R = TypeVar("R", bound=Record)

#: Answers and unpublished compactions that are kept for each role, the newest of each. Summaries of single posts would
#: pile up otherwise, and push out a deferred compaction.
MAX_PREPARED = 64
#: Neighbouring entries that are read in one go.
BATCH = 16
#: Places in the log from which reductions are read one after the other. From more, all reductions are read in one go.
MAX_SPANS = 8
#: Older compactions and covered reductions that are kept after they were read.
MAX_COMPACTIONS, MAX_REDUCTIONS = 16, 4_096


# --- rounds: open ones, and closed ones in memory -----------------------------------------------------------------


@dataclass(slots=True)
class OpenRound:
    """A round that may still change. It shares a growing list of posts with its successors and knows how many are its
    own, so adding the thousandth post costs what the first did.

    Its fields are final. It is not frozen, because most entries of the log make one, and that would take thrice as
    long.
    """

    opened: Final[RoundOpened]
    number: Final[int]
    #: Whether anybody but the user has said something in it; true where the user did not open it.
    answered: Final[bool]
    posts: Final[list[Post]] = field(default_factory=list)
    count: Final[int] = 0
    state: Final[RoundState] = "created"
    _round: Round | None = field(default=None, init=False, compare=False)

    @property
    def round(self) -> Round:
        """The round as a record: made when it is first asked for, and the same object from then on."""
        if self._round is None:
            opened = self.opened
            fields = {
                "id": opened.round_id,
                "user_query": opened.user_query,
                "state": self.state,
                "post_list": tuple(self.posts[: self.count]),
                "created_at": opened.created_at,
                "number": self.number,
                "extra": opened.extra,
            }
            self._round = create_unchecked(Round, fields)
        return self._round

    def with_post(self, post: Post) -> OpenRound:
        # Not append(): an interrupted writer may have left a post behind the last one that counts.
        self.posts[self.count :] = [post]
        answered = self.answered or post.send_from != USER
        return OpenRound(self.opened, self.number, answered, self.posts, self.count + 1, self.state)

    def closed_as(self, state: RoundState) -> OpenRound:
        if self.state in ("failed", state):
            return self
        return OpenRound(self.opened, self.number, self.answered, self.posts, self.count, state)

    def without(self, numbers: Iterable[int]) -> OpenRound:
        """Return it with these posts erased. Readers hold the list of posts, so the new one has its own."""
        left = without(self.round, numbers)
        opened = copy_with(self.opened, user_query=left.user_query, extra=left.extra)
        return OpenRound(opened, self.number, self.answered, list(left.post_list), self.count, self.state)


def open_round_of(opened: RoundOpened, number: int) -> OpenRound:
    # Nobody waits for an answer in a round that the user did not open.
    return OpenRound(opened, number, answered=not (opened.user_query or came_as_message(opened.extra)))


class Numbers(Protocol):
    """The number of each round in the log, by its id."""

    def __contains__(self, round_id: object, /) -> bool: ...
    def __getitem__(self, round_id: str, /) -> int: ...
    def __setitem__(self, round_id: str, number: int, /) -> None: ...
    def get(self, round_id: str, default: int, /) -> int: ...


class PublishedOverlays:
    """Reads overlays from the log, by the numbers of their entries. What was read last is kept: a revert reads all that
    it will show before it takes the lock."""

    def __init__(self, store: Store | None, session: str) -> None:
        self._store = store
        self._session = session
        self._compactions: Mapping[int, CompactedMessage] = {}  # these two are replaced, never changed
        self._reductions: Mapping[int, Reduction] = {}

    def forget_overlays(self) -> None:
        self._compactions, self._reductions = {}, {}

    def compaction(self, entry: int) -> CompactedMessage:
        """Return the compaction that this entry published. May raise ``StoreError``."""
        known = self._compactions
        found = known.get(entry)
        if found is None:
            found = record_at(self._store, self._session, entry, CompactionPublished).compaction
            self._compactions = {**(known if len(known) < MAX_COMPACTIONS else {}), entry: found}
        return found

    def reductions(self, entries: Iterable[int]) -> Mapping[int, Reduction]:
        """Return the reductions that these entries published, with few questions to the store. May raise
        ``StoreError``."""
        known = self._reductions
        wanted = sorted(set(entries))
        found = {number: known[number] for number in wanted if number in known}
        missing = dict.fromkeys(number for number in wanted if number not in found)
        if not missing:
            return found
        with suppress(StoreDamaged, NewerVersion):  # it may be a neighbour that cannot be read
            for entry in self._entries_near(missing):
                if entry.number in missing and isinstance(record := entry.record, ReductionPublished):
                    found[entry.number] = record.reduction
        for number in missing:
            if number not in found:
                found[number] = record_at(self._store, self._session, number, ReductionPublished).reduction
        self._reductions = {**(known if len(known) + len(missing) <= MAX_REDUCTIONS else {}), **found}
        return found

    def _entries_near(self, numbers: Iterable[int]) -> Iterator[Entry]:
        """Give the entries of these numbers with those between neighbours; where they are spread, all that publish
        reductions."""
        spans: list[tuple[int, int]] = []
        for number in numbers:
            near = spans and number - spans[-1][1] <= BATCH
            spans[-1:] = [(spans[-1][0], number)] if near else [*spans[-1:], (number, number)]
        if len(spans) > MAX_SPANS and self._store is not None:
            yield from self._store.read_kinds(self._session, {NAMES[ReductionPublished]})
            return
        for first, last in spans:
            if self._store is not None:
                yield from self._store.read(self._session, first - 1, last - first + 1)


def record_at(store: Store | None, session: str, number: int, kind: type[R]) -> R:
    """Return what the entry of that *number* says. Raises ``StoreDamaged`` where it is not of that *kind*."""
    for entry in store.read(session, number - 1, 1) if store is not None else ():
        if entry.number == number and isinstance(record := entry.record, kind):
            return record
    raise StoreDamaged(f"entry {number} of the log is no {kind.__name__}; restore the session")


class ResidentRounds(PublishedOverlays):
    """The closed rounds of a session, all in one list that only grows. Snapshots share it; each knows how many rounds
    are its own."""

    def __init__(
        self,
        store: Store | None = None,
        session: str = "",
        rounds: list[Round] | None = None,
        numbers: dict[str, int] | None = None,
    ) -> None:
        super().__init__(store, session)
        self._rounds = [] if rounds is None else rounds
        self.numbers: dict[str, int] = {} if numbers is None else numbers  # shared, and growing like the list

    def round(self, number: int, settled: int, failed: Sequence[int]) -> Round:  # noqa: ARG002  (the list knows)
        return self._rounds[number - 1]

    def before(self, number: int, entry: int) -> Round:  # noqa: ARG002  (asked while that entry is read)
        return self._rounds[number - 1]

    def settle(self, settled: int, rounds: Sequence[Round]) -> None:
        self._rounds[settled:] = rounds  # not extend(): an interrupted writer may have left more

    def with_failed(self, settled: int, number: int) -> ResidentRounds:
        return self._with(settled, copy_with(self._rounds[number - 1], state="failed"))

    def with_redacted(self, settled: int, number: int, posts: Iterable[int]) -> ResidentRounds:
        return self._with(settled, without(self._rounds[number - 1], posts))

    def _with(self, settled: int, round_: Round) -> ResidentRounds:
        # Readers hold the list, so it is copied. This is rare, and the only step whose cost grows with the history.
        rounds = self._rounds[:settled]
        rounds[round_.number - 1] = round_
        return ResidentRounds(self._store, self._session, rounds, self.numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ResidentRounds):
            return NotImplemented
        return (self._rounds, self.numbers) == (other._rounds, other.numbers)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ResidentRounds({self._rounds!r})"


# --- the snapshot -------------------------------------------------------------------------------------------------


class Publication(NamedTuple):
    """Where a published compaction stands in the log."""

    entry: int
    #: Number of the last round that it covers; 0: not known.
    end_number: int


class ReductionPlaces(NamedTuple):
    """Where the live reductions of one round stand in the log."""

    #: The round's number.
    round: int
    #: The numbers of the entries, in the order of the posts that the reductions are on.
    entries: tuple[int, ...]


@dataclass(frozen=True)  # no slots: every entry of the log makes a new one, by copying a dict
class Snapshot:
    """A Memory at one moment. Nothing in it changes. Lists that it shares with its successors only grow, and it knows
    how much of them is its own."""

    #: Number of the last log entry that it takes into account.
    number: int = 0
    #: That entry's id. A session that was purged and begun anew has another one in its place. Empty: not known.
    last: str = ""
    header: tuple[Post, ...] = ()
    #: Where the rounds before the first open one are found, and how many they are.
    archive: ResidentRounds | StoredRounds = field(default_factory=ResidentRounds)
    closed_prefix: int = 0
    #: The rounds from the first open one on.
    live: tuple[OpenRound, ...] = ()
    #: How many rounds there are in all.
    total: int = 0
    #: Numbers of the failed rounds, ascending.
    failed: tuple[int, ...] = ()
    #: Grows whenever a closed round, or what is shown in its place, changed. Caches of what was worked out from closed
    #: rounds hold while it stays the same.
    epoch: int = 0
    #: Each role's publications, and those that were not reverted, oldest first.
    journals: Mapping[str, JournalState] = field(default_factory=dict)
    published: Mapping[str, tuple[Publication, ...]] = field(default_factory=dict)
    #: Each role's answers of a summarizer that were paid for since its last publication.
    prepared: Mapping[str, tuple[CompactionPrepared, ...]] = field(default_factory=dict)
    #: Each role's live reductions of rounds that its compaction does not cover. The others are read again by a revert.
    reductions: Mapping[str, Reductions] = field(default_factory=dict)
    #: Where all live reductions of each role stand in the log, by round id.
    reduction_places: Mapping[str, Mapping[str, ReductionPlaces]] = field(default_factory=dict)
    #: What each role's provider counted of its prompts.
    usages: Mapping[str, Usage] = field(default_factory=dict)
    #: Round id and number of each pinned post.
    pins: frozenset[tuple[str, int]] = frozenset()
    #: What the pinned posts say, in the order of the log. Every prompt shows it, and no store is asked for it.
    pinned: tuple[Pinned, ...] = ()
    #: Numbers of the rounds with pinned posts, by their ids.
    pinned_rounds: Mapping[str, int] = field(default_factory=dict)
    #: How often something was erased. Each time every role gets a new generation, also a role not known yet.
    redactions: int = 0
    #: Which posts of each round were erased since this Memory was opened, by round id, in the order of erasing.
    erased: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: Where the header and the prepared answers stand in the log.
    header_entries: tuple[int, ...] = ()
    prepared_entries: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def copy_with(self, **changes: Any) -> Snapshot:
        """Return a copy with *changes*. Takes a tenth of the time of ``dataclasses.replace``."""
        copy = object.__new__(Snapshot)
        object.__setattr__(copy, "__dict__", self.__dict__ | changes)  # it is frozen
        return copy

    @property
    def numbers(self) -> Numbers:
        """The number of a round by its id; it may know of newer rounds than this snapshot has."""
        return self.archive.numbers

    def rounds(self, role: str = "", *, include_failed: bool = False) -> Rounds:
        """Return the rounds as *role* sees them."""
        return Rounds(self, role, include_failed=include_failed)

    def number_of(self, round_id: str) -> int:
        """Return the number of a round of this snapshot; 0 where there is none of that id. The store is not asked for
        rounds with pinned posts, which every prompt looks up."""
        number = self.pinned_rounds.get(round_id, 0) or self.archive.numbers.get(round_id, 0)
        return number if 1 <= number <= self.total else 0

    def round_at(self, number: int) -> Round:
        """Return the round of that number, failed or not; there must be one. May raise ``StoreError``."""
        if number > self.closed_prefix:
            return self.live[number - self.closed_prefix - 1].round
        return self.archive.round(number, self.closed_prefix, self.failed)

    def rounds_at(self, numbers: Iterable[int]) -> list[Round]:
        """Return the rounds of those numbers, as ``round_at`` does."""
        return [self.round_at(number) for number in numbers]

    def round(self, round_id: str) -> Round | None:
        """Return a round, failed or not; None where there is none of that id."""
        number = self.number_of(round_id)
        return self.round_at(number) if number else None

    def state_of(self, round_id: str) -> RoundState | None:
        """Return a round's state without reading its posts; None where there is none of that id."""
        number = self.number_of(round_id)
        if not number:
            return None
        if number > self.closed_prefix:
            return self.live[number - self.closed_prefix - 1].state
        return "failed" if self.has_failed(number) else "finished"

    def has_failed(self, number: int) -> bool:
        """Return whether the round of that number has failed, without reading it."""
        place = bisect_left(self.failed, number)
        return place < len(self.failed) and self.failed[place] == number

    def open_round(self, round_id: str) -> OpenRound | None:
        """Return a round that takes posts; None where there is none of that id."""
        newest = self.live[-1] if self.live else None
        if newest is not None and newest.opened.round_id == round_id:  # nearly always
            return newest if newest.state == "created" else None
        place = self.archive.numbers.get(round_id, 0) - self.closed_prefix - 1
        found = self.live[place] if 0 <= place < len(self.live) else None
        return found if found is not None and found.state == "created" else None

    def journal(self, role: str) -> JournalState:
        return self.journals.get(role) or JournalState(self.redactions)

    def published_before(self, role: str, number: int) -> tuple[Publication, ...]:
        """Return what *role* published that does not cover the round of that *number*."""
        return tuple(one for one in self.published.get(role, ()) if one.end_number < number)

    def overlays_of(self, role: str) -> tuple[int, int]:
        """Return two numbers that change whenever *role*'s overlays do."""
        return self.journal(role).generation, self.reductions.get(role, _NO_REDUCTIONS).version

    def reductions_on(self, role: str, round_id: str) -> tuple[Reduction, ...]:
        """Return *role*'s live reductions of a round, covered or not. May raise ``StoreError``."""
        shown = self.reductions.get(role, _NO_REDUCTIONS).by_round.get(round_id)
        if shown is not None:
            return shown
        places = self.reduction_places.get(role, {}).get(round_id)
        if places is None:
            return ()
        found = self.archive.reductions(places.entries)
        return tuple(found[entry] for entry in places.entries)

    def count_reductions(self, role: str) -> int:
        """Return how many live reductions *role* has, without reading any."""
        return sum(len(places.entries) for places in self.reduction_places.get(role, {}).values())

    def read_ahead(self, role: str, kept: tuple[Publication, ...]) -> None:
        """Read what *role* is shown when only *kept* is left of its publications, so that nothing is left to read under
        the lock. May raise ``StoreError``."""
        same = kept == self.published.get(role, ())
        current = self.journal(role).current if same else self.archive.compaction(kept[-1].entry) if kept else None
        self._shown_reductions(role, current)

    def read_ahead_without(self, number: int) -> None:
        """Read what each role is shown when all compactions that cover the round of that *number* are withdrawn. May
        raise ``StoreError``."""
        for role in self.journals:
            self.read_ahead(role, self.published_before(role, number))

    def live_with(self, changed: OpenRound) -> tuple[OpenRound, ...]:
        """Return the rounds that may still change, with *changed* in that round's place."""
        place = changed.number - self.closed_prefix - 1
        return (*self.live[:place], changed, *self.live[place + 1 :])

    def without_posts(self, number: int, posts: Iterable[int]) -> Snapshot:
        """Return the snapshot in which those *posts* of the round of that *number* are erased."""
        self.archive.forget_overlays()
        if number > self.closed_prefix:
            redacted = self.live[number - self.closed_prefix - 1].without(posts)
            return self.copy_with(epoch=self.epoch + 1, live=self.live_with(redacted))
        archive = self.archive.with_redacted(self.closed_prefix, number, posts)
        return self.copy_with(epoch=self.epoch + 1, archive=archive)

    def with_pin(self, round_id: str, number: int) -> Snapshot:
        """Return the snapshot in which a post is pinned. May raise ``StoreError``, because it reads the post."""
        if (round_id, number) in self.pins:
            return self
        place = self.number_of(round_id)
        if not place:
            raise StoreError(f"entry {self.number} of the log pins in a round that is not there; restore the session")
        try:
            found = read_pinned(self.round_at(place), number)
        except (StoreDamaged, NewerVersion):
            found = unreadable_pin(round_id, place, number)
        return self.with_pinned((*self.pinned, found))

    def without_pins(self, round_id: str, numbers: Iterable[int]) -> Snapshot:
        """Return the snapshot in which those posts of a round are not pinned."""
        gone = {(round_id, number) for number in numbers}
        if self.pins.isdisjoint(gone):
            return self
        return self.with_pinned(one for one in self.pinned if (one.round_id, one.number) not in gone)

    def with_pinned(self, posts: Iterable[Pinned]) -> Snapshot:
        """Return the snapshot in which those *posts* are pinned, and no others."""
        pinned = tuple(sorted(posts))
        return self.copy_with(
            pins=frozenset((one.round_id, one.number) for one in pinned),
            pinned=pinned,
            pinned_rounds={one.round_id: one.round for one in pinned},
        )

    def with_publications(
        self,
        role: str,
        generation: int,
        kept: tuple[Publication, ...],
        *,
        current: CompactedMessage | None = None,
        revert_round_id: str | None = None,
    ) -> Snapshot:
        """Return the snapshot in which *kept* is left of *role*'s publications; the last of them is *current*.

        The current compaction is read from the log where it is neither given nor the current one already. May raise
        ``StoreError``.
        """
        if kept and current is None:
            same = kept[-1:] == self.published.get(role, ())[-1:]
            current = self.journal(role).current if same else self.archive.compaction(kept[-1].entry)
        now = self.copy_with(
            journals={**self.journals, role: JournalState(generation, current, revert_round_id)},
            published={**self.published, role: kept},
        )
        return now.with_shown_reductions(role)

    def with_shown_reductions(self, role: str) -> Snapshot:
        """Return the snapshot that holds *role*'s reductions behind its compaction, and no others. May raise
        ``StoreError``."""
        held = self.reductions.get(role)
        if held is None:
            return self
        by_round = self._shown_reductions(role, self.journal(role).current)
        if by_round.keys() == held.by_round.keys():
            return self
        # Rounds that are shown again may have been counted without their reductions.
        return self.copy_with(
            reductions={**self.reductions, role: Reductions(held.version, by_round)},
            epoch=self.epoch + (not by_round.keys() <= held.by_round.keys()),
        )

    def _shown_reductions(self, role: str, current: CompactedMessage | None) -> Mapping[str, tuple[Reduction, ...]]:
        """Return *role*'s live reductions of the rounds that the model's text in *current* does not cover. Those that
        are not held are read in one go."""
        covered = current.model_end_number if current is not None else 0
        held = self.reductions.get(role, _NO_REDUCTIONS).by_round
        shown = {
            round_id: places.entries
            for round_id, places in self.reduction_places.get(role, {}).items()
            if places.round > covered
        }
        missing = [entry for round_id, entries in shown.items() if round_id not in held for entry in entries]
        found = self.archive.reductions(missing) if missing else {}
        return {
            round_id: held[round_id] if round_id in held else tuple(found[entry] for entry in entries)
            for round_id, entries in shown.items()
        }

    def with_reductions(self, role: str, round_id: str, live: tuple[Reduction, ...]) -> Snapshot:
        """Return the snapshot with *live* as *role*'s reductions of a round. One of them that is new was published by
        the last entry."""
        number = self.archive.numbers[round_id]
        places = dict(self.reduction_places.get(role, {}))
        before = places.pop(round_id, ReductionPlaces(number, ()))
        known = dict(zip(map(_span, self.reductions_on(role, round_id)), before.entries, strict=True))
        by_round = dict(self.reductions.get(role, _NO_REDUCTIONS).by_round)
        by_round.pop(round_id, None)
        current = self.journal(role).current
        if live:
            places[round_id] = ReductionPlaces(number, tuple(known.get(_span(one), self.number) for one in live))
            if current is None or number > current.model_end_number:
                by_round[round_id] = live
        return self.copy_with(
            reductions={**self.reductions, role: Reductions(self.number, by_round)},
            reduction_places={**self.reduction_places, role: places},
            epoch=self.epoch + (number <= self.closed_prefix),
        ).with_other_prompt(role)

    def with_other_prompt(self, role: str) -> Snapshot:
        """Return the snapshot without the length of *role*'s newest prompt, because the next one will differ."""
        usage = self.usages.get(role)
        if usage is None or usage.input_tokens is None:
            return self
        return self.copy_with(usages={**self.usages, role: copy_with(usage, input_tokens=None)})

    def without_stale(self, role: str) -> Snapshot:
        """Return the snapshot without *role*'s prepared answers, which were made from another generation."""
        return self.copy_with(
            prepared={other: answers for other, answers in self.prepared.items() if other != role},
            prepared_entries={other: entries for other, entries in self.prepared_entries.items() if other != role},
        )


def _span(one: Reduction) -> tuple[int, int]:
    """Return what tells a live reduction from the others of its round: no two overlap."""
    return one.first_number, one.last_number


_NO_REDUCTIONS, _NO_USAGE = Reductions(), Usage()


# --- what each entry of the log makes of a snapshot ---------------------------------------------------------------


def apply_all(now: Snapshot, entries: Sequence[Entry], records: Sequence[Record | None]) -> Snapshot:
    """Return the snapshot after more entries of the log, which say *records*. Raises ``StoreError`` for an entry that
    does not fit there."""
    # The entries of every turn come first and are told apart by class alone: isinstance() is slow for pydantic's
    # classes. One snapshot is made for each.
    for entry, record in zip(entries, records, strict=True):
        number = entry.number
        if type(record) is PostAdded:
            taking = now.open_round(record.round_id)
            if taking is None:
                raise StoreError(f"entry {number} of the log adds to a round that is not open; restore the session")
            live = now.live_with(taking.with_post(record.post))
            now = now.copy_with(number=number, last=entry.id, live=live)
        elif type(record) is RoundOpened:
            total = now.total + 1
            now.archive.numbers[record.round_id] = total
            live = (*now.live, open_round_of(record, total))
            now = now.copy_with(number=number, last=entry.id, live=live, total=total)
        else:
            now = now.copy_with(number=number, last=entry.id)
            if type(record) is RoundFinished:
                closing = now.open_round(record.round_id)
                if closing is not None:
                    now = _close(now, closing.closed_as("finished"))
                else:
                    _require_round(now, record.round_id)  # a closed one stays as it is
            elif type(record) is RoundFailed:
                now = _fail(now, record.round_id)
            elif type(record) is HeaderAdded:
                now = now.copy_with(header=(*now.header, record.post), header_entries=(*now.header_entries, number))
            elif type(record) is PostRedacted:
                now = with_redacted(now, record)
            else:
                now = _apply_overlay(now, record)
    return now


def _close(now: Snapshot, closed: OpenRound) -> Snapshot:
    """Return the snapshot with *closed* in its round's place. Closed rounds before the first open one leave the live
    ones and stay as they are from then on."""
    live = now.live_with(closed)
    rounds: list[Round] = []
    for item in live:
        if item.state == "created":
            break
        rounds.append(item.round)
    if rounds:
        now.archive.settle(now.closed_prefix, rounds)
    return now.copy_with(closed_prefix=now.closed_prefix + len(rounds), live=live[len(rounds) :])


def _fail(now: Snapshot, round_id: str) -> Snapshot:
    if _require_round(now, round_id) == "failed":
        return now
    place, settled = now.archive.numbers[round_id], now.closed_prefix
    now = without_failed(now.copy_with(failed=tuple(sorted((*now.failed, place)))), place)
    if place <= settled:
        return now.copy_with(archive=now.archive.with_failed(settled, place), epoch=now.epoch + 1)
    return _close(now, now.live[place - settled - 1].closed_as("failed"))


def _require_round(now: Snapshot, round_id: str) -> RoundState:
    """Return the state of the round that the last entry closes. Raises ``StoreError`` where there is none."""
    state = now.state_of(round_id)
    if state is None:
        raise StoreError(f"entry {now.number} of the log closes a round that it does not have; restore the session")
    return state


def without_failed(now: Snapshot, number: int) -> Snapshot:
    """Return the snapshot without the compactions that cover a failed round, so that nothing tells of it. Each role
    that loses one gets a new generation: what is being made from that one tells of the round, too.

    May raise ``StoreError``, because it reads what is shown instead. So it is tried before the failure is written, too.
    """
    for role, state in now.journals.items():
        kept = now.published_before(role, number)
        if len(kept) < len(now.published.get(role, ())):
            held = state.revert_round_id
            now = now.without_stale(role).with_publications(role, state.generation + 1, kept, revert_round_id=held)
            now = now.with_other_prompt(role)
    return now


def revert(now: Snapshot, role: str, generation: int) -> Snapshot:
    """Return the snapshot in which *role*'s last publication is taken back.

    May raise ``StoreError``, because it reads the compaction before that. So it is tried before the revert is written,
    too: nobody could read the log behind one that fails.
    """
    newest = now.round_at(now.total).id if now.total else ""
    kept = now.published.get(role, ())[:-1]
    now = now.without_stale(role).with_publications(role, generation, kept, revert_round_id=newest)
    return now.with_other_prompt(role)


def _apply_overlay(now: Snapshot, record: Record | None) -> Snapshot:
    """Return the snapshot after an entry that changes how the log reads, or corrects a count."""
    match record:
        case CompactionPrepared(role=role, base=base):
            return now if base != now.journal(role).generation else _with_prepared(now, role, record)
        case CompactionPublished(role=role, compaction=compaction):
            kept = (*now.published.get(role, ()), Publication(now.number, compaction.end_number or 0))
            now = now.without_stale(role)
            now = now.with_publications(role, compaction.generation, kept, current=compaction)
            return now.with_other_prompt(role)
        case CompactionReverted(role=role, generation=generation):
            return revert(now, role, generation)
        case ReductionPublished(role=role, reduction=reduction):
            merged = merge_reductions(now.reductions_on(role, reduction.round_id), reduction)
            return now if merged is None else now.with_reductions(role, reduction.round_id, merged)
        case ReductionWithdrawn(role=role, round_id=round_id, first_number=first, last_number=last):
            live = now.reductions_on(role, round_id)
            left = without_span(live, first, last)
            return now if len(left) == len(live) else now.with_reductions(role, round_id, left)
        case UsageRecorded(role=role, input_tokens=tokens, counted=counted, current=current, cached_tokens=cached):
            usage = now.usages.get(role, _NO_USAGE).after(tokens, counted, current=current, cached_tokens=cached)
            return now.copy_with(usages={**now.usages, role: usage})
        case PostPinned(round_id=round_id, number=place, pinned=pinned):
            return now.with_pin(round_id, place) if pinned else now.without_pins(round_id, (place,))
        case _:  # a kind that only a newer version knows
            return now


def _with_prepared(now: Snapshot, role: str, record: CompactionPrepared) -> Snapshot:
    answers = (*now.prepared.get(role, ()), record)
    alike = [at for at, one in enumerate(answers) if (one.compaction is None) == (record.compaction is None)]
    out = alike[0] if len(alike) > MAX_PREPARED else len(answers)
    entries = (*now.prepared_entries.get(role, ()), now.number)
    return now.copy_with(
        prepared={**now.prepared, role: answers[:out] + answers[out + 1 :]},
        prepared_entries={**now.prepared_entries, role: entries[:out] + entries[out + 1 :]},
    )
