"""What a store takes and how fast it answers, by the number of its sessions.

    python -m benchmarks.capacity                              # SQLite: 1,000 to 1,000,000 sessions of 3 rounds
    python -m benchmarks.capacity --postgres                   # a PostgreSQL server of its own
    python -m benchmarks.capacity --postgres --plain           # beside stores of the same size without partitions
    python -m benchmarks.capacity --sessions 1000 10000 --times 20

A session is written through a ``Memory``; the others are copies that the database makes of it, with names and tenants
of their own. Each time is the median of *--times* calls on sessions chosen at random, alternately in this store and in
one of 1,000 sessions, on the same server or disk; the ratio is between these two. Processor times (Linux alone) are
means of the same calls, of this process and of the server's that serve connections. Bytes are differences between
stores whose sessions have more rounds, or a compaction more. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path

from sqlalchemy import Engine, create_engine, text

from benchmarks.opening import peak
from compactor import CompactorConfig, ContextCompactor, Settings
from compactor.workers import run_due, sweep
from memory import Memory, Store, open_store
from memory.stores.postgres import Postgres
from memory.stores.schema import MIGRATIONS
from memory.stores.sql import SqlStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import postgres

ROLE, BASE, TENANTS, PAGE, DUE = "assistant", 1_000, 100, 100, 1_000
TEMPLATE = "template"
ROUNDS = 3
#: Sessions of a store that shows what a round takes, and how many more rounds.
FEW, MORE = 4_000, 6
CONFIG = CompactorConfig(threshold=2, retain_recent=1)
#: As PostgreSQL has it by default; the tests' is smaller.
SERVER = postgres.DURABLE | {"shared_buffers": "128MB"}
#: Numbered names, in SQLite's dialect and in PostgreSQL's. The key of a short name is the name itself.
_NAME = "printf('session-%08d', n)"
_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
_POSTGRES = ("'session-' || lpad(n::text, 8, '0')", "WITH numbers(n) AS (SELECT generate_series(0, {last}))")
_ENTRIES = "number, kind, round, round_key, version, created_at, body"


@dataclass(frozen=True, slots=True)
class Filled:
    """A store with many sessions."""

    store: Store
    sessions: int
    bytes: int
    #: Up to 10,000 of the sessions in no order, none twice before each was there: only one append of a session's minute
    #: is its first.
    shuffled: Iterator[int]


def shuffle(sessions: int) -> Iterator[int]:
    return cycle(random.Random(sessions).sample(range(sessions), min(sessions, 10_000)))


def name_of(number: int) -> str:
    return f"session-{number:08}"


def add_round(memory: Memory, number: int) -> None:
    words = " ".join(f"word{place}" for place in range(50))
    memory.append({"role": "user", "content": f"Where is parcel {number}? {words}"})
    memory.append({"role": "assistant", "content": f"Parcel {number} is in hall {number % 9}. {words}"})


def write_template(store: Store, rounds: int = ROUNDS, *, compact: bool = True) -> None:
    """Write a session of *rounds*, of about a hundred words each, with a compaction."""
    memory = Memory(TEMPLATE, store=store)
    for number in range(rounds):
        add_round(memory, number)
    with ContextCompactor.for_role(memory, ROLE, CONFIG) as compactor:
        if compact and not compactor.compact_now(timeout=60):
            raise SystemExit("the template was not compacted")


def fill(engine: Engine, sessions: int) -> int:
    """Copy the template until there are *sessions*, and return the bytes that the database then has more."""
    is_file = engine.dialect.name == "sqlite"
    name, numbers = (_NAME, _NUMBERS) if is_file else _POSTGRES
    size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    size = size if is_file else "SELECT pg_database_size(current_database())"
    now = datetime.now(UTC)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        before = int(connection.execute(text(size)).scalar_one())
        minute = "strftime('%Y-%m-%dT%H:%M', :now, '-' || (n % 500000) || ' minutes')"
        if not is_file:
            minute = "to_char(CAST(:now AS timestamp) - make_interval(mins => n % 500000), 'YYYY-MM-DD\"T\"HH24:MI')"
        connection.execute(
            text(
                f"""INSERT INTO compactor_sessions (key, name, tenant, last_activity, due_at)
                {numbers.format(last=sessions - 1)}
                SELECT {name}, {name}, 'tenant-' || (n % {TENANTS}), {minute},
                    CASE WHEN n % :every = 0 THEN '2020-01-01T00:00' END FROM numbers"""  # noqa: S608  (our own)
            ),
            {"now": now.strftime("%Y-%m-%d %H:%M:%S"), "every": max(1, sessions // DUE)},
        )
        connection.execute(
            text(
                f"""INSERT INTO compactor_entries (session, id, {_ENTRIES})
                SELECT s.id, substr(e.id, 1, 20) || s.id, {", ".join(f"e.{one}" for one in _ENTRIES.split(", "))}
                FROM compactor_sessions s, compactor_entries e
                WHERE s.key <> :key AND e.session = (SELECT id FROM compactor_sessions WHERE key = :key)
                ORDER BY s.id, e.number"""  # noqa: S608
            ),
            {"key": TEMPLATE},
        )
        connection.execute(text("PRAGMA optimize" if is_file else "VACUUM ANALYZE"))
        return int(connection.execute(text(size)).scalar_one()) - before


def build(url: str, sessions: int, rounds: int = ROUNDS, *, compact: bool = True, plain: bool = False) -> Filled:
    store = SqlStore(Postgres(url)) if plain else open_store(url)
    if isinstance(store, SqlStore) and plain:
        store.open(MIGRATIONS[:4])  # the newest without partitions
    write_template(store, rounds, compact=compact)
    engine = create_engine(url.partition("?")[0])
    size = fill(engine, sessions)
    engine.dispose()
    store.purge(TEMPLATE)
    if plain:
        store.close()
        store = open_store(url)
    return Filled(store, sessions, size, shuffle(sessions))


Act = Callable[[Filled, random.Random], Callable[[], object]]


def _open(filled: Filled, rng: random.Random) -> Callable[[], object]:
    name = name_of(rng.randrange(filled.sessions))
    return lambda: Memory(name, store=filled.store)


def _append(filled: Filled, _rng: random.Random) -> Callable[[], object]:
    memory = Memory(name_of(next(filled.shuffled)), store=filled.store)
    return lambda: memory.append({"role": "user", "content": "And now?"})


def _append_again(filled: Filled, rng: random.Random) -> Callable[[], object]:
    append = _append(filled, rng)
    append()
    return append


def _round(filled: Filled, rng: random.Random) -> Callable[[], object]:
    memory = Memory(name_of(rng.randrange(filled.sessions)), store=filled.store)
    memory.append({"role": "user", "content": "And now?"})
    return lambda: add_round(memory, 7)


def _begin(filled: Filled, rng: random.Random) -> Callable[[], object]:
    name = f"new-{rng.getrandbits(64)}"
    return lambda: Memory(name, store=filled.store).append({"role": "user", "content": "Where is parcel 0?"})


def _compact(filled: Filled, rng: random.Random) -> Callable[[], object]:
    name = name_of(rng.randrange(filled.sessions))
    memory = Memory(name, store=filled.store)
    for number in range(3):
        add_round(memory, number)
    return lambda: run_due(filled.store, name, ROLE, settings=Settings(CONFIG))


def _page(filled: Filled, rng: random.Random, tenant: str | None, *, by_activity: bool) -> Callable[[], object]:
    order, after = "activity" if by_activity else "name", name_of(rng.randrange(filled.sessions))
    if by_activity:
        minute = datetime.now(UTC) - timedelta(minutes=rng.randrange(max(1, min(filled.sessions, 500_000) - 200)))
        after = f"{minute:%Y-%m-%dT%H:%M} {after}"
    return lambda: filled.store.list_sessions(tenant, after=after, limit=PAGE, order=order)  # type: ignore[arg-type]


ACTS: dict[str, Act] = {
    "a page of 100 by name": lambda filled, rng: _page(filled, rng, None, by_activity=False),
    "a page of 100 by activity": lambda filled, rng: _page(filled, rng, None, by_activity=True),
    "a tenant's page by activity": lambda filled, rng: _page(filled, rng, "tenant-7", by_activity=True),
    "opening a session": _open,
    "the first append of a minute": _append,
    "each further append": _append_again,
    "a round of two messages": _round,
    "the first message of a new session": _begin,
    "a compaction, without a model": _compact,
    "finding 1,000 that are due": lambda filled, _: lambda: filled.store.list_due(datetime.now(UTC), DUE),
}


class _Nobody:
    """A dispatcher that keeps nothing."""

    def due(self, session: str, role: str, not_before: datetime | None = None) -> None:
        pass


class Server:
    """The processes of a PostgreSQL server that serve connections."""

    def __init__(self, server: postgres.Postgres | None) -> None:
        self._first = server.pid if server else 0
        self._taken: dict[Path, int] = {}  # nanoseconds, also of those that have ended
        self._others: set[Path] = set()

    def _processes(self) -> list[Path]:
        if not (self._first and Path("/proc/self/schedstat").exists()):
            return []
        children = Path(f"/proc/{self._first}/task/{self._first}/children").read_text(encoding="ascii").split()
        found = [Path(f"/proc/{process}") for process in children]
        for process in set(found) - self._taken.keys() - self._others:
            with suppress(OSError):
                if b"127.0.0.1(" in (process / "cmdline").read_bytes():
                    self._taken[process] = 0
                else:
                    self._others.add(process)
        return [process for process in found if process in self._taken]

    def processor(self) -> float:
        """Return the milliseconds of the processor that they have taken so far."""
        for process in self._processes():
            with suppress(OSError):
                self._taken[process] = int((process / "schedstat").read_text(encoding="ascii").split()[0])
        return sum(self._taken.values()) / 1e6

    def memory(self) -> float:
        """Return the most megabytes that one of them has for itself."""
        most = 0
        for process in self._processes():
            with suppress(OSError):
                status = (process / "status").read_text(encoding="ascii").splitlines()
                most = max(most, *(int(line.split()[1]) for line in status if line.startswith("RssAnon")))
        return most / 1e3


@dataclass(slots=True)
class Took:
    """Milliseconds of each call, and the sums of the processor here and of the server."""

    wall: list[float] = field(default_factory=list)
    here: float = 0.0
    server: float = 0.0


def measure(act: Act, filled: Filled, base: Filled, times: int, rng: random.Random, server: Server) -> str:
    """Return a row's figures: *act* in *filled*, and relative to *base*."""
    took, beside = Took(), Took()
    for _ in range(times):
        for where, one in ((filled, took), (base, beside)):
            call = act(where, rng)
            before = server.processor()
            used, began = time.process_time(), time.perf_counter()
            call()
            one.wall.append((time.perf_counter() - began) * 1e3)
            one.here += (time.process_time() - used) * 1e3
            one.server += server.processor() - before
    wall, ratio = statistics.median(took.wall), statistics.median(took.wall) / statistics.median(beside.wall)
    of_server = f"{took.server / times:.2f} ms ({took.server / beside.server:.2f})" if beside.server else ""
    return f"{wall:.2f} ms | {ratio:.2f} | {took.here / times:.2f} ms | {of_server}"


def report(filled: Filled, base: Filled, times: int, server: Server) -> None:
    rng, head = random.Random(filled.sessions), f"| {filled.sessions:,} sessions |"
    gc.collect()
    before = peak(anew=True)
    print(f"{head} bytes a session | {filled.bytes / filled.sessions:,.0f} | | | |")
    for what, act in ACTS.items():
        print(f"{head} {what} | {measure(act, filled, base, times, rng, server)} |", flush=True)
    used, of_server, began = time.process_time(), server.processor(), time.perf_counter()
    swept = sweep(filled.store, _Nobody(), [ROLE], limit=DUE)
    seconds, used, of_server = time.perf_counter() - began, time.process_time() - used, server.processor() - of_server
    figures = f"{seconds * 1e3:.0f} ms | | {used * 1e3:.0f} ms | {of_server:.0f} ms"
    print(f"{head} sweeping {swept:,} that are due | {figures} |")
    print(f"{head} memory of this process grew by | {peak() - before:.1f} MB | | | |")
    print(f"{head} memory of a process of the server | {server.memory():.1f} MB | | | |", flush=True)


def report_bytes(place: Callable[[str], str]) -> None:
    """Print what a round, a session and a compaction take."""
    sizes = {}
    for rounds, compact in ((ROUNDS, True), (ROUNDS + MORE, True), (ROUNDS, False)):
        filled = build(place(f"{rounds}-{compact}.db"), FEW, rounds, compact=compact)
        filled.store.close()
        sizes[rounds, compact] = filled.bytes / FEW
    a_round = (sizes[ROUNDS + MORE, True] - sizes[ROUNDS, True]) / MORE
    for what, size in (
        ("a round", a_round),
        ("a compaction", sizes[ROUNDS, True] - sizes[ROUNDS, False]),
        ("a session without rounds", sizes[ROUNDS, False] - ROUNDS * a_round),
    ):
        print(f"| {FEW:,} sessions | bytes of {what} | {size:,.0f} | | | |", flush=True)


def report_migration(plain: Filled) -> None:
    """Partition a store while a thread appends to it; print how long that took, and how long an append."""
    assert isinstance(plain.store, SqlStore)
    waits: list[float] = []
    done = threading.Event()

    def append() -> None:
        memory = Memory(name_of(7), store=plain.store)
        while not done.is_set():
            began = time.perf_counter()
            memory.append({"role": "user", "content": "And now?"})
            waits.append((time.perf_counter() - began) * 1e3)

    thread = threading.Thread(target=append)
    thread.start()
    began = time.perf_counter()
    batches = sum(1 for _ in plain.store.partition())
    seconds = time.perf_counter() - began
    done.set()
    thread.join()
    head, figures = f"| {plain.sessions:,} sessions |", f"{statistics.median(waits):.2f} ms | | |"
    print(f"{head} partitioning them, {batches:,} batches | {seconds:.0f} s | | | |")
    print(f"{head} an append meanwhile | {figures} |")
    print(f"{head} the slowest of {len(waits):,} | {max(waits):.0f} ms | | | |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL server of its own, not a SQLite file")
    parser.add_argument("--plain", action="store_true", help="compare with plain tables, then partition them")
    chosen = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = None
        if chosen.postgres:
            if (binaries := postgres.binaries()) is None:
                raise SystemExit("PostgreSQL is not installed")
            server = postgres.Postgres(binaries, SERVER)
            stack.callback(server.remove)
            server.start()

        def place(name: str) -> str:
            return stack.enter_context(server.database()) if server else f"sqlite:///{(folder / name).as_posix()}"

        beside = "without partitions" if chosen.plain else "beside 1,000 sessions"
        print(f"| {'PostgreSQL' if server else 'SQLite'} | what | took | {beside} | processor here | of the server |")
        print("|---|---|---|---|---|---|", flush=True)
        processes = Server(server)
        if not chosen.plain:
            report_bytes(place)
            base = build(place("base.db"), BASE)
        for sessions in chosen.sessions:
            began = time.perf_counter()
            filled = build(place(f"{sessions}.db"), sessions)
            seconds = time.perf_counter() - began
            print(f"| {sessions:,} sessions | filled by copying in | {seconds:.0f} s | | | |", flush=True)
            if chosen.plain:
                base = build(place("plain.db"), sessions, plain=True)
            report(filled, base, chosen.times, processes)
            if chosen.plain:
                report_migration(base)
                base.store.close()
            filled.store.close()
        if not chosen.plain:
            base.store.close()


if __name__ == "__main__":
    main()
