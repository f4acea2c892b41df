"""AutoGen: a model context that keeps an agent's whole conversation, and shows its model the part that fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from autogen_core import CancellationToken
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import AssistantMessage, LLMMessage, SystemMessage
from autogen_core.tools import BaseTool
from pydantic import BaseModel, TypeAdapter

from memory.rounds import run_dump

from ..formats import autogen
from .base import Conversations, Group, Message

__all__ = ["Compaction", "Context"]

_ITEMS = TypeAdapter(list[LLMMessage])


class Compaction(Conversations[LLMMessage]):
    """Makes contexts: ``AssistantAgent(..., model_context=Compaction(budget=100_000).make_context("session"))``.

    Arguments are those of ``Conversations``. The first argument of ``make_context`` names the session, or *session_id*
    may be a function of it. The agent adds its system prompt and its tools itself, so they are not counted here.
    """

    def make_context(self, session_id: str, initial_messages: list[LLMMessage] | None = None) -> Context:
        """Return the context of one agent in one conversation."""
        return Context(self, self.name_session(session_id, session_id), initial_messages)

    def tools(self, session_id: str) -> list[BaseTool[Any, Any]]:
        """Return the tools of ``Recall``, for the agent with that context: they read back text that it omits."""
        return [_Tool(*tool) for tool in self.bind_tools(self.name_session(session_id, session_id))]

    def read(self, items: Sequence[LLMMessage]) -> Iterable[Group[LLMMessage]]:
        return [Group([item], autogen.to_chat([item])) for item in items]

    def write(self, messages: Sequence[Message]) -> Iterable[LLMMessage]:
        return _ITEMS.validate_python(autogen.from_chat(messages))


class Context(ChatCompletionContext):
    """Made by ``Compaction.make_context``: ``get_messages`` returns the messages that fit, ``save_state`` all."""

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


class _Tool(BaseTool[Any, Any]):
    def __init__(
        self, name: str, description: str, arguments: type[BaseModel], call: Callable[..., Awaitable[str]]
    ) -> None:
        super().__init__(arguments, str, name, description)
        self._call = call

    async def run(self, args: BaseModel, cancellation_token: CancellationToken) -> str:  # noqa: ARG002
        return await self._call(**run_dump(args.model_dump))
