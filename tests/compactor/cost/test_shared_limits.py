"""Limits in the store: all processes together keep them, tenants take turns, and who is gone holds up nobody."""

from __future__ import annotations

import gc
import sys
import weakref
from functools import partial
from typing import Any

import pytest
from actors import BY_ANSWER, ONE, Actor, Jobs, Model, Scene, answering
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scene import CONFIG, ROLE, end_of, memory_of, of_kind, on_command

from compactor import (
    ConfigError,
    ContextCompactor,
    InMemoryStore,
    Limit,
    LimitReached,
    LimitsStatus,
    OpenAISummarizer,
    Sessions,
    SharedLimits,
    Skip,
    Skipped,
    SpendExceeded,
    State,
    SummarizerError,
    SummaryRequest,
)
from compactor.cost import Prices, shared_limits
from compactor.cost.admission import GRANT_SECONDS
from compactor.cost.shared_limits import find_provider
from compactor.journal import LEASE_SECONDS, RENEW_SECONDS
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import StoreUnreachable
from memory.stores import join_name


class Failing(InMemoryStore):
    """A server that is away, or whose answers are lost."""

    fails = loses_answers = False

    def change_limits(self, work: Any) -> Any:
        if self.fails:
            raise StoreUnreachable("the server is gone; start it")
        answer = super().change_limits(work)
        if self.loses_answers:
            raise StoreUnreachable("whether it was stored is not known")
        return answer


# -- whatever happens, in whatever order -------------------------------------------------------------------------------


class Shared(RuleBasedStateMachine):
    """Compactors of two processes and three tenants ask, end, stop and come when they are called."""

    @initialize()
    def begin(self) -> None:
        self.scene = Scene([Limit(max_concurrency=2), Limit(max_tokens_per_minute=100, per="tenant")])
        self.scene.store = self.store = Failing(self.scene.clock.monotonic)
        self.scene.limits = self.scene.process()
        self.clock = FakeClock()  # of the other process
        places = [self.scene.limits, self.scene.process()]
        places[1]._clock = self.clock
        self.actors = [Actor(places[n % 2], join_name("abc"[n % 3], f"{n}")) for n in range(6)]

    def those(self, state: str) -> list[Actor]:
        states = {
            "inside": lambda one: one.permit is not None,
            "waiting": lambda one: one.ticket.is_queued,
            "called": lambda one: one.ticket.is_granted,
        }
        return [one for one in self.actors if states[state](one)]

    @rule(place=st.integers(0, 5), tokens=st.integers(1, 80))
    def ask(self, place: int, tokens: int) -> None:
        actor = self.actors[place]
        if actor.permit is None and not actor.ticket.is_queued:
            actor.ask(tokens)

    @rule(place=st.integers(0, 5), tokens=st.integers(0, 80))
    def end(self, place: int, tokens: int) -> None:
        if inside := self.those("inside"):
            inside[place % len(inside)].end(answering(tokens))

    @rule(place=st.integers(0, 5))
    def stop(self, place: int) -> None:
        if self.actors[place].permit is None:
            self.actors[place].ticket.leave()

    @rule(seconds=st.sampled_from([0.5, 3.0, 70.0]))
    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.scene.clock.advance(0.5)
            self.clock.advance(0.5)

    @rule()
    def stand_still(self) -> None:
        """One process is taken for dead by the other; then it goes on, and its calls end."""
        lost = [one for one in self.those("inside") if one.ticket.limits is not self.scene.limits]
        self.scene.clock.advance(12.0)
        for actor in lost:
            actor.end(answering(10))
        self.clock.advance(12.0)

    @rule(place=st.integers(0, 5), does=st.sampled_from(["ask", "end", "leave"]))
    def lose_an_answer(self, place: int, does: str) -> None:
        """What the store has stored while nobody knew is seen to by the next sign of life."""
        actor = self.actors[place]
        self.store.loses_answers = True
        if does == "ask" and actor.permit is None and not actor.ticket.is_queued:
            actor.ask(10)
        elif does == "end" and actor.permit is not None:
            actor.end(answering(10))
        elif does == "leave" and actor.permit is None:
            actor.ticket.leave()
        self.store.loses_answers = False
        self.wait(4.5)

    @invariant()
    def the_store_knows_who_has_a_permit_and_who_waits(self) -> None:
        if hasattr(self, "scene"):
            status = self.scene.limits.status()
            assert len(self.those("inside")) <= status.in_use <= 2
            assert status.in_use <= len(self.those("inside")) + len(self.those("called"))
            assert status.queued == len(self.those("waiting"))

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """A tenant's tokens may be used up for now; else somebody's permit is in use."""
        if hasattr(self, "scene") and self.those("waiting") and not self.scene.limits.status().in_use:
            for _ in range(33):
                self.wait(2.0)
                if self.those("called"):
                    return
            raise AssertionError("nobody was called")

    def teardown(self) -> None:
        """Everybody who waits is called once others end, and gets in."""
        for _ in range(40 if hasattr(self, "scene") else 0):
            for actor in self.those("called"):
                actor.ask(10)
            for actor in self.those("inside"):
                actor.end(answering(10))
            self.wait(35.0)
        if hasattr(self, "scene"):
            assert not self.those("waiting")


TestShared = Shared.TestCase
TestShared.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


# -- calls at once -----------------------------------------------------------------------------------------------------


def test_processes_share_the_calls_and_who_ends_one_wakes_the_next() -> None:
    """In the order in which they came; nobody passes."""
    scene = Scene(ONE)
    other = scene.process()
    one, two, three = Actor(scene.limits), Actor(other), Actor(scene.limits)
    assert one.ask() is None
    refused = two.queue()
    assert refused.seconds is None
    assert three.ask() is not None
    assert scene.limits.status() == other.status() == LimitsStatus(in_use=1, queued=2, spent=0.0, reserved=0.0)
    one.end()
    assert (two.woken, three.woken) == (1, 0)
    assert Actor(scene.limits).ask() is not None, "the permit waits for its ticket's owner"
    assert two.ask() is None
    two.end()
    assert three.woken == 1


def test_a_permit_that_its_owner_does_not_take_goes_to_the_next() -> None:
    """At once if it is wanted no more, else after some seconds."""
    scene = Scene(ONE)
    one, gone, slow, next_ = (Actor(scene.limits) for _ in range(4))
    assert one.ask() is None
    for actor in (gone, slow, next_):
        assert actor.ask() is not None
    gone.gone = True
    one.end()
    assert (gone.woken, slow.woken, next_.woken) == (1, 1, 0)
    scene.clock.advance(GRANT_SECONDS + 2.0)
    assert next_.woken == 1
    assert next_.ask() is None
    assert slow.ask() is not None, "it asks anew"
    next_.end()
    assert slow.woken == 2


def test_who_asks_too_late_keeps_the_place_that_it_got_then() -> None:
    """Its permit had gone to another; its ticket stays in the queue when its cycle ends."""
    scene = Scene(ONE)
    one, late, other, last = (Actor(scene.limits) for _ in range(4))
    assert one.ask() is None
    assert late.ask() is not None
    one.end()
    assert late.woken == 1
    late.permit = late.ticket.take_permit("s", ROLE)
    scene.clock.advance(GRANT_SECONDS + 1.0)
    assert other.ask() is None
    with pytest.raises(LimitReached):
        late.permit.reserve(SummaryRequest(target_tokens=10), len)
    assert last.ask() is not None
    late.permit.release()
    assert scene.limits.status().queued == 2
    other.end()
    assert (late.woken, last.woken) == (2, 0)


def test_who_stops_leaves_the_queue_and_gives_back_what_it_was_granted() -> None:
    scene = Scene(ONE)
    one, two, three = (Actor(scene.limits) for _ in range(3))
    assert one.ask() is None
    assert two.ask() is not None
    assert three.ask() is not None
    two.ticket.leave()
    two.ticket.leave()
    assert scene.limits.status().queued == 1
    one.end()
    assert (two.woken, three.woken) == (0, 1)
    assert scene.limits.status() == LimitsStatus(1, 0, 0.0, 0.0)
    three.ticket.give_back()
    assert scene.limits.status().in_use == 0


def test_a_woken_cycle_that_asks_nobody_gives_its_permit_back() -> None:
    """There was nothing left to do."""
    scene = Scene(ONE)
    one, two, three = (Actor(scene.limits) for _ in range(3))
    assert one.ask() is None
    assert two.ask() is not None
    assert three.ask() is not None
    one.end()
    two.ticket.take_permit("s", ROLE).release()
    assert three.woken == 1


def test_a_permit_passes_by_any_number_of_compactors_that_are_gone() -> None:
    """They were dropped without being stopped."""
    scene = Scene(ONE)
    one, *gone, last = (Actor(scene.limits) for _ in range(202))
    for actor in (one, *gone, last):
        actor.ask()
    for actor in gone:
        actor.gone = True
    depth, frame = 0, sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        depth += 1
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 100)
    try:
        one.end()
    finally:
        sys.setrecursionlimit(limit)
    assert last.woken == 1
    assert scene.limits.status() == LimitsStatus(1, 0, 0.0, 0.0)


def test_a_permit_passes_by_a_compactor_that_fails_to_begin() -> None:
    """As when no thread could be started for it."""
    scene = Scene(ONE)
    one, two, three = (Actor(scene.limits) for _ in range(3))
    for actor in (one, two, three):
        actor.ask()

    def fail() -> bool:
        raise RuntimeError("can't start new thread")

    two.ticket.call = fail
    with pytest.raises(RuntimeError, match="can't start"):
        one.end()
    assert three.woken == 1


def test_the_permits_and_tickets_of_a_killed_process_are_free_within_seconds() -> None:
    """And what its calls may have cost counts as spent. One that is alive keeps its own for as long as it likes."""
    scene = Scene([Limit(max_concurrency=2), Limit(max_spend_per_hour=100.0)], prices=BY_ANSWER)
    killed, clock = scene.process(), FakeClock()
    killed._clock = clock  # its timers stand still from now on
    lost, queued = Actor(killed), Actor(killed)
    alive, waits = Actor(scene.limits), Actor(scene.limits)
    assert lost.ask(30) is None
    assert alive.ask(20) is None
    assert queued.ask(1) is not None
    assert waits.ask(5) is not None
    scene.clock.advance(LEASE_SECONDS + 2.0)
    assert (queued.woken, waits.woken) == (0, 1)
    assert waits.ask(5) is None
    assert scene.limits.status() == LimitsStatus(in_use=2, queued=0, spent=30.0, reserved=25.0)
    scene.clock.advance(600)
    assert scene.limits.status().in_use == 2
    lost.end()  # it was only asleep
    assert scene.limits.status().spent == 30.0


def test_tenants_take_turns() -> None:
    """Whoever has queued a thousand tickets waits behind one who has queued one."""
    scene = Scene([Limit(max_concurrency=2, per="provider")])
    busy = [Actor(scene.limits, join_name("busy", f"s{number}")) for number in range(50)]
    for actor in busy:
        actor.ask()
    assert [actor.permit is not None for actor in busy[:3]] == [True, True, False]
    quiet = Actor(scene.limits, join_name("quiet", "s"))
    assert quiet.ask() is not None
    busy[0].end()
    assert (quiet.woken, sum(actor.woken for actor in busy)) == (1, 0)
    own = SharedLimits(scene.store, ONE, tenant_of=lambda session: session[0], clock=scene.clock)
    assert own.tenant_of("xyz") == "x"


@pytest.mark.parametrize(
    ("per", "free"), [("all", ()), ("provider", ("provider",)), ("model", ("model",)), ("tenant", ("tenant",))]
)
def test_a_limit_is_of_the_calls_of_one_provider_model_or_tenant(per: Any, free: tuple[str, ...]) -> None:
    """Of each: calls elsewhere are no part of it, and wait for none that came before them."""
    scene = Scene([Limit(max_concurrency=1, per=per)])
    assert Actor(scene.limits, join_name("a", "1"), Model("https://one/v1", "m")).ask() is None
    others = {
        "none": Actor(scene.process(), join_name("a", "2"), Model("https://one/v1", "m")),
        "provider": Actor(scene.process(), join_name("a", "3"), Model("https://two/v1", "m")),
        "model": Actor(scene.process(), join_name("a", "4"), Model("https://one/v1", "n")),
        "tenant": Actor(scene.process(), join_name("b", "5"), Model("https://one/v1", "m")),
    }
    assert [name for name, other in others.items() if other.ask() is None] == [*free]


# -- tokens and spend --------------------------------------------------------------------------------------------------


def test_tokens_count_for_a_minute_and_then_whoever_waits_is_woken() -> None:
    """Requests and answers; what was estimated too much is free when the call ends."""
    scene = Scene([Limit(max_tokens_per_minute=100, per="model")])
    one, two, three = (Actor(scene.limits, model=Model(model="m")) for _ in range(3))
    other = Actor(scene.limits, model=Model(model="n"))
    assert one.ask(80) is None
    assert other.ask(80) is None
    assert two.ask(60) is not None
    one.end(answering(20, read=10))
    assert two.woken == 1
    assert two.ask(60) is None
    two.end(answering(60))
    refused = three.queue(50)
    assert refused.seconds is not None
    assert 60 <= refused.seconds <= 65
    scene.clock.advance(refused.seconds - 0.01)
    assert three.woken == 0
    scene.clock.advance(0.02)
    assert three.woken == 1
    assert three.ask(50) is None


def test_spend_counts_for_an_hour_and_a_call_that_costs_more_is_refused() -> None:
    """A call that the endpoint refused cost nothing."""
    scene = Scene([Limit(max_spend_per_hour=100.0, per="tenant")], prices=BY_ANSWER)
    one, two = Actor(scene.limits), Actor(scene.limits)
    other = Actor(scene.limits, join_name("other", "s"))
    with pytest.raises(SpendExceeded, match="about 101 dollars, and max_spend_per_hour is 100 dollars"):
        one.ask(101)
    assert one.ask(60) is None
    assert other.ask(90) is None
    assert scene.limits.status() == LimitsStatus(2, 0, 0.0, 150.0)
    refusal = SummarizerError("no")
    refusal.__cause__ = type("Refused", (Exception,), {"status_code": 400})()
    one.end(refusal)
    assert one.ask(60) is None
    one.end(answering(70))
    assert scene.limits.status().spent == 70.0
    refused = two.queue(40)
    assert refused.seconds is not None
    assert 3_600 <= refused.seconds <= 3_900
    scene.clock.advance(refused.seconds + 0.01)
    assert two.woken == 1
    assert scene.limits.status().spent == 0.0


def test_a_further_call_of_a_cycle_needs_room_but_no_other_permit() -> None:
    """What it has spent counts; without room it queues like all others."""
    scene = Scene([Limit(max_concurrency=1), Limit(max_tokens_per_minute=100)])
    one, two = Actor(scene.limits), Actor(scene.limits)
    assert one.ask(40) is None
    assert two.ask(40) is not None
    assert one.permit is not None
    one.permit.ask(one.model, SummaryRequest())
    assert one.ask(40) is None
    assert scene.limits.status().in_use == 1
    one.permit.ask(one.model, SummaryRequest())
    assert one.ask(90) is not None
    assert (two.woken, scene.limits.status().queued) == (1, 1)


def test_a_permit_was_granted_for_what_its_ticket_asked_for() -> None:
    """Who then asks for more needs room for it, or keeps its place and lets the next go ahead."""
    scene = Scene([Limit(max_spend_per_hour=100.0, max_concurrency=2)], prices=BY_ANSWER)
    one, two, three = (Actor(scene.limits) for _ in range(3))
    assert one.ask(90) is None
    assert two.ask(20) is not None
    assert three.ask(30) is not None
    one.end(answering(10))
    assert (two.woken, three.woken) == (1, 1)
    assert two.ask(70) is not None
    assert scene.limits.status() == LimitsStatus(1, 1, 10.0, 30.0)
    assert three.ask(30) is None
    four = Actor(scene.limits)
    assert four.ask(60) is not None
    three.end(answering(20))
    assert (two.woken, four.woken) == (2, 0), "it came first"
    assert two.ask(70) is None
    two.end(answering(0))
    assert four.woken == 1
    assert four.ask(65) is None, "there is room for more"


def test_a_price_that_nobody_knows_is_refused_where_spend_is_limited() -> None:
    """When the compactor is made; known models need no prices=, and what costs nothing needs none either."""
    scene = Scene([Limit(max_spend_per_hour=1.0)])
    with pytest.raises(ConfigError, match="the price of 'mine' is unknown; give prices="):
        on_command(memory_of(1), Model(model="mine"), limits=scene.limits)
    on_command(memory_of(1), Model(model="gpt-5-mini"), limits=scene.limits)
    on_command(memory_of(1), None, limits=scene.limits)
    usage = {"input_tokens": 1_000_000, "output_tokens": 100_000}
    assert scene.limits.compute_cost("gpt-5-mini", usage) == pytest.approx(0.25 + 0.2)
    with pytest.raises(ConfigError, match="not in dollars"):
        Scene(ONE, prices=Prices())


# -- endpoints that have too much to do --------------------------------------------------------------------------------


def overloaded(status: int, after: float | None) -> SummarizerError:
    error = SummarizerError("slow down", retry_after=after)
    error.__cause__ = type("Status", (Exception,), {"status_code": status})()
    return error


@pytest.mark.parametrize("status", [429, 503])
def test_a_provider_that_has_too_much_to_do_is_left_alone_by_all_and_no_other_is(status: int) -> None:
    """Until the time that it named; then whoever waits is woken."""
    scene = Scene([Limit(max_concurrency=3, per="provider")])
    other = scene.process()
    here, there = Model("https://a.example/v1"), Model("https://b.example/v1")
    one, two, elsewhere = Actor(scene.limits, model=here), Actor(other, model=here), Actor(other, model=there)
    assert one.ask() is None
    one.end(overloaded(status, 20.0))
    refused = two.queue()
    assert refused.seconds == pytest.approx(20.0)
    assert elsewhere.ask() is None
    scene.clock.advance(19.9)
    assert two.woken == 0
    scene.clock.advance(0.2)
    assert two.woken == 1
    assert two.ask() is None


def test_a_provider_stays_closed_for_the_longest_time_that_it_named() -> None:
    """Whichever of two calls is answered last."""
    scene = Scene([Limit(max_concurrency=2)])
    here = Model("https://a.example/v1")
    one, two = Actor(scene.limits, model=here), Actor(scene.limits, model=here)
    assert one.ask() is None
    assert two.ask() is None
    one.end(overloaded(429, 120.0))
    two.end(overloaded(429, 1.0))
    refused = Actor(scene.limits, model=here).queue()
    assert refused.seconds == pytest.approx(120.0)


@pytest.mark.parametrize(("status", "after"), [(500, 20.0), (429, None), (429, True), (429, float("nan"))])
def test_other_errors_close_no_provider(status: int, after: Any) -> None:
    scene = Scene(ONE)
    one = Actor(scene.limits)
    assert one.ask() is None
    one.end(overloaded(status, after))
    assert Actor(scene.limits).ask() is None


def test_a_provider_is_the_host_of_the_endpoint_or_the_class() -> None:
    """A plain function has none."""
    pytest.importorskip("openai")
    assert (
        find_provider(OpenAISummarizer("m", base_url="http://user:secret@localhost:1/v1", api_key="k")) == "localhost:1"
    )
    assert find_provider(Model()) == "Model"
    assert find_provider(answering) == ""


# -- a store that fails ------------------------------------------------------------------------------------------------


def test_while_the_store_fails_no_model_is_asked_and_then_all_goes_on() -> None:
    """What ended meanwhile is told to it later; nobody is forgotten."""
    scene = Scene([Limit(max_concurrency=1), Limit(max_spend_per_hour=100.0)], prices=BY_ANSWER)
    scene.store = store = Failing(scene.clock.monotonic)
    limits = scene.process()
    one, two = Actor(limits), Actor(limits)
    assert one.ask(60) is None
    store.fails = True
    refused = two.queue(30)
    assert refused.seconds == 5.0
    one.end(answering(60))
    scene.clock.advance(60)
    assert two.woken == 0
    store.fails = False
    scene.clock.advance(2)
    assert two.woken == 1
    assert two.ask(30) is None
    assert limits.status() == LimitsStatus(1, 0, 60.0, 30.0)


@pytest.mark.parametrize("asks", [False, True])
def test_a_process_that_stood_still_has_lost_its_place_but_not_its_tickets(asks: bool) -> None:
    """Others took it for dead. It queues again once it goes on, by its timer or because it asks."""
    scene = Scene([Limit(max_concurrency=1), Limit(max_concurrency=1, per="tenant")])
    asleep, clock = scene.process(), FakeClock()
    asleep._clock = clock
    one, (two, three, four) = Actor(scene.limits), (Actor(asleep, join_name(tenant, "s")) for tenant in "abc")
    for actor in (one, two, three):
        actor.ask()
    scene.clock.advance(LEASE_SECONDS + 4.0)
    assert scene.limits.status() == LimitsStatus(1, 0, 0.0, 0.0)
    if asks:
        assert four.ask() is not None
    else:
        clock.advance(2.0)
    assert scene.limits.status() == LimitsStatus(1, 2 + asks, 0.0, 0.0)
    one.end()
    assert two.woken + three.woken + four.woken == 1


@pytest.mark.parametrize("is_granted", [False, True])
def test_a_permit_whose_grant_the_store_could_not_confirm_is_returned(is_granted: bool) -> None:
    """Its call is not made; nobody is kept out by it."""
    scene = Scene(ONE)
    scene.store = store = Failing(scene.clock.monotonic)
    limits = scene.process()
    one, two, before = Actor(limits), Actor(limits), Actor(limits)
    if is_granted:
        before.ask()
        one.ask()
        before.end()
        assert one.woken == 1
    store.loses_answers = True
    assert one.ask() is not None
    assert one.permit is None
    store.loses_answers = False
    one.ticket.leave()
    scene.clock.advance(2.0)
    assert limits.status() == LimitsStatus(0, 0, 0.0, 0.0)
    assert two.ask() is None
    two.end()
    scene.clock.advance(60.0)
    assert scene.clock.pending == [], "without permits and tickets it shows no signs of life"


def test_what_a_call_used_counts_once_if_the_store_could_not_confirm_it() -> None:
    """It is told again with the next attempt, or when the cycle ends."""
    scene = Scene([Limit(max_spend_per_hour=100.0)], prices=BY_ANSWER)
    scene.store = store = Failing(scene.clock.monotonic)
    one = Actor(scene.process())
    assert one.ask(20) is None
    for _ in range(2):
        assert one.permit is not None
        one.permit.ask(one.model, SummaryRequest())
        store.loses_answers = True
        with pytest.raises(LimitReached):
            one.permit.reserve(SummaryRequest(target_tokens=20), len)
        store.loses_answers = False
        assert one.ask(20) is None
    one.end()
    assert one.ticket.limits.status() == LimitsStatus(0, 0, 30.0, 0.0)
    assert one.ask(20) is None
    assert one.permit is not None
    one.permit.ask(one.model, SummaryRequest())
    store.loses_answers = True
    assert one.ask(20) is not None
    store.loses_answers = False
    one.ticket.leave()
    scene.clock.advance(2.0)
    assert one.ticket.limits.status() == LimitsStatus(0, 0, 40.0, 0.0)


def test_a_store_that_cannot_share_limits_is_refused() -> None:
    """With the remedy."""

    class Six:
        def __init__(self) -> None:
            for name in ("append", "read", "sessions", "redact", "purge", "close"):
                setattr(self, name, getattr(InMemoryStore(), name))

    with pytest.raises(ConfigError, match="cannot share limits: open another"):
        SharedLimits(Six(), ONE)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give at least one"):
        SharedLimits(InMemoryStore(), [])
    with pytest.raises(ConfigError, match=r"list of Limit\("):
        SharedLimits(InMemoryStore(), [1])  # type: ignore[list-item]


class Remote(InMemoryStore):
    """Its signs of life come from other threads than the timers'."""

    is_resident = False


def call(job: Any) -> None:
    job()


@pytest.mark.parametrize("fails", ["timer", "thread"])
def test_signs_of_life_go_on_after_a_thread_could_not_be_started(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next timer, or with the next transaction."""
    scene = Scene(ONE)
    scene.store = Remote(scene.clock.monotonic)
    here, there = scene.process(), scene.process()
    failures = 1

    def run(begin: Any, *args: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("can't start new thread")
        return begin(*args)

    monkeypatch.setattr(shared_limits._HEARTBEATS, "run", partial(run, call) if fails == "thread" else call)
    if fails == "timer":
        monkeypatch.setattr(scene.clock, "call_later", partial(run, scene.clock.call_later))
    one, two = Actor(here), Actor(there)
    assert one.ask() is None
    if fails == "timer":
        here._settle()
    scene.clock.advance(2.0)
    assert failures == 0
    scene.clock.advance(60.0)
    assert two.ask() is not None
    one.end()
    assert two.woken == 1


def test_a_sign_of_life_that_was_lost_is_planned_again() -> None:
    """As when the timer's thread has died."""
    scene = Scene(ONE)
    one = Actor(scene.limits)
    assert one.ask() is None
    scene.limits._heartbeat_at = scene.clock.monotonic() - 3.0
    scene.limits._settle()
    assert scene.limits._heartbeat_at == scene.clock.monotonic() + RENEW_SECONDS


def test_signs_of_life_are_not_doubled_when_two_threads_plan_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread comes between the other's decision and its timer."""
    scene = Scene(ONE)
    limits, call_later, changes = scene.limits, scene.clock.call_later, 0
    change_limits = scene.store.change_limits

    def count(work: Any) -> Any:
        nonlocal changes
        changes += 1
        return change_limits(work)

    def between(seconds: float, callback: Any) -> Any:
        monkeypatch.setattr(scene.clock, "call_later", call_later)
        cancel = call_later(seconds, callback)
        limits._schedule_heartbeat(shared_limits.Admission(is_queued=True, seconds=0.5))
        return cancel

    assert Actor(limits).ask() is None
    for _ in range(5):
        monkeypatch.setattr(scene.clock, "call_later", between)
        scene.clock.advance(RENEW_SECONDS)
    monkeypatch.setattr(limits._store, "change_limits", count)
    scene.clock.advance(10 * RENEW_SECONDS)
    assert changes == 10


def test_limits_that_nobody_holds_are_not_kept_by_their_timer() -> None:
    scene = Scene(ONE)
    limits: SharedLimits | None = scene.process()
    assert limits is not None
    assert Actor(limits).ask() is None
    dropped = weakref.ref(limits)
    del limits
    gc.collect()
    assert dropped() is None
    scene.clock.advance(60)


def test_limits_listen_once_for_each_name_and_until_they_are_gone() -> None:
    """A dispatcher that is set later has another name: its jobs'."""
    heard: dict[str, int] = {}

    class Telling(InMemoryStore):
        def listen(self, session: str, listener: Any) -> Any:
            heard[session] = heard.get(session, 0) + 1
            return partial(heard.pop, session)

    scene = Scene(ONE)
    scene.store = Telling(scene.clock.monotonic)
    limits: SharedLimits | None = scene.process()
    assert limits is not None
    assert Actor(limits).ask() is None
    for _ in range(2):
        assert Actor(limits).ask() is not None
    own = f"limits {limits.holder}"
    assert heard == {own: 1}
    limits.wake_by(Jobs())
    for _ in range(2):
        assert Actor(limits, "t").ask() is not None
    assert heard == {own: 1, "limits ": 1}
    del limits
    gc.collect()
    assert Actor(scene.process()).ask() is not None
    assert len(heard) == 1
    assert own not in heard


# -- compactors --------------------------------------------------------------------------------------------------------


def test_a_compactor_that_may_not_ask_is_skipped_and_goes_on_by_itself() -> None:
    """It holds no worker meanwhile, whichever process has the call."""
    scene = Scene(ONE)
    summarizer = ScriptedSummarizer()
    made = [
        on_command(memory_of(10), summarizer, clock=scene.clock, limits=limits)
        for limits in (scene.limits, scene.process())
    ]
    (one, run_one, _), (two, run_two, _) = made

    def meanwhile(request: SummaryRequest) -> str:
        two.start()
        run_two.run_all()
        assert (two.status().state, two.status().skip_reason) == (State.IDLE, Skip.LIMITED)
        assert two.wait_idle(0) is False
        return str(summarizer(request))

    one._runner._summarizer = meanwhile
    one.start()
    run_one.run_all()
    (skipped,) = of_kind(two.events, Skipped)
    assert (skipped.reason, skipped.retry_in) == (Skip.LIMITED, None)
    assert len(run_two.jobs) == 1
    run_two.run_all()
    assert (end_of(one), end_of(two), summarizer.most_in_flight) == (7, 7, 1)
    assert scene.limits.status() == LimitsStatus(0, 0, 0.0, 0.0)


def test_a_compactor_that_stops_leaves_the_queue() -> None:
    scene = Scene(ONE)
    holds = Actor(scene.limits)
    assert holds.ask() is None
    compactor, executor, _ = on_command(memory_of(10), ScriptedSummarizer(), clock=scene.clock, limits=scene.limits)
    compactor.start()
    executor.run_all()
    assert scene.limits.status().queued == 1
    compactor.stop(0)
    assert scene.limits.status().queued == 0


def test_sessions_show_what_all_processes_use() -> None:
    scene = Scene(ONE)
    with Sessions(store=scene.store, limits=scene.limits, clock=scene.clock) as sessions:
        assert Actor(scene.limits).ask() is None
        assert sessions.status().limits == LimitsStatus(1, 0, 0.0, 0.0)


def test_a_compactor_takes_shared_limits() -> None:
    """As it takes those of one process, and nothing else."""
    with pytest.raises(TypeError, match=r"what Limits\(...\) or SharedLimits\(...\) gives"):
        ContextCompactor.for_role(memory_of(1), ROLE, CONFIG, limits=3)  # type: ignore[arg-type]
