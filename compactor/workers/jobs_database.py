"""The database of Procrastinate's jobs: its tables, what Procrastinate does not do there, and its errors in the log."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from datetime import datetime
from typing import Any
from weakref import WeakSet

from procrastinate import App, JobContext
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, ProcrastinateException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.signals import on_stop
from psycopg import BaseConnection, Error
from psycopg.errors import LockNotAvailable, RaiseException

from memory.errors import StoreError, StoreUnreachable
from memory.stores.base import escape
from memory.stores.connections import Connections
from memory.stores.postgres import Postgres

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
#: Seconds between two heartbeats of a worker, and seconds without one after which it counts as dead.
HEARTBEAT, STALLED = 1.0, 3.0
#: Seconds beyond those for its jobs that a worker takes to end while the database is away.
LEAVING = 3.0
_POOL = "psycopg.pool"
_LOG = logging.getLogger(__name__)


def require_postgresql(url: str) -> None:
    """Raise ``StoreError`` unless *url*, a store's URL, is PostgreSQL's."""
    if url.partition("://")[0] not in ("postgresql", "postgresql+psycopg"):
        raise StoreError("Procrastinate needs PostgreSQL: postgresql+psycopg://user:password@host/database")


def connect_to(url: str, connection_class: type[BaseConnection[Any]]) -> dict[str, Any]:
    """Return the connector's options for *url*, a store's URL; a silent server is given up as by a store.

    Raises ``StoreError`` unless the URL is PostgreSQL's.
    """
    require_postgresql(url)
    database = Postgres(url)
    return {
        "conninfo": database.conninfo,
        # No prepared statements: behind PgBouncer their names might be those of another client's.
        "kwargs": {**database.timeouts, "prepare_threshold": None},
        "connection_class": database.make_connection_class(connection_class),
    }


def create_tables(app: App, database: Postgres) -> None:
    """Create Procrastinate's tables unless they exist. Raises ``StoreError`` at once if *database* is away."""
    with closing(Connections(database)) as connections:  # Procrastinate would try for a minute
        connections.read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())
    try:
        if not app.check_connection():
            app.schema_manager.apply_schema()
    except ConnectorException:
        if not app.check_connection():  # else another process was faster
            raise


def make_lock(session: str, role: str) -> str:
    """Return the queueing lock of a role: at most one job with it waits."""
    return hashlib.sha256(f"{escape(session)}\0{escape(role)}".encode()).hexdigest()


def go_ahead(app: App, lock: str, at: datetime | None, priority: int) -> None:
    """Let the job that waits with *lock* wait until *at* and no longer, and tell workers of it."""
    app.connector.get_sync_connector().execute_query_all(_GO_AHEAD, lock=lock, at=at, priority=priority)


class AppendTransactions:
    """Enqueues jobs in the transactions of appends, which must neither fail nor wait for long because of them."""

    def __init__(self) -> None:
        self._is_refused = False  # one took no job, for a reason that stays

    def enqueue(self, connection: Any, lock: str, defer: Callable[[], object]) -> bool:
        """Call *defer* in the transaction of psycopg's *connection*, unless a job waits with *lock*; return whether a
        new job is there then."""
        try:
            with connection.transaction():  # a savepoint
                connection.execute(_WAIT_BRIEFLY)
                if connection.execute(_WAITS, [lock]).fetchone() is None:
                    defer()
                    return True  # else a worker may take the one that waits before this transaction ends
        except (ProcrastinateException, Error) as error:
            cause = error.__cause__ or error
            passes = connection.closed or isinstance(error, AlreadyEnqueued) or isinstance(cause, LockNotAvailable)
            if not (passes or self._is_refused):
                self._is_refused = True
                reason = type(cause).__name__
                _LOG.warning("no job can be enqueued in an append's transaction (%s); it is enqueued after it", reason)
        return False


async def run_worker(app: App, queue: str, run_again: Callable[[Job], None], **options: Any) -> None:
    """Run the jobs in *queue*, and call *run_again* with those of dead workers, until SIGTERM, SIGINT or ``cancel``.

    *options* are Procrastinate's. Raises ``StoreUnreachable`` if the database was away.
    """
    ids, running, handles_signals = set[int](), WeakSet[Any](), options.pop("install_signal_handlers", True)

    async def note_id(run: Callable[[], Awaitable[Any]], context: JobContext, _worker: object) -> Any:
        ids.add(context.job.worker_id or 0)
        running.add(asyncio.current_task())
        return await run()

    options = {
        "fetch_job_polling_interval": 1.0,  # for scheduled jobs
        "update_heartbeat_interval": HEARTBEAT,
        "stalled_worker_timeout": STALLED,
        "delete_jobs": "successful",
        "name": None,  # or it would log elsewhere
        **options,
        "install_signal_handlers": False,
        "worker_middleware": [note_id],
    }

    is_late = asyncio.Event()

    async def end_waits() -> None:
        if (seconds := options.get("shutdown_graceful_timeout")) is not None:
            await asyncio.sleep(seconds + LEAVING)
            is_late.set()
            await _abandon(jobs, *running)

    def stop() -> None:
        jobs.cancel()
        helpers.append(asyncio.create_task(end_waits()))

    jobs = asyncio.create_task(app.run_worker_async(queues=[queue], **options))
    helpers = [asyncio.create_task(_beat(app.job_manager, queue, ids, run_again))]
    try:
        with on_stop(stop) if handles_signals else nullcontext():
            await jobs
    except asyncio.CancelledError:
        if (caller := asyncio.current_task()) is None or caller.cancelling():
            await _abandon(*running)  # if it was told to end twice
            raise
        if is_late.is_set():
            await _abandon(*running)
            raise StoreUnreachable(
                "the database of the jobs was away as the worker ended; others get its jobs"
            ) from None
    except ConnectorException as error:
        raise StoreUnreachable(f"the database of the jobs failed ({_find_reason(error)})") from error
    else:  # it ends as if it was told to
        if options.get("wait", True):
            raise StoreUnreachable("the database of the jobs was away, which ended the worker; start it again")
    finally:
        for helper in helpers:
            helper.cancel()


async def _abandon(*tasks: asyncio.Task[Any]) -> None:
    """Cancel *tasks* until they have ended: at first jobs return to the queue, then they wait no longer for that."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=1.0)


async def _beat(jobs: JobManager, queue: str, workers: Collection[int], run_again: Callable[[Job], None]) -> None:
    """Show every second that the *workers* of this process live: Procrastinate's own heartbeats end with SIGTERM,
    before its jobs do. Give back the jobs of those that have not shown it."""
    while True:
        await asyncio.sleep(HEARTBEAT)
        try:
            for worker in workers:
                await jobs.update_heartbeat(worker)
            await give_back(jobs, queue, run_again)
        except ConnectorException:
            pass  # the worker finds that by itself
        except Exception as error:  # noqa: BLE001  (else it would end unnoticed)
            _LOG.warning("heartbeats failed, and are tried again in %g seconds: %s", HEARTBEAT, type(error).__name__)


async def give_back(jobs: JobManager, queue: str, run_again: Callable[[Job], None]) -> None:
    """Call *run_again* with each job in *queue* whose worker is dead, and delete that job."""
    for job in await jobs.get_stalled_jobs(queue=queue, seconds_since_heartbeat=STALLED):
        await asyncio.to_thread(run_again, job)  # first: if this process is killed now, there are two
        with suppress(ConnectorException):  # another process was faster, or the job has ended
            await jobs.finish_job(job, Status.FAILED, delete_job=True)


@contextmanager
def shorten_log() -> Iterator[None]:
    """Log in one line, without a traceback, that the database of the jobs failed."""
    with ExitStack() as filters:
        for logger in map(logging.getLogger, ("procrastinate.worker", "procrastinate.utils", "asyncio", _POOL)):
            logger.addFilter(_shorten)
            filters.callback(logger.removeFilter, _shorten)
        yield


def _shorten(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if type(error) is ConnectorException:  # what derives from it is an answer of the database
        if isinstance(error.__cause__, RaiseException):
            text = "a job has ended that was given to another worker meanwhile"
        else:
            text = f"the database of the jobs failed: {_find_reason(error)}"
        record.msg, record.args, record.exc_info = text, (), None
    return record.name != _POOL  # each of its attempts to connect


def _find_reason(error: ConnectorException) -> str:
    return str(error.__cause__ or error).strip().partition("\n")[0]
