"""The benchmark of either way to ask says what the formulas say, and the same each time."""

from __future__ import annotations

import pytest

from benchmarks import crossover
from benchmarks.crossover import LISTS, SUMMARY, SYSTEM, asked, behind, breaks_even
from compactor.cost import Prices


@pytest.mark.slow
def test_what_stands_in_the_agents_prompt_is_found_in_the_cache() -> None:
    """All but the instruction, in whole steps; and the separate request is as long as what it is about, and its tags."""
    one = asked(2_000)
    prompt = one.behind - one.instruction
    assert SYSTEM + SUMMARY + 2_000 <= prompt < 1.02 * (SYSTEM + SUMMARY + 2_000)
    assert 0 <= prompt - one.cached < 128
    assert 0.98 < one.separate / (SUMMARY + one.instruction + 2_000) < 1.05


@pytest.mark.parametrize("prices", LISTS)
def test_a_model_at_the_crossing_costs_the_same_in_both_ways(prices: Prices) -> None:
    """Cheaper ones summarise for less, separately."""
    one = crossover.Asked(covered=4_000, separate=6_500, behind=9_400, cached=9_000, instruction=400)
    share = breaks_even(prices, one)
    apart = Prices(summarizer_input=share, summarizer_output=share * prices.output)
    assert crossover.separately(apart, one.separate) == pytest.approx(behind(prices, 9_000, 400))


def test_the_tables_are_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens, prices and crossings, a row for each number of covered tokens."""
    crossover.main((1_000, 2_000))
    first = capsys.readouterr().out
    crossover.main((1_000, 2_000))
    assert capsys.readouterr().out == first
    assert [line[:9] for line in first.splitlines() if line.startswith("| ")] == [
        "| newly c",
        "| 1,000 |",
        "| 2,000 |",
    ] * 3
