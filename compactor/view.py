"""A View: the log and its overlays as one role sees them, with token counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from memory.overlays import CompactedMessage
from memory.rounds import Round
from memory.visibility import Rounds

from .acceptance import Source
from .config import CompactorConfig
from .host_rounds import HostRounds
from .ledger import Ledger, Sums
from .summarizers.base import Summary, SummaryRequest
from .tokens import DEFAULT_WINDOW, window_of
from .units import MESSAGE_TOKENS, PROMPT_TOKENS, Unit, units_of

__all__ = ["View", "Work"]


class Work(Protocol):
    """What a strategy that asks a model may use, for as long as one cycle lasts."""

    @property
    def config(self) -> CompactorConfig: ...

    @property
    def mark(self) -> int | None:
        """The number of tokens that the prompt has passed, where that is why there is work."""

    @property
    def plan(self) -> str | None:
        """The agent's plan as text, where there is one."""

    def summarize(self, request: SummaryRequest, source: Source, view: View) -> Summary:
        """Return an accepted summary of *source*. Raises what the summarizer raises, or ``SummaryRejected``."""


@dataclass(frozen=True)
class View:
    """The log and its overlays as one role sees them, at one moment."""

    rounds: Rounds | HostRounds
    #: The published compaction, its indices in the numbering of ``rounds``.
    compaction: CompactedMessage | None
    ledger: Ledger
    #: Tokens of what always stands in front: system messages.
    header_tokens: int = 0
    #: Whose window counts; empty: the default's.
    model: str = ""
    #: What a strategy that asks a model may use; None where no model may be asked.
    work: Work | None = None

    @property
    def role(self) -> str:
        return self.ledger.role

    @property
    def total(self) -> int:
        """Visible rounds, the open one included."""
        return len(self.rounds)

    @property
    def closed(self) -> int:
        """Closed rounds before the first open one: as far as a compaction may reach."""
        return self.rounds.settled

    @property
    def end(self) -> int:
        """Visible rounds that the compaction covers."""
        return self.compaction.end_index if self.compaction else 0

    @property
    def tail_length(self) -> int:
        return self.total - self.end

    @property
    def tail(self) -> tuple[Round, ...]:
        return self.rounds[self.end :]

    @property
    def compaction_tokens(self) -> int:
        if self.compaction is None:
            return 0
        return MESSAGE_TOKENS + self.ledger.count(self.compaction.to_prompt())

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt: what stands in front, the compaction and the tail."""
        return PROMPT_TOKENS + self.header_tokens + self.compaction_tokens + self.tokens_behind(self.end)

    @property
    def messages(self) -> int:
        """Messages of the tail."""
        closed = self.sums.messages[self.closed] - self.sums.messages[min(self.end, self.closed)]
        return closed + sum(len(unit.posts) for _, unit in self._growing())

    @property
    def window(self) -> int:
        """The model's context window in tokens."""
        return window_of(self.model) or DEFAULT_WINDOW

    @cached_property
    def sums(self) -> Sums:
        """What there is before each closed round."""
        return self.ledger.sums(self.rounds, self.closed, self.rounds.epoch)

    def tokens_behind(self, end: int) -> int:
        """Return the tokens of all rounds after the first *end*."""
        growing = sum(sum(self.open_costs(round_, unit)) for round_, unit in self._growing())
        return self.closed_tokens(end, self.closed) + growing

    def closed_tokens(self, start: int, stop: int) -> int:
        """Return the tokens of the closed ones among rounds *start* to *stop*, as a slice counts them."""
        stop = min(stop, self.closed)
        return self.sums.tokens[stop] - self.sums.tokens[min(start, stop)]

    def units(self, place: int) -> Iterator[tuple[Round, Unit]]:
        """Give the messages of one round, in units that may not be torn, each with the round."""
        round_ = self.rounds[place]
        for unit in units_of(round_, self.role, last=place == self.total - 1):
            yield round_, unit

    def open_costs(self, round_: Round, unit: Unit) -> tuple[int, ...]:
        """Return the tokens of each message of a unit of a round that may still grow."""
        if isinstance(self.rounds, HostRounds):  # nobody promises that its posts stay as they are
            return self.ledger.costs(unit)
        return self.ledger.open_costs(round_, unit)

    def _growing(self) -> Iterator[tuple[Round, Unit]]:
        for place in range(max(self.closed, self.end), self.total):
            yield from self.units(place)
