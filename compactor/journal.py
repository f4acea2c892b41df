"""Where compactions are published when there is no Memory to hold them: in this process, as long as it lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from memory.errors import StaleCompaction
from memory.forking import renewed_after_fork
from memory.overlays import CompactedMessage, JournalState
from memory.visibility import Rounds

from .view import HostRounds

__all__ = ["LocalJournal"]


class LocalJournal:
    """A journal over whatever *read_rounds* returns; it keeps every compaction that was published."""

    def __init__(self, read_rounds: Callable[[], Rounds | HostRounds]) -> None:
        self._read_rounds = read_rounds
        self._state = JournalState()
        self._published: tuple[CompactedMessage, ...] = ()
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards _state and _published against two publications

    def read(self) -> JournalState:
        return self._state

    def publish(self, compaction: CompactedMessage, *, base: int, round_ids: Sequence[str]) -> CompactedMessage:
        rounds = self._read_rounds()
        for round_id in round_ids:
            end = rounds.end_of(round_id)
            if not end or rounds[end - 1].id != round_id or not rounds[end - 1].closed:
                raise StaleCompaction("rounds_changed")
        with self._lock:
            generation, current, _ = self._state
            if generation != base:
                raise StaleCompaction("generation")
            anchored = rounds.anchored(current)
            if anchored is not None and compaction.end_index <= anchored.end_index:
                raise StaleCompaction("behind")
            published = compaction.model_copy(update={"generation": base + 1})
            self._published = (*self._published, published)
            self._state = JournalState(base + 1, published)
        return published

    def revert(self) -> CompactedMessage | None:
        rounds = self._read_rounds()
        with self._lock:
            generation, current, _ = self._state
            if current is None:
                return None
            self._published = self._published[:-1]
            before = self._published[-1] if self._published else None
            self._state = JournalState(generation + 1, before, rounds[-1].id if len(rounds) else "")
        return before
