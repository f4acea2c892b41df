"""What every test gets: no network but loopback, Hypothesis at two speeds, and, where they are on this machine, the real
dialogues and PostgreSQL."""

from __future__ import annotations

import gc
import ipaddress
import json
import os
import socket
import ssl
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import postgres
import pytest
from hypothesis import HealthCheck, settings
from lines import Line

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
DATA = ROOT.parent / "shared" / "data" / "airline.jsonl"

# No deadlines: how long an example takes, or its making, says more of the machine than of the code. In CI the examples
# are the same each time, so more of them find no more; the quick profile, with others each time, is what looks for new
# ones.
_busy: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=10, stateful_step_count=25, **_busy)
settings.register_profile("ci", max_examples=30, derandomize=True, print_blob=True, **_busy)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# The machine's certificates are read once, and not by each client, which takes 25 ms: no test speaks TLS.
ssl.create_default_context = cache(ssl.create_default_context)

# Before anything imports it: asserts outside of test files show no values otherwise.
pytest.register_assert_rewrite("memory.stores.contract")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector looks at no test and module: a full collection would take half a second for each process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what takes longest, such as an installation: else one process would be at it when the others have ended."""
    items.sort(key=lambda item: item.path.parent != TESTS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Coverage is measured by the quick tests: it makes the slow ones twice as slow, and they add next to none, except
    those of what only slow tests run through: ``slow(measured=True)``.

    ``no_cover`` would do that, but not in the processes of ``-n``: two of pytest-cov's measurements run in each.
    """
    slow = item.get_closest_marker("slow")
    if slow is None or slow.kwargs.get("measured") or not item.config.getoption("cov_source", None):
        return (yield)
    traces = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        threading.settrace(traces[1])
        sys.settrace(traces[0])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("index") and os.environ.get("TEST_PACKAGE_INDEX") != "1":
        pytest.skip("asks the package index; set TEST_PACKAGE_INDEX=1, as .ci/run does")


@pytest.fixture(scope="session")
def data() -> list[dict[str, Any]]:
    """The airline dialogues: ``{"id", "messages"}`` each, in OpenAI's chat format."""
    if not DATA.is_file():
        pytest.skip(f"the real dialogues are not on this machine: {DATA} is missing")
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    """The one server that the tests of this process share."""
    server = _postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: postgres.Postgres) -> Iterator[str]:
    """A new and empty database."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def _kept_postgres_url(postgres_server: postgres.Postgres) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def emptied_postgres_url(postgres_server: postgres.Postgres, _kept_postgres_url: str) -> Iterator[str]:
    """A database without sessions whose tables others used before: for tests that leave the tables as they are."""
    yield _kept_postgres_url
    postgres_server.empty(_kept_postgres_url)


@pytest.fixture
def line(postgres_server: postgres.Postgres) -> Iterator[Line]:
    """A line to that server, at ``line.url(postgres_url)``, which the test may have cut."""
    line = Line(postgres_server)
    yield line
    line.close()


@pytest.fixture
def own_postgres() -> Iterator[postgres.Postgres]:
    """A server that this test may stop, crash and restart: running, with nothing in it, at ``own_postgres.url()``."""
    server = _postgres(postgres.DURABLE)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _postgres(settings: Mapping[str, str] = postgres.FAST) -> postgres.Postgres:
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'context-compactor[postgresql]'")
    found = postgres.binaries()
    if found is None:
        places = ", ".join(postgres.PLACES)
        pytest.skip(f"PostgreSQL is not installed: there is no initdb and pg_ctl on PATH or under {places}")
    return postgres.Postgres(found, settings)


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that asks the network fails wherever it runs, even where the code under test survives that."""
    asked: list[str] = []
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and not _is_loopback(str(address[0])):
            asked.append(str(address[0]))
            raise OSError("there is no network but loopback in tests")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    yield
    assert not asked, "the test asked the network"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
