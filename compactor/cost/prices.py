"""Prices of tokens, relative to one uncached input token of the agent's model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from memory.arguments import number, require
from memory.rounds import copy_with

from ..config import ConfigError

#: Placeholder for the agent's own price; replaced in ``__post_init__``.
_OWN: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
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
                number(field.name, value, finite=True)

    @classmethod
    def of_model(cls, model: str, *, summarizer: str | None = None) -> Self:
        """Return the prices of the agent's *model*, and of the *summarizer*'s; None: the same model summarizes.

        They come from the installed package ``genai-prices``, for short prompts; nothing is fetched. Raises
        ``ConfigError`` if the package is not installed or does not know the model, or if the model's input is free.
        """
        require("model", model, str, "the name of a model, as its provider writes it")
        read, cached, written, output = _look_up_dollars(model)
        summarizer_read, _, _, summarizer_output = _look_up_dollars(summarizer if summarizer is not None else model)
        if not read:
            raise ConfigError(("model", f"{model!r} reads for nothing, to which no price compares; give Prices(...)"))
        return cls(
            cached_input=cached / read,
            cache_write=written / read,
            output=output / read,
            summarizer_input=summarizer_read / read,
            summarizer_output=summarizer_output / read,
            per_token=read,
        )

    def with_cold(self, share: float) -> Prices:
        """Return the prices if *share* of the cacheable tokens misses the cache and is written again."""
        number("share", share, most=1.0)
        return copy_with(self, cached_input=(1 - share) * self.cached_input + share * self.cache_write)


#: Number of tokens priced at once, few enough for the lowest price tier.
_SAMPLE = 1_000


def _look_up_dollars(model: str) -> tuple[float, float, float, float]:
    """Return the dollars of a token of *model*: input, cached input, input written to the cache, and output."""
    try:
        from genai_prices import Usage, calc_price
    except ImportError as exc:
        raise ConfigError(
            ("model", "prices by name need a package: pip install 'context-compactor[prices]', or give Prices(...)")
        ) from exc

    def price(**counts: int) -> float:
        return float(calc_price(Usage(**counts), model_ref=model).total_price) / _SAMPLE

    try:
        return (
            price(input_tokens=_SAMPLE),
            price(input_tokens=_SAMPLE, cache_read_tokens=_SAMPLE),
            price(input_tokens=_SAMPLE, cache_write_tokens=_SAMPLE),
            price(output_tokens=_SAMPLE),
        )
    except LookupError as exc:
        raise ConfigError(
            ("model", f"nobody knows what {model!r} costs; name it as its provider does, or give Prices(...)")
        ) from exc
