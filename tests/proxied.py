"""The server in front of a model on loopback, and that model: its answers name what they answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from model_server import Answer, Exchange, ModelServer

from compactor import CompactorConfig
from compactor.cli.serve import make_protocol
from compactor.server import ServerSettings, create_app

KEY = "sk-nobody-else-has-this-0123456789"
OFFLINE = CompactorConfig(summarizer_provider="extractive")
WORDS = "How many of the rows that we loaded from the archive this morning are still without a name or a date? "
#: What a shortened prompt says: a summary, or a line about what is left out.
SIGNS = ("Left out here", "Conversation History Summary")
ONE_TURN = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hello"}]}
#: One for all, because a client's certificates take long to load; without kept connections, as ports are used again.
CLIENT = httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
AUTH = {"authorization": f"Bearer {KEY}"}


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """Give the address of *app*, which a server runs until the end."""
    config = uvicorn.Config(
        app,
        http=make_protocol(),  # as the command serves
        port=0,
        log_level="critical",
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server, started = uvicorn.Server(config), threading.Event()
    begin = server.startup

    async def startup(sockets: Any = None) -> None:
        await begin(sockets)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def proxy(upstream: ModelServer, store: Any = "memory://", **options: Any) -> Iterator[tuple[str, Any]]:
    """Give the address of a server in front of *upstream*, and its state. *options* are of the settings, or the app."""
    of_app = {name: options.pop(name) for name in ("redactor", "summarizer") if name in options}
    urls = {"openai": upstream.base_url, "anthropic": upstream.base_url.removesuffix("/v1")}
    settings: dict[str, Any] = {"upstreams": urls, "config": OFFLINE, "rate": None}
    if isinstance(store, str):
        settings["store"] = store
    else:
        of_app["store"] = store
    app = create_app(ServerSettings(**(settings | options)), **of_app)
    with serve(app) as url:
        yield url, app.state.compactor


def read_text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


def answer_any() -> Answer:
    """Answer a request of any format, streamed or not: ``re: `` and the beginning of the newest user message."""

    def answer(exchange: Exchange) -> None:
        body, path = exchange.request.body, exchange.request.path.partition("?")[0]
        said = [one for one in body.get("messages", body.get("input")) if one.get("role") == "user"]
        text = f"re: {read_text(said[-1])[:40]}"
        make = {"/v1/chat/completions": _chat, "/v1/messages": _message, "/v1/responses": _response}[path]
        whole, events = make(text)
        if not body.get("stream"):
            exchange.send(200, json.dumps(whole))
            return
        exchange.start(200, {"Content-Type": "text/event-stream", "Connection": "close"})
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            exchange.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        if path == "/v1/chat/completions":
            exchange.write(b"data: [DONE]\n\n")

    return answer


Events = list[dict[str, Any]]


def _chat(text: str) -> tuple[dict[str, Any], Events]:
    base = {"id": "c", "created": 1, "model": "m"}
    message = {"role": "assistant", "content": text}
    whole = {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
    deltas: Events = [{"role": "assistant"}, *({"content": piece} for piece in (text[:5], text[5:]))]
    events = [
        base | {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": one, "finish_reason": None}]}
        for one in deltas
    ]
    return base | whole, events


def _message(text: str) -> tuple[dict[str, Any], Events]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    head = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None, "usage": usage}
    whole = head | {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    events: Events = [
        {"type": "message_start", "message": head | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]
    return whole, events


def _response(text: str) -> tuple[dict[str, Any], Events]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [part]}
    whole = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [item], "status": "completed"}
    whole |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    created = {"type": "response.created", "sequence_number": 0, "response": whole | {"output": []}}
    return whole, [created, {"type": "response.completed", "sequence_number": 1, "response": whole}]


def make_history(turns: int, begin: str = "Question", *, last: bool = True) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    for turn in range(turns):
        said.append({"role": "user", "content": f"{begin} {turn}: {WORDS * 4}"})
        said.append({"role": "assistant", "content": f"Answer {turn} has {turn * 17} rows. {WORDS}"})
    return said if not last else [*said, {"role": "user", "content": f"{begin} {turns}: {WORDS * 4}"}]


def list_sessions(state: Any) -> list[str]:
    return list(state.sessions.store.sessions())


def texts_of(state: Any, session: str) -> str:
    with state.open("", session) as opened:
        rounds, _ = opened.memory.get_role_rounds("assistant")
        said = [text for one in rounds for text in (one.user_query, *(post.message for post in one.post_list))]
        return "\n".join(dict.fromkeys(said))
