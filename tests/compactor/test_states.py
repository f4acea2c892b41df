"""NEW, IDLE, COMPACTING, BACKING_OFF, STOPPING, STOPPED: what takes a compactor from one to the next, and who may wait."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
from scene import (
    CONFIG,
    PRICES,
    ROLE,
    SOON,
    Calls,
    Heard,
    add_round,
    end_of,
    in_thread,
    joined,
    kinds,
    memory_of,
    of_kind,
    on_command,
    prices,
    threads_of,
)

from compactor import (
    CompactionFailed,
    ContextCompactor,
    Discarded,
    Event,
    Failed,
    Published,
    Skip,
    Started,
    State,
    Stopped,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import InMemoryStore, Memory, SessionPurged

pytestmark = pytest.mark.timeout(30)


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


def test_while_only_its_trigger_is_looked_at_it_does_not_say_that_it_compacts() -> None:
    """Nothing may be due; ``compacting`` is for strategies at work."""
    seen: list[State] = []

    def trigger(_view: object) -> bool:
        seen.append(compactor.status().state)
        return True

    def summarizer(_request: object) -> str:
        seen.append(compactor.status().state)
        return PRICES

    compactor, executor, _ = on_command(memory_of(10), summarizer, trigger=trigger)
    compactor.start()
    executor.run_next()
    assert seen[:2] == [State.EVALUATING, State.COMPACTING]


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
    with compactor._runner._lock:
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
    memory, summarizer, heard = memory_of(10), ScriptedSummarizer([prices("Old"), prices("New")]), Heard()
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
    assert (compaction.summary, compaction.end_index, len(summarizer.requests)) == (prices("Old"), 7, 1)
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
    compactor.wait_idle(SOON)
    assert joined("hooked")
    assert stopped == [False]
    assert compactor.status().state is State.STOPPED
    assert end_of(compactor) == (7 if kind is Published else 0)


def test_a_compactor_that_is_not_due_has_no_thread() -> None:
    """Its trigger is asked all the same, and what is due gets a thread of the compactor's own."""
    memory = memory_of(3)
    with ContextCompactor.for_role(memory, "resting", CONFIG, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
        assert compactor.status().skip_reason is Skip.BELOW_TRIGGER
        assert threads_of("resting") == []
        for _ in range(7):
            add_round(memory, role="resting")
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) in (5, 6, 7), "as many as there were but three, once eight were there"
        assert len(threads_of("resting")) == 1


def test_stop_from_a_hook_in_the_hosts_thread_says_that_nothing_is_left() -> None:
    """There is no worker to wait for."""
    memory, stopped = memory_of(10), []
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    executor.run_all()
    compactor.on_event(lambda event: stopped.append(compactor.stop(None)))
    compactor.revert()
    assert stopped == [True]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("own", [True, False], ids=["offline", "model"])
def test_a_compactor_whose_session_was_purged_stops_and_says_so(own: bool) -> None:
    """Nobody can write to that session again: no model is asked, nothing is tried again, and whoever asks is told."""
    store, summarizer = InMemoryStore(), ScriptedSummarizer()
    memory = Memory("session", store=store)
    for _ in range(10):
        add_round(memory)
    compactor, executor, clock = on_command(memory, None if own else summarizer)
    store.purge("session")
    compactor.start()
    executor.run_all()
    assert compactor.status().state is State.STOPPED
    assert "go on with a new Memory" in str(compactor.status().last_error)
    assert [event.reason for event in of_kind(compactor.events, Stopped)] == ["session_purged"]
    assert of_kind(compactor.events, Failed) == []
    assert clock.pending == []
    assert not executor.jobs
    assert summarizer.requests == []
    asked = in_thread(lambda: compactor.compact_now(SOON))
    executor.run_coming()
    with pytest.raises(CompactionFailed, match="go on with a new Memory") as raised:
        asked()
    assert isinstance(raised.value.__cause__, SessionPurged)
    assert len(of_kind(compactor.events, Stopped)) == 1
    assert compactor.stop(SOON)


# wait_idle


def test_wait_idle_is_true_once_everything_was_looked_at() -> None:
    """And false before: not started, pending, running, backing off."""
    memory = memory_of(10)
    compactor, executor, clock = on_command(memory, ScriptedSummarizer([OSError()]))
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
    for _ in range(4):
        add_round(memory)
        assert compactor.wait_idle(0) is True, "what cannot be due is looked at where it is appended"
    add_round(memory)
    assert compactor.wait_idle(0) is False


def test_wait_idle_gives_up_in_time() -> None:
    """A call in flight may take longer."""
    summarizer = ScriptedSummarizer().hold()
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer) as compactor, summarizer:
        assert summarizer.started.wait(SOON)
        assert compactor.wait_idle(0.01) is False


def test_compactors_whose_calls_hang_stop_together() -> None:
    """A call has *timeout* seconds in all, from when it was made: the second and third are waited for no longer."""
    calls = Calls()
    compactors = [ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, calls, clock=FakeClock()) for _ in range(3)]
    for compactor in compactors:
        compactor.start()
        assert calls.begun.acquire(timeout=SOON)
    timeout, waited = 2.0, []
    for compactor in compactors:
        before = time.monotonic()
        assert compactor.stop(timeout) is False
        waited.append(time.monotonic() - before)
    # Each for itself would be waited for two seconds more.
    assert sum(waited[1:]) < timeout
    calls.go_on.set()
    assert all(compactor.stop(SOON) for compactor in compactors)
