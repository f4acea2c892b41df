"""Summarizers on Anthropic's and Google's own clients, against a server on loopback that answers as theirs do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
from model_server import Answer, ModelServer, drip, flood, html, reply

from compactor import (
    AnthropicSummarizer,
    ContinuedPrompt,
    GeminiSummarizer,
    Memory,
    SummarizerError,
    Summary,
    SummaryRequest,
    compose,
)
from compactor.formats import anthropic as anthropic_format
from compactor.formats import gemini as gemini_format

SECRET = "the-secret-plan"
REQUEST = SummaryRequest(
    messages=[{"role": "system", "content": "Summarize."}, {"role": "user", "content": f"He said {SECRET}."}]
)
SCHEMA = {"type": "object", "properties": {"notes": {"type": "string"}}, "additionalProperties": False}
KEY = "key-0123456789"


def claude(text: str = "SUMMARY", *, stop: str = "end_turn", **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30, "output_tokens": 20}
    content = [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, {"type": "text", "text": text}]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "model-1", "stop_sequence": None}
    return message | {"content": content, "stop_reason": stop, "usage": usage} | more


def gemini(text: str = "SUMMARY", *, stop: str = "STOP", **more: Any) -> dict[str, Any]:
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "candidatesTokenCount": 15,
        "thoughtsTokenCount": 5,
    }
    parts = [{"text": "Hm.", "thought": True}, {"text": text}]
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": stop, "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "model-1"} | more


@dataclass(frozen=True)
class Provider:
    """What tests need to know of one provider."""

    module: str
    summarizer: Callable[..., Any]
    answer: Callable[..., dict[str, Any]]
    cut: str
    refusal: str
    error: Callable[[int, str], dict[str, Any]]
    too_long: str
    sent: Mapping[str, Any]
    key: str

    def fault(self, code: int, said: str = "no", headers: Mapping[str, str] | None = None) -> Answer:
        return reply(self.error(code, said), code, headers)


ANTHROPIC = Provider(
    module="anthropic",
    summarizer=AnthropicSummarizer,
    answer=claude,
    cut="max_tokens",
    refusal="refusal",
    error=lambda code, said: {"type": "error", "error": {"type": "some_error", "message": said}},
    too_long="prompt is too long: 250000 tokens > 200000 maximum",
    sent={
        "model": "small-model",
        "max_tokens": 8_192,
        "system": "Summarize.",
        "messages": [{"role": "user", "content": f"He said {SECRET}."}],
    },
    key="x-api-key",
)
GEMINI = Provider(
    module="google.genai",
    summarizer=GeminiSummarizer,
    answer=gemini,
    cut="MAX_TOKENS",
    refusal="SAFETY",
    error=lambda code, said: {"error": {"code": code, "message": said, "status": "FAILED"}},
    too_long="The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).",
    sent={
        "systemInstruction": {"parts": [{"text": "Summarize."}]},
        "contents": [{"role": "user", "parts": [{"text": f"He said {SECRET}."}]}],
    },
    key="x-goog-api-key",
)


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(params=[ANTHROPIC, GEMINI], ids=["anthropic", "gemini"])
def provider(request: pytest.FixtureRequest, no_environment: None) -> Provider:
    made: Provider = request.param
    if not is_installed(made.module):
        pytest.skip(f"{made.module} is not installed")
    return made


@pytest.fixture
def summarizer(provider: Provider, server: ModelServer) -> Iterator[Any]:
    server.always(reply(provider.answer()))
    with provider.summarizer("small-model", base_url=address(server), api_key=KEY, timeout=20) as made:
        yield made


def address(server: ModelServer) -> str:
    return server.base_url.removesuffix("/v1")


def failure(summarizer: Any, request: SummaryRequest = REQUEST) -> SummarizerError:
    with pytest.raises(SummarizerError) as caught:
        summarizer(request)
    told = "".join(traceback.format_exception(caught.value))
    assert SECRET not in told
    assert KEY not in told
    return caught.value


def test_the_answer_is_a_summary_with_its_cost(provider: Provider, server: ModelServer, summarizer: Any) -> None:
    """Text without thoughts, the model's own name, and tokens: all that were read, those from the cache among them."""
    assert summarizer(REQUEST) == Summary(
        "SUMMARY", {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 60}, "model-1", continued=False
    )
    (request,) = server.requests
    body = {name: value for name, value in request.body.items() if name != "generationConfig"}
    assert plain(body) == provider.sent
    assert KEY in request.headers.get(provider.key, request.headers.get("authorization", ""))


def plain(body: Any) -> Any:
    """Return a request without what clients add: roles of system instructions, and empty fields."""
    if isinstance(body.get("systemInstruction"), dict):
        body["systemInstruction"].pop("role", None)
    return {name: value for name, value in body.items() if value}


def test_a_cut_answer_is_an_error_that_says_so(provider: Provider, server: ModelServer, summarizer: Any) -> None:
    """Half a summary is none; the remedy is a higher limit."""
    server.answers(reply(provider.answer(stop=provider.cut)))
    assert "max_output_tokens=" in str(failure(summarizer))


def test_a_refusal_is_an_error_that_says_so(provider: Provider, server: ModelServer, summarizer: Any) -> None:
    """By the model, or by the provider's filter."""
    server.answers(reply(provider.answer(stop=provider.refusal)))
    assert "refused, or a filter stopped it" in str(failure(summarizer))


def test_an_empty_answer_and_no_answer_are_errors(provider: Provider, server: ModelServer, summarizer: Any) -> None:
    """They never become an empty summary."""
    server.answers(reply(provider.answer("")), reply({}), html())
    assert "empty answer" in str(failure(summarizer))
    assert "the answer holds no message" in str(failure(summarizer))
    failure(summarizer)


def test_a_rate_limit_says_when_to_come_again(provider: Provider, server: ModelServer, summarizer: Any) -> None:
    """And it is tried once: the compactor waits."""
    server.answers(provider.fault(429, headers={"Retry-After": "17"}))
    error = failure(summarizer)
    assert (error.retry_after, "too many requests" in str(error), len(server.requests)) == (17, True, 1)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (401, "check the key"),
        (403, "check its permissions"),
        (404, "check model="),
        (500, "the server failed"),
        (503, "overloaded"),
        (529, "overloaded"),
        (302, "redirects to another address"),
    ],
)
def test_errors_name_the_remedy(
    provider: Provider, server: ModelServer, summarizer: Any, code: int, remedy: str
) -> None:
    """In our words: what the server says may quote the request."""
    server.always(provider.fault(code, SECRET))
    error = str(failure(summarizer))
    assert f"HTTP {code}" in error
    assert remedy in error


def test_a_request_that_is_too_long_says_so(provider: Provider, server: ModelServer, summarizer: Any) -> None:
    """The remedy is a setting of the compactor."""
    server.always(provider.fault(400, provider.too_long))
    assert "lower summarizer_input_tokens" in str(failure(summarizer))


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", "summarizer_input_tokens"),
        ("Input is too long for requested model.", "summarizer_input_tokens"),
        ("Output blocked by content filtering policy", "a filter blocked the request"),
    ],
)
def test_other_words_for_a_long_or_a_blocked_request_are_understood(
    provider: Provider, server: ModelServer, summarizer: Any, said: str, remedy: str
) -> None:
    """Of the same provider, or of a cloud that serves its models."""
    server.always(provider.fault(400, said))
    assert remedy in str(failure(summarizer))


def test_the_time_limit_holds_for_the_whole_call(provider: Provider, server: ModelServer) -> None:
    """A server that drips a byte now and then does not hold a worker."""
    server.always(drip())
    with provider.summarizer("m", base_url=address(server), timeout=0.3) as summarizer:
        assert "no complete answer within 0.3 s" in str(failure(summarizer))


def test_an_answer_without_end_fills_no_memory(provider: Provider, server: ModelServer, summarizer: Any) -> None:
    """It is given up after ten megabytes."""
    server.answers(flood())
    assert "larger than 10 MB" in str(failure(summarizer))


def test_no_key_is_told_when_it_is_made(provider: Provider) -> None:
    """Before the first compaction fails; a server of one's own needs none."""
    with pytest.raises(SummarizerError, match="no API key"):
        provider.summarizer("m")
    assert KEY not in repr(provider.summarizer("m", api_key=KEY))


def test_a_package_that_is_missing_is_told_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr("compactor.summarizers.model.find_spec", lambda _name: None)
    for made, extra in ((AnthropicSummarizer, "anthropic"), (GeminiSummarizer, "gemini")):
        with pytest.raises(SummarizerError, match=rf"pip install 'context-compactor\[{extra}\]'"):
            made("m", api_key=KEY)


def test_the_hosts_own_client_is_used(provider: Provider, server: ModelServer) -> None:
    """With its key and address; and it stays open."""
    if provider is ANTHROPIC:
        import anthropic

        client: Any = anthropic.Anthropic(api_key=KEY, base_url=address(server))
    else:
        from google import genai

        client = genai.Client(api_key=KEY, http_options={"base_url": address(server)})
    server.always(reply(provider.answer()))
    with provider.summarizer("small-model", client=client) as summarizer:
        assert summarizer(REQUEST).text == "SUMMARY"
    with provider.summarizer("small-model", client=client) as summarizer:
        assert summarizer(REQUEST).text == "SUMMARY"
    server.answers(provider.fault(503))
    assert "overloaded" in str(failure(provider.summarizer("small-model", client=client)))
    client.close()


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "dry"},
    {"role": "assistant", "content": "Dry."},
]
INSTRUCTION = {"role": "user", "content": "Summarize the conversation above."}
TOOL = {"type": "function", "function": {"name": "weather", "description": "?", "parameters": SCHEMA}}


@pytest.mark.parametrize("end", [4, 5], ids=["behind a result", "behind an answer"])
def test_it_goes_on_behind_the_agents_prompt(
    provider: Provider, server: ModelServer, summarizer: Any, end: int
) -> None:
    """What the agent's own request begins with comes first, unchanged, so that it is read from the cache."""
    memory = Memory()
    memory.extend(TALK[:end])
    prompt = list(compose(memory, budget=100_000).messages)
    continued = ContinuedPrompt(messages=[*prompt, INSTRUCTION], tools=[TOOL], model="small-model")
    summary = summarizer(SummaryRequest(messages=REQUEST.messages, continued_prompt=continued))
    assert summary.continued is None
    body = server.requests[-1].body
    said = str(body)
    assert said.index("What is the weather") < said.index("dry") < said.index("Summarize the conversation above.")
    if provider is ANTHROPIC:
        agents = anthropic_format.from_chat(prompt)
        ours = without_marks(body["messages"])
        assert (body["system"], body["tools"][0]["input_schema"]) == ("Be brief.", SCHEMA)
        blocks = [block for message in ours for block in message["content"]]
        assert blocks[:-1] == [block for message in without_marks(agents["messages"]) for block in message["content"]]
        marked = [block for message in body["messages"] for block in message["content"] if "cache_control" in block]
        assert [block.get("text", block.get("content")) for block in marked] == ["dry" if end == 4 else "Dry."]
    else:
        agents = gemini_format.from_chat(prompt)
        parts = [part for content in body["contents"] for part in content["parts"]]
        assert len(parts) == 1 + sum(len(content["parts"]) for content in agents["contents"])


def without_marks(messages: Any) -> list[dict[str, Any]]:
    """Return Anthropic's messages as lists of blocks without marks for the cache, which is what its key is made of."""
    made = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        made.append(
            message | {"content": [{k: v for k, v in block.items() if k != "cache_control"} for block in blocks]}
        )
    return made


def test_another_models_prompt_is_not_continued(provider: Provider, server: ModelServer, summarizer: Any) -> None:
    """It would be read at full price: the rounds alone are shorter."""
    for model in ("", "another-model"):
        continued = ContinuedPrompt(messages=[*TALK, INSTRUCTION], model=model)
        assert summarizer(SummaryRequest(messages=REQUEST.messages, continued_prompt=continued)).continued is False
        assert "Oslo" not in str(server.requests[-1].body)


def test_a_tool_call_instead_of_a_summary_is_asked_for_again(
    provider: Provider, server: ModelServer, summarizer: Any
) -> None:
    """Behind the agent's prompt a model may go on as the agent: then it gets the rounds alone, and both are counted."""
    if provider is ANTHROPIC:
        called = claude(stop="tool_use", content=[{"type": "tool_use", "id": "t", "name": "weather", "input": {}}])
    else:
        called = gemini()
        called["candidates"][0]["content"]["parts"] = [{"functionCall": {"name": "weather", "args": {}}}]
    server.answers(reply(called))
    continued = ContinuedPrompt(messages=[*TALK, INSTRUCTION], tools=[TOOL], model="small-model")
    summary = summarizer(SummaryRequest(messages=REQUEST.messages, continued_prompt=continued))
    assert (summary.continued, summary.usage) == (
        False,
        {"input_tokens": 200, "output_tokens": 40, "cached_tokens": 120},
    )


# What is one provider's alone


@pytest.fixture
def google(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GeminiSummarizer]:
    if not is_installed("google.genai"):
        pytest.skip("google.genai is not installed")
    with GeminiSummarizer("m", base_url=address(server), api_key=KEY) as made:
        yield made


def test_gemini_names_the_time_to_wait_in_its_body(server: ModelServer, google: GeminiSummarizer) -> None:
    """It sends no header. More than a day is a day."""
    for told, wanted in (("7.5s", 7.5), ("999999999s", 86_400)):
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": told}
        error = {"code": 429, "message": "quota", "status": "EXHAUSTED", "details": [info]}
        server.answers(reply({"error": error}, 429))
        assert failure(google).retry_after == wanted


def test_a_blocked_request_of_gemini_names_the_filter(server: ModelServer, google: GeminiSummarizer) -> None:
    """There is no candidate then."""
    server.answers(reply({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}))
    assert "blocked the request (PROHIBITED_CONTENT)" in str(failure(google))


def test_gemini_tells_a_wrong_key_from_a_wrong_request(server: ModelServer, google: GeminiSummarizer) -> None:
    """Both are HTTP 400."""
    server.always(reply({"error": {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}}, 400))
    assert "GEMINI_API_KEY" in str(failure(google))


def test_an_argument_that_the_client_refuses_is_no_traceback_with_content(server: ModelServer) -> None:
    """Its own error quotes the request."""
    if not is_installed("google.genai"):
        pytest.skip("google.genai is not installed")
    with GeminiSummarizer("m", base_url=address(server), extra={"no_such_field": SECRET}) as summarizer:
        assert "check extra=" in str(failure(summarizer))


def test_claudes_window_and_credit_are_told(server: ModelServer) -> None:
    """An answer that ran into the end of the window, and an account without money."""
    if not is_installed("anthropic"):
        pytest.skip("anthropic is not installed")
    with AnthropicSummarizer("m", base_url=address(server), api_key=KEY) as summarizer:
        server.answers(reply(claude(stop="model_context_window_exceeded")))
        assert "lower summarizer_input_tokens" in str(failure(summarizer))
        server.always(ANTHROPIC.fault(400, "Your credit balance is too low to access the API."))
        assert "no credit left" in str(failure(summarizer))
