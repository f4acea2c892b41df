"""What a compactor asks of its journal: publications, answers that were paid for, whose turn it is to ask, events."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from memory.entries import CompactionPrepared
from memory.errors import StaleCompaction
from memory.events import Event
from memory.forking import renewed_after_fork
from memory.history import CompactionRecord
from memory.journal import OVERTAKEN, LastingJournal, RoleJournal
from memory.overlays import CompactedMessage, Journal, Origin
from memory.visibility import Rounds

from ..events import KeepingFailed
from ..host_rounds import HostRounds
from ..summarizers.base import SummaryRequest
from ..threads.workers import interpreter_is_exiting
from .journal import LocalJournal

__all__ = ["Keeping", "digest_of"]

#: So many answers that the journal did not take are kept in this process.
MOST_UNWRITTEN = 8


What = Literal["answer", "lease", "event"]


class Keeping:
    """All that a compactor asks of its journal beyond ``Journal``; of one that has no more than that, the least.

    One a compactor; what a journal can do is decided here, once. What it fails at stops nothing where that can be done
    without, whatever it raises: *tell* hears of it as ``KeepingFailed``, when it begins and when the error is another.
    *rounds_now* returns the visible rounds without blocking, where somebody can.
    """

    def __init__(
        self,
        journal: Journal,
        role: str,
        tell: Callable[[Event], object],
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
        self._tell = tell
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
            self._unwritten = (*self._unwritten, answer)[-MOST_UNWRITTEN:]

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
            self._tell(KeepingFailed(role=self._role, what=what, error=error))


def digest_of(request: SummaryRequest) -> str:
    """Return what tells one request from another: the SHA-256 of its messages, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(request.messages, sort_keys=True, default=str).encode()).hexdigest()
