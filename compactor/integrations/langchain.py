"""LangChain and LangGraph: a middleware that shortens each model call, and leaves the graph's state unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import BaseTool, ToolRuntime, tool
from langchain_core import messages as lc
from langchain_core.runnables import ensure_config
from langchain_core.utils.function_calling import convert_to_openai_tool

from ..formats import langchain
from ..formats.parts import make_tool
from .base import Conversations, Fitted, Group, Message, join_names

__all__ = ["Compaction"]


class Compaction(AgentMiddleware, Conversations[lc.BaseMessage]):
    """Middleware for ``create_agent``: ``middleware=[Compaction(budget=100_000)]``.

    Put it after middleware that sets the system prompt, because the summary is added there. *session_id* may be a
    function of the runtime; by default the checkpointer's thread, the graph's nodes and the agent name the session.
    *recall* adds the tools of ``Recall``; calls without a name then raise ``ValueError``. Others: ``Conversations``.
    """

    def __init__(self, budget: int, *, recall: bool = False, **options: Any) -> None:
        super().__init__(budget, **options)
        self.tools = [self._make_tool(*tool) for tool in self.describe_tools()] if recall else []

    def wrap_model_call(self, request: ModelRequest, handler: Callable[..., ModelResponse]) -> ModelResponse:
        session_id, options = self._read_request(request)
        response = handler(_override(request, self.fit(session_id, request.messages, **options)))
        self.keep(session_id, response.result)
        return response

    async def awrap_model_call(self, request: ModelRequest, handler: Callable[..., Any]) -> Any:
        session_id, options = self._read_request(request)
        response = await handler(_override(request, await self.afit(session_id, request.messages, **options)))
        await self.akeep(session_id, response.result)
        return response

    def read(self, items: Sequence[lc.BaseMessage]) -> Iterable[Group[lc.BaseMessage]]:
        return [Group([item], langchain.to_chat([item])) for item in items]

    def write(self, messages: Sequence[Message]) -> Iterable[lc.BaseMessage]:
        return list(lc.messages_from_dict(langchain.from_chat(messages)))

    def _make_tool(self, name: str, description: str, schema: dict[str, Any]) -> BaseTool:
        def call(runtime: ToolRuntime, **arguments: Any) -> str:
            return self.call_tool(self._name(runtime), name, arguments)

        return tool(name, description=description, args_schema=schema)(call)

    def _name(self, runtime: Any) -> str:
        info = getattr(runtime, "execution_info", None)
        nodes = [node.partition(":")[0] for node in getattr(info, "checkpoint_ns", "").split("|")[:-1]]  # no task ids
        names = [getattr(info, "thread_id", None), *nodes, ensure_config()["metadata"].get("lc_agent_name")]
        own = join_names(*(one for one in names if one is not None)) if names[0] is not None else None
        name = self.name_session(runtime, own)
        return self.require_name(name) if self.tools else name

    def _read_request(self, request: ModelRequest) -> tuple[str, dict[str, Any]]:
        tools = [one if isinstance(one, dict) else convert_to_openai_tool(one) for one in request.tools]
        if (wanted := request.response_format) is not None:  # its schema is sent too
            specs = ToolStrategy(wanted if isinstance(wanted, (type, dict)) else wanted.schema).schema_specs
            tools += [dict(make_tool(one.name, one.description, one.json_schema)) for one in specs]
        options = {"model": request.model, "system": request.system_prompt or "", "tools": tools}
        return self._name(request.runtime), options


def _override(request: ModelRequest, fitted: Fitted[lc.BaseMessage]) -> ModelRequest:
    system = request.system_message
    if fitted.added:
        system = lc.SystemMessage(fitted.extend(system.content if system is not None else ""))
    return request.override(messages=fitted.items, system_message=system)  # type: ignore[arg-type]
