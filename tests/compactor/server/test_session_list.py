"""The inspector's list of sessions: all of them, in each order, and found by name."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")

from fastapi.testclient import TestClient

from compactor import CompactedMessage, InMemoryStore, Memory, Post, Store, open_store
from compactor.server import ServerSettings, create_app


def list_pages(client: TestClient, **query: Any) -> list[list[dict[str, Any]]]:
    """Return the pages of the inspector's list, once all figures are computed."""
    while client.get("/inspect/sessions", params=query).json()["pending"]:
        pass
    pages, after = [], None
    while after is not None or not pages:
        page = client.get("/inspect/sessions", params=query | ({"after": after} if after is not None else {})).json()
        pages.append(page["sessions"])
        after = page["after"]
    return pages


@pytest.fixture
def listed() -> Iterator[tuple[TestClient, Store]]:
    """Provide a client of a server with five sessions: of 1 to 5 rounds, two with a summary, and one that fails."""
    store = InMemoryStore()
    for number in range(5):
        memory = Memory(f"session {number}", store=store)
        for _ in range(number + 1):
            memory.extend(
                [{"role": "user", "content": "Which hall? " * 30}, {"role": "assistant", "content": "Hall 7."}]
            )
        if number in (1, 3):
            usage = {"input_tokens": 100 * number, "output_tokens": 10}
            ids = [memory.conversation.rounds[0].id]
            model = "gpt-5-mini" if number == 1 else "nobody-knows-its-price"
            about: dict[str, Any] = {"model": model, "usage": usage, "end_round_id": ids[0]}
            made = CompactedMessage(start_index=1, end_index=1, summary="Halls.", **about)
            memory.journal("assistant").publish(made, base=0, round_ids=ids)
        if number == 2:
            rejected = {"usage": {"input_tokens": 50, "output_tokens": 5}, "model": "nobody-knows-its-price"}
            facts = {"error": "SummaryRejected", "failures": 3, **rejected}
            memory.journal("assistant").note("compaction.failed", facts)
    with TestClient(create_app(ServerSettings(store="memory://"), store=store), base_url="http://127.0.0.1") as client:
        yield client, store


def test_the_page_lists_prompts_within_the_budget() -> None:
    app = create_app(ServerSettings(store="memory://", budget=200), store=InMemoryStore())
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        said = [{"role": "user", "content": "Which halls?"}, {"role": "assistant", "content": "hall 7, " * 200}]
        assert client.post("/api/sessions/long/messages", json={"messages": said}).status_code == 201
        ((one,),) = list_pages(client)
    assert (one["tokens"], one["spent"], one["failures"]) == (200, 0, 0)


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("activity", []),  # all in the same minute, or nearly
        ("name", [0, 1, 2, 3, 4]),
        ("tokens", [4, 3, 2, 1, 0]),
        ("cost", [1, 3, 2]),  # in dollars, then in tokens, rejected answers included
        ("failing", [2]),
    ],
)
def test_the_page_lists_all_sessions_in_pages_of_each_order(
    listed: tuple[TestClient, Store], order: str, first: list[int]
) -> None:
    """No order ends before the last session, and none repeats one."""
    pages = list_pages(listed[0], order=order, limit=2)
    assert [len(page) for page in pages] == [2, 2, 1]
    names = [one["session"] for page in pages for one in page]
    assert sorted(names) == [f"session {number}" for number in range(5)]
    assert names[: len(first)] == [f"session {number}" for number in first]


@pytest.mark.slow
def test_the_page_lists_nothing_where_there_is_no_session() -> None:
    app = create_app(ServerSettings(store="memory://"), store=InMemoryStore())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert [list_pages(client, order=order) for order in ("activity", "tokens")] == [[[]], [[]]]


def test_the_page_searches_all_sessions(listed: tuple[TestClient, Store]) -> None:
    client, _ = listed
    for order in ("activity", "name", "tokens"):
        assert [one["session"] for page in list_pages(client, search="ION 3", order=order) for one in page] == [
            "session 3"
        ]
    assert list_pages(client, search="nothing like it") == [[]]


def test_the_page_lists_what_changed_and_nothing_that_was_deleted(listed: tuple[TestClient, Store]) -> None:
    client, _ = listed
    assert list_pages(client, order="tokens")[0][0]["session"] == "session 4"
    said = [{"role": "user", "content": "Which halls?"}, {"role": "assistant", "content": "hall 7, " * 200}]
    client.post("/api/sessions/session 0/messages", json={"messages": said})
    assert client.delete("/api/sessions/session 4").status_code == 204
    names = [one["session"] for page in list_pages(client, order="tokens") for one in page]
    assert names == ["session 0", "session 3", "session 2", "session 1"]


def test_a_session_that_grows_within_the_minute_is_listed_as_it_is(
    listed: tuple[TestClient, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays behind those of the same minute that come before it by name, in pages that have not changed."""
    monkeypatch.setattr("compactor.server.session_list.ROWS_READ", 2)
    client, _ = listed
    before = {one["session"]: one["tokens"] for page in list_pages(client, order="tokens") for one in page}
    for name in ("session 2", "session 4"):  # that of one page, and that of the last
        said = [{"role": "user", "content": "Which halls?"}, {"role": "assistant", "content": "hall 7, " * 200}]
        client.post(f"/api/sessions/{name}/messages", json={"messages": said})
        after = {one["session"]: one["tokens"] for page in list_pages(client, order="tokens") for one in page}
        assert {one for one in after if after[one] != before[one]} == {name}
        before = after


@pytest.mark.parametrize(
    "after", ["elsewhere", f'[{"1" * 400}, 2, 3, "a"]', "[" * 20_000, "[1, 2, 3]", '[1, 2, "b", []]']
)
def test_a_cursor_of_another_order_is_refused(listed: tuple[TestClient, Store], after: str) -> None:
    client, _ = listed
    for order in ("tokens", "activity"):
        answer = client.get("/inspect/sessions", params={"order": order, "after": after})
        assert (answer.status_code, answer.json()["code"]) == (422, "ConfigError")


def test_a_damaged_session_does_not_hide_the_others(tmp_path: Path) -> None:
    """It is listed as failing."""
    path = tmp_path / "chat.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        for name in ("well", "damaged"):
            Memory(name, store=store).extend([{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "UPDATE compactor_entries SET body = 'broken' WHERE session ="
            " (SELECT id FROM compactor_sessions WHERE name = 'damaged')"
        )
    with TestClient(create_app(ServerSettings(store=f"sqlite:///{path}")), base_url="http://127.0.0.1") as client:
        (page,) = list_pages(client, order="failing")
    assert [(one["session"], one["failures"]) for one in page] == [("damaged", 1), ("well", 0)]


def test_the_page_opens_with_an_agent_that_has_a_compactor() -> None:
    """Not with the first by name: tools and other agents are roles, too."""
    store = InMemoryStore()
    memory = Memory("team", store=store)
    asked = memory.create_round("Who is on duty?")
    memory.add_post(asked, Post(send_from="Archive", send_to="Writer", message="Ann is."))
    app = create_app(ServerSettings(store="memory://", roles=("Writer",)), store=store)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/inspect/session", params={"session": "team"}).json()["roles"][0] == "Writer"
