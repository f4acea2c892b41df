"""OpenAI Agents SDK: a filter that shortens each model call, and leaves the session unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from agents import Agent, FunctionTool, ModelResponse, RunContextWrapper, RunHooks, Tool
from agents.run import CallModelData, ModelInputData
from agents.tool_context import ToolContext

from ..formats import responses
from .base import Converted, Group, Message

__all__ = ["Compaction"]

Item = Any  # one of the SDK's input items: a mapping


class Compaction(Converted[Item], RunHooks[Any]):
    """Filter of a run: ``RunConfig(call_model_input_filter=Compaction(budget=100_000))``.

    Give it as the run's ``hooks`` too, and the log has the final answer when the run ends. Arguments are those of
    ``Conversations``. *session_id* may be a function of the run's context: the SDK does not name the conversation to a
    filter. Results of calls that the provider keeps are sent unchanged.
    """

    provider = responses.NAME

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        given = data.model_data
        if _has_results_alone(given.input):
            return given
        session_id = self.name_session(data.context, None)
        model, system = data.agent.model, given.instructions or ""
        fitted = await self.afit(session_id, given.input, system=system, model=model)
        return ModelInputData(input=fitted.items, instructions=fitted.system or None)

    async def on_llm_end(self, context: RunContextWrapper[Any], _agent: Agent[Any], response: ModelResponse) -> None:
        await self.akeep(self.name_session(context.context, None), response.output)

    def tools(self) -> list[Tool]:
        """Return the tools of ``Recall`` for the agent's ``tools``. With them it reads text that its prompt leaves out.

        Raises ``ValueError`` if no *session_id* was given.
        """
        self.require_name("" if self._session_id is None else "named")
        return [FunctionTool(*tool, partial(self._call, tool[0])) for tool in self.describe_tools()]

    async def _call(self, name: str, context: ToolContext[Any], arguments: str) -> str:
        return await self.acall_tool(self.name_session(context.context, None), name, arguments)

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        return [Group([item], messages) for item, messages in zip(items, responses.read_each(items), strict=True)]

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return list(responses.from_chat(messages)["input"])


def _has_results_alone(items: Sequence[Item]) -> bool:
    """Return whether *items* are results whose calls the provider has.

    A session that dropped its oldest items may begin with such results too, but user messages follow them.
    """
    if any(one.get("role") == "user" for one in items):
        return False
    asked = {one.get("call_id") for one in items if not _is_result(one)}
    return any(_is_result(one) and one.get("call_id") not in asked for one in items)


def _is_result(item: Item) -> bool:
    return (item.get("type") or "").endswith("_output")
