"""What an adapter adds to a turn of an agent, and what it spares the model.

For each framework that is installed, the application of the adapter's own tests twice, turn by turn: as it is, and with
the adapter. Prints as a table in Markdown: whether all answers are the same, the characters that the model read, and
how much longer a turn takes with the adapter. Says on stderr which frameworks are not installed. The model is scripted
and takes no time; after each turn, unmeasured, the compactor finishes. CPU time is that of the process; on a busy
machine, the wall clock also counts waiting for a core.

    python -m benchmarks.adapters [--turns 100] [--runs 3]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compactor.integrations.contract import BUDGET, TIMEOUT, ask
from compactor.testing import AdapterContract, summarize_by_terms

TESTS = Path(__file__).parents[1] / "tests/compactor/integrations"
#: What a framework is imported by, its distribution, and the file of its tests.
FRAMEWORKS = {
    "langchain": ("langchain", "langchain"),
    "agents": ("openai-agents", "openai_agents"),
    "pydantic_ai": ("pydantic-ai-slim", "pydantic_ai"),
    "google.adk": ("google-adk", "google_adk"),
    "strands": ("strands-agents", "strands"),
    "agent_framework": ("agent-framework-core", "agent_framework"),
    "llama_index.core": ("llama-index-core", "llama_index"),
    "autogen_agentchat": ("autogen-agentchat", "autogen"),
    "anthropic": ("anthropic", "anthropic"),
}


async def measure(application: AdapterContract, turns: int) -> dict[str, Any]:
    """Return what a conversation of *turns* gave: both sides answer the same question, in alternating order."""
    plain = application.make_host(None)
    seconds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    same = True
    with application.make_compaction(budget=BUDGET, summarizer=summarize_by_terms) as compaction:
        hosts = {False: plain, True: application.make_host(compaction)}
        for number in range(turns):
            said = {}
            for ours in (False, True) if number % 2 else (True, False):
                begun = time.process_time(), time.perf_counter()
                said[ours] = await hosts[ours].say("s", ask(number))
                ended = time.process_time(), time.perf_counter()
                seconds[ours].append((ended[0] - begun[0], ended[1] - begun[1]))
            same = same and said[False] == said[True]
            with compaction.sessions().open("s") as session:
                await asyncio.to_thread(session.compactor.wait_idle, TIMEOUT)
    read = {
        ours: sum(len(host.read_text(message)) for seen in host.seen for message in seen)
        for ours, host in hosts.items()
    }
    return {"same": same, "read": read, "seconds": seconds}


def find_applications() -> Iterator[tuple[str, AdapterContract]]:
    """Yield the frameworks that are installed, with the application of their tests."""
    sys.path.insert(0, str(TESTS))
    for module, (distribution, file) in FRAMEWORKS.items():
        if not is_installed(module):
            print(f"{distribution} is not installed", file=sys.stderr)
            continue
        tests = importlib.import_module(f"test_{file}")
        contracts = [
            one
            for one in vars(tests).values()
            if isinstance(one, type) and issubclass(one, AdapterContract) and one is not AdapterContract
        ]
        for contract in contracts[:1]:
            yield f"{distribution} {version(distribution)}", contract()


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def percentile(ascending: list[float], part: float) -> float:
    return ascending[int(part * (len(ascending) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if not any(map(is_installed, FRAMEWORKS)):
        parser.error(f"no framework is installed: {', '.join(one for one, _ in FRAMEWORKS.values())}")
    print(
        "| framework | same answers | characters read, alone | with us | CPU of a turn, alone | with us |"
        " more, median | more, p99 | wall clock: more, median | more, p99 |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, application in find_applications():
        runs = []
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as folder:
                application._path = Path(folder)
                if not runs:
                    asyncio.run(measure(application, 5))  # loads what a process loads once
                runs.append(asyncio.run(measure(application, options.turns)))
        same = all(run["same"] for run in runs)
        read = runs[0]["read"]
        seconds = {ours: [one for run in runs for one in run["seconds"][ours]] for ours in (False, True)}
        cells = []
        for clock in (0, 1):
            alone, ours = (sorted(one[clock] * 1000 for one in seconds[side]) for side in (False, True))
            if clock == 0:
                cells += [f"{statistics.median(alone):.1f} ms", f"{statistics.median(ours):.1f} ms"]
            cells += [f"{statistics.median(ours) - statistics.median(alone):+.1f} ms"]
            cells += [f"{percentile(ours, 0.99) - percentile(alone, 0.99):+.1f} ms"]
        row = [name, "yes" if same else "NO", f"{read[False]:,}", f"{read[True]:,}", *cells]
        print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
