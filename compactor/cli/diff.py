"""What a summary has dropped of the one before it, and what came in."""

from __future__ import annotations

from typing import Any, NamedTuple

from memory import CompactedMessage, Memory

from ..difference import Difference, compared
from .terminal import CannotRun, one_line


class Compared(NamedTuple):
    #: None: there was none before.
    before: CompactedMessage | None
    after: CompactedMessage
    difference: Difference

    def figures(self) -> dict[str, Any]:
        rounds, told = self.difference.rounds, self.difference
        return {
            "from": None if self.before is None else _named(self.before),
            "to": _named(self.after),
            "rounds": None if rounds is None else list(rounds),
            "dropped": list(told.dropped),
            "came_in": list(told.came_in),
            "stayed": list(told.stayed),
            "gone": list(told.gone),
        }


def compare(memory: Memory, role: str, start: int | None, end: int | None) -> Compared:
    """Return how *role*'s summary of generation *end* differs from that of *start*: by default the current one, and
    the one published before it. Raises ``CannotRun`` where there is none."""
    records = memory.journal(role).history()
    published = {
        one.compaction.generation: one.compaction for one in records if one.happened == "published" and one.compaction
    }
    current = next((one.compaction for one in records if one.current), None)
    of = f"of '{one_line(role, 80)}' in session '{one_line(memory.session_id, 80)}'"
    if not published:
        raise CannotRun(f"there is no summary {of}; `compactor show` lists the roles that have one")
    after = _one(published, end, of) if end is not None else current or published[max(published)]
    earlier = [generation for generation in published if generation < after.generation]
    before = _one(published, start, of) if start is not None else published[max(earlier)] if earlier else None
    return Compared(before, after, compared(before, after))


def _one(published: dict[int, CompactedMessage], generation: int, of: str) -> CompactedMessage:
    if generation not in published:
        known = ", ".join(map(str, published))
        raise CannotRun(f"there is no summary {of} of generation {generation}; there are {known}")
    return published[generation]


def _named(one: CompactedMessage) -> dict[str, int]:
    return {"generation": one.generation, "last_covered_round": one.last_round}
