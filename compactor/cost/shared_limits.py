"""Limits shared by all processes on one store: concurrent calls, tokens per minute, spend per hour; fair to tenants.

The store holds permits, the queue of tickets and the usage; ``admission`` chooses the next ticket. The process that
ends a call admits the next ticket in the same transaction and then wakes its owner: through the dispatcher, directly
within the process, or by a notice of the store. While a process has permits or its compactors wait, it sends a
heartbeat to the store every second, as a lease is renewed. A process that knows of waiting tickets frees the
permits of killed processes, and looks only when the next one may expire.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isroutine
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakValueDictionary, finalize

from memory.arguments import ConfigError, require
from memory.errors import StoreClosed, StoreError
from memory.hooks import renew_after_fork
from memory.rounds import copy_with
from memory.stores.base import Store, adapt_store, make_key
from memory.stores.limiting import LimitRows
from memory.stores.tenants import split_name

from ..config import Limit, Quantity
from ..errors import LimitReached, SpendExceeded, read_status
from ..journal import LEASE_SECONDS, RENEW_SECONDS
from ..summarizers.base import Summarizer, Summary, SummaryRequest
from ..timers import SYSTEM_CLOCK, Clock, DaemonExecutor, call_weakly
from ..tokens import TokenCounter
from .admission import (
    NOTICES,
    PERMIT,
    TICKET,
    USAGE,
    Admission,
    Claim,
    LimitTransaction,
    PermitReport,
    read_claim,
    sum_usage,
)
from .limits import MIN_WAIT, LimitsStatus, estimate_usage, is_refusal
from .prices import Prices

if TYPE_CHECKING:
    from ..timers import Dispatcher

#: Seconds until the next attempt after the store has failed.
RETRY_SECONDS = 5.0
#: Maximum seconds for which one response closes a provider: its Retry-After may be wrong by years.
MAX_CLOSED = 300.0
#: HTTP statuses of an overloaded endpoint.
OVERLOADED = (429, 503)
#: Runs heartbeats, so that an unresponsive store does not block the timers.
_HEARTBEATS = DaemonExecutor(2, "compactor-limits")
#: All ``SharedLimits`` of this process, by holder.
_LIMITS_BY_HOLDER: WeakValueDictionary[str, SharedLimits] = WeakValueDictionary()
#: Functions that end the listening of limits that are gone. The garbage collector is to take no locks.
_STALE_LISTENERS = deque[Callable[[], object]]()


def find_tenant(session: str) -> str:
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
        tenant_of: Callable[[str], str] = find_tenant,
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
        quantities = {quantity for limit in self._limits for quantity, _ in limit.list_amounts()}
        self.counts_tokens, self._counts_spend = bool(quantities), "spend" in quantities
        #: Maximum dollars of one call.
        self.max_spend = min((one.max_spend_per_hour or math.inf for one in self._limits), default=math.inf)
        together = [one for one in self._limits if one.per == "all"]
        #: The limit on all calls together; None: there are limits only per provider, model or tenant.
        self.max_concurrency = min((one.max_concurrency for one in together if one.max_concurrency), default=None)
        spends = (one.max_spend_per_hour for one in together if one.max_spend_per_hour)
        self.max_spend_per_hour = min(spends, default=None)
        self.holder = ""
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        # Held while a job is enqueued. The store runs one transaction at a time: a permit is not to wait behind many.
        self._enqueuing = threading.Lock()
        self._lock = threading.RLock()  # guards all below it, and the mutable state of tickets
        _LIMITS_BY_HOLDER.pop(self.holder, None)  # in a forked child, the parent's
        self.holder = uuid.uuid4().hex
        self._tickets: dict[str, SharedTicket] = {}  # waiting tickets, by key
        self._in_use = 0  # this process's permits in the store
        self._ended: list[PermitReport] = []  # not yet reported to the store
        self._heartbeat_at = math.inf  # when the next heartbeat is due
        self._cancel: Callable[[], object] | None = None
        self._listening = set[str]()  # the names of notices that are heard
        _LIMITS_BY_HOLDER[self.holder] = self

    #: As in ``Limits``.
    spend_unit = "dollars"

    def wake_by(self, dispatcher: Dispatcher) -> None:
        """Let *dispatcher* run the jobs of admitted tickets. A worker's engine calls this."""
        self.dispatcher = dispatcher

    def make_ticket(self, summarizer: Summarizer, call: Callable[[], bool | None]) -> SharedTicket:
        """Return a ticket for a compactor with that *summarizer*; *call* has the meaning of ``Ticket.call``.

        Raises ``ConfigError`` if spend is limited and the summarizer's price is unknown.
        """
        model = str(getattr(summarizer, "model", "") or "")
        if not getattr(summarizer, "deterministic", False):
            self.compute_cost(model, {"input_tokens": 1, "output_tokens": 1})
        return SharedTicket(self, find_provider(summarizer), model, call)

    def queue_job(self, session: str, role: str, summarizer: Summarizer) -> tuple[bool, float]:
        """Queue a dispatcher's job if no call is free. Return whether it has a ticket or a permit now, and the seconds
        until it tries again if nobody wakes it: 0.0 if it may run.

        Called before the session is opened: to open it and to be refused then takes eight times as long, which slows
        other tenants' jobs while many are enqueued at once. A job that turns out not to be due leaves
        the queue, and gives its permit back.
        """
        if self.dispatcher is None or getattr(summarizer, "deterministic", False):
            return False, 0.0
        claim = self.make_ticket(summarizer, bool).take_permit(session, role).ticket.claim

        def enqueue(rows: LimitRows) -> tuple[bool, float, float | None]:
            transaction = self._begin(rows)
            return *transaction.enqueue_job(claim), transaction.find_expiry()

        with self._enqueuing:
            is_queued, wait, expiry = self._store.change_limits(enqueue)
        if wait:
            self._schedule_heartbeat(Admission(is_queued=True, seconds=expiry))
            self._listen(claim.holder)
        return is_queued, wait

    def withdraw_job(self, session: str, role: str) -> None:
        """Take a job that needs no model now out of the queue, and give back its permit."""
        if self.dispatcher is not None:
            self._settle([_make_job_key(session, role)])

    def status(self) -> LimitsStatus:
        """Return the state of the limits over all processes. Raises ``StoreError`` if the store fails."""

        def read(rows: LimitRows) -> LimitsStatus:
            permits = [read_claim(row) for row in rows.read([PERMIT])]
            widest = next((limit.per for limit in self._limits if limit.max_spend_per_hour is not None), "")
            rows_of_widest = (row for row in rows.read([USAGE]) if row.lane.split(" ")[0] == widest)
            usage = sum_usage(row for row in rows_of_widest if row.at > rows.now)
            spent = sum(amount for (_, quantity), pairs in usage.items() if quantity == "spend" for _, amount in pairs)
            return LimitsStatus(len(permits), rows.count(TICKET), spent, sum(permit.spend for permit in permits))

        return self._store.change_limits(read)

    def compute_cost(self, model: str, usage: Mapping[str, int]) -> float:
        """Return a call's dollars; 0 if spend is not limited. Raises ``ConfigError`` if the price is unknown."""
        if not self._counts_spend:
            return 0.0
        if self._prices is not None:
            return self._prices.compute_cost(usage)
        from ..models import compute_price

        price = compute_price(model, usage) if model else None
        if price is None:
            raise ConfigError(("limits", f"spend is limited, but the price of {model!r} is unknown; give prices="))
        return price

    def _begin(self, rows: LimitRows) -> LimitTransaction:
        return LimitTransaction(rows, self._limits, self.holder, self._wakes)

    def _wakes(self, holder: str) -> bool:
        return holder in _LIMITS_BY_HOLDER if holder else self.dispatcher is not None

    def _reserve(self, permit: SharedPermit, claim: Claim, *, joins_queue: bool) -> float | None:
        """Reserve room for the call of *claim* in *permit*, and return 0.0. Without room, return the seconds until the
        next attempt, or None if the ticket has to be woken; if *joins_queue*, the ticket is in the queue then."""
        queued = [one.claim for one in self._list_queued() if one.claim.key != claim.key]
        report = permit.make_report()

        def reserve(rows: LimitRows) -> tuple[float | None, Admission]:
            return self._begin(rows).reserve(claim, report, queued, joins_queue=joins_queue)

        wait, admission = self._store.change_limits(reserve)
        permit.spent = {}
        if wait == 0:
            with self._lock:
                self._in_use += not permit.inside
            permit.inside = True
        if unwanted := self._wake_admitted(admission):
            self._settle(unwanted)
        return wait

    def _settle(
        self, dropped: Collection[str] = (), new: Sequence[Claim] = (), *, expires: bool = False, hears: bool = False
    ) -> None:
        """Report ended calls, *dropped* tickets and *new* ones to the store, and wake the admitted tickets; if *hears*,
        also those that others admitted for a dispatcher. If *expires*, drop expired rows. If the store fails, report
        later."""
        while unwanted := self._settle_once(dropped, new, expires, hears and self.dispatcher is not None):
            dropped, new, expires, hears = unwanted, (), False, False

    def _settle_once(self, dropped: Collection[str], new: Sequence[Claim], expires: bool, hears: bool) -> Sequence[str]:
        """Do what ``_settle`` does once; return the keys of woken tickets whose compactors are gone."""
        with self._lock:
            queued, ended = self._list_queued(), [*self._ended]
            unstored = [one for one in queued if not one.is_stored]
        keys = {one.claim.key for one in queued}

        def settle(rows: LimitRows) -> Admission:
            transaction = self._begin(rows)
            for one in ended:
                transaction.end(one)
            transaction.withdraw(dropped)
            permits = transaction.permits  # unstored tickets may be among them since an attempt whose answer was lost
            for claim in (*new, *(one.claim for one in unstored if one.claim.key not in permits)):
                transaction.enqueue(claim)
            if self._in_use or queued:
                transaction.show_alive([one.claim for one in queued])
            _, admission = transaction.admit()
            if expires:
                transaction.drop_expired()
            admitted = keys | {one.key for one in admission.admitted}
            untaken = [one for one in permits.values() if not one.taken]
            woken = [one for one in untaken if one.key in admitted or (hears and not one.holder)]
            return copy_with(admission, admitted=woken)

        try:
            admission = self._store.change_limits(settle)
        except StoreClosed:
            return ()
        except StoreError:
            self._schedule_heartbeat(Admission(is_queued=True, seconds=RENEW_SECONDS))
            return ()
        with self._lock:
            for ticket in unstored:
                ticket.is_stored = True
            self._in_use -= sum(one in self._ended for one in ended)
            self._ended = [one for one in self._ended if one not in ended]
        return self._wake_admitted(admission)

    def _list_queued(self) -> Sequence[SharedTicket]:
        with self._lock:
            return [one for one in self._tickets.values() if one.is_queued]

    def _wake_admitted(self, admission: Admission) -> Sequence[str]:
        """Wake the admitted tickets, and return the keys of those whose compactor was stopped or garbage collected.
        Called without the lock."""
        self._schedule_heartbeat(admission)
        unwanted = list[str]()
        for claim in admission.admitted:
            if claim.holder:
                limits = self if claim.holder == self.holder else _LIMITS_BY_HOLDER.get(claim.holder)
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
            if not ticket.is_queued:
                return True  # another thread was faster
            ticket.is_queued, ticket.is_granted = False, True
        try:
            wanted = bool(ticket.call())
        except BaseException:
            self._forget(key)
            self._settle([key])
            raise
        if not wanted:
            self._forget(key)
        return wanted

    def _forget(self, key: str) -> bool:
        """Take a ticket out of this process's queue, and return whether it was there."""
        with self._lock:
            ticket = self._tickets.pop(key, None)
            if ticket is not None:
                ticket.is_queued = ticket.is_granted = False
            return ticket is not None

    def _schedule_heartbeat(self, admission: Admission) -> None:
        """Set the timer for the next heartbeat, or for the moment when there may be room, if that is earlier."""
        with self._lock:
            latest = RENEW_SECONDS if self._in_use or self._tickets else LEASE_SECONDS
            seconds = max(latest if admission.seconds is None else min(latest, admission.seconds), MIN_WAIT)
            now = self._clock.monotonic()
            # One that is overdue for long may have been lost.
            is_set = now - RENEW_SECONDS <= self._heartbeat_at <= now + seconds
            if is_set or not (admission.is_queued or self._in_use or self._tickets):
                return
            self._heartbeat_at, cancel = (at := now + seconds), self._cancel
        if cancel is not None:
            cancel()
        try:
            cancel_next = self._clock.call_later(seconds, call_weakly(self._start_heartbeat, at))
        except RuntimeError:  # no thread could be started: the next transaction sets it
            with self._lock:
                self._heartbeat_at = math.inf if self._heartbeat_at == at else self._heartbeat_at
            return
        with self._lock:
            self._cancel = cancel_next

    def _start_heartbeat(self, at: float) -> None:
        """Send the heartbeat that was scheduled for *at*, on a thread of its own unless the store is in memory."""
        if self._store.is_resident:
            self._send_heartbeat(at)
            return
        try:
            _HEARTBEATS.run(call_weakly(self._send_heartbeat, at))
        except RuntimeError:  # no thread could be started
            with self._lock:
                self._heartbeat_at = math.inf if self._heartbeat_at == at else self._heartbeat_at
            self._schedule_heartbeat(Admission(is_queued=True, seconds=RENEW_SECONDS))

    def _send_heartbeat(self, at: float) -> None:
        with self._lock:
            if self._heartbeat_at != at:  # an earlier one was planned when this one's timer could not be cancelled yet
                return
            self._heartbeat_at, self._cancel = math.inf, None
        self._settle(expires=True)

    def _settle_after_notice(self) -> None:
        _HEARTBEATS.run(partial(self._settle, hears=True))

    def _listen(self, holder: str) -> None:
        """Listen for notices about tickets of *holder* that other processes admit."""
        with self._lock:
            if holder in self._listening:
                return
            self._listening.add(holder)
        while _STALE_LISTENERS:
            with suppress(Exception):  # another thread was faster, or that store is closed
                _STALE_LISTENERS.popleft()()
        try:
            end = self._store.listen(f"{NOTICES} {holder}", call_weakly(self._settle_after_notice))
        except BaseException:
            with self._lock:
                self._listening.discard(holder)
            raise
        finalize(self, _STALE_LISTENERS.append, end).atexit = False


@dataclass(slots=True, eq=False, repr=False)
class SharedTicket:
    """A compactor's entry in the queue, like ``Ticket``. With a dispatcher, it outlives the compactor."""

    limits: SharedLimits
    provider: str
    model: str
    call: Callable[[], bool | None]
    #: The call it waits for.
    claim: Claim = field(default_factory=lambda: Claim(uuid.uuid4().hex))
    is_queued: bool = False
    is_granted: bool = False
    #: Whether the store has it in its queue.
    is_stored: bool = False

    def take_permit(self, session: str = "", role: str = "") -> SharedPermit:
        limits, key, holder = self.limits, self.claim.key, self.limits.holder
        if limits.dispatcher is not None:
            key, holder = _make_job_key(session, role), ""
        tenant = limits.tenant_of(session)
        self.claim = Claim(key, tenant, self.provider, self.model, holder=holder, session=session, role=role)
        permit, self.is_granted = SharedPermit(limits, self, uuid.uuid4().hex, self.is_granted), False
        return permit

    def wait(self, limit: LimitReached) -> None:  # noqa: ARG002
        """Join the queue, unless ``reserve`` has already put it there."""
        if not (self.is_queued or self.is_granted):
            self.register()
            self.is_stored = False
            self.limits._settle(new=[] if self.claim.holder else [self.claim])

    def register(self) -> None:
        """Mark it as waiting, to be woken here. A dispatcher's ticket is not woken: a new job runs instead."""
        with self.limits._lock:
            self.is_queued = self.is_stored = True
            if self.claim.holder:
                self.limits._tickets[self.claim.key] = self

    def give_back(self) -> None:
        if self.is_granted:
            self.leave()

    def leave(self) -> None:
        if (self.is_queued or self.is_granted) and self.limits._forget(self.claim.key):
            self.limits._settle([self.claim.key])
        self.is_queued = False  # a dispatcher's ticket is in no queue here

    def limit(self) -> LimitReached | None:
        return LimitReached(None) if self.is_queued else None


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
    spent: dict[Quantity, float] = field(default_factory=dict)
    #: Seconds for which its provider is closed.
    closed: float = 0.0

    def reserve(self, request: SummaryRequest, count: TokenCounter) -> None:
        """Like ``Permit.reserve``. Also raises ``LimitReached`` if the store fails."""
        limits, ticket, tokens, spend = self.limits, self.ticket, 0.0, 0.0
        if limits.counts_tokens:
            usage = estimate_usage(request, count)
            tokens, spend = float(sum(usage.values())), limits.compute_cost(ticket.model, usage)
            if spend > limits.max_spend:
                raise SpendExceeded(spend, limits.max_spend, limits.spend_unit)
        ticket.claim = copy_with(ticket.claim, tokens=tokens, spend=spend)
        if joins_queue := not self.calls:  # before any process can wake it
            ticket.register()
        try:
            wait = limits._reserve(self, ticket.claim, joins_queue=joins_queue)
        except StoreError as error:
            limits._forget(ticket.claim.key)
            ticket.is_queued = False
            with limits._lock:  # the store may have given the permit all the same: release() returns it
                limits._in_use += not self.inside
            self.inside = True
            raise LimitReached(RETRY_SECONDS) from error
        self.granted = False  # the store keeps none any more: taken, or given to another
        if wait == 0:
            limits._forget(ticket.claim.key)
            ticket.is_queued = False
            return
        limits._listen(ticket.claim.holder)
        raise LimitReached(wait)

    def ask(self, summarizer: Summarizer, request: SummaryRequest) -> str | Summary:
        """Return the answer of *summarizer*. Record its usage, and whether its endpoint is overloaded."""
        claim = self.ticket.claim
        tokens, spend = claim.tokens, claim.spend
        self.calls += 1
        try:
            answer = summarizer(request)
            usage = answer.usage if isinstance(answer, Summary) else None
            if usage is not None and "input_tokens" in usage:
                tokens = usage["input_tokens"] + usage.get("output_tokens", 0)
                spend = self.limits.compute_cost(self.ticket.model, usage)
        except BaseException as error:
            if is_refusal(error):
                tokens = spend = 0.0
            self.closed = read_retry_after(error)
            raise
        finally:
            self.spent = {"tokens": tokens, "spend": spend}
        return answer

    def make_report(self) -> PermitReport:
        return PermitReport(self.key, self.calls, self.spent, self.closed, self.ticket.claim.closed_mark)

    def release(self) -> None:
        """Return the permit, and admit the next ticket."""
        limits, claim = self.limits, self.ticket.claim
        if self.inside:
            self.inside = False
            with limits._lock:
                limits._ended.append(self.make_report())
            limits._settle([claim.key] if self.granted else [])
        elif self.granted:
            limits._forget(claim.key)
            limits._settle([claim.key])


def find_provider(summarizer: object) -> str:
    """Return the host of a summarizer's endpoint, or else the name of its class; empty for a plain function."""
    host = urlsplit(str(getattr(summarizer, "endpoint", ""))).netloc
    return host or ("" if isroutine(summarizer) else type(summarizer).__name__)


def read_retry_after(error: BaseException) -> float:
    """Return the seconds for which *error* closes its endpoint; 0 if it is no overload with a Retry-After."""
    after = getattr(error, "retry_after", None)
    status = read_status(error) or read_status(error.__cause__)
    if status not in OVERLOADED or isinstance(after, bool) or not isinstance(after, int | float) or not after > 0:
        return 0.0
    return float(min(after, MAX_CLOSED))


def _make_job_key(session: str, role: str) -> str:
    return make_key(f"{make_key(session)} {make_key(role)}")
