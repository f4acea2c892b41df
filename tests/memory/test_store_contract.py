"""What every store promises, over every store that comes with the library; and that the contract catches who breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fenced import blocks
from logged import entry

from compactor import testing
from compactor.testing import (
    DurableStoreContract,
    ErasingStoreContract,
    IndexedStoreContract,
    LeasingStoreContract,
    LimitingStoreContract,
    MarkingStoreContract,
    MeasuredStoreContract,
    NotifyingStoreContract,
    SearchableStoreContract,
    StoreContract,
)
from memory import Entry, InMemoryStore, Memory, Store, StoreError, open_store


def closed(name: str = "r") -> Entry:
    return entry("round closed", round_id=name)


class TestInMemoryStore(LeasingStoreContract, LimitingStoreContract):
    def open(self) -> Store:
        return InMemoryStore()


class TestStoreOfTheDocs(StoreContract):
    """The example for authors of stores keeps every promise."""

    def open(self) -> Store:
        (block,) = [one for one in blocks("docs/storage.md", "python") if "StoreContract" in one.text]
        return block.run()["DictStore"]()  # type: ignore[no-any-return]


class SixMethods:
    """A host's own store: no subclass of ours, and nothing but the six methods."""

    def __init__(self) -> None:
        store = InMemoryStore()
        for name in ("append", "read", "sessions", "redact", "purge", "close"):
            setattr(self, name, getattr(store, name))


class TestSixMethods(StoreContract):
    def open(self) -> Store:
        return SixMethods()  # type: ignore[return-value]


def test_memories_on_a_stores_six_methods_share_its_sessions() -> None:
    """A host's object is adapted once for each Memory, and stays the same store."""
    store: Any = SixMethods()
    one = Memory("s", store=store)
    one.create_round("first")
    other = Memory("s", store=store)
    assert [round_.user_query for round_ in other.conversation.rounds] == ["first"]
    assert one.is_same_session(other)
    assert not one.is_same_session(Memory("s", store=SixMethods()))  # type: ignore[arg-type]
    assert one._store.capabilities == frozenset()


class Complete(
    DurableStoreContract,
    IndexedStoreContract,
    SearchableStoreContract,
    LeasingStoreContract,
    LimitingStoreContract,
    ErasingStoreContract,
    MarkingStoreContract,
    MeasuredStoreContract,
):
    """What a store in a database can do."""

    url: str

    def open(self) -> Store:
        return open_store(self.url)


class TestSQLite(Complete):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{(tmp_path / 'chat.db').as_posix()}"


class TestPostgreSQL(Complete, NotifyingStoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, emptied_postgres_url: str) -> Iterator[None]:
        self.url = emptied_postgres_url
        yield
        self.teardown_method()  # before the database is emptied

    @pytest.mark.slow
    def test_many_marks_are_cleared_at_once(self) -> None:
        super().test_many_marks_are_cleared_at_once()


# -- the contract itself -----------------------------------------------------------------------------------------------


class Doubling(InMemoryStore):
    """Knows no entry again."""

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        return super().append(session, entries, max(after, len(self._sessions.get(session, []))))


class Forgetful(InMemoryStore):
    """Keeps neither the round nor the stamp's microseconds."""

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        kept = [Entry(e.kind, body=e.body, id=e.id, created_at=e.created_at.replace(microsecond=0)) for e in entries]
        return super().append(session, kept, after)


class Trickling(InMemoryStore):
    """Lets entries in one by one, until one of them fails."""

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        for place, one in enumerate(entries, after):
            assert one.body
            super().append(session, [one], place)
        return after + len(entries)


class Tired(InMemoryStore):
    """Takes so many entries and no more."""

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        if after >= 10:
            raise StoreError("enough for today")
        return super().append(session, entries, after)


class Unsorted(InMemoryStore):
    def sessions(self) -> Sequence[str]:
        return sorted(super().sessions(), key=str.casefold)


class Impatient(InMemoryStore):
    """Knows no limit."""

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        return super().read(session, after)


class Pretending(InMemoryStore):
    """Says that it has erased what it keeps."""

    def redact(self, session: str, number: int, body: str = "") -> None:
        if not number:
            super().redact(session, number, body)

    def purge(self, session: str) -> None:
        pass


class Careless(InMemoryStore):
    """Lets a session go whatever its log ends with."""

    def evict(self, session: str, number: int, id: str, **_lease: str) -> bool:  # noqa: A002
        self.purge(session)
        return True


class Generous(InMemoryStore):
    """Gives a lease to whoever asks."""

    def lease(self, session: str, name: str, holder: str, seconds: float) -> float:
        return 0.0 * super().lease(session, name, holder, seconds)


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (Doubling, "an_append_that_was_stored_before_is_not_stored_twice"),
        (Doubling, "an_append_at_another_place_than_the_end_conflicts_and_writes_nothing"),
        (Doubling, "it_does_what_a_list_does"),
        (Tired, "what_many_write_at_once_is_there_once"),
        (Forgetful, "an_append_behind_an_entry_that_is_not_the_last_conflicts"),
        (Forgetful, "what_is_read_is_what_was_appended"),
        (Trickling, "an_append_that_fails_writes_nothing"),
        (Unsorted, "any_text_names_a_session"),
        (Impatient, "reading_starts_behind_a_number_and_stops_at_a_limit"),
        (Pretending, "a_redacted_entry_keeps_its_place_and_loses_its_body"),
        (Pretending, "an_entry_can_be_redacted_to_another_body"),
        (Pretending, "redacting_what_is_not_there_is_an_error"),
        (Pretending, "a_purged_session_is_gone_and_can_begin_again"),
        (Careless, "a_session_is_evicted_only_as_it_is_known"),
        (Generous, "a_lease_is_held_by_one"),
        (Generous, "of_many_that_ask_at_once_one_gets_it"),
    ],
)
def test_a_store_that_breaks_a_promise_is_caught(broken: Callable[[], Store], caught: str) -> None:
    """The contract is worth something: each of its tests fails where it should."""
    with pytest.raises((AssertionError, StoreError)):
        check(LeasingStoreContract, broken, caught)
    check(LeasingStoreContract, InMemoryStore, caught)


def test_what_a_store_can_do_beside_is_checked_too() -> None:
    """A Memory would make use of it, so no author forgets the tests for it; nor claims what his store cannot do."""
    with pytest.raises(
        AssertionError, match="a store that is leasing, and no other, is tested by LeasingStoreContract"
    ):
        check(StoreContract, InMemoryStore, "it_is_a_store")
    with pytest.raises(AssertionError, match="a store that is indexed"):
        check(IndexedStoreContract, InMemoryStore, "it_is_a_store")


def test_a_contract_without_a_store_says_what_is_missing() -> None:
    """The author reads it where he runs his tests."""
    with pytest.raises(NotImplementedError, match=r"a method open\(\)"):
        StoreContract().open()


def test_the_contract_ships_with_what_else_is_for_tests() -> None:
    """One place to import from."""
    assert testing.StoreContract is StoreContract
    assert testing.DurableStoreContract is DurableStoreContract


def check(contract: type[StoreContract], store: Callable[[], Store], test: str) -> None:
    checked = type("Checked", (contract,), {"open": lambda self: store()})()
    checked.setup_method()
    getattr(checked, f"test_{test}")()
    checked.teardown_method()


# -- the in-memory store's own -----------------------------------------------------------------------------------------


def test_a_conflict_says_where_the_log_ends() -> None:
    """Whoever handles a store's errors handles this one too."""
    store = InMemoryStore()
    store.append("s", [closed(), closed()], after=0)
    with pytest.raises(StoreError, match="ends at 2, not at 7; read what is new and append after it"):
        store.append("s", [closed()], after=7)


def test_a_lease_in_memory_expires_by_the_clock_that_was_passed_in() -> None:
    """To the second: then it is anybody's."""
    clock = testing.FakeClock()
    store = InMemoryStore(clock.monotonic)
    assert store.lease("s", "n", "one", 30) == 0.0
    clock.advance(20)
    assert store.lease("s", "n", "two", 30) == 10.0
    clock.advance(10)
    assert store.lease("s", "n", "two", 30) == 0.0


# -- opening -----------------------------------------------------------------------------------------------------------


def test_a_store_is_opened_by_its_url() -> None:
    """Without one, it lasts as long as the process; each is its own."""
    assert isinstance(open_store(), InMemoryStore)
    first, second = open_store("memory://"), open_store("memory://")
    first.append("s", [closed()], after=0)
    assert second.sessions() == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mongodb://ada:swordfish@host/db", "'mongodb://'"),
        ("swordfish", "no scheme"),
        ("memory:swordfish", "no scheme"),
        ("", "no scheme"),
    ],
)
def test_a_url_that_no_store_is_behind_is_an_error_with_the_remedy(url: str, said: str) -> None:
    """It names what would do, and shows no more of the URL than its scheme: the rest may hold a password."""
    with pytest.raises(StoreError, match=said + ".*memory://") as raised:
        open_store(url)
    assert "swordfish" not in str(raised.value)
