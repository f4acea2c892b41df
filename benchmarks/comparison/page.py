"""The page of results and the numbers behind it: what was played now takes its place beside what was played before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality import tables

from .conversations import SCENARIOS, Absent, Scenario
from .money import LISTS
from .plot import plotted
from .report import cpu_table, least_table, related, table, words_table

__all__ = ["CPU", "QUALITY", "RESULTS", "Results", "beside", "read", "section", "written"]

#: What stands below it on the page is written here.
RESULTS = "## Results\n"
PICTURE = "\n![What 200 turns of chat cost, and how long the chat loop is held up](comparison.svg)\n"
#: Scenarios beside those of ``SCENARIOS``.
CPU, QUALITY = "cpu", "quality"

Results = dict[str, Any]
"""The names of the ``prices``, rows of the ``scenarios``, and labels of who was ``given_up`` in them."""


def read(file: Path) -> Results:
    """Return what ``written`` has left in *file*; nothing, where there is none."""
    found: Results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {"prices": [one.name for one in LISTS], "scenarios": {}, "given_up": {}} | found


def beside(before: Results, now: Results, order: Sequence[str]) -> Results:
    """Return both: of an adapter that was played again in a conversation, what it did *now*. Rows stand in *order*."""
    scenarios, given_up = dict(before["scenarios"]), {}
    for name, new in now["scenarios"].items():
        both = new if name == QUALITY else _ordered([*scenarios.get(name, ()), *new], order)
        scenarios[name] = related(both) if name in SCENARIOS else both
    for name, rows in scenarios.items():
        stopped = {label for one in (before, now) for label in one["given_up"].get(name, ())}
        ended = {row.get("label") for row in rows}
        given_up[name] = [label for label in order if label in stopped - ended]
    shown = [name for name in (*SCENARIOS, CPU, QUALITY) if name in scenarios]
    return before | {"scenarios": {name: scenarios[name] for name in shown}, "given_up": given_up}


def _ordered(rows: Iterable[Mapping[str, Any]], order: Sequence[str]) -> list[Mapping[str, Any]]:
    newest = {row["label"]: row for row in rows}
    return [newest[label] for label in order if label in newest]


def written(folder: Path, results: Results) -> None:
    """Write the numbers and the picture to *folder*, made if need be, and the tables to its page, if it has one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    chat = results["scenarios"].get("chat", ())
    if any(row["relative"] for row in chat):
        title = "200 turns of chat: what they cost, and how long they wait"
        (folder / "comparison.svg").write_text(plotted(title, chat), encoding="utf-8")
    page = folder / "benchmarks.md"
    if page.is_file():
        head, found, after = page.read_text(encoding="utf-8").partition(RESULTS)
        before, heading, rest = after.partition("\n## ")
        if found:
            tables_here = "\n".join([f"{head}{RESULTS}{PICTURE}", *_sections(results, before)]).rstrip() + "\n"
            page.write_text(tables_here + heading + rest, encoding="utf-8")


def _sections(results: Results, before: str) -> Iterator[str]:
    """Give the section of each conversation; what stands *before*, if its data is not on this machine."""
    there = {part.partition("\n")[0]: f"### {part}" for part in before.split("\n### ")}
    for name, rows in results["scenarios"].items():
        given_up = results["given_up"].get(name, ())
        if name == CPU:
            yield _with(given_up, cpu_table(sorted({int(mark) for row in rows for mark in row["cpu"]}), rows))
        elif name == QUALITY:
            yield tables(rows)
        else:
            try:
                yield section(SCENARIOS[name](), rows, given_up)
            except Absent:
                yield there.get(name, "")


def section(scenario: Scenario, rows: Sequence[Mapping[str, Any]], given_up: Sequence[str]) -> str:
    """Return what is shown of *scenario*, and who is missing."""
    least = [least_table(rows)] if any("least" in row for row in rows) else []
    words = [found] if (found := words_table(rows)) else []
    return _with(given_up, table(scenario, rows), *words, *least)


def _with(given_up: Sequence[str], *parts: str) -> str:
    return "\n".join([*parts, f"Given up: {', '.join(given_up)}.\n"] if given_up else parts)
