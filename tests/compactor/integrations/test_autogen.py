"""AutoGen's own agent with the model context, offline, on a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat", reason="the extra `autogen` is not installed")

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_core import FunctionCall, Image
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from autogen_ext.models.replay import ReplayChatCompletionClient
from PIL.Image import new
from shown import FIRST_ROUND, RECALL_BUDGET, TALK

from compactor import ExtractiveSummarizer
from compactor.integrations import contract
from compactor.integrations.autogen import Compaction
from compactor.testing import AdapterContract

INFO: Any = {
    "vision": True,
    "function_calling": True,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


class Scripted(ReplayChatCompletionClient):
    def __init__(self, seen: list[Any], systems: list[str] | None = None) -> None:
        super().__init__([], INFO)
        self.seen, self.systems = seen, [] if systems is None else systems

    async def create(self, messages: Sequence[LLMMessage], **_options: Any) -> CreateResult:
        shown = [message for message in messages if not isinstance(message, SystemMessage)]
        self.seen.append(shown)
        self.systems.append(" ".join(one.content for one in messages if isinstance(one, SystemMessage)))
        at = max(place for place, message in enumerate(shown) if isinstance(message, UserMessage))
        results = [one for one in shown[at:] if isinstance(one, FunctionExecutionResultMessage)]
        asked: Any = shown[at]
        reply = contract.answer(asked.content, sum(len(one.content) for one in results))
        calls = [
            FunctionCall(id=f"c{len(self.seen)}-{place}", name=name, arguments=json.dumps({"row": row}))
            for place, (name, row) in enumerate(reply.calls)
        ]
        reason: Any = "function_calls" if calls else "stop"
        usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
        return CreateResult(finish_reason=reason, content=calls or reply.text, usage=usage, cached=False)

    async def create_stream(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        made = await self.create(*args, **options)
        if isinstance(made.content, str):
            yield made.content
        yield made


class Host:
    def __init__(self, compaction: Compaction | None, states: dict[str, Any]) -> None:
        self.seen: list[Any] = []
        self.systems: list[str] = []
        self.contexts: dict[str, Any] = {}
        self.states = states
        self._compaction = compaction

    async def _agent(self, session: str) -> AssistantAgent:
        if session not in self.contexts:
            made = self._compaction.make_context(session) if self._compaction else UnboundedChatCompletionContext()
            await made.load_state(self.states.get(session, {}))
            self.contexts[session] = made
        return AssistantAgent(
            "helper",
            Scripted(self.seen, self.systems),
            tools=[contract.look, contract.fail],
            model_context=self.contexts[session],
            system_message="Be brief.",
            model_client_stream=True,
            max_tool_iterations=contract.STEPS + 1,
        )

    async def say(self, session: str, text: str) -> str:
        done = await (await self._agent(session)).run(task=text)
        self.states[session] = await self.contexts[session].save_state()
        last: Any = done.messages[-1]
        return str(last.content)

    async def stream(self, session: str, text: str) -> str:
        events = [one async for one in (await self._agent(session)).run_stream(task=text)]
        assert isinstance(events[-1], TaskResult)
        return "".join(one.content for one in events if isinstance(one, ModelClientStreamingChunkEvent))

    async def list_history(self, session: str) -> Sequence[LLMMessage]:
        return list(self.contexts[session]._messages)

    async def go_back(self, session: str, turns: int) -> None:
        kept = await self.list_history(session)
        asked = [at for at, message in enumerate(kept) if isinstance(message, UserMessage)]
        await self.contexts[session].clear()
        for message in kept[: asked[-turns]]:
            await self.contexts[session].add_message(message)

    def read_text(self, message: Any) -> str:
        parts = [message.content] if isinstance(message.content, str) else message.content
        return " ".join(
            f"{one.name} {one.arguments}" if isinstance(one, FunctionCall) else getattr(one, "content", one)
            for one in parts
        )

    def list_call_ids(self, message: Any) -> tuple[list[str], list[str]]:
        if isinstance(message, FunctionExecutionResultMessage):
            return [], [one.call_id for one in message.content]
        return [one.id for one in message.content if isinstance(one, FunctionCall)], []


class TestAutoGen(AdapterContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        return Host(compaction, dict(previous.states) if previous is not None else {})

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(**options)


def test_what_was_written_anew_says_who_spoke_and_which_tool_answered() -> None:
    picture = Image(new("RGB", (2, 2)))
    calls = [FunctionCall(id="c1", name="look", arguments='{"row": 1}')]
    items: list[Any] = [
        UserMessage(content=["What is this?", picture], source="boss"),
        AssistantMessage(content=calls, thought="I look.", source="helper"),
        FunctionExecutionResultMessage(content=[{"content": "red", "name": "look", "call_id": "c1"}]),
        AssistantMessage(content="It is red.", source="helper"),
    ]
    with Compaction(100_000) as compaction:
        messages = [message for group in compaction.read(items) for message in group.messages]
        shown, made = compaction.fit("s", items).items, list(compaction.write(messages))

    assert all(one is item for one, item in zip(shown, items, strict=True))
    assert [part["type"] for part in messages[0]["content"]] == ["text", "image_url"]
    assert made[1:] == items[1:]
    assert made[0].source == "boss"


def test_a_failed_result_that_is_shortened_stays_one() -> None:
    failed = {"content": "no " * 4_000, "name": "look", "call_id": "c1", "is_error": True}
    items: list[Any] = [
        UserMessage(content="q", source="boss"),
        AssistantMessage(content=[FunctionCall(id="c1", name="look", arguments="{}")], source="helper"),
        FunctionExecutionResultMessage(content=[failed]),
    ]
    with Compaction(1_000) as compaction:
        (result,) = compaction.fit("s", items).items[-1].content

    assert result.is_error
    assert len(result.content) < 4_000


def test_the_agent_reads_back_what_its_prompt_no_longer_shows() -> None:
    seen: list[Any] = []

    class Asking(Scripted):
        async def create(self, messages: Sequence[LLMMessage], **_options: Any) -> CreateResult:
            seen.append(messages)
            last = messages[-1]
            is_answered = isinstance(last, FunctionExecutionResultMessage)
            call = FunctionCall(id="c1", name="read_rounds", arguments=json.dumps(FIRST_ROUND))
            return CreateResult(
                finish_reason="stop" if is_answered else "function_calls",
                content=last.content[0].content if isinstance(last, FunctionExecutionResultMessage) else [call],
                usage=RequestUsage(prompt_tokens=0, completion_tokens=0),
                cached=False,
            )

    async def run(compaction: Compaction) -> str:
        kept: Any = [
            UserMessage(content=text, source="user") if role == "user" else AssistantMessage(content=text, source="a")
            for role, text in TALK
        ]
        context, tools = compaction.make_context("s", kept), compaction.tools("s")
        agent = AssistantAgent("a", Asking([]), model_context=context, tools=tools, reflect_on_tool_use=True)
        return str((await agent.run(task="The code?")).messages[-1])

    with Compaction(RECALL_BUDGET, summarizer=ExtractiveSummarizer()) as compaction:
        said = asyncio.run(run(compaction))

    assert "QX-4711" not in str(seen[0])
    assert "QX-4711" in said
