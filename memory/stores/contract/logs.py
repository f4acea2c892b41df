"""The log: the promises of every store, and of a durable one."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from ...arguments import ConfigError
from ...entries import BODY_VERSION, Entry, HeaderAdded, PostAdded, RoundFinished
from ...errors import Conflict, NewerVersion, StoreError
from ...memory import Memory
from ..base import CAPABILITIES, Order, SessionRow, Store, adapt_store, make_key
from ..tenants import join_name, split_name
from ._samples import (
    NAMES,
    STAMP,
    Unwritable,
    expect_error,
    list_fields,
    make_entry,
    make_post,
    make_round,
    read_numbers,
    run_together,
)


class StoreContract:
    """The six methods that every store has."""

    def open(self) -> Store:
        """Return a store for this test alone, empty at first; the test closes it at its end."""
        # Not abstract: pytest collects nothing of an abstract class, and tells nobody.
        raise NotImplementedError("give your test class a method open() that returns the store to be checked")

    def reopen(self) -> Store:
        """Return the store of another user on the same place."""
        return self.store

    def setup_method(self) -> None:
        self._opened: list[Store] = []
        self._opening = threading.Lock()  # a test's threads share one store, however long it takes to open

    def teardown_method(self) -> None:
        for store in self._opened:
            store.close()

    @property
    def store(self) -> Store:
        with self._opening:
            return self._opened[0] if self._opened else self._open()

    def _open(self) -> Store:
        store = adapt_store(self.open())
        self._opened.append(store)
        return store

    # -- append --------------------------------------------------------------------------------------------------------

    def test_it_is_a_store(self) -> None:
        """It has the six methods, and an ability only with the tests for it."""
        tested = {vars(contract).get("capability") for contract in type(self).__mro__}
        for capability in CAPABILITIES:
            assert (capability in self.store.capabilities) == (capability in tested), (
                f"a store that is {capability}, and no other, is tested by {capability.title()}StoreContract"
            )

    def test_entries_are_numbered_from_one_without_gaps(self) -> None:
        """The number an append returns is its last entry's."""
        assert self.store.append("s", [make_entry("a"), make_entry("b")], after=0) == 2
        assert self.store.append("s", [make_entry("c")], after=2) == 3
        assert read_numbers(self.store) == [1, 2, 3]
        assert [found.record for found in self.store.read("s")] == [RoundFinished(round_id=name) for name in "abc"]

    def test_what_is_read_is_what_was_appended(self) -> None:
        """Id, kind, body, stamp, round and version of an entry are the writer's, to the letter."""
        india = timezone(timedelta(hours=5, minutes=30))
        written = [
            make_entry("\0 \ud800 \ud83d\0\ude00 \U0001f600 日本 é \\u0000 \r\n ' \" % :a $1 {}", round=3),
            Entry("header", body='{"post":  {"id": "\\ud800\\u0000"}}', created_at=STAMP, round=2_000_000_000),
            Entry("a kind of later", body='{"b": 1, "a": 1.0, "a": 1e400}', created_at=STAMP.replace(microsecond=0)),
            Entry.of(
                PostAdded(round_id="r", post=make_post("x" * 500_000)), created_at=STAMP.astimezone(india), round=1
            ),
            Entry("round closed", body="{}", created_at=datetime(1, 1, 1, tzinfo=UTC), version=BODY_VERSION + 1),
        ]
        self.store.append("s", written, after=0)
        found = list(self.reopen().read("s"))
        assert list(map(list_fields, found)) == list(map(list_fields, written))
        assert found[0].record == written[0].record
        assert found[2].record is None
        with expect_error(NewerVersion):
            _ = found[4].record

    def test_halves_of_a_character_stay_apart(self) -> None:
        """They come from text that was cut in the wrong place; a store must not join them."""
        halves = HeaderAdded(post=make_post("\ud83d" + "\ude00"))
        self.store.append("s", [Entry.of(halves)], after=0)
        (found,) = self.reopen().read("s")
        assert found.record == halves

    def test_an_append_leaves_the_writers_entries_alone(self) -> None:
        """They can be appended again, elsewhere or after a conflict."""
        written = make_entry(round=1)
        self.store.append("s", [make_entry()], after=0)
        self.store.append("s", [written], after=1)
        self.store.append("t", [written], after=0)
        assert written.number == 0
        assert read_numbers(self.store, "t") == [1]

    def test_an_append_at_another_place_than_the_end_conflicts_and_writes_nothing(self) -> None:
        """Only one of two writers is next; the loser continues behind it."""
        self.store.append("s", [make_entry(), make_entry()], after=0)
        late = [make_entry(), make_entry()]
        for after in (0, 1, 3, 7):
            with expect_error(Conflict):
                self.reopen().append("s", late, after=after)
        assert read_numbers(self.store) == [1, 2]
        assert self.reopen().append("s", late, after=2) == 4

    def test_an_append_that_fails_writes_nothing(self) -> None:
        """All entries are stored or none, also if one of them fails to serialize."""
        try:
            self.store.append("s", [make_entry("a"), Unwritable("round closed"), make_entry("c")], after=0)
        except Exception:
            assert read_numbers(self.store) == []
            assert self.store.append("s", [make_entry()], after=0) == 1
        else:  # a store that never asks for the text
            assert read_numbers(self.store) == [1, 2, 3]

    def test_an_append_that_was_stored_before_is_not_stored_twice(self) -> None:
        """A commit whose reply was lost is recognised by its entries' ids, also when others have written since."""
        lost = [make_entry(), make_entry("lost"), make_entry()]
        self.store.append("s", [make_entry()], after=0)
        assert self.store.append("s", lost, after=1) == 4
        assert self.reopen().append("s", lost, after=1) == 4
        self.reopen().append("s", [make_entry()], after=4)
        assert self.store.append("s", lost, after=1) == 4
        assert self.store.append("s", lost[1:], after=2) == 4
        self.store.redact("s", 3)
        assert self.store.append("s", lost, after=1) == 4
        assert read_numbers(self.store) == [1, 2, 3, 4, 5]

    def test_other_entries_than_those_stored_before_conflict(self) -> None:
        """Only the very same entries in their places count as stored; no part of others is."""
        first, second, new = make_entry(), make_entry(), make_entry()
        self.store.append("s", [first, second], after=0)
        for entries in ([first, new], [second, first], [new, second], [first, second, new], [second]):
            with expect_error(Conflict):
                self.store.append("s", entries, after=0)
        assert [found.id for found in self.store.read("s")] == [first.id, second.id]

    def test_an_append_behind_an_entry_that_is_not_the_last_conflicts(self) -> None:
        """Its writer knew a session that was purged since. A repeated append is recognised all the same."""
        first, second = make_entry(), make_entry()
        self.store.append("s", [first, second], after=0)
        outdated = Entry("a", body="{}", follows=first.id)
        with expect_error(Conflict):
            self.store.append("s", [outdated], after=2)
        with expect_error(Conflict):
            self.store.append("s", [outdated, make_entry()], after=2)
        assert read_numbers(self.store) == [1, 2]
        right = [Entry("a", body="{}", follows=second.id), make_entry()]
        assert self.store.append("s", right, after=2) == 4
        assert self.store.append("s", right, after=2) == 4

    def test_an_append_of_nothing_changes_nothing(self) -> None:
        """It returns *after*, and creates no session."""
        assert self.store.append("s", [], after=0) == 0
        assert self.store.sessions() == []
        self.store.append("s", [make_entry()], after=0)
        assert self.store.append("s", [], after=1) == 1
        assert read_numbers(self.store) == [1]

    # -- read ----------------------------------------------------------------------------------------------------------

    def test_reading_starts_behind_a_number_and_stops_at_a_limit(self) -> None:
        """So a log can be read in pages, and new entries at once."""
        self.store.append("s", [make_entry() for _ in range(5)], after=0)
        assert read_numbers(self.store, after=2) == [3, 4, 5]
        assert read_numbers(self.store, after=1, limit=2) == [2, 3]
        assert read_numbers(self.store, limit=0) == []
        assert read_numbers(self.store, after=4, limit=9) == [5]
        assert read_numbers(self.store, after=5) == read_numbers(self.store, after=99) == []

    def test_a_long_log_is_read_in_order(self) -> None:
        """Across the store's pages, from any start, and while others append."""
        for place in range(0, 2_200, 1_100):
            self.store.append("s", [make_entry() for _ in range(1_100)], after=place)
        reader = self.store.read("s", 1)
        assert next(reader).number == 2
        self.reopen().append("s", [make_entry()], after=2_200)
        rest = [found.number for found in reader]
        assert rest == list(range(3, len(rest) + 3))
        assert rest[-1] in (2_200, 2_201)
        assert read_numbers(self.store, after=10, limit=1_345) == list(range(11, 1_356))

    def test_a_reader_that_stops_halfway_is_in_nobodys_way(self) -> None:
        """Others, and its own thread, append, redact and purge; two readers go side by side."""
        self.store.append("s", [make_entry() for _ in range(300)], after=0)
        reader, other = self.store.read("s"), self.store.read("s", 100)
        assert (next(reader).number, next(other).number, next(reader).number) == (1, 101, 2)
        self.store.append("s", [make_entry()], after=300)
        self.reopen().append("s", [make_entry()], after=301)
        self.reopen().redact("s", 299)
        self.reopen().purge("s")
        assert read_numbers(self.reopen()) == []

    def test_a_reader_never_sees_a_part_of_an_append(self) -> None:
        """All or none holds for concurrent readers too."""
        done, lengths = threading.Event(), []

        def read() -> None:
            reading = self.reopen()
            while True:
                last = done.is_set()
                lengths.append(len(read_numbers(reading)))
                if last:
                    return

        def write() -> None:
            try:
                for place in range(0, 120, 3):
                    self.store.append("s", [make_entry() for _ in range(3)], after=place)
            finally:
                done.set()

        run_together(write, read)
        assert lengths[-1] == 120
        assert {length % 3 for length in lengths} == {0}

    # -- sessions ------------------------------------------------------------------------------------------------------

    def test_any_text_names_a_session(self) -> None:
        """Each has its own log and its own numbers, with any name; the names are sorted by code point."""
        for name in reversed(NAMES):
            self.store.append(name, [make_entry(name)], after=0)
        assert list(self.reopen().sessions()) == sorted(NAMES)
        for name in NAMES:
            assert [found.record for found in self.store.read(name)] == [RoundFinished(round_id=name)]
            self.store.redact(name, 1)
            self.store.purge(name)
            assert name not in self.store.sessions()
        assert self.store.sessions() == []

    def test_a_session_that_holds_nothing_does_not_exist(self) -> None:
        """Reading and failed appends leave no empty session behind."""
        assert read_numbers(self.store, "read") == []
        with expect_error(Conflict):
            self.store.append("failed", [make_entry()], after=4)
        assert self.store.sessions() == []

    def test_sessions_are_listed_by_page(self) -> None:
        """By the key of their name, or the most recently used first; of one tenant, of none, or all; each once."""
        names = [*NAMES, *(join_name(tenant, name) for tenant in ("b", "B.1") for name in ("s", "é", "y" * 300))]
        stamps = {name: STAMP + place % 5 * timedelta(minutes=1) for place, name in enumerate(names)}
        for name in names:
            newest = Entry("round closed", body="{}", created_at=stamps[name], round=2)
            self.store.append(name, [make_entry(), make_round("a", 1), make_round("b", 2), newest], after=0)
        store = self.reopen()
        for tenant in (None, "", "b", "B.1", "c"):
            mine = [name for name in names if tenant in (None, split_name(name)[0])]
            by_name = sorted(mine, key=make_key)
            assert [row.name for row in store.list_sessions(tenant)] == by_name
            found = [*self._list_pages(store, tenant, "name")]
            assert [row.name for row in found] == by_name
            minutes = {name: stamps[name].replace(second=0, microsecond=0) for name in mine}
            assert all(row == (row.name, split_name(row.name)[0], minutes[row.name], 4, 2) for row in found)
            by_activity = sorted(by_name, key=minutes.__getitem__, reverse=True)
            assert [row.name for row in self._list_pages(store, tenant, "activity")] == by_activity

    def _list_pages(self, store: Store, tenant: str | None, order: Order) -> Iterator[SessionRow]:
        after = None
        while rows := store.list_sessions(tenant, after=after, limit=4, order=order):
            assert len(rows) <= 4
            yield from rows
            after = rows[-1].name if order == "name" else rows[-1].cursor

    def test_a_session_moves_to_the_front_when_it_is_written_to(self) -> None:
        """Its activity is that of its newest entry, exact to a minute; a purged one leaves the list."""

        def make_entry_at(minutes: float) -> Entry:
            return Entry("round closed", body="{}", created_at=STAMP + timedelta(minutes=minutes))

        def list_rows() -> list[tuple[str, int]]:
            return [(row.name, row.entries) for row in self.reopen().list_sessions(order="activity")]

        self.store.append("s", [make_entry_at(0)], after=0)
        self.store.append("t", [make_entry_at(2)], after=0)
        assert list_rows() == [("t", 1), ("s", 1)]
        self.store.append("s", [make_entry_at(1)], after=1)
        assert list_rows() == [("t", 1), ("s", 2)]
        self.reopen().append("s", [make_entry_at(5)] * 30, after=2)
        assert list_rows() == [("s", 32), ("t", 1)]
        self.store.append("t", [make_entry_at(9), make_entry_at(10)], after=1)
        assert list_rows() == [("t", 3), ("s", 32)]
        self.store.purge("t")
        self.store.append("t", [make_entry_at(3)], after=0)
        assert list_rows() == [("s", 32), ("t", 1)]

    def test_a_wrong_page_is_refused(self) -> None:
        """Rather than answered with the wrong sessions."""
        wrongs: tuple[Any, ...] = ({"limit": 0}, {"order": "size"}, {"order": "activity", "after": "s"})
        for wrong in wrongs:
            with expect_error(ConfigError):
                self.store.list_sessions(**wrong)

    # -- redact and purge ----------------------------------------------------------------------------------------------

    def test_a_redacted_entry_keeps_its_place_and_loses_its_body(self) -> None:
        """The log stays without gaps; the text is gone, and its kind with it."""
        self.store.append("s", [make_entry(name, round=4) for name in ("a", "swordfish", "c")], after=0)
        before = list(self.store.read("s"))
        self.store.redact("s", 2)
        for store in (self.store, self.reopen()):
            after = list(store.read("s"))
            assert [found.number for found in after] == [1, 2, 3]
            assert [found.id for found in after] == [found.id for found in before]
            assert (after[1].kind, after[1].record, after[1].created_at) == ("redacted", None, before[1].created_at)
            assert "swordfish" not in after[1].body
            assert [list_fields(after[0]), list_fields(after[2])] == [list_fields(before[0]), list_fields(before[2])]

    def test_an_entry_can_be_redacted_to_another_body(self) -> None:
        """It keeps its kind, so that the log stays readable; only the words change."""
        self.store.append("s", [make_entry("swordfish", round=4), make_entry("c")], after=0)
        before = next(self.store.read("s"))
        self.store.redact("s", 1, make_entry("era\ud800\0sed").body)
        after, other = self.reopen().read("s")
        assert (after.id, after.kind, after.number, after.round) == (before.id, before.kind, 1, 4)
        assert after.created_at == before.created_at
        assert after.record == RoundFinished(round_id="era\ud800\0sed")
        assert other.record == RoundFinished(round_id="c")

    def test_redacting_what_is_not_there_is_an_error(self) -> None:
        """A caller must not believe that a text is gone while it is there under another number."""
        self.store.append("s", [make_entry()], after=0)
        for session, number in (("s", 0), ("s", -1), ("s", 2), ("other", 1)):
            with expect_error(KeyError):
                self.store.redact(session, number)
        assert self.store.sessions() == ["s"]

    def test_a_purged_session_is_gone_and_can_begin_again(self) -> None:
        """Purging erases one session; an unknown one is no error."""
        entries = [make_entry(), make_entry()]
        self.store.append("s", entries, after=0)
        self.store.append("t", [make_entry()], after=0)
        self.reopen().purge("s")
        self.store.purge("s")
        assert self.store.sessions() == ["t"]
        assert read_numbers(self.store) == []
        with expect_error(Conflict):
            self.store.append("s", [make_entry()], after=2)
        assert self.store.append("s", entries, after=0) == 2

    def test_a_session_is_evicted_only_as_it_is_known(self) -> None:
        """By its last entry's number and id: what was appended meanwhile is not lost. Or the store refuses it."""
        entries = [make_entry(), make_entry()]
        self.store.append("s", entries, after=0)
        self.store.append("t", [make_entry()], after=0)
        try:
            evicted = self.store.evict("s", 1, entries[0].id)
        except StoreError:
            assert len(list(self.store.read("s"))) == 2
            return
        assert not evicted
        for session, number, id_ in (("s", 2, entries[0].id), ("s", 3, ""), ("s", 0, ""), ("none", 2, entries[1].id)):
            assert not self.reopen().evict(session, number, id_)
        assert [one.id for one in self.store.read("s")] == [one.id for one in entries]
        assert self.reopen().evict("s", 2, entries[1].id)
        assert self.store.sessions() == ["t"]
        with expect_error(Conflict):
            self.store.append("s", [make_entry()], after=2)
        assert self.store.append("s", entries, after=0) == 2

    # -- several at once -----------------------------------------------------------------------------------------------

    def test_of_writers_at_one_place_exactly_one_wins(self) -> None:
        """The others are told, at every single place of the log."""
        start, won = threading.Barrier(4), []

        def write() -> None:
            store = self.reopen()
            for place in range(25):
                start.wait(60)
                try:
                    won.append(store.append("s", [make_entry()], after=place))
                except Conflict:
                    pass

        run_together(*[write] * 4)
        assert sorted(won) == read_numbers(self.store) == list(range(1, 26))

    def test_what_is_appended_while_a_session_is_evicted_is_not_lost(self) -> None:
        """Either the append conflicts, for the session is gone, or the session stays with it."""
        for turn in range(30):
            session, first = f"s{turn}", make_entry()
            self.store.append(session, [first], after=0)
            done: dict[str, bool] = {}
            start = threading.Barrier(2)

            def evict(session: str = session, first: Entry = first, done: Any = done, start: Any = start) -> None:
                store = self.reopen()
                start.wait(60)
                try:
                    done["evicted"] = store.evict(session, 1, first.id)
                except StoreError:  # it takes part in no archive
                    done["evicted"] = False

            def append(session: str = session, done: Any = done, start: Any = start) -> None:
                start.wait(60)
                try:
                    done["appended"] = self.store.append(session, [make_entry()], after=1) == 2
                except Conflict:
                    done["appended"] = False

            run_together(evict, append)
            assert done["evicted"] != done["appended"]
            assert len(list(self.store.read(session))) == (2 if done["appended"] else 0)

    def test_what_many_write_at_once_is_there_once(self) -> None:
        """After a conflict a writer reads the new entries and tries again; nothing is lost, doubled or torn."""

        def write() -> None:
            store, end = self.reopen(), 0
            for pair in pairs.pop():
                for _ in range(120):  # no more entries than that can be in the way
                    try:
                        end = store.append("s", pair, after=end)
                        break
                    except Conflict:
                        end += len(read_numbers(store, after=end))
                else:
                    raise AssertionError("append raises Conflict although nobody else has written")

        pairs = [[[make_entry(), make_entry()] for _ in range(15)] for _ in range(4)]
        written = {first.id: second.id for writer in pairs for first, second in writer}
        run_together(*[write] * 4)
        ids = [found.id for found in self.store.read("s")]
        assert dict(zip(ids[::2], ids[1::2], strict=True)) == written
        assert read_numbers(self.store) == list(range(1, 121))

    def test_it_does_what_a_list_does(self) -> None:
        """A long walk of appends, conflicts, redactions and purges, beside the same in lists."""
        rng, model = random.Random(4), {"s": list[tuple[Any, ...]](), "t": list[tuple[Any, ...]]()}
        for step in range(100):
            session = rng.choice("st")
            log, chosen = model[session], rng.choice((self.store, self.reopen()))
            entries = [make_entry(f"{step}", round=rng.randrange(9)) for _ in range(rng.randrange(1, 4))]
            number = rng.randrange(len(log)) + 1 if log else 0
            match rng.choice(("append", "append", "append", "late", "redact", "purge" if step % 10 == 0 else "read")):
                case "append":
                    assert chosen.append(session, entries, len(log)) == len(log) + len(entries)
                    log.extend(map(list_fields, entries))
                case "late" if number:
                    with expect_error(Conflict):
                        chosen.append(session, entries, number - 1)
                case "redact" if number:
                    body = make_entry(f"erased in {step}").body
                    chosen.redact(session, number, body)
                    log[number - 1] = (*log[number - 1][:-1], body)
                case "purge":
                    chosen.purge(session)
                    log.clear()
            limit = rng.choice((None, 2))
            assert list(map(list_fields, chosen.read(session, number, limit))) == log[number:][:limit]
            assert chosen.sessions() == [name for name in model if model[name]]

    def test_a_memory_runs_on_it(self) -> None:
        """A Memory reads everything that another one wrote."""
        memory = Memory("s", store=self.store)
        round_ = memory.create_round("q\ud800")
        memory.add_post(round_, send_from="a", send_to="b", message="m\0")
        assert list(Memory("s", store=self.reopen()).conversation.rounds) == list(memory.conversation.rounds)


class DurableStoreContract(StoreContract):
    """For a store that outlasts the process: ``open`` called again gives another store on the same place.

    All tests of the other classes are then run with two.
    """

    def reopen(self) -> Store:
        _ = self.store
        return self._opened[1] if len(self._opened) > 1 else self._open()

    def test_what_was_acknowledged_is_there_when_it_is_opened_again(self) -> None:
        """An append that has returned, a redaction and a purge outlast the store object."""
        self.store.append("s", [make_entry("a"), make_entry("b")], after=0)
        self.store.append("t", [make_entry()], after=0)
        self.store.redact("s", 1, make_entry("x").body)
        self.store.purge("t")
        written = list(map(list_fields, self.store.read("s")))
        self.store.close()
        self._opened.clear()
        assert list(map(list_fields, self.store.read("s"))) == written
        assert self.store.sessions() == ["s"]
        assert self.store.append("s", [make_entry()], after=2) == 3

    def test_two_that_are_opened_at_once_for_the_first_time_both_work(self) -> None:
        """The first of several users sets up an empty place, once."""
        start = threading.Barrier(4)

        def work() -> None:
            start.wait(60)
            store = self._open()
            store.append(f"{threading.get_ident()}", [make_entry()], after=0)

        run_together(*[work] * 4)
        assert len(self.store.sessions()) == 4

    def test_closing_one_leaves_the_other_open(self) -> None:
        """Each releases its own resources; closing twice does no harm."""
        other = self.reopen()
        self.store.append("s", [make_entry()], after=0)
        self.store.close()
        self.store.close()
        assert other.append("s", [make_entry()], after=1) == 2
