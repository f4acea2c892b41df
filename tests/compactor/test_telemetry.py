"""What operations see: one span per paid answer, and the same metrics through OpenTelemetry and for Prometheus."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from executors import ManualExecutor
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Event,
    Limits,
    Memory,
    Session,
    Sessions,
    Started,
    Summary,
    SummaryRequest,
    telemetry,
)
from compactor.telemetry.prometheus import make_registry
from compactor.testing import FakeClock

ROOT = Path(__file__).resolve().parents[2]
CONFIG = CompactorConfig(threshold=2, retain_recent=1, circuit_breaker_failures=1)
USAGE = {"input_tokens": 1_000_000, "cached_tokens": 400_000, "output_tokens": 100_000}
#: By the list prices of gpt-5-mini.
PRICE = 0.6 * 0.25 + 0.4 * 0.025 + 0.1 * 2.0
SUMMARY = "The user asked what item-1, item-2 and item-3 cost: 11, 22 and 33 euros."
SESSION = "the-users-session"


class Model:
    """Answers in two seconds each, or raises."""

    def __init__(self, clock: FakeClock, *answers: str | Exception) -> None:
        self.clock, self.answers = clock, list(answers)
        self.spans: list[trace.Span] = []
        self.answered = 0

    def __call__(self, _request: SummaryRequest) -> Summary:
        self.spans.append(trace.get_current_span())
        self.clock.advance(2)
        answer = self.answers.pop(0) if self.answers else SUMMARY
        if isinstance(answer, Exception):
            raise answer
        self.answered += 1
        return Summary(answer, USAGE, "gpt-5-mini")


def talk(session: Session, rounds: int = 4) -> None:
    for _ in range(rounds):
        number = len(session.memory.conversation.rounds) + 1
        session.append({"role": "user", "content": f"Question {number}: what does item-{number} cost?"})
        session.append({"role": "assistant", "content": f"Item-{number} costs {number * 11} euros. " * 3})


class Server:
    """Sessions whose cycles run on command, with all that watches them."""

    def __init__(self, *answers: str | Exception) -> None:
        self.clock, self.executor, self.spans = FakeClock(), ManualExecutor(), InMemorySpanExporter()
        self.model = Model(self.clock, *answers)
        self.sessions = Sessions(executor=self.executor, clock=self.clock, config=CONFIG, summarizer=self.model)
        self.registry = make_registry(self.sessions)
        self.tracers, reader = TracerProvider(), PrometheusMetricReader()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meters = MeterProvider([reader])
        self.stop = telemetry.instrument(self.sessions, tracer_provider=self.tracers, meter_provider=self.meters)

    def talk(self, rounds: int = 4) -> None:
        with self.sessions.open(SESSION) as session:
            talk(session, rounds)
            self.executor.run_all()

    def close(self) -> None:
        self.sessions.close()
        self.meters.shutdown()

    def finished(self) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name == "compact_conversation"]


@pytest.fixture
def start() -> Iterator[Any]:
    made: list[Server] = []

    def make(*answers: str | Exception) -> Server:
        made.append(Server(*answers))
        return made[-1]

    yield make
    for server in made:
        server.close()


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Return our samples by name and labels; those of a histogram's buckets and of times of creation left out."""
    found = {}
    for family in registry.collect():
        for one in family.samples:
            if one.name.startswith("compactor_") and not one.name.endswith(("_created", "_bucket")):
                labels = sorted((name, value) for name, value in one.labels.items() if not name.startswith("otel_"))
                found[f"{one.name}{dict(labels)}"] = one.value
    return found


def test_each_paid_answer_is_a_span_that_says_what_it_cost(start: Any) -> None:
    """Refused ones too, each with its own usage and time; what is found in the log again is not paid twice."""
    server = start("Hello! How can I help you today?", SUMMARY)
    began = server.clock.now()
    server.talk()
    refused, accepted = server.finished()
    assert refused.attributes == {
        "gen_ai.operation.name": "compact_conversation",
        "gen_ai.conversation.id": SESSION,
        "gen_ai.agent.name": "assistant",
        "gen_ai.response.model": "gpt-5-mini",
        "gen_ai.usage.input_tokens": 1_000_000,
        "gen_ai.usage.output_tokens": 100_000,
        "gen_ai.usage.cache_read.input_tokens": 400_000,
        "compactor.outcome": "rejected",
        "compactor.price": pytest.approx(PRICE),
        "compactor.rounds.start": 1,
        "compactor.rounds.end": 3,
        "compactor.strategy": "compact_rounds",
        "compactor.generation": 0,
        "compactor.check": "greeting",
        "compactor.attempt": 1,
        "error.type": "rejected",
    }
    own = dict(accepted.attributes)
    assert {own.pop("compactor.tokens.before") > own.pop("compactor.tokens.after") > 0} == {True}
    assert own["compactor.price"] == pytest.approx(PRICE)
    same = {name: value for name, value in refused.attributes.items() if name.startswith("gen_ai.")}
    assert own.items() >= (same | {"compactor.outcome": "accepted"}).items()
    for number, span in enumerate((refused, accepted)):
        first = began + timedelta(seconds=2 * number)
        times = first.timestamp() * 1e9, (first + timedelta(seconds=2)).timestamp() * 1e9
        assert (span.start_time, span.end_time) == pytest.approx(times, abs=2_000)
        assert span.parent is None
    assert (refused.status.is_ok, accepted.status.is_ok) == (False, True)


def test_a_span_is_linked_to_the_one_in_which_the_agent_spoke(start: Any) -> None:
    """A trace of its own, for the agent does not wait. The call of the model is no part of the agent's span."""
    server = start()
    tracer = trace.get_tracer("agent", tracer_provider=server.tracers)
    with server.sessions.open(SESSION) as session:
        with tracer.start_as_current_span("invoke_agent") as agent:
            talk(session)
        server.executor.run_all()
        talk(session, 3)
        server.executor.run_all()
    linked, alone = server.finished()
    assert [link.context.span_id for link in linked.links] == [agent.get_span_context().span_id]
    assert linked.context.trace_id != agent.get_span_context().trace_id
    assert not alone.links
    assert not any(span.get_span_context().is_valid for span in server.model.spans)


def test_both_ways_to_prometheus_say_the_same(start: Any) -> None:
    """Names, labels and values; no label names a session; the gauges fall back when all is well again."""
    server = start("Hello! How can I help you today?", SUMMARY, ConnectionError())
    server.talk()
    server.talk()
    told, other = samples(server.registry), samples(REGISTRY)
    assert 0 <= told.pop("compactor_uncovered_age_seconds{}") <= other.pop("compactor_uncovered_age_seconds{}")
    assert told == other
    assert told["compactor_compactions_total{'outcome': 'published', 'role': 'assistant'}"] == 1
    assert told["compactor_compactions_total{'outcome': 'rejected', 'role': 'assistant'}"] == 1
    assert told["compactor_compactions_total{'outcome': 'failed', 'role': 'assistant'}"] == 1
    assert told["compactor_failures_total{'kind': 'network', 'role': 'assistant'}"] == 1
    assert told["compactor_spend_USD_total{'model': 'gpt-5-mini'}"] == pytest.approx(2 * PRICE)
    saved = told["compactor_tokens_before_sum{}"] - told["compactor_tokens_after_sum{}"]
    assert told["compactor_tokens_saved_total{}"] >= saved > 0
    assert told["compactor_duration_seconds_sum{}"] == 4
    assert told["compactor_circuits_open{}"] == 1
    assert {family.name for family in server.registry.collect()} == {
        metric.prometheus_name for metric in telemetry.METRICS
    }
    assert SESSION not in generate_latest(server.registry).decode() + generate_latest(REGISTRY).decode()
    server.clock.advance(3_600)
    server.executor.run_all()
    told = samples(server.registry)
    assert (told["compactor_circuits_open{}"], told["compactor_uncovered_age_seconds{}"]) == (0, 0)
    assert told == samples(REGISTRY)


def test_the_age_is_that_of_the_oldest_round_that_waits(start: Any) -> None:
    """Of rounds that are due to be covered, and are not because it fails."""
    server = start(ConnectionError())
    server.talk()
    with server.sessions.open(SESSION) as session:
        since = session.memory.conversation.rounds[0].created_at
        age = samples(server.registry)["compactor_uncovered_age_seconds{}"]
        assert server.sessions.status().behind_since == since
        assert 0 <= age < 3_600


def test_nothing_is_written_after_stop(start: Any) -> None:
    """A host that reloads its telemetry does not write twice."""
    server = start()
    server.stop()
    server.talk()
    assert not server.finished()
    assert not any(samples(REGISTRY).values())
    assert any(samples(server.registry).values())


def test_a_compactor_alone_can_be_watched_and_an_offline_answer_is_not_paid() -> None:
    """It is counted, and is no span."""
    spans, memory = InMemorySpanExporter(), Memory(SESSION)
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    compactor = ContextCompactor.for_role(memory, "assistant", CONFIG)
    telemetry.instrument(compactor, tracer_provider=tracers, meter_provider=MeterProvider())
    registry = make_registry(compactor)
    for number in range(1, 5):
        memory.append({"role": "user", "content": f"Question {number}: what does item-{number} cost?"})
        memory.append({"role": "assistant", "content": f"Item-{number} costs {number * 11} euros. " * 9})
    compactor.compact_now(10)
    compactor.stop()
    assert samples(registry)["compactor_compactions_total{'outcome': 'published', 'role': 'assistant'}"] == 1
    assert samples(registry)["compactor_circuits_open{}"] == 0
    assert spans.get_finished_spans() == ()


def test_looks_are_made_on_demand_as_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that appends makes no event for the sake of telemetry."""
    made: list[str] = []
    monkeypatch.setattr("compactor.events.create_unchecked", lambda kind, _fields: made.append(kind.name))
    executor = ManualExecutor()
    memory = Memory(SESSION)
    with ContextCompactor.for_role(memory, "assistant", CompactorConfig(threshold=50), executor=executor) as compactor:
        make_registry(compactor)
        telemetry.instrument(compactor, tracer_provider=TracerProvider(), meter_provider=MeterProvider())
        for number in range(10):
            memory.append({"role": "user", "content": f"Question {number}"})
            executor.run_all()
    assert made == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "code", "extra"),
    [
        ("opentelemetry", "telemetry.instrument()", "otel"),
        ("prometheus_client", "import compactor.telemetry.prometheus", "server"),
    ],
)
def test_a_missing_extra_is_named(missing: str, code: str, extra: str) -> None:
    """With the command that installs it; the rest works without."""
    program = f"import sys; sys.modules[{missing!r}] = None; from compactor import telemetry; {code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert f'pip install "context-compactor[{extra}]"' in done.stderr


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["good", "refused", "fails"]), max_size=3), max_size=4))
def test_every_answer_is_a_span_and_is_paid_once(turns: list[list[str]]) -> None:
    """Whatever the model answers, and however often it is asked again: no span lacks, and none counts for another."""
    known: dict[str, str | Exception] = {"good": SUMMARY, "refused": "Hello! How can I help?", "fails": OSError()}
    server = Server()
    try:
        for turn in turns:
            server.model.answers = [known[one] for one in turn]
            server.talk()
            server.clock.advance(3_600)
            server.executor.run_all()
        spans = server.finished()
        assert len(spans) == server.model.answered
        assert {(span.attributes or {})["gen_ai.usage.input_tokens"] for span in spans} <= {USAGE["input_tokens"]}
        assert {span.end_time - span.start_time for span in spans if span.end_time and span.start_time} <= {2 * 10**9}
        spent = samples(server.registry).get("compactor_spend_USD_total{'model': 'gpt-5-mini'}", 0)
        assert spent == pytest.approx(PRICE * server.model.answered)
    finally:
        server.close()


def test_the_wait_is_the_time_in_the_queue() -> None:
    """From when the compaction was due, until the limits had room for its first request."""
    clock, executor, names = FakeClock(), ManualExecutor(), ("first", "second")

    def summarize(_request: SummaryRequest) -> Summary:
        executor.run_all()  # the other session's cycle finds that there is no room
        clock.advance(5)
        return Summary(SUMMARY)

    with Sessions(executor=executor, clock=clock, config=CONFIG, summarizer=summarize, limits=Limits(1)) as sessions:
        heard = list[Event]()
        sessions.on_event(heard.append, (Started,))
        registry = make_registry(sessions)
        for name in names:
            with sessions.open(name) as session:
                talk(session)
        executor.run_all()
        assert [(one.session, one.waited) for one in heard if isinstance(one, Started)] == [("first", 0), ("second", 5)]
        told = samples(registry)
        assert (told["compactor_wait_seconds_count{}"], told["compactor_wait_seconds_sum{}"]) == (2, 5)
