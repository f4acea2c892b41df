"""Patterns filed under their cues match what all of them at once would match; and every cue is one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.summarizers.filed import Filed, folded
from compactor.summarizers.instructions import PROHIBITIONS
from compactor.summarizers.statements import sentences

CUES = sorted({cue for cues, _ in PROHIBITIONS for cue in cues.split("|")})
FILED = Filed(PROHIBITIONS)
WHOLE = re.compile("|".join(pattern for _, pattern in PROHIBITIONS), re.IGNORECASE)
#: What there is in two cases.
CASED = [
    letter for letter in map(chr, range(sys.maxunicode + 1)) if letter.lower() != letter or letter.upper() != letter
]
#: Whatever a pattern lets stand there, or nothing.
GAP = "\0"


def lacking(pattern: str, cues: Iterable[str]) -> set[str]:
    """Return what *pattern* may match that holds none of *cues*, with ``GAP`` for what may be many things."""
    held = tuple(cues)
    return {text for text in written(parser.parse(pattern, re.IGNORECASE), held) if not holds(text, held)}


def holds(text: str, cues: tuple[str, ...]) -> bool:
    return any(cue in text for cue in cues)


def written(parsed: Iterable[tuple[Any, Any]], cues: tuple[str, ...]) -> set[str]:
    """Return all that *parsed* may match; what holds a cue already is not written on."""
    found = {""}
    for operator, argument in parsed:
        ends = one(operator, argument, cues)
        found = {text if holds(text, cues) else text + end for text in found for end in ends}
    return found


def one(operator: Any, argument: Any, cues: tuple[str, ...]) -> set[str]:
    if operator is code.LITERAL:
        return {chr(argument)}
    if operator in (code.AT, code.ASSERT, code.ASSERT_NOT):
        return {""}
    if operator is code.IN and len(argument) <= 8 and all(kind is code.LITERAL for kind, _ in argument):
        return {chr(letter) for _, letter in argument}
    if operator is code.BRANCH:
        return set().union(*(written(branch, cues) for branch in argument[1]))
    if operator is code.SUBPATTERN:
        return written(argument[-1], cues)
    if operator is code.MAX_REPEAT:
        least, most, item = argument
        if most == 1:
            return written(item, cues) if least else written(item, cues) | {""}
        return {text + GAP for text in written(item, cues)} if least else {GAP}
    assert operator in (code.IN, code.NOT_LITERAL, code.ANY), f"{operator}: think about what it may match"
    return {GAP}


# What cannot be found without its cue


@pytest.mark.parametrize(("cues", "pattern"), PROHIBITIONS)
def test_all_that_a_pattern_matches_holds_one_of_its_cues(cues: str, pattern: str) -> None:
    """Whoever adds an alternative has to add its cue: else it would never be tried."""
    assert not lacking(pattern, cues.split("|")), "file the pattern under a cue for these, too"


@pytest.mark.parametrize(
    ("cues", "pattern", "missed"),
    [
        ("never", r"\b(?:never|not ever)\b", {"not ever"}),
        ("no ", r"\bno (?:meat|fish)|don['’]?t\b", {"don't", "don’t", "dont"}),
        ("stop it", r"stop (?:\w+ )?it", {f"stop {GAP}{GAP} it"}),
        ("ab", r"a+b", {f"a{GAP}b"}),
        ("aa", r"a{1,3}(?=a)", {f"a{GAP}"}),
        ("not", r"no?t", {"nt"}),
        ("leave", r"(?:leave )*[^.]", {GAP + GAP}),
    ],
)
def test_an_alternative_without_a_cue_is_noticed(cues: str, pattern: str, missed: set[str]) -> None:
    """What may be left out, be something else or stand between is not taken for granted."""
    assert lacking(pattern, cues.split("|")) == missed


def test_letters_are_folded_as_patterns_take_them() -> None:
    """Whatever letter matches a cue's in a pattern that ignores case is that letter when it is folded."""
    for letter in sorted(set("".join(CUES))):
        matching = re.compile(re.escape(letter), re.IGNORECASE).findall("".join(CASED))
        assert {folded(one) for one in matching} <= {letter}


def test_letters_are_folded_one_by_one() -> None:
    """Beside others as alone, but for the Greek sigma, which stands in no cue."""
    assert all(len(folded(letter)) == 1 for letter in CASED)
    assert not set("σς") & set("".join(CUES))


# Equal to trying everything


def noise() -> Iterator[str]:
    yield from (
        "the file",
        "You ",
        "i ",
        "have",
        "be",
        "booked",
        "buch",
        "verwijder",
        "je ",
        "no",
        "n",
        "’t",
        "'t",
        "ſ",
        "İ",
    )
    yield from (" ", " ", ", ", ". ", "请", "may", "K", "we", "want", "supprime", "не", "удаляй", "borres", "send")


@given(
    st.lists(st.sampled_from([*CUES, *noise()]) | st.text(max_size=4), max_size=8),
    st.sampled_from([str.lower, str.upper, str.title, str.swapcase]),
)
def test_the_same_matches_as_of_all_patterns_at_once(parts: list[str], case: Any) -> None:
    """Of cues and what stands beside them, in any case."""
    for text in ("".join(parts), " ".join(parts), case(" ".join(parts))):
        assert FILED.matches(text) == (WHOLE.search(text) is not None)


@pytest.mark.parametrize(
    "text", ["You muſt not", "NİEMALS", "don’T TOUCH IT", "DAS IST ohne meıne Hilfe", "НЕЛЬЗᲅ нельзя"]
)
def test_odd_letters_match_as_they_did(text: str) -> None:
    """A long s, a dotted capital I."""
    assert FILED.matches(text) == (WHOLE.search(text) is not None)


def test_what_users_really_say_matches_as_it_did(data: list[dict[str, Any]]) -> None:
    """All sentences of the users of the real dialogues."""
    said = [message["content"] for dialogue in data for message in dialogue["messages"] if message["role"] == "user"]
    found = {sentence for text in said for sentence in sentences(text, 400)}
    assert len(found) > 1_000
    for sentence in found:
        assert FILED.matches(sentence) == (WHOLE.search(sentence) is not None)


def test_a_pattern_under_several_cues_is_found_by_each() -> None:
    """And nothing is where no cue stands."""
    filed = Filed([("cat|dog", r"\b(?:cat|dog)s?\b"), ("ca", r"caress")])
    assert [filed.matches(text) for text in ("Two cats", "A DOG", "caress", "call", "catalogue", "")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
