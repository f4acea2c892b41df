"""The loop of whatever summarises more than a request holds: old summary + what is new → new summary, step by step."""

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
from ..summarizers.base import Continued, RequestKind, Summary, SummaryRequest, added
from ..transcript import Calls, Room, Step, quote, steps
from ..view import View, Work

#: Of few new tokens, a summary is asked to take at most this share beside what the one before took.
NEW_SHARE = 0.5
#: In fewer tokens a summary says nothing: a heading and a few words. What was said stays until there is more of it.
MIN_TARGET = 16
#: How many characters a summarizer sees of the query that calls or a result are about.
MAX_QUERY = 1_000
#: Stands for a summary where what is around it is counted.
_WORD = "word"


def quote_query(round_: Round) -> str:
    """Return the query of *round_*, shortened, as quoted text; empty where it has none."""
    query = round_.user_query
    asked = query if len(query) <= MAX_QUERY else f"{beginning(query, MAX_QUERY)} [...]"
    about = round_.model_copy(update={"user_query": asked, "post_list": ()})
    return quote(about, partial=True) if asked else ""


@dataclass(frozen=True, slots=True)
class SummaryQuestion:
    """How one kind of summary is asked for."""

    prompt: PromptTemplate
    kind: RequestKind = "rounds"
    target_tokens: int | None = None
    #: Quoted text at the head of every request, which tells what the rest is about and is not summarised itself.
    lead: str = ""

    def room(self, view: View, work: Work, previous: CompactedMessage | None) -> int:
        """Return the tokens that the conversation may take in a request: what instructions and summary leave."""
        empty = self._messages(self._text(Step()), view, work, previous)
        taken = PROMPT_TOKENS + sum(count_message(message, view.ledger.count) for message in empty)
        return work.config.summarizer_input_tokens - taken

    def request(
        self, step: Step, view: View, work: Work, previous: CompactedMessage | None, span: tuple[int, int]
    ) -> tuple[SummaryRequest, str]:
        """Return the request for *step*, and the text that it shows."""
        text = self._text(step)
        request = SummaryRequest(
            role=view.role,
            kind=self.kind,
            previous=previous,
            rounds=tuple(step.rounds),
            start_index=span[0],
            end_index=span[1],
            target_tokens=self.target_tokens,
            plan=work.plan,
            messages=self._messages(text, view, work, previous),
            continued=self._continued(step, view, work, previous),
        )
        return request, text

    def _continued(self, step: Step, view: View, work: Work, previous: CompactedMessage | None) -> Continued | None:
        """Return the same question behind the beginning of the agent's last prompt, where that shows what is asked."""
        if self.kind != "rounds" or not step.at_boundary:
            return None
        asked = self.prompt.instruct(
            previous=previous is not None, role=view.role, target_tokens=self.target_tokens, plan=work.plan
        )
        return work.continued(view, previous, step.rounds, asked)

    def _text(self, step: Step) -> str:
        return Step(texts=[self.lead, *step.texts]).text if self.lead else step.text

    def _messages(self, text: str, view: View, work: Work, previous: CompactedMessage | None) -> list[dict[str, Any]]:
        return self.prompt.render(
            text,
            previous_summary=previous.summary if previous else None,
            role=view.role,
            target_tokens=self.target_tokens,
            plan=work.plan,
        )


def fold(
    view: View,
    work: Work,
    asking: SummaryQuestion,
    rounds: Sequence[Round],
    *,
    start: int,
    previous: CompactedMessage | None = None,
    logged: Sequence[Round] = (),
    calls: Calls | None = None,
) -> Iterator[tuple[CompactedMessage, bool]]:
    """Give the summary of *previous* and of all of *rounds* so far, after each request that it takes, and whether it
    ends at the end of a round, and prompts are shorter with it.

    *rounds* are those behind the first *start* of the view, as the summarizer is to read them; where that is not as the
    log has them, *logged* are the same from the log: what the user forbade there stands in the summary all the same.
    Where they are parts of rounds, *calls* are those that their results answer. Where prompts could only be longer with
    it, nobody is asked.
    """
    publishes = asking.kind == "rounds"
    if publishes and rounds and not saving_of(view, previous, start + len(rounds)).is_possible:
        return
    reached = start
    room = Room(asking.room(view, work, previous))
    usage: Mapping[str, int] | None = None
    taken_in, published, shown = 0, _summary_tokens(view, previous), previous
    for step in steps(rounds, room, view.ledger.count, calls=calls):
        first, reached = reached + 1, start + step.whole
        span = (first, reached if step.at_boundary else reached + 1)
        # All since the last publication: the last piece of a long round may be short, and the summary may not be that.
        taken_in += step.tokens
        saving = saving_of(view, shown, reached) if publishes and step.at_boundary else None
        if saving is not None and not saving.is_possible:
            if step.whole == len(rounds):
                return
            saving = None  # with the rounds of the next request, it may be
        source, aimed = Source("", taken_in, published, sent=step.tokens), asking.target_tokens
        if saving is not None:
            source, aimed = saving.measure(source, aimed)
        request, text = replace(asking, target_tokens=aimed).request(step, view, work, previous, span)
        prohibitions = in_force(previous, (*logged[first - 1 - start : reached - start], *step.rounds))
        # While no round is folded in entirely, the last that is covered was so before; that one need not be read again.
        last = view.rounds[reached - 1] if reached > start else None
        extra = {PROHIBITIONS: prohibitions} if prohibitions else {}
        becomes = partial(compaction_of, reached, last, previous, usage, extra)
        source = replace(source, text=text)
        previous = becomes(work.summarize(request, source, view, prohibitions, becomes if saving is not None else None))
        usage = previous.usage
        if step.whole < len(rounds):  # there is more to ask for
            room.tokens = asking.room(view, work, previous)
        complete = saving is not None if publishes else step.at_boundary
        yield previous, complete
        if complete:
            usage, taken_in, published, shown = None, 0, _summary_tokens(view, previous), previous


def compaction_of(
    reached: int,
    last: Round | None,
    previous: CompactedMessage | None,
    usage: Mapping[str, int] | None,
    extra: Mapping[str, Any],
    summary: Summary,
) -> CompactedMessage:
    """Return what *summary* is of the first *reached* rounds, in the place of *previous*; *usage* came before it.

    *last* is the last of them; None: that of *previous*.
    """
    end_round_id, end_number = previous.end_round_id if previous else None, previous.end_number if previous else None
    if last is not None:
        end_round_id, end_number = last.id, last.number or None
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
        extra={**extra, PROHIBITIONS: prohibitions}
        if (prohibitions := carry(extra.get(PROHIBITIONS, ()), summary))
        else extra,
    )


class Saving(NamedTuple):
    """What a compaction takes the place of, as prompts show it."""

    #: Tokens of all of that, with the message of the compaction before.
    before: int
    #: Tokens of what will stand around the summary, and of the summary before.
    frame: int
    previous: int

    @property
    def new(self) -> int:
        """By how many tokens the summary may be longer than the one before, for prompts to stay as long as they are."""
        return self.before - self.frame - self.previous

    @property
    def is_possible(self) -> bool:
        """Whether a summary could make prompts shorter, and say something in what there is for it."""
        return self.new > 0 and self.target >= MIN_TARGET

    @property
    def target(self) -> int:
        """How long the summary may be for prompts to become clearly shorter."""
        return self.previous + max(int(NEW_SHARE * self.new), 1)

    def measure(self, source: Source, target_tokens: int | None) -> tuple[Source, int | None]:
        """Return *source* with what its rounds take in prompts rather than in a transcript with its markup; and the
        length to ask for: less than *target_tokens* where it takes in little."""
        measured = replace(source, tokens=self.new, frame=self.frame)
        if target_tokens is None:
            return measured, None
        return measured, min(target_tokens, self.target)


def saving_of(view: View, previous: CompactedMessage | None, end: int) -> Saving:
    """Return what a compaction of the first *end* of *view*'s rounds saves, in the place of *previous*."""
    covered = view.closed_tokens(previous.end_index if previous is not None else 0, end)
    last = view.rounds[end - 1]
    # Around a word, for lines that meet are counted as one.
    word = compaction_of(end, last, previous, None, {}, Summary(_WORD))
    return Saving(
        before=view.tokens_in_front(previous) + covered,
        frame=view.tokens_in_front(word) - view.ledger.count(_WORD),
        previous=_summary_tokens(view, previous),
    )


def _summary_tokens(view: View, compaction: CompactedMessage | None) -> int:
    return view.ledger.count(compaction.summary) if compaction else 0


# --- rounds start..end become the one CompactedMessage: old summary + new rounds → new summary --------------------


def compact_rounds(view: View) -> Iterator[CompactedMessage]:
    """Yield the compaction that is due; several, each reaching further, where one request cannot hold all new rounds.

    Made from the log: what was offloaded, dropped or summarised is read in full. Yields none where retaining the recent
    rounds leaves nothing to cover.
    """
    view = view.as_summarised
    work, span = _planned(view, "compact_rounds")
    return _compacted(view, work, view.rounds[span.start : span.stop])


def compact_view(view: View) -> Iterator[CompactedMessage]:
    """Yield the same made from what the view shows, so that nothing is read in full again that was reduced before.

    What the user forbade is carried on from the log all the same.
    """
    view = view.as_summarised
    work, span = _planned(view, "compact_view")
    return _compacted(view, work, [view.round(place) for place in span], view.rounds[span.start : span.stop])


def _planned(view: View, strategy: str) -> tuple[Work, range]:
    """Return what to ask with, and the places of the rounds that are due."""
    if view.work is None:
        raise RuntimeError(f"{strategy} asks a model, so it runs in a compactor, not where a prompt is composed")
    return view.work, range(view.end, view.due_end(view.work.config, view.work.mark))


def _compacted(
    view: View, work: Work, rounds: Sequence[Round], logged: Sequence[Round] = ()
) -> Iterator[CompactedMessage]:
    if not rounds:
        return
    asking = SummaryQuestion(work.config.prompt, target_tokens=work.config.target_tokens)
    made = fold(view, work, asking, rounds, start=view.end, previous=view.compaction, logged=logged)
    yield from (one for one, at_boundary in made if at_boundary and one.end_index >= view.least_end)


# --- what stands in a prompt instead of what was said: in nobody's voice, and always with the way back ------------


def summary_text(summary: str, what: str, reference: str) -> str:
    """Return *summary* as it stands for *what*, which it must not be taken for: whoever said that did not say this."""
    return f"[Summary of {what}, kept in full; reload {reference}]\n{summary}"


def with_sentences(text: str, sentences: Sequence[str]) -> str:
    """Return *text* with what the user forbade, word for word, below it."""
    return "\n".join([text, FORBIDS, *(f"- {sentence}" for sentence in sentences)])


def attachments_line(attachments: Sequence[Attachment], reference: str) -> str:
    """Return the line that stands for *attachments* of one type, of which there is at least one."""
    characters = sum(len(attachment.content) for attachment in attachments)
    times = f"{len(attachments)} × " if len(attachments) > 1 else ""
    return kept_line(f"{times}{attachments[0].type}, {characters:,} characters", reference)
