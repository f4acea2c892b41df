"""The driver's way to the model server, JSON over one connection; and a `sleep` for adapters, by the server's clock."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from .adapter import Setting

__all__ = ["PATIENCE", "Door", "virtual_sleep"]

#: Real seconds to wait for an answer, or for an adapter's background work, before the run is given up.
PATIENCE = 120.0


class Door:
    """One connection to the server at *url*, for one thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        where = urlsplit(url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what the server says to *body*, or what it has at *path* where there is none."""
        method = "GET" if body is None else "POST"
        self._connection.request(method, path, json.dumps(body) if body is not None else None)
        with self._connection.getresponse() as response:
            found: dict[str, Any] = json.loads(response.read())
        return found

    def close(self) -> None:
        self._connection.close()


def virtual_sleep(setting: Setting) -> Callable[[float], None]:
    """Return a `sleep` that costs virtual time as a request of so many seconds does: it is charged to the call that the
    adapter is in, and nobody waits. For a library that pauses for minutes between its attempts."""

    def sleep(seconds: float) -> None:
        with contextlib.closing(Door(setting.base_url.removesuffix("/v1"))) as door:
            door.ask("/sleep", {"seconds": seconds})

    return sleep
