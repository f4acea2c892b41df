"""Payload files: safe names, whole or not at all, never overwritten, and tools that reach nothing else."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.presets import OffloadError, OffloadFiles
from memory import ContextError

linked = pytest.mark.skipif(sys.platform == "win32", reason="making symbolic links takes a privilege on Windows")
WINDOWS_DEVICES = ("con", "PRN", "aux", "nul", "com1", "LPT9", "CONIN$")


@pytest.fixture
def files(tmp_path: Path) -> OffloadFiles:
    return OffloadFiles(tmp_path / "store", "chat")


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def on_disk(root: Path) -> list[str]:
    """Every file below *root*, drafts included."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


# -- names -------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=300), st.text(max_size=50))
def test_no_id_leaves_its_folder(stem: str, content: str) -> None:
    """For any id, the name is one plain component, and no system takes it for a device."""
    name = name_of(OffloadFiles("store").make_path(stem, content))
    assert name.isascii()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-.")
    assert name.count(".") == 1
    assert not name.startswith((".", "-"))
    assert len(name) < 80
    assert name.partition(".")[0] not in {device.lower() for device in WINDOWS_DEVICES}


@given(st.text(max_size=100), st.text(max_size=100))
def test_two_chats_never_share_a_folder(one: str, other: str) -> None:
    """Not even on a file system that takes A for a."""
    folders = [name_of(OffloadFiles("store", chat_id).prefix).lower() for chat_id in (one, other)]
    assert (folders[0] == folders[1]) == (one == other)


@pytest.mark.parametrize("chat_id", ["research_session_001", "7851c684dee246ebaef3f6cbfbbe322c"])
def test_a_plain_chat_id_is_the_folder(chat_id: str) -> None:
    """Who looks for a chat's files finds them under its id."""
    assert OffloadFiles("store", chat_id).prefix == f"store/{chat_id}"


@pytest.mark.parametrize(
    "chat_id", ["..", ".", "a/b", "a\\b", "C:", "Alice", "a.b", "x" * 200, "\ud800", *WINDOWS_DEVICES]
)
def test_any_other_chat_id_is_hashed(chat_id: str, tmp_path: Path) -> None:
    """No path is built from it, and its hash tells chats apart."""
    folder = Path(OffloadFiles(tmp_path, chat_id).write("call", "text")).parent
    assert folder.parent == tmp_path
    assert folder.name.endswith(tuple("0123456789abcdef"))
    assert folder.name != chat_id


def test_the_name_tells_where_a_file_comes_from(files: OffloadFiles) -> None:
    """It has the plain part of the id, and the content's hash."""
    assert name_of(files.make_path("call_123", "text")).startswith("call_123-")
    assert name_of(files.make_path("r12.p3", "text")).startswith("r12-p3-")
    assert files.make_path("call_123", "text") != files.make_path("call_123", "other")
    assert files.make_path("call_123", "text", ".json").endswith(".json")


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "plain", "\r\n\n", "\ud800 alone", "\x00", "日本語 😀", "x" * 100_000])
def test_what_goes_in_is_on_disk_byte_for_byte(content: str, files: OffloadFiles) -> None:
    """Line ends and lone surrogates included, and nothing beside it."""
    path = Path(files.write("call", content))
    assert path.read_bytes() == content.encode("utf-8", "surrogatepass")
    assert on_disk(path.parent) == [path.name]


def test_making_one_touches_no_disk(tmp_path: Path) -> None:
    """The folder is made when there is something to keep."""
    files = OffloadFiles(tmp_path / "store", "chat")
    assert "no file" in files.read_file("x.txt")
    assert on_disk(tmp_path) == []
    assert not (tmp_path / "store").exists()


def test_the_same_content_is_written_once(files: OffloadFiles) -> None:
    """Offloading it again names the same file, which stays as it is; only its age begins anew, for it is in use."""
    path = files.write("call", "text")
    os.utime(path, (1, 1))
    before = os.stat(path)
    assert files.write("call", "text") == path
    after = os.stat(path)
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert after.st_mtime > before.st_mtime


def test_a_changed_file_is_never_overwritten(files: OffloadFiles) -> None:
    """Somebody's notes in it are theirs; the content goes beside it, and is found there the next time."""
    path = Path(files.write("call", "text"))
    path.write_text("notes")
    beside = files.write("call", "text")
    assert beside != str(path)
    assert (path.read_text(), Path(beside).read_text()) == ("notes", "text")
    assert files.write("call", "text") == beside


def test_a_hundred_changed_files_are_an_error(files: OffloadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the remedy instead of going on for ever."""
    monkeypatch.setattr("compactor.presets.compat.offload_files._MAX_VARIANTS", 3)
    for _ in range(2):
        Path(files.write("call", "text")).write_text("changed")
    with pytest.raises(OffloadError, match="move them away"):
        files.write("call", "text")


@linked
def test_a_link_in_the_place_of_a_file_is_not_written_through(files: OffloadFiles, tmp_path: Path) -> None:
    """The link's target stays unchanged."""
    outside = tmp_path / "outside.txt"
    outside.write_text("theirs")
    path = Path(files.write("call", "text"))
    path.unlink()
    path.symlink_to(outside)
    assert Path(files.write("call", "text")).read_text() == "text"
    assert outside.read_text() == "theirs"
    path.unlink()
    path.symlink_to(tmp_path / "missing.txt")
    files.write("call", "text")
    assert not (tmp_path / "missing.txt").exists()


@linked
def test_a_chat_folder_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    """Nothing is written, read, found or erased behind a link."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret-0123456789abcdef.txt").write_text("secret")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "chat").symlink_to(elsewhere, target_is_directory=True)
    files = OffloadFiles(tmp_path / "store", "chat")
    with pytest.raises(OffloadError, match="another place"):
        files.write("call", "text")
    assert files.read_file("secret-0123456789abcdef.txt").startswith("Error:")
    assert files.grep("secret").startswith("Error:")
    assert files.erase("secret") == 0
    assert len(on_disk(elsewhere)) == 1


@linked
def test_a_store_that_is_a_link_is_the_hosts_own_affair(tmp_path: Path) -> None:
    """The host chose the path; we guard only the folders below."""
    (tmp_path / "real").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "real", target_is_directory=True)
    files = OffloadFiles(tmp_path / "store", "chat")
    assert "text" in files.read_file(files.write("call", "text"))


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some"),
        (errno.EROFS, "allow it"),
        (errno.EACCES, "allow it"),
        (errno.EIO, "give another store_dir"),
    ],
)
def test_a_disk_that_fails_is_a_clear_error_and_leaves_nothing(
    number: int, remedy: str, files: OffloadFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the remedy, keeps the cause, and no draft or half of a file stays behind."""

    def failing(_file: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OffloadError, match=remedy) as raised:
        files.write("call", "text")
    assert isinstance(raised.value, ContextError)
    assert isinstance(raised.value.__cause__, OSError)
    assert on_disk(tmp_path) == []
    monkeypatch.undo()
    assert "text" in files.read_file(files.write("call", "text"))


def test_a_file_in_the_way_of_the_folder_is_a_clear_error(tmp_path: Path) -> None:
    """It may be the store or one of its parents."""
    (tmp_path / "store").write_text("a file")
    for store in (tmp_path / "store", tmp_path / "store" / "below"):
        with pytest.raises(OffloadError, match="store_dir"):
            OffloadFiles(store, "chat").write("call", "text")
    assert on_disk(tmp_path) == ["store"]


def test_a_file_system_without_hard_links_will_do(files: OffloadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT has none: a file is still written as a whole, and replaces no other."""

    def unsupported(*_paths: str) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    path = Path(files.write("call", "text"))
    assert path.read_text() == "text"
    path.write_text("changed")
    assert files.write("call", "text") != str(path)
    assert path.read_text() == "changed"


def test_a_name_that_is_taken_in_the_last_moment_is_not_overwritten(
    files: OffloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes offload at once: the second writes another file, on any file system."""
    path = Path(files.write("call", "text"))
    path.write_text("another's")
    monkeypatch.setattr(os.path, "lexists", lambda _path: False)
    assert files.write("call", "text") != str(path)

    def unsupported(*_paths: str) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    files.write("call", "text")
    assert path.read_text() == "another's"
    assert not [name for name in on_disk(path.parent) if name.endswith(".tmp")]


def test_no_room_for_a_link_is_no_room(files: OffloadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is not taken for a file system without hard links."""

    def full(*_paths: str) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OffloadError, match="no room"):
        files.write("call", "text")


def test_an_empty_store_dir_is_refused() -> None:
    """It would mean the working directory, which nobody asked for."""
    with pytest.raises(ValueError, match="store_dir"):
        OffloadFiles("")


def test_a_store_stays_where_it_was_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means the directory of the moment it was given; the path in the text still reads the file."""
    monkeypatch.chdir(tmp_path)
    files = OffloadFiles("store", "chat")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    path = files.write("call", "text")
    assert path.startswith("store/chat/call-")
    assert (tmp_path / path).read_text() == "text"
    assert files.read_file(path).endswith("\ntext")


# -- erasing -----------------------------------------------------------------------------------------------------------


def test_erase_removes_what_was_kept_of_one_place(files: OffloadFiles) -> None:
    """Every version of it, and nothing of its neighbours."""
    first = Path(files.write("r1.p3", "text"))
    first.write_text("changed")
    files.write("r1.p3", "text")
    files.write("r1.p3", "other text")
    kept = {name_of(files.write(stem, "text")) for stem in ("r1.p31", "r11.p3", "r1")}
    assert files.erase("r1.p3") == 3
    assert set(on_disk(first.parent)) == kept
    assert files.erase("r1.p3") == 0


def test_a_draft_of_a_killed_process_is_erased_with_its_file(
    files: OffloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unfinished or unnamed draft holds the same words; other stems' drafts stay."""
    monkeypatch.setattr(os, "link", _killed)
    monkeypatch.setattr(os, "unlink", _killed)
    for stem in ("r1.p2", "r1.p21"):
        with pytest.raises(KeyboardInterrupt):
            files.write(stem, "secret")
    monkeypatch.undo()
    folder = Path(files.prefix)
    assert len(list(folder.iterdir())) == 2
    assert files.erase("r1.p2") == 1
    assert [one.name.startswith(".r1-p21-") for one in folder.iterdir()] == [True]
    assert files.delete() == 1
    assert not folder.exists()


def _killed(*_given: object, **_named: object) -> None:
    raise KeyboardInterrupt


def test_a_file_that_cannot_be_erased_is_an_error(files: OffloadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed removal is never silent."""
    files.write("r1.p3", "text")

    def denied(_path: str) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "unlink", denied)
    with pytest.raises(OffloadError, match="allow it"):
        files.erase("r1.p3")


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_by_its_path_and_by_its_name(files: OffloadFiles) -> None:
    """As the text in the prompt names it, as a shell on this machine would, and as models shorten it."""
    path = files.write("call", "line 0\nline 1")
    for way in (path, os.path.abspath(path), name_of(path), f"chat/{name_of(path)}", f"./{name_of(path)}"):
        assert (
            files.read_file(way)
            == f"[file {name_of(path)}: lines 0 to 1 of 2, counted from 0; this is the end]\nline 0\nline 1"
        )
    assert files.read_file(path.replace("/", "\\")).endswith("line 1")


def test_lines_are_counted_from_0(files: OffloadFiles) -> None:
    """Offset and limit are lines, as users of the original know them."""
    path = files.write("call", "\n".join(f"line {number}" for number in range(10)))
    heading, *lines = files.read_file(path, offset=3, limit=2).split("\n")
    assert lines == ["line 3", "line 4"]
    assert "lines 3 to 4 of 10" in heading
    assert "offset=5" in heading
    assert files.read_file(path, offset=10).startswith("Error:")
    assert files.read_file(path, offset=9, limit=0).endswith("\nline 9")
    assert files.read_file(path, offset=-5).count("\n") == 10


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=12) | st.just("long " * 1500), max_size=30))
def test_pages_put_together_are_the_file(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Following the answers' offsets gives the whole file, once, in bounded answers, however long its lines are."""
    files = OffloadFiles(tmp_path_factory.getbasetemp() / "pages", "chat")
    content = "\n".join(lines)
    path = files.write("call", content)
    offset = column = pages = 0
    read = ""
    while True:
        heading, _, page = files.read_file(path, offset, None, column).partition("\n")
        assert len(page) <= 6_000
        read += page
        if "this is the end" in heading:
            break
        then = heading.partition("go on with offset=")[2].rstrip("]")
        read += "" if "column" in then else "\n"
        offset, column = int(then.split(" and ")[0]), int(then.partition("column=")[2] or 0)
        pages += 1
        assert pages < 100
    assert read == content


@pytest.mark.parametrize(
    "path",
    [
        *("../secret.txt", "chat/../../secret.txt", "/etc/passwd", "C:\\secret.txt", "..", ".", "", "a\x00b", "\ud800"),
        *(
            "sub/file.txt",
            ".hidden",
            "x" * 5_000,
            "~/secret.txt",
            "file:///etc/passwd",
            "missing.txt",
            "con",
            "nul.txt",
        ),
    ],
)
def test_any_other_path_is_answered(path: str, files: OffloadFiles) -> None:
    """The answer lists the files; nothing outside is even looked at."""
    name = name_of(files.write("call", "text"))
    for answer in (files.read_file(path), files.call("read_file", {"path": path})):
        assert answer.startswith("Error:")
        assert name in answer
        assert len(answer) < 500
        assert "\n" not in answer


@linked
def test_what_is_no_regular_file_is_not_read(files: OffloadFiles, tmp_path: Path) -> None:
    """A link leads out, and a pipe would wait for ever."""
    (tmp_path / "secret.txt").write_text("secret words")
    folder = Path(files.write("call", "text")).parent
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "below").mkdir()
    os.mkfifo(folder / "pipe.txt")
    for name in ("link.txt", "below", "pipe.txt"):
        assert files.read_file(name).startswith("Error:")
        assert files.grep("secret", path=name).startswith("Error:")
    assert "0 lines" in files.grep("secret words")


@linked
def test_a_file_that_becomes_a_link_meanwhile_is_not_followed(
    files: OffloadFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the opening there is time for a trick."""
    (tmp_path / "secret.txt").write_text("secret words")
    path = Path(files.write("call", "text"))
    before = os.lstat(path)
    path.unlink()
    path.symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(os, "lstat", lambda _path: before)
    assert files.read_file(str(path)).startswith("Error:")


def test_files_of_other_tools_are_read_too(files: OffloadFiles) -> None:
    """Those of an earlier system, with other names and in any bytes."""
    folder = Path(files.write("call", "text")).parent
    (folder / "tool_call_123.txt").write_bytes(b"caf\xe9 needle")
    assert files.read_file("tool_call_123.txt").endswith("caf\ufffd needle")
    assert "tool_call_123.txt: line 0" in files.grep("needle")


def test_one_chat_does_not_see_the_other(tmp_path: Path) -> None:
    """Not even the one without an id: its folder is one among others."""
    path = OffloadFiles(tmp_path, "alice").write("call", "secret words")
    for other in (OffloadFiles(tmp_path, "bob"), OffloadFiles(tmp_path)):
        other.write("call", "text")
        assert other.read_file(path).startswith("Error:")
        assert other.read_file(f"alice/{name_of(path)}").startswith("Error:")
        assert "0 lines" in other.grep("secret words")


def test_many_files_are_not_all_listed(files: OffloadFiles) -> None:
    """A hint stays short."""
    for number in range(30):
        files.write(f"call{number}", "text")
    assert "30 files" in files.read_file("missing.txt")
    assert len(files.read_file("missing.txt")) < 700


# -- searching ---------------------------------------------------------------------------------------------------------


def test_grep_gives_lines_that_read_file_takes(files: OffloadFiles) -> None:
    """File and line, counted alike, in any case of letters."""
    one = files.write("one", "first\nThe Needle is here\nlast")
    files.write("two", "nothing")
    heading, line = files.grep("needle").split("\n")
    assert line == f"{name_of(one)}: line 1: The Needle is here"
    assert heading == "[grep: 1 lines with the pattern, counted from 0, in 2 files]"
    assert files.read_file(name_of(one), offset=1, limit=1).endswith("\nThe Needle is here")


def test_a_pattern_is_literal(files: OffloadFiles) -> None:
    """No pattern is a regular expression, which could run for ever; a lookalike without matches gets a hint."""
    files.write("one", "a" * 5_000 + "\nprice (a+)+$ is 3.50")
    assert "line 1" in files.grep("(a+)+$")
    assert "3.50" in files.grep("3.5")
    assert "0 lines" in files.grep("3x50")
    assert "literally" not in files.grep("3x50")
    assert "literally" in files.grep("a.*z")


def test_a_pattern_may_cross_lines(files: OffloadFiles) -> None:
    """The number is that of the first line."""
    files.write("one", "zero\none\ntwo\nthree")
    assert "line 1: one two" in files.grep("one\ntwo")


def test_matches_in_one_long_line_are_shown_around(files: OffloadFiles) -> None:
    """A file of one line, as JSON often is, is not shown whole; the column says where to read."""
    path = files.write("one", "x" * 200_000 + "needle" + "y" * 200_000)
    answer = files.grep("NEEDLE")
    assert len(answer) < 500
    column = int(answer.partition("from column ")[2].partition(")")[0])
    assert "needle" in files.read_file(path, 0, None, column)[:400]


@pytest.mark.parametrize(
    "one", ["\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}", "e\u0301", "क्षि"], ids=["family", "accent", "letters"]
)
@pytest.mark.parametrize("shift", range(6))
def test_what_is_shown_around_a_match_ends_between_characters(one: str, shift: int, files: OffloadFiles) -> None:
    """None that readers see as one is torn."""
    files.write("one", one * 100 + "x" * shift + "needle" + "y" * shift + one * 100)
    shown = files.grep("needle").partition(") ...")[2].removesuffix("...")
    assert "needle" in shown
    assert set(shown.replace(one, "")) <= set("xneedly")


def test_a_match_across_the_window_is_found(files: OffloadFiles) -> None:
    """A long text is searched in parts; a match across two of them counts."""
    for place in range(65_530, 65_540):
        files.write(f"at{place}", "x" * place + "needle")
    assert files.grep("needle").count("needle...") + files.grep("needle").count("needle\n") >= 9
    assert "[grep: 10 lines" in files.grep("needle")


def test_path_and_glob_choose_files(files: OffloadFiles) -> None:
    """The folder's path means all of it; an unknown path is answered."""
    text, data = files.write("one", "needle"), files.write("two", "needle", ".json")
    assert name_of(data) not in files.grep("needle", glob="*.txt")
    assert name_of(text) not in files.grep("needle", path=data)
    for folder in ("", ".", text.rpartition("/")[0], os.path.abspath(os.path.dirname(text)) + os.sep):
        assert "2 lines" in files.grep("needle", path=folder)
    assert files.grep("needle", glob="*.csv").startswith("Error:")
    assert files.grep("needle", path="../other").startswith("Error:")
    assert files.grep("needle", glob="[" * 500).startswith("Error:")


def test_a_search_is_bounded_in_lines_and_characters(files: OffloadFiles) -> None:
    """It says that there is more."""
    files.write("many", "\n".join(["needle " * 10] * 500))
    assert files.grep("needle", limit=3).count("\n") == 3
    assert "there are more" in files.grep("needle", limit=3)
    long = files.grep("needle")
    assert len(long) < 6_000 + 500
    assert "there are more" in long
    assert files.grep("needle", limit=0).count("\n") == 1


def test_a_search_ends_when_its_time_is_over(tmp_path: Path) -> None:
    """With the matches so far, and advice for the rest."""
    ticks = iter(range(1000))
    files = OffloadFiles(tmp_path, "chat", search_seconds=3, monotonic=lambda: float(next(ticks)))
    for number in range(10):
        files.write(f"call{number}", f"needle {number}")
    answer = files.grep("needle")
    assert 0 < answer.count("\n") < 10
    assert "stopped after 3 seconds" in answer


def test_an_empty_or_endless_pattern_is_answered(files: OffloadFiles) -> None:
    """Nothing and a page are no text to look for."""
    files.write("one", "text")
    for pattern in ("", "x" * 201):
        assert files.grep(pattern).startswith("Error: pattern")
    assert files.grep("text").count("\n") == 1


def test_a_folder_that_cannot_be_listed_is_empty(files: OffloadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer, not an exception."""
    files.write("one", "text")

    def denied(_path: str) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "scandir", denied)
    assert files.grep("text").startswith("Error:")


# -- tools -------------------------------------------------------------------------------------------------------------


def test_the_schemas_are_fit_for_strict_mode(files: OffloadFiles) -> None:
    """Every parameter is required, and optional ones may be null."""
    for tool in files.tools():
        parameters = tool["function"]["parameters"]
        assert tool["type"] == "function"
        assert parameters["required"] == list(parameters["properties"])
        assert parameters["additionalProperties"] is False
    assert [tool["function"]["name"] for tool in files.tools()] == ["read_file", "grep"]
    json.dumps(files.tools())


def test_a_call_is_dispatched(files: OffloadFiles) -> None:
    """JSON as a model wrote it, or read already; numbers as models write them; the original's name of the path."""
    path = files.write("one", "needle 0\nneedle 1")
    assert files.call("read_file", json.dumps({"path": path, "offset": "1", "limit": 1.0, "column": None})).endswith(
        "needle 1"
    )
    assert files.call("read_file", {"absolute_path": path}) == files.read_file(path)
    assert files.call("grep", '{"pattern": "needle", "path": null, "glob": null, "limit": 1}') == files.grep(
        "needle", limit=1
    )


@pytest.mark.parametrize("name", ["read_file", "grep"])
@pytest.mark.parametrize(
    "arguments",
    [
        *(None, "", "{", "[]", "null", '"text"', "[" * 100_000, '{"other": 1}', {}, {1: 2}, 7),
        *({"path": 3, "pattern": 3}, {"path": None, "pattern": None}, '{"path": ["a"], "pattern": ["b"]}'),
    ],
)
def test_bad_arguments_are_answered(name: str, arguments: Any, files: OffloadFiles) -> None:
    """With a sentence that the model can act on."""
    answer = files.call(name, arguments)
    assert answer.startswith("Error: ")
    assert len(answer) < 300


@pytest.mark.parametrize("number", [1.5, "x", True, [], {}, float("nan"), "9" * 31])
def test_a_bad_number_is_answered(number: Any, files: OffloadFiles) -> None:
    """With its allowed values."""
    assert "whole number" in files.call("read_file", {"path": files.write("one", "text"), "offset": number})


@pytest.mark.parametrize("number", [-1, "-1", -2.0, -(10**30)])
def test_a_negative_number_is_taken_for_the_least(number: Any, files: OffloadFiles) -> None:
    """As the recall tools take it: the beginning, and one line."""
    given = {"path": files.write("one", "first\nsecond"), "offset": number, "limit": number, "column": number}
    assert files.call("read_file", given).endswith("\nfirst")


@pytest.mark.parametrize("number", [10**30, "9" * 30, 1e300])
def test_a_huge_number_is_taken_for_a_large_one(number: Any, files: OffloadFiles) -> None:
    """It is beyond the end, and the answer says so."""
    assert "has 1 lines" in files.call("read_file", {"path": files.write("one", "text"), "offset": number})
    assert files.call("read_file", {"path": files.write("one", "text"), "column": number}).endswith("]\n")


def test_another_tool_is_answered(files: OffloadFiles) -> None:
    """A model may make one up."""
    assert "read_file, grep" in files.call("delete_file", {"path": "x"})


# -- the folder as whoever searches it names it --------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["context_store", "./context_store", "./context_store/", "{here}/context_store"])
@pytest.mark.parametrize(
    "asked",
    ["context_store", "./context_store", "./context_store/", "{here}/context_store/", "context_store/chat", "./"],
)
def test_the_stores_own_folder_is_the_chats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, asked: str
) -> None:
    """However it was given and however it is named, with a stroke behind it or not: all files of the chat are searched,
    and none of another's."""
    monkeypatch.chdir(tmp_path)
    given, asked = (path.format(here=tmp_path.as_posix()) for path in (given, asked))
    files = OffloadFiles(given, "chat")
    name = name_of(files.write("call", "the needle\n"))
    OffloadFiles(given, "other").write("call", "another needle\n")
    assert files.grep("needle", path=asked).split("\n") == [
        "[grep: 1 lines with the pattern, counted from 0, in 1 files]",
        f"{name}: line 0: the needle",
    ]
    assert "the needle" in files.read_file(f"{asked.rstrip('/')}/{name}")
