"""Celery's dispatcher and jobs, on Redis and RabbitMQ servers of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import brokers
import pytest

pytest.importorskip("celery", reason="the extra `celery` is not installed")

from celery.contrib.testing.worker import start_worker

from compactor import CompactorConfig
from compactor.workers import Dispatcher, Outcome
from compactor.workers.celery import MAX_DELAY, REDIS_TIMEOUT, Beat, CeleryDispatcher, make_app
from compactor.workers.contract import DispatcherContract, RecordingWorker
from memory import StoreUnreachable
from memory.stores import join_name

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]


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


def test_only_redis_needs_rescues() -> None:
    """RabbitMQ gives a killed worker's job to another worker at once: nobody has to look for it."""
    schedules = {broker: {*make_app(f"{broker}://localhost//").conf.beat_schedule} for broker in ("amqp", "redis")}
    assert schedules == {"amqp": {"compactor.sweep"}, "redis": {"compactor.sweep", "compactor.rescue"}}


def test_a_worker_prefetches_as_many_jobs_as_before_once_its_connection_broke() -> None:
    """With Celery's default, a worker that was running jobs when RabbitMQ was restarted took a few more, and then none."""
    assert make_app("amqp://localhost//").conf.worker_enable_prefetch_count_reduction is False


def test_sweeps_and_rescues_run_beside_the_jobs() -> None:
    """Not behind them in the queue; if one fails, the others go on."""
    called: list[str] = []

    class Tended(RecordingWorker):
        def sweep(self, _dispatcher: Dispatcher, _limit: int = 0) -> int:
            called.append("sweep")
            raise StoreUnreachable("the server is gone; start it")

        def rescue(self, dispatcher: Dispatcher) -> float:
            called.append("rescue")
            return super().rescue(dispatcher)

    app = make_app("redis://localhost/0", Tended())  # type: ignore[arg-type]
    beat = Beat(app)
    for entry in beat.schedule.values():
        beat.apply_entry(entry)
    assert sorted(called) == ["rescue", "sweep"]


@pytest.mark.parametrize(("fails", "seconds"), [(False, 60.0), (True, 5.0)])
def test_the_next_rescue_is_when_the_last_said(fails: bool, seconds: float) -> None:
    """Then the next lease may expire. After a failure, it is soon."""

    class Rescuing(RecordingWorker):
        def rescue(self, dispatcher: Dispatcher) -> float:
            if fails:
                raise StoreUnreachable("the server is gone; start it")
            return super().rescue(dispatcher)

    beat = Beat(make_app("redis://localhost/0", Rescuing()))  # type: ignore[arg-type]
    entry = beat.schedule["compactor.rescue"]
    assert entry.is_due().is_due
    beat.apply_entry(entry)
    is_due, left = entry.is_due()
    assert not is_due
    assert seconds - 2.0 < left <= seconds


def test_redis_gives_no_job_that_is_under_way_to_another() -> None:
    assert max(MAX_DELAY, CompactorConfig().call_timeout) < REDIS_TIMEOUT


@pytest.fixture
def redis_url() -> Iterator[str]:
    with brokers.redis() as broker:
        yield broker.url
