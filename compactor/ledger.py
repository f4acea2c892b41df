"""What each closed round costs in a prompt, counted once and summed up: no prompt pays for the length of the past."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple, Protocol
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


class Cost(NamedTuple):
    """What one closed round is in a prompt."""

    round_id: str
    number: int
    tokens: int
    messages: int
    #: Whether the user speaks in it.
    from_user: bool


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

    def add(self, cost: Cost) -> None:
        self.tokens.append(self.tokens[-1] + cost.tokens)
        self.messages.append(self.messages[-1] + cost.messages)
        self.asked.append(len(self.ids) if cost.from_user else self.asked[-1])
        self.ids.append(cost.round_id)
        self.numbers.append(cost.number)

    def cost(self, place: int) -> Cost:
        """Return what ``add`` was given for one round."""
        return Cost(
            self.ids[place],
            self.numbers[place],
            self.tokens[place + 1] - self.tokens[place],
            self.messages[place + 1] - self.messages[place],
            self.asked[place + 1] == place,
        )


class Ledger:
    """The costs of one role's rounds under one token counter. Any number of threads may ask it."""

    def __init__(self, role: str, count: TokenCounter) -> None:
        self.role = role
        self.count = count
        #: Tokens of what the last prompt had in front of the compaction: only whoever composes knows it all.
        self.header_tokens = 0
        self._open: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._renew()
        renewed_after_fork(self)

    def _renew(self) -> None:
        """Begin anew: another thread of the parent may have been in the middle of adding a round."""
        self._lock = threading.Lock()  # guards _sums and _epoch; never held while counting
        self._sums = Sums([0], [0], [-1], [], [])
        self._epoch: object = None

    _after_fork = _renew

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
                for cost in fresh:
                    sums.add(cost)
                self._sums, self._epoch = sums, epoch

    def _cost(self, round_: Round) -> Cost:
        units = units_of(round_, self.role)
        # What was counted while the round was open is not counted again.
        tokens = sum(sum(self._open.pop(_key_of(round_, unit), ()) or self.costs(unit)) for unit in units)
        messages = sum(len(unit.posts) for unit in units)
        return Cost(round_.id, round_.number, tokens, messages, any(unit.from_user for unit in units))

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


def _key_of(round_: Round, unit: Unit) -> tuple[str, ...]:
    return (round_.id, *(str(post.number) if post else "" for post in unit.posts))


def _shared_with(sums: Sums, rounds: Placed, settled: int) -> Sums:
    """Return what *sums* says of the rounds that are still there, without counting any of them again.

    Without the newest: another host's rounds may say that they are closed and grow all the same. Memory's own come
    here only when a closed round has failed.
    """
    kept = Sums([0], [0], [-1], [], [])
    for place in range(len(sums.ids) - 1):
        if len(kept.ids) < settled and rounds.end_of(sums.ids[place]) == len(kept.ids) + 1:
            kept.add(sums.cost(place))
    return kept


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
