"""A loop on Anthropic's own client, offline: what answers is a transport."""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic", reason="the extra `anthropic` is not installed")

import anthropic
from shown import FIRST_ROUND, RECALL_BUDGET, TALK

from compactor import ExtractiveSummarizer
from compactor.integrations import contract
from compactor.integrations.anthropic import Compaction
from compactor.testing import AdapterContract

#: What the SDK's client is made on: httpx2; older versions, httpx.
httpx = importlib.import_module(anthropic.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])

TOOLS: Any = [
    {"name": tool.__name__, "description": tool.__doc__, "input_schema": {"type": "object", "properties": {"row": {}}}}
    for tool in (contract.look, contract.fail)
]


class Host:
    """A loop as Anthropic's guide has it: answers go into the history as they are."""

    def __init__(self, compaction: Compaction | None, kept: dict[str, list[Any]]) -> None:
        self.seen: list[Any] = []
        self.systems: list[str] = []
        self.kept = kept
        self._compaction = compaction
        client = anthropic.DefaultAsyncHttpxClient(transport=httpx.MockTransport(self._answer))
        self._client = anthropic.AsyncAnthropic(api_key="none", http_client=client, max_retries=0)

    def _answer(self, request: Any) -> Any:
        asked = json.loads(request.content)
        self.seen.append(asked["messages"])
        self.systems.append(str(asked["system"]))
        at = max(place for place, one in enumerate(asked["messages"]) if isinstance(one["content"], str))
        assert asked["messages"][at]["role"] == "user"
        reply = contract.answer(asked["messages"][at]["content"], len(asked["messages"]) - at - 1)
        content: list[Any] = [
            {"type": "tool_use", "id": f"c{len(self.seen)}-{place}", "name": name, "input": {"row": row}}
            for place, (name, row) in enumerate(reply.calls)
        ]
        message = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": content or [{"type": "text", "text": reply.text}],
            "stop_reason": "tool_use" if content else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        if not asked.get("stream"):
            return httpx.Response(200, json=message)
        events = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in _stream(message))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=events.encode())

    async def _turn(self, session: str, text: str, *, stream: bool) -> str:
        messages = self.kept.setdefault(session, [])
        messages.append({"role": "user", "content": text})
        while True:
            request: Any = {"model": "scripted", "max_tokens": 100, "system": "Be brief.", "tools": TOOLS}
            request["messages"] = messages
            if self._compaction is not None:
                request = await self._compaction.aprepare(session, **request)
            if stream:
                async with self._client.messages.stream(**request) as run:
                    message = await run.get_final_message()
            else:
                message = await self._client.messages.create(**request)
            messages.append({"role": "assistant", "content": message.content})
            results = [_call(block) for block in message.content if block.type == "tool_use"]
            if not results:
                return str(message.content[0].text)
            messages.append({"role": "user", "content": results})

    async def say(self, session: str, text: str) -> str:
        return await self._turn(session, text, stream=False)

    async def stream(self, session: str, text: str) -> str:
        return await self._turn(session, text, stream=True)

    async def list_history(self, session: str) -> Sequence[Any]:
        """As the client sends it."""
        return [{"role": one["role"], "content": _dump(one["content"])} for one in self.kept[session]]

    async def go_back(self, session: str, turns: int) -> None:
        messages = self.kept[session]
        asked = [at for at, one in enumerate(messages) if isinstance(one["content"], str)]
        del messages[asked[-turns] :]

    def read_text(self, message: Any) -> str:
        content = message["content"]
        blocks = [{"text": content}] if isinstance(content, str) else content
        said = [str(block[key]) for block in blocks for key in ("text", "name", "input", "content") if key in block]
        return " ".join(said)

    def list_call_ids(self, message: Any) -> tuple[list[str], list[str]]:
        blocks = [block for block in message["content"] if isinstance(block, dict)]
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        return calls, [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]


def _call(block: Any) -> Any:
    result = {"type": "tool_result", "tool_use_id": block.id}
    try:
        return {**result, "content": getattr(contract, block.name)(**block.input)}
    except ValueError as error:
        return {**result, "content": str(error), "is_error": True}


def _dump(content: Any) -> Any:
    """Return *content* as the client puts it into a request."""
    if isinstance(content, str):
        return content
    return [one if isinstance(one, dict) else one.to_dict() for one in content]


def _stream(message: Any) -> list[Any]:
    events: list[Any] = [{"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}]
    for index, block in enumerate(message["content"]):
        start, delta = dict(block), {"type": "text_delta", "text": block.get("text")}
        if block["type"] == "tool_use":
            start["input"], delta = {}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            start["text"] = ""
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}}, {"type": "message_stop"}]


class TestAnthropic(AdapterContract):
    tells_answers = False
    gives_own_objects = False  # requests are JSON

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        return Host(compaction, copy.deepcopy(previous.kept) if previous is not None else {})

    def make_compaction(self, **options: Any) -> Compaction:
        return Compaction(**options)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("budget", [1_200, 100_000])
def test_what_is_signed_or_marked_comes_back_as_it_is(budget: int, is_async: bool) -> None:
    """The host's own messages and blocks of the system prompt, also under pressure."""
    thinking = {"type": "thinking", "thinking": "A row is asked for.", "signature": "c2lnbmVk"}
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {"row": 1}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "row 1", "cache_control": {"type": "ephemeral"}}
    long = [{"role": role, "content": "word " * 400} for _ in range(3) for role in ("user", "assistant")]
    newest = [
        {"role": "user", "content": "Which row?"},
        {"role": "assistant", "content": [thinking, call]},
        {"role": "user", "content": [result]},
    ]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    given: Any = {"messages": [*long, *newest], "system": system, "tools": TOOLS, "max_tokens": 9}

    with Compaction(budget) as compaction:
        request = asyncio.run(compaction.aprepare("s", **given)) if is_async else compaction.prepare("s", **given)

    assert all(one is own for one, own in zip(request["messages"][-3:], newest, strict=True))
    assert request["system"][0] is system[0]
    assert (len(request["messages"]) == 9) == (len(request["system"]) == 1) == (budget > 10_000)
    assert (request["tools"], request["max_tokens"]) == (TOOLS, 9)


def _count_marks(messages: list[Any]) -> int:
    return json.dumps([_dump(message["content"]) for message in messages]).count("cache_control")


@pytest.mark.parametrize("budget", [1_200, 100_000])
@pytest.mark.parametrize("keeps", [100, 6])
def test_a_host_that_moves_its_mark_on_sends_no_more_marks_than_it_set(budget: int, keeps: int) -> None:
    """Anthropic takes four; also where the host keeps its newest messages alone."""
    messages: list[Any] = []
    with Compaction(budget) as compaction:
        for number in range(12):
            for block in (block for message in messages for block in message["content"]):
                block.pop("cache_control", None)
            asked = {"type": "text", "text": f"Question {number}. " + "word " * 90}
            messages.append({"role": "user", "content": [{**asked, "cache_control": {"type": "ephemeral"}}]})
            del messages[:-keeps]
            request = compaction.prepare("s", messages=messages, tools=TOOLS)
            assert _count_marks(request["messages"]) == 1
            assert request["messages"][-1] is messages[-1]
            messages.append({"role": "assistant", "content": [{"type": "text", "text": f"answer {number}"}]})


@pytest.mark.parametrize("long", ["", "word " * 2_000])
def test_a_turn_made_again_is_the_newest(long: str) -> None:
    """The same words, with another thinking and other ids; also where its result is shortened."""

    def make(tag: str) -> list[Any]:
        thinking = {"type": "thinking", "thinking": f"Plan {tag}.", "signature": tag}
        call = {"type": "tool_use", "id": tag, "name": "look", "input": {"row": 1}}
        result = {"type": "tool_result", "tool_use_id": tag, "content": f"row 1 {long}"}
        return [
            {"role": "user", "content": "Which row?"},
            {"role": "assistant", "content": [thinking, call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": "That one."},
            {"role": "user", "content": "Thank you."},
        ]

    with Compaction(1_000) as compaction:
        compaction.prepare("s", messages=make("old"))
        newest = make("new")
        shown = compaction.prepare("s", messages=newest)["messages"]

    assert shown[1] is newest[1]
    assert shown[2]["content"][0]["tool_use_id"] == "new"
    assert (shown == newest) == (not long)


def test_the_agent_reads_back_what_its_prompt_no_longer_shows() -> None:
    """In a session that ``session_id`` names otherwise, too."""
    messages: list[Any] = [{"role": role, "content": text} for role, text in TALK]
    messages.append({"role": "user", "content": "The code?"})
    options: Any = {"summarizer": ExtractiveSummarizer(), "session_id": "chat {}".format}
    with Compaction(RECALL_BUDGET, **options) as compaction:
        request = compaction.prepare("17", messages=messages, tools=compaction.tools())
        assert "QX-4711" not in str(request["messages"])
        assert [set(tool) for tool in request["tools"]] == [{"name", "description", "input_schema"}] * 3
        assert "QX-4711" in compaction.call_tool("17", "read_rounds", FIRST_ROUND)
        assert "QX-4711" in asyncio.run(compaction.acall_tool("17", "read_rounds", FIRST_ROUND))
