"""Procrastinate's dispatcher and jobs, on a PostgreSQL server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from poolers import bouncer
from postgres import Postgres
from scene import CONFIG, ROLE, SOON, Heard, add_round

pytest.importorskip("procrastinate", reason="the extra `procrastinate` is not installed")

import psycopg
from procrastinate.exceptions import ConnectorException, NoResult
from procrastinate.jobs import Job
from procrastinate.manager import JobManager

from compactor import Limit, Published, Settings, SharedLimits
from compactor.cost.admission import SAFETY_SECONDS
from compactor.testing import ScriptedSummarizer
from compactor.workers import Outcome, Worker
from compactor.workers.contract import DispatcherContract, RecordingWorker
from compactor.workers.jobs_database import HEARTBEAT, STALLED, give_back, shorten_log
from compactor.workers.procrastinate import QUEUE, ProcrastinateDispatcher, make_app, work
from memory import Memory, StoreError, StoreUnreachable, open_store
from memory.stores import join_name

pytestmark = [pytest.mark.slow(measured=True), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@contextmanager
def working(url: str, worker: Any, concurrency: int = 3, drain_seconds: float = 1.0) -> Iterator[None]:
    """Run a worker on a thread."""
    loop, task = asyncio.new_event_loop(), None
    started = threading.Event()

    async def run() -> None:
        nonlocal task
        task = asyncio.current_task()
        started.set()
        await work(url, worker, concurrency=concurrency, drain_seconds=drain_seconds, install_signal_handlers=False)

    def serve() -> None:
        try:
            loop.run_until_complete(run())
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(SOON)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)  # type: ignore[attr-defined]
        thread.join(SOON)
        assert not thread.is_alive()


class WaitingWorker(RecordingWorker):
    """A job of it ends only once it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def run(self, session: str, role: str) -> Outcome:
        outcome = super().run(session, role)
        self.go_on.wait(SOON)
        return outcome


class TestProcrastinate(DispatcherContract):
    @pytest.fixture(autouse=True)
    def _place(self, postgres_url: str) -> None:
        self.url = postgres_url

    @contextmanager
    def run_engine(self, worker: RecordingWorker) -> Iterator[ProcrastinateDispatcher]:
        with ProcrastinateDispatcher(self.url) as dispatcher:
            dispatcher.create_tables()
            with working(self.url, worker):
                yield dispatcher


class TestBehindPgBouncer(TestProcrastinate):
    """In transaction mode: jobs are found by looking."""

    @pytest.fixture(autouse=True)
    def _place(self, postgres_url: str, postgres_server: Postgres) -> Iterator[None]:  # type: ignore[override]
        with bouncer(postgres_server) as port:
            self.url = postgres_url.replace(str(postgres_server.port), str(port))
            yield

    def test_many_hosts_and_jobs_share_its_connections(self) -> None:
        """None runs a statement that another has prepared under the same name."""
        worker, names = RecordingWorker(), {f"{host}.{job}" for host in range(6) for job in range(10)}
        with self.run_engine(worker) as dispatcher, ThreadPoolExecutor(6) as hosts:
            list(hosts.map(lambda name: dispatcher.due(name, "assistant"), names))
            worker.wait_for(lambda calls: {name for name, _, _ in calls} == names)


def test_one_job_of_a_role_waits_at_a_time(postgres_url: str) -> None:
    """However often it was asked for; and none is lost if nobody works yet."""
    worker = RecordingWorker()
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.create_tables()
        for _ in range(50):
            dispatcher.due("s", "a")
        dispatcher.due("t", "a")
        with working(postgres_url, worker):
            worker.wait_for(lambda calls: len(calls) >= 2)
    assert sorted(name for name, _, _ in worker.calls) == ["s", "t"]


def test_a_job_that_waits_for_a_later_time_runs_at_once_if_there_is_room_now(postgres_url: str) -> None:
    """It is the same job, and its worker is told."""
    worker = RecordingWorker()
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.due("s", "a", datetime.now(UTC) + timedelta(hours=1))
        with working(postgres_url, worker):
            dispatcher.due("s", "a", datetime.now(UTC) + timedelta(seconds=1))
            dispatcher.due("t", "a")
            worker.wait_for(lambda calls: len(calls) == 1)
            assert count_jobs(postgres_url) <= 2
            dispatcher.due("s", "a")
            dispatcher.due("s", "a", datetime.now(UTC))
            worker.wait_for(lambda calls: [name for name, _, _ in calls] == ["t", "s"])


@pytest.mark.parametrize("waits", [False, True], ids=["alone", "beside one that waits"])
def test_a_job_of_a_dead_worker_is_taken_over(postgres_url: str, waits: bool) -> None:
    """It was running when its process was killed, and nobody has heard of it since. It is run once, also where another
    job of its role waits by now, which then waits no longer."""
    worker = RecordingWorker()
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.due("s", "a")

        take_and_die(postgres_url, dispatcher)
        if waits:
            dispatcher.due("s", "a", datetime.now(UTC) + timedelta(hours=1))
        with working(postgres_url, worker):
            worker.wait_for(lambda calls: len(calls) == 1)
            until = time.monotonic() + SOON
            while count_jobs(postgres_url) > 1:  # the new job may run before the old one is deleted
                assert time.monotonic() < until, "the one that runs, at most"


def take_and_die(url: str, dispatcher: ProcrastinateDispatcher) -> None:
    """Take a job as a worker does that is then killed."""

    async def take() -> None:
        async with make_app(url, RecordingWorker(), dispatcher).open_async() as app:  # type: ignore[arg-type]
            number = await app.job_manager.register_worker()
            job = await app.job_manager.fetch_job(queues=None, worker_id=number)
            assert job is not None

    asyncio.run(take())


def test_a_search_for_the_dead_that_fails_is_tried_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong; the log says so."""
    find, failed, worker = JobManager.get_stalled_jobs, list[str](), RecordingWorker()

    async def fail_once(self: JobManager, **options: Any) -> Any:
        if not failed:
            failed.append("once")
            raise ValueError
        return await find(self, **options)

    monkeypatch.setattr(JobManager, "get_stalled_jobs", fail_once)
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.due("s", "a")
        take_and_die(postgres_url, dispatcher)
        with caplog.at_level(logging.WARNING), working(postgres_url, worker):
            worker.wait_for(lambda calls: len(calls) == 1)
    assert "heartbeats failed, and are tried again in 1 seconds: ValueError" in caplog.text


def test_two_that_look_for_a_dead_workers_jobs_enqueue_them_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        for name in ("s", "t", "u"):
            dispatcher.due(name, "a")
            take_and_die(postgres_url, dispatcher)

        async def rescue_twice() -> None:
            async with make_app(postgres_url, RecordingWorker(), dispatcher).open_async() as app:  # type: ignore[arg-type]
                found = [*await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=0)]

                async def find_stalled(queue: str, **_more: float) -> list[Job]:
                    return [job for job in found if job.queue == queue]

                monkeypatch.setattr(app.job_manager, "get_stalled_jobs", find_stalled)
                for _ in range(2):
                    await give_back(app.job_manager, QUEUE, dispatcher.run_again)

        asyncio.run(rescue_twice())
    assert (count_jobs(postgres_url, "todo"), count_jobs(postgres_url)) == (3, 3)


def test_a_database_that_is_restarted_is_told_of_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Not by Procrastinate's tracebacks. Errors that are not the database's keep theirs."""
    with shorten_log():
        for error in (ConnectorException(), ValueError("another"), NoResult()):
            error.__cause__ = OSError("the server is shutting down\nthat is all")
            logging.getLogger("procrastinate.worker").error("Side task %s failed", "listener", exc_info=error)
    database, *others = caplog.records
    assert database.getMessage() == "the database of the jobs failed: the server is shutting down"
    assert database.exc_info is None
    for other in others:
        assert (other.getMessage(), bool(other.exc_info)) == ("Side task listener failed", True)


def test_what_is_no_failure_of_the_database_is_not_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that was suspended finds that its jobs are another's; and attempts to connect are told of by the one
    whom they fail."""
    with shorten_log():
        error = ConnectorException()
        error.__cause__ = psycopg.errors.RaiseException("Job was not found or not in doing status (job id: 3)")
        logging.getLogger("asyncio").error("Task exception was never retrieved", exc_info=error)
        logging.getLogger("psycopg.pool").warning("error connecting in %r: %s", "pool-1", "refused\nIs it running?")
    assert [record.getMessage() for record in caplog.records] == [
        "a job has ended that was given to another worker meanwhile"
    ]


@pytest.mark.parametrize("what", ["worker", "tables"])
def test_a_database_that_is_away_at_the_start_is_told_of_at_once(what: str) -> None:
    """With the reason, and not after a minute."""
    url = "postgresql+psycopg://postgres:secret@127.0.0.1:1/jobs"

    def begin() -> None:
        if what == "worker":
            asyncio.run(work(url, RecordingWorker(), install_signal_handlers=False))  # type: ignore[arg-type]
        else:
            with ProcrastinateDispatcher(url) as dispatcher:
                dispatcher.create_tables()

    with pytest.raises(StoreUnreachable, match=r"'jobs' on 127\.0\.0\.1 does not answer.*refused") as raised:
        begin()
    assert "secret" not in str(raised.value)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped there")
def test_connections_to_a_server_that_says_nothing_are_given_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a store: neither a host nor a worker hangs for ever after a failover, whose old primary may be silent."""
    monkeypatch.setattr("memory.stores.postgres.IDLE_TIMEOUT", 0.5)
    worker, url = RecordingWorker(), f"{postgres_url}?timeout=0.1"

    async def run(dispatcher: ProcrastinateDispatcher) -> None:
        async with asyncio.timeout(SOON):
            running = asyncio.create_task(work(url, worker, drain_seconds=0.0, install_signal_handlers=False))  # type: ignore[arg-type]
            await asyncio.to_thread(dispatcher.due, "before", "a")
            await until(lambda: bool(worker.calls))
            backends = await asyncio.to_thread(list_backends, postgres_url)
            try:
                send(signal.SIGSTOP, backends)
                await asyncio.to_thread(dispatcher.due, "after", "a")
                await until(lambda: len(worker.calls) == 2 or running.done())  # it ends if it was asking at that moment
            finally:
                send(signal.SIGCONT, backends)
            running.cancel()
            with suppress(asyncio.CancelledError, StoreUnreachable):
                await running

    with ProcrastinateDispatcher(url) as dispatcher:
        dispatcher.create_tables()
        asyncio.run(run(dispatcher))


def run_with_job(url: str, worker: WaitingWorker, running: Coroutine[Any, Any, None]) -> None:
    """Enqueue a job for *worker*, run that to its end, and let the worker go on."""
    with ProcrastinateDispatcher(url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.due("s", "a")
        try:
            asyncio.run(running)
        finally:
            worker.go_on.set()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


def list_backends(url: str) -> list[int]:
    """The server's processes that others are connected to."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in found]


def send(number: int, backends: list[int]) -> None:
    for pid in backends:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is sent")
def test_a_worker_whose_database_is_away_ends_when_it_is_told_to(
    own_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the database: other workers get its jobs in any case."""
    monkeypatch.setattr("compactor.workers.jobs_database.LEAVING", 0.1)
    worker = WaitingWorker()

    async def run() -> None:
        async with asyncio.timeout(SOON):
            running = asyncio.create_task(work(own_postgres.url(), worker, drain_seconds=0.1))  # type: ignore[arg-type]
            await until(lambda: bool(worker.calls))
            await asyncio.to_thread(own_postgres.stop)
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(StoreUnreachable, match="the database of the jobs"):
                await running

    run_with_job(own_postgres.url(), worker, run())


def test_a_worker_that_is_told_twice_to_end_gives_its_jobs_back_at_once(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not leave them to be found by others, nor waits for them."""
    worker = WaitingWorker()

    async def run() -> None:
        async with asyncio.timeout(SOON):
            running = asyncio.create_task(work(postgres_url, worker, install_signal_handlers=False))  # type: ignore[arg-type]
            await until(lambda: bool(worker.calls))
            for _ in range(2):
                running.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (count_jobs(postgres_url, "todo"), count_jobs(postgres_url)) == (1, 1)

    run_with_job(postgres_url, worker, run())
    assert not [record.getMessage() for record in caplog.records if record.exc_info and "Task" in record.getMessage()]


def test_a_worker_whose_database_was_away_has_failed(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not end as if it was told to, so that it is started again."""

    async def fail(_self: JobManager, _worker_id: int) -> None:
        raise ConnectorException

    monkeypatch.setattr(JobManager, "update_heartbeat", fail)
    running = work(postgres_url, RecordingWorker(), install_signal_handlers=False)  # type: ignore[arg-type]
    with pytest.raises(StoreUnreachable, match="start it again"):
        asyncio.run(asyncio.wait_for(running, SOON))


def test_the_hosts_errors_are_logged_in_full_once_the_worker_has_ended(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(work(postgres_url, RecordingWorker(), wait=False, install_signal_handlers=False))  # type: ignore[arg-type]
    caplog.clear()
    logging.getLogger("asyncio").error("the host's task failed", exc_info=ConnectorException())
    assert [(one.getMessage(), bool(one.exc_info)) for one in caplog.records] == [("the host's task failed", True)]


def test_no_more_jobs_run_than_asked_for_and_they_hold_up_no_rescue(postgres_url: str) -> None:
    """A killed worker repeats no more calls than that, and a call may take minutes."""
    worker = WaitingWorker()
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.due("of a dead worker", "a")
        take_and_die(postgres_url, dispatcher)
        for name in ("s", "t"):
            dispatcher.due(name, "a")
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
            # It seems to live until a job runs, or its own might be the first.
            connection.execute("UPDATE procrastinate_workers SET last_heartbeat = now() + interval '1 hour'")
            with working(postgres_url, worker, concurrency=1):
                worker.wait_for(lambda calls: len(calls) == 1)
                connection.execute(
                    "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'"
                    " WHERE last_heartbeat > now() + interval '30 minutes'"
                )
                until = time.monotonic() + SOON
                while count_jobs(postgres_url, "todo") < 2:
                    assert time.monotonic() < until, "nobody looked for the dead worker's job"
                assert [name for name, _, _ in worker.calls] == ["s"]
                worker.go_on.set()
                worker.wait_for(lambda calls: len(calls) == 3)


def test_a_worker_that_is_not_to_wait_ends_when_all_jobs_are_done(postgres_url: str) -> None:
    """Options of a worker are Procrastinate's."""
    worker = RecordingWorker()
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        for name in ("s", "t", "u"):
            dispatcher.due(name, "a")
        asyncio.run(work(postgres_url, worker, concurrency=1, wait=False, install_signal_handlers=False))  # type: ignore[arg-type]
    assert sorted(name for name, _, _ in worker.calls) == ["s", "t", "u"]


@pytest.mark.parametrize("waits", [False, True], ids=["alone", "beside one that waits"])
def test_a_job_that_waits_for_a_lease_goes_ahead_when_that_ends(postgres_url: str, waits: bool) -> None:
    """Its session's worker may have been killed; whatever was enqueued since waits behind it, and another job of its
    role is that job."""

    class Enqueuing(RecordingWorker):
        def run(self, session: str, role: str) -> Outcome:
            if waits and not self.calls:
                dispatcher.due(session, role, datetime.now(UTC) + timedelta(hours=1))
            return super().run(session, role)

    worker = Enqueuing(Outcome(reason="leased", retry_in=60.0))
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.due("s", "a")
        with (
            working(postgres_url, worker),
            psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection,
        ):
            found, until = [], time.monotonic() + SOON
            while not found and time.monotonic() < until:
                found = connection.execute(
                    "SELECT priority FROM procrastinate_jobs WHERE status = 'todo'"
                    " AND scheduled_at BETWEEN now() AND now() + interval '1 minute'"
                ).fetchall()
    assert found == [(1,)]


def test_what_is_left_at_the_end_is_given_back(postgres_url: str) -> None:
    """A job that outlasts the time that it gets waits for another worker."""
    slow, other = WaitingWorker(), RecordingWorker()
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.due("s", "a")
        with working(postgres_url, slow):
            slow.wait_for(lambda calls: len(calls) == 1)
        with working(postgres_url, other):
            other.wait_for(lambda calls: len(calls) == 1)
        slow.go_on.set()


def test_a_worker_keeps_its_job_also_while_it_ends(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Within the time that the job gets to finish, no other worker runs it again."""
    slow, other = WaitingWorker(), RecordingWorker()
    with ProcrastinateDispatcher(postgres_url) as dispatcher, ThreadPoolExecutor(1) as threads:
        dispatcher.create_tables()
        dispatcher.due("slow", "a")
        ending = ExitStack()
        ending.enter_context(working(postgres_url, slow, drain_seconds=SOON))
        slow.wait_for(lambda calls: len(calls) == 1)
        with working(postgres_url, other):
            ended = threads.submit(ending.close)
            dispatcher.due("late", "a", datetime.now(UTC) + timedelta(seconds=STALLED + 3 * HEARTBEAT))
            other.wait_for(lambda calls: "late" in {name for name, _, _ in calls})
            slow.go_on.set()
            ended.result(SOON)
    assert [name for name, _, _ in other.calls] == ["late"]
    assert count_jobs(postgres_url) == 0
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def count_jobs(url: str, status: str = "%") -> int:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        found = connection.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'compactor.compact' AND status::text LIKE %s",
            (status,),
        )
        return int(found.fetchall()[0][0])


def test_what_nobody_evaluated_is_swept_every_minute(postgres_url: str) -> None:
    """At any time of the hour."""
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        app = make_app(postgres_url, RecordingWorker(), dispatcher)  # type: ignore[arg-type]
    ((_, sweep),) = app.periodic_registry.periodic_tasks.items()
    for minute in (0, 1, 59):
        at = datetime(2026, 5, 1, 12, minute, 30, tzinfo=UTC).timestamp()
        assert sweep.croniter.get_next(ret_type=float, start_time=at) == at + 30


def test_a_url_of_another_database_is_refused() -> None:
    with pytest.raises(StoreError, match="postgresql"):
        ProcrastinateDispatcher("sqlite:///x.db")


def test_jobs_share_limits_and_come_again_when_there_is_room(postgres_url: str) -> None:
    """Of any number, one asks at a time; the others hold no worker, and none waits for its safety net."""
    summarizer = ScriptedSummarizer()
    names = [join_name(f"t{number % 3}", f"s{number}") for number in range(9)]
    with closing(open_store(postgres_url)) as store, ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        limits = SharedLimits(store, [Limit(max_concurrency=1, per="provider")])
        worker = Worker(
            store=store, roles=(ROLE,), settings=Settings(CONFIG), summarizer=summarizer, options={"limits": limits}
        )
        heard = Heard()
        worker.on_event(heard, (Published,))
        for name in names:
            memory = Memory(name, store=store)
            for _ in range(10):
                add_round(memory)
        with working(postgres_url, worker):
            began = time.monotonic()
            for name in names:
                dispatcher.due(name, ROLE)
            heard.until(Published, len(names))
            assert time.monotonic() - began < SAFETY_SECONDS
        assert {event.session for event in heard.events} == {*names}
        assert summarizer.most_in_flight == 1
        assert limits.status().queued == 0


def test_tenants_with_few_jobs_go_first_and_jobs_that_have_a_permit_before_all(postgres_url: str) -> None:
    """Else a worker would look at all of another's before."""
    worker = RecordingWorker()
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        for number in range(20):
            dispatcher.due(join_name("busy", f"{number}"), "a")
        dispatcher.due(join_name("quiet", "s"), "a")
        dispatcher.due(join_name("busy", "17"), "a", datetime.now(UTC))
        with working(postgres_url, worker, concurrency=1):  # of several, any may be called first
            worker.wait_for(lambda calls: len(calls) == 21)
    order = [name for name, _, _ in worker.calls]
    assert order.index(join_name("busy", "17")) == 0
    assert order.index(join_name("quiet", "s")) < 4
