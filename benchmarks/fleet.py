"""Hosts append, workers compact, and workers, broker and database are killed or restarted meanwhile.

    python -m benchmarks.fleet                                # Procrastinate: 3 hosts, 4 workers, 1,000 sessions
    python -m benchmarks.fleet --engine celery                # with a Redis server of its own; --broker rabbitmq
    python -m benchmarks.fleet --every 3                      # all kills within seconds, not spread over the run
    python -m benchmarks.fleet --sessions 100 --kills 0 --no-restarts --workers 1

Starts a PostgreSQL server of its own. Each call to the model is in a file before it is made, and takes --latency
seconds. A worker is killed only while it has a call in flight. Prints what was seen, as JSON: a killed call whose
session had to wait for a restarted broker or database is listed apart. The exit code is 1 where something was lost,
published twice or not compacted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.sessions import Call, PaidSummarizer, calls_in, text_of
from compactor import CompactorConfig, ContextCompactor, DaemonExecutor, Event, Settings
from compactor.events import Skip, Skipped
from compactor.workers import Dispatcher, Worker
from memory import Memory, Store, StoreError, open_store
from memory.entries import CompactionPublished, list_kinds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
if TYPE_CHECKING:
    from postgres import Postgres

ROLE = "assistant"
CONFIG = CompactorConfig(threshold=8, retain_recent=3, backoff_initial=0.5, backoff_max=2.0)
#: Ends the name of the file in which workers note the sessions where they found nothing due.
NOT_DUE = ".not_due"
#: Seconds after which what is still not compacted counts as lost; the sweep takes two to three minutes.
PATIENCE = 400.0


def name_of(number: int) -> str:
    return f"session-{number:05}"


def messages_of(number: int, rounds: int) -> list[dict[str, Any]]:
    said = [(f"{number}.{place}.query", f"{number}.{place}.answer") for place in range(rounds)]
    return [
        {"role": role, "content": text_of(tag).replace("\0", " ")}
        for pair in said
        for role, tag in zip(("user", "assistant"), pair, strict=True)
    ]


def connect(engine: str, url: str, broker: str) -> Dispatcher:
    if engine == "procrastinate":
        from compactor.workers.procrastinate import ProcrastinateDispatcher

        return ProcrastinateDispatcher(url)
    from compactor.workers.celery import CeleryDispatcher

    return CeleryDispatcher(broker)


def host(engine: str, url: str, broker: str, numbers: Sequence[int], rounds: int) -> None:
    """Write *rounds* to each of the sessions *numbers*, in turn; whatever fails is written again."""
    store, dispatcher, executor = patient(lambda: open_store(url)), connect(engine, url, broker), DaemonExecutor(4)
    texts = {number: messages_of(number, rounds) for number in numbers}
    compactors = {}
    for number in numbers:
        memory = patient(lambda number=number: Memory(name_of(number), store=store))
        compactors[number] = (
            ContextCompactor.for_role(memory, ROLE, CONFIG, executor=executor, dispatcher=dispatcher),
            memory,
        )
        compactors[number][0].start()
    for end in range(1, rounds + 1):
        for number, (_, memory) in compactors.items():
            patient(lambda memory=memory, said=texts[number][: 2 * end]: memory.sync(said))
    for compactor, _ in compactors.values():
        compactor.wait_idle(60)
    for compactor, _ in compactors.values():
        compactor.stop(5)
    store.close()


def patient(call: Any) -> Any:
    until = time.monotonic() + 120
    while True:
        try:
            return call()
        except StoreError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def work(engine: str, url: str, broker: str, calls: str, name: str, latency: float, concurrency: int) -> None:
    store = patient(lambda: open_store(url))
    summarizer = PaidSummarizer(Path(calls), name, latency)
    worker = Worker(store=store, roles=(ROLE,), settings=Settings(CONFIG), summarizer=summarizer)

    def note_not_due(event: Event) -> None:
        if isinstance(event, Skipped) and event.reason == Skip.BELOW_TRIGGER:
            with Path(calls + NOT_DUE).open("a", encoding="utf-8") as file:
                file.write(f"{event.session} {time.monotonic()}\n")

    worker.on_event(note_not_due, (Skipped,))
    if engine == "procrastinate":
        from compactor.workers.procrastinate import work as run

        while True:  # as a supervisor does, when the database is down
            with suppress(Exception):
                asyncio.run(run(url, worker, concurrency=concurrency))
            time.sleep(0.5)
    from compactor.workers.celery import work as run_celery

    run_celery(broker, worker, concurrency=concurrency, loglevel="ERROR", quiet=True)


def covered_by(store: Store, name: str) -> tuple[int, int]:
    """Return the last round that a session's newest compaction covers, and the number of its publications."""
    published = [entry.record for entry in store.read_kinds(name, list_kinds(CompactionPublished))]
    made = [one.compaction for one in published if isinstance(one, CompactionPublished)]
    if len({one.generation for one in made}) != len(made):
        raise SystemExit(f"{name} has a generation twice")
    return (made[-1].last_round or 0 if made else 0), len(made)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["procrastinate", "celery"], default="procrastinate")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", type=int, help="calls between two kills; by default, as many as spread the kills")
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--no-restarts", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    found = run(parser.parse_args(argv))
    print(json.dumps(found, indent=2))
    return 1 if found["faults"] else 0


def run(given: argparse.Namespace) -> dict[str, Any]:
    rng, spawn = random.Random(given.seed), multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        calls = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "calls")
        server = start_database(stack)
        url = stack.enter_context(server.database())
        broker = start_broker(stack, given.engine, given.broker)
        address = broker.url if broker is not None else ""
        create_tables(given.engine, url)
        started = time.monotonic()
        names = iter(range(10_000))

        def start_worker() -> BaseProcess:
            name = f"w{next(names)}"
            about = (given.engine, url, address, calls, name, given.latency, given.concurrency)
            process = spawn.Process(target=work, name=name, args=about, daemon=True)
            process.start()
            return process

        workers, killed = [start_worker() for _ in range(given.workers)], list[tuple[str, float]]()
        hosts = [
            spawn.Process(
                target=host,
                args=(given.engine, url, address, range(one, given.sessions, given.hosts), given.rounds),
                daemon=True,
            )
            for one in range(given.hosts)
        ]
        for one in hosts:
            one.start()
        servers = [] if given.no_restarts else [server, broker if broker is not None else server]
        restarts = list[tuple[float, float]]()  # when each began, and when its server was back
        every = given.sessions // max(given.kills, 1) if given.every is None else given.every
        for kill in range(given.kills):
            wait_for_calls(Path(calls), len(calls_in(Path(calls))) + every)
            place = choose_busy(Path(calls), workers, given.latency, rng)
            workers[place].kill()
            killed.append((workers[place].name, time.monotonic()))
            workers[place].join()
            workers[place] = start_worker()
            if servers and kill % max(given.kills // 3, 1) == 1:
                began = time.monotonic()
                servers.pop().restart()
                restarts.append((began, time.monotonic()))
        for one in hosts:
            one.join()
        written = time.monotonic() - started
        faults = [f"a host ended with {one.exitcode}" for one in hosts if one.exitcode]
        store = open_store(url)
        due = given.rounds - CONFIG.threshold
        left = {name_of(number) for number in range(given.sessions)}
        until = time.monotonic() + PATIENCE
        while left and time.monotonic() < until:
            left = {name for name in left if covered_by(store, name)[0] < due}
            time.sleep(0.2)
        compacted = time.monotonic() - started
        for one in workers:
            one.kill()
        faults += [f"{name} was not compacted" for name in sorted(left)[:10]]
        faults += [*find_lost(store, given)]
        asked, not_due = calls_in(Path(calls)), Path(calls + NOT_DUE).read_text(encoding="utf-8").splitlines()
        repeated = sum(count - 1 for count in Counter(one.digest for one in asked).values())
        publications = sum(covered_by(store, name_of(number))[1] for number in range(given.sessions))
        store.close()
    return {
        **{name: value for name, value in vars(given).items() if name != "seed"},
        "seconds_until_written": round(written, 1),
        "seconds_until_compacted": round(compacted, 1),
        "calls": len(asked),
        "repeated_calls": repeated,
        **summarize_waits(find_resumed(asked, not_due, killed, given.latency), restarts),
        "publications": publications,
        "faults": faults,
    }


def find_resumed(
    asked: Sequence[Call], not_due: Sequence[str], killed: Sequence[tuple[str, float]], latency: float
) -> list[tuple[float, float]]:
    """Return when each call was lost, for its worker was *killed*, and when its session went on: the next call began,
    or a job found it *not_due*, because the lost call was a compaction's second one and the first is published."""
    went_on = [(one.tag.partition(".")[0], one.began) for one in asked]
    for name, found in map(str.split, not_due):
        went_on.append((str(int(name.partition("-")[2])), float(found)))
    resumed = []
    for writer, at in killed:
        for lost in asked:
            if lost.writer == writer and at - latency < lost.began < at:
                session = lost.tag.partition(".")[0]
                later = [when for one, when in went_on if one == session and when > at]
                resumed += [(at, min(later))] if later else []
    return resumed


def summarize_waits(
    resumed: Sequence[tuple[float, float]], restarts: Sequence[tuple[float, float]]
) -> dict[str, object]:
    """Tell how long sessions of killed calls waited; apart, those for which a server was away meanwhile."""
    waits: dict[bool, list[float]] = {False: [], True: []}
    for at, end in resumed:
        waits[any(began < end and at < back for began, back in restarts)].append(end - at)
    found = {
        met: {
            "calls": len(waited),
            "median": round(statistics.median(waited), 1) if waited else None,
            "longest": round(max(waited), 1) if waited else None,
        }
        for met, waited in waits.items()
    }
    return {
        "killed_calls": len(resumed),
        "seconds_until_their_sessions_went_on": found[False],
        "seconds_where_a_restart_fell_into_that": found[True],
        "seconds_of_restarts": [round(back - began, 1) for began, back in restarts],
    }


def start_database(stack: ExitStack) -> Postgres:
    import postgres

    programs = postgres.binaries()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed: there is no initdb")
    server = postgres.Postgres(programs, {**postgres.DURABLE, "max_connections": "200"})
    server.start()
    stack.callback(server.remove)
    return server


def start_broker(stack: ExitStack, engine: str, name: str) -> Any:
    """Start Redis or RabbitMQ for Celery; None for other engines."""
    import brokers  # here: it imports pytest, for which no worker is to wait

    return stack.enter_context(getattr(brokers, name)()) if engine == "celery" else None


def find_lost(store: Store, given: argparse.Namespace) -> Iterator[str]:
    for number in range(given.sessions):
        said = Memory(name_of(number), store=store).conversation.rounds
        expected = [one["content"] for one in messages_of(number, given.rounds)[::2]]
        if [round_.user_query for round_ in said] != expected:
            yield f"{name_of(number)} is not what was written"


def create_tables(engine: str, url: str) -> None:
    open_store(url).close()
    if engine == "procrastinate":
        from compactor.workers.procrastinate import ProcrastinateDispatcher

        with ProcrastinateDispatcher(url) as dispatcher:
            dispatcher.create_tables()


def wait_for_calls(path: Path, number: int, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while len(calls_in(path)) < number and time.monotonic() < until:
        time.sleep(0.02)


def choose_busy(
    path: Path, workers: Sequence[BaseProcess], latency: float, rng: random.Random, seconds: float = 60.0
) -> int:
    """Return the place of a worker with a call in flight; of any if there is none for *seconds*."""
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        busy = {one.writer for one in calls_in(path) if one.began > now - latency}
        if places := [place for place, one in enumerate(workers) if one.name in busy]:
            return rng.choice(places)
        time.sleep(0.02)
    return rng.randrange(len(workers))


if __name__ == "__main__":
    sys.exit(main())
