"""Procrastinate's jobs in the database of the sessions: the append that makes a compaction due enqueues its job."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from executors import ManualExecutor
from poolers import bouncer
from postgres import Postgres
from scene import CONFIG, ROLE, add_round, on_command

pytest.importorskip("procrastinate", reason="the extra `procrastinate` is not installed")

import psycopg

from compactor import Skip
from compactor.workers.procrastinate import ProcrastinateDispatcher
from memory import Memory, StoreUnreachable, open_store

pytestmark = [pytest.mark.slow(measured=True), pytest.mark.filterwarnings("ignore::ResourceWarning")]

COUNT = "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'compactor.compact'"
QUERY = {"role": "user", "content": "And item-8?"}


def ask(url: str, statement: str) -> Any:
    with psycopg.connect(url.replace("+psycopg", "").partition("?timeout")[0], autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else None


def count_jobs(url: str) -> int:
    return int(ask(url, COUNT)[0][0])


class Later(ProcrastinateDispatcher):
    """Remembers what is enqueued after an append."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[str] = []

    def due(self, session: str, role: str, not_before: datetime | None = None, *, first: bool = False) -> None:
        self.asked.append(session)
        super().due(session, role, not_before, first=first)


@contextmanager
def hosting(
    url: str, *names: str, jobs_url: str = "", kind: type[ProcrastinateDispatcher] = Later
) -> Iterator[tuple[Any, list[Memory], ManualExecutor]]:
    """Give a dispatcher, sessions in which the next round is due, and the executor that evaluates whether it is."""
    executor = ManualExecutor()
    with closing(open_store(url)) as store, kind(jobs_url or url) as dispatcher:
        dispatcher.create_tables()
        memories = [Memory(name, store=store) for name in names or ("s",)]
        for memory in memories:
            for _ in range(7):
                add_round(memory)
            on_command(memory, None, CONFIG, executor=executor, dispatcher=dispatcher)[0].start()
        executor.run_all()
        assert count_jobs(jobs_url or url) == 0
        yield dispatcher, memories, executor


def test_the_job_is_there_when_the_append_returns(postgres_url: str) -> None:
    """Once: the evaluation that follows finds it enqueued."""
    with hosting(postgres_url) as (dispatcher, (memory,), executor):
        memory.append(QUERY)
        assert count_jobs(postgres_url) == 1
        executor.run_all()
        assert (count_jobs(postgres_url), dispatcher.asked) == (1, [])


CRASHING = """
import os, sys
from compactor import CompactorConfig, ContextCompactor, open_store
from compactor.testing import ScriptedSummarizer
from compactor.workers.procrastinate import ProcrastinateDispatcher
from memory import Memory
url = sys.argv[1]
memory = Memory("s", store=open_store(url))
config = CompactorConfig(threshold=7, retain_recent=3)
compactor = ContextCompactor.for_role(memory, "assistant", config, dispatcher=ProcrastinateDispatcher(url))
compactor.start()
for number in range(7):
    memory.append({"role": "user", "content": f"What about item-{number}?"})
    memory.append({"role": "assistant", "content": f"It costs {number * 11} euros."})
assert compactor.wait_idle(20)
memory.append({"role": "user", "content": "And item-8?"})
os.kill(os.getpid(), 9)
"""


def test_a_host_that_is_killed_right_after_the_append_leaves_a_job(postgres_url: str) -> None:
    """It can begin at once, and need not wait for a sweep."""
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
    killed = subprocess.run([sys.executable, "-c", CRASHING, postgres_url], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr.decode()
    found = ask(postgres_url, "SELECT args, status, scheduled_at FROM procrastinate_jobs")
    assert found == [({"session": "s", "role": "assistant"}, "todo", None)]


class Cut(Later):
    """The server ends its connections before a job is enqueued, or after that and before the append is committed."""

    cuts = ""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def due_in(self, connection: Any, session: str, role: str) -> bool:
        end = f"SELECT pg_terminate_backend({connection.info.backend_pid})"
        if self.cuts == "before":
            ask(self.url, end)
        is_new = super().due_in(connection, session, role)
        assert is_new is (self.cuts != "before")
        if self.cuts == "after":
            ask(self.url, end)
        return is_new


@pytest.mark.parametrize("cuts", ["before", "after"])
def test_an_append_that_is_rolled_back_leaves_no_job(
    postgres_url: str, caplog: pytest.LogCaptureFixture, cuts: str
) -> None:
    """The same append again leaves one. No log blames the tables."""
    with hosting(postgres_url, kind=Cut) as (dispatcher, (memory,), executor):
        dispatcher.cuts = cuts
        number = memory.snapshot.number
        with pytest.raises(StoreUnreachable):
            memory.append(QUERY)
        executor.run_all()
        assert (count_jobs(postgres_url), memory.snapshot.number, dispatcher.asked) == (0, number, [])
        dispatcher.cuts = ""
        memory.append(QUERY)
        executor.run_all()
        assert (count_jobs(postgres_url), dispatcher.asked, caplog.messages) == (1, [], [])


def test_a_job_that_waits_already_does_not_hold_up_the_append(postgres_url: str) -> None:
    """Nor is there a second one."""
    with hosting(postgres_url) as (dispatcher, (memory,), executor):
        ProcrastinateDispatcher.due(dispatcher, "s", ROLE, datetime.now(UTC) + timedelta(hours=1))
        memory.append(QUERY)
        executor.run_all()
        assert (count_jobs(postgres_url), dispatcher.asked) == (1, ["s"])
        with closing(open_store(postgres_url)) as store:
            assert Memory("s", store=store).snapshot.number == memory.snapshot.number


class Prepared(Later):
    """Counts the statements that are prepared on a connection, before it enqueues a job and afterwards."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.counts: list[int] = []

    def due_in(self, connection: Any, session: str, role: str) -> bool:
        def count() -> int:
            statement = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%compactor%'"
            return int([connection.execute(statement, prepare=False).fetchone()[0] for _ in range(2)][1])

        before = count()
        is_new = super().due_in(connection, session, role)
        self.counts += [before, count()]
        return is_new


def test_a_job_that_waits_already_does_not_slow_down_later_appends(postgres_url: str) -> None:
    """Their statements stay prepared."""
    with hosting(postgres_url, kind=Prepared) as (dispatcher, (memory,), _):
        ProcrastinateDispatcher.due(dispatcher, "s", ROLE)
        memory.append(QUERY)
    before, after = dispatcher.counts
    assert after == before > 0


def test_an_append_does_not_wait_for_tables_that_are_not_as_expected(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and jobs are enqueued afterwards as before."""
    with hosting(postgres_url, "s", "t") as (dispatcher, memories, executor):
        ask(postgres_url, "ALTER FUNCTION procrastinate_defer_jobs_v1 RENAME TO procrastinate_defer_jobs_v9")
        with caplog.at_level(logging.WARNING):
            for memory in memories:
                memory.append(QUERY)
        assert [record.getMessage() for record in caplog.records] == [
            "no job can be enqueued in an append's transaction (UndefinedFunction); it is enqueued after it"
        ]
        ask(postgres_url, "ALTER FUNCTION procrastinate_defer_jobs_v9 RENAME TO procrastinate_defer_jobs_v1")
        executor.run_all()
        assert (dispatcher.asked, count_jobs(postgres_url)) == (["s", "t"], 2)


def test_an_append_does_not_wait_until_the_tables_of_the_jobs_are_free(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As while they are altered; that is no lasting fault, and not logged as one."""
    with hosting(f"{postgres_url}?timeout=300") as (dispatcher, (memory,), executor):
        with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
            connection.execute("LOCK TABLE procrastinate_jobs")
            appending = threading.Thread(target=memory.append, args=[QUERY], daemon=True)
            with caplog.at_level(logging.WARNING):
                appending.start()
                appending.join(60)
            assert not appending.is_alive()
        assert caplog.records == []
        executor.run_all()
        assert (dispatcher.asked, count_jobs(postgres_url)) == (["s"], 1)


def test_jobs_in_another_database_are_enqueued_after_the_append(postgres_url: str, postgres_server: Postgres) -> None:
    with (
        postgres_server.database() as jobs_url,
        hosting(postgres_url, jobs_url=jobs_url) as (dispatcher, (memory,), executor),
    ):
        memory.append(QUERY)
        assert count_jobs(jobs_url) == 0
        executor.run_all()
        assert (count_jobs(jobs_url), dispatcher.asked) == (1, ["s"])


def test_behind_pgbouncer_the_append_enqueues_its_job(postgres_url: str, postgres_server: Postgres) -> None:
    """In transaction mode, and with hosts that share its connections."""
    names = [f"s{number}" for number in range(6)]
    with bouncer(postgres_server) as port:
        url = postgres_url.replace(str(postgres_server.port), str(port))
        with hosting(url, *names) as (dispatcher, memories, executor), hosting(url, "other") as (_, (other,), _):
            for memory in (*memories, other):
                memory.append(QUERY)
            assert count_jobs(postgres_url) == 7
            executor.run_all()
            assert (count_jobs(postgres_url), dispatcher.asked) == (7, [])
            assert {memory.provider(ROLE).status().skip_reason for memory in memories} == {Skip.DISPATCHED}
