"""Limits shared by all processes on one store: concurrent calls, tokens per minute, spend per hour; fair to tenants.

The store holds permits, the queue of tickets and the usage; ``admission`` chooses the next ticket. The process that
ends a call admits the next ticket in the same transaction and then wakes its owner: through the dispatcher, directly
within the process, or by a notice of the store. While a process has permits or knows of waiting tickets, it sends a
heartbeat to the store every two seconds and frees the permits and tickets of killed processes.
"""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isroutine
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakValueDictionary, finalize

from memory.arguments import ConfigError, require
from memory.errors import StoreClosed, StoreError
from memory.hooks import renew_after_fork
from memory.rounds import copy_with
from memory.stores.base import Store, adapt_store, make_key
from memory.stores.limiting import LimitRow, LimitRows
from memory.stores.tenants import split_name

from ..config import Limit, Unit
from ..errors import LimitReached, SpendExceeded, read_status
from ..journal import LEASE_SECONDS, RENEW_SECONDS
from ..summarizers.base import Summarizer, Summary, SummaryRequest
from ..timers import SYSTEM_CLOCK, Clock, DaemonExecutor, call_weakly
from ..tokens import TokenCounter, count_prompt
from .admission import SUMS, WINDOWS, Claim, Room, Usage, choose
from .limits import DEFAULT_ANSWER, MIN_WAIT, LimitsStatus, is_refusal
from .prices import Prices

if TYPE_CHECKING:
    from ..timers import Dispatcher

#: Seconds that a ticket's owner has to take its permit before the next ticket gets it.
GRANT_SECONDS = 10.0
#: Seconds until a job that nobody has woken tries again, plus one second for each ticket ahead of it.
SAFETY_SECONDS = 30.0
#: Seconds until the next attempt after the store has failed.
RETRY_SECONDS = 5.0
#: Maximum seconds for which one response closes a provider: its Retry-After may be wrong by years.
MAX_CLOSED = 300.0
#: HTTP statuses of an overloaded endpoint.
OVERLOADED = (429, 503)
#: Kinds of rows. A mark is the time until which a provider is closed, or at which a tenant was last served.
_TICKET, _PERMIT, _USAGE, _MARK, _ALIVE = "ticket", "permit", "usage", "mark", "alive"
#: Notices are named by this, a space and the holder.
_NOTICES = "limits"
#: Runs heartbeats, so that an unresponsive store does not block the timers.
_BEATS = DaemonExecutor(2, "compactor-limits")
#: All ``SharedLimits`` of this process, by holder.
_HERE: WeakValueDictionary[str, SharedLimits] = WeakValueDictionary()
#: Functions that end the listening of limits that are gone. The garbage collector is to take no locks.
_ENDS = deque[Callable[[], object]]()


class _Admission(NamedTuple):
    """The tickets that one transaction has admitted."""

    #: Tickets that now have a permit and must be woken.
    admitted: Sequence[Claim] = ()
    #: Whether other tickets wait.
    is_queued: bool = False
    #: Seconds until time alone makes room for one of those; None: a call has to end first.
    seconds: float | None = None


def tenant_of_session(session: str) -> str:
    return split_name(session)[0]


class SharedLimits:
    """Limits that all processes with the same *store* and *limits* share.

    Pass them to ``ContextCompactor``, ``Sessions`` or ``Worker`` as ``limits=``. *tenant_of* maps a session's name to
    its tenant. A summarizer's provider is the host of its endpoint, or else its class; a plain function has neither
    provider nor model. Spend is in dollars, computed from *prices*, or else from the list prices of the summarizer's
    model. *dispatcher* runs the jobs of admitted tickets; workers of ``compactor.workers`` set it to their own.

    If the store fails, no model is called, and the compactor tries again. Raises ``ConfigError`` for a store that
    cannot share limits.
    """

    def __init__(
        self,
        store: Store,
        limits: Sequence[Limit],
        *,
        tenant_of: Callable[[str], str] = tenant_of_session,
        prices: Prices | None = None,
        dispatcher: Dispatcher | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = adapt_store(store)
        if "limiting" not in self._store.capabilities:
            raise ConfigError(("store", "cannot share limits: open another, or use Limits(...) in each process"))
        self._limits = tuple(limits)
        for limit in self._limits:
            require("limits", limit, Limit, "a list of Limit(...)")
        if not self._limits:
            raise ConfigError(("limits", "give at least one Limit(...)"))
        if prices is not None and prices.per_token is None:
            raise ConfigError(("prices", "are not in dollars: use Prices.of_model(...), or give per_token="))
        self.tenant_of = tenant_of
        self._prices = prices
        self.dispatcher = dispatcher
        self._clock = clock if clock is not None else SYSTEM_CLOCK
        units = {unit for limit in self._limits for unit, _ in limit.amounts()}
        self.counts_tokens, self._counts_spend = bool(units), "spend" in units
        #: Maximum dollars of one call.
        self.max_spend = min((one.max_spend_per_hour or math.inf for one in self._limits), default=math.inf)
        together = [one for one in self._limits if one.per == "all"]
        #: The limit on all calls together; None: there are limits only per provider, model or tenant.
        self.max_concurrency = min((one.max_concurrency for one in together if one.max_concurrency), default=None)
        self.max_spend_per_hour = min(
            (one.max_spend_per_hour for one in together if one.max_spend_per_hour), default=None
        )
        self.holder = ""
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards all below it, and the mutable state of tickets
        _HERE.pop(self.holder, None)  # in a forked child, the parent's
        self.holder = uuid.uuid4().hex
        self._tickets: dict[str, SharedTicket] = {}  # waiting tickets, by key
        self._in_use = 0  # this process's permits in the store
        self._ended: list[_Ended] = []  # not yet reported to the store
        self._beats_at = math.inf  # when the next heartbeat is due
        self._cancel: Callable[[], object] | None = None
        self._listening = set[str]()  # the names of notices that are heard
        _HERE[self.holder] = self

    #: The unit of spend, as in ``Limits``.
    unit = "dollars"

    def wake_by(self, dispatcher: Dispatcher) -> None:
        """Let *dispatcher* run the jobs of admitted tickets. A worker's engine calls this."""
        self.dispatcher = dispatcher

    def make_ticket(self, summarizer: Summarizer, call: Callable[[], bool | None]) -> SharedTicket:
        """Return a ticket for a compactor with that *summarizer*; *call* has the meaning of ``Ticket.call``.

        Raises ``ConfigError`` if spend is limited and the summarizer's price is unknown.
        """
        model = str(getattr(summarizer, "model", "") or "")
        if not getattr(summarizer, "deterministic", False):
            self.price(model, 1, 1)
        return SharedTicket(self, provider_of(summarizer), model, call)

    def status(self) -> LimitsStatus:
        """Return the state of the limits over all processes. Raises ``StoreError`` if the store fails."""

        def read(rows: LimitRows) -> LimitsStatus:
            permits = [_read_claim(row) for row in rows.read([_PERMIT])]
            widest = next((limit.per for limit in self._limits if limit.max_spend_per_hour is not None), "")
            usage = _sum_usage(
                row for row in rows.read([_USAGE]) if row.lane.split(" ")[0] == widest and row.at > rows.now
            )
            spent = sum(amount for (_, unit), sums in usage.items() if unit == "spend" for _, amount in sums)
            return LimitsStatus(len(permits), rows.count(_TICKET), spent, sum(permit.spend for permit in permits))

        return self._store.change_limits(read)

    def price(self, model: str, read: int, written: int, cached: int = 0) -> float:
        """Return a call's price in dollars; 0 if spend is not limited. Raises ``ConfigError`` if it is unknown."""
        if not self._counts_spend:
            return 0.0
        usage = {"input_tokens": read, "output_tokens": written, "cached_tokens": cached}
        if self._prices is not None:
            return self._prices.cost(usage)
        from ..models import compute_price

        price = compute_price(model, usage) if model else None
        if price is None:
            raise ConfigError(("limits", f"spend is limited, but the price of {model!r} is unknown; give prices="))
        return price

    # Transactions. A function that gets the rows must have no other effects: the store may run it twice.

    def _ask(self, permit: SharedPermit, claim: Claim, *, queues: bool) -> float | None:
        """Reserve room for the call of *claim* in *permit*, and return 0.0. Without room, return the seconds until the
        next attempt, or None if the ticket has to be woken; if *queues*, the ticket then is in the queue."""

        waiting = [one for one in self._list_waiting() if one.claim.key != claim.key]

        def ask(rows: LimitRows) -> tuple[float | None, _Admission]:
            claims, alive = self._read_permits(rows)
            taken = copy_with(claim, key=permit.key, holder=self.holder, taken=True, calls=permit.calls)
            if (mine := claims.pop(permit.key, None)) is not None:  # a later call of the same cycle: ahead of the queue
                if mine.calls < permit.calls:  # else it is known from an attempt whose answer was lost
                    self._add_usage(rows, mine, permit.spent)
                wait = self._find_wait(rows, claims, claim)
                # Without room, the cycle keeps its permit until it releases it, but reserves nothing.
                rows.put(_row_of(_PERMIT, taken if wait == 0 else copy_with(taken, tokens=0.0, spend=0.0)))
                return wait, _Admission()
            granted, admission = claims.get(claim.key), _Admission()
            if granted is not None and not self._is_enough(rows, granted, claims, claim):
                rows.drop(_PERMIT, [claim.key])
                rows.put(_row_of(_TICKET, copy_with(claim, at=granted.since)))
                del claims[claim.key]
                granted = None
            if granted is None:
                granted, admission = self._admit(rows, claims, alive, claim)
            if granted is not None:
                rows.drop(_PERMIT, [claim.key])
                rows.drop(_TICKET, [claim.key])
                rows.put(_row_of(_PERMIT, taken))
                self._show_alive(rows, waiting, claims)
                return 0.0, admission
            wait = self._find_wait(rows, claims, claim) or None
            if not queues:
                return wait, admission
            at = self._queue(rows, claim)
            if claim.holder:
                self._show_alive(rows, waiting, claims)
            else:  # a job: it runs again by itself if no process is left to wake it
                wait = max(wait or 0.0, SAFETY_SECONDS + rows.count(_TICKET, _lane_of(claim), at))
            return wait, copy_with(admission, is_queued=True)

        wait, admission = self._store.change_limits(ask)
        permit.spent = {}
        if wait == 0:
            with self._lock:
                self._in_use += not permit.inside
            permit.inside = True
        if unwanted := self._go_on(admission):
            self._settle(unwanted)
        return wait

    def _settle(
        self, dropped: Collection[str] = (), queued: Sequence[Claim] = (), *, tidies: bool = False, hears: bool = False
    ) -> None:
        """Report ended calls to the store, and wake the admitted tickets; if *hears*, also those that others admitted
        for a dispatcher. If the store fails, report later."""
        while unwanted := self._settle_once(dropped, queued, tidies, hears):
            dropped, queued, tidies, hears = unwanted, (), False, False

    def _settle_once(
        self, dropped: Collection[str], queued: Sequence[Claim], tidies: bool, hears: bool
    ) -> Sequence[str]:
        """Do what ``_settle`` does once; return the keys of woken tickets whose compactors are gone."""
        with self._lock:
            waiting, ended = self._list_waiting(), [*self._ended]
            tickets = [one for one in waiting if not one.is_stored]
        keys, hears = {one.claim.key for one in waiting}, hears and self.dispatcher is not None

        def change(rows: LimitRows) -> _Admission:
            claims, alive = self._read_permits(rows)
            for one in ended:
                if (mine := claims.pop(one.key, None)) is not None:
                    rows.drop(_PERMIT, [one.key])
                    if mine.calls < one.calls:
                        self._add_usage(rows, mine, one.spent)
                if one.closed > 0:
                    before, until = rows.find(_MARK, one.closing), rows.now + one.closed
                    until = max(until, before.at) if before is not None else until
                    rows.put(LimitRow(_MARK, one.closing, one.closing, until))
            given_back = [key for key in dropped if key in claims and not claims[key].taken]
            rows.drop(_PERMIT, given_back)
            rows.drop(_TICKET, dropped)
            granted = claims.keys() - given_back  # since an attempt whose answer was lost
            for claim in (*queued, *(one.claim for one in tickets if one.claim.key not in granted)):
                self._queue(rows, claim)
            claims = {key: claim for key, claim in claims.items() if key not in given_back}
            self._show_alive(rows, waiting, claims)
            _, admission = self._admit(rows, claims, alive)
            if tidies:
                rows.drop_before(_USAGE, rows.now)
                for kind in (_MARK, _ALIVE):
                    rows.drop_before(kind, rows.now - WINDOWS["spend"])
            named = {one.key for one in admission.admitted}
            untaken = [one for one in claims.values() if not one.taken and one.key not in named]
            missed = [one for one in untaken if one.key in keys or (hears and not one.holder)]
            return copy_with(admission, admitted=(*admission.admitted, *missed))

        try:
            admission = self._store.change_limits(change)
        except StoreClosed:
            return ()
        except StoreError:
            self._plan_beat(_Admission(is_queued=True))
            return ()
        with self._lock:
            for ticket in tickets:
                ticket.is_stored = True
            self._in_use -= sum(one in self._ended for one in ended)
            self._ended = [one for one in self._ended if one not in ended]
        return self._go_on(admission)

    def _admit(
        self, rows: LimitRows, claims: dict[str, Claim], alive: Collection[str], asking: Claim | None = None
    ) -> tuple[Claim | None, _Admission]:
        """Give permits while there is room, add them to *claims*, and return the admission. *asking* need not be in the
        queue. When it is chosen, it is returned first, without a permit: its caller makes one."""
        admitted = list[Claim]()
        while True:
            firsts = {_lane_of(claim): claim for claim in map(_read_claim, rows.read_firsts(_TICKET))}
            if dead := [one.key for one in firsts.values() if one.holder and one.holder not in alive]:
                rows.drop(_TICKET, dead)
                continue
            if asking is not None:
                first, own = firsts.get(_lane_of(asking)), copy_with(asking, at=rows.now)
                if first is None or first.key == asking.key:
                    firsts[_lane_of(asking)] = own if first is None else copy_with(own, at=first.at)
            room = Room(self._limits, claims.values(), {}, rows.now)
            fit = [claim for claim in firsts.values() if room.has_call(claim)]
            ticket, seconds = None, None
            if fit:
                room.marks = self._read_marks(rows, fit)
                ticket, seconds = choose(room, fit, partial(self._read_usage, rows))
            if ticket is None:
                return None, _Admission(admitted, bool(firsts), seconds)
            rows.put(LimitRow(_MARK, ticket.serving, ticket.serving, rows.now))
            if asking is not None and ticket.key == asking.key:
                return ticket, _Admission(admitted, len(firsts) > 1)
            granted = copy_with(ticket, at=rows.now + GRANT_SECONDS, since=ticket.at)
            rows.drop(_TICKET, [ticket.key])
            rows.put(_row_of(_PERMIT, granted))
            claims[ticket.key] = granted
            admitted.append(granted)
            if ticket.holder not in _HERE and (ticket.holder or self.dispatcher is None):
                rows.notify(f"{_NOTICES} {ticket.holder}")

    def _is_enough(self, rows: LimitRows, granted: Claim, claims: Mapping[str, Claim], claim: Claim) -> bool:
        """Return whether the permit that was *granted*, one of *claims*, has room for *claim*, which may ask for more
        than its ticket did."""
        if claim.tokens <= granted.tokens and claim.spend <= granted.spend:
            return True
        return self._find_wait(rows, {key: one for key, one in claims.items() if key != granted.key}, claim) == 0

    def _find_wait(self, rows: LimitRows, claims: Mapping[str, Claim], claim: Claim) -> float | None:
        """Return the seconds until time alone makes room for *claim* beside *claims*; 0: there is room. None: a call
        has to end first."""
        room = Room(self._limits, claims.values(), {}, rows.now)
        if not room.has_call(claim):
            return None
        room.marks, room.usage = self._read_marks(rows, [claim]), self._read_usage(rows, room.summed_scopes(claim))
        return room.seconds_until(claim)

    def _read_permits(self, rows: LimitRows) -> tuple[dict[str, Claim], Collection[str]]:
        """Drop the permits of killed processes and those not taken in time. Return the others by key, and the holders
        that are alive, the caller included."""
        found = rows.read([_PERMIT, _ALIVE])
        alive = {self.holder, *(row.key for row in found if row.kind == _ALIVE and row.at > rows.now)}
        claims = {row.key: _read_claim(row) for row in found if row.kind == _PERMIT}
        for claim in [*claims.values()]:
            if claim.taken and claim.holder not in alive:
                self._add_usage(rows, claim, {"tokens": claim.tokens, "spend": claim.spend})  # it may have been billed
            elif claim.taken or claim.at > rows.now:
                continue
            rows.drop(_PERMIT, [claim.key])
            del claims[claim.key]
        return claims, alive

    def _list_waiting(self) -> Sequence[SharedTicket]:
        with self._lock:
            return [one for one in self._tickets.values() if one.waiting]

    def _show_alive(self, rows: LimitRows, waiting: Iterable[SharedTicket], claims: Collection[str]) -> None:
        """Show that this process is alive. If others took it for dead, they have dropped its tickets: those *waiting*
        come into the queue again, unless they are among the *claims*."""
        before = rows.find(_ALIVE, self.holder)
        if before is None or before.at <= rows.now:
            for one in waiting:
                if one.claim.key not in claims:
                    self._queue(rows, one.claim)
        rows.put(LimitRow(_ALIVE, self.holder, "", rows.now + LEASE_SECONDS))

    def _read_marks(self, rows: LimitRows, claims: Iterable[Claim]) -> Mapping[str, float]:
        names = {name for claim in claims for name in (claim.closing, claim.serving)}
        return {row.key: row.at for row in rows.read([_MARK], names)}

    def _read_usage(self, rows: LimitRows, scopes: Collection[str]) -> Usage:
        return _sum_usage(row for row in rows.read([_USAGE], scopes) if row.at > rows.now)

    def _add_usage(self, rows: LimitRows, claim: Claim, spent: Mapping[Unit, float]) -> None:
        units = {(claim.scope(limit.per), unit) for limit in self._limits for unit, _ in limit.amounts()}
        for scope, unit in units:
            if amount := spent.get(unit, 0.0):
                interval = WINDOWS[unit] / SUMS
                until = (rows.now // interval + 1) * interval + WINDOWS[unit]
                key = f"{scope} {unit} {until:.0f}"
                before = rows.find(_USAGE, key)
                amount += json.loads(before.body)[1] if before is not None else 0.0
                rows.put(LimitRow(_USAGE, key, scope, until, json.dumps([unit, amount])))

    def _queue(self, rows: LimitRows, claim: Claim) -> float:
        """Put *claim* into the queue, at its old place if it has one, and return the time since which it waits."""
        before = rows.find(_TICKET, claim.key)
        at = before.at if before is not None else rows.now
        rows.put(_row_of(_TICKET, copy_with(claim, at=at)))
        return at

    # After a transaction, without the lock.

    def _go_on(self, admission: _Admission) -> Sequence[str]:
        """Wake who was admitted, and return the keys of those whose compactor was stopped, or garbage collected."""
        self._plan_beat(admission)
        unwanted = list[str]()
        for claim in admission.admitted:
            if claim.holder:
                limits = self if claim.holder == self.holder else _HERE.get(claim.holder)
                if limits is not None and not limits._wake(claim.key):
                    unwanted.append(claim.key)
            elif self.dispatcher is not None:
                with suppress(Exception):  # any error of its engine: the job runs again by itself
                    self.dispatcher.due(claim.session, claim.role, self._clock.now())
        return unwanted

    def _wake(self, key: str) -> bool:
        """Call the owner of a ticket, and return whether it takes the permit."""
        with self._lock:
            ticket = self._tickets.get(key)
            if ticket is None:
                return False
            if not ticket.waiting:
                return True  # another thread was faster
            ticket.waiting, ticket.is_granted = False, True
        try:
            wanted = bool(ticket.call())
        except BaseException:
            self._forget(key)
            self._settle([key])
            raise
        if not wanted:
            self._forget(key)
        return wanted

    def _forget(self, key: str) -> SharedTicket | None:
        with self._lock:
            ticket = self._tickets.pop(key, None)
            if ticket is not None:
                ticket.waiting = ticket.is_granted = False
        return ticket

    def _plan_beat(self, admission: _Admission) -> None:
        """Set the timer for the next heartbeat, or for the moment when time makes room, if that is earlier."""
        seconds = max(min(RENEW_SECONDS, RENEW_SECONDS if admission.seconds is None else admission.seconds), MIN_WAIT)
        with self._lock:
            now = self._clock.monotonic()
            # One that is overdue for long may have been lost.
            is_set = now - RENEW_SECONDS <= self._beats_at <= now + seconds
            if is_set or not (admission.is_queued or self._in_use or self._tickets):
                return
            self._beats_at, cancel = (at := now + seconds), self._cancel
        if cancel is not None:
            cancel()
        try:
            following = self._clock.call_later(seconds, call_weakly(self._start_beat, at))
        except RuntimeError:  # no thread could be started: the next transaction sets it
            with self._lock:
                self._beats_at = math.inf if self._beats_at == at else self._beats_at
            return
        with self._lock:
            self._cancel = following

    def _start_beat(self, at: float) -> None:
        """Show a sign of life that was planned for then, where the store holds up no timers."""
        if self._store.is_resident:
            self._beat(at)
            return
        try:
            _BEATS.run(call_weakly(self._beat, at))
        except RuntimeError:  # no thread could be started
            with self._lock:
                self._beats_at = math.inf if self._beats_at == at else self._beats_at
            self._plan_beat(_Admission(is_queued=True))

    def _beat(self, at: float) -> None:
        with self._lock:
            if self._beats_at != at:  # an earlier one was planned when this one's timer could not be cancelled yet
                return
            self._beats_at, self._cancel = math.inf, None
        self._settle(tidies=True)

    def _hear(self) -> None:
        _BEATS.run(partial(self._settle, hears=True))

    def _listen(self, holder: str) -> None:
        """Listen for notices about tickets that other processes admit."""
        with self._lock:
            if holder in self._listening:
                return
            self._listening.add(holder)
        while _ENDS:
            with suppress(Exception):  # another thread was faster, or that store is closed
                _ENDS.popleft()()
        try:
            end = self._store.listen(f"{_NOTICES} {holder}", call_weakly(self._hear))
        except BaseException:
            with self._lock:
                self._listening.discard(holder)
            raise
        finalize(self, _ENDS.append, end).atexit = False


class _Ended(NamedTuple):
    """A permit whose cycle has ended, until the store knows of it."""

    key: str
    calls: int
    spent: Mapping[Unit, float]
    #: Seconds for which the provider is closed, and the name of its mark.
    closed: float
    closing: str


@dataclass(slots=True, eq=False, repr=False)
class SharedTicket:
    """A compactor's entry in the queue, like ``Ticket``. With a dispatcher, it outlives the compactor."""

    limits: SharedLimits
    provider: str
    model: str
    call: Callable[[], bool | None]
    #: The call it waits for.
    claim: Claim = field(default_factory=lambda: Claim(uuid.uuid4().hex))
    waiting: bool = False
    is_granted: bool = False
    #: Whether the store has it in its queue.
    is_stored: bool = False

    def take_permit(self, session: str = "", role: str = "") -> SharedPermit:
        limits, key, holder = self.limits, self.claim.key, self.limits.holder
        if limits.dispatcher is not None:
            key, holder = make_key(f"{make_key(session)} {make_key(role)}"), ""
        tenant = limits.tenant_of(session)
        self.claim = Claim(key, tenant, self.provider, self.model, holder=holder, session=session, role=role)
        permit, self.is_granted = SharedPermit(limits, self, uuid.uuid4().hex, self.is_granted), False
        return permit

    def wait(self, limit: LimitReached) -> None:  # noqa: ARG002
        """Join the queue, unless ``hold`` has already put it there."""
        if not (self.waiting or self.is_granted):
            self.register()
            self.is_stored = False
            self.limits._settle(queued=[] if self.claim.holder else [self.claim])

    def register(self) -> None:
        """Mark it as waiting, to be woken here. A dispatcher's ticket is not woken: a new job runs instead."""
        with self.limits._lock:
            self.waiting = self.is_stored = True
            if self.claim.holder:
                self.limits._tickets[self.claim.key] = self

    def give_back(self) -> None:
        if self.is_granted:
            self.limits._forget(self.claim.key)
            self.limits._settle([self.claim.key])

    def leave(self) -> None:
        if not (self.waiting or self.is_granted):
            return
        if self.limits._forget(self.claim.key) is not None:
            self.limits._settle([self.claim.key])
        self.waiting = False

    def limit(self) -> LimitReached | None:
        return LimitReached(None) if self.waiting else None


@dataclass(slots=True, eq=False, repr=False)
class SharedPermit:
    """The right of one cycle to call a model, like ``Permit``."""

    limits: SharedLimits
    ticket: SharedTicket
    key: str
    #: Whether its ticket was woken, so that the store has a permit for it to take.
    granted: bool = False
    #: Whether the store has this permit.
    inside: bool = False
    #: Number of calls made.
    calls: int = 0
    #: Usage of its newest call that is not yet in the store.
    spent: dict[Unit, float] = field(default_factory=dict)
    #: Seconds for which its provider is closed.
    closed: float = 0.0

    def hold(self, request: SummaryRequest, count: TokenCounter) -> None:
        """Like ``Permit.hold``. Also raises ``LimitReached`` if the store fails."""
        limits, ticket, tokens, spend = self.limits, self.ticket, 0.0, 0.0
        if limits.counts_tokens:
            read, written = count_prompt(request.messages, count), request.target_tokens or DEFAULT_ANSWER
            tokens, spend = float(read + written), limits.price(ticket.model, read, written)
            if spend > limits.max_spend:
                raise SpendExceeded(spend, limits.max_spend, limits.unit)
        ticket.claim = copy_with(ticket.claim, tokens=tokens, spend=spend)
        if queues := not self.calls:  # before any process can wake it
            ticket.register()
        try:
            wait = limits._ask(self, ticket.claim, queues=queues)
        except StoreError as error:
            limits._forget(ticket.claim.key)
            ticket.waiting = False
            with limits._lock:  # the store may have given the permit all the same: release() returns it
                limits._in_use += not self.inside
            self.inside = True
            raise LimitReached(RETRY_SECONDS) from error
        self.granted = False  # the store keeps none any more: taken, or given to another
        if wait == 0:
            limits._forget(ticket.claim.key)
            ticket.waiting = False
            return
        limits._listen(ticket.claim.holder)
        raise LimitReached(wait)

    def ask(self, summarizer: Summarizer, request: SummaryRequest) -> str | Summary:
        """Return the answer of *summarizer*. Record its usage, and whether its endpoint is overloaded."""
        claim, usage = self.ticket.claim, None
        spent = claim.tokens, claim.spend
        self.calls += 1
        try:
            answer = summarizer(request)
            usage = answer.usage if isinstance(answer, Summary) else None
            if usage is not None and "input_tokens" in usage:
                read, written = usage["input_tokens"], usage.get("output_tokens", 0)
                spent = (
                    read + written,
                    self.limits.price(self.ticket.model, read, written, usage.get("cached_tokens", 0)),
                )
        except BaseException as error:
            spent = (0.0, 0.0) if is_refusal(error) else spent
            self.closed = seconds_closed(error)
            raise
        finally:
            self.spent = {"tokens": spent[0], "spend": spent[1]}
        return answer

    def release(self) -> None:
        """Return the permit, and admit the next ticket."""
        limits, claim = self.limits, self.ticket.claim
        if self.inside:
            self.inside = False
            with limits._lock:
                limits._ended.append(_Ended(self.key, self.calls, self.spent, self.closed, claim.closing))
            limits._settle([claim.key] if self.granted else [])
        elif self.granted:
            limits._forget(claim.key)
            limits._settle([claim.key])


def provider_of(summarizer: object) -> str:
    """Return the host of a summarizer's endpoint, or else the name of its class; empty for a plain function."""
    host = urlsplit(str(getattr(summarizer, "endpoint", ""))).netloc
    return host or ("" if isroutine(summarizer) else type(summarizer).__name__)


def seconds_closed(error: BaseException) -> float:
    """Return the seconds for which *error* closes its endpoint; 0 if it is no overload with a Retry-After."""
    after = getattr(error, "retry_after", None)
    status = read_status(error) or read_status(error.__cause__)
    if status not in OVERLOADED or isinstance(after, bool) or not isinstance(after, int | float) or not after > 0:
        return 0.0
    return float(min(after, MAX_CLOSED))


def _lane_of(claim: Claim) -> str:
    return make_key(json.dumps([claim.tenant, claim.provider, claim.model]))


def _row_of(kind: str, claim: Claim) -> LimitRow:
    return LimitRow(kind, claim.key, _lane_of(claim), claim.at, json.dumps(claim._asdict()), make_key(claim.session))


def _read_claim(row: LimitRow) -> Claim:
    facts = json.loads(row.body)
    return Claim(**{name: facts[name] for name in Claim._fields if name in facts})  # a newer version may add fields


def _sum_usage(rows: Iterable[LimitRow]) -> Usage:
    usage: dict[tuple[str, Unit], list[tuple[float, float]]] = {}
    for row in rows:
        unit, amount = json.loads(row.body)
        usage.setdefault((row.lane, unit), []).append((row.at, amount))
    return usage
