"""``compactor serve``: what it refuses, its demo, its end, and the commands of docs/server.md."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command_line import refusal, run
from fenced import blocks
from quiet import QUIET

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")

import uvicorn
from starlette.routing import Route

from compactor import CompactorConfig, InMemoryStore, Sessions
from compactor.cli import serve
from compactor.cli.scenario import BUDGET, INCIDENT
from compactor.server import ServerSettings, create_app
from memory import StoreError


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--host", "0.0.0.0"], "COMPACTOR_TOKENS"),  # noqa: S104
        (["--demo", "--host", "0.0.0.0"], "needs tokens"),  # noqa: S104
        (["--upstream", "http://127.0.0.1"], "openai=URL"),
        (["--upstream", "openai=ftp://x"], "upstreams.openai"),
        (["--config", "none.json"], "none.json"),
        (["--demo", "--config", "none.json"], "--config"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(words: list[str], named: str) -> None:
    assert named in refusal(run("serve", *words))


def test_an_archive_that_does_not_exist_is_refused_in_one_line(tmp_path: Path) -> None:
    """``DELETE`` would answer that a session is erased although its copy stays in the real archive."""
    where = tmp_path / "archvie"
    with pytest.raises(StoreError, match="no archive at"):
        create_app(ServerSettings(store="memory://", archive=where.as_uri()))
    told = refusal(run("serve", "--store", "memory://", "--port", "0", "--archive", str(where)))
    assert "archvie" in told
    assert "make that folder" in told
    where.mkdir()
    create_app(ServerSettings(store="memory://", archive=str(where)))


def test_a_store_that_cannot_be_opened_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"no database " * 500)
    for url in (f"sqlite:///{damaged}", f"sqlite:///{tmp_path}", "mysql://host/database"):
        assert refusal(run("serve", "--port", "0", "--store", url)), url
    monkeypatch.setenv("XDG_DATA_HOME", str(damaged))
    monkeypatch.setenv("LOCALAPPDATA", str(damaged))
    monkeypatch.setenv("HOME", str(damaged))
    assert "give --store URL" in refusal(run("serve", "--port", "0"))


def test_an_address_that_is_not_to_be_had_is_refused_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = refusal(run("serve", "--demo", "--port", str(taken.getsockname()[1])))
    assert "choose another port with --port" in told


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert 'pip install "context-compactor[server]"' in refusal(run("serve"))


def test_settings_come_from_options_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"compaction.threshold": 7}')
    monkeypatch.setenv("COMPACTOR_TOKENS", "alice:token-0123456789")
    made: list[Any] = []
    monkeypatch.setattr(serve, "run", lambda app, settings: made.append((app, settings)))
    url = "https://api.example/v1"
    serve.serve(
        store="memory://",
        config=str(tmp_path / "config.json"),
        upstream=[f"openai={url}"],
        allow_host=["a.b"],
        budget=9,
        role=["x", "y"],
        max_body=5_000,
        rate=0,
        files=str(tmp_path / "files"),
    )
    ((app, settings),) = made
    assert (settings.max_body, settings.rate, settings.store_dir) == (5_000, None, tmp_path / "files")
    assert (settings.config.threshold, settings.upstreams, settings.hosts) == (7, {"openai": url}, ("a.b",))
    assert (list(settings.tokens), settings.budget, settings.roles) == (["alice"], 9, ("x", "y"))
    assert app.state.compactor.settings is settings
    assert {"budget", "store"} <= settings.model_fields_set  # the proxy's budget is else the window of the model


def test_the_demo_compacts_itself() -> None:
    """The session has what was said in the script, post by post, and its summary covers the first rounds."""
    playing = serve.ServedDemo(INCIDENT, pace=0, rounds=5)
    with Sessions(budget=BUDGET, roles=(playing.role,), **playing.options) as sessions, playing:
        playing.play(sessions)
        with sessions.open(playing.session) as session:
            session.compactor.wait_idle(30)
            assert session.memory.messages(playing.role) == playing._script.memory.messages(playing.role)
            assert session.memory.pins() == playing._script.memory.pins()
            assert session.compactor.status().end_index > 0


def test_the_demo_ends_with_the_server() -> None:
    playing = serve.ServedDemo(INCIDENT, pace=60)
    with Sessions(budget=BUDGET, roles=(playing.role,), **playing.options) as sessions:
        with playing:
            thread = threading.Thread(target=playing.play, args=(sessions,))
            thread.start()
        thread.join(30)
        assert not thread.is_alive()


def test_small_answers_are_sent_at_once() -> None:
    """Not after the 40 ms for which a client may wait with its acknowledgement of an answer's first part."""
    served: list[bool] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        served.append(bool(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        writer.close()

    async def ask() -> None:
        listening = serve._bind(ServerSettings(store="memory://", port=0))
        async with await asyncio.start_server(answer, sock=listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(b"x")
            await reader.read()
            writer.close()

    asyncio.run(ask())
    assert served == [True]


def test_clients_that_connect_at_once_are_taken_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them the event loop serves the requests of others; it does not hear of all new clients in one step."""
    servers, begin = list[uvicorn.Server](), uvicorn.Server.run
    started, connected = threading.Event(), threading.Event()
    steps: list[int] = [0]  # requests that began in each step of the event loop

    class Count:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                if scope["path"] == "/first":
                    assert connected.wait(20)  # the event loop stands still until all have connected
                if steps[-1] == 0:
                    asyncio.get_running_loop().call_soon(steps.append, 0)
                steps[-1] += 1
            await self.app(scope, receive, send)

    def run(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        servers.append(self)
        begin(self, sockets)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    settings = ServerSettings(store="memory://", port=0)
    app = create_app(settings)
    app.add_middleware(Count)
    thread = threading.Thread(target=serve.run, args=(app, settings, started.set))
    thread.start()
    try:
        assert started.wait(20)
        address = servers[0].servers[0].sockets[0].getsockname()
        with ExitStack() as clients:
            opened = []
            for path in ["first", *["healthz"] * 200]:
                opened.append(clients.enter_context(socket.create_connection(address, timeout=20)))
                opened[-1].sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            connected.set()
            assert all(client.recv(100) for client in opened)
    finally:
        servers[0].should_exit = True
        thread.join(20)
    assert sum(steps) == 201
    assert max(steps) <= 20


@pytest.mark.parametrize("proxied", [False, True])
def test_only_a_reverse_proxy_says_whose_request_it_is(proxied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else any local client could name another address with each wrong token."""
    made: list[bool] = []

    def record(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        made.append(self.config.proxy_headers)
        sockets[0].close()

    monkeypatch.setattr(uvicorn.Server, "run", record)
    settings = ServerSettings(store="memory://", port=0, proxied=proxied)
    serve.run(create_app(settings), settings)
    assert made == [proxied]


def test_what_the_process_keeps_from_the_garbage_collector_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.Server, "run", lambda _self, sockets: sockets[0].close())
    settings, before = ServerSettings(store="memory://", port=0), gc.get_freeze_count()
    gc.freeze()
    try:
        serve.run(create_app(settings), settings)
        assert gc.get_freeze_count() > 0
    finally:
        if not before:
            gc.unfreeze()


@pytest.mark.slow
def test_the_command_serves_and_ends() -> None:
    """It can be reached at the address that it prints, and a signal ends it though a client listens to events."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTOR_")}
    command = [sys.executable, "-m", "compactor", "serve", "--demo", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment | QUIET, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            with urllib.request.urlopen(f"{url}api/events", timeout=20) as events:  # noqa: S310
                assert events.readline().startswith(b":")
                assert any(b"compaction.published" in line for line in events)
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert errors == ""
    assert process.returncode in (0, -signal.SIGTERM)


def test_all_routes_are_made_before_the_first_request() -> None:
    """FastAPI makes those of an included router when it is first asked: on the event loop, with all warnings changed."""
    app = create_app(ServerSettings(config=CompactorConfig(threshold=1_000)), store=InMemoryStore())
    assert len(app.routes) > 20
    assert all(isinstance(route, Route) for route in app.routes)


@pytest.fixture
def server() -> Iterator[Callable[[], str]]:
    """A server on a free port of loopback; the call gives its address."""
    app = create_app(ServerSettings(config=CompactorConfig(threshold=1_000, retain_recent=0)), store=InMemoryStore())
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    serving = Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=serving.run)
    thread.start()

    def address() -> str:
        assert started.wait(20)
        return f"127.0.0.1:{serving.servers[0].sockets[0].getsockname()[1]}"

    yield address
    serving.should_exit = True
    thread.join()


def test_the_commands_of_the_page_work(server: Callable[[], str], tmp_path: Path) -> None:
    """Each command, in the order of the page, in one shell."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    texts = [block.text for block in blocks("docs/server.md", "shell")]
    script = "".join(text for text in texts if "curl" in text).replace("127.0.0.1:8765", server())
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Never cancel anything" in done.stdout
    assert (tmp_path / "order-17.jsonl").read_text().startswith('{"format"')
