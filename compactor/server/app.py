"""The app: all routes over one ``ServerState``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Route

from memory import Store, StoreError
from memory.transfer.archive import check_archive

from .access import PUBLIC, Access, make_login_router
from .metrics import make_metrics_router
from .page import make_page_router
from .problems import PROBLEM_CONTENT, Problem, add_handlers, make_problem
from .proxy import Proxy
from .reme import make_reme_router
from .rest import EncodedNames, make_rest_router
from .settings import ServerSettings
from .state import ServerState

#: What ``Access`` refuses, by status.
REFUSALS = {
    400: "The request is malformed.",
    401: "The token is missing or wrong.",
    403: "Another site's page has sent this.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    421: "The Host header is not this machine's.",
    429: "Too many requests; see Retry-After.",
}
#: Seconds that the readiness check waits for the store.
READY_SECONDS = 5.0


class Health(BaseModel):
    status: str = "ok"


def create_app(
    settings: ServerSettings | None = None,
    *,
    store: Store | None = None,
    redactor: Callable[[str], str] | None = None,
    **options: Any,
) -> FastAPI:
    """Return the server's ASGI app. Its lifespan opens the store, and stops all compactors at shutdown.

    Raises ``StoreError`` if the archive in *settings* is a folder that does not exist, or lacks its driver.

    *store* replaces the one in *settings*, and is left open; *options*, such as ``summarizer``, go to ``Sessions``.
    *redactor* maps each text of a proxied conversation to the text for the log and the summarizers; it must be
    deterministic. ``app.state.compactor`` is the ``ServerState``.
    """
    state = ServerState(settings if settings is not None else ServerSettings(), store, redactor, **options)
    if state.settings.archive is not None:
        check_archive(state.settings.archive)  # else DELETE would find nothing to erase in a mistyped one
    proxy, mcp = Proxy(state), None
    with suppress(ModuleNotFoundError):  # without the extra, there is no /mcp
        from .mcp import make_endpoint

        mcp = make_endpoint(state)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with state.run(), proxy.run(), mcp.run() if mcp is not None else nullcontext():
            yield

    version = "0"
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version("context-compactor")
    app = FastAPI(
        title="context-compactor",
        summary="Background compaction for long LLM conversations.",
        version=version,
        openapi_url="/api/openapi.json",
        docs_url=None,  # Swagger UI would be loaded from another site
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.compactor = state
    app.add_middleware(EncodedNames)
    app.add_middleware(
        Access, settings=state.settings, logouts=state.logouts
    )  # the outermost: it sees the path decoded
    add_handlers(app)

    @app.head("/healthz", include_in_schema=False)  # some monitors ask so
    @app.get("/healthz", tags=["health"])
    async def check_health() -> Health:
        """Report that the process answers."""
        return Health()

    @app.head("/readyz", response_model=Health, include_in_schema=False)
    @app.get("/readyz", tags=["health"], response_model=Health, responses={503: {"description": "not ready"}})
    async def check_readiness() -> Health | Response:
        """Report whether the store answers, too."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                await asyncio.to_thread(_query_store, state)
        except (StoreError, RuntimeError, TimeoutError):
            return make_problem(503, "the store does not answer", "NotReady", {"retry-after": "1"})
        return Health()

    # The routes themselves: FastAPI makes those of an included router at the first request, on the event loop (0.07 s),
    # and changes the warnings of all threads meanwhile.
    routes = app.router.routes
    routes.append(Route("/v1/{path:path}", proxy, include_in_schema=False))  # first: each before it delays its answers
    routes += make_login_router(state.settings, state.logouts).routes
    routes += make_metrics_router(state).routes
    routes += make_rest_router(state).routes
    routes += make_page_router(state).routes
    routes += make_reme_router(state, summarizer=options.get("summarizer")).routes
    if mcp is not None:
        routes.append(Route("/mcp", mcp, methods=["POST"]))  # a stream by GET would stay empty
    for route in routes:
        if isinstance(route, APIRoute):
            route.operation_id = route.name  # generated clients call their functions so
    _describe_access(app, has_tokens=bool(state.settings.tokens))
    return app


def _describe_access(app: FastAPI, *, has_tokens: bool) -> None:
    """Add what ``Access`` answers, and the tokens it asks for, to the description of each operation that has them."""
    describe = app.openapi

    def make_schema() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = describe()
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        schemas.setdefault("Problem", Problem.model_json_schema(ref_template="#/components/schemas/{model}"))
        if has_tokens:
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                refusals = dict(REFUSALS)
                if path in PUBLIC:
                    refusals = {status: refusals[status] for status in (403, 421)}
                elif has_tokens:
                    operation["security"] = [{"token": []}]
                else:
                    del refusals[401]
                if method == "get":
                    refusals = {status: text for status, text in refusals.items() if status not in (408, 413)}
                for status, text in refusals.items():
                    operation["responses"].setdefault(str(status), PROBLEM_CONTENT | {"description": text})
        return schema

    app.openapi = make_schema  # type: ignore[method-assign]


def _query_store(state: ServerState) -> None:
    next(iter(state.sessions.store.read("readyz", 0, 1)), None)
