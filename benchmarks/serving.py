"""What ``Sessions`` costs an asyncio server: threads, memory, stalls of its event loop, and the time to its end.

Opens so many sessions of four rounds, with messages of 100 words; then plays turns in them while a ticker measures how
late the event loop calls it, in turn with a control: the same turns in sessions without compactors. At last it closes
sessions whose calls to the model hang. Each part is a process of its own. Prints a table in Markdown.

    python -m benchmarks.serving [--sessions 10000] [--turns 2000] [--calls 100] [--store sqlite:///chat.db]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.long_session import text
from benchmarks.many_sessions import resident
from compactor import (
    CompactorConfig,
    DaemonExecutor,
    Limits,
    Memory,
    Sessions,
    Store,
    SummaryRequest,
    acompose,
    open_store,
    warm_up,
)
from compactor.testing import summarize_by_terms

ROUNDS, WORDS, BUDGET = 4, 100, 8_000
#: Seconds between two ticks, and turns of one kind before those of the other.
TICK, BLOCK = 0.005, 100
#: Turns that are under way at once.
AT_ONCE = 8
#: Due after two more rounds.
SOON = CompactorConfig(threshold=5, retain_recent=3)
#: Sessions that turns are played in: few enough to be compacted several times.
PLAYED = 100


async def summarize(request: SummaryRequest) -> str:
    """Answer after half a second: sooner than a model does."""
    await asyncio.sleep(0.5)
    return summarize_by_terms(request)


async def say(memory: Memory, rng: random.Random, *, composes: bool = True) -> int:
    """Play one turn; return the bytes that were said."""
    asked, answered = text(rng, WORDS), text(rng, WORDS)
    await memory.aappend({"role": "user", "content": asked})
    if composes:
        await acompose(memory, budget=BUDGET)
    await memory.aappend({"role": "assistant", "content": answered})
    return len(asked) + len(answered)


async def fill(sessions: Sessions, count: int) -> int:
    """Open *count* sessions of ``ROUNDS`` rounds; return the bytes that were said."""
    rng, said = random.Random(7), 0
    for number in range(count):
        async with sessions.open(f"session-{number}") as session:
            for _ in range(ROUNDS):
                said += await say(session.memory, rng, composes=False)
    return said


async def hold(count: int, store: Store | None) -> dict[str, float]:
    """Return threads and memory with so many open sessions."""
    warm_up()
    async with Sessions(store, summarizer=summarize, budget=BUDGET, max_open=None) as sessions:
        await fill(sessions, 10)  # what is loaded once belongs to no session
        before, began = resident(), time.perf_counter()
        said = await fill(sessions, count)
        seconds, held, threads = time.perf_counter() - began, resident() - before, threading.active_count()
        assert sessions.status().open >= count
        for number in range(count):
            async with sessions.open(f"session-{number}") as session:
                await session.acompose()
        shown = resident() - before
        kib = {name: (it - said) / count / 1_024 for name, it in (("KiB", held), ("KiB shown", shown))}
        return {"threads": max(threads, threading.active_count()), "seconds": seconds, **kib}


async def stall(count: int, turns: int, store: Store | None) -> dict[str, float]:
    """Return the 99th percentile of the ticker's delays, in ms, with turns in sessions, in the control, and idle; and
    how often the model was asked."""
    warm_up()
    asked = 0

    async def model(request: SummaryRequest) -> str:
        nonlocal asked
        asked += 1
        return await summarize(request)

    late: dict[str, list[float]] = {"sessions": [], "control": [], "idle": []}
    kind, rng, most = "idle", random.Random(7), 0

    async def tick() -> None:
        nonlocal most
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK)
            late[kind].append(time.perf_counter() - began - TICK)
            most = max(most, threading.active_count())

    async with Sessions(store, summarizer=model, budget=BUDGET, max_open=None) as sessions:
        await fill(sessions, count)
        async with sessions.open("first") as session:  # the first compaction of a process loads what it needs
            for _ in range(12):
                await say(session.memory, rng)
            await asyncio.to_thread(session.compactor.compact_now, 60)
        memories = [Memory(f"control-{number}") for number in range(count)]
        for memory in memories:
            for _ in range(ROUNDS):
                await say(memory, rng)
        ticker = asyncio.create_task(tick())
        await asyncio.sleep(100 * TICK)

        async def in_session() -> None:
            async with sessions.open(f"session-{rng.randrange(count)}") as session:
                await say(session.memory, rng)

        async def in_control() -> None:
            await say(rng.choice(memories), rng)

        for _ in range(turns // BLOCK):
            for name, turn in (("sessions", in_session), ("control", in_control)):
                kind = name
                for _ in range(BLOCK // AT_ONCE):
                    await asyncio.gather(*(turn() for _ in range(AT_ONCE)))
                    await asyncio.sleep(TICK)
                await asyncio.sleep(20 * TICK)  # compactions that are under way belong to their turns
        ticker.cancel()
    return {
        **{name: sorted(all_)[len(all_) * 99 // 100] * 1e3 for name, all_ in late.items()},
        "threads": most,
        "asked": asked,
    }


async def end(calls: int) -> dict[str, float]:
    """Return the seconds that ``aclose`` takes with so many calls that hang."""
    hangs, begun = threading.Event(), threading.Semaphore(0)

    def model(_request: SummaryRequest) -> str:
        begun.release()
        hangs.wait()
        return ""

    pool, limits = DaemonExecutor(calls), Limits(max_concurrency=calls)
    sessions = Sessions(summarizer=model, config=SOON, executor=pool, limits=limits, budget=BUDGET)
    rng = random.Random(7)
    for number in range(calls):
        async with sessions.open(f"session-{number}") as session:
            for _ in range(6):
                await say(session.memory, rng)
    await asyncio.to_thread(lambda: [begun.acquire(timeout=60) for _ in range(calls)])
    began = time.perf_counter()
    assert not await sessions.aclose(5.0)
    return {"seconds": time.perf_counter() - began, "calls": calls}


def measure(part: str, arguments: argparse.Namespace) -> dict[str, float]:
    store = open_store(arguments.store) if arguments.store else None
    parts = {
        "hold": lambda: hold(arguments.sessions, store),
        "stall": lambda: stall(min(arguments.sessions, PLAYED), arguments.turns, store),
        "end": lambda: end(arguments.calls),
    }
    return asyncio.run(parts[part]())


def in_a_process(part: str, argv: Sequence[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.serving", "--part", part, *argv]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603  (ourselves)
    if done.returncode:
        raise SystemExit(done.stderr)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=2_000, help="turns of each kind")
    parser.add_argument("--calls", type=int, default=100, help="calls that hang at the end")
    parser.add_argument("--store", help="URL of the sessions' store; by default they are in memory")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = [*(sys.argv[1:] if argv is None else argv)]
    arguments = parser.parse_args(given)
    if arguments.part:
        print(json.dumps(measure(arguments.part, arguments)))
        return
    held, late, ended = (in_a_process(part, given) for part in ("hold", "stall", "end"))
    print("| measured | |\n|---|--:|")
    for name, value in (
        (f"threads with {arguments.sessions:,} open sessions", f"{held['threads']:.0f}"),
        ("memory of a session beside its text", f"{held['KiB']:.1f} KiB"),
        ("the same after a prompt", f"{held['KiB shown']:.1f} KiB"),
        ("opening one and appending eight messages", f"{held['seconds'] / arguments.sessions * 1e3:.2f} ms"),
        (f"event loop late, 99th percentile: turns, {late['asked']:.0f} compactions", f"{late['sessions']:.1f} ms"),
        ("the same turns without compactors", f"{late['control']:.1f} ms"),
        ("no turns", f"{late['idle']:.1f} ms"),
        ("threads meanwhile, at most", f"{late['threads']:.0f}"),
        (f"`aclose(5)` with {ended['calls']:.0f} calls that hang", f"{ended['seconds']:.2f} s"),
    ):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
