"""The cheapest way to write notes: a few changes each time, or occasionally all of them anew."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..summarizers.base import Style, SummarizerStats
from .prices import Prices

#: Form of the next notes: changes to the present ones; additional notes on the new rounds alone; the newest notes anew,
#: behind the others; or all notes anew.
Form = Literal["changes", "addition", "newest", "full"]

#: Assumed length of changes until some are known, as a share of all notes.
FIRST_CHANGES = 0.25
#: Assumed tokens of all notes until they are written once, unless fewer are requested.
DEFAULT_NOTES = 500
#: Minimum and maximum compactions per full rewriting. In each rewriting, the facts pass through the model once more.
MIN_PERIOD, MAX_PERIOD = 2, 16
#: Share of ``target_tokens`` requested for notes written in full, which leaves room for others; and, of that, the share
#: for notes on the new rounds alone.
WRITTEN_SHARE, ADDITION_SHARE = 0.6, 0.25
#: Key in ``extra`` of a compaction: the number of summaries that its rounds have passed through on average.
PASSES = "passes"
#: Maximum average of these passes; beyond it, only a lack of room makes the model write the notes anew.
MAX_PASSES = 3.0


class FormChoice(NamedTuple):
    """The cheapest way to write the next notes, and the lengths in tokens behind that choice."""

    form: Form
    #: Compactions per full rewriting.
    period: int
    #: The expected length of all notes, and of each other answer of the period.
    full: float
    each: float


def compute_period_cost(period: int, each: float, full: float, output: float, stay_price: float) -> float:
    """Return the mean cost of a compaction if one in *period* writes *full* tokens, and the others add *each*.

    *output* is the price of a token that the model writes, *stay_price* that of a token that stays in the notes until
    the next compaction.
    """
    return output * (full + (period - 1) * each) / period + stay_price * (full + each * (period - 1) / 2)


def choose_length(form: Form, target: int | None) -> int | None:
    """Return the length in tokens to request for an answer in that *form*, if *target* is for all notes."""
    if target is None or form == "changes":
        return target
    return max(1, int(WRITTEN_SHARE * (ADDITION_SHARE if form == "addition" else 1) * target))


def choose_form(
    stats: SummarizerStats, prices: Prices, *, style: Style, calls: float, target: int | None, takes_changes: bool
) -> FormChoice:
    """Return the cheapest way to write the next notes, with *target* tokens in all.

    *calls* is the number of times that the agent's model reads the notes until the next compaction. Past answers
    predict the length of the next ones; without any, the requested length counts. Each option is priced as if it
    continued forever: longer notes cost more in each prompt and each request, and full notes cost more output.
    """
    full = stats.full or min(choose_length("full", target) or DEFAULT_NOTES, DEFAULT_NOTES)
    changes = stats.edits if stats.edits is not None else FIRST_CHANGES * full
    asks_for_changes = takes_changes and stats.keeps_form
    addition = stats.addition or min(choose_length("addition", target) or full, full)
    # An addition replaces nothing, so edits are tried first. After the agent's prompt, a model would repeat the notes
    # that are in it.
    may_add = style == "separate" and not (asks_for_changes and stats.edits is None)
    stay_price, output = prices.cached_input * calls, prices.summarizer_output
    read = prices.cached_input if style == "continue" else prices.summarizer_input
    options: list[tuple[float, Form, int]] = []
    for period in range(MIN_PERIOD, MAX_PERIOD + 1):
        if asks_for_changes:
            options.append((compute_period_cost(period, changes, full, output, stay_price + read), "changes", period))
        if may_add:
            options.append(
                (compute_period_cost(period, addition, full, output, stay_price + read / period), "addition", period)
            )
    _, form, period = min(options, default=(0.0, "full", 1))
    return FormChoice(form, period, full, addition if form == "addition" else changes)
