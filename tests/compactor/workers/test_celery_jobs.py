"""Celery's dispatcher and jobs, on Redis and RabbitMQ servers of the tests' own."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import brokers
import pytest

pytest.importorskip("celery", reason="the extra `celery` is not installed")

from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Retry
from celery.signals import setup_logging
from celery.worker.consumer import Tasks
from kombu import Connection

from compactor.workers import Dispatcher, Outcome
from compactor.workers.brokers import HEARTBEAT, LOST, STALLED, LastHeartbeats, give_back
from compactor.workers.celery import CeleryDispatcher, make_app, work
from compactor.workers.contract import DispatcherContract, RecordingWorker
from memory import NewerVersion, StoreUnreachable
from memory.stores import join_name

pytestmark = [
    pytest.mark.slow(measured=True),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _own_logging() -> Iterator[None]:
    """Else a worker would take the process's logging for itself, and no later test would hear a warning."""

    def leave(**_given: Any) -> None:
        """Celery sets logging up unless somebody else does."""

    setup_logging.connect(leave)
    yield
    setup_logging.disconnect(leave)


class OnBroker(DispatcherContract):
    url: str

    @contextmanager
    def run_engine(self, worker: RecordingWorker) -> Iterator[CeleryDispatcher]:
        app = make_app(self.url, worker)  # type: ignore[arg-type]
        with start_worker(app, pool="threads", concurrency=3, perform_ping_check=False, shutdown_timeout=30.0):
            yield CeleryDispatcher(self.url)
        app.close()


class TestRedis(OnBroker):
    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str) -> None:
        self.url = redis_url


class TestRabbitMQ(OnBroker):
    @pytest.fixture(autouse=True, scope="class")
    def _broker(self) -> Iterator[None]:
        with brokers.rabbitmq() as broker:
            type(self).url = broker.url
            yield

    @pytest.fixture(autouse=True)
    def _own_queue(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a test leaves on the broker that they share, such as a job of the next minute, is no other's."""
        monkeypatch.setattr("compactor.workers.celery.QUEUE", request.node.name)


def test_jobs_wait_for_a_worker(redis_url: str) -> None:
    """None is lost if nobody works yet."""
    CeleryDispatcher(redis_url).due("s", "a")
    worker = RecordingWorker()
    app = make_app(redis_url, worker)  # type: ignore[arg-type]
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False):
        worker.wait_for(lambda calls: len(calls) == 1)


@pytest.mark.parametrize(
    ("waits", "outcome", "sent"),
    [
        (False, Outcome(reason="failed", retry_in=5.0), [True]),
        (True, Outcome(reason="failed", retry_in=5.0), [True]),
        (True, Outcome(reason="backing_off", retry_in=5.0), [True]),
        (False, Outcome(reason="backing_off", retry_in=5.0), []),
        (False, Outcome(reason="leased", retry_in=5.0), [False]),
        (False, Outcome(reason="below_trigger"), []),
    ],
)
def test_one_job_waits_out_a_failure(waits: bool, outcome: Outcome, sent: list[bool]) -> None:
    """However many are sent meanwhile: what each host asks for every minute does not add up."""
    app = make_app("memory://", RecordingWorker(outcome))  # type: ignore[arg-type]
    found: list[bool] = []
    app.send_task = lambda _name, given, **_more: found.append(given[2])
    app.tasks["compactor.compact"]("s", "a", waits)
    assert found == sent


@pytest.mark.parametrize(
    ("broker", "levels"), [("redis://localhost/0", [1, 1, 2, 1, 0]), ("amqp://localhost//", [8, 8, 7, 8, 9])]
)
def test_a_tenant_with_few_jobs_goes_ahead_of_one_with_many(broker: str, levels: list[int]) -> None:
    """And a job whose time is over ahead of both. On Redis 0 is the highest priority, on RabbitMQ 9."""
    app, found = make_app(broker), list[int]()
    app.send_task = lambda *_, priority, **_more: found.append(priority)
    dispatcher = CeleryDispatcher(app)
    for session in ("busy", "busy", "busy", "quiet"):
        dispatcher.due(join_name(session, "s"), "a")
    dispatcher.due(join_name("busy", "s"), "a", datetime.now(UTC))
    assert found == levels


def test_a_retry_has_its_tenants_priority() -> None:
    """A tenant with many jobs gets no further ahead by failing."""
    levels: list[int] = []

    class Waking(RecordingWorker):
        def wake_by(self, dispatcher: Dispatcher) -> None:
            self.dispatcher = dispatcher

    worker = Waking(*[Outcome(reason="failed", retry_in=5.0)] * 2)
    app = make_app("amqp://localhost//", worker)  # type: ignore[arg-type]
    app.send_task = lambda *_, priority, **_more: levels.append(priority)
    busy, quiet = join_name("busy", "s"), join_name("quiet", "s")
    for _ in range(4):
        worker.dispatcher.due(busy, "a")
    for session in (busy, quiet):
        app.tasks["compactor.compact"](session, "a")
    assert levels[4:] == [6, 8]


def take_and_die(app: Celery, seconds: float) -> None:
    """Take a job as a worker does that was killed so long ago."""
    channel = app.connection_for_read().channel()
    message = app.amqp.queues["compactor"](channel).get()
    channel.client.zadd(channel.unacked_index_key, {message.delivery_tag: time.time() - seconds})
    channel.qos.restore_at_shutdown = False  # else it would give its job back when it is collected


def test_a_killed_workers_jobs_are_run_by_another_ahead_of_all(redis_url: str) -> None:
    """Within seconds, whether they had begun or not: nobody else hears of them. Those of a living worker are not."""
    worker = RecordingWorker()
    app = make_app(redis_url, worker)  # type: ignore[arg-type]
    dispatcher = CeleryDispatcher(redis_url)
    for name, seconds in (("killed", 5.0), ("living", -60.0)):
        dispatcher.due(name, "a")
        take_and_die(app, seconds)
    for number in range(200):
        dispatcher.due(f"other {number}", "a")
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False, shutdown_timeout=30.0):
        worker.wait_for(lambda calls: len(calls) == 201)
    names = [name for name, _, _ in worker.calls]
    assert "killed" in names
    assert "living" not in names


def test_a_killed_workers_job_is_given_back_once(redis_url: str) -> None:
    """Though several look for it at once, and its worker lives after all and acknowledges it."""
    app = make_app(redis_url)
    CeleryDispatcher(redis_url).due("s", "a")
    take_and_die(app, 5.0)
    channels = [app.connection_for_read().channel() for _ in range(2)]
    client = channels[0].client
    (tag,) = client.hkeys(channels[0].unacked_key)
    found = client.hget(channels[0].unacked_key, tag)
    for channel in channels:
        give_back(channel)
    assert client.llen("compactor") == 1
    client.hset(channels[0].unacked_key, tag, found)
    message = app.amqp.queues["compactor"](channels[0]).get()
    channels[1].qos.ack(tag)
    assert client.hlen(channels[0].unacked_key) == 1, "the next worker's stays"
    message.ack()
    assert client.hlen(channels[0].unacked_key) == 0


def test_a_job_that_a_worker_received_as_it_was_killed_is_given_back_again(redis_url: str) -> None:
    """It was given back before. A worker that is killed before it notes what it received leaves no trace of it."""
    app = make_app(redis_url)
    CeleryDispatcher(redis_url).due("s", "a")
    take_and_die(app, 5.0)
    channel = app.connection_for_read().channel()
    client, index = channel.client, channel.unacked_index_key
    give_back(channel)
    assert client.lpop("compactor") is not None
    give_back(channel)
    assert client.llen("compactor") == 0, "it may be on its way to a worker"
    ((tag, _),) = client.zrange(index, 0, -1, withscores=True)
    client.zadd(index, {tag: time.time() - LOST})
    give_back(channel)
    app.amqp.queues["compactor"](channel).get().ack()
    assert (client.llen("compactor"), client.hlen(channel.unacked_key), client.zcard(index)) == (0, 0, 0)


def test_a_worker_keeps_the_job_that_it_runs_for_however_long(redis_url: str) -> None:
    """It shows that it lives, and others leave its jobs alone."""
    go_on = threading.Event()

    class Slow(RecordingWorker):
        def run(self, session: str, role: str) -> Outcome:
            outcome = super().run(session, role)
            if session == "slow":
                go_on.wait(60.0)
            return outcome

    worker = Slow()
    app, dispatcher = make_app(redis_url, worker), CeleryDispatcher(redis_url)  # type: ignore[arg-type]
    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, shutdown_timeout=30.0):
        dispatcher.due("slow", "a")
        dispatcher.due("late", "a", datetime.now(UTC) + timedelta(seconds=STALLED + 3 * HEARTBEAT))
        worker.wait_for(lambda calls: "late" in {name for name, _, _ in calls})
        go_on.set()
    assert [name for name, _, _ in worker.calls] == ["slow", "late"]


#: A worker process that says when its job has begun, and ends it when its input does. SIGUSR2 hangs its event loop.
SLOW = """
import os, signal, sys, time
from compactor.workers.celery import work
from compactor.workers.contract import RecordingWorker

class Slow(RecordingWorker):
    def run(self, session, role):
        os.write(1, b"begun")  # print would write to Celery's log
        sys.stdin.read()
        return super().run(session, role)

signal.signal(signal.SIGUSR2, lambda *_: time.sleep(3600))
work(sys.argv[1], Slow(), concurrency=1, loglevel="ERROR", quiet=True)
"""


@contextmanager
def running_slowly(url: str, log: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker process, and wait until it runs a job. *log* is for its standard error."""
    CeleryDispatcher(url).due("slow", "a")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SLOW, url], stdin=pipe, stdout=pipe, stderr=log) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(5) == b"begun"
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is sent")
def test_a_worker_keeps_its_job_also_after_sigterm(redis_url: str) -> None:
    """While it finishes that job, no other worker runs it again."""
    worker = RecordingWorker()
    app = make_app(redis_url, worker)  # type: ignore[arg-type]
    with running_slowly(redis_url) as process:
        with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, shutdown_timeout=30.0):
            process.send_signal(signal.SIGTERM)
            late = datetime.now(UTC) + timedelta(seconds=STALLED + 3 * HEARTBEAT)
            CeleryDispatcher(redis_url).due("late", "a", late)
            worker.wait_for(lambda calls: "late" in {name for name, _, _ in calls})
            process.communicate(timeout=30.0)
        assert process.returncode == 0
    assert [name for name, _, _ in worker.calls] == ["late"]
    channel = app.connection_for_read().channel()
    assert channel.client.hlen(channel.unacked_key) == 0, "it is acknowledged"


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is sent")
def test_a_worker_on_rabbitmq_keeps_its_job_also_after_sigterm() -> None:
    """However long that takes: it still sends heartbeats, without which RabbitMQ gives the job to another."""
    worker, heartbeat = RecordingWorker(), 4
    with brokers.rabbitmq(heartbeat) as broker, running_slowly(broker.url) as process:
        app = make_app(broker.url, worker)  # type: ignore[arg-type]
        with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, shutdown_timeout=30.0):
            process.send_signal(signal.SIGTERM)
            CeleryDispatcher(broker.url).due("late", "a", datetime.now(UTC) + timedelta(seconds=4 * heartbeat))
            worker.wait_for(lambda calls: len(calls) > 0)
            assert [name for name, _, _ in worker.calls] == ["late"]
            process.communicate(timeout=30.0)
        assert process.returncode == 0
        app.close()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent")
def test_a_worker_that_is_interrupted_ends_as_after_sigterm(redis_url: str) -> None:
    """Ctrl-C is no error: its job finishes first."""
    with running_slowly(redis_url) as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30.0)
        assert process.returncode == 0
    channel = make_app(redis_url).connection_for_read().channel()
    assert channel.client.hlen(channel.unacked_key) == 0, "it is acknowledged"


@pytest.mark.parametrize("start", [brokers.redis, brokers.rabbitmq])
def test_a_worker_goes_on_when_its_broker_is_restarted_during_a_job(
    start: Callable[[], AbstractContextManager[brokers.Broker]],
) -> None:
    """It cannot acknowledge the job there any more: that runs again, and those that follow run, too."""
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(RecordingWorker):
        def run(self, session: str, role: str) -> Outcome:
            outcome = super().run(session, role)
            inside.set()
            go_on.wait(60.0)
            return outcome

    worker = Waiting()

    def wait_for_job(role: str, times: int = 1) -> None:
        worker.wait_for(lambda calls: [one for _, one, _ in calls].count(role) >= times)

    with start() as broker:
        app = make_app(broker.url, worker)  # type: ignore[arg-type]
        with start_worker(app, pool="threads", concurrency=3, perform_ping_check=False, shutdown_timeout=30.0):
            CeleryDispatcher(broker.url).due("s", "a")
            assert inside.wait(60.0)
            broker.restart()
            dispatcher = CeleryDispatcher(broker.url)
            dispatcher.due("s", "b")
            wait_for_job("b")
            go_on.set()
            wait_for_job("a", times=2)
            dispatcher.due("s", "c")
            wait_for_job("c")
        app.close()


def test_a_worker_that_ends_looks_for_no_broker_that_is_away() -> None:
    """Celery may not have noticed yet. To connect anew would take seconds, and fail in the middle of ending."""
    consumer = SimpleNamespace(connection=Connection("amqp://127.0.0.1:1//"), app=None)
    LastHeartbeats(consumer).close(consumer)
    assert not consumer.connection.connected


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is sent")
def test_a_job_that_cannot_be_acknowledged_is_one_line_in_the_log() -> None:
    """Its broker was restarted meanwhile. Celery logs a traceback for each, and advice about a setting of its own."""
    with brokers.rabbitmq() as broker, running_slowly(broker.url, subprocess.PIPE) as process:
        broker.restart()
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.close()
        lines: list[str] = []
        while (line := process.stderr.readline().decode()) and "ack" not in line and "a job has ended" not in line:
            lines.append(line)
        process.send_signal(signal.SIGTERM)
        told = "".join((*lines, line, process.stderr.read().decode()))
    assert "a job has ended while its broker was away" in told
    assert "Traceback" not in told
    assert "DeprecationWarning" not in told


@pytest.mark.skipif(sys.platform == "win32", reason="a signal is sent")
def test_a_broker_that_refuses_a_worker_is_one_line_in_the_log() -> None:
    """Such as for its password, which is not in it."""
    with brokers.rabbitmq() as broker:
        url = broker.url.replace("guest:guest", "guest:secret")
        done = subprocess.run([sys.executable, "-c", SLOW, url], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    log, _, ours = done.stderr.partition("Traceback")  # of the script
    assert "ACCESS_REFUSED" in log
    assert "has ended with an error, which it has logged" in ours
    assert "secret" not in done.stderr


def test_a_worker_that_celery_ended_with_an_error_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process does not exit as if it was told to, so that it is started again."""

    class Failed:
        exitcode = 1

        def __init__(self, **_options: object) -> None:
            pass

        def start(self) -> None:
            pass

    monkeypatch.setattr(Celery, "Worker", Failed)
    with pytest.raises(RuntimeError, match="has ended with an error"):
        work("redis://127.0.0.1:1/0", RecordingWorker())  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="a signal is sent")
def test_a_worker_whose_event_loop_hangs_loses_its_jobs(redis_url: str) -> None:
    """It would never begin those that wait for their time; its other threads do not show that it lives."""
    worker = RecordingWorker()
    app = make_app(redis_url, worker)  # type: ignore[arg-type]
    with running_slowly(redis_url) as process:
        process.send_signal(signal.SIGUSR2)
        with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, shutdown_timeout=30.0):
            worker.wait_for(lambda calls: len(calls) == 1)


def test_a_broker_that_is_back_is_found_within_a_second() -> None:
    """However long it was away; Celery's own pauses grow to half a minute."""
    pauses: list[float] = []
    connection = make_app("redis://127.0.0.1:1/0").connection_for_read()
    connection._ensure_connection = lambda *_, interval_start, interval_step, **_more: pauses.extend(
        (interval_start, interval_step)
    )
    connection.ensure_connection()
    assert pauses == [1, 0]


def test_a_job_whose_store_was_away_goes_ahead_when_it_is_tried_again() -> None:
    """It was its turn, and it may be that of a killed worker."""
    app, levels = make_app("amqp://localhost//", RecordingWorker(StoreUnreachable("gone; start it"))), list[int]()  # type: ignore[arg-type]
    app.send_task = lambda *_, priority, **_more: levels.append(priority)
    job = app.tasks["compactor.compact"]
    job.push_request(id="1", args=("s", "a"), kwargs={}, called_directly=False, delivery_info={"priority": 3})
    with pytest.raises(Retry):
        job.run("s", "a")
    assert levels == [9]


def test_an_operator_reads_why_jobs_do_not_run(caplog: pytest.LogCaptureFixture) -> None:
    """Such as sessions of a newer version, in one line a minute: Celery says nothing about a job that runs again."""

    class Newer(NewerVersion):
        pass

    caplog.set_level(logging.WARNING, "compactor.workers.due")  # Celery's tests set the root's
    app = make_app("memory://", RecordingWorker(*[Newer("upgrade to open it")] * 9))  # type: ignore[arg-type]
    app.send_task = lambda *_, **_more: None
    job = app.tasks["compactor.compact"]
    for number in range(9):
        job.push_request(id="1", args=(f"s{number}", "a"), kwargs={}, called_directly=False, delivery_info={})
        with pytest.raises(Retry):
            job.run(f"s{number}", "a")
    (line,) = [one.getMessage() for one in caplog.records if one.name == "compactor.workers.due"]
    assert "session s0" in line
    assert line.endswith("upgrade to open it")


def test_a_worker_prefetches_as_many_jobs_as_before_once_its_connection_broke() -> None:
    """With Celery's default, a worker that was running jobs when RabbitMQ was restarted took a few more, and then none."""
    assert make_app("amqp://localhost//").conf.worker_enable_prefetch_count_reduction is False


def test_a_broker_that_goes_while_a_worker_starts_is_connected_to_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an error about this library's own parts, which have not started yet."""
    gone, start = [ConnectionError("gone")], Tasks.start

    def start_or_fail(self: Tasks, consumer: Any) -> None:
        if gone:
            raise consumer.connection_errors[0](gone.pop())
        start(self, consumer)

    monkeypatch.setattr(Tasks, "start", start_or_fail)
    monkeypatch.setattr(logging.getLogger("celery.bootsteps"), "handlers", [caplog.handler])
    app = make_app("memory://", RecordingWorker())  # type: ignore[arg-type]
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False, shutdown_timeout=30.0):
        pass
    assert not gone
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_sweeps_run_beside_the_jobs(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not behind them in the queue; one that fails is tried again."""
    monkeypatch.setattr("compactor.workers.celery.SWEEP_SECONDS", 0.1)
    swept = threading.Semaphore(0)

    class Tended(RecordingWorker):
        def run(self, session: str, role: str) -> Outcome:
            assert all(swept.acquire(timeout=60.0) for _ in range(2))
            return super().run(session, role)

        def sweep(self, _dispatcher: Dispatcher, _limit: int = 0) -> int:
            swept.release()
            raise StoreUnreachable("the server is gone; start it")

    worker = Tended()
    app = make_app(redis_url, worker)  # type: ignore[arg-type]
    CeleryDispatcher(redis_url).due("s", "a")
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False, shutdown_timeout=30.0):
        worker.wait_for(lambda calls: len(calls) == 1)


@pytest.fixture
def redis_url() -> Iterator[str]:
    with brokers.redis() as broker:
        yield broker.url
