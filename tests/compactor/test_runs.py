"""What follows from how a run ended: one table, which neither tells nor calls anything."""

from __future__ import annotations

import pytest

from compactor import CompactionTimeout, LimitReached, SummaryRejected
from compactor.errors import LeasedElsewhere
from compactor.runner import Consequences, decide_consequences
from memory import SessionPurged, StaleCompaction

FAILED = Consequences(0, is_failure=True, answers=True)


@pytest.mark.parametrize(
    ("error", "follows"),
    [
        (LeasedElsewhere(30), Consequences(0, answers=True)),
        (LimitReached(None), Consequences(0, evaluates_again=True)),
        (StaleCompaction("generation"), Consequences(1, evaluates_again=True)),
        (StaleCompaction("rounds_changed"), Consequences(1, evaluates_again=True)),
        (StaleCompaction("stopped"), Consequences(0, evaluates_again=True)),
        (StaleCompaction("interpreter_exit"), Consequences(0, answers=True)),
        (SessionPurged("gone"), Consequences(0, answers=True, stops=True)),
        (CompactionTimeout("too long"), FAILED),
        (SummaryRejected("shorter", "not shorter"), FAILED),
        (OSError(), FAILED),
        (KeyboardInterrupt(), FAILED),
    ],
    ids=repr,
)
@pytest.mark.parametrize("forced", [False, True])
def test_each_error_has_its_outcome(error: BaseException, follows: Consequences, forced: bool) -> None:
    """Whether somebody waits or not."""
    assert decide_consequences(error, 0, forced=forced) == follows


def test_a_run_without_an_error_tells_those_who_asked_for_it() -> None:
    """There was nothing to do; and the row of discards ends."""
    assert decide_consequences(None, 3, forced=True) == Consequences(0, answers=True)
    assert decide_consequences(None, 3, forced=False) == Consequences(0)


def test_the_second_discard_in_a_row_is_a_failure() -> None:
    """Rounds that are others at every reading would be paid for again and again."""
    assert decide_consequences(StaleCompaction("rounds_changed"), 1, forced=False) == Consequences(
        2, is_failure=True, answers=True
    )


@pytest.mark.parametrize("reason", ["stopped", "interpreter_exit"])
def test_an_end_is_no_failure_whatever_was_discarded_before(reason: str) -> None:
    """Nor is it one more in the row."""
    outcome = decide_consequences(StaleCompaction(reason), 5, forced=False)
    assert (outcome.discards, outcome.is_failure) == (5, False)


@pytest.mark.parametrize("error", [OSError(), LeasedElsewhere(1), LimitReached(1)], ids=repr)
def test_what_is_no_discard_leaves_their_number(error: Exception) -> None:
    """Only a success ends the row."""
    assert decide_consequences(error, 2, forced=True).discards == 2
