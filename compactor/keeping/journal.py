"""Where compactions are published when there is no Memory to hold them: in this process, as long as it lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from memory.errors import StaleCompaction
from memory.forking import renewed_after_fork
from memory.frozen import freeze_mapping
from memory.history import CompactionRecord
from memory.journal import OVERTAKEN
from memory.overlays import CompactedMessage, JournalState, Reduction, Reductions
from memory.rounds import Clock, utc_now
from memory.visibility import Rounds

from ..host_rounds import COVERED, HostRounds

__all__ = ["LocalJournal"]

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
                self._tell("withdrawn", lost, generation)
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
            self._tell("published", published, base + 1, tuple(round_ids))
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
            self._tell("reverted", current, generation + 1)
        return before

    def history(self) -> tuple[CompactionRecord, ...]:
        """Return what became of its compactions, oldest first."""
        with self._lock:
            generation = self._published[-1].generation if self._published else 0
            return tuple(
                replace(one, current=one.happened == "published" and one.generation == generation)
                for one in self._history
            )

    def _tell(
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
