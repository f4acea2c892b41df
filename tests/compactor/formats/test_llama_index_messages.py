"""LlamaIndex's messages as chat messages and back, by their attributes alone: LlamaIndex need not be installed."""

from __future__ import annotations

from io import BytesIO
from types import SimpleNamespace as Said
from typing import Any

import pytest

from compactor.formats.llama_index import from_chat, to_chat

LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"row": 1}'}}
CALL = Said(block_type="tool_call", tool_call_id="c1", tool_name="look", tool_kwargs={"row": 1})
TEXT = Said(block_type="text")
PNG = Said(block_type="image", resolve_image=lambda *, as_base64: BytesIO(b"AA==" if as_base64 else b"\0"))
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def make_message(role: str, content: str | None, *blocks: Any, **told: Any) -> Any:
    """A message with the attributes that LlamaIndex's have; *content* is the text of its blocks."""
    return Said(role=Said(value=role), content=content, blocks=blocks, additional_kwargs=told)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (make_message("user", "What?", TEXT), {"role": "user", "content": "What?"}),
        (make_message("user", None), {"role": "user", "content": ""}),
        (
            make_message("user", "Look:", TEXT, PNG),
            {"role": "user", "content": [{"type": "text", "text": "Look:"}, PNG_PART]},
        ),
        (make_message("assistant", "Yes.", TEXT), {"role": "assistant", "content": "Yes."}),
        (make_message("assistant", None, CALL), {"role": "assistant", "content": "", "tool_calls": [LOOK]}),
        (
            make_message("assistant", None, tool_calls=[LOOK]),  # as models had them before there were blocks
            {"role": "assistant", "content": "", "tool_calls": [LOOK]},
        ),
        (
            make_message("tool", "row 1", TEXT, tool_call_id="c1"),
            {"role": "tool", "tool_call_id": "c1", "content": "row 1"},
        ),
    ],
)
def test_a_message_is_read_by_what_it_says(item: Any, message: dict[str, Any]) -> None:
    assert to_chat([item]) == [message]


def test_messages_are_written_with_their_calls_and_whom_they_answer() -> None:
    called, result = from_chat(
        to_chat([make_message("assistant", "I look.", TEXT, CALL), make_message("tool", "row 1", tool_call_id="c1")])
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
