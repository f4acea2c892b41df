"""What the library aims at, beside what is measured: the first turn, and the turn that is rare.

    python -m benchmarks.aims
    python -m benchmarks.aims --tree OTHER_CHECKOUT    # that one's in the next column

Each measurement is a process of its own; columns take turns, and the figures are medians. What is measured is the same
for all of them, by this checkout's code: if it uses what another one lacks, the cell stays empty. Prints a table in
Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.cold_start import LIBRARIES, NAMES, ROOT, measure

#: Rows of ``cold_start``, and what each aims at. The first tells how fast the machine is just now.
COLD = {
    f"`{LIBRARIES}`": "in ms of CPU",
    "`import compactor`": "≤ 120 ms of CPU",
    f"`{NAMES}`": "in ms of CPU",
    "the first prompt, of two messages": "≤ 250 ms of CPU",
}
#: Code that extracts from ten rounds of a chat, 40 times.
EXTRACTS = """
import time
from benchmarks.comparison.conversations import chat
from compactor.summarizers import ExtractiveSummarizer, SummaryRequest
from memory import Memory
memory = Memory()
for step in (step for turn in chat(500).turns for step in turn):
    for message in (*step["new"], step["answer"]):
        memory.append(message)
rounds = memory.conversation.rounds
parts = [tuple(rounds[start : start + 10]) for start in range(0, 500, 10)]
requests = [SummaryRequest(rounds=part, end_index=10, target_tokens=1_000) for part in parts]
def rate(extract):
    for request in requests[:10]:  # by then, what is loaded once is loaded
        extract(request)
    began = time.process_time()
    for request in requests[10:]:
        extract(request)
    return 40 / (time.process_time() - began)
"""
#: Code that prints a list of figures as JSON, and these figures with what each aims at.
WARM = {
    """
from statistics import median
from benchmarks.open_round import BUDGETS, measure
figures = [median(measure(calls, BUDGETS[0], reduced=False)) for calls in (1_000, 2_000)]
""": {
        "a prompt in an open round of 1,000 calls": "in ms of CPU",
        "of 2,000 calls": "≤ 2 ms of CPU",
    },
    """
from benchmarks.many_sessions import measure_long
long = measure_long(50_000, results=False)
figures = [long.collection * 1e3, long.held / long.said]
""": {
        "a full collection, 50,000 rounds in memory": "≤ 40 ms of CPU",
        "memory of these rounds, by their text": "≤ 1.6",
    },
    """
import tempfile
from pathlib import Path
from statistics import median
from benchmarks import durable_append as bench
log = list(bench.entries_of(1_000))
with (
    tempfile.TemporaryDirectory() as folder,
    bench.opened(f"sqlite:///{folder}/log.db?synchronous=full") as store,
    bench.bare_sqlite(Path(folder, "bare.db"), "full", log) as insert,
):
    (found,) = bench.measured(store, insert, log, 500, [300])
ours, bare = found["`add_post`"], found[bench.BARE]
figures = [median(ours.cpu) * 1e3, median(ours.wall) / median(bare.wall)]
""": {
        "a durable append to SQLite": "≤ 0.25 ms of CPU",
        "its time, by that of a bare insert and commit": "≤ 1.1",
    },
    EXTRACTS + "figures = [rate(ExtractiveSummarizer())]": {"extracts of ten rounds, in a second of CPU": "≥ 200"},
    EXTRACTS
    + """
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(1) as pool:
    figures = [rate(ExtractiveSummarizer(executor=pool))]
""": {"or on a process pool, in a second of the chat's process": "≥ 200"},
    """
from benchmarks.host_path import at_rounds
(found,) = at_rounds([1_000], 300, 0.03)
figures = [sorted(found.own)[len(found.own) * 99 // 100]]
""": {"a turn behind 30 ms of pause, p99": "< 1 ms of CPU"},
}


def run(code: str, tree: Path) -> list[float]:
    """Return what *code* finds with the packages of *tree* and the benchmarks of this checkout; nothing if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        for home, names in ((tree, ("memory", "prompts", "compactor")), (ROOT, ("benchmarks",))):
            for name in names:
                Path(folder, name).symlink_to(home / name)
        done = subprocess.run(  # noqa: S603  (our own)
            [sys.executable, "-c", f"{code}\nimport json; print(json.dumps(figures))"],
            env=os.environ | {"PYTHONPATH": folder},
            cwd=folder,
            capture_output=True,
            check=False,
        )
    figures: list[float] = json.loads(done.stdout) if done.returncode == 0 else []
    return figures


def figures_of(tree: Path) -> Iterator[tuple[str, float]]:
    """Give each figure, measured once."""
    for row in COLD:
        yield row, measure(row, tree)[0]
    for code, names in WARM.items():
        yield from zip(names, run(code, tree), strict=False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout to measure")
    parser.add_argument("--times", type=int, default=5, help="processes for each figure")
    given = parser.parse_args(arguments)
    trees = [ROOT, *(tree.resolve() for tree in given.tree)]
    if wrong := next((tree for tree in trees if not (tree / "compactor").is_dir()), None):
        parser.error(f"{wrong} is no checkout")
    found: dict[tuple[str, Path], list[float]] = {}
    for _ in range(given.times):
        for tree in trees:
            for name, figure in figures_of(tree):
                found.setdefault((name, tree), []).append(figure)
    print("| | aim | measured |" + "".join(f" {tree.name} |" for tree in trees[1:]))
    print("|---|--:|--:|" + "--:|" * len(trees[1:]))
    for name, aim in {**COLD, **{name: aim for names in WARM.values() for name, aim in names.items()}}.items():
        cells = [f"{median(found[name, tree]):.3g}" if (name, tree) in found else "" for tree in trees]
        print(f"| {name} | {aim} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
