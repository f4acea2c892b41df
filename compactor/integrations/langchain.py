"""LangChain and LangGraph: a middleware that shortens each model call, and nothing that the graph keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
    convert_to_openai_messages,
)
from langchain_core.utils.function_calling import convert_to_openai_tool

from ..formats.parts import make_answer
from .base import Conversations, Fitted, Group, Message

__all__ = ["Compaction"]


class Compaction(AgentMiddleware, Conversations[BaseMessage]):
    """Middleware for ``create_agent``: ``middleware=[Compaction(budget=100_000)]``.

    Arguments are those of ``Conversations``. *session_id* may be a function of the runtime; by default the thread's id
    names the session, which only a checkpointer tells.
    """

    def __init__(self, budget: int, **options: Any) -> None:
        AgentMiddleware.__init__(self)
        Conversations.__init__(self, budget, **options)

    def wrap_model_call(self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> ModelResponse:
        session_id, options = self._read_request(request)
        response = handler(_override(request, self.fit(session_id, request.messages, **options)))
        self.keep(session_id, response.result)
        return response

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        session_id, options = self._read_request(request)
        response = await handler(_override(request, await self.afit(session_id, request.messages, **options)))
        await self.akeep(session_id, response.result)
        return response

    def read(self, items: Sequence[BaseMessage]) -> Iterable[Group[BaseMessage]]:
        return [Group([item], [_read(item)]) for item in items]

    def write(self, messages: Sequence[Message]) -> Iterable[BaseMessage]:
        return list(convert_to_messages([dict(message) for message in messages]))

    def _read_request(self, request: ModelRequest) -> tuple[str, dict[str, Any]]:
        info = getattr(request.runtime, "execution_info", None)
        system = request.system_message.text if request.system_message is not None else ""
        tools = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
        options = {"model": request.model, "system": system, "tools": tools}
        return self.name_session(request.runtime, getattr(info, "thread_id", None)), options


def _read(item: BaseMessage) -> Message:
    if type(item.content) is str and not item.name and not item.additional_kwargs.get("refusal"):
        match item:  # most; what is below takes ten times as long
            case HumanMessage():
                return {"role": "user", "content": item.content}
            case AIMessage():
                return make_answer(
                    item.content, [(one["id"] or "", one["name"], one["args"]) for one in item.tool_calls]
                )
            case ToolMessage():
                return {"role": "tool", "tool_call_id": item.tool_call_id, "content": item.content}
    converted: Message = convert_to_openai_messages(item)  # type: ignore[assignment]
    return converted


def _override(request: ModelRequest, fitted: Fitted[BaseMessage]) -> ModelRequest:
    message = SystemMessage(content=fitted.system) if fitted.added else request.system_message
    return request.override(messages=fitted.items, system_message=message)  # type: ignore[arg-type]
