"""What a compaction costs, what a conversation costs per token, and the interval where that is least."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import Prices
from compactor.cost import Sizes, compute_cost_per_token, find_best_interval, price_compaction

#: A window of 128k tokens at prices of which many are higher than the defaults.
PRICES = Prices(cached_input=0.1, cache_write=1.25, summarizer_input=1, summarizer_output=5)
SIZES = Sizes(per_call=500, system=3_000, summary=2_000, retained=4_000, instruction=500)
DELTAS = replace(SIZES, delta=400)

prices = st.builds(
    Prices,
    cached_input=st.floats(0.01, 1),
    cache_write=st.floats(1, 2),
    summarizer_input=st.floats(0, 2),
    summarizer_output=st.floats(0.1, 10),
)
sizes = st.builds(
    Sizes,
    per_call=st.floats(1, 50_000),
    system=st.floats(0, 20_000),
    summary=st.floats(1, 10_000),
    retained=st.floats(0, 100_000),
    instruction=st.floats(0, 2_000),
    delta=st.none() | st.floats(1, 2_000),
)
styles = st.sampled_from(["separate", "continue"])


@pytest.mark.parametrize(
    ("sizes", "style", "price", "interval", "per_token"),
    [
        (SIZES, "separate", 19_400, 13_900, 6.79),
        (SIZES, "continue", 18_425, 13_600, 5.81),
        (DELTAS, "continue", 10_425, 10_200, 5.14),
    ],
)
def test_each_way_of_asking_has_its_interval(
    sizes: Sizes, style: Literal["separate", "continue"], price: float, interval: float, per_token: float
) -> None:
    """Computed by hand for a window of 128k tokens."""
    best = find_best_interval(PRICES, sizes, style)

    assert price_compaction(PRICES, sizes, style) == pytest.approx(price)
    assert best == pytest.approx(interval, rel=0.003)
    assert compute_cost_per_token(best, PRICES, sizes, style) == pytest.approx(per_token, abs=0.005)


def test_waiting_until_the_window_is_nearly_full_costs_twice_as_much() -> None:
    """A prompt that may come to 110k tokens before it is compacted."""
    full = 110_000 - SIZES.system - SIZES.summary - SIZES.retained
    assert compute_cost_per_token(full, PRICES, SIZES) == pytest.approx(14.3, abs=0.05)
    assert compute_cost_per_token(full, PRICES, SIZES) > 2 * compute_cost_per_token(
        find_best_interval(PRICES, SIZES), PRICES, SIZES
    )


@given(prices, sizes, styles, st.floats(0.01, 100))
def test_no_other_interval_costs_less(
    prices: Prices, sizes: Sizes, style: Literal["separate", "continue"], factor: float
) -> None:
    """Whatever prices and sizes are."""
    best = find_best_interval(prices, sizes, style)
    least = compute_cost_per_token(best, prices, sizes, style)

    assert least <= compute_cost_per_token(best * factor, prices, sizes, style) * (1 + 1e-9)


@given(prices, sizes, styles, st.floats(0, 1))
def test_cold_caches_make_for_shorter_prompts(
    prices: Prices, sizes: Sizes, style: Literal["separate", "continue"], cold: float
) -> None:
    """Where what was cached has to be read anew, a long prompt is dearer, and a new beginning costs less."""
    colder = prices.with_cold(cold)
    assert prices.cached_input * (1 - 1e-9) <= colder.cached_input <= prices.cache_write * (1 + 1e-9)
    if style == "separate":  # behind the agent's prompt the summarizer pays for a cold cache, too
        assert find_best_interval(colder, sizes) <= find_best_interval(prices, sizes) * (1 + 1e-9)


def test_where_cached_tokens_are_free_nothing_is_gained() -> None:
    """A longer prompt is always cheaper then."""
    assert find_best_interval(replace(PRICES, cached_input=0), SIZES) == math.inf


def test_a_new_beginning_is_never_paid_back() -> None:
    """Also where a price list has cached tokens dearer than new ones."""
    odd = Prices(cached_input=2, cache_write=1, summarizer_input=0, summarizer_output=0)
    assert price_compaction(odd, SIZES) == 0
    assert find_best_interval(odd, SIZES) == 0
