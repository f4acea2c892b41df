"""What a durable append of a post costs, beside a bare insert of the same bytes into the same kind of database.

    python -m benchmarks.durable_append                            # SQLite, in a temporary folder, both settings
    python -m benchmarks.durable_append --postgres                 # and a PostgreSQL server of its own, fsync on
    python -m benchmarks.durable_append --store postgresql+psycopg://user@host/database   # that database alone

Four things in turns, so that whatever else the machine does falls on all of them alike: `Memory.append` of a user's
message, which ends a round and opens one; `Memory.add_post`; the store's `append` alone; and the driver's own insert
and commit into one table with the same primary key, which holds as many rows of the same bodies. Prints a table in
Markdown; ratios are those of medians and of 99th percentiles, CPU is that of the process.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path

from benchmarks.long_session import ROLE, entries_of, keep, text
from benchmarks.sessions import opened, server
from memory import Entry, Memory, Post, Store
from memory.entries import PostAdded

#: In characters. The first are what people write, the second what tools answer.
SIZES = (300, 4_000)
#: Of the store: two that a Memory writes to, and one for what the store does alone.
SESSIONS = BY_MEMORY, BY_USER, ALONE = "durable-append-memory", "durable-append-user", "durable-append-alone"
TABLE = "CREATE TABLE bare (session BIGINT, number BIGINT, body TEXT NOT NULL, PRIMARY KEY (session, number))"

BARE = "bare insert"

#: Inserts a body under a number and commits.
Insert = Callable[[int, str], object]


@dataclass
class Times:
    """The seconds that an act took each time, and those of the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def take(self, act: Callable[[], object]) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        act()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - began)


@contextmanager
def bare_sqlite(path: Path, synchronous: str, log: Sequence[Entry]) -> Iterator[Insert]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"{TABLE} WITHOUT ROWID")
        connection.executemany("INSERT INTO bare VALUES (1, ?, ?)", bodies_of(log))
        connection.commit()

        def insert(number: int, body: str) -> None:
            connection.execute("INSERT INTO bare VALUES (1, ?, ?)", (number, body))
            connection.commit()

        yield insert


@contextmanager
def bare_postgres(url: str, log: Sequence[Entry]) -> Iterator[Insert]:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", "", 1)) as connection:
        connection.execute("DROP TABLE IF EXISTS bare")
        connection.execute(TABLE)
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO bare VALUES (1, %s, %s)", bodies_of(log))
        connection.commit()

        def insert(number: int, body: str) -> None:
            connection.execute("INSERT INTO bare VALUES (1, %s, %s)", (number, body))
            connection.commit()

        yield insert
        connection.execute("DROP TABLE bare")


def bodies_of(log: Sequence[Entry]) -> Iterator[tuple[int, str]]:
    return ((number, entry.body) for number, entry in enumerate(log, 1))


def measured(
    store: Store, insert: Insert, log: Sequence[Entry], times: int, sizes: Iterable[int]
) -> Iterator[dict[str, Times]]:
    """Give for each size in characters what so many appends of posts of that size took, each beside the others.

    Three sessions of the store hold *log* before, two for a Memory and one for what the store does alone; and the table
    holds its bodies.
    """
    for session in (BY_MEMORY, BY_USER):
        keep(store, session, log)
    end = keep(store, ALONE, log)
    memory, user, other = (Memory(session, store=store) for session in SESSIONS)
    round_, open_ = memory.create_round("How is it going?"), other.create_round("How is it going?")
    place = count(1)
    for size in sizes:
        rng = random.Random(size)
        found = {name: Times() for name in (BARE, "`store.append`", "`add_post`", "`append`, a user's message")}
        for number in islice(place, times):
            post = Post(send_from="tool", send_to=ROLE, message=text(rng, size // 4)[:size], number=number)
            entry = Entry.of(PostAdded(round_id=open_.id, post=post), round=open_.number)
            assert entry.body  # made now, so that it is not in what the store takes
            user.append({"role": "assistant", "content": "And then?"})
            acts: list[Callable[[], object]] = [
                partial(insert, len(log) + number, entry.body),
                partial(store.append, ALONE, [entry], end + number),
                partial(memory.add_post, round_, send_from="tool", send_to=ROLE, message=post.message),
                partial(user.append, {"role": "user", "content": post.message}),
            ]
            in_turn = list(zip(found.values(), acts, strict=True))
            rng.shuffle(in_turn)  # who comes after a long wait for the disk may be faster
            for taken, act in in_turn:
                taken.take(act)
        yield found


def rows(name: str, size: int, found: dict[str, Times]) -> Iterator[str]:
    bare = percentiles(found[BARE].wall)
    for what, taken in found.items():
        median, p99 = percentiles(taken.wall)
        yield (
            f"| {name} | {size:,} | {what} | {median * 1_000:.2f} | {p99 * 1_000:.1f}"
            f" | {median / bare[0]:.2f} | {p99 / bare[1]:.2f} | {statistics.median(taken.cpu) * 1_000:.2f} |"
        )


def percentiles(taken: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    return statistics.median(taken), sorted(taken)[len(taken) * 99 // 100]


def table(given: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Give the table's rows."""
    log = list(entries_of(given.rounds))
    for synchronous in () if given.store else ("full", "normal"):
        with (
            opened(f"sqlite:///{folder / synchronous}.db?synchronous={synchronous}") as store,
            bare_sqlite(folder / f"{synchronous}-bare.db", synchronous, log) as insert,
        ):
            for size, found in zip(given.sizes, measured(store, insert, log, given.times, given.sizes), strict=True):
                yield from rows(f"SQLite, {synchronous}", size, found)
    with ExitStack() as stack:
        url = given.store or (stack.enter_context(server()).url() if given.postgres else None)
        if url is not None:
            store = stack.enter_context(opened(url))
            insert = stack.enter_context(bare_postgres(url, log))
            for size, found in zip(given.sizes, measured(store, insert, log, given.times, given.sizes), strict=True):
                yield from rows("PostgreSQL", size, found)
            for session in SESSIONS:
                store.purge(session)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", action="store_true", help="also on a PostgreSQL server that is started for it")
    parser.add_argument("--store", metavar="URL", help="on this PostgreSQL database alone")
    parser.add_argument("--rounds", type=int, default=10_000, help="that are in the session before")
    parser.add_argument("--times", type=int, default=1_000, help="how often each is done")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of the posts, in characters")
    parser.add_argument("--folder", type=Path, help="where SQLite's files are; a temporary folder if not given")
    given = parser.parse_args(arguments)
    print(f"A post added to a session of {given.rounds:,} rounds, {given.times:,} times; milliseconds.\n")
    print("| | characters | | median | p99 | medians' ratio | p99s' ratio | CPU, median |")
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for row in table(given, Path(folder)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
