"""When a conversation is compressed, which messages stay word for word, and what unusable results lead to."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest
from chats import Message, answer, assert_paired, calls, result, user
from compressed_memory import SHORT, SYSTEM, filled, heard, reasons, run, shortened, shown, turn, turns
from hypothesis import given
from hypothesis import strategies as st

from compactor import count_tokens
from compactor.presets import CompressionFailed, MemoryWithCompress

# -- when -------------------------------------------------------------------------------------------------------------


def test_it_compresses_when_read_and_over_the_limit() -> None:
    """The default: on get, not on add; the size is the length of the JSON."""
    limit = len(json.dumps(turns(1), ensure_ascii=False))
    memory = MemoryWithCompress(limit, compress_func=shortened)
    run(memory.add(turns(1)))
    assert shown(memory) == turns(1)

    run(memory.add(turn(2)))

    assert len(shown(memory, compress_func=lambda messages: messages[-1:])) == 1
    assert run(memory.size()) == 8


def test_compressing_on_add_alone() -> None:
    """compression_on_add and compression_on_get are switches of their own."""
    memory = filled(turns(1), compression_on_add=True, compression_on_get=False)
    idle = filled(turns(1), compression_on_get=False)

    assert shown(memory) == [SHORT]
    assert shown(idle) == turns(1)


class Counter:
    """Counts messages, as other systems' counters do."""

    async def count(self, messages: list[Message]) -> int:
        return len(messages) * 100


@pytest.mark.parametrize(("counter", "limit"), [(Counter(), 400), (count_tokens, 170)])
def test_counters_of_messages_and_of_texts(counter: Any, limit: int) -> None:
    """An object with count(messages), sync or async, or a function of a text."""
    within = MemoryWithCompress(limit, counter, shortened)
    over = MemoryWithCompress(limit // 2, counter, shortened)
    for memory in (within, over):
        run(memory.add(turns(1)))

    assert shown(within) == turns(1)
    assert shown(over) == [SHORT]


async def async_trigger(messages: list[Message]) -> bool:
    return len(messages) > 2 and messages[-1]["role"] == "assistant"


@pytest.mark.parametrize("trigger", [async_trigger, lambda messages: len(messages) > 2])
def test_a_trigger_compresses_below_the_limit(trigger: Any) -> None:
    """compression_trigger_func, sync or async, sees all that is shown."""
    memory = MemoryWithCompress(compress_func=shortened, compression_trigger_func=trigger)
    run(memory.add(turns(1)[:1]))
    first = shown(memory)
    run(memory.add(turns(1)[1:]))

    assert first == turns(1)[:1]
    assert shown(memory) == [SHORT]


def test_functions_of_one_call_replace_those_of_the_instance() -> None:
    """For get_memory and for add."""
    memory = MemoryWithCompress(compress_func=shortened, compression_on_add=True)
    other = user("[other]")

    run(memory.add(turns(1), lambda _messages: [other], lambda _messages: True))
    run(memory.add(turn(2)))
    at_hand = shown(memory)

    assert at_hand == [other, *turn(2)]
    assert shown(memory, compression_trigger_func=lambda _messages: True) == [SHORT]


# -- what -------------------------------------------------------------------------------------------------------------


def test_header_and_open_question_stay() -> None:
    """System messages at the beginning and the user's last message stay; only the messages between are compressed."""
    given: list[list[Message]] = []

    async def compress(messages: list[Message]) -> list[Message]:
        given.append(messages)
        return [SHORT]

    memory = filled([SYSTEM, *turns(2), user("and now?"), user("please")], compress_func=compress)

    assert shown(memory) == [SYSTEM, SHORT, user("and now?"), user("please")]
    assert given == [turns(2)]


def test_calls_that_wait_and_results_nobody_has_read_stay() -> None:
    """Within the open question, only calls with read results are compressed, behind the question."""
    work = [user("find it"), answer("let me see"), calls("a", "b"), result("b"), result("a"), calls("c"), result("c")]
    memory = filled(work)

    assert shown(memory) == [work[0], SHORT, *work[5:]]

    run(memory.add(calls("d")))

    assert shown(memory) == [work[0], SHORT, calls("d")]
    assert_paired(shown(memory))


def test_what_the_user_says_between_calls_stays_where_it_was() -> None:
    """Each stretch of work is compressed by itself."""
    memory = filled(
        [user("find it"), calls("a"), result("a"), user("hurry"), calls("b"), result("b"), answer("..."), calls("c")]
    )

    assert shown(memory) == [user("find it"), SHORT, user("hurry"), SHORT, calls("c")]


def test_a_call_is_not_parted_from_a_late_result() -> None:
    """A question that came between them keeps both."""
    memory = filled([*turn(1), user("more"), calls("a"), user("well?"), result("a"), answer("wait"), calls("b")])

    assert shown(memory) == [SHORT, user("more"), calls("a"), user("well?"), result("a"), SHORT, calls("b")]


def test_system_messages_do_not_keep_a_turn_open() -> None:
    """A hint before each question is no reason to keep all of them."""
    memory = filled([user("1"), answer("one"), SYSTEM, user("2"), answer("two"), SYSTEM, user("3")])

    assert shown(memory) == [SHORT, SYSTEM, user("3")]


def test_calls_of_the_old_form_stay_with_their_results() -> None:
    """function_call and a function's message have no ids; they go together all the same."""
    asked = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    told = {"role": "function", "name": "f", "content": "r"}
    memory = filled([user("1"), asked, told, answer("one"), user("2"), asked])

    assert shown(memory) == [SHORT, user("2"), asked]


def test_pinned_messages_stay_word_for_word() -> None:
    """A pin holds here as in prompts."""
    memory = filled(turns(2), compression_on_get=False)
    memory.memory.pin("r1.p3")
    memory.compression_on_get = True

    assert shown(memory) == [SHORT, turn(1)[3], SHORT]


def test_what_was_compressed_is_not_compressed_alone_again() -> None:
    """Reading twice asks once; with something new, the earlier text goes into the next."""
    asked: list[list[Message]] = []

    def compress(messages: list[Message]) -> list[Message]:
        asked.append(messages)
        return [SHORT]

    memory = filled(turns(1), compress_func=compress)
    assert shown(memory) == shown(memory) == [SHORT]
    run(memory.add(turn(2)))

    assert shown(memory) == [SHORT]
    assert asked == [turns(1), [SHORT, *turn(2)]]


def test_messages_that_are_handed_back_stay_what_they_were() -> None:
    """A compress_func that keeps the newest messages keeps their places in the log."""
    memory = filled(turns(2), compress_func=lambda messages: [SHORT, *messages[-4:]])

    assert shown(memory) == [SHORT, *turn(2)]
    assert memory.references(0) == ("r1",)
    assert memory.references(1) == ("r2.p0",)


def test_what_is_too_long_by_itself_is_told() -> None:
    """If nothing may be compressed, the messages are returned unchanged, with an event."""
    memory = filled([user("a long question")])
    events = heard(memory)

    assert shown(memory) == [user("a long question")]
    assert reasons(events) == ["over_limit"]


# -- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        [],
        "text",
        None,
        user(),
        [{"role": "wizard"}],
        ["text"],
        [calls("a")],
        [result("a")],
        [calls("a", "b"), result("a"), result("a")],
    ],
    ids=["nothing", "text", "none", "one", "no-role", "texts", "open-call", "orphan", "one-twice"],
)
def test_a_compress_func_that_gives_no_conversation_changes_nothing(made: Any) -> None:
    """The error names the remedy, an event tells of it, and the next reading tries again."""
    memory = filled(turns(2), compress_func=lambda _messages: made)
    events = heard(memory)

    with pytest.raises(CompressionFailed, match="compress_func"):
        shown(memory)

    assert reasons(events) == ["failed"]
    assert shown(memory, compress_func=lambda messages: messages) == turns(2)
    assert shown(memory, compress_func=shortened) == [SHORT]


CALLS = st.lists(st.sampled_from("ab"), min_size=1, max_size=2)
RESULTS = st.sampled_from("ab").map(result)
#: Calls, most with their results.
TURNS = st.tuples(CALLS, st.lists(RESULTS, max_size=1), st.booleans()).map(
    lambda turn: [calls(*turn[0]), *(map(result, turn[0]) if turn[2] else turn[1])]
)


@given(st.lists(TURNS | st.lists(RESULTS, max_size=1), min_size=1, max_size=4).map(lambda turns: [*chain(*turns)]))
def test_what_a_compress_func_hands_back_has_one_result_for_each_call(made: list[Message]) -> None:
    """Or it is refused: however often an id is used, called and answered."""
    memory = filled(turns(2), compress_func=lambda _messages: made)
    try:
        now = shown(memory)
    except CompressionFailed:
        assert len(memory.state_dict()["memory_storage"]) == 8
        return
    called = [call["id"] for message in now for call in message.get("tool_calls", ())]
    assert sorted(called) == sorted(message["tool_call_id"] for message in now if message["role"] == "tool")


def test_what_a_function_raises_reaches_the_caller() -> None:
    """Its own error, with everything as it was; the event names its class alone."""

    async def fails(_messages: list[Message]) -> list[Message]:
        raise LookupError("secret")

    memory = filled(turns(1), compress_func=fails)
    events = heard(memory)

    with pytest.raises(LookupError):
        shown(memory)

    [event] = events
    assert (event.facts()["error"], "secret" in str(event)) == ("LookupError", False)
    memory.compression_on_get = False
    assert shown(memory) == turns(1)


def test_a_failure_on_add_has_stored_the_messages() -> None:
    """Nothing that was said is lost with it."""
    memory = MemoryWithCompress(10, compress_func=lambda _messages: [], compression_on_add=True)

    with pytest.raises(CompressionFailed):
        run(memory.add(turns(1)))

    assert run(memory.size()) == 4


def test_a_conversation_too_short_to_gain_from_is_left_alone() -> None:
    """Offline, a summary that is no shorter is nobody's mistake; and it is not tried again before there is more."""
    memory = MemoryWithCompress(5)
    run(memory.add([user("hi"), answer("ok")]))
    events = heard(memory)

    assert shown(memory) == shown(memory) == [user("hi"), answer("ok")]
    assert reasons(events) == ["no_progress", "over_limit", "over_limit"]
