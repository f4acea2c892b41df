"""What tokens cost, relative to a token that the agent's model reads for the first time."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["Prices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The price of a token of each kind, where one that the agent's model reads uncached costs 1.

    The defaults are those of providers that give cached input for a tenth, write it for nothing and take four times as
    much for output, with the same model as the summarizer. Raises ``ValueError`` for a price that is negative or no
    number.
    """

    #: A token that the agent's provider has in its cache.
    cached: float = 0.1
    #: One that is written to that cache; 1 where writing costs nothing extra.
    written: float = 1.0
    #: One that the agent's model answers.
    output: float = 4.0
    #: One that the summarizer reads, and one that it answers.
    summarizer_input: float = 1.0
    summarizer_output: float = 4.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"{field.name} is a price from 0 on, where uncached input is 1, not {value!r}")
