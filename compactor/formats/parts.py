"""What chat messages are made of: answers with calls, contents with files, and tools. Makes them, and reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .native import Block, list_calls, read_arguments, read_call, read_part_text

Message = Mapping[str, Any]


def make_answer(content: object, calls: Iterable[tuple[str, str, object]]) -> Message:
    """Return the model's chat message. *calls*: id, name, and the arguments as JSON text or as what it says."""
    made = [make_call(call_id, name, arguments) for call_id, name, arguments in calls]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def make_call(call_id: str, name: str, arguments: object) -> Block:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": dump_json(arguments)}}


def dump_json(value: object) -> str:
    """Return *value* as JSON; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def make_content(said: str | Iterable[Any]) -> Any:
    """Return a message's content, of texts and of parts for files: one text if there are no files."""
    given = [said] if isinstance(said, str) else [one for one in said if one]
    if all(isinstance(one, str) for one in given):
        return "".join(given)
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in given]


def make_file(url: str, *, is_image: bool) -> Block:
    """Return the part of a content that shows a file; *url* may hold it as data."""
    if is_image:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"file_data" if url.startswith("data:") else "file_id": url}}


def make_tool(name: str, description: str | None, parameters: object) -> Message:
    """Return a tool's schema, as ``compose`` counts it."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def read_text(message: Message) -> str:
    """Return the text of a *message* that is written anew: a mark for each file, which the host has."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(map(read_part_text, content))


def read_calls(message: Message) -> list[tuple[str, str, dict[str, Any]]]:
    """Return id, name and arguments of each call in a *message*."""
    asked = [(call["id"], *read_call(call)) for call in list_calls(message)]
    return [(call_id, name, read_arguments(given)) for call_id, name, given in asked]
