"""After how many new tokens a conversation is compacted at the least cost, and what it costs per token then.

Each call of the agent's model pays for its whole prompt again, at the price of cached tokens: seldom compacted, a
conversation pays for a long prompt; often, for summaries, and for the beginnings of prompts that its provider has not
seen. Prices are relative to the agent's uncached input; the agent's own output, which is the same either way, is left
out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..summarizers.base import Style
from .prices import Prices

__all__ = ["Sizes", "Style", "best_interval", "cost_per_token", "price_of_compaction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a conversation that is compacted again and again, in tokens."""

    #: By how much it grows with each call of the agent's model.
    per_call: float
    #: System messages and tools.
    system: float
    summary: float
    #: What stays as it is behind a new summary.
    retained: float
    #: What the summarizer is told beside the conversation.
    instruction: float = 500
    #: What it answers where it is asked for changes alone; None: a whole summary.
    delta: float | None = None


def price_of_compaction(prices: Prices, sizes: Sizes, style: Style = "separate") -> float:
    """Return what one compaction costs, C, beside reading what is new: the new beginning of the prompt, and asking."""
    kept = sizes.summary + sizes.retained
    answer = sizes.summary if sizes.delta is None else sizes.delta
    rewritten = max(kept * (prices.written - prices.cached), 0)
    answered = prices.summarizer_output * answer
    if style == "continue":
        return rewritten + prices.cached * (sizes.system + kept) + prices.written * sizes.instruction + answered
    return rewritten + prices.summarizer_input * (sizes.summary + sizes.instruction) + answered


def best_interval(prices: Prices, sizes: Sizes, style: Style = "separate") -> float:
    """Return how many new tokens a compaction should cover: W* = √(2rC/c), where ``cost_per_token`` is least.

    Infinite where cached tokens cost nothing: any longer prompt is cheaper still.
    """
    if not prices.cached:
        return math.inf
    return math.sqrt(2 * sizes.per_call * price_of_compaction(prices, sizes, style) / prices.cached)


def cost_per_token(interval: float, prices: Prices, sizes: Sizes, style: Style = "separate") -> float:
    """Return what a token of the conversation costs in all where every *interval* of them are compacted: J(W)."""
    read = prices.cached if style == "continue" else prices.summarizer_input
    always = sizes.system + sizes.summary + sizes.retained
    return (
        prices.written
        + read
        - prices.cached / 2
        + prices.cached * (always + interval / 2) / sizes.per_call
        + price_of_compaction(prices, sizes, style) / interval
    )
