"""LangChain's own agent with the middleware, offline, on a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain", reason="the extra `langchain` is not installed")

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from compactor import ExtractiveSummarizer
from compactor.integrations.langchain import Compaction


@tool
def look(row: int) -> str:
    """Look up a row."""
    return f"row {row} " + "word " * 60


class Scripted(BaseChatModel):
    """Calls two tools for each question, then answers."""

    seen: list[list[BaseMessage]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_options: Any) -> ChatResult:
        self.seen.append(messages)
        calls = [{"name": "look", "args": {"row": row}, "id": f"c{len(self.seen)}-{row}"} for row in range(2)]
        is_asked = messages[-1].type == "human"
        message = AIMessage(
            content="" if is_asked else f"answer {len(self.seen)}", tool_calls=calls if is_asked else []
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_the_graph_keeps_everything_and_the_model_reads_what_fits() -> None:
    model = Scripted(seen=[])
    with Compaction(budget=3_000, summarizer=ExtractiveSummarizer()) as compaction:
        agent = create_agent(
            model, [look], middleware=[compaction], system_prompt="Be brief.", checkpointer=InMemorySaver()
        )
        for number in range(25):
            done = agent.invoke(
                {"messages": [{"role": "user", "content": f"question {number}"}]},
                {"configurable": {"thread_id": "t1"}},
            )

    system, *shown = model.seen[-1]
    assert len(done["messages"]) == 125
    assert str(system.content).startswith("Be brief.")
    assert len(shown) < 60
    kept = {id(message) for message in done["messages"]}
    assert sum(id(message) in kept for message in shown) > len(shown) // 2
    waiting = [call["id"] for message in shown for call in getattr(message, "tool_calls", ())]
    assert [message.tool_call_id for message in shown if message.type == "tool"] == waiting
