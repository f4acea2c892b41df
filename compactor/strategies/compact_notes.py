"""Compacts rounds into numbered notes; the model only edits them.

A *minor* compaction sends the numbered notes and the new rounds, and asks for edits. Other notes stay byte for byte,
and the answer is short: output tokens are the slowest and most expensive. A *major* compaction asks for all notes
again. It is made if the notes are too long, if the answer was not a list of edits, or if the summarizer does not
support edits. It reads the raw rounds if they fit in one request, so that nothing is summarized twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from memory.overlays import CompactedMessage, Note
from memory.rounds import Round, cached_property
from memory.visibility import Rounds
from prompts import ABOVE, contract

from ..acceptance.checks import AnswerParser, Source
from ..acceptance.prohibitions import PROHIBITIONS, collect_prohibitions
from ..errors import LimitReached, SummaryRejected
from ..host_rounds import COVERED
from ..journal import ANCHORS
from ..prompt.groups import Message
from ..summarizers.base import RequestKind, Summary, SummaryRequest, added
from ..tokens import count_prompt
from ..transcript import MIN_ROOM, Room, Step, quote, steps
from ..view import View
from .incremental import Saving, compaction_of, saving_of
from .note_edits import SCHEMA, apply_edits, is_edits, parse_edits
from .notes import Span, append_notes, find_headings, normalize_text, read_notes, render_notes, sort_notes, span_of

if TYPE_CHECKING:
    from ..summarize import Work

#: Key in ``extra`` of a compaction: tokens of its notes when they were last written in full.
WRITTEN = "written_tokens"
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
    if view.work is None:
        raise RuntimeError("compact_notes asks a model, so it runs in a compactor, not where a prompt is composed")
    work, view = view.work, view.as_summarised
    rounds = view.rounds[view.end : view.due_end(work.config, work.mark)]
    if rounds:
        yield from (one for one in _Noting(view, work).compacted(rounds) if one.end_index >= view.least_end)


@dataclass(frozen=True)
class _Noting:
    """Makes the compactions of one pass."""

    view: View
    work: Work

    def compacted(self, rounds: Sequence[Round]) -> Iterator[CompactedMessage]:
        """Yield a compaction after each request that ends with a complete round and makes prompts shorter."""
        if not saving_of(self.view, self.view.compaction, self.view.end + len(rounds)).is_possible:
            return
        view, prohibitions = self.view, _Before.of(self, self.view.compaction)
        room = Room(self._room(prohibitions))
        new, reached = 0, view.end
        usage: Mapping[str, int] | None = None
        shown = view.compaction
        published = view.ledger.count(shown.summary) if shown is not None else 0
        for step in steps(rounds, room, view.ledger.count):
            first, reached = reached + 1, view.end + step.whole
            new += step.tokens
            saving = saving_of(view, shown, reached) if step.at_boundary else None
            if saving is not None and not saving.is_possible:
                if step.whole == len(rounds):
                    return
                saving = None  # may be possible with the rounds of the next request
            due = _Due(self, prohibitions, step, first, reached, new, published, saving, usage)
            made = due.made()
            if saving is not None:
                yield made
            if step.whole == len(rounds):  # the last request
                return
            prohibitions, usage = _Before.of(self, made), made.usage
            room.tokens = self._room(prohibitions)
            if saving is not None:
                new, usage, published, shown = 0, None, view.ledger.count(made.summary), made

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The sections that the role's prompt requests."""
        return find_headings(self.work.config.prompt.content)

    @property
    def most(self) -> int:
        """Maximum tokens of notes before they are written in full again."""
        config = self.work.config
        return config.target_tokens or int(UNASKED_SHARE * config.summarizer_input_tokens)

    def target_for(self, target: int | None, *, changes: bool) -> int | None:
        """Return the length to request. The check for oversized answers uses the whole *target*."""
        leave_room = target is not None and not changes and self.work.takes_changes
        return max(1, int(WRITTEN_SHARE * target)) if target is not None and leave_room else target

    def asked(self, content: str, previous: str | None, *, changes: bool, target: int | None) -> list[Message]:
        """Return the messages that ask for notes of *target* tokens, or with *changes* for edits of *previous*."""
        prompt, work = self.work.config.prompt, self.work
        (message,) = prompt.render(
            content, previous_summary=previous, role=self.view.role, target_tokens=target, plan=work.plan
        )
        return _contracted(message["content"], changes)

    def asked_behind(self, said: str | None, *, previous: bool, changes: bool, target: int | None) -> str:
        """Return the same instructions to append to the agent's own prompt.

        *said* is the previous summary; None if that prompt shows it.
        """
        if said is not None:
            return str(self.asked(ABOVE, said, changes=changes, target=target)[0]["content"])
        prompt, work = self.work.config.prompt, self.work
        asked = prompt.instruct(previous=previous, role=self.view.role, target_tokens=target, plan=work.plan)
        return str(_contracted(asked, changes)[0]["content"])

    def room_for(self, previous: str | None, *, changes: bool) -> int:
        """Return the tokens left for rounds in such a request."""
        target = self.target_for(self.work.config.target_tokens, changes=changes)
        empty = self.asked(Step().text, previous, changes=changes, target=target)
        taken = count_prompt(empty, self.view.ledger.count)
        return self.work.config.summarizer_input_tokens - taken

    def _room(self, prohibitions: _Before) -> int:
        """Return the tokens left for rounds in the next request, whether it asks for edits or all notes."""
        in_full = self.room_for(prohibitions.text, changes=False)
        return (
            min(in_full, self.room_for(render_notes(prohibitions.notes), changes=True))
            if prohibitions.changes
            else in_full
        )

    def whole(self, reached: int) -> Step | None:
        """Return all rounds up to *reached* as one step; None if they exceed one request or some are missing."""
        if not self._has_all():
            return None
        room, whole = self.room_for(None, changes=False), Step(whole=reached)
        for start in range(0, reached, _PAGE):
            for round_ in self.view.rounds[start : min(start + _PAGE, reached)]:
                text = quote(round_)
                tokens = self.view.ledger.count(text) + 1
                if whole.tokens + tokens > room:
                    return None
                whole.add(round_, text, tokens)
        return whole

    def _has_all(self) -> bool:
        """Return whether all covered rounds still exist: a Memory keeps them, other hosts may drop old ones."""
        rounds, compaction = self.view.rounds, self.view.compaction
        if compaction is None or isinstance(rounds, Rounds):
            return True
        covered = compaction.extra.get(COVERED, ())
        return len(covered) < ANCHORS and all(rounds.end_of(one) is not None for one in covered)


@dataclass(frozen=True)
class _Before:
    """The previous summary as notes."""

    compaction: CompactedMessage | None
    notes: tuple[Note, ...]
    #: Whether the model may be asked for edits of it.
    changes: bool

    @classmethod
    def of(cls, noting: _Noting, made: CompactedMessage | None) -> _Before:
        if made is None:
            return cls(None, (), changes=False)
        notes = append_notes(made.notes, (), noting.order)  # in prompt order, so that the model sees the same numbers
        notes = notes or sort_notes(read_notes(made.summary, (made.start_index, made.last_round)), noting.order)
        written = made.extra.get(WRITTEN)
        most = max(noting.most, GROWTH * written) if isinstance(written, int) else noting.most
        fits = noting.view.ledger.count(render_notes(notes)) <= most
        fits = fits and noting.room_for(render_notes(notes), changes=True) >= MIN_ROOM
        return cls(made, notes, changes=bool(notes) and fits and noting.work.takes_changes)

    @property
    def text(self) -> str | None:
        return self.compaction.summary if self.compaction is not None else None


@dataclass(frozen=True)
class _Due:
    """Adds the rounds of one request to the notes."""

    noting: _Noting
    prohibitions: _Before
    step: Step
    #: Number of the first round, from 1, and of the rounds fully covered afterwards.
    first: int
    reached: int
    #: Tokens of all rounds since the last publication, and of the summary published then.
    new: int
    published: int
    #: Tokens that the compaction saves in prompts; None: it cannot be published.
    saving: Saving | None
    #: Token usage since then.
    usage: Mapping[str, int] | None

    def made(self) -> CompactedMessage:
        if not self.prohibitions.changes:
            return self._in_full()
        try:
            return self._by_changes()
        except SummaryRejected as rejected:  # reported by its own event; ask for all notes instead
            try:
                return replace(self, usage=added(self.usage, rejected.usage))._in_full()
            except LimitReached:  # a retry would start over and pay for the edits each time
                raise rejected from None

    def _by_changes(self) -> CompactedMessage:
        """Return the compaction with edited notes. Raises ``SummaryRejected``."""
        noting, notes = self.noting, self.prohibitions.notes
        before = render_notes(notes)
        request = self._request(self.step, self.prohibitions.compaction, before, changes=True)
        source = replace(self._source(self.step), notes=frozenset(note.text for note in notes))
        return self._summarized(request, source, partial(_changed, notes, noting.order, self._span()))

    def _in_full(self) -> CompactedMessage:
        """Return the compaction with all notes written in full, again or for the first time."""
        noting, prohibitions = self.noting, self.prohibitions
        again = prohibitions.compaction is not None and self.step.at_boundary
        whole = noting.whole(self.reached) if again else None
        step, previous = (whole, None) if whole is not None else (self.step, prohibitions.compaction)
        known = prohibitions.notes if previous is not None else ()
        request = self._request(step, previous, previous.summary if previous is not None else None, changes=False)
        span = (1, self._span()[1]) if prohibitions.compaction is not None else self._span()
        reading = partial(_written if prohibitions.notes else _read, known, noting.order, span)
        return self._summarized(request, self._source(step), reading, major=prohibitions.compaction is not None)

    def _span(self) -> Span:
        return span_of(self.step.rounds, self.first, self.reached)

    def _source(self, step: Step) -> Source:
        source = Source(step.text, self.new, self.published, sent=step.tokens)
        return self.saving.measure(source, None)[0] if self.saving is not None else source

    @property
    def target_tokens(self) -> int | None:
        target = self.noting.work.config.target_tokens
        return self.saving.measure(self._source(self.step), target)[1] if self.saving is not None else target

    def _request(
        self, step: Step, previous: CompactedMessage | None, said: str | None, *, changes: bool
    ) -> SummaryRequest:
        noting, target = self.noting, self.noting.target_for(self.target_tokens, changes=changes)
        behind = None
        if step is self.step and step.at_boundary:
            shown = previous is None or previous.summary == said  # else the prompt shows other numbers, or none
            said_above = None if shown else said
            asked = noting.asked_behind(said_above, previous=previous is not None, changes=changes, target=target)
            behind = noting.work.continued(noting.view, previous, step.rounds, asked)
        return SummaryRequest(
            role=noting.view.role,
            kind="changes" if changes else "rounds",
            previous=previous,
            rounds=tuple(step.rounds),
            start_index=self.first if step is self.step else 1,
            end_index=self.reached if self.step.at_boundary else self.reached + 1,
            target_tokens=self.target_tokens,
            plan=noting.work.plan,
            messages=noting.asked(step.text, said, changes=changes, target=target),
            continued=behind,
            notes=self.prohibitions.notes if changes else (),
            schema=SCHEMA if changes else None,
        )

    def _summarized(
        self, request: SummaryRequest, source: Source, reading: AnswerParser, *, major: bool = False
    ) -> CompactedMessage:
        prohibitions = collect_prohibitions(self.prohibitions.compaction, self.step.rounds)
        becomes = partial(self._compaction, prohibitions, request.kind)
        kept = becomes if self.step.at_boundary else None
        work, view = self.noting.work, self.noting.view
        return becomes(work.summarize(request, source, view, prohibitions, kept, reading, major=major))

    def _compaction(self, prohibitions: Sequence[str], kind: RequestKind, summary: Summary) -> CompactedMessage:
        view, previous = self.noting.view, self.prohibitions.compaction
        last = view.rounds[self.reached - 1] if self.reached > view.end else None
        written = previous.extra.get(WRITTEN) if previous is not None and kind == "changes" else None
        written = view.ledger.count(summary.text) if kind == "rounds" else written
        extra = {key: value for key, value in ((PROHIBITIONS, tuple(prohibitions)), (WRITTEN, written)) if value}
        return compaction_of(self.reached, last, previous, self.usage, extra, summary)


def _contracted(asked: str, changes: bool) -> list[Message]:
    return contract("changes" if changes else "notes").render(asked)


def _changed(notes: Sequence[Note], order: Sequence[str], span: Span, answer: str) -> Summary:
    """Return the summary with the edits in *answer* applied to *notes*."""
    made = apply_edits(notes, parse_edits(answer), order=order, span=span)
    return Summary(render_notes(made), notes=made)


def _written(known: Sequence[Note], order: Sequence[str], span: Span, answer: str) -> Summary:
    """Return *answer* parsed as notes; a note in *known* with the same text is kept as it is.

    Raises ``SummaryRejected`` for a list of edits, which was not requested: all notes that it does not name would be
    lost.
    """
    if is_edits(answer):
        raise SummaryRejected("malformed", "the answer is changes of notes, and all of them were asked for")
    return _read(known, order, span, answer)


def _read(known: Sequence[Note], order: Sequence[str], span: Span, answer: str) -> Summary:
    """Return the same without the check for edits: there are no notes yet that they could change."""
    found = read_notes(answer, span, known)
    if not found:  # headings alone
        found = (Note(text=normalize_text(answer), first_round=span[0], last_round=span[1]),)
    made = sort_notes(found, order)
    return Summary(render_notes(made), notes=made)
