"""What is purged or expired is gone with its files, and nothing else is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from compactor.presets import expire_files
from memory import Memory, Store, StoreError, delete_files, expire, list_expired, open_store
from memory.stores.tenants import name_in

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
OURS = "r3-p2-0123456789abcdef.txt"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kept = open_store("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/chat.db")
    yield kept
    kept.close()


def session(store: Store, name: str, *, at: datetime = NOON, folder: Path | None = None) -> Memory:
    """A session that was written to then, perhaps with files in a folder."""
    memory = Memory(name, store=store, clock=lambda: at)
    memory.append({"role": "user", "content": "hello"})
    if folder is not None:
        folder.mkdir(parents=True)
        (folder / OURS).write_text("what was said")
        memory.journal("").note("files.kept", {"session": name, "folder": str(folder)})
    return memory


def test_a_purge_removes_the_sessions_files(store: Store, tmp_path: Path) -> None:
    """And those of no other session."""
    mine, others = tmp_path / "files" / "mine", tmp_path / "files" / "others"
    session(store, "mine", folder=mine)
    session(store, "others", folder=others)
    store.purge("mine")
    assert not mine.exists()
    assert (others / OURS).exists()
    assert list(store.sessions()) == ["others"]


def test_a_copy_of_a_session_does_not_take_the_files_along(store: Store, tmp_path: Path) -> None:
    """A fork's log names the folder too; to purge it leaves the first session whole."""
    folder = tmp_path / "files" / "mine"
    memory = session(store, "mine", folder=folder)
    memory.fork(1, "fork")
    store.purge("fork")
    assert (folder / OURS).exists()


def test_only_our_own_files_are_removed(store: Store, tmp_path: Path) -> None:
    """Whatever a log says: no other file, no file in a folder below, and nothing behind a link."""
    folder, outside = tmp_path / "mine", tmp_path / "outside"
    session(store, "mine", folder=folder)
    outside.mkdir()
    (outside / OURS).write_text("theirs")
    (folder / "notes.txt").write_text("theirs")
    (folder / "below").mkdir()
    (folder / "below" / OURS).write_text("theirs")
    (folder / OURS.replace("r3", "r4")).symlink_to(outside / OURS)
    (tmp_path / "link").symlink_to(outside)
    Memory("mine", store=store).journal("").note("files.kept", {"session": "mine", "folder": str(tmp_path / "link")})
    store.purge("mine")
    assert sorted(one.name for one in folder.iterdir()) == ["below", "notes.txt", OURS.replace("r3", "r4")]
    assert (outside / OURS).read_text() == (folder / "below" / OURS).read_text() == "theirs"


def test_a_file_that_cannot_be_removed_leaves_the_session(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that all is gone while something is left; what is left can still be found."""
    session(store, "mine", folder=tmp_path / "mine")

    def denied(_path: str) -> None:
        raise PermissionError(13, "denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", denied)
        with pytest.raises(StoreError, match="purge again"):
            store.purge("mine")
    assert list(store.sessions()) == ["mine"]
    store.purge("mine")
    assert (list(store.sessions()), (tmp_path / "mine").exists()) == ([], False)


def test_sessions_expire_when_somebody_says_so(store: Store, tmp_path: Path) -> None:
    """Those that nobody has written to for longer; by the time that is passed in."""
    session(store, "old", folder=tmp_path / "old")
    session(store, "new", at=NOON + 9 * DAY, folder=tmp_path / "new")
    now = NOON + 10 * DAY
    assert list_expired(store, 10 * DAY, now=now) == []
    assert list_expired(store, 9 * DAY, now=now) == ["old"]
    assert expire(store, 9 * DAY, now=now, sessions=["new"]) == []
    assert expire(store, 9 * DAY, now=now) == ["old"]
    assert list(store.sessions()) == ["new"]
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "new" / OURS).exists()


def test_a_tenants_sessions_expire_alone(store: Store) -> None:
    """However many there are, and to the second."""
    for number in range(3):
        session(store, name_in("acme", f"s{number}"), at=NOON + timedelta(seconds=number))
        session(store, f"s{number}")
    now = NOON + DAY + timedelta(seconds=2)
    assert list_expired(store, DAY, now=now, tenant="other") == []
    assert expire(store, DAY, now=now, tenant="acme") == [name_in("acme", "s0"), name_in("acme", "s1")]
    assert expire(store, DAY, now=now, tenant="") == ["s0", "s1", "s2"]
    assert list(store.sessions()) == [name_in("acme", "s2")]


def test_files_can_be_removed_before_the_store_does_it(store: Store, tmp_path: Path) -> None:
    """For a store of somebody else's, whose purge knows of no files."""
    session(store, "mine", folder=tmp_path / "mine")
    assert delete_files(store, "mine") == 1
    assert delete_files(store, "mine") == 0
    assert list(store.sessions()) == ["mine"]


def test_files_are_as_old_as_what_was_written_last(tmp_path: Path) -> None:
    """Only those before that moment are removed, and the folder with the last of them."""
    folder, now = tmp_path / "mine", datetime.fromtimestamp(300, UTC)
    folder.mkdir()
    for place, at in enumerate((100, 200)):
        (folder / f"a-{place:016}.txt").write_text("said")
        os.utime(folder / f"a-{place:016}.txt", (at, at))
    assert expire_files(tmp_path, timedelta(seconds=150), now=now) == 1
    assert [one.name for one in folder.iterdir()] == [f"a-{1:016}.txt"]
    assert expire_files(tmp_path, timedelta(), now=now) == 1
    assert not folder.exists()
    assert expire_files(tmp_path, timedelta(), now=now) == 0
