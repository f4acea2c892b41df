"""The doubles that ship with the library, for hosts' tests as well as ours."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from scene import SOON, in_thread

from compactor import Summary, SummaryRequest
from compactor.testing import FakeClock, ScriptedSummarizer

pytestmark = pytest.mark.timeout(30)

REQUEST = SummaryRequest(start_index=1, end_index=7)


def test_answers_are_given_in_turn_and_then_the_default() -> None:
    """Texts and summaries as they are, functions of the request, exceptions raised."""
    summary = Summary("two", {"input_tokens": 1})
    summarizer = ScriptedSummarizer(["one", summary, lambda request: f"three to {request.end_index}", OSError("four")])
    assert summarizer(REQUEST) == "one"
    assert summarizer(REQUEST) is summary
    assert summarizer(REQUEST) == "three to 7"
    with pytest.raises(OSError, match="four"):
        summarizer(REQUEST)
    assert summarizer(REQUEST) == "Summary of rounds 1-7."
    assert summarizer.requests == [REQUEST] * 5
    assert ScriptedSummarizer(default="always")(REQUEST) == "always"


def test_a_default_may_be_an_exception_or_a_function() -> None:
    """A model that is down, say."""
    with pytest.raises(KeyboardInterrupt):
        ScriptedSummarizer(default=KeyboardInterrupt())(REQUEST)
    assert ScriptedSummarizer(default=lambda request: request.role)(REQUEST) == ""


def test_held_calls_wait_until_they_are_released() -> None:
    """``started`` is set as soon as one has begun; calls in flight are counted."""
    summarizer = ScriptedSummarizer()
    with summarizer as held:
        assert held is summarizer
        assert not summarizer.started.is_set()
        waits = [in_thread(lambda: summarizer(REQUEST)) for _ in range(3)]
        assert summarizer.started.wait(SOON)
        assert summarizer.in_flight >= 1, "none has ended"
    assert [wait() for wait in waits] == ["Summary of rounds 1-7."] * 3
    assert summarizer.in_flight == 0
    assert 1 <= summarizer.most_in_flight <= 3
    assert summarizer(REQUEST)
    summarizer.hold()
    assert not summarizer.started.is_set()
    summarizer.release()
    assert summarizer(REQUEST)


def test_a_call_that_raises_is_no_longer_in_flight() -> None:
    """The count is right whatever happens."""
    summarizer = ScriptedSummarizer([OSError()])
    with pytest.raises(OSError):
        summarizer(REQUEST)
    assert (summarizer.in_flight, summarizer.most_in_flight) == (0, 1)


def test_time_stands_still_until_it_is_advanced() -> None:
    """Both of its hands move together."""
    clock = FakeClock()
    noon = FakeClock(datetime(2030, 5, 1, 12, tzinfo=UTC))
    assert clock.now() == datetime(2026, 1, 1, tzinfo=UTC)
    before = clock.monotonic()
    for moved in (clock, noon):
        moved.advance(90.5)
    assert clock.monotonic() - before == 90.5
    assert noon.now() == datetime(2030, 5, 1, 12, tzinfo=UTC) + timedelta(seconds=90.5)


def test_time_does_not_go_back() -> None:
    """A mistake in a test is told."""
    with pytest.raises(ValueError, match="time does not go back, by 1 seconds"):
        FakeClock().advance(-1)


def test_calls_that_come_due_are_made_in_order_in_the_callers_thread() -> None:
    """Each at its own time; those beyond wait."""
    clock, calls = FakeClock(), []

    def note(name: str) -> None:
        calls.append((name, clock.monotonic(), threading.current_thread()))

    clock.call_later(5, lambda: note("third"))
    clock.call_later(2, lambda: note("first"))
    clock.call_later(2, lambda: note("second"))
    clock.call_later(5.1, lambda: note("later"))
    assert clock.pending == [2, 2, 5, 5.1]
    clock.advance(5)
    here = threading.current_thread()
    assert calls == [("first", 2, here), ("second", 2, here), ("third", 5, here)]
    assert clock.pending == [pytest.approx(0.1)]
    assert clock.monotonic() == 5


def test_a_call_made_by_another_is_made_in_the_same_advance() -> None:
    """If it comes due within it."""
    clock, calls = FakeClock(), []
    clock.call_later(1, lambda: clock.call_later(1, lambda: calls.append(clock.monotonic())))
    clock.advance(1.5)
    assert calls == []
    clock.advance(0.5)
    assert calls == [2]
    clock.call_later(0, lambda: calls.append(-1))
    clock.advance(0)
    assert calls == [2, -1]


def test_a_cancelled_call_is_not_made() -> None:
    """Again, or afterwards, it does nothing."""
    clock, calls = FakeClock(), []
    cancel, made = clock.call_later(1, lambda: calls.append(1)), clock.call_later(1, lambda: calls.append(2))
    cancel()
    cancel()
    clock.advance(1)
    made()
    assert calls == [2]
    assert clock.pending == []
