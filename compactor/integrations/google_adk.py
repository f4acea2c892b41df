"""Google ADK: a plugin that shortens each model request, and nothing that the session keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.genai.types import Content

from ..formats import gemini
from .base import Converted, Group, Message, make_tool, read_text

__all__ = ["Compaction"]


class Compaction(Converted[Content], BasePlugin):
    """Plugin of an app: ``App(name=..., root_agent=agent, plugins=[Compaction(budget=100_000)])``.

    Arguments are those of ``Conversations``, and *session_id*, a function of the callback's context. By default app,
    user, session and agent name the session, because the agents of a session do not all see the same.
    """

    def __init__(
        self, budget: int, *, session_id: Callable[[CallbackContext], str] | None = None, **options: Any
    ) -> None:
        super().__init__(budget, **options)
        self.name, self._name_session = "compaction", session_id or _name_session

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        config = llm_request.config
        given: Any = config.system_instruction or ""
        if not isinstance(given, str):
            given = read_text(gemini.to_chat([], system=given)[0])
        declared = [one for tool in config.tools or () for one in getattr(tool, "function_declarations", None) or ()]
        system, contents = await self.afit(
            self._name_session(callback_context),
            llm_request.contents,
            system=given,
            tools=[
                make_tool(one.name, one.description, one.parameters_json_schema or one.parameters) for one in declared
            ],
        )
        llm_request.contents = contents
        if system != given:
            config.system_instruction = system

    # The runner's way to close a plugin; ``with`` and ``aclose`` are those of all adapters.
    async def close(self) -> None:  # type: ignore[override]
        await self.aclose()

    def read(self, items: Sequence[Content]) -> Iterable[Group[Content]]:
        return [Group(items, gemini.to_chat(items))]

    def write(self, messages: Sequence[Message]) -> Iterable[Content]:
        return [Content.model_validate(content) for content in gemini.from_chat(messages)["contents"]]


def _name_session(context: CallbackContext) -> str:
    session = context.session
    return "/".join((session.app_name, session.user_id, session.id, context.agent_name))
