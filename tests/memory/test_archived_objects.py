"""Objects of an archive that are cut off, damaged or forged are refused, and listed."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from archiving import LATER, NOON, move, write

from memory import (
    NewerVersion,
    StoreDamaged,
    StoreError,
    open_store,
)
from memory.transfer.archive import (
    expire_archive,
    list_archive,
    purge_archived,
    restore_session,
)


def object_of(where: Path) -> Path:
    (row,) = list_archive(where)
    return where / row.key


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """An archive with one session, of ten rounds."""
    store = open_store("memory://")
    write(store, "s", *(f"what is {number}?" for number in range(10)))
    move(store, tmp_path / "archive")
    return tmp_path / "archive"


def lines_of(where: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(object_of(where).read_bytes()).splitlines()]


def forge(where: Path, lines: list[Any]) -> None:
    """Replace the object by one of these lines, with a digest that is right."""
    import hashlib

    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    digest = hashlib.sha256(content).hexdigest()
    object_of(where).write_bytes(gzip.compress(content + json.dumps({"sha256": digest}).encode() + b"\n"))


def test_an_object_that_is_cut_off_anywhere_is_refused(archived: Path) -> None:
    """And nothing is stored; the object stays as it is."""
    store, whole = open_store("memory://"), object_of(archived).read_bytes()
    for end in range(0, len(whole), 3):
        object_of(archived).write_bytes(whole[:end])
        with pytest.raises(StoreDamaged, match="put an undamaged copy"):
            restore_session(store, archived, "s")
    assert list(store.sessions()) == []
    assert object_of(archived).exists()


def test_an_object_with_any_flipped_bit_is_refused_or_says_the_same(archived: Path) -> None:
    """gzip's own head has bits that mean nothing."""
    whole = object_of(archived).read_bytes()
    right = gzip.decompress(whole)
    for place in range(0, len(whole), 5):
        object_of(archived).write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        store = open_store("memory://")
        try:
            restore_session(store, archived, "s")
        except (StoreDamaged, NewerVersion):  # a bit of the version
            assert list(store.sessions()) == []
        else:
            assert gzip.decompress(object_of(archived).read_bytes()) == right


def replaced(place: int, **fields: Any) -> Callable[[list[dict[str, Any]]], list[Any]]:
    return lambda lines: [{**one, **fields} if at == place else one for at, one in enumerate(lines)]


DEEP = "[" * 100_000 + "]" * 100_000
#: Fields that no log has: in the head of an object, and in one of its entries.
HEADS: list[dict[str, Any]] = [
    *({"format": "context-compactor session"}, {"version": 0.5}, {"session": "other"}, {"session": 7}, {"id": 7}),
    *({"entries": 11}, {"entries": 1}, {"entries": -1}, {"last": "other"}),
    *({"last_activity": "yesterday"}, {"last_activity": 7}),
]
ENTRIES: list[dict[str, Any]] = [
    *({"number": 9}, {"kind": ""}, {"kind": 7}, {"id": "\n"}, {"created_at": "0001-01-01T00:00:00+23:00"}),
    *({"body": "{"}, {"body": {"round_id": "x"}}, {"body": '"é"'}, {"body": DEEP}),
    *({"kind": "starred", "body": DEEP}, {"kind": "starred", "body": "NaN,"}),
    {"kind": "round closed", "body": '{"round_id":"none"}'},
]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (replaced(0, version=2), NewerVersion),
        (replaced(3, version=99), NewerVersion),
        *((replaced(0, **fields), StoreDamaged) for fields in HEADS),
        *((replaced(3, **fields), StoreDamaged) for fields in ENTRIES),
        (lambda lines: [lines[0], *lines[2:]], StoreDamaged),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], StoreDamaged),
        (lambda lines: [[], *lines], StoreDamaged),
        (lambda lines: [], StoreDamaged),
        (lambda lines: [*lines, {"more": 1}], StoreDamaged),
    ],
)
def test_an_object_that_says_what_no_log_says_is_refused(
    archived: Path, change: Callable[[list[dict[str, Any]]], list[Any]], error: type[StoreError]
) -> None:
    """With a digest that is right: whoever may write to the place may make one."""
    forge(archived, change(lines_of(archived)[:-1]))
    store = open_store("memory://")
    with pytest.raises(error, match=r"copy|upgrade"):
        restore_session(store, archived, "s")
    assert list(store.sessions()) == []
    assert len(list(list_archive(archived))) == 1
    write(store, "s")
    assert purge_archived(archived, "s")


def test_a_forged_object_that_is_valid_is_a_session_like_any_other(archived: Path) -> None:
    """So that the test above refuses what it names, and not the forging."""
    forge(archived, lines_of(archived)[:-1])
    assert restore_session(open_store("memory://"), archived, "s").session == "s"


@pytest.mark.slow
def test_a_bomb_fills_neither_memory_nor_disk(archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of gigabytes, or very many lines: refused at a limit that is told."""
    head = lines_of(archived)[0]
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(b" " * 1_000_000)
    object_of(archived).write_bytes(packed.getvalue())
    tracemalloc.start()
    with pytest.raises(StoreDamaged, match="too large: the limits are 64,000,000 bytes a line"):
        restore_session(open_store("memory://"), archived, "s")
    assert tracemalloc.get_traced_memory()[1] < 200_000_000
    tracemalloc.stop()
    monkeypatch.setattr("memory.transfer.archive_object.MAX_TOTAL", 100_000)
    forge(archived, [{**head, "entries": 1 << 40}, *lines_of_many(2_000)])
    with pytest.raises(StoreDamaged, match="and 100,000 in all"):
        restore_session(open_store("memory://"), archived, "s")


def lines_of_many(count: int) -> list[dict[str, Any]]:
    stamp = NOON.isoformat()
    return [
        {"id": f"i{n}", "kind": "starred", "number": n, "round": 0, "created_at": stamp, "version": 1, "body": "{}"}
        for n in range(1, count + 1)
    ]


def test_objects_that_cannot_be_read_are_listed_and_left_alone(archived: Path) -> None:
    """Neither expired nor replaced; what is not ours is not listed."""
    path = object_of(archived)
    path.write_bytes(b"no gzip")
    (archived / "notes.txt").write_text("theirs")
    (archived / ("0" * 64)).mkdir()
    (archived / ("0" * 64) / "notes.txt").write_text("theirs")
    (row,) = list_archive(archived)
    assert (row.session, archived / row.key) == ("", path)
    assert "put an undamaged copy" in row.fault
    assert expire_archive(archived, timedelta(0), now=LATER) == []
    store = open_store("memory://")
    write(store, "s")
    assert move(store, archived) == ([], {"s": "name_taken"})
    assert path.read_bytes() == b"no gzip"
