"""The chat never waits: a turn takes as long with a model that hangs, fails or drips as with none."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
from scene import LONGEST_TURN, ROLES, SOON, least_of_three, no_collections, turn

from compactor import CompactorConfig, ContextCompactor
from compactor.testing import ScriptedSummarizer
from memory import Memory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TURNS = 300


def times_of(summarizer: Callable[..., object] | None, turns: int = TURNS) -> list[float]:
    """Return how long each turn took, in seconds."""
    memory = Memory("s")
    config = CompactorConfig(threshold=7, retain_recent=3, backoff_initial=0.01, backoff_max=0.01)
    compactors = []
    if summarizer is not None:
        compactors = [ContextCompactor.for_role(memory, role, config, summarizer) for role in ROLES]
    for compactor in compactors:
        compactor.start()
    turn(memory, 0)  # loads the tokenizer
    times = []
    with no_collections():
        for number in range(1, turns + 1):
            began = time.perf_counter()
            turn(memory, number)
            times.append(time.perf_counter() - began)
    for compactor in compactors:
        compactor.stop(0)
    return times


def test_no_turn_waits_for_a_summarizer_that_hangs() -> None:
    """300 turns of create, post, finish, get_role_rounds and compose: none over 50 ms."""
    summarizer = ScriptedSummarizer()
    with summarizer:
        times = least_of_three(lambda: times_of(summarizer))
        assert summarizer.started.wait(SOON)
        assert summarizer.in_flight >= 2, "both roles' calls hang through all of it"
    assert max(times) < LONGEST_TURN


@pytest.mark.parametrize("kind", ["fails at once", "answers at once"])
def test_no_turn_waits_for_one_that_does_not_hang_either(kind: str) -> None:
    """Compaction in the background, whatever comes of it."""
    summarizer = ScriptedSummarizer(default=OSError() if kind == "fails at once" else None)
    times = least_of_three(lambda: times_of(summarizer))
    assert summarizer.requests
    assert max(times) < LONGEST_TURN


def test_a_hanging_summarizer_costs_a_turn_next_to_nothing() -> None:
    """The median turn with one that hangs is the median turn without any, but for a notification."""
    with ScriptedSummarizer() as summarizer:
        ratios = []
        for _ in range(3):
            with_it, without = times_of(summarizer, 60), times_of(None, 60)
            ratios.append(statistics.median(with_it) / statistics.median(without))
    assert min(ratios) < 2
