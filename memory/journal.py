"""Where a role's overlays are published: in the log, beside what they are made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .entries import CompactionPublished, CompactionReverted, ReductionPublished, ReductionWithdrawn
from .errors import StaleCompaction
from .overlay_rule import laid, tears
from .overlays import CompactedMessage, JournalState, Reduction, Reductions
from .rounds import Record
from .snapshot import Snapshot
from .visibility import seen_by

if TYPE_CHECKING:
    from .memory import Memory

__all__ = ["RoleJournal"]


class RoleJournal:
    """One role's overlays in a Memory's log, as ``Journal`` promises. Their indices are those of the present."""

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

    def reduce(self, reduction: Reduction, *, base: int) -> Reductions | None:
        reduction = reduction.model_copy(update={"created_at": self._memory._clock()})

        def records(now: Snapshot) -> Iterable[Record]:
            found = self._reduced(now, reduction, base)
            if laid(now.reductions_of(self._role).of(found.round_id), found) is not None:
                yield ReductionPublished(role=self._role, reduction=found)

        return self._memory._write(records, self._changed)

    def withdraw(self, reduction: Reduction) -> bool:
        def records(now: Snapshot) -> Iterable[Record]:
            for one in now.reductions_of(self._role).of(reduction.round_id):
                if (one.first_post_id, one.last_post_id) == (reduction.first_post_id, reduction.last_post_id):
                    yield ReductionWithdrawn(
                        role=self._role,
                        round_id=one.round_id,
                        first_number=one.first_number,
                        last_number=one.last_number,
                    )

        return self._memory._write(records, self._changed) is not None

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

    def _reduced(self, now: Snapshot, reduction: Reduction, base: int) -> Reduction:
        """Return *reduction* with its posts' numbers. Raises ``StaleCompaction`` where it may not be published."""
        state = now.journal(self._role)
        if state.generation != base:
            raise StaleCompaction("generation")
        found = now.round(reduction.round_id)
        covered = (state.current.end_number or 0) if state.current is not None else 0
        if found is None or found.state == "failed" or found.number <= covered:
            raise StaleCompaction("rounds_changed")
        round_ = seen_by(self._role, found)
        numbers = {"": 0} | {post.id: post.number for post in round_.post_list}
        first, last = (numbers.get(end, -1) for end in (reduction.first_post_id, reduction.last_post_id))
        if not 0 <= first <= last:
            raise StaleCompaction("rounds_changed")
        reduction = reduction.model_copy(update={"first_number": first, "last_number": last})
        if reduction.kind == "offloaded" and first != last:
            raise ValueError("an offloaded reduction stands for one post; make one for each")
        if tears(reduction, round_, self._role):
            raise StaleCompaction("torn")
        return reduction

    def _changed(self, now: Snapshot) -> Reductions | None:
        """Return the role's reductions if the newest entry of the log changed them."""
        reductions = now.reductions_of(self._role)
        return reductions if reductions.version == now.number else None
