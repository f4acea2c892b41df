"""Places in the log by name: ``r12`` is round 12, ``r3-r9`` several rounds, ``r12.p3`` the third post of round 12,
``r12.p3-p17`` several of its posts, and ``r12.p0`` the user's query.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import regex

from .errors import UnknownReference
from .messages import from_post, from_round, repeats_query, text_with_calls
from .rounds import USER, Post, Round

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


# --- places in the log by name: ``r12`` is round 12, ``r3-r9`` several rounds, ``r12.p3`` the third post of round 12,


_SHAPE = re.compile(r"r(\d{1,12})(?:-r?(\d{1,12})|\.p(\d{1,12})(?:-(?:r\1\.)?p?(\d{1,12}))?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a reference names, which need not be there: rounds by their numbers, or posts of one round."""

    first: int
    last: int
    #: Of the posts; both None where whole rounds are meant. 0 is the user's query.
    first_post: int | None = None
    last_post: int | None = None


def parsed(ref: str) -> Reference:
    """Return what *ref* names. Raises ``UnknownReference`` for what is not written like a reference."""
    match = _SHAPE.fullmatch(ref)
    if match is None:
        raise UnknownReference(f"{ref[:40]!r} is not a reference; they look like r12, r3-r9, r12.p3 or r12.p3-p17")
    first, last, first_post, last_post = match.groups()
    if first_post is None:
        return Reference(int(first), int(last or first))
    return Reference(int(first), int(first), int(first_post), int(last_post or first_post))


def place_reference(number: int, post_number: int) -> str:
    """Return the reference of a post by its number and its round's; 0 is the user's query."""
    return f"r{number}.p{post_number}"


def post_reference(round_: Round, post: Post | None) -> str:
    """Return the reference of a post, or of the round's user query for None."""
    return place_reference(round_.number, post.number if post else 0)


def posts_reference(round_: Round, first_number: int, last_number: int) -> str:
    """Return the reference of a round's posts from *first_number* to *last_number*; 0 is the user's query."""
    only = place_reference(round_.number, first_number)
    return only if first_number == last_number else f"{only}-p{last_number}"


def range_reference(first: int, last: int) -> str:
    """Return the reference of rounds *first* to *last* of the log."""
    return f"r{first}" if first == last else f"r{first}-r{last}"


def text_behind(rounds: Sequence[Round], ref: str, *, hide_failed: bool = False) -> str:
    """Return the original text behind *ref*; *rounds* are all rounds of the log. May raise ``UnknownReference``."""
    return "".join(_pieces(rounds, ref, hide_failed=hide_failed))


def passage_behind(rounds: Sequence[Round], ref: str, *, hide_failed: bool = False) -> Passage:
    """Return the same for readers who want a page of it and no copy of the whole."""
    return Passage(_pieces(rounds, ref, hide_failed=hide_failed), _speaker(rounds, ref))


def messages_behind(rounds: Sequence[Round], ref: str, role: str, *, hide_failed: bool = False) -> list[dict[str, Any]]:
    """Return what is behind *ref* as the chat messages that *role* would send to a model. The rounds are as it sees
    them. May raise ``UnknownReference``."""
    place = parsed(ref)
    found = _found(rounds, place, ref, hide_failed=hide_failed)
    if place.first_post is None:
        return [message for round_ in found for message in from_round(round_, role)]
    round_ = next(found)
    posts = _found_posts(round_, place, ref)
    if place.first_post > 0:
        return [from_post(post, role) for post in posts]
    return list(from_round(round_.model_copy(update={"post_list": posts}), role))


def folded(text: str) -> str:
    """Return *text* in lower case, each character in its place: what stands at an offset here stands there too."""
    # The one letter whose lower case is two characters, and the one whose lower case depends on what follows it.
    return text.replace("\u0130", "i").lower().replace("\u03c2", "\u03c3")


class _Label(str):
    """A piece that nobody said: where a round begins, and who says what follows."""

    __slots__ = ()


#: Where a line of somebody's words begins in a quoted page.
QUOTED = "> "
REST = "…"
#: What a reader may take for the end of a line.
_LINE_END = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


class Passage:
    """A long text in pieces, of which pages are read without joining it."""

    def __init__(self, pieces: Iterable[str], speaker: str = "") -> None:
        """Take the *pieces*; *speaker* says them where no piece says who does."""
        self._pieces = list(pieces)
        self._speaker = speaker
        #: The offset of each piece, and of the end.
        self._starts = [0, *accumulate(map(len, self._pieces))]

    def __len__(self) -> int:
        return self._starts[-1]

    def page(self, start: int, stop: int) -> str:
        """Return the characters from *start* (not negative) up to *stop*; the end may be before either."""
        parts = []
        for place in range(bisect_right(self._starts, start) - 1, len(self._pieces)):
            if self._starts[place] >= stop:
                break
            before = self._starts[place]
            parts.append(self._pieces[place][max(start - before, 0) : stop - before])
        return "".join(parts)

    def quoted(self, start: int, stop: int) -> str:
        """Return the same page with all that somebody said marked as such, so that no words look like somebody else's.

        Each line of it begins behind the name of who says it, or with ``QUOTED``. A name of which the page has only the
        end begins with ``REST``.
        """
        parts: list[str] = []
        for place in range(bisect_right(self._starts, start) - 1, len(self._pieces)):
            if (before := self._starts[place]) >= stop:
                break
            part = self._pieces[place][max(start - before, 0) : stop - before]
            if isinstance(self._pieces[place], _Label):
                part = REST + part if start > before and part.strip("\n") else part
            else:
                part = (QUOTED if not parts else "") + _LINE_END.sub(rf"\g<0>{QUOTED}", part)
            parts.append(part)
        return "".join(parts)

    def speaker(self, offset: int) -> str:
        """Return who says what stands at *offset*; empty where a label does."""
        place = min(bisect_right(self._starts, offset), len(self._pieces)) - 1
        if place < 0 or isinstance(self._pieces[place], _Label):
            return ""
        labels = (piece for piece in reversed(self._pieces[:place]) if isinstance(piece, _Label))
        return next(labels, self._speaker).strip("\n: ")

    def cut_before(self, place: int) -> int:
        """Return the last offset up to *place*, which is not negative, where it may be cut."""
        number = min(bisect_right(self._starts, place), len(self._pieces)) - 1
        return self._starts[number] + cut_before(self._pieces[number], place - self._starts[number]) if self else 0

    def cut_after(self, place: int) -> int:
        """Return the first offset from *place* on where it may be cut."""
        number = min(bisect_right(self._starts, place), len(self._pieces)) - 1
        return self._starts[number] + cut_after(self._pieces[number], place - self._starts[number]) if self else 0

    def places(self, pattern: str, start: int = 0) -> Iterator[int]:
        """Give the offsets, from *start* on, at which *pattern* stands, in capitals or not; none of them overlap.

        *pattern* is literal text, not empty; it may stand across pieces.
        """
        wanted, free, tail = folded(pattern), start, ""
        for piece, before in zip(self._pieces, self._starts, strict=False):
            text, origin = tail + folded(piece), before - len(tail)
            while (found := text.find(wanted, max(free - origin, 0))) >= 0:
                yield origin + found
                free = origin + found + len(wanted)
            tail = text[len(text) + 1 - len(wanted) :] if len(wanted) <= len(text) else text


def _pieces(rounds: Sequence[Round], ref: str, *, hide_failed: bool) -> Iterator[str]:
    place = parsed(ref)
    found = _found(rounds, place, ref, hide_failed=hide_failed)
    if place.first_post is None:
        return _rounds(found)
    round_ = next(found)
    return _posts(round_, place, _found_posts(round_, place, ref))


def _speaker(rounds: Sequence[Round], ref: str) -> str:
    """Return who says the one post that *ref* names; empty where it names more."""
    place = parsed(ref)
    if place.first_post is None or place.first_post != place.last_post:
        return ""
    posts = (post for post in rounds[place.first - 1].post_list if post.number == place.first_post)
    return USER if place.first_post == 0 else next(map(_ends, posts), "")


def _ends(post: Post) -> str:
    """Return who says *post*, and to whom, on one line."""
    to = f" (result of {post.tool_call_id})" if post.tool_call_id is not None else f" to {post.send_to}"
    return label_of(f"{post.send_from}{to}")


def label_of(name: str) -> str:
    """Return *name* on one line, without the colon behind which words follow."""
    return " ".join(name.replace(":", " ").split())


def _found(rounds: Sequence[Round], place: Reference, ref: str, *, hide_failed: bool) -> Iterator[Round]:
    """Return the rounds at *place*, at least one. Raises ``UnknownReference`` at once, not when they are read."""
    if not 1 <= place.first <= place.last <= len(rounds):
        raise UnknownReference(f"there is no {ref}: rounds are numbered from 1, and this session has {len(rounds)}")
    places = range(place.first - 1, place.last)
    start = next((at for at in places if not (hide_failed and rounds[at].state == "failed")), None)
    if start is None:
        raise UnknownReference(f"there is no {ref} to see: what failed is hidden; give another reference")
    found = (rounds[at] for at in range(start, place.last))
    return (round_ for round_ in found if not (hide_failed and round_.state == "failed"))


def _found_posts(round_: Round, place: Reference, ref: str) -> tuple[Post, ...]:
    """Return the posts at *place* in its round; none for a query alone. Raises ``UnknownReference``."""
    first, last = place.first_post or 0, place.last_post or 0
    posts = tuple(post for post in round_.post_list if first <= post.number <= last)
    if not posts and not (first == 0 and (last == 0 or round_.user_query)):
        raise UnknownReference(f"there is no {ref} to see; give r{round_.number} for the whole round")
    return posts


def _rounds(rounds: Iterator[Round]) -> Iterator[str]:
    for place, round_ in enumerate(rounds):
        yield _Label(f"\n\n[Round {round_.number}]" if place else f"[Round {round_.number}]")
        yield from _lines(round_, 0, round_.post_list)


def _posts(round_: Round, place: Reference, posts: Sequence[Post]) -> Iterator[str]:
    first, last = place.first_post or 0, place.last_post or 0
    if first == last:
        return iter((text_with_calls(posts[0]) if first else round_.user_query,))
    return iter((_Label(f"[Round {round_.number}, posts {first} to {last}]"), *_lines(round_, first, posts)))


def _lines(round_: Round, first: int, posts: Sequence[Post]) -> Iterator[str]:
    """Give the lines for *posts* of a round, after that of its query where *first* is 0."""
    if first == 0 and round_.user_query:
        yield _Label(f"\n{USER}: ")
        yield round_.user_query
    for post in posts:
        if first == 0 and post is round_.post_list[0] and repeats_query(post, round_) and not post.attachment_list:
            continue
        yield _Label(f"\n{_ends(post)}: ")
        yield text_with_calls(post)
