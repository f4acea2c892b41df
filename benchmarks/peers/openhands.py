"""OpenHands SDK's LLMSummarizingCondenser, asked at each step as its agent asks it (openhands-sdk 1.58.0).

Settings: `max_tokens` is the budget less the definitions of tools; `max_size=80` and `keep_first=4` are those of
`default_condenser`, which the default agent has; all else is default. Above `max_tokens` it condenses to half of that.
https://docs.openhands.dev/sdk/guides/context-condenser

A step of the agent's is `prepare_llm_messages` on its view of the events, again after each condensation. What a
condensation forgets stays among the conversation's events, and is counted as kept. Its summarizer is shown the first
500 characters of every event. It makes five attempts, with pauses of 8 to 64 seconds between them: these are virtual.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting
from benchmarks.comparison.door import virtual_sleep

#: Condensations of one step, after which it has failed: far more than any that gets on.
STEPS = 50


def make(setting: Setting) -> Adapter:
    return OpenHands(setting)


class OpenHands(Adapter):
    name = "openhands"
    settings = "LLMSummarizingCondenser(max_tokens = budget less tools, max_size=80, keep_first=4)"

    def __init__(self, setting: Setting) -> None:
        # What a model costs need not be looked up on the network.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        os.environ.setdefault("OPENHANDS_SUPPRESS_BANNER", "1")
        from importlib.metadata import version

        import tenacity.nap
        from litellm import completion, token_counter
        from openhands.sdk import LLM, LLMSummarizingCondenser
        from openhands.sdk import event as events
        from openhands.sdk import llm as messages
        from openhands.sdk.agent.utils import prepare_llm_messages
        from openhands.sdk.context.view import View
        from openhands.sdk.event.condenser import Condensation
        from openhands.sdk.mcp import MCPToolAction, MCPToolObservation

        # What litellm and its client import at their first request is not what a turn costs.
        completion(model="openai/gpt-4o", messages=[{"role": "user", "content": "Hello."}], mock_response="Hello.")
        import openai.resources.chat  # noqa: F401

        # Its retries are tenacity's, which sleeps in that module alone.
        tenacity.nap.time = SimpleNamespace(sleep=virtual_sleep(setting))
        self.version = version("openhands-sdk")
        self._events_of, self._messages_of = events, messages
        self._action, self._observation = MCPToolAction, MCPToolObservation
        self._prepared, self._condensation = prepare_llm_messages, Condensation
        # It asks newer models by an API that the server does not have; none of its requests goes on from the agent's.
        model = "openai/gpt-4o"
        self._llm = LLM(usage_id="agent", model=model, base_url=setting.base_url, api_key="unused")
        tools = token_counter(model=model, messages=[], tools=list(setting.tools)) if setting.tools else 0
        self._condenser = LLMSummarizingCondenser(
            llm=self._llm.model_copy(update={"usage_id": "condenser"}),
            max_tokens=setting.budget - tools,
            max_size=80,
            keep_first=4,
        )
        self._view = View()
        self._events: list[Any] = []
        self._calls: dict[str, Any] = {}
        self._add(events.SystemPromptEvent(system_prompt=messages.TextContent(text=setting.system), tools=[]))

    def _add(self, event: Any) -> None:
        self._events.append(event)
        self._view.append_event(event)

    def prompt(self, new: list[Message]) -> list[Message]:
        for message in new:
            self._add(self._result(message) if message["role"] == "tool" else self._said(message, "user"))
        for _ in range(STEPS):
            prepared = self._prepared(self._view, condenser=self._condenser, llm=self._llm)
            if not isinstance(prepared, self._condensation):
                return self._llm.format_messages_for_llm(prepared)
            self._add(prepared)
        raise RuntimeError(f"{STEPS} condensations, and the prompt is still too long")

    def answered(self, message: Message) -> None:
        if not message.get("tool_calls"):
            self._add(self._said(message, "agent"))
        for place, call in enumerate(message.get("tool_calls") or ()):
            self._add(self._called(call, message if place == 0 else {}, message["tool_calls"][0]["id"]))

    def _said(self, message: Message, source: str) -> Any:
        content = [self._messages_of.TextContent(text=message.get("content") or "")]
        return self._events_of.MessageEvent(
            source=source, llm_message=self._messages_of.Message(role=message["role"], content=content)
        )

    def _called(self, call: dict[str, Any], message: Message, response: str) -> Any:
        """Return the event of one *call*; those of one answer have its id, *response*, and the first has its text."""
        function, text = call["function"], message.get("content")
        self._calls[call["id"]] = event = self._events_of.ActionEvent(
            thought=[self._messages_of.TextContent(text=text)] if text else [],
            action=self._action(data=json.loads(function["arguments"])),
            tool_name=function["name"],
            tool_call_id=call["id"],
            tool_call=self._messages_of.MessageToolCall(
                id=call["id"], name=function["name"], arguments=function["arguments"], origin="completion"
            ),
            llm_response_id=response,
        )
        return event

    def _result(self, message: Message) -> Any:
        action = self._calls.pop(message["tool_call_id"])
        content = [self._messages_of.TextContent(text=message["content"])]
        return self._events_of.ObservationEvent(
            observation=self._observation(content=content, tool_name=action.tool_name),
            action_id=action.id,
            tool_name=action.tool_name,
            tool_call_id=action.tool_call_id,
        )

    def kept(self) -> list[str]:
        raw = (event for event in self._events if not isinstance(event, self._condensation))
        contents = (event.to_llm_message().content for event in raw)
        return [block.text for content in contents for block in content]
