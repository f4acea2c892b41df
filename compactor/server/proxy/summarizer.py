"""The default summarizer of a proxied session: the model of its requests, at their endpoint and with their key."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ...summarizers.base import SummarizerError, Summary, SummaryRequest

#: Seconds that a key is kept after the last request with it.
KEY_SECONDS = 3_600.0
#: Headers that select the account to bill, or features of the endpoint.
_PASSED = ("openai-organization", "openai-project", "anthropic-beta", "anthropic-version", "http-referer", "x-title")


class RequestSummarizer:
    """Asks the model of the session's newest request."""

    provider = ""

    def __init__(self) -> None:
        self.model = ""
        self._endpoint: tuple[object, ...] = ()
        self._ask: Callable[[SummaryRequest], str | Summary] | None = None
        self.used_at = 0.0

    def __repr__(self) -> str:
        return f"RequestSummarizer({self.model!r})"  # without the key

    def follow(self, kind: str, url: str, model: str, headers: Mapping[str, str]) -> None:
        """Use *model* at *url* from now on, with the key in *headers*."""
        passed = {name: headers[name] for name in _PASSED if name in headers}
        key, bearer = headers.get("x-api-key", ""), headers.get("authorization", "")
        bearer = bearer.partition(" ")[2].strip()
        endpoint = (kind, url, model, key, bearer, tuple(passed.items()))
        if endpoint != self._endpoint:
            make = _make_anthropic if kind == "anthropic" else _make_openai
            self._ask, self._endpoint, self.model = make(url, model, key, bearer, passed), endpoint, model

    def forget(self) -> None:
        self._ask, self._endpoint = None, ()

    def __call__(self, request: SummaryRequest) -> str | Summary:
        if (ask := self._ask) is None:
            raise SummarizerError("no request of this session has brought a key lately")
        return ask(request)


def _make_openai(url: str, model: str, key: str, bearer: str, passed: Mapping[str, str]) -> Any:
    from ...summarizers import OpenAISummarizer

    extra = {"extra_headers": passed} if passed else None
    return OpenAISummarizer(model, base_url=url, api_key=bearer or key or "not-needed", extra=extra)


def _make_anthropic(url: str, model: str, key: str, bearer: str, passed: Mapping[str, str]) -> Any:
    from anthropic import Anthropic

    from ...summarizers import AnthropicSummarizer

    # A key in this process's environment is not the client's.
    client = Anthropic(base_url=url, api_key=key or None, auth_token=bearer or None, default_headers=passed)
    client.api_key, client.auth_token = key or None, bearer or None
    return AnthropicSummarizer(model, client=client)


class RequestSummarizers:
    """The summarizers of all sessions. Keys stay in memory, for an hour after a session's last request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the summarizers, least recently used first
        self._known: OrderedDict[str, RequestSummarizer] = OrderedDict()

    def find(self, session: str) -> RequestSummarizer:
        """Return the *session*'s summarizer, and drop the keys of sessions without a request for an hour."""
        now, left = self._clock(), list[RequestSummarizer]()
        with self._lock:
            found = self._known.setdefault(session, RequestSummarizer())
            found.used_at = now
            self._known.move_to_end(session)
            while next(iter(self._known.values())).used_at < now - KEY_SECONDS:
                left.append(self._known.popitem(last=False)[1])
        for one in left:
            one.forget()
        return found

    def forget(self) -> None:
        """Drop all keys."""
        with self._lock:
            left, self._known = [*self._known.values()], OrderedDict()
        for one in left:
            one.forget()
