"""Where a text may be cut: between what readers see as characters, a letter with its marks, a flag, a joined emoji."""

from __future__ import annotations

import regex

__all__ = ["LONGEST_GRAPHEME", "beginning", "cut_after", "cut_before"]

#: What is longer than this, in code points, is no character that anybody reads: it may be cut anywhere.
LONGEST_GRAPHEME = 64
_CLUSTER = regex.compile(r"[\ud800-\udbff][\udc00-\udfff]\p{M}*(?:\u200d[\ud800-\udbff][\udc00-\udfff]\p{M}*)*|\X")
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))
#: In a longer run of letters of flags, without a break, a cut may stand anywhere.
MAX_FLAG_LETTERS = 4_096
#: Below, a code point is a character of its own, but for the line end of two.
_MARKS_BEGIN = "\u0300"


def cut_before(text: str, place: int) -> int:
    """Return the last place up to *place* where *text* may be cut. A few hundred code points are looked at."""
    return _around(text, place)[0]


def cut_after(text: str, place: int) -> int:
    """Return the first place from *place* on where *text* may be cut."""
    return _around(text, place)[1]


def beginning(text: str, length: int) -> str:
    """Return at most the first *length* code points of *text*, cut where it may be."""
    return text[: cut_before(text, length)]


def _around(text: str, place: int) -> tuple[int, int]:
    """Return the ends of the character that a cut at *place* would tear; *place* twice where it tears none."""
    if place <= 0 or place >= len(text):
        whole = min(max(place, 0), len(text))
        return whole, whole
    before, after = text[place - 1], text[place]
    if before < _MARKS_BEGIN and after < _MARKS_BEGIN:
        return (place - 1, place + 1) if (before, after) == ("\r", "\n") else (place, place)
    start = max(place - 2 * LONGEST_GRAPHEME, 0)
    if _is_flag_letter(text[start]):  # two make a flag, so their number counts from the first of them
        start -= _flag_letters(text, start) % 2
    # A copy: for a flag, the expression itself would look at all that stands before.
    for found in _CLUSTER.finditer(text[start : place + LONGEST_GRAPHEME + 1]):
        first, last = start + found.start(), start + found.end()
        if last > place:
            return (first, last) if first < place and last - first <= LONGEST_GRAPHEME else _outside_pair(text, place)
    return place, place


def _outside_pair(text: str, place: int) -> tuple[int, int]:
    """Return *place* twice, or the ends of the surrogate pair that a cut there would tear."""
    is_pair = "\ud800" <= text[place - 1] <= "\udbff" and "\udc00" <= text[place] <= "\udfff"
    return (place - 1, place + 1) if is_pair else (place, place)


def _is_flag_letter(character: str) -> bool:
    return _FLAG_LETTERS[0] <= character <= _FLAG_LETTERS[-1]


def _flag_letters(text: str, place: int) -> int:
    """Return how many letters of flags stand before *place*, without a break, at most ``MAX_FLAG_LETTERS``."""
    before = text[max(place - MAX_FLAG_LETTERS, 0) : place]
    return len(before) - len(before.rstrip(_FLAG_LETTERS))
