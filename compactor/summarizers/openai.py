"""A summarizer for any OpenAI-compatible endpoint; it checks every answer.

It tries once: the compactor waits and retries.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import SecretStr

from memory.arguments import number, require, whole_number
from memory.messages import NATIVE
from memory.patterns import compile_later
from memory.rounds import copy_with

from ..tokens import replace_surrogates
from .answers import NoSummary, parse_body, read_answer
from .base import Style, SummarizerError, Summary, SummaryRequest, add_usage
from .response_limits import MAX_ANSWER_BYTES, Limit, bound_body, current, limit_connections, too_slow

_OPENAI = "https://api.openai.com/v1"
_NO_KEY_NEEDED = "not-needed"  # the client insists on a key; servers on one's own machine do not
_REASONING = compile_later(r"(?:^|[/:])(?:o\d|gpt-[5-9])")
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")
_NOT_EXTRA = {
    "messages": "they are the request's",
    "model": "use model=",
    "stream": "an answer is read as a whole",
    "timeout": "use timeout=",
}
#: Statuses for a request that the endpoint will always refuse.
_REFUSALS = (400, 404, 405, 413, 415, 422, 501)
#: Statuses that do not depend on the request: a problem with the key, or temporary overload.
_TURNED_AWAY = (401, 402, 403, 429, 503, 529)
#: Maximum failed requests to remember until they are retried; above it, all are forgotten.
_MAX_REMEMBERED = 1_000
#: After so many errors of the server in a row, or one other failure, a request is sent in its plain form.
_FAILURES_BEFORE_PLAIN = 2


class OpenAISummarizer:
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
        if not isinstance(model, str) or not model.strip():
            raise ValueError("model= must be the name of a model, such as 'gpt-5-mini'")
        require("base_url", base_url, str | None, "an address, as a text")
        require("api_key", api_key, str | None, "a text")
        number("timeout", timeout, above=True, finite=True)
        if max_output_tokens is not None:
            whole_number("max_output_tokens", max_output_tokens, 1)
        if style not in (None, "separate", "continue"):
            raise ValueError(f"style= must be 'separate', 'continue' or None, not {style!r}")
        for name in extra or ():
            if name in _NOT_EXTRA:
                raise ValueError(f"extra= may not contain {name!r}: {_NOT_EXTRA[name]}")
        self.model = model
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
        self.style = style
        #: False if it never continues the agent's last prompt, so that the caller need not rebuild that prompt.
        self.takes_continued = style != "separate"
        self._takes_formats = True
        #: How often in a row a request failed; its form may be the reason. One summarizer may serve many sessions.
        self._failed: dict[tuple[str, ...], int] = {}
        self._timeout = timeout
        self._clock = clock
        self._closed = False
        self._given = client
        #: Clients made here, by process: after a fork, both processes must not share the parent's connections.
        self._own: dict[int, Any] = {}
        if client is None:
            # Resolved once, so that the key only goes to the address that it was checked against.
            self._base_url = (base_url or os.environ.get("OPENAI_BASE_URL", "")).strip() or _OPENAI
            self._endpoint = _endpoint(self._base_url)
            self._key = SecretStr(_find_key(api_key, self._endpoint))
        else:
            if base_url is not None or api_key is not None:
                raise ValueError("give either client=, or base_url= and api_key=: a client has both")
            openai = sys.modules.get("openai")
            if openai is not None and isinstance(client, openai.AsyncOpenAI):
                raise TypeError("client= must be synchronous: pass openai.OpenAI(...) instead of AsyncOpenAI")
            if not callable(getattr(getattr(getattr(client, "chat", None), "completions", None), "create", None)):
                raise TypeError("client= must have chat.completions.create, as openai.OpenAI has")
            self._endpoint = "the given client's endpoint"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r}, endpoint={self._endpoint!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections permanently. A given client stays open: it belongs to its owner."""
        self._closed = True
        while self._own:
            _, client = self._own.popitem()
            client.close()

    def __call__(self, request: SummaryRequest) -> Summary:
        with self._explain_errors({}):
            client = self._client()  # before the time limit starts: importing openai takes half a second
        limit = Limit(self._timeout, self._clock)
        asked = (request.role, request.kind, *(round_.id for round_ in request.rounds[:1]))
        failures = self._failed.pop(asked, 0)
        if failures >= _FAILURES_BEFORE_PLAIN:
            plain = self._answer(client, limit, self._arguments | {"messages": sendable(request.messages)})
            return copy_with(plain, continued=False)
        try:
            return self._answer_in_style(client, limit, request)
        except SummarizerError as failed:
            status = _status_of(failed) or 0
            if status not in _TURNED_AWAY:
                if len(self._failed) >= _MAX_REMEMBERED:
                    self._failed = {}
                self._failed[asked] = failures + 1 if status >= 500 else _FAILURES_BEFORE_PLAIN
            raise

    def _answer_in_style(self, client: Any, limit: Limit, request: SummaryRequest) -> Summary:
        continued = request.continued
        if continued is None or not (
            self.style == "continue" or (self.style is None and continued.model in ("", self.model))
        ):
            return copy_with(self._answer_separately(client, limit, request), continued=False)
        # The agent's own tools and choice are part of its provider's cache key.
        given = {"tools": sendable(continued.tools)} if continued.tools else {}
        if continued.tool_choice is not None:
            given["tool_choice"] = sendable(continued.tool_choice)
        plain = [{key: message[key] for key in message if key != NATIVE} for message in continued.messages]
        try:
            return self._answer(client, limit, given | self._arguments | {"messages": sendable(plain)})
        except NoSummary as failed:  # also if it is too long, or has unknown arguments
            usage = failed.usage
        summary = self._answer_separately(client, limit, request, again=True)
        return copy_with(summary, usage=add_usage(usage, summary.usage), continued=False)

    def _answer_separately(self, client: Any, limit: Limit, request: SummaryRequest, *, again: bool = False) -> Summary:
        arguments = self._arguments | {"messages": sendable(request.messages)}
        if request.schema is None or not self._takes_formats or "response_format" in arguments:
            return self._answer(client, limit, arguments, again=again)
        schema = {"name": request.kind, "schema": sendable(request.schema), "strict": True}
        formatted = {"response_format": {"type": "json_schema", "json_schema": schema}}
        try:
            return self._answer(client, limit, arguments | formatted, again=again)
        except NoSummary as failed:
            too_long = getattr(failed.__cause__, "code", None) == "context_length_exceeded"
            usage, refused = failed.usage, _status_of(failed) is not None and not too_long
        summary = self._answer(client, limit, arguments, again=True)
        if refused:  # it answers without the schema, so the schema was the reason
            self._takes_formats = False
        return copy_with(summary, usage=add_usage(usage, summary.usage))

    def _answer(self, client: Any, limit: Limit, arguments: Mapping[str, Any], *, again: bool = False) -> Summary:
        timeout = limit.left() if again else self._timeout
        with self._explain_errors(arguments):
            openai = _openai_of(client)
            if openai is None:
                answer = client.chat.completions.create(**arguments, timeout=timeout)
                if not inspect.isawaitable(answer):
                    return read_answer(answer, self.model)
                if inspect.iscoroutine(answer):
                    answer.close()
                raise SummarizerError("client= is asynchronous: its chat.completions.create must return the answer")
            own = self._given is None
            token = current.set(limit)
            try:
                create = client.chat.completions.with_streaming_response.create
                # Connecting tries one address after another; the limit applies to each.
                timeouts = openai.Timeout(timeout, connect=min(timeout, 10.0))
                with create(**(_in_body(arguments) if own else arguments), timeout=timeouts) as response:
                    if not own:
                        bound_body(response.http_response)
                    body = bytearray()
                    for chunk in response.iter_bytes():
                        limit.left()
                        body += chunk
            finally:
                current.reset(token)
            return read_answer(parse_body(bytes(body)), self.model)

    @contextmanager
    def _explain_errors(self, arguments: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except SummarizerError:
            raise
        except Exception as exc:  # any exception of a client is a failure of this call only
            raise self._explain(exc, arguments) from exc

    def _client(self) -> Any:
        if self._closed:
            raise SummarizerError(f"{self!r} is closed; make a new one")
        if self._given is not None:
            with_options = getattr(self._given, "with_options", None)
            if not callable(with_options):
                return self._given
            client = with_options(max_retries=0, timeout=self._timeout)
            return client if _openai_of(client) is None else _refuse_redirects(client)
        process = os.getpid()
        if process not in self._own:
            # No lock: a fork could leave it locked for ever. If two threads make a client, the first one stays.
            client = make_client(self._key.get_secret_value(), self._base_url)
            if self._own.setdefault(process, client) is not client:
                client.close()
        return self._own[process]

    def _explain(self, exc: Exception, arguments: Mapping[str, Any]) -> SummarizerError:
        """Return an error with cause and remedy in our own words: the original text may quote the request."""
        name, status = type(exc).__name__, getattr(exc, "status_code", None)
        if isinstance(status, int):
            said = f"{exc} {getattr(exc, 'body', '')}"
            # A traceback prints the cause too. Its text quotes the response, and that may quote anything.
            exc.args = (f"HTTP {status}",)
            headers = getattr(getattr(exc, "response", None), "headers", None)
            remedy = _remedy(status, exc, headers, arguments)
            dislikes = status in _REFUSALS or "response_format" in said or "json_schema" in said
            return (NoSummary if dislikes else SummarizerError)(
                f"{self._endpoint} answered HTTP {status} ({name}): {remedy}", retry_after=_retry_after(headers)
            )
        if isinstance(exc, TimeoutError) or "Timeout" in name:
            return SummarizerError(f"{too_slow(self._timeout)} ({name} from {self._endpoint})")
        if isinstance(exc, ConnectionError) or "Connect" in name or "Protocol" in name or name == "ReadError":
            return SummarizerError(
                f"no connection to {self._endpoint}, or it broke ({name}): check the server, the network and base_url="
            )
        if isinstance(exc, TypeError):
            return SummarizerError(
                f"the client refuses an argument ({name}): pass it in extra={{'extra_body': {{...}}}}"
            )
        return SummarizerError(f"the request to {self._endpoint} failed ({name}): see the cause of this error")


def make_client(key: str, base_url: str | None, *, most: int = MAX_ANSWER_BYTES, **more: Any) -> Any:
    """Return an ``openai.OpenAI`` that tries once, follows no redirect, and rejects a body over *most* bytes."""
    import openai

    # Only gzip: it can be decompressed piece by piece.
    connections = openai.DefaultHttpxClient(
        follow_redirects=False,
        headers={"Accept-Encoding": "gzip"},
        event_hooks={"response": [lambda response: bound_body(response, most)]},
    )
    limit_connections(connections)
    client = openai.OpenAI(api_key=key, base_url=base_url, max_retries=0, http_client=connections, **more)
    weakref.finalize(client, connections.close)  # closes the connections with the garbage-collected client
    return client


def _refuse_redirects(client: Any) -> Any:
    """Return *client*, a copy of the given one, changed to follow no redirect."""
    prepare = client._prepare_options

    def prepare_options(options: Any) -> Any:
        options = prepare(options)
        options.follow_redirects = False
        return options

    client._prepare_options = prepare_options
    return client


def _in_body(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return *arguments* for the same request, with messages and tools moved to ``extra_body``.

    They are plain JSON already. Converting each by its type would take openai several times as long as everything else.
    """
    given = arguments.get("extra_body")
    plain = {name: arguments[name] for name in ("messages", "tools") if name in arguments}
    rest = {name: value for name, value in arguments.items() if name != "tools"}
    return rest | {"messages": (), "extra_body": plain | dict(given or {})}


def _status_of(failed: SummarizerError) -> int | None:
    """Return the HTTP status of the endpoint's error; None if the failure has another cause."""
    status = getattr(failed.__cause__, "status_code", None)
    return status if isinstance(status, int) else None


def sendable(value: Any) -> Any:
    """Return a copy of *value* without lone surrogates: UTF-8 cannot encode them, so one would fail every request."""
    if isinstance(value, str):
        return value if value.isascii() else replace_surrogates(value)
    if isinstance(value, Mapping):
        return {key: sendable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sendable(item) for item in value]
    return value


def _endpoint(base_url: str) -> str:
    """Return *base_url* without password and query, safe to show. Raises ``ValueError`` if it is no URL."""
    try:
        url = urlsplit(base_url)
        host, port = url.hostname, url.port
    except ValueError:
        host = None
    if not host or url.scheme not in {"http", "https"}:
        raise ValueError("base_url= must be an address such as http://localhost:11434/v1")
    where = f"[{host}]" if ":" in host else host
    return f"{url.scheme}://{where}{f':{port}' if port else ''}{url.path}"


def _find_key(api_key: str | None, endpoint: str) -> str:
    key = (api_key or os.environ.get("OPENAI_API_KEY", "")).strip()
    if not key:
        host = urlsplit(endpoint).hostname or ""
        if host != "openai.com" and not host.endswith(".openai.com"):
            return _NO_KEY_NEEDED
        raise SummarizerError(
            "no API key: set OPENAI_API_KEY, or pass base_url= of a server that needs none, or use"
            " ExtractiveSummarizer(), which needs no model"
        )
    # Checked here: the client's own error would print the header with the key.
    if not all("!" <= character <= "~" for character in key):
        raise SummarizerError("the API key contains invalid characters; copy it again")
    return key


def _openai_of(client: Any) -> Any:
    """Return the openai module if *client* is one of its clients, else None. Such a client implies the import."""
    openai = sys.modules.get("openai")
    return openai if openai is not None and isinstance(client, openai.OpenAI) else None


_REMEDIES = {
    401: "check the key, in api_key= or OPENAI_API_KEY",
    403: "the key may not use this; check its permissions, or choose another model=",
    404: "check model= and base_url=, which usually ends in /v1",
    413: "the request is too large; lower summarizer_input_tokens",
    429: "too many requests; wait, or ask for a higher limit",
}


def _remedy(status: int, error: Any, headers: Any, arguments: Mapping[str, Any]) -> str:
    code, param = getattr(error, "code", None), getattr(error, "param", None)
    if 300 <= status < 400:
        # Never followed: the conversation would go to an unchecked address.
        location = headers.get("location") if hasattr(headers, "get") else None
        try:
            there = _endpoint(location) if isinstance(location, str) else ""
        except ValueError:
            there = ""
        printable = re.fullmatch(r"[\w.:/\[\]-]{1,200}", there, re.ASCII)
        there = there if printable else "another address"
        return f"it redirects to {there}; to send the conversation there, set base_url= to that address"
    if code == "context_length_exceeded":
        return "the request is longer than the model's window; lower summarizer_input_tokens"
    if code == "insufficient_quota":
        return "the account has no credit left; add some, or use another key"
    if isinstance(param, str) and param in _OUTPUT_LIMITS and param in arguments:
        other = _OUTPUT_LIMITS[1 - _OUTPUT_LIMITS.index(param)]
        return f"it refuses {param!r}; pass extra={{{other!r}: ...}} instead"
    if isinstance(param, str) and param in arguments:
        return f"it refuses this {param!r}; leave it out, or give another value"
    if status >= 500:
        return "the server failed; if it goes on failing, look at its log or status page"
    return _REMEDIES.get(status, "check model=, extra= and the other parameters")


def _retry_after(headers: Any) -> float | None:
    """Return the seconds in a ``Retry-After`` header, given as a number or a date; None if missing or invalid."""
    value = headers.get("retry-after") if hasattr(headers, "get") else None
    if not isinstance(value, str):
        return None
    try:
        seconds = float(value)
    except ValueError:
        from email.utils import parsedate_to_datetime

        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None
