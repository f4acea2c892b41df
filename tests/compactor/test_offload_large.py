"""``offload_large``: a large post reads as its beginning, or a summary, and nothing of it is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from chats import Message, answer, assert_paired, calls, memory_of, result, user, words
from executors import ManualExecutor
from hypothesis import given
from hypothesis import strategies as st
from views import messages_of, reduced, spans, view_of

from compactor import (
    Attachment,
    CompactorConfig,
    ContextCompactor,
    ExtractiveSummarizer,
    Reduction,
    Strategy,
    Summary,
    SummaryRejected,
    SummaryRequest,
    View,
    budget_status,
    compose,
    count_tokens,
    drop,
    offload_large,
    over_tokens,
)
from memory import Memory
from prompts import PromptError, load

BIG = "Row 1: 17 euros.\n" * 400
ROLE = "assistant"


@dataclass
class Asked:
    """A stand-in for ``Work`` that answers with *answers* in turn, and then with the last one."""

    answers: Sequence[str] = ("A table of 400 rows, each 17 euros.",)
    token_threshold: int | None = None
    exceeds: frozenset[str] | None = None
    plan: str | None = None
    config: CompactorConfig = field(default_factory=CompactorConfig)
    continue_prompt: None = None
    requests: list[SummaryRequest] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)

    def summarize(self, task: Any) -> Summary:
        text = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(task.request)
        self.sources.append(task.source)
        if text == "refused":
            raise SummaryRejected("echo", "it repeats its source")
        return Summary(text, {"input_tokens": 100, "output_tokens": 10}, "some-model")


def with_result(text: str = BIG) -> Memory:
    """One closed round with a call and its result *text*, and a new question."""
    return memory_of(user("Prices?"), calls("a"), result("a", text), answer("17 euros."), user("And now?"))


@pytest.mark.parametrize("wrong", [{"threshold": -1}, {"preview": -1}, {"threshold": 0.5}, {"preview": True}])
def test_nonsense_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    """Not in the middle of a cycle."""
    with pytest.raises(ValueError, match="must be a whole number"):
        offload_large(**wrong)


def test_other_nonsense_is_refused_too() -> None:
    """A number of posts that is none, and a prompt that is not there."""
    with pytest.raises(ValueError, match="keep_last: must be a whole number from 0 on"):
        offload_large(keep_last=-1)
    with pytest.raises(PromptError, match="nowhere"):
        offload_large(summarize=True, prompt="nowhere")


# -- the strategy -----------------------------------------------------------------------------------------------------


def test_large_posts_are_offloaded_oldest_first() -> None:
    """Over all rounds of the tail; small ones stay, calls and ids too."""
    memory = memory_of(
        *(user(), calls("a", "b"), result("b", BIG), result("a", BIG), answer(BIG)),
        *(user(), calls("c"), result("c", BIG), answer("Read.")),
    )
    before = messages_of(view_of(memory))
    found = reduced(memory, offload_large())

    assert [(one.round_id, one.first_number) for one in found] == [
        (memory.conversation.rounds[place].id, number) for place, number in ((0, 2), (0, 3), (0, 4), (1, 2))
    ]
    after = messages_of(view_of(memory))
    assert [{**message, "content": ""} for message in after] == [{**message, "content": ""} for message in before]
    assert_paired(after)


def test_the_strategy_has_its_name() -> None:
    """Reports and events tell strategies apart by it."""
    assert offload_large().__name__ == "offload_large"


def test_the_latest_answer_to_the_user_stays() -> None:
    """The user speaks of it next; older ones go, and so do words that come with a call."""
    spoken = {**calls("a"), "content": BIG}
    memory = memory_of(*(user(), answer(BIG)) * 2, user(), spoken, result("a", "small"), user(), calls("b"))

    assert [(one.round_id, one.first_number) for one in reduced(memory, offload_large())] == [
        (memory.conversation.rounds[place].id, 1) for place in (0, 2)
    ]


def test_the_newest_posts_are_protected() -> None:
    """``keep_last`` counts posts of the tail, the user's too."""
    messages = [user(), calls("a"), result("a", BIG), answer("x"), user(), calls("b"), result("b", BIG), answer("y")]

    assert len(reduced(memory_of(*messages), offload_large(keep_last=1))) == 2
    assert len(reduced(memory_of(*messages), offload_large(keep_last=2))) == 1
    assert len(reduced(memory_of(*messages), offload_large(keep_last=5))) == 1
    assert len(reduced(memory_of(*messages), offload_large(keep_last=6))) == 0


def test_one_kind_needs_no_list() -> None:
    """``kinds="tool_result"`` means that kind, not eleven letters."""
    memory = memory_of(user(), calls("a"), result("a", BIG), answer(BIG), user(), answer("x"))

    assert spans(reduced(memory, offload_large(kinds="tool_result"))) == [(2, 2)]


def test_the_assistant_is_the_views_own_role() -> None:
    """Whatever it is called: the others' posts are not its own."""
    memory = Memory("s")
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from="Planner", send_to="Coder", message=BIG)
    memory.add_post(round_, send_from="Coder", send_to="Planner", message=BIG)

    assert spans(offload_large(kinds="assistant")(view_of(memory, role="Planner"))) == [(1, 1)]
    assert spans(offload_large(kinds="assistant")(view_of(memory, role="Coder"))) == [(2, 2)]


def test_what_may_not_be_reduced_stays() -> None:
    """Pinned posts, calls that wait for a result, and results that were not read yet."""
    memory = memory_of(user(), calls("a"), result("a", BIG), user(), calls("b", "c"), result("b", BIG))
    memory.pin("r1.p2")

    assert reduced(memory, offload_large()) == []
    memory.append(result("c", "small"))
    assert reduced(memory, offload_large()) == []
    memory.append(answer("Both."))
    assert spans(reduced(memory, offload_large())) == [(2, 2)]


def test_what_is_offloaded_is_not_offloaded_again() -> None:
    """Not even where its preview is over another threshold."""
    memory = with_result()

    assert len(reduced(memory, offload_large(preview=1_000))) == 1
    assert reduced(memory, offload_large(threshold=100, preview=10)) == []


def test_what_the_user_said_stays_unless_asked_for() -> None:
    """With ``users_too`` it goes last, after the newer results; never the newest query."""
    memory = memory_of(user(BIG), calls("a"), result("a", BIG), user(BIG), user(BIG), answer("x"))

    assert spans(offload_large()(view_of(memory))) == [(2, 2)]
    found = reduced(memory, offload_large(users_too=True))
    assert [one.first_number for one in found] == [2, 0]
    assert found[1].text.endswith("reload r1.p0]")
    assert memory.reload("r1.p0") == BIG
    shown = messages_of(view_of(memory))
    assert shown[0] == {"role": "user", "content": found[1].text}
    assert [message["content"] for message in shown if message["role"] == "user"][1:] == [BIG, BIG]


def test_what_the_user_said_goes_only_while_nothing_else_helps() -> None:
    """Each of his messages is kept as soon as the prompt is back under the trigger's threshold."""
    memory = memory_of(user(BIG), calls("a"), result("a", BIG), answer("x"), user(BIG), answer("y"), user("z"))
    each = count_tokens(BIG)

    def offloaded(token_threshold: int | None) -> list[int]:
        return [
            one.first_number
            for one in offload_large(users_too=True)(view_of(memory, work=Asked(token_threshold=token_threshold)))
        ]

    assert offloaded(None) == [2, 0, 0]
    assert offloaded(3 * each) == [2]
    assert offloaded(2 * each) == [2, 0]
    assert offloaded(each) == [2, 0, 0]


def test_what_the_user_forbade_stays_word_for_word() -> None:
    """An agent that no longer reads it does it."""
    forbidden = "Do not touch the folder named archive."
    memory = memory_of(user(f"{BIG}\n{forbidden}"), answer("x"), user("y"), answer("z"))
    (reduction,) = reduced(memory, offload_large(users_too=True))

    assert reduction.text.endswith(f"reload r1.p0]\n[In it the user forbids, word for word:]\n- {forbidden}")
    shown_already = memory_of(user(f"{forbidden}\n{BIG}"), answer("x"), user("y"), answer("z"))
    assert reduced(shown_already, offload_large(users_too=True))[0].text.endswith("reload r1.p0]")
    nothing_else = memory_of(
        user(" ".join(f"Never open file {n}." for n in range(30))), answer("x"), user("y"), answer("z")
    )
    assert reduced(nothing_else, offload_large(300, preview=10, users_too=True)) == []


def test_a_query_that_a_post_hands_on_goes_with_it() -> None:
    """Hosts of several agents say the query twice; it is shown once, offloaded or not."""
    memory = Memory("s")
    attached = (Attachment(type="file", content=BIG),)
    for number in range(3):
        round_ = memory.create_round(BIG)
        memory.add_post(
            round_, send_from="User", send_to="Planner", message=BIG, attachment_list=attached if number == 1 else ()
        )
        memory.finish_round(round_)
    found = reduced(memory, offload_large(users_too=True), role="Planner")

    assert spans(found) == [(0, 0), (1, 1)]
    shown = messages_of(view_of(memory, role="Planner"))
    assert [message["content"] for message in shown] == [found[0].text, found[1].text, BIG]
    assert memory.reload("r2.p1") == f"{BIG}\n\n[file]\n{BIG}"


@pytest.mark.parametrize("strategy", [offload_large(), drop("assistant")], ids=["offload_large", "drop"])
def test_rounds_of_another_host_stay(strategy: Strategy) -> None:
    """They are in no log that reloads anything, or that an overlay could lie on."""
    memory = memory_of(user("q"), answer(BIG), user("r"), answer("x"))
    found: list[list[Reduction]] = []

    def look(view: View) -> Iterable[Reduction]:
        found.append([one for one in strategy(view) if isinstance(one, Reduction)])
        return ()

    executor = ManualExecutor()
    options: dict[str, Any] = {"trigger": over_tokens(1), "strategies": (look,), "executor": executor}
    own = ContextCompactor.for_role(memory, ROLE, CompactorConfig(), ExtractiveSummarizer(), **options)
    others = ContextCompactor(
        CompactorConfig(), ExtractiveSummarizer(), lambda: list(memory.conversation.rounds), role=ROLE, **options
    )
    for compactor in (own, others):
        compactor.start()
        executor.run_all()
    assert [len(one) for one in found] == [1, 0]


# -- summaries --------------------------------------------------------------------------------------------------------


def test_a_summary_takes_the_place_of_the_preview() -> None:
    """Made from that post alone, with its calls left out; it says what it is, and what it cost is kept."""
    memory = with_result()
    work = Asked(plan="1. buy")
    (reduction,) = reduced(memory, offload_large(summarize=True), work=work)

    assert reduction.text.startswith(f"[Summary of the {len(BIG):,} characters, about ")
    assert reduction.text.endswith(f"kept in full; reload r1.p2]\n{work.answers[0]}")
    assert (reduction.model, reduction.usage) == ("some-model", {"input_tokens": 100, "output_tokens": 10})
    (request,) = work.requests
    assert (request.kind, request.role, request.plan) == ("large_post", ROLE, "1. buy")
    assert (request.start_index, request.end_index) == (1, 1)
    assert [post.number for round_ in request.rounds for post in round_.post_list] == [2]
    assert request.rounds[0].user_query == ""
    assert BIG in str(request.messages[0]["content"])
    asked = str(request.messages[0]["content"])
    assert 'User part="yes">\nPrices?' in asked, "what the result was wanted for"
    assert 'tool="f" arguments="{}" at="r1.p2">' in asked, "and what was called for it"
    assert work.sources[0].previous_tokens == 0


def test_the_summary_of_a_query_is_made_from_the_query() -> None:
    """And not from what was answered."""
    memory = memory_of(user(BIG), answer("x"), user("y"), answer("z"))
    work = Asked()
    (reduction,) = reduced(memory, offload_large(summarize=True, users_too=True), work=work)

    assert spans([reduction]) == [(0, 0)]
    assert (work.requests[0].rounds[0].user_query, work.requests[0].rounds[0].post_list) == (BIG, ())


@pytest.mark.parametrize(("tokens", "target"), [(60, 30), (300, 100), (2_000, 200), (20_000, 500)])
def test_the_summary_is_asked_for_in_proportion(tokens: int, target: int) -> None:
    """A tenth, but no fragment and no essay."""
    work = Asked()
    reduced(with_result(words(tokens)), offload_large(50, tokens=True, preview=5, summarize=True), work=work)

    assert work.requests[0].target_tokens == target


def test_a_post_longer_than_the_summarizers_input_is_folded() -> None:
    """In several requests, each with the summary so far; all of the text is read."""
    memory = with_result("".join(f"Row {number}: {number * 7} euros.\n" for number in range(2_000)))
    work = Asked(config=CompactorConfig(summarizer_input_tokens=4_000), answers=("First.", "Second.", "Third."))
    (reduction,) = reduced(memory, offload_large(summarize=True), work=work)

    assert len(work.requests) > 2
    assert [request.previous.summary for request in work.requests[1:3] if request.previous] == ["First.", "Second."]
    parts = [part for request in work.requests for part in request.rounds]
    read = "".join(post.message for part in parts for post in part.post_list)
    assert read == memory.reload("r1.p2")
    assert reduction.text.endswith("\nThird.")
    assert reduction.usage == {"input_tokens": 100 * len(work.requests), "output_tokens": 10 * len(work.requests)}


def test_where_the_summary_is_refused_the_beginning_stands() -> None:
    """One bad answer neither stops the others nor is asked for again in every cycle."""
    memory = memory_of(user(), calls("a"), result("a", BIG), calls("b"), result("b", BIG), answer())
    first, second = reduced(memory, offload_large(summarize=True), work=Asked(("refused", "Good.")))

    assert first.text.startswith(BIG[:200] + "\n[")
    assert first.usage is None
    assert second.text.endswith("\nGood.")


def test_a_summary_that_saves_nothing_is_not_used() -> None:
    """Whoever accepts it: the line that belongs to it counts too."""
    memory = with_result(words(400))
    (reduction,) = reduced(
        memory, offload_large(300, tokens=True, preview=5, summarize=True), work=Asked((words(390),))
    )

    assert reduction.text.startswith("word word ")
    assert reduction.usage is None


def test_a_summarizer_that_fails_leaves_what_there_is() -> None:
    """The cycle hears of it; what was offloaded before stays offloaded."""
    memory = memory_of(user(), calls("a"), result("a", BIG), calls("b"), result("b", BIG), answer())

    class Fails(Asked):
        def summarize(self, task: Any) -> Summary:
            if self.requests:
                raise ConnectionError
            return super().summarize(task)

    with pytest.raises(ConnectionError):
        reduced(memory, offload_large(summarize=True), work=Fails())
    shown = [message["content"] for message in messages_of(view_of(memory)) if message["role"] == "tool"]
    assert shown[0].startswith("[Summary of")
    assert shown[1] == BIG


def test_without_a_model_it_says_so() -> None:
    """Where a prompt is composed, nobody waits for a model."""
    with pytest.raises(RuntimeError, match=r"offload_large\(summarize=True\) asks a model"):
        list(offload_large(summarize=True)(view_of(with_result())))


def test_the_prompt_is_the_hosts_to_choose() -> None:
    """A template, a path or a name."""
    work = Asked()
    template = load("default")
    reduced(with_result(), offload_large(summarize=True, prompt=template), work=work)

    assert work.requests[0].messages[0]["content"].endswith(template.content.rstrip()[-40:])


def test_the_embedded_summarizer_will_do() -> None:
    """No key, no network: it answers for a large post too."""
    work = Asked()
    reduced(
        with_result("".join(f"Item {n} costs {n * 3} euros. " for n in range(400))),
        offload_large(summarize=True),
        work=work,
    )
    text = ExtractiveSummarizer()(work.requests[0])

    assert "euros" in (text if isinstance(text, str) else text.text)


# -- whatever is said -------------------------------------------------------------------------------------------------

texts = st.one_of(
    st.sampled_from(["", "hi", BIG]),
    st.integers(0, 300).map(words),
    st.builds(
        lambda piece, n: piece * n,
        st.sampled_from(["漢字", "👩‍👩‍👧", "\ud800x", " ", "\x00", '{"k":1},']),
        st.integers(0, 300),
    ),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Parallel calls, results in any order and late, unanswered calls, several queries running."""
    said: list[Message] = []
    for _ in range(draw(st.integers(1, 8))):
        match draw(st.integers(0, 3)):
            case 0:
                said.append(user(draw(texts)))
            case 1:
                said.append(answer(draw(texts)))
            case _:
                asked = [f"c{len(said)}_{number}" for number in range(draw(st.integers(1, 3)))]
                given_ = draw(st.permutations(asked))[draw(st.integers(0, 1)) :]
                said.append({**calls(*asked), "content": draw(texts)})
                said += [result(id_, draw(texts)) for id_ in given_]
                if draw(st.booleans()) and len(given_) < len(asked):  # comes late
                    said += [answer(draw(texts)), result(next(iter(set(asked) - set(given_))), draw(texts))]
    return said


options = st.fixed_dictionaries(
    {
        "threshold": st.integers(0, 900),
        "preview": st.integers(0, 300),
        "keep_last": st.integers(0, 4),
        "tokens": st.booleans(),
        "users_too": st.booleans(),
        "kinds": st.sampled_from([None, ("tool_result",), ("assistant",)]),
    }
)


@given(conversations(), options)
def test_whatever_is_said_nothing_is_lost(said: list[Message], options: dict[str, Any]) -> None:
    """Fewer tokens, calls with their results, the newest query whole, each text behind its reference; and once is
    enough."""
    memory = Memory.from_messages(said)
    before = view_of(memory)
    found = reduced(memory, offload_large(**options))
    after = view_of(memory)

    assert (after.tokens < before.tokens) if found else (after.tokens == before.tokens)
    assert_paired(messages_of(after))
    asked = [place for place in before.places for _, unit in before.list_groups(place) if unit.from_user]
    newest = memory.conversation.rounds[max(asked)] if asked else None
    for reduction in found:
        round_ = next(one for one in memory.conversation.rounds if one.id == reduction.round_id)
        post = next((one for one in round_.post_list if one.number == reduction.first_number), None)
        assert reduction.text.endswith(f"reload r{round_.number}.p{reduction.first_number}]")
        reloaded = memory.reload(f"r{round_.number}.p{reduction.first_number}")
        assert reloaded.startswith(post.message if post else round_.user_query)
        assert (round_ is not newest) or (post is not None and post.send_from != "User")
    assert reduced(memory, offload_large(**options)) == []


# -- the end of a text, and the arguments of calls --------------------------------------------------------------------


def test_the_end_stands_behind_the_line_where_it_is_asked_for() -> None:
    """Errors stand at the end; the characters in between are counted."""
    memory = with_result("begin " + "x" * 9_000 + " Error: E42")
    (reduction,) = reduced(memory, offload_large(preview=6, ending=10))
    head, line, end = reduction.text.split("\n")
    assert (head, end) == ("begin ", "Error: E42")
    assert line.startswith("[9,001 characters, about ")
    assert line.endswith("reload r1.p2]")


@given(st.text(min_size=1, max_size=80), st.integers(0, 30), st.integers(0, 30))
def test_beginning_and_end_never_overlap(text: str, preview: int, ending: int) -> None:
    """Together they hold no character twice, and no more than was asked for."""
    long = text + "x" * 6_000 + text
    (reduction,) = reduced(with_result(long), offload_large(preview=preview, ending=ending))
    head, _, tail = reduction.text.partition("[")[0], *reduction.text.rpartition("]")[1:]
    assert len(tail.removeprefix("\n")) <= ending
    assert long.endswith(tail.removeprefix("\n"))
    assert "[" in text or long.startswith(head.removesuffix("\n"))


def with_arguments(arguments: str, **more: Any) -> Memory:
    call = {"id": "a", "type": "function", "function": {"name": "write_file", "arguments": arguments}, **more}
    wrote = {"role": "assistant", "content": "I write it.", "tool_calls": [call]}
    return memory_of(user("Write."), wrote, result("a", "ok"), answer("Done."), user("And now?"))


@pytest.mark.parametrize("more", [{}, {"index": 0}], ids=["plain", "with a field of the host's own"])
def test_large_arguments_of_a_call_are_offloaded(more: dict[str, Any]) -> None:
    """They stay JSON, say how long they were, and the reference gives them back; what was said with them stays."""
    arguments = json.dumps({"path": "a.py", "text": "print(1)\n" * 3_000})
    memory = with_arguments(arguments, **more)
    before = budget_status(memory).total
    assert len(reduced(memory, offload_large())) == 1
    assert budget_status(memory).total < before / 10
    message = next(one for one in compose(memory, budget=100_000).messages if one.get("tool_calls"))
    (call,) = message["tool_calls"]
    shown = json.loads(call["function"]["arguments"])
    assert (message["content"], call["id"], call["function"]["name"]) == ("I write it.", "a", "write_file")
    assert shown["left_out"] == f"{len(arguments):,} characters; reload r1.p1"
    assert arguments.startswith(shown["begins"])
    assert arguments in memory.reload("r1.p1")


def test_arguments_stay_where_that_is_asked_for() -> None:
    arguments = json.dumps({"text": "print(1)\n" * 3_000})
    assert not list(reduced(with_arguments(arguments), offload_large(arguments=False)))


# -- the voice --------------------------------------------------------------------------------------------------------


def test_a_summary_of_what_the_assistant_said_is_no_words_of_its_own() -> None:
    """It is quoted to the agent, with what it is, as summaries of calls are: agents repeat their own words to users."""
    memory = memory_of(user(), answer(BIG), user(), answer("x"), user())
    (reduction,) = reduced(memory, offload_large(summarize=True), work=Asked())
    _, shown, *_ = messages_of(view_of(memory))

    assert reduction.kind == "summarised"
    assert shown["role"] == "user"
    assert shown["content"].startswith("[Summary of the ")
    assert "that assistant said here" in shown["content"]
    assert memory.reload("r1.p1") == BIG


def test_words_with_a_call_keep_their_beginning() -> None:
    """The call stays the assistant's, and so does the message: then only its own words may stand in it."""
    memory = memory_of(user(), {**calls("a"), "content": BIG}, result("a"), answer("x"), user(), answer("y"))
    work = Asked()
    (reduction,) = reduced(memory, offload_large(summarize=True), work=work)

    assert work.requests == []
    assert reduction.text.startswith(BIG[:200] + "\n[")
    assert [call["id"] for call in messages_of(view_of(memory))[1]["tool_calls"]] == ["a"]


def test_in_no_prompt_does_the_assistant_say_a_summary() -> None:
    """Of any of its posts, by any step of the preset, whoever made the reduction."""
    talk = [user("q"), answer(BIG), {**calls("a"), "content": BIG}, result("a", BIG), answer(BIG), calls("w")]
    memory = memory_of(user(), answer(BIG), user(), *talk)
    for strategy in (offload_large(summarize=True, users_too=True),):
        reduced(memory, strategy, work=Asked(("A table of 400 rows.",)))

    said = [message for message in messages_of(view_of(memory)) if message["role"] == "assistant"]
    assert [message for message in said if "400 rows" in str(message["content"])] == []
    assert any("400 rows" in str(message["content"]) for message in messages_of(view_of(memory)))
