"""Two tenants share the calls to a model, one with a thousand times the load: how long the other one's sessions wait.

    python -m benchmarks.fairness                             # 10 sessions of one, 10,000 of the other
    python -m benchmarks.fairness --quiet-sessions 5 --times 100

Starts a PostgreSQL server of its own, and workers on Procrastinate that share a limit of calls at once. The quiet
tenant's sessions come one by one, *--every* seconds apart: first alone, and then while all sessions of the busy tenant
are due. Prints the seconds from when a session is due until its compaction is published, as JSON.
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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.fleet import CONFIG, ROLE, covered_by, create_tables, messages_of, start_database
from benchmarks.sessions import PaidSummarizer, calls_in
from compactor import Limit, Settings, SharedLimits
from compactor.workers import Worker
from compactor.workers.procrastinate import ProcrastinateDispatcher
from compactor.workers.procrastinate import work as run
from memory import Memory, Store, open_store
from memory.stores.tenants import name_in

#: Just enough for a compaction to be due.
ROUNDS = CONFIG.threshold + 1


def work(url: str, calls: str, name: str, latency: float, concurrency: int, most: int) -> None:
    store = open_store(url)
    worker = Worker(
        store=store,
        roles=(ROLE,),
        settings=Settings(CONFIG),
        summarizer=PaidSummarizer(Path(calls), name, latency),
        options={"limits": SharedLimits(store, [Limit(max_concurrency=most, per="provider")])},
    )
    while True:
        with suppress(Exception):
            asyncio.run(run(url, worker, concurrency=concurrency))


def write(url: str, names: Sequence[str]) -> None:
    """Write sessions in which a compaction is due."""
    store = open_store(url)
    for number, name in enumerate(names):
        Memory(name, store=store).sync(messages_of(number, ROUNDS))
    store.close()


def measure(store: Store, dispatcher: ProcrastinateDispatcher, names: Sequence[str], every: float) -> list[float]:
    """Return the seconds that each session waits for its compaction."""
    waited = []
    for name in names:
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
    parser.add_argument("--quiet-sessions", type=int, default=10)
    parser.add_argument("--times", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=6)
    parser.add_argument("--max-concurrency", type=int, default=4)
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--every", type=float, default=3.0)
    print(json.dumps(run_all(parser.parse_args(argv)), indent=2))
    return 0


def run_all(given: argparse.Namespace) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    alone, beside = (
        [name_in("quiet", f"{phase} {number}") for number in range(given.quiet_sessions)]
        for phase in ("alone", "beside")
    )
    busy = [name_in("busy", f"{number}") for number in range(given.quiet_sessions * given.times)]
    with ExitStack() as stack:
        calls = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "calls")
        url = stack.enter_context(start_database(stack).database())
        create_tables("procrastinate", url)
        writers = [spawn.Process(target=write, args=(url, busy[one::2])) for one in range(2)]
        for writer in writers:
            writer.start()
        write(url, [*alone, *beside])
        for writer in writers:
            writer.join()
        for number in range(given.workers):
            about = (url, calls, f"w{number}", given.latency, given.concurrency, given.max_concurrency)
            worker = spawn.Process(target=work, args=about, daemon=True)
            worker.start()
            stack.callback(worker.kill)
        store = open_store(url)
        stack.callback(store.close)
        dispatcher = stack.enter_context(ProcrastinateDispatcher(url))
        write(url, ["warm"])
        measure(store, dispatcher, ["warm"], 1.0)
        found_alone = measure(store, dispatcher, alone, given.every)
        limits = SharedLimits(store, [Limit(max_concurrency=given.max_concurrency, per="provider")])
        began = time.monotonic()
        for name in busy:
            dispatcher.due(name, ROLE)
        dispatched, before = time.monotonic() - began, len(calls_in(Path(calls)))
        began = time.monotonic()
        found_beside = measure(store, dispatcher, beside, given.every)
        seconds, queued = time.monotonic() - began, limits.status().waiting
        made = len(calls_in(Path(calls))) - before
    return {
        **vars(given),
        "alone": [round(one, 3) for one in found_alone],
        "beside": [round(one, 3) for one in found_beside],
        "median_alone": round(statistics.median(found_alone), 3),
        "median_beside": round(statistics.median(found_beside), 3),
        "ratio": round(statistics.median(found_beside) / statistics.median(found_alone), 2),
        "ratio_of_longest": round(max(found_beside) / max(found_alone), 2),
        "seconds_to_hand_over": round(dispatched, 1),
        "calls_a_second_meanwhile": round(made / seconds, 1),
        "queued_at_end": queued,
    }


if __name__ == "__main__":
    sys.exit(main())
