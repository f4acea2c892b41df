"""How notes are written most cheaply: a few changes each time, or now and then all of them anew."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..experience import Experience
from ..summarizers.base import Style
from .prices import Prices

#: How the next notes are written: by changes to those that there are; as notes on the new rounds alone, added behind
#: the others; or all of them anew.
Form = Literal["changes", "addition", "full"]

#: Assumed length of changes until the first ones come, as a share of all notes.
FIRST_CHANGES = 0.25
#: One compaction in at least and at most this many writes all notes anew. Each time, their facts pass through the model
#: once more.
MIN_PERIOD, MAX_PERIOD = 2, 16
#: Assumed compactions from one writing of all notes to the next, where nothing was weighed.
USUAL_PERIOD = 4
#: Key in ``extra`` of a compaction: how many summaries its rounds have passed through on average.
PASSES = "passes"
#: Notes may pass through so many summaries on average before only a lack of room makes the model write them anew.
MAX_PASSES = 3.0


class FormChoice(NamedTuple):
    """The cheapest way to write the next notes, and the lengths in tokens by which it was found."""

    form: Form
    #: One compaction in this many writes all notes anew.
    period: int
    #: The expected length of all notes, and of each other answer of the period.
    full: float
    each: float


def cost_of_period(period: int, each: float, full: float, output: float, stay_price: float) -> float:
    """Return the mean cost of a compaction if one in *period* writes *full* tokens, and the others add *each*.

    *output* is the price of a token that the model writes, *stay_price* that of a token that stays in the notes until
    the next compaction.
    """
    return output * (full + (period - 1) * each) / period + stay_price * (full + each * (period - 1) / 2)


def choose_form(
    experience: Experience, prices: Prices, *, style: Style, calls: float, full: float, takes_changes: bool
) -> FormChoice:
    """Return the cheapest way to write the next notes.

    *calls* is how often the agent's model reads the notes until the next compaction. *full* is the length of all notes
    in tokens; a measured length replaces it. Each option is priced as if it went on for ever: longer notes cost more
    in each prompt and each request, and all notes cost more output.
    """
    full = experience.full or full
    changes = experience.changes if experience.changes is not None else FIRST_CHANGES * full
    asks_for_changes = takes_changes and experience.keeps_form
    # An addition replaces nothing: one short one, after changes that were refused, is no reason to keep to it.
    addition = full if asks_for_changes else experience.addition or full
    stay_price, output = prices.cached_input * calls, prices.summarizer_output
    read = prices.cached_input if style == "continue" else prices.summarizer_input
    options: list[tuple[float, Form, int]] = []
    for period in range(MIN_PERIOD, MAX_PERIOD + 1):
        if asks_for_changes:
            options.append((cost_of_period(period, changes, full, output, stay_price + read), "changes", period))
        if style == "separate":  # behind the agent's prompt, a model would tell again what stands there
            options.append(
                (cost_of_period(period, addition, full, output, stay_price + read / period), "addition", period)
            )
    _, form, period = min(options, default=(0.0, "full", 1))
    return FormChoice(form, period, full, addition if form == "addition" else changes)
