"""The command ``mcp``: a session's history as tools for an MCP host."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memory.messages import ASSISTANT
from memory.stores.tenants import join_name

from ..config import Settings
from ..sessions import Sessions
from ..triggers import when
from .serve import import_server, make_settings, run
from .session_commands import Store, make_option
from .sessions import open_named
from .terminal import CommandError

app = typer.Typer()


@app.command("mcp", short_help="Serve sessions to an MCP host.")
def serve_mcp(
    store: Store = None,
    session: Annotated[str | None, make_option("ID", "Serve this session only.")] = None,
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

    join_name(tenant, session or "")
    defaults = Settings.from_file(config).defaults if config is not None else None
    with open_named(store, create=True) as opened, Sessions(opened, config=defaults, **options) as sessions:
        server = mcp.make_server(lambda: sessions, session=session, role=role, get_tenant=lambda _context: tenant)
        anyio.run(mcp.serve_stdio, server)
