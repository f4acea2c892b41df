"""A PgBouncer of the tests' own, in transaction mode and on loopback, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from brokers import wait_for_port
from postgres import SUPERUSER, Postgres, find_free_port, ordinary_user, own

__all__ = ["bouncer"]


@contextmanager
def bouncer(server: Postgres, *, pool_size: int = 3) -> Iterator[int]:
    """Give the port of a PgBouncer before *server*. Its clients share *pool_size* connections, from one transaction to
    the next: with fewer of these than clients, hardly any client keeps its connection."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        pytest.skip("PgBouncer is not installed: there is no pgbouncer on PATH")
    port, user = find_free_port(), ordinary_user()
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as folder:
        settings = Path(folder, "pgbouncer.ini")
        settings.write_text(
            "[databases]\n"
            f"* = host=127.0.0.1 port={server.port} user={SUPERUSER}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = {pool_size}\nmax_client_conn = 100\n"
            "server_round_robin = 1\nserver_login_retry = 1\nquery_wait_timeout = 5\n",
            encoding="utf-8",
        )
        own(Path(folder))
        process = subprocess.Popen(
            [program, "-q", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user
        )
        try:
            wait_for_port(port, process)
            yield port
        finally:
            process.kill()
            process.wait(60)
