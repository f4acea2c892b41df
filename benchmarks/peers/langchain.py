"""langchain's SummarizationMiddleware in an agent made by `create_agent`, with a checkpointer (langchain 1.4.7).

Settings: `trigger=("tokens", N)`, N the budget less the system message and tools, which it does not count; there is no
trigger by default. Everything else is its default: `keep=("messages", 20)`, `trim_tokens_to_summarize=4000`,
approximate token counting. The checkpointer is `InMemorySaver`, as the page on short-term memory asks for; what older
checkpoints of the thread hold is counted as kept.
https://docs.langchain.com/oss/python/langchain/middleware/built-in#summarization
https://docs.langchain.com/oss/python/langchain/short-term-memory

The agent is stopped before its model (`interrupt_before`), and what the driver's agent answered is written as its
model's answer (`update_state`): all else is langchain's own loop. `ContextEditingMiddleware` is not played: it edits
the request inside the call of the model, where the driver's agent stands.

Variants:
- `whole`: `trim_tokens_to_summarize=None`, so that the summarizer reads all that is replaced.
- `trim`: no summaries; `trim_messages(strategy="last")` to the budget in a `before_model` hook, as that page shows.
- `hook`: the middleware's `before_model` on a plain list of messages: no agent, no graph, no checkpoints. For what the
  middleware costs by itself.
"""

from __future__ import annotations

from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting

VARIANTS = ("", "whole", "trim", "hook")


def make(setting: Setting) -> Adapter:
    return Hook(setting) if setting.variant == "hook" else Agent(setting)


def _model(setting: Setting) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=setting.model, base_url=setting.base_url, api_key=lambda: "unused")


def _room(setting: Setting) -> int:
    """Return the tokens that a prompt may have beside its system message and tools, as langchain counts them."""
    from langchain_core.messages.utils import count_tokens_approximately

    return setting.budget - count_tokens_approximately(
        [{"role": "system", "content": setting.system}], tools=list(setting.tools)
    )


class Agent(Adapter):
    name = "langchain"

    def __init__(self, setting: Setting) -> None:
        from importlib.metadata import version

        from langchain.agents import create_agent
        from langchain.agents.middleware import SummarizationMiddleware, before_model
        from langchain_core.messages import (
            RemoveMessage,
            convert_to_messages,
            convert_to_openai_messages,
            trim_messages,
        )
        from langchain_core.messages.utils import count_tokens_approximately
        from langgraph.checkpoint.memory import InMemorySaver
        from langgraph.graph.message import REMOVE_ALL_MESSAGES

        self.version = version("langchain")
        self._system = {"role": "system", "content": setting.system}
        self._read, self._write = convert_to_messages, convert_to_openai_messages
        model = _model(setting)
        hook: Any
        if setting.variant == "trim":
            self.name = "langchain, trimming"
            self.settings = "trim_messages(strategy='last', max_tokens = budget less system and tools), no model"

            @before_model
            def hook(state: Any, runtime: Any) -> dict[str, Any] | None:
                kept = trim_messages(
                    state["messages"],
                    strategy="last",
                    token_counter=count_tokens_approximately,
                    max_tokens=_room(setting),
                    start_on="human",
                    end_on=("human", "tool"),
                )
                return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept]}

        elif setting.variant == "whole":
            self.name = "langchain, untrimmed"
            self.settings = "as langchain, but trim_tokens_to_summarize=None"
            hook = SummarizationMiddleware(model, trigger=("tokens", _room(setting)), trim_tokens_to_summarize=None)
        else:
            self.settings = "trigger = budget less system and tools; else defaults (keep 20 messages, trim to 4,000)"
            hook = SummarizationMiddleware(model, trigger=("tokens", _room(setting)))
        self._saver = InMemorySaver()
        self._thread: Any = {"configurable": {"thread_id": "1"}}
        self._agent = create_agent(
            model,
            system_prompt=setting.system,
            middleware=[hook],
            checkpointer=self._saver,
            interrupt_before=["model"],
        )

    def prompt(self, new: list[Message]) -> list[Message]:
        state = self._agent.invoke({"messages": self._read(new)}, self._thread)
        return [self._system, *self._write(state["messages"])]

    def answered(self, message: Message) -> None:
        self._agent.update_state(self._thread, {"messages": self._read([message])}, as_node="model")

    def kept(self) -> list[str]:
        found: dict[str, None] = {}
        for state in self._agent.get_state_history(self._thread):
            for message in state.values.get("messages", ()):
                if message.additional_kwargs.get("lc_source") != "summarization":
                    found[message.text] = None
        return list(found)


class Hook(Adapter):
    name = "langchain, hook alone"
    settings = "as langchain; before_model on a list"

    def __init__(self, setting: Setting) -> None:
        from importlib.metadata import version

        from langchain.agents.middleware import SummarizationMiddleware
        from langchain_core.messages import convert_to_messages, convert_to_openai_messages
        from langgraph.graph import add_messages
        from langgraph.runtime import Runtime

        self.version = version("langchain")
        self._system = {"role": "system", "content": setting.system}
        self._read, self._write, self._reduced = convert_to_messages, convert_to_openai_messages, add_messages
        self._middleware = SummarizationMiddleware(_model(setting), trigger=("tokens", _room(setting)))
        self._runtime: Any = Runtime()
        self._messages: Any = []

    def prompt(self, new: list[Message]) -> list[Message]:
        self._messages = self._reduced(self._messages, self._read(new))
        if (update := self._middleware.before_model({"messages": self._messages}, self._runtime)) is not None:
            self._messages = self._reduced(self._messages, update["messages"])
        return [self._system, *self._write(self._messages)]

    def answered(self, message: Message) -> None:
        self._messages = self._reduced(self._messages, self._read([message]))

    def kept(self) -> list[str]:
        raw = (one for one in self._messages if one.additional_kwargs.get("lc_source") != "summarization")
        return [message.text for message in raw]
