"""What thousands of sessions with two agents each cost in one process: memory, time, threads, and who waits how long.

All compactors share one executor and one ``Limits``, and all of them are due at once, which is the worst there is. Each
size is measured in a process of its own. Prints a table in Markdown.

    python -m benchmarks.many_sessions [--sessions 1000 10000] [--threads 8] [--max-concurrency 4] [--latency 0.01]
    python -m benchmarks.many_sessions --rounds 50000    # instead, the memory of one long session beside its text
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.long_session import text
from compactor import (
    CompactorConfig,
    ContextCompactor,
    Evaluated,
    Limits,
    Published,
    Skip,
    Skipped,
    Started,
    SummaryRequest,
)
from memory import Event, Memory

ROLES = ("Planner", "CodeInterpreter")
CONFIG = CompactorConfig(threshold=2, retain_recent=1)
#: A session has so many rounds of four posts, and as many more in the second wave.
ROUNDS = 4
#: Of so many sessions one is busy: it is due again as soon as it was compacted, until all others were.
ONE_IS_BUSY = 1_000
#: Sent to each compactor while it runs or waits.
NOTIFICATIONS = 100
#: So many sessions get those.
NOTIFIED = 100
#: Long enough for any machine, in seconds.
LONG = 3_600.0

QUESTION = "What became of order {0}-{1}? It was to be delivered to 12 Elm Street on 2024-05-{1:02}. "
TASK = "Look up order {0}-{1} and say where it is now. " * 2
RESULT = "Order {0}-{1}: handed to the carrier at 14:{1:02}, on its way. " * 4
ANSWER = "Order {0}-{1} was handed to the carrier at 14:{1:02} and is expected tomorrow before noon. "


def add_rounds(memory: Memory, session: int, count: int = ROUNDS) -> None:
    first = len(memory.conversation.rounds)
    for number in range(first, first + count):
        query = QUESTION.format(session, number)
        round_ = memory.create_round(query)
        memory.add_post(round_, send_from="User", send_to="Planner", message=query)
        memory.add_post(round_, send_from="Planner", send_to="CodeInterpreter", message=TASK.format(session, number))
        memory.add_post(round_, send_from="CodeInterpreter", send_to="Planner", message=RESULT.format(session, number))
        memory.add_post(round_, send_from="Planner", send_to="User", message=ANSWER.format(session, number))
        memory.finish_round(round_)


class Model:
    """Answers after *latency* seconds, and counts what is in flight."""

    def __init__(self, latency: float) -> None:
        self._latency = latency
        self._lock = threading.Lock()  # guards the counts
        self.calls = self.in_flight = self.most_in_flight = self.most_threads = 0
        self.open = threading.Event()
        self.open.set()

    def __call__(self, request: SummaryRequest) -> str:
        with self._lock:
            self.calls += 1
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.most_threads = max(self.most_threads, threading.active_count())
        try:
            self.open.wait()
            time.sleep(self._latency)
            return f"Orders up to round {request.end_index} are on their way; all are expected tomorrow before noon."
        finally:
            with self._lock:
                self.in_flight -= 1


class Wave:
    """Everybody's way through the line: who came when, and who was served when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below it
        self._came: dict[int, tuple[int, float]] = {}
        self._places = 0
        self.served: list[tuple[int, float]] = []
        self.evaluations: dict[int, int] = {}
        self.compacted: dict[int, int] = {}

    def heard(self, who: int, event: Event) -> None:
        now = time.perf_counter()
        with self._lock:
            if isinstance(event, Skipped) and event.reason is Skip.LIMITED:
                self._came[who], self._places = (self._places, now), self._places + 1
            elif isinstance(event, Started) and who in self._came:
                place, since = self._came.pop(who)
                self.served.append((place, now - since))
            elif isinstance(event, Published):
                self.compacted[who] = self.compacted.get(who, 0) + 1
            elif isinstance(event, Evaluated):
                self.evaluations[who] = self.evaluations.get(who, 0) + 1

    def most_passed(self) -> int:
        """Return by how many who came later one was passed at most."""
        seen: list[int] = []
        most = 0
        for place, _ in self.served:
            most = max(most, len(seen) - bisect_left(seen, place))
            insort(seen, place)
        return most


@dataclass(frozen=True, slots=True)
class Measured:
    """One size."""

    sessions: int
    #: Resident memory of the process, in MiB: with nothing, with the sessions, with compactors, with all compacted.
    empty: float
    with_sessions: float
    with_compactors: float
    compacted: float
    #: To start all, to notify all, and the slowest single notification; while all workers are busy.
    start_seconds: float
    notify_seconds: float
    notify_slowest: float
    #: Until all were compacted, and how long one waited in the line.
    all_seconds: float
    median_wait: float
    longest_wait: float
    #: By how many others, who came later, one was passed at most.
    passed: int
    #: How often a busy session was compacted until all others were once; 0 where there is none.
    busy_turns: int
    #: Model calls, and how many of them at once.
    calls: int
    calls_at_once: int
    threads: int
    #: Looks of one compactor at most that was notified so often while it ran or waited.
    evaluations: int
    stop_seconds: float


def measure(sessions: int, threads: int, max_concurrency: int, latency: float) -> Measured:
    _one(latency=0.0)  # what is loaded once belongs to no session
    empty, model, limits = resident(), Model(latency), Limits(max_concurrency)
    memories = [Memory(f"session-{number}") for number in range(sessions)]
    for number, memory in enumerate(memories):
        add_rounds(memory, number)
    with_sessions = resident()
    with ThreadPoolExecutor(threads) as pool:
        compactors = [
            ContextCompactor.for_role(memory, role, CONFIG, model, executor=pool, limits=limits)
            for memory in memories
            for role in ROLES
        ]
        with_compactors = resident()
        first, forget = _watched(compactors, busy={n: memories[n] for n in range(0, sessions - 1, ONE_IS_BUSY)})
        begin = _hold(pool, threads)
        start_seconds = _seconds(lambda: [compactor.start() for compactor in compactors])
        slowest = [_seconds(compactor.notify_rounds_changed) for compactor in compactors]
        all_seconds = _seconds(lambda: (begin(), _settle(compactors)))
        assert all(compactor.get_compaction() for compactor in compactors), "one was not compacted"
        after = resident()
        forget()
        second = _notified(compactors[: 2 * NOTIFIED], memories[:NOTIFIED], model)
        stop_seconds = _seconds(lambda: [compactor.stop() for compactor in compactors])
    waits = sorted(seconds for _, seconds in first.served) or [0.0]
    busy = [turns for who, turns in first.compacted.items() if (who // 2) % ONE_IS_BUSY == 0]
    return Measured(
        sessions,
        *(size / 2**20 for size in (empty, with_sessions, with_compactors, after)),
        start_seconds,
        sum(slowest),
        max(slowest),
        all_seconds,
        waits[len(waits) // 2],
        waits[-1],
        first.most_passed(),
        max(busy, default=0),
        model.calls,
        model.most_in_flight,
        model.most_threads - 1,
        max(second.evaluations.values()),
        stop_seconds,
    )


def _one(latency: float) -> None:
    memory = Memory("the first")
    add_rounds(memory, 0)
    pool = ThreadPoolExecutor(1)
    with pool, ContextCompactor.for_role(memory, ROLES[0], CONFIG, Model(latency), executor=pool) as compactor:
        compactor.compact_now(LONG)  # on a thread that ends with it


def _watched(compactors: Sequence[ContextCompactor], busy: dict[int, Memory]) -> tuple[Wave, Callable[[], object]]:
    """Return what is heard of all from now on, until the other is called; sessions that are *busy* go on as soon as
    they were compacted."""
    wave = Wave()
    everybody = len(compactors)

    def listen(who: int) -> Callable[[Event], None]:
        memory = busy.get(who // 2)

        def heard(event: Event) -> None:
            wave.heard(who, event)
            if memory is not None and isinstance(event, Published) and len(wave.compacted) < everybody:
                add_rounds(memory, who // 2)

        return heard

    forget = [compactor.on_event(listen(who)) for who, compactor in enumerate(compactors)]
    return wave, lambda: [one() for one in forget]


def _notified(compactors: Sequence[ContextCompactor], memories: Sequence[Memory], model: Model) -> Wave:
    """Let more happen to all of them while the model does not answer; return what was heard of it."""
    model.open.clear()
    for number, memory in enumerate(memories):
        add_rounds(memory, number)
    wave, _ = _watched(compactors, {})
    for compactor in compactors:
        for _ in range(NOTIFICATIONS):
            compactor.notify_rounds_changed()
    model.open.set()
    _settle(compactors)
    return wave


def _hold(pool: ThreadPoolExecutor, threads: int) -> Callable[[], None]:
    """Keep all workers busy until what is returned is called."""
    begin = threading.Event()
    for _ in range(threads):
        pool.submit(begin.wait)
    return begin.set


def _settle(compactors: Sequence[ContextCompactor]) -> None:
    for compactor in compactors:
        assert compactor.wait_idle(LONG), compactor.status()


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def resident() -> int:
    """Return the bytes of memory that the process has now; where the system does not tell, the most that it had."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if statm.exists():
        import resource

        return int(statm.read_text().split()[1]) * resource.getpagesize()
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1_024)


def print_long(rounds: int) -> None:
    """Print what a session of so many *rounds* takes, of messages of 100 words, and with results of tools."""
    print("| a session in memory | text | memory | memory / text | full collection | reading an old round |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, results in (("chat", False), ("with results of 2 to 10 KB", True)):
        long = measure_long(rounds // 5 if results else rounds, results=results)
        sizes = f"{long.said / 2**20:.1f} MiB | {long.held / 2**20:.1f} MiB | {long.held / long.said:.2f}"
        took = f"{long.collection * 1e3:.0f} ms | {long.read * 1e6:.0f} µs"
        print(f"| {name}, {long.rounds:,} rounds | {sizes} | {took} |")


class Long(NamedTuple):
    """A long session in memory: its text and what it takes, in bytes; in seconds, a full collection and the reading of
    an old round."""

    rounds: int
    said: int
    held: int
    collection: float
    read: float


def measure_long(rounds: int, *, results: bool) -> Long:
    rng, memory, said = random.Random(7), Memory(), 0
    for message in talk(rng, 10, results=results):  # what is loaded once belongs to no session
        memory.append(message)
    memory, before = Memory(), resident()
    for message in talk(rng, rounds, results=results):
        said += len(str(message["content"]).encode())
        memory.append(message)
    held = resident() - before
    old, collections = memory.conversation.rounds, []
    for _ in range(5):
        began = time.process_time()
        gc.collect()
        collections.append(time.process_time() - began)
    began = time.process_time()
    assert all(round_.post_list for round_ in old)
    return Long(len(old), said, held, min(collections), (time.process_time() - began) / len(old))


def talk(rng: random.Random, rounds: int, *, results: bool) -> Iterator[dict[str, Any]]:
    for number in range(rounds):
        yield {"role": "user", "content": text(rng, 100)}
        if results:
            call = {"id": f"call_{number}", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
            yield {"role": "assistant", "content": "", "tool_calls": [call]}
            yield {"role": "tool", "tool_call_id": f"call_{number}", "content": text(rng, rng.randint(300, 1_500))}
        yield {"role": "assistant", "content": text(rng, 100)}


def rows(measured: Sequence[Measured]) -> list[list[str]]:
    def row(name: str, show: Callable[[Measured], str]) -> list[str]:
        return [name, *map(show, measured)]

    return [
        ["", *(f"{it.sessions:,} sessions" for it in measured)],
        row("memory, all compacted", lambda it: f"{it.compacted:,.0f} MiB"),
        row("a session's log", lambda it: f"{(it.with_sessions - it.empty) * 1_024 / it.sessions:,.0f} KiB"),
        row("a compactor", lambda it: f"{(it.with_compactors - it.with_sessions) * 512 / it.sessions:,.1f} KiB"),
        row(
            "what a compactor adds when it compacts",
            lambda it: f"{(it.compacted - it.with_compactors) * 512 / it.sessions:,.1f} KiB",
        ),
        row("starting all", lambda it: f"{it.start_seconds:.2f} s"),
        row("notifying all", lambda it: f"{it.notify_seconds:.2f} s"),
        row("slowest notification", lambda it: f"{it.notify_slowest * 1_000:.2f} ms"),
        row("all compacted after", lambda it: f"{it.all_seconds:.1f} s"),
        row("in the queue, median", lambda it: f"{it.median_wait:.1f} s"),
        row("in the queue, longest", lambda it: f"{it.longest_wait:.1f} s"),
        row("passed by at most", lambda it: f"{it.passed}"),
        row("turns of a busy one until all had one", lambda it: f"{it.busy_turns}"),
        row("model calls", lambda it: f"{it.calls:,}"),
        row("of them at once, at most", lambda it: f"{it.calls_at_once}"),
        row("threads", lambda it: f"{it.threads}"),
        row(f"evaluations for {NOTIFICATIONS} notifications, at most", lambda it: f"{it.evaluations}"),
        row("stopping all", lambda it: f"{it.stop_seconds:.2f} s"),
    ]


def print_table(measured: Sequence[Measured]) -> None:
    head, *body = rows(measured)
    print("| " + " | ".join(head) + " |")
    print("|---" + "|--:" * len(measured) + "|")
    for row in body:
        print("| " + " | ".join(row) + " |")


def in_a_process(sessions: int, arguments: argparse.Namespace) -> Measured:
    command = [sys.executable, "-m", "benchmarks.many_sessions", "--one", str(sessions)]
    for name in ("threads", "max_concurrency", "latency"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603  (ourselves)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Measured(**json.loads(done.stdout))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--threads", type=int, default=8, help="of the executor")
    parser.add_argument("--max-concurrency", type=int, default=4, help="model calls at once")
    parser.add_argument("--latency", type=float, default=0.01, help="of the model, in seconds")
    parser.add_argument("--rounds", type=int, help="measure one session of so many rounds instead")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.rounds is not None:
        print_long(arguments.rounds)
        return
    if arguments.one is not None:
        one = measure(arguments.one, arguments.threads, arguments.max_concurrency, arguments.latency)
        print(json.dumps({name: getattr(one, name) for name in Measured.__slots__}))
        return
    print_table([in_a_process(sessions, arguments) for sessions in arguments.sessions])


if __name__ == "__main__":
    main()
