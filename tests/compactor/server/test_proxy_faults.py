"""What clients of the proxy see where an endpoint, the network or the store fails: what they would see without it."""

from __future__ import annotations

import gzip
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import structlog
from model_server import Exchange, ModelServer, drop, drop_midway, reply, status
from proxied import (
    AUTH,
    CLIENT,
    ONE_TURN,
    list_sessions,
    make_history,
    proxy,
)

from compactor import (
    InMemoryStore,
)
from memory import StoreUnreachable


def chunks(*pieces: bytes, end: bytes = b"") -> Callable[[Exchange], None]:
    """Answer with *pieces*, each a chunk, and then with *end* in place of the last chunk; the connection ends then."""

    def answer(exchange: Exchange) -> None:
        exchange.start(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        for piece in pieces:
            exchange.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        exchange.write(end)
        exchange.drop()

    return answer


def both_lengths(exchange: Exchange) -> None:
    """Answer with two bytes, and with the length of another body in front of them."""
    exchange.start(200, {"Content-Length": "5", "Transfer-Encoding": "chunked"})
    exchange.write(b"2\r\n{}\r\n0\r\n\r\n")


def garbage(exchange: Exchange) -> None:
    """Answer with something else than HTTP."""
    exchange.write(b"\x00\x00garbage\r\n\r\n")
    exchange.drop()


FAULTS: dict[str, Callable[[Exchange], None]] = {
    "no answer": drop(),
    "garbage": garbage,
    "cut in a stream": chunks(b"data: 1\n\n", b"data: 2\n\n"),
    "cut in a body": drop_midway(),
    "garbage between chunks": chunks(b"data: 1\n\n", end=b"no chunk\r\n\r\n"),
    "garbage as events": chunks(b"data: {\n\n\x00\xff\xfe", end=b"0\r\n\r\n"),
    "lines of a megabyte": chunks(b"data: " + b"x" * 1_000_000 + b"\n\n", end=b"0\r\n\r\n"),
    "compressed": reply(gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"}),
    "falsely compressed": reply(b'{"a": 1}', headers={"Content-Encoding": "gzip"}),
    "too many requests": status(429, {"Retry-After": "7", "X-RateLimit-Remaining": "0"}),
    "overloaded": status(529),
    "empty": reply(b"", 204),
    "redirect": reply(b"", 307, {"Location": "http://127.0.0.1:1/"}),
}


def observe(url: str) -> tuple[Any, ...]:
    """Return what a client sees: status, headers, bytes as they came, and how that ended."""
    try:
        return observe_answer(url)
    except httpx.RemoteProtocolError as error:  # no head came
        return (type(error).__name__,)


def observe_answer(url: str) -> tuple[Any, ...]:
    seen, ended = b"", ""
    with CLIENT.stream("POST", f"{url}/chat/completions", json=ONE_TURN, headers=AUTH) as answer:
        try:
            for piece in answer.iter_raw():
                seen += piece
        except httpx.HTTPError as error:
            ended = type(error).__name__
        kept = {
            "content-type",
            "content-encoding",
            "content-length",
            "retry-after",
            "x-ratelimit-remaining",
            "location",
        }
        headers = {name: value for name, value in answer.headers.items() if name in kept}
    return answer.status_code, headers, seen, ended


def test_a_length_beside_an_encoding_is_not_passed_on() -> None:
    """It is that of no body; the bytes, and how they end, are as without us."""
    with ModelServer("") as model, proxy(model) as (url, _):
        model.always(both_lengths)
        assert observe(f"{url}/v1") == (200, {}, b"{}", "")


def test_what_an_endpoint_does_wrong_looks_as_it_would_without_us() -> None:
    """Status, headers, bytes and where the connection breaks."""
    with ModelServer("") as model, proxy(model) as (url, _):
        for fault, answer in FAULTS.items():
            model.always(answer)
            assert observe(f"{url}/v1") == observe(model.base_url), fault


def test_a_status_that_http_lacks_is_answered_with_502(caplog: pytest.LogCaptureFixture) -> None:
    """No server can send it, and clients read it as one of 500 and more; the log has no traceback."""
    with ModelServer("") as model, proxy(model) as (url, _), structlog.testing.capture_logs() as logs:
        for code in (600, 999):
            model.always(status(code))
            seen, _, body, ended = observe(f"{url}/v1")
            assert (seen, ended) == (502, "")
            assert f"status {code}" in json.loads(body)["error"]["message"]
    assert [one["event"] for one in logs if one["log_level"] == "error"] == []
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["stream", "body"])
def test_an_answer_that_breaks_off_is_logged_once_without_its_words(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By the proxy, which knows why, and not as a fault of its own by the server around it."""
    answer = {"stream": chunks(b"data: secret\n\n"), "body": drop_midway()}[kind]
    with (
        ModelServer("") as model,
        structlog.testing.capture_logs() as logs,  # no server runs when it begins and ends: it is all threads'
        proxy(model) as (url, _),
        caplog.at_level(logging.INFO, "uvicorn.error"),
    ):
        model.always(answer)
        assert observe(f"{url}/v1")[0] == 200
    told = [one for one in logs if one["event"] == "proxy.answer_broke_off"]
    assert [(one["path"], one["error"]) for one in told] == [("/v1/chat/completions", "RemoteProtocolError")]
    assert "secret" not in str(logs)
    assert "without completing" not in caplog.text


def test_an_endpoint_that_hangs_in_a_stream_is_waited_for_as_long_as_the_client_waits() -> None:
    """What came is there at once, then the client's own limit counts; and when it has gone, the call ends."""
    ended = threading.Event()

    def answer(exchange: Exchange) -> None:
        exchange.start(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        exchange.write(b"9\r\ndata: 1\n\n\r\n")
        try:
            while True:
                exchange.pause(0.02)
                exchange.write(b"1\r\n \r\n")
        except ConnectionError:
            ended.set()
            raise

    with ModelServer("") as model, proxy(model) as (url, _):
        model.always(answer)
        with CLIENT.stream("POST", f"{url}/v1/chat/completions", json=ONE_TURN, headers=AUTH) as got:
            assert next(got.iter_raw()).startswith(b"data: 1")
            assert not ended.is_set()
        assert ended.wait(30)


@pytest.mark.parametrize(("path", "kind"), [("chat/completions", "openai"), ("messages", "anthropic")])
def test_where_no_answer_comes_the_error_has_the_providers_form(
    path: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """502 where the endpoint cannot be reached, 504 where it takes too long."""
    with ModelServer("") as model:
        with proxy(model, upstreams=dict.fromkeys(("openai", "anthropic"), "http://127.0.0.1:1")) as (url, _):
            dropped = CLIENT.post(f"{url}/v1/{path}", json=ONE_TURN, headers=AUTH)
        monkeypatch.setattr("compactor.server.proxy.RESPONSE_SECONDS", 0.2)
        with proxy(model) as (url, _):
            gate = model.hang()
            late = CLIENT.post(f"{url}/v1/{path}", json=ONE_TURN, headers=AUTH)
            gate.set()
    assert (dropped.status_code, late.status_code) == (502, 504)
    for answer in (dropped, late):
        assert answer.json().get("type") == ("error" if kind == "anthropic" else None)
        assert answer.json()["error"]["type"] == "api_error"
    with ModelServer("") as model, proxy(model, upstreams={}) as (url, _):
        assert "upstreams" in CLIENT.post(f"{url}/v1/{path}", json=ONE_TURN).json()["error"]["message"]


class BrokenStore(InMemoryStore):
    """Fails at what *how* does."""

    how: Callable[[], object] = staticmethod(lambda: None)

    def append(self, *args: Any, **more: Any) -> Any:
        self.how()
        return super().append(*args, **more)


def fail() -> None:
    raise StoreUnreachable("the database is gone")


def test_a_store_that_fails_or_hangs_changes_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request goes on as it was; a line of the log says so, without a word of it."""
    store, gate = BrokenStore(), threading.Event()
    body = json.dumps({"model": "gpt-4o", "messages": make_history(9)}).encode()
    with (
        ModelServer("") as model,
        structlog.testing.capture_logs() as logs,
        proxy(model, store, budget=600) as (url, _),
    ):
        for how, seconds in ((fail, 60.0), (gate.wait, 0.2)):
            monkeypatch.setattr("compactor.server.proxy.FIT_SECONDS", seconds)
            store.how = how  # type: ignore[method-assign]
            headers = AUTH | {"x-session-id": "trip"}
            assert CLIENT.post(f"{url}/v1/chat/completions", content=body, headers=headers).status_code == 200
        gate.set()
        assert [one.raw for one in model.requests] == [body, body]
    told = [one for one in logs if one["event"] == "proxy.passed_unchanged"]
    assert [one["error"] for one in told] == ["StoreUnreachable", "TimeoutError"]
    assert "rows" not in str(told)


def test_a_session_that_another_process_has_deleted_begins_anew() -> None:
    store, headers = InMemoryStore(), AUTH | {"x-session-id": "trip"}
    with ModelServer("") as model, proxy(model, store, budget=600) as (url, _), proxy(model, store) as (other, state):
        for turns in (8, 9):
            body = json.dumps({"model": "gpt-4o", "messages": make_history(turns)}).encode()
            assert CLIENT.post(f"{url}/v1/chat/completions", content=body, headers=headers).status_code == 200
            (name,) = list_sessions(state)
            assert CLIENT.delete(f"{other}/api/sessions/{name}").status_code == 204
        assert all(len(one.raw) < len(body) / 2 for one in model.requests)
