"""Where a compactor publishes: its way to a journal, and the journal it uses where there is no Memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal

from memory.entries import CompactionPrepared
from memory.errors import StaleCompaction, StoreBusy, StoreError, StoreReadOnly, StoreUnreachable
from memory.events import Event
from memory.hooks import renew_after_fork
from memory.journal import OVERTAKEN, CompactionRecord, Journal
from memory.overlays import CompactedMessage, JournalState, Reduction
from memory.rounds import copy_with, freeze_mapping, utc_now
from memory.visibility import Rounds

from .events import Discarded, Exhausted, Failed, PersistFailed, Prepared, Published, Rejected, StrategyFailed
from .host_rounds import COVERED, HostRounds
from .summarizers.base import add_usage
from .timers import SYSTEM_CLOCK, Clock, DaemonExecutor, call_weakly, interpreter_is_exiting

#: Number of covered round ids remembered per compaction; any one still present re-anchors it.
ANCHORS = 64
#: How many answers that the journal did not take are kept in this process.
MAX_UNWRITTEN = 8
#: Seconds that a lease lasts, and between two renewals by its process: others need not wait for long for one that was
#: killed.
LEASE_SECONDS, RENEW_SECONDS = 4.0, 1.0
#: Seconds until an answer is offered again to a store that took none, and the errors of which it may be back soon: in a
#: failover, a server is first away and then read-only.
RETRY_SECONDS = 0.5
_PASSING = frozenset(error.__name__ for error in (StoreBusy, StoreReadOnly, StoreUnreachable))
#: Maximum seconds that count of a renewal's delay. The next lease lasts longer by twice that delay, so that it does not
#: expire while the store answers slowly.
MAX_LATE = 5.0
#: Threads on which leases are renewed, so that a store that does not answer holds up no timer.
_RENEWALS = DaemonExecutor(8, "compactor-leases")
#: Failures, which no other entry of the log tells.
_FAILURES = (Discarded, Exhausted, Failed, StrategyFailed)
#: Facts that the log does not record: the entry or the session has them, or nobody reads them there.
_UNRECORDED = {"session", "role", "seconds"}
#: Events for ``record_failure``: failures, what they cost, and the success that ends a row of them.
EVENTS_TO_RECORD = (Published, Prepared, Rejected, *_FAILURES)


class LocalJournal(Journal):
    """A journal in memory, over the rounds that *read_rounds* returns.

    ``read`` asks nobody. If rounds can fail after they were covered, the caller that has read them calls
    ``withdraw_lost``. The current compaction ends at its ``end_round_id``: its ``end_index`` may be out of date.
    """

    def __init__(self, read_rounds: Callable[[], Rounds | HostRounds], now: Callable[[], datetime] = utc_now) -> None:
        self._read_rounds = read_rounds
        self._now = now
        self._state = JournalState()
        self._history: list[CompactionRecord] = []
        #: The publications that were not taken back, oldest first.
        self._current: tuple[CompactionRecord, ...] = ()
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards all that changes: two threads may publish

    def read(self) -> JournalState:
        return self._state

    def history(self) -> tuple[CompactionRecord, ...]:
        with self._lock:
            newest = self._current[-1] if self._current else None
            return tuple(copy_with(one, current=True) if one is newest else one for one in self._history)

    def withdraw_lost(self, rounds: Rounds | HostRounds) -> bool:
        """Withdraw every compaction that covers a failed round of *rounds*; return whether there was any."""
        with self._lock:
            left = self._current
            while left and left[-1].compaction is not None and rounds.has_lost(left[-1].compaction):
                left = left[:-1]
            if len(left) == len(self._current):
                return False
            self._go_back_to(left, "withdrawn", self._state.revert_round_id)
            return True

    def publish(
        self,
        compaction: CompactedMessage,
        *,
        base: int,
        round_ids: Sequence[str],
        origin: object = None,  # noqa: ARG002
    ) -> CompactedMessage:
        rounds, end = self._read_rounds(), 0
        self.withdraw_lost(rounds)
        covered: list[str] = []
        for round_id in round_ids:
            end = rounds.find_end(round_id) or 0
            round_ = rounds[end - 1] if end else None
            if round_ is None or round_.id != round_id or not round_.closed:
                raise StaleCompaction("rounds_changed")
            if not round_.is_hidden:  # a host may show those that have failed already
                covered.append(round_id)
        with self._lock:
            generation, current, *_ = self._state
            if generation != base:
                raise StaleCompaction("generation")
            anchored = rounds.anchor(current)
            reached = anchored.end_index if anchored is not None else 0
            replaces = anchored is not None and anchored.is_offline and not compaction.is_offline
            if end < reached or (end == reached and not replaces):
                raise StaleCompaction("behind")
            newest_first = (*reversed(covered), *(current.extra.get(COVERED, ()) if current is not None else ()))
            published = copy_with(
                compaction,
                end_index=end,
                generation=base + 1,
                created_at=self._now(),
                extra=freeze_mapping({**compaction.extra, COVERED: tuple(dict.fromkeys(newest_first))[:ANCHORS]}),
            )
            record = CompactionRecord(
                happened="published",
                at=self._now(),
                generation=base + 1,
                compaction=published,
                round_ids=tuple(round_ids),
                model=published.model,
                usage=published.usage,
            )
            self._history.append(record)
            self._current = (*self._current, record)
            self._state = JournalState(base + 1, published)
        return published

    def revert(self, *, base: int | None = None) -> CompactedMessage | None:
        rounds = self._read_rounds()
        self.withdraw_lost(rounds)
        with self._lock:
            generation, current, *_ = self._state
            if base is not None and generation != base:
                raise StaleCompaction("generation", OVERTAKEN)
            if current is not None:
                self._go_back_to(self._current[:-1], "reverted", rounds[-1].id if len(rounds) else "")
            return self._state.current

    def _go_back_to(
        self, left: tuple[CompactionRecord, ...], how: Literal["reverted", "withdrawn"], revert_round_id: str | None
    ) -> None:
        """Take back all publications behind those that are *left*. Called with the lock."""
        generation = self._state.generation + 1
        for one in reversed(self._current[len(left) :]):
            self._history.append(copy_with(one, happened=how, at=self._now(), generation=generation))
        self._current = left
        self._state = JournalState(generation, left[-1].compaction if left else None, revert_round_id)


class JournalWriter:
    """A compactor's access to its journal.

    Publishing raises the journal's errors. Answers, leases and events must not stop a cycle: their errors are told as
    ``PersistFailed``, when they begin and when they change.
    """

    def __init__(
        self,
        journal: Journal,
        role: str,
        emit: Callable[[Event], object],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._emit = emit
        self._clock = clock
        #: Answers that the journal does not keep, or could not write.
        self._unwritten: tuple[CompactionPrepared, ...] = ()
        #: How often each failure was seen since the last publication.
        self._times: dict[tuple[str, ...], int] = {}
        #: Usage and model of the rejected answers since the last accepted one or failure.
        self._rejected: tuple[Mapping[str, int] | None, str | None] = None, None
        #: Seconds for which ``prepare`` waits for a store that is away.
        self.patience = 0.0
        self.use(journal, role)
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards what changes: a run that was given up may still write beside the next
        self._leased = False  # the parent's is not ours
        self._renewal: Callable[[], object] | None = None  # cancels the next renewal of the lease; None: none is due
        self._renew_at, self._late = 0.0, 0.0  # when that is, and by how many seconds the last one was late
        self._failing: dict[str, str] = {}  # what fails now, and the class of the error

    def use(self, journal: Journal, role: str) -> None:
        """Write *role*'s compactions to *journal* from now on. Called before anything is written."""
        self.role = role
        journal = journal if isinstance(journal, Journal) else _HostJournal(journal)
        self._journal = journal
        self.keeps_reductions, self.keeps_answers = journal.keeps_reductions, journal.keeps_answers
        self.is_in_log, self.has_index = journal.is_in_log, journal.has_index
        #: Returns the present state, with the answers made from its generation wherever they are kept. It is the
        #: journal's own method until there is an answer that the journal does not keep.
        self.read: Callable[[], JournalState] = journal.read
        # These raise the journal's errors.
        self.publish, self.reduce, self.revert = journal.publish, journal.reduce, journal.revert
        self.history, self.refresh, self.index_texts = journal.history, journal.refresh, journal.index_texts
        self.listen, self.join_appends = journal.listen, journal.join_appends
        self.withdraw_lost = journal.withdraw_lost

    def refresh_quietly(self) -> None:
        """Read what others wrote; if the store fails, the next write does."""
        with suppress(StoreError):
            self.refresh()

    def refresh_if_behind(self) -> None:
        """Read what others wrote, if there is anything and the store sends no notices of it; as ``refresh_quietly``."""
        with suppress(StoreError):
            if self._journal.is_behind():
                self.refresh()

    def _read_with_unwritten(self) -> JournalState:
        state = self._journal.read()
        if not self._unwritten:
            return state
        with self._lock:
            self._unwritten = unwritten = tuple(one for one in self._unwritten if one.base >= state.generation)
        return copy_with(state, prepared=(*state.prepared, *(one for one in unwritten if one.base == state.generation)))

    def prepare(self, answer: CompactionPrepared) -> None:
        """Keep *answer*: in the log, or in this process if the log cannot be written. Not while the process exits."""
        if interpreter_is_exiting():
            return
        until, is_first = self._clock.monotonic() + self.patience, True
        while self.keeps_answers:
            with self._guard("answer"):  # whatever is wrong there, the answer is paid for
                if is_first or not self._finds_kept(answer):
                    self._journal.prepare(answer)
                return
            if self._failing["answer"] not in _PASSING or self._clock.monotonic() >= until:
                break
            is_first, is_over = False, threading.Event()
            self._clock.call_later(RETRY_SECONDS, is_over.set)
            is_over.wait()
        with self._lock:
            self._unwritten = (*self._unwritten, answer)[-MAX_UNWRITTEN:]
            self.read = self._read_with_unwritten

    def _finds_kept(self, answer: CompactionPrepared) -> bool:
        """Return whether the log has *answer*: a server may fail between storing it and saying so."""
        self._journal.refresh()
        # The text too: the log may have an older answer to the same request, which the checks of today have refused.
        this = answer.base, answer.digest, answer.text
        return any((one.base, one.digest, one.text) == this for one in self._journal.read().prepared)

    def lease(self, *, renews: bool = False, first: bool = False) -> float:
        """Take the lease, renew it until ``release``, and return 0.0; or return the seconds until another's expires.

        If the journal fails, the lease counts as ours: it only saves money. But if this is the *first* try of a run,
        which has paid for nothing yet, and there is ``patience``, the store's errors are raised: an answer that the
        store cannot take would be in this process alone. *renews*: it was ours, and stays so unless it was given back
        meanwhile.
        """
        wait, is_ours = 0.0, renews
        due_at = self._renew_at if renews else self._clock.monotonic()
        with self._guard("lease", raises=first and self.patience > 0):
            wait = self._journal.lease(LEASE_SECONDS + 2 * self._late)
            is_ours = not wait > 0
        now = self._clock.monotonic()
        self._renew_at, self._late = now + RENEW_SECONDS, min(max(now - due_at, 0.0), MAX_LATE)
        if not is_ours:
            return wait
        following: Callable[[], object] | None = None
        if self._journal.has_leases:
            renew = call_weakly(self._renew)
            renew = renew if self._journal.is_resident else partial(_RENEWALS.run, renew)
            following = self._clock.call_later(RENEW_SECONDS, renew)
        with self._lock:
            self._leased = self._leased or not renews
            unwanted, self._renewal = (self._renewal, following) if self._leased else (following, self._renewal)
        if unwanted is not None:
            unwanted()
        return wait

    def release(self, *, expires: bool = False) -> None:
        """Renew the lease no more, and give it back; if that fails, or with *expires*, it ends by itself."""
        with self._lock:
            leased, self._leased = self._leased, False
            cancel, self._renewal = self._renewal, None
        if cancel is not None:
            cancel()
        if leased and not expires:
            with self._guard("lease"):
                self._journal.release()

    def _renew(self) -> None:
        if not self._leased or self.lease(renews=True) > 0:  # this process was stopped for so long that another has it
            self.release(expires=True)
            return
        if not self._leased:  # given back while it was renewed: nobody is to wait for it
            with self._guard("lease"):
                self._journal.release()

    def record_failure(self, event: Event) -> None:
        """Keep *event* in the log if it tells of a failure. An event hook.

        Of events that say the same since the last publication, it keeps the 1st, 2nd, 4th, 8th...: an endpoint that
        fails for weeks leaves a few lines. One that opens the circuit differs from those before. A failure whose
        answers were paid for and rejected is always kept, with their ``usage`` and ``model``. If the store fails,
        nothing is lost: the event was told.
        """
        if isinstance(event, Rejected):
            with self._lock:
                self._rejected = add_usage(self._rejected[0], event.usage), event.model
        elif isinstance(event, Prepared):  # its usage includes that of the attempts before
            self._rejected = None, None
        elif isinstance(event, Published) and not event.offline:  # an offline extract is no success
            self._times.clear()
        elif isinstance(event, _FAILURES):
            facts = event.facts()
            same = (event.name, *(str(facts.get(fact, "")) for fact in ("reason", "error", "strategy", "circuit_open")))
            times = self._times[same] = self._times.get(same, 0) + 1
            usage = None
            if isinstance(event, Failed | StrategyFailed):
                with self._lock:
                    (usage, model), self._rejected = self._rejected, (None, None)
                facts |= {"usage": dict(usage)} if usage else {}
                facts |= {"model": model} if usage and model else {}
            if (usage or times & (times - 1) == 0) and not interpreter_is_exiting():
                with self._guard("event"):
                    self._journal.note(
                        event.name, {key: value for key, value in facts.items() if key not in _UNRECORDED}
                    )

    @contextmanager
    def _guard(self, what: Literal["answer", "lease", "event"], *, raises: bool = False) -> Iterator[None]:
        """Suppress all errors; with *raises*, all but the store's. Emit ``PersistFailed`` when an error begins, and
        when it changes."""
        error = ""
        try:
            yield
        except Exception as raised:
            if raises and isinstance(raised, StoreError):
                raise
            error = type(raised).__name__
        with self._lock:
            before, self._failing[what] = self._failing.get(what, ""), error
        if error and error != before:
            self._emit(PersistFailed(role=self.role, what=what, error=error))


#: With all of these, an object's methods are used as they are.
_METHODS = (
    *("read", "publish", "revert", "reduce", "withdraw", "prepare"),
    *("lease", "release", "refresh", "note", "history", "index_texts"),
)


class _HostJournal(Journal):
    """A host's object that has ``read``, ``publish`` and ``revert``, and perhaps ``reduce`` or all of ``_METHODS``."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.keeps_reductions = bool(getattr(journal, "keeps_reductions", False))
        if all(callable(getattr(journal, name, None)) for name in _METHODS):
            self.keeps_answers = bool(getattr(journal, "keeps_answers", False))
            vars(self).update({name: getattr(journal, name) for name in _METHODS})

    def read(self) -> Any:
        return self._journal.read()

    def publish(self, compaction: CompactedMessage, *, base: int, round_ids: Sequence[str], **_origin: object) -> Any:
        return self._journal.publish(compaction, base=base, round_ids=round_ids)

    def revert(self, *, base: int | None = None) -> Any:
        if base is not None and self._journal.read().generation != base:
            raise StaleCompaction("generation", OVERTAKEN)
        return self._journal.revert()

    def reduce(self, reduction: Reduction, *, base: int) -> Any:
        return self._journal.reduce(reduction, base=base)
