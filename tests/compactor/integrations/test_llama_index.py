"""LlamaIndex's own agent with the memory, offline, on a scripted model."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index.core", reason="the extra `llama-index` is not installed")

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory.types import BaseChatStoreMemory
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.tools import FunctionTool, ToolSelection
from pydantic import PrivateAttr
from shown import FIRST_ROUND, RECALL_BUDGET, TALK, read_parts

from compactor import ExtractiveSummarizer, get_counter
from compactor.integrations import contract
from compactor.integrations.llama_index import Compaction
from compactor.integrations.llama_index_agent import CompactingAgent
from compactor.testing import AdapterContract

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the framework's own


class Scripted(MockFunctionCallingLLM):
    _seen: list[Any] = PrivateAttr()
    _systems: list[str] = PrivateAttr()

    async def astream_chat_with_tools(self, tools: Any, *, chat_history: Any = None, **_options: Any) -> Any:
        shown = [message for message in chat_history if message.role != "system"]
        self._seen.append(shown)
        self._systems.append(" ".join(str(message.content) for message in chat_history if message.role == "system"))
        at = max(place for place, message in enumerate(shown) if message.role == "user")
        reply = contract.answer(str(shown[at].content), len(shown) - at - 1)
        calls = [
            ToolCallBlock(tool_call_id=f"c{len(self._seen)}-{place}", tool_name=name, tool_kwargs={"row": row})
            for place, (name, row) in enumerate(reply.calls)
        ]
        blocks: Any = calls or [TextBlock(text=reply.text)]

        async def stream() -> AsyncIterator[ChatResponse]:
            yield ChatResponse(message=ChatMessage(role="assistant", blocks=blocks), delta=reply.text)

        return stream()

    async def achat_with_tools(self, *args: Any, **options: Any) -> ChatResponse:
        return [one async for one in await self.astream_chat_with_tools(*args, **options)][-1]

    def get_tool_calls_from_response(self, response: ChatResponse, **_options: Any) -> list[ToolSelection]:
        return [
            ToolSelection(tool_id=one.tool_call_id, tool_name=one.tool_name, tool_kwargs=one.tool_kwargs)
            for one in response.message.blocks
            if isinstance(one, ToolCallBlock)
        ]


class Plain(BaseChatStoreMemory):
    @classmethod
    def from_defaults(cls, *_args: Any, **_options: Any) -> Plain:
        return cls()


class Host:
    def __init__(self, compaction: Compaction | None, store: SimpleChatStore) -> None:
        self.seen: list[Any] = []
        self.systems: list[str] = []
        self.store = store
        self._compaction = compaction
        model = Scripted()
        model._seen, model._systems = self.seen, self.systems
        tools: Any = [FunctionTool.from_defaults(contract.look), FunctionTool.from_defaults(contract.fail)]
        self._agent = FunctionAgent(llm=model, tools=tools, system_prompt="Be brief.", streaming=True)

    def _memory(self, session: str) -> Any:
        if self._compaction is None:
            return Plain(chat_store=self.store, chat_store_key=session)
        return self._compaction.make_memory(session, chat_store=self.store)

    async def say(self, session: str, text: str) -> str:
        done = await self._agent.run(text, memory=self._memory(session))
        return str(done.response.content)

    async def stream(self, session: str, text: str) -> str:
        run = self._agent.run(text, memory=self._memory(session))
        said = "".join([event.delta async for event in run.stream_events() if isinstance(event, AgentStream)])
        await run
        return said

    async def list_history(self, session: str) -> Sequence[ChatMessage]:
        return list(await self._memory(session).aget_all())

    async def go_back(self, session: str, turns: int) -> None:
        kept = await self.list_history(session)
        asked = [at for at, message in enumerate(kept) if message.role == "user"]
        await self._memory(session).aset(kept[: asked[-turns]])

    def read_text(self, message: ChatMessage) -> str:
        calls = [one for one in message.blocks if isinstance(one, ToolCallBlock)]
        return " ".join([message.content or "", *(f"{one.tool_name} {one.tool_kwargs}" for one in calls)]).strip()

    def list_call_ids(self, message: ChatMessage) -> tuple[list[str], list[str]]:
        calls = [str(one.tool_call_id) for one in message.blocks if isinstance(one, ToolCallBlock)]
        return calls, [message.additional_kwargs["tool_call_id"]] if message.role == "tool" else []


class TestLlamaIndex(AdapterContract):
    fits_each_call = False
    gives_own_objects = False  # stores may give copies

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        # A copy: the store's own JSON fails on the newest pydantic.
        return Host(compaction, copy.deepcopy(previous.store) if previous is not None else SimpleChatStore())

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(**options)


def test_pictures_count_and_come_back_as_the_hosts_own() -> None:
    asked = ChatMessage(role="user", blocks=[TextBlock(text="What is this?"), ImageBlock(image=b"\x89PNG" * 50)])

    assert read_parts(Compaction(100_000), asked) == ["text", "image_url"]


def test_a_memory_that_is_reset_gives_nothing() -> None:
    with Compaction(8_000) as compaction:
        memory = compaction.make_memory("s")
        memory.put(ChatMessage("The code is QX-4711.", role="user"))
        assert memory.get()
        memory.reset()
        assert memory.get() == memory.get_all() == []


@pytest.mark.parametrize("restore", [copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))])  # noqa: S301
def test_a_memory_that_was_restored_goes_on(restore: Any) -> None:
    """As a part of a workflow's context, which is copied or pickled."""
    with Compaction(8_000) as compaction, Compaction(8_000):
        memory = compaction.make_memory("s")
        memory.put(ChatMessage("The code is QX-4711.", role="user"))
        memory.get()
        again = restore(memory)
        assert [one.content for one in again.get()] == ["The code is QX-4711."]
        assert again.compaction is compaction


class Calling(Scripted):
    """Calls *name* so many times, then says the last result."""

    _left: int = PrivateAttr(1)
    _call: Any = PrivateAttr()

    async def astream_chat_with_tools(self, tools: Any, *, chat_history: Any = None, **_options: Any) -> Any:
        self._seen.append(list(chat_history))
        self._left -= 1
        blocks: list[Any] = [TextBlock(text=str(chat_history[-1].content))]
        if self._left >= 0:
            name, given = self._call
            blocks = [ToolCallBlock(tool_call_id=f"c{len(self._seen)}", tool_name=name, tool_kwargs=given)]

        async def stream() -> AsyncIterator[ChatResponse]:
            yield ChatResponse(message=ChatMessage(role="assistant", blocks=blocks))

        return stream()


def make_calling(times: int, name: str, **given: Any) -> Calling:
    model = Calling()
    model._seen, model._left, model._call = [], times, (name, given)
    return model


def test_the_agent_reads_back_what_its_prompt_no_longer_shows() -> None:
    model = make_calling(1, "read_rounds", **FIRST_ROUND)

    async def run(compaction: Compaction) -> str:
        memory = compaction.make_memory("s")
        memory.put_messages([ChatMessage(text, role=role) for role, text in TALK])
        tools: Any = compaction.tools("s")
        done = await FunctionAgent(llm=model, tools=tools).run("The code?", memory=memory)
        return str(done.response.content)

    with Compaction(RECALL_BUDGET, summarizer=ExtractiveSummarizer()) as compaction:
        said = asyncio.run(run(compaction))
        with pytest.raises(ValueError, match="session_id="):
            compaction.tools("")

    assert "QX-4711" not in str(model._seen[0])
    assert "QX-4711" in said


@pytest.mark.parametrize("streaming", [False, True])
def test_an_agent_of_ours_keeps_a_long_turn_within_the_budget(streaming: bool) -> None:
    """What it keeps is whole, as with the framework's own agent."""
    asked = "look 40 times " + "word " * 30

    async def run(agent: type[FunctionAgent], compaction: Compaction) -> tuple[Calling, list[ChatMessage]]:
        model = make_calling(40, "look", row=1)
        memory = compaction.make_memory(agent.__name__)
        tools: Any = [FunctionTool.from_defaults(contract.look)]
        made = agent(llm=model, tools=tools, system_prompt="Be brief.", streaming=streaming)
        await made.run(asked, memory=memory, max_iterations=60)
        return model, memory.get_all()

    with Compaction(1_200, summarizer=ExtractiveSummarizer()) as compaction:
        plain, whole = asyncio.run(run(FunctionAgent, compaction))
        model, kept = asyncio.run(run(CompactingAgent, compaction))

    assert [(one.role, one.content) for one in kept] == [(one.role, one.content) for one in whole]
    assert len(kept) == 82
    sizes = [sum(len(str(one.content)) for one in seen) for seen in model._seen]
    assert max(sizes) < 1_200 * 5 < sum(len(str(one.content)) for one in plain._seen[-1])
    assert all("Be brief." in str(seen[0].content) for seen in model._seen)
    for seen in model._seen:
        assert [one.role for one in seen].count("tool") == sum(
            isinstance(block, ToolCallBlock) for one in seen for block in one.blocks
        )


def test_an_agent_of_ours_counts_its_system_prompt_and_is_summarized_by_its_own_model() -> None:
    asked: list[str] = []

    class Summarizing(Scripted):
        def chat(self, messages: Any, **_options: Any) -> ChatResponse:
            asked.append(str(messages[-1].content))
            return ChatResponse(message=ChatMessage(contract.SUMMARY, role="assistant"))

        async def achat(self, messages: Any, **_options: Any) -> ChatResponse:
            return self.chat(messages)

    model = Summarizing()
    model._seen, model._systems = [], []
    system = "Be brief, whatever they say to you. " * 20

    async def run(compaction: Compaction) -> None:
        memory = compaction.make_memory("s")
        agent = CompactingAgent(llm=model, system_prompt=system)
        for number in range(contract.TURNS):
            await agent.run(f"Question {number}, {'words ' * 40}", memory=memory)
            with compaction.sessions().open("s") as session:
                await asyncio.to_thread(session.compactor.wait_idle, contract.TIMEOUT)
        assert len(memory.get_all()) == 2 * contract.TURNS

    with Compaction(contract.BUDGET) as compaction:
        asyncio.run(run(compaction))

    assert asked
    assert contract.FACT in model._systems[-1]
    for said, shown in zip(model._systems, model._seen, strict=True):
        assert get_counter()(" ".join([said, *(str(one.content) for one in shown)])) < contract.BUDGET
