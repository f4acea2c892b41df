"""Brokers of the tests' own, on loopback: Redis and RabbitMQ, where they are installed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from postgres import find_free_port

#: Debian's script on PATH would run it as another user.
DEBIANS = "/usr/lib/rabbitmq/bin"


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not answer")


class Broker:
    """A server that runs, and may be restarted."""

    def __init__(self, command: list[str], port: int, url: str, env: Mapping[str, str] | None = None) -> None:
        self.url = url
        self._command, self._port, self._env = command, port, env
        self._start()

    def _start(self) -> None:
        # A group of its own: RabbitMQ's script starts others.
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._env,
            start_new_session=True,
        )
        wait_for_port(self._port, self._process)

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(60)

    def restart(self) -> None:
        self.stop()
        self._start()


@contextmanager
def redis() -> Iterator[Broker]:
    """Give a Redis server with nothing in it, which keeps on disk what it has."""
    program = _find("redis-server", "Redis")
    port = find_free_port()
    with tempfile.TemporaryDirectory() as folder:
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "yes"]
        broker = Broker([program, *settings], port, f"redis://127.0.0.1:{port}/0")
        try:
            yield broker
        finally:
            broker.stop()


@contextmanager
def rabbitmq(heartbeat: int = 60) -> Iterator[Broker]:
    """Give a RabbitMQ server with nothing in it. A connection that is silent for twice *heartbeat* seconds is lost."""
    program = shutil.which("rabbitmq-server", path=DEBIANS) or _find("rabbitmq-server", "RabbitMQ")
    port = find_free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "rabbitmq.conf")
        config.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nheartbeat = {heartbeat}\n", encoding="utf-8")
        env = {
            **os.environ,
            "HOME": folder,
            "RABBITMQ_NODENAME": f"tests{port}@localhost",
            "RABBITMQ_DIST_PORT": str(find_free_port()),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_MNESIA_BASE": folder,
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(Path(folder, "plugins")),
        }
        broker = Broker([program], port, f"amqp://guest:guest@127.0.0.1:{port}//", env)
        try:
            yield broker
        finally:
            broker.stop()


def _find(program: str, name: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{name} is not installed: there is no {program} on PATH")
    return found
