"""Search in what was said: which texts there are, what words are looked for, and which match is the best.

Where the texts come from is left to ``texts``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import log
from typing import NamedTuple

from ..graphemes import beginning, cut_before
from ..messages import repeats_query, text_of, text_with_calls
from ..rounds import USER, Post, Round
from ..stores.base import StoredText
from ..stores.names import storable
from .references import folded, label_of, place_reference

__all__ = ["RECALL_TOOLS", "Hit", "hit_in", "ranked", "searchable", "texts_of", "words_of"]

#: The names of recall's tools: a search does not find earlier searches.
RECALL_TOOLS = ("context_reload", "read_rounds", "search_history")

#: How much of a query is searched: characters, and words.
LONGEST_QUERY, MOST_WORDS = 2_000, 32
#: Characters of a text that are shown, and of a name.
SNIPPET, LONGEST_NAME = 240, 40

#: Scripts that are written without spaces between words, and Korean, whose words change at their ends.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
_PUNCTUATION = " .,;:!?\"'`()[]{}<>。、，！？「」『』（）"
#: Who stands for a sender and a receiver without names, which would mean everybody.
_NOBODY = "\0"
#: The usual constants of Okapi BM25: how soon more of the same word counts for less, and how much length matters.
K1, B = 1.2, 0.75


class Hit(NamedTuple):  # of which there can be one for every text
    """A place in which words were found, the length of its text, and how often each word is in it."""

    round: int
    #: Of the post in the round; 0 is the user's query.
    number: int
    length: int
    counts: tuple[int, ...]

    @property
    def ref(self) -> str:
        return place_reference(self.round, self.number)

    def score(self, weights: Sequence[float], mean: float) -> float:
        """Return how well it matches by Okapi BM25; *mean* is the mean length of all texts."""
        norm, score = K1 * (1 - B + B * self.length / mean), 0.0
        for weight, n in zip(weights, self.counts, strict=True):
            score += weight * n * (K1 + 1) / (n + norm)
        return score

    def line(self, round_: Round, words: Sequence[str]) -> str:
        """Return a line with its reference and the part of its text where its longest word first stands."""
        who, text = _shown(round_, self.number)
        longest = max((word for word, n in zip(words, self.counts, strict=True) if n), key=len)
        start = cut_before(text, max(searchable(text).find(longest) - SNIPPET // 3, 0))
        stop = cut_before(text, start + SNIPPET)
        part = " ".join(text[start:stop].split())
        size = f"{len(text)} characters" + (f", shown from offset {start}" if start else "")
        return f"{self.ref} ({who}; {size}): {'...' * (start > 0)}{part}{'...' * (stop < len(text))}"


def searchable(text: str) -> str:
    """Return *text* as words are looked for in it: folded, and what not every store can hold replaced, each character
    in its place."""
    lowered = folded(text)
    return lowered if lowered.isascii() and "\0" not in lowered else storable(lowered)


def words_of(query: str) -> tuple[str, ...]:
    """Return the words of *query*, folded and each once; what is written without spaces also as pairs of characters."""
    words: dict[str, None] = {}
    for word in searchable(query[:LONGEST_QUERY]).split():
        words[word.strip(_PUNCTUATION) or word] = None
        for run in _UNSPACED.findall(word):
            words.update(dict.fromkeys(run[place : place + 2] for place in range(len(run) - 1)))
        if _UNSPACED.search(word):
            words.update(dict.fromkeys(filter(None, (rest.strip(_PUNCTUATION) for rest in _UNSPACED.split(word)))))
    return tuple(words)[:MOST_WORDS]


def texts_of(round_: Round, role: str = "", *, apart_from: Collection[str] = RECALL_TOOLS) -> Iterator[StoredText]:
    """Give the texts of a round that are searched, of those that *role* sees; the empty role sees all.

    Give the whole round: what is searched of it is the same for every role. Calls of the tools *apart_from* are not
    searched, nor are their results.
    """
    if round_.user_query:
        yield StoredText(round_.number, 0, "", "", searchable(round_.user_query))
    skipped: set[tuple[str, str]] = set()  # the caller and id of calls whose results are not searched
    for place, post in enumerate(round_.post_list):
        if post.tool_call_id is not None and not skipped.isdisjoint(
            ((post.send_to, post.tool_call_id), (post.send_from, post.tool_call_id))
        ):
            continue
        for call in post.tool_calls:  # an id that is used again means the newest call of that id
            (skipped.add if call.name in apart_from else skipped.discard)((post.send_from, call.id))
        if role and role not in (post.send_from, post.send_to):
            continue
        said = _said(post, round_, apart_from, opening=place == 0)
        if said:
            sender = post.send_from if post.send_from or post.send_to else _NOBODY
            yield StoredText(round_.number, post.number, sender, post.send_to, searchable(said))


def hit_in(text: StoredText, words: Sequence[str]) -> Hit | None:
    """Return what is found of *words* in *text*, also inside of a longer one; None where none of them is."""
    counts = tuple(map(text.text.count, words))
    return Hit(text.round, text.number, len(text.text), counts) if any(counts) else None


def ranked(hits: Iterable[Hit], total: int, characters: int) -> list[Hit]:
    """Return *hits* by Okapi BM25, then the newest first. The rarer a word is, the more it counts.

    *total* and *characters*: how many texts were searched, those without hits included, and their length in all.
    """
    by_place = sorted(hits, key=lambda hit: (hit.round, hit.number), reverse=True)
    having = [sum(1 for n in column if n) for column in zip(*(hit.counts for hit in by_place), strict=True)]
    weights = tuple(log(1 + (total - n + 0.5) / (n + 0.5)) for n in having)
    mean = max(characters / total, 1) if total else 1
    return sorted(by_place, key=lambda hit: hit.score(weights, mean), reverse=True)


def _said(post: Post, round_: Round, apart_from: Collection[str], *, opening: bool) -> str:
    """Return what is searched of a post; *opening*: of the round's first, which may repeat the query."""
    if opening and repeats_query(post, round_):  # it is found as the query
        if not (post.attachment_list or post.tool_calls):
            return ""
        post = post.model_copy(update={"message": ""})
    own = bool(post.tool_calls) and all(call.name in apart_from for call in post.tool_calls)
    return text_of(post) if own else text_with_calls(post)


def _shown(round_: Round, number: int) -> tuple[str, str]:
    """Return who says what in the post of that number; 0 is the query."""
    if number == 0:
        return USER, round_.user_query
    post: Post = next(post for post in round_.post_list if post.number == number)
    ends = (label_of(beginning(name, LONGEST_NAME)) for name in (post.send_from, post.send_to))
    return " to ".join(ends), text_with_calls(post)
