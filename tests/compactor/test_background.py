"""What a compactor promises its host: which rounds it covers, when it looks, and what it never shows or loses."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
from scene import (
    CONFIG,
    ROLE,
    SOON,
    Heard,
    ManualExecutor,
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
    ExtractiveSummarizer,
    Summary,
    SummaryRequest,
    View,
    over_tokens,
)
from compactor.background import State
from compactor.events import (
    Discarded,
    Evaluated,
    Failed,
    ModelUnknown,
    Prepared,
    Published,
    Reverted,
    Skip,
    Skipped,
    Started,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage, Memory
from memory.events import Event, HookFailed

pytestmark = pytest.mark.timeout(30)

EAGER = CompactorConfig(threshold=0, retain_recent=0)


# Which rounds


@pytest.mark.parametrize("closed", [True, False], ids=["after the newest round closed", "while it is open"])
def test_the_end_is_the_same_whether_the_newest_round_is_open_or_closed(closed: bool) -> None:
    """Rounds 1 to 10, threshold 7, retain 3: it ends at 7; at 15 rounds at 12; at 20 at 17."""
    memory, summarizer = memory_of(10, close_last=closed), ScriptedSummarizer()
    ends = []
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        for total in range(10, 21):
            while len(memory.conversation.rounds) < total:
                add_round(memory, close=closed)
            assert compactor.wait_idle(SOON)
            ends.append(end_of(compactor))
    assert ends == [7] * 5 + [12] * 5 + [17]
    assert len(summarizer.requests) == 3


def test_the_input_is_the_previous_summary_and_only_the_new_rounds() -> None:
    """Covered rounds are never sent again: old summary + new rounds -> new summary."""
    memory, summarizer = memory_of(10), ScriptedSummarizer(["Summary of the first seven.", "Summary of twelve."])
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
        for _ in range(5):
            add_round(memory)
        assert compactor.wait_idle(SOON)
    first, second = summarizer.requests
    assert (first.previous, first.start_index, first.end_index) == (None, 1, 7)
    assert [round_.id for round_ in first.rounds] == [f"r{n}" for n in range(1, 8)]
    assert second.previous is not None
    assert (second.previous.summary, second.start_index, second.end_index) == ("Summary of the first seven.", 8, 12)
    assert [round_.id for round_ in second.rounds] == [f"r{n}" for n in range(8, 13)]
    assert "Summary of the first seven." in text_of(second)
    assert "item-8?" in text_of(second)
    assert "item-7?" not in text_of(second)
    assert "item-13?" not in text_of(second)
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert (compaction.start_index, compaction.end_index, compaction.end_round_id) == (1, 12, "r12")
    assert (compaction.summary, compaction.generation) == ("Summary of twelve.", 2)


@pytest.mark.parametrize(
    ("threshold", "retain", "total", "ends"),
    [(2, 5, 10, 5), (2, 5, 5, 0), (2, 5, 4, 0), (0, 0, 3, 3), (0, 1, 1, 0), (9, 0, 10, 10), (10, 3, 10, 0)],
)
def test_the_end_retains_the_recent_rounds(threshold: int, retain: int, total: int, ends: int) -> None:
    """``min(closed, total - retain_recent)`` once more than ``threshold`` rounds stand behind the old end; retaining
    more than the threshold is no contradiction."""
    config = CompactorConfig(threshold=threshold, retain_recent=retain)
    with ContextCompactor.for_role(memory_of(total), ROLE, config, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == ends


def test_the_open_round_is_never_compacted() -> None:
    """Not even with nothing to retain: what is said in it is still to come."""
    memory, summarizer = memory_of(3, close_last=False), ScriptedSummarizer()
    with ContextCompactor.for_role(memory, ROLE, EAGER, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 2
        assert compactor.status().why_idle is Skip.NOTHING_CLOSED
        memory.finish_round("r3")
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 3
    assert [round_.id for request in summarizer.requests for round_ in request.rounds] == ["r1", "r2", "r3"]


def test_it_stops_before_the_first_open_round_wherever_that_is() -> None:
    """A round that another writer left open is not jumped over."""
    memory = memory_of(2)
    Memory.create_round(memory, "left open", id="r3")
    memory._own_round = ""  # as if another process had opened it
    for _ in range(4):
        add_round(memory)
    with ContextCompactor.for_role(memory, ROLE, EAGER, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 2


def test_another_roles_posts_reach_neither_request_nor_rounds() -> None:
    """A role's compactor sees what that role sent or received."""
    memory, summarizer = Memory("s"), ScriptedSummarizer()
    round_ = memory.create_round("The user's question")
    memory.add_post(round_, send_from="User", send_to="Planner", message="for the planner")
    memory.add_post(round_, send_from="Planner", send_to="CodeInterpreter", message="please compute")
    memory.add_post(round_, send_from="CodeInterpreter", send_to="WebSearch", message="SECRET-BETWEEN-OTHERS")
    memory.finish_round(round_)
    with ContextCompactor.for_role(memory, "Planner", EAGER, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
    (request,) = summarizer.requests
    assert request.role == "Planner"
    assert "please compute" in text_of(request)
    assert "SECRET" not in text_of(request)
    assert "SECRET" not in repr(request.rounds)


def test_raw_rounds_stay_as_they_are() -> None:
    """Compaction is an overlay: nothing is taken out of the log."""
    memory = memory_of(12)
    before = list(memory.conversation.rounds)
    with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
    assert list(memory.conversation.rounds) == before
    rounds, compaction = memory.get_role_rounds(ROLE)
    assert compaction is not None
    assert [round_.id for round_ in rounds[compaction.end_index :]] == ["r10", "r11", "r12"]


def test_indices_follow_when_a_covered_round_fails() -> None:
    """The tail begins where it began, and the next compaction goes on from there."""
    memory, summarizer = memory_of(10), ScriptedSummarizer()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
        for covered in ("r2", "r7"):  # one in the middle, and the very last
            memory.finish_round(covered, state="failed")
        rounds, compaction = memory.get_role_rounds(ROLE)
        assert compaction is not None
        assert [round_.id for round_ in rounds[compaction.end_index :]] == ["r8", "r9", "r10"]
        assert end_of(compactor) == 5
        for _ in range(5):
            add_round(memory)
        assert compactor.wait_idle(SOON)
    assert [round_.id for round_ in summarizer.requests[1].rounds] == ["r8", "r9", "r10", "r11", "r12"]


def test_a_compactor_goes_on_from_what_the_log_holds() -> None:
    """What another compactor of the role published is where this one starts."""
    memory = memory_of(10)
    with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(["The first."])) as compactor:
        assert compactor.wait_idle(SOON)
    summarizer = ScriptedSummarizer()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
        assert summarizer.requests == []
        for _ in range(5):
            add_round(memory)
        assert compactor.wait_idle(SOON)
    (request,) = summarizer.requests
    assert request.previous is not None
    assert request.previous.summary == "The first."


# When it looks


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda memory: memory.create_round("next"), id="a round is added"),
        pytest.param(
            lambda memory: memory.add_post("r3", send_from="User", send_to=ROLE, message="more"), id="a post is added"
        ),
        pytest.param(lambda memory: memory.finish_round("r3"), id="a round is closed"),
        pytest.param(lambda memory: memory.finish_round("r3", state="failed"), id="a round fails"),
        pytest.param(lambda memory: memory.finish_round("r1", state="failed"), id="a closed round fails"),
    ],
)
def test_the_trigger_is_looked_at_after_every_event(happens: Callable[[Memory], object]) -> None:
    """Whatever could make it true."""
    looks: list[int] = []
    memory = memory_of(3, close_last=False)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer(), trigger=lambda view: looks.append(view.total))
    compactor.start()
    assert executor.run_all() == 1, "start() looks at what is there"
    happens(memory)
    assert executor.run_all() == 1
    assert len(looks) == 2


def test_an_event_while_the_rounds_are_read_is_looked_at_again() -> None:
    """The pending mark is cleared before the getter is called; after it, this round would wait for the next event."""
    memory = memory_of(2)
    seen: list[int] = []

    def getter() -> object:
        rounds = memory.get_role_rounds(ROLE)[0]
        seen.append(len(rounds))
        if len(seen) == 1:
            add_round(memory)
        return rounds

    config = CompactorConfig(threshold=2, retain_recent=1)
    executor = ManualExecutor()
    compactor = ContextCompactor(config, ScriptedSummarizer(), getter, role=ROLE, executor=executor)
    memory.register_compaction_provider(ROLE, compactor)
    compactor.start()
    executor.run_all()
    assert seen[:2] == [2, 3]
    assert end_of(compactor) == 2


def test_an_event_while_compacting_is_not_lost() -> None:
    """Rounds that come during a call are looked at when it is over, without another event."""
    memory, summarizer = memory_of(10), ScriptedSummarizer()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor, summarizer:
        assert summarizer.started.wait(SOON)
        for _ in range(5):
            add_round(memory)
        assert compactor.status().state is State.COMPACTING
        assert end_of(compactor) == 0
        summarizer.release()
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 12, "new rounds do not make the first result stale, and the second follows"
    assert [request.end_index for request in summarizer.requests] == [7, 12]


def test_a_storm_of_notifications_is_one_look() -> None:
    """A hundred events while one cycle runs are looked at once."""
    memory = memory_of(3)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    for _ in range(100):
        compactor.notify_rounds_changed(3)
    assert executor.run_all() == 1
    assert compactor.wait_idle(0)


def test_registering_it_twice_has_it_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it told twice where it serves two names."""
    memory, told = memory_of(3), []
    compactor, *_ = on_command(memory, ScriptedSummarizer())
    memory.register_compaction_provider(ROLE, compactor)
    memory.register_compaction_provider("Also", compactor)
    monkeypatch.setattr(compactor, "notify_rounds_changed", told.append)
    memory.create_round("once")
    assert told == [4]


def test_the_number_of_a_notification_is_only_a_hint() -> None:
    """Any number, or none, makes it look at what there is."""
    compactor, executor, _ = on_command(memory_of(10), ScriptedSummarizer())
    compactor.start()
    for total in (None, 0, -5, 10**9):
        compactor.notify_rounds_changed(total)
    executor.run_all()
    assert end_of(compactor) == 7


def test_a_token_trigger_looks_at_posts_and_retains_as_few_rounds_as_it_takes() -> None:
    """It cuts at most to ``retain_recent`` rounds, and to fewer until half of the mark is reached."""
    memory = memory_of(4, close_last=False)
    config = CompactorConfig(threshold=50, retain_recent=3, max_tokens=4_000, token_ratio=0.5, target_tokens=100)
    with ContextCompactor.for_role(memory, ROLE, config, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 0
        memory.add_post("r4", send_from="User", send_to=ROLE, message="word " * 2_500)
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 3, "only the open round is left: it alone is over half of the mark"


def test_a_trigger_may_be_any_callable_asynchronous_ones_included() -> None:
    """``View -> bool``."""
    asked: list[View] = []

    async def many(view: View) -> bool:
        asked.append(view)
        return view.tail_length > 4

    with ContextCompactor.for_role(memory_of(6), ROLE, CONFIG, ScriptedSummarizer(), trigger=many) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 3
    assert asked


# What is never shown


#: Each refused answer counts by itself.
ONE_ATTEMPT = CONFIG.merged(summary_attempts=1)


def echoing(request: SummaryRequest) -> str:
    conversation = text_of(request).partition("<conversation>")[2].partition("</conversation>")[0]
    return conversation[: len(conversation) * 3 // 4]


NO_ANSWERS: dict[str, Any] = {
    "an exception": ValueError("SECRET"),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "a panic": PanicException("index out of range"),
    "nothing": "",
    "white space": " \n\t ",
    "only thoughts": "<think>What should I say?</think>",
    "empty summary tags": "<summary></summary>",
    "a greeting": "Hello! How can I help you today?",
    "an offer": "Sure, I'd be happy to help with that.",
    "a refusal": "I'm sorry, but I cannot do that.",
    "its source again": echoing,
    "as long as its source": lambda request: "fact " * 600,
    "None": lambda request: None,
    "bytes": lambda request: b"A summary.",
    "a number": lambda request: 7,
    "a Summary of no text": lambda request: Summary(None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_what_is_no_summary_never_changes_the_published_one_and_is_asked_for_again(answer: Any) -> None:
    """It counts as a failure, is told, and is retried by itself; the worker lives."""
    memory, clock, heard = memory_of(10), FakeClock(), Heard()
    summarizer = ScriptedSummarizer(["The good one.", answer, "The next good one."])
    options = {"clock": clock, "rng": lambda: 1.0, "on_event": heard}
    with ContextCompactor.for_role(memory, ROLE, ONE_ATTEMPT, summarizer, **options) as compactor:
        assert compactor.wait_idle(SOON)
        good = compactor.get_compaction()
        for _ in range(5):
            add_round(memory)
        assert heard.until(Failed).failures == 1
        assert compactor.wait_idle(SOON) is False
        assert compactor.status().state is State.BACKING_OFF
        assert compactor.get_compaction() == good
        clock.advance(1.0)
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 12
        assert compactor.status().failures == 0
        assert compactor.status().last_error is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [("", "empty"), ("Hello!", "greeting"), (echoing, "echo"), (lambda _: 7, "not_text"), (OSError("x"), "OSError")],
)
def test_the_failure_names_the_check_or_the_class_of_the_error(answer: Any, error: str) -> None:
    """And never what was said."""
    compactor, executor, _ = on_command(memory_of(10), ScriptedSummarizer([answer]), ONE_ATTEMPT)
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Failed)[0].error == error


def test_a_summary_far_over_its_target_is_refused() -> None:
    """Up to twice as long is let pass, for models count badly."""
    config = CompactorConfig(threshold=0, retain_recent=0, target_tokens=20, summary_attempts=1)
    long, fair = "fact " * 41, "fact " * 38
    compactor, executor, clock = on_command(memory_of(6), ScriptedSummarizer([long, fair]), config)
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Failed)[0].error == "oversized"
    clock.advance(1)
    executor.run_all()
    assert end_of(compactor) == 6


def test_thoughts_and_tags_are_taken_off_any_summarizers_answer() -> None:
    """Plain functions included."""
    answer = "<think>hm</think>\n<summary>The user wants <b>blue</b>.</summary>"
    compactor, executor, _ = on_command(memory_of(10), lambda request: answer)
    compactor.start()
    executor.run_all()
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert compaction.summary == "The user wants <b>blue</b>."


def test_an_error_of_the_hosts_code_is_shown_by_its_class_alone() -> None:
    """Its words may quote the conversation; ours do not, and name the remedy."""
    answers = [ValueError("SECRET of the user"), ""]
    compactor, executor, clock = on_command(memory_of(10), ScriptedSummarizer(answers), ONE_ATTEMPT)
    compactor.start()
    executor.run_all()
    assert compactor.status().last_error == "ValueError"
    assert "SECRET" not in repr(compactor.events)
    clock.advance(1)
    executor.run_all()
    assert "holds no text" in str(compactor.status().last_error)


# What is discarded


def test_a_result_one_of_whose_rounds_failed_meanwhile_is_discarded_and_made_again() -> None:
    """It would show what is hidden; the next one is made without that round."""
    memory, summarizer, heard = memory_of(10), ScriptedSummarizer(["With round 3.", "Without it."]), Heard()
    with (
        ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, on_event=heard) as compactor,
        summarizer,
    ):
        assert summarizer.started.wait(SOON)
        memory.finish_round("r3", state="failed")
        summarizer.release()
        assert heard.until(Discarded).reason == "rounds_changed"
        assert compactor.wait_idle(SOON)
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert (compaction.summary, compaction.end_round_id, compaction.end_index) == ("Without it.", "r7", 6)
    assert "item-3?" not in text_of(summarizer.requests[1])


def test_a_retained_round_that_fails_meanwhile_changes_nothing() -> None:
    """It is not in the summary."""
    memory, summarizer = memory_of(10), ScriptedSummarizer()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor, summarizer:
        assert summarizer.started.wait(SOON)
        memory.finish_round("r9", state="failed")
        summarizer.release()
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 7
    assert of_kind(compactor.events, Discarded) == []


def test_a_result_of_an_older_generation_is_discarded() -> None:
    """Whoever publishes first is the one that stays; nothing is published over it."""
    memory, summarizer, heard = memory_of(12), ScriptedSummarizer(["Mine, too late."]), Heard()
    with (
        ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, on_event=heard) as compactor,
        summarizer,
    ):
        assert summarizer.started.wait(SOON)
        made = CompactedMessage(start_index=1, end_index=9, end_round_id="r9", summary="Another's.")
        memory.journal(ROLE).publish(made, base=0, round_ids=[f"r{n}" for n in range(1, 10)])
        summarizer.release()
        assert heard.until(Discarded).reason == "generation"
        assert compactor.wait_idle(SOON)
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert (compaction.summary, compaction.generation) == ("Another's.", 1)


# Revert


def test_a_revert_brings_the_one_before_back_and_waits_for_a_newer_round() -> None:
    """It is a new generation; the reverted one stays in the log."""
    memory, summarizer = memory_of(10), ScriptedSummarizer(["First.", "Second.", "Third."])
    compactor, executor, _ = on_command(memory, summarizer)
    compactor.start()
    executor.run_all()
    for _ in range(5):
        add_round(memory)
    executor.run_all()
    assert compactor.get_compaction().summary == "Second."  # type: ignore[union-attr]
    reverted = compactor.revert()
    assert reverted == compactor.get_compaction()
    assert reverted is not None
    assert (reverted.summary, reverted.end_index, compactor.status().generation) == ("First.", 7, 3)
    assert of_kind(compactor.events, Reverted)[0].facts() == {"role": ROLE, "generation": 3, "end": 7}
    memory.add_post(memory.create_round("held", id="r16"), send_from="User", send_to=ROLE, message="a newer one")
    memory.finish_round("r16", state="failed")
    compactor.notify_rounds_changed()
    executor.run_all()
    assert compactor.status().why_idle is Skip.REVERTED, "the newer round failed, so there is none"
    add_round(memory)
    executor.run_all()
    assert compactor.get_compaction().summary == "Third."  # type: ignore[union-attr]
    assert compactor.status().generation == 4


def test_it_is_still_held_when_the_newest_round_of_the_revert_fails() -> None:
    """There is no newer one."""
    memory = memory_of(10)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    executor.run_all()
    compactor.revert()
    memory.finish_round("r10", state="failed")
    executor.run_all()
    assert compactor.status().why_idle is Skip.REVERTED
    assert end_of(compactor) == 0


def test_a_revert_with_nothing_to_revert_is_none_and_no_event() -> None:
    """Nor does it hold anything back."""
    compactor, executor, _ = on_command(memory_of(10), ScriptedSummarizer())
    assert compactor.revert() is None
    assert compactor.events == ()
    compactor.start()
    executor.run_all()
    assert end_of(compactor) == 7


def test_a_revert_discards_the_run_in_flight() -> None:
    """Its result was made from what is no longer current."""
    memory, summarizer, heard = memory_of(10), ScriptedSummarizer(["First.", "Second."]), Heard()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, on_event=heard) as compactor:
        assert compactor.wait_idle(SOON)
        with summarizer:
            for _ in range(5):
                add_round(memory)
            assert summarizer.started.wait(SOON)
            assert in_thread(compactor.revert)() is None
        assert heard.until(Discarded).reason == "generation"
        assert compactor.wait_idle(SOON)
        assert compactor.get_compaction() is None
        assert compactor.status().why_idle is Skip.REVERTED
        assert compactor.status().generation == 2
        assert compactor.status().failures == 0, "a discarded result is no failure"


# Hooks


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(), KeyboardInterrupt(), PanicException()], ids=repr)
def test_a_hook_that_raises_breaks_nothing(raised: BaseException) -> None:
    """Not the cycle, not the thread, not the other hooks; and it is told."""
    memory = memory_of(10)

    def broken(_event: Event) -> None:
        raise raised

    with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), on_event=broken) as compactor:
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

    with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), on_event=hook) as compactor:
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

    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, ScriptedSummarizer(), on_event=hook) as compactor:
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
        return memory.get_role_rounds(ROLE)[0] if place == "getter" else "A plan." if place == "plan" else "A summary."

    options: dict[str, Any] = {"summarizer": lambda request: "A summary.", "getter": memory.rounds_getter(ROLE)}
    options |= {place: calls}
    getter = options.pop("getter")
    with ContextCompactor(CONFIG, options.pop("summarizer"), getter, **options) as compactor:
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
        return "A summary."

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
    with ContextCompactor(CONFIG, summarizer, getter, role=ROLE, journal=Journal(), on_event=hook) as compactor:
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
    compactor, executor, clock = on_command(memory, lambda request: Summary("A summary.", usage, "small-model"))
    compactor.start()
    executor.run_all()
    evaluated, started, prepared, published, again, skipped = compactor.events
    assert evaluated.facts() == {
        "role": ROLE, "generation": 0, "holds": True, "forced": False, "rounds": 10, "tail": 10,
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
    assert again.facts() | {"holds": False} == {
        "role": ROLE, "generation": 1, "holds": False, "forced": False, "rounds": 10, "tail": 3,
    }  # fmt: skip
    assert skipped.facts() == {
        "role": ROLE, "generation": 1, "reason": Skip.BELOW_TRIGGER, "rounds": 10, "tail": 3, "closed": 10,
    }  # fmt: skip
    assert {event.at for event in compactor.events} == {clock.now()}, "stamped by the compactor's clock"


def rounds_left_open(count: int) -> Memory:
    memory = Memory("s")
    for _ in range(count):
        memory.create_round("open")
        memory._own_round = ""  # as other writers' rounds
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
    assert compactor.status().why_idle is None
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Skipped)[-1].reason is reason
    assert compactor.status().why_idle is reason
    assert compactor.status().state is State.IDLE


def test_what_does_something_is_not_idle_for_a_reason() -> None:
    """Nor is what fails at it: the reason of the cycle before is gone."""
    memory = memory_of(7)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer([OSError()]))
    compactor.start()
    executor.run_all()
    assert compactor.status().why_idle is Skip.BELOW_TRIGGER
    add_round(memory)
    executor.run_all()
    assert compactor.status().state is State.BACKING_OFF
    assert compactor.status().why_idle is None


def test_the_history_keeps_the_newest_events() -> None:
    """A bounded number of them."""
    compactor, executor, _ = on_command(memory_of(3), ScriptedSummarizer(), history=3)
    compactor.start()
    for _ in range(5):
        executor.run_all()
        compactor.notify_rounds_changed()
    executor.run_all()
    assert kinds(compactor.events) == ["skipped", "evaluated", "skipped"]


def test_an_unknown_model_is_told_once_it_starts() -> None:
    """The default encoding stands in."""
    compactor, *_ = on_command(memory_of(1), ScriptedSummarizer(), CompactorConfig(model="nobody-knows-it"))
    assert compactor.events == ()
    compactor.start()
    compactor.start()
    (told,) = of_kind(compactor.events, ModelUnknown)
    assert told.facts() == {
        "role": ROLE, "generation": 0, "model": "nobody-knows-it", "encoding": "o200k_base",
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


# How it is made


def test_the_getter_is_required() -> None:
    """And the message says what it is."""
    with pytest.raises(
        TypeError, match=r"rounds_getter is missing: a callable that returns the rounds, or use for_role"
    ):
        ContextCompactor(CONFIG, ScriptedSummarizer())


def test_summarizer_and_llm_api_are_two_names_of_one_thing() -> None:
    """Both at once is an error."""
    with pytest.raises(TypeError, match="two names of one thing"):
        ContextCompactor(CONFIG, ScriptedSummarizer(), list, llm_api=ScriptedSummarizer())


def test_what_is_no_summarizer_is_refused_when_it_is_made() -> None:
    """Not when it is first asked, in a thread."""
    with pytest.raises(TypeError, match="is no summarizer"):
        ContextCompactor(CONFIG, object(), list)


def test_what_is_no_trigger_is_refused_when_it_is_made() -> None:
    """Likewise."""
    with pytest.raises(TypeError, match="a trigger is a callable"):
        ContextCompactor(CONFIG, None, list, trigger=7)  # type: ignore[arg-type]


class ChatAPI:
    """What TaskWeaver calls an LLM API."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []

    def chat_completion(self, messages: list[dict[str, Any]], use_backup_engine: bool = True) -> dict[str, str]:
        self.asked.append(messages)
        return {"role": "assistant", "content": "Summary by chat_completion."}


@pytest.mark.parametrize("keyword", ["summarizer", "llm_api"])
@pytest.mark.parametrize("form", ["an object with chat_completion", "a plain function"])
def test_functions_and_chat_apis_summarize_under_either_name(keyword: str, form: str) -> None:
    """``llm_api=`` is what the name is elsewhere."""
    api = ChatAPI()
    source = api if form.startswith("an object") else lambda request: "Summary by chat_completion."
    memory = memory_of(10)
    with ContextCompactor(CONFIG, rounds_getter=memory.rounds_getter(ROLE), **{keyword: source}) as compactor:
        assert compactor.wait_idle(SOON)
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert compaction.summary == "Summary by chat_completion."


def test_without_a_summarizer_it_extracts_offline() -> None:
    """No key, no network."""
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG) as compactor:
        assert compactor.wait_idle(SOON)
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert "item-" in compaction.summary
    assert isinstance(compactor._runner._summarizer, ExtractiveSummarizer)


def test_for_role_registers_it_and_starts_nothing() -> None:
    """Constructors start nothing."""
    memory, before = memory_of(10), threading.active_count()
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer())
    assert memory.get_role_rounds(ROLE)[1] is None
    assert threading.active_count() == before
    assert compactor.status().state is State.NEW
    compactor.compact_now(SOON)
    assert memory.get_role_rounds(ROLE)[1] == compactor.get_compaction()


def test_a_token_trigger_counts_the_header() -> None:
    """System messages stand in front of every prompt."""
    memory = Memory.from_messages([{"role": "system", "content": "rule " * 500}, {"role": "user", "content": "hi"}])
    memory.finish_round(memory.conversation.rounds[-1].id)
    seen: list[int] = []
    compactor, executor, _ = on_command(memory, None, trigger=over_tokens(10_000) | (lambda v: seen.append(v.tokens)))
    compactor.start()
    executor.run_all()
    assert seen[0] < 50, "the Planner sees no message between assistant and user, and no header of theirs"
    other = ContextCompactor.for_role(memory, "assistant", CONFIG, trigger=lambda view: seen.append(view.tokens))
    other.compact_now(SOON)
    with other:
        assert other.wait_idle(SOON)
    assert seen[1] > 500


def test_public_parameters_keep_their_names() -> None:
    """Hosts pass them by keyword."""
    parameters = list(inspect.signature(ContextCompactor.__init__).parameters)
    assert parameters[1:4] == ["config", "summarizer", "rounds_getter"]
    assert {"role", "trigger", "strategies", "plan", "executor", "journal", "clock", "llm_api"} <= set(parameters)


def test_the_end_follows_a_failed_round_also_without_the_logs_journal() -> None:
    """``rounds[end_index:]`` is the tail for whoever merges by hand, too: no round is in neither."""
    memory = memory_of(12)
    compactor = ContextCompactor(
        CompactorConfig(threshold=5, retain_recent=2), ScriptedSummarizer(), memory.rounds_getter(ROLE), role=ROLE
    )
    compactor.compact_now(SOON)
    assert end_of(compactor) == 10
    memory.finish_round("r3", state="failed")
    assert end_of(compactor) == compactor.status().end_index == 9
    assert [round_.number for round_ in memory.rounds_getter(ROLE)()[9:]] == [11, 12]
