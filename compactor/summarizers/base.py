"""What a summarizer is asked and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from memory.errors import ContextError
from memory.overlays import CompactedMessage, Note
from memory.rounds import Round

RequestKind = Literal["rounds", "changes", "tool_run", "large_post"]
#: How a summary is asked for: with a transcript of its own, or behind the beginning of the agent's last prompt, which
#: its provider has in its cache.
Style = Literal["separate", "continue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The same question as a continuation of the agent's own last prompt, most of which its provider has in its cache.

    Its repr shows no conversation.
    """

    #: The messages that the agent's last prompt began with, as they were sent, up to the last round that is summarised,
    #: and what was said in that since; then one user message, the instruction.
    messages: list[dict[str, Any]] = field(repr=False)
    #: The rest of what the provider's cache goes by, as it was sent.
    tools: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    tool_choice: Any = None
    #: The agent's model, as configured; empty: not known.
    model: str = ""


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
    #: Where the agent's last prompt shows in full what is to be summarised: the same question behind its beginning.
    #: Not made for a summarizer that says ``takes_continued = False``.
    continued: Continued | None = field(default=None, repr=False)
    #: The notes that changes are asked for, where ``kind`` is "changes"; the first is number 1.
    notes: Sequence[Note] = field(default=(), repr=False)
    #: The JSON schema of the answer, where it is not plain text.
    schema: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Summary:
    """A summarizer's answer, with what it cost where that is known."""

    text: str
    #: ``input_tokens``, ``output_tokens``, ``cached_tokens``.
    usage: Mapping[str, int] | None = None
    model: str | None = None
    #: What ``text`` says, note by note, where it was made so.
    notes: tuple[Note, ...] = ()
    #: Whether it holds nothing but what was said, each line below the heading of whoever said it. A text that a model
    #: wrote is no such summary: what it has below the user's heading is looked for in the user's words.
    extracted: bool = False

    def __post_init__(self) -> None:
        # As answers say it: what is no count there is not worth an answer that was paid for.
        object.__setattr__(self, "usage", _counts(self.usage))


#: Whoever counted more tokens has not counted.
MAX_TOKENS = 2**53


def _counts(usage: object) -> Mapping[str, int] | None:
    """Return what of *usage* says how many; None where nothing is said."""
    if not isinstance(usage, Mapping):
        return None
    return {
        name: count
        for name, count in usage.items()
        if isinstance(name, str) and type(count) is int and 0 <= count <= MAX_TOKENS
    }


Summarizer = Callable[[SummaryRequest], "str | Summary"]


class SummarizerError(ContextError):
    """A summarizer could not answer; the published compaction stays, and the compactor tries again later."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        #: Seconds the endpoint asked to be left alone, where it did.
        self.retry_after = retry_after


def added(usage: Mapping[str, int] | None, more: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """Return *usage* and *more* of it, as far as they are known."""
    if usage is None or more is None:
        return more if usage is None else usage
    return {key: usage.get(key, 0) + more.get(key, 0) for key in {**usage, **more}}
