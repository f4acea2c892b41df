"""What a process pays before its first prompt, beside the import of libraries that it needs anyway.

    python -m benchmarks.cold_start
    python -m benchmarks.cold_start --tree OTHER_CHECKOUT    # that one's in the next column

Each measurement is a process of its own; columns take turns. The milliseconds are medians of CPU time, of all threads.
The memory is what the process has at its peak. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent

LIBRARIES = "import openai, pydantic, sqlalchemy"
#: What the first program of the README imports.
NAMES = "from compactor import CompactorConfig, ContextCompactor, Memory, Prompt, compose"
#: What each row times, after the code that precedes it.
ROWS = {
    f"`{LIBRARIES}`": ("", LIBRARIES),
    "`import pydantic`, and one model": ("", "import pydantic; type('Model', (pydantic.BaseModel,), {})"),
    "`import compactor`": ("", "import compactor"),
    f"`{NAMES}`": ("", NAMES),
    "the first prompt, of two messages": (
        "from compactor import Memory, compose; memory = Memory();"
        " memory.append({'role': 'system', 'content': 'You are helpful.'});"
        " memory.append({'role': 'user', 'content': 'Where is order 48213-QX? ' * 10})",
        "compose(memory, budget=8_000)",
    ),
    "the first prompt, with a compactor at work": (
        "from compactor import ContextCompactor, Memory, compose; memory = Memory();"
        " ContextCompactor.for_role(memory, 'assistant').start()",
        "memory.append({'role': 'user', 'content': 'Where is order 48213-QX? ' * 10}); compose(memory, budget=8_000)",
    ),
}
MEASURE = """
import json, time
{before}
began = time.process_time()
{timed}
spent = time.process_time() - began
try:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
except ImportError:  # Windows
    peak = 0.0
print(json.dumps([spent * 1e3, peak]))
"""


def measure(row: str, tree: Path) -> tuple[float, float]:
    """Return the milliseconds and the peak megabytes of a new process in which *tree* is imported."""
    before, timed = ROWS[row]
    done = subprocess.run(  # noqa: S603  (our own)
        [sys.executable, "-c", MEASURE.format(before=before, timed=timed)],
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""},  # as where it is installed
        cwd=tree,
        stdout=subprocess.PIPE,
        check=True,
    )
    milliseconds, peak = json.loads(done.stdout)
    return milliseconds, peak


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout to measure")
    parser.add_argument("--times", type=int, default=9, help="processes for each figure")
    given = parser.parse_args(arguments)
    trees = [ROOT, *(tree.resolve() for tree in given.tree)]
    found: dict[tuple[str, Path], list[tuple[float, float]]] = {(row, tree): [] for row in ROWS for tree in trees}
    for place in range(given.times + 1):
        for (row, tree), figures in found.items():
            figure = measure(row, tree)
            if place:  # the first one writes the bytecode
                figures.append(figure)
    libraries = median(one for one, _ in found[next(iter(ROWS)), ROOT])
    names = ("", *(f", {tree.name}" for tree in trees[1:]))
    print("| | " + " | ".join(f"ms{name} | of the libraries | MB" for name in names) + " |")
    print("|---|" + "--:|--:|--:|" * len(trees))
    for row in ROWS:
        cells = []
        for tree in trees:
            spent, peak = (median(figures) for figures in zip(*found[row, tree], strict=True))
            cells.append(f"{spent:.0f} | {spent / libraries:.2f} | {peak:.0f}")
        print(f"| {row} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
