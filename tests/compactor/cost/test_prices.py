"""Prices relative to the agent's uncached input: given, or those of a model by its name."""

from __future__ import annotations

import math

import pytest

from compactor import ConfigError, Prices


@pytest.mark.parametrize("wrong", [-0.1, math.inf, math.nan, True, "0.1"])
@pytest.mark.parametrize(
    "name", ["cached_input", "cache_write", "output", "summarizer_input", "summarizer_output", "per_token"]
)
def test_what_is_no_price_is_refused(name: str, wrong: object) -> None:
    """And the message says which it was."""
    with pytest.raises(ValueError, match=name):
        Prices(**{name: wrong})


def test_a_price_in_dollars_need_not_be_known() -> None:
    assert Prices().per_token is None
    assert Prices(per_token=2e-6).per_token == 2e-6


def test_the_summarizer_costs_what_the_agents_model_does_where_nothing_else_is_said() -> None:
    """One price changed is changed for both, and a copy with other prices keeps what was given."""
    assert (Prices().summarizer_input, Prices().summarizer_output) == (1, 4)
    assert (Prices(output=5).summarizer_input, Prices(output=5).summarizer_output) == (1, 5)
    apart = Prices(output=5, summarizer_input=0.1, summarizer_output=0)
    assert (apart.summarizer_input, apart.summarizer_output) == (0.1, 0)
    assert apart.with_cold(0.5).summarizer_output == 0
    assert Prices(output=5) == Prices(output=5, summarizer_output=5)


def test_a_share_of_cold_calls_raises_the_price_of_cached_tokens() -> None:
    """It is what a token costs on average that the provider may have in its cache."""
    prices = Prices(cached_input=0.1, cache_write=1.25)
    assert prices.with_cold(0) == prices
    assert prices.with_cold(0.5).cached_input == pytest.approx(0.675)
    assert prices.with_cold(1).cached_input == 1.25
    with pytest.raises(ValueError, match="at least 0 and at most 1"):
        prices.with_cold(1.5)


def test_prices_of_a_model_are_found_by_its_name() -> None:
    """Relative to its own input; a tenth for cached tokens, and more for writing them where its provider asks that."""
    prices = Prices.of_model("claude-sonnet-4-5")
    assert prices.per_token == pytest.approx(3e-6)
    assert (prices.cached_input, prices.cache_write, prices.output) == (
        pytest.approx(0.1),
        pytest.approx(1.25),
        pytest.approx(5),
    )
    assert (prices.summarizer_input, prices.summarizer_output) == (1, pytest.approx(5))


def test_another_model_that_summarises_has_its_own_prices() -> None:
    """In the agent's tokens all the same: a cheap summarizer is worth asking more often."""
    prices = Prices.of_model("gpt-4o", summarizer="gpt-4o-mini")
    assert prices.cached_input == pytest.approx(0.5)
    assert prices.summarizer_input == pytest.approx(0.06)
    assert prices.summarizer_output == pytest.approx(0.24)


def test_a_model_without_a_price_for_cached_tokens_has_none_cached() -> None:
    """They cost what all others do."""
    assert Prices.of_model("gpt-4").cached_input == 1


def test_a_model_that_nobody_knows_is_refused() -> None:
    """With the remedy; a typing error must not end up in free tokens."""
    with pytest.raises(ConfigError, match=r"'no-such-model' is unknown.*Prices\(\.\.\.\)"):
        Prices.of_model("no-such-model")
    with pytest.raises(ConfigError, match="'no-such-model' is unknown"):
        Prices.of_model("gpt-4o", summarizer="no-such-model")


def test_a_model_that_reads_for_nothing_has_no_relative_prices() -> None:
    """There is no 1 to compare to; as a summarizer it is free."""
    free = "meta-llama/llama-3.3-70b-instruct:free"
    with pytest.raises(ConfigError, match=r"input of .* is free"):
        Prices.of_model(free)
    assert Prices.of_model("gpt-4o", summarizer=free).summarizer_input == 0
