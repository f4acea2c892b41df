"""Connections to a store: shared by threads, made anew where they break, and open in one process alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from executors import SOON
from forks import needs_fork, run
from lines import Line
from postgres import Postgres as Server
from sql_stores import bodies, dialect_of, entry, on, opened, sqlite_url, told
from sqlalchemy import Connection
from threads import at_once

from memory import Conflict, StoreBusy, StoreUnreachable
from memory.stores import connections as connections_module
from memory.stores.connections import Connections
from memory.stores.postgres import Postgres
from memory.stores.sql import SqlStore
from memory.stores.sqlite import Sqlite

# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_threads_write_through_one_store(url: str) -> None:
    """To their own sessions, with none held up for long by the others."""

    def write(session: str) -> None:
        for after in range(20):
            store.append(session, [entry(session)], after)

    with opened(url) as store:
        at_once(*(partial(write, f"s{number}") for number in range(12)))
        assert [len(bodies(store, session)) for session in store.sessions()] == [20] * 12


def test_a_connection_is_kept_for_writing_until_it_fails_or_the_store_is_closed(tmp_path: Path) -> None:
    """A failure leaves no transaction behind, and a fork and a closed store no connection."""
    with opened(sqlite_url(tmp_path)) as store, opened(sqlite_url(tmp_path)) as other:
        connections = store._connections
        store.append("s", [entry()], 0)
        kept = connections._writer
        assert kept is not None
        store.append("s", [entry()], 1)
        assert connections._writer is kept

        def fail(connection: Connection) -> None:
            connection.exec_driver_sql("DELETE FROM compactor_entries")
            raise ValueError

        with pytest.raises(ValueError, match=r"^$"):
            connections.change(fail)
        assert connections._writer is None
        other.append("s", [entry()], 2)
        store.append("s", [entry()], 3)
        assert len(bodies(store, "s")) == 4
        connections_module._before_fork()
        assert connections._writer is None
        connections_module._after_fork_in_parent()
        store.append("s", [entry()], 4)
    assert connections._writer is None
    assert [file.name for file in tmp_path.iterdir()] == [Path(sqlite_url(tmp_path)).name]


def test_a_thread_waits_for_another_no_longer_than_the_time_out(tmp_path: Path) -> None:
    """Within a process too, writers wait for one another."""
    with closing(Connections(Sqlite(sqlite_url(tmp_path, "?timeout=0.05")))) as connections:

        def hold(_: Connection) -> None:
            with ThreadPoolExecutor() as threads, pytest.raises(StoreBusy, match="other threads wrote"):
                threads.submit(connections.write, lambda _: None).result(SOON)

        connections.write(hold)


def test_all_connections_in_use_is_said(postgres_url: str) -> None:
    """Who waits longer for one than the time-out may try again."""
    with closing(Connections(Postgres(f"{postgres_url}?timeout=0.05"))) as connections:

        def nested(deep: int) -> None:
            connections.read(lambda _: nested(deep - 1) if deep else None)

        with pytest.raises(StoreBusy, match="all connections"):
            nested(50)
        nested(1)


# -- forks ------------------------------------------------------------------------------------------------------------


PRELUDE = """
    import sys, threading, warnings
    import memory.stores.sql
    from memory import Conflict, open_store
    from memory.entries import Entry
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

    def entry():
        return Entry("round closed", body="{}")
"""

in_process = partial(run, PRELUDE)


@pytest.mark.slow
@needs_fork
def test_a_new_store_can_be_opened_by_several_processes_at_once(url: str) -> None:
    """Each succeeds, whoever of them makes the tables; and what each appends is there."""
    in_process(
        """
        gate, open_gate = os.pipe()

        def child():
            os.close(open_gate)
            os.read(gate, 1)
            store = open_store(sys.argv[1])
            while True:
                try:
                    store.append("s", [entry()], sum(1 for _ in store.read("s")))
                    break
                except Conflict:
                    pass
            store.close()

        pids = [in_child(child) for _ in range(6)]
        os.close(open_gate)
        assert [exit_code(pid) for pid in pids] == [0] * 6
        store = open_store(sys.argv[1])
        assert [found.number for found in store.read("s")] == [1, 2, 3, 4, 5, 6]
        store.close()
        print("well")
        """,
        url,
    )


def test_who_writes_for_longer_than_a_fork_waits_keeps_no_connection(tmp_path: Path) -> None:
    """It would stay open over the fork that did not wait for it."""
    with opened(sqlite_url(tmp_path, "?timeout=0")) as store:

        def forked(connection: Connection) -> None:
            connections_module._before_fork()

        store._connections.write(forked)
        assert store._connections._writer is None
        connections_module._after_fork_in_parent()
        store.append("s", [entry()], 0)


def test_who_comes_while_a_fork_is_under_way_waits(tmp_path: Path) -> None:
    """At that moment no connection is open; afterwards all goes on."""
    with opened(sqlite_url(tmp_path)) as store:
        connections, found = store._connections, []
        connections_module._before_fork()
        assert connections._engine.pool.checkedin() == 0
        thread = threading.Thread(target=lambda: found.append(store.sessions()))
        thread.start()
        assert not found
        connections_module._after_fork_in_parent()
        thread.join(SOON)
        assert found == [[]]


def test_a_store_that_is_made_while_a_fork_is_under_way_waits(tmp_path: Path) -> None:
    """It would not be paused, so its connection could be open in both processes; and to count them would fail."""
    made: list[SqlStore] = []
    connections_module._before_fork()
    thread = threading.Thread(target=lambda: made.append(SqlStore(dialect_of(sqlite_url(tmp_path)))))
    thread.start()
    thread.join(0.1)  # as long as it would take, and more
    before = len(made)
    connections_module._after_fork_in_parent()
    thread.join(SOON)
    assert (before, len(made)) == (0, 1)
    made[0].close()


def test_a_fork_waits_no_longer_than_the_time_out(tmp_path: Path) -> None:
    """Whoever uses a connection for ever does not stop the others."""
    with opened(sqlite_url(tmp_path, "?timeout=0.05")) as store:
        store._connections.read(lambda _: connections_module._before_fork())
        connections_module._after_fork_in_parent()
        assert store.sessions() == []


@pytest.mark.slow
@needs_fork
def test_parent_and_child_go_on_with_connections_of_their_own(url: str) -> None:
    """The child has none of the parent's, and what it writes after the parent has closed the store is kept."""
    in_process(
        """
        store = open_store(sys.argv[1])
        store.append("parent", [entry()], 0)
        store.append("child", [entry()], 0)
        gone, go = os.pipe()

        def child():
            os.close(go)
            assert not store._connections._engine.pool.checkedin()
            store.append("child", [entry()], 1)
            os.read(gone, 1)
            store.append("child", [entry()], 2)
            store.append("child", [entry()], 3)
            store.close()

        pid = in_child(child)
        store.append("parent", [entry()], 1)
        store.close()
        os.close(go)
        assert exit_code(pid) == 0
        store = open_store(sys.argv[1])
        assert [len(list(store.read(name))) for name in ("child", "parent")] == [4, 2]
        store.close()
        print("well")
        """,
        url,
    )


@pytest.mark.slow
@needs_fork
def test_a_fork_in_the_middle_of_anothers_writing_disturbs_neither(url: str) -> None:
    """It waits for the moment between two appends; the child can write at once."""
    in_process(
        """
        store = open_store(sys.argv[1])
        stop = threading.Event()

        def write():
            after = 0
            while not stop.is_set():
                after = store.append("parent", [entry()], after)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        for after in range(3):
            assert exit_code(in_child(lambda: store.append("child", [entry()], after))) == 0
        stop.set()
        thread.join()
        assert len(list(store.read("child"))) == 3
        store.close()
        print("well")
        """,
        url,
    )


@pytest.mark.slow
@needs_fork
def test_a_connection_that_is_in_use_too_long_does_not_hold_up_a_fork_for_ever(tmp_path: Path) -> None:
    """The child has connections of its own all the same, and leaves that one alone."""
    in_process(
        """
        store = open_store(sys.argv[1])
        inside, leave = threading.Event(), threading.Event()

        def hold(connection):
            connection.exec_driver_sql("SELECT 1").all()
            inside.set()
            leave.wait()

        thread = threading.Thread(target=store._connections.read, args=[hold], daemon=True)
        thread.start()
        inside.wait()
        assert exit_code(in_child(lambda: store.append("child", [entry()], 0))) == 0
        leave.set()
        thread.join()
        assert len(list(store.read("child"))) == 1
        store.close()
        print("well")
        """,
        sqlite_url(tmp_path, "?timeout=0.1"),
    )


# -- connections that break -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_that_was_restarted_between_two_calls_is_asked_again(own_postgres: Server) -> None:
    """The next call works, though every connection broke; while the server is down, the call says so."""
    with opened(own_postgres.url()) as store:
        store.append("s", [entry()], after=0)
        own_postgres.restart()
        assert bodies(store) == ["{}"]
        own_postgres.crash()
        with pytest.raises(StoreUnreachable, match="not known whether"):
            store.append("s", [entry()], after=1)
        own_postgres.start()
        assert store.append("s", [entry()], after=1) == 2


@pytest.mark.parametrize("arrives", [True, False], ids=["the reply is lost", "the message is lost"])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("after", [0, 2])
def test_an_append_whose_connection_breaks_is_stored_once(
    postgres_url: str, line: Line, after: int, length: int, arrives: bool
) -> None:
    """The store looks whether it was stored, and stores it if not; its caller hears of neither."""
    with opened(line.url(postgres_url)) as store:
        if after:
            store.append("s", [entry(), entry()], after=0)
        line.message = b"COMMIT" if after == 0 else b"the-new-one"
        line.arrives, line.times = arrives, 1
        entries = [entry(id=f"the-new-one-{number}") for number in range(length)]
        assert store.append("s", entries, after) == after + length
        assert line.times == 0
        assert list(store.read("s", after=after)) == entries


def test_an_append_of_many_whose_connection_breaks_is_stored_once_and_in_silence(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written to a program's stderr by the driver, and nothing of the first try is left."""
    inserts: list[str] = []
    with opened(postgres_url) as store, opened(postgres_url) as other:

        def cut(connection: Connection, _cursor: Any, statement: str, *_more: Any) -> None:
            if "INSERT INTO compactor_entries" in statement:
                inserts.append(statement)
                if len(inserts) == 2:
                    driver: Any = connection.connection.driver_connection
                    on(other, "SELECT pg_terminate_backend(:pid, 5000)", pid=driver.info.backend_pid)

        entries = [entry() for _ in range(300)]
        with told(cut):
            assert store.append("s", entries, 0) == 300
        assert list(store.read("s")) == entries
    assert len(inserts) > 3
    assert [record.getMessage() for record in caplog.records] == []


def test_a_line_that_breaks_every_time_is_given_up(postgres_url: str, line: Line) -> None:
    """The error says what is not known, and how to find out: the same append again."""
    written = entry(id="the-new-one")
    with opened(line.url(postgres_url)) as store:
        store.append("s", [entry()], after=0)
        line.message, line.times = b"the-new-one", 99
        with pytest.raises(StoreUnreachable, match=r"not known whether.*can be appended at the same place again"):
            store.append("s", [written], after=1)
        assert line.times == 96
        line.times = 0
        assert store.append("s", [written], after=1) == 2
        assert len(bodies(store)) == 2


def test_another_writer_who_was_faster_is_a_conflict_and_not_a_fault(postgres_url: str) -> None:
    """Also where both had seen the same end of the log, and only the primary key stops the second."""
    with opened(postgres_url) as store, opened(postgres_url) as other:
        store.append("s", [entry()], after=0)
        # The second has seen the end of the log, and is about to insert, when it lets go of 1 and waits for 2.
        pause = "BEGIN IF NEW.body = ''second'' THEN PERFORM pg_advisory_unlock(1), pg_advisory_lock(2); END IF;"
        on(store, f"CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS '{pause} RETURN NEW; END'")
        on(store, "CREATE TRIGGER pause BEFORE INSERT ON compactor_entries FOR EACH ROW EXECUTE FUNCTION pause()")
        on(other, "SELECT pg_advisory_lock(1)")
        on(store, "SELECT pg_advisory_lock(2)")
        with ThreadPoolExecutor() as threads:
            second = threads.submit(other.append, "s", [entry("second")], 1)
            on(store, "SELECT pg_advisory_lock(1)")
            assert store.append("s", [entry("first")], after=1) == 2
            on(store, "SELECT pg_advisory_unlock(2)")
            assert isinstance(second.exception(SOON), Conflict)
        assert bodies(store) == ["{}", "first"]
