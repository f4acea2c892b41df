"""A real endpoint that is slow, refuses, breaks off or talks nonsense: the chat goes on, and compaction recovers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from model_server import Answer, Exchange, ModelServer, drip, drop, drop_midway, html, ok, reply, status
from scene import (
    CONFIG,
    LONGEST_TURN,
    ROLE,
    ROLES,
    SOON,
    Heard,
    add_round,
    end_of,
    least_of_three,
    memory_of,
    no_collections,
    of_kind,
    turn,
)

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Discarded,
    Failed,
    FailureKind,
    OpenAISummarizer,
    Published,
    State,
)
from compactor.testing import FakeClock
from memory import Memory

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("no_environment")]


TROUBLES: dict[str, Answer] = {
    "429 with Retry-After": status(429, {"Retry-After": "0"}),
    "500": status(500),
    "503 of a proxy": html(503),
    "401": status(401),
    "400": status(400),
    "504": status(504),
    "a page of HTML": html(),
    "no JSON": reply("{'choices': "),
    "an empty body": reply(""),
    "JSON of another kind": reply([1, 2]),
    "no choices": reply({"choices": []}),
    "choices that are null": reply({"choices": None}),
    "content that is null": reply({"choices": [{"message": {"content": None}}]}),
    "empty content": ok(""),
    "only thoughts": ok("<think>Let me see.</think>"),
    "a greeting": ok("Hello! How can I help you today?"),
    "a dropped connection": drop(),
    "a connection dropped midway": drop_midway(),
}


#: The kinds of failure and the HTTP status that are told of some of them.
TOLD = {
    "429 with Retry-After": (FailureKind.RATE_LIMIT, 429),
    "500": (FailureKind.SERVER, 500),
    "503 of a proxy": (FailureKind.SERVER, 503),
    "401": (FailureKind.AUTHENTICATION, 401),
    "400": (FailureKind.REQUEST, 400),
    "504": (FailureKind.TIMEOUT, 504),
    "no JSON": (FailureKind.OTHER, None),
    "empty content": (FailureKind.OTHER, None),
    "a greeting": (FailureKind.REJECTED, None),
    "a dropped connection": (FailureKind.NETWORK, None),
    "a connection dropped midway": (FailureKind.NETWORK, None),
}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        running.always(ok("The user asked what several items cost."))
        yield running


@pytest.fixture
def summarizer(server: ModelServer) -> Iterator[OpenAISummarizer]:
    with OpenAISummarizer("small-model", base_url=server.base_url, api_key="k", timeout=20) as made:
        yield made


@pytest.mark.parametrize("trouble", TROUBLES)
def test_compaction_recovers_by_itself_when_the_server_does(
    server: ModelServer, summarizer: OpenAISummarizer, trouble: str
) -> None:
    """Nothing of what went wrong is shown, but its kind; after the back-off it is asked again, with no new round."""
    memory, clock, heard = memory_of(10), FakeClock(), Heard()
    server.answers(TROUBLES[trouble], TROUBLES[trouble])
    config = CONFIG.copy_with(summary_attempts=1)
    with ContextCompactor.for_role(memory, ROLE, config, summarizer, clock=clock, on_event=heard) as compactor:
        for failures in (1, 2):
            failed = heard.until(Failed, failures)
            assert failed.failures == failures
            assert (failed.kind, failed.status) == TOLD.get(trouble, (failed.kind, None))
            assert compactor.wait_idle(SOON) is False
            assert compactor.status().state is State.BACKING_OFF
            assert memory.get_role_rounds(ROLE)[1] is None
            add_round(memory)
            assert len(server.requests) == failures, "the client itself does not try again"
            clock.advance(failed.retry_in)
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 9, "what was there when the third request was made"
    assert len(server.requests) == 3


def test_the_servers_wish_to_be_left_alone_is_respected(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """``Retry-After``: not a request before."""
    clock, heard = FakeClock(), Heard()
    server.answers(status(429, {"Retry-After": "17"}))
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, clock=clock, on_event=heard) as compactor:
        assert heard.until(Failed).retry_in == 17
        assert compactor.wait_idle(SOON) is False
        clock.advance(16.9)
        assert compactor.status().state is State.BACKING_OFF
        clock.advance(0.1)
        assert compactor.wait_idle(SOON)
    assert len(server.requests) == 2


def test_a_slow_answer_is_published_when_it_comes(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """The chat has gone on meanwhile."""
    memory, gate = memory_of(10), server.hang()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        assert server.wait_for_requests(1)
        for number in range(5):
            turn(memory, number)
        assert compactor.get_compaction() is None
        gate.set()
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 12
    assert of_kind(compactor.events, Failed) == []


def test_an_answer_that_never_comes_is_given_up(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """At the compactor's own deadline; another request takes its place while that one still hangs."""
    clock, heard, gate = FakeClock(), Heard(), server.hang()
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, summarizer, clock=clock, on_event=heard) as compactor:
        assert server.wait_for_requests(1)
        clock.advance(CONFIG.call_timeout)
        failed = heard.until(Failed)
        assert failed.error == "CompactionTimeout"
        assert compactor.wait_idle(SOON) is False
        clock.advance(failed.retry_in)
        heard.until(Published)
        gate.set()
        assert heard.until(Discarded).reason == "late"
        assert end_of(compactor) == 7
        assert compactor.status().generation == 1


def test_a_body_that_drips_for_ever_is_given_up_by_the_client(server: ModelServer) -> None:
    """Its time-out is for the whole call, so the thread comes back too."""
    clock, heard, passed = FakeClock(), Heard(), list[float]()

    def drip_for_a_minute(exchange: Exchange) -> None:
        passed.append(60.0)
        drip()(exchange)

    server.answers(drip_for_a_minute)
    options: dict[str, Any] = {"timeout": 30, "clock": lambda: time.monotonic() + sum(passed)}
    with (
        OpenAISummarizer("small-model", base_url=server.base_url, api_key="k", **options) as impatient,
        ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, impatient, clock=clock, on_event=heard) as compactor,
    ):
        failed = heard.until(Failed)
        assert failed.error == "SummarizerError"
        assert compactor.wait_idle(SOON) is False
        clock.advance(failed.retry_in)
        heard.until(Published)


@pytest.mark.slow
def test_turns_stay_short_through_all_of_it(server: ModelServer, summarizer: OpenAISummarizer) -> None:
    """Two agents chat while their endpoint fails in every way there is, and then no longer does."""
    config = CompactorConfig(
        threshold=7, retain_recent=3, backoff_initial=0.002, backoff_max=0.002, circuit_breaker_failures=1_000
    )

    def measured() -> list[float]:
        gate = threading.Event()
        slow = ok(gate=gate)
        before = len(server.requests)
        server.answers(*TROUBLES.values(), slow, *TROUBLES.values(), slow)
        memory, heard, times = Memory("s"), Heard(), []
        compactors = [ContextCompactor.for_role(memory, role, config, summarizer, on_event=heard) for role in ROLES]
        for compactor in compactors:
            compactor.start()
        with no_collections():
            for number in range(80):
                began = time.perf_counter()
                turn(memory, number)
                times.append(time.perf_counter() - began)
        gate.set()
        for compactor in compactors:
            role = compactor.role
            heard.until(Published, where=lambda event, role=role: event.role == role and event.end >= 73)
            assert compactor.stop(SOON)
            assert end_of(compactor) >= 73
        assert len(server.requests) - before > len(TROUBLES)
        return times

    measured()  # the first request imports the client
    assert max(least_of_three(measured)) < LONGEST_TURN
