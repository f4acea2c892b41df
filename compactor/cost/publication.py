"""When a compaction is shown: at once, or deferred until showing it costs less than waiting.

Deferred compactions are looked up in the journal each time, so a process that resumes keeps deferring them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from memory.arguments import ConfigError, check_number, check_whole_number, require
from memory.entries import CompactionPrepared
from memory.events import Event
from memory.hooks import renew_after_fork
from memory.overlays import CompactedMessage
from memory.rounds import copy_with
from memory.values import ValueObject

from ..events import Deferred, Discarded, PublicationFailed
from ..prompt.token_cache import count_calls
from ..triggers import Trigger
from ..view import View
from .pauses import CACHE_SECONDS
from .prices import Prices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Moment(ValueObject):
    """The input of a policy while a compaction is deferred, in tokens."""

    #: The whole prompt as shown now, and with the deferred compaction: including the tools of the last prompt, and
    #: corrected by the provider's count if known.
    shown: int
    ahead: int
    #: Tokens of the deferred compaction in a prompt.
    summary: int
    #: Tokens after its end when it was prepared. Later messages must be read in any case, so they are no reason to
    #: wait.
    retained: int
    #: Calls of the agent's model since then.
    calls: int
    #: Total tokens by which these calls' prompts were longer than necessary, including calls since an earlier deferred
    #: compaction that this one replaces.
    missed_saving: int
    #: Seconds since the newest post.
    idle: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Decision(ValueObject):
    """Whether to show the deferred compaction now, and the reason that events give."""

    show: bool
    reason: str
    #: The cost of not showing it so far, and the cost of showing it, in uncached input tokens.
    saving: float = 0.0
    price: float = 0.0
    #: Seconds until the next evaluation, if nothing happens before.
    recheck_in: float | None = None
    #: The budget that the prompt exceeds even with it; the compaction is then extended before it is shown.
    over: int | None = None

    def __post_init__(self) -> None:
        if self.recheck_in is not None and not self.recheck_in > 0:  # else it would be evaluated forever
            raise ValueError(f"recheck_in is a number of seconds above 0, or None, not {self.recheck_in!r}")


Publication = Callable[[Moment], Decision]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeferredPublication(ValueObject):
    """Shows a compaction when the provider's cache has expired, when the budget requires it, or when the longer prompts
    since its preparation have cost as much as rewriting the cache; never if it makes no prompt shorter.

    Its reasons: ``cold``, ``budget``, ``repaid``; to wait, ``no_gain`` and ``saving``.
    """

    prices: Prices = field(default_factory=Prices)
    #: Seconds that the provider caches a prompt; ``math.inf``: do not wait for its cache to expire.
    cache_seconds: float = CACHE_SECONDS
    #: Maximum prompt tokens; None: as set by the compactor's configuration and its trigger.
    budget: int | None = None

    def __post_init__(self) -> None:
        check_number("cache_seconds", self.cache_seconds)
        if self.budget is not None:
            check_whole_number("budget", self.budget, 1)

    def __call__(self, moment: Moment) -> Decision:
        prices, budget = self.prices, self.budget if self.budget is not None else math.inf
        saving = prices.cached_input * moment.missed_saving
        price = (moment.summary + moment.retained) * max(prices.cache_write - prices.cached_input, 0.0)
        left = self.cache_seconds - max(moment.idle, 0.0)
        if moment.ahead >= moment.shown:
            return Decision(show=False, reason="no_gain", saving=saving, price=price)
        if moment.shown > budget:
            reason = "budget"
        elif left <= 0:
            reason = "cold"
        elif saving >= price:
            reason = "repaid"
        else:
            recheck_in = left if left < math.inf else None
            return Decision(show=False, reason="saving", saving=saving, price=price, recheck_in=recheck_in)
        over = self.budget if moment.ahead > budget else None
        return Decision(show=True, reason=reason, saving=saving, price=price, over=over)


def deferred(
    prices: Prices | None = None, *, cache_seconds: float = CACHE_SECONDS, budget: int | None = None
) -> DeferredPublication:
    """Return a policy for ``publish=`` with other numbers than ``publish="deferred"``."""
    return DeferredPublication(
        prices=prices if prices is not None else Prices(), cache_seconds=cache_seconds, budget=budget
    )


def find_prices(trigger: object) -> Prices | None:
    """Return the prices of a trigger, or of one of its parts; None if there are none."""
    if not isinstance(trigger, Trigger):
        return None
    found = trigger.prices
    return found if isinstance(found, Prices) else next(filter(None, map(find_prices, trigger.parts)), None)


def find_budget(trigger: object) -> int | None:
    """Return the smallest budget of a trigger and its parts; None if there is none."""
    found = (trigger.budget, *map(find_budget, trigger.parts)) if isinstance(trigger, Trigger) else ()
    return min((one for one in found if one is not None), default=None)


def resolve_publication(
    publish: Publication | str, prices: Prices | None, trigger: object, max_tokens: int | None
) -> Publication:
    """Return the policy that *publish* names or is; it is not ``"immediately"``.

    The policy uses *prices* or those of *trigger*, and the smaller of *max_tokens* and the budget of *trigger*; an
    automatic trigger finds them as it works.

    Raises ``ValueError`` and ``TypeError`` if *publish* is no policy.
    """
    budget = min((one for one in (max_tokens, find_budget(trigger)) if one is not None), default=None)
    if publish == "deferred":
        return deferred(prices or find_prices(trigger), budget=budget)
    if isinstance(publish, DeferredPublication):
        return publish if publish.budget is not None else copy_with(publish, budget=budget)
    if isinstance(publish, str):
        raise ConfigError(("publish", f'must be "immediately", "deferred", or what deferred() gives, not {publish!r}'))
    require("publish", publish, Callable, "a word or a callable Moment -> Decision")
    return publish


def is_same(one: CompactedMessage | None, other: CompactedMessage | None) -> bool:
    """Return whether both are the same summary of the same rounds."""
    if one is None or other is None:
        return False
    return (one.end_round_id, one.summary) == (other.end_round_id, other.summary)


def find_ahead(view: View, answers: Iterable[CompactionPrepared]) -> list[tuple[CompactedMessage, CompactionPrepared]]:
    """Return the compactions among *answers* that could replace *view*'s, each reaching further than the one before.

    They are as they would be shown now, with indices in the numbering of *view*.
    """
    found: list[tuple[CompactedMessage, CompactionPrepared]] = []
    for prepared in answers:
        reach = found[-1][0].end_index if found else view.end
        if (
            prepared.compaction is not None
            and (end := _find_end(view, prepared.compaction, prepared.round_ids)) > reach
        ):
            anchored = view.rounds.anchor(prepared.compaction) or prepared.compaction
            found.append((copy_with(anchored, end_index=end), prepared))
    return found


def _find_end(view: View, compaction: CompactedMessage, round_ids: tuple[str, ...]) -> int:
    """Return how many rounds *compaction* covers; 0 if its newly covered rounds are no longer *round_ids*."""
    rounds = view.rounds
    end = rounds.find_end(compaction.end_round_id) if compaction.end_round_id is not None else None
    # No round is inserted between those of a Memory; a failed one is missing from their number, or is the first itself.
    expected = round_ids if rounds.snapshot is None else round_ids[:1]
    if end is None or not view.end < end <= view.closed or end - view.end != len(round_ids):
        return 0
    return end if all(rounds.find_end(one) == number for number, one in enumerate(expected, view.end + 1)) else 0


def make_view_ahead(view: View, compaction: CompactedMessage) -> View:
    """Return *view* as it would be if *compaction* were shown: triggers and strategies use it during deferral."""
    start = view.end if view.counted_from is None else view.counted_from
    return copy_with(view, compaction=compaction, counted_from=start)


class Deferral:
    """Defers one compactor's publications until its policy shows them. Thread-safe.

    *find_policy* is called for each decision, because an automatic trigger finds prices and budget as it works; and
    once here, so that a wrong policy raises at once. A lost deferred compaction is reported as an event.
    """

    def __init__(
        self,
        find_policy: Callable[[], Publication],
        now: Callable[[], datetime],
        emit: Callable[[Event], object],
    ) -> None:
        self._find_policy = find_policy
        find_policy()
        self._now = now
        self._emit = emit
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards all below it
        self._furthest: CompactionPrepared | None = None  # at the last evaluation
        self._seen: tuple[tuple[str, int], datetime] | None = None  # a host's newest post, and when first seen

    def forget(self) -> None:
        """Forget the deferred compaction: it is about to be shown."""
        with self._lock:
            self._furthest = None

    def weigh(
        self, view: View, base: int, prepared: Iterable[CompactionPrepared], *, needed: bool
    ) -> tuple[CompactedMessage, Decision] | None:
        """Return the deferred compaction in *prepared* that covers the most, and the decision on it; None if there is
        none.

        *needed*: a prompt is over its budget, so the compaction is shown if it shortens that prompt. A failing policy
        is reported as an event, and the compaction is shown if it shortens prompts: a broken policy must not make them
        grow.
        """
        found = find_ahead(view, prepared)
        furthest = found[-1][1] if found else None
        with self._lock:
            before, self._furthest = self._furthest, furthest
        is_there = any(one == before for _, one in found)
        if before is not None and not is_there and not is_same(before.compaction, view.compaction):
            reason = "rounds_changed" if before.base == base else "generation"
            self._emit(Discarded(role=view.role, generation=base, reason=reason))
        if not found:
            return None
        moment = self._make_moment(view, found)
        shorter = moment.ahead < moment.shown
        try:
            decision: object = self._find_policy()(moment)
            if not isinstance(decision, Decision):
                raise TypeError(f"publish= is a callable Moment -> Decision; it gave {type(decision).__name__}")
        except Exception as error:  # noqa: BLE001  (the host's: compacting goes on without it)
            self._emit(PublicationFailed(role=view.role, generation=base, error=type(error).__name__))
            decision = Decision(show=shorter, reason="failed")
        if needed and shorter:
            decision = copy_with(decision, show=True, reason="budget", over=None, recheck_in=None)
        self._emit(
            Deferred(
                role=view.role,
                generation=base,
                shows=decision.show,
                reason=decision.reason,
                end=found[-1][0].end_index,
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
        return found[-1][0], decision

    def _make_moment(self, view: View, candidates: Sequence[tuple[CompactedMessage, CompactionPrepared]]) -> Moment:
        """Return the input of the policy. *candidates* are all deferred compactions, the furthest last."""
        gains = [_count_gain(view, compaction) for compaction, _ in candidates]
        calls = [_count_calls_since(view, prepared) for _, prepared in candidates]
        tokens, correction, (furthest, prepared) = view.tokens, view.usage.correction, candidates[-1]
        return Moment(
            shown=math.ceil(tokens * correction),
            ahead=math.ceil((tokens - gains[-1]) * correction),
            summary=make_view_ahead(view, furthest).compaction_tokens,
            retained=view.count_closed_tokens(furthest.end_index, _find_seen_end(view, prepared)),
            calls=calls[-1],
            missed_saving=sum(
                max(gain, 0) * (all_ - later) for gain, all_, later in zip(gains, calls, [*calls[1:], 0], strict=True)
            ),
            idle=self._count_idle_seconds(view),
        )

    def _count_idle_seconds(self, view: View) -> float:
        """Return the seconds since the newest post."""
        newest, now = view.rounds[view.total - 1], self._now()
        last = newest.post_list[-1:]
        stamps = [newest.created_at, *(post.created_at for post in last)]
        if view.rounds.snapshot is None:  # another host's: they have no times
            post = newest.id, last[0].number if last else 0
            with self._lock:
                if self._seen is None or self._seen[0] != post:
                    self._seen = post, now
                stamps = [self._seen[1]]
        # A time stamp without a zone is local time, and the clocks of two machines may differ.
        return max((now - max(stamp.astimezone() for stamp in stamps)).total_seconds(), 0.0)


def _count_gain(view: View, compaction: CompactedMessage) -> int:
    """Return the tokens that *compaction* saves in prompts."""
    covered = view.compaction_tokens + view.count_closed_tokens(view.end, compaction.end_index)
    return covered - make_view_ahead(view, compaction).compaction_tokens


def _find_seen_end(view: View, prepared: CompactionPrepared) -> int:
    """Return the number of *view*'s rounds when *prepared* was made, if known."""
    compaction = prepared.compaction
    known = (prepared.seen_round_id, compaction.end_round_id if compaction is not None else None)
    return next((end for one in known if one and (end := view.rounds.find_end(one))), view.end)


def _count_calls_since(view: View, prepared: CompactionPrepared) -> int:
    """Return the number of calls of the agent's model since *prepared* was made."""
    end = _find_seen_end(view, prepared)
    calls = view.count_calls_after(end)
    newest = view.rounds[end - 1] if end else None
    if newest is None or newest.id != prepared.seen_round_id:
        return calls
    since = tuple(post for post in newest.post_list if post.number > prepared.seen_post)
    return calls + count_calls(copy_with(newest, post_list=since), view.role)
