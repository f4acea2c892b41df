"""REST under /api: the library for hosts in any language.

The store is read and written on threads: FastAPI runs plain functions there, and the other routes use ``to_thread``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from secrets import token_hex
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, Literal, TextIO, TypeVar, cast
from urllib.parse import quote, unquote

from anyio import to_thread
from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from memory import (
    CompactedMessage,
    Memory,
    NewerVersion,
    Recall,
    StoreDamaged,
    StoreError,
)
from memory.arguments import ConfigError
from memory.entries import Entry, EventRecorded, list_kinds
from memory.messages import ASSISTANT, from_round
from memory.search import split_query
from memory.stores.retention import FILES_KEPT
from memory.stores.tenants import join_name, split_name
from memory.sync import SAYS, TOOL_NAMES
from memory.transfer.archive import purge_session
from memory.transfer.jsonl import export_session, read_session
from memory.transfer.state_dict import append_session

from ..background import ContextCompactor
from ..errors import CompactionFailed
from ..sessions import Session
from .access import Tenant
from .problems import PROBLEM_CONTENT
from .state import MAX_NAME, ServerState, raise_unknown
from .tenant_threads import RETRY_AFTER, Busy, TenantThreads

R = TypeVar("R")
#: Threads of requests that wait for a compaction, for all tenants together.
COMPACTION_THREADS = 16
#: Maximum characters of any name or reference in a request, and maximum rounds per page.
MAX_TEXT, MAX_PAGE = 200, 200
#: Bytes of an export that are held in memory, and bytes of one chunk of its body.
_MAX_IN_MEMORY, _CHUNK = 1_000_000, 65_536
_LINES = "application/x-ndjson"
#: Where the names of sessions follow in a path.
_SESSIONS = "/api/sessions/"


def _check_json(value: R) -> R:
    """Return *value*. Raises ``ValueError`` for values that Python's parser accepts but JSON cannot hold."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
    except ValueError:
        raise ValueError("a text has a lone surrogate, or a number is not finite") from None
    return value


def _check_number(value: object) -> object:
    if isinstance(value, (bool, str)):
        raise ValueError("it must be a number")  # noqa: TRY004  (pydantic expects it)
    return value


_SESSION = rf"^[^\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]{{0,{MAX_NAME - 1}}}$"
#: The name of a session, in the path; ``EncodedNames`` has left it encoded.
SessionId = Annotated[str, Path(pattern=_SESSION, description="Percent-encoded: / is %2F."), BeforeValidator(unquote)]
ReferencePath = Annotated[str, Path(min_length=1, max_length=MAX_TEXT), BeforeValidator(unquote)]
#: The name of an agent.
Role = Annotated[str, Field(max_length=MAX_TEXT, description="The agent whose view it is.")]
RoleQuery = Annotated[str, Query(max_length=MAX_TEXT, description="The agent whose view it is.")]
Reference = Annotated[str, Field(min_length=1, max_length=MAX_TEXT, examples=["r3.p2"])]
Name = Annotated[str, Field(max_length=MAX_TEXT)]
Objects = Annotated[list[dict[str, Any]], Field(max_length=1_000), AfterValidator(_check_json)]
#: In a body, where pydantic would also take "5" and true.
JsonNumber = BeforeValidator(_check_number)
Number = Annotated[int, Field(ge=0, le=10**12), JsonNumber]
Tokens = Annotated[int, Field(ge=1, le=10**9), JsonNumber]


class RequestBody(BaseModel):
    """A request's body; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class CallIn(BaseModel):
    """A tool call in OpenAI's chat format."""

    model_config = ConfigDict(extra="allow")

    id: str
    function: dict[str, Any] | None = None


class MessageIn(BaseModel):
    """A message in OpenAI's chat format; further fields are kept."""

    model_config = ConfigDict(extra="allow")

    role: Literal["user", "assistant", "tool", "function", "system", "developer"]
    content: str | list[str | dict[str, Any]] | dict[str, Any] | None = None
    tool_calls: list[CallIn] | None = None
    tool_call_id: str | None = None


def _dump(messages: Sequence[MessageIn]) -> list[dict[str, Any]]:
    """Return *messages* as they were sent."""
    return [one.model_dump(exclude_unset=True) for one in messages]


def _check_messages(messages: list[MessageIn]) -> list[MessageIn]:
    _check_json(_dump(messages))
    return messages


Messages = Annotated[
    list[MessageIn],
    Field(max_length=100_000, examples=[[{"role": "user", "content": "Hello"}]]),
    AfterValidator(_check_messages),
]


_SYNCED: dict[str, Any] = {
    "anyOf": [{"required": [key]} for key in sorted(SAYS)],
    "allOf": [
        {
            "anyOf": [
                {"properties": {"role": {"not": {"const": "tool"}}}},
                {"properties": {"tool_call_id": {"type": "string"}}, "required": ["tool_call_id"]},
                *[{"required": [key]} for key in sorted(TOOL_NAMES)],
            ]
        }
    ],
}


class SyncedMessage(MessageIn):
    """A message of a whole history: it has content, and a tool's result names its call."""

    model_config = ConfigDict(json_schema_extra=_SYNCED)


class CreateSessionRequest(RequestBody):
    id: Annotated[str | None, Field(pattern=_SESSION)] = Field(
        default=None, description="Its name; generated if missing."
    )
    messages: Messages = Field(default_factory=list)


class AppendRequest(RequestBody):
    messages: Messages
    kind: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)] = "message"


class SyncRequest(RequestBody):
    messages: Annotated[
        list[SyncedMessage],
        Field(max_length=100_000, examples=[[{"role": "user", "content": "Hello"}]]),
        AfterValidator(_check_messages),
    ]
    on_divergence: Literal["rewind", "raise"] = "rewind"


class ComposeRequest(RequestBody):
    role: Role = ASSISTANT
    budget: Tokens | None = Field(default=None, description="Maximum tokens of the prompt.")
    reserve: Annotated[int, Field(ge=0, le=10**9), JsonNumber] = 0
    system: str | Messages | None = None
    model: Name = ""
    tools: Objects = []
    summary_as: Literal["system", "user", "header"] = "system"


class RoleRequest(RequestBody):
    role: Role = ASSISTANT


class CompactRequest(RoleRequest):
    timeout: Annotated[float, Field(ge=1, le=600), JsonNumber] = 60.0


class RevertRequest(RoleRequest):
    generation: Number | None = Field(default=None, description="Fail if another one is shown by now.")


class ReferenceRequest(RequestBody):
    reference: Reference


class RecallRequest(RoleRequest):
    name: Name
    arguments: Annotated[dict[str, Any], AfterValidator(_check_json)] = {}


class UsageRequest(RoleRequest):
    input_tokens: Number
    cached_tokens: Number | None = None


class SessionSize(BaseModel):
    id: str
    rounds: int
    entries: int
    last_activity: datetime | None


class SessionPage(BaseModel):
    sessions: list[SessionSize]
    next: str | None = Field(description="`after` of the next page; null: this is the last.")


class CompactorState(BaseModel):
    state: str
    skip_reason: str | None
    last_error: str | None
    failures: int
    circuit_open: bool
    generation: int
    covered_rounds: int


class SessionState(SessionSize):
    pins: list[str]
    roles: dict[str, CompactorState]


class AppendResult(BaseModel):
    references: list[str | None] = Field(description="One for each message; null: it is in the header.")


class SyncResult(AppendResult):
    appended: int
    kept: int
    dropped: int
    undone: int
    skipped: int


class RoundOut(BaseModel):
    number: int
    state: str
    created_at: datetime
    messages: list[dict[str, Any]] = Field(description="In OpenAI's chat format.")


class RoundPage(BaseModel):
    rounds: list[RoundOut]
    total: int


class SourceOut(BaseModel):
    ref: str | None
    kind: str


class PromptOut(BaseModel):
    messages: list[dict[str, Any]] = Field(description="In OpenAI's chat format.")
    tokens: int
    tokens_before: int = Field(description="Tokens without cuts.")
    omitted_rounds: list[int]
    sources: list[SourceOut]


class CompactionOut(BaseModel):
    generation: int
    last_covered_round: int = Field(validation_alias="last_round")
    summary: str
    created_at: datetime | None
    model: str | None


class CompactResult(BaseModel):
    compaction: CompactionOut | None


class RecordOut(BaseModel):
    number: int
    happened: str
    at: datetime
    generation: int
    current: bool
    last_covered_round: int | None = Field(default=None, validation_alias=AliasPath("compaction", "last_round"))
    summary: str | None = Field(default=None, validation_alias=AliasPath("compaction", "summary"))
    strategy: str
    model: str | None
    usage: dict[str, int] | None
    checks: list[str]
    tokens_before: int | None
    tokens_after: int | None


class Records(BaseModel):
    records: list[RecordOut]


class References(BaseModel):
    references: list[str]


class Text(BaseModel):
    text: str


class HitOut(BaseModel):
    reference: str
    text: str


class Hits(BaseModel):
    hits: list[HitOut]


class Tools(BaseModel):
    tools: list[dict[str, Any]]


class Imported(BaseModel):
    id: str
    entries: int


_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: PROBLEM_CONTENT | {"description": "The request is malformed."},
    404: PROBLEM_CONTENT | {"description": "There is nothing of the name in the path, or no page after a cursor."},
    409: PROBLEM_CONTENT | {"description": "The session's state does not allow this, or it lacks what the body names."},
    410: PROBLEM_CONTENT | {"description": "Another process has erased the session."},
    422: PROBLEM_CONTENT | {"description": "The request is invalid, or does not fit the session."},
    503: PROBLEM_CONTENT | {"description": "Try again later; see Retry-After."},
}


class EncodedNames:
    """Routes requests for a session by the path as it was sent, because a name may have an encoded slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "").rstrip("/")
        if scope["type"] == "http" and scope["path"].removeprefix(root).startswith(_SESSIONS):
            raw = scope.get("raw_path") or quote(scope["path"]).encode()
            path = raw.decode("latin-1").partition("?")[0]
            scope["path"] = path if path.startswith(root) else root + path
        await self._app(scope, receive, send)


def make_rest_router(state: ServerState) -> APIRouter:  # noqa: PLR0915  (a list of routes)
    """Return the routes under /api."""
    router = APIRouter(prefix="/api", tags=["sessions"], responses=_RESPONSES)
    text = {"schema": {"type": "string"}}
    compactions = TenantThreads(state.settings, COMPACTION_THREADS)
    open_existing, work_on = state.open_existing, state.work_on

    @router.post("/sessions", status_code=201)
    def create_session(tenant: Tenant, body: CreateSessionRequest) -> SessionSize:
        """Create a session, with its first messages if given."""
        session_id = body.id if body.id is not None else token_hex(16)

        def create(session: Session) -> None:
            memory = session.memory
            with session.lock:
                memory.refresh()
                if memory.snapshot.number:
                    raise HTTPException(409, "there is a session of that name; use it, or choose another name")
                memory.journal("").note("session.created", {})  # lists show it before its first message
                memory.extend(_dump(body.messages))

        work_on(tenant, session_id, create)
        return _measure(state, tenant, session_id)

    @router.get("/sessions")
    def list_sessions(
        tenant: Tenant,
        after: Annotated[str | None, Query(max_length=MAX_NAME + 40, description="`next` of the page before.")] = None,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
        order: Literal["name", "activity"] = "name",
    ) -> SessionPage:
        """List sessions by name, or the most recently used first."""
        try:
            if after is not None:  # ordered by activity, the minute precedes the name
                minute, space, name = after.partition(" ") if order == "activity" else ("", "", after)
                after = f"{minute}{space}{join_name(tenant, name)}"
            rows = state.sessions.store.list_sessions(tenant, after=after, limit=limit + 1, order=order)
        except ConfigError:
            raise HTTPException(404, "no page begins after this; give `next` of the page before") from None
        sizes = [
            SessionSize(
                id=split_name(one.name)[1], rounds=one.rounds, entries=one.entries, last_activity=one.last_activity
            )
            for one in rows[:limit]
        ]
        if len(rows) <= limit:
            return SessionPage(sessions=sizes, next=None)
        last = rows[limit - 1]
        key = last.name if order == "name" else last.cursor
        return SessionPage(sessions=sizes, next=key.replace(last.name, split_name(last.name)[1]))

    @router.get("/sessions/{session_id}")
    def get_session(tenant: Tenant, session_id: SessionId) -> SessionState:
        """Return a session's size, its pins and the state of its compactors."""
        with open_existing(tenant, session_id) as session:
            roles = {}
            for role, compactor in session.compactors.items():
                now = compactor.status()
                roles[role] = CompactorState(
                    state=now.state.name.lower(),
                    skip_reason=now.skip_reason,
                    last_error=now.last_error,
                    failures=now.failures,
                    circuit_open=now.circuit_open,
                    generation=now.generation,
                    covered_rounds=now.end_index,
                )
            pins = list(session.memory.pins())
        return SessionState(**_measure(state, tenant, session_id).model_dump(), pins=pins, roles=roles)

    @router.delete("/sessions/{session_id}", status_code=204)
    def delete_session(tenant: Tenant, session_id: SessionId) -> Response:
        """Erase a session for good: its messages, its summaries, its events and its files, in the archive, too."""
        name, archive, sessions = state.make_name(tenant, session_id), state.settings.archive, state.sessions
        if archive is not None:
            has_it = any(purge_session(sessions.store, archive, name, purge=sessions.purge))
        elif has_it := sessions.store.get_extent(name) is not None:
            sessions.purge(name)
        if not has_it:
            raise_unknown()
        return Response(status_code=204)

    @router.post("/sessions/{session_id}/messages", status_code=201)
    def append_messages(tenant: Tenant, session_id: SessionId, body: AppendRequest) -> AppendResult:
        """Append messages, all or none. A new name creates a session."""
        messages = _dump(body.messages)
        added = work_on(tenant, session_id, lambda session: session.memory.extend(messages, kind=body.kind))
        return AppendResult(references=[one.reference for one in added])

    @router.put("/sessions/{session_id}/messages")
    def sync_messages(tenant: Tenant, session_id: SessionId, body: SyncRequest) -> SyncResult:
        """Make the log match the host's whole history. A new name creates a session."""
        messages, rule = _dump(body.messages), body.on_divergence
        result = work_on(tenant, session_id, lambda session: session.memory.sync(messages, on_divergence=rule))
        return SyncResult.model_validate(result, from_attributes=True)

    @router.get("/sessions/{session_id}/rounds")
    def list_rounds(
        tenant: Tenant,
        session_id: SessionId,
        start: Annotated[int, Query(ge=1, le=10**9, description="The first round.")] = 1,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
        role: RoleQuery = ASSISTANT,
    ) -> RoundPage:
        """Return rounds verbatim, hidden ones included, with the messages that *role* sees."""
        with open_existing(tenant, session_id) as session:
            rounds = session.memory.snapshot.get_rounds(role, include_hidden=True)
            page = [
                RoundOut(
                    number=one.number,
                    state=one.state,
                    created_at=one.created_at,
                    messages=list(from_round(one, role)),
                )
                for one in rounds[start - 1 : start - 1 + limit]
            ]
            return RoundPage(rounds=page, total=len(rounds))

    @router.get("/sessions/{session_id}/references/{reference}")
    def reload(
        tenant: Tenant,
        session_id: SessionId,
        reference: ReferencePath,
        role: RoleQuery = "",
    ) -> Text:
        """Return the original text of a reference, such as r3.p2 or r1-r7."""
        with open_existing(tenant, session_id) as session:
            return Text(text=session.memory.reload(reference, role=role))

    @router.post("/sessions/{session_id}/compose")
    def compose(tenant: Tenant, session_id: SessionId, body: ComposeRequest) -> PromptOut:
        """Return the messages of the next prompt, within the budget. Never waits for a model."""
        with open_existing(tenant, session_id) as session:
            options = body.model_dump(exclude={"role", "budget"}, exclude_unset=True)
            prompt = session.compose(body.role, budget=body.budget, **options)
            return PromptOut(
                messages=cast("list[dict[str, Any]]", prompt.messages),
                tokens=prompt.tokens,
                tokens_before=prompt.report.tokens_before,
                omitted_rounds=list(prompt.report.omitted_rounds),
                sources=[SourceOut(ref=one.ref, kind=one.kind) for one in prompt.sources],
            )

    @router.post("/sessions/{session_id}/compact", responses={502: PROBLEM_CONTENT, 504: PROBLEM_CONTENT})
    async def compact(tenant: Tenant, session_id: SessionId, body: CompactRequest) -> CompactResult:
        """Compact now, and wait for it; null: there was nothing to compact."""

        def run(seconds: float) -> CompactResult:
            try:
                with open_existing(tenant, session_id) as session:
                    return _make_compact_result(_find_compactor(session, body.role).compact_now(seconds))
            except CompactionFailed:
                with open_existing(tenant, session_id):  # 404 if it was deleted meanwhile
                    raise

        try:
            return await compactions.run(tenant, run, body.timeout)
        except Busy as busy:
            raise HTTPException(503, str(busy), {"retry-after": str(RETRY_AFTER)}) from None

    @router.post("/sessions/{session_id}/revert")
    def revert(tenant: Tenant, session_id: SessionId, body: RevertRequest) -> CompactResult:
        """Show the previous summary again, and return it; null: there is none left."""
        with open_existing(tenant, session_id) as session:
            return _make_compact_result(_find_compactor(session, body.role).revert(body.generation))

    @router.get("/sessions/{session_id}/history")
    def get_history(tenant: Tenant, session_id: SessionId, role: RoleQuery = ASSISTANT) -> Records:
        """Return the history of the role's compactions, oldest first."""
        with open_existing(tenant, session_id) as session:
            records = session.memory.journal(role).history()
        return Records.model_validate({"records": records}, from_attributes=True)

    @router.get("/sessions/{session_id}/pins")
    def list_pins(tenant: Tenant, session_id: SessionId) -> References:
        """Return the references of pinned posts."""
        with open_existing(tenant, session_id) as session:
            return References(references=list(session.memory.pins()))

    @router.post("/sessions/{session_id}/pins", status_code=204)
    def pin(tenant: Tenant, session_id: SessionId, body: ReferenceRequest) -> Response:
        """Keep a post verbatim through every compaction."""
        with open_existing(tenant, session_id) as session:
            session.memory.pin(body.reference)
        return Response(status_code=204)

    @router.delete("/sessions/{session_id}/pins/{reference}", status_code=204)
    def unpin(tenant: Tenant, session_id: SessionId, reference: ReferencePath) -> Response:
        """Let compactions replace a post again."""
        with open_existing(tenant, session_id) as session:
            session.memory.unpin(reference)
        return Response(status_code=204)

    @router.post("/sessions/{session_id}/redact", status_code=204)
    def redact(tenant: Tenant, session_id: SessionId, body: ReferenceRequest) -> Response:
        """Erase a post's text for good, and everything that was derived from it."""
        with open_existing(tenant, session_id) as session:
            session.memory.redact(body.reference)
        return Response(status_code=204)

    @router.post("/sessions/{session_id}/rewind")
    def rewind(tenant: Tenant, session_id: SessionId, body: ReferenceRequest) -> References:
        """Continue from an earlier place, and return the references of the undone rounds."""
        with open_existing(tenant, session_id) as session:
            return References(references=list(session.memory.rewind(body.reference)))

    @router.post("/sessions/{session_id}/usage", status_code=204)
    def record_usage(tenant: Tenant, session_id: SessionId, body: UsageRequest) -> Response:
        """Record the provider's token count of the role's newest prompt; it corrects budgets."""
        with open_existing(tenant, session_id) as session:
            session.memory.record_usage(body.role, body.input_tokens, cached_tokens=body.cached_tokens)
        return Response(status_code=204)

    @router.get("/tools")
    def list_tools() -> Tools:
        """Return the schemas of the tools that give a model the text its prompt leaves out."""
        return Tools(tools=cast("list[dict[str, Any]]", Recall(Memory()).tools()))

    @router.post("/sessions/{session_id}/recall")
    def recall(tenant: Tenant, session_id: SessionId, body: RecallRequest) -> Text:
        """Return the answer to a model's call of one of these tools, also to an invalid call."""
        with open_existing(tenant, session_id) as session:
            return Text(text=Recall(session.memory, role=body.role).call(body.name, body.arguments))

    @router.get("/sessions/{session_id}/search")
    def search(
        tenant: Tenant,
        session_id: SessionId,
        query: Annotated[str, Query(min_length=1, max_length=2_000)],
        role: RoleQuery = "",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> Hits:
        """Search the conversation for words, best match first."""
        words = split_query(query)
        with open_existing(tenant, session_id) as session:
            rounds = session.memory.snapshot.get_rounds(role, include_hidden=True)
            hits = session.memory.search(query, role=role, limit=limit)
            return Hits(
                hits=[HitOut(reference=one.ref, text=one.make_match_line(rounds[one.round - 1], words)) for one in hits]
            )

    @router.get(
        "/sessions/{session_id}/export",
        response_class=StreamingResponse,
        responses={200: {"description": "The session as lines of JSON.", "content": {_LINES: text}}},
        name="export_session",
    )
    def export_(tenant: Tenant, session_id: SessionId) -> StreamingResponse:
        """Return the whole session as JSON lines, for import."""
        store, name = state.sessions.store, state.make_name(tenant, session_id)
        if store.get_extent(name) is None:
            raise_unknown()
        file = SpooledTemporaryFile(_MAX_IN_MEMORY)  # noqa: SIM115  (closed when it was sent)
        try:
            export_session(store, name, cast("TextIO", _RenamingWriter(file.write, session_id)))
        except BaseException as error:
            file.close()
            if isinstance(error, StoreError) and store.get_extent(name) is None:
                raise_unknown()  # deleted meanwhile
            raise
        file.seek(0)

        def read_chunks() -> Iterator[bytes]:
            with file:
                yield from iter(partial(file.read, _CHUNK), b"")

        return StreamingResponse(read_chunks(), media_type=_LINES)

    # Any type is taken; plain text is one that every client made from the description can send.
    body = {"requestBody": {"required": True, "content": {_LINES: text, "text/plain": text}}}

    @router.post("/sessions/{session_id}/import", status_code=201, openapi_extra=body)
    async def import_session(tenant: Tenant, session_id: SessionId, request: Request) -> Imported:
        """Import an exported session: all of it, or nothing if anything is wrong."""
        lines = await request.body()
        return await to_thread.run_sync(import_lines, tenant, session_id, lines)

    def import_lines(tenant: str, session_id: str, body: bytes) -> Imported:
        store, name = state.sessions.store, state.make_name(tenant, session_id)
        if store.get_extent(name) is not None:
            raise HTTPException(409, "there is a session of that name; delete it, or import under another name")
        try:
            with read_session(io.TextIOWrapper(io.BytesIO(body), "utf-8"), name) as (_, entries):
                if any(_names_files(entry, name) for entry in entries):
                    raise HTTPException(422, "this session has files; import it under another name")
                append_session(store, name, entries)
                return Imported(id=session_id, entries=len(entries))
        except UnicodeDecodeError:
            raise HTTPException(422, "the body is not UTF-8 text; send the output of export") from None
        except (StoreDamaged, NewerVersion) as error:
            raise HTTPException(422, str(error)) from None

    events: dict[int | str, dict[str, Any]] = {
        200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    }

    @router.get("/events", response_class=StreamingResponse, responses=events)
    async def stream_all_events(tenant: Tenant) -> StreamingResponse:
        """Stream the events of all sessions. An event `lost` has the number of events that a slow reader missed."""
        return _stream(state, tenant)

    @router.get("/sessions/{session_id}/events", response_class=StreamingResponse, responses=events)
    async def stream_session_events(tenant: Tenant, session_id: SessionId) -> StreamingResponse:
        """Stream the events of one session, which need not exist yet."""
        return _stream(state, tenant, session_id)

    return router


class _RenamingWriter:
    """Writes an export; its first line gets the session's own name instead of its full name."""

    def __init__(self, write: Callable[[bytes], object], name: str) -> None:
        self._write, self._name = write, name
        self._is_first = True

    def write(self, line: str) -> None:
        if self._is_first:
            self._is_first = False
            head: Mapping[str, Any] = json.loads(line)
            line = json.dumps({**head, "session": self._name}) + "\n"
        self._write(line.encode())


def _names_files(entry: Entry, name: str) -> bool:
    """Return whether *entry* names a folder of the session's files. A purge would delete it, even if it is forged."""
    record = entry.record if entry.kind in list_kinds(EventRecorded) else None
    return isinstance(record, EventRecorded) and record.name == FILES_KEPT and record.facts.get("session") == name


def _stream(state: ServerState, tenant: str, session_id: str | None = None) -> StreamingResponse:
    headers = {"x-accel-buffering": "no"}  # a reverse proxy must not buffer events
    return StreamingResponse(state.hub.listen(tenant, session_id), media_type="text/event-stream", headers=headers)


def _measure(state: ServerState, tenant: str, session_id: str) -> SessionSize:
    extent = state.sessions.store.get_extent(state.make_name(tenant, session_id))
    if extent is None:
        raise_unknown()
    return SessionSize(id=session_id, rounds=extent.rounds or 0, entries=extent.number, last_activity=extent.created_at)


def _find_compactor(session: Session, role: str) -> ContextCompactor:
    if role not in session.compactors:
        raise HTTPException(409, f"this role has no compactor here; there are {', '.join(session.compactors)}")
    return session.compactors[role]


def _make_compact_result(compaction: CompactedMessage | None) -> CompactResult:
    return CompactResult.model_validate({"compaction": compaction}, from_attributes=True)
