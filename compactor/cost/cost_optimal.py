"""The trigger that compacts when it costs least: it weighs the cost of longer prompts against that of a compaction."""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from memory.arguments import check_number, check_whole_number
from memory.rounds import copy_with
from memory.values import ValueObject
from prompts import ABOVE, load_contract

from ..config import CompactorConfig
from ..events import CostEvaluated, CostReason
from ..prompt.groups import OVERLAY, is_summary
from ..summarizers.base import Style
from ..tokens import PROMPT_TOKENS
from ..triggers import Bounds, Trigger, Verdict, after_rounds, over_tokens
from ..view import View
from .pauses import Pauses
from .prices import Prices
from .rewriting import MAX_PASSES, PASSES, choose_form

#: A call weighs half as much as one that is this many calls newer; calls older than four times that are ignored.
HALF_LIFE = 32
#: Maximum rounds that are read, even if the model was called in none of them.
MAX_ROUNDS = 4 * HALF_LIFE
#: Assumed calls of the agent's model during a compaction, until measured.
FIRST_LATENCY = 1.0
#: Number of compactions whose longest latency is the margin below the budget.
LATENCIES = 8
#: Share of the usual bound at which an open round is reduced: it grows by several calls until it is summarised.
OPEN_SHARE = 0.9
#: Share of the best number of new tokens from which it is likely due: that changes with each evaluation.
LIKELY_SHARE = 0.95
#: Share of the model's window for prompts without a known budget; the rest is for the answer.
USABLE = 0.9
#: Assumed tokens of the first summary without a target.
DEFAULT_SUMMARY = 1_000
#: Minimum new tokens of a compaction: 1.5 times a usual summary.
MIN_NEW_TOKENS = 1_500
#: The reasons to be due.
_DUE_REASONS: tuple[CostReason, ...] = ("grown", "pause", "budget", "configured")

CallsLeft = float | Callable[[View], "float | None"] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Sizes(ValueObject):
    """The sizes of a repeatedly compacted conversation, in tokens."""

    #: Growth with each call of the agent's model.
    per_call: float
    #: System messages and tools.
    system: float
    summary: float
    #: The rounds that stay in the prompt after a new summary.
    retained: float
    #: The summarizer's instructions.
    instruction: float = 500
    #: Its answer if it is asked for edits only; None: a whole summary.
    delta: float | None = None
    #: Tokens by which its answer makes later prompts longer, all calls together.
    carried: float = 0.0
    #: Share of requests in which the summarizer reads the summary.
    rereads: float = 1.0


def price_beginning(prices: Prices, sizes: Sizes, grown: float = 0.0) -> float:
    """Return the cost of a cache miss after a new summary or an expiry: summary, retained rounds and *grown* tokens
    between them are read uncached."""
    return max((sizes.summary + sizes.retained + grown) * (prices.cache_write - prices.cached_input), 0.0)


def price_compaction(prices: Prices, sizes: Sizes, style: Style = "separate") -> float:
    """Return the cost C of one compaction without reading the new rounds: the request, and caching the prompt again."""
    rest = sizes.summary + sizes.retained
    answer = sizes.summary if sizes.delta is None else sizes.delta
    rewritten = price_beginning(prices, sizes)
    answered = prices.summarizer_output * answer + prices.cached_input * sizes.carried
    if style == "continue":
        return (
            rewritten + prices.cached_input * (sizes.system + rest) + prices.cache_write * sizes.instruction + answered
        )
    return rewritten + prices.summarizer_input * (sizes.rereads * sizes.summary + sizes.instruction) + answered


def find_best_interval(prices: Prices, sizes: Sizes, style: Style = "separate") -> float:
    """Return how many new tokens a compaction should cover: W* = √(2rC/c), where ``compute_cost_per_token`` is least.

    Infinite if cached tokens cost nothing: then a longer prompt is always cheaper.
    """
    if not prices.cached_input:
        return math.inf
    return math.sqrt(2 * sizes.per_call * price_compaction(prices, sizes, style) / prices.cached_input)


def compute_cost_per_token(interval: float, prices: Prices, sizes: Sizes, style: Style = "separate") -> float:
    """Return the total cost J(W) per token of a conversation that is compacted every *interval* tokens."""
    read = prices.cached_input if style == "continue" else prices.summarizer_input
    always = sizes.system + sizes.summary + sizes.retained
    return (
        prices.cache_write
        + read
        - prices.cached_input / 2
        + prices.cached_input * (always + interval / 2) / sizes.per_call
        + price_compaction(prices, sizes, style) / interval
    )


def repays(prices: Prices, sizes: Sizes, covered: float, saved: float, style: Style = "separate") -> bool:
    """Return whether a summary of *covered* tokens costs no more than the *saved* ones that prompts need not read."""
    read = prices.cached_input if style == "continue" else prices.summarizer_input
    return prices.cached_input * saved >= price_compaction(prices, sizes, style) + read * covered


def measure_open(view: View) -> int:
    """Return the tokens of the open round's calls and results that reductions can take.

    The role must have read them, and they follow the newest reduction; in a pass that has made some, the newest
    summary.
    """
    tokens = 0
    for part in reversed(view.open_tail[-1].parts if view.open_tail else ()):
        posts = [post for post in part.group.posts if post is not None]
        if any(post.extra.get(OVERLAY) if view.as_composed else is_summary(post) for post in posts):
            break
        if part.group.tools and view.is_reducible(part.round_, part.group):
            tokens += part.tokens
    return tokens


def measure_growth(view: View, end: int) -> tuple[int, Sizes]:
    """Return the tokens that a compaction up to *end* would newly cover, and the sizes of the prompt around them.

    Reads only the open round and a few closed ones.
    """
    in_open_rounds, prefix_sums = view.count_tokens_after(view.closed), view.prefix_sums
    seen = view.count_calls_after(max(view.closed, view.end))
    # The next call will read the posts since the last one; counted without a call, they would inflate the growth.
    tokens, calls = float(in_open_rounds if seen else 0), float(seen)
    for index in range(view.closed - 1, max(view.end, view.closed - MAX_ROUNDS) - 1, -1):
        in_round, weight = prefix_sums.round_tokens[index - prefix_sums.start].totals, 0.5 ** (seen / HALF_LIFE)
        tokens += weight * in_round.tokens
        calls += weight * in_round.calls
        seen += in_round.calls
        if seen > 4 * HALF_LIFE:
            break
    sizes = Sizes(
        per_call=tokens / calls if calls else tokens + in_open_rounds,  # the first call will read everything
        system=PROMPT_TOKENS + view.header_tokens,
        summary=view.compaction_tokens,
        retained=view.count_closed_tokens(end, view.closed) + in_open_rounds,
    )
    return view.count_closed_tokens(view.end, end), sizes


def cost_optimal(
    prices: Prices | str | None = None,
    *,
    min_new_tokens: int = MIN_NEW_TOKENS,
    budget: int | None = None,
    style: Style | None = None,
    delta_tokens: int | None = None,
    latency_calls: float | None = None,
    calls_left: CallsLeft = None,
) -> CostOptimal:
    """Return a trigger that is due when a compaction would newly cover W* = √(2rC/c) tokens: the cheapest interval.

    The trigger estimates W* as the conversation runs: from its growth, the length of its system messages and summary,
    the retained rounds, and how often the provider's cache was cold (``memory.record_usage(..., cached_tokens=...)``).
    *prices* are ``Prices``, or the name of the agent's model for ``Prices.of_model``. *style* is ``continue`` if the
    summarizer continues the agent's cached prompt; *delta_tokens* is the length of its answer if it writes only edits.
    None: as its answers have been so far.

    It is never due for fewer than *min_new_tokens* (by default 1.5 times a usual summary), because each compaction
    may lose something. It is always due before the prompt, in the provider's count, reaches *budget*, with a margin for
    the growth during the longest of the newest compactions and one call more, at most half the budget. None:
    ``max_tokens``, or most of the model's window. It is also due at the ``threshold`` or ``max_tokens`` that the
    compactor's configuration sets.

    *latency_calls*: calls of the agent's model during a compaction; None: measured. *calls_left*: remaining calls, or a
    callable ``View -> float | None``. A compaction that these calls would not repay is skipped, unless the budget
    requires it. None: unknown, the conversation continues.
    """
    check_whole_number("min_new_tokens", min_new_tokens)
    for name, tokens in (("budget", budget), ("delta_tokens", delta_tokens)):
        if tokens is not None:
            check_whole_number(name, tokens, 1)
    if style not in (None, "separate", "continue"):
        raise ValueError(f"style is 'separate', 'continue' or None, not {style!r}")
    for name, calls in (("latency_calls", latency_calls), ("calls_left", calls_left)):
        if calls is not None and not callable(calls):
            check_number(name, calls)
    if not isinstance(prices, Prices):
        prices = Prices.of_model(prices) if prices is not None else Prices()
    return CostOptimal(prices, min_new_tokens, budget, style, delta_tokens, latency_calls, calls_left)


class CostOptimal(Trigger):
    """The trigger of ``cost_optimal``. It measures latency, so each compactor has its own (``within``)."""

    def __init__(
        self,
        prices: Prices,
        min_new_tokens: int = MIN_NEW_TOKENS,
        budget: int | None = None,
        style: Style | None = None,
        delta_tokens: int | None = None,
        latency_calls: float | None = None,
        calls_left: CallsLeft = None,
    ) -> None:
        super().__init__(
            self._weigh,
            f"cost_optimal(min_new_tokens={min_new_tokens}, style={style!r})",
            may_be_due=self._may_be_due,
            is_likely_due=self._is_likely_due,
        )
        self.prices: Prices = prices
        #: Maximum prompt tokens, if given.
        self.budget = budget
        self._min_new_tokens, self._style, self._delta_tokens = min_new_tokens, style, delta_tokens
        self._given_latency, self._calls_left = latency_calls, calls_left
        self._config = CompactorConfig()
        #: The trigger that the configuration sets, if any.
        self._configured: Trigger | None = None
        #: Measured calls of the model during a compaction: newer ones weigh more; and those of the newest compactions.
        self._latency: float | None = None
        self._latencies: tuple[int, ...] = ()
        self._pauses = Pauses()
        #: The numbers by which it decided last.
        self.evaluation: CostEvaluated | None = None
        self._tail_length = 0
        #: The last due compaction: its end, and at the time, the number of calls after that end and the rounds. The
        #: pass that makes the compaction keeps these rounds, so it sees no later calls.
        self._last_due: tuple[str, int, object] | None = None

    def within(self, config: CompactorConfig) -> Self:
        trigger = copy.copy(self)
        trigger.verdict, trigger.may_be_due = trigger._weigh, trigger._may_be_due
        trigger.is_likely_due = trigger._is_likely_due
        trigger._config = config
        configured = [after_rounds(config.threshold)] if "threshold" in config.model_fields_set else []
        if config.max_tokens is not None:
            configured.append(over_tokens(max(1, int(config.max_tokens * config.token_ratio))))
        trigger._configured = functools.reduce(operator.or_, configured) if configured else None
        trigger._latency = trigger._last_due = trigger.evaluation = None
        trigger._latencies = ()
        trigger._pauses = Pauses()
        return trigger

    def describe(self, config: CompactorConfig) -> list[str]:
        numbers = self.evaluation
        if numbers is None:
            return [f"Due: when a compaction costs less than longer prompts; the newest {config.retain_recent} stay."]
        best = f"{numbers.best:,.0f}" if numbers.best is not None else "no number of"
        return [
            f"Due: after {best} new tokens, because longer prompts would then cost more than a compaction; now there"
            f" are {numbers.grown:,}. {self._describe_limit(numbers)}{self._pauses.describe()}"
        ]

    def _describe_limit(self, numbers: CostEvaluated) -> str:
        limit, tokens = f"{numbers.ceiling:,}", f"{numbers.tokens:,}"
        if numbers.tokens < numbers.ceiling:
            return f"At the latest when the prompt has {limit} tokens; it has {tokens}."
        reason = "It is due now:" if numbers.is_due else "It is not due: too little of the prompt is new, though"
        return f"{reason} the whole prompt has {tokens}, more than {limit}. compose cuts it to the budget."

    def measure_sizes(self, view: View) -> Sizes:
        """Return the estimated sizes of the conversation, for ``find_best_interval``."""
        return self._estimate(view, *measure_growth(view, view.find_due_end(self._config)))

    def _estimate(self, view: View, grown: int, measured: Sizes) -> Sizes:
        count, style = view.token_cache.count_again, self._choose_style(view)
        calls = max(grown / measured.per_call, 1.0) if measured.per_call else 1.0
        delta, rereads, carried = self._expect_answer(view, style, calls)
        instructions = [self._config.prompt.content]
        instructions += [load_contract("changes").content] if delta is not None else []
        instructions += [ABOVE] if style == "continue" else []
        return copy_with(
            measured,
            summary=measured.summary if view.compaction else self._first_summary,
            retained=measured.retained + self._latency_calls * measured.per_call,
            instruction=sum(map(count, instructions)),
            delta=delta,
            rereads=rereads,
            carried=carried,
        )

    def _expect_answer(self, view: View, style: Style, calls: float) -> tuple[float | None, float, float]:
        """Return ``delta``, ``rereads`` and ``carried`` of ``Sizes``, if the tail has grown by *calls* calls.

        Notes are written as ``choose_form`` weighs it. An answer stays in prompts until all notes may be written anew:
        each fact passes through so few summaries on average that the conversation has to grow first.
        """
        passes = view.compaction.extra.get(PASSES) if view.compaction is not None else None
        if self._delta_tokens is not None or view.work is None or passes is None:
            return self._delta_tokens, 1.0, 0.0
        form, period, full, each = choose_form(
            view.work.summarizer_stats,
            self.prices.with_cold(view.usage.cold),
            style=style,
            calls=calls,
            target=self._config.target_tokens,
            takes_changes=view.work.takes_changes,
        )
        waits = max(passes + 1 - MAX_PASSES, 0.0) * view.end / max(view.find_due_end(self._config) - view.end, 1)
        carried = each * waits * calls / 2 if form != "full" else 0.0
        rereads = 1 / period if form == "addition" else 1.0
        return (full + (period - 1) * each) / period + (view.work.summarizer_stats.thoughts or 0.0), rereads, carried

    @property
    def _first_summary(self) -> int:
        """The assumed length of the first summary in tokens."""
        return self._config.target_tokens or DEFAULT_SUMMARY

    def _choose_style(self, view: View) -> Style:
        """Return the style of requests: the given one, or else by the cache hits so far."""
        if self._style is not None or view.work is None:
            return self._style or "separate"
        return "continue" if view.work.summarizer_stats.continued else "separate"

    def _weigh(self, view: View) -> Verdict:
        self._measure_latency(view)
        grown, measured = measure_growth(view, view.find_due_end(self._config))
        sizes, prices, style = (
            self._estimate(view, grown, measured),
            self.prices.with_cold(view.usage.cold),
            self._choose_style(view),
        )
        best, price = find_best_interval(prices, sizes, style), price_compaction(prices, sizes, style)
        idle, work = self._pauses.observe(view), view.work
        # Whether it may continue, not whether it did: after the cache's end, none would be seen to share it.
        continues = (
            work is not None and work.takes_continued and work.may_continue(view.token_cache.prompt_limits.model)
        )
        likely_cold, recheck_in = self._pauses.estimate_likely_cold(idle, continues=continues)
        # A compaction that begins at this number of prompt tokens is ready before they reach the budget. The margin is
        # for the longest of recent compactions, not for a mean one: to begin a call too late costs a whole prompt,
        # because rounds leave it before the summary comes; a call too early costs a small share of a compaction. One
        # more call, because the prompt before this one may have been just below the ceiling.
        budget = self.budget or self._config.max_tokens or int(USABLE * view.window)
        longest = max([self._latency_calls, *(self._latencies if self._given_latency is None else ())])
        meanwhile = (longest + 1) * sizes.per_call * view.usage.correction
        ceiling = max(budget - math.ceil(meanwhile), budget // 2)
        tokens = view.corrected_tokens
        left = self._calls_left(view) if callable(self._calls_left) else self._calls_left
        saved = prices.cached_input * (grown + measured.summary - sizes.summary)
        repaid = left is None or (left - self._latency_calls) * saved >= price
        reason, threshold = self._decide(view, grown, best, ceiling, tokens, repaid=repaid)
        if reason == "below_best" and grown >= self._min_new_tokens:
            # *early*: the cost of compacting before the best moment, weighed against reading a cold prompt.
            later = min(best, grown + max(ceiling - tokens, 1) / view.usage.correction)
            early = (1 - grown / later) * (1 - grown * later / best**2) * price
            if likely_cold and early <= likely_cold * price_beginning(prices, sizes, grown):
                reason = "pause" if repaid else "ends_soon"
        else:
            recheck_in = None
        if reason in _DUE_REASONS:
            end = view.find_due_end(self._config, threshold)
            if end > view.end:
                self._last_due = (view.rounds[end - 1].id, view.count_calls_after(end), view.rounds)
        cost_evaluation = CostEvaluated(
            is_due=reason in _DUE_REASONS,
            reason=reason,
            grown=grown,
            best=best if best < math.inf else None,
            floor=self._min_new_tokens,
            ceiling=threshold or ceiling if reason == "budget" else ceiling,
            tokens=tokens,
            per_call=sizes.per_call,
            system=round(sizes.system),
            summary=round(sizes.summary),
            retained=round(sizes.retained),
            latency_calls=self._latency_calls,
            price=price,
            cached_price=prices.cached_input,
            calls_left=left,
            likely_cold=likely_cold,
        )
        self.evaluation, self._tail_length = cost_evaluation, view.tail_length
        return Verdict(cost_evaluation.is_due, threshold, cost_evaluation, recheck_in=recheck_in)

    def _may_be_due(self, bounds: Bounds) -> bool:
        """Return whether it may be due. It is not before the tail has its minimum tokens, or the prompt half its
        budget, because no ceiling is below half the budget."""
        if self.evaluation is None or (self._configured is not None and self._configured.may_be_due(bounds)):
            return True
        budget = self.budget or self._config.max_tokens or self.evaluation.ceiling
        return bounds.tail_tokens >= self._min_new_tokens or bounds.tokens >= budget // 2

    def _is_likely_due(self, bounds: Bounds) -> bool:
        """Return whether the prompt probably reaches its ceiling, or a new round leaves enough to cover before it."""
        numbers, configured = self.evaluation, self._configured
        if numbers is None:
            return False
        if bounds.tokens >= numbers.ceiling or (configured is not None and configured.is_likely_due(bounds)):
            return True
        if numbers.best is None or bounds.tail_length <= self._tail_length:
            return False
        retain = max(self._config.retain_recent, 1)
        best = max(LIKELY_SHARE * numbers.best, numbers.floor)
        return bounds.tail_tokens >= best + numbers.retained * (retain - 1) / retain

    def _decide(
        self, view: View, grown: int, best: float, ceiling: int, tokens: int, *, repaid: bool
    ) -> tuple[CostReason, int | None]:
        """Return the reason why it is due or not, and ``Verdict.token_threshold``."""
        if tokens >= ceiling and view.find_due_end(self._config, ceiling) > view.end:
            return "budget", ceiling
        for_open = ceiling if grown else int(OPEN_SHARE * ceiling)
        if tokens >= for_open and measure_open(view) >= max(self._min_new_tokens, 1):
            return "budget", for_open
        configured = self._configured.verdict(view) if self._configured is not None else Verdict(False)
        if configured.is_due:
            return "configured", configured.token_threshold
        if not grown:
            return "nothing_to_cover", None
        if grown < max(best, self._min_new_tokens):
            return "below_best", None
        return ("grown" if repaid else "ends_soon"), None

    @property
    def _latency_calls(self) -> float:
        """Calls of the model during a compaction."""
        if self._given_latency is not None:
            return self._given_latency
        return self._latency if self._latency is not None else FIRST_LATENCY

    def _measure_latency(self, view: View) -> None:
        if self._last_due is None or view.compaction is None:
            return
        end_round_id, calls, rounds = self._last_due
        if view.compaction.end_round_id == end_round_id and view.rounds is not rounds:
            went_by = max(view.count_calls_after(view.end) - calls, 0)
            self._latency = went_by if self._latency is None else (self._latency + went_by) / 2
            self._latencies = (*self._latencies, went_by)[-LATENCIES:]
            self._last_due = None
