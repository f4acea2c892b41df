"""A PostgreSQL server whose disk is full: the disk is a small one in memory, where root may mount it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from postgres import Postgres as Server
from postgres import own
from sql_stores import opened, same_as_resumed, turn

from compactor import compose
from memory import Memory, StoreError, StoreFull, StoreUnreachable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SIZE = "160m"


@pytest.fixture
def small_disk() -> Iterator[Path]:
    if getattr(os, "geteuid", lambda: 1)() or not shutil.which("mount"):
        pytest.skip("only root may mount a small disk")
    place = Path(tempfile.mkdtemp(prefix="small-disk-"))
    options = ["-t", "tmpfs", "-o", f"size={SIZE},mode=1777", "tmpfs"]
    if subprocess.run(["mount", *options, place], capture_output=True, check=False).returncode:
        place.rmdir()
        pytest.skip("root may not mount a small disk here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Leave no room on *disk*, but for what is left in files that are there."""
    ballast = disk / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65_536))

    with pytest.raises(OSError, match="No space left"):
        fill()
    try:
        yield
    finally:
        ballast.unlink()


def long_text(number: int) -> str:
    """Return a text that hardly gets shorter when it is compressed."""
    return f"{number}: {random.Random(number).randbytes(100_000).hex()}"


def write_until_full(memory: Memory) -> StoreError:
    for number in range(1_000):
        round_ = memory.create_round(f"long {number}")
        try:
            memory.add_post(round_, send_from="Planner", send_to="User", message=long_text(number))
            memory.finish_round(round_)
        except StoreError as error:
            return error
    raise AssertionError("there was room")


def test_a_full_disk_refuses_appends_until_there_is_room(own_postgres: Server, small_disk: Path) -> None:
    """The chat goes on from memory meanwhile; then the same Memory writes on, behind all that was acknowledged."""
    place = small_disk / "tables"
    place.mkdir()
    own(place)
    own_postgres.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
    own_postgres.execute("CREATE DATABASE small TEMPLATE template0 TABLESPACE small")
    with opened(own_postgres.url("small")) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        with full(small_disk):
            error = write_until_full(memory)
            assert isinstance(error, StoreFull)
            assert "nothing was written: free some and try again" in str(error)
            assert "question 1" in str(compose(memory, "Planner", budget=2_000_000))
            assert Memory("s", store=store).snapshot.total == memory.snapshot.total
        turn(memory, "2")
        same_as_resumed(memory, store)


def test_a_server_that_stopped_for_want_of_room_goes_on_where_it_was(own_postgres: Server, small_disk: Path) -> None:
    """Without room for its write-ahead log it ends. When it is started again, all that was acknowledged is there."""
    own_postgres.stop()
    own_postgres.move_log(small_disk / "log")
    own_postgres.start()
    with opened(own_postgres.url()) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        with full(small_disk):
            error = write_until_full(memory)
            assert isinstance(error, StoreUnreachable)
            assert "try again once the server is back" in str(error)
            written = memory.snapshot.total
            assert written > 2
            with pytest.raises(StoreUnreachable):
                turn(memory, "2")
            assert "question 1" in str(compose(memory, "Planner", budget=2_000_000))
        with suppress(RuntimeError):  # it may have come back by itself, or be about to
            own_postgres.crash()
        own_postgres.start()
        turn(memory, "2")
        assert memory.snapshot.total in (written + 1, written + 2)
        same_as_resumed(memory, store)
