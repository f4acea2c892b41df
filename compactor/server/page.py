"""The inspector at ``/``: its files, and the data that it requests. It changes sessions through REST alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

from memory.rounds import copy_with

from ..inspector.page import FILES, POLICY, make_page, read_file
from ..inspector.views import (
    VIEWS,
    Inspection,
    PromptView,
    RoleView,
    RoundView,
    SessionView,
    SummaryView,
    describe_session,
)
from .access import Tenant
from .metrics import may_read_all
from .session_list import PAGE, Order, SessionList, SessionsPage
from .state import ServerState

ViewName = Literal["series", "generations", "decisions", "rejected"]


class ServerStats(BaseModel):
    """Figures of this server, for all tenants together."""

    open: int
    running: int
    #: Model calls in progress, their maximum, and compactors in the queue.
    calls: int
    max_calls: int | None
    queued: int
    spent: float
    max_spent: float | None
    unit: str


def make_page_router(state: ServerState) -> APIRouter:
    """Return the routes of the inspector."""
    router = APIRouter(include_in_schema=False)
    settings = state.settings
    session_list = SessionList(lambda: state.sessions.store, settings.budget, settings.roles)

    @router.get("/")
    async def show_page() -> Response:
        return HTMLResponse(make_page(), headers={"content-security-policy": POLICY})

    @router.get("/static/{name}")
    async def read_static(name: str) -> Response:
        if name not in FILES:
            raise HTTPException(404, "there is no such file")
        return Response(read_file(name), media_type=FILES[name], headers={"cache-control": "no-cache"})

    @router.get("/inspect/sessions")
    def list_sessions(
        tenant: Tenant,
        order: Order = "activity",
        search: str = "",
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
    ) -> SessionsPage:
        return session_list.read_page(tenant, order, search, after, limit)

    @router.get("/inspect/server")
    def measure_server(tenant: Tenant) -> ServerStats | None:
        if not may_read_all(state.settings, tenant):
            return None
        status, limits = state.sessions.status(), state.sessions.limits
        return ServerStats(
            open=status.open,
            running=status.running,
            calls=status.limits.in_use,
            max_calls=limits.max_concurrency,
            queued=status.limits.queued,
            spent=status.limits.spent,
            max_spent=limits.max_spend_per_hour,
            unit=limits.spend_unit,
        )

    @router.get("/inspect/events")
    async def stream_events(tenant: Tenant) -> Response:
        return StreamingResponse(_listen(state, tenant), media_type="text/event-stream")

    @contextmanager
    def inspect(tenant: str, session: str, role: str = "", *, estimate: bool = False) -> Iterator[Inspection]:
        with state.open_existing(tenant, session) as opened:
            model = settings.config.model or ""
            yield Inspection(opened.memory, role, budget=settings.budget, model=model, estimate=estimate)

    @router.get("/inspect/session")
    def inspect_session(tenant: Tenant, session: str) -> SessionView:
        with inspect(tenant, session) as inspection:
            return copy_with(describe_session(inspection.memory, settings.roles), session=session)

    @router.get("/inspect/role")
    def inspect_role(tenant: Tenant, session: str, role: str, estimate: bool = False) -> RoleView:
        with inspect(tenant, session, role, estimate=estimate) as inspection:
            return inspection.describe_role()

    @router.get("/inspect/round")
    def inspect_round(tenant: Tenant, session: str, role: str, number: int) -> RoundView:
        with inspect(tenant, session, role) as inspection:
            return inspection.describe_round(number)

    @router.get("/inspect/summary")
    def inspect_summary(tenant: Tenant, session: str, role: str, index: int) -> SummaryView:
        with inspect(tenant, session, role) as inspection:
            return inspection.describe_summary(index)

    @router.get("/inspect/prompt")
    def inspect_prompt(tenant: Tenant, session: str, role: str, round: int | None = None) -> PromptView:  # noqa: A002
        with inspect(tenant, session, role) as inspection:
            return (inspection if round is None else inspection.go_back_to(round)).describe_prompt()

    @router.get("/inspect/{view}")
    def inspect_view(tenant: Tenant, session: str, role: str, view: ViewName) -> Any:
        with inspect(tenant, session, role) as inspection:
            return VIEWS[view](inspection)

    return router


async def _listen(state: ServerState, tenant: str) -> AsyncIterator[bytes]:
    """Yield the tenant's events without their names: the page only needs to know that something changed."""
    async for block in state.hub.listen(tenant):
        yield block.partition(b"\n")[2] if block.startswith(b"event:") else block
