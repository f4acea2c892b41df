"""What prompts have in common with the one before, kept: how the newest closed rounds read, what stands in front."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from memory.frozen import thaw

from ..tokens import TokenCounter
from .pieces import Piece
from .sums import Cost
from .units import Message

__all__ = ["CountedTexts", "KeptRound", "KeptRounds", "own"]

#: Rounds of one role that are kept at most, and their tokens: beyond that they are read and made anew.
MOST_ROUNDS, MOST_TOKENS = 256, 1_000_000
#: Texts whose counts are remembered; more, and all are forgotten.
MOST_TEXTS = 64


def own(message: Mapping[str, Any]) -> Message:
    """Return a copy of *message* that its receiver may change, however deep."""
    for value in message.values():
        if not isinstance(value, str):
            return {key: thaw(value) for key, value in message.items()}
    return {**message}


@dataclass(frozen=True, slots=True)
class KeptRound:
    """A closed round as it reads in prompts."""

    #: What the ledger counted: the round reads so for as long as this very object counts.
    cost: Cost
    pieces: tuple[Piece, ...]
    #: The same messages, and whether there is nothing in them but text.
    messages: tuple[Message, ...]
    plain: bool

    @classmethod
    def of(cls, cost: Cost, pieces: Collection[Piece]) -> KeptRound:
        messages = tuple([message for piece in pieces for message in piece.unit.messages])
        plain = {type(value) for message in messages for value in message.values()} <= {str}
        return cls(cost, tuple(pieces), messages, plain)

    def own_messages(self) -> list[Message]:
        """Return its messages as copies that their receiver may change."""
        return list(map(dict.copy, self.messages)) if self.plain else [own(one) for one in self.messages]


class KeptRounds:
    """The newest closed rounds of one role. Who changes it holds the ledger's lock; any number may read."""

    def __init__(self) -> None:
        self._rounds: dict[str, KeptRound] = {}
        self._tokens = 0

    def of(self, costs: Iterable[Cost]) -> list[KeptRound | None]:
        """Return the rounds that *costs* are of; None for one that is not kept, or reads otherwise than when it was
        counted."""
        found = [(self._rounds.get(cost.round_id), cost) for cost in costs]
        return [kept if kept is not None and kept.cost is cost else None for kept, cost in found]

    def add(self, kept: KeptRound) -> None:
        self._drop(kept.cost.round_id)
        self._rounds[kept.cost.round_id] = kept
        self._tokens += kept.cost.tokens
        while len(self._rounds) > MOST_ROUNDS or (self._tokens > MOST_TOKENS and len(self._rounds) > 1):
            self._drop(next(iter(self._rounds)))

    def limit_to(self, round_ids: Collection[str]) -> None:
        """Let go of all but the rounds of those ids."""
        for round_id in [one for one in self._rounds if one not in round_ids]:
            self._drop(round_id)

    def limit_by(self, reads_so: Callable[[Cost], bool]) -> None:
        """Let go of all but the rounds that still read as they were counted."""
        for round_id in [one for one, kept in self._rounds.items() if not reads_so(kept.cost)]:
            self._drop(round_id)

    def _drop(self, round_id: str) -> None:
        gone = self._rounds.pop(round_id, None)
        self._tokens -= gone.cost.tokens if gone is not None else 0


class CountedTexts:
    """A counter that remembers what it counted: for texts that are the same in each prompt. It keeps none of them."""

    def __init__(self, count: TokenCounter) -> None:
        self._count = count
        self._known: dict[tuple[int, int], int] = {}

    def __call__(self, text: str, /) -> int:
        key = len(text), hash(text)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_TEXTS:
                self._known = {}
            found = self._known[key] = self._count(text)
        return found
