"""A proxy in front of model providers: shortens conversations to their budget, and forwards the rest unchanged."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

import httpx
import structlog
from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from memory import SessionPurged
from memory.io_threads import to_thread
from memory.stores.tenants import split_name
from memory.sync import read_prints

from ...integrations.redaction import redact
from ...models import find_model
from ...sessions import Sessions
from ...tokens import MESSAGE_TOKENS
from ..access import find_tenant
from .bodies import (
    FORMATS,
    Body,
    ChatFormat,
    Edit,
    MessagesFormat,
    RequestConversation,
    ResponsesFormat,
    apply_edits,
    is_conversation,
)
from .names import Callers, SessionNames, read_history, read_name, read_session_headers
from .relay import LateLog, Relay, RelayedResponse, Upload, forward_headers, make_error
from .summarizer import RequestSummarizers

if TYPE_CHECKING:
    from ..state import ServerState

#: Maximum seconds to wait for a shortened body; after a time-out, seconds during which the tenant's requests are
#: forwarded unchanged.
FIT_SECONDS, PAUSE_SECONDS = 5.0, 10.0
#: Seconds after which the log of a forwarded request is written, if its answer has not begun by then.
LOG_SECONDS = 0.01
#: Seconds to connect to an endpoint, and until its answer begins: official clients wait ten minutes.
CONNECT_SECONDS, RESPONSE_SECONDS = 15.0, 600.0
#: Share of the model's window reserved for the answer if the request sets no limit, and the maximum share.
RESERVE = 1 / 8
MAX_RESERVE = 1 / 2
#: Requests that the next ones are compared with, and maximum bytes of these.
MAX_LAST, MAX_CONTINUED = 1_000, 1_000_000
#: Bytes that are compared before a body is hashed, and places in a body up to which it is hashed.
LAST_BYTES, MAX_PLACES = 64, 4

R = TypeVar("R")
#: Matches images, audio and files, which may have more tokens than bytes.
_MEDIA = re.compile(rb'"type"\s*:\s*"\w*(?:image|audio|video|file|document|media|screenshot)|"image_url"')
_Adapter = ChatFormat | ResponsesFormat | MessagesFormat
_Prepare = Callable[[], bytes | None]


class _Unwritten(NamedTuple):
    """A request that is forwarded before its log is written."""

    body: bytes
    write: _Prepare


class _LastRequest(NamedTuple):
    """A session's last request: the next one usually begins with the same bytes, followed by new messages."""

    name: str
    #: Keyed hash of the path, and of the headers that select a session.
    caller: bytes
    #: Where the last message ended, the bytes before that place, and the bytes of the body.
    end: int
    last: bytes
    size: int
    digest: bytes
    #: What shortened it; empty: nothing.
    edits: Sequence[Edit]
    #: Tokens that were left in the budget.
    left: int
    #: See ``Fitted.last_entry``.
    last_entry: str

    def may_precede(self, raw: bytes) -> bool:
        return len(raw) >= self.size and raw.startswith(self.last, self.end - len(self.last))


class Proxy:
    """The ASGI app under ``/v1``, which forwards requests to the endpoints in ``settings.upstreams``.

    Conversations sent to ``/v1/chat/completions``, ``/v1/responses`` and ``/v1/messages`` become sessions. They are
    shortened if they exceed the budget or have a summary. It answers inside ``run``. It is a class because a route to a
    function takes only the methods that the route names.
    """

    relay: Relay

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self.summarizers = RequestSummarizers()
        self._callers = Callers()
        self._names = SessionNames(self._read_prints, self._list_candidates)
        self._sessions: Sessions | None = None
        self._adapters: dict[str, _Adapter] = {}
        self._resume_at: dict[str, float] = {}  # by tenant, so that none holds up another
        # By session, if its newest messages were whole; oldest first. Threads share it: each call is atomic.
        self._last: OrderedDict[str, _LastRequest] = OrderedDict()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        self.relay = Relay(connect_seconds=CONNECT_SECONDS, response_seconds=RESPONSE_SECONDS)
        try:
            yield
        finally:
            self.summarizers.forget()
            await self.relay.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self._respond(request, find_tenant(request))
        await response(scope, receive, send)

    async def _respond(self, request: Request, tenant: str) -> Response:
        headers = request.headers
        kind = _find_kind(request.url.path, headers)
        base = self._state.settings.upstreams.get(kind)
        if base is None:
            return make_error(kind, 502, f"No endpoint is set for {kind}: name it in the server's upstreams.")
        if not {".", ".."}.isdisjoint(request.url.path.split("/")):  # it would leave the endpoint's path
            return make_error(kind, 400, "The path has . or .. in it.", "bad_path")
        path, log = request.url.path, None
        stream: AsyncIterator[bytes] | None = request.stream()  # what was not read of the body
        raw = b""
        if request.method == "POST" and path in FORMATS and "content-encoding" not in headers:
            try:
                async with asyncio.timeout(self._state.settings.max_body_seconds):
                    raw, stream = await self._read_body(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody receives it
            except TimeoutError:
                return make_error(kind, 408, "The body did not arrive in time; send it again.", "body_timeout")
            if stream is None:
                caller = self._callers.hash(
                    "\n".join((tenant, path, _read_key(headers), *read_session_headers(headers)))
                )
                prepare = partial(self._prepare, path, tenant, headers, _make_base_url(kind, base), raw, caller)
                prepared = await self._try(path, tenant, partial(self._continue, caller, raw, prepare))
                if isinstance(prepared, bytes):
                    raw = prepared
                elif prepared is not None:
                    raw = prepared.body
                    write = partial(self._try, path, tenant, partial(to_thread, prepared.write))
                    log = LateLog(write, LOG_SECONDS)
            else:
                structlog.get_logger("compactor").warning("proxy.passed_unchanged", path=path, error="BodyTooLong")
        elif "content-length" not in headers and "transfer-encoding" not in headers:
            stream = None
        body = Upload(raw, stream)
        # Beside Transfer-Encoding, Content-Length does not count (RFC 9112, 6.3).
        length = headers.get("content-length") if "transfer-encoding" not in headers else None
        size = length if stream is not None else str(len(raw)) if raw or length is not None else None
        forwarded = forward_headers(headers.raw, size)
        send = partial(self.relay.send, request.method, *_find_target(kind, base, request.scope), forwarded, body)
        return RelayedResponse(send, partial(make_error, kind), log, body.is_read)

    async def _read_body(self, request: Request) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """Return the beginning of the body, and what comes after it; None: it was all. A body over the limit is not
        read. May raise ``ClientDisconnect``."""
        limit, size, parts, stream = self._state.settings.max_body, 0, list[bytes](), request.stream()
        if int(request.headers.get("content-length", "0")) > limit:
            return b"", stream
        async for part in stream:
            parts.append(part)
            size += len(part)
            if size > limit:
                return b"".join(parts), stream
        return b"".join(parts), None

    async def _try(self, path: str, tenant: str, call: Callable[[], Awaitable[R]]) -> R | None:
        """Return the result of *call*; None after a failure or time-out, which are logged, and for a pause after a
        time-out."""
        if time.monotonic() < self._resume_at.get(tenant, 0.0):
            return None
        try:
            async with asyncio.timeout(FIT_SECONDS):
                try:
                    return await call()
                except SessionPurged:  # by another process: it begins anew
                    return await call()
        except Exception as error:  # noqa: BLE001  (no error here may fail the request)
            if isinstance(error, TimeoutError):
                self._resume_at[tenant] = time.monotonic() + PAUSE_SECONDS
            log = structlog.get_logger("compactor")
            log.warning("proxy.passed_unchanged", path=path, error=type(error).__name__)
            return None

    async def _continue(self, caller: bytes, raw: bytes, prepare: _Prepare) -> bytes | _Unwritten | None:
        """Return the body with the edits of the session's last request if it continues that, fits the budget for
        certain, and the log is as it was; its log is written later, as *prepare* does. Otherwise prepare it now."""
        last = self._find_last(caller, raw) if len(raw) <= MAX_CONTINUED else None
        if last is None:
            return await to_thread(prepare)
        sessions = self._state.sessions
        async with sessions.open(last.name) as session:
            if last.edits and not sessions.store.is_resident:
                await to_thread(session.memory.refresh)  # another process may have erased words of the summary
            if session.memory.snapshot.last != last.last_entry:
                return await to_thread(prepare)
        moved = len(raw) - last.size
        edits = [(at + moved, to + moved, new) if at >= last.end else (at, to, new) for at, to, new in last.edits]
        return _Unwritten(apply_edits(raw, edits), prepare)

    def _find_last(self, caller: bytes, raw: bytes) -> _LastRequest | None:
        """Return the longest request that *raw* continues, if its new messages fit the budget for certain."""
        begun = [last for last in [*self._last.values()] if last.caller == caller and last.may_precede(raw)]
        found = {(last.end, last.size, last.digest): last for last in begun}
        for end, size in sorted({place[:2] for place in found}, reverse=True)[:MAX_PLACES]:
            grown = len(raw) - size
            if (last := found.get((end, size, _hash_around(raw, end, grown)))) is not None:
                new = raw[end : end + grown]
                # Its JSON has more bytes than a message has tokens beside its text.
                fits = grown <= last.left and not _MEDIA.search(new)
                return last if fits and _continues(new) else None
        return None

    def _prepare(self, path: str, tenant: str, headers: Headers, url: str, raw: bytes, caller: bytes) -> bytes | None:
        """Write the log, and return the shortened body; None: the body is unchanged."""
        adapter = self._find_adapter(path)
        body = Body(raw)
        values = body.values
        given = adapter.find(values)
        if given is None or not given.items or not isinstance(model := values.get("model"), str):
            return None
        messages = adapter.list_messages(given.items)
        redactor = adapter.redactor
        history = read_history(messages if redactor is None else redact(messages, redactor))
        tag = self._callers.tag(_read_key(headers), _read_user(values))
        system, tools = given.system, given.tools
        budget, reserve = self._find_budget(model, given)
        # Each token takes at least one byte, except in images and files.
        max_tokens = len(raw) + MESSAGE_TOKENS * (len(messages) + len(tools) + 2)
        is_long = max_tokens > budget - reserve
        session = self._names.find(tenant, tag, read_name(headers, values), history, is_long=is_long)
        if not session:
            return None
        name = self._state.make_name(tenant, session)
        summarizer = self.summarizers.find(name)
        summarizer.follow("anthropic" if path == "/v1/messages" else "openai", url, model, headers)
        if redactor is not None:
            system, tools = redactor(system) if system else "", redact(tools, redactor)
        options = {"budget": budget, "reserve": reserve, "tools": tools, "tool_choice": values.get("tool_choice")}
        fitted = adapter.fit(name, given.items, system=system, model=model, summarizer=summarizer, **options)
        omitted = len(given.items) - len(fitted.items)
        ends_alike = fitted.items and omitted >= 0 and all(map(is_, fitted.items, given.items[omitted:]))
        is_whole = ends_alike and not omitted and not fitted.added
        edits = [] if is_whole else body.list_edits(adapter.change(values, given, fitted))
        self._last.pop(name, None)
        if ends_alike and fitted.last_entry and len(raw) <= MAX_CONTINUED:
            end = body.find_end(adapter.key)
            before, digest = raw[:end][-LAST_BYTES:], _hash_around(raw, end, 0)
            left = budget - reserve - fitted.tokens
            self._last[name] = _LastRequest(name, caller, end, before, len(raw), digest, edits, left, fitted.last_entry)
            if len(self._last) > MAX_LAST:
                self._last.popitem(last=False)
        return None if is_whole else apply_edits(raw, edits)

    def _find_adapter(self, path: str) -> _Adapter:
        state = self._state
        if self._sessions is not state.sessions:
            adapters = {one: kind(state.settings.budget, sessions=state.sessions) for one, kind in FORMATS.items()}
            for adapter in adapters.values():
                adapter.redactor = state.redactor
            self._sessions, self._adapters, self._last = state.sessions, adapters, OrderedDict()
        return self._adapters[path]

    def _find_budget(self, model: str, given: RequestConversation) -> tuple[int, int]:
        """Return the budget of a prompt for *model*, and how much of it is reserved for the answer."""
        settings = self._state.settings
        window = find_model(model).window
        if "budget" in settings.model_fields_set or window is None:
            return settings.budget, 0
        reserve = given.reserve if given.reserve is not None else int(window * RESERVE)
        return window, min(reserve, int(window * MAX_RESERVE))

    def _read_prints(self, tenant: str, session: str) -> bytes:
        name = self._state.make_name(tenant, session)
        with self._state.sessions.open(name) as opened:
            return read_prints(opened.memory)

    def _list_candidates(self, tenant: str, prefix: str, limit: int) -> Iterable[str]:
        full = self._state.make_name(tenant, prefix)
        rows = self._state.sessions.store.list_sessions(tenant, after=full, limit=limit)
        return [split_name(row.name)[1] for row in rows if row.name.startswith(full)]


def _hash_around(raw: bytes, end: int, count: int) -> bytes:
    """Return the hash of *raw* without the *count* bytes from *end* on."""
    digest = blake2b(raw[:end], digest_size=16)
    digest.update(raw[end + count :])
    return digest.digest()


def _continues(new: bytes) -> bool:
    """Return whether *new*, after a message in an array, is more messages."""
    try:
        return is_conversation(json.loads(f"[{{}}{new.decode()}]"))
    except ValueError:
        return False


def _find_kind(path: str, headers: Headers) -> str:
    """Return the provider that a request is for: both have ``/v1/models`` and ``/v1/files``."""
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return "anthropic"
    return "openai"


def _make_base_url(kind: str, base: str) -> str:
    """Return the base URL for a provider's own client: OpenAI's ends in ``/v1``, Anthropic's before it."""
    base = base.rstrip("/")
    if kind == "anthropic":
        return base.removesuffix("/v1")
    return base if "/" in base.partition("://")[2] else f"{base}/v1"


def _find_target(kind: str, base: str, scope: Any) -> tuple[str, bytes]:
    """Return the endpoint's base URL, and the path with the query as the client sent them."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw.partition(b"?")[0]
    if kind != "anthropic":
        path = path.removeprefix(b"/v1")
    query: bytes = scope["query_string"]
    url = httpx.URL(_make_base_url(kind, base))
    return str(url), url.raw_path.rstrip(b"/") + path + (b"?" + query if query else b"")


def _read_key(headers: Headers) -> str:
    return "\n".join(headers.get(name, "") for name in ("authorization", "x-api-key", "api-key"))


def _read_user(values: dict[str, Any]) -> str:
    """Return the end user that the request names, if any: one key often serves many users."""
    return next((str(one) for name in ("user", "safety_identifier") if (one := values.get(name))), "")
