"""A compaction that is prepared and held: who sees what, what goes on from it, and when it is shown or lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from executors import SOON, ManualExecutor
from scene import ROLE, Heard, add_round, in_thread, of_kind

from compactor import (
    CompactorConfig,
    ContextCompactor,
    ExtractiveSummarizer,
    Limits,
    Skip,
    State,
    after_rounds,
    cheapest,
    compact_rounds,
    compose,
    offload_large,
    over_tokens,
    over_usage,
)
from compactor.cost.prices import Prices
from compactor.cost.publication import Decision, Moment, when_cheapest
from compactor.events import Discarded, Failed, Held, PublicationFailed, Published, Reduced
from compactor.ledger import ledger_of
from compactor.limits import Place
from compactor.testing import FakeClock, ScriptedSummarizer
from compactor.tokens import counter_for
from memory import CompactedMessage, InMemoryStore, Memory, Store, StoreFull, open_store
from memory.entries import CompactionPrepared, CompactionPublished, Entry
from memory.events import ProviderFailed

CONFIG = CompactorConfig(threshold=7, retain_recent=3)
#: Nothing is repaid in a test's lifetime: a new beginning costs a fortune.
DEAR = Prices(cached=0.1, written=1_000.0)
#: And here at the first call that is longer than it had to be.
CHEAP = Prices(cached=0.1, written=0.1001)


class Scene:
    """A session and the compactor of one role, which does nothing unless its executor or the clock is told to."""

    def __init__(
        self,
        rounds: int = 10,
        summarizer: object = None,
        *,
        store: Store | None = None,
        clock: FakeClock | None = None,
        config: CompactorConfig = CONFIG,
        publish: Any = "when_cheapest",
        prices: Prices = DEAR,
        **more: Any,
    ) -> None:
        self.clock = clock if clock is not None else FakeClock()
        self.store = store if store is not None else InMemoryStore()
        self.memory = Memory("session", store=self.store, clock=self.clock.now)
        self.summarizer: Any = ScriptedSummarizer() if summarizer is None else summarizer
        self.executor = ManualExecutor()
        for _ in range(rounds):
            add_round(self.memory)
        self.compactor = ContextCompactor.for_role(
            self.memory, ROLE, config, self.summarizer, publish=publish, prices=prices,
            executor=self.executor, clock=self.clock, rng=lambda: 1.0, **more,
        )  # fmt: skip
        self.compactor.start()
        self.executor.run_all()

    def add(self, rounds: int = 1) -> None:
        """One by one, each looked at."""
        for _ in range(rounds):
            add_round(self.memory)
            self.executor.run_all()

    def events(self, kind: type[Any]) -> list[Any]:
        return of_kind(self.compactor.events, kind)

    @property
    def held(self) -> Held:
        """What was weighed last."""
        newest: Held = self.events(Held)[-1]
        return newest

    @property
    def end(self) -> int:
        """Where what is shown ends."""
        _, compaction = self.memory.get_role_rounds(ROLE)
        assert compaction == self.compactor.get_compaction()
        return compaction.end_index if compaction is not None else 0

    def records(self, kind: type[Any]) -> list[Any]:
        return [entry.record for entry in self.store.read("session") if isinstance(entry.record, kind)]


class FullStore(InMemoryStore):
    """A store that has no room for the kinds of entries that a test names."""

    refused: frozenset[str] = frozenset()

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        if any(entry.kind in self.refused for entry in entries):
            raise StoreFull("no room; make some")
        return super().append(session, entries, after)


def requests(scene: Scene) -> list[tuple[int, int, str | None]]:
    """What the summarizer was asked: the span, and the summary before."""
    return [(one.start_index, one.end_index, one.previous.summary if one.previous else None)
            for one in scene.summarizer.requests]  # fmt: skip


def text(messages: Sequence[dict[str, Any]]) -> str:
    return "\n".join(str(message["content"]) for message in messages)


def long_round(memory: Memory, *, close: bool = True) -> None:
    """Add one of some 650 tokens."""
    round_ = memory.create_round("And now?", id=f"r{len(memory.conversation.rounds) + 1}")
    memory.add_post(round_, send_from=ROLE, send_to="User", message="There is a lot to be said of that. " * 65)
    if close:
        memory.finish_round(round_)


def never(_moment: Moment) -> Decision:
    return Decision(show=False, reason="never")


# -- who sees what ----------------------------------------------------------------------------------------------------


def test_what_is_held_is_shown_to_nobody() -> None:
    """Not to who asks for the compaction, the role's rounds or a prompt: they are what they were."""
    scene = Scene()
    plain = Memory("plain")
    for _ in range(10):
        add_round(plain)
    assert scene.compactor.get_compaction() is None
    assert scene.memory.get_role_rounds(ROLE)[1] is None
    assert compose(scene.memory, ROLE, budget=8_000).messages == compose(plain, ROLE, budget=8_000).messages
    assert (scene.held.shows, scene.held.reason, scene.held.end) == (False, "saving", 7)
    status = scene.compactor.status()
    assert (status.generation, status.end_index, status.failures) == (0, 0, 0)
    (kept,) = scene.records(CompactionPrepared)
    assert (kept.compaction.end_index, kept.seen_round_id, kept.seen_post) == (7, "r10", 2)
    assert scene.compactor.wait_idle(0)


def test_by_default_nothing_is_held() -> None:
    """What is ready is shown."""
    scene = Scene(publish="when_ready")
    assert scene.end == 7
    assert not scene.events(Held)
    assert scene.compactor.publish_held() is False


def test_trigger_and_plan_go_on_from_its_end() -> None:
    """As if it were shown: of twenty rounds seven are covered, then five more each time, from the summary before."""
    scene = Scene()
    scene.add(10)
    assert requests(scene) == [
        (1, 7, None), (8, 12, "Summary of rounds 1-7."), (13, 17, "Summary of rounds 1-12."),
    ]  # fmt: skip
    assert (scene.end, scene.held.end) == (0, 17)
    assert [len(one.round_ids) for one in scene.records(CompactionPrepared)] == [7, 12, 17]


def test_what_is_not_asked_of_a_model_is_held_as_well() -> None:
    """It has to be found again later: so it is kept, though it cost nothing."""
    scene = Scene(summarizer=ExtractiveSummarizer())
    assert (scene.end, scene.held.end) == (0, 7)
    assert len(scene.records(CompactionPrepared)) == 1
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 7


# -- when it is shown -------------------------------------------------------------------------------------------------


def test_it_is_shown_when_the_cache_is_cold_though_nothing_happens() -> None:
    """A timer looks, once: a provider's cache forgets a prompt five minutes after it was sent last."""
    scene = Scene()
    assert scene.clock.waiting == [300.0]
    scene.clock.advance(200)
    scene.add()
    assert scene.clock.waiting == [300.0], "the newest post counts"
    scene.clock.advance(299)
    scene.executor.run_all()
    assert scene.end == 0
    scene.clock.advance(1)
    scene.executor.run_all()
    assert (scene.end, scene.held.reason, scene.held.idle) == (7, "cold", 300.0)
    (published,) = scene.events(Published)
    assert (published.reused, published.requests, published.strategy) == (True, 0, "compact_rounds")
    assert scene.clock.waiting == []


def test_it_is_shown_when_longer_prompts_have_cost_what_a_new_beginning_costs() -> None:
    """Counted are the calls since it was prepared: what the role has said."""
    scene = Scene(prices=Prices(cached=0.2, written=1.0))
    price, gain = scene.held.price, scene.held.tokens_before - scene.held.tokens_after
    assert price == pytest.approx(0.8 * (scene.held.summary + scene.held.retained))
    calls = 0
    while scene.end == 0:
        assert (scene.held.calls, scene.held.forgone) == (calls, calls * gain)
        assert scene.held.saving == pytest.approx(0.2 * calls * gain)
        assert scene.held.saving < scene.held.price == price, "it does not grow with what comes"
        scene.add()
        calls += 1
    assert scene.held.reason == "repaid"
    assert 0.2 * (calls - 1) * gain < price <= 0.2 * calls * gain
    assert calls > 1


def test_what_was_forgone_before_it_was_extended_counts_as_well() -> None:
    """Five calls with what was prepared first, then two with what took it in."""
    scene = Scene()
    first = scene.held.tokens_before - scene.held.tokens_after
    scene.add(5)
    assert (scene.held.end, scene.held.calls, scene.held.forgone) == (12, 0, 5 * first)
    second = scene.held.tokens_before - scene.held.tokens_after
    scene.add(2)
    assert (scene.held.calls, scene.held.forgone) == (2, 5 * first + 2 * second)


def test_calls_are_counted_post_by_post() -> None:
    """In the round that was open when it was prepared, and in those behind it: what the role says, not what it is told."""
    scene = Scene(rounds=9)
    round_ = add_round(scene.memory, close=False)  # the tenth: it asks, and one answer is there
    scene.executor.run_all()
    scene.memory.add_post(round_, send_from=ROLE, send_to="CodeInterpreter", message="Count them.")
    scene.memory.add_post(round_, send_from="CodeInterpreter", send_to=ROLE, message="There are 12.")
    scene.memory.add_post(round_, send_from=ROLE, send_to="User", message="There are 12 of them.")
    scene.executor.run_all()
    (kept,) = scene.records(CompactionPrepared)
    assert (kept.seen_round_id, kept.seen_post) == ("r9", 2)
    assert scene.held.calls == 3
    scene.memory.finish_round(round_)
    scene.add()
    assert scene.held.calls == 4


@pytest.mark.parametrize(
    "more",
    [
        {"config": CONFIG.merged(max_tokens=500, token_ratio=1.0)},
        {"trigger": after_rounds(7) | cheapest(DEAR, budget=500)},
        {"trigger": after_rounds(7) | cheapest(DEAR, budget=500), "config": CONFIG.merged(max_tokens=9_000)},
    ],
)
def test_the_budget_shows_it_at_once(more: dict[str, Any]) -> None:
    """Where the prompt is over that of configuration or trigger, whichever is smaller, and fits with it."""
    scene = Scene(**more)
    assert (scene.end, scene.held.shows) == (0, False)
    while scene.end == 0:
        assert scene.held.tokens_before <= 500
        scene.add()
    weighed = scene.events(Held)[-1]
    assert (weighed.reason, scene.end) == ("budget", 7)
    assert weighed.tokens_before > 500 >= weighed.tokens_after


def test_a_tail_that_has_outgrown_it_is_taken_in_before_it_is_shown() -> None:
    """Though the trigger does not hold: it is not thrown away, only the new rounds are sent, and what fits is shown."""
    scene = Scene(publish=when_cheapest(DEAR, budget=700))
    long_round(scene.memory)
    scene.executor.run_all()
    before, after = scene.events(Held)[-2:]
    assert (before.shows, before.reason, before.end) == (True, "budget", 7)
    assert before.tokens_after > 700
    assert requests(scene) == [(1, 7, None), (8, 11, "Summary of rounds 1-7.")]
    assert (after.shows, after.reason, after.end) == (True, "budget", 11)
    assert after.tokens_after <= 700
    assert len(scene.records(CompactionPublished)) == 1
    assert scene.end == 11


def test_where_nothing_is_left_to_take_in_it_is_shown_as_it_is() -> None:
    """The round that is too long is still open: with what is held, the prompt is shorter at least."""
    scene = Scene(publish=when_cheapest(DEAR, budget=700), config=CompactorConfig(threshold=7, retain_recent=0))
    assert scene.held.end == 10
    long_round(scene.memory, close=False)
    scene.executor.run_all()
    assert scene.held.tokens_after > 700
    assert (scene.end, len(scene.summarizer.requests)) == (10, 1)


def test_where_it_cannot_be_extended_it_is_shown_as_it_is() -> None:
    """The prompt is too long, and no model answers: it is shorter with what is held. The compactor goes on trying."""
    summarizer = ScriptedSummarizer(["A summary."], default=OSError("away"))
    scene = Scene(summarizer=summarizer, publish=when_cheapest(DEAR, budget=700))
    long_round(scene.memory)
    scene.executor.run_all()
    assert [event.error for event in scene.events(Failed)] == ["OSError"]
    assert (scene.held.reason, scene.held.tokens_after > 700, scene.end) == ("budget", True, 7)
    status = scene.compactor.status()
    assert (status.state, status.failures, len(summarizer.requests)) == (State.BACKING_OFF, 1, 2)


def test_where_the_model_hangs_it_is_shown_at_the_deadline() -> None:
    """What is answered later is not wanted any more."""

    def hang(_request: object) -> str:
        scene.clock.advance(scene.compactor.config.call_timeout)
        return "Too late."

    scene = Scene(summarizer=ScriptedSummarizer(["A summary.", hang]), publish=when_cheapest(DEAR, budget=700))
    long_round(scene.memory)
    scene.executor.run_all()
    assert [event.error for event in scene.events(Failed)] == ["CompactionTimeout"]
    assert [event.reason for event in scene.events(Discarded)] == ["late"]
    assert (scene.end, len(scene.records(CompactionPublished))) == (7, 1)


def test_where_the_compactor_is_stopped_meanwhile_it_stays_held() -> None:
    """After ``stop`` nothing changes any more; the next process shows it."""

    def stop_and_fail(_request: object) -> str:
        assert not scene.compactor.stop(0)
        raise OSError("away")

    scene = Scene(summarizer=ScriptedSummarizer(["A summary.", stop_and_fail]), publish=when_cheapest(DEAR, budget=700))
    long_round(scene.memory)
    scene.executor.run_all()
    assert [event.error for event in scene.events(Failed)] == ["OSError"]
    assert (scene.end, scene.compactor.status().state) == (0, State.STOPPED)


def test_where_there_is_no_room_to_ask_it_is_shown_as_it_is() -> None:
    """The limits that it shares with others may have none for an hour."""
    clock = FakeClock()
    limits = Limits(concurrent=1, clock=clock)
    scene = Scene(clock=clock, limits=limits, publish=when_cheapest(DEAR, budget=700))
    limits._let_in(Place(limits), 0.0)
    long_round(scene.memory)
    scene.executor.run_all()
    assert (scene.end, scene.compactor.status().why_idle) == (7, Skip.LIMITED)
    assert (limits.status().waiting, len(scene.summarizer.requests)) == (1, 1)


def test_where_it_can_be_neither_extended_nor_shown_the_failure_is_told() -> None:
    """The store is full as well: the compactor backs off, and shows it afterwards."""
    summarizer = ScriptedSummarizer(["A summary.", OSError("away")])
    store = FullStore()
    scene = Scene(summarizer=summarizer, store=store, publish=when_cheapest(DEAR, budget=700))
    store.refused = frozenset({"compaction published"})
    long_round(scene.memory)
    scene.executor.run_all()
    assert [event.error for event in scene.events(Failed)] == ["OSError"]
    assert (scene.end, scene.compactor.status().state) == (0, State.BACKING_OFF)
    store.refused = frozenset()
    scene.clock.advance(scene.events(Failed)[0].retry_in)
    scene.executor.run_all()
    assert scene.end == 11


def test_while_no_model_answers_what_is_held_and_not_due_stays() -> None:
    """A prompt that is too long shows it all the same, and the back-off goes on."""
    scene = Scene(summarizer=ScriptedSummarizer(["A summary."], default=OSError("away")))
    scene.add(5)
    assert [event.error for event in scene.events(Failed)] == ["OSError"]
    assert (scene.end, scene.compactor.status().failures) == (0, 1)
    prompt = compose(scene.memory, ROLE, budget=400)
    assert scene.end == 7
    assert not prompt.report.omitted_rounds
    assert scene.compactor.status().failures == 1, "that says nothing of the model"


def test_a_compaction_that_makes_nothing_shorter_is_held_for_good() -> None:
    """Whoever made it: neither a cold cache nor a prompt that is too long shows it; the next one takes it in."""

    def wordy(view: Any) -> Sequence[CompactedMessage]:
        return [] if view.end else [CompactedMessage(start_index=1, end_index=1, summary="Nothing was said. " * 200)]

    scene = Scene(strategies=(wordy, compact_rounds), config=CompactorConfig(threshold=9, retain_recent=3))
    assert (scene.held.reason, scene.held.end) == ("no_gain", 1)
    scene.clock.advance(10_000)
    scene.executor.run_all()
    assert (scene.end, scene.held.reason) == (0, "no_gain")
    assert compose(scene.memory, ROLE, budget=250).report.omitted_rounds, "the ladder has to do"
    assert scene.end == 0
    scene.add()
    assert (scene.held.end, scene.held.reason) == (8, "saving")
    assert requests(scene)[0][0] == 2


def test_what_is_switched_off_shows_nothing() -> None:
    """A configuration that is not ``enabled`` does nothing at all."""
    store = InMemoryStore()
    Scene(store=store)
    scene = Scene(0, store=store, config=CONFIG.model_copy(update={"enabled": False}))
    scene.clock.advance(1_000)
    scene.executor.run_all()
    assert (scene.end, scene.events(Held)) == (0, [])
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


def test_compact_now_with_nothing_new_shows_what_is_held() -> None:
    """Nobody is asked then."""
    scene = Scene()
    wait = in_thread(lambda: scene.compactor.compact_now(SOON))
    scene.executor.run_coming()
    assert wait().end_index == scene.end == 7
    assert len(scene.summarizer.requests) == 1
    assert [event.reused for event in scene.events(Published)] == [True]


def test_who_waits_for_a_turn_to_ask_shows_what_is_held_all_the_same() -> None:
    """That takes no model: where the limits have no room for the next summary, the cold cache still shows this one."""
    clock = FakeClock()
    limits = Limits(concurrent=1, clock=clock)
    scene = Scene(clock=clock, limits=limits)
    other = Place(limits)
    limits._let_in(other, 0.0)
    scene.add(5)
    assert scene.compactor.status().why_idle is Skip.LIMITED
    assert (scene.held.end, scene.held.shows, scene.clock.waiting) == (7, False, [300.0])
    scene.clock.advance(300)
    scene.executor.run_all()
    assert (scene.end, scene.held.reason, len(scene.summarizer.requests)) == (7, "cold", 1)
    assert limits.status().waiting == 1, "it keeps its place in the line"
    other.release()
    scene.executor.run_all()
    assert requests(scene)[1:] == [(8, 12, "Summary of rounds 1-7.")]


def test_a_policy_of_ones_own_decides() -> None:
    """It is given the numbers, and what it says is told."""
    moments: list[Moment] = []

    def on_monday(moment: Moment) -> Decision:
        moments.append(moment)
        return Decision(show=moment.calls >= 2, reason="monday", look_in=60.0)

    scene = Scene(publish=on_monday)
    assert scene.clock.waiting == [60.0]
    scene.add(2)
    assert [one.calls for one in moments] == [0, 1, 2]
    assert (scene.held.reason, scene.held.shows, scene.end) == ("monday", True, 7)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (lambda moment: {}[moment], "KeyError"),
        (lambda _moment: True, "TypeError"),
        (lambda _moment: Decision(show=False, reason="soon", look_in=0.0), "ValueError"),
        (lambda _moment: Decision(show=False, reason="soon", look_in=math.nan), "ValueError"),
    ],
)
def test_a_policy_that_fails_holds_nothing_up(policy: Any, error: str) -> None:
    """It is told, and what was prepared is shown: prompts do not grow, and nothing is looked at without end."""
    scene = Scene(publish=policy)
    assert [event.error for event in scene.events(PublicationFailed)] == [error]
    assert (scene.held.reason, scene.end, scene.clock.waiting) == ("failed", 7, [])
    assert (scene.events(Failed), scene.compactor.status().failures) == ([], 0)
    scene.add(5)
    assert scene.end == 12


def test_a_policy_that_fails_shows_nothing_that_is_no_shorter() -> None:
    """Nor is a prompt that is too long helped by that."""

    def wordy(view: Any) -> Sequence[CompactedMessage]:
        return [] if view.end else [CompactedMessage(start_index=1, end_index=1, summary="Nothing was said. " * 200)]

    scene = Scene(strategies=(wordy,), publish=lambda _moment: None)
    assert compose(scene.memory, ROLE, budget=250).report.omitted_rounds
    assert (scene.held.reason, scene.held.shows, scene.end) == ("failed", False, 0)


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
    weighed = scene.held
    assert (weighed.shows, weighed.reason) == (True, "budget")
    assert len(scene.executor.jobs) == 1
    scene.executor.run_all()
    assert compose(scene.memory, ROLE, budget=300, system="You plan.").messages == prompt.messages


def test_where_it_is_not_enough_the_ladder_does_the_rest() -> None:
    scene = Scene()
    prompt = compose(scene.memory, ROLE, budget=150)
    assert scene.end == 7
    assert prompt.tokens <= 150
    assert prompt.report.omitted_rounds[0] == 8


def test_a_prompt_that_fits_shows_nothing() -> None:
    scene = Scene()
    assert compose(scene.memory, ROLE, budget=8_000).report.tokens_before <= 8_000
    assert scene.end == 0


def test_a_store_that_fails_leaves_the_prompt_to_the_ladder() -> None:
    """What is held stays held, and is shown when the store is there again."""
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
    was extended while it was held has cost no other break. The system's message survives."""
    scene = Scene(rounds=0, prices=Prices(cached=0.2, written=1.0))
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
    assert breaks == len(scene.records(CompactionPublished)) > 1
    assert len(scene.records(CompactionPrepared)) >= breaks


def test_what_is_asked_while_a_prompt_shows_it_is_not_lost() -> None:
    """The answer was made from what is shown now: it is kept, and goes on from there."""
    scene = Scene(summarizer=ScriptedSummarizer(["First.", lambda _: shown_meanwhile(scene), "Third."]))
    scene.add(5)
    assert (scene.end, scene.held.end) == (7, 12)
    assert not scene.events(Discarded)
    assert not scene.events(Failed)
    kept = scene.records(CompactionPrepared)
    assert [(one.base, len(one.round_ids)) for one in kept] == [(0, 7), (1, 5)]
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 12
    assert len(scene.summarizer.requests) == 2


def shown_meanwhile(scene: Scene) -> str:
    compose(scene.memory, ROLE, budget=400)
    assert scene.end == 7
    return "Second."


def test_tools_and_the_providers_count_belong_to_the_prompt() -> None:
    """What is weighed against the budget is what the provider counts: schemas of tools, and more than we count."""
    scene = Scene()
    before = scene.held
    tools = [{"type": "function", "function": {"name": "count", "description": "Count items. " * 20}}]
    compose(scene.memory, ROLE, budget=8_000, tools=tools)
    scene.memory.record_usage(ROLE, 2_000, counted=1_000)
    scene.executor.run_all()
    ledger = ledger_of(scene.memory, ROLE, counter_for(""))
    assert ledger.tool_tokens > 40
    correction = scene.memory.usage(ROLE).correction
    assert correction > 1
    assert scene.held.tokens_before == math.ceil((before.tokens_before + ledger.tool_tokens) * correction)
    assert scene.held.tokens_after == math.ceil((before.tokens_after + ledger.tool_tokens) * correction)


def test_a_trigger_by_usage_does_not_take_the_shown_prompt_for_the_one_ahead() -> None:
    """The provider counted what is shown; what is held makes it shorter, and is not extended for that."""
    scene = Scene(rounds=0, trigger=over_usage(400, until=50))
    scene.add(10)
    scene.memory.record_usage(ROLE, 450)
    scene.executor.run_all()
    assert len(scene.summarizer.requests) == 1
    scene.add()
    assert len(scene.summarizer.requests) == 1


# -- when it is lost --------------------------------------------------------------------------------------------------


def test_a_covered_round_that_fails_takes_it_away() -> None:
    """What failed must not reach a prompt through it: that is told, and it is made anew."""
    scene = Scene()
    scene.memory.finish_round("r3", state="failed")
    scene.executor.run_all()
    assert [event.reason for event in scene.events(Discarded)] == ["rounds_changed"]
    assert (scene.end, scene.held.end, requests(scene)[1:]) == (0, 6, [(1, 6, None)])
    scene.add()
    assert len(scene.events(Discarded)) == 1, "told once"
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 6


def test_a_round_that_fails_leaves_what_does_not_cover_it() -> None:
    """It was extended: what it was before is still there, and goes on to be held."""
    scene = Scene()
    scene.add(5)
    assert scene.held.end == 12
    scene.memory.finish_round("r9", state="failed")
    scene.executor.run_all()
    assert [event.reason for event in scene.events(Discarded)] == ["rounds_changed"]
    assert (scene.held.end, scene.held.shows) == (7, False)
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 7


def test_a_redaction_takes_it_away() -> None:
    """It may hold the text."""
    scene = Scene(summarizer=ScriptedSummarizer(["Item-2 costs 22."]))
    scene.memory.redact("r2.p2")
    scene.add()
    assert [event.reason for event in scene.events(Discarded)] == ["generation"]
    assert all("Item-2 costs 22." not in entry.body for entry in scene.store.read("session"))
    assert (scene.end, scene.held.end) == (0, 8)


def test_a_revert_takes_away_what_was_made_from_the_reverted() -> None:
    """Nothing is compacted then until there is a new round, and nothing of what was held is shown."""
    scene = Scene()
    scene.clock.advance(300)
    scene.executor.run_all()
    scene.add(5)
    assert (scene.end, scene.held.end) == (7, 12)
    assert scene.compactor.revert() is None
    scene.clock.advance(300)
    scene.executor.run_all()
    assert [event.reason for event in scene.events(Discarded)] == ["generation"]
    assert (scene.end, scene.compactor.status().why_idle) == (0, Skip.REVERTED)
    scene.add()
    assert (scene.end, scene.held.end) == (0, 13)


def test_another_processs_publication_takes_it_away() -> None:
    """Unless it is the very same: then it is shown, and nothing is lost."""
    scene = Scene()
    other = Memory("session", store=scene.store)
    made = CompactedMessage(start_index=1, end_index=8, summary="Theirs.", end_round_id="r8")
    other.journal(ROLE).publish(made, base=0, round_ids=[f"r{number}" for number in range(1, 9)])
    scene.add()
    assert [event.reason for event in scene.events(Discarded)] == ["generation"]
    assert scene.end == 8
    assert scene.compactor.status().failures == 0


def test_what_a_host_does_in_between_is_noticed_when_it_is_shown() -> None:
    """A round fails between the look and the publication: that is not shown, and it is looked at again."""
    scene = Scene()
    publish = scene.compactor._journal.publish

    def failing(*what: Any, **how: Any) -> CompactedMessage:
        scene.compactor._journal.publish = publish  # type: ignore[method-assign]
        scene.memory.finish_round("r3", state="failed")
        return publish(*what, **how)

    scene.compactor._journal.publish = failing  # type: ignore[method-assign]
    scene.clock.advance(300)
    scene.executor.run_all()
    assert [event.reason for event in scene.events(Discarded)] == ["rounds_changed"]
    assert (scene.end, requests(scene)) == (6, [(1, 7, None), (1, 6, None)])
    assert scene.compactor.status().failures == 0


def test_what_others_publish_while_a_model_is_asked_makes_the_answer_stale() -> None:
    """It was made from another beginning: it is discarded, and asked for anew from theirs."""
    made = CompactedMessage(start_index=1, end_index=8, summary="Theirs.", end_round_id="r8")
    ids = [f"r{number}" for number in range(1, 9)]

    def theirs(_request: object) -> str:
        scene.memory.journal(ROLE).publish(made, base=0, round_ids=ids)
        return "Ours."

    scene = Scene(summarizer=ScriptedSummarizer(["First.", theirs, "Third."]))
    scene.add(5)
    assert {event.reason for event in scene.events(Discarded)} == {"generation"}
    assert (scene.end, scene.records(CompactionPrepared)[-1].text) == (8, "First.")
    scene.add()
    assert (scene.held.end, requests(scene)[-1]) == (13, (9, 13, "Theirs."))


def test_an_answer_after_stop_is_held_by_who_comes_next() -> None:
    """It was paid for."""

    def stopping(_request: object) -> str:
        scene.compactor.stop(0)
        return "Late."

    clock, store = FakeClock(), InMemoryStore()
    scene = Scene(0, store=store, clock=clock, summarizer=ScriptedSummarizer([stopping]))
    scene.add(10)
    assert [event.reason for event in scene.events(Discarded)] == ["stopped"]
    after = Scene(0, store=store, clock=clock)
    assert (after.held.end, after.summarizer.requests) == (5, [])


# -- one process after another, and beside it -------------------------------------------------------------------------


def test_who_resumes_goes_on_holding() -> None:
    """By the same numbers: they follow from the log and the time of day."""
    scene = Scene()
    scene.add(4)
    scene.clock.advance(100)
    assert scene.compactor.stop(0)
    after = Scene(0, store=scene.store, clock=scene.clock)
    assert (after.end, after.summarizer.requests) == (0, [])
    numbers = {"calls", "forgone", "price", "end", "tokens_before", "tokens_after", "retained"}
    assert after.held.model_dump(include=numbers) == scene.held.model_dump(include=numbers)
    assert (after.held.calls, after.held.idle, after.clock.waiting) == (4, 100.0, [200.0])
    after.clock.advance(200)
    after.executor.run_all()
    assert after.end == 7


def test_who_resumes_after_a_while_shows_it_at_once() -> None:
    """The cache is cold by then; nobody is asked."""
    scene = Scene()
    scene.compactor.stop(0)
    scene.clock.advance(3_600)
    after = Scene(0, store=scene.store, clock=scene.clock)
    assert (after.end, after.held.reason, after.summarizer.requests) == (7, "cold", [])


def test_it_is_held_in_a_database_as_well(tmp_path: Path) -> None:
    """Where old rounds are read when somebody asks, from a checkpoint: the numbers are the same."""
    url, clock = f"sqlite:///{(tmp_path / 'chat.db').as_posix()}?synchronous=normal", FakeClock()
    store = open_store(url)
    scene = Scene(store=store, clock=clock)
    scene.add(9)
    assert scene.compactor.stop(0)
    store.close()
    again = open_store(url)
    after = Scene(0, store=again, clock=clock)
    numbers = {"calls", "forgone", "price", "end", "tokens_before", "tokens_after", "retained"}
    assert after.held.model_dump(include=numbers) == scene.held.model_dump(include=numbers)
    assert after.held.forgone > after.held.calls > 0
    compose(after.memory, ROLE, budget=500)
    assert (after.end, after.summarizer.requests) == (12, [])
    again.close()


def test_a_process_that_shows_what_is_ready_shows_what_another_has_held() -> None:
    scene = Scene()
    scene.compactor.stop(0)
    assert Scene(0, store=scene.store, clock=scene.clock, publish="when_ready").end == 7


def test_a_compactor_that_is_stopped_shows_nothing() -> None:
    """Its timer is gone; when it is started again, it goes on."""
    scene = Scene()
    assert scene.compactor.stop(0)
    assert scene.clock.waiting == []
    scene.clock.advance(1_000)
    assert scene.executor.run_all() == 0
    assert scene.end == 0
    scene.compactor.start()
    scene.executor.run_all()
    assert (scene.end, scene.held.reason) == (7, "cold")


@pytest.mark.parametrize("first", [0, 1])
def test_two_processes_hold_the_same_and_one_shows_it(first: int) -> None:
    """Whoever looks first; the other finds it shown, and has lost nothing."""
    one = Scene()
    two = Scene(0, store=one.store, clock=one.clock)
    assert two.summarizer.requests == []
    assert (two.held.end, two.held.reason) == (7, "saving")
    scenes = (one, two)
    one.clock.advance(300)
    scenes[first].executor.run_all()
    scenes[1 - first].executor.run_all()
    for scene in scenes:
        scene.memory.refresh()
        scene.executor.run_all()
        assert scene.end == 7
        assert not scene.events(Discarded)
        assert scene.compactor.status().failures == 0
    assert len(one.records(CompactionPublished)) == 1


def test_what_another_process_has_extended_is_held_here_as_well() -> None:
    one = Scene()
    two = Scene(0, store=one.store, clock=one.clock)
    one.add(5)
    two.memory.refresh()
    two.executor.run_all()
    assert (two.held.end, two.summarizer.requests) == (12, [])
    assert not two.events(Discarded)


def test_an_answer_that_the_log_does_not_take_is_held_in_this_process() -> None:
    """The store has no room for it: it is shown from here when it is time."""
    store = FullStore()
    store.refused = frozenset({"compaction prepared"})
    scene = Scene(store=store)
    assert (scene.held.end, scene.records(CompactionPrepared)) == (7, [])
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 7


def test_a_timer_of_its_own_shows_it_though_nothing_happens() -> None:
    """On the compactor's own thread, by the machine's clock."""
    memory, heard = Memory("session"), Heard()
    for _ in range(10):
        add_round(memory)
    publish = when_cheapest(DEAR, cache_seconds=0.2)
    with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), publish=publish, on_event=heard):
        heard.until(Published)
        assert heard.until(Held, where=lambda event: event.shows).reason == "cold"
    assert memory.get_role_rounds(ROLE)[1] is not None


# -- another host's rounds --------------------------------------------------------------------------------------------


def host_round(number: int, state: str = "finished") -> SimpleNamespace:
    said = f"Item-{number} costs {number * 11} euros. " * 3
    post = SimpleNamespace(send_from=ROLE, send_to="User", message=said)
    return SimpleNamespace(id=f"h{number}", user_query=f"Question {number}?", state=state, post_list=[post])


class Host:
    """Rounds of its own, no Memory."""

    def __init__(self, *, renewed: bool = False) -> None:
        self.renewed = renewed
        self.rounds = [host_round(number) for number in range(1, 11)]
        self.clock, self.executor, self.summarizer = FakeClock(), ManualExecutor(), ScriptedSummarizer()
        self.compactor = ContextCompactor(
            CONFIG, self.summarizer, self.read, role=ROLE, publish="when_cheapest", prices=DEAR,
            executor=self.executor, clock=self.clock, rng=lambda: 1.0,
        )  # fmt: skip
        self.compactor.start()
        self.executor.run_all()

    def read(self) -> list[SimpleNamespace]:
        if self.renewed:  # each time under other ids
            self.rounds = [SimpleNamespace(**{**vars(one), "id": f"{one.id}'"}) for one in self.rounds]
        return self.rounds

    def add(self, count: int) -> None:
        for _ in range(count):
            self.rounds.append(host_round(len(self.rounds) + 1))
            self.compactor.notify_rounds_changed()
            self.executor.run_all()

    @property
    def held(self) -> Held:
        newest: Held = of_kind(self.compactor.events, Held)[-1]
        return newest


def test_without_a_memory_it_is_held_in_this_process() -> None:
    """And extended, and shown when the cache is cold: going by when this process saw the newest post."""
    host = Host()
    assert host.compactor.get_compaction() is None
    host.clock.advance(200)
    host.add(5)
    assert (host.held.end, host.held.calls, host.held.idle) == (12, 0, 0.0)
    host.clock.advance(299)
    host.compactor.notify_rounds_changed()
    host.executor.run_all()
    assert host.held.idle == 299.0
    host.clock.advance(1)
    host.executor.run_all()
    assert host.compactor.get_compaction().end_index == 12  # type: ignore[union-attr]
    assert len(host.summarizer.requests) == 2


@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_hosts_round_that_is_gone_or_another_takes_it_away(place: int) -> None:
    """Its rounds may change as they like; it is made anew."""
    host = Host()
    host.rounds[place] = host_round(100 + place)
    host.compactor.notify_rounds_changed()
    host.executor.run_all()
    assert [event.reason for event in of_kind(host.compactor.events, Discarded)] == ["rounds_changed"]
    assert (host.held.end, len(host.summarizer.requests)) == (7, 2)


def test_rounds_that_are_others_at_every_reading_are_not_paid_for_without_end() -> None:
    """What is made of them fits nothing: it is discarded, and then the compactor backs off."""
    host = Host(renewed=True)
    assert [event.reason for event in of_kind(host.compactor.events, Discarded)] == ["rounds_changed"] * 2
    assert len(host.summarizer.requests) == 1, "the same question is found again"
    assert host.compactor.status().state is State.BACKING_OFF


def test_without_a_memory_a_revert_takes_it_away_and_compact_now_shows_it() -> None:
    host = Host()
    wait = in_thread(lambda: host.compactor.compact_now(SOON))
    host.executor.run_coming()
    assert wait().end_index == 7
    host.executor.run_all()
    host.add(5)
    assert host.held.end == 12
    assert host.compactor.revert() is None
    host.add(1)
    assert [event.reason for event in of_kind(host.compactor.events, Discarded)] == ["generation"]
    assert host.held.end == 13
    assert host.compactor.publish_held() is True
    assert host.compactor.get_compaction().end_index == 13  # type: ignore[union-attr]


# -- beside other overlays --------------------------------------------------------------------------------------------


def test_reductions_are_shown_at_once_while_a_compaction_is_held() -> None:
    """They lie in rounds behind its end, and do not make it stale."""
    config = CompactorConfig(threshold=7, retain_recent=3)
    strategies = (offload_large(threshold=200, preview=20, keep_last=0), compact_rounds)
    scene = Scene(config=config, strategies=strategies, trigger=after_rounds(7) | over_tokens(600))
    assert scene.held.end == 7
    long_round(scene.memory)
    add_round(scene.memory)
    scene.executor.run_all()
    assert [event.kind for event in scene.events(Reduced)] == ["offloaded"]
    assert scene.held.end == 7
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 7
    assert not scene.events(Discarded)


def test_a_pinned_post_that_it_covers_counts_in_what_it_would_be() -> None:
    """And stands in the prompt, word for word, when it is shown."""
    scene = Scene()
    after = scene.held.tokens_after
    scene.memory.pin("r2.p2")
    scene.add()
    grown = scene.held.tokens_after - after
    scene.clock.advance(300)
    scene.executor.run_all()
    prompt = compose(scene.memory, ROLE, budget=8_000)
    assert "Item-2 costs 22 euros." in text(prompt.messages)
    assert grown > prompt.report.tokens_before - after - 1 > 40
