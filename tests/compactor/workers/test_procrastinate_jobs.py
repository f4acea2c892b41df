"""Procrastinate's dispatcher and jobs, on a PostgreSQL server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from scene import SOON

pytest.importorskip("procrastinate", reason="the extra `procrastinate` is not installed")

from compactor.workers.contract import Calls, DispatcherContract
from compactor.workers.procrastinate import ProcrastinateDispatcher, make_app, work
from memory import StoreError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@contextmanager
def working(url: str, worker: Any) -> Iterator[None]:
    """Run a worker on a thread."""
    loop, task = asyncio.new_event_loop(), None
    started = threading.Event()

    async def run() -> None:
        nonlocal task
        task = asyncio.current_task()
        started.set()
        await work(url, worker, concurrency=3, drain_seconds=1.0, install_signal_handlers=False)

    def serve() -> None:
        try:
            loop.run_until_complete(run())
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(SOON)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)  # type: ignore[attr-defined]
        thread.join(SOON)
        assert not thread.is_alive()


class TestProcrastinate(DispatcherContract):
    @pytest.fixture(autouse=True)
    def _place(self, postgres_url: str) -> None:
        self.url = postgres_url

    @contextmanager
    def engine(self, worker: Calls) -> Iterator[ProcrastinateDispatcher]:
        with ProcrastinateDispatcher(self.url) as dispatcher:
            dispatcher.create_tables()
            with working(self.url, worker):
                yield dispatcher


def test_one_job_of_a_role_waits_at_a_time(postgres_url: str) -> None:
    """However often it was asked for; and none is lost if nobody works yet."""
    worker = Calls()
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.create_tables()
        for _ in range(50):
            dispatcher.due("s", "a")
        dispatcher.due("t", "a")
        with working(postgres_url, worker):
            worker.wait_for(lambda calls: len(calls) >= 2)
    assert sorted(name for name, _, _ in worker.calls) == ["s", "t"]


def test_a_job_of_a_dead_worker_is_taken_over(postgres_url: str) -> None:
    """It was running when its process was killed, and nobody has heard of it since."""
    worker = Calls()
    with ProcrastinateDispatcher(postgres_url) as dispatcher:
        dispatcher.create_tables()
        dispatcher.due("s", "a")

        async def take_and_die() -> None:
            async with make_app(postgres_url, worker, dispatcher).open_async() as app:  # type: ignore[arg-type]
                number = await app.job_manager.register_worker()
                job = await app.job_manager.fetch_job(queues=None, worker_id=number)
                assert job is not None

        asyncio.run(take_and_die())
        with working(postgres_url, worker):
            worker.wait_for(lambda calls: len(calls) == 1)


def test_a_url_of_another_database_is_refused() -> None:
    with pytest.raises(StoreError, match="postgresql"):
        ProcrastinateDispatcher("sqlite:///x.db")
