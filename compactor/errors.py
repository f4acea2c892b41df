"""Errors of compaction and composing, all of them ``ContextError``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from memory.errors import ContextError, StaleCompaction, StoreError


class FailureKind(StrEnum):
    """Why a compaction failed."""

    TIMEOUT = "timeout"
    """The model, or a callable of the host's, took too long."""
    RATE_LIMIT = "rate_limit"
    """The endpoint allows no more requests for now (429)."""
    AUTHENTICATION = "authentication"
    """The endpoint refused the key (401, 403), or the account has no credit (402)."""
    REQUEST = "request"
    """The endpoint refused the request (another 4xx): its model, parameters or length."""
    SERVER = "server"
    """The endpoint failed or is overloaded (5xx)."""
    NETWORK = "network"
    """No connection, or it broke."""
    REJECTED = "rejected"
    """The answer failed a check."""
    SPEND_LIMIT = "spend_limit"
    """One call costs more than an hour's limit."""
    STORE = "store"
    """The session's store failed."""
    CHANGED = "changed"
    """The rounds were others at every reading."""
    OTHER = "other"
    """None of these: the error's class tells."""


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

    def __init__(self, cost: float, limit: float, currency: str) -> None:
        hint = "" if currency == "dollars" else "; it is in dollars where prices= come from Prices.of_model(...)"
        super().__init__(
            f"one call costs about {cost:,.6g} {currency}, and max_spend_per_hour is {limit:,.6g} {currency}: raise"
            f" that, or lower summarizer_input_tokens or target_tokens{hint}"
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
        #: Names that the answer made up (``invented``) or lacks (``forgets_previous``, ``hollow``). Not in the message:
        #: they may quote the conversation.
        self.identifiers = identifiers
        #: Tokens of the source text, if known.
        self.tokens = tokens
        #: For ``hollow``: whether the source had almost no words to summarize, so the answer was right to say so.
        self.had_nothing_to_say = had_nothing_to_say
        #: Whether a retry with the reason would not help.
        self.is_final = is_final
        #: Token usage of all attempts, if known; set when the last one is rejected.
        self.usage: Mapping[str, int] | None = None


def read_status(error: object) -> int | None:
    """Return the HTTP status of the endpoint's *error*; None if the failure has another cause."""
    codes = (getattr(error, name, None) for name in ("status_code", "code"))
    return next((code for code in codes if type(code) is int and 100 <= code < 600), None)


def classify_failure(error: BaseException) -> tuple[FailureKind, int | None]:
    """Return the kind of failure that *error* is, and the endpoint's HTTP status if it or its cause has one."""
    match error:
        case SummaryRejected():
            return FailureKind.REJECTED, None
        case SpendExceeded():
            return FailureKind.SPEND_LIMIT, None
        case StoreError():
            return FailureKind.STORE, None
        case StaleCompaction():
            return FailureKind.CHANGED, None
    chain = [one for one in (error, error.__cause__) if one is not None]
    status = next(filter(None, map(read_status, chain)), None)
    names = [type(one).__name__ for one in chain]
    if status is not None:
        kind = _BY_STATUS.get(status, FailureKind.SERVER if status >= 500 else FailureKind.REQUEST)
    elif any(isinstance(one, TimeoutError) for one in chain) or "Timeout" in "".join(names):
        kind = FailureKind.TIMEOUT
    elif any(isinstance(one, ConnectionError) for one in chain) or any(word in "".join(names) for word in _NETWORK):
        kind = FailureKind.NETWORK
    else:
        kind = FailureKind.OTHER
    return kind, status


#: Statuses whose first digit does not tell.
_BY_STATUS = {
    401: FailureKind.AUTHENTICATION,
    402: FailureKind.AUTHENTICATION,
    403: FailureKind.AUTHENTICATION,
    408: FailureKind.TIMEOUT,
    429: FailureKind.RATE_LIMIT,
    504: FailureKind.TIMEOUT,
}
#: Parts of the names of errors of HTTP clients that are about the connection.
_NETWORK = ("Connect", "Protocol", "ReadError")
