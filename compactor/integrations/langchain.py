"""LangChain and LangGraph: a middleware that shortens each model call, and nothing that the graph keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import ToolRuntime
from langchain_core import messages as lc
from langchain_core.runnables import ensure_config
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from ..formats import langchain
from ..formats.parts import make_text, make_tool
from .base import Conversations, Fitted, Group, Message

__all__ = ["Compaction"]


class Compaction(AgentMiddleware, Conversations[lc.BaseMessage]):
    """Middleware for ``create_agent``: ``middleware=[Compaction(budget=100_000)]``.

    Put it behind middleware that sets the system prompt: the summary stands there. *session_id* may be a function of
    the runtime; by default the thread's id, which only a checkpointer tells, the nodes that hold the agent and the
    agent's name name the session. *recall* gives the agent the tools of ``Recall``; without a name, calls raise
    ``ValueError`` then. Other arguments are those of ``Conversations``.
    """

    def __init__(self, budget: int, *, recall: bool = False, **options: Any) -> None:
        AgentMiddleware.__init__(self)
        Conversations.__init__(self, budget, **options)
        self.tools = [self._make_tool(*told) for told in self.describe_tools()] if recall else []

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

    def read(self, items: Sequence[lc.BaseMessage]) -> Iterable[Group[lc.BaseMessage]]:
        return [Group([item], [message]) for item, message in zip(items, langchain.to_chat(items), strict=True)]

    def write(self, messages: Sequence[Message]) -> Iterable[lc.BaseMessage]:
        return list(lc.messages_from_dict(langchain.from_chat(messages)))

    def _make_tool(self, name: str, description: str, schema: dict[str, Any]) -> BaseTool:
        def call(runtime: ToolRuntime, **arguments: Any) -> str:
            return self.call_tool(self._name(runtime), name, arguments)

        async def acall(runtime: ToolRuntime, **arguments: Any) -> str:
            return await self.acall_tool(self._name(runtime), name, arguments)

        return StructuredTool(name=name, description=description, args_schema=schema, func=call, coroutine=acall)

    def _name(self, runtime: Any) -> str:
        return self.name_session(runtime, _read_names(getattr(runtime, "execution_info", None)))

    def _read_request(self, request: ModelRequest) -> tuple[str, dict[str, Any]]:
        system = request.system_message.text if request.system_message is not None else ""
        options = {"model": request.model, "system": system, "tools": _list_tools(request)}
        session_id = self._name(request.runtime)
        return self.require_name(session_id) if self.tools else session_id, options


def _read_names(info: Any) -> str | None:
    """Return the thread's id, then the nodes that hold the agent, less the ids of their tasks, and the agent's name;
    None without a thread."""
    if (thread := getattr(info, "thread_id", None)) is None:
        return None
    nodes = [node.partition(":")[0] for node in getattr(info, "checkpoint_ns", "").split("|")[:-1]]
    agent = ensure_config().get("metadata", {}).get("lc_agent_name")
    return "/".join([str(thread), *nodes, *([agent] if agent else [])])


def _list_tools(request: ModelRequest) -> list[dict[str, Any]]:
    tools = [one if isinstance(one, dict) else convert_to_openai_tool(one) for one in request.tools]
    if (wanted := request.response_format) is not None:  # its schema is sent too
        specs = ToolStrategy(wanted if isinstance(wanted, (type, dict)) else wanted.schema).schema_specs
        tools += [dict(make_tool(one.name, one.description, one.json_schema)) for one in specs]
    return tools


def _override(request: ModelRequest, fitted: Fitted[lc.BaseMessage]) -> ModelRequest:
    system = request.system_message
    if fitted.added:
        blocks = system.content if system is not None else ""  # with their marks for a cache
        added = fitted.system if isinstance(blocks, str) else [*blocks, make_text(fitted.added)]
        system = lc.SystemMessage(added)
    return request.override(messages=fitted.items, system_message=system)  # type: ignore[arg-type]
