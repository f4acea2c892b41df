"""The MCP server, by the SDK's own client: in memory, over standard input, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the MCP SDK is not installed: pip install 'context-compactor[mcp,server]'")
pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[mcp,server]'")

import httpx2
import uvicorn
from fenced import ROOT, blocks
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from pydantic import SecretStr

from compactor import CompactorConfig, InMemoryStore, Memory, Sessions, Store, count_tokens, open_store
from compactor.mcp import MAX_TOKENS, make_server
from compactor.server import ServerSettings, create_app
from compactor.server.mcp import make_app
from compactor.server.state import ServerState
from compactor.testing import ScriptedSummarizer
from memory import Entry, StoreUnreachable
from memory.stores import join_name

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"
TOKENS = {"alice": SecretStr(ALICE), "bob": SecretStr(BOB)}
TOOLS = ["recall", "search", "read_rounds", "pin", "compact_now"]


def talk(store: Store, name: str, rounds: int = 20) -> Memory:
    memory = Memory(name, store=store)
    for number in range(1, rounds + 1):
        memory.append({"role": "user", "content": f"What does item {number} cost?"})
        memory.append({"role": "assistant", "content": f"Item {number} costs {number * 11} euros, as listed. " * 4})
    return memory


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def play(store: Store, scene: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Let *scene* use a client of a server on *store*."""

    async def run() -> None:
        config = CompactorConfig(threshold=100)  # nothing is due but what is asked for
        with Sessions(store, summarizer=options.pop("summarizer", None), config=config) as sessions:
            async with Client(make_server(lambda: sessions, **options)) as client:
                await scene(client)

    asyncio.run(run())


def test_the_tools_of_one_session() -> None:
    """For one session, no tool takes a session's name; each does its one thing, and tells so in plain text."""
    store = InMemoryStore()
    memory = talk(store, "chat")

    async def scene(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == TOOLS
        assert all(tool.description and "session" not in tool.input_schema["properties"] for tool in tools)

        async def call(name: str, **arguments: Any) -> str:
            result = await client.call_tool(name, arguments)
            assert not result.is_error
            return text_of(result)

        assert "What does item 7 cost?" in await call("recall", ref="r7")
        assert "costs 33 euros" in await call("read_rounds", start=2, end=4)
        assert "r9.p1" in await call("search", query="99")
        assert await call("pin", ref="r2.p1") == '"r2.p1" is pinned.'
        assert "Rounds 1-17 are summarized" in await call("compact_now")
        assert await call("compact_now") == "There was nothing to compact."
        memory.append({"role": "user", "content": "And item 21, by another process?"})
        assert "another process" in await call("read_rounds", start=21)

    play(store, scene, session="chat")
    memory.refresh()
    assert memory.pins() == ("r2.p1",)
    _, compaction = memory.get_role_rounds("assistant")
    assert compaction is not None


def test_the_tools_of_all_sessions() -> None:
    """Without a session, each tool takes one by its name, of the tenant who asks alone; an unknown one is not begun."""
    store = InMemoryStore()
    talk(store, join_name("alice", "chat"), 3)
    talk(store, join_name("bob", "other"), 3)
    talk(store, "plain", 3)

    async def scene(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["list_sessions", *TOOLS]
        assert all("session" in tool.input_schema["required"] for tool in tools[1:])
        listed = text_of(await client.call_tool("list_sessions", {}))
        assert listed.startswith('"chat": 3 rounds, last used 2')
        assert len(listed.splitlines()) == 1
        for limit in (0, 101, True):
            assert (await client.call_tool("list_sessions", {"limit": limit})).is_error
        found = await client.call_tool("read_rounds", {"session": "chat", "start": 1})
        assert not found.is_error
        for session in ("other", "plain", "bob\x1fother", "", "x" * 300, "\ud800", "../chat", "alice", 7, None):
            for name in TOOLS:
                arguments = {"recall": {"ref": "r1"}, "search": {"query": "item"}, "pin": {"ref": "r1.p0"}}
                given = arguments.get(name, {"start": 1} if name == "read_rounds" else {})
                answer = await client.call_tool(name, {**given, "session": session})
                assert answer.is_error
                assert text_of(answer).startswith("Error: ")
                assert "euros" not in text_of(answer)

    play(store, scene, get_tenant=lambda _context: "alice")
    assert len(store.sessions()) == 3


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("forget", {}, "there is no such tool"),
        ("recall", {"ref": "r99"}, "r99"),
        ("recall", {"ref": "'; DROP TABLE rounds"}, "reference"),
        ("recall", {}, "ref must be given"),
        ("recall", {"ref": "r1", "color": "red"}, "does not have"),
        ("read_rounds", {"start": "many"}, "start must be a whole number"),
        ("search", {"query": " "}, "query is empty"),
        ("pin", {"ref": "r1"}, "r1"),
        ("pin", {"ref": 5}, "ref must be a string"),
        ("pin", {"ref": "r1.p99"}, "r1.p99"),
    ],
)
def test_wrong_calls_are_errors(name: str, arguments: dict[str, Any], said: str) -> None:
    """A wrong call is marked as an error and says what is wrong; the server goes on."""
    store = InMemoryStore()
    talk(store, "chat", 2)

    async def scene(client: Client) -> None:
        answer = await client.call_tool(name, arguments)
        assert answer.is_error
        assert said in text_of(answer)
        assert not (await client.call_tool("read_rounds", {"start": 1})).is_error

    play(store, scene, session="chat")


class BrokenStore(InMemoryStore):
    is_broken = False

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        if self.is_broken:
            raise StoreUnreachable("my secret host does not answer")
        return super().read(session, after, limit)


def test_failures_are_errors_without_what_was_said() -> None:
    """A summarizer that fails, and a store that does not answer, are errors that name their kind and nothing else."""
    store = BrokenStore()
    talk(store, "chat")

    def fail(_request: object) -> str:
        raise ValueError("my secret key")

    async def scene(client: Client) -> None:
        answer = await client.call_tool("compact_now", {})
        assert answer.is_error
        assert "secret" not in text_of(answer)
        assert "ValueError" in text_of(answer)
        store.is_broken = True
        answer = await client.call_tool("read_rounds", {"start": 1})
        assert answer.is_error
        assert "secret" not in text_of(answer)
        assert "store does not answer" in text_of(answer)

    play(store, scene, session="chat", summarizer=fail)


@pytest.mark.parametrize("begun", [False, True])
def test_a_session_that_another_process_has_deleted_is_told_as_such(begun: bool) -> None:
    """Not as a store that fails: it is unknown at once, or the one that has begun under its name since."""
    store = InMemoryStore()
    talk(store, "chat", 3)

    async def scene(client: Client) -> None:
        assert not (await client.call_tool("read_rounds", {"start": 3})).is_error
        store.purge("chat")
        if begun:
            talk(store, "chat", 1)
        for name, arguments in (("read_rounds", {"start": 1}), ("pin", {"ref": "r1.p0"})):
            answer = await client.call_tool(name, arguments)
            assert answer.is_error is not begun
            assert begun or text_of(answer) == 'Error: there is no session "chat".'

    play(store, scene, session="chat")


def test_a_session_whose_end_the_store_has_lost_is_told_as_such_once() -> None:
    """As after a failover: the host should know what is gone; from then on, it reads what there is."""
    store = InMemoryStore()
    talk(store, "chat", 1)
    kept = [*store.read("chat")]
    talk(store, "chat", 2)

    async def scene(client: Client) -> None:
        assert not (await client.call_tool("read_rounds", {"start": 3})).is_error
        store.purge("chat")
        store.append("chat", kept, 0)
        answer = await client.call_tool("pin", {"ref": "r1.p0"})
        assert answer.is_error
        assert "the store has lost entry" in text_of(answer)
        assert (await client.call_tool("read_rounds", {"start": 3})).is_error
        assert not (await client.call_tool("pin", {"ref": "r1.p0"})).is_error

    play(store, scene, session="chat")


def test_answers_are_bounded_in_tokens() -> None:
    """No answer has more than 6,000 tokens, in any script; its offsets lead through all of the text."""
    store = InMemoryStore()
    text = "".join(chr(0x1F300 + n % 500) for n in range(9_000))
    memory = talk(store, "chat", 1)
    memory.append({"role": "assistant", "content": text})

    async def scene(client: Client) -> None:
        read, offset = "", 0
        while True:
            answer = text_of(await client.call_tool("recall", {"ref": "r1.p2", "limit": 19_500, "offset": offset}))
            assert count_tokens(answer) <= MAX_TOKENS
            heading, _, page = answer.partition("\n")
            read += page.removeprefix("> ")
            _, more, rest = heading.partition("go on with offset=")
            if not more:
                break
            offset = int(rest.rstrip("]"))
        assert text in read

    play(store, scene, session="chat")


@asynccontextmanager
async def serve(app: Any) -> AsyncIterator[int]:
    """Serve *app* on a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


@pytest.mark.parametrize("whole", [False, True], ids=["mcp", "serve"])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_over_http_each_token_has_its_sessions(whole: bool, mode: str) -> None:
    """At /mcp, of the server or alone, old and new clients reach their tenant's sessions, and without a token nobody
    is let in."""
    store = InMemoryStore()
    talk(store, join_name("alice", "chat"))
    settings = ServerSettings(store="memory://", tokens=TOKENS)
    app = create_app(settings, store=store) if whole else make_app(ServerState(settings, store))

    async def run() -> None:
        async with serve(app) as port:
            url = f"http://127.0.0.1:{port}/mcp"

            async def ask(token: str) -> CallToolResult:
                async with (
                    httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}) as http,
                    Client(streamable_http_client(url, http_client=http), mode=mode) as client,
                ):
                    assert [tool.name for tool in (await client.list_tools()).tools][1:] == TOOLS
                    return await client.call_tool("search", {"session": "chat", "query": "99"})

            assert "r9.p1" in text_of(await ask(ALICE))
            other = await ask(BOB)
            assert (other.is_error, "r9" in text_of(other)) == (True, False)
            async with httpx2.AsyncClient() as http:
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
                assert (await http.post(url, json=body)).status_code == 401
                own = {"authorization": f"Bearer {ALICE}", "accept": "text/event-stream"}
                async with http.stream("GET", url, headers=own) as answer:  # it would last, and nothing would come
                    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
                wrong = {"authorization": f"Bearer {ALICE}", "origin": "https://example.org"}
                assert (await http.post(url, json=body, headers=wrong)).status_code == 403

    asyncio.run(run())


@pytest.mark.slow  # starts a process
def test_the_command_speaks_over_standard_input(tmp_path: Path) -> None:
    """The command that the page gives a host serves a session of a database, and compacts only when told to."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    store = open_store(url)
    talk(store, "session-1")
    shown = json.loads(blocks("docs/mcp.md", "json")[0].text)["mcpServers"]["history"]
    assert shown["command"] == "compactor"
    words = ["-m", "compactor", *(url if word.startswith("sqlite:") else word for word in shown["args"])]

    async def run() -> None:
        command = StdioServerParameters(command=sys.executable, args=words, cwd=str(ROOT))
        async with Client(stdio_client(command)) as client:
            assert "costs 33 euros" in text_of(await client.call_tool("read_rounds", {"start": 3}))
            assert Memory("session-1", store=store).get_role_rounds("assistant")[1] is None
            assert "Rounds 1-17" in text_of(await client.call_tool("compact_now", {}))
            assert "it has none" in text_of(await client.call_tool("compact_now", {"role": "x"}))

    asyncio.run(run())
    assert Memory("session-1", store=store).get_role_rounds("assistant")[1] is not None
    store.close()


@pytest.mark.slow  # starts processes
def test_the_command_takes_a_session_as_lists_show_it(tmp_path: Path) -> None:
    """With the tenant before its name, and control characters as escapes; a contradiction is an error."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    names = {"a\\x0ab": "a\nb", "acme\\x1fchat-7": join_name("acme", "chat-7"), "a\\x5cx0ab": "a\\x0ab"}
    with closing(open_store(url)) as store:
        for name in names.values():
            talk(store, name, 1).append({"role": "user", "content": f"This is {name!r}."})
    words = [sys.executable, "-m", "compactor", "mcp", "--store", url]

    async def read(*more: str) -> str:
        command = StdioServerParameters(command=words[0], args=[*words[1:], *more], cwd=str(ROOT))
        async with Client(stdio_client(command)) as client:
            return text_of(await client.call_tool("read_rounds", {"start": 2}))

    for shown, name in names.items():
        assert f"This is {name!r}." in asyncio.run(read("--session", shown))
    assert "chat-7" in asyncio.run(read("--tenant", "acme", "--session", "chat-7"))
    for more in (["--tenant", "other"], ["--http"]):
        wrong = subprocess.run([*words, "--session", "acme\\x1fchat-7", *more], capture_output=True, check=False)
        assert wrong.returncode == 2
        assert b"of the tenant acme" in wrong.stderr.replace(b"\n", b" ")


def test_compactions_are_shown_as_the_summarizer_made_them() -> None:
    """``compact_now`` publishes what the summarizer said, in the log that all share."""
    store = InMemoryStore()
    memory = talk(store, "chat")
    said = " ".join(f"Item {n} costs {n * 11} euros." for n in range(1, 18))

    async def scene(client: Client) -> None:
        assert not (await client.call_tool("compact_now", {})).is_error

    play(store, scene, session="chat", summarizer=ScriptedSummarizer(default=said))
    memory.refresh()
    compaction = memory.get_role_rounds("assistant")[1]
    assert compaction is not None
    assert said in compaction.summary
