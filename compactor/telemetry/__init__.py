"""Traces and metrics from compactors' events: for OpenTelemetry, and for Prometheus directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .metrics import METRICS, Metric, Target

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["METRICS", "Metric", "Target", "instrument"]


def instrument(
    *targets: Target, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Send spans and metrics of *targets* to these providers, by default the global ones; return a function that stops
    it.

    Each target is a ``Sessions``, with all sessions that it opens, or a ``ContextCompactor``. Give all of them to one
    call, because the gauges aggregate over them. Raises ``ImportError`` without the extra ``otel``.
    """
    try:
        from .otel import Instrumentation
    except ModuleNotFoundError as error:
        raise ImportError('this needs opentelemetry-api: pip install "context-compactor[otel]"') from error
    return Instrumentation(targets, tracer_provider, meter_provider).stop
