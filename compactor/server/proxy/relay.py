"""Forwards requests to an endpoint and streams its answers back, byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import httpx
import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]
#: Hop-by-hop headers.
_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
#: Request headers for this server itself: its own address, the page's cookie.
_OWN = frozenset((b"host", b"expect", b"cookie", b"content-length"))
#: Answer headers that would affect this server's own pages.
_PAGE = frozenset((b"set-cookie", b"content-security-policy"))


#: The endpoint closed the connection, or sent something else than HTTP.
_BROKEN = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
#: Matches a mark of a stream's last event; and the maximum bytes of a mark. In a text, one delays a byte for a moment.
_END, MAX_END = re.compile(rb"\[DONE\]|message_stop|response\.(?:completed|incomplete|failed)"), 20


class Relay:
    """Sends requests to endpoints over pooled connections."""

    def __init__(self, *, connect_seconds: float, response_seconds: float) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        timeout = httpx.Timeout(None, connect=connect_seconds)  # no read time-out: clients have their own
        self._client = httpx.AsyncClient(limits=limits, timeout=timeout, follow_redirects=False)
        self._timeout = timeout
        self._response_seconds = response_seconds

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, method: str, url: str, target: bytes, headers: Headers, body: Upload) -> httpx.Response:
        """Return the answer, its body unread. Raises ``httpx.HTTPError`` or ``TimeoutError`` if there is none.

        *target* replaces the path and query of *url*, byte for byte: an ``httpx.URL`` would encode some of them anew.
        """
        loop = asyncio.get_running_loop()
        extensions = {"timeout": self._timeout.as_dict(), "target": target}
        async with asyncio.timeout(None) as limit:

            async def stream_body() -> AsyncIterator[bytes]:
                async for part in body:
                    yield part
                limit.reschedule(loop.time() + self._response_seconds)

            content: AsyncIterator[bytes] | bytes | None = stream_body()
            if body.is_read.is_set():
                limit.reschedule(loop.time() + self._response_seconds)
                content = body.first if body.first or method in ("POST", "PUT", "PATCH") else None
            request = httpx.Request(method, url, headers=headers, content=content, extensions=extensions)
            return await self._client.send(request, stream=True)


class Upload:
    """A request's body: what was read of it, and the rest as it arrives."""

    def __init__(self, first: bytes, rest: AsyncIterator[bytes] | None) -> None:
        self.first, self._rest = first, rest
        #: Set as soon as nothing more is read from the client.
        self.is_read = asyncio.Event()
        if rest is None:
            self.is_read.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.first:
            yield self.first
            self.first = b""
        if self._rest is not None:
            async for part in self._rest:
                if part:  # an empty chunk would end the body
                    yield part
        self.is_read.set()


class LateLog:
    """Writes a request's log *seconds* after it was made, unless the answer needs it before: writing slows down what
    the process does at the same time."""

    def __init__(self, write: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
        self._write = write
        self._task: asyncio.Task[object] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self.start)

    def start(self) -> asyncio.Task[object]:
        if self._task is None:
            self._timer.cancel()
            self._task = asyncio.create_task(self._write())
        return self._task

    async def wait(self) -> None:
        """Return as soon as the log is written."""
        await asyncio.wait([self.start()])


class RelayedResponse(Response):
    """Streams the endpoint's answer to *send_request*.

    A broken connection to the endpoint breaks the client's; before the answer has begun, only a server with the
    extension ``compactor.close`` can do that, others answer 502. A client that disconnects cancels the call. The last
    byte, and that of a stream's last event, after which clients read no further, waits until the *log* is written, so
    the next request finds everything in the log. The client is watched once *is_read* is set.
    """

    def __init__(
        self,
        send_request: Callable[[], Awaitable[httpx.Response]],
        make_error: Callable[..., Response],
        log: LateLog | None = None,
        is_read: asyncio.Event | None = None,
    ) -> None:
        self._send_request, self._make_error, self._log, self._is_read = send_request, make_error, log, is_read
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        responding = asyncio.ensure_future(self._respond(scope, receive, send))
        disconnecting = asyncio.ensure_future(_wait_for_disconnect(receive, self._is_read))
        try:
            await asyncio.wait((responding, disconnecting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnecting.cancel()
            if not responding.done():
                responding.cancel()
            with suppress(asyncio.CancelledError):
                await responding

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._send_request()
        except ClientDisconnect:  # in the middle of its body
            return
        except (httpx.TimeoutException, TimeoutError):
            await self._make_error(504, "The endpoint has not answered in time.", "upstream_timeout")(
                scope, receive, send
            )
            return
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if isinstance(error, _BROKEN):
                await self._close(scope)
            await self._make_error(502, "The endpoint could not be reached, or has not answered.")(scope, receive, send)
            return
        if not 200 <= answer.status_code < 600:  # as 999: servers cannot send it, clients read it as a 5xx
            await answer.aclose()
            message = f"The endpoint has answered with status {answer.status_code}, which HTTP lacks."
            await self._make_error(502, message, "upstream_status")(scope, receive, send)
            return
        try:
            # Content-Length is ignored beside Transfer-Encoding (RFC 9112, 6.3), which is set anew here.
            wrong = {b"content-length"} if "transfer-encoding" in answer.headers else set[bytes]()
            headers = drop_headers(answer.headers.raw, _PAGE | wrong)
            left, tail = int(dict(headers).get(b"content-length", b"-1")), b""
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            async for chunk in answer.aiter_raw():
                left -= len(chunk)
                end = tail + chunk
                tail = end[-MAX_END:]
                if self._log is None or (left and not _END.search(end)):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                else:  # see the class
                    await send({"type": "http.response.body", "body": chunk[:-1], "more_body": True})
                    await self._log.wait()
                    await send({"type": "http.response.body", "body": chunk[-1:], "more_body": True})
                if self._log is not None:
                    self._log.start()
        except (httpx.HTTPError, httpx.StreamError) as error:
            log = structlog.get_logger("compactor")
            log.warning("proxy.answer_broke_off", path=scope["path"], error=type(error).__name__)
            await self._close(scope)
            return  # no final chunk: any other server breaks the connection, and logs an error
        finally:
            await answer.aclose()
        if self._log is not None:
            await self._log.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _close(self, scope: Scope) -> None:
        """Close the client's connection, as the endpoint did. Returns only if the server cannot do that."""
        if (close := scope.get("extensions", {}).get("compactor.close")) is not None:
            close()
            if self._is_read is not None:
                self._is_read.set()
            await asyncio.Event().wait()  # cancelled as soon as the client is gone


async def _wait_for_disconnect(receive: Receive, is_read: asyncio.Event | None) -> None:
    if is_read is not None:
        await is_read.wait()  # until then, the body's reader is told
    while (await receive())["type"] != "http.disconnect":
        pass


def drop_headers(headers: Iterable[tuple[bytes, bytes]], more: Iterable[bytes]) -> Headers:
    """Return *headers* without hop-by-hop headers and without *more*."""
    lowered = [(name.lower(), value) for name, value in headers]
    named = {one.strip().lower() for name, value in lowered if name == b"connection" for one in value.split(b",")}
    dropped = _HOP | named | set(more)
    return [(name, value) for name, value in lowered if name not in dropped]


def forward_headers(headers: Iterable[tuple[bytes, bytes]], size: str | None) -> Headers:
    """Return the request *headers* for the endpoint, with the *size* of the body."""
    forwarded = drop_headers(headers, _OWN)
    return forwarded if size is None else [*forwarded, (b"content-length", size.encode())]


def make_error(kind: str, status: int, message: str, code: str = "upstream_unreachable") -> Response:
    """Return an error in a provider's format: *kind* is ``openai`` or ``anthropic``."""
    error: dict[str, Any] = {"message": message, "type": "api_error"}
    if kind == "anthropic":
        content: dict[str, Any] = {"type": "error", "error": error}
    else:
        content = {"error": {**error, "param": None, "code": code}}
    return Response(json.dumps(content), status, media_type="application/json")
