"""A summarizer for any OpenAI-compatible endpoint; it checks every answer."""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from memory.messages import NATIVE
from memory.patterns import compile_later

from .answers import parse_body, read_answer
from .base import Continued, Style, SummarizerError, Summary
from .model import (
    Arguments,
    ModelSummarizer,
    find_imported,
    make_http_options,
    make_sendable,
    read_stream,
    refuse_redirects,
)
from .response_limits import MAX_ANSWER_BYTES, Limit, limit_connections

_REASONING = compile_later(r"(?:^|[/:])(?:o\d|gpt-[5-9])")
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")


class OpenAISummarizer(ModelSummarizer):
    """Return the model's summary for ``request.messages``; raise ``SummarizerError`` if there is none.

    *style* "separate" sends ``request.messages``. "continue" sends ``request.continued``, if there is one: the
    beginning of the agent's last prompt is in its provider's cache, so most of the conversation costs a fraction. If
    the endpoint refuses the longer request, or the model's answer is no summary (a tool call, for example), the
    summarizer asks again as with "separate". None: "continue" if this is the agent's model, as far as is known.

    ``request.schema`` goes out as ``response_format``, but not with "continue": it would change the beginning of the
    prompt and miss the cache. If the answer is no summary, the summarizer asks again without the schema. Once an
    endpoint refuses a schema, it gets no more of them. Other failures may be due to either; after one, the next call
    for the same rounds uses neither.

    *timeout* limits the whole call, in seconds. With an ``openai.OpenAI`` given as *client*, it covers only the body of
    a successful answer, which may take one read longer; the owner controls everything else about that client. *extra*
    goes to ``chat.completions.create`` unchanged and overrides every other argument. Reasoning models get no
    *temperature*, because they refuse it; their *max_output_tokens* includes their thoughts. One summarizer serves any
    number of threads.
    """

    _KEYS = ("OPENAI_API_KEY",)
    _BASE_URLS = ("OPENAI_BASE_URL",)
    _DEFAULT_URL = "https://api.openai.com/v1"
    _ENDING = ", which usually ends in /v1"
    _EXAMPLE = "gpt-5-mini"
    _NOT_EXTRA: ClassVar[Mapping[str, str]] = {
        "messages": "they are the request's",
        "model": "use model=",
        "stream": "an answer is read as a whole",
        "timeout": "use timeout=",
    }
    _SCHEMA_WORDS = ("response_format", "json_schema")
    _PACKAGE = ("openai", "openai")

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = None,
        max_output_tokens: int | None = None,
        reasoning_effort: str | None = None,
        style: Style | None = None,
        timeout: float = 60.0,
        extra: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            model,
            client=client,
            base_url=base_url,
            api_key=api_key,
            max_output_tokens=max_output_tokens,
            style=style,
            timeout=timeout,
            extra=extra,
            clock=clock,
        )
        reasoning = _REASONING.search(model) is not None
        limit = "max_completion_tokens" if reasoning else "max_tokens"
        arguments = {
            "model": model,
            "temperature": None if reasoning else temperature,
            "reasoning_effort": reasoning_effort,
            # No limit from target_tokens: a limit would cut the answer off, not make it shorter.
            limit: None if extra and extra.keys() & set(_OUTPUT_LIMITS) else max_output_tokens,
        }
        self._arguments = {name: value for name, value in arguments.items() if value is not None} | dict(extra or {})

    def _check_client(self, client: Any) -> None:
        openai = find_imported("openai")
        if openai is not None and isinstance(client, openai.AsyncOpenAI):
            raise TypeError("client= must be synchronous: pass openai.OpenAI(...) instead of AsyncOpenAI")
        if not callable(getattr(getattr(getattr(client, "chat", None), "completions", None), "create", None)):
            raise TypeError("client= must have chat.completions.create, as openai.OpenAI has")

    def _make_client(self, key: str, base_url: str) -> Any:
        return make_client(key, base_url)

    def _adapt_given(self, client: Any) -> Any:
        with_options = getattr(client, "with_options", None)
        if not callable(with_options):
            return client
        client = with_options(max_retries=0, timeout=self._timeout)
        return client if _find_openai(client) is None else refuse_redirects(client)

    def _write_messages(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"messages": make_sendable(messages)}

    def _is_cached(self, continued: Continued) -> bool:
        return continued.model in ("", self.model)

    def _continue(self, continued: Continued) -> dict[str, Any]:
        # The agent's own tools and choice are part of its provider's cache key.
        given = {"tools": make_sendable(continued.tools)} if continued.tools else {}
        if continued.tool_choice is not None:
            given["tool_choice"] = make_sendable(continued.tool_choice)
        plain = [{key: message[key] for key in message if key != NATIVE} for message in continued.messages]
        return given | self._arguments | self._write_messages(plain)

    def _format(self, arguments: Arguments, name: str, schema: Any) -> dict[str, Any] | None:
        if "response_format" in arguments:
            return None
        form = {"name": name, "schema": schema, "strict": True}
        return {**arguments, "response_format": {"type": "json_schema", "json_schema": form}}

    def _send(self, client: Any, limit: Limit, arguments: Arguments, timeout: float) -> Summary:
        openai = _find_openai(client)
        if openai is None:
            answer = client.chat.completions.create(**arguments, timeout=timeout)
            if not inspect.isawaitable(answer):
                return read_answer(answer, self.model)
            if inspect.iscoroutine(answer):
                answer.close()
            raise SummarizerError("client= is asynchronous: its chat.completions.create must return the answer")
        own = self._given is None
        create = client.chat.completions.with_streaming_response.create
        body = read_stream(
            openai, create, _move_to_body(arguments) if own else arguments, limit, timeout, is_bounded=own
        )
        return read_answer(parse_body(body), self.model)

    def _is_too_long(self, error: Any, said: str) -> bool:  # noqa: ARG002  (its code says it)
        return getattr(error, "code", None) == "context_length_exceeded"

    def _name_remedy(self, status: int, error: Any, said: str, arguments: Arguments) -> str:
        param = getattr(error, "param", None)
        if getattr(error, "code", None) == "insufficient_quota":
            return "the account has no credit left; add some, or use another key"
        if isinstance(param, str) and param in _OUTPUT_LIMITS and param in arguments:
            other = _OUTPUT_LIMITS[1 - _OUTPUT_LIMITS.index(param)]
            return f"it refuses {param!r}; pass extra={{{other!r}: ...}} instead"
        if isinstance(param, str) and param in arguments and not self._is_too_long(error, said):
            return f"it refuses this {param!r}; leave it out, or give another value"
        return super()._name_remedy(status, error, said, arguments)


def make_client(key: str, base_url: str | None, *, most: int = MAX_ANSWER_BYTES, **more: Any) -> Any:
    """Return an ``openai.OpenAI`` that tries once, follows no redirect, and rejects a body over *most* bytes."""
    import openai

    connections = openai.DefaultHttpxClient(**make_http_options(most))
    limit_connections(connections)
    client = openai.OpenAI(api_key=key, base_url=base_url, max_retries=0, http_client=connections, **more)
    weakref.finalize(client, connections.close)  # closes the connections with the garbage-collected client
    return client


def _move_to_body(arguments: Arguments) -> dict[str, Any]:
    """Return *arguments* for the same request, with messages and tools moved to ``extra_body``.

    They are plain JSON already. Converting each by its type would take openai several times as long as everything else.
    """
    given = arguments.get("extra_body")
    plain = {name: arguments[name] for name in ("messages", "tools") if name in arguments}
    rest = {name: value for name, value in arguments.items() if name != "tools"}
    return rest | {"messages": (), "extra_body": plain | dict(given or {})}


def _find_openai(client: Any) -> Any:
    """Return the openai module if *client* is one of its clients, else None. Such a client implies the import."""
    openai = find_imported("openai")
    return openai if openai is not None and isinstance(client, openai.OpenAI) else None
