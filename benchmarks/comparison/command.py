"""What `benchmarks/run` does: plays every conversation to every adapter, and prints what came of it."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.quality import measured, tables

from .conversations import SCENARIOS, Absent, Scenario, chat
from .environments import PEERS, Unavailable, default_folder, made
from .money import LISTS
from .playing import Contender, Outcome, alone, played
from .plot import plotted
from .report import cpu_table, least_table, numbers, table
from .shapes import shape_of

__all__ = ["contenders", "main"]

BASELINE = "nothing"
#: What stands below it on the page is written by ``--docs``.
RESULTS = "## Results\n"
PICTURE = "\n![What 200 turns of chat cost, and how long the chat loop is held up](comparison.svg)\n"
#: Not adapters.
_PARTS = ("__init__",)
#: Turns at which the CPU of one is told, and of how many up to it that is the mean.
MARKS, WINDOW = (10, 100, 1_000, 10_000), 100
#: Scenarios beside those of ``SCENARIOS``.
CPU, QUALITY = "cpu", "quality"


def contenders(only: Sequence[str] = (), peers: Path = PEERS) -> list[tuple[str, str]]:
    """Return module and variant of every adapter, the controls and ours first; of *only*, where that names any."""
    names = sorted(file.stem for file in peers.glob("*.py") if file.stem not in _PARTS)
    first = [BASELINE, "sliding_window", "ours"]
    ordered = [name for name in first if name in names] + [name for name in names if name not in first]
    found = [(name, variant) for name in ordered for variant in _variants(name)]
    if not only:
        return found
    wanted = [one for one in found if one[0] in only or ":".join(one) in only]
    missing = set(only) - {name for name, _ in found} - {":".join(one) for one in found}
    if missing:
        raise SystemExit(f"no such adapter: {', '.join(sorted(missing))}; there are {', '.join(ordered)}")
    return wanted


def _variants(name: str) -> Iterable[str]:
    """Return the variants that an adapter's file has; most have one, without a name."""
    variants: Iterable[str] = getattr(importlib.import_module(f"benchmarks.peers.{name}"), "VARIANTS", ("",))
    return variants


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments, argparse.Namespace(shown=[]))
    results: dict[str, Any] = {"prices": [one.name for one in LISTS], "scenarios": {}}
    for name in options.scenarios:
        try:
            found = _OTHERS[name](options) if name in _OTHERS else _scenario(SCENARIOS[name](), options)
        except Absent as absent:
            _show(options, f"### {name}\n\nLeft out: {absent}.\n")
            continue
        results["scenarios"][name] = found
    if options.docs is not None:
        _write(options.docs, results, options.shown)
    return 0


def _show(options: argparse.Namespace, text: str) -> None:
    """Print *text*, and remember it for the page."""
    options.shown.append(text)
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description="Compare ways to hold a long conversation.")
    parser.add_argument("--scenarios", nargs="+", choices=_NAMES, default=_NAMES)
    parser.add_argument("--only", nargs="+", default=(), metavar="ADAPTER", help="such as: nothing ours langchain")
    parser.add_argument("--turns", type=int, help="play so many turns instead of all")
    parser.add_argument("--repeat", type=int, default=1, help="play so many times; of each turn, the shortest times")
    parser.add_argument("--timeout", type=float, default=1_800.0, help="seconds after which an adapter is given up")
    parser.add_argument("--environments", type=Path, default=default_folder(), metavar="FOLDER")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write results and a picture there")
    parser.add_argument("--marks", nargs="+", type=int, default=MARKS, help="turns at which CPU is measured")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for the turns that measure one's CPU")
    return parser


def _pythons(options: argparse.Namespace) -> Iterator[Contender]:
    """Give every adapter that can be run here, with its Python; say of the others why not."""
    for module, variant in contenders(options.only):
        try:
            yield Contender(module, variant, made(module, options.environments))
        except Unavailable as reason:
            print(f"{module} is left out: {reason}", file=sys.stderr, flush=True)


def _scenario(scenario: Scenario, options: argparse.Namespace) -> list[dict[str, Any]]:
    if options.turns is not None:
        scenario = replace(scenario, turns=scenario.turns[: options.turns])
    rows: list[dict[str, Any]] = []
    baseline = None
    for contender in _pythons(options):
        if contender.module == BASELINE and not scenario.fits:
            continue
        print(f"{scenario.name}: {contender.label}", file=sys.stderr, flush=True)
        try:
            outcome = _best_of(scenario, contender, options)
        except RuntimeError as error:
            print(f"{contender.label} did not end well: {error}", file=sys.stderr, flush=True)
            _show(options, f"{contender.label} did not end well in {scenario.name}.\n")
            continue
        if contender.module == BASELINE:
            baseline = outcome.costs
        rows.append({"label": contender.label} | numbers(scenario, outcome, baseline))
        if contender.module == "ours" and (met := shape_of(scenario, outcome)) is not None:
            rows[-1]["least"] = [met.told(one.prices) for one in LISTS]
    _show(options, table(scenario, rows))
    if any("least" in row for row in rows):
        _show(options, least_table(rows))
    return rows


def _best_of(scenario: Scenario, contender: Contender, options: argparse.Namespace) -> Outcome:
    """Return what came of it, with the shortest times of each turn: what a machine does besides is nobody's fault."""
    runs = [played(scenario, contender, timeout=options.timeout) for _ in range(options.repeat)]
    if any(run.log != runs[0].log for run in runs):
        print(f"{contender.label}: the requests of one run are not those of another", file=sys.stderr, flush=True)

    def shortest(what: str) -> tuple[float, ...]:
        return tuple(min(times) for times in zip(*(getattr(run, what) for run in runs), strict=True))

    return replace(runs[0], held=shortest("held"), busy=shortest("busy"), cpu=shortest("cpu"))


def _cpu(options: argparse.Namespace) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for contender in _pythons(options):
        print(f"cpu: {contender.label}", file=sys.stderr, flush=True)
        try:
            rows.append(alone(chat(), contender, options.marks, WINDOW, options.patience))
        except RuntimeError as error:
            print(f"{contender.label} did not end well: {error}", file=sys.stderr, flush=True)
    _show(options, cpu_table(options.marks, rows))
    return rows


def _quality(options: argparse.Namespace) -> list[dict[str, Any]]:
    print("quality", file=sys.stderr, flush=True)
    rows = list(measured())
    _show(options, tables(rows))
    return rows


_OTHERS: dict[str, Callable[[argparse.Namespace], Any]] = {CPU: _cpu, QUALITY: _quality}
_NAMES = [*SCENARIOS, *_OTHERS]


def _write(folder: Path, results: Mapping[str, Any], shown: Sequence[str]) -> None:
    """Write the numbers and the picture to *folder*, and what was *shown* to its page, if it has one for that."""
    (folder / "comparison.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    rows = results["scenarios"].get("chat")
    if rows and any(row["relative"] for row in rows):
        title = "200 turns of chat: what they cost, and how long they wait"
        (folder / "comparison.svg").write_text(plotted(title, rows), encoding="utf-8")
    page = folder / "benchmarks.md"
    if page.is_file():
        head, found, after = page.read_text(encoding="utf-8").partition(RESULTS)
        _, heading, rest = after.partition("\n## ")
        if found:
            results_here = "\n".join([f"{head}{RESULTS}{PICTURE}", *shown]).rstrip() + "\n"
            page.write_text(results_here + heading + rest, encoding="utf-8")
