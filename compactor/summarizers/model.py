"""What all summarizers on a provider's client share: in which form to ask, for how long, and what an error means.

They try once: the compactor waits and retries.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, ClassVar, Self, TypedDict, TypeVar
from urllib.parse import urlsplit

from pydantic import SecretStr

from memory.arguments import check_number, check_whole_number, require
from memory.patterns import compile_later
from memory.rounds import copy_with

from ..errors import read_status
from ..tokens import replace_surrogates
from .answers import NoSummary, parse_body
from .base import ContinuedPrompt, Style, SummarizerError, Summary, SummaryRequest, add_usage
from .response_limits import MAX_ANSWER_BYTES, Limit, bound_body, current, explain_too_slow, limit_connections

_NO_KEY_NEEDED = "not-needed"  # clients insist on a key; servers on one's own machine do not
#: Statuses for a request that the endpoint will always refuse.
REFUSALS = (400, 404, 405, 413, 415, 422, 501)
#: Statuses that do not depend on the request: a problem with the key, or temporary overload.
_TURNED_AWAY = (401, 402, 403, 429, 503, 529)
#: Maximum failed requests to remember until they are retried; above it, all are forgotten.
_MAX_REMEMBERED = 1_000
#: Maximum seconds that an endpoint can ask to wait: a date of the next century is a mistake.
MAX_RETRY_AFTER = 86_400.0
#: After so many errors of the server in a row, or one other failure, a request is sent in its plain form.
_FAILURES_BEFORE_PLAIN = 2

_REMEDIES = {
    401: "check the key, in api_key= or {key}",
    402: "the account has no credit left; add some, or use another key",
    403: "the key may not use this; check its permissions, or choose another model=",
    404: "check model= and base_url={ending}",
    413: "the request is too large; lower summarizer_input_tokens",
    429: "too many requests; wait, or ask for a higher limit",
    503: "the model is overloaded; it is asked again later",
    529: "the model is overloaded; it is asked again later",
}
_TOO_LONG = compile_later(
    r"(?i)prompt is too long|exceeds the maximum number of tokens|context_length_exceeded|maximum context length"
    r"|context window|context limit|input is too long|ContextOverflow"
)
_BLOCKED = compile_later(r"(?i)content[ _](?:filter|policy|management policy)")
TOO_LONG = "the request is longer than the model's window; lower summarizer_input_tokens"
BLOCKED = "a filter blocked the request: choose another model= or prompt"

Arguments = Mapping[str, Any]
Parsed = TypeVar("Parsed")


class Options(TypedDict, total=False):
    """What all of them take beside the model's name."""

    client: Any
    base_url: str | None
    api_key: str | None
    max_output_tokens: int | None
    style: Style | None
    timeout: float
    extra: Mapping[str, Any] | None
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True, repr=False)
class Form:
    """One way to send a request."""

    arguments: Arguments
    is_continued: bool = False
    #: What it needs that an endpoint may refuse for good.
    needs: str = ""


class ModelSummarizer(ABC):
    """Return a model's summary for a request; raise ``SummarizerError`` if there is none. One provider each derives
    from it. Any number of threads may call one."""

    #: Environment variables of the key and of the address; the default address; how most addresses end; a model's name.
    _KEYS: ClassVar[Sequence[str]]
    _BASE_URLS: ClassVar[Sequence[str]]
    _DEFAULT_URL: ClassVar[str]
    _ENDING: ClassVar[str] = ""
    _EXAMPLE: ClassVar[str]
    #: Arguments that *extra* may not contain, each with the remedy.
    _NOT_EXTRA: ClassVar[Mapping[str, str]]
    #: The extra that installs the client; the client's module and class; its method that asks a model.
    _EXTRA: ClassVar[str]
    _CLIENT: ClassVar[tuple[str, str]]
    _METHOD: ClassVar[str]
    #: What ``provider`` is, unless the endpoint refuses.
    _provider: str = ""

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        max_output_tokens: int | None = None,
        style: Style | None = None,
        timeout: float = 60.0,
        extra: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ValueError(f"model= must be the name of a model, such as {self._EXAMPLE!r}")
        require("base_url", base_url, str | None, "an address, as a text")
        require("api_key", api_key, str | None, "a text")
        check_number("timeout", timeout, above=True, finite=True)
        if max_output_tokens is not None:
            check_whole_number("max_output_tokens", max_output_tokens, 1)
        if self._provider and style == "separate":
            raise ValueError("provider_compaction= compacts the agent's own prompt: leave style='separate' out")
        if style not in (None, "separate", "continue"):
            raise ValueError(f"style= must be 'separate', 'continue' or None, not {style!r}")
        for name in extra or ():
            if name in self._NOT_EXTRA:
                raise ValueError(f"extra= may not contain {name!r}: {self._NOT_EXTRA[name]}")
        self.model = model
        self.style = style
        #: False if it never continues the agent's last prompt, so that the caller need not rebuild that prompt.
        self.takes_continued = style != "separate"
        #: What goes with every request.
        self._arguments: dict[str, Any] = self._make_arguments(max_output_tokens, extra or {})
        #: What the endpoint refused for good: "compaction".
        self._refused: frozenset[str] = frozenset()
        #: How often in a row a request failed; its form may be the reason. One summarizer may serve many sessions.
        self._failed: dict[tuple[str, ...], int] = {}
        self._timeout = timeout
        self._clock = clock
        self._closed = False
        self._given = client
        #: Clients made here, by process: after a fork, both processes must not share the parent's connections.
        self._own: dict[int, Any] = {}
        if client is None:
            self._require_package()
            # Resolved once, so that the key only goes to the address that it was checked against.
            self._base_url = (base_url or _find_first_set(self._BASE_URLS)).strip() or self._DEFAULT_URL
            self._endpoint = _read_endpoint(self._base_url)
            self._key = SecretStr(self._find_key(api_key))
        else:
            if base_url is not None or api_key is not None:
                raise ValueError("give either client=, or base_url= and api_key=: a client has both")
            self._check_client(client)
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

    def can_replace(self, other: Self) -> bool:
        """Whether this one, made with the same arguments as *other*, is open and has its key and address."""
        return not self._closed and (self._key, self._base_url) == (other._key, other._base_url)

    def __call__(self, request: SummaryRequest) -> Summary:
        with self._explain_errors({}):
            client = self._get_client()  # before the time limit starts: importing a client takes half a second
        limit = Limit(self._timeout, self._clock)
        asked = (request.role, request.kind, *(round_.id for round_ in request.rounds[:1]))
        failures = self._failed.pop(asked, 0)
        forms = list(self._list_forms(request))
        if failures >= _FAILURES_BEFORE_PLAIN:
            return self._ask(client, limit, request, forms[-1:])
        try:
            return self._ask(client, limit, request, forms)
        except SummarizerError as failed:
            status = read_status(failed.__cause__) or 0
            if status not in _TURNED_AWAY:
                if len(self._failed) >= _MAX_REMEMBERED:
                    self._failed = {}
                self._failed[asked] = failures + 1 if status >= 500 else _FAILURES_BEFORE_PLAIN
            raise

    @property
    def endpoint(self) -> str:
        """The address that it asks, without a password; that of a given client is not known."""
        return self._endpoint if self._given is None else ""

    @property
    def provider(self) -> str:
        """The format of the payloads that it asks for and reads; empty if it asks for none, or its endpoint refused."""
        return "" if "compaction" in self._refused else self._provider

    def _list_forms(self, request: SummaryRequest) -> Iterator[Form]:
        """Yield the forms of *request* to try in turn. The plain one is the last."""
        continued = request.continued_prompt
        if continued is not None and (self.style == "continue" or (self.style is None and self._is_cached(continued))):
            yield Form(self._continue(continued), is_continued=True)
        yield Form(self._arguments | self._write_messages(request.messages))

    def _find_compacted(self, request: SummaryRequest) -> ContinuedPrompt | None:
        """Return the agent's prompt if the provider is to compact it: whole, and for a prompt that may show it."""
        continued = request.continued_prompt
        asks = self.provider and request.kind == "rounds" and continued is not None and continued.model == self.model
        return continued if asks else None

    def _ask(self, client: Any, limit: Limit, request: SummaryRequest, forms: Sequence[Form]) -> Summary:  # noqa: ARG002
        """Return the first summary that *forms* of *request* give, with the usage of all that were tried."""
        usage, refused = None, ""
        for form in forms[:-1]:
            try:
                summary = self._answer(client, limit, form.arguments, again=form is not forms[0])
                break
            except NoSummary as failed:  # also if it is too long, or has unknown arguments
                cause, usage = failed.__cause__, add_usage(usage, failed.usage)
                is_refusal = read_status(cause) is not None and not self._is_of_request(cause, _read_said(cause))
                refused = form.needs if is_refusal else ""
        else:
            form = forms[-1]
            summary = self._answer(client, limit, form.arguments, again=len(forms) > 1)
        if refused:  # it answers without, so that was the reason
            self._refused |= {refused}
        continued = None if form.is_continued else False
        return copy_with(summary, usage=add_usage(usage, summary.usage), continued=continued)

    def _answer(self, client: Any, limit: Limit, arguments: Arguments, *, again: bool = False) -> Summary:
        timeout = limit.get_seconds_left() if again else self._timeout
        return self._call(client, self._METHOD, limit, arguments, self._read, timeout=timeout)

    def _call(
        self,
        client: Any,
        method: str,
        limit: Limit,
        arguments: Arguments,
        read: Callable[[Any], Parsed],
        *,
        timeout: float,
    ) -> Parsed:
        """Send one request, and return what *read* makes of the answer. Raises ``SummarizerError``."""
        with self._explain_errors(arguments):
            token = current.set(limit)
            try:
                return read(self._send(client, method, limit, arguments, timeout))
            finally:
                current.reset(token)

    # What providers differ in.

    @abstractmethod
    def _make_arguments(self, max_output_tokens: int | None, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of every request."""

    @abstractmethod
    def _write_messages(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the arguments that carry *messages*."""

    @abstractmethod
    def _continue(self, continued: ContinuedPrompt) -> dict[str, Any]:
        """Return all arguments of a request behind the agent's prompt, equal to the agent's own as far as it goes."""

    @abstractmethod
    def _read(self, answer: Any) -> Summary:
        """Return the summary in an *answer*, which is JSON or an object of the client. Raises as ``make_summary``."""

    def _is_too_long(self, error: Any, said: str) -> bool:
        """Return whether *error*, which *said* so, is about the model's window."""
        return read_status(error) == 413 or is_too_long(said)

    def _is_of_request(self, error: Any, said: str) -> bool:
        """Return whether the endpoint refused this request, and not its form: because it is too long, for example."""
        return self._is_too_long(error, said)

    def _is_cached(self, continued: ContinuedPrompt) -> bool:
        """Return whether the agent's prompt is likely to be in this model's cache."""
        return continued.model == self.model

    def _name_remedy(self, status: int, error: Any, said: str, arguments: Arguments) -> str:  # noqa: ARG002  (others need it)
        """Return what to do about *error*, by its *status* and what it *said*."""
        if 300 <= status < 400:
            # Never followed: the conversation would go to an unchecked address.
            return _name_redirect_remedy(read_headers(error))
        if self._is_too_long(error, said):
            return TOO_LONG
        if status in REFUSALS and is_blocked(said):
            return BLOCKED
        named = name_remedy(status, key=self._KEYS[0], ending=self._ENDING)
        return named or "check model=, extra= and the other parameters"

    def _read_retry_after(self, error: Any) -> float | None:
        """Return the seconds that the endpoint asks to wait; None if it names none."""
        return parse_retry_after(read_headers(error))

    # Clients and errors. Those of OpenAI and Anthropic are of one make.

    def _check_client(self, client: Any) -> None:
        """Raise ``TypeError`` unless *client* can be used."""
        module, name = self._CLIENT
        if type(client).__name__.startswith("Async"):
            raise TypeError(f"client= must be synchronous: pass {module}.{name}(...) instead of Async{name}")
        try:
            is_client = callable(attrgetter(self._METHOD)(client))
        except AttributeError:
            is_client = False
        if not is_client:
            raise TypeError(f"client= must have {self._METHOD}, as {module}.{name} has")

    def _make_client(self, key: str, base_url: str) -> Any:
        """Return a client that tries once, follows no redirect, and bounds the answer's size and time."""
        return make_client(self._CLIENT, key, base_url)

    def _adapt_given(self, client: Any) -> Any:
        """Return *client*, the host's, for requests that are tried once and follow no redirect."""
        if not self._is_sdk(client):
            return client
        return refuse_redirects(client.with_options(max_retries=0, timeout=self._timeout))

    def _is_sdk(self, client: Any) -> bool:
        """Return whether *client* is one of the SDK's, and not a fake or a wrapper."""
        return any(kind.__module__.partition(".")[0] == self._CLIENT[0] for kind in type(client).__mro__)

    def _send(self, client: Any, method: str, limit: Limit, arguments: Arguments, timeout: float) -> Any:
        """Return the answer to one request, as JSON or as an object."""
        if not self._is_sdk(client):
            answer = attrgetter(method)(client)(**arguments, timeout=timeout)
            if not inspect.isawaitable(answer):
                return answer
            if inspect.iscoroutine(answer):
                answer.close()
            raise SummarizerError(f"client= is asynchronous: its {method} must return the answer")
        own = self._given is None
        resource, _, name = method.rpartition(".")
        create = getattr(attrgetter(resource)(client).with_streaming_response, name)
        sdk = sys.modules[self._CLIENT[0]]
        body = read_stream(sdk, create, _move_to_body(arguments) if own else arguments, limit, timeout, is_bounded=own)
        return parse_body(body)

    def _get_client(self) -> Any:
        if self._closed:
            raise SummarizerError(f"{self!r} is closed; make a new one")
        if self._given is not None:
            return self._adapt_given(self._given)
        process = os.getpid()
        if process not in self._own:
            # No lock: a fork could leave it locked for ever. If two threads make a client, the first one stays.
            client = self._make_client(self._key.get_secret_value(), self._base_url)
            if self._own.setdefault(process, client) is not client:
                client.close()
        return self._own[process]

    def _require_package(self) -> None:
        module = self._CLIENT[0]
        try:
            found = find_spec(module)
        except ModuleNotFoundError:  # the package around it
            found = None
        if found is None:
            remedy = f"install it: pip install 'context-compactor[{self._EXTRA}]'"
            raise SummarizerError(f"{type(self).__name__} needs the package {module}; {remedy}")

    def _find_key(self, api_key: str | None) -> str:
        key = (api_key or _find_first_set(self._KEYS)).strip()
        if not key:
            host, domain = urlsplit(self._endpoint).hostname or "", urlsplit(self._DEFAULT_URL).hostname or ""
            domain = ".".join(domain.split(".")[-2:])
            if host != domain and not host.endswith(f".{domain}"):
                return _NO_KEY_NEEDED
            raise SummarizerError(
                f"no API key: set {self._KEYS[0]}, or pass base_url= of a server that needs none, or use"
                " ExtractiveSummarizer(), which needs no model"
            )
        # Checked here: the client's own error would print the header with the key.
        if not all("!" <= character <= "~" for character in key):
            raise SummarizerError("the API key contains invalid characters; copy it again")
        return key

    @contextmanager
    def _explain_errors(self, arguments: Arguments) -> Iterator[None]:
        try:
            yield
        except SummarizerError:
            raise
        except Exception as exc:  # any exception of a client is a failure of this call only
            raise self._explain(exc, arguments) from exc

    def _explain(self, exc: Exception, arguments: Arguments) -> SummarizerError:
        """Return an error with cause and remedy in our own words: the original text may quote the request."""
        name, status = type(exc).__name__, read_status(exc)
        if status is not None:
            said = _read_said(exc)
            # A traceback prints the cause too. Its text quotes the response, and that may quote anything.
            exc.args = (f"HTTP {status}",)
            remedy = self._name_remedy(status, exc, said, arguments)
            return (NoSummary if status in REFUSALS else SummarizerError)(
                f"{self._endpoint} answered HTTP {status} ({name}): {remedy}", retry_after=self._read_retry_after(exc)
            )
        if isinstance(exc, TimeoutError) or "Timeout" in name:
            return SummarizerError(f"{explain_too_slow(self._timeout)} ({name} from {self._endpoint})")
        if isinstance(exc, ConnectionError) or "Connect" in name or "Protocol" in name or name == "ReadError":
            return SummarizerError(
                f"no connection to {self._endpoint}, or it broke ({name}): check the server, the network and base_url="
            )
        if isinstance(exc, TypeError):
            return SummarizerError(
                f"the client refuses an argument ({name}): pass it in extra={{'extra_body': {{...}}}}"
            )
        return SummarizerError(f"the request to {self._endpoint} failed ({name}): see the cause of this error")


def _read_said(error: object) -> str:
    """Return what the endpoint said in *error*, also after its text was replaced."""
    return " ".join([str(error), *(str(getattr(error, name, "")) for name in ("body", "details"))])


def is_too_long(said: str) -> bool:
    """Return whether an error that *said* so, of any provider, is about the model's window."""
    return _TOO_LONG.search(said) is not None


def is_blocked(said: str) -> bool:
    """Return whether an error that *said* so, of any provider, is a filter's."""
    return _BLOCKED.search(said) is not None


def name_remedy(status: int, *, key: str, ending: str = "") -> str:
    """Return what to do about an error of that *status*, with the place of the *key*; empty if it says nothing."""
    if status in _REMEDIES:
        return _REMEDIES[status].format(key=key, ending=ending)
    return "the server failed; if it goes on failing, look at its log or status page" if status >= 500 else ""


def read_headers(error: object) -> Any:
    return getattr(getattr(error, "response", None), "headers", None)


def parse_retry_after(headers: Any) -> float | None:
    """Return the seconds in a ``Retry-After`` header, given as a number or a date, at most a day; None if missing
    or invalid. As OpenAI's client does, prefer ``retry-after-ms``."""
    if not hasattr(headers, "get"):
        return None
    with suppress(TypeError, ValueError):
        if math.isfinite(milliseconds := float(headers.get("retry-after-ms"))):
            return min(max(0.0, milliseconds / 1000), MAX_RETRY_AFTER)
    value = headers.get("retry-after")
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
    return min(max(0.0, seconds), MAX_RETRY_AFTER) if math.isfinite(seconds) else None


def make_sendable(value: Any) -> Any:
    """Return a copy of *value* without lone surrogates: UTF-8 cannot encode them, so one would fail every request."""
    if isinstance(value, str):
        return value if value.isascii() else replace_surrogates(value)
    if isinstance(value, Mapping):
        return {key: make_sendable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_sendable(item) for item in value]
    return value


def make_http_options(max_bytes: int = MAX_ANSWER_BYTES) -> dict[str, Any]:
    """Return options for an httpx client that follows no redirect and rejects a body over *max_bytes*."""
    # Only gzip: it can be decompressed piece by piece.
    return {
        "follow_redirects": False,
        "headers": {"Accept-Encoding": "gzip"},
        "event_hooks": {"response": [lambda response: bound_body(response, max_bytes)]},
    }


def read_stream(
    sdk: Any, create: Callable[..., Any], arguments: Arguments, limit: Limit, timeout: float, *, is_bounded: bool
) -> bytes:
    """Return the body of the answer that *create*, of a client of *sdk*, opens. The limit holds for all of it."""
    # Connecting tries one address after another; the limit applies to each.
    timeouts = sdk.Timeout(timeout, connect=min(timeout, 10.0))
    with create(**arguments, timeout=timeouts) as response:
        if not is_bounded:
            bound_body(response.http_response)
        body = bytearray()
        for chunk in response.iter_bytes():
            limit.get_seconds_left()
            body += chunk
    return bytes(body)


def refuse_redirects(client: Any) -> Any:
    """Return *client*, a copy of the given one, changed to follow no redirect.

    The clients' own option for that comes with ``post``, which cannot read an answer piece by piece.
    """
    prepare = client._prepare_options

    def prepare_options(options: Any) -> Any:
        options = prepare(options)
        options.follow_redirects = False
        return options

    client._prepare_options = prepare_options
    return client


def make_client(
    kind: tuple[str, str], key: str, base_url: str | None, *, max_bytes: int = MAX_ANSWER_BYTES, **more: Any
) -> Any:
    """Return a client of that module and class that tries once, follows no redirect, and rejects a body over
    *max_bytes*."""
    sdk = import_module(kind[0])
    connections = sdk.DefaultHttpxClient(**make_http_options(max_bytes))
    limit_connections(connections)
    client = getattr(sdk, kind[1])(api_key=key, base_url=base_url, max_retries=0, http_client=connections, **more)
    weakref.finalize(client, connections.close)  # closes the connections with the garbage-collected client
    return client


def _move_to_body(arguments: Arguments) -> dict[str, Any]:
    """Return *arguments* for the same request, with messages and tools moved to ``extra_body``.

    They are plain JSON already. Converting each by its type would take the client several times as long as everything
    else.
    """
    given = arguments.get("extra_body")
    plain = {name: arguments[name] for name in ("messages", "tools", "input") if name in arguments}
    rest = {name: value for name, value in arguments.items() if name not in plain}
    return rest | ({"messages": ()} if "messages" in plain else {}) | {"extra_body": plain | dict(given or {})}


def _find_first_set(names: Sequence[str]) -> str:
    return next((text for name in names if (text := os.environ.get(name, ""))), "")


def _read_endpoint(base_url: str) -> str:
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


def _name_redirect_remedy(headers: Any) -> str:
    location = headers.get("location") if hasattr(headers, "get") else None
    try:
        there = _read_endpoint(location) if isinstance(location, str) else ""
    except ValueError:
        there = ""
    printable = re.fullmatch(r"[\w.:/\[\]-]{1,200}", there, re.ASCII)
    there = there if printable else "another address"
    return f"it redirects to {there}; to send the conversation there, set base_url= to that address"
