"""Rounds and posts without what they said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..frozen import EMPTY, FrozenMapping, freeze_mapping
from ..messages import FUNCTION, KEPT, came_as_message
from ..rounds import Extra, Post, Round

__all__ = ["REDACTED", "redacted", "stripped", "without"]

#: What is read where a text was erased.
REDACTED = "[Redacted]"


def without(round_: Round, numbers: Iterable[int]) -> Round:
    """Return *round_* with the posts of these *numbers* erased."""
    numbers = frozenset(numbers)
    posts = tuple(redacted(post) if post.number in numbers else post for post in round_.post_list)
    query = {"user_query": REDACTED, "extra": stripped(round_.extra)} if 0 in numbers else {}
    return round_.model_copy(update={"post_list": posts} | query)


def redacted(post: Post) -> Post:
    """Return *post* without what it says. Ids and the names of tools stay, so that no call loses its result."""
    return post.model_copy(
        update={
            "message": REDACTED,
            "attachment_list": (),
            "tool_calls": tuple(call.model_copy(update={"arguments": "{}"}) for call in post.tool_calls),
            "extra": stripped(post.extra, named=post.send_from == FUNCTION),
        }
    )


def stripped(extra: Extra, *, named: bool = False) -> FrozenMapping:
    """Return of *extra* that it came in as a message, and what pairs calls of the old form with their results."""
    if not came_as_message(extra):
        return EMPTY
    kept: object = extra[KEPT]
    left: dict[str, object] = {}
    if isinstance(kept, Mapping):
        call = kept.get("function_call")
        if isinstance(call, Mapping):
            left["function_call"] = {"name": call.get("name"), "arguments": "{}"}
        if named:
            left["name"] = kept.get("name")
    return freeze_mapping({KEPT: left})
