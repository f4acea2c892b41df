"""OpenAISummarizer against a server on loopback that answers well, badly, slowly or never."""

from __future__ import annotations

import gc
import gzip
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import freezegun
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_server import Answer, ModelServer, completion, drip, drop, drop_midway, flood, html, ok, reply, status

from compactor import OpenAISummarizer, SummarizerError, Summary, SummaryRequest
from compactor.summarizers import response_limits as limits
from compactor.summarizers.answers import read_answer

pytestmark = pytest.mark.usefixtures("no_environment")

REQUEST = SummaryRequest(messages=[{"role": "user", "content": "the SECRET-PLAN of the conversation"}])
KEY = "sk-do-not-show-this-key"


@pytest.fixture
def summarizer(server: ModelServer) -> Iterator[OpenAISummarizer]:
    with OpenAISummarizer("small-model", base_url=server.base_url, api_key=KEY, timeout=20) as made:
        yield made


def failure(summarizer: Any) -> SummarizerError:
    with pytest.raises(SummarizerError) as caught:
        summarizer(REQUEST)
    return caught.value


def ask_until_answered(summarizer: Any) -> str:
    """Return the first answer that comes in time; on a busy machine a good server may miss a short deadline."""
    until = time.monotonic() + 20
    while True:
        try:
            return str(summarizer(REQUEST).text)
        except SummarizerError:
            if time.monotonic() > until:
                raise


# What is asked and what comes back


def test_the_answer_is_a_summary_with_its_cost(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """Text, token counts and the model's own name come back; the rendered messages are what was sent."""
    assert summarizer(REQUEST) == Summary(
        "SUMMARY 1", {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 60}, "model-1", continued=False
    )
    (request,) = server.requests
    assert request.body == {"model": "small-model", "messages": REQUEST.messages}
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_wrapping_tags_are_stripped(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """A model's thoughts and the tags around its summary are no part of the summary."""
    server.answers(ok("<think>hm</think>\n<summary>\nBooked.\n</summary>"))
    assert summarizer(REQUEST).text == "Booked."


def test_text_in_parts_is_joined_without_thoughts(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """Servers that answer in parts are understood; what is not text stays out."""
    thinking = {"type": "thinking", "thinking": "hm", "text": "hm"}
    server.answers(ok([thinking, {"type": "text", "text": "Boo"}, {"type": "text", "text": "ked."}, 7]))
    assert summarizer(REQUEST).text == "Booked."


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-4o-mini", {"temperature": 0.2, "max_tokens": 500}),
        ("gpt-oss:20b", {"temperature": 0.2, "max_tokens": 500}),
        ("o4-mini", {"max_completion_tokens": 500}),
        ("gpt-5-mini", {"max_completion_tokens": 500}),
        ("openai/gpt-5", {"max_completion_tokens": 500}),
    ],
)
def test_reasoning_models_get_the_parameters_they_take(
    server: ModelServer, model: str, expected: dict[str, Any]
) -> None:
    """Reasoning models refuse ``max_tokens`` and ``temperature``; all others know nothing else."""
    with OpenAISummarizer(model, base_url=server.base_url, temperature=0.2, max_output_tokens=500) as summarizer:
        summarizer(REQUEST)
    assert server.requests[0].body == {"model": model, "messages": REQUEST.messages} | expected


def test_extra_wins_over_every_choice_made_here(server: ModelServer) -> None:
    """Who knows the endpoint better can force a parameter, known to the client or not."""
    extra = {"max_completion_tokens": 9, "temperature": 1, "extra_body": {"num_ctx": 8192}}
    with OpenAISummarizer(
        "m", base_url=server.base_url, max_output_tokens=500, temperature=0, reasoning_effort="low", extra=extra
    ) as summarizer:
        summarizer(REQUEST)
    body = server.requests[0].body
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == 9
    assert (body["temperature"], body["num_ctx"], body["reasoning_effort"]) == (1, 8192, "low")


def test_a_client_made_here_sends_what_a_given_one_does(server: ModelServer) -> None:
    """Messages and tools are not converted by the client where it is ours, and read the same to the endpoint; what
    ``extra_body`` says wins over them all the same."""
    tools = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Find it."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found", "unheard_of": 1},
    ]
    more: dict[str, Any] = {"extra": {"tools": tools, "extra_body": {"seed": 7}}}
    client = openai.OpenAI(api_key=KEY, base_url=server.base_url)
    with client, OpenAISummarizer("small-model", base_url=server.base_url, **more) as ours:
        for summarizer in (ours, OpenAISummarizer("small-model", client=client, **more)):
            summarizer(SummaryRequest(messages=messages))
    first, second = (request.body for request in server.requests)
    assert first == second == {"model": "small-model", "messages": messages, "tools": tools, "seed": 7}
    with OpenAISummarizer("m", base_url=server.base_url, extra={"extra_body": {"messages": []}}) as summarizer:
        summarizer(REQUEST)
    assert server.requests[-1].body == {"model": "m", "messages": []}


def test_lone_surrogates_do_not_stop_a_summary(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """What UTF-8 cannot carry is replaced, at any depth; real pairs become the character they stand for."""
    content = [{"type": "text", "text": "a\ud800b \ud83d\ude00 \ufeff\0{}"}]
    messages = [{"role": "user", "content": content, "strict": True}]
    summarizer(SummaryRequest(messages=messages))
    assert server.requests[0].body["messages"][0]["strict"] is True
    assert server.requests[0].body["messages"][0]["content"][0]["text"] == "a\ufffdb \U0001f600 \ufeff\0{}"
    assert content[0]["text"].startswith("a\ud800"), "the request itself is not touched"


# Keys and addresses


@pytest.mark.slow
def test_making_one_imports_nothing_and_sends_nothing() -> None:
    """A host that never compacts pays nothing for the client, whose import takes half a second."""
    code = (
        "import sys; from compactor.summarizers import OpenAISummarizer;"
        "OpenAISummarizer('m', base_url='http://127.0.0.1:9').close(); sys.exit('openai' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, env=_environment()).returncode == 0


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_key_and_address_come_from_the_environment(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is where hosts keep both; white space around a key is not part of it."""
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    with OpenAISummarizer("m") as summarizer:
        summarizer(REQUEST)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_the_key_goes_to_no_address_set_later(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is settled with the key: what the environment says afterwards, or says with nothing, is not asked."""
    monkeypatch.setenv("OPENAI_BASE_URL", " ")
    summarizer = OpenAISummarizer("m", api_key=KEY)
    assert "https://api.openai.com/v1" in repr(summarizer)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(openai, "OpenAI", lambda **arguments: asked.update(arguments) or _client(None))
    failure(summarizer)
    assert asked["base_url"] == "https://api.openai.com/v1"
    assert asked["max_retries"] == 0


def test_a_server_of_ones_own_needs_no_key(server: ModelServer) -> None:
    """A local server is asked without any key being set."""
    with OpenAISummarizer("m", base_url=server.base_url) as summarizer:
        assert summarizer(REQUEST).text == "SUMMARY 1"


@pytest.mark.parametrize("base_url", [None, "https://api.openai.com/v1", "https://eu.api.openai.com/v1"])
def test_without_a_key_openai_is_not_asked(base_url: str | None) -> None:
    """The error comes at once and names every way out."""
    with pytest.raises(SummarizerError, match=r"OPENAI_API_KEY.*base_url=.*ExtractiveSummarizer"):
        OpenAISummarizer("m", base_url=base_url)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": " "}, "name of a model"),
        ({"model": None}, "name of a model"),
        ({"timeout": 0}, "timeout: must be a finite number above 0"),
        ({"timeout": float("nan")}, "timeout: must be"),
        ({"max_output_tokens": 0}, "max_output_tokens: must be a whole number from 1 on"),
        ({"extra": {"stream": True}}, "'stream'"),
        ({"extra": {"messages": []}}, "'messages'"),
        ({"base_url": "localhost:8000"}, "base_url="),
        ({"base_url": "http://[half/v1"}, "base_url="),
        ({"base_url": "http://host:port/v1"}, "base_url="),
        ({"client": SimpleNamespace(), "api_key": KEY}, "client="),
    ],
)
def test_nonsense_is_refused_when_it_is_made(arguments: dict[str, Any], message: str) -> None:
    """A mistake shows where it was made, not in a background thread a day later."""
    with pytest.raises(ValueError, match=message):
        OpenAISummarizer(**{"model": "m", **arguments})


def test_a_key_that_no_header_can_carry_is_refused_unseen() -> None:
    """The client's own error would print the header, and the key with it."""
    with pytest.raises(SummarizerError, match="copy it again") as caught:
        OpenAISummarizer("m", api_key=f"{KEY}\n{KEY}")
    assert KEY not in str(caught.value)


def test_passwords_in_an_address_are_not_shown() -> None:
    """The address helps to find a mistake; what is secret in it does not."""
    summarizer = OpenAISummarizer("m", base_url="https://me:pass@[::1]:8443/v1?token=t")
    assert repr(summarizer) == "OpenAISummarizer(model='m', endpoint='https://[::1]:8443/v1')"


# Failures


def _echo(exchange: Any) -> None:
    everything = json.dumps([exchange.request.body, dict(exchange.request.headers)])
    exchange.send(422, json.dumps({"error": {"message": everything, "code": everything, "param": everything}}))


FAILURES: dict[str, tuple[Answer, str]] = {
    "bad request": (status(400), "HTTP 400.*model="),
    "unauthorized": (status(401), "HTTP 401.*OPENAI_API_KEY"),
    "forbidden": (status(403), "HTTP 403.*permissions"),
    "not found": (status(404), "HTTP 404.*base_url="),
    "too large": (status(413), "HTTP 413.*summarizer_input_tokens"),
    "everything echoed": (_echo, "HTTP 422"),
    "rate limited": (status(429), "HTTP 429.*too many requests"),
    "server error": (status(500), "HTTP 500.*its log"),
    "server error as a page": (html(503), "HTTP 503"),
    "error that is no object": (reply([1], 500), "HTTP 500"),
    "too long": (status(400, body={"error": {"code": "context_length_exceeded"}}), "model's window"),
    "too long for vLLM": (
        status(400, body={"message": "This model's maximum context length is 4096 tokens.", "code": 400}),
        "model's window",
    ),
    "blocked": (status(400, body={"error": {"code": "content_filter"}}), "a filter blocked the request"),
    "out of credit": (status(429, body={"error": {"code": "insufficient_quota"}}), "no credit"),
    "refuses the model": (status(400, body={"error": {"param": "model"}}), "refuses this 'model'"),
    "dropped": (drop(), "no connection to http://127.0.0.1"),
    "dropped midway": (drop_midway(), "no connection to http://127.0.0.1"),
    "empty body": (reply(""), "answer is empty"),
    "blank body": (reply("\n \n"), "answer is empty"),
    "half of JSON": (reply('{"choices": ['), "not JSON"),
    "not UTF-8": (reply(b'{"choices": "\xff"}'), "not JSON"),
    "nested too deep": (reply("[" * 100_000), "not JSON"),
    "web page": (html(), "web page.*base_url="),
    "text": (reply('"hello"'), "no choices"),
    "a list": (reply([]), "no choices"),
    "nothing": (reply("null"), "no choices"),
    "an error inside": (reply({"error": {"message": "no", "code": 502}}), "holds an error"),
    "choices missing": (reply({}), "no choices"),
    "choices null": (reply({"choices": None}), "no choices"),
    "choices empty": (reply({"choices": []}), "no choices"),
    "choices text": (reply({"choices": "abc"}), "no choices"),
    "choice null": (reply({"choices": [None]}), "no message"),
    "message null": (reply({"choices": [{"message": None}]}), "no message"),
    "content missing": (reply({"choices": [{"message": {}}]}), "empty answer"),
    "content null": (ok(None, content=None), "empty answer"),
    "content blank": (ok(" \n"), "empty answer"),
    "content number": (ok(5), "empty answer"),
    "content null parts": (ok([None, {"type": "text", "text": None}]), "empty answer"),
    "only thoughts": (ok("<think>what if"), "empty answer"),
    "cut off": (ok("half a", finish="length"), "max_output_tokens="),
    "filtered": (ok("", finish="content_filter"), "refused"),
    "refused": (ok(None, content=None, refusal="I can't"), "refused"),
    "tool call": (ok(None, content=None, finish="tool_calls", tool_calls=[{"id": "1"}]), "tool"),
    "function call": (ok("x", function_call={"name": "f"}), "tool"),
    "flood": (flood(), "larger than 10 MB"),
    "flooded error": (flood(500), "larger than 10 MB"),
}


@pytest.mark.parametrize(("answer", "message"), FAILURES.values(), ids=FAILURES)
def test_every_failure_is_one_error_that_names_the_remedy(
    server: ModelServer, summarizer: OpenAISummarizer, caplog: pytest.LogCaptureFixture, answer: Answer, message: str
) -> None:
    """The endpoint is asked once; neither key nor conversation shows, in the traceback or the log; the next call works."""
    caplog.set_level(logging.INFO)
    server.answers(answer)
    error = failure(summarizer)
    assert re.search(message, str(error)), str(error)
    assert len(server.requests) == 1
    shown = "".join(traceback.format_exception(error)) + caplog.text + repr(summarizer) + str(error)
    assert KEY not in shown
    assert "SECRET-PLAN" not in shown
    assert summarizer(REQUEST).text == "SUMMARY 2"


def test_the_cause_is_kept(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """Who must know more than the remedy finds the client's own error, status and response included."""
    server.answers(status(500))
    cause = failure(summarizer).__cause__
    assert isinstance(cause, openai.InternalServerError)
    assert cause.status_code == 500


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_refused_output_limit_names_the_other(server: ModelServer, name: str) -> None:
    """Endpoints differ in what they call the limit; the error says how to call it instead."""
    server.answers(status(400, body={"error": {"code": "unsupported_parameter", "param": name}}))
    other = {"max_tokens", "max_completion_tokens"} - {name}
    with OpenAISummarizer("m", base_url=server.base_url, extra={name: 9}) as summarizer:
        assert f"extra={{{other.pop()!r}: ...}}" in str(failure(summarizer))


def test_a_server_that_is_not_there_is_named(server: ModelServer) -> None:
    """The commonest mistake of all, a server that does not run, shows its address."""
    with ModelServer() as gone:
        address = gone.base_url
    with OpenAISummarizer("m", base_url=address) as summarizer:
        assert f"no connection to {address}" in str(failure(summarizer))


def test_an_argument_the_client_does_not_know_is_explained(server: ModelServer) -> None:
    """Parameters of other servers go through the client's own side door, and the error says which."""
    with OpenAISummarizer("m", base_url=server.base_url, extra={"num_ctx": 8192}) as summarizer:
        assert "extra_body" in str(failure(summarizer))
    assert server.requests == []


def test_an_interrupt_passes_through() -> None:
    """Ctrl-C is the host's affair, not a failed summary."""

    def create(**_arguments: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        OpenAISummarizer("m", client=_client(create))(REQUEST)


# Retry-After


RETRY_AFTER = {
    "7": 7.0,
    "0.5": 0.5,
    "-3": 0.0,
    "Thu, 01 Jan 2026 00:01:30 GMT": 90.0,
    "Thu, 01 Jan 2026 00:01:30": 90.0,
    "Thu, 01 Jan 2099 00:00:00 GMT": 86_400.0,
    "99999999": 86_400.0,
    "Wed, 31 Dec 2025 23:00:00 GMT": 0.0,
    "soon": None,
    "inf": None,
    "nan": None,
    "": None,
    "Thu, 01 Jan 99999999999999999999 00:00:00 GMT": None,
}


@pytest.mark.slow
def test_retry_after_is_understood_or_ignored() -> None:
    """Seconds and dates are taken, the past is now, more than a day is a day, and nonsense is as if nothing was said."""

    class Busy(Exception):
        status_code = 503

        def __init__(self, value: str) -> None:
            self.response = SimpleNamespace(headers={"retry-after": value})

    values = iter(RETRY_AFTER)

    def create(**_arguments: Any) -> None:
        raise Busy(next(values))

    summarizer = OpenAISummarizer("m", client=_client(create))
    with freezegun.freeze_time("2026-01-01 00:00:00"):
        assert {value: failure(summarizer).retry_after for value in RETRY_AFTER} == RETRY_AFTER


def test_retry_after_is_read_from_the_wire(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """The header is found whatever the case of its name, as seconds or as a date; without it there is no wish."""
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    server.answers(status(429, {"RETRY-AFTER": "12"}), status(503, {"Retry-After": date}), status(429))
    assert failure(summarizer).retry_after == 12.0
    assert 3000 < (failure(summarizer).retry_after or 0) <= 3600
    assert failure(summarizer).retry_after is None
    for value, seconds in (("1500", 1.5), ("-1", 0.0), ("soon", 12.0), ("nan", 12.0)):  # preferred, as by the client
        server.answers(status(429, {"Retry-After-MS": value, "Retry-After": "12"}))
        assert failure(summarizer).retry_after == seconds


# Time


@pytest.mark.parametrize(
    "answer",
    [drip(), drip(500), drip(headers=True, piece=b"x"), drip(interval=3600), drip(503, interval=3600)],
    ids=["body", "error body", "header", "silent body", "silent error body"],
)
def test_no_server_holds_a_call_past_its_deadline(server: ModelServer, answer: Answer) -> None:
    """A byte now and then outlives the client's own timeout, which is for each read; it does not outlive ours."""
    server.answers(answer)
    with OpenAISummarizer("m", base_url=server.base_url, timeout=1.0) as summarizer:
        started = time.monotonic()
        assert "no complete answer within 1 s: raise timeout=" in str(failure(summarizer))
        assert time.monotonic() - started < 10
        assert ask_until_answered(summarizer).startswith("SUMMARY")


def test_a_server_that_hangs_is_given_up(server: ModelServer) -> None:
    """Silence ends at the deadline too."""
    server.hang()
    with OpenAISummarizer("m", base_url=server.base_url, timeout=0.2) as summarizer:
        assert "no complete answer within 0.2 s" in str(failure(summarizer))


def test_an_answer_that_comes_late_but_in_time_is_taken(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """Waiting for a model is not a failure."""
    gate = server.hang()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(summarizer, REQUEST)
        assert server.wait_for_requests(1)
        gate.set()
        assert answer.result(20).text == "SUMMARY 1"


def test_the_deadline_follows_the_clock_it_is_given(server: ModelServer) -> None:
    """Time is passed in: a clock that leaps ends the call with no time passing."""
    moments = iter(range(10_000))
    server.answers(drip(interval=0.0))
    with OpenAISummarizer("m", base_url=server.base_url, timeout=30, clock=lambda: float(next(moments))) as summarizer:
        assert "within 30 s" in str(failure(summarizer))
    assert 30 <= next(moments) < 40


def test_every_wait_of_a_connection_is_cut_to_what_is_left() -> None:
    """Connecting, TLS, reading and writing share one deadline; a long write is checked on its way; outside of a call
    nothing is changed."""
    waits: list[tuple[str, float | None]] = []

    class Stream:
        def read(self, max_bytes: int, timeout: float | None) -> bytes:
            waits.append(("read", timeout))
            return b"x" * max_bytes

        def write(self, buffer: bytes, timeout: float | None) -> None:
            waits.append((f"write {len(buffer)}", timeout))

        def start_tls(self, ssl_context: Any, timeout: float | None) -> Stream:
            waits.append(("tls", timeout))
            return self

        def get_extra_info(self, info: str) -> str:
            return info

    class Backend:
        def connect_tcp(self, host: str, timeout: float | None) -> Stream:
            waits.append((f"connect {host}", timeout))
            return Stream()

        def sleep(self, seconds: float) -> float:
            return seconds

    def use(connections: Any, timeout: float | None) -> None:
        stream = connections.connect_tcp("h", timeout=timeout).start_tls(None, timeout=timeout)
        stream.write(b"x" * 20_000, timeout=timeout)
        assert stream.read(2, timeout=timeout) == b"xx"
        assert stream.get_extra_info("socket") == "socket"

    pool = SimpleNamespace(_network_backend=Backend())
    strange = SimpleNamespace()
    limits.limit_connections(SimpleNamespace(_transport=strange, _mounts={"a": None, "b": SimpleNamespace(_pool=pool)}))
    limits.limit_connections(strange)
    assert pool._network_backend.sleep(1) == 1
    names = ["connect h", "tls", "write 16384", "write 3616", "read"]

    use(pool._network_backend, None)
    assert waits == [(name, None) for name in names]

    moments = iter(range(100))
    token = limits.current.set(limits.Limit(8, lambda: float(next(moments))))
    try:
        waits.clear()
        use(pool._network_backend, None)
        assert waits == list(zip(names, [7, 6, 5, 4, 3], strict=True))
        waits.clear()
        with pytest.raises(SummarizerError, match="within 8 s"):
            use(pool._network_backend, 1.5)
        assert waits == list(zip(names, [1.5, 1], strict=False))
    finally:
        limits.current.reset(token)


# Clients and threads


def _client(create: Any) -> Any:
    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


@pytest.mark.parametrize("as_json", [True, False])
def test_any_client_with_the_same_method_will_do(as_json: bool) -> None:
    """A wrapper, a recorder or a fake serves as well as openai's own; it is handed the deadline as a timeout."""
    asked: dict[str, Any] = {}

    def create(**arguments: Any) -> Any:
        asked.update(arguments)
        answer = completion("Booked.")
        return answer if as_json else openai.types.chat.ChatCompletion.construct(**answer)

    assert OpenAISummarizer("m", client=_client(create), timeout=9)(REQUEST) == Summary(
        "Booked.", {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 60}, "model-1", continued=False
    )
    assert asked == {"model": "m", "messages": REQUEST.messages, "timeout": 9}


def test_a_given_client_is_asked_once_and_stays_open(server: ModelServer) -> None:
    """The compactor's waits are the only ones, so the client's retries are off; its connections are its owner's."""
    server.answers(status(500), drip(), ok())
    with openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=5) as client:
        with (
            OpenAISummarizer("m", client=client, timeout=20) as summarizer,
            OpenAISummarizer("m", client=client, timeout=0.2) as impatient,
        ):
            assert "HTTP 500" in str(failure(summarizer))
            assert len(server.requests) == 1
            assert "no complete answer within 0.2 s" in str(failure(impatient))
            assert server.wait_for_requests(2)
            assert summarizer(REQUEST).text == "SUMMARY 3"
        assert not client.is_closed()
        assert client.max_retries == 5


def test_a_large_answer_is_refused_with_any_client(server: ModelServer) -> None:
    """A given client's connections are not ours to limit, so the body is measured as it is read."""
    server.answers(flood())
    with openai.OpenAI(base_url=server.base_url, api_key=KEY) as client:
        assert "larger than 10 MB" in str(failure(OpenAISummarizer("m", client=client)))


@pytest.mark.parametrize("client", [object(), SimpleNamespace(chat=None), _client("text")])
def test_an_object_that_is_no_client_is_refused(client: Any) -> None:
    """The error says what is needed."""
    with pytest.raises(TypeError, match=r"chat\.completions\.create"):
        OpenAISummarizer("m", client=client)


def test_an_asynchronous_client_is_refused() -> None:
    """Summarizers run in a thread; openai's asynchronous client is known at once, others by what they return."""
    with pytest.raises(TypeError, match=r"openai\.OpenAI"):
        OpenAISummarizer("m", client=openai.AsyncOpenAI(api_key=KEY))

    async def create(**_arguments: Any) -> None: ...

    assert "asynchronous" in str(failure(OpenAISummarizer("m", client=_client(create))))

    class Awaitable:
        def __await__(self) -> Iterator[None]:
            return iter(())

    assert "asynchronous" in str(failure(OpenAISummarizer("m", client=_client(lambda **_: Awaitable()))))


def test_an_unknown_failure_names_its_class_only() -> None:
    """What a foreign client says may quote the conversation; its class does not."""

    def create(**arguments: Any) -> None:
        raise LookupError(str(arguments))

    error = failure(OpenAISummarizer("m", client=_client(create)))
    assert "LookupError" in str(error)
    assert "SECRET-PLAN" not in str(error)
    assert isinstance(error.__cause__, LookupError)


def test_one_client_serves_all_threads(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """Eight calls at once run side by side, each with its own answer."""
    gate = threading.Event()
    server.answers(*[ok(gate=gate)] * 8)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(summarizer, REQUEST) for _ in range(8)]
        assert server.wait_for_requests(8), "all of them at once"
        gate.set()
        assert {answer.result(20).text for answer in answers} == {f"SUMMARY {n}" for n in range(1, 9)}


def test_of_two_clients_made_at_once_one_is_kept(
    server: ModelServer, summarizer: OpenAISummarizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A race of two first calls leaves one client, and the other closed."""
    kind, made = openai.OpenAI, []

    def race(**options: Any) -> Any:
        client = kind(**options)
        made.append(client)
        if len(made) == 1:  # what another thread may do just now
            summarizer(REQUEST)
        return client

    monkeypatch.setattr(openai, "OpenAI", race)
    summarizer(REQUEST)
    assert len(server.requests) == 2
    assert sorted(client.is_closed() for client in made) == [False, True]


def test_a_forked_process_makes_a_client_of_its_own(
    server: ModelServer, summarizer: OpenAISummarizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes never write to one connection."""
    connections = openai.DefaultHttpxClient
    made: list[Any] = []
    monkeypatch.setattr(openai, "DefaultHttpxClient", lambda **more: made.append(connections(**more)) or made[-1])
    summarizer(REQUEST)
    summarizer(REQUEST)
    assert len(made) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    summarizer(REQUEST)
    assert len(made) == 2


def test_closing_is_for_good(server: ModelServer) -> None:
    """A closed summarizer says so, closes as often as one likes, and asks nobody."""
    summarizer = OpenAISummarizer("m", base_url=server.base_url)
    summarizer(REQUEST)
    summarizer.close()
    summarizer.close()
    assert "closed; make a new one" in str(failure(summarizer))
    assert len(server.requests) == 1


@pytest.mark.slow
def test_a_forgotten_summarizer_leaves_no_connection_behind(server: ModelServer) -> None:
    """Without ``close`` the connections end with the summarizer; an open socket would be a warning, thus an error."""
    summarizer = OpenAISummarizer("m", base_url=server.base_url)
    summarizer(REQUEST)
    del summarizer
    gc.collect()


# Whatever comes


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({}, None),
        ("many", None),
        ([1], None),
        ({"prompt_tokens": 5}, {"input_tokens": 5}),
        ({"prompt_tokens": "5", "completion_tokens": 2.5, "prompt_tokens_details": None}, None),
        ({"prompt_tokens": True, "completion_tokens": -1, "prompt_tokens_details": 3}, None),
        (
            {"completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 4}},
            {"output_tokens": 0, "cached_tokens": 4},
        ),
    ],
)
def test_usage_holds_only_counts_that_are_counts(usage: Any, expected: Any) -> None:
    """A missing or nonsensical count is left out; it never spoils a good summary."""
    assert read_answer(completion("Booked.", usage=usage), None).usage == expected


@pytest.mark.parametrize("named", [None, "", 5])
def test_an_answer_that_names_no_model_is_by_the_one_asked(named: Any) -> None:
    """The model is known either way."""
    assert read_answer(completion() | {"model": named}, "asked").model == "asked"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = JSON | st.fixed_dictionaries(
    {}, optional={"content": JSON, "refusal": JSON, "tool_calls": JSON, "function_call": JSON}
)
CHOICES = st.lists(JSON | st.fixed_dictionaries({}, optional={"finish_reason": JSON, "message": MESSAGES}), max_size=2)
ANSWERS = JSON | st.fixed_dictionaries({}, optional={"choices": JSON | CHOICES, "usage": JSON, "model": JSON})


@given(ANSWERS)
def test_any_answer_is_a_summary_or_a_summarizer_error(answer: Any) -> None:
    """Nothing that a server can say gets through unchecked, or out as another exception."""
    try:
        summary = read_answer(answer, "m")
    except SummarizerError:
        return
    assert isinstance(summary.text, str)
    assert summary.text.strip()
    assert summary.model
    assert summary.usage is None or all(type(n) is int and n >= 0 for n in summary.usage.values())


@given(JSON | st.fixed_dictionaries({"prompt_tokens": JSON, "completion_tokens": JSON}), JSON)
def test_a_text_is_a_summary_whatever_stands_beside_it(usage: Any, model: Any) -> None:
    """Counts that are none are left out, and a model without a name is the one asked."""
    summary = read_answer(completion("Booked.") | {"usage": usage, "model": model}, "m")
    assert (summary.text, summary.model) == ("Booked.", model if isinstance(model, str) and model else "m")
    assert all(type(n) is int and n >= 0 for n in (summary.usage or {}).values())


# -- where the conversation goes, and what comes back ------------------------------------------------------------------


def own(server: ModelServer) -> OpenAISummarizer:
    return OpenAISummarizer("m", base_url=server.base_url, api_key=KEY, timeout=20)


def given_client(server: ModelServer) -> OpenAISummarizer:
    return OpenAISummarizer("m", client=openai.OpenAI(base_url=server.base_url, api_key=KEY), timeout=20)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("make", [own, given_client])
def test_no_redirect_takes_the_conversation_elsewhere(server: ModelServer, code: int, make: Any) -> None:
    """It went to the address that was checked, and goes to no other; the error says where to, and what to do."""
    with ModelServer() as elsewhere:
        server.answers(status(code, headers={"Location": f"{elsewhere.base_url}/chat/completions?key=hidden"}))
        error = failure(make(server))
        assert elsewhere.requests == []
    assert re.search(rf"HTTP {code}.*redirects to {elsewhere.base_url}.*set base_url=", str(error))
    assert "hidden" not in str(error)


def test_a_redirect_that_names_no_address_is_refused_in_our_words(server: ModelServer) -> None:
    """What stands in it may be anything."""
    server.answers(status(307, headers={"Location": "http://x\x1b]0;y"}), status(307))
    with own(server) as summarizer:
        for _ in range(2):
            error = failure(summarizer)
            assert re.search(r"redirects to another address.*set base_url=", str(error))
            assert "\x1b" not in str(error)


def bomb(code: int, coding: str = "gzip", megabytes: int = 100) -> Answer:
    """A small body that is very large once it is decompressed."""
    packed = zlib.compressobj(1, zlib.DEFLATED, 31 if coding == "gzip" else 15)
    body = b"".join([packed.compress(b" " * 1_000_000) for _ in range(megabytes)]) + packed.flush()
    return reply(body, code, {"Content-Encoding": coding})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "code", "coding"),
    [(own, 200, "gzip"), (own, 500, "gzip"), (own, 500, "deflate"), (own, 404, "gzip"), (given_client, 200, "gzip")],
)
def test_a_body_is_measured_as_it_is_decompressed(server: ModelServer, make: Any, code: int, coding: str) -> None:
    """A few bytes on the wire do not fill the memory, in an error as in an answer."""
    server.answers(bomb(code, coding))
    summarizer = make(server)
    with summarizer:
        summarizer._get_client()  # with what it imports
        tracemalloc.start()
        try:
            assert "larger than 10 MB" in str(failure(summarizer))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 60_000_000


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("make", [own, given_client])
def test_a_compressed_answer_is_read(server: ModelServer, make: Any, coding: str) -> None:
    """As servers and what stands before them send it; a broken one says what it is."""
    body = json.dumps(completion("A summary, é, of " + "much " * 90_000)).encode()
    packed = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    server.answers(*[reply(sent, headers={"Content-Encoding": coding}) for sent in (packed, body)])
    with make(server) as summarizer:
        assert summarizer(REQUEST).text.startswith("A summary, é, of much much")
        assert "cannot be decompressed" in str(failure(summarizer))
