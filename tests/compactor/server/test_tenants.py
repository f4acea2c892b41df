"""A tenant reaches nothing of another's: every route of the app is tried with another tenant's ids."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")

from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import SecretStr
from starlette.routing import BaseRoute, Mount, Route

from compactor import CompactorConfig, InMemoryStore
from compactor.server import ServerSettings, create_app
from memory import Memory, open_store
from memory.stores import join_name
from memory.transfer.archive import archive_sessions, list_archive, restore_session

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"
#: A word that no random identifier can contain.
WORD = "quicksilver"
SECRET = f"The launch code is {WORD}."
#: Values for what a route takes: the session of the other tenant, by each name that it might have.
NAMES = ("theirs", "alice\x1ftheirs", "alice/theirs", "../alice/theirs")
#: A body that names the session in every way that some route reads.
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "launch code?"}],
    "reference": "r1.p0",
    "name": "context_reload",
    "arguments": {"ref": "r1.p0"},
    "role": "assistant",
    "input_tokens": 5,
    "model": "m",
    "pattern": "launch",
    "path": "/",
    "absolute_path": "/",
}
_WRITES = {"POST", "PUT", "PATCH", "DELETE"}


def routes(found: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield method and path of each route, those of included routers and mounted apps too."""
    for route in found:
        if isinstance(route, Mount):
            yield from routes(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            any_method = ("GET", "POST") if route.path.startswith("/v1/") else ()  # MCP has tests of its own
            methods = sorted(route.methods or any_method)
            yield from ((method, prefix + route.path) for method in methods)
        else:  # FastAPI may keep an included router as one route
            inner = getattr(route, "original_router", None)
            assert inner is not None, f"{route!r} is of a kind that this test cannot try"
            yield from routes(
                inner.routes, prefix + str(getattr(getattr(route, "include_context", None), "prefix", ""))
            )


@pytest.fixture
def app(tmp_path: Any) -> FastAPI:
    tokens = {"alice": SecretStr(ALICE), "bob": SecretStr(BOB)}
    settings = ServerSettings(
        store="memory://", tokens=tokens, rate=None, store_dir=tmp_path, config=CompactorConfig(threshold=1_000)
    )
    return create_app(settings, store=InMemoryStore())


def test_no_route_reaches_another_tenants_session(app: FastAPI) -> None:
    """Not one word of it is read, and not one entry is written, whatever the route and however the session is named."""
    store = app.state.compactor._store
    with TestClient(app, "http://127.0.0.1") as client:
        alice, bob = ({"authorization": f"Bearer {token}", "x-compactor-token": token} for token in (ALICE, BOB))
        said = {"messages": [{"role": "user", "content": SECRET}, {"role": "assistant", "content": SECRET}]}
        assert client.post("/api/sessions/theirs/messages", json=said, headers=alice).status_code == 201
        full = "alice\x1ftheirs"
        before = [entry.id for entry in store.read(full)]
        tried = [
            (method, path) for method, path in routes(app.routes) if not path.endswith("/events") and path != "/login"
        ]
        assert {path for _, path in tried} >= {path for path in app.openapi()["paths"] if "/events" not in path}
        assert len(tried) > 20
        for method, path in tried:
            for name in NAMES:
                url = re.sub(r"\{[^}]*\}", "r1.p0", re.sub(r"\{(session|chat)[^}]*\}", quote(name, safe=""), path))
                named = {"session": name, "session_id": name, "chat_id": name, "id": name, "chat": name}
                ids = {"x-session-id": name} if name.isprintable() else {}
                bodies = [BODY, BODY | named, BODY | {"metadata": {"session_id": name}}]
                known = _fields(app, method, path)
                for body in bodies if method in _WRITES else [None]:
                    options: dict[str, Any] = {}
                    if body is not None:
                        options = {"json": {key: one for key, one in body.items() if known is None or key in known}}
                    answer = client.request(
                        method, url, headers=bob | ids, params={"query": "launch", **named}, **options
                    )
                    assert SECRET not in answer.text, (method, url)
                    assert WORD not in answer.text, (method, url)
                    assert answer.status_code != 500, (method, url)
        assert [entry.id for entry in store.read(full)] == before
        assert client.get("/api/sessions/theirs/references/r1.p0", headers=alice).json()["text"].endswith(SECRET)
        assert client.delete("/api/sessions/theirs", headers=alice).status_code == 204


def _fields(app: FastAPI, method: str, path: str) -> set[str] | None:
    """Return the fields that a route's description lists; None: any."""
    described = app.openapi()
    operation = described["paths"].get(path, {}).get(method.lower(), {})
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return set(described["components"]["schemas"][name]["properties"]) if name else None


def test_events_of_another_tenant_are_not_heard(app: FastAPI) -> None:
    """The stream's tenant is the asker's, whatever session it names; the hub's own tests say what that means."""
    heard: list[tuple[str, str | None]] = []

    async def listen(tenant: str, session: str | None = None) -> Any:
        heard.append((tenant, session))
        yield b": connected\n\n"

    with TestClient(app, "http://127.0.0.1", headers={"authorization": f"Bearer {BOB}"}) as client:
        app.state.compactor.hub.listen = listen
        paths = {path for _, path in routes(app.routes) if path.endswith("/events")}
        for path in paths:
            assert client.get(path.replace("{session_id}", "theirs")).status_code == 200
    assert len(heard) == len(paths) >= 2
    assert {tenant for tenant, _ in heard} == {"bob"}


def test_nothing_of_a_tenant_is_left_where_the_server_knows_the_archive(tmp_path: Path) -> None:
    """Not in the database nor in an object, wherever each of its sessions is; another tenant keeps its own."""
    database, where = tmp_path / "chat.db", tmp_path / "archive"
    settings = ServerSettings(
        store=f"sqlite:///{database}",
        archive=str(where),
        tokens={"alice": SecretStr(ALICE), "bob": SecretStr(BOB)},
        store_dir=tmp_path / "files",
        config=CompactorConfig(threshold=1_000),
    )
    sessions = [(tenant, name) for tenant in ("alice", "bob") for name in ("archived", "in both", "here")]
    with closing(open_store(settings.store)) as store:
        for tenant, name in sessions:
            memory = Memory(join_name(tenant, name), store=store)
            memory.append({"role": "user", "content": f"The code of {tenant} is {tenant}-4711."})
        later, away = datetime.now(UTC) + timedelta(days=2), [join_name(*one) for one in sessions if one[1] != "here"]
        assert archive_sessions(store, where, timedelta(days=1), now=later, sessions=away).archived == sorted(away)
        for tenant in ("alice", "bob"):
            restore_session(store, where, join_name(tenant, "in both"), keep=True)
    with TestClient(create_app(settings), "http://127.0.0.1", headers={"authorization": f"Bearer {ALICE}"}) as client:
        for tenant, name in sessions:
            assert client.delete(f"/api/sessions/{name}").status_code == (204 if tenant == "alice" else 404)
    assert {one.tenant for one in list_archive(where)} == {"bob"}
    left = b"".join(file.read_bytes() for file in tmp_path.glob("chat.db*"))
    left += b"".join(gzip.decompress(file.read_bytes()) for file in where.rglob("*.gz*"))
    assert (b"alice-4711" in left, b"bob-4711" in left) == (False, True)


def test_a_session_is_not_erased_while_it_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is told to try again; then it is erased for good."""
    store, where = InMemoryStore(), tmp_path / "archive"
    Memory("alice\x1fs", store=store).append({"role": "user", "content": SECRET})
    archive_sessions(store, where, timedelta(days=1), now=datetime.now(UTC) + timedelta(days=2))
    settings = ServerSettings(archive=str(where), store_dir=tmp_path, tokens={"alice": SecretStr(ALICE)})
    append, answers = InMemoryStore.append, []
    with TestClient(
        create_app(settings, store=store), "http://127.0.0.1", headers={"authorization": f"Bearer {ALICE}"}
    ) as client:

        def late(*call: Any) -> int:
            answers.append(client.delete("/api/sessions/s"))
            return append(*call)

        with monkeypatch.context() as patched:
            patched.setattr(InMemoryStore, "append", late)
            restore_session(store, where, "alice\x1fs", keep=True)
        (refused,) = answers
        assert (refused.status_code, refused.json()["code"]) == (409, "ArchiveBusy")
        assert "the session 's'; nothing was changed: try again in" in refused.json()["detail"]
        assert client.get("/api/sessions/s").status_code == 200
        assert client.delete("/api/sessions/s").status_code == 204
        assert client.get("/api/sessions/s").status_code == 404
    assert (list(store.sessions()), list(list_archive(where))) == ([], [])
