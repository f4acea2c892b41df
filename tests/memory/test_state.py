"""A Memory as plain JSON values gives the same Memory back, and nothing that is put in is trusted."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from histories import eventful, everything, posts_of
from hypothesis import given
from hypothesis import strategies as st

from memory import ContextError, Entry, InMemoryStore, Memory, NewerVersion, Store, StoreDamaged, StoreError, open_store

STORE = InMemoryStore()
STATE = eventful(STORE).state_dict()


class Watched(InMemoryStore):
    """Counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[int] = []

    def append(self, session: str, entries: Any, after: int) -> int:
        self.appends.append(len(entries))
        return super().append(session, entries, after)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    state = copy.deepcopy(STATE)
    change(state)
    return state


def assert_refused(state: Any, error: type[ContextError], match: str) -> None:
    """It is, and nothing was written."""
    store = Watched()
    with pytest.raises(error, match=match) as raised:
        Memory.from_state_dict(state, store=store)
    assert store.appends == []
    assert store.sessions() == []
    assert "half" not in str(raised.value)


def index(kind: str) -> int:
    return next(place for place, entry in enumerate(STATE["entries"]) if entry["kind"] == kind)


def test_a_state_is_plain_json_and_comes_back_the_same() -> None:
    """Also lone halves of characters, joined ones, NUL, floats and nested values."""
    assert json.loads(json.dumps(STATE)) == STATE
    assert (STATE["version"], STATE["session"]) == (1, "s")
    assert isinstance(STATE["entries"][index("round closed")]["body"], dict)


def test_a_memory_comes_back_as_it_was() -> None:
    """Rounds, the open one, compactions, reductions, pins, usage, redactions: all that can be read."""
    original = Memory("s", store=STORE)
    again = Memory.from_state_dict(json.loads(json.dumps(STATE)))
    assert again.session_id == "s"
    assert everything(again) == everything(original)
    assert unfiled(again.state_dict()) == unfiled(STATE)


def unfiled(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry | {"round": None} for entry in state["entries"]]


def test_both_go_on_alike() -> None:
    """What is done next to one and to the other has the same outcome, the end of the open round included."""
    first = eventful(InMemoryStore())
    first.create_round("opened by this Memory", id="own")
    second = Memory.from_state_dict(first.state_dict())
    for memory in (first, second):
        memory.create_round("next", id="next")
        memory.append({"role": "assistant", "content": "answer"})
        memory.journal("Planner").revert()
        memory.record_usage("Coder", 300, counted=100)
        memory.unpin("r1.p2")
        memory.redact("r6.p2")
    assert first.conversation.rounds[6].state == "finished"
    for read in (
        told,
        Memory.pins,
        lambda memory: memory.usage("Coder"),
        lambda memory: memory.journal("Planner").read(),
    ):
        assert read(first) == read(second)


def told(memory: Memory) -> list[tuple[str, str, list[str]]]:
    return [(one.id, one.state, [post.message for post in one.post_list]) for one in memory.conversation.rounds]


def test_entries_keep_their_ids_and_are_filed_under_their_rounds() -> None:
    """Whether or not the state says which: a store files them by it."""
    for place in ({}, {"round": 6}, {"round": 7}):
        state = copy.deepcopy(STATE)
        for entry in state["entries"]:
            entry.pop("round")
            entry.update(place)
        store = InMemoryStore()
        Memory.from_state_dict(state, store=store)
        assert [entry.id for entry in store.read("s")] == [entry["id"] for entry in STATE["entries"]]
        for entry in store.read("s"):
            about = getattr(getattr(entry.record, "reduction", entry.record), "round_id", "0")
            # Of a kind that nobody knows, the state is believed where there is such a round.
            expected = 6 if entry.kind == "starred" and place == {"round": 6} else int(about.removeprefix("round-"))
            assert entry.round == expected


def test_a_state_shares_nothing() -> None:
    """Neither with the Memory it was taken from nor with the one that is made of it."""
    memory = eventful(InMemoryStore())
    state = memory.state_dict()
    before = everything(memory)
    again = Memory.from_state_dict(state)
    state["entries"][index("round closed")]["body"]["round_id"] = "changed"
    state["entries"].clear()
    again.create_round("only here")
    assert everything(memory) == before
    assert len(posts_of(again)) == len(posts_of(memory))


def test_a_state_holds_what_its_memory_has_read() -> None:
    """What another wrote meanwhile is in the next one."""
    store = InMemoryStore()
    first = Memory("s", store=store)
    first.create_round("q")
    other = Memory("s", store=store)
    other.create_round("later")
    assert [len(memory.state_dict()["entries"]) for memory in (first, other)] == [1, 2]


def test_a_memory_of_which_nothing_was_stored_has_a_state() -> None:
    """An empty one, and so has what is made of it; no session is left behind."""
    store = InMemoryStore()
    again = Memory.from_state_dict(Memory("new").state_dict(), store=store)
    assert (again.session_id, len(again.conversation.rounds), store.sessions()) == ("new", 0, [])


def test_a_log_that_was_purged_or_cannot_be_read_has_no_state() -> None:
    """An error says so, rather than a state of a part."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    memory.create_round("q")
    store.purge("s")
    with pytest.raises(StoreError, match="purged"):
        memory.state_dict()
    for body in ("{", '{"n":NaN}', '{"n":1e999}', "[" * 100_000):
        store = InMemoryStore()
        store.append("s", [Entry("starred", body=body)], 0)
        with pytest.raises(StoreDamaged, match=r"entry 1 \(starred\) .*backup"):
            Memory("s", store=store).state_dict()


def test_the_log_is_written_in_one_append() -> None:
    """All or none; under another name where one is given, and never into a session that there is."""
    store = Watched()
    assert Memory.from_state_dict(STATE, "other", store=store).session_id == "other"
    assert store.appends == [len(STATE["entries"])]
    Memory.from_state_dict(STATE, store=store)
    assert store.sessions() == ["other", "s"]
    with pytest.raises(StoreError, match=r"'s' in this store already.* another name"):
        Memory.from_state_dict(STATE, store=store)
    assert len(store.appends) == 2


def test_a_session_that_another_makes_meanwhile_is_left_alone() -> None:
    """Between the look and the append there may be somebody."""

    class Raced(InMemoryStore):
        def append(self, session: str, entries: Any, after: int) -> int:
            super().append(session, [Entry("starred", body="{}")], 0)
            return super().append(session, entries, after)

    with pytest.raises(StoreError, match="already"):
        Memory.from_state_dict(STATE, store=Raced())


def test_a_database_takes_it_and_gives_it_back(tmp_path: Path) -> None:
    """The same state comes out again, and the session goes on when it is opened anew."""
    with closing(open_store(f"sqlite:///{tmp_path / 'chat.db'}")) as store:
        memory = Memory.from_state_dict(STATE, store=store)
        assert everything(memory) == everything(Memory("s", store=STORE))
        assert unfiled(memory.state_dict()) == unfiled(STATE)
        memory.create_round("next")
        assert everything(Memory("s", store=store)) == everything(memory)
        with pytest.raises(StoreError, match="already"):
            Memory.from_state_dict(STATE, store=store)


def test_rounds_that_were_to_be_finished_by_the_next_still_are() -> None:
    """Also those that were taken over from a process that ended."""
    store = InMemoryStore()
    left = Memory("s", store=store)
    left.create_round("left open")
    memory = Memory.from_state_dict(Memory("s", store=store, take_over=True).state_dict())
    memory.create_round("next")
    assert memory.conversation.rounds[0].state == "finished"
    again = Memory.from_state_dict(Memory("s", store=store).state_dict())
    again.create_round("next")
    assert again.conversation.rounds[0].state == "created"


def test_options_are_those_of_memory() -> None:
    """A wrong one is refused before anything is written."""
    assert Memory.from_state_dict(STATE, new_id=lambda: "fixed").create_round("q").id == "fixed"
    store = Watched()
    with pytest.raises(TypeError):
        Memory.from_state_dict(STATE, store=store, colour="blue")
    assert store.appends == []


@pytest.mark.parametrize(
    ("state", "match"),
    [
        ([], "the state cannot be read: it is a list"),
        ({}, "does not say that it is"),
        (STATE | {"format": "context-compactor session"}, "does not say that it is"),
        (STATE | {"version": "1"}, "its version is missing"),
        (STATE | {"version": True}, "its version is missing"),
        (STATE | {"version": 0}, "its version or"),
        (STATE | {"session": 7}, "its session's name is missing"),
        (STATE | {"entries": {}}, "no list of entries"),
        (STATE | {"own_rounds": 7}, "own_rounds"),
        (STATE | {"own_rounds": [7]}, "own_rounds"),
        (STATE | {"entries": [7]}, "entry 1 of the state cannot be read: it is no mapping"),
        (changed(lambda state: state["entries"].pop(4)), "entry 5 is missing"),
        (changed(lambda state: state["entries"][3].update(number=1)), "entry 4 is missing"),
        (changed(lambda state: state["entries"][3].update(id=state["entries"][2]["id"])), "id of an entry before"),
    ],
)  # fmt: skip
def test_what_is_no_state_is_refused(state: Any, match: str) -> None:
    """By an error that says what is wrong and what to do; nothing is written."""
    assert_refused(state, StoreDamaged, match)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""), ("id", None), ("id", "a\0b"), ("id", "\ud800"), ("id", "x" * 201), ("kind", 7), ("kind", "a\nb"),
        ("number", "4"), ("number", -1), ("number", 10**400), ("version", None), ("version", 1.5), ("round", -1),
        ("created_at", None), ("created_at", 7), ("created_at", "yesterday"),
        ("created_at", "0001-01-01T00:00:00+23:59"), ("body", {1, 2}), ("body", float("nan")), ("body", {3: 4}),
        ("body", {"n": 1 << 20_000}), ("body", None), ("body", []), ("body", "text"), ("body", {"round_id": 7}),
    ],
)  # fmt: skip
def test_a_damaged_entry_is_refused(field: str, value: object) -> None:
    """Whatever is wrong with it, by one type of error."""
    place = index("round closed")
    assert_refused(
        changed(lambda state: state["entries"][place].update({field: value})), StoreDamaged, "cannot be read|is missing"
    )


def test_what_is_nested_too_deeply_is_refused() -> None:
    """It does not end in a recursion error."""
    deep: Any = {}
    for _ in range(100_000):
        deep = [deep]
    assert_refused(changed(lambda state: state["entries"][1].update(body=deep)), StoreDamaged, "cannot be read")


def test_newer_versions_are_told_from_damage() -> None:
    """Upgrading is the remedy: of the state, and of a body in it."""
    assert_refused(STATE | {"version": 2}, NewerVersion, "newer version.* upgrade")
    newer = changed(lambda state: state["entries"][2].update(version=99))
    assert_refused(newer, NewerVersion, "entry 3 .*newer version.* upgrade")


def test_kinds_that_nobody_knows_are_kept() -> None:
    """The session can go back to the version that wrote them."""
    store = InMemoryStore()
    Memory.from_state_dict(STATE, store=store)
    (starred,) = [entry for entry in store.read("s") if entry.kind == "starred"]
    assert starred.body == '{"odd":[1.5,null]}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [spot for key, item in items for spot in spots(item, (*path, key))]


@given(st.data(), st.sampled_from(spots(STATE)), json_values | st.sampled_from([1 << 70, -1, "round-1", "created"]))
def test_whatever_is_changed_in_a_state_it_is_refused_or_gives_a_memory(
    data: st.DataObject, spot: tuple[Any, ...], value: object
) -> None:
    """One with which one can work; no other type of error comes out."""
    state = copy.deepcopy(STATE)
    holder: Any = state
    for key in spot[:-1]:
        holder = holder[key]
    if data.draw(st.booleans(), "take out"):
        del holder[spot[-1]]
    else:
        holder[spot[-1]] = value
    store: Store = InMemoryStore()
    try:
        memory = Memory.from_state_dict(state, "s", store=store)
    except ContextError:
        assert store.sessions() == []
        return
    everything(memory)
    memory.create_round("goes on")
    assert everything(Memory("s", store=store))[1] == list(memory.conversation.rounds)


@given(st.text(st.characters(exclude_categories=()), max_size=8) | st.text("\ud83d\ude00", max_size=4))
def test_an_entry_survives_whatever_it_says(text: str) -> None:
    """JSON alone would join the halves of a character."""
    store, copy = InMemoryStore(), InMemoryStore()
    Memory("s", store=store).create_round("q")
    store.append("s", [Entry("starred", body=json.dumps({"text": text}), round=1)], 1)
    Memory.from_state_dict(json.loads(json.dumps(Memory("s", store=store).state_dict())), store=copy)
    (entry,), (again,) = store.read("s", 1), copy.read("s", 1)
    assert json.loads(again.body) == json.loads(entry.body)
    assert [again.id, again.kind, again.created_at, again.round] == [entry.id, "starred", entry.created_at, 1]


@pytest.mark.parametrize("open_one", [True, False])
def test_a_round_trip_more_adds_nothing(open_one: bool) -> None:
    """However often a session is taken from its state and put back, its state is the same."""
    memory = Memory("s")
    memory.finish_round(memory.create_round("done"))
    if open_one:
        memory.create_round("still open")
    state = once = Memory.from_state_dict(memory.state_dict()).state_dict()
    for _ in range(5):
        state = Memory.from_state_dict(state).state_dict()
    assert state == once
    assert len(state["own_rounds"]) == 1
