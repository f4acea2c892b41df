"""Reload by reference: ``r12`` is round 12 of the log, ``r12.p3`` its third post, ``r12.p0`` the user's query."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .errors import UnknownReference
from .messages import repeats_query, text_with_calls
from .rounds import USER, Post, Round

__all__ = ["post_reference", "range_reference", "round_text", "text_behind"]

_REFERENCE = re.compile(r"r(\d{1,12})(?:\.p(\d{1,12})|-r?(\d{1,12}))?", re.ASCII)


def post_reference(round_: Round, post: Post | None) -> str:
    """Return the reference of a post, or of the round's user query for None."""
    return f"r{round_.number}.p{post.number if post else 0}"


def range_reference(first: int, last: int) -> str:
    """Return the reference of rounds *first* to *last* of the log."""
    return f"r{first}" if first == last else f"r{first}-r{last}"


def text_behind(rounds: Sequence[Round], ref: str, *, hide_failed: bool = False) -> str:
    """Return the original text behind *ref*; *rounds* are all rounds of the log. May raise ``UnknownReference``."""
    match = _REFERENCE.fullmatch(ref)
    if match is None:
        raise UnknownReference(f"{ref[:40]!r} is not a reference; they look like r12, r3-r9 or r12.p3")
    first, place, last = (int(part) if part is not None else None for part in match.groups())
    assert first is not None  # noqa: S101  (the pattern's first group always matches)
    final = first if last is None else last
    if not 1 <= first <= final <= len(rounds):
        raise UnknownReference(f"there is no {ref}: rounds are numbered from 1, and this session has {len(rounds)}")
    found = [round_ for round_ in rounds[first - 1 : final] if not (hide_failed and round_.state == "failed")]
    if not found:
        raise UnknownReference(f"there is no {ref} to see: what failed is hidden; give another reference")
    if place is None:
        return "\n\n".join(map(round_text, found))
    if place == 0:
        return found[0].user_query
    for post in found[0].post_list:
        if post.number == place:
            return text_with_calls(post)
    raise UnknownReference(f"there is no {ref} to see; give r{first} for the whole round")


def round_text(round_: Round) -> str:
    """Return a round as text to read: who said what to whom, calls and results included."""
    return "\n".join(_lines(round_))


def _lines(round_: Round) -> Iterator[str]:
    yield f"[Round {round_.number}]"
    if round_.user_query:
        yield f"{USER}: {round_.user_query}"
    for place, post in enumerate(round_.post_list):
        if place == 0 and repeats_query(post, round_) and not post.attachment_list:
            continue
        to = f" (result of {post.tool_call_id})" if post.tool_call_id is not None else f" to {post.send_to}"
        yield f"{post.send_from}{to}: {text_with_calls(post)}"
