"""An entry that cannot be read is named and left as it is, and keeps out nobody who does not need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from histories import texts_of
from sql_stores import QUICK, log_of, on, opened, same_as_resumed, sqlite_url, turn

from memory import CompactedMessage, Entry, Memory, NewerVersion, StoreDamaged, StoreError

#: What is done to the body of an entry, and what is said of it.
CUT = ("body = substr(body, 1, 40)", StoreDamaged, r"entry {} \(.*cannot be read; nothing was changed: restore")
NEWER = ("version = 99", NewerVersion, r"entry {} \(.*newer version of context-compactor; nothing was changed: upgrade")
unreadable = pytest.mark.parametrize(("change", "fault", "said"), [CUT, NEWER], ids=["cut", "newer"])


def change_entry(store: Any, number: int, change: str) -> None:
    on(store, f"UPDATE compactor_entries SET {change} WHERE number = :number", number=number)  # noqa: S608


def rows(store: Any) -> Any:
    """Return the log as it is in the database."""
    return on(store, "SELECT number, id, kind, version, body FROM compactor_entries ORDER BY number")


@unreadable
def test_an_entry_that_cannot_be_read_keeps_a_session_shut_that_needs_it(
    url: str, change: str, fault: type[StoreError], said: str
) -> None:
    """It is named, nothing is written, and other sessions are as they were; mended, the session goes on."""
    with opened(url) as store:
        turn(Memory("s", store=store), "1")
        whole = rows(store)[1]
        change_entry(store, 2, change)
        before = rows(store)
        for _ in range(2):
            with pytest.raises(fault, match=said.format(2)):
                Memory("s", store=store)
        assert rows(store) == before
        assert store.sessions() == ["s"]
        change_entry(store, 2, f"version = {whole.version}")
        on(store, "UPDATE compactor_entries SET body = :body WHERE number = 2", body=whole.body)
        memory = Memory("s", store=store)
        turn(memory, "2")
        same_as_resumed(memory, store)


@unreadable
def test_an_old_round_that_cannot_be_read_spoils_no_other(
    url: str, change: str, fault: type[StoreError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a checkpoint it is an error when it is read, each time, and nothing else is."""
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 20)
    with opened(url) as store:
        writer = Memory("s", store=store)
        for number in range(1, 11):
            turn(writer, str(number))
        change_entry(store, 8, change)  # the answer of the third
        before = rows(store)
        memory = Memory("s", store=store)
        rounds = memory.conversation.rounds
        for place in (3, 1, 0, 9):
            assert rounds[place].user_query == f"question {place + 1}"
        for _ in range(2):
            with pytest.raises(fault, match=said.format(8)):
                memory.reload("r3")
        assert rows(store) == before
        turn(memory, "11")
        assert memory.reload("r11.p1") == "answer 11"
        assert [row for row in rows(store) if row.number <= 30] == before


@unreadable
def test_what_a_revert_would_show_is_read_before_it_is_written(
    url: str, change: str, fault: type[StoreError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody could read on behind it: the one that stands stays, and the chat goes on."""
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 5)
    with opened(url) as store:
        memory, journal = made_with_compactions(store)
        first = next(iter(store.read_kinds("s", ["compaction published"]))).number
        change_entry(store, first, change)
        memory = Memory("s", store=store)
        journal, before = memory.journal("Planner"), rows(store)
        with pytest.raises(fault, match=said.format(first)):
            journal.revert()
        assert rows(store) == before
        current = journal.read().current
        assert current is not None
        assert current.summary == "of 4"
        turn(memory, "7")
        with pytest.raises(fault, match=said.format(first)):
            memory.redact("r3.p1")  # withdraws the second, and would show the first
        assert memory.reload("r3.p1") == "answer 3"
        turn(memory, "8")
        assert len(Memory("s", store=store).conversation.rounds) == 8


def made_with_compactions(store: Any) -> tuple[Memory, Any]:
    """Return a session of six rounds and its journal, with one compaction of two rounds and another of four."""
    memory = Memory("s", store=store)
    journal = memory.journal("Planner")
    for number in range(1, 7):
        turn(memory, str(number))
        if number in (3, 5):
            rounds = memory.conversation.rounds
            end = number - 1
            made = CompactedMessage(start_index=1, end_index=end, summary=f"of {end}", end_round_id=rounds[end - 1].id)
            ids = [one.id for one in rounds[end - 2 : end]]
            journal.publish(made, base=journal.read().generation, round_ids=ids)
    return memory, journal


@unreadable
def test_what_cannot_be_erased_yet_is_hidden_and_keeps_nobody_out(
    url: str, change: str, fault: type[StoreError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overlay that cannot be read may hold the text: it is left alone, and the erasure is gone on with later."""
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 10)
    with opened(url) as store:
        memory, _ = made_with_compactions(store)
        first = next(iter(store.read_kinds("s", ["compaction published"])))
        change_entry(store, first.number, change)
        for _ in range(2):
            with pytest.raises(fault, match=said.format(first.number)):
                memory.redact("r6.p1")
        for one in (memory, Memory("s", store=store)):
            assert one.reload("r6.p1") == "[Redacted]"
            assert one.reload("r5.p1") == "answer 5"
        turn(memory, "7")
        on(store, "UPDATE compactor_entries SET version = 1, body = :b WHERE number = :n", b=first.body, n=first.number)
        memory.redact("r6.p1")
        assert "answer 6" not in "".join(entry.body for entry in log_of(store))


def test_a_kind_that_only_a_newer_version_knows_is_passed_over_and_kept(url: str) -> None:
    """What matters to all has a new version of the body; the rest need not concern those who do not know it."""
    with opened(url) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        store.append("s", [Entry("mood noted", body='{"mood":"fine"}')], after=3)
        turn(memory, "2")
        assert [entry.kind for entry in store.read("s")][3] == "mood noted"
        assert texts_of(Memory("s", store=store)) == texts_of(memory)


@pytest.mark.parametrize(
    "change",
    ["body = x'00ff'", "body = 7", "kind = x'ff'", "round = 'x'", "version = 'x'", "created_at = 'once'"],
)
def test_a_row_of_the_wrong_type_is_damage(tmp_path: Path, change: str) -> None:
    """SQLite holds anything in any column, and a damaged file may say anything."""
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        turn(Memory("s", store=store), "1")
        change_entry(store, 2, change)
        with pytest.raises(StoreDamaged, match="restore"):
            Memory("s", store=store)


@pytest.mark.parametrize("kept", ["x'ff'", "7", "'{'", "'{\"version\": 1}'", "'[]'"])
def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path: Path, kept: str) -> None:
    """All that it says is in the log as well."""
    with opened(sqlite_url(tmp_path, QUICK)) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        on(store, f"UPDATE compactor_sessions SET checkpoint = {kept}, checkpoint_number = 2")  # noqa: S608
        same_as_resumed(memory, store)
