"""What a store takes and how fast it answers, by the number of its sessions.

    python -m benchmarks.capacity                              # SQLite: 1,000 to 1,000,000 sessions of 3 rounds
    python -m benchmarks.capacity --postgres                   # a PostgreSQL server of its own
    python -m benchmarks.capacity --sessions 1000 10000 --times 20

A session is written through a ``Memory``; the others are copies that the database makes of it, with names and tenants
of their own. Each time is the median of *--times* calls on sessions chosen at random, alternately in this store and in
one of 1,000 sessions, on the same server or disk; the ratio is between these two. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Engine, create_engine, text

from benchmarks.opening import peak
from compactor import CompactorConfig, ContextCompactor
from compactor.workers import sweep
from memory import Memory, Store, open_store

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import postgres

ROLE, BASE, TENANTS, PAGE, DUE = "assistant", 1_000, 100, 100, 1_000
TEMPLATE = "template"
ROUNDS = 3
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


def name_of(number: int) -> str:
    return f"session-{number:08}"


def write_template(store: Store) -> None:
    """Write a session of ``ROUNDS`` rounds, of about a hundred words each, with a compaction."""
    memory, words = Memory(TEMPLATE, store=store), " ".join(f"word{place}" for place in range(50))
    for number in range(ROUNDS):
        memory.append({"role": "user", "content": f"Where is parcel {number}? {words}"})
        memory.append({"role": "assistant", "content": f"Parcel {number} is in hall {number % 9}. {words}"})
    config = CompactorConfig(threshold=2, retain_recent=1)
    with ContextCompactor.for_role(memory, ROLE, config) as compactor:
        if not compactor.compact_now(timeout=60):
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


def build(url: str, sessions: int) -> Filled:
    store = open_store(url)
    write_template(store)
    engine = create_engine(url.partition("?")[0])
    size = fill(engine, sessions)
    engine.dispose()
    store.purge(TEMPLATE)
    return Filled(store, sessions, size)


Act = Callable[[Filled, random.Random], Callable[[], object]]


def _open(filled: Filled, rng: random.Random) -> Callable[[], object]:
    name = name_of(rng.randrange(filled.sessions))
    return lambda: Memory(name, store=filled.store)


def _append(filled: Filled, rng: random.Random) -> Callable[[], object]:
    memory = Memory(name_of(rng.randrange(filled.sessions)), store=filled.store)
    return lambda: memory.append({"role": "user", "content": "And now?"})


def _append_again(filled: Filled, rng: random.Random) -> Callable[[], object]:
    append = _append(filled, rng)
    append()
    return append


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
    "finding 1,000 that are due": lambda filled, _: lambda: filled.store.list_due(datetime.now(UTC), DUE),
}


class _Nobody:
    """A dispatcher that keeps nothing."""

    def due(self, session: str, role: str, not_before: datetime | None = None) -> None:
        pass


def measure(act: Act, filled: Filled, base: Filled, times: int, rng: random.Random) -> tuple[float, float]:
    """Return the median milliseconds of *act* in *filled*, and in *base*."""
    took: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(times):
        for place, where in enumerate((filled, base)):
            call = act(where, rng)
            began = time.perf_counter()
            call()
            took[place].append((time.perf_counter() - began) * 1e3)
    return statistics.median(took[0]), statistics.median(took[1])


def report(filled: Filled, base: Filled, times: int) -> None:
    rng = random.Random(filled.sessions)
    gc.collect()
    before = peak(anew=True)
    print(f"| {filled.sessions:,} sessions | bytes a session | {filled.bytes / filled.sessions:,.0f} | |")
    for what, act in ACTS.items():
        took, beside = measure(act, filled, base, times, rng)
        print(f"| {filled.sessions:,} sessions | {what} | {took:.2f} ms | {took / beside:.2f} |")
    began = time.perf_counter()
    swept = sweep(filled.store, _Nobody(), [ROLE], limit=DUE)
    seconds = time.perf_counter() - began
    print(f"| {filled.sessions:,} sessions | sweeping {swept:,} that are due | {seconds * 1e3:.0f} ms | |")
    print(f"| {filled.sessions:,} sessions | memory of this process grew by | {peak() - before:.1f} MB | |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL server of its own, not a SQLite file")
    chosen = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = None
        if chosen.postgres:
            if (binaries := postgres.binaries()) is None:
                raise SystemExit("PostgreSQL is not installed")
            server = postgres.Postgres(binaries, postgres.DURABLE)
            stack.callback(server.remove)
            server.start()

        def place(name: str) -> str:
            return stack.enter_context(server.database()) if server else f"sqlite:///{(folder / name).as_posix()}"

        print(f"| {'PostgreSQL' if server else 'SQLite'} | what | took | beside 1,000 sessions |")
        print("|---|---|---|---|", flush=True)
        base = build(place("base.db"), BASE)
        for sessions in chosen.sessions:
            filled = build(place(f"{sessions}.db"), sessions)
            report(filled, base, chosen.times)
            filled.store.close()
        base.store.close()


if __name__ == "__main__":
    main()
