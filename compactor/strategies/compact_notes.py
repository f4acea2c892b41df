"""Compacts rounds into numbered notes; the model only edits them.

A *minor* compaction sends the numbered notes and the new rounds, and asks for edits. Other notes stay byte for byte,
and the answer is short: output tokens are the slowest and most expensive. A *major* compaction asks for all notes
again. It is made if the notes are too long, if the answer was not a list of edits, or if the summarizer does not
support edits. It reads the raw rounds if they fit in one request, so that nothing is summarized twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from memory.overlays import CompactedMessage, Note
from memory.rounds import cached_property, copy_with
from memory.visibility import Rounds
from prompts import ABOVE, contract

from ..errors import SummaryRejected
from ..host_rounds import COVERED
from ..journal import ANCHORS
from ..notes import Span, append_notes, find_headings, normalize_text, read_notes, render_notes, sort_notes, span_of
from ..prompt.groups import Message
from ..summarizers.base import RequestKind, Summary
from ..tokens import count_prompt
from ..transcript import MIN_ROOM, Step, quote
from ..view import View
from .incremental import Batch, Becomes, Send, SummaryQuestion, fold_due
from .note_edits import SCHEMA, apply_edits, is_edits, parse_edits

#: Key in ``extra`` of a compaction: tokens of its notes when they were last written in full.
WRITTEN_TOKENS = "written_tokens"
#: Share of ``target_tokens`` requested for notes written in full; the rest is room for edits. They are written in full
#: again only if they exceed both the whole target and this multiple of their last full length: some cannot be shorter.
WRITTEN_SHARE, GROWTH = 0.6, 1.25
#: Share of a request that notes may take without a target.
UNASKED_SHARE = 0.25
#: Number of old rounds read at a time.
_PAGE = 32


def compact_notes(view: View) -> Iterator[CompactedMessage]:
    """Yield the compaction that is due; several, each reaching further, if one request cannot hold all new rounds.

    ``notes`` of a compaction holds its summary as single notes. A summary by another strategy is parsed into notes
    first. Raises ``RuntimeError`` outside a compactor.
    """
    return fold_due(view, "compact_notes", NotesQuestion)


@dataclass(frozen=True)
class NotesQuestion(SummaryQuestion):
    """Asks for edits of the previous notes, or for all notes."""

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The sections that the role's prompt requests."""
        return find_headings(self.prompt.content)

    def room(self, view: View, previous: CompactedMessage | None) -> int:
        """Return the tokens left for rounds in the next request, whether it asks for edits or all notes."""
        said = previous.summary if previous is not None else None
        room = self._room(view, said, edits=False)
        if not self._allows_edits(view, previous):
            return room
        return min(room, self._room(view, render_notes(self._read_notes(previous)), edits=True))

    def _allows_edits(self, view: View, previous: CompactedMessage | None) -> bool:
        """Return whether the model can edit notes, and those of *previous* are short enough."""
        notes = self._read_notes(previous)
        if previous is None or not notes or not self.work.takes_changes:
            return False
        config, text, written = self.work.config, render_notes(notes), previous.extra.get(WRITTEN_TOKENS)
        most: float = config.target_tokens or int(UNASKED_SHARE * config.summarizer_input_tokens)
        if isinstance(written, int):
            most = max(most, GROWTH * written)
        return view.ledger.count(text) <= most and self._room(view, text, edits=True) >= MIN_ROOM

    def prepare(self, view: View, batch: Batch) -> tuple[RequestKind, Send, Becomes]:
        work, step, request = self.work, batch.step, batch.request
        previous = before = request.previous
        edits = not batch.in_full and self._allows_edits(view, before)
        notes, span = self._read_notes(before), span_of(step.rounds, request.start_index, batch.reached)
        said = before.summary if before is not None else None
        if edits:
            said, parse = render_notes(notes), partial(_apply_answer, notes, self.order, span)
            request = copy_with(request, kind="changes", notes=notes, schema=SCHEMA)
        else:
            known = notes
            if before is not None:  # again in full: from all rounds, if they fit
                span = (1, span[1])
                whole = self._quote_all(view, batch.reached) if step.at_boundary else None
                if whole is not None:
                    step, previous, said, known = whole, None, None, ()
                    request = copy_with(request, previous=None, rounds=tuple(whole.rounds), start_index=1)
            parse = partial(parse_notes, known, self.order, span, refuses_edits=bool(notes))
        target, continued = self._target(request.target_tokens, edits=edits), None
        if work.continued is not None and step is batch.step and step.at_boundary:
            if previous is None or previous.summary == said:
                instruct = self.prompt.instruct
                asked = instruct(previous=previous is not None, role=view.role, target_tokens=target, plan=work.plan)
                (message,) = _contract(asked, edits=edits)
            else:  # the agent's prompt shows other numbers, or none
                (message,) = self._messages(view, ABOVE, said, target, edits=edits)
            continued = work.continued(previous, step.rounds, str(message["content"]))
        messages = self._messages(view, step.text, said, target, edits=edits)
        request = copy_with(request, messages=messages, continued=continued)
        edited = frozenset(note.text for note in request.notes)
        source = copy_with(batch.source, text=step.text, sent=step.tokens, notes=edited)
        written = before.extra.get(WRITTEN_TOKENS) if before is not None else None

        def becomes(summary: Summary) -> CompactedMessage:
            tokens = written if edits else view.ledger.count(summary.text)
            return batch.compaction(summary, **({WRITTEN_TOKENS: tokens} if tokens else {}))

        kept, major = becomes if batch.step.at_boundary else None, before is not None and not edits
        asks = partial(work.summarize, request, source, batch.prohibitions, kept, parse)
        send = partial(asks, generation=view.generation, major=major)
        return request.kind, send, becomes

    def _read_notes(self, previous: CompactedMessage | None) -> tuple[Note, ...]:
        """Return the notes of *previous* in prompt order, so that the model sees the same numbers."""
        if previous is None:
            return ()
        notes = append_notes(previous.notes, (), self.order)
        return notes or sort_notes(
            read_notes(previous.summary, (previous.start_index, previous.last_round)), self.order
        )

    def _target(self, target: int | None, *, edits: bool) -> int | None:
        """Return the length to request. The check for oversized answers uses the whole *target*."""
        if target is None or edits or not self.work.takes_changes:
            return target
        return max(1, int(WRITTEN_SHARE * target))

    def _messages(self, view: View, text: str, said: str | None, target: int | None, *, edits: bool) -> list[Message]:
        """Return the messages that ask for notes of *target* tokens, or with *edits* for edits of the notes *said*."""
        prompt, plan = self.prompt, self.work.plan
        (message,) = prompt.render(text, previous_summary=said, role=view.role, target_tokens=target, plan=plan)
        return _contract(message["content"], edits=edits)

    def _room(self, view: View, said: str | None, *, edits: bool) -> int:
        empty = self._messages(view, Step().text, said, self._target(self.target_tokens, edits=edits), edits=edits)
        return self.work.config.summarizer_input_tokens - count_prompt(empty, view.ledger.count)

    def _quote_all(self, view: View, reached: int) -> Step | None:
        """Return all rounds up to *reached* as one step; None if they exceed one request or some are missing."""
        if not _has_all(view):
            return None
        room, whole = self._room(view, None, edits=False), Step(whole=reached)
        for start in range(0, reached, _PAGE):
            for round_ in view.rounds[start : min(start + _PAGE, reached)]:
                text = quote(round_)
                tokens = view.ledger.count(text) + 1
                if whole.tokens + tokens > room:
                    return None
                whole.rounds.append(round_)
                whole.texts.append(text)
                whole.tokens += tokens
        return whole


def _has_all(view: View) -> bool:
    """Return whether all covered rounds still exist: a Memory keeps them, other hosts may drop old ones."""
    rounds, compaction = view.rounds, view.compaction
    if compaction is None or isinstance(rounds, Rounds):
        return True
    covered = compaction.extra.get(COVERED, ())
    return len(covered) < ANCHORS and all(rounds.end_of(one) is not None for one in covered)


def _contract(asked: str, *, edits: bool) -> list[Message]:
    return contract("changes" if edits else "notes").render(asked)


def _apply_answer(notes: Sequence[Note], order: Sequence[str], span: Span, answer: str) -> Summary:
    """Return the summary with the edits in *answer* applied to *notes*."""
    notes = apply_edits(notes, parse_edits(answer), order=order, span=span)
    return Summary(render_notes(notes), notes=notes)


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
