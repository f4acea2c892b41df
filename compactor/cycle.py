"""One compaction cycle: look, plan, ask, check, publish. It has no thread and no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memory.errors import StaleCompaction
from memory.events import Event
from memory.overlays import CompactedMessage, Journal, JournalState, Overlay, Reduction
from memory.visibility import Rounds

from .config import CompactorConfig
from .events import Discarded, Evaluated, Published, Skip, Skipped
from .host_rounds import rounds_for
from .ledger import Ledger
from .triggers import Trigger, Verdict
from .view import View
from .work import Ask, CycleWork

__all__ = ["Ask", "Cycle", "Strategy"]

Strategy = Callable[[View], Iterable[Overlay]]


@dataclass(frozen=True)
class Cycle:
    """What a cycle needs; ``run`` is one."""

    config: CompactorConfig
    rounds_getter: Callable[[], Sequence[Any]]
    journal: Journal
    trigger: Trigger
    strategies: Sequence[Strategy]
    ledger: Ledger
    emit: Callable[[Event], None]
    monotonic: Callable[[], float]
    header_tokens: Callable[[], int] = lambda: 0
    plan: Callable[[], object] = lambda: None

    @property
    def role(self) -> str:
        return self.ledger.role

    def view(self, state: JournalState) -> View:
        """Return what there is to see now, with the compaction of a *state* read before: rounds that are added in
        between only lengthen the tail."""
        rounds = rounds_for(self.rounds_getter(), self.role)
        header = max(self.header_tokens(), self.ledger.header_tokens)
        return View(rounds, rounds.anchored(state.current), self.ledger, header, self.config.model)

    def run(self, ask: Ask, allowed: Callable[[], str | None], *, forced: bool = False) -> CompactedMessage | None:
        """Return the last compaction that was published; None where there was a reason not to.

        *allowed* says just before each publication why it may not happen any more, or None. Raises what getter,
        journal, trigger, strategies and summarizer raise, ``SummaryRejected``, and ``StaleCompaction`` where what was
        read is no longer current.
        """
        self.ledger.count("")  # loads the tokenizer, half a second that the first prompt need not take then
        state = self.journal.read()
        view = self.view(state)
        if isinstance(view.rounds, Rounds):
            _ = view.sums  # counts what is new, on this thread rather than where prompts are composed
        skip, verdict = self._judge(view, state, forced=forced)
        if skip is not None:
            self._skipped(skip, view, state.generation)
            return None
        work = CycleWork(self.config, verdict.mark, self._plan(), ask, self.emit, self.monotonic)
        view = replace(view, work=work)
        base, published = state.generation, None
        for strategy in self.strategies:
            if published is not None and not forced and not self.trigger(view):
                break
            work.began = self.monotonic()
            for overlay in strategy(view):
                if isinstance(overlay, Reduction):  # the log of this version has no place for one
                    self.emit(Discarded(role=self.role, generation=base, reason="reduction"))
                    continue
                if not isinstance(overlay, CompactedMessage):
                    raise TypeError(f"a strategy gave {type(overlay).__name__}; it must give overlays")
                published = self._publish(overlay, view, base, allowed, work)
                base = published.generation
                view = replace(view, compaction=published)
        if published is None:
            self._skipped(_nothing_to_cover(view), view, state.generation)
        return published

    def _plan(self) -> str | None:
        plan = self.plan()
        return plan if plan is None or isinstance(plan, str) else str(plan)

    def _judge(self, view: View, state: JournalState, *, forced: bool) -> tuple[Skip | None, Verdict]:
        """Return the reason not to run, if there is one, and what the trigger says."""
        if not self.config.enabled:
            return Skip.DISABLED, Verdict(False)
        if view.total == 0:
            return Skip.EMPTY, Verdict(False)
        if not forced and _held(view, state.held_round_id):
            return Skip.HELD, Verdict(False)
        verdict = Verdict(True) if forced else self.trigger.verdict(view)
        self.emit(
            Evaluated(
                role=self.role,
                generation=state.generation,
                holds=verdict.holds,
                forced=forced,
                rounds=view.total,
                tail=view.tail_length,
            )
        )
        return (None if verdict.holds else Skip.BELOW_TRIGGER), verdict

    def _skipped(self, reason: Skip, view: View, generation: int) -> None:
        self.emit(
            Skipped(
                role=self.role,
                generation=generation,
                reason=reason,
                rounds=view.total,
                tail=view.tail_length,
                closed=view.closed,
            )
        )

    def _publish(
        self, made: CompactedMessage, view: View, base: int, allowed: Callable[[], str | None], work: CycleWork
    ) -> CompactedMessage:
        if not view.end < made.end_index <= view.closed:
            raise ValueError(
                f"a strategy gave a compaction that ends at round {made.end_index};"
                f" it must end behind {view.end} and at most at {view.closed}, the last before an open one"
            )
        covered = view.rounds[view.end : made.end_index]
        if made.end_round_id is None:  # a strategy of the host's need not know of ids
            made = made.model_copy(update={"end_round_id": covered[-1].id, "end_number": covered[-1].number or None})
        before = view.compaction_tokens + view.closed_tokens(view.end, made.end_index)
        if reason := allowed():
            raise StaleCompaction(reason)
        published = self.journal.publish(made, base=base, round_ids=[round_.id for round_ in covered])
        after = replace(view, compaction=published).compaction_tokens
        self.emit(
            Published(
                role=self.role,
                generation=published.generation,
                start=published.start_index,
                end=made.end_index,
                tokens_before=before,
                tokens_after=after,
                seconds=self.monotonic() - work.began,
                requests=work.requests,
                usage=published.usage,
                model=published.model,
            )
        )
        work.began, work.requests = self.monotonic(), 0
        # In the numbering of this pass's snapshot, which a round that fails meanwhile does not change.
        return published.model_copy(update={"end_index": made.end_index})


def _held(view: View, held_round_id: str | None) -> bool:
    """Return whether no round is newer than *held_round_id*, which may have failed since and be hidden."""
    end = view.rounds.end_of(held_round_id) if held_round_id is not None else None
    return end is not None and end >= view.total


def _nothing_to_cover(view: View) -> Skip:
    return Skip.NOTHING_CLOSED if view.closed <= view.end else Skip.NOTHING_NEW
