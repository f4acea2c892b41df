"""LlamaIndex's messages, read by their attributes: nothing of LlamaIndex is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .native import Block, Message, read_messages, to_plain
from .parts import make_answer, make_content, make_file, read_calls, read_text

NAME = "llama_index"


def to_chat(items: Iterable[Any]) -> list[Message]:
    """Return *items* as chat messages: one for each."""
    return list(map(_read_item, items))


def from_chat(messages: Iterable[Mapping[str, Any]]) -> list[Block]:
    """Return a prompt's *messages* for ``ChatMessage.model_validate``."""
    return list(map(_write_message, read_messages(messages, NAME)))


def _read_item(item: Any) -> Message:
    told, role = item.additional_kwargs, item.role.value
    files = [one.resolve_image(as_base64=True).read() for one in item.blocks if one.block_type == "image"]
    pictures = [make_file(f"data:image/png;base64,{one.decode()}", is_image=True) for one in files]
    content = make_content([item.content, *pictures])
    if role == "assistant":
        calls = [one for one in item.blocks if one.block_type == "tool_call"]
        asked = [(one.tool_call_id or "", one.tool_name, one.tool_kwargs) for one in calls]
        old = read_calls({"role": role, "tool_calls": to_plain(told.get("tool_calls") or [])})
        return make_answer(content, asked or old)
    if role == "tool":
        return {"role": role, "tool_call_id": str(told.get("tool_call_id")), "content": content}
    return {"role": role, "content": content}


def _write_message(message: Mapping[str, Any]) -> Block:
    calls = [
        {"block_type": "tool_call", "tool_call_id": call_id, "tool_name": name, "tool_kwargs": given}
        for call_id, name, given in read_calls(message)
    ]
    blocks = [{"block_type": "text", "text": read_text(message)}, *calls]
    told = {"tool_call_id": message["tool_call_id"]} if message["role"] == "tool" else {}
    return {"role": message["role"], "blocks": blocks, "additional_kwargs": told}
