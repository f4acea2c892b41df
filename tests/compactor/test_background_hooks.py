"""What a compactor tells, and whom it calls: hooks may fail and call back, no lock is held, and every decision is an
event."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from scene import (
    CONFIG,
    PRICES,
    ROLE,
    SOON,
    Heard,
    PanicException,
    add_round,
    end_of,
    in_thread,
    kinds,
    memory_of,
    of_kind,
    on_command,
    text_of,
)

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Evaluated,
    Event,
    Failed,
    ModelUnknown,
    Prepared,
    Published,
    Skip,
    Skipped,
    Started,
    State,
    Summary,
    SummaryRequest,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage, HookFailed, Memory

pytestmark = pytest.mark.timeout(30)


# Hooks


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(), KeyboardInterrupt(), PanicException()], ids=repr)
def test_a_hook_that_raises_breaks_nothing(raised: BaseException) -> None:
    """Not the cycle, not the thread, not the other hooks; and it is told."""
    memory = memory_of(10)

    def broken(_event: Event) -> None:
        raise raised

    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), on_event=broken)
    with compactor:
        assert compactor.wait_idle(SOON)
        assert (end_of(compactor), compactor.status().failures) == (7, 0)
        for _ in range(5):
            add_round(memory)
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 12
    failed = of_kind(compactor.events, HookFailed)
    assert {event.error for event in failed} == {type(raised).__name__}
    assert len(failed) == len(compactor.events) / 2


def test_a_hook_can_be_added_and_taken_out() -> None:
    """``on_event`` returns what stops it."""
    first, second = Heard(), Heard()
    compactor, executor, _ = on_command(memory_of(10), ScriptedSummarizer(), on_event=first)
    stop = compactor.on_event(second)
    compactor.start()
    executor.run_next()
    stop()
    executor.run_all()
    assert kinds(second.events) == ["evaluated", "started", "prepared", "published"]
    assert kinds(first.events) == [*kinds(second.events), "evaluated", "skipped"]


CALLS_WITHIN: dict[str, Callable[[ContextCompactor, Memory], object]] = {
    "get_compaction": lambda compactor, memory: compactor.get_compaction(),
    "notify": lambda compactor, memory: compactor.notify_rounds_changed(5),
    "status": lambda compactor, memory: compactor.status(),
    "events": lambda compactor, memory: compactor.events,
    "start": lambda compactor, memory: compactor.start(),
    "on_event": lambda compactor, memory: compactor.on_event(lambda event: None)(),
    "get_role_rounds": lambda compactor, memory: memory.get_role_rounds(ROLE),
    "append": lambda compactor, memory: memory.append({"role": "user", "content": "said within"}),
    "create_round": lambda compactor, memory: memory.create_round("asked within"),
    "revert": lambda compactor, memory: compactor.revert(),
    "stop": lambda compactor, memory: compactor.stop(),
}


@pytest.mark.parametrize("call", CALLS_WITHIN.values(), ids=CALLS_WITHIN.keys())
@pytest.mark.parametrize("kind", [Evaluated, Started, Published])
def test_a_hook_may_call_back(kind: type[Event], call: Callable[[ContextCompactor, Memory], object]) -> None:
    """No lock is held while hooks run."""
    memory, done = memory_of(10), threading.Event()

    def hook(event: Event) -> None:
        if isinstance(event, kind) and not done.is_set():
            done.set()
            call(compactor, memory)

    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), on_event=hook)
    with compactor:
        assert done.wait(SOON)
        compactor.wait_idle(SOON)
    assert of_kind(compactor.events, HookFailed) == []
    assert compactor.status().state is State.STOPPED


@pytest.mark.parametrize("name", ["compact_now", "wait_idle"])
def test_waiting_for_itself_within_a_hook_is_an_error(name: str) -> None:
    """Rather than a deadlock."""
    errors: list[BaseException] = []

    def hook(_event: Event) -> None:
        try:
            getattr(compactor, name)()
        except RuntimeError as error:
            errors.append(error)

    compactor = ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, ScriptedSummarizer(), on_event=hook)
    with compactor:
        assert compactor.wait_idle(SOON)
    assert len(errors) == len(compactor.events) > 0
    assert str(errors[0]) == f"{name}() within a hook of the same compactor would wait for itself; call it elsewhere"


@pytest.mark.parametrize("place", ["summarizer", "getter", "trigger", "plan"])
def test_so_is_waiting_for_itself_within_what_it_calls(place: str) -> None:
    """All that runs in its own thread."""
    memory, errors = memory_of(10), []

    def calls(*_: object) -> Any:
        try:
            compactor.wait_idle()
        except RuntimeError as error:
            errors.append(error)
        return memory.get_role_rounds(ROLE)[0] if place == "getter" else "A plan." if place == "plan" else PRICES

    options: dict[str, Any] = {"summarizer": lambda request: PRICES, "getter": memory.rounds_getter(ROLE)}
    options |= {place: calls}
    getter = options.pop("getter")
    compactor = ContextCompactor(CONFIG, options.pop("summarizer"), getter, **options)
    with compactor:
        assert compactor.wait_idle(SOON)
    assert errors
    assert of_kind(compactor.events, Failed) == []


# No lock is held while calling out


@pytest.mark.parametrize("place", ["summarizer", "getter", "hook", "store"])
def test_every_method_returns_while_it_is_calling_out(place: str) -> None:
    """Another thread never waits for a model, a getter, a hook or a store."""
    memory = memory_of(10)
    inside, leave = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        if not inside.is_set():
            inside.set()
            leave.wait(SOON)

    def summarizer(_request: SummaryRequest) -> str:
        if place == "summarizer":
            hold()
        return PRICES

    def getter() -> object:
        if place == "getter":
            hold()
        return memory.get_role_rounds(ROLE)[0]

    class Journal:
        def __init__(self) -> None:
            self.inner = memory.journal(ROLE)
            self.read, self.revert = self.inner.read, self.inner.revert

        def publish(self, compaction: CompactedMessage, **more: Any) -> CompactedMessage:
            if place == "store":
                hold()
            return self.inner.publish(compaction, **more)

    hook = hold if place == "hook" else None
    compactor = ContextCompactor(CONFIG, summarizer, getter, role=ROLE, journal=Journal(), on_event=hook)
    with compactor:
        assert inside.wait(SOON)
        in_thread(lambda: compactor.notify_rounds_changed(11))()
        in_thread(compactor.status)()
        in_thread(compactor.get_compaction)()
        in_thread(compactor.start)()
        assert in_thread(lambda: compactor.wait_idle(0))() is False
        assert isinstance(in_thread(lambda: compactor.events)(), tuple)
        in_thread(compactor.on_event(lambda event: None))()
        in_thread(compactor.revert)()
        with pytest.raises(TimeoutError):
            in_thread(lambda: compactor.compact_now(0))()
        assert in_thread(lambda: compactor.stop(0))() is False
        leave.set()
        assert compactor.stop(SOON)


# What it tells


def test_every_decision_is_an_event_with_its_numbers() -> None:
    """Evaluated, started, prepared, published, and why it then did nothing."""
    memory = memory_of(10)
    usage = {"input_tokens": 900, "output_tokens": 9}
    compactor, executor, clock = on_command(memory, lambda request: Summary(PRICES, usage, "small-model"))
    compactor.start()
    executor.run_all()
    evaluated, started, prepared, published, again, skipped = compactor.events
    told = {"session": memory.session_id, "role": ROLE, "seconds": 0.0}
    assert evaluated.facts() == {
        **told, "generation": 0, "is_due": True, "forced": False, "rounds": 10, "tail": 10,
    }  # fmt: skip
    assert isinstance(started, Started)
    assert (started.start, started.end) == (1, 7)
    assert isinstance(prepared, Prepared)
    assert (prepared.tokens_before, prepared.usage, prepared.model) == (started.tokens_before, usage, "small-model")
    assert 0 < prepared.tokens_after < prepared.tokens_before
    assert isinstance(published, Published)
    assert (published.start, published.end, published.generation, published.requests) == (1, 7, 1, 1)
    assert (published.usage, published.model, published.seconds) == (usage, "small-model", 0.0)
    assert 0 < published.tokens_after < published.tokens_before
    assert again.facts() | {"is_due": False} == {
        **told, "generation": 1, "is_due": False, "forced": False, "rounds": 10, "tail": 3,
    }  # fmt: skip
    assert skipped.facts() == {
        **told, "generation": 1, "reason": Skip.BELOW_TRIGGER, "rounds": 10, "tail": 3, "closed": 10,
    }  # fmt: skip
    assert {event.at for event in compactor.events} == {clock.now()}, "stamped by the compactor's clock"


def rounds_left_open(count: int) -> Memory:
    memory = Memory("s")
    for _ in range(count):
        memory.create_round("open")
        memory._own_rounds = ()  # as other writers' rounds
    return memory


@pytest.mark.parametrize(
    ("memory", "config", "reason"),
    [
        (memory_of(10), CompactorConfig(enabled=False), Skip.DISABLED),
        (Memory("s"), CompactorConfig(), Skip.EMPTY),
        (memory_of(3), CompactorConfig(), Skip.BELOW_TRIGGER),
        (rounds_left_open(12), CompactorConfig(), Skip.NOTHING_CLOSED),
        (memory_of(3), CompactorConfig(threshold=1, retain_recent=5), Skip.NOTHING_NEW),
    ],
    ids=lambda value: value if isinstance(value, Skip) else "",
)
def test_every_reason_not_to_run_is_told(memory: Memory, config: CompactorConfig, reason: Skip) -> None:
    """As an event and as the status."""
    compactor, executor, _ = on_command(memory, ScriptedSummarizer(), config)
    assert compactor.status().skip_reason is None
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Skipped)[-1].reason is reason
    assert compactor.status().skip_reason is reason
    assert compactor.status().state is State.IDLE


def test_what_does_something_is_not_idle_for_a_reason() -> None:
    """Nor is what fails at it: the reason of the cycle before is gone."""
    memory = memory_of(7)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer([OSError()]))
    compactor.start()
    executor.run_all()
    assert compactor.status().skip_reason is Skip.BELOW_TRIGGER
    add_round(memory)
    executor.run_all()
    assert compactor.status().state is State.BACKING_OFF
    assert compactor.status().skip_reason is None


def test_the_history_keeps_the_newest_events() -> None:
    """A bounded number of them."""
    memory = memory_of(3)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer(), history=3)
    compactor.start()
    for _ in range(4):
        executor.run_all()
        add_round(memory)
    executor.run_all()
    assert kinds(compactor.events) == ["skipped", "evaluated", "skipped"]


REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


def test_a_hook_sees_the_context_of_the_append_that_led_to_the_event() -> None:
    """So a log line or a span of a compaction names the request behind it; the summarizer sees nothing of it."""
    memory, seen, asked = memory_of(10), list[tuple[str, str]](), list[str]()

    def summarize(_request: SummaryRequest) -> str:
        asked.append(REQUEST.get())
        return PRICES

    compactor, executor, _ = on_command(memory, summarize)
    compactor.on_event(lambda event: seen.append((event.name, REQUEST.get())), (Published,))
    compactor.start()
    executor.run_all()
    token = REQUEST.set("request 7")
    for _ in range(8):
        add_round(memory)
    REQUEST.reset(token)
    in_thread(executor.run_all)()
    assert seen == [("compaction.published", "none"), ("compaction.published", "request 7")]
    assert asked == ["none", "none"]


def test_what_takes_time_tells_when_it_began_and_what_it_cost() -> None:
    """Prices are the model's list prices; without a known model or usage there is none."""
    usage = {"input_tokens": 1_000_000, "cached_tokens": 500_000, "output_tokens": 1_000_000}
    for model, price in (("gpt-5-mini", 0.125 + 0.0125 + 2.0), ("nobody-knows-it", None)):
        memory, time = memory_of(10), FakeClock()

        def summarize(_request: SummaryRequest, model: str = model, time: FakeClock = time) -> Summary:
            time.advance(4)
            return Summary(PRICES, usage, model)

        compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, summarize, clock=time)
        began = time.now()
        compactor.compact_now(SOON)
        compactor.stop()
        (published,) = of_kind(compactor.events, Published)
        assert (published.session, published.role, published.strategy) == (memory.session_id, ROLE, "compact_rounds")
        assert (published.started, published.seconds, published.usage) == (began, 4.0, usage)
        assert published.price == pytest.approx(price)


def test_an_unknown_model_is_told_once_by_the_first_cycle() -> None:
    """The default encoding stands in."""
    memory = memory_of(1)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer(), CompactorConfig(model="nobody-knows-it"))
    compactor.start()
    assert compactor.events == ()
    executor.run_all()
    compactor.notify_rounds_changed()
    executor.run_all()
    (told,) = of_kind(compactor.events, ModelUnknown)
    assert told.facts() == {
        "session": memory.session_id, "role": ROLE, "generation": 0, "seconds": 0.0,
        "model": "nobody-knows-it", "encoding": "o200k_base",
    }  # fmt: skip


def test_a_plan_is_asked_for_when_a_cycle_starts_and_stands_before_the_instruction() -> None:
    """So the summary keeps what the plan still needs."""
    summarizer = ScriptedSummarizer()
    compactor, executor, _ = on_command(memory_of(10), summarizer, plan=lambda: "1. Book. 2. Pay.")
    compactor.start()
    executor.run_all()
    (request,) = summarizer.requests
    assert request.plan == "1. Book. 2. Pay."
    assert "<plan>\n1. Book. 2. Pay.\n</plan>" in text_of(request)
