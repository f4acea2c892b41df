"""What must not break the worker: threads that cannot be had, journals that refuse, the interpreter's end, and races."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
from scene import (
    CONFIG,
    PRICES,
    ROLE,
    SOON,
    Heard,
    ManualExecutor,
    add_round,
    end_of,
    in_thread,
    joined,
    memory_of,
    of_kind,
    on_command,
)

from compactor import CompactionFailed, CompactorConfig, ContextCompactor, Discarded, Published, State
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import Memory, StaleCompaction

pytestmark = pytest.mark.timeout(30)


def test_a_thread_that_cannot_be_started_is_a_failure_that_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process at its limit of threads recovers without a restart."""
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, ScriptedSummarizer(), clock=FakeClock())
    with monkeypatch.context() as patched:

        def refused(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", refused)
        compactor.start()
        assert not compactor.wait_idle(SOON)
        assert compactor.status().state is State.BACKING_OFF
        assert compactor.status().last_error == "RuntimeError"
        with pytest.raises(CompactionFailed):
            compactor.compact_now(SOON)
    compactor._runner._clock.advance(60)  # type: ignore[attr-defined]
    assert compactor.wait_idle(SOON)
    assert end_of(compactor) == 7
    assert compactor.stop(SOON)


def test_neither_a_thread_nor_a_timer_to_be_had_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays idle and tries again when something happens."""

    class Clock(FakeClock):
        def call_later(self, seconds: float, callback: Any) -> Any:
            if broken:
                raise RuntimeError("can't start new thread")
            return super().call_later(seconds, callback)

    broken = True
    compactor, executor, _ = on_command(memory_of(10), ScriptedSummarizer(), clock=Clock())
    compactor.start()
    executor.run_all()
    assert compactor.status().state is State.IDLE
    assert compactor.status().last_error == "RuntimeError"
    broken = False
    compactor.notify_rounds_changed()
    executor.run_all()
    assert end_of(compactor) == 7


def test_a_back_off_that_is_over_before_it_has_begun_is_not_waited_for() -> None:
    """A short wait, or a machine that slept: the timer may be faster than the thread that set it."""

    class Racing(FakeClock):
        def call_later(self, seconds: float, callback: Any) -> Any:
            if seconds < CONFIG.call_timeout:
                callback()
                return lambda: None
            return super().call_later(seconds, callback)

    compactor, executor, _ = on_command(memory_of(10), ScriptedSummarizer([OSError()]), clock=Racing())
    compactor.start()
    executor.run_all()
    assert compactor.status().state is State.IDLE
    assert end_of(compactor) == 7


def test_a_journal_that_cannot_be_read_does_not_end_the_worker() -> None:
    """The run ends as a failure; the next one is asked again."""
    memory = memory_of(10)
    inner, broken = memory.journal(ROLE), True

    class Journal:
        def read(self) -> Any:
            if broken:
                raise OSError("disk")
            return inner.read()

        publish, revert = inner.publish, inner.revert

    compactor, executor, _ = on_command(memory, ScriptedSummarizer(), journal=Journal())
    compactor.start()
    executor.run_all()
    broken = False
    assert compactor.status().state is State.IDLE
    assert compactor.status().last_error == "OSError"
    compactor.notify_rounds_changed()
    executor.run_all()
    assert end_of(compactor) == 7


def test_a_journal_that_always_refuses_is_not_asked_for_ever() -> None:
    """A result that is stale is made again once; if it is again, that is a failure and backs off."""
    memory = memory_of(10)
    inner = memory.journal(ROLE)

    class Journal:
        read, revert = inner.read, inner.revert

        def publish(self, *_: object, **__: object) -> Any:
            raise StaleCompaction("generation")

    summarizer = ScriptedSummarizer()
    compactor, executor, clock = on_command(memory, summarizer, journal=Journal())
    compactor.start()
    assert executor.run_all() == 2
    assert len(summarizer.requests) == 1, "the question is the same"
    assert compactor.status().state is State.BACKING_OFF
    assert "generation" in str(compactor.status().last_error)
    clock.advance(1)
    assert executor.run_all() == 1, "no second try at once any more"


def test_rounds_with_new_ids_at_every_reading_are_not_paid_for_again_and_again() -> None:
    """Nothing can be published then; it fails, backs off and says why."""

    class Item:
        def __init__(self, number: int) -> None:
            self.id, self.user_query, self.post_list = object(), f"question {number} " * 20, ()

    executor, clock, summarizer = ManualExecutor(), FakeClock(), ScriptedSummarizer()
    compactor = ContextCompactor(
        CONFIG, summarizer, lambda: [Item(n) for n in range(10)], executor=executor, clock=clock, rng=lambda: 1.0
    )
    compactor.start()
    executor.run_all()
    assert len(summarizer.requests) == 1
    assert compactor.status().state is State.BACKING_OFF
    assert "rounds_changed" in str(compactor.status().last_error)


def test_at_interpreter_exit_nothing_is_published_and_nothing_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A discarded result is made again at once, which at exit would never end."""
    monkeypatch.setattr("compactor.summarize.interpreter_is_exiting", lambda: True)
    summarizer = ScriptedSummarizer()
    compactor, executor, _ = on_command(memory_of(10), summarizer)
    compactor.start()
    assert executor.run_all() == 1
    assert of_kind(compactor.events, Discarded)[0].reason == "interpreter_exit"
    assert summarizer.requests == []
    assert compactor.status().failures == 0
    waiting = in_thread(lambda: compactor.compact_now(SOON))
    executor.run_coming()
    with pytest.raises(CompactionFailed, match="interpreter_exit"):
        waiting()


def test_an_answer_that_comes_at_interpreter_exit_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads' modules may be half gone."""

    def summarizer(request: object) -> str:
        monkeypatch.setattr("compactor.summarize.interpreter_is_exiting", lambda: True)
        return PRICES

    compactor, executor, _ = on_command(memory_of(10), summarizer)
    compactor.start()
    executor.run_all()
    assert compactor.get_compaction() is None
    assert of_kind(compactor.events, Discarded)[0].reason == "interpreter_exit"


def test_eight_threads_of_notifications_and_writers_lose_nothing_and_call_once_at_a_time() -> None:
    """Whatever the interleaving: all is looked at in the end, and one call is in flight."""
    memory, summarizer = Memory("s"), ScriptedSummarizer()
    lock, barrier = threading.Lock(), threading.Barrier(8)

    def storm() -> None:
        barrier.wait(SOON)
        for _ in range(6):
            with lock:
                add_round(memory)
            compactor.notify_rounds_changed()

    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        for wait in [in_thread(storm) for _ in range(8)]:
            wait()
        assert compactor.wait_idle(SOON)
        total = len(memory.get_role_rounds(ROLE)[0])
        assert total == 48
        assert total - end_of(compactor) <= CONFIG.threshold
    assert summarizer.most_in_flight == 1
    sent = [round_.id for request in summarizer.requests for round_ in request.rounds]
    assert sent == [f"r{n}" for n in range(1, len(sent) + 1)], "each round once, in order"


def test_starts_and_stops_from_many_threads_leave_one_thread_or_none() -> None:
    """And never two calls at once."""
    memory, summarizer = memory_of(10), ScriptedSummarizer(default=OSError())
    compactor = ContextCompactor.for_role(memory, "juggled", CONFIG, summarizer, clock=FakeClock())
    barrier = threading.Barrier(8)

    def juggle(first: int) -> None:
        barrier.wait(SOON)
        for turn in range(40):
            if (turn + first) % 3 == 0:
                compactor.stop(SOON)
            elif (turn + first) % 3 == 1:
                compactor.start()
            else:
                compactor.notify_rounds_changed()

    for wait in [in_thread(lambda first=first: juggle(first)) for first in range(8)]:  # type: ignore[misc]
        wait()
    assert compactor.stop(SOON)
    assert joined("juggled")
    assert compactor.status().state is State.STOPPED
    with compactor:
        assert compactor.wait_idle(SOON) is False
        assert compactor.status().state is State.BACKING_OFF
    assert summarizer.most_in_flight == 1


def test_reverts_from_another_thread_never_leave_a_stale_compaction() -> None:
    """Every publication and every revert is one generation, in one order."""
    memory, heard = memory_of(2), Heard()
    config = CompactorConfig(threshold=0, retain_recent=0)
    with ContextCompactor.for_role(memory, ROLE, config, ScriptedSummarizer(), on_event=heard) as compactor:
        done = threading.Event()

        def reverting() -> int:
            count = 0
            while not done.is_set():
                with suppress(StaleCompaction):  # another was published between the look and the revert
                    count += compactor.revert() is not None
            return count

        wait = in_thread(reverting)
        for _ in range(40):
            add_round(memory)
        done.set()
        wait()
        add_round(memory)
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 43
    publications = [event.generation for event in of_kind(heard.events, Published)]
    assert publications == sorted(set(publications))
    assert compactor.status().generation == publications[-1]


def test_a_stop_that_races_the_end_of_a_run_is_never_lost() -> None:
    """Either the result was published before, or it is discarded; the compactor stops in both."""
    for _ in range(30):
        memory, summarizer = memory_of(10), ScriptedSummarizer()
        compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer)
        summarizer.hold()
        compactor.start()
        assert summarizer.started.wait(SOON)
        barrier = threading.Barrier(2)

        def release(barrier: threading.Barrier = barrier, summarizer: ScriptedSummarizer = summarizer) -> None:
            barrier.wait(SOON)
            summarizer.release()

        wait = in_thread(release)
        barrier.wait(SOON)
        assert compactor.stop(SOON)
        wait()
        assert compactor.status().state is State.STOPPED
        assert end_of(compactor) == 7 or of_kind(compactor.events, Discarded)
