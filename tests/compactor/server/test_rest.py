"""REST under /api: what a host in any language does with sessions."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")

from fastapi.testclient import TestClient
from pydantic import SecretStr

from compactor import CompactorConfig, InMemoryStore, Limits, StoreUnreachable
from compactor.server import ServerSettings, create_app
from compactor.server.events import MAX_QUEUED, WAKE_BATCH, EventHub
from memory import Entry, Memory, ProviderFailed
from memory.stores import join_name

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"


@pytest.fixture
def store() -> InMemoryStore:
    return InMemoryStore()


@pytest.fixture
def client(store: InMemoryStore) -> Iterator[TestClient]:
    tokens = {"alice": SecretStr(ALICE), "bob": SecretStr(BOB)}
    config = CompactorConfig(threshold=1_000, retain_recent=1)
    app = create_app(ServerSettings(store="memory://", tokens=tokens, rate=None, config=config), store=store)
    with TestClient(app, "http://127.0.0.1", headers={"authorization": f"Bearer {ALICE}"}) as client:
        yield client


def talk(client: TestClient, session: str, rounds: int) -> None:
    messages = []
    for number in range(1, rounds + 1):
        messages.append({"role": "user", "content": f"Question {number}: what is in archive A-{number}? " * 5})
        messages.append({"role": "assistant", "content": f"Archive A-{number} holds {number} invoices. " * 20})
    answer = client.post(f"/api/sessions/{session}/messages", json={"messages": messages})
    assert answer.status_code == 201, answer.text


def test_a_session_from_its_creation_to_its_end(client: TestClient) -> None:
    created = client.post("/api/sessions", json={"id": "s", "messages": [{"role": "system", "content": "Be brief."}]})
    assert (created.status_code, created.json()["id"]) == (201, "s")
    assert client.post("/api/sessions", json={"id": "s"}).status_code == 409
    assert len(client.post("/api/sessions", json={}).json()["id"]) == 32
    talk(client, "s", 3)
    assert client.get("/api/sessions/s").json()["rounds"] == 3
    page = client.get("/api/sessions/s/rounds", params={"start": 2, "limit": 1}).json()
    assert page["total"] == 3
    assert [one["number"] for one in page["rounds"]] == [2]
    assert page["rounds"][0]["messages"][0]["content"].startswith("Question 2")
    assert client.get("/api/sessions/s/references/r3.p0").json()["text"].startswith("Question 3")
    assert client.delete("/api/sessions/s").status_code == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/rounds"), ("POST", "/compose")):
        answer = client.request(method, f"/api/sessions/s{path}", json={} if method == "POST" else None)
        assert (answer.status_code, answer.json()["status"]) == (404, 404)


def test_a_prompt_fits_its_budget_and_names_its_sources(client: TestClient) -> None:
    talk(client, "s", 30)
    prompt = client.post("/api/sessions/s/compose", json={"budget": 1_000, "system": "Be brief."}).json()
    assert prompt["tokens"] <= 1_000 < prompt["tokens_before"]
    assert len(prompt["messages"]) == len(prompt["sources"])
    assert prompt["sources"][-1] == {"ref": "r30.p1", "kind": "original"}
    small = client.post("/api/sessions/s/compose", json={"budget": 10})
    assert (small.status_code, small.json()["code"]) == (409, "BudgetExceeded")
    assert "raise the budget" in small.json()["detail"]


def test_a_session_that_another_process_has_deleted_begins_anew(client: TestClient, store: InMemoryStore) -> None:
    tokens = {"alice": SecretStr(ALICE)}
    app = create_app(ServerSettings(store="memory://", tokens=tokens), store=store)
    begin = {"messages": [{"role": "user", "content": "Hello"}]}
    with TestClient(app, "http://127.0.0.1", headers={"authorization": f"Bearer {ALICE}"}) as other:
        for method, path, body, status in (
            ("POST", "/messages", begin, 201),
            ("PUT", "/messages", begin, 200),
            ("GET", "/rounds", None, 404),
            ("POST", "/compose", {}, 404),
        ):
            talk(client, "s", 2)
            assert client.get("/api/sessions/s").json()["rounds"] == 2
            assert other.delete("/api/sessions/s").status_code == 204
            answer = client.request(method, f"/api/sessions/s{path}", json=body)
            assert answer.status_code == status, (method, path, answer.text)
            client.delete("/api/sessions/s")
        talk(client, "s", 2)
        other.delete("/api/sessions/s")
        assert client.post("/api/sessions", json={"id": "s"} | begin).json()["rounds"] == 1


@pytest.mark.parametrize("begun", [False, True])
def test_the_inspector_tells_what_became_of_a_deleted_session(
    client: TestClient, store: InMemoryStore, begun: bool
) -> None:
    """Deleted by another process: unknown at once, or the one that has begun under its name since."""
    talk(client, "s", 2)
    view = {"session": "s", "role": "assistant"}
    assert client.get("/inspect/role", params=view).json()["rounds"] == 2
    store.purge(join_name("alice", "s"))
    if begun:
        Memory(join_name("alice", "s"), store=store).append({"role": "user", "content": "Hello"})
    answer = client.get("/inspect/role", params=view)
    if begun:
        assert (answer.status_code, answer.json()["rounds"]) == (200, 1)
    else:
        assert (answer.status_code, answer.json()["detail"][:32]) == (404, "there is no session of that name")


def test_a_session_that_is_deleted_during_a_request_is_unknown() -> None:
    class DeletedInExport(InMemoryStore):
        def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
            if session == "exported" and exporting.is_set():
                exporting.clear()  # a purge reads, too
                self.purge(session)
            return super().read(session, after, limit)

    def delete(*_request: Any) -> str:
        deleting.append(threading.Thread(target=client.delete, args=["/api/sessions/s"]))
        deleting[0].start()
        deleted.wait(30)  # ends as the server is closed, at the latest
        return ""

    exporting, deleted, deleting = threading.Event(), threading.Event(), list[threading.Thread]()
    config = CompactorConfig(threshold=1_000, retain_recent=1)
    app = create_app(ServerSettings(store="memory://", config=config), store=DeletedInExport(), summarizer=delete)
    with TestClient(app, "http://127.0.0.1") as client:
        talk(client, "s", 5)
        talk(client, "exported", 5)
        exporting.set()
        assert client.get("/api/sessions/exported/export").status_code == 404
        assert client.post("/api/sessions/s/compact", json={}).status_code == 404
        deleted.set()
        deleting[0].join(30)


def test_a_summary_comes_and_goes(client: TestClient) -> None:
    """Compact, history and revert are those of the library."""
    talk(client, "s", 10)
    compaction = client.post("/api/sessions/s/compact", json={}).json()["compaction"]
    assert compaction["last_covered_round"] == 9
    (record,) = client.get("/api/sessions/s/history").json()["records"][-1:]
    assert (record["happened"], record["current"], record["summary"]) == ("published", True, compaction["summary"])
    assert client.get("/api/sessions/s").json()["roles"]["assistant"]["covered_rounds"] == 9
    assert client.post("/api/sessions/s/revert", json={"generation": 7}).json()["code"] == "StaleCompaction"
    assert client.post("/api/sessions/s/revert", json={}).json() == {"compaction": None}
    assert client.post("/api/sessions/s/compact", json={"role": "nobody"}).status_code == 409


def test_pins_and_redactions(client: TestClient) -> None:
    talk(client, "s", 2)
    assert client.post("/api/sessions/s/pins", json={"reference": "r1.p0"}).status_code == 204
    assert client.get("/api/sessions/s/pins").json() == {"references": ["r1.p0"]}
    assert client.delete("/api/sessions/s/pins/r1.p0").status_code == 204
    assert client.get("/api/sessions/s/pins").json() == {"references": []}
    assert client.post("/api/sessions/s/redact", json={"reference": "r1.p1"}).status_code == 204
    assert "invoices" not in client.get("/api/sessions/s/references/r1.p1").text
    missing = client.post("/api/sessions/s/pins", json={"reference": "r9.p9"})
    assert (missing.status_code, missing.json()["code"]) == (409, "UnknownReference")
    assert client.get("/api/sessions/s/references/r9.p9").status_code == 404  # here the path leads nowhere


def test_what_was_left_out_is_found_again(client: TestClient) -> None:
    talk(client, "s", 5)
    (hit, *_) = client.get("/api/sessions/s/search", params={"query": "A-4"}).json()["hits"]
    assert hit["reference"].startswith("r4.p")
    names = [one["function"]["name"] for one in client.get("/api/tools").json()["tools"]]
    call = {"name": names[0], "arguments": {"ref": "r2.p0"}}
    assert "Question 2" in client.post("/api/sessions/s/recall", json=call).json()["text"]


def test_a_host_that_keeps_its_own_history(client: TestClient) -> None:
    """``PUT`` writes only what is new, and goes back where the history changed."""
    first, second = {"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}
    put = client.put("/api/sessions/s/messages", json={"messages": [first, second]}).json()
    assert (put["appended"], put["references"]) == (2, ["r1.p0", "r1.p1"])
    changed = [first, {"role": "assistant", "content": "Three"}]
    assert client.put("/api/sessions/s/messages", json={"messages": changed}).json()["undone"] == 1
    refused = client.put("/api/sessions/s/messages", json={"messages": [second], "on_divergence": "raise"})
    assert (refused.status_code, refused.json()["code"]) == (409, "HistoryDiverged")
    assert client.post("/api/sessions/s/rewind", json={"reference": "r0"}).json()["references"]
    assert client.post("/api/sessions/s/usage", json={"input_tokens": 12}).status_code == 204


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_result_without_its_call_is_kept_and_prompts_stay_valid(client: TestClient, method: str) -> None:
    """A host may have lost the call, or given it another id: the log keeps what it sent, and no provider refuses the
    prompt."""
    asked = {"role": "user", "content": "Where is order 17?"}
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    history = [asked, {"role": "assistant", "content": None, "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c2", "content": "In the depot."}
    for session, messages in (("lost", [asked, result]), ("renamed", [*history, result])):
        assert client.request(method, f"/api/sessions/{session}/messages", json={"messages": messages}).is_success
        page = client.get(f"/api/sessions/{session}/rounds").json()
        assert page["rounds"][0]["messages"][-1] == result
        prompt = client.post(f"/api/sessions/{session}/compose", json={"budget": 1_000}).json()["messages"]
        assert (prompt[-1]["role"], prompt[-1]["content"].splitlines()[-1]) == ("user", "In the depot.")
        calls = [one["id"] for message in prompt for one in message.get("tool_calls", ())]
        assert calls == [message["tool_call_id"] for message in prompt if message["role"] == "tool"]
    known = [*history, result | {"tool_call_id": "c1"}]
    assert client.request(method, "/api/sessions/known/messages", json={"messages": known}).is_success
    assert client.post("/api/sessions/known/compose", json={"budget": 1_000}).json()["messages"] == known


def test_a_session_moves_by_export_and_import(client: TestClient, store: InMemoryStore) -> None:
    talk(client, "s", 3)
    exported = client.get("/api/sessions/s/export")
    assert json.loads(exported.text.splitlines()[0])["session"] == "s"
    imported = client.post("/api/sessions/t/import", content=exported.content)
    assert (imported.status_code, imported.json()["id"]) == (201, "t")
    assert client.get("/api/sessions/t/rounds").json() == client.get("/api/sessions/s/rounds").json()
    assert client.post("/api/sessions/t/import", content=exported.content).status_code == 409
    for body in (b"", b"\xff", b"{}", b"[1]\n", exported.content[:-200]):
        assert client.post("/api/sessions/u/import", content=body).status_code == 422
    assert client.get("/api/sessions/none/export").status_code == 404
    assert sorted(store.sessions()) == [join_name("alice", "s"), join_name("alice", "t")]


def test_an_import_may_not_name_files_to_delete(client: TestClient, store: InMemoryStore, tmp_path: Any) -> None:
    """A purge deletes the files that a session's log names: a made-up log would delete those of others."""
    talk(client, "s", 1)
    facts = {"session": join_name("alice", "t"), "folder": str(tmp_path)}
    with client.app.state.compactor.sessions.open(join_name("alice", "s")) as session:  # type: ignore[attr-defined]
        session.memory.journal("").note("files.kept", facts)
    exported = client.get("/api/sessions/s/export").content
    assert client.post("/api/sessions/t/import", content=exported).status_code == 422
    assert client.post("/api/sessions/u/import", content=exported).status_code == 201


@pytest.mark.parametrize("order", ["name", "activity"])
def test_sessions_are_listed_by_page(client: TestClient, order: str) -> None:
    for number in range(5):
        client.post("/api/sessions", json={"id": f"s{number}"})
    seen, after = [], None
    while True:
        page = client.get(
            "/api/sessions", params={"limit": 2, "order": order} | ({"after": after} if after else {})
        ).json()
        seen += [one["id"] for one in page["sessions"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(seen) == [f"s{number}" for number in range(5)]
    others = client.get("/api/sessions", headers={"authorization": f"Bearer {BOB}"}).json()
    assert others == {"sessions": [], "next": None}


WRONG_BODIES = [
    '{"messages": [{"role": "user", "content": "\\ud800"}]}',
    '{"messages": [{"role": "user", "content": "x", "n": NaN}]}',
    '{"messages": "secret words"}',
    '{"messages": [], "extra": "secret words"}',
    "{",
    "",
    '{"messages": [{"role": "secret words", "content": 5}]}',
]


@pytest.mark.parametrize("number", [True, "5", -1, 5.5])
def test_a_number_is_a_number(client: TestClient, number: object) -> None:
    """Neither true nor a text, which pydantic would take for one; 5.0 is a whole number in JSON."""
    talk(client, "s", 1)
    routes = {"usage": "input_tokens", "compose": "budget", "revert": "generation"}
    for route, field in routes.items():
        assert client.post(f"/api/sessions/s/{route}", json={field: number}).status_code == 422, route
    assert client.post("/api/sessions/s/usage", json={"input_tokens": 5.0}).status_code == 204
    assert client.post("/grep", json={"pattern": "x", "limit": number}).status_code == 422


def test_a_wrong_method_is_told_all_right_ones(client: TestClient) -> None:
    """Also where several routes share a path, and the router knows those of one."""
    for path, allowed in (("", "GET, POST"), ("/team%2F7", "DELETE, GET"), ("/s/messages", "POST, PUT")):
        with mock.patch.object(warnings, "catch_warnings", pytest.fail):  # the process's, and the description's
            answer = client.request("PATCH", f"/api/sessions{path}")
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_a_cursor_of_another_order_leads_nowhere(client: TestClient) -> None:
    for cursor in ({"after": "x", "order": "activity"}, {"after": "\x07"}):
        assert client.get("/api/sessions", params=cursor).status_code == 404


def test_a_wrong_body_is_refused_without_its_words(client: TestClient) -> None:
    for body in WRONG_BODIES:
        headers = {"content-type": "application/json"}
        answer = client.post("/api/sessions/s/messages", content=body, headers=headers)
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert "secret words" not in answer.text
        assert "Traceback" not in answer.text


def test_a_store_that_fails_is_told_as_such(
    client: TestClient, store: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client learns what to do, and when; readiness says so, too, while the process is alive."""

    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise StoreUnreachable(f"session {join_name('alice', 's')!r}: no answer from db7.internal")

    monkeypatch.setattr(store, "append", fail)
    answer = client.post("/api/sessions/s/messages", json={"messages": [{"role": "user", "content": "x"}]})
    assert (answer.status_code, answer.json()["code"]) == (503, "StoreUnreachable")
    assert "try again" in answer.json()["detail"]
    assert "db7" not in answer.text
    assert answer.headers["retry-after"] == "1"
    monkeypatch.setattr(store, "read", fail)
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def test_the_page_tells_what_the_server_does_to_those_who_may_know(client: TestClient) -> None:
    """A tenant among others does not see what all of them do."""
    assert client.get("/inspect/server").json() is None
    limits = Limits(max_concurrency=3, max_spend_per_hour=9_000)
    app = create_app(ServerSettings(store="memory://"), store=InMemoryStore(), limits=limits)
    with TestClient(app, base_url="http://127.0.0.1:8765") as alone:
        figures = alone.get("/inspect/server").json()
    assert figures == {
        "open": 0,
        "running": 0,
        "calls": 0,
        "max_calls": 3,
        "queued": 0,
        "spent": 0.0,
        "max_spent": 9_000.0,
        "unit": "tokens",
    }


def test_names_cannot_reach_beyond_the_tenant(client: TestClient) -> None:
    talk(client, "s", 1)
    for name in ("alice%1Fs", "%1Fs", "..%2Fs", "a%00b", "%0As", "x" * 201):
        answer = client.get(f"/api/sessions/{name}", headers={"authorization": f"Bearer {BOB}"})
        assert answer.status_code in (404, 422)


def run_with_hub(use: Any, **options: Any) -> None:
    async def run() -> None:
        hub = EventHub(**options)
        hub.start()
        await asyncio.wait_for(use(hub), 30)

    asyncio.run(run())


def event(session: str, error: str = "x") -> ProviderFailed:
    return ProviderFailed(session=session, role="assistant", error=error)


def test_events_reach_the_clients_of_their_tenant_alone() -> None:
    async def use(hub: EventHub) -> None:
        own, one, other = hub.listen("alice"), hub.listen("alice", "s"), hub.listen("bob")
        for stream in (own, one, other):
            assert (await anext(stream)).startswith(b":")
        thread = threading.Thread(target=lambda: [hub.publish(event(join_name("alice", name))) for name in ("t", "s")])
        thread.start()
        assert b'"session": "t"' in await anext(own)
        text = (await anext(one)).decode()
        assert text.startswith("event: memory.provider_failed\ndata: {")
        assert json.loads(text.partition("data: ")[2])["session"] == "s"
        hub.publish(event("plain"))
        hub.publish(event(join_name("bob", "b")))
        assert b'"session": "b"' in await anext(other)
        thread.join()
        hub.close()
        assert [one async for one in other] == []

    run_with_hub(use)


def test_a_slow_reader_loses_events_and_is_told() -> None:
    async def use(hub: EventHub) -> None:
        stream = hub.listen("")
        await anext(stream)
        for number in range(MAX_QUEUED + 10):
            hub.publish(event("s", f"n{number}"))
        await asyncio.sleep(0)
        assert await anext(stream) == b'event: lost\ndata: {"lost": 10}\n\n'
        assert b'"n10"' in await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert not hub._clients

    run_with_hub(use)


def test_many_clients_are_told_a_few_at_a_time() -> None:
    """So that nobody's request waits for a thousand pages that look on; all get each event in the end."""

    async def use(hub: EventHub) -> None:
        streams = [hub.listen("") for _ in range(3 * WAKE_BATCH)]
        for stream in streams:
            await anext(stream)
        told = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)  # all wait
        hub._deliver(event("s", "first"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sum(one.done() for one in told) <= WAKE_BATCH
        hub._deliver(event("s", "second"))
        texts = [await one for one in told]
        assert all(b'"first"' in text for text in texts)
        assert b'"second"' in texts[-1]
        hub.close()

    run_with_hub(use)


def test_a_silent_stream_shows_that_it_is_alive() -> None:
    async def use(hub: EventHub) -> None:
        stream = hub.listen("")
        await anext(stream)
        assert await anext(stream) == b": alive\n\n"

    run_with_hub(use, heartbeat=0.001)


@pytest.mark.slow
def test_a_session_of_any_name_can_be_reached(client: TestClient, store: InMemoryStore) -> None:
    """The library makes such names; a slash in one is sent as %2F, and leads to no other route."""
    for name in ("team/7", ".dot", "../team", "a%2Fb", "/", "a//b", "x/messages", "a b?c#d", "Grüße"):
        reach(client, store, name)
        for made in (name, f"{name}/copy"):
            assert client.delete(f"/api/sessions/{quote(made, safe='')}").status_code == 204


def reach(client: TestClient, store: InMemoryStore, name: str) -> None:
    url = f"/api/sessions/{quote(name, safe='')}"
    said = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}]}
    assert client.post(f"{url}/messages", json=said).status_code == 201
    assert list(store.sessions()) == [join_name("alice", name)]
    assert client.get(url).json()["id"] == name
    assert client.get(f"{url}/references/r1%2Ep0").json()["text"] == "Hello"
    assert client.post(f"{url}/pins", json={"reference": "r1.p0"}).status_code == 204
    assert client.delete(f"{url}/pins/r1.p0").status_code == 204
    lines = client.get(f"{url}/export").content
    assert client.post(f"{url}%2Fcopy/import", content=lines).json()["id"] == f"{name}/copy"
    assert [one["id"] for one in client.get("/api/sessions").json()["sessions"]] == sorted([name, f"{name}/copy"])
    assert client.delete(url).status_code == 204
    assert client.post("/api/sessions", json={"id": name}).status_code == 201


def test_names_that_no_session_has_are_refused(client: TestClient) -> None:
    for name in ("%00", "a%1Fb", "alice%1Fs", "%C2%85", "x" * 201):
        assert client.get(f"/api/sessions/{name}").status_code == 422
