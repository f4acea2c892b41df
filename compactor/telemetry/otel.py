"""Spans and metrics for OpenTelemetry. Only its API package is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Link, SpanKind, StatusCode, TracerProvider

from memory.events import Event

from ..errors import FailureKind
from ..events import Rejected
from .metrics import EVENTS, GAUGES, METRICS, Metric, PaidResponse, PaidResponses, Target, measure

#: Name of each span, and of the operation in it.
SPAN = "compact_conversation"
#: OpenTelemetry's names of the token counts; input includes cached tokens.
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}


class Instrumentation:
    """Writes the events of *targets* as spans and metrics, until ``stop``."""

    def __init__(
        self, targets: Sequence[Target], tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
    ) -> None:
        self._targets = tuple(targets)
        self._responses = PaidResponses()
        self._tracer = trace.get_tracer("compactor", tracer_provider=tracer_provider)
        meter = metrics.get_meter("compactor", meter_provider=meter_provider)
        self._instruments: dict[str, Any] = {}
        for metric in METRICS:
            described: Any = {"name": metric.name, "unit": metric.unit, "description": metric.description}
            if metric.kind == "counter":
                self._instruments[metric.name] = meter.create_counter(**described)
            elif metric.kind == "histogram":
                self._instruments[metric.name] = meter.create_histogram(
                    **described, explicit_bucket_boundaries_advisory=metric.buckets
                )
            else:
                meter.create_observable_gauge(**described, callbacks=[self._make_observer(metric)])
        self._removers = [target.on_event(self._record, EVENTS) for target in targets]

    def stop(self) -> None:
        for remove in self._removers:
            remove()
        self._targets = ()

    def _make_observer(self, metric: Metric) -> Any:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(GAUGES[metric](self._targets))] if self._targets else []

        return observe

    def _record(self, event: Event) -> None:
        response = self._responses.read(event)
        for metric, value, labels in measure(event, response):
            instrument = self._instruments[metric.name]
            instrument.record(value, labels) if metric.kind == "histogram" else instrument.add(value, labels)
        if response is not None:
            self._write_span(response)

    def _write_span(self, response: PaidResponse) -> None:
        """Write the span of *response*: a new trace, because the agent does not wait for it, linked to its span.

        The hook runs in the context of the append that caused the event, so that span is current.
        """
        agent = trace.get_current_span().get_span_context()
        span = self._tracer.start_span(
            SPAN,
            context=Context(),
            kind=SpanKind.CLIENT,
            attributes=_list_attributes(response),
            links=[Link(agent)] if agent.is_valid else [],
            start_time=_to_nanoseconds(response.started),
        )
        if isinstance(response.event, Rejected):
            span.set_status(StatusCode.ERROR, f"the response failed the check {response.event.check}")
        span.end(_to_nanoseconds(response.event.at))


def _list_attributes(response: PaidResponse) -> dict[str, Any]:
    event, facts = response.event, response.event.facts()
    attributes = {
        "gen_ai.operation.name": SPAN,
        "gen_ai.conversation.id": event.session,
        "gen_ai.agent.name": event.role,
        "gen_ai.response.model": event.model,
        **{name: response.usage.get(count) for count, name in _USAGE.items()},
        "compactor.outcome": "rejected" if isinstance(event, Rejected) else "accepted",
        "compactor.price": response.price,
        "compactor.rounds.start": event.start,
        "compactor.rounds.end": event.end,
        "compactor.tokens.before": facts.get("tokens_before"),
        "compactor.tokens.after": facts.get("tokens_after"),
        **{f"compactor.{name}": facts.get(name) for name in ("strategy", "generation", "check", "attempt", "major")},
    }
    if isinstance(event, Rejected):
        attributes["error.type"] = FailureKind.REJECTED.value
    return {name: value for name, value in attributes.items() if value not in (None, "")}


def _to_nanoseconds(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000) * 1_000
