"""A summarizer that fails, or saves too little: what becomes of the messages, and when an extract stands in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import Message, answer, calls, result, user, words
from offloaded_chats import (
    ASKED,
    FACTS,
    SYSTEM,
    agent_at_work,
    chat,
    compress,
    orders,
    snapshots,
    summarised,
    tokens_of,
)

from compactor import SummaryRejected, SummaryRequest, count_tokens
from compactor.presets import offload_context
from compactor.testing import ScriptedSummarizer


def make_failing() -> Callable[[object], str]:
    """Return a summarizer whose failures are counted apart from any other's."""

    def fail(_request: object) -> str:
        raise RuntimeError("down")

    return fail


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (RuntimeError("down"), RuntimeError),
        ("", SummaryRejected),
        (None, SummaryRejected),
        (words(5_000), SummaryRejected),
    ],
)
def test_a_failed_summary_leaves_everything_as_it_was(said: Any, kind: type[Exception]) -> None:
    """The result says why, and compacted results stay so: the agent goes on."""

    def summarizer(_request: object) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    messages = [*chat(10), *agent_at_work(2, size=3_000)[1:]]
    made = offload_context(messages, max_total_tokens=4_000, summarizer=summarizer, compact_ratio_threshold=0.1)
    assert isinstance(made.failure, kind)
    assert not made.success
    assert len(made.messages) == len(messages)
    assert [message for message in made.messages if message["role"] != "tool"] == [
        message for message in messages if message["role"] != "tool"
    ]
    assert len(made.write_file_dict) == 1


def test_a_refused_summary_is_asked_for_once_more_with_the_reason() -> None:
    """As a compactor does; not if the answer would be the same."""
    summarizer = ScriptedSummarizer(["", ASKED])
    made = compress(chat(10), summarizer=summarizer)
    assert made.success
    assert "it held no text" in str(summarizer.requests[1].messages)
    assert len(snapshots(made.messages)) == 1


def test_one_failing_group_leaves_all_as_they_were(tmp_path: Path) -> None:
    """A summary of half of it is none, and nothing is written."""
    summarizer = ScriptedSummarizer([ASKED, RuntimeError("down")])
    made = compress(chat(20), group_token_threshold=600, summarizer=summarizer, store_dir=tmp_path)
    assert (made.messages, made.write_file_dict) == (chat(20), {})
    assert made.over > 0
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_said_in_less_offline_is_no_failure() -> None:
    """It is no error, and later messages may help."""
    for size in range(40, 80):
        messages = [calls("c"), result("c", "漢字" * size)]
        made = offload_context(messages, max_total_tokens=1, keep_recent_count=0, group_token_threshold=64)
        assert (made.failure, made.success) == (None, True)


def test_an_interrupt_is_no_failed_summary() -> None:
    """Ctrl-C ends the call."""
    with pytest.raises(KeyboardInterrupt):
        offload_context(chat(20), max_total_tokens=1_000, summarizer=ScriptedSummarizer([KeyboardInterrupt()]))


def test_a_snapshot_that_saves_nothing_is_not_made() -> None:
    """Its frame costs more than the messages that it would replace, and nobody is asked."""
    asked = ScriptedSummarizer()
    messages = [SYSTEM, user("hi"), answer("Hello there, how can I help?"), user("And now?"), answer("ok")]
    made = compress(messages, max_total_tokens=20, summarizer=asked)
    assert (made.messages, made.write_file_dict, made.failure, asked.requests) == (messages, {}, None, [])
    assert made.over == made.tokens_after - 20


FORGETS = "The user asks where several orders are, and hears in which depot each is and what it costs."


@pytest.mark.slow
@pytest.mark.parametrize("said", [RuntimeError("down"), FORGETS])
def test_a_summarizer_that_fails_again_and_again_is_stood_in_for_offline(tmp_path: Path, said: Any) -> None:
    """As in a compactor with an open circuit: the limit is met, nothing is lost, and the model may answer again."""
    answers: list[Any] = [said] * 100

    def summarizer(_request: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    messages, limit = [*summarised(), *orders()[1:], user("Never send order A-0007 by air.")], 3_000
    given = messages[1:]
    results = []
    for number in range(30):
        more = [answer(f"Noted {number}. {words(60)}"), user(f"And number {number}? {words(60)}")]
        messages, given = [*messages, *more], [*given, *more]
        made = offload_context(messages, max_total_tokens=limit, summarizer=summarizer, store_dir=tmp_path)
        messages = made.messages
        results.append(made)

    assert [(made.success, made.over > 0) for made in results[:4]] == [(False, True)] * 4
    assert all(made.success and made.over == 0 for made in results[4:])
    folded = [made for made in results if made.offline]
    assert len(folded) > 1
    assert said is not FORGETS or {made.failure.check for made in folded} == {"forgets_previous"}
    assert all(made.failure is not None and made.answer.startswith("Kept in full: ") for made in folded)
    assert "Never send order A-0007 by air." in snapshots(messages)[0]["content"]
    kept = "\n".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.txt")) + str(messages)
    assert all(str(message["content"]) in kept for message in given)

    answers[:] = [FACTS] * 10
    made = offload_context([*messages, *orders()[1:]], max_total_tokens=limit, summarizer=summarizer)
    assert (made.failure, made.offline) == (None, False)
    answers[:] = [said] * 10
    messages = [*summarised(), *orders()[1:], user("And now?")]
    made = offload_context(messages, max_total_tokens=limit, summarizer=summarizer)
    assert (made.messages, made.success) == (messages, False)


def test_failures_are_counted_chat_by_chat() -> None:
    """One chat's refused summaries take no other chat's model away."""

    class Down:
        def summarise(self, _request: object) -> str:
            raise RuntimeError("down")

    down, options = Down(), {"max_total_tokens": 3_000}
    for _ in range(5):
        one = offload_context(orders(), chat_id="one", summarizer=down.summarise, **options)
    two = offload_context(orders(), chat_id="two", summarizer=down.summarise, **options)
    assert (one.offline, two.offline) == (True, False)


@pytest.mark.slow
def test_an_extract_that_saves_nothing_stands_in_for_nobody() -> None:
    """The failure is told as any other, and the messages are as they were."""
    summarizer = make_failing()
    for size in range(40, 80):
        messages = [calls("c"), result("c", "漢字" * size)]
        options: Any = {"max_total_tokens": 1, "keep_recent_count": 0, "group_token_threshold": 64}
        made = [offload_context(messages, **options, summarizer=summarizer) for _ in range(5)][-1]
        assert made.offline == (made.messages != messages)
        assert made.success == (made.offline or made.failure is None)


def test_calls_that_ask_nobody_are_no_success() -> None:
    """Between them it fails on."""
    options: Any = {"max_total_tokens": 3_000, "summarizer": make_failing()}
    huge = [*orders(), user("And now?"), calls("c"), result("c", words(9_000))]
    for _ in range(4):
        assert not offload_context(orders(), **options).success
        assert offload_context(huge[-3:], **options).failure is None
    assert offload_context(orders(), **options).offline


def test_what_fits_waits_for_the_summarizer_however_often_it_fails() -> None:
    """Only the limit is worth an extract."""
    messages = [*chat(3), *agent_at_work(2, size=3_000)[1:]]
    options: Any = {"max_total_tokens": 6_000, "summarizer": make_failing(), "compact_ratio_threshold": 0.1}
    results = [offload_context(messages, **options) for _ in range(8)]
    assert not any(made.success or made.offline or made.over for made in results)


def test_a_snapshot_that_saves_little_of_the_messages_is_asked_for_again() -> None:
    """Measured against the replaced messages, and not against their transcript, whose markup is longer."""
    short = "P-000, P-100, P-200, P-300, P-400, P-500, P-600 and P-700 all lie in the depot."

    def long(request: SummaryRequest) -> str:
        """As long as it may be, which is as long as what it replaces."""
        text = "Somebody wanted to know of P-000, P-100, P-200, P-300, P-400, P-500, P-600 and P-700, and went on."
        while count_tokens(more := f"{text[:-1]} and on.") <= 2 * (request.target_tokens or 0):
            text = more
        return text

    model = ScriptedSummarizer([long, short])
    talk = [message for number in range(8) for message in small_turn(number)] + [user("And now?")]
    done = compress(talk, max_total_tokens=tokens_of(talk) - 1, keep_recent_count=1, summarizer=model)

    assert (done.failure, len(model.requests)) == (None, 2)
    assert "hardly shorter than what it replaces" in model.requests[1].messages[-1]["content"]
    assert short in done.messages[0]["content"]


def small_turn(number: int) -> list[Message]:
    asked = calls(f"c{number}", arguments=f'{{"p": {number}}}')
    return [user(f"And parcel P-{number}00?"), asked, result(f"c{number}", "in depot"), answer("In the depot.")]
