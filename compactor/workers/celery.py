"""Celery: jobs in RabbitMQ or Redis, for hosts that already run it. Needs the extra ``celery``."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery

from memory.errors import StoreError
from memory.stores.base import escape, unescape

from .brokers import Repeated, make_level, run_worker, set_up
from .due import BACKING_OFF, STORE_RETRIES, STORE_RETRY, Worker, run_job
from .priority import FIRST, Priorities

__all__ = ["CeleryDispatcher", "make_app", "work"]

QUEUE, COMPACT = "compactor", "compactor.compact"
#: Maximum seconds that a job is delayed: a worker keeps it in memory meanwhile. An early job is delayed again.
MAX_DELAY = 60.0
SWEEP_SECONDS = 60.0


class CeleryDispatcher:
    """A ``Dispatcher`` whose jobs are in *broker*: its URL, or an app of ``make_app``.

    Celery does not merge jobs. A job that finds nothing due, or a back-off that another job already waits for, is cheap
    and enqueues no successor.
    """

    def __init__(self, broker: str | Celery) -> None:
        self._app = make_app(broker) if isinstance(broker, str) else broker
        self.priorities = Priorities()

    def due(self, session: str, role: str, not_before: datetime | None = None) -> None:
        """Enqueue a job; return once the broker has it. A job whose time is over goes ahead of all others.

        Raises kombu's ``OperationalError`` if the broker is unreachable.
        """
        is_now = not_before is not None and not_before <= datetime.now(UTC)
        priority = FIRST if is_now else self.priorities.find(session, counts=True)
        _send(self._app, escape(session), escape(role), not_before, priority)

    def close(self) -> None:
        self._app.close()


def make_app(broker: str, worker: Worker | None = None) -> Celery:
    """Return a Celery app. With a *worker*, it has the jobs, and sweeps every minute."""
    app = Celery("compactor", broker=broker)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=True,  # a killed worker's job goes to another
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_enable_prefetch_count_reduction=False,  # else a worker takes no more jobs once RabbitMQ was restarted
        broker_connection_retry_on_startup=True,
        worker_redirect_stdouts=False,  # else the command's own lines are Celery's warnings
    )
    set_up(app, broker)
    if worker is not None:
        _add_jobs(app, worker)
    return app


def _send(
    app: Celery, session: str, role: str, not_before: datetime | None, priority: int, *, waits: bool = False
) -> None:
    """Send a job. *waits*: this job waits for the end of a back-off."""
    now = datetime.now(UTC)
    eta = None if not_before is None or not_before <= now else min(not_before, now + timedelta(seconds=MAX_DELAY))
    app.send_task(COMPACT, (session, role, waits), eta=eta, priority=make_level(app, priority))


def _add_jobs(app: Celery, worker: Worker) -> None:
    dispatcher = CeleryDispatcher(app)
    worker.wake_by(dispatcher)

    @app.task(  # type: ignore[untyped-decorator]
        name=COMPACT,
        shared=False,
        autoretry_for=(StoreError, OSError),
        default_retry_delay=STORE_RETRY,
        max_retries=STORE_RETRIES,
        retry_kwargs={"priority": make_level(app, FIRST)},  # it was its turn; its last worker may have been killed
    )
    def compact(session: str, role: str, waits: bool = False) -> None:
        retry = run_job(worker, session, role)
        if retry is None or (retry.reason == BACKING_OFF and not waits):  # else each job would start its own chain
            return
        priority = FIRST if retry.first else dispatcher.priorities.find(unescape(session))
        _send(app, session, role, retry.at, priority, waits=not retry.first)

    class Sweeps(Repeated):
        seconds = SWEEP_SECONDS

        def run(self, app: Celery) -> None:  # noqa: ARG002
            worker.sweep(dispatcher)

    app.steps["consumer"].add(Sweeps)


def work(broker: str, worker: Worker, *, concurrency: int = 4, **options: Any) -> None:
    """Run jobs, *concurrency* at once, until SIGTERM or SIGINT; running jobs finish first, however long they take.

    If the process is killed meanwhile, other workers get its jobs. *options* are Celery's for a worker.
    """
    app = make_app(broker, worker)
    name = f"compactor-{os.getpid()}@{socket.gethostname()}"
    options = {"without_mingle": True, "without_gossip": True, **options}  # workers need not know of each other
    controller = app.Worker(hostname=name, pool="threads", concurrency=concurrency, queues=[QUEUE], **options)
    run_worker(controller, name)
