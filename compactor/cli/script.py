"""The demo's task: what a user, a planner and a code interpreter say to each other, as data."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Any

import yaml

#: Each pass through the script is about the next of these; then they come again.
_GROUPS = ("filter coffee", "espresso", "decaf", "cold brew", "cocoa", "loose tea")
#: Rounds in one pass.
LENGTH = 65


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the code interpreter's tool, and what came back."""

    code: str
    result: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One round. Without ``ask`` the planner answers by itself."""

    user: str
    answer: str
    plan: str = ""
    ask: str = ""
    runs: tuple[Run, ...] = ()
    report: str = ""


def turns(count: int, seed: int = 0) -> Iterator[Turn]:
    """Give *count* turns; equal seeds give equal figures in the printed tables."""
    figures = random.Random(seed)  # noqa: S311  (made-up sales)
    for number in range(count):
        passed, place = divmod(number, LENGTH)
        group = _GROUPS[passed % len(_GROUPS)]
        yield _turn(_script()[place], {"group": group, "slug": group.replace(" ", "_")}, figures)


@cache
def _script() -> tuple[Mapping[str, Any], ...]:
    return tuple(yaml.safe_load(resources.files(__package__).joinpath("sales_forecast.yaml").read_bytes()))


def _turn(said: Mapping[str, Any], names: Mapping[str, str], figures: random.Random) -> Turn:
    def filled(text: str) -> str:
        return Template(text).safe_substitute(names).strip()

    runs = tuple(
        Run(filled(run["python"]), filled(run["result"]) + _table(run.get("rows", 0), figures))
        for run in said.get("runs", ())
    )
    texts = {name: filled(said.get(name, "")) for name in ("user", "answer", "plan", "ask", "report")}
    return Turn(**texts, runs=runs)


def _table(rows: int, figures: random.Random) -> str:
    """Return so many rows of weekly sales as a data frame prints them."""
    if not rows:
        return ""
    lines = ["\n       store_id         day  units    net_eur  promo_days"]
    for _ in range(rows):
        groups = figures.randint(90, 1400)
        day = f"2025-{figures.randint(1, 10):02}-{figures.randint(1, 28):02}"
        money = groups * figures.uniform(6.1, 7.4)
        index, store = figures.randint(10, 7103), figures.randint(1, 48)
        lines.append(f"{index:<6} {store:>8}  {day}  {groups:>5}  {money:>9.2f}  {figures.randint(0, 7):>10}")
    return "\n".join(lines)
