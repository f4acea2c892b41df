"""pydantic-ai: a capability that shortens each model request, and nothing that the message history keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from pydantic_ai import FunctionToolset, RunContext, Tool
from pydantic_ai import messages as ai
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import ModelRequestContext

from ..formats.parts import make_answer, make_content, make_file, make_tool, read_calls, read_text
from .base import Conversations, Group, Message

__all__ = ["Compaction"]


class Compaction(Conversations[ai.ModelMessage], AbstractCapability[Any]):
    """Capability of an agent: ``Agent(model, capabilities=[Compaction(budget=100_000)])``.

    Arguments are those of ``Conversations``. *session_id* may be a function of the run's context; by default the
    ``conversation_id``, which messages keep, names the session. *recall* gives the agent the tools of ``Recall``.
    """

    def __init__(self, budget: int, *, recall: bool = False, **options: Any) -> None:
        super().__init__(budget, **options)
        self._recall = recall

    def get_toolset(self) -> FunctionToolset[Any] | None:
        made = [Tool.from_schema(partial(self._call, told[0]), *told, takes_ctx=True) for told in self.describe_tools()]
        return FunctionToolset(made) if self._recall else None

    async def _call(self, name: str, ctx: RunContext[Any], **arguments: Any) -> str:
        return await self.acall_tool(self.name_session(ctx, ctx.conversation_id), name, arguments)

    async def prepare_model_request(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> Any:
        given, parameters = request_context.messages, request_context.model_request_parameters
        told = parameters.instruction_parts or []
        fixed: list[Any] = [part for part in given[0].parts if isinstance(part, ai.SystemPromptPart)]
        system = "\n\n".join(part.content for part in (*fixed, *told))
        offered = (*parameters.function_tools, *parameters.output_tools)
        tools = [make_tool(tool.name, tool.description, tool.parameters_json_schema) for tool in offered]
        model, session_id = request_context.model, self.name_session(ctx, ctx.conversation_id)
        fitted = await self.afit(session_id, given, model=model, system=system, tools=tools)
        messages = fitted.items or given
        if fixed and messages[:1] != given[:1]:
            messages = [ai.ModelRequest(parts=fixed), *messages]
        if fitted.added:
            told = [*told, ai.InstructionPart(fitted.added, dynamic=True)]
            parameters = replace(parameters, instruction_parts=told)
        return replace(request_context, messages=messages, model_request_parameters=parameters)

    async def after_model_request(self, ctx: RunContext[Any], *, response: ai.ModelResponse, **_options: Any) -> Any:
        await self.akeep(self.name_session(ctx, ctx.conversation_id), [response])
        return response

    def read(self, items: Sequence[ai.ModelMessage]) -> Iterable[Group[ai.ModelMessage]]:
        for place, item in enumerate(items):
            parts: list[Any] = [part for part in item.parts if place or not isinstance(part, ai.SystemPromptPart)]
            yield Group([item], [*map(_read_part, parts)] if item.kind == "request" else [_read_answer(parts)])

    def write(self, messages: Sequence[Message]) -> Iterable[ai.ModelMessage]:
        for is_answer, run in groupby(messages, lambda message: message["role"] == "assistant"):
            parts: list[Any] = [part for message in run for part in _write(message)]
            yield ai.ModelResponse(parts=parts) if is_answer else ai.ModelRequest(parts=parts)


def _read_answer(parts: Sequence[Any]) -> Message:
    calls = [part for part in parts if isinstance(part, ai.ToolCallPart)]
    text = "".join(part.content for part in parts if isinstance(part, ai.TextPart))
    return make_answer(text, [(one.tool_call_id, one.tool_name, one.args_as_json_str()) for one in calls])


def _read_part(part: Any) -> Message:
    if isinstance(part, ai.ToolReturnPart):
        content = make_content([part.model_response_str(), *map(_read_content, part.files)])
        return {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name, "content": content}
    is_retry = part.part_kind in ("retry-feedback", "retry-prompt")
    said = part.model_response() if is_retry else getattr(part, "content", None) or ""
    content = make_content(said if isinstance(said, str) else map(_read_content, said))
    if is_retry and getattr(part, "tool_name", None):  # the old form of a call that is to be made again
        return {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name, "content": content}
    return {"role": "system" if isinstance(part, ai.SystemPromptPart) else "user", "content": content}


def _read_content(one: Any) -> str | Message:
    if isinstance(one, (str, ai.TextContent, ai.CachePoint)):
        return one if isinstance(one, str) else getattr(one, "content", "")
    url = str(getattr(one, "data_uri", None) or getattr(one, "url", ""))
    return make_file(url, is_image=isinstance(one, ai.ImageUrl) or url.startswith("data:image/"))


def _write(message: Message) -> list[Any]:
    text, role = read_text(message), message["role"]
    if role == "tool":
        return [ai.ToolReturnPart(message.get("name") or "", text, tool_call_id=message["tool_call_id"])]
    if role != "assistant":
        return [ai.UserPromptPart(text) if role == "user" else ai.SystemPromptPart(text)]
    calls = [ai.ToolCallPart(name, given, tool_call_id=call_id) for call_id, name, given in read_calls(message)]
    return [*([ai.TextPart(text)] if text else []), *calls]
