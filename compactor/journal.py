"""Where a compactor publishes: its way to a journal, and the journal it uses where there is no Memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from memory.entries import CompactionPrepared
from memory.errors import StaleCompaction
from memory.events import Event
from memory.hooks import renew_after_fork
from memory.journal import OVERTAKEN, CompactionRecord, Journal, RoleJournal
from memory.overlays import CompactedMessage, JournalState, Reduction
from memory.rounds import Clock, copy_with, freeze_mapping, utc_now
from memory.visibility import Rounds

from .events import Discarded, Exhausted, Failed, PersistFailed, Published, StrategyFailed
from .host_rounds import COVERED, HostRounds
from .timers import interpreter_is_exiting

#: A compaction is found again in a host's rounds as long as one of this many of the last it covers is still there.
ANCHORS = 64
#: How many answers that the journal did not take are kept in this process.
MAX_UNWRITTEN = 8
#: A lease outlasts the call that it is for by this many seconds, for checking and publishing the answer.
LEASE_MARGIN = 30.0
#: Failures: no other entry of the log tells them.
_FAILURES = (Discarded, Exhausted, Failed, StrategyFailed)
#: Events for ``record_failure``: failures, and the success that ends a row of them.
EVENTS_TO_RECORD = (Published, *_FAILURES)
#: What an object must have to serve as a journal as it is.
_METHODS = [name for name in vars(Journal) if not name.startswith("_")]


class LocalJournal(Journal):
    """A journal in memory, over the rounds that *read_rounds* returns.

    ``read`` asks nobody. If rounds can fail after they were covered, the caller that has read them calls
    ``withdraw_lost``. The current compaction ends at its ``end_round_id``: its ``end_index`` may be out of date.
    """

    def __init__(self, read_rounds: Callable[[], Rounds | HostRounds], now: Clock = utc_now) -> None:
        self._read_rounds = read_rounds
        self._now = now
        self._state = JournalState()
        self._published: tuple[CompactedMessage, ...] = ()
        self._history: list[CompactionRecord] = []
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards all that changes against two publications

    def read(self) -> JournalState:
        return self._state

    def history(self) -> tuple[CompactionRecord, ...]:
        with self._lock:
            shown = self._published[-1].generation if self._published else 0
            return tuple(
                copy_with(one, current=one.happened == "published" and one.generation == shown) for one in self._history
            )

    def withdraw_lost(self, rounds: Rounds | HostRounds) -> bool:
        """Withdraw every compaction that covers a failed round of *rounds*; return whether there was any."""
        with self._lock:
            kept, generation = self._published, self._state.generation + 1
            while kept and rounds.has_lost(kept[-1]):
                self._record("withdrawn", kept[-1], generation)
                kept = kept[:-1]
            if len(kept) == len(self._published):
                return False
            self._published = kept
            self._state = JournalState(generation, kept[-1] if kept else None, self._state.revert_round_id)
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
            end = rounds.end_of(round_id) or 0
            if not end or rounds[end - 1].id != round_id or not rounds[end - 1].closed:
                raise StaleCompaction("rounds_changed")
            if rounds[end - 1].state != "failed":  # a host may show those that have failed already
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
            self._published = (*self._published, published)
            self._state = JournalState(base + 1, published)
            self._record("published", published, base + 1, tuple(round_ids))
        return published

    def revert(self, *, base: int | None = None) -> CompactedMessage | None:
        rounds = self._read_rounds()
        self.withdraw_lost(rounds)
        with self._lock:
            generation, current, *_ = self._state
            if base is not None and generation != base:
                raise StaleCompaction("generation", OVERTAKEN)
            if current is None:
                return None
            self._published = self._published[:-1]
            before = self._published[-1] if self._published else None
            self._state = JournalState(generation + 1, before, rounds[-1].id if len(rounds) else "")
            self._record("reverted", current, generation + 1)
        return before

    def _record(
        self,
        happened: Literal["published", "reverted", "withdrawn"],
        what: CompactedMessage,
        generation: int,
        round_ids: tuple[str, ...] = (),
    ) -> None:
        self._history.append(
            CompactionRecord(
                happened=happened,
                at=self._now(),
                generation=generation,
                compaction=what,
                round_ids=round_ids,
                model=what.model,
                usage=what.usage,
            )
        )


class JournalWriter:
    """A compactor's access to its journal.

    Publishing raises the journal's errors. Answers, leases and events must not stop a cycle: their errors are told as
    ``PersistFailed``, when they begin and when they change. *rounds_now* returns the visible rounds without blocking,
    if anything can.
    """

    def __init__(
        self,
        journal: Journal,
        role: str,
        emit: Callable[[Event], object],
        rounds_now: Callable[[], Rounds] | None = None,
    ) -> None:
        self._emit = emit
        self._rounds_now = rounds_now
        #: Answers that the journal does not keep, or could not write.
        self._unwritten: tuple[CompactionPrepared, ...] = ()
        #: How often each failure was seen since the last publication.
        self._times: dict[tuple[str, ...], int] = {}
        self.use(journal, role)
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards what changes: a run that was given up may still write beside the next
        self._leased = False  # the parent's is not ours
        self._failing: dict[str, str] = {}  # what fails now, and the class of the error

    def use(self, journal: Journal, role: str) -> None:
        """Write *role*'s compactions to *journal* from now on. Called before anything is written."""
        self._role = role
        #: The journal if it is local: then the caller withdraws what covers failed rounds.
        self.local = journal if isinstance(journal, LocalJournal) else None
        # A Memory's own journal is up to date; a round that any other's compaction covers may have failed since.
        self._is_a_memorys = isinstance(journal, RoleJournal)
        if not isinstance(journal, Journal) and not all(map(partial(hasattr, journal), _METHODS)):
            journal = _HostJournal(journal)
        self._journal = journal
        self.keeps_reductions, self.keeps_answers = journal.keeps_reductions, journal.keeps_answers
        self.has_index = getattr(journal, "has_index", True)
        # These raise the journal's errors.
        self.publish, self.reduce, self.revert = journal.publish, journal.reduce, journal.revert
        self.history, self.refresh, self.index_texts = journal.history, journal.refresh, journal.index_texts

    def read(self) -> JournalState:
        """Return the present state, with the answers made from its generation wherever they are kept."""
        state = self._journal.read()
        if not self._unwritten:
            return state
        with self._lock:
            self._unwritten = unwritten = tuple(one for one in self._unwritten if one.base >= state.generation)
        return copy_with(state, prepared=(*state.prepared, *(one for one in unwritten if one.base == state.generation)))

    def current(self) -> CompactedMessage | None:
        """Return the published compaction with present indices, if they are known; never blocks."""
        if self._rounds_now is None or self._is_a_memorys:
            return self._journal.read().current
        if self.local is not None:
            self.local.withdraw_lost(self._rounds_now())
        current = self._journal.read().current  # first: a round that is added in between only lengthens the tail
        return self._rounds_now().anchor(current)

    def prepare(self, answer: CompactionPrepared) -> None:
        """Keep *answer*: in the log, or in this process if the log cannot be written. Not while the process exits."""
        if interpreter_is_exiting():
            return
        if self.keeps_answers:
            with self._guard("answer"):  # whatever is wrong there, the answer is paid for
                self._journal.prepare(answer)
                return
        with self._lock:
            self._unwritten = (*self._unwritten, answer)[-MAX_UNWRITTEN:]

    def lease(self, seconds: float) -> float:
        """Take or renew the lease and return 0.0, or the seconds until another's expires. If the journal cannot say, it
        is ours: it only saves money."""
        with self._guard("lease"):
            wait = self._journal.lease(seconds)
            with self._lock:
                self._leased = self._leased or not wait > 0
            return wait
        return 0.0

    def release(self) -> None:
        """Give the lease back; if that fails, it expires."""
        with self._lock:
            leased, self._leased = self._leased, False
        if leased:
            with self._guard("lease"):
                self._journal.release()

    def record_failure(self, event: Event) -> None:
        """Keep *event* in the log if it tells of a failure. An event hook.

        Of events that say the same since the last publication, it keeps the 1st, 2nd, 4th, 8th...: an endpoint that
        fails for weeks leaves a few lines. If the store fails, nothing is lost: the event was told.
        """
        if isinstance(event, Published) and not event.offline:  # folding in offline is no success
            self._times.clear()
        elif isinstance(event, _FAILURES):
            same = (event.name, *(str(getattr(event, fact, "")) for fact in ("reason", "error", "strategy")))
            times = self._times[same] = self._times.get(same, 0) + 1
            if times & (times - 1) == 0 and not interpreter_is_exiting():
                facts = {key: value for key, value in event.facts().items() if key != "role"}
                with self._guard("event"):
                    self._journal.note(event.name, facts)

    @contextmanager
    def _guard(self, what: Literal["answer", "lease", "event"]) -> Iterator[None]:
        """Let nothing that goes wrong in here stop the caller; tell of it once for as long as it stays the same."""
        error = ""
        try:
            yield
        except Exception as raised:  # noqa: BLE001  (a host's journal may raise anything)
            error = type(raised).__name__
        with self._lock:
            before, self._failing[what] = self._failing.get(what, ""), error
        if error and error != before:
            self._emit(PersistFailed(role=self._role, what=what, error=error))


class _HostJournal(Journal):
    """A host's object that has ``read``, ``publish`` and ``revert``, and perhaps ``reduce``."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    @property
    def keeps_reductions(self) -> bool:
        return bool(getattr(self._journal, "keeps_reductions", False))

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
