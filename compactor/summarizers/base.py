"""The summarizer interface: request, answer, error, and statistics of the answers."""

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

#: Weight of the newest answer in a mean length.
NEWEST = 0.5
#: Maximum plausible tokens of an answer; a larger count is an error of the endpoint.
MAX_ANSWER = 200_000
#: Minimum tokens reported as thoughts: smaller differences come from other tokenizers.
MIN_THOUGHTS = 100
#: Minimum share of a continued prompt that is read from the provider's cache if the two models share a cache.
MIN_CACHED = 0.25
#: After this many other requests, continuing the prompt is tried again.
TRY_AGAIN = 8
#: After this many refused answers to requests for changes, at least half of all, a model gets no more such requests.
MAX_REFUSED = 2

RequestKind = Literal["rounds", "changes", "tool_run", "large_post"]
#: How to ask for a summary: with a separate transcript, or as a continuation of the agent's last prompt, which its
#: provider has in its cache.
Style = Literal["separate", "continue"]
#: Notes that a request asks for: all of them; those on the new rounds; or those and some older ones.
Written = Literal["all", "new", "some"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ContinuedPrompt(ValueObject):
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
    continued_prompt: ContinuedPrompt | None = field(default=None, repr=False)
    #: The notes to edit, if ``kind`` is "changes"; the first is number 1.
    notes: Sequence[Note] = field(default=(), repr=False)


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

    def __init__(
        self, message: str, usage: Mapping[str, int] | None = None, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        #: Token usage of the failed request, if known: some answers are charged and contain no summary.
        self.usage = usage
        #: Seconds to wait before the next request, if the endpoint named a time.
        self.retry_after = retry_after


def add_usage(usage: Mapping[str, int] | None, more: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """Return the sum of *usage* and *more*; None counts as unknown and adds nothing."""
    if usage is None or more is None:
        return more if usage is None else usage
    return {key: usage.get(key, 0) + more.get(key, 0) for key in {**usage, **more}}


@dataclass(slots=True, eq=False, repr=False)
class SummarizerStats:
    """Statistics of the answers to one compactor; lengths in tokens, None: unknown. Only one thread writes it."""

    #: Length of an answer with all notes, of one with changes, and of one with notes on the new rounds alone.
    full: float | None = None
    edits: float | None = None
    addition: float | None = None
    #: Tokens of an answer that are charged beyond its text, such as a model's thoughts.
    thoughts: float | None = None
    #: When a compaction became due, by the cycle's ``monotonic``, until a model is asked; None: none is due.
    due_at: float | None = None
    #: Requests for changes; of their answers, those refused as no changes, or refused before any was accepted.
    asked_for_changes: int = 0
    refused_changes: int = 0
    #: Share of continued prompts that came from the provider's cache; newer ones count more.
    cached_share: float | None = None
    #: Whether the last request was a continuation, and the number of requests since the last continuation.
    continued: bool = False
    separate: int = 0

    @property
    def keeps_form(self) -> bool:
        """Whether the model mostly answers requests for changes with changes."""
        return self.refused_changes < MAX_REFUSED or 2 * self.refused_changes < self.asked_for_changes

    @property
    def shares_cache(self) -> bool:
        """Whether the summarizer reads the agent's prompt from the provider's cache, or has not tried for long."""
        return self.cached_share is None or self.cached_share >= MIN_CACHED or self.tries_again

    @property
    def tries_again(self) -> bool:
        """Whether continuing, which missed the cache before, is due to be tried once more."""
        return self.cached_share is not None and self.cached_share < MIN_CACHED and self.separate >= TRY_AGAIN

    def describe(self) -> str:
        """Return a line about the model's requests and its answers."""
        if not self.continued and not self.separate:
            asks = "nothing so far"
        elif self.continued:
            asks = f"after the agent's last prompt; {self.cached_share or 0:.0%} of it came from the provider's cache"
        else:
            share = self.cached_share
            tried = f"; {share:.0%} of the agent's prompt came from the cache" if share is not None else ""
            asks = f"with a transcript{tried}"
        lengths = {"all notes": self.full, "changes of them": self.edits, "notes on new rounds": self.addition}
        answers = [f"{name} {tokens:,.0f} tokens" for name, tokens in lengths.items() if tokens is not None]
        if self.thoughts is not None and self.thoughts >= MIN_THOUGHTS:
            answers.append(f"thinks {self.thoughts:,.0f} tokens per answer")
        if self.asked_for_changes:
            answers.append(f"{self.refused_changes} of {self.asked_for_changes} lists of changes refused")
        return f"Asks: {asks}." + (f" Answers so far: {', '.join(answers)}." if answers else "")

    def note_answer(
        self,
        kind: RequestKind,
        answer: Summary,
        tokens: int,
        *,
        continued: bool,
        refused: str = "",
        notes: Written = "all",
    ) -> None:
        """Record an *answer* to a request of that *kind*; its text has *tokens* tokens.

        *refused* is the check that refused it. *notes* says what was asked for; an answer for some of the notes
        predicts the length of no other.
        """
        usage = answer.usage or {}
        continued &= answer.continued is not False
        if kind in ("rounds", "changes") or continued:
            self.continued, self.separate = continued, 0 if continued else self.separate + 1
        if continued and not (refused and usage.get("input_tokens") is None):  # without usage, no hit can be seen
            share = min(usage.get("cached_tokens", 0) / max(usage.get("input_tokens", 0), 1), 1.0)
            self.cached_share = _update_mean(self.cached_share, share)
        if kind == "changes":
            self.asked_for_changes += 1
            # "None" from a model that has written edits before is no failure to keep the form.
            self.refused_changes += bool(refused) and (refused != "hollow" or self.edits is None)
        if refused:
            return
        length, charged = float(tokens), usage.get("output_tokens", 0)
        self.thoughts = _update_mean(self.thoughts, max(charged - length, 0.0) if charged <= MAX_ANSWER else 0.0)
        if kind == "changes":
            self.edits = _update_mean(self.edits, length)
        elif kind == "rounds" and notes == "new":
            self.addition = _update_mean(self.addition, length)
        elif kind == "rounds" and notes == "all":
            self.full = _update_mean(self.full, length)


def _update_mean(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + NEWEST * (newest - mean)
