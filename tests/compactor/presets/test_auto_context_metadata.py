"""AutoContextMemory's metadata of changed messages, and an agent's own reloading."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chats import answer, calls, result, user
from small_auto_context import ROLE, long_text, memory_of, past, small, tool_run, worked

from compactor.presets import AutoContextMemory, CompressionEvent, PromptConfig, Prompts, auto_context
from memory import Memory, open_store
from prompts import load

KEPT = [user("Monday: rain."), {"role": "assistant", "content": "Tuesday: sun."}]


def worked_context() -> AutoContextMemory:
    messages = [
        *past(question="First?"),
        *past(*tool_run(1, 6)),
        *past(calls("big"), result("big", long_text("big", 3_000))),
        user("And now?"),
    ]
    return worked(small(memory_of(*messages), msg_threshold=2, max_token=1_000))


def test_messages_say_what_reloads_them_and_what_that_took() -> None:
    """Under the class's own names, and only on request: providers refuse unknown keys."""
    context = worked_context()
    plain, told = context.get_messages(), context.get_messages(metadata=True)

    assert [{key: value for key, value in message.items() if key != "metadata"} for message in told] == plain
    found = [message["metadata"]["_compress_meta"]["offloaduuid"] for message in told if "metadata" in message]
    assert found == ["r1-r2", "r3.p2"]
    assert told[0]["metadata"]["_chat_usage"] == {
        "inputTokens": 90,
        "outputTokens": 9,
        "time": context.compression_events[-1].time,
    }
    assert [context.references(index) for index in range(len(plain))] == [
        (message["metadata"]["_compress_meta"]["offloaduuid"],) if "metadata" in message else () for message in told
    ]
    assert all(context.reload(ref) for ref in found)
    with pytest.raises(IndexError, match="there is no message at 99"):
        context.references(99)


def test_the_time_is_that_of_the_compaction_that_is_shown() -> None:
    """Also of a later one, although its event names only the newly covered rounds; and after a revert."""
    memory = memory_of(*(message for number in range(4) for message in past(reply=long_text(f"n{number}", 190))))
    context = worked(small(memory, msg_threshold=2))
    for message in [*past(reply=long_text("n4", 190)), user("And now?")]:
        memory.append(message)
    first, second = worked(context).compression_events

    assert (first.ref, second.ref) == ("r1-r2", "r3-r4")
    assert 0 < first.time != second.time > 0
    told, *_ = context.get_messages(metadata=True)
    assert told["metadata"]["_compress_meta"] == {"offloaduuid": "r1-r4"}
    assert told["metadata"]["_chat_usage"]["time"] == second.time
    assert context.compactor.revert() is not None
    told, *_ = context.get_messages(metadata=True)
    assert told["metadata"]["_chat_usage"]["time"] == first.time


def test_events_name_what_is_newly_covered_whoever_covered_the_rest() -> None:
    """Two processes work on one session: the second one's event begins where the first one's ended."""
    store = open_store("memory://")

    def process() -> AutoContextMemory:
        return small(Memory("s", store=store), msg_threshold=2)

    one, other = process(), process()
    for number in range(4):
        for message in past(reply=long_text(f"n{number}", 190)):
            one.memory.append(message)
    (first,) = worked(one).compression_events
    other.memory.refresh()
    for message in [*past(reply=long_text("n4", 190)), user("And now?")]:
        other.memory.append(message)
    (second,) = worked(other).compression_events

    assert (first.ref, first.compressed_message_count, first.previous_message_id) == ("r1-r2", 4, None)
    assert (second.ref, second.compressed_message_count) == ("r3-r4", 4)
    assert second.previous_message_id == one.memory.conversation.rounds[1].post_list[0].id


def test_events_have_the_numbers_by_their_names() -> None:
    """``metadata``, and the id of the shortened message."""
    event = worked_context().compression_events[-1]

    assert isinstance(event, CompressionEvent)
    assert event.metadata["tokenBefore"] - event.metadata["tokenAfter"] == event.token_reduction > 0
    assert set(event.metadata) == {"inputToken", "outputToken", "time", "tokenBefore", "tokenAfter"}
    assert event.compressed_message_id == event.ref


def test_an_agent_reloads_what_a_host_offloaded() -> None:
    """By its id, under either name, in pages; and places in the log as with the recall tools."""
    context = worked_context()
    context.offload("forecast", KEPT)

    assert [tool["function"]["name"] for tool in context.tools()] == ["context_reload", "read_rounds", "search_history"]
    for arguments in ({"ref": "forecast"}, '{"working_context_offload_uuid": "forecast"}'):
        answer = context.call("context_reload", arguments)
        assert answer.startswith("[forecast, characters 0 to ")
        assert "Monday: rain." in answer
        assert "Tuesday: sun." in answer
    assert "Tuesday" not in context.call("context_reload", {"ref": "forecast", "limit": 20})
    assert "offset" in context.call("context_reload", {"ref": "forecast", "pattern": "sun"})
    assert "big0 big1" in context.call("context_reload", {"ref": "r3.p2"})
    assert context.call("read_rounds", {"start": 1}).startswith("[r1, ")
    for wrong in ({"ref": "nothing"}, "{", None, [1], json.dumps([1]), {"ref": 7}):
        assert context.call("context_reload", wrong).startswith("Error:")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kept",
    [[user("Rain.")], [answer("Rain.")], [{"role": "system", "content": "Rain."}], [user("Rain."), user("Sun.")]],
)
def test_what_a_host_offloaded_is_told_as_it_was_said(kept: list[dict[str, Any]]) -> None:
    """The agent reloads all messages, whoever spoke first, and no others."""
    context = AutoContextMemory(Memory(), ROLE)
    context.offload("forecast", kept)
    told = context.call("context_reload", {"ref": "forecast"})
    assert all(message["content"] in told for message in kept)
    assert "[Round 1]\n\n" not in told


def test_another_roles_offloads_are_its_own() -> None:
    """An id that nobody kept here is nothing."""
    context = AutoContextMemory(Memory(), ROLE)
    assert context.call("context_reload", {"ref": "forecast"}).startswith("Error:")


def test_the_prompts_of_the_steps_have_names() -> None:
    """Each names a shipped prompt, and the steps ask with these prompts."""
    fields = ("tool_compress", "summary", "large_message", "compress")
    for name, field in zip([name for name in vars(Prompts) if name.endswith("_PROMPT")], fields, strict=True):
        assert "{content}" in load(getattr(Prompts, name)).content, field
    own = PromptConfig(previous_round_tool_compress_prompt=Prompts.PREVIOUS_ROUND_TOOL_INVOCATION_COMPRESS_PROMPT)
    assert auto_context(custom_prompt=own)["strategies"]
