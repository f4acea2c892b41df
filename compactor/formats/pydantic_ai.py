"""pydantic-ai's messages, read by their attributes: nothing of pydantic-ai is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from .native import Block, Message, add_native, read_messages, read_native
from .parts import make_answer, make_content, make_file, read_calls, read_text

NAME = "pydantic_ai"


def to_chat(items: Iterable[Any]) -> list[Message]:
    """Return *items* as chat messages: one for each part of a request, one for a response."""
    return [message for item in items for message in _read_item(item)]


def from_chat(messages: Iterable[Mapping[str, Any]]) -> list[Block]:
    """Return a prompt's *messages* for pydantic-ai's ``ModelMessagesTypeAdapter``."""
    made = []
    for is_answer, run in groupby(read_messages(messages, NAME), lambda message: message["role"] == "assistant"):
        parts = [part for message in run for part in _write_parts(message)]
        made.append({"kind": "response" if is_answer else "request", "parts": parts})
    return made


def _read_item(item: Any) -> list[Message]:
    return list(map(_read_part, item.parts)) if item.kind == "request" else [_read_answer(item.parts)]


def _read_answer(parts: Sequence[Any]) -> Message:
    calls = [part for part in parts if part.part_kind == "tool-call"]
    text = "".join(part.content for part in parts if part.part_kind == "text")
    return make_answer(text, [(one.tool_call_id, one.tool_name, one.args_as_json_str()) for one in calls])


def _read_part(part: Any) -> Message:
    kind = part.part_kind
    if kind == "tool-return":
        content = make_content([part.model_response_str(wrap_if_error=False), *map(_read_content, part.files)])
        return _make_result(part, content, part.outcome)
    is_retry = kind in ("retry-feedback", "retry-prompt")
    said = part.model_response() if is_retry else getattr(part, "content", None) or ""
    content = make_content(said if isinstance(said, str) else map(_read_content, said))
    if is_retry and getattr(part, "tool_name", None):  # the old form of a call that is to be made again
        return _make_result(part, content, "retried")
    return {"role": "system" if kind == "system-prompt" else "user", "content": content}


def _make_result(part: Any, content: Any, outcome: str) -> Message:
    message = {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name, "content": content}
    return add_native(message, NAME, status=outcome if outcome != "success" else None)


def _read_content(one: Any) -> str | Block:
    if isinstance(one, str):
        return one
    if one.kind in ("text-content", "cache-point"):
        return getattr(one, "content", "")
    url = str(getattr(one, "data_uri", None) or getattr(one, "url", ""))
    return make_file(url, is_image=one.kind == "image-url" or url.startswith("data:image/"))


def _write_parts(message: Mapping[str, Any]) -> list[Block]:
    text, role = read_text(message), message["role"]
    if role == "tool":
        result = {"part_kind": "tool-return", "tool_name": message.get("name") or "", "content": text}
        outcome = read_native(message, NAME).get("status", "success")
        return [{**result, "tool_call_id": message["tool_call_id"], "outcome": outcome}]
    if role != "assistant":
        return [{"part_kind": "user-prompt" if role == "user" else "system-prompt", "content": text}]
    calls = [
        {"part_kind": "tool-call", "tool_name": name, "args": given, "tool_call_id": call_id}
        for call_id, name, given in read_calls(message)
    ]
    return [*([{"part_kind": "text", "content": text}] if text else []), *calls]
