"""pydantic-ai: a capability that shortens each model request, and leaves the message history unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic_ai import FunctionToolset, RunContext, Tool
from pydantic_ai import messages as ai
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import ModelRequestContext

from ..formats import pydantic_ai
from ..formats.parts import make_tool
from .base import Conversations, Group, Message

__all__ = ["Compaction"]


class Compaction(Conversations[ai.ModelMessage], AbstractCapability[Any]):
    """Capability of an agent: ``Agent(model, capabilities=[Compaction(budget=100_000)])``.

    Arguments are those of ``Conversations``. *session_id* may be a function of the run's context; by default the
    messages' ``conversation_id`` names the session. *recall* gives the agent the tools of ``Recall``.
    """

    def __init__(self, budget: int, *, recall: bool = False, **options: Any) -> None:
        super().__init__(budget, **options)
        self._recall = recall

    def get_toolset(self) -> FunctionToolset[Any] | None:
        tools = [
            Tool.from_schema(partial(self._call, tool[0]), *tool, takes_ctx=True) for tool in self.describe_tools()
        ]
        return FunctionToolset(tools) if self._recall else None

    async def _call(self, name: str, ctx: RunContext[Any], **arguments: Any) -> str:
        return await self.acall_tool(self.name_session(ctx, ctx.conversation_id), name, arguments)

    async def prepare_model_request(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> Any:
        given, parameters = request_context.messages, request_context.model_request_parameters
        parts = parameters.instruction_parts or []
        fixed: list[Any] = [part for part in given[0].parts if isinstance(part, ai.SystemPromptPart)]
        system = "\n\n".join(part.content for part in (*fixed, *parts))
        offered = (*parameters.function_tools, *parameters.output_tools)
        tools = [make_tool(tool.name, tool.description, tool.parameters_json_schema) for tool in offered]
        model, session_id = request_context.model, self.name_session(ctx, ctx.conversation_id)
        fitted = await self.afit(session_id, given, model=model, system=system, tools=tools)
        messages = fitted.items or given
        if fixed and messages[:1] != given[:1]:
            messages = [ai.ModelRequest(parts=fixed), *messages]
        if fitted.added:
            parts = [*parts, ai.InstructionPart(fitted.added, dynamic=True)]
            parameters = replace(parameters, instruction_parts=parts)
        return replace(request_context, messages=messages, model_request_parameters=parameters)

    async def after_model_request(self, ctx: RunContext[Any], *, response: ai.ModelResponse, **_options: Any) -> Any:
        await self.akeep(self.name_session(ctx, ctx.conversation_id), [response])
        return response

    def read(self, items: Sequence[ai.ModelMessage]) -> Iterable[Group[ai.ModelMessage]]:
        for place, item in enumerate(items):
            said = pydantic_ai.to_chat([item])  # the first item's system messages are in the system prompt
            yield Group([item], [one for one in said if place or one["role"] != "system"])

    def write(self, messages: Sequence[Message]) -> Iterable[ai.ModelMessage]:
        return list(ai.ModelMessagesTypeAdapter.validate_python(pydantic_ai.from_chat(messages)))
