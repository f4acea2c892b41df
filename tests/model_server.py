"""An OpenAI-compatible server on loopback that answers as it is told, well or badly.

It is our own because it must also break the rules of HTTP (drop, drip, hang), which a server built on a framework does
not let one do, and because that framework would be one more thing to install.

    with ModelServer() as server:
        server.answers(status(429, headers={"Retry-After": "2"}), ok("The user booked HAT001."))
        ...  # base_url=server.base_url
        assert server.requests[0].body["model"] == "m"
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What the server does with one request.
Answer = Callable[["Exchange"], None]


@dataclass(frozen=True)
class Received:
    """One request as it came in."""

    path: str
    headers: Mapping[str, str]  # names in lower case
    body: Any  # None if it is no JSON
    raw: bytes = b""
    method: str = "POST"


class Exchange:
    """One request and the means to answer it, or not to."""

    def __init__(self, server: ModelServer, handler: BaseHTTPRequestHandler, request: Received, number: int) -> None:
        self.request, self.number = request, number
        self._server, self._handler = server, handler

    def send(self, code: int, body: bytes | str, headers: Mapping[str, str] | None = None) -> None:
        body = body.encode() if isinstance(body, str) else body
        self.start(code, {"Content-Type": "application/json", "Content-Length": str(len(body))} | dict(headers or {}))
        self.write(body)

    def start(self, code: int, headers: Mapping[str, str]) -> None:
        self._handler.send_response(code)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()

    def write(self, piece: bytes) -> None:
        self._handler.wfile.write(piece)

    def drop(self) -> None:
        """Close the connection here and now."""
        self._handler.close_connection = True
        self._handler.connection.shutdown(socket.SHUT_RDWR)

    def wait(self, event: threading.Event, timeout: float | None = None) -> bool:
        """Wait until *event* is set, or the server closes, which sets every event that is waited for."""
        return self._server.wait(event, timeout)

    def pause(self, seconds: float) -> None:
        """Let time pass; raises when the server closes meanwhile."""
        if self._server.wait(self._server.closing, seconds):
            raise ConnectionAbortedError


def completion(text: Any = "SUMMARY", *, finish: Any = "stop", usage: Any = ..., **message: Any) -> dict[str, Any]:
    """Return a chat completion; *message* adds to or replaces fields of its message."""
    if usage is ...:
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text} | message}
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": "model-1",
        "choices": [choice],
        "usage": usage,
    }


def ok(text: Any = None, *, gate: threading.Event | None = None, **more: Any) -> Answer:
    """A good answer, ``SUMMARY n`` if not said otherwise; with *gate*, only once that is set."""

    def answer(exchange: Exchange) -> None:
        if gate is not None:
            exchange.wait(gate)
        exchange.send(200, json.dumps(completion(f"SUMMARY {exchange.number}" if text is None else text, **more)))

    return answer


def reply(body: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """*body* as it is if text or bytes, else as JSON: for whatever is malformed."""
    return lambda exchange: exchange.send(code, body if isinstance(body, (str, bytes)) else json.dumps(body), headers)


def status(code: int, headers: Mapping[str, str] | None = None, body: Any = ...) -> Answer:
    """An error, in OpenAI's form if not said otherwise."""
    return reply(
        {"error": {"message": "no", "type": "t", "param": None, "code": None}} if body is ... else body, code, headers
    )


def html(code: int = 200) -> Answer:
    return reply("<!doctype html><title>hello</title>", code, {"Content-Type": "text/html"})


def drop() -> Answer:
    """The connection ends with no answer."""
    return Exchange.drop


def drop_midway() -> Answer:
    """The connection ends in the middle of the body."""

    def answer(exchange: Exchange) -> None:
        exchange.start(200, {"Content-Type": "application/json", "Content-Length": "1000"})
        exchange.write(b'{"choices": [')
        exchange.drop()

    return answer


def drip(code: int = 200, *, interval: float = 0.02, piece: bytes = b" ", headers: bool = False) -> Answer:
    """A body that never ends, *piece* by piece; with *headers*, header lines that never end."""

    def answer(exchange: Exchange) -> None:
        if headers:
            exchange.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
        else:
            exchange.start(code, {"Content-Type": "application/json", "Content-Length": str(10**12)})
        while True:
            exchange.write(piece)
            exchange.pause(interval)

    return answer


def flood(code: int = 200) -> Answer:
    """As large a body as the client will take."""

    def answer(exchange: Exchange) -> None:
        exchange.start(code, {"Content-Type": "application/json", "Content-Length": str(10**12)})
        while True:
            exchange.write(b" " * 1_000_000)

    return answer


class ModelServer:
    """Serves ``POST`` of *path* on a free port while in its ``with`` block; the path of a provider may be any."""

    def __init__(self, path: str = "/v1/chat/completions") -> None:
        self.path = path
        self.closing = threading.Event()
        #: What went wrong in answers themselves: raised on leaving, so that no test passes by a mistake in its server.
        self.failures: list[BaseException] = []
        self._changed = threading.Condition()  # guards all below
        self._queue: deque[Answer] = deque()
        self._always: Answer = ok()
        self._requests: list[Received] = []
        self._gates: set[threading.Event] = set()
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> ModelServer:
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.model = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="model-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop, and leave neither a thread nor a socket behind."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self.closing.set()
        with self._changed:
            for gate in self._gates:
                gate.set()
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:  # the client was first
                    pass
            assert self._changed.wait_for(lambda: not self._connections, 30), "a handler did not end"
        if self.failures:
            raise AssertionError("an answer of the server's failed") from self.failures[0]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def requests(self) -> list[Received]:
        """Every request so far, in the order they came in."""
        with self._changed:
            return list(self._requests)

    def answers(self, *answers: Answer) -> None:
        """Give the next requests these answers, one each, after those that are still due."""
        with self._changed:
            self._queue.extend(answers)

    def always(self, answer: Answer | None = None) -> None:
        """Give this answer whenever no other is due; a good one if None."""
        with self._changed:
            self._always = answer or ok()

    def hang(self) -> threading.Event:
        """Let the next request wait until the returned event is set."""
        gate = threading.Event()
        self.answers(ok(gate=gate))
        return gate

    def wait_for_requests(self, count: int, timeout: float = 40.0) -> bool:
        """Return True as soon as *count* requests came in; False if they did not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._requests) >= count, timeout)

    def wait(self, event: threading.Event, timeout: float | None = None) -> bool:
        with self._changed:
            self._gates.add(event)
        if self.closing.is_set():
            event.set()
        return event.wait(timeout)

    def take(self, request: Received) -> tuple[Answer, int]:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
            return (self._queue.popleft() if self._queue else self._always), len(self._requests)

    def connected(self, connection: socket.socket) -> None:
        with self._changed:
            self._connections.add(connection)

    def disconnected(self, connection: socket.socket) -> None:
        with self._changed:
            self._connections.discard(connection)
            self._changed.notify_all()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    model: ModelServer

    def process_request(self, request: Any, client_address: Any) -> None:
        self.model.connected(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.model.disconnected(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):  # a client that went away is what tests are about
            self.model.failures.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as real endpoints do
    disable_nagle_algorithm = True
    server: _Http

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            read = json.loads(body)
        except ValueError:
            read = None
        request = Received(self.path, headers, read, body, self.command)
        answer, number = self.server.model.take(request)
        exchange = Exchange(self.server.model, self, request, number)
        if self.path == self.server.model.path or not self.server.model.path:
            answer(exchange)
        else:
            exchange.send(404, "{}")

    do_GET = do_DELETE = do_POST  # noqa: N815  (the names are the base class's)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name is the base class's)
        pass
