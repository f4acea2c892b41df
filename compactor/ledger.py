"""What each closed round costs in a prompt, counted once and summed up: no prompt pays for the length of the past."""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from memory import Memory
from memory.forking import renewed_after_fork
from memory.overlays import Reduction, Reductions
from memory.rounds import Post, Round

from .overlaid import overlaid, tells_of_drops
from .rungs import RUNGS, costs_by_rung, is_pinned, lighter
from .tokens import TokenCounter
from .units import Unit, count_message, units_of

__all__ = ["Ledger", "Sums", "ledger_of"]

#: Rounds that are counted in one go between two looks at the lock.
BATCH = 64
#: Costs of open rounds' units that are remembered; more, and all are forgotten.
MOST_OPEN_UNITS = 20_000
#: Counters of one role whose ledgers are kept: a host that makes a new one for each prompt does not fill the memory.
MOST_COUNTERS = 8


class Placed(Protocol):
    """Rounds by their place, places by the rounds' ids, and what is to stay as it is."""

    def __getitem__(self, index: int, /) -> Round: ...
    def end_of(self, round_id: str) -> int | None: ...
    @property
    def pins(self) -> Set[tuple[str, int]]: ...
    @property
    def epoch(self) -> object: ...
    @property
    def redactions(self) -> int: ...


class Overlaid(NamedTuple):
    """What a round is overlaid with: a round whose is the same costs the same."""

    reductions: tuple[Reduction, ...]
    #: Numbers of its pinned posts; 0 is the query.
    pinned: frozenset[int]


class Cost(NamedTuple):
    """What one closed round is in a prompt, as it reads now."""

    round_id: str
    number: int
    tokens: int
    messages: int
    #: Whether the user speaks in it.
    from_user: bool
    #: Tokens on each rung of the ladder, and of what stays when the round is left out: what is pinned.
    by_rung: tuple[int, ...]
    kept: int
    overlaid: Overlaid


@dataclass(frozen=True, slots=True)
class Sums:
    """What there is before each place: item ``i`` tells of the first ``i`` rounds. Lists only ever grow."""

    tokens: list[int] = field(default_factory=lambda: [0])
    messages: list[int] = field(default_factory=lambda: [0])
    #: The place of the newest of them in which the user speaks; -1 where he does in none.
    asked: list[int] = field(default_factory=lambda: [-1])
    #: For each rung of the ladder, and for what is pinned.
    by_rung: tuple[list[int], ...] = field(default_factory=lambda: tuple([0] for _ in RUNGS))
    kept: list[int] = field(default_factory=lambda: [0])
    #: Of how many of them posts were dropped.
    dropped: list[int] = field(default_factory=lambda: [0])
    #: The log number of each round, and what was counted.
    numbers: list[int] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def add(self, cost: Cost) -> None:
        self.tokens.append(self.tokens[-1] + cost.tokens)
        self.messages.append(self.messages[-1] + cost.messages)
        self.asked.append(len(self.costs) if cost.from_user else self.asked[-1])
        for sums, tokens in zip(self.by_rung, cost.by_rung, strict=True):
            sums.append(sums[-1] + tokens)
        self.kept.append(self.kept[-1] + cost.kept)
        self.dropped.append(self.dropped[-1] + tells_of_drops(cost.overlaid.reductions))
        self.numbers.append(cost.number)
        self.costs.append(cost)


class Ledger:
    """The costs of one role's rounds under one token counter. Any number of threads may ask it."""

    def __init__(self, role: str, count: TokenCounter) -> None:
        self.role = role
        self.count = count
        #: Tokens of what the last prompt had in front of the compaction: only whoever composes knows it all.
        self.header_tokens = 0
        self._open: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._lighter: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
        self._renew()
        renewed_after_fork(self)

    def _renew(self) -> None:
        """Begin anew: another thread of the parent may have been in the middle of adding a round."""
        self._lock = threading.Lock()  # guards _sums and _seen; never held while counting
        self._sums = Sums()
        self._seen: tuple[object, int, int, object] = (None, 0, 0, None)

    _after_fork = _renew

    def sums(self, rounds: Placed, settled: int, reductions: Reductions) -> Sums:
        """Return sums that reach over the first *settled* of *rounds*, each read through *reductions*.

        Those new since the last call are counted, and those that read otherwise now.
        """
        seen = (rounds.epoch, rounds.redactions, reductions.version, rounds.pins)
        pinned: dict[str, frozenset[int]] = {}
        for round_id, number in rounds.pins:
            pinned[round_id] = pinned.get(round_id, frozenset()) | {number}

        def overlaid_with(round_id: str) -> Overlaid:
            return Overlaid(reductions.of(round_id), pinned.get(round_id, frozenset()))

        while True:
            with self._lock:
                sums, before = self._sums, self._seen
            same = seen == before
            if not same:
                sums = sums if before[1] == seen[1] else Sums()  # what was erased in closed rounds is not looked for
                sums = self._shared(sums, rounds, settled, overlaid_with)
            done = len(sums.costs)
            if done >= settled and same:
                return sums
            places = range(done, min(settled, done + BATCH))
            fresh = [self._cost(round_, overlaid_with(round_.id)) for round_ in map(rounds.__getitem__, places)]
            with self._lock:
                if same and (self._sums is not sums or len(sums.costs) != done):
                    continue  # another thread was here meanwhile; go on from what it has counted
                for cost in fresh:
                    sums.add(cost)
                self._sums, self._seen = sums, seen

    def _shared(self, sums: Sums, rounds: Placed, settled: int, overlaid_with: Callable[[str], Overlaid]) -> Sums:
        """Return what *sums* says of the rounds that are still there, without counting those again that read the same.

        Without the newest: another host's rounds may say that they are closed and grow all the same. Memory's own come
        here only when a closed round has failed, or is overlaid with something else.
        """
        kept = Sums()
        for cost in sums.costs[:-1]:
            if len(kept.costs) < settled and rounds.end_of(cost.round_id) == len(kept.costs) + 1:
                over = overlaid_with(cost.round_id)
                kept.add(cost if over == cost.overlaid else self._cost(rounds[len(kept.costs)], over))
        return kept

    def _cost(self, raw: Round, over: Overlaid) -> Cost:
        round_ = overlaid(raw, over.reductions, self.role)
        # What was counted while the round was open is not counted again.
        units = [
            (unit, self._open.pop(_key_of(round_, unit), ()) or self.costs(unit))
            for unit in units_of(round_, self.role)
        ]
        return Cost(
            round_.id,
            round_.number,
            sum(sum(costs) for _, costs in units),
            sum(len(unit.posts) for unit, _ in units),
            any(unit.from_user for unit, _ in units),
            costs_by_rung(round_, units, self.count, over.pinned),
            sum(sum(costs) for unit, costs in units if is_pinned(unit, over.pinned)),
            over,
        )

    def costs(self, unit: Unit) -> tuple[int, ...]:
        """Return the tokens of each of *unit*'s messages."""
        return tuple(count_message(message, self.count) for message in unit.messages)

    def open_costs(self, round_: Round, unit: Unit) -> tuple[int, ...]:
        """Return the same for a unit of a round of the log that may still grow, and remember it."""
        key = _key_of(round_, unit)
        costs = self._open.get(key)
        if costs is None:
            if len(self._open) >= MOST_OPEN_UNITS:
                self._open = {}
            costs = self._open[key] = self.costs(unit)
        return costs

    def lighter_costs(self, round_: Round, unit: Unit, costs: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the same on each rung of the ladder, and remember it; *costs* are those before the first rung."""
        key = _key_of(round_, unit)
        found = self._lighter.get(key)
        if found is None:
            if len(self._lighter) >= MOST_OPEN_UNITS:
                self._lighter = {}
            found = self._lighter[key] = lighter(round_, unit, costs, self.count)
        return found


def _key_of(round_: Round, unit: Unit) -> tuple[str, ...]:
    return (round_.id, *(_name(round_, post) for post in unit.posts))


def _name(round_: Round, post: Post | None) -> str:
    """Return what tells a post in its round from the others, and from itself before it was overlaid or erased."""
    return f"{post.number}:{hash(post.message)}" if post is not None else f":{hash(round_.user_query)}"


_ledgers: WeakKeyDictionary[Memory, dict[str, dict[object, Ledger]]] = WeakKeyDictionary()


def ledger_of(memory: Memory, role: str, count: TokenCounter) -> Ledger:
    """Return the one ledger that all who read *memory* as *role* share, so that a round is counted once in all."""
    # No lock: the worst that two threads can do is to count a round twice.
    ledgers = _ledgers.setdefault(memory, {}).setdefault(role, {})
    key = _key(count)
    found = ledgers.get(key)
    if found is None:
        for oldest in list(ledgers)[: max(len(ledgers) + 1 - MOST_COUNTERS, 0)]:
            ledgers.pop(oldest, None)
        found = ledgers.setdefault(key, Ledger(role, count))
    return found


def _key(count: TokenCounter) -> object:
    """Return what two equal counters have in common: a bound method is another object each time it is named."""
    try:
        hash(count)
    except TypeError:
        return id(count)  # the ledger keeps the counter, so the number stays its own
    return count
