"""Closed rounds that are read from the store when somebody asks, and kept in a bounded cache.

The state of such a round is not looked up here: a snapshot knows which rounds had failed when it was taken.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from ..entries import Entry, PostAdded, PostRedacted, RoundFailed, RoundFinished, RoundOpened, kinds_of
from ..errors import NewerVersion, SessionPurged, StoreDamaged
from ..hooks import renew_after_fork
from ..rounds import Round, copy_with
from ..stores.base import Store
from .redaction import without
from .state import BATCH, OpenRound, PublishedOverlays, open_round_of

#: Rounds and characters that a cache holds at most, and ids of rounds whose numbers it knows.
MAX_ROUNDS, MAX_CHARACTERS, MAX_NUMBERS = 1_024, 16_000_000, 8_192

PURGED = "entry {} is gone from the log of this session, as if it had been purged; go on with a new Memory"

_KINDS = kinds_of(RoundOpened, PostAdded, RoundFinished, RoundFailed, PostRedacted)


def rebuild(entries: Iterable[Entry]) -> dict[int, OpenRound]:
    """Return, by their numbers, the rounds that *entries* make. The entries are all that these rounds have in the log,
    in its order.

    Raises ``StoreDamaged`` where an entry's round is not opened before it.
    """
    rounds: dict[int, OpenRound] = {}
    for entry in entries:
        if entry.kind not in _KINDS:
            continue
        record, before = entry.record, rounds.get(entry.round)
        if isinstance(record, RoundOpened):
            rounds[entry.round] = open_round_of(record, entry.round)
        elif before is None:
            raise StoreDamaged(
                f"entry {entry.number} of the log is of round {entry.round}, which is not there; restore the session"
            )
        elif isinstance(record, PostAdded):
            rounds[entry.round] = before.with_post(record.post)
        elif isinstance(record, PostRedacted):
            rounds[entry.round] = before.without(record.numbers)
        else:
            rounds[entry.round] = before.closed_as("failed" if isinstance(record, RoundFailed) else "finished")
    return rounds


class StoredRounds(PublishedOverlays):
    """The closed rounds of a session. Any number of threads may read. A fault of the store leaves nothing behind: the
    next reader asks again."""

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
        self.numbers = StoredNumbers(store, session, most_numbers)
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        """Begin anew: another thread of the parent may have been in the middle of a change."""
        self._lock = threading.RLock()  # guards all that follows; never held while the store is asked
        self._cache: OrderedDict[int, tuple[Round, int]] = OrderedDict()  # with its length; that used last is last
        self._characters = 0
        self._changes = 0  # how often a round in the log became another one: what was read before may be old
        self._width = BATCH

    def round(self, number: int, settled: int, failed: Sequence[int]) -> Round:
        """Return a round as it was when so many rounds were closed, and those numbers had failed."""
        with self._lock:
            held = self._cache.get(number)
            if held is not None:
                with suppress(KeyError):  # dropped by a signal's handler that came between, and read others
                    self._cache.move_to_end(number)
            changes, width = self._changes, self._width
        found = held[0] if held is not None else self._read(number, settled, width, changes)
        place = bisect_left(failed, number)
        state = "failed" if place < len(failed) and failed[place] == number else "finished"
        return found if found.state == state else copy_with(found, state=state)

    def before(self, number: int, entry: int) -> Round:
        """Return a round as the entries before that of number *entry* make it."""
        entries = self._indexed.read_rounds(self._session, number, number)
        return _require(rebuild(one for one in entries if one.number < entry), number)

    def settle(self, settled: int, rounds: Sequence[Round]) -> None:  # noqa: ARG002  (they know their numbers)
        """Take over the *rounds* behind the first *settled*."""
        with self._lock:
            for round_ in rounds:
                self._put(round_, _length(round_))

    def with_failed(self, settled: int, number: int) -> StoredRounds:  # noqa: ARG002
        return self  # a snapshot says itself what has failed

    def with_redacted(self, settled: int, number: int, posts: Iterable[int]) -> StoredRounds:  # noqa: ARG002
        with self._lock:
            self._changes += 1
            held = self._cache.pop(number, None)
            if held is not None:
                self._characters -= held[1]
                self._put(without(held[0], posts), held[1])
        return self

    def _read(self, number: int, settled: int, width: int, changes: int) -> Round:
        """Return a round, read together with its neighbours: most readers ask for them next."""
        first = number - (number - 1) % width
        last = min(first + width - 1, settled)
        lengths: dict[int, int] = {}

        def read() -> Iterator[Entry]:
            for entry in self._indexed.read_rounds(self._session, first, last):
                lengths[entry.round] = lengths.get(entry.round, 0) + len(entry.body)
                yield entry

        try:
            rounds = rebuild(read())
        except (StoreDamaged, NewerVersion):
            if width == 1:
                raise
            return self._read(number, settled, 1, changes)  # it may be a neighbour that cannot be read
        found = _require(rounds, number)
        mean = sum(lengths.values()) // len(rounds) + 1
        with self._lock:
            self._width = min(BATCH, max(1, self._most_characters // (8 * mean)))
            if self._changes == changes:
                for place, item in rounds.items():
                    if item.state != "created" and place not in self._cache:
                        self._put(item.round, lengths[place])
        return found

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


def _require(rounds: Mapping[int, OpenRound], number: int) -> Round:
    found = rounds.get(number)
    if found is None:
        raise SessionPurged(
            f"round {number} is not in the log any more, as if it had been purged; go on with a new Memory"
        )
    return found.round


class StoredNumbers:
    """The numbers of rounds by their ids: it knows those that were used last, and asks the store for all others."""

    def __init__(self, store: Store, session: str, most: int) -> None:
        self._store = store
        self._session = session
        self._most = most
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards _known; never held while the store is asked
        self._known: OrderedDict[str, int] = OrderedDict()

    def __setitem__(self, round_id: str, number: int) -> None:
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
            self[round_id] = number
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
