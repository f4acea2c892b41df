"""The limits of one call: its time as a whole, and the bytes it may receive.

httpx knows only limits for each single read and write: a server that sends a byte now and then, in the headers or in
the body of an error too, outlives them. So every read and write is cut to what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from .base import SummarizerError

__all__ = ["MAX_ANSWER_BYTES", "TOO_LARGE", "Limit", "current", "limit_connections", "too_slow"]

#: No summary is as long as this; an answer that is would only fill the memory.
MAX_ANSWER_BYTES = 10_000_000

TOO_LARGE = f"the answer is larger than {MAX_ANSWER_BYTES // 1_000_000} MB: check that base_url= is right"


def too_slow(seconds: float) -> str:
    return f"no whole answer within {seconds:g} s: raise timeout=, or choose a faster model="


class Limit:
    """What one call may still take: time, and bytes from the network."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._end = clock() + seconds
        self._received = 0

    def left(self) -> float:
        """Return the seconds left, always above 0; raise ``SummarizerError`` where there are none."""
        left = self._end - self._clock()
        if left <= 0:
            raise SummarizerError(too_slow(self._seconds))
        return left

    def receive(self, count: int) -> None:
        self._received += count
        if self._received > MAX_ANSWER_BYTES:
            raise SummarizerError(TOO_LARGE)


#: The limit of the call that runs in this thread.
current: ContextVar[Limit | None] = ContextVar("limit", default=None)


def _within(timeout: float | None) -> float | None:
    limit = current.get()
    if limit is None:
        return timeout
    return limit.left() if timeout is None else min(timeout, limit.left())


class _LimitedStream:
    """A connection whose every wait ends with the call it is for."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        received: bytes = self._stream.read(max_bytes, timeout=_within(timeout))
        if limit := current.get():
            limit.receive(len(received))
        return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # In pieces: a server that reads slowly holds up a long write just as one that writes slowly does a read.
        for start in range(0, len(buffer), 16_384):
            self._stream.write(buffer[start : start + 16_384], timeout=_within(timeout))

    def start_tls(self, *args: Any, timeout: float | None = None, **more: Any) -> _LimitedStream:
        return _LimitedStream(self._stream.start_tls(*args, timeout=_within(timeout), **more))


class _LimitedBackend:
    """Makes limited connections."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def connect_tcp(self, *args: Any, timeout: float | None = None, **more: Any) -> _LimitedStream:
        return _LimitedStream(self._backend.connect_tcp(*args, timeout=_within(timeout), **more))


def limit_connections(http_client: Any) -> None:
    """Limit every connection that *http_client* makes.

    httpx has no public place for this. Where its inside has changed, nothing happens, and what is left is the check
    between the pieces of a body.
    """
    for transport in (getattr(http_client, "_transport", None), *getattr(http_client, "_mounts", {}).values()):
        pool: Any = getattr(transport, "_pool", None)
        if hasattr(pool, "_network_backend"):
            pool._network_backend = _LimitedBackend(pool._network_backend)
