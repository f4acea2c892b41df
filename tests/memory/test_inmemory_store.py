"""What every store promises, written once; a new store joins the list of fixtures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from memory import Conflict, InMemoryStore, Memory, Store, StoreError, open_store
from memory.entries import Entry, RoundFinished

STORES: dict[str, Callable[[], Store]] = {"memory": InMemoryStore, "opened": lambda: open_store("memory://")}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    opened = STORES[request.param]()
    yield opened
    opened.close()


def entry(name: str = "r") -> Entry:
    return Entry.of(RoundFinished(round_id=name))


def numbers(store: Store, session: str = "s", after: int = 0, limit: int | None = None) -> list[int]:
    return [found.number for found in store.read(session, after, limit)]


def test_it_is_a_store(store: Store) -> None:
    """The protocol can be checked at run time."""
    assert isinstance(store, Store)


def test_entries_are_numbered_from_one_without_gaps(store: Store) -> None:
    """The number an append returns is its last entry's."""
    assert store.append("s", [entry("a"), entry("b")], after=0) == 2
    assert store.append("s", [entry("c")], after=2) == 3
    assert numbers(store) == [1, 2, 3]
    assert [found.record for found in store.read("s")] == [RoundFinished(round_id=name) for name in "abc"]


def test_what_is_read_is_what_was_appended(store: Store) -> None:
    """Id, kind, body and stamp of an entry are the writer's."""
    written = entry("\ud800\0{}")
    store.append("s", [written], after=0)
    (found,) = store.read("s")
    assert (found.id, found.kind, found.body, found.created_at) == (
        written.id,
        written.kind,
        written.body,
        written.created_at,
    )


def test_an_append_leaves_the_writers_entries_alone(store: Store) -> None:
    """They can be appended again, elsewhere or after a conflict."""
    written = entry()
    store.append("s", [entry()], after=0)
    store.append("s", [written], after=1)
    assert written.number == 0


@pytest.mark.parametrize("after", [0, 1, 3, 7])
def test_an_append_at_another_place_than_the_end_conflicts_and_writes_nothing(store: Store, after: int) -> None:
    """Two writers cannot both be the next."""
    store.append("s", [entry(), entry()], after=0)
    with pytest.raises(Conflict, match=r"ends at 2, not at \d; read what is new"):
        store.append("s", [entry(), entry()], after=after)
    assert numbers(store) == [1, 2]


def test_a_conflict_is_a_store_error() -> None:
    """Whoever handles the one handles the other."""
    assert issubclass(Conflict, StoreError)


def test_an_append_that_was_stored_before_is_not_stored_twice(store: Store) -> None:
    """A commit whose reply was lost is recognised by its entries' ids, also when others have written since."""
    lost = [entry(), entry()]
    store.append("s", [entry()], after=0)
    assert store.append("s", lost, after=1) == 3
    assert store.append("s", lost, after=1) == 3
    store.append("s", [entry()], after=3)
    assert store.append("s", lost, after=1) == 3
    assert numbers(store) == [1, 2, 3, 4]


@pytest.mark.parametrize("kept", [[0], [1, 0], [0, 2]], ids=["fewer", "other order", "half new"])
def test_other_entries_than_those_stored_before_conflict(store: Store, kept: list[int]) -> None:
    """Only the very same append counts as stored."""
    entries = [entry(), entry(), entry()]
    store.append("s", entries[:2], after=0)
    again = [entries[place] for place in kept]
    if len(again) < 2:
        again.append(entry())
    with pytest.raises(Conflict):
        store.append("s", again, after=0)
    assert numbers(store) == [1, 2]


def test_reading_starts_behind_a_number_and_stops_at_a_limit(store: Store) -> None:
    """So a log is read in pages, and what is new in one go."""
    store.append("s", [entry() for _ in range(5)], after=0)
    assert numbers(store, after=2) == [3, 4, 5]
    assert numbers(store, after=1, limit=2) == [2, 3]
    assert numbers(store, limit=0) == []
    assert numbers(store, after=4, limit=9) == [5]
    assert numbers(store, after=5) == numbers(store, after=99) == []


def test_a_reader_sees_the_log_as_it_was_when_it_asked(store: Store) -> None:
    """Entries that are appended while it reads do not disturb it."""
    store.append("s", [entry(), entry()], after=0)
    reader = store.read("s")
    assert next(reader).number == 1
    store.append("s", [entry()], after=2)
    assert [found.number for found in reader] in ([2], [2, 3])


def test_sessions_are_apart(store: Store) -> None:
    """Each has its own log and its own numbers; names are sorted, and any text is one."""
    for name in ("b", "a", "é\ud800/../{}"):
        store.append(name, [entry()], after=0)
    assert store.sessions() == ["a", "b", "é\ud800/../{}"]
    assert numbers(store, "b") == [1]
    assert numbers(store, "c") == []


def test_a_session_that_holds_nothing_does_not_exist(store: Store) -> None:
    """Reading and failed appends leave no empty session behind."""
    assert numbers(store, "read") == []
    with pytest.raises(Conflict):
        store.append("failed", [entry()], after=4)
    store.append("empty", [], after=0)
    assert store.sessions() == []


def test_a_redacted_entry_keeps_its_place_and_loses_its_body(store: Store) -> None:
    """The log stays without gaps; the text is gone."""
    store.append("s", [entry("a"), entry("swordfish"), entry("c")], after=0)
    ids = [found.id for found in store.read("s")]
    store.redact("s", 2)
    found = list(store.read("s"))
    assert [one.number for one in found] == [1, 2, 3]
    assert [one.id for one in found] == ids
    assert found[1].record is None
    assert "swordfish" not in found[1].body
    assert found[2].record == RoundFinished(round_id="c")


def test_an_entry_can_be_redacted_to_another_body(store: Store) -> None:
    """It stays what it was, so that the log can still be read; only its words are others."""
    store.append("s", [entry("swordfish"), entry("c")], after=0)
    before = next(iter(store.read("s")))
    store.redact("s", 1, entry("erased").body)
    after, other = store.read("s")
    assert (after.id, after.kind, after.number, after.created_at) == (before.id, before.kind, 1, before.created_at)
    assert after.record == RoundFinished(round_id="erased")
    assert other.record == RoundFinished(round_id="c")


@pytest.mark.parametrize("number", [0, -1, 2])
def test_redacting_what_is_not_there_is_an_error(store: Store, number: int) -> None:
    """Nobody believes that a text is gone which is still there under another number."""
    store.append("s", [entry()], after=0)
    with pytest.raises(KeyError, match="no entry"):
        store.redact("s", number)
    with pytest.raises(KeyError):
        store.redact("other", 1)


def test_a_purged_session_is_gone_and_can_begin_again(store: Store) -> None:
    """Purging erases one session, and is no error where there is none."""
    store.append("s", [entry(), entry()], after=0)
    store.append("t", [entry()], after=0)
    store.purge("s")
    store.purge("s")
    assert store.sessions() == ["t"]
    assert numbers(store) == []
    assert store.append("s", [entry()], after=0) == 1


def test_of_writers_at_one_place_exactly_one_wins(store: Store) -> None:
    """The others are told, at every single place of the log."""
    start, won = threading.Barrier(4), []

    def write() -> None:
        for place in range(50):
            start.wait()
            try:
                won.append(store.append("s", [entry()], after=place))
            except Conflict:
                pass

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, 51))
    assert numbers(store) == list(range(1, 51))


def test_a_memory_runs_on_it(store: Store) -> None:
    """What one Memory wrote, the next one reads."""
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from="a", send_to="b", message="m")
    assert Memory("s", store=store).conversation.rounds == memory.conversation.rounds


# -- opening -----------------------------------------------------------------------------------------------------------


def test_a_store_is_opened_by_its_url() -> None:
    """Without one, it lasts as long as the process; each is its own."""
    assert isinstance(open_store(), InMemoryStore)
    first, second = open_store("memory://"), open_store("memory://")
    first.append("s", [entry()], after=0)
    assert second.sessions() == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///chat.db", "'sqlite://'"),
        ("postgresql+psycopg://ada:swordfish@host/db", r"'postgresql\+psycopg://'"),
        ("swordfish", "'this'"),
        ("memory:swordfish", "'this'"),
        ("", "'this'"),
    ],
)
def test_a_url_that_no_store_is_behind_is_an_error_with_the_remedy(url: str, said: str) -> None:
    """It names what would do, and shows no more of the URL than its scheme: the rest may hold a password."""
    with pytest.raises(StoreError, match=said + ".*memory://") as raised:
        open_store(url)
    assert "swordfish" not in str(raised.value)
