"""Microsoft Agent Framework's messages, read by their attributes: nothing of the framework is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .native import Block, Message, add_native, read_messages, read_native
from .parts import make_answer, make_content, make_file, make_text, read_calls, read_text

NAME = "agent_framework"


def to_chat(items: Iterable[Any]) -> list[Message]:
    """Return *items* as chat messages. Each result becomes a message of its own."""
    return [message for item in items for message in _read_item(item)]


def from_chat(messages: Iterable[Mapping[str, Any]]) -> list[Block]:
    """Return a prompt's *messages* for the framework's ``Message.from_dict``."""
    return [{"role": one["role"], "contents": _write_contents(one)} for one in read_messages(messages, NAME)]


def _read_item(item: Any) -> list[Message]:
    said = make_content(map(_read_content, item.contents))
    if item.role == "assistant":
        calls = [one for one in item.contents if one.type == "function_call"]
        return [make_answer(said, [(one.call_id or "", one.name or "", one.arguments or {}) for one in calls])]
    results = [_read_result(one) for one in item.contents if one.type == "function_result"]
    return [*results, {"role": item.role, "content": said}] if said or not results else results


def _read_content(content: Any) -> str | Block:
    if content.type in ("data", "uri"):
        return make_file(content.uri or "", is_image=(content.media_type or "").startswith("image/"))
    return (content.text or "") if content.type == "text" else ""


def _read_result(content: Any) -> Message:
    items = content.items or ()
    said = make_content(map(_read_content, items)) if items else str(content.result or content.exception or "")
    message = {"role": "tool", "tool_call_id": content.call_id, "content": said}
    return add_native(message, NAME, status="error" if content.exception is not None else None)


def _write_contents(message: Mapping[str, Any]) -> list[Block]:
    text = read_text(message)
    if message["role"] == "tool":
        result = {"type": "function_result", "call_id": message["tool_call_id"], "result": text}
        return [{**result, "items": [make_text(text)], "exception": read_native(message, NAME).get("status")}]
    calls = [
        {"type": "function_call", "call_id": call_id, "name": name, "arguments": given}
        for call_id, name, given in read_calls(message)
    ]
    return [*([make_text(text)] if text else []), *calls]
