"""A store in a SQL database: its URL, what is written and read whole, and what is erased. The rest is in the contract that
all stores keep to."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from textwrap import dedent
from typing import Any
from weakref import WeakSet

import pytest
from sql_stores import Postgres, Sqlite, SqlStore, bodies, entry, on, on_connecting, opened, sqlite_url, told
from sqlalchemy import Connection

from memory import Entry, Memory, StoreClosed, StoreDamaged, StoreError, open_store
from memory.stores import Checkpoint, StoredText

ROOT = Path(__file__).resolve().parents[2]


# -- URLs -------------------------------------------------------------------------------------------------------------


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


# -- durability -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "level"), [("", 2), ("?synchronous=NORMAL", 1), ("?synchronous=extra", 3)])
def test_how_durable_sqlite_is_can_be_chosen(tmp_path: Path, options: str, level: int) -> None:
    """Full where nothing is said; with a log beside the file, in which readers and the writer do not wait for another."""
    with opened(sqlite_url(tmp_path, options)) as store:
        assert on(store, "PRAGMA synchronous") == [(level,)]
        assert on(store, "PRAGMA journal_mode") == [("wal",)]


def test_a_closed_store_says_so(url: str) -> None:
    """Whatever it is asked; to close it again is no error."""
    with opened(url) as store:
        store.append("s", [entry()], after=0)
        store.close()
        store.close()
        for ask in (store.sessions, lambda: store.read("s"), lambda: store.append("s", [entry()], 1)):
            with pytest.raises(StoreClosed, match="open another on the same URL"):
                ask()


# -- names and entries ------------------------------------------------------------------------------------------------


def test_names_never_become_part_of_a_statement(url: str) -> None:
    """Statements are the same whatever they are about; names of any length are told apart."""
    names = ["'; DROP TABLE compactor_entries; --", "%s :key ? $1", "\0\ud800", "n" * 10_000, "n" * 9_999 + "m"]
    statements: set[str] = set()
    with opened(url) as store, told(lambda *facts: statements.add(facts[2])):
        for name in names:
            fields = {"round_id": name, "user_query": "q", "created_at": "2026-01-01T12:00:00Z"}
            opened_round = Entry("round opened", body=json.dumps(fields), round=1)
            store.append(name, [opened_round, entry(id=name)], after=0)
            store.save_checkpoint(name, Checkpoint(2, "{}"))
            assert store.lease(name, name, name, 60) == 0.0
            store.release(name, name, name)
            store.save_texts(name, 1, 1, [StoredText(1, 0, name, "", "words")])
            assert store.find_round_number(name, name) == 1
            assert [found.id for found in store.read_kinds(name, [name, "round closed"])] == [name]
            assert store.find_texts(name, [name], name).total == 1
            store.redact(name, 2)
            assert len(list(store.read_rounds(name, 1, 1))) == 1
        assert store.sessions() == sorted(names)
        for name in names:
            store.purge(name)
        assert store.sessions() == []
    assert statements
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
        assert store.find_round_number("s", "") == 0


def test_an_append_of_many_makes_a_few_rows_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an import is: what is in memory at once is bounded, by entries and by characters."""
    monkeypatch.setattr("memory.stores.sql.PAGE", 150)
    monkeypatch.setattr("memory.stores.connections.PAGE", 150)
    monkeypatch.setattr("memory.stores.connections.PAGE_CHARACTERS", 3_000)
    present, most = WeakSet[Body](), 0

    class Aside(list[Entry]):
        def __iter__(self) -> Any:
            nonlocal most
            for item in super().__iter__():
                present.add(body := Body(item.body))
                most = max(most, len(present))
                yield Entry(item.kind, id=item.id, body=body, created_at=item.created_at, round=item.round)

    bodies = ["x" * 10] * 400 + ["x" * 100] * 200
    written = [entry(body, round=place) for place, body in enumerate(bodies, 1)]
    with opened(url) as store:
        assert store.append("s", Aside(written), after=0) == 600
        assert list(store.read("s")) == written
    assert most <= 2 * 150 + 1


class Body(str):
    """A text that can be referenced weakly."""


@pytest.mark.parametrize("number", [1, 2, 20, 300])
def test_an_append_looks_for_the_end_of_the_log_once(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many entries, as where a user's message closes a round and opens one: one look, and one commit."""
    said: list[str] = []
    on_connecting(monkeypatch, lambda connection: connection.set_trace_callback(said.append))
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry()], after=0)
        said.clear()
        store.append("s", [entry() for _ in range(number)], after=1)
        words = [statement.split()[0] for statement in said]
        assert words == ["BEGIN", "SELECT", *["INSERT"] * number, "COMMIT"]


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 3, 4, 6, 7])
def test_what_is_read_in_pages_is_whole(url: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a page ends, with and without a limit, also where one entry is more than a page."""
    monkeypatch.setattr("memory.stores.sql.PAGE", 3)
    monkeypatch.setattr("memory.stores.connections.PAGE", 3)
    monkeypatch.setattr("memory.stores.connections.PAGE_CHARACTERS", 100)
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
    monkeypatch.setattr("memory.stores.sql.PAGE", 4)
    monkeypatch.setattr("memory.stores.connections.PAGE", 4)
    monkeypatch.setattr("memory.stores.connections.PAGE_CHARACTERS", 200)
    asked: list[Any] = []
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry("x" * 100) for _ in range(8)], after=0)
        with told(lambda *facts: asked.append(facts[3][-1])):
            assert len(list(store.read("s"))) == 8
    assert asked == [4, 2, 2, 2]


def test_a_reader_holds_nothing_while_its_consumer_works(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock and no transaction: a log is checkpointed, and sessions are purged, whoever reads slowly."""
    monkeypatch.setattr("memory.stores.sql.PAGE", 1)
    monkeypatch.setattr("memory.stores.connections.PAGE", 1)
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


# -- erasing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("erase", [lambda store: store.redact("s", 2), lambda store: store.purge("s")])
def test_what_is_erased_is_not_in_the_file_any_more(tmp_path: Path, erase: Any) -> None:
    """Nor in the log beside it."""
    with opened(sqlite_url(tmp_path)) as store:
        store.append("s", [entry(), entry("swordfish" * 2000, round=1), entry()], after=0)
        store.save_texts("s", 1, 1, [StoredText(1, 1, "", "", "swordfish")])
        store.save_texts("s", 1, 1, [])
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
    erased = Sqlite.finish_erasing
    monkeypatch.setattr(Sqlite, "finish_erasing", lambda self, its: (times.append(its), erased(self, its))[1])
    with opened(sqlite_url(tmp_path)) as store:
        memory = Memory("s", store=store)
        round_ = memory.create_round("swordfish")
        memory.add_post(round_, send_from="User", send_to="a", message="swordfish")
        memory.redact("r1.p1")
        assert len(times) == 1
        assert not any(b"swordfish" in file.read_bytes() for file in tmp_path.iterdir())
        assert "swordfish" not in str(bodies(store))
