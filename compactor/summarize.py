"""What a strategy asks with while a cycle lasts: answers are counted and told of, kept before use, and found again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from memory.entries import CompactionPrepared
from memory.events import Event
from memory.overlays import CompactedMessage, Origin
from memory.rounds import Round
from prompts import escape_tags

from .acceptance.checks import CHECKS, AnswerParser, Source, check_summary
from .acceptance.prohibitions import Heard, carried, in_force, lost, restored
from .config import CompactorConfig
from .errors import LimitReached, SummaryRejected
from .events import Prepared, Rejected, Started
from .journal import Keeping, digest_of
from .prompt.last_prompt import LastPrompt, continued
from .strategies.notes import INSTRUCTIONS, rendered, span_of, with_sentences
from .summarizers.base import Continued, RequestKind, Summary, SummaryRequest, added
from .tokens import TokenCounter
from .triggers import Size, Verdict
from .view import View

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
_MAX_NAMED = 20
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
DEFAULT_TRAITS = Traits()


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
        deterministic=bool(getattr(summarizer, "deterministic", DEFAULT_TRAITS.deterministic)),
        takes_changes=bool(getattr(summarizer, "takes_changes", DEFAULT_TRAITS.takes_changes)),
        takes_continued=bool(getattr(summarizer, "takes_continued", DEFAULT_TRAITS.takes_continued)),
    )


def accepted(
    ask: Ask,
    request: SummaryRequest,
    source: Source,
    count: TokenCounter,
    *,
    attempts: int,
    prohibitions: Sequence[str] = (),
    room: int = 0,
    reading: AnswerParser | None = None,
    length_setting: str = "target_tokens",
    emit: Callable[[SummaryRejected, int, object], None] = lambda *_: None,
) -> Answer:
    """Return the first answer that passes all checks; below it, in *room* tokens, what of *standing* it has lost.

    A refused answer is asked for again at once, with the reason, up to *attempts* in all; *tell* hears of each: why,
    its number from 1, and the answer. *reading* and *length_setting* are those of ``accept``. Raises what *ask* raises,
    and the last ``SummaryRejected``, with what all of them took.
    """
    source = replace(source, beside=(*source.beside, *prohibitions))
    asked, attempt = request, 1
    usage: Mapping[str, int] | None = None
    while True:
        answer = ask(asked)
        usage = added(usage, answer.usage if isinstance(answer, Summary) else None)
        try:
            made = check_summary(
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
            emit(rejected, attempt, answer)
            if attempt >= attempts:
                rejected.usage = usage
                raise
            asked, attempt = with_feedback(request, rejected), attempt + 1
    text, notes = made.summary.text, made.summary.notes
    extracted = isinstance(answer, Summary) and answer.extracted
    if not extracted and request.kind in ("rounds", "changes"):
        # Only here is known who wrote it: from now on, what stands below the heading is the user's.
        before = request.previous.summary if request.previous is not None else ""
        heard = Heard(request.rounds, (*_instructions(request.previous), *prohibitions), before)
        notes = heard.attribute_notes(notes)
        text = rendered(notes) if notes else heard.attribute(text)
    missing = lost(prohibitions, (text,))
    text, back = restored(text, missing, room, count)
    if back and notes:
        span = span_of(request.rounds, request.start_index, request.end_index)
        notes = with_sentences(notes, missing[-back:], span)
        text = rendered(notes)
    elif back and extracted:
        text = _within(request, text, ask, prohibitions, room, count)
    tokens = made.tokens if text == made.summary.text else count(text)
    if back and tokens >= source.previous_tokens + source.tokens:
        longer = SummaryRejected(
            "larger", "with the user's prohibitions that it lost, the summary makes no prompt shorter"
        )
        longer.usage, longer.tokens = usage, source.tokens
        emit(longer, attempt, answer)
        raise longer
    summary = Summary(text, usage, made.summary.model, notes, extracted)
    return Answer(summary, tokens, back, made.unknown, made.said)


def _within(
    request: SummaryRequest, text: str, ask: Ask, prohibitions: Sequence[str], room: int, count: TokenCounter
) -> str:
    """Return *text*, extracted offline, or an extract that is shorter by what *standing* takes beyond the target."""
    target = request.target_tokens or 0
    all_of_them = count("\n".join(prohibitions)) + _HEADING_TOKENS + 2 * len(prohibitions)
    less = 0
    for attempt in range(_SHORTER):
        if not target or (over := count(text) - target) <= 0:
            break
        # At first by what is too much; where others are lost each time, by what all of them take.
        less = less + over if attempt < _SHORTER - 1 else all_of_them
        answer = ask(replace(request, target_tokens=max(1, target - less)))
        shorter = answer.text if isinstance(answer, Summary) else str(answer)
        text, _ = restored(shorter, lost(prohibitions, (shorter,)), room, count)
    return text


def _instructions(previous: CompactedMessage | None) -> tuple[str, ...]:
    """Return the user's instructions that *previous* carries: of its list, and of its notes, of which each was looked
    for in the user's words when it was new."""
    notes = previous.notes if previous is not None else ()
    return (*carried(previous), *(note.text for note in notes if note.section == INSTRUCTIONS))


def with_feedback(request: SummaryRequest, rejected: SummaryRejected) -> SummaryRequest:
    """Return *request* with what was wrong with its answer at the end of its last user message, in both its forms.

    No message is added: some providers refuse two of one role in a row, or a system message that is not the first. Who
    replied to the conversation is not asked as a part of it again.
    """
    named = ", ".join(f'"{escape_tags(name)}"' for name in rejected.identifiers[:_MAX_NAMED])
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
    """Return the note that ``with_feedback`` has put at the end of *request*; empty where it has not."""
    said = str(request.messages[-1].get("content")) if request.messages else ""
    return said[said.rfind(_REFUSED) :] if said.endswith(_ANEW) and _REFUSED in said else ""


# --- what a strategy asks with while a cycle lasts: answers are counted and told of, kept before use, and found again


#: At least so many tokens are there for sentences that a summary lost, however short it should be.
_MIN_ROOM = 128
#: And so many where no length is wished for.
_USUAL_ROOM = 500


@dataclass
class CycleWork:
    """The ``Work`` of one cycle.

    An accepted answer is kept before anything else is done with it, and the same question is not asked again while it
    is. Not those of a summarizer that would answer the same again for nothing: they would only fill the log.
    """

    config: CompactorConfig
    mark: int | None
    plan: str | None
    _ask: Ask
    _emit: Callable[[Event], None]
    _monotonic: Callable[[], float]
    #: What the summarizer says of itself.
    traits: Traits = DEFAULT_TRAITS
    #: Where accepted answers are kept, and found again; None: nowhere.
    keeping: Keeping | None = None
    #: Called with this and each request before it is made; what it raises goes out.
    before_asking: Callable[[CycleWork, SummaryRequest], object] = lambda _work, _request: None
    #: The newest round's id and the number of its newest post, as they are when it is called.
    newest_place: Callable[[], tuple[str, int]] = lambda: ("", 0)
    #: The newest prompt of its role, where it is known and shows all of its tail.
    last_prompt: LastPrompt | None = None
    #: The sizes that are over their marks; None: nobody knows.
    exceeds: frozenset[Size] | None = None
    #: How the answer that was accepted last came about.
    origin: Origin = field(default=Origin(), init=False)
    #: The generation that is current, and how many of the view's rounds its compaction covers.
    base: int = field(default=0, init=False)
    covered: int = field(default=0, init=False)
    #: The answers that there were then.
    _known: Sequence[str] = field(default=(), init=False)
    #: Whether that answer was found, and no request was made since the last publication.
    reused: bool = field(default=False, init=False)
    #: The strategy that runs, and since the last publication: when it began, and the requests that were made.
    strategy: str = field(default="", init=False)
    began: float = field(default=0.0, init=False)
    requests: int = field(default=0, init=False)
    #: Likewise: whether what stood before was written anew in full, and the tokens of all rounds that were sent.
    major: bool = field(default=False, init=False)
    sent_tokens: int = field(default=0, init=False)
    _asked_at: float = field(default=0.0, init=False)

    @property
    def takes_changes(self) -> bool:
        return self.traits.takes_changes

    def look(self, verdict: Verdict) -> None:
        """Take note of what is exceeded now."""
        self.mark, self.exceeds = verdict.mark, verdict.exceeds

    def begin(self, strategy: str) -> None:
        """Count requests and time from here on, for *strategy*."""
        self.strategy, self.began, self.requests, self.reused = strategy, self._monotonic(), 0, False
        self.major, self.sent_tokens = False, 0
        self.origin = Origin(strategy=strategy)

    def go_on_from(self, base: int, covered: int) -> None:
        """Take note of what is current now."""
        self.base, self.covered = base, covered
        self._known = self.keeping.known(base)[1] if self.keeping is not None else ()

    def is_current(self) -> bool:
        """Return whether nobody has published since, nor left an answer that need not be asked for again."""
        return self.keeping is None or self.keeping.known(self.base) == (True, self._known)

    @property
    def seconds(self) -> float:
        return self._monotonic() - self.began

    def continued(
        self, view: View, previous: CompactedMessage | None, rounds: Sequence[Round], instruction: str
    ) -> Continued | None:
        if not self.traits.takes_continued:
            return None
        limit, count = self.config.summarizer_input_tokens, view.ledger.count
        return continued(self.last_prompt, previous, rounds, instruction, model=view.model, count=count, limit=limit)

    def summarize(
        self,
        request: SummaryRequest,
        source: Source,
        view: View,
        prohibitions: Sequence[str] | None = None,
        becomes: Callable[[Summary], CompactedMessage] | None = None,
        reading: AnswerParser | None = None,
        *,
        major: bool = False,
    ) -> Summary:
        """What all attempts took is in the answer. Changes are asked for once: who fails at them is better asked for
        something else."""
        before, began, sent = source.previous_tokens + source.tokens + source.frame, self._monotonic(), self.sent_tokens
        generation = view.compaction.generation if view.compaction else 0
        span = {"role": view.role, "generation": generation, "strategy": self.strategy}
        span |= {"start": request.start_index, "end": request.end_index}
        attempts = 1 if request.kind == "changes" else self.traits.attempts(self.config)
        judged = self._judged(request, source, view, prohibitions, reading)
        digest = digest_of(request) if self.keeping is not None else ""
        made = found = self._found(digest, request, judged)
        if made is None:
            self.before_asking(self, request)
            self._emit(Started(**span, tokens_before=before))
            sending = view.ledger.count(source.text) if source.sent is None else source.sent
            made = judged(
                partial(self._counted, sending), attempts=attempts, emit=partial(self._refused, request, span, attempts)
            )
            self.origin = Origin(digest, tuple(CHECKS), self.strategy)
            compaction = becomes(made.summary) if becomes is not None and self.keeping is not None else None
            self.keep(view, replace(made.summary, text=made.said), compaction, request.kind)
        self.origin, self.major = Origin(digest, tuple(CHECKS), self.strategy), major or self.major
        self.reused = found is not None and not self.requests
        self._emit(
            Prepared(
                **span,
                tokens_before=before,
                tokens_after=made.tokens + source.frame,
                seconds=self._monotonic() - began,
                usage=made.summary.usage,
                model=made.summary.model,
                restored=made.restored,
                unknown_identifiers=made.unknown,
                reused=found is not None,
                major=major,
                sent_tokens=self.sent_tokens - sent,
            )
        )
        return made.summary

    def _judged(
        self,
        request: SummaryRequest,
        source: Source,
        view: View,
        prohibitions: Sequence[str] | None,
        reading: AnswerParser | None,
    ) -> Callable[..., Answer]:
        """Return ``accepted``, with all that an answer to *request* is judged by."""
        pinned, previous = _pinned(request, view), request.previous.summary if request.previous else ""
        prohibitions = in_force(request.previous, request.rounds) if prohibitions is None else prohibitions
        return partial(
            accepted,
            request=request,
            source=replace(
                source,
                beside=(*source.beside, request.plan or self.plan or "", *pinned),
                previous=source.previous or previous,
            ),
            count=view.ledger.count,
            prohibitions=lost(prohibitions, pinned) if request.kind in ("rounds", "changes") else (),
            room=_USUAL_ROOM if request.target_tokens is None else max(_MIN_ROOM, request.target_tokens // 2),
            reading=reading,
        )

    def _found(self, digest: str, request: SummaryRequest, judged: Callable[..., Answer]) -> Answer | None:
        """Return what was answered to *request* before, if it passes the checks of today."""
        kept = self.keeping.answer(digest, request.kind, self.base) if self.keeping is not None else None
        if kept is None:
            return None
        try:
            return judged(lambda _request: Summary(kept.text, kept.usage, kept.model), attempts=1)
        except SummaryRejected:
            return None

    def keep(
        self, view: View, said: Summary, compaction: CompactedMessage | None, kind: RequestKind = "rounds"
    ) -> None:
        """Keep what was *said*, and the *compaction* that could be published of it, if answers are kept at all."""
        if self.keeping is None:
            return
        seen_round_id, seen_post = self.newest_place()
        covered = view.rounds[self.covered : compaction.end_index] if compaction is not None else ()
        self.keeping.prepare(
            CompactionPrepared(
                role=view.role,
                digest=self.origin.digest,
                base=self.base,
                kind=kind,
                strategy=self.origin.strategy,
                text=said.text,
                model=said.model,
                usage=said.usage,
                checks=self.origin.checks,
                compaction=compaction,
                round_ids=tuple(round_.id for round_ in covered),
                seen_round_id=seen_round_id,
                seen_post=seen_post,
            )
        )

    def _counted(self, sending: int, request: SummaryRequest) -> str | Summary:
        self.requests += 1
        self.sent_tokens += sending
        self._asked_at = self._monotonic()
        return self._ask(request)

    def _refused(
        self,
        request: SummaryRequest,
        span: Mapping[str, Any],
        attempts: int,
        rejected: SummaryRejected,
        attempt: int,
        answer: object,
    ) -> None:
        self._emit(
            Rejected(
                **span,
                check=rejected.check,
                attempt=attempt,
                attempts=attempts,
                unknown_identifiers=rejected.identifiers if rejected.check == "invented" else (),
                seconds=self._monotonic() - self._asked_at,
                usage=answer.usage if isinstance(answer, Summary) else None,
                model=answer.model if isinstance(answer, Summary) else None,
            )
        )
        if attempt < attempts:
            try:
                self.before_asking(self, request)
            except LimitReached:  # to begin anew when there is room would pay for the first attempt again and again
                raise rejected from None


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
