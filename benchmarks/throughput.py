"""Compactions a second by number of workers, the overhead beside the model's time, and claims of jobs a second.

    python -m benchmarks.throughput                           # Procrastinate, one to four workers
    python -m benchmarks.throughput --engine celery --broker rabbitmq

The model is an HTTP server on loopback that answers after --latency seconds. Sessions in which a compaction is due, and
their jobs, are there before the workers begin; what counts is the rate of calls from their first tenth to their last.
"Claims" are Procrastinate's, beside those of a plain table with FOR UPDATE SKIP LOCKED on the same server. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from psycopg_pool import AsyncConnectionPool

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
from compactor import OpenAISummarizer, Settings
from compactor.workers import Worker
from memory import Memory, open_store
from memory.stores.postgres import Postgres

#: Just enough for a compaction to be due.
ROUNDS = CONFIG.threshold + 1
ANSWER = "They spoke of parcels and tariffs, at length; this was noted down."


def serve(latency: float, port: Any, arrivals: Any) -> None:
    """Answer chat completions after *latency* seconds; put the time of each request into *arrivals*."""
    message = {"role": "assistant", "content": ANSWER}
    usage = {"prompt_tokens": 1_000, "completion_tokens": 20, "total_tokens": 1_020}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    body = json.dumps(
        {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    ).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                fields = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"content-length:")[1]
                await reader.readexactly(int(fields.split(b"\r\n")[0]))
                arrivals.put(time.monotonic())
                await asyncio.sleep(latency)
                writer.write(head + body)
                await writer.drain()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def work(engine: str, url: str, broker: str, model: str, warm: str, concurrency: int, ready: Any) -> None:
    """Compact the session *warm*, wait for the other workers, and run jobs."""
    summarizer = OpenAISummarizer("m", base_url=model, api_key="none")
    worker = Worker(store=open_store(url), roles=(ROLE,), settings=Settings(CONFIG), summarizer=summarizer)
    worker.run(warm, ROLE)
    ready.wait()
    if engine == "procrastinate":
        from compactor.workers.procrastinate import work as run

        asyncio.run(run(url, worker, concurrency=concurrency))
    else:
        from compactor.workers.celery import work as run_celery

        run_celery(broker, worker, concurrency=concurrency, loglevel="ERROR", quiet=True)


def compact(given: argparse.Namespace, stack: ExitStack, server: Any, workers: int) -> dict[str, Any]:
    """Have so many *workers* compact sessions; return their rate."""
    spawn = multiprocessing.get_context("spawn")
    port, arrivals, ready = spawn.Queue(), spawn.Queue(), spawn.Barrier(workers + 1)
    url = stack.enter_context(server.database())
    broker = getattr(start_broker(stack, given.engine, given.broker), "url", "")
    create_tables(given.engine, url)
    store, names = open_store(url), [f"session {number}" for number in range(given.sessions * workers)]
    for number, name in enumerate([*names, *(f"warm {number}" for number in range(workers))]):
        Memory(name, store=store).sync(messages_of(number, ROUNDS))
    dispatcher: Any = connect(given.engine, url, broker)
    for name in names:
        dispatcher.due(name, ROLE)
    model = spawn.Process(target=serve, args=(given.latency, port, arrivals), daemon=True)
    model.start()
    about = (given.engine, url, broker, f"http://127.0.0.1:{port.get()}/v1")
    running = [
        spawn.Process(target=work, args=(*about, f"warm {number}", given.concurrency, ready), daemon=True)
        for number in range(workers)
    ]
    for process in running:
        process.start()
        stack.callback(process.kill)
    ready.wait()
    before = [measure_cpu(one) for one in (running[0].pid, server.pid, model.pid)]
    called = [arrivals.get() for _ in range(workers + len(names))][workers:]
    used = [measure_cpu(one) for one in (*(process.pid for process in running), server.pid, model.pid)]
    while not all(covered_by(store, name)[1] for name in names[-workers * given.concurrency :]):
        time.sleep(0.1)
    for process in (*running, model):
        process.kill()
        process.join()
    dispatcher.close()
    store.close()
    called = sorted(called)[len(called) // 10 :]
    rate = (len(called) - 1) / (called[-1] - called[0])
    calls = workers * given.concurrency
    of_workers = sum(used[:workers]) - workers * before[0]
    return {
        "workers": workers,
        "compactions_a_second": round(rate, 1),
        "limit_by_the_model": round(calls / given.latency, 1),
        "overhead_ms": round(1_000 * (calls / rate - given.latency)),
        "cpu_ms_of_workers": round(1_000 * of_workers / len(names), 1),
        "cpu_ms_of_the_database": round(1_000 * (used[workers] - before[1]) / len(names), 1),
        "cpu_ms_of_the_model": round(1_000 * (used[-1] - before[2]) / len(names), 1),
    }


def measure_cpu(pid: int | None) -> float:
    """Return the seconds of processor time of a process and its children, those that have ended included."""
    ticks = 0
    for found in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{found}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
            own, ended = (int(fields[11]) + int(fields[12])), (int(fields[13]) + int(fields[14]))
            if int(found) == pid:
                ticks += own + ended
            elif int(fields[1]) == pid:
                ticks += own
    return ticks / os.sysconf("SC_CLK_TCK")


async def claim_all(claim: Callable[[], Awaitable[bool]], claimers: int) -> float:
    """Return the jobs a second that so many *claimers* claim, until there are none."""

    async def run() -> int:
        claimed = 0
        while await claim():
            claimed += 1
        return claimed

    began = time.monotonic()
    return round(sum(await asyncio.gather(*(run() for _ in range(claimers)))) / (time.monotonic() - began), 1)


async def measure_claims(url: str, jobs: int, claimers: int) -> dict[str, float]:
    from procrastinate import App, PsycopgConnector

    from compactor.workers.procrastinate import COMPACT, QUEUE

    conninfo = Postgres(url).conninfo
    app = App(connector=PsycopgConnector(conninfo=conninfo, min_size=claimers, max_size=claimers))
    async with app.open_async(), AsyncConnectionPool(conninfo, min_size=claimers, kwargs={"autocommit": True}) as pool:
        names = [{"session": f"session {number}", "role": ROLE} for number in range(jobs)]
        await app.configure_task(COMPACT, queue=QUEUE).batch_defer_async(*names)
        worker = await app.job_manager.register_worker()

        async def fetch() -> bool:
            return await app.job_manager.fetch_job(queues=[QUEUE], worker_id=worker) is not None

        ours = await claim_all(fetch, claimers)
        async with pool.connection() as connection:
            await connection.execute("CREATE TABLE jobs (id bigserial PRIMARY KEY, status text, args jsonb)")
            await connection.execute("CREATE INDEX ON jobs (id) WHERE status = 'todo'")
            await connection.execute(
                "INSERT INTO jobs (status, args) SELECT 'todo', '{}' FROM generate_series(1, %s)", [jobs]
            )

        async def take() -> bool:
            async with pool.connection() as connection:
                found = await connection.execute(
                    """UPDATE jobs SET status = 'doing' WHERE id = (SELECT id FROM jobs WHERE status = 'todo'
                        ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING *"""
                )
                return await found.fetchone() is not None

        bare = await claim_all(take, claimers)
    return {"claimers": claimers, "procrastinate": ours, "bare_table": bare, "ratio": round(ours / bare, 2)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["procrastinate", "celery"], default="procrastinate")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=100, help="for each worker")
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--claims", type=int, default=5_000)
    print(json.dumps(run_all(parser.parse_args(argv)), indent=2))
    return 0


def run_all(given: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        server = start_database(stack)
        rates = []
        for workers in given.workers:
            with ExitStack() as one:
                rates.append(compact(given, one, server, workers))
        url = stack.enter_context(server.database())
        create_tables("procrastinate", url)
        claims = [asyncio.run(measure_claims(url, given.claims, claimers)) for claimers in (1,)]
    return {**vars(given), "workers": rates, "claims_a_second": claims}


if __name__ == "__main__":
    sys.exit(main())
