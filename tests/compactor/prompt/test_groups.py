"""A round becomes messages that providers accept, in groups that are never torn."""

from __future__ import annotations

import json

import pytest
from chats import Message, answer, calls, ids, result, user

from compactor import MessageGroup, count_message, count_tokens
from compactor.prompt.groups import APPROVAL_REQUEST, APPROVAL_RESPONSE, NO_RESULT, group_messages
from compactor.tokens import MESSAGE_TOKENS
from memory import Attachment, Memory, Post, Round, ToolCall


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
