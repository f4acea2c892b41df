"""Checks that the entries of an imported log fit together, and finds the round of each.

It holds ids and numbers but no text, so a log of any length can be checked while it is read.
"""

from __future__ import annotations

from ..entries import (
    HEADER_PART,
    CompactionPublished,
    CompactionReverted,
    Entry,
    HeaderAdded,
    PostAdded,
    PostPinned,
    PostRedacted,
    ReductionPublished,
    RoundFailed,
    RoundFinished,
    RoundOpened,
)
from ..errors import StoreDamaged
from ..overlays import CompactedMessage, Reduction
from ..rounds import Post, Record

#: Ends every error about an imported log.
REMEDY = "nothing was stored, take an undamaged copy"


def round_id_of(record: Record | None) -> str | None:
    """Return the id of the round that *record* belongs to, or None."""
    owner = record.reduction if type(record) is ReductionPublished else record
    round_id: str | None = getattr(owner, "round_id", None)
    return round_id


class LogValidator:
    """Takes the entries of one log in order. Stricter than a replay: it refuses everything that no Memory writes."""

    def __init__(self) -> None:
        #: Number of the last entry.
        self.number = 0
        self._ids: set[str] = set()
        self._rounds: dict[str, int] = {}
        self._open: set[int] = set()
        #: The number of the last post of each round, by the round's number.
        self._last_post: dict[int, int] = {}
        self._generations: dict[str, int] = {}
        self._redactions = 0

    def take(self, entry: Entry) -> None:
        """Check *entry* as the next one, and set the number of its round.

        Raises ``StoreDamaged`` if it does not fit the entries before, ``NewerVersion`` for a body of a newer version.
        """
        if entry.number != self.number + 1:
            raise StoreDamaged(
                f"entry {self.number + 1} is missing, there is one numbered {entry.number} in its place; {REMEDY}"
            )
        if entry.id in self._ids:
            raise StoreDamaged(f"entry {entry.number} has the id of an entry before it; {REMEDY}")
        try:
            record = entry.record
        except StoreDamaged as error:
            raise StoreDamaged(f"entry {entry.number} ({entry.kind}) cannot be read; {REMEDY}") from error
        fault = self._fault(record, entry.number)
        if fault:
            raise StoreDamaged(f"entry {entry.number} ({entry.kind}) does not fit those before it: {fault}; {REMEDY}")
        self.number = entry.number
        self._ids.add(entry.id)
        self._note(record)
        # A kind that this version does not know keeps the number from the newer version.
        if record is not None or not 0 <= entry.round <= len(self._rounds):
            entry.round = self._rounds.get(round_id_of(record) or "", 0)

    def _fault(self, record: Record | None, number: int) -> str:
        """Return why *record* cannot be the next; empty if it can."""
        round_id = round_id_of(record)
        if isinstance(record, RoundOpened):
            return "there is a round of that id" if record.round_id in self._rounds else ""
        place = 0 if round_id is None else self._rounds.get(round_id, 0)
        if round_id is not None and not place:
            return "there is no round of that id"
        last = self._last_post.get(place, 0)
        match record:
            case HeaderAdded(post=post) if self._rounds and not post.kind.startswith(HEADER_PART):
                return "the header is before the first round"
            case PostAdded(post=post):
                return self._post_fault(post, place, number)
            case PostPinned(number=pinned) if not 0 <= pinned <= last:
                return "there is no such post"
            case PostRedacted(numbers=numbers) if not all(0 <= one <= last for one in numbers):
                return "there is no such post"
            case ReductionPublished(reduction=reduction):
                return _reduction_fault(reduction, last)
            case CompactionPublished(role=role, compaction=compaction, round_ids=round_ids):
                return self._compaction_fault(role, compaction, round_ids)
            case CompactionReverted(role=role, generation=generation) if generation <= self._generation(role):
                return "its generation is behind"
        return ""

    def _post_fault(self, post: Post, place: int, number: int) -> str:
        if place not in self._open:
            return "the round is closed"
        # Not "last + 1": an entry may have been erased with its number. Bounded, because a store has to hold it.
        return "" if self._last_post[place] < post.number <= number else "the post's number is not the next"

    def _compaction_fault(self, role: str, compaction: CompactedMessage, round_ids: tuple[str, ...]) -> str:
        end = self._rounds.get(compaction.end_round_id or "", 0)
        if not end or compaction.end_number != end or not self._rounds.keys() >= set(round_ids):
            return "it covers rounds that are not there"
        if any(place <= end for place in self._open):
            return "it covers a round that is open"
        return "its generation is behind" if compaction.generation <= self._generation(role) else ""

    def _generation(self, role: str) -> int:
        return self._generations.get(role, self._redactions)

    def _note(self, record: Record | None) -> None:
        match record:
            case RoundOpened(round_id=round_id):
                self._rounds[round_id] = place = len(self._rounds) + 1
                self._open.add(place)
                self._last_post[place] = 0
            case PostAdded(round_id=round_id, post=post):
                self._last_post[self._rounds[round_id]] = post.number
            case RoundFinished(round_id=round_id) | RoundFailed(round_id=round_id):
                self._open.discard(self._rounds[round_id])
            case CompactionPublished(role=role, compaction=compaction):
                self._generations[role] = compaction.generation
            case CompactionReverted(role=role, generation=generation):
                self._generations[role] = generation
            case PostRedacted():
                self._generations = {role: generation + 1 for role, generation in self._generations.items()}
                self._redactions += 1


def _reduction_fault(reduction: Reduction, last: int) -> str:
    if not reduction.first_number <= reduction.last_number <= last:
        return "there are no such posts"
    if reduction.kind == "offloaded" and reduction.first_number != reduction.last_number:
        return "it replaces more than one post"
    return ""
