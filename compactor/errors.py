"""What can go wrong in compaction and composing, on the branch that begins at ``ContextError``."""

from __future__ import annotations

import math
from collections.abc import Mapping

from memory.errors import ContextError

__all__ = [
    "BudgetExceeded",
    "CompactionFailed",
    "CompactionTimeout",
    "LeasedElsewhere",
    "LimitReached",
    "SpendExceeded",
    "SummaryRejected",
]


class BudgetExceeded(ContextError):
    """Even the shortest legal prompt is longer than the budget."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"system messages, pinned posts and newest user message need {needed} tokens, and the budget is {budget};"
            " raise the budget, shorten the system prompt or the message, or unpin posts"
        )
        self.needed = needed
        self.budget = budget


class CompactionFailed(ContextError):
    """``compact_now`` did not get a compaction; the published one, if any, still stands."""


class CompactionTimeout(CompactionFailed, TimeoutError):
    """A summarizer, or the wait for one, took longer than it may."""


class LeasedElsewhere(CompactionFailed):
    """Another process has this role's history summarised just now, or had when it ended: nobody can tell which."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            "another process is compacting this role's history, or ended while it was, and the same is not paid for"
            f" twice; ask again when it is through, in {seconds:.0f} seconds at the latest"
        )
        #: Until its lease expires.
        self.seconds = seconds


class LimitReached(CompactionTimeout):
    """The shared limits have no room for another call now. The compactor waits for its turn, and compacts then."""

    def __init__(self, seconds: float | None, cost: float = 0.0, *, first: bool = False) -> None:
        when = "a call has ended" if seconds is None else f"{math.ceil(seconds)} seconds have passed"
        super().__init__(
            f"the shared limits have no room for a call until {when}, and others may be before it; it is compacted when"
            " its turn comes: give it more time, or raise concurrent= or max_spend_per_hour= of the Limits"
        )
        #: Until there is room for the first that waits; None: until a call has ended, which may be any time.
        self.seconds = seconds
        #: What the call would cost, as estimated, and whether it comes before all others that wait.
        self.cost = cost
        self.first = first


class SpendExceeded(CompactionFailed):
    """A single call would cost more than may be spent in an hour."""

    def __init__(self, cost: float, limit: float, unit: str) -> None:
        super().__init__(
            f"one call costs about {cost:,.6g} {unit}, and max_spend_per_hour is {limit:,.6g} {unit}: raise that,"
            " or lower summarizer_input_tokens or target_tokens"
            + ("" if unit == "dollars" else "; it is in dollars where prices= come from Prices.of_model(...)")
        )
        self.cost = cost
        self.limit = limit


class SummaryRejected(ContextError):
    """A summarizer's answer did not pass a check; it is never shown, and the summarizer is asked again later."""

    def __init__(self, check: str, message: str, identifiers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        #: The name of the check, one of ``acceptance.CHECKS``.
        self.check = check
        #: What the answer made up, for ``invented``; what it lacks, for ``partial`` and ``hollow``. Not in the message:
        #: it may hold what was said.
        self.identifiers = identifiers
        #: How many tokens it was to say in less, where that is known.
        self.tokens: int | None = None
        #: Of ``hollow``: whether there was hardly a word to sum up, so that whoever says so is right.
        self.had_nothing_to_say = False
        #: Asking again with the reason would not help.
        self.is_final = False
        #: What all attempts took, if that is known.
        self.usage: Mapping[str, int] | None = None
