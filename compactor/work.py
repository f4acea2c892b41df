"""What a strategy that asks a model may use while one cycle lasts: it asks, checks the answer and tells of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memory.events import Event
from prompts import escape_tags

from .acceptance import Accepted, Source, accept
from .config import CompactorConfig
from .errors import SummaryRejected
from .events import Prepared, Rejected, Started
from .standing import in_force, lost, restored
from .summarizers.base import Summary, SummaryRequest
from .view import View

__all__ = ["FAULTS", "REFUSED", "Ask", "CycleWork", "asked_again"]

#: Asks the summarizer, within its deadline; raises what the summarizer raises. One that says that it is
#: ``deterministic`` is not asked the same again.
Ask = Callable[[SummaryRequest], "str | Summary"]

#: What a model is told of an answer that did not pass a check, by the check's name.
FAULTS = {
    "not_text": "it was no text",
    "empty": "it held no text",
    "greeting": "it replied to the conversation instead of summarising it",
    "voice": 'it was told in the first person; say which calls were made and what came of them, never "I called"',
    "echo": "it repeated the conversation instead of summarising it",
    "larger": "it was longer than what it replaces; keep only what is still needed",
    "no_progress": "it was hardly shorter than what it replaces; keep only what is still needed",
    "oversized": "it was far longer than asked for; keep only what is still needed",
    "invented": "it held names, numbers or paths that stand nowhere above; copy them exactly, or leave them out",
}
#: How the note begins.
REFUSED = "\n\nAn earlier answer to this was refused: "
#: So many of them are named.
_MOST_NAMED = 20
#: At least so many tokens are there for sentences that a summary lost, however short it should be.
_LEAST_ROOM = 128
#: And so many where no length is wished for.
_USUAL_ROOM = 500


@dataclass
class CycleWork:
    """The ``Work`` of one cycle."""

    config: CompactorConfig
    mark: int | None
    plan: str | None
    _ask: Ask
    _emit: Callable[[Event], None]
    _monotonic: Callable[[], float]
    #: Since the last publication: when it began, and the requests that were made.
    began: float = field(default=0.0, init=False)
    requests: int = field(default=0, init=False)

    def begin(self) -> None:
        """Count requests and time from here on."""
        self.began, self.requests = self._monotonic(), 0

    @property
    def seconds(self) -> float:
        return self._monotonic() - self.began

    def summarize(self, request: SummaryRequest, source: Source, view: View) -> Summary:
        """Return an accepted summary, with what the user forbade and it had lost, and with what all attempts took.

        A refused answer is asked for again at once, with the reason, up to ``config.summary_attempts`` in all.
        """
        before, began = source.previous_tokens + source.tokens, self._monotonic()
        generation = view.compaction.generation if view.compaction else 0
        span = {"role": view.role, "generation": generation, "start": request.start_index, "end": request.end_index}
        self._emit(Started(**span, tokens_before=before))
        pinned = _pinned(request, view)
        standing = in_force(request.previous, request.rounds) if request.kind == "rounds" else ()
        previous = request.previous.summary if request.previous else ""
        source = replace(source, beside=(*source.beside, previous, request.plan or self.plan or "", *pinned, *standing))
        accepted, usage = self._accepted(request, source, view, span)
        text, count = restored(
            accepted.summary.text,
            lost(standing, (accepted.summary.text, *pinned)),
            self._room(request.target_tokens),
            view.ledger.count,
        )
        summary = Summary(text, usage, accepted.summary.model)
        self._emit(
            Prepared(
                **span,
                tokens_before=before,
                tokens_after=view.ledger.count(text) if count else accepted.tokens,
                seconds=self._monotonic() - began,
                usage=summary.usage,
                model=summary.model,
                restored=count,
                unknown_identifiers=accepted.unknown,
            )
        )
        return summary

    def _accepted(
        self, request: SummaryRequest, source: Source, view: View, span: Mapping[str, Any]
    ) -> tuple[Accepted, Mapping[str, int] | None]:
        """Return the first answer that passes, and the usage of all."""
        attempts = 1 if getattr(self._ask, "deterministic", False) else self.config.summary_attempts
        asked, usage, attempt = request, None, 1
        while True:
            self.requests += 1
            began = self._monotonic()
            answer = self._ask(asked)
            usage = _added(usage, answer)
            try:
                accepted = accept(
                    answer, source, target_tokens=request.target_tokens, count=view.ledger.count, kind=request.kind
                )
            except SummaryRejected as rejected:
                self._emit(
                    Rejected(
                        **span,
                        check=rejected.check,
                        attempt=attempt,
                        attempts=attempts,
                        unknown_identifiers=len(rejected.identifiers),
                        seconds=self._monotonic() - began,
                        usage=answer.usage if isinstance(answer, Summary) else None,
                        model=answer.model if isinstance(answer, Summary) else None,
                    )
                )
                if attempt >= attempts:
                    raise
                asked, attempt = asked_again(request, rejected), attempt + 1
            else:
                return accepted, usage

    def _room(self, target_tokens: int | None) -> int:
        """Return the tokens that there are for lost sentences: half of what a summary should have."""
        return _USUAL_ROOM if target_tokens is None else max(_LEAST_ROOM, target_tokens // 2)


def asked_again(request: SummaryRequest, rejected: SummaryRejected) -> SummaryRequest:
    """Return *request* with what was wrong with its answer at the end of its last user message.

    No message is added: some providers refuse two of one role in a row, or a system message that is not the first.
    """
    named = ", ".join(f'"{escape_tags(name)}"' for name in rejected.identifiers[:_MOST_NAMED])
    fault = FAULTS.get(rejected.check, "it was no usable summary")
    note = (
        f"{REFUSED}{fault}{f' ({named})' if named else ''}."
        " Write it anew without that fault, and answer with the summary alone."
    )
    messages = list(request.messages)
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.get("role") == "user":
            content = message.get("content")
            said = (
                [*content, {"type": "text", "text": note.strip()}] if isinstance(content, list) else f"{content}{note}"
            )
            messages[place] = {**message, "content": said}
            break
    return replace(request, messages=messages)


def _pinned(request: SummaryRequest, view: View) -> tuple[str, ...]:
    """Return the texts that are shown word for word beside the summary."""
    pins: frozenset[tuple[str, int]] = getattr(view.rounds, "pins", frozenset())
    posts = [
        text
        for round_ in request.rounds
        for number, text in ((0, round_.user_query), *((post.number, post.message) for post in round_.post_list))
        if (round_.id, number) in pins
    ]
    return (*getattr(request.previous, "pinned", ()), *posts)


def _added(usage: Mapping[str, int] | None, answer: object) -> Mapping[str, int] | None:
    """Return *usage* and that of *answer*, where that is known."""
    more = answer.usage if isinstance(answer, Summary) else None
    if usage is None or more is None:
        return more if usage is None else usage
    return {key: usage.get(key, 0) + more.get(key, 0) for key in {**usage, **more}}
