"""``compactor export`` and ``import``: a session as a file, whole or not at all."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import refusal, run
from stored_sessions import session, summarise, url_of

from memory import Memory, StoreError, open_store


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    made = url_of(tmp_path / "chats.db")
    with session(made, rounds=3) as memory:
        summarise(memory, 2)
        yield made


def log(url: str, name: str = "shop") -> list[Any]:
    store = open_store(url)
    entries = [(entry.id, entry.kind, entry.body, entry.created_at) for entry in store.read(name)]
    store.close()
    return entries


def test_a_session_goes_from_one_store_to_another(url: str, tmp_path: Path) -> None:
    """Entry by entry the same, and a database is made for it."""
    file, other = tmp_path / "shop.jsonl", url_of(tmp_path / "other.db")
    done = run("export", "shop", "--store", url, "--to", file)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{len(log(url))} entries written to {file}\n"
    done = run("import", file, "--store", other)
    assert (done.code, done.out) == (0, f"{len(log(url))} entries read; session shop\n")
    assert log(other) == log(url)


def test_by_way_of_a_pipe_too(url: str, tmp_path: Path) -> None:
    """Standard output and input, in plain ASCII: no terminal's code page is in the way."""
    with session(url, "mün\ud800chen", rounds=1) as memory:
        memory.append({"role": "user", "content": "für 5 € \U0001f600 \ud83d"})
    out = run("export", "mün\ud800chen", "--store", url, encoding="ascii").out
    assert out.isascii()
    assert [json.loads(line) for line in out.splitlines()]
    other = url_of(tmp_path / "other.db")
    done = run("import", "-", "--store", other, "--json", said="\ufeff" + out.replace("\n", "\r\n"))
    assert done.document == {"session": "mün\ud800chen", "entries": len(log(url, "mün\ud800chen"))}
    assert log(other, "mün\ud800chen") == log(url, "mün\ud800chen")


def test_a_session_may_get_another_name(url: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.jsonl"
    assert run("export", "shop", "--store", url, "--to", file, "--json").document == {
        "session": "shop",
        "entries": len(log(url)),
        "file": str(file),
    }
    assert run("import", file, "--as", "copy", "--store", url).code == 0
    assert log(url, "copy") == log(url)
    resumed = Memory("copy", store=open_store(url))
    assert resumed.get_role_rounds("assistant")[1] is not None
    resumed._store.close()


def test_a_session_that_is_there_is_not_changed(url: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.jsonl"
    run("export", "shop", "--store", url, "--to", file)
    before = log(url)
    assert "'shop'" in refusal(run("import", file, "--store", url))
    assert log(url) == before


def test_a_file_that_is_there_is_kept_but_for_force(url: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.jsonl"
    file.write_text("mine", encoding="utf-8")
    assert "already exists" in refusal(run("export", "shop", "--store", url, "--to", file))
    assert file.read_text(encoding="utf-8") == "mine"
    assert run("export", "shop", "--store", url, "--to", file, "--force").code == 0
    assert len(file.read_text(encoding="ascii").splitlines()) == len(log(url)) + 1
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["shop.jsonl"]


def test_an_export_that_breaks_off_leaves_no_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the beginning of one, nor a change to the one that was there."""
    file = tmp_path / "shop.jsonl"
    file.write_text("mine", encoding="utf-8")

    def broken(_store: object, _session: str, stream: Any) -> int:
        stream.write("half a li")
        raise StoreError("the server went away")

    monkeypatch.setattr("compactor.cli.session_commands.export_session", broken)
    before = set(tmp_path.iterdir())
    assert refusal(run("export", "shop", "--store", url, "--to", file, "--force")) == "the server went away"
    assert file.read_text(encoding="utf-8") == "mine"
    assert set(tmp_path.iterdir()) == before


def test_a_file_that_somebody_made_meanwhile_is_kept(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shop.jsonl"

    def slow(_store: object, _session: str, _stream: object) -> int:
        file.write_text("mine", encoding="utf-8")
        return 0

    monkeypatch.setattr("compactor.cli.session_commands.export_session", slow)
    assert "already exists" in refusal(run("export", "shop", "--store", url, "--to", file))
    assert file.read_text(encoding="utf-8") == "mine"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_what_was_said_is_its_owners_alone_to_read(url: str, tmp_path: Path) -> None:
    run("export", "shop", "--store", url, "--to", tmp_path / "shop.jsonl")
    assert stat.S_IMODE(os.stat(tmp_path / "shop.jsonl").st_mode) == 0o600


def test_a_path_that_cannot_be_written_is_one_line(url: str, tmp_path: Path) -> None:
    for path in (tmp_path / "no folder" / "shop.jsonl", f"{tmp_path}/\0"):
        said = refusal(run("export", "shop", "--store", url, "--to", path))
        assert "cannot be written (" in said
        assert "--to" in said
    assert refusal(run("export", "shop", "--store", url, "--to", tmp_path)).startswith(str(tmp_path))


def test_lines_and_one_document_do_not_mix(url: str) -> None:
    assert "pass --to FILE" in refusal(run("export", "shop", "--store", url, "--json"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "is empty"),
        (b"\xff\xfe", "cannot be read (it is not UTF-8 text)"),
        (b"{}\n", "line 1"),
        (b"not JSON\n", "line 1"),
    ],
)
def test_a_file_that_is_no_session_is_one_line(content: bytes | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.jsonl"
    if content is not None:
        file.write_bytes(content)
    said = refusal(run("import", file, "--store", url_of(tmp_path / "new.db")))
    assert says in said
    assert not (tmp_path / "new.db").exists(), "a database was made for nothing"


def test_a_file_that_is_cut_off_stores_nothing(url: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.jsonl"
    run("export", "shop", "--store", url, "--to", file)
    file.write_bytes(file.read_bytes()[:-20])
    refusal(run("import", file, "--as", "copy", "--store", url))
    assert log(url, "copy") == []
    refusal(run("import", file, "--store", url_of(tmp_path / "new.db")))
    assert not (tmp_path / "new.db").exists(), "a database was made for nothing"


@pytest.mark.parametrize("step", ["read_session", "append_session"])
def test_an_interrupted_import_stores_nothing(
    url: str, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the file is read, and while it is written to the store."""
    file, other = tmp_path / "shop.jsonl", url_of(tmp_path / "other.db")
    run("export", "shop", "--store", url, "--to", file)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"compactor.cli.exchange.{step}", interrupted)
    done = run("import", file, "--store", other)
    assert (done.code, done.out, done.err) == (130, "", "compactor: interrupted\n")
    monkeypatch.undo()
    assert run("import", file, "--store", other).code == 0
    assert log(other) == log(url)


class Blank(io.RawIOBase):
    """Gives *left* lines of a megabyte in which nothing stands."""

    def __init__(self, left: int) -> None:
        self.left = left

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        if not self.left:
            return 0
        self.left -= 1
        size = min(len(into), 1_000_000)
        into[:size] = b" " * (size - 1) + b"\n"
        return size


def test_standard_input_is_read_line_by_line(tmp_path: Path) -> None:
    """However much comes, no more than a line of it is held, and the stream is left open."""
    stdin = io.TextIOWrapper(io.BufferedReader(Blank(24), 1_000_000))
    tracemalloc.start()
    try:
        assert "line 1 " in refusal(run("import", "-", "--store", url_of(tmp_path / "other.db"), stdin=stdin))
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()
    assert not stdin.buffer.closed
