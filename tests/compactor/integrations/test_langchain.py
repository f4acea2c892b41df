"""LangChain's own agent with the middleware, offline, on a scripted model."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="the extra `langchain` is not installed")

from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import dynamic_prompt, wrap_model_call, wrap_tool_call
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from compactor import BudgetExceeded, ExtractiveSummarizer
from compactor.integrations import contract
from compactor.integrations.langchain import Compaction
from compactor.testing import AdapterContract


class Scripted(BaseChatModel):
    seen: Any  # a list, which pydantic would copy
    systems: Any = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_options: Any) -> ChatResult:
        shown = [message for message in messages if message.type != "system"]
        self.seen.append(shown)
        if self.systems is not None:
            self.systems.append(" ".join(str(message.text) for message in messages if message.type == "system"))
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
        self.systems: list[str] = []
        self.saver = saver
        middleware = [tell_failures, *([compaction] if compaction is not None else [])]
        self._agent = create_agent(
            Scripted(seen=self.seen, systems=self.systems),
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

    async def list_history(self, session: str) -> Sequence[BaseMessage]:
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

    def read_text(self, message: BaseMessage) -> str:
        calls = [f"{call['name']} {call['args']}" for call in getattr(message, "tool_calls", ())]
        return " ".join([str(message.text), *calls])

    def list_call_ids(self, message: BaseMessage) -> tuple[list[str], list[str]]:
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

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        return Host(compaction, previous.saver if previous is not None else InMemorySaver())

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
    asked: Any = {
        "messages": [("user", "The code is QX-4711."), ("assistant", "I see."), *given, ("user", "The code?")]
    }
    with Compaction(2_500, recall=True) as compaction:
        agent = create_agent(Asking(seen=seen), middleware=[compaction], checkpointer=InMemorySaver())
        done = asyncio.run(agent.ainvoke(asked, _config("s"))) if is_async else agent.invoke(asked, _config("s"))

    first = next(one for one in seen if not str(one[0].content).startswith("<conversation>"))  # not the summarizer's
    assert "QX-4711" not in str(first)
    assert "QX-4711" in done["messages"][-1].content


def test_without_a_checkpointer_no_conversation_sees_another() -> None:
    """They have one Compaction, and the newest words of the one are the first of the other."""
    seen: list[list[BaseMessage]] = []
    with Compaction(8_000) as compaction:
        agent = create_agent(Scripted(seen=seen), middleware=[compaction])
        agent.invoke({"messages": [("user", "The code is QX-4711."), ("assistant", "I see."), ("user", "Hello.")]})
        agent.invoke(_asked("Hello."))

    assert "QX-4711" in str(seen[0])
    assert [message.text for message in seen[1]] == ["Hello."]


def test_recall_needs_a_checkpointer_or_a_name() -> None:
    for options in ({"recall": True}, {"recall": True, "session_id": lambda _runtime: None}):
        given: Any = options
        with Compaction(8_000, **given) as compaction:
            agent = create_agent(Scripted(seen=[]), middleware=[compaction])
            with pytest.raises(ValueError, match="session_id="):
                agent.invoke(_asked("nothing"))
    with Compaction(8_000, recall=True, session_id="s") as compaction:
        create_agent(Scripted(seen=[]), middleware=[compaction]).invoke(_asked("nothing"))


def test_the_first_model_that_middleware_chooses_summarizes() -> None:
    """The others answer."""
    asked: list[str] = []

    class Named(Scripted):
        name: str = ""

        def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
            if "Question" in messages[-1].text and "Write" not in messages[0].text:
                return super()._generate(messages, *args, **options)
            asked.append(self.name)
            return ChatResult(generations=[ChatGeneration(message=AIMessage("They asked questions."))])

    models = [Named(seen=[], name="first"), Named(seen=[], name="other")]

    @wrap_model_call
    def choose(request: Any, handler: Any) -> Any:
        return handler(request.override(model=models[len(request.messages) // 2 % 2]))

    with Compaction(1_200) as compaction:
        agent = create_agent(models[1], middleware=[choose, compaction], checkpointer=InMemorySaver())
        for number in range(12):
            agent.invoke(_asked(f"{contract.ask(number)} nothing " + "word " * 100), _config("s"))
            with compaction.sessions().open("s") as session:
                session.compactor.wait_idle(30)
    assert set(asked) == {"first"}


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


def fit(*messages: BaseMessage, budget: int = 10_000_000) -> list[BaseMessage]:
    with Compaction(budget, summarizer=ExtractiveSummarizer()) as compaction:
        return compaction.fit("s", messages).items


def is_same(shown: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> bool:
    return [*map(id, shown)] == [*map(id, messages)]


VIDEO = base64.b64encode(bytes(100_000)).decode()
BLOCKS: Any = [
    {"type": "video", "base64": VIDEO, "mime_type": "video/mp4"},
    {"type": "media", "data": bytes(100_000), "mime_type": "video/mp4"},
    {"video": {"format": "mp4", "source": {"bytes": bytes(100_000)}}},
    {"type": "image", "source_type": "base64", "data": VIDEO, "mime_type": "image/png"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{VIDEO}"}},
    {"type": "audio", "base64": VIDEO, "mime_type": "audio/wav"},
    {"type": "file", "file_id": "f1"},
    {"type": "media", "file_uri": "gs://bucket/file", "mime_type": "application/pdf"},
    {"type": "text-plain", "text": "words", "mime_type": "text/plain"},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
    {"type": "search_result", "title": "T", "content": [{"type": "text", "text": "words"}]},
    {"cachePoint": {"type": "default"}},
    {"type": "nobody-knows", "value": object()},
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(next(iter(block.values()))))
def test_blocks_of_all_providers_are_shown_as_they_are(block: Any) -> None:
    """Also of kinds that nobody knows; what holds a file counts as a file, and not as its letters."""
    asked = HumanMessage(["Look:", block])
    called = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}])
    messages = [asked, AIMessage(["I see.", block]), asked, called, ToolMessage([block], tool_call_id="1")]
    assert is_same(fit(*messages, budget=120_000), messages)


INVALID = {"name": "look", "args": '{"row": ', "id": "1", "error": None, "type": "invalid_tool_call"}


def test_a_call_that_could_not_be_parsed_keeps_its_result() -> None:
    """As a result, and behind its call."""
    messages = [HumanMessage("q"), AIMessage("", invalid_tool_calls=[INVALID]), ToolMessage("bad", tool_call_id="1")]
    assert is_same(fit(*messages), messages)
    messages[2] = ToolMessage("bad " * 4_000, tool_call_id="1", status="error", name="look")
    shown = fit(*messages, budget=1_000)
    assert [one.type for one in shown] == ["human", "ai", "tool"]
    assert is_same(shown[:2], messages[:2])


def test_calls_that_json_or_results_cannot_name_are_shown() -> None:
    """Without an id, or with arguments that are no JSON."""
    loop: dict[str, Any] = {}
    loop["itself"] = loop
    for call_id, args in (
        (None, {}),
        (None, loop),
        ("1", {"x": object()}),
        ("1", {"x": b"\xff"}),
        ("1", {"x": {1, 2}}),
    ):
        asked: Any = AIMessage("", tool_calls=[{"name": "look", "args": args, "id": call_id}])
        messages = [
            HumanMessage("q"),
            asked,
            *([ToolMessage("r", tool_call_id="1")] if call_id else []),
            HumanMessage("p"),
        ]
        assert is_same(fit(*messages), messages)


@pytest.mark.parametrize("role", ["critic", "tool", "function", "user", "assistant", ""])
def test_a_message_of_any_role_is_shown(role: str) -> None:
    messages = [HumanMessage("q"), ChatMessage(role=role, content="x"), FunctionMessage(name="f", content="y")]
    assert is_same(fit(*messages), messages)


def test_a_failed_result_that_is_shortened_stays_one() -> None:
    """With the name of its tool."""
    asked = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}])
    shown = fit(
        HumanMessage("q"),
        asked,
        ToolMessage("no " * 4_000, tool_call_id="1", status="error", name="look"),
        budget=1_000,
    )
    failed = shown[2]
    assert isinstance(failed, ToolMessage)
    assert (failed.status, failed.name, failed.tool_call_id) == ("error", "look", "1")
    assert len(failed.text) < 4_000


def test_signed_thinking_is_untouched_where_the_answer_is_shortened() -> None:
    """And nothing of it is in the text."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}
    called: Any = [
        thought,
        {"type": "text", "text": "I try. " * 4_000},
        {"type": "tool_use", "id": "1", "name": "f", "input": {}},
    ]
    asked = AIMessage(
        called, tool_calls=[{"name": "f", "args": {}, "id": "1"}], additional_kwargs={"signatures": ["s"]}
    )
    shown = fit(HumanMessage("q"), asked, ToolMessage("r", tool_call_id="1"), budget=1_000)[1]
    assert isinstance(shown, AIMessage)
    assert shown.content[0] == thought
    assert "thinking" not in shown.text
    assert "left out" in shown.text
    assert [call["id"] for call in shown.tool_calls] == ["1"]
    assert shown.additional_kwargs == {"signatures": ["s"]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=20) | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KINDS = [str(block.get("type", "none")) for block in BLOCKS]
KINDS += ["text", "thinking", "reasoning", "refusal", "tool_use", "tool_call", "function_call", "server_tool_use"]
KEYS = st.sampled_from(
    ["id", "text", "data", "base64", "url", "source", "input", "args", "name", "cache_control", "image"]
)
RANDOM = st.builds(
    lambda kind, rest: {**rest, **({"type": kind} if kind else {})},
    st.sampled_from([*KINDS, ""]),
    st.dictionaries(KEYS, JSON, max_size=3),
)
CONTENT: Any = st.text() | st.lists(st.text() | RANDOM, max_size=3)
CALLS: Any = st.lists(
    st.fixed_dictionaries({"name": st.text(), "args": st.dictionaries(st.text(max_size=3), JSON), "id": st.none()}),
    max_size=2,
)
SAID = st.one_of(
    st.builds(HumanMessage, content=CONTENT, name=st.none() | st.text()),
    st.builds(AIMessage, content=CONTENT, tool_calls=CALLS),
    st.builds(AIMessageChunk, content=CONTENT),
    st.builds(ChatMessage, content=CONTENT, role=st.text()),
    st.builds(FunctionMessage, content=CONTENT, name=st.text()),
    st.builds(ToolMessage, content=CONTENT, tool_call_id=st.text(max_size=2)),
    st.builds(SystemMessage, content=CONTENT),
)


@given(st.lists(SAID, max_size=4))
def test_whatever_langchain_takes_is_read(messages: list[BaseMessage]) -> None:
    """Nothing that a message may hold ends in an error. The user's are shown as they are; the same call again writes
    nothing."""
    given_now = [HumanMessage("q"), *messages]
    with Compaction(10_000_000, summarizer=ExtractiveSummarizer()) as compaction:
        own = {id(message) for message in compaction.fit("s", given_now).items}
        assert all(id(message) in own for message in given_now if message.type == "human")
        with compaction.sessions().open("s") as session:
            written = len(session.memory.messages())
            compaction.fit("s", given_now)
            assert len(session.memory.messages()) == written


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_prompt_that_other_middleware_sets_keeps_the_summary(is_whole: bool) -> None:
    """If ``Compaction`` stands behind it, as its page says; a prompt may be blocks."""
    parts: Any = ["You are a guide.", {"type": "text", "text": "Be brief."}]
    asked: list[Any] = []

    @dynamic_prompt
    def persona(_request: Any) -> Any:
        return "You are a guide. Be brief." if is_whole else SystemMessage(parts)

    class Model(Scripted):
        def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
            asked.append(messages[0].text)
            return super()._generate(messages, *args, **options)

    with Compaction(1_200, summarizer=ExtractiveSummarizer()) as compaction:
        agent = create_agent(Model(seen=[]), middleware=[persona, compaction], checkpointer=InMemorySaver())
        for number in range(12):
            agent.invoke(_asked(f"{contract.ask(number)} nothing " + "word " * 100), _config("s"))
            with compaction.sessions().open("s") as session:
                session.compactor.wait_idle(30)
    assert asked[-1].startswith("You are a guide.")
    assert "Summary" in asked[-1]


@pytest.mark.parametrize("wrap", [ToolStrategy, ProviderStrategy, AutoStrategy])
def test_the_schema_of_a_structured_answer_counts(wrap: Any) -> None:
    """It is sent with the prompt, as those of tools are."""
    schema = {"title": "City", "type": "object", "description": "words " * 3_000, "properties": {}}
    with Compaction(2_000, summarizer=ExtractiveSummarizer()) as compaction:
        agent = create_agent(Scripted(seen=[]), middleware=[compaction], response_format=wrap(schema))
        with pytest.raises(BudgetExceeded):
            agent.invoke(_asked("nothing"))


@pytest.mark.parametrize("thread", [17, 0, uuid.UUID(int=1)])
def test_a_thread_may_have_a_number_or_a_uuid(thread: Any) -> None:
    """Its session is named by the text of that."""
    with Compaction(10_000, summarizer=ExtractiveSummarizer()) as compaction:
        agent = create_agent(Scripted(seen=[]), middleware=[compaction], checkpointer=InMemorySaver())
        agent.invoke(_asked("nothing"), _config(thread))
        with compaction.sessions().open(str(thread)) as session:
            assert session.memory.messages()


def test_marks_for_a_cache_on_the_system_prompt_stay() -> None:
    """Where a summary is added behind them."""
    marked: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    asked: list[Any] = []

    class Model(Scripted):
        def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
            asked.append(messages[0].content)
            return super()._generate(messages, *args, **options)

    with Compaction(1_200, summarizer=ExtractiveSummarizer()) as compaction:
        agent = create_agent(
            Model(seen=[]),
            system_prompt=SystemMessage(marked),
            middleware=[compaction],
            checkpointer=InMemorySaver(),
        )
        for number in range(12):
            agent.invoke(_asked(f"{contract.ask(number)} nothing " + "word " * 100), _config("s"))
            with compaction.sessions().open("s") as session:
                session.compactor.wait_idle(30)
    assert asked[0] == marked
    assert asked[-1][:1] == marked
    assert "Summary" in asked[-1][1]["text"]


def test_an_agent_that_works_within_another_has_a_session_of_its_own() -> None:
    """In the same thread: else each would undo what the other wrote."""
    with Compaction(8_000) as compaction:
        worker = create_agent(Scripted(seen=[]), middleware=[compaction], name="worker")

        def look(row: int) -> str:
            """Ask the worker."""
            return str(worker.invoke({"messages": [("user", f"Work on {row}.")]})["messages"][-1].content)

        tools, saver = [tool(look), tool(contract.fail)], InMemorySaver()
        agent = create_agent(Scripted(seen=[]), tools, middleware=[compaction], checkpointer=saver)
        for number in range(5):
            agent.invoke({"messages": [("user", f"two {number}")]}, {"configurable": {"thread_id": 17}})
        for name, rounds in (("17", 5), ("17/tools/worker", 1)):
            with compaction.sessions().open(name) as session:
                shown = session.memory.conversation.rounds
                assert sum(one.state != "undone" for one in shown) == rounds
        with compaction.sessions().open("17") as session:
            assert len(session.memory.conversation.rounds) == 5
