"""Sessions: opens sessions by id for a server, shares resources among them, evicts idle ones, and stops them all."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar, Unpack, cast

from memory import Appended, Memory, SessionPurged, Store, StoreError, open_store
from memory.arguments import check_number, check_whole_number, require
from memory.events import Event, EventHook
from memory.hooks import renew_after_fork
from memory.io_threads import to_thread
from memory.messages import ASSISTANT
from memory.stores import InMemoryStore
from memory.stores.base import adapt_store
from memory.values import ValueObject

from .background import ContextCompactor, Options
from .compose import Prompt, compose
from .config import CompactorConfig, check_config
from .coroutines import HostLoop
from .cost.limits import Limits, LimitsStatus
from .events import EventHooks
from .health import Health, RoleHealth, sort_worst_first
from .lazy_imports import importing
from .summarizers.base import Summarizer
from .summarizers.configured import find_summarizer
from .timers import SYSTEM_CLOCK, DaemonExecutor, bound_wait, call_weakly, report_uncaught
from .triggers import default_trigger

R = TypeVar("R")
#: Threads of the shared executor, and concurrent model calls: threads are left for cycles without a call.
DEFAULT_THREADS, DEFAULT_CALLS = 6, 4
#: Maximum open sessions, and seconds until an unused one is closed.
DEFAULT_MAX_OPEN, DEFAULT_IDLE_SECONDS = 10_000, 3_600.0
#: Maximum busy sessions passed over in one search for a session to close; minimum seconds between searches by a timer.
MAX_BUSY, MIN_WAIT = 16, 1.0
#: Maximum evicted sessions with known open rounds and summarizer; older ones' rounds stay open, as after a restart.
MAX_LEFT = 10_000
#: Maximum seconds for returning the leases of calls that outlived the deadline; an unreturned lease expires.
RELEASE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SessionsStatus(ValueObject):
    """The open sessions, and their activity."""

    #: Open sessions, and sessions in use.
    open: int
    in_use: int
    #: Compactions in progress.
    running: int
    #: The shared limits.
    limits: LimitsStatus
    #: Compactors that retry rarely, after ``circuit_breaker_failures`` failures in a row.
    circuits_open: int = 0
    #: Start of the oldest uncovered round among compactors with a due compaction; None: none is due.
    behind_since: datetime | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """One open session: its memory, and its compactors, which are started."""

    memory: Memory
    #: By role, in the order of ``Sessions.roles``.
    compactors: Mapping[str, ContextCompactor]
    #: Default budget of ``compose``.
    budget: int | None = None
    #: A host with several threads holds it from ``sync`` to ``compose``, so that none reads another's history.
    lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)

    @property
    def id(self) -> str:
        """The session's name in the store."""
        return self.memory.session_id

    @property
    def compactor(self) -> ContextCompactor:
        """The compactor of the first role."""
        return next(iter(self.compactors.values()))

    def append(self, message: Mapping[str, Any], **options: Any) -> Appended:
        """Append one chat message and return its place, like ``Memory.append``."""
        return self.memory.append(message, **options)

    async def aappend(self, message: Mapping[str, Any], **options: Any) -> Appended:
        """Append one chat message and return its place, like ``Memory.aappend``."""
        return await self.memory.aappend(message, **options)

    def compose(self, role: str | None = None, *, budget: int | None = None, **options: Any) -> Prompt:
        """Return the prompt of *role*, by default the first one, within *budget*, by default that of ``Sessions``.

        *options* are those of ``compose``, which also lists the errors. Raises ``ValueError`` if there is no budget.
        """
        chosen = budget if budget is not None else self.budget
        if chosen is None:
            raise ValueError("no budget is known: give compose(budget=...), or Sessions(budget=...)")
        return compose(self.memory, next(iter(self.compactors)) if role is None else role, budget=chosen, **options)

    async def acompose(self, role: str | None = None, **options: Any) -> Prompt:
        """``compose``, without blocking the event loop."""
        return await self.memory.to_thread(partial(self.compose, role, **options))


@dataclass(slots=True, eq=False)
class _Entry:
    """A session that is open or being opened. The lock of ``Sessions`` guards its users and their time."""

    id: str
    session: Session | None = None
    #: The result of opening it, until it is open.
    opening: Future[None] | None = field(default_factory=Future)
    users: int = 0
    used_at: float = 0.0
    #: Summarizer made from a caller's model; None: no caller gave one, or the sessions have their own.
    summarizer: Summarizer | None = None

    @property
    def is_purged(self) -> bool:
        """Whether its memory found that it was purged: the next ``open`` gives a new session."""
        return self.session is not None and self.session.memory.is_purged


class SessionContext:
    """``with sessions.open(id) as session``, or ``async with``: the session is not evicted until the block ends."""

    def __init__(self, sessions: Sessions, session_id: str, model: object | None) -> None:
        self._sessions, self._id, self._model = sessions, session_id, model
        self._entry: _Entry | None = None
        self._is_left = False  # guarded by the sessions' lock while a thread opens it

    def __enter__(self) -> Session:
        known = self._sessions._take_open(self._id, self._model)
        self._entry = known or self._sessions._take(self._id, self._model)
        return cast("Session", self._entry.session)

    def __exit__(self, *exc: object) -> None:
        if self._entry is not None:
            try:
                if isinstance(exc[1], SessionPurged):
                    self._check()
            finally:
                self._sessions._give_back(self._entry)

    async def __aenter__(self) -> Session:
        self._entry = self._sessions._take_open(self._id, self._model)
        if self._entry is None and getattr(self._sessions.store, "is_resident", False):
            return self.__enter__()
        if self._entry is None:  # usually it is open already
            try:
                await to_thread(self._open)
            except BaseException:  # cancelled: nobody else will leave the session
                with self._sessions._lock:
                    self._is_left = True
                self.__exit__(None, None, None)
                raise
        return cast("Session", cast("_Entry", self._entry).session)

    async def __aexit__(self, *exc: object) -> None:
        try:
            if isinstance(exc[1], SessionPurged):
                await to_thread(self._check)
        finally:
            self.__exit__(None, None, None)

    def _check(self) -> None:
        """Ask the store whether this session was purged, rather than another one whose old round was read."""
        with suppress(StoreError):
            cast("Session", cast("_Entry", self._entry).session).memory.refresh()

    def _open(self) -> None:
        entry = self._sessions._take(self._id, self._model)
        with self._sessions._lock:
            is_left, self._entry = self._is_left, None if self._is_left else entry
        if is_left:
            self._sessions._give_back(entry)


class Sessions:
    """Opens a server's sessions by id on first use, and starts their compactors.

    *store* is a store or its URL; by default all sessions are in one store in memory. *summarizer*, *config* and
    *options* are those of ``ContextCompactor``, for each of *roles*. *budget* is the default of ``Session.compose``, in
    tokens. All sessions share one store, one executor (by default a ``DaemonExecutor`` of six threads) and one
    ``Limits`` (by default four model calls at once).

    At most *max_open* sessions stay open, each for *idle_seconds* after its last use; None: no limit. The least
    recently used ones are closed first, except sessions in use and sessions with a running or queued compaction. A
    closed session is opened again from the store, also from the default one in memory. *take_over*: no other process
    works on these sessions (see ``Memory``).

    The constructor starts no thread. ``close`` or ``with`` stops everything within one deadline.
    """

    def __init__(
        self,
        store: Store | str | None = None,
        *,
        summarizer: object | None = None,
        budget: int | None = None,
        config: CompactorConfig | None = None,
        roles: Iterable[str] = (ASSISTANT,),
        max_open: int | None = DEFAULT_MAX_OPEN,
        idle_seconds: float | None = DEFAULT_IDLE_SECONDS,
        take_over: bool = False,
        **options: Unpack[Options],
    ) -> None:
        if budget is not None:
            check_whole_number("budget", budget, 1)
        if max_open is not None:
            check_whole_number("max_open", max_open, 1)
        if idle_seconds is not None:
            check_number("idle_seconds", idle_seconds)
        self._roles = (roles,) if isinstance(roles, str) else tuple(roles)
        if not self._roles:
            raise ValueError("roles: give the name of one agent at least")
        if options.get("journal") is not None:
            raise ValueError("journal: each session has its own; leave it out")
        executor = options.get("executor")
        self._owns_executor, self._owns_store = executor is None, isinstance(store, str)
        self._executor = DaemonExecutor(DEFAULT_THREADS) if executor is None else executor
        options["executor"] = _Evicting(self._executor, call_weakly(self._evict_surplus))
        self._clock = options.get("clock") or SYSTEM_CLOCK
        #: The limits that all compactors share.
        self.limits = options["limits"] = options.get("limits") or Limits(DEFAULT_CALLS, clock=self._clock)
        config = check_config(config)
        self._takes_models, self._hooks = False, EventHooks()
        if summarizer is None and options.get("llm_api") is None:
            summarizer = find_summarizer(config)
            self._takes_models = not config.summarizer_model and config.summarizer_provider != "extractive"
        self._summarizer = summarizer
        self._settings = self._automatic_settings = config, options
        if budget is not None and options.get("trigger") is None:
            config = config.with_defaults(max_tokens=budget)  # an automatic trigger learns it from compose
            self._settings = config, {**options, "trigger": default_trigger(config)}  # one for all
        self._make_compactors(Memory(), None)  # raises for wrong options now, not at the first use
        #: The store of the sessions.
        self.store: Store = (
            open_store(store) if isinstance(store, str) else adapt_store(InMemoryStore() if store is None else store)
        )
        self.budget = budget
        self._max_open = max_open if max_open is not None else math.inf
        self._idle_seconds = idle_seconds if idle_seconds is not None else math.inf
        self._take_over = take_over
        #: Runs the summarizer's asynchronous clients; entered when a session is opened.
        self._host = HostLoop()
        self._host.follow()
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        """Start without open sessions: the parent's sessions stay with the parent."""
        self._stopping: list[Callable[[float], bool]] = []  # for ``close``: each waits for one compactor to end
        self._lock = threading.RLock()  # guards all below it
        self._entries: dict[str, _Entry] = {}
        self._idle: OrderedDict[str, _Entry] = OrderedDict()  # unused ones, least recently used first
        self._leaving: dict[str, Future[None]] = {}  # being closed; ``open`` waits, and opens it again
        # Ids of the rounds that an evicted session had open, and its own summarizer.
        self._left: dict[str, tuple[tuple[str, ...], Summarizer | None]] = {}
        self._timer: Callable[[], object] | None = None  # fires when the next session has been idle for long enough
        self._fired = 0  # timers that have fired
        self._closed = False

    def open(self, session_id: str, *, model: object | None = None) -> SessionContext:
        """Return a context manager, for ``with`` and ``async with``, that gives the ``Session`` of that id.

        All concurrent users of a session get the same object. It is not evicted while in use; afterwards, a reference
        to its memory still works, like one in another process. Opening reads the store, and raises its ``StoreError``;
        ``async with`` reads a database in a thread. Raises ``RuntimeError`` after ``close``.

        *model*, a chat model or a summarizer, summarizes this session from now on if nothing else was chosen: neither
        the sessions nor their configuration have a summarizer, and no earlier caller gave a model. Raises ``TypeError``
        if it is neither.
        """
        require("session_id", session_id, str, "the session's name, as a text")
        self.follow_loop()
        return SessionContext(self, session_id, model if self._takes_models else None)

    def follow_loop(self) -> None:
        """Run the host's coroutines on this thread's event loop, if one is running. ``open`` calls this."""
        self._host.follow()

    def purge(self, session_id: str) -> None:
        """Erase a session from the store. Its current users get ``SessionPurged``; the id may be used again.

        The same holds if another process purges it: after raising ``SessionPurged``, the session is opened anew.
        """
        purged: Future[None] = Future()
        with self._lock:
            entry = self._entries.pop(session_id, None)
            self._idle.pop(session_id, None)
            self._left.pop(session_id, None)
            self._leaving[session_id] = purged
        try:
            if entry is not None:
                _stop(entry)
            self.store.purge(session_id)
        finally:
            self._end_leaving(session_id, purged)

    def status(self) -> SessionsStatus:
        """Return the open sessions and their activity, for a health check. Does not read the store."""
        with self._lock:
            entries, idle = [*self._entries.values()], len(self._idle)
        compactors = [one for entry in entries for one in _compactors(entry)]
        return SessionsStatus(
            open=len(entries),
            in_use=len(entries) - idle,
            running=sum(one.is_compacting for one in compactors),
            limits=self.limits.status(),
            circuits_open=sum(one.circuit_open for one in compactors),
            behind_since=min([since for one in compactors if (since := one.behind_since) is not None], default=None),
        )

    def health(self) -> Health:
        """Return the failing and lagging roles of the open sessions, worst first. Does not read the store.

        A role is behind if a compaction is due and none runs: it waits for the limits, a lease, or after a failure.
        """
        with self._lock:
            sessions = [entry.session for entry in self._entries.values() if entry.session is not None]
        found = (_examine(session, role, one) for session in sessions for role, one in session.compactors.items())
        return Health(sessions=len(sessions), worst=sort_worst_first(one for one in found if one is not None))

    def on_event(self, callback: EventHook, kinds: tuple[type[Event], ...] = (Event,)) -> Callable[[], None]:
        """Call *callback* with each event of all compactors and conversations, such as ``Redacted``, also of sessions
        that are opened later; return a function that ends this. See ``ContextCompactor.on_event``."""
        require("callback", callback, Callable, "a function that is called with what has happened")
        return self._hooks.add(callback, kinds)

    def close(self, timeout: float | None = 5.0) -> bool:
        """Stop all compactors, and return whether no worker is left. Waits *timeout* seconds at most for all together.

        Answers that arrive within that time are kept in the log, and published when the session is opened again. Closes
        a store that was given as a URL. May be called again.
        """
        until = math.inf if (seconds := bound_wait(timeout)) is None else time.monotonic() + seconds
        with self._lock:
            self._closed = True
            entries, self._entries = [*self._entries.values()], {}
            self._idle.clear()
            timer, self._timer = self._timer, None
        if timer is not None:
            timer()
        self._stopping += [one.begin_stop() for entry in entries for one in _compactors(entry)]
        # On its own thread, so that a store that does not answer blocks only that thread.
        ending = DaemonExecutor(1, "compactor-close").submit(self._end, until)
        try:
            with suppress(TimeoutError):
                ending.result(bound_wait(until + RELEASE_SECONDS - time.monotonic()))
        finally:
            if self._owns_executor:
                self._executor.shutdown(wait=False, cancel_futures=True)
            if self._owns_store:
                self.store.close()
        return not self._stopping

    def _end(self, until: float) -> None:
        self._stopping = [end for end in self._stopping if not end(until)]

    async def aclose(self, timeout: float | None = 5.0) -> bool:
        """``close``, without blocking the event loop."""
        import asyncio  # most programs run no loop

        closing = DaemonExecutor(1, "compactor-close").submit(self.close, timeout)
        return await asyncio.wrap_future(closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        """Run the host's coroutines on this event loop until it is closed."""
        import asyncio

        self._host.enter(asyncio.get_running_loop())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    # A session, from its opening to its eviction.

    def _take_open(self, session_id: str, model: object | None) -> _Entry | None:
        """Return the entry of an open session, with one more user; None if it must be opened, or needs *model*."""
        with self._lock:
            entry = self._entries.get(session_id)
            if entry is None or entry.session is None or entry.is_purged or self._closed:
                return None
            if model is not None and entry.summarizer is None:
                return None
            entry.users += 1
            self._idle.pop(session_id, None)
            return entry

    def _take(self, session_id: str, model: object | None) -> _Entry:
        """Return the entry of a session, with one more user. Opens it, or waits for the thread that does."""
        summarizer = _make_summarizer(model) if model is not None else None
        with self._lock:
            if self._closed:
                raise _closed()
            leaving, entry, purged = self._leaving.get(session_id), self._entries.get(session_id), None
            if entry is not None and entry.is_purged:
                entry, purged = None, entry
            is_first = entry is None
            if entry is None:
                entry = self._entries[session_id] = _Entry(session_id)
            entry.users += 1
            self._idle.pop(session_id, None)
            opening = entry.opening
        if not is_first:
            if opening is not None:
                opening.result()
            if summarizer is not None:
                self._choose(entry, summarizer)
            return entry
        try:
            if leaving is not None:
                leaving.result()
            if purged is not None:
                _stop(purged)
            session = self._make(entry, summarizer)
        except BaseException as error:
            with self._lock:
                if self._entries.get(session_id) is entry:
                    del self._entries[session_id]
            cast("Future[None]", opening).set_exception(error)
            raise
        with self._lock:
            entry.session, entry.opening = session, None
            self._left.pop(session_id, None)
            is_wanted = self._entries.get(session_id) is entry
        if not is_wanted:  # closed or purged meanwhile
            cast("Future[None]", opening).set_exception(_closed())
            _stop(entry)
            raise _closed()
        cast("Future[None]", opening).set_result(None)
        self._evict()
        return entry

    def _make(self, entry: _Entry, summarizer: Summarizer | None) -> Session:
        memory = Memory(entry.id, store=self.store, take_over=self._take_over)
        memory.on_event(self._pass_on)
        with self._lock:
            left_open, known = self._left.get(entry.id, ((), None))
        memory.adopt_rounds(left_open)
        entry.summarizer = known or summarizer
        return Session(memory, self._start_compactors(memory, entry.summarizer), self.budget)

    def _pass_on(self, event: Event) -> None:
        for hook, kinds in self._hooks.hooks:
            if isinstance(event, kinds):
                with suppress(Exception):
                    hook(event)

    def _make_compactors(self, memory: Memory, summarizer: Summarizer | None) -> dict[str, ContextCompactor]:
        chosen = summarizer if summarizer is not None else self._summarizer
        config, options = self._automatic_settings if getattr(chosen, "model", None) else self._settings
        return {role: ContextCompactor.for_role(memory, role, config, chosen, **options) for role in self._roles}

    def _start_compactors(
        self, memory: Memory, summarizer: Summarizer | None, replaced: Mapping[str, ContextCompactor] | None = None
    ) -> dict[str, ContextCompactor]:
        compactors = self._make_compactors(memory, summarizer)
        with ExitStack() as stops:  # all run, or none
            for role, compactor in compactors.items():
                compactor.run_on(self._host)
                compactor.share_hooks(self._hooks)
                if replaced is not None:
                    replaced[role].hand_over_hooks(compactor)
                stops.callback(compactor.stop, 0)
                compactor.start()
            stops.pop_all()
        return compactors

    def _choose(self, entry: _Entry, summarizer: Summarizer) -> None:
        """Replace the compactors of an open session by ones with *summarizer*, unless it has a caller's summarizer
        already.

        The new compactors keep the hooks of the old ones.
        """
        with self._lock:
            if entry.summarizer is not None:
                return
            entry.summarizer = summarizer
        session = cast("Session", entry.session)
        try:
            _stop(entry)
            made = self._start_compactors(session.memory, summarizer, session.compactors)
        except BaseException:
            entry.summarizer = None  # the next caller tries again
            self._give_back(entry)
            raise
        cast("dict[str, ContextCompactor]", session.compactors).update(made)
        with self._lock:
            is_wanted = self._entries.get(entry.id) is entry
        if not is_wanted:  # closed or purged meanwhile
            _stop(entry)

    def _give_back(self, entry: _Entry) -> None:
        now = self._clock.monotonic()
        with self._lock:
            entry.users -= 1
            entry.used_at = now
            if entry.users or self._entries.get(entry.id) is not entry:
                return
            self._idle[entry.id] = entry
        self._evict()

    def _evict(self) -> None:
        """Close surplus sessions and sessions idle for too long, and set the timer for the next."""
        try:
            while (leaving := self._choose_leaving()) is not None:
                entry, left = leaving
                try:
                    self._close_evicted(entry)
                finally:
                    self._end_leaving(entry.id, left)
            self._set_timer()
        except Exception as error:  # noqa: BLE001  (whoever opens or leaves another session is not to hear of it)
            report_uncaught(error)

    def _end_leaving(self, session_id: str, left: Future[None]) -> None:
        """Let waiting callers open the session again."""
        with self._lock:
            if self._leaving.get(session_id) is left:  # otherwise a purge has replaced it
                del self._leaving[session_id]
        left.set_result(None)

    def _choose_leaving(self) -> tuple[_Entry, Future[None]] | None:
        """Return the next session to close, now marked as being closed, and its future; None if none is due."""
        now, busy = self._clock.monotonic(), 0
        with self._lock:
            while self._idle and busy < MAX_BUSY:
                entry = next(iter(self._idle.values()))
                too_many = len(self._entries) > self._max_open
                if not too_many and now - entry.used_at < self._idle_seconds:
                    break
                if any(one.is_busy for one in _compactors(entry)):  # it would lose its work, or its place in the queue
                    entry.used_at, busy = now, busy + 1
                    self._idle.move_to_end(entry.id)
                    continue
                del self._idle[entry.id], self._entries[entry.id]
                left = self._leaving[entry.id] = Future()
                return entry, left
        return None

    def _close_evicted(self, entry: _Entry) -> None:
        own = cast("Session", entry.session).memory.list_own_rounds()
        if own or entry.summarizer is not None:
            with self._lock:
                self._left[entry.id] = own, entry.summarizer
                if len(self._left) > MAX_LEFT:
                    del self._left[next(iter(self._left))]
        _stop(entry)

    def _set_timer(self) -> None:
        """Set a timer that evicts when the next session has been idle for long enough."""
        with self._lock:
            first = next(iter(self._idle.values()), None)
            if self._timer is not None or first is None or self._closed or self._idle_seconds == math.inf:
                return
            seconds, fired = max(first.used_at + self._idle_seconds - self._clock.monotonic(), MIN_WAIT), self._fired
        timer = self._clock.call_later(seconds, call_weakly(self._evict_later))
        with self._lock:
            # Drop a timer that has fired already: its eviction sets the next.
            is_wanted = self._timer is None and self._fired == fired and not self._closed
            self._timer = timer if is_wanted else self._timer
        if not is_wanted:
            timer()

    def _evict_surplus(self) -> None:
        """Evict if a session was too busy to be evicted when its last user left."""
        if len(self._entries) > self._max_open:
            self._evict()

    def _evict_later(self) -> None:
        """Evict on the executor, so that the timer's thread does not wait."""
        with self._lock:
            self._timer = None
            self._fired += 1
        with suppress(RuntimeError):  # it is shut down: nothing is left to evict
            self._executor.submit(self._evict)


class _Evicting(Executor):
    """Calls *evict* after each job of a compactor: a busy session could not be closed before."""

    def __init__(self, executor: Executor, evict: Callable[[], object]) -> None:
        self._executor, self._evict = executor, evict

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        def run() -> R:
            try:
                return fn(*args, **kwargs)
            finally:
                self._evict()

        return self._executor.submit(run)


def _examine(session: Session, role: str, compactor: ContextCompactor) -> RoleHealth | None:
    """Return the health of *role*; None if nothing is wrong."""
    since = None if compactor.is_in_cycle else compactor.behind_since
    status = compactor.status()
    if not status.failures and since is None:
        return None
    current = compactor.get_compaction()
    return RoleHealth(
        session=session.id,
        role=role,
        behind=since is not None,
        uncovered=max(0, session.memory.snapshot.total - (current.last_round if current is not None else 0)),
        failures=status.failures,
        circuit_open=status.circuit_open,
        error=status.last_error,
        since=since,
    )


def _compactors(entry: _Entry) -> Iterable[ContextCompactor]:
    """Return a session's compactors; none if it is not open yet."""
    return entry.session.compactors.values() if entry.session is not None else ()


def _stop(entry: _Entry) -> None:
    with ExitStack() as stops:  # all of them, even if one fails
        for compactor in _compactors(entry):
            stops.callback(compactor.stop, 0)


def _make_summarizer(model: object) -> Summarizer:
    with importing:
        from .summarizers import from_chat_model

    return from_chat_model(model)


def _closed() -> RuntimeError:
    return RuntimeError("these sessions were closed, or this one purged; make another Sessions, or open it again")
