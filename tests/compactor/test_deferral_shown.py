"""When what is deferred is shown: as soon as that costs least, where a prompt would not fit, and when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from deferred_session import DEAR, FullStore, Scene, long_round, requests, text
from executors import SOON
from scene import CONFIG, PRICES, ROLE, Calls, add_round, in_thread, memory_of, of_kind, prices
from views import get_token_cache

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Deferred,
    Discarded,
    Failed,
    Limits,
    Prices,
    PublicationFailed,
    Published,
    Skip,
    State,
    after_rounds,
    compact_rounds,
    compose,
    cost_optimal,
    deferred,
    get_counter,
    over_usage,
)
from compactor.cost import Decision, Moment
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage, InMemoryStore, ProviderFailed

# -- when it is shown -------------------------------------------------------------------------------------------------


def test_it_is_shown_when_the_cache_is_cold_though_nothing_happens() -> None:
    """A timer looks, once: a provider's cache forgets a prompt five minutes after it was sent last."""
    scene = Scene()
    assert scene.clock.pending == [300.0]
    scene.clock.advance(200)
    scene.add()
    assert scene.clock.pending == [300.0], "the newest post counts"
    scene.clock.advance(299)
    scene.executor.run_all()
    assert scene.end == 0
    scene.clock.advance(1)
    scene.executor.run_all()
    assert (scene.end, scene.deferred.reason, scene.deferred.idle) == (7, "cold", 300.0)
    (published,) = scene.events(Published)
    assert (published.reused, published.requests, published.strategy) == (True, 0, "compact_rounds")
    assert scene.clock.pending == []


def test_it_is_shown_when_longer_prompts_have_cost_what_a_new_beginning_costs() -> None:
    """Counted are the calls since it was prepared: what the role has said."""
    scene = Scene(prices=Prices(cached_input=0.2, cache_write=1.0))
    price, gain = scene.deferred.price, scene.deferred.tokens_before - scene.deferred.tokens_after
    assert price == pytest.approx(0.8 * (scene.deferred.summary + scene.deferred.retained))
    calls = 0
    while scene.end == 0:
        assert (scene.deferred.calls, scene.deferred.missed_saving) == (calls, calls * gain)
        assert scene.deferred.saving == pytest.approx(0.2 * calls * gain)
        assert scene.deferred.saving < scene.deferred.price == price, "it does not grow with what comes"
        scene.add()
        calls += 1
    assert scene.deferred.reason == "repaid"
    assert 0.2 * (calls - 1) * gain < price <= 0.2 * calls * gain
    assert calls > 1


def test_what_was_forgone_before_it_was_extended_counts_as_well() -> None:
    """Five calls with what was prepared first, then two with what took it in."""
    scene = Scene()
    first = scene.deferred.tokens_before - scene.deferred.tokens_after
    scene.add(5)
    assert (scene.deferred.end, scene.deferred.calls, scene.deferred.missed_saving) == (12, 0, 5 * first)
    second = scene.deferred.tokens_before - scene.deferred.tokens_after
    scene.add(2)
    assert (scene.deferred.calls, scene.deferred.missed_saving) == (2, 5 * first + 2 * second)


def test_calls_are_counted_post_by_post() -> None:
    """In the round that was open when it was prepared, and in those behind it: what the role says, not what it is told."""
    scene = Scene(rounds=9)
    round_ = add_round(scene.memory, close=False)  # the tenth: it asks, and one answer is there
    scene.executor.run_all()
    scene.memory.add_post(round_, send_from=ROLE, send_to="CodeInterpreter", message="Count them.")
    scene.memory.add_post(round_, send_from="CodeInterpreter", send_to=ROLE, message="There are 12.")
    scene.memory.add_post(round_, send_from=ROLE, send_to="User", message="There are 12 of them.")
    scene.executor.run_all()
    (kept,) = scene.records("compaction prepared")
    assert (kept.seen_round_id, kept.seen_post) == ("r9", 2)
    assert scene.deferred.calls == 3
    scene.memory.finish_round(round_)
    scene.add()
    assert scene.deferred.calls == 4


@pytest.mark.parametrize(
    "more",
    [
        {"config": CONFIG.copy_with(max_tokens=500, token_ratio=1.0)},
        {"trigger": after_rounds(7) | cost_optimal(DEAR, budget=500, latency_calls=0)},
        {
            "trigger": after_rounds(7) | cost_optimal(DEAR, budget=500, latency_calls=0),
            "config": CONFIG.copy_with(max_tokens=9_000),
        },
    ],
)
def test_the_budget_shows_it_at_once(more: dict[str, Any]) -> None:
    """Where the prompt is over that of configuration or trigger, whichever is smaller, and fits with it."""
    scene = Scene(**more)
    assert (scene.end, scene.deferred.shows) == (0, False)
    while scene.end == 0:
        assert scene.deferred.tokens_before <= 500
        scene.add()
    cost_evaluation = scene.events(Deferred)[-1]
    assert (cost_evaluation.reason, scene.end) == ("budget", 7)
    assert cost_evaluation.tokens_before > 500 >= cost_evaluation.tokens_after


def test_a_tail_that_has_outgrown_it_is_taken_in_before_it_is_shown() -> None:
    """Though the trigger does not hold: it is not thrown away, only the new rounds are sent, and what fits is shown."""
    scene = Scene(publish=deferred(DEAR, budget=700))
    long_round(scene.memory)
    scene.executor.run_all()
    before, after = scene.events(Deferred)[-2:]
    assert (before.shows, before.reason, before.end) == (True, "budget", 7)
    assert before.tokens_after > 700
    assert requests(scene) == [(1, 7, None), (8, 11, "Summary of rounds 1-7.")]
    assert (after.shows, after.reason, after.end) == (True, "budget", 11)
    assert after.tokens_after <= 700
    assert len(scene.records("compaction published")) == 1
    assert scene.end == 11


def test_where_nothing_is_left_to_take_in_it_is_shown_as_it_is() -> None:
    """The round that is too long is still open: with what is deferred, the prompt is shorter at least."""
    scene = Scene(publish=deferred(DEAR, budget=700), config=CompactorConfig(threshold=7, retain_recent=0))
    assert scene.deferred.end == 10
    long_round(scene.memory, close=False)
    scene.executor.run_all()
    assert scene.deferred.tokens_after > 700
    assert (scene.end, len(scene.summarizer.requests)) == (10, 1)


def test_where_it_cannot_be_extended_it_is_shown_as_it_is() -> None:
    """The prompt is too long, and no model answers: it is shorter with what is deferred. The compactor goes on trying."""
    summarizer = ScriptedSummarizer([PRICES], default=OSError("away"))
    scene = Scene(summarizer=summarizer, publish=deferred(DEAR, budget=700))
    long_round(scene.memory)
    scene.executor.run_all()
    assert [event.error for event in scene.events(Failed)] == ["OSError"]
    assert (scene.deferred.reason, scene.deferred.tokens_after > 700, scene.end) == ("budget", True, 7)
    status = scene.compactor.status()
    assert (status.state, status.failures, len(summarizer.requests)) == (State.BACKING_OFF, 1, 2)


def test_where_the_model_hangs_it_is_shown_at_the_deadline() -> None:
    """What is answered later is not wanted any more."""

    def hang(_request: object) -> str:
        scene.clock.advance(scene.compactor.config.call_timeout)
        return prices("Too late")

    scene = Scene(summarizer=ScriptedSummarizer([PRICES, hang]), publish=deferred(DEAR, budget=700))
    long_round(scene.memory)
    scene.executor.run_all()
    assert [event.error for event in scene.events(Failed)] == ["CompactionTimeout"]
    assert [event.reason for event in scene.events(Discarded)] == ["late"]
    assert (scene.end, len(scene.records("compaction published"))) == (7, 1)


def test_where_the_compactor_is_stopped_meanwhile_it_stays_deferred() -> None:
    """After ``stop`` nothing changes any more; the next process shows it."""

    def stop_and_fail(_request: object) -> str:
        assert not scene.compactor.stop(0)
        raise OSError("away")

    scene = Scene(summarizer=ScriptedSummarizer([PRICES, stop_and_fail]), publish=deferred(DEAR, budget=700))
    long_round(scene.memory)
    scene.executor.run_all()
    assert [event.error for event in scene.events(Failed)] == ["OSError"]
    assert (scene.end, scene.compactor.status().state) == (0, State.STOPPED)


def test_where_there_is_no_room_to_ask_it_is_shown_as_it_is() -> None:
    """The limits that it shares with others may have none for an hour."""
    clock = FakeClock()
    limits = Limits(max_concurrency=1, clock=clock)
    scene = Scene(clock=clock, limits=limits, publish=deferred(DEAR, budget=700))
    with in_a_call(limits):
        long_round(scene.memory)
        scene.executor.run_all()
        assert (scene.end, scene.compactor.status().skip_reason) == (7, Skip.LIMITED)
        assert (limits.status().queued, len(scene.summarizer.requests)) == (1, 1)


@contextmanager
def in_a_call(limits: Limits) -> Iterator[None]:
    """Have a compactor of another session ask its model under *limits* meanwhile."""
    calls = Calls()
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, calls, limits=limits) as other:
        assert calls.begun.acquire(timeout=SOON)
        yield
        calls.go_on.set()
        assert other.wait_idle(SOON)


def test_where_it_can_be_neither_extended_nor_shown_the_failure_is_told() -> None:
    """The store is full as well: the compactor backs off, and shows it afterwards."""
    summarizer = ScriptedSummarizer([PRICES, OSError("away")])
    store = FullStore()
    scene = Scene(summarizer=summarizer, store=store, publish=deferred(DEAR, budget=700))
    store.refused = frozenset({"compaction published"})
    long_round(scene.memory)
    scene.executor.run_all()
    assert [event.error for event in scene.events(Failed)] == ["OSError"]
    assert (scene.end, scene.compactor.status().state) == (0, State.BACKING_OFF)
    store.refused = frozenset()
    scene.clock.advance(scene.events(Failed)[0].retry_in)
    scene.executor.run_all()
    assert scene.end == 11


def test_while_no_model_answers_what_is_deferred_and_not_due_stays() -> None:
    """A prompt that is too long shows it all the same, and the back-off goes on."""
    scene = Scene(summarizer=ScriptedSummarizer([PRICES], default=OSError("away")))
    scene.add(5)
    assert [event.error for event in scene.events(Failed)] == ["OSError"]
    assert (scene.end, scene.compactor.status().failures) == (0, 1)
    prompt = compose(scene.memory, ROLE, budget=410)
    assert scene.end == 7
    assert not prompt.report.omitted_rounds
    assert scene.compactor.status().failures == 1, "that says nothing of the model"


def test_a_compaction_that_makes_nothing_shorter_is_deferred_for_good() -> None:
    """Whoever made it: neither a cold cache nor a prompt that is too long shows it; the next one takes it in."""

    def wordy(view: Any) -> Sequence[CompactedMessage]:
        return [] if view.end else [CompactedMessage(start_index=1, end_index=1, summary="Nothing was said. " * 200)]

    scene = Scene(strategies=(wordy, compact_rounds), config=CompactorConfig(threshold=9, retain_recent=3))
    assert (scene.deferred.reason, scene.deferred.end) == ("no_gain", 1)
    scene.clock.advance(10_000)
    scene.executor.run_all()
    assert (scene.end, scene.deferred.reason) == (0, "no_gain")
    assert compose(scene.memory, ROLE, budget=250).report.omitted_rounds, "compose has to leave some out"
    assert scene.end == 0
    scene.add()
    assert (scene.deferred.end, scene.deferred.reason) == (8, "saving")
    assert requests(scene)[0][0] == 2


def test_what_is_switched_off_shows_nothing() -> None:
    """A configuration that is not ``enabled`` does nothing at all."""
    store = InMemoryStore()
    Scene(store=store)
    scene = Scene(0, store=store, config=CONFIG.model_copy(update={"enabled": False}))
    scene.clock.advance(1_000)
    scene.executor.run_all()
    assert (scene.end, scene.events(Deferred)) == (0, [])
    assert compose(scene.memory, ROLE, budget=300).report.omitted_rounds


def test_compact_now_shows_it_at_once() -> None:
    """With all that can be compacted by then, in one publication."""
    scene = Scene()
    scene.add(3)
    wait = in_thread(lambda: scene.compactor.compact_now(SOON))
    scene.executor.run_coming()
    made = wait()
    assert (made.end_index, scene.end) == (10, 10)
    assert requests(scene) == [(1, 7, None), (8, 10, "Summary of rounds 1-7.")]
    (published,) = scene.events(Published)
    assert (published.reused, published.requests) == (False, 1)
    assert not scene.events(Discarded)


def test_compact_now_with_nothing_new_shows_what_is_deferred() -> None:
    """Nobody is asked then."""
    scene = Scene()
    wait = in_thread(lambda: scene.compactor.compact_now(SOON))
    scene.executor.run_coming()
    assert wait().end_index == scene.end == 7
    assert len(scene.summarizer.requests) == 1
    assert [event.reused for event in scene.events(Published)] == [True]


def test_who_waits_for_a_turn_to_ask_shows_what_is_deferred_all_the_same() -> None:
    """That takes no model: where the limits have no room for the next summary, the cold cache still shows this one."""
    clock = FakeClock()
    limits = Limits(max_concurrency=1, clock=clock)
    scene = Scene(clock=clock, limits=limits)
    with in_a_call(limits):
        scene.add(5)
        assert scene.compactor.status().skip_reason is Skip.LIMITED
        assert (scene.deferred.end, scene.deferred.shows, scene.clock.pending) == (7, False, [300.0])
        scene.clock.advance(300)
        scene.executor.run_all()
        assert (scene.end, scene.deferred.reason, len(scene.summarizer.requests)) == (7, "cold", 1)
        assert limits.status().queued == 1, "it keeps its place in the line"
    scene.executor.run_all()
    assert requests(scene)[1:] == [(8, 12, "Summary of rounds 1-7.")]


def test_a_policy_of_ones_own_decides() -> None:
    """It is given the numbers, and what it says is told."""
    moments: list[Moment] = []

    def on_monday(moment: Moment) -> Decision:
        moments.append(moment)
        return Decision(show=moment.calls >= 2, reason="monday", recheck_in=60.0)

    scene = Scene(publish=on_monday)
    assert scene.clock.pending == [60.0]
    scene.add(2)
    assert [one.calls for one in moments] == [0, 1, 2]
    assert (scene.deferred.reason, scene.deferred.shows, scene.end) == ("monday", True, 7)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (lambda moment: {}[moment], "KeyError"),
        (lambda _moment: True, "TypeError"),
        (lambda _moment: Decision(show=False, reason="soon", recheck_in=0.0), "ValueError"),
        (lambda _moment: Decision(show=False, reason="soon", recheck_in=math.nan), "ValueError"),
    ],
)
def test_a_policy_that_fails_holds_nothing_up(policy: Any, error: str) -> None:
    """It is told, and what was prepared is shown: prompts do not grow, and nothing is looked at without end."""
    scene = Scene(publish=policy)
    assert [event.error for event in scene.events(PublicationFailed)] == [error]
    assert (scene.deferred.reason, scene.end, scene.clock.pending) == ("failed", 7, [])
    assert (scene.events(Failed), scene.compactor.status().failures) == ([], 0)
    scene.add(5)
    assert scene.end == 12


def test_a_policy_that_fails_shows_nothing_that_is_no_shorter() -> None:
    """Nor is a prompt that is too long helped by that."""

    def wordy(view: Any) -> Sequence[CompactedMessage]:
        return [] if view.end else [CompactedMessage(start_index=1, end_index=1, summary="Nothing was said. " * 200)]

    scene = Scene(strategies=(wordy,), publish=lambda _moment: None)
    assert compose(scene.memory, ROLE, budget=250).report.omitted_rounds
    assert (scene.deferred.reason, scene.deferred.shows, scene.end) == ("failed", False, 0)


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_too_long_shows_it_instead_of_leaving_rounds_out() -> None:
    """In the same call, and no model is asked; the trigger is looked at again afterwards."""
    scene = Scene()
    asked = len(scene.summarizer.requests)
    prompt = compose(scene.memory, ROLE, budget=300, system="You plan.")
    assert scene.end == 7
    assert "Summary of rounds 1-7." in text(prompt.messages)
    assert (prompt.report.omitted_rounds, prompt.report.reductions) == ((), ())
    assert len(scene.summarizer.requests) == asked
    cost_evaluation = scene.deferred
    assert (cost_evaluation.shows, cost_evaluation.reason) == (True, "budget")
    assert len(scene.executor.jobs) == 1
    scene.executor.run_all()
    assert compose(scene.memory, ROLE, budget=300, system="You plan.").messages == prompt.messages


def test_where_it_is_not_enough_compose_does_the_rest() -> None:
    scene = Scene()
    prompt = compose(scene.memory, ROLE, budget=150)
    assert scene.end == 7
    assert prompt.tokens <= 150
    assert prompt.report.omitted_rounds[0] == 8


def test_a_prompt_that_fits_shows_nothing() -> None:
    scene = Scene()
    assert compose(scene.memory, ROLE, budget=8_000).report.tokens_before <= 8_000
    assert scene.end == 0


def test_a_store_that_fails_leaves_the_prompt_to_compose() -> None:
    """What is deferred stays deferred, and is shown when the store is there again."""
    store = FullStore()
    scene = Scene(store=store)
    told: list[Any] = []
    scene.memory.on_event(told.append)
    store.refused = frozenset({"compaction published"})
    assert compose(scene.memory, ROLE, budget=300).report.omitted_rounds
    assert [event.error for event in of_kind(told, ProviderFailed)] == ["StoreFull"]
    assert scene.end == 0
    store.refused = frozenset()
    assert not compose(scene.memory, ROLE, budget=300).report.omitted_rounds
    assert scene.end == 7


def test_the_beginning_of_prompts_breaks_once_for_each_publication() -> None:
    """A prompt after every post: its beginning is the one before, but where a compaction was shown in between; what
    was extended while it was deferred has cost no other break. The system's message survives."""
    scene = Scene(rounds=0, prices=Prices(cached_input=0.2, cache_write=1.0))
    before: list[dict[str, Any]] = []
    breaks = 0
    for number in range(1, 41):
        round_ = scene.memory.create_round(f"Question {number}: what about item-{number}?", id=f"r{number}")
        for say in (
            lambda: None,
            lambda: scene.memory.add_post(round_, send_from=ROLE, send_to="User", message="It is there. " * 12),  # noqa: B023
            lambda: scene.memory.finish_round(round_),  # noqa: B023
        ):
            say()
            scene.executor.run_all()
            messages = compose(scene.memory, ROLE, budget=8_000, system="You plan.").messages
            assert messages[0] == {"role": "system", "content": "You plan."}
            if messages[: len(before)] != before:
                breaks += 1
                assert messages[:1] == before[:1]
                assert messages[1] != before[1]
            before = messages
    assert breaks == len(scene.records("compaction published")) > 1
    assert len(scene.records("compaction prepared")) >= breaks


def test_what_is_asked_while_a_prompt_shows_it_is_not_lost() -> None:
    """The answer was made from what is shown now: it is kept, and goes on from there."""
    scene = Scene(summarizer=ScriptedSummarizer([prices("First"), lambda _: shown_meanwhile(scene), prices("Third")]))
    scene.add(5)
    assert (scene.end, scene.deferred.end) == (7, 12)
    assert not scene.events(Discarded)
    assert not scene.events(Failed)
    kept = scene.records("compaction prepared")
    assert [(one.base, len(one.round_ids)) for one in kept] == [(0, 7), (1, 5)]
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 12
    assert len(scene.summarizer.requests) == 2


def shown_meanwhile(scene: Scene) -> str:
    compose(scene.memory, ROLE, budget=400)
    assert scene.end == 7
    return prices("Second")


def test_tools_and_the_providers_count_belong_to_the_prompt() -> None:
    """What is weighed against the budget is what the provider counts: schemas of tools, and more than we count."""
    scene = Scene()
    before = scene.deferred
    tools = [{"type": "function", "function": {"name": "count", "description": "Count items. " * 20}}]
    compose(scene.memory, ROLE, budget=8_000, tools=tools)
    scene.memory.record_usage(ROLE, 2_000, counted=1_000)
    scene.executor.run_all()
    token_cache = get_token_cache(scene.memory, ROLE, get_counter(""))
    assert token_cache.tool_tokens > 40
    correction = scene.memory.usage(ROLE).correction
    assert correction > 1
    assert scene.deferred.tokens_before == math.ceil((before.tokens_before + token_cache.tool_tokens) * correction)
    assert scene.deferred.tokens_after == math.ceil((before.tokens_after + token_cache.tool_tokens) * correction)


def test_a_trigger_by_usage_does_not_take_the_shown_prompt_for_the_one_ahead() -> None:
    """The provider counted what is shown; what is deferred makes it shorter, and is not extended for that."""
    scene = Scene(rounds=0, trigger=over_usage(400, until=50))
    scene.add(10)
    scene.memory.record_usage(ROLE, 450)
    scene.executor.run_all()
    assert len(scene.summarizer.requests) == 1
    scene.add()
    assert len(scene.summarizer.requests) == 1
