"""Which rounds and posts a role sees: sequences that cost nothing to take and are filtered as they are read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, overload

from .overlays import CompactedMessage, Reductions
from .rounds import Post, Round, copy_with
from .usage import Usage

if TYPE_CHECKING:
    from .log.state import Snapshot


def sees(role: str, post: Post) -> bool:
    """Return whether *role* sent or received *post*. The empty role sees everything."""
    return not role or role in (post.send_from, post.send_to)


def seen_by(role: str, round_: Round) -> Round:
    """Return *round_* with only the posts that *role* sees; the same object where that is all of them."""
    if not role:
        return round_
    # As sees() says, without its call: every prompt asks it of every post.
    posts = tuple([post for post in round_.post_list if role in (post.send_from, post.send_to)])
    return round_ if len(posts) == len(round_.post_list) else copy_with(round_, post_list=posts)


class Rounds(Sequence[Round]):
    """Rounds as one role sees them at one moment: taking it is O(1), reading an item filters that item.

    A slice is a tuple, and costs what it holds. Where rounds are read from a store when they are asked for, reading an
    item may raise ``StoreError``; the next reading asks the store again.
    """

    __slots__ = ("_failed", "_snapshot", "role", "settled")

    def __init__(self, snapshot: Snapshot, role: str, *, include_failed: bool) -> None:
        self._snapshot = snapshot
        self._failed = () if include_failed else snapshot.failed
        self.role = role
        #: How many rounds at the beginning stay as they are for as long as ``epoch`` does.
        self.settled = snapshot.closed_prefix - bisect_right(self._failed, snapshot.closed_prefix)

    @property
    def epoch(self) -> int:
        """Two sequences of one Memory and role with equal epochs begin with the same settled rounds."""
        return self._snapshot.epoch

    @property
    def reductions(self) -> Reductions:
        """What stands in its role's prompts instead of posts; nothing for the empty role, which sees everything."""
        return self._snapshot.reductions.get(self.role) or Reductions()

    @property
    def pins(self) -> frozenset[tuple[str, int]]:
        """The pinned posts, by round id and number in the round; 0 is the user's query."""
        return self._snapshot.pins

    @property
    def redactions(self) -> int:
        """How often something was erased from the log: closed rounds stay as they are but for that."""
        return self._snapshot.redactions

    @property
    def erased(self) -> Mapping[str, tuple[int, ...]]:
        """Which posts of a round were erased, by its id; it reads the same as long as that is the same."""
        return self._snapshot.erased

    @property
    def usage(self) -> Usage:
        """What its role's provider counted of prompts."""
        return self._snapshot.usages.get(self.role) or Usage()

    def seen_as(self, role: str) -> Rounds:
        """Return the same moment's rounds as *role* sees them, without the failed ones; empty: as these are seen."""
        return self._snapshot.rounds(role or self.role)

    def __deepcopy__(self, _memo: dict[int, Any]) -> list[Round]:
        """Return the rounds as a list: they are frozen, so there is nothing in them to copy."""
        return list(self)

    def __len__(self) -> int:
        return self._snapshot.total - len(self._failed)

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, index: int | slice) -> Round | tuple[Round, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return tuple(self._between(start, stop) if step == 1 else map(self._at, range(start, stop, step)))
        length = len(self)
        place = index + length if index < 0 else index
        if not 0 <= place < length:
            raise IndexError(f"no round at {index}; there are {length}")
        return self._at(place)

    def __iter__(self) -> Iterator[Round]:
        return self._between(0, len(self))

    def _between(self, start: int, stop: int) -> Iterator[Round]:
        """Give the rounds from place *start* up to *stop*."""
        if start >= stop:
            return
        number, failed, role, round_at = self.number_at(start), self._failed, self.role, self._snapshot.round_at
        ahead = bisect_left(failed, number)
        for _ in range(start, stop):
            while ahead < len(failed) and failed[ahead] == number:
                ahead, number = ahead + 1, number + 1
            yield seen_by(role, round_at(number))
            number += 1

    def _at(self, place: int) -> Round:
        return seen_by(self.role, self._snapshot.round_at(self.number_at(place)))

    def number_at(self, place: int) -> int:
        """Return the number in the log of the round at that *place*, from 0, for which the round is not read."""
        if not self._failed:
            return place + 1
        failed = self._failed  # the j-th of them comes before that round if at most so many rounds are seen before it
        return place + 1 + bisect_right(range(len(failed)), place, key=lambda j: failed[j] - j - 1)

    def end_of(self, round_id: str) -> int | None:
        """Return how many of these rounds the log holds up to and including *round_id*, itself failed or not.

        None where this snapshot does not know the round.
        """
        number = self._snapshot.number_of(round_id)
        return self._end_at(number) if number else None

    def _end_at(self, number: int) -> int:
        return number - bisect_right(self._failed, number)

    def anchored(self, compaction: CompactedMessage | None) -> CompactedMessage | None:
        """Return *compaction* with its indices in the numbering of this sequence, going by the id of its last round.

        As it is, at most cut to the length, where it has no id or the id is not known here. ``pinned`` says what is
        pinned in the rounds that it covers. No store is asked where it is what its role published last.
        """
        if compaction is None:
            return None
        last = self._last_of(compaction)
        if last:
            end = self._end_at(last)
        else:
            end = min(compaction.end_index, len(self))
            last = self.number_at(end - 1) if end else 0
        pinned = self._pinned(last) if self._snapshot.pinned else ()
        if (end, pinned) == (compaction.end_index, compaction.pinned):
            return compaction
        return copy_with(compaction, end_index=end, pinned=pinned)

    def has_lost(self, compaction: CompactedMessage) -> bool:
        """Return whether a round that *compaction* covers has failed since that was published, as its indices say."""
        end = None if compaction.end_round_id is None else self.end_of(compaction.end_round_id)
        return end is not None and end < compaction.end_index

    def _last_of(self, compaction: CompactedMessage) -> int:
        """Return the number of the last round that *compaction* covers; 0 where it is not known here."""
        now, round_id = self._snapshot, compaction.end_round_id
        if round_id is None:
            return 0
        known = now.journals.get(self.role)
        current = known.current if known is not None else None
        if current is not None and current.end_round_id == round_id and current.end_number:
            return current.end_number if current.end_number <= now.total else 0  # its journal found it in this log
        return now.number_of(round_id)

    def _pinned(self, last: int) -> tuple[str, ...]:
        """Return what the pinned posts say up to the round of that number, in the order of the log."""
        now = self._snapshot
        covered = takewhile(lambda one: one.round <= last, now.pinned)
        seen = (one.text for one in covered if one.shown_to(self.role) and not now.has_failed(one.round))
        return tuple(dict.fromkeys(seen))  # the query may be said twice

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Rounds role={self.role!r} length={len(self)}>"
