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
from memory.stores import SessionRow, Store
from memory.stores.tenants import split_name

from ..inspector.page import FILES, POLICY, make_live_page, read_file
from ..inspector.views import (
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
MAX_LISTED, MAX_KNOWN = 50, 2_000
Part = Literal["series", "generations", "decisions", "refused"]


class SessionFigures(BaseModel):
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
    sessions: list[SessionFigures]
    #: Cursor of the next page; None: this is the last.
    after: str | None


class ServerFigures(BaseModel):
    """Figures of this server, for all tenants together."""

    open: int
    running: int
    #: Model calls in progress, their maximum, and compactors in the queue.
    calls: int
    max_calls: int | None
    waiting: int
    spent: float
    max_spent: float | None
    unit: str


def make_page(state: ServerState) -> APIRouter:
    """Return the routes of the inspector."""
    router = APIRouter(include_in_schema=False)
    known: OrderedDict[tuple[str, int], SessionFigures] = OrderedDict()

    @router.get("/")
    async def page() -> Response:
        return HTMLResponse(make_live_page(), headers={"content-security-policy": POLICY})

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in FILES:
            raise HTTPException(404, "there is no such file")
        return Response(read_file(name), media_type=FILES[name], headers={"cache-control": "no-cache"})

    @router.get("/inspect/sessions")
    def sessions(tenant: Tenant, after: str | None = None) -> SessionsPage:
        rows = state.sessions.store.list_sessions(tenant, after=after, limit=MAX_LISTED, order="activity")
        return SessionsPage(
            sessions=[_measure(row, state.sessions.store, known, state.settings.budget) for row in rows],
            after=rows[-1].cursor if len(rows) == MAX_LISTED else None,
        )

    @router.get("/inspect/server")
    def server(tenant: Tenant) -> ServerFigures | None:
        if not may_read_all(state.settings, tenant):
            return None
        status, limits = state.sessions.status(), state.sessions.limits
        return ServerFigures(
            open=status.open,
            running=status.running,
            calls=status.limits.in_use,
            max_calls=limits.max_concurrency,
            waiting=status.limits.waiting,
            spent=status.limits.spent,
            max_spent=limits.max_spend_per_hour,
            unit=limits.unit,
        )

    @router.get("/inspect/events")
    async def events(tenant: Tenant) -> Response:
        return StreamingResponse(_listen(state, tenant), media_type="text/event-stream")

    @contextmanager
    def look(tenant: str, session: str, role: str = "") -> Iterator[Inspection]:
        settings = state.settings
        with state.open(tenant, session) as opened:
            opened.memory.refresh()
            if not opened.memory.snapshot.number:
                raise HTTPException(404, "there is no such session")
            yield Inspection(opened.memory, role, budget=settings.budget, model=settings.config.model or "")

    @router.get("/inspect/session")
    def session(tenant: Tenant, session: str) -> SessionView:
        with look(tenant, session) as found:
            return describe_session(found.memory).model_copy(update={"session": session})

    @router.get("/inspect/role")
    def role(tenant: Tenant, session: str, role: str) -> RoleView:
        with look(tenant, session, role) as found:
            return found.describe()

    @router.get("/inspect/round")
    def round_(tenant: Tenant, session: str, role: str, number: int) -> RoundView:
        with look(tenant, session, role) as found:
            return found.round(number)

    @router.get("/inspect/summary")
    def summary(tenant: Tenant, session: str, role: str, index: int) -> SummaryView:
        with look(tenant, session, role) as found:
            return found.summary(index)

    @router.get("/inspect/prompt")
    def prompt(tenant: Tenant, session: str, role: str, round: int | None = None) -> PromptView:  # noqa: A002
        with look(tenant, session, role) as found:
            return (found if round is None else found.at(round)).prompt()

    @router.get("/inspect/{part}")
    def part(tenant: Tenant, session: str, role: str, part: Part) -> Any:
        with look(tenant, session, role) as found:
            return getattr(found, part)()

    return router


async def _listen(state: ServerState, tenant: str) -> AsyncIterator[bytes]:
    """Yield the tenant's events without their names: the page only needs to know that something changed."""
    async for block in state.hub.listen(tenant):
        yield block.partition(b"\n")[2] if block.startswith(b"event:") else block


def _measure(
    row: SessionRow, store: Store, known: OrderedDict[tuple[str, int], SessionFigures], budget: int
) -> SessionFigures:
    """Return the figures of one session. They are cached until its log grows."""
    if (figures := known.get((row.name, row.entries))) is not None:
        return figures
    at = row.last_activity.isoformat()
    figures = SessionFigures(session=split_name(row.name)[1], rounds=row.rounds, last_activity=at)
    memory = Memory(row.name, store=store)
    if roles := find_roles(memory):
        inspection = Inspection(memory, "assistant" if "assistant" in roles else roles[0])
        usages = [one.usage or {} for one in inspection.generations()]
        figures.rounds = memory.snapshot.total
        figures.tokens = min(inspection.view.tokens, budget)  # compose omits the rest
        figures.spent = sum(usage.get(name, 0) for usage in usages for name in ("input_tokens", "output_tokens"))
        figures.failures = sum(one.name == "compaction.failed" for one in inspection.decisions())
    known[row.name, row.entries] = figures
    while len(known) > MAX_KNOWN:
        known.popitem(last=False)
    return figures
