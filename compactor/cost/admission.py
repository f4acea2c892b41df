"""Who may call a model next under shared limits: a pure function of the limits and of what the store has.

Room goes to the tenant with the fewest permits in use, then to the one that was served least recently, then to the
oldest ticket. Tickets of one tenant for one model come one after the other. Who is first and lacks tokens or spend that
tenants share keeps others from taking them; who lacks its own tenant's holds up nobody else.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from memory.stores.base import key_of

from ..config import Limit, Per, Unit

#: Seconds of the period over which each unit is summed.
WINDOWS: Mapping[Unit, float] = {"tokens": 60.0, "spend": 3_600.0}
#: Sums in one window; each leaves it at once, so that a call counts for up to a twelfth longer.
SUMS = 12

#: By scope and unit: until when each sum counts, and its amount, in order of time.
Usage = Mapping[tuple[str, Unit], Sequence[tuple[float, float]]]


class Claim(NamedTuple):
    """A ticket, which waits for a permit, or a permit."""

    key: str
    tenant: str = ""
    provider: str = ""
    model: str = ""
    #: Estimated for the next call.
    tokens: float = 0.0
    spend: float = 0.0
    #: A ticket: since when it waits. A permit that nobody has taken yet: until when it waits for its ticket's owner.
    at: float = 0.0
    #: The process whose compactor it is; empty: any process's, as a dispatcher's job.
    holder: str = ""
    #: A permit that is in use.
    taken: bool = False
    session: str = ""
    role: str = ""

    def scope(self, per: Per) -> str:
        return per if per == "all" else f"{per} {key_of(getattr(self, per))}"

    def amount(self, unit: Unit) -> float:
        return self.tokens if unit == "tokens" else self.spend

    @property
    def closing(self) -> str:
        """The mark that says until when its provider is closed."""
        return f"closed {self.scope('provider')}"

    @property
    def serving(self) -> str:
        """The mark that says when its tenant was served last."""
        return f"served {self.scope('tenant')}"


class Room:
    """What is left of *limits* beside the permits *in_use*, with *usage* and the *marks* of providers and tenants."""

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
        # Where tenants compete: in the widest scope that they share.
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
        """Return the place of a ticket: the lowest comes first."""
        calls = self._of_tenants[claim.scope(self._common), claim.tenant]
        return calls, self.marks.get(claim.serving, 0.0), claim.at, claim.key

    def summed_scopes(self, claim: Claim) -> set[str]:
        """Return the scopes in which its tokens or its spend are limited."""
        return {claim.scope(limit.per) for limit in self._limits if any(limit.amounts())}

    def closed_for(self, claim: Claim) -> float:
        """Return the seconds until its provider takes calls again; 0: it does."""
        return max(0.0, self.marks.get(claim.closing, 0.0) - self._now)

    def has_call(self, claim: Claim) -> bool:
        """Return whether it would not be one call too many, as long as its provider takes calls."""
        return all(
            limit.max_concurrency is None or self._calls[claim.scope(limit.per)] < limit.max_concurrency
            for limit in self._limits
        )

    def find_short(self, claim: Claim) -> list[tuple[Limit, str, float | None]]:
        """Return what it lacks tokens or spend of: the limit, the scope, and the seconds until time alone makes room,
        or None if only the end of a call does."""
        short = list[tuple[Limit, str, float | None]]()
        for limit in self._limits:
            scope = claim.scope(limit.per)
            for unit, most in limit.amounts():
                # A call of more than all tokens of a minute gets a minute to itself.
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
        """Return the seconds until there is room for it by time alone; None: until a call ends."""
        if not self.has_call(claim):
            return None
        waits = [self.closed_for(claim), *(wait for *_, wait in self.find_short(claim))]
        known = [wait for wait in waits if wait is not None]
        return max(known) if len(known) == len(waits) else None


def choose(
    room: Room, first_tickets: Iterable[Claim], read_usage: Callable[[Collection[str]], Usage] | None = None
) -> tuple[Claim | None, float | None]:
    """Return the ticket that gets a permit now; if none does, the seconds until time alone makes room for one.

    *first_tickets* is the first of each tenant for each model. *read_usage* returns the usage of the scopes that
    matter, and is asked once at most.
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
