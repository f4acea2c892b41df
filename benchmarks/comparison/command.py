"""What `benchmarks/run` does: plays every conversation to every adapter, and prints what came of it."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.quality import measured, tables

from .conversations import SCENARIOS, Absent, Scenario, chat
from .environments import PEERS, Unavailable, default_folder, make_environment
from .money import LISTS
from .page import CPU, QUALITY, beside, read, section, written
from .playing import Contender, Outcome, alone, played
from .report import BASELINE, cpu_table, numbers, related
from .shapes import shape_of

__all__ = ["contenders", "main"]

#: Not adapters.
_PARTS = ("__init__",)
#: Turns at which the CPU of one is told, and of how many up to it that is the mean.
MARKS, WINDOW = (1, 10, 100, 1_000, 10_000), 100
#: Rows, and labels of who was given up.
_Played = tuple[list[dict[str, Any]], list[str]]


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
    options = _parser().parse_args(arguments)
    now: dict[str, Any] = {"scenarios": {}, "given_up": {}}
    for name in options.scenarios:
        try:
            now["scenarios"][name], now["given_up"][name] = _found(name, options)
        except Absent as absent:
            print(f"### {name}\n\nLeft out: {absent}.\n", flush=True)
    if options.docs is not None:
        order = [Contender(*one).label for one in contenders()]
        results = read(options.docs / "comparison.json")
        for found in (*map(read, options.beside), now):
            results = beside(results, found, order)
        written(options.docs, results)
    return 0


def _found(name: str, options: argparse.Namespace) -> _Played:
    if name == CPU:
        return _cpu(options)
    return _quality() if name == QUALITY else _scenario(name, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description="Compare ways to hold a long conversation.")
    names = [*SCENARIOS, CPU, QUALITY]
    parser.add_argument("--scenarios", nargs="*", choices=names, default=names)
    parser.add_argument("--only", nargs="+", default=(), metavar="ADAPTER", help="such as: nothing ours langchain")
    parser.add_argument("--turns", type=int, help="play so many turns instead of all")
    parser.add_argument(
        "--change-words", nargs="+", type=int, metavar="N", help="words in the answers that change notes"
    )
    parser.add_argument("--repeat", type=int, default=1, help="play so many times; of each turn, the shortest times")
    parser.add_argument("--timeout", type=float, default=1_800.0, help="seconds after which an adapter is given up")
    parser.add_argument("--environments", type=Path, default=default_folder(), metavar="FOLDER")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write results there, beside what there is")
    parser.add_argument("--beside", nargs="+", type=Path, default=(), metavar="JSON", help="and those of other runs")
    parser.add_argument("--marks", nargs="+", type=int, default=MARKS, help="turns at which CPU is measured")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for the turns that measure one's CPU")
    return parser


def _pythons(options: argparse.Namespace) -> Iterator[Contender]:
    """Give every adapter that can be run here, with its Python; say of the others why not."""
    for module, variant in contenders(options.only):
        try:
            yield Contender(module, variant, make_environment(module, options.environments))
        except Unavailable as reason:
            print(f"{module} is left out: {reason}", file=sys.stderr, flush=True)


def _each(
    name: str, options: argparse.Namespace, play: Callable[[Contender], dict[str, Any]], *, skip: str = ""
) -> _Played:
    """Return what *play* returns for each adapter, and the labels of those with which it did not end well."""
    rows: list[dict[str, Any]] = []
    given_up: list[str] = []
    for contender in _pythons(options):
        if contender.module == skip:
            continue
        print(f"{name}: {contender.label}", file=sys.stderr, flush=True)
        try:
            rows.append({"label": contender.label} | play(contender))
        except RuntimeError as error:
            print(f"{contender.label} did not end well: {error}", file=sys.stderr, flush=True)
            given_up.append(contender.label)
    return rows, given_up


def _scenario(name: str, options: argparse.Namespace) -> _Played:
    scenario = SCENARIOS[name]()
    if options.turns is not None:
        scenario = replace(scenario, turns=scenario.turns[: options.turns])
    if options.change_words is not None:
        scenario = replace(scenario, change_words=tuple(options.change_words))

    def row(contender: Contender) -> dict[str, Any]:
        outcome = _best_of(scenario, contender, options)
        found = numbers(scenario, outcome)
        if contender.module == "ours":
            if (met := shape_of(scenario, outcome)) is not None:
                found["least"] = [met.told(one.prices) for one in LISTS]
            found["by_words"] = dict(_by_words(scenario, contender, options)) if outcome.summarizer else {}
        return found

    rows, given_up = _each(scenario.name, options, row, skip="" if scenario.fits else BASELINE)
    print(section(scenario, related(rows), given_up), flush=True)
    return rows, given_up


def _by_words(
    scenario: Scenario, contender: Contender, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give what came of *scenario* with other lengths of the model's changes than the tables'."""
    for words in scenario.change_words[1:]:
        with_words = replace(scenario, change_words=(words,))
        yield str(words), numbers(with_words, played(with_words, contender, timeout=options.timeout))


def _best_of(scenario: Scenario, contender: Contender, options: argparse.Namespace) -> Outcome:
    """Return what came of it, with the shortest times of each turn: what a machine does besides is nobody's fault."""
    runs = [played(scenario, contender, timeout=options.timeout) for _ in range(options.repeat)]
    if any(run.log != runs[0].log for run in runs):
        print(f"{contender.label}: the requests of one run are not those of another", file=sys.stderr, flush=True)

    def shortest(what: str) -> tuple[float, ...]:
        return tuple(min(times) for times in zip(*(getattr(run, what) for run in runs), strict=True))

    return replace(runs[0], held=shortest("held"), busy=shortest("busy"), cpu=shortest("cpu"))


def _cpu(options: argparse.Namespace) -> _Played:
    scenario = chat()
    found = _each(CPU, options, lambda one: alone(scenario, one, options.marks, WINDOW, options.patience))
    print(cpu_table(options.marks, found[0]), flush=True)
    return found


def _quality() -> _Played:
    print(QUALITY, file=sys.stderr, flush=True)
    rows = list(measured())
    print(tables(rows), flush=True)
    return rows, []
