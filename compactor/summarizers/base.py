"""What a summarizer is asked and what it answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from memory.errors import ContextError
from memory.overlays import CompactedMessage
from memory.rounds import Round

__all__ = ["Summarizer", "SummarizerError", "Summary", "SummaryRequest", "strip_tags"]

RequestKind = Literal["rounds", "tool_run", "large_post"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """Everything a summarizer may want to know. A model needs only ``messages``. Its repr shows no conversation."""

    role: str = ""
    kind: RequestKind = "rounds"
    #: What the summary replaces, together with ``rounds``. None the first time.
    previous: CompactedMessage | None = field(default=None, repr=False)
    #: The new rounds only, with the posts that ``role`` sees. A round too long for one request is split over several
    #: requests: then each holds a slice of its posts, and of a long post's text.
    rounds: Sequence[Round] = field(default=(), repr=False)
    #: The span of ``rounds``, from 1, both inclusive, in the numbering of the role's visible rounds.
    start_index: int = 1
    end_index: int = 0
    #: How long the answer should be, in tokens; None: no wish.
    target_tokens: int | None = None
    #: The agent's plan as text, where there is one.
    plan: str | None = field(default=None, repr=False)
    #: The chat messages to send: what the prompt template rendered.
    messages: list[dict[str, Any]] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Summary:
    """A summarizer's answer, with what it cost where that is known."""

    text: str
    #: ``input_tokens``, ``output_tokens``, ``cached_tokens``.
    usage: Mapping[str, int] | None = None
    model: str | None = None


Summarizer = Callable[[SummaryRequest], "str | Summary"]


class SummarizerError(ContextError):
    """A summarizer could not answer; the published compaction stays, and the compactor tries again later."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        #: Seconds the endpoint asked to be left alone, where it did.
        self.retry_after = retry_after


_THOUGHT = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_SUMMARY = re.compile(r"\A\s*<summary>(.*?)(?:</summary>)?\s*\Z", re.DOTALL | re.IGNORECASE)


def strip_tags(text: str) -> str:
    """Return *text* without what models wrap around an answer: thoughts at its head, and summary tags around it.

    Only what leads the answer is taken off, so a summary that speaks of ``<think>`` in its middle keeps it.
    """
    text = text.strip()
    while match := _THOUGHT.match(text):
        text = text[match.end() :].strip()
    # Some servers cut the opening tag off and leave only the closing one.
    for tag in ("</think>", "</thinking>"):
        head, found, rest = text.partition(tag)
        if found and "<" + tag[2:] not in head:
            text = rest.strip()
    if match := _SUMMARY.match(text):
        text = match.group(1).strip()
    return text
