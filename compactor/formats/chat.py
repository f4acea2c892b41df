"""Chat messages of OpenAI's API, also with the ``function_call`` from before tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memory.messages import FUNCTION, NATIVE, TOOL

from .native import (
    CHAT_ROLES,
    Message,
    UnknownFormat,
    add_native,
    describe,
    list_calls,
    read_items,
    read_messages,
    read_native,
    suggest_format,
)

__all__ = ["NAME", "from_chat", "to_chat"]

NAME = "chat"
#: The keys of results as OpenAI's documentation orders them, by role.
_ORDERS = {TOOL: ("role", "tool_call_id"), FUNCTION: ("role", "name")}


def to_chat(messages: Iterable[Any]) -> list[Message]:
    """Return *messages* for a ``Memory``: as they are, but a ``function_call`` becomes a tool call with its result.

    Takes mappings, and objects of the SDK. Raises ``UnknownFormat``, which describes the item.
    """
    chat: list[Message] = []
    for place, item in enumerate(read_items(messages, NAME), 1):
        role, called, message = item.get("role"), item.get("function_call"), item
        if role not in CHAT_ROLES or (isinstance(item.get("parts"), list) and item.get("content") is None):
            raise UnknownFormat(
                f"message {place} is no chat message, with a role of these: {', '.join(CHAT_ROLES)}; it is"
                f" {describe(item)}{suggest_format(item, NAME)}"
            )
        if role == "assistant" and isinstance(called, dict) and "tool_calls" not in item:
            call = {"id": str(called.get("name")), "type": "function", "function": called}
            message = {("tool_calls" if key == "function_call" else key): one for key, one in item.items()}
            message["tool_calls"] = [call]
            add_native(message, NAME, legacy=True)
        elif role == FUNCTION:
            message = {("tool_call_id" if key == "name" else key): one for key, one in item.items()}
            message["role"] = TOOL
            add_native(message, NAME, legacy=True)
        chat.append(message)
    return chat


def from_chat(messages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``{"messages": [...]}`` of a prompt's *messages*, for ``client.chat.completions.create``.

    Without pressure these equal the input of ``to_chat``. Works for messages of the other formats, too, but leaves out
    signed thinking and all else that Chat Completions cannot say.
    """
    made: list[Message] = []
    legacy: set[str] = set()
    for message in read_messages(messages, NAME):
        plain = {key: one for key, one in message.items() if key != NATIVE}
        calls = list_calls(plain)
        if read_native(message, NAME).get("legacy") and calls:
            legacy = {call["id"] for call in calls}
            plain = {("function_call" if key == "tool_calls" else key): one for key, one in plain.items()}
            plain["function_call"] = calls[0]["function"]
        elif any(plain.get("tool_call_id") == one for one in legacy):
            plain = {("name" if key == "tool_call_id" else key): one for key, one in plain.items()}
            plain["role"] = FUNCTION
        if plain["role"] in _ORDERS:  # a log has its own order
            plain = {key: plain[key] for key in (*_ORDERS[plain["role"]], *plain) if key in plain}
        made.append(plain)
    return {"messages": made}
