"""MCP server: tools that read a session's history, pin posts and compact, for any MCP host.

``make_server`` returns the SDK's server; ``serve_stdio`` and, in ``compactor.server``, ``Endpoint`` serve it. Needs the
extra ``mcp``.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any

import structlog

from memory import EntriesLost, Recall, SessionPurged, Store, StoreError, UnknownReference
from memory.messages import ASSISTANT
from memory.recall import DEFAULT_HITS, DEFAULT_PAGE, MAX_HITS, MAX_PAGE, Parameters, Refused, read_arguments, read_text
from memory.stores.tenants import join_name, split_name

from .errors import CompactionFailed, CompactionTimeout
from .sessions import Session, Sessions
from .tokens import clip_to_tokens, count_tokens

try:
    import anyio
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError('MCP needs the SDK: pip install "context-compactor[mcp]"', name=missing.name) from missing

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["make_server", "serve_stdio"]

#: Maximum tokens of an answer.
MAX_TOKENS = 6_000
#: Seconds that ``compact_now`` waits for the summarizer.
COMPACT_SECONDS = 120.0
#: Maximum characters of a session's name.
MAX_NAME = 200
#: Maximum concurrent requests.
_WORKERS = 4

#: By tool: its name in ``Recall``, or ""; the description; the parameters.
_TOOLS: dict[str, tuple[str, str, Parameters]] = {
    "recall": (
        "context_reload",
        "Return the original text of a reference such as r12.p3. References mark text that was shortened,"
        " summarized or left out of the conversation.",
        {
            "ref": (
                "string",
                True,
                "r12: a round, r3-r9: rounds, r12.p3: a message, r12.p3-p17: messages.",
            ),
            "pattern": ("string", False, "Literal text to find in it. Returns its places instead of the text."),
            "offset": ("integer", False, "First character to return, from 0."),
            "limit": ("integer", False, "Maximum characters to return. Default: 4000."),
        },
    ),
    "search": (
        "search_history",
        "Search all messages of the conversation for words. Returns the best matches with their references.",
        {
            "query": ("string", True, "Words to look for."),
            "limit": ("integer", False, "Maximum messages to return. Default: 5."),
            "offset": ("integer", False, "Number of best messages to skip."),
        },
    ),
    "read_rounds": (
        "read_rounds",
        "Return rounds of the conversation verbatim. A round is one user message and all that follows until the"
        " next. Rounds are numbered from 1.",
        {
            "start": ("integer", True, "First round."),
            "end": ("integer", False, "Last round. Default: the first."),
            "offset": ("integer", False, "First character to return, from 0."),
            "limit": ("integer", False, "Maximum characters to return. Default: 4000."),
        },
    ),
    "pin": (
        "",
        "Pin a message: every prompt keeps its text verbatim, even after it is summarized.",
        {"ref": ("string", True, "The message, such as r12.p3, or r12.p0 for the user's message of round 12.")},
    ),
    "compact_now": (
        "",
        "Summarize the older rounds of the conversation now. Nothing is deleted. Returns which rounds are summarized.",
        {},
    ),
}
_SESSION: Parameters = {"session": ("string", True, "The session's name; list_sessions has the names.")}
#: The tool that exists only if each call names its session.
_LIST = "list_sessions"
_LIST_TOOL: tuple[str, str, Parameters] = (
    _LIST,
    "List conversations, the most recently used first, with the number of their rounds.",
    {"limit": ("integer", False, "Maximum conversations to return, up to 100. Default: 20.")},
)
_DEFAULT_LISTED, _MAX_LISTED = 20, 100
_INSTRUCTIONS = (
    "Access to the full history of a conversation whose older rounds are summarized: search it, read the original"
    " text, pin messages, and compact it."
)

Context = ServerRequestContext[Any, Any]


def make_server(
    get_sessions: Callable[[], Sessions],
    *,
    session: str | None = None,
    role: str = ASSISTANT,
    get_tenant: Callable[[Context], str] = lambda _context: "",
) -> Server[Any]:
    """Return a server with the tools ``recall``, ``search``, ``read_rounds``, ``pin`` and ``compact_now``.

    *get_sessions* is called for each request. The tools serve *session*. Without it, each takes the name of one of the
    tenant's sessions, ``list_sessions`` lists the names, and *get_tenant* returns the tenant of the request. The tools
    read the posts of the agent *role*, and compact its history. An answer has at most 6,000 tokens. An invalid or
    failing call gets an answer that is marked as an error and gives the reason.
    """
    added = _SESSION if session is None else {}
    known = dict(_TOOLS) if session is not None else {_LIST: _LIST_TOOL, **_TOOLS}
    schemas = {name: {**given, **(added if name != _LIST else {})} for name, (_, _, given) in known.items()}
    tools = [_describe(name, *known[name][:2], schemas[name]) for name in known]
    workers = anyio.CapacityLimiter(_WORKERS)

    def work(tenant: str, name: str, arguments: Mapping[str, Any] | None) -> str:
        given = dict(read_arguments(arguments, schemas[name]))
        if name == _LIST:
            return _list_sessions(get_sessions().store, tenant, given.get("limit", _DEFAULT_LISTED))
        own = _check_name(read_text(given, "session")) if session is None else session
        given.pop("session", None)
        sessions = get_sessions()

        def call() -> str:
            with sessions.open(_find_session(sessions.store, tenant, own)) as opened:
                opened.memory.refresh()
                return _call_tool(opened, name, given, role)

        try:
            return call()
        except EntriesLost as lost:  # the host should know that the end of its history is gone
            raise Refused(str(lost)) from lost
        except SessionPurged:  # by another process: it is unknown now, or has begun anew
            return call()

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if params.name not in known:
                raise Refused(f"there is no such tool; there are {', '.join(known)}")
            text = await anyio.to_thread.run_sync(
                work, get_tenant(context), params.name, params.arguments, limiter=workers
            )
        except (Refused, UnknownReference) as wrong:
            text = f"Error: {wrong}."
        except StoreError as fault:  # its message is for the store's administrator
            text = f"Error: the store does not answer ({type(fault).__name__}); try again later."
        except Exception as fault:  # noqa: BLE001  (its text may hold what was said)
            structlog.get_logger().error("mcp.failed", error=type(fault).__name__)
            text = f"Error: the server failed ({type(fault).__name__})."
        text = clip_to_tokens(text, MAX_TOKENS) if count_tokens(text) > MAX_TOKENS else text
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(content=content, is_error=text.startswith("Error: "))

    version = ""
    with suppress(metadata.PackageNotFoundError):  # run from a source tree
        version = metadata.version("context-compactor")
    return Server(
        "context-compactor",
        version=version,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _describe(name: str, reads: str, description: str, parameters: Parameters) -> types.Tool:
    properties = {field: {"type": kind, "description": text} for field, (kind, _, text) in parameters.items()}
    required = [field for field, (_, is_required, _) in parameters.items() if is_required]
    hints = types.ToolAnnotations(
        read_only_hint=bool(reads), destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    return types.Tool(
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        annotations=hints,
    )


def _list_sessions(store: Store, tenant: str, limit: object) -> str:
    """Return one line for each of the *tenant*'s sessions."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _MAX_LISTED:
        raise Refused(f"limit must be a whole number from 1 to {_MAX_LISTED}")
    rows = store.list_sessions(tenant, limit=limit, order="activity")
    lines = [
        f"{json.dumps(split_name(row.name)[1])}: {row.rounds} rounds, last used {row.last_activity:%Y-%m-%d %H:%M} UTC"
        for row in rows
    ]
    return "\n".join(lines) or "There are no conversations."


def _check_name(session: str) -> str:
    """Return the name of a *session* that a call gives. Raises ``Refused`` if it could be another tenant's."""
    if not 0 < len(session) <= MAX_NAME or any(unicodedata.category(one) in ("Cc", "Cs") for one in session):
        raise Refused(f"session must be a name of 1 to {MAX_NAME} characters, without control characters")
    return session


def _find_session(store: Store, tenant: str, session: str) -> str:
    """Return the full name of the *tenant*'s session. Raises ``Refused`` if it does not exist: opening would create
    it."""
    name = f"{join_name(tenant, '')}{session}"  # the host's own may have any characters
    if next(iter(store.read(name, 0, 1)), None) is None:
        raise Refused(f"there is no session {json.dumps(session[:80])}")
    return name


def _call_tool(opened: Session, name: str, given: dict[str, Any], role: str) -> str:
    if recall_tool := _TOOLS[name][0]:
        recall = Recall(opened.memory, role)
        answer = recall.call(recall_tool, given)
        default, maximum = (DEFAULT_HITS, MAX_HITS) if name == "search" else (DEFAULT_PAGE, MAX_PAGE)
        while count_tokens(answer) > MAX_TOKENS and given.get("limit") != 1:  # a smaller limit keeps the offsets right
            given["limit"] = max(min(int(given.get("limit") or default), maximum) // 2, 1)
            answer = recall.call(recall_tool, given)
        return answer
    if name == "pin":
        ref = read_text(given, "ref")
        opened.memory.pin(ref)
        return f"{json.dumps(ref)} is pinned."
    if (compactor := opened.compactors.get(role)) is None:
        raise Refused(f"nothing compacts for {json.dumps(role)}")
    try:
        compaction = compactor.compact_now(COMPACT_SECONDS)
    except (CompactionFailed, CompactionTimeout) as error:
        raise Refused(f"nothing was compacted ({type(error.__cause__ or error).__name__}); try again later") from error
    if compaction is None:
        return "There was nothing to compact."
    return f"Rounds 1-{compaction.last_round} are summarized in {count_tokens(compaction.summary)} tokens."


async def serve_stdio(server: Server[Any]) -> None:
    """Serve *server* over standard input and output until the input ends."""
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


class Endpoint:
    """*server* over streamable HTTP, as an ASGI app within ``run()``. It keeps no state between requests.

    It checks no token: put ``Access`` in front of it.
    """

    def __init__(self, server: Server[Any]) -> None:
        self._server = server
        self._manager: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        manager = StreamableHTTPSessionManager(self._server, json_response=True, stateless=True)  # usable for one run
        async with manager.run():
            self._manager = manager
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager is None:
            raise RuntimeError("MCP is not running; the lifespan of the app starts it")
        await self._manager.handle_request(scope, receive, send)
