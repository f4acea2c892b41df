"""One timer thread for every compactor of the process: it calls in time, in order, and nothing kills it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta

import pytest
from scene import SOON, PanicException

from compactor.timers import SYSTEM_CLOCK, Clock, SystemClock

pytestmark = [pytest.mark.timeout(30)]

FAR = 1e6


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException]]:
    """What was reported as uncaught in a thread."""
    found: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_type))
    return found


def called_soon(clock: SystemClock, seconds: float = 0) -> bool:
    done = threading.Event()
    clock.call_later(seconds, done.set)
    return done.wait(SOON)


def test_it_tells_the_time(clock: SystemClock) -> None:
    """Time of day in UTC, and seconds that never go back."""
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= time.monotonic()
    assert clock.monotonic() <= clock.monotonic()


def test_calls_are_made_in_the_order_they_are_due(clock: SystemClock) -> None:
    """Whatever the order they were asked for in; equal ones in that order."""
    calls: list[str] = []
    done = threading.Event()
    held = threading.Event()
    clock.call_later(-900, lambda: held.wait(SOON))
    clock.call_later(-100, done.set)
    clock.call_later(-200, lambda: calls.append("second"))
    clock.call_later(-300, lambda: calls.append("first"))
    held.set()
    assert done.wait(SOON)
    assert calls == ["first", "second"]


def test_a_call_is_not_made_early(clock: SystemClock) -> None:
    """Not before its seconds have passed."""
    times: list[float] = []
    done = threading.Event()
    began = time.monotonic()
    clock.call_later(0.02, lambda: (times.append(time.monotonic()), done.set()))
    assert done.wait(SOON)
    assert times[0] >= began + 0.02


def test_a_nearer_call_comes_before_the_one_that_is_waited_for(clock: SystemClock) -> None:
    """The thread is woken when a new call is the next."""
    clock.call_later(FAR, lambda: None)
    assert called_soon(clock)


def test_a_cancelled_call_is_not_made(clock: SystemClock) -> None:
    """Cancelling it again, or after it was made, does nothing."""
    calls: list[int] = []
    cancel = clock.call_later(0.005, lambda: calls.append(1))
    cancel()
    cancel()
    late = clock.call_later(0, lambda: calls.append(2))
    assert called_soon(clock, 0.01)
    late()
    assert calls == [2]


def test_cancelled_calls_do_not_pile_up(clock: SystemClock) -> None:
    """Each call to a model leaves one behind; most are cancelled long before they are due."""
    keep = clock.call_later(FAR, lambda: None)
    for _ in range(1_000):
        clock.call_later(FAR, lambda: None)()
    assert len(clock._calls) <= 4
    keep()
    assert called_soon(clock)


def test_a_cancelled_call_that_comes_due_is_passed_over(clock: SystemClock) -> None:
    """It may still stand before others."""
    calls: list[int] = []
    held = threading.Event()
    clock.call_later(0, lambda: held.wait(SOON))
    for _ in range(5):
        clock.call_later(0.002, lambda: calls.append(1))
    cancel = clock.call_later(0.001, lambda: calls.append(2))
    cancel()
    held.set()
    assert called_soon(clock, 0.003)
    assert calls == [1] * 5
    assert not clock._callbacks


@pytest.mark.parametrize("error", [ValueError("x"), PanicException(), KeyboardInterrupt()], ids=repr)
def test_a_call_that_raises_does_not_end_the_timer(
    clock: SystemClock, error: BaseException, reported: list[type[BaseException]]
) -> None:
    """It is reported as any uncaught exception of a thread is; all others are still called."""

    def raising() -> None:
        raise error

    clock.call_later(0, raising)
    assert called_soon(clock)
    assert reported == [type(error)]


def test_a_call_may_ask_for_another(clock: SystemClock) -> None:
    """No lock is held while it is made."""
    done = threading.Event()
    clock.call_later(0, lambda: clock.call_later(0, done.set))
    assert done.wait(SOON)


@pytest.mark.parametrize("seconds", [-1.0, 0.0])
def test_what_is_due_already_is_called_at_once(clock: SystemClock, seconds: float) -> None:
    """But on the timer's thread."""
    names: list[str] = []
    done = threading.Event()
    clock.call_later(seconds, lambda: (names.append(threading.current_thread().name), done.set()))
    assert done.wait(SOON)
    assert names == ["compactor-timer"]


def test_a_call_in_a_thousand_years_is_no_error(clock: SystemClock) -> None:
    """Locks take at most so many seconds at once."""
    clock.call_later(1e12, lambda: None)
    clock.call_later(float("inf"), lambda: None)
    assert called_soon(clock)


def test_there_is_one_thread_and_it_is_a_daemon(clock: SystemClock) -> None:
    """It starts with the first call, and never keeps the interpreter from exiting."""
    assert clock._thread is None
    assert called_soon(clock)
    thread = clock._thread
    assert thread is not None
    assert called_soon(clock)
    assert clock._thread is thread
    assert thread.daemon


def test_a_timer_that_could_not_be_started_is_started_by_the_next_call(
    clock: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process at its limit of threads recovers."""
    with monkeypatch.context() as patched:

        def refused(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError):
            clock.call_later(0, lambda: None)
    assert called_soon(clock)


@pytest.mark.slow
def test_nothing_of_a_call_that_was_made_is_held(clock: SystemClock) -> None:
    """Or the last compactor that used the timer would never be freed."""

    class Callback:
        def __call__(self) -> None:
            done.set()

    done = threading.Event()
    callback = Callback()
    watched = weakref.ref(callback)
    freed = threading.Event()
    weakref.finalize(callback, freed.set)
    clock.call_later(0, callback)
    del callback
    assert done.wait(SOON)
    gc.collect()
    assert freed.wait(SOON)
    assert watched() is None


def test_the_system_clock_is_one_for_all() -> None:
    """And a ``Clock``."""
    clock: Clock = SYSTEM_CLOCK
    assert isinstance(clock, SystemClock)
