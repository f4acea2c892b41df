"""What can go wrong in compaction and composing, on the branch that begins at ``ContextError``."""

from __future__ import annotations

from memory.errors import ContextError

__all__ = ["BudgetExceeded", "CompactionFailed", "CompactionTimeout", "SummaryRejected"]


class BudgetExceeded(ContextError):
    """Even the shortest legal prompt is longer than the budget."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"system messages, compaction and newest user message need {needed} tokens, and the budget is {budget};"
            " raise the budget, or shorten the system prompt or the message"
        )
        self.needed = needed
        self.budget = budget


class CompactionFailed(ContextError):
    """``compact_now`` did not get a compaction; the published one, if any, still stands."""


class CompactionTimeout(CompactionFailed, TimeoutError):
    """A summarizer, or the wait for one, took longer than it may."""


class SummaryRejected(ContextError):
    """A summarizer's answer did not pass a check; it is never shown, and the summarizer is asked again later."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        #: The name of the check: ``empty``, ``greeting``, ``echo``, ``no_progress``, ``oversized``, ``not_text``.
        self.check = check
