"""AutoGen's messages as chat messages and back, by their attributes alone: AutoGen need not be installed."""

from __future__ import annotations

from types import SimpleNamespace as Said
from typing import Any

import pytest

from compactor.formats.autogen import from_chat, to_chat

LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"row": 1}'}}
CALL = Said(id="c1", name="look", arguments='{"row": 1}')
PNG = Said(data_uri="data:image/png;base64,AA==")
RESULTS = [
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
            Said(type="UserMessage", content=["Look:", PNG], source="boss"),
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
            Said(type="AssistantMessage", content=[CALL], thought="I look.", source="helper"),
            {"role": "assistant", "content": "I look.", "tool_calls": [LOOK], "name": "helper"},
        ),
        (
            Said(type="FunctionExecutionResultMessage", content=RESULTS[1:]),
            {"role": "tool", "tool_call_id": "c2", "name": "look", "content": "row 2"},
        ),
    ],
)
def test_a_message_is_read_by_what_it_says(item: Any, message: dict[str, Any]) -> None:
    assert to_chat([item]) == [message]


def test_results_in_a_row_are_written_as_one_message_with_their_failures() -> None:
    items = [
        Said(type="AssistantMessage", content=[CALL], thought=None, source="helper"),
        Said(type="FunctionExecutionResultMessage", content=RESULTS),
    ]
    called, results = from_chat(to_chat(items))
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
def test_each_role_is_written_as_its_type(message: dict[str, Any], item: dict[str, Any]) -> None:
    assert from_chat([message]) == [item]
