"""Closed rounds that are read from the store when somebody asks, and kept in a bounded cache.

The state of such a round is not looked up here: a snapshot knows which rounds were hidden when it was taken.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from ..entries import Entry, PostAdded, PostRedacted, RoundFailed, RoundFinished, RoundOpened, RoundUndone, list_kinds
from ..errors import NewerVersion, SessionPurged, StoreDamaged
from ..hooks import renew_after_fork
from ..rounds import Round
from ..stores.base import Store
from .state import BATCH, ClosedRounds, OpenRound, start_round

#: Rounds and characters that a cache holds at most, and ids of rounds whose numbers it knows.
MAX_ROUNDS, MAX_CHARACTERS, MAX_NUMBERS = 1_024, 16_000_000, 8_192

_KINDS = list_kinds(RoundOpened, PostAdded, RoundFinished, RoundFailed, RoundUndone, PostRedacted)


def rebuild_rounds(entries: Iterable[Entry]) -> dict[int, OpenRound]:
    """Return, by number, the rounds that *entries* make: all entries of these rounds, in the order of the log.

    Raises ``StoreDamaged`` if an entry comes before the opening of its round."""
    rounds: dict[int, OpenRound] = {}
    for entry in entries:
        if entry.kind not in _KINDS:
            continue
        record, number = entry.record, entry.round
        if isinstance(record, RoundOpened):
            rounds[number] = start_round(record, number, entry.number)
        elif number in rounds:
            rounds[number] = rounds[number].apply_record(record)
        else:
            where = f"entry {entry.number} of the log is of round {number}"
            raise StoreDamaged(f"{where}, which is not there; restore the session")
    return rounds


class StoredRounds(ClosedRounds):
    """Any number of threads may read. A fault of the store leaves nothing behind: the next reader asks again."""

    def __init__(self, store: Store, session: str) -> None:
        super().__init__(store, session)
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards the following; never held while the store is asked
        self._cache: OrderedDict[int, tuple[Round, int]] = OrderedDict()  # rounds with their lengths
        self._characters = 0
        self._erasures = 0  # counts erasures: what was read before one may be old
        self._width = BATCH

    def find_number(self, round_id: str) -> int:
        number = self.store.find_round_number(self.session, round_id)
        if number:
            self.numbers[round_id] = number
            self._drop_numbers()
        return number

    def _drop_numbers(self) -> None:
        if len(self.numbers) > MAX_NUMBERS:
            for round_id in list(self.numbers)[: len(self.numbers) // 2]:  # the older half: they can be found again
                self.numbers.pop(round_id, None)

    def get_round(self, number: int, closed_prefix: int) -> Round:
        with self._lock:
            cached = self._cache.get(number)
            if cached is not None:
                with suppress(KeyError):  # dropped by a signal's handler that came between, and read others
                    self._cache.move_to_end(number)
            changes, width = self._erasures, self._width
        return cached[0] if cached is not None else self._read_neighbours(number, closed_prefix, width, changes)

    def read_round_before(self, number: int, entry: int) -> Round:
        entries = self.store.read_rounds(self.session, number, number)
        return _require_round(rebuild_rounds(one for one in entries if one.number < entry), number)

    def add_closed(self, closed_prefix: int, rounds: Sequence[OpenRound]) -> None:  # noqa: ARG002  (they know their numbers)
        with self._lock:
            for one in rounds:
                self._cache_round(one.round, _estimate_length(one.round))
            self._drop_numbers()

    def with_change(self, closed_prefix: int, number: int, change: Callable[[Round], Round]) -> StoredRounds:  # noqa: ARG002
        with self._lock:
            self._erasures += 1
            cached = self._cache.get(number)
            if cached is not None:
                self._cache_round(change(cached[0]), cached[1])
        return self

    def _read_neighbours(self, number: int, closed_prefix: int, width: int, version: int) -> Round:
        """Return a round, read together with its neighbours: most readers ask for them next."""
        first = number - (number - 1) % width
        last = min(first + width - 1, closed_prefix)
        lengths: dict[int, int] = {}

        def read_entries() -> Iterator[Entry]:
            for entry in self.store.read_rounds(self.session, first, last):
                lengths[entry.round] = lengths.get(entry.round, 0) + len(entry.body)
                yield entry

        try:
            rounds = rebuild_rounds(read_entries())
        except (StoreDamaged, NewerVersion):
            if width == 1:
                raise
            return self._read_neighbours(number, closed_prefix, 1, version)  # it may be a neighbour that cannot be read
        found = _require_round(rounds, number)
        mean = sum(lengths.values()) // len(rounds) + 1
        with self._lock:
            self._width = min(BATCH, max(1, MAX_CHARACTERS // (8 * mean)))
            if self._erasures == version:
                for one, item in rounds.items():
                    if item.state != "created" and one not in self._cache:
                        self._cache_round(item.round, lengths[one])
        return found

    def _cache_round(self, round_: Round, length: int) -> None:
        _, before = self._cache.pop(round_.number, (None, 0))
        self._cache[round_.number] = (round_, length)
        self._characters += length - before
        while len(self._cache) > 1 and (len(self._cache) > MAX_ROUNDS or self._characters > MAX_CHARACTERS):
            self._characters -= self._cache.popitem(last=False)[1][1]


def _require_round(rounds: Mapping[int, OpenRound], number: int) -> Round:
    if number not in rounds:
        raise SessionPurged(f"round {number} is not in the log any more, as if purged; go on with a new Memory")
    return rounds[number].round


def _estimate_length(round_: Round) -> int:
    """Return about how many characters a round holds."""
    total = len(round_.user_query) + (len(repr(round_.extra)) if round_.extra else 0)
    for post in round_.post_list:
        total += len(post.message) + sum(len(call.arguments) for call in post.tool_calls)
        total += sum(len(one.content) for one in post.attachment_list)
        total += len(repr(post.extra)) if post.extra else 0
    return total
