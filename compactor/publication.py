"""When a compaction is shown: at once, or deferred until showing it costs less than waiting.

Deferred compactions are found in the journal each time, so a process that resumes goes on deferring them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from memory.entries import CompactionPrepared
from memory.events import Event
from memory.hooks import renew_after_fork
from memory.overlays import CompactedMessage, Origin
from memory.visibility import Rounds

from .config import number, whole_number
from .cost.prices import Prices
from .events import Discarded, PublicationFailed
from .host_rounds import HostRounds
from .prompt.accounting import calls_in
from .view import View

#: Providers keep the beginning of a prompt for this many seconds after reading it.
CACHE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a policy weighs while a compaction is deferred, in tokens."""

    #: The whole prompt as it is shown, and as it would be with the deferred compaction: with the tools of the last
    #: prompt, and corrected by the provider's count if known.
    shown: int
    ahead: int
    #: The deferred compaction in a prompt.
    summary: int
    #: What stood behind its end when it was prepared. What came later must be read in any case, and is no reason to
    #: wait longer.
    retained: int
    #: Calls of the agent's model since then.
    calls: int
    #: By how many tokens their prompts were longer than necessary in all, including the calls since an earlier
    #: deferred compaction that this one replaces.
    missed_saving: int
    #: Seconds since the newest post.
    idle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether to show the deferred compaction now, and the reason that events give."""

    show: bool
    reason: str
    #: The cost of not showing it so far, and the cost of showing it, in uncached input tokens.
    saving: float = 0.0
    price: float = 0.0
    #: Seconds until the next look, if nothing happens before.
    recheck_in: float | None = None
    #: The budget that the prompt exceeds even with it; then it is extended before it is shown.
    over: int | None = None

    def __post_init__(self) -> None:
        if self.recheck_in is not None and not self.recheck_in > 0:  # or it would be looked at without end
            raise ValueError(f"recheck_in is a number of seconds above 0, or None, not {self.recheck_in!r}")


Publication = Callable[[Moment], Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredPublication:
    """Show it when the provider's cache has expired, when the budget requires it, or when the longer prompts since it
    was prepared have cost as much as rewriting the cache; never if it makes no prompt shorter.

    Its reasons: ``cold``, ``budget``, ``repaid``; to wait, ``no_gain`` and ``saving``.
    """

    prices: Prices = field(default_factory=Prices)
    #: How long the provider caches a prompt; ``math.inf``: do not wait for its cache to expire.
    cache_seconds: float = CACHE_SECONDS
    #: Maximum prompt tokens; None: as the compactor's configuration and its trigger say.
    budget: int | None = None

    def __post_init__(self) -> None:
        number("cache_seconds", self.cache_seconds)
        if self.budget is not None:
            whole_number("budget", self.budget, 1)

    def __call__(self, moment: Moment) -> Decision:
        prices = self.prices
        saving = prices.cached_input * moment.missed_saving
        price = (moment.summary + moment.retained) * max(prices.cache_write - prices.cached_input, 0.0)
        left = self.cache_seconds - max(moment.idle, 0.0)
        over = self.budget if self.budget is not None and moment.ahead > self.budget else None

        def now(reason: str) -> Decision:
            return Decision(show=True, reason=reason, saving=saving, price=price, over=over)

        if moment.ahead >= moment.shown:
            return Decision(show=False, reason="no_gain", saving=saving, price=price)
        if self.budget is not None and moment.shown > self.budget:
            return now("budget")
        if left <= 0:
            return now("cold")
        if saving >= price:
            return now("repaid")
        recheck_in = left if left < math.inf else None
        return Decision(show=False, reason="saving", saving=saving, price=price, recheck_in=recheck_in)


def deferred(
    prices: Prices | None = None, *, cache_seconds: float = CACHE_SECONDS, budget: int | None = None
) -> DeferredPublication:
    """Return a policy for ``publish=`` with other numbers than those of ``publish="deferred"``."""
    return DeferredPublication(
        prices=prices if prices is not None else Prices(), cache_seconds=cache_seconds, budget=budget
    )


def prices_in(trigger: object) -> Prices | None:
    """Return the prices of a trigger, or of one of its parts; None if there are none."""
    found = getattr(trigger, "prices", None)
    parts = getattr(trigger, "parts", ())
    return found if isinstance(found, Prices) else next(filter(None, map(prices_in, parts)), None)


def budget_in(trigger: object) -> int | None:
    """Return the smallest budget of a trigger and its parts; None if there is none."""
    found = (getattr(trigger, "budget", None), *map(budget_in, getattr(trigger, "parts", ())))
    return min((one for one in found if isinstance(one, int)), default=None)


def publication_of(publish: object, prices: Prices | None, budget: int | None) -> Publication | None:
    """Return the policy that *publish* names or is; None: show at once. *budget* is that of configuration and trigger.

    Raises ``ValueError`` and ``TypeError`` if *publish* is no policy.
    """
    if publish == "immediately":
        return None
    if publish == "deferred":
        return deferred(prices, budget=budget)
    if isinstance(publish, DeferredPublication):
        return publish if publish.budget is not None else replace(publish, budget=budget)
    if isinstance(publish, str):
        raise ValueError(  # noqa: TRY004  (a word is right, this one is not)
            f'publish is "immediately" or "deferred", or what deferred() gives, not {publish!r}'
        )
    if not callable(publish):
        raise TypeError(f"publish is a word or a callable Moment -> Decision, not {type(publish).__name__}")
    return publish


@dataclass(frozen=True, slots=True)
class Ahead:
    """A compaction that reaches further than the one that is shown."""

    #: As it would be shown now, with indices in the numbering of the view.
    compaction: CompactedMessage
    prepared: CompactionPrepared

    @property
    def origin(self) -> Origin:
        return Origin(self.prepared.digest, self.prepared.checks, self.prepared.strategy)


def is_same(one: CompactedMessage, other: CompactedMessage) -> bool:
    """Return whether both are the same summary of the same rounds."""
    return (one.end_round_id, one.summary) == (other.end_round_id, other.summary)


def reaching_ahead(view: View, answers: Iterable[CompactionPrepared]) -> tuple[Ahead, ...]:
    """Return those of *answers* that could replace *view*'s compaction, in the order in which they were made; each
    reaches further than the one before."""
    found: list[Ahead] = []
    reach = view.end
    for prepared in answers:
        end = _end_of(view, prepared)
        if end > reach and prepared.compaction is not None:
            anchor = view.rounds.anchor(prepared.compaction)
            assert anchor is not None  # noqa: S101  (only of None it makes None)
            found.append(Ahead(anchor.model_copy(update={"end_index": end}), prepared))
            reach = end
    return tuple(found)


def _end_of(view: View, prepared: CompactionPrepared) -> int:
    """Return how many rounds *prepared* covers; 0 if the rounds have changed since."""
    made, rounds, ids = prepared.compaction, view.rounds, prepared.round_ids
    end = rounds.end_of(made.end_round_id) if made is not None and made.end_round_id is not None else None
    # No round comes between those of a Memory; a failed one is missing from their number, or is the first itself.
    told = ids if isinstance(rounds, HostRounds) else ids[:1]
    if end is None or not view.end < end <= view.closed or end - view.end != len(ids):
        return 0
    return end if all(rounds.end_of(one) == place for place, one in enumerate(told, view.end + 1)) else 0


def ahead_of(view: View, compaction: CompactedMessage) -> View:
    """Return *view* as it would be if *compaction* were shown: triggers and strategies use it during deferral."""
    start = view.end if view.counted_from is None else view.counted_from
    return replace(view, compaction=compaction, counted_from=start)


def newest_place(rounds: Rounds | HostRounds) -> tuple[str, int]:
    """Return the id of the newest round and the number of its newest post: calls are counted from there."""
    if not len(rounds):
        return "", 0
    newest = rounds[len(rounds) - 1]
    return newest.id, newest.post_list[-1].number if newest.post_list else 0


class Deferral:
    """Defers one compactor's publications until *publication* decides to show them. Any thread may ask.

    A deferred compaction that is lost is an event.
    """

    def __init__(
        self,
        publication: Publication,
        now: Callable[[], datetime],
        emit: Callable[[Event], object],
    ) -> None:
        self._publication = publication
        self._now = now
        self._emit = emit
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards all below it
        self._furthest: CompactionPrepared | None = None  # at the last look
        self._seen: tuple[tuple[str, int], datetime] | None = None  # the newest post, and when it was seen first

    def look(self, view: View, base: int, prepared: Iterable[CompactionPrepared]) -> tuple[Ahead, ...]:
        """Return those of *prepared* that are deferred, the furthest last; tell if a deferred one is lost."""
        found = reaching_ahead(view, prepared)
        furthest = found[-1].prepared if found else None
        with self._lock:
            before, self._furthest = self._furthest, furthest
        if before is not None and all(one.prepared != before for one in found) and not _is_shown(before, view):
            reason = "rounds_changed" if before.base == base else "generation"
            self._emit(Discarded(role=view.role, generation=base, reason=reason))
        return found

    def forget(self) -> None:
        """Forget the deferred compaction: it is about to be shown."""
        with self._lock:
            self._furthest = None

    def moment(self, view: View, deferred: Sequence[Ahead]) -> Moment:
        """Return what the policy weighs: *deferred* are all compactions that it defers, the furthest last."""
        gains = [_gain(view, one.compaction) for one in deferred]
        calls = [_calls_behind(view, one.prepared) for one in deferred]
        since = [*calls[1:], 0]
        tokens, correction = view.tokens, view.usage.correction
        furthest = deferred[-1]
        return Moment(
            shown=math.ceil(tokens * correction),
            ahead=math.ceil((tokens - gains[-1]) * correction),
            summary=ahead_of(view, furthest.compaction).compaction_tokens,
            retained=_retained(view, furthest),
            calls=calls[-1],
            missed_saving=sum(
                max(gain, 0) * (all_ - later) for gain, all_, later in zip(gains, calls, since, strict=True)
            ),
            idle=self._idle(view),
        )

    def decide(self, view: View, base: int, moment: Moment, *, needed: bool) -> Decision:
        """Return the policy's decision on *moment*. *needed*: a prompt is too long.

        A policy that fails is an event, and the compaction is shown if it makes prompts shorter: they must not grow
        because a policy is broken.
        """
        shorter = moment.ahead < moment.shown
        try:
            made: object = self._publication(moment)
            if not isinstance(made, Decision):
                raise TypeError(f"publish= is a callable Moment -> Decision; it gave {type(made).__name__}")
        except Exception as error:  # noqa: BLE001  (the host's: compacting goes on without it)
            self._emit(PublicationFailed(role=view.role, generation=base, error=type(error).__name__))
            made = Decision(show=shorter, reason="failed")
        return replace(made, show=True, reason="budget", over=None, recheck_in=None) if needed and shorter else made

    def _idle(self, view: View) -> float:
        """Return the seconds since the newest post."""
        newest, now = view.rounds[view.total - 1], self._now()
        stamps = [newest.created_at, *(post.created_at for post in newest.post_list[-1:])]
        if isinstance(view.rounds, HostRounds):  # they say nothing of time
            stamps = [self._seen_first(newest_place(view.rounds), now)]
        # A stamp without a zone is local time; and clocks of two machines may differ.
        return max((now - max(stamp.astimezone() for stamp in stamps)).total_seconds(), 0.0)

    def _seen_first(self, place: tuple[str, int], now: datetime) -> datetime:
        with self._lock:
            if self._seen is None or self._seen[0] != place:
                self._seen = place, now
            return self._seen[1]


def _is_shown(prepared: CompactionPrepared, view: View) -> bool:
    made, shown = prepared.compaction, view.compaction
    return made is not None and shown is not None and is_same(made, shown)


def _gain(view: View, compaction: CompactedMessage) -> int:
    """Return how many tokens shorter prompts are with *compaction*."""
    covered = view.compaction_tokens + view.closed_tokens(view.end, compaction.end_index)
    return covered - ahead_of(view, compaction).compaction_tokens


def _seen_end(view: View, prepared: CompactionPrepared) -> int:
    """Return how many of *view*'s rounds there were when *prepared* was made, as far as known."""
    made = prepared.compaction
    known = (prepared.seen_round_id, made.end_round_id if made is not None else None)
    return next((end for one in known if one and (end := view.rounds.end_of(one))), view.end)


def _calls_behind(view: View, prepared: CompactionPrepared) -> int:
    """Return how often the agent's model was called since *prepared* was made."""
    end = _seen_end(view, prepared)
    calls = view.calls_behind(end)
    newest = view.rounds[end - 1] if end else None
    if newest is None or newest.id != prepared.seen_round_id:
        return calls
    behind = tuple(post for post in newest.post_list if post.number > prepared.seen_post)
    return calls + calls_in(newest.model_copy(update={"post_list": behind}), view.role)


def _retained(view: View, ahead: Ahead) -> int:
    """Return the tokens that stood behind a compaction when it was made, in rounds that are closed by now."""
    return view.closed_tokens(ahead.compaction.end_index, _seen_end(view, ahead.prepared))
