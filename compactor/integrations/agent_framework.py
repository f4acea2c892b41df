"""Microsoft Agent Framework: a middleware that shortens each model call, and leaves the session unchanged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from agent_framework import ChatContext, ChatMiddleware, ChatResponse, FunctionInvocationContext, FunctionTool
from agent_framework import Message as Item

from ..formats import agent_framework
from ..formats.parts import make_tool
from .base import Conversations, Group, Message

__all__ = ["Compaction"]

#: The framework's placeholder for a service's id when it keeps the history itself.
LOCAL = "agent_framework_local_history_persistence"


class Compaction(Conversations[Item], ChatMiddleware):
    """Middleware of an agent: ``Agent(client=client, middleware=[Compaction(budget=100_000)])``.

    Arguments are those of ``Conversations``. *session_id* may be a function of the chat's context; by default the id of
    the agent's session names the session. Requests pass unchanged if the service keeps the conversation.
    """

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        options = dict(context.options or {})
        if options.get("conversation_id") not in (None, "", LOCAL):  # the service keeps the rest of the messages
            await call_next()
            return
        given = options.get("instructions") or ""
        offered = [tool for tool in options.get("tools") or () if hasattr(tool, "parameters")]
        tools = [make_tool(tool.name, tool.description, tool.parameters()) for tool in offered]
        session_id = self.name_session(context, getattr(context.session, "session_id", None))
        fitted = await self.afit(session_id, context.messages, model=context.client, system=given, tools=tools)
        context.messages = fitted.items
        if fitted.added:
            context.options = {**options, "instructions": fitted.system}

        async def keep(answer: ChatResponse[Any]) -> ChatResponse[Any]:
            await self.akeep(session_id, answer.messages)
            return answer

        if context.stream:
            context.stream_result_hooks.append(keep)
        await call_next()
        if isinstance(context.result, ChatResponse):
            await keep(context.result)

    def tools(self) -> list[FunctionTool]:
        """Return the tools of ``Recall``, for the agent's ``tools``: they read back text that its prompt omits. If
        *session_id* is a function, it gets the tool call's context, which also has the ``session``."""
        return [self._make_tool(*tool) for tool in self.describe_tools()]

    def _make_tool(self, name: str, description: str, schema: dict[str, Any]) -> FunctionTool:
        async def call(ctx: FunctionInvocationContext, **arguments: Any) -> str:
            session_id = self.name_session(ctx, getattr(ctx.session, "session_id", None))
            return await self.acall_tool(session_id, name, arguments)

        return FunctionTool(name=name, description=description, func=call, input_model=schema)

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        return [Group([item], agent_framework.to_chat([item])) for item in items]

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return list(map(Item.from_dict, agent_framework.from_chat(messages)))
