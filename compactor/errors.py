"""What can go wrong in compaction and composing, on the branch that begins at ``ContextError``."""

from __future__ import annotations

from memory.errors import ContextError

__all__ = ["BudgetExceeded", "CompactionFailed", "CompactionTimeout", "LeasedElsewhere", "SummaryRejected"]


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


class SummaryRejected(ContextError):
    """A summarizer's answer did not pass a check; it is never shown, and the summarizer is asked again later."""

    def __init__(self, check: str, message: str, identifiers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        #: The name of the check, one of ``acceptance.CHECKS``.
        self.check = check
        #: What the answer made up, for ``invented``. Not in the message: it may hold what was said.
        self.identifiers = identifiers
