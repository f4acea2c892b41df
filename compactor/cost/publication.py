"""When to show a compaction that is prepared: a provider's cache forgets the old beginning of the prompt, once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..config import number, whole_number
from .prices import Prices

__all__ = [
    "Decision",
    "Moment",
    "Publication",
    "WhenCheapest",
    "budget_in",
    "prices_in",
    "publication_of",
    "when_cheapest",
]

#: Providers keep a prompt's beginning so many seconds after they read it last.
CACHE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What there is to weigh where a compaction is prepared and not shown, in tokens."""

    #: The whole prompt as it is shown, and as it would be with what is prepared: with the tools that the last one had,
    #: and by the provider's count as far as that is known.
    shown: int
    ahead: int
    #: What is prepared, in a prompt.
    summary: int
    #: What stood behind its end when it was prepared. More has come since: that would have to be read in any case, and
    #: is no reason to wait longer.
    retained: int
    #: Calls of the agent's model since then.
    calls: int
    #: By how many tokens their prompts were longer than they had to be, all in all, those included since something
    #: was prepared that this one has taken in.
    forgone: int
    #: Seconds since the newest post.
    idle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether to show it now, and why: in a word that stands in events."""

    show: bool
    reason: str
    #: What was paid for not showing it so far, and what showing it costs, in uncached input tokens.
    saving: float = 0.0
    price: float = 0.0
    #: Seconds until it is to be looked at again, if nothing happens before.
    look_in: float | None = None
    #: Where even with it the prompt is too long: the tokens that it is over. It is extended before it is shown.
    over: int | None = None

    def __post_init__(self) -> None:
        if self.look_in is not None and not self.look_in > 0:  # or it would be looked at without end
            raise ValueError(f"look_in is a number of seconds above 0, or None, not {self.look_in!r}")


Publication = Callable[[Moment], Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhenCheapest:
    """Show it when the provider's cache has forgotten the prompt, when the budget needs it, or when what longer prompts
    have cost since it was prepared comes to the price of a new beginning; never where it makes nothing shorter.

    Its reasons: ``cold``, ``budget``, ``repaid``; to wait, ``no_gain`` and ``saving``.
    """

    prices: Prices = field(default_factory=Prices)
    #: How long the provider keeps what it has read; ``math.inf`` where nobody is to wait for that.
    cache_seconds: float = CACHE_SECONDS
    #: The tokens that a prompt may have; None: as the compactor's configuration and its trigger say.
    budget: int | None = None

    def __post_init__(self) -> None:
        number("cache_seconds", self.cache_seconds)
        if self.budget is not None:
            whole_number("budget", self.budget, 1)

    def __call__(self, moment: Moment) -> Decision:
        prices = self.prices
        saving = prices.cached * moment.forgone
        price = (moment.summary + moment.retained) * max(prices.written - prices.cached, 0.0)
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
        look_in = left if left < math.inf else None
        return Decision(show=False, reason="saving", saving=saving, price=price, look_in=look_in)


def when_cheapest(
    prices: Prices | None = None, *, cache_seconds: float = CACHE_SECONDS, budget: int | None = None
) -> WhenCheapest:
    """Return what a compactor takes as ``publish=``, with other numbers than ``publish="when_cheapest"`` has."""
    return WhenCheapest(prices=prices if prices is not None else Prices(), cache_seconds=cache_seconds, budget=budget)


def prices_in(trigger: object) -> Prices | None:
    """Return the prices that a trigger goes by, or one that it is combined of; None where there are none."""
    found = getattr(trigger, "prices", None)
    parts = getattr(trigger, "parts", ())
    return found if isinstance(found, Prices) else next(filter(None, map(prices_in, parts)), None)


def budget_in(trigger: object) -> int | None:
    """Return the budget that a trigger keeps to, the smallest of those that it is combined of; None: none is given."""
    found = (getattr(trigger, "budget", None), *map(budget_in, getattr(trigger, "parts", ())))
    return min((one for one in found if isinstance(one, int)), default=None)


def publication_of(publish: object, prices: Prices | None, budget: int | None) -> Publication | None:
    """Return what says when to show what is prepared; None: at once. *budget* is that of configuration and trigger.

    Raises ``ValueError`` and ``TypeError`` for what is none.
    """
    if publish == "when_ready":
        return None
    if publish == "when_cheapest":
        return when_cheapest(prices, budget=budget)
    if isinstance(publish, WhenCheapest):
        return publish if publish.budget is not None else replace(publish, budget=budget)
    if isinstance(publish, str):
        raise ValueError(  # noqa: TRY004  (a word is right, this one is not)
            f'publish is "when_ready" or "when_cheapest", or what when_cheapest() gives, not {publish!r}'
        )
    if not callable(publish):
        raise TypeError(f"publish is a word or a callable Moment -> Decision, not {type(publish).__name__}")
    return publish
