"""The store's index is brought in step with the log, and what it does not have yet is searched all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from memory import (
    Entry,
    InMemoryStore,
    Memory,
    Recall,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)
from memory.entries import PostRedacted
from memory.search import BATCH, find_hits, forget_texts, sync_index
from memory.stores import FoundText, FoundTexts, StoredText


class Searchable(InMemoryStore):
    """Keeps texts in a dict, and notes what it was handed; *before* is called each time."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = 0
        self.texts: dict[int, list[StoredText]] = {}
        self.handed: list[tuple[int, int]] = []
        self.before: Callable[[], None] = lambda: None

    def get_last_indexed_round(self, session: str) -> int:
        return self.reached

    def save_texts(self, session: str, first: int, last: int, texts: Sequence[StoredText]) -> None:
        self.before()
        assert first <= self.reached + 1, "a gap"
        self.handed.append((first, last))
        self.texts |= {number: [text for text in texts if text.round == number] for number in range(first, last + 1)}
        self.reached = max(self.reached, last)

    def find_texts(self, session: str, words: Sequence[str], role: str) -> FoundTexts:
        failed = {entry.round for entry in self.read(session) if entry.kind == "round failed"}
        seen = [
            text
            for number in sorted(set(self.texts) - failed)
            for text in self.texts[number]
            if not role or not (text.send_from or text.send_to) or role in (text.send_from, text.send_to)
        ]
        counted = [(text, tuple(map(text.text.count, words))) for text in seen]
        having = [FoundText(text.round, text.number, len(text.text), counts) for text, counts in counted if any(counts)]
        return FoundTexts(having, len(seen), sum(len(text.text) for text in seen))


def memory_of(queries: Iterable[str], store: InMemoryStore | None = None) -> Memory:
    """Return a Memory of closed rounds with these queries."""
    memory = Memory("s", store=store)
    for number, query in enumerate(queries, 1):
        memory.finish_round(memory.create_round(query, id=str(number)))
    return memory


def refs(memory: Memory, query: str, role: str = "") -> list[str]:
    return [hit.ref for hit in memory.search(query, role=role)]


def test_texts_are_handed_over_in_batches_and_once() -> None:
    """Each search only hands over what is new."""
    store = Searchable()
    memory = memory_of(map(str, range(2 * BATCH + 5)), store)
    assert sync_index(store, "s", memory.snapshot, most_rounds=10) is False
    assert refs(memory, str(2 * BATCH + 4)) == [f"r{2 * BATCH + 5}.p0"]
    assert sync_index(store, "s", memory.snapshot) is True
    assert store.handed == [(1, 10), (11, 10 + BATCH), (11 + BATCH, 2 * BATCH + 5)]


def test_a_search_hands_over_a_bounded_number_and_finds_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first search in a long history need not wait for all of it."""
    monkeypatch.setattr("memory.search.MAX_ROUNDS", 1)
    store = Searchable()
    memory = memory_of(("seat 1", "seat 2", "seat 3"), store)
    assert refs(memory, "seat") == ["r3.p0", "r2.p0", "r1.p0"]
    assert store.handed == [(1, 1)]


def test_rounds_behind_an_open_one_are_searched_in_memory() -> None:
    """They are handed over when it is closed."""
    store = Searchable()
    memory = memory_of(("seat 1",), store)
    opened = memory.create_round("seat 2", id="2")
    other = Memory("s", store=store)  # another process: it does not close this one's round
    other.finish_round(other.create_round("seat 3", id="3"))
    other.finish_round(other.create_round("seat 4", id="4"), state="failed")
    memory.add_post("2", send_from="A", send_to="B", message="seat of A")
    memory.refresh()
    assert (refs(memory, "seat"), store.reached) == (["r3.p0", "r2.p0", "r1.p0", "r2.p1"], 1)
    memory.finish_round(opened)
    assert (refs(memory, "seat"), store.reached) == (["r3.p0", "r2.p0", "r1.p0", "r2.p1"], 4)
    assert store.texts[4] == []


def test_what_another_process_handed_over_is_not_found_twice() -> None:
    """Nor is what this snapshot does not know yet."""
    store = Searchable()
    memory = memory_of(("seat 1",), store)
    memory.create_round("seat 2", id="2")
    stale = memory.snapshot
    memory.finish_round("2")
    memory.finish_round(memory.create_round("seat 3"))
    assert memory.index_texts() is True
    assert [hit.ref for hit in find_hits(store, "s", stale, ("seat",))] == ["r2.p0", "r1.p0"]


@pytest.mark.parametrize("fault", [StoreBusy, StoreFull, StoreReadOnly])
def test_a_store_that_cannot_be_written_is_searched(fault: type[StoreError]) -> None:
    """What it lacks is in memory."""
    store = Searchable()
    memory = memory_of(("seat 1",), store)
    refs(memory, "seat")
    memory.finish_round(memory.create_round("seat 2"))

    def broken() -> None:
        raise fault("no")

    store.before = broken
    assert refs(memory, "seat") == ["r2.p0", "r1.p0"]
    with pytest.raises(fault):
        memory.index_texts()


def test_a_fault_of_the_store_is_a_sentence_for_the_model() -> None:
    """With nothing in it that is for the host."""
    store = Searchable()
    memory = memory_of(("seat 1",), store)

    def broken() -> None:
        raise StoreUnreachable("server at 10.0.0.1, user joe")

    store.before = broken
    expected = "Error: the store of this conversation does not answer (StoreUnreachable); try again later."
    assert Recall(memory).call("search_history", {"query": "seat"}) == expected


def test_an_erased_text_is_put_anew() -> None:
    """In the index before it is erased from the log; rounds that were not handed over are left alone."""
    store = Searchable()
    memory = memory_of(("swordfish 1", "swordfish 2", "swordfish 3"), store)
    sync_index(store, "s", memory.snapshot, most_rounds=2)
    memory.redact("r2.p0")
    memory.redact("r3.p0")
    assert [text.text for texts in store.texts.values() for text in texts] == ["swordfish 1", "[redacted]"]
    assert (refs(memory, "swordfish"), refs(memory, "redacted")) == (["r1.p0"], ["r3.p0", "r2.p0"])
    plain = memory_of(("a",))
    forget_texts(InMemoryStore(), "s", plain.snapshot, [1])
    assert plain.index_texts() is True


def test_what_is_erased_while_texts_are_handed_over_is_not_left_in_the_index() -> None:
    """Whoever hands them over read them before, and looks once more."""
    store = Searchable()
    memory = memory_of(("swordfish 1", "swordfish 2"), store)
    before = memory.snapshot
    entry = Entry.of(PostRedacted(round_id="2", numbers=(0,)), round=2)
    store.before = lambda: (store.append("s", [entry], before.number), None)[1]  # noted, and the texts not yet here
    assert sync_index(store, "s", before) is True
    assert [text.text for texts in store.texts.values() for text in texts] == ["swordfish 1", "[redacted]"]
    assert store.handed == [(1, 2), (2, 2)]
