"""A primary that dies and a standby that takes over, while hosts write: on two servers with streaming replication."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pytest
from executors import SOON
from loaded import run_under
from postgres import Postgres as Server
from sql_stores import on, opened, same_as_resumed, turn

from compactor import compose
from memory import EntriesLost, Memory, SessionPurged, StoreError, open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@dataclass
class Pair:
    primary: Server
    standby: Server

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        return f"postgresql+psycopg://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def wait_for(self, state: str) -> None:
        """Wait until the standby follows like that."""
        with opened(self.primary.url()) as store:
            until = time.monotonic() + SOON
            while on(store, "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'") != [(state,)]:
                assert time.monotonic() < until

    def replicate_synchronously(self, level: str) -> None:
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.primary.execute(f"ALTER SYSTEM SET synchronous_commit = '{level}'")
        self.primary.execute("SELECT pg_reload_conf()")
        self.wait_for("sync")

    def cut(self) -> None:
        """The standby receives nothing more."""
        self.standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.execute("SELECT pg_reload_conf()")
        with opened(self.primary.url()) as store:
            until = time.monotonic() + SOON
            while on(store, "SELECT 1 FROM pg_stat_replication"):
                assert time.monotonic() < until

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair(own_postgres: Server) -> Iterator[Pair]:
    standby = own_postgres.standby()
    try:
        yield Pair(own_postgres, standby)
    finally:
        standby.remove()


@pytest.mark.parametrize("level", ["on", "remote_apply"])
def test_with_a_synchronous_standby_nothing_acknowledged_is_lost(pair: Pair, level: str) -> None:
    """Hosts go on by themselves on the other server, in the same process and Memory."""
    with opened(pair.url) as store:
        pair.replicate_synchronously(level)
        run_under(store, 4, pair.fail_over)


def test_what_an_asynchronous_standby_did_not_have_is_missed(pair: Pair) -> None:
    """A Memory that knows it says so, whether the log is shorter now or others went on with it, and writes nothing."""
    with opened(pair.url) as store, opened(pair.primary.url()) as before:
        pair.wait_for("async")
        memory, reader = Memory("s", store=store), Memory("s", store=store)
        turn(memory, "1")
        caught_up = on(before, "SELECT pg_current_wal_lsn()::text")[0][0]
        with opened(pair.standby.url()) as standby:
            until = time.monotonic() + SOON
            while not on(standby, f"SELECT pg_last_wal_replay_lsn() >= '{caught_up}'::pg_lsn")[0][0]:
                assert time.monotonic() < until
        pair.cut()
        turn(memory, "2")
        reader.refresh()
        late = Memory("s", store=store)
        new = Memory("t", store=store)
        turn(new, "1")
        pair.fail_over()

        for _ in range(2):
            for write in (lambda: turn(memory, "3"), memory.refresh, lambda: memory.redact("r1.p1"), reader.refresh):
                with pytest.raises(EntriesLost, match=r"failover.*make a new Memory"):
                    write()
        with pytest.raises(SessionPurged):  # nothing is left of it
            turn(new, "2")
        assert "answer 2" in str(memory.messages("Planner"))
        assert "answer 2" in str(compose(memory, "Planner", budget=8_000))
        again = Memory("s", store=store)
        assert [one.user_query for one in again.conversation.rounds] == ["question 1"]
        turn(again, "2 anew")
        turn(again, "3")
        for write in (lambda: turn(memory, "3"), reader.refresh, late.refresh):
            with pytest.raises(EntriesLost):
                write()
        same_as_resumed(again, store)
        assert store.list_due(again.conversation.rounds[-1].created_at.replace(year=2100))


def test_a_host_gives_the_new_memory_what_was_lost(pair: Pair) -> None:
    """By ``sync`` with its whole history: what is there already is not written again."""
    history = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "In Lisbon."}]
    later = [*history, {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "In Porto."}]
    with opened(pair.url) as store:
        Memory("s", store=store).sync(history)
        pair.wait_for("async")
        pair.cut()
        memory = Memory("s", store=store)
        memory.sync(later)
        pair.fail_over()
        later += [{"role": "user", "content": "Is it late?"}]
        with pytest.raises(EntriesLost):
            memory.sync(later)
        again = Memory("s", store=store)
        again.sync(later)
        assert [message["content"] for message in again.messages("assistant")] == [one["content"] for one in later]
        same_as_resumed(again, store)


def test_a_standby_that_is_away_holds_up_writers_and_loses_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for it: an append is given up, and is there once when the standby is back."""
    monkeypatch.setattr("memory.stores.postgres.IDLE_TIMEOUT", 1.8)  # a server that is busy says something before
    with opened(f"{pair.url}&timeout=0.2") as store:
        memory = Memory("s", store=store)
        turn(memory, "1")
        pair.replicate_synchronously("on")
        pair.standby.stop()
        for _ in range(2):
            with pytest.raises(StoreError):
                memory.create_round("2", id="2")
        assert "answer 1" in str(compose(memory, "Planner", budget=8_000))
        pair.standby.start()
        pair.wait_for("sync")
        memory.create_round("3", id="3")
        asked = [one.user_query for one in memory.conversation.rounds]
        assert asked in (["question 1", "2", "3"], ["question 1", "3"])
        same_as_resumed(memory, store)


#: As libpq has it, as SQLAlchemy has it, and as options.
URLS = [
    "postgresql+psycopg://postgres@127.0.0.1:{0},127.0.0.1:{1}/postgres?{2}",
    "postgresql+psycopg://postgres@/postgres?host=127.0.0.1:{0}&host=127.0.0.1:{1}&{2}",
    "postgresql+psycopg://postgres@/postgres?host=127.0.0.1,127.0.0.1&port={0},{1}&{2}",
]


def test_several_hosts_are_given_in_a_url(pair: Pair) -> None:
    """The one that can be written to is found, whichever comes first; notices come from it too."""
    orders = ((pair.primary, pair.standby), (pair.standby, pair.primary))
    for number, (form, servers) in enumerate(product(URLS, orders)):
        url = form.format(*(server.port for server in servers), "target_session_attrs=read-write")
        store = open_store(url)
        turn(Memory(str(number), store=store), "1")
        heard = threading.Event()
        store.listen("s", heard.set)
        assert heard.wait(SOON)
        assert str(servers[1].port) in repr(store) or "port=" in url
        store.close()
