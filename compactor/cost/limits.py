"""What all compactors of a process may ask for together: so many calls at once, so much spend in an hour.

Who may not ask now waits in one line, and no worker waits with it. The first of the line is let in as soon as there is
room for it, and nobody passes it: no session starves, however many there are.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from memory.hooks import renewed_after_fork

from ..config import ConfigError, number, whole_number
from ..errors import LimitReached, SpendExceeded
from ..prompt.groups import PROMPT_TOKENS, count_message
from ..summarizers.base import Summarizer, Summary, SummaryRequest
from ..timers import SYSTEM_CLOCK, Clock
from ..tokens import TokenCounter
from .prices import Prices

HOUR = 3_600.0
#: What was spent within so many seconds is forgotten together, an hour after the last of it.
SPENT_TOGETHER = 60.0
#: An answer is estimated at so many tokens where no length is wished for.
USUAL_ANSWER = 500
#: No timer is set for less: one that fires a rounding error too early would be set again without end.
MIN_WAIT = 0.001


@dataclass(frozen=True, slots=True)
class LimitsStatus:
    """How much of the limits is taken up."""

    #: Places that are taken; those of calls that were given up and have not ended included.
    in_use: int
    #: Compactors that wait in line.
    waiting: int
    #: Spent in the last hour, and set aside for calls that have not ended; in ``Limits.unit``.
    spent: float
    reserved: float


class Limits:
    """At most *max_concurrency* cycles that ask a model at once, and at most *max_spend_per_hour* in any sixty minutes.

    Give one to any number of compactors, ``ContextCompactor(limits=...)``; each process has its own. Spend is in
    dollars where *prices* know what a token costs (``Prices.of_model``), else in tokens: as many as the agent's model
    would read for the same money. What a call costs is known only afterwards: an estimate is set aside for it, and what
    its answer reports takes the place of that, so that an hour is overspent by the estimates' error at most. A call
    that reports nothing, that failed or was given up counts as estimated; one that the endpoint turned down, or that
    did not reach it, as nothing.

    A cycle keeps its place from its first request to its end. One that was given up keeps it until its call really
    ends: the provider is at work until then. A summarizer that is ``deterministic`` asks no model and needs no place.
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
            whole_number("max_concurrency", max_concurrency, 1)
        if max_spend_per_hour is not None and not 0 < number("max_spend_per_hour", max_spend_per_hour) < math.inf:
            raise ConfigError(("max_spend_per_hour", f"must be above 0 and finite, not {max_spend_per_hour!r}"))
        self.max_concurrency = max_concurrency
        self.max_spend_per_hour = max_spend_per_hour
        self.prices = prices if prices is not None else Prices()
        self._clock = clock if clock is not None else SYSTEM_CLOCK
        self._hour = _Hour(math.inf if max_spend_per_hour is None else max_spend_per_hour)
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        """Nobody is in and nobody waits: those are the parent's. What was spent counts for both."""
        self._lock = threading.RLock()  # guards all below it, _hour, and what changes in places and turns
        self._inside: set[Place] = set()
        self._line: OrderedDict[Turn, float] = OrderedDict()  # with what each is estimated to cost
        self._looks_at = math.inf  # when a timer looks whether there is room for the first in line
        self._hour.reserved = 0.0

    @property
    def unit(self) -> str:
        """Return ``dollars`` or ``tokens``: what spend is counted in."""
        return "tokens" if self.prices.per_token is None else "dollars"

    def status(self) -> LimitsStatus:
        """Return how much of the limits is taken up now."""
        now = self._clock.monotonic()
        with self._lock:
            return LimitsStatus(len(self._inside), len(self._line), self._hour.spent(now), self._hour.reserved)

    # -- what a call costs --------------------------------------------------------------------------------------------

    def cost(self, usage: Mapping[str, int]) -> float:
        """Return what a call of that *usage* costs, in ``unit``."""
        read, prices = usage.get("input_tokens", 0), self.prices
        cached = min(usage.get("cached_tokens", 0), read)
        tokens = prices.summarizer_input * (read - cached + prices.cached_input * cached)
        tokens += prices.summarizer_output * usage.get("output_tokens", 0)
        return tokens if prices.per_token is None else tokens * prices.per_token

    def _estimated(self, request: SummaryRequest, count: TokenCounter) -> float:
        if self.max_spend_per_hour is None:
            return 0.0
        read = PROMPT_TOKENS + sum(count_message(message, count) for message in request.messages)
        cost = self.cost({"input_tokens": read, "output_tokens": request.target_tokens or USUAL_ANSWER})
        if cost > self.max_spend_per_hour:
            raise SpendExceeded(cost, self.max_spend_per_hour, self.unit)
        return cost

    # -- who is in ----------------------------------------------------------------------------------------------------

    def _let_in(self, place: Place, cost: float) -> None:
        """Give *place* room for a call of that *cost*. Raises ``LimitReached``, and lets it in no further then."""
        now = self._clock.monotonic()
        with self._lock:
            inside, more = place in self._inside, cost - place.reserved
            seconds = self._hour.room_in(more, now)
            if seconds != 0 or not (inside or (not self._line and not self._full())):
                # Who was let in with too little is the first to wait, from now on, or the next would pass it; who has
                # asked already comes after the others.
                first = inside and not place.asked
                limit = LimitReached(self._seconds(cost, now), cost, first=first)
                if first and place.turn is not None:
                    self._stand(place.turn, cost, first=True)
                raise limit
            self._inside.add(place)
            self._hour.reserved += more
            place.reserved = cost
        if more < 0:
            self._serve()

    def _spend(self, place: Place, cost: float) -> None:
        """Count *cost* as spent, in the place of what was set aside for it."""
        now = self._clock.monotonic()
        with self._lock:
            if place not in self._inside:  # the parent's, in a forked child
                return
            self._hour.reserved, place.reserved = self._hour.reserved - place.reserved, 0.0
            self._hour.add(cost, now)
        self._serve()

    def _let_out(self, place: Place) -> None:
        with self._lock:
            self._given_back(place)
        self._serve()

    def _given_back(self, place: Place | None) -> None:
        """Take *place* back, if it is in, with what was set aside for it. Called with the lock held."""
        if place is not None and place in self._inside:
            self._inside.discard(place)
            self._hour.reserved, place.reserved = self._hour.reserved - place.reserved, 0.0
            if not self._inside:
                self._hour.reserved = 0.0  # and no rounding error

    # -- who waits ----------------------------------------------------------------------------------------------------

    def _line_up(self, turn: Turn, cost: float, *, first: bool) -> None:
        """Let *turn* wait. One that does already, or is let in, stays what it is."""
        with self._lock:
            self._stand(turn, cost, first=first)
        self._serve()

    def _stand(self, turn: Turn, cost: float, *, first: bool) -> None:
        """Put *turn* into the line, where it neither waits nor is let in: in front, if it is the *first*. Called with
        the lock held."""
        if not turn.waiting and turn.granted is None:
            self._line[turn], turn.waiting = cost, True
            if first:
                self._line.move_to_end(turn, last=False)

    def _taken(self, turn: Turn) -> Place:
        with self._lock:
            place, turn.granted = turn.granted, None
        return place if place is not None else Place(self, turn=turn)

    def _unwanted(self, turn: Turn, *, waiting: bool) -> None:
        """Take back what *turn* was let in with; with *waiting*, let it wait no longer either."""
        with self._lock:
            if waiting:
                self._line.pop(turn, None)
                turn.waiting = False
            place, turn.granted = turn.granted, None
            self._given_back(place)
        self._serve()  # also where it only waited: who stood behind it may cost less

    def _serve(self) -> None:
        """Let in those for whom there is room, in the order of the line; set a timer where time alone makes room."""
        while (turn := self._next()) is not None:
            wanted = False
            try:
                wanted = turn.call()
            finally:
                if not wanted:  # it was stopped, or nobody holds it any more
                    with self._lock:
                        place, turn.granted = turn.granted, None
                        self._given_back(place)

    def _next(self) -> Turn | None:
        """Return whose turn it is, let in already."""
        now = self._clock.monotonic()
        with self._lock:
            if not self._line or self._full():
                return None
            turn, cost = next(iter(self._line.items()))
            seconds = self._hour.room_in(cost, now)
            if seconds == 0:
                del self._line[turn]
                turn.waiting, turn.granted = False, Place(self, cost, turn)
                self._inside.add(turn.granted)
                self._hour.reserved += cost
                return turn
            if seconds is None or self._looks_at <= now + seconds:  # a call's end tells, or a timer does
                return None
            self._looks_at = now + max(seconds, MIN_WAIT)
            seconds = self._looks_at - now
        try:
            self._clock.call_later(seconds, partial(_look, weakref.ref(self)))
        except BaseException:  # no thread could be started: whoever asks next sets it
            with self._lock:
                self._looks_at = math.inf
            raise
        return None

    def _look(self) -> None:
        with self._lock:
            self._looks_at = math.inf
        self._serve()

    def _full(self) -> bool:
        return self.max_concurrency is not None and len(self._inside) >= self.max_concurrency

    def _seconds(self, cost: float, now: float) -> float | None:
        """Return the seconds until there is room for *cost* and for the first in line; None where calls that have not
        ended decide that. Called with the lock held."""
        first = next(iter(self._line.values()), 0.0)
        return self._hour.room_in(max(cost, first), now) or None

    def _limit(self) -> LimitReached:
        now = self._clock.monotonic()
        with self._lock:
            return LimitReached(self._seconds(0.0, now))


class _Hour:
    """What was spent within an hour. Its owner guards it."""

    def __init__(self, limit: float) -> None:
        self._limit = limit * (1 + 1e-9)  # sums of floats are not exact
        #: When it is forgotten, and what was spent: in the order of time.
        self._spent: deque[tuple[float, float]] = deque()
        self.reserved = 0.0

    def spent(self, now: float) -> float:
        """Return what was spent in the hour before *now*, and forget the rest."""
        while self._spent and self._spent[0][0] <= now:
            self._spent.popleft()
        return math.fsum(spent for _, spent in self._spent)

    def add(self, cost: float, now: float) -> None:
        if cost <= 0 or self._limit == math.inf:
            return
        until = (now // SPENT_TOGETHER + 1) * SPENT_TOGETHER + HOUR
        before = self._spent.pop()[1] if self._spent and self._spent[-1][0] == until else 0.0
        self._spent.append((until, before + cost))

    def room_in(self, cost: float, now: float) -> float | None:
        """Return the seconds until there is room for *cost*; None where calls that have not ended decide that."""
        if cost <= 0:
            return 0.0
        over = self.spent(now) + self.reserved + cost - self._limit
        if over <= 0:
            return 0.0
        for until, spent in self._spent:
            over -= spent
            if over <= 0:
                return until - now
        return None


class Place:
    """What one cycle has of the limits: room for itself, and for what its next call may cost."""

    __slots__ = ("_limits", "asked", "reserved", "turn")

    def __init__(self, limits: Limits | None, reserved: float = 0.0, turn: Turn | None = None) -> None:
        self._limits = limits
        #: Whose it is.
        self.turn = turn
        #: Set aside for the call that comes, or is on its way.
        self.reserved = reserved
        #: A call was made.
        self.asked = False

    def hold(self, request: SummaryRequest, count: TokenCounter) -> None:
        """Make sure that *request* may be asked now. Raises ``LimitReached`` where it is not its turn, and
        ``SpendExceeded`` where it never will be."""
        if self._limits is not None:
            self._limits._let_in(self, self._limits._estimated(request, count))

    def ask(self, summarizer: Summarizer, request: SummaryRequest) -> str | Summary:
        """Return what *summarizer* answers, and count what that cost."""
        if self._limits is None:
            return summarizer(request)
        self.asked, cost = True, self.reserved
        try:
            answer = summarizer(request)
            usage = answer.usage if isinstance(answer, Summary) else None
            cost = self._limits.cost(usage) if usage is not None and "input_tokens" in usage else cost
        except BaseException as error:
            cost = 0.0 if _turned_down(error) else cost
            raise
        finally:
            self._limits._spend(self, cost)
        return answer

    def release(self) -> None:
        """Let the next in."""
        if self._limits is not None:
            self._limits._let_out(self)


#: Where there are no limits: it never changes.
UNLIMITED = Place(None)


class Turn:
    """One compactor's turn to ask. *call* tells it that its turn has come, and returns whether it still wants it."""

    __slots__ = ("_limits", "call", "granted", "waiting")

    def __init__(self, limits: Limits | None, call: Callable[[], bool]) -> None:
        self._limits = limits
        self.call = call
        #: It stands in line.
        self.waiting = False
        #: What it was let in with, until a cycle takes it.
        self.granted: Place | None = None

    def place(self) -> Place:
        """Return a cycle's place: what was granted, or one that has to be asked for."""
        return self._limits._taken(self) if self._limits is not None else UNLIMITED

    def wait(self, limit: LimitReached) -> None:
        """Stand in line until there is room for what *limit* was about."""
        if self._limits is not None:
            self._limits._line_up(self, limit.cost, first=limit.first)

    def give_back(self) -> None:
        """Give back what was granted, where no cycle has taken it."""
        if self._limits is not None and self.granted is not None:
            self._limits._unwanted(self, waiting=False)

    def leave(self) -> None:
        """Wait no longer, and give back what was granted."""
        if self._limits is not None and (self.waiting or self.granted is not None):
            self._limits._unwanted(self, waiting=True)

    def limit(self) -> LimitReached | None:
        """Return what it waits for, as an error; None where it does not wait."""
        return self._limits._limit() if self._limits is not None and self.waiting else None


def _look(limits: weakref.ref[Limits]) -> None:
    """Limits that nobody holds are not kept alive by their timer."""
    if (waiting := limits()) is not None:
        waiting._look()


def _turned_down(error: BaseException) -> bool:
    """Return whether the endpoint turned a call down, or was not reached: then it bills nothing."""
    return any(
        isinstance(getattr(one, "status_code", None), int)
        or isinstance(one, ConnectionError)
        or type(one).__name__ == "APIConnectionError"
        for one in (error, error.__cause__)
    )
