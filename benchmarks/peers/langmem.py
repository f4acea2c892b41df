"""langmem's SummarizationNode, a node of LangGraph, called with the agent's state before each call (langmem 0.0.30).

Settings: `max_tokens` is the budget less the definitions of tools, which it does not count; `max_summary_tokens` is
the length of the server's summaries; `max_tokens_before_summary` (that is: `max_tokens`), the prompts and approximate
token counting are its defaults. It leaves the state's messages as they are and gives the shorter list under another
key, as documented, so all are kept.
https://langchain-ai.github.io/langmem/reference/short_term/
https://langchain-ai.github.io/langmem/guides/summarization/
"""

from __future__ import annotations

from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting


def make(setting: Setting) -> Adapter:
    return LangMem(setting)


class LangMem(Adapter):
    name = "langmem"
    settings = "SummarizationNode, max_tokens = budget less tools; else defaults"

    def __init__(self, setting: Setting) -> None:
        from importlib.metadata import version

        from langchain_core.messages import convert_to_messages, convert_to_openai_messages
        from langchain_core.messages.utils import count_tokens_approximately
        from langchain_openai import ChatOpenAI
        from langgraph.graph import add_messages
        from langmem.short_term import SummarizationNode

        self.version = version("langmem")
        self._read, self._write, self._reduced = convert_to_messages, convert_to_openai_messages, add_messages
        self._node = SummarizationNode(
            model=ChatOpenAI(model=setting.model, base_url=setting.base_url, api_key=lambda: "unused"),
            max_tokens=setting.budget - count_tokens_approximately([], tools=list(setting.tools)),
            max_summary_tokens=setting.summary_tokens,
        )
        self._state: dict[str, Any] = {"context": {}, "messages": []}
        self._add([{"role": "system", "content": setting.system}])

    def _add(self, messages: list[Message]) -> None:
        self._state["messages"] = self._reduced(self._state["messages"], self._read(messages))

    def prompt(self, new: list[Message]) -> list[Message]:
        self._add(new)
        update = self._node.invoke(self._state)
        self._state["context"] = update.get("context", self._state["context"])
        return self._write(update["summarized_messages"])

    def answered(self, message: Message) -> None:
        self._add([message])

    def kept(self) -> list[str]:
        return [message.text for message in self._state["messages"]]
