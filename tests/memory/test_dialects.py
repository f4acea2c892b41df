"""What a database complains about is told apart: by SQLite's and PostgreSQL's own codes, with what to do about it."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from executors import SOON
from postgres import Postgres as Server
from sql_stores import (
    MIGRATIONS,
    Connections,
    Dialect,
    Postgres,
    Sqlite,
    bodies,
    entry,
    on,
    on_connecting,
    opened,
    sqlite_url,
)
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from memory import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly, StoreUnreachable, open_store
from memory.stores import StoredText

# -- a file -----------------------------------------------------------------------------------------------------------


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
            patched.setattr("memory.stores.sqlite.os", SimpleNamespace(**vars(os) | {"stat": stat}))
            for ask in (store.sessions, lambda: store.append("s", [entry()], after=1)):
                with pytest.raises(fault, match=said) as raised:
                    ask()
                assert type(raised.value) is fault
        assert store.append("s", [entry()], after=1) == 2


def test_a_full_disk_is_said_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing of an append; and the next one works once there is room."""
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry()], after=0)
    with monkeypatch.context() as patched:
        on_connecting(patched, lambda connection: connection.execute("PRAGMA max_page_count = 40"))
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
    on_connecting(monkeypatch, lambda connection: connection.execute("PRAGMA query_only = ON"))
    with opened(sqlite_url(tmp_path)) as store:
        assert bodies(store) == ["{}"]
        for write in (lambda: store.append("s", [entry()], 1), lambda: store.append("t", [entry()], 0)):
            with pytest.raises(StoreReadOnly, match=r"chat\.db cannot be written to; allow"):
                write()


def test_a_folder_that_may_not_be_written_to_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself only says that it cannot open the file."""
    said = sqlite3.OperationalError("unable to open database file")
    said.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    place, error = Sqlite(sqlite_url(tmp_path)), OperationalError("", None, said)
    assert type(place.convert_error(error)) is StoreError
    monkeypatch.setattr("memory.stores.sqlite.os.access", lambda *_: False)
    assert type(place.convert_error(error)) is StoreReadOnly


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
                on(store, statement)


# -- a server ---------------------------------------------------------------------------------------------------------


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
        ("postgres:s3cr3t@{host},{host}/nowhere", r"database \"nowhere\" does not exist"),
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
    fault = Postgres("postgresql://ada:s3cr3t@servr/db").convert_error(OperationalError("", None, Exception(words)))
    assert isinstance(fault, StoreUnreachable)
    assert "once the server is back, or check the URL if it has never answered" in str(fault)
    assert "s3cr3t" not in str(fault)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://ada:s3%2Ccr3t@a:5432,b:5433/db?target_session_attrs=read-write",
        "postgresql+psycopg://ada:s3,cr3t@/db?host=a:5432&host=b:5433&target_session_attrs=read-write",
        "postgresql+psycopg://ada:s3,cr3t@/db?host=a,b&port=5432,5433&target_session_attrs=read-write",
    ],
)
def test_several_hosts_are_read_in_each_form_that_libpq_and_sqlalchemy_know(url: str) -> None:
    """By what listens to notices too; messages name them, and not the password."""
    conninfo = pytest.importorskip("psycopg.conninfo")
    server = Postgres(url)
    asked = conninfo.conninfo_to_dict(server.conninfo)
    known = {"host": "a,b", "port": "5432,5433", "dbname": "db", "user": "ada", "password": "s3,cr3t"}
    assert asked == known | {"target_session_attrs": "read-write"}
    assert server.where in ("the PostgreSQL database 'db' on a:5432 or b:5433", "the PostgreSQL database 'db' on a,b")


@pytest.mark.parametrize("code", ["3D000", "28000", "28P01"])
def test_a_code_that_says_so_needs_no_words(code: str) -> None:
    """A driver that tells it is believed."""
    refused = type("Refused", (Exception,), {"sqlstate": code})("kein Zutritt")
    fault = Postgres("postgresql://ada@host/db").convert_error(OperationalError("", None, refused))
    assert "check the URL's user, password" in str(fault)
    assert not isinstance(fault, StoreUnreachable)


def test_a_server_that_has_much_to_change_is_not_taken_for_silent(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a large session could never be purged, nor a large database migrated; all else is given up as before."""
    monkeypatch.setattr("memory.stores.postgres.IDLE_TIMEOUT", 0.8)

    def slow(connection: Connection, _dialect: Dialect) -> None:
        connection.exec_driver_sql("SELECT pg_sleep(1.1)")

    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}timeout=0"
    with opened(url) as store:
        store.append("s", [entry()], after=0)
        store.save_texts("s", 1, 1, [StoredText(1, 0, "", "", "text")])
    with opened(url, migrations=(*MIGRATIONS, slow)) as store:
        body = "'BEGIN PERFORM pg_sleep(1.1); RETURN NULL; END'"
        on(store, f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS {body}")
        for table in ("entries", "texts"):
            on(store, f"CREATE TRIGGER slow BEFORE INSERT OR DELETE ON compactor_{table} EXECUTE FUNCTION slow()")
        store.save_texts("s", 1, 1, [StoredText(1, 0, "", "", "another")])
        store.purge("s")
        assert store.sessions() == []
        with pytest.raises(StoreUnreachable, match=r"said nothing for 0\.8 s"):
            store.append("s", [entry()], after=0)


def test_a_server_that_may_only_be_read_can_be_read(postgres_url: str) -> None:
    """And says so to who writes."""
    with opened(postgres_url) as store:
        store.append("s", [entry()], after=0)
    with opened(f"{postgres_url}?options=-cdefault_transaction_read_only%3Don") as store:
        assert bodies(store) == ["{}"]
        with pytest.raises(StoreReadOnly, match="read-only transaction"):
            store.append("s", [entry()], after=1)


@pytest.mark.parametrize(
    "options", ["timeout=2", "timeout=60&options=-clock_timeout%3D2000", "options=-cstatement_timeout%3D2000"]
)
def test_a_server_that_is_held_up_is_said(postgres_url: str, options: str) -> None:
    """Another's transaction that does not end; ours is undone, and works once the other is done."""
    with closing(Connections(Postgres(postgres_url))) as connections, opened(f"{postgres_url}?{options}") as other:
        other.append("s", [entry()], after=0)

        def hold(connection: Connection) -> None:
            connection.exec_driver_sql("UPDATE compactor_sessions SET key = 'moved'")
            with pytest.raises(StoreBusy, match=r"held up by others.*nothing was written"):
                other.append("s", [entry()], after=1)
            raise InterruptedError

        with pytest.raises(InterruptedError):
            connections.change(hold)
        assert other.append("s", [entry()], after=1) == 2


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


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1252"])
def test_a_database_that_does_not_hold_every_text_is_refused(postgres_server: Server, encoding: str) -> None:
    """When it is opened, with nothing made in it: later, one character would keep a whole session from being found."""
    postgres_server.execute(f"CREATE DATABASE narrow ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        for migrate in (True, False):
            with pytest.raises(StoreError, match=rf"encoding {encoding}.*createdb --encoding=UTF8"):
                open_store(postgres_server.url("narrow"), migrate=migrate)
        with closing(Connections(Postgres(postgres_server.url("narrow")))) as connections:
            tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'compactor%%'"
            assert connections.read(lambda connection: connection.exec_driver_sql(tables).scalar()) == 0
    finally:
        postgres_server.execute("DROP DATABASE narrow WITH (FORCE)")


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_what_gave_way_to_another_is_done_again(postgres_url: str, state: str) -> None:
    """At once, all of it and once: nobody hears of it."""
    with opened(postgres_url) as store:
        on(store, "CREATE SEQUENCE tried")  # no transaction that is undone takes back what this has counted
        body = f"BEGIN IF nextval(''tried'') < 3 THEN RAISE EXCEPTION ''so'' USING ERRCODE = ''{state}''; END IF;"
        on(store, f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS '{body} RETURN NEW; END'")
        on(store, "CREATE TRIGGER fail BEFORE INSERT ON compactor_entries FOR EACH ROW EXECUTE FUNCTION fail()")
        entries = [entry(), entry()]
        assert store.append("s", entries, after=0) == 2
        on(store, "SELECT setval('tried', 1)")
        assert store.append("s", [entry()], after=2) == 3
        assert list(store.read("s"))[:2] == entries


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_writers_on_a_strict_server_lose_nothing(postgres_url: str, level: str) -> None:
    """Where each transaction is isolated from all others, those that clash are done again."""
    with opened(f"{postgres_url}?options=-cdefault_transaction_isolation%3D{level.replace(' ', '%5C%20')}") as store:

        def write(session: str) -> None:
            for after in range(0, 20, 2):
                store.append(session, [entry(), entry()], after)

        with ThreadPoolExecutor() as threads:
            for done in [threads.submit(write, f"s{number}") for number in range(4)]:
                done.result(SOON)
        assert [len(bodies(store, session)) for session in store.sessions()] == [20] * 4


@pytest.mark.parametrize(
    "place",
    [
        "ada:s3cr3t@host:port/db",
        "ada:s3cr3t@host:/db",
        "ada:s3cr3t@/db?host=h1:x&host=h2:5",
        "ada:s3cr3t@host/db?port=x",
    ],
)
def test_a_wrong_port_is_one_of_our_errors(place: str) -> None:
    """With how a URL is written, and without the password."""
    with pytest.raises(StoreError) as raised:
        open_store(f"postgresql+psycopg://{place}")
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("limit", ["ROLE few CONNECTION LIMIT 0", "DATABASE few CONNECTION LIMIT 0"])
def test_too_many_connections_are_others_and_no_outage(postgres_server: Server, limit: str) -> None:
    """The server is there, and waiting helps."""
    postgres_server.execute("CREATE ROLE few LOGIN")
    postgres_server.execute("CREATE DATABASE few OWNER few TEMPLATE template0")
    try:
        postgres_server.execute(f"ALTER {limit}")
        with pytest.raises(StoreBusy, match=r"too many connections for (role|database).*try again"):
            open_store(f"postgresql+psycopg://few@127.0.0.1:{postgres_server.port}/few")
    finally:
        postgres_server.execute("DROP DATABASE few")
        postgres_server.execute("DROP ROLE few")
