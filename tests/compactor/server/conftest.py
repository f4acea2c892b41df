"""What the tests of the server share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a first request may take longer than users wait: it would be forwarded unchanged. So may a
    search."""
    monkeypatch.setattr("compactor.server.proxy.FIT_SECONDS", 60.0)
    monkeypatch.setattr("compactor.server.app.READY_SECONDS", 60.0)
    monkeypatch.setattr("compactor.server.reme.SEARCH_SECONDS", 60.0)
