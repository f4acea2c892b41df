"""One pass of a cycle's strategies over one snapshot of the log: what they give is checked, published and told."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from memory.entries import CompactionPrepared
from memory.errors import StaleCompaction
from memory.overlays import CompactedMessage, Origin, Overlay, Reduction

from .errors import LeasedElsewhere, SummaryRejected
from .events import Discarded, Exhausted, Published, Reduced, StrategyFailed
from .lease import Overtaken
from .tokens import TokenCounter
from .units import Message, count_message
from .view import View
from .work import CycleWork

if TYPE_CHECKING:
    from .cycle import Cycle

__all__ = ["Pass", "Strategy", "name_of"]

Strategy = Callable[[View], Iterable[Overlay]]


class Pass:
    """One pass of the strategies over one snapshot of the log."""

    def __init__(self, cycle: Cycle, view: View, work: CycleWork, base: int, allowed: Callable[[], str | None]) -> None:
        self._cycle = cycle
        self._work = work
        self._base = base
        self._allowed = allowed
        self._failed: list[Exception] = []
        self._read: dict[int, _RoundRead] = {}
        #: The snapshot, with what this pass has published.
        self.view = view
        self.published: CompactedMessage | None = None
        self.changed = False
        work.go_on_from(base, view.end)

    def publish_prepared(self) -> None:
        """Publish of what was paid for and never published the one that reaches furthest, if it may be shown still."""
        answers = self._cycle.keeping.publishable(self._base) if self._work.keeping is not None else ()
        end, prepared = max(((self._end_of(one), one) for one in answers), key=itemgetter(0), default=(0, None))
        if prepared is None or prepared.compaction is None or not end:
            return
        self._work.begin(prepared.strategy)
        self._work.origin, self._work.reused = Origin(prepared.digest, prepared.checks, prepared.strategy), True
        try:
            self._publish(prepared.compaction.model_copy(update={"end_index": end}), prepared.strategy)
        except StaleCompaction as stale:
            if stale.reason == "generation":  # others went on from there, and nothing was paid here: no failure
                raise Overtaken from stale
            if stale.reason not in ("rounds_changed", "behind"):
                raise
            # Another process was faster, or a round failed just now: what is due is asked for.

    def _end_of(self, prepared: CompactionPrepared) -> int:
        """Return how many rounds *prepared* covers; 0 where it does not fit what there is now."""
        made, rounds = prepared.compaction, self.view.rounds
        end = rounds.end_of(made.end_round_id) if made is not None and made.end_round_id is not None else None
        if end is None or not self.view.end < end <= self.view.closed:
            return 0
        return end if tuple(one.id for one in rounds[self.view.end : end]) == prepared.round_ids else 0

    def apply(self, strategy: Strategy) -> None:
        """Publish what *strategy* gives, as it gives it. Where it fails, that is told, and remembered."""
        name = name_of(strategy)
        self._work.begin(name)
        self._read = {}  # each reads the rounds anew, and what one gives does not overlap
        try:
            for overlay in strategy(self.view):
                if isinstance(overlay, Reduction):
                    self._reduce(overlay, name)
                elif isinstance(overlay, CompactedMessage):
                    self._publish(overlay, name)
                else:
                    raise TypeError(f"a strategy gave {type(overlay).__name__}; it must give overlays")
        except (StaleCompaction, LeasedElsewhere):
            raise
        except Exception as error:
            self._failed.append(error)
            if len(self._cycle.strategies) == 1:  # there is no other: the run has failed, and tells so itself
                raise
            said = error.check if isinstance(error, SummaryRejected) else type(error).__name__
            self._cycle.emit(StrategyFailed(role=self._cycle.role, generation=self._base, strategy=name, error=said))

    def end(self, *, forced: bool) -> None:
        """Tell where all strategies were not enough. Raises the first failure then, so that it is tried again later."""
        cycle, tried = self._cycle, self.changed or self._failed
        if not tried or (self.published is not None if forced else not cycle.trigger(self.view)):
            return
        if not forced and len(cycle.strategies) > 1:
            tokens, number = self.view.tokens, len(cycle.strategies)
            cycle.emit(Exhausted(role=cycle.role, generation=self._base, strategies=number, tokens=tokens))
        if self._failed:
            raise self._failed[0]

    def _reduce(self, made: Reduction, strategy: str) -> None:
        if reason := self._allowed():
            raise StaleCompaction(reason)
        made, why = made.model_copy(update={"generation": self._base}), "overlaid"
        try:
            kept = self.view.keeps_reductions
            reductions = self._cycle.journal.reduce(made, base=self._base) if kept else None
        except StaleCompaction as stale:
            if stale.reason == "generation":
                raise
            reductions, why = None, stale.reason
        if reductions is None:  # an overlay covers these posts already, or they are not what they were
            self._cycle.emit(Discarded(role=self._cycle.role, generation=self._base, reason=why))
            return
        place = (self.view.rounds.end_of(made.round_id) or 1) - 1
        if place not in self._read:
            self._read[place] = _RoundRead.of(self.view, place)
        read = self._read[place]
        before, after = read.tokens(made, self.view.ledger.count)
        self.view, self.changed = replace(self.view, published=reductions, as_composed=False), True
        self._cycle.emit(
            Reduced(
                role=self._cycle.role,
                generation=self._base,
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
                seconds=self._work.seconds,
                usage=made.usage,
                model=made.model,
            )
        )
        self._work.begin(strategy)

    def _publish(self, made: CompactedMessage, strategy: str) -> None:
        view, work = self.view, self._work
        if not view.end < made.end_index <= view.closed:
            raise ValueError(
                f"a strategy gave a compaction that ends at round {made.end_index};"
                f" it must end behind {view.end} and at most at {view.closed}, the last before an open one"
            )
        covered = view.rounds[view.end : made.end_index]
        if made.end_round_id is None:  # a strategy of the host's need not know of ids
            made = made.model_copy(update={"end_round_id": covered[-1].id, "end_number": covered[-1].number or None})
        before = view.compaction_tokens + view.closed_tokens(view.end, made.end_index)
        if reason := self._allowed():
            raise StaleCompaction(reason)
        origin = work.origin._replace(
            tokens_before=before, tokens_after=replace(view, compaction=made).compaction_tokens
        )
        ids = [round_.id for round_ in covered]
        try:
            published = self._cycle.keeping.publish(made, base=self._base, round_ids=ids, origin=origin)
        except StaleCompaction as stale:
            if stale.reason == "generation" and self._is_shown(made):
                raise Overtaken from stale
            raise
        after = replace(view, compaction=published).compaction_tokens
        self._cycle.emit(
            Published(
                role=self._cycle.role,
                generation=published.generation,
                strategy=strategy,
                start=published.start_index,
                end=made.end_index,
                tokens_before=before,
                tokens_after=after,
                seconds=work.seconds,
                requests=work.requests,
                usage=published.usage,
                model=published.model,
                reused=work.reused,
            )
        )
        work.begin(strategy)
        work.go_on_from(published.generation, made.end_index)
        # In the numbering of this pass's snapshot, which a round that fails meanwhile does not change.
        self.published = published.model_copy(update={"end_index": made.end_index})
        self.view = replace(view, compaction=self.published, as_composed=False)
        self._base, self.changed = published.generation, True

    def _is_shown(self, made: CompactedMessage) -> bool:
        """Return whether another process, which found the same answer in the log, was first to publish it."""
        current = self._cycle.journal.read().current
        return current is not None and (current.end_round_id, current.summary) == (made.end_round_id, made.summary)


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
            text = {**found[0][0], "content": made.text}
        rest = sum(tokens for _, tokens in found[1:]) if made.kind == "offloaded" else 0
        return before, count_message(text, count) + rest


def name_of(strategy: Strategy) -> str:
    """Return what a strategy is called in events."""
    return str(getattr(strategy, "__name__", type(strategy).__name__))
