"""Compacts rounds incrementally: old summary + new rounds → new summary, in steps that fit in a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from memory.overlays import CompactedMessage
from memory.references import beginning
from memory.rounds import Attachment, Round
from prompts import PromptTemplate

from ..acceptance.checks import Source
from ..acceptance.prohibitions import PROHIBITIONS, add_quoted_instructions, collect_prohibitions
from ..prompt.shorten import FORBIDS, kept_line
from ..summarizers.base import RequestKind, Summary, SummaryRequest, added
from ..tokens import count_prompt
from ..transcript import Calls, Room, Step, quote, steps
from ..view import View

#: If there is little new text, a summary is asked to take at most this share of it beside the one before.
NEW_SHARE = 0.5
#: Minimum useful tokens of a summary: less is a heading and a few words. Below it, the rounds stay in the prompt.
MIN_TARGET = 16
#: Maximum characters of the query that a summarizer sees above its calls or a result.
MAX_QUERY = 1_000
#: Stands for a summary when its frame is counted.
_WORD = "word"


def compact_rounds(view: View) -> Iterator[CompactedMessage]:
    """Yield the compaction that is due; several, each reaching further, if one request cannot hold all new rounds.

    Made from the log: text that was offloaded, dropped or summarised is read in full. Yields none if retaining the
    recent rounds leaves nothing to cover.
    """
    return _fold_due(view, as_shown=False)


def compact_view(view: View) -> Iterator[CompactedMessage]:
    """Yield the same, made from the rounds as the view shows them: reduced text is not read in full again.

    The user's prohibitions are still carried on from the log.
    """
    return _fold_due(view, as_shown=True)


def _fold_due(view: View, *, as_shown: bool) -> Iterator[CompactedMessage]:
    work = view.work
    if work is None:
        name = "compact_view" if as_shown else "compact_rounds"
        raise RuntimeError(f"{name} asks a model, so it runs in a compactor, not where a prompt is composed")
    view, config = view.as_summarised, work.config
    end = view.due_end(config, work.mark)
    rounds = logged = view.rounds[view.end : end]
    if as_shown:
        rounds = tuple([view.round(place) for place in range(view.end, end)])
    question = SummaryQuestion(config.prompt, target_tokens=config.target_tokens)
    return fold(view, question, rounds, start=view.end, previous=view.compaction, logged=logged)


@dataclass(frozen=True, slots=True)
class SummaryQuestion:
    """The prompt, kind and length of a requested summary."""

    prompt: PromptTemplate
    kind: RequestKind = "rounds"
    target_tokens: int | None = None
    #: Quoted text that opens every request as context; it is not summarized itself.
    lead: str = ""

    def room(self, view: View, previous: CompactedMessage | None) -> int:
        """Return the tokens that the conversation may take in a request beside instructions and summary."""
        assert view.work is not None  # noqa: S101  (a strategy that asks has it)
        empty = self._messages(self._text(Step()), view, previous)
        taken = count_prompt(empty, view.ledger.count)
        return view.work.config.summarizer_input_tokens - taken

    def request(
        self, step: Step, view: View, previous: CompactedMessage | None, span: tuple[int, int]
    ) -> tuple[SummaryRequest, str]:
        """Return the request for *step*, and its quoted text."""
        work, text, behind = view.work, self._text(step), None
        assert work is not None  # noqa: S101  (a strategy that asks has it)
        if work.last_prompt is not None and self.kind == "rounds" and step.at_boundary:
            asked = self.prompt.instruct(
                previous=previous is not None, role=view.role, target_tokens=self.target_tokens, plan=work.plan
            )
            behind = work.continued(view, previous, step.rounds, asked)
        request = SummaryRequest(
            role=view.role,
            kind=self.kind,
            previous=previous,
            rounds=tuple(step.rounds),
            start_index=span[0],
            end_index=span[1],
            target_tokens=self.target_tokens,
            plan=work.plan,
            messages=self._messages(text, view, previous),
            continued=behind,
        )
        return request, text

    def _text(self, step: Step) -> str:
        return Step(texts=[self.lead, *step.texts]).text if self.lead else step.text

    def _messages(self, text: str, view: View, previous: CompactedMessage | None) -> list[dict[str, Any]]:
        return self.prompt.render(
            text,
            previous_summary=previous.summary if previous else None,
            role=view.role,
            target_tokens=self.target_tokens,
            plan=view.work.plan if view.work is not None else None,
        )


def fold(
    view: View,
    question: SummaryQuestion,
    rounds: Sequence[Round],
    *,
    start: int,
    previous: CompactedMessage | None = None,
    logged: Sequence[Round] = (),
    calls: Calls | None = None,
) -> Iterator[CompactedMessage]:
    """Yield the summary of *previous* and all *rounds* so far, after each request.

    If ``question.kind`` is ``rounds``, only publishable summaries are yielded: they end with a complete round and are
    shorter than the text that they replace. If no summary could shorten prompts, no request is made.

    *rounds* follow the first *start* rounds of the view, in the form that the summarizer reads. *logged* holds the same
    rounds from the log; the user's prohibitions in them are carried into the summary. If *rounds* are parts of rounds,
    *calls* maps their results to calls.
    """
    work, publishes, count = view.work, question.kind == "rounds", view.ledger.count
    assert work is not None  # noqa: S101  (a strategy that asks has it)
    if publishes:
        if not rounds:
            return
        saving_of_all = saving_of(view, previous, start + len(rounds))
        if not saving_of_all.is_possible:
            return
    first_shown = shown = previous
    reached, usage, taken_in = start, None, 0
    published = count(previous.summary) if previous is not None else 0
    room = Room(question.room(view, previous))
    for step in steps(rounds, room, count, calls=calls):
        first, reached = reached + 1, start + step.whole
        # Counts since the last publication: the last part of a long round may be far shorter than its summary.
        taken_in += step.tokens
        saving: Saving | None = None
        if publishes and step.at_boundary:
            is_all = shown is first_shown and step.whole == len(rounds)
            saving = saving_of_all if is_all else saving_of(view, shown, reached)
            if not saving.is_possible:
                if step.whole == len(rounds):
                    return
                saving = None  # may be possible with the rounds of the next request
        source, target = Source("", taken_in, published, sent=step.tokens), question.target_tokens
        if saving is not None:
            source, target = saving.measure(source, target)
        span = (first, reached if step.at_boundary else reached + 1)
        request, text = replace(question, target_tokens=target).request(step, view, previous, span)
        prohibitions = (
            collect_prohibitions(previous, (*logged[first - 1 - start : reached - start], *step.rounds))
            if publishes
            else ()
        )
        # Until a whole round is folded in, the last covered round is that of *previous*: no need to read it.
        last = view.rounds[reached - 1] if reached > start else None
        extra = {PROHIBITIONS: prohibitions} if prohibitions else {}
        becomes = partial(compaction_of, reached, last, previous, usage, extra)
        kept = becomes if saving is not None else None
        previous = becomes(work.summarize(request, replace(source, text=text), view, prohibitions, kept))
        if step.whole < len(rounds):  # another request follows
            room.tokens = question.room(view, previous)
        if not publishes or (saving is not None and previous.end_index >= view.least_end):
            yield previous
        usage = previous.usage
        if saving is not None or (not publishes and step.at_boundary):
            usage, taken_in, published, shown = None, 0, count(previous.summary), previous


def compaction_of(
    reached: int,
    last: Round | None,
    previous: CompactedMessage | None,
    usage: Mapping[str, int] | None,
    extra: Mapping[str, Any],
    summary: Summary,
) -> CompactedMessage:
    """Return the compaction of the first *reached* rounds, with *summary* as its text; it replaces *previous*.

    *usage* was spent on earlier requests. *last* is the last covered round; None: the same as in *previous*.
    """
    end_round_id, end_number = previous.end_round_id if previous else None, previous.end_number if previous else None
    if last is not None:
        end_round_id, end_number = last.id, last.number or None
    prohibitions = add_quoted_instructions(extra.get(PROHIBITIONS, ()), summary)
    return CompactedMessage(
        start_index=1,
        end_index=max(reached, 1),
        summary=summary.text,
        end_round_id=end_round_id,
        end_number=end_number,
        generation=previous.generation if previous else 0,
        model=summary.model,
        usage=added(usage, summary.usage),
        notes=summary.notes,
        extra={**extra, PROHIBITIONS: prohibitions} if prohibitions else extra,
    )


class Saving(NamedTuple):
    """The tokens that a compaction can save in prompts."""

    #: Prompt tokens that it replaces, including the message of the previous compaction.
    before: int
    #: Tokens of the text around the new summary, and of the previous summary.
    frame: int
    previous: int

    @property
    def new(self) -> int:
        """How much longer than the previous summary the new one may be before prompts get longer."""
        return self.before - self.frame - self.previous

    @property
    def is_possible(self) -> bool:
        """Whether a summary of useful length would make prompts shorter."""
        return self.new > 0 and self.target >= MIN_TARGET

    @property
    def target(self) -> int:
        """Maximum length of a summary that still makes prompts clearly shorter."""
        return self.previous + max(int(NEW_SHARE * self.new), 1)

    def measure(self, source: Source, target_tokens: int | None) -> tuple[Source, int | None]:
        """Return *source* with its size in prompts (without transcript markup), and the length to request.

        That length is below *target_tokens* if there is little new text.
        """
        measured = replace(source, tokens=self.new, frame=self.frame)
        if target_tokens is None:
            return measured, None
        return measured, min(target_tokens, self.target)


def saving_of(view: View, previous: CompactedMessage | None, end: int) -> Saving:
    """Return the saving of a compaction of the first *end* rounds that replaces *previous*."""
    covered = view.closed_tokens(previous.end_index if previous is not None else 0, end)
    last = view.rounds[end - 1]
    # Measure the frame around a word: without one, adjacent line ends would be counted as one token.
    word = CompactedMessage(
        start_index=1,
        end_index=max(end, 1),
        summary=_WORD,
        end_round_id=last.id,
        end_number=last.number or None,
        generation=previous.generation if previous is not None else 0,
    )
    return Saving(
        before=view.tokens_in_front(previous) + covered,
        frame=view.tokens_in_front(word) - view.ledger.count(_WORD),
        previous=view.ledger.count(previous.summary) if previous is not None else 0,
    )


def quote_query(round_: Round) -> str:
    """Return the query of *round_*, shortened, as quoted text; empty if it has none."""
    query = round_.user_query
    asked = query if len(query) <= MAX_QUERY else f"{beginning(query, MAX_QUERY)} [...]"
    about = round_.model_copy(update={"user_query": asked, "post_list": ()})
    return quote(about, partial=True) if asked else ""


def summary_text(summary: str, what: str, reference: str) -> str:
    """Return *summary* as prompts show it instead of *what*, marked as a summary."""
    return f"[Summary of {what}, kept in full; reload {reference}]\n{summary}"


def append_prohibitions(text: str, sentences: Sequence[str]) -> str:
    """Return *text* with the user's prohibitions, word for word, below it."""
    return "\n".join([text, FORBIDS, *(f"- {sentence}" for sentence in sentences)])


def attachments_line(attachments: Sequence[Attachment], reference: str) -> str:
    """Return the line that stands for *attachments*, one or more of one type."""
    characters = sum(len(attachment.content) for attachment in attachments)
    times = f"{len(attachments)} × " if len(attachments) > 1 else ""
    return kept_line(f"{times}{attachments[0].type}, {characters:,} characters", reference)
