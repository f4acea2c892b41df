"""The checks that a summary must pass before it may be shown."""

from __future__ import annotations

import re

from .errors import SummaryRejected
from .summarizers.base import Summary, strip_tags
from .tokens import TokenCounter

__all__ = ["LEAST_SAVING", "MOST_OVER_TARGET", "accept"]

#: A summary must be at most this share of what it replaces.
LEAST_SAVING = 0.9
#: A summary may be this many times as long as it was asked to be: models count badly.
MOST_OVER_TARGET = 2.0
#: A greeting is short; a long text that begins with "Hello" is something else.
_LONGEST_GREETING = 400

_GREETING = re.compile(
    r"""
    \W* (?: (?: hello | hi | hey | greetings | welcome | good\ (?:morning|afternoon|evening) | sure | certainly
            | of\ course | absolutely | great | thanks? | thank\ you | i\ understand | understood | got\ it
            | okay | ok ) \b .{0,200}? )?
    (?: how\ (?:can|may|could|should)\ i\ (?:help|assist|be\ of)
      | what\ (?:can|may|should|would)\ (?:i|you)\ (?:do|like|help)
      | (?:i\ am|i'm|i’m)\ (?:here|happy|glad|ready)\ to\ (?:help|assist) | (?:i\ would|i'd|i’d)\ be\ (?:happy|glad)\ to
      | let\ me\ know\ (?:how|what|if) | is\ there\ anything\ else | please\ (?:provide|share|send|paste)
      | (?:i\ am|i'm|i’m)\ sorry,?\ (?:but\ )?i | i\ (?:can't|cannot|can’t|am\ unable)\ )
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_BARE_GREETING = re.compile(
    r"\W*(?:hello|hi|hey|greetings|sure|ok|okay|understood|got it|of course|certainly)(?: there)?\W*", re.IGNORECASE
)


def accept(
    answer: object, *, source: str, source_tokens: int, target_tokens: int | None, count: TokenCounter
) -> tuple[Summary, int]:
    """Return the summarizer's *answer* without the tags around it, and its tokens.

    *source* is the previous summary and the conversation as the summarizer read them. Raises ``SummaryRejected`` naming
    the first check that the answer fails.
    """
    summary = Summary(answer) if isinstance(answer, str) else answer
    if not isinstance(summary, Summary) or not isinstance(summary.text, str):
        raise SummaryRejected(
            "not_text", f"the summarizer returned {type(answer).__name__}; it must return a str or a Summary"
        )
    text = strip_tags(summary.text)
    if not any(character.isalnum() for character in text):
        raise SummaryRejected("empty", "the summarizer's answer holds no text; look at its prompt and its token limit")
    if is_greeting(text):
        raise SummaryRejected(
            "greeting", "the summarizer replied to the conversation instead of summarising it; look at its prompt"
        )
    if repeats(text, source):
        raise SummaryRejected("echo", "the summarizer repeated the conversation instead of summarising it")
    tokens = count(text)
    if tokens > source_tokens * LEAST_SAVING:
        raise SummaryRejected(
            "no_progress", f"the summary has {tokens} tokens, and what it replaces only {source_tokens}"
        )
    if target_tokens is not None and tokens > MOST_OVER_TARGET * target_tokens:
        raise SummaryRejected(
            "oversized",
            f"the summary has {tokens} tokens, over {MOST_OVER_TARGET:g} times the {target_tokens} it was asked for;"
            " raise target_tokens, or state the length in the prompt",
        )
    return Summary(text, summary.usage, summary.model), tokens


def is_greeting(text: str) -> bool:
    """Return whether *text* is a reply that greets, offers help or refuses, rather than a summary."""
    if len(text) > _LONGEST_GREETING:
        return False
    return bool(_BARE_GREETING.fullmatch(text) or _GREETING.match(text))


def repeats(text: str, source: str) -> bool:
    """Return whether *text* is a verbatim stretch of at least half of *source*, white space aside."""
    said, read = " ".join(text.split()), " ".join(source.split())
    return 2 * len(said) >= len(read) and said in read
