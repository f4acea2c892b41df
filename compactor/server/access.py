"""Access control: tenants, cross-site requests, rate and size limits. Pure ASGI, so that answers stream."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from traceback import clear_frames
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs, urlsplit

import structlog
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import make_problem

if TYPE_CHECKING:
    from .settings import ServerSettings

#: Token header under ``/v1/``, where ``Authorization`` belongs to the provider. It is never forwarded.
TOKEN_HEADER = "x-compactor-token"  # noqa: S105
COOKIE, COOKIE_SECONDS = "compactor", 12 * 3_600
#: Paths that need no token.
PUBLIC = frozenset({"/healthz", "/readyz", "/login"})
_PROXY = "/v1/"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_TENANT = "compactor.tenant"
#: Maximum failed attempts per minute and address; maximum tenants and addresses remembered.
MAX_FAILURES, MAX_KNOWN = 30, 10_000
#: Maximum logged-out cookies remembered for a tenant.
MAX_LOGOUTS = 1_000
_HEADERS = {
    "content-security-policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_LOGIN = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>compactor</title><link rel="icon" href="data:,"><link rel="stylesheet" href="/static/login.css">
<main><h1>compactor inspector</h1><form method="post" action="/login">
<label>Token <input type="password" name="token" autocomplete="current-password" required autofocus></label>
{problem}<button>Log in</button></form></main></html>"""
_LOGIN_POLICY = (
    "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


def find_tenant(request: Request) -> str:
    """Return the tenant of the request; the empty string is the local tenant."""
    return str(request.scope[_TENANT])


async def _find_tenant(request: Request) -> str:  # FastAPI would run a plain function on a thread
    return find_tenant(request)


#: A route parameter: the tenant of the request.
Tenant = Annotated[str, Depends(_find_tenant)]


class _Refused(Exception):
    """Ends a request with *response*."""

    def __init__(self, response: Response) -> None:
        self.response = response


class RateLimit:
    """Allows *rate* actions a minute for each key, in bursts of up to *rate*; None: unlimited."""

    def __init__(self, rate: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._spent: dict[str, tuple[float, float]] = {}  # by key: the number spent, and when it was computed

    def take(self, key: str, count: float = 1) -> float:
        """Take *count* for *key* and return 0. Without room, take nothing and return the seconds until there is."""
        if self._rate is None:
            return 0.0
        now, per_second = self._clock(), self._rate / 60
        spent, at = self._spent.pop(key, (0.0, now))
        spent = max(0.0, spent - (now - at) * per_second)
        has_room = spent + max(count, 1) <= self._rate
        self._spent[key] = (spent + count * has_room, now)  # newest last
        if len(self._spent) > MAX_KNOWN:
            del self._spent[next(iter(self._spent))]
        return 0.0 if has_room else (spent + max(count, 1) - self._rate) / per_second


class Access:
    """Checks each request before the app sees it, and adds the security headers to each answer.

    Refuses, in this order: a foreign ``Host`` header on a loopback server (DNS rebinding), cross-site requests, missing
    or wrong tokens, too many requests, and bodies that are too long or too slow. Any other failure is answered with
    500, and logged as one line without the error's text.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, logouts: Logouts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app, self._settings, self._logouts = app, settings, logouts
        self._rates, self._failures = RateLimit(settings.rate, clock), RateLimit(MAX_FAILURES, clock)
        self._tokens = {tenant: token.get_secret_value() for tenant, token in settings.tokens.items()}
        self._hosts = {"localhost", "127.0.0.1", "::1", *map(str.lower, (settings.host, *settings.hosts))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._respond(scope, receive, send)
        else:  # there are no WebSocket routes
            await send({"type": "websocket.close", "code": 1000})

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: list[_Refused] = []
        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if refused and not started:  # the body was refused: drop the app's own error
                return
            if message["type"] == "http.response.start":
                started = True
                add_headers(message)
            await send(message)

        try:
            self._check(scope)
            await self._app(
                scope, self._limit_body(receive, refused, is_proxied=scope["path"].startswith(_PROXY)), send_guarded
            )
        except _Refused as error:
            refused.append(error)
        except asyncio.CancelledError:  # shutdown timed out: log no traceback
            headers = {"connection": "close", "retry-after": "5"}
            stops = make_problem(503, "the server stops; send the request again", "ServerStops", headers)
            refused.append(_Refused(stops))
        except Exception as error:  # noqa: BLE001  (its text may quote messages)
            if not refused:
                route = getattr(scope.get("route"), "path", "")
                structlog.get_logger().error("server.failed", error=type(error).__name__, path_template=route)
                if started:  # break the connection, so that the client notices
                    raise ConnectionAbortedError("an answer was cut off") from None
                failed = make_problem(500, "the server failed; its log names the error", "ServerFailed")
                refused.append(_Refused(failed))
        if refused and not started:

            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    add_headers(message)
                await send(message)

            # FastAPI's own error refers to the frames that hold the body: until the next full garbage collection.
            clear_frames(refused[0].__traceback__)
            await refused[0].response(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        """Store the tenant in *scope*. Raises ``_Refused``."""
        headers, settings = Headers(scope=scope), self._settings
        host = _parse_host(headers.get("host", ""))
        if host not in self._hosts and settings.is_loopback:
            detail = "the Host header is not this machine's; use 127.0.0.1, or name the host in the settings"
            raise _Refused(make_problem(421, detail, "WrongHost"))
        is_public = scope["path"] in PUBLIC or scope["path"].startswith("/static/")
        tenant, by_cookie = self._identify(scope, headers)
        check_site(scope["method"], headers, by_cookie=by_cookie)
        client = (scope.get("client") or ("", 0))[0]
        if tenant is None and not is_public:
            if wait := self._failures.take(client):
                raise _Refused(_refuse_rate(wait))
            raise _Refused(_refuse_unauthorized(headers))
        if not is_public and (wait := self._rates.take(tenant or "")):
            raise _Refused(_refuse_rate(wait))
        if scope["path"] == "/login" and scope["method"] == "POST" and (wait := self._failures.take(client)):
            raise _Refused(_refuse_rate(wait))
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError:
            raise _Refused(make_problem(400, "Content-Length is not a number")) from None
        if length > settings.max_body and not scope["path"].startswith(_PROXY):
            raise _Refused(self._refuse_large())
        scope[_TENANT] = tenant or ""
        scope["headers"] = [pair for pair in scope["headers"] if pair[0].lower() != TOKEN_HEADER.encode()]

    def _identify(self, scope: Scope, headers: Headers) -> tuple[str | None, bool]:
        """Return the tenant (None: unauthenticated), and whether a cookie identified it."""
        if not self._tokens:
            return "", False
        given = headers.get(TOKEN_HEADER, "")
        if not given and not scope["path"].startswith(_PROXY):
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            given = bearer.strip() if scheme.lower() == "bearer" else ""
            if not given:
                cookie = read_cookie(headers.get("cookie", ""), self._tokens)
                if cookie is None or cookie in self._logouts:
                    return None, False
                return cookie[0], True
        return find_token(given, self._tokens), False

    def _limit_body(self, receive: Receive, refused: list[_Refused], *, is_proxied: bool) -> Receive:
        """Limit the body's size and time. The proxy has its own limits, but for the time between two parts."""
        count, ended, settings = 0, False, self._settings
        until = math.inf

        async def receive_limited() -> Message:
            nonlocal count, ended, until
            if ended:
                return await receive()
            now = time.monotonic()
            if until == math.inf and not is_proxied:
                until = now + settings.max_body_seconds
            try:
                # Not wait_for: in Python 3.11 it may swallow the cancellation by an outer time-out.
                async with asyncio.timeout(min(settings.body_seconds, until - now)):
                    message = await receive()
            except TimeoutError:
                late = make_problem(
                    408, "the body did not arrive in time; send it again", headers={"connection": "close"}
                )
                refused.append(_Refused(late))
                raise refused[0] from None
            count += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if count > settings.max_body and not is_proxied:
                refused.append(_Refused(self._refuse_large()))
                raise refused[0]
            return message

        return receive_limited

    def _refuse_large(self) -> Response:
        detail = f"the body is longer than {self._settings.max_body:,} bytes; send less at a time"
        return make_problem(413, detail, headers={"connection": "close"})


def add_headers(message: Message) -> None:
    """Add the security headers that the start of a response lacks."""
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)


def check_site(method: str, headers: Headers, *, by_cookie: bool) -> None:
    """Raise ``_Refused`` for a cross-site request; only plain navigation is allowed.

    A request with a cookie comes from a browser, so a method that writes needs ``Sec-Fetch-Site`` or ``Origin``.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    wrong = site is not None and site not in ("same-origin", "none") and not is_link
    if origin is not None and not wrong and site != "same-origin":
        parts = urlsplit(origin)
        wrong = parts.netloc.lower() != headers.get("host", "").lower() and not is_link
    if wrong or (by_cookie and method not in _SAFE and site is None and origin is None):
        raise _Refused(make_problem(403, "another site's page sent this; use the server's own page", "CrossSite"))


class Logouts:
    """Cookies that were logged out before their end, by tenant. They are forgotten when the process ends.

    Of a tenant with more than ``MAX_LOGOUTS``, all cookies made so far become invalid.
    """

    def __init__(self) -> None:
        self._ended: dict[str, dict[str, int]] = {}  # by tenant: the end of each cookie by its signature
        self._floor: dict[str, int] = {}  # by tenant: cookies that end by then are invalid

    def add(self, tenant: str, signature: str, until: int, now: float) -> None:
        ended = {one: end for one, end in self._ended.get(tenant, {}).items() if end > now}
        if len(ended) >= MAX_LOGOUTS:
            ended, self._floor[tenant] = {}, int(now + COOKIE_SECONDS)
        self._ended[tenant] = ended | {signature: until}

    def __contains__(self, cookie: tuple[str, str, int]) -> bool:
        tenant, signature, until = cookie
        return signature in self._ended.get(tenant, ()) or until <= self._floor.get(tenant, 0)


def find_token(given: str, tokens: dict[str, str]) -> str | None:
    """Return the tenant whose token is *given*, or None. Compares every token in constant time."""
    found = None
    for tenant, token in tokens.items():
        if hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
            found = tenant
    return found


def make_cookie(tenant: str, token: str, now: float | None = None) -> str:
    """Return the cookie's value: tenant, expiry, a random id and signature. A new *token* invalidates it."""
    until = int((time.time() if now is None else now) + COOKIE_SECONDS)
    signed = f"{tenant}|{until}|{secrets.token_hex(8)}"
    return f"{signed}|{_sign(signed, token)}"


def read_cookie(text: str, tokens: dict[str, str], now: float | None = None) -> tuple[str, str, int] | None:
    """Return tenant, signature and expiry of a request with this ``Cookie`` header; None if there is no valid one."""
    try:
        morsel = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return None
    signed, _, signature = (morsel.value if morsel is not None else "").rpartition("|")
    tenant, _, rest = signed.partition("|")
    until = rest.partition("|")[0]
    if tenant not in tokens or not (until.isascii() and until.isdigit() and len(until) < 20):
        return None
    is_valid = hmac.compare_digest(signature.encode("utf-8", "replace"), _sign(signed, tokens[tenant]).encode())
    if not is_valid or (time.time() if now is None else now) >= int(until):
        return None
    return tenant, signature, int(until)


def _sign(signed: str, token: str) -> str:
    return hmac.new(token.encode(), f"compactor cookie|{signed}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def make_login_router(settings: ServerSettings, logouts: Logouts) -> APIRouter:
    """Return the routes that log a browser in and out."""
    router = APIRouter(include_in_schema=False)
    tokens = {tenant: token.get_secret_value() for tenant, token in settings.tokens.items()}

    @router.get("/login")
    async def show_form() -> Response:
        return _make_login(200)

    @router.post("/login")
    async def log_in(request: Request) -> Response:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=4)
        token = fields.get("token", [""])[0].strip()
        tenant = find_token(token, tokens)
        if tenant is None:
            return _make_login(401, "No tenant has this token.")
        response = RedirectResponse("/", 303)
        is_secure = request.url.scheme == "https"
        value = make_cookie(tenant, tokens[tenant])
        options: dict[str, Any] = {"httponly": True, "samesite": "strict", "secure": is_secure}
        response.set_cookie(COOKIE, value, COOKIE_SECONDS, **options)
        return response

    @router.post("/logout")
    async def log_out(request: Request) -> Response:
        if (cookie := read_cookie(request.headers.get("cookie", ""), tokens)) is not None:
            logouts.add(*cookie, time.time())
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    return router


def _parse_host(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _refuse_rate(wait: float) -> Response:
    seconds = math.ceil(wait)
    return make_problem(
        429, f"too many requests; try again in {seconds} seconds", headers={"retry-after": str(seconds)}
    )


def _make_login(status: int, problem: str = "") -> Response:
    headers = {"content-security-policy": _LOGIN_POLICY} | ({"www-authenticate": "Bearer"} if status == 401 else {})
    return HTMLResponse(_LOGIN.format(problem=problem and f'<p role="alert">{problem}</p>'), status, headers)


def _refuse_unauthorized(headers: Headers) -> Response:
    if "text/html" in headers.get("accept", ""):
        return _make_login(401)
    detail = f"no valid token; send Authorization: Bearer TOKEN, or {TOKEN_HEADER} under {_PROXY}"
    return make_problem(401, detail, headers={"www-authenticate": "Bearer"})
