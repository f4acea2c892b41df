"""Choose the next ticket under shared limits: a pure function of the limits and the store's rows.

The tenant with the fewest permits in use comes first, then the tenant that was served least recently, then the oldest
ticket. Tickets of one tenant for one model are served in order. If the first ticket lacks tokens or spend that tenants
share, no other ticket may take them. If it lacks its own tenant's, it blocks nobody.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from memory.stores.base import make_key

from ..config import Limit, Per, Unit

#: Seconds of the period over which each unit is summed.
WINDOWS: Mapping[Unit, float] = {"tokens": 60.0, "spend": 3_600.0}
#: Number of sums per window. A sum expires as a whole, so a call counts for up to a twelfth longer than the window.
SUMS = 12

#: For each scope and unit, pairs in order of time: until when a sum counts, and its amount.
Usage = Mapping[tuple[str, Unit], Sequence[tuple[float, float]]]


class Claim(NamedTuple):
    """A ticket that waits for a permit, or a permit."""

    key: str
    tenant: str = ""
    provider: str = ""
    model: str = ""
    #: Estimates for the next call.
    tokens: float = 0.0
    spend: float = 0.0
    #: For a ticket: since when it waits. For a permit that is not taken yet: when it expires.
    at: float = 0.0
    #: A permit that nobody has taken yet: since when its ticket waited.
    since: float = 0.0
    #: The process of the ticket's compactor. Empty: a dispatcher's job, which any process may run.
    holder: str = ""
    #: Whether this is a permit in use.
    taken: bool = False
    session: str = ""
    role: str = ""
    #: A permit: the calls of its cycle whose usage is known.
    calls: int = 0

    def scope(self, per: Per) -> str:
        return per if per == "all" else f"{per} {make_key(getattr(self, per))}"

    def amount(self, unit: Unit) -> float:
        return self.tokens if unit == "tokens" else self.spend

    @property
    def closing(self) -> str:
        """Name of the mark with the time until which its provider is closed."""
        return f"closed {self.scope('provider')}"

    @property
    def serving(self) -> str:
        """Name of the mark with the time at which its tenant was last served."""
        return f"served {self.scope('tenant')}"


class Room:
    """The room that *limits* leave beside permits *in_use*, given *usage* and the *marks* of providers and tenants."""

    def __init__(
        self,
        limits: Sequence[Limit],
        in_use: Iterable[Claim],
        marks: Mapping[str, float],
        now: float,
        usage: Usage | None = None,
    ) -> None:
        self._limits = limits
        self.marks = marks
        self._now = now
        self.usage = usage if usage is not None else {}
        self._calls = Counter[str]()
        self._reserved = defaultdict[tuple[str, Unit], float](float)
        # Tenants compete in the widest scope that they share.
        shared = {limit.per for limit in limits}
        self._common: Per = next((per for per in ("all", "provider", "model") if per in shared), "all")
        self._of_tenants = Counter[tuple[str, str]]()
        for claim in in_use:
            self._of_tenants[claim.scope(self._common), claim.tenant] += 1
            self._calls.update({claim.scope(per) for per in shared})
            for limit in limits:
                for unit, _ in limit.amounts():
                    self._reserved[claim.scope(limit.per), unit] += claim.amount(unit)

    def rank(self, claim: Claim) -> tuple[int, float, float, str]:
        """Return a ticket's sort key: the lowest is served first."""
        calls = self._of_tenants[claim.scope(self._common), claim.tenant]
        return calls, self.marks.get(claim.serving, 0.0), claim.at, claim.key

    def summed_scopes(self, claim: Claim) -> set[str]:
        """Return the claim's scopes that have a limit on tokens or spend."""
        return {claim.scope(limit.per) for limit in self._limits if any(limit.amounts())}

    def closed_for(self, claim: Claim) -> float:
        """Return the seconds until the claim's provider takes calls again; 0: it takes them now."""
        return max(0.0, self.marks.get(claim.closing, 0.0) - self._now)

    def has_call(self, claim: Claim) -> bool:
        """Return whether every ``max_concurrency`` allows one more call. Ignores a closed provider."""
        return all(
            limit.max_concurrency is None or self._calls[claim.scope(limit.per)] < limit.max_concurrency
            for limit in self._limits
        )

    def find_short(self, claim: Claim) -> list[tuple[Limit, str, float | None]]:
        """Return the limits on tokens or spend that leave no room for *claim*, each with its scope and the seconds
        until enough usage expires. None instead of seconds: only the end of a call makes room."""
        short = list[tuple[Limit, str, float | None]]()
        for limit in self._limits:
            scope = claim.scope(limit.per)
            for unit, most in limit.amounts():
                # A call above the limit counts as exactly the limit, so it gets a window to itself.
                over = self._reserved[scope, unit] + min(claim.amount(unit), most) - most * (1 + 1e-9)
                sums = [one for one in self.usage.get((scope, unit), ()) if one[0] > self._now]
                over += math.fsum(amount for _, amount in sums)
                if claim.amount(unit) <= 0 or over <= 0:
                    continue
                wait = None
                for until, amount in sums:
                    if (over := over - amount) <= 0:
                        wait = until - self._now
                        break
                short.append((limit, scope, wait))
        return short

    def seconds_until(self, claim: Claim) -> float | None:
        """Return the seconds until time alone makes room for *claim*; None: a call has to end first."""
        if not self.has_call(claim):
            return None
        waits = [self.closed_for(claim), *(wait for *_, wait in self.find_short(claim))]
        known = [wait for wait in waits if wait is not None]
        return max(known) if len(known) == len(waits) else None


def choose(
    room: Room, first_tickets: Iterable[Claim], read_usage: Callable[[Collection[str]], Usage] | None = None
) -> tuple[Claim | None, float | None]:
    """Return the ticket that gets a permit now, or else the seconds until time alone makes room for one.

    *first_tickets* has the first ticket of each tenant for each model. *read_usage* reads the usage of given scopes; it
    is called at most once.
    """
    tickets, soonest, held = list[Claim](), math.inf, set[str]()
    for ticket in sorted(first_tickets, key=room.rank):
        if closed := room.closed_for(ticket):
            soonest = min(soonest, closed)
        elif room.has_call(ticket):
            tickets.append(ticket)
    if read_usage is not None and (scopes := {scope for ticket in tickets for scope in room.summed_scopes(ticket)}):
        room.usage = read_usage(scopes)
    for ticket in tickets:
        short = room.find_short(ticket)
        if not short and held.isdisjoint(room.summed_scopes(ticket)):
            return ticket, None
        if not any(limit.per == "tenant" for limit, *_ in short):
            held.update(scope for _, scope, _ in short)
        if short and (wait := room.seconds_until(ticket)) is not None:
            soonest = min(soonest, wait)
    return None, None if soonest == math.inf else soonest
