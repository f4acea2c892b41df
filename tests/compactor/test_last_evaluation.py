"""Looks where the append happens: they cost the append little, read no store, and miss nothing that is due."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from executors import ManualExecutor
from hypothesis import given, settings
from hypothesis import strategies as st
from scene import of_kind

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Evaluated,
    Memory,
    Skip,
    Skipped,
    State,
    Trigger,
    View,
    after_rounds,
    compose,
    cost_optimal,
    over_messages,
    over_tokens,
    over_usage,
    when,
)
from compactor.testing import FakeClock, ScriptedSummarizer

ROLE = "assistant"
TRIGGERS: tuple[Callable[[], Trigger], ...] = (
    lambda: after_rounds(3),
    lambda: over_messages(7),
    lambda: over_tokens(300),
    lambda: over_usage(250, until=100),
    lambda: after_rounds(1) & over_tokens(200),
    lambda: after_rounds(5) | over_messages(9),
    lambda: cost_optimal(min_new_tokens=120, budget=2_000),
)
CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"order": 17}'}}
MESSAGES = st.one_of(
    st.text(max_size=80).map(lambda text: {"role": "user", "content": text}),
    st.text("word \n😀漢\0", max_size=400).map(lambda text: {"role": "assistant", "content": text}),
    st.integers(1, 4).map(lambda n: {"role": "assistant", "content": None, "tool_calls": [CALL] * n}),
    st.just({"role": "tool", "tool_call_id": "c", "content": "On its way."}),
    st.lists(st.text(max_size=40), min_size=1, max_size=4).map(
        lambda texts: {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}
    ),
)
STEPS = st.one_of(
    MESSAGES,
    st.sampled_from(["fail", "usage", "header", "compose", "pin", "look"]),
)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(TRIGGERS), st.lists(STEPS, max_size=25))
def test_whatever_is_due_is_handed_to_a_worker(make: Callable[[], Trigger], steps: list[Any]) -> None:
    """After each step, either a worker was asked, or the trigger is not due on the rounds as they are."""
    memory, executor = Memory("session"), ManualExecutor()
    config = CompactorConfig(threshold=1_000, retain_recent=0)
    trigger = make()
    options: dict[str, Any] = {"executor": executor, "clock": FakeClock(), "trigger": trigger, "strategies": ()}
    compactor = ContextCompactor.for_role(memory, ROLE, config, ScriptedSummarizer(), **options)
    own = compactor._cycle.trigger
    compactor.start()
    executor.run_all()
    for number, step in enumerate(steps):
        was_due = is_due(compactor, own)
        if isinstance(step, dict):
            memory.append(step)
        elif step == "look":
            executor.run_all()
        elif step == "compose" and len(memory.conversation.rounds):
            compose(memory, ROLE, budget=100_000, system="Be brief. " * 5 * number)
        elif step == "usage":
            memory.record_usage(ROLE, 260)
        elif step == "header":
            memory.set_header("plan", "Go on with order 17. " * 10)
        elif step == "pin" and memory.conversation.rounds[:1] and memory.conversation.rounds[0].user_query:
            memory.pin("r1.p0")
        elif step == "fail" and len(memory.conversation.rounds):
            memory.finish_round(memory.conversation.rounds[-1].id, state="failed")
        if not executor.jobs and (isinstance(step, dict) or not was_due):
            assert not is_due(compactor, own), compactor._cycle._last_evaluation


def is_due(compactor: ContextCompactor, trigger: Trigger) -> bool:
    """Return whether a full look finds it due now."""
    from compactor.cycle import StrategyPass

    view: View = StrategyPass(compactor._cycle).ahead
    return bool(view.total) and trigger.verdict(view).is_due


def test_an_append_that_makes_nothing_due_asks_no_worker() -> None:
    """It looks itself, and says so: evaluated, and skipped with the numbers. Of such looks the newest is kept."""
    memory, executor = Memory("session"), ManualExecutor()
    options: dict[str, Any] = {"executor": executor, "clock": FakeClock()}
    config = CompactorConfig(threshold=3, retain_recent=1)
    compactor = ContextCompactor.for_role(memory, ROLE, config, ScriptedSummarizer(), **options)
    compactor.start()
    executor.run_all()
    for number in range(3):
        memory.append({"role": "user", "content": f"Where is order {number}?"})
        memory.append({"role": "assistant", "content": "On its way."})
        assert not executor.jobs
        assert compactor.wait_idle(0)
    assert compactor.status().skip_reason is Skip.BELOW_TRIGGER
    assert [event.rounds for event in of_kind(compactor.events, Evaluated)] == [3]
    assert [event.reason for event in of_kind(compactor.events, Skipped)] == [Skip.EMPTY, Skip.BELOW_TRIGGER]
    newest = of_kind(compactor.events, Skipped)[-1]
    assert (newest.reason, newest.tail, newest.closed) == (Skip.BELOW_TRIGGER, 3, 2)
    memory.append({"role": "user", "content": "And order 17?"})
    assert executor.run_all()
    assert of_kind(compactor.events, Evaluated)[1].is_due


def test_hooks_hear_of_a_look_in_the_thread_that_appends() -> None:
    """With no lock held: a hook may append, too."""
    heard: list[tuple[str, int]] = []
    memory, executor = Memory("session"), ManualExecutor()
    options: dict[str, Any] = {"executor": executor, "clock": FakeClock()}
    compactor = ContextCompactor.for_role(memory, ROLE, None, ScriptedSummarizer(), **options)
    compactor.start()
    executor.run_all()

    def hook(event: object) -> None:
        if isinstance(event, Evaluated):
            heard.append((threading.current_thread().name, event.rounds))
            if event.rounds < 3:
                memory.append({"role": "assistant", "content": "On its way."})
                memory.append({"role": "user", "content": "And the next?"})

    compactor.on_event(hook)
    memory.append({"role": "user", "content": "Where is order 17?"})
    assert heard == [("MainThread", 1), ("MainThread", 2), ("MainThread", 3)]


def start(executor: ManualExecutor, memory: Memory, trigger: Trigger) -> ContextCompactor:
    options: dict[str, Any] = {"executor": executor, "clock": FakeClock(), "trigger": trigger}
    compactor = ContextCompactor.for_role(memory, ROLE, None, ScriptedSummarizer(), **options)
    compactor.start()
    return compactor


@pytest.mark.parametrize("trigger", [over_messages(5), over_tokens(180)], ids=repr)
@pytest.mark.parametrize("closes", [False, True])
def test_calls_that_stay_without_results_are_looked_at(trigger: Trigger, closes: bool) -> None:
    """While they wait they have none; as soon as something else happens, a note stands for each."""
    memory, executor = Memory("session"), ManualExecutor()
    start(executor, memory, trigger)
    calls = [{**CALL, "id": f"c{number}"} for number in range(6)]
    memory.append({"role": "user", "content": "Where are they?"})
    memory.append({"role": "assistant", "content": None, "tool_calls": calls})
    executor.run_all()
    if closes:
        memory.finish_round(memory.conversation.rounds[-1].id)
    else:
        memory.append({"role": "user", "content": "Well?"})
    assert executor.jobs


def test_a_count_of_the_providers_is_looked_at_though_its_round_failed() -> None:
    """With the next message: while there was none, the trigger was not asked."""
    memory, executor = Memory("session"), ManualExecutor()
    start(executor, memory, over_usage(900))
    memory.append({"role": "user", "content": "Where is order 17?"})
    executor.run_all()
    memory.finish_round(memory.conversation.rounds[0].id, state="failed")
    memory.record_usage(ROLE, 2_000)
    executor.run_all()
    memory.append({"role": "user", "content": "Hello."})
    assert executor.jobs


def test_a_prompt_that_is_made_during_a_look_is_looked_at() -> None:
    """The look has not seen its system message, nor its tools."""
    memory, executor = Memory("session"), ManualExecutor()
    trigger = over_tokens(300)
    judge = trigger.verdict

    def judge_and_compose(view: View) -> Any:
        verdict = judge(view)
        compose(memory, ROLE, budget=9_000, system="word " * 300)
        return verdict

    trigger.verdict = judge_and_compose
    start(executor, memory, trigger)
    memory.append({"role": "user", "content": "Where is order 17?"})
    executor.run_all()
    memory.append({"role": "assistant", "content": "On its way."})
    assert executor.jobs


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


@pytest.mark.parametrize("large", ["word " * 4_000, "漢字" * 2_100, [IMAGE]])
def test_what_is_large_is_counted_by_a_worker_rather_than_in_the_next_prompt(large: object) -> None:
    """Though nothing can be due."""
    memory, executor = Memory("session"), ManualExecutor()
    options: dict[str, Any] = {"executor": executor, "clock": FakeClock()}
    compactor = ContextCompactor.for_role(memory, ROLE, None, ScriptedSummarizer(), **options)
    compactor.start()
    executor.run_all()
    memory.append({"role": "user", "content": large})
    assert executor.run_all()
    assert compactor.status().skip_reason is Skip.BELOW_TRIGGER


def test_a_condition_of_the_hosts_is_asked_after_every_append() -> None:
    """By a worker: nobody knows what it depends on."""
    asked: list[int] = []
    memory = Memory("session")

    def condition(view: View) -> bool:
        asked.append(view.total)
        return False

    executor = ManualExecutor()
    compactor = ContextCompactor.for_role(
        memory, ROLE, None, ScriptedSummarizer(), trigger=condition, executor=executor
    )
    compactor.start()
    executor.run_all()
    for _ in range(3):
        memory.append({"role": "user", "content": "Where is order 17?"})
        executor.run_all()
    assert asked == [1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda memory: compose(memory, ROLE, budget=9_000, system="word " * 300),
        lambda memory: compose(memory, ROLE, budget=9_000, model="gpt-5"),
        lambda memory: memory.record_usage(ROLE, 5 * compose(memory, ROLE, budget=9_000).tokens),
        lambda memory: memory.set_header("plan", "word " * 300),
        lambda memory: memory.pin("r1.p0"),
        lambda memory: memory.finish_round(memory.conversation.rounds[0], state="failed"),
        lambda memory: memory.redact("r1.p0"),
    ],
    ids=["system", "model", "usage", "header", "pin", "failed", "redacted"],
)
def test_whatever_else_a_prompt_depends_on_is_looked_at_by_a_worker(change: Callable[[Memory], object]) -> None:
    """With the next append, however short that is."""
    memory, executor = Memory("session"), ManualExecutor()
    options: dict[str, Any] = {"executor": executor, "clock": FakeClock(), "trigger": over_tokens(300)}
    compactor = ContextCompactor.for_role(memory, ROLE, None, ScriptedSummarizer(), **options)
    compactor.start()
    executor.run_all()
    memory.append({"role": "user", "content": "Where is order 17?"})
    memory.append({"role": "assistant", "content": "On its way."})
    assert not executor.jobs
    change(memory)
    memory.append({"role": "user", "content": "Really?"})
    assert executor.run_all()
    assert compactor.status().state is State.IDLE


@pytest.mark.parametrize("trigger", [over_tokens(300), after_rounds(9) | over_usage(300)], ids=repr)
def test_a_prompt_that_makes_it_due_is_looked_at(trigger: Trigger) -> None:
    """What stands before the rounds is told by the prompt alone: the next append may be an hour away."""
    memory, executor = Memory("session"), ManualExecutor()
    compactor = start(executor, memory, trigger)
    for number in range(4):
        memory.append({"role": "user", "content": f"Where is order {number}?"})
    executor.run_all()
    compose(memory, ROLE, budget=1_000, system="Be brief.")
    executor.run_all()
    assert not of_kind(compactor.events, Evaluated)[-1].is_due
    compose(memory, ROLE, budget=1_000, system="Be brief.")
    assert not executor.jobs, "it is the same prompt"
    compose(memory, ROLE, budget=1_000, system="Be brief. " * 100)
    assert executor.run_all()
    assert of_kind(compactor.events, Evaluated)[-1].is_due


def test_the_first_budget_is_looked_at() -> None:
    """The trigger of a compactor that was told its model alone learns the budget from ``compose``."""
    memory, executor = Memory("session"), ManualExecutor()
    summarizer = ScriptedSummarizer()
    summarizer.model = "a-model"  # type: ignore[attr-defined]
    options: dict[str, Any] = {"executor": executor, "clock": FakeClock()}
    with ContextCompactor.for_role(memory, ROLE, None, summarizer, **options) as compactor:
        for number in range(8):
            memory.append({"role": "user", "content": f"Where is order {number}?"})
            memory.append({"role": "assistant", "content": f"Order {number} is on its way. " * 20})
        executor.run_all()
        assert compactor.get_compaction() is None
        compose(memory, ROLE, budget=1_000)
        executor.run_all()
        assert compactor.get_compaction() is not None


def test_a_trigger_that_does_not_go_by_prompts_is_not_asked_after_one() -> None:
    """Whatever their budgets and system messages: neither after the prompt nor after the next message."""
    memory, executor = Memory("session"), ManualExecutor()
    start(executor, memory, after_rounds(9) | over_messages(50))
    memory.append({"role": "user", "content": "Where is order 17?"})
    executor.run_all()
    for length in range(1, 4):
        compose(memory, ROLE, budget=1_000 * length, system="Be brief. " * length)
        memory.append({"role": "assistant", "content": "On its way."})
    assert not executor.jobs


def test_a_pin_is_looked_at() -> None:
    """At once, as a message is."""
    memory, executor, pinned = Memory("session"), ManualExecutor(), list[int]()

    def is_pinned(view: View) -> bool:
        pinned.append(len(view.rounds.pins))
        return False

    start(executor, memory, when(is_pinned))
    memory.append({"role": "user", "content": "Where is order 17?"})
    executor.run_all()
    memory.pin("r1.p0")
    executor.run_all()
    assert pinned[-2:] == [0, 1]
    memory.unpin("r1.p0")
    executor.run_all()
    assert pinned[-1] == 0
