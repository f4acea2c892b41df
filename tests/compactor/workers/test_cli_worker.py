"""``compactor worker``: a process that does what hosts hand over."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from command_line import run
from scene import CONFIG, ROLE, SOON, add_round

from compactor import ContextCompactor
from memory import Memory, open_store


def test_it_says_what_it_lacks(tmp_path: Path) -> None:
    """In one line, before anything is opened."""
    store = f"sqlite:///{tmp_path / 'x.db'}"
    for arguments, told in [
        (["--engine", "celery", "--store", store], "--engine celery needs --broker"),
        (["--engine", "celery", "--store", store, "--broker", "localhost"], "--engine celery needs --broker"),
        (
            ["--engine", "procrastinate", "--store", store, "--metrics-host", "::1"],
            "--metrics-host needs --metrics-port",
        ),
        (["--engine", "procrastinate", "--store", store], "Procrastinate needs PostgreSQL"),
        (["--engine", "procrastinate"], "no store is named"),
        (
            ["--engine", "procrastinate", "--store", "postgresql://127.0.0.1:1/x", "--config", str(tmp_path / "none")],
            "cannot be read",
        ),
    ]:
        done = run("worker", *arguments)
        assert done.code == 2
        assert told in done.err
        assert "Traceback" not in done.err
    assert not (tmp_path / "x.db").exists()


@pytest.mark.parametrize("engine", ["procrastinate", "celery"])
def test_it_says_which_extra_is_missing(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it, before anything is opened."""
    monkeypatch.setitem(sys.modules, engine, None)
    monkeypatch.delitem(sys.modules, f"compactor.workers.{engine}", raising=False)
    store, broker = f"sqlite:///{tmp_path / 'x.db'}", "redis://localhost/0"
    done = run("worker", "--engine", engine, "--store", store, "--broker", broker)
    assert (done.code, done.out) == (2, "")
    assert f'{engine} is not installed: pip install "context-compactor[{engine}]"' in done.err
    assert not (tmp_path / "x.db").exists()


def test_a_metrics_port_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """No traceback, and no worker without its metrics."""
    for missing in ("prometheus_client", "celery"):
        pytest.importorskip(missing, reason=f"{missing} is not installed")
    store, broker = f"sqlite:///{tmp_path / 'x.db'}", "redis://localhost/0"
    options = ["--metrics-host", "127.0.0.1", "--metrics-port", "99999"]
    done = run("worker", "--engine", "celery", "--store", store, "--broker", broker, *options)
    assert done.code == 2
    assert "port 99999 of 127.0.0.1 cannot be used" in done.err


def test_the_address_of_its_metrics_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is printed, also that of an IPv6 address."""
    for missing in ("prometheus_client", "celery"):
        pytest.importorskip(missing, reason=f"{missing} is not installed")
    monkeypatch.setattr("compactor.workers.celery.work", lambda *_given, **_options: None)
    store, broker = f"sqlite:///{tmp_path / 'x.db'}", "redis://localhost/0"
    options = ["--metrics-host", "::1", "--metrics-port", "0"]
    done = run("worker", "--engine", "celery", "--store", store, "--broker", broker, *options)
    if "cannot be used" in done.err:
        pytest.skip("this machine has no IPv6")
    url = done.out.splitlines()[0].removeprefix("metrics at ")
    assert url.startswith("http://[::1]:")
    with urllib.request.urlopen(url) as answer:  # noqa: S310  (our own, on loopback)
        assert b"compactor_compactions" in answer.read()


PUBLISHED = b'compactor_compactions_total{outcome="published",role="Planner"} 1.0'


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is sent")
def test_it_compacts_what_a_host_hands_over(postgres_url: str, tmp_path: Path) -> None:
    """With the settings of its file, until SIGTERM; it serves metrics, and the host shows the summary."""
    pytest.importorskip("procrastinate", reason="the extra `procrastinate` is not installed")
    from compactor.workers.procrastinate import ProcrastinateDispatcher

    config = tmp_path / "config.json"
    config.write_text(
        '{"compaction.threshold": 7, "compaction.retain_recent": 3, "compaction.limits": [{"max_concurrency": 1}]}',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "compactor", "worker", "--engine", "procrastinate", "--store", postgres_url]
    options = ["--role", ROLE, "--config", str(config), "--metrics-port", "0", "--drain", "5"]
    with (
        closing(open_store(postgres_url)) as store,
        subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        metrics = process.stdout.readline().split()[-1]
        assert "procrastinate" in process.stdout.readline()
        memory = Memory("s", store=store)
        with ProcrastinateDispatcher(postgres_url) as dispatcher:
            dispatcher.create_tables()
            with ContextCompactor.for_role(memory, ROLE, CONFIG, dispatcher=dispatcher) as compactor:
                for _ in range(10):
                    add_round(memory)
                until = time.monotonic() + SOON
                while compactor.get_compaction() is None and time.monotonic() < until:
                    memory.refresh()
                found = compactor.get_compaction()
        until, counted = time.monotonic() + SOON, b""
        while PUBLISHED not in counted and time.monotonic() < until:  # the host may see it before the worker counts it
            with urllib.request.urlopen(metrics) as answer:  # noqa: S310  (our own, on loopback)
                counted = answer.read()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=SOON)
    assert found is not None
    assert found.end_index in (5, 6, 7), "as many as there were but three, once eight were there"
    assert PUBLISHED in counted
    assert process.returncode == 0, told
    assert "Traceback" not in told
