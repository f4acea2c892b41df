"""Whole turns of a chat while something is wrong where its session is kept, and after it was put right."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import refusal, run
from executors import ManualExecutor
from lines import Line
from postgres import Postgres
from sqlalchemy import text

from compactor import CompactorConfig, ContextCompactor, Prompt, compose
from compactor.events import Failed, Published
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import (
    Memory,
    NewerVersion,
    Recall,
    Round,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    log,
    open_store,
)

ROLE = "Planner"
CONFIG = CompactorConfig(threshold=4, retain_recent=2, backoff_initial=1.0)
LONG = "and so on, " * 2_000


class Chat:
    """A host that talks, composes, recalls, and has a compactor; nothing happens but on this thread."""

    def __init__(self, url: str) -> None:
        self.store: Any = open_store(url)
        self.memory = Memory("s", store=self.store)
        self.recall = Recall(self.memory, ROLE)
        self.summarizer = ScriptedSummarizer()
        self.executor, self.clock = ManualExecutor(), FakeClock()
        self.compactor = ContextCompactor.for_role(
            self.memory, ROLE, CONFIG, self.summarizer, executor=self.executor, clock=self.clock, rng=lambda: 0.5
        )

    def close(self) -> None:
        self.compactor.stop(0)
        self.store.close()

    def ask(self, number: int) -> Round:
        return self.memory.create_round(f"question {number}")

    def answer(self, round_: Round, number: int, more: str = "") -> None:
        self.memory.add_post(round_, send_from=ROLE, send_to="User", message=f"answer {number} {more}".strip())
        self.memory.finish_round(round_)

    def turn(self, number: int) -> None:
        self.answer(self.ask(number), number)
        assert self.prompt().messages[-1]["content"].startswith(f"answer {number}")

    def prompt(self) -> Prompt:
        return compose(self.memory, ROLE, budget=20_000)

    def shown(self) -> list[tuple[str, list[str]]]:
        return shown(self.memory)


def shown(memory: Memory) -> list[tuple[str, list[str]]]:
    return [(one.user_query, [post.message for post in one.post_list]) for one in memory.conversation.rounds]


@contextmanager
def chatting(url: str) -> Iterator[Chat]:
    with closing(Chat(url)) as chat:
        yield chat


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and is put right at the end of the block."""

    url: str
    error: type[StoreError]
    #: What its message says to do.
    remedy: str
    during: Callable[[Chat], AbstractContextManager[object]]
    #: Whether what is stored can be read meanwhile.
    readable: bool = True


# -- faults ------------------------------------------------------------------------------------------------------------


def on(chat: Chat, statement: str) -> Any:
    def run_it(connection: Any) -> Any:
        result = connection.execute(text(statement))
        return result.all() if result.returns_rows else None

    return chat.store._connections.write(run_it)


def full(folder: Path) -> Fault:
    @contextmanager
    def during(chat: Chat) -> Iterator[None]:
        ((pages,),) = on(chat, "PRAGMA page_count")
        on(chat, f"PRAGMA max_page_count = {pages}")
        yield
        on(chat, "PRAGMA max_page_count = 1000000")

    return Fault(url_in(folder), StoreFull, "free some and try again", during)


def locked(folder: Path) -> Fault:
    @contextmanager
    def during(_chat: Chat) -> Iterator[None]:
        with closing(sqlite3.connect(folder / "chat.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield

    return Fault(f"{url_in(folder)}&timeout=0.05", StoreBusy, "try again, or wait for longer", during)


def removed(folder: Path) -> Fault:
    @contextmanager
    def during(_chat: Chat) -> Iterator[None]:
        (folder / "chat.db").rename(folder / "aside.db")
        yield
        (folder / "aside.db").rename(folder / "chat.db")

    return Fault(url_in(folder), StoreDamaged, "put it back", during, readable=False)


def read_only(server: Postgres, url: str) -> Fault:
    name = url.rpartition("/")[2]

    def switch(to: str) -> None:
        server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {to}")

    @contextmanager
    def during(_chat: Chat) -> Iterator[None]:
        switch("on")
        server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")  # noqa: S608
        yield
        switch("off")

    return Fault(url, StoreReadOnly, "allow it there", during)


def away(server: Postgres) -> Fault:
    @contextmanager
    def during(_chat: Chat) -> Iterator[None]:
        server.crash()
        yield
        server.start()

    return Fault(server.url(), StoreUnreachable, "try again once the server is back", during, readable=False)


def cut_off(line: Line, url: str) -> Fault:
    @contextmanager
    def during(_chat: Chat) -> Iterator[None]:
        line.message, line.arrives, line.times = b"", False, 10**6
        yield
        line.times = 0

    return Fault(line.url(url), StoreUnreachable, "try again once the server is back", during, readable=False)


def url_in(folder: Path) -> str:
    return f"sqlite:///{(folder / 'chat.db').as_posix()}?synchronous=normal"


@pytest.fixture
def line(postgres_server: Postgres) -> Iterator[Line]:
    line = Line(postgres_server)
    yield line
    line.close()


@pytest.fixture(params=["full", "locked", "removed", "read-only server", "server away", "network cut"])
def fault(request: pytest.FixtureRequest, tmp_path: Path) -> Fault:
    if request.param == "removed" and os.name == "nt":
        pytest.skip("there nobody can remove a file that is open")
    get = request.getfixturevalue
    match request.param:
        case "full":
            return full(tmp_path)
        case "locked":
            return locked(tmp_path)
        case "removed":
            return removed(tmp_path)
        case "read-only server":
            return read_only(get("postgres_server"), get("postgres_url"))
        case "server away":
            return away(get("own_postgres"))
        case _:
            return cut_off(get("line"), get("postgres_url"))


# -- turns -------------------------------------------------------------------------------------------------------------


def test_a_chat_is_answered_during_a_fault_and_goes_on_after_it(fault: Fault) -> None:
    """What was said is still composed from and searched; what failed works when it is done again, once; the compactor
    comes back by itself, and pays for no answer twice."""
    with chatting(fault.url) as chat:
        for number in range(1, 7):
            chat.turn(number)
        asked = chat.ask(7)
        before = chat.prompt().messages
        chat.compactor.start()  # a compaction is due
        with fault.during(chat):
            with pytest.raises(fault.error, match=fault.remedy):
                chat.answer(asked, 7, LONG)
            assert chat.prompt().messages == before
            assert "question 3" in chat.recall.call("context_reload", {"ref": "r3"})
            found = chat.recall.call("search_history", {"query": "answer"})
            assert "r3.p1" in found if fault.readable else found.startswith("Error: the store of this conversation")
            chat.executor.run_all()
            if fault.error is not StoreFull:  # a summary may fit where the long answer does not
                assert any(isinstance(event, Failed) for event in chat.compactor.events)
                assert chat.compactor.get_compaction() is None
        chat.answer(asked, 7, LONG)
        chat.turn(8)
        chat.clock.advance(5.0)  # the back-off is over
        chat.executor.run_all()
        compaction = chat.compactor.get_compaction()
        assert compaction is not None
        assert compaction.end_index >= 4
        assert [event for event in chat.compactor.events if isinstance(event, Published)]
        assert len({request.messages[-1]["content"] for request in chat.summarizer.requests}) == len(
            chat.summarizer.requests
        )
        chat.turn(9)
        asked_for = [(f"question {number}", [f"answer {number}"]) for number in range(1, 10)]
        asked_for[6] = ("question 7", [f"answer 7 {LONG}".strip()])
        assert chat.shown() == asked_for
        resumed = Memory("s", store=chat.store)
        assert shown(resumed) == asked_for
        assert compose(resumed, ROLE, budget=20_000).messages == chat.prompt().messages
        ids = [entry.id for entry in chat.store.read("s")]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("arrives", [True, False], ids=["the reply is lost", "the message is lost"])
@pytest.mark.parametrize("message", [b"question 7", b"answer 7", b"compaction prepared", b"compaction published"])
def test_a_connection_that_breaks_within_a_turn_is_not_noticed(
    postgres_url: str, line: Line, message: bytes, arrives: bool
) -> None:
    """Whatever was being written is there once: the database is asked whether it had it."""
    with chatting(line.url(postgres_url)) as chat:
        for number in range(1, 7):
            chat.turn(number)
        chat.compactor.start()
        line.message, line.arrives, line.times = message, arrives, 1
        chat.turn(7)
        chat.executor.run_all()
        assert line.times == 0
        assert chat.shown() == [(f"question {number}", [f"answer {number}"]) for number in range(1, 8)]
        kinds = [entry.kind for entry in chat.store.read("s")]
        assert kinds.count("compaction prepared") == kinds.count("compaction published") == 1
        assert len(chat.summarizer.requests) == 1
        assert shown(Memory("s", store=chat.store)) == chat.shown()
