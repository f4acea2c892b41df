"""Chat models of agent frameworks as summarizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from memory.errors import ContextError
from memory.patterns import compile_later

from ..coroutines import coroutines_used, wait_for
from ..errors import read_status
from .answers import as_summarizer, make_summary, read_counts, read_field
from .base import Summarizer, SummarizerError, Summary, SummaryRequest
from .model import (
    BLOCKED,
    REFUSALS,
    TOO_LONG,
    is_blocked,
    is_too_long,
    make_sendable,
    name_remedy,
    parse_retry_after,
    read_headers,
)

#: Words of the reasons why models stop, whichever provider names them: an answer was cut off, or there is none.
_CUT = compile_later(r"(?i)length|max.{0,9}tokens|context_window|incomplete")
_REFUSED = compile_later(
    r"(?i)filter|refus|safety|guardrail|prohibited|recitation|blocked|blocklist|spii|error|fail|cancel"
)
#: Where they stand, and in what.
_REASONS = ("finish_reason", "stop_reason", "stopReason", "done_reason", "status", "reason")
_NAMES = ("model_name", "model", "model_id")


def from_chat_model(model: Any) -> Summarizer:
    """Return a summarizer that asks *model*: a chat model of LangChain, LlamaIndex, pydantic-ai, Google ADK, the OpenAI
    Agents SDK or Strands, a chat client of Microsoft's Agent Framework, or anything that may be a summarizer itself.

    It asks with the model's own settings and without tools. LangChain's callbacks and a chat client's middleware are
    not called: they may stream to the user, or shorten the request. It is asked on the host's event loop while that
    runs, and if the model has no other way, else on the compactor's thread. Raises ``TypeError`` for anything else.
    """
    for methods, ask in _KINDS:
        if all(callable(getattr(model, name, None)) for name in methods) and not isinstance(model, type):
            return _ChatModel(model, ask)
    return as_summarizer(model)


class _ChatModel:
    takes_continued = False

    def __init__(self, model: Any, ask: Callable[[Any, Sequence[Mapping[str, Any]], bool], Any]) -> None:
        self._model, self._ask = model, ask
        names = [getattr(model, name, None) for name in _NAMES]
        names.append(getattr(getattr(model, "metadata", None), "model_name", None))
        if ask is _ask_strands:
            with suppress(Exception):  # the name is no reason to fail
                names.append(model.get_config()["model_id"])
        #: The model's name, if it tells one: the compactor goes by its prices.
        self.model = next((name for name in names if isinstance(name, str) and name), "")

    def __repr__(self) -> str:
        return f"from_chat_model({type(self._model).__name__})"

    def __call__(self, request: SummaryRequest) -> Summary:
        try:
            answer = self._ask(self._model, make_sendable(request.messages), coroutines_used.get().host.is_running)
            done = wait_for(answer) if inspect.isawaitable(answer) else answer
            return done if isinstance(done, Summary) else _read(done, self.model)
        except ContextError:
            raise
        except Exception as error:  # noqa: BLE001  (any exception of a foreign model is a failure of this call only)
            raise self._explain(error) from None  # without its cause, whose text may quote the request

    def _explain(self, error: BaseException) -> SummarizerError:
        chain = [error, *[one for one in (error.__cause__, error.__context__) if one is not None]]
        status = next((code for one in chain if (code := read_status(one)) is not None), None)
        waits = (parse_retry_after(read_headers(one)) for one in chain)
        said = " ".join(f"{type(one).__name__} {one}" for one in chain)
        told = f"{type(error).__name__}{f', HTTP {status}' if status is not None else ''}"
        own = "the model's own configuration"
        if is_too_long(said):
            remedy = TOO_LONG
        elif status in REFUSALS and is_blocked(said):
            remedy = BLOCKED
        else:
            remedy = name_remedy(status or 0, key=own) or f"check {own}"
        return SummarizerError(
            f"{type(self._model).__name__} failed ({told}): {remedy}",
            retry_after=next((wait for wait in waits if wait is not None), None),
        )


def _ask_langchain(model: Any, messages: Sequence[Mapping[str, Any]], prefers_async: bool) -> Any:
    options: Mapping[str, Any] = {}
    if hasattr(model, "with_config"):  # LangChain's own: its callbacks, and those of the run that it is in
        model, options = _drop_callbacks(model), {"config": {"callbacks": []}}
    if not prefers_async:
        with suppress(NotImplementedError):  # it can only be awaited
            return model.invoke(messages, **options)
    return model.ainvoke(messages, **options)


def _drop_callbacks(model: Any) -> Any:
    """Return *model*, or a copy that calls none of its own callbacks."""
    if (bound := getattr(model, "bound", None)) is not None:
        config = {**model.config, "callbacks": []}
        return model.model_copy(update={"bound": _drop_callbacks(bound), "config": config, "config_factories": []})
    return model.model_copy(update={"callbacks": None}) if getattr(model, "callbacks", None) else model


def _ask_llama_index(model: Any, messages: Sequence[Mapping[str, Any]], prefers_async: bool) -> Any:
    from llama_index.core.llms import ChatMessage

    said = [ChatMessage(role=message["role"], content=message["content"]) for message in messages]
    return model.achat(said) if prefers_async else model.chat(said)


def _ask_pydantic_ai(model: Any, messages: Sequence[Mapping[str, Any]], _prefers_async: bool) -> Any:
    from pydantic_ai.direct import model_request
    from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

    kinds = {"system": SystemPromptPart, "user": UserPromptPart}
    parts = [kinds.get(message["role"], UserPromptPart)(content=message["content"]) for message in messages]
    return model_request(model, [ModelRequest(parts=parts)])


async def _ask_adk(model: Any, messages: Sequence[Mapping[str, Any]], _prefers_async: bool) -> Summary:
    from google.adk.models.llm_request import LlmRequest

    from ..formats import gemini
    from .gemini import read_response

    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    contents = gemini.from_chat(message for message in messages if message["role"] != "system")["contents"]
    request = LlmRequest(model=model.model, contents=contents, config={"system_instruction": system or None})
    said: Any = None
    async for answer in model.generate_content_async(request):
        said = answer
    ended = read_field(said, "finish_reason") or read_field(said, "error_code")  # a blocked request has a code alone
    read = {name: read_field(said, name) for name in ("usage_metadata", "model_version")}
    candidate = {"content": read_field(said, "content"), "finish_reason": ended}
    return read_response({"candidates": [candidate], **read}, model.model)


async def _ask_agents(model: Any, messages: Sequence[Mapping[str, Any]], _prefers_async: bool) -> Mapping[str, Any]:
    from agents import ModelSettings, ModelTracing

    ids = dict.fromkeys(("previous_response_id", "conversation_id", "prompt"))
    given: Any = (None, list(messages), ModelSettings(), [], None, [], ModelTracing.DISABLED)
    answer = await model.get_response(*given, **ids)
    said = [item for item in answer.output if read_field(item, "type") == "message"]
    parts = [part for item in said for part in read_field(item, "content")]
    ended = [read_field(item, "status") for item in said] + [read_field(part, "type") for part in parts]
    return {
        "content": parts,
        "tool_calls": [item for item in answer.output if str(read_field(item, "type")).endswith("_call")],
        "status": next((one for one in ("refusal", "incomplete") if one in ended), None),
        "usage": answer.usage if answer.usage.input_tokens else None,  # zeros: the provider told none
    }


async def _ask_strands(model: Any, messages: Sequence[Mapping[str, Any]], _prefers_async: bool) -> Mapping[str, Any]:
    from ..formats import strands

    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    given = strands.from_chat(message for message in messages if message["role"] != "system")
    texts, calls, ended, usage = list[str](), list[Any](), "", dict[str, Any]()
    async for event in model.stream(given, None, system or None):
        texts.append(event.get("contentBlockDelta", {}).get("delta", {}).get("text", ""))
        calls += [one] if (one := event.get("contentBlockStart", {}).get("start", {}).get("toolUse")) else []
        ended = event.get("messageStop", {}).get("stopReason", ended)
        ended = "filtered" if "redactContent" in event else ended
        usage = event.get("metadata", {}).get("usage") or usage
    read, written = usage.get("inputTokens", 0), usage.get("outputTokens", 0)
    # Some providers count what they read from a cache beside the input, and some within: the total tells.
    told = {
        "input_tokens": max(usage.get("totalTokens", 0) - written, read),
        "output_tokens": written,
        "cache_read_tokens": usage.get("cacheReadInputTokens"),
    }
    return {"content": "".join(texts), "tool_calls": calls, "stop_reason": ended, "usage": told if read else None}


async def _ask_agent_framework(model: Any, messages: Sequence[Mapping[str, Any]], _prefers_async: bool) -> Any:
    from agent_framework import ChatMiddlewareLayer, Message

    given = [Message(message["role"], [message["content"]]) for message in messages]
    behind: Any = super(ChatMiddlewareLayer, model) if isinstance(model, ChatMiddlewareLayer) else model
    answer = await behind.get_response(given)
    usage = answer.usage_details or {}
    contents = [one for message in answer.messages for one in message.contents]
    told = {
        "input_tokens": usage.get("input_token_count"),
        "output_tokens": usage.get("output_token_count"),
        "cache_read_tokens": usage.get("cache_read_input_token_count"),
    }
    return {
        "content": [one.text for one in contents if one.type == "text"],
        "tool_calls": [one for one in contents if one.type == "function_call"],
        "finish_reason": answer.finish_reason,
        "usage": told if usage else None,
        "model_name": read_field(answer, "model") or read_field(answer, "model_id"),
    }


#: By the methods that a model has: how it is asked.
_KINDS = (
    (("invoke", "ainvoke"), _ask_langchain),
    (("chat", "achat"), _ask_llama_index),
    (("request", "request_stream"), _ask_pydantic_ai),
    (("generate_content_async", "connect"), _ask_adk),
    (("get_response", "stream_response"), _ask_agents),
    (("stream", "get_config", "update_config"), _ask_strands),
    (("get_response",), _ask_agent_framework),
)


def _read(answer: Any, model: str) -> Summary:
    """Return the summary in an *answer* of any of them. Raises as ``make_summary``."""
    message = read_field(answer, "message") or answer
    told = read_field(answer, "response_metadata") or {}
    raw = read_field(answer, "raw")  # LlamaIndex keeps the provider's own answer
    sources = [answer, told, raw, *_list_first(raw, "choices"), *_list_first(raw, "candidates")]
    sources += [read_field(one, "incomplete_details") for one in (told, raw)]
    ended = " ".join(reason for one in sources for name in _REASONS if isinstance(reason := read_field(one, name), str))
    parts = read_field(message, "parts")
    kinds = [(read_field(part, "part_kind"), part) for part in parts or ()]
    content = read_field(message, "content") if parts is None else [part for kind, part in kinds if kind == "text"]
    calls = read_field(message, "tool_calls") or [part for kind, part in kinds if kind == "tool-call"]
    is_refused = _REFUSED.search(ended) is not None
    return make_summary(
        _join(content),
        _read_usage(answer, raw),
        (read_field(answer, "model_name"), read_field(told, "model_name"), read_field(raw, "model"), model),
        has_called=bool(calls),
        is_cut=not is_refused and _CUT.search(ended) is not None,
        is_refused=is_refused,
    )


def _list_first(raw: Any, name: str) -> Sequence[Any]:
    found = read_field(raw, name)
    return found[:1] if isinstance(found, Sequence) else ()


def _join(content: Any) -> str | None:
    """Return the text of *content*: a text, or parts of which some are text; None if it is neither."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return None
    texts = [
        part if isinstance(part, str) else read_field(part, "text") or read_field(part, "content") for part in content
    ]
    thoughts = [read_field(part, "type") in ("thinking", "reasoning") for part in content]
    return "".join(
        text for text, is_thought in zip(texts, thoughts, strict=True) if isinstance(text, str) and not is_thought
    )


def _read_usage(answer: Any, raw: Any) -> dict[str, int] | None:
    usage = read_field(answer, "usage_metadata") or read_field(answer, "usage") or read_field(raw, "usage")
    read = (read_field(usage, "input_tokens"), read_field(usage, "prompt_tokens"))
    written = (read_field(usage, "output_tokens"), read_field(usage, "completion_tokens"))
    cached = (
        read_field(read_field(usage, "input_token_details"), "cache_read"),
        read_field(usage, "cache_read_tokens"),
        read_field(read_field(usage, "prompt_tokens_details"), "cached_tokens"),
        read_field(read_field(usage, "input_tokens_details"), "cached_tokens"),
    )
    first = [next((n for n in counts if type(n) is int), None) for counts in (read, written, cached)]
    return read_counts(input_tokens=first[0], output_tokens=first[1], cached_tokens=first[2])
