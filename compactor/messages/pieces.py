"""What a prompt is made of: what stands in front, pieces of the tail, and the line that tells of what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from memory.reading.references import place_reference, post_reference, range_reference
from memory.rounds import Round

from .units import Message, Unit

__all__ = ["By", "Draft", "Fitted", "Head", "Piece", "Reduced", "ends", "note"]

#: What shortened a text: a preview stands for it, or a line, or its head and tail do; published reductions also drop
#: posts, or have a summary stand for them.
By = Literal["offloaded", "cleared", "clipped", "dropped", "summarised"]


@dataclass(frozen=True, slots=True)
class Reduced:
    """A text, or several posts, that the prompt shows shortened, or not at all."""

    #: Reloads the original: ``memory.reload(ref)``.
    ref: str
    tokens_before: int
    tokens_after: int
    #: The heaviest that was done to it.
    by: By
    #: Whether every prompt shows it so, for it is in the log; else it was done for this prompt alone.
    published: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the tail: system messages, then the compaction. And the plan, which stands in the tail."""

    system: tuple[Message, ...] = ()
    compaction: Message | None = None
    plan: Message | None = None

    def messages(self) -> list[Message]:
        return [*self.system, *([self.compaction] if self.compaction is not None else [])]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What becomes the prompt, and what was done for it."""

    messages: list[Message]
    tokens: int
    #: Tokens of the same without the ladder.
    tokens_before: int
    omitted_rounds: tuple[int, ...] = ()
    reductions: tuple[Reduced, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of the tail, as it is shown, and what its messages cost."""

    round_: Round
    unit: Unit
    costs: tuple[int, ...]
    #: The newest query, and what is pinned: neither left out nor shortened.
    fixed: bool = False
    pinned: bool = False
    #: On how many rungs its texts were shortened: ``costs`` says so, and ``unit`` only once it is made.
    rungs: int = 0
    reductions: tuple[Reduced, ...] = ()

    @property
    def verbatim(self) -> bool:
        return self.fixed or self.pinned

    @property
    def stays(self) -> bool:
        """Whether it is left out only where it alone is too much; a call that waits may be clipped."""
        return self.verbatim or self.unit.pending

    @property
    def tokens(self) -> int:
        return sum(self.costs)

    def reading(self, unit: Unit, costs: tuple[int, ...], places: Iterable[int], by: By) -> Piece:
        """Return the piece with *unit* in the place of its own, whose messages at *places* are shorter *by* that."""
        known = {reduced.ref: reduced for reduced in self.reductions}
        for place in places:
            ref = post_reference(self.round_, self.unit.posts[place])
            before = known[ref].tokens_before if ref in known else self.costs[place]
            known[ref] = Reduced(ref, before, costs[place], by)
        return replace(self, unit=unit, costs=costs, reductions=tuple(known.values()))


@dataclass(slots=True)
class Draft:
    """What the tail becomes, in this order."""

    #: What stands before all that is shown and is shown all the same.
    ahead: Sequence[Piece] = ()
    #: The places of rounds that are shown as they are, whose costs the ledger has summed up; then units one by one.
    counted: range = field(default_factory=lambda: range(0))
    pieces: Sequence[Piece] = ()
    #: Places of the rounds that are left out, and the units of others.
    rounds: range = field(default_factory=lambda: range(0))
    units: Sequence[Piece] = ()
    #: Whether a line tells of them.
    says_so: bool = True

    @property
    def shown(self) -> list[Piece]:
        return [*self.ahead, *self.pieces]


def ends(pieces: Sequence[Piece]) -> tuple[str, ...]:
    """Return the references of the first and the last post in *pieces*, as the log has them; none where there are none.

    Not those at their ends: a result that came late stands behind its call.
    """
    if not pieces:
        return ()
    numbers = [
        (piece.round_.number, post.number if post is not None else 0) for piece in pieces for post in piece.unit.posts
    ]
    return place_reference(*min(numbers)), place_reference(*max(numbers))


def note(rounds: Sequence[int], first_post: str = "", last_post: str = "", *, dropped_from: int = 0) -> Message:
    """Return the line that says what is left out, and how to read it: whole rounds, then posts, then those that were
    dropped here and there from round *dropped_from* on. Of these it names no end, which would move with each."""
    said: list[str] = []
    if rounds:
        said.append(f"rounds {rounds[0]} to {rounds[-1]} (reload {range_reference(rounds[0], rounds[-1])})")
    if first_post:
        said.append(f"the posts from {first_post} to {last_post} (reload each by that name)")
    if dropped_from:
        said.append(
            f"single posts from round {dropped_from} on (reload r{dropped_from} or any other round by its number)"
        )
    return {"role": "system", "content": f"[Left out here to save space, and kept in full: {', '.join(said)}.]"}
