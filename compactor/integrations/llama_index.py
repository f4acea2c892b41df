"""LlamaIndex: a memory that keeps a conversation whole, and gives the model what fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.base.llms.types import ToolCallBlock as Call
from llama_index.core.memory.types import BaseChatStoreMemory
from pydantic import PrivateAttr

from ..formats.native import to_plain
from ..formats.parts import make_answer, make_file, read_calls, read_text
from .base import Conversations, Fitted, Group, Message

__all__ = ["Compaction", "History"]

_live: WeakValueDictionary[str, Compaction] = WeakValueDictionary()


class Compaction(Conversations[ChatMessage]):
    """Makes memories: ``agent.run("...", memory=Compaction(budget=100_000).make_memory("session"))``.

    Arguments are those of ``Conversations``. *session_id* may be a function of what ``make_memory`` is given first; by
    default that names the session. What an agent adds to a request of its own counts nothing here: its system prompt,
    its tools, and the calls of a turn that is not over.
    """

    def __init__(self, budget: int, **options: Any) -> None:
        super().__init__(budget, **options)
        self._key = uuid4().hex
        _live[self._key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_live, (self._key,)  # a memory that was pickled or copied has this one again

    def make_memory(self, session_id: str, **options: Any) -> History:
        """Return the memory of one session. *options*: the ``chat_store`` that keeps it, by default one in memory."""
        return _make_history(self, {"chat_store_key": self.name_session(session_id, session_id), **options})

    def read(self, items: Sequence[ChatMessage]) -> Iterable[Group[ChatMessage]]:
        for item in items:
            told, role = item.additional_kwargs, item.role.value
            message: dict[str, Any] = {"role": role, "content": item.content or ""}
            if files := [block for block in item.blocks if isinstance(block, ImageBlock)]:
                urls = [f"data:image/png;base64,{one.resolve_image(as_base64=True).read().decode()}" for one in files]
                texts = [{"type": "text", "text": message["content"]}]
                message["content"] = [*texts, *(make_file(url, is_image=True) for url in urls)]
            if role == "assistant":
                calls = [(one.tool_call_id or "", one.tool_name, one.tool_kwargs) for one in _list_blocks(item)]
                old = read_calls({"role": role, "tool_calls": to_plain(told.get("tool_calls") or [])})
                message = dict(make_answer(message["content"], calls or old))
            elif role == "tool":
                message["tool_call_id"] = str(told.get("tool_call_id"))
            yield Group([item], [message])

    def write(self, messages: Sequence[Message]) -> Iterable[ChatMessage]:
        for message in messages:
            calls = [
                Call(tool_call_id=one, tool_name=name, tool_kwargs=given) for one, name, given in read_calls(message)
            ]
            told = {"tool_call_id": message["tool_call_id"]} if message["role"] == "tool" else {}
            blocks = [TextBlock(text=read_text(message)), *calls]
            yield ChatMessage(role=message["role"], blocks=blocks, additional_kwargs=told)


def _find_live(key: str) -> Compaction:
    """Return the Compaction of that *key*; in another process, the only one there is."""
    found = _live.get(key) or (next(iter(_live.values())) if len(_live) == 1 else None)
    if found is None:
        raise LookupError("the memory's Compaction is gone: make one before you restore it, or call make_memory of one")
    return found


def _list_blocks(item: ChatMessage) -> list[Any]:
    return [block for block in item.blocks if isinstance(block, Call)]


class History(BaseChatStoreMemory):
    """What ``Compaction.make_memory`` makes: ``get`` gives what fits, ``get_all`` everything."""

    _compaction: Compaction = PrivateAttr()

    @classmethod
    def from_defaults(cls, *_args: Any, **_options: Any) -> History:
        raise NotImplementedError("a memory belongs to a Compaction: call make_memory of one")

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_history, (self._compaction, dict(self))

    def get(self, input: str | None = None, **_options: Any) -> list[ChatMessage]:  # noqa: A002, ARG002
        return _add_system(self._compaction.fit(self.chat_store_key, self.get_all()))

    async def aget(self, input: str | None = None, **_options: Any) -> list[ChatMessage]:  # noqa: A002, ARG002
        return _add_system(await self._compaction.afit(self.chat_store_key, await self.aget_all()))


def _make_history(compaction: Compaction, options: dict[str, Any]) -> History:
    history = History(**options)
    history._compaction = compaction
    return history


def _add_system(fitted: Fitted[ChatMessage]) -> list[ChatMessage]:
    return [*([ChatMessage(fitted.system, role="system")] if fitted.system else []), *fitted.items]
