"""A Memory whose session was purged, and perhaps begun anew by somebody else, keeps its hands off the new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexed import Indexed, shown, with_rounds

from memory import Conflict, EntriesLost, InMemoryStore, Memory, SessionPurged, Store, StoreError, open_store

PURGED = r"purged; go on with a new Memory"


@pytest.fixture(params=["memory", "indexed", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        opened = open_store(f"sqlite:///{(tmp_path / 'chat.db').as_posix()}")
    elif request.param == "postgresql":
        opened = open_store(request.getfixturevalue("postgres_url"))
    else:
        opened = InMemoryStore() if request.param == "memory" else Indexed()
    yield opened
    opened.close()


def begun_anew(store: Store, old: int, new: int) -> Memory:
    """Return a Memory of a session of *old* rounds that another process purged and began anew, with *new* ones."""
    outdated = with_rounds(store, old)  # type: ignore[arg-type]
    store.purge("s")
    with_rounds(store, new)  # type: ignore[arg-type]
    return outdated


WRITES: dict[str, Callable[[Memory], object]] = {
    "a round": lambda memory: memory.create_round("q"),
    "a message": lambda memory: memory.append({"role": "user", "content": "q"}),
    "an end": lambda memory: memory.finish_round("1", state="failed"),
    "a pin": lambda memory: memory.pin("r1.p1"),
    "an erasure": lambda memory: memory.redact("r1.p1"),
    "usage": lambda memory: memory.record_usage("Planner", 10),
    "a refresh": lambda memory: memory.refresh(),
    "an index": lambda memory: memory.index_texts(),
    "a copy": lambda memory: memory.state_dict(),
    "a fork": lambda memory: memory.fork(1, "t"),
}


@pytest.mark.parametrize("new", [0, 2, 3, 9])
def test_an_outdated_memory_writes_nothing_into_a_session_that_was_begun_anew(store: Store, new: int) -> None:
    """Whether that is shorter, as long, or longer; and it says so each time."""
    outdated = begun_anew(store, 3, new)
    before = [(entry.number, entry.id, entry.round, entry.body) for entry in store.read("s")]
    for name, write in WRITES.items():
        if name != "an index" or "searchable" in store.capabilities:
            with pytest.raises(SessionPurged, match=PURGED):
                write(outdated)
    assert [(entry.number, entry.id, entry.round, entry.body) for entry in store.read("s")] == before
    assert "t" not in store.sessions()
    assert outdated.snapshot.total == 3
    fresh = Memory("s", store=store)
    fresh.create_round("and on")
    assert fresh.snapshot.total == new + 1
    assert {hit.round for hit in fresh.search("question")} == {*range(1, new + 1)}


@given(old=st.integers(1, 4), new=st.integers(0, 6), indexed=st.booleans(), write=st.sampled_from(sorted(WRITES)))
@settings(max_examples=20, deadline=None)
def test_whatever_an_outdated_memory_does_the_new_session_stays_as_it_is(
    old: int, new: int, indexed: bool, write: str
) -> None:
    store = Indexed() if indexed else InMemoryStore()
    outdated = begun_anew(store, old, new)
    expected = shown(Memory("s", store=store), "Planner")
    if write == "an index":
        assert outdated.index_texts()  # these stores have none
    else:
        with pytest.raises(StoreError, match=PURGED):
            WRITES[write](outdated)
    assert shown(Memory("s", store=store), "Planner") == expected


@pytest.mark.parametrize("others", [0, 1, 4])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_log_that_has_lost_its_end_is_told_from_one_that_was_purged(
    store: Store, others: int, reopened: bool
) -> None:
    """As by a failover, whether others went on with it or not. Nothing is written, each time; and a new Memory goes
    on with what there is."""
    outdated = with_rounds(store, 3)  # type: ignore[arg-type]
    if reopened:
        outdated = Memory("s", store=store)
    log = list(store.read("s"))
    kept = log[: len(log) // 2]
    store.purge("s")
    store.append("s", kept, 0)
    fresh = Memory("s", store=store)
    for number in range(others):
        fresh.create_round(f"other {number}")
    before = [(entry.number, entry.id, entry.body) for entry in store.read("s")]
    for name, write in WRITES.items():
        if name not in ("an index", "a copy", "a fork"):
            with pytest.raises(EntriesLost, match=r"lost entry \d+ of this session.*make a new Memory"):
                write(outdated)
    assert outdated.is_purged
    assert [(entry.number, entry.id, entry.body) for entry in store.read("s")] == before
    assert outdated.snapshot.total == 3
    fresh.create_round("and on")
    assert shown(Memory("s", store=store)) == shown(fresh)


def test_the_cause_is_told_too() -> None:
    """A host that looks for it finds what the store said."""
    outdated = begun_anew(InMemoryStore(), 2, 2)
    with pytest.raises(StoreError, match=PURGED) as raised:
        outdated.create_round("q")
    assert isinstance(raised.value.__cause__, Conflict)


def test_a_checkpoint_of_the_session_before_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was slow may keep it when the new one has begun."""
    store, before = Indexed(), Indexed()
    begun_anew(store, 3, 5)
    expected = shown(Memory("s", store=store))
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 1)
    with_rounds(before, 3)
    monkeypatch.undo()
    store.checkpoints["s"] = before.checkpoints["s"]
    assert shown(Memory("s", store=store)) == expected


def test_a_memory_that_was_opened_from_a_checkpoint_finds_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read nothing but that."""
    store = Indexed()
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 1)
    with_rounds(store, 3)
    assert "s" in store.checkpoints
    outdated = Memory("s", store=store)
    store.purge("s")
    with_rounds(store, 3)
    with pytest.raises(StoreError, match=PURGED):
        outdated.create_round("q")
