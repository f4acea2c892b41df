"""What a prompt costs in a long open round: an agent that calls one tool after the other for one question.

After each call and its result a prompt is made. Prints the CPU time of the prompts behind so many calls, as a table in
Markdown: the median, and the shortest, which other programs on the machine lengthen least. ``--reduced``: all results
but the newest are offloaded.

    python -m benchmarks.open_round
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from compactor import Memory, Reduction, compose

CALLS = (250, 500, 1_000, 2_000, 4_000)
#: Tokens that a prompt may take; at the first, everything fits.
BUDGETS = (100_000_000, 32_000, 100_000)
#: Prompts that are measured, and calls between those that are not.
MEASURED, BETWEEN = 40, 20
ASKED = {"role": "user", "content": "Go through all orders, and tell me at the end which of them are late."}
RESULT = "Line {0} of the file says that order {0} was handed to the carrier, and is expected tomorrow. " * 6


def add_call(memory: Memory, number: int) -> None:
    function = {"name": "read_file", "arguments": json.dumps({"path": f"/srv/orders/{number}.txt"})}
    call = {"id": f"call-{number}", "type": "function", "function": function}
    memory.append({"role": "assistant", "content": None, "tool_calls": [call]})
    memory.append({"role": "tool", "tool_call_id": call["id"], "content": RESULT.format(number)})


def offload(memory: Memory) -> None:
    """Publish a reduction of each result but the newest."""
    round_, journal = memory.conversation.rounds[-1], memory.journal("assistant")
    base = journal.read().generation
    for post in round_.post_list[:-20]:
        if post.tool_call_id is not None:
            journal.reduce(Reduction.over(round_, [post], "offloaded", "[Left out; it can be read again.]"), base=base)


def measure(calls: int, budget: int, *, reduced: bool) -> list[float]:
    """Return the milliseconds of CPU that prompts behind so many *calls* took, in ascending order."""
    memory, times = Memory(), list[float]()
    memory.append(ASKED)
    for number in range(calls + MEASURED):
        if number == calls and reduced:
            offload(memory)
            compose(memory, budget=budget)
        add_call(memory, number)
        if number >= calls or number % BETWEEN == 0:
            began = time.process_time_ns()
            compose(memory, budget=budget)
            times.append((time.process_time_ns() - began) / 1e6)
    return sorted(times[-MEASURED:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reduced", action="store_true")
    reduced = parser.parse_args().reduced
    print("| calls | " + " | ".join("all fits" if one == BUDGETS[0] else f"budget {one:,}" for one in BUDGETS) + " |")
    print("|---|" + "---|" * len(BUDGETS))
    for calls in CALLS:
        cells = []
        for budget in BUDGETS:
            times = measure(calls, budget, reduced=reduced)
            cells.append(f"{statistics.median(times):.2f} ms ({times[0]:.2f})")
        print(f"| {calls:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
