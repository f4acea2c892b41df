"""Compaction by folding: old summary + what is new → new summary, in steps that fit a request."""

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
from ..acceptance.prohibitions import PROHIBITIONS, carry, in_force
from ..prompt.groups import PROMPT_TOKENS, count_message
from ..prompt.shorten import FORBIDS, kept_line
from ..summarizers.base import RequestKind, Summary, SummaryRequest, added
from ..transcript import Calls, Room, Step, quote, steps
from ..view import View

#: If there is little new text, a summary is asked to take at most this share of it beside the one before.
NEW_SHARE = 0.5
#: In fewer tokens a summary says nothing: a heading and a few words. What was said stays until there is more of it.
MIN_TARGET = 16
#: How many characters a summarizer sees of the query that calls or a result are about.
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
    """Yield the same made from the rounds as the view shows them, so that reduced text is not read in full again.

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
    """How one kind of summary is asked for."""

    prompt: PromptTemplate
    kind: RequestKind = "rounds"
    target_tokens: int | None = None
    #: Quoted text at the head of every request that tells what the rest is about; it is not summarised itself.
    lead: str = ""

    def room(self, view: View, previous: CompactedMessage | None) -> int:
        """Return the tokens that the conversation may take in a request beside instructions and summary."""
        assert view.work is not None  # noqa: S101  (a strategy that asks has it)
        empty = self._messages(self._text(Step()), view, previous)
        taken = PROMPT_TOKENS + sum([count_message(message, view.ledger.count) for message in empty])
        return view.work.config.summarizer_input_tokens - taken

    def request(
        self, step: Step, view: View, previous: CompactedMessage | None, span: tuple[int, int]
    ) -> tuple[SummaryRequest, str]:
        """Return the request for *step*, and the text that it shows."""
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
    """Yield the summary of *previous* and of all of *rounds* so far, after each request; for a question about rounds,
    only summaries that can be published: at the end of a round, and shorter than the text that they replace.

    *rounds* follow the first *start* of the view, as the summarizer is to read them; *logged* are the same rounds as in
    the log: the user's prohibitions in them stand in the summary too. If *rounds* are parts of rounds, *calls* are the
    ones that their results answer. Nobody is asked if prompts could only become longer.
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
        # All since the last publication: the last part of a long round may be short, and the summary may not be that.
        taken_in += step.tokens
        saving: Saving | None = None
        if publishes and step.at_boundary:
            is_all = shown is first_shown and step.whole == len(rounds)
            saving = saving_of_all if is_all else saving_of(view, shown, reached)
            if not saving.is_possible:
                if step.whole == len(rounds):
                    return
                saving = None  # with the rounds of the next request, it may be
        source, target = Source("", taken_in, published, sent=step.tokens), question.target_tokens
        if saving is not None:
            source, target = saving.measure(source, target)
        span = (first, reached if step.at_boundary else reached + 1)
        request, text = replace(question, target_tokens=target).request(step, view, previous, span)
        prohibitions = (
            in_force(previous, (*logged[first - 1 - start : reached - start], *step.rounds)) if publishes else ()
        )
        # While no round is folded in entirely, the last that is covered was so before; that one need not be read again.
        last = view.rounds[reached - 1] if reached > start else None
        extra = {PROHIBITIONS: prohibitions} if prohibitions else {}
        becomes = partial(compaction_of, reached, last, previous, usage, extra)
        kept = becomes if saving is not None else None
        previous = becomes(work.summarize(request, replace(source, text=text), view, prohibitions, kept))
        if step.whole < len(rounds):  # there is more to ask for
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
    """Return the compaction of the first *reached* rounds that *summary* makes, replacing *previous*; *usage* was spent
    before it. *last* is the last of those rounds; None: the last one of *previous*."""
    end_round_id, end_number = previous.end_round_id if previous else None, previous.end_number if previous else None
    if last is not None:
        end_round_id, end_number = last.id, last.number or None
    prohibitions = carry(extra.get(PROHIBITIONS, ()), summary)
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
    """How much shorter a compaction can make prompts, in tokens."""

    #: What it replaces in a prompt, the message of the compaction before included.
    before: int
    #: The text around the new summary, and the summary before.
    frame: int
    previous: int

    @property
    def new(self) -> int:
        """How many tokens longer than the one before the summary may be for prompts to stay as long as they are."""
        return self.before - self.frame - self.previous

    @property
    def is_possible(self) -> bool:
        """Whether a summary could make prompts shorter and still say something."""
        return self.new > 0 and self.target >= MIN_TARGET

    @property
    def target(self) -> int:
        """How long the summary may be for prompts to become clearly shorter."""
        return self.previous + max(int(NEW_SHARE * self.new), 1)

    def measure(self, source: Source, target_tokens: int | None) -> tuple[Source, int | None]:
        """Return *source* measured as prompts show it, without a transcript's markup, and the length to ask for: less
        than *target_tokens* if there is little new."""
        measured = replace(source, tokens=self.new, frame=self.frame)
        if target_tokens is None:
            return measured, None
        return measured, min(target_tokens, self.target)


def saving_of(view: View, previous: CompactedMessage | None, end: int) -> Saving:
    """Return what a compaction of the first *end* of *view*'s rounds saves when it replaces *previous*."""
    covered = view.closed_tokens(previous.end_index if previous is not None else 0, end)
    last = view.rounds[end - 1]
    # Around a word, because lines that meet are counted as one.
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
    """Return *summary* as a prompt shows it in place of *what*, marked so that nobody takes it for the original."""
    return f"[Summary of {what}, kept in full; reload {reference}]\n{summary}"


def with_sentences(text: str, sentences: Sequence[str]) -> str:
    """Return *text* with the user's prohibitions, word for word, below it."""
    return "\n".join([text, FORBIDS, *(f"- {sentence}" for sentence in sentences)])


def attachments_line(attachments: Sequence[Attachment], reference: str) -> str:
    """Return the line that stands for *attachments*, one or more of one type."""
    characters = sum(len(attachment.content) for attachment in attachments)
    times = f"{len(attachments)} × " if len(attachments) > 1 else ""
    return kept_line(f"{times}{attachments[0].type}, {characters:,} characters", reference)
