"""Limits that compactors share: never too many calls, never too much spend, one line for all, and nobody forgotten."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scene import CONFIG, PRICES, ROLE, SOON, Calls, add_round, end_of, in_thread, memory_of, of_kind, on_command

from compactor import (
    CompactionFailed,
    CompactionTimeout,
    ContextCompactor,
    Discarded,
    Evaluated,
    ExtractiveSummarizer,
    Failed,
    LimitReached,
    Limits,
    LimitsStatus,
    Published,
    Rejected,
    Skip,
    Skipped,
    SpendExceeded,
    Started,
    State,
    Summary,
    SummaryRequest,
)
from compactor.cost import Prices
from compactor.cost.limits import HOUR, Permit, Ticket
from compactor.testing import FakeClock, ScriptedSummarizer

#: A call costs as many tokens as it answers, and is estimated at its target.
BY_ANSWER = Prices(summarizer_input=0.0, summarizer_output=1.0)


def asking(tokens: int) -> SummaryRequest:
    return SummaryRequest(target_tokens=tokens)


def answering(tokens: int) -> Summary:
    return Summary(PRICES, {"input_tokens": 0, "output_tokens": tokens})


# -- whatever happens, in whatever order -------------------------------------------------------------------------------


class Actor:
    """Stands for a compactor: asks, waits, is called, comes, or is gone by then."""

    def __init__(self, limits: Limits, called: list[Actor]) -> None:
        self.ticket = Ticket(limits, self._call)
        self.called = called
        self.permit: Permit | None = None
        self.estimate = 0
        self.gone = False

    def _call(self) -> bool:
        self.called.append(self)
        return not self.gone

    @property
    def state(self) -> str:
        if self.ticket.is_queued:
            return "waiting"
        if self.ticket.granted is not None:
            return "called"
        return "idle" if self.permit is None else "in"

    def begin(self, tokens: int) -> LimitReached | None:
        """Begin a cycle that asks; return what stands against it."""
        self.estimate = tokens
        self.permit = self.permit if self.permit is not None else self.ticket.take_permit()
        try:
            self.permit.reserve(asking(tokens), len)
        except LimitReached as limit:
            permit, self.permit = self.permit, None
            permit.release()
            self.ticket.wait(limit)
            return limit
        return None


class AnyOrder(RuleBasedStateMachine):
    """Eight compactors under limits of any size."""

    @initialize(max_concurrency=st.none() | st.integers(1, 3), spend=st.none() | st.integers(100, 300))
    def begin(self, max_concurrency: int | None, spend: int | None) -> None:
        self.clock = FakeClock()
        spend = 200 if max_concurrency is None and spend is None else spend
        self.limits = Limits(max_concurrency, spend, BY_ANSWER, self.clock)
        self.called: list[Actor] = []
        self.actors = [Actor(self.limits, self.called) for _ in range(8)]
        self.line: deque[Actor] = deque()
        self.spent: list[tuple[float, int, int]] = []

    def actors_in(self, *states: str) -> list[Actor]:
        return [actor for actor in self.actors if actor.state in states]

    def ask(self, actor: Actor, tokens: int) -> None:
        line, is_new = deque(self.line), actor.state == "idle"
        limit = actor.begin(tokens)
        assert limit or not (is_new and line), "nobody passes those who wait"
        if limit is not None:
            line = deque([actor, *line]) if limit.first else deque([*line, actor])
        self.check_line(line)

    def check_line(self, line: deque[Actor]) -> None:
        """Those who were called are the first of the line, in its order."""
        for actor in self.called:
            assert line.popleft() is actor
        self.called.clear()
        self.line = line

    @precondition(lambda self: self.actors_in("idle"))
    @rule(data=st.data(), tokens=st.integers(1, 100))
    def a_new_one_asks(self, data: Any, tokens: int) -> None:
        self.ask(data.draw(st.sampled_from(self.actors_in("idle"))), tokens)

    @precondition(lambda self: self.actors_in("called"))
    @rule(data=st.data(), more=st.integers(-20, 20))
    def one_that_was_called_asks(self, data: Any, more: int) -> None:
        actor = data.draw(st.sampled_from(self.actors_in("called")))
        self.ask(actor, min(max(actor.estimate + more, 1), 100))

    @precondition(lambda self: self.actors_in("called"))
    @rule(data=st.data())
    def one_that_was_called_has_nothing_to_ask(self, data: Any) -> None:
        actor = data.draw(st.sampled_from(self.actors_in("called")))
        actor.ticket.take_permit().release()
        self.check_line(self.line)

    @precondition(lambda self: self.actors_in("in"))
    @rule(data=st.data(), error=st.integers(-30, 30), again=st.booleans())
    def an_answer_comes(self, data: Any, error: int, again: bool) -> None:
        actor = data.draw(st.sampled_from(self.actors_in("in")))
        assert actor.permit is not None
        tokens = max(actor.estimate + error, 0)
        actor.permit.ask(lambda _request: answering(tokens), asking(actor.estimate))
        self.spent.append((self.clock.monotonic(), tokens, actor.estimate))
        self.check_line(self.line)
        if again:
            self.ask(actor, 10)
        else:
            self.end(actor)

    @precondition(lambda self: self.actors_in("in"))
    @rule(data=st.data(), error=st.sampled_from([ConnectionError(), RuntimeError()]))
    def a_call_fails(self, data: Any, error: Exception) -> None:
        actor = data.draw(st.sampled_from(self.actors_in("in")))
        assert actor.permit is not None

        def fail(_request: SummaryRequest) -> str:
            raise error

        with pytest.raises(type(error)):
            actor.permit.ask(fail, asking(actor.estimate))
        if isinstance(error, RuntimeError):
            self.spent.append((self.clock.monotonic(), actor.estimate, actor.estimate))
        self.check_line(self.line)
        self.end(actor)

    def end(self, actor: Actor) -> None:
        place, actor.permit = actor.permit, None
        assert place is not None
        place.release()
        self.check_line(self.line)

    @precondition(lambda self: self.actors_in("waiting", "called"))
    @rule(data=st.data())
    def one_is_stopped(self, data: Any) -> None:
        actor = data.draw(st.sampled_from(self.actors_in("waiting", "called")))
        if actor in self.line:
            self.line.remove(actor)
        actor.ticket.leave()
        self.check_line(self.line)

    @precondition(lambda self: self.actors_in("waiting"))
    @rule(data=st.data())
    def one_is_dropped(self, data: Any) -> None:
        data.draw(st.sampled_from(self.actors_in("waiting"))).gone = True

    @rule(seconds=st.sampled_from([1.0, 59.0, 600.0, 3_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.check_line(self.line)

    @invariant()
    def never_too_many(self) -> None:
        status = self.limits.status()
        assert status.in_use == len(self.actors_in("in", "called"))
        assert self.limits.max_concurrency is None or status.in_use <= self.limits.max_concurrency

    @invariant()
    def never_too_much(self) -> None:
        if (most := self.limits.max_spend_per_hour) is not None:
            lately = [cost for cost in self.spent if cost[0] > self.clock.monotonic() - HOUR]
            errors = sum(max(tokens - estimate, 0) for _, tokens, estimate in lately)
            assert sum(tokens for _, tokens, _ in lately) <= most + errors

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """Whoever waits has a reason to, and somebody or the timer to call him."""
        status = self.limits.status()
        assert status.queued == len(self.line) == len(self.actors_in("waiting"))
        if self.line and status.in_use != self.limits.max_concurrency:
            assert self.limits.max_spend_per_hour is not None
            assert status.spent + status.reserved + self.line[0].estimate > self.limits.max_spend_per_hour
            assert status.in_use or self.clock.pending

    def teardown(self) -> None:
        """Once all calls have ended and time has passed, everybody who waited was called."""
        for _ in range(8 * 8):
            for actor in self.actors_in("called"):
                actor.ticket.take_permit().release()
            for actor in self.actors_in("in"):
                self.end(actor)
            self.clock.advance(HOUR)
        assert not self.actors_in("waiting", "called", "in")
        assert self.limits.status() == LimitsStatus(0, 0, 0.0, 0.0)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.pytestmark = [pytest.mark.slow]
TestAnyOrder.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


# -- one thing at a time -----------------------------------------------------------------------------------------------


def ended(actor: Actor, tokens: int) -> None:
    """Let *actor*'s call answer, and its cycle end."""
    place, actor.permit = actor.permit, None
    assert place is not None
    place.ask(lambda _request: answering(tokens), asking(actor.estimate))
    place.release()


def test_who_needs_more_than_was_set_aside_is_the_first_to_wait() -> None:
    """Its turn had come before all others'; rounds that were added while it waited do not send it to the end."""
    clock, called = FakeClock(), []
    limits = Limits(max_spend_per_hour=100, prices=BY_ANSWER, clock=clock)
    one, two, three = (Actor(limits, called) for _ in range(3))
    assert one.begin(60) is None
    assert two.begin(50) is not None
    assert three.begin(90) is not None
    ended(one, 50)
    assert (called, two.state) == ([two], "called")
    limit = two.begin(70)
    assert limit is not None
    assert limit.first
    clock.advance(HOUR + 60)
    assert called == [two, two]


def test_who_needs_less_than_was_set_aside_leaves_the_rest_to_the_next() -> None:
    clock, called = FakeClock(), []
    limits = Limits(max_spend_per_hour=100, prices=BY_ANSWER, clock=clock)
    one, two, three = (Actor(limits, called) for _ in range(3))
    assert one.begin(100) is None
    assert two.begin(80) is not None
    assert three.begin(60) is not None
    ended(one, 0)
    assert called == [two]
    assert two.begin(40) is None
    assert called == [two, three]


def test_money_is_counted_in_dollars_where_their_price_is_known() -> None:
    """Cached input at its share of what the summarizer's input costs."""
    prices = Prices(cached_input=0.1, summarizer_input=0.5, summarizer_output=2.0, per_token=0.001)
    usage = {"input_tokens": 1_000, "cached_tokens": 800, "output_tokens": 100}
    in_dollars, in_tokens = Limits(1, prices=prices), Limits(1, prices=Prices(summarizer_output=2.0))
    assert (in_dollars.spend_unit, in_tokens.spend_unit) == ("dollars", "tokens")
    assert in_dollars.compute_cost(usage) == pytest.approx(0.001 * (0.5 * (200 + 80) + 200))
    assert in_tokens.compute_cost(usage) == pytest.approx(200 + 80 + 200)


def test_a_call_that_no_hour_has_room_for_is_refused_with_the_remedy() -> None:
    limits = Limits(max_spend_per_hour=2.0)
    request = SummaryRequest(messages=[{"role": "user", "content": "word " * 100}])
    with pytest.raises(SpendExceeded, match=r"about 2,\d+ tokens, and max_spend_per_hour is 2 tokens.*Prices.of_model"):
        Permit(limits).reserve(request, len)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "limit nothing"),
        ({"max_concurrency": 0}, "from 1 on"),
        ({"max_concurrency": True}, "whole number"),
        ({"max_concurrency": 1.5}, "whole number"),
        ({"max_spend_per_hour": 0}, "above 0"),
        ({"max_spend_per_hour": float("nan")}, "number above 0"),
        ({"max_spend_per_hour": True}, "number above 0"),
        ({"max_spend_per_hour": "5"}, "number above 0"),
        ({"max_spend_per_hour": float("inf")}, "above 0"),
    ],
)
def test_nonsense_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Limits(**values)


def test_a_timer_that_could_not_be_started_is_set_again() -> None:
    """Whoever asks next sets it: nobody is forgotten."""

    class Failing(FakeClock):
        fails = True

        def call_later(self, seconds: float, callback: Any) -> Any:
            if self.fails:
                raise RuntimeError("can't start new thread")
            return super().call_later(seconds, callback)

    clock, called = Failing(), []
    limits = Limits(max_spend_per_hour=100, prices=BY_ANSWER, clock=clock)
    one, two = Actor(limits, called), Actor(limits, called)
    assert one.begin(60) is None
    ended(one, 60)
    with pytest.raises(RuntimeError, match="thread"):
        two.begin(60)
    clock.fails = False
    assert Actor(limits, called).begin(60) is not None
    clock.advance(HOUR + 60)
    assert called[0] is two


def test_limits_that_nobody_holds_are_not_kept_by_their_timer() -> None:
    clock = FakeClock()
    limits = Limits(max_spend_per_hour=100, prices=BY_ANSWER, clock=clock)
    one, two = Actor(limits, []), Actor(limits, [])
    assert one.begin(60) is None
    ended(one, 60)
    assert two.begin(60) is not None
    dropped = weakref.ref(limits)
    del limits, one, two
    gc.collect()
    assert dropped() is None
    clock.advance(2 * HOUR)


# -- compactors --------------------------------------------------------------------------------------------------------


class Scene:
    """Compactors on one executor that obeys, under the same limits."""

    def __init__(self, limits: Limits, clock: FakeClock, summarizers: list[Any], **more: Any) -> None:
        self.limits, self.clock = limits, clock
        self.memories = [memory_of(10) for _ in summarizers]
        made = [
            on_command(memory, summarizer, clock=clock, limits=limits, **more)
            for memory, summarizer in zip(self.memories, summarizers, strict=True)
        ]
        self.compactors = [compactor for compactor, _, _ in made]
        self.executors = [executor for _, executor, _ in made]

    def start(self) -> None:
        for compactor in self.compactors:
            compactor.start()


def one_at_a_time(count: int, **more: Any) -> tuple[Scene, ScriptedSummarizer]:
    clock, summarizer = FakeClock(), ScriptedSummarizer()
    return Scene(Limits(1, clock=clock), clock, [summarizer] * count, **more), summarizer


def during_a_call(first: Any, then: Any) -> Any:
    """Return a summarizer in whose first call *then* happens."""

    def summarize(request: SummaryRequest) -> str:
        if not done:
            done.append(True)
            then()
        return str(first(request))

    done: list[bool] = []
    return summarize


def test_one_that_may_not_ask_is_skipped_holds_no_worker_and_is_called() -> None:
    """It says so; its executor has its slot back at once; when a place is free it goes on by itself."""
    scene, summarizer = one_at_a_time(2)
    one, two = scene.compactors
    run_one, run_two = scene.executors

    def meanwhile() -> None:
        run_two.run_all()
        assert (two.status().state, two.status().skip_reason) == (State.IDLE, Skip.LIMITED)
        assert two.status().last_error is None
        assert scene.limits.status() == LimitsStatus(in_use=1, queued=1, spent=0.0, reserved=0.0)
        assert two.wait_idle(0) is False, "what is due was not done"

    one._runner._summarizer = during_a_call(summarizer, meanwhile)
    scene.start()
    run_one.run_all()
    (skipped,) = of_kind(two.events, Skipped)
    assert (skipped.reason, skipped.retry_in) == (Skip.LIMITED, None)
    assert not of_kind(two.events, Started) + of_kind(two.events, Failed)
    assert end_of(two) == 0
    assert len(run_two.jobs) == 1, "it was called when the place was free"
    run_two.run_all()
    assert (end_of(one), end_of(two), summarizer.most_in_flight) == (7, 7, 1)
    assert two.wait_idle(0)
    assert scene.limits.status().in_use == 0


def test_what_happens_while_it_waits_is_looked_at_once() -> None:
    """Nothing could come of it before."""
    scene, _ = one_at_a_time(2)
    one, two = scene.compactors

    def meanwhile() -> None:
        scene.executors[1].run_all()
        for _ in range(5):
            add_round(scene.memories[1])
        assert not scene.executors[1].jobs

    one._runner._summarizer = during_a_call(ScriptedSummarizer(), meanwhile)
    scene.start()
    scene.executors[0].run_all()
    assert scene.executors[1].run_next()
    assert len(of_kind(two.events, Evaluated)) == 2
    assert end_of(two) == 12


def test_they_are_called_in_the_order_in_which_they_came() -> None:
    scene, summarizer = one_at_a_time(4)
    order: list[int] = []
    for place, compactor in enumerate(scene.compactors):
        compactor.on_event(lambda event, at=place: order.append(at) if isinstance(event, Published) else None)

    def meanwhile() -> None:
        for place in (2, 1, 3):
            scene.executors[place].run_all()

    scene.compactors[0]._runner._summarizer = during_a_call(summarizer, meanwhile)
    scene.start()
    for _ in range(2):
        for executor in scene.executors:
            executor.run_all()
    for executor in scene.executors:
        executor.run_all()
    assert order == [0, 2, 1, 3]


def test_a_failing_call_gives_its_place_back() -> None:
    scene, summarizer = one_at_a_time(2)

    def fail() -> None:
        scene.executors[1].run_all()
        raise ConnectionError

    scene.compactors[0]._runner._summarizer = during_a_call(summarizer, fail)
    scene.start()
    scene.executors[0].run_all()
    scene.executors[1].run_all()
    assert of_kind(scene.compactors[0].events, Failed)
    assert end_of(scene.compactors[1]) == 7


def test_a_call_that_was_given_up_keeps_its_place_until_it_ends() -> None:
    """The provider is at work until then; neither another compactor nor its own next try comes in before."""
    scene, summarizer = one_at_a_time(2)
    one, two = scene.compactors

    def hang() -> None:
        scene.executors[1].run_all()
        scene.clock.advance(CONFIG.call_timeout)
        assert of_kind(one.events, Failed)
        assert scene.limits.status().in_use == 1
        scene.clock.advance(CONFIG.backoff_max)
        scene.executors[0].run_next()
        assert one.status().skip_reason is Skip.LIMITED
        assert len(summarizer.requests) == 0

    one._runner._summarizer = during_a_call(summarizer, hang)
    scene.start()
    scene.executors[0].run_next()
    assert of_kind(one.events, Discarded)[-1].reason == "late"
    assert scene.executors[1].run_next()
    assert scene.executors[0].run_next()
    assert (end_of(one), end_of(two), scene.limits.status().in_use) == (7, 7, 0)


def test_one_that_is_stopped_waits_no_longer() -> None:
    """Waiting, or called and not come: the next gets its turn."""
    scene, summarizer = one_at_a_time(4)
    one, two, three, four = scene.compactors

    def meanwhile() -> None:
        for executor in scene.executors[1:]:
            executor.run_all()
        assert three.stop(0)
        assert scene.limits.status().queued == 2

    one._runner._summarizer = during_a_call(summarizer, meanwhile)
    scene.start()
    scene.executors[0].run_all()
    assert len(scene.executors[1].jobs) == 1, "two was called"
    assert two.stop(0)
    scene.executors[3].run_all()
    assert [end_of(compactor) for compactor in scene.compactors] == [7, 0, 0, 7]
    two.start()
    scene.executors[1].run_all()
    assert (end_of(two), scene.limits.status().in_use) == (7, 0)
    assert four.wait_idle(0)


def test_one_whose_executor_is_shut_down_gives_its_turn_away() -> None:
    scene, summarizer = one_at_a_time(3)

    def meanwhile() -> None:
        for executor in scene.executors[1:]:
            executor.run_all()
        scene.executors[1].shutdown()

    scene.compactors[0]._runner._summarizer = during_a_call(summarizer, meanwhile)
    scene.start()
    scene.executors[0].run_all()
    scene.executors[2].run_all()
    assert [end_of(compactor) for compactor in scene.compactors] == [7, 0, 7]


def test_one_that_nobody_holds_gives_its_turn_away() -> None:
    scene, summarizer = one_at_a_time(1)
    dropped = ContextCompactor(
        CONFIG, summarizer, scene.memories[0].rounds_getter(ROLE), role=ROLE, executor=scene.executors[0],
        clock=scene.clock, limits=scene.limits,
    )  # fmt: skip

    def meanwhile() -> None:
        nonlocal dropped
        dropped.start()
        scene.executors[0].run_all()
        assert scene.limits.status().queued == 1
        gone = weakref.ref(dropped)
        del dropped
        gc.collect()
        assert gone() is None

    scene.compactors[0]._runner._summarizer = during_a_call(summarizer, meanwhile)
    scene.compactors[0].start()
    scene.executors[0].run_next()
    assert scene.limits.status() == LimitsStatus(0, 0, 0.0, 0.0)


def test_one_whose_work_is_done_when_its_turn_comes_gives_it_back() -> None:
    """Nothing is due any more: the place is the next one's."""
    scene, summarizer = one_at_a_time(2)
    memory = scene.memories[1]

    def meanwhile() -> None:
        scene.executors[1].run_all()
        for round_ in list(memory.conversation.rounds)[:8]:
            memory.finish_round(round_, state="failed")

    scene.compactors[0]._runner._summarizer = during_a_call(summarizer, meanwhile)
    scene.start()
    scene.executors[0].run_all()
    scene.executors[1].run_all()
    assert of_kind(scene.compactors[1].events, Skipped)[-1].reason is Skip.BELOW_TRIGGER
    assert scene.limits.status().in_use == 0


def test_a_summarizer_that_asks_no_model_needs_no_place() -> None:
    clock = FakeClock()
    limits = Limits(1, clock=clock)
    Permit(limits).reserve(asking(1), len)
    scene = Scene(limits, clock, [ExtractiveSummarizer()])
    scene.start()
    scene.executors[0].run_all()
    assert end_of(scene.compactors[0]) == 7


def test_who_is_called_and_asks_for_more_than_before_is_not_passed() -> None:
    """There is no room for it any more; the next, who asks for little, waits behind it all the same."""
    clock, called = FakeClock(), list[Actor]()
    limits = Limits(1, 100, BY_ANSWER, clock)
    first, second, third = (Actor(limits, called) for _ in range(3))
    assert first.begin(26) is None
    assert second.begin(55)
    assert third.begin(1)
    assert first.permit is not None
    first.permit.ask(lambda _request: answering(26), asking(26))
    first.permit.release()
    assert called == [second]

    limit = second.begin(75)

    assert limit is not None
    assert limit.first
    assert called == [second]
    assert limits.status().in_use == 0
    clock.advance(HOUR + 60)
    assert called == [second, second]


# -- spend -------------------------------------------------------------------------------------------------------------


def spending(estimate: int, limit: int, answers: list[Any], count: int = 1, **more: Any) -> Scene:
    """Compactors whose calls are estimated at *estimate* tokens."""
    clock = FakeClock()
    config = CONFIG.copy_with(target_tokens=estimate, **more)
    summarizer = ScriptedSummarizer(answers, default=answering(estimate))
    return Scene(Limits(None, limit, BY_ANSWER, clock), clock, [summarizer] * count, config=config)


def test_when_the_hour_is_used_up_the_rest_waits_for_the_next() -> None:
    """It says in how many seconds, and one timer wakes it."""
    scene = spending(100, 250, [], count=4)
    scene.start()
    for executor in scene.executors:
        executor.run_all()
    assert [end_of(compactor) for compactor in scene.compactors] == [7, 7, 0, 0]
    (skipped,) = of_kind(scene.compactors[2].events, Skipped)
    assert skipped.reason is Skip.LIMITED
    assert skipped.retry_in == HOUR + 60
    assert scene.clock.pending == [HOUR + 60]
    scene.clock.advance(HOUR + 60)
    assert [executor.run_next() for executor in scene.executors] == [False, False, True, True]
    assert [end_of(compactor) for compactor in scene.compactors] == [7, 7, 7, 7]


def test_what_an_answer_reports_takes_the_place_of_the_estimate() -> None:
    """Cheaper calls leave room for more of them; what a plain text costs is what was estimated."""
    for answer, reached in [(answering(10), 4), (PRICES, 2)]:
        scene = spending(100, 250, [answer] * 4, count=4)
        scene.start()
        for executor in scene.executors:
            executor.run_all()
        assert sum(end_of(compactor) == 7 for compactor in scene.compactors) == reached
        assert scene.limits.status().spent == (40 if reached == 4 else 200)


@pytest.mark.parametrize(
    ("usage", "spent"),
    [
        ({"input_tokens": float("inf")}, 100),
        ({"input_tokens": float("nan")}, 100),
        ({"input_tokens": None}, 100),
        ({"input_tokens": -5, "output_tokens": 7}, 100),
        ({"input_tokens": 10**400}, 100),
        ("many", 100),
        ({"input_tokens": 5, "cached_tokens": None, "output_tokens": 7}, 7),
        ({"input_tokens": 5, "output_tokens": True}, 0),
    ],
)
def test_what_is_no_count_is_not_counted_and_the_answer_is_taken_all_the_same(usage: Any, spent: int) -> None:
    """One summarizer's slip throws away no answer that was paid for, and closes no hour to all the others."""
    scene = spending(100, 250, [Summary(PRICES, usage)])
    scene.start()
    scene.executors[0].run_all()
    assert end_of(scene.compactors[0]) == 7
    assert scene.limits.status().spent == spent


class Refused(Exception):
    status_code = 429


def from_a_refusal() -> Exception:
    error = RuntimeError("our words")
    error.__cause__ = Refused()
    return error


@pytest.mark.parametrize(
    ("error", "spent"), [(from_a_refusal(), 0), (Refused(), 0), (ConnectionError(), 0), (ValueError(), 100)]
)
def test_a_failed_call_costs_nothing_only_where_that_is_certain(error: Exception, spent: int) -> None:
    scene = spending(100, 250, [error])
    scene.start()
    scene.executors[0].run_all()
    assert scene.limits.status() == LimitsStatus(0, 0, spent, 0.0)


def test_without_room_for_another_attempt_a_refused_answer_is_a_failure() -> None:
    """To wait and begin anew would pay for the first attempt again, each time: it backs off instead."""
    scene = spending(100, 150, [Summary("", {"input_tokens": 0, "output_tokens": 100})])
    scene.start()
    scene.executors[0].run_all()
    (compactor,) = scene.compactors
    assert len(of_kind(compactor.events, Rejected)) == 1
    assert of_kind(compactor.events, Failed)[0].error == "empty"
    assert scene.limits.status() == LimitsStatus(0, 0, 100.0, 0.0)


def test_a_call_too_dear_for_any_hour_is_a_failure_that_names_the_remedy() -> None:
    scene = spending(100, 50, [])
    scene.start()
    scene.executors[0].run_all()
    assert of_kind(scene.compactors[0].events, Failed)[0].error == "SpendExceeded"
    assert "raise that" in (scene.compactors[0].status().last_error or "")


def test_what_was_published_before_the_hour_was_used_up_stands() -> None:
    """A long history is summarized as far as there is room, and goes on from there later."""
    scene = spending(100, 250, [], summarizer_input_tokens=420, threshold=1)
    scene.start()
    scene.executors[0].run_all()
    (compactor,) = scene.compactors
    first = end_of(compactor)
    assert 0 < first < 7
    assert compactor.status().skip_reason is Skip.LIMITED
    for _ in range(10):
        scene.clock.advance(HOUR + 60)
        scene.executors[0].run_all()
    assert end_of(compactor) == 7
    starts = [event.start for event in of_kind(compactor.events, Started)]
    assert starts == sorted(set(starts)), "nothing was asked for twice"


# -- compact_now and wait_idle -----------------------------------------------------------------------------------------


def test_compact_now_waits_for_its_turn() -> None:
    """Like all others; it is not told that it failed, and gets its compaction."""
    calls = Calls()
    limits = Limits(1)
    with ThreadPoolExecutor(2) as pool:
        one, two = (
            ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, executor=pool, limits=limits)
            for summarizer in (calls, ScriptedSummarizer())
        )
        limited = threading.Event()
        two.on_event(lambda event: limited.set() if isinstance(event, Skipped) else None)
        one.start()
        assert calls.begun.acquire(timeout=SOON)
        waiting = in_thread(lambda: two.compact_now(SOON))
        assert limited.wait(SOON)
        calls.go_on.set()
        assert waiting().end_index == 7
        assert one.wait_idle(SOON)
        assert one.stop()
        assert limits.status().in_use == 0


def test_compact_now_whose_turn_does_not_come_names_the_seconds() -> None:
    """It is a time-out; what was asked for goes on waiting where the compactor runs."""
    scene = spending(100, 150, [], count=2)
    scene.start()
    scene.executors[0].run_all()
    scene.executors[1].run_all()
    with pytest.raises(LimitReached, match="until 3660 seconds have passed") as raised:
        scene.compactors[1].compact_now(0)
    assert isinstance(raised.value, CompactionTimeout)
    assert raised.value.seconds == HOUR + 60
    scene.clock.advance(HOUR + 60)
    scene.executors[1].run_all()
    assert end_of(scene.compactors[1]) == 7


def test_the_turn_of_one_that_does_not_run_and_that_nobody_waits_for_is_given_back() -> None:
    """compact_now of a compactor that was never started, whose caller has lost patience."""
    scene, summarizer = one_at_a_time(2)
    one, two = scene.compactors

    def meanwhile() -> None:
        waiting = in_thread(lambda: two.compact_now(1.0))  # by then it has found no room
        scene.executors[1].run_coming()
        with pytest.raises(LimitReached, match="until a call has ended"):
            waiting()

    one._runner._summarizer = during_a_call(summarizer, meanwhile)
    one.start()
    scene.executors[0].run_all()
    assert scene.limits.status() == LimitsStatus(0, 0, 0.0, 0.0)
    assert not scene.executors[1].jobs
    two.start()
    scene.executors[1].run_all()
    assert end_of(two) == 7


def test_stop_tells_those_who_wait_in_compact_now() -> None:
    scene, summarizer = one_at_a_time(2)
    one, two = scene.compactors

    def meanwhile() -> None:
        waiting = in_thread(lambda: two.compact_now(SOON))
        scene.executors[1].run_coming()
        assert two.stop(0)
        with pytest.raises(CompactionFailed, match="stopped"):
            waiting()

    one._runner._summarizer = during_a_call(summarizer, meanwhile)
    one.start()
    scene.executors[0].run_all()
    assert scene.limits.status().in_use == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_with_an_empty_line() -> None:
    """Those that are in and those that wait are the parent's, as is its lock; what was spent counts for both."""
    limits = Limits(1, 100, BY_ANSWER, FakeClock())
    one, two = Actor(limits, []), Actor(limits, [])
    assert one.begin(40) is None
    ended(one, 40)
    assert one.begin(10) is None
    assert two.begin(10) is not None
    with limits._lock:
        child = os.fork()
        if child == 0:
            try:
                fresh = limits.status() == LimitsStatus(0, 0, 40.0, 0.0)
                assert one.permit is not None
                one.permit.release()  # of a cycle in whose hook the process forked
                came = Actor(limits, []).begin(10) is None
                os._exit(0 if fresh and came and limits.status().in_use == 1 else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert limits.status().in_use == 1
