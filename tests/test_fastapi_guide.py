"""The server of docs/serving.md, as its clients see it: it answers, tells its health, forgets, and stops."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fenced import blocks

from compactor import Sessions

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    (block,) = (one for one in blocks("docs/serving.md", "python") if one.info == 'title="server.py"')
    return block.run()["app"]


def say(client: Any, chat: str, text: str) -> str:
    answered = client.post(f"/chats/{chat}", json={"text": text})
    assert answered.status_code == 200, answered.text
    return str(answered.json()["reply"])


def test_each_chat_has_a_memory_that_survives_the_server(app: Any) -> None:
    """A new server goes on where the last one ended."""
    with TestClient(app) as client:
        assert say(client, "a", "Hello") == "You have said 1 things."
        assert say(client, "a", "Again") == "You have said 2 things."
        assert say(client, "b", "Hello") == "You have said 1 things."
    with TestClient(app) as client:
        assert say(client, "a", "Back") == "You have said 3 things."


def test_health_tells_what_is_open_and_whether_the_store_answers(app: Any) -> None:
    """A load balancer needs no more than the status."""
    with TestClient(app) as client:
        say(client, "a", "Hello")
        healthy = client.get("/health")
        assert (healthy.status_code, healthy.json()) == (
            200,
            {"store": True, "open": 1, "compacting": 0, "queued": 0},
        )
        app.state.sessions.store.close()
        assert client.get("/health").status_code == 503


def test_a_forgotten_chat_begins_anew(app: Any) -> None:
    """Nothing of it is left in the database, though it was open."""
    with TestClient(app) as client:
        say(client, "a", "Hello")
        assert client.delete("/chats/a").status_code == 204
        assert list(app.state.sessions.store.sessions()) == []
        assert say(client, "a", "Hello") == "You have said 1 things."


@pytest.mark.slow
def test_many_requests_at_once_lose_nothing(app: Any) -> None:
    """Also those of one chat."""
    with TestClient(app) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: say(client, f"chat-{number % 3}", f"Message {number}"), range(30)))
        assert [say(client, f"chat-{number}", "And?") for number in range(3)] == ["You have said 11 things."] * 3


def test_the_end_of_the_server_stops_its_sessions(app: Any) -> None:
    """And leaves no session in use."""
    with TestClient(app) as client:
        say(client, "a", "Hello")
        sessions: Sessions = app.state.sessions
        assert sessions.status().in_use == 0
    with pytest.raises(RuntimeError, match="closed"), sessions.open("a"):
        pass
