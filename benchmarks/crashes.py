"""Kills processes that write to a session and compact it, again and again, and looks for what was lost or torn.

    python -m benchmarks.crashes                                    # SQLite, in a temporary folder
    python -m benchmarks.crashes --store sqlite:///other.db --kills 50 --seed 7
    python -m benchmarks.crashes --postgres                         # a server of its own, which is killed as well

Each process resumes the session that the one before was killed in, tells its parent of all that the store has taken,
and is killed after a random number of such messages, or a random time. Prints a table in Markdown; the exit code is 1
where something was found. Beside what Memory promises it counts calls to the summarizer: at most one a kill is lost.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.sessions import (
    CONFIG,
    ROLE,
    WORDS,
    Found,
    PaidSummarizer,
    calls_in,
    found_in,
    opened,
    processes,
    server,
    write_round,
)
from compactor import ContextCompactor, Published, SummaryRequest
from memory import Event, Memory, StoreError, open_store
from memory.log import session_log as log

#: So many kills in one session, and then a new one: what is checked after each kill is the whole session.
PER_SESSION = 20
#: The server is killed every so many times, where it is ours.
SERVER_EVERY = 20
#: When a process is killed: at most so many times after it told of what, and at most so many seconds after that.
MOMENTS = (("", 120, 0.0), ("began", 1, 0.3), ("asked", 3, 0.015), ("published", 3, 0.02))
#: In seconds; only something that is broken ever takes so long.
PATIENCE = 60.0
#: The entries between two checkpoints: so that some are killed while they keep one.
CHECKPOINT_EVERY = 20


@dataclass(frozen=True)
class Task:
    """What a child is to do."""

    url: str
    session: str
    name: str
    #: Where calls to the summarizer are counted.
    paid: Path
    #: Write so many rounds, have the rest compacted, and end; 0: go on until killed.
    rounds: int = 0


def write(task: Task, pipe: Connection) -> None:
    """Resume the session and write to it: in a process of its own."""
    log.CHECKPOINT_EVERY = CHECKPOINT_EVERY
    turn = threading.Lock()  # the compactor tells as well

    def emit(what: str, id_: str = "", tag: str = "") -> None:
        with turn:
            pipe.send_bytes(f"{what}\n{id_}\n{tag}".encode())

    def heard(event: Event) -> None:
        if isinstance(event, Published):
            emit("published", str(event.generation), "reused" if event.reused else "")

    with suppress(BrokenPipeError):  # the parent has come to an end
        emit("began")
        try:
            _write(task, emit, heard)
        except StoreError as error:
            emit("fault", type(error).__name__)


def _write(task: Task, emit: Any, heard: Any) -> None:
    store = open_store(task.url)
    memory = Memory(task.session, store=store, take_over=True)
    paid = PaidSummarizer(task.paid, task.name)

    def summarizer(request: SummaryRequest) -> str:
        emit("asked")
        return paid(request)

    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, on_event=heard) as compactor:
        for number in range(1, task.rounds + 1) if task.rounds else count(1):
            write_round(memory, f"{task.name}.{number}", emit)
            if number % 4 == 0:
                memory.search(WORDS[0])  # which hands over to the text index what is not there yet
        compactor.wait_idle(PATIENCE)
        compactor.compact_now(PATIENCE)
    store.close()
    emit("ended")


@dataclass
class Told:
    """What the processes told of one session."""

    #: Tags by the ids of rounds and posts.
    rounds: dict[str, str] = field(default_factory=dict)
    posts: dict[str, str] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    generation: int = 0

    def hear(self, message: bytes) -> str:
        what, id_, tag = message.decode().split("\n")
        match what:
            case "round":
                self.rounds[id_] = tag
            case "post":
                self.posts[id_] = tag
            case "finished":
                self.finished.add(id_)
            case "published":
                self.generation = max(self.generation, int(id_))
        return f"{what} {tag}" if what == "published" and tag else what


class Crashes:
    """Sessions whose processes are killed."""

    def __init__(
        self, url: str, folder: Path, seed: int, server: Any = None, *, server_every: int = SERVER_EVERY
    ) -> None:
        self._url = url
        self._folder = folder
        self._server = server
        self._server_every = server_every
        self._rng = random.Random(seed)
        self._processes = processes()
        self._run = f"{time.time_ns():x}"  # the database may have sessions of earlier runs
        self.sums: Counter[str] = Counter()
        self.faults: list[str] = []

    def kill(self, kills: int) -> None:
        """Kill so many processes, those of a session one after another."""
        for first in range(0, kills, PER_SESSION):
            self._kill_in(f"crashes-{self._run}-{first}", range(first + 1, min(first + PER_SESSION, kills) + 1))

    def _kill_in(self, session: str, kills: Sequence[int]) -> None:
        told, found, paid = Told(), Found(), self._folder / session
        for kill in kills:
            task = Task(self._url, session, f"c{kill}", paid)
            with_server = self._server is not None and kill % self._server_every == 0
            self._killed(task, told, with_server=with_server)
            if self._rng.random() < 0.7:  # else the next process is the first to see what this one left
                found = self._check(session, told, paid, found)
        last = Task(self._url, session, f"c{kills[-1]}e", paid, rounds=2)
        self._ended(last, told)
        found = self._check(session, told, paid, found)
        self._expect(
            found.covered == len(found.rounds) - CONFIG.retain_recent, session, "the last process did not compact on"
        )
        self._count(found, told, paid)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _started(self, task: Task) -> tuple[Any, Connection]:
        reader, writer = self._processes.Pipe(duplex=False)
        process = self._processes.Process(target=write, args=(task, writer), daemon=True)  # type: ignore[attr-defined]
        process.start()
        writer.close()
        return process, reader

    def _killed(self, task: Task, told: Told, *, with_server: bool) -> None:
        """Run *task* until it is killed."""
        process, reader = self._started(task)
        what, most, most_seconds = self._rng.choice(MOMENTS)
        left, seconds = self._rng.randint(1, most), self._rng.random() * most_seconds
        heard: list[str] = []
        try:
            while left:
                if not reader.poll(PATIENCE):
                    self._expect(False, task.name, "told of nothing for a minute")
                    break
                heard.append(told.hear(reader.recv_bytes()))
                left -= heard[-1].startswith(what)
            until = time.monotonic() + seconds
            while reader.poll(max(0.0, until - time.monotonic())):
                heard.append(told.hear(reader.recv_bytes()))
        except (EOFError, OSError):  # the latter on Windows
            self._expect(False, task.name, "came to an end by itself")
        if with_server:
            self._server.crash()
            self.sums["kills of the server"] += 1
        process.kill()
        process.join()
        heard += self._rest(reader, told)
        if with_server:
            self._server.start()
        else:
            self._expect("fault" not in heard, task.name, "the store refused something")
        self.sums["kills"] += 1
        self.sums[f"after: {next(what for what in reversed(heard) if what != 'fault')}"] += 1
        self._count_heard(heard)

    def _ended(self, task: Task, told: Told) -> None:
        """Run *task* to its end."""
        process, reader = self._started(task)
        process.join(PATIENCE)
        process.kill()
        heard = self._rest(reader, told)
        self._expect(heard[-1:] == ["ended"], task.name, "did not come to its end")
        self._count_heard(heard)

    @staticmethod
    def _rest(reader: Connection, told: Told) -> list[str]:
        heard = []
        with suppress(EOFError, OSError):
            while True:
                heard.append(told.hear(reader.recv_bytes()))
        reader.close()
        return heard

    # -- checks -------------------------------------------------------------------------------------------------------

    def _expect(self, is_due: bool, where: str, fault: str) -> None:
        if not is_due:
            self.faults.append(f"{where}: {fault}")

    def _check(self, session: str, told: Told, paid: Path, before: Found) -> Found:
        """Return what is in the session now, and take note of all that should not be so."""
        self.sums["checks"] += 1
        with opened(self._url) as store:
            found = found_in(store, session, self._rng)
        self.faults += [f"{session}: {fault}" for fault in found.faults]
        self._expect(found.generation >= told.generation, session, "a publication that was told of is lost")
        self._expect(found.generation >= before.generation, session, "a generation went back")
        closed = list(before.rounds[:-1])  # the last may have been open
        self._expect(list(found.rounds[: len(closed)]) == closed, session, "closed rounds changed")
        rounds = {round_.id: round_ for round_ in found.rounds}
        tags = {round_.id: round_.user_query.partition(" ")[0] for round_ in found.rounds}
        self._expect(told.rounds.items() <= tags.items(), session, "an acknowledged round is lost")
        self._expect(told.posts.items() <= found.posts.items(), session, "an acknowledged post is lost")
        finished = {id_ for id_, round_ in rounds.items() if round_.state == "finished"}
        self._expect(told.finished <= finished, session, "an acknowledged end of a round is lost")
        self._expect(len(rounds) - len(finished) <= 1, session, "more than one round is open")
        unknown = [tags[id_] for id_ in tags.keys() - told.rounds.keys()]
        unknown += [found.posts[id_] for id_ in found.posts.keys() - told.posts.keys()]
        by_writer = Counter(tag.partition(".")[0] for tag in unknown)
        self._expect(all(n == 1 for n in by_writer.values()), session, "more was written than was called for")
        self._check_calls(session, paid, found)
        if self._url.startswith("sqlite"):
            with closing(sqlite3.connect(self._url[len("sqlite:///") :].partition("?")[0])) as database:
                said = database.execute("PRAGMA integrity_check").fetchall()
                self._expect(said == [("ok",)], session, f"SQLite finds {said}")
        return found

    def _check_calls(self, session: str, paid: Path, found: Found) -> None:
        """Every call is in the log, but for one of each process at most; none was made to which there was an answer."""
        lost: Counter[str] = Counter()
        answered: set[str] = set()
        for call in calls_in(paid):
            self._expect(call.digest not in answered, session, "an answer that was in the log was paid for again")
            if any(call.word in text for text in found.answers.get(call.digest, ())):
                answered.add(call.digest)
            else:
                lost[call.writer] += 1
        self._expect(all(n == 1 for n in lost.values()), session, "more than one paid call of a process is lost")
        self._expect(not any(writer.endswith("e") for writer in lost), session, "a call is lost without a kill")

    # -- figures ------------------------------------------------------------------------------------------------------

    def _count_heard(self, heard: Sequence[str]) -> None:
        self.sums["processes that published"] += any(what.startswith("published") for what in heard)
        self.sums["answers of killed processes published"] += heard.count("published reused")

    def _count(self, found: Found, told: Told, paid: Path) -> None:
        calls = calls_in(paid)
        answers = sum(map(len, found.answers.values()))
        self.sums += Counter(
            {
                "acknowledged posts": len(told.posts),
                "acknowledged rounds": len(told.rounds),
                "stored, and killed before it was acknowledged": len(found.posts)
                + len(found.rounds)
                - len(told.posts)
                - len(told.rounds),
                "entries": found.entries,
                "compactions published": found.publications,
                "calls to the summarizer": len(calls),
                "calls lost": len(calls) - answers,
            }
        )


ROWS = (
    "kills",
    "kills of the server",
    "checks",
    "entries",
    "acknowledged rounds",
    "acknowledged posts",
    "stored, and killed before it was acknowledged",
    "processes that published",
    "compactions published",
    "calls to the summarizer",
    "calls lost",
    "answers of killed processes published",
)


def report(crashes: Crashes, seconds: float) -> None:
    print("| | |\n|---|--:|")
    for name in (*ROWS, *sorted(name for name in crashes.sums if name.startswith("after: "))):
        print(f"| {name} | {crashes.sums[name]:,} |")
    print(f"| seconds | {seconds:.0f} |")
    print(f"| violations | {len(crashes.faults)} |")
    for fault in crashes.faults:
        print(f"\n{fault}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="", help="the URL of a database; default: a SQLite file, gone afterwards")
    parser.add_argument("--postgres", action="store_true", help="start a server, and kill that as well")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.postgres:
            with server() as running:
                crashes = Crashes(running.url(), folder, given.seed, running)
                crashes.kill(given.kills)
        else:
            crashes = Crashes(given.store or f"sqlite:///{(folder / 'log.db').as_posix()}", folder, given.seed)
            crashes.kill(given.kills)
    report(crashes, time.monotonic() - began)
    return 1 if crashes.faults else 0


if __name__ == "__main__":
    sys.exit(main())
