"""How a summary is asked for: until an answer passes the checks, each time with what was wrong with the one before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from memory.overlays import CompactedMessage
from prompts import escape_tags

from .acceptance import Reading, Source, accept
from .checks.attribution import Heard
from .checks.standing import carried, lost, restored
from .config import CompactorConfig
from .errors import SummaryRejected
from .noting.notes import INSTRUCTIONS, rendered, span_of, with_sentences
from .summarizers.base import Summary, SummaryRequest, added
from .tokens import TokenCounter

__all__ = [
    "FAULTS",
    "TOO_LONG",
    "USUAL",
    "Answer",
    "Ask",
    "Traits",
    "accepted",
    "asked_again",
    "refusal_in",
    "traits_of",
]

#: Asks the summarizer, within its deadline; raises what the summarizer raises.
Ask = Callable[[SummaryRequest], "str | Summary"]

#: What a model is told of an answer that did not pass a check, by the check's name.
FAULTS = {
    "not_text": "it was no text",
    "empty": "it held no text",
    "malformed": "it was not in the form that was asked for",
    "greeting": "it replied to the conversation instead of summarising it",
    "voice": 'it was told in the first person; say which calls were made and what came of them, never "I called"',
    "markup": "it repeated the tags of the conversation; write plain text",
    "echo": "it repeated the conversation instead of summarising it",
    "hollow": "it said next to nothing of the conversation; say what was wanted, done, found and left open",
    "larger": "it was longer than what it replaces; keep only what is still needed",
    "no_progress": "it was hardly shorter than what it replaces; keep only what is still needed",
    "oversized": "it was far longer than asked for; keep only what is still needed",
    "cut_off": "it broke off before its end; write less, and finish",
    "invented": "it held names, numbers or paths that stand nowhere above; copy them exactly, or leave them out",
    "partial": "it left out most of what the previous summary names; keep all of that which is still true",
}
#: The checks that an answer fails by its length.
TOO_LONG = frozenset({"larger", "no_progress", "oversized"})
#: How the note begins, and how it ends.
_REFUSED = "\n\nAn earlier answer to this was refused: "
_ANEW = " Write it anew without that fault, and answer with the summary alone."
#: So many of them are named.
_MOST_NAMED = 20
#: What the heading of the user's instructions takes, at most.
_HEADING_TOKENS = 8
#: So often an extract is made shorter, so that the user's prohibitions have room beside it.
_SHORTER = 4


@dataclass(frozen=True, slots=True)
class Traits:
    """What a summarizer says of itself."""

    #: It would answer the same again, and for nothing.
    deterministic: bool = False
    #: It may be asked for changes of notes.
    takes_changes: bool = True
    #: It may ask behind the agent's last prompt: ``SummaryRequest.continued``.
    takes_continued: bool = True

    def attempts(self, config: CompactorConfig) -> int:
        """Return how often it is asked in all."""
        return 1 if self.deterministic else config.summary_attempts


#: Of one that says nothing: it costs something, and takes all that it may be asked.
USUAL = Traits()


class Answer(NamedTuple):
    """A summary that may be shown."""

    #: With the sentences that it had lost, and with what all attempts took.
    summary: Summary
    tokens: int
    #: How many sentences had been lost.
    restored: int
    #: Identifiers that stand nowhere in its source.
    unknown: tuple[str, ...]
    #: What was answered, without the tags around it and without those sentences.
    said: str


def traits_of(summarizer: object) -> Traits:
    """Return what *summarizer* says of itself, by the attributes of these names."""
    return Traits(
        deterministic=bool(getattr(summarizer, "deterministic", USUAL.deterministic)),
        takes_changes=bool(getattr(summarizer, "takes_changes", USUAL.takes_changes)),
        takes_continued=bool(getattr(summarizer, "takes_continued", USUAL.takes_continued)),
    )


def accepted(
    ask: Ask,
    request: SummaryRequest,
    source: Source,
    count: TokenCounter,
    *,
    attempts: int,
    standing: Sequence[str] = (),
    room: int = 0,
    reading: Reading | None = None,
    length_setting: str = "target_tokens",
    tell: Callable[[SummaryRejected, int, object], None] = lambda *_: None,
) -> Answer:
    """Return the first answer that passes all checks; below it, in *room* tokens, what of *standing* it has lost.

    A refused answer is asked for again at once, with the reason, up to *attempts* in all; *tell* hears of each: why,
    its number from 1, and the answer. *reading* and *length_setting* are those of ``accept``. Raises what *ask* raises,
    and the last ``SummaryRejected``, with what all of them took.
    """
    source = replace(source, beside=(*source.beside, *standing))
    asked, attempt = request, 1
    usage: Mapping[str, int] | None = None
    while True:
        answer = ask(asked)
        usage = added(usage, answer.usage if isinstance(answer, Summary) else None)
        try:
            made = accept(
                answer,
                source,
                target_tokens=request.target_tokens,
                count=count,
                kind=request.kind,
                reading=reading,
                length_setting=length_setting,
            )
            break
        except SummaryRejected as rejected:
            tell(rejected, attempt, answer)
            if attempt >= attempts:
                rejected.usage = usage
                raise
            asked, attempt = asked_again(request, rejected), attempt + 1
    text, notes = made.summary.text, made.summary.notes
    extracted = isinstance(answer, Summary) and answer.extracted
    if not extracted and request.kind in ("rounds", "changes"):
        # Only here is known who wrote it: from now on, what stands below the heading is the user's.
        before = request.previous.summary if request.previous is not None else ""
        heard = Heard(request.rounds, (*_instructions(request.previous), *standing), before)
        notes = heard.attribute_notes(notes)
        text = rendered(notes) if notes else heard.attribute(text)
    missing = lost(standing, (text,))
    text, back = restored(text, missing, room, count)
    if back and notes:
        span = span_of(request.rounds, request.start_index, request.end_index)
        notes = with_sentences(notes, missing[-back:], span)
        text = rendered(notes)
    elif back and extracted:
        text = _within(request, text, ask, standing, room, count)
    tokens = made.tokens if text == made.summary.text else count(text)
    if back and tokens >= source.previous_tokens + source.tokens:
        longer = SummaryRejected(
            "larger", "with the user's prohibitions that it lost, the summary makes no prompt shorter"
        )
        longer.usage, longer.tokens = usage, source.tokens
        tell(longer, attempt, answer)
        raise longer
    summary = Summary(text, usage, made.summary.model, notes, extracted)
    return Answer(summary, tokens, back, made.unknown, made.said)


def _within(
    request: SummaryRequest, text: str, ask: Ask, standing: Sequence[str], room: int, count: TokenCounter
) -> str:
    """Return *text*, extracted offline, or an extract that is shorter by what *standing* takes beyond the target."""
    target = request.target_tokens or 0
    all_of_them = count("\n".join(standing)) + _HEADING_TOKENS + 2 * len(standing)
    less = 0
    for attempt in range(_SHORTER):
        if not target or (over := count(text) - target) <= 0:
            break
        # At first by what is too much; where others are lost each time, by what all of them take.
        less = less + over if attempt < _SHORTER - 1 else all_of_them
        answer = ask(replace(request, target_tokens=max(1, target - less)))
        shorter = answer.text if isinstance(answer, Summary) else str(answer)
        text, _ = restored(shorter, lost(standing, (shorter,)), room, count)
    return text


def _instructions(previous: CompactedMessage | None) -> tuple[str, ...]:
    """Return the user's instructions that *previous* carries: of its list, and of its notes, of which each was looked
    for in the user's words when it was new."""
    notes = previous.notes if previous is not None else ()
    return (*carried(previous), *(note.text for note in notes if note.section == INSTRUCTIONS))


def asked_again(request: SummaryRequest, rejected: SummaryRejected) -> SummaryRequest:
    """Return *request* with what was wrong with its answer at the end of its last user message, in both its forms.

    No message is added: some providers refuse two of one role in a row, or a system message that is not the first. Who
    replied to the conversation is not asked as a part of it again.
    """
    named = ", ".join(f'"{escape_tags(name)}"' for name in rejected.identifiers[:_MOST_NAMED])
    fault = FAULTS.get(rejected.check, "it was no usable summary")
    is_told_length = rejected.check in TOO_LONG and request.target_tokens is not None
    length = f", in at most {request.target_tokens} tokens" if is_told_length else ""
    note = f"{_REFUSED}{fault}{f' ({named})' if named else ''}{length}.{_ANEW}"
    continued = request.continued
    if rejected.check == "greeting":
        continued = None
    elif continued is not None:
        continued = replace(continued, messages=_with_note(continued.messages, note))
    return replace(request, messages=_with_note(request.messages, note), continued=continued)


def _with_note(messages: Sequence[dict[str, Any]], note: str) -> list[dict[str, Any]]:
    """Return *messages* with *note* at the end of the last that is the user's; those given stay as they are."""
    noted = list(messages)
    for place in range(len(noted) - 1, -1, -1):
        message = noted[place]
        if message.get("role") == "user":
            content = message.get("content")
            said = (
                [*content, {"type": "text", "text": note.strip()}] if isinstance(content, list) else f"{content}{note}"
            )
            noted[place] = {**message, "content": said}
            break
    return noted


def refusal_in(request: SummaryRequest) -> str:
    """Return the note that ``asked_again`` has put at the end of *request*; empty where it has not."""
    said = str(request.messages[-1].get("content")) if request.messages else ""
    return said[said.rfind(_REFUSED) :] if said.endswith(_ANEW) and _REFUSED in said else ""
