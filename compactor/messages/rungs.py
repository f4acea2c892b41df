"""The rungs of the prompt's ladder that shorten a text and leave the message: large payloads, then old tool results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from memory.messages import reads, text_of
from memory.rounds import Post, Round

from ..tokens import TokenCounter
from .offloading import OffloadRule, is_result
from .overlaid import OVERLAY
from .pieces import Piece
from .units import Message, Unit, count_message, reading

__all__ = ["LAST", "RUNGS", "Shortened", "costs_by_rung", "is_pinned", "lighter", "shortened", "shows_preview"]

#: From light to heavy: large payloads are offloaded, then smaller tool results, then tool results are cleared, previews
#: of large ones as well: so that of no small one less is shown than of a large one. The strategies are the same rules,
#: run in the background.
_LARGE = OffloadRule()
RUNGS = (
    _LARGE,
    OffloadRule(threshold=400, up_to=_LARGE.threshold, kinds=("tool_result",)),
    OffloadRule(threshold=120, preview=0, kinds=("tool_result",), again=True),
)


#: The place of the heaviest.
LAST = len(RUNGS) - 1


class Shortened(NamedTuple):
    """A unit some of whose messages read shorter, and what each of its messages costs then."""

    unit: Unit
    costs: tuple[int, ...]
    #: Which of its messages do, by their places.
    places: tuple[int, ...]


def shortened(round_: Round, unit: Unit, costs: Sequence[int], rule: OffloadRule, count: TokenCounter) -> Shortened:
    """Return *unit* with the texts that *rule* takes out of it replaced, none by a longer one."""
    messages: list[Message] = []
    after = list(costs)
    changed: list[int] = []
    for place, post in enumerate(unit.posts):
        if post is None or (place and post is unit.posts[0]):  # a call stands for each result that it lacks
            continue
        reduction = rule.applied(round_, post, count, cost=costs[place])
        if reduction is None:
            continue
        if not messages:
            messages = list(unit.messages)
        message = {**messages[place], "content": reads(messages[place].get("content"), reduction.text)}
        tokens = count_message(message, count)
        if tokens < costs[place]:
            messages[place], after[place] = message, tokens
            changed.append(place)
    if not changed:
        return Shortened(unit, tuple(costs), ())
    return Shortened(reading(unit, tuple(messages)), tuple(after), tuple(changed))


def lighter(round_: Round, unit: Unit, costs: Sequence[int], count: TokenCounter) -> tuple[tuple[int, ...], ...]:
    """Return what each of *unit*'s messages costs on each rung; *costs* are what they cost before the first."""
    if not any(map(_may_be_long, unit.posts)):
        return (tuple(costs),) * len(RUNGS)
    found: list[tuple[int, ...]] = []
    for rule in RUNGS:
        unit, costs, _ = shortened(round_, unit, costs, rule, count)
        found.append(tuple(costs))
    return tuple(found)


def shows_preview(unit: Unit) -> bool:
    """Return whether the first rung, or a strategy before, has left but the beginning of a result in *unit*."""
    results = [post for post in unit.posts if post is not None and is_result(post)]
    return any(OVERLAY in post.extra or len(text_of(post)) > _LARGE.threshold for post in results)


def _may_be_long(post: Post | None) -> bool:
    """Return whether a rule is worth asking: of most posts, none is."""
    return post is not None and (
        len(post.message) > RUNGS[0].threshold or bool(post.attachment_list) or is_result(post)
    )


def costs_by_rung(pieces: Sequence[Piece], count: TokenCounter) -> tuple[int, ...]:
    """Return the tokens of a round in *pieces* on each rung; what waits or is pinned is not shortened."""
    totals = [0] * len(RUNGS)
    for piece in pieces:
        unit, costs = piece.unit, piece.costs
        stays = unit.pending or piece.pinned
        by_rung = (costs,) * len(RUNGS) if stays else lighter(piece.round_, unit, costs, count)
        totals = [total + sum(shorter) for total, shorter in zip(totals, by_rung, strict=True)]
    return tuple(totals)


def is_pinned(unit: Unit, pinned: Collection[int]) -> bool:
    """Return whether one of *unit*'s posts is *pinned*, by number; 0 is the query."""
    return bool(pinned) and any((post.number if post else 0) in pinned for post in unit.posts)
