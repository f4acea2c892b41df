"""Looks that call the host's own functions: on one thread for all compactors, which a function that hangs leaves soon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from scene import CONFIG, ROLE, SOON, Heard, memory_of
from threads import wait_until

from compactor import ContextCompactor, DaemonExecutor, Discarded, Failed, Memory, View, when
from compactor.testing import FakeClock, ScriptedSummarizer

pytestmark = pytest.mark.timeout(60)

#: How long a host's function holds up the others.
HOST_EVALUATION_SECONDS = 0.05


class Condition:
    """A host's own condition: never due. It lets a test wait until it is asked, and may be held up."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.threads: list[threading.Thread] = []

    def __call__(self, view: View) -> bool:
        self.threads.append(threading.current_thread())
        self.asked.set()
        assert self.gate.wait(SOON)
        return False


def compactor_with(condition: Callable[[View], bool], clock: FakeClock, **more: Any) -> ContextCompactor:
    options = {"trigger": when(condition), "clock": clock} | more
    return ContextCompactor.for_role(memory_of(3), ROLE, CONFIG, ScriptedSummarizer(), **options)


def count_evaluation_threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == "compactor-host-evaluations"])


def with_own_condition(evaluate: Callable[[], None], clock: FakeClock) -> ContextCompactor:
    return compactor_with(lambda _view: evaluate() or False, clock)


def with_own_getter(evaluate: Callable[[], None], clock: FakeClock) -> ContextCompactor:
    return ContextCompactor(CONFIG, ScriptedSummarizer(), lambda: evaluate() or [], clock=clock)


def with_own_header(evaluate: Callable[[], None], clock: FakeClock) -> ContextCompactor:
    options: dict[str, Any] = {"header_tokens": lambda: evaluate() or 0, "clock": clock}
    return ContextCompactor.for_role(Memory(), ROLE, CONFIG, ScriptedSummarizer(), **options)


@pytest.mark.parametrize("make", [with_own_condition, with_own_getter, with_own_header])
def test_any_number_of_compactors_look_on_one_thread(
    make: Callable[[Callable[[], None], FakeClock], ContextCompactor],
) -> None:
    """None that is not due has a thread, whichever function of the host's its evaluations call."""
    evaluations: list[int] = []
    compactors = [make(lambda: evaluations.append(count_evaluation_threads()), FakeClock()) for _ in range(100)]
    wait_until(lambda: count_evaluation_threads() <= 1)  # one that hung in a test before may still be about to end
    before = set(threading.enumerate())
    for compactor in compactors:
        compactor.start()
    for compactor in compactors:
        assert compactor.wait_idle(SOON)
    assert len(evaluations) >= 100
    assert max(evaluations) == 1
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"compactor-host-evaluations"}
    assert all(compactor.stop(SOON) for compactor in compactors)


def test_a_function_that_hangs_holds_up_the_others_no_longer_than_that() -> None:
    """It keeps its thread, which ends when it returns; another takes over what waits and what comes."""
    clock, hanging, others = FakeClock(), Condition(), [Condition() for _ in range(3)]
    hanging.gate.clear()
    with compactor_with(hanging, clock) as hung:
        assert hanging.asked.wait(SOON)
        compactors = [compactor_with(one, clock) for one in others]
        for compactor in compactors[:2]:
            compactor.start()
        clock.advance(HOST_EVALUATION_SECONDS - 0.01)
        assert not any(one.asked.is_set() for one in others)
        clock.advance(0.02)
        compactors[2].start()
        for compactor in compactors:
            assert compactor.wait_idle(SOON)
        assert {one.threads[0] for one in others}.isdisjoint(hanging.threads)
        assert not hung.wait_idle(0)
        hanging.gate.set()
        assert hung.wait_idle(SOON)
        hanging.threads[0].join(SOON)
        assert not hanging.threads[0].is_alive()
        assert all(compactor.stop(SOON) for compactor in compactors)


def test_a_function_that_hangs_where_nobody_waits_leaves_the_next_look_its_own_thread() -> None:
    """The one that takes its place starts when there is something to do."""
    clock, hanging, other = FakeClock(), Condition(), Condition()
    hanging.gate.clear()
    with compactor_with(hanging, clock):
        assert hanging.asked.wait(SOON)
        clock.advance(HOST_EVALUATION_SECONDS)
        with compactor_with(other, clock) as compactor:
            assert compactor.wait_idle(SOON)
        hanging.gate.set()


def test_stop_waits_for_its_own_look_alone() -> None:
    """While a function hangs it says that a worker is left. A compactor whose evaluation waits behind stops at once."""
    clock, hanging, behind = FakeClock(), Condition(), Condition()
    hanging.gate.clear()
    first, second = compactor_with(hanging, clock), compactor_with(behind, clock)
    first.start()
    assert hanging.asked.wait(SOON)
    second.start()
    assert second.stop(SOON)
    assert not first.stop(0)
    hanging.gate.set()
    assert first.stop(SOON)
    assert not behind.asked.is_set()


def test_a_function_that_raises_is_a_failure_of_its_compactor_alone() -> None:
    """It is an event as anywhere, and the thread looks for the next one."""

    def fail(_view: View) -> bool:
        raise LookupError("the host's")

    clock, heard, other = FakeClock(), Heard(), Condition()
    failing, healthy = compactor_with(fail, clock, on_event=heard), compactor_with(other, clock)
    with failing, healthy:
        assert heard.until(Failed).error == "LookupError"
        assert healthy.wait_idle(SOON)
        assert other.asked.is_set()


def test_a_function_that_hangs_is_given_up_at_its_deadline() -> None:
    """Its compactor tells the failure, though the shared thread is another by then."""
    clock, heard, hanging = FakeClock(), Heard(), Condition()
    hanging.gate.clear()
    with compactor_with(hanging, clock, on_event=heard) as compactor:
        assert hanging.asked.wait(SOON)
        clock.advance(CONFIG.call_timeout)
        assert heard.until(Failed).error == "CompactionTimeout"
        assert not compactor.wait_idle(0)
        hanging.gate.set()
        heard.until(Discarded)


def test_an_executors_thread_that_was_replaced_ends_with_its_job() -> None:
    """Also if it has none at that moment: it may do one more. A thread that is not the executor's is left alone."""
    worker = DaemonExecutor(1, "replaced")
    worker.replace_thread(threading.current_thread())
    first = worker.submit(threading.current_thread).result(SOON)
    worker.replace_thread(first)
    worker.submit(threading.current_thread).result(SOON)
    first.join(SOON)
    assert not first.is_alive()
    assert worker.submit(threading.current_thread).result(SOON) is not first
    worker.shutdown()
