"""The cost of a conversation, and the cheapest moments to compact it and to publish the result."""

from __future__ import annotations

from .cost_optimal import CostOptimal, Sizes, best_interval, cost_optimal, cost_per_token, price_of_compaction
from .prices import Prices
from .publication import Decision, DeferredPublication, Moment, Publication, deferred

__all__ = [
    "CostOptimal",
    "Decision",
    "DeferredPublication",
    "Moment",
    "Prices",
    "Publication",
    "Sizes",
    "best_interval",
    "cost_optimal",
    "cost_per_token",
    "deferred",
    "price_of_compaction",
]
