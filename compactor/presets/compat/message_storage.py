"""The two storages of a ``MemoryWithCompress`` as its users know them: what was said, and what is shown of it.

Both are one log, so neither can be replaced alone: a storage of one's own is a ``Store``, handed to the ``Memory``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from ...prompt.groups import Message

if TYPE_CHECKING:
    from .memory_with_compress import MemoryWithCompress

Given = Sequence[Mapping[str, Any]] | Mapping[str, Any] | None


class MessageStorage(ABC):
    """Messages of one conversation. ``async with`` it, or use it at once: there is nothing that has to be started."""

    def __init__(self, owner: MemoryWithCompress) -> None:
        self._owner = owner

    async def start(self) -> None:
        """Read what other processes wrote. Raises ``StoreError`` where the store cannot be read."""
        await asyncio.to_thread(self._owner.memory.refresh)

    async def stop(self) -> None:
        """Write what the store did not take before. The store is the host's, which closes it."""
        await asyncio.to_thread(self._owner.keep)

    async def health(self) -> bool:
        """Return whether the store can be read."""
        try:
            await self.start()
        except Exception:  # noqa: BLE001  (a store of the host's own may raise anything)
            return False
        return True

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    @abstractmethod
    async def get(self) -> list[Message]:
        """Return all of its messages."""

    @abstractmethod
    async def add(self, messages: Given) -> None: ...

    @abstractmethod
    async def delete(self, indices: Iterable[int] | int) -> None: ...

    @abstractmethod
    async def clear(self) -> None: ...

    @abstractmethod
    async def replace(self, messages: Given) -> None: ...


class ChatHistoryStorage(MessageStorage):
    """Everything that was said since the last ``clear``. It only grows: what has to go is erased by ``redact``."""

    async def get(self) -> list[Message]:
        return self._owner.history()

    async def add(self, messages: Given) -> None:
        """Add messages, which are shown as well."""
        await self._owner.add(messages)

    async def delete(self, indices: Iterable[int] | int) -> None:
        raise NotImplementedError(
            "the history keeps what was said; hide it with delete(), or erase it with memory.redact(reference)"
        )

    async def clear(self) -> None:
        """Begin anew: nothing is shown and nothing is counted. The log keeps what it has."""
        await self._owner.clear()

    async def replace(self, messages: Given) -> None:
        raise NotImplementedError("the history keeps what was said; direct_update_memory() shows other messages")


class MemoryStorage(MessageStorage):
    """What is shown, some of it compressed. Reading it compresses nothing."""

    async def get(self) -> list[Message]:
        return self._owner.shown()

    async def add(self, messages: Given) -> None:
        """Show messages that are not history, behind all that is shown."""
        await self._owner.direct_update_memory([*self._owner.shown(), *_listed(messages)])

    async def delete(self, indices: Iterable[int] | int) -> None:
        """Show the messages at *indices* no more. They stay in the history."""
        await self._owner.delete(indices)

    async def clear(self) -> None:
        """Show nothing. The history stays."""
        await self._owner.direct_update_memory([])

    async def replace(self, messages: Given) -> None:
        """Show *messages* instead of what is shown. The history stays."""
        await self._owner.direct_update_memory(_listed(messages))


def _listed(messages: Given) -> list[Mapping[str, Any]]:
    if messages is None:
        return []
    return [messages] if isinstance(messages, Mapping) else list(messages)
