"""Procrastinate: jobs in PostgreSQL, such as the database of the sessions. Needs the extra ``procrastinate``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from procrastinate import App, PsycopgConnector, RetryStrategy, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued
from procrastinate.jobs import Job
from psycopg import AsyncConnection, Connection

from memory.stores.base import escape, unescape
from memory.stores.postgres import Postgres

from ..timers import DaemonExecutor
from . import jobs_database
from .due import STORE_RETRIES, STORE_RETRY, Worker, run_job
from .priority import FIRST, Priorities

__all__ = ["ProcrastinateDispatcher", "make_app", "work"]

QUEUE, COMPACT, SWEEP = "compactor", "compactor.compact", "compactor.sweep"


class ProcrastinateDispatcher:
    """A ``Dispatcher`` with its jobs in the database at *url*, a store's URL. ``close`` or ``with`` ends it.

    At most one job of a role waits at a time, while another may run. Raises ``StoreError`` for other databases.
    """

    def __init__(self, url: str, *, max_connections: int = 4) -> None:
        place = jobs_database.connect_to(url, Connection)
        self._app = App(connector=SyncPsycopgConnector(min_size=0, max_size=max_connections, **place)).open()
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

    def run_again(self, job: Job) -> None:
        """Enqueue anew what a worker that is dead was to run."""
        if job.task_name == COMPACT and job.task_kwargs.keys() >= {"session", "role"}:
            session, role = (unescape(str(job.task_kwargs[name])) for name in ("session", "role"))
            self.due(session, role, datetime.now(UTC))

    def create_tables(self) -> None:
        """Create its tables unless they exist; Procrastinate's command migrates older ones. Raises ``StoreError``."""
        jobs_database.create_tables(self._app, self.database)

    def close(self) -> None:
        self._app.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def make_app(url: str, worker: Worker, dispatcher: ProcrastinateDispatcher) -> App:
    """Return a Procrastinate app with the jobs: compact, and sweep every minute."""
    worker.wake_by(dispatcher)
    app = App(connector=PsycopgConnector(**jobs_database.connect_to(url, AsyncConnection)))
    threads = DaemonExecutor(1_000)  # Procrastinate runs no more jobs than its concurrency

    async def run_in_thread(call: partial[Any]) -> Any:
        return await asyncio.wrap_future(threads.submit(call))

    @app.task(name=COMPACT, queue=QUEUE, retry=RetryStrategy(max_attempts=STORE_RETRIES, wait=STORE_RETRY))
    async def compact(session: str, role: str) -> None:
        if (retry := await run_in_thread(partial(run_job, worker, session, role))) is not None:
            await run_in_thread(partial(dispatcher.due, unescape(session), unescape(role), retry.at, first=retry.first))

    @app.periodic(cron="* * * * *")
    @app.task(name=SWEEP, queue=QUEUE, queueing_lock=SWEEP, priority=FIRST)
    async def sweep(timestamp: int) -> None:  # noqa: ARG001  (Procrastinate gives it)
        await run_in_thread(partial(worker.sweep, dispatcher))

    return app


async def work(url: str, worker: Worker, *, concurrency: int = 4, drain_seconds: float = 30.0, **options: Any) -> None:
    """Run jobs, *concurrency* at once, until SIGTERM or SIGINT. Running jobs then get *drain_seconds* to finish.

    Unfinished jobs return to the queue. *options* are Procrastinate's for a worker. Raises ``StoreUnreachable`` if the
    database was away.
    """
    with jobs_database.shorten_log(), ProcrastinateDispatcher(url, max_connections=concurrency + 1) as dispatcher:
        await asyncio.to_thread(dispatcher.create_tables)
        options = {"concurrency": concurrency, "shutdown_graceful_timeout": drain_seconds, **options}
        async with make_app(url, worker, dispatcher).open_async() as app:
            await jobs_database.run_worker(app, QUEUE, dispatcher.run_again, **options)
