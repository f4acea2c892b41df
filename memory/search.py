"""Search in what was said: literal words, the best match first."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import log

from .messages import repeats_query, text_of, text_with_calls
from .references import folded, post_reference
from .rounds import USER, Round

__all__ = ["Hit", "ranked", "words_of"]

#: How much of a query is searched: characters, and words.
LONGEST_QUERY, MOST_WORDS = 2_000, 32
#: Characters of a text that are shown, and of a name.
SNIPPET, LONGEST_NAME = 240, 40

#: Scripts that are written without spaces between words, and Korean, whose words change at their ends.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
_PUNCTUATION = " .,;:!?\"'`()[]{}<>。、，！？「」『』（）"
#: The usual constants of Okapi BM25: how soon more of the same word counts for less, and how much length matters.
K1, B = 1.2, 0.75


@dataclass(frozen=True, slots=True)
class Hit:
    """A text in which words were found, and how often each of them."""

    ref: str
    who: str
    text: str
    counts: tuple[int, ...]

    def score(self, weights: tuple[float, ...], mean: float) -> float:
        """Return how well it matches by Okapi BM25; *mean* is the mean length of all texts."""
        norm = K1 * (1 - B + B * len(self.text) / mean)
        return sum(weight * n * (K1 + 1) / (n + norm) for weight, n in zip(weights, self.counts, strict=True))

    def line(self, words: tuple[str, ...]) -> str:
        """Return a line with its reference and the part of its text where its longest word first stands."""
        longest = max((word for word, n in zip(words, self.counts, strict=True) if n), key=len)
        start = max(folded(self.text).find(longest) - SNIPPET // 3, 0)
        stop = start + SNIPPET
        part = " ".join(self.text[start:stop].split())
        size = f"{len(self.text)} characters" + (f", shown from offset {start}" if start else "")
        return f"{self.ref} ({self.who}; {size}): {'...' * (start > 0)}{part}{'...' * (stop < len(self.text))}"


def words_of(query: str) -> tuple[str, ...]:
    """Return the words of *query*, folded and each once; what is written without spaces also as pairs of characters."""
    words: dict[str, None] = {}
    for word in folded(query[:LONGEST_QUERY]).split():
        words[word.strip(_PUNCTUATION) or word] = None
        for run in _UNSPACED.findall(word):
            words.update(dict.fromkeys(run[place : place + 2] for place in range(len(run) - 1)))
        if _UNSPACED.search(word):
            words.update(dict.fromkeys(filter(None, (rest.strip(_PUNCTUATION) for rest in _UNSPACED.split(word)))))
    return tuple(words)[:MOST_WORDS]


def ranked(rounds: Iterable[Round], words: tuple[str, ...], *, apart_from: Collection[str] = ()) -> list[Hit]:
    """Return the texts that have any of *words*, also inside of a longer one: by Okapi BM25, then the newest first.

    Goes once over the posts. The rarer a word is in them, the more it counts. Calls of the tools *apart_from* are not
    searched, nor are their results.
    """
    total = characters = 0
    hits: list[Hit] = []
    for round_ in rounds:
        for ref, who, text in _searched(round_, apart_from):
            total += 1
            characters += len(text)
            lowered = folded(text)
            counts = tuple(map(lowered.count, words))
            if any(counts):
                hits.append(Hit(ref, who, text, counts))
    having = [sum(1 for n in column if n) for column in zip(*(hit.counts for hit in hits), strict=True)]
    weights = tuple(log(1 + (total - n + 0.5) / (n + 0.5)) for n in having)
    mean = max(characters / total, 1) if total else 1
    hits.reverse()
    hits.sort(key=lambda hit: hit.score(weights, mean), reverse=True)
    return hits


def _searched(round_: Round, apart_from: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Give reference, speakers and text of all that is searched in a round."""
    skipped: set[str] = set()  # ids of calls whose results are not searched
    posts = round_.post_list
    if round_.user_query and not (posts and repeats_query(posts[0], round_) and posts[0].attachment_list):
        yield post_reference(round_, None), USER, round_.user_query
    for place, post in enumerate(posts):
        if place == 0 and repeats_query(post, round_) and not post.attachment_list:
            continue
        if post.tool_call_id is not None and post.tool_call_id in skipped:
            continue
        asked = {call.id for call in post.tool_calls if call.name in apart_from}
        skipped |= asked
        # Offsets hold for both: the calls stand behind the text.
        text = text_of(post) if asked and len(asked) == len(post.tool_calls) else text_with_calls(post)
        if text:
            who = f"{post.send_from[:LONGEST_NAME]} to {post.send_to[:LONGEST_NAME]}"
            yield post_reference(round_, post), who, text
