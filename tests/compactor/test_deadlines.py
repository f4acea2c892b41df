"""A call that does not end is given up at its deadline: it holds up no other run, and what it answers is discarded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from scene import (
    CONFIG,
    PRICES,
    ROLE,
    SOON,
    Calls,
    Heard,
    end_of,
    in_thread,
    kinds,
    memory_of,
    of_kind,
    on_command,
    prices,
)

from compactor import (
    CompactionTimeout,
    CompactorConfig,
    ContextCompactor,
    Discarded,
    Event,
    Failed,
    Published,
    State,
    SummaryRequest,
    View,
    compact_rounds,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage, Overlay, StaleCompaction

pytestmark = pytest.mark.timeout(30)


def test_a_call_is_given_up_at_its_deadline_and_what_it_answers_is_discarded() -> None:
    """It counts as a failure; another thread takes the place of the one that hangs."""
    memory, summarizer, clock, heard = (
        memory_of(10),
        ScriptedSummarizer([prices("Late"), prices("In time")]),
        FakeClock(),
        Heard(),
    )
    config = CONFIG.copy_with(call_timeout=30.0)
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
        assert compactor.get_compaction().summary == prices("In time")  # type: ignore[union-attr]


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
        return next(answers, lambda _: prices("In time"))(request)

    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, clock=clock, on_event=heard) as compactor:
        assert hanging.begun.acquire(timeout=SOON)
        clock.advance(CONFIG.call_timeout)
        heard.until(Failed)
        assert compactor.wait_idle(SOON) is False
        clock.advance(60)
        heard.until(Published)
        hanging.go_on.set()
        heard.until(Discarded)
        assert compactor.get_compaction().summary == prices("In time")  # type: ignore[union-attr]


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
        return PRICES

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
        return prices("Late")

    compactor, executor, _ = on_command(memory_of(10), summarizer, clock=clock, on_event=heard)
    compactor.start()
    executor.run_next()
    assert kinds(heard.events) == ["evaluated", "started", "failed", "discarded"]


def test_a_strategy_that_falls_back_publishes_nothing_late_either() -> None:
    """Whatever it makes of a call that was given up."""
    clock = FakeClock()

    def strategy(view: View) -> Iterator[Overlay]:
        try:
            yield from compact_rounds(view)
        except StaleCompaction:
            yield CompactedMessage(start_index=1, end_index=3, summary="Something else.")

    def summarizer(_request: object) -> str:
        clock.advance(CONFIG.call_timeout)
        return prices("Late")

    compactor, executor, _ = on_command(memory_of(10), summarizer, clock=clock, strategies=(strategy,))
    compactor.start()
    executor.run_next()
    assert compactor.get_compaction() is None
    assert kinds(compactor.events)[-1] == "discarded"


def test_no_call_is_made_while_too_many_that_were_given_up_still_hang() -> None:
    """Each holds a thread: a model that never answers does not take ever more of them."""
    summarizer, clock, heard = Calls(), FakeClock(), Heard()
    config = CONFIG.copy_with(circuit_breaker_failures=100, backoff_initial=1.0, backoff_max=1.0)
    most = 4
    options: dict[str, Any] = {"clock": clock, "on_event": heard, "rng": lambda: 1.0}  # a back-off of just a second
    with ContextCompactor.for_role(memory_of(10), ROLE, config, summarizer, **options) as compactor:
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


@pytest.mark.parametrize("hangs", ["trigger", "getter"])
def test_what_a_look_calls_is_given_up_and_told_like_a_call(hangs: str) -> None:
    """The compactor goes on, and with four that hang it calls no more of them."""
    memory, calls, clock, heard = memory_of(10), Calls(), FakeClock(), Heard()
    config = CONFIG.copy_with(circuit_breaker_failures=100, backoff_initial=1.0, backoff_max=1.0)

    def hang(given: Any) -> Any:
        calls(given)
        return given

    rounds, trigger = memory.rounds_getter(ROLE), hang if hangs == "trigger" else None
    getter = (lambda: hang(rounds())) if hangs == "getter" else rounds
    options: dict[str, Any] = {"clock": clock, "on_event": heard, "rng": lambda: 1.0}  # a back-off of just a second
    with ContextCompactor(config, ScriptedSummarizer(), getter, role=ROLE, trigger=trigger, **options) as compactor:
        for attempt in range(1, 5):
            assert calls.begun.acquire(timeout=SOON)
            assert compactor.status().state is State.EVALUATING
            clock.advance(config.call_timeout)
            heard.until(Failed, attempt)
            assert compactor.wait_idle(SOON) is False
            assert "did not answer within call_timeout" in str(compactor.status().last_error)
            clock.advance(1)
        heard.until(Failed, 5)
        assert not calls.begun.acquire(blocking=False)
        calls.go_on.set()
        heard.until(Discarded, 4)
        assert compactor.wait_idle(SOON) is False
        clock.advance(1)
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 7


def test_what_hangs_in_looks_holds_up_no_other_compactor() -> None:
    """However many hang."""
    hanging, heard = Calls(), Heard()
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(ContextCompactor.for_role(memory_of(1), ROLE, CONFIG, trigger=hanging))
        stack.callback(hanging.go_on.set)
        stack.enter_context(
            ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, ScriptedSummarizer(), on_event=heard)
        )
        heard.until(Published)


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
