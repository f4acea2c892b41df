"""Procrastinate: jobs in PostgreSQL, such as the database of the sessions. Needs the extra ``procrastinate``."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.jobs import Status
from procrastinate.signals import on_stop

from memory.errors import StoreUnreachable
from memory.stores.base import escape, unescape
from memory.stores.postgres import Postgres

from ..timers import DaemonExecutor
from . import jobs_database
from .due import STORE_RETRIES, STORE_RETRY, Worker, run_job
from .priority import FIRST, Priorities

__all__ = ["ProcrastinateDispatcher", "make_app", "work"]

QUEUE, COMPACT = "compactor", "compactor.compact"
#: Sweeps and rescues have a queue and a worker of their own, so that they wait for no call.
UPKEEP, SWEEP, RESCUE = "compactor.upkeep", "compactor.sweep", "compactor.rescue"
#: Seconds between two heartbeats of a worker, and seconds without one after which it counts as dead.
HEARTBEAT, STALLED = 1.0, 3.0


class ProcrastinateDispatcher:
    """A ``Dispatcher`` with its jobs in the database at *url*, a store's URL. ``close`` or ``with`` ends it.

    At most one job of a role waits at a time, while another may run. Raises ``StoreError`` for other databases.
    """

    def __init__(self, url: str, *, max_connections: int = 4) -> None:
        connector = SyncPsycopgConnector(min_size=0, max_size=max_connections, **jobs_database.connect_to(url))
        self._app = App(connector=connector).open()
        self._priorities = Priorities()
        self.database = Postgres(url)
        self._appends = jobs_database.AppendTransactions()

    def due(self, session: str, role: str, not_before: datetime | None = None, *, first: bool = False) -> None:
        """Enqueue a job; return once it is durable. A job whose time is over goes ahead of all others; with *first*, so
        it does when its time has come.

        Raises Procrastinate's ``ConnectorException``.
        """
        first = first or (not_before is not None and not_before <= datetime.now(UTC))
        try:
            self._defer(session, role, schedule_at=not_before, priority=FIRST if first else None)
        except AlreadyEnqueued:
            if first:  # one that waits for another time, or behind others, is not to
                jobs_database.go_ahead(self._app, jobs_database.make_lock(session, role), not_before, FIRST)

    def due_in(self, connection: Any, session: str, role: str) -> bool:
        """Enqueue a job on psycopg's *connection*, in its transaction; return whether a new job is there then."""
        defer = partial(self._defer, session, role, connection=connection)
        return self._appends.enqueue(connection, jobs_database.make_lock(session, role), defer)

    def _defer(self, session: str, role: str, *, priority: int | None = None, **options: Any) -> None:
        lock = jobs_database.make_lock(session, role)
        level = self._priorities.find(session) if priority is None else priority
        task = self._app.configure_task(COMPACT, queue=QUEUE, queueing_lock=lock, priority=level, **options)
        task.defer(session=escape(session), role=escape(role))
        if priority is None:
            self._priorities.find(session, counts=True)

    def create_tables(self) -> None:
        """Create Procrastinate's tables unless they exist; its own command migrates older ones."""
        jobs_database.create_tables(self._app)

    def close(self) -> None:
        self._app.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def make_app(url: str, worker: Worker, dispatcher: ProcrastinateDispatcher) -> App:
    """Return a Procrastinate app with the jobs: compact, sweep every minute, and retry the jobs of killed workers."""
    worker.wake_by(dispatcher)
    app = App(connector=PsycopgConnector(**jobs_database.connect_to(url)))
    threads = DaemonExecutor(1_000)  # Procrastinate runs no more jobs than its concurrency

    async def run_in_thread(call: partial[Any]) -> Any:
        return await asyncio.wrap_future(threads.submit(call))

    retry_strategy = RetryStrategy(max_attempts=STORE_RETRIES, wait=STORE_RETRY)

    @app.task(name=COMPACT, queue=QUEUE, retry=retry_strategy, pass_context=True)
    async def compact(context: JobContext, session: str, role: str) -> None:
        async with jobs_database.show_alive(context, HEARTBEAT):
            retry = await run_in_thread(partial(run_job, worker, session, role))
        if retry is not None:
            await run_in_thread(partial(dispatcher.due, unescape(session), unescape(role), retry.at, first=retry.first))

    @app.periodic(cron="* * * * *")
    @app.task(name=SWEEP, queue=UPKEEP, queueing_lock=SWEEP)
    async def sweep(timestamp: int) -> None:  # noqa: ARG001  (Procrastinate gives it)
        await run_in_thread(partial(worker.sweep, dispatcher))

    @app.periodic(cron="* * * * * *")  # every second: the sixth field
    @app.task(name=RESCUE, queue=UPKEEP, queueing_lock=RESCUE, pass_context=True)
    async def rescue(context: JobContext, timestamp: int) -> None:  # noqa: ARG001
        jobs = context.app.job_manager
        for queue in (QUEUE, UPKEEP):
            for job in await jobs.get_stalled_jobs(queue=queue, seconds_since_heartbeat=STALLED):
                if job.task_name == COMPACT:  # a new one first: if this worker is killed now, there are two
                    session, role = (unescape(str(job.task_kwargs[name])) for name in ("session", "role"))
                    await run_in_thread(partial(dispatcher.due, session, role, datetime.now(UTC)))
                with suppress(ConnectorException):  # another rescue was faster, or the job has ended
                    await jobs.finish_job(job, Status.FAILED, delete_job=True)

    return app


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def work(url: str, worker: Worker, *, concurrency: int = 4, drain_seconds: float = 30.0, **options: Any) -> None:
    """Run jobs, *concurrency* at once, until SIGTERM or SIGINT. Running jobs then get *drain_seconds* to finish.

    Unfinished jobs return to the queue. *options* are Procrastinate's for a worker. Raises ``StoreUnreachable`` if the
    database was away.
    """
    options = {
        "shutdown_graceful_timeout": drain_seconds,
        "fetch_job_polling_interval": 1.0,  # for scheduled jobs
        "update_heartbeat_interval": HEARTBEAT,
        "stalled_worker_timeout": STALLED,
        "delete_jobs": "successful",
        "name": None,  # or it would log elsewhere
        **options,
    }
    with jobs_database.shorten_log(), ProcrastinateDispatcher(url, max_connections=concurrency + 1) as dispatcher:
        await asyncio.to_thread(dispatcher.create_tables)

        async def run(queue: str, **more: Any) -> None:
            # An app each: the workers of one would share the clocks of sweeps and rescues.
            async with make_app(url, worker, dispatcher).open_async() as app:
                await app.run_worker_async(queues=[queue], install_signal_handlers=False, **options | more)

        waits, handles_signals = options.pop("wait", True), options.pop("install_signal_handlers", True)
        try:
            async with asyncio.TaskGroup() as workers:
                upkeep = workers.create_task(run(UPKEEP, wait=True, listen_notify=False))
                jobs = workers.create_task(run(QUEUE, wait=waits, concurrency=concurrency))
                # If the caller has cancelled both, a second time would end it before its jobs.
                jobs.add_done_callback(lambda _: upkeep.cancelling() or upkeep.cancel())
                with on_stop(partial(_cancel, jobs)) if handles_signals else nullcontext():
                    await asyncio.wait([jobs, upkeep], return_when=asyncio.FIRST_COMPLETED)
                    if is_lost := waits and not jobs.cancelling():
                        jobs.cancel()
                    await asyncio.wait([jobs])
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        if is_lost:  # Procrastinate's workers end as if they were told to
            raise StoreUnreachable("the database of the jobs was away, which ended the worker; start it again")
