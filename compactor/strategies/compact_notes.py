"""Compacts rounds into numbered notes, most of which stay as they are from one compaction to the next.

A *minor* compaction asks for edits of the notes, or for notes on the new rounds alone, which are added behind the
others. Notes that it does not name stay byte for byte, and the answer is short: output tokens are the slowest and most
expensive. A *major* compaction asks for all notes again, from the notes and the new rounds. It is made if the notes are
too long, or if shorter notes save more than writing them costs: ``choose_form`` weighs that by what the model has
answered so far. Each time, what the notes say passes through the model once more; so that happens rarely. Where it has
happened too often, only the newest notes are written again, with the new rounds, and the older ones stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from memory.overlays import CompactedMessage, Note
from memory.rounds import cached_property, copy_with
from prompts import ABOVE, load_contract

from ..acceptance.checks import MAX_OVER_TARGET, AnswerParser, Source
from ..cost.prices import Prices
from ..cost.rewriting import MAX_PASSES, PASSES, WRITTEN_SHARE, Form, choose_form, choose_length
from ..errors import SummaryRejected
from ..notes import (
    INSTRUCTIONS,
    Span,
    append_notes,
    find_headings,
    find_span,
    normalize_text,
    read_notes,
    render_notes,
    sort_notes,
)
from ..prompt.groups import Message
from ..summarize import TOO_LONG, SummaryTask
from ..summarizers.base import Style, Summary, SummaryRequest
from ..tokens import count_prompt
from ..transcript import MIN_ROOM, Step
from ..view import View
from .incremental import Batch, Becomes, SummaryQuestion, compact_due_rounds
from .note_edits import apply_edits, is_edits, parse_edits

#: Key in ``extra`` of a compaction: tokens of its notes when they were last written in full.
WRITTEN_TOKENS = "written_tokens"
#: Key in ``extra``: compactions since then.
WRITTEN_AGO = "written_ago"
#: Notes are written in full again only if they exceed both the whole target and this multiple of their last full
#: length: some cannot be shorter.
GROWTH = 1.25
#: Notes whose facts have passed through many summaries may have this multiple of ``target_tokens``: another summary
#: would lose more than longer notes cost.
MAX_GROWTH = 1.5
#: Share of a request that notes may take without a target.
UNASKED_SHARE = 0.25


def compact_notes(view: View) -> Iterator[CompactedMessage]:
    """Yield the compaction that is due; several, each reaching further, if one request cannot hold all new rounds.

    ``notes`` of a compaction holds its summary as single notes. A summary by another strategy is parsed into notes
    first. Raises ``RuntimeError`` outside a compactor.
    """
    return compact_due_rounds(view, "compact_notes", NotesQuestion)


def compact_notes_in_view(view: View) -> Iterator[CompactedMessage]:
    """Yield the same compactions, made from the rounds as the view shows them: reduced text stays reduced."""
    return compact_due_rounds(view, "compact_notes", NotesQuestion, as_shown=True)


@dataclass(frozen=True, eq=False, repr=False)
class NotesQuestion(SummaryQuestion):
    """Asks for edits of the previous notes, for more notes, for the newest of them, or for all."""

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The sections that the role's prompt requests."""
        return find_headings(self.prompt.content)

    def count_free_tokens(self, view: View, previous: CompactedMessage | None) -> int:
        """Return the tokens left for rounds in the next request, whatever it asks for."""
        said = previous.summary if previous is not None else None
        room = self._count_free_tokens(view, said, edits=False)
        if not self._has_room(view, previous):
            return room
        return min(room, self._count_free_tokens(view, render_notes(self._read_notes(previous)), edits=True))

    def _has_room(self, view: View, previous: CompactedMessage | None, *, may_exceed: bool = True) -> bool:
        """Return whether the notes of *previous*, if there are any, may grow.

        If *may_exceed*, they may exceed their target where another summary would lose too much.
        """
        notes = self._read_notes(previous)
        if previous is None or not notes:
            return False
        config, text, written = self.work.config, render_notes(notes), previous.extra.get(WRITTEN_TOKENS)
        most: float = config.target_tokens or int(UNASKED_SHARE * config.summarizer_input_tokens)
        if isinstance(written, int):
            most = max(most, GROWTH * written)
        if may_exceed and previous.extra.get(PASSES, 1.0) + 1 > MAX_PASSES:
            most = max(most, MAX_GROWTH * (config.target_tokens or 0))
        return view.token_cache.count(text) <= most and self._count_free_tokens(view, text, edits=True) >= MIN_ROOM

    def _choose_form(self, view: View, batch: Batch, style: Style) -> Form:
        """Return how the next notes are written if the model is asked in that *style*."""
        previous, refused = batch.request.previous, batch.refused
        if previous is None or self.work.deterministic:
            return "full"
        if not {"addition", "newest"}.isdisjoint(refused) or not TOO_LONG.isdisjoint(refused):
            return "full"
        may_pass = _count_passes(batch, 1.0) <= MAX_PASSES
        if style == "separate" and not may_pass and not self._has_room(view, previous, may_exceed=False):
            stay, newest = self._split_notes(batch)
            most = MAX_GROWTH * (self.target_tokens or math.inf)
            if stay and newest and view.token_cache.count(render_notes(stay)) <= most:
                return "newest"
        if not self._has_room(view, previous):
            return "full"
        prices = self.work.prices if isinstance(self.work.prices, Prices) else Prices()
        stats = self.work.summarizer_stats
        takes_changes = self.work.takes_changes and not refused
        choice = choose_form(
            stats,
            prices.with_cold(view.usage.cold),
            style=style,
            calls=max(view.count_calls_after(view.end), 1),
            target=self.target_tokens,
            takes_changes=takes_changes,
        )
        form = choice.form
        longest = view.token_cache.count(previous.summary) + (stats.addition or stats.full or 0)
        if form == "addition" and self.target_tokens and longest > MAX_OVER_TARGET * self.target_tokens:
            if not (takes_changes and stats.keeps_form):
                return "full"
            form = "changes"  # the addition would be refused
        if previous.extra.get(WRITTEN_AGO, 0) + 1 < choice.period:
            return form
        if may_pass:
            return "full"
        return form if form != "full" else "addition"

    def prepare(self, view: View, batch: Batch) -> tuple[Form, SummaryTask, Becomes]:
        work, step, previous = self.work, batch.step, batch.request.previous
        continue_prompt = work.continue_prompt if step.at_boundary else None
        may_continue = continue_prompt is not None and continue_prompt(previous, step.rounds, "") is not None
        # A second try mostly misses, too: it comes with an answer that is worth its price even then.
        expects_hit = may_continue and not work.summarizer_stats.tries_again
        form = self._choose_form(view, batch, "continue" if expects_hit else "separate")
        request, source, said, span, parse = self._ask_for(form, batch)
        edits = form == "changes"
        again = _compute_share(previous, span[0]) if form == "newest" else float(form == "full")
        target, continued = self._compute_target(request.target_tokens, form), None
        if form == "newest" and request.target_tokens is not None:
            replaced = min(view.token_cache.count(said or ""), request.target_tokens)
            target = max(choose_length("addition", request.target_tokens) or 0, int(WRITTEN_SHARE * replaced))
        if continue_prompt is not None and may_continue and form not in ("addition", "newest"):
            if previous is None or previous.summary == said:
                instruct = self.prompt.instruct
                asked = instruct(previous=previous is not None, role=view.role, target_tokens=target, plan=work.plan)
                (message,) = _render_contract(asked, edits=edits)
            else:  # the agent's prompt shows other numbers, or none
                (message,) = self._render_messages(view, ABOVE, said, target, edits=edits)
            continued = continue_prompt(previous, step.rounds, str(message["content"]))
        messages = self._render_messages(view, step.text, said, target, edits=edits)
        request = copy_with(request, messages=messages, continued_prompt=continued)
        edited = frozenset(note.text for note in request.notes)
        source = copy_with(source, text=step.text, sent=step.tokens, notes=edited)

        def becomes(summary: Summary) -> CompactedMessage:
            extra: dict[str, Any] = {PASSES: round(_count_passes(batch, again), 3)}
            if previous is None or form in ("newest", "full"):
                extra[WRITTEN_TOKENS] = view.token_cache.count(summary.text)
            else:
                extra |= {key: value for key, value in previous.extra.items() if key == WRITTEN_TOKENS}
                extra[WRITTEN_AGO] = previous.extra.get(WRITTEN_AGO, 0) + 1
            # A payload stands for what was asked for: without a text in full, that is only what is new.
            return batch.make_compaction(summary if form == "full" else copy_with(summary, payload=None), **extra)

        kept, major = becomes if step.at_boundary else None, previous is not None and form == "full"
        task = SummaryTask(
            request, source, batch.prohibitions, kept, parse, previous, generation=view.generation, major=major
        )
        return form, task, becomes

    def _ask_for(self, form: Form, batch: Batch) -> tuple[SummaryRequest, Source, str | None, Span, AnswerParser]:
        """Return the request for notes in that *form*, and its source, both without their texts; the notes that the
        model sees; the rounds that the answer is about; and how it is read."""
        request, previous, source = batch.request, batch.request.previous, batch.source
        notes, span = self._read_notes(previous), find_span(batch.step.rounds, request.start_index, batch.reached)
        if form == "changes":
            parse: AnswerParser = partial(_apply_answer, notes, self.order, span)
            request = copy_with(request, kind="changes", notes=notes)
            return request, source, render_notes(notes), span, parse
        if form == "addition":
            parse = partial(_add_answer, notes, self.order, span, ())
            return copy_with(request, previous=None), source, None, span, parse
        if form == "newest" and previous is not None:
            stay, newest = self._split_notes(batch)
            said, span = render_notes(newest), (min(note.first_round for note in newest), span[1])
            parse = partial(_add_answer, stay, self.order, span, newest)
            request = copy_with(request, previous=copy_with(previous, summary=said, notes=newest))
            return request, copy_with(source, previous="\n".join(note.text for note in newest)), said, span, parse
        whole = (1, span[1]) if previous is not None else span
        parse = partial(parse_notes, notes, self.order, whole, refuses_edits=bool(notes))
        # The numbers of the notes are not among what a new text has to keep.
        source = copy_with(source, previous="\n".join(note.text for note in notes))
        return request, source, previous.summary if previous is not None else None, whole, parse

    def _split_notes(self, batch: Batch) -> tuple[tuple[Note, ...], tuple[Note, ...]]:
        """Return the notes that stay, and those to be written anew: the newest, as many as ``MAX_PASSES`` allows.

        The user's instructions stay: they are in his words.
        """
        previous = batch.request.previous
        stay, newest = list[Note](), list[Note]()
        for note in self._read_notes(previous):
            may_pass = _count_passes(batch, _compute_share(previous, note.first_round)) <= MAX_PASSES
            (newest if may_pass and note.section != INSTRUCTIONS else stay).append(note)
        return tuple(stay), tuple(newest)

    def _read_notes(self, previous: CompactedMessage | None) -> tuple[Note, ...]:
        """Return the notes of *previous* in prompt order, so that the model sees the same numbers."""
        if previous is None:
            return ()
        notes = append_notes(previous.notes, (), self.order)
        return notes or sort_notes(
            read_notes(previous.summary, (previous.start_index, previous.last_round)), self.order
        )

    def _compute_target(self, target: int | None, form: Form) -> int | None:
        """Return the length to request. The check for oversized answers uses the whole *target*."""
        return target if self.work.deterministic else choose_length(form, target)

    def _render_messages(
        self, view: View, text: str, said: str | None, target: int | None, *, edits: bool
    ) -> list[Message]:
        """Return the messages that ask for notes of *target* tokens, or with *edits* for edits of the notes *said*."""
        prompt, plan = self.prompt, self.work.plan
        (message,) = prompt.render(text, previous_summary=said, role=view.role, target_tokens=target, plan=plan)
        return _render_contract(message["content"], edits=edits)

    def _count_free_tokens(self, view: View, said: str | None, *, edits: bool) -> int:
        target = self._compute_target(self.target_tokens, "changes" if edits else "full")
        empty = self._render_messages(view, Step().text, said, target, edits=edits)
        return self.work.config.summarizer_input_tokens - count_prompt(empty, view.token_cache.count)


def _count_passes(batch: Batch, again: float) -> float:
    """Return how many summaries a round will have passed through on average, if the share *again* of those covered
    before passes through another one."""
    previous = batch.request.previous
    if previous is None:
        return 1.0
    passes: float = previous.extra.get(PASSES, 1.0) + again
    old = previous.end_index
    return (passes * old + max(batch.reached - old, 0)) / max(batch.reached, old)


def _compute_share(previous: CompactedMessage | None, first: int) -> float:
    """Return the share of the rounds that *previous* covers from number *first* on."""
    last = previous.last_round if previous is not None else 0
    return min(max(last - first + 1, 0) / max(last, 1), 1.0)


def _render_contract(asked: str, *, edits: bool) -> list[Message]:
    return load_contract("changes" if edits else "notes").render(asked)


def _apply_answer(notes: Sequence[Note], order: Sequence[str], span: Span, answer: str) -> Summary:
    """Return the summary with the edits in *answer* applied to *notes*."""
    notes = apply_edits(notes, parse_edits(answer), order=order, span=span)
    return Summary(render_notes(notes), notes=notes)


def _add_answer(
    notes: Sequence[Note], order: Sequence[str], span: Span, replaced: Sequence[Note], answer: str
) -> Summary:
    """Return the summary of *notes* with those in *answer*, which stand for the *replaced* ones, behind them."""
    known = {(note.section, note.text) for note in notes}
    more = [note for note in parse_notes(replaced, order, span, answer).notes if (note.section, note.text) not in known]
    added = append_notes(notes, more, order)
    return Summary(render_notes(added), notes=added)


def parse_notes(
    known: Sequence[Note], order: Sequence[str], span: Span, answer: str, *, refuses_edits: bool = True
) -> Summary:
    """Return *answer* parsed as notes; a note in *known* with the same text is kept as it is.

    With *refuses_edits*, a list of edits raises ``SummaryRejected``: all notes that it does not name would be lost.
    """
    if refuses_edits and is_edits(answer):
        raise SummaryRejected("malformed", "the answer edits notes; it must contain all notes")
    found = read_notes(answer, span, known)
    if not found:  # headings alone
        found = (Note(text=normalize_text(answer), first_round=span[0], last_round=span[1]),)
    notes = sort_notes(found, order)
    return Summary(render_notes(notes), notes=notes)
