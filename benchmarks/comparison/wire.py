"""How the model server is asked: OpenAI's chat completions over HTTP, and a door of its own for the driver.

POST /v1/chat/completions    a summarizer's request, also streamed
POST /agent                  the agent's: messages and tools as the adapter gave them, and the answer of the script;
                             tells when it will be there
POST /adapter                whether it is a background one
POST /begin, /end            the driver is about to call the adapter; has called it
POST /pass                   the time passes up to a moment, or to when a request is due, which is said
POST /answer                 what is due is answered
POST /sleep                  an adapter's pause between its attempts
POST /until_held             returns once a request waits for the virtual clock
GET  /held                   how many requests wait for it, and what it shows
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model_server import ModelServer

__all__ = ["MODEL", "Http"]

#: What the agent's requests and the summarizers' name as their model: that of the documentation's code.
MODEL = "gpt-5-mini"


class Http(ThreadingHTTPServer):
    """Listens on a free port of the loopback for *server*."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: ModelServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.comparison = server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of ours; all else is kept for who runs the comparison."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.comparison.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Http

    def do_GET(self) -> None:
        ours = self.server.comparison
        if self.path == "/held":
            self._reply(200, {"held": ours.time.held, "now": ours.time.now})
        else:
            self._reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        ours = self.server.comparison
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        match self.path:
            case "/agent":
                self._reply(200, ours.agent(body))
            case "/adapter":
                ours.time.serves(background=body["background"])
                self._reply(200, {})
            case "/pass":
                now, due = ours.time.passed(body["until"])
                self._reply(200, {"now": now, "due": due})
            case "/answer":
                ours.time.answer()
                self._reply(200, {})
            case "/until_held":
                self._reply(200, {"held": ours.time.until_held(body["timeout"])})
            case "/sleep":
                ours.time.wait(body["seconds"])
                self._reply(200, {})
            case "/begin":
                self._reply(200, ours.begin(body["turn"]))
            case "/end":
                self._reply(200, ours.end())
            case "/v1/chat/completions":
                self._complete(body)
            case _:
                self._reply(404, {"error": {"message": f"nothing is served at {self.path}"}})

    def _complete(self, body: dict[str, Any]) -> None:
        ours, began = self.server.comparison, time.perf_counter()
        status, answer = ours.summarizer(body, self._patience())
        # Before it is sent: whoever has the answer may end the call at once.
        ours.time.served(time.perf_counter() - began)
        if status != 200:
            self._reply(status, {"error": {"message": "the model is out of order", "type": "server_error"}})
        elif body.get("stream"):
            self._stream(body, answer)
        else:
            self._reply(200, _completion(body, answer))

    def _patience(self) -> float | None:
        """Return for how many seconds the client waits, where it says so in a number."""
        try:
            return float(self.headers.get("x-stainless-read-timeout", ""))
        except ValueError:
            return None

    def _stream(self, body: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        lines = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in _chunks(body, answer))
        self._send(200, "text/event-stream", lines + b"data: [DONE]\n\n")

    def _reply(self, status: int, body: Mapping[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name is the base class's)
        pass


def _head(body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-0", "object": kind, "created": 0, "model": body.get("model") or MODEL}


def _reason(message: Mapping[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _completion(body: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    message = answer["message"]
    choice = {"index": 0, "message": message, "finish_reason": _reason(message), "logprobs": None}
    return _head(body, "chat.completion") | {"choices": [choice], "usage": answer["usage"]}


def _chunks(body: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    head, message = _head(body, "chat.completion.chunk"), dict(answer["message"])
    if message.get("tool_calls"):
        message["tool_calls"] = [{"index": place, **call} for place, call in enumerate(message["tool_calls"])]
    for delta, reason in ((message, None), ({}, _reason(message))):
        yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield head | {"choices": [], "usage": answer["usage"]}
