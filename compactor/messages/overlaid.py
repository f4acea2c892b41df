"""A round as it reads now: its overlays applied, and what was to be seen only once left out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import is_

from memory.frozen import freeze_mapping
from memory.messages import repeats_query, with_text, without_calls, without_content
from memory.overlays import Reduction
from memory.reading.references import post_reference
from memory.rounds import Post, Round

__all__ = ["ARGUMENTS", "EPHEMERAL", "OVERLAY", "TOLD", "is_summary", "overlaid", "tells_of_drops"]

#: Under this key of its ``extra``, a post that reads otherwise than the log has it says why.
OVERLAY = "compactor.overlay"
#: Under this key of its ``extra``, a reduction has what stands for the arguments of calls, by the call's number from 0.
ARGUMENTS = "arguments"
#: How the kind of a post begins that leaves the prompt after the next model call: ``ephemeral:screenshot``. The newest
#: ``extra["keep"]`` of a name, none by default, stay until their round is closed.
EPHEMERAL = "ephemeral:"
#: Under this key of its ``extra``, a reduction says whether prompts tell that it dropped something: unless it is False.
TOLD = "told"


def overlaid(round_: Round, reductions: Sequence[Reduction], role: str) -> Round:
    """Return *round_* as *role* reads it now; the same object where nothing covers any of it."""
    if not reductions and not _any_ephemeral(round_.post_list):
        return round_
    shown = _with_query(round_, reductions)
    # What stands for the query stands before all else; so does what stands for the post that repeats it alone.
    again = round_.post_list[0].number if len(shown.post_list) < len(round_.post_list) else 0
    before = [one for one in reductions if one.kind == "summarised" and (one.covers(0) or one.covers(again))]
    posts = [_summary(one, round_, role) for one in before]
    for post in shown.post_list:
        reduction = _covering(reductions, post.number)
        if reduction is None:
            posts.append(post)
        elif reduction.kind == "offloaded":
            posts.append(_reading(_with_arguments(post, reduction), reduction.text, reduction.kind))
        elif reduction.kind == "summarised" and not (posts and posts[-1].id == _summary_id(reduction)):
            posts.append(_summary(reduction, round_, role))
    kept = _without_ephemeral(round_, posts, role)
    if shown is round_ and len(kept) == len(round_.post_list) and all(map(is_, kept, round_.post_list)):
        return round_
    return shown.model_copy(update={"post_list": tuple(kept)})


def tells_of_drops(reductions: Sequence[Reduction]) -> bool:
    """Return whether a round has posts that were dropped, and prompts are to say so."""
    return any(one.kind == "dropped" and one.extra.get(TOLD) is not False for one in reductions)


def is_summary(post: Post) -> bool:
    """Return whether *post* stands for several others, and was said by nobody."""
    return post.extra.get(OVERLAY) == "summarised"


def _covering(reductions: Sequence[Reduction], number: int) -> Reduction | None:
    """Return which of *reductions*, in the order of their posts, covers the post of that number."""
    place = bisect_left(reductions, number, key=lambda one: one.last_number)
    found = reductions[place] if place < len(reductions) else None
    return found if found is not None and found.covers(number) else None


def _with_query(round_: Round, reductions: Sequence[Reduction]) -> Round:
    """Return *round_* with its query as it reads now. A post that hands the query on stands or falls with it."""
    again = bool(round_.post_list) and repeats_query(round_.post_list[0], round_)
    for reduction in reductions:
        if reduction.covers(0) or (again and reduction.covers(round_.post_list[0].number)):
            text = reduction.text if reduction.kind == "offloaded" else ""
            extra = without_content(round_.extra) if text else {}
            changed = round_.model_copy(
                update={"user_query": text, "extra": freeze_mapping({**extra, OVERLAY: reduction.kind})}
            )
            return changed.model_copy(update={"post_list": round_.post_list[1:]}) if again else changed
    return round_


def _with_arguments(post: Post, reduction: Reduction) -> Post:
    """Return *post* with the arguments of its calls as they read now."""
    left = reduction.extra.get(ARGUMENTS)
    if not isinstance(left, Mapping):
        return post
    calls = tuple(
        call.model_copy(update={"arguments": left.get(str(number), call.arguments)})
        for number, call in enumerate(post.tool_calls)
    )
    return post.model_copy(update={"tool_calls": calls, "extra": freeze_mapping(without_calls(post.extra))})


def _reading(post: Post, text: str, why: str) -> Post:
    extra = freeze_mapping({**with_text(post.extra, text), OVERLAY: why})
    return post.model_copy(update={"message": text, "attachment_list": (), "extra": extra})


def _summary_id(reduction: Reduction) -> str:
    return f"{reduction.first_post_id}..{reduction.last_post_id}"


def _summary(reduction: Reduction, round_: Round, role: str) -> Post:
    return Post(
        id=_summary_id(reduction),
        send_from="context",
        send_to=role,
        message=reduction.text,
        kind="summary",
        number=reduction.first_number,
        created_at=round_.created_at,
        extra=freeze_mapping({OVERLAY: reduction.kind}),
    )


def _without_ephemeral(round_: Round, posts: list[Post], role: str) -> list[Post]:
    """Return *posts* without those that the role has seen once, as it has when it has spoken since."""
    if not _any_ephemeral(posts):
        return posts
    # In the log: what it said counts though it is left out.
    said = max((post.number for post in round_.post_list if post.send_from == role), default=0)
    shown: list[Post] = []
    newer: dict[str, int] = {}
    for post in reversed(posts):
        if not post.kind.startswith(EPHEMERAL) or post.tool_calls:
            shown.append(post)
            continue
        newer[post.kind] = newer.get(post.kind, 0) + 1
        if not round_.closed and (post.number > said or newer[post.kind] <= _kept(post)):
            shown.append(post)
        elif post.tool_call_id is not None:  # its call would be left without an answer
            line = f"[Was to be seen once, and is left out now; reload {post_reference(round_, post)}]"
            shown.append(_reading(post, line, "ephemeral"))
    return shown[::-1]


def _any_ephemeral(posts: Sequence[Post]) -> bool:
    return bool([post for post in posts if post.kind.startswith(EPHEMERAL)])


def _kept(post: Post) -> int:
    keep = post.extra.get("keep", 0)
    return keep if isinstance(keep, int) else 0
