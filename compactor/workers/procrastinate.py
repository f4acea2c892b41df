"""Procrastinate: jobs in PostgreSQL, such as the database of the sessions. Needs the extra ``procrastinate``."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, ProcrastinateException
from procrastinate.jobs import Status
from psycopg import Error
from psycopg.errors import LockNotAvailable

from memory.errors import StoreError
from memory.stores.base import escape, unescape
from memory.stores.postgres import Postgres

from ..timers import DaemonExecutor
from .due import STORE_RETRIES, STORE_RETRY, Worker, run_job
from .priority import FIRST, Priorities

__all__ = ["ProcrastinateDispatcher", "make_app", "work"]

QUEUE, COMPACT = "compactor", "compactor.compact"
#: Sweeps and rescues have a queue and a worker of their own, so that they wait for no call.
UPKEEP, SWEEP, RESCUE = "compactor.upkeep", "compactor.sweep", "compactor.rescue"
#: Seconds between two heartbeats of a worker, and seconds without one after which it counts as dead.
HEARTBEAT, STALLED = 1.0, 3.0
#: Maximum seconds between two polls for scheduled jobs.
POLL = 1.0
#: Maximum threads for jobs; Procrastinate runs no more of them than its concurrency.
MAX_THREADS = 1_000
_RETRY = RetryStrategy(max_attempts=STORE_RETRIES, wait=STORE_RETRY)
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
        first = first or (not_before is not None and not_before <= datetime.now(UTC))
        try:
            self._defer(session, role, schedule_at=not_before, priority=FIRST if first else None)
        except AlreadyEnqueued:
            if first:  # one that waits for another time, or behind others, is not to
                connector, lock = self._app.connector.get_sync_connector(), _make_lock(session, role)
                connector.execute_query_all(_GO_AHEAD, lock=lock, at=not_before, priority=FIRST)

    def due_in(self, connection: Any, session: str, role: str) -> bool:
        """Enqueue a job on psycopg's *connection*, in its transaction; return whether a new job is there then."""
        try:
            with connection.transaction():  # a savepoint
                connection.execute(_WAIT_BRIEFLY)
                if connection.execute(_WAITS, [_make_lock(session, role)]).fetchone() is None:
                    self._defer(session, role, connection=connection)
                    return True  # else a worker may take the one that waits before this transaction ends
        except (ProcrastinateException, Error) as error:
            cause = error.__cause__ or error
            passes = connection.closed or isinstance(error, AlreadyEnqueued) or isinstance(cause, LockNotAvailable)
            if not (passes or self._is_refused):
                self._is_refused = True
                reason = type(cause).__name__
                _LOG.warning("no job can be enqueued in an append's transaction (%s); it is enqueued after it", reason)
        return False

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


def shorten_log(record: logging.LogRecord) -> bool:
    """Say in one line, without a traceback, that the database of the jobs failed. A logger's filter."""
    error = record.exc_info[1] if record.exc_info else None
    if type(error) is ConnectorException:  # what derives from it is an answer of the database
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        record.msg, record.args, record.exc_info = f"the database of the jobs failed: {reason}", (), None
    return True


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
        "name": None,  # or it would log elsewhere
        **options,
    }
    with ExitStack() as filters, ProcrastinateDispatcher(url, max_connections=concurrency + 1) as dispatcher:
        for logger in map(logging.getLogger, ("procrastinate.worker", "procrastinate.utils", "asyncio")):
            logger.addFilter(shorten_log)
            filters.callback(logger.removeFilter, shorten_log)
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
