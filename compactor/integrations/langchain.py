"""LangChain and LangGraph: a middleware that shortens each model call, and nothing that the graph keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import BaseMessage, SystemMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool

from .base import Conversations, Group, Message

__all__ = ["Compaction"]


class Compaction(AgentMiddleware[Any, Any, Any], Conversations[BaseMessage]):
    """Middleware for ``create_agent``: ``middleware=[Compaction(budget=100_000)]``.

    Arguments are those of ``Conversations``. The thread's id names the session; without a checkpointer, *session_id*
    does.
    """

    def __init__(self, budget: int, *, session_id: str = "default", **options: Any) -> None:
        AgentMiddleware.__init__(self)
        Conversations.__init__(self, budget, **options)
        self._session_id = session_id

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        session_id, options = self._read_request(request)
        return handler(_override(request, *self.fit(session_id, request.messages, **options)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        session_id, options = self._read_request(request)
        return await handler(_override(request, *await self.afit(session_id, request.messages, **options)))

    def read(self, items: Sequence[BaseMessage]) -> Iterable[Group[BaseMessage]]:
        for item in items:
            yield Group([item], [convert_to_openai_messages(item)])  # type: ignore[list-item]

    def write(self, messages: Sequence[Message]) -> Iterable[BaseMessage]:
        return list(convert_to_messages([dict(message) for message in messages]))

    def _read_request(self, request: ModelRequest[Any]) -> tuple[str, dict[str, Any]]:
        info = getattr(request.runtime, "execution_info", None)
        system = request.system_message.text if request.system_message is not None else None
        tools = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
        options = {"model": request.model, "system": system, "tools": tools}
        return getattr(info, "thread_id", None) or self._session_id, options


def _override(request: ModelRequest[Any], system: str, messages: list[BaseMessage]) -> ModelRequest[Any]:
    message = SystemMessage(content=system) if system else None
    if request.system_message is not None and request.system_message.text == system:
        message = request.system_message
    return request.override(messages=messages, system_message=message)  # type: ignore[arg-type]
