"""What is shown, as plain JSON values and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory.errors import ContextError
from memory.rounds import freeze_mapping

from ...prompt.groups import Message
from .shown import Item, Log, Made, NotAMessage, Said, beside, originals, to_messages


class StateError(ContextError, KeyError, ValueError):
    """A state cannot be loaded; everything is as it was."""

    __str__ = Exception.__str__  # KeyError's would put the sentence in quotation marks


_REQUIRED = ("max_token", "chat_history_storage", "memory_storage")
_KNOWN = (*_REQUIRED, "sources", "beside", "direct_updates")
_UNFIT = "the state's sources do not fit its storages; load it as state_dict() returned it, or without its sources"


def encoded(item: Item, numbers: dict[Item, int], log: Log) -> int | list[Any]:
    """Return the number of a message in the history; for another, what it stands for."""
    if item in numbers:
        return numbers[item]
    if not isinstance(item, Made) or not item.sources:
        return []
    # A text that stood beside what it tells of is left out: what it tells of is in the history, and may be erased.
    kept = [source for source in originals([item]) if isinstance(source, Said) or not source.beside]
    return [numbers.get(source, log.read(source)) for source in kept]


def encoded_beside(item: Item, numbers: dict[Item, int]) -> list[int]:
    """Return the numbers of the messages in the history that a message may tell of as well."""
    return sorted(numbers[one] for one in beside(item) if one in numbers)


@dataclass(frozen=True, slots=True)
class State:
    """What a state dict holds, checked; None for what is missing."""

    max_token: int | None
    history: list[Message] | None
    shown: list[Message] | None
    sources: list[Any] | None
    #: Places in the history for each that is shown; None without sources, and in a state of an earlier version.
    beside: list[Any] | None
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
        beside_ = None if sources is None else state.get("beside")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise StateError("the state's max_token is no whole number from 1 on; correct it, or leave it out")
        lists = [_listed(state, key) for key in ("chat_history_storage", "memory_storage", "direct_updates")]
        for one in (sources, beside_):
            if one is not None and (not isinstance(one, list) or len(one) != len(lists[1] or ())):
                raise StateError(_UNFIT)
        return cls(limit, lists[0], lists[1], sources, beside_, lists[2])

    def check_sources(self, count: int) -> None:
        """Raise ``StateError`` unless all sources are in a history of *count* messages, or messages themselves."""
        for source in self.sources or ():
            for one in source if isinstance(source, list) else [source]:
                if not _is_place(one, count) and not (isinstance(source, list) and _is_message(one)):
                    raise StateError(_UNFIT)
        for told in self.beside or ():
            if not isinstance(told, list) or not all(_is_place(one, count) for one in told):
                raise StateError(_UNFIT)

    def items(self, history: Sequence[Said], log: Log) -> list[Item]:
        """Return what is shown, its messages of the log by their places in *history*."""
        if self.shown is None:
            return list(history)
        if self.sources is not None:
            told = self.beside or [[]] * len(self.shown)
            return [_decoded(*one, history) for one in zip(self.shown, self.sources, told, strict=True)]
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


def _is_place(value: object, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count


def _is_message(value: object) -> bool:
    try:
        to_messages([value])
    except NotAMessage:
        return False
    return True


def _decoded(message: Message, source: Any, told: Sequence[int], history: Sequence[Said]) -> Item:
    if isinstance(source, int):
        return history[source]
    return Made(
        freeze_mapping(message),
        tuple(history[one] if isinstance(one, int) else Made(freeze_mapping(one)) for one in source),
        tuple(history[one] for one in told),
    )
