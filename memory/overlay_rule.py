"""Which of two overlays on a round stands, and which spans of a round may be covered at all."""

from __future__ import annotations

from collections.abc import Sequence

from .messages import paired
from .overlays import Reduction
from .rounds import Round

__all__ = ["laid", "tears"]


def laid(live: Sequence[Reduction], new: Reduction) -> tuple[Reduction, ...] | None:
    """Return a round's *live* reductions with *new* among them, in the order of their posts; None: *new* is ignored.

    It takes the place of those that it strictly contains. One that equals a live one, lies inside it or partly
    overlaps it is ignored: a late result never hides a newer one.
    """
    met = [one for one in live if one.first_number <= new.last_number and new.first_number <= one.last_number]
    if not all(_contains(new, one) for one in met):
        return None
    return tuple(sorted([*(one for one in live if one not in met), new], key=lambda one: one.first_number))


def _contains(new: Reduction, old: Reduction) -> bool:
    wider = new.first_number < old.first_number or new.last_number > old.last_number
    return wider and new.first_number <= old.first_number and new.last_number >= old.last_number


def tears(reduction: Reduction, round_: Round, role: str) -> bool:
    """Return whether *reduction* hides a call and not all of its results, or a result and not its call.

    A call at the end of an open round that waits for its results counts as torn. *round_* is as *role* sees it.
    """
    if reduction.kind == "offloaded":
        return False  # message and calls stay, only the text is another
    posts = round_.post_list
    pairs = paired(posts, role)
    answers = {at for results in pairs.values() for at in results.values()}
    newest = max((at for at in range(len(posts)) if at not in answers), default=-1)
    for place, results in pairs.items():
        covered = {reduction.covers(posts[at].number) for at in (place, *results.values())}
        if len(covered) > 1:
            return True
        waits = not round_.closed and place == newest and len(results) < len(posts[place].tool_calls)
        if waits and True in covered:
            return True
    return False
