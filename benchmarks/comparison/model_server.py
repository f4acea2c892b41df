"""A model on this machine's loopback, in virtual time: OpenAI's chat completions for whoever summarises, a log of every
request with what a provider's cache would have had of it, and a door of its own for the driver.

    POST /v1/chat/completions    a summarizer's request, also streamed
    POST /warm/chat/completions  a request that is not counted, and takes no time
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
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from compactor.tokens import count_tokens

from .fake_model import FakeModel
from .prefixes import Prefixes, shown
from .virtual_time import Latency, VirtualTime

__all__ = ["HANG", "MODEL", "Answered", "ModelServer", "Outage"]

#: What the agent's requests and the summarizers' name as their model: one that libraries know.
MODEL = "gpt-4o"
#: Virtual seconds after which whatever stands before a model that hangs gives up, with 504; sooner where the client
#: says that it will not wait for so long.
HANG = 60.0


@dataclass(frozen=True)
class Outage:
    """The turns, both inclusive, in which the summarizer fails at once or hangs."""

    first: int
    last: int
    how: Literal["fails", "hangs"]


@dataclass(frozen=True, slots=True)
class Answered:
    """One request, as the log has it."""

    by: Literal["agent", "summarizer"]
    turn: int
    #: Tokens in all, and how many of them the cache had.
    input: int
    cached: int
    output: int
    seconds: float
    status: int = 200
    #: The facts, in whatever words, that a prompt of the agent's had.
    facts: int = 0


@dataclass(slots=True)
class _State:
    """What the server knows of the conversation."""

    turn: int = 0
    log: list[Answered] = field(default_factory=list)


class ModelServer:
    """Serves one conversation on a free port while in its ``with`` block."""

    def __init__(
        self,
        *,
        latency: Latency | None = None,
        summary_tokens: int = 400,
        values: Mapping[str, str] | None = None,
        outage: Outage | None = None,
    ) -> None:
        self.time = VirtualTime()
        self.model = FakeModel(summary_tokens)
        self._latency = latency or Latency()
        self._values = tuple((values or {}).values())
        self._outage = outage
        self._prefixes = Prefixes()
        self._lock = threading.Lock()  # guards the model, the prefixes and _state
        self._state = _State()
        #: What went wrong in the server itself, which no adapter is to blame for.
        self.errors: list[BaseException] = []

    def __enter__(self) -> ModelServer:
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.comparison = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.time.close()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def log(self) -> list[Answered]:
        """Every request so far, in the order in which they came."""
        with self._lock:
            return list(self._state.log)

    # -- the driver's door --------------------------------------------------------------------------------------------

    def begin(self, turn: int) -> dict[str, Any]:
        with self._lock:
            self._state.turn = turn
        self.time.begin()
        return {}

    def end(self) -> dict[str, Any]:
        return asdict(self.time.end())

    def agent(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the agent's request: count it, and say until when it takes."""
        messages, answer = body["messages"], body["answer"]
        output = count_tokens(shown(answer))
        text = "\n".join(map(shown, messages))
        now = self.time.now
        with self._lock:
            tokens, cached = self._prefixes.taken(MODEL, messages, body.get("tools") or (), now)
            seconds = self._latency.of(tokens, output)
            facts = sum(value in text for value in self._values)
            answered = Answered("agent", self._state.turn, tokens, cached, output, seconds, facts=facts)
            self._state.log.append(answered)
        return asdict(answered) | {"now": now, "until": now + seconds}

    # -- the summarizer's ---------------------------------------------------------------------------------------------

    def summarizer(self, body: Mapping[str, Any], patience: float) -> tuple[int, dict[str, Any]]:
        """Return status and message, once it is time for them. The client waits no longer than *patience* seconds."""
        with self._lock:
            tokens, cached = self._prefixes.taken(
                str(body.get("model")), body["messages"], body.get("tools") or (), self.time.now
            )
            status, seconds, output, message = 200, 0.0, 0, dict[str, Any]()
            match self._how_it_is():
                case "fails":
                    status, seconds = 500, self._latency.of(0, 0)
                case "hangs":
                    status, seconds = 504, min(HANG, patience)
                case _:
                    message = self.model.answered(body)
                    output = count_tokens(shown(message))
                    seconds = self._latency.of(tokens, output)
            answered = Answered("summarizer", self._state.turn, tokens, cached, output, seconds, status)
            self._state.log.append(answered)
        self.time.wait(seconds)
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": output,
            "total_tokens": tokens + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return status, {"message": message, "usage": usage}

    def _how_it_is(self) -> str:
        out = self._outage
        return out.how if out is not None and out.first <= self._state.turn <= out.last else "well"


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    comparison: ModelServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of ours; all else is kept for who runs the comparison."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.comparison.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Http

    def do_GET(self) -> None:
        ours = self.server.comparison
        if self.path == "/held":
            self._reply(200, {"held": ours.time.held, "now": ours.time.now})
        else:
            self._reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        ours, body = (
            self.server.comparison,
            json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}"),
        )
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
            case "/warm/chat/completions":
                nothing = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
                said = {"role": "assistant", "content": "Good morning."}
                self._reply(200, _completion(body, {"message": said, "usage": nothing}))
            case _:
                self._reply(404, {"error": {"message": f"nothing is served at {self.path}"}})

    def _complete(self, body: dict[str, Any]) -> None:
        ours, began = self.server.comparison, time.perf_counter()
        try:
            patience = float(self.headers.get("x-stainless-read-timeout") or HANG)
        except ValueError:
            patience = HANG
        status, answer = ours.summarizer(body, patience)
        if status != 200:
            self._reply(status, {"error": {"message": "the model is out of order", "type": "server_error"}})
        elif body.get("stream"):
            self._stream(body, answer)
        else:
            self._reply(200, _completion(body, answer))
        ours.time.served(time.perf_counter() - began)

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
