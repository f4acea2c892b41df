"""The metrics for Prometheus, without OpenTelemetry (extra ``server``)."""

from __future__ import annotations

from functools import partial
from typing import Any

from memory.events import Event

from .metrics import EVENTS, GAUGES, METRICS, PaidResponses, Target, measure

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
except ModuleNotFoundError as error:
    raise ImportError('this needs prometheus-client: pip install "context-compactor[server]"') from error

__all__ = ["make_registry"]


def make_registry(*targets: Target, registry: CollectorRegistry | None = None) -> CollectorRegistry:
    """Return a registry with the metrics of *targets*, for ``prometheus_client.generate_latest``.

    Each target is a ``Sessions``, with all sessions that it opens, a ``ContextCompactor`` or a ``Worker``. Without a
    *registry*, creates one.
    """
    registry = registry if registry is not None else CollectorRegistry()
    series: dict[str, Any] = {}
    for metric in METRICS:
        names: Any = {"name": metric.prometheus_name, "documentation": metric.description, "registry": registry}
        if metric.kind == "counter":
            series[metric.name] = Counter(**names, labelnames=metric.labels)
        elif metric.kind == "histogram":
            series[metric.name] = Histogram(**names, labelnames=metric.labels, buckets=metric.buckets)
        else:
            Gauge(**names).set_function(partial(GAUGES[metric], targets))
    responses = PaidResponses()

    def record(event: Event) -> None:
        for metric, value, labels in measure(event, responses.read(event)):
            child = series[metric.name].labels(**labels) if labels else series[metric.name]
            child.observe(value) if metric.kind == "histogram" else child.inc(value)

    for target in targets:
        target.on_event(record, EVENTS)
    return registry
