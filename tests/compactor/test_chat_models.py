"""Chat models of agent frameworks as summarizers, the real packages where they are installed."""

from __future__ import annotations

import asyncio
import traceback
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from model_server import ModelServer, ok, status
from scene import CONFIG, PRICES, ROLE, SOON, end_of, memory_of

from compactor import ContextCompactor, SummarizerError, Summary, SummaryRequest, from_chat_model

SECRET = "the-secret-plan"
REQUEST = SummaryRequest(
    messages=[{"role": "system", "content": "Summarize."}, {"role": "user", "content": f"He said {SECRET}."}]
)


#: As OpenAI's Responses API says it.
INCOMPLETE = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}

FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}


def langchain(answer: Any, asked: list[Any]) -> Any:
    """A chat model of LangChain's that answers so."""
    models = pytest.importorskip("langchain_core.language_models.fake_chat_models")
    messages = pytest.importorskip("langchain_core.messages")

    class Model(models.GenericFakeChatModel):
        def _generate(self, given: Any, *args: Any, **kwargs: Any) -> Any:
            asked.append([(message.type, message.content) for message in given])
            return super()._generate(given, *args, **kwargs)

    return Model(messages=iter([messages.AIMessage(**answer)] * 3))


def test_langchains_answer_is_a_summary_with_its_cost() -> None:
    """Text, tokens from the cache among those read, and the model's name."""
    asked: list[Any] = []
    usage = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120, "input_token_details": {"cache_read": 60}}
    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "SUMMARY"}]
    told = {"model_name": "model-1", "finish_reason": "stop"}
    model = langchain({"content": content, "usage_metadata": usage, "response_metadata": told}, asked)
    assert from_chat_model(model)(REQUEST) == Summary(
        "SUMMARY", {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 60}, "model-1"
    )
    assert asked == [[("system", "Summarize."), ("human", f"He said {SECRET}.")]]


def test_langchains_callbacks_hear_nothing_of_it() -> None:
    """Those of the model, of one that is bound to settings, and of the run it is asked in: they may stream to the
    user."""
    callbacks = pytest.importorskip("langchain_core.callbacks")
    runnables = pytest.importorskip("langchain_core.runnables")
    heard: list[str] = []

    class Heard(callbacks.BaseCallbackHandler):  # type: ignore[misc, name-defined]
        def on_chat_model_start(self, *_args: Any, **_options: Any) -> None:
            heard.append("start")

        def on_llm_new_token(self, token: str, **_options: Any) -> None:
            heard.append(token)

    model = langchain({"content": "SUMMARY"}, []).model_copy(update={"callbacks": [Heard()]})
    bound = model.bind(temperature=0).with_config(callbacks=[Heard()], tags=["mine"])

    async def ask(summarizer: Any) -> Summary:
        async def serve(_given: Any) -> Summary:
            return await asyncio.to_thread(summarizer, REQUEST)

        done: Summary = await runnables.RunnableLambda(serve).ainvoke("", {"callbacks": [Heard()]})
        return done

    assert asyncio.run(ask(from_chat_model(model))) == asyncio.run(ask(from_chat_model(bound))) == Summary("SUMMARY")
    assert heard == []
    assert model.invoke("Hello").content == "SUMMARY"
    assert heard, "the model itself keeps its callbacks"


def test_a_model_of_langchain_that_can_only_be_awaited_is_awaited() -> None:
    """Also where no event loop runs."""
    models = pytest.importorskip("langchain_core.language_models.fake_chat_models")

    class Model(models.FakeListChatModel):  # type: ignore[misc, name-defined]
        def _call(self, *_args: Any, **_options: Any) -> str:
            raise NotImplementedError("use ainvoke")

        async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
            return models.FakeListChatModel(responses=self.responses)._generate(messages)

    assert from_chat_model(Model(responses=["SUMMARY"]))(REQUEST) == Summary("SUMMARY")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"content": "SUMM", "response_metadata": {"finish_reason": "length"}}, "cut off"),
        ({"content": "SUMM", "response_metadata": {"stop_reason": "max_tokens"}}, "cut off"),
        ({"content": "SUMM", "response_metadata": {"finish_reason": "MAX_TOKENS"}}, "cut off"),
        ({"content": "SUMM", "response_metadata": {"done_reason": "length"}}, "cut off"),
        ({"content": "SUMM", "response_metadata": {"stopReason": "model_context_window_exceeded"}}, "cut off"),
        ({"content": "SUMM", "response_metadata": INCOMPLETE}, "cut off"),
        ({"content": "SUMM", "response_metadata": {"finish_reason": "SAFETY"}}, "refused"),
        ({"content": "SUMM", "response_metadata": FILTERED}, "refused"),
        ({"content": "SUMM", "response_metadata": {"stopReason": "guardrail_intervened"}}, "refused"),
        ({"content": "SUMM", "response_metadata": {"finish_reason": "content_filter"}}, "refused"),
        ({"content": "No.", "response_metadata": {"stop_reason": "refusal"}}, "refused"),
        ({"content": "", "tool_calls": [{"name": "weather", "args": {}, "id": "1"}]}, "called a tool"),
        ({"content": ""}, "empty answer"),
    ],
)
def test_what_is_no_summary_of_langchains_is_an_error_that_says_so(answer: Any, told: str) -> None:
    """As with summarizers of ours."""
    with pytest.raises(SummarizerError, match=told):
        from_chat_model(langchain(answer, []))(REQUEST)


def test_llama_index_answers_too() -> None:
    """Its message, and what the provider said beside it."""
    llms = pytest.importorskip("llama_index.core.llms")

    class Model(llms.MockLLM):  # type: ignore[misc, name-defined]
        def chat(self, messages: Any, **kwargs: Any) -> Any:
            assert (messages[0].role, messages[0].content) == ("system", "Summarize.")
            usage = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}
            raw = {"model": "model-1", "usage": usage, "choices": [{"finish_reason": "stop"}]}
            return llms.ChatResponse(message=llms.ChatMessage(role="assistant", content="SUMMARY"), raw=raw)

    assert from_chat_model(Model())(REQUEST) == Summary(
        "SUMMARY", {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 60}, "model-1"
    )


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"choices": [{"finish_reason": "length"}]}, "cut off"),
        ({"choices": [SimpleNamespace(finish_reason="content_filter")]}, "refused"),
        ({"stop_reason": "max_tokens"}, "cut off"),
        ({"stop_reason": "refusal"}, "refused"),
        ({"finish_reason": "MAX_TOKENS"}, "cut off"),
        ({"candidates": [{"finish_reason": "SAFETY"}]}, "refused"),
        ({"done_reason": "length"}, "cut off"),
        (SimpleNamespace(**INCOMPLETE), "cut off"),
    ],
)
def test_what_is_no_summary_of_llama_index_is_an_error_that_says_so(raw: Any, told: str) -> None:
    """It keeps the provider's own answer, as an object or as a mapping."""
    llms = pytest.importorskip("llama_index.core.llms")

    class Model(llms.MockLLM):  # type: ignore[misc, name-defined]
        def chat(self, messages: Any, **kwargs: Any) -> Any:
            return llms.ChatResponse(message=llms.ChatMessage(role="assistant", content="SUMM"), raw=raw)

    with pytest.raises(SummarizerError, match=told):
        from_chat_model(Model())(REQUEST)


@pytest.mark.parametrize(
    ("reason", "told"), [("length", "cut off"), ("content_filter", "refused"), ("error", "refused")]
)
def test_what_is_no_summary_of_pydantic_ai_is_an_error_that_says_so(reason: Any, told: str) -> None:
    messages = pytest.importorskip("pydantic_ai.messages")

    async def answer(_messages: Any, _info: Any) -> Any:
        return messages.ModelResponse(parts=[messages.TextPart("SUMM")], finish_reason=reason)

    with pytest.raises(SummarizerError, match=told):
        from_chat_model(pydantic_ai(answer))(REQUEST)


@pytest.mark.usefixtures("no_environment")
def test_pydantic_ais_own_openai_model_is_read() -> None:
    """The real model, against a server: an answer, half of one, and errors that say what to do."""
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    import openai

    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    too_long = {"error": {"message": f"{SECRET}", "code": "context_length_exceeded"}}
    with ModelServer() as server:
        # Each call has an event loop of its own here: no connection may outlive it.
        connections = openai.DefaultAsyncHttpxClient(headers={"Connection": "close"})
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0, http_client=connections)
        model = models.OpenAIChatModel("m", provider=providers.OpenAIProvider(openai_client=client))
        server.answers(
            ok("SUMMARY", usage=usage),
            ok("SUMM", finish="length", usage=usage),
            status(429, headers={"Retry-After": "17"}),
            status(503),
            status(400, body=too_long),
        )
        summarizer = from_chat_model(model)
        assert summarizer(REQUEST).text == "SUMMARY"
        for told in ("cut off", "too many requests", "overloaded", "lower summarizer_input_tokens"):
            with pytest.raises(SummarizerError, match=told) as caught:
                summarizer(REQUEST)
            assert SECRET not in "".join(traceback.format_exception(caught.value))
            if told == "too many requests":
                assert caught.value.retry_after == 17


def pydantic_ai(answer: Callable[..., Any]) -> Any:
    functions = pytest.importorskip("pydantic_ai.models.function")
    return functions.FunctionModel(answer, model_name="model-1")


def test_pydantic_ai_answers_on_the_loop_of_the_host() -> None:
    """It is asynchronous alone."""
    messages = pytest.importorskip("pydantic_ai.messages")
    loops: set[int] = set()

    async def answer(_messages: Any, _info: Any) -> Any:
        loops.add(id(asyncio.get_running_loop()))
        return messages.ModelResponse(parts=[messages.ThinkingPart("Hm."), messages.TextPart(PRICES)])

    async def serve() -> int:
        summarizer = from_chat_model(pydantic_ai(answer))
        async with ContextCompactor.for_role(memory_of(9), ROLE, CONFIG, summarizer) as compactor:
            assert await asyncio.to_thread(compactor.wait_idle, SOON)
            assert end_of(compactor) == 6
        return id(asyncio.get_running_loop())

    assert {asyncio.run(serve())} == loops


def test_an_error_of_pydantic_ai_keeps_its_status_and_no_content() -> None:
    """What the provider said may quote the request."""
    errors = pytest.importorskip("pydantic_ai.exceptions")

    def fail(_messages: Any, _info: Any) -> Any:
        raise errors.ModelHTTPError(429, "model-1", SECRET)

    with pytest.raises(SummarizerError, match="HTTP 429") as caught:
        from_chat_model(pydantic_ai(fail))(REQUEST)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def adk(**answer: Any) -> Any:
    """A model of Google ADK's that answers so, if it is asked as it should be."""
    warnings.simplefilter("ignore")  # what the framework's own imports warn of; a test resets it
    models = pytest.importorskip("google.adk.models")

    class Model(models.BaseLlm):  # type: ignore[misc, name-defined]
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            assert (llm_request.model, stream) == ("model-1", False)
            assert llm_request.config.system_instruction == "Summarize."
            said = [(one.role, [part.text for part in one.parts]) for one in llm_request.contents]
            assert said == [("user", [f"He said {SECRET}."])]
            yield models.LlmResponse.model_validate(answer)

    return Model(model="model-1")


def test_adks_answer_is_a_summary_with_its_cost() -> None:
    """Without thoughts, which cost."""
    parts = [{"text": "Hm.", "thought": True}, {"text": "SUMM"}, {"text": "ARY"}]
    usage = {
        "prompt_token_count": 100,
        "candidates_token_count": 20,
        "thoughts_token_count": 5,
        "cached_content_token_count": 60,
    }
    answer = {"content": {"role": "model", "parts": parts}, "finish_reason": "STOP", "usage_metadata": usage}
    assert from_chat_model(adk(**answer))(REQUEST) == Summary(
        "SUMMARY", {"input_tokens": 100, "output_tokens": 25, "cached_tokens": 60}, "model-1"
    )


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"content": {"parts": [{"text": "SUMM"}]}, "finish_reason": "MAX_TOKENS"}, "cut off"),
        ({"content": {"parts": [{"text": "SUMM"}]}, "finish_reason": "SAFETY"}, "refused"),
        ({"error_code": "PROHIBITED_CONTENT", "error_message": SECRET}, "refused"),
        ({"error_code": "MAX_TOKENS", "error_message": SECRET, "finish_reason": "MAX_TOKENS"}, "cut off"),
        ({"content": {"parts": [{"function_call": {"name": "f", "args": {}}}]}}, "called a tool"),
        ({"content": {"parts": []}}, "empty answer"),
    ],
)
def test_what_is_no_summary_of_adks_is_an_error_that_says_so(answer: Any, told: str) -> None:
    with pytest.raises(SummarizerError, match=told) as caught:
        from_chat_model(adk(**answer))(REQUEST)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def openai_agents(*output: Any, **usage: Any) -> Any:
    """A model of the OpenAI Agents SDK's that answers so, if it is asked as it should be."""
    agents = pytest.importorskip("agents")

    class Model(agents.Model):  # type: ignore[misc, name-defined]
        model = "model-1"

        async def get_response(
            self, system: Any, given: Any, _settings: Any, tools: Any, *_others: Any, **ids: Any
        ) -> Any:
            assert (system, given, tools) == (None, REQUEST.messages, [])
            assert ids == {"previous_response_id": None, "conversation_id": None, "prompt": None}
            return agents.ModelResponse(output=list(output), usage=agents.Usage(**usage), response_id=None)

        stream_response = get_response

    return Model()


def message_item(status: str, **part: str) -> Any:
    items = pytest.importorskip("openai.types.responses")
    kinds = {"output_text": items.ResponseOutputText, "refusal": items.ResponseOutputRefusal}
    made = kinds[part["type"]].model_construct(**part)
    return items.ResponseOutputMessage.model_construct(
        id="m", content=[made], role="assistant", status=status, type="message"
    )


def test_the_answer_of_openai_agents_is_a_summary_with_its_cost() -> None:
    """Without what it reasoned; nothing is known of the cost if the provider told nothing."""
    details = pytest.importorskip("openai.types.responses.response_usage").InputTokensDetails
    said = message_item("completed", type="output_text", text="SUMMARY")
    content: Any = [{"type": "reasoning_text", "text": "Hm."}]
    items = pytest.importorskip("openai.types.responses")
    reasoned = items.ResponseReasoningItem(id="r", type="reasoning", summary=[], content=content)
    told = {"input_tokens": 100, "output_tokens": 20}
    cached = details(cached_tokens=60, cache_write_tokens=0)
    assert from_chat_model(openai_agents(reasoned, said, **told, input_tokens_details=cached))(REQUEST) == Summary(
        "SUMMARY", {**told, "cached_tokens": 60}, "model-1"
    )
    assert from_chat_model(openai_agents(said))(REQUEST) == Summary("SUMMARY", None, "model-1")


@pytest.mark.parametrize(
    ("status", "part", "told"),
    [
        ("incomplete", {"type": "output_text", "text": "SUMM"}, "cut off"),
        ("completed", {"type": "refusal", "refusal": SECRET}, "refused"),
        ("completed", {"type": "output_text", "text": ""}, "empty answer"),
    ],
)
def test_what_is_no_summary_of_openai_agents_is_an_error_that_says_so(status: str, part: Any, told: str) -> None:
    with pytest.raises(SummarizerError, match=told) as caught:
        from_chat_model(openai_agents(message_item(status, **part)))(REQUEST)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_call_of_a_tool_is_no_summary_of_openai_agents() -> None:
    items = pytest.importorskip("openai.types.responses")
    call = items.ResponseFunctionToolCall(type="function_call", name="f", arguments="{}", call_id="1")
    with pytest.raises(SummarizerError, match="called a tool"):
        from_chat_model(openai_agents(call))(REQUEST)


@pytest.mark.usefixtures("no_environment")
def test_the_own_chat_model_of_openai_agents_is_read() -> None:
    """The real model, against a server: an answer, one without a text, and an error that says what to do."""
    agents = pytest.importorskip("agents")
    import openai

    with ModelServer() as server:
        headers = {"Connection": "close"}  # each call has an event loop of its own here
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0, default_headers=headers)
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        server.answers(ok("SUMMARY", usage=usage), ok("", finish="length", usage=usage), status(429))
        summarizer = from_chat_model(agents.OpenAIChatCompletionsModel("m", openai_client=client))
        assert summarizer(REQUEST).text == "SUMMARY"
        with pytest.raises(SummarizerError):
            summarizer(REQUEST)
        with pytest.raises(SummarizerError, match="too many requests"):
            summarizer(REQUEST)


class Streaming:
    """A model of Strands' as the adapter knows it: by its methods."""

    def __init__(self, *events: Any) -> None:
        self.events = events
        self.loops: set[int] = set()

    def get_config(self) -> Any:
        return {"model_id": "model-1"}

    def update_config(self, **_config: Any) -> None:
        raise AssertionError("nothing is changed")

    async def stream(self, messages: Any, tools: Any, system: Any) -> Any:
        self.loops.add(id(asyncio.get_running_loop()))
        assert tools is None
        if self.events:
            assert (system, messages) == ("Summarize.", [{"role": "user", "content": [{"text": f"He said {SECRET}."}]}])
        for event in self.events or (text_event(PRICES), {"messageStop": {"stopReason": "end_turn"}}):
            if isinstance(event, Exception):
                raise event
            yield event


def text_event(text: str) -> Any:
    return {"contentBlockDelta": {"delta": {"text": text}}}


@pytest.mark.parametrize("total", [120, 180])
def test_the_answer_of_strands_is_a_summary_with_its_cost(total: int) -> None:
    """Without what it reasoned. Tokens read from the cache are within the input of some providers, not of others."""
    usage = {"inputTokens": 100, "outputTokens": 20, "totalTokens": total, "cacheReadInputTokens": 60}
    model = Streaming(
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"start": {}}},
        {"contentBlockDelta": {"delta": {"reasoningContent": {"text": "Hm."}}}},
        text_event("SUMM"),
        text_event("ARY"),
        {"contentBlockStop": {}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": usage}},
    )
    counts = {"input_tokens": total - 20, "output_tokens": 20, "cached_tokens": 60}
    assert from_chat_model(model)(REQUEST) == Summary("SUMMARY", counts, "model-1")
    stop = {"messageStop": {"stopReason": "end_turn"}}
    assert from_chat_model(Streaming(text_event("SUMMARY"), stop))(REQUEST) == Summary("SUMMARY", None, "model-1")


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([text_event("SUMM"), {"messageStop": {"stopReason": "max_tokens"}}], "cut off"),
        ([text_event("SUMM"), {"messageStop": {"stopReason": "content_filtered"}}], "refused"),
        ([text_event("No."), {"messageStop": {"stopReason": "guardrail_intervened"}}], "refused"),
        ([text_event("No."), {"redactContent": {"redactAssistantContentMessage": "Hidden."}}], "refused"),
        ([{"contentBlockStart": {"start": {"toolUse": {"name": "f", "toolUseId": "1"}}}}], "called a tool"),
        ([{"messageStop": {"stopReason": "end_turn"}}], "empty answer"),
        ([RuntimeError(SECRET)], "RuntimeError"),
    ],
)
def test_what_is_no_summary_of_strands_is_an_error_that_says_so(events: Any, told: str) -> None:
    with pytest.raises(SummarizerError, match=told) as caught:
        from_chat_model(Streaming(*events))(REQUEST)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_strands_answers_on_the_loop_of_the_host() -> None:
    model = Streaming()

    async def serve() -> int:
        async with ContextCompactor.for_role(memory_of(9), ROLE, CONFIG, from_chat_model(model)) as compactor:
            assert await asyncio.to_thread(compactor.wait_idle, SOON)
            assert end_of(compactor) == 6
        return id(asyncio.get_running_loop())

    assert {asyncio.run(serve())} == model.loops


def agent_framework(heard: list[Any], **answer: Any) -> Any:
    """A chat client of Microsoft's Agent Framework that answers so, with middleware that must not hear of it."""
    af = pytest.importorskip("agent_framework")

    class Heard(af.ChatMiddleware):  # type: ignore[misc, name-defined]
        async def process(self, _context: Any, call_next: Any) -> None:
            heard.append("middleware")
            await call_next()

    class Client(af.FunctionInvocationLayer, af.ChatMiddlewareLayer, af.BaseChatClient):  # type: ignore[misc, name-defined]
        model = "model-1"

        async def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_rest: Any) -> Any:
            assert not stream
            assert not options.get("tools")
            heard.append([(message.role, message.text) for message in messages])
            contents = answer.pop("contents")
            return af.ChatResponse(messages=[af.Message("assistant", contents)], **answer)

    return Client(middleware=[Heard()])


def test_the_answer_of_agent_framework_is_a_summary_with_its_cost() -> None:
    """Without what it reasoned, and past the client's middleware: that may shorten the request."""
    content = pytest.importorskip("agent_framework").Content
    heard: list[Any] = []
    usage = {"input_token_count": 100, "output_token_count": 20, "cache_read_input_token_count": 60}
    contents = [content.from_text_reasoning(text="Hm."), content.from_text("SUMM"), content.from_text("ARY")]
    model = agent_framework(heard, contents=contents, usage_details=usage, finish_reason="stop")
    assert from_chat_model(model)(REQUEST) == Summary(
        "SUMMARY", {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 60}, "model-1"
    )
    assert heard == [[("system", "Summarize."), ("user", f"He said {SECRET}.")]]


@pytest.mark.parametrize(
    ("text", "reason", "told"),
    [("SUMM", "length", "cut off"), ("SUMM", "content_filter", "refused"), ("", "stop", "empty answer")],
)
def test_what_is_no_summary_of_agent_framework_is_an_error_that_says_so(text: str, reason: str, told: str) -> None:
    with pytest.raises(SummarizerError, match=told):
        from_chat_model(agent_framework([], contents=[text], finish_reason=reason))(REQUEST)


def test_a_call_of_a_tool_is_no_summary_of_agent_framework() -> None:
    content = pytest.importorskip("agent_framework").Content
    call = content.from_function_call("c1", "f", arguments={})
    with pytest.raises(SummarizerError, match="called a tool"):
        from_chat_model(agent_framework([], contents=[call]))(REQUEST)


def test_a_model_is_known_by_its_methods() -> None:
    """Whatever the framework is called: the names are LangChain's, and the answer a message."""

    class Model:
        model_name = "model-1"

        def __init__(self) -> None:
            self.ways: list[str] = []

        def invoke(self, messages: Any) -> Any:
            self.ways.append("invoke")
            return SimpleNamespace(content=PRICES)

        async def ainvoke(self, messages: Any) -> Any:
            self.ways.append("ainvoke")
            return SimpleNamespace(content=PRICES)

    async def serve(compactor: ContextCompactor) -> None:
        async with compactor:
            await asyncio.to_thread(compactor.wait_idle, SOON)

    model = Model()
    summarizer = from_chat_model(model)
    assert summarizer(REQUEST) == Summary(PRICES, None, "model-1")
    assert repr(summarizer) == "from_chat_model(Model)"
    asyncio.run(serve(ContextCompactor.for_role(memory_of(9), ROLE, CONFIG, summarizer)))
    assert model.ways == ["invoke", "ainvoke"]


def test_anything_else_is_taken_as_a_summarizer_or_refused() -> None:
    """A function is one already; what cannot be asked is told when it is given."""
    assert from_chat_model(len) is len
    with pytest.raises(TypeError, match="int is no summarizer"):
        from_chat_model(7)


def test_a_failing_model_says_when_to_come_again() -> None:
    """Whichever client it uses: the status and the header of its error, or of the error behind it."""

    class Limited(Exception):
        status_code = 429
        response = SimpleNamespace(headers={"retry-after": "17"})

    class Model:
        def invoke(self, messages: Any) -> Any:
            raise RuntimeError(SECRET) from Limited(SECRET)

        ainvoke = invoke

    with pytest.raises(SummarizerError, match="HTTP 429") as caught:
        from_chat_model(Model())(REQUEST)
    assert caught.value.retry_after == 17


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (400, "blocked by our content filter", "a filter blocked the request"),
        (429, "too many; see our content policy", "HTTP 429"),
        (None, "unexpected item: 'our content filter dropped 3 mails'", "check the model's own configuration"),
    ],
)
def test_only_a_request_that_was_refused_was_blocked_by_a_filter(status: int | None, said: str, told: str) -> None:
    """Other errors may quote the conversation, or name the provider's rules beside their own remedy."""

    class Refused(Exception):
        status_code = status

    class Model:
        def invoke(self, messages: Any) -> Any:
            raise Refused(said)

        ainvoke = invoke

    with pytest.raises(SummarizerError, match=told) as caught:
        from_chat_model(Model())(REQUEST)
    assert ("filter" in str(caught.value)) == (status == 400)
