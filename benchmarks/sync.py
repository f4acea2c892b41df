"""What ``Memory.sync`` costs a host that gives its whole history before each prompt.

Prints the CPU time of one call as a table in Markdown: the median, the shortest, which other programs on the machine
lengthen least, and the shortest beside that of ``json.dumps`` of the same history. A quarter of the messages call
tools. Then the memory that a Memory takes for it, beside its log and the host's list.

    python -m benchmarks.sync [--messages 10000]
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from compactor import Memory, open_store

Message = dict[str, Any]
MEASURED = 15


def make_history(messages: int) -> list[Message]:
    """Return a system message, and turns of a question, a call, its result and an answer: at least so many messages."""
    history: list[Message] = [{"role": "system", "content": "You answer questions about orders."}]
    for number in itertools.count():
        if len(history) >= messages:
            return history
        function = {"name": "read_order", "arguments": json.dumps({"order": number, "with_history": True})}
        call = {"id": f"call-{number}", "type": "function", "function": function}
        history += [
            {"role": "user", "content": f"Where is order {number}, and when does it come? " + "I wait for it. " * 10},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": f"Order {number} was handed to the carrier. " * 12},
            {"role": "assistant", "content": f"Order {number} is on its way. " * 8},
        ]


def measure(
    act: Callable[[Any], object], prepare: Callable[[], object] = lambda: None, times: int = MEASURED
) -> list[float]:
    """Return the milliseconds of CPU that *act* took on what *prepare* gave, in ascending order."""
    took = []
    for _ in range(times):
        given = prepare()
        began = time.process_time_ns()
        act(given)
        took.append((time.process_time_ns() - began) / 1e6)
    return sorted(took)


def count_bytes(history: list[Message]) -> int:
    """Return the bytes that a Memory takes to know what the host gave, for each message."""
    memory = Memory()
    memory.extend(history)
    tracemalloc.start()
    memory.sync(history)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(taken / len(history))


def rows(messages: int, folder: Path) -> list[tuple[str, list[float]]]:
    history = make_history(messages)
    memory, again = Memory("s"), Memory("again")
    memory.sync(history)
    again.sync(copy.deepcopy(history))
    growing, numbers = list(history), itertools.count()

    def add_one() -> list[Message]:
        growing.append({"role": ("user", "assistant")[len(growing) % 2], "content": f"And so on, {next(numbers)}."})
        return growing

    grown = Memory("grown")
    grown.sync(growing)
    branches = itertools.cycle(([*history[:-5], *make_history(9)[-4:]], history))
    window = history[len(history) // 2 :]
    with closing(open_store(f"sqlite:///{(folder / 'sync.db').as_posix()}")) as store:
        Memory("s", store=store).sync(history)
        return [
            ("`json.dumps`, to compare with", measure(json.dumps, lambda: history)),
            ("the same objects", measure(memory.sync, lambda: history)),
            ("the same objects and a new one", measure(grown.sync, add_one)),
            ("equal objects", measure(again.sync, lambda: copy.deepcopy(history))),
            (
                "the same objects, with `verify`",
                measure(lambda given: memory.sync(given, verify=True), lambda: history),
            ),
            ("the newer half alone", measure(memory.sync, lambda: window)),
            ("the last turn in other words", measure(memory.sync, lambda: next(branches))),
            ("a new session", measure(lambda one: one.sync(history), Memory, 3)),
            ("after a restart on SQLite", measure(lambda one: one.sync(history), lambda: Memory("s", store=store), 3)),
        ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    messages = parser.parse_args(arguments).messages
    with tempfile.TemporaryDirectory() as folder:
        measured = rows(messages, Path(folder))
    control = measured[0][1][0] or 1e-3
    print(f"| a history of {messages:,} messages | median | shortest | of `json.dumps` |")
    print("|---|--:|--:|--:|")
    for name, took in measured:
        print(f"| {name} | {statistics.median(took):.2f} ms | {took[0]:.2f} ms | {took[0] / control:.3f} |")
    print(f"\n{count_bytes(make_history(messages))} bytes for each message, beside the log and the host's list")


if __name__ == "__main__":
    main()
