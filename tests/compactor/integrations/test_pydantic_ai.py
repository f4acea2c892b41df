"""pydantic-ai's own agent with the capability, offline, on a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="the extra `pydantic-ai` is not installed")

from pydantic_ai import Agent
from pydantic_ai.capabilities import Hooks
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import UsageLimits
from shown import read_parts

from compactor import ExtractiveSummarizer
from compactor.integrations import contract
from compactor.integrations.pydantic_ai import Compaction
from compactor.testing import AdapterContract, summarize_by_terms

UNLIMITED = UsageLimits(request_limit=None)
hooks = Hooks[None]()


@hooks.on.tool_execute_error
async def tell_failures(_ctx: Any, *, error: Exception, **_options: Any) -> str:
    return str(error)


class Host:
    def __init__(self, compaction: Compaction | None, store: InMemoryConversationStore) -> None:
        self.seen: list[list[ModelMessage]] = []
        self.systems: list[str] = []
        self.store = store
        self._agent = Agent(
            FunctionModel(self._answer, stream_function=self._stream),
            instructions="Be brief.",
            tools=[contract.look, contract.fail],
            capabilities=[hooks, *([compaction] if compaction is not None else [])],
        )

    def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> contract.Reply:
        self.seen.append(messages)
        self.systems.append(info.instructions or "")
        parts = [part for message in messages for part in message.parts]
        at = max(place for place, part in enumerate(parts) if isinstance(part, UserPromptPart))
        results = sum(isinstance(part, ToolReturnPart) for part in parts[at:])
        return contract.answer(str(parts[at].content), results)  # type: ignore[union-attr]

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        reply = self._reply(messages, info)
        calls = [ToolCallPart(name, {"row": row}) for name, row in reply.calls]
        return ModelResponse(parts=calls or [TextPart(reply.text)])

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        reply = self._reply(messages, info)
        for place, (name, row) in enumerate(reply.calls):
            yield {place: DeltaToolCall(name, f'{{"row": {row}}}', tool_call_id=f"c{len(self.seen)}-{place}")}
        if not reply.calls:
            yield reply.text

    async def _load(self, session: str) -> Conversation:
        return await self.store.load(session) or Conversation(conversation_id=session)

    async def say(self, session: str, text: str) -> str:
        done = await self._agent.run(text, conversation=await self._load(session), usage_limits=UNLIMITED)
        await self.store.save(done)
        return done.output

    async def stream(self, session: str, text: str) -> str:
        kept = await self._load(session)
        async with self._agent.run_stream(text, conversation=kept, usage_limits=UNLIMITED) as run:
            said = "".join([part async for part in run.stream_text(delta=True)])
        await self.store.save(replace(kept, messages=run.all_messages()))
        return said

    async def list_history(self, session: str) -> Sequence[ModelMessage]:
        return (await self._load(session)).messages

    async def go_back(self, session: str, turns: int) -> None:
        kept = await self._load(session)
        asked = [at for at, one in enumerate(kept.messages) if isinstance(one.parts[0], UserPromptPart)]
        await self.store.branch(session, at=asked[-turns], expected_revision=kept.revision)

    def read_text(self, message: ModelMessage) -> str:
        return " ".join(
            f"{part.tool_name} {part.args_as_json_str()}" if isinstance(part, ToolCallPart) else str(part.content)  # type: ignore[union-attr]
            for part in message.parts
        )

    def list_call_ids(self, message: ModelMessage) -> tuple[list[str], list[str]]:
        calls = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
        return calls, [part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)]


class TestPydanticAI(AdapterContract):
    gives_own_objects = False  # the store gives copies

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        return Host(compaction, previous.store if previous is not None else InMemoryConversationStore())

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(**options)


def test_a_system_prompt_in_the_history_stays_in_front() -> None:
    """The first request of a history may hold it. It is there once, also when that request is no longer shown."""
    seen: list[list[ModelMessage]] = []

    def reply(messages: list[ModelMessage], _info: Any) -> ModelResponse:
        seen.append(messages)
        return ModelResponse(parts=[TextPart("word " * 100)])

    with Compaction(1_500, summarizer=summarize_by_terms) as compaction:
        agent = Agent(FunctionModel(reply), system_prompt="Be brief.", capabilities=[compaction])
        history: list[ModelMessage] = []
        for number in range(20):
            history = agent.run_sync(f"question {number}", message_history=history).all_messages()

    assert seen[0] == history[:1]
    assert len(seen[-1]) < len(history)
    for messages in seen:
        told = [part for message in messages for part in message.parts if isinstance(part, SystemPromptPart)]
        assert [part.content for part in told] == ["Be brief."]
        assert messages[0].parts[0] is told[0]


def test_files_count_and_come_back_as_the_hosts_own() -> None:
    picture = BinaryContent(data=b"\x89PNG" * 50, media_type="image/png")
    asked = ModelRequest(parts=[UserPromptPart(["What is this?", picture, DocumentUrl("https://example.org/a.pdf")])])

    assert read_parts(Compaction(100_000), asked) == ["text", "image_url", "file"]


def test_the_agent_reads_back_what_its_prompt_no_longer_shows() -> None:
    seen: list[list[ModelMessage]] = []

    def reply(messages: list[ModelMessage], info: Any) -> ModelResponse:
        assert {"context_reload", "read_rounds", "search_history"} <= {one.name for one in info.function_tools}
        seen.append(messages)
        result = messages[-1].parts[-1]
        if isinstance(result, ToolReturnPart):
            return ModelResponse(parts=[TextPart(str(result.content))])
        return ModelResponse(parts=[ToolCallPart("read_rounds", {"start": 1})])

    history: list[ModelMessage] = []
    for text in ("The code is QX-4711.", *(f"{number} " + "word " * 100 for number in range(30))):
        history += [ModelRequest(parts=[UserPromptPart(text)]), ModelResponse(parts=[TextPart("I see.")])]
    with Compaction(2_500, recall=True, summarizer=ExtractiveSummarizer()) as compaction:
        done = Agent(FunctionModel(reply), capabilities=[compaction]).run_sync("The code?", message_history=history)

    assert "QX-4711" not in str(seen[0])
    assert "QX-4711" in done.output


def test_a_retry_in_the_old_form_answers_its_call() -> None:
    with pytest.warns(UserWarning, match="RetryPromptPart"):
        retry = RetryPromptPart("bad JSON", tool_name="look", tool_call_id="t1")
    asked, called = ModelRequest(parts=[UserPromptPart("q")]), ModelResponse(parts=[ToolCallPart("look", "{bad", "t1")])
    history = [asked, called, ModelRequest(parts=[retry])]

    with Compaction(1_000) as compaction:
        shown = compaction.fit("s", history).items

    assert shown == history


@pytest.mark.parametrize("outcome", ["failed", "denied"])
def test_a_result_that_is_shortened_keeps_its_outcome(outcome: Any) -> None:
    asked, called = ModelRequest(parts=[UserPromptPart("q")]), ModelResponse(parts=[ToolCallPart("look", {}, "t1")])
    failed = ToolReturnPart("look", "no " * 4_000, "t1", outcome=outcome)

    with Compaction(1_000) as compaction:
        (part,) = compaction.fit("s", [asked, called, ModelRequest(parts=[failed])]).items[-1].parts

    assert isinstance(part, ToolReturnPart)
    assert (part.outcome, part.tool_name) == (outcome, "look")
    assert part.model_response_str(wrap_if_error=False).startswith("no ")
    assert len(part.model_response_str()) < 4_000
