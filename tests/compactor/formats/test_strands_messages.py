"""Strands' messages as chat messages and back. They are mappings: Strands need not be installed."""

from __future__ import annotations

from typing import Any

import pytest

from compactor.formats.strands import from_chat, to_chat

CALL = {"toolUse": {"toolUseId": "c1", "name": "look", "input": {"row": 1}}}
LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"row": 1}'}}
HISTORY: list[Any] = [
    {"role": "user", "content": [{"text": "What is in row 1?"}]},
    {"role": "assistant", "content": [{"text": "I look."}, CALL]},
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


def test_messages_come_back_as_they_were() -> None:
    """Whether a tool failed, too."""
    assert from_chat(to_chat(HISTORY)) == HISTORY


def test_each_result_is_a_message_of_its_own() -> None:
    messages = to_chat(HISTORY)
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
def test_a_message_is_read_by_what_it_says(blocks: list[Any], content: Any) -> None:
    assert to_chat([{"role": "user", "content": blocks}]) == [{"role": "user", "content": content}]
