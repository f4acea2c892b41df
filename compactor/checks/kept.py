"""What a summary keeps of the one before it: identifiers, numbers and prohibitions, but for what was superseded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..summarizers.instructions import is_prohibition, may_prohibit
from ..summarizers.statements import sentences
from .identifiers import identifiers
from .terms import Terms

__all__ = ["Missing", "find_missing"]

#: Of fewer things named, one more or less is no measure; of as few as that, one identifier has to stay. What the user
#: forbade is restored where it is lost.
_FEW, _FEWEST = 4, 2
#: Words are a measure, too: of as many different ones that only the summary before has, this share.
_WORDS, _WORDS_KEPT = 8, 0.1
#: A prohibition is kept where this share of its words is; a line says the same of another value likewise.
_ALIKE = 0.6
_LONGEST = 400
#: So many lines and prohibitions are compared.
_MOST_LINES, _MOST_PROHIBITIONS = 200, 40
#: Characters of a summary in which prohibitions are looked for, and of a line; a summary of more is no summary.
_MOST_READ, _LONGEST_LINE = 10_000, 2_000


class Missing(NamedTuple):
    kept: int
    total: int
    names: tuple[str, ...]


def find_missing(before: Terms, after: Terms, source: Terms, least: float) -> Missing | None:
    """Return what of *before* is missing in *after*, where it keeps less than the share *least*; else None.

    A value is superseded, not missing, where a line of *after* says the same with another one that *source* has. What
    *source* names again is no sign that *before* was read, so the same share is asked for of what only *before* has;
    and a little of the words that only that has.
    """
    forbidden = {rule: Terms(rule) for rule in _prohibitions(before.text)}
    named = before.identifiers | before.numbers
    there = after.identifiers | after.numbers
    lost = {name for name in named - there if name not in after.folded}
    gone = [rule for rule, terms in forbidden.items() if not _says(after.words, terms.words)]
    superseded: set[str] | None = None
    for measured, rules, broken in ((named, len(forbidden), gone), (_not_in(source, named if lost else ()), 0, [])):
        kept = len(measured - lost) + rules - len(broken)
        if kept >= least * (len(measured) + rules):
            continue
        if superseded is None:
            superseded = _superseded(lost, before, after, (source.identifiers | source.numbers) - named)
        missing = (lost & measured) - superseded
        total = len(measured - superseded) + rules
        if kept < least * total and (total >= _FEW or (total >= _FEWEST and missing & before.identifiers)):
            return Missing(kept, total, (*sorted(missing), *broken))
    return _missing_words(before, after, source, _not_in(source, named) - lost, least)


def _not_in(source: Terms, names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if name not in source.folded)


def _missing_words(before: Terms, after: Terms, source: Terms, named: frozenset[str], least: float) -> Missing | None:
    """Return how little *after* keeps of what only *before* has: of its words, beside what is *named* again."""
    only = before.words - before.words_in(source)
    if len(only) < _WORDS or not after.is_in_the_language_of(before):
        return None
    kept, total = len(only & after.words) + len(named), len(only) + len(named)
    return Missing(kept, total, ()) if kept < min(_WORDS_KEPT, least) * total else None


def _prohibitions(text: str) -> Iterator[str]:
    text = text[:_MOST_READ]
    if may_prohibit(text):
        found = (sentence for sentence in sentences(text, _LONGEST) if is_prohibition(sentence))
        yield from (sentence for sentence, _ in zip(found, range(_MOST_PROHIBITIONS), strict=False))


def _superseded(lost: set[str], before: Terms, after: Terms, new: frozenset[str]) -> set[str]:
    """Return those of *lost* in whose place stands what is *new*."""
    lines = [(line, values) for line in _lines(after.text) if (values := line.named & new)]
    found: set[str] = set()
    for line in _lines(before.text) if lines else ():
        here = sorted(line.named & lost)
        if not here or len(line.words) < _FEW:
            continue
        alike = max(lines, key=lambda one: len(one[0].words & line.words))
        if _says(alike[0].words, line.words):
            found.update(here[: len(alike[1])])
            lines.remove(alike)  # it stands in the place of one
            if not lines:
                break
    return found


class _Line(NamedTuple):
    named: frozenset[str]
    #: What it says of that, without the words in what it names: a list of names says nothing of them.
    words: frozenset[str]


def _lines(text: str) -> list[_Line]:
    found = []
    for line in (line[:_LONGEST_LINE] for line in text.splitlines()[:_MOST_LINES] if line.strip()):
        terms, rest = Terms(line), line
        for name in identifiers(line):
            rest = rest.replace(name, " ")
        found.append(_Line(terms.identifiers | terms.numbers, Terms(rest).words))
    return found


def _says(words: frozenset[str], of: frozenset[str]) -> bool:
    return len(words & of) >= _ALIKE * len(of)
