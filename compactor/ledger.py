"""What each closed round costs in a prompt, counted once and summed up: no prompt pays for the length of the past."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from memory import Memory
from memory.forking import renewed_after_fork
from memory.rounds import Round

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
    """Rounds by their place, and places by the rounds' ids."""

    def __getitem__(self, index: int, /) -> Round: ...
    def end_of(self, round_id: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Sums:
    """What there is before each place: item ``i`` tells of the first ``i`` rounds. Lists only ever grow."""

    tokens: list[int]
    messages: list[int]
    #: The place of the newest of them in which the user speaks; -1 where he does in none.
    asked: list[int]
    #: Id and log number of each round.
    ids: list[str]
    numbers: list[int]

    def add(self, round_: Round, tokens: int, messages: int, *, from_user: bool) -> None:
        self.tokens.append(self.tokens[-1] + tokens)
        self.messages.append(self.messages[-1] + messages)
        self.asked.append(len(self.ids) if from_user else self.asked[-1])
        self.numbers.append(round_.number)
        self.ids.append(round_.id)

    def first(self, count: int) -> Sums:
        """Return a copy that reaches over the first *count* rounds."""
        until = count + 1
        return Sums(
            self.tokens[:until], self.messages[:until], self.asked[:until], self.ids[:count], self.numbers[:count]
        )


class Ledger:
    """The costs of one role's rounds under one token counter. Any number of threads may ask it."""

    def __init__(self, role: str, count: TokenCounter) -> None:
        self.role = role
        self.count = count
        self._sums = Sums([0], [0], [-1], [], [])
        self._epoch: object = None
        self._open: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards _sums and _epoch; never held while counting

    def sums(self, rounds: Placed, settled: int, epoch: object) -> Sums:
        """Return sums that reach over the first *settled* of *rounds*; those new since the last call are counted.

        *epoch* equals that of an earlier call only if those rounds are still what they were then.
        """
        while True:
            with self._lock:
                sums, same = self._sums, epoch == self._epoch
            if not same:
                sums = _shared_with(sums, rounds, settled)
            done = len(sums.ids)
            if done >= settled and same:
                return sums
            fresh = [self._cost(rounds[place]) for place in range(done, min(settled, done + BATCH))]
            with self._lock:
                if same and (self._sums is not sums or len(sums.ids) != done):
                    continue  # another thread was here meanwhile; go on from what it has counted
                for round_, tokens, messages, from_user in fresh:
                    sums.add(round_, tokens, messages, from_user=from_user)
                if not same and self._epoch is not None:
                    self._open = {}
                self._sums, self._epoch = sums, epoch

    def _cost(self, round_: Round) -> tuple[Round, int, int, bool]:
        units = units_of(round_, self.role)
        messages = sum(len(unit.posts) for unit in units)
        return round_, sum(map(sum, map(self.costs, units))), messages, any(unit.from_user for unit in units)

    def costs(self, unit: Unit) -> tuple[int, ...]:
        """Return the tokens of each of *unit*'s messages."""
        return tuple(count_message(message, self.count) for message in unit.messages)

    def open_costs(self, round_: Round, unit: Unit) -> tuple[int, ...]:
        """Return the same for a unit of a round of the log that may still grow, and remember it."""
        key = (round_.id, *(str(post.number) if post else "" for post in unit.posts))
        costs = self._open.get(key)
        if costs is None:
            if len(self._open) >= MOST_OPEN_UNITS:
                self._open = {}
            costs = self._open[key] = self.costs(unit)
        return costs


def _shared_with(sums: Sums, rounds: Placed, settled: int) -> Sums:
    """Return a copy of *sums* up to the first round that is another now.

    Without the newest: another host's rounds may say that they are closed and grow all the same. Memory's own come
    here only when a closed round has failed.
    """
    keep = min(len(sums.ids) - 1, settled)
    same = (place for place in range(keep) if rounds.end_of(sums.ids[place]) != place + 1)
    return sums.first(next(same, max(keep, 0)))


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
