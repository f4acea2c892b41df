"""Strands' own agent with the middleware, offline, on a scripted model."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands", reason="the extra `strands` is not installed")

from shown import FIRST_ROUND, RECALL_BUDGET, TALK, read_parts
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.middleware import InvokeModelStage
from strands.models import Model
from strands.session.file_session_manager import FileSessionManager

from compactor import ExtractiveSummarizer
from compactor.integrations import contract
from compactor.integrations.strands import Compaction
from compactor.testing import AdapterContract


class Scripted(Model):
    def __init__(self, seen: list[list[Any]], systems: list[str] | None = None) -> None:
        self.seen, self.systems = seen, [] if systems is None else systems

    def update_config(self, **_config: Any) -> None:
        pass

    def get_config(self) -> Any:
        return {}

    async def structured_output(self, *_args: Any, **_options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    async def stream(self, messages: Any, *_args: Any, **options: Any) -> AsyncIterator[Any]:
        self.seen.append(messages)
        self.systems.append(str(options.get("system_prompt_content")))
        blocks = [{**block, "role": message["role"]} for message in messages for block in message["content"]]
        at = max(place for place, block in enumerate(blocks) if "text" in block and block["role"] == "user")
        reply = contract.answer(blocks[at]["text"], sum("toolResult" in block for block in blocks[at:]))
        yield {"messageStart": {"role": "assistant"}}
        for place, (name, row) in enumerate(reply.calls):
            call = {"name": name, "toolUseId": f"c{len(self.seen)}-{place}"}
            yield {"contentBlockStart": {"start": {"toolUse": call}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": f'{{"row": {row}}}'}}}}
            yield {"contentBlockStop": {}}
        if not reply.calls:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": reply.text}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if reply.calls else "end_turn"}}


class Host:
    def __init__(self, compaction: Compaction | None, path: Path) -> None:
        self.seen: list[list[Any]] = []
        self.systems: list[str] = []
        self.path = path
        self._compaction = compaction
        self._agents: dict[str, Agent] = {}

    def _agent(self, session: str) -> Agent:
        if session not in self._agents:
            agent = self._agents[session] = Agent(
                Scripted(self.seen, self.systems),
                system_prompt="Be brief.",
                tools=[tool(contract.look), tool(contract.fail)],
                session_manager=FileSessionManager(session, storage_dir=str(self.path)),
                conversation_manager=NullConversationManager(),
                callback_handler=None,
            )
            if self._compaction is not None:
                agent.add_middleware(InvokeModelStage.Input, self._compaction)
        return self._agents[session]

    async def say(self, session: str, text: str) -> str:
        return str(await self._agent(session).invoke_async(text)).strip()

    async def stream(self, session: str, text: str) -> str:
        events = [event async for event in self._agent(session).stream_async(text)]
        return "".join(event.get("data", "") for event in events)

    async def list_history(self, session: str) -> Sequence[Any]:
        return [{"role": one["role"], "content": one["content"]} for one in self._agent(session).messages]

    async def go_back(self, session: str, turns: int) -> None:
        kept = self._agent(session).messages
        asked = [at for at, one in enumerate(kept) if "text" in one["content"][0] and one["role"] == "user"]
        del kept[asked[-turns] :]

    def read_text(self, message: Any) -> str:
        said = []
        for block in message["content"]:
            call, result = block.get("toolUse"), block.get("toolResult")
            said += [block.get("text", ""), f"{call['name']} {call['input']}" if call else ""]
            said += [part["text"] for part in result["content"]] if result else []
        return " ".join(filter(None, said))

    def list_call_ids(self, message: Any) -> tuple[list[str], list[str]]:
        blocks = message["content"]
        calls = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
        return calls, [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]


class TestStrands(AdapterContract):
    tells_answers = False
    gives_own_objects = False  # a call has copies

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        self._made = getattr(self, "_made", 0) + 1
        return Host(compaction, previous.path if previous is not None else self._path / f"host{self._made}")

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(session_id=lambda agent: agent._session_manager.session_id, **options)


def test_files_count_and_come_back_as_the_hosts_own() -> None:
    picture = {"image": {"format": "png", "source": {"bytes": b"\x89PNG" * 50}}}
    asked = {"role": "user", "content": [{"text": "What is this?"}, picture, {"cachePoint": {"type": "default"}}]}

    assert read_parts(Compaction(100_000), asked) == ["text", "image_url"]


def test_a_failed_result_that_is_shortened_stays_one() -> None:
    failed = {"toolUseId": "1", "status": "error", "content": [{"text": "no " * 4_000}]}
    history = [
        {"role": "user", "content": [{"text": "q"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "name": "look", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": failed}]},
    ]

    with Compaction(1_000) as compaction:
        (block,) = compaction.fit("s", history).items[-1]["content"]

    assert block["toolResult"]["status"] == "error"
    assert len(block["toolResult"]["content"][0]["text"]) < 4_000


def test_the_agents_own_model_summarizes() -> None:
    """No summarizer was given."""
    asked: list[Any] = []

    class Own(Scripted):
        async def stream(self, messages: Any, tools: Any = None, system: Any = None, **options: Any) -> Any:
            if tools:
                async for event in super().stream(messages, tools, system, **options):
                    yield event
                return
            asked.append(system)
            yield {"contentBlockDelta": {"delta": {"text": contract.SUMMARY}}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    async def run() -> None:
        with Compaction(contract.BUDGET, session_id="s") as compaction:
            agent = Agent(Own(seen), tools=[tool(contract.look), tool(contract.fail)], callback_handler=None)
            agent.add_middleware(InvokeModelStage.Input, compaction)
            for number in range(contract.TURNS):
                await agent.invoke_async(contract.ask(number))
                with compaction.sessions().open("s") as session:
                    await asyncio.to_thread(session.compactor.wait_idle, 30)
                    found = session.compactor.get_compaction()
            assert asked
            assert found is not None
            assert contract.FACT in found.summary

    seen: list[list[Any]] = []
    asyncio.run(run())


def test_the_agent_reads_back_what_its_prompt_no_longer_shows() -> None:
    seen: list[Any] = []

    class Asking(Scripted):
        async def stream(self, messages: Any, *_args: Any, **_options: Any) -> Any:
            self.seen.append(copy.deepcopy(messages))
            result = messages[-1]["content"][0].get("toolResult")
            if result:
                yield {"contentBlockDelta": {"delta": {"text": result["content"][0]["text"]}}}
            else:
                yield {"contentBlockStart": {"start": {"toolUse": {"name": "read_rounds", "toolUseId": "c1"}}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(FIRST_ROUND)}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn" if result else "tool_use"}}

    with Compaction(RECALL_BUDGET, summarizer=ExtractiveSummarizer()) as compaction:
        said: Any = [{"role": role, "content": [{"text": text}]} for role, text in TALK]
        agent = Agent(
            Asking(seen),
            messages=said,
            tools=compaction.tools(),
            conversation_manager=NullConversationManager(),
            callback_handler=None,
        )
        agent.add_middleware(InvokeModelStage.Input, compaction)
        done = agent("The code?")

    assert "QX-4711" not in str(seen[0])
    assert "QX-4711" in str(done)
