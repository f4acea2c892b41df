"""Two compactions side by side: what the later one dropped, what came in, and which names are gone."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memory.overlays import CompactedMessage

from .acceptance.content import identifiers, unknown
from .acceptance.prohibitions import bare
from .summarizers.statements import sentences

__all__ = ["Change", "Difference", "compared"]

#: A sentence is cut there, in characters; and a longer word is data, whose line stays whole.
_LONGEST, _WORD = 1_000, 160


class Change(NamedTuple):
    """One sentence or line, and what became of it."""

    what: Literal["dropped", "came in", "stayed"]
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What is new in a compaction, compared with an earlier one. ``str()`` of it is for people."""

    #: Every sentence of both in the order of reading, each once where it stayed.
    changes: tuple[Change, ...]
    #: Identifiers (numbers, codes, paths, addresses) of the earlier one that the later one no longer has.
    gone: tuple[str, ...]
    #: The first and the last round that only the later one covers, by their numbers in the log; None: it covers none.
    rounds: tuple[int, int] | None

    @property
    def dropped(self) -> tuple[str, ...]:
        return self._of("dropped")

    @property
    def came_in(self) -> tuple[str, ...]:
        return self._of("came in")

    @property
    def stayed(self) -> tuple[str, ...]:
        return self._of("stayed")

    def _of(self, what: str) -> tuple[str, ...]:
        return tuple(change.text for change in self.changes if change.what == what)

    def __str__(self) -> str:
        covers = "no round more" if self.rounds is None else f"rounds {self.rounds[0]}-{self.rounds[1]} more"
        counts = f"{len(self.came_in)} came in, {len(self.dropped)} dropped, {len(self.stayed)} stayed"
        lines = [f"Covers {covers}: {counts}.", *(f"{_MARKS[what]} {text}" for what, text in self.changes)]
        if self.gone:
            lines.append(f"No longer named: {', '.join(self.gone)}")
        return "\n".join(lines)


_MARKS = {"dropped": "-", "came in": "+", "stayed": " "}


def compared(before: CompactedMessage | None, after: CompactedMessage | None) -> Difference:
    """Return what *after* has dropped of *before*, what came in and what stayed; None is a compaction of nothing.

    Sentences are the same where their letters and digits are, in any order: one that only moved has stayed.
    """
    old, new = (one.summary if one is not None else "" for one in (before, after))
    first, last = ((one.last_round if one is not None else 0) for one in (before, after))
    return Difference(
        changes=_changes(tuple(_statements(old)), tuple(_statements(new))),
        gone=unknown(identifiers(old), (new,)),
        rounds=(first + 1, last) if last > first else None,
    )


def _statements(summary: str) -> Iterator[str]:
    for line in filter(None, summary.splitlines()):
        is_data = any(len(word) > _WORD for word in line.split())
        found = [] if is_data else list(sentences(line, _LONGEST))
        if found:
            yield from found
        elif any(map(str.isalnum, line)):
            yield " ".join(line.split())


def _changes(old: Sequence[str], new: Sequence[str]) -> tuple[Change, ...]:
    before, after = [bare(text) for text in old], [bare(text) for text in new]
    changes: list[tuple[Change, str]] = []
    old_at = new_at = 0
    for old_place, new_place in (*_alike(before, after), (len(before), len(after))):
        changes.extend((Change("dropped", old[place]), before[place]) for place in range(old_at, old_place))
        changes.extend((Change("came in", new[place]), after[place]) for place in range(new_at, new_place))
        if new_place < len(after):
            changes.append((Change("stayed", new[new_place]), after[new_place]))
        old_at, new_at = old_place + 1, new_place + 1
    return tuple(_without_moves(changes))


def _alike(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of what both have in one order, as many as can be where nothing is said twice. What is said
    several times is taken for the same by its turn: n log n, also where all are alike."""
    numbers: Counter[str] = Counter()
    places: dict[tuple[str, int], int] = {}
    for place, key in enumerate(before):
        numbers[key] += 1
        places[key, numbers[key]] = place
    numbers.clear()
    pairs: list[tuple[int, int]] = []
    for place, key in enumerate(after):
        numbers[key] += 1
        if (found := places.get((key, numbers[key]))) is not None:
            pairs.append((found, place))
    # The longest run of rising places in the old one; each pair knows the one before it.
    ends: list[int] = []
    last: list[int] = []
    earlier: list[int] = []
    for number, (found, _) in enumerate(pairs):
        length = bisect_left(ends, found)
        earlier.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [found]
        last[length : length + 1] = [number]
    chosen: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        chosen.append(pairs[number])
        number = earlier[number]
    return chosen[::-1]


def _without_moves(changes: Sequence[tuple[Change, str]]) -> Iterator[Change]:
    """Give *changes*, with what was dropped in one place and came in at another as stayed, where it stands now."""
    dropped = Counter(key for change, key in changes if change.what == "dropped")
    came_in = Counter(key for change, key in changes if change.what == "came in")
    moved = dropped & came_in
    left = {"dropped": Counter(moved), "came in": Counter(moved)}
    for change, key in changes:
        if change.what != "stayed" and left[change.what][key] > 0:
            left[change.what][key] -= 1
            if change.what == "came in":
                yield Change("stayed", change.text)
        else:
            yield change
