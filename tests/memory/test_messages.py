"""OpenAI chat messages become rounds and posts, and come out of them equal."""

from __future__ import annotations

import json
import re
from collections import UserDict
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
from histories import read_again
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import Attachment, InMemoryStore, Memory, MessageError, Post, Round, ToolCall
from memory.messages import (
    CALLED_KEYS,
    CHAT_KEYS,
    NESTED_KEYS,
    from_post,
    from_round,
    join_text,
    join_text_with_calls,
    make_query_message,
    repeats_query,
)

AIRLINE = Path(__file__).parents[3] / "shared" / "data" / "airline.jsonl"

Message = dict[str, object]


def call(name: str = "search", arguments: str = '{"q": "x"}', call_id: str = "call_1") -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def rounds_of(*messages: Message) -> list[tuple[str, str, list[str]]]:
    """Return query, state and posts of the rounds that *messages* become."""
    memory = Memory.from_messages(messages)
    return [
        (round_.user_query, round_.state, [f"{post.send_from}: {post.message}" for post in round_.post_list])
        for round_ in memory.conversation.rounds
    ]


def user(content: object = "q", **more: object) -> Message:
    return {"role": "user", "content": content, **more}


def assistant(content: object = "a", **more: object) -> Message:
    return {"role": "assistant", "content": content, **more}


# -- messages become rounds --------------------------------------------------------------------------------------------


def test_a_user_message_opens_a_round_and_the_others_join_it() -> None:
    """The round before is finished then; the newest stays open."""
    assert rounds_of(user("one"), assistant("1"), user("two"), assistant("2"), {"role": "tool", "content": "t"}) == [
        ("one", "finished", ["assistant: 1"]),
        ("two", "created", ["assistant: 2", "tool: t"]),
    ]


def test_an_assistant_first_message_opens_a_round_without_a_query() -> None:
    """A greeting is part of the conversation; the user's first message opens the next round."""
    assert rounds_of(assistant("hello"), assistant("there"), user("one")) == [
        ("", "finished", ["assistant: hello", "assistant: there"]),
        ("one", "created", []),
    ]


def test_several_user_messages_running_share_a_round() -> None:
    """And stay messages of their own, also where the user says the same again."""
    assert rounds_of(user("one"), user("two"), user("one"), user(""), assistant("a"), user("next")) == [
        ("one", "finished", ["User: two", "User: one", "User: ", "assistant: a"]),
        ("next", "created", []),
    ]


@pytest.mark.parametrize("empty", [user(""), user(None), user([]), {"role": "user"}, {"role": "user", "name": "Ada"}])
def test_an_empty_user_message_opens_a_round_like_any_other(empty: Message) -> None:
    """It is not lost, though it says nothing; the next user message joins it."""
    assert rounds_of(empty, user("more"), assistant("a")) == [("", "created", ["User: more", "assistant: a"])]
    assert Memory.from_messages([empty, assistant()]).messages() == [empty, assistant()]


def test_system_messages_before_the_first_round_are_the_header() -> None:
    """Later ones are posts of the round they come in, or open one where none is open."""
    memory = Memory.from_messages(
        [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, user(), {"role": "system", "content": "late"}]
    )  # fmt: skip
    assert [(post.send_from, post.message) for post in memory.header] == [("system", "s"), ("developer", "d")]
    assert [post.send_from for post in memory.conversation.rounds[0].post_list] == ["system"]
    memory.finish_round(memory.conversation.rounds[0])
    memory.append({"role": "system", "content": "later"})
    memory.append(user("next"))
    assert [(round_.user_query, len(round_.post_list)) for round_ in memory.conversation.rounds] == [
        ("q", 1),
        ("", 1),
        ("next", 0),
    ]


def test_messages_after_the_end_of_a_round_open_another() -> None:
    """A closed round's posts never change."""
    memory = Memory.from_messages([user(), assistant()])
    memory.finish_round(memory.conversation.rounds[-1])
    memory.append(assistant("more"))
    memory.append(user())
    assert [(round_.user_query, len(round_.post_list)) for round_ in memory.conversation.rounds] == [
        ("q", 1),
        ("", 1),
        ("q", 0),
    ]


def test_messages_join_a_round_that_was_opened_by_its_method() -> None:
    """Both ways of writing meet in one log."""
    memory = Memory()
    memory.create_round("asked")
    memory.append(user("also"))
    memory.append(assistant("answered"))
    memory.append(user("next"))
    assert [(round_.user_query, round_.state) for round_ in memory.conversation.rounds] == [
        ("asked", "finished"),
        ("next", "created"),
    ]
    assert [message["content"] for message in memory.messages()] == ["asked", "also", "answered", "next"]


def test_a_host_that_was_restarted_leaves_no_round_open_for_ever() -> None:
    """The next user message finishes the newest round, whoever opened it; else no compaction would pass it."""
    store = InMemoryStore()
    for turn in range(3):
        memory = Memory("s", store=store)
        memory.append(user(str(turn)))
        memory.append(assistant())
    assert [round_.state for round_ in memory.conversation.rounds] == ["finished", "finished", "created"]
    assert len(memory.messages()) == 6


def test_a_message_carries_on_in_the_round_of_the_process_before() -> None:
    """An answer that comes after a restart stands with its question."""
    store = InMemoryStore()
    Memory("s", store=store).append(user())
    memory = Memory("s", store=store)
    memory.append(assistant())
    assert [len(round_.post_list) for round_ in memory.conversation.rounds] == [1]


def test_opening_by_a_message_finishes_both_the_newest_round_and_ones_own() -> None:
    """Where another Memory has opened a round since."""
    store = InMemoryStore()
    one, two = Memory("s", store=store), Memory("s", store=store)
    one.append(user("mine"))
    one.append(assistant())
    two.create_round("theirs")
    two.append(assistant())
    one.append(user("next"))
    assert [(round_.user_query, round_.state) for round_ in one.conversation.rounds] == [
        ("mine", "finished"),
        ("theirs", "finished"),
        ("next", "created"),
    ]


def test_posts_made_of_messages_have_ids_numbers_and_stamps_of_their_own() -> None:
    """Like all posts."""
    memory = Memory.from_messages([assistant(), assistant(), user(), assistant()])
    posts = [post for round_ in memory.conversation.rounds for post in round_.post_list]
    assert [post.number for post in posts] == [1, 2, 1]
    assert len({post.id for post in posts}) == 3


def test_a_call_and_its_result_are_fields_of_posts() -> None:
    """So that no part of the library has to look for them in a message."""
    memory = Memory.from_messages(
        [user(), assistant(None, tool_calls=[call()]), {"role": "tool", "content": "found", "tool_call_id": "call_1"}]
    )
    asked, answered = memory.conversation.rounds[0].post_list
    assert asked.tool_calls == (ToolCall(id="call_1", name="search", arguments='{"q": "x"}'),)
    assert (answered.tool_call_id, answered.message, answered.send_to) == ("call_1", "found", "assistant")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "u"}}, "two", {}], "one\n[image_url]\ntwo\n[part]"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        ([{"type": "text", "text": None}], "[text]"),
    ],
)  # fmt: skip
def test_a_posts_message_is_the_text_of_its_content(content: object, text: str) -> None:
    """What is no text leaves a mark; the parts themselves are kept beside it."""
    memory = Memory.from_messages([user(), assistant(content)])
    assert memory.conversation.rounds[0].post_list[0].message == text
    assert memory.messages()[1] == assistant(content)


def test_a_refusal_is_what_the_message_says() -> None:
    """It reaches the summary though it is not the content."""
    memory = Memory.from_messages([user(), assistant(None, refusal="I cannot.")])
    assert memory.conversation.rounds[0].post_list[0].message == "I cannot."
    assert memory.messages()[1] == assistant(None, refusal="I cannot.")


# -- and come out equal ------------------------------------------------------------------------------------------------

ODD_MESSAGES: dict[str, Message] = {
    "name": assistant("x", name="Planner"),
    "no content": {"role": "assistant", "tool_calls": [call()]},
    "null content": assistant(None, tool_calls=[call()]),
    "empty content": assistant("", tool_calls=[call()]),
    "several calls": assistant(None, tool_calls=[call(call_id="1"), call(call_id="2", arguments="")]),
    "empty calls": assistant("x", tool_calls=[]),
    "null calls": assistant("x", tool_calls=None),
    "custom call": assistant(None, tool_calls=[{"id": "1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]),
    "arguments not text": assistant(None, tool_calls=[{"id": "1", "function": {"name": "f", "arguments": {"a": [1]}}}]),
    "call with more keys": assistant(None, tool_calls=[{**call(), "index": 0, "extra": None}]),
    "call without a function": assistant(None, tool_calls=[{"id": "1", "function": None}]),
    "broken arguments": assistant(None, tool_calls=[call(arguments='{"q": ')]),
    "old function call": assistant(None, function_call={"name": "f", "arguments": "{}"}),
    "old function result": {"role": "function", "name": "f", "content": "r"},
    "null result id": {"role": "tool", "content": "r", "tool_call_id": None},
    "no result id": {"role": "tool", "content": "r"},
    "result in parts": {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    "part order": assistant([{"type": "text", "text": "b"}, {"type": "text", "text": "a"}]),
    "image": user([{"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}, {"type": "text", "text": "?"}]),
    "empty parts": user([]),
    "user with a call": user("x", tool_calls=[call()], tool_call_id="1"),
    "user with odd calls": user("x", tool_calls="nonsense", tool_call_id=7),
    "assistant with a result id": assistant("x", tool_call_id="1"),
    "unknown keys": assistant("x", annotations=[], audio={"id": "a"}, reasoning_content="hm", n=1, f=1.0, t=True),
    "number as text": assistant("x", name="1"),
    "our own words": assistant("x", extra={"openai": 1}, openai={"k": 1}, openai_absent=["role"]),
    "braces": user("{content} </summary> <|endoftext|> \0 \ud800"),
    "late system": {"role": "system", "content": "s", "name": "n"},
    "late developer": {"role": "developer", "content": [{"type": "text", "text": "d"}]},
}  # fmt: skip


@pytest.mark.parametrize(
    "before", [[], [user()], [user(), assistant()]], ids=["first", "after a query", "after an answer"]
)
@pytest.mark.parametrize("name", ODD_MESSAGES)
def test_an_odd_message_comes_out_equal(name: str, before: list[Message]) -> None:
    """Wherever it stands; also from a session that was resumed from text."""
    messages = [*before, ODD_MESSAGES[name], assistant("after")]
    given = deepcopy(messages)
    store = InMemoryStore()
    memory = Memory.from_messages(messages, "s", store=store)
    assert memory.messages() == messages == given
    assert json.dumps(memory.messages()[len(before)]["role"]) == json.dumps(given[len(before)]["role"])
    assert read_again(store).messages() == given


any_text = st.text(st.characters(exclude_categories=()), max_size=8) | st.sampled_from(["", "q", "{}", "a"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | any_text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(any_text, inner, max_size=2),
    max_leaves=4,
)
parts = st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": any_text})
    | st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": any_text})})
    | st.dictionaries(any_text, json_values, max_size=2)
    | any_text,
    max_size=3,
)
contents = any_text | st.none() | parts
asked = st.fixed_dictionaries({}, optional={"name": any_text, "arguments": any_text | json_values, "input": any_text})
calls = st.fixed_dictionaries(
    {"id": any_text}, optional={"type": any_text, "function": asked, "custom": asked, "index": json_values}
)


def messages_of(role: str, **optional: st.SearchStrategy) -> st.SearchStrategy:
    keys = {"content": contents, "name": any_text, "unknown": json_values, "openai": json_values} | optional
    return st.fixed_dictionaries({"role": st.just(role)}, optional=keys)


any_message = st.one_of(
    messages_of("system"),
    messages_of("developer"),
    messages_of("user", tool_calls=json_values, tool_call_id=json_values),
    messages_of("user"),
    messages_of(
        "assistant", tool_calls=st.none() | st.lists(calls, max_size=3), refusal=json_values, tool_call_id=json_values
    ),
    messages_of("tool", tool_call_id=st.none() | any_text, tool_calls=json_values),
    messages_of("function", tool_call_id=json_values),
)


@pytest.mark.slow
@given(st.lists(any_message, max_size=8))
@settings(deadline=None, max_examples=60)
def test_any_messages_come_out_equal(messages: list[Message]) -> None:
    """In order, with every key and value of theirs, as they went in and after a resume."""
    given = deepcopy(messages)
    store = InMemoryStore()
    memory = Memory.from_messages(messages, "s", store=store)
    out = memory.messages()
    assert out == given
    assert types_in(out) == types_in(given)
    assert read_again(store).messages() == given
    assert messages == given


def types_in(value: object) -> object:
    """Return *value* with each number and truth value beside its type: to Python, 1 equals True."""
    if isinstance(value, dict):
        return {key: types_in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [types_in(item) for item in value]
    return (type(value), value)


def test_what_comes_out_may_be_changed() -> None:
    """It is a copy: hosts edit messages before they send them."""
    memory = Memory.from_messages([user([{"type": "text", "text": "x"}]), assistant(None, tool_calls=[call()])])
    out = memory.messages()
    out[0]["content"].append("more")
    out[1]["tool_calls"][0]["function"]["name"] = "other"
    assert memory.messages() == [user([{"type": "text", "text": "x"}]), assistant(None, tool_calls=[call()])]


def test_any_mapping_is_a_message() -> None:
    """Not only a dict."""
    memory = Memory.from_messages([UserDict(user())])
    assert memory.messages() == [user()]


@pytest.mark.slow
@pytest.mark.skipif(not AIRLINE.exists(), reason=f"the dialogues of {AIRLINE.name} are not on this machine")
def test_real_dialogues_come_out_equal() -> None:
    """Tool calls, results and ids of 133 conversations, to the letter."""
    dialogues = [json.loads(line)["messages"] for line in AIRLINE.read_text(encoding="utf-8").splitlines()]
    assert len(dialogues) == 133
    for messages in dialogues:
        store = InMemoryStore()
        assert Memory.from_messages(messages, "s", store=store).messages() == messages
        assert read_again(store).messages() == messages


# -- what is refused ---------------------------------------------------------------------------------------------------


class Completion(SimpleNamespace):
    """Looks like a client library's message, which is no mapping."""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("hello", "not str"),
        (None, "not NoneType"),
        ([("role", "user")], "not list"),
        (Completion(role="assistant", content="x"), r"not Completion; many give one by model_dump\(\)"),
        ({}, "role must be one of user, assistant, tool"),
        ({"role": "robot", "content": "x"}, "role must be one of"),
        ({"role": ["user"], "content": "x"}, "role must be one of"),
        ({"role": None}, "role must be one of"),
        (user(7), "content must be a string, null, an object or a list of parts, not int"),
        (user([7]), "part must be a mapping or a string, not int"),
        (user(b"bytes"), "part must be a mapping or a string, not int"),
        (assistant("x", tool_calls="call"), "tool_calls must be a list, not str"),
        (assistant("x", tool_calls={"id": "1"}), "tool_calls must be a list, not dict"),
        (assistant("x", tool_calls=[None]), "mapping with an id, a string"),
        (assistant("x", tool_calls=[{"function": {}}]), "mapping with an id, a string"),
        (assistant("x", tool_calls=[{"id": 7}]), "mapping with an id, a string"),
        (assistant("x", tool_calls=[{"id": "1", "function": "f"}]), "function must be a mapping"),
        (assistant("x", tool_calls=[{"id": "1", "function": {"arguments": object()}}]), "arguments must be text or JSON"),
        (assistant("x", tool_calls=[{"id": "1", "function": {"name": 10**5000}}]), "name must be text"),
        ({"role": "assistant", "function_call": {"name": 10**5000, "arguments": ""}}, "name must be text"),
        ({"role": "tool", "tool_call_id": 7}, "tool_call_id must be a string"),
        (user("x", extra=object()), "object cannot be stored"),
        (user("x", **{"nan": float("nan")}), "NaN"),
        ({"role": "user", 7: "x"}, "keys must be strings"),
    ],
)  # fmt: skip
def test_a_wrong_shape_is_an_error_that_says_what_is_wrong(message: object, said: str) -> None:
    """And nothing is written."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    with pytest.raises(MessageError, match=said):
        memory.append(message)
    assert list(store.read("s")) == []


def test_an_error_shows_nothing_of_the_message() -> None:
    """Errors end up in logs."""
    for message in (user([{"swordfish": 1}, 7]), {"role": "swordfish"}, assistant(tool_calls=["swordfish"])):
        with pytest.raises(MessageError) as raised:
            Memory().append(message)
        assert "swordfish" not in str(raised.value)


def test_of_a_conversation_with_a_wrong_message_nothing_is_written() -> None:
    """The error tells which one it is, counted from 1."""
    store = InMemoryStore()
    with pytest.raises(MessageError, match=r"message 3: the message's role"):
        Memory.from_messages([user(), assistant(), {"content": "x"}], "s", store=store)
    assert store.sessions() == []


# -- several agents ----------------------------------------------------------------------------------------------------


def conversation_of_agents() -> Memory:
    memory = Memory()
    round_ = memory.create_round("Plot it")
    for sender, receiver, message in [
        ("User", "Planner", "Plot it"),
        ("Planner", "CodeInterpreter", "load the file"),
        ("CodeInterpreter", "Planner", "done"),
        ("Planner", "User", "Here it is"),
    ]:
        memory.add_post(round_, send_from=sender, send_to=receiver, message=message)
    return memory


def test_each_agent_reads_itself_as_the_assistant_and_the_others_by_name() -> None:
    """The user's query is said once, though the round and the first post both have it."""
    memory = conversation_of_agents()
    assert memory.messages("Planner") == [
        user("Plot it"),
        assistant("load the file"),
        user("CodeInterpreter: done"),
        assistant("Here it is"),
    ]
    assert memory.messages("CodeInterpreter") == [user("Plot it"), user("Planner: load the file"), assistant("done")]


def test_a_query_that_is_said_again_with_something_attached_is_said_once_with_it() -> None:
    """What the post adds to the query is not lost."""
    memory = Memory()
    round_ = memory.create_round("Plot it")
    file = Attachment(type="file", content="a,b\n1,2")
    memory.add_post(round_, send_from="User", send_to="Planner", message="Plot it", attachment_list=[file])
    memory.add_post(round_, send_from="User", send_to="Planner", message="Plot it")
    assert memory.messages("Planner") == [user("Plot it\n\n[file]\na,b\n1,2"), user("Plot it")]


def test_only_the_first_post_can_repeat_the_query() -> None:
    """And only the user's, with the same words, where there are any, and not one that came as a message."""
    round_ = Round(user_query="q")
    same = Post(send_from="User", send_to="Planner", message="q")
    assert repeats_query(same, round_)
    assert not repeats_query(same.model_copy(update={"send_from": "Planner"}), round_)
    assert not repeats_query(same.model_copy(update={"message": "q2"}), round_)
    assert not repeats_query(same.model_copy(update={"message": ""}), Round(user_query=""))
    came = Memory.from_messages([user("q"), user("q")]).conversation.rounds[0]
    assert not repeats_query(came.post_list[0], came)
    other = Post(send_from="Planner", send_to="User", message="first")
    assert len(list(from_round(round_.model_copy(update={"post_list": (other, same)}), "Planner"))) == 3


def test_a_round_that_the_user_did_not_open_has_no_query() -> None:
    """Agents may speak on their own account."""
    assert make_query_message(Round(user_query="")) is None
    assert make_query_message(Round(user_query="q")) == user("q")


def test_attachments_are_part_of_what_is_said() -> None:
    """Each under its type, after the message."""
    post = Post(
        send_from="Planner",
        send_to="User",
        message="m",
        attachment_list=(Attachment(type="plan", content="1."), Attachment(type="python", content="{}")),
    )
    assert join_text(post) == "m\n\n[plan]\n1.\n\n[python]\n{}"
    assert join_text(post.model_copy(update={"message": ""})) == "[plan]\n1.\n\n[python]\n{}"
    assert from_post(post, "Planner") == assistant(join_text(post))
    assert from_post(post, "User") == assistant(join_text(post)) | {
        "role": "user",
        "content": f"Planner: {join_text(post)}",
    }


def test_tool_calls_and_results_between_agents() -> None:
    """An agent's own calls are calls, results are results whoever ran the tool; another agent's calls are text."""
    asked = Post(
        send_from="Planner", send_to="python", message="run", tool_calls=(ToolCall(id="1", name="f", arguments="{}"),)
    )
    answered = Post(send_from="python", send_to="Planner", message="ok", tool_call_id="1")
    calls_only = asked.model_copy(update={"message": ""})
    assert from_post(asked, "Planner") == assistant("run", tool_calls=[call("f", "{}", "1")])
    assert from_post(answered, "Planner") == {"role": "tool", "content": "ok", "tool_call_id": "1"}
    assert from_post(asked, "python") == user("Planner: run\nPlanner calls f({}) as 1")
    assert join_text_with_calls(calls_only) == "Planner calls f({}) as 1"
    assert join_text_with_calls(Post(send_from="Planner", send_to="User")) == ""


def test_system_posts_are_system_messages_for_every_agent() -> None:
    """Likewise the user's."""
    assert from_post(Post(send_from="system", send_to="Planner", message="s"), "Planner") == {
        "role": "system",
        "content": "s",
    }
    assert from_post(Post(send_from="User", send_to="Planner", message="u"), "Planner") == user("u")


@pytest.mark.parametrize("extra", [{"openai": 7}, {"openai": "x", "openai_absent": "role"}, {"openai_absent": 3}])
def test_a_hosts_own_extra_values_do_no_harm(extra: dict[str, object]) -> None:
    """Whatever they are called."""
    memory = Memory()
    round_ = memory.create_round("q", extra=extra)
    memory.add_post(round_, send_from="assistant", send_to="User", message="a", extra=extra)
    assert memory.messages() == [user("q"), assistant("a")]


def test_failed_rounds_are_left_out_of_messages() -> None:
    """As they are left out of prompts."""
    memory = Memory.from_messages([user("one"), assistant(), user("two"), assistant()])
    memory.finish_round(memory.conversation.rounds[0], state="failed")
    assert memory.messages() == [user("two"), assistant()]


def test_the_header_is_the_agents_that_speaks_in_messages() -> None:
    """Other roles get theirs from the host."""
    memory = Memory.from_messages([{"role": "system", "content": "s"}, user()])
    assert memory.messages() == [{"role": "system", "content": "s"}, user()]
    assert memory.messages("Planner") == [user()]


def test_the_page_lists_the_keys_that_providers_get() -> None:
    """In one place, all of them."""
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.partition("| keys that providers get |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == CHAT_KEYS
    kinds = page.partition("| part or call |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", kinds)) == CALLED_KEYS.union(*NESTED_KEYS.values()) - {"type"}
