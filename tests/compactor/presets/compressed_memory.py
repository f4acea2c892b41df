"""Conversations in a ``MemoryWithCompress``, and functions that compress them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from chats import Message, answer, calls, result, user

from compactor.presets import MemoryWithCompress, NotCompressed
from memory import Event

T = TypeVar("T")
SYSTEM = {"role": "system", "content": "You are terse."}
SHORT = user("[short]")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def shown(memory: MemoryWithCompress, **options: Any) -> list[Message]:
    return run(memory.get_memory(**options))


def filled(conversation: Sequence[Message], *, max_token: int = 10, **options: Any) -> MemoryWithCompress:
    """A memory that holds a conversation and is over its limit."""
    memory = MemoryWithCompress(max_token, **{"compress_func": shortened} | options)
    run(memory.add(conversation))
    return memory


def shortened(_messages: list[Message]) -> list[Message]:
    return [SHORT]


def turn(number: int) -> list[Message]:
    """A question, the calls made for it, and the answer."""
    return [
        user(f"Question {number}: where is parcel P-{number}00?"),
        calls(f"c{number}", arguments=f'{{"parcel": "P-{number}00"}}'),
        result(f"c{number}", f"Parcel P-{number}00 is in depot D{number}. " * 8),
        answer(f"It is in depot D{number}."),
    ]


def turns(count: int) -> list[Message]:
    return [message for number in range(1, count + 1) for message in turn(number)]


def heard(memory: MemoryWithCompress) -> list[Event]:
    events: list[Event] = []
    memory.memory.on_event(events.append)
    return events


def reasons(events: Sequence[Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, NotCompressed)]
