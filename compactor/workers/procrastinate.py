"""Procrastinate: jobs in PostgreSQL, such as the database of the sessions. Needs the extra ``procrastinate``."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, ProcrastinateException, UniqueViolation
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from psycopg import Error
from psycopg.errors import LockNotAvailable, RaiseException

from memory.errors import StoreError
from memory.stores.base import escape, unescape
from memory.stores.postgres import Postgres

from ..events import Skip
from ..timers import DaemonExecutor
from .due import LIMITED_PAUSE, Worker, find_retry_time
from .priority import FIRST, Priorities

__all__ = ["ProcrastinateDispatcher", "make_app", "work"]

QUEUE, COMPACT = "compactor", "compactor.compact"
#: Sweeps and rescues have a queue and a worker of their own, so that they wait for no call.
UPKEEP, SWEEP, RESCUE = "compactor.upkeep", "compactor.sweep", "compactor.rescue"
#: Seconds between two heartbeats of a worker, and seconds without one after which it counts as dead.
HEARTBEAT, STALLED = 1.0, 4.0
#: Maximum seconds between two polls for scheduled jobs.
POLL = 1.0
#: Maximum threads for jobs; Procrastinate runs no more of them than its concurrency.
MAX_THREADS = 1_000
#: A job that raised, because the store was unreachable, is retried after 2, 4, 8... seconds.
_RETRY = RetryStrategy(max_attempts=10, exponential_wait=2)
_LOG = logging.getLogger(__name__)
#: An append waits so long for the tables of the jobs, not as long as for its own: it is in a turn of the chat.
_WAIT_BRIEFLY = "SELECT set_config('lock_timeout', '100ms', true)"
#: Asked first in an append's transaction: after an error and its rollback, psycopg would prepare all statements anew.
_WAITS = "SELECT 1 FROM procrastinate_jobs WHERE queueing_lock = %s AND status = 'todo'"
#: Procrastinate tells its workers of new jobs alone. If it renames its channel, they find this one when they poll.
_GO_AHEAD = """WITH moved AS (
    UPDATE procrastinate_jobs SET scheduled_at = %(at)s, priority = %(priority)s
    WHERE queueing_lock = %(lock)s AND status = 'todo' RETURNING id, queue_name
) SELECT pg_notify('procrastinate_queue_v1#' || queue_name,
    json_build_object('type', 'job_inserted', 'job_id', id)::text) FROM moved"""


def _connect_to(url: str) -> dict[str, Any]:
    # No prepared statements: behind PgBouncer their names might be those of another client's.
    return {"conninfo": Postgres(url).conninfo, "kwargs": {"prepare_threshold": None}}


def _make_lock(session: str, role: str) -> str:
    return hashlib.sha256(f"{escape(session)}\0{escape(role)}".encode()).hexdigest()


class ProcrastinateDispatcher:
    """A ``Dispatcher`` with its jobs in the database at *url*, a store's URL. ``close`` or ``with`` ends it.

    At most one job of a role waits at a time, while another may run. Raises ``StoreError`` for other databases.
    """

    def __init__(self, url: str, *, max_connections: int = 4) -> None:
        if url.partition("://")[0] not in ("postgresql", "postgresql+psycopg"):
            raise StoreError("Procrastinate needs PostgreSQL: postgresql+psycopg://user:password@host/database")
        connector = SyncPsycopgConnector(min_size=0, max_size=max_connections, **_connect_to(url))
        self._app = App(connector=connector).open()
        self._priorities = Priorities()
        self.database = Postgres(url)
        self._is_refused = False  # an append's transaction took no job

    def due(self, session: str, role: str, not_before: datetime | None = None, *, first: bool = False) -> None:
        """Enqueue a job; return once it is durable. A job whose time is over goes ahead of all others; with *first*, so
        it does when its time has come.

        Raises Procrastinate's ``ConnectorException``.
        """
        is_now = not_before is not None and not_before <= datetime.now(UTC)
        priority = FIRST if is_now or first else None
        try:
            self._defer(session, role, schedule_at=not_before, priority=priority)
        except AlreadyEnqueued:
            if is_now or first:  # one that waits for another time, or behind others, is not to
                at = None if is_now else not_before
                lock = _make_lock(session, role)
                self._app.connector.get_sync_connector().execute_query_all(_GO_AHEAD, lock=lock, at=at, priority=FIRST)

    def due_in(self, connection: Any, session: str, role: str) -> bool:
        """Enqueue a job on psycopg's *connection*, in its transaction; return whether a new job is there then."""
        try:
            with connection.transaction():  # a savepoint
                connection.execute(_WAIT_BRIEFLY)
                if connection.execute(_WAITS, [_make_lock(session, role)]).fetchone() is not None:
                    return False  # a worker may take that one before this transaction ends
                self._defer(session, role, connection=connection)
        except AlreadyEnqueued:  # just now
            return False
        except (ProcrastinateException, Error) as error:
            is_locked = isinstance(error.__cause__ or error, LockNotAvailable)  # another append may find it free
            if not (self._is_refused or connection.closed or is_locked):
                self._is_refused = True
                reason = type(error.__cause__ or error).__name__
                _LOG.warning("no job can be enqueued in an append's transaction (%s); it is enqueued after it", reason)
            return False
        return True

    def _defer(self, session: str, role: str, *, priority: int | None = None, **options: Any) -> None:
        lock, level = _make_lock(session, role), self._priorities.find(session) if priority is None else priority
        task = self._app.configure_task(COMPACT, queue=QUEUE, queueing_lock=lock, priority=level, **options)
        task.defer(session=escape(session), role=escape(role))
        if priority is None:
            self._priorities.find(session, counts=True)

    def create_tables(self) -> None:
        """Create Procrastinate's tables unless they exist; its own command migrates older ones."""
        try:
            if not self._app.check_connection():
                self._app.schema_manager.apply_schema()
        except ConnectorException:
            if not self._app.check_connection():  # else another process was faster
                raise

    def close(self) -> None:
        self._app.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def make_app(url: str, worker: Worker, dispatcher: ProcrastinateDispatcher) -> App:
    """Return a Procrastinate app with the jobs: compact, sweep every minute, and retry the jobs of killed workers."""
    worker.wake_by(dispatcher)
    app, threads = App(connector=PsycopgConnector(**_connect_to(url))), DaemonExecutor(MAX_THREADS)

    async def run_in_thread(call: partial[Any]) -> Any:
        return await asyncio.wrap_future(threads.submit(call))

    @app.task(name=COMPACT, queue=QUEUE, retry=_RETRY)
    async def compact(session: str, role: str) -> None:
        outcome = await run_in_thread(partial(worker.run, unescape(session), unescape(role)))
        if outcome.reason == Skip.LIMITED:
            await asyncio.sleep(LIMITED_PAUSE)
        if (at := find_retry_time(outcome)) is not None:
            first = outcome.reason == Skip.LEASED  # its worker may have been killed
            await run_in_thread(partial(dispatcher.due, unescape(session), unescape(role), at, first=first))

    @app.periodic(cron="* * * * *")
    @app.task(name=SWEEP, queue=UPKEEP, queueing_lock=SWEEP)
    async def sweep(timestamp: int) -> None:  # noqa: ARG001  (Procrastinate gives it)
        await run_in_thread(partial(worker.sweep, dispatcher))

    async def give_back(jobs: JobManager, job: Job) -> None:
        try:
            try:
                await jobs.retry_job(job, priority=FIRST)
            except UniqueViolation:  # another such job waits already: it goes ahead instead
                await jobs.finish_job(job, Status.FAILED, delete_job=True)
                if job.task_name == COMPACT:
                    session, role = (unescape(str(job.task_kwargs[name])) for name in ("session", "role"))
                    await run_in_thread(partial(dispatcher.due, session, role, datetime.now(UTC)))
        except ConnectorException as error:
            if not isinstance(error.__cause__, RaiseException):  # else another rescue was faster, or the job has ended
                reason = str(error.__cause__).partition("\n")[0]
                _LOG.warning("job %s of a killed worker waits for the next rescue: %s", job.id, reason)

    @app.periodic(cron="* * * * * */2")  # the sixth field is seconds
    @app.task(name=RESCUE, queue=UPKEEP, queueing_lock=RESCUE, pass_context=True)
    async def rescue(context: JobContext, timestamp: int) -> None:  # noqa: ARG001
        jobs = context.app.job_manager
        for queue in (QUEUE, UPKEEP):
            stalled = await jobs.get_stalled_jobs(queue=queue, seconds_since_heartbeat=STALLED)
            await asyncio.gather(*(give_back(jobs, job) for job in stalled))

    return app


async def work(url: str, worker: Worker, *, concurrency: int = 4, drain_seconds: float = 30.0, **options: Any) -> None:
    """Run jobs, *concurrency* at once, until SIGTERM or SIGINT. Running jobs then get *drain_seconds* to finish.

    Unfinished jobs return to the queue. *options* are Procrastinate's for a worker.
    """
    options = {
        "shutdown_graceful_timeout": drain_seconds,
        "fetch_job_polling_interval": POLL,
        "update_heartbeat_interval": HEARTBEAT,
        "stalled_worker_timeout": STALLED,
        "delete_jobs": "successful",
        **options,
    }
    with ProcrastinateDispatcher(url, max_connections=concurrency + 1) as dispatcher:
        await asyncio.to_thread(dispatcher.create_tables)

        async def run(queue: str, **more: Any) -> None:
            # An app each: the workers of one would share the clocks of sweeps and rescues.
            async with make_app(url, worker, dispatcher).open_async() as app:
                await app.run_worker_async(queues=[queue], **options | more)

        try:
            async with asyncio.TaskGroup() as workers:
                upkeep = workers.create_task(run(UPKEEP, wait=True, listen_notify=False, install_signal_handlers=False))
                try:
                    await run(QUEUE, concurrency=concurrency)
                finally:
                    upkeep.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
