"""The OpenAI Agents SDK's own runner with the filter, offline, on its scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="the extra `openai-agents` is not installed")

from agents import Agent, Model, ModelProvider, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from shown import check_turn_made_again

from compactor import ExtractiveSummarizer
from compactor.integrations import contract
from compactor.integrations.openai_agents import Compaction
from compactor.testing import AdapterContract


class Scripted(Model):
    def __init__(self, seen: list[list[Any]], systems: list[str] | None = None) -> None:
        self.seen, self.systems = seen, [] if systems is None else systems

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        given = options.get("input", args[1] if args else None)  # by name or by place
        shown = given if isinstance(given, list) else [{"role": "user", "content": given}]
        self.seen.append(shown)
        self.systems.append(options["system_instructions"] if "system_instructions" in options else args[0])
        at = max(place for place, item in enumerate(shown) if item.get("role") == "user")
        results = sum(item.get("type") == "function_call_output" for item in shown[at:])
        reply = contract.answer(shown[at]["content"], results)
        calls = [
            _make_call(f"c{len(self.seen)}-{place}", name, f'{{"row":{row}}}')
            for place, (name, row) in enumerate(reply.calls)
        ]
        return ModelResponse(output=[*(calls or [_make_text(reply.text)])], usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        done = await self.get_response(*args, **options)
        response = Response.model_construct(
            id="r", created_at=0, model="scripted", object="response", output=done.output, tools=[], usage=None
        )
        yield ResponseCompletedEvent.model_construct(type="response.completed", response=response, sequence_number=0)


def _make_call(call_id: str, name: str, arguments: str) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(call_id=call_id, name=name, arguments=arguments, type="function_call")


def _make_text(said: str) -> ResponseOutputMessage:
    text = ResponseOutputText(text=said, annotations=[], type="output_text")
    return ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")


class Calling(Scripted):
    """Asks an agent that is a tool, in each turn once."""

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        given = options.get("input", args[1] if args else None)
        self.seen.append(given)
        asked = _make_call(f"c{len(self.seen)}", "look", '{"input": "Work."}')
        said = asked if given[-1].get("role") == "user" else _make_text("done")
        return ModelResponse(output=[said], usage=Usage(), response_id=None)


class Following(Scripted):
    """Asked for what is new alone: calls tools for a question, and is content with their results."""

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        given = options.get("input", args[1] if args else None)
        if all(item.get("role") for item in given):
            return await super().get_response(*args, **options)
        self.seen.append(given)
        return ModelResponse(output=[_make_text("done")], usage=Usage(), response_id=None)


class Host:
    def __init__(self, compaction: Compaction | None, sessions: dict[str, SQLiteSession]) -> None:
        self.seen: list[list[Any]] = []
        self.systems: list[str] = []
        self.sessions = sessions
        tools = [function_tool(contract.look), function_tool(contract.fail)]
        self._agent = Agent(
            name="helper", instructions="Be brief.", model=Scripted(self.seen, self.systems), tools=tools
        )
        self._hooks = compaction
        self._config = RunConfig(call_model_input_filter=compaction, tracing_disabled=True)

    def _session(self, session: str) -> SQLiteSession:
        return self.sessions.setdefault(session, SQLiteSession(session))

    async def say(self, session: str, text: str) -> str:
        options: Any = {
            "session": self._session(session),
            "run_config": self._config,
            "context": session,
            "hooks": self._hooks,
        }
        return str((await Runner.run(self._agent, text, **options)).final_output)

    async def stream(self, session: str, text: str) -> str:
        options: Any = {
            "session": self._session(session),
            "run_config": self._config,
            "context": session,
            "hooks": self._hooks,
        }
        done = Runner.run_streamed(self._agent, text, **options)
        async for _ in done.stream_events():
            pass
        return str(done.final_output)

    async def list_history(self, session: str) -> Sequence[Any]:
        return await self._session(session).get_items()

    async def go_back(self, session: str, turns: int) -> None:
        kept = self._session(session)
        while turns:
            item: Any = await kept.pop_item()
            turns -= item.get("role") == "user"

    def read_text(self, item: Any) -> str:
        content = item.get("content")
        texts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
        keys = ("name", "arguments", "output", "encrypted_content")
        return " ".join([*texts, *(str(item[key]) for key in keys if key in item)])

    def list_call_ids(self, item: Any) -> tuple[list[str], list[str]]:
        kind, call_id = item.get("type"), item.get("call_id")
        return [call_id] if kind == "function_call" else [], [call_id] if kind == "function_call_output" else []


class TestOpenAIAgents(AdapterContract):
    gives_own_objects = False  # a session gives equal ones in each run

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        return Host(compaction, previous.sessions if previous is not None else {})

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(session_id=str, **options)


def test_the_agents_own_model_summarizes() -> None:
    """No summarizer was given. A name is no model: it is known to the run alone whose it is."""
    asked: list[str | None] = []

    class Model(Scripted):
        async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
            asked.append(options["system_instructions"] if "system_instructions" in options else args[0])
            return ModelResponse(output=[_make_text("word " * 100)], usage=Usage(), response_id=None)

    async def run(agent: Agent[Any], **options: Any) -> None:
        kept = SQLiteSession("s")
        with Compaction(1_200, session_id="s") as compaction:
            config = RunConfig(call_model_input_filter=compaction, tracing_disabled=True, **options)
            for number in range(20):
                await Runner.run(agent, f"question {number}", session=kept, run_config=config)
                with compaction.sessions().open("s") as session:
                    await asyncio.to_thread(session.compactor.wait_idle, 30)
        kept.close()

    asyncio.run(run(Agent(name="helper", instructions="Be brief.", model=Model([]))))
    assert None in asked
    asked.clear()

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            assert model_name == "mine"
            return Model([])

    asyncio.run(run(Agent(name="helper", instructions="Be brief.", model="mine"), model_provider=Provider()))
    assert len(asked) == 20


def test_a_turn_made_again_is_the_newest() -> None:
    """The same call, with another reasoning and other ids."""

    def make(tag: str) -> list[Any]:
        reasoning = {"type": "reasoning", "id": f"rs_{tag}", "summary": [], "encrypted_content": tag}
        call = {"type": "function_call", "id": f"fc_{tag}", "call_id": tag, "name": "look", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": tag, "output": "row 1"}
        return [{"role": "user", "content": "Which row?"}, reasoning, call, result]

    check_turn_made_again(Compaction(8_000), make)


def test_the_agent_reads_back_what_its_prompt_no_longer_shows() -> None:
    seen: list[list[Any]] = []

    class Asking(Model):
        async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
            given: Any = options.get("input", args[1] if args else None)
            seen.append(given)
            result = given[-1].get("output")
            said = _make_text(result) if result else _make_call("c1", "read_rounds", '{"start": 1}')
            return ModelResponse(output=[said], usage=Usage(), response_id=None)

        def stream_response(self, *_args: Any, **_options: Any) -> Any:
            raise AssertionError("nothing is streamed")

    asked: list[Any] = []
    for text in ("The code is QX-4711.", *(f"{number} " + "word " * 100 for number in range(30))):
        asked += [{"role": "user", "content": text}, {"role": "assistant", "content": "I see."}]
    asked.append({"role": "user", "content": "The code?"})
    with Compaction(2_500, session_id="s", summarizer=ExtractiveSummarizer()) as compaction:
        agent = Agent(name="helper", model=Asking(), tools=compaction.tools())
        config = RunConfig(call_model_input_filter=compaction, tracing_disabled=True)
        done = asyncio.run(Runner.run(agent, asked, run_config=config))

    assert "QX-4711" not in str(seen[0])
    assert "QX-4711" in str(done.final_output)


def test_an_agent_that_is_a_tool_of_another_has_a_session_of_its_own() -> None:
    """The SDK gives it the filter of the run: else each would undo what the other wrote."""

    async def run() -> None:
        with Compaction(8_000) as compaction:
            worker = Agent(name="worker", model=Scripted([]))
            agent = Agent(name="boss", model=Calling([]), tools=[worker.as_tool("look", "Ask the worker.")])
            config = RunConfig(call_model_input_filter=compaction, tracing_disabled=True)
            session = SQLiteSession("s")
            for number in range(5):
                await Runner.run(agent, f"Question {number}", session=session, run_config=config)
            rounds = []
            for name in compaction.sessions().store.sessions():
                with compaction.sessions().open(name) as opened:
                    rounds.append(len(opened.memory.conversation.rounds))
            assert sorted(rounds) == [1, 5]

    asyncio.run(run())


def test_recall_needs_the_name_of_the_conversation() -> None:
    """The SDK tells none."""
    with Compaction(8_000) as compaction, pytest.raises(ValueError, match="session_id="):
        compaction.tools()


def test_what_only_adds_to_a_conversation_that_the_provider_keeps_is_sent_as_it_is() -> None:
    async def run(compaction: Compaction | None) -> list[list[Any]]:
        seen: list[list[Any]] = []
        agent = Agent(name="helper", model=Following(seen), tools=[function_tool(contract.look)])
        config = RunConfig(call_model_input_filter=compaction, tracing_disabled=True)
        for number in range(3):
            await Runner.run(agent, f"two {number}", conversation_id="c", run_config=config)
        return seen

    with Compaction(8_000) as compaction:
        plain, fitted = asyncio.run(run(None)), asyncio.run(run(compaction))

    assert fitted == plain
    assert [item.get("type") for item in plain[1]] == ["function_call_output"] * 2


def test_a_result_whose_call_was_dropped_does_not_switch_compaction_off() -> None:
    """A session that keeps its newest items alone may begin with one."""
    seen: list[list[Any]] = []
    items: list[Any] = [{"type": "function_call_output", "call_id": "gone", "output": "row 1"}]
    for number in range(60):
        items += [{"role": "user", "content": f"{number} " + "word " * 60}, {"role": "assistant", "content": "Yes."}]
    items.append({"role": "user", "content": "And now?"})

    with Compaction(1_500, summarizer=ExtractiveSummarizer()) as compaction:
        config = RunConfig(call_model_input_filter=compaction, tracing_disabled=True)
        asyncio.run(Runner.run(Agent(name="helper", model=Scripted(seen)), items, run_config=config))

    assert len(seen[0]) < 60
    assert seen[0][-1] == items[-1]
