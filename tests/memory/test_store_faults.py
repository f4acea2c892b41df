"""A full disk, files that may only be read, and locks of others, all of them real: each fault has its error, harms nothing
that was acknowledged, and when it is over the same Memory goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from executors import SOON
from histories import texts_of
from postgres import Postgres as Server
from sql_stores import QUICK, log_of, on, opened, same_as_resumed, sqlite_url, turn

from memory import Memory, StoreBusy, StoreFull, open_store

ROOT = Path(__file__).resolve().parents[2]


# -- a full disk ------------------------------------------------------------------------------------------------------


class Disk:
    """A small one: of its own where one may be mounted, else as many pages as SQLite is told there are."""

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder = folder
        self._mounted = mounted

    def fill(self, store: Any) -> None:
        if not self._mounted:
            ((pages,),) = on(store, "PRAGMA page_count")
            self._limit(store, pages)
            return
        with open(self.folder / "others", "wb", buffering=0) as others, suppress(OSError):
            while True:
                others.write(b"x" * 4096)

    def free(self, store: Any) -> None:
        if self._mounted:
            (self.folder / "others").unlink()
        else:
            self._limit(store, 1_000_000)

    def _limit(self, store: Any, pages: int) -> None:
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
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 5)  # checkpoints are tried, and fail unseen
    with opened(sqlite_url(disk.folder, QUICK)) as store:
        memory = Memory("s", store=store)
        for number in range(4):
            turn(memory, str(number))
        memory.create_round("a long one")
        disk.fill(store)
        said = fill_up(memory)
        assert fill_up(memory) == said  # it is as full as it was
        for reader in (memory, Memory("s", store=store)):
            assert texts_of(reader)[-1] == ("a long one", said)
            assert {hit.round for hit in reader.search("answer")} == {1, 2, 3, 4}
        disk.free(store)
        memory.add_post(memory.open_rounds[0], send_from="Planner", send_to="User", message="on we go")
        turn(memory, "after")
        assert texts_of(memory)[-2:] == [("a long one", [*said, "on we go"]), ("question after", ["answer after"])]
        same_as_resumed(memory, store)


def test_what_else_is_written_is_whole_or_not_at_all_on_a_full_disk(disk: Disk) -> None:
    """Erasing, leases and the index for searching: what failed works when it is done again."""
    with opened(sqlite_url(disk.folder, QUICK)) as store:
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
        assert texts_of(memory)[0] == ("question 1", ["answer 1"])
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
        url = sqlite_url(folder, QUICK)
        with opened(sqlite_url(tmp_path, QUICK)) as elsewhere:  # which is not asked for what it does
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
            assert len(texts_of(memory)) == 2
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
            owner = Path(f"/proc/{postgres_server.pid}").stat()
            os.chown(space / "tables", owner.st_uid, owner.st_gid)
            postgres_server.execute(f"CREATE TABLESPACE small LOCATION '{space / 'tables'}'")
            postgres_server.execute("CREATE DATABASE small TEMPLATE template0 TABLESPACE small")
            with opened(postgres_server.url("small")) as store:
                memory = Memory("s", store=store)
                turn(memory, "1")
                memory.create_round("a long one")
                disk.fill(store)
                said = fill_up(memory)
                assert texts_of(Memory("s", store=store))[-1] == ("a long one", said)
                disk.free(store)
                memory.add_post(memory.open_rounds[0], send_from="Planner", send_to="User", message="on we go")
                same_as_resumed(memory, store)
        finally:
            postgres_server.execute("DROP DATABASE IF EXISTS small WITH (FORCE)")
            postgres_server.execute("DROP TABLESPACE IF EXISTS small")
            subprocess.run(["umount", "-l", space], check=True)
            shutil.rmtree(folder)


# -- what may only be read --------------------------------------------------------------------------------------------


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
        with opened(sqlite_url(folder, QUICK)) as store:
            memory = Memory("s", store=store)
            turn(memory, "1")
            turn(memory, "2")
        done = subprocess.run(
            [sys.executable, "-c", dedent(BOUND) + dedent(script), folder, spare],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        folder.chmod(0o755)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


# -- locked by another process ----------------------------------------------------------------------------------------


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
    with opened(sqlite_url(tmp_path, "?timeout=0.3")) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        with held(tmp_path):
            for write in (lambda: turn(memory, "2"), lambda: memory.redact("r1.p1"), lambda: store.purge("s")):
                began = time.monotonic()
                with pytest.raises(StoreBusy, match="try again, or wait for longer with"):
                    write()
                assert 0.2 < time.monotonic() - began < SOON
            assert {hit.round for hit in memory.search("question")} == {1}
            assert texts_of(Memory("s", store=store)) == [("question 1", ["answer 1"])]
        turn(memory, "2")
        memory.redact("r1.p1")
        assert texts_of(memory) == [("question 1", ["[Redacted]"]), ("question 2", ["answer 2"])]
        same_as_resumed(memory, store)
