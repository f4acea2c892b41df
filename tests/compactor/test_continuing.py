"""A summarizer that asks behind the beginning of the agent's last prompt, against a server on loopback."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from chats import answer, calls, result, user, words
from model_server import Answer, ModelServer, completion, html, ok, reply, status
from scene import of_kind

from compactor import (
    CompactorConfig,
    ContextCompactor,
    ContinuedPrompt,
    OpenAISummarizer,
    Prepared,
    Rejected,
    SummarizerError,
    SummaryRequest,
    compose,
)
from compactor.testing import ScriptedSummarizer
from memory import Memory, Round

pytestmark = pytest.mark.usefixtures("no_environment")

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
BEGINNING = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]
GOING_ON = ContinuedPrompt(messages=[*BEGINNING, user("Summarise.")], tools=TOOLS, tool_choice="auto", model="m-1")
REQUEST = SummaryRequest(messages=[user("A transcript.")], continued_prompt=GOING_ON)

CALLED = ok(None, finish="tool_calls", **calls("c1"))


def summarizer_at(server: ModelServer, model: str = "m-1", **more: Any) -> OpenAISummarizer:
    return OpenAISummarizer(model, base_url=server.base_url, api_key="k", **{"timeout": 20} | more)


def bodies(server: ModelServer) -> list[Any]:
    return [request.body for request in server.requests]


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_the_agents_own_request_is_sent_again(server: ModelServer) -> None:
    """Messages, tools and tool choice as they were, so that the provider finds them in its cache."""
    with summarizer_at(server, extra={"prompt_cache_key": "s-1"}) as summarizer:
        assert summarizer(REQUEST).text == "SUMMARY 1"
    assert bodies(server) == [
        {
            "model": "m-1",
            "messages": GOING_ON.messages,
            "tools": TOOLS,
            "tool_choice": "auto",
            "prompt_cache_key": "s-1",
        }
    ]


def test_what_another_format_keeps_beside_a_message_is_not_sent(server: ModelServer) -> None:
    """OpenAI refuses a message with a key that it does not know."""
    kept = {"native": {"format": "anthropic", "v": 1, "blocks": [{"as_is": {"type": "thinking", "thinking": "Hm."}}]}}
    messages = [{**message, **kept} for message in GOING_ON.messages]
    with summarizer_at(server) as summarizer:
        summarizer(replace(REQUEST, continued_prompt=replace(GOING_ON, messages=messages)))
    assert bodies(server)[0]["messages"] == GOING_ON.messages


def test_without_tools_none_are_named(server: ModelServer) -> None:
    """Endpoints refuse an empty list, and a choice where there is nothing to choose."""
    bare = replace(REQUEST, continued_prompt=replace(GOING_ON, tools=(), tool_choice=None))
    with summarizer_at(server) as summarizer:
        summarizer(bare)
    assert bodies(server) == [{"model": "m-1", "messages": GOING_ON.messages}]


@pytest.mark.parametrize(
    ("style", "model", "agents", "continues"),
    [
        (None, "m-1", "m-1", True),
        (None, "m-2", "m-1", False),
        (None, "m-1", "", True),
        ("continue", "m-2", "m-1", True),
        ("separate", "m-1", "m-1", False),
    ],
)
def test_the_agents_model_decides_where_nobody_else_does(
    server: ModelServer, style: Any, model: str, agents: str, continues: bool
) -> None:
    """Another model has nothing of the agent's prompt in its cache, so it is sent the shorter transcript. An unknown
    one may be the same: the compactor offers the longer form only as long as the cache has shown that."""
    request = replace(REQUEST, continued_prompt=replace(GOING_ON, model=agents))
    with summarizer_at(server, model, style=style) as summarizer:
        summarizer(request)
        summarizer(replace(request, continued_prompt=None))
    sent = GOING_ON.messages if continues else REQUEST.messages
    assert [body["messages"] for body in bodies(server)] == [sent, REQUEST.messages]


def test_a_style_that_there_is_not_is_refused() -> None:
    """When it is made, rather than by never continuing."""
    with pytest.raises(ValueError, match="'separate', 'continue' or None, not 'continued'"):
        OpenAISummarizer("m-1", base_url="http://localhost:1/v1", style="continued")  # type: ignore[arg-type]


# -- what else comes back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "called",
    [
        CALLED,
        ok("Let me see.", finish="stop", tool_calls=calls("c1")["tool_calls"]),
        ok(None, finish="function_call", function_call={"name": "f", "arguments": "{}"}),
        ok(None, finish="length", **calls("c1")),
        ok(""),
        ok("", finish="MALFORMED_FUNCTION_CALL"),
        ok(None, refusal="I cannot do that."),
        ok("", finish="content_filter"),
        ok('<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>'),
        ok('Let me see.\n<function_calls>\n<invoke name="look_up"></invoke>\n</function_calls>'),
        ok('[TOOL_CALLS] [{"name": "look_up", "arguments": {}}]'),
        ok('{"name": "look_up", "parameters": {"id": 1}}'),
        ok('```json\n[{"tool": "look_up"}]\n```'),
        ok('functions.look_up({"id": 1})'),
    ],
)
def test_a_call_instead_of_an_answer_is_asked_for_separately(server: ModelServer, called: Answer) -> None:
    """An agent's model is used to calling its tools, and whoever speaks for it writes calls in many ways, some as text;
    nor is a refusal a summary, or nothing at all. What both requests took is added up."""
    server.answers(called, ok("Booked."))
    with summarizer_at(server) as summarizer:
        made = summarizer(REQUEST)
    assert made.text == "Booked."
    assert made.usage == {"input_tokens": 200, "output_tokens": 40, "cached_tokens": 120}
    assert bodies(server)[1] == {"model": "m-1", "messages": REQUEST.messages}


def test_a_call_whose_cost_is_not_known_adds_nothing(server: ModelServer) -> None:
    """Not every server tells."""
    server.answers(ok(None, finish="tool_calls", usage=None, **calls("c1")))
    with summarizer_at(server) as summarizer:
        assert summarizer(REQUEST).usage == {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 60}


@pytest.mark.parametrize(
    "refusal", [*map(status, (400, 404, 413, 422, 501)), reply({"error": {"message": "tools are not supported"}})]
)
def test_a_request_that_is_refused_is_made_separately(server: ModelServer, refusal: Answer) -> None:
    """It is longer than a transcript, and may hold what the endpoint does not know, which says so in its own way."""
    server.answers(refusal)
    with summarizer_at(server) as summarizer:
        answer = summarizer(REQUEST)
    assert (answer.text, answer.continued) == ("SUMMARY 2", False)
    assert bodies(server)[1]["messages"] == REQUEST.messages


@pytest.mark.parametrize(
    ("failing", "forms"),
    [
        (status(401), "cccccc"),
        (status(429), "cccccc"),
        (status(503), "cccccc"),
        (status(500), "cccccp"),
        (html(), "cpccpc"),
        (ok("x", finish="length"), "cpccpc"),
    ],
)
def test_other_failures_are_failures(server: ModelServer, failing: Answer, forms: str) -> None:
    """To ask at once costs more and helps nothing. Where the longer request may have been why, the next call goes
    without it ("p", plain); and should that fail too, it was not. One error of the server is bad luck, two are not."""
    server.answers(failing, ok("Booked."), ok("Booked."), failing, failing)
    with summarizer_at(server) as summarizer:
        for call in range(6):
            with pytest.raises(SummarizerError) if call in (0, 3, 4) else contextlib.nullcontext():
                summarizer(REQUEST)
    assert "".join("c" if "tools" in body else "p" for body in bodies(server)) == forms


def test_both_requests_together_keep_to_the_time() -> None:
    """``timeout=`` is for the whole call: the second request has what the first has left, and may have none."""
    moments = iter([0.0, 4.0, 0.0, 9.5])
    timeouts = []

    def create(**arguments: Any) -> Any:
        timeouts.append(arguments["timeout"])
        return completion(None, finish="tool_calls") if "tools" in arguments else completion("Booked.")

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    summarizer = OpenAISummarizer("m-1", client=client, timeout=9, clock=lambda: next(moments))
    assert summarizer(REQUEST).text == "Booked."
    with pytest.raises(SummarizerError, match="within 9 s"):
        summarizer(REQUEST)
    assert timeouts == [9, 5.0, 9]


def test_a_tool_called_in_the_separate_request_is_a_failure(server: ModelServer) -> None:
    """There is no third way to ask."""
    server.always(CALLED)
    with summarizer_at(server) as summarizer, pytest.raises(SummarizerError, match="called a tool"):
        summarizer(REQUEST)
    assert len(server.requests) == 2


def test_what_one_session_fails_at_is_no_others_concern(server: ModelServer) -> None:
    """Of two that share a summarizer, each is asked plainly once it has failed itself, however many others ask."""
    one, other = (replace(REQUEST, rounds=(Round(id=name, user_query="Where is it?"),)) for name in ("a", "b"))
    server.answers(html(), html(), ok("Booked."), ok("Sent."))
    with summarizer_at(server) as summarizer:
        for request in (one, other):
            with pytest.raises(SummarizerError, match="a web page"):
                summarizer(request)
        assert [summarizer(request).text for request in (one, other)] == ["Booked.", "Sent."]
    assert ["tools" in body for body in bodies(server)] == [True, True, False, False]


def test_only_so_many_failures_are_remembered(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that fail and never come again fill no memory."""
    monkeypatch.setattr("compactor.summarizers.model._MAX_REMEMBERED", 2)
    server.always(status(500))
    with summarizer_at(server) as summarizer:
        for name in "abca":
            with pytest.raises(SummarizerError):
                summarizer(replace(REQUEST, rounds=(Round(id=name, user_query="Q"),)))
    assert ["tools" in body for body in bodies(server)] == [True] * 4


# -- in a conversation ------------------------------------------------------------------------------------------------

CONFIG = CompactorConfig(threshold=3, retain_recent=2, model="m-1")


def conversation() -> Memory:
    memory = Memory("s")
    for number in range(1, 7):
        memory.append(user(f"Where is order {number}?"))
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", f"Order {number}: {words(60)}"))
        memory.append(answer(f"It is on its way, {number}."))
    return memory


def compacted(memory: Memory, summarizer: OpenAISummarizer) -> ContextCompactor:
    with ContextCompactor.for_role(memory, "assistant", CONFIG, summarizer) as compactor:
        compactor.compact_now(20)
    return compactor


def agents_call(memory: Memory, server: ModelServer) -> Any:
    """Make the agent's next call, as a host does; return what the server received."""
    prompt = compose(memory, budget=8_000, system="Be brief.", model="m-1", tools=TOOLS, tool_choice="auto")
    with openai.OpenAI(base_url=server.base_url, api_key="k", http_client=openai.DefaultHttpxClient()) as client:
        client.chat.completions.create(model="m-1", messages=prompt.messages, tools=TOOLS, tool_choice="auto")  # type: ignore[call-overload]
    return server.requests[-1].body


def test_the_provider_sees_the_same_beginning(server: ModelServer) -> None:
    """Byte for byte, from the first tool to the end of the last covered round; and what it saw of the cache is told."""
    memory = conversation()
    sent = agents_call(memory, server)
    with summarizer_at(server) as summarizer:
        compactor = compacted(memory, summarizer)
    asked = server.requests[-1].body
    *beginning, instruction = asked["messages"]
    assert len(beginning) == 1 + 4 * 4
    assert json.dumps(beginning) == json.dumps(sent["messages"][: len(beginning)])
    assert {key: asked[key] for key in ("model", "tools", "tool_choice")} == {
        key: sent[key] for key in ("model", "tools", "tool_choice")
    }
    assert "Where is order" not in instruction["content"]
    assert [event.usage for event in of_kind(compactor.events, Prepared)] == [
        {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 60}
    ]


def test_it_is_made_for_those_who_read_it() -> None:
    """Any function may, so it is there; who says that it never does is spared what making it takes."""
    seen: list[SummaryRequest] = []

    def reads(request: SummaryRequest) -> str:
        seen.append(request)
        return "Orders are on their way."

    class Never:
        takes_continued = False

        def __call__(self, request: SummaryRequest) -> str:
            return reads(request)

    for summarizer in (reads, Never()):
        memory = conversation()
        compose(memory, budget=8_000, system="Be brief.", model="m-1")
        with ContextCompactor.for_role(memory, "assistant", CONFIG, summarizer) as compactor:
            compactor.compact_now(20)
    assert [request.continued_prompt is not None for request in seen] == [True, False]
    styles = {style: summarizer_style(style).takes_continued for style in (None, "continue", "separate")}
    assert styles == {None: True, "continue": True, "separate": False}


def summarizer_style(style: Any) -> OpenAISummarizer:
    return OpenAISummarizer("m-1", base_url="http://localhost:1/v1", style=style)


def test_what_is_refused_is_asked_again_behind_the_same_beginning(server: ModelServer) -> None:
    """The checks are those of every summary, made against the conversation; the note on what was wrong ends either
    form of the question, and changes nothing before it."""
    memory = conversation()
    agents_call(memory, server)
    server.answers(ok("See /a/b.txt, /a/c.txt, /a/d.txt and /a/e.txt."), ok("Orders 1 to 4 are on their way."))
    with summarizer_at(server) as summarizer:
        compactor = compacted(memory, summarizer)
    first, second = bodies(server)[1:]
    assert [event.check for event in of_kind(compactor.events, Rejected)] == ["invented"]
    assert second["messages"][:-1] == first["messages"][:-1]
    said, before = second["messages"][-1]["content"], first["messages"][-1]["content"]
    assert said.startswith(before)
    assert "it held names" in said[len(before) :]


def test_whoever_replied_to_the_conversation_is_asked_separately(server: ModelServer) -> None:
    """As a part of the conversation, the question was taken for one more message of it."""
    memory = conversation()
    agents_call(memory, server)
    server.answers(ok("Hello! How can I help you today?"), ok("Orders 1 to 4 are on their way."))
    with summarizer_at(server) as summarizer:
        compactor = compacted(memory, summarizer)
    first, second = bodies(server)[1:]
    assert [event.check for event in of_kind(compactor.events, Rejected)] == ["greeting"]
    assert ("tools" in first, "tools" in second) == (True, False)
    assert "replied to the conversation" in second["messages"][-1]["content"]


def test_names_that_stand_nowhere_in_the_conversation_are_refused(server: ModelServer) -> None:
    """What was made up is found by the transcript, which is not sent."""
    memory = conversation()
    agents_call(memory, server)
    server.answers(ok("See /tmp/a.txt, /tmp/b.txt, /tmp/c.txt and /tmp/d.txt."), ok("Orders 1 to 4 are on their way."))
    with summarizer_at(server) as summarizer:
        compactor = compacted(memory, summarizer)
    assert [event.check for event in of_kind(compactor.events, Rejected)] == ["invented"]


@pytest.mark.parametrize("continues", [True, False])
def test_a_note_is_added_to_both_forms_and_to_no_other_message(continues: bool) -> None:
    """The request that was made stays as it was: its messages may be those that the agent's prompt is made of."""
    memory = conversation()
    if continues:
        compose(memory, budget=8_000, system="Be brief.", model="m-1")
    summarizer = ScriptedSummarizer(["", "Orders 1 to 4 are on their way."])
    with ContextCompactor.for_role(memory, "assistant", CONFIG, summarizer) as compactor:
        assert compactor.compact_now(20)
    first, again = summarizer.requests
    forms = [(first.messages, again.messages)]
    assert (first.continued_prompt is None, again.continued_prompt is None) == (not continues, not continues)
    if first.continued_prompt is not None and again.continued_prompt is not None:
        forms.append((first.continued_prompt.messages, again.continued_prompt.messages))
    for before, messages in forms:
        assert messages[:-1] == before[:-1]
        assert messages[-1]["content"].startswith(before[-1]["content"])
        assert "it held no text" in messages[-1]["content"]
        assert "it held no text" not in before[-1]["content"]
