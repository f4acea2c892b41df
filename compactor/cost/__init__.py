"""What a conversation costs, and when it is cheapest to compact it and to show what was compacted."""

from __future__ import annotations

from .cheapest import Cheapest, cheapest
from .interval import Sizes, best_interval, cost_per_token, price_of_compaction
from .prices import Prices
from .publication import Decision, Moment, Publication, WhenCheapest, when_cheapest

__all__ = [
    "Cheapest",
    "Decision",
    "Moment",
    "Prices",
    "Publication",
    "Sizes",
    "WhenCheapest",
    "best_interval",
    "cheapest",
    "cost_per_token",
    "price_of_compaction",
    "when_cheapest",
]
