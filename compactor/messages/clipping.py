"""Long texts clipped to head and tail, with a reference to the original between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memory.graphemes import cut_after, cut_before

from ..tokens import TokenCounter
from .units import Message, count_message

__all__ = ["clip_message", "clip_text"]


def clip_message(message: Message, limit: int, ref: str, count: TokenCounter) -> Message:
    """Return *message* with each text of more than *limit* tokens clipped to its head and tail around a reference.

    The same object where nothing is that long. A tool call's arguments stay valid JSON.
    """
    changed: Message = {}
    content = message.get("content")
    if _is_over(limit, content, count):
        if isinstance(content, list) and any(map(_is_call_or_result, content)):  # neither may go without the other
            changed["content"] = [_clip_part(part, limit, ref, count) for part in content]
        else:
            changed["content"] = clip_text(_text_of(content), limit, ref, count)
    calls = message.get("tool_calls")
    if isinstance(calls, list) and any(_is_over(limit, _arguments(call), count) for call in calls):
        changed["tool_calls"] = [_clip_call(call, limit, ref, count) for call in calls]
    return {**message, **changed} if changed else message


def _is_over(limit: int, content: Any, count: TokenCounter) -> bool:
    """Return whether *content* is more than *limit* tokens; only as much of a long text is counted as it takes."""
    if not isinstance(content, str):
        return count_message({"content": content}, count) > limit
    return count(content[: 8 * limit]) > limit or (len(content) > 8 * limit and count(content) > limit)


def clip_text(text: str, limit: int, ref: str, count: TokenCounter) -> str:
    """Return head and tail of *text*, about *limit* tokens with the line between them that says what is missing."""
    mark = f"\n[... {{}} of {len(text):,} characters left out; reload {ref} ...]\n"
    room = max(limit - count(mark) - 4, 0)
    head = _fitting(text, room * 2 // 3, count)
    tail = _fitting(text[len(head) :], room // 3, count, from_end=True)
    missing = len(text) - len(head) - len(tail)
    return head + mark.format(f"{missing:,}") + tail if missing else text


def _fitting(text: str, tokens: int, count: TokenCounter, *, from_end: bool = False) -> str:
    """Return a beginning, or end, of *text* of at most *tokens*; only a few times as much of it is looked at."""
    length = min(len(text), 6 * tokens)
    while length:
        part = text[cut_after(text, len(text) - length) :] if from_end else text[: cut_before(text, length)]
        found = count(part)
        if found <= tokens:
            return part
        length = min(length - 1, length * tokens // found)
    return ""


def _text_of(content: Any) -> str:
    """Return the text of a message's content, with a mark for each part that is none."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(map(_text_of_part, content))


def _text_of_part(part: Any) -> str:
    if not isinstance(part, Mapping):
        return str(part)
    return part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type')}]"


def _is_call_or_result(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("tool_use", "tool_result")


def _clip_part(part: Any, limit: int, ref: str, count: TokenCounter) -> Any:
    """Return a *part* of a content with what is longer than *limit* tokens in it clipped."""
    if not isinstance(part, Mapping):
        return clip_text(str(part), limit, ref, count)
    clipped = dict(part)
    for key in ("text", "thinking", "output", "content"):
        if key in part and part[key] is not None and _is_over(limit, part[key], count):
            clipped[key] = clip_text(_text_of(part[key]), limit, ref, count)
    for key in ("input", "arguments"):
        if key in part and _is_over(limit, text := json.dumps(part[key], ensure_ascii=False, default=str), count):
            clipped[key] = _left_out(text, ref)
    return clipped


def _left_out(arguments: str, ref: str) -> dict[str, str]:
    return {"left_out": f"{len(arguments):,} characters; reload {ref}"}


def _arguments(call: Any) -> str:
    asked = call.get("function") if isinstance(call, Mapping) else None
    arguments = asked.get("arguments") if isinstance(asked, Mapping) else None
    return arguments if isinstance(arguments, str) else ""


def _clip_call(call: Any, limit: int, ref: str, count: TokenCounter) -> Any:
    arguments = _arguments(call)
    if not _is_over(limit, arguments, count):
        return call
    shown = json.dumps(_left_out(arguments, ref))
    return {**call, "function": {**call["function"], "arguments": shown}}
