"""Measure how much of a text is copied from another, by runs of words, in time linear in both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prompts import TAGS

from .content import CJK

#: Words in a row that count as copied; a shorter match may be a common phrase.
RUN = 6

_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})\b[^<>]*>", re.IGNORECASE)
_NAMES = "|".join(TAGS)
#: Found only in our own transcripts: they escape these tags in the text of a conversation.
_HEAD = re.compile(
    r'[<‹](?:round number|(?:message|attachment|tool_call|tool_result|summary) (?:from|id|name|type|to|at))="',
    re.IGNORECASE,
)
#: Other texts use tags without attributes too. These match at the start of a line and close there or later.
_OPENING = re.compile(rf"^[ \t]{{0,20}}[<‹]({_NAMES})[>›](?P<alone>[ \t]{{0,20}}$)?", re.IGNORECASE | re.MULTILINE)
_CLOSING = re.compile(rf"[<‹]/({_NAMES})[>›]", re.IGNORECASE)
_CLOSING_LINE = re.compile(rf"^[ \t]{{0,20}}[<‹]/(?:{_NAMES})[>›][ \t]{{0,20}}$", re.IGNORECASE | re.MULTILINE)
_CODE = re.compile(r"(?<!\A)^[ \t]{0,3}(```|~~~).*?(?:^[ \t]{0,3}\1|\Z)|`[^`\n]{1,300}`", re.MULTILINE | re.DOTALL)
# In scripts without spaces, each character is a word.
_WORD = re.compile(
    rf"[{CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]|[^\W_{CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+"
)
#: Separates two posts; no text contains it.
_POST = "\0"


class Copied(NamedTuple):
    #: Share of the text's words found in the source in runs of ``RUN``, and share of the source's runs that are copied.
    share: float
    of_source: float
    #: Number of different copied runs: about the number of copied words.
    runs: int
    #: Longest copied stretch of the source: its share of the text, its words, and the posts it covers.
    stretch: float
    stretch_words: int
    posts: int
    #: Words in the source.
    of_words: int


def repeats(text: str, source: str) -> bool:
    """Return whether *text* is a verbatim stretch of at least half of *source*, ignoring white space and tags."""
    said = bare(text)
    if any(word not in source for word in said.split() if "<" not in word):
        return False  # fast path: most summaries leave here at one of the first words
    read = bare(source)
    return 2 * len(said) >= len(read) and said in read


def bare(text: str, between: str = " ") -> str:
    """Return *text* without transcript tags and with single spaces."""
    return " ".join(_TAG.sub(f" {between} ", text.replace("&lt;", "<")).split())


def has_markup(text: str) -> bool:
    """Return whether *text* contains tags of our requests.

    Tags in code do not count, nor tags without attributes inside a sentence: the text only mentions them. A code block
    at the start of the text is treated as a wrapper, so its tags count.
    """
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
    """Return how much of *text* is copied from *source*, ignoring line breaks, markup and punctuation."""
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
        if longest < end - start <= len(said):  # a longer stretch means that the source repeats itself
            longest, over = end - start, posts[end - 1] - posts[start] + 1
    copied, until = 0, 0
    for place, run in enumerate(own):
        if run in there:
            copied += place + RUN - max(place, until)
            until = place + RUN
    words = max(len(said), 1)
    # Count different runs, so that repetition in either text does not count as more copying.
    runs = len(wanted & there)
    return Copied(copied / words, runs / max(len(there), 1), runs, longest / words, longest, over, len(read))


def _read(source: str) -> tuple[list[str], list[int]]:
    """Return the words of *source*, and the post number of each word."""
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
