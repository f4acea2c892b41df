"""Errors of compaction and composing, all of them ``ContextError``."""

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
    """Even the shortest legal prompt, of *needed* tokens, is longer than the *budget*."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"system messages, pinned posts and newest user message need {needed} tokens, and the budget is {budget};"
            " raise the budget, shorten the system prompt or the message, or unpin posts"
        )
        self.needed = needed
        self.budget = budget


class CompactionFailed(ContextError):
    """``compact_now`` got no compaction; the published one, if any, still stands."""


class CompactionTimeout(CompactionFailed, TimeoutError):
    """A summarizer, a trigger or getter of the host's, or the wait for one, exceeded its timeout."""


class LeasedElsewhere(CompactionFailed):
    """Another process holds the lease on this role's history: it is compacting, or it ended during a compaction. Its
    lease expires in so many *seconds*."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            "another process compacts this role's history, or ended while it did, and nothing is paid for twice;"
            f" try again in {seconds:.0f} seconds at the latest"
        )
        self.seconds = seconds


class LimitReached(CompactionTimeout):
    """The shared limits have no room for another call now. The compactor queues and compacts later.

    *seconds* until there is room for the first in the queue; None: until some call ends. *cost* is the estimated cost
    of the call; *first*: it goes to the front of the queue.
    """

    def __init__(self, seconds: float | None, cost: float = 0.0, *, first: bool = False) -> None:
        when = "a call has ended" if seconds is None else f"{math.ceil(seconds)} seconds have passed"
        super().__init__(
            f"the shared limits have no room for a call until {when}, and others may be first in the queue; it is"
            " compacted when its turn comes: give it more time, or raise max_concurrency= or max_spend_per_hour="
        )
        self.seconds = seconds
        self.cost = cost
        self.first = first


class SpendExceeded(CompactionFailed):
    """A single call, at an estimated *cost*, would cost more than the hourly *limit*."""

    def __init__(self, cost: float, limit: float, unit: str) -> None:
        hint = "" if unit == "dollars" else "; it is in dollars where prices= come from Prices.of_model(...)"
        super().__init__(
            f"one call costs about {cost:,.6g} {unit}, and max_spend_per_hour is {limit:,.6g} {unit}: raise that,"
            f" or lower summarizer_input_tokens or target_tokens{hint}"
        )
        self.cost = cost
        self.limit = limit


class SummaryRejected(ContextError):
    """A summarizer's answer failed a check. It is never shown, and the summarizer is asked again later."""

    def __init__(
        self,
        check: str,
        message: str,
        identifiers: tuple[str, ...] = (),
        *,
        tokens: int | None = None,
        had_nothing_to_say: bool = False,
        is_final: bool = False,
    ) -> None:
        super().__init__(message)
        #: The name of the check, one of ``acceptance.CHECKS``.
        self.check = check
        #: Names that the answer made up (``invented``) or lacks (``partial``, ``hollow``). Not in the message: they may
        #: quote the conversation.
        self.identifiers = identifiers
        #: Tokens of the source text, if known.
        self.tokens = tokens
        #: For ``hollow``: whether the source had almost no words to summarize, so the answer was right to say so.
        self.had_nothing_to_say = had_nothing_to_say
        #: Whether a retry with the reason would not help.
        self.is_final = is_final
        #: Token usage of all attempts, if known; set when the last one is rejected.
        self.usage: Mapping[str, int] | None = None
