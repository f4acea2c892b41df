"""Compactors on a host's executor: no thread of their own, no slot that waits, and an end when the executor ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from scene import (
    CONFIG,
    PRICES,
    ROLE,
    SOON,
    Calls,
    Heard,
    ManualExecutor,
    add_round,
    end_of,
    in_thread,
    memory_of,
    of_kind,
    on_command,
)
from threads import wait_until

from compactor import (
    CompactionFailed,
    CompactorConfig,
    ContextCompactor,
    DaemonExecutor,
    Discarded,
    Event,
    Failed,
    Published,
    State,
    Stopped,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import Memory

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as running:
        yield running


@pytest.mark.slow
def test_two_thousand_compactors_add_no_thread_and_all_finish() -> None:
    """Eight workers serve them all."""
    memory = Memory("s")
    for number in range(4):
        memory.finish_round(memory.create_round(f"question {number} " * 20))
    config = CompactorConfig(threshold=2, retain_recent=1)
    before, most = {*threading.enumerate()}, 0

    def summarizer(_request: object) -> str:
        nonlocal most
        most = max(most, threading.active_count())
        return PRICES

    with ThreadPoolExecutor(8) as executor:
        compactors = [
            ContextCompactor(config, summarizer, memory.rounds_getter(""), executor=executor, counter=len)
            for _ in range(2_000)
        ]
        for compactor in compactors:
            compactor.start()
        assert all(compactor.wait_idle(SOON) for compactor in compactors)
        assert {end_of(compactor) for compactor in compactors} == {3}
        names = {thread.name for thread in {*threading.enumerate()} - before}
        assert [name for name in names if name.startswith("compactor-") and name != "compactor-timer"] == []
        assert most <= len(before) + 8 + 1, "the pool's, and one timer"
        assert all(compactor.stop() for compactor in compactors)


def test_it_works_on_the_executors_threads(pool: ThreadPoolExecutor) -> None:
    """Cycles and their hooks."""
    threads: set[str] = set()
    memory = memory_of(10)

    def hook(_event: Event) -> None:
        threads.add(threading.current_thread().name)

    with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), executor=pool, on_event=hook) as it:
        assert it.wait_idle(SOON)
        assert end_of(it) == 7
    assert threads == {"pool_0"}


def test_a_back_off_occupies_no_slot(pool: ThreadPoolExecutor) -> None:
    """While one waits for its endpoint, the only worker serves another."""
    clock, heard = FakeClock(), Heard()
    failing = ContextCompactor.for_role(
        memory_of(10), ROLE, CONFIG, ScriptedSummarizer([OSError()]), executor=pool, clock=clock, on_event=heard
    )
    failing.start()
    heard.until(Failed)
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, ScriptedSummarizer(), executor=pool) as other:
        assert other.wait_idle(SOON)
        assert end_of(other) == 7
    assert failing.status().state is State.BACKING_OFF
    clock.advance(1)
    assert failing.wait_idle(SOON)
    assert end_of(failing) == 7


def test_a_call_that_hangs_is_given_up_though_it_keeps_its_slot(pool: ThreadPoolExecutor) -> None:
    """Nobody can take it back; who waits is told in time, and the rest works when it ends."""
    clock, calls, heard = FakeClock(), Calls(), Heard()
    compactor = ContextCompactor.for_role(
        memory_of(10), ROLE, CONFIG, calls, executor=pool, clock=clock, on_event=heard
    )
    compactor.start()
    assert calls.begun.acquire(timeout=SOON)
    clock.advance(CONFIG.call_timeout)
    assert compactor.status().state is State.BACKING_OFF
    assert compactor.stop(0) is False
    compactor.start()
    calls.go_on.set()
    heard.until(Discarded)
    assert compactor.wait_idle(SOON)
    assert end_of(compactor) == 7


def test_a_hanging_call_of_one_does_not_hold_up_the_deadlines_of_others() -> None:
    """One timer thread serves them all."""
    config = CONFIG.copy_with(call_timeout=0.02)
    with ThreadPoolExecutor(3) as executor:
        calls, heard = [Calls() for _ in range(3)], Heard()
        compactors = [
            ContextCompactor.for_role(memory_of(10), ROLE, config, call, executor=executor, on_event=heard)
            for call in calls
        ]
        for compactor in compactors:
            compactor.start()
        heard.until(Failed, 3)
        for call in calls:
            call.go_on.set()
        assert all(compactor.stop(SOON) for compactor in compactors)


# The executor's end


def test_an_executor_that_is_shut_down_stops_the_compactor_with_an_event() -> None:
    """The chat goes on; nothing is raised into it."""
    memory, executor = memory_of(6), ThreadPoolExecutor(1)
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), executor=executor)
    compactor.start()
    assert compactor.wait_idle(SOON)
    executor.shutdown()
    add_round(memory)
    assert compactor.status().state is State.IDLE, "nothing is due"
    add_round(memory)
    assert compactor.status().state is State.STOPPED
    assert of_kind(compactor.events, Stopped)[0].facts() == {
        "session": memory.session_id, "role": ROLE, "generation": 0, "seconds": 0.0, "reason": "executor_shut_down",
    }  # fmt: skip
    add_round(memory)
    assert len(of_kind(compactor.events, Stopped)) == 1
    assert compactor.wait_idle(SOON) is False
    assert compactor.stop(SOON)
    with pytest.raises(CompactionFailed, match="the compactor's executor is shut down; give it another"):
        compactor.compact_now(SOON)


def test_a_job_that_a_shut_down_cancels_stops_the_compactor_too() -> None:
    """It would be waited for until the end of time."""
    memory, calls = memory_of(10), Calls()
    with ThreadPoolExecutor(1) as executor:
        busy = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, calls, executor=executor)
        busy.start()
        assert calls.begun.acquire(timeout=SOON)
        heard = Heard()
        waits = ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), executor=executor, on_event=heard)
        waits.start()
        asking = in_thread(waits.compact_now)
        wait_until(lambda: bool(waits._runner._waiters))
        executor.shutdown(wait=False, cancel_futures=True)
        heard.until(Stopped)
        with pytest.raises(CompactionFailed):
            asking()
        assert waits.status().state is State.STOPPED
        calls.go_on.set()
        assert busy.stop(SOON)


def test_hooks_do_not_run_under_the_executors_own_lock() -> None:
    """One that submits something to it would wait for ever."""
    executor = ManualExecutor()
    clock, heard = FakeClock(), Heard()
    compactor, *_ = on_command(memory_of(10), ScriptedSummarizer(), executor=executor, clock=clock, on_event=heard)
    compactor.start()
    executor.shutdown(cancel_futures=True)
    assert heard.events == []
    clock.advance(0)
    assert [type(event) for event in heard.events] == [Stopped]


def test_a_job_that_is_cancelled_after_stop_is_nobodys_business() -> None:
    """No event: it was not wanted any more."""
    compactor, executor, clock = on_command(memory_of(10), ScriptedSummarizer())
    compactor.start()
    assert compactor.stop(0)
    executor.shutdown(cancel_futures=True)
    clock.advance(1)
    assert compactor.events == ()


def test_an_executor_that_refuses_for_another_reason_is_asked_again() -> None:
    """A full queue is no shut-down."""

    class Full(ManualExecutor):
        full = True

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            if self.full:
                raise OverflowError("the queue is full")
            return super().submit(fn, *args, **kwargs)

    executor = Full()
    compactor, _, clock = on_command(memory_of(10), ScriptedSummarizer(), executor=executor)
    compactor.start()
    assert compactor.status().state is State.BACKING_OFF
    assert of_kind(compactor.events, Failed)[0].error == "OverflowError"
    executor.full = False
    clock.advance(1)
    executor.run_all()
    assert end_of(compactor) == 7


def test_an_executor_that_returns_no_future_will_do() -> None:
    """All that is asked of it is ``submit``."""

    class Plain:
        def __init__(self) -> None:
            self.jobs: list[Callable[[], object]] = []

        def submit(self, fn: Callable[[], object], /) -> None:
            self.jobs.append(fn)

    executor = Plain()
    compactor, *_ = on_command(memory_of(10), ScriptedSummarizer(), executor=executor)
    compactor.start()
    while executor.jobs:
        executor.jobs.pop(0)()
    assert end_of(compactor) == 7


def test_a_job_that_was_stopped_before_it_began_does_nothing() -> None:
    """Also when it has been started anew since: only the new run counts."""
    summarizer = ScriptedSummarizer()
    compactor, executor, _ = on_command(memory_of(10), summarizer)
    compactor.start()
    assert compactor.stop(0), "nobody had taken it up"
    assert compactor.status().state is State.STOPPED
    compactor.start()
    assert len(executor.jobs) == 2
    executor.run_next()
    assert summarizer.requests == []
    executor.run_all()
    assert len(of_kind(compactor.events, Published)) == 1


# -- daemon threads -----------------------------------------------------------------------------------------------------


def test_a_daemon_executor_is_an_executor_whose_threads_no_exit_waits_for() -> None:
    """At most so many threads, started with the jobs; results, errors and cancelling as of any executor."""
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def hang() -> str:
        begun.release()
        assert go_on.wait(SOON)
        return threading.current_thread().name

    with DaemonExecutor(2) as pool:
        hanging = [pool.submit(hang), pool.submit(hang)]
        for _ in hanging:
            assert begun.acquire(timeout=SOON)
        waiting = pool.submit(pow, 2, exp=5)
        assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("compactor-pool"))
        assert not waiting.running()
        go_on.set()
        assert len({future.result(SOON) for future in hanging}) == 2
        assert waiting.result(SOON) == 32
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result(SOON)
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(hang)


def test_what_a_daemon_executor_has_not_begun_can_be_cancelled() -> None:
    """Who waits for it is told."""
    go_on, begun = threading.Event(), threading.Event()
    pool = DaemonExecutor(1)
    pool.submit(lambda: (begun.set(), go_on.wait(SOON)))
    assert begun.wait(SOON)
    waiting = pool.submit(int)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    go_on.set()


@pytest.mark.slow
def test_exit_waits_for_no_summarizer_on_a_daemon_executor() -> None:
    """The process ends though the model does not answer."""
    code = """if True:
        import threading
        from compactor import CompactorConfig, ContextCompactor, DaemonExecutor
        from memory import Memory
        asked = threading.Event()
        def model(request):
            asked.set()
            threading.Event().wait()
        memory = Memory()
        for number in range(9):
            memory.append({"role": "user", "content": f"question {number} " * 50})
            memory.append({"role": "assistant", "content": f"answer {number} " * 50})
        compactor = ContextCompactor.for_role(
            memory, "assistant", CompactorConfig(threshold=1), model, executor=DaemonExecutor(1)
        )
        compactor.start()
        assert asked.wait(60)
        print("over", flush=True)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout) == (0, "over\n"), ended.stderr
