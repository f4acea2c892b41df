"""MCP over streamable HTTP, at ``/mcp``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from fastapi import Request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from ..mcp import Endpoint, make_server
from .access import Access, find_tenant
from .state import ServerState


def make_endpoint(state: ServerState, *, session: str | None = None, role: str | None = None) -> Endpoint:
    """Return the endpoint over a server's sessions, each tenant's own. *role* defaults to the server's first."""
    return Endpoint(
        make_server(
            lambda: state.sessions,
            session=session,
            role=state.settings.roles[0] if role is None else role,
            get_tenant=lambda context: find_tenant(cast("Request", context.request)),
        )
    )


def make_app(state: ServerState, *, session: str | None = None, role: str | None = None) -> Starlette:
    """Return an app that serves only ``/mcp``, behind the server's access checks. Its lifespan starts *state*."""
    endpoint = make_endpoint(state, session=session, role=role)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with state.run(), endpoint.run():
            yield

    app = Starlette(
        routes=[Route("/mcp", endpoint, methods=["POST"])],
        middleware=[Middleware(Access, settings=state.settings, logouts=state.logouts)],
        lifespan=lifespan,
    )
    app.state.compactor = state
    return app
