"""One pass of a cycle's strategies over one snapshot of the log: what they give is checked, and published or held."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from memory.entries import CompactionPrepared
from memory.errors import StaleCompaction
from memory.events import Event
from memory.messages import reads
from memory.overlays import CompactedMessage, Journal, Origin, Overlay, Reduction

from .acceptance import is_too_little
from .cost.publication import Decision
from .errors import LeasedElsewhere, LimitReached, SummaryRejected
from .events import Discarded, Exhausted, Held, Published, Reduced, StrategyFailed
from .holding import Holding, ahead_of, is_same, reaching_ahead
from .keeping.keeping import Keeping
from .keeping.lease import Overtaken
from .messages.ledger import Ledger
from .messages.units import Message, count_message
from .offline import STRATEGY, fold_in
from .summarizers.base import Summary, SummaryRequest
from .tokens import TokenCounter
from .triggers import Trigger
from .view import View
from .work import CycleWork

__all__ = ["Desk", "Pass", "Strategy", "name_of"]

Strategy = Callable[[View], Iterable[Overlay]]


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What a cycle has at hand, in each of its passes."""

    journal: Journal
    #: What the journal keeps beside publications: one a compactor.
    keeping: Keeping
    trigger: Trigger
    strategies: Sequence[Strategy]
    ledger: Ledger
    emit: Callable[[Event], None]
    #: Says when a compaction is shown that is prepared; None: at once.
    holding: Holding | None = None

    @property
    def role(self) -> str:
        return self.ledger.role


class Pass:
    """One pass of the strategies over one snapshot of the log.

    A compaction is published when it is made, or, where the cycle is ``holding`` them, prepared: then strategies go on
    from its end, and nobody is shown it yet.
    """

    def __init__(self, desk: Desk, view: View, base: int, allowed: Callable[[], str | None]) -> None:
        self._desk = desk
        #: The generation that is current, as far as it knows.
        self.base = base
        self._allowed = allowed
        self._work: CycleWork | None = None
        self._failed: list[Exception] = []
        self._read: dict[int, _RoundRead] = {}
        self._held: CompactedMessage | None = None
        #: The snapshot, with what this pass has published.
        self.view = view
        self.published: CompactedMessage | None = None
        #: Whether it has prepared one to be held, and whether it has changed anything at all.
        self.has_prepared = False
        self.changed = False
        #: Whether there was too little to be said in less.
        self.found_too_little = False

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    @property
    def ahead(self) -> View:
        """What triggers and strategies go by: the view, as it will be when what is held is shown."""
        return self.view if self._held is None else ahead_of(self.view, self._held)

    def begin(self, work: CycleWork) -> None:
        """Let strategies ask with *work*."""
        self._work, self.view = work, replace(self.view, work=work)
        work.go_on_from(self.base, self.view.end)

    # -- what is held -------------------------------------------------------------------------------------------------

    def weigh(self, *, needed: bool = False) -> Decision | None:
        """Return why what is held is to be shown now; None where it is not, or nothing is held. *needed*: a prompt is
        too long, so it is to be shown if only it makes that shorter."""
        desk, holding = self._desk, self._desk.holding
        held = holding.look(self.view, self.base) if holding is not None else ()
        if holding is None or not held:
            return None
        self._held = held[-1].compaction
        moment = holding.moment(self.view, held)
        made = holding.decision(self.view, self.base, moment, needed=needed)
        desk.emit(
            Held(
                role=desk.role,
                generation=self.base,
                shows=made.show,
                reason=made.reason,
                end=self._held.end_index,
                tokens_before=moment.shown,
                tokens_after=moment.ahead,
                summary=moment.summary,
                retained=moment.retained,
                calls=moment.calls,
                forgone=moment.forgone,
                saving=made.saving,
                price=made.price,
                idle=moment.idle,
                look_in=made.look_in,
            )
        )
        return made if made.show else None

    def publish_held(self) -> None:
        """Publish what is held, if anything is. Raises ``Overtaken`` where somebody else did so just now."""
        if self._held is not None:
            self._publish_furthest(self._desk.keeping.prepared(self.base), self._work if self.has_prepared else None)

    def publish_prepared(self) -> None:
        """Publish of what was paid for and never published the one that reaches furthest, if it may be shown still.
        Where compactions are held, that has been weighed."""
        if self._work is None or self._work.keeping is None or self._desk.holding is not None:
            return
        try:
            self._publish_furthest(self._desk.keeping.publishable(self.base), None)
        except StaleCompaction as stale:
            if stale.reason == "generation":  # others went on from there, and nothing was paid here: no failure
                raise Overtaken from stale
            if stale.reason not in ("rounds_changed", "behind"):
                raise
            # Another process was faster, or a round failed just now: what is due is asked for.

    def _publish_furthest(self, answers: Iterable[CompactionPrepared], work: CycleWork | None) -> None:
        """Publish of *answers* the one that reaches furthest, if any could be shown."""
        for one in reaching_ahead(self.view, answers)[-1:]:
            if self._desk.holding is not None:
                self._desk.holding.forget()  # where it is lost now, that is told as an error
            self._publish(one.compaction, one.origin, work)

    def _hold(self, made: CompactedMessage, work: CycleWork) -> None:
        """Keep *made* to be shown later, and let strategies go on from its end."""
        desk, base = self._desk, self.base
        if reason := self._allowed():
            raise StaleCompaction(reason)
        ids = self._newly_covered(made)
        kept = (one.compaction for one in desk.keeping.prepared(base) if one.round_ids == ids)
        if not any(one is not None and is_same(one, made) for one in kept):  # no summarizer was asked, or not from here
            work.keep(self.view, Summary(made.summary, made.usage, made.model), made)
        if desk.journal.read().generation != base:
            raise StaleCompaction("generation")
        self._held, self.has_prepared, self.changed = made, True, True

    def _catch_up(self) -> None:
        """Go on from what is shown now, if a prompt could not wait, and it is what this pass goes on from anyway."""
        state = self._desk.journal.read()
        current, held = state.current, self._held
        if held is None or current is None or state.generation == self.base:
            return
        if current.generation == state.generation and is_same(current, held):
            self._go_on_from(current, held.end_index)

    # -- what strategies give -----------------------------------------------------------------------------------------

    def apply(self, strategy: Strategy) -> None:
        """Publish or hold what *strategy* gives, as it gives it. Where it fails, that is told, and remembered."""
        name, work = name_of(strategy), self._work
        assert work is not None  # noqa: S101  (the pass has begun)
        work.begin(name)
        self._read = {}  # each reads the rounds anew, and what one gives does not overlap
        try:
            for overlay in strategy(self.ahead):
                self._catch_up()
                if isinstance(overlay, Reduction):
                    self._reduce(overlay, work, name)
                elif isinstance(overlay, CompactedMessage):
                    self._take(overlay, work, name)
                else:
                    raise TypeError(f"a strategy gave {type(overlay).__name__}; it must give overlays")
        except (StaleCompaction, LeasedElsewhere, LimitReached):
            raise
        except Exception as error:
            if isinstance(error, SummaryRejected) and is_too_little(error, deterministic=work.traits.deterministic):
                self.found_too_little = True
                return  # no failure: time does not change that, and the next round may
            self._failed.append(error)
            if len(self._desk.strategies) == 1:  # there is no other: the run has failed, and tells so itself
                raise
            said = error.check if isinstance(error, SummaryRejected) else type(error).__name__
            self._desk.emit(StrategyFailed(role=self._desk.role, generation=self.base, strategy=name, error=said))

    def is_still_due(self) -> bool:
        """Return whether the trigger holds after what was published; strategies hear what is exceeded still."""
        verdict = self._desk.trigger.verdict(self.ahead)
        if self._work is not None and verdict.holds:
            self._work.look(verdict)
        return verdict.holds

    def end(self, *, forced: bool) -> None:
        """Tell where all strategies were not enough. Raises the first failure then, so that it is tried again later."""
        desk, tried = self._desk, self.changed or self._failed
        if not tried or (self.published is not None if forced else not desk.trigger(self.ahead)):
            return
        if not forced and len(desk.strategies) > 1:
            tokens, number = self.ahead.tokens, len(desk.strategies)
            desk.emit(Exhausted(role=desk.role, generation=self.base, strategies=number, tokens=tokens))
        if self._failed:
            raise self._failed[0]

    def _reduce(self, made: Reduction, work: CycleWork, strategy: str) -> None:
        if reason := self._allowed():
            raise StaleCompaction(reason)
        made, why = made.model_copy(update={"generation": self.base}), "overlaid"
        try:
            kept = self.view.keeps_reductions
            reductions = self._desk.journal.reduce(made, base=self.base) if kept else None
        except StaleCompaction as stale:
            if stale.reason == "generation":
                raise
            reductions, why = None, stale.reason
        if reductions is None:  # an overlay covers these posts already, or they are not what they were
            self._desk.emit(Discarded(role=self._desk.role, generation=self.base, reason=why))
            return
        place = (self.view.rounds.end_of(made.round_id) or 1) - 1
        if place not in self._read:
            self._read[place] = _RoundRead.of(self.view, place)
        read = self._read[place]
        before, after = read.tokens(made, self.view.ledger.count)
        self.view, self.changed = replace(self.view, published=reductions, as_composed=False), True
        self._desk.emit(
            Reduced(
                role=self._desk.role,
                generation=self.base,
                strategy=strategy,
                kind=made.kind,
                round_id=made.round_id,
                first_post_id=made.first_post_id,
                last_post_id=made.last_post_id,
                previous_post_id=read.id_at(bisect_left(read.numbers, made.first_number) - 1),
                next_post_id=read.id_at(bisect_right(read.numbers, made.last_number)),
                posts=len(read.covered_by(made)),
                tokens_before=before,
                tokens_after=after,
                seconds=work.seconds,
                usage=made.usage,
                model=made.model,
            )
        )
        work.begin(strategy)

    def _take(self, made: CompactedMessage, work: CycleWork, strategy: str) -> None:
        view, end = self.view, self.ahead.end
        if not end + (not self._replaces(made)) <= made.end_index <= view.closed:
            raise ValueError(
                f"a strategy gave a compaction that ends at round {made.end_index};"
                f" it must end behind {end} and at most at {view.closed}, the last before an open one"
            )
        if made.end_round_id is None:  # a strategy of the host's need not know of ids
            last = view.rounds[made.end_index - 1]
            made = made.model_copy(update={"end_round_id": last.id, "end_number": last.number or None})
        if self._desk.holding is not None and not self._replaces(made):
            self._hold(made, work)
        else:
            self._publish(made, work.origin, work)
            work.begin(strategy)

    def _replaces(self, made: CompactedMessage) -> bool:
        """Return whether *made* takes the place of what was folded in offline: at once, and as far will do."""
        shown = self.ahead.compaction
        return shown is not None and shown.is_offline and not made.is_offline

    def fold_offline(
        self, end: int, target_tokens: int | None, summarize: Callable[[SummaryRequest], str | Summary]
    ) -> bool:
        """Publish the rounds up to *end* folded in without a model, behind the compaction that is shown; return whether
        that made prompts shorter. What is held is shown first."""
        self.publish_held()
        made, before = fold_in(self.view, end, target_tokens, summarize), self.view
        if made is None:
            return False
        if before.tokens_in_front(made) >= before.compaction_tokens + before.closed_tokens(before.end, end):
            return False
        self._publish(made, Origin(strategy=STRATEGY), None)
        return True

    def _publish(self, made: CompactedMessage, origin: Origin, work: CycleWork | None) -> None:
        """Publish *made*, and go on from there. It was made with *work*; None: in an earlier cycle."""
        view, desk = self.view, self._desk
        before = view.compaction_tokens + view.closed_tokens(view.end, made.end_index)
        if reason := self._allowed():
            raise StaleCompaction(reason)
        origin = origin._replace(tokens_before=before, tokens_after=view.tokens_in_front(made))
        since = view if made.is_offline else view.as_summarised  # what it covers and what it replaces does not
        ids = tuple(round_.id for round_ in view.rounds[since.end : made.end_index])
        try:
            published = desk.keeping.publish(made, base=self.base, round_ids=ids, origin=origin)
        except StaleCompaction as stale:
            if stale.reason == "generation" and self._is_shown(made):
                raise Overtaken from stale
            raise
        desk.emit(
            Published(
                role=desk.role,
                generation=published.generation,
                strategy=origin.strategy,
                start=published.start_index,
                end=made.end_index,
                first_round_id=ids[0] if ids else "",
                last_round_id=ids[-1] if ids else "",
                tokens_before=before,
                tokens_after=view.tokens_in_front(published),
                seconds=work.seconds if work is not None else 0.0,
                requests=work.requests if work is not None else 0,
                major=work.major if work is not None else False,
                sent_tokens=work.sent_tokens if work is not None else 0,
                usage=published.usage,
                model=published.model,
                reused=work.reused if work is not None else not made.is_offline,
                offline=made.is_offline,
            )
        )
        self._go_on_from(published, made.end_index)
        self.published = self.view.compaction

    def _go_on_from(self, published: CompactedMessage, end: int) -> None:
        # In the numbering of this pass's snapshot, which a round that fails meanwhile does not change.
        compaction = published.model_copy(update={"end_index": end})
        self.view = replace(self.view, compaction=compaction, as_composed=False)
        self.base, self._held, self.changed = published.generation, None, True
        if self._work is not None:
            self._work.go_on_from(self.base, end)

    def _newly_covered(self, made: CompactedMessage) -> tuple[str, ...]:
        return tuple(round_.id for round_ in self.view.rounds[self.view.end : made.end_index])

    def _is_shown(self, made: CompactedMessage) -> bool:
        """Return whether another process, which found the same answer in the log, was first to publish it."""
        current = self._desk.journal.read().current
        return current is not None and is_same(current, made)


@dataclass(frozen=True, slots=True)
class _RoundRead:
    """A round as a strategy has read it: so that many reductions of one round are told of without reading it again."""

    #: Its posts by number, ascending, as the log has them.
    numbers: Sequence[int]
    ids: Sequence[str]
    #: Its messages and what each takes, by the number of the post, as it reads now; 0 is the query.
    messages: Mapping[int, list[tuple[Message, int]]]

    @classmethod
    def of(cls, view: View, place: int) -> _RoundRead:
        posts = view.rounds[place].post_list
        messages: dict[int, list[tuple[Message, int]]] = {}
        for round_, unit in view.units(place):
            for post, message, tokens in zip(unit.posts, unit.messages, view.costs(round_, unit), strict=True):
                messages.setdefault(post.number if post is not None else 0, []).append((message, tokens))
        return cls([post.number for post in posts], [post.id for post in posts], messages)

    def id_at(self, place: int) -> str:
        """Return the id of the post at *place*; empty where there is none."""
        return self.ids[place] if 0 <= place < len(self.ids) else ""

    def covered_by(self, made: Reduction) -> Sequence[int]:
        first, last = bisect_left(self.numbers, made.first_number), bisect_right(self.numbers, made.last_number)
        return self.numbers[first:last]

    def tokens(self, made: Reduction, count: TokenCounter) -> tuple[int, int]:
        """Return what the messages that *made* covers take, and what stands in their place."""
        numbers = [*((0,) if made.covers(0) else ()), *self.covered_by(made)]
        found = [pair for number in numbers for pair in self.messages.get(number, ())]
        before = sum(tokens for _, tokens in found)
        if made.kind == "dropped":
            return before, 0
        text: Message = {"role": "user", "content": made.text}
        if made.kind == "offloaded" and found:
            message = found[0][0]
            text = {**message, "content": reads(message.get("content"), made.text)}
        rest = sum(tokens for _, tokens in found[1:]) if made.kind == "offloaded" else 0
        return before, count_message(text, count) + rest


def name_of(strategy: Strategy) -> str:
    """Return what a strategy is called in events."""
    return str(getattr(strategy, "__name__", type(strategy).__name__))
