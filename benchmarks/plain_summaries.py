"""Summaries that need no model: ours, and the plain ones that it is measured against."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from compactor import ExtractiveSummarizer, Summary, SummaryRequest
from compactor import count_tokens as count
from compactor.tokens import clip_to_tokens
from memory import USER, CompactedMessage, Round

__all__ = ["METHODS", "Method", "first_user_messages", "last_tokens", "lines", "ours", "successive", "tf_idf"]

Method = Callable[[Sequence[Round], "CompactedMessage | None", int], str]


def lines(rounds: Sequence[Round], previous: CompactedMessage | None = None) -> list[tuple[str, str]]:
    """Return (speaker, text) for everything that was said, oldest first, the previous summary before it."""
    said = [("summary", previous.summary)] if previous else []
    for round_ in rounds:
        said.append((USER, round_.user_query))
        for post in round_.post_list:
            texts = [post.message, *(a.content for a in post.attachment_list), *(c.arguments for c in post.tool_calls)]
            said += [(post.send_from, text) for text in texts if text and text != round_.user_query]
    return said


def ours(rounds: Sequence[Round], previous: CompactedMessage | None, target: int) -> str:
    answer = ExtractiveSummarizer()(SummaryRequest(rounds=rounds, previous=previous, target_tokens=target))
    return answer.text if isinstance(answer, Summary) else answer


def last_tokens(rounds: Sequence[Round], previous: CompactedMessage | None, target: int) -> str:
    # Cut from the end by reversing: the counts of both directions differ by a few tokens at most.
    words = "\n".join(text for _, text in lines(rounds, previous)).split(" ")
    low, high = 0, len(words)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if count(" ".join(words[middle:])) <= target else (middle + 1, high)
    return " ".join(words[low:])


def first_user_messages(rounds: Sequence[Round], previous: CompactedMessage | None, target: int) -> str:
    return _fill([text for speaker, text in lines(rounds, previous) if speaker in {USER, "summary"}], target)


def tf_idf(rounds: Sequence[Round], previous: CompactedMessage | None, target: int) -> str:
    """Sentences by the mean TF-IDF of their words, each sentence a document."""
    sentences = [s for _, text in lines(rounds, previous) for s in re.split(r"(?<=[.!?])\s+|\n+", text) if s.strip()]
    bags = [Counter(re.findall(r"\w+", sentence.lower())) for sentence in sentences]
    spread = Counter(word for bag in bags for word in bag)

    def worth(place: int) -> float:
        bag = bags[place]
        total = sum(times * math.log(len(bags) / spread[word]) for word, times in bag.items())
        return total / (sum(bag.values()) or 1)

    ranked = sorted(range(len(sentences)), key=worth, reverse=True)
    return _fill([sentences[place] for place in ranked], target, skip=True)


def _fill(texts: Iterable[str], target: int, *, skip: bool = False) -> str:
    taken: list[str] = []
    left = target
    for text in texts:
        cost = count(text) + 1
        if cost <= left:
            taken.append(text)
            left -= cost
        elif not skip:
            taken.append(clip_to_tokens(text, left))
            break
    return "\n".join(taken)


METHODS: dict[str, Method] = {
    "extractive": ours,
    "last tokens": last_tokens,
    "first user messages": first_user_messages,
    "tf-idf": tf_idf,
}


def successive(method: Method, batches: Sequence[Sequence[Round]], target: int) -> Iterable[str]:
    """Yield the summary after each of *batches*, each made from the one before and the new rounds only."""
    previous, end = None, 0
    for batch in batches:
        end += len(batch)
        text = method(batch, previous, target)
        previous = CompactedMessage(start_index=1, end_index=end, summary=text)
        yield text
