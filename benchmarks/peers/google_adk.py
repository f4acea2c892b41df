"""Google ADK's event compaction, in an agent that its Runner runs (google-adk 2.13.0).

Settings: `EventsCompactionConfig` by tokens, which its page calls the primary one: `token_threshold` is the budget
less the system message and tools, `event_retention_size=5` is the page's example (there are no defaults); the
summarizer is `LlmEventSummarizer` with its default prompt, over LiteLLM. `InMemorySessionService` keeps every event.
https://google.github.io/adk-docs/context/compaction/

Variant `sliding`: `EventsCompactionConfig(compaction_interval=3, overlap_size=1)`, its page's example for chats.

The agent's model is `LiteLlm` with a client that gives the driver's answers and knows no usage, so the threshold is
compared with ADK's own estimate. Its loop, its tools and its request processors are as they are.
"""

from __future__ import annotations

import json
import os
from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting
from benchmarks.comparison.agent_loop import AgentLoop

VARIANTS = ("", "sliding")


def make(setting: Setting) -> Adapter:
    return GoogleADK(setting)


class GoogleADK(Adapter):
    name = "google-adk"
    settings = "EventsCompactionConfig(token_threshold = budget less system and tools, event_retention_size=5)"

    def __init__(self, setting: Setting) -> None:
        # What a model costs need not be looked up on the network.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        from importlib.metadata import version

        from google.adk.agents import LlmAgent
        from google.adk.apps.app import App, EventsCompactionConfig
        from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
        from google.adk.models.lite_llm import LiteLlm, LiteLLMClient
        from google.adk.runners import InMemoryRunner
        from google.adk.tools import BaseTool
        from google.genai import types
        from litellm import ModelResponse, completion

        # What litellm and its client import at their first request is not what a turn costs.
        completion(model="openai/gpt-4o", messages=[{"role": "user", "content": "Hello."}], mock_response="Hello.")
        import openai.resources.chat  # noqa: F401

        self.version = version("google-adk")
        self._types = types
        self._loop = loop = AgentLoop()

        class Driven(LiteLLMClient):
            async def acompletion(self, model: Any, messages: Any, tools: Any, **_: Any) -> Any:
                answer = await loop.answer_to([_plain(message) for message in messages])
                reason = "tool_calls" if answer.get("tool_calls") else "stop"
                return ModelResponse(model=model, choices=[{"index": 0, "message": answer, "finish_reason": reason}])

        class Tool(BaseTool):
            def __init__(self, function: Any) -> None:
                super().__init__(name=function["name"], description=function.get("description", ""))
                self._parameters = function["parameters"]

            def _get_declaration(self) -> Any:
                return types.FunctionDeclaration(
                    name=self.name, description=self.description, parameters_json_schema=self._parameters
                )

            async def run_async(self, *, args: Any, tool_context: Any) -> Any:
                return {"result": await loop.result_of(tool_context.function_call_id)}

        model = f"openai/{setting.model}"
        agent = LlmAgent(
            name="agent",
            model=LiteLlm(model=model, llm_client=Driven()),
            instruction=lambda _: setting.system,
            tools=[Tool(tool["function"]) for tool in setting.tools],
        )
        fixed = len(setting.system) + len(json.dumps(list(setting.tools)))
        when: dict[str, int] = {"token_threshold": setting.budget - fixed // 4, "event_retention_size": 5}
        if setting.variant == "sliding":
            self.name, when = "google-adk, sliding", {"compaction_interval": 3, "overlap_size": 1}
            self.settings = "EventsCompactionConfig(compaction_interval=3, overlap_size=1)"
        config = EventsCompactionConfig(
            **when,
            summarizer=LlmEventSummarizer(llm=LiteLlm(model=model, api_base=setting.base_url, api_key="unused")),
        )
        self._runner = InMemoryRunner(app=App(name="app", root_agent=agent, events_compaction_config=config))
        session = self._runner.session_service.create_session(app_name="app", user_id="user")
        self._session = loop.do(session).id

    async def _run(self, text: str) -> None:
        said = self._types.Content(role="user", parts=[self._types.Part(text=text)])
        async for _ in self._runner.run_async(user_id="user", session_id=self._session, new_message=said):
            pass

    def prompt(self, new: list[Message]) -> list[Message]:
        return self._loop.prompt(new, self._run)

    def answered(self, message: Message) -> None:
        self._loop.answered(message)

    def kept(self) -> list[str]:
        found = self._runner.session_service.get_session(app_name="app", user_id="user", session_id=self._session)
        session = self._loop.do(found)
        contents = (event.content for event in session.events if event.content and not event.actions.compaction)
        return [part.text or part.model_dump_json() for content in contents for part in content.parts]

    def close(self) -> None:
        self._loop.close()


def _plain(message: Any) -> Message:
    """Return a message of litellm's as it goes over the wire."""
    fields = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    return {name: value for name, value in fields.items() if value is not None}
