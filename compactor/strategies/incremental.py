"""Compacts rounds incrementally: old summary + new rounds → new summary, in steps that fit in a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory.overlays import PAYLOAD, CompactedMessage
from memory.references import take_beginning
from memory.rounds import Round, copy_with
from memory.values import ValueObject
from prompts import CALLS_ABOVE, PromptTemplate

from ..acceptance.checks import Source
from ..acceptance.prohibitions import PROHIBITIONS, add_quoted_instructions, collect_prohibitions
from ..cost.rewriting import Form
from ..errors import LimitReached, SummaryRejected
from ..summarize import SummaryTask, Work
from ..summarizers.base import RequestKind, Summary, SummaryRequest, add_usage
from ..tokens import count_prompt
from ..transcript import Calls, Step, StepLimit, quote, split_into_steps
from ..view import View
from .offline import drop_offline_end

#: A summary is asked to be longer than the previous one by at most this share of the new text.
NEW_SHARE = 0.5
#: Minimum useful tokens of a summary: less is a heading and a few words. Below it, the rounds stay in the prompt.
MIN_TARGET = 16
#: Maximum characters of the query that a summarizer sees above its calls or a result.
MAX_QUERY = 1_000
#: Stands for a summary when its wrapper is counted.
_WORD = "word"


def compact_rounds(view: View) -> Iterator[CompactedMessage]:
    """Yield the compaction that is due; several, each reaching further, if one request cannot hold all new rounds.

    Made from the log: text that was offloaded, dropped or summarised is read in full. Yields none if retaining the
    recent rounds leaves nothing to cover.
    """
    return compact_due_rounds(view, "compact_rounds")


def compact_view(view: View) -> Iterator[CompactedMessage]:
    """Yield the compactions that are due, made from the rounds as the view shows them: reduced text stays reduced.

    The user's prohibitions are still carried on from the log.
    """
    return compact_due_rounds(view, "compact_view", as_shown=True)


def needs_compactor(strategy: str) -> RuntimeError:
    """Return the error for a view without ``work``, outside a compactor: no model may be asked there."""
    return RuntimeError(f"{strategy} asks a model, so it runs in a compactor, not where a prompt is composed")


def measure_saving(replaced: int, wrapper_tokens: int, previous: int) -> tuple[int, int] | None:
    """Return how many tokens longer than the *previous* summary a new one may be before prompts get longer, and the
    length to request so that they get clearly shorter. None if that is no useful length.

    *replaced* is the prompt tokens that it replaces, the previous summary included; *wrapper_tokens* those of the text
    around it.
    """
    new = replaced - wrapper_tokens - previous
    target = previous + max(int(NEW_SHARE * new), 1)
    return (new, target) if new > 0 and target >= MIN_TARGET else None


def find_saving(view: View, previous: CompactedMessage | None, end: int) -> tuple[int, int, int] | None:
    """Return what ``measure_saving`` returns for a compaction of the first *end* rounds that replaces *previous*, and
    its wrapper in tokens."""
    start, generation = (previous.end_index, previous.generation) if previous is not None else (0, 0)
    last, count = view.rounds[end - 1], view.token_cache.count
    # Measure the wrapper around a word: without one, adjacent line ends would be counted as one token.
    word = CompactedMessage(
        start_index=1,
        end_index=max(end, 1),
        summary=_WORD,
        end_round_id=last.id,
        end_number=last.number or None,
        generation=generation,
    )
    before = view.count_tokens_before(previous) + view.count_closed_tokens(start, end)
    wrapper_tokens = view.count_tokens_before(word) - count(_WORD)
    saving = measure_saving(before, wrapper_tokens, count(previous.summary) if previous is not None else 0)
    return (*saving, wrapper_tokens) if saving is not None else None


Becomes = Callable[[Summary], CompactedMessage]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch(ValueObject):
    """The rounds that one request adds to a summary."""

    step: Step
    #: The request, without its messages, and the sizes that a summary is checked against, without the text.
    request: SummaryRequest
    source: Source
    #: How many rounds are fully covered afterwards, and the last of them; None: the same as in the previous compaction.
    reached: int
    last: Round | None
    #: Whether the compaction may be published.
    publishes: bool
    #: Spent on earlier requests since the last publication.
    usage: Mapping[str, int] | None
    prohibitions: tuple[str, ...]
    #: The forms of answers that were refused, and the checks that refused them.
    refused: tuple[str, ...] = ()

    def make_compaction(self, summary: Summary, **extra: Any) -> CompactedMessage:
        """Return the compaction with *summary* as its text; it replaces the previous one."""
        previous, last = self.request.previous, self.last
        end_round_id, end_number = (previous.end_round_id, previous.end_number) if previous else (None, None)
        if last is not None:
            end_round_id, end_number = last.id, last.number or None
        if prohibitions := add_quoted_instructions(self.prohibitions, summary):
            extra = {PROHIBITIONS: prohibitions, **extra}
        if summary.payload is not None:
            extra = {PAYLOAD: summary.payload, **extra}
        return CompactedMessage(
            start_index=1,
            end_index=max(self.reached, 1),
            summary=summary.text,
            end_round_id=end_round_id,
            end_number=end_number,
            generation=previous.generation if previous else 0,
            model=summary.model,
            usage=add_usage(self.usage, summary.usage),
            notes=summary.notes,
            extra=extra,
        )


@dataclass(frozen=True, eq=False, repr=False)
class SummaryQuestion(ValueObject):
    """Asks for summaries of one kind and length with one prompt."""

    work: Work
    prompt: PromptTemplate
    kind: RequestKind = "rounds"
    target_tokens: int | None = None
    #: Quoted text that opens every request as context; it is not summarized itself.
    lead: str = ""
    #: The tail as prompts show it, up to the end of the tool run that is summarized; empty: it is no such run, or the
    #: summarizer has to read something else.
    shown: Sequence[Round] = ()

    def count_free_tokens(self, view: View, previous: CompactedMessage | None) -> int:
        """Return the tokens that the conversation may take in a request beside instructions and summary."""
        said, plan = previous.summary if previous is not None else None, self.work.plan
        text = Step(texts=[self.lead] if self.lead else []).text
        empty = self.prompt.render(
            text, previous_summary=said, role=view.role, target_tokens=self.target_tokens, plan=plan
        )
        return self.work.config.summarizer_input_tokens - count_prompt(empty, view.token_cache.count)

    def prepare(self, view: View, batch: Batch) -> tuple[Form, SummaryTask, Becomes]:
        """Return the form of the answer, the summary to ask for, and the function that makes it a compaction."""
        work, step, request = self.work, batch.step, batch.request
        previous, target = request.previous, request.target_tokens
        text = Step(texts=[self.lead, *step.texts]).text if self.lead else step.text
        said = previous.summary if previous is not None else None
        messages = self.prompt.render(text, previous_summary=said, role=view.role, target_tokens=target, plan=work.plan)
        continued = None
        if work.continue_prompt is not None and self.kind == "rounds" and step.at_boundary:
            has_previous = previous is not None
            asked = self.prompt.instruct(previous=has_previous, role=view.role, target_tokens=target, plan=work.plan)
            continued = work.continue_prompt(previous, step.rounds, asked)
        elif work.continue_prompt is not None and self.shown and step.at_boundary:
            (message,) = self.prompt.render(CALLS_ABOVE, role=view.role, target_tokens=target, plan=work.plan)
            continued = work.continue_prompt(view.compaction, self.shown, message["content"])
        request = copy_with(request, messages=messages, continued_prompt=continued)
        kept, source = batch.make_compaction if batch.publishes else None, copy_with(batch.source, text=text)
        task = SummaryTask(request, source, batch.prohibitions, kept, generation=view.generation)
        return "full", task, batch.make_compaction


def compact_due_rounds(
    view: View, strategy: str, ask: type[SummaryQuestion] = SummaryQuestion, *, as_shown: bool = False
) -> Iterator[CompactedMessage]:
    """Yield the compactions of the rounds that are due; with *as_shown*, rounds are read with their overlays.

    Raises ``RuntimeError`` outside a compactor.
    """
    if (work := view.work) is None:
        raise needs_compactor(strategy)
    view = drop_offline_end(view) if view.is_offline else view
    end = view.find_due_end(work.config, work.token_threshold)
    rounds = logged = view.rounds[view.end : end]
    if as_shown:
        rounds = tuple([view.get_round(place) for place in range(view.end, end)])
    question = ask(work, work.config.prompt, target_tokens=work.config.target_tokens)
    return summarize_in_steps(view, question, rounds, start=view.end, previous=view.compaction, logged=logged)


def summarize_in_steps(
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
    publishes, count = question.kind == "rounds", view.token_cache.count
    saving_of_all = find_saving(view, previous, start + len(rounds)) if publishes and rounds else None
    if publishes and saving_of_all is None:
        return
    first_shown = shown = previous
    reached, tokens, usage = start, 0, None
    published = count(previous.summary) if previous is not None else 0
    room = StepLimit(question.count_free_tokens(view, previous))
    for step in split_into_steps(rounds, room, count, calls=calls):
        first, reached = reached + 1, start + step.whole_rounds
        is_last, saving = step.whole_rounds == len(rounds), None
        # Counts since the last publication: the last part of a long round may be far shorter than its summary.
        tokens += step.tokens
        source, target = Source("", tokens, published, sent=step.tokens), question.target_tokens
        both = (*logged[first - 1 - start : reached - start], *step.rounds)
        prohibitions = collect_prohibitions(previous, both) if publishes else ()
        if publishes and step.at_boundary:
            is_all = is_last and shown is first_shown
            saving = saving_of_all if is_all else find_saving(view, shown, reached)
        if saving is not None:  # measured in prompts, without transcript markup
            new, limit, wrapper_tokens = saving
            source = copy_with(source, tokens=new, wrapper_tokens=wrapper_tokens)
            target = min(target, limit) if target is not None else None
        elif publishes and is_last:
            return
        # Until a whole round is summarized, the last covered round is that of *previous*: no need to read it.
        last = view.rounds[reached - 1] if reached > start else None
        can_publish = saving is not None
        request = SummaryRequest(
            role=view.role,
            kind=question.kind,
            previous=previous,
            rounds=tuple(step.rounds),
            start_index=first,
            end_index=reached if step.at_boundary else reached + 1,
            target_tokens=target,
            plan=question.work.plan,
        )
        batch = Batch(step, request, source, reached, last, can_publish, usage, prohibitions)
        refused: SummaryRejected | None = None
        while True:  # if an answer is refused, another form is asked for, in the end a whole summary
            form, task, becomes = question.prepare(view, batch)
            try:
                previous = becomes(question.work.summarize(task))
                break
            except LimitReached as limited:  # a retry would start over and pay for the refused answer each time
                raise (refused or limited) from None
            except SummaryRejected as rejected:  # has its own event
                if form == "full":
                    raise
                refused, spent = rejected, add_usage(batch.usage, rejected.usage)
                batch = copy_with(batch, usage=spent, refused=(*batch.refused, form, rejected.check))
        usage = previous.usage
        if not is_last:
            room.tokens = question.count_free_tokens(view, previous)
        if not publishes or (can_publish and previous.end_index >= view.least_end):
            yield previous
        if can_publish or (not publishes and step.at_boundary):
            usage, tokens, published, shown = None, 0, count(previous.summary), previous


def quote_query(round_: Round) -> str:
    """Return the query of *round_*, shortened, as quoted text; empty if it has none."""
    query = round_.user_query
    asked = query if len(query) <= MAX_QUERY else f"{take_beginning(query, MAX_QUERY)} [...]"
    about = copy_with(round_, user_query=asked, post_list=())
    return quote(about, partial=True) if asked else ""
