"""One compaction cycle: look, plan, ask, check, publish. It has no thread and no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memory.errors import StaleCompaction
from memory.overlays import CompactedMessage, JournalState
from memory.rounds import changed
from memory.visibility import Rounds

from .asking import USUAL, Ask, Traits
from .config import CompactorConfig
from .cost.limits import Place
from .cost.publication import Decision
from .errors import LeasedElsewhere, LimitReached
from .events import Evaluated, IndexingFailed, PlanFailed, Skip, Skipped, routine_event
from .holding import newest_place
from .host_rounds import rounds_for
from .keeping.lease import MARGIN, Lease, Overtaken
from .last_prompt import last_prompt_of
from .one_pass import Desk, Pass, Strategy
from .plan import plan_text
from .summarizers.base import Summary, SummaryRequest
from .summarizers.extractive import ExtractiveSummarizer
from .threads.workers import interpreter_is_exiting
from .triggers import Verdict
from .view import View
from .work import CycleWork

__all__ = ["Ask", "Cycle", "Strategy"]


@dataclass(frozen=True, kw_only=True)
class Cycle(Desk):
    """What a cycle needs; ``run`` is one."""

    config: CompactorConfig
    rounds_getter: Callable[[], Sequence[Any]]
    monotonic: Callable[[], float]
    header_tokens: Callable[[], int] = lambda: 0
    plan: Callable[[], object] = lambda: None
    #: Summarises while no model answers.
    offline: Callable[[SummaryRequest], str | Summary] = field(default_factory=ExtractiveSummarizer)

    def view(self, state: JournalState) -> View:
        """Return what there is to see now, with the compaction of a *state* read before: rounds that are added in
        between only lengthen the tail."""
        rounds = rounds_for(self.rounds_getter(), self.role)
        header = max(self.header_tokens(), self.ledger.header_tokens) + self.ledger.tool_tokens
        compaction, kept = rounds.anchored(state.current), self.keeping.keeps_reductions
        exempt = frozenset(self.config.exempt_tools)
        return View(
            rounds, compaction, self.ledger, header, self.config.model, keeps_reductions=kept, exempt_tools=exempt
        )

    def _seen(self) -> tuple[JournalState, View]:
        """Return what the journal says, and what there is to see then: without a summary of what has failed."""
        while True:
            state = self.journal.read()
            view = self.view(state)
            if not self.keeping.withdraw_lost(view.rounds):
                return state, view

    def run(
        self,
        ask: Ask,
        allowed: Callable[[], str | None],
        *,
        traits: Traits = USUAL,
        forced: bool = False,
        place: Place | None = None,
    ) -> CompactedMessage | None:
        """Return the last compaction that was published; None where there was a reason not to, or it is held.

        *allowed* says just before each publication why it may not happen any more, or None. *traits* are what the
        summarizer says of itself: unless its answers are paid for, they are not kept, and no other process need wait,
        nor is there need of a *place* among those that may ask; None: no limits. Raises what getter, journal, trigger,
        strategies and summarizer raise, ``SummaryRejected``, ``LeasedElsewhere``, ``LimitReached``, and
        ``StaleCompaction`` where what was read is no longer current.
        """
        paid = not traits.deterministic
        self.ledger.count("")  # loads the tokenizer, half a second that the first prompt need not take then
        lease = Lease(self.keeping, self.config.call_timeout + MARGIN)

        def before_asking(made: CycleWork, request: SummaryRequest) -> None:
            if paid and allowed() != "late":  # else the lease is that of the run that came after
                if place is not None:
                    place.hold(request, self.ledger.count)
                lease.hold(made.is_current)

        def work(verdict: Verdict) -> CycleWork:
            return CycleWork(
                self.config,
                verdict.mark,
                self._plan(),
                ask,
                self.emit,
                self.monotonic,
                exceeds=verdict.exceeds,
                traits=traits,
                keeping=self.keeping if paid or self.holding is not None else None,
                before_asking=before_asking,
                newest_place=self.newest_place,
                last_prompt=last_prompt_of(getattr(self.rounds_getter, "memory", None), self.role),
            )

        prepared_at: int | None = None
        try:
            while True:
                try:
                    passing = self._look(work, allowed, forced=forced, prepared_at=prepared_at)
                except Overtaken:
                    continue
                if not passing.has_prepared or forced:
                    return passing.published
                prepared_at = passing.base  # it is weighed with what has happened while it was made
        finally:
            if lease.is_held and allowed() != "late":
                lease.release()

    # What happens in a pass. *Due* is what is held where its policy says that it is to be shown.
    #
    #     due                    trigger, from its end   then
    #     yes, and prompts fit   not asked               it is shown
    #     yes, prompts too long  whatever it says        it is extended and weighed again; shown, if it cannot be
    #     no                     holds                   strategies run; what they make is published, or held
    #     no                     does not hold           nothing
    #     forced                 not asked               strategies run, and what is held then is shown
    def _look(
        self,
        work_on: Callable[[Verdict], CycleWork],
        allowed: Callable[[], str | None],
        *,
        forced: bool,
        prepared_at: int | None,
    ) -> Pass:
        state, view = self._seen()
        if isinstance(view.rounds, Rounds):
            _ = view.sums  # counts what is new, on this thread rather than where prompts are composed
        passing = Pass(self, view, state.generation, allowed)
        due = passing.weigh() if self.config.enabled else None
        if prepared_at == state.generation and not passing.is_holding:  # or it would be made again and again
            raise StaleCompaction("rounds_changed")
        if due is not None and due.over is None and not forced:
            passing.publish_held()
            return passing
        verdict = self._why(passing.ahead, state, due, forced=forced)
        if verdict is not None:
            passing.begin(work_on(verdict))
            passing.publish_prepared()
            self._make(passing, state.generation, due, forced=forced)
        return passing

    def _why(self, view: View, state: JournalState, due: Decision | None, *, forced: bool) -> Verdict | None:
        """Return why strategies are to run; None with a reason not to, which is told."""
        skip, verdict = self._judge(view, state, forced=forced)
        if due is not None and skip is Skip.BELOW_TRIGGER:  # the tail has outgrown what is held
            return Verdict(True, due.over)
        if skip is not None:
            self._skipped(skip, view, state.generation)
            return None
        return verdict

    def _make(self, passing: Pass, generation: int, due: Decision | None, *, forced: bool) -> None:
        """Let strategies run until the trigger no longer holds; tell where that has changed nothing."""
        try:
            for strategy in self.strategies:
                if passing.changed and not forced and not passing.is_still_due():
                    break
                passing.apply(strategy)
            else:
                if forced or (due is not None and not passing.changed):  # nothing is left to extend it by
                    passing.publish_held()
                passing.end(forced=forced)
        except (LeasedElsewhere, LimitReached) as later:
            reason = Skip.LEASED if isinstance(later, LeasedElsewhere) else Skip.LIMITED
            self._skipped(reason, passing.ahead, generation, later.seconds)
            raise
        if not passing.changed:
            self._skipped(_why_nothing(passing), passing.ahead, generation)
        elif passing.published is not None and isinstance(passing.view.rounds, Rounds):
            _ = passing.view.sums  # lets go of what is covered now, rather than at the next look

    def publish_held(self, *, needed: bool = True) -> bool:
        """Publish what is held and makes prompts shorter; return whether another compaction is shown now. *needed*: a
        prompt is too long; else only where it is due, and if prompts stay too long with it.

        Asks no model, and takes no turn: whoever publishes first has done so for all.
        """
        state = self.journal.read()
        if self.holding is None or not self.config.enabled or not self.keeping.prepared(state.generation):
            return False
        state, view = self._seen()
        passing = Pass(self, view, state.generation, _unless_exiting)
        try:
            if passing.weigh(needed=needed) is not None:
                passing.publish_held()
        except StaleCompaction:
            pass
        return self.journal.read().generation != state.generation

    def fold_offline(self) -> bool:
        """Publish what is due folded in without a model, behind the model's text; return whether prompts are shorter.

        Only where the trigger holds with what was folded in before. What is held is shown first.
        """
        state, view = self._seen()
        if not self.config.enabled or view.total == 0 or _is_reverted(view, state.held_round_id):
            return False
        passing = Pass(self, view, state.generation, _unless_exiting)
        passing.weigh(needed=True)
        verdict = self.trigger.verdict(passing.ahead)
        end = passing.ahead.due_end(self.config, verdict.mark)
        return verdict.holds and passing.fold_offline(end, self.config.target_tokens, self.offline)

    def newest_place(self) -> tuple[str, int]:
        """Return the newest round's id and the number of its newest post, now."""
        return newest_place(rounds_for(self.rounds_getter(), self.role))

    def _plan(self) -> str | None:
        try:
            return plan_text(self.plan())
        except Exception as error:  # noqa: BLE001  (the host's; a summary without the plan is better than none)
            self.emit(PlanFailed(role=self.role, error=type(error).__name__))
            return None

    def _judge(self, view: View, state: JournalState, *, forced: bool) -> tuple[Skip | None, Verdict]:
        """Return the reason not to run, if there is one, and what the trigger says."""
        if not self.config.enabled:
            return Skip.DISABLED, Verdict(False)
        if view.total == 0:
            return Skip.EMPTY, Verdict(False)
        if not forced and _is_reverted(view, state.held_round_id):
            return Skip.REVERTED, Verdict(False)
        verdict = Verdict(True) if forced else self.trigger.verdict(view)
        if view.compaction is not None and view.compaction.is_offline:  # a good answer is due to replace it
            verdict = replace(verdict, holds=True)
        self.emit(
            routine_event(
                Evaluated,
                role=self.role,
                generation=state.generation,
                holds=verdict.holds,
                forced=forced,
                rounds=view.total,
                tail=view.tail_length,
            )
        )
        if verdict.weighed is not None:
            self.emit(changed(verdict.weighed, role=self.role, generation=state.generation))
        return (None if verdict.holds else Skip.BELOW_TRIGGER), verdict

    def index_texts(self) -> bool:
        """Do a step of what makes old rounds quick to search; return whether there is more to do."""
        try:
            return self.keeping.index_texts()
        except Exception as error:  # noqa: BLE001  (whatever is wrong with the store: it is done when somebody searches)
            self.emit(IndexingFailed(role=self.role, error=type(error).__name__))
            return False

    def skipped_unseen(self, reason: Skip) -> Skipped:
        """Return the event of a *reason* for which no rounds need be read."""
        generation = self.journal.read().generation
        return Skipped(role=self.role, generation=generation, reason=reason, rounds=0, tail=0, closed=0)

    def _skipped(self, reason: Skip, view: View, generation: int, retry_in: float | None = None) -> None:
        self.emit(
            routine_event(
                Skipped,
                role=self.role,
                generation=generation,
                reason=reason,
                rounds=view.total,
                tail=view.tail_length,
                closed=view.closed,
                retry_in=retry_in,
            )
        )


def _unless_exiting() -> str | None:
    return "interpreter_exit" if interpreter_is_exiting() else None


def _is_reverted(view: View, held_round_id: str | None) -> bool:
    """Return whether no round is newer than *held_round_id*, the newest at a revert; it may have failed since and be
    hidden."""
    end = view.rounds.end_of(held_round_id) if held_round_id is not None else None
    return end is not None and end >= view.total


def _why_nothing(passing: Pass) -> Skip:
    return Skip.TOO_LITTLE if passing.found_too_little else _nothing_to_cover(passing.ahead)


def _nothing_to_cover(view: View) -> Skip:
    return Skip.NOTHING_CLOSED if view.closed <= view.end else Skip.NOTHING_NEW
