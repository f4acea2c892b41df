"""What a conversation costs by a list of prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compactor import Prices

from .model_server import Answered

__all__ = ["LISTS", "Cost", "PriceList", "cost_of"]


@dataclass(frozen=True)
class PriceList:
    name: str
    prices: Prices


#: Kinds of providers: a token that the agent reads uncached is 1, and the same model summarises.
LISTS = (
    PriceList(
        "cached 0.1, write 1, output 4",
        Prices(cached_input=0.1, cache_write=1.0, output=4.0, summarizer_input=1.0, summarizer_output=4.0),
    ),
    PriceList(
        "cached 0.25, write 1, output 4",
        Prices(cached_input=0.25, cache_write=1.0, output=4.0, summarizer_input=1.0, summarizer_output=4.0),
    ),
    PriceList(
        "cached 0.1, write 1.25, output 5",
        Prices(cached_input=0.1, cache_write=1.25, output=5.0, summarizer_input=1.0, summarizer_output=5.0),
    ),
    PriceList(
        "cached 0.1, write 1, output 8",
        Prices(cached_input=0.1, cache_write=1.0, output=8.0, summarizer_input=1.0, summarizer_output=8.0),
    ),
)


@dataclass(frozen=True)
class Cost:
    """What was paid, by what it was for."""

    agent_input: float
    agent_output: float
    summarizer_input: float
    summarizer_output: float

    @property
    def total(self) -> float:
        return self.agent_input + self.agent_output + self.summarizer_input + self.summarizer_output


def cost_of(log: Iterable[Answered], prices: Prices) -> Cost:
    """Return what the requests cost.

    A summarizer's uncached input is written to the cache, at that price, only where it continues what the cache has;
    else nobody would pay for that.
    """
    agent_input = agent_output = asked = answered = 0.0
    for one in log:
        read, new = one.cached * prices.cached_input, one.input - one.cached
        if one.by == "agent":
            agent_input += read + new * prices.cache_write
            agent_output += one.output * prices.output
        elif one.status == 200:
            asked += read + new * (prices.cache_write if one.cached else prices.summarizer_input)
            answered += one.output * prices.summarizer_output
    return Cost(agent_input, agent_output, asked, answered)
