"""One compaction cycle: look, plan, ask, check, publish. It has no thread and no clock of its own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memory.entries import CompactionPrepared
from memory.errors import StaleCompaction
from memory.events import Event
from memory.messages import replace_text
from memory.overlays import CompactedMessage, JournalState, Origin, Overlay, Reduction
from memory.rounds import copy_with
from memory.visibility import Rounds

from .acceptance.checks import is_too_little
from .compose import last_prompt_of
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
from .journal import JournalWriter, Overtaken
from .plan import plan_text
from .prompt.accounting import Ledger
from .prompt.groups import Message
from .publication import Decision, Deferral, ahead_of, is_same, newest_place, reaching_ahead
from .summarize import Work
from .summarizers.base import Summary, SummaryRequest
from .summarizers.extractive import ExtractiveSummarizer
from .timers import interpreter_is_exiting
from .tokens import TokenCounter, count_message
from .triggers import Trigger, Verdict
from .view import STRATEGY, View, fold_in

if TYPE_CHECKING:
    from .runner import Run

Strategy = Callable[[View], Iterable[Overlay]]


def name_of(strategy: Strategy) -> str:
    """Return the name of a strategy in events."""
    return str(getattr(strategy, "__name__", type(strategy).__name__))


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """What the cycles of one compactor share; ``run`` runs one."""

    config: CompactorConfig
    rounds_getter: Callable[[], Sequence[Any]]
    journal: JournalWriter
    trigger: Trigger
    strategies: Sequence[Strategy]
    ledger: Ledger
    emit: Callable[[Event], None]
    monotonic: Callable[[], float]
    #: Decides when a prepared compaction is shown; None: at once.
    deferral: Deferral | None = None
    header_tokens: Callable[[], int] = lambda: 0
    plan: Callable[[], object] = lambda: None
    #: Summarises while no model answers.
    offline: Callable[[SummaryRequest], str | Summary] = field(default_factory=ExtractiveSummarizer)

    @property
    def role(self) -> str:
        return self.ledger.role

    # What happens in a pass. *Due*: a compaction is deferred, and its policy says that it is to be shown.
    #
    #     due                    trigger, from its end   then
    #     yes, and prompts fit   not asked               it is shown
    #     yes, prompts too long  whatever it says        it is extended and weighed again, or else shown
    #     no                     due                     strategies run; what they make is published, or deferred
    #     no                     not due                 nothing
    #     forced                 not asked               strategies run, and the deferred compaction is shown
    def run(self, run: Run) -> CompactedMessage | None:
        """Return the last compaction that was published; None if there was a reason not to, or it is deferred.

        *run* asks the summarizer, and says just before each publication why it may not happen any more. Raises the
        errors of getter, journal, trigger, strategies and summarizer, ``SummaryRejected``, ``LeasedElsewhere``,
        ``LimitReached``, and ``StaleCompaction`` if the log has changed under the cycle.
        """
        self.ledger.count("")  # loads the tokenizer, half a second that the first prompt need not take then
        prepared_at: int | None = None
        try:
            while True:
                state, view = self.look()
                if isinstance(view.rounds, Rounds):
                    _ = view.prefix_sums  # counts what is new, on this thread rather than where prompts are composed
                current = StrategyPass(self, view, state, run)
                due = current.weigh() if self.config.enabled else None
                if prepared_at == state.generation and not current.has_deferred:  # or it would be made again and again
                    raise StaleCompaction("rounds_changed")
                try:
                    if due is not None and due.over is None and not run.forced:
                        current.publish_deferred()
                    elif (verdict := self._decide(current.ahead, state, due, run)) is not None:
                        current.begin(verdict, run)
                        current.publish_prepared(state)
                        current.apply(due, forced=run.forced)
                except Overtaken:
                    continue
                if not current.has_prepared or run.forced:
                    return current.published
                prepared_at = current.base  # it is weighed with what has happened while it was made
        finally:
            if run.leased and run.forbidden() != "late":  # else it is the lease of the run that came after
                self.journal.release()

    def look(self) -> tuple[JournalState, View]:
        """Return the journal's state and the view then, without a summary of a failed round.

        The journal is read first: rounds that are added in between only lengthen the tail.
        """
        while True:
            state = self.journal.read()
            rounds = rounds_for(self.rounds_getter(), self.ledger.role)
            local = self.journal.local
            if local is None or not local.withdraw_lost(rounds):
                break
        view = View(
            rounds,
            rounds.anchor(state.current),
            self.ledger,
            max(self.header_tokens(), self.ledger.header_tokens) + self.ledger.tool_tokens,
            self.config.model,
            keeps_reductions=self.journal.keeps_reductions,
            exempt_tools=frozenset(self.config.exempt_tools),
        )
        return state, view

    def _decide(self, view: View, state: JournalState, due: Decision | None, run: Run) -> Verdict | None:
        """Return why strategies are to run; None, after telling the reason, if they are not."""
        if not self.config.enabled:
            skip = Skip.DISABLED
        elif view.total == 0:
            skip = Skip.EMPTY
        elif not run.forced and _is_reverted(view, state.revert_round_id):
            skip = Skip.REVERTED
        else:
            verdict = Verdict(True) if run.forced else self.trigger.verdict(view)
            if view.compaction is not None and view.compaction.is_offline:  # a good answer is due to replace it
                verdict = replace(verdict, is_due=True)
            self.emit(
                Evaluated(
                    role=self.ledger.role,
                    generation=state.generation,
                    is_due=verdict.is_due,
                    forced=run.forced,
                    rounds=view.total,
                    tail=view.tail_length,
                )
            )
            if verdict.cost_evaluation is not None:
                self.emit(copy_with(verdict.cost_evaluation, role=self.ledger.role, generation=state.generation))
            if verdict.is_due:
                return verdict
            if due is not None:  # the tail has outgrown the deferred compaction
                return Verdict(True, due.over)
            skip = Skip.BELOW_TRIGGER
        self.tell_skipped(skip, view, state.generation, run=run)
        return None

    def tell_skipped(
        self, reason: Skip, view: View | None, generation: int, retry_in: float | None = None, run: Run | None = None
    ) -> None:
        """Tell that nothing is compacted, and why. *view* is None if no rounds need be read to know."""
        if run is not None:
            run.skip_reason = reason
        self.emit(
            Skipped(
                role=self.ledger.role,
                generation=generation,
                reason=reason,
                rounds=view.total if view is not None else 0,
                tail=view.tail_length if view is not None else 0,
                closed=view.closed if view is not None else 0,
                retry_in=retry_in,
            )
        )

    def publish_deferred(self, *, needed: bool = True) -> bool:
        """Publish the deferred compaction if it makes prompts shorter; return whether another one is shown now.
        *needed*: a prompt is too long; else only if it is due, even if prompts stay too long with it.

        Asks no model and takes no lease: the first to publish has done so for all.
        """
        if self.deferral is None or not self.config.enabled or not self.journal.read().prepared:
            return False
        state, view = self.look()
        current = StrategyPass(self, view, state)
        try:
            if current.weigh(needed=needed) is not None:
                current.publish_deferred()
        except StaleCompaction:
            pass
        return self.journal.read().generation != state.generation

    def fold_offline(self) -> bool:
        """Publish the due rounds folded in without a model, behind the model's text; return whether prompts got
        shorter.

        Only if the trigger is due with what was folded in before. A deferred compaction is shown first.
        """
        state, view = self.look()
        if not self.config.enabled or view.total == 0 or _is_reverted(view, state.revert_round_id):
            return False
        current = StrategyPass(self, view, state)
        current.weigh(needed=True)
        verdict = self.trigger.verdict(current.ahead)
        end = current.ahead.due_end(self.config, verdict.mark)
        return verdict.is_due and current.fold_offline(end)

    def index_texts(self) -> bool:
        """Do one step of indexing old rounds for search; return whether there is more to do."""
        try:
            return self.journal.index_texts()
        except Exception as error:  # noqa: BLE001  (whatever is wrong with the store: the next search does it)
            self.emit(IndexingFailed(role=self.ledger.role, error=type(error).__name__))
            return False


class StrategyPass:
    """One pass of the strategies over one snapshot of the log.

    A compaction is published when it is made. If the cycle defers publication it is prepared instead: strategies go on
    from its end, and nobody is shown it yet.
    """

    def __init__(self, cycle: Cycle, view: View, state: JournalState, run: Run | None = None) -> None:
        self._cycle = cycle
        self._run = run
        self._forbidden = run.forbidden if run is not None else _forbid_at_exit
        #: The generation that is current, as far as it knows.
        self.base = state.generation
        self._prepared = state.prepared
        self._generation = state.generation  # at the beginning, as events of skipping name it
        self._work: Work | None = None
        self._failed: list[Exception] = []
        self._read: dict[int, _RoundRead] = {}
        self._deferred: CompactedMessage | None = None
        #: The snapshot, with what this pass has published.
        self.view = view
        self.published: CompactedMessage | None = None
        #: Whether it has prepared one to be deferred, and whether it has changed anything at all.
        self.has_prepared = False
        self.changed = False
        self._found_too_little = False

    @property
    def has_deferred(self) -> bool:
        return self._deferred is not None

    @property
    def ahead(self) -> View:
        """The view as it will be when the deferred compaction is shown: triggers and strategies go by it."""
        return self.view if self._deferred is None else ahead_of(self.view, self._deferred)

    def begin(self, verdict: Verdict, run: Run) -> None:
        """Let strategies ask the summarizer."""
        cycle, paid, role, plan = self._cycle, not run.traits.deterministic, self.view.role, None
        try:
            given = cycle.plan()
            plan = plan_text(given) if given is not None else None
        except Exception as error:  # noqa: BLE001  (the host's; a summary without the plan is better than none)
            cycle.emit(PlanFailed(role=role, error=type(error).__name__))
        run.compacting = True
        self._work = work = Work(
            ask=run.ask,
            count=cycle.ledger.count,
            config=cycle.config,
            traits=run.traits,
            emit=cycle.emit,
            monotonic=cycle.monotonic,
            plan=plan,
            mark=verdict.mark,
            exceeds=verdict.exceeds,
            last_prompt=last_prompt_of(getattr(cycle.rounds_getter, "memory", None), role)
            if run.traits.takes_continued
            else None,
            run=run,
            journal=cycle.journal if paid or cycle.deferral is not None else None,
            newest_place=lambda: newest_place(rounds_for(cycle.rounds_getter(), role)),
        )
        work.base, work.covered, work.prepared = self.base, self.view.end, self._prepared
        self.view = replace(self.view, work=work)

    # -- deferred compactions -----------------------------------------------------------------------------------------

    def weigh(self, *, needed: bool = False) -> Decision | None:
        """Return why the deferred compaction is to be shown now; None if it is not, or there is none. *needed*: a
        prompt is too long, so it is shown if only it makes that shorter."""
        cycle, deferral = self._cycle, self._cycle.deferral
        ahead = deferral.look(self.view, self.base, self._prepared) if deferral is not None else ()
        if deferral is None or not ahead:
            return None
        self._deferred = ahead[-1].compaction
        moment = deferral.moment(self.view, ahead)
        decision = deferral.decide(self.view, self.base, moment, needed=needed)
        if self._run is not None:
            self._run.recheck_in = decision.recheck_in
        cycle.emit(
            Deferred(
                role=self.view.role,
                generation=self.base,
                shows=decision.show,
                reason=decision.reason,
                end=self._deferred.end_index,
                tokens_before=moment.shown,
                tokens_after=moment.ahead,
                summary=moment.summary,
                retained=moment.retained,
                calls=moment.calls,
                missed_saving=moment.missed_saving,
                saving=decision.saving,
                price=decision.price,
                idle=moment.idle,
                recheck_in=decision.recheck_in,
            )
        )
        return decision if decision.show else None

    def publish_deferred(self) -> None:
        """Publish the deferred compaction, if there is one. Raises ``Overtaken`` if another process just did so."""
        if self._deferred is not None:
            prepared = self._cycle.journal.read_prepared(self.base)
            self._publish_furthest(prepared, self._work if self.has_prepared else None)

    def publish_prepared(self, state: JournalState) -> None:
        """Publish of the answers that were paid for and never published the one that reaches furthest, if it may still
        be shown. With deferral, that has been weighed.

        Only if the journal keeps answers: any other knows nothing of rounds, and nobody promises that they stay what
        they were. There an answer is found again by its request.
        """
        cycle = self._cycle
        if self._work is None or self._work.journal is None or cycle.deferral is not None:
            return
        if not state.prepared or not cycle.journal.keeps_answers:
            return
        try:
            self._publish_furthest(state.prepared, None)
        except StaleCompaction as stale:
            if stale.reason == "generation":  # others went on from there, and nothing was paid here: no failure
                raise Overtaken from stale
            if stale.reason not in ("rounds_changed", "behind"):
                raise
            # Another process was faster, or a round failed just now: what is due is asked for.

    def _publish_furthest(self, answers: Iterable[CompactionPrepared], work: Work | None) -> None:
        """Publish of *answers* the one that reaches furthest, if any can be shown."""
        for one in reaching_ahead(self.view, answers)[-1:]:
            if self._cycle.deferral is not None:
                self._cycle.deferral.forget()  # if it is lost now, that is told as an error
            self._publish(one.compaction, one.origin, work)

    def _defer(self, made: CompactedMessage, work: Work) -> None:
        """Keep *made* to be shown later, and let strategies go on from its end."""
        if reason := self._forbidden():
            raise StaleCompaction(reason)
        journal, view = self._cycle.journal, self.view
        ids = tuple([round_.id for round_ in view.rounds[view.end : made.end_index]])
        kept = [one.compaction for one in journal.read_prepared(self.base) if one.round_ids == ids]
        if not any(one is not None and is_same(one, made) for one in kept):  # no summarizer was asked, or not from here
            work.keep(view, made.summary, Summary(made.summary, made.usage, made.model), made)
        if journal.read().generation != self.base:
            raise StaleCompaction("generation")
        self._deferred, self.has_prepared, self.changed = made, True, True

    def _catch_up(self, deferred: CompactedMessage) -> None:
        """Go on from the *deferred* compaction if it is shown by now, because a prompt could not wait."""
        state = self._cycle.journal.read()
        current = state.current
        if current is None or state.generation == self.base:
            return
        if current.generation == state.generation and is_same(current, deferred):
            self._go_on_from(current, deferred.end_index)

    # -- what strategies give -----------------------------------------------------------------------------------------

    def apply(self, due: Decision | None, *, forced: bool) -> None:
        """Let strategies run until the trigger is no longer due; publish or defer what each gives, as it gives it.

        The failure of one of several strategies is told and remembered, and the next one runs. If all of them were not
        enough, that is told too, and the first failure is raised, so that it is tried again later.
        """
        cycle, work = self._cycle, self._work
        assert work is not None  # noqa: S101  (the pass has begun)
        for strategy in cycle.strategies:
            if self.changed and not forced:
                verdict = cycle.trigger.verdict(self.ahead)
                if not verdict.is_due:
                    break
                work.mark, work.exceeds = verdict.mark, verdict.exceeds
            name = name_of(strategy)
            work.begin(name)
            self._read = {}  # each reads the rounds anew, and what one gives does not overlap
            try:
                for overlay in strategy(self.ahead):
                    if self._deferred is not None:
                        self._catch_up(self._deferred)
                    self._take(overlay, work, name)
            except StaleCompaction:
                raise
            except (LeasedElsewhere, LimitReached) as later:
                reason = Skip.LEASED if isinstance(later, LeasedElsewhere) else Skip.LIMITED
                cycle.tell_skipped(reason, self.ahead, self._generation, later.seconds, self._run)
                raise
            except Exception as error:  # noqa: BLE001
                self._note_failure(error, work, name)
        else:
            if forced or (due is not None and not self.changed):  # nothing is left to extend it by
                self.publish_deferred()
            self._tell_exhausted(forced=forced)
        if not self.changed:
            ahead = self.ahead
            reason = Skip.NOTHING_CLOSED if ahead.closed <= ahead.end else Skip.NOTHING_NEW
            reason = Skip.TOO_LITTLE if self._found_too_little else reason
            cycle.tell_skipped(reason, ahead, self._generation, run=self._run)
        elif self.published is not None and isinstance(self.view.rounds, Rounds):
            _ = self.view.prefix_sums  # lets go of what is covered now, rather than at the next look

    def _note_failure(self, error: Exception, work: Work, strategy: str) -> None:
        """Tell and remember that *strategy* failed; raise the *error* if there is no other strategy."""
        cycle = self._cycle
        if isinstance(error, SummaryRejected) and is_too_little(error, deterministic=work.traits.deterministic):
            self._found_too_little = True  # no failure: time does not change that, and the next round may
            return
        self._failed.append(error)
        if len(cycle.strategies) == 1:  # the run has failed, and tells so itself
            raise error
        told = error.check if isinstance(error, SummaryRejected) else type(error).__name__
        cycle.emit(StrategyFailed(role=self.view.role, generation=self.base, strategy=strategy, error=told))

    def _tell_exhausted(self, *, forced: bool) -> None:
        """Tell if all strategies were not enough, and raise the first failure then."""
        cycle = self._cycle
        if not self.changed and not self._failed:
            return
        if self.published is not None if forced else not cycle.trigger(self.ahead):
            return
        if not forced and len(cycle.strategies) > 1:
            tokens, number = self.ahead.tokens, len(cycle.strategies)
            cycle.emit(Exhausted(role=self.view.role, generation=self.base, strategies=number, tokens=tokens))
        if self._failed:
            raise self._failed[0]

    def _reduce(self, made: Reduction, work: Work, strategy: str) -> None:
        if reason := self._forbidden():
            raise StaleCompaction(reason)
        made, why = made.model_copy(update={"generation": self.base}), "overlaid"
        try:
            reductions = self._cycle.journal.reduce(made, base=self.base)
        except StaleCompaction as stale:
            if stale.reason == "generation":
                raise
            reductions, why = None, stale.reason
        if reductions is None:  # an overlay covers these posts already, or they are not what they were
            self._cycle.emit(Discarded(role=self.view.role, generation=self.base, reason=why))
            return
        place = (self.view.rounds.end_of(made.round_id) or 1) - 1
        if place not in self._read:
            self._read[place] = _RoundRead.of(self.view, place)
        read = self._read[place]
        before, after = read.tokens(made, self.view.ledger.count)
        self.view, self.changed = replace(self.view, published=reductions, as_composed=False), True
        if self._run is not None:
            self._run.reduced = True
        self._cycle.emit(
            Reduced(
                role=self.view.role,
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

    def _take(self, made: Overlay, work: Work, strategy: str) -> None:
        """Publish or defer the overlay that *strategy* gave."""
        if isinstance(made, Reduction):
            self._reduce(made, work, strategy)
            return
        if not isinstance(made, CompactedMessage):
            raise TypeError(f"a strategy gave {type(made).__name__}; it must give overlays")
        view, shown, end = self.view, self.ahead.compaction, self.ahead.end
        # A model's summary replaces what was folded in offline at once, even if it reaches no further.
        replaces = shown is not None and shown.is_offline and not made.is_offline
        if not end + (not replaces) <= made.end_index <= view.closed:
            raise ValueError(
                f"a strategy gave a compaction that ends at round {made.end_index};"
                f" it must end behind {end} and at most at {view.closed}, the last before an open one"
            )
        if made.end_round_id is None:  # a strategy of the host's need not know of ids
            last = view.rounds[made.end_index - 1]
            made = made.model_copy(update={"end_round_id": last.id, "end_number": last.number or None})
        if self._cycle.deferral is not None and not replaces:
            self._defer(made, work)
        else:
            self._publish(made, work.origin, work)
            work.begin(strategy)

    def fold_offline(self, end: int) -> bool:
        """Publish the rounds up to *end* folded in without a model, behind the compaction that is shown; return whether
        that made prompts shorter. A deferred compaction is shown first."""
        self.publish_deferred()
        made, before = fold_in(self.view, end, self._cycle.config.target_tokens, self._cycle.offline), self.view
        if made is None:
            return False
        if before.tokens_in_front(made) >= before.compaction_tokens + before.closed_tokens(before.end, end):
            return False
        self._publish(made, Origin(strategy=STRATEGY), None)
        return True

    def _publish(self, made: CompactedMessage, origin: Origin, work: Work | None) -> None:
        """Publish *made*, and go on from there. It was made with *work*; None: in an earlier cycle, or offline."""
        view, cycle = self.view, self._cycle
        if reason := self._forbidden():
            raise StaleCompaction(reason)
        before = view.compaction_tokens + view.closed_tokens(view.end, made.end_index)
        after = view.tokens_in_front(made)
        since = view if made.is_offline else view.as_summarised  # what it covers and what it replaces does not
        ids = tuple([round_.id for round_ in view.rounds[since.end : made.end_index]])
        origin = origin._replace(tokens_before=before, tokens_after=after)
        try:
            published = cycle.journal.publish(made, base=self.base, round_ids=ids, origin=origin)
        except StaleCompaction as stale:
            current = cycle.journal.read().current if stale.reason == "generation" else None
            if current is not None and is_same(current, made):  # another process found the same answer in the log
                raise Overtaken from stale
            raise
        if self._run is not None:
            self._run.succeed()
        cycle.emit(
            Published(
                role=view.role,
                generation=published.generation,
                strategy=origin.strategy,
                start=published.start_index,
                end=made.end_index,
                first_round_id=ids[0] if ids else "",
                last_round_id=ids[-1] if ids else "",
                tokens_before=before,
                tokens_after=after,
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
        self.base, self._deferred, self.changed = published.generation, None, True
        if self._work is not None:
            self._work.base, self._work.covered, self._work.prepared = self.base, end, ()


@dataclass(frozen=True, slots=True)
class _RoundRead:
    """A round as a strategy has read it, kept so that many reductions of one round need one reading."""

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
        """Return the tokens of the messages that *made* covers, and of the text that replaces them."""
        numbers = [*((0,) if made.covers(0) else ()), *self.covered_by(made)]
        found = [pair for number in numbers for pair in self.messages.get(number, ())]
        before = sum(tokens for _, tokens in found)
        if made.kind == "dropped":
            return before, 0
        text: Message = {"role": "user", "content": made.text}
        if made.kind == "offloaded" and found:
            message = found[0][0]
            text = {**message, "content": replace_text(message.get("content"), made.text)}
        rest = sum(tokens for _, tokens in found[1:]) if made.kind == "offloaded" else 0
        return before, count_message(text, count) + rest


def _forbid_at_exit() -> str | None:
    """Return why nothing may be published outside of a run."""
    return "interpreter_exit" if interpreter_is_exiting() else None


def _is_reverted(view: View, revert_round_id: str | None) -> bool:
    """Return whether no round is newer than *revert_round_id*, the newest at a revert; it may have failed since and be
    hidden."""
    end = view.rounds.end_of(revert_round_id) if revert_round_id is not None else None
    return end is not None and end >= view.total
