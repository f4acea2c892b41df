"""Recorded dialogues as the turns of a conversation, and the tools that are called in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .adapter import Message

__all__ = ["Step", "answered", "tools_of", "turns_of"]

Step = dict[str, Any]
"""What is ``new`` for the agent (the user's message, or results of tools), and its ``answer``."""

DONE: Message = {"role": "assistant", "content": "Done."}
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number"}


def answered(messages: Sequence[Message]) -> list[Message]:
    """Return a dialogue whose agent has the last word after a tool: a model is always asked what to say to a result."""
    ends_there = messages[-1]["role"] == "tool"
    return [*messages, DONE] if ends_there else list(messages)


def turns_of(messages: Sequence[Message]) -> Iterator[tuple[Step, ...]]:
    """Give the turns of a recorded conversation: each begins with the user. Ids of calls are made unique."""
    turn: list[Step] = []
    new: list[Message] = []
    ids: dict[str, str] = {}
    for number, recorded in enumerate(messages):
        message = _renamed(recorded, ids, number)
        if message["role"] != "assistant":
            if message["role"] == "user" and turn and not new:
                yield tuple(turn)
                turn = []
            new.append(message)
        elif new:
            turn.append({"new": new, "answer": message})
            new = []
    if turn:
        yield tuple(turn)


def _renamed(message: Message, ids: dict[str, str], number: int) -> Message:
    if message.get("tool_calls"):
        calls = []
        for place, call in enumerate(message["tool_calls"]):
            ids[call["id"]] = f"call_{number}_{place}"
            calls.append({**call, "id": ids[call["id"]]})
        return {**message, "tool_calls": calls}
    if message.get("tool_call_id"):
        return {**message, "tool_call_id": ids.get(message["tool_call_id"], message["tool_call_id"])}
    return message


def tools_of(messages: Iterable[Message]) -> tuple[dict[str, Any], ...]:
    """Return definitions of the tools that are called, as far as their calls tell: names, and arguments with types.

    Libraries that run an agent refuse calls of tools that it was not given.
    """
    found: dict[str, dict[str, Any]] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            known = found.setdefault(call["function"]["name"], {})
            for name, value in json.loads(call["function"]["arguments"]).items():
                known[name] = {"type": _KINDS[type(value)]} if type(value) in _KINDS else {}
    return tuple(_tool(name, found[name]) for name in sorted(found))


def _tool(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": arguments}},
    }
