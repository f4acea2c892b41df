"""Limits shared by all processes on one store: calls at once, tokens a minute and spend an hour, fair between tenants.

The store has permits, the queue of tickets and what was used, and ``admission`` says who is next. Whoever ends a call
admits the next in the same transaction, and then wakes it: by its dispatcher, directly in the same process, or by a
notice of the store. While a process has permits or knows of tickets that wait, it shows every two seconds that it is
alive, and takes back what killed processes held.
"""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isroutine
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from memory.arguments import ConfigError, require
from memory.errors import StoreClosed, StoreError
from memory.hooks import renew_after_fork
from memory.stores.base import Store, adapt_store, key_of
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

#: Seconds that a permit waits for its ticket's owner, before the next gets it.
GRANT_SECONDS = 10.0
#: Seconds after which a job looks again that nobody has woken; and one second more for each ticket before it.
SAFETY_SECONDS = 30.0
#: Seconds until limits are asked again that could not be.
RETRY_SECONDS = 5.0
#: Maximum seconds for which one answer closes a provider: a date of the next century is a mistake.
MAX_CLOSED = 300.0
#: Statuses by which an endpoint says that it has too much to do.
OVERLOADED = (429, 503)
#: Kinds of rows. A mark says until when a provider is closed, or when a tenant was served.
_TICKET, _PERMIT, _USAGE, _MARK, _ALIVE = "ticket", "permit", "usage", "mark", "alive"
#: Notices have this name, a space and the holder's.
_NOTICES = "limits"
#: Where processes show that they are alive: a store that does not answer is not to hold up the timers.
_BEATS = DaemonExecutor(2, "compactor-limits")
#: The limits of this process, by holder.
_HERE: WeakValueDictionary[str, SharedLimits] = WeakValueDictionary()


class _Admission(NamedTuple):
    """What one transaction has admitted."""

    #: Tickets that have a permit now, and are to be woken.
    admitted: Sequence[Claim] = ()
    #: Tickets wait.
    is_queued: bool = False
    #: Seconds until time alone makes room for one of them; None: the end of a call does.
    seconds: float | None = None


def tenant_of_session(session: str) -> str:
    return split_name(session)[0]


class SharedLimits:
    """Limits that all processes with the same *store* and *limits* share.

    Give them to ``ContextCompactor``, ``Sessions`` or ``Worker`` as ``limits=``. *tenant_of* returns the tenant of a
    session's name. A summarizer's provider is the host of its endpoint, or else its class; a plain function has none,
    and so no model. Spend is in dollars: by *prices*, or else those of the summarizer's model. *dispatcher* runs the
    jobs of tickets that are admitted; workers of ``compactor.workers`` set theirs.

    If the store does not answer, no model is asked, and the compactor tries again. Raises ``ConfigError`` for a store
    that cannot share limits.
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
            require("limits", limit, Limit, "a list of what Limit(...) gives")
        if not self._limits:
            raise ConfigError(("limits", "give one Limit(...) at least"))
        if prices is not None and prices.per_token is None:
            raise ConfigError(("prices", "have no dollars: take Prices.of_model(...), or give per_token="))
        self.tenant_of = tenant_of
        self._prices = prices
        self.dispatcher = dispatcher
        self._clock = clock if clock is not None else SYSTEM_CLOCK
        units = {unit for limit in self._limits for unit, _ in limit.amounts()}
        self.counts_tokens, self._counts_spend = bool(units), "spend" in units
        #: The most that one call may cost.
        self.max_spend = min((one.max_spend_per_hour or math.inf for one in self._limits), default=math.inf)
        together = [one for one in self._limits if one.per == "all"]
        #: Of all calls together; None: only those of each provider, model or tenant are limited.
        self.max_concurrency = min((one.max_concurrency for one in together if one.max_concurrency), default=None)
        self.max_spend_per_hour = min(
            (one.max_spend_per_hour for one in together if one.max_spend_per_hour), default=None
        )
        self.holder = ""
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards all below it, and the mutable state of tickets
        _HERE.pop(self.holder, None)  # a parent's, in a forked child
        self.holder = uuid.uuid4().hex
        self._tickets: dict[str, SharedTicket] = {}  # that wait, by key
        self._in_use = 0  # permits of this process, as the store knows them
        self._ended: list[_Ended] = []  # what the store is to be told
        self._beats_at = math.inf  # for when the timer of the next sign of life is set
        self._cancel: Callable[[], object] | None = None
        self._listens = False
        _HERE[self.holder] = self

    #: The unit of spend, as that of ``Limits``.
    unit = "dollars"

    def wake_by(self, dispatcher: Dispatcher) -> None:
        """Have *dispatcher* run the jobs of tickets that are admitted. A worker's engine calls this."""
        self.dispatcher = dispatcher

    def make_ticket(self, summarizer: Summarizer, call: Callable[[], bool | None]) -> SharedTicket:
        """Return the ticket of a compactor with that *summarizer*; *call* is as ``Ticket.call``.

        Raises ``ConfigError`` if spend is limited and nobody knows what the summarizer costs.
        """
        model = str(getattr(summarizer, "model", "") or "")
        if not getattr(summarizer, "deterministic", False):
            self.price(model, 1, 1)
        return SharedTicket(self, provider_of(summarizer), model, call)

    def status(self) -> LimitsStatus:
        """Return the usage of the limits by all processes. Raises ``StoreError``."""

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
        """Return the dollars that a call costs; 0 if nobody limits them. Raises ``ConfigError`` if nobody knows."""
        if not self._counts_spend:
            return 0.0
        usage = {"input_tokens": read, "output_tokens": written, "cached_tokens": cached}
        if self._prices is not None:
            return self._prices.cost(usage)
        from ..models import compute_price

        price = compute_price(model, usage) if model else None
        if price is None:
            raise ConfigError(("limits", f"spend is limited, and nobody knows what {model!r} costs; give prices="))
        return price

    # Transactions. What is given rows calls nobody, and may run twice.

    def _ask(self, permit: SharedPermit, claim: Claim, *, queues: bool) -> float | None:
        """Give *permit* room for the call that *claim* is for, and return 0.0. If there is none, return the seconds
        until it is worth another try, or None if only waking tells; the ticket is in the queue then if *queues*."""

        def ask(rows: LimitRows) -> tuple[float | None, _Admission]:
            claims, alive = self._read_permits(rows)
            taken = claim._replace(key=permit.key, holder=self.holder, taken=True)
            if (mine := claims.pop(permit.key, None)) is not None:  # a further call of a cycle: ahead of the queue
                self._add_usage(rows, mine, permit.spent)
                wait = self._find_wait(rows, claims, claim)
                # Without room it keeps its permit until it releases it, and reserves nothing.
                rows.put(_row_of(_PERMIT, taken if wait == 0 else taken._replace(tokens=0.0, spend=0.0)))
                return wait, _Admission()
            granted, admission = claims.get(claim.key), _Admission()
            if granted is None:
                granted, admission = self._admit(rows, claims, alive, claim)
            if granted is not None:
                rows.drop(_PERMIT, [claim.key])
                rows.drop(_TICKET, [claim.key])
                rows.put(_row_of(_PERMIT, taken))
                self._show_alive(rows)
                return 0.0, admission
            wait = self._find_wait(rows, claims, claim) or None
            if not queues:
                return wait, admission
            at = self._queue(rows, claim)
            if claim.holder:
                self._show_alive(rows)
            else:  # a job, which comes again if all who could wake it are gone
                wait = max(wait or 0.0, SAFETY_SECONDS + rows.count(_TICKET, _lane_of(claim), at))
            return wait, admission._replace(is_queued=True)

        wait, admission = self._store.change_limits(ask)
        permit.spent = {}
        if wait == 0:
            with self._lock:
                self._in_use += not permit.inside
            permit.inside = True
        self._go_on(admission)
        return wait

    def _settle(
        self, dropped: Collection[str] = (), queued: Sequence[Claim] = (), *, tidies: bool = False, hears: bool = False
    ) -> None:
        """Tell the store what has ended here, and wake who is admitted; if *hears*, all who were admitted for a
        dispatcher. If the store fails, it is told later."""
        with self._lock:
            waiting = {key: one for key, one in self._tickets.items() if one.is_waiting}
            ended, tickets = [*self._ended], [one for one in waiting.values() if not one.is_stored]
        queued = (*queued, *(one.claim for one in tickets))
        hears = hears and self.dispatcher is not None

        def change(rows: LimitRows) -> _Admission:
            claims, alive = self._read_permits(rows)
            for one in ended:
                if (mine := claims.pop(one.key, None)) is not None:
                    rows.drop(_PERMIT, [one.key])
                    self._add_usage(rows, mine, one.spent)
                if one.closed > 0:
                    rows.put(LimitRow(_MARK, one.closing, one.closing, rows.now + one.closed))
            given_back = [key for key in dropped if key in claims and not claims[key].taken]
            rows.drop(_PERMIT, given_back)
            rows.drop(_TICKET, dropped)
            for claim in queued:
                self._queue(rows, claim)
            self._show_alive(rows)
            claims = {key: claim for key, claim in claims.items() if key not in given_back}
            _, admission = self._admit(rows, claims, alive)
            if tidies:
                rows.drop_before(_USAGE, rows.now)
                for kind in (_MARK, _ALIVE):
                    rows.drop_before(kind, rows.now - WINDOWS["spend"])
            named = {one.key for one in admission.admitted}
            untaken = [one for one in claims.values() if not one.taken and one.key not in named]
            missed = [one for one in untaken if one.key in waiting or (hears and not one.holder)]
            return admission._replace(admitted=(*admission.admitted, *missed))

        try:
            admission = self._store.change_limits(change)
        except StoreClosed:
            return
        except StoreError:
            self._plan_beat(_Admission(is_queued=True))
            return
        with self._lock:
            for ticket in tickets:
                ticket.is_stored = True
            self._in_use -= sum(one in self._ended for one in ended)
            self._ended = [one for one in self._ended if one not in ended]
        self._go_on(admission)

    def _admit(
        self, rows: LimitRows, claims: dict[str, Claim], alive: Collection[str], asking: Claim | None = None
    ) -> tuple[Claim | None, _Admission]:
        """Give permits as long as there is room, add them to *claims*, and return what was admitted. First returned is
        *asking*, which need not be in the queue, if its time has come: it then takes its permit itself."""
        admitted = list[Claim]()
        while True:
            firsts = {_lane_of(claim): claim for claim in map(_read_claim, rows.read_firsts(_TICKET))}
            if dead := [one.key for one in firsts.values() if one.holder and one.holder not in alive]:
                rows.drop(_TICKET, dead)
                continue
            if asking is not None:
                first, own = firsts.get(_lane_of(asking)), asking._replace(at=rows.now)
                if first is None or first.key == asking.key:
                    firsts[_lane_of(asking)] = own if first is None else own._replace(at=first.at)
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
            granted = ticket._replace(at=rows.now + GRANT_SECONDS)
            rows.drop(_TICKET, [ticket.key])
            rows.put(_row_of(_PERMIT, granted))
            claims[ticket.key] = granted
            admitted.append(granted)
            if ticket.holder not in _HERE and (ticket.holder or self.dispatcher is None):
                rows.notify(f"{_NOTICES} {ticket.holder}")

    def _find_wait(self, rows: LimitRows, claims: Mapping[str, Claim], claim: Claim) -> float | None:
        """Return the seconds until there is room for *claim* beside *claims* by time alone; 0: there is now."""
        room = Room(self._limits, claims.values(), {}, rows.now)
        if not room.has_call(claim):
            return None
        room.marks, room.usage = self._read_marks(rows, [claim]), self._read_usage(rows, room.summed_scopes(claim))
        return room.seconds_until(claim)

    def _read_permits(self, rows: LimitRows) -> tuple[dict[str, Claim], Collection[str]]:
        """Return the permits by key, without those that killed processes held or that nobody took in time; and the
        holders of processes that are alive, the caller's included."""
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

    def _show_alive(self, rows: LimitRows) -> None:
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
        """Put *claim* into the queue, at its place if it has one, and return its time."""
        before = rows.find(_TICKET, claim.key)
        at = before.at if before is not None else rows.now
        rows.put(_row_of(_TICKET, claim._replace(at=at)))
        return at

    # After a transaction, without a lock.

    def _go_on(self, admission: _Admission) -> None:
        self._plan_beat(admission)
        for claim in admission.admitted:
            if claim.holder:
                limits = self if claim.holder == self.holder else _HERE.get(claim.holder)
                if limits is not None:
                    limits._wake(claim.key)
            elif self.dispatcher is not None:
                with suppress(Exception):  # whatever its engine raises: the job comes again by itself
                    self.dispatcher.due(claim.session, claim.role, self._clock.now())

    def _wake(self, key: str) -> None:
        with self._lock:
            ticket = self._tickets.get(key)
            if ticket is not None:
                if not ticket.is_waiting:
                    return  # somebody was faster
                ticket.is_waiting, ticket.is_granted = False, True
        wanted: bool | None = False
        try:
            wanted = ticket is not None and ticket.call()
        finally:
            if not wanted:  # its compactor was stopped, or garbage collected
                self._forget(key)
                self._settle([key])

    def _forget(self, key: str) -> SharedTicket | None:
        with self._lock:
            ticket = self._tickets.pop(key, None)
            if ticket is not None:
                ticket.is_waiting = ticket.is_granted = False
        return ticket

    def _plan_beat(self, admission: _Admission) -> None:
        """Set the timer for the next sign of life, or for the time that makes room, whichever is earlier."""
        seconds = max(min(RENEW_SECONDS, RENEW_SECONDS if admission.seconds is None else admission.seconds), MIN_WAIT)
        with self._lock:
            at = self._clock.monotonic() + seconds
            if not (admission.is_queued or self._in_use or self._tickets) or self._beats_at <= at:
                return
            self._beats_at, cancel = at, self._cancel
        if cancel is not None:
            cancel()
        beat = call_weakly(self._beat)
        with suppress(RuntimeError):  # no thread could be started: the next transaction sets it
            following = self._clock.call_later(seconds, beat if self._store.is_resident else partial(_BEATS.run, beat))
            with self._lock:
                self._cancel = following

    def _beat(self) -> None:
        with self._lock:
            self._beats_at, self._cancel = math.inf, None
        self._settle(tidies=True)

    def _hear(self) -> None:
        _BEATS.run(partial(self._settle, hears=True))

    def _listen(self, holder: str) -> None:
        """Hear of tickets that other processes admit."""
        with self._lock:
            listens, self._listens = self._listens, True
        if not listens:
            self._store.listen(f"{_NOTICES} {holder}", call_weakly(self._hear))


class _Ended(NamedTuple):
    """A permit whose call has ended, until the store knows."""

    key: str
    spent: Mapping[Unit, float]
    #: For so many seconds, the provider with that mark takes no calls.
    closed: float
    closing: str


@dataclass(slots=True, eq=False, repr=False)
class SharedTicket:
    """A compactor's entry in the queue, as ``Ticket``. With a dispatcher, it stays there when the compactor is gone."""

    limits: SharedLimits
    provider: str
    model: str
    call: Callable[[], bool | None]
    #: What it waits for.
    claim: Claim = field(default_factory=lambda: Claim(uuid.uuid4().hex))
    is_waiting: bool = False
    is_granted: bool = False
    #: The store knows that it waits.
    is_stored: bool = False

    @property
    def waiting(self) -> bool:
        return self.is_waiting

    def take_permit(self, session: str = "", role: str = "") -> SharedPermit:
        limits, key, holder = self.limits, self.claim.key, self.limits.holder
        if limits.dispatcher is not None:
            key, holder = key_of(f"{key_of(session)} {key_of(role)}"), ""
        tenant = limits.tenant_of(session)
        self.claim = Claim(key, tenant, self.provider, self.model, holder=holder, session=session, role=role)
        permit, self.is_granted = SharedPermit(limits, self, uuid.uuid4().hex, self.is_granted), False
        return permit

    def wait(self, limit: LimitReached) -> None:  # noqa: ARG002
        """Join the queue, unless it did when it was refused."""
        if not (self.is_waiting or self.is_granted):
            self.register()
            self.is_stored = False
            self.limits._settle(queued=[] if self.claim.holder else [self.claim])

    def register(self) -> None:
        """Wait from now on. A dispatcher's job is not woken: another one comes."""
        with self.limits._lock:
            self.is_waiting = self.is_stored = True
            if self.claim.holder:
                self.limits._tickets[self.claim.key] = self

    def give_back(self) -> None:
        if self.is_granted:
            self.limits._forget(self.claim.key)
            self.limits._settle([self.claim.key])

    def leave(self) -> None:
        if not (self.is_waiting or self.is_granted):
            return
        if self.limits._forget(self.claim.key) is not None:
            self.limits._settle([self.claim.key])
        self.is_waiting = False

    def limit(self) -> LimitReached | None:
        return LimitReached(None) if self.is_waiting else None


@dataclass(slots=True, eq=False, repr=False)
class SharedPermit:
    """The right of one cycle to call a model, as ``Permit``."""

    limits: SharedLimits
    ticket: SharedTicket
    key: str
    #: Its ticket was woken, and the store keeps a permit for it.
    granted: bool = False
    #: The store has this permit.
    inside: bool = False
    #: A call was made.
    asked: bool = False
    #: What its calls have used and the store does not know.
    spent: dict[Unit, float] = field(default_factory=dict)
    #: Seconds for which its provider takes no calls.
    closed: float = 0.0

    def hold(self, request: SummaryRequest, count: TokenCounter) -> None:
        """As ``Permit.hold``. If the store fails, the call has to wait."""
        limits, ticket, tokens, spend = self.limits, self.ticket, 0.0, 0.0
        if limits.counts_tokens:
            read, written = count_prompt(request.messages, count), request.target_tokens or DEFAULT_ANSWER
            tokens, spend = float(read + written), limits.price(ticket.model, read, written)
            if spend > limits.max_spend:
                raise SpendExceeded(spend, limits.max_spend, limits.unit)
        ticket.claim = ticket.claim._replace(tokens=tokens, spend=spend)
        if queues := not self.asked:  # before anybody can wake it
            ticket.register()
        try:
            wait = limits._ask(self, ticket.claim, queues=queues)
        except StoreError as error:
            limits._forget(ticket.claim.key)
            ticket.is_waiting = False
            raise LimitReached(RETRY_SECONDS) from error
        if wait == 0:
            limits._forget(ticket.claim.key)
            ticket.is_waiting = self.granted = False
            return
        limits._listen(ticket.claim.holder)
        raise LimitReached(wait)

    def ask(self, summarizer: Summarizer, request: SummaryRequest) -> str | Summary:
        """Return the answer of *summarizer*, and remember what it used, and whether its endpoint has too much to do."""
        claim, usage = self.ticket.claim, None
        self.asked, spent = True, (claim.tokens, claim.spend)
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
        """Return the permit and admit the next in the queue."""
        limits, claim = self.limits, self.ticket.claim
        if self.inside:
            self.inside = False
            with limits._lock:
                limits._ended.append(_Ended(self.key, self.spent, self.closed, claim.closing))
            limits._settle()
        elif self.granted:
            limits._forget(claim.key)
            limits._settle([claim.key])


def provider_of(summarizer: object) -> str:
    """Return the host of a summarizer's endpoint, or else the name of its class; empty for a plain function."""
    host = urlsplit(str(getattr(summarizer, "endpoint", ""))).netloc
    return host or ("" if isroutine(summarizer) else type(summarizer).__name__)


def seconds_closed(error: BaseException) -> float:
    """Return the seconds for which an endpoint that raised *error* has too much to do; 0 if it did not say so."""
    after = getattr(error, "retry_after", None)
    status = read_status(error) or read_status(error.__cause__)
    if status not in OVERLOADED or isinstance(after, bool) or not isinstance(after, int | float) or not after > 0:
        return 0.0
    return float(min(after, MAX_CLOSED))


def _lane_of(claim: Claim) -> str:
    return key_of(json.dumps([claim.tenant, claim.provider, claim.model]))


def _row_of(kind: str, claim: Claim) -> LimitRow:
    return LimitRow(kind, claim.key, _lane_of(claim), claim.at, json.dumps(claim._asdict()), key_of(claim.session))


def _read_claim(row: LimitRow) -> Claim:
    facts = json.loads(row.body)
    return Claim(**{name: facts[name] for name in Claim._fields if name in facts})  # a newer version may say more


def _sum_usage(rows: Iterable[LimitRow]) -> Usage:
    usage: dict[tuple[str, Unit], list[tuple[float, float]]] = {}
    for row in rows:
        unit, amount = json.loads(row.body)
        usage.setdefault((row.lane, unit), []).append((row.at, amount))
    return usage
