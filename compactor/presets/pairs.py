"""Which messages stand or fall together, and which of those that are shown may be compressed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memory.messages import ASSISTANT, FUNCTION, TOOL, parse

if TYPE_CHECKING:
    from .shown import Shown

__all__ = ["blocks", "end_of_answered", "is_orphan", "stretches", "waits", "with_orphan_told"]

Message = dict[str, Any]


def _calls_in(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of the calls in a message; an empty one for a call in the form that came before ids."""
    if message["role"] != ASSISTANT:
        return []
    ids = [str(call["id"]) for call in message.get("tool_calls") or ()]
    return ids or ([""] if message.get("function_call") else [])


def blocks(messages: Sequence[Message]) -> list[int]:
    """Return, for each message, the place of the first of those that it stands or falls with: a result's is its call's.

    A result that answers no call before it stands for itself.
    """
    first: list[int] = []
    callers: dict[str, int] = {}
    for place, message in enumerate(messages):
        first.append(callers.get(answered, place) if (answered := _answered(message)) is not None else place)
        callers.update(dict.fromkeys(_calls_in(message), place))
    return first


def _answered(message: Message) -> str | None:
    if message["role"] == TOOL:
        return str(message.get("tool_call_id"))
    return "" if message["role"] == FUNCTION else None


def is_orphan(messages: Sequence[Message], first: Sequence[int], place: int) -> bool:
    """Return whether a message is a result whose call is not among *messages*; *first* are their blocks."""
    return messages[place]["role"] == TOOL and first[place] == place


def waits(messages: Sequence[Message], first: Sequence[int], place: int) -> bool:
    """Return whether a message has calls of which some have no result among *messages*."""
    called = len(_calls_in(messages[place]))
    return called > 0 and called >= first.count(place)  # which counts the message itself


def with_orphan_told(messages: Sequence[Message]) -> list[Message]:
    """Return *messages*, a result whose call is not among them as a message that says what it is."""
    first = blocks(messages)
    return [_late(one) if is_orphan(messages, first, place) else one for place, one in enumerate(messages)]


def _late(message: Message) -> Message:
    return {"role": "user", "content": f"[Late result of a tool call]\n{parse(message).post.message}"}


def stretches(shown: Sequence[Shown]) -> list[tuple[int, int]]:
    """Return what may be compressed, oldest first, as slices.

    Never in one: the header; what is pinned; what the user said and nobody has answered yet; results that no model has
    read yet; calls that wait for results. No stretch parts a call from its results.
    """
    messages = [one.message for one in shown]
    first = blocks(messages)
    opened = end_of_answered(shown)
    read = max((place for place, message in enumerate(messages) if message["role"] == ASSISTANT), default=-1)
    stays = [one.is_header or one.pinned for one in shown]
    for place in range(opened, len(shown)):
        asked = messages[place]["role"] == "user" and not shown[place].compressed
        stays[place] |= asked or place > read or waits(messages, first, place)
    while torn := [place for place in range(len(shown)) if _is_torn(first[place], place, stays)]:
        for place in torn:
            stays[first[place]] = stays[place] = True
    edges = [place for place in range(len(shown) + 1) if _stays(stays, place) != _stays(stays, place - 1)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _is_torn(start: int, place: int, stays: Sequence[bool]) -> bool:
    """Return whether something stays between a call and its result, or one of them, and not both do."""
    return any(stays[start : place + 1]) and not (stays[start] and stays[place])


def _stays(stays: Sequence[bool], place: int) -> bool:
    return stays[place] if 0 <= place < len(stays) else True


def end_of_answered(shown: Sequence[Shown]) -> int:
    """Return the place behind the last answer that ends a turn: what follows it is still to be answered.

    An answer ends a turn where nothing follows it, or the user's next message: before calls it is thinking aloud.
    """
    follows = "user"
    for place in range(len(shown) - 1, -1, -1):
        role = shown[place].message["role"]
        if follows == "user" and role == ASSISTANT and not _calls_in(shown[place].message):
            return place + 1
        follows = follows if role in ("system", "developer") else role
    return 0
