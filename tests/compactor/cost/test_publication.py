"""When it is cheapest to show what is prepared: each reason, with its numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import Prices, Trigger, after_rounds, cost_optimal, deferred
from compactor.cost import Decision, DeferredPublication, Moment
from compactor.cost.publication import find_budget, find_prices, resolve_publication

#: A prompt of 9,000 tokens that would be one of 3,400: 400 of summary, and 1,000 behind it when that was made.
MOMENT = Moment(shown=9_000, ahead=3_400, summary=400, retained=1_000, calls=0, missed_saving=0, idle=0.0)
POLICY = deferred(Prices(cached_input=0.1, cache_write=1.0))


def test_it_is_deferred_until_longer_prompts_have_cost_what_a_new_beginning_costs() -> None:
    """(400 + 1,000) x 0.9 = 1,260; each call is 5,600 tokens longer, which costs 560: after three calls it is repaid."""
    cost_evaluation = [POLICY(replace(MOMENT, calls=calls, missed_saving=calls * 5_600)) for calls in range(4)]
    assert [made.price for made in cost_evaluation] == pytest.approx([1_260.0] * 4)
    assert [made.saving for made in cost_evaluation] == pytest.approx([0.0, 560.0, 1_120.0, 1_680.0])
    assert [(made.show, made.reason) for made in cost_evaluation] == [*[(False, "saving")] * 3, (True, "repaid")]


def test_what_a_provider_charges_for_writing_makes_it_wait_longer() -> None:
    """At 1.25 for a written token the new beginning costs 1,610."""
    made = deferred(Prices(cached_input=0.1, cache_write=1.25))(replace(MOMENT, missed_saving=16_000))
    assert (made.show, made.reason) == (False, "saving")
    assert made.price == pytest.approx(1_610.0)


def test_without_a_cache_there_is_nothing_to_wait_for() -> None:
    """Where cached tokens are as dear as others, a new beginning costs nothing extra."""
    made = deferred(Prices(cached_input=1.0))(MOMENT)
    assert (made.show, made.reason, made.price) == (True, "repaid", 0.0)


@pytest.mark.parametrize(
    ("idle", "show", "recheck_in"), [(0.0, False, 300.0), (299.5, False, 0.5), (300.0, True, None), (1e9, True, None)]
)
def test_once_the_cache_is_cold_it_is_shown(idle: float, show: bool, recheck_in: float | None) -> None:
    """Whatever is sent then has to be written anyway. Before, it is to be looked at again when that is so."""
    made = POLICY(replace(MOMENT, idle=idle))
    assert (made.show, made.reason, made.recheck_in) == (show, "cold" if show else "saving", recheck_in)


def test_a_cache_that_lasts_for_ever_is_not_waited_for() -> None:
    """No timer is set then."""
    made = deferred(cache_seconds=math.inf)(replace(MOMENT, idle=1e9))
    assert (made.show, made.recheck_in) == (False, None)


def test_a_clock_that_goes_back_makes_nobody_wait_longer() -> None:
    assert POLICY(replace(MOMENT, idle=-3_600.0)).recheck_in == 300.0


@pytest.mark.parametrize(
    ("budget", "show", "over"), [(9_000, False, None), (8_999, True, None), (3_400, True, None), (3_399, True, 3_399)]
)
def test_the_budget_does_not_wait(budget: int, show: bool, over: int | None) -> None:
    """A prompt over it is made shorter at once; where that is not enough, what is deferred is extended first."""
    made = deferred(budget=budget)(MOMENT)
    assert (made.show, made.reason, made.over) == (show, "budget" if show else "saving", over)


def test_what_makes_nothing_shorter_is_never_shown() -> None:
    """Neither for the budget's sake, nor because the cache is cold, nor because something was saved before."""
    made = deferred(budget=100)(replace(MOMENT, ahead=9_000, idle=1e9, missed_saving=10**9))
    assert (made.show, made.reason) == (False, "no_gain")


@given(
    shown=st.integers(0, 10_000), ahead=st.integers(0, 10_000), missed_saving=st.integers(0, 10**7),
    idle=st.floats(0, 1_000), budget=st.none() | st.integers(1, 10_000),
)  # fmt: skip
def test_it_is_shown_only_for_a_reason(
    shown: int, ahead: int, missed_saving: int, idle: float, budget: int | None
) -> None:
    """It makes the prompt shorter, and the cache is cold, or the budget needs it, or it is repaid."""
    moment = replace(MOMENT, shown=shown, ahead=ahead, missed_saving=missed_saving, idle=idle)
    made = deferred(budget=budget)(moment)
    reasons = {
        "cold": idle >= 300.0,
        "budget": budget is not None and shown > budget,
        "repaid": 0.1 * missed_saving >= 1_400 * 0.9,
    }
    assert made.show == (ahead < shown and any(reasons.values()))
    assert reasons.get(made.reason, True)
    assert made.over == (budget if made.show and budget is not None and ahead > budget else None)


def test_words_and_callables_say_when() -> None:
    """A policy of one's own is a callable."""

    def mine(_moment: Moment) -> Decision:
        return Decision(show=False, reason="never")

    assert resolve_publication("deferred", None, None, 8_000) == DeferredPublication(prices=Prices(), budget=8_000)
    assert resolve_publication("deferred", Prices(cached_input=0.5), None, None) == deferred(Prices(cached_input=0.5))
    assert resolve_publication(deferred(cache_seconds=60.0), None, None, 8_000) == DeferredPublication(
        cache_seconds=60.0, budget=8_000
    )
    assert resolve_publication(deferred(budget=9), None, None, 8_000) == deferred(budget=9)
    assert resolve_publication(mine, None, None, 8_000) is mine


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: resolve_publication("when_possible", None, None, None), ValueError, "deferred"),
        (lambda: resolve_publication(3, None, None, None), TypeError, "callable"),
        (lambda: deferred(cache_seconds=-1.0), ValueError, "cache_seconds"),
        (lambda: deferred(cache_seconds=math.nan), ValueError, "cache_seconds"),
        (lambda: deferred(budget=0), ValueError, "budget"),
        (lambda: deferred(budget=True), ValueError, "budget"),
        (lambda: deferred(budget=1.5), ValueError, "budget"),  # type: ignore[arg-type]
        (lambda: deferred(cache_seconds="5"), ValueError, "cache_seconds"),  # type: ignore[arg-type]
        (lambda: deferred(cache_seconds=True), ValueError, "cache_seconds"),
    ],
)
def test_nonsense_is_refused_when_it_is_given(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_the_prices_of_a_trigger_are_found_in_what_it_is_combined_of() -> None:
    """``cost_optimal(prices) | over_tokens(n)`` weighs by the same prices."""

    class Priced(Trigger):
        prices = Prices(cached_input=0.25)

    priced = Priced(lambda _view: SimpleNamespace(is_due=False), "priced")  # type: ignore[arg-type, return-value]
    assert find_prices(priced) == find_prices(after_rounds(3) | (priced & after_rounds(9))) == Prices(cached_input=0.25)
    assert find_prices(after_rounds(3)) is find_prices(None) is None


def test_the_budget_of_a_trigger_is_the_smallest_in_what_it_is_combined_of() -> None:
    """A prompt must be within each of them."""
    small, large = cost_optimal(budget=4_000), cost_optimal(budget=9_000)
    assert find_budget(small) == find_budget(after_rounds(3) | (large & small)) == 4_000
    assert find_budget(after_rounds(3)) is find_budget(cost_optimal()) is find_budget(None) is None
