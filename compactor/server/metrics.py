"""``/metrics`` for Prometheus: those of all sessions of this process together; no label names a session or a tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from .access import Tenant
from .problems import PROBLEM_CONTENT, make_problem

if TYPE_CHECKING:
    from .settings import ServerSettings
    from .state import ServerState

#: With several tenants, the one whose token reads the metrics.
READER = "metrics"


def may_read_all(settings: ServerSettings, tenant: str) -> bool:
    """Return whether *tenant* may see the figures of all tenants together."""
    return len(settings.tokens) <= 1 or tenant == READER


def make_metrics_router(state: ServerState) -> APIRouter:
    """Return the route. With several tenants, only ``READER`` may use it: the metrics cover all of them."""
    router = APIRouter(tags=["health"])
    responses: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        403: PROBLEM_CONTENT,
    }

    @router.get("/metrics", response_class=Response, responses=responses)
    def read_metrics(tenant: Tenant) -> Response:
        """Return the metrics in Prometheus's text format."""
        if not may_read_all(state.settings, tenant):
            return make_problem(
                403, f"there are several tenants: name one {READER!r}, and ask with its token", "Forbidden"
            )
        return Response(generate_latest(state.registry), media_type=CONTENT_TYPE_LATEST)

    return router
