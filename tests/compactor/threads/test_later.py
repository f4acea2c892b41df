"""One call to come: in the place of the one before it, and for nobody who is gone."""

from __future__ import annotations

import gc
import threading

import pytest

from compactor.testing import FakeClock
from compactor.timers import Timer

pytestmark = pytest.mark.timeout(30)


class Owner:
    def __init__(self, clock: FakeClock) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.later = Timer(clock, threading.Condition(), self.called)

    def called(self, *args: object) -> None:
        self.calls.append(args)


def test_the_call_is_made_in_time_with_what_was_given() -> None:
    """Once."""
    clock = FakeClock()
    owner = Owner(clock)
    owner.later.schedule(10, "this")
    clock.advance(9)
    assert owner.calls == []
    clock.advance(1)
    clock.advance(100)
    assert owner.calls == [("this",)]


def test_a_call_takes_the_place_of_the_one_before() -> None:
    """Whichever of them would have come first."""
    clock = FakeClock()
    owner = Owner(clock)
    for seconds in (10, 5, 20):
        owner.later.schedule(seconds, seconds)
    assert clock.waiting == [20]
    clock.advance(20)
    assert owner.calls == [(20,)]


def test_none_means_no_call() -> None:
    """Neither the one that was to come, nor another."""
    clock = FakeClock()
    owner = Owner(clock)
    owner.later.schedule(None)
    owner.later.schedule(10)
    owner.later.schedule(None)
    assert clock.waiting == []


def test_cancelling_leaves_a_call_alone_that_was_asked_for_later() -> None:
    """Who stops cancels what there was when he stopped, not what came after a new start."""
    clock = FakeClock()
    owner = Owner(clock)
    owner.later.schedule(10, "before")
    cancel = owner.later.cancel
    assert cancel is not None
    owner.later.schedule(20, "after")
    cancel()
    assert clock.waiting == [20]
    assert owner.later.cancel is not None
    owner.later.cancel()
    assert clock.waiting == []


@pytest.mark.slow
def test_nobody_is_kept_alive_by_a_call_to_come() -> None:
    """It comes to nothing."""
    clock = FakeClock()
    owner = Owner(clock)
    calls = owner.calls
    owner.later.schedule(10)
    del owner
    gc.collect()
    clock.advance(10)
    assert calls == []
