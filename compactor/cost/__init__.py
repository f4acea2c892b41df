"""The cost of a conversation, and the cheapest moments to compact it and to publish the result."""

from __future__ import annotations

from .cost_optimal import CostOptimal, Sizes, compute_cost_per_token, cost_optimal, find_best_interval, price_compaction
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
    "compute_cost_per_token",
    "cost_optimal",
    "deferred",
    "find_best_interval",
    "price_compaction",
]
