"""How notes are written most cheaply: what is weighed, and what the weighing never does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.cost import Prices
from compactor.cost.rewriting import (
    MAX_PERIOD,
    MIN_PERIOD,
    choose_form,
    choose_length,
    compute_period_cost,
)
from compactor.summarizers.base import MAX_REFUSED, SummarizerStats

TOKENS = st.floats(1, 100_000)
PRICES = st.builds(
    Prices,
    cached_input=st.floats(0, 2),
    cache_write=st.floats(0, 2),
    output=st.floats(0, 100),
    summarizer_input=st.floats(0, 100),
    summarizer_output=st.floats(0, 100),
)
STYLES = st.sampled_from(["continue", "separate"])
CALLS = st.floats(1, 1_000)
MORE = st.floats(0, 1_000)


def choose_ticket(stats: SummarizerStats, prices: Prices, **more: Any) -> tuple[str, int]:
    given: dict[str, Any] = {"style": "continue", "calls": 10, "target": 800, "takes_changes": True} | more
    return choose_form(stats, prices, **given)[:2]


@given(
    period=st.integers(1, 50),
    sizes=st.tuples(TOKENS, TOKENS),
    prices=st.tuples(MORE, MORE),
    more=st.tuples(*[MORE] * 4),
)
def test_nothing_that_grows_makes_a_period_cheaper(
    period: int, sizes: tuple[float, float], prices: tuple[float, float], more: tuple[float, float, float, float]
) -> None:
    """Longer answers, longer notes, and higher prices of either cost more, or as much."""
    numbers = (*sizes, *prices)
    cost = compute_period_cost(period, *numbers)
    for place in range(4):
        raised = list(numbers)
        raised[place] += more[place]
        assert compute_period_cost(period, *raised) >= cost * (1 - 1e-12)


@given(full=TOKENS, each=TOKENS, output=MORE, held=MORE)
def test_a_period_of_one_writes_all_each_time(full: float, each: float, output: float, held: float) -> None:
    """Then it does not matter how long changes are."""
    assert compute_period_cost(1, each, full, output, held) == pytest.approx(output * full + held * full)


@given(
    full=TOKENS,
    share=st.floats(0, 0.25),
    prices=PRICES,
    style=STYLES,
    calls=CALLS,
)
def test_changes_of_a_quarter_never_cost_more_than_writing_in_full_where_output_is_dear(
    full: float, share: float, prices: Prices, style: Any, calls: float
) -> None:
    """Until the notes are read one and a half times as often as an output token costs: from there on, only the limit of
    rewriting, which keeps what they say from passing through the model each time, costs more than plain rewriting."""
    changes = max(share * full, 1e-9)
    stats = SummarizerStats(full=full, edits=changes)
    form, period = choose_ticket(stats, prices, style=style, calls=calls)
    read = prices.cached_input if style == "continue" else prices.summarizer_input
    held, output = prices.cached_input * calls, prices.summarizer_output
    asked_for = min(full, choose_length("addition", 800) or full)
    each, kept = (changes, held + read) if form == "changes" else (asked_for, held + read / period)
    chosen = compute_period_cost(period, each, full, output, kept)
    assert chosen <= compute_period_cost(MIN_PERIOD, changes, full, output, held + read) * (1 + 1e-9)
    if held + read <= 1.5 * output:
        assert chosen <= compute_period_cost(1, 0, full, output, held + read) * (1 + 1e-9)


@given(
    full=st.none() | TOKENS,
    changes=st.none() | TOKENS,
    refused=st.integers(0, 5),
    answered=st.integers(0, 5),
    prices=PRICES,
    style=STYLES,
    calls=CALLS,
    takes=st.booleans(),
)
def test_what_is_chosen_is_allowed(
    full: float | None,
    changes: float | None,
    refused: int,
    answered: int,
    prices: Prices,
    style: Any,
    calls: float,
    takes: bool,
) -> None:
    """No changes of a model that refuses them, no addition behind the agent's prompt, and nothing too often."""
    stats = SummarizerStats(full=full, edits=changes, asked_for_changes=refused + answered, refused_changes=refused)
    form, period = choose_ticket(stats, prices, style=style, calls=calls, takes_changes=takes)
    keeps = refused < MAX_REFUSED or refused < answered
    assert form != "changes" or (takes and keeps)
    assert form != "addition" or style == "separate"
    assert (form == "full") == (style == "continue" and not (takes and keeps))
    assert period == 1 if form == "full" else MIN_PERIOD <= period <= MAX_PERIOD


@given(full=TOKENS, changes=TOKENS, prices=PRICES, calls=CALLS, more=st.floats(0, 1_000))
def test_the_period_follows_the_prices(full: float, changes: float, prices: Prices, calls: float, more: float) -> None:
    """The dearer the output, the rarer are all notes written anew; the more often they are read, the more often."""
    stats = SummarizerStats(full=full, edits=changes)
    _, period = choose_ticket(stats, prices, calls=calls)
    dearer = replace(prices, summarizer_output=prices.summarizer_output + more)
    if changes <= 0.999 * full:  # else all periods cost the same, but for rounding
        assert choose_ticket(stats, dearer, calls=calls)[1] >= period
    assert choose_ticket(stats, prices, calls=calls + more)[1] <= period


@given(full=TOKENS, addition=st.none() | TOKENS, prices=PRICES, calls=CALLS)
def test_changes_come_before_an_addition(full: float, addition: float | None, prices: Prices, calls: float) -> None:
    """An addition replaces nothing, so it is no choice until the length of changes is known."""
    form, _ = choose_ticket(SummarizerStats(full=full, addition=addition), prices, style="separate", calls=calls)
    assert form == "changes"


@pytest.mark.parametrize(("changes", "form"), [(20, "changes"), (400, "addition")])
def test_an_addition_counts_by_the_length_that_is_requested(changes: float, form: str) -> None:
    """Until there was one: so long changes are a reason to try it."""
    assert choose_length("addition", 800) == 120
    prices = Prices(summarizer_input=0.1)  # else reading the notes each time would cost more than either
    assert choose_ticket(SummarizerStats(full=900, edits=changes), prices, style="separate", target=800)[0] == form


@given(full=TOKENS, changes=TOKENS, prices=PRICES, calls=CALLS, more=st.floats(0, 100_000))
def test_longer_changes_are_never_a_reason_to_ask_for_changes(
    full: float, changes: float, prices: Prices, calls: float, more: float
) -> None:
    """What is no longer chosen because it is long is not chosen when it is longer."""
    form, _ = choose_ticket(SummarizerStats(full=full, edits=changes), prices, style="separate", calls=calls)
    longer, _ = choose_ticket(SummarizerStats(full=full, edits=changes + more), prices, style="separate", calls=calls)
    assert form == "changes" or longer == "addition"
