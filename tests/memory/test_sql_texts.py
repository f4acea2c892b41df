"""A database without an index of trigrams gives the same answers; what was erased is in no part of its file."""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sql_stores import on_connecting
from sqlalchemy import Connection, create_engine, select

from memory import Memory, Store, open_store
from memory.stores import FoundText, FoundTexts, StoredText
from memory.stores import text_index as sql_texts

Asked = Callable[[str], list[tuple[Any, ...]]]

WORDS = ("fish", "sh", "é", "swordfish in", "100%")


def kept(url: str, rounds: int = 3) -> Store:
    """Return a store with a session of so many texts, each with its number in it."""
    store = open_store(url)
    Memory("s", store=store).create_round("q")
    store.save_texts("s", 1, rounds, [text(number) for number in range(1, rounds + 1)])
    return store


def text(number: int) -> StoredText:
    return StoredText(number, 0, "", "", f"{number}00% swordfish in the café")


def found(store: Store, *words: str) -> list[FoundText]:
    return sorted(store.find_texts("s", words, "").texts)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{(tmp_path / 'chat.db').as_posix()}"


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    """Asks the SQLite file."""
    opened: list[sqlite3.Connection] = []

    def answered(statement: str) -> list[tuple[Any, ...]]:
        opened.append(sqlite3.connect(tmp_path / "chat.db"))
        return opened[-1].execute(statement).fetchall()

    yield answered
    for connection in opened:
        connection.close()


def test_a_sqlite_without_trigrams_finds_the_same(url: str, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is older, or was built without them."""
    monkeypatch.setattr(sql_texts, "_FIRST_SQLITE_WITH_TRIGRAMS", (9, 0))
    store = kept(url)
    assert asked("SELECT name FROM sqlite_master WHERE name = 'compactor_trigrams'") == []
    for word in WORDS:
        assert len(found(store, word)) == (1 if word == "100%" else 3), word
    store.save_texts("s", 2, 2, [])
    assert [one.round for one in found(store, "swordfish")] == [1, 3]
    store.purge("s")
    store.close()


def without_trigrams(patch: pytest.MonkeyPatch) -> None:
    """Have no SQLite that is opened from now on know FTS5's tables: to name one is an error."""

    def deny(action: int, *named: Any) -> int:
        ours = named[0] == "compactor_trigrams" and action in (sqlite3.SQLITE_READ, sqlite3.SQLITE_INSERT)
        denied = ours or action in (sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_DROP_VTABLE)
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    on_connecting(patch, lambda connection: connection.set_authorizer(deny))
    patch.setattr(sql_texts, "_has_trigrams", lambda _connection: False)


@pytest.mark.parametrize("made_with", [True, False], ids=["made with", "made without"])
def test_a_chat_goes_on_in_a_sqlite_without_trigrams(url: str, asked: Asked, made_with: bool) -> None:
    """Words of any length are found in what was said before and since, whichever SQLite made the file, and again by
    one that has them; of what is erased nothing is left in an index that can no longer be kept."""

    def say(memory: Memory, *said: str) -> None:
        for one in said:
            memory.finish_round(memory.create_round(f"Where is the {one}?"))
        memory.index_texts()

    def hits(memory: Memory) -> list[int]:
        return [len(memory.search(word)) for word in ("swordfish", "sturgeon", "sh", "zq", "Zyxwvu")]

    before = ("swordfish", "Zyxwvu zq")
    if made_with:
        with closing(open_store(url)) as store:
            say(Memory("s", store=store), *before)
    with pytest.MonkeyPatch.context() as patch:
        without_trigrams(patch)
        with closing(open_store(url)) as store:
            memory = Memory("s", store=store)
            if not made_with:
                say(memory, *before)
            assert hits(memory) == [1, 0, 1, 1, 1]
            say(memory, "sturgeon")
            assert hits(memory) == [1, 1, 1, 1, 1]
            memory.redact("r2.p0")
            assert hits(memory) == [1, 1, 1, 0, 0]
    with closing(open_store(url)) as store:
        memory = Memory("s", store=store)
        say(memory, "Zyxwvu")
        assert hits(memory) == [1, 1, 1, 0, 1]
        if made_with:
            assert asked("SELECT count(*) FROM compactor_trigrams_data") == [(0,)]
        store.purge("s")
    assert asked("SELECT count(*) FROM compactor_texts") == [(0,)]


def test_a_session_can_be_purged_by_a_sqlite_without_trigrams(
    url: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that is all it does to the file."""
    kept(url).close()
    blocks = "SELECT block FROM compactor_trigrams_data"
    assert any(b"fis" in block for (block,) in asked(blocks))
    without_trigrams(monkeypatch)
    with closing(open_store(url)) as store:
        store.purge("s")
        assert store.sessions() == []
    assert not any(b"fis" in block for (block,) in asked(blocks))


def test_sqlite_asks_its_trigrams(url: str) -> None:
    """For words of three characters and more: nothing is found of what the index does not have."""
    store = kept(url)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("INSERT INTO compactor_trigrams(compactor_trigrams) VALUES ('delete-all')")
    connection.close()
    assert (found(store, "swordfish"), len(found(store, "sh")), len(found(store, "sh", "swordfish"))) == ([], 3, 3)
    store.close()


def test_what_was_erased_is_not_left_in_the_file(url: str, asked: Asked) -> None:
    """Neither its words nor their trigrams, in the table or the index; the index is as sound as before."""
    store = kept(url, 40)
    store.save_texts("s", 7, 7, [StoredText(7, 0, "", "", "zyxwvu")])
    assert any(b"zyx" in block for (block,) in asked("SELECT block FROM compactor_trigrams_data"))
    store.save_texts("s", 7, 7, [StoredText(7, 0, "", "", "erased")])
    for (block,) in asked("SELECT block FROM compactor_trigrams_data"):
        assert b"zyx" not in block
    assert asked("SELECT count(*) FROM compactor_texts WHERE text LIKE '%zyx%'") == [(0,)]
    assert (len(found(store, "swordfish")), found(store, "erased")[0].round) == (39, 7)
    store.purge("s")
    assert asked("SELECT count(*) FROM compactor_texts") == [(0,)]
    for (block,) in asked("SELECT block FROM compactor_trigrams_data"):
        assert b"fis" not in block
    store.close()


def test_what_was_erased_is_taken_out_of_a_large_index_step_by_step(url: str, asked: Asked) -> None:
    """Others may write between two of them; in the end there is one segment, and nothing erased in it."""
    store = kept(url, 300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_texts, "MAX_MERGED_PAGES", 1)
        steps, merge_texts = [], sql_texts.merge_texts

        def noted(connection: Connection, *, begin: bool) -> bool:
            steps.append(begin)
            return merge_texts(connection, begin=begin)

        patch.setattr("memory.stores.sql.merge_texts", noted)
        for number in range(1, 6):
            store.save_texts("s", 300 + number, 300 + number, [StoredText(300 + number, 0, "", "", "zyxwvu")])
        store.save_texts("s", 301, 305, [])
    assert steps[:2] == [True, False]
    assert asked("SELECT count(DISTINCT segid) FROM compactor_trigrams_idx") == [(1,)]
    assert not any(b"zyx" in block for (block,) in asked("SELECT block FROM compactor_trigrams_data"))
    assert (found(store, "zyxwvu"), len(found(store, "swordfish"))) == ([], 300)
    store.close()


def test_an_index_is_built_anew_step_by_step(url: str, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others write, erase and search between two steps, and the next erasing goes on where a process was killed. In the
    end, the index has exactly the texts."""
    store, build_texts = kept(url, 40), sql_texts.build_texts
    Memory("t", store=store).create_round("q")
    store.save_texts("t", 1, 20, [text(number) for number in range(1, 21)])
    monkeypatch.setattr(sql_texts, "MAX_DESCRIPTION", 0)
    monkeypatch.setattr(sql_texts, "MAX_BUILT", 25)
    steps = iter([True, True, True])  # the index has all of "s" then, and half of "t"
    with monkeypatch.context() as patch:
        patch.setattr(
            "memory.stores.sql.build_texts", lambda connection: next(steps, False) and build_texts(connection)
        )
        for session, number, word in (
            ("s", 1, "a"),
            ("s", 2, "zyxwvu"),
            ("s", 2, "b"),
            ("t", 2, "zyxwvu"),
            ("t", 2, "c"),
            ("s", 41, "later"),
            ("t", 15, "zyxwvu"),
            ("t", 15, "d"),
            ("t", 21, "later"),
        ):
            store.save_texts(session, number, number, [StoredText(number, 0, "", "", f"swordfish {word}")])
            assert len(found(store, "swordfish")) in (40, 41)
    assert asked("SELECT last >> 32 FROM compactor_trigrams_built") == [(2,)]
    store.save_texts("s", 3, 3, [])
    assert asked("SELECT name FROM sqlite_master WHERE name LIKE '%built%' OR name LIKE '%new%'") == []
    for session in "st":
        assert (
            sum(one.counts[0] for one in store.find_texts(session, ["swordfish"], "").texts)
            == {"s": 40, "t": 21}[session]
        )
        assert len(store.find_texts(session, ["later"], "").texts) == 1
    assert not any(b"zyx" in block for (block,) in asked("SELECT block FROM compactor_trigrams_data"))
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("INSERT INTO compactor_trigrams(compactor_trigrams, rank) VALUES ('integrity-check', 1)")
        connection.execute("INSERT INTO compactor_texts VALUES (99, 0, 0, 0, '', '', 4, 'word')")
        connection.execute("DELETE FROM compactor_texts WHERE id = 99")
    store.close()


@pytest.mark.parametrize("description", [0, 3_000])
def test_another_process_can_write_while_an_index_is_rewritten(
    description: int, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or built anew: in a pause, nobody holds the lock. Without pauses, it would not get that for all it asks."""
    store, wrote = kept(url, 40), list[int]()
    with closing(open_store(f"{url}?timeout=0")) as other:
        memory = Memory("other", store=other)

        def write(_seconds: float) -> None:
            wrote.append(memory.append({"role": "user", "content": "Hello"}).round_number)

        monkeypatch.setattr("memory.stores.sql.sleep", write)
        monkeypatch.setattr("memory.stores.sql.PAUSE_SECONDS", -1.0)
        monkeypatch.setattr(sql_texts, "MAX_DESCRIPTION", description)
        monkeypatch.setattr(sql_texts, "MAX_BUILT", 10)
        store.save_texts("s", 1, 1, [])
    assert len(wrote) >= (6 if not description else 1)
    store.close()


def test_a_sqlite_without_trigrams_ends_the_building_of_an_index(
    url: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can continue neither index: both are emptied, so that nothing erased stays in them."""
    store = kept(url, 40)
    monkeypatch.setattr(sql_texts, "MAX_DESCRIPTION", 0)
    with monkeypatch.context() as patch:
        steps, build_texts = iter([True, True]), sql_texts.build_texts
        patch.setattr(
            "memory.stores.sql.build_texts", lambda connection: next(steps, False) and build_texts(connection)
        )
        store.save_texts("s", 1, 1, [])
    store.close()
    with monkeypatch.context() as patch:
        without_trigrams(patch)
        with closing(open_store(url)) as store:
            store.save_texts("s", 2, 2, [StoredText(2, 0, "", "", "erased")])
    for table in ("compactor_trigrams", "compactor_trigrams_new"):
        assert asked(f"SELECT count(*) FROM {table}_data") == [(0,)]  # noqa: S608
    with closing(open_store(url)) as store:
        store.save_texts("s", 3, 3, [])
        assert len(found(store, "swordfish")) == 37


@pytest.mark.slow
def test_an_index_that_was_rewritten_thousands_of_times_is_not_damaged(url: str, tmp_path: Path) -> None:
    """SQLite counts the rewritings in the index, and takes one with more than 2,000 levels for damaged."""
    store = kept(url)
    with closing(sqlite3.connect(tmp_path / "chat.db")) as connection, connection:
        for number in range(2_800):  # as erasing a text of one session does, with others beside it
            place = (2**40 + number, number)
            connection.execute("INSERT INTO compactor_texts VALUES (?, 999, ?, 0, '', '', 4, 'word')", place)
            connection.execute("INSERT INTO compactor_trigrams(compactor_trigrams, rank) VALUES ('merge', -1)")
    for number in range(1, 60):
        store.save_texts("s", 1, 3, [text(number % 3 + 1)])
    assert [one.round for one in found(store, "swordfish")] == [3]
    store.purge("s")
    store.close()


def test_texts_behind_a_gap_are_not_taken(url: str) -> None:
    """They are of a session that was purged, by somebody who does not know yet."""
    store = kept(url)
    store.save_texts("s", 5, 5, [text(5)])
    assert (store.get_last_indexed_round("s"), len(found(store, "swordfish"))) == (3, 3)
    store.save_texts("none", 1, 1, [text(1)])
    assert store.find_texts("none", ["fish"], "") == FoundTexts((), 0, 0)
    store.close()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_search_holds_a_page_of_texts_at_a_time(
    database: str, url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many have the word: of those that it has counted, it keeps where they stand."""
    store = kept(url if database == "sqlite" else request.getfixturevalue("postgres_url"))
    long = "swordfish " * 5_000
    store.save_texts("s", 1, 20, [StoredText(number, 0, "", "", f"{number} {long}") for number in range(1, 21)])
    monkeypatch.setattr(sql_texts, "PAGE", 2)
    tracemalloc.start()
    try:
        assert [one.counts for one in found(store, "swordfish")] == [(5_000,)] * 20
        assert tracemalloc.get_traced_memory()[1] < 600_000  # of a million characters
    finally:
        tracemalloc.stop()
    store.close()


def test_handing_over_the_same_again_changes_nothing(url: str, asked: Asked) -> None:
    """Two processes may be at it at once."""
    store = kept(url)
    before = asked("SELECT id, text FROM compactor_texts")
    store.save_texts("s", 1, 4, [text(number) for number in (3, 2, 1)])
    assert (asked("SELECT id, text FROM compactor_texts"), store.get_last_indexed_round("s")) == (before, 4)
    store.close()


def test_a_postgresql_without_the_extension_finds_the_same(postgres_url: str) -> None:
    """Where it is not installed, or the user may not: the tables are there, and other work of the transaction."""
    import psycopg

    place = postgres_url.replace("+psycopg", "")
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN")
        connection.execute("CREATE SCHEMA AUTHORIZATION guest")
    try:
        store = kept(postgres_url.replace("postgres@", "guest@"))
        for word in WORDS:
            assert len(found(store, word)) == (1 if word == "100%" else 3), word
        store.close()
        with psycopg.connect(place, autocommit=True) as connection:
            tables = "SELECT count(*) FROM pg_indexes WHERE indexname = 'compactor_trigrams'"
            assert connection.execute(tables).fetchall() == [(0,)]
    finally:
        with psycopg.connect(place, autocommit=True) as connection:
            connection.execute("DROP OWNED BY guest")
            connection.execute("DROP ROLE guest")


def test_postgresql_asks_its_trigrams(postgres_url: str) -> None:
    """The index is there, and of use for what is asked."""
    kept(postgres_url).close()
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        connection.exec_driver_sql("SET enable_seqscan = off")
        _, has_any = sql_texts.match_words(connection, 1, ["swordfish"])
        asked = select(sql_texts._TEXTS.c.id).where(has_any)
        compiled = str(asked.compile(engine, compile_kwargs={"literal_binds": True}))
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {compiled}").scalars())
    engine.dispose()
    assert "_text_idx" in plan  # a partition's part of compactor_trigrams
