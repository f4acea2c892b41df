"""The command ``worker``: compacts what hosts hand over."""

from __future__ import annotations

import asyncio
import re
from importlib import import_module
from typing import Annotated, Any, Literal

import typer

from memory.errors import ContextError
from memory.messages import ASSISTANT

from ..background import Options
from ..config import Settings
from ..cost.shared_limits import SharedLimits
from ..events import log_events, make_logger
from ..workers import Worker
from .session_commands import Store, make_option
from .sessions import open_named
from .terminal import CommandError, make_console, make_url

app = typer.Typer()
#: URLs of RabbitMQ and Redis, as Celery takes them.
_BROKER = re.compile(r"(py)?amqps?://|rediss?(\+socket)?://|sentinel://")


@app.command("worker", short_help="Compact what hosts hand over.")
def work(
    engine: Annotated[Literal["procrastinate", "celery"], make_option("NAME", "procrastinate or celery.")],
    store: Store = None,
    broker: Annotated[str | None, make_option("URL", "Celery's broker, or another database for jobs.")] = None,
    role: Annotated[list[str] | None, make_option("ROLE", "An agent to compact for; may be repeated.")] = None,
    budget: Annotated[int | None, make_option("N", "Tokens of the prompts, as hosts compose them.", min=1)] = None,
    config: Annotated[str | None, make_option("FILE", "Settings of the compactors, as JSON.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs at once.")] = 4,
    drain: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Procrastinate: what jobs get on SIGTERM.")
    ] = 30.0,
    metrics_port: Annotated[int | None, make_option("N", "Serve Prometheus metrics; needs [server].", min=0)] = None,
    metrics_host: Annotated[str | None, make_option("ADDRESS", "Address of the metrics.  [default: 127.0.0.1]")] = None,
) -> None:
    """Compact the sessions of a store that hosts with a dispatcher hand over, until SIGTERM.

    Hosts and workers share the store; settings and the budget are to be the same. Sessions that nobody has looked at
    since they were left are found every minute. Needs: pip install "context-compactor[procrastinate]", or [celery].
    """
    if engine == "celery" and not _BROKER.match(broker or ""):
        raise CommandError(
            "--engine celery needs --broker, such as amqp://guest:guest@localhost// or redis://localhost/0"
        )
    if metrics_host is not None and metrics_port is None:
        raise CommandError("--metrics-host needs --metrics-port: without a port, no metrics are served")
    adapter = _import(engine)
    if engine == "procrastinate" and (jobs := broker or store):
        adapter.jobs_database.require_postgresql(jobs)
    settings = Settings.from_file(config) if config is not None else Settings.from_dict({})
    with open_named(store, create=True) as opened:
        options: Options = {"limits": SharedLimits(opened, limits)} if (limits := settings.defaults.limits) else {}
        roles = tuple(role or (ASSISTANT,))
        worker = Worker(store=opened, roles=roles, settings=settings, budget=budget, options=options)
        worker.on_event(log_events(make_logger()))
        if metrics_port is not None:
            _serve_metrics(worker, metrics_host or "127.0.0.1", metrics_port)
        make_console().print(
            f"compactor works with {engine}, {concurrency} jobs at once; Ctrl-C ends it", soft_wrap=True
        )
        try:
            if engine == "procrastinate":
                asyncio.run(adapter.work(broker or store, worker, concurrency=concurrency, drain_seconds=drain))
            else:
                adapter.work(broker, worker, concurrency=concurrency)
        except ContextError:
            raise
        except Exception as error:
            raise CommandError(
                f"{engine} cannot work: {type(error).__name__}; is its database or broker there?"
            ) from error


def _import(engine: str) -> Any:
    try:
        return import_module(f"..workers.{engine}", __package__)
    except ModuleNotFoundError as error:
        raise CommandError(f'{engine} is not installed: pip install "context-compactor[{engine}]"') from error


def _serve_metrics(worker: Worker, host: str, port: int) -> None:
    try:
        from prometheus_client import start_http_server

        from ..telemetry.prometheus import make_registry
    except ImportError as error:
        raise CommandError('metrics need prometheus-client: pip install "context-compactor[server]"') from error
    try:
        server, _ = start_http_server(port, host, make_registry(worker))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"port {port} of {host} cannot be used ({reason}); choose another") from error
    make_console().print("metrics at", make_url(host, server.server_port, "metrics"), soft_wrap=True)
