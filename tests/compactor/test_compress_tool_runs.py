"""Runs of tool calls as one summary: which calls, what a model sees of them, and what stands in the prompt then."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from chats import Message, answer, assert_paired, calls, ids, result, user, words
from hypothesis import given
from hypothesis import strategies as st
from scene import SOON, ManualExecutor, of_kind

from compactor import (
    CompactorConfig,
    ContextCompactor,
    ExtractiveSummarizer,
    Summary,
    SummaryRejected,
    SummaryRequest,
    View,
    compact_rounds,
    compose,
    drop,
    offload_large,
    over_messages,
)
from compactor.events import Reduced
from compactor.ledger import Ledger
from compactor.strategies.compress_tool_runs import LEAST_TARGET, STANDS_FOR, compress_tool_runs
from compactor.testing import FakeClock, ScriptedSummarizer
from compactor.tokens import count_tokens
from compactor.units import PROMPT_TOKENS, count_message
from compactor.work import CycleWork
from memory import CompactedMessage, Memory, Reduction
from memory.stores import InMemoryStore
from prompts import PromptError, PromptTemplate

ROLE = "assistant"
LONG = words(150)
CONFIG = (
    CompactorConfig(summary_attempts=1) if "summary_attempts" in CompactorConfig.model_fields else CompactorConfig()
)


CURRENT = compress_tool_runs(scope="current")
#: What the role says when it has read the results.
ON = answer("On.")


def pair(*names: str, text: str = LONG) -> list[Message]:
    """Return one message with a call by each of *names*, and the results."""
    return [calls(*names), *(result(name, f"{name}: {text}") for name in names)]


def pairs(count: int, first: int = 0, text: str = LONG) -> list[Message]:
    return [message for number in range(first, first + count) for message in pair(f"c{number}", text=text)]


def memory_of(*messages: Message, closed: bool = True) -> Memory:
    memory = Memory.from_messages(messages)
    if closed:
        memory.finish_round(memory.conversation.rounds[-1])
    return memory


def view_of(
    memory: Memory,
    ask: Callable[[SummaryRequest], Any],
    config: CompactorConfig = CONFIG,
    *,
    mark: int | None = None,
    plan: str | None = None,
) -> View:
    rounds, compaction = memory.get_role_rounds(ROLE)
    work = CycleWork(config, mark, plan, ask, lambda _event: None, lambda: 0.0)
    return View(rounds, compaction, Ledger(ROLE, count_tokens), work=work)


def apply(
    memory: Memory,
    strategy: Callable[[View], Iterable[Reduction]],
    summarizer: Callable[[SummaryRequest], Any] | None = None,
    config: CompactorConfig = CONFIG,
    **more: Any,
) -> tuple[list[Reduction], list[SummaryRequest]]:
    """Publish what the strategy gives as it gives it; all of it must be published."""
    requests: list[SummaryRequest] = []
    summarizer = summarizer or ScriptedSummarizer(default="f was called; its results were long.")

    def ask(request: SummaryRequest) -> Any:
        requests.append(request)
        assert sum(count_message(m, count_tokens) for m in request.messages) + PROMPT_TOKENS <= (
            config.summarizer_input_tokens
        )
        return summarizer(request)

    made = []
    for reduction in strategy(view_of(memory, ask, config, **more)):
        assert memory.journal(ROLE).reduce(reduction, base=memory.journal(ROLE).read().generation) is not None
        made.append(reduction)
    return made, requests


def spans(reductions: Iterable[Reduction]) -> list[tuple[int, int]]:
    return [(one.first_number, one.last_number) for one in reductions]


def shown(memory: Memory) -> list[Message]:
    """The prompt where there is room for everything."""
    messages = compose(memory, ROLE, budget=10**9).messages
    assert_paired(messages)
    return messages


def quoted(request: SummaryRequest) -> str:
    (message,) = request.messages
    return str(message["content"]).partition("<conversation>\n")[2].partition("\n</conversation>")[0]


def said(request: SummaryRequest) -> str:
    return "\n".join(str(message["content"]) for message in request.messages)


def references(messages: Iterable[Message]) -> list[str]:
    return re.findall(r"reload (r\d+(?:\.p\d+(?:-p\d+)?)?)", "\n".join(str(message["content"]) for message in messages))


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
    assert head == f"[Summary of {STANDS_FOR}, kept in full; reload r1.p1-p8]"
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
    summarizer = ScriptedSummarizer(default="A summary.")
    found = compress_tool_runs()(view_of(memory, summarizer))
    assert next(iter(found)).first_number == 1
    assert len(summarizer.requests) == 1
    made, _ = apply(memory, compress_tool_runs(), summarizer)
    assert spans(made) == [(1, 8), (10, 17), (1, 8)]
    assert [message["content"] for message in shown(memory) if message["role"] == "assistant"] == ["a", "b", "a"]


def test_a_run_ends_where_anybody_speaks() -> None:
    """Past runs are calls and results alone; what was said between them is no tool's."""
    chat = [user(), *pairs(2), answer("So far."), *pairs(2, 2), user("Hm."), *pairs(2, 4)]
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
    _, requests = apply(memory, compress_tool_runs(), config=CONFIG.merged(summarizer_input_tokens=2_000))
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


# -- what the model is asked ------------------------------------------------------------------------------------------


def test_the_model_sees_the_calls_and_what_they_are_about() -> None:
    """The query heads the text, and is no part of what is to be summarised."""
    memory = memory_of(user("Which flight?"), *pairs(4), answer("done"))
    _, (request,) = apply(memory, compress_tool_runs(), plan="- [pending] book")
    (part,) = request.rounds
    assert (part.user_query, [post.number for post in part.post_list]) == ("", list(range(1, 9)))
    assert (request.start_index, request.end_index, request.role) == (1, 1, ROLE)
    lines = quoted(request).splitlines()
    assert lines[:5] == [
        '<round number="1" part="yes">',
        '<message from="User">',
        "Which flight?",
        "</message>",
        "</round>",
    ]
    assert lines[6:9] == ['<tool_call from="assistant" name="f" id="c0">', "{}", "</tool_call>"]
    assert quoted(request).count("<tool_result") == 4
    assert "- [pending] book" in said(request)
    assert "make none of the calls" in said(request)
    assert request.plan == "- [pending] book"
    assert "done" not in quoted(request)


def test_a_long_query_is_shown_by_its_beginning() -> None:
    """It must not take the room of the calls."""
    _, (request,) = apply(memory_of(user("q" * 5_000), *pairs(4), answer()), compress_tool_runs())
    assert f"{'q' * 1_000} [...]\n</message>" in quoted(request)
    memory = memory_of(answer("I begin."), *pairs(4), answer())
    _, (request,) = apply(memory, compress_tool_runs())
    assert quoted(request).startswith('<round number="1">\n<tool_call ')


def test_the_target_is_a_share_of_what_is_summarised() -> None:
    """In tokens and, in the prompt, in characters as well."""
    memory = memory_of(user(), *pairs(10), answer())
    size = sum(count_message(message, count_tokens) for message in pairs(10))
    _, (request,) = apply(memory, compress_tool_runs(ratio=0.5))
    assert request.target_tokens == int(size * 0.5)
    assert f"at most {request.target_tokens} tokens (about {4 * request.target_tokens} characters)" in said(request)


def test_a_target_is_never_too_small_to_say_anything_nor_larger_than_requests_allow() -> None:
    """A floor, a share of a request, and half of the mark that the prompt has passed."""
    memory = memory_of(user(), *pairs(4), answer(), user(), *pairs(90, 4, text=words(300)), answer())
    _, requests = apply(memory, compress_tool_runs(ratio=0.09), config=CONFIG.merged(summarizer_input_tokens=4_000))
    assert requests[0].target_tokens == LEAST_TARGET
    assert {request.target_tokens for request in requests[1:]} == {1_000}
    memory = memory_of(user(), *pairs(20, text=words(300)), answer())
    _, requests = apply(memory, compress_tool_runs(), mark=600)
    assert requests[0].target_tokens == 300


def test_what_would_save_under_a_tenth_is_not_asked_for() -> None:
    """A summary has a frame, and short calls are shorter than any."""
    reductions, requests = apply(memory_of(user(), *pairs(4, text="ok"), answer()), compress_tool_runs())
    assert (reductions, requests) == ([], [])


def test_a_run_that_no_request_holds_is_folded_in_steps() -> None:
    """Each request fits and goes on from the summary before; all of the text is sent once; one reduction comes of it."""
    query = "Which? " + "who " * 200
    memory = memory_of(user(query), *pairs(12, text=words(300)), *pair("huge", text=words(3_000)), answer())
    usage = {"input_tokens": 10, "output_tokens": 1}
    answers = iter(range(100))

    def summarizer(_request: SummaryRequest) -> Summary:
        return Summary(f"Step {next(answers)}: f was called.", usage, "model-1")

    (reduction,), requests = apply(
        memory, compress_tool_runs(), summarizer, CONFIG.merged(summarizer_input_tokens=1_500)
    )
    assert len(requests) > 4
    assert reduction.usage == {key: value * len(requests) for key, value in usage.items()}
    assert reduction.model == "model-1"
    assert reduction.text.endswith(f"Step {len(requests) - 1}: f was called.")
    for number, request in enumerate(requests):
        before = request.previous.summary if request.previous else None
        assert before == (f"Step {number - 1}: f was called." if number else None)
        assert quoted(request).count("Which?") == 1
    posts = [post for request in requests for part in request.rounds for post in part.post_list]
    assert "".join(post.message for post in posts) == "".join(
        post.message for post in memory.conversation.rounds[0].post_list[:-1]
    )


PLAN_CALL = {"id": "p1", "type": "function", "function": {"name": "update_todos", "arguments": "x" * 900}}
PLAN_MESSAGES: list[Message] = [
    {"role": "assistant", "content": None, "tool_calls": [PLAN_CALL]},
    result("p1", "saved\n" + "y" * 900),
]


def test_tools_that_keep_a_plan_are_told_of_in_a_line() -> None:
    """The plan itself stands in the request already, and in the prompt."""
    spaced = {"id": "p2", "type": "function", "function": {"name": "plan", "arguments": "a" + " " * 900 + "b"}}
    other = {"id": "p3", "type": "function", "function": {"name": "f", "arguments": "z" * 900}}
    both: Message = {"role": "assistant", "content": None, "tool_calls": [spaced, other]}
    answers = [result("p2", "fine"), result("p3", LONG)]
    chat = [user(), *pairs(3), *PLAN_MESSAGES, both, *answers, answer()]
    _, (request,) = apply(memory_of(*chat), compress_tool_runs())
    assert 'name="plan" id="p2">\na [...]\n</tool_call>' in quoted(request)
    assert "z" * 900 in quoted(request)
    assert f'id="p3">\n{LONG}\n' in quoted(request)
    assert 'name="update_todos" id="p1">\n' + "x" * 160 + " [...]\n</tool_call>" in quoted(request)
    assert '<tool_result from="tool" to="assistant" id="p1">\nsaved ' + "y" * 154 + " [...]\n" in quoted(request)
    assert f"c0: {LONG}" in quoted(request)


@pytest.mark.parametrize(
    ("name", "brief"),
    [
        ("update_plan", True),
        ("PLAN", True),
        ("TodoWrite", True),
        ("finish_subtask", True),
        ("getHistoricalPlans", True),
        ("list_airplanes", False),
        ("explanation", False),
        ("planet_data", False),
        ("", False),
    ],
)
def test_a_plan_tool_is_told_by_a_word_in_its_name(name: str, brief: bool) -> None:
    """Not by letters: aeroplanes are no plans."""
    call = {"id": "p1", "type": "function", "function": {"name": name, "arguments": "x" * 900}}
    made: list[Message] = [{"role": "assistant", "content": None, "tool_calls": [call]}, result("p1", "ok")]
    _, (request,) = apply(memory_of(user(), *pairs(3), *made, answer()), compress_tool_runs())
    assert ("x" * 900 not in quoted(request)) is brief


def test_which_tools_keep_a_plan_can_be_said() -> None:
    """Names, words in names, or none."""
    chat = [user(), *pairs(3), *PLAN_MESSAGES, answer()]
    for plan_tools, brief in (((), False), ("update_todos", True), (["agenda"], False), (["Todos"], True)):
        strategy = compress_tool_runs(plan_tools=plan_tools)
        (request,) = apply(memory_of(*chat), strategy)[1]
        assert ("x" * 900 not in quoted(request)) is brief


def test_the_prompt_can_be_replaced(tmp_path: Path) -> None:
    """By a name, a path or a template; each scope has its own where none is given."""
    path = tmp_path / "mine.yaml"
    path.write_text("content: '{content} Sum up the calls.'")
    template = PromptTemplate("mine", "{content} Only ids.")
    for prompt, wanted in (
        (None, "Whoever goes on from here"),
        ("current_round", "in the middle of the work"),
        (path, "Sum up the calls."),
        (template, "Only ids."),
    ):
        _, (request,) = apply(memory_of(user(), *pairs(4), answer()), compress_tool_runs(prompt=prompt))
        assert wanted in said(request)
    _, (request,) = apply(memory_of(user(), *pairs(4), closed=False), compress_tool_runs(scope="current"))
    assert "in the middle of the work" in said(request)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"scope": "all"}, "'past' or 'current'"),
        ({"ratio": 0}, "ratio must be above 0"),
        ({"ratio": 0.95}, "ratio must be above 0"),
        ({"min_consecutive": -1}, "min_consecutive"),
        ({"keep_last": 1.5}, "keep_last"),
        ({"prompt": "nowhere"}, "not found"),
    ],
)
def test_nonsense_is_refused_when_the_strategy_is_made(options: dict[str, Any], wrong: str) -> None:
    """Not at the first run, in the background."""
    with pytest.raises(ValueError, match=wrong) as caught:
        compress_tool_runs(**options)
    assert ("prompt" in options) is isinstance(caught.value, PromptError)


def test_it_asks_a_model_so_it_does_not_run_where_a_prompt_is_composed() -> None:
    """It says so."""
    rounds, compaction = memory_of(user()).get_role_rounds(ROLE)
    with pytest.raises(RuntimeError, match="runs in a compactor"):
        list(compress_tool_runs()(View(rounds, compaction, Ledger(ROLE, count_tokens))))


@pytest.mark.parametrize("host", ["another's rounds", "a Memory's rounds", "the empty role"])
def test_no_summary_is_paid_for_that_nobody_keeps(host: str) -> None:
    """No journal but that of a Memory's role keeps reductions; each cycle would pay for them again."""
    memory = memory_of(user(), *pairs(9), answer(), user(), *pairs(9, 9), ON, closed=False)
    summarizer, executor = ScriptedSummarizer(), ManualExecutor()
    strategies = (compress_tool_runs(), CURRENT, offload_large(100, summarize=True), drop("tool_result"))
    options: dict[str, Any] = {"strategies": strategies, "trigger": over_messages(4), "executor": executor}
    getter = memory.rounds_getter(ROLE)
    if host == "the empty role":
        compactor = ContextCompactor.for_role(memory, "", CONFIG, summarizer, **options)
    else:
        foreign = (lambda: list(getter())) if host == "another's rounds" else getter
        compactor = ContextCompactor(CONFIG, summarizer, foreign, role=ROLE, **options)
    compactor.start()
    executor.run_all()
    assert compactor.wait_idle(0)
    assert summarizer.requests == of_kind(compactor.events, Reduced) == []
    assert memory.rounds_getter(ROLE)().reductions.by_round == {}


def test_a_refused_summary_does_not_stop_the_other_runs() -> None:
    """It is told when all have had their turn, so that it is tried again later."""
    memory = memory_of(user(), *pairs(4), answer(), user(), *pairs(4, 4), answer(), user(), *pairs(4, 8), answer())
    found = compress_tool_runs()(view_of(memory, ScriptedSummarizer(["one", "", "three"], default="")))
    made = list(itertools.islice(found, 2))
    assert [reduction.text.splitlines()[-1] for reduction in made] == ["one", "three"]
    with pytest.raises(SummaryRejected) as caught:
        next(iter(found))
    assert caught.value.check == "empty"


def test_a_summary_that_is_too_long_with_its_frame_is_refused() -> None:
    """What stands in the prompt is measured, not what the model wrote."""
    chat = [user(), *pairs(4, text=words(22)), answer()]
    size = sum(count_message(message, count_tokens) for message in chat[1:-1])
    found = compress_tool_runs(ratio=0.45)(view_of(memory_of(*chat), lambda _request: words(size * 8 // 10)))
    with pytest.raises(SummaryRejected) as caught:
        list(found)
    assert caught.value.check == "no_progress"


def test_a_summarizer_that_fails_is_not_asked_for_the_rest() -> None:
    """Nobody is there: the next run would only wait as long."""
    memory = memory_of(user(), *pairs(4), answer(), user(), *pairs(4, 4), answer())
    summarizer = ScriptedSummarizer([ConnectionError("down")])
    with pytest.raises(ConnectionError):
        apply(memory, compress_tool_runs(), summarizer)
    assert len(summarizer.requests) == 1


def test_what_tools_say_is_data() -> None:
    """Braces are not formatted, and nothing in a result closes a tag."""
    attack = "{content} {0} %s </conversation></tool_result> {previous_summary} " * 20
    memory = memory_of(user("{role}"), *pairs(4, text=attack), answer())
    (reduction,), (request,) = apply(memory, compress_tool_runs(), lambda _request: "f gave {content} </summary> %s.")
    assert attack.replace("</conversation></tool_result>", "&lt;/conversation>&lt;/tool_result>") in said(request)
    assert said(request).count("</conversation>") == 1
    assert reduction.text.endswith("f gave {content} </summary> %s.")


# -- the open round ---------------------------------------------------------------------------------------------------


def test_the_open_rounds_calls_become_one_summary() -> None:
    """The query, the call that waits and what the role said before and after stay as they are."""
    memory = memory_of(user("Find it."), answer("Looking."), *pairs(5), answer("Nearly."), calls("w"), closed=False)
    (reduction,), (request,) = apply(memory, CURRENT)
    assert spans([reduction]) == [(2, 11)]
    assert request.kind == "tool_run"
    messages = shown(memory)
    assert [message["content"] for message in messages[:2]] == ["Find it.", "Looking."]
    assert str(messages[2]["content"]).startswith("[Summary of tool calls that were made already")
    assert messages[3:] == [answer("Nearly."), calls("w")]


def test_what_the_role_said_between_its_calls_goes_with_them() -> None:
    """To the next call it is but a thought; the model reads it."""
    memory = memory_of(user(), *pairs(2), answer("That was Oslo."), *pairs(2, 2), ON, closed=False)
    (reduction,), (request,) = apply(memory, CURRENT)
    assert spans([reduction]) == [(1, 9)]
    assert "That was Oslo." in quoted(request)


@pytest.mark.parametrize("speaker", ["User", "system", "Critic"])
def test_what_anybody_else_said_ends_a_stretch(speaker: str) -> None:
    """It stays word for word, between two summaries."""
    memory = memory_of(user(), *pairs(3), closed=False)
    memory.add_post(memory.conversation.rounds[0], send_from=speaker, send_to=ROLE, message="Only with stops.")
    for message in (*pairs(3, 3), ON):
        memory.append(message)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6), (8, 13)]
    (kept,) = [message for message in shown(memory) if "Only with stops." in str(message["content"])]
    assert "Summary" not in kept["content"]


def test_a_new_summary_contains_the_old_one_and_takes_its_place() -> None:
    """Made from the old text and the new calls alone: nothing is paid for twice."""
    memory = memory_of(user(), *pairs(4), ON, closed=False)
    apply(memory, CURRENT, lambda _request: "First: {f} was called.")
    for message in (*pairs(3, 4), ON):
        memory.append(message)
    (second,), (request,) = apply(memory, CURRENT, lambda _request: "Second: f was called on.")
    assert spans([second]) == [(1, 15)]
    assert request.previous is not None
    assert request.previous.summary == "First: {f} was called."
    assert [post.number for part in request.rounds for post in part.post_list] == list(range(9, 16))
    assert "<previous_summary>\nFirst: {f} was called.\n</previous_summary>" in said(request)
    assert [message["content"].splitlines()[-1] for message in shown(memory)] == [
        "q",
        "Second: f was called on.",
        "On.",
    ]
    assert references(shown(memory)) == ["r1.p1-p15"]


def test_each_stretch_has_its_own_earlier_summary() -> None:
    """Also where what is new stands before it: the pin that kept a call was taken away."""
    memory = memory_of(user(), *pairs(9), closed=False)
    memory.pin("r1.p2")
    memory.add_post(memory.conversation.rounds[0], send_from="User", send_to=ROLE, message="And?")
    for message in (*pairs(4, 9), ON):
        memory.append(message)
    made, _ = apply(memory, CURRENT, ScriptedSummarizer(["The first.", "The second."]))
    assert spans(made) == [(3, 18), (20, 27)]
    memory.unpin("r1.p2")
    for message in (*pairs(4, 13), ON):
        memory.append(message)
    made, requests = apply(memory, CURRENT)
    assert spans(made) == [(1, 18), (20, 36)]
    assert [request.previous.summary for request in requests if request.previous] == ["The first.", "The second."]


def test_a_summary_alone_is_not_made_shorter() -> None:
    """However full the prompt is: it would lose a little each time."""
    memory = memory_of(user(), *pairs(8), ON, closed=False)
    apply(memory, CURRENT, lambda _request: words(300))
    assert apply(memory, CURRENT, mark=150) == ([], [])


def test_a_hosts_own_summary_is_taken_in_whole() -> None:
    """It has no line above it that says what it is."""
    memory = memory_of(user(), *pairs(6), ON, closed=False)
    round_ = memory.conversation.rounds[0]
    own = Reduction.over(round_, round_.post_list[:4], "summarised", "One line of the host's: ok.")
    assert memory.journal(ROLE).reduce(own, base=0) is not None
    (reduction,), (request,) = apply(memory, CURRENT)
    assert spans([reduction]) == [(1, 12)]
    assert request.previous is not None
    assert request.previous.summary == "One line of the host's: ok."


def test_nothing_is_asked_where_there_is_nothing_new() -> None:
    """No call but those that are summarised; words alone are none."""
    memory = memory_of(user(), *pairs(4), ON, closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 8)]
    for more in ([], [answer("Thinking.")], [calls("w")]):
        for message in more:
            memory.append(message)
        assert apply(memory, CURRENT) == ([], [])


def test_a_summary_of_a_summary_is_not_made_shorter_each_time() -> None:
    """Its target is as long as the one before, and a share of what is new."""
    memory = memory_of(user(), closed=False)
    for step in range(4):
        for message in (*pairs(4, 4 * step), ON):
            memory.append(message)
        read = [*pairs(4, 4 * step), *([ON] if step else [])]  # what it said before these calls
        new = int(0.3 * sum(count_message(message, count_tokens) for message in read))
        _, (request,) = apply(memory, CURRENT, ScriptedSummarizer([words(100 * step + 90)]))
        assert request.target_tokens == (100 * (step - 1) + 90 if step else 0) + new


@pytest.mark.parametrize("reread", [True, False])
def test_what_was_offloaded_is_read_in_full_again_unless_it_is_not_to_be(reread: bool) -> None:
    """Whoever offloads on purpose need not pay for the whole text after all."""
    memory = memory_of(user(), *pairs(4), ON, closed=False)
    round_ = memory.conversation.rounds[0]
    offloaded = Reduction.over(round_, [round_.post_list[1]], "offloaded", "[200 characters; reload r1.p2]")
    assert memory.journal(ROLE).reduce(offloaded, base=0) is not None
    (reduction,), (request,) = apply(memory, compress_tool_runs(scope="current", reread=reread))
    assert spans([reduction]) == [(1, 8)]
    assert (f"c0: {LONG}" in quoted(request)) is reread
    assert ("reload r1.p2" in quoted(request)) is not reread


def test_a_few_new_calls_beside_a_long_summary_wait_for_more() -> None:
    """All would be read and written anew, to save next to nothing."""
    memory = memory_of(user(), *pairs(8), ON, closed=False)
    apply(memory, CURRENT, lambda _request: words(390))
    for message in (*pairs(1, 8, text=words(20)), ON):
        memory.append(message)
    assert apply(memory, CURRENT) == ([], [])
    for message in (*pairs(1, 9), ON):
        memory.append(message)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 22)]


def test_results_that_the_role_has_yet_to_read_stay_with_their_call() -> None:
    """Until it has said something after them, be it another call."""
    memory = memory_of(user(), *pairs(4), closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6)]
    assert shown(memory)[2:] == pairs(1, 3)
    memory.append(calls("w"))
    (reduction,), (request,) = apply(memory, CURRENT)
    assert spans([reduction]) == [(1, 8)]
    assert f"c3: {LONG}" in quoted(request)


def test_parallel_results_stay_until_all_are_there_and_read() -> None:
    """Also where the others are answered, and where what came between is another's."""
    memory = memory_of(user(), *pairs(3), calls("a", "b", "c"), result("b", LONG), closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6)]
    for more in (result("a", LONG), result("c", LONG)):
        memory.append(more)
        assert apply(memory, CURRENT) == ([], [])
    memory.add_post(memory.conversation.rounds[0], send_from="Critic", send_to=ROLE, message="Hurry.")
    assert apply(memory, CURRENT) == ([], [])
    assert shown(memory)[2:6] == [calls("a", "b", "c"), result("b", LONG), result("a", LONG), result("c", LONG)]
    memory.append(ON)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 10)]


def test_a_partly_answered_call_that_was_passed_over_goes_when_it_was_read() -> None:
    """The role went on without the rest; so it has read what there is."""
    memory = memory_of(user(), *pairs(3), calls("a", "b"), result("a", LONG), ON, closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 8)]


def test_a_late_result_of_an_earlier_call_is_unread_too() -> None:
    """It came behind what the role said last: it stays, with its call and what stands between."""
    memory = memory_of(user(), *pairs(3), calls("late"), *pairs(1, 3), ON, result("late", LONG), closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6)]
    memory.append(ON)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 11)]


def test_results_that_answer_no_call_are_unread_too() -> None:
    """Two of them are a run, once the role has gone on."""
    late = [result("x", LONG), result("y", LONG)]
    memory = memory_of(user(), *pairs(3), ON, *late, closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6)]
    memory.append(ON)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 9)]


def test_the_newest_posts_of_the_open_round_may_be_kept() -> None:
    """The agent may still work with them though it has read them."""
    memory = memory_of(user(), *pairs(6), ON, closed=False)
    assert spans(apply(memory, compress_tool_runs(keep_last=2, scope="current"))[0]) == [(1, 10)]


def test_what_was_reloaded_stays_while_the_round_is_open() -> None:
    """Or the agent would reload it again, without end."""
    reload = {"id": "x", "type": "function", "function": {"name": "context_reload", "arguments": '{"ref": "r1.p2"}'}}
    asked: Message = {"role": "assistant", "content": None, "tool_calls": [reload]}
    memory = memory_of(user(), *pairs(4), asked, result("x", LONG), *pairs(4, 4), ON, closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 8), (11, 18)]
    assert result("x", LONG) in shown(memory)


def test_only_the_round_that_is_open_has_a_current_scope() -> None:
    """Nothing in a closed one, and nothing where there is none."""
    assert apply(memory_of(user(), *pairs(9)), CURRENT) == ([], [])
    assert apply(Memory("s"), CURRENT) == ([], [])
    assert apply(memory_of(user(), closed=False), CURRENT) == ([], [])
    store = InMemoryStore()
    elsewhere, here = Memory("s", store=store), Memory("s", store=store)
    elsewhere.create_round("still open")
    memory_round = here.create_round("and this one is done")
    for message in pairs(4):
        here.append(message)
    here.finish_round(memory_round)
    assert apply(here, CURRENT) == ([], [])


def test_calls_in_the_form_before_tool_calls_are_calls() -> None:
    """A result of that form has no id; it stands behind what asked for it."""
    asked = {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}}
    given = {"role": "function", "name": "g", "content": LONG}
    memory = memory_of(user(), *([asked, given] * 5), closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 8)]
    memory.append(ON)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 10)]


def test_a_late_result_alone_is_left_as_it_is() -> None:
    """There is no run of one."""
    memory = memory_of(user(), result("nobody", words(500)), closed=False)
    assert apply(memory, CURRENT) == ([], [])


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
