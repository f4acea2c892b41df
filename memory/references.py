"""References to places in the log, the text behind them, and safe places to cut a text.

``r12`` is round 12, ``r3-r9`` several rounds, ``r12.p3`` the third post of round 12, ``r12.p3-p17`` several of its
posts and ``r12.p0`` the user's query.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from .errors import UnknownReference
from .messages import from_post, from_round, join_text_with_calls, repeats_query
from .patterns import compile_later
from .rounds import USER, Post, Round, copy_with
from .values import ValueObject

#: Longer sequences of code points are no readable character: they may be cut anywhere.
MAX_GRAPHEME = 64
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))
#: A longer run of flag letters may be cut anywhere.
MAX_FLAG_LETTERS = 4_096
#: Every code point below is a character of its own, except in CR LF.
_FIRST_MARK = "\u0300"


@cache
def _find_characters() -> Any:
    """Return the function that finds the characters of a text, as a reader sees them."""
    import regex

    pattern = r"[\ud800-\udbff][\udc00-\udfff]\p{M}*(?:\u200d[\ud800-\udbff][\udc00-\udfff]\p{M}*)*|\X"
    return regex.compile(pattern).finditer


def find_floor_boundary(text: str, offset: int) -> int:
    """Return the last place up to *offset* that cuts no character of *text*, from a few hundred code points around.

    As ``str::floor_char_boundary`` in Rust, for the characters that a reader sees.
    """
    return _find_character_ends(text, offset)[0]


def find_ceil_boundary(text: str, offset: int) -> int:
    """Return the first place from *offset* on that cuts no character of *text*."""
    return _find_character_ends(text, offset)[1]


def take_beginning(text: str, length: int) -> str:
    """Return at most the first *length* code points of *text* without cutting a character."""
    return text[: _find_character_ends(text, length)[0]]


def _find_character_ends(text: str, offset: int) -> tuple[int, int]:
    """Return the ends of the character that a cut at *offset* would tear; *offset* twice if it tears none."""
    if offset <= 0 or offset >= len(text):
        end = min(max(offset, 0), len(text))
        return end, end
    before, after = text[offset - 1], text[offset]
    if before < _FIRST_MARK and after < _FIRST_MARK:
        return (offset - 1, offset + 1) if (before, after) == ("\r", "\n") else (offset, offset)
    start = max(offset - 2 * MAX_GRAPHEME, 0)
    if _FLAG_LETTERS[0] <= text[start] <= _FLAG_LETTERS[-1]:
        # Two letters make a flag, so start at an even number of letters from the first of the run.
        run = text[max(start - MAX_FLAG_LETTERS, 0) : start]
        start -= (len(run) - len(run.rstrip(_FLAG_LETTERS))) % 2
    # A copy: for flags the expression itself would look at the whole text before.
    for match in _find_characters()(text[start : offset + MAX_GRAPHEME + 1]):
        first, last = start + match.start(), start + match.end()
        if last > offset:
            if last - first > MAX_GRAPHEME or first == offset:
                break
            return first, last
    torn = "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff"
    return (offset - 1, offset + 1) if torn else (offset, offset)


_SHAPE = compile_later(r"r(\d{1,12})(?:-r?(\d{1,12})|\.p(\d{1,12})(?:-(?:r\1\.)?p?(\d{1,12}))?)?", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reference(ValueObject):
    """Rounds by their numbers, or posts of one round. They need not exist."""

    first: int
    last: int
    #: Numbers of posts, 0 for the user's query; both None for whole rounds.
    first_post: int | None = None
    last_post: int | None = None


def parse_reference(ref: str) -> Reference:
    """Return *ref* parsed. Raises ``UnknownReference`` if it is not written like a reference."""
    match = _SHAPE.fullmatch(ref)
    if match is None:
        raise UnknownReference(f"{ref[:40]!r} is not a reference; they look like r12, r3-r9, r12.p3 or r12.p3-p17")
    first, last, first_post, last_post = match.groups()
    if first_post is None:
        return Reference(int(first), int(last or first))
    return Reference(int(first), int(first), int(first_post), int(last_post or first_post))


def make_reference(number: int, post_number: int) -> str:
    """Return the reference of a post by its round's number and its own; 0 is the user's query."""
    return f"r{number}.p{post_number}"


def make_post_reference(round_: Round, post: Post | None) -> str:
    """Return the reference of a post, or of the round's user query for None."""
    return make_reference(round_.number, post.number if post else 0)


def make_posts_reference(round_: Round, first_number: int, last_number: int) -> str:
    """Return the reference of a round's posts from *first_number* to *last_number*; 0 is the user's query."""
    only = make_reference(round_.number, first_number)
    return only if first_number == last_number else f"{only}-p{last_number}"


def make_range_reference(first: int, last: int) -> str:
    """Return the reference of rounds *first* to *last* of the log."""
    return f"r{first}" if first == last else f"r{first}-r{last}"


def reload_text(rounds: Sequence[Round], ref: str, *, hide_failed: bool = False) -> str:
    """Return the original text behind *ref*; *rounds* are all rounds of the log. May raise ``UnknownReference``."""
    return "".join(_list_pieces(rounds, ref, hide_failed=hide_failed))


def reload_passage(rounds: Sequence[Round], ref: str) -> Passage:
    """Return the same text, without hidden rounds, as a ``Passage``, which gives pages without copying the whole."""
    pieces, place, speaker = list(_list_pieces(rounds, ref, hide_failed=True)), parse_reference(ref), ""
    if place.first_post is not None and place.first_post == place.last_post:
        posts = (post for post in rounds[place.first - 1].post_list if post.number == place.first_post)
        speaker = USER if place.first_post == 0 else next(map(_name_ends, posts), "")
    return Passage(pieces, speaker)


def reload_messages(rounds: Sequence[Round], ref: str, role: str) -> list[dict[str, Any]]:
    """Return the chat messages behind *ref* as *role* would send them to a model.

    *rounds* are the log as the role sees it; hidden ones are left out. May raise ``UnknownReference``.
    """
    place = parse_reference(ref)
    found = _find_rounds(rounds, place, ref, hide_failed=True)
    if place.first_post is None:
        return [message for round_ in found for message in from_round(round_, role)]
    round_ = next(found)
    posts = _find_posts(round_, place, ref)
    if place.first_post > 0:
        return [from_post(post, role) for post in posts]
    return list(from_round(copy_with(round_, post_list=posts), role))


def _find_rounds(rounds: Sequence[Round], reference: Reference, ref: str, *, hide_failed: bool) -> Iterator[Round]:
    """Yield the rounds at *reference*. Raises ``UnknownReference`` if there is none."""
    if not 1 <= reference.first <= reference.last <= len(rounds):
        raise UnknownReference(f"there is no {ref}: rounds are numbered from 1, and this session has {len(rounds)}")
    is_empty = True
    for at in range(reference.first - 1, reference.last):
        round_ = rounds[at]
        if not (hide_failed and round_.is_hidden):
            is_empty = False
            yield round_
    if is_empty:
        raise UnknownReference(f"there is no {ref} to see: failed and undone rounds are hidden; give another reference")


def _find_posts(round_: Round, reference: Reference, ref: str) -> tuple[Post, ...]:
    """Return the posts at *reference* in its round; none for a query alone. May raise ``UnknownReference``."""
    first, last = reference.first_post or 0, reference.last_post or 0
    posts = tuple(post for post in round_.post_list if first <= post.number <= last)
    if not posts and not (first == 0 and (last == 0 or round_.user_query)):
        raise UnknownReference(f"there is no {ref} to see; give r{round_.number} for the whole round")
    return posts


def _list_pieces(rounds: Sequence[Round], ref: str, *, hide_failed: bool) -> Iterator[str]:
    """Yield the text behind *ref*, each line's label and text apart. Raises ``UnknownReference``."""
    place = parse_reference(ref)
    found = _find_rounds(rounds, place, ref, hide_failed=hide_failed)
    if place.first_post is None:
        for at, round_ in enumerate(found):
            yield _Label(f"\n\n[Round {round_.number}]" if at else f"[Round {round_.number}]")
            yield from _list_lines(round_, 0, round_.post_list)
        return
    round_, first, last = next(found), place.first_post, place.last_post
    posts = _find_posts(round_, place, ref)
    if first == last:
        yield join_text_with_calls(posts[0]) if first else round_.user_query
    else:
        yield _Label(f"[Round {round_.number}, posts {first} to {last}]")
        yield from _list_lines(round_, first, posts)


def _list_lines(round_: Round, first: int, posts: Sequence[Post]) -> Iterator[str]:
    """Yield the lines of *posts*, after the query's line if *first* is 0."""
    if first == 0 and round_.user_query:
        yield _Label(f"\n{USER}: ")
        yield round_.user_query
    for post in posts:
        if first == 0 and post is round_.post_list[0] and repeats_query(post, round_) and not post.attachment_list:
            continue
        yield _Label(f"\n{_name_ends(post)}: ")
        yield join_text_with_calls(post)


def _name_ends(post: Post) -> str:
    """Return the sender and the receiver of *post* on one line."""
    to = f" (result of {post.tool_call_id})" if post.tool_call_id is not None else f" to {post.send_to}"
    return make_label(f"{post.send_from}{to}")


def make_label(name: str) -> str:
    """Return *name* on one line and without colons: a colon separates a label from the text."""
    return " ".join(name.replace(":", " ").split())


#: Marks a line of somebody's text in a quoted page.
QUOTED = "> "
REST = "…"
#: Everything that a reader may take for the end of a line.
_LINE_END = compile_later("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def fold_case(text: str) -> str:
    """Return *text* in lower case, with every character at its old offset."""
    # The one letter with a lower case of two characters, and the one with a lower case that depends on its neighbours.
    return text.replace("\u0130", "i").lower().replace("\u03c2", "\u03c3")


class _Label(str):
    """A piece of ours between the texts: the beginning of a round, or a speaker's name."""

    __slots__ = ()


class Passage:
    """A long text in pieces; reading a page does not join them."""

    def __init__(self, pieces: Iterable[str], speaker: str = "") -> None:
        """*speaker* is the speaker of pieces without a label."""
        self._pieces = list(pieces)
        self._speaker = speaker
        #: The offset of each piece, and of the end.
        self._starts = [0, *accumulate(map(len, self._pieces))]

    def __len__(self) -> int:
        return self._starts[-1]

    def quote(self, start: int, stop: int) -> str:
        """Return the characters from *start* up to *stop* with every line of somebody's text marked, so that no text
        can pose as another's. *start* is not negative, and both may be behind the end.

        A marked line begins behind a speaker's name or with ``QUOTED``. A name that is cut at the front begins with
        ``REST``.
        """
        parts: list[str] = []
        for place in range(bisect_right(self._starts, start) - 1, len(self._pieces)):
            piece, offset = self._pieces[place], self._starts[place]
            if offset >= stop:
                break
            part = piece[max(start - offset, 0) : stop - offset]
            if isinstance(piece, _Label):
                parts.append(REST + part if start > offset and part.strip("\n") else part)
            else:
                parts.append((QUOTED if not parts else "") + _LINE_END.sub(rf"\g<0>{QUOTED}", part))
        return "".join(parts)

    def find_speaker(self, offset: int) -> str:
        """Return the speaker of the text at *offset*; empty at a label."""
        place = min(bisect_right(self._starts, offset), len(self._pieces)) - 1
        if place < 0 or isinstance(self._pieces[place], _Label):
            return ""
        labels = (piece for piece in reversed(self._pieces[:place]) if isinstance(piece, _Label))
        return next(labels, self._speaker).strip("\n: ")

    def find_floor_boundary(self, offset: int) -> int:
        """Return the last offset up to *offset*, which is not negative, that cuts no character."""
        return self._find_boundary(offset, find_floor_boundary)

    def find_ceil_boundary(self, offset: int) -> int:
        """Return the first offset from *offset* on that cuts no character."""
        return self._find_boundary(offset, find_ceil_boundary)

    def _find_boundary(self, offset: int, find: Callable[[str, int], int]) -> int:
        number = min(bisect_right(self._starts, offset), len(self._pieces)) - 1
        return self._starts[number] + find(self._pieces[number], offset - self._starts[number]) if self else 0

    def find_offsets(self, pattern: str, start: int = 0) -> Iterator[int]:
        """Yield the offsets of *pattern* from *start* on, ignoring case and without overlaps.

        *pattern* is literal text, not empty; a match may span pieces.
        """
        wanted, free, tail = fold_case(pattern), start, ""
        for piece, before in zip(self._pieces, self._starts, strict=False):
            text, origin = tail + fold_case(piece), before - len(tail)
            while (found := text.find(wanted, max(free - origin, 0))) >= 0:
                yield origin + found
                free = origin + found + len(wanted)
            tail = text[len(text) + 1 - len(wanted) :] if len(wanted) <= len(text) else text
