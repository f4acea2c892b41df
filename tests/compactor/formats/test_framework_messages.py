"""Frameworks' messages as chat messages and back, by their attributes alone: no framework need be installed."""

from __future__ import annotations

from io import BytesIO
from types import SimpleNamespace as Said
from typing import Any

import pytest

from compactor.formats import agent_framework, autogen, llama_index, pydantic_ai, strands

LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"row": 1}'}}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


# -- Agent Framework -------------------------------------------------------------------------------------------------


def make_af_content(type: str, **given: Any) -> Any:  # noqa: A002
    """A content with the attributes that the framework's have."""
    names = ("text", "uri", "media_type", "call_id", "name", "arguments", "result", "items", "exception")
    return Said(type=type, **{**dict.fromkeys(names), **given})


def make_af_message(role: str, *contents: Any) -> Any:
    return Said(role=role, contents=contents)


AF_CALL = make_af_content("function_call", call_id="c1", name="look", arguments={"row": 1})
AF_TEXT = make_af_content("text", text="I look.")
AF_PNG = make_af_content("data", uri="data:image/png;base64,AA==", media_type="image/png")


@pytest.mark.parametrize(
    ("item", "messages"),
    [
        (make_af_message("system", AF_TEXT), [{"role": "system", "content": "I look."}]),
        (make_af_message("user"), [{"role": "user", "content": ""}]),
        (make_af_message("user", make_af_content("text")), [{"role": "user", "content": ""}]),
        (make_af_message("user", AF_PNG), [{"role": "user", "content": [PNG_PART]}]),
        (
            make_af_message("user", make_af_content("uri", uri="https://example.org/a.pdf")),
            [{"role": "user", "content": [{"type": "file", "file": {"file_id": "https://example.org/a.pdf"}}]}],
        ),
        (
            make_af_message("assistant", make_af_content("text_reasoning", text="Hm."), AF_TEXT, AF_CALL),
            [{"role": "assistant", "content": "I look.", "tool_calls": [LOOK]}],
        ),
        (
            make_af_message("tool", make_af_content("function_result", call_id="c1", items=[AF_TEXT, AF_PNG])),
            [{"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "I look."}, PNG_PART]}],
        ),
        (
            make_af_message("user", make_af_content("function_result", call_id="c1", result=7), AF_TEXT),
            [{"role": "tool", "tool_call_id": "c1", "content": "7"}, {"role": "user", "content": "I look."}],
        ),
    ],
)
def test_a_message_of_agent_framework_is_read_by_what_it_says(item: Any, messages: list[Any]) -> None:
    assert agent_framework.to_chat([item]) == messages


def test_messages_of_agent_framework_are_written_with_their_calls() -> None:
    asked, called = agent_framework.from_chat(
        agent_framework.to_chat([make_af_message("user", AF_TEXT), make_af_message("assistant", AF_CALL)])
    )
    assert asked == {"role": "user", "contents": [{"type": "text", "text": "I look."}]}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": {"row": 1}}
    assert called == {"role": "assistant", "contents": [call]}


@pytest.mark.parametrize("exception", [None, "ValueError: no row"])
def test_a_result_of_agent_framework_is_written_with_its_failure(exception: str | None) -> None:
    """That the call failed, and not the exception's words, which are the host's own."""
    result = make_af_content("function_result", call_id="c1", result="no row", exception=exception)
    (written,) = agent_framework.from_chat(agent_framework.to_chat([make_af_message("tool", result)]))
    (content,) = written["contents"]
    assert (content["type"], content["call_id"], content["result"]) == ("function_result", "c1", "no row")
    assert content["items"] == [{"type": "text", "text": "no row"}]
    assert content["exception"] == (exception and "error")


# -- AutoGen ---------------------------------------------------------------------------------------------------------

AUTOGEN_CALL = Said(id="c1", name="look", arguments='{"row": 1}')
AUTOGEN_PNG = Said(data_uri="data:image/png;base64,AA==")
AUTOGEN_RESULTS = [
    Said(content="no row", name="look", call_id="c1", is_error=True),
    Said(content="row 2", name="look", call_id="c2", is_error=False),
]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Said(type="SystemMessage", content="Be brief."), {"role": "system", "content": "Be brief."}),
        (
            Said(type="UserMessage", content="What?", source="boss"),
            {"role": "user", "content": "What?", "name": "boss"},
        ),
        (
            Said(type="UserMessage", content=["Look:", AUTOGEN_PNG], source="boss"),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                ],
                "name": "boss",
            },
        ),
        (
            Said(type="AssistantMessage", content="Yes.", thought="Hm.", source="helper"),
            {"role": "assistant", "content": "Yes.", "name": "helper"},
        ),
        (
            Said(type="AssistantMessage", content=[AUTOGEN_CALL], thought="I look.", source="helper"),
            {"role": "assistant", "content": "I look.", "tool_calls": [LOOK], "name": "helper"},
        ),
        (
            Said(type="FunctionExecutionResultMessage", content=AUTOGEN_RESULTS[1:]),
            {"role": "tool", "tool_call_id": "c2", "name": "look", "content": "row 2"},
        ),
    ],
)
def test_a_message_of_autogen_is_read_by_what_it_says(item: Any, message: dict[str, Any]) -> None:
    assert autogen.to_chat([item]) == [message]


def test_results_of_autogen_in_a_row_are_written_as_one_message_with_their_failures() -> None:
    items = [
        Said(type="AssistantMessage", content=[AUTOGEN_CALL], thought=None, source="helper"),
        Said(type="FunctionExecutionResultMessage", content=AUTOGEN_RESULTS),
    ]
    called, results = autogen.from_chat(autogen.to_chat(items))
    call = {"id": "c1", "name": "look", "arguments": '{"row": 1}'}
    assert called == {"type": "AssistantMessage", "content": [call], "thought": None, "source": "helper"}
    assert results == {
        "type": "FunctionExecutionResultMessage",
        "content": [
            {"content": "no row", "name": "look", "call_id": "c1", "is_error": True},
            {"content": "row 2", "name": "look", "call_id": "c2", "is_error": None},
        ],
    }


@pytest.mark.parametrize(
    ("message", "item"),
    [
        ({"role": "system", "content": "x"}, {"type": "SystemMessage", "content": "x"}),
        ({"role": "user", "content": "x"}, {"type": "UserMessage", "content": "x", "source": "user"}),
        (
            {"role": "assistant", "content": "x", "name": "helper"},
            {"type": "AssistantMessage", "content": "x", "source": "helper"},
        ),
    ],
)
def test_each_role_is_written_as_its_type_of_autogen(message: dict[str, Any], item: dict[str, Any]) -> None:
    assert autogen.from_chat([message]) == [item]


# -- LlamaIndex ------------------------------------------------------------------------------------------------------

LLAMA_CALL = Said(block_type="tool_call", tool_call_id="c1", tool_name="look", tool_kwargs={"row": 1})
LLAMA_TEXT = Said(block_type="text")
LLAMA_PNG = Said(block_type="image", resolve_image=lambda *, as_base64: BytesIO(b"AA==" if as_base64 else b"\0"))


def make_llama_message(role: str, content: str | None, *blocks: Any, **told: Any) -> Any:
    """A message with the attributes that LlamaIndex's have; *content* is the text of its blocks."""
    return Said(role=Said(value=role), content=content, blocks=blocks, additional_kwargs=told)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (make_llama_message("user", "What?", LLAMA_TEXT), {"role": "user", "content": "What?"}),
        (make_llama_message("user", None), {"role": "user", "content": ""}),
        (
            make_llama_message("user", "Look:", LLAMA_TEXT, LLAMA_PNG),
            {"role": "user", "content": [{"type": "text", "text": "Look:"}, PNG_PART]},
        ),
        (make_llama_message("assistant", "Yes.", LLAMA_TEXT), {"role": "assistant", "content": "Yes."}),
        (make_llama_message("assistant", None, LLAMA_CALL), {"role": "assistant", "content": "", "tool_calls": [LOOK]}),
        (
            make_llama_message("assistant", None, tool_calls=[LOOK]),  # as models had them before there were blocks
            {"role": "assistant", "content": "", "tool_calls": [LOOK]},
        ),
        (
            make_llama_message("tool", "row 1", LLAMA_TEXT, tool_call_id="c1"),
            {"role": "tool", "tool_call_id": "c1", "content": "row 1"},
        ),
    ],
)
def test_a_message_of_llama_index_is_read_by_what_it_says(item: Any, message: dict[str, Any]) -> None:
    assert llama_index.to_chat([item]) == [message]


def test_messages_of_llama_index_are_written_with_their_calls_and_whom_they_answer() -> None:
    called, result = llama_index.from_chat(
        llama_index.to_chat(
            [
                make_llama_message("assistant", "I look.", LLAMA_TEXT, LLAMA_CALL),
                make_llama_message("tool", "row 1", tool_call_id="c1"),
            ]
        )
    )
    call = {"block_type": "tool_call", "tool_call_id": "c1", "tool_name": "look", "tool_kwargs": {"row": 1}}
    assert called == {
        "role": "assistant",
        "blocks": [{"block_type": "text", "text": "I look."}, call],
        "additional_kwargs": {},
    }
    assert result == {
        "role": "tool",
        "blocks": [{"block_type": "text", "text": "row 1"}],
        "additional_kwargs": {"tool_call_id": "c1"},
    }


# -- pydantic-ai -----------------------------------------------------------------------------------------------------

PYDANTIC_CALL = Said(part_kind="tool-call", tool_call_id="c1", tool_name="look", args_as_json_str=lambda: '{"row": 1}')
PYDANTIC_PNG = Said(kind="binary", data_uri="data:image/png;base64,AA==")


def make_pydantic_result(outcome: str = "success", files: Any = ()) -> Any:
    named = {"part_kind": "tool-return", "tool_call_id": "c1", "tool_name": "look"}
    return Said(
        **named, outcome=outcome, files=files, model_response_str=lambda *, wrap_if_error: f"row {wrap_if_error}"
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Said(part_kind="system-prompt", content="Be brief."), {"role": "system", "content": "Be brief."}),
        (Said(part_kind="user-prompt", content="What?"), {"role": "user", "content": "What?"}),
        (Said(part_kind="of a later version"), {"role": "user", "content": ""}),
        (
            Said(part_kind="retry-feedback", model_response=lambda: "Try again."),
            {"role": "user", "content": "Try again."},
        ),
        (
            Said(
                part_kind="user-prompt",
                content=["a", Said(kind="text-content", content="b"), Said(kind="cache-point"), PYDANTIC_PNG],
            ),
            {"role": "user", "content": [{"type": "text", "text": text} for text in "ab"] + [PNG_PART]},
        ),
        (
            Said(part_kind="user-prompt", content=[Said(kind="image-url", url="https://example.org/a")]),
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a"}}]},
        ),
        (
            Said(part_kind="user-prompt", content=[Said(kind="document-url", url="https://example.org/a")]),
            {"role": "user", "content": [{"type": "file", "file": {"file_id": "https://example.org/a"}}]},
        ),
        (
            make_pydantic_result(files=[PYDANTIC_PNG]),
            {
                "role": "tool",
                "tool_call_id": "c1",
                "name": "look",
                "content": [{"type": "text", "text": "row False"}, PNG_PART],
            },
        ),
    ],
)
def test_each_part_of_a_request_of_pydantic_ai_is_a_message(part: Any, message: dict[str, Any]) -> None:
    assert pydantic_ai.to_chat([Said(kind="request", parts=[part])]) == [message]


def test_a_response_of_pydantic_ai_is_one_message() -> None:
    thought = Said(part_kind="thinking", content="Hm.")
    said = [Said(part_kind="text", content=text) for text in ("I ", "look.")]
    (message,) = pydantic_ai.to_chat([Said(kind="response", parts=[thought, *said, PYDANTIC_CALL])])
    assert message == {"role": "assistant", "content": "I look.", "tool_calls": [LOOK]}


def test_messages_of_one_side_of_pydantic_ai_in_a_row_are_written_as_one() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [LOOK]},
    ]
    call = {"part_kind": "tool-call", "tool_name": "look", "args": {"row": 1}, "tool_call_id": "c1"}
    assert pydantic_ai.from_chat(messages) == [
        {
            "kind": "request",
            "parts": [
                {"part_kind": "system-prompt", "content": "Be brief."},
                {"part_kind": "user-prompt", "content": "What?"},
            ],
        },
        {"kind": "response", "parts": [{"part_kind": "text", "content": "I look."}, call]},
    ]


@pytest.mark.parametrize(
    ("part", "outcome"),
    [
        (make_pydantic_result(), "success"),
        (make_pydantic_result("failed"), "failed"),
        (
            Said(part_kind="retry-prompt", tool_name="look", tool_call_id="c1", model_response=lambda: "row False"),
            "retried",
        ),
    ],
)
def test_a_result_of_pydantic_ai_is_written_with_its_outcome(part: Any, outcome: str) -> None:
    """Its text is not wrapped as an error: pydantic-ai does that again for providers that need it."""
    (written,) = pydantic_ai.from_chat(pydantic_ai.to_chat([Said(kind="request", parts=[part])]))
    result = {"part_kind": "tool-return", "tool_name": "look", "content": "row False", "tool_call_id": "c1"}
    assert written == {"kind": "request", "parts": [{**result, "outcome": outcome}]}


# -- Strands ---------------------------------------------------------------------------------------------------------

STRANDS_CALL = {"toolUse": {"toolUseId": "c1", "name": "look", "input": {"row": 1}}}
STRANDS_HISTORY: list[Any] = [
    {"role": "user", "content": [{"text": "What is in row 1?"}]},
    {"role": "assistant", "content": [{"text": "I look."}, STRANDS_CALL]},
    {
        "role": "user",
        "content": [
            {"toolResult": {"toolUseId": "c1", "status": "error", "content": [{"text": "no row"}]}},
            {"toolResult": {"toolUseId": "c2", "status": "success", "content": [{"text": "row 2"}]}},
            {"text": "And now?"},
        ],
    },
    {"role": "assistant", "content": [{"text": "Nothing."}]},
]


def test_messages_of_strands_come_back_as_they_were() -> None:
    """Whether a tool failed, too."""
    assert strands.from_chat(strands.to_chat(STRANDS_HISTORY)) == STRANDS_HISTORY


def test_each_result_of_strands_is_a_message_of_its_own() -> None:
    messages = strands.to_chat(STRANDS_HISTORY)
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert messages[1] == {"role": "assistant", "content": "I look.", "tool_calls": [LOOK]}
    assert (messages[3]["tool_call_id"], messages[3]["content"]) == ("c2", "row 2")


@pytest.mark.parametrize(
    ("blocks", "content"),
    [
        ([], ""),
        ([{"json": {"row": 1}}], '{"row": 1}'),
        (
            [{"text": "Look:"}, {"image": {"format": "png", "source": {"bytes": b"\0"}}}],
            [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        ),
    ],
)
def test_a_message_of_strands_is_read_by_what_it_says(blocks: list[Any], content: Any) -> None:
    assert strands.to_chat([{"role": "user", "content": blocks}]) == [{"role": "user", "content": content}]
