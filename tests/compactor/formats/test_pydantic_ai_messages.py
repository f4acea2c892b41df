"""pydantic-ai's messages as chat messages and back, by their attributes alone: pydantic-ai need not be installed."""

from __future__ import annotations

from types import SimpleNamespace as Said
from typing import Any

import pytest

from compactor.formats.pydantic_ai import from_chat, to_chat

LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"row": 1}'}}
CALL = Said(part_kind="tool-call", tool_call_id="c1", tool_name="look", args_as_json_str=lambda: '{"row": 1}')
PNG = Said(kind="binary", data_uri="data:image/png;base64,AA==")
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def make_result(outcome: str = "success", files: Any = ()) -> Any:
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
                content=["a", Said(kind="text-content", content="b"), Said(kind="cache-point"), PNG],
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
            make_result(files=[PNG]),
            {
                "role": "tool",
                "tool_call_id": "c1",
                "name": "look",
                "content": [{"type": "text", "text": "row False"}, PNG_PART],
            },
        ),
    ],
)
def test_each_part_of_a_request_is_a_message(part: Any, message: dict[str, Any]) -> None:
    assert to_chat([Said(kind="request", parts=[part])]) == [message]


def test_a_response_is_one_message() -> None:
    thought = Said(part_kind="thinking", content="Hm.")
    said = [Said(part_kind="text", content=text) for text in ("I ", "look.")]
    (message,) = to_chat([Said(kind="response", parts=[thought, *said, CALL])])
    assert message == {"role": "assistant", "content": "I look.", "tool_calls": [LOOK]}


def test_messages_of_one_side_in_a_row_are_written_as_one() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [LOOK]},
    ]
    call = {"part_kind": "tool-call", "tool_name": "look", "args": {"row": 1}, "tool_call_id": "c1"}
    assert from_chat(messages) == [
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
        (make_result(), "success"),
        (make_result("failed"), "failed"),
        (
            Said(part_kind="retry-prompt", tool_name="look", tool_call_id="c1", model_response=lambda: "row False"),
            "retried",
        ),
    ],
)
def test_a_result_is_written_with_its_outcome(part: Any, outcome: str) -> None:
    """Its text is not wrapped as an error: pydantic-ai does that again for providers that need it."""
    (written,) = from_chat(to_chat([Said(kind="request", parts=[part])]))
    result = {"part_kind": "tool-return", "tool_name": "look", "content": "row False", "tool_call_id": "c1"}
    assert written == {"kind": "request", "parts": [{**result, "outcome": outcome}]}
