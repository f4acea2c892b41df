"""How much of a text is copied from another: by runs of words, in time linear in both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prompts import TAGS

from .content import CJK

#: Words in a row that count as copied; fewer are a phrase that anybody would use.
RUN = 6

_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})\b[^<>]*>", re.IGNORECASE)
_NAMES = "|".join(TAGS)
#: What only a transcript of ours contains: text from a conversation cannot open these tags there.
_HEAD = re.compile(
    r'[<‹](?:round number|(?:message|attachment|tool_call|tool_result|summary) (?:from|id|name|type|to|at))="',
    re.IGNORECASE,
)
#: Tags without attributes stand in other texts as well: these begin a line, and end there or later.
_OPENING = re.compile(rf"^[ \t]{{0,20}}[<‹]({_NAMES})[>›](?P<alone>[ \t]{{0,20}}$)?", re.IGNORECASE | re.MULTILINE)
_CLOSING = re.compile(rf"[<‹]/({_NAMES})[>›]", re.IGNORECASE)
_CLOSING_LINE = re.compile(rf"^[ \t]{{0,20}}[<‹]/(?:{_NAMES})[>›][ \t]{{0,20}}$", re.IGNORECASE | re.MULTILINE)
_CODE = re.compile(r"(?<!\A)^[ \t]{0,3}(```|~~~).*?(?:^[ \t]{0,3}\1|\Z)|`[^`\n]{1,300}`", re.MULTILINE | re.DOTALL)
# A character of a script without spaces is a word.
_WORD = re.compile(
    rf"[{CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]|[^\W_{CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+"
)
#: Between two posts: in no text.
_POST = "\0"


class Copied(NamedTuple):
    #: The share of the text's words that stand in the source in runs of ``RUN``, and how much of the source these are.
    share: float
    of_source: float
    #: How many different runs these are: about as many as words.
    runs: int
    #: The longest stretch of the source that is copied, as a share of the text and in words; and over how many posts.
    stretch: float
    stretch_words: int
    posts: int
    #: The source's words.
    of_words: int


def repeats(text: str, source: str) -> bool:
    """Return whether *text* is a verbatim stretch of at least half of *source*, white space and tags aside."""
    said = bare(text)
    if any(word not in source for word in said.split() if "<" not in word):
        return False  # as with most summaries, at one of the first words
    read = bare(source)
    return 2 * len(said) >= len(read) and said in read


def bare(text: str, between: str = " ") -> str:
    """Return *text* without the tags of transcripts, in single spaces."""
    return " ".join(_TAG.sub(f" {between} ", text.replace("&lt;", "<")).split())


def has_markup(text: str) -> bool:
    """Return whether *text* holds tags of our requests. In code, and in a sentence those without attributes, they are
    spoken of; a block of code that begins the text is a wrapping."""
    if "<" not in text and "‹" not in text:
        return False
    text = _CODE.sub(" ", text)
    if _HEAD.search(text) or _CLOSING_LINE.search(text):
        return True
    last = {closing[1].casefold(): closing.start() for closing in _CLOSING.finditer(text)}
    return any(
        one["alone"] is not None or last.get(one[1].casefold(), -1) > one.start() for one in _OPENING.finditer(text)
    )


def measure_copied(text: str, source: str) -> Copied:
    """Return how much of *text* is copied from *source*, however it is broken into lines, marked and punctuated."""
    said = _WORD.findall(bare(text).casefold())
    read, posts = _read(source)
    own = list(_runs(said))
    wanted = set(own)
    there: set[int] = set()
    longest, over, start, end = 0, 0, 0, 0
    for place, run in enumerate(_runs(read)):
        there.add(run)
        if run not in wanted:
            continue
        start, end = (start if place <= end else place), place + RUN
        if longest < end - start <= len(said):  # a longer one is what the source says again and again
            longest, over = end - start, posts[end - 1] - posts[start] + 1
    copied, until = 0, 0
    for place, run in enumerate(own):
        if run in there:
            copied += place + RUN - max(place, until)
            until = place + RUN
    words = max(len(said), 1)
    # Different runs are counted: what either says again and again is not copied again and again.
    runs = len(wanted & there)
    return Copied(copied / words, runs / max(len(there), 1), runs, longest / words, longest, over, len(read))


def _read(source: str) -> tuple[list[str], list[int]]:
    """Return the words of *source*, and for each the number of the post that it stands in."""
    found: list[str] = []
    posts: list[int] = []
    for number, post in enumerate(bare(source, _POST).split(_POST)):
        added = _WORD.findall(post.casefold())
        found += added
        posts += [number] * len(added)
    return found, posts


def _runs(words: Sequence[str]) -> Iterator[int]:
    """Yield a hash for each run of ``RUN`` words."""
    for place in range(len(words) - RUN + 1):
        yield hash(tuple(words[place : place + RUN]))
