"""What a turn of the chat loop costs while a summarizer hangs, and what many compactors cost on few threads.

Prints a table in Markdown. Times are rough where a machine is shared; the ratios are within one run.

    python -m benchmarks.turns
"""

from __future__ import annotations

import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from compactor import CompactorConfig, ContextCompactor, compose
from compactor.testing import ScriptedSummarizer
from memory import Memory

SIZES = (100, 1_000, 10_000)
TURNS = 300
COMPACTORS, THREADS = 2_000, 8
QUESTION = "What became of order {0}? It was to be delivered to 12 Elm Street on 2024-05-{1:02}. " * 2
ANSWER = "Order {0} was handed to the carrier at 14:{1:02} and is expected tomorrow before noon. " * 3


def add_round(memory: Memory, number: int) -> None:
    query = QUESTION.format(number, number % 28 + 1)
    round_ = memory.create_round(query)
    memory.add_post(round_, send_from="User", send_to="assistant", message=query)
    memory.add_post(round_, send_from="assistant", send_to="User", message=ANSWER.format(number, number % 60))
    memory.finish_round(round_)


def grown(rounds: int) -> Memory:
    memory = Memory()
    for number in range(1, rounds + 1):
        add_round(memory, number)
    return memory


def turn(memory: Memory, number: int) -> None:
    add_round(memory, number)
    memory.get_role_rounds("assistant")
    compose(memory, system="You help customers.", budget=8_000)


def timed(times: int, act: Callable[[int], object]) -> list[float]:
    """Return the milliseconds that each of *times* acts took, in ascending order."""
    result = []
    for number in range(times):
        began = time.perf_counter()
        act(number)
        result.append((time.perf_counter() - began) * 1_000)
    return sorted(result)


def turns_while_hanging(rounds: int) -> tuple[list[float], float]:
    """Return the times of turns after *rounds* rounds, none of which could be compacted; and that of a full garbage
    collection then, which Python may choose to do in any of them."""
    memory = grown(rounds)
    summarizer = ScriptedSummarizer().hold()
    with summarizer, ContextCompactor.for_role(memory, "assistant", CompactorConfig(), summarizer) as compactor:
        compose(memory, budget=8_000)  # the rounds that were there before are counted once
        assert summarizer.started.wait(60)
        gc.collect()
        gc.disable()
        times = timed(TURNS, lambda number: turn(memory, rounds + number))
        (collection,) = timed(1, lambda _: gc.collect())
        gc.enable()
        summarizer.release()
        compactor.stop(60)
    return times, collection


def snapshot_and_tail(rounds: int) -> list[float]:
    """Return the times of taking a snapshot and its tail where all but the last rounds are compacted."""
    memory = grown(rounds)
    compactor = ContextCompactor.for_role(memory, "assistant", CompactorConfig(), ScriptedSummarizer())
    compactor.compact_now(timeout=600)

    def read(_number: int) -> None:
        found, compaction = memory.get_role_rounds("assistant")
        assert compaction is not None
        assert len(found[compaction.end_index :]) == 3

    return timed(20_000, read)


def many_on_few() -> tuple[float, int]:
    """Return the seconds until every compactor has published, and the most threads there were beside the executor's."""
    memories = [grown(12) for _ in range(COMPACTORS)]
    left = threading.Semaphore(0)
    before = threading.active_count()
    with ThreadPoolExecutor(THREADS) as executor:
        began, most = time.perf_counter(), 0
        compactors = []
        for memory in memories:
            compactor = ContextCompactor.for_role(
                memory, "assistant", CompactorConfig(), ScriptedSummarizer(), executor=executor
            )
            compactor.on_event(lambda event: left.release() if event.name == "compaction.published" else None)
            compactor.start()
            compactors.append(compactor)
        for _ in compactors:
            assert left.acquire(timeout=120)
            most = max(most, threading.active_count())
        seconds = time.perf_counter() - began
        for compactor in compactors:
            compactor.stop()
    return seconds, most - before - THREADS


def row(name: str, times: list[float], base: float) -> str:
    median, p99, worst = statistics.median(times), times[len(times) * 99 // 100], times[-1]
    cells = (f"{value:.3f} ms ({value / base:.1f}x)" for value in (median, p99, worst))
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    print(f"Python {sys.version.split()[0]}. A turn: create, two posts, finish, get_role_rounds, compose.")
    print("In brackets: how many times the median of the first row of its kind.\n")
    print("| | median | p99 | longest |\n|---|---|---|---|")
    base = 0.0
    for rounds in SIZES:
        times, collection = turns_while_hanging(rounds)
        base = base or statistics.median(times)
        print(row(f"turn at round {rounds:,}, summarizer hanging", times, base), flush=True)
    whole = f"A full garbage collection, which Python does now and then, took {collection:.0f} ms at the last of these."
    base = 0.0
    for rounds in (SIZES[0], SIZES[-1]):
        times = snapshot_and_tail(rounds)
        base = base or statistics.median(times)
        print(row(f"snapshot and tail at round {rounds:,}", times, base), flush=True)
    seconds, more = many_on_few()
    print(f"\n{whole}\n\n{COMPACTORS:,} compactors on {THREADS} threads: all published after {seconds:.1f} s,")
    print(f"with {more} more threads than the executor's (one timer serves them all).")


if __name__ == "__main__":
    main()
