"""A round becomes messages that providers accept, in groups that are never torn."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chats import Message, answer, calls, ids, result, user
from hypothesis import given
from hypothesis import strategies as st

from compactor import MessageGroup, count_message, count_tokens
from compactor.prompt.groups import (
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
    EPHEMERAL,
    NO_RESULT,
    OVERLAY,
    apply_overlays,
    copy_messages,
    group_messages,
    is_summary,
    measure_depth,
)
from compactor.tokens import MESSAGE_TOKENS
from memory import Attachment, Memory, Post, Reduction, Round, ToolCall
from memory.messages import ASSISTANT
from memory.overlays import merge_reductions


def groups(*messages: Message, closed: bool = False, last: bool = True) -> list[MessageGroup]:
    """Return the units of the newest round that *messages* make."""
    memory = Memory.from_messages(messages)
    if closed:
        memory.finish_round(memory.conversation.rounds[-1])
    return group_messages(memory.conversation.rounds[-1], "assistant", last=last)


def flat(found: list[MessageGroup]) -> list[Message]:
    return [message for group in found for message in group.messages]


def texts(found: list[MessageGroup]) -> list[list[str]]:
    """Return the contents by group; a call's is its ids."""
    return [[message["content"] or "+".join(ids(message)) for message in group.messages] for group in found]


# -- calls and their results ------------------------------------------------------------------------------------------


def test_a_call_and_its_results_are_one_group() -> None:
    """A tool call stands or falls with all its results."""
    found = groups(user(), calls("c1", "c2"), result("c1", "r1"), result("c2", "r2"), answer())

    assert texts(found) == [["q"], ["c1+c2", "r1", "r2"], ["a"]]


def test_results_keep_the_order_in_which_they_came() -> None:
    """What came in by append comes out equal, parallel results that overtook one another included."""
    given = [user(), calls("c1", "c2"), result("c2", "r2"), result("c1", "r1")]

    assert flat(groups(*given)) == given


def test_a_result_is_a_tools_whoever_sent_it() -> None:
    """In multi-agent hosts an executor, or the agent itself, may hand the result over."""
    for sender in ("Executor", "Planner", "User"):
        call = Post(send_from="Planner", send_to="Executor", tool_calls=(ToolCall(id="c", name="f"),), number=1)
        done = Post(send_from=sender, send_to="Planner", message="r", tool_call_id="c", number=2)

        (group,) = group_messages(Round(user_query="", post_list=(call, done)), "Planner")

        assert group.messages[1] == {"role": "tool", "tool_call_id": "c", "content": "r"}


def test_a_result_that_comes_late_is_moved_behind_its_call() -> None:
    """Providers refuse a call that something else follows than its results."""
    memory = Memory()
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from="assistant", send_to="tool", tool_calls=(ToolCall(id="c", name="f"),))
    memory.add_post(round_, send_from="assistant", send_to="User", message="one moment")
    memory.add_post(round_, send_from="tool", send_to="assistant", message="r", tool_call_id="c")

    found = group_messages(memory.conversation.rounds[0], "assistant")
    assert [[message["role"] for message in group.messages] for group in found] == [
        ["user"],
        ["assistant", "tool"],
        ["assistant"],
    ]


@pytest.mark.parametrize("closed", [True, False])
def test_a_call_that_was_never_answered_gets_a_result_that_says_so(closed: bool) -> None:
    """After a crash the prompt is still one that providers accept."""
    found = groups(user(), calls("c1", "c2"), result("c2", "r2"), answer(), closed=closed)

    assert texts(found) == [["q"], ["c1+c2", "r2", NO_RESULT], ["a"]]
    assert found[1].messages[2] == {"role": "tool", "tool_call_id": "c1", "content": NO_RESULT}


def test_calls_that_the_host_is_about_to_run_wait_for_their_results() -> None:
    """Nothing is put in the place of a result that is still to come."""
    assert texts(groups(user(), calls("c1", "c2"))) == [["q"], ["c1+c2"]]
    assert texts(groups(user(), calls("c1", "c2"), result("c2", "r2"))) == [["q"], ["c1+c2", "r2"]]


def test_calls_do_not_wait_in_an_open_round_that_others_follow() -> None:
    """A round that another process left open may end in a call; what follows it in the prompt is no result."""
    assert texts(groups(user(), calls("c1"), last=False)) == [["q"], ["c1", NO_RESULT]]


def test_only_the_newest_of_two_unanswered_calls_waits() -> None:
    """An agent that asked again after a crash within the round is not kept from going on."""
    assert texts(groups(user(), calls("c1"), calls("c2"))) == [["q"], ["c1", NO_RESULT], ["c2"]]


def test_a_call_does_not_wait_when_a_result_that_answers_nothing_follows() -> None:
    """What becomes a message of its own ends the wait as any other message does."""
    assert [len(group.messages) for group in groups(user(), calls("c1"), result("other"))] == [1, 2, 1]


def test_a_call_id_that_is_used_again_means_the_newest_call() -> None:
    """Local models number their calls from zero each time; a result belongs to the call just made."""
    found = groups(
        user(), calls("c"), result("c", "r1"), calls("c"), result("c", "r2"), calls("c"), calls("c"), result("c", "r4")
    )

    assert texts(found) == [["q"], ["c", "r1"], ["c", "r2"], ["c", NO_RESULT], ["c", "r4"]]


def test_one_id_twice_in_one_message_takes_two_results() -> None:
    """Parallel calls that share an id are answered one by one."""
    found = groups(user(), calls("c", "c"), result("c", "r1"), result("c", "r2"), result("c", "r3"))

    assert texts(found)[1] == ["c+c", "r1", "r2"]
    assert found[2].messages[0]["role"] == "user"


def test_a_result_without_a_call_becomes_a_message_that_says_what_it_is() -> None:
    """Providers refuse a tool message that answers nothing; its text is kept all the same."""
    found = groups(user(), result("gone", "42 rows"), closed=True)

    message = found[1].messages[0]
    assert message["role"] == "user"
    assert message["content"].endswith("\n42 rows")
    assert not found[1].from_user


def test_a_result_that_comes_before_its_call_answers_nothing() -> None:
    """Only what comes after a call can be its result."""
    found = groups(user(), result("c", "early"), calls("c"), result("c", "r"))

    assert texts(found)[2] == ["c", "r"]
    assert [group.messages[0]["role"] for group in found] == ["user", "user", "assistant"]


def test_the_text_of_an_orphan_in_parts_is_kept() -> None:
    """Content in parts is read as text where it cannot stay what it was."""
    orphan = {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "part"}]}

    assert groups(user(), orphan)[1].messages[0]["content"].endswith("part")


def test_results_in_the_old_form_stay_with_the_call_before_them() -> None:
    """A function message has no id: it answers what stands before it."""
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    given = [user(), old, {"role": "function", "name": "f", "content": "r"}, answer()]

    found = groups(*given)

    assert [len(group.messages) for group in found] == [1, 2, 1]
    assert flat(found) == given


def test_a_function_message_with_nothing_before_it_stands_alone() -> None:
    """It is not glued to what the user said."""
    assert [len(group.posts) for group in groups(user(), {"role": "function", "name": "f", "content": "r"})] == [1, 1]


# -- what waits -------------------------------------------------------------------------------------------------------


def test_a_call_without_all_its_results_waits_only_at_the_end_of_the_open_round() -> None:
    """There the host is about to run it; anywhere else its note stands for the result, and nothing waits."""
    assert [group.pending for group in groups(user(), calls("a"), calls("b", "c"), result("c"))] == [False, False, True]
    assert [group.pending for group in groups(user(), calls("b", "c"), result("c"), result("b"))] == [False, False]
    assert not any(group.pending for group in groups(user(), calls("b"), closed=True))
    assert not any(group.pending for group in groups(user(), calls("b"), last=False))


def approvals(*kinds: str, closed: bool = False) -> list[bool]:
    """Return what waits in a round of such posts, the responses the user's."""
    posts = tuple(
        Post(
            send_from="User" if kind == APPROVAL_RESPONSE else "assistant",
            send_to="x",
            message=kind,
            kind=kind,
            number=number,
        )
        for number, kind in enumerate(kinds, 1)
    )
    round_ = Round(user_query="q", post_list=posts, state="finished" if closed else "created")
    return [group.pending for group in group_messages(round_, "assistant")][1:]


def test_requests_for_approval_wait_until_as_many_responses_came() -> None:
    """The first response answers the first request; in a closed round nobody waits any more."""
    ask, give = APPROVAL_REQUEST, APPROVAL_RESPONSE
    assert approvals(ask, "message") == [True, False]
    assert approvals(ask, give) == [False, False]
    assert approvals(ask, ask, give) == [False, True, False]
    assert approvals(ask, give, ask) == [False, False, True]
    assert approvals(ask, give, give, ask) == [False] * 4
    assert approvals(ask, closed=True) == [False]


def test_a_call_that_needs_approval_waits_though_it_has_a_result() -> None:
    """A request may be the post with the call itself; the old form's result joins what waits."""
    call = Post(send_from="A", send_to="B", tool_calls=(ToolCall(id="c", name="f"),), kind=APPROVAL_REQUEST, number=1)
    done = Post(send_from="B", send_to="A", message="r", tool_call_id="c", number=2)
    asked = Post(send_from="A", send_to="B", message="May I?", kind=APPROVAL_REQUEST, number=1)
    old = Post(send_from="function", send_to="A", message="r", number=2)

    for posts in ((call, done), (asked, old)):
        (group,) = group_messages(Round(user_query="", post_list=posts), "A")
        assert group.pending
        assert group.posts == posts
        assert len(group.messages) == 2


def test_a_group_knows_its_number_and_its_tools() -> None:
    """That of its first post, the query's 0; the names that are called in it."""
    query, called, said = groups(user(), calls("a", "b"), result("a"), result("b"), answer())

    assert (query.number, called.number, said.number) == (0, 1, 4)
    assert (query.tools, called.tools, said.tools) == ((), ("f", "f"), ())


# -- whose messages ---------------------------------------------------------------------------------------------------


def test_the_newest_words_of_the_user_are_marked() -> None:
    """Compose keeps what the user said: the query, and messages that followed it."""
    found = groups(user("q"), user("and this"), answer())

    assert [group.from_user for group in found] == [True, True, False]
    assert found[0].posts == (None,)


def test_each_message_has_the_post_it_comes_from() -> None:
    """References lead from any message to what it was made of, notes for missing results included."""
    found = groups(user(), calls("c1", "c2"), result("c2"), answer())

    for group in found:
        assert len(group.posts) == len(group.messages)
    assert [post.number if post else 0 for group in found for post in group.posts] == [0, 1, 2, 1, 3]


def test_a_query_that_a_first_post_repeats_is_said_once() -> None:
    """Multi-agent hosts hand the query over in a post; with what that carries, it is that post's."""
    plan = Attachment(type="plan", content="1. load")
    bare = Round(user_query="go", post_list=(Post(send_from="User", send_to="Planner", message="go"),))
    rich = Round(
        user_query="go",
        post_list=(Post(send_from="User", send_to="Planner", message="go", attachment_list=(plan,), number=1),),
    )

    assert texts(group_messages(bare, "Planner")) == [["go"]]
    assert texts(group_messages(rich, "Planner")) == [["go\n\n[plan]\n1. load"]]
    assert group_messages(rich, "Planner")[0].posts == rich.post_list


def test_what_other_agents_say_is_a_user_message_that_names_them() -> None:
    """A role's own words are the assistant's, and its own calls are calls; another's calls are told as text."""
    round_ = Round(
        user_query="go",
        post_list=(
            Post(send_from="Planner", send_to="Coder", message="load it"),
            Post(send_from="Coder", send_to="Planner", tool_calls=(ToolCall(id="c", name="run", arguments="{}"),)),
        ),
    )

    found = group_messages(round_, "Planner")

    assert flat(found)[1:] == [
        {"role": "assistant", "content": "load it"},
        {"role": "user", "content": "Coder: Coder calls run({}) as c"},
    ]
    assert [group.from_user for group in found] == [True, False, False]


# -- what a message costs ---------------------------------------------------------------------------------------------


def test_a_message_costs_its_text_and_what_the_format_adds() -> None:
    """The count of a plain message is its text's and a constant."""
    assert count_message({"role": "user", "content": "hello world"}, count_tokens) == MESSAGE_TOKENS + 2
    assert count_message({"role": "assistant", "content": None}, count_tokens) == MESSAGE_TOKENS


def test_names_ids_calls_and_unknown_keys_cost() -> None:
    """Whatever the provider is sent is counted, for nobody says what it counts."""
    plain = count_message({"role": "tool", "content": "x"}, count_tokens)

    for more in (
        {"tool_call_id": "call_1"},
        {"name": "search"},
        {"reasoning_content": "because"},
        {"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
        {"tool_calls": ["not a call"]},
        {"cache_control": {"type": "ephemeral"}},
    ):
        assert count_message({"role": "tool", "content": "x", **more}, count_tokens) > plain


def test_a_call_costs_its_id_its_name_and_its_arguments() -> None:
    """Arguments are counted as the text that they are."""
    message = calls("c1")
    message["tool_calls"][0]["function"]["arguments"] = json.dumps({"rows": list(range(50))})

    arguments = count_tokens(message["tool_calls"][0]["function"]["arguments"])
    assert count_message(message, count_tokens) == MESSAGE_TOKENS + arguments + count_tokens("c1") + count_tokens("f")


def test_an_image_costs_what_it_may_cost_at_most_and_not_its_characters() -> None:
    """A data URL of a megabyte is an image, not a million characters of text."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    small = {"type": "image_url", "image_url": {"url": "https://example.org/x.png", "detail": "low"}}
    text = {"type": "text", "text": "hello world"}

    assert count_message({"content": [text, image]}, count_tokens) == MESSAGE_TOKENS + 2 + 1_445
    assert count_message({"content": [small]}, count_tokens) == MESSAGE_TOKENS + 85
    assert count_message({"content": [{"type": "image_url", "image_url": "x"}]}, count_tokens) > 1_445


def test_parts_that_are_neither_text_nor_image_cost_what_they_hold() -> None:
    """An unknown part is counted by its JSON; so is a part that is just text."""
    part = {"type": "place", "place": {"city": "Oslo"}}

    assert count_message({"content": [part, "hello"]}, count_tokens) > MESSAGE_TOKENS + 5


# -- groups under overlays -------------------------------------------------------------------------------------------


def round_of(*messages: dict[str, Any]) -> Round:
    return Memory.from_messages(messages).conversation.rounds[0]


def over(round_: Round, first: int, last: int, kind: Any, text: str = "") -> Reduction:
    """Return a reduction of the posts of those numbers; 0 is the query."""
    posts: list[Post | None] = [post for post in round_.post_list if first <= post.number <= last]
    return Reduction.over(round_, [*([None] if first == 0 else []), *posts], kind, text)


def said(round_: Round, *reductions: Reduction) -> list[tuple[str, str]]:
    messages = [
        message
        for group in group_messages(apply_overlays(round_, reductions, ASSISTANT), ASSISTANT)
        for message in group.messages
    ]
    return [
        (message["role"], message["content"] or "+".join(call["id"] for call in message["tool_calls"]))
        for message in messages
    ]


WORK = round_of(user("q"), calls("a"), result("a", "one"), calls("b"), result("b", "two"), answer("done"))


def test_a_round_that_nothing_covers_is_itself() -> None:
    """No overlay of it: the very object, so that nothing is made or counted anew."""
    assert apply_overlays(WORK, (), ASSISTANT) is WORK


def test_an_offloaded_post_reads_as_its_text_and_keeps_all_else() -> None:
    """The message, its calls and ids stay; the post says what it is."""
    reduction = over(WORK, 2, 2, "offloaded", "[reload r1.p2]")

    read = apply_overlays(WORK, [reduction], ASSISTANT)

    assert said(WORK, reduction)[2] == ("tool", "[reload r1.p2]")
    assert read.post_list[1].tool_call_id == "a"
    assert read.post_list[1].extra[OVERLAY] == "offloaded"
    assert [post for post in read.post_list if post.number != 2] == [
        post for post in WORK.post_list if post.number != 2
    ]


def test_content_in_parts_and_attachments_go_with_the_text_that_is_offloaded() -> None:
    """What a message kept of its own form would bring the text back."""
    parts = {"role": "assistant", "content": [{"type": "text", "text": "long"}], "name": "bot"}
    round_ = round_of(user("q"), parts)
    rich = round_.model_copy(
        update={
            "post_list": (
                Post(
                    send_from=ASSISTANT,
                    send_to="User",
                    message="m",
                    number=1,
                    attachment_list=(Attachment(type="t", content="long"),),
                ),
            )
        }
    )

    (_, group) = group_messages(
        apply_overlays(round_, [over(round_, 1, 1, "offloaded", "short")], ASSISTANT), ASSISTANT
    )

    assert group.messages == ({"role": "assistant", "content": "short", "name": "bot"},)
    assert said(rich, over(rich, 1, 1, "offloaded", "short"))[1] == ("assistant", "short")


def test_dropped_posts_are_not_there() -> None:
    """A call with its results, and nothing in their place."""
    assert said(WORK, over(WORK, 1, 2, "dropped")) == [
        ("user", "q"),
        ("assistant", "b"),
        ("tool", "two"),
        ("assistant", "done"),
    ]


def test_summarised_posts_read_as_one_message_that_nobody_said() -> None:
    """In the place of the first, with its number, and never in the agent's own voice."""
    reduction = over(WORK, 1, 4, "summarised", "Two were read.")

    read = apply_overlays(WORK, [reduction], ASSISTANT)

    assert said(WORK, reduction) == [("user", "q"), ("user", "Two were read."), ("assistant", "done")]
    assert is_summary(read.post_list[0])
    assert (read.post_list[0].number, read.post_list[0].send_from) == (1, "context")
    assert not group_messages(read, ASSISTANT)[1].from_user


def test_two_summaries_side_by_side_are_two_messages() -> None:
    """Each stands for its own posts, though no other post is between them."""
    assert said(WORK, over(WORK, 1, 2, "summarised", "First."), over(WORK, 3, 4, "summarised", "Second."))[1:3] == [
        ("user", "First."),
        ("user", "Second."),
    ]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("offloaded", "[reload r1.p0]", [("user", "[reload r1.p0]"), ("assistant", "done")]),
        ("dropped", "", [("assistant", "done")]),
        ("summarised", "It was asked.", [("user", "It was asked."), ("assistant", "done")]),
    ],
)
def test_the_query_reads_otherwise_too(kind: str, text: str, expected: list[tuple[str, str]]) -> None:
    """The query is p0: offloaded it is still the user's, dropped it is gone, summarised it stands before all posts."""
    round_ = round_of(user("q"), answer("done"))

    assert said(round_, over(round_, 0, 0, kind, text)) == expected


def test_a_summary_from_the_query_on_is_said_once() -> None:
    """One message in the place of the query and the posts after it."""
    assert said(WORK, over(WORK, 0, 4, "summarised", "All of it.")) == [("user", "All of it."), ("assistant", "done")]


def handed_on() -> Round:
    """Return a round whose first post hands the query to the agent, as multi-agent hosts do."""
    posts = (
        Post(send_from="User", send_to=ASSISTANT, message="q", number=1),
        Post(send_from=ASSISTANT, send_to="User", message="done", number=2),
    )
    return Round(user_query="q", post_list=posts, number=1)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("kind", "text", "first"),
    [
        ("offloaded", "[reload r1.p0]", [("user", "[reload r1.p0]")]),
        ("dropped", "", []),
        ("summarised", "It was asked.", [("user", "It was asked.")]),
    ],
)
def test_a_post_that_repeats_the_query_stands_or_falls_with_it(
    number: int, kind: str, text: str, first: list[tuple[str, str]]
) -> None:
    """Whichever of the two is covered: the query is neither said in spite of it nor lost."""
    round_ = handed_on()

    assert said(round_, over(round_, number, number, kind, text)) == [*first, ("assistant", "done")]


def test_a_summary_of_the_repeated_query_and_what_follows_is_said_once() -> None:
    """It begins with the post that repeats the query, and ends behind others."""
    round_ = handed_on()

    assert said(round_, over(round_, 1, 2, "summarised", "Asked and answered.")) == [("user", "Asked and answered.")]


@given(st.data())
def test_any_live_reductions_cover_each_post_once(data: st.DataObject) -> None:
    """Every post is shown, offloaded, dropped or part of exactly one summary; nothing is shown twice or out of order."""
    live: tuple[Reduction, ...] = ()
    for _ in range(data.draw(st.integers(0, 5))):
        first = data.draw(st.integers(0, 5))
        last = data.draw(st.integers(first, 5))
        kind = data.draw(st.sampled_from(["offloaded", "dropped", "summarised"]))
        if kind == "offloaded":
            last = first
        live = merge_reductions(live, over(WORK, first, last, kind, f"<{first}-{last}>")) or live

    read = apply_overlays(WORK, live, ASSISTANT)

    numbers = [post.number for post in read.post_list]
    assert numbers == sorted(set(numbers))
    for post in read.post_list:
        covering = [one for one in live if one.covers(post.number)]
        assert len(covering) <= 1
        assert post.message == (covering[0].text if covering else WORK.post_list[post.number - 1].message)
    gone = {
        number for one in live if one.kind != "offloaded" for number in range(one.first_number, one.last_number + 1)
    }
    assert {number for number in range(1, 6) if number not in gone} <= set(numbers)
    summaries = [post.message for post in read.post_list if is_summary(post)]
    assert summaries == [one.text for one in live if one.kind == "summarised"]


# -- what leaves by itself --------------------------------------------------------------------------------------------


def ephemeral(number: int, name: str = "screen", **more: Any) -> Post:
    fields = {"send_from": "tool", "send_to": ASSISTANT, "message": f"{name} {number}"} | more
    return Post(number=number, kind=f"{EPHEMERAL}{name}", **fields)


def spoke(number: int, **more: Any) -> Post:
    return Post(number=number, send_from=ASSISTANT, send_to="User", message=f"said {number}", **more)


def shown(*posts: Post, closed: bool = False, reductions: tuple[Reduction, ...] = ()) -> list[str]:
    round_ = Round(user_query="q", post_list=posts, number=1, state="finished" if closed else "created")
    return [post.message for post in apply_overlays(round_, reductions, ASSISTANT).post_list]


def test_what_came_after_the_agents_last_words_is_shown() -> None:
    """It has not been in a prompt that was answered: not even when there are several."""
    assert shown(spoke(1), ephemeral(2), ephemeral(3)) == ["said 1", "screen 2", "screen 3"]
    assert shown(ephemeral(1), spoke(2), ephemeral(3)) == ["said 2", "screen 3"]


def test_the_words_that_count_are_those_of_the_log() -> None:
    """An answer that was dropped from the prompt was given all the same: what it followed does not come back."""
    posts = (ephemeral(1), spoke(2))
    round_ = Round(user_query="q", post_list=posts, number=1)

    assert shown(*posts, reductions=(over(round_, 2, 2, "dropped"),)) == []


def test_keep_counts_the_newest_of_each_name() -> None:
    """Whether they were seen or not; nonsense keeps none."""
    kept = {"extra": {"keep": 2}}
    posts = [ephemeral(1, **kept), ephemeral(2, **kept), ephemeral(3, "page"), spoke(4), ephemeral(5, **kept)]

    assert shown(*posts) == ["screen 2", "said 4", "screen 5"]
    assert shown(ephemeral(1, extra={"keep": "two"}), spoke(2)) == ["said 2"]
    assert shown(ephemeral(1, extra={"keep": -1}), spoke(2)) == ["said 2"]


def test_with_the_end_of_its_round_all_of_it_leaves() -> None:
    """Also what nobody has seen, and whatever was to be kept."""
    assert shown(ephemeral(1, extra={"keep": 9}), spoke(2), ephemeral(3), closed=True) == ["said 2"]


def test_an_ephemeral_result_stays_as_a_line() -> None:
    """Its call keeps its answer, in open rounds and in closed ones."""
    call = spoke(1, tool_calls=({"id": "c", "name": "f"},))
    for closed in (False, True):
        line = shown(call, ephemeral(2, tool_call_id="c"), spoke(3), closed=closed)[1]
        assert line == "[Was to be seen once, and is left out now; reload r1.p2]"


def test_a_message_with_calls_does_not_leave_by_itself() -> None:
    """Its results would be left without the call."""
    call = spoke(1, tool_calls=({"id": "c", "name": "f"},)).model_copy(update={"kind": f"{EPHEMERAL}step"})

    assert shown(call, spoke(2)) == ["said 1", "said 2"]


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.recursive(
            st.none() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=3,
    )
)
def test_a_message_of_ones_own_says_the_same_and_shares_nothing(message: dict[str, object]) -> None:
    """Lists and mappings in it are others."""
    mine = copy_messages([message], [measure_depth(message)])[0]
    assert mine == message
    shared = {id(value) for value in message.values() if isinstance(value, (list, dict))}
    assert mine is not message
    assert shared.isdisjoint(id(value) for value in mine.values())
