"""Microsoft Agent Framework's own agent with the middleware, offline, on a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agent_framework", reason="the extra `agent-framework` is not installed")

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)
from shown import FIRST_ROUND, RECALL_BUDGET, TALK, read_parts

from compactor import ExtractiveSummarizer
from compactor.integrations import contract
from compactor.integrations.agent_framework import Compaction
from compactor.testing import AdapterContract


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    def __init__(self, seen: list[list[Any]], systems: list[str] | None = None) -> None:
        super().__init__()
        self.seen, self.systems = seen, [] if systems is None else systems

    def _reply(self, messages: Sequence[Message]) -> list[Content]:
        self.seen.append([_read(message.to_dict()) for message in messages])
        at = max(place for place, message in enumerate(messages) if message.role == "user")
        results = sum(one.type == "function_result" for message in messages[at:] for one in message.contents)
        reply = contract.answer(messages[at].text, results)
        calls = [
            Content.from_function_call(f"c{len(self.seen)}-{place}", name, arguments={"row": row})
            for place, (name, row) in enumerate(reply.calls)
        ]
        return calls or [Content.from_text(reply.text)]

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_rest: Any) -> Any:
        self.systems.append(options.get("instructions") or "")

        async def answer() -> ChatResponse:
            return ChatResponse(messages=[Message(role="assistant", contents=self._reply(messages))])

        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            yield ChatResponseUpdate(role="assistant", contents=self._reply(messages))

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates) if stream else answer()


def _read(message: Any) -> Any:
    """A message's author is added when its turn ends."""
    return {"role": message["role"], "contents": message["contents"]}


class Host:
    def __init__(self, compaction: Compaction | None, kept: dict[str, Any]) -> None:
        self.seen: list[list[Any]] = []
        self.systems: list[str] = []
        self.kept = kept
        middleware = [compaction] if compaction is not None else []
        tools: Any = [contract.look, contract.fail]
        self._agent = Agent(
            client=Scripted(self.seen, self.systems), instructions="Be brief.", tools=tools, middleware=middleware
        )

    def _session(self, session: str) -> AgentSession:
        """The framework has sessions as plain values between turns."""
        if session in self.kept:
            return AgentSession.from_dict(self.kept[session])
        return self._agent.create_session(session_id=session)

    async def say(self, session: str, text: str) -> str:
        current = self._session(session)
        done = await self._agent.run(text, session=current)
        self.kept[session] = current.to_dict()
        return done.text

    async def stream(self, session: str, text: str) -> str:
        current = self._session(session)
        said = "".join([update.text async for update in self._agent.run(text, session=current, stream=True)])
        self.kept[session] = current.to_dict()
        return said

    async def list_history(self, session: str) -> Sequence[Any]:
        kept = self.kept.get(session) or self._session(session).to_dict()
        return [_read(message) for message in kept["state"].get("in_memory", {}).get("messages", [])]

    async def go_back(self, session: str, turns: int) -> None:
        messages = self.kept[session]["state"]["in_memory"]["messages"]
        asked = [at for at, message in enumerate(messages) if message["role"] == "user"]
        del messages[asked[-turns] :]

    def read_text(self, message: Any) -> str:
        said = []
        for one in message["contents"]:
            said += [one.get("text") or "", f"{one['name']} {one['arguments']}" if "arguments" in one else ""]
            said += [str(one.get("result") or "")]
        return " ".join(filter(None, said))

    def list_call_ids(self, message: Any) -> tuple[list[str], list[str]]:
        calls = [one["call_id"] for one in message["contents"] if one["type"] == "function_call"]
        return calls, [one["call_id"] for one in message["contents"] if one["type"] == "function_result"]


class TestAgentFramework(AdapterContract):
    gives_own_objects = (
        False  # a session is read again for each turn, and messages have no equality: these are their values
    )

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        return Host(compaction, previous.kept if previous is not None else {})

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(**options)


def test_files_count_and_come_back_as_the_hosts_own() -> None:
    picture = Content.from_data(b"\x89PNG" * 50, "image/png")
    asked = Message(role="user", contents=[Content.from_text("What is this?"), picture])

    assert read_parts(Compaction(100_000), asked) == ["text", "image_url"]


def test_what_only_adds_to_a_conversation_that_the_service_keeps_is_sent_as_it_is() -> None:
    class Keeping(Scripted):
        def _inner_get_response(self, *, messages: Any, stream: bool, **_options: Any) -> Any:
            async def answer() -> ChatResponse:
                self.seen.append([_read(message.to_dict()) for message in messages])
                is_asked = messages[-1].role == "user"
                said = [Content.from_function_call(f"c{len(self.seen)}", "look", arguments={"row": 1})]
                made = Message(role="assistant", contents=said if is_asked else [Content.from_text("done")])
                return ChatResponse(messages=[made], conversation_id="kept")

            return answer()

    async def run(middleware: list[Any]) -> list[Any]:
        seen: list[Any] = []
        agent = Agent(client=Keeping(seen), tools=[contract.look], middleware=middleware)
        session = agent.create_session(session_id="s")
        for number in range(3):
            await agent.run(f"Question {number}", session=session)
        return [[(one["role"], [part["type"] for part in one["contents"]]) for one in shown] for shown in seen]

    with Compaction(8_000) as compaction:
        assert asyncio.run(run([compaction])) == asyncio.run(run([]))


@pytest.mark.parametrize("of_client", [False, True])
def test_the_agents_own_client_summarizes(of_client: bool) -> None:
    """No summarizer was given; also where the middleware is the client's."""
    asked: list[Any] = []

    class Own(Scripted):
        def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **rest: Any) -> Any:
            if options.get("tools"):
                return super()._inner_get_response(messages=messages, stream=stream, options=options, **rest)
            asked.append(messages)

            async def answer() -> ChatResponse:
                return ChatResponse(messages=[Message(role="assistant", contents=[contract.SUMMARY])])

            return answer()

    async def run() -> None:
        with Compaction(contract.BUDGET, session_id="s") as compaction:
            client = Own([])
            if of_client:
                client.chat_middleware.append(compaction)
            tools: Any = [contract.look, contract.fail]
            agent = Agent(client=client, tools=tools, middleware=[] if of_client else [compaction])
            current = agent.create_session(session_id="s")
            for number in range(contract.TURNS):
                await agent.run(contract.ask(number), session=current)
                with compaction.sessions().open("s") as session:
                    await asyncio.to_thread(session.compactor.wait_idle, 30)
                    found = session.compactor.get_compaction()
            assert asked
            assert found is not None
            assert contract.FACT in found.summary
            assert len(compaction.sessions().store.sessions()) == 1

    asyncio.run(run())


def test_the_agent_reads_back_what_its_prompt_no_longer_shows() -> None:
    class Asking(Scripted):
        def _reply(self, messages: Sequence[Message]) -> list[Content]:
            self.seen.append([message.to_dict() for message in messages])
            results = [one for one in messages[-1].contents if one.type == "function_result"]
            call = Content.from_function_call("c1", "read_rounds", arguments=FIRST_ROUND)
            return [Content.from_text(str(results[0].result))] if results else [call]

    async def run() -> None:
        seen: list[Any] = []
        with Compaction(RECALL_BUDGET, summarizer=ExtractiveSummarizer()) as compaction:
            agent = Agent(client=Asking(seen), tools=compaction.tools(), middleware=[compaction])
            said = [Message(role, [text]) for role, text in (*TALK, ("user", "The code?"))]
            done = await agent.run(said, session=agent.create_session(session_id="s"))
        assert "QX-4711" not in str(seen[0])
        assert "QX-4711" in done.text

    asyncio.run(run())
