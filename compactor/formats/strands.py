"""Strands' messages, with content blocks as in Bedrock's Converse API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from .native import Block, Message, add_native, read_messages, read_native
from .parts import dump_json, make_answer, make_content, read_calls, read_file, read_text

NAME = "strands"


def to_chat(items: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return *items* as chat messages. Each result becomes a message of its own."""
    return [message for item in items for message in _read_item(item)]


def from_chat(messages: Iterable[Mapping[str, Any]]) -> list[Block]:
    """Return a prompt's *messages* for Strands: those of one side in a row become one."""
    made = []
    for is_answer, run in groupby(read_messages(messages, NAME), lambda message: message["role"] == "assistant"):
        blocks = [block for message in run for block in _write_blocks(message)]
        made.append({"role": "assistant" if is_answer else "user", "content": blocks})
    return made


def _read_item(item: Mapping[str, Any]) -> list[Message]:
    calls, results = ([block[kind] for block in item["content"] if kind in block] for kind in ("toolUse", "toolResult"))
    messages = [_read_result(one) for one in results]
    content = make_content(map(_read_block, item["content"]))
    if item["role"] == "assistant":
        asked = [(one["toolUseId"], one["name"], one["input"]) for one in calls]
        return [*messages, make_answer(content, asked)]
    return [*messages, {"role": "user", "content": content}] if content or not results else messages


def _read_result(result: Mapping[str, Any]) -> Message:
    content = make_content(map(_read_block, result["content"]))
    message = {"role": "tool", "tool_call_id": result["toolUseId"], "content": content}
    return add_native(message, NAME, status="error" if result.get("status") == "error" else None)


def _read_block(block: Mapping[str, Any]) -> str | Block:
    return read_file(block) or dump_json(block.get("json", block.get("text", "")))


def _write_blocks(message: Mapping[str, Any]) -> list[Block]:
    said = [{"text": text}] if (text := read_text(message)) else []
    if message["role"] == "tool":
        status = read_native(message, NAME).get("status", "success")
        return [{"toolResult": {"toolUseId": message["tool_call_id"], "status": status, "content": said}}]
    calls = [{"toolUseId": call_id, "name": name, "input": given} for call_id, name, given in read_calls(message)]
    return [*said, *({"toolUse": call} for call in calls)]
