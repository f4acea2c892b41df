"""Prices of tokens, relative to one uncached input token of the agent's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from memory.arguments import ConfigError, check_number, require
from memory.rounds import copy_with
from memory.values import ValueObject

#: Placeholder for the agent's own price; replaced in ``__post_init__``.
_OWN: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Prices(ValueObject):
    """The price of each kind of token; an uncached input token of the agent's model costs 1.

    The defaults suit providers that charge a tenth for cached input, nothing extra for cache writes and four times as
    much for output. The summarizer's prices default to the agent's: the same model summarizes. Raises
    ``ValueError`` for a price that is negative or not a number.
    """

    #: An input token in the cache of the agent's provider.
    cached_input: float = 0.1
    #: An input token written to that cache; 1 if writing costs nothing extra.
    cache_write: float = 1.0
    #: An output token of the agent's model.
    output: float = 4.0
    #: An input and an output token of the summarizer; by default 1 and ``output``, as for the agent.
    summarizer_input: float = _OWN
    summarizer_output: float = _OWN
    #: Dollars per uncached input token of the agent's model; None: unknown.
    per_token: float | None = None

    def __post_init__(self) -> None:
        for name, own in (("summarizer_input", 1.0), ("summarizer_output", self.output)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, own)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "per_token" or value is not None:
                check_number(field.name, value, finite=True)

    @classmethod
    def of_model(cls, model: str, *, summarizer: str | None = None) -> Self:
        """Return the prices of the agent's *model*, and of the *summarizer*'s; None: the same model summarizes.

        They are those of short prompts, from the installed package ``genai-prices``; nothing is fetched. All spellings
        of ``compactor.find_model`` will do. Raises ``ConfigError`` if the price is unknown, or input is free.
        """
        summarizer = model if summarizer is None else summarizer
        for name, given in (("model", model), ("summarizer", summarizer)):
            require(name, given, str, "the name of a model, as its provider writes it")
        read, cached, written, output = _find_dollars(model)
        summarizer_read, _, _, summarizer_output = _find_dollars(summarizer)
        if not read:
            raise ConfigError(("model", f"input of {model!r} is free, so no price is relative to it; give Prices(...)"))
        return cls(
            cached_input=cached / read,
            cache_write=written / read,
            output=output / read,
            summarizer_input=summarizer_read / read,
            summarizer_output=summarizer_output / read,
            per_token=read,
        )

    def compute_cost(self, usage: Mapping[str, int]) -> float:
        """Return the cost of a summarizer's call with *usage*: in dollars if ``per_token`` is known, else in tokens."""
        read = usage.get("input_tokens", 0)
        cached = min(usage.get("cached_tokens", 0), read)
        tokens = self.summarizer_input * (read - cached + self.cached_input * cached)
        tokens += self.summarizer_output * usage.get("output_tokens", 0)
        return tokens if self.per_token is None else tokens * self.per_token

    def with_cold(self, share: float) -> Prices:
        """Return the prices if *share* of the cacheable tokens misses the cache and is written again."""
        check_number("share", share, maximum=1.0)
        return copy_with(self, cached_input=(1 - share) * self.cached_input + share * self.cache_write)


def _find_dollars(model: str) -> tuple[float, float, float, float]:
    from ..models import find_model

    dollars = find_model(model).dollars
    if dollars is None:
        raise ConfigError(
            ("model", f"the price of {model!r} is unknown; name it as its provider does, or give Prices(...)")
        )
    return dollars
