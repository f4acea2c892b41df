"""NEW, IDLE, COMPACTING, BACKING_OFF, STOPPING, STOPPED: what takes a compactor from one to the next, and who may wait."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from scene import (
    CONFIG,
    ROLE,
    SOON,
    Calls,
    Heard,
    ManualExecutor,
    add_round,
    end_of,
    in_thread,
    kinds,
    memory_of,
    of_kind,
    on_command,
)

from compactor import (
    CompactionFailed,
    CompactionTimeout,
    CompactorConfig,
    ContextCompactor,
    SummaryRejected,
    SummaryRequest,
    View,
)
from compactor import runner as runner_module
from compactor.acceptance import Source
from compactor.background import State
from compactor.events import Discarded, Failed, Published, Skip, Started
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage, Memory, StaleCompaction
from memory.events import Event

pytestmark = pytest.mark.timeout(30)


def threads_of(role: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"compactor-{role}"]


def joined(role: str) -> bool:
    """Wait until no thread of *role*'s compactor is left."""
    for thread in threads_of(role):
        thread.join(SOON)
    return threads_of(role) == []


# start and stop


def test_the_states_are_those_of_the_architecture_page() -> None:
    """From new to stopped, and on again."""
    memory, summarizer, clock, heard = memory_of(10), ScriptedSummarizer([OSError()]), FakeClock(), Heard()
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, clock=clock, on_event=heard)
    assert compactor.status().state is State.NEW
    with summarizer:
        compactor.start()
        assert summarizer.started.wait(SOON)
        assert compactor.status().state is State.COMPACTING
    heard.until(Failed)
    assert compactor.wait_idle(SOON) is False
    assert compactor.status().state is State.BACKING_OFF
    with summarizer:
        clock.advance(60)
        assert summarizer.started.wait(SOON)
        assert compactor.status().state is State.COMPACTING
    assert compactor.wait_idle(SOON)
    assert compactor.status().state is State.IDLE
    with summarizer:
        for _ in range(5):
            add_round(memory)
        assert summarizer.started.wait(SOON)
        assert compactor.stop(0) is False
        assert compactor.status().state is State.STOPPING
    assert compactor.stop(SOON)
    assert compactor.status().state is State.STOPPED
    compactor.start()
    assert compactor.wait_idle(SOON)
    assert compactor.status().state is State.IDLE
    assert compactor.stop(SOON)


def test_starting_twice_is_starting_once() -> None:
    """One thread, one cycle."""
    summarizer = ScriptedSummarizer().hold()
    with ContextCompactor.for_role(memory_of(10), "twice", CONFIG, summarizer) as compactor, summarizer:
        assert summarizer.started.wait(SOON)
        compactor.start()
        assert len(threads_of("twice")) == 1
    assert summarizer.most_in_flight == 1


def test_stopping_twice_is_stopping_once() -> None:
    """Also before the first start."""
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, ScriptedSummarizer())
    assert compactor.stop()
    assert compactor.stop()
    with compactor:
        assert compactor.wait_idle(SOON)
    assert compactor.stop(0)
    assert end_of(compactor) == 7


def test_a_stopped_compactor_looks_at_nothing_until_it_is_started_again() -> None:
    """What it published stays; what happened meanwhile is looked at on start."""
    memory, summarizer = memory_of(10), ScriptedSummarizer()
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer)
    with compactor:
        assert compactor.wait_idle(SOON)
    for _ in range(5):
        add_round(memory)
    assert compactor.wait_idle(SOON) is False
    assert (end_of(compactor), len(summarizer.requests)) == (7, 1)
    with compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 12


def test_stop_leaves_no_thread() -> None:
    """True means that no worker is left."""
    compactor = ContextCompactor.for_role(memory_of(10), "leaver", CONFIG, ScriptedSummarizer())
    compactor.start()
    assert compactor.wait_idle(SOON)
    assert len(threads_of("leaver")) == 1
    assert compactor.stop(SOON)
    assert threads_of("leaver") == []


def test_stop_between_a_notification_and_its_thread_leaves_none_either() -> None:
    """The run that was about to be handed over finds that it is not wanted, and starts no thread."""
    compactor = ContextCompactor.for_role(memory_of(10), "between", CONFIG, ScriptedSummarizer())
    with compactor._runner._wake:
        compactor._runner._state = State.IDLE
        run = compactor._runner._claim()
    assert compactor.stop(SOON)
    compactor._runner._dispatch(run)
    assert threads_of("between") == []
    assert compactor.status().state is State.STOPPED


def test_stop_does_not_wait_longer_than_it_is_told() -> None:
    """A call in flight cannot be stopped; its answer is discarded when it comes, with an event."""
    memory, summarizer, heard = memory_of(10), ScriptedSummarizer(), Heard()
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, on_event=heard)
    with summarizer:
        compactor.start()
        assert summarizer.started.wait(SOON)
        assert compactor.stop(0.01) is False
        assert compactor.status().state is State.STOPPING
    assert heard.until(Discarded).reason == "stopped"
    assert compactor.stop(SOON)
    assert compactor.get_compaction() is None
    assert compactor.status().failures == 0
    assert kinds(compactor.events)[-1] == "discarded"


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e300])
def test_stop_may_wait_for_as_long_as_it_takes(timeout: float | None) -> None:
    """However large a number says so."""
    summarizer = ScriptedSummarizer()
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer)
    with summarizer:
        compactor.start()
        assert summarizer.started.wait(SOON)
        stopped = in_thread(lambda: compactor.stop(timeout))
    assert stopped() is True


def test_a_start_while_stopping_waits_for_the_abandoned_call() -> None:
    """Two calls of one role are never in flight at once. The old one's answer is paid for: it is not published then, and
    the new run publishes it without asking again."""
    memory, summarizer, heard = memory_of(10), ScriptedSummarizer(["Old.", "New."]), Heard()
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, on_event=heard)
    with summarizer:
        compactor.start()
        assert summarizer.started.wait(SOON)
        assert compactor.stop(0) is False
        compactor.start()
        assert compactor.status().state is State.STOPPING
        for _ in range(3):
            add_round(memory)
        assert len(summarizer.requests) == 1
    heard.until(Published)
    assert compactor.wait_idle(SOON)
    assert summarizer.most_in_flight == 1
    assert of_kind(compactor.events, Discarded)[0].reason == "stopped"
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert (compaction.summary, compaction.end_index, len(summarizer.requests)) == ("Old.", 7, 1)
    assert kinds(heard.events).index("discarded") < kinds(heard.events).index("published")
    assert compactor.stop(SOON)


def test_a_stop_after_such_a_start_takes_it_back() -> None:
    """The last word counts."""
    summarizer = ScriptedSummarizer()
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer)
    with summarizer:
        compactor.start()
        assert summarizer.started.wait(SOON)
        compactor.stop(0)
        compactor.start()
        compactor.stop(0)
    assert compactor.stop(SOON)
    assert compactor.status().state is State.STOPPED
    assert len(summarizer.requests) == 1


def test_the_context_manager_stops_when_its_block_raises() -> None:
    """And the error goes on."""
    compactor = ContextCompactor.for_role(memory_of(1), "with", CONFIG, ScriptedSummarizer())

    def block() -> None:
        with compactor as entered:
            assert entered is compactor
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert compactor.status().state is State.STOPPED
    assert threads_of("with") == []


@pytest.mark.parametrize("kind", [Started, Published])
def test_stop_from_a_hook_does_not_wait_and_takes_effect(kind: type[Event]) -> None:
    """It cannot wait for itself; what it interrupts is discarded."""
    stopped: list[bool] = []

    def hook(event: Event) -> None:
        if isinstance(event, kind):
            stopped.append(compactor.stop(None))

    compactor = ContextCompactor.for_role(memory_of(10), "hooked", CONFIG, ScriptedSummarizer(), on_event=hook)
    compactor.start()
    assert joined("hooked")
    assert stopped == [False]
    assert compactor.status().state is State.STOPPED
    assert end_of(compactor) == (7 if kind is Published else 0)


def test_stop_from_a_hook_in_the_hosts_thread_says_that_nothing_is_left() -> None:
    """There is no worker to wait for."""
    memory, stopped = memory_of(10), []
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    executor.run_all()
    compactor.on_event(lambda event: stopped.append(compactor.stop(None)))
    compactor.revert()
    assert stopped == [True]


def test_a_compactor_that_nobody_holds_takes_its_thread_along() -> None:
    """Forgetting stop() leaks nothing."""
    compactor = ContextCompactor.for_role(memory_of(10), "dropped", CONFIG, ScriptedSummarizer())
    compactor.start()
    assert compactor.wait_idle(SOON)
    watched = weakref.ref(compactor)
    del compactor
    gc.collect()
    assert watched() is None
    assert joined("dropped")


def test_a_back_off_does_not_keep_a_dropped_compactor_alive() -> None:
    """A minute of waiting for an endpoint that nobody needs any more."""
    clock, heard = FakeClock(), Heard()
    calls: list[int] = []

    def summarizer(_request: object) -> str:
        calls.append(1)
        raise OSError

    memory = memory_of(10)
    compactor = ContextCompactor.for_role(memory, "weak", CONFIG, summarizer, clock=clock, on_event=heard)
    compactor.start()
    heard.until(Failed)
    assert compactor.wait_idle(SOON) is False
    watched = weakref.ref(compactor)
    del compactor, memory
    gc.collect()
    assert watched() is None
    assert joined("weak")
    clock.advance(60)
    assert len(calls) == 1


# wait_idle


def test_wait_idle_is_true_once_everything_was_looked_at() -> None:
    """And false before: not started, pending, running, backing off."""
    compactor, executor, clock = on_command(memory_of(10), ScriptedSummarizer([OSError()]))
    assert compactor.wait_idle(0) is False, "nobody has looked at the rounds that are there"
    compactor.start()
    assert compactor.wait_idle(0) is False
    executor.run_all()
    assert compactor.status().state is State.BACKING_OFF
    assert compactor.wait_idle(SOON) is False, "and it does not wait for the back-off"
    clock.advance(1)
    executor.run_next()
    assert compactor.wait_idle(0) is False, "a publication may make another due"
    executor.run_next()
    assert compactor.wait_idle(0) is True
    compactor.notify_rounds_changed()
    assert compactor.wait_idle(0) is False


def test_wait_idle_gives_up_in_time() -> None:
    """A call in flight may take longer."""
    summarizer = ScriptedSummarizer().hold()
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer) as compactor, summarizer:
        assert summarizer.started.wait(SOON)
        assert compactor.wait_idle(0.01) is False


# compact_now


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
        assert compactor.status().why_idle is Skip.NOTHING_NEW


@pytest.mark.parametrize("total", [0, 3])
def test_compact_now_is_none_where_there_is_nothing_to_cover(total: int) -> None:
    """No round, or only those retained."""
    with ContextCompactor.for_role(memory_of(total), ROLE, CONFIG, ScriptedSummarizer()) as compactor:
        assert compactor.compact_now(SOON) is None


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
        with compactor._runner._wake:
            compactor._runner._wake.wait_for(lambda: len(compactor._runner._waiters) == 2, SOON)
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
        with compactor._runner._wake:
            compactor._runner._wake.wait_for(lambda: bool(compactor._runner._waiters), 0.01)
        leave.set()
        assert waiting().end_index == 7


def test_compact_now_raises_what_went_wrong_and_why() -> None:
    """The published one still stands; the cause is there for who wants it."""
    error = ConnectionError("SECRET")
    summarizer = ScriptedSummarizer([error, ""])
    config = CONFIG.merged(summary_attempts=1)
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, config, summarizer)
    with pytest.raises(CompactionFailed, match=r"no compaction: ConnectionError; what was published before") as caught:
        compactor.compact_now(SOON)
    assert caught.value.__cause__ is error
    with pytest.raises(CompactionFailed, match="the summarizer's answer holds no text") as caught:
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
    assert waiting() is not None
    assert len(summarizer.requests) == 1


def test_an_interrupted_compact_now_leaves_no_waiter_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while it waits: nothing is compacted on behalf of someone who has gone."""
    compactor, *_ = on_command(memory_of(10), ScriptedSummarizer())

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(compactor._runner._wake, "wait_for", interrupted)
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
    summarizer = ScriptedSummarizer(["Paid for.", "Paid for again."])
    compactor = ContextCompactor.for_role(memory_of(10), "late-asker", CONFIG, summarizer)
    with summarizer:
        compactor.start()
        assert summarizer.started.wait(SOON)
        compactor.stop(0)
        waiting = in_thread(lambda: compactor.compact_now(SOON))
        with compactor._runner._wake:
            compactor._runner._wake.wait_for(lambda: bool(compactor._runner._waiters), 0.01)
    assert waiting().summary == "Paid for."
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


# A call that does not end


def test_a_call_is_given_up_at_its_deadline_and_what_it_answers_is_discarded() -> None:
    """It counts as a failure; another thread takes the place of the one that hangs."""
    memory, summarizer, clock, heard = memory_of(10), ScriptedSummarizer(["Late.", "In time."]), FakeClock(), Heard()
    config = CONFIG.merged(call_timeout=30.0)
    with ContextCompactor.for_role(memory, ROLE, config, summarizer, clock=clock, on_event=heard) as compactor:
        with summarizer:
            assert summarizer.started.wait(SOON)
            clock.advance(29.9)
            assert compactor.status().state is State.COMPACTING
            clock.advance(0.2)
            assert heard.until(Failed).error == "CompactionTimeout"
            assert compactor.wait_idle(SOON) is False
            assert compactor.status().state is State.BACKING_OFF
            assert "did not answer within call_timeout=30 seconds" in str(compactor.status().last_error)
        assert heard.until(Discarded).reason == "late"
        assert compactor.get_compaction() is None
        clock.advance(1)
        assert compactor.wait_idle(SOON)
        assert compactor.get_compaction().summary == "In time."  # type: ignore[union-attr]


def test_a_late_failure_is_discarded_too() -> None:
    """The deadline has counted it already."""
    summarizer, clock, heard = ScriptedSummarizer([OSError()]), FakeClock(), Heard()
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, clock=clock, on_event=heard) as compactor:
        with summarizer:
            assert summarizer.started.wait(SOON)
            clock.advance(CONFIG.call_timeout)
            heard.until(Failed)
        heard.until(Discarded)
        assert compactor.status().failures == 1


def test_compact_now_is_told_of_the_deadline() -> None:
    """As a time-out."""
    summarizer, clock = ScriptedSummarizer(), FakeClock()
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, clock=clock)
    with summarizer:
        waiting = in_thread(lambda: compactor.compact_now(SOON))
        assert summarizer.started.wait(SOON)
        clock.advance(CONFIG.call_timeout)
        with pytest.raises(CompactionTimeout, match="did not answer within call_timeout"):
            waiting()
        assert compactor.stop(0) is False, "a worker is left: the one that hangs"
    assert compactor.stop(SOON)


def test_the_next_run_begins_while_a_call_that_was_given_up_still_hangs() -> None:
    """That is what the deadline is for."""
    hanging, clock, heard = Calls(), FakeClock(), Heard()
    answers = iter([hanging])

    def summarizer(request: SummaryRequest) -> str:
        return next(answers, lambda _: "In time.")(request)

    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, clock=clock, on_event=heard) as compactor:
        assert hanging.begun.acquire(timeout=SOON)
        clock.advance(CONFIG.call_timeout)
        heard.until(Failed)
        assert compactor.wait_idle(SOON) is False
        clock.advance(60)
        heard.until(Published)
        hanging.go_on.set()
        heard.until(Discarded)
        assert compactor.get_compaction().summary == "In time."  # type: ignore[union-attr]


def test_the_deadline_of_an_answered_call_does_not_reach_the_next() -> None:
    """Even when its timer has fired and only waited for the lock."""
    fire: list[Any] = []

    class Clock(FakeClock):
        def call_later(self, seconds: float, callback: Any) -> Any:
            fire.append(callback)
            return super().call_later(seconds, callback)

    def summarizer(request: object) -> str:
        if len(fire) == 2:
            fire[0]()
        return "A summary."

    config = CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=1_200)
    clock = Clock()
    compactor, executor, _ = on_command(memory_of(20), summarizer, config, clock=clock)
    compactor.start()
    executor.run_all()
    assert len(fire) > 1
    assert of_kind(compactor.events, Failed) == []
    assert end_of(compactor) == 20


def test_a_given_up_call_that_is_published_by_nobody_leaves_no_prepared_event() -> None:
    """A late answer is not even looked at."""
    clock, heard = FakeClock(), Heard()

    def summarizer(request: object) -> str:
        clock.advance(CONFIG.call_timeout)
        return "Late."

    compactor, executor, _ = on_command(memory_of(10), summarizer, clock=clock, on_event=heard)
    compactor.start()
    executor.run_next()
    assert kinds(heard.events) == ["evaluated", "started", "failed", "discarded"]


def test_a_strategy_that_falls_back_publishes_nothing_late_either() -> None:
    """Whatever it makes of a call that was given up."""
    clock = FakeClock()

    def strategy(view: View) -> Iterator[CompactedMessage]:
        assert view.work is not None
        try:
            view.work.summarize(SummaryRequest(), Source("s", 100), view)
        except StaleCompaction:
            yield CompactedMessage(start_index=1, end_index=3, summary="Something else.")

    def summarizer(_request: object) -> str:
        clock.advance(CONFIG.call_timeout)
        return "Late."

    compactor, executor, _ = on_command(memory_of(10), summarizer, clock=clock, strategies=(strategy,))
    compactor.start()
    executor.run_next()
    assert compactor.get_compaction() is None
    assert kinds(compactor.events)[-1] == "discarded"


def test_no_call_is_made_while_too_many_that_were_given_up_still_hang() -> None:
    """Each holds a thread: a model that never answers does not take ever more of them."""
    summarizer, clock, heard = Calls(), FakeClock(), Heard()
    config = CONFIG.merged(circuit_failures=100, backoff_initial=1.0, backoff_max=1.0)
    most = runner_module.MOST_ABANDONED
    with ContextCompactor.for_role(memory_of(10), ROLE, config, summarizer, clock=clock, on_event=heard) as compactor:
        for attempt in range(1, most + 1):
            assert summarizer.begun.acquire(timeout=SOON)
            clock.advance(config.call_timeout)
            heard.until(Failed, attempt)
            assert compactor.wait_idle(SOON) is False
            clock.advance(1)
        heard.until(Failed, most + 1)
        assert compactor.wait_idle(SOON) is False
        assert "4 calls that were given up have not ended" in str(compactor.status().last_error)
        assert not summarizer.begun.acquire(blocking=False)
        summarizer.go_on.set()
        heard.until(Discarded, most)
        clock.advance(1)
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 7


def test_a_deadlines_hooks_do_not_run_on_the_timer() -> None:
    """One that blocks there would hold up every compactor's deadlines and back-offs."""
    threads: list[str] = []

    def hook(event: Event) -> None:
        if isinstance(event, Failed):
            threads.append(threading.current_thread().name)
            failed.set()

    summarizer, clock, failed = ScriptedSummarizer(), FakeClock(), threading.Event()
    with ContextCompactor.for_role(memory_of(10), "hanging", CONFIG, summarizer, clock=clock, on_event=hook):
        with summarizer:
            assert summarizer.started.wait(SOON)
            clock.advance(CONFIG.call_timeout)
            assert failed.wait(SOON)
        assert threads == ["compactor-hanging"]


def test_a_call_is_given_up_even_where_no_thread_can_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is told all the same, and the next attempt may find one."""
    summarizer, clock = ScriptedSummarizer(), FakeClock()
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, clock=clock) as compactor:
        with summarizer, monkeypatch.context() as patched:
            assert summarizer.started.wait(SOON)

            def refused(self: threading.Thread) -> None:
                raise RuntimeError("can't start new thread")

            patched.setattr(threading.Thread, "start", refused)
            clock.advance(CONFIG.call_timeout)
            assert compactor.status().state is State.BACKING_OFF
            assert compactor.status().failures == 1
        clock.advance(60)
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 7


# What must not break it


def test_a_thread_that_cannot_be_started_is_a_failure_that_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process at its limit of threads recovers without a restart."""
    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, ScriptedSummarizer(), clock=FakeClock())
    with monkeypatch.context() as patched:

        def refused(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", refused)
        compactor.start()
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
    monkeypatch.setattr(runner_module, "interpreter_is_exiting", lambda: True)
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
        monkeypatch.setattr(runner_module, "interpreter_is_exiting", lambda: True)
        return "A summary."

    compactor, executor, _ = on_command(memory_of(10), summarizer)
    compactor.start()
    executor.run_all()
    assert compactor.get_compaction() is None
    assert of_kind(compactor.events, Discarded)[0].reason == "interpreter_exit"


# Races


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


def test_a_deadline_that_races_the_answer_counts_once() -> None:
    """A result is either published or given up, never both."""
    for _ in range(30):
        clock, summarizer = FakeClock(), Calls()
        with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, clock=clock) as it:
            assert summarizer.begun.acquire(timeout=SOON)
            summarizer.go_on.set()
            clock.advance(CONFIG.call_timeout)
            published = it.wait_idle(SOON)
            assert (end_of(it), it.status().failures) == ((7, 0) if published else (0, 1))
