"""Which messages stand or fall together, and which of those that are shown may be compressed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from memory.messages import ASSISTANT, FUNCTION, TOOL, paired, parse
from memory.rounds import Post

from ...prompt.groups import Message
from .shown import Shown

Block = set[int]

_SYSTEM = ("system", "developer")


def together(posts: Sequence[Post]) -> list[Block]:
    """Return, for each post, the places of all that it stands or falls with: a call and its results.

    A result in the form that came before tool calls has no id: it belongs to what the agent said right before it.
    """
    found = [{place} for place in range(len(posts))]
    for call, results in paired(posts, ASSISTANT).items():
        for result in results.values():
            _join(found, call, result)
    spoken = [place for place, post in enumerate(posts) if post.send_from not in _SYSTEM]
    for earlier, place in pairwise(spoken):
        if posts[place].send_from == FUNCTION and posts[earlier].send_from == ASSISTANT:
            _join(found, earlier, place)
    return found


def _join(found: list[Block], one: int, other: int) -> None:
    found[one] |= found[other]
    for place in found[one]:
        found[place] = found[one]


def blocks(messages: Sequence[Message]) -> list[Block]:
    """Return the same for messages."""
    return together([parse(message).post for message in messages])


def is_orphan(message: Message, block: Block) -> bool:
    """Return whether a *message* of that *block* is a result of a call that is not there, or has its result."""
    return message["role"] == TOOL and len(block) == 1


def waits(message: Message, block: Block) -> bool:
    """Return whether a *message* of that *block* has calls of which some have no result."""
    return _calls(message) >= len(block)  # which counts the message itself


def _calls(message: Message) -> int:
    """Return how many calls a message has; one in the form that came before tool calls."""
    if message["role"] != ASSISTANT:
        return 0
    return len(message.get("tool_calls") or ()) or int(bool(message.get("function_call")))


def stretches(shown: Sequence[Shown]) -> list[tuple[int, int]]:
    """Return what may be compressed, oldest first, as slices.

    Never in one: the header; what is pinned; what the user said and nobody has answered yet; results that no model has
    read yet; calls that wait for results. No stretch parts a call from its results.
    """
    messages = [one.message for one in shown]
    block = blocks(messages)
    opened = end_of_answered(shown)
    read = max((place for place, message in enumerate(messages) if message["role"] == ASSISTANT), default=-1)
    stays = [one.is_header or one.pinned for one in shown]
    for place in range(opened, len(shown)):
        asked = messages[place]["role"] == "user" and not shown[place].compressed
        stays[place] |= asked or place > read or waits(messages[place], block[place])
    while torn := [one for one in block if _is_torn(one, stays)]:
        for place in set().union(*torn):
            stays[place] = True
    edges = [place for place in range(len(shown) + 1) if _stays(stays, place) != _stays(stays, place - 1)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _is_torn(block: Block, stays: Sequence[bool]) -> bool:
    """Return whether something stays in or between a call and its results, and not all of them do."""
    return any(stays[min(block) : max(block) + 1]) and not all(stays[place] for place in block)


def _stays(stays: Sequence[bool], place: int) -> bool:
    return stays[place] if 0 <= place < len(stays) else True


def end_of_answered(shown: Sequence[Shown]) -> int:
    """Return the place behind the last answer that ends a turn: what follows it is still to be answered.

    An answer ends a turn where nothing follows it, or the user's next message: before calls it is thinking aloud.
    """
    follows = "user"
    for place in range(len(shown) - 1, -1, -1):
        role = shown[place].message["role"]
        if follows == "user" and role == ASSISTANT and not _calls(shown[place].message):
            return place + 1
        follows = follows if role in ("system", "developer") else role
    return 0
