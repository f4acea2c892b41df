"""The limits of one call: its total time, and the size of its answer.

httpx limits only single reads and writes. A server that sends a byte now and then, even in headers or an error's body,
outlives those limits. So every read and write here gets at most the remaining time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from .base import SummarizerError

#: No summary is this long; a larger answer would only fill the memory.
MAX_ANSWER_BYTES = 10_000_000
#: Maximum bytes per decompression step: a few compressed bytes may expand to very many.
_MAX_STEP_BYTES = 65_536
#: Maximum bytes per write: a server that reads slowly would block a long write beyond the limit.
_WRITE = 16_384


class Limit:
    """The remaining time of one call."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds, self._clock = seconds, clock
        self._end = clock() + seconds

    def get_seconds_left(self) -> float:
        """Return the remaining seconds, always above 0. Raises ``SummarizerError`` if none remain."""
        left = self._end - self._clock()
        if left <= 0:
            raise SummarizerError(explain_too_slow(self.seconds)) from TimeoutError()
        return left


def explain_too_slow(seconds: float) -> str:
    return f"no complete answer within {seconds:g} s: raise timeout=, or choose a faster model="


#: The limit of this thread's current call.
current: ContextVar[Limit | None] = ContextVar("limit", default=None)


def _bound_timeout(timeout: float | None) -> float | None:
    limit = current.get()
    if limit is None:
        return timeout
    return limit.get_seconds_left() if timeout is None else min(timeout, limit.get_seconds_left())


class _Limited:
    """A network backend of httpx or one of its connections; never waits past the end of the current call."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connect_tcp(self, *args: Any, timeout: float | None = None, **more: Any) -> _Limited:
        return _Limited(self._inner.connect_tcp(*args, timeout=_bound_timeout(timeout), **more))

    def start_tls(self, *args: Any, timeout: float | None = None, **more: Any) -> _Limited:
        return _Limited(self._inner.start_tls(*args, timeout=_bound_timeout(timeout), **more))

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        received: bytes = self._inner.read(max_bytes, timeout=_bound_timeout(timeout))
        return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITE):
            self._inner.write(buffer[start : start + _WRITE], timeout=_bound_timeout(timeout))


def limit_connections(http_client: Any) -> None:
    """Limit every connection that *http_client* makes.

    httpx has no public API for this. If its internals change, this does nothing; the check between the pieces of a body
    still applies.
    """
    for transport in (getattr(http_client, "_transport", None), *getattr(http_client, "_mounts", {}).values()):
        pool: Any = getattr(transport, "_pool", None)
        if hasattr(pool, "_network_backend"):
            pool._network_backend = _Limited(pool._network_backend)


def bound_body(response: Any, max_bytes: int = MAX_ANSWER_BYTES) -> None:
    """Make an unread *response* raise ``SummarizerError`` if its body exceeds *max_bytes*, also after decompression.

    A few network bytes may expand to gigabytes, in an error as in an answer. Works with every httpx version that openai
    uses.
    """
    coding, stream = response.headers.get("content-encoding", "").strip().lower(), response.stream
    if coding in ("gzip", "x-gzip", "deflate"):
        del response.headers["content-encoding"]  # or httpx would decompress it again
        pieces = _decompress(stream)
    else:
        # httpx decompresses other encodings itself; small pieces bound each step.
        pieces = (chunk[at : at + 1024] for chunk in stream for at in range(0, len(chunk), 1024)) if coding else stream

    def bound() -> Iterator[bytes]:
        left = max_bytes
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise SummarizerError(
                    f"the answer is larger than {max_bytes / 1_000_000:g} MB: check that base_url= is right"
                )
            yield piece

    base = next(kind for kind in type(stream).__mro__ if kind.__name__ == "SyncByteStream")
    methods = {"__iter__": lambda _: bound(), "close": lambda _: stream.close()}
    response.stream = type("BoundStream", (base,), methods)()


def _decompress(chunks: Any) -> Iterator[bytes]:
    """Yield *chunks* of gzip or zlib decompressed, in pieces. Raises ``SummarizerError`` for any other data."""
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        for chunk in chunks:
            left = chunk
            while left and not decoder.eof:
                yield decoder.decompress(left, _MAX_STEP_BYTES)
                left = decoder.unconsumed_tail
        while piece := decoder.decompress(decoder.unconsumed_tail, _MAX_STEP_BYTES):
            yield piece
    except zlib.error as error:
        raise SummarizerError("the answer cannot be decompressed: check that base_url= is right") from error
