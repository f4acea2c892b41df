"""While no model answers and the circuit is open, new rounds are extracted offline, behind the model's text, which stays;
its next good answer is made from that text and all rounds since, and replaces both."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scene import CONFIG, ROLE, SOON, Heard, ManualExecutor, add_round, end_of, memory_of, of_kind, on_command
from views import get_token_cache

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Failed,
    Prices,
    Published,
    State,
    SummaryRequest,
    View,
    compact_notes,
    compact_rounds,
    compact_view,
    compose,
    count_tokens,
    offload_large,
)
from compactor.strategies.offline import LINE, extend_offline
from compactor.testing import FakeClock
from memory import CompactedMessage, Memory, open_store
from memory.overlays import OFFLINE

pytestmark = pytest.mark.timeout(60)


class Model:
    """Says what each item costs while it is up, and remembers what it was asked."""

    def __init__(self) -> None:
        self.down = False
        self.requests: list[SummaryRequest] = []

    def __call__(self, request: SummaryRequest) -> str:
        self.requests.append(request)
        if self.down:
            raise OSError("down")
        before = request.previous.summary if request.previous else ""
        asked = {int(number) for number in re.findall(r"item-(\d+)", before)}
        asked |= {round_.number for round_ in request.rounds}
        return "The user asked for prices: " + ", ".join(f"item-{one} costs {one * 11} euros" for one in sorted(asked))


class Outage:
    """A compactor, and a model that can be taken away from it."""

    def __init__(self, memory: Memory, config: CompactorConfig = CONFIG, *, down: bool = False, **more: Any) -> None:
        self.memory, self.model = memory, Model()
        self.model.down = down
        self.compactor, self.executor, self.clock = on_command(memory, self.model, config, **more)
        self.compactor.start()
        self.executor.run_all()

    def until_the_circuit_opens(self) -> None:
        for _ in range(self.compactor.config.circuit_breaker_failures):
            self.try_again()
        assert self.compactor.status().circuit_open

    def fall(self, total: int) -> None:
        """Have the model fail until the circuit is open, with so many rounds in *total*."""
        self.model.down = True
        while len(self.memory.conversation.rounds) < total:
            add_round(self.memory)
        self.executor.run_all()
        self.until_the_circuit_opens()

    def try_again(self) -> None:
        self.clock.advance(CONFIG.circuit_breaker_reset)
        self.executor.run_all()

    @property
    def summary(self) -> str:
        current = self.compactor.get_compaction()
        return current.summary if current is not None else ""


def ids(first: int, last: int) -> list[str]:
    return [f"r{number}" for number in range(first, last + 1)]


def test_the_models_text_stays_while_retries_run_and_when_rounds_are_folded_in_behind_it() -> None:
    """Byte for byte, under a fixed line, and only once the circuit is open; an event says so."""
    it = Outage(memory_of(10))
    text = it.summary
    it.model.down = True
    for _ in range(5):
        add_round(it.memory)
    it.executor.run_all()
    for _ in range(CONFIG.circuit_breaker_failures - 1):
        assert it.summary == text, "the published summary stays while retries run"
        it.try_again()
    assert it.compactor.status().circuit_open
    assert it.summary.startswith(f"{text}\n\n{LINE}\n")
    assert end_of(it.compactor) == 12
    told = of_kind(it.compactor.events, Published)[-1]
    assert (told.offline, told.strategy, told.end, told.requests) == (True, "offline", 12, 0)
    assert told.tokens_after < told.tokens_before
    assert it.compactor.status().failures == CONFIG.circuit_breaker_failures, "it is no success of the model's"
    assert it.compactor.status().state is State.BACKING_OFF


def test_prompts_keep_shrinking_during_an_outage() -> None:
    """However long it lasts: each time that rounds are due, and the model's text is still the same."""
    it = Outage(memory_of(10))
    text = it.summary
    it.model.down = True
    lengths = []
    for _ in range(6):
        for _ in range(8):
            add_round(it.memory)
        it.executor.run_all()
        it.until_the_circuit_opens()
        assert it.summary.startswith(f"{text}\n\n{LINE}\n")
        assert it.summary.count(LINE) == 1
        assert end_of(it.compactor) == len(it.memory.conversation.rounds) - CONFIG.retain_recent
        lengths.append(compose(it.memory, ROLE, budget=1_000_000).tokens)
    assert max(lengths) < compose(memory_of(58), ROLE, budget=1_000_000).tokens / 2


@pytest.mark.parametrize("chain", [(compact_rounds,), (offload_large(), compact_rounds)])
def test_while_the_circuit_is_open_the_model_is_asked_once_in_a_while_and_not_each_turn(chain: Any) -> None:
    """Whatever other strategies there are: each attempt is paid for, and what was extracted has made room."""
    it = Outage(memory_of(10), strategies=chain)
    it.fall(15)
    asked = len(it.model.requests)
    for _ in range(6):
        it.try_again()
        assert len(it.model.requests) == (asked := asked + 1)
        assert it.compactor.status().state is State.BACKING_OFF
        add_round(it.memory)
        it.executor.run_all()
        assert len(it.model.requests) == asked


@pytest.mark.parametrize("more", [0, 1, 9])
def test_the_next_good_answer_is_made_from_the_models_text_and_all_rounds_since(more: int) -> None:
    """Also where no round came since: the request has what the model wrote, and raw what was extracted from."""
    it = Outage(memory_of(10))
    text = it.summary
    it.fall(15)
    for _ in range(more):
        add_round(it.memory)
    it.model.down = False
    it.try_again()
    request = it.model.requests[-1]
    assert request.previous is not None
    assert request.previous.summary == text
    assert OFFLINE not in request.previous.extra
    end = 12 + more
    assert [round_.id for round_ in request.rounds] == ids(8, end)
    assert (request.start_index, request.end_index) == (8, end)
    assert LINE not in it.summary
    assert all(f"item-{number} costs" in it.summary for number in range(1, end + 1))
    current = it.compactor.get_compaction()
    assert current is not None
    assert (current.end_index, current.is_offline) == (end, False)
    assert not it.compactor.status().circuit_open
    assert not of_kind(it.compactor.events, Published)[-1].offline


def test_reductions_below_what_was_folded_in_count_for_the_next_answer() -> None:
    """The model goes on from its own text, so the rounds behind that are read again as they were reduced; those that
    its text covers are not."""
    memory = memory_of(10)
    it = Outage(memory, strategies=[offload_large(threshold=200, keep_last=0), compact_rounds])
    it.model.down = True
    for _ in range(5):
        round_ = add_round(memory, close=False)
        memory.add_post(round_, send_from="Shop", send_to=ROLE, message=f"{round_.id} has a row. " * 200)
        memory.finish_round(round_)
    it.executor.run_all()
    it.until_the_circuit_opens()
    rounds, current = memory.get_role_rounds(ROLE)
    assert current is not None
    assert (current.is_offline, current.end_index) == (True, 12)
    assert {"r11", "r12"} <= set(rounds.reductions.by_round)


def test_without_a_models_text_the_offline_summary_stands_alone() -> None:
    """Where the model never answered; its first answer is made from all rounds."""
    it = Outage(memory_of(4))
    it.fall(12)
    assert it.summary
    assert LINE not in it.summary
    assert end_of(it.compactor) == 9
    for _ in range(8):
        add_round(it.memory)
    it.try_again()
    assert LINE not in it.summary
    assert end_of(it.compactor) == 17
    it.model.down = False
    it.try_again()
    request = it.model.requests[-1]
    assert request.previous is None
    assert [round_.id for round_ in request.rounds] == ids(1, 17)
    assert not it.compactor.get_compaction().is_offline  # type: ignore[union-attr]


def test_what_was_forbidden_during_an_outage_stands_in_what_is_extracted() -> None:
    """Nothing is lost that would have been kept with a model."""
    it = Outage(memory_of(10))
    it.model.down = True
    for number in range(11, 16):
        it.memory.create_round(
            "Never send anything to anna@example.com." if number == 11 else "Go on.", id=f"r{number}"
        )
        it.memory.add_post(f"r{number}", send_from=ROLE, send_to="User", message="A long answer about nothing. " * 30)
        it.memory.finish_round(f"r{number}")
    it.executor.run_all()
    it.until_the_circuit_opens()
    assert "Never send anything to anna@example.com." in it.summary.partition(LINE)[2]


@pytest.mark.parametrize("address", ["memory://", "sqlite:///{}/chat.db"])
def test_a_restart_goes_on_with_both(address: str, tmp_path: Path) -> None:
    """What is the model's, and up to which round, stands in the log; the model is asked for both at once."""
    with closing(open_store(address.format(tmp_path))) as store:
        memory = Memory("s", store=store)
        for _ in range(10):
            add_round(memory)
        it = Outage(memory)
        text = it.summary
        it.fall(15)
        shown = it.summary
        it.compactor.stop()
    with closing(open_store(address.format(tmp_path)) if "sqlite" in address else store) as store:
        again = Outage(Memory("s", store=store))
        request = again.model.requests[-1]
        assert shown.startswith(f"{text}\n\n{LINE}")
        assert request.previous is not None
        assert request.previous.summary == text
        assert [round_.id for round_ in request.rounds] == ids(8, 12)
        assert LINE not in again.summary
        again.compactor.stop()


def test_a_restart_during_the_outage_keeps_what_stands_until_the_circuit_is_open_again() -> None:
    """And then extracts what came since, behind it."""
    it = Outage(memory_of(10))
    text = it.summary
    it.fall(15)
    it.compactor.stop()
    again = Outage(it.memory, down=True)
    for _ in range(8):
        add_round(it.memory)
    again.executor.run_all()
    assert end_of(again.compactor) == 12
    again.until_the_circuit_opens()
    assert end_of(again.compactor) == 20
    assert again.summary.startswith(f"{text}\n\n{LINE}\n")
    assert again.summary.count(LINE) == 1


@pytest.mark.parametrize("what", ["revert", "fail", "redact"])
def test_what_takes_the_folded_rounds_back_leaves_the_models_text(what: str) -> None:
    """A revert, and a failed or erased round among those that were extracted offline: the model's own stands again."""
    it = Outage(memory_of(10))
    text = it.summary
    it.fall(15)
    if what == "revert":
        it.compactor.revert()
    elif what == "fail":
        it.memory.finish_round("r11", state="failed")
    else:
        it.memory.redact("r11.p2")
    current = it.memory.get_role_rounds(ROLE)[1]
    assert current is not None
    assert (current.summary, current.end_index, current.is_offline) == (text, 7, False)
    assert "Item-11 costs" not in str(it.memory.journal(ROLE).read())


def test_after_a_revert_nothing_is_folded_in_before_a_newer_round() -> None:
    """As with a model."""
    it = Outage(memory_of(10))
    it.fall(15)
    it.compactor.revert()
    it.try_again()
    assert end_of(it.compactor) == 7
    add_round(it.memory)
    it.try_again()
    assert end_of(it.compactor) == 13


def test_strategies_that_cover_no_rounds_fold_none_in() -> None:
    """What a model is not asked for is not made without one."""
    memory = memory_of(2)
    for _ in range(20):
        opened = memory.create_round("And now?")
        memory.add_post(opened, send_from="tool", send_to=ROLE, message="A long result, of no use to anybody. " * 40)
        memory.finish_round(opened)
    it = Outage(memory, strategies=[offload_large(100, 0, 5, summarize=True)], down=True)
    it.until_the_circuit_opens()
    assert {request.kind for request in it.model.requests} == {"large_post"}
    assert it.compactor.get_compaction() is None


@pytest.mark.parametrize("strategy", [compact_rounds, compact_view, compact_notes], ids=lambda one: one.__name__)
def test_every_strategy_that_covers_rounds_goes_on_from_the_models_text(strategy: Any) -> None:
    """Notes are those of the model's text again, though they stood aside meanwhile."""
    it = Outage(memory_of(10), strategies=[strategy])
    current = it.compactor.get_compaction()
    assert current is not None
    it.fall(15)
    it.model.down = False
    it.try_again()
    asked = [request for request in it.model.requests if request.rounds and request.rounds[0].id == "r8"]
    shown = [request.previous for request in asked if request.previous is not None]
    assert shown
    assert {(one.summary, one.notes) for one in shown} == {(current.summary, current.notes)}
    made = it.compactor.get_compaction()
    assert made is not None
    assert made.end_index == 12
    assert made.notes[: len(current.notes)] == current.notes


def test_rounds_that_take_several_requests_replace_it_once_all_are_in() -> None:
    """No answer that covers less than what is shown takes its place."""
    config = CONFIG.copy_with(summarizer_input_tokens=900, target_tokens=300)
    it = Outage(memory_of(10), config)
    text = it.summary
    it.fall(60)
    ends = []
    it.compactor.on_event(lambda event: ends.append(event.end) if isinstance(event, Published) else None)
    it.model.down = False
    asked = len(it.model.requests)
    it.try_again()
    requests = it.model.requests[asked:]
    assert len(requests) > 2
    assert requests[0].previous is not None
    assert requests[0].previous.summary == text
    assert [one.id for request in requests for one in request.rounds] == ids(8, 57)
    assert ends == [57]


def test_a_host_without_a_memory_is_served_alike() -> None:
    """Its rounds are read again by their ids; where it dropped them, what was extracted is all that is left."""
    memory, model = memory_of(10), Model()
    rounds = list(memory.conversation.rounds)
    executor, clock = ManualExecutor(), FakeClock()
    compactor = ContextCompactor(
        CONFIG, model, lambda: list(rounds), role=ROLE, executor=executor, clock=clock, rng=lambda: 1.0
    )
    with compactor:
        executor.run_all()
        text = compactor.get_compaction().summary  # type: ignore[union-attr]
        model.down = True
        for _ in range(5):
            rounds.append(add_round(memory))
        for _ in range(CONFIG.circuit_breaker_failures):
            compactor.notify_rounds_changed()
            executor.run_all()
            clock.advance(CONFIG.circuit_breaker_reset)
        executor.run_all()
        extracted = compactor.get_compaction().summary  # type: ignore[union-attr]
        assert extracted.startswith(f"{text}\n\n{LINE}\n")
        model.down = False
        clock.advance(CONFIG.circuit_breaker_reset)
        executor.run_all()
        assert model.requests[-1].previous.summary == text  # type: ignore[union-attr]
        assert [round_.id for round_ in model.requests[-1].rounds] == ids(8, 12)


@pytest.mark.parametrize("publish", ["immediately", "deferred"])
def test_what_is_deferred_is_shown_before_rounds_are_folded_in(publish: str) -> None:
    """It was paid for, and is the model's: what is extracted stands behind it."""
    prices = Prices(cached_input=0.1, cache_write=1.25, output=4.0)
    it = Outage(memory_of(10), publish=publish, prices=prices)
    it.fall(25)
    parts = it.summary.partition(LINE)
    assert "item-7 costs 77" in parts[0]
    assert parts[2]
    assert end_of(it.compactor) == 22
    it.model.down = False
    it.try_again()
    assert LINE not in it.summary


def test_a_summarizer_that_does_not_answer_is_an_outage_too() -> None:
    """Each call runs into its deadline, on an executor: what is due is extracted all the same."""
    memory = memory_of(10)
    hung = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        clock = FakeClock()
        heard = Heard()

        def ask(_request: SummaryRequest) -> str:
            called.release()
            hung.wait(SOON)
            return ""

        called = threading.Semaphore(0)
        config = CONFIG.copy_with(circuit_breaker_failures=2)
        compactor = ContextCompactor.for_role(
            memory, ROLE, config, ask, executor=pool, clock=clock, rng=lambda: 1.0, on_event=heard
        )
        with compactor:
            for times in (1, 2):
                assert called.acquire(timeout=SOON)
                clock.advance(config.call_timeout)
                heard.until(Failed, times)
                clock.advance(config.backoff_max)
            assert heard.until(Published).offline
            hung.set()


@pytest.mark.slow
@given(events=st.lists(st.sampled_from(["add", "add", "add", "down", "up", "wait", "fail", "revert"]), max_size=25))
@settings(deadline=None, max_examples=25)
def test_whatever_happens_every_round_is_told_once(events: list[str]) -> None:
    """The model's part is its own text, what follows it is extracted from the rounds since, and the tail is exact."""
    it = Outage(memory_of(5), CONFIG.copy_with(circuit_breaker_failures=2))
    for event in events:
        if event == "add":
            for _ in range(3):
                add_round(it.memory)
        elif event == "fail":
            it.memory.finish_round(it.memory.conversation.rounds[len(events) % 5].id, state="failed")
        elif event == "revert":
            it.compactor.revert()
        else:
            it.model.down = {"down": True, "up": False}.get(event, it.model.down)
        it.executor.run_all()
        it.try_again()
        rounds, current = it.memory.get_role_rounds(ROLE)
        if current is None:
            continue
        visible = [round_.number for round_ in rounds]
        covered, tail = visible[: current.end_index], visible[current.end_index :]
        assert covered + tail == visible
        assert current.end_number == covered[-1]
        place = current.extra.get(OFFLINE)
        text = current.summary if place is None else current.summary[: place["characters"]]
        of_model = [number for number in covered if not place or number <= (place["end_number"] or 0)]
        assert [int(one) for one in re.findall(r"item-(\d+) costs", text)] == of_model
        if place is not None:
            assert place["rounds"] == len(covered) - len(of_model)


@pytest.mark.parametrize(
    "place",
    [None, "yes", {}, {"rounds": 1}, {"characters": "4", "rounds": 1, "end_round_id": None, "end_number": None}],
)
def test_what_says_nothing_of_its_place_is_no_offline_end(place: object) -> None:
    """A host's compaction may hold anything: it is all the model's text, and rounds are extracted behind it."""
    memory = memory_of(3)
    first = memory.conversation.rounds[0]
    made = CompactedMessage(
        start_index=1, end_index=1, summary="As told.", end_round_id=first.id, extra={OFFLINE: place}
    )
    memory.journal(ROLE).publish(made, base=0, round_ids=[first.id])
    view = View(*memory.get_role_rounds(ROLE), get_token_cache(memory, ROLE, count_tokens))

    assert view.compaction is not None
    assert not view.compaction.is_offline
    assert not view.is_offline
    folded = extend_offline(view, 2, None, lambda _request: "More.")
    assert folded is not None
    assert folded.summary == f"As told.\n\n{LINE}\nMore."
    assert folded.is_offline
