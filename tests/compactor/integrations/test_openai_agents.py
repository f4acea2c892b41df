"""The OpenAI Agents SDK's own runner with the filter, offline, on its scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="the extra `openai-agents` is not installed")

from agents import Agent, Model, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from compactor.integrations import contract
from compactor.integrations.openai_agents import Compaction
from compactor.testing import AdapterContract


class Scripted(Model):
    def __init__(self, seen: list[list[Any]]) -> None:
        self.seen = seen

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        given = options.get("input", args[1] if args else None)  # by name or by place
        shown = given if isinstance(given, list) else [{"role": "user", "content": given}]
        self.seen.append(shown)
        at = max(place for place, item in enumerate(shown) if item.get("role") == "user")
        results = sum(item.get("type") == "function_call_output" for item in shown[at:])
        reply = contract.answer(shown[at]["content"], results)
        calls = [
            ResponseFunctionToolCall(
                call_id=f"c{len(self.seen)}-{place}", name=name, arguments=f'{{"row":{row}}}', type="function_call"
            )
            for place, (name, row) in enumerate(reply.calls)
        ]
        text = ResponseOutputText(text=reply.text, annotations=[], type="output_text")
        said = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[*(calls or [said])], usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        done = await self.get_response(*args, **options)
        response = Response.model_construct(
            id="r", created_at=0, model="scripted", object="response", output=done.output, tools=[], usage=None
        )
        yield ResponseCompletedEvent.model_construct(type="response.completed", response=response, sequence_number=0)


class Host:
    def __init__(self, compaction: Compaction | None, sessions: dict[str, SQLiteSession]) -> None:
        self.seen: list[list[Any]] = []
        self.sessions = sessions
        tools = [function_tool(contract.look), function_tool(contract.fail)]
        self._agent = Agent(name="helper", instructions="Be brief.", model=Scripted(self.seen), tools=tools)
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

    async def history(self, session: str) -> Sequence[Any]:
        return await self._session(session).get_items()

    async def go_back(self, session: str, turns: int) -> None:
        kept = self._session(session)
        while turns:
            item: Any = await kept.pop_item()
            turns -= item.get("role") == "user"

    def text_of(self, item: Any) -> str:
        content = item.get("content")
        texts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
        return " ".join([*texts, *(str(item[key]) for key in ("name", "arguments", "output") if key in item)])

    def pair(self, item: Any) -> tuple[list[str], list[str]]:
        kind, call_id = item.get("type"), item.get("call_id")
        return [call_id] if kind == "function_call" else [], [call_id] if kind == "function_call_output" else []


class TestOpenAIAgents(AdapterContract):
    gives_own_objects = False  # a session gives equal ones in each run

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, before: Any = None) -> Host:
        return Host(compaction, before.sessions if before is not None else {})

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(session_id=str, **options)


def test_a_turn_made_again_is_the_newest() -> None:
    """The same call, with another reasoning and other ids."""

    def make(tag: str) -> list[Any]:
        reasoning = {"type": "reasoning", "id": f"rs_{tag}", "summary": [], "encrypted_content": tag}
        call = {"type": "function_call", "id": f"fc_{tag}", "call_id": tag, "name": "look", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": tag, "output": "row 1"}
        return [{"role": "user", "content": "Which row?"}, reasoning, call, result]

    with Compaction(8_000) as compaction:
        compaction.fit("s", make("old"))
        newest = make("new")
        shown = compaction.fit("s", newest).items

    assert all(one is own for one, own in zip(shown, newest, strict=True))
