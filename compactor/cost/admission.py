"""Admit tickets under shared limits, in one transaction of the store.

The tenant with the fewest permits in use comes first, then the tenant that was served least recently, then the oldest
ticket. Tickets of one tenant for one model are served in order. If the first ticket lacks tokens or spend that tenants
share, no other ticket may take them. If it lacks its own tenant's, it blocks nobody.

``choose_ticket`` decides; a ``LimitTransaction`` reads what it needs from the store's rows, and records the result.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from memory.rounds import copy_with
from memory.stores.base import escape, make_key
from memory.stores.limiting import LimitRow, LimitRows

from ..config import Limit, Per, Quantity
from ..journal import LEASE_SECONDS

#: Seconds that a ticket's owner has to take its permit before the next ticket gets it.
GRANT_SECONDS = 10.0
#: Seconds until a job that nobody has woken tries again, plus one second for each ticket ahead of it.
SAFETY_SECONDS = 30.0
#: Seconds of the period over which each quantity is summed.
WINDOWS: Mapping[Quantity, float] = {"tokens": 60.0, "spend": 3_600.0}
#: Intervals per window, with one sum each. A sum expires as a whole, so a call counts for up to a twelfth longer.
INTERVALS = 12

#: For each scope and quantity, pairs in order of time: until when a sum counts, and its amount.
Usage = Mapping[tuple[str, Quantity], Sequence[tuple[float, float]]]
#: Kinds of rows. A mark is the time until which a provider is closed, or at which a tenant was last served.
TICKET, PERMIT, USAGE, MARK, ALIVE = "ticket", "permit", "usage", "mark", "alive"
#: Notices are named by this, a space and the holder.
NOTICES = "limits"


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

    def make_scope(self, per: Per) -> str:
        if per == "tenant":  # usage and marks outlive the tenant's sessions: they do not name it
            return f"{per} {hashlib.sha256(escape(self.tenant).encode()).hexdigest()}"
        return per if per == "all" else f"{per} {make_key(getattr(self, per))}"

    def get_amount(self, quantity: Quantity) -> float:
        return self.tokens if quantity == "tokens" else self.spend

    @property
    def closed_mark(self) -> str:
        """Name of the mark with the time until which its provider is closed."""
        return f"closed {self.make_scope('provider')}"

    @property
    def served_mark(self) -> str:
        """Name of the mark with the time at which its tenant was last served."""
        return f"served {self.make_scope('tenant')}"


class Capacity:
    """What *limits* leave beside permits *in_use*, given *usage* and the *marks* of providers and tenants."""

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
        self._reserved = defaultdict[tuple[str, Quantity], float](float)
        # Tenants compete in the widest scope that they share.
        shared = {limit.per for limit in limits}
        self._common: Per = next((per for per in ("all", "provider", "model") if per in shared), "all")
        self._of_tenants = Counter[tuple[str, str]]()
        for claim in in_use:
            self._of_tenants[claim.make_scope(self._common), claim.tenant] += 1
            self._calls.update({claim.make_scope(per) for per in shared})
            for limit in limits:
                for quantity, _ in limit.list_amounts():
                    self._reserved[claim.make_scope(limit.per), quantity] += claim.get_amount(quantity)

    def rank(self, claim: Claim) -> tuple[int, float, float, str]:
        """Return a ticket's sort key: the lowest is served first."""
        calls = self._of_tenants[claim.make_scope(self._common), claim.tenant]
        return calls, self.marks.get(claim.served_mark, 0.0), claim.at, claim.key

    def list_usage_scopes(self, claim: Claim) -> set[str]:
        """Return the claim's scopes that have a limit on tokens or spend."""
        return {claim.make_scope(limit.per) for limit in self._limits if any(limit.list_amounts())}

    def find_closed_seconds(self, claim: Claim) -> float:
        """Return the seconds until the claim's provider takes calls again; 0: it takes them now."""
        return max(0.0, self.marks.get(claim.closed_mark, 0.0) - self._now)

    def has_free_call(self, claim: Claim) -> bool:
        """Return whether every ``max_concurrency`` allows one more call. Ignores a closed provider."""
        return all(
            limit.max_concurrency is None or self._calls[claim.make_scope(limit.per)] < limit.max_concurrency
            for limit in self._limits
        )

    def find_exceeded(self, claim: Claim) -> list[tuple[Limit, str, float | None]]:
        """Return the limits on tokens or spend that leave no room for *claim*, each with its scope and the seconds
        until enough usage expires. None instead of seconds: only the end of a call makes room."""
        exceeded = list[tuple[Limit, str, float | None]]()
        for limit in self._limits:
            scope = claim.make_scope(limit.per)
            for quantity, maximum in limit.list_amounts():
                # A call above the limit counts as exactly the limit, so it gets a window to itself.
                over = self._reserved[scope, quantity] + min(claim.get_amount(quantity), maximum) - maximum * (1 + 1e-9)
                unexpired = [one for one in self.usage.get((scope, quantity), ()) if one[0] > self._now]
                over += math.fsum(amount for _, amount in unexpired)
                if claim.get_amount(quantity) <= 0 or over <= 0:
                    continue
                wait = None
                for until, amount in unexpired:
                    if (over := over - amount) <= 0:
                        wait = until - self._now
                        break
                exceeded.append((limit, scope, wait))
        return exceeded

    def find_wait(self, claim: Claim) -> float | None:
        """Return the seconds until time alone makes room for *claim*; None: a call has to end first."""
        if not self.has_free_call(claim):
            return None
        waits = [self.find_closed_seconds(claim), *(wait for *_, wait in self.find_exceeded(claim))]
        known = [wait for wait in waits if wait is not None]
        return max(known) if len(known) == len(waits) else None


def choose_ticket(
    capacity: Capacity, first_tickets: Iterable[Claim], read_usage: Callable[[Collection[str]], Usage] | None = None
) -> tuple[Claim | None, float | None]:
    """Return the ticket that gets a permit now, or else the seconds until time alone makes room for one.

    *first_tickets* has the first ticket of each tenant for each model. *read_usage* reads the usage of given scopes; it
    is called at most once.
    """
    tickets, soonest, blocked = list[Claim](), math.inf, set[str]()
    for ticket in sorted(first_tickets, key=capacity.rank):
        if closed := capacity.find_closed_seconds(ticket):
            soonest = min(soonest, closed)
        elif capacity.has_free_call(ticket):
            tickets.append(ticket)
    if read_usage is not None and (
        scopes := {scope for ticket in tickets for scope in capacity.list_usage_scopes(ticket)}
    ):
        capacity.usage = read_usage(scopes)
    for ticket in tickets:
        exceeded = capacity.find_exceeded(ticket)
        if not exceeded and blocked.isdisjoint(capacity.list_usage_scopes(ticket)):
            return ticket, None
        if not any(limit.per == "tenant" for limit, *_ in exceeded):
            blocked.update(scope for _, scope, _ in exceeded)
        if exceeded and (wait := capacity.find_wait(ticket)) is not None:
            soonest = min(soonest, wait)
    return None, None if soonest == math.inf else soonest


class Admission(NamedTuple):
    """The tickets that one transaction has admitted."""

    #: Tickets that now have a permit and must be woken.
    admitted: Sequence[Claim] = ()
    #: Whether other tickets wait.
    is_queued: bool = False
    #: Seconds until time alone makes room for one of those, or a permit of another process may expire; None: a call of
    #: this process has to end first.
    seconds: float | None = None


class PermitReport(NamedTuple):
    """What a cycle has done with its permit so far."""

    key: str
    #: Number of calls made, and the usage of the newest one.
    calls: int
    spent: Mapping[Quantity, float]
    #: Seconds for which the provider is closed, and the name of its mark.
    closed: float
    closed_mark: str


class LimitTransaction:
    """One transaction on the *rows* of shared *limits*, by the process *holder*.

    It changes the rows only, because the store may run it twice. First it drops the permits of killed processes, and
    those that were not taken in time. *wakes* tells whether this process itself wakes the tickets of a holder; all
    other holders get a notice of the store.
    """

    def __init__(self, rows: LimitRows, limits: Sequence[Limit], holder: str, wakes: Callable[[str], bool]) -> None:
        self._rows, self._limits, self._holder, self._wakes = rows, limits, holder, wakes
        found = rows.read([PERMIT, ALIVE])
        #: The processes that are alive, and until when; this one, too.
        self._alive = {row.key: row.at for row in found if row.kind == ALIVE and row.at > rows.now} | {holder: math.inf}
        #: The permits by key.
        self.permits: dict[str, Claim] = {}
        for claim in (read_claim(row) for row in found if row.kind == PERMIT):
            if claim.holder in self._alive if claim.taken else claim.at > rows.now:
                self.permits[claim.key] = claim
                continue
            if claim.taken:  # its call may have been billed
                self._add_usage(claim, {"tokens": claim.tokens, "spend": claim.spend})
            rows.drop(PERMIT, [claim.key])

    def reserve(
        self, claim: Claim, report: PermitReport, queued: Collection[Claim], *, joins_queue: bool
    ) -> tuple[float | None, Admission]:
        """Reserve the call of *claim* for the permit of *report*. Return 0.0, or the seconds until the next attempt, or
        None if the ticket has to be woken. Without room, it joins the queue if *joins_queue*. *queued* has this
        process's other tickets."""
        permit = copy_with(claim, key=report.key, holder=self._holder, taken=True, calls=report.calls)
        if self._end_permit(report):  # a later call of the same cycle: ahead of the queue
            wait = self._find_wait(claim)
            # Without room, the cycle keeps its permit until it releases it, but reserves nothing.
            self._put(PERMIT, permit if wait == 0 else copy_with(permit, tokens=0.0, spend=0.0))
            return wait, Admission()
        granted = self.permits.get(claim.key)
        if granted is not None and not self._covers(granted, claim):
            self._drop(granted)
            self._put(TICKET, copy_with(claim, at=granted.since))
            granted = None
        is_granted, admission = (True, Admission()) if granted is not None else self.admit(claim)
        if is_granted:
            self._rows.drop(PERMIT, [claim.key])
            self._rows.drop(TICKET, [claim.key])
            self._put(PERMIT, permit)
            self.show_alive(queued)
            return 0.0, admission
        wait = self._find_wait(claim) or None
        if not joins_queue:
            return wait, admission
        at = self.enqueue(claim)
        if claim.holder:
            self.show_alive(queued)
        else:  # a job: it runs again by itself if no process is left to wake it
            wait = max(wait or 0.0, self._find_retry(claim, at))
        return wait, copy_with(admission, is_queued=True)

    def end(self, report: PermitReport) -> None:
        """Drop the permit of *report*, and record until when its provider is closed."""
        self._end_permit(report)
        if report.closed > 0:
            known, until = self._rows.find(MARK, report.closed_mark), self._rows.now + report.closed
            until = max(until, known.at) if known is not None else until
            self._rows.put(LimitRow(MARK, report.closed_mark, report.closed_mark, until))

    def withdraw(self, keys: Collection[str]) -> None:
        """Drop tickets, and the permits that they were granted and that nobody has taken."""
        for permit in [one for one in self.permits.values() if one.key in keys and not one.taken]:
            self._drop(permit)
        self._rows.drop(TICKET, keys)

    def admit(self, candidate: Claim | None = None) -> tuple[bool, Admission]:
        """Give permits while there is room. *candidate* takes part without being in the queue; return whether it was
        chosen. Then its caller makes the permit."""
        rows, admitted = self._rows, list[Claim]()
        while True:
            firsts = {_make_lane(claim): claim for claim in map(read_claim, rows.read_firsts(TICKET))}
            if dead := [one.key for one in firsts.values() if one.holder and one.holder not in self._alive]:
                rows.drop(TICKET, dead)
                continue
            if candidate is not None:
                first = firsts.get(_make_lane(candidate))
                if first is None or first.key == candidate.key:
                    firsts[_make_lane(candidate)] = copy_with(candidate, at=rows.now if first is None else first.at)
            capacity = Capacity(self._limits, self.permits.values(), {}, rows.now)
            ticket, seconds = None, None
            if fit := [claim for claim in firsts.values() if capacity.has_free_call(claim)]:
                capacity.marks = self._read_marks(fit)
                ticket, seconds = choose_ticket(capacity, fit, self._read_usage)
            if ticket is None:
                return False, Admission(admitted, bool(firsts), self.find_expiry(seconds))
            rows.put(LimitRow(MARK, ticket.served_mark, ticket.served_mark, rows.now))
            if candidate is not None and ticket.key == candidate.key:
                return True, Admission(admitted, len(firsts) > 1)
            granted = copy_with(ticket, at=rows.now + GRANT_SECONDS, since=ticket.at)
            rows.drop(TICKET, [ticket.key])
            self._put(PERMIT, granted)
            self.permits[ticket.key] = granted
            admitted.append(granted)
            if not self._wakes(ticket.holder):
                rows.notify(f"{NOTICES} {ticket.holder}")

    def find_expiry(self, seconds: float | None = None) -> float | None:
        """Return the seconds until a permit may expire, for its process was killed or does not take it; *seconds* if
        that is sooner. None: none expires."""
        ends = [self._alive[one.holder] if one.taken else one.at for one in self.permits.values()]
        soonest = min([end - self._rows.now for end in ends] + ([] if seconds is None else [seconds]), default=math.inf)
        return None if soonest == math.inf else soonest

    def enqueue_job(self, claim: Claim) -> tuple[bool, float]:
        """Put *claim* of a job into the queue if no call is free. Return whether it has a ticket or a permit now,
        and the seconds until it tries again by itself: 0.0 if it may run."""
        known = self._rows.find(TICKET, claim.key)
        if claim.key in self.permits:
            return True, 0.0
        if Capacity(self._limits, self.permits.values(), {}, self._rows.now).has_free_call(claim):
            return known is not None, 0.0
        if known is None:  # else it may know the tokens of its call
            self._put(TICKET, copy_with(claim, at=self._rows.now))
        return True, self._find_retry(claim, known.at if known is not None else self._rows.now)

    def _find_retry(self, claim: Claim, at: float) -> float:
        """Return the seconds until a job that waits since *at* runs again, if no process is left to wake it."""
        return SAFETY_SECONDS + self._rows.count(TICKET, _make_lane(claim), at)

    def enqueue(self, claim: Claim) -> float:
        """Put *claim* into the queue, at its old position if it has one, and return the time since which it waits."""
        known = self._rows.find(TICKET, claim.key)
        at = known.at if known is not None else self._rows.now
        self._put(TICKET, copy_with(claim, at=at))
        return at

    def show_alive(self, queued: Iterable[Claim]) -> None:
        """Show that this process is alive. If others took it for dead, they have dropped its tickets: those in *queued*
        are put into the queue again, unless they have a permit."""
        known = self._rows.find(ALIVE, self._holder)
        if known is None or known.at <= self._rows.now:
            for claim in queued:
                if claim.key not in self.permits:
                    self.enqueue(claim)
        self._rows.put(LimitRow(ALIVE, self._holder, "", self._rows.now + LEASE_SECONDS))

    def drop_expired(self) -> None:
        """Drop rows that no longer count."""
        self._rows.drop_before(USAGE, self._rows.now)
        for kind in (MARK, ALIVE):
            self._rows.drop_before(kind, self._rows.now - WINDOWS["spend"])

    def _end_permit(self, report: PermitReport) -> bool:
        """Drop the permit of *report* and record the usage of its newest call; return whether it was there."""
        if (permit := self.permits.get(report.key)) is None:
            return False
        self._drop(permit)
        if permit.calls < report.calls:  # else it is known from an attempt whose answer was lost
            self._add_usage(permit, report.spent)
        return True

    def _covers(self, granted: Claim, claim: Claim) -> bool:
        """Return whether the permit that was *granted* has room for *claim*, which may ask for more than its ticket."""
        if claim.tokens <= granted.tokens and claim.spend <= granted.spend:
            return True
        return self._find_wait(claim, besides=granted) == 0

    def _find_wait(self, claim: Claim, besides: Claim | None = None) -> float | None:
        """Return the seconds until time alone makes room for *claim* beside the permits other than *besides*; 0: there
        is room. None: a call has to end first."""
        permits = [one for one in self.permits.values() if one is not besides]
        capacity = Capacity(self._limits, permits, {}, self._rows.now)
        if not capacity.has_free_call(claim):
            return None
        capacity.marks, capacity.usage = self._read_marks([claim]), self._read_usage(capacity.list_usage_scopes(claim))
        return capacity.find_wait(claim)

    def _read_marks(self, claims: Iterable[Claim]) -> Mapping[str, float]:
        names = {name for claim in claims for name in (claim.closed_mark, claim.served_mark)}
        return {row.key: row.at for row in self._rows.read([MARK], names)}

    def _read_usage(self, scopes: Collection[str]) -> Usage:
        return sum_usage(row for row in self._rows.read([USAGE], scopes) if row.at > self._rows.now)

    def _add_usage(self, claim: Claim, spent: Mapping[Quantity, float]) -> None:
        limited = {(claim.make_scope(limit.per), one) for limit in self._limits for one, _ in limit.list_amounts()}
        for scope, quantity in limited:
            if amount := spent.get(quantity, 0.0):
                interval = WINDOWS[quantity] / INTERVALS
                until = (self._rows.now // interval + 1) * interval + WINDOWS[quantity]
                key = f"{scope} {quantity} {until:.0f}"
                known = self._rows.find(USAGE, key)
                amount += json.loads(known.body)[1] if known is not None else 0.0
                self._rows.put(LimitRow(USAGE, key, scope, until, json.dumps([quantity, amount])))

    def _put(self, kind: str, claim: Claim) -> None:
        body = json.dumps(claim._asdict())
        self._rows.put(LimitRow(kind, claim.key, _make_lane(claim), claim.at, body, make_key(claim.session)))

    def _drop(self, permit: Claim) -> None:
        self._rows.drop(PERMIT, [permit.key])
        del self.permits[permit.key]


def read_claim(row: LimitRow) -> Claim:
    facts = json.loads(row.body)
    return Claim(**{name: facts[name] for name in Claim._fields if name in facts})  # a newer version may add fields


def sum_usage(rows: Iterable[LimitRow]) -> Usage:
    usage: dict[tuple[str, Quantity], list[tuple[float, float]]] = {}
    for row in rows:
        quantity, amount = json.loads(row.body)
        usage.setdefault((row.lane, quantity), []).append((row.at, amount))
    return usage


def _make_lane(claim: Claim) -> str:
    return make_key(json.dumps([claim.tenant, claim.provider, claim.model]))
