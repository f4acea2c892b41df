"""Limits shared by all compactors of a process: concurrent calls, and spend per hour.

A compactor over a limit queues without occupying a worker. The first in the queue gets its permit as soon as there is
room, and nobody passes it, so no session starves, however many there are.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memory.arguments import check_number, check_whole_number
from memory.hooks import renew_after_fork
from memory.values import ValueObject

from ..errors import LimitReached, SpendExceeded
from ..summarizers.base import Summarizer, Summary, SummaryRequest
from ..timers import SYSTEM_CLOCK, Clock, call_weakly
from ..tokens import TokenCounter, count_prompt
from .prices import Prices

HOUR = 3_600.0
#: Seconds of spend that are recorded as one sum, which expires an hour after their end.
SPEND_INTERVAL = 60.0
#: Estimated tokens of an answer without a target.
DEFAULT_ANSWER = 500
#: Minimum seconds of a timer. Without it, a timer that fires a rounding error early would be set again forever.
MIN_WAIT = 0.001


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LimitsStatus(ValueObject):
    """The usage of the limits."""

    #: Permits in use, including those of abandoned calls that have not ended.
    in_use: int
    #: Compactors in the queue.
    queued: int
    #: Spent in the last hour, in ``Limits.spend_unit``.
    spent: float
    #: Reserved for calls that have not ended, in ``Limits.spend_unit``.
    reserved: float


class Limits:
    """Shared limits: *max_concurrency* cycles that call a model at once, *max_spend_per_hour* in any sixty minutes.

    Share one instance among compactors: ``ContextCompactor(limits=...)``. Each process has its own. Spend is in dollars
    if *prices* have a dollar price per token (``Prices.of_model``), else in tokens: as many uncached input tokens of
    the agent's model as cost the same.

    An estimate is reserved for each call, and the reported usage replaces it, so an hour is overspent at most by the
    error of the estimates. A failed or abandoned call, or one without reported usage, costs its estimate; one that the
    endpoint refused, or that did not reach it, costs nothing. A cycle holds its permit from its first request until its
    last call really ends, also if it is abandoned. A ``deterministic`` summarizer needs no permit.
    """

    def __init__(
        self,
        max_concurrency: int | None = None,
        max_spend_per_hour: float | None = None,
        prices: Prices | None = None,
        clock: Clock | None = None,
    ) -> None:
        if max_concurrency is None and max_spend_per_hour is None:
            raise ValueError("these limits limit nothing: give max_concurrency=, max_spend_per_hour= or both")
        if max_concurrency is not None:
            check_whole_number("max_concurrency", max_concurrency, 1)
        if max_spend_per_hour is not None:
            check_number("max_spend_per_hour", max_spend_per_hour, above=True, finite=True)
        self.max_concurrency = max_concurrency
        self.max_spend_per_hour = max_spend_per_hour
        self.prices = prices if prices is not None else Prices()
        self._clock = clock if clock is not None else SYSTEM_CLOCK
        #: Expiry time and amount of each sum, in order of time.
        self._spent: deque[tuple[float, float]] = deque()
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        """Reset the state in a forked child: permits and tickets stay with the parent; past spend counts for both."""
        self._lock = threading.RLock()  # guards all below it, _spent, and the mutable state of permits and tickets
        self._in_use: set[Permit] = set()
        self._queue: OrderedDict[Ticket, float] = OrderedDict()  # the estimated cost of each
        self._timer_at = math.inf  # when a timer checks the first in the queue
        self._reserved = 0.0

    @property
    def spend_unit(self) -> str:
        """The unit of spend: ``dollars`` or ``tokens``."""
        return "tokens" if self.prices.per_token is None else "dollars"

    def status(self) -> LimitsStatus:
        """Return the current usage of the limits."""
        now = self._clock.monotonic()
        with self._lock:
            return LimitsStatus(len(self._in_use), len(self._queue), self._sum_spent(now), self._reserved)

    def compute_cost(self, usage: Mapping[str, int]) -> float:
        """Return the cost of a call with *usage*, in ``spend_unit``."""
        return self.prices.compute_cost(usage)

    def wake_by(self, dispatcher: object) -> None:
        """Do nothing: a job's ticket leaves the queue when the job ends."""

    def make_ticket(self, summarizer: Summarizer, call: Callable[[], bool | None]) -> Ticket:  # noqa: ARG002
        """Return the ticket of a compactor with that *summarizer*; *call* is as ``Ticket.call``."""
        return Ticket(self, call)

    def _admit_waiting(self) -> None:
        """Grant permits in queue order while there is room; set a timer if room depends on time alone."""
        while (ticket := self._admit_first()) is not None:
            wanted: bool | None = False
            try:
                wanted = ticket.call()
            finally:
                if not wanted:  # its compactor was stopped, or garbage collected
                    with self._lock:
                        self._revoke(ticket)

    def _admit_on_time(self) -> None:
        with self._lock:
            self._timer_at = math.inf
        self._admit_waiting()

    def _admit_first(self) -> Ticket | None:
        """Grant the first in the queue its permit and return its ticket; None if there is no room yet."""
        now = self._clock.monotonic()
        with self._lock:
            if not self._queue or self._is_full():
                return None
            ticket, cost = next(iter(self._queue.items()))
            seconds = self._find_wait(cost, now)
            if seconds == 0:
                del self._queue[ticket]
                ticket.granted = Permit(self, cost, ticket)
                self._in_use.add(ticket.granted)
                self._reserved += cost
                return ticket
            if seconds is None or self._timer_at <= now + seconds:  # the end of a call makes room, or a timer is set
                return None
            self._timer_at = now + max(seconds, MIN_WAIT)
            seconds = self._timer_at - now
        try:
            self._clock.call_later(seconds, call_weakly(self._admit_on_time))
        except BaseException:  # no thread could be started: the next attempt sets the timer
            with self._lock:
                self._timer_at = math.inf
            raise
        return None

    # Called by permits and tickets.

    def _reserve(self, permit: Permit, cost: float) -> None:
        """Reserve *cost* for the next call of *permit*. Raises ``LimitReached`` if it has to wait."""
        now = self._clock.monotonic()
        with self._lock:
            is_in_use, more = permit in self._in_use, cost - permit.reserved
            seconds = self._find_wait(more, now)
            if seconds != 0 or not (is_in_use or (not self._queue and not self._is_full())):
                # A cycle that reserved too little goes to the front, else the next would pass it. A cycle that has made
                # a call already queues at the end.
                first = is_in_use and not permit.has_called
                limit = LimitReached(self._find_queue_wait(cost, now), cost, first=first)
                if first and permit.ticket is not None:
                    self._enqueue(permit.ticket, cost, first=True)
                raise limit
            self._in_use.add(permit)
            self._reserved += more
            permit.reserved = cost
        if more < 0:
            self._admit_waiting()

    def _record_spent(self, permit: Permit, cost: float) -> None:
        """Record *cost* as spent by the call of *permit* that has ended, instead of its reservation."""
        now = self._clock.monotonic()
        with self._lock:
            if permit not in self._in_use:  # in a forked child: the permit is the parent's
                return
            self._reserved, permit.reserved = self._reserved - permit.reserved, 0.0
            self._add_spent(cost, now)
        self._admit_waiting()

    def _withdraw(self, ticket: Ticket, *, from_queue: bool = False) -> None:
        with self._lock:
            if from_queue:
                self._queue.pop(ticket, None)
            self._revoke(ticket)
        self._admit_waiting()  # even if it only waited: the next in the queue may cost less

    def _enqueue(self, ticket: Ticket, cost: float, *, first: bool) -> None:
        """Queue *ticket*, in front if *first*, unless it waits or has a permit. Called with the lock held."""
        if not ticket.is_queued and ticket.granted is None:
            self._queue[ticket] = cost
            if first:
                self._queue.move_to_end(ticket, last=False)

    def _revoke(self, ticket: Ticket) -> None:
        """Revoke the unused permit of *ticket*, if any. Called with the lock held."""
        self._end_use(ticket.granted)
        ticket.granted = None

    def _end_use(self, permit: Permit | None) -> None:
        """End the use of *permit* and release its reservation. Called with the lock held."""
        if permit is not None and permit in self._in_use:
            self._in_use.remove(permit)
            self._reserved, permit.reserved = self._reserved - permit.reserved, 0.0
            if not self._in_use:
                self._reserved = 0.0  # clears rounding errors

    def _is_full(self) -> bool:
        return self.max_concurrency is not None and len(self._in_use) >= self.max_concurrency

    def _find_queue_wait(self, cost: float, now: float) -> float | None:
        """Return the seconds until there is room for *cost* and for the first in the queue; None if only the end of a
        call makes room. Called with the lock held."""
        first = next(iter(self._queue.values()), 0.0)
        return self._find_wait(max(cost, first), now) or None

    def _find_wait(self, cost: float, now: float) -> float | None:
        """Return the seconds until there is room for *cost*; None if only the end of a call makes room."""
        if cost <= 0 or self.max_spend_per_hour is None:
            return 0.0
        limit = self.max_spend_per_hour * (1 + 1e-9)  # sums of floats are not exact
        over = self._sum_spent(now) + self._reserved + cost - limit
        if over <= 0:
            return 0.0
        for until, spent in self._spent:
            over -= spent
            if over <= 0:
                return until - now
        return None

    def _sum_spent(self, now: float) -> float:
        """Return the spend in the hour before *now*, and drop expired sums."""
        while self._spent and self._spent[0][0] <= now:
            self._spent.popleft()
        return math.fsum(spent for _, spent in self._spent)

    def _add_spent(self, cost: float, now: float) -> None:
        if cost > 0 and self.max_spend_per_hour is not None:
            until = (now // SPEND_INTERVAL + 1) * SPEND_INTERVAL + HOUR
            known = self._spent.pop()[1] if self._spent and self._spent[-1][0] == until else 0.0
            self._spent.append((until, known + cost))


@dataclass(slots=True, eq=False, repr=False)
class Permit:
    """The right of one cycle to call a model, with the estimated cost of its next call reserved."""

    limits: Limits
    #: Reserved for the next call, or the one in flight.
    reserved: float = 0.0
    #: The ticket of the cycle's compactor.
    ticket: Ticket | None = None
    #: A call was made.
    has_called: bool = False

    def reserve(self, request: SummaryRequest, count: TokenCounter) -> None:
        """Reserve the estimated cost of *request*, which may then be sent.

        Raises ``LimitReached`` if it has to wait, and ``SpendExceeded`` if it costs more than an hour's limit.
        """
        limits, cost = self.limits, 0.0
        if limits.max_spend_per_hour is not None:
            cost = limits.compute_cost(estimate_usage(request, count))
            if cost > limits.max_spend_per_hour:
                raise SpendExceeded(cost, limits.max_spend_per_hour, limits.spend_unit)
        limits._reserve(self, cost)

    def ask(self, summarizer: Summarizer, request: SummaryRequest) -> str | Summary:
        """Return the answer of *summarizer*, and record its cost as spent."""
        self.has_called, cost = True, self.reserved
        try:
            answer = summarizer(request)
            usage = answer.usage if isinstance(answer, Summary) else None
            cost = self.limits.compute_cost(usage) if usage is not None and "input_tokens" in usage else cost
        except BaseException as error:
            cost = 0.0 if is_refusal(error) else cost
            raise
        finally:
            self.limits._record_spent(self, cost)
        return answer

    def release(self) -> None:
        """Return the permit and admit the next in the queue."""
        with self.limits._lock:
            self.limits._end_use(self)
        self.limits._admit_waiting()


@dataclass(slots=True, eq=False, repr=False)
class Ticket:
    """The entry of one compactor in the queue."""

    limits: Limits
    #: Notifies the compactor of its permit, and returns whether the compactor still wants it.
    call: Callable[[], bool | None]
    #: The granted permit, until a cycle takes it.
    granted: Permit | None = None

    @property
    def is_queued(self) -> bool:
        """Whether it is in the queue."""
        return self in self.limits._queue

    def take_permit(self, session: str = "", role: str = "") -> Permit:  # noqa: ARG002
        """Return the granted permit, or a new one, which gets its room in ``Permit.reserve``."""
        with self.limits._lock:
            permit, self.granted = self.granted, None
        return permit or Permit(self.limits, ticket=self)

    def wait(self, limit: LimitReached) -> None:
        """Join the queue for the call that *limit* refused."""
        with self.limits._lock:
            self.limits._enqueue(self, limit.cost, first=limit.first)
        self.limits._admit_waiting()

    def give_back(self) -> None:
        """Return the granted permit if no cycle has taken it."""
        if self.granted is not None:
            self.limits._withdraw(self)

    def leave(self) -> None:
        """Leave the queue, and return the granted permit."""
        if self.is_queued or self.granted is not None:
            self.limits._withdraw(self, from_queue=True)

    def limit(self) -> LimitReached | None:
        """Return the limit it waits for, as an error; None if it does not wait."""
        if not self.is_queued:
            return None
        now = self.limits._clock.monotonic()
        with self.limits._lock:
            return LimitReached(self.limits._find_queue_wait(0.0, now))


def estimate_usage(request: SummaryRequest, count: TokenCounter) -> dict[str, int]:
    """Return the estimated usage of a call."""
    answer = request.target_tokens or DEFAULT_ANSWER
    return {"input_tokens": count_prompt(request.messages, count), "output_tokens": answer}


def is_refusal(error: BaseException) -> bool:
    """Return whether the endpoint refused the call or was not reached; then nothing is billed."""
    return any(
        isinstance(getattr(one, "status_code", None), int)
        or isinstance(one, ConnectionError)
        or type(one).__name__ == "APIConnectionError"
        for one in (error, error.__cause__)
    )
