"""Celery: jobs in RabbitMQ or Redis, for hosts that already run it. Needs the extra ``celery``."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.beat import EmbeddedService, Scheduler

from memory.errors import StoreError
from memory.stores.base import escape, unescape

from ..events import Skip
from .due import BACKING_OFF, Worker, job_time

__all__ = ["CeleryDispatcher", "make_app", "work"]

QUEUE, COMPACT, SWEEP = "compactor", "compactor.compact", "compactor.sweep"
#: Maximum seconds that a job is delayed: a worker keeps it in memory meanwhile. An early job is delayed again.
MAX_DELAY = 60.0
#: Seconds after which Redis gives a killed worker's job to another worker; RabbitMQ does so at once. It exceeds the run
#: time and the delay of a job: otherwise Redis would give it to a second worker too, and both would enqueue the next.
REDIS_TIMEOUT = 180
#: A job that raised, because the store was unreachable, is retried after 2, 4, 8... seconds.
_MAX_RETRIES, _MAX_WAIT = 10, 600


class CeleryDispatcher:
    """A ``Dispatcher`` whose jobs are in *broker*: its URL, or an app of ``make_app``.

    Celery does not merge jobs. A job that finds nothing due, or a back-off that another job already waits for, is cheap
    and enqueues no successor.
    """

    def __init__(self, broker: str | Celery) -> None:
        self._app = make_app(broker) if isinstance(broker, str) else broker

    def due(self, session: str, role: str, not_before: datetime | None = None) -> None:
        """Enqueue a job; return once the broker has it. Raises kombu's ``OperationalError`` if it is unreachable."""
        _send(self._app, escape(session), escape(role), not_before)

    def close(self) -> None:
        self._app.close()


def make_app(broker: str, worker: Worker | None = None) -> Celery:
    """Return a Celery app. With a *worker*, it has the jobs: compact, and sweep every minute."""
    app = Celery("compactor", broker=broker)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=True,  # a killed worker's job goes to another
        task_reject_on_worker_lost=True,
        task_publish_retry_policy={"max_retries": 3, "interval_start": 0, "interval_step": 0.2},
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": REDIS_TIMEOUT} if broker.startswith("redis") else {},
        beat_schedule={SWEEP: {"task": SWEEP, "schedule": 60.0}},
    )
    if worker is not None:
        _add_jobs(app, worker)
    return app


def _send(app: Celery, session: str, role: str, not_before: datetime | None, *, waits: bool = False) -> None:
    """Send a job. *waits*: this job waits for the end of a back-off."""
    now = datetime.now(UTC)
    eta = None if not_before is None or not_before <= now else min(not_before, now + timedelta(seconds=MAX_DELAY))
    app.send_task(COMPACT, (session, role, waits), eta=eta)


def _add_jobs(app: Celery, worker: Worker) -> None:
    worker.wake_by(CeleryDispatcher(app))
    retry = {"retry_backoff": 2, "retry_backoff_max": _MAX_WAIT, "max_retries": _MAX_RETRIES}

    @app.task(name=COMPACT, shared=False, autoretry_for=(StoreError, OSError), **retry)  # type: ignore[untyped-decorator]
    def compact(session: str, role: str, waits: bool = False) -> None:
        outcome = worker.run(unescape(session), unescape(role))
        is_waited_out = outcome.reason == BACKING_OFF and not waits  # else each job would start its own chain
        if not is_waited_out and (at := job_time(outcome)) is not None:
            _send(app, session, role, at, waits=outcome.reason != Skip.LEASED)

    @app.task(name=SWEEP, shared=False, expires=60.0)  # type: ignore[untyped-decorator]
    def sweep() -> None:
        worker.sweep(CeleryDispatcher(app))


def work(broker: str, worker: Worker, *, concurrency: int = 4, **options: Any) -> None:
    """Run jobs, *concurrency* at once, until SIGTERM or SIGINT; running jobs finish first, however long they take.

    If the process is killed meanwhile, other workers get its jobs. *options* are Celery's for a worker.
    """
    app = make_app(broker, worker)
    name = f"compactor-{os.getpid()}@{socket.gethostname()}"
    # A thread, because Celery's beat process would outlive a killed worker.
    beat = EmbeddedService(app, thread=True, scheduler_cls=Scheduler)  # this scheduler writes no file
    beat.start()
    try:
        app.Worker(hostname=name, pool="threads", concurrency=concurrency, queues=[QUEUE], **options).start()
    finally:
        beat.stop()
