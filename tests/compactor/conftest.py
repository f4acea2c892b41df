"""What tests share that ask a provider's client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from model_server import ModelServer


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
