"""The commands ``serve``, the server in one process, and ``mcp``, a session's history as tools for an MCP host."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from memory import StoreError, open_store
from memory.messages import ASSISTANT
from memory.stores.tenants import join_name, split_name

from ..config import Settings
from ..sessions import Session, Sessions
from ..triggers import when
from .scenario import BUDGET, INCIDENT, Demo, Scenario
from .session_commands import Store, make_option
from .sessions import open_named, read_name, show_name
from .terminal import CommandError, make_console, make_url

if TYPE_CHECKING:
    from ..server.settings import ServerSettings

app = typer.Typer()
#: Seconds that open requests, and then compactions, get at the end.
GRACE_SECONDS = 5
#: Seconds after which a thread that computes, such as a summarizer, lets the event loop run; Python's default is 0.005.
SWITCH_SECONDS = 0.0005
#: Clients that connect at once and wait in the kernel, and how many of them the event loop takes in one step: between
#: two steps it serves requests.
BACKLOG, ACCEPT_BATCH = 2_048, 4
#: Seconds between two steps of the demo.
PACE = 0.25


@app.command("serve", short_help="Serve sessions over HTTP.")
def serve(
    store: Store = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address; others than loopback need tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, metavar="N", help="Port; 0: any free one.")] = 8765,
    config: Annotated[str | None, make_option("FILE", "Settings of the compactors, as JSON.")] = None,
    budget: Annotated[int | None, make_option("N", "Tokens of a prompt whose request names none.", min=1)] = None,
    role: Annotated[list[str] | None, make_option("ROLE", "An agent to compact for; may be repeated.")] = None,
    upstream: Annotated[
        list[str] | None, make_option("KIND=URL", "A provider's address; KIND is openai or anthropic.")
    ] = (None),
    allow_host: Annotated[list[str] | None, make_option("NAME", "Another name by which browsers may reach it.")] = None,
    proxied: Annotated[
        bool, typer.Option("--proxied", help="A reverse proxy on this machine sets X-Forwarded-For and -Proto.")
    ] = False,
    max_body: Annotated[int | None, make_option("BYTES", "Maximum bytes of a request's body.", min=1_000)] = None,
    rate: Annotated[int | None, make_option("N", "Requests a minute and tenant; 0: unlimited.", min=0)] = None,
    files: Annotated[
        str | None, make_option("DIR", "Folder of the files of /context_offload.", "--files", envvar="COMPACTOR_FILES")
    ] = None,
    archive: Annotated[
        str | None, make_option("WHERE", "The archive of the sessions: they are erased there, too.", "--archive")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Play a made-up session, in memory, and keep nothing.")] = False,
) -> None:
    """Serve sessions over HTTP: a REST interface, a proxy before a model's endpoint, and a page that shows them.

    Keeps sessions in a database of this user, or in --store. Tokens come from COMPACTOR_TOKENS, as TENANT:TOKEN pairs,
    or from the file that COMPACTOR_TOKENS_FILE names. Without a token, only programs on this machine can reach it.
    Needs: pip install "context-compactor[server]".
    """
    if demo:
        if config is not None:
            raise CommandError("--demo has its own settings; leave --config out")
        run_demo(host, port)
        return
    given: dict[str, Any] = {"store": store, "host": host, "port": port, "budget": budget}
    given |= {"upstreams": dict(map(_parse_upstream, upstream or ())), "roles": tuple(role) if role else None}
    given |= {"proxied": proxied, "max_body": max_body, "rate": rate or None, "store_dir": files or None}
    given |= {"archive": archive}
    settings = make_settings(config, hosts=tuple(allow_host or ()), **given)
    if rate == 0:
        settings = settings.model_copy(update={"rate": None})  # keeps which fields were set: the proxy asks for budget
    app = import_server().create_app(settings)
    _check_store(settings)
    run(app, settings)


def _check_store(settings: ServerSettings) -> None:
    """Open the store in *settings* once: a fault in the app's lifespan would be told as a traceback. Raises
    ``CommandError`` and ``StoreError``."""
    from ..server.state import make_data_folder

    try:
        make_data_folder(settings)
    except OSError as error:
        raise CommandError(f"the folder for the store cannot be made ({error.strerror}); give --store URL") from error
    open_store(settings.store).close()


def _parse_upstream(text: str) -> tuple[str, str]:
    kind, separator, url = text.partition("=")
    if not separator or kind not in ("openai", "anthropic"):
        raise CommandError("--upstream is openai=URL or anthropic=URL")
    return kind, url


def make_settings(config: str | None, **values: Any) -> ServerSettings:
    """Return the settings of a server; those that are None have their defaults. Raises ``ConfigError``."""
    server = import_server()
    compactors = Settings.from_file(config) if config is not None else Settings.from_dict({})
    more = {"tokens": server.settings.read_tokens(os.environ), "config": compactors.defaults}
    given = {name: value for name, value in values.items() if value is not None}
    return server.ServerSettings(**given, **more)  # type: ignore[no-any-return]


class ServedDemo:
    """Plays a scripted conversation to a session of a server: appends what its agent says, and composes its prompts.

    ``start`` plays on a thread of its own; leaving ``with`` ends it.
    """

    #: The session's name.
    session = "demo"

    def __init__(self, scenario: Scenario, *, pace: float = PACE, rounds: int = 66) -> None:
        self.scenario, self._pace, self._rounds = scenario, pace, rounds
        (self.role,) = scenario.agents
        #: Where the script is played first; each message then goes to the session.
        self._script = Demo(scenario, latency=0)
        self.options = scenario.make_options(self.role, lambda: self._script.plan, self._script.prices)
        self._stopping = threading.Event()
        self._posts: list[int] = []  # of each round, how many posts the session has

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stopping.set()

    def start(self, sessions: Sessions) -> None:
        threading.Thread(target=self.play, args=(sessions,), name="compactor-demo", daemon=True).start()

    def play(self, sessions: Sessions) -> None:
        """Play all rounds, unless the server stops before."""
        with (
            suppress(_DemoStopped, StoreError, RuntimeError),
            self._script as script,
            sessions.open(self.session) as session,
        ):
            script.play(self._rounds, pause=lambda: self._follow(session))
            self._follow(session)

    def _follow(self, session: Session) -> None:
        memory, log = session.memory, self._script.memory
        for number, round_ in enumerate(log.conversation.rounds):
            if number == len(self._posts):
                memory.create_round(round_.user_query, id=round_.id)
                self._posts.append(0)
            for post in round_.post_list[self._posts[number] :]:
                memory.add_post(round_.id, post)
                self._posts[number] += 1
        for reference in set(log.pins()).difference(memory.pins()):
            memory.pin(reference)
        session.compose(self.role, system=self.scenario.agents[self.role], plan=True)
        if self._stopping.wait(self._pace):
            raise _DemoStopped


class _DemoStopped(Exception):
    """The server ends, and the demo with it."""


def run_demo(host: str, port: int) -> None:
    """Serve, and play the scripted incident to a session in memory meanwhile. Nobody needs a token."""
    server = import_server()
    demo_run = ServedDemo(INCIDENT)
    settings = server.ServerSettings(store="memory://", host=host, port=port, budget=BUDGET, roles=(demo_run.role,))
    app = server.create_app(settings, **demo_run.options)
    with demo_run:
        run(app, settings, lambda: demo_run.start(app.state.compactor.sessions))


def run(app: Any, settings: ServerSettings, on_start: Callable[[], object] = lambda: None, *, path: str = "") -> None:
    """Serve *app* until the process is told to end; call *on_start* when *path* can be reached."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                listener.listen(BACKLOG)  # asyncio has one number for both
                gc.collect()
                gc.freeze()  # else a full garbage collection would stop all requests for what is kept anyway
                port = self.servers[0].sockets[0].getsockname()[1] if self.servers else settings.port
                on_start()
                make_console().print(f"compactor serves at {make_url(settings.host, port, path)}", soft_wrap=True)

        async def shutdown(self, sockets: Any = None) -> None:
            app.state.compactor.hub.close()  # else the server would wait for streams that never end
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        http=make_protocol(),
        host=settings.host,
        port=settings.port,
        backlog=ACCEPT_BATCH,
        log_level="warning",
        access_log=False,  # its lines would have the names of sessions
        server_header=False,
        date_header=False,  # the proxy's answers have their endpoint's
        # Else any local client could name another address each time, and try tokens without limit.
        proxy_headers=settings.proxied,
        timeout_graceful_shutdown=GRACE_SECONDS,
        lifespan="on",
    )
    listener = _bind(settings)
    before, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        Server(config).run(sockets=[listener])
    finally:
        sys.setswitchinterval(before)
        if not frozen:  # else whoever calls this froze something, too
            gc.unfreeze()


def make_protocol() -> Any:
    """Return uvicorn's HTTP protocol with an extension that ASGI lacks: it closes a connection without an answer."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    kind: Any = AutoHTTPProtocol

    class Protocol(kind):  # type: ignore[misc]
        app: Any

        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            served = self.app

            async def serve(scope: Any, receive: Any, send: Any) -> None:
                scope.setdefault("extensions", {})["compactor.close"] = self.transport.close
                await served(scope, receive, send)

            self.app = serve

    return Protocol


def _bind(settings: ServerSettings) -> socket.socket:
    """Return a socket at the server's address. Raises ``CommandError`` if that is not to be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family)
        # asyncio sets TCP_NODELAY only where the protocol is named. Without it, the second packet of an answer waits
        # until the client acknowledges the first: 40 ms.
        return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, listener.detach())
    except OSError as error:
        remedy = "choose another port with --port, or 0 for any free one"
        reason = error.strerror or type(error).__name__
        raise CommandError(f"cannot serve at {settings.host}, port {settings.port}: {reason}; {remedy}") from error


def import_server() -> Any:
    try:
        import uvicorn  # noqa: F401

        from .. import server
        from ..server import app, settings  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandError('serve needs FastAPI and uvicorn: pip install "context-compactor[server]"') from error
    return server


@app.command("mcp", short_help="Serve sessions to an MCP host.")
def serve_mcp(
    store: Store = None,
    session: Annotated[str | None, make_option("ID", "Serve this session only.", callback=read_name)] = None,
    role: Annotated[str, typer.Option(metavar="ROLE", help="The agent whose history it is.")] = ASSISTANT,
    tenant: Annotated[str, make_option("NAME", "Whose sessions; over HTTP the token tells.")] = "",
    config: Annotated[str | None, make_option("FILE", "Settings of the compactors, as JSON.")] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve /mcp over HTTP instead of standard input.")] = False,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address; others than loopback need tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, metavar="N", help="Port; 0: any free one.")] = 8766,
) -> None:
    """Serve sessions to an MCP host such as Claude Code: the tools recall, search, read_rounds, pin and compact_now.

    Speaks over standard input and output, or with --http at /mcp. Tokens come from COMPACTOR_TOKENS, as in "serve".
    Compacts only when it is told to. Needs: pip install "context-compactor[mcp]", and [server] for --http.
    """
    try:
        from .. import mcp
    except ModuleNotFoundError as error:
        raise CommandError(str(error)) from error
    owner, own = split_name(session or "")
    if owner and (http or tenant not in ("", owner)):
        by = "over HTTP the token tells the tenant" if http else f"--tenant says {tenant}"
        raise CommandError(f"the session is one of the tenant {owner}, but {by}; pass --session '{show_name(own)}'")
    tenant = owner or tenant
    session = own if session is not None else None
    # Who only reads a session should not make somebody pay for a summary.
    options: dict[str, Any] = {"trigger": when(lambda _view: False), "roles": (role,)}
    if http:
        import_server()
        from ..server.mcp import make_app
        from ..server.state import ServerState

        with open_named(store, create=True) as opened:
            settings = make_settings(config, store=store, host=host, port=port)
            run(make_app(ServerState(settings, opened, **options), session=session, role=role), settings, path="mcp")
        return
    import anyio

    join_name(tenant, "")
    defaults = Settings.from_file(config).defaults if config is not None else None
    with open_named(store, create=True) as opened, Sessions(opened, config=defaults, **options) as sessions:
        server = mcp.make_server(lambda: sessions, session=session, role=role, get_tenant=lambda _context: tenant)
        anyio.run(mcp.serve_stdio, server)
