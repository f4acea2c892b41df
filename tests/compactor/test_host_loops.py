"""On which event loop a host's coroutines run: the host's own as long as there is one, whoever made the sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from model_server import ModelServer, ok
from scene import CONFIG, PRICES, ROLE, SOON, add_round, end_of, memory_of

from compactor import CompactionFailed, ContextCompactor, InMemoryStore, Memory, Session, Sessions, Skip, SummaryRequest


class Asked:
    """An asynchronous summarizer that names the loops that it ran on."""

    def __init__(self) -> None:
        self.loops: list[int] = []

    async def __call__(self, _request: SummaryRequest) -> str:
        await asyncio.sleep(0)
        self.loops.append(id(asyncio.get_running_loop()))
        return PRICES


def talk(session: Session) -> None:
    for _ in range(9):
        add_round(session.memory, role=session.compactor.role)


async def until_idle(session: Session) -> int:
    """Return where the compaction ends then: it may have begun before the last round was there."""
    assert await asyncio.to_thread(session.compactor.wait_idle, SOON)
    return end_of(session.compactor)


@pytest.mark.parametrize("shares", [False, True], ids=["sessions of each run", "sessions of all runs"])
def test_a_client_is_used_on_the_hosts_loop_alone(*, shares: bool) -> None:
    """Its connections belong to that loop: before, between and after compactions, in a second ``asyncio.run`` too."""
    httpx = pytest.importorskip("httpx")
    clients: list[Any] = []

    async def ask(_request: SummaryRequest | None = None) -> str:
        answer = await clients[-1].post(f"{server.base_url}/chat/completions", json={})
        return str(answer.json()["choices"][0]["message"]["content"])

    async def serve(session_id: str) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=SOON) as client:
            clients.append(client)
            sessions = shared or Sessions(InMemoryStore(), summarizer=ask, config=CONFIG, roles=ROLE)
            await ask()
            for again in (session_id, f"{session_id} again"):
                async with sessions.open(again) as session:
                    talk(session)
                    assert await until_idle(session) in (5, 6)
                    assert session.compactor.status().failures == 0
                assert await ask() == PRICES
            if not shares:
                assert await sessions.aclose(SOON)

    with ModelServer() as server:
        server.always(ok(PRICES))
        shared = Sessions(summarizer=ask, config=CONFIG, roles=ROLE) if shares else None
        asyncio.run(serve("a"))
        asyncio.run(serve("b"))
        if shared is not None:
            assert asyncio.run(shared.aclose(SOON))


def test_a_loop_that_pauses_is_waited_for() -> None:
    """A host that answers each turn with ``run_until_complete``: its client is not taken to another loop meanwhile, and
    that is no failure."""
    asked, loop = Asked(), asyncio.new_event_loop()
    with Sessions(summarizer=asked, config=CONFIG, roles=ROLE) as sessions:

        async def begin() -> Session:
            async with sessions.open("a") as session:
                return session

        session = loop.run_until_complete(begin())
        talk(session)
        assert session.compactor.wait_idle(SOON)
        status = session.compactor.status()
        assert (status.skip_reason, status.failures, end_of(session.compactor)) == (Skip.PAUSED, 0, 0)
        with pytest.raises(CompactionFailed, match="event loop"):
            session.compactor.compact_now(SOON)
        assert loop.run_until_complete(until_idle(session)) in (5, 6)
        assert asked.loops == [id(loop)]
        loop.close()
        talk(session)
        assert session.compactor.wait_idle(SOON)
        assert end_of(session.compactor) >= 10, "a loop that is closed runs nothing: the library's own does"


def test_the_loop_that_came_first_stays_while_it_runs() -> None:
    """Another thread's loop may use the same sessions; the client is the first one's."""
    asked, sessions = Asked(), list[Sessions]()

    async def second() -> int:
        async with sessions[0].open("b") as session:
            talk(session)
            assert await until_idle(session) in (5, 6)
        return id(asyncio.get_running_loop())

    async def first() -> int:
        sessions.append(Sessions(summarizer=asked, config=CONFIG, roles=ROLE))
        other = await asyncio.to_thread(asyncio.run, second())
        assert asked.loops == [id(asyncio.get_running_loop())]
        assert await sessions[0].aclose(SOON)
        return other

    assert asyncio.run(first()) not in asked.loops


@pytest.mark.parametrize("nests", [False, True])
def test_a_compactor_is_entered_again_in_another_run(*, nests: bool) -> None:
    """Each time it runs on the loop that has entered it; leaving the inner ``async with`` stops it, as without asyncio."""
    asked, memory = Asked(), memory_of(9)
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, asked)
    own: list[int] = []

    async def serve() -> None:
        own.append(id(asyncio.get_running_loop()))
        async with compactor:
            assert await asyncio.to_thread(compactor.wait_idle, SOON)
            if nests:
                async with compactor:
                    pass
                assert compactor.status().state == "stopped"
                compactor.start()
            for _ in range(6):
                add_round(memory)
            assert await asyncio.to_thread(compactor.wait_idle, SOON)
        assert compactor.status().state == "stopped"

    asyncio.run(serve())
    for _ in range(6):
        add_round(memory)
    asyncio.run(serve())
    assert end_of(compactor) >= 12
    assert len(own) == 2
    assert set(asked.loops) <= set(own)


def test_a_memory_is_used_by_two_loops_one_after_the_other() -> None:
    """What the first one has begun and not awaited is written before what the second appends."""

    class Remote(InMemoryStore):
        is_resident = False

    memory = Memory(store=Remote())

    async def say(text: str) -> None:
        task = asyncio.create_task(memory.aappend({"role": "user", "content": text}))
        await asyncio.sleep(0)
        await memory.aappend({"role": "user", "content": f"{text} again"})
        await task

    for text in ("one", "two"):
        asyncio.run(say(text))
    assert [message["content"] for message in memory.messages()] == ["one", "one again", "two", "two again"]


def test_closed_sessions_are_not_entered_again() -> None:
    """The inner ``async with`` of two closes them: the error says what to do."""

    async def serve() -> None:
        async with Sessions() as sessions:
            async with sessions:
                pass
            with pytest.raises(RuntimeError, match="make another Sessions"):
                async with sessions.open("a"):
                    pass

    asyncio.run(serve())
