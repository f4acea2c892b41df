"""Other providers' message formats, in and out: histories become chat messages, prompts become requests.

Each format is a module with ``to_chat`` and ``from_chat``. What a chat message cannot say, such as signed thinking, is
kept beside it, and comes back as it was. Import this package only where you need it; of ours, summarizers on those
providers' clients do, at their first request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import anthropic, chat, gemini, responses
from .native import Message, UnknownFormat, describe, read_items

__all__ = ["FORMATS", "UnknownFormat", "anthropic", "chat", "detect", "from_chat", "gemini", "responses", "to_chat"]

_MODULES = {module.NAME: module for module in (chat, responses, anthropic, gemini)}
#: The names of the known formats.
FORMATS = tuple(_MODULES)

_CHAT_PARTS = frozenset(("image_url", "file", "refusal"))
_RESPONSES_PARTS = frozenset(("input_text", "output_text", "input_image", "input_file"))
_ANTHROPIC_BLOCKS = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"))
_ANTHROPIC_BLOCKS |= {"search_result", "server_tool_use", "web_search_tool_result", "container_upload"}


def detect(items: Iterable[Any]) -> str:
    """Return the name of the format of *items*; ``chat`` for plain messages, which several formats share.

    Raises ``UnknownFormat``, which names the first item that is of none, or two that are of different ones.
    """
    known = ", ".join(FORMATS)
    found, at = "", 0
    for place, item in enumerate(read_items(items, "message"), 1):
        name = _name_format(item)
        if name is None:
            raise UnknownFormat(f"item {place} is {describe(item)}: of no known format; the known ones are {known}")
        if name and found and name != found:
            raise UnknownFormat(f"item {at} is of the format {found}, item {place} of {name}; convert each by its own")
        if name and not found:
            found, at = name, place
    return found or chat.NAME


def to_chat(items: Iterable[Any], format: str = "") -> list[Message]:  # noqa: A002  (the word that hosts look for)
    """Return *items* as chat messages for a ``Memory``; detects the *format*. Raises ``UnknownFormat``."""
    items = list(items) if isinstance(items, Iterator) else items
    return list(_find(format or detect(items)).to_chat(items))


def from_chat(messages: Iterable[Mapping[str, Any]], format: str) -> dict[str, Any]:  # noqa: A002
    """Return a prompt's *messages* as part of a request in that *format*. Raises ``UnknownFormat``."""
    return dict(_find(format).from_chat(messages))


def _find(name: str) -> Any:
    if name not in _MODULES:
        raise UnknownFormat(f"there is no format {name!r}; the known ones are {', '.join(FORMATS)}")
    return _MODULES[name]


def _name_format(item: Mapping[str, Any]) -> str | None:
    """Return the format of *item*; empty if it may be of several, None if it is of none."""
    role, kind, content = item.get("role"), item.get("type"), item.get("content")
    if isinstance(item.get("parts"), list) and role in ("user", "model", "function", "tool", None):
        return gemini.NAME
    if isinstance(kind, str):
        return responses.NAME if role in ("user", "assistant", "system", "developer", None) else None
    if role not in ("user", "assistant", "system", "developer", "tool", "function"):
        return None
    if role in ("tool", "function") or item.keys() & {"tool_calls", "function_call", "refusal", "audio"}:
        return chat.NAME
    given = content if isinstance(content, list) else ()
    kinds = {str(part.get("type")) for part in given if isinstance(part, Mapping)}
    for names, name in (
        (_ANTHROPIC_BLOCKS, anthropic.NAME),
        (_RESPONSES_PARTS, responses.NAME),
        (_CHAT_PARTS, chat.NAME),
    ):
        if kinds & names:
            return name
    return ""
