"""What is special to stores in SQL databases: opening, versions, processes, forks, faults. The rest is in the contract."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from executors import SOON
from lines import Line
from postgres import Postgres as Server
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError

from memory import (
    Conflict,
    Memory,
    NewerVersion,
    OlderVersion,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    open_store,
)
from memory.entries import Entry, RoundOpened
from memory.stores import Checkpoint, StoredText, dialects, sql
from memory.stores import connections as connections_module
from memory.stores.dialects import Dialect, Postgres, Sqlite
from memory.stores.schema import MIGRATIONS, version_of
from memory.stores.sql import SqlStore

ROOT = Path(__file__).resolve().parents[2]
#: For tests that make many appends and no claim about power failures.
QUICK = "?synchronous=normal"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else sqlite_url(tmp_path, QUICK)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


def sqlite_url(folder: Path, options: str = "") -> str:
    return f"sqlite:///{(folder / 'chat.db').as_posix()}{options}"


def dialect_of(url: str) -> Dialect:
    return Sqlite(url) if url.startswith("sqlite") else Postgres(url)


@contextmanager
def opened(url: str, *, migrations: Any = MIGRATIONS) -> Iterator[SqlStore]:
    with closing(SqlStore(dialect_of(url))) as store:
        store.open(migrations)
        yield store


def entry(body: str = "{}", **more: Any) -> Entry:
    return Entry("round closed", body=body, **more)


def bodies(store: SqlStore, session: str = "s") -> list[str]:
    return [found.body for found in store.read(session)]


def on(store: SqlStore, statement: str, **values: Any) -> Any:
    """Run one statement behind the store's back."""
    return store._connections.write(lambda connection: _rows(connection.execute(text(statement), values)))


def _rows(result: Any) -> Any:
    return result.all() if result.returns_rows else None


# -- URLs --------------------------------------------------------------------------------------------------------------


def test_a_relative_path_is_a_file_in_the_working_folder_of_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that changes its working folder later goes on in the same file."""
    monkeypatch.chdir(tmp_path)
    with opened("sqlite:///chat 100%.db") as store:
        monkeypatch.chdir("/")
        store.append("s", [entry()], after=0)
        threading_append(store, 1)
    assert [file.name for file in tmp_path.iterdir()] == ["chat 100%.db"]


def threading_append(store: SqlStore, after: int) -> None:
    thread = threading.Thread(target=store.append, args=("s", [entry()], after))
    thread.start()
    thread.join()


def test_paths_of_every_system_can_be_given() -> None:
    """Absolute ones have one slash more; those of Windows begin with their drive."""
    assert Sqlite("sqlite:////srv/chat.db").path == Path("/srv/chat.db").absolute()
    for given in ("C:/chats/chat.db", "C:\\chats\\chat.db", "chats/it's %41.db"):
        assert Sqlite(f"sqlite:///{given}?timeout=1").path == Path(given).absolute()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "sqlite:///file.db"),
        ("sqlite:///", "sqlite:///file.db"),
        ("sqlite://chat.db", "sqlite:///file.db"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///chat.db?sync=full", "no option 'sync'.*synchronous="),
        ("sqlite:///chat.db?synchronous=off", "synchronous= is normal, full or extra"),
        ("sqlite:///chat.db?timeout=soon", "timeout= is a number of seconds"),
        ("sqlite:///chat.db?timeout=-1", "timeout= is a number of seconds"),
        ("sqlite:///chat.db?timeout=inf", "timeout= is a number of seconds"),
        ("postgresql+psycopg://host/db?timeout=nan", "timeout= is a number of seconds"),
        ("mysql://ada:swordfish@host/db", "'mysql://'"),
        ("chat.db", r"no scheme, such as sqlite://; for a file write sqlite:///chat\.db; "),
        ("chats\\my chat.sqlite3", r"write sqlite:///chats/my chat\.sqlite3; "),
        ("/srv/chat.db", r"write sqlite:////srv/chat\.db; "),
        ("C:\\chats\\chat.db", r"write sqlite:///C:/chats/chat\.db; "),
        ("", "has no scheme, such as sqlite://; the URL must be"),
        ("ada:swordfish@host/chat.db", "has no scheme, such as sqlite://; the URL must be"),
        ("host=chats password=swordfish.db", "has no scheme, such as sqlite://; the URL must be"),
        ("swordfish", "has no scheme, such as sqlite://; the URL must be"),
    ],
)
def test_a_url_with_a_mistake_is_an_error_that_names_it(url: str, said: str) -> None:
    """Nothing is made of it."""
    with pytest.raises(StoreError, match=said) as raised:
        open_store(url)
    assert "swordfish" not in str(raised.value)
    assert not Path("chat.db").exists()


@pytest.mark.parametrize(
    "place",
    [
        "ada:swordfish@127.0.0.1:1/db",
        "ada:sword@swordfish@127.0.0.1:1/db",
        "ada:x/swordfish@127.0.0.1:1/db",
        "ada:x:swordfish@127.0.0.1:1/db",
        "ada:@127.0.0.1:swordfish/db",
        "ada@127.0.0.1:1/db?password=swordfish",
    ],
)
def test_no_password_is_in_an_error(place: str) -> None:
    """Not in the message, not in its causes, not where the URL was put together wrongly."""
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError) as raised:
        open_store(f"postgresql+psycopg://{place}")
    error: BaseException | None = raised.value
    while error is not None:
        assert "swordfish" not in repr(error) + str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_store_shows_where_it_is_and_no_password() -> None:
    """In logs and in tracebacks."""
    pytest.importorskip("psycopg")
    with closing(
        SqlStore(Postgres("postgresql://ada:swordfish@host/db?password=swordfish&application_name=x"))
    ) as store:
        assert repr(store) == "<SqlStore on the PostgreSQL database 'db' on host>"


def test_without_its_driver_postgresql_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is an extra, for those who need it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r'pip install "context-compactor\[postgresql\]"'):
        open_store("postgresql+psycopg://host/db")


def test_sqlalchemy_is_imported_when_a_database_is_opened_and_not_before() -> None:
    """Who keeps nothing in a database does not wait for it."""
    code = """
        import sys, memory
        memory.open_store("memory://")
        print([name for name in ("sqlalchemy", "sqlite3", "psycopg") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- durability --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "level"), [("", 2), ("?synchronous=NORMAL", 1), ("?synchronous=extra", 3)])
def test_how_durable_sqlite_is_can_be_chosen(tmp_path: Path, options: str, level: int) -> None:
    """Full where nothing is said; with a log beside the file, in which readers and the writer do not wait for another."""
    with opened(sqlite_url(tmp_path, options)) as store:
        assert on(store, "PRAGMA synchronous") == [(level,)]
        assert on(store, "PRAGMA journal_mode") == [("wal",)]


# -- versions ----------------------------------------------------------------------------------------------------------


def add_colours(connection: Connection, _: Dialect) -> None:
    connection.exec_driver_sql("CREATE TABLE compactor_colours (name TEXT)")
    connection.exec_driver_sql("UPDATE compactor_entries SET body = 'red'")


def fail(_connection: Connection, _: Dialect) -> None:
    raise ValueError("half way")


def test_an_older_store_is_brought_up_to_date_once(url: str) -> None:
    """By those steps that it lacks, in their order; then it is of the new version."""
    done = []
    migrations = (*MIGRATIONS, add_colours, lambda *_: done.append(len(done)))
    with opened(url) as store:
        store.append("s", [entry()], after=0)
    for _ in range(2):
        with opened(url, migrations=migrations) as store:
            assert bodies(store) == ["red"]
            assert on(store, "SELECT version FROM compactor_schema") == [(3,)]
    assert done == [0]


def test_who_only_reads_changes_no_older_store(url: str) -> None:
    """It may be another program's that is still of the older version; and an empty place stays empty."""
    migrations = (*MIGRATIONS, add_colours)
    with closing(SqlStore(dialect_of(url))) as store:
        with pytest.raises(StoreError, match=r"nothing was ever stored in .* write to it first") as raised:
            store.open(migrate=False)
        assert type(raised.value) is StoreError
        assert store._connections.read(lambda connection: version_of(connection, store._dialect)) == 0
    with opened(url) as store:
        store.append("s", [entry()], after=0)
    with closing(SqlStore(dialect_of(url))) as store, pytest.raises(OlderVersion, match="open it once to"):
        store.open(migrations, migrate=False)
    with closing(open_store(url, migrate=False)) as of_the_older:
        assert of_the_older.append("s", [entry()], after=1) == 2
    with opened(url, migrations=migrations):
        pass
    with closing(SqlStore(dialect_of(url))) as store:
        store.open(migrations, migrate=False)
        assert bodies(store) == ["red", "red"]


def test_a_step_that_fails_leaves_everything_as_it_was(url: str) -> None:
    """The tables that it made before included; the old version goes on with them."""
    with opened(url) as store:
        store.append("s", [entry("old")], after=0)
    with closing(SqlStore(dialect_of(url))) as store, pytest.raises(ValueError, match="half way"):
        store.open((*MIGRATIONS, add_colours, fail))
    with opened(url) as store:
        assert bodies(store) == ["old"]
        assert on(store, "SELECT version FROM compactor_schema") == [(1,)]
        with pytest.raises(StoreDamaged, match="compactor_colours"):
            on(store, "SELECT name FROM compactor_colours")


def test_an_empty_database_stays_empty_where_its_tables_cannot_be_made(url: str) -> None:
    """And can be opened once they can."""
    with closing(SqlStore(dialect_of(url))) as store, pytest.raises(ValueError, match="half way"):
        store.open((*MIGRATIONS, fail))
    with opened(url) as store:
        assert store.sessions() == []


def test_a_store_of_a_newer_version_is_refused_and_left_alone(url: str) -> None:
    """Its tables may mean something else."""
    with opened(url, migrations=(*MIGRATIONS, add_colours)) as store:
        store.append("s", [entry()], after=0)
        with pytest.raises(NewerVersion, match=r"version 2, and this one knows them up to 1.*upgrade"):
            open_store(url)
        assert on(store, "SELECT version FROM compactor_schema") == [(2,)]
        assert bodies(store) == ["{}"]


@pytest.mark.parametrize("versions", [(), (1, 1), (0,)], ids=["none", "two", "0"])
def test_a_store_that_does_not_say_its_version_is_damaged(url: str, versions: tuple[int, ...]) -> None:
    """Nobody guesses."""
    with opened(url) as store:
        on(store, "DELETE FROM compactor_schema")
        for version in versions:
            on(store, "INSERT INTO compactor_schema VALUES (:version)", version=version)
        with pytest.raises(StoreDamaged, match="which version"):
            open_store(url)


# -- other files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"x", b"a letter\n" * 20, b"a letter\n" * 2000])
def test_a_file_that_is_not_a_database_is_left_as_it_is(tmp_path: Path, path: Path, content: bytes) -> None:
    """Whatever its length, also where SQLite would take it for an empty one."""
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"chat\.db .*nothing was changed"):
        open_store(sqlite_url(tmp_path))
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_another_programs_database_is_left_as_it_is(tmp_path: Path, path: Path, mode: str) -> None:
    """It is not ours to put tables into."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute("CREATE TABLE birds (name)")
        before = path.read_bytes()
        with pytest.raises(StoreError, match="another program; nothing was changed"):
            open_store(sqlite_url(tmp_path))
        assert path.read_bytes() == before


def test_what_stands_beside_it_on_a_server_is_left_alone(postgres_url: str) -> None:
    """A database on a server is often shared; our tables' names do not take others' place."""
    with opened(postgres_url) as store:
        on(store, "CREATE TABLE entries (id INT)")
        names = {name for (name,) in on(store, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    assert {name for name in names if not name.startswith("compactor_")} == {"entries"}


def test_a_place_where_no_file_can_be_is_named(tmp_path: Path) -> None:
    """So that a mistyped folder is found, and not made."""
    (tmp_path / "chat.db").mkdir()
    with pytest.raises(StoreError, match=r"chat\.db is a folder"):
        open_store(sqlite_url(tmp_path))
    with pytest.raises(StoreError, match=r"the folder .*typo does not exist"):
        open_store(sqlite_url(tmp_path / "typo"))


# -- processes and threads ---------------------------------------------------------------------------------------------


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
        assert all([ended_well(pid) for pid in pids])
        store = open_store(sys.argv[1])
        assert [found.number for found in store.read("s")] == [1, 2, 3, 4, 5, 6]
        store.close()
        print("well")
        """,
        url,
    )


LOCKING = ["BEGIN; SELECT name FROM sqlite_master", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"]


@pytest.mark.parametrize("begin", LOCKING)
def test_the_switch_to_wal_waits_for_others(tmp_path: Path, path: Path, begin: str) -> None:
    """SQLite answers "locked" to it at once; whoever opens a store does not hear of that."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA user_version = 7")
        for statement in begin.split(";"):
            other.execute(statement).fetchall()
        release = threading.Timer(0.2, other.rollback)
        release.start()
        with opened(sqlite_url(tmp_path)) as store:
            assert on(store, "PRAGMA journal_mode") == [("wal",)]
        release.join()


@pytest.mark.parametrize("begin", LOCKING)
def test_the_switch_to_wal_gives_up_at_the_time_out(tmp_path: Path, path: Path, begin: str) -> None:
    """It says who is in the way, and what to do."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA user_version = 7")
        for statement in begin.split(";"):
            other.execute(statement).fetchall()
        with pytest.raises(StoreBusy, match=r"another process kept .* for more than 0\.05 s.*\?timeout="):
            open_store(sqlite_url(tmp_path, "?timeout=0.05"))


def test_many_threads_write_through_one_store(url: str) -> None:
    """To their own sessions, with none held up for long by the others."""
    faults: list[BaseException] = []

    def write(session: str) -> None:
        try:
            for after in range(20):
                store.append(session, [entry(session)], after)
        except BaseException as error:
            faults.append(error)

    with opened(url) as store:
        threads = [threading.Thread(target=write, args=(f"s{number}",)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
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


def in_process(script: str, *arguments: str) -> None:
    """Run *script* in a process of its own. Fails with what it wrote unless it ends well."""
    prelude = """
        import faulthandler, os, sys, threading, warnings
        import memory.stores.sql
        from memory import Conflict, open_store
        from memory.entries import Entry
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

        def entry():
            return Entry("round closed", body="{}")

        def in_child(work):
            pid = os.fork()
            if pid == 0:
                faulthandler.dump_traceback_later(60, exit=True)
                try:
                    work()
                except BaseException:
                    import traceback
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            return pid

        def ended_well(pid):
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(prelude) + dedent(script), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["well"]


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
        assert ended_well(pid)
        store = open_store(sys.argv[1])
        assert [len(list(store.read(name))) for name in ("child", "parent")] == [4, 2]
        store.close()
        print("well")
        """,
        url,
    )


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
            assert ended_well(in_child(lambda: store.append("child", [entry()], after)))
        stop.set()
        thread.join()
        assert len(list(store.read("child"))) == 3
        store.close()
        print("well")
        """,
        url,
    )


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
        assert ended_well(in_child(lambda: store.append("child", [entry()], 0)))
        leave.set()
        thread.join()
        assert len(list(store.read("child"))) == 1
        store.close()
        print("well")
        """,
        sqlite_url(tmp_path, "?timeout=0.1"),
    )


# -- names and entries -------------------------------------------------------------------------------------------------


def test_names_never_become_part_of_a_statement(url: str) -> None:
    """Statements are the same whatever they are about; names of any length are told apart."""
    names = ["'; DROP TABLE compactor_entries; --", "%s :key ? $1", "\0\ud800", "n" * 10_000, "n" * 9_999 + "m"]
    statements: set[str] = set()
    with opened(url) as store:
        event.listen(
            store._connections._engine, "before_cursor_execute", lambda *facts: statements.add(facts[2]) or None
        )
        for name in names:
            opened_round = Entry.of(RoundOpened(round_id=name, user_query="q", created_at=datetime.now(UTC)), round=1)
            store.append(name, [opened_round, entry(id=name)], after=0)
            store.keep_checkpoint(name, Checkpoint(2, "{}"))
            assert store.lease(name, name, name, 60) == 0.0
            store.release(name, name, name)
            store.keep_texts(name, 1, 1, [StoredText(1, 0, name, "", "words")])
            assert store.round_number(name, name) == 1
            assert [found.id for found in store.read_kinds(name, [name, "round closed"])] == [name]
            assert store.find_texts(name, [name], name).total == 1
            store.redact(name, 2)
            assert len(list(store.read_rounds(name, 1, 1))) == 1
        assert store.sessions() == sorted(names)
        for name in names:
            store.purge(name)
        assert store.sessions() == []
    assert not [statement for statement in statements for name in names if name in statement]


def test_a_body_that_the_server_cannot_hold_is_refused_and_nothing_is_stored(postgres_url: str) -> None:
    """Bodies are ASCII by their promise; one that is not is no fault of the server's."""
    with opened(postgres_url) as store:
        with pytest.raises(StoreError) as raised:
            store.append("s", [entry(), entry("\0")], after=0)
        assert type(raised.value) is StoreError
        assert store.sessions() == []


@pytest.mark.parametrize("hours", [None, 0, 5.5, -8], ids=str)
def test_stamps_come_back_equal(url: str, hours: float | None) -> None:
    """With their microseconds, whatever the time zone they were given in."""
    zone = None if hours is None else timezone(timedelta(hours=hours))
    at = datetime(2026, 10, 25, 2, 30, 0, 1, tzinfo=zone)
    with opened(url) as store:
        store.append("s", [entry(created_at=at)], after=0)
        (found,) = store.read("s")
        assert found.created_at == at


def test_a_round_that_this_version_cannot_read_is_stored_all_the_same(url: str) -> None:
    """A newer version reads it; here it has no number."""
    written = [Entry("round opened", body="[", round=1), Entry("round opened", body="{}", round=2, version=99)]
    with opened(url) as store:
        store.append("s", written, after=0)
        assert list(store.read("s")) == written
        assert store.round_number("s", "") == 0


def test_an_append_of_many_makes_a_few_rows_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an import is: what is in memory at once is bounded, by entries and by characters."""
    monkeypatch.setattr(sql, "PAGE", 150)
    monkeypatch.setattr(sql, "PAGE_CHARACTERS", 3_000)
    asked: list[int] = []

    class Aside(list[Entry]):
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            asked.append(len(found) if isinstance(index, slice) else 1)
            return found

        def __iter__(self) -> Any:
            return (self[place] for place in range(len(self)))

    bodies = ["x" * 10] * 400 + ["x" * 100] * 200
    written = [entry(body, round=place) for place, body in enumerate(bodies, 1)]
    with opened(url) as store:
        assert store.append("s", Aside(written), after=0) == 600
        assert list(store.read("s")) == written
    assert asked == [1, 100, 150, 150, 150, 30, 19]


def test_of_many_entries_the_first_looks_for_the_end_of_the_log(tmp_path: Path) -> None:
    """It settles the place; to look again for each would take half as long again as the inserting."""
    said: list[str] = []
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry()], after=0)
        store._connections._writer.connection.driver_connection.set_trace_callback(said.append)  # type: ignore[union-attr]
        store.append("s", [entry() for _ in range(300)], after=1)
    inserts = [statement for statement in said if "INSERT INTO compactor_entries" in statement]
    assert (len(inserts), sum("max(" in statement for statement in inserts)) == (300, 1)


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 3, 4, 6, 7])
def test_what_is_read_in_pages_is_whole(url: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a page ends, with and without a limit, also where one entry is more than a page."""
    monkeypatch.setattr(sql, "PAGE", 3)
    monkeypatch.setattr(sql, "PAGE_CHARACTERS", 100)
    written = [entry("x" * (90 if number == 4 else 1), round=number) for number in range(1, length + 1)]
    with opened(url) as store:
        if written:
            store.append("s", written, after=0)
        assert list(store.read("s")) == written
        for limit in range(length + 2):
            assert list(store.read("s", after=1, limit=limit)) == written[1:][:limit]
        assert list(store.read_rounds("s", 2, 5)) == written[1:5]
        assert list(store.read_kinds("s", ["round closed", "other"])) == written


def test_a_page_of_long_entries_has_few_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory at once is bounded by characters too."""
    monkeypatch.setattr(sql, "PAGE", 4)
    monkeypatch.setattr(sql, "PAGE_CHARACTERS", 200)
    asked: list[Any] = []
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry("x" * 100) for _ in range(8)], after=0)
        event.listen(
            store._connections._engine, "before_cursor_execute", lambda *facts: asked.append(facts[3][-1]) or None
        )
        assert len(list(store.read("s"))) == 8
    assert asked == [4, 2, 2, 2]


def test_a_reader_holds_nothing_while_its_consumer_works(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock and no transaction: a log is checkpointed, and sessions are purged, whoever reads slowly."""
    monkeypatch.setattr(sql, "PAGE", 1)
    with opened(url) as store:
        store.append("s", [entry(), entry(), entry()], after=0)
        reader = store.read("s")
        next(reader)
        assert store._connections._engine.pool.checkedout() == url.startswith("sqlite")  # what the writer keeps
        if url.startswith("sqlite"):
            assert on(store, "PRAGMA wal_checkpoint(TRUNCATE)")[0][0] == 0
        store.purge("s")
        assert list(reader) == []


def test_a_hole_in_the_log_is_damage(url: str) -> None:
    """Nobody goes on as if what is missing had never been."""
    with opened(url) as store:
        store.append("s", [entry(), entry(), entry()], after=0)
        on(store, "DELETE FROM compactor_entries WHERE number = 2")
        with pytest.raises(StoreDamaged, match="entry 2 of the log is missing"):
            store.read("s")


def test_an_entry_that_cannot_be_read_is_damage(url: str) -> None:
    """It is named by where it is, and its text is not shown."""
    with opened(url) as store:
        store.append("s", [entry("swordfish")], after=0)
        on(store, "UPDATE compactor_entries SET created_at = 'swordfish'")
        with pytest.raises(StoreDamaged, match="restore a backup") as raised:
            store.read("s")
        assert "swordfish" not in str(raised.value)


# -- erasing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("erase", [lambda store: store.redact("s", 2), lambda store: store.purge("s")])
def test_what_is_erased_is_not_in_the_file_any_more(tmp_path: Path, erase: Any) -> None:
    """Nor in the log beside it."""
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry(), entry("swordfish" * 2000, round=1), entry()], after=0)
        store.keep_texts("s", 1, 1, [StoredText(1, 1, "", "", "swordfish")])
        store.keep_texts("s", 1, 1, [])
        assert any(b"swordfish" in file.read_bytes() for file in tmp_path.iterdir())
        erase(store)
        assert not any(b"swordfish" in file.read_bytes() for file in tmp_path.iterdir())


def test_who_reads_for_long_keeps_no_erasing_from_its_end_and_nobody_from_writing(tmp_path: Path, path: Path) -> None:
    """What is erased is gone from the file with the next erasing then. All else is as patient as it was."""
    with opened(sqlite_url(tmp_path, "?timeout=9")) as store, closing(sqlite3.connect(path)) as reader:
        store.append("s", [entry(), entry("swordfish" * 2000), entry("sturgeon" * 2000)], after=0)
        store.append("other", [entry()], after=0)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM compactor_entries").fetchall()
        begun = time.monotonic()
        store.redact("s", 2)
        store.purge("other")
        assert time.monotonic() - begun < 7
        assert bodies(store)[1] == "{}"
        assert on(store, "PRAGMA busy_timeout") == [(9_000,)]
        reader.rollback()
        store.redact("s", 3)
        assert not any(word in file.read_bytes() for file in tmp_path.iterdir() for word in (b"swordfish", b"sturgeon"))


def test_a_redaction_rewrites_the_log_beside_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time waits for whoever reads, with nobody else writing; however many entries are erased."""
    times: list[Connection] = []
    erased = Sqlite.after_erasing
    monkeypatch.setattr(Sqlite, "after_erasing", lambda self, its: (times.append(its), erased(self, its))[1])
    with opened(sqlite_url(tmp_path)) as store:
        memory = Memory("s", store=store)
        round_ = memory.create_round("swordfish")
        memory.add_post(round_, send_from="User", send_to="a", message="swordfish")
        memory.redact("r1.p1")
        assert len(times) == 1
        assert not any(b"swordfish" in file.read_bytes() for file in tmp_path.iterdir())
        assert "swordfish" not in str(bodies(store))


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "fault", "said"),
    [
        (OSError(errno.ESTALE, "Stale file handle"), StoreUnreachable, r"Stale file handle.*try again"),
        (FileNotFoundError(), StoreDamaged, "removed.*put it back"),
        (os.stat_result((0, 99, 99, *[0] * 7)), StoreDamaged, "open it anew, which is all .* network file system"),
    ],
    ids=["out of reach", "removed", "another number"],
)
def test_a_file_that_is_not_seen_as_it_was_is_said_with_what_may_be_the_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Any, fault: type[StoreError], said: str
) -> None:
    """On a network's file system nothing of that need be damage; once it is seen again, all goes on."""

    def stat(_path: Any) -> os.stat_result:
        if isinstance(seen, OSError):
            raise seen
        return seen

    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry()], after=0)
        with monkeypatch.context() as patched:
            patched.setattr(dialects, "os", SimpleNamespace(**vars(os) | {"stat": stat}))
            for ask in (store.sessions, lambda: store.append("s", [entry()], after=1)):
                with pytest.raises(fault, match=said) as raised:
                    ask()
                assert type(raised.value) is fault
        assert store.append("s", [entry()], after=1) == 2


def test_a_closed_store_says_so(url: str) -> None:
    """Whatever it is asked; to close it again is no error."""
    with opened(url) as store:
        store.append("s", [entry()], after=0)
        store.close()
        store.close()
        for ask in (store.sessions, lambda: store.read("s"), lambda: store.append("s", [entry()], 1)):
            with pytest.raises(StoreClosed, match="open another on the same URL"):
                ask()


def with_pragma(monkeypatch: pytest.MonkeyPatch, pragma: str) -> None:
    """Have every connection to SQLite begin with *pragma*."""
    connected = Sqlite._connected

    def and_pragma(self: Sqlite, connection: Any, record: Any) -> None:
        connected(self, connection, record)
        connection.execute(f"PRAGMA {pragma}")

    monkeypatch.setattr(Sqlite, "_connected", and_pragma)


def test_a_full_disk_is_said_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing of an append; and the next one works once there is room."""
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry()], after=0)
    with monkeypatch.context() as patched:
        with_pragma(patched, "max_page_count = 40")
        with opened(sqlite_url(tmp_path)) as store:
            with pytest.raises(StoreFull, match="free some"):
                store.append("s", [entry("x" * 50_000) for _ in range(9)], after=1)
            assert bodies(store) == ["{}"]
    with opened(sqlite_url(tmp_path)) as store:
        assert store.append("s", [entry("x" * 50_000) for _ in range(9)], after=1) == 10


def test_a_file_that_may_only_be_read_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so to who writes."""
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry()], after=0)
    with_pragma(monkeypatch, "query_only = ON")
    with opened(sqlite_url(tmp_path)) as store:
        assert bodies(store) == ["{}"]
        for write in (lambda: store.append("s", [entry()], 1), lambda: store.append("t", [entry()], 0)):
            with pytest.raises(StoreReadOnly, match=r"chat\.db cannot be written to; allow"):
                write()


def test_a_folder_that_may_not_be_written_to_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself only says that it cannot open the file."""
    place, error = Sqlite(sqlite_url(tmp_path)), sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    assert type(place._fault(error)) is StoreError
    monkeypatch.setattr(dialects.os, "access", lambda *_: False)
    assert type(place._fault(error)) is StoreReadOnly


def test_a_locked_file_is_waited_for_and_then_said(tmp_path: Path, path: Path) -> None:
    """Readers go on; the same append works once the other is done."""
    with opened(sqlite_url(tmp_path, "?timeout=0.05")) as store, closing(sqlite3.connect(path)) as other:
        store.append("s", [entry()], after=0)
        other.execute("BEGIN IMMEDIATE")
        for entries in ([entry()], [entry(), entry()]):
            with pytest.raises(StoreBusy, match=r"locked for more than 0\.05 s; nothing was written"):
                store.append("s", entries, after=1)
        assert bodies(store) == ["{}"]
        other.rollback()
        assert store.append("s", [entry()], after=1) == 2


def test_a_thread_waits_for_another_no_longer_than_the_time_out(tmp_path: Path) -> None:
    """Within a process too, writers wait for one another."""
    with (
        opened(sqlite_url(tmp_path, "?timeout=0.05")) as store,
        store._connections._writing,
        pytest.raises(StoreBusy, match="other threads wrote"),
    ):
        store.append("s", [entry()], after=0)


def test_a_damaged_file_is_said_and_left_as_it_is(tmp_path: Path, path: Path) -> None:
    """Nothing is written over what cannot be read."""
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry("x" * 900) for _ in range(50)], after=0)
    whole = path.read_bytes()
    broken = whole[:4096] + b"\xff" * (len(whole) - 4096)
    path.write_bytes(broken)
    with pytest.raises(StoreDamaged, match="restore a backup"):
        open_store(sqlite_url(tmp_path)).append("s", [entry()], after=50)
    assert path.read_bytes() == broken


def test_a_log_beside_the_file_that_breaks_off_loses_no_more_than_is_missing(tmp_path: Path, path: Path) -> None:
    """Whole appends from the end, and never half of one."""
    other = tmp_path / "copy"
    other.mkdir()
    with opened(sqlite_url(tmp_path)) as store:
        for after in range(0, 20, 2):
            store.append("s", [entry(), entry()], after)
        (other / "chat.db").write_bytes(path.read_bytes())
        log = (tmp_path / "chat.db-wal").read_bytes()
    (other / "chat.db-wal").write_bytes(log[: len(log) - 5000])
    with opened(sqlite_url(other)) as store:
        left = len(bodies(store))
        assert left in range(2, 20, 2)
        assert store.append("s", [entry()], after=left) == left + 1


def test_missing_tables_are_damage(url: str) -> None:
    """They are not made anew over whatever happened."""
    with opened(url) as store:
        on(store, "DROP TABLE compactor_leases")
        with pytest.raises(StoreDamaged, match=r"compactor_leases.*restore a backup"):
            store.lease("s", "n", "h", 1)


def test_an_error_shows_no_text(url: str) -> None:
    """Nor do its causes."""
    with opened(url) as store:
        on(store, "DROP INDEX compactor_entries_kind")
        on(store, "ALTER TABLE compactor_entries RENAME COLUMN kind TO sort")
        with pytest.raises(StoreDamaged) as raised:
            store.append("s", [entry("swordfish")], after=0)
    assert "swordfish" not in str(raised.value) + str(raised.value.__cause__)


def test_whatever_else_goes_wrong_is_a_store_error(tmp_path: Path) -> None:
    """Nobody who uses a store need know what it is built on."""
    with opened(sqlite_url(tmp_path)) as store:
        for statement in ("SELECT :value", "SELECT nonsense()"):
            with pytest.raises(StoreError, match=r"chat\.db"):
                store._connections.read(lambda connection, asked=statement: connection.execute(text(asked)))


# -- faults of a server ------------------------------------------------------------------------------------------------


def test_a_server_that_does_not_answer_is_said() -> None:
    """With the place that was asked."""
    pytest.importorskip("psycopg")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(StoreUnreachable, match=r"'db' on 127\.0\.0\.1 does not answer.*once the server is back"):
            open_store(f"postgresql+psycopg://ada@127.0.0.1:{nobody.getsockname()[1]}/db")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("postgres:s3cr3t@{host}/nowhere", r"database \"nowhere\" does not exist.*make the database with createdb"),
        ("nobody:s3cr3t@{host}/postgres", r"role \"nobody\" does not exist.*check the URL's user, password"),
        ("postgres:s3cr3t@{host}/postgres?sslmode=require", "SSL was required.*check the URL's user, password and opt"),
        ("postgres:s3cr3t@{host}/postgres?sslmode=nonsense", "sslmode value.*check the URL's user, password and opt"),
    ],
)
def test_what_no_waiting_mends_is_not_told_as_an_outage(postgres_server: Server, place: str, said: str) -> None:
    """With what to change instead, and without the password."""
    with pytest.raises(StoreError, match=said) as raised:
        open_store("postgresql+psycopg://" + place.format(host=f"127.0.0.1:{postgres_server.port}"))
    assert not isinstance(raised.value, StoreUnreachable)
    assert "s3cr3t" not in f"{raised.value} {raised.value.__cause__!r}"


@pytest.mark.parametrize("words", ["failed to resolve host 'servr'", "FATAL:  Datenbank »db« existiert nicht"])
def test_where_it_is_not_known_whether_waiting_mends_it_both_are_said(words: str) -> None:
    """A name that is not found may be a mistake or an outage, and a server's words may be of any language."""
    fault = Postgres("postgresql://ada:s3cr3t@servr/db").fault(OperationalError("", None, Exception(words)))
    assert isinstance(fault, StoreUnreachable)
    assert "once the server is back, or check the URL if it has never answered" in str(fault)
    assert "s3cr3t" not in str(fault)


@pytest.mark.parametrize("code", ["3D000", "28000", "28P01"])
def test_a_code_that_says_so_needs_no_words(code: str) -> None:
    """A driver that tells it is believed."""
    refused = type("Refused", (Exception,), {"sqlstate": code})("kein Zutritt")
    fault = Postgres("postgresql://ada@host/db").fault(OperationalError("", None, refused))
    assert "check the URL's user, password" in str(fault)
    assert not isinstance(fault, StoreUnreachable)


def test_a_server_that_has_much_to_change_is_not_taken_for_silent(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a large session could never be purged, nor a large database migrated; all else is given up as before."""
    monkeypatch.setattr(dialects, "SILENCE", 0.8)

    def slow(connection: Connection, _dialect: Dialect) -> None:
        connection.exec_driver_sql("SELECT pg_sleep(1.1)")

    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}timeout=0"
    with opened(url) as store:
        store.append("s", [entry()], after=0)
        store.keep_texts("s", 1, 1, [StoredText(1, 0, "", "", "text")])
    with opened(url, migrations=(*MIGRATIONS, slow)) as store:
        body = "'BEGIN PERFORM pg_sleep(1.1); RETURN NULL; END'"
        on(store, f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS {body}")
        for table in ("entries", "texts"):
            on(store, f"CREATE TRIGGER slow BEFORE INSERT OR DELETE ON compactor_{table} EXECUTE FUNCTION slow()")
        store.keep_texts("s", 1, 1, [StoredText(1, 0, "", "", "another")])
        store.purge("s")
        assert store.sessions() == []
        with pytest.raises(StoreUnreachable, match=r"said nothing for 0\.8 s"):
            store.append("s", [entry()], after=0)


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


def test_a_server_that_may_only_be_read_can_be_read(postgres_url: str) -> None:
    """And says so to who writes."""
    with opened(postgres_url) as store:
        store.append("s", [entry()], after=0)
    with opened(f"{postgres_url}?options=-cdefault_transaction_read_only%3Don") as store:
        assert bodies(store) == ["{}"]
        with pytest.raises(StoreReadOnly, match="read-only transaction"):
            store.append("s", [entry()], after=1)


@pytest.mark.parametrize(
    "options", ["timeout=0.05", "timeout=60&options=-clock_timeout%3D50", "options=-cstatement_timeout%3D50"]
)
def test_a_server_that_is_held_up_is_said(postgres_url: str, options: str) -> None:
    """Another's transaction that does not end; ours is undone, and works once the other is done."""
    with opened(postgres_url) as store, opened(f"{postgres_url}?{options}") as other:
        store.append("s", [entry()], after=0)

        def hold(connection: Connection) -> None:
            connection.exec_driver_sql("UPDATE compactor_sessions SET key = 'moved'")
            with pytest.raises(StoreBusy, match=r"held up by others.*nothing was written"):
                other.append("s", [entry()], after=1)
            raise InterruptedError

        with pytest.raises(InterruptedError):
            store._connections.change(hold)
        assert other.append("s", [entry()], after=1) == 2


def test_all_connections_in_use_is_said(postgres_url: str) -> None:
    """Who waits longer for one than the time-out may try again."""
    with opened(f"{postgres_url}?timeout=0.05") as store:

        def nested(deep: int) -> None:
            store._connections.read(lambda _: nested(deep - 1) if deep else None)

        with pytest.raises(StoreBusy, match="all connections"):
            nested(50)
        assert store.sessions() == []


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("53100", StoreFull),
        ("42501", StoreReadOnly),
        ("40P01", StoreBusy),
        ("57P03", StoreUnreachable),
        ("XX001", StoreDamaged),
        ("54000", StoreError),
        ("23505", StoreError),  # but in an append, where it is a Conflict
    ],
)
def test_what_a_server_complains_about_is_told_apart(postgres_url: str, state: str, fault: type[StoreError]) -> None:
    """By the code that it gives, in whatever language it speaks."""
    with opened(postgres_url) as store, pytest.raises(StoreError) as raised:
        on(store, f"DO $$ BEGIN RAISE EXCEPTION 'so' USING ERRCODE = '{state}'; END $$")
    assert type(raised.value) is fault


@pytest.fixture
def line(postgres_server: Server) -> Iterator[Line]:
    line = Line(postgres_server)
    yield line
    line.close()


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
        line.message = b"COMMIT" if after == 0 or length > 1 else b"the-new-one"
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

        event.listen(store._connections._engine, "before_cursor_execute", cut)
        entries = [entry() for _ in range(300)]
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
        results: list[Any] = []

        def append() -> None:
            try:
                results.append(other.append("s", [entry()], after=1))
            except Conflict as error:
                results.append(error)

        def overlap(connection: Connection) -> None:
            connection.exec_driver_sql(store._append, sql._row("s", 2, entry()))
            thread.start()
            waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = :db")
            db = connection.scalar(text("SELECT current_database()"))
            while not store._connections.read(lambda another: another.scalar(waiting, {"db": db})):
                pass

        thread = threading.Thread(target=append)
        store._connections.change(overlap)
        thread.join()
        assert [type(result) for result in results] == [Conflict]
        assert len(bodies(store)) == 2
