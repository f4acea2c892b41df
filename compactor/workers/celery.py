"""Celery: jobs in RabbitMQ or Redis, for hosts that already run it. Needs the extra ``celery``."""

from __future__ import annotations

import logging
import os
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.beat import EmbeddedService, Scheduler
from celery.schedules import BaseSchedule, schedstate

from memory.errors import StoreError
from memory.stores.base import escape, unescape

from ..events import Skip
from .due import BACKING_OFF, LIMITED_PAUSE, Worker, find_retry_time
from .priority import FIRST, Priorities

__all__ = ["CeleryDispatcher", "make_app", "work"]

QUEUE, COMPACT, SWEEP, RESCUE = "compactor", "compactor.compact", "compactor.sweep", "compactor.rescue"
#: The highest priority of a job; the lowest is 0.
MAX_PRIORITY = 9
#: Maximum seconds that a job is delayed: a worker keeps it in memory meanwhile. An early job is delayed again.
MAX_DELAY = 60.0
#: Seconds after which Redis gives a killed worker's job to another worker; RabbitMQ does so at once. It exceeds the run
#: time and the delay of a job: otherwise Redis would give it to a second worker too, and both would enqueue the next.
REDIS_TIMEOUT = 180
_REDIS = {
    "visibility_timeout": REDIS_TIMEOUT,
    "unacked_restore_throttle": 1,  # workers look for such jobs every 10 seconds, not every 100
    "priority_steps": [*range(MAX_PRIORITY + 1)],
    "queue_order_strategy": "priority",
}
#: A job that raised, because the store was unreachable, is retried after 2, 4, 8... seconds.
_MAX_RETRIES, _MAX_WAIT = 10, 600
#: Seconds until a rescue that failed runs again.
_PAUSE = 5.0

_LOG = logging.getLogger(__name__)


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
        _send(self._app, escape(session), escape(role), not_before, priority=priority)

    def close(self) -> None:
        self._app.close()


def make_app(broker: str, worker: Worker | None = None) -> Celery:
    """Return a Celery app. With a *worker*, it has the jobs: compact, sweep every minute, and on Redis rescue, whenever
    a lease may have expired."""
    app, is_redis = Celery("compactor", broker=broker), broker.startswith(("redis", "sentinel"))
    schedule = {SWEEP: {"task": SWEEP, "schedule": 60.0}}
    if is_redis:  # others give a killed worker's job to the next one at once
        schedule[RESCUE] = {"task": RESCUE, "schedule": RescueSchedule()}
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=True,  # a killed worker's job goes to another
        task_reject_on_worker_lost=True,
        task_publish_retry_policy={"max_retries": 3, "interval_start": 0, "interval_step": 0.2},
        task_queue_max_priority=MAX_PRIORITY,  # RabbitMQ's
        worker_prefetch_multiplier=1,
        worker_enable_prefetch_count_reduction=False,  # else a worker takes no more jobs once RabbitMQ was restarted
        broker_connection_retry_on_startup=True,
        broker_transport_options=_REDIS if is_redis else {},
        beat_schedule=schedule,
    )
    if worker is not None:
        _add_jobs(app, worker)
    return app


def _send(
    app: Celery, session: str, role: str, not_before: datetime | None, *, waits: bool = False, priority: int = 0
) -> None:
    """Send a job. *waits*: this job waits for the end of a back-off."""
    now = datetime.now(UTC)
    eta = None if not_before is None or not_before <= now else min(not_before, now + timedelta(seconds=MAX_DELAY))
    level = max(0, MAX_PRIORITY - FIRST + priority)
    if "priority_steps" in app.conf.broker_transport_options:  # on Redis, 0 is the highest
        level = MAX_PRIORITY - level
    app.send_task(COMPACT, (session, role, waits), eta=eta, priority=level)


def _add_jobs(app: Celery, worker: Worker) -> None:
    dispatcher = CeleryDispatcher(app)
    worker.wake_by(dispatcher)
    retry = {"retry_backoff": 2, "retry_backoff_max": _MAX_WAIT, "max_retries": _MAX_RETRIES}

    @app.task(name=COMPACT, shared=False, autoretry_for=(StoreError, OSError), **retry)  # type: ignore[untyped-decorator]
    def compact(session: str, role: str, waits: bool = False) -> None:
        outcome = worker.run(unescape(session), unescape(role))
        worker.end_rescue(unescape(session), unescape(role), outcome)
        if outcome.reason == Skip.LIMITED:
            time.sleep(LIMITED_PAUSE)
        is_waited_out = outcome.reason == BACKING_OFF and not waits  # else each job would start its own chain
        if not is_waited_out and (at := find_retry_time(outcome)) is not None:
            is_leased = outcome.reason == Skip.LEASED  # its worker may have been killed
            priority = FIRST if is_leased else dispatcher.priorities.find(unescape(session))
            _send(app, session, role, at, waits=not is_leased, priority=priority)

    @app.task(name=SWEEP, shared=False)  # type: ignore[untyped-decorator]
    def sweep() -> None:
        worker.sweep(dispatcher)

    @app.task(name=RESCUE, shared=False)  # type: ignore[untyped-decorator]
    def rescue() -> float:
        return worker.rescue(dispatcher)


class RescueSchedule(BaseSchedule):  # type: ignore[misc]
    """Due at the time that ``Worker.rescue`` names."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0

    def is_due(self, last_run_at: datetime) -> schedstate:  # noqa: ARG002
        left = self.at - time.monotonic()
        return schedstate(left <= 0, max(left, 0.0))


class Beat(Scheduler):  # type: ignore[misc]
    """Runs sweeps and rescues in its own thread, not behind other jobs. It writes no file."""

    def apply_entry(self, entry: Any, producer: Any = None) -> None:  # noqa: ARG002
        seconds = _PAUSE
        try:
            seconds = self.app.tasks[entry.task]()
        except Exception:  # noqa: BLE001  (whatever store or broker may raise: the next run tries again)
            _LOG.exception("%s failed; it runs again", entry.task)
        if isinstance(entry.schedule, RescueSchedule):
            entry.schedule.at = time.monotonic() + seconds


def work(broker: str, worker: Worker, *, concurrency: int = 4, **options: Any) -> None:
    """Run jobs, *concurrency* at once, until SIGTERM or SIGINT; running jobs finish first, however long they take.

    If the process is killed meanwhile, other workers get its jobs. *options* are Celery's for a worker.
    """
    app = make_app(broker, worker)
    name = f"compactor-{os.getpid()}@{socket.gethostname()}"
    options = {"without_mingle": True, "without_gossip": True, **options}  # workers need not know of each other
    # A thread, because Celery's beat process would outlive a killed worker.
    beat = EmbeddedService(app, thread=True, scheduler_cls=Beat)
    beat.start()
    try:
        app.Worker(hostname=name, pool="threads", concurrency=concurrency, queues=[QUEUE], **options).start()
    finally:
        beat.stop()
