"""Where tool calls and their results follow one another in a round, so that they can be read as one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from memory.rounds import Post, Round

from ..messages.offloading import is_result
from ..messages.overlaid import is_summary
from ..messages.units import Unit
from ..view import View
from .tail import Place, Tail

__all__ = ["Stretch", "open_stretches", "past_runs"]

#: What a part of a round is to a stretch: a call with its results, what stands for such, what the role said of its own
#: accord, or what ends the stretch.
_Part = Literal["tools", "summary", "said", "end"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Units of one round with nothing between them, whatever the order in which their posts were recorded."""

    place: int
    #: As the log has it, and as it reads now.
    logged: Round
    round_: Round
    units: tuple[Unit, ...]
    #: The first and the last post that it reaches over, by number: also of those that a summary in it stands for.
    first_number: int
    last_number: int

    @property
    def posts(self) -> list[Post]:
        """Its posts as they read now, in the order of the log, each once."""
        posts = {post.number: post for unit in self.units for post in unit.posts if post is not None}
        return [posts[number] for number in sorted(posts)]


@dataclass(frozen=True, slots=True)
class _Block:
    """Units that go together, since between the posts of one stand those of another."""

    round_: Round
    units: tuple[Unit, ...]
    first: int
    last: int
    part: _Part

    def joined(self, other: _Block) -> _Block:
        together: _Part = "tools" if {self.part, other.part} <= {"tools", "said"} else "end"
        units = (*self.units, *other.units)
        return _Block(self.round_, units, self.first, max(self.last, other.last), together)


def past_runs(view: View, more_than: int, keep_last: int) -> Iterator[Stretch]:
    """Give the runs of more than *more_than* calls and results in the tail's closed rounds, oldest first.

    Whatever anybody said ends a run; so do a summary, what may not be reduced, and the newest *keep_last* posts.
    """
    kept = _newest(view, keep_last)
    for place in range(view.places.start, min(view.closed, view.places.stop)):
        logged = view.rounds[place]
        if len(logged.post_list) <= more_than:
            continue
        for part, found in groupby(_blocks(view, logged, place, kept), key=lambda block: block.part):
            if part == "tools":
                run = _stretch(place, logged, list(found))
                if len(run.posts) > max(more_than, 1):
                    yield run


def open_stretches(view: View, keep_last: int) -> Iterator[Stretch]:
    """Give what lies between the first and the last call of the open round, with what the role said in between.

    What anybody else said ends a stretch; so do what may not be reduced, the newest *keep_last* posts, and whatever has
    come since the role spoke last, with the call it made then: it has yet to read the results. Without those in which
    there is no call but such as a summary stands for already.
    """
    place = view.total - 1
    if place < view.closed or view.rounds[place].closed:
        return
    logged = view.rounds[place]
    said = max((post.number for post in logged.post_list if post.send_from == view.role), default=0)
    unread = {(place, post.number) for post in logged.post_list if post.number >= said}
    blocks = _blocks(view, logged, place, unread.union(_newest(view, keep_last)))
    for at_end, found in groupby(blocks, key=lambda block: block.part == "end"):
        stretch = [] if at_end else _without_ends(list(found))
        if any(block.part == "tools" for block in stretch):
            made = _stretch(place, logged, stretch)
            if made.first_number < made.last_number:
                yield made


def _newest(view: View, number: int) -> Collection[Place]:
    return Tail(view).newest(number) if number else ()


def _blocks(view: View, logged: Round, place: int, kept: Collection[Place]) -> list[_Block]:
    """Return a round's units as blocks that lie one behind the other in the log."""
    blocks: list[_Block] = []
    for block in sorted(_single_blocks(view, logged, place, kept), key=lambda block: block.first):
        if blocks and block.first <= blocks[-1].last:
            blocks.append(blocks.pop().joined(block))
        else:
            blocks.append(block)
    return blocks


def _single_blocks(view: View, logged: Round, place: int, kept: Collection[Place]) -> Iterator[_Block]:
    last_of = {one.first_number: one.last_number for one in view.reductions.of(logged.id)}
    for round_, unit in view.units(place):
        numbers = [post.number if post is not None else 0 for post in unit.posts]
        part = _part(view, unit)
        if not view.reducible(round_, unit) or any((place, number) in kept for number in numbers):
            part = "end"
        if part == "summary":
            numbers.append(last_of.get(numbers[0], numbers[0]))
            # One of a host's that stands for the query, too, stays: what the user said is in it.
            part = part if numbers[0] else "end"
        yield _Block(round_, (unit,), min(numbers), max(numbers), part)


def _part(view: View, unit: Unit) -> _Part:
    first = unit.posts[0]
    if first is None:
        return "end"
    if is_summary(first):
        return "summary"
    own = first.send_from == view.role
    if (own and first.tool_calls) or is_result(first) or (own and any(post and is_result(post) for post in unit.posts)):
        return "tools"
    return "said" if own else "end"


def _without_ends(blocks: list[_Block]) -> list[_Block]:
    """Return *blocks* without what the role said before the first call and after the last."""
    places = [place for place, block in enumerate(blocks) if block.part != "said"]
    return blocks[places[0] : places[-1] + 1] if places else []


def _stretch(place: int, logged: Round, blocks: list[_Block]) -> Stretch:
    units = tuple(unit for block in blocks for unit in block.units)
    return Stretch(place, logged, blocks[0].round_, units, blocks[0].first, blocks[-1].last)
