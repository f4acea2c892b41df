"""Where a role's compactions are published: in the log, beside what they are made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .entries import CompactionPublished, CompactionReverted
from .errors import StaleCompaction
from .overlays import CompactedMessage, JournalState
from .rounds import Record
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .memory import Memory

__all__ = ["RoleJournal"]


class RoleJournal:
    """One role's compactions in a Memory's log, as ``Journal`` promises. Their indices are those of the present."""

    def __init__(self, memory: Memory, role: str) -> None:
        self._memory = memory
        self._role = role

    def read(self) -> JournalState:
        return self._state(self._memory.snapshot)

    def publish(self, compaction: CompactedMessage, *, base: int, round_ids: Sequence[str]) -> CompactedMessage:
        compaction = compaction.model_copy(update={"created_at": self._memory._clock()})

        def records(now: Snapshot) -> Iterable[Record]:
            yield CompactionPublished(role=self._role, compaction=self._current(now, compaction, base, round_ids))

        return self._memory._write(records, lambda now: now.published[self._role][-1])

    def revert(self) -> CompactedMessage | None:
        def records(now: Snapshot) -> Iterable[Record]:
            state = now.journal(self._role)
            if state.current is not None:
                yield CompactionReverted(role=self._role, generation=state.generation + 1)

        return self._memory._write(records, lambda now: self._state(now).current)

    def _state(self, now: Snapshot) -> JournalState:
        state = now.journal(self._role)
        return state._replace(current=now.rounds(self._role).anchored(state.current))

    def _current(
        self, now: Snapshot, compaction: CompactedMessage, base: int, round_ids: Sequence[str]
    ) -> CompactedMessage:
        """Return *compaction* as it is published now. Raises ``StaleCompaction`` where it may not be."""
        state = now.journal(self._role)
        if state.generation != base:
            raise StaleCompaction("generation")
        covered = [now.round(round_id) for round_id in round_ids]
        last = now.numbers.get(compaction.end_round_id or "", 0)
        # Not past an open round, even one that another process opened: what is said in it is still to come.
        if not 1 <= last <= now.settled_count or any(one is None or one.state != "finished" for one in covered):
            raise StaleCompaction("rounds_changed")
        if state.current is not None and last <= (state.current.end_number or 0):
            raise StaleCompaction("behind")
        return compaction.model_copy(
            update={
                "end_index": now.rounds(self._role).end_of(now.settled[last - 1].id),
                "end_number": last,
                "generation": base + 1,
            }
        )
