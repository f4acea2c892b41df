"""A file that is damaged, cut short, removed or another program's is said to be so and never written to."""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from histories import texts_of
from sql_stores import QUICK, log_of, on, opened, same_as_resumed, sqlite_url, turn

from memory import Memory, StoreDamaged, StoreError, open_store


def contents(folder: Path) -> dict[str, str]:
    """Return what there is in a folder. SQLite's readers leave a table of their locks, and an empty log."""
    return {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest()
        for one in folder.iterdir()
        if one.stat().st_size and not one.name.endswith("-shm")
    }


def with_turns(folder: Path, count: int) -> None:
    """Make a session of so many rounds, and close its file."""
    with opened(sqlite_url(folder, QUICK)) as store:
        memory = Memory("s", store=store)
        for number in range(1, count + 1):
            turn(memory, str(number))


def with_noise(whole: bytes) -> bytes:
    """Return a database with random bytes over the middle of every page but the first."""
    noise = random.Random(4)
    pages = [whole[at : at + 4096] for at in range(0, len(whole), 4096)]
    return pages[0] + b"".join(page[:3] + noise.randbytes(4000) + page[4003:] for page in pages[1:])


def others(folder: Path, mode: str = "wal") -> bytes:
    with closing(sqlite3.connect(folder / "other.db")) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute("CREATE TABLE letters (said TEXT)")
    return (folder / "other.db").read_bytes()


@pytest.mark.parametrize(
    ("damaged", "fault", "said"),
    [
        (with_noise, StoreDamaged, "restore a backup"),
        (lambda whole: b"\0" * 100 + whole[100:], StoreDamaged, "restore a backup"),
        (lambda whole: whole[: len(whole) // 2], StoreDamaged, "restore a backup"),
        (lambda whole: whole[:100], StoreDamaged, "name another file"),
        (lambda _: b"Dear diary, " * 99, StoreDamaged, "restore a backup, or name another file"),
        (others, StoreError, "the database of another program; nothing was changed: name another file"),
    ],
    ids=["noise", "header", "half of it", "its beginning", "text", "another program's"],
)
def test_a_file_that_cannot_be_read_is_never_written_to(
    tmp_path: Path, damaged: Callable[[Any], bytes], fault: type[StoreError], said: str
) -> None:
    """However often somebody tries."""
    with_turns(tmp_path, 20)
    path = tmp_path / "chat.db"
    path.write_bytes(damaged(tmp_path if damaged is others else path.read_bytes()))
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(fault, match=said) as raised, opened(sqlite_url(tmp_path, QUICK)) as store:
            turn(Memory("s", store=store), "21")
        assert type(raised.value) is fault
    assert contents(tmp_path) == before


def test_whatever_byte_is_damaged_the_error_is_one_of_ours(tmp_path: Path) -> None:
    """The file says of itself how it is to be read; so its first page may make SQLite and its driver say anything."""
    with_turns(tmp_path, 3)
    path, chance, refused = tmp_path / "chat.db", random.Random(7), 0
    whole = path.read_bytes()
    used = [at for at, byte in enumerate(whole) if byte]
    first = [at for at in used if at < 4096]
    for attempt in range(40):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[chance.choice(first if attempt % 2 else used)] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            with opened(sqlite_url(tmp_path, QUICK)) as store:
                memory = Memory("s", store=store)
                memory.search("answer")
                turn(memory, "4")
        except StoreError:
            refused += 1
        for left in tmp_path.iterdir():
            left.unlink()
    assert refused


def test_a_version_that_is_no_number_is_damage(tmp_path: Path) -> None:
    """And not taken for an older one."""
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        on(store, "UPDATE compactor_schema SET version = 'x'")
    with pytest.raises(StoreDamaged, match="does not say which version"):
        open_store(sqlite_url(tmp_path, QUICK))


def test_a_folder_in_the_place_of_the_file_is_said(tmp_path: Path) -> None:
    """It is named, and nothing is put into it."""
    (tmp_path / "chat.db").mkdir()
    with pytest.raises(StoreError, match=r"chat\.db is a folder; name a file in it"):
        open_store(sqlite_url(tmp_path, QUICK))
    assert not list((tmp_path / "chat.db").iterdir())


def in_use(folder: Path, turns: int) -> Path:
    """Return a copy of a file and its log that are in use: what a process that was killed leaves behind."""
    copied = folder / "copied"
    copied.mkdir()
    with opened(sqlite_url(folder, QUICK)) as store:
        memory = Memory("s", store=store)
        for number in range(1, turns + 1):
            turn(memory, str(number))
        for name in ("chat.db", "chat.db-wal"):
            shutil.copy(folder / name, copied)
    return copied


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("garbled", [False, True])
def test_of_a_log_that_breaks_off_what_is_whole_is_there(tmp_path: Path, share: float, garbled: bool) -> None:
    """Up to some append and no further, with nothing torn; and the chat goes on behind it."""
    folder = in_use(tmp_path, 12)
    wal = folder / "chat.db-wal"
    whole = wal.read_bytes()
    at = int(len(whole) * share)
    wal.write_bytes(whole[:at] + (bytes(byte ^ 0xFF for byte in whole[at : at + 64]) + whole[at + 64 :]) * garbled)
    with opened(sqlite_url(folder, QUICK)) as store:
        left = len(log_of(store))
        assert 0 < left < 36
        memory = Memory("s", store=store)
        assert [one.user_query for one in memory.conversation.rounds] == [
            f"question {number}" for number in range(1, (left + 2) // 3 + 1)
        ]
        turn(memory, "after")
        same_as_resumed(memory, store)


def test_a_file_without_its_log_is_what_was_last_moved_there(tmp_path: Path) -> None:
    """SQLite cannot know that there was more; what is there is whole."""
    with_turns(tmp_path, 2)
    folder = in_use(tmp_path, 0)
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        turn(Memory("s", store=store), "3")
        shutil.copy(tmp_path / "chat.db", folder)
    (folder / "chat.db-wal").unlink()
    with opened(sqlite_url(folder, QUICK)) as store:
        memory = Memory("s", store=store)
        assert len(texts_of(memory)) == 2
        turn(memory, "4")
        same_as_resumed(memory, store)


@pytest.mark.parametrize("there", [True, False], ids=["empty", "missing"])
def test_a_log_without_its_file_is_left_alone(tmp_path: Path, there: bool) -> None:
    """SQLite would remove it as a stranger's, and it may hold the whole session."""
    folder = in_use(tmp_path, 3)
    (folder / "chat.db").unlink()
    if there:
        (folder / "chat.db").touch()
    before = contents(folder)
    with pytest.raises(StoreDamaged, match=r"chat\.db-wal beside it is not; nothing was changed: restore both"):
        open_store(sqlite_url(folder, QUICK))
    assert contents(folder) == before
    shutil.copy(tmp_path / "chat.db", folder)
    with opened(sqlite_url(folder, QUICK)) as store:
        assert len(texts_of(Memory("s", store=store))) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="there nobody can remove a file that is open")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_while_it_is_open_takes_nothing_more(tmp_path: Path, replaced: bool) -> None:
    """What is written to it would be lost with its last reader; put back, it goes on."""
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        (tmp_path / "chat.db").rename(tmp_path / "aside.db")
        if replaced:
            shutil.copy(tmp_path / "aside.db", tmp_path / "chat.db")
        for ask in (lambda: turn(memory, "2"), store.sessions):
            with pytest.raises(
                StoreDamaged,
                match="not the file that was opened.*open it anew" if replaced else "was removed.*put it back",
            ):
                ask()
        assert texts_of(memory) == [("question 1", ["answer 1"])]
        assert (tmp_path / "chat.db").exists() is replaced
        (tmp_path / "aside.db").replace(tmp_path / "chat.db")
        turn(memory, "2")
        same_as_resumed(memory, store)


SECRET = "account 99887766"
NOT_UTF8 = SECRET.encode() + b"\xff"

#: Where a damaged file holds what no store has written there, and what reads it.
READERS: list[tuple[str, str, object, Callable[[Any], object]]] = [
    ("sessions", "name", b"abc", lambda store: store.sessions()),
    ("sessions", "name", f"{SECRET} \u00e9\\x", lambda store: store.sessions()),
    ("sessions", "name", b"abc", lambda store: store.list_extents()),
    ("entries", "created_at", SECRET, lambda store: store.list_extents()),
    ("entries", "created_at", SECRET, lambda store: list(store.read("s"))),
    ("entries", "body", NOT_UTF8, lambda store: list(store.read("s"))),
    ("entries", "body", SECRET, lambda store: Memory("s", store=store)),
    ("entries", "body", '{"round_id": ["' + SECRET + '"]}', lambda store: Memory("s", store=store)),
    ("entries", "round", SECRET, lambda store: store.find_round_number("s", "1")),
    ("texts_reach", "reach", SECRET, lambda store: store.get_last_indexed_round("s")),
]


@pytest.mark.parametrize("cast", ["", "TEXT"])
@pytest.mark.parametrize(("table", "column", "value", "ask"), READERS)
def test_a_damaged_value_is_one_of_our_errors_and_not_quoted(
    tmp_path: Path, table: str, column: str, value: object, cast: str, ask: Callable[[Any], object]
) -> None:
    """Neither in the error nor in what a traceback prints with it: errors end up in logs."""
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        memory.index_texts()
        to = "CAST(:value AS TEXT)" if cast and value == NOT_UTF8 else ":value"
        on(store, f"UPDATE compactor_{table} SET {column} = {to}", value=value)  # noqa: S608
        with pytest.raises(StoreDamaged) as raised:
            ask(store)
    printed = "".join(traceback.format_exception(raised.value))
    assert "StoreDamaged" in printed
    assert "99887766" not in printed
