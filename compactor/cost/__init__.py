"""What a conversation costs, and when it is cheapest to compact it and to show what was compacted."""

from __future__ import annotations

from ..publication import Decision, Moment, Publication, WhenCheapest, when_cheapest
from .cost_optimal import Cheapest, Sizes, best_interval, cheapest, cost_per_token, price_of_compaction
from .prices import Prices

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
