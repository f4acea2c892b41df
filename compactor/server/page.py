"""The inspector at ``/``: its files, and the data that it requests. It changes sessions through REST alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

from memory import Memory
from memory.rounds import copy_with
from memory.stores import SessionRow, Store
from memory.stores.tenants import split_name

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
    find_roles,
)
from .access import Tenant
from .metrics import may_read_all
from .state import ServerState

#: Sessions on one page of the list, and sessions whose figures are cached.
MAX_LISTED, MAX_CACHED = 50, 2_000
ViewName = Literal["series", "generations", "decisions", "rejected"]


class SessionStats(BaseModel):
    """A session in the list. Figures are None until somebody has spoken in it."""

    session: str
    rounds: int
    last_activity: str
    #: Tokens of the next prompt of ``assistant``, or else of the first role.
    tokens: int | None = None
    #: Tokens that models read and wrote for its summaries.
    spent: int | None = None
    failures: int | None = None


class SessionsPage(BaseModel):
    sessions: list[SessionStats]
    #: Cursor of the next page; None: this is the last.
    after: str | None


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
    cache: OrderedDict[tuple[str, int], SessionStats] = OrderedDict()

    @router.get("/")
    async def show_page() -> Response:
        return HTMLResponse(make_page(), headers={"content-security-policy": POLICY})

    @router.get("/static/{name}")
    async def read_static(name: str) -> Response:
        if name not in FILES:
            raise HTTPException(404, "there is no such file")
        return Response(read_file(name), media_type=FILES[name], headers={"cache-control": "no-cache"})

    @router.get("/inspect/sessions")
    def list_sessions(tenant: Tenant, after: str | None = None) -> SessionsPage:
        rows = state.sessions.store.list_sessions(tenant, after=after, limit=MAX_LISTED, order="activity")
        return SessionsPage(
            sessions=[_measure(row, state.sessions.store, cache, state.settings.budget) for row in rows],
            after=rows[-1].cursor if len(rows) == MAX_LISTED else None,
        )

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
    def inspect(tenant: str, session: str, role: str = "") -> Iterator[Inspection]:
        settings = state.settings
        with state.open(tenant, session) as opened:
            opened.memory.refresh()
            if not opened.memory.snapshot.number:
                raise HTTPException(404, "there is no such session")
            yield Inspection(opened.memory, role, budget=settings.budget, model=settings.config.model or "")

    @router.get("/inspect/session")
    def inspect_session(tenant: Tenant, session: str) -> SessionView:
        with inspect(tenant, session) as inspection:
            return copy_with(describe_session(inspection.memory), session=session)

    @router.get("/inspect/role")
    def inspect_role(tenant: Tenant, session: str, role: str) -> RoleView:
        with inspect(tenant, session, role) as inspection:
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


def _measure(
    row: SessionRow, store: Store, cache: OrderedDict[tuple[str, int], SessionStats], budget: int
) -> SessionStats:
    """Return the figures of one session. They are cached until its log grows."""
    if (stats := cache.get((row.name, row.entries))) is not None:
        return stats
    at = row.last_activity.isoformat()
    stats = SessionStats(session=split_name(row.name)[1], rounds=row.rounds, last_activity=at)
    memory = Memory(row.name, store=store)
    if roles := find_roles(memory):
        inspection = Inspection(memory, "assistant" if "assistant" in roles else roles[0])
        usages = [one.usage or {} for one in inspection.list_generations()]
        stats.rounds = memory.snapshot.total
        stats.tokens = min(inspection.view.tokens, budget)  # compose omits the rest
        stats.spent = sum(usage.get(name, 0) for usage in usages for name in ("input_tokens", "output_tokens"))
        stats.failures = sum(one.name == "compaction.failed" for one in inspection.list_decisions())
    cache[row.name, row.entries] = stats
    while len(cache) > MAX_CACHED:
        cache.popitem(last=False)
    return stats
