"""What each closed round costs in a prompt, counted once and summed up: no prompt pays for the length of the past."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from memory import Memory
from memory.forking import renewed_after_fork
from memory.rounds import Round

from .tokens import TokenCounter
from .units import Unit, count_message, units_of

__all__ = ["Ledger", "Sums", "ledger_of"]

#: Rounds that are counted in one go between two looks at the lock.
BATCH = 64


@dataclass(frozen=True, slots=True)
class Sums:
    """Cumulative tokens and messages: item ``i`` is the sum over the first ``i`` rounds. Lists only ever grow."""

    tokens: list[int]
    messages: list[int]
    ids: list[str]


class Ledger:
    """The costs of one role's rounds under one token counter. Any number of threads may ask it."""

    def __init__(self, role: str, count: TokenCounter) -> None:
        self.role = role
        self.count = count
        self._sums = Sums([0], [0], [])
        self._epoch: object = None
        self._open: tuple[str, dict[str, int]] = ("", {})  # the newest round's id, and its posts' tokens by post id
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards _sums and _epoch; never held while counting

    def sums(self, rounds: Sequence[Round], settled: int, epoch: object) -> Sums:
        """Return sums that reach over the first *settled* of *rounds*; those new since the last call are counted.

        *epoch* equals that of an earlier call only if those rounds are still what they were then.
        """
        while True:
            with self._lock:
                sums, same = self._sums, epoch == self._epoch
            if not same:
                sums = self._shared_with(sums, rounds, settled)
            done = len(sums.ids)
            if done >= settled and same:
                return sums
            fresh = [self._cost(rounds[place]) for place in range(done, min(settled, done + BATCH))]
            with self._lock:
                if same and (self._sums is not sums or len(sums.ids) != done):
                    continue  # another thread was here meanwhile; go on from what it has counted
                for round_id, tokens, messages in fresh:
                    sums.tokens.append(sums.tokens[-1] + tokens)
                    sums.messages.append(sums.messages[-1] + messages)
                    sums.ids.append(round_id)
                self._sums, self._epoch = sums, epoch

    @staticmethod
    def _shared_with(sums: Sums, rounds: Sequence[Round], settled: int) -> Sums:
        """Return a copy of *sums* up to the first round that is another now. Rare: a closed round failed."""
        keep = 0
        for keep, round_id in enumerate(sums.ids):
            if keep >= settled or rounds[keep].id != round_id:
                break
        else:
            keep = len(sums.ids)
        return Sums(sums.tokens[: keep + 1], sums.messages[: keep + 1], sums.ids[:keep])

    def _cost(self, round_: Round) -> tuple[str, int, int]:
        units = units_of(round_, self.role)
        return round_.id, sum(map(self.unit_tokens, units)), sum(len(unit.messages) for unit in units)

    def unit_tokens(self, unit: Unit) -> int:
        """Return the tokens of *unit*'s messages."""
        return sum(count_message(message, self.count) for message in unit.messages)

    def open_unit_tokens(self, round_: Round, unit: Unit) -> int:
        """Return the same for a unit of a round that may still grow, remembered while that round is the newest."""
        round_id, known = self._open
        if round_id != round_.id:
            round_id, known = self._open = (round_.id, {})
        key = "+".join(post.id if post else "" for post in unit.posts) + f"/{len(unit.messages)}"
        tokens = known.get(key)
        if tokens is None:
            tokens = known[key] = self.unit_tokens(unit)
        return tokens


_ledgers: WeakKeyDictionary[Memory, dict[Any, Ledger]] = WeakKeyDictionary()
_ledgers_lock = threading.Lock()  # guards _ledgers


def ledger_of(memory: Memory, role: str, count: TokenCounter) -> Ledger:
    """Return the one ledger that all who read *memory* as *role* share, so that a round is counted once in all."""
    with _ledgers_lock:
        ledgers = _ledgers.setdefault(memory, {})
        found = ledgers.get((role, id(count)))  # the ledger holds the counter, so its id stays its own
        if found is None:
            found = ledgers[role, id(count)] = Ledger(role, count)
        return found
