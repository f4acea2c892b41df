"""Celery's brokers: priorities, reconnection, and on Redis the jobs of workers that were killed.

RabbitMQ gives such jobs to the next worker at once, Redis after an hour. So each worker on Redis shows every second
which jobs it has, and puts those that nobody has shown for three seconds at the head of the queue.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

from celery import Celery
from celery.bootsteps import StartStopStep
from celery.exceptions import CPendingDeprecationWarning
from celery.signals import task_received, worker_shutting_down
from celery.worker.consumer import Consumer, Tasks
from celery.worker.request import Request
from kombu.connection import Connection

from .priority import FIRST

#: The highest priority of a job; the lowest is 0.
MAX_PRIORITY = 9
#: On Redis, seconds between two heartbeats of a worker, and seconds without one after which its jobs are another's.
HEARTBEAT, STALLED = 1.0, 3.0
#: Seconds after which a job that was given back is given back again unless a worker has it: a worker that is killed
#: while it receives a job leaves no trace of it.
LOST = 15.0
_REDIS = {
    "unacked_key": "compactor.unacked",  # its own: other apps on that server show no heartbeats
    "unacked_index_key": "compactor.unacked_index",
    "unacked_mutex_key": "compactor.unacked_mutex",
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
#: The logger of what ends a worker; the others of those below are of jobs.
_WORKER = "celery.worker"
_ENDED = "a job has ended while its broker was away (%s): it runs again"
_LOG = logging.getLogger(__name__)


class PatientConnection(Connection):
    """Looks every second whether the broker is back; Celery would wait longer each time."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        return super().ensure_connection(*args, **{"interval_start": 1, "interval_step": 0, **options})  # type: ignore[no-untyped-call]

    @property
    def connection_errors(self) -> tuple[type[BaseException], ...]:
        """Kombu's, and the one that it raises if a channel is used that it has closed: when Redis is restarted, a job
        under way is acknowledged there, and a worker that does not know the error ends."""
        return (*super().connection_errors, AttributeError)


def set_up(app: Celery, broker: str) -> None:
    """Prepare *app* for the URL *broker*."""
    app.amqp.Connection = PatientConnection
    app.conf.task_queue_max_priority = MAX_PRIORITY  # RabbitMQ's
    if broker.startswith(("redis", "sentinel")):
        app.conf.broker_transport_options = _REDIS
        app.steps["consumer"].add(Heartbeats)
    else:
        app.steps["consumer"].add(LastHeartbeats)


def make_level(app: Celery, priority: int) -> int:
    """Return the broker's level for a *priority* of at most ``FIRST``."""
    below_first = min(FIRST - priority, MAX_PRIORITY)
    is_redis = "priority_steps" in app.conf.broker_transport_options  # 0 is its highest
    return below_first if is_redis else MAX_PRIORITY - below_first


def run_worker(controller: Any, name: str) -> None:
    """Run Celery's worker *controller* of that *name* until a signal. Raises ``RuntimeError`` if it failed."""
    told = threading.Event()  # for SIGINT, Celery sets the exit code of an error

    def note_signal(**_about: Any) -> None:
        told.set()

    worker_shutting_down.connect(note_signal, sender=name)
    with shorten_log():
        controller.start()
    if controller.exitcode and not told.is_set():
        raise RuntimeError("Celery's worker has ended with an error, which it has logged")


@contextmanager
def shorten_log() -> Iterator[None]:
    """Log errors of the broker in one line, without a traceback, also where Celery does not."""
    with warnings.catch_warnings(), ExitStack() as filters:
        warnings.simplefilter("ignore", CPendingDeprecationWarning)  # advice whenever a connection breaks
        for logger in map(logging.getLogger, (_WORKER, "celery.app.trace", "celery.worker.request")):
            logger.addFilter(_shorten)
            filters.callback(logger.removeFilter, _shorten)
        yield


def _shorten(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    is_brokers = type(error).__module__.partition(".")[0] in ("amqp", "kombu", "redis")
    if is_brokers or str(record.msg).startswith("Couldn't ack"):
        record.exc_info = None
        if record.name != _WORKER:
            record.msg, record.args = _ENDED, (type(error).__name__,)
            record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


class Repeated(StartStopStep):  # type: ignore[misc]
    """Calls ``run`` every ``seconds`` on a thread of its own: not behind jobs, and until the last of them has ended."""

    requires = (Tasks,)
    seconds: float
    run: Callable[[Celery], None]

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, consumer: Consumer) -> None:
        """Start the thread, after the first connection. Celery calls this after each."""
        if self._thread is None:
            name = f"compactor-{type(self).__name__.lower()}"
            self._thread = threading.Thread(target=self._repeat, args=(consumer.app,), name=name, daemon=True)
            self._thread.start()

    def shutdown(self, consumer: Consumer) -> None:  # noqa: ARG002
        """End the thread. Celery calls this when all jobs have ended, after SIGTERM, too."""
        self._ended.set()

    def _repeat(self, app: Celery) -> None:
        while not self._ended.wait(self.seconds):
            try:
                self.run(app)
            except Exception as error:  # noqa: BLE001  (whatever store or broker may raise)
                name = type(self).__name__.lower()
                _LOG.warning("%s failed, and are tried again in %g seconds: %s", name, self.seconds, error)


class LastHeartbeats(Repeated):
    """Shows RabbitMQ after SIGTERM that this worker lives: Celery does so only while its event loop runs."""

    def start(self, consumer: Consumer) -> None:
        """Do nothing: the event loop is about to run."""

    def close(self, consumer: Consumer) -> None:
        link = consumer.connection
        if link is None or not link.connected:  # it would connect anew, and raise if the broker is away
            return
        if interval := link.get_heartbeat_interval():
            self._connection, self.seconds = link.connection, interval / 2
            super().start(consumer)

    def run(self, app: Celery) -> None:  # noqa: ARG002
        self._connection.send_heartbeat()


class Heartbeats(Repeated):
    """Shows which jobs this worker has, and gives back those that nobody shows."""

    seconds = HEARTBEAT

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._lock = threading.Lock()  # guards _messages
        self._messages = WeakSet[Any]()  # received since the last connection; Celery drops those that are acknowledged
        self._channel = self._timer = None  # Celery also stops what has not started
        task_received.connect(self._add, sender=consumer)

    def _add(self, request: Request, **_more: Any) -> None:
        with self._lock:
            self._messages.add(request.message)

    def start(self, consumer: Consumer) -> None:
        """Run on Celery's event loop: others are to get the jobs of a worker whose loop hangs."""
        with self._lock:
            self._messages.clear()  # Celery has dropped its jobs too, except those that run
        self._channel = consumer.task_consumer.channel
        self._timer = consumer.timer.call_repeatedly(HEARTBEAT, self.run, (consumer.app,))

    def stop(self, consumer: Consumer) -> None:  # noqa: ARG002
        if self._timer is not None:
            self._timer.cancel()

    def close(self, consumer: Consumer) -> None:
        """Run on a thread after SIGTERM, when the event loop has ended and jobs still run."""
        super().start(consumer)

    def run(self, app: Celery) -> None:  # noqa: ARG002
        with self._lock:
            tags = [message.delivery_tag for message in self._messages]
        show_alive(self._channel, tags)
        give_back(self._channel)


def show_alive(channel: Any, tags: Collection[str]) -> None:
    """Note the time at the messages with these *tags*, unless they are no longer under way."""
    with channel.conn_or_acquire() as redis:
        now, _ = redis.time()
        if tags:
            redis.zadd(channel.unacked_index_key, dict.fromkeys(tags, now), xx=True)


def give_back(channel: Any) -> None:
    """Put messages that nobody shows at the head of their queue."""
    jobs, index = channel.unacked_key, channel.unacked_index_key
    with channel.conn_or_acquire() as redis:
        now, _ = redis.time()
        for tag in redis.zrangebyscore(index, 0, now - STALLED):
            if (job := redis.hget(jobs, tag)) is not None:
                message, exchange, queue = json.loads(job)
                # Another tag: its worker may live after all, and acknowledge the old one.
                new = str(uuid.uuid4())
                message["properties"] |= {"priority": 0, "delivery_tag": new}
                again = json.dumps(message), new, json.dumps([message, exchange, queue]), now + LOST - STALLED
                redis.eval(_GIVE_BACK, 3, index, jobs, queue, tag, now - STALLED, *again)
