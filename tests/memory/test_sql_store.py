"""What is special to stores in SQL databases: opening, versions, processes, forks, faults. The rest is in the contract."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from executors import SOON
from postgres import Postgres as Server
from sqlalchemy import Connection, event, text

from memory import (
    Conflict,
    NewerVersion,
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
from memory.stores.dialects import Dialect, Postgres, Sqlite
from memory.stores.schema import MIGRATIONS
from memory.stores.sql import SqlStore

ROOT = Path(__file__).resolve().parents[2]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else sqlite_url(tmp_path)


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


def test_a_new_store_can_be_opened_by_several_processes_at_once(url: str) -> None:
    """Each succeeds, whoever of them makes the tables; and what each appends is there."""
    script = """
        import sys
        from memory import Conflict, open_store
        from memory.entries import Entry
        import memory.stores.sql
        print("ready", flush=True)
        sys.stdin.readline()
        store = open_store(sys.argv[1])
        end = 0
        while True:
            try:
                store.append("s", [Entry("round closed", body="{}")], end)
                break
            except Conflict:
                end = sum(1 for _ in store.read("s"))
        store.close()
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", dedent(script), url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    with opened(url) as store:
        assert [found.number for found in store.read("s")] == [1, 2, 3, 4, 5]


def test_the_switch_to_wal_waits_for_a_reader(tmp_path: Path, path: Path) -> None:
    """SQLite answers "locked" to it at once; whoever opens a store does not hear of that."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as reader:
        reader.execute("PRAGMA user_version = 7")
        reader.execute("BEGIN")
        reader.execute("SELECT name FROM sqlite_master").fetchall()
        release = threading.Timer(0.2, reader.rollback)
        release.start()
        with opened(sqlite_url(tmp_path)) as store:
            assert on(store, "PRAGMA journal_mode") == [("wal",)]
        release.join()


def test_the_switch_to_wal_gives_up_at_the_time_out(tmp_path: Path, path: Path) -> None:
    """It says who is in the way, and what to do."""
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("PRAGMA user_version = 7")
        reader.execute("BEGIN IMMEDIATE")
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


def in_process(script: str, *arguments: str) -> None:
    """Run *script* in a process of its own. Fails with what it wrote unless it ends well."""
    prelude = """
        import os, sys, threading, warnings
        from memory import open_store
        from memory.entries import Entry
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        store = open_store(sys.argv[1])

        def entry():
            return Entry("round closed", body="{}")

        def in_child(work):
            pid = os.fork()
            if pid == 0:
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
        stop = threading.Event()

        def write():
            after = 0
            while not stop.is_set():
                after = store.append("parent", [entry()], after)

        thread = threading.Thread(target=write)
        thread.start()
        for after in range(5):
            assert ended_well(in_child(lambda: store.append("child", [entry()], after)))
        stop.set()
        thread.join()
        assert len(list(store.read("child"))) == 5
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
        inside, leave = threading.Event(), threading.Event()

        def hold(connection):
            connection.exec_driver_sql("SELECT 1").all()
            inside.set()
            leave.wait()

        thread = threading.Thread(target=store._connections.read, args=[hold])
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
