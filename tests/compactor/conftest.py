"""What tests share that ask a provider's client."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from functools import cache, partial

import pytest
from model_server import ModelServer

_make_context = cache(ssl.create_default_context)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A server on loopback in a provider's place, whatever path it is asked at."""
    with ModelServer("") as running:
        yield running


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys, addresses and proxies of this machine's."""
    for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.lower(), raising=False)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def quick_clients(no_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that read the machine's certificates once, which takes 30 ms: no test speaks TLS."""
    import openai

    connections = partial(openai.DefaultHttpxClient, verify=_make_context())
    monkeypatch.setattr(openai, "DefaultHttpxClient", connections)
