"""Plays one conversation to one adapter, and prints what each turn took: runs in the adapter's own environment.

    python -m benchmarks.comparison.driver JOB.json

The standard library alone is imported here: what else there is in the process is what is measured.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from .adapter import Adapter, Message, Setting
from .door import PATIENCE, Door
from .settling import Settling

__all__ = ["Played", "alone", "play"]

#: Virtual seconds that the clock goes on by, at least.
TICK = 0.000_001


@dataclass(slots=True)
class Times:
    """What one turn took, in seconds."""

    #: Real ones in the adapter's calls.
    wall: float = 0.0
    #: Virtual ones that it waited for models.
    waited: float = 0.0
    #: Of the whole process's CPU, and of the calling thread's.
    cpu: float = 0.0
    thread: float = 0.0


class Played:
    """One conversation on its way through one adapter."""

    def __init__(self, adapter: Adapter, door: Door, tools: list[Any]) -> None:
        self._adapter = adapter
        self._door = door
        self._tools = tools
        self._settling = Settling(adapter, door)
        self._turn = 0
        self.turns: list[Times] = []
        self.failed: list[str] = []
        self.last_prompt: list[Message] = []

    def turn(self, steps: list[dict[str, Any]]) -> None:
        """Play one turn: each step is what is new for the agent, and what it answers then."""
        self._turn += 1
        times = Times()
        self.turns.append(times)
        for step in steps:
            try:
                prompt = self._called(times, self._adapter.prompt, step["new"])
            except Exception as error:  # noqa: BLE001  (whatever it is, the user gets no answer)
                self._failed(error)
                return
            self.last_prompt = prompt
            asked = self._door.ask("/agent", {"messages": prompt, "tools": self._tools, "answer": step["answer"]})
            self._pass(asked["now"], asked["until"], times)
            try:
                self._called(times, partial(self._answered, asked), step["answer"])
            except Exception as error:  # noqa: BLE001
                self._failed(error)
                return

    def _answered(self, asked: Mapping[str, Any], answer: Message) -> None:
        self._adapter.billed(asked["input"], asked["cached"])
        self._adapter.answered(answer)

    def pause(self, seconds: float) -> None:
        """Let the user take so long to read, think and type."""
        now = self._door.ask("/held")["now"]
        self._pass(now, now + seconds, Times())

    def _pass(self, now: float, until: float, times: Times) -> None:
        """Let the virtual time pass, from one thing that happens to the next: a model answers, or the adapter's own
        timer is due. All that follows from one has been done before the next, whatever the machine's threads do."""
        while now < until:
            wakes = self._adapter.wakes_at()
            to = until if wakes is None else min(until, max(wakes, now + TICK))
            passed = self._door.ask("/pass", {"until": to})
            now = passed["now"]
            self._adapter.advanced(now)
            self._settle(times)
            if passed["due"]:
                self._door.ask("/answer", {})
                self._settle(times)

    def _called(self, times: Times, act: Any, argument: Any) -> Any:
        """Return what the adapter returns, and add what it took; then have it do what it can do in the background."""
        self._door.ask("/begin", {"turn": self._turn})
        cpu, thread, began = time.process_time(), time.thread_time(), time.perf_counter()
        try:
            return act(argument)
        finally:
            wall = time.perf_counter() - began
            times.thread += time.thread_time() - thread
            charge = self._door.ask("/end", {})
            times.wall += max(wall - charge["served"], 0.0)
            times.waited += charge["waited"]
            times.cpu += time.process_time() - cpu
            self._settle(times)

    def _settle(self, times: Times) -> None:
        """Let the adapter do what it can at this moment of the virtual time, and add the CPU that it takes for that:
        not this thread's, nor of those that wait for it."""
        before = _beside()
        waiting = self._settling.settle()
        times.cpu += _beside() - before - waiting

    def _failed(self, error: Exception) -> None:
        self.failed.append(f"turn {self._turn}: {type(error).__name__}: {str(error)[:300]}")
        if len(self.failed) == 1:
            traceback.print_exception(error, file=sys.stderr)

    def close(self) -> None:
        self._settling.close()


def _beside() -> float:
    """Return the seconds of CPU that all threads but this one have taken."""
    return time.process_time() - time.thread_time()


def play(adapter: Adapter, door: Door, job: Mapping[str, Any]) -> dict[str, Any]:
    """Play *job*'s conversation, and return what was measured."""
    door.ask("/adapter", {"background": adapter.background})
    with contextlib.closing(Played(adapter, door, [*job["setting"]["tools"], *adapter.tools])) as played:
        for steps, seconds in zip(job["turns"], job["pauses"], strict=True):
            if seconds:
                played.pause(seconds)
            played.turn(steps)
    return {
        "name": adapter.name,
        "version": adapter.version,
        "background": adapter.background,
        "settings": adapter.settings,
        "turns": [asdict(times) for times in played.turns],
        "failed": played.failed,
        "last_prompt": played.last_prompt,
        "kept": adapter.kept(),
        "measures": adapter.measures(),
    }


def alone(adapter: Adapter, job: Mapping[str, Any]) -> dict[str, Any]:
    """Play *job*'s turns again and again with no agent between, for the CPU that a turn takes: the mean of
    the window up to each of its marks without the very first, with all that is done in the background."""
    marks, window, turns = job["marks"], job["window"], job["turns"]
    spent: list[float] = []
    found: dict[str, float] = {}
    until = time.monotonic() + job["patience"]
    for number in range(1, max(marks) + 1):
        began = time.process_time()
        for step in turns[(number - 1) % len(turns)]:
            adapter.prompt(step["new"])
            adapter.answered(step["answer"])
        in_turn, beside = time.process_time() - began, _beside()
        if not adapter.wait_idle(PATIENCE):
            raise TimeoutError(f"{adapter.name}: its background work does not end")
        spent.append(in_turn + _beside() - beside)
        adapter.advanced(float(number))
        if number in marks:
            newest = spent[1:][-window:] or spent  # the first turn is shown by itself
            found[str(number)] = sum(newest) / len(newest)
        if time.monotonic() > until:
            break
    return {
        "name": adapter.name,
        "version": adapter.version,
        "background": adapter.background,
        "settings": adapter.settings,
        "cpu": found,
        "reached": len(spent),
        "seconds": sum(spent),
    }


def _closed(adapter: Adapter) -> None:
    """Close *adapter*, whose trouble with that is not what is measured."""
    try:
        adapter.close()
    except Exception as error:  # noqa: BLE001
        print(f"{adapter.name} could not be closed: {type(error).__name__}", file=sys.stderr)


def main(arguments: list[str]) -> None:
    with open(arguments[0], encoding="utf-8") as file:
        job = json.load(file)
    with contextlib.redirect_stdout(sys.stderr):  # libraries print what they like; the result stands alone
        module = importlib.import_module(f"benchmarks.peers.{job['module']}")
        setting = Setting(**job["setting"])
        adapter: Adapter = module.make(setting)
        door = Door(job["setting"]["base_url"].removesuffix("/v1"))
        try:
            result = alone(adapter, job) if "marks" in job else play(adapter, door, job)
        finally:
            door.close()
            _closed(adapter)
    print(json.dumps(result), flush=True)


def run(arguments: list[str]) -> None:
    """Do as ``main``, and end the process then: threads that an adapter has left behind would keep it for ever."""
    try:
        main(arguments)
    except BaseException as error:  # noqa: BLE001  (said, and told by the exit code)
        traceback.print_exception(error, file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    run(sys.argv[1:])
