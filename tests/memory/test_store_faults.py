"""What goes wrong where a session is kept, and is really made to: each fault has its error, harms nothing that was
acknowledged, and when it is over the same Memory goes on."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from executors import SOON
from lines import Line
from postgres import Postgres as Server
from sqlalchemy import text

from memory import (
    CompactedMessage,
    Memory,
    NewerVersion,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    open_store,
)
from memory.entries import Entry
from memory.log import log
from memory.stores import dialects, sql
from memory.stores.schema import MIGRATIONS
from memory.stores.sql import SqlStore

ROOT = Path(__file__).resolve().parents[2]


def url_in(folder: Path, options: str = "?synchronous=normal") -> str:
    return f"sqlite:///{(folder / 'chat.db').as_posix()}{options}"


@contextmanager
def opened(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url)) as store:
        assert isinstance(store, SqlStore)
        yield store


def on(store: SqlStore, statement: str, **values: Any) -> Any:
    """Run one statement behind the store's back, on the connection that it uses."""

    def run(connection: Any) -> Any:
        result = connection.execute(text(statement), values)
        return result.all() if result.returns_rows else None

    return store._connections.write(run)


def turn(memory: Memory, said: str) -> None:
    """One round of a chat."""
    round_ = memory.create_round(f"question {said}", id=said)
    memory.add_post(round_, send_from="Planner", send_to="User", message=f"answer {said}")
    memory.finish_round(round_)


def log_of(store: Any, session: str = "s") -> list[Entry]:
    """Return the log, of which every entry can be read, at its place and once."""
    entries = list(store.read(session))
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    assert len({entry.id for entry in entries}) == len(entries)
    assert all(entry.record is not None for entry in entries)
    return entries


def shown(memory: Memory) -> list[tuple[str, list[str]]]:
    return [(one.user_query, [post.message for post in one.post_list]) for one in memory.conversation.rounds]


def same_as_resumed(memory: Memory, store: Any) -> None:
    """What a Memory shows is what another makes of the log."""
    log_of(store)
    assert shown(memory) == shown(Memory("s", store=store))


# -- a full disk -------------------------------------------------------------------------------------------------------


class Disk:
    """A small one: of its own where one may be mounted, else as many pages as SQLite is told there are."""

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder = folder
        self._mounted = mounted

    def fill(self, store: SqlStore) -> None:
        if not self._mounted:
            ((pages,),) = on(store, "PRAGMA page_count")
            self._limit(store, pages)
            return
        with open(self.folder / "others", "wb", buffering=0) as others, suppress(OSError):
            while True:
                others.write(b"x" * 4096)

    def free(self, store: SqlStore) -> None:
        if self._mounted:
            (self.folder / "others").unlink()
        else:
            self._limit(store, 1_000_000)

    def _limit(self, store: SqlStore, pages: int) -> None:
        for done in (store._connections.read, store._connections.write):  # a limit is a connection's own
            done(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all())


@pytest.fixture(params=["mounted", "limited"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "limited":
        yield Disk(tmp_path, mounted=False)
        return
    with mounted(tmp_path / "disk", "1m") as folder:
        yield Disk(folder, mounted=True)


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Give a folder that is a disk of its own."""
    if not sys.platform.startswith("linux") or os.geteuid():
        pytest.skip("a file system in memory is mounted by root on Linux")
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "tmpfs", folder],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"this container may not mount a file system: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill_up(memory: Memory) -> list[str]:
    """Go on in the open round until the disk is full, and return the posts that were acknowledged."""
    (round_,) = memory.open_rounds
    said = [post.message for post in round_.post_list]

    def go_on() -> None:
        for number in range(9_999):
            memory.add_post(round_, send_from="Planner", send_to="User", message=f"{number} {'x' * 2_000}")
            said.append(f"{number} {'x' * 2_000}")

    with pytest.raises(StoreFull, match=r"no room left for .*nothing was written: free some and try again"):
        go_on()
    return said


def test_a_chat_goes_on_when_a_full_disk_has_room_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and all can be read meanwhile."""
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 5)  # checkpoints are tried, and fail unseen
    with opened(url_in(disk.folder)) as store:
        memory = Memory("s", store=store)
        for number in range(4):
            turn(memory, str(number))
        memory.create_round("a long one")
        disk.fill(store)
        said = fill_up(memory)
        assert fill_up(memory) == said  # it is as full as it was
        for reader in (memory, Memory("s", store=store)):
            assert shown(reader)[-1] == ("a long one", said)
            assert {hit.round for hit in reader.search("answer")} == {1, 2, 3, 4}
        disk.free(store)
        memory.add_post(memory.open_rounds[0], send_from="Planner", send_to="User", message="on we go")
        turn(memory, "after")
        assert shown(memory)[-2:] == [("a long one", [*said, "on we go"]), ("question after", ["answer after"])]
        same_as_resumed(memory, store)


def test_what_else_is_written_is_whole_or_not_at_all_on_a_full_disk(disk: Disk) -> None:
    """Erasing, leases and the index for searching: what failed works when it is done again."""
    with opened(url_in(disk.folder)) as store:
        memory = Memory("s", store=store)
        for number in range(1, 5):
            turn(memory, str(number))
        turn(Memory("other", store=store), "kept")
        memory.create_round("a long one")
        disk.fill(store)
        fill_up(memory)
        deeds: list[Callable[[], object]] = [
            lambda: memory.redact("r2.p1"),
            lambda: store.lease("s", "name", "holder" * 999, 60),
            memory.index_texts,
            lambda: store.purge("other"),
        ]
        for deed in deeds:
            with suppress(StoreFull):
                deed()
        assert shown(memory)[0] == ("question 1", ["answer 1"])
        assert len(list(store.read("other"))) in (0, 3)
        disk.free(store)
        for deed in deeds:
            deed()
        assert "answer 2" not in "".join(entry.body for entry in log_of(store))
        assert {hit.round for hit in memory.search("answer")} == {1, 3, 4}
        assert store.sessions() == ["s"]
        same_as_resumed(memory, store)


def test_a_disk_that_is_full_from_the_outset_is_said_and_harms_nothing(tmp_path: Path) -> None:
    """Not even a reader can open a session there that is closed: SQLite needs a little room beside the file."""
    with mounted(tmp_path / "disk", "1m") as folder:
        disk = Disk(folder, mounted=True)
        url = url_in(folder)
        with opened(url_in(tmp_path)) as elsewhere:  # which is not asked for what it does
            disk.fill(elsewhere)
            for _ in range(2):
                with pytest.raises(StoreFull, match="free some"):
                    open_store(url)
            disk.free(elsewhere)
            with opened(url) as store:
                turn(Memory("s", store=store), "1")
            disk.fill(elsewhere)
            with pytest.raises(StoreFull, match="free some"):
                open_store(url)
            disk.free(elsewhere)
        with opened(url) as store:
            memory = Memory("s", store=store)
            turn(memory, "2")
            assert len(shown(memory)) == 2
            same_as_resumed(memory, store)


# -- what may only be read ---------------------------------------------------------------------------------------------

#: Runs as somebody whom permissions bind, with the store's folder as its argument. All that it needs is imported before.
BOUND = """
    import os, sys
    from contextlib import closing, suppress
    from pathlib import Path
    from memory import Memory, StoreError, StoreReadOnly, open_store

    folder, spare = map(Path, sys.argv[1:])
    path, url = folder / "chat.db", f"sqlite:///{folder.as_posix()}/chat.db"
    with closing(open_store(f"sqlite:///{spare.as_posix()}/spare.db")) as store:
        Memory("s", store=store).append({"role": "user", "content": "words"})
        assert Memory("s", store=store).search("words")
    if os.geteuid() == 0:
        for one in (folder, *folder.iterdir()):
            os.chown(one, 65534, 65534)
        os.setgroups([]); os.setgid(65534); os.setuid(65534)

    def refused(work, kind=StoreReadOnly):
        try:
            work()
        except kind as error:
            assert "to its folder, or name another" in str(error), error
        else:
            raise AssertionError("it was written")

    def modes(of_folder, of_file):
        path.chmod(of_file)
        folder.chmod(of_folder)
"""


def as_somebody(script: str) -> None:
    """Run *script* on a session of two rounds, where permissions bind."""
    if not hasattr(os, "geteuid"):
        pytest.skip("permissions are others on Windows")
    # Not in pytest's folder: that one belongs to root alone where root runs the tests.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o711)
        folder, spare = Path(place, "kept"), Path(place, "spare")
        for one in (folder, spare):
            one.mkdir()
        with opened(url_in(folder)) as store:
            memory = Memory("s", store=store)
            turn(memory, "1")
            turn(memory, "2")
        done = subprocess.run(
            [sys.executable, "-c", dedent(BOUND) + dedent(script), folder, spare],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=SOON,
        )
        folder.chmod(0o755)
        assert done.returncode == 0, done.stderr


def test_a_file_that_may_only_be_read_is_read_and_written_once_it_may_be() -> None:
    """The same Memory goes on after a chmod, though its connections were made before."""
    as_somebody(
        """
        modes(0o755, 0o444)
        with closing(open_store(url)) as store:
            memory = Memory("s", store=store)
            assert len(memory.conversation.rounds[0].post_list) == 1
            assert {hit.round for hit in memory.search("answer")} == {1, 2}
            for _ in range(2):
                refused(lambda: memory.create_round("3"))
            refused(lambda: memory.redact("r1.p1"))
            refused(lambda: store.purge("s"))
            assert len(Memory("s", store=store).conversation.rounds) == 2
            for one in folder.iterdir():  # SQLite gives what it makes the permissions of the file
                one.chmod(0o644)
            memory.create_round("3")
            assert len(Memory("s", store=store).conversation.rounds) == 3
        """,
    )


def test_in_a_folder_that_may_not_be_written_to_only_a_session_in_use_can_be_read() -> None:
    """SQLite cannot make its log there; where somebody who may has made one, it is read with the file."""
    as_somebody(
        """
        modes(0o555, 0o644)
        before = path.read_bytes()
        refused(lambda: open_store(url))
        assert [one.name for one in folder.iterdir()] == ["chat.db"] and path.read_bytes() == before
        modes(0o755, 0o644)
        with closing(open_store(url)) as other:
            Memory("s", store=other).create_round("3")
            modes(0o555, 0o444)
            for one in folder.iterdir():
                one.chmod(0o444)
            with closing(open_store(url)) as store:
                memory = Memory("s", store=store)
                assert len(memory.conversation.rounds) == 3
                refused(lambda: memory.create_round("4"))
        """,
    )


def test_a_file_or_folder_that_may_not_be_read_is_said() -> None:
    """With what to allow, and by an error of ours."""
    as_somebody(
        """
        modes(0o755, 0o000)
        refused(lambda: open_store(url))
        folder.chmod(0o000)
        refused(lambda: open_store(url), StoreError)
        folder.chmod(0o755)
        path.chmod(0o644)
        with closing(open_store(url)) as store:
            assert len(Memory("s", store=store).conversation.rounds) == 2
        """,
    )


# -- locked by another process -----------------------------------------------------------------------------------------

HOLD = """
    import sqlite3, sys
    holding = sqlite3.connect(sys.argv[1], isolation_level=None)
    holding.execute(sys.argv[2])
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(folder: Path, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Have another process hold a lock on the store's file."""
    with subprocess.Popen(
        [sys.executable, "-c", dedent(HOLD), folder / "chat.db", begin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            assert other.stdout.readline().strip() == b"held"
            yield
        finally:
            other.stdin.close()


def test_a_lock_of_another_process_is_waited_for_as_long_as_was_said(tmp_path: Path) -> None:
    """Whoever reads goes on meanwhile, and the same call works afterwards."""
    with opened(url_in(tmp_path, "?timeout=0.3")) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        with held(tmp_path):
            for write in (lambda: turn(memory, "2"), lambda: memory.redact("r1.p1"), lambda: store.purge("s")):
                began = time.monotonic()
                with pytest.raises(StoreBusy, match="try again, or wait for longer with"):
                    write()
                assert 0.2 < time.monotonic() - began < SOON
            assert {hit.round for hit in memory.search("question")} == {1}
            assert shown(Memory("s", store=store)) == [("question 1", ["answer 1"])]
        turn(memory, "2")
        memory.redact("r1.p1")
        assert shown(memory) == [("question 1", ["[Redacted]"]), ("question 2", ["answer 2"])]
        same_as_resumed(memory, store)


# -- damaged files -----------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, str]:
    """Return what there is in a folder. SQLite's readers leave a table of their locks, and an empty log."""
    return {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest()
        for one in folder.iterdir()
        if one.stat().st_size and not one.name.endswith("-shm")
    }


def with_turns(folder: Path, count: int) -> None:
    """Make a session of so many rounds, and close its file."""
    with opened(url_in(folder)) as store:
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
        with pytest.raises(fault, match=said) as raised, opened(url_in(tmp_path)) as store:
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
            with opened(url_in(tmp_path)) as store:
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
    with opened(url_in(tmp_path)) as store:
        on(store, "UPDATE compactor_schema SET version = 'x'")
    with pytest.raises(StoreDamaged, match="does not say which version"):
        open_store(url_in(tmp_path))


def test_a_folder_in_the_place_of_the_file_is_said(tmp_path: Path) -> None:
    """It is named, and nothing is put into it."""
    (tmp_path / "chat.db").mkdir()
    with pytest.raises(StoreError, match=r"chat\.db is a folder; name a file in it"):
        open_store(url_in(tmp_path))
    assert not list((tmp_path / "chat.db").iterdir())


def in_use(folder: Path, turns: int) -> Path:
    """Return a copy of a file and its log that are in use: what a process that was killed leaves behind."""
    copied = folder / "copied"
    copied.mkdir()
    with opened(url_in(folder)) as store:
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
    with opened(url_in(folder)) as store:
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
    with opened(url_in(tmp_path)) as store:
        turn(Memory("s", store=store), "3")
        shutil.copy(tmp_path / "chat.db", folder)
    (folder / "chat.db-wal").unlink()
    with opened(url_in(folder)) as store:
        memory = Memory("s", store=store)
        assert len(shown(memory)) == 2
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
        open_store(url_in(folder))
    assert contents(folder) == before
    shutil.copy(tmp_path / "chat.db", folder)
    with opened(url_in(folder)) as store:
        assert len(shown(Memory("s", store=store))) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="there nobody can remove a file that is open")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_while_it_is_open_takes_nothing_more(tmp_path: Path, replaced: bool) -> None:
    """What is written to it would be lost with its last reader; put back, it goes on."""
    with opened(url_in(tmp_path)) as store:
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
        assert shown(memory) == [("question 1", ["answer 1"])]
        assert (tmp_path / "chat.db").exists() is replaced
        (tmp_path / "aside.db").replace(tmp_path / "chat.db")
        turn(memory, "2")
        same_as_resumed(memory, store)


# -- bodies that cannot be read ----------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else url_in(tmp_path)


#: What is done to the body of an entry, and what is said of it.
CUT = ("body = substr(body, 1, 40)", StoreDamaged, r"entry {} \(.*cannot be read; nothing was changed: restore")
NEWER = ("version = 99", NewerVersion, r"entry {} \(.*newer version of context-compactor; nothing was changed: upgrade")
unreadable = pytest.mark.parametrize(("change", "fault", "said"), [CUT, NEWER], ids=["cut", "newer"])


def change_entry(store: SqlStore, number: int, change: str) -> None:
    on(store, f"UPDATE compactor_entries SET {change} WHERE number = :number", number=number)  # noqa: S608


def rows(store: SqlStore) -> Any:
    """Return the log as it is in the database."""
    return on(store, "SELECT number, id, kind, version, body FROM compactor_entries ORDER BY number")


@unreadable
def test_an_entry_that_cannot_be_read_keeps_a_session_shut_that_needs_it(
    url: str, change: str, fault: type[StoreError], said: str
) -> None:
    """It is named, nothing is written, and other sessions are as they were; mended, the session goes on."""
    with opened(url) as store:
        turn(Memory("s", store=store), "1")
        whole = rows(store)[1]
        change_entry(store, 2, change)
        before = rows(store)
        for _ in range(2):
            with pytest.raises(fault, match=said.format(2)):
                Memory("s", store=store)
        assert rows(store) == before
        assert store.sessions() == ["s"]
        change_entry(store, 2, f"version = {whole.version}")
        on(store, "UPDATE compactor_entries SET body = :body WHERE number = 2", body=whole.body)
        memory = Memory("s", store=store)
        turn(memory, "2")
        same_as_resumed(memory, store)


@unreadable
def test_an_old_round_that_cannot_be_read_spoils_no_other(
    url: str, change: str, fault: type[StoreError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a checkpoint it is an error when it is read, each time, and nothing else is."""
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 20)
    with opened(url) as store:
        writer = Memory("s", store=store)
        for number in range(1, 11):
            turn(writer, str(number))
        change_entry(store, 8, change)  # the answer of the third
        before = rows(store)
        memory = Memory("s", store=store)
        rounds = memory.conversation.rounds
        for place in (3, 1, 0, 9):
            assert rounds[place].user_query == f"question {place + 1}"
        for _ in range(2):
            with pytest.raises(fault, match=said.format(8)):
                memory.reload("r3")
        assert rows(store) == before
        turn(memory, "11")
        assert memory.reload("r11.p1") == "answer 11"
        assert [row for row in rows(store) if row.number <= 30] == before


@unreadable
def test_what_a_revert_would_show_is_read_before_it_is_written(
    url: str, change: str, fault: type[StoreError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody could read on behind it: the one that stands stays, and the chat goes on."""
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 5)
    with opened(url) as store:
        memory, journal = made_with_compactions(store)
        first = next(iter(store.read_kinds("s", ["compaction published"]))).number
        change_entry(store, first, change)
        memory = Memory("s", store=store)
        journal, before = memory.journal("Planner"), rows(store)
        with pytest.raises(fault, match=said.format(first)):
            journal.revert()
        assert rows(store) == before
        current = journal.read().current
        assert current is not None
        assert current.summary == "of 4"
        turn(memory, "7")
        with pytest.raises(fault, match=said.format(first)):
            memory.redact("r3.p1")  # withdraws the second, and would show the first
        assert memory.reload("r3.p1") == "answer 3"
        turn(memory, "8")
        assert len(Memory("s", store=store).conversation.rounds) == 8


def made_with_compactions(store: SqlStore) -> tuple[Memory, Any]:
    """Return a session of six rounds and its journal, with one compaction of two rounds and another of four."""
    memory = Memory("s", store=store)
    journal = memory.journal("Planner")
    for number in range(1, 7):
        turn(memory, str(number))
        if number in (3, 5):
            rounds = memory.conversation.rounds
            end = number - 1
            made = CompactedMessage(start_index=1, end_index=end, summary=f"of {end}", end_round_id=rounds[end - 1].id)
            ids = [one.id for one in rounds[end - 2 : end]]
            journal.publish(made, base=journal.read().generation, round_ids=ids)
    return memory, journal


@unreadable
def test_what_cannot_be_erased_yet_is_hidden_and_keeps_nobody_out(
    url: str, change: str, fault: type[StoreError], said: str
) -> None:
    """An overlay that cannot be read may hold the text: it is left alone, and the erasure is gone on with later."""
    with opened(url) as store:
        memory, _ = made_with_compactions(store)
        first = next(iter(store.read_kinds("s", ["compaction published"])))
        Memory("s", store=store)._keep_checkpoint(memory.snapshot)
        change_entry(store, first.number, change)
        for _ in range(2):
            with pytest.raises(fault, match=said.format(first.number)):
                memory.redact("r6.p1")
        for one in (memory, Memory("s", store=store)):
            assert one.reload("r6.p1") == "[Redacted]"
            assert one.reload("r5.p1") == "answer 5"
        turn(memory, "7")
        on(store, "UPDATE compactor_entries SET version = 1, body = :b WHERE number = :n", b=first.body, n=first.number)
        memory.redact("r6.p1")
        assert "answer 6" not in "".join(entry.body for entry in log_of(store))


def test_a_kind_that_only_a_newer_version_knows_is_passed_over_and_kept(url: str) -> None:
    """What matters to all has a new version of the body; the rest need not concern those who do not know it."""
    with opened(url) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        store.append("s", [Entry("mood noted", body='{"mood":"fine"}')], after=3)
        turn(memory, "2")
        assert [entry.kind for entry in store.read("s")][3] == "mood noted"
        assert shown(Memory("s", store=store)) == shown(memory)


@pytest.mark.parametrize(
    "change",
    ["body = x'00ff'", "body = 7", "kind = x'ff'", "round = 'x'", "version = 'x'", "created_at = 'once'"],
)
def test_a_row_of_the_wrong_type_is_damage(tmp_path: Path, change: str) -> None:
    """SQLite holds anything in any column, and a damaged file may say anything."""
    with opened(url_in(tmp_path)) as store:
        turn(Memory("s", store=store), "1")
        change_entry(store, 2, change)
        with pytest.raises(StoreDamaged, match="restore"):
            Memory("s", store=store)


@pytest.mark.parametrize("kept", ["x'ff'", "7", "'{'", "'{\"version\": 1}'", "'[]'"])
def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path: Path, kept: str) -> None:
    """All that it says is in the log as well."""
    with opened(url_in(tmp_path)) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        on(store, f"UPDATE compactor_sessions SET checkpoint = {kept}, checkpoint_number = 2")  # noqa: S608
        same_as_resumed(memory, store)


# -- servers -----------------------------------------------------------------------------------------------------------


def test_a_server_may_be_restarted_at_any_moment(own_postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between calls, within a transaction, within a page of what is read; and be away for a while."""
    monkeypatch.setattr(sql, "PAGE", 2)
    with opened(own_postgres.url()) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        own_postgres.restart()
        turn(memory, "2")

        reading = store.read("s")
        assert next(reading).number == 1
        own_postgres.restart()
        assert [entry.number for entry in reading] == [2, 3, 4, 5, 6]

        went = iter([own_postgres.restart])

        def change(connection: Any) -> None:
            connection.execute(text("UPDATE compactor_sessions SET checkpoint_number = checkpoint_number + 1"))
            for restart in went:
                restart()
            connection.execute(text("UPDATE compactor_sessions SET checkpoint_number = checkpoint_number + 1"))

        store._connections.change(change)
        assert on(store, "SELECT checkpoint_number FROM compactor_sessions") == [(2,)]  # all of it, once
        on(store, "UPDATE compactor_sessions SET checkpoint_number = 0")

        reading = store.read("s")
        assert next(reading).number == 1
        own_postgres.crash()
        for ask in (lambda: list(reading), lambda: turn(memory, "3"), lambda: Memory("s", store=store)):
            with pytest.raises(StoreUnreachable, match="try again once the server is back"):
                ask()
        assert shown(memory)[1] == ("question 2", ["answer 2"])
        own_postgres.start()
        turn(memory, "3")
        same_as_resumed(memory, store)
        assert len(shown(memory)) == 3


@pytest.mark.parametrize(("times", "arrives"), [(1, True), (3, False)], ids=["once", "for good"])
@pytest.mark.parametrize(
    ("message", "deed"),
    [
        (b"UPDATE compactor_entries", lambda memory, _: memory.redact("r2.p1")),
        (b"INSERT INTO compactor_texts", lambda memory, _: memory.index_texts()),
        (b"DELETE FROM compactor_entries", lambda _, store: store.purge("other")),
        (b"INSERT INTO compactor_leases", lambda _, store: store.lease("s", "name", "me", 60.0)),
    ],
    ids=["redact", "index", "purge", "lease"],
)
def test_what_is_interrupted_by_the_network_is_whole_when_it_is_done_again(
    postgres_url: str,
    postgres_server: Server,
    message: bytes,
    deed: Callable[[Memory, SqlStore], object],
    times: int,
    arrives: bool,
) -> None:
    """Cut off once, nobody notices; for good, it is said, and the same call does it later."""
    line = Line(postgres_server)
    try:
        with opened(line.url(postgres_url)) as store:
            memory = Memory("s", store=store)
            for number in range(1, 4):
                turn(memory, str(number))
            turn(Memory("other", store=store), "1")
            line.message, line.arrives, line.times = message, arrives, times
            with pytest.raises(StoreUnreachable) if times == 3 else nullcontext():
                deed(memory, store)
            assert line.times == 0
            deed(memory, store)
            turn(memory, "4")
            erased = message == b"UPDATE compactor_entries"
            assert ("answer 2" in "".join(entry.body for entry in log_of(store))) is not erased
            assert {hit.round for hit in memory.search("answer")} == ({1, 3, 4} if erased else {1, 2, 3, 4})
            assert ("other" in store.sessions()) is (b"DELETE" not in message)
            same_as_resumed(memory, store)
    finally:
        line.close()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped there")
@pytest.mark.parametrize("late", [False, True], ids=["never", "late"])
def test_a_server_that_says_nothing_is_given_up(
    postgres_url: str, postgres_server: Server, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat does not hang for ever; and what the server does in the end, it does once, at its place."""
    monkeypatch.setattr(dialects, "SILENCE", 0.2)
    with opened(f"{postgres_url}?timeout=0.1") as store, opened(postgres_url) as other:
        memory = Memory("s", store=store)
        turn(memory, "1")
        ((backend,),) = on(store, "SELECT pg_backend_pid()")
        on(store, "SELECT pg_advisory_lock(1)")  # its own, for as long as it lives

        def come_to() -> None:
            """Let it go on, and wait until it has seen that nobody is there any more."""
            with suppress(ProcessLookupError):  # it has gone already
                os.kill(backend, signal.SIGCONT)
            on(other, "SELECT pg_advisory_lock(1)")
            on(other, "SELECT pg_advisory_unlock(1)")

        os.kill(backend, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnreachable, match=r"said nothing for 0\.3 s.*not known whether"):
                memory.create_round("2")
            if late:
                come_to()
            memory.create_round("3")
        finally:
            come_to()
        asked = [one.user_query for one in memory.conversation.rounds]
        assert asked == (["question 1", "2", "3"] if late else ["question 1", "3"])
        same_as_resumed(memory, store)


def test_a_lock_on_a_server_is_waited_for_as_long_as_was_said(postgres_url: str) -> None:
    """Whoever reads goes on meanwhile, and the same call works afterwards."""
    with opened(f"{postgres_url}?timeout=0.2") as store, opened(postgres_url) as other:
        memory = Memory("s", store=store)
        turn(memory, "1")

        def hold(connection: Any) -> None:
            connection.execute(text("LOCK TABLE compactor_entries IN SHARE ROW EXCLUSIVE MODE"))
            for write in (lambda: turn(memory, "2"), lambda: memory.redact("r1.p1"), lambda: store.purge("s")):
                began = time.monotonic()
                with pytest.raises(StoreBusy, match=r"held up by others.*nothing was written: try again"):
                    write()
                assert 0.1 < time.monotonic() - began < SOON
            assert shown(Memory("s", store=store)) == [("question 1", ["answer 1"])]

        other._connections.change(hold)
        turn(memory, "2")
        memory.redact("r1.p1")
        assert shown(memory) == [("question 1", ["[Redacted]"]), ("question 2", ["answer 2"])]
        same_as_resumed(memory, store)


def test_a_server_that_becomes_writable_again_is_written_to(postgres_url: str, postgres_server: Server) -> None:
    """As after a failover: connections that were made while it could only be read are made anew."""
    name = postgres_url.rpartition("/")[2]
    with opened(postgres_url) as store:
        turn(Memory("s", store=store), "1")
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with opened(postgres_url) as store:
        memory = Memory("s", store=store)
        for write in (lambda: turn(memory, "2"), lambda: memory.redact("r1.p1"), lambda: store.purge("s")):
            with pytest.raises(StoreReadOnly, match=r"read-only transaction.*nothing was written: allow it there"):
                write()
        assert {hit.round for hit in memory.search("question")} == {1}
        postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
        turn(memory, "2")
        same_as_resumed(memory, store)


def test_a_server_whose_disk_is_full_goes_on_when_it_has_room(tmp_path: Path, postgres_server: Server) -> None:
    """The disk of its tables; one that is full where its own log is kept, it does not survive, and has to be started."""
    with mounted(tmp_path / "disk", "24m") as place:
        disk = Disk(place, mounted=True)
        # The server is another user, who must come as far as there.
        folder = Path(tempfile.mkdtemp(prefix="tablespace-"))
        folder.chmod(0o711)
        space = folder / "disk"
        space.mkdir()
        subprocess.run(["mount", "--bind", place, space], check=True)
        try:
            (space / "tables").mkdir()
            owner = Path(f"/proc/{server_pid(postgres_server)}").stat()
            os.chown(space / "tables", owner.st_uid, owner.st_gid)
            postgres_server.execute(f"CREATE TABLESPACE small LOCATION '{space / 'tables'}'")
            postgres_server.execute("CREATE DATABASE small TEMPLATE template0 TABLESPACE small")
            with opened(postgres_server.url("small")) as store:
                memory = Memory("s", store=store)
                turn(memory, "1")
                memory.create_round("a long one")
                disk.fill(store)
                said = fill_up(memory)
                assert shown(Memory("s", store=store))[-1] == ("a long one", said)
                disk.free(store)
                memory.add_post(memory.open_rounds[0], send_from="Planner", send_to="User", message="on we go")
                same_as_resumed(memory, store)
        finally:
            postgres_server.execute("DROP DATABASE IF EXISTS small WITH (FORCE)")
            postgres_server.execute("DROP TABLESPACE IF EXISTS small")
            subprocess.run(["umount", "-l", space], check=True)
            shutil.rmtree(folder)


def server_pid(server: Server) -> int:
    return int((server._data / "postmaster.pid").read_text(encoding="utf-8").split()[0])


# -- the tables --------------------------------------------------------------------------------------------------------

MIGRATE = """
    import os, sys
    from memory.stores.dialects import Postgres, Sqlite
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
        assert len(shown(memory)) == before + 1
        same_as_resumed(memory, store)
