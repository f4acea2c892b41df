"""Whole turns of a chat while something is wrong where its session is kept, and after it was put right."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import refusal, run
from executors import ManualExecutor
from histories import texts_of
from lines import Line
from postgres import Postgres
from sqlalchemy import text

from compactor import CompactorConfig, ContextCompactor, Failed, Prompt, Published, compose
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
    open_store,
)

ROLE = "Planner"
CONFIG = CompactorConfig(threshold=4, retain_recent=2, backoff_initial=1.0)
LONG = "and so on, " * 2_000
#: Fills an answer, so that a summary is shorter.
ROOM = "of several words"


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

    def answer(self, round_: Round, number: int, more: str = ROOM) -> None:
        self.memory.add_post(round_, send_from=ROLE, send_to="User", message=f"answer {number} {more}")
        self.memory.finish_round(round_)

    def turn(self, number: int) -> None:
        self.answer(self.ask(number), number)
        assert self.prompt().messages[-1]["content"].startswith(f"answer {number}")

    def prompt(self) -> Prompt:
        return compose(self.memory, ROLE, budget=20_000)

    def shown(self) -> list[tuple[str, list[str]]]:
        return texts_of(self.memory)


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


@pytest.mark.slow
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
            assert "r3.p1" in found if fault.readable else found.startswith("Error: ")
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
        asked_for = [(f"question {number}", [f"answer {number} {ROOM}"]) for number in range(1, 10)]
        asked_for[6] = ("question 7", [f"answer 7 {LONG}"])
        assert chat.shown() == asked_for
        resumed = Memory("s", store=chat.store)
        assert texts_of(resumed) == asked_for
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
        assert chat.shown() == [(f"question {number}", [f"answer {number} {ROOM}"]) for number in range(1, 8)]
        kinds = [entry.kind for entry in chat.store.read("s")]
        assert kinds.count("compaction prepared") == kinds.count("compaction published") == 1
        assert len(chat.summarizer.requests) == 1
        assert texts_of(Memory("s", store=chat.store)) == chat.shown()


# -- what cannot be read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fault"),
    [("body = substr(body, 1, 40)", StoreDamaged), ("version = 99", NewerVersion)],
    ids=["cut", "newer"],
)
def test_an_old_round_that_cannot_be_read_does_not_stop_a_chat(
    tmp_path: Path, change: str, fault: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is summarised no prompt and no compaction need it; who asks for it is told, and gets all else."""
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 20)
    with chatting(url_in(tmp_path)) as chat:
        for number in range(1, 10):
            chat.turn(number)
        chat.compactor.start()
        chat.executor.run_all()
        assert chat.compactor.get_compaction() is not None
        on(chat, f"UPDATE compactor_entries SET {change} WHERE number = 8")  # noqa: S608  (the answer of the third)
    with chatting(url_in(tmp_path)) as chat:
        chat.compactor.start()
        for number in range(10, 16):
            chat.turn(number)
        chat.executor.run_all()
        compaction = chat.compactor.get_compaction()
        assert compaction is not None
        assert compaction.end_index == 13
        assert "question 2" in chat.recall.call("context_reload", {"ref": "r2"})
        said = chat.recall.call("context_reload", {"ref": "r3"})
        assert said.startswith(
            f"Error: some of that is stored in a way that cannot be read ({fault.__name__}); ask for"
        )
        assert "r4.p1" in chat.recall.call("search_history", {"query": "answer", "limit": 20})
        with pytest.raises(fault, match=r"entry 8 \(post added\)"):
            chat.memory.reload("r3")


def test_a_search_passes_over_a_damaged_round_and_waits_for_one_of_a_newer_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In what is damaged nothing can be found; but what a newer version can read must not be missing in the index."""
    with chatting(url_in(tmp_path)) as chat:
        for number in range(1, 5):
            chat.turn(number)
        monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 1)
        Memory("s", store=chat.store)
        on(chat, "UPDATE compactor_entries SET version = 99 WHERE number = 5")
        memory = Memory("s", store=chat.store)
        with pytest.raises(NewerVersion, match="upgrade"):
            memory.search("answer")
        assert chat.store.get_last_indexed_round("s") == 0
        on(chat, "UPDATE compactor_entries SET version = 1, body = '{' WHERE number = 5")
        assert {hit.round for hit in memory.search("answer")} == {1, 3, 4}
        assert memory.index_texts()


def test_a_tail_that_cannot_be_read_is_said_by_whoever_composes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No prompt leaves out what it was to show without a word; the chat can be gone on with from before."""
    with chatting(url_in(tmp_path)) as chat:
        for number in range(1, 5):
            chat.turn(number)
        monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 1)
        Memory("s", store=chat.store)
        on(chat, "UPDATE compactor_entries SET body = '{' WHERE number = 8")
    with chatting(url_in(tmp_path)) as chat:
        with pytest.raises(StoreDamaged, match=r"entry 8 \(post added\).*restore"):
            chat.prompt()
        chat.answer(chat.ask(5), 5)
        before = chat.memory.fork(2, "before")
        assert [one.user_query for one in before.conversation.rounds] == ["question 1", "question 2"]


# -- the command line --------------------------------------------------------------------------------------------------

COMMANDS = [
    ("sessions",),
    ("show", "s"),
    ("events", "s"),
    ("export", "s"),
    ("diff", "s"),
    ("revert", "s", "--yes"),
    ("purge", "s", "--yes"),
]


def refused(words: tuple[str, ...], url: str) -> str:
    """Return the one line in which a command says what is wrong."""
    said = refusal(run(*words, "--store", url))
    assert "Traceback" not in said
    assert "swordfish" not in said
    return said


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_command_says_in_a_line_what_is_wrong_with_its_store(words: tuple[str, ...], tmp_path: Path) -> None:
    """And what to do; without a traceback, and with nothing changed."""
    with chatting(url_in(tmp_path)) as chat:
        chat.turn(1)
        on(chat, "UPDATE compactor_schema SET version = 99")
    path = tmp_path / "chat.db"
    newer = path.read_bytes()
    assert "upgrade to open it" in refused(words, url_in(tmp_path))
    assert path.read_bytes() == newer
    for content, said in (
        (newer[:4096] + b"\xff" * 4096 * 20, "restore a backup"),
        (b"Dear diary, " * 99, "name another file"),
    ):
        path.write_bytes(content)
        assert said in refused(words, url_in(tmp_path))
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    "words", [("purge", "s", "--yes"), ("import", "FILE", "--as", "t")], ids=lambda words: words[0]
)
def test_a_command_that_cannot_write_says_so_and_works_later(words: tuple[str, ...], tmp_path: Path) -> None:
    """All of it, or nothing."""
    url = f"{url_in(tmp_path)}&timeout=0.05"
    file = tmp_path / "s.jsonl"
    words = tuple(str(file) if word == "FILE" else word for word in words)
    with chatting(url) as chat:
        chat.turn(1)
        assert run("export", "s", "--to", file, "--store", url).code == 0
        with locked(tmp_path).during(chat):
            assert "try again, or wait for longer" in refused(words, url)
        assert list(chat.store.sessions()) == ["s"]
        assert len(chat.shown()) == 1
    assert run(*words, "--store", url).code == 0


@pytest.mark.parametrize("words", COMMANDS[:2], ids=lambda words: words[0])
def test_a_command_on_a_server_that_is_not_there_says_so(words: tuple[str, ...]) -> None:
    """With the place, and never the password."""
    pytest.importorskip("psycopg")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql+psycopg://ada:swordfish@127.0.0.1:{nobody.getsockname()[1]}/db"
        assert "'db' on 127.0.0.1 does not answer" in refused(words, url)


def test_a_command_says_which_entry_cannot_be_read(tmp_path: Path) -> None:
    """Those that need it; the others work."""
    with chatting(url_in(tmp_path)) as chat:
        chat.turn(1)
        on(chat, "UPDATE compactor_entries SET body = '{' WHERE number = 2")
    assert "entry 2 (post added) of the log cannot be read" in refused(("show", "s"), url_in(tmp_path))
    assert run("sessions", "--store", url_in(tmp_path)).code == 0
    assert run("events", "s", "--store", url_in(tmp_path)).code == 0
    assert run("purge", "s", "--yes", "--store", url_in(tmp_path)).code == 0
