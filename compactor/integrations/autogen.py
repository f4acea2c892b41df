"""AutoGen: a model context that keeps an agent's conversation whole, and gives its model what fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from autogen_core import FunctionCall
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import AssistantMessage, FunctionExecutionResult, LLMMessage, SystemMessage, UserMessage
from autogen_core.models import FunctionExecutionResultMessage as Results

from ..formats.parts import dump_json, make_answer, make_content, make_file, read_calls, read_text
from .base import Conversations, Group, Message

__all__ = ["Compaction", "Context"]


class Compaction(Conversations[LLMMessage]):
    """Makes contexts: ``AssistantAgent(..., model_context=Compaction(budget=100_000).make_context("session"))``.

    Arguments are those of ``Conversations``. *session_id* may be a function of what ``make_context`` is given first; by
    default that names the session. The agent's system prompt and its tools count nothing here: the agent adds them.
    """

    def make_context(self, session_id: str, initial_messages: list[LLMMessage] | None = None) -> Context:
        """Return the context of one agent in one conversation."""
        return Context(self, self.name_session(session_id, session_id), initial_messages)

    def read(self, items: Sequence[LLMMessage]) -> Iterable[Group[LLMMessage]]:
        return [Group([item], _read(item)) for item in items]

    def write(self, messages: Sequence[Message]) -> Iterable[LLMMessage]:
        for is_result, group in groupby(messages, key=lambda message: bool(message["role"] == "tool")):
            made = [*map(_write, group)]
            yield from [Results(content=made)] if is_result else made


def _read(item: LLMMessage) -> list[Message]:
    if isinstance(item, Results):
        told = [(one.call_id, one.name, one.content) for one in item.content]
        return [{"role": "tool", "tool_call_id": one, "name": name, "content": said} for one, name, said in told]
    parts: list[Any] = [item.content] if isinstance(item.content, str) else item.content
    if isinstance(item, AssistantMessage):
        calls = [(one.id, one.name, one.arguments) for one in parts if isinstance(one, FunctionCall)]
        return [{**make_answer((item.thought or "") if calls else item.content, calls), "name": item.source}]
    if isinstance(item, SystemMessage):
        return [{"role": "system", "content": item.content}]
    said = make_content(one if isinstance(one, str) else make_file(one.data_uri, is_image=True) for one in parts)
    return [{"role": "user", "content": said, "name": item.source}]


def _write(message: Message) -> Any:
    text, role = read_text(message), message["role"]
    if role == "tool":
        return FunctionExecutionResult(content=text, name=message.get("name") or "", call_id=message["tool_call_id"])
    source = message.get("name") or role
    if role == "assistant":
        calls = [FunctionCall(one, dump_json(given), name) for one, name, given in read_calls(message)]
        return AssistantMessage(content=calls or text, thought=(calls and text) or None, source=source)
    return UserMessage(content=text, source=source) if role == "user" else SystemMessage(content=text)


class Context(ChatCompletionContext):
    """What ``Compaction.make_context`` makes: ``get_messages`` gives what fits, ``save_state`` everything."""

    def __init__(self, compaction: Compaction, session_id: str, initial_messages: list[LLMMessage] | None) -> None:
        super().__init__(initial_messages)
        self._compaction, self._session_id = compaction, session_id

    async def add_message(self, message: LLMMessage) -> None:
        await super().add_message(message)
        if isinstance(message, AssistantMessage):
            await self._compaction.akeep(self._session_id, [message])

    async def get_messages(self) -> list[LLMMessage]:
        fitted = await self._compaction.afit(self._session_id, self._messages)
        return [*([SystemMessage(content=fitted.system)] if fitted.system else []), *fitted.items]
