"""The command ``serve``: the server in one process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import ConfigError, Settings
from .session_commands import Store, option
from .terminal import CannotRun, screen

if TYPE_CHECKING:
    from ..server.settings import ServerSettings

app = typer.Typer()
#: Seconds that open requests, and then compactions, get at the end.
GRACE_SECONDS = 5


@app.command("serve", short_help="Serve sessions over HTTP.")
def serve(
    store: Store = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address; others than loopback need tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, metavar="N", help="Port; 0: any free one.")] = 8765,
    config: Annotated[str | None, option("FILE", "Settings of the compactors, as JSON.")] = None,
    upstream: Annotated[list[str] | None, option("KIND=URL", "A provider's address; KIND is openai or anthropic.")] = (
        None
    ),
    allow_host: Annotated[list[str] | None, option("NAME", "Another name by which browsers may reach it.")] = None,
) -> None:
    """Serve sessions over HTTP: a REST interface, a proxy before a model's endpoint, and a page that shows them.

    Keeps sessions in a database of this user, or in --store. Tokens come from COMPACTOR_TOKENS, as TENANT:TOKEN pairs,
    or from the file that COMPACTOR_TOKENS_FILE names. Without a token, only programs on this machine can reach it.
    Needs: pip install "context-compactor[server]".
    """
    given = {"store": store, "host": host, "port": port, "upstreams": dict(map(_parse_upstream, upstream or ()))}
    settings = make_settings(config, hosts=tuple(allow_host or ()), **given)
    run(settings)


def _parse_upstream(text: str) -> tuple[str, str]:
    kind, separator, url = text.partition("=")
    if not separator or kind not in ("openai", "anthropic"):
        raise CannotRun("--upstream is openai=URL or anthropic=URL")
    return kind, url


def make_settings(config: str | None, **values: Any) -> ServerSettings:
    """Return the settings of a server; those that are None have their defaults. Raises ``CannotRun``."""
    server = _import_server()
    try:
        compactors = Settings.from_file(config) if config is not None else Settings.from_dict({})
        more = {"tokens": server.settings.read_tokens(os.environ), "config": compactors.base}
        given = {name: value for name, value in values.items() if value is not None}
        return server.ServerSettings(**given, **more)  # type: ignore[no-any-return]
    except ConfigError as error:
        raise CannotRun(str(error)) from error


def run(settings: ServerSettings, **options: Any) -> None:
    """Serve until the process is told to end. *options* are those of ``create_app``."""
    server = _import_server()
    import uvicorn

    app = server.create_app(settings, **options)

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                port = self.servers[0].sockets[0].getsockname()[1] if self.servers else settings.port
                name = f"[{settings.host}]" if ":" in settings.host else settings.host
                screen().print(f"compactor serves at http://{name}:{port}/", soft_wrap=True)

        async def shutdown(self, sockets: Any = None) -> None:
            app.state.compactor.hub.close()  # else the server would wait for streams that never end
            await super().shutdown(sockets)

    Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,  # its lines would have the names of sessions
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            lifespan="on",
        )
    ).run()


def _import_server() -> Any:
    try:
        import uvicorn  # noqa: F401

        from .. import server
        from ..server import app, settings  # noqa: F401
    except ModuleNotFoundError as error:
        raise CannotRun('serve needs FastAPI and uvicorn: pip install "context-compactor[server]"') from error
    return server
