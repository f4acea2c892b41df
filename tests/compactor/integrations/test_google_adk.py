"""Google ADK's own runner with the plugin, offline, on a scripted model."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework's own imports warn of
    pytest.importorskip("google.adk", reason="the extra `google-adk` is not installed")
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.apps import App
    from google.adk.models import BaseLlm, LlmRequest, LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService
    from google.genai.types import Content, FunctionCall, FunctionResponse, Part

    from compactor.integrations.google_adk import Compaction
from shown import check_turn_made_again

from compactor import ExtractiveSummarizer
from compactor.integrations import contract
from compactor.testing import AdapterContract

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
OWNER: Any = {"app_name": "app", "user_id": "u"}


class Scripted(BaseLlm):
    seen: Any  # a list, which pydantic would copy
    systems: Any = None

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncIterator[LlmResponse]:
        self.seen.append(list(llm_request.contents))
        self.systems.append(str(llm_request.config.system_instruction))
        parts = [(content.role, part) for content in llm_request.contents for part in content.parts or ()]
        at = max(place for place, (role, part) in enumerate(parts) if part.text and role == "user")
        results = sum(part.function_response is not None for _, part in parts[at:])
        reply = contract.answer(str(parts[at][1].text), results)
        calls = [Part(function_call=FunctionCall(name=name, args={"row": row})) for name, row in reply.calls]
        if stream and not calls:
            yield LlmResponse(content=Content(role="model", parts=[Part(text=reply.text)]), partial=True)
        yield LlmResponse(content=Content(role="model", parts=calls or [Part(text=reply.text)]))


class TellFailures(BasePlugin):
    async def on_tool_error_callback(self, *, error: Exception, **_options: Any) -> dict[str, Any]:
        return {"error": str(error)}


class Host:
    def __init__(self, compaction: Compaction | None, sessions: InMemorySessionService) -> None:
        self.seen: list[list[Content]] = []
        self.systems: list[str] = []
        self.sessions = sessions
        model = Scripted(model="scripted", seen=self.seen, systems=self.systems)
        tools: Any = [contract.look, contract.fail]
        agent = LlmAgent(name="helper", model=model, instruction="Be brief.", tools=tools)
        plugins = [TellFailures(name="failures"), *([compaction] if compaction is not None else [])]
        app = App(name="app", root_agent=agent, plugins=plugins)
        self._runner = Runner(app=app, session_service=sessions, auto_create_session=True)

    async def _run(self, session: str, text: str, mode: StreamingMode) -> list[Any]:
        options: Any = {
            "new_message": Content(role="user", parts=[Part(text=text)]),
            "run_config": RunConfig(streaming_mode=mode),
        }
        return [event async for event in self._runner.run_async(user_id="u", session_id=session, **options)]

    async def say(self, session: str, text: str) -> str:
        return str((await self._run(session, text, StreamingMode.NONE))[-1].content.parts[0].text)

    async def stream(self, session: str, text: str) -> str:
        events = await self._run(session, text, StreamingMode.SSE)
        return "".join(event.content.parts[0].text for event in events if event.partial)

    async def _events(self, session: str) -> list[Any]:
        kept = await self.sessions.get_session(**OWNER, session_id=session)
        return kept.events if kept is not None else []

    async def list_history(self, session: str) -> Sequence[Content]:
        contents = [event.content.model_copy(deep=True) for event in await self._events(session) if event.content]
        for part in (part for content in contents for part in content.parts or ()):
            for named in filter(None, (part.function_call, part.function_response)):
                named.id = None  # the framework's own, which it leaves out of requests
        return contents

    async def go_back(self, session: str, turns: int) -> None:
        asked = [event for event in await self._events(session) if event.author == "user"]
        await self._runner.rewind_async(
            user_id="u", session_id=session, rewind_before_invocation_id=asked[-turns].invocation_id
        )

    def read_text(self, content: Content) -> str:
        said = []
        for part in content.parts or ():
            call, result = part.function_call, part.function_response
            said += [
                part.text or "",
                f"{call.name} {call.args}" if call else "",
                str(result.response) if result else "",
            ]
        return " ".join(filter(None, said))

    def list_call_ids(self, content: Content) -> tuple[list[str], list[str]]:
        parts = content.parts or ()
        calls = [str(part.function_call.name) for part in parts if part.function_call]
        return calls, [str(part.function_response.name) for part in parts if part.function_response]


class TestGoogleADK(AdapterContract):
    gives_own_objects = False  # requests have copies

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        return Host(compaction, previous.sessions if previous is not None else InMemorySessionService())

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(session_id=lambda context: context.session.id, **options)


def test_the_agents_own_model_summarizes() -> None:
    """No summarizer was given; plugins do not hear of it."""
    asked: list[LlmRequest] = []

    class Model(BaseLlm):
        async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncIterator[Any]:
            asked.append(llm_request)
            yield LlmResponse(content=Content(role="model", parts=[Part(text="word " * 100)]))

    async def run() -> None:
        with Compaction(1_200, session_id="s") as compaction:
            agent = LlmAgent(name="helper", model=Model(model="scripted"), instruction="Be brief.")
            app = App(name="app", root_agent=agent, plugins=[compaction])
            runner = Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)
            for number in range(20):
                said = Content(role="user", parts=[Part(text=f"question {number}")])
                assert [event async for event in runner.run_async(user_id="u", session_id="s", new_message=said)]
                with compaction.sessions().open("s") as session:
                    await asyncio.to_thread(session.compactor.wait_idle, 30)

    asyncio.run(run())
    assert any("Be brief." not in str(request.config.system_instruction) for request in asked)


def test_a_turn_made_again_is_the_newest() -> None:
    """The same call, with another thought."""

    def make(tag: str) -> list[Content]:
        call = Part(function_call=FunctionCall(name="look", args={}), thought_signature=tag.encode())
        result = Part(function_response=FunctionResponse(name="look", response={"row": 1}))
        return [
            Content(role="user", parts=[Part(text="Which row?")]),
            Content(role="model", parts=[Part(text=f"Plan {tag}.", thought=True), call]),
            Content(role="user", parts=[result]),
        ]

    check_turn_made_again(Compaction(8_000), make)


def test_the_agent_reads_back_what_its_prompt_no_longer_shows() -> None:
    seen: list[list[Content]] = []

    class Asking(BaseLlm):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncIterator[LlmResponse]:
            seen.append(list(llm_request.contents))
            last = (llm_request.contents[-1].parts or [])[-1]
            part = Part(text="I see.")
            if last.function_response:
                part = Part(text=str(last.function_response.response))
            elif "The code?" in str(last.text):
                part = Part(function_call=FunctionCall(name="read_rounds", args={"start": 1}))
            yield LlmResponse(content=Content(role="model", parts=[part]))

    async def run() -> str:
        compaction = Compaction(budget=2_500, summarizer=ExtractiveSummarizer())
        agent = LlmAgent(name="helper", model=Asking(model="asking"), tools=compaction.tools())
        sessions = InMemorySessionService()
        app = App(name="app", root_agent=agent, plugins=[compaction])
        runner = Runner(app=app, session_service=sessions, auto_create_session=True)
        said = ""
        for text in ("The code is QX-4711.", *(f"{number} " + "word " * 200 for number in range(15)), "The code?"):
            message = Content(role="user", parts=[Part(text=text)])
            async for event in runner.run_async(user_id="u", session_id="s", new_message=message):
                parts = event.content.parts if event.content else None
                said = str(parts[0].text) if parts else said
        await runner.close()
        return said

    said = asyncio.run(run())

    assert "QX-4711" not in str(seen[-2])
    assert "QX-4711" in said


def test_a_content_that_says_nothing_comes_back_as_it_was() -> None:
    """As a model's answer that was cut before its first word."""
    history = [Content(role="user", parts=[Part(text="q")]), Content(role="model"), Content(role="user", parts=[])]
    with Compaction(1_000) as compaction:
        shown = compaction.fit("s", [*history, Content(role="user", parts=[Part(text="And now?")])]).items

    assert [part.text for one in shown for part in one.parts or ()] == ["q", "And now?"]
