"""The texts of a session in its store's index: kept in step with the log, and searched.

The index has the settled rounds up to some number. What came later is searched in memory, in the same way, so that
a store with an index gives the answers of one without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..entries import PostRedacted
from ..errors import SessionPurged, StoreBusy, StoreDamaged, StoreFull, StoreReadOnly
from ..log.archive import PURGED
from ..log.erased import without
from ..rounds import Round
from ..stores.base import SearchableStore, Store, StoredText
from .search import Hit, hit_in, ranked, texts_of

if TYPE_CHECKING:
    from ..log.snapshot import Snapshot
    from ..visibility import Rounds

__all__ = ["forgotten", "found", "in_step"]

#: Rounds that are read and handed over at once. Who appends to a SQLite file meanwhile waits for as long: a tenth of
#: a second.
BATCH = 25
#: Rounds that a search hands over before it looks: those that are left cost it more than that each time.
MOST_ROUNDS = 2_000


def found(
    store: Store,
    session: str,
    snapshot: Snapshot,
    words: Sequence[str],
    role: str = "",
    *,
    most_rounds: int = MOST_ROUNDS,
) -> list[Hit]:
    """Return where any of *words* is in the texts that *role* sees, in rounds that have not failed: best match first.

    *words* are those of ``words_of``. At most *most_rounds* are handed to the store's index before. Raises
    ``StoreError`` where the store cannot be read; one that cannot be written is searched all the same.
    """
    hits: list[Hit] = []
    reach = total = characters = 0
    if isinstance(store, SearchableStore):
        try:
            in_step(store, session, snapshot, most_rounds=most_rounds)
        except (StoreBusy, StoreFull, StoreReadOnly):
            pass  # what is not in the index is searched in memory
        # Another process may have handed over rounds that are not settled in this snapshot, or that it does not know.
        reach = min(store.texts_reach(session), snapshot.settled_count)
        texts, total, characters = store.find_texts(session, words, role)
        hits.extend(Hit._make(text) for text in texts if text.round <= reach)
    for round_ in _rounds_after(snapshot.rounds(include_failed=True), reach):
        for text in texts_of(round_, role):
            total += 1
            characters += len(text.text)
            if (hit := hit_in(text, words)) is not None:
                hits.append(hit)
    return ranked(hits, total, characters)


def in_step(store: Store, session: str, snapshot: Snapshot, *, most_rounds: int | None = None) -> bool:
    """Hand the texts of settled rounds over to the store's index, of at most *most_rounds*, and return whether it has
    them all. None: of all. A store without an index has what it needs."""
    if not isinstance(store, SearchableStore):
        return True
    rounds, reach = snapshot.rounds(include_failed=True), store.texts_reach(session)
    settled = snapshot.settled_count
    stop = settled if most_rounds is None else min(settled, reach + most_rounds)
    if reach < stop:
        _require_same(store, session, snapshot)
    for first in range(reach, stop, BATCH):
        last = min(first + BATCH, stop)
        store.keep_texts(session, first + 1, last, _texts(_readable(rounds, first, last)))
        # Looked for after that: whoever erases something from now on finds it in the index, and puts it right himself.
        for number, posts in _erased_since(store, session, snapshot):
            if first < number <= last:
                store.keep_texts(session, number, number, _texts([without(rounds[number - 1], posts)]))
    return stop >= settled


def _require_same(store: Store, session: str, snapshot: Snapshot) -> None:
    """Raise ``SessionPurged`` where it was: the texts of *snapshot* are not those of a new one."""
    number = snapshot.number
    if number and [entry.id for entry in store.read(session, number - 1, 1)] != [snapshot.last]:
        raise SessionPurged(PURGED.format(number))


def forgotten(store: Store, session: str, snapshot: Snapshot, numbers: Collection[int]) -> None:
    """Put the texts of these rounds into the store's index anew, as they are after something was erased in them.

    Call it before what was erased is erased from the log: were it interrupted, the log would still know what to do.
    """
    if not isinstance(store, SearchableStore):
        return
    rounds, reach = snapshot.rounds(include_failed=True), store.texts_reach(session)
    for number in sorted(set(numbers)):
        if number <= min(reach, len(rounds)):
            store.keep_texts(session, number, number, _texts(rounds[number - 1 : number]))


def _texts(rounds: Iterable[Round]) -> list[StoredText]:
    """Return the texts of those *rounds* that have not failed: a failed one stays so."""
    return [text for round_ in rounds if round_.state != "failed" for text in texts_of(round_)]


def _erased_since(store: Store, session: str, snapshot: Snapshot) -> Iterable[tuple[int, set[int]]]:
    """Return the numbers of rounds in which something was erased since *snapshot*, and those of the posts."""
    erased: dict[int, set[int]] = {}
    for entry in store.read(session, snapshot.number):
        if isinstance(record := entry.record, PostRedacted):
            erased.setdefault(entry.round, set()).update(record.numbers)
    return erased.items()


def _rounds_after(rounds: Rounds, reach: int) -> Iterator[Round]:
    """Give the rounds after the first *reach* that have not failed."""
    for first in range(reach, len(rounds), BATCH):
        yield from (round_ for round_ in _readable(rounds, first, first + BATCH) if round_.state != "failed")


def _readable(rounds: Rounds, first: int, stop: int) -> Sequence[Round]:
    """Return those rounds without the damaged ones, in which nothing can be found: whoever reads one is told.

    One that only a newer version can read is no damage: it would be missing in the index ever after.
    """
    try:
        return rounds[first:stop]
    except StoreDamaged:
        found = []
        for place in range(first, min(stop, len(rounds))):
            with suppress(StoreDamaged):
                found.append(rounds[place])
        return found
