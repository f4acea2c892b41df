"""Which part of a deployment is the first bottleneck, by a simulation of rounds and compactions with measured times.

    python -m benchmarks.capacity_plan                          # ten million sessions, times of benchmarks.capacity
    python -m benchmarks.capacity_plan --calls 1000 --workers 16 --server-round 1.2

Rounds arrive at random. Each takes the database's processor, and some open their session first. Every so many rounds,
a compaction takes a worker's processor, the database's, and one of the calls that the model allows. Service times are
random (exponential) around their means. The load is raised until a queue grows without end. Prints tables in Markdown:
what each part could do alone, and what waits at each load.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

#: Simulated seconds of each load, and how large a part of the load that the first bottleneck could do it is.
SECONDS, LOADS = 120.0, (0.5, 0.8, 0.95, 1.1)
#: Milliseconds of a processor, as benchmarks.capacity measured them with a million sessions.
SERVER_ROUND, SERVER_OPENING, SERVER_COMPACTION, WORKER_COMPACTION = 0.9, 0.5, 3.8, 17.0


@dataclass(frozen=True, slots=True)
class Step:
    """A stay at a part: its name, and the mean seconds."""

    part: str
    seconds: float


@dataclass(slots=True)
class Part:
    """Something with so many places, in which jobs are served in order of arrival."""

    places: int
    free: int = field(init=False)
    waiting: deque[Callable[[float], None]] = field(default_factory=deque)
    waits: list[float] = field(default_factory=list)
    busy: float = 0.0

    def __post_init__(self) -> None:
        self.free = self.places


class Simulation:
    """Jobs, each a row of steps, on parts."""

    def __init__(self, places: dict[str, int], rng: random.Random) -> None:
        self.parts = {name: Part(number) for name, number in places.items()}
        self._rng, self._order = rng, count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []

    def at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def start(self, steps: Sequence[Step], now: float) -> None:
        if not steps:
            return
        part, seconds = self.parts[steps[0].part], self._rng.expovariate(1 / steps[0].seconds)

        def serve(then: float) -> None:
            part.waits.append(then - now)
            part.busy += seconds
            self.at(then + seconds, leave)

        def leave(then: float) -> None:
            self.start(steps[1:], then)
            if part.waiting:
                part.waiting.popleft()(then)
            else:
                part.free += 1

        if part.free:
            part.free -= 1
            serve(now)
        else:
            part.waiting.append(serve)

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            when, _, act = heapq.heappop(self._events)
            act(when)


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs of a round and of a compaction, how many rounds a compaction is due after, and the parts' places."""

    a_round: tuple[Step, ...]
    opening: tuple[Step, ...]
    compaction: tuple[Step, ...]
    opened: float
    every: float
    places: dict[str, int]

    def rounds(self, part: str) -> float:
        """Return how many rounds a second *part* could do."""
        jobs = ((self.a_round, 1.0), (self.opening, self.opened), (self.compaction, 1 / self.every))
        demand = sum(step.seconds * share for steps, share in jobs for step in steps if step.part == part)
        return self.places[part] / demand

    @property
    def first(self) -> str:
        return min(self.places, key=self.rounds)

    def simulate(self, rate: float, seconds: float = SECONDS, seed: int = 0) -> Simulation:
        """Return the parts after so many *seconds* of *rate* rounds a second."""
        rng = random.Random(seed)
        simulation = Simulation(self.places, rng)

        def arrive(now: float) -> None:
            steps = self.opening + self.a_round if rng.random() < self.opened else self.a_round
            simulation.start(steps, now)
            if rng.random() < 1 / self.every:
                simulation.start(self.compaction, now)
            simulation.at(now + rng.expovariate(rate), arrive)

        simulation.at(0.0, arrive)
        simulation.run(seconds)
        return simulation


def make_plan(chosen: argparse.Namespace) -> Plan:
    def ms(part: str, value: float) -> Step:
        return Step(part, value / 1e3)

    return Plan(
        a_round=(ms("database", chosen.server_round),),
        opening=(ms("database", chosen.server_opening),),
        compaction=(
            ms("workers", chosen.worker_compaction),
            ms("database", chosen.server_compaction),
            Step("model", chosen.call),
        ),
        opened=chosen.opened,
        every=chosen.every,
        places={"model": chosen.calls, "workers": chosen.workers, "database": chosen.cores},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    number = partial(parser.add_argument, type=float)
    number("--sessions", default=1e7)
    number("--active", default=0.1, help="share of the sessions that are used in a day")
    number("--rounds", default=10, help="rounds of such a session in a day")
    number("--hours", default=8, help="hours in which they all are")
    number("--every", default=8, help="rounds after which a compaction is due")
    number("--opened", default=0.2, help="share of the rounds for which a host opens the session")
    number("--call", default=3.0, help="seconds of a model call")
    parser.add_argument("--calls", type=int, default=100, help="calls at once that the provider allows")
    parser.add_argument("--workers", type=int, default=4, help="processors of all workers")
    parser.add_argument("--cores", type=int, default=8, help="processors of the database server")
    number("--server-round", default=SERVER_ROUND, help="milliseconds of the server's processor")
    number("--server-opening", default=SERVER_OPENING)
    number("--server-compaction", default=SERVER_COMPACTION)
    number("--worker-compaction", default=WORKER_COMPACTION, help="milliseconds of a worker's processor")
    number("--seconds", default=SECONDS, help="simulated, for each load")
    chosen = parser.parse_args(arguments)
    plan = make_plan(chosen)
    wanted = chosen.sessions * chosen.active * chosen.rounds / chosen.hours / 3600
    compactions = wanted / plan.every
    print(f"{chosen.sessions:,.0f} sessions make {wanted:,.0f} rounds and {compactions:,.0f} compactions a second\n")
    print("| part | places | rounds a second that it could do | of it is used |")
    print("|---|--:|--:|--:|")
    for name, places in plan.places.items():
        print(f"| {name} | {places} | {plan.rounds(name):,.0f} | {wanted / plan.rounds(name):.0%} |")
    print(f"\nThe first bottleneck is the {plan.first}. Waits are in seconds, the 95th percentile:\n")
    print("| rounds a second | " + " | ".join(f"{name}: busy, wait, in line at the end" for name in plan.places) + " |")
    print("|--:|" + "---|" * len(plan.places))
    for load in LOADS:
        rate = load * plan.rounds(plan.first)
        parts = plan.simulate(rate, chosen.seconds).parts
        cells = [describe(part, chosen.seconds) for part in parts.values()]
        print(f"| {rate:,.0f} ({load:.0%}) | " + " | ".join(cells) + " |", flush=True)


def describe(part: Part, seconds: float) -> str:
    waits = sorted(part.waits)
    wait = waits[int(0.95 * len(waits))] if waits else 0.0
    return f"{min(1.0, part.busy / seconds / part.places):.0%}, {wait:.3f}, {len(part.waiting):,}"


if __name__ == "__main__":
    main()
