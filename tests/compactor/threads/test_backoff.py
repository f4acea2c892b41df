"""After a failure: how long to wait, when the circuit opens, and that it all ends by itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scene import CONFIG, PRICES, ManualExecutor, add_round, end_of, memory_of, of_kind, on_command

from compactor import CompactorConfig, ContextCompactor, Failed, Published, Round, State, SummarizerError
from compactor.testing import FakeClock, ScriptedSummarizer

pytestmark = pytest.mark.timeout(30)

STEADY = CompactorConfig(threshold=7, backoff_initial=1.0, backoff_max=60.0, circuit_breaker_failures=20)


def waits(
    failures: int, config: CompactorConfig = STEADY, jitter: float = 1.0, error: Exception | None = None
) -> list[float]:
    """Return for how long a compactor backs off after each of so many failures in a row."""
    summarizer = ScriptedSummarizer([error or OSError()] * failures)
    compactor, executor, clock = on_command(memory_of(10), summarizer, config, rng=lambda: jitter, history=failures * 9)
    compactor.start()
    for _ in range(failures):
        executor.run_all()
        clock.advance(config.circuit_breaker_reset)
    return [event.retry_in for event in of_kind(compactor.events, Failed)]


def test_the_wait_doubles_up_to_the_longest() -> None:
    """1, 2, 4, ... ``backoff_max``."""
    assert waits(9) == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@settings(max_examples=10)
@given(jitter=st.floats(0, 1), failures=st.integers(1, 19))
def test_jitter_takes_off_up_to_half(jitter: float, failures: int) -> None:
    """Many compactors of one endpoint do not come back at once, and none comes back at once."""
    for longest, wait in zip(waits(failures), waits(failures, jitter=jitter), strict=True):
        assert longest / 2 <= wait <= longest
        assert wait == pytest.approx(longest * (0.5 + jitter / 2))


def test_thousands_of_failures_do_not_overflow() -> None:
    """A machine may be left alone over a weekend."""
    config = CompactorConfig(threshold=7, circuit_breaker_failures=10_000)
    compactor, executor, _ = on_command(memory_of(10), ScriptedSummarizer([OSError()]), config)
    compactor._runner.failures = 3_000
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Failed)[0].retry_in == 60.0


def test_the_circuit_opens_after_so_many_failures_in_a_row() -> None:
    """Then attempts are ``circuit_breaker_reset`` apart, each a trial."""
    config = CompactorConfig(threshold=7, circuit_breaker_failures=3, circuit_breaker_reset=300.0)
    assert waits(4, config) == [1, 2, 300, 300]


@pytest.mark.parametrize(
    ("asked", "wait"),
    [(None, 1.0), (0, 1.0), (0.2, 1.0), (30, 30.0), (30.5, 30.5), (10**12, 60.0), (float("inf"), 60.0)],
)
def test_the_endpoints_wish_is_respected(asked: float | None, wait: float) -> None:
    """``retry_after`` is the least, up to ``backoff_max``: one absurd wish silences nobody for a day."""
    assert waits(1, error=SummarizerError("429", retry_after=asked)) == [wait]


@pytest.mark.parametrize("asked", ["30", float("nan"), -5, True, [30], b"7", "soon"], ids=repr)
def test_what_is_no_number_of_seconds_is_passed_over(asked: Any) -> None:
    """Anybody's exception may have a ``retry_after``: a header's text, say."""
    assert waits(1, error=SummarizerError("429", retry_after=asked)) == [1.0]


def test_answers_that_are_refused_become_ever_rarer() -> None:
    """Each is paid, and a model that refuses goes on to. An outage ends by itself, so its attempts stay as they are."""
    config = CompactorConfig(
        threshold=7, circuit_breaker_failures=1, circuit_breaker_reset=60.0, summary_attempts=1, call_timeout=9_999.0
    )
    refused = ScriptedSummarizer(default="I cannot help with that.")
    compactor, executor, clock = on_command(memory_of(10), refused, config, rng=lambda: 1.0, history=99)
    compactor.start()
    for _ in range(9):
        executor.run_all()
        clock.advance(60.0 * 64)
    waited = [event.retry_in for event in of_kind(compactor.events, Failed)]
    assert waited == [60 * 2**doublings for doublings in (0, 1, 2, 3, 4, 5, 6, 6, 6)]
    assert waits(3, config) == [60, 60, 60]
    assert f"Failed 9 times in a row: {compactor.status().last_error}." in compactor.describe()
    assert "An extract stands for the newest rounds." in compactor.describe()


# In a compactor


def test_a_failure_is_retried_also_when_no_new_round_arrives() -> None:
    """With growing distance, until it succeeds; nothing but time passes."""
    summarizer = ScriptedSummarizer([OSError(), OSError(), OSError()])
    compactor, executor, clock = on_command(memory_of(10), summarizer, CONFIG)
    compactor.start()
    executor.run_all()
    for wait, tried in ((1, 1), (2, 2), (4, 3)):
        assert compactor.status().state is State.BACKING_OFF
        assert clock.pending[0] == wait
        clock.advance(wait - 0.001)
        assert (executor.run_all(), len(summarizer.requests)) == (0, tried)
        clock.advance(0.001)
        executor.run_all()
        assert len(summarizer.requests) == tried + 1
    assert end_of(compactor) == 7
    assert compactor.status().failures == 0


def test_new_rounds_do_not_cut_a_back_off_short() -> None:
    """They are looked at when it is over."""
    memory, summarizer = memory_of(10), ScriptedSummarizer([OSError()])
    compactor, executor, clock = on_command(memory, summarizer)
    compactor.start()
    executor.run_all()
    for _ in range(5):
        add_round(memory)
    assert (executor.run_all(), len(summarizer.requests)) == (0, 1)
    clock.advance(1)
    executor.run_all()
    assert end_of(compactor) == 12


def test_the_circuit_opens_and_half_opens_by_itself() -> None:
    """An endpoint that is down for an hour costs a dozen calls."""
    config = CompactorConfig(threshold=7, circuit_breaker_failures=2, circuit_breaker_reset=300.0)
    summarizer = ScriptedSummarizer([OSError()] * 4)
    compactor, executor, clock = on_command(memory_of(10), summarizer, config)
    compactor.start()
    executor.run_all()
    assert compactor.status().circuit_open is False
    clock.advance(1)
    executor.run_all()
    assert compactor.status().circuit_open is True
    for tried in (2, 3):
        clock.advance(299)
        assert (executor.run_all(), len(summarizer.requests)) == (0, tried)
        clock.advance(1)
        executor.run_all()
        assert len(summarizer.requests) == tried + 1, "one trial"
    clock.advance(300)
    executor.run_all()
    assert compactor.status().circuit_open is False
    assert end_of(compactor) == 7


def test_the_failure_is_told_with_its_numbers() -> None:
    """What failed, how often in a row, and when it is tried again."""
    config = CompactorConfig(threshold=7, circuit_breaker_failures=2, summary_attempts=1)
    compactor, executor, clock = on_command(memory_of(10), ScriptedSummarizer([OSError(), ""]), config)
    compactor.start()
    executor.run_all()
    clock.advance(1)
    executor.run_all()
    first, second = (event.facts() for event in of_kind(compactor.events, Failed))
    assert first == {
        "session": compactor.events[0].session, "role": "Planner", "generation": 0, "seconds": 0.0, "error": "OSError",
        "failures": 1, "retry_in": 1.0, "circuit_open": False, "kind": "other",
    }  # fmt: skip
    assert second == first | {
        "error": "empty",
        "kind": "rejected",
        "failures": 2,
        "retry_in": 60.0,
        "circuit_open": True,
    }


def test_each_publication_of_a_backlog_is_a_success() -> None:
    """An endpoint that answers most requests does not open the circuit, however long the backlog is."""

    def answers() -> Iterator[Any]:
        for part in range(5):
            yield from (f"{PRICES} Part {part}.", OSError())

    config = CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=900, circuit_breaker_failures=2)
    compactor, executor, clock = on_command(memory_of(70), ScriptedSummarizer(answers()), config)
    compactor.start()
    executor.run_all()
    while clock.pending:
        assert compactor.status().failures == 1
        clock.advance(clock.pending[0])
        executor.run_all()
    assert len(of_kind(compactor.events, Failed)) == 5
    assert len(of_kind(compactor.events, Published)) > 5
    assert end_of(compactor) == 70


def test_a_getter_that_fails_is_retried_like_a_summarizer() -> None:
    """Whatever a cycle calls may fail."""
    memory, broken = memory_of(10), [OSError("db")]

    def getter() -> list[Round]:
        if broken:
            raise broken.pop()
        return list(memory.get_role_rounds("Planner")[0])

    executor, clock = ManualExecutor(), FakeClock()
    compactor = ContextCompactor(CONFIG, ScriptedSummarizer(), getter, executor=executor, clock=clock, rng=lambda: 1.0)
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Failed)[0].error == "OSError"
    clock.advance(1)
    executor.run_all()
    assert end_of(compactor) == 7


def test_a_back_off_keeps_no_dropped_compactor_alive() -> None:
    """It ends for nobody."""
    compactor, executor, clock = on_command(memory_of(10), ScriptedSummarizer([OSError()]))
    compactor.start()
    executor.run_all()
    assert clock.pending == [1]
    dropped = weakref.ref(compactor)
    del compactor
    gc.collect()
    assert dropped() is None
    clock.advance(1)


def test_a_back_off_that_stop_cut_short_does_not_end_the_next_one() -> None:
    """There is one at a time: what stop() found is cancelled, and what comes after a new start stays."""
    compactor, executor, clock = on_command(memory_of(10), ScriptedSummarizer([OSError(), OSError()]))
    compactor.start()
    executor.run_all()
    assert compactor.stop(0)
    assert clock.pending == []
    compactor.start()
    executor.run_all()
    assert clock.pending == [2]
    clock.advance(1)
    assert compactor.status().state is State.BACKING_OFF
    clock.advance(1)
    executor.run_all()
    assert end_of(compactor) == 7
