"""PgBouncer in transaction mode: a connection is another one on the server with each transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from executors import SOON
from poolers import bouncer
from postgres import Postgres as Server
from scene import CONFIG, PRICES, ROLE, add_round
from sql_stores import on, opened, same_as_resumed, turn
from sqlalchemy import text
from test_store_contract import Complete

from benchmarks.two_writers import run
from compactor import ContextCompactor, Settings, compose
from compactor.workers import run_due
from memory import Memory, StoreBusy, StoreError, StoreUnreachable, open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

#: Connections of PgBouncer to the server. Fewer than clients, and the next one is another: so all that stays with a
#: connection is found by somebody else.
POOL = 3


@pytest.fixture(scope="module")
def pooler_port(postgres_server: Server) -> Iterator[int]:
    """The port of one PgBouncer for all of these tests; it has a pool of its own for each database."""
    with bouncer(postgres_server, pool_size=POOL) as port:
        yield port


@pytest.fixture
def pooled_url(postgres_url: str, postgres_server: Server, pooler_port: int) -> str:
    """The URL of a new and empty database behind a PgBouncer."""
    return postgres_url.replace(str(postgres_server.port), str(pooler_port))


class TestBehindPgBouncer(Complete):
    """What a store on PostgreSQL can do, but for notices; what is slow by its size is not slower for a pooler."""

    test_a_long_log_is_read_in_order = test_many_marks_are_cleared_at_once = test_many_rounds_are_read_in_order = None

    @pytest.fixture(autouse=True)
    def _place(self, emptied_postgres_url: str, postgres_server: Server, pooler_port: int) -> Iterator[None]:
        self.url = emptied_postgres_url.replace(str(postgres_server.port), str(pooler_port))
        yield
        self.teardown_method()  # before the database is emptied


def test_two_processes_write_to_one_session_and_compact_it(pooled_url: str, tmp_path: Path) -> None:
    """All is there, once, in an order both see; nothing is summarised twice; and a third process follows."""
    result = run(pooled_url, 60, tmp_path, followers=1)
    assert result.faults == []
    assert (len(result.found.rounds), len(result.found.posts)) == (60, 180)
    assert result.found.generation > 0


def test_many_make_the_tables_at_once(pooled_url: str) -> None:
    """The lock for it is the transaction's."""
    failed: list[Exception] = []

    def make() -> None:
        try:
            open_store(pooled_url).close()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert failed == []


def test_nothing_stays_with_a_connection_that_others_use_too(pooled_url: str, postgres_url: str) -> None:
    """Neither prepared statements, whose names another client may have, nor settings, locks or channels."""
    with opened(pooled_url) as store:
        memories = [Memory(str(number), store=store) for number in range(2 * POOL)]
        store.listen("s", lambda: None)
        threads = [
            threading.Thread(target=lambda memory=memory: [turn(memory, str(number)) for number in range(20)])
            for memory in memories
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert [memory.snapshot.total for memory in memories] == [20] * len(memories)
        for _ in range(2 * POOL):
            left = on(
                store,
                """SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
                    (SELECT count(*) FROM pg_prepared_statements),
                    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
                    (SELECT count(*) FROM pg_listening_channels())""",
            )
            assert left == [("0", "0", 0, 0, 0)]
    with opened(postgres_url) as store:  # without PgBouncer, all is as ever
        assert on(store, "SELECT current_setting('lock_timeout')") == [("5s",)]
        assert "notifying" in store.capabilities


def test_the_role_or_the_database_says_how_long_a_lock_is_waited_for(
    pooled_url: str, postgres_url: str, postgres_server: Server
) -> None:
    """As a setting of each connection would stay with it."""
    name = postgres_url.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} SET lock_timeout = '100ms'")
    with opened(pooled_url) as store, opened(postgres_url) as other:
        memory = Memory("s", store=store)
        turn(memory, "1")

        def hold(connection: Any) -> None:
            connection.execute(text("LOCK TABLE compactor_entries IN SHARE ROW EXCLUSIVE MODE"))
            with pytest.raises(StoreBusy, match="nothing was written: try again"):
                turn(memory, "2")

        other._connections.change(hold)
        turn(memory, "2")
        same_as_resumed(memory, store)


def test_options_that_pgbouncer_refuses_are_a_mistake_in_the_url(pooled_url: str) -> None:
    """No outage: waiting does not mend it."""
    with pytest.raises(StoreError, match=r"unsupported startup parameter.*check the URL's") as raised:
        open_store(f"{pooled_url}?options=-cwork_mem=1MB")
    assert not isinstance(raised.value, StoreUnreachable)


class Nobody:
    def due(self, session: str, role: str, not_before: object = None) -> None: ...


def test_a_host_sees_what_a_worker_published_with_its_next_prompt(pooled_url: str, postgres_url: str) -> None:
    """There are no notices, so `compose` looks; hosts that are connected without PgBouncer are told."""
    with opened(pooled_url) as host, opened(pooled_url) as worker, opened(postgres_url) as direct:
        assert "notifying" not in host.capabilities
        memory = Memory("s", store=host)
        for _ in range(10):
            add_round(memory)
        told = threading.Event()
        direct.listen("s", told.set)
        assert told.wait(SOON)
        told.clear()
        with ContextCompactor.for_role(memory, ROLE, CONFIG, dispatcher=Nobody()):
            assert PRICES not in str(compose(memory, ROLE, budget=4_000))
            assert run_due(worker, "s", ROLE, settings=Settings(CONFIG), summarizer=lambda _: PRICES).published
            assert PRICES in str(compose(memory, ROLE, budget=4_000))
        assert told.wait(SOON)
        same_as_resumed(memory, host)


def test_the_server_may_be_restarted_behind_it(own_postgres: Server) -> None:
    """The same Memory goes on, and all that was acknowledged is there once."""
    port_of_server = str(own_postgres.port)
    with bouncer(own_postgres) as port, opened(own_postgres.url().replace(port_of_server, str(port))) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        own_postgres.restart()
        turn(memory, "2")
        own_postgres.crash()
        with pytest.raises(StoreUnreachable):
            memory.create_round("away")
        own_postgres.start()
        until = time.monotonic() + SOON
        while True:  # until PgBouncer has found out
            try:
                memory.create_round("back")
                break
            except StoreUnreachable:
                assert time.monotonic() < until
        assert [one.user_query for one in memory.conversation.rounds] == ["question 1", "question 2", "back"]
        same_as_resumed(memory, store)
