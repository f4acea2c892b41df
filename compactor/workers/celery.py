"""Celery: jobs in RabbitMQ or Redis, for hosts that already run it. Needs the extra ``celery``."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.bootsteps import StartStopStep
from celery.worker.consumer import Consumer, Tasks
from kombu.connection import Connection

from memory.errors import StoreError
from memory.stores.base import escape, unescape

from ..events import Skip
from ..timers import DaemonExecutor
from .due import BACKING_OFF, LIMITED_PAUSE, STORE_RETRIES, STORE_RETRY, Worker, find_retry_time
from .priority import FIRST, Priorities

__all__ = ["CeleryDispatcher", "make_app", "work"]

QUEUE, COMPACT, SWEEP = "compactor", "compactor.compact", "compactor.sweep"
#: The highest priority of a job; the lowest is 0.
MAX_PRIORITY = 9
#: Maximum seconds that a job is delayed: a worker keeps it in memory meanwhile. An early job is delayed again.
MAX_DELAY = 60.0
#: On Redis, seconds between two heartbeats of a worker, and seconds without one after which its jobs are another's.
HEARTBEAT, STALLED = 1.0, 3.0
#: Seconds after which a job that was given back is given back again unless a worker has it: a worker that is killed
#: while it receives a job leaves no trace of it.
LOST = 15.0
SWEEP_SECONDS = 60.0
_REDIS = {
    "unacked_key": f"{QUEUE}.unacked",  # its own: other apps on that server show no heartbeats
    "unacked_index_key": f"{QUEUE}.unacked_index",
    "unacked_mutex_key": f"{QUEUE}.unacked_mutex",
    "priority_steps": [*range(MAX_PRIORITY + 1)],
    "queue_order_strategy": "priority",
}
#: Moves one message from those under way into the queue, unless another worker was faster. It stays listed under its
#: new tag, as if under way, until it is acknowledged.
_GIVE_BACK = """if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or ARGV[2] + 1) <= tonumber(ARGV[2]) then
    redis.call('ZREM', KEYS[1], ARGV[1])
    redis.call('HDEL', KEYS[2], ARGV[1])
    redis.call('RPUSH', KEYS[3], ARGV[3])
    redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
    redis.call('ZADD', KEYS[1], ARGV[6], ARGV[4])
end"""
_SWEEPS = DaemonExecutor(1, "compactor-sweeps")
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
    """Return a Celery app. With a *worker*, it has the jobs: compact, and sweep every minute."""
    app, is_redis = Celery("compactor", broker=broker), broker.startswith(("redis", "sentinel"))
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
    )
    app.amqp.Connection = PatientConnection
    app.steps["consumer"].add(Upkeep)
    if worker is not None:
        _add_jobs(app, worker)
    return app


def _send(
    app: Celery, session: str, role: str, not_before: datetime | None, *, waits: bool = False, priority: int = 0
) -> None:
    """Send a job. *waits*: this job waits for the end of a back-off."""
    now = datetime.now(UTC)
    eta = None if not_before is None or not_before <= now else min(not_before, now + timedelta(seconds=MAX_DELAY))
    app.send_task(COMPACT, (session, role, waits), eta=eta, priority=_make_level(app, priority))


def _make_level(app: Celery, priority: int) -> int:
    below_first = min(FIRST - priority, MAX_PRIORITY)
    is_redis = "priority_steps" in app.conf.broker_transport_options  # 0 is its highest
    return below_first if is_redis else MAX_PRIORITY - below_first


def _add_jobs(app: Celery, worker: Worker) -> None:
    dispatcher = CeleryDispatcher(app)
    worker.wake_by(dispatcher)
    retry = {"autoretry_for": (StoreError, OSError), "default_retry_delay": STORE_RETRY, "max_retries": STORE_RETRIES}
    first = {"priority": _make_level(app, FIRST)}  # it was its turn, and its worker before may have been killed

    @app.task(name=COMPACT, shared=False, retry_kwargs=first, **retry)  # type: ignore[untyped-decorator]
    def compact(session: str, role: str, waits: bool = False) -> None:
        outcome = worker.run(unescape(session), unescape(role))
        if outcome.reason == Skip.LIMITED:
            time.sleep(LIMITED_PAUSE)
        is_waited_out = outcome.reason == BACKING_OFF and not waits  # else each job would start its own chain
        if not is_waited_out and (at := find_retry_time(outcome)) is not None:
            is_leased = outcome.reason == Skip.LEASED  # its worker may have been killed
            priority = FIRST if is_leased else dispatcher.priorities.find(unescape(session))
            _send(app, session, role, at, waits=not is_leased, priority=priority)

    @app.task(name=SWEEP, shared=False)  # type: ignore[untyped-decorator]
    def sweep() -> None:
        try:
            worker.sweep(dispatcher)
        except Exception as error:  # noqa: BLE001  (whatever store or broker may raise)
            _LOG.warning("the sweep failed; the next is in a minute: %s", error)


class PatientConnection(Connection):
    """Looks every second whether the broker is back; Celery would wait longer each time."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        return super().ensure_connection(*args, **{"interval_start": 1, "interval_step": 0, **options})  # type: ignore[no-untyped-call]


class Upkeep(StartStopStep):  # type: ignore[misc]
    """Sweeps, in its own thread, not behind other jobs; and gives killed workers' jobs to the next worker on Redis,
    where nobody else does."""

    requires = (Tasks,)
    _timers: Sequence[Any] = ()  # Celery also stops what has not started

    def start(self, consumer: Consumer) -> None:
        channel, every = consumer.task_consumer.channel, consumer.timer.call_repeatedly
        self._timers = [every(SWEEP_SECONDS, _SWEEPS.run, (consumer.app.tasks[SWEEP],))]
        if hasattr(channel, "unacked_index_key"):
            self._timers.append(every(HEARTBEAT, self.beat, (channel,)))

    def stop(self, consumer: Consumer) -> None:  # noqa: ARG002
        for timer in self._timers:
            timer.cancel()

    @staticmethod
    def beat(channel: Any) -> None:
        """Show that this worker lives, and put the jobs of those that do not at the head of the queue."""
        jobs, index = channel.unacked_key, channel.unacked_index_key
        with channel.conn_or_acquire() as redis:
            now, _ = redis.time()
            if own := dict.fromkeys(channel.qos._delivered, now):
                redis.zadd(index, own, xx=True)
            for tag in redis.zrangebyscore(index, 0, now - STALLED):
                if (job := redis.hget(jobs, tag)) is not None:
                    message, *route = json.loads(job)
                    # Another tag: its worker may live after all, and acknowledge the old one.
                    new = str(uuid.uuid4())
                    message["properties"] |= {"priority": 0, "delivery_tag": new}
                    again = json.dumps(message), new, json.dumps([message, *route]), now + LOST - STALLED
                    redis.eval(_GIVE_BACK, 3, index, jobs, QUEUE, tag, now - STALLED, *again)


def work(broker: str, worker: Worker, *, concurrency: int = 4, **options: Any) -> None:
    """Run jobs, *concurrency* at once, until SIGTERM or SIGINT; running jobs finish first, however long they take.

    If the process is killed meanwhile, other workers get its jobs. *options* are Celery's for a worker.
    """
    app = make_app(broker, worker)
    name = f"compactor-{os.getpid()}@{socket.gethostname()}"
    options = {"without_mingle": True, "without_gossip": True, **options}  # workers need not know of each other
    app.Worker(hostname=name, pool="threads", concurrency=concurrency, queues=[QUEUE], **options).start()
