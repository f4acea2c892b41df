"""A server that is restarted, cut off, silent, locked or read-only: each fault has its error, and when it is over the same
Memory goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from typing import Any

import pytest
from executors import SOON
from histories import texts_of
from lines import Line
from loaded import run_under
from postgres import Postgres as Server
from sql_stores import Connections, Postgres, SqlStore, log_of, on, opened, same_as_resumed, turn
from sqlalchemy import text

from memory import Memory, StoreBusy, StoreReadOnly, StoreUnreachable


@pytest.mark.slow
def test_a_server_may_be_restarted_at_any_moment(own_postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between calls, within a transaction, within a page of what is read; and be away for a while."""
    monkeypatch.setattr("memory.stores.sql.PAGE", 2)
    monkeypatch.setattr("memory.stores.connections.PAGE", 2)
    with opened(own_postgres.url()) as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        own_postgres.restart()
        turn(memory, "2")

        reading = store.read("s")
        assert next(reading).number == 1
        own_postgres.restart()
        assert [entry.number for entry in reading] == [2, 3, 4, 5, 6]

        went = iter([own_postgres.restart])

        def change(connection: Any) -> None:
            connection.execute(text("UPDATE compactor_sessions SET checkpoint_number = checkpoint_number + 1"))
            for restart in went:
                restart()
            connection.execute(text("UPDATE compactor_sessions SET checkpoint_number = checkpoint_number + 1"))

        with closing(Connections(Postgres(own_postgres.url()))) as connections:
            connections.change(change)
        assert on(store, "SELECT checkpoint_number FROM compactor_sessions") == [(2,)]  # all of it, once
        on(store, "UPDATE compactor_sessions SET checkpoint_number = 0")

        reading = store.read("s")
        assert next(reading).number == 1
        own_postgres.crash()
        for ask in (lambda: list(reading), lambda: turn(memory, "3"), lambda: Memory("s", store=store)):
            with pytest.raises(StoreUnreachable, match="try again once the server is back"):
                ask()
        assert texts_of(memory)[1] == ("question 2", ["answer 2"])
        own_postgres.start()
        turn(memory, "3")
        same_as_resumed(memory, store)
        assert len(texts_of(memory)) == 3


@pytest.mark.parametrize(("times", "arrives"), [(1, True), (3, False)], ids=["once", "for good"])
@pytest.mark.parametrize(
    ("message", "deed"),
    [
        (b"UPDATE compactor_entries", lambda memory, _: memory.redact("r2.p1")),
        (b"INSERT INTO compactor_texts", lambda memory, _: memory.index_texts()),
        (b"DELETE FROM compactor_entries", lambda _, store: store.purge("other")),
        (b"INSERT INTO compactor_leases", lambda _, store: store.lease("s", "name", "me", 60.0)),
    ],
    ids=["redact", "index", "purge", "lease"],
)
def test_what_is_interrupted_by_the_network_is_whole_when_it_is_done_again(
    postgres_url: str,
    line: Line,
    message: bytes,
    deed: Callable[[Memory, SqlStore], object],
    times: int,
    arrives: bool,
) -> None:
    """Cut off once, nobody notices; for good, it is said, and the same call does it later."""
    with opened(line.url(postgres_url)) as store:
        memory = Memory("s", store=store)
        for number in range(1, 4):
            turn(memory, str(number))
        turn(Memory("other", store=store), "1")
        line.message, line.arrives, line.times = message, arrives, times
        with pytest.raises(StoreUnreachable) if times == 3 else nullcontext():
            deed(memory, store)
        assert line.times == 0
        deed(memory, store)
        turn(memory, "4")
        erased = message == b"UPDATE compactor_entries"
        assert ("answer 2" in "".join(entry.body for entry in log_of(store))) is not erased
        assert {hit.round for hit in memory.search("answer")} == ({1, 3, 4} if erased else {1, 2, 3, 4})
        assert ("other" in store.sessions()) is (b"DELETE" not in message)
        same_as_resumed(memory, store)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped there")
@pytest.mark.parametrize("late", [False, True], ids=["never", "late"])
def test_a_server_that_says_nothing_is_given_up(
    postgres_url: str, postgres_server: Server, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat does not hang for ever; and what the server does in the end, it does once, at its place."""
    monkeypatch.setattr("memory.stores.postgres.IDLE_TIMEOUT", 1.9)  # a server that is busy says something before
    with opened(f"{postgres_url}?timeout=0.1") as store, opened(postgres_url) as other:
        memory = Memory("s", store=store)
        turn(memory, "1")
        ((backend,),) = on(store, "SELECT pg_backend_pid()")
        on(store, "SELECT pg_advisory_lock(1)")  # its own, for as long as it lives

        def come_to() -> None:
            """Let it go on, and wait until it has seen that nobody is there any more."""
            with suppress(ProcessLookupError):  # it has gone already
                os.kill(backend, signal.SIGCONT)
            on(other, "SELECT pg_advisory_lock(1)")
            on(other, "SELECT pg_advisory_unlock(1)")

        os.kill(backend, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnreachable, match=r"said nothing for 2 s.*not known whether"):
                memory.create_round("2")
            if late:
                come_to()
            memory.create_round("3")
        finally:
            come_to()
        asked = [one.user_query for one in memory.conversation.rounds]
        assert asked == (["question 1", "2", "3"] if late else ["question 1", "3"])
        same_as_resumed(memory, store)


def test_a_lock_on_a_server_is_waited_for_as_long_as_was_said(postgres_url: str) -> None:
    """Whoever reads goes on meanwhile, and the same call works afterwards."""
    with opened(f"{postgres_url}?timeout=0.2") as store:
        memory = Memory("s", store=store)
        turn(memory, "1")

        def hold(connection: Any) -> None:
            connection.execute(text("LOCK TABLE compactor_entries IN SHARE ROW EXCLUSIVE MODE"))
            for write in (lambda: turn(memory, "2"), lambda: memory.redact("r1.p1"), lambda: store.purge("s")):
                began = time.monotonic()
                with pytest.raises(StoreBusy, match=r"held up by others.*nothing was written: try again"):
                    write()
                assert 0.1 < time.monotonic() - began < SOON
            assert texts_of(Memory("s", store=store)) == [("question 1", ["answer 1"])]

        with closing(Connections(Postgres(postgres_url))) as connections:
            connections.change(hold)
        turn(memory, "2")
        memory.redact("r1.p1")
        assert texts_of(memory) == [("question 1", ["[Redacted]"]), ("question 2", ["answer 2"])]
        same_as_resumed(memory, store)


def test_a_server_that_becomes_writable_again_is_written_to(postgres_url: str, postgres_server: Server) -> None:
    """As after a failover: connections that were made while it could only be read are made anew."""
    name = postgres_url.rpartition("/")[2]
    with opened(postgres_url) as store:
        turn(Memory("s", store=store), "1")
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with opened(postgres_url) as store:
        memory = Memory("s", store=store)
        for write in (lambda: turn(memory, "2"), lambda: memory.redact("r1.p1"), lambda: store.purge("s")):
            with pytest.raises(StoreReadOnly, match=r"read-only transaction.*nothing was written: allow it there"):
                write()
        assert {hit.round for hit in memory.search("question")} == {1}
        postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
        turn(memory, "2")
        same_as_resumed(memory, store)


@pytest.mark.slow
def test_a_server_may_be_restarted_under_load(own_postgres: Server) -> None:
    """In order or by a crash: all that was acknowledged is there once, and the same threads go on, two in a session."""

    def crash() -> None:
        own_postgres.crash()
        own_postgres.start()

    def kill() -> None:
        own_postgres.kill()
        own_postgres.start()

    with opened(own_postgres.url()) as store:
        run_under(store, 8, own_postgres.restart, crash, kill, sessions=4)


@pytest.mark.slow  # restarts a server
def test_whoever_listens_is_called_when_the_server_is_back(own_postgres: Server) -> None:
    """Something may have been published while it was away."""
    with opened(own_postgres.url()) as store:
        called = threading.Event()
        store.listen("s", called.set)
        assert called.wait(SOON)
        called.clear()
        own_postgres.restart()
        assert called.wait(SOON)
