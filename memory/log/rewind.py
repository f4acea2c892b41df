"""Going on from an earlier place: what is undone behind it, one entry a round.

A place inside a round undoes all of that round, and a new one begins with copies of the posts up to there. So the posts
of a closed round stay as they are, and whatever was made from a round is true of it or goes with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..entries import PostAdded, PostPinned, ReductionPublished, RoundUndone
from ..errors import UnknownReference
from ..messages import make_query_message
from ..overlays import hides_words, tie_calls
from ..references import Reference, make_posts_reference, make_reference, parse_reference
from ..rounds import Record, Round, copy_with

if TYPE_CHECKING:
    from .state import Snapshot


def resolve_rewind_point(now: Snapshot, ref: str) -> Reference:
    """Return the place that *ref* names, if the conversation can go on from there: ``r5``, ``r5.p3`` or ``r0``. Raises
    ``UnknownReference``."""
    reference = parse_reference(ref)
    number, post = reference.first, reference.first_post
    if (number, post) != (reference.last, reference.last_post):
        raise UnknownReference(
            f"{ref} names several posts or rounds; give the last one that stays, such as r5 or r5.p3"
        )
    if number > now.total or (number == 0 and post is not None):
        raise UnknownReference(f"there is no {ref}: this session has {now.total} rounds; r0 is their beginning")
    if number == 0:
        return reference
    round_ = now.get_round_at(number)
    if round_.is_hidden:
        how = "was undone" if round_.state == "undone" else "has failed"
        raise UnknownReference(
            f"round {number} {how}: nothing goes on from {ref}; give a reference to a round that is shown"
        )
    if post is not None:
        if post not in (0, *(one.number for one in round_.post_list)) or (
            post == 0 and make_query_message(round_) is None
        ):
            raise UnknownReference(f"there is no {ref} in this session")
        if (safe := find_cut(round_, post)) != post:
            remedy = f"give {make_reference(number, safe)}, before the call, or a reference behind the results"
            raise UnknownReference(f"{ref} stands between a call and its results; {remedy}")
    return reference


def find_cut(round_: Round, post: int) -> int:
    """Return the number of the last post up to *post* behind which no call is parted from its results."""
    closed = copy_with(round_, state="finished")  # here, a call that waits for results ends where it stands
    callers = {one.send_from for one in round_.post_list if one.tool_calls}
    spans = {span for caller in callers for span in tie_calls(closed, caller).values()}
    while torn := [first for first, last in spans if first <= post < last]:
        post = min(torn) - 1
    return post


def find_part_to_copy(now: Snapshot, reference: Reference) -> Round | None:
    """Return the round at *reference* with its posts up to there, if the conversation goes on inside it. None if that
    is a whole round, or the end of an open one: that goes on as it is."""
    if reference.first_post is None:
        return None
    round_, post = now.get_round_at(reference.first), reference.first_post
    left = tuple(one for one in round_.post_list if one.number <= post)
    return None if not round_.closed and len(left) == len(round_.post_list) else copy_with(round_, post_list=left)


def undo_after(now: Snapshot, last: int, ids: dict[int, str]) -> dict[int, RoundUndone]:
    """Return by number the records that undo every round behind the first *last*, oldest first. Adds to *ids*, the
    known ids of rounds by number."""
    behind = sorted(set(range(last + 1, now.total + 1)).difference(now.hidden))
    for number in behind:
        if number not in ids:
            ids[number] = now.get_round_at(number).id
            now.archive.numbers[ids[number]] = number  # so that the store is not asked for each
    return {number: RoundUndone(round_id=ids[number]) for number in behind}


def copy_part(now: Snapshot, part: Round, round_id: str) -> Iterator[Record]:
    """Yield the records behind its opening that make the round *round_id* of *part*, with its pins, and with the
    reductions of posts that their role has read there and that are not the user's newest words."""
    last, copied = find_last_number(part), copy_with(part, number=now.total + 1)
    for post in part.post_list:
        yield PostAdded(round_id=round_id, post=post)
    for pinned in now.pinned:
        if pinned.round == part.number and pinned.number <= last:
            yield PostPinned(round_id=round_id, number=pinned.number)
    for role in now.reductions:
        spoken = max((post.number for post in part.post_list if post.send_from == role), default=0)
        for one in now.list_reductions(role, part.id):
            if one.last_number < spoken and not hides_words(one, part):
                # Another reference reloads it.
                old, new = (make_posts_reference(of, one.first_number, one.last_number) for of in (part, copied))
                text = re.sub(rf"\b{old}(?![-\d])", new, one.text)
                yield ReductionPublished(role=role, reduction=copy_with(one, round_id=round_id, text=text))


def is_undone(now: Snapshot, number: int, post: int) -> bool:
    """Return whether that *post* of the round *number* was undone with all copies of it. May raise ``StoreError``."""
    while number in now.hidden and number not in now.failed:
        round_id, copied = now.continued.get(number, ("", -1))
        number = now.find_number(round_id) if post <= copied else 0
        if not number:
            return True
    return False


def find_last_number(round_: Round) -> int:
    """Return the number of the last post; 0 if there is none."""
    return round_.post_list[-1].number if round_.post_list else 0
