"""The rounds and posts that a role sees, as sequences that are taken in O(1) and filtered as they are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
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


def filter_posts(role: str, round_: Round) -> Round:
    """Return *round_* with only the posts that *role* sees; the same object if those are all."""
    for post in round_.post_list if role else ():
        if role not in (post.send_from, post.send_to):  # sees() inlined: every prompt asks it of every post
            return copy_with(round_, post_list=tuple([one for one in round_.post_list if sees(role, one)]))
    return round_


class Rounds(Sequence[Round]):
    """Rounds as one role sees them at one moment. Taking it is O(1); reading an item filters that item.

    A slice is a tuple. Old rounds may be read from the store on demand: then reading an item may raise ``StoreError``,
    and the next reading asks the store again.
    """

    def __init__(self, snapshot: Snapshot, role: str, *, include_hidden: bool) -> None:
        #: The log at that moment.
        self.snapshot = snapshot
        self._hidden = hidden = () if include_hidden else snapshot.hidden
        #: How many rounds there are.
        self.total = snapshot.total - len(hidden)
        self.role = role
        #: How many rounds at the beginning stay as they are while ``epoch`` does.
        self.closed = snapshot.closed_prefix - bisect_right(hidden, snapshot.closed_prefix)
        #: Two sequences of one Memory and role with equal epochs begin with the same closed rounds.
        self.epoch = snapshot.epoch
        #: What stands in the role's prompts in place of posts, behind its compaction. The empty role sees everything.
        self.reductions: Reductions = snapshot.reductions.get(role, _NO_REDUCTIONS)
        #: The pinned posts, by round id and number in the round; 0 is the user's query.
        self.pins = snapshot.pins
        #: How often something was erased from the log. Apart from that, closed rounds stay as they are.
        self.redactions = snapshot.redactions
        #: Which posts of each round were erased, by its id.
        self.erased = snapshot.erased
        #: What the role's provider counted of prompts.
        self.usage: Usage = snapshot.usages.get(role, _NO_USAGE)

    def for_role(self, role: str) -> Rounds:
        """Return the same moment's rounds as *role* sees them, without the hidden ones; empty: as these are seen."""
        if role in ("", self.role) and self._hidden is self.snapshot.hidden:
            return self
        return Rounds(self.snapshot, role or self.role, include_hidden=False)

    def __deepcopy__(self, _memo: dict[int, Any]) -> list[Round]:
        """Return the rounds as a list: they are frozen, so there is nothing in them to copy."""
        return list(self)

    def __len__(self) -> int:
        return self.total

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, index: int | slice) -> Round | tuple[Round, ...]:
        if isinstance(index, slice):
            places = range(self.total)[index]
            numbers = map(self.get_number, places) if self._hidden else [place + 1 for place in places]
            rounds = list(map(self.snapshot.get_round_at, numbers))
            return tuple(map(partial(filter_posts, self.role), rounds))
        place = index + self.total if index < 0 else index
        if not 0 <= place < self.total:
            raise IndexError(f"no round at {index}; there are {self.total}")
        number = self.get_number(place) if self._hidden else place + 1
        round_, open_round = self.snapshot.get_round_at(number), self.snapshot.open_rounds.get(number)
        # As in filter_posts: nearly always, the role sees all posts. An open round may have thousands, of few speakers.
        if self.role and open_round is not None:
            for said in open_round.speakers:
                if self.role not in said:
                    return filter_posts(self.role, round_)
        elif self.role:
            for post in round_.post_list:
                if self.role not in (post.send_from, post.send_to):
                    return filter_posts(self.role, round_)
        return round_

    def __iter__(self) -> Iterator[Round]:
        return map(self.__getitem__, range(self.total))

    def get_number(self, index: int) -> int:
        """Return the number in the log of the round at that *index*, from 0. The round is not read."""
        hidden = self._hidden  # the j-th of them comes before that round if at most so many rounds are seen before it
        return index + 1 + bisect_right(range(len(hidden)), index, key=lambda j: hidden[j] - j - 1)

    def find_end(self, round_id: str) -> int | None:
        """Return how many of these rounds the log holds up to and including *round_id*, which may be hidden itself.

        None if this snapshot does not know the round.
        """
        number = self.snapshot.find_number(round_id)
        return number - bisect_right(self._hidden, number) if number else None

    def find_place(self, round_id: str) -> int | None:
        """Return the index of *round_id*; None if it is not among these rounds. The round is not read."""
        end = self.find_end(round_id)
        if not end or self.get_number(end - 1) != self.snapshot.find_number(round_id):
            return None
        return end - 1

    @overload
    def anchor(self, compaction: CompactedMessage) -> CompactedMessage: ...
    @overload
    def anchor(self, compaction: CompactedMessage | None) -> CompactedMessage | None: ...
    def anchor(self, compaction: CompactedMessage | None) -> CompactedMessage | None:
        """Return *compaction* with its indices in the numbering of this sequence, found by the id of its last round.

        If it has no id, or the id is not known here, the indices stay, at most cut to the length. ``pinned`` has the
        pinned posts of the covered rounds. No store is asked about the role's newest publication.
        """
        if compaction is None:
            return None
        now, round_id = self.snapshot, compaction.end_round_id
        last = 0
        if round_id is not None:
            current = now.journals[self.role].current if self.role in now.journals else None
            if current is not None and current.end_round_id == round_id and current.end_number:
                last = current.end_number if current.end_number <= now.total else 0  # its journal found it in this log
            else:
                last = now.find_number(round_id)
        if last:
            end = last - bisect_right(self._hidden, last)
        else:
            end = min(compaction.end_index, self.total)
            last = self.get_number(end - 1) if end else 0
        pinned: tuple[str, ...] = ()
        if now.pinned:
            covered = takewhile(lambda one: one.round <= last, now.pinned)
            seen = [one.text for one in covered if one.is_shown_to(self.role) and one.round not in now.hidden]
            pinned = tuple(dict.fromkeys(seen))  # the query may be said twice
        if (end, pinned) == (compaction.end_index, compaction.pinned):
            return compaction
        return copy_with(compaction, end_index=end, pinned=pinned)

    def has_lost(self, compaction: CompactedMessage) -> bool:
        """Return whether a round that *compaction* covers was hidden since that was published, as its indices say."""
        end = None if compaction.end_round_id is None else self.find_end(compaction.end_round_id)
        return end is not None and end < compaction.end_index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self.total == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Rounds role={self.role!r} length={self.total}>"


_NO_REDUCTIONS, _NO_USAGE = Reductions(), Usage()
