"""The default summarizer of a proxied session: the model of its requests, at their endpoint and with their key."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http.cookiejar import DefaultCookiePolicy
from importlib import import_module
from typing import Any
from weakref import WeakValueDictionary

from ...summarizers import AnthropicSummarizer, OpenAISummarizer
from ...summarizers.base import SummarizerError, Summary, SummaryRequest
from ...summarizers.model import make_http_options
from ...summarizers.response_limits import limit_connections
from ...timers import SYSTEM_CLOCK, Clock, call_weakly

#: Seconds that a key is kept after the last request with it.
KEY_SECONDS = 3_600.0
#: Models of one session whose summarizers are kept: an agent may alternate two or three.
MAX_MODELS = 4
#: Headers that select the account to bill, or features of the endpoint.
_FORWARDED = ("openai-organization", "openai-project", "anthropic-beta", "anthropic-version", "http-referer", "x-title")
#: Headers with keys, spelled as the SDKs do: only then do they replace the SDKs' own.
_KEYS = ("Authorization", "X-Api-Key", "Api-Key")
_READ = (_KEYS, _FORWARDED)
#: By the provider's name: the summarizer, and the module and the class of its client.
_KINDS: Mapping[str, tuple[type[AnthropicSummarizer | OpenAISummarizer], str, str]] = {
    "anthropic": (AnthropicSummarizer, "anthropic", "Anthropic"),
    "openai": (OpenAISummarizer, "openai", "OpenAI"),
}
#: Clients insist on a key; some endpoints need none.
_NO_KEY = "not-needed"


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Where the newest request went, and with which keys."""

    kind: str
    url: str
    model: str
    #: Headers: those with keys, and those that select an account or features.
    keys: tuple[tuple[str, str], ...] = field(repr=False)
    forwarded: tuple[tuple[str, str], ...] = field(repr=False)


class Connections:
    """A pool of connections for each SDK, shared by all sessions: one takes 0.8 MB.

    Keys are no part of it: they are headers of each request. Cookies of an endpoint are refused, because they could
    carry one caller's account into another's request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the pools
        self._pools: dict[str, Any] = {}

    def find(self, sdk: str) -> Any:
        with self._lock:
            if (pool := self._pools.get(sdk)) is None:
                pool = self._pools[sdk] = import_module(sdk).DefaultHttpxClient(**make_http_options())
                limit_connections(pool)
                pool.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
                weakref.finalize(self, pool.close)
            return pool


@cache
def _make_client_class(sdk: str, name: str) -> Any:
    """Return the SDK's class, changed to send the keys in the headers that it is given, and no other X-Api-Key."""
    return type(name, (getattr(import_module(sdk), name),), {"auth_headers": property(lambda _client: {})})


def _make_summarizer(endpoint: _Endpoint, connections: Connections) -> Callable[[SummaryRequest], Summary]:
    """Return a summarizer that sends the caller's keys in the headers that they came in."""
    kind, sdk, name = _KINDS[endpoint.kind]
    headers = dict(endpoint.keys or (("X-Api-Key", _NO_KEY),)) | dict(endpoint.forwarded)
    key = next(iter(headers.values()))  # OpenAI's sends it as a bearer's if no other Authorization is given
    options = {"http_client": connections.find(sdk), "default_headers": headers}
    client = _make_client_class(sdk, name)(api_key=key, base_url=endpoint.url, **options)
    return kind(endpoint.model, client=client)


class RequestSummarizer:
    """Asks the model of the session's newest request. Makes a client only when a summary is due."""

    provider = ""

    def __init__(self, connections: Connections | None = None) -> None:
        self._connections = connections or Connections()
        self._endpoint: _Endpoint | None = None
        self._summarizers: OrderedDict[_Endpoint, Callable[[SummaryRequest], str | Summary]] = OrderedDict()
        self.used_at = 0.0

    @property
    def model(self) -> str:
        return "" if (endpoint := self._endpoint) is None else endpoint.model

    def __repr__(self) -> str:
        return f"RequestSummarizer({self.model!r})"  # without the key

    def follow(self, kind: str, url: str, model: str, headers: Mapping[str, str]) -> None:
        """Use *model* at *url* from now on, with the keys in *headers*."""
        found = [tuple((name, headers[name.lower()]) for name in names if name.lower() in headers) for names in _READ]
        self._endpoint = _Endpoint(kind, url, model, *found)

    def forget(self) -> None:
        self._endpoint = None
        self._summarizers = OrderedDict()

    def __call__(self, request: SummaryRequest) -> str | Summary:
        if (endpoint := self._endpoint) is None:
            raise SummarizerError("no request of this session has brought a key lately")
        summarizers = self._summarizers  # a session's calls take turns; ``forget`` replaces the dictionary
        if (summarize := summarizers.pop(endpoint, None)) is None:
            summarize = _make_summarizer(endpoint, self._connections)
        summarizers[endpoint] = summarize
        if len(summarizers) > MAX_MODELS:
            summarizers.popitem(last=False)
        return summarize(request)


class RequestSummarizers:
    """The summarizers of all sessions. Keys stay in memory for an hour after a session's last request."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all below it
        #: Those with a key, least recently used first.
        self._known: OrderedDict[str, RequestSummarizer] = OrderedDict()
        #: Also those without a key that a session still has: its next request brings one.
        self._alive: WeakValueDictionary[str, RequestSummarizer] = WeakValueDictionary()
        self._has_timer = False
        self._connections = Connections()

    def find(self, session: str) -> RequestSummarizer:
        """Return the *session*'s summarizer."""
        with self._lock:
            found = self._alive.get(session)
            if found is None:
                found = self._alive[session] = RequestSummarizer(self._connections)
            found.used_at = self._clock.monotonic()
            self._known[session] = found
            self._known.move_to_end(session)
        self._drop_expired()
        return found

    def _drop_expired(self, *, is_due: bool = False) -> None:
        """Drop the keys of sessions without a request for an hour, and set a timer for the next; *is_due*: it fired."""
        left = list[RequestSummarizer]()
        with self._lock:
            now = self._clock.monotonic()
            while self._known and next(iter(self._known.values())).used_at <= now - KEY_SECONDS:
                left.append(self._known.popitem(last=False)[1])
            needs_timer = bool(self._known) and (is_due or not self._has_timer)
            self._has_timer = bool(self._known)
            seconds = next(iter(self._known.values())).used_at + KEY_SECONDS - now if needs_timer else 0.0
        for one in left:
            one.forget()
        if needs_timer:
            self._clock.call_later(seconds, call_weakly(self._drop_on_timer))

    def _drop_on_timer(self) -> None:
        self._drop_expired(is_due=True)

    def forget(self) -> None:
        """Drop all keys."""
        with self._lock:
            left, self._known = [*self._known.values()], OrderedDict()
        for one in left:
            one.forget()
