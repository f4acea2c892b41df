"""Brokers of the tests' own, on loopback: Redis and RabbitMQ, where they are installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not answer")


@contextmanager
def redis() -> Iterator[str]:
    """Give the URL of a server with nothing in it."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("Redis is not installed: there is no redis-server on PATH")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no"]
        process = subprocess.Popen([program, *settings], stdout=subprocess.DEVNULL)
        try:
            wait_for_port(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait(30)
