"""What a compactor never shows: answers that are no summary, results that are stale, and what was reverted."""

from __future__ import annotations

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
    memory_of,
    of_kind,
    on_command,
    prices,
    text_of,
)

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Discarded,
    Failed,
    Reverted,
    Skip,
    State,
    Summary,
    SummaryRequest,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage

pytestmark = pytest.mark.timeout(30)

# What is never shown


#: Each refused answer counts by itself.
ONE_ATTEMPT = CONFIG.copy_with(summary_attempts=1)


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
    "bytes": lambda request: PRICES.encode(),
    "a number": lambda request: 7,
    "a Summary of no text": lambda request: Summary(None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_what_is_no_summary_never_changes_the_published_one_and_is_asked_for_again(answer: Any) -> None:
    """It counts as a failure, is told, and is retried by itself; the worker lives."""
    memory, clock, heard = memory_of(10), FakeClock(), Heard()
    summarizer = ScriptedSummarizer([prices("Good"), answer, prices("Good, too")])
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
    assert "contains no text" in str(compactor.status().last_error)


# What is discarded


def test_a_result_one_of_whose_rounds_failed_meanwhile_is_discarded_and_made_again() -> None:
    """It would show what is hidden; the next one is made without that round."""
    memory, summarizer, heard = (
        memory_of(10),
        ScriptedSummarizer([prices("With round 3"), prices("Without it")]),
        Heard(),
    )
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
    assert (compaction.summary, compaction.end_round_id, compaction.end_index) == (prices("Without it"), "r7", 6)
    assert "item-3?" not in text_of(summarizer.requests[1])


def test_a_retained_round_that_fails_meanwhile_changes_nothing() -> None:
    """It is not in the summary."""
    memory, summarizer = memory_of(10), ScriptedSummarizer().hold()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor, summarizer:
        assert summarizer.started.wait(SOON)
        memory.finish_round("r9", state="failed")
        summarizer.release()
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 7
    assert of_kind(compactor.events, Discarded) == []


def test_a_result_of_an_older_generation_is_discarded() -> None:
    """Whoever publishes first is the one that stays; nothing is published over it."""
    memory, summarizer, heard = memory_of(12), ScriptedSummarizer([prices("Too late")]), Heard()
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
    memory, summarizer = memory_of(10), ScriptedSummarizer([prices("First"), prices("Second"), prices("Third")])
    compactor, executor, _ = on_command(memory, summarizer)
    compactor.start()
    executor.run_all()
    for _ in range(5):
        add_round(memory)
    executor.run_all()
    assert compactor.get_compaction().summary == prices("Second")  # type: ignore[union-attr]
    reverted = compactor.revert()
    assert reverted == compactor.get_compaction()
    assert reverted is not None
    assert (reverted.summary, reverted.end_index, compactor.status().generation) == (prices("First"), 7, 3)
    assert of_kind(compactor.events, Reverted)[0].facts() == {
        "session": memory.session_id, "role": ROLE, "generation": 3, "seconds": 0.0, "end": 7,
    }  # fmt: skip
    memory.add_post(memory.create_round("held", id="r16"), send_from="User", send_to=ROLE, message="a newer one")
    memory.finish_round("r16", state="failed")
    compactor.notify_rounds_changed()
    executor.run_all()
    assert compactor.status().skip_reason is Skip.REVERTED, "the newer round failed, so there is none"
    add_round(memory)
    executor.run_all()
    assert compactor.get_compaction().summary == prices("Third")  # type: ignore[union-attr]
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
    assert compactor.status().skip_reason is Skip.REVERTED
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
    memory, summarizer, heard = memory_of(10), ScriptedSummarizer([prices("First"), prices("Second")]), Heard()
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
        assert compactor.status().skip_reason is Skip.REVERTED
        assert compactor.status().generation == 2
        assert compactor.status().failures == 0, "a discarded result is no failure"
