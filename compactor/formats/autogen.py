"""AutoGen's messages, read by their attributes: nothing of AutoGen is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from .native import Block, Message, add_native, read_messages, read_native
from .parts import dump_json, make_answer, make_content, make_file, read_calls, read_text

NAME = "autogen"


def to_chat(items: Iterable[Any]) -> list[Message]:
    """Return *items* as chat messages. Each result becomes a message of its own; ``name`` is a tool or a source."""
    return [message for item in items for message in _read_item(item)]


def from_chat(messages: Iterable[Mapping[str, Any]]) -> list[Block]:
    """Return a prompt's *messages* as AutoGen's dumped ones: results in a row become one."""
    made: list[Block] = []
    for is_result, run in groupby(read_messages(messages, NAME), lambda message: message["role"] == "tool"):
        if is_result:
            made.append({"type": "FunctionExecutionResultMessage", "content": list(map(_write_result, run))})
        else:
            made += map(_write_message, run)
    return made


def _read_item(item: Any) -> list[Message]:
    if item.type == "FunctionExecutionResultMessage":
        return list(map(_read_result, item.content))
    if item.type == "SystemMessage":
        return [{"role": "system", "content": item.content}]
    parts = [item.content] if isinstance(item.content, str) else item.content
    if item.type == "AssistantMessage":
        calls = [(one.id, one.name, one.arguments) for one in parts if not isinstance(one, str)]
        return [{**make_answer((item.thought or "") if calls else item.content, calls), "name": item.source}]
    said = make_content(one if isinstance(one, str) else make_file(one.data_uri, is_image=True) for one in parts)
    return [{"role": "user", "content": said, "name": item.source}]


def _read_result(result: Any) -> Message:
    message = {"role": "tool", "tool_call_id": result.call_id, "name": result.name, "content": result.content}
    return add_native(message, NAME, status="error" if result.is_error else None)


def _write_result(message: Mapping[str, Any]) -> Block:
    is_error = read_native(message, NAME).get("status") == "error" or None
    told = {"name": message.get("name") or "", "call_id": message["tool_call_id"], "is_error": is_error}
    return {"content": read_text(message), **told}


def _write_message(message: Mapping[str, Any]) -> Block:
    text, role = read_text(message), message["role"]
    source = message.get("name") or role
    if role == "assistant":
        calls = [
            {"id": call_id, "name": name, "arguments": dump_json(given)} for call_id, name, given in read_calls(message)
        ]
        said = {"content": calls, "thought": text or None} if calls else {"content": text}
        return {"type": "AssistantMessage", **said, "source": source}
    if role == "user":
        return {"type": "UserMessage", "content": text, "source": source}
    return {"type": "SystemMessage", "content": text}
