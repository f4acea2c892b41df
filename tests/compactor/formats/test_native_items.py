"""Items that chat messages have no words for, growing histories, and published reductions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_histories import (
    MANY,
    PICTURE,
    PLENTY,
    anthropic_histories,
    come_back,
    gemini_histories,
    keep,
    responses_histories,
)
from provider_rules import check_anthropic, check_gemini, check_responses

from compactor import CompactionFailed, ContextCompactor, Memory, compact_rounds, compose, drop, formats, offload_large
from compactor.formats import anthropic, gemini, responses

Item = dict[str, Any]

#: Of servers' own tools, of media, of uploads.
RARE: dict[str, list[Item]] = {
    "anthropic": [
        {"role": "user", "content": "Search."},
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "Oslo"}},
                {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result"}]},
                {"type": "text", "text": "It rains.", "citations": [{"type": "page_location", "cited_text": "rain"}]},
                {"type": "text", "text": " A lot."},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "container_upload", "file_id": "file_1"}, {"type": "text", "text": "Read."}],
        },
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "c2VjcmV0"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "Go on."},
        {"role": "system", "content": "The user is in a hurry."},
    ],
    "responses": [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "input_file", "file_id": "file_1"}, {"type": "input_audio", "input_audio": {}}],
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "Oslo"}},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "A", "annotations": [{}]}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "B", "annotations": []}]},
        {"type": "custom_tool_call", "call_id": "c_1", "name": "sql", "input": "select 1", "id": "ctc_1"},
        {
            "type": "local_shell_call",
            "call_id": "c_2",
            "id": "sh_1",
            "action": {"command": ["ls"]},
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "c_1", "output": "1"},
        {"type": "local_shell_call_output", "id": "sh_1", "call_id": "c_2", "output": "{}"},
        {"type": "mcp_approval_request", "id": "mcp_1", "name": "mail", "arguments": "{}", "server_label": "x"},
        {"type": "mcp_approval_response", "approval_request_id": "mcp_1", "approve": True},
        {"type": "item_reference", "id": "msg_9"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2VjcmV0"},
        {"role": "user", "content": "Go on."},
    ],
    "gemini": [
        {
            "role": "user",
            "parts": [
                {"inline_data": {"mime_type": "audio/wav", "data": "UklGRg=="}},
                {"inline_data": {"mime_type": "video/mp4", "data": "AAAA"}, "video_metadata": {"fps": 1}},
                {"file_data": {"file_uri": "files/1", "mime_type": "application/pdf"}},
                {"file_data": {"file_uri": "https://example.org/a.png", "mime_type": "image/png"}},
                {"text": "Look."},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"executable_code": {"language": "PYTHON", "code": "print(1)"}},
                {"code_execution_result": {"outcome": "OUTCOME_OK", "output": "1"}},
                {"text": "", "thought_signature": "c2ln"},
                {"text": "One."},
                {"function_call": {"name": "look"}},
            ],
        },
        {"role": "function", "parts": [{"function_response": {"name": "look", "response": {"result": '{"a": 1}'}}}]},
        {"parts": [{"text": "Go on."}]},
    ],
    "chat": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "1"},
        {"role": "assistant", "content": "One."},
    ],
}


@pytest.mark.parametrize("name", formats.FORMATS)
def test_items_that_chat_messages_have_no_words_for_come_back(name: str) -> None:
    """Once, and again later in the same history."""
    again = json.loads(json.dumps(RARE[name]).replace('"c_', '"again_'))
    for items in (RARE[name], [*RARE[name], *again]):
        request = come_back(getattr(formats, name), formats.to_chat(items, name))
        assert json.dumps(list(request.values())[-1]) == json.dumps(items)


def test_a_tool_of_the_providers_own_reads_as_a_function_once_its_result_is_shortened() -> None:
    """It takes no text in the place of its result."""
    screen = {"type": "computer_screenshot", "image_url": "data:image/png;base64," + PICTURE * 200}
    call = {
        "type": "computer_call",
        "call_id": "c_1",
        "id": "cu_1",
        "action": {"type": "screenshot"},
        "status": "completed",
    }
    items = [
        {"role": "user", "content": "Look."},
        call,
        {"type": "computer_call_output", "call_id": "c_1", "output": screen},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "And now?"},
    ]
    messages = responses.to_chat(items)
    assert come_back(responses, messages)["input"] == items

    short = responses.from_chat(compose(keep(messages), budget=600).messages)
    check_responses(short)
    assert [item.get("name") for item in short["input"]] == [None, "computer", None, None, None]
    assert "reload r1.p2" in short["input"][2]["output"]


def is_users_turn(item: Item) -> bool:
    """Return whether a host asks the model after *item*."""
    return item.get("role") == "user" or str(item.get("type")).endswith("_output")


@pytest.mark.parametrize(
    ("histories", "name"),
    [
        pytest.param(anthropic_histories(), "anthropic", id="anthropic", marks=pytest.mark.slow),
        pytest.param(responses_histories(), "responses", id="responses", marks=pytest.mark.slow),
        pytest.param(gemini_histories(), "gemini", id="gemini"),
    ],
)
def test_a_growing_history_is_synchronized(histories: st.SearchStrategy[tuple[list[Item], Any]], name: str) -> None:
    """Before each call of the model, the host gives all of it: nothing is written twice, nothing is undone."""

    @settings(MANY, max_examples=8)
    @given(histories)
    def run(history: tuple[list[Item], Any]) -> None:
        memory, items = Memory(), history[0]
        for end in [place for place, item in enumerate(items, 1) if is_users_turn(item)]:
            done = memory.sync(formats.to_chat(items[:end], name))
            assert done.undone == done.dropped == 0
            request = formats.from_chat(compose(memory, budget=PLENTY).messages, name)
            assert json.dumps(next(iter(request.values()))) == json.dumps(items[:end])

    run()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("histories", "module", "check"),
    [
        (anthropic_histories(), anthropic, check_anthropic),
        (responses_histories(), responses, check_responses),
        (gemini_histories(), gemini, check_gemini),
    ],
    ids=["anthropic", "responses", "gemini"],
)
def test_published_reductions_are_valid_for_the_provider(
    histories: st.SearchStrategy[tuple[list[Item], Any]], module: Any, check: Callable[[Mapping[str, Any]], None]
) -> None:
    """Strategies offload results and arguments, drop what failed, and summarize; words may be erased."""
    strategies = [offload_large(threshold=60, preview=20), drop("tool_result", 3), compact_rounds]

    @settings(MANY, max_examples=8)
    @given(histories, st.integers(1, 3), st.booleans())
    def run(history: tuple[list[Item], Any], number: int, erases: bool) -> None:
        memory = keep(module.to_chat(history[0]))
        if erases:
            memory.redact(f"r{min(number, len(memory.get_role_rounds('assistant')[0]))}.p0")
        with (
            ContextCompactor.for_role(memory, "assistant", strategies=strategies) as compactor,
            suppress(CompactionFailed),
        ):
            compactor.compact_now()
        check(module.from_chat(compose(memory, budget=PLENTY).messages))

    run()


def join(items: list[Item], key: str) -> list[Any]:
    """Return the blocks of *items* by role, neighbours of one role together: as providers read them."""
    joined: list[Any] = []
    for item in items:
        given = item[key]
        blocks = [{"type": "text", "text": given}] if isinstance(given, str) else given
        if joined and joined[-1][0] == item["role"]:
            joined[-1][1].extend(blocks)
        else:
            joined.append((item["role"], list(blocks)))
    return joined


@pytest.mark.slow
@pytest.mark.parametrize(
    ("histories", "module", "key"),
    [(anthropic_histories(), anthropic, "content"), (gemini_histories(), gemini, "parts")],
    ids=["anthropic", "gemini"],
)
def test_a_history_may_be_converted_item_by_item(
    histories: st.SearchStrategy[tuple[list[Item], Any]], module: Any, key: str
) -> None:
    """Calls find their results; neighbours of one role may come back as one item, which providers read the same."""

    @settings(MANY, max_examples=10)
    @given(histories)
    def run(history: tuple[list[Item], Any]) -> None:
        items = history[0]
        request = come_back(module, [message for item in items for message in module.to_chat([item])])
        assert join(list(request.values())[-1], key) == join(items, key)

    run()


def test_a_mark_for_the_cache_that_moves_on_is_not_left_behind_too_often() -> None:
    """A host marks its newest message alone; the log has each as it was when it was written."""
    memory, history = Memory(), list[Item]()
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    for number in range(8):
        asked = {"type": "text", "text": f"Question {number}?"}
        marked = {"role": "user", "content": [asked | {"cache_control": {"type": "ephemeral"}}]}
        memory.sync(anthropic.to_chat([*history, marked], system=system))
        request = anthropic.from_chat(compose(memory, budget=PLENTY).messages)
        check_anthropic(request)
        assert request["messages"][-1] == marked
        assert request["system"] == system
        history += [{"role": "user", "content": [asked]}, {"role": "assistant", "content": f"Answer {number}."}]
    prompt = compose(memory, budget=PLENTY).messages
    for most in (0, 1, 3):
        assert json.dumps(anthropic.from_chat(prompt, max_cache_breakpoints=most)).count("cache_control") == most


def test_blank_texts_are_left_out_for_anthropic() -> None:
    """It refuses them, though its models say a line break before a call."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": " "}
    history = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "text", "text": "\n"}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": ""}]},
        {"role": "assistant", "content": " "},
        {"role": "user", "content": "And now?"},
    ]
    request = come_back(anthropic, anthropic.to_chat(history))
    check_anthropic(request)
    assert request["messages"] == [
        history[0],
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
