"""Where a Memory finds the rounds before the first open one: all in lists, or read from the store when somebody asks.

The state of such a round is not looked for here by whoever takes a snapshot: it knows which rounds had failed then.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from ..entries import NAMES, CompactionPublished, Entry, ReductionPublished
from ..errors import NewerVersion, SessionPurged, StoreDamaged
from ..hooks import renewed_after_fork
from ..overlays import CompactedMessage, Reduction
from ..rounds import Record, Round
from ..stores.base import Store
from .open_round import rebuilt
from .redaction import without

#: Rounds and characters that a cache holds at most, and ids of rounds whose numbers it knows.
MAX_ROUNDS, MAX_CHARACTERS, MAX_NUMBERS = 1_024, 16_000_000, 8_192
#: Neighbours that are read in one go, where they are not long.
BATCH = 16
#: Places in the log from which reductions are read one after the other; where there are more, all are read in one go.
MAX_SPANS = 8
#: Texts of older compactions that are kept at hand.
AT_HAND = 16

PURGED = "entry {} is gone from the log of this session, as if it had been purged; go on with a new Memory"

R = TypeVar("R", bound=Record)


class Numbers(Protocol):
    """The number of each round in the log, by its id."""

    def __contains__(self, round_id: object, /) -> bool: ...
    def __getitem__(self, round_id: str, /) -> int: ...
    def get(self, round_id: str, default: int, /) -> int: ...


class Archive(Protocol):
    """The settled rounds of one session: those before the first open one. Any number of threads may read."""

    @property
    def numbers(self) -> Numbers: ...

    @property
    def keeps_all(self) -> bool:
        """Whether it holds everything in memory, so that there is nothing to win by letting go of other things."""

    def round(self, number: int, settled: int, failed: Sequence[int]) -> Round:
        """Return a round as it was when there were so many settled ones, and those numbers had failed."""

    def before(self, number: int, entry: int) -> Round:
        """Return a round as the entries before that of number *entry* make it."""

    def note(self, round_id: str, number: int) -> None:
        """Take note of a round's number."""

    def settle(self, settled: int, rounds: Sequence[Round]) -> None:
        """Take over the *rounds* behind the first *settled*."""

    def with_failed(self, settled: int, number: int) -> Archive:
        """Return the archive in which that round has failed. This one need not know it."""

    def with_redacted(self, settled: int, number: int, posts: Iterable[int]) -> Archive:
        """Return the archive in which those *posts* of that round are erased."""

    def compaction(self, entry: int) -> CompactedMessage:
        """Return what was published by the entry of that number. May raise ``StoreError``."""

    def reductions(self, entries: Iterable[int]) -> Mapping[int, Reduction]:
        """Return what was published by the entries of those numbers, read in few goes. May raise ``StoreError``."""


class _Published:
    """Reads overlays from the log, by the numbers of their entries."""

    def __init__(self, store: Store | None, session: str) -> None:
        self._store = store
        self._session = session
        self._read_last: Mapping[int, CompactedMessage] = {}  # replaced, never changed

    def compaction(self, entry: int) -> CompactedMessage:
        known = self._read_last
        found = known.get(entry)
        if found is None:
            found = record_at(self._store, self._session, entry, CompactionPublished).compaction
            # What is read before a revert is written is at hand when it is written.
            self._read_last = {**(known if len(known) < AT_HAND else {}), entry: found}
        return found

    def reductions(self, entries: Iterable[int]) -> Mapping[int, Reduction]:
        wanted = dict.fromkeys(sorted(entries))
        spans: list[tuple[int, int]] = []
        for number in wanted:
            near = spans and number - spans[-1][1] <= BATCH
            spans[-1:] = [(spans[-1][0], number)] if near else [*spans[-1:], (number, number)]
        found: dict[int, Reduction] = {}
        with suppress(StoreDamaged, NewerVersion):  # it may be a neighbour that cannot be read
            for entry in self._entries_in(spans):
                if entry.number in wanted and isinstance(record := entry.record, ReductionPublished):
                    found[entry.number] = record.reduction
        for number in wanted:
            if number not in found:
                found[number] = record_at(self._store, self._session, number, ReductionPublished).reduction
        return found

    def _entries_in(self, spans: Sequence[tuple[int, int]]) -> Iterator[Entry]:
        """Give the entries of a few *spans* of the log, or, where there are many, all that publish reductions."""
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


class ResidentRounds(_Published):
    """All settled rounds in a list, which only ever grows: snapshots share it and know how much is their own."""

    keeps_all = True

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

    def before(self, number: int, entry: int) -> Round:  # noqa: ARG002  (it is asked while that entry is read)
        return self._rounds[number - 1]

    def note(self, round_id: str, number: int) -> None:
        self.numbers[round_id] = number

    def settle(self, settled: int, rounds: Sequence[Round]) -> None:
        self._rounds[settled:] = rounds  # not extend(): an interrupted writer may have left more

    def with_failed(self, settled: int, number: int) -> ResidentRounds:
        return self._with(settled, self._rounds[number - 1].model_copy(update={"state": "failed"}))

    def with_redacted(self, settled: int, number: int, posts: Iterable[int]) -> ResidentRounds:
        self._read_last = {}
        return self._with(settled, without(self._rounds[number - 1], posts))

    def _with(self, settled: int, changed: Round) -> ResidentRounds:
        """Readers hold the list, so it is copied: rare, and the only step that costs what the history does."""
        rounds = self._rounds[:settled]
        rounds[changed.number - 1] = changed
        return ResidentRounds(self._store, self._session, rounds, self.numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ResidentRounds):
            return NotImplemented
        return (self._rounds, self.numbers) == (other._rounds, other.numbers)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ResidentRounds({self._rounds!r})"


class StoredRounds(_Published):
    """Settled rounds are read from the store and kept in a bounded cache. What a reader is told of a store's fault
    spoils nothing: the next one asks the store again."""

    keeps_all = False

    def __init__(
        self,
        store: Store,
        session: str,
        *,
        most_rounds: int = MAX_ROUNDS,
        most_characters: int = MAX_CHARACTERS,
        most_numbers: int = MAX_NUMBERS,
    ) -> None:
        super().__init__(store, session)
        self._indexed = store
        self._most_rounds, self._most_characters = most_rounds, most_characters
        self.numbers = _StoredNumbers(store, session, most_numbers)
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        """Begin anew: another thread of the parent may have been in the middle of a change."""
        self._lock = threading.RLock()  # guards all that follows; never held while the store is asked
        self._cache: OrderedDict[int, tuple[Round, int]] = OrderedDict()  # with its length; that used last is last
        self._characters = 0
        self._changes = 0  # how often a round in the log became another one: what was read before may be old
        self._width = BATCH

    def round(self, number: int, settled: int, failed: Sequence[int]) -> Round:
        with self._lock:
            held = self._cache.get(number)
            if held is not None:
                with suppress(KeyError):  # dropped by a signal's handler that came between, and read others
                    self._cache.move_to_end(number)
            changes, width = self._changes, self._width
        found = held[0] if held is not None else self._read(number, settled, width, changes)
        place = bisect_left(failed, number)
        state = "failed" if place < len(failed) and failed[place] == number else "finished"
        return found if found.state == state else found.model_copy(update={"state": state})

    def before(self, number: int, entry: int) -> Round:
        entries = self._indexed.read_rounds(self._session, number, number)
        return self._found(rebuilt(one for one in entries if one.number < entry), number)

    def note(self, round_id: str, number: int) -> None:
        self.numbers.note(round_id, number)

    def settle(self, settled: int, rounds: Sequence[Round]) -> None:  # noqa: ARG002  (they know their numbers)
        with self._lock:
            for round_ in rounds:
                self._put(round_, _length(round_))

    def with_failed(self, settled: int, number: int) -> StoredRounds:  # noqa: ARG002
        return self  # a snapshot says itself what has failed

    def with_redacted(self, settled: int, number: int, posts: Iterable[int]) -> StoredRounds:  # noqa: ARG002
        self._read_last = {}
        with self._lock:
            self._changes += 1
            held = self._cache.pop(number, None)
            if held is not None:
                self._characters -= held[1]
                self._put(without(held[0], posts), held[1])
        return self

    def _read(self, number: int, settled: int, width: int, changes: int) -> Round:
        """Return a round that is read with its neighbours, which readers that go in either direction ask for next."""
        first = number - (number - 1) % width
        last = min(first + width - 1, settled)
        lengths: dict[int, int] = {}

        def read() -> Iterable[Any]:
            for entry in self._indexed.read_rounds(self._session, first, last):
                lengths[entry.round] = lengths.get(entry.round, 0) + len(entry.body)
                yield entry

        try:
            rounds = {place: live.round for place, live in rebuilt(read()).items()}
        except (StoreDamaged, NewerVersion):
            if width == 1:
                raise
            return self._read(number, settled, 1, changes)  # it may be a neighbour that cannot be read
        found = self._found(rounds, number)
        mean = sum(lengths.values()) // len(rounds) + 1
        with self._lock:
            self._width = min(BATCH, max(1, self._most_characters // (8 * mean)))
            if self._changes == changes:
                for place, round_ in rounds.items():
                    if round_.closed and place not in self._cache:
                        self._put(round_, lengths[place])
        return found

    def _found(self, rounds: Mapping[int, Any], number: int) -> Round:
        found = rounds.get(number)
        if found is None:
            raise SessionPurged(
                f"round {number} is not in the log any more, as if it had been purged; go on with a new Memory"
            )
        return found if isinstance(found, Round) else found.round

    def _put(self, round_: Round, length: int) -> None:
        before = self._cache.pop(round_.number, None)
        self._cache[round_.number] = (round_, length)
        self._characters += length - (before[1] if before is not None else 0)
        while len(self._cache) > 1 and (
            len(self._cache) > self._most_rounds or self._characters > self._most_characters
        ):
            self._characters -= self._cache.popitem(last=False)[1][1]

    def __repr__(self) -> str:  # no content
        return f"<StoredRounds: {len(self._cache)} rounds in the cache>"


class _StoredNumbers:
    """The numbers of rounds: those that were asked for last, and the store for all others."""

    def __init__(self, store: Store, session: str, most: int) -> None:
        self._store = store
        self._session = session
        self._most = most
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards _known; never held while the store is asked
        self._known: OrderedDict[str, int] = OrderedDict()

    def note(self, round_id: str, number: int) -> None:
        with self._lock:
            self._known.pop(round_id, None)
            self._known[round_id] = number
            while len(self._known) > self._most:
                self._known.popitem(last=False)

    def get(self, round_id: str, default: int = 0) -> int:
        with self._lock:
            number = self._known.pop(round_id, 0)
            if number:
                self._known[round_id] = number
                return number
        number = self._store.round_number(self._session, round_id)
        if number:
            self.note(round_id, number)
        return number or default

    def __getitem__(self, round_id: str) -> int:
        number = self.get(round_id)
        if not number:
            raise KeyError(round_id)
        return number

    def __contains__(self, round_id: object) -> bool:
        return isinstance(round_id, str) and self.get(round_id) > 0


def _length(round_: Round) -> int:
    """Return about how many characters a round holds."""
    total = len(round_.user_query) + (len(repr(round_.extra)) if round_.extra else 0)
    for post in round_.post_list:
        total += len(post.message) + sum(len(call.arguments) for call in post.tool_calls)
        total += sum(len(one.content) for one in post.attachment_list)
        total += len(repr(post.extra)) if post.extra else 0
    return total


# --- one role's live reductions by their rounds, each with the number of its entry in the log ---------------------


class Place(NamedTuple):
    """Where one round's reductions stand."""

    #: The round's number.
    round: int
    #: The numbers of the entries, in the order of the posts that the reductions are on.
    entries: tuple[int, ...]


class Shelf(Mapping[str, tuple[Reduction, ...]]):
    """What ``Reductions.by_round`` is in a Memory. It never changes."""

    __slots__ = ("_archive", "_held", "places")

    def __init__(
        self,
        archive: Archive,
        places: Mapping[str, Place] | None = None,
        held: Mapping[str, tuple[Reduction, ...]] | None = None,
    ) -> None:
        self._archive = archive
        #: By the round's id.
        self.places: Mapping[str, Place] = {} if places is None else places
        self._held: Mapping[str, tuple[Reduction, ...]] = {} if held is None else held

    def get(self, round_id: str, default: Any = None, /) -> Any:
        # Prompts ask for every round that they show: most have none, and those that have are held.
        held = self._held.get(round_id)
        if held is not None:
            return held
        return self._read(round_id) if round_id in self.places else default

    def __getitem__(self, round_id: str) -> tuple[Reduction, ...]:
        held = self._held.get(round_id)
        return self._read(round_id) if held is None else held

    @property
    def count(self) -> int:
        """How many reductions there are, for which none is read."""
        return sum(len(place.entries) for place in self.places.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, round_id: object) -> bool:
        return round_id in self.places

    def __repr__(self) -> str:
        return f"Shelf({self._held!r})"

    def with_round(self, round_id: str, number: int, live: tuple[Reduction, ...], entry: int) -> Shelf:
        """Return it with *live* as the reductions of a round; one of them that is new was published by *entry*."""
        places, held = dict(self.places), dict(self._held)
        before = places.pop(round_id, Place(number, ()))
        known = dict(zip(map(_span, held.pop(round_id, None) or self.get(round_id, ())), before.entries, strict=True))
        if live:
            places[round_id] = Place(number, tuple(known.get(_span(one), entry) for one in live))
            held[round_id] = live
        return Shelf(self._archive, places, held)

    def reaching_back_to(self, covered: int) -> Shelf:
        """Return it with what is on the rounds after *covered* held in memory."""
        shown = {round_id: place.entries for round_id, place in self.places.items() if place.round > covered}
        missing = [entry for round_id, entries in shown.items() if round_id not in self._held for entry in entries]
        found = self._archive.reductions(missing) if missing else {}
        held = {
            round_id: self._held.get(round_id) or tuple(found[entry] for entry in entries)
            for round_id, entries in shown.items()
        }
        return Shelf(self._archive, self.places, held)

    def _read(self, round_id: str) -> tuple[Reduction, ...]:
        entries = self.places[round_id].entries
        found = self._archive.reductions(entries)
        return tuple(found[entry] for entry in entries)


def _span(one: Reduction) -> tuple[int, int]:
    """Return what tells a live reduction from the others of its round: no two overlap."""
    return one.first_number, one.last_number
