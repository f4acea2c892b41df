"""A framework's history as chat messages. Only items that changed since the last call are converted again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Generic, TypeVar

from memory import MessageError
from memory.sync import NEWEST

Item = TypeVar("Item")
Message = Mapping[str, Any]
#: Maximum items, the oldest ones, that are kept for the next call and not converted again.
MAX_KNOWN = 2_000


@dataclass(frozen=True, slots=True)
class Group(Generic[Item]):
    """Objects of a framework, and the chat messages with the same content. Neither is split without the other."""

    items: Sequence[Item]
    messages: Sequence[Message]


@dataclass(slots=True)
class ItemTurn(Generic[Item]):
    """Converted items of one turn: from a user message to the next user message after a model's answer."""

    groups: Sequence[Group[Item]]
    items: Sequence[Item]
    messages: Sequence[Message]
    #: In the newest turns: copies of the items, which reveal edits in place.
    baseline: Sequence[Item] | None = None


def read_turns(
    known: Sequence[ItemTurn[Item]], items: Sequence[Item], read: Callable[[Sequence[Item]], Iterable[Group[Item]]]
) -> list[ItemTurn[Item]]:
    """Return *items* in turns, and reuse unchanged turns from *known*, the result of an earlier call.

    Edits in place are found in the turns that hold the newest ``NEWEST`` messages. The last turn is always converted.
    """
    turns = _find_unchanged(known, items)
    at = sum(len(turn.items) for turn in turns)
    try:
        groups = _join_silent(read(items[at:]))
    except MessageError:
        if not turns:
            raise
        groups = []  # converting everything names the faulty item
    if turns and not (groups and _is_users(groups[0])):
        return read_turns((), items, read)
    return [*turns, *_split_turns(groups)]


def keep_turns(turns: Sequence[ItemTurn[Item]]) -> list[ItemTurn[Item]]:
    """Return the *turns* that the next call need not convert again: the last one may continue, so it is left out."""
    ends = accumulate(len(turn.items) for turn in turns[:-1])
    kept = [turn for turn, end in zip(turns, ends, strict=False) if end <= MAX_KNOWN]
    old = _count_old(kept)
    for turn in reversed(kept[:old]):
        if turn.baseline is None:
            break
        turn.baseline = None
    for index, turn in enumerate(kept[old:], old):
        turn.baseline = turn.baseline or _copy_items(turn.items)
        if turn.baseline is None:
            return kept[:index]
    return kept


def _find_unchanged(known: Sequence[ItemTurn[Item]], items: Sequence[Item]) -> list[ItemTurn[Item]]:
    """Return the leading turns of *known* that *items* begin with."""
    same: list[ItemTurn[Item]] = []
    at = 0
    for turn in known:
        end = at + len(turn.items)
        if not _are_equal(turn.items if turn.baseline is None else turn.baseline, items[at:end]):
            break
        same.append(turn)
        at = end
    old = _count_old(same)
    return [*same[:old], *takewhile(lambda turn: turn.baseline is not None, same[old:])]


def _count_old(turns: Sequence[ItemTurn[Any]]) -> int:
    """Return how many leading *turns* are followed by ``NEWEST`` messages."""
    behind, old = 0, len(turns)
    while old and behind < NEWEST:
        old -= 1
        behind += len(turns[old].messages)
    return old


def _copy_items(items: Sequence[Item]) -> Sequence[Item] | None:
    """Return copies that equal *items* until these are edited; None if copies are not equal."""
    try:
        copies = deepcopy(items)
    except Exception:  # noqa: BLE001  (objects of hosts may raise anything)
        return None
    return copies if _are_equal(copies, items) else None


def _are_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    try:
        return one == other
    except Exception:  # noqa: BLE001  (objects of hosts may raise anything)
        return False


def _split_turns(groups: Iterable[Group[Item]]) -> list[ItemTurn[Item]]:
    """Return *groups* in turns. Each turn is converted as if it were all, so no call is open before it."""
    parts: list[list[Group[Item]]] = []
    calls: set[str] = set()
    last: Message = {}
    for group in groups:
        is_answered = last.get("role") == "assistant" and not last.get("tool_calls") and not calls
        if not parts or (is_answered and _is_users(group)):
            parts.append([])
        parts[-1].append(group)
        for last in group.messages:
            calls = {*list_ids(last)} or calls - {last.get("tool_call_id") or ""}
    return [ItemTurn(part, [one for group in part for one in group.items], list_messages(part)) for part in parts]


def _is_users(group: Group[Any]) -> bool:
    return all(one["role"] == "user" for one in group.messages)


def _join_silent(groups: Iterable[Group[Item]]) -> list[Group[Item]]:
    """Return *groups*, each with messages: objects without content join the group before or after them."""
    joined: list[Group[Item]] = []
    for group in groups:
        if joined and not (group.messages and joined[-1].messages):
            before = joined.pop()
            joined.append(Group([*before.items, *group.items], [*before.messages, *group.messages]))
        else:
            joined.append(group)
    return joined


def list_messages(groups: Iterable[Group[Any]]) -> list[Message]:
    return [message for group in groups for message in group.messages]


def list_ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]
