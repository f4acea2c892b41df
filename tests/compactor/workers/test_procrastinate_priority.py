"""The priority of Procrastinate's jobs, without a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("procrastinate", reason="the extra `procrastinate` is not installed")

from procrastinate import App
from procrastinate.testing import InMemoryConnector

from compactor.workers.procrastinate import ProcrastinateDispatcher


@pytest.fixture
def jobs() -> InMemoryConnector:
    return InMemoryConnector()


@pytest.fixture
def dispatcher(jobs: InMemoryConnector) -> Iterator[ProcrastinateDispatcher]:
    with ProcrastinateDispatcher("postgresql://nobody@localhost:1/none") as made:
        pool, made._app = made._app, App(connector=jobs)
        pool.close()
        yield made


def test_a_job_that_waits_already_takes_no_turn_of_its_tenant(
    dispatcher: ProcrastinateDispatcher, jobs: InMemoryConnector
) -> None:
    """A session that is asked for at each turn has one job, and counts once."""
    for _ in range(50):
        dispatcher.due("chatty\x1fs", "a")
    for number in range(4):
        dispatcher.due(f"busy\x1fs{number}", "a")
    dispatcher.due("chatty\x1ft", "a")
    assert [job["priority"] for job in jobs.jobs.values()] == [0, 0, 0, -1, -1, 0]
