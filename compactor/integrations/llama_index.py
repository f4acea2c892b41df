"""LlamaIndex: a memory that keeps the whole conversation, and shows the model the part that fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory.types import BaseChatStoreMemory
from llama_index.core.tools import FunctionTool, ToolMetadata
from pydantic import Field

from ..formats import llama_index
from .base import Conversations, Fitted, Group, Message

__all__ = ["Compaction", "History"]

_compactions: WeakValueDictionary[str, Compaction] = WeakValueDictionary()


class Compaction(Conversations[ChatMessage]):
    """Makes memories: ``agent.run("...", memory=Compaction(budget=100_000).make_memory("session"))``.

    Arguments are those of ``Conversations``. The first argument of ``make_memory`` names the session, or *session_id*
    may be a function of it. A ``FunctionAgent``'s additions are not counted here; see ``llama_index_agent``.
    """

    def __init__(self, budget: int, **options: Any) -> None:
        super().__init__(budget, **options)
        self._key = uuid4().hex
        _compactions[self._key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_compaction, (self._key,)  # a pickled or copied memory refers to this object again

    def make_memory(self, session_id: str, **options: Any) -> History:
        """Return the memory of one session. *options*: ``chat_store``, which keeps the messages."""
        return History(compaction=self, chat_store_key=self.name_session(session_id, session_id), **options)

    def tools(self, session_id: str) -> list[FunctionTool]:
        """Return the tools of ``Recall``, for the agent with that memory: they read back text that it omits."""
        bound = self.bind_tools(self.name_session(session_id, session_id))
        return [FunctionTool(async_fn=run, metadata=ToolMetadata(text, name, kind)) for name, text, kind, run in bound]

    def read(self, items: Sequence[ChatMessage]) -> Iterable[Group[ChatMessage]]:
        return [Group([item], llama_index.to_chat([item])) for item in items]

    def write(self, messages: Sequence[Message]) -> Iterable[ChatMessage]:
        return list(map(ChatMessage.model_validate, llama_index.from_chat(messages)))


def _find_compaction(key: str) -> Compaction:
    """Return the Compaction with that *key*; in another process, the only one."""
    found = _compactions.get(key) or (next(iter(_compactions.values())) if len(_compactions) == 1 else None)
    if found is None:
        raise LookupError("the memory's Compaction is gone: make one before you restore it, or call make_memory of one")
    return found


class History(BaseChatStoreMemory):
    """Made by ``Compaction.make_memory``: ``get`` returns the messages that fit, ``get_all`` all."""

    compaction: Any = Field(exclude=True, repr=False)

    @classmethod
    def from_defaults(cls, *_args: Any, **_options: Any) -> History:
        raise NotImplementedError("a memory belongs to a Compaction: call make_memory of one")

    def get(self, input: str | None = None, **_options: Any) -> list[ChatMessage]:  # noqa: A002, ARG002
        return _add_system(self.compaction.fit(self.chat_store_key, self.get_all()))

    async def aget(self, input: str | None = None, **_options: Any) -> list[ChatMessage]:  # noqa: A002, ARG002
        return _add_system(await self.compaction.afit(self.chat_store_key, await self.aget_all()))


def _add_system(fitted: Fitted[ChatMessage]) -> list[ChatMessage]:
    return [*([ChatMessage(fitted.system, role="system")] if fitted.system else []), *fitted.items]
