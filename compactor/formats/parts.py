"""The parts of chat messages: answers with calls, contents with files, and tools. Makes them, and reads them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..media import make_data_url
from .native import Block, list_calls, read_arguments, read_call, read_part_text

Message = Mapping[str, Any]
#: Larger numbers, and those that are none, are written as text.
MAX_NUMBER = 1e300


def make_answer(content: object, calls: Iterable[tuple[str, str, object]]) -> Block:
    """Return the model's chat message. *calls*: id, name, and the arguments as JSON text or parsed."""
    made = [make_call(call_id, name, arguments) for call_id, name, arguments in calls]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def make_call(call_id: str, name: str, arguments: object) -> Block:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": dump_json(arguments)}}


def dump_json(value: object) -> str:
    """Return any *value* as JSON; a text as it is."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):  # as where it holds itself
        return json.dumps(make_jsonable(value), ensure_ascii=False)


def make_jsonable(value: Any, depth: int = 100) -> Any:
    """Return a copy of any *value* in JSON's types; all others become text. Below *depth* levels nothing is kept."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        return value if abs(value) < MAX_NUMBER else str(value) if isinstance(value, float) else hex(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Mapping) and depth:
        return {str(key): make_jsonable(one, depth - 1) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) and depth:
        return [make_jsonable(one, depth - 1) for one in value]
    return str(value) if depth else "..."


def make_text(text: str) -> Block:
    return {"type": "text", "text": text}


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


_FILES = ("image", "audio", "video", "file", "document", "media")
#: Parts that are counted as they are.
_KNOWN_FILES = ("image_url", "input_image", "input_audio", "input_file")


def read_file(block: Mapping[str, Any]) -> Block | None:
    """Return the part of a content that shows the file in a *block*, as LangChain or any provider writes it; None if it
    has none."""
    if block.get("type") in _KNOWN_FILES:
        return dict(make_jsonable({key: one for key, one in block.items() if key != "cache_control"}))
    name = next((one for one in _FILES if block.get("type") == one or one in block), None)
    if name is None:
        return None
    told = dict(_list_values(block, 4))
    media_type = str(told.get("mime_type") or told.get("media_type") or f"{name}/{told.get('format', '*')}")
    data = next((told[key] for key in ("base64", "data", "bytes", "file_data") if told.get(key)), None)
    if isinstance(data, bytes):
        data = b64encode(data).decode()
    if isinstance(data, str) and not data.startswith("data:"):
        data = make_data_url(media_type, data) if not media_type.startswith("text/") else None
    given = [data, *(told.get(key) for key in ("url", "file_uri", "uri", "file_id"))]
    url = next((one for one in given if isinstance(one, str) and one), None)
    return make_file(url, is_image=media_type.startswith("image/")) if url is not None else None


def _list_values(block: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, Mapping) and depth:
            yield from _list_values(value, depth - 1)
        else:
            yield key, value


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
