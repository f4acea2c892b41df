"""LangChain's own agent with the middleware, offline, on a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="the extra `langchain` is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_tool_call
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from compactor.integrations import contract
from compactor.integrations.langchain import Compaction
from compactor.testing import AdapterContract


class Scripted(BaseChatModel):
    seen: Any  # a list, which pydantic would copy

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_options: Any) -> ChatResult:
        shown = [message for message in messages if message.type != "system"]
        self.seen.append(shown)
        at = max(place for place, message in enumerate(shown) if message.type == "human")
        reply = contract.answer(str(shown[at].content), len(shown) - at - 1)
        calls = [
            {"name": name, "args": {"row": row}, "id": f"c{len(self.seen)}-{place}"}
            for place, (name, row) in enumerate(reply.calls)
        ]
        message = AIMessage(content=reply.text, tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(self, messages: list[BaseMessage], *args: Any, **_options: Any) -> AsyncIterator[Any]:
        message = self._generate(messages).generations[0].message
        chunks = [
            {"name": call["name"], "args": json.dumps(call["args"]), "id": call["id"], "index": place}
            for place, call in enumerate(message.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk(content=message.content, tool_call_chunks=chunks))


@wrap_tool_call
async def tell_failures(request: Any, handler: Any) -> Any:
    try:
        return await handler(request)
    except ValueError as error:
        return ToolMessage(content=str(error), tool_call_id=request.tool_call["id"], status="error")


class Host:
    def __init__(self, compaction: Compaction | None, saver: InMemorySaver) -> None:
        self.seen: list[list[BaseMessage]] = []
        self.saver = saver
        middleware = [tell_failures, *([compaction] if compaction is not None else [])]
        self._agent = create_agent(
            Scripted(seen=self.seen),
            [tool(contract.look), tool(contract.fail)],
            system_prompt="Be brief.",
            middleware=middleware,
            checkpointer=saver,
        )

    async def say(self, session: str, text: str) -> str:
        done = await self._agent.ainvoke(_asked(text), _config(session))
        return str(done["messages"][-1].content)

    async def stream(self, session: str, text: str) -> str:
        said = [part async for part, _ in self._agent.astream(_asked(text), _config(session), stream_mode="messages")]
        return "".join(str(part.content) for part in said if isinstance(part, AIMessageChunk))

    async def history(self, session: str) -> Sequence[BaseMessage]:
        state = await self._agent.aget_state(_config(session))
        return list(state.values["messages"])

    async def go_back(self, session: str, turns: int) -> None:
        states = [state async for state in self._agent.aget_state_history(_config(session))]
        wanted = len([message for message in states[0].values["messages"] if message.type == "human"]) - turns
        for state in states:  # newest first
            asked = [message for message in state.values["messages"] if message.type == "human"]
            if len(asked) == wanted and not state.next:
                await self._agent.aupdate_state(state.config, {"messages": []})
                return
        raise AssertionError("no checkpoint has so many turns")

    def text_of(self, message: BaseMessage) -> str:
        calls = [f"{call['name']} {call['args']}" for call in getattr(message, "tool_calls", ())]
        return " ".join([str(message.text), *calls])

    def pair(self, message: BaseMessage) -> tuple[list[str], list[str]]:
        calls = [str(call["id"]) for call in getattr(message, "tool_calls", ())]
        return calls, [message.tool_call_id] if isinstance(message, ToolMessage) else []


def _asked(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}]}


def _config(session: str) -> Any:
    return {"configurable": {"thread_id": session}}


class TestLangChain(AdapterContract):
    gives_own_objects = False  # the checkpointer gives equal ones after each turn

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, before: Any = None) -> Host:
        return Host(compaction, before.saver if before is not None else InMemorySaver())

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(**options)


class Asking(BaseChatModel):
    """Calls the tool that reads round 1, then repeats what it got."""

    seen: Any

    @property
    def _llm_type(self) -> str:
        return "asking"

    def bind_tools(self, tools: Any, **_options: Any) -> Any:
        assert {"context_reload", "read_rounds", "search_history"} <= {one.name for one in tools}
        return self

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_options: Any) -> ChatResult:
        self.seen.append(messages)
        call = {"name": "read_rounds", "args": {"start": 1, "end": None, "offset": None, "limit": None}, "id": "c1"}
        message = AIMessage(content="", tool_calls=[call])
        if isinstance(messages[-1], ToolMessage):
            message = AIMessage(content=messages[-1].content)
        return ChatResult(generations=[ChatGeneration(message=message)])


@pytest.mark.parametrize("is_async", [False, True])
def test_the_agent_reads_back_what_its_prompt_no_longer_shows(is_async: bool) -> None:
    seen: list[list[BaseMessage]] = []
    given = [("user" if at % 2 == 0 else "assistant", f"{at} " + "word " * 100) for at in range(40)]
    asked: Any = {"messages": [("user", "The code is 4711."), ("assistant", "I see."), *given, ("user", "The code?")]}
    with Compaction(2_500, recall=True) as compaction:
        agent = create_agent(Asking(seen=seen), middleware=[compaction], checkpointer=InMemorySaver())
        done = asyncio.run(agent.ainvoke(asked, _config("s"))) if is_async else agent.invoke(asked, _config("s"))

    assert "4711" not in str(seen[0])
    assert "4711" in done["messages"][-1].content


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("What is it?"),
        HumanMessage("What is it?", name="Ann"),
        HumanMessage([{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "https://a.b/c"}}]),
        SystemMessage("Be brief."),
        AIMessage("No.", additional_kwargs={"refusal": "No."}),
        AIMessage("", tool_calls=[{"name": "look", "args": {"straße": 1}, "id": "c1"}]),
        ToolMessage("row", tool_call_id="c1"),
    ],
)
def test_messages_are_read_as_langchain_converts_them(message: BaseMessage) -> None:
    with Compaction(1_000) as compaction:
        (group,) = compaction.read([message])

    assert group.messages == [convert_to_openai_messages(message)]
