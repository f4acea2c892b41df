"""What it takes to open a long session and to go on in it, beside reading all of it.

    python -m benchmarks.opening                                    # SQLite, in a temporary folder
    python -m benchmarks.opening --postgres                         # a PostgreSQL server of its own
    python -m benchmarks.opening --store sqlite:///long.db          # kept; built where it is not there yet

Each row is a process of its own, in which a session of a few rounds was used before: so what Python and the libraries
take is not counted. The memory is what the process has at its peak (Linux alone), and what Python counts at its peak
(by tracemalloc, in another process, for it makes everything slow). Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.long_session import ROLE, WORDS, build
from benchmarks.sessions import Plain, opened, server
from compactor import compose
from memory import Memory, Store

SESSION, SMALL = "long", "small"
BUDGET = 8_000


def add_round(memory: Memory) -> None:
    round_ = memory.create_round("And now?")
    for sender, receiver in (("User", ROLE), (ROLE, "User"), ("User", ROLE)):
        memory.add_post(round_, send_from=sender, send_to=receiver, message="We go on.")
    memory.finish_round(round_)


Act = Callable[[Memory], object]
#: What is done in a Memory that is open already.
ACTS: dict[str, Act] = {
    "`rounds[17]`": lambda memory: memory.conversation.rounds[17],
    "the first `compose`": lambda memory: compose(memory, ROLE, budget=BUDGET),
    "a round of three posts": add_round,
    "every round, one by one": lambda memory: sum(len(one.post_list) for one in memory.conversation.rounds),
    "`index_texts`, once": lambda memory: memory.index_texts(),
    "a search": lambda memory: memory.search(WORDS[17], role=ROLE),
    "a search for a case": lambda memory: memory.search("case 777", role=ROLE),
}
FIRST, OPEN, WHOLE = "opening it for the first time, without a checkpoint", "opening it", "reading everything"
ROWS = (FIRST, OPEN, *ACTS, WHOLE)


def measure(row: str, store: Store, *, trace: bool) -> dict[str, float]:
    """Do what *row* says, and return the seconds and megabytes that it took; for a process in which nothing else is."""
    for act in ACTS.values():  # loads whatever is loaded once
        act(Memory(SMALL, store=store))
    if trace:
        tracemalloc.start()
    memory = None if row in (FIRST, OPEN, WHOLE) else Memory(SESSION, store=store)
    traced = tracemalloc.get_traced_memory()[0]
    if trace:
        tracemalloc.reset_peak()
    before, began = peak(anew=True), time.perf_counter()
    if memory is not None:
        ACTS[row](memory)
    else:
        memory = Memory(SESSION, store=Plain(store) if row == WHOLE else store)
    seconds = time.perf_counter() - began
    resident, traced = peak() - before, (tracemalloc.get_traced_memory()[1] - traced) / 1e6
    return {"seconds": seconds, "resident": resident, "traced": traced, "rounds": memory.snapshot.total}


def peak(*, anew: bool = False) -> float:
    """Return the most megabytes that this process had in memory, since it was asked *anew*; 0 where it is not Linux."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    if anew:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    (line,) = (line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


def in_a_process(row: str, url: str, *, trace: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.opening", "--store", url, "--measure", row]
    done = subprocess.run(  # noqa: S603  (our own)
        [*command, "--trace"] if trace else command,
        cwd=Path(__file__).resolve().parent.parent,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def table(url: str, rounds: int, chosen: Sequence[str]) -> Iterator[str]:
    """Give the table's rows, of a session of so many rounds that is built where it is not there yet."""
    with opened(url) as store:
        known = store.sessions()
        if SMALL not in known:
            build(store, SMALL, 20)
        if SESSION not in known:
            build(store, SESSION, rounds)
    for row in chosen:
        found = in_a_process(row, url, trace=False)
        assert found["rounds"] >= rounds, f"there is a session of {found['rounds']} rounds; name another store"
        # The first opening is only once the first.
        traced = "" if row == FIRST else f"{in_a_process(row, url, trace=True)['traced']:.1f}"
        yield f"| {row} | {found['seconds'] * 1_000:,.1f} | {found['resident']:.1f} | {traced} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", metavar="URL", help="where the session is, or will be")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server that is started for it")
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="these alone")
    parser.add_argument("--measure", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        if given.store:
            url = given.store
        elif given.postgres:
            url = stack.enter_context(server()).url()
        else:
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/long.db"
        if given.measure:
            print(json.dumps(measure(given.measure, stack.enter_context(opened(url)), trace=given.trace)))
            return
        print("| | ms | MB at the peak | MB as Python counts |\n|---|--:|--:|--:|")
        for row in table(url, given.rounds, given.rows):
            print(row, flush=True)


if __name__ == "__main__":
    main()
