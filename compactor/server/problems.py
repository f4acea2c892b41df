"""Errors as problem details (RFC 9457): cause and remedy, never a traceback, a key or a message's text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from traceback import clear_frames
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

import memory
from memory.arguments import ConfigError

from .. import errors

#: A tenant's name in a session's full name, either plain or as ``repr`` writes it.
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}(\x1f|\\x1f)", re.ASCII)
#: The status of each error. The first class that matches decides.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (memory.UnknownReference, 404),
    (memory.UnknownRound, 404),
    (memory.HistoryDiverged, 409),
    (memory.StaleCompaction, 409),
    (memory.RoundClosed, 409),
    (memory.Conflict, 409),
    (memory.EntriesLost, 409),
    (memory.SessionPurged, 410),
    (memory.MessageError, 422),
    (ConfigError, 422),
    (errors.BudgetExceeded, 409),
    (errors.LeasedElsewhere, 503),
    (errors.LimitReached, 503),
    (errors.CompactionTimeout, 504),
    (errors.CompactionFailed, 502),
    (memory.StoreFull, 507),
    (memory.ArchiveBusy, 409),
    (memory.StoreBusy, 503),
    (memory.StoreReadOnly, 503),
    (memory.StoreUnreachable, 503),
    (memory.StoreClosed, 503),
    (memory.StoreError, 500),
    (memory.ContextError, 422),
)


class Problem(BaseModel):
    """An error, and its remedy."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str = Field(description="The name of the error, stable across releases.")
    errors: list[dict[str, Any]] | None = Field(default=None, description="The fields that are wrong.")


#: The content of a response with a problem. FastAPI would make a model's schema anew for each route and status.
PROBLEM_CONTENT: dict[str, Any] = {
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
}


def make_problem(
    status: int, detail: str, code: str = "", headers: Mapping[str, str] | None = None, **more: Any
) -> JSONResponse:
    """Return a response with problem details."""
    title = HTTPStatus(status).phrase
    body = Problem(title=title, status=status, detail=detail, code=code or title.replace(" ", ""), **more)
    return JSONResponse(
        body.model_dump(exclude_none=True), status, headers=headers, media_type="application/problem+json"
    )


def describe_error(error: memory.ContextError, method: str) -> JSONResponse:
    """Convert an *error* of the library to problem details, without tenants' names."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    if status == 404 and method == "POST":
        status = 409  # the path is right: the body names what is missing
    seconds = getattr(error, "seconds", None)
    if seconds is None and status == 503:
        seconds = 1.0
    headers = {"retry-after": str(math.ceil(max(seconds, 1)))} if seconds is not None else None
    detail = _TENANT.sub("", str(error))
    if status >= 500 and isinstance(error, memory.StoreError):  # it may name files and hosts
        structlog.get_logger("compactor").warning("server.store_failed", error=type(error).__name__, detail=detail)
        detail = "the server's store failed; try again later. The server's log has the reason"
    return make_problem(status, detail, type(error).__name__, headers)


def _list_methods(request: Request) -> list[str]:
    """Return the methods that the app has for the path of *request*."""
    routes: list[BaseRoute] = request.app.routes
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in matching if isinstance(route, Route) for method in route.methods or ()})


def add_handlers(app: FastAPI) -> None:
    """Make *app* answer errors with problem details."""

    @app.exception_handler(memory.ContextError)
    async def handle_context_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, memory.ContextError)  # noqa: S101  (registered for this class)
        return describe_error(error, request.method)

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)  # noqa: S101  (registered for this class)
        headers = error.headers
        if error.status_code == 405 and (allowed := _list_methods(request)):
            headers = {"allow": ", ".join(allowed)}  # the router's names the methods of one route
        return make_problem(error.status_code, str(error.detail), headers=headers)

    @app.exception_handler(RequestValidationError)
    async def handle_invalid_request(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)  # noqa: S101  (registered for this class)
        clear_frames(error.__traceback__)  # they refer to the body, and the error to them: see Access
        wrong = [{"field": ".".join(map(str, one["loc"]))[:200], "message": one["msg"]} for one in error.errors()]
        return make_problem(
            422, "the request does not fit its description; see errors", "InvalidRequest", errors=wrong[:20]
        )
