"""No tenant holds up another: slow requests take threads of their own tenant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")

from fastapi.testclient import TestClient
from pydantic import SecretStr

from compactor import CompactorConfig, InMemoryStore
from compactor.server import ServerSettings, create_app, reme, rest
from compactor.server.reme import ReMeResponse

ALICE, BOB = ({"authorization": f"Bearer {name}-token-0123456789"} for name in ("alice", "bob"))
TOKENS = {name: SecretStr(f"{name}-token-0123456789") for name in ("alice", "bob")}
TURN = [{"role": "user", "content": "Where is it? " * 90}, {"role": "assistant", "content": "In the depot. " * 90}]


@contextmanager
def serve(folder: Path, **options: Any) -> Iterator[TestClient]:
    config = CompactorConfig(threshold=1_000_000)
    settings = ServerSettings(store="memory://", tokens=TOKENS, store_dir=folder, config=config, rate=None)
    with TestClient(create_app(settings, store=InMemoryStore(), **options), "http://127.0.0.1") as client:
        yield client


def test_compactions_of_one_tenant_leave_threads_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a thread counts in the request's own time; then the answer is 503, and says when to try again."""
    monkeypatch.setattr(rest, "COMPACTION_THREADS", 2)
    asked, gate = threading.Event(), threading.Event()

    def hang(_request: Any) -> str:
        asked.set()
        gate.wait(20)
        return "It is in the depot."

    with serve(tmp_path, summarizer=hang) as client, ThreadPoolExecutor() as pool:
        for headers in (ALICE, BOB):
            client.post("/api/sessions/s/messages", json={"messages": TURN * 4}, headers=headers)
        client.post("/api/sessions/none/messages", json={"messages": TURN[:1]}, headers=BOB)
        first = pool.submit(client.post, "/api/sessions/s/compact", json={"timeout": 20}, headers=ALICE)
        assert asked.wait(30)
        late = client.post("/api/sessions/s/compact", json={"timeout": 1}, headers=ALICE)
        assert (late.status_code, late.headers["retry-after"]) == (503, "5")
        other = client.post("/api/sessions/none/compact", json={"timeout": 5}, headers=BOB)
        assert (other.status_code, other.json()) == (200, {"compaction": None})
        gate.set()
        assert first.result().json()["compaction"]["summary"]


def test_searches_have_threads_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another tenant's searches nor the tenant's own compressions take them."""
    gate, began = threading.Event(), threading.Semaphore(0)

    def hang(*_arguments: Any) -> ReMeResponse:
        began.release()
        gate.wait(20)
        return ReMeResponse(success=True, answer="")

    search: Callable[..., Any] = reme.grep
    monkeypatch.setattr(reme, "offload", hang)
    monkeypatch.setattr(
        reme, "grep", lambda folder, request: (hang if request.pattern == "slow" else search)(folder, request)
    )
    monkeypatch.setattr(reme, "WAIT_SECONDS", 0.2)
    with serve(tmp_path) as client, ThreadPoolExecutor(16) as pool:
        offload = {"messages": TURN, "store_dir": "x"}
        waiting = [pool.submit(client.post, "/context_offload", json=offload, headers=ALICE) for _ in range(4)]
        for _ in waiting:
            assert began.acquire(timeout=30)
        assert client.post("/grep", json={"pattern": "x"}, headers=ALICE).status_code == 200
        waiting.append(pool.submit(client.post, "/grep", json={"pattern": "slow"}, headers=ALICE))
        assert began.acquire(timeout=30)
        late = client.post("/grep", json={"pattern": "x"}, headers=ALICE)
        assert (late.status_code, late.headers["retry-after"], late.json()["success"]) == (503, "5", False)
        assert client.post("/grep", json={"pattern": "x"}, headers=BOB).status_code == 200
        gate.set()
        assert {one.result().status_code for one in waiting} == {200}
