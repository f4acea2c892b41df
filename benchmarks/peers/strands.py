"""Strands Agents' SummarizingConversationManager, asked before each call of the model (strands-agents 1.62.0).

Settings: `proactive_compression=True` (at 0.7 of the model's window, its default) with the budget as the model's
`context_window_limit`; `summary_ratio=0.3` and `preserve_recent_messages=10` are its defaults.
https://strandsagents.com/docs/user-guide/concepts/agents/conversation-management/

Variant `auto`: `context_manager="auto"`, which its documentation recommends for most agents: large results of tools are
cut to a preview and kept aside, older messages are summarized, and a tool of its own reads them back.
https://strandsagents.com/docs/user-guide/concepts/context-management/

The agent is a real one; its loop up to the call of the model (the estimate of the tokens, then the hooks of
`BeforeModelCallEvent`) is run on it by hand, since the driver's agent answers. As it knows no usage of those answers,
the estimate is the model's count of the whole prompt.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting

VARIANTS = ("", "auto")


def make(setting: Setting) -> Adapter:
    return Strands(setting)


def _read_all(messages: list[Message]) -> list[dict[str, Any]]:
    """Return OpenAI messages as strands', where the results of one answer's calls are one message."""
    results = [
        {
            "toolResult": {
                "toolUseId": message["tool_call_id"],
                "status": "success",
                "content": [{"text": message["content"]}],
            }
        }
        for message in messages
        if message["role"] == "tool"
    ]
    others = [_read(message) for message in messages if message["role"] != "tool"]
    return [{"role": "user", "content": results}, *others] if results else others


def _read(message: Message) -> dict[str, Any]:
    """Return the user's or the agent's message as one of strands'."""
    content: list[dict[str, Any]] = [{"text": message["content"]}] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        arguments = json.loads(call["function"]["arguments"])
        content.append({"toolUse": {"toolUseId": call["id"], "name": call["function"]["name"], "input": arguments}})
    return {"role": message["role"], "content": content}


def _definition(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a tool of strands' own as it is sent."""
    function = {"name": spec["name"], "description": spec["description"], "parameters": spec["inputSchema"]["json"]}
    return {"type": "function", "function": function}


class Strands(Adapter):
    name = "strands"
    settings = "SummarizingConversationManager(proactive_compression=True), context_window_limit = budget"

    def __init__(self, setting: Setting) -> None:
        import asyncio
        from importlib.metadata import version

        import openai.resources.chat  # noqa: F401 - its first request would wait for it
        from strands import Agent
        from strands.agent.conversation_manager import SummarizingConversationManager
        from strands.event_loop.event_loop import _estimate_input_tokens
        from strands.hooks import BeforeModelCallEvent
        from strands.models.openai import OpenAIModel
        from strands.tools.tools import PythonAgentTool

        self.version = version("strands-agents")
        self._loop = asyncio.new_event_loop()
        self._model = OpenAIModel(
            client_args={"base_url": setting.base_url, "api_key": "unused"},
            model_id=setting.model,
            context_window_limit=setting.budget,
        )
        functions = [tool["function"] for tool in setting.tools]
        if setting.variant == "auto":
            self.name, self.settings = "strands, auto", "context_manager='auto', context_window_limit = budget"
            managed: dict[str, Any] = {"context_manager": "auto"}
        else:
            managed = {"conversation_manager": SummarizingConversationManager(proactive_compression=True)}
        self._agent = Agent(
            model=self._model,
            system_prompt=setting.system,
            tools=[
                PythonAgentTool(
                    one["name"],
                    {
                        "name": one["name"],
                        "description": one.get("description", ""),
                        "inputSchema": {"json": one["parameters"]},
                    },
                    lambda use, **_: {"toolUseId": use["toolUseId"], "status": "success", "content": []},
                )
                for one in functions
            ],
            callback_handler=None,
            **managed,
        )
        given = {one["name"] for one in functions}
        specs = [one for one in self._agent.tool_registry.get_all_tool_specs() if one["name"] not in given]
        self.tools = [_definition(one) for one in specs]
        self._estimate, self._event = _estimate_input_tokens, BeforeModelCallEvent

    async def _before_model_call(self, new: list[Message]) -> None:
        await self._agent._append_messages(*_read_all(new))
        tokens = await self._estimate(self._agent)
        event = self._event(agent=self._agent, invocation_state={}, projected_input_tokens=tokens)
        await self._agent.hooks.invoke_callbacks_async(event)

    def prompt(self, new: list[Message]) -> list[Message]:
        self._loop.run_until_complete(self._before_model_call(new))
        return self._model.format_request_messages(self._agent.messages, self._agent.system_prompt)

    def answered(self, message: Message) -> None:
        self._loop.run_until_complete(self._agent._append_messages(_read(message)))

    def kept(self) -> list[str]:
        summary = self._agent.conversation_manager.get_state().get("summary_message")
        raw = (one["content"] for one in self._agent.messages if one is not summary)
        return [block.get("text") or json.dumps(block) for content in raw for block in content] + self._stashed()

    def _stashed(self) -> list[str]:
        """Return what its context manager has put aside."""
        stash = getattr(self._agent.context_manager, "_stash", None)
        if stash is None:
            return []
        keys = self._loop.run_until_complete(stash._storage.list(""))
        return [str(self._loop.run_until_complete(stash._storage.read(key))) for key in keys]

    def close(self) -> None:
        self._loop.close()
