"""From a request to an accepted answer: how strategies ask the summarizer."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from memory.entries import CompactionPrepared
from memory.errors import StaleCompaction
from memory.events import Event
from memory.overlays import CompactedMessage, Origin
from memory.rounds import Round, copy_with
from memory.values import ValueObject
from memory.visibility import Rounds
from prompts import escape_tags

from .config import CompactorConfig
from .errors import LeasedElsewhere, LimitReached, SummaryRejected
from .events import Prepared, Rejected, Skip, Started
from .host_rounds import HostRounds
from .journal import JournalWriter
from .summarizers.base import (
    ASSUMED,
    ContinuedPrompt,
    RequestKind,
    Summarizer,
    SummarizerStats,
    Summary,
    SummaryRequest,
    Written,
    add_usage,
)
from .timers import interpreter_is_exiting
from .tokens import TokenCounter, count_payload

if TYPE_CHECKING:
    from .acceptance.checks import AnswerParser, CheckedSummary, Source

#: What a trigger measures. Shorter texts mean fewer tokens but no fewer messages.
Size = Literal["messages", "tokens"]

#: What a model is told of an answer that did not pass a check, by the check's name.
FAULTS = {
    "not_text": "it was no text",
    "empty": "it held no text",
    "malformed": "it was not in the form that was asked for",
    "greeting": "it replied to the conversation instead of summarising it",
    "first_person": 'it speaks in the first person; say which calls were made and what came of them, never "I called"',
    "markup": "it repeated the tags of the conversation; write plain text",
    "echo": "it repeated the conversation instead of summarising it",
    "hollow": "it said next to nothing of the conversation; in its language, say what was wanted, done and left open",
    "larger": "it was longer than what it replaces; keep only what is still needed",
    "no_progress": "it was hardly shorter than what it replaces; keep only what is still needed",
    "oversized": "it was far longer than asked for; keep only what is still needed",
    "cut_off": "it broke off before its end; write less, and finish",
    "invented": "it held names, numbers or paths that stand nowhere above; copy them exactly, or leave them out",
    "forgets_previous": "it left out most of what the previous summary names; keep all of that which is still true",
}
#: The checks that an answer fails by its length.
TOO_LONG = frozenset({"larger", "no_progress", "oversized"})
#: How the note to the model begins and ends.
_REFUSED = "\n\nAn earlier answer to this was refused: "
_ANEW = " Write it anew without that fault, and answer with the summary alone."
#: The note names at most this many identifiers.
_MAX_NAMED = 20
#: The most tokens that the heading of the user's instructions takes.
_HEADING_TOKENS = 8
#: How often an extract is shortened to make room for the user's prohibitions.
_SHORTER = 4
#: Minimum tokens reserved for restoring prohibitions that the summary dropped, and their default without a target.
_MIN_ROOM = 128
_DEFAULT_ROOM = 500


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """One cycle: what it is to do, and its state so far. Only a compactor's current run may change anything."""

    summarizer: Summarizer
    #: Somebody waits in ``compact_now``: trigger and back-off do not matter.
    forced: bool = False
    #: Asks the summarizer for this run, within a deadline; None: without one.
    ask_in_time: Callable[[Run, SummaryRequest], str | Summary] | None = None
    #: The ``Permit``, which reserves the cost of a request or raises ``LimitReached``; None: there are no limits.
    permit: Any = None
    #: A worker has taken it up.
    begun: bool = False
    #: When, in seconds of the clock's ``monotonic``.
    started_at: float = 0.0
    #: It only evaluates whether something is due, on a thread that it shares; and what it found, to go on from.
    only_evaluates: bool = False
    evaluation: Any = None
    #: There is something to do: strategies run.
    compacting: bool = False
    #: The compactor is to stop: the run may end, but publishes nothing.
    stopping: bool = False
    #: Its outcome is known, or it was given up; nothing more that it does counts.
    over: bool = False
    #: It has published a compaction; a reduction.
    has_published: bool = False
    has_reduced: bool = False
    #: Why it did nothing.
    skip_reason: Skip | None = None
    #: What the summarizer was asked for last.
    request_kind: RequestKind | None = None
    #: It has taken the lease.
    leased: bool = False
    #: Seconds until a deferred compaction is weighed again, if nothing happens before.
    recheck_in: float | None = None

    def check(self) -> None:
        """Raise ``StaleCompaction`` if it may not publish any more."""
        if interpreter_is_exiting():
            raise StaleCompaction("interpreter_exit")
        if self.over or self.stopping:
            raise StaleCompaction("late" if self.over else "stopped")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SummaryTask(ValueObject):
    """One summary that a strategy wants, and what the answer must pass to become it."""

    request: SummaryRequest
    #: What the answer is checked against.
    source: Source
    #: The user's sentences that it must not lose; None: those that the request's rounds and previous summary have. Lost
    #: ones are put back below it, within *reserve* tokens.
    prohibitions: Sequence[str] | None = None
    #: Makes the summary a compaction, kept with the answer until it is published; None: it is not to be published.
    becomes: Callable[[Summary], CompactedMessage] | None = None
    #: Converts an answer in another form.
    parse: AnswerParser | None = None
    #: The compaction that the answer is added to, if the request has none, or only the notes that the answer replaces.
    added_to: CompactedMessage | None = None
    #: The generation of the compaction that it goes on from.
    generation: int = 0
    #: It is written in full although changes would have done.
    major: bool = False
    #: Maximum tokens of the sentences that are put back; None: half of the target, and at least ``_MIN_ROOM``.
    reserve: int | None = None
    #: The setting that refusals for length name.
    length_setting: str = "target_tokens"


@dataclass(kw_only=True, eq=False, repr=False)
class Work:
    """The means of a strategy to ask a model during one pass of a cycle: ``View.work``.

    An accepted answer is kept before it is used, and the same question is not asked again while it is kept. Answers of
    a deterministic summarizer are not kept: they would only fill the log.
    """

    summarizer: Summarizer
    count: TokenCounter
    config: CompactorConfig = field(default_factory=CompactorConfig)
    emit: Callable[[Event], object] = lambda _event: None
    monotonic: Callable[[], float] = time.monotonic
    #: The agent's plan as text, if there is one.
    plan: str | None = None
    #: The number of tokens that the prompt has passed, if that is why the trigger is due.
    token_threshold: int | None = None
    #: The sizes that are over their thresholds: a strategy that lowers none of them need not run. None: unknown.
    exceeds: frozenset[Size] | None = None
    #: What the summarizer's answers have been like so far.
    summarizer_stats: SummarizerStats = field(default_factory=SummarizerStats)
    #: The ``Prices`` that the trigger goes by, if it has any.
    prices: object = None
    #: Returns an instruction as a continuation of the agent's last prompt, if that shows the previous compaction and,
    #: behind it, the rounds. None: no prompt is known that shows all of the tail.
    continue_prompt: Callable[[CompactedMessage | None, Sequence[Round], str], ContinuedPrompt | None] | None = None
    #: The run that asks: each call needs its reservation and lease; None outside of a cycle.
    run: Run | None = None
    #: Keeps accepted answers; None: nothing does.
    journal: JournalWriter | None = None
    #: The rounds that strategies see; None outside of a cycle.
    rounds: Rounds | HostRounds | None = None
    #: Returns the rounds as they are now.
    read_rounds: Callable[[], Rounds | HostRounds] | None = None

    #: The current generation, the number of rounds that its compaction covers, and the answers it had when last seen.
    base: int = 0
    covered: int = 0
    prepared: tuple[CompactionPrepared, ...] = ()

    #: The strategy that runs, and since the last publication: when it began, the requests that were made, whether the
    #: whole summary was written anew, the tokens of all rounds that were sent, and whether the answer was kept before.
    strategy: str = field(default="", init=False)
    began: float = field(default=0.0, init=False)
    requests: int = field(default=0, init=False)
    major: bool = field(default=False, init=False)
    sent_tokens: int = field(default=0, init=False)
    reused: bool = field(default=False, init=False)
    #: How the last accepted answer came about.
    origin: Origin = field(default=Origin(), init=False)

    def __post_init__(self) -> None:
        told: list[Any] = [getattr(self.summarizer, name, default) for name, default in ASSUMED.items()]
        self.deterministic, self.takes_changes, self.takes_continued, self.style, self.model, self.provider = told

    def ask(self, request: SummaryRequest) -> str | Summary:
        """Return the summarizer's answer. Raises ``StaleCompaction`` if a round that strategies see was hidden or
        redacted since: no later request may tell of it."""
        then = self.rounds.snapshot if self.rounds is not None else None
        now = self.read_rounds().snapshot if then is not None and self.read_rounds is not None else None
        if (
            then is not None
            and now is not None
            and (now.redactions > then.redactions or bisect_right(now.hidden, then.total) > len(then.hidden))
        ):
            raise StaleCompaction("rounds_changed")
        if self.run is None or self.run.ask_in_time is None:
            return self.summarizer(request)
        return self.run.ask_in_time(self.run, request)

    def may_continue(self, agent: str) -> bool:
        """Return whether the summarizer may find a prompt for the model *agent* in the provider's cache.

        If nobody named the agent's model, the first answer tells.
        """
        if self.style == "continue" or not self.model:
            return True
        return agent == self.model if agent else self.summarizer_stats.shares_cache

    def reads(self, payload: Mapping[str, Any]) -> bool:
        """Return whether the summarizer's model made *payload*, or one of its provider's that it may read."""
        return payload["provider"] == self.provider and payload.get("model", "") in ("", self.model)

    def compute_price(self, usage: Mapping[str, int] | None, model: str | None) -> float | None:
        """Return the dollars that *usage* of *model*, by default the summarizer's, costs; None: unknown."""
        if self.deterministic:
            return 0.0
        if usage is None or not (named := model or self.model):
            return None
        from .models import compute_price

        return compute_price(named, usage)

    def begin(self, strategy: str) -> None:
        """Count requests and time from now on, for *strategy*."""
        self.strategy, self.began, self.requests, self.reused = strategy, self.monotonic(), 0, False
        self.major, self.sent_tokens = False, 0
        self.origin = Origin(strategy=strategy)

    def summarize(self, task: SummaryTask) -> Summary:
        """Return an accepted summary for *task*, with the usage of all attempts.

        A refused answer is asked for again at once, with the reason; changes are asked for once, because another form
        serves better then. Raises the summarizer's errors, ``SummaryRejected``, ``LeasedElsewhere`` and
        ``LimitReached``.
        """
        from .acceptance.checks import CHECKS  # here, as below: a cycle that asks for no summary loads no checks
        from .acceptance.prohibitions import collect_prohibitions, find_lost

        began, sent = self.monotonic(), self.sent_tokens
        request, source, prohibitions, reserve = task.request, task.source, task.prohibitions, task.reserve
        shown = request.previous
        previous = shown if task.added_to is None else task.added_to
        pinned = previous.pinned if previous is not None else ()
        if self.rounds is not None and self.rounds.pins:
            pinned += _list_pinned_texts(request.rounds, self.rounds.pins)
        if prohibitions is None:
            covers = request.kind in ("rounds", "changes")
            prohibitions = collect_prohibitions(previous, request.rounds) if covers else ()
        if prohibitions and pinned:
            prohibitions = find_lost(prohibitions, pinned)
        target = request.target_tokens
        if reserve is None:
            reserve = _DEFAULT_ROOM if target is None else max(_MIN_ROOM, target // 2)
        said = "\n".join([one["content"] for one in request.messages if isinstance(one.get("content"), str)])
        source = copy_with(
            source,
            beside=(*source.beside, request.plan or self.plan or "", *pinned, *prohibitions),
            previous=source.previous or (shown.summary if shown is not None else ""),
            sent=self.count(source.text) if source.sent is None else source.sent,
            instructions=said.replace(source.text, " ") if source.text and source.text in said else "",
        )
        task = copy_with(task, source=source, prohibitions=prohibitions, reserve=reserve, added_to=previous)
        tokens_before = source.previous_tokens + source.tokens + source.wrapper_tokens
        span: dict[str, Any] = {
            "role": request.role,
            "generation": task.generation,
            "strategy": self.strategy,
            "start": request.start_index,
            "end": request.end_index,
        }
        accepted: CheckedSummary | None = None
        digest = ""
        if self.journal is not None:  # perhaps it was paid for before
            digest, state = compute_digest(request), self.journal.read()
            answers = state.prepared if state.generation == self.base else ()
            same = [one for one in answers if (one.digest, one.kind) == (digest, request.kind)]
            if same:
                accepted = self._accept_kept(task, same[-1])
        is_kept = accepted is not None
        if accepted is None:
            self._reserve_and_lease(request)
            due_at, self.summarizer_stats.due_at = self.summarizer_stats.due_at, None
            waited = self.monotonic() - due_at if due_at is not None else 0.0
            self.emit(Started(**span, tokens_before=tokens_before, waited=waited))
            accepted = self._ask_until_accepted(task, span)
        summary = accepted.summary
        self.origin, self.major = Origin(digest, tuple(CHECKS), self.strategy), task.major or self.major
        if not is_kept and self.journal is not None:
            compaction = task.becomes(summary) if task.becomes is not None else None
            self.keep(accepted.said, summary, compaction, request.kind)
        self.reused = is_kept and not self.requests
        self.emit(
            Prepared(
                **span,
                tokens_before=tokens_before,
                tokens_after=accepted.tokens + source.wrapper_tokens,
                seconds=self.monotonic() - began,
                usage=summary.usage,
                price=self.compute_price(summary.usage, summary.model),
                model=summary.model,
                restored=accepted.restored,
                unknown_identifiers=accepted.unknown,
                reused=is_kept,
                major=task.major,
                sent_tokens=self.sent_tokens - sent,
            )
        )
        return summary

    def _accept_kept(self, task: SummaryTask, kept: CompactionPrepared) -> CheckedSummary | None:
        """Return what a *kept* answer becomes; None if it does not pass the checks of today."""
        payload = kept.compaction.payload if kept.compaction is not None else None
        with suppress(SummaryRejected):
            return self._check_and_restore(task, Summary(kept.text, kept.usage, kept.model, payload=payload))
        return None

    def _ask_until_accepted(self, task: SummaryTask, span: Mapping[str, Any]) -> CheckedSummary:
        """Return the first answer that passes, checked and restored, with the usage of all attempts."""
        request = task.request
        notes: Written = "all"
        if request.previous is not task.added_to:
            notes = "new" if request.previous is None else "some"
        once = self.deterministic or request.kind == "changes"
        attempts, attempt, asked, usage = 1 if once else self.config.summary_attempts, 1, request, None
        while True:
            self.requests += 1
            self.sent_tokens += task.source.sent or 0
            began = self.monotonic()
            given: object = self.ask(asked)
            answer = Summary(given) if isinstance(given, str) else given
            told = answer if isinstance(answer, Summary) else Summary("")
            usage = add_usage(usage, told.usage)
            remember = partial(
                self.summarizer_stats.note_answer,
                request.kind,
                told,
                continued=asked.continued_prompt is not None,
                notes=notes,
            )
            try:
                accepted = self._check_and_restore(task, answer)
                remember(self.count(accepted.said))
                return copy_with(accepted, summary=copy_with(accepted.summary, usage=usage))
            except SummaryRejected as rejected:
                rejected.usage = usage
                remember(0, refused=rejected.check)  # its text may be no text
                self.emit(
                    Rejected(
                        **span,
                        check=rejected.check,
                        attempt=attempt,
                        attempts=attempts,
                        unknown_identifiers=rejected.identifiers if rejected.check == "invented" else (),
                        seconds=self.monotonic() - began,
                        usage=told.usage,
                        price=self.compute_price(told.usage, told.model),
                        model=told.model,
                    )
                )
                if attempt == attempts or rejected.is_final:
                    raise
                try:
                    self._reserve_and_lease(request)
                except LimitReached:  # beginning anew when there is room would pay for the first attempt each time
                    raise rejected from None
                asked, attempt = with_feedback(request, rejected), attempt + 1

    def _reserve_and_lease(self, request: SummaryRequest) -> None:
        """Reserve the cost of *request*, and take the run's lease.

        Raises ``LimitReached``, ``LeasedElsewhere``, and once in a run ``StaleCompaction("evaluate_again")``: if
        others wrote something before the lease was ours.
        """
        run, journal = self.run, self.journal
        # The lease of a run that was given up is that of its successor.
        if run is None or journal is None or self.deterministic or run.over:
            return
        if run.permit is not None:
            run.permit.reserve(request, self.count)
        wait = journal.lease(first=not run.leased)
        if wait > 0:
            raise LeasedElsewhere(wait)
        if not run.leased:
            run.leased = True
            # Another thread of this process may have read the news, so that there is nothing left to refresh.
            is_news, state = journal.refresh(), journal.read()
            if is_news or (state.generation, state.prepared) != (self.base, self.prepared):
                raise StaleCompaction("evaluate_again")

    def _check_and_restore(self, task: SummaryTask, answer: object) -> CheckedSummary:
        """Return the summary that *answer* is, with the prohibitions that it lost put back, and notes carried over.

        They follow all notes if the answer extends those that prompts show: their beginning stays in the cache.
        Every refusal of a summary is raised here, as ``SummaryRejected``: by a check, or because the restored sentences
        make it longer than the text that it replaces.
        """
        from .acceptance.checks import MIN_SAVING, check_summary
        from .acceptance.prohibitions import UserWords, find_dropped, find_lost, read_prohibitions, restore_sentences
        from .notes import INSTRUCTIONS, add_instructions, carry_over, find_span, render_notes
        from .summarizers.content import Terms

        request, source, previous = task.request, task.source, task.added_to
        prohibitions, reserve = task.prohibitions or (), task.reserve or 0
        extends = request.kind == "changes" or request.previous is not previous
        checked = check_summary(
            answer,
            source,
            target_tokens=request.target_tokens,
            count=self.count,
            kind=request.kind,
            parse=task.parse,
            length_setting=task.length_setting,
        )
        text, notes = checked.summary.text, checked.summary.notes
        extracted = isinstance(answer, Summary) and answer.extracted
        if not extracted and request.kind in ("rounds", "changes"):
            # From here on, what stands below the heading counts as the user's words: keep only what he said.
            instructions: tuple[str, ...] = ()
            before = ""
            if previous is not None:
                own = [note.text for note in previous.notes if note.section == INSTRUCTIONS]
                instructions, before = (*read_prohibitions(previous), *own), previous.summary
            words = UserWords(request.rounds, (*instructions, *prohibitions), before)
            if notes:
                notes = words.attribute_notes(notes)
                if previous is not None and previous.notes and request.kind == "rounds":
                    most = source.previous_tokens + int(MIN_SAVING * source.tokens)
                    most = min(most, request.target_tokens or source.previous_tokens)
                    dropped = find_dropped(previous.notes, Terms(text), Terms(source.text))
                    notes = carry_over(notes, dropped, most, self.count, behind=extends)
                text = render_notes(notes)
            else:
                text = words.attribute(text)
        missing = find_lost(prohibitions, (text,)) if prohibitions else ()
        text, back = restore_sentences(text, missing, reserve, self.count) if missing else (text, 0)
        if back and notes:
            span = find_span(request.rounds, request.start_index, request.end_index)
            notes = add_instructions(notes, missing[-back:], span, behind=extends)
            text = render_notes(notes)
        elif back and extracted:
            text = self._shorten_extract(text, task)
        tokens = checked.tokens if text == checked.summary.text else self.count(text)
        if back and tokens >= source.previous_tokens + source.tokens:
            message = "with the user's prohibitions that it lost, the summary makes no prompt shorter"
            raise SummaryRejected("larger", message, tokens=source.tokens, is_final=True)
        # A payload still says what the text said before, and cannot be changed.
        payload = checked.summary.payload if text == checked.summary.text else None
        if payload is not None and count_payload(payload, self.count) >= source.previous_tokens + source.tokens:
            payload = None  # it makes no prompt shorter
        summary = copy_with(checked.summary, text=text, notes=notes, extracted=extracted, payload=payload)
        return copy_with(checked, summary=summary, tokens=tokens, restored=back)

    def _shorten_extract(self, text: str, task: SummaryTask) -> str:
        """Return *text*, extracted offline, or an extract shorter by as much as the prohibitions exceed the target."""
        from .acceptance.prohibitions import find_lost, restore_sentences

        request, prohibitions, reserve = task.request, task.prohibitions or (), task.reserve or 0
        target, count, less = request.target_tokens or 0, self.count, 0
        all_of_them = min(count("\n".join(prohibitions)) + _HEADING_TOKENS + 2 * len(prohibitions), reserve)
        for attempt in range(_SHORTER):
            if not target or (over := count(text) - target) <= 0:
                break
            # First by the excess. If each extract loses other sentences, in the end by all that may be put back.
            less = less + over if attempt < _SHORTER - 1 else all_of_them
            self.requests += 1
            self.sent_tokens += task.source.sent or 0
            shorter_request = copy_with(request, previous=task.added_to, target_tokens=max(1, target - less))
            answer = self.ask(shorter_request)
            shorter = answer.text if isinstance(answer, Summary) else str(answer)
            text, _ = restore_sentences(shorter, find_lost(prohibitions, (shorter,)), reserve, count)
        return text

    def keep(
        self, said: str, summary: Summary, compaction: CompactedMessage | None, kind: RequestKind = "rounds"
    ) -> None:
        """Keep the answer *said*, of which *summary* was made, and the *compaction* that could be published, if any."""
        if self.journal is None or self.rounds is None:
            return
        rounds = self.read_rounds() if self.read_rounds is not None else self.rounds
        newest = rounds[-1] if rounds.total else None  # calls of the agent's model are counted from there
        covered = self.rounds[self.covered : compaction.end_index] if compaction is not None else ()
        self.journal.prepare(
            CompactionPrepared(
                role=self.journal.role,
                digest=self.origin.digest,
                base=self.base,
                kind=kind,
                strategy=self.origin.strategy,
                text=said,
                model=summary.model,
                usage=summary.usage,
                checks=self.origin.checks,
                compaction=compaction,
                round_ids=tuple([round_.id for round_ in covered]),
                seen_round_id=newest.id if newest is not None else "",
                seen_post=newest.post_list[-1].number if newest is not None and newest.post_list else 0,
            )
        )


def _list_pinned_texts(rounds: Sequence[Round], pins: frozenset[tuple[str, int]]) -> tuple[str, ...]:
    """Return the texts of *rounds* that are shown word for word beside the summary."""
    texts = [
        (round_.id, number, text)
        for round_ in rounds
        for number, text in ((0, round_.user_query), *((post.number, post.message) for post in round_.post_list))
    ]
    return tuple(text for round_id, number, text in texts if (round_id, number) in pins)


def compute_digest(request: SummaryRequest) -> str:
    """Return the SHA-256 of the request's messages in hexadecimal digits: equal for equal requests."""
    import hashlib

    return hashlib.sha256(json.dumps(request.messages, sort_keys=True, default=str).encode()).hexdigest()


def with_feedback(request: SummaryRequest, rejected: SummaryRejected) -> SummaryRequest:
    """Return *request* with the reason why its answer was refused, at the end of the last user message in both forms.

    No message is added: some providers refuse two of one role in a row, or a system message that is not the first. A
    model that replied to the conversation is not asked behind it again.
    """
    named = ", ".join(f'"{escape_tags(name)}"' for name in rejected.identifiers[:_MAX_NAMED])
    fault = FAULTS.get(rejected.check, "it was no usable summary")
    is_told_length = rejected.check in TOO_LONG and request.target_tokens is not None
    length = f", in at most {request.target_tokens} tokens" if is_told_length else ""
    note = f"{_REFUSED}{fault}{f' ({named})' if named else ''}{length}.{_ANEW}"
    continued = request.continued_prompt if rejected.check != "greeting" else None
    if continued is not None:
        continued = copy_with(continued, messages=_with_note(continued.messages, note))
    return copy_with(request, messages=_with_note(request.messages, note), continued_prompt=continued)


def _with_note(messages: Sequence[dict[str, Any]], note: str) -> list[dict[str, Any]]:
    """Return a copy of *messages* with *note* at the end of the last user message."""
    result = list(messages)
    for place in range(len(result) - 1, -1, -1):
        if result[place].get("role") == "user":
            content = result[place].get("content")
            said = (
                [*content, {"type": "text", "text": note.strip()}] if isinstance(content, list) else f"{content}{note}"
            )
            result[place] = {**result[place], "content": said}
            break
    return result


def find_refusal(request: SummaryRequest) -> str:
    """Return the note that ``with_feedback`` put at the end of *request*, or an empty text."""
    said = str(request.messages[-1].get("content")) if request.messages else ""
    return said[said.rfind(_REFUSED) :] if said.endswith(_ANEW) and _REFUSED in said else ""
