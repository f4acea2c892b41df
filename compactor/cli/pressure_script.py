"""The task of the demo under pressure, as data: what is said, and tools whose results are far too long."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Any

import yaml

#: Each pass through the script is about the next of these; then they come again.
_SERVICES = ("payments-api", "checkout-web", "wallet-api", "voucher-api")
#: Rounds in one pass.
LENGTH = 22
#: Stands in what follows a ``LookUp`` for the id that was looked up.
FOUND = "$found"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, and what it gives."""

    tool: str
    arguments: str
    result: str


@dataclass(frozen=True, slots=True)
class LookUp:
    """An id that the agent has read before and needs now."""

    what: str
    #: The words to search the history for, and the text that stands beside the id where it was read.
    search: str
    pattern: str
    #: The shape of the id, as a regular expression.
    find: str
    #: What it is: for whoever checks, not for the agent.
    id: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One round."""

    user: str
    answer: str
    #: What a monitor reports meanwhile.
    status: tuple[str, ...] = ()
    #: Whether what the user says has to stay word for word.
    pin: bool = False
    #: Subtasks and their states, where they have changed.
    plan: tuple[tuple[str, str], ...] = ()
    #: What the agent does before it answers: calls that are made at once, or something to look up.
    steps: tuple[tuple[Call, ...] | LookUp, ...] = ()


def turns(count: int, seed: int = 0) -> Iterator[Turn]:
    """Give *count* turns; equal seeds give equal results."""
    figures = random.Random(seed)  # noqa: S311  (made-up output of tools)
    names: dict[str, str] = {}
    for number in range(count):
        passed, place = divmod(number, LENGTH)
        if place == 0:
            names = _names(passed, figures)
        yield _turn(_script()[place], names, figures)


def _names(passed: int, figures: random.Random) -> dict[str, str]:
    return {
        "service": _SERVICES[passed % len(_SERVICES)],
        "version": f"2.{41 + passed}.0",
        "deployment": _id("dep", figures),
        "trace": _id("trc", figures),
    }


@cache
def _script() -> Sequence[Mapping[str, Any]]:
    return tuple(yaml.safe_load(resources.files(__package__).joinpath("incident.yaml").read_bytes()))


def _turn(said: Mapping[str, Any], names: Mapping[str, str], figures: random.Random) -> Turn:
    return Turn(
        user=_filled(said["user"], names),
        answer=_filled(said["answer"], names),
        status=tuple(_heartbeat(figures) for _ in range(said.get("status", 0))),
        pin=said.get("pin", False),
        plan=tuple((name, state) for name, state in said.get("plan", ())),
        steps=tuple(made for step in said["steps"] for made in _steps(step, names, figures)),
    )


def _steps(
    step: Mapping[str, Any], names: Mapping[str, str], figures: random.Random
) -> Iterator[tuple[Call, ...] | LookUp]:
    if "look_up" in step:
        texts = {name: _filled(step[name], names) for name in ("search", "pattern", "find")}
        yield LookUp(step["look_up"], **texts, id=names[step["look_up"]])
        return
    calls = [_call(step, {**names, "n": str(n)}, figures) for n in range(1, step.get("times", 1) + 1)]
    together = step.get("together", 1)
    for first in range(0, len(calls), together):
        yield tuple(calls[first : first + together])


def _call(step: Mapping[str, Any], names: Mapping[str, str], figures: random.Random) -> Call:
    made_up = {
        "waiting": str(figures.randint(3, 190)),
        "uptime": str(figures.randint(900, 99_000)),
        "attempts": str(figures.randint(1, 5)),
    }
    names = {**names, **made_up}
    result = _filled(step["result"], names)
    if "lines" in step:
        result = "\n".join([result, *_lines(step["of"], step["lines"], names, figures)])
    return Call(step["tool"], _filled(json.dumps(step["arguments"]), names), result)


def _filled(text: str, names: Mapping[str, str]) -> str:
    return Template(text).safe_substitute(names).strip()


# -- what tools give --------------------------------------------------------------------------------------------------


def _lines(kind: str, count: int, names: Mapping[str, str], figures: random.Random) -> Iterator[str]:
    """Give *count* lines of a kind; what the task is about stands at three fifths, where no preview shows it."""
    make, wanted = _KINDS[kind]
    for number in range(count):
        yield _filled(wanted, names) if number == count * 3 // 5 else make(figures)


def _id(prefix: str, figures: random.Random) -> str:
    return f"{prefix}-{figures.getrandbits(40):010x}"


def _clock(figures: random.Random, hour: int = 9) -> str:
    return f"{hour:02}:{figures.randint(0, 59):02}:{figures.randint(0, 59):02}"


def _heartbeat(figures: random.Random) -> str:
    def part(name: str) -> str:
        state = figures.choice(("ok", "ok", "ok", "slow"))
        return f"{name} {state}, {figures.randint(2, 98)} % busy, {figures.randint(9, 900)} ms"

    parts = map(part, ("edge", "gateway", "queue", "search", "stock", "mail"))
    return f"Heartbeat {_clock(figures)}: {'; '.join(parts)}."


def _deployment(figures: random.Random) -> str:
    service = figures.choice(("stock-api", "mail-worker", "search-api", "edge-proxy", "price-feed", "admin-web"))
    version = f"{figures.randint(1, 9)}.{figures.randint(0, 40)}.{figures.randint(0, 9)}"
    day = f"2026-03-{figures.randint(8, 14):02} {_clock(figures, figures.randint(6, 20))}"
    return (
        f"{day}  {service}  {version}  {_id('dep', figures)}  {figures.choice(('release-bot', 'j.lind', 'm.okafor'))}"
    )


def _log(figures: random.Random) -> str:
    said = figures.choice(
        (
            "INFO  request done in {} ms, status 200",
            "INFO  capture queued, {} waiting",
            "WARN  no connection from pool in {} ms",
            "ERROR gateway call given up after 3000 ms, waiting {}",
            "DEBUG heartbeat sent, {} bytes",
        )
    ).format(figures.randint(10, 3000))
    return f"{_clock(figures)}.{figures.randint(0, 999):03}  {said}  {_id('req', figures)}"


def _setting(figures: random.Random) -> str:
    group = figures.choice(("http", "pool", "retry", "cache", "auth", "queue", "trace"))
    name = figures.choice(("timeout_ms", "size", "limit", "window", "burst", "backlog", "keep_alive"))
    value = figures.randint(1, 60_000)
    return f"{group}.{name}_{figures.randint(1, 99)}: {value}  # reviewed by {figures.choice('abcdefgh')}"


def _order(figures: random.Random) -> str:
    amount, number = figures.uniform(5, 400), figures.randint(50_000, 99_999)
    return f"{number}      stuck  {amount:>10.2f}  {figures.randint(1, 5):>8}  {_id('trc', figures)}"


def _job(figures: random.Random) -> str:
    name = figures.choice(("reindex", "backup", "export", "mailing", "price import", "cleanup"))
    start, team = _clock(figures, figures.randint(11, 23)), figures.choice("ABCDEF")
    return f"{start}  {name} {figures.randint(1, 400)}  team {team}  nothing shared"


#: How a line of each kind is made, and the one line that is about the task.
_KINDS: Mapping[str, tuple[Callable[[random.Random], str], str]] = {
    "deployments": (_deployment, "2026-03-14 09:04:11  $service  $version  $deployment  release-bot"),
    "log": (_log, "09:11:20.004  WARN  pool.max is 64, was 256  (read from pool.yaml)"),
    "settings": (_setting, "pool.max: 64  # for the test environment"),
    "orders": (_order, "48121      stuck       84.90         2  $trace"),
    "jobs": (_job, "22:00:00  settlement  team C  needs the pool"),
}
