"""The tables of a store: an older version's are brought up to date once and whole, a newer version's and another program's
are left alone."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from histories import texts_of
from sql_stores import (
    MIGRATIONS,
    Connections,
    Dialect,
    SqlStore,
    bodies,
    dialect_of,
    entry,
    on,
    opened,
    read_version,
    same_as_resumed,
    sqlite_url,
    told,
    turn,
)
from sqlalchemy import Connection

from memory import Memory, NewerVersion, OlderVersion, StoreDamaged, StoreError, list_expired, open_store
from memory.stores import join_name
from memory.stores.base import CAPABILITIES, escape, make_key
from memory.stores.limiting import LimitRow

ROOT = Path(__file__).resolve().parents[2]


# -- versions ---------------------------------------------------------------------------------------------------------


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
            assert on(store, "SELECT version FROM compactor_schema") == [(len(migrations),)]
    assert done == [0]


def test_who_only_reads_changes_no_older_store(url: str) -> None:
    """It may be another program's that is still of the older version; and an empty place stays empty."""
    migrations = (*MIGRATIONS, add_colours)
    with closing(SqlStore(dialect_of(url))) as store:
        with pytest.raises(StoreError, match=r"nothing was ever stored in .* write to it first") as raised:
            store.open(migrate=False)
        assert type(raised.value) is StoreError
    with closing(Connections(dialect_of(url))) as connections:
        assert connections.read(lambda connection: read_version(connection, connections.dialect.where)) == 0
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
        assert on(store, "SELECT version FROM compactor_schema") == [(len(MIGRATIONS),)]
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
        newest = len(MIGRATIONS)
        known = rf"version {newest + 1}, and this one knows them up to {newest}.*upgrade"
        with pytest.raises(NewerVersion, match=known):
            open_store(url)
        assert on(store, "SELECT version FROM compactor_schema") == [(newest + 1,)]
        assert bodies(store) == ["{}"]


#: What version 1 wrote for a new session.
ADD_SESSION_1 = "INSERT INTO compactor_sessions (key, name) VALUES (:key, :name)"
ADD_ENTRY_1 = """INSERT INTO compactor_entries (session, number, id, kind, round, version, created_at, body)
    SELECT id, :number, :id, 'round closed', 1, 1, :at, '{}' FROM compactor_sessions WHERE key = :key"""


def test_sessions_of_version_1_get_their_tenant_and_their_activity(url: str) -> None:
    """From their names and their newest entries; version 1 refuses the tables from then on."""
    names = ["plain", join_name("acme", "s"), "\x1fnone", "a \\x1f b"]
    with opened(url, migrations=MIGRATIONS[:1]) as store:
        for hour, name in enumerate(names):
            on(store, ADD_SESSION_1, key=make_key(name), name=escape(name))
            for number in range(1, 12):
                at = f"2026-01-31T{hour:02}:{number:02}:59.123456+00:00"
                on(store, ADD_ENTRY_1, key=make_key(name), number=number, id=f"e{number}", at=at)
        on(store, "UPDATE compactor_sessions SET checkpoint = :body", body="x" * 100_000)
    with opened(url) as store:
        found = {row.name: (row.tenant, f"{row.last_activity:%H:%M}") for row in store.list_sessions(order="activity")}
        assert [*found] == ["a \\x1f b", "\x1fnone", join_name("acme", "s"), "plain"]
        assert found == {
            "plain": ("", "00:11"),
            join_name("acme", "s"): ("acme", "01:11"),
            "\x1fnone": ("", "02:11"),
            "a \\x1f b": ("", "03:11"),
        }
        store.append("plain", [entry()], after=11)
        assert store.list_sessions(order="activity")[0].name == "plain"
    with closing(SqlStore(dialect_of(url))) as older, pytest.raises(NewerVersion, match=f"version {len(MIGRATIONS)}"):
        older.open(MIGRATIONS[:1])


def test_sessions_of_version_2_are_marked_with_their_next_append(url: str) -> None:
    """Not before: whoever has them open looks at them, and nobody else did so far."""
    at = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
    with opened(url, migrations=MIGRATIONS[:2]) as store:
        on(store, ADD_SESSION_1, key="s", name="s")
        on(store, ADD_ENTRY_1, key="s", number=1, id="e1", at=at.isoformat())
    with opened(url) as store:
        assert store.list_due(at + timedelta(days=1)) == []
        store.append("s", [entry(created_at=at + timedelta(hours=1))], after=1)
        assert [one.name for one in store.list_due(at + timedelta(days=1))] == ["s"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_store_of_an_older_version_can_share_limits(url: str, version: int) -> None:
    """What was in it stays; the older version refuses it from then on."""
    with opened(url, migrations=MIGRATIONS[:version]) as store:
        on(store, ADD_SESSION_1, key="s", name="s")
        on(store, ADD_ENTRY_1, key="s", number=1, id="e1", at="2026-01-31T12:00:00+00:00")
    with opened(url) as store:
        store.change_limits(lambda rows: rows.put(LimitRow("kind", "key", "lane", 1.5)))
        assert store.change_limits(lambda rows: rows.find("kind", "key")) == LimitRow("kind", "key", "lane", 1.5)
        assert bodies(store) == ["{}"]
    with closing(SqlStore(dialect_of(url))) as older, pytest.raises(NewerVersion):
        older.open(MIGRATIONS[:version])


def test_activity_is_written_once_a_minute(url: str) -> None:
    """All other appends are the one statement that they were."""
    with opened(url) as store:
        at = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
        store.append("s", [entry(created_at=at)], after=0)
        asked: list[str] = []
        with told(lambda *facts: asked.append(facts[2])):
            for number in range(1, 60):
                store.append("s", [entry(created_at=at + timedelta(seconds=number))], after=number)
            assert not any(one.startswith("UPDATE") for one in asked)
            store.append("s", [entry(created_at=at + timedelta(seconds=60))], after=60)
            assert sum(one.startswith("UPDATE") for one in asked) == 1


@pytest.mark.parametrize("is_same", [True, False], ids=["same process", "another process"])
def test_a_clock_that_was_wrong_is_forgotten_with_the_next_append(url: str, is_same: bool) -> None:
    """Else a session that was written to under it would never expire, nor be found due, for years."""
    now = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
    with opened(url) as store, opened(url) as other:
        store.append("s", [entry(created_at=now)], after=0)
        store.append("s", [entry(created_at=now + timedelta(days=3_650))], after=1)
        (store if is_same else other).append("s", [entry(created_at=now + timedelta(hours=1))], after=2)
        assert [one.last_activity for one in store.list_sessions()] == [now + timedelta(hours=1)]
        assert [one.name for one in store.list_due(now + timedelta(hours=2))] == ["s"]
        (store if is_same else other).append("s", [entry(created_at=now + timedelta(minutes=10))], after=3)
        assert [one.last_activity for one in store.list_sessions()] == [now + timedelta(hours=1)], "hosts may differ"


def test_a_host_with_a_slow_clock_does_not_let_a_session_in_use_expire(url: str) -> None:
    """Such as one that begins in 1970. By the database's clock, the others are right."""
    now = datetime.now(UTC)
    with opened(url) as store, opened(url) as other:
        store.append("s", [entry(created_at=now)], after=0)
        other.append("s", [entry(created_at=now - timedelta(days=365))], after=1)
        assert list_expired(store, timedelta(days=30)) == []


def test_a_clock_that_is_fast_by_two_hours_is_forgotten(url: str) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    with opened(url) as store:
        store.append("s", [entry(created_at=now)], after=0)
        for after, (ahead, kept) in enumerate([(30, 30), (0, 30), (120, 120), (0, 0)], 1):
            store.append("s", [entry(created_at=now + timedelta(minutes=ahead))], after=after)
            assert [one.last_activity for one in store.list_sessions()] == [now + timedelta(minutes=kept)]


@pytest.mark.parametrize("versions", [(), (1, 1), (0,)], ids=["none", "two", "0"])
def test_a_store_that_does_not_say_its_version_is_damaged(url: str, versions: tuple[int, ...]) -> None:
    """Nobody guesses."""
    with opened(url) as store:
        on(store, "DELETE FROM compactor_schema")
        for version in versions:
            on(store, "INSERT INTO compactor_schema VALUES (:version)", version=version)
        with pytest.raises(StoreDamaged, match="which version"):
            open_store(url)


# -- other files ------------------------------------------------------------------------------------------------------


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


# -- killed in the middle ---------------------------------------------------------------------------------------------

MIGRATE = """
    import os, sys
    from memory.stores.postgres import Postgres
    from memory.stores.sqlite import Sqlite
    from memory.stores.schema import MIGRATIONS
    from memory.stores.sql import SqlStore

    def add(connection, _):
        connection.exec_driver_sql("CREATE TABLE colours (name TEXT)")

    def stop(connection, _):
        print("in the middle", flush=True)
        sys.stdin.read()

    url = sys.argv[1]
    store = SqlStore(Sqlite(url) if url.startswith("sqlite") else Postgres(url))
    store.open([*MIGRATIONS, add, stop])
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 1], ids=["of nothing", "of an older version"])
def test_a_process_that_is_killed_while_it_makes_the_tables_leaves_those_that_were(url: str, before: int) -> None:
    """The next one makes them, all of them, as if nothing had been."""
    if before:
        with opened(url) as store:
            turn(Memory("s", store=store), "1")
    with subprocess.Popen(
        [sys.executable, "-c", dedent(MIGRATE), url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"in the middle"
        other.kill()
    with opened(url) as store:
        assert on(store, "SELECT version FROM compactor_schema") == [(len(MIGRATIONS),)]
        with pytest.raises(StoreDamaged, match="colours"):
            on(store, "SELECT * FROM colours")
        memory = Memory("s", store=store)
        turn(memory, "2")
        assert len(texts_of(memory)) == before + 1
        same_as_resumed(memory, store)


def test_the_docs_list_all_abilities_of_a_store() -> None:
    """With the methods that make them."""
    page = (ROOT / "docs/storage.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (`.*`) \|$", page, re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", methods)) for name, methods in rows} == CAPABILITIES
