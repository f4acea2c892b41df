"""Surface retention: how much of what was said still stands in a summary; and precision: how much of it was ever said.

Words are compared with words. Whether a model would make the right use of them is another question, and not asked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compactor.summarizers.content import find_identifiers, find_unknown

__all__ = ["MIN_SHARE", "WINDOW", "Fact", "Precision", "content_words", "kept", "precision", "share_kept"]

#: All gold words stand in a stretch of so many words, and with them this share of the question's content words.
WINDOW, MIN_SHARE = 40, 1 / 3

_WORDS = re.compile(r"\w+")
_NUMBERS = re.compile(r"(?<![\w.,:-])\d+(?:[.,:]\d+)*(?![\w-])")
#: What stands before an item of a list.
_ITEM = re.compile(r"^\s*\d+[.)] ", re.MULTILINE)
#: Words that a question has whatever it is about.
_EMPTY = frozenset(
    _WORDS.findall(
        "a about after all am an and any are as at be been before by can could did do does for from had has have he her"
        " his how i if in into is it its may me must my no not of on or our out over she should so than that the their"
        " them then there they this to up us was we were what when where which who whom whose why will with would you"
        " your"
    )
)


@dataclass(frozen=True)
class Fact:
    """What was said, and by what one knows it in a summary."""

    text: str
    gold: tuple[str, ...]
    #: The statement that this one replaces; it must be gone.
    old: str = ""
    #: What it answers; empty: the gold words are enough.
    question: str = ""


def kept(fact: Fact, summary: str) -> bool:
    """Return whether a stretch of ``WINDOW`` words of *summary* holds all gold words of *fact* and a third of what its
    question is about, and whether what the fact replaces is gone.

    Gold words alone are not enough: a summary that lists values and not what they are keeps no facts.
    """
    words = _words(summary)
    if fact.old and _places(_words(fact.old), words):
        return False
    gold = [(len(phrase), _places(phrase, words)) for phrase in map(_words, fact.gold)]
    if not all(places for _, places in gold):
        return False
    asked = [_places([word], words) for word in content_words(fact.question)]
    # A stretch that holds enough still does when it begins with the first of the words that matter in it.
    starts = {place for _, places in gold for place in places} | {place for places in asked for place in places}
    return any(
        all(_within(start, places, length) for length, places in gold)
        and sum(_within(start, places) for places in asked) >= MIN_SHARE * len(asked)
        for start in starts
    )


def content_words(question: str) -> tuple[str, ...]:
    """Return the words of *question* that say what it is about, each once."""
    telling = (word for word in _words(question) if word not in _EMPTY and (len(word) > 1 or word.isdigit()))
    return tuple(dict.fromkeys(telling))


def share_kept(facts: Sequence[Fact], summary: str) -> tuple[int, int]:
    """Return how many of *facts* are kept in *summary*, and how many they are."""
    return sum(kept(fact, summary) for fact in facts), len(facts)


class Precision(NamedTuple):
    """How many numbers, paths and ids a summary has, and which of them stand nowhere in its source."""

    named: int
    unknown: tuple[str, ...]


def precision(summary: str, sources: Iterable[str]) -> Precision:
    """Return the precision of *summary*, made from *sources*: each number, path and id counts once.

    The numbers before the items of a list say nothing, and do not count.
    """
    said = _ITEM.sub("", summary)
    names = find_identifiers(said)
    for name in sorted(names, key=len, reverse=True):
        said = said.replace(name, " ")
    names = (*names, *dict.fromkeys(_NUMBERS.findall(said)))
    return Precision(len(names), find_unknown(names, ("\n".join(sources),)))


def _words(text: str) -> list[str]:
    return _WORDS.findall(text.lower())


def _places(phrase: Sequence[str], words: Sequence[str]) -> list[int]:
    """Return where *phrase* begins in *words*."""
    length = len(phrase)
    return [at for at, word in enumerate(words) if word == phrase[0] and words[at : at + length] == phrase]


def _within(start: int, places: Iterable[int], length: int = 1) -> bool:
    return any(start <= place <= start + WINDOW - length for place in places)
