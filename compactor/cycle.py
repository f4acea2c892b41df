"""One compaction cycle: evaluate, plan, ask, check, publish. It has no thread and no clock of its own."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from memory.entries import CompactionPrepared, Entry, PostAdded, RoundOpened
from memory.errors import StaleCompaction
from memory.events import Event
from memory.log.state import MESSAGE_BOUND, Snapshot, measure_record
from memory.memory import RoundsGetter
from memory.messages import replace_text
from memory.overlays import CompactedMessage, Origin, Overlay, Reduction
from memory.rounds import cached_property, copy_with
from memory.visibility import Rounds, sees

from .config import CompactorConfig
from .coroutines import Coroutines, LoopPaused, coroutines_used
from .cost.publication import Decision, Deferral, find_ahead, is_same, make_view_ahead
from .errors import LeasedElsewhere, LimitReached, SummaryRejected, classify_failure
from .events import (
    Discarded,
    Evaluated,
    Exhausted,
    ModelUnknown,
    PlanFailed,
    Published,
    Reduced,
    Skip,
    Skipped,
    StrategyFailed,
)
from .host_rounds import HostRounds, adapt_rounds
from .journal import JournalWriter
from .lazy_imports import importing
from .plan import render_plan
from .prompt.groups import Message
from .prompt.token_cache import TokenCache, get_token_cache
from .summarize import Run, Work
from .summarizers.base import SummarizerStats, Summary
from .summarizers.extractive import ExtractiveSummarizer
from .tokens import DEFAULT_ENCODING, TokenCounter, count_message, find_encoding, window_of
from .triggers import Bounds, Trigger, Verdict
from .view import View

#: One with state outside the log has ``for_memory(memory)``, which returns the strategy for that memory.
Strategy = Callable[[View], Iterable[Overlay]]
#: Approximate bytes of new text after which a worker evaluates and counts its tokens, so that ``compose`` need not.
MAX_UNCOUNTED = 16_000
#: Approximate bytes of a token, for estimates.
BYTES_PER_TOKEN = 4
#: The events of every evaluation, and the names of their fields.
_EVALUATED = Evaluated, ("role", "generation", "rounds", "tail", "is_due", "forced")
_SKIPPED = Skipped, ("role", "generation", "rounds", "tail", "closed", "reason", "retry_in")
#: A round as a strategy has read it: numbers and ids of its posts in the log; and, by the post's number (0: the query),
#: its messages as prompts show them, each with its tokens.
RoundRead = tuple[Sequence[int], Sequence[str], Mapping[int, list[tuple[Message, int]]]]


class LastEvaluation(NamedTuple):
    """What the last evaluation found, and the facts beside the text of rounds from which it followed."""

    same: tuple[object, ...]
    bounds: Bounds
    #: ``said`` and rounds at the time.
    said: int
    total: int
    #: The factor by which the provider counts more tokens than we do.
    correction: float

    def extend(self, total: int, said: int, bytes_per_token: int = 1) -> Bounds:
        """Return the bounds after more was said, at so many rounds in all."""
        bounds, tokens = self.bounds, said // bytes_per_token
        return Bounds(
            bounds.tail_length + total - self.total,
            bounds.messages + said // MESSAGE_BOUND,
            bounds.tail_tokens + tokens,
            bounds.tokens + tokens * self.correction,
            bounds.model,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class Cycle:
    """What the cycles of one compactor share; ``run`` runs one."""

    config: CompactorConfig
    rounds_getter: Callable[[], Sequence[Any]]
    #: The same if it is a Memory's, which never blocks; None: it is another host's.
    rounds_now: RoundsGetter | None = None
    journal: JournalWriter
    trigger: Trigger
    #: The strategies in their order; None: the default ones, which depend on ``is_automatic``.
    given_strategies: Sequence[Strategy] | None = None
    is_automatic: bool = False
    token_cache: TokenCache
    emit: Callable[[Event], None]
    #: Emits an event that is created when somebody reads it: its class, the names of its fields, and their values.
    emit_later: Callable[..., None]
    monotonic: Callable[[], float]
    #: Where coroutines of the host run.
    coroutines: Coroutines = field(default_factory=Coroutines)
    #: What the summarizer's answers have been like so far.
    summarizer_stats: SummarizerStats = field(default_factory=SummarizerStats)
    #: Decides when a prepared compaction is shown; None: at once.
    deferral: Deferral | None = None
    #: Returns the tokens of the system messages in front; None: there are none.
    header_tokens: Callable[[], int] | None = None
    #: Returns the agent's plan as it stands; None: there is none.
    plan: Callable[[], object] | None = None
    #: Whether no text has more tokens than bytes, as with every tokenizer of ours.
    counts_bytes: bool = True
    #: Whether an evaluation calls functions of the host's own, which may block.
    calls_host: bool = False
    #: When the first uncovered round began, if a compaction is due; None: none is due.
    behind_since: datetime | None = field(default=None, init=False)
    #: Whether the model was looked up.
    _is_checked: bool = field(default=False, init=False)
    #: The last evaluation, if it found nothing due; and the number of rounds in the newest event about that.
    _last_evaluation: LastEvaluation | None = field(default=None, init=False)
    _told_rounds: int = field(default=-1, init=False)

    @cached_property
    def strategies(self) -> Sequence[Strategy]:
        """The strategies in their order."""
        given = self.given_strategies
        return load_strategies(is_automatic=self.is_automatic) if given is None else given

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

        If *run* only evaluates and there is something to do, sets ``run.evaluation``, and the next call with *run* goes
        on from there. Raises the errors of getter, journal, trigger, strategies and summarizer, ``SummaryRejected``,
        ``LeasedElsewhere``, ``LimitReached``, and ``StaleCompaction`` if the log has changed under the cycle, or if
        *run* has ended when it is about to publish.
        """
        self.token_cache.count("")  # loads the tokenizer, so that the first prompt need not
        if self.config.model and not self._is_checked:
            self._check_model(self.config.model)
        prepared_at: int | None = None
        token = coroutines_used.set(self.coroutines)
        try:
            while True:
                current: StrategyPass = run.evaluation or self._evaluate(run, prepared_at)
                is_due = current.shows_deferred or current.verdict is not None
                run.evaluation = current if run.only_evaluates and is_due else None
                if run.evaluation is not None:
                    return None
                try:
                    if current.shows_deferred:
                        current.show_deferred()
                    elif current.verdict is not None:
                        current.apply(current.verdict)
                except StaleCompaction as stale:
                    if stale.reason != "evaluate_again":
                        raise
                    continue
                if not current.has_prepared or run.forced:
                    return current.last_published
                prepared_at = current.work.base  # it is weighed with what has happened while it was made
        finally:
            coroutines_used.reset(token)
            if run.leased and not run.over:  # else it is the lease of the run that came after
                self.journal.release()

    def _evaluate(self, run: Run, prepared_at: int | None) -> StrategyPass:
        """Return a new pass that has found out what is due."""
        self._last_evaluation = None
        current = StrategyPass(self, run)
        if current.view.rounds.snapshot is not None:  # count what is new on this thread, not in compose
            _ = current.view.prefix_sums
        current.due = current.weigh() if self.deferral is not None and self.config.enabled else None
        if prepared_at == current.work.base and current.deferred is None:  # or it would be made again and again
            raise StaleCompaction("rounds_changed")
        current.shows_deferred = current.due is not None and current.due.over is None and not run.forced
        if not current.shows_deferred:
            current.verdict = current.decide()
        return current

    def stays_undue(self) -> bool:
        """Return whether nothing that was said since the last evaluation can have made the trigger due.

        For the thread that appends: takes constant time, reads no store, and locks nothing. False after much new text,
        so that a worker counts it and ``compose`` need not.
        """
        last, getter = self._last_evaluation, self.rounds_now
        if last is None or getter is None:
            return False
        now = getter.memory.snapshot
        said = now.said - last.said
        if said > MAX_UNCOUNTED or self._list_token_inputs(now, self.list_composed()) != last.same:
            return False
        more = last.extend(now.total, said)
        if self.trigger.may_be_due(more):
            return False
        if now.total != self._told_rounds:
            self._told_rounds = now.total
            self._emit_undue(now, more.tail_length)
        return True

    def find_last_entry(self) -> str | None:
        return self.rounds_now.memory.snapshot.last if self.rounds_now is not None else None

    def will_be_due(self, entries: Sequence[Entry]) -> bool:
        """Return whether *entries*, which are about to be appended, probably make the trigger due.

        For the thread that appends. An estimate: a worker may find nothing due, or the next evaluation something.
        """
        last, getter = self._last_evaluation, self.rounds_now
        if last is None or getter is None or self.trigger.is_likely_due(last.bounds):
            return False
        now, records, role = getter.memory.snapshot, [entry.record for entry in entries], self.token_cache.role
        opened = [one for one in records if isinstance(one, RoundOpened)]
        posts = [one for one in records if isinstance(one, PostAdded) and sees(role, one.post)]
        if not opened and not posts:
            return False
        said_since = now.said - last.said + sum(map(measure_record, opened)) + sum(map(measure_record, posts))
        bounds = last.extend(now.total + len(opened), said_since, BYTES_PER_TOKEN)
        is_due = self.trigger.is_likely_due(bounds)
        return is_due and self._list_token_inputs(now, self.list_composed()) == last.same

    def _emit_undue(self, now: Snapshot, tail: int) -> None:
        rounds, closed = now.total - len(now.hidden), now.closed_prefix - bisect_right(now.hidden, now.closed_prefix)
        role, generation = self.token_cache.role, now.get_journal(self.token_cache.role).generation
        self.emit_later(*_EVALUATED, (role, generation, rounds, tail, False, False), repeats=True)
        skipped = role, generation, rounds, tail, closed, Skip.BELOW_TRIGGER, None
        self.emit_later(*_SKIPPED, skipped, repeats=True)

    def remember_evaluation(self, view: View, composed: tuple[object, ...]) -> None:
        """Remember that nothing was due in *view*. *composed* is what ``list_composed`` gave before it was made."""
        now = view.rounds.snapshot
        if now is None or not self.journal.is_in_log:
            return
        # The trigger may go by the provider's count, and was not asked.
        if view.total == 0 and view.rounds.usage.input_tokens is not None:
            return
        correction = view.usage.correction
        tokens = view.tokens if self.counts_bytes else math.inf
        tail = view.count_tokens_after(view.end) if self.counts_bytes else math.inf
        # A call that waits gets a note for each result that it lacks, as soon as something else is said.
        newest = [part.group for counted in view.open_tail[-1:] for part in counted.parts[-1:] if part.group.pending]
        notes = sum([max(len(group.calls) + 1 - len(group.posts), 0) for group in newest])
        tokens, tail = tokens + notes * MESSAGE_BOUND, tail + notes * MESSAGE_BOUND
        bounds = Bounds(view.tail_length, view.messages + notes, tail, tokens * correction, self.config.model)
        self._told_rounds = now.total
        same = self._list_token_inputs(now, composed)
        self._last_evaluation = LastEvaluation(same, bounds, now.said, now.total, correction)

    def list_composed(self) -> tuple[object, ...]:
        """Return what an evaluation depends on that the newest prompts told, and the log does not."""
        token_cache, limits = self.token_cache, self.token_cache.prompt_limits
        if not limits.is_watched:
            return ()
        return token_cache.header_tokens, token_cache.tool_tokens, max(limits.budgets, default=0), limits.model

    def _list_token_inputs(self, now: Snapshot, composed: tuple[object, ...]) -> tuple[object, ...]:
        """Return what the tokens of a prompt depend on beside what is said."""
        role = self.token_cache.role
        return (
            now.journals.get(role),
            now.prepared.get(role),
            now.reductions.get(role),
            now.usages.get(role),
            now.hidden,
            now.epoch,
            now.redactions,
            now.pins,
            now.header,
            *composed,
        )

    def _check_model(self, model: str) -> None:
        """Tell that the tokenizer or the window of *model* is unknown. To find the window takes too long for a host."""
        self._is_checked = True
        encoding, window = find_encoding(model), window_of(model)
        if encoding is None or window is None:
            told = encoding or DEFAULT_ENCODING
            self.emit(ModelUnknown(role=self.token_cache.role, model=model, encoding=told, window=window))

    def read_rounds(self) -> Rounds | HostRounds:
        """Return the rounds as they are now, as the role sees them."""
        getter, role = self.rounds_now, self.token_cache.role
        if getter is None:
            return adapt_rounds(self.rounds_getter(), role)
        return Rounds(getter.memory.snapshot, role or getter.role, include_hidden=False)

    def publish_if_shorter(self, *, needed: bool = True) -> bool:
        """Publish the deferred compaction if it makes prompts shorter; return whether another one is shown now.
        *needed*: a prompt is too long; else only if it is due, even if prompts stay too long with it.

        Asks no model, and so takes no lease.
        """
        if self.deferral is None or not self.config.enabled or not self.journal.read().prepared:
            return False
        current = StrategyPass(self)
        before = current.work.base
        with suppress(StaleCompaction):
            if current.weigh(needed=needed) is not None:
                current.show_deferred()
        return self.journal.read().generation != before

    def extend_offline(self) -> bool:
        """Publish an extract of the due rounds behind the model's text; return whether prompts got shorter.

        Only if the trigger is due with what was extracted before. A deferred compaction is shown first.
        """
        from .strategies.offline import STRATEGY, extend_offline

        current = StrategyPass(self)
        if not self.config.enabled or current.view.total == 0 or current.is_reverted():
            return False
        current.weigh(needed=True)
        verdict = self.trigger.verdict(current.ahead)
        if not verdict.is_due:
            return False
        end = current.ahead.find_due_end(self.trigger.config or self.config, verdict.token_threshold)
        current.show_deferred()
        view = current.view
        overlay = extend_offline(view, end, self.config.target_tokens, current.work.summarizer)
        if overlay is None or view.count_tokens_before(overlay) >= view.compaction_tokens + view.count_closed_tokens(
            view.end, end
        ):
            return False
        current.work.begin(STRATEGY)
        current.publish(overlay, current.work.origin)
        return True


class StrategyPass:
    """One pass of the strategies over one snapshot of the log, without a summary of a failed round.

    A compaction is published when it is made. If the cycle defers publication it is prepared instead: strategies go on
    from its end, and nobody is shown it yet. Without a *run*, no model is asked: summaries are extracted.
    """

    def __init__(self, cycle: Cycle, run: Run | None = None) -> None:
        self._cycle = cycle
        self._run = run = run if run is not None else Run(ExtractiveSummarizer())
        self._composed = cycle.list_composed()  # first, so that a prompt that is made meanwhile is evaluated
        while True:  # the journal is read first: rounds that are added in between only lengthen the tail
            self._state = state = cycle.journal.read()
            rounds = cycle.read_rounds()
            if not cycle.journal.withdraw_lost(rounds):
                break
        token_cache, header = cycle.token_cache, cycle.header_tokens() if cycle.header_tokens is not None else 0
        #: The strategies' means to ask the summarizer, and the generation that this pass goes on from.
        self.work = Work(
            summarizer=run.summarizer,
            count=token_cache.count,
            config=cycle.config,
            emit=cycle.emit,
            monotonic=cycle.monotonic,
            run=run,
            journal=cycle.journal,
            summarizer_stats=cycle.summarizer_stats,
            rounds=rounds,
            read_rounds=cycle.read_rounds,
            base=state.generation,
            prepared=state.prepared,
        )
        if self.work.deterministic and cycle.deferral is None:
            self.work.journal = None  # answers that cost nothing would only fill the log
        view = View(
            rounds,
            rounds.anchor(state.current),
            token_cache,
            max(header, token_cache.header_tokens) + token_cache.tool_tokens,
            cycle.config.model,
            self.work,
            keeps_reductions=cycle.journal.keeps_reductions,
            exempt_tools=frozenset(cycle.config.exempt_tools),
        )
        self.work.covered = view.end
        #: The snapshot, with what this pass has published.
        self.view = view
        #: The deferred compaction; and the view as it will be when that is shown: triggers and strategies go by it.
        self.deferred: CompactedMessage | None = None
        self.ahead = view
        #: Why the deferred compaction is to be shown, and why strategies are to run; None: they are not.
        self.due: Decision | None = None
        self.verdict: Verdict | None = None
        #: Whether the deferred compaction is shown as it is, and no strategy runs.
        self.shows_deferred = False
        self.last_published: CompactedMessage | None = None
        #: Whether it has prepared one to be deferred, and whether it has changed anything at all.
        self.has_prepared = False
        self._has_changed = False
        self._failed: list[Exception] = []
        self._has_too_little = False
        self._rounds_read: dict[int, RoundRead] = {}  # so that many reductions of one round need one reading

    def _see(self, view: View, deferred: CompactedMessage | None) -> None:
        self.view, self.deferred = view, deferred
        self.ahead = view if deferred is None else make_view_ahead(view, deferred)

    def is_reverted(self) -> bool:
        """Return whether no round was added since the revert. The newest one then may have failed."""
        newest_id = self._state.revert_round_id
        end = self.view.rounds.find_end(newest_id) if newest_id is not None else None
        return end is not None and end >= self.view.total

    def weigh(self, *, needed: bool = False) -> Decision | None:
        """Return why the deferred compaction is to be shown now; None if it is not, or there is none. *needed*: a
        prompt is too long, so it is shown if it makes that shorter."""
        deferral = self._cycle.deferral
        found = deferral.weigh(self.view, self.work.base, self._state.prepared, needed=needed) if deferral else None
        if found is None:
            return None
        deferred, decision = found
        self._see(self.view, deferred)
        self._run.recheck_in = decision.recheck_in
        return decision if decision.show else None

    def decide(self) -> Verdict | None:
        """Return why strategies are to run; None, after telling the reason, if they are not."""
        cycle, run, view, generation, due = self._cycle, self._run, self.ahead, self.work.base, self.due
        if not cycle.config.enabled:
            skip = Skip.DISABLED
        elif view.total == 0:
            skip = Skip.EMPTY
        elif not run.forced and self._state.revert_round_id is not None and self.is_reverted():
            skip = Skip.REVERTED
        else:
            verdict = Verdict(True) if run.forced else cycle.trigger.verdict(view)
            if view.is_offline:  # a good answer is due to replace it
                verdict = copy_with(verdict, is_due=True)
            evaluated = view.role, generation, view.total, view.tail_length, verdict.is_due, run.forced
            cycle.emit_later(*_EVALUATED, evaluated)
            if verdict.cost_evaluation is not None:
                cycle.emit(copy_with(verdict.cost_evaluation, role=view.role, generation=generation))
            is_behind = view.end < view.total and (verdict.is_due or due is not None)
            cycle.behind_since = view.rounds[view.end].created_at if is_behind else None
            if not is_behind:
                cycle.summarizer_stats.due_at = None
            elif cycle.summarizer_stats.due_at is None:
                cycle.summarizer_stats.due_at = cycle.monotonic()
            if verdict.is_due:
                return verdict
            if due is not None:  # the tail has outgrown the deferred compaction
                return Verdict(True, due.over)
            if verdict.recheck_in is not None:
                run.recheck_in = min(verdict.recheck_in, run.recheck_in or math.inf)
            skip = Skip.BELOW_TRIGGER
        self._skip(skip)
        if skip in (Skip.EMPTY, Skip.BELOW_TRIGGER) and self.deferred is None:
            cycle.remember_evaluation(view, self._composed)
        return None

    def apply(self, verdict: Verdict) -> None:  # noqa: PLR0912  (one story)
        """Let strategies run until the trigger is no longer due; publish or defer what each gives, as it gives it.

        The failure of one of several strategies is told and remembered, and the next one runs. If all of them were not
        enough, that is told too, and the first failure is raised, so that it is tried again later.
        """
        cycle, run, work = self._cycle, self._run, self.work
        run.compacting = True
        work.token_threshold, work.exceeds = verdict.token_threshold, verdict.exceeds
        work.config, work.prices = cycle.trigger.config or cycle.config, cycle.trigger.prices
        work.plan = self._read_plan() if cycle.plan is not None else None
        getter, last = cycle.rounds_now, None
        if work.takes_continued and getter is not None:
            last = get_token_cache(getter.memory, self.view.role, work.count).prompt_limits.last_prompt
        if last is not None and work.may_continue(last.model or cycle.config.model):
            limit = work.config.summarizer_input_tokens
            work.continue_prompt = partial(last.go_on, self.view, limit=limit, reads=work.reads)
        if self._state.prepared and cycle.deferral is None:  # with deferral, it has been weighed
            self._publish_prepared()
        for strategy in cycle.strategies:
            if self._has_changed and not run.forced:
                verdict = cycle.trigger.verdict(self.ahead)
                if not verdict.is_due:
                    break
                work.token_threshold, work.exceeds = verdict.token_threshold, verdict.exceeds
            work.begin(getattr(strategy, "__name__", type(strategy).__name__))
            self._rounds_read = {}  # each reads the rounds anew, and what one gives does not overlap
            try:
                for overlay in strategy(self.ahead):
                    self._take(overlay)
            except Exception as error:  # noqa: BLE001
                self._note_failure(error)
        else:
            if run.forced or (self.due is not None and not self._has_changed):  # nothing is left to extend it by
                self.show_deferred()
            view, number = self.ahead, len(cycle.strategies)
            if (self._has_changed or self._failed) and (
                self.last_published is None if run.forced else view.is_offline or cycle.trigger.verdict(view).is_due
            ):
                if not run.forced and number > 1:
                    tokens = view.tokens
                    cycle.emit(Exhausted(role=view.role, generation=work.base, strategies=number, tokens=tokens))
                if self._failed:
                    raise self._failed[0]
        cycle.behind_since = cycle.summarizer_stats.due_at = None
        if not self._has_changed:
            nothing = Skip.NOTHING_CLOSED if self.ahead.closed <= self.ahead.end else Skip.NOTHING_NEW
            self._skip(Skip.TOO_LITTLE if self._has_too_little else nothing)
        elif self.last_published is not None and self.view.rounds.snapshot is not None:
            _ = self.view.prefix_sums  # forgets what is covered now, rather than at the next evaluation

    def _note_failure(self, error: Exception) -> None:
        """Tell and remember that a strategy failed; raise the *error* if no other strategy can do better."""
        if isinstance(error, StaleCompaction):
            raise error
        if isinstance(error, (LeasedElsewhere, LimitReached)):
            self._skip(Skip.LEASED if isinstance(error, LeasedElsewhere) else Skip.LIMITED, error.seconds)
            raise error
        if isinstance(error, LoopPaused):
            self._skip(Skip.PAUSED)
            raise error
        rejected = error if isinstance(error, SummaryRejected) else None
        from .acceptance.checks import is_too_little

        if rejected is not None and is_too_little(rejected, deterministic=self.work.deterministic):
            self._has_too_little = True  # no failure: only more rounds can change that
            return
        self._failed.append(error)
        if len(self._cycle.strategies) == 1:  # then the run fails, and emits that itself
            raise error
        kind, status = classify_failure(error)
        self._cycle.emit(
            StrategyFailed(
                role=self.view.role,
                generation=self.work.base,
                strategy=self.work.strategy,
                error=rejected.check if rejected is not None else type(error).__name__,
                kind=kind,
                status=status,
                seconds=self.work.monotonic() - self.work.began,
            )
        )

    def _read_plan(self) -> str | None:
        try:
            given = self._cycle.plan() if self._cycle.plan is not None else None
            return render_plan(given) if given is not None else None
        except Exception as error:  # noqa: BLE001  (the host's; a summary without the plan is better than none)
            self._cycle.emit(PlanFailed(role=self.view.role, error=type(error).__name__))
            return None

    def _skip(self, reason: Skip, retry_in: float | None = None) -> None:
        """Tell that nothing is compacted, and why."""
        self._run.skip_reason = reason
        view, generation = self.ahead, self._state.generation
        skipped = view.role, generation, view.total, view.tail_length, view.closed, reason, retry_in
        self._cycle.emit_later(*_SKIPPED, skipped)

    def _take(self, overlay: Overlay) -> None:
        """Publish or defer the overlay that a strategy gave."""
        if self.deferred is not None:
            self._catch_up(self.deferred)
        if isinstance(overlay, Reduction):
            self._reduce(overlay)
            return
        if not isinstance(overlay, CompactedMessage):
            raise TypeError(f"a strategy gave {type(overlay).__name__}; it must give overlays")
        view, end = self.view, self.ahead.end
        # A model's summary replaces what was extracted offline at once, even if it reaches no further.
        replaces = self.ahead.is_offline and not overlay.is_offline
        if not end + (not replaces) <= overlay.end_index <= view.closed:
            raise ValueError(
                f"a strategy gave a compaction that ends at round {overlay.end_index};"
                f" it must end behind {end} and at most at {view.closed}, the last before an open one"
            )
        if overlay.end_round_id is None:  # a strategy of the host's need not know of ids
            last = view.rounds[overlay.end_index - 1]
            overlay = copy_with(overlay, end_round_id=last.id, end_number=last.number or None)
        if self._cycle.deferral is not None and not replaces:
            self._defer(overlay)
        else:
            self.publish(overlay, self.work.origin)
            self.work.begin(self.work.strategy)

    def _catch_up(self, deferred: CompactedMessage) -> None:
        """Go on from the *deferred* compaction if it is shown by now, because a prompt could not wait."""
        generation, current, *_ = self._cycle.journal.read()
        if current is not None and current.generation == generation != self.work.base and is_same(current, deferred):
            self._go_on_from(current, deferred.end_index)

    def _defer(self, overlay: CompactedMessage) -> None:
        """Keep *overlay* to be shown later, and let strategies go on from its end."""
        self._run.check()
        journal, view, work = self._cycle.journal, self.view, self.work
        ids = tuple([round_.id for round_ in view.rounds[view.end : overlay.end_index]])
        state = journal.read()
        kept = [one.compaction for one in state.prepared if state.generation == self.work.base and one.round_ids == ids]
        if not any(is_same(one, overlay) for one in kept):  # no summarizer was asked, or not from here
            work.keep(overlay.summary, Summary(overlay.summary, overlay.usage, overlay.model), overlay)
        if journal.read().generation != self.work.base:
            raise StaleCompaction("generation")
        self._see(view, overlay)
        self.has_prepared = self._has_changed = True

    def _reduce(self, overlay: Reduction) -> None:
        self._run.check()
        view, cycle, work = self.view, self._cycle, self.work
        overlay = copy_with(overlay, generation=work.base)
        reductions, discarded = None, "already_covered"
        try:
            if view.keeps_reductions:
                reductions = cycle.journal.reduce(overlay, base=self.work.base)
        except StaleCompaction as stale:
            if stale.reason == "generation":
                raise
            discarded = stale.reason
        if reductions is None:  # an overlay covers these posts already, or they are not what they were
            cycle.emit(Discarded(role=view.role, generation=self.work.base, reason=discarded))
            return
        place = (view.rounds.find_end(overlay.round_id) or 1) - 1
        if place not in self._rounds_read:
            self._rounds_read[place] = _read_round(view, place)
        numbers, ids, messages = self._rounds_read[place]
        first, last = bisect_left(numbers, overlay.first_number), bisect_right(numbers, overlay.last_number)
        covered = [*((0,) if overlay.covers(0) else ()), *numbers[first:last]]
        before = [pair for number in covered for pair in messages.get(number, ())]
        self._see(copy_with(view, given_reductions=reductions, as_composed=False), self.deferred)
        self._has_changed = True
        self._run.has_reduced = True
        cycle.emit(
            Reduced(
                role=view.role,
                generation=self.work.base,
                strategy=work.strategy,
                kind=overlay.kind,
                round_id=overlay.round_id,
                first_post_id=overlay.first_post_id,
                last_post_id=overlay.last_post_id,
                previous_post_id=ids[first - 1] if first else "",
                next_post_id=ids[last] if last < len(ids) else "",
                posts=last - first,
                tokens_before=sum(tokens for _, tokens in before),
                tokens_after=_count_tokens_after(overlay, before, view.token_cache.count),
                seconds=work.monotonic() - work.began,
                usage=overlay.usage,
                price=work.compute_price(overlay.usage, overlay.model),
                model=overlay.model,
            )
        )
        work.begin(work.strategy)

    def show_deferred(self) -> None:
        """Publish the deferred compaction, if any. Raises ``StaleCompaction`` if another process just did so."""
        if self.deferred is not None:
            state = self._cycle.journal.read()
            prepared = state.prepared if state.generation == self.work.base else ()
            self._publish_furthest(prepared)

    def _publish_prepared(self) -> None:
        """Publish the answer that reaches furthest of those that were paid for and never published, if it may be shown.

        Only if the journal keeps answers: any other knows no rounds, and a host's may have changed. There an answer is
        found again by its request.
        """
        if self.work.journal is None or not self._cycle.journal.keeps_answers:
            return
        try:
            self._publish_furthest(self._state.prepared)
        except StaleCompaction as stale:
            if stale.reason == "generation":  # others went on from there, and nothing was paid here: no failure
                raise StaleCompaction("evaluate_again") from stale
            if stale.reason not in ("rounds_changed", "behind"):
                raise
            # Another process was faster, or a round failed just now: what is due is asked for.

    def _publish_furthest(self, answers: Iterable[CompactionPrepared]) -> None:
        """Publish the one of *answers* that reaches furthest, if any can be shown."""
        if not self.has_prepared:  # an earlier cycle has paid for it
            self.work.begin("")
            self.work.reused = True
        for compaction, prepared in find_ahead(self.view, answers)[-1:]:
            if self._cycle.deferral is not None:
                self._cycle.deferral.forget()  # if it is lost now, that is told as an error
            self.publish(compaction, Origin(prepared.digest, prepared.checks, prepared.strategy))

    def publish(self, overlay: CompactedMessage, origin: Origin) -> None:
        """Publish *overlay*, and go on from there."""
        from .strategies.offline import drop_offline_end

        self._run.check()
        view, cycle, work = self.view, self._cycle, self.work
        before = view.compaction_tokens + view.count_closed_tokens(view.end, overlay.end_index)
        after = view.count_tokens_before(overlay)
        # The rounds that it covers and that the compaction it replaces does not.
        since = drop_offline_end(view) if view.is_offline and not overlay.is_offline else view
        ids = tuple([round_.id for round_ in view.rounds[since.end : overlay.end_index]])
        origin = copy_with(origin, tokens_before=before, tokens_after=after)
        try:
            published = cycle.journal.publish(overlay, base=self.work.base, round_ids=ids, origin=origin)
        except StaleCompaction as stale:
            current = cycle.journal.read().current if stale.reason == "generation" else None
            if is_same(current, overlay):  # another process found the same answer in the log
                raise StaleCompaction("evaluate_again") from stale
            raise
        self._run.has_published = True
        cycle.emit(
            Published(
                role=view.role,
                generation=published.generation,
                strategy=origin.strategy,
                start=published.start_index,
                end=overlay.end_index,
                first_round_id=ids[0] if ids else "",
                last_round_id=ids[-1] if ids else "",
                tokens_before=before,
                tokens_after=after,
                usage=published.usage,
                price=work.compute_price(published.usage, published.model),
                model=published.model,
                offline=overlay.is_offline,
                seconds=work.monotonic() - work.began,
                requests=work.requests,
                reused=work.reused,
                major=work.major,
                sent_tokens=work.sent_tokens,
            )
        )
        self._go_on_from(published, overlay.end_index)
        self.last_published = self.view.compaction

    def _go_on_from(self, published: CompactedMessage, end: int) -> None:
        # In the numbering of this pass's snapshot, which a round that fails meanwhile does not change.
        self.view = copy_with(self.view, compaction=copy_with(published, end_index=end), as_composed=False)
        self.ahead, self.deferred = self.view, None
        self._has_changed = True
        self.work.base, self.work.covered, self.work.prepared = published.generation, end, ()


def load_strategies(*, is_automatic: bool = True) -> Sequence[Strategy]:
    """Return the usual strategies in their order. The first call takes 0.3 s of CPU time: a host makes it only when a
    compaction is due."""
    with importing:
        from .strategies import compact_rounds, offload_large
        from .strategies.compact_notes import compact_notes_in_view
        from .strategies.compress_tool_runs import compress_open_round
        from .summarizers.cues import load_cues

        load_cues()  # under this lock: else each of several first compactions would read them
    if not is_automatic:
        return (compact_rounds,)
    offload = offload_large(kinds="tool_result", preview=400, ending=200)
    return offload, compact_notes_in_view, compress_open_round


def _read_round(view: View, index: int) -> RoundRead:
    posts = view.rounds[index].post_list
    messages: dict[int, list[tuple[Message, int]]] = {}
    for round_, group in view.list_groups(index):
        for post, message, tokens in zip(group.posts, group.messages, view.list_costs(round_, group), strict=True):
            messages.setdefault(post.number if post is not None else 0, []).append((message, tokens))
    return [post.number for post in posts], [post.id for post in posts], messages


def _count_tokens_after(overlay: Reduction, replaced: Sequence[tuple[Message, int]], count: TokenCounter) -> int:
    """Return the tokens of the text that replaces the messages *replaced*."""
    if overlay.kind == "dropped":
        return 0
    if overlay.kind != "offloaded" or not replaced:
        return count_message({"role": "user", "content": overlay.text}, count)
    message, rest = replaced[0][0], sum(tokens for _, tokens in replaced[1:])
    return count_message({**message, "content": replace_text(message.get("content"), overlay.text)}, count) + rest
