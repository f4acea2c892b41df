"""Strands Agents: a middleware that shortens each model call, and leaves the agent's messages unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from strands.middleware.stages import InvokeModelContext
from strands.tools import PythonAgentTool
from strands.types.tools import ToolResult, ToolUse

from ..formats import strands
from ..formats.parts import make_tool
from .base import Conversations, Group, Message, join_names

__all__ = ["Compaction"]

Item = Any  # one of the agent's messages: a mapping


class Compaction(Conversations[Item]):
    """Middleware of an agent: ``agent.add_middleware(InvokeModelStage.Input, Compaction(budget=100_000))``.

    Arguments are those of ``Conversations``. *session_id* may be a function of the agent; by default the ids of its
    session manager and the agent name the session. An agent without a session manager gets a new one.
    """

    def __init__(self, budget: int, **options: Any) -> None:
        super().__init__(budget, **options)
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    async def __call__(self, context: InvokeModelContext) -> InvokeModelContext:
        given = context.system_prompt or []
        blocks = [{"text": given}] if isinstance(given, str) else list(given)
        system = "\n\n".join(block["text"] for block in blocks if "text" in block)
        tools = [make_tool(one["name"], one["description"], one["inputSchema"]["json"]) for one in context.tool_specs]
        session_id = self.name_session(context.agent, self._read_ids(context.agent))
        fitted = await self.afit(session_id, context.messages, model=context.model, system=system, tools=tools)
        if fitted.added:
            return context.replace(messages=fitted.items, system_prompt=[*blocks, {"text": fitted.added}])
        return context.replace(messages=fitted.items)

    def tools(self) -> list[PythonAgentTool]:
        """Return the tools of ``Recall``, for the agent's ``tools``: they read back text that its prompt omits."""
        return [
            PythonAgentTool(
                name, {"name": name, "description": description, "inputSchema": {"json": schema}}, self._call
            )
            for name, description, schema in self.describe_tools()
        ]

    async def _call(self, tool_use: ToolUse, *, agent: Any, **_state: Any) -> ToolResult:
        session_id = self.name_session(agent, self._read_ids(agent))
        answer = await self.acall_tool(session_id, tool_use["name"], tool_use["input"])
        return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": answer}]}

    def _read_ids(self, agent: Any) -> str:
        session_id = getattr(getattr(agent, "_session_manager", None), "session_id", None)
        return join_names(session_id, agent.agent_id) if session_id else self._names.setdefault(agent, uuid4().hex)

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        return [Group([item], strands.to_chat([item])) for item in items]

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return strands.from_chat(messages)
