"""Compares two compactions: dropped and new sentences, and lost names."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from memory.overlays import CompactedMessage
from memory.values import ValueObject

from .summarizers.content import find_identifiers, find_unknown
from .summarizers.sentences import keep_letters, split_sentences

#: Maximum characters of a sentence and of a word. Longer sentences are cut; a line with a longer word is data and is
#: not split.
_MAX_SENTENCE, _MAX_WORD = 1_000, 160
Fate = Literal["dropped", "came in", "stayed"]
_MARKS = {"dropped": "-", "came in": "+", "stayed": " "}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Difference(ValueObject):
    """The difference between a compaction and an earlier one. ``str()`` formats it for reading."""

    #: Every sentence or line of both and what became of it, in reading order; one that stayed appears once.
    sentences: tuple[tuple[Fate, str], ...]
    #: Identifiers (numbers, codes, paths, addresses) of the earlier one that the later one lacks.
    gone: tuple[str, ...]
    #: First and last round that only the later one covers, by their numbers in the log; None if there is none.
    rounds: tuple[int, int] | None

    @property
    def dropped(self) -> tuple[str, ...]:
        """Sentences of the earlier one that the later one lacks."""
        return self._select("dropped")

    @property
    def came_in(self) -> tuple[str, ...]:
        """Sentences that only the later one has."""
        return self._select("came in")

    @property
    def stayed(self) -> tuple[str, ...]:
        """Sentences that both have."""
        return self._select("stayed")

    def _select(self, wanted: Fate) -> tuple[str, ...]:
        return tuple(text for fate, text in self.sentences if fate == wanted)

    def __str__(self) -> str:
        covers = "no round more" if self.rounds is None else f"rounds {self.rounds[0]}-{self.rounds[1]} more"
        counts = f"{len(self.came_in)} came in, {len(self.dropped)} dropped, {len(self.stayed)} stayed"
        lines = [f"Covers {covers}: {counts}.", *(f"{_MARKS[fate]} {text}" for fate, text in self.sentences)]
        if self.gone:
            lines.append(f"No longer named: {', '.join(self.gone)}")
        return "\n".join(lines)


def compare(previous: CompactedMessage | None, current: CompactedMessage | None) -> Difference:
    """Return the sentences of *previous* and *current* that were dropped, came in or stayed.

    Two sentences are the same if their letters and digits are the same. A sentence that only moved has stayed. None is
    an empty compaction.
    """
    old, new = (one.summary if one is not None else "" for one in (previous, current))
    first, last = ((one.last_round if one is not None else 0) for one in (previous, current))
    return Difference(
        sentences=tuple(_find_changes(list(_split(old)), list(_split(new)))),
        gone=find_unknown(find_identifiers(old), (new,)),
        rounds=(first + 1, last) if last > first else None,
    )


def _split(summary: str) -> Iterator[str]:
    """Yield the sentences of *summary*, and its lines of data."""
    for line in filter(None, summary.splitlines()):
        is_data = any(len(word) > _MAX_WORD for word in line.split())
        parts = [] if is_data else list(split_sentences(line, _MAX_SENTENCE))
        if parts:
            yield from parts
        elif any(map(str.isalnum, line)):
            yield " ".join(line.split())


def _find_changes(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[Fate, str]]:
    before, after = [keep_letters(text) for text in old], [keep_letters(text) for text in new]
    changes: list[tuple[Fate, str, str]] = []  # each with its key: the bare text
    old_at = new_at = 0
    for old_index, new_index in (*_match(before, after), (len(before), len(after))):
        changes.extend(("dropped", old[index], before[index]) for index in range(old_at, old_index))
        changes.extend(("came in", new[index], after[index]) for index in range(new_at, new_index))
        if new_index < len(after):
            changes.append(("stayed", new[new_index], after[new_index]))
        old_at, new_at = old_index + 1, new_index + 1
    # A sentence that was dropped in one place and came in at another has moved: it stayed, at its new place.
    dropped, came_in = (Counter(key for one, _, key in changes if one == fate) for fate in ("dropped", "came in"))
    moved = {"dropped": dropped & came_in, "came in": dropped & came_in}
    for fate, text, key in changes:
        if fate == "stayed" or moved[fate][key] == 0:
            yield fate, text
            continue
        moved[fate][key] -= 1
        if fate == "came in":
            yield "stayed", text


def _match(previous: Sequence[str], current: Sequence[str]) -> list[tuple[int, int]]:
    """Return the indexes of the sentences that both have in the same order: the most possible, if none is repeated.

    The nth occurrence of a sentence matches the nth in the other text. This keeps the cost at n log n even if all
    sentences are alike.
    """
    old_index = {key: index for index, key in enumerate(_number(previous))}
    pairs = [(old_index[key], index) for index, key in enumerate(_number(current)) if key in old_index]
    # Longest increasing subsequence of the old indexes; each pair knows its predecessor.
    ends: list[int] = []
    last: list[int] = []
    earlier: list[int] = []
    for number, (index, _) in enumerate(pairs):
        length = bisect_left(ends, index)
        earlier.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [index]
        last[length : length + 1] = [number]
    chosen: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        chosen.append(pairs[number])
        number = earlier[number]
    return chosen[::-1]


def _number(keys: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield each key with the number of its occurrences so far."""
    seen: Counter[str] = Counter()
    for key in keys:
        seen[key] += 1
        yield key, seen[key]
