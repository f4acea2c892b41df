"""The checks that a summary must pass before it may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prompts import TAGS

from .errors import SummaryRejected
from .replies import is_reply
from .summarizers.base import Summary, strip_tags
from .tokens import TokenCounter

__all__ = ["LEAST_SAVING", "MOST_OVER_TARGET", "Source", "accept"]

#: A summary may grow by at most this share of the new rounds that it takes in.
LEAST_SAVING = 0.9
#: A summary may be this many times as long as it was asked to be: models count badly.
MOST_OVER_TARGET = 2.0
_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})\b[^<>]*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """What a summary is made from, and measured against."""

    #: The conversation as the summarizer read it. Without the previous summary: that may stand again, word for word,
    #: where nothing worth keeping was said since.
    text: str
    #: Tokens of all new rounds that the summary takes in; more than the text's where this is not the first request.
    tokens: int
    #: Tokens of the published summary that it replaces.
    previous_tokens: int = 0


def accept(answer: object, source: Source, *, target_tokens: int | None, count: TokenCounter) -> tuple[Summary, int]:
    """Return the summarizer's *answer* without the tags around it, and its tokens.

    Raises ``SummaryRejected`` naming the first check that the answer fails.
    """
    summary = Summary(answer) if isinstance(answer, str) else answer
    if not isinstance(summary, Summary) or not isinstance(summary.text, str):
        raise SummaryRejected(
            "not_text", f"the summarizer returned {type(answer).__name__}; it must return a str or a Summary"
        )
    text = strip_tags(summary.text)
    if not any(character.isalnum() for character in text):
        raise SummaryRejected("empty", "the summarizer's answer holds no text; look at its prompt and its token limit")
    if is_reply(text):
        raise SummaryRejected(
            "greeting", "the summarizer replied to the conversation instead of summarising it; look at its prompt"
        )
    if repeats(text, source.text):
        raise SummaryRejected("echo", "the summarizer repeated the conversation instead of summarising it")
    tokens = count(text)
    if tokens > source.previous_tokens + source.tokens * LEAST_SAVING:
        raise SummaryRejected(
            "no_progress",
            f"the summary has {tokens} tokens; what it replaces, {source.previous_tokens} and {source.tokens} new ones",
        )
    if target_tokens is not None and tokens > MOST_OVER_TARGET * target_tokens:
        raise SummaryRejected(
            "oversized",
            f"the summary has {tokens} tokens, over {MOST_OVER_TARGET:g} times the {target_tokens} it was asked for;"
            " raise target_tokens, or state the length in the prompt",
        )
    return Summary(text, summary.usage, summary.model), tokens


def repeats(text: str, source: str) -> bool:
    """Return whether *text* is a verbatim stretch of at least half of *source*, white space and tags aside."""
    said, read = _bare(text), _bare(source)
    return 2 * len(said) >= len(read) and said in read


def _bare(text: str) -> str:
    return " ".join(_TAG.sub(" ", text.replace("&lt;", "<")).split())
