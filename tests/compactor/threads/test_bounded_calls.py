"""A call is waited for no longer than its deadline, and goes on counting until it has ended."""

from __future__ import annotations

import threading

import pytest
from scene import SOON, in_thread

from compactor import CompactionTimeout
from compactor.testing import FakeClock
from compactor.timers import MAX_ABANDONED, BoundedCalls, Call

pytestmark = pytest.mark.timeout(30)


def never(_call: Call) -> None:
    raise AssertionError("it was in time")


def test_what_a_call_in_time_returns_is_returned() -> None:
    """And its deadline is none any more."""
    clock = FakeClock()
    calls = BoundedCalls(clock)
    assert calls.make(lambda: (calls.in_flight, clock.waiting), 30, never) == (1, [30])
    assert (calls.in_flight, clock.waiting) == (0, [])


def test_what_a_call_raises_is_raised() -> None:
    """It has ended all the same."""
    clock = FakeClock()
    calls = BoundedCalls(clock)
    with pytest.raises(ZeroDivisionError):
        calls.make(lambda: 1 / 0, 30, never)
    assert (calls.in_flight, clock.waiting) == (0, [])


def test_at_its_deadline_somebody_is_told_once_while_it_goes_on() -> None:
    """It has not ended then; who is told later than that finds that it has."""
    clock, found = FakeClock(), list[tuple[Call, bool]]()
    calls = BoundedCalls(clock)

    def slow() -> str:
        clock.advance(29)
        assert found == []
        clock.advance(1)
        clock.advance(100)
        return "late"

    def expired(call: Call) -> None:
        found.append((call, call.ended))

    assert calls.make(slow, 30, expired) == "late"
    ((call, had_ended),) = found
    assert (had_ended, call.ended) == (False, True)


def test_with_too_many_in_flight_no_further_one_is_made() -> None:
    """Until one of them has ended."""
    calls, made = BoundedCalls(FakeClock()), list[int]()

    def one_more(depth: int) -> None:
        made.append(depth)
        calls.make(lambda: one_more(depth + 1), 30, never)

    with pytest.raises(CompactionTimeout, match=f"{MAX_ABANDONED} calls that were given up have not ended"):
        one_more(0)
    assert made == list(range(MAX_ABANDONED + 1))
    assert calls.make(lambda: calls.in_flight, 30, never) == 1


def test_who_waits_for_the_end_hears_of_it() -> None:
    """With the call ended, and not counted any more."""
    calls, wake, begun, go_on = BoundedCalls(FakeClock()), threading.Condition(), threading.Event(), threading.Event()
    calls.renew(wake)

    def slow() -> bool:
        begun.set()
        return go_on.wait(SOON)

    answered = in_thread(lambda: calls.make(slow, 30, never))
    assert begun.wait(SOON)
    with wake:
        assert calls.in_flight == 1
        go_on.set()
        assert wake.wait(SOON)
        assert calls.in_flight == 0
    assert answered()


def test_a_call_that_was_in_the_middle_when_all_became_new_ends_with_the_new_lock() -> None:
    """As in a forked child, where the lock of the parent may stay locked for ever."""
    calls = BoundedCalls(FakeClock())
    before = threading.Condition(threading.Lock())
    calls.renew(before)

    def forked() -> str:
        before.acquire()
        calls.renew(threading.Condition())
        return "done"

    assert calls.make(forked, 30, never) == "done"
    assert calls.in_flight == 0
