"""What a turn costs the host, at the 10th round and at the 100,000th, and how long the compactor holds Python's lock.

    python -m benchmarks.host_path
    python -m benchmarks.host_path --rounds 10 100 1000 --turns 50
    python -m benchmarks.host_path --rounds 100 1000 --pause 0.03   # before each turn: the processor's caches go cold

A turn: create_round, two posts, finish_round, get_role_rounds and compose, in memory, while a compactor works beside it
whose summarizer answers at once. CPU is that of the whole process, the compactor's looks included; of the median turn,
for one in eight or so is compacted. Times are rough where a machine is shared; the ratios are within one run. Prints
tables in Markdown.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType

from compactor import CompactorConfig, ContextCompactor, SummaryRequest, compose
from memory import CompactedMessage, Memory

ROUNDS = (10, 100, 1_000, 10_000, 100_000)
TURNS = 200
ROLE = "assistant"
BUDGET = 8_000
RETAINED = 5
#: Of a long compaction: tokens that the summarizer is given, and characters of the longest post.
INPUT_TOKENS, LONGEST_POST = 24_000, 200_000
#: How often that is measured: the least counts, since other programs slow down the others.
TIMES = 3
QUESTION = "What became of order {0}? It was to be delivered to 12 Elm Street on 2024-05-{1:02}. " * 5
ANSWER = "Order {0} was handed to the carrier at 14:{1:02} and is expected tomorrow before noon. " * 8
SUMMARY = "The customer asked about orders." + " All of them were found." * 60
#: How many sentences a summary has beside that: as many as it takes in, without the oldest.
SENTENCES = 40


def summarized(request: SummaryRequest) -> str:
    """Return a summary as long as the one before, which keeps what that one said last."""
    before = request.previous.summary.splitlines()[1:] if request.previous else []
    carried = [*before, f"Orders up to number {request.end_index} were handed to the carrier."][-SENTENCES:]
    return "\n".join([SUMMARY, *carried])


def add_round(memory: Memory, number: int) -> None:
    query = QUESTION.format(number, number % 28 + 1)
    round_ = memory.create_round(query)
    memory.add_post(round_, send_from="User", send_to=ROLE, message=query)
    memory.add_post(round_, send_from=ROLE, send_to="User", message=ANSWER.format(number, number % 60))
    memory.finish_round(round_)


def turn(memory: Memory, number: int) -> None:
    """What a host does from the user's message to the end of its own answer."""
    query = QUESTION.format(number, number % 28 + 1)
    round_ = memory.create_round(query)
    memory.add_post(round_, send_from="User", send_to=ROLE, message=query)
    memory.get_role_rounds(ROLE)
    compose(memory, ROLE, system="You help customers.", budget=BUDGET)
    memory.add_post(round_, send_from=ROLE, send_to="User", message=ANSWER.format(number, number % 60))
    memory.finish_round(round_)


def cover(memory: Memory) -> None:
    """Publish a compaction of all but the newest rounds, as if it had been made."""
    rounds = memory.rounds_getter(ROLE)()
    end = len(rounds) - RETAINED
    if end < 1:
        return
    journal = memory.journal(ROLE)
    made = CompactedMessage(start_index=1, end_index=end, summary=SUMMARY.format(end), end_round_id=rounds[end - 1].id)
    journal.publish(made, base=journal.read().generation, round_ids=[rounds[end - 1].id])


@dataclass
class Turns:
    """Turns behind round *at*, in milliseconds."""

    at: int
    #: Of the process, and of the thread that the chat runs on.
    cpu: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    #: A full garbage collection at the end, which Python may choose to do in any turn.
    collection: float = 0.0


def measured(memory: Memory, compactor: ContextCompactor, at: int, turns: int, pause: float = 0.0) -> Turns:
    found = Turns(at)
    gc.collect()
    for number in range(at, at + turns):
        if pause:
            time.sleep(pause)
        cpu, own, began = time.process_time(), time.thread_time(), time.perf_counter()
        turn(memory, number)
        wall, own = time.perf_counter() - began, time.thread_time() - own
        compactor.wait_idle(60)
        found.wall.append(wall * 1_000)
        found.own.append(own * 1_000)
        found.cpu.append((time.process_time() - cpu) * 1_000)
    began = time.thread_time()
    gc.collect()
    found.collection = (time.thread_time() - began) * 1_000
    return found


def at_rounds(marks: Sequence[int], turns: int, pause: float = 0.0) -> list[Turns]:
    """Return the turns behind each of *marks*, of one Memory that grows."""
    memory, found = Memory(), []
    for mark in sorted(marks):
        while memory.snapshot.total < mark - 1:
            add_round(memory, memory.snapshot.total + 1)
        cover(memory)
        config = CompactorConfig(max_tokens=BUDGET, threshold=10**9)
        with ContextCompactor.for_role(memory, ROLE, config, summarized) as compactor:
            compose(memory, ROLE, budget=BUDGET)
            compactor.wait_idle(60)
            found.append(measured(memory, compactor, mark, turns if mark >= turns else max(mark // 2, 1), pause))
    return found


class Steps:
    """Sees how long a thread's longest step is that cannot be interrupted: a call of what is not written in Python, and
    calls nothing that is. Between two of these the thread lets go of Python's lock when another waits for it.

    In CPU of that thread, so that other programs on the machine do not count. A call that lets go of the lock itself,
    as that which counts tokens does, is taken for one that holds it.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._within: list[float] = []

    def __call__(self, _frame: FrameType, event: str, _argument: object) -> None:
        now = time.thread_time()
        if event == "c_call":
            self._within.append(now)
        elif event in ("c_return", "c_exception"):
            if self._within:
                self.longest = max(self.longest, now - self._within.pop())
        else:  # Python code runs, in which the lock is let go of
            self._within = [now] * len(self._within)


def held(post: int, input_tokens: int = INPUT_TOKENS) -> float:
    """Return the longest step in milliseconds of a compaction of *input_tokens*, and of a post of that many characters
    where that is not 0."""
    memory = Memory()
    for number in range(1, input_tokens // 330 + 1):
        add_round(memory, number)
        if number == 3 and post:
            line = "order 4711-AX is at /srv/orders/4711.json since 09:14; do not ship it before noon. "
            round_ = memory.create_round("And what does the log say?")
            memory.add_post(round_, send_from="User", send_to=ROLE, message=line * (post // len(line)))
    config = CompactorConfig(summarizer_input_tokens=input_tokens, target_tokens=1_000)
    compactor = ContextCompactor.for_role(memory, ROLE, config, summarized)
    steps = Steps()
    gc.collect()
    gc.disable()  # told of apart
    threading.setprofile(steps)  # of threads that start from now on: the compactor's
    try:
        made = compactor.compact_now(timeout=600)
    finally:
        threading.setprofile(None)
        gc.enable()
        compactor.stop(60)
    assert made is not None
    return steps.longest * 1_000


def control(pause: float, turns: int) -> tuple[float, list[float]]:
    """Return the CPU of one ``json.dumps`` in a row of many, and of each after a *pause*, sorted, in milliseconds."""
    message = {"role": "user", "content": QUESTION}
    taken: list[float] = []
    for wait in (0.0, pause):
        warm, taken = statistics.median(taken or [0.0]), []
        for _ in range(turns):
            if wait:
                time.sleep(wait)
            began = time.thread_time()
            json.dumps(message)
            taken.append((time.thread_time() - began) * 1_000)
    return warm, sorted(taken)


def row(found: Turns, base: Turns) -> str:
    wall, chat = sorted(found.wall), sorted(found.own)
    cpu, own = statistics.median(found.cpu), statistics.median(found.own)
    times = [cpu, own, chat[len(chat) * 99 // 100], statistics.median(wall), wall[len(wall) * 99 // 100], wall[-1]]
    ratio = cpu / statistics.median(base.cpu)
    cells = [f"{found.at:,}", *(f"{value:.2f} ms" for value in times), f"{ratio:.2f}", f"{found.collection:.0f} ms"]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, nargs="+", default=ROUNDS)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each turn")
    given = parser.parse_args(arguments)
    print(f"Python {platform.python_version()}, {given.turns} turns each; beside round 100, where that is measured.\n")
    print(
        "| at round | CPU of a turn | of it the chat's thread | p99 of that | turn, p50 | p99 | longest | CPU, ratio"
        " | collection |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    found = at_rounds(given.rounds, given.turns, given.pause)
    base = next((one for one in found if one.at == 100), found[0])
    for one in found:
        print(row(one, base), flush=True)
    if given.pause:
        warm, cold = control(given.pause, given.turns)
        after = f"after the pause {statistics.median(cold):.3f} ms, p99 {cold[len(cold) * 99 // 100]:.3f} ms"
        print(f"\nWhat the pause alone costs: one json.dumps takes {warm:.3f} ms of CPU in a row of many, {after}.")
    print("\n| compacted on the compactor's thread | longest step that holds Python's lock |\n|---|--:|")
    for name, post in ((f"{INPUT_TOKENS:,} tokens", 0), (f"and a post of {LONGEST_POST:,} characters", LONGEST_POST)):
        print(f"| {name} | {min(held(post) for _ in range(TIMES)):.1f} ms |", flush=True)
    print(
        f"\nAnother thread waits as long at most, and {sys.getswitchinterval() * 1_000:g} ms: Python's switch interval."
    )


if __name__ == "__main__":
    main()
