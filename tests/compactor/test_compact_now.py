"""``compact_now``: a run that nobody's trigger, back-off or hold keeps from beginning, and whose outcome its caller gets."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from scene import CONFIG, ROLE, SOON, Heard, end_of, in_thread, joined, memory_of, of_kind, on_command, prices
from threads import wait_until

from compactor import CompactionFailed, CompactorConfig, ContextCompactor, Discarded, Skip, State, SummaryRejected
from compactor.testing import FakeClock, ScriptedSummarizer

pytestmark = pytest.mark.timeout(30)


def test_compact_now_ignores_the_trigger() -> None:
    """It covers all closed rounds but those retained, and returns the compaction."""
    with ContextCompactor.for_role(memory_of(5), ROLE, CONFIG, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 0
        made = compactor.compact_now(SOON)
        assert made is not None
        assert made == compactor.get_compaction()
        assert made.end_index == 2
        assert compactor.compact_now(SOON) is None, "there is nothing to do"
        assert compactor.status().skip_reason is Skip.NOTHING_NEW


@pytest.mark.parametrize("total", [0, 3])
def test_compact_now_is_none_where_there_is_nothing_to_cover(total: int) -> None:
    """No round, or only those retained."""
    with ContextCompactor.for_role(memory_of(total), ROLE, CONFIG, ScriptedSummarizer()) as compactor:
        assert compactor.compact_now(SOON) is None


@pytest.mark.slow
def test_compact_now_is_none_while_compaction_is_disabled() -> None:
    """Nothing is compacted then, whoever asks."""
    config = CompactorConfig(enabled=False)
    assert ContextCompactor.for_role(memory_of(30), ROLE, config, ScriptedSummarizer()).compact_now(SOON) is None


def test_compact_now_works_before_start_and_leaves_no_thread() -> None:
    """For a host that compacts only when it says so."""
    compactor = ContextCompactor.for_role(memory_of(10), "on-demand", CONFIG, ScriptedSummarizer())
    made = compactor.compact_now(SOON)
    assert made is not None
    assert made.end_index == 7
    assert joined("on-demand")
    assert compactor.status().state is State.NEW
    assert compactor.compact_now(SOON) is None
    assert joined("on-demand")


def test_compact_now_works_after_stop() -> None:
    """Likewise."""
    compactor = ContextCompactor.for_role(memory_of(10), "after-stop", CONFIG, ScriptedSummarizer())
    compactor.stop()
    assert compactor.compact_now(SOON) is not None
    assert joined("after-stop")
    assert compactor.status().state is State.STOPPED


def test_compact_now_joins_a_run_in_flight() -> None:
    """No second call is made, and both get the one result."""
    summarizer = ScriptedSummarizer().hold()
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer) as compactor, summarizer:
        assert summarizer.started.wait(SOON)
        waiting = [in_thread(lambda: compactor.compact_now(SOON)) for _ in range(2)]
        wait_until(lambda: len(compactor._runner._waiters) == 2)
        summarizer.release()
        results = [wait() for wait in waiting]
    assert results == [compactor.get_compaction()] * 2
    assert len(summarizer.requests) == 1


def test_compact_now_goes_on_where_the_run_it_joined_had_nothing_to_do() -> None:
    """A run that the trigger stops is not the answer to who ignores the trigger."""
    inside, leave = threading.Event(), threading.Event()

    def trigger(_view: object) -> bool:
        inside.set()
        leave.wait(SOON)
        return False

    options: dict[str, Any] = {"trigger": trigger}
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, ScriptedSummarizer(), **options) as compactor:
        assert inside.wait(SOON)
        waiting = in_thread(lambda: compactor.compact_now(SOON))
        wait_until(lambda: bool(compactor._runner._waiters))
        leave.set()
        assert waiting().end_index == 7


def test_compact_now_raises_what_went_wrong_and_why() -> None:
    """The published one still stands; the cause is there for who wants it."""
    error = ConnectionError("SECRET")
    summarizer = ScriptedSummarizer([error, ""])
    config = CONFIG.copy_with(summary_attempts=1)
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, config, summarizer)
    with pytest.raises(CompactionFailed, match=r"no compaction: ConnectionError; what was published before") as caught:
        compactor.compact_now(SOON)
    assert caught.value.__cause__ is error
    with pytest.raises(CompactionFailed, match="the summarizer's answer contains no text") as caught:
        compactor.compact_now(SOON)
    assert isinstance(caught.value.__cause__, SummaryRejected)


def test_compact_now_gives_up_in_time_and_the_run_goes_on() -> None:
    """``CompactionTimeout`` is a ``TimeoutError``."""
    summarizer = ScriptedSummarizer()
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer)
    with summarizer:
        with pytest.raises(TimeoutError, match=r"no compaction within 0\.01 seconds; the run goes on"):
            compactor.compact_now(0.01)
        assert not compactor._runner._waiters
        assert summarizer.started.wait(SOON)
        waiting = in_thread(lambda: compactor.compact_now(SOON))
        wait_until(lambda: bool(compactor._runner._waiters))
    assert waiting() is not None
    assert len(summarizer.requests) == 1


def test_an_interrupted_compact_now_leaves_no_waiter_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while it waits: nothing is compacted on behalf of someone who has gone."""
    compactor, *_ = on_command(memory_of(10), ScriptedSummarizer())

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "exception", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compactor.compact_now()
    assert not compactor._runner._waiters


def test_compact_now_ignores_a_back_off_and_a_success_ends_it() -> None:
    """Who asks wants it now."""
    memory, clock = memory_of(10), FakeClock()
    summarizer = ScriptedSummarizer([OSError(), OSError()])
    compactor, executor, clock = on_command(memory, summarizer)
    compactor.start()
    executor.run_all()
    waiting = in_thread(lambda: compactor.compact_now(SOON))
    executor.run_coming()
    with pytest.raises(CompactionFailed):
        waiting()
    assert compactor.status().failures == 2
    clock.advance(1.9)
    assert compactor.status().state is State.BACKING_OFF, "the timer of the first one does not end the second"
    waiting = in_thread(lambda: compactor.compact_now(SOON))
    executor.run_coming()
    assert waiting().end_index == 7
    executor.run_all()
    assert compactor.status().state is State.IDLE
    assert compactor.status().failures == 0
    clock.advance(1_000)
    assert executor.run_all() == 0, "the timers of back-offs that were cut short do nothing"


def test_a_compact_now_that_finds_nothing_ends_the_back_off() -> None:
    """Then there is nothing left to retry either."""
    memory = memory_of(10)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer([OSError()]))
    compactor.start()
    executor.run_all()
    for number in range(1, 9):
        memory.finish_round(f"r{number}", state="failed")
    waiting = in_thread(lambda: compactor.compact_now(SOON))
    executor.run_coming()
    assert waiting() is None
    assert compactor.status().state is State.IDLE
    assert compactor.status().failures == 1
    assert compactor.status().last_error == "OSError", "until something succeeds"


def test_compact_now_ignores_the_hold_of_a_revert() -> None:
    """The trigger waits for a newer round; who asks does not."""
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, ScriptedSummarizer())
    compactor.compact_now(SOON)
    compactor.revert()
    assert end_of(compactor) == 0
    compactor.compact_now(SOON)
    assert end_of(compactor) == 7


def test_stop_releases_who_waits_in_compact_now() -> None:
    """With an error rather than never."""
    summarizer = ScriptedSummarizer()
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer)
    with summarizer:
        waiting = in_thread(compactor.compact_now)
        assert summarizer.started.wait(SOON)
        compactor.stop(0)
        with pytest.raises(CompactionFailed, match="the compactor was stopped"):
            waiting()
    assert compactor.stop(SOON)


def test_a_compact_now_while_stopping_gets_a_run_of_its_own() -> None:
    """It publishes what the stopped one has brought."""
    summarizer = ScriptedSummarizer([prices("Paid for"), prices("Paid for again")])
    compactor = ContextCompactor.for_role(memory_of(10), "late-asker", CONFIG, summarizer)
    with summarizer:
        compactor.start()
        assert summarizer.started.wait(SOON)
        compactor.stop(0)
        waiting = in_thread(lambda: compactor.compact_now(SOON))
        wait_until(lambda: bool(compactor._runner._waiters))
    assert waiting().summary == prices("Paid for")
    assert of_kind(compactor.events, Discarded)[0].reason == "stopped"
    assert compactor.status().state is State.STOPPED
    assert joined("late-asker")


def test_a_start_during_compact_now_goes_on_with_its_thread_and_its_back_off() -> None:
    """It does not start a second run beside it, and a failure is not retried at once."""
    summarizer, heard = ScriptedSummarizer([OSError()]), Heard()
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, clock=FakeClock(), on_event=heard)
    with summarizer:
        waiting = in_thread(lambda: compactor.compact_now(SOON))
        assert summarizer.started.wait(SOON)
        compactor.start()
        assert compactor.status().state is State.COMPACTING
    with pytest.raises(CompactionFailed):
        waiting()
    assert compactor.wait_idle(SOON) is False
    assert compactor.status().state is State.BACKING_OFF
    assert (len(summarizer.requests), summarizer.most_in_flight) == (1, 1)
    assert compactor.stop(SOON)
