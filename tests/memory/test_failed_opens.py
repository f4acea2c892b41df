"""An open that fails changes nothing: no file is written, made or removed, and no log moved into its database."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from textwrap import dedent

import pytest
from command_line import run
from histories import texts_of
from sql_stores import MIGRATIONS, QUICK, Dialect, SqlStore, dialect_of, on, opened, sqlite_url, turn
from sqlalchemy import Connection

from memory import Memory, NewerVersion, OlderVersion, StoreBusy, StoreDamaged, StoreError, open_store


def files(folder: Path) -> dict[str, bytes]:
    """Return what is in *folder*; of the table of locks only that it is there: every reader writes to that."""
    return {one.name: b"" if one.name.endswith("-shm") else one.read_bytes() for one in folder.iterdir()}


def left_by_a_kill(folder: Path, prepare: Callable[[SqlStore], object] = lambda _: None) -> Path:
    """Return a folder with a database of ten rounds and a log of five more, as a killed process leaves them; `backup.db`
    beside is the database when it was sound."""
    with opened(sqlite_url(folder, QUICK)) as store:
        memory = Memory("s", store=store)
        for number in range(10):
            turn(memory, f"old {number}")
    left = folder / "left"
    left.mkdir()
    with opened(sqlite_url(folder, QUICK)) as store:
        memory = Memory("s", store=store)
        for number in range(5):
            turn(memory, f"new {number}")
        prepare(store)
        for name in ("chat.db", "chat.db-wal"):
            shutil.copy(folder / name, left)
    shutil.copy(left / "chat.db", folder / "backup.db")
    return left


def damage(path: Path, table: str) -> None:
    """Write noise over the first page of *table* in a database."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()
    whole = path.read_bytes()
    at = (page - 1) * 4096
    path.write_bytes(whole[:at] + b"\x99" * 4096 + whole[at + 4096 :])


def restored(folder: Path, left: Path) -> int:
    """Put the backup back, and return how many rounds there are then."""
    shutil.copy(folder / "backup.db", left / "chat.db")
    with opened(sqlite_url(left, QUICK)) as store:
        return len(texts_of(Memory("s", store=store)))


def test_an_open_that_finds_damage_leaves_the_log_for_the_backup(tmp_path: Path) -> None:
    """What was acknowledged and not yet moved into the database is there again once that is restored."""
    left = left_by_a_kill(tmp_path)
    damage(left / "chat.db", "compactor_schema")
    before = files(left)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="nothing was changed: restore a backup"):
            open_store(sqlite_url(left, QUICK))
        assert files(left) == before
    assert restored(tmp_path, left) == 15


def test_damage_that_is_found_later_leaves_the_log_for_the_backup(tmp_path: Path) -> None:
    """Whoever closes the store then is not the one who moves its log into what is damaged."""
    left = left_by_a_kill(tmp_path)
    damage(left / "chat.db", "compactor_sessions")
    before = (left / "chat.db-wal").read_bytes()
    store = open_store(sqlite_url(left, QUICK))
    with pytest.raises(StoreDamaged):
        Memory("s", store=store)
    store.close()
    assert (left / "chat.db-wal").read_bytes() == before
    assert restored(tmp_path, left) == 15


def test_damage_that_is_found_by_a_writer_leaves_its_appends(tmp_path: Path) -> None:
    """Also what it has appended itself before."""
    left = left_by_a_kill(tmp_path)
    damage(left / "chat.db", "compactor_leases")
    store = open_store(sqlite_url(left, QUICK))
    turn(Memory("s", store=store), "newest")
    with pytest.raises(StoreDamaged):
        store.lease("s", "name", "holder", 1.0)
    store.close()
    assert restored(tmp_path, left) == 16


@pytest.mark.slow
def test_damage_is_remembered_until_the_process_ends(tmp_path: Path) -> None:
    """A program that never closes its store, and just ends, leaves the log as well."""
    left = left_by_a_kill(tmp_path)
    damage(left / "chat.db", "compactor_sessions")
    script = """
        import sys
        from memory import Memory, StoreDamaged, open_store
        store = open_store(sys.argv[1])
        try:
            Memory("s", store=store)
        except StoreDamaged:
            print("damaged")
    """
    ran = subprocess.run(
        [sys.executable, "-c", dedent(script), sqlite_url(left, QUICK)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "damaged\n"
    assert restored(tmp_path, left) == 15


def test_who_only_reads_leaves_the_log_where_it_is(tmp_path: Path) -> None:
    """It may not have read the page that is damaged."""
    left = left_by_a_kill(tmp_path)
    before = files(left)
    with opened(sqlite_url(left, QUICK)) as store:
        assert store.sessions() == ["s"]
        assert len(texts_of(Memory("s", store=store))) == 15
    after = files(left)
    after.pop("chat.db-shm", None)
    assert after == before


@pytest.mark.parametrize("arguments", [["sessions"], ["show", "s"], ["events", "s"], ["export", "s"]])
def test_a_command_that_only_reads_leaves_the_log_where_it_is(tmp_path: Path, arguments: list[str]) -> None:
    """Whatever it may find or not."""
    left = left_by_a_kill(tmp_path)
    before = files(left)
    assert run(*arguments, "--store", sqlite_url(left)).code in (0, None)
    after = files(left)
    after.pop("chat.db-shm", None)
    assert after == before


def newest(store: SqlStore) -> None:
    on(store, "UPDATE compactor_schema SET version = 99")


def broken(_connection: Connection, _dialect: Dialect) -> None:
    raise StoreError("this step fails")


@pytest.mark.parametrize("shm", [False, True], ids=["copied", "killed"])
@pytest.mark.parametrize(
    ("prepare", "open_", "fault"),
    [
        (newest, open_store, NewerVersion),
        (lambda store: on(store, "DELETE FROM compactor_schema"), open_store, StoreDamaged),
        (lambda store: on(store, "DROP TABLE compactor_schema"), open_store, StoreError),
        (
            lambda _: None,
            lambda url: SqlStore(dialect_of(url)).open((*MIGRATIONS, broken), migrate=False),
            OlderVersion,
        ),
    ],
    ids=["newer", "no version", "another program's", "older, only to be read"],
)
def test_a_database_that_is_refused_keeps_its_log(
    tmp_path: Path, prepare: Callable[[SqlStore], object], open_: Callable[[str], object], fault: type, shm: bool
) -> None:
    """Byte for byte, with the table of locks of a process that was killed or without; and no file is added."""
    left = left_by_a_kill(tmp_path, prepare)
    if shm:
        (left / "chat.db-shm").write_bytes(b"\0" * 32768)
    before = files(left)
    with pytest.raises(fault):
        open_(sqlite_url(left, QUICK))
    assert files(left) == before


@pytest.mark.parametrize("logged", [False, True], ids=["closed", "with a log"])
def test_a_migration_that_fails_leaves_all_as_it_was(tmp_path: Path, logged: bool) -> None:
    """Also the log, which only its success moves."""
    left = left_by_a_kill(tmp_path)
    if not logged:
        (left / "chat.db-wal").unlink()
    before = files(left)
    store = SqlStore(dialect_of(sqlite_url(left, QUICK)))
    with pytest.raises(StoreError, match="this step fails"):
        store.open((*MIGRATIONS, broken))
    store.close()
    after = files(left)
    if logged:
        after.pop("chat.db-shm")
    assert after == before


@pytest.mark.parametrize("version", [lambda path: None, damage, newest], ids=["sound", "damaged", "newer"])
def test_a_closed_database_gets_no_file_beside_it_by_an_open_that_fails(
    tmp_path: Path, version: Callable[..., object]
) -> None:
    """SQLite's own readers leave an empty log and a table of locks."""
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        turn(Memory("s", store=store), "1")
        if version is newest:
            newest(store)
    if version is damage:
        damage(tmp_path / "chat.db", "compactor_schema")
    before = files(tmp_path)
    with suppress(StoreError), opened(sqlite_url(tmp_path, QUICK)):
        pass
    assert files(tmp_path) == before


def test_another_programs_journal_is_not_played_back(tmp_path: Path) -> None:
    """A transaction that it was killed in is its own to undo."""
    path, left = tmp_path / "chat.db", tmp_path / "left"
    left.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE letters (said TEXT)")
        other.execute("PRAGMA cache_size = 1")
        other.execute("BEGIN")
        other.executemany("INSERT INTO letters VALUES (?)", [["x" * 4000]] * 50)
        for name in ("chat.db", "chat.db-journal"):
            shutil.copy(tmp_path / name, left)
    before = files(left)
    assert before["chat.db-journal"]
    with pytest.raises(StoreError, match="database of another program"):
        open_store(sqlite_url(left, QUICK))
    assert files(left) == before


def test_a_database_that_another_keeps_locked_is_left_alone(tmp_path: Path) -> None:
    """It is said to be busy, and no file is added."""
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        turn(Memory("s", store=store), "1")
    with closing(sqlite3.connect(tmp_path / "chat.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        before = set(files(tmp_path))
        with pytest.raises(StoreBusy, match="try again"):
            open_store(sqlite_url(tmp_path, "?timeout=0.05"))
        assert set(files(tmp_path)) == before


def test_what_is_opened_only_to_be_read_is_not_made(tmp_path: Path) -> None:
    """A name that is mistyped leaves no empty file behind."""
    with pytest.raises(StoreError, match="nothing was ever stored"):
        open_store(sqlite_url(tmp_path, QUICK), migrate=False)
    assert files(tmp_path) == {}


# -- who may read them ------------------------------------------------------------------------------------------------


@pytest.fixture
def loose_umask() -> Iterator[None]:
    """What most systems set: everybody may read what nobody says anything of."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others on Windows")
@pytest.mark.usefixtures("loose_umask")
def test_a_conversation_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """The database, and all that SQLite ever puts beside it."""
    seen = {}
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        turn(Memory("s", store=store), "1")
        seen |= {one.name: mode(one) for one in tmp_path.iterdir()}
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        on(store, "PRAGMA journal_mode = DELETE")

        def append(connection: Connection) -> None:
            connection.exec_driver_sql("UPDATE compactor_sessions SET name = 'other'")
            seen["chat.db-journal"] = mode(tmp_path / "chat.db-journal")

        store._connections.change(append)
    assert seen == dict.fromkeys(("chat.db", "chat.db-wal", "chat.db-shm", "chat.db-journal"), "0o600")


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others on Windows")
@pytest.mark.usefixtures("loose_umask")
def test_a_file_that_was_there_keeps_its_permissions(tmp_path: Path) -> None:
    """Somebody may have let others read it on purpose; what is put beside it has the same."""
    (tmp_path / "chat.db").touch()
    (tmp_path / "chat.db").chmod(0o640)
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        turn(Memory("s", store=store), "1")
        assert {mode(one) for one in tmp_path.iterdir()} == {"0o640"}


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)
