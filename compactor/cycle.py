"""One compaction cycle: look, plan, ask, check, publish. It has no thread and no clock of its own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memory.entries import CompactionPrepared
from memory.errors import StaleCompaction
from memory.events import Event
from memory.messages import reads
from memory.overlays import CompactedMessage, Journal, JournalState, Origin, Overlay, Reduction
from memory.rounds import copy_with
from memory.visibility import Rounds

from .acceptance.checks import is_too_little
from .config import CompactorConfig
from .errors import LeasedElsewhere, LimitReached, SummaryRejected
from .events import (
    Deferred,
    Discarded,
    Evaluated,
    Exhausted,
    IndexingFailed,
    PlanFailed,
    Published,
    Reduced,
    Skip,
    Skipped,
    StrategyFailed,
)
from .host_rounds import rounds_for
from .journal import MARGIN, Keeping, Lease, Overtaken
from .plan import plan_text
from .prompt.accounting import Ledger
from .prompt.groups import Message, count_message
from .prompt.last_prompt import last_prompt_of
from .publication import Decision, Deferral, ahead_of, is_same, newest_place, reaching_ahead
from .summarize import CycleWork
from .summarizers.base import Summary, SummaryRequest
from .summarizers.extractive import ExtractiveSummarizer
from .timers import interpreter_is_exiting
from .tokens import TokenCounter
from .triggers import Trigger, Verdict
from .view import STRATEGY, View, fold_in

if TYPE_CHECKING:
    from .runner import Run

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
    holding: Deferral | None = None

    @property
    def role(self) -> str:
        return self.ledger.role


class StrategyPass:
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
    def has_deferred(self) -> bool:
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
            Deferred(
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
                missed_saving=moment.missed_saving,
                saving=made.saving,
                price=made.price,
                idle=moment.idle,
                recheck_in=made.recheck_in,
            )
        )
        return made if made.show else None

    def publish_deferred(self) -> None:
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
        if self._work is not None and verdict.is_due:
            self._work.look(verdict)
        return verdict.is_due

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
        self.publish_deferred()
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
        for round_, group in view.groups(place):
            for post, message, tokens in zip(group.posts, group.messages, view.costs(round_, group), strict=True):
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


# --- one compaction cycle: look, plan, ask, check, publish. It has no thread and no clock of its own --------------


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

    def run(self, run: Run) -> CompactedMessage | None:
        """Return the last compaction that was published; None where there was a reason not to, or it is held.

        *run* asks the summarizer, and says just before each publication why it may not happen any more. Unless answers
        are paid for, they are not kept, no other process need wait, and no permit is taken. Raises what getter,
        journal, trigger, strategies and summarizer raise, ``SummaryRejected``, ``LeasedElsewhere``, ``LimitReached``,
        and ``StaleCompaction`` where what was read is no longer current.
        """
        ask, allowed, traits, forced = run.ask, run.forbidden, run.traits, run.forced
        paid = not traits.deterministic
        self.ledger.count("")  # loads the tokenizer, half a second that the first prompt need not take then
        lease = Lease(self.keeping, self.config.call_timeout + MARGIN)

        def before_asking(made: CycleWork, request: SummaryRequest) -> None:
            if paid and allowed() != "late":  # else the lease is that of the run that came after
                if run.permit is not None:
                    run.permit.hold(request, self.ledger.count)
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
                    current_pass = self._look(work, allowed, forced=forced, prepared_at=prepared_at)
                except Overtaken:
                    continue
                if not current_pass.has_prepared or forced:
                    return current_pass.published
                prepared_at = current_pass.base  # it is weighed with what has happened while it was made
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
    ) -> StrategyPass:
        state, view = self._seen()
        if isinstance(view.rounds, Rounds):
            _ = view.sums  # counts what is new, on this thread rather than where prompts are composed
        current_pass = StrategyPass(self, view, state.generation, allowed)
        due = current_pass.weigh() if self.config.enabled else None
        if prepared_at == state.generation and not current_pass.has_deferred:  # or it would be made again and again
            raise StaleCompaction("rounds_changed")
        if due is not None and due.over is None and not forced:
            current_pass.publish_deferred()
            return current_pass
        verdict = self._why(current_pass.ahead, state, due, forced=forced)
        if verdict is not None:
            current_pass.begin(work_on(verdict))
            current_pass.publish_prepared()
            self._make(current_pass, state.generation, due, forced=forced)
        return current_pass

    def _why(self, view: View, state: JournalState, due: Decision | None, *, forced: bool) -> Verdict | None:
        """Return why strategies are to run; None with a reason not to, which is told."""
        skip, verdict = self._judge(view, state, forced=forced)
        if due is not None and skip is Skip.BELOW_TRIGGER:  # the tail has outgrown what is held
            return Verdict(True, due.over)
        if skip is not None:
            self._skipped(skip, view, state.generation)
            return None
        return verdict

    def _make(self, current_pass: StrategyPass, generation: int, due: Decision | None, *, forced: bool) -> None:
        """Let strategies run until the trigger no longer holds; tell where that has changed nothing."""
        try:
            for strategy in self.strategies:
                if current_pass.changed and not forced and not current_pass.is_still_due():
                    break
                current_pass.apply(strategy)
            else:
                if forced or (due is not None and not current_pass.changed):  # nothing is left to extend it by
                    current_pass.publish_deferred()
                current_pass.end(forced=forced)
        except (LeasedElsewhere, LimitReached) as later:
            reason = Skip.LEASED if isinstance(later, LeasedElsewhere) else Skip.LIMITED
            self._skipped(reason, current_pass.ahead, generation, later.seconds)
            raise
        if not current_pass.changed:
            self._skipped(_why_nothing(current_pass), current_pass.ahead, generation)
        elif current_pass.published is not None and isinstance(current_pass.view.rounds, Rounds):
            _ = current_pass.view.sums  # lets go of what is covered now, rather than at the next look

    def publish_deferred(self, *, needed: bool = True) -> bool:
        """Publish what is held and makes prompts shorter; return whether another compaction is shown now. *needed*: a
        prompt is too long; else only where it is due, and if prompts stay too long with it.

        Asks no model, and takes no turn: whoever publishes first has done so for all.
        """
        state = self.journal.read()
        if self.holding is None or not self.config.enabled or not self.keeping.prepared(state.generation):
            return False
        state, view = self._seen()
        current_pass = StrategyPass(self, view, state.generation, _unless_exiting)
        try:
            if current_pass.weigh(needed=needed) is not None:
                current_pass.publish_deferred()
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
        current_pass = StrategyPass(self, view, state.generation, _unless_exiting)
        current_pass.weigh(needed=True)
        verdict = self.trigger.verdict(current_pass.ahead)
        end = current_pass.ahead.due_end(self.config, verdict.mark)
        return verdict.is_due and current_pass.fold_offline(end, self.config.target_tokens, self.offline)

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
            verdict = replace(verdict, is_due=True)
        self.emit(
            Evaluated(
                role=self.role,
                generation=state.generation,
                is_due=verdict.is_due,
                forced=forced,
                rounds=view.total,
                tail=view.tail_length,
            )
        )
        if verdict.cost_evaluation is not None:
            self.emit(copy_with(verdict.cost_evaluation, role=self.role, generation=state.generation))
        return (None if verdict.is_due else Skip.BELOW_TRIGGER), verdict

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
            Skipped(
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


def _why_nothing(current_pass: StrategyPass) -> Skip:
    return Skip.TOO_LITTLE if current_pass.found_too_little else _nothing_to_cover(current_pass.ahead)


def _nothing_to_cover(view: View) -> Skip:
    return Skip.NOTHING_CLOSED if view.closed <= view.end else Skip.NOTHING_NEW
