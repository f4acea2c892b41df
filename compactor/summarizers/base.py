"""The summarizer interface: request, answer and error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from memory.errors import ContextError
from memory.overlays import CompactedMessage, Note
from memory.rounds import Round, freeze_mapping
from memory.values import ValueObject

#: A larger count is an error of the endpoint.
MAX_TOKENS = 2**53

RequestKind = Literal["rounds", "changes", "tool_run", "large_post"]
#: How to ask for a summary: with a separate transcript, or as a continuation of the agent's last prompt, which its
#: provider has in its cache.
Style = Literal["separate", "continue"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Continued(ValueObject):
    """The request as a continuation of the agent's last prompt, which its provider mostly has in its cache.

    Its repr shows no conversation.
    """

    #: The first messages of the agent's last prompt, unchanged, up to the last round to summarise; that round's newer
    #: messages; then the instruction as one user message. With ``native``, where ``compactor.formats`` made them.
    messages: list[dict[str, Any]] = field(repr=False)
    #: The rest of the provider's cache key, as it was sent.
    tools: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    tool_choice: Any = None
    #: The agent's model, as configured; empty if unknown.
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SummaryRequest(ValueObject):
    """The input of a summarizer. A model needs only ``messages``. Its repr shows no conversation."""

    role: str = ""
    kind: RequestKind = "rounds"
    #: The previous compaction; the summary replaces it and ``rounds``. None the first time.
    previous: CompactedMessage | None = field(default=None, repr=False)
    #: The new rounds only, with the posts that ``role`` sees. A round too long for one request is split over several
    #: requests; each holds a slice of its posts, and of a long post's text.
    rounds: Sequence[Round] = field(default=(), repr=False)
    #: The span of ``rounds``, from 1, both inclusive, in the numbering of the role's visible rounds.
    start_index: int = 1
    end_index: int = 0
    #: Target length of the answer in tokens; None: no target.
    target_tokens: int | None = None
    #: The agent's plan as text, if any.
    plan: str | None = field(default=None, repr=False)
    #: The chat messages to send, rendered from the prompt template.
    messages: list[dict[str, Any]] = field(default_factory=list, repr=False)
    #: The same request as a continuation, if the agent's last prompt shows in full everything to summarise. None for a
    #: summarizer with ``takes_continued = False``.
    continued: Continued | None = field(default=None, repr=False)
    #: The notes to edit, if ``kind`` is "changes"; the first is number 1.
    notes: Sequence[Note] = field(default=(), repr=False)
    #: The JSON schema of the answer, unless it is plain text.
    schema: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Summary(ValueObject):
    """A summarizer's answer, and its token usage if known."""

    text: str
    #: ``input_tokens``, ``output_tokens``, ``cached_tokens``.
    usage: Mapping[str, int] | None = None
    model: str | None = None
    #: The content of ``text`` note by note, if the summarizer writes notes.
    notes: tuple[Note, ...] = ()
    #: True if it contains only quoted words, each line below its speaker's heading. False for a model's text: its lines
    #: below the user's heading are checked against the user's words.
    extracted: bool = False
    #: Whether the model was asked behind the agent's prompt; None: as the request proposed.
    continued: bool | None = None
    #: The provider's own form of ``text``: ``provider``, a format of ``compactor.formats`` (``anthropic``,
    #: ``responses``); ``data``, a list of its blocks or items, as JSON; ``model``, if no other model may read it;
    #: ``tokens``, what the provider counts for its encrypted texts, if that is known.
    payload: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.payload is not None:
            object.__setattr__(self, "payload", _read_payload(self.payload))
        valid = None
        if isinstance(self.usage, Mapping):  # drop invalid counts instead of failing: the answer has been paid for
            named = ((name, count) for name, count in self.usage.items() if isinstance(name, str))
            valid = {name: count for name, count in named if type(count) is int and 0 <= count <= MAX_TOKENS}
        object.__setattr__(self, "usage", valid)


def _read_payload(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *payload* read-only. Raises ``ValueError`` if it has another form, ``MessageError`` if it is no JSON."""
    read = freeze_mapping(payload)
    data, names, tokens = read.get("data"), (read.get("provider"), read.get("model", "")), read.get("tokens", 0)
    is_listed = isinstance(data, tuple) and bool(data) and all(isinstance(one, Mapping) for one in data)
    is_counted = type(tokens) is int and 0 <= tokens <= MAX_TOKENS
    others = read.keys() - {"provider", "model", "data", "tokens"}
    if not (is_listed and is_counted and all(isinstance(name, str) for name in names)) or others:
        raise ValueError(
            "payload= is a mapping of 'provider', the name of a format; 'data', a list of its blocks; 'model'; 'tokens'"
        )
    return read


Summarizer = Callable[[SummaryRequest], "str | Summary"]
#: What a summarizer may say of itself by attributes, and what is assumed of one that does not.
ASSUMED = {
    "deterministic": False,  # it costs nothing, and gives the same answer to the same request
    "takes_changes": True,  # it may be asked for changes of notes
    "takes_continued": True,  # it may be asked behind the agent's last prompt
    "style": None,  # "continue" if it is always asked so, whatever model the prompt was for
    "model": "",  # the name of the model that it asks
    "provider": "",  # the format of the payloads that it asks for and reads
}


class SummarizerError(ContextError):
    """A summarizer failed. The published compaction stays, and the compactor retries later."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        #: Seconds to wait before the next request, if the endpoint named a time.
        self.retry_after = retry_after


def add_usage(usage: Mapping[str, int] | None, more: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """Return the sum of *usage* and *more*; None counts as unknown and adds nothing."""
    if usage is None or more is None:
        return more if usage is None else usage
    return {key: usage.get(key, 0) + more.get(key, 0) for key in {**usage, **more}}
