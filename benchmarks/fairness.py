"""Two tenants share the calls to a model, one with a thousand times the load: how long the other one's sessions wait.

    python -m benchmarks.fairness                             # one session of one, 1,000 and more of the other
    python -m benchmarks.fairness --quiet-sessions 5 --busy-sessions 200
    python -m benchmarks.fairness --engine celery             # with a Redis server of its own; --broker rabbitmq

Starts a PostgreSQL server of its own, and workers that share a limit of calls at once. The quiet tenant's sessions are
due one by one, *--every* seconds apart: first alone; then while the busy tenant's sessions are handed over, all at
once; and then while they wait for their calls. Prints the seconds from when a session is due until
its compaction is published, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.fleet import (
    CONFIG,
    ROLE,
    connect,
    covered_by,
    create_tables,
    messages_of,
    start_broker,
    start_database,
)
from benchmarks.sessions import PaidSummarizer, calls_in
from compactor import Limit, Settings, SharedLimits
from compactor.workers import Dispatcher, Worker
from compactor.workers.celery import work as run_celery
from compactor.workers.procrastinate import work as run
from memory import Memory, Store, open_store
from memory.stores import join_name

#: Just enough for a compaction to be due.
ROUNDS = CONFIG.threshold + 1


def work(
    engine: str, url: str, broker: str, calls: str, name: str, latency: float, concurrency: int, most: int
) -> None:
    store = open_store(url)
    worker = Worker(
        store=store,
        roles=(ROLE,),
        settings=Settings(CONFIG),
        summarizer=PaidSummarizer(Path(calls), name, latency),
        options={"limits": SharedLimits(store, [Limit(max_concurrency=most, per="provider")])},
    )
    if engine == "celery":
        run_celery(broker, worker, concurrency=concurrency, loglevel="ERROR", quiet=True)
    while True:
        with suppress(Exception):
            asyncio.run(run(url, worker, concurrency=concurrency))


def write(url: str, names: Sequence[str]) -> None:
    """Write sessions in which a compaction is due."""
    store = open_store(url)
    for number, name in enumerate(names):
        Memory(name, store=store).sync(messages_of(number, ROUNDS))
    store.close()


def measure(store: Store, dispatcher: Dispatcher, names: Sequence[str], every: float) -> list[float]:
    """Write each session, and return the seconds that it waits for its compaction."""
    waited = []
    for name in names:
        Memory(name, store=store).sync(messages_of(0, ROUNDS))
        began, published = time.monotonic(), threading.Event()
        end = store.listen(name, published.set)
        published.clear()  # it is called once when it begins
        dispatcher.due(name, ROLE)
        while not covered_by(store, name)[1]:
            published.wait(0.5)
            published.clear()
        waited.append(time.monotonic() - began)
        end()
        time.sleep(max(0.0, began + every - time.monotonic()))
    return waited


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["procrastinate", "celery"], default="procrastinate")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--quiet-sessions", type=int, default=10)
    parser.add_argument("--busy-sessions", type=int, default=1_600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=6)
    parser.add_argument("--max-concurrency", type=int, default=4)
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--every", type=float, default=3.0)
    print(json.dumps(run_all(parser.parse_args(argv)), indent=2))
    return 0


def run_all(given: argparse.Namespace) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    alone, meanwhile, beside = (
        [join_name("quiet", f"{phase} {number}") for number in range(given.quiet_sessions)]
        for phase in ("alone", "meanwhile", "beside")
    )
    busy = [join_name("busy", f"{number}") for number in range(given.busy_sessions)]
    with ExitStack() as stack:
        calls = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "calls")
        url = stack.enter_context(start_database(stack).database())
        broker = getattr(start_broker(stack, given.engine, given.broker), "url", "")
        create_tables(given.engine, url)
        writers = [spawn.Process(target=write, args=(url, busy[one::2])) for one in range(2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        store = open_store(url)
        stack.callback(store.close)
        store.clear_due(store.list_due(datetime.now(UTC) + timedelta(hours=1), 10 * given.busy_sessions))  # no sweep
        for number in range(given.workers):
            about = (given.engine, url, broker, calls, f"w{number}", given.latency)
            worker = spawn.Process(target=work, args=(*about, given.concurrency, given.max_concurrency), daemon=True)
            worker.start()
            stack.callback(worker.kill)
        dispatcher, other = (stack.enter_context(closing(connect(given.engine, url, broker))) for _ in range(2))
        measure(store, dispatcher, [f"warm {number}" for number in range(2 * given.workers)], 0.5)
        found = {"alone": measure(store, dispatcher, alone, given.every)}
        limits = SharedLimits(store, [Limit(max_concurrency=given.max_concurrency, per="provider")])
        began = time.monotonic()
        handing = threading.Thread(target=lambda: [other.due(name, ROLE) for name in busy])
        handing.start()
        found["while_handed_over"] = measure(store, dispatcher, meanwhile, given.every)
        handing.join()
        while limits.status().queued + len(calls_in(Path(calls))) < 0.99 * given.busy_sessions:
            time.sleep(0.2)  # until a worker has looked at each
        looked, before, began = time.monotonic() - began, len(calls_in(Path(calls))), time.monotonic()
        waiting = [limits.status().queued]
        found["while_they_wait"] = measure(store, dispatcher, beside, given.every)
        made = (len(calls_in(Path(calls))) - before) / (time.monotonic() - began)
        waiting.append(limits.status().queued)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    return {
        **vars(given),
        "seconds": {name: [round(one, 2) for one in sorted(seconds)] for name, seconds in found.items()},
        "medians": {name: round(one, 2) for name, one in medians.items()},
        "times_alone": {name: round(one / medians["alone"], 2) for name, one in medians.items()},
        "busy_waiting": waiting,
        "seconds_until_all_were_looked_at": round(looked, 1),
        "calls_a_second": round(made, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
