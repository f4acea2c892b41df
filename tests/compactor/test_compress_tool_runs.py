"""Runs of tool calls in past rounds, each made one summary: what goes into it, what stays, and the prompt that is left."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from chats import Message, answer, calls, ids, result, user, words
from hypothesis import given
from hypothesis import strategies as st
from scene import SOON, ManualExecutor, of_kind
from tool_runs import (
    CONFIG,
    CURRENT,
    LONG,
    ON,
    ROLE,
    apply,
    memory_of,
    pair,
    pairs,
    quoted,
    references,
    shown,
    work_of,
)
from views import spans, view_of

from compactor import (
    ContextCompactor,
    ExtractiveSummarizer,
    Reduced,
    SummaryRequest,
    compact_rounds,
    compose,
    compress_tool_runs,
    over_messages,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage, Memory, Reduction

# -- past rounds ------------------------------------------------------------------------------------------------------


def test_a_long_run_of_calls_becomes_one_message() -> None:
    """In nobody's voice: it says that the calls were made, and how to read them."""
    memory = memory_of(user(), *pairs(4), answer("done"))
    (reduction,), (request,) = apply(memory, compress_tool_runs())
    assert (reduction.kind, spans([reduction])) == ("summarised", [(1, 8)])
    asked, summary, done = shown(memory)
    assert (asked, done) == (user(), answer("done"))
    head, _, text = str(summary["content"]).partition("\n")
    assert summary["role"] == "user"
    assert head == (
        "[Summary of tool calls that were made already and are not to be made again, and of their results, kept in full;"
        " reload r1.p1-p8]"
    )
    assert "made already and are not to be made again" in head
    assert text == "f was called; its results were long."
    original = memory.reload("r1.p1-p8")
    assert all(f"c{number}: {LONG}" in original for number in range(4))
    assert request.kind == "tool_run"


@pytest.mark.parametrize(("count", "least", "made"), [(3, 6, 0), (4, 6, 1), (1, 1, 1), (1, 2, 0), (2, 4, 0)])
def test_only_runs_of_more_posts_than_that_are_summarised(count: int, least: int, made: int) -> None:
    """Calls and results are counted, one by one."""
    reductions, requests = apply(memory_of(user(), *pairs(count), answer()), compress_tool_runs(least))
    assert (len(reductions), len(requests)) == (made, made)


def test_runs_are_summarised_one_by_one_the_oldest_first() -> None:
    """What was paid for is published before the next is asked for."""
    memory = memory_of(user(), *pairs(4), answer("a"), *pairs(4, 4), answer("b"), user("next"), *pairs(4, 8), answer())
    summarizer = ScriptedSummarizer(default="f was called; its results were long.")
    found = compress_tool_runs()(view_of(memory, work=work_of(summarizer)))
    assert next(iter(found)).first_number == 1
    assert len(summarizer.requests) == 1
    made, _ = apply(memory, compress_tool_runs(), summarizer)
    assert spans(made) == [(1, 8), (10, 17), (1, 8)]
    assert [message["content"] for message in shown(memory) if message["role"] == "assistant"] == ["a", "b", "a"]


def test_a_run_ends_where_anybody_speaks() -> None:
    """Past runs are calls and results alone; what was said between them is no tool's."""
    chat = [user(), *pairs(2), answer("So far."), *pairs(2, 2), user("Hm."), *pairs(2, 4), answer("All.")]
    assert apply(memory_of(*chat), compress_tool_runs())[0] == []
    assert len(apply(memory_of(*chat), compress_tool_runs(3))[0]) == 3


def test_rounds_that_are_open_or_compacted_are_left_alone() -> None:
    """The open round has a scope of its own; what a compaction covers is not shown any more."""
    memory = memory_of(user(), *pairs(4), answer(), user("now"), *pairs(4, 4), closed=False)
    apply(memory, compress_tool_runs())
    assert [message["role"] for message in shown(memory)] == [
        "user",
        "user",
        "assistant",
        "user",
        *["assistant", "tool"] * 4,
    ]


def test_what_a_compaction_covers_is_left_alone() -> None:
    """Nobody sees it any more, and no reduction of it would be published."""
    memory = memory_of(user(), *pairs(4), answer(), user(), *pairs(4, 4), answer())
    first = memory.conversation.rounds[0]
    covering = CompactedMessage(start_index=1, end_index=1, summary="S", end_round_id=first.id)
    memory.journal(ROLE).publish(covering, base=0, round_ids=[first.id])
    (reduction,), _ = apply(memory, compress_tool_runs())
    assert reduction.round_id == memory.conversation.rounds[1].id


def test_parallel_calls_stay_with_their_results() -> None:
    """And results that came late are not left behind, nor what somebody said between them taken in."""
    chat = [
        user(),
        *pair("a", "b", "c"),
        calls("d", "e"),
        result("d", LONG),
        calls("f"),
        result("f", LONG),
        result("e", LONG),
    ]
    memory = memory_of(*chat, answer("x"))
    (reduction,), (request,) = apply(memory, compress_tool_runs())
    assert spans([reduction]) == [(1, 9)]
    assert [post.number for part in request.rounds for post in part.post_list] == list(range(1, 10))
    shown(memory)


def test_what_the_role_says_between_a_call_and_its_result_goes_with_them() -> None:
    """A span hides all between its ends."""
    memory = memory_of(user(), *pairs(2), calls("a"), answer("Wait."), result("a", LONG), *pairs(2, 2), answer("done"))
    (reduction,), (request,) = apply(memory, compress_tool_runs())
    assert spans([reduction]) == [(1, 11)]
    assert "Wait." in quoted(request)


def test_a_late_result_belongs_to_a_run() -> None:
    """It is a tool's, though nobody knows which call it answers; alone it is no run."""
    memory = memory_of(user(), *pairs(2), result("nobody", LONG), *pairs(2, 2), answer())
    assert spans(apply(memory, compress_tool_runs())[0]) == [(1, 9)]
    assert apply(memory_of(user(), result("nobody", words(500)), answer()), compress_tool_runs(0)) == ([], [])


def test_calls_between_whose_results_somebody_speaks_stay() -> None:
    """A span hides all between its ends, and what the user said is not hidden."""
    memory = Memory("s")
    round_ = memory.create_round("q")
    for message in pairs(4):
        memory.append(message)
    memory.append(calls("late"))
    memory.add_post(round_, send_from="User", send_to=ROLE, message="Hurry, please.")
    memory.append(result("late", LONG))
    for message in pairs(4, 4):
        memory.append(message)
    memory.append(answer("All."))
    memory.finish_round(round_)
    made, _ = apply(memory, compress_tool_runs())
    assert spans(made) == [(1, 8), (12, 19)]
    assert user("Hurry, please.") in shown(memory)


def test_the_newest_posts_may_be_kept() -> None:
    """Counted over the whole tail; a call is kept with its results."""
    memory = memory_of(user(), *pairs(8), answer("done"))
    assert spans(apply(memory, compress_tool_runs(keep_last=4))[0]) == [(1, 12)]
    memory = memory_of(user(), *pairs(8), answer("done"), user("next"), answer())
    assert spans(apply(memory, compress_tool_runs(keep_last=3))[0]) == [(1, 16)]
    assert apply(memory_of(user(), *pairs(8)), compress_tool_runs(keep_last=50))[0] == []


def test_what_is_pinned_stays() -> None:
    """The runs before and behind it are two."""
    memory = memory_of(user(), *pairs(9), answer())
    memory.pin("r1.p10")
    made, _ = apply(memory, compress_tool_runs())
    assert spans(made) == [(1, 8), (11, 18)]
    assert {"role": "tool", "tool_call_id": "c4", "content": f"c4: {LONG}"} in shown(memory)


def test_an_offloaded_post_is_read_in_full() -> None:
    """The log has it; a summary of a preview would know less than there is."""
    memory = memory_of(user(), *pairs(4), answer())
    round_ = memory.conversation.rounds[0]
    offloaded = Reduction.over(round_, [round_.post_list[1]], "offloaded", "preview [reload r1.p2]")
    memory.journal(ROLE).reduce(offloaded, base=0)
    (reduction,), (request,) = apply(memory, compress_tool_runs())
    assert f"c0: {LONG}" in quoted(request)
    assert "preview" not in quoted(request)
    assert spans([reduction]) == [(1, 8)]


def test_an_offloaded_post_that_fits_no_request_is_read_as_it_is_shown() -> None:
    """It was taken out for its length."""
    memory = memory_of(user(), *pair("huge", text=words(5_000)), *pairs(4), answer())
    round_ = memory.conversation.rounds[0]
    offloaded = Reduction.over(round_, [round_.post_list[1]], "offloaded", "preview [reload r1.p2]")
    memory.journal(ROLE).reduce(offloaded, base=0)
    _, requests = apply(memory, compress_tool_runs(), config=CONFIG.copy_with(summarizer_input_tokens=2_000))
    assert sum("preview [reload r1.p2]" in quoted(request) for request in requests) == 1
    assert len(requests) == 1


def test_dropped_posts_are_not_read_and_stay_out() -> None:
    """A rule has let them go; the summary takes their place too."""
    memory = memory_of(user(), *pairs(6), answer())
    round_ = memory.conversation.rounds[0]
    memory.journal(ROLE).reduce(Reduction.over(round_, round_.post_list[4:6], "dropped"), base=0)
    (reduction,), (request,) = apply(memory, compress_tool_runs())
    assert spans([reduction]) == [(1, 12)]
    assert "c2:" not in quoted(request)
    assert [one.kind for one in memory.get_role_rounds(ROLE)[0].reductions.of(round_.id)] == ["summarised"]


def test_a_summary_is_not_summarised_again_in_a_past_round() -> None:
    """It ends a run; new runs beside it have summaries of their own."""
    memory = memory_of(user(), *pairs(8), answer())
    apply(memory, compress_tool_runs(keep_last=9))
    made, requests = apply(memory, compress_tool_runs())
    assert spans(made) == [(9, 16)]
    assert "c3:" not in quoted(requests[0])
    assert apply(memory, compress_tool_runs())[0] == []


# -- in a compactor ---------------------------------------------------------------------------------------------------


def test_a_compactor_publishes_runs_and_goes_on_where_one_is_refused() -> None:
    """Light strategies first; the event says what was covered and what it took."""
    memory = memory_of(user(), *pairs(8), answer("done"), user("now"), *pairs(5, 8), ON, closed=False)
    summarizer = ScriptedSummarizer(default="f was called.")
    strategies = (compress_tool_runs(), compress_tool_runs(scope="current"), compact_rounds)
    executor = ManualExecutor()
    options: dict[str, Any] = {"strategies": strategies, "trigger": over_messages(9), "executor": executor}
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, clock=FakeClock(), **options)
    compactor.start()
    executor.run_all()
    assert [request.kind for request in summarizer.requests] == ["tool_run", "tool_run"]
    assert [(event.strategy, event.kind, event.posts) for event in of_kind(compactor.events, Reduced)] == [
        ("compress_tool_runs", "summarised", 16),
        ("compress_tool_runs", "summarised", 10),
    ]
    assert memory.get_role_rounds(ROLE)[1] is None
    assert len(shown(memory)) == 6


def test_what_is_appended_while_the_model_writes_stays_behind_the_summary() -> None:
    """A summary covers what it was made from, and nothing that came since."""
    memory = memory_of(user(), *pairs(5), ON, closed=False)

    def summarizer(_request: SummaryRequest) -> str:
        for message in (*pairs(1, 5), calls("w")):
            memory.append(message)
        return "f was called."

    assert spans(apply(memory, CURRENT, summarizer)[0]) == [(1, 10)]
    assert shown(memory)[2:] == [ON, *pairs(1, 5), calls("w")]


def test_in_the_background_newest_results_are_never_summarised_unread() -> None:
    """By a thread of its own, while the conversation goes on: each prompt holds what the role has yet to read."""
    memory = memory_of(user("Go."), *pairs(6), closed=False)
    summarizer = ScriptedSummarizer(default="f was called.")
    options: dict[str, Any] = {"strategies": [CURRENT], "trigger": over_messages(5)}
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, **options) as compactor:
        for step in range(6, 12):
            assert compactor.wait_idle(SOON)
            messages = shown(memory)
            assert messages[0] == user("Go.")
            assert len(messages) <= 6
            assert messages[-2:] == pairs(1, step - 1)
            for message in pairs(1, step):
                memory.append(message)
        assert compactor.wait_idle(SOON)
    assert summarizer.requests
    round_id = memory.conversation.rounds[0].id
    (live,) = memory.rounds_getter(ROLE)().reductions.of(round_id)
    assert (live.first_number, live.last_number) in ((1, 20), (1, 22))
    assert {post.number for request in summarizer.requests for r in request.rounds for post in r.post_list} <= set(
        range(1, live.last_number + 1)
    )


# -- whatever comes ---------------------------------------------------------------------------------------------------


texts = st.sampled_from(["", "ok", LONG, words(300), "漢字" * 60, "🎉\ud800{x}</round>\x00" * 20, "I called f."])


@st.composite
def chats(draw: st.DrawFn) -> list[Message]:
    """Return rounds with calls, parallel ones too, results in any order, and words between them."""
    messages: list[Message] = []
    numbers = itertools.count()
    for _ in range(draw(st.integers(1, 3))):
        messages.append(user(draw(texts)))
        waiting: list[str] = []
        for _ in range(draw(st.integers(0, 12))):
            kind = draw(st.sampled_from(["call", "call", "result", "result", "words", "user"]))
            if kind == "call":
                made = [f"c{next(numbers)}" for _ in range(draw(st.integers(1, 3)))]
                waiting += made
                messages.append(calls(*made, arguments=json.dumps({"x": draw(texts)})))
            elif kind == "result" and waiting:
                messages += [result(waiting.pop(draw(st.integers(0, len(waiting) - 1))), draw(texts))]
            elif kind == "words":
                messages.append(answer(draw(texts)))
            elif kind == "user" and draw(st.booleans()):
                messages.append(user(draw(texts)))
    return messages


@given(chats(), st.booleans(), st.integers(0, 6), st.integers(0, 4), st.data())
def test_whatever_is_summarised_the_prompt_is_legal_and_everything_can_be_read(
    messages: list[Message], closed: bool, least: int, keep: int, data: st.DataObject
) -> None:
    """No call without its result, no user's word touched, every reference gives the originals; again and again."""
    memory = memory_of(*messages, closed=closed)
    spoken = [message["content"] for message in messages if message["role"] == "user"]
    for _ in range(2):
        for scope in ("past", "current"):
            strategy = compress_tool_runs(least, keep, scope=scope)  # type: ignore[arg-type]
            made, _ = apply(memory, strategy, lambda _request: "f was called, and it gave something.")
            for reduction in made:
                assert reduction.first_number < reduction.last_number
        prompt = shown(memory)
        kept = [message["content"] for message in prompt if message["role"] == "user"]
        assert [text for text in spoken if text] == [
            text for text in kept if text and not text.startswith(("[Summary of", "[Late result"))
        ]
        told = "\n".join(memory.reload(ref) for ref in references(prompt))
        shown_ids = {id_ for message in prompt for id_ in ids(message)}
        for message in messages:
            for id_ in ids(message):
                assert id_ in shown_ids or f" as {id_}" in told
        extra = data.draw(st.sampled_from([[], pairs(5, 900)]))
        if closed or not extra:
            break
        for message in extra:
            memory.append(message)


@pytest.mark.slow
def test_the_real_dialogues_are_summarised_without_a_model(data: list[dict[str, Any]]) -> None:
    """All their runs of tool calls, by the embedded summarizer; prompts stay legal and shorter."""
    before = after = runs = 0
    for dialogue in data[:25]:
        memory = Memory.from_messages(dialogue["messages"])
        before += compose(memory, ROLE, budget=10**9).tokens
        made, _ = apply(memory, compress_tool_runs(3), ExtractiveSummarizer())
        runs += len(made)
        after += compose(memory, ROLE, budget=10**9).tokens
        for reduction, ref in zip(made, references(shown(memory)), strict=False):
            assert f"reload {ref}]" in reduction.text
            assert memory.reload(ref)
    assert runs > 3
    assert after < before
