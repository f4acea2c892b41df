"""Summaries that providers make themselves, against a server on loopback that takes and refuses what theirs do."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_server import Exchange, ModelServer, completion
from openai.resources.responses import Responses
from scene import PRICES, ROLE, add_round, on_command

from compactor import (
    AnthropicSummarizer,
    CompactorConfig,
    ContinuedPrompt,
    OpenAISummarizer,
    SummarizerError,
    SummaryRequest,
    compose,
)
from compactor.formats import anthropic, chat, gemini, responses
from compactor.integrations.anthropic import Compaction
from memory import InMemoryStore, Memory

KEY = "key-0123456789"
MODEL = "claude-x"
BETA = "compact-2026-09-04"
CONFIG = CompactorConfig(threshold=4, retain_recent=2)
FORMATS = {"anthropic": anthropic, "responses": responses, "gemini": gemini, "chat": chat}
needs_compact = pytest.mark.skipif(not hasattr(Responses, "compact"), reason="this openai has no responses.compact")
needs_anthropic = pytest.mark.skipif(find_spec("anthropic") is None, reason="anthropic is not installed")


class Claude:
    """Anthropic's endpoint: it makes signed blocks, and refuses those that it would refuse."""

    def __init__(self) -> None:
        #: By their signature: the model and the text of each block.
        self.blocks: dict[str, tuple[str, str]] = {}
        self.bodies: list[Any] = []
        self.fault: tuple[int, str, str] | None = None
        self.text: str | None = PRICES

    def __call__(self, exchange: Exchange) -> None:
        body, headers = exchange.request.body, exchange.request.headers
        self.bodies.append(body)
        wrong = self.check(body, headers.get("anthropic-beta", ""))
        if self.fault is not None and "compaction" in body:
            code, error_code, said = self.fault
            wrong, status = (error_code, said), code
        else:
            status = 400
        if wrong is not None:
            details = {"error_code": wrong[0]} if wrong[0] else None
            error = {"type": "invalid_request_error", "message": wrong[1], "details": details}
            exchange.send(status, json.dumps({"type": "error", "error": error}))
            return
        usage = {"input_tokens": 3, "output_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "usage": usage}
        if "compaction" not in body:
            said = [{"type": "text", "text": PRICES}]
            exchange.send(200, json.dumps(message | {"content": said, "stop_reason": "end_turn"}))
            return
        signature = hashlib.sha256(json.dumps(body).encode()).hexdigest()
        self.blocks[signature] = (body["model"], self.text or "")
        block = {"type": "compaction", "content": self.text, "signature": signature, "tool_changes": [], "new": None}
        one = {"type": "compaction", "input_tokens": 40, "output_tokens": 20, "cache_read_input_tokens": 60}
        usage["iterations"] = [one | {"cache_creation_input_tokens": 0}]
        exchange.send(200, json.dumps(message | {"content": [block], "stop_reason": "compaction"}))

    def check(self, body: Any, beta: str) -> tuple[str, str] | None:
        found = [
            (place, number, block)
            for place, one in enumerate(body["messages"])
            for number, block in enumerate(one["content"] if isinstance(one["content"], list) else ())
            if block["type"] == "compaction"
        ]
        if (found or "compaction" in body) and BETA not in beta.split(","):
            return "", "compaction: Extra inputs are not permitted"
        if len(found) > 1:
            return "compaction_block_ambiguous", "more than one block"
        for place, number, block in found:
            if (place, number) != (0, 0):
                return "compaction_block_misplaced", "not the first block"
            if self.blocks.get(block["signature"]) != (body["model"], block["content"]):
                return "compaction_signature_invalid", "does not verify"
            if block["tool_changes"] != [] or "new" not in block:
                return "compaction_tool_changes_mismatch", "differs"
        return None


@pytest.fixture
def claude(server: ModelServer) -> Claude:
    endpoint = Claude()
    server.always(endpoint)
    return endpoint


@pytest.fixture
def summarizer(server: ModelServer) -> Iterator[AnthropicSummarizer]:
    address = server.base_url.removesuffix("/v1")
    with AnthropicSummarizer(MODEL, base_url=address, api_key=KEY, provider_compaction=True) as made:
        yield made


def talk(memory: Memory, executor: Any, rounds: int = 1, *, model: str = MODEL, **more: Any) -> Any:
    """Add rounds, in each of which the agent's prompt is made; return the last prompt."""
    for _ in range(rounds):
        add_round(memory)
        compose(memory, ROLE, budget=100_000, model=model, system="Be brief.", **more)
        executor.run_all()
    return compose(memory, ROLE, budget=100_000, model=model, system="Be brief.", **more)


def start(summarizer: Any, store: InMemoryStore | None = None, rounds: int = 6) -> tuple[Memory, Any, Any]:
    memory = Memory("session", store=store or InMemoryStore())
    compactor, executor, _ = on_command(memory, summarizer, CONFIG, publish="immediately")
    compactor.start()
    talk(memory, executor, rounds)
    assert compactor.get_compaction() is not None
    return memory, compactor, executor


def ask(server: ModelServer, prompt: Any, **more: Any) -> int:
    """Send *prompt* as the agent does; return the status."""
    import anthropic as sdk

    with sdk.Anthropic(base_url=server.base_url.removesuffix("/v1"), api_key=KEY, max_retries=0) as client:
        try:
            client.messages.create(max_tokens=9, **{"model": MODEL} | anthropic.from_chat(prompt.messages) | more)
        except sdk.APIStatusError as error:
            return error.status_code
    return 200


@needs_anthropic
def test_claudes_block_is_asked_for_behind_the_agents_prompt_and_comes_back(
    server: ModelServer, claude: Claude, summarizer: AnthropicSummarizer
) -> None:
    """The conversation as the agent sent it, our instruction instead of the server's; the block's text is the summary.
    Its next one is made of the block and what is new, as the provider wants it. Without the header nothing works."""
    memory, compactor, executor = start(summarizer)
    (asked,) = claude.bodies
    assert asked["compaction"]["type"] == "summarize"
    assert "ummar" in asked["compaction"]["instructions"]
    assert (asked["system"], asked["messages"][0]["content"]) == ("Be brief.", "Question 1: what about item-1?")
    assert asked["messages"][-1]["content"][0]["cache_control"] == {"type": "ephemeral"}
    made = compactor.get_compaction()
    assert (made.summary, dict(made.usage)) == (PRICES, {"input_tokens": 103, "output_tokens": 20, "cached_tokens": 60})

    prompt = talk(memory, executor)
    assert ask(server, prompt, extra_headers={"anthropic-beta": BETA}) == 200
    assert claude.bodies[-1]["messages"][0]["content"][0]["signature"] in claude.blocks
    assert ask(server, prompt) == 400
    assert ask(server, prompt, model="claude-y", extra_headers={"anthropic-beta": BETA}) == 400

    before = len(claude.bodies)
    prompt = talk(memory, executor, 5)
    again = claude.bodies[before:]
    assert [body["messages"][0]["content"][0]["type"] for body in again] == ["compaction"] * len(again)
    assert compactor.get_compaction().end_index > made.end_index
    assert ask(server, prompt, extra_headers={"anthropic-beta": BETA}) == 200


@needs_anthropic
def test_for_a_prompt_that_may_not_show_it_none_is_asked_for(
    server: ModelServer, claude: Claude, summarizer: AnthropicSummarizer
) -> None:
    """One for another model, or for one that is not named; a request that is no summary in full."""
    conversation = [{"role": "user", "content": "Where is it?"}, {"role": "user", "content": "Summarise."}]
    request = SummaryRequest(messages=[{"role": "user", "content": "A transcript."}])
    for model, kind in (("claude-y", "rounds"), ("", "rounds"), (MODEL, "changes"), (MODEL, "tool_run")):
        continued = ContinuedPrompt(messages=conversation, model=model)
        asked = SummaryRequest(messages=request.messages, continued_prompt=continued, kind=kind)  # type: ignore[arg-type]
        assert summarizer(asked).payload is None
    assert summarizer(request).payload is None
    assert not [body for body in claude.bodies if "compaction" in body]


CONTINUED = ContinuedPrompt(
    messages=[{"role": "user", "content": "Where is it?"}, {"role": "user", "content": "Summarise."}], model=MODEL
)
REQUEST = SummaryRequest(messages=[{"role": "user", "content": "A transcript."}], continued_prompt=CONTINUED)


@needs_anthropic
def test_a_model_that_cannot_compact_is_asked_as_usual_from_then_on(
    claude: Claude, summarizer: AnthropicSummarizer
) -> None:
    """At once, behind the agent's prompt; and it is not asked again what it refused."""
    claude.fault = (400, "", "compaction: this model does not support it")
    for _ in range(2):
        summary = summarizer(REQUEST)
        assert (summary.text, summary.payload, summary.continued) == (PRICES, None, None)
    assert ["compaction" in body for body in claude.bodies] == [True, False, False]
    assert summarizer.provider == ""


@needs_anthropic
def test_a_conversation_that_cannot_be_compacted_is_no_refusal(claude: Claude, summarizer: AnthropicSummarizer) -> None:
    """The next one may be. So it is with a block without text, which says that it failed."""
    for code, said in (("compaction_incomplete_turn", "not finished"), ("", "prompt is too long: 2 tokens > 1")):
        claude.fault = (400, code, said)
        assert summarizer(REQUEST).payload is None
    claude.fault, claude.text = None, None
    assert summarizer(REQUEST).payload is None
    claude.text = PRICES
    assert summarizer(REQUEST).payload is not None


@needs_anthropic
def test_a_transient_failure_is_an_error(claude: Claude, summarizer: AnthropicSummarizer) -> None:
    """The compactor waits and asks again."""
    claude.fault = (529, "compaction_unavailable", "try again")
    with pytest.raises(SummarizerError, match="overloaded"):
        summarizer(REQUEST)
    claude.fault = None
    assert summarizer(REQUEST).payload is not None


@needs_anthropic
def test_other_betas_of_the_host_stay(server: ModelServer, claude: Claude) -> None:
    import anthropic as sdk

    address = server.base_url.removesuffix("/v1")
    with sdk.Anthropic(base_url=address, api_key=KEY, default_headers={"anthropic-beta": "mine"}) as client:
        assert AnthropicSummarizer(MODEL, client=client, provider_compaction=True)(REQUEST).payload is not None
    assert server.requests[-1].headers["anthropic-beta"] == f"mine,{BETA}"


@needs_anthropic
def test_the_adapter_shows_the_block_to_the_model_that_made_it(
    server: ModelServer, claude: Claude, summarizer: AnthropicSummarizer
) -> None:
    """The endpoint takes each request; for another model, or without a name, the summary is text."""
    import anthropic as sdk

    options: dict[str, Any] = {"summarizer": summarizer, "config": CONFIG, "publish": "immediately"}
    address, beta = server.base_url.removesuffix("/v1"), {"anthropic-beta": BETA}
    history: list[Any] = []

    async def serve() -> None:
        async with sdk.AsyncAnthropic(base_url=address, api_key=KEY, default_headers=beta, max_retries=0) as client:
            for number in range(8):
                history.append({"role": "user", "content": f"Question {number}: what about item-{number}?"})
                given: Any = {"model": MODEL, "max_tokens": 9, "system": "Be brief.", "messages": history}
                await client.messages.create(**await compaction.aprepare("session", **given))
                history.append({"role": "assistant", "content": f"Item-{number} costs {number * 11} euros. " * 3})
                with compaction.sessions().open("session") as session:
                    await asyncio.to_thread(session.compactor.wait_idle, 10)
            for model in (MODEL, "claude-y", ""):
                request = await compaction.aprepare("session", messages=history, system="Be brief.", model=model)
                has_block = "signature" in json.dumps(request)
                assert (has_block, PRICES in request["system"]) == (model == MODEL, model != MODEL)

    with Compaction(100_000, **options) as compaction:
        asyncio.run(serve())
        assert compaction.close()


# -- OpenAI's ----------------------------------------------------------------------------------------------------------


class Endpoint:
    """OpenAI's endpoint: chat completions, and ``responses.compact``, whose item nobody can read."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.bodies: list[Any] = []
        self.code = 200

    def __call__(self, exchange: Exchange) -> None:
        path, body = exchange.request.path, exchange.request.body
        self.paths.append(path.removeprefix("/v1"))
        self.bodies.append(body)
        if path.endswith("/chat/completions"):
            exchange.send(200, json.dumps(completion(PRICES)))
            return
        assert path.endswith("/responses/compact")
        if self.code != 200:
            exchange.send(self.code, json.dumps({"error": {"message": "no", "code": None}}))
            return
        said = [one for one in body["input"] if one.get("role") == "user"]
        item = {"id": "cmp_1", "type": "compaction", "encrypted_content": "Z0FBQUFB" * 20, "created_by": None}
        usage = {"input_tokens": 50, "output_tokens": 30, "total_tokens": 80}
        usage |= {"input_tokens_details": {"cached_tokens": 7}, "output_tokens_details": {"reasoning_tokens": 0}}
        answer = {"id": "resp_1", "object": "response.compaction", "created_at": 1, "output": [*said, item]}
        exchange.send(200, json.dumps(answer | {"usage": usage}))


@pytest.fixture
def endpoint(server: ModelServer) -> Endpoint:
    made = Endpoint()
    server.always(made)
    return made


def openai_at(server: ModelServer, **more: Any) -> OpenAISummarizer:
    return OpenAISummarizer(MODEL, base_url=server.base_url, api_key=KEY, provider_compaction=True, **more)


@needs_compact
def test_openais_items_stand_beside_a_text_of_our_own(server: ModelServer, endpoint: Endpoint) -> None:
    """Nobody else can read them. Both requests are paid for; the item counts as OpenAI counts it."""
    with openai_at(server) as summarizer:
        memory, compactor, executor = start(summarizer)
        assert endpoint.paths == ["/chat/completions", "/responses/compact"]
        made = compactor.get_compaction()
        assert (made.summary, made.payload["tokens"]) == (PRICES, 30)
        assert dict(made.usage) == {"input_tokens": 150, "output_tokens": 50, "cached_tokens": 67}
        assert endpoint.bodies[1]["input"][0] == {"role": "system", "content": "Be brief."}

        items = responses.from_chat(talk(memory, executor).messages)["input"]
        (item,) = [one for one in items if one.get("type") == "compaction"]
        assert item == {"id": "cmp_1", "type": "compaction", "encrypted_content": "Z0FBQUFB" * 20, "created_by": None}
        assert PRICES not in json.dumps(items)

        talk(memory, executor, 5)
        assert compactor.get_compaction().end_index > made.end_index
        sent_as_chat, compacted = endpoint.bodies[-2:]
        assert "cmp_1" not in json.dumps(sent_as_chat)
        assert "cmp_1" in json.dumps(compacted)


@needs_compact
@pytest.mark.parametrize(("code", "asked_again"), [(404, False), (400, False), (429, True), (500, True)])
def test_without_its_items_the_text_is_published(
    server: ModelServer, endpoint: Endpoint, code: int, asked_again: bool
) -> None:
    """It has been paid for. An endpoint without ``responses.compact`` is not asked again."""
    endpoint.code = code
    with openai_at(server) as summarizer:
        for _ in range(2):
            summary = summarizer(REQUEST)
            assert (summary.text, summary.payload) == (PRICES, None)
    assert endpoint.paths.count("/responses/compact") == 1 + asked_again


def test_a_client_that_cannot_compact_is_told() -> None:
    """Instead of doing without, for ever and unseen."""

    class Completions:
        def create(self, **_arguments: Any) -> Any:
            return completion(PRICES)

    class Client:
        class chat:  # noqa: N801  (its name in the client)
            completions = Completions()

    summarizer = OpenAISummarizer(MODEL, client=Client(), provider_compaction=True)
    with pytest.raises(SummarizerError, match=r"needs responses\.compact: update openai"):
        summarizer(REQUEST)


def test_it_needs_the_agents_prompt() -> None:
    """Alone, a transcript is no conversation to compact."""
    with pytest.raises(ValueError, match="leave style='separate' out"):
        OpenAISummarizer("m", api_key=KEY, provider_compaction=True, style="separate")


# -- whose it is -------------------------------------------------------------------------------------------------------


@needs_anthropic
@pytest.mark.parametrize("how", ["redact", "rewind", "revert"])
def test_what_is_undone_or_erased_is_in_no_request_any_more(
    server: ModelServer, claude: Claude, summarizer: AnthropicSummarizer, how: str
) -> None:
    """Neither the agent's nor the summarizer's."""
    store = InMemoryStore()
    memory, compactor, executor = start(summarizer, store)
    (signature,) = claude.blocks
    if how == "redact":
        memory.redact("r2.p1")
        assert not [entry for entry in store.read("session") if signature in entry.body]
    elif how == "rewind":
        memory.rewind("r2")
    else:
        compactor.revert()
    before = len(claude.bodies)
    assert signature not in json.dumps(anthropic.from_chat(talk(memory, executor, 6).messages))
    assert signature not in json.dumps(claude.bodies[before:])


WHO = st.tuples(st.sampled_from(list(FORMATS)), st.sampled_from([MODEL, "claude-y", "", "gpt-x"]))


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    own=st.tuples(st.sampled_from(["anthropic", "responses"]), st.sampled_from([MODEL, "gpt-x"])),
    reads=st.tuples(st.sampled_from(["", "anthropic", "responses"]), st.sampled_from([MODEL, "gpt-x", ""])),
    style=st.sampled_from([None, "continue"]),
    asked=st.lists(st.tuples(WHO, st.sampled_from(["system", "user", "header"])), min_size=1, max_size=5),
)
def test_no_other_provider_and_no_other_model_ever_reads_it(own: Any, reads: Any, style: Any, asked: Any) -> None:
    """Whoever the agent asks in turn, and whoever makes the next summary behind which prompt."""
    from compactor import Summary
    from compactor.testing import ScriptedSummarizer

    provider, model = own
    block = {"type": "compaction", "content": "SECRET-BLOCK", "signature": "c2ln", "encrypted_content": "SECRET-BLOCK"}
    first = Summary(PRICES, payload={"provider": provider, "model": model, "data": [block]})
    summarizer = ScriptedSummarizer([first], default=PRICES)
    summarizer.provider, summarizer.model = reads  # type: ignore[attr-defined]
    summarizer.style, summarizer.takes_continued = style, True  # type: ignore[attr-defined]
    memory = Memory()
    compactor, executor, _ = on_command(memory, summarizer, CONFIG, publish="immediately")
    compactor.start()
    talk(memory, executor, 6)
    for (name, agents), summary_as in asked:
        prompt = talk(memory, executor, 3, model=agents, summary_as=summary_as)
        if (name, agents) != own:
            assert "SECRET-BLOCK" not in json.dumps(FORMATS[name].from_chat(prompt.messages))
    for request in summarizer.requests:
        assert "SECRET-BLOCK" not in str(request.messages)
        if request.continued_prompt is not None and "SECRET-BLOCK" in str(request.continued_prompt.messages):
            assert reads == own
