"""What is shown, as plain JSON values and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory.errors import ContextError
from memory.frozen import freeze_mapping

from ..messages.units import Message
from .shown import Item, Log, Made, NotAMessage, Said, originals, to_messages

__all__ = ["State", "StateError", "encoded"]


class StateError(ContextError, KeyError, ValueError):
    """A state cannot be loaded; everything is as it was."""

    __str__ = Exception.__str__  # KeyError's would put the sentence in quotation marks


_REQUIRED = ("max_token", "chat_history_storage", "memory_storage")
_KNOWN = (*_REQUIRED, "sources", "direct_updates")
_UNFIT = "the state's sources do not fit its storages; load it as state_dict() returned it, or without its sources"


def encoded(item: Item, numbers: dict[Item, int], log: Log) -> int | list[Any]:
    """Return the number of a message in the history; for another, what it stands for."""
    if item in numbers:
        return numbers[item]
    if not isinstance(item, Made) or not item.sources:
        return []
    return [numbers.get(source, log.read(source)) for source in originals([item])]


@dataclass(frozen=True, slots=True)
class State:
    """What a state dict holds, checked; None for what is missing."""

    max_token: int | None
    history: list[Message] | None
    shown: list[Message] | None
    sources: list[Any] | None
    direct: list[Message] | None

    @classmethod
    def of(cls, state: Mapping[str, Any], *, strict: bool) -> State:
        if not isinstance(state, Mapping):
            raise StateError(f"a state is a mapping, as state_dict() returns it, not {type(state).__name__}")
        lacking, unknown = [key for key in _REQUIRED if key not in state], [key for key in state if key not in _KNOWN]
        if strict and (lacking or unknown):
            raise StateError(
                f"the state lacks {lacking or 'nothing'} and has unknown keys: {unknown or 'none'}; load what"
                " state_dict() returned, or pass strict=False to take what there is"
            )
        limit, sources = state.get("max_token"), state.get("sources")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise StateError("the state's max_token is no whole number from 1 on; correct it, or leave it out")
        lists = [_listed(state, key) for key in ("chat_history_storage", "memory_storage", "direct_updates")]
        if sources is not None and (not isinstance(sources, list) or len(sources) != len(lists[1] or ())):
            raise StateError(_UNFIT)
        return cls(limit, lists[0], lists[1], sources, lists[2])

    def check_sources(self, count: int) -> None:
        """Raise ``StateError`` unless all sources are in a history of *count* messages, or messages themselves."""
        for source in self.sources or ():
            for one in source if isinstance(source, list) else [source]:
                is_place = isinstance(one, int) and not isinstance(one, bool) and 0 <= one < count
                if not is_place and not (isinstance(source, list) and _is_message(one)):
                    raise StateError(_UNFIT)

    def items(self, history: Sequence[Said], log: Log) -> list[Item]:
        """Return what is shown, its messages of the log by their places in *history*."""
        if self.shown is None:
            return list(history)
        if self.sources is not None:
            return [_decoded(*pair, history) for pair in zip(self.shown, self.sources, strict=True)]
        left = list(history)
        items: list[Item] = []
        for message in self.shown:  # a state of the other system: what stands there in the same words is the same
            same = next((item for item in left if log.message(item) == message), None)
            items.append(Made(freeze_mapping(message)) if same is None else same)
            left = left if same is None else left[left.index(same) + 1 :]
        return items


def _listed(state: Mapping[str, Any], key: str) -> list[Message] | None:
    if state.get(key) is None:
        return None
    try:
        return to_messages(list(state[key]))
    except (NotAMessage, TypeError) as error:
        raise StateError(f"the state's {key} is no list of messages; load it as state_dict() returned it") from error


def _is_message(value: object) -> bool:
    try:
        to_messages([value])
    except NotAMessage:
        return False
    return True


def _decoded(message: Message, source: Any, history: Sequence[Said]) -> Item:
    if isinstance(source, int):
        return history[source]
    return Made(
        freeze_mapping(message),
        tuple(history[one] if isinstance(one, int) else Made(freeze_mapping(one)) for one in source),
    )
