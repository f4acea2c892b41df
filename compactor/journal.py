"""What a compactor asks of its journal: publications, answers that were paid for, whose turn it is to ask, events."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from memory.entries import CompactionPrepared
from memory.errors import StaleCompaction
from memory.events import Event
from memory.hooks import renewed_after_fork
from memory.journal import OVERTAKEN, CompactionRecord, LastingJournal, RoleJournal
from memory.overlays import CompactedMessage, Journal, JournalState, Origin, Reduction, Reductions
from memory.rounds import Clock, freeze_mapping, utc_now
from memory.visibility import Rounds

from .errors import LeasedElsewhere
from .events import Discarded, Exhausted, Failed, PersistFailed, Published, StrategyFailed
from .host_rounds import COVERED, HostRounds
from .summarizers.base import SummaryRequest
from .timers import interpreter_is_exiting

#: A compaction is found again in a host's rounds as long as one of this many of the last it covers is still there.
ANCHORS = 64


class LocalJournal:
    """A journal over whatever *read_rounds* returns; it keeps every compaction that was published and not reverted.

    ``read`` asks nobody: where rounds can fail after they were covered, whoever has read them calls ``withdraw_lost``.
    ``end_round_id`` says where the present one ends; its ``end_index`` is that of its publication.
    """

    def __init__(self, read_rounds: Callable[[], Rounds | HostRounds], now: Clock = utc_now) -> None:
        self._read_rounds = read_rounds
        self._now = now
        self._state = JournalState()
        self._published: tuple[CompactedMessage, ...] = ()
        self._history: list[CompactionRecord] = []
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards all that changes against two publications

    #: Nobody would show them, for prompts are composed from a Memory's log.
    keeps_reductions = False

    def read(self) -> JournalState:
        return self._state

    def withdraw_lost(self, rounds: Rounds | HostRounds) -> bool:
        """Take back what covers a round that has failed, as *rounds* tell; return whether there was anything."""
        with self._lock:
            generation, _, held_round_id = self._state
            while self._published and rounds.has_lost(self._published[-1]):
                *before, lost = self._published
                self._published, generation = tuple(before), self._state.generation + 1
                self._emit("withdrawn", lost, generation)
            if generation == self._state.generation:
                return False
            self._state = JournalState(generation, self._published[-1] if self._published else None, held_round_id)
            return True

    def publish(self, compaction: CompactedMessage, *, base: int, round_ids: Sequence[str]) -> CompactedMessage:
        rounds, end = self._read_rounds(), 0
        self.withdraw_lost(rounds)
        told: list[str] = []
        for round_id in round_ids:
            end = rounds.end_of(round_id) or 0
            if not end or rounds[end - 1].id != round_id or not rounds[end - 1].closed:
                raise StaleCompaction("rounds_changed")
            if rounds[end - 1].state != "failed":  # a host may show those that have failed already
                told.append(round_id)
        with self._lock:
            generation, current, _ = self._state
            if generation != base:
                raise StaleCompaction("generation")
            anchored = rounds.anchored(current)
            reached = anchored.end_index if anchored is not None else 0
            replaces = anchored is not None and anchored.is_offline and not compaction.is_offline
            if end < reached or (end == reached and not replaces):
                raise StaleCompaction("behind")
            before = current.extra.get(COVERED, ()) if current is not None else ()
            published = compaction.model_copy(
                update={
                    "end_index": end,
                    "generation": base + 1,
                    "created_at": self._now(),
                    "extra": freeze_mapping(
                        {**compaction.extra, COVERED: tuple(dict.fromkeys((*reversed(told), *before)))[:ANCHORS]}
                    ),
                }
            )
            self._published = (*self._published, published)
            self._state = JournalState(base + 1, published)
            self._emit("published", published, base + 1, tuple(round_ids))
        return published

    def revert(self, *, base: int | None = None) -> CompactedMessage | None:
        rounds = self._read_rounds()
        self.withdraw_lost(rounds)
        with self._lock:
            generation, current, _ = self._state
            if base is not None and generation != base:
                raise StaleCompaction("generation", OVERTAKEN)
            if current is None:
                return None
            self._published = self._published[:-1]
            before = self._published[-1] if self._published else None
            self._state = JournalState(generation + 1, before, rounds[-1].id if len(rounds) else "")
            self._emit("reverted", current, generation + 1)
        return before

    def history(self) -> tuple[CompactionRecord, ...]:
        """Return what became of its compactions, oldest first."""
        with self._lock:
            generation = self._published[-1].generation if self._published else 0
            return tuple(
                replace(one, current=one.happened == "published" and one.generation == generation)
                for one in self._history
            )

    def _emit(
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

    def reduce(self, reduction: Reduction, *, base: int) -> Reductions | None:  # noqa: ARG002
        return None

    def withdraw(self, reduction: Reduction) -> bool:  # noqa: ARG002
        return False


# --- what a compactor asks of its journal: publications, answers that were paid for, whose turn it is to ask, events


#: So many answers that the journal did not take are kept in this process.
MAX_UNWRITTEN = 8


What = Literal["answer", "lease", "event"]


class Keeping:
    """All that a compactor asks of its journal beyond ``Journal``; of one that has no more than that, the least.

    One a compactor; what a journal can do is decided here, once. What it fails at stops nothing where that can be done
    without, whatever it raises: *tell* hears of it as ``PersistFailed``, when it begins and when the error is another.
    *rounds_now* returns the visible rounds without blocking, where somebody can.
    """

    def __init__(
        self,
        journal: Journal,
        role: str,
        emit: Callable[[Event], object],
        rounds_now: Callable[[], Rounds] | None = None,
    ) -> None:
        self._journal = journal
        self._lasting = journal if isinstance(journal, LastingJournal) else None
        self._recording = journal if isinstance(journal, (LastingJournal, LocalJournal)) else None
        # A Memory's own journal counts as of now; of any other's compaction a round may have failed since.
        self._rounds_now = rounds_now if not isinstance(journal, RoleJournal) else None
        #: Whether the journal keeps any: a host's own may know of compactions alone.
        self.keeps_reductions = bool(getattr(journal, "keeps_reductions", False))
        self._role = role
        self._emit = emit
        #: What the journal does not keep, or could not write.
        self._unwritten: tuple[CompactionPrepared, ...] = ()
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards what can change; a late run and the next one may both be at it
        self._leased = False  # the parent's is not ours
        self._failing: dict[What, str] = {}  # what fails now, and the class of the error

    # -- answers ------------------------------------------------------------------------------------------------------

    def prepare(self, answer: CompactionPrepared) -> None:
        """Keep *answer*: in the log, or in this process where that cannot be written. Not while the process exits."""
        if interpreter_is_exiting():
            return
        if self._lasting is not None:
            with self._told("answer"):  # whatever is wrong there, the answer is paid for
                self._lasting.prepare(answer)
                return
        with self._lock:
            self._unwritten = (*self._unwritten, answer)[-MAX_UNWRITTEN:]

    def answer(self, digest: str, kind: str, base: int) -> CompactionPrepared | None:
        """Return the newest answer to the request of that *digest* that was made from generation *base*, if any."""
        answers = reversed(self.prepared(base))
        return next((one for one in answers if (one.digest, one.kind) == (digest, kind)), None)

    def publishable(self, base: int) -> Sequence[CompactionPrepared]:
        """Return the answers that could be published as they are. None where the journal knows nothing of rounds: there
        nobody promises that they stay what they were, so each is found again by what was asked."""
        return self.prepared(base) if self._lasting is not None else ()

    def known(self, base: int) -> tuple[bool, Sequence[str]]:
        """Return whether *base* is current, and which answers were made from it: what changes when others write."""
        return self._journal.read().generation == base, [one.digest for one in self.prepared(base)]

    def prepared(self, base: int) -> Sequence[CompactionPrepared]:
        """Return the answers that were made from generation *base*, oldest first, wherever they are kept."""
        written = self._lasting.prepared() if self._lasting is not None else ()
        with self._lock:
            self._unwritten = unwritten = tuple(one for one in self._unwritten if one.base >= base)
        return [one for one in (*written, *unwritten) if one.base == base]

    # -- publications -------------------------------------------------------------------------------------------------

    def current(self) -> CompactedMessage | None:
        """Return the published compaction, its indices those of the present where that is known; never blocks."""
        if self._rounds_now is None:
            return self._journal.read().current
        self.withdraw_lost(self._rounds_now())
        current = self._journal.read().current  # first: a round that is added in between only lengthens the tail
        return self._rounds_now().anchored(current)

    def withdraw_lost(self, rounds: Rounds | HostRounds) -> bool:
        """Take back what covers a round of *rounds* that has failed, where nobody else does; return whether there was
        anything."""
        return isinstance(self._journal, LocalJournal) and self._journal.withdraw_lost(rounds)

    def publish(
        self, made: CompactedMessage, *, base: int, round_ids: Sequence[str], origin: Origin
    ) -> CompactedMessage:
        if self._lasting is None:
            return self._journal.publish(made, base=base, round_ids=round_ids)
        return self._lasting.publish(made, base=base, round_ids=round_ids, origin=origin)

    def revert(self, base: int) -> CompactedMessage | None:
        """Take back the compaction of generation *base*. Raises ``StaleCompaction`` where that is not current."""
        if self._recording is not None:
            return self._recording.revert(base=base)
        if self._journal.read().generation != base:
            raise StaleCompaction("generation", OVERTAKEN)
        return self._journal.revert()

    def history(self) -> tuple[CompactionRecord, ...]:
        return self._recording.history() if self._recording is not None else ()

    # -- whose turn it is ---------------------------------------------------------------------------------------------

    def lease(self, seconds: float) -> float:
        """Take or renew the lease; where the journal cannot say, it is ours, for it saves money only."""
        if self._lasting is None:
            return 0.0
        with self._told("lease"):
            wait = self._lasting.lease(seconds)
            with self._lock:
                self._leased = self._leased or not wait > 0
            return wait
        return 0.0

    def release(self) -> None:
        """Give the lease back; where that fails, it expires."""
        with self._lock:
            leased, self._leased = self._leased, False
        if leased and self._lasting is not None:
            with self._told("lease"):
                self._lasting.release()

    def refresh(self) -> bool:
        """Read what others wrote; return whether there was anything."""
        return self._lasting is not None and self._lasting.refresh()

    # -- beside -------------------------------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """Keep *event* in the log, where there is one: it was told to those who asked, so nothing is lost without."""
        if self._lasting is not None:
            facts = {key: value for key, value in event.facts().items() if key != "role"}
            with self._told("event"):
                self._lasting.note(event.name, facts)

    def index_texts(self) -> bool:
        return self._lasting is not None and self._lasting.index_texts()

    @contextmanager
    def _told(self, what: What) -> Iterator[None]:
        """Tell of what goes wrong in here, once as long as the same does, and let it stop nothing."""
        error = ""
        try:
            yield
        except Exception as raised:  # noqa: BLE001  (a host's journal may raise anything)
            error = type(raised).__name__
        with self._lock:
            before = self._failing.get(what, "")
            self._failing[what] = error
        if error and error != before:
            self._emit(PersistFailed(role=self._role, what=what, error=error))


def digest_of(request: SummaryRequest) -> str:
    """Return what tells one request from another: the SHA-256 of its messages, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(request.messages, sort_keys=True, default=str).encode()).hexdigest()


# --- events that belong in the log: what failed or was discarded, which nothing else in there tells ---------------


_KEPT = (Discarded, Exhausted, Failed, StrategyFailed)


class FailuresKept:
    """A hook that keeps them. Of those that say the same since the last publication, the 1st, 2nd, 4th, 8th...: so an
    endpoint that fails for weeks leaves a few lines. Where the store fails, nothing is kept and nothing is lost."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._times: dict[tuple[str, ...], int] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Published) and not event.offline:  # that is no success
            self._times.clear()
        elif isinstance(event, _KEPT):
            same = (event.name, *(str(getattr(event, fact, "")) for fact in ("reason", "error", "strategy")))
            times = self._times[same] = self._times.get(same, 0) + 1
            if times & (times - 1) == 0 and not interpreter_is_exiting():
                self._keeping.note(event)


# --- whose turn it is to have a role's history summarised, where several processes could: so that one of them pays


#: A lease lasts so many seconds longer than the call that it is for: to check the answer, and to publish it.
MARGIN = 30.0


class Overtaken(StaleCompaction):
    """Others wrote something since a cycle looked, or did what it was about to do: the cycle looks again."""

    def __init__(self) -> None:
        super().__init__("generation")


class Lease:
    """One cycle's: taken before the first call, renewed before each."""

    def __init__(self, keeping: Keeping, seconds: float) -> None:
        self._keeping = keeping
        self._seconds = seconds
        self._held = False

    def hold(self, is_current: Callable[[], bool]) -> None:
        """Take or renew it. Raises ``LeasedElsewhere`` where another has it; ``Overtaken`` at most once, where there
        was something to read when it was taken, or what the cycle has seen *is_current* no more."""
        wait = self._keeping.lease(self._seconds)
        if wait > 0:
            raise LeasedElsewhere(wait)
        if not self._held:
            self._held = True
            # Also what another thread of this process has read since: it has nothing left for us to read.
            if self._keeping.refresh() or not is_current():
                raise Overtaken

    @property
    def is_held(self) -> bool:
        return self._held

    def release(self) -> None:
        self._keeping.release()
