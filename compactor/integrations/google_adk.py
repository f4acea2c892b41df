"""Google ADK: a plugin that shortens each model request, and leaves the session unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.genai.types import Content, FunctionDeclaration

from ..formats import gemini
from ..formats.parts import make_tool, read_text
from .base import Converted, Group, Message, join_names

__all__ = ["Compaction"]


class Compaction(Converted[Content], BasePlugin):
    """Plugin of an app: ``App(name=..., root_agent=agent, plugins=[Compaction(budget=100_000)])``.

    Arguments are those of ``Conversations``. *session_id* may be a function of the callback's context; by default app,
    user, session and agent name the session, because the agents of a session see different messages.
    """

    name = "compaction"

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        config = llm_request.config
        given: Any = config.system_instruction or ""
        if not isinstance(given, str):
            given = read_text(gemini.to_chat([], system=given)[0])
        declared = [one for tool in config.tools or () for one in getattr(tool, "function_declarations", None) or ()]
        tools = [make_tool(one.name, one.description, one.parameters_json_schema or one.parameters) for one in declared]
        name, agent = self._name(callback_context), cast("Any", callback_context.get_invocation_context().agent)
        fitted = await self.afit(name, llm_request.contents, system=given, tools=tools, model=agent.canonical_model)
        llm_request.contents = fitted.items
        if fitted.added:
            config.system_instruction = fitted.system

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        if llm_response.content and not llm_response.partial:
            await self.akeep(self._name(callback_context), [llm_response.content])

    def tools(self) -> list[Any]:
        """Return the tools of ``Recall`` for the agent's ``tools``. They read text that its prompt leaves out."""
        return [_Tool(self, *tool) for tool in self.describe_tools()]

    # The runner closes a plugin by this method; ``with`` and ``aclose`` work as in all adapters.
    async def close(self) -> None:  # type: ignore[override]
        await self.aclose()

    def read(self, items: Sequence[Content]) -> Iterable[Group[Content]]:
        return map(Group, ([item] for item in items), gemini.read_each(map(gemini.open_content, items)))

    def write(self, messages: Sequence[Message]) -> Iterable[Content]:
        return [Content.model_validate(content) for content in gemini.from_chat(messages)["contents"]]

    def print_item(self, item: Content) -> str:
        return gemini.print_content(item)

    def _name(self, context: CallbackContext) -> str:
        session = context.session
        return self.name_session(context, join_names(session.app_name, session.user_id, session.id, context.agent_name))


class _Tool(BaseTool):
    def __init__(self, compaction: Compaction, name: str, description: str, schema: dict[str, Any]) -> None:
        super().__init__(name=name, description=description)
        self._compaction, self._schema = compaction, schema

    def _get_declaration(self) -> FunctionDeclaration:
        return FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=self._schema)

    async def run_async(self, *, args: dict[str, Any], tool_context: CallbackContext) -> str:
        return await self._compaction.acall_tool(self._compaction._name(tool_context), self.name, args)
