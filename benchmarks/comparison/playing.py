"""One adapter through one conversation, and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .conversations import Scenario
from .facts import raw_in
from .model_server import MODEL, Answered, ModelServer
from .money import LISTS, Cost, cost_of
from .prefixes import shown
from .virtual_time import Latency

__all__ = ["Contender", "Outcome", "alone", "job_of", "played", "server_of"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Contender:
    """An adapter, and the Python that it runs in."""

    module: str
    variant: str = ""
    python: str = sys.executable

    @property
    def label(self) -> str:
        return f"{self.module}:{self.variant}" if self.variant else self.module


@dataclass(frozen=True)
class Outcome:
    """What one adapter did in one scenario."""

    name: str
    version: str
    settings: str
    background: bool
    #: Of each turn, in seconds: what the chat loop waited for the adapter, models included; how much of that was CPU
    #: of the loop's own thread; and the CPU of the whole process, background included.
    held: tuple[float, ...]
    busy: tuple[float, ...]
    cpu: tuple[float, ...]
    log: tuple[Answered, ...]
    costs: tuple[Cost, ...]
    over_budget: int
    failed: tuple[str, ...]
    facts_in_prompt: int
    facts_kept: int
    depths: dict[str, int]
    measures: dict[str, float]

    @property
    def agent(self) -> list[Answered]:
        return [one for one in self.log if one.by == "agent"]

    @property
    def summarizer(self) -> list[Answered]:
        return [one for one in self.log if one.by == "summarizer"]


def server_of(scenario: Scenario) -> ModelServer:
    """Return the server that *scenario* is played with."""
    return ModelServer(
        summary_tokens=scenario.summary_tokens,
        change_words=scenario.change_words[0],
        agent=scenario.agent or MODEL,
        values=dict(scenario.facts),
        outage=scenario.outage,
    )


def played(scenario: Scenario, contender: Contender, *, timeout: float = 3_600) -> Outcome:
    """Play *scenario* to *contender* in a process of its own. Raises ``RuntimeError`` where that did not end well."""
    values = dict(scenario.facts)
    with tempfile.TemporaryDirectory() as folder, server_of(scenario) as server:
        found = _driven(job_of(scenario, contender, server.url, folder), contender.python, folder, timeout)
        if server.errors:
            raise RuntimeError(f"the model server failed with {contender.label}") from server.errors[0]
        log = tuple(server.log)
        depths = {key: depth for key, depth in server.model.depths.of.items() if key in values}
    prompt = "\n".join(map(shown, found["last_prompt"]))
    kept = raw_in("\n".join(found["kept"]))
    return Outcome(
        name=found["name"],
        version=found["version"],
        settings=found["settings"],
        background=found["background"],
        held=tuple(turn["wall"] + turn["waited"] for turn in found["turns"]),
        busy=tuple(turn["thread"] for turn in found["turns"]),
        cpu=tuple(turn["cpu"] for turn in found["turns"]),
        log=log,
        costs=tuple(cost_of(log, one.prices) for one in LISTS),
        over_budget=sum(one.input > scenario.budget for one in log if one.by == "agent"),
        failed=tuple(found["failed"]),
        facts_in_prompt=sum(value in prompt for value in values.values()),
        facts_kept=sum(kept.get(key) == value for key, value in values.items()),
        depths=depths,
        measures=found["measures"],
    )


def alone(
    scenario: Scenario, contender: Contender, marks: Sequence[int], window: int, patience: float
) -> dict[str, Any]:
    """Return what the CPU of *scenario*'s turns was, played again and again up to the last of *marks*, where the model
    takes no time."""
    free = Latency(0.0, 0.0, 0.0)
    with tempfile.TemporaryDirectory() as folder, ModelServer(latency=free, values=dict(scenario.facts)) as server:
        job = job_of(scenario, contender, server.url, folder)
        job |= {"marks": list(marks), "window": window, "patience": patience}
        return _driven(job, contender.python, folder, patience + 600)


def job_of(scenario: Scenario, contender: Contender, url: str, folder: str) -> dict[str, Any]:
    """Return what the driver is told."""
    setting = {
        "base_url": f"{url}/v1",
        "model": MODEL,
        "budget": scenario.budget,
        "system": scenario.system,
        "tools": list(scenario.tools),
        "window": scenario.window,
        "summary_tokens": scenario.summary_tokens,
        "folder": folder,
        "variant": contender.variant,
        "options": {"round": scenario.tokens / len(scenario.turns)},
    }
    return {
        "module": contender.module,
        "setting": setting,
        "turns": [list(turn) for turn in scenario.turns],
        "pauses": [scenario.pause_before(place) for place in range(len(scenario.turns))],
    }


def _driven(job: dict[str, Any], python: str, folder: str, timeout: float) -> dict[str, Any]:
    """Have the driver do *job* in *python*, and return what it prints."""
    file = Path(folder) / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    command: Sequence[str] = [python, "-m", "benchmarks.comparison.driver", str(file)]
    # What this process was told of endpoints and keys is none of the adapter's business.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTHON"))}
    environment = {**kept, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "OPENAI_API_KEY": "none"}
    try:
        done = subprocess.run(  # noqa: S603  (a Python and a module of ours)
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{job['module']} was given up after {timeout:g} seconds") from error
    if done.returncode != 0:
        raise RuntimeError(f"{job['module']} ended with {done.returncode}:\n{done.stderr[-3_000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
