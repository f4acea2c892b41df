"""What is purged or expired is gone with its files, and nothing else is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from compactor import CompactorConfig, ConfigError, ContextCompactor
from compactor.presets import expire_files
from memory import Memory, Store, StoreError, delete_files, expire, list_expired, open_store, purge_tenant

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
OURS = "r3-p2-0123456789abcdef.txt"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kept = open_store("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/chat.db")
    yield kept
    kept.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{(tmp_path / 'chat.db').as_posix()}"


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
        session(store, f"acme\x1fs{number}", at=NOON + timedelta(seconds=number))
        session(store, f"s{number}")
    now = NOON + DAY + timedelta(seconds=2)
    assert list_expired(store, DAY, now=now, tenant="other") == []
    assert expire(store, DAY, now=now, tenant="acme") == ["acme\x1fs0", "acme\x1fs1"]
    assert expire(store, DAY, now=now, tenant="") == ["s0", "s1", "s2"]
    assert list(store.sessions()) == ["acme\x1fs2"]


def test_a_session_without_a_name_expires_like_any_other(store: Store) -> None:
    """To the second, too, as do those whose names come last."""
    for name in ("", "~", "~~"):
        session(store, name)
    assert list_expired(store, DAY, now=NOON + DAY) == []
    assert list_expired(store, DAY, now=NOON + DAY + timedelta(seconds=1)) == ["", "~", "~~"]


def test_at_the_end_of_time_every_session_has_expired(store: Store) -> None:
    session(store, "a")
    assert list_expired(store, timedelta(0), now=datetime.max.replace(tzinfo=UTC)) == ["a"]


def test_a_slow_clock_lets_no_session_in_use_expire(store: Store) -> None:
    """A clock that was years ahead keeps none, though."""
    now = datetime.now(UTC)
    for name, first, last in (
        ("slow", now, now - 365 * DAY),
        ("old", now - 366 * DAY, now - 365 * DAY),
        ("fast", now + 3_650 * DAY, now - 365 * DAY),
    ):
        session(store, name, at=first)
        session(store, name, at=last)
    assert list_expired(store, 30 * DAY) == ["fast", "old"]


def test_nothing_of_a_purged_tenant_is_left(url: str, tmp_path: Path) -> None:
    """In no table, in no file, and in no byte of a SQLite file; everything of the others is."""
    store = open_store(url)
    for tenant, word in (("acme", "zebra"), ("acmes", "giraffe"), ("", "walrus")):
        for number in range(3):
            name = f"{tenant}\x1f{word}-{number}" if tenant else f"{word}-{number}"
            memory = session(store, name, folder=tmp_path / word / str(number))
            for place in range(8):
                said = f"Parcel {place} of the {word} is in hall {number}. " + " ".join(map(str, range(100)))
                memory.append({"role": ("user", "assistant")[place % 2], "content": said})
            compactor = ContextCompactor.for_role(memory, "assistant", CompactorConfig(threshold=2, retain_recent=1))
            assert compactor.compact_now(timeout=60)
            compactor.stop()
            assert memory.search(word)
            store.lease(name, "assistant", "a compactor that was killed", 0.0)
    store.lease("acme\x1fzebra-9", "assistant", "a compactor that was late", 0.0)
    others = [list(store.read(name)) for name in store.sessions() if "zebra" not in name]

    assert purge_tenant(store, "acme") == 3

    assert [list(store.read(name)) for name in store.sessions()] == others
    assert not any((tmp_path / "zebra").glob("*/*"))
    assert len([*(tmp_path / "giraffe").glob("*/*")]) == 3
    engine = create_engine(url)
    with engine.connect() as connection:
        names = inspect(connection).get_table_names()
        rows = {name: repr(connection.exec_driver_sql(f"SELECT * FROM {name}").all()) for name in names}  # noqa: S608
    engine.dispose()
    assert all("giraffe" in rows[name] for name in ("compactor_sessions", "compactor_entries"))
    assert [name for name, found in rows.items() if "zebra" in found or "acme\\" in found] == []
    store.close()
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        assert b"giraffe" in path.read_bytes()
        assert b"zebra" not in b"".join(part.read_bytes() for part in path.parent.glob(f"{path.name}*"))


def test_a_tenant_that_is_written_to_is_not_said_to_be_gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    session(store, "acme\x1fs")
    purge = store.purge

    def purge_and_write(name: str) -> None:
        purge(name)
        session(store, name)

    monkeypatch.setattr(store, "purge", purge_and_write)
    with pytest.raises(StoreError, match="stop what writes"):
        purge_tenant(store, "acme")


@pytest.mark.parametrize("tenant", ["", "a b", "acme\x1f"])
def test_a_tenant_that_is_none_is_refused(store: Store, tenant: str) -> None:
    """Above all the empty one, which would purge whatever has no tenant."""
    session(store, "mine")
    with pytest.raises(ConfigError):
        purge_tenant(store, tenant)
    assert list(store.sessions()) == ["mine"]


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
