"""Celery's dispatcher and jobs, on Redis and RabbitMQ servers of the tests' own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import brokers
import pytest

pytest.importorskip("celery", reason="the extra `celery` is not installed")

from celery.contrib.testing.worker import start_worker

from compactor.workers.celery import CeleryDispatcher, make_app
from compactor.workers.contract import Calls, DispatcherContract

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]


class OnBroker(DispatcherContract):
    url: str

    @contextmanager
    def engine(self, worker: Calls) -> Iterator[CeleryDispatcher]:
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
    worker = Calls()
    app = make_app(redis_url, worker)  # type: ignore[arg-type]
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False):
        worker.wait_for(lambda calls: len(calls) == 1)
    assert threading.active_count() < 50


@pytest.fixture
def redis_url() -> Iterator[str]:
    with brokers.redis() as broker:
        yield broker.url
