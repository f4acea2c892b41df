"""A closed session goes into an archive and comes back the same; no crash, race or hostile object loses or forges one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from archiving import DAY, LATER, NOON, move, write
from histories import eventful, everything
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor import CompactorConfig, ConfigError, ContextCompactor, Recall, compose
from memory import (
    ArchiveBusy,
    Entry,
    Memory,
    SessionPurged,
    Store,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    open_store,
    purge_tenant,
)
from memory.entries import PostRedacted
from memory.stores import join_name
from memory.stores.base import adapt_store
from memory.transfer import archive, archive_object, archive_storage
from memory.transfer.archive import (
    expire_archive,
    find_archived,
    list_archive,
    purge_archived,
    purge_archived_tenant,
    purge_session,
    restore_session,
)
from memory.transfer.archive_object import make_archive_key

NEVER = datetime(2100, 1, 1, tzinfo=UTC)
OURS = "r3-p2-0123456789abcdef.txt"


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/chat.db?synchronous=normal"}
    kept = open_store(urls.get(request.param) or request.getfixturevalue("emptied_postgres_url"))
    yield kept
    kept.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Store]:
    kept = open_store(f"sqlite:///{tmp_path}/chat.db?synchronous=normal")
    yield kept
    kept.close()


@pytest.fixture(params=["folder", "fsspec"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "archive")
        return
    fsspec = pytest.importorskip("fsspec")
    yield f"memory://{tmp_path.name}/archive"
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def letters(store: Store, session: str = "s") -> list[tuple[Any, ...]]:
    """The log, to the letter."""
    return [
        (one.number, one.id, one.kind, one.round, one.version, one.created_at, one.body) for one in store.read(session)
    ]


def names(where: Any, **more: Any) -> list[str]:
    return sorted(one.session for one in list_archive(where, **more))


# -- there and back ----------------------------------------------------------------------------------------------------


def test_a_session_comes_back_to_the_letter(store: Store, where: str) -> None:
    """Entries, ids, numbers and stamps; and whatever a Memory, a prompt, recall or a search makes of them."""
    memory = eventful(store, clock=lambda: NOON)

    def seen() -> list[object]:
        memory = Memory("s", store=store, clock=lambda: NOON)
        prompt = compose(memory, "Planner", budget=2_000).messages
        recalled = Recall(memory, role="Planner").call("read_rounds", {"start": 1, "end": 5})
        return [
            *everything(memory),
            prompt,
            recalled,
            memory.search("query"),
            memory.redacted(),
            memory.snapshot.number,
        ]

    before, log = seen(), letters(store)
    assert move(store, where, now=NEVER) == (["s"], {})
    assert (list(store.sessions()), names(where)) == ([], ["s"])
    assert restore_session(store, where, "s", keep=True) == ("s", memory.snapshot.number)
    assert letters(store) == log
    assert seen() == before
    resumed = Memory("s", store=store, clock=lambda: NOON)
    resumed.journal("Planner").revert()
    resumed.redact("r2.p1")
    assert move(store, where, now=NEVER) == (["s"], {})  # replaces what was kept


says = st.lists(
    st.tuples(
        st.sampled_from(("user", "assistant")),
        st.text(st.characters() | st.sampled_from("\ud83d\ude00\0\u2028"), min_size=1, max_size=60),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=says, redacted=st.booleans(), rounds=st.integers(1, 6))
def test_any_conversation_comes_back_to_the_letter(
    sqlite: Store, tmp_path: Path, said: list[tuple[str, str]], redacted: bool, rounds: int
) -> None:
    """With compactions by a compactor, a pin and a redaction, whatever is said."""
    sqlite.purge("s")
    memory = Memory("s", store=sqlite, clock=lambda: NOON)
    memory.extend([{"role": role, "content": text} for role, text in (("user", "first"), *said)])
    compactor = ContextCompactor.for_role(memory, "assistant", CompactorConfig(threshold=rounds, retain_recent=1))
    compactor.compact_now(timeout=60)
    compactor.stop()
    memory.pin("r1.p0")
    if redacted:
        memory.redact(f"r{memory.snapshot.total}.p0")
    log, before = letters(sqlite), compose(Memory("s", store=sqlite), budget=500).messages
    assert move(sqlite, tmp_path / "archive", now=NEVER) == (["s"], {})
    restore_session(sqlite, tmp_path / "archive", "s")
    assert letters(sqlite) == log
    assert compose(Memory("s", store=sqlite), budget=500).messages == before


def test_open_reverted_and_failed_rounds_and_entries_of_nobody_knows_come_back(store: Store, where: str) -> None:
    """Under another name, and into another kind of store; there it goes on."""
    eventful(store, clock=lambda: NOON)
    log = letters(store)
    move(store, where, now=NEVER)
    other = open_store("memory://")
    assert restore_session(other, where, "s", "again") == ("again", len(log))
    assert letters(other, "again") == log
    Memory("again", store=other).append({"role": "user", "content": "go on"})
    assert names(where) == ["s"]  # a store in memory ends with the process
    restore_session(store, where, "s")
    assert (letters(store), names(where)) == (log, ["s"] if store.is_resident else [])


def test_only_what_is_old_and_asked_for_goes(store: Store, where: str) -> None:
    """By age to the second, by tenant and by name; a second run finds nothing to do."""
    for name in (join_name("acme", "a"), join_name("acme", "b"), "c"):
        write(store, name)
    write(store, "new", at=LATER - 90 * DAY)
    assert move(store, where, tenant="other") == ([], {})
    assert move(store, where, tenant="acme", sessions=[join_name("acme", "b")]).archived == [join_name("acme", "b")]
    assert move(store, where, tenant="").archived == ["c"]
    assert move(store, where).archived == [join_name("acme", "a")]
    assert move(store, where) == ([], {})
    assert list(store.sessions()) == ["new"]
    assert names(where, tenant="acme") == [join_name("acme", "a"), join_name("acme", "b")]
    assert names(where, tenant="") == ["c"]
    row = next(iter(list_archive(where, tenant="")))
    assert row[:5] == ("c", "", NOON, 1, 1)
    assert find_archived(where, "c") == row
    assert find_archived(where, "a") is find_archived(where, "new") is None


HOSTILE = ["", "../../etc/passwd", "a/b\\c:d*?", "NUL", "nul\0byte", "half \ud800", "Case", "case", "x" * 2_000]
HOSTILE += ["x" * 2_001, "日本\u202e", "a\x1b[2Jb\n", "..\x1fx", join_name("Acme", "x"), join_name("acme", "x")]


def test_any_name_has_a_safe_object_of_its_own(where: str, tmp_path: Path) -> None:
    """Short, in lower case, and below the archive, whatever is in it."""
    store = open_store("memory://")
    for name in HOSTILE:
        write(store, name, name)
    logs = {name: letters(store, name) for name in HOSTILE}
    assert sorted(move(store, where).archived) == sorted(HOSTILE)
    keys = [make_archive_key(name) for name in HOSTILE]
    assert len({*keys}) == len(HOSTILE)
    assert all(len(key) == 138 and key == key.lower() and ".." not in key for key in keys)
    assert names(where) == sorted(HOSTILE)
    if where == str(tmp_path / "archive"):
        assert {path.name for path in tmp_path.iterdir()} == {"archive"}
        assert {str(path.relative_to(where)) for path in Path(where).rglob("*.gz")} == {*keys}
    for name in HOSTILE:
        restore_session(store, where, name)
    assert {name: letters(store, name) for name in HOSTILE} == logs


@pytest.mark.skipif(os.name != "posix", reason="permissions are the folder's there")
def test_only_the_owner_can_read_an_archive_on_disk(tmp_path: Path) -> None:
    """Whatever the umask: folders and objects."""
    before = os.umask(0)
    try:
        store = open_store("memory://")
        write(store, "s")
        move(store, tmp_path / "archive")
    finally:
        os.umask(before)
    (path,) = (tmp_path / "archive").rglob("*.gz")
    assert [one.stat().st_mode & 0o777 for one in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]


def test_an_archive_is_named_by_a_path_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nothing here can reach is an error that names the remedy, and no password."""
    store = open_store("memory://")
    write(store, "s")
    move(store, (tmp_path / "one").as_uri())
    assert names(tmp_path / "one") == ["s"]
    for wrong, said in (("", "path or a URL"), ("a\0b", "path or a URL"), ("nosuch://u:swordfish@h/x", "nosuch:")):
        with pytest.raises(StoreError, match=said) as raised:
            list(list_archive(wrong))
        assert "swordfish" not in str(raised.value)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(StoreError, match=r"context-compactor\[archive\]"):
        list(list_archive("s3://bucket/chats"))


# -- what may come between ---------------------------------------------------------------------------------------------


def between(monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[], object], *, late: bool = False) -> None:
    """Have *act* done once, just before the first call of a storage's *method*, or just after it."""
    for kind in (archive_storage.LocalStorage, archive_storage.FsspecStorage):
        todo, original = [act], getattr(kind, method)

        def patched(self: Any, *call: Any, todo: Any = todo, original: Any = original) -> Any:
            if todo and not late:
                todo.pop()()
            result = original(self, *call)
            if todo:
                todo.pop()()
            return result

        monkeypatch.setattr(kind, method, patched)


@pytest.mark.parametrize("method", ["write", "rename"])
@pytest.mark.parametrize(("reason", "left"), [("active", ["hello", "one more"]), ("gone", [])])
def test_a_session_written_to_or_purged_meanwhile_is_not_archived(
    store: Store, where: str, monkeypatch: pytest.MonkeyPatch, method: str, reason: str, left: list[str]
) -> None:
    """It stays whole, or is gone, and no copy of it lies in the archive."""
    memory = write(store, "s")
    more = {"role": "user", "content": "one more"}
    between(monkeypatch, method, lambda: memory.append(more) if left else store.purge("s"))
    assert move(store, where) == ([], {"s": reason})
    assert list(store.sessions()) == ["s"] * bool(left)
    assert [one["content"] for one in Memory("s", store=store).messages()] == left
    assert names(where) == []


def test_what_is_purged_from_the_archive_meanwhile_stays_in_the_store(
    store: Store, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no moment at which it is in neither."""
    write(store, "s")
    between(monkeypatch, "rename", lambda: purge_archived(where, "s"), late=True)
    assert move(store, where) == ([], {"s": "busy"})
    assert list(store.sessions()) == ["s"]


@pytest.mark.parametrize("method", ["open", "rename"])
def test_what_is_purged_from_the_archive_meanwhile_ends_no_run(
    store: Store, where: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The unfinished object goes, too: that session is skipped, and the others are archived."""
    for name in "ab":
        write(store, name)
    for kind in (archive_storage.LocalStorage, archive_storage.FsspecStorage):
        original = getattr(kind, method)

        def purged(self: Any, key: str, *more: Any, original: Any = original) -> Any:
            if key == make_archive_key("a") + ".part":
                purge_archived(where, "a")
            return original(self, key, *more)

        monkeypatch.setattr(kind, method, purged)
    assert move(store, where) == (["b"], {"a": "busy"})
    assert (list(store.sessions()), names(where)) == (["a"], ["b"])


def test_what_is_erased_for_good_is_not_restored_meanwhile(
    store: Store, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is restored or archived, nothing is erased; afterwards, all of it, wherever it is."""
    write(store, "s")
    append, todo = type(store).append, ["erase"]

    def erase() -> None:
        with pytest.raises(ArchiveBusy, match=r"nothing was changed: try again in \d+ seconds"):
            purge_session(store, where, "s")

    def late(*call: Any) -> int:
        if todo:
            todo.pop()
            erase()
        return append(*call)

    with monkeypatch.context() as patched:
        between(patched, "rename", erase)
        assert move(store, where).archived == ["s"]
    monkeypatch.setattr(type(store), "append", late)
    restore_session(store, where, "s", keep=True)
    assert (todo, list(store.sessions()), names(where)) == ([], ["s"], ["s"])
    assert purge_session(store, where, "s") == (True, True)
    assert (list(store.sessions()), names(where)) == ([], [])
    assert purge_session(store, where, "s") == (False, False)


def test_what_is_erased_for_good_is_not_archived_meanwhile(
    store: Store, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither moved nor restored, from the look at the archive to the end; a host may erase from the store itself."""
    write(store, "s")
    move(store, where)
    restore_session(store, where, "s", keep=True)
    seen: list[object] = []

    def purge(session: str) -> None:
        seen.append(move(store, where))
        store.purge(session)

    def restore() -> None:
        with pytest.raises(ArchiveBusy):
            restore_session(store, where, "s", "t")

    between(monkeypatch, "delete", restore)
    assert purge_session(store, where, "s", purge=purge) == (True, True)
    assert seen == [([], {"s": "busy"})]
    assert (list(store.sessions()), names(where)) == ([], [])


def test_two_do_not_move_one_session_at_once(store: Store, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is told, or skips it."""
    write(store, "s")
    seen: list[object] = []

    def other() -> None:
        seen.append(move(store, where))
        with pytest.raises(StoreBusy, match="try again"):
            restore_session(store, where, "s")

    between(monkeypatch, "rename", other, late=True)
    assert move(store, where) == (["s"], {})
    assert seen == [([], {"s": "busy"})]


def test_a_lease_that_ran_out_is_not_relied_on(store: Store, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that slept for minutes evicts nothing, and deletes no object."""
    write(store, "s")
    now = [0.0]
    monkeypatch.setattr(archive.time, "monotonic", lambda: now[0])
    with monkeypatch.context() as slow:
        between(slow, "rename", lambda: now.__setitem__(0, 500.0))
        assert move(store, where) == ([], {"s": "busy"})
    assert list(store.sessions()) == ["s"]
    assert move(store, where).archived == ["s"]
    append = type(store).append
    monkeypatch.setattr(type(store), "append", lambda *call: (append(*call), now.__setitem__(0, 900.0))[0])
    restore_session(store, where, "s")
    assert (list(store.sessions()), names(where)) == (["s"], ["s"])


def test_a_process_that_slept_leaves_nothing_of_what_was_erased(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system shows an object only when it is complete, so the purge did not see it."""
    write(store, "s")
    now, where = [0.0], tmp_path / "archive"
    monkeypatch.setattr(archive.time, "monotonic", lambda: now[0])
    original = archive_storage.LocalStorage.open

    def late(self: Any, key: str) -> Any:
        if key.endswith(".part"):
            store.purge("s")
            now[0] = 500.0
        return original(self, key)

    monkeypatch.setattr(archive_storage.LocalStorage, "open", late)
    assert move(store, where) == ([], {"s": "busy"})
    assert [one for one in where.rglob("*") if one.is_file()] == []


@pytest.mark.parametrize("restoring", [False, True], ids=["archive", "restore"])
def test_a_process_that_slept_deletes_no_object_of_another(
    store: Store, where: str, monkeypatch: pytest.MonkeyPatch, restoring: bool
) -> None:
    """Not even by a clock that slept, too: another has archived the session since, and that is its only copy."""
    if store.is_resident:
        pytest.skip("another process has another store")
    write(store, "s")
    log, kind, slept = letters(store), type(store), []
    if restoring:
        move(store, where)
    name = "append" if restoring else "evict"
    original = getattr(kind, name)

    def late(self: Any, *call: Any, **more: Any) -> Any:
        if slept:
            return original(self, *call, **more)
        slept.append(True)
        done = original(self, *call, **more) if restoring else None
        free(store)
        assert move(store, where) == (["s"], {})
        return done if restoring else original(self, *call, **more)

    monkeypatch.setattr(kind, name, late)
    if restoring:
        restore_session(store, where, "s")
    else:
        assert move(store, where) == ([], {"s": "gone"})
    monkeypatch.undo()
    assert (list(store.sessions()), names(where)) == ([], ["s"])
    restore_session(store, where, "s")
    assert letters(store) == log


@pytest.mark.parametrize("wakes", ["after a restore", "before the other evicts"])
def test_a_process_that_slept_before_it_evicts_loses_nothing(
    store: Store, where: str, monkeypatch: pytest.MonkeyPatch, wakes: str
) -> None:
    """It slept for minutes, between its last look at its lease and the transaction; another process was faster."""
    write(store, "s")
    log, evict, slept = letters(store), type(store).evict, list[bool]()

    def wake_up(*call: Any, **more: Any) -> None:
        slept.append(evict(*call, **more))

    def late(*call: Any, **more: Any) -> bool:
        if others:
            others.pop()()
            return evict(*call, **more)
        free(store)
        if wakes == "after a restore":
            others.append(lambda: None)
            assert move(store, where).archived == ["s"]
            restore_session(store, where, "s")
            wake_up(*call, **more)
        else:
            others.append(lambda: wake_up(*call, **more))
            assert move(store, where).archived == ["s"]
        return slept[0]

    others = list[Callable[[], None]]()
    monkeypatch.setattr(type(store), "evict", late)
    assert move(store, where) == ([], {"s": "active" if wakes == "after a restore" else "gone"})
    monkeypatch.undo()
    if wakes != "after a restore":
        restore_session(store, where, "s")
    assert letters(store) == log


def test_a_long_move_renews_its_lease(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every half a minute, while it reads and writes."""
    store = open_store("memory://")
    write(store, "s", *map(str, range(60)))
    now, taken = [0.0], []

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    lease = store.lease
    monkeypatch.setattr(archive.time, "monotonic", clock)
    monkeypatch.setattr(store, "lease", lambda *call, **more: (taken.append(now[0]), lease(*call, **more))[1])
    assert move(store, where).archived == ["s"]
    assert len(taken) > 3
    assert all(later - earlier <= 32 for earlier, later in pairwise(taken))


def test_an_interrupted_redaction_is_finished_before_its_words_leave(store: Store, where: str) -> None:
    """The process died between the entry that says so and the erasing."""
    memory = write(store, "s", "swordfish", "tuna")
    record = PostRedacted(round_id=memory.conversation.rounds[0].id, numbers=(0,))
    store.append("s", [Entry.of(record, created_at=NOON, round=1)], memory.snapshot.number)
    assert move(store, where).archived == ["s"]
    kept = open_store("memory://")
    restore_session(kept, where, "s")
    assert "swordfish" not in str(letters(kept))
    assert "tuna" in str(letters(kept))


def test_a_redaction_that_cannot_be_finished_keeps_its_session(
    store: Store, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that words are erased while they are in an archive."""
    memory = write(store, "s", "swordfish")
    record = PostRedacted(round_id=memory.conversation.rounds[0].id, numbers=(0,))
    store.append("s", [Entry.of(record, created_at=NOON, round=1)], memory.snapshot.number)

    def refused(*_call: object) -> None:
        raise StoreReadOnly("not now")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "redact_all", refused)
        assert move(store, where) == ([], {"s": "unreadable"})
    store.append("s", [Entry("round closed", body="{", created_at=NOON)], memory.snapshot.number + 1)
    assert move(store, where) == ([], {"s": "unreadable"})
    assert names(where) == []


def test_an_eviction_whose_reply_was_lost_is_one(store: Store, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection broke after the commit, so the work is repeated; the object is the only copy by then."""
    if store.is_resident:
        pytest.skip("has no connection")
    write(store, "s")
    change = store._connections.change  # type: ignore[attr-defined]

    def twice(work: Any, **more: Any) -> Any:
        change(work, **more)
        return change(work, **more)

    log = letters(store)
    with monkeypatch.context() as patched:
        patched.setattr(store._connections, "change", twice)  # type: ignore[attr-defined]
        assert not store.evict("s", 9, log[0][1])
        assert move(store, where) == (["s"], {})
        assert not store.evict("s", 1, log[0][1])
    assert names(where) == ["s"]
    restore_session(store, where, "s")
    assert letters(store) == log


def test_a_session_that_is_not_old_any_more_stays(store: Store, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody wrote to it, or purged it, since the list was made."""
    write(store, "new", at=LATER)
    monkeypatch.setattr(archive, "list_expired", lambda *_, **__: ["gone", "new"])
    assert move(store, where) == ([], {"gone": "gone", "new": "active"})


def test_an_open_memory_says_that_its_session_is_gone(store: Store, where: str) -> None:
    """It does not begin it anew; a new one of that name does, and then neither replaces the other."""
    memory = write(store, "s")
    move(store, where)
    with pytest.raises(SessionPurged):
        memory.append({"role": "user", "content": "lost?"})
    write(store, "s", "another")
    with pytest.raises(StoreError, match="purge that session first"):
        restore_session(store, where, "s")
    assert move(store, where) == ([], {"s": "name_taken"})
    restore_session(store, where, "s", "old")
    assert [Memory(one, store=store).conversation.rounds[0].user_query for one in ("old", "s")] == ["hello", "another"]


def test_a_session_that_could_not_be_restored_stays(store: Store, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged, of a newer version, or too large; the others go."""
    for name, kind, body, version in (
        ("damaged", "post added", "{", 1),
        ("orphan", "post added", '{"round_id":"none"}', 1),
        ("newer", "round closed", "{}", 99),
    ):
        store.append(name, [Entry(kind, body=body, version=version, created_at=NOON)], 0)
    write(store, "large", "x" * 2_000)
    write(store, "many", *["x" * 300] * 40)
    write(store, "good")
    monkeypatch.setattr(archive_object, "MAX_LINE", 1_500)
    monkeypatch.setattr(archive_object, "MAX_TOTAL", 9_000)
    why = {"damaged": "unreadable", "orphan": "unreadable", "newer": "unreadable"}
    assert move(store, where) == (["good"], {**why, "large": "too_large", "many": "too_large"})
    assert len(store.sessions()) == 5
    assert names(where) == ["good"]


def test_a_store_that_cannot_let_a_session_go_is_refused(where: str) -> None:
    """A host's own, of six methods: its purge would lose what is appended meanwhile."""
    inner = open_store("memory://")
    write(inner, "s")
    six = adapt_store(type("Six", (), {one: getattr(inner, one) for one in Store.__abstractmethods__})())
    with pytest.raises(StoreError, match="implement evict"):
        move(six, where)
    assert list(inner.sessions()) == ["s"]
    able = type("Seven", (), {one: getattr(inner, one) for one in (*Store.__abstractmethods__, "evict")})()
    assert move(able, where).archived == ["s"]
    assert restore_session(six, where, "s").entries == 1


# -- faults and kills at each step -------------------------------------------------------------------------------------


STEPS = [("LocalStorage", name) for name in ("write", "open", "rename", "delete")]
STEPS += [("SqlStore", name) for name in ("lease", "read_kinds", "get_extent", "read", "append", "evict", "release")]


def break_at(monkeypatch: pytest.MonkeyPatch, step: int, fail: Callable[[], object]) -> list[str]:
    """Have the *step*-th moment before or after a step of the store or the storage *fail*; return those that passed."""
    from memory.stores.sql import SqlStore

    passed: list[str] = []

    def moment(what: str) -> None:
        passed.append(what)
        if len(passed) == step:
            fail()

    for kind, name in STEPS:
        owner: Any = SqlStore if kind == "SqlStore" else archive_storage.LocalStorage

        original = getattr(owner, name)

        def patched(self: Any, *call: Any, original: Any = original, name: str = name, **more: Any) -> Any:
            moment(f"before {name}")
            result = original(self, *call, **more)
            if name != "open":  # an open file would be nobody's
                moment(f"after {name}")
            return result

        monkeypatch.setattr(owner, name, patched)
    return passed


def free(store: Store) -> None:
    """As two minutes later: the lease of a killed process ran out."""
    store.lease("s", archive._LEASE, "test", 0.0, take_over=True)
    store.release("s", archive._LEASE, "test")


def finish(store: Store, where: Path, log: list[tuple[Any, ...]], *, restoring: bool) -> None:
    """Have the next run do what was interrupted; then the session is in the store, as it was."""
    if "s" in store.sessions():
        assert letters(store) == log
    free(store)
    if not restoring and "s" in store.sessions():
        assert move(store, where) == (["s"], {})
        assert [path.name for path in where.rglob("*.part")] == []
    if "s" not in store.sessions():
        restore_session(store, where, "s")
    assert letters(store) == log


@pytest.mark.parametrize("restoring", [False, True], ids=["archive", "restore"])
def test_a_fault_at_any_step_loses_nothing(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restoring: bool
) -> None:
    """The disk is full, or a connection breaks: an error that says so, and the next run does it."""
    write(sqlite, "s", "one", "two")
    log, where = letters(sqlite), tmp_path / "archive"

    def full() -> None:
        raise OSError(28, "No space left on device")

    for step in range(1, 200):
        if restoring and "s" in sqlite.sessions():
            assert move(sqlite, where).archived == ["s"]
        with monkeypatch.context() as broken:
            passed = break_at(broken, step, full)
            try:
                restore_session(sqlite, where, "s") if restoring else move(sqlite, where)
            except StoreFull as error:
                told = str(error)
        finish(sqlite, where, log, restoring=restoring)
        if len(passed) < step:
            break
    assert step > 10
    assert "no session was lost" in told
    assert {one.partition(" ")[2] for one in passed} >= ({"append", "delete"} if restoring else {"write", "evict"})


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked child")
@pytest.mark.parametrize("restoring", [False, True], ids=["archive", "restore"])
def test_a_kill_at_any_moment_loses_nothing(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restoring: bool
) -> None:
    """With -9, between any two steps; the next run finishes, and the archive has one object or none."""
    write(sqlite, "s", "one", "two")
    log, where, killed = letters(sqlite), tmp_path / "archive", 0
    for step in range(1, 200):
        if restoring and "s" in sqlite.sessions():
            assert move(sqlite, where).archived == ["s"]
        child = os.fork()
        if not child:
            try:
                break_at(monkeypatch, step, lambda: os.kill(os.getpid(), signal.SIGKILL))
                restore_session(sqlite, where, "s") if restoring else move(sqlite, where)
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        killed += os.WIFSIGNALED(status)
        finish(sqlite, where, log, restoring=restoring)
        if not os.WIFSIGNALED(status):
            break
    assert killed > 10


def test_what_reads_otherwise_than_it_was_written_is_found_out(
    store: Store, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the session leaves its store."""
    write(store, "s")
    read = archive.ObjectReader.read_entries

    def other(self: Any) -> Iterator[Any]:
        yield from read(self)
        self.digest = "0" * 64

    monkeypatch.setattr(archive.ObjectReader, "read_entries", other)
    with pytest.raises(StoreDamaged, match="no session was lost"):
        move(store, where)
    assert (list(store.sessions()), names(where)) == (["s"], [])


@pytest.mark.skipif(os.name != "posix" or not os.geteuid(), reason="root may write everywhere")
def test_a_place_that_may_not_be_written_to_is_named(tmp_path: Path) -> None:
    """As the store's own are."""
    store = open_store("memory://")
    write(store, "s")
    (tmp_path / "archive").mkdir(0o500)
    with pytest.raises(StoreReadOnly, match="archive"):
        move(store, tmp_path / "archive")


def test_a_session_that_is_not_there_is_an_error_with_the_remedy(store: Store, where: str) -> None:
    """Also where there is no archive at all."""
    assert names(where) == []
    with pytest.raises(StoreError, match="compactor archived"):
        restore_session(store, where, "s")
    assert not purge_archived(where, "s")
    assert purge_archived_tenant(where, "acme") == 0


# -- erasing -----------------------------------------------------------------------------------------------------------


def noted(store: Store, name: str, folder: Path) -> None:
    """A session with a file outside of the store."""
    folder.mkdir(parents=True)
    (folder / OURS).write_text("what was said")
    memory = write(store, name)
    memory.journal("").note("files.kept", {"session": name, "folder": str(folder)})


def test_files_outside_stay_until_the_session_is_erased(store: Store, where: str, tmp_path: Path) -> None:
    """A restored session still has them; erasing it, in the store or in the archive, takes them along."""
    noted(store, "s", tmp_path / "files" / "s")
    noted(store, "t", tmp_path / "files" / "t")
    assert move(store, where).archived == ["s", "t"]
    restore_session(store, where, "s")
    assert (tmp_path / "files" / "s" / OURS).exists()
    store.purge("s")
    assert not (tmp_path / "files" / "s").exists()
    assert purge_archived(where, "t")
    assert not purge_archived(where, "t")
    assert not (tmp_path / "files" / "t").exists()
    assert names(where) == (["s"] if store.is_resident else [])


def test_nothing_of_a_purged_tenant_is_left_in_an_archive(store: Store, where: str, tmp_path: Path) -> None:
    """Not what a killed run left of an object, nor a damaged one; everything of the others is."""
    for tenant in ("acme", "acmes", ""):
        for number in range(3):
            noted(store, join_name(tenant, f"s{number}"), tmp_path / "files" / f"{tenant}{number}")
    assert len(move(store, where).archived) == 9
    storage = archive_storage.open_storage(where)
    left, torn = (make_archive_key(join_name("acme", name)) for name in ("left", "s0"))
    with storage.write(left + ".part") as file:
        file.write(b"half of what was sa")
    with storage.write(torn) as file:
        file.write(b"torn")
    purge_tenant(store, "acme")
    assert purge_archived_tenant(where, "acme") == 3
    assert names(where, tenant="acme") == storage.list_keys(archive_object.hash_name("acme")) == []
    assert len(names(where)) == 6
    left_alone = {"acme0", "acmes0", "acmes1", "acmes2", "0", "1", "2"}
    assert {path.name for path in (tmp_path / "files").iterdir()} == left_alone
    for tenant in ("", "a/b"):
        with pytest.raises(ConfigError):
            purge_archived_tenant(where, tenant)


def test_a_tenant_that_is_archived_meanwhile_is_told(store: Store, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never said that nothing is left while something is."""
    write(store, join_name("acme", "a"))
    move(store, where)
    write(store, join_name("acme", "b"))
    between(monkeypatch, "delete", lambda: move(store, where))
    with pytest.raises(StoreError, match="which erased 1"):
        purge_archived_tenant(where, "acme")


def test_archived_sessions_expire_by_age_and_tenant(store: Store, where: str) -> None:
    """By when they were written to, not by when they were archived."""
    for days, name in enumerate((join_name("acme", "a"), join_name("acme", "b"), "c")):
        write(store, name, at=NOON + days * DAY)
    move(store, where)
    assert expire_archive(where, 100 * DAY, now=LATER) == []
    assert expire_archive(where, 98 * DAY, now=LATER, tenant="acme") == [join_name("acme", "a"), join_name("acme", "b")]
    assert expire_archive(where, 97 * DAY, now=LATER) == ["c"]
    assert names(where) == []


def test_what_killed_runs_have_left_expires_too(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds what was said: half an object, and a whole one whose session was never archived."""
    store, storage = open_store("memory://"), archive_storage.open_storage(where)
    write(store, "s")
    with monkeypatch.context() as patched:
        patched.setattr(type(storage), "rename", lambda *_: None)
        assert move(store, where) == ([], {"s": "busy"})
    part = make_archive_key("s") + ".part"
    with storage.write(make_archive_key("torn") + ".part") as file:
        file.write(b"half of what was sa")
    assert names(where) == []
    assert expire_archive(where, 101 * DAY, now=LATER) == []
    assert storage.list_keys() == [part]
    assert expire_archive(where, 99 * DAY, now=LATER) == []
    assert storage.list_keys() == []


# -- drivers of fsspec -------------------------------------------------------------------------------------------------


def test_a_drivers_own_errors_are_the_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3's raises botocore's: without the URL's password, and with the cause. A fault of ours is not hidden."""
    fsspec = pytest.importorskip("fsspec")
    store = open_store("memory://")
    write(store, "s")

    def broken(*_call: object, **_more: object) -> None:
        raise RuntimeError("swordfish")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "open", broken)
    with pytest.raises(StoreError, match=r"'memory://host/place' failed \(RuntimeError\)") as raised:
        move(store, "memory://ada:swordfish@host/place?key=swordfish")
    assert "swordfish" not in str(raised.value)
    assert isinstance(raised.value.__cause__, RuntimeError)
    monkeypatch.setattr(archive_storage.LocalStorage, "open", broken)
    with pytest.raises(RuntimeError):
        move(store, tmp_path / "archive")
    assert list(store.sessions()) == ["s"]


def test_a_file_system_with_folders_is_given_them(tmp_path: Path) -> None:
    """As SFTP; there a folder that is not there is an error, also when it is listed."""
    pytest.importorskip("fsspec")
    url = f"dir://archive::file://{tmp_path.as_posix()}"
    store = open_store(f"sqlite:///{tmp_path}/chat.db?synchronous=normal")
    write(store, join_name("acme", "a"))
    write(store, "b")
    log = letters(store, "b")
    assert names(url) == []
    assert move(store, url).archived == [join_name("acme", "a"), "b"]
    assert names(url) == names(tmp_path / "archive") == [join_name("acme", "a"), "b"]
    restore_session(store, url, "b")
    assert letters(store, "b") == log
    assert purge_archived_tenant(url, "acme") == 1
    assert (names(url), [path for path in tmp_path.rglob("*") if ".jsonl" in path.name]) == ([], [])
    store.close()
