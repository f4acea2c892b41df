"""Microsoft Agent Framework's compaction strategies, applied before each call of the model (agent-framework 1.23.0).

Settings: `TokenBudgetComposedStrategy` with the budget less the definitions of tools, which it does not count, over
`ToolResultCompactionStrategy()` and `SummarizationStrategy(client)`: from gentle to thorough, as documented, each with
its defaults (the newest 4 messages stay, the newest group of tool calls stays whole). `CharacterEstimatorTokenizer`.
https://learn.microsoft.com/en-us/agent-framework/agents/conversations/compaction
https://github.com/microsoft/agent-framework/tree/main/python/samples/02-agents/compaction

`apply_compaction` marks messages of one list and inserts summaries, as within a run of an agent; what is marked stays
in the list and is counted as kept.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting


def make(setting: Setting) -> Adapter:
    return AgentFramework(setting)


class AgentFramework(Adapter):
    name = "agent-framework"
    settings = "TokenBudgetComposedStrategy(budget less tools) of tool results and summarization; else defaults"

    def __init__(self, setting: Setting) -> None:
        import asyncio
        from importlib.metadata import version

        import agent_framework as library
        from agent_framework_openai import OpenAIChatCompletionClient

        self.version = version("agent-framework-core")
        self._library = library
        self._loop = asyncio.new_event_loop()
        self._client = OpenAIChatCompletionClient(model=setting.model, base_url=setting.base_url, api_key="unused")
        self._tokenizer = library.CharacterEstimatorTokenizer()
        self._strategy = library.TokenBudgetComposedStrategy(
            token_budget=setting.budget - self._tokenizer.count_tokens(json.dumps(list(setting.tools))),
            tokenizer=self._tokenizer,
            strategies=[library.ToolResultCompactionStrategy(), library.SummarizationStrategy(client=self._client)],
        )
        self._messages: list[Any] = []
        self._own: list[Any] = []
        self._add([{"role": "system", "content": setting.system}])

    def _add(self, messages: list[Message]) -> None:
        read = [self._read(message) for message in messages]
        self._own.extend(read)
        self._messages.extend(read)

    def _read(self, message: Message) -> Any:
        """Return an OpenAI message as one of the framework's."""
        content = self._library.Content
        if message["role"] == "tool":
            result = content.from_function_result(call_id=message["tool_call_id"], result=message["content"])
            return self._library.Message(role="tool", contents=[result])
        contents = [content.from_text(message["content"])] if message.get("content") else []
        for call in message.get("tool_calls") or ():
            function = call["function"]
            contents.append(
                content.from_function_call(call_id=call["id"], name=function["name"], arguments=function["arguments"])
            )
        return self._library.Message(role=message["role"], contents=contents)

    def prompt(self, new: list[Message]) -> list[Message]:
        self._add(new)
        shown = self._loop.run_until_complete(
            self._library.apply_compaction(self._messages, strategy=self._strategy, tokenizer=self._tokenizer)
        )
        return self._client._prepare_messages_for_openai(shown)

    def answered(self, message: Message) -> None:
        self._add([message])

    def kept(self) -> list[str]:
        kept = {id(message) for message in self._messages}
        return [message.text for message in self._own if id(message) in kept]

    def close(self) -> None:
        self._loop.close()
