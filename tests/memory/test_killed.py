"""Processes that are killed while they write to a session: a few of what ``benchmarks/crashes.py`` does by the hundred."""

from __future__ import annotations

import json
import random
from pathlib import Path

import postgres
import pytest
from logged import entry

from benchmarks.crashes import Crashes
from benchmarks.sessions import found_in, write_round
from memory import CompactedMessage, Entry, InMemoryStore, Memory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def survived(crashes: Crashes, kills: int) -> None:
    crashes.kill(kills)
    assert crashes.faults == []
    assert crashes.sums["kills"] == kills
    assert crashes.sums["acknowledged posts"] > kills
    assert crashes.sums["processes that published"] > 0


def test_nothing_acknowledged_is_lost_when_processes_on_sqlite_are_killed(tmp_path: Path) -> None:
    """Every post is there, whole and once; each process goes on where the one before was killed, and compacts on."""
    survived(Crashes(f"sqlite:///{(tmp_path / 'log.db').as_posix()}", tmp_path, seed=4), 5)


def test_nothing_acknowledged_is_lost_when_processes_on_postgresql_are_killed(
    own_postgres: postgres.Postgres, tmp_path: Path
) -> None:
    """Nor where the server dies with one of them."""
    crashes = Crashes(own_postgres.url(), tmp_path, 4, own_postgres, server_every=2)
    survived(crashes, 3)
    assert crashes.sums["kills of the server"] == 1


# What is wrong is found


def written() -> InMemoryStore:
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for number in range(3):
        write_round(memory, f"w.{number}")
    assert found_in(store, "s", random.Random(1)).faults == []
    return store


def faults_after(store: InMemoryStore, entry: Entry) -> str:
    store.append("s", [entry], len(list(store.read("s"))))
    return "; ".join(found_in(store, "s", random.Random(1)).faults)


def test_a_torn_post_is_found() -> None:
    """One that lacks its last character, in the log as in the conversation."""
    store = written()
    torn = next(entry for entry in store.read("s") if entry.kind == "post added")
    body = json.loads(torn.body)
    body["post"]["message"] = body["post"]["message"][:-1]
    store.redact("s", torn.number, json.dumps(body))
    faults = found_in(store, "s", random.Random(1)).faults
    assert {fault.partition(": ")[2] for fault in faults} >= {"a torn post"}


def test_a_round_that_is_there_twice_is_found() -> None:
    """Written again by somebody who did not know that it was stored."""
    store = written()
    write_round(Memory("s", store=store), "w.1")
    assert "a round is there twice" in found_in(store, "s", random.Random(1)).faults


def test_a_compaction_of_what_is_not_there_is_found() -> None:
    """And one that nobody was asked for."""
    compaction = CompactedMessage(start_index=1, end_index=9, end_number=9, summary="s", generation=1)
    faults = faults_after(written(), entry("compaction published", role="assistant", compaction=compaction))
    assert "covers what is not there" in faults
    assert "was not prepared like that" in faults


def test_an_entry_that_cannot_be_read_is_found() -> None:
    """A body that is cut off."""
    store = written()
    closed = next(entry for entry in store.read("s") if entry.kind == "round closed")
    store.redact("s", closed.number, closed.body[:-1])
    with pytest.raises(Exception, match="cannot be read"):
        found_in(store, "s", random.Random(1))
