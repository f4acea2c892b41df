"""Agent Framework's messages as chat messages and back, by their attributes alone: it need not be installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compactor.formats.agent_framework import from_chat, to_chat

LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"row": 1}'}}


def make_content(type: str, **given: Any) -> Any:  # noqa: A002
    """A content with the attributes that the framework's have."""
    names = ("text", "uri", "media_type", "call_id", "name", "arguments", "result", "items", "exception")
    return SimpleNamespace(type=type, **{**dict.fromkeys(names), **given})


def make_message(role: str, *contents: Any) -> Any:
    return SimpleNamespace(role=role, contents=contents)


CALL = make_content("function_call", call_id="c1", name="look", arguments={"row": 1})
TEXT = make_content("text", text="I look.")
PNG = make_content("data", uri="data:image/png;base64,AA==", media_type="image/png")
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("item", "messages"),
    [
        (make_message("system", TEXT), [{"role": "system", "content": "I look."}]),
        (make_message("user"), [{"role": "user", "content": ""}]),
        (make_message("user", make_content("text")), [{"role": "user", "content": ""}]),
        (make_message("user", PNG), [{"role": "user", "content": [PNG_PART]}]),
        (
            make_message("user", make_content("uri", uri="https://example.org/a.pdf")),
            [{"role": "user", "content": [{"type": "file", "file": {"file_id": "https://example.org/a.pdf"}}]}],
        ),
        (
            make_message("assistant", make_content("text_reasoning", text="Hm."), TEXT, CALL),
            [{"role": "assistant", "content": "I look.", "tool_calls": [LOOK]}],
        ),
        (
            make_message("tool", make_content("function_result", call_id="c1", items=[TEXT, PNG])),
            [{"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "I look."}, PNG_PART]}],
        ),
        (
            make_message("user", make_content("function_result", call_id="c1", result=7), TEXT),
            [{"role": "tool", "tool_call_id": "c1", "content": "7"}, {"role": "user", "content": "I look."}],
        ),
    ],
)
def test_a_message_is_read_by_what_it_says(item: Any, messages: list[Any]) -> None:
    assert to_chat([item]) == messages


def test_messages_are_written_with_their_calls() -> None:
    asked, called = from_chat(to_chat([make_message("user", TEXT), make_message("assistant", CALL)]))
    assert asked == {"role": "user", "contents": [{"type": "text", "text": "I look."}]}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": {"row": 1}}
    assert called == {"role": "assistant", "contents": [call]}


@pytest.mark.parametrize("exception", [None, "ValueError: no row"])
def test_a_result_is_written_with_its_failure(exception: str | None) -> None:
    """That the call failed, and not the exception's words, which are the host's own."""
    result = make_content("function_result", call_id="c1", result="no row", exception=exception)
    (written,) = from_chat(to_chat([make_message("tool", result)]))
    (content,) = written["contents"]
    assert (content["type"], content["call_id"], content["result"]) == ("function_result", "c1", "no row")
    assert content["items"] == [{"type": "text", "text": "no row"}]
    assert content["exception"] == (exception and "error")
