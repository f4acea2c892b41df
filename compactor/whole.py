"""What a prompt shows of a tail that fits: all of it. As most do, so this is short; else there is ``ladder``."""

from __future__ import annotations

from .messages.kept_rounds import own
from .messages.pieces import Fitted, Head
from .messages.units import PROMPT_TOKENS, count_message
from .view import View

__all__ = ["whole"]


def whole(view: View, head: Head, limit: int, tool_tokens: int) -> Fitted | None:
    """Return the prompt of *head* and the tail as it reads, where that is at most *limit* tokens beside those of tools.

    None where it is longer; and where it is not made of these alone, in this order: with a plan in between, with a line
    that tells of dropped posts, with a covered round in front because the user has not spoken since, or with a round
    that is not known from the prompt before.
    """
    start, closed, sums, ledger = view.end, view.closed, view.sums, view.ledger
    if head.plan is not None or not start <= closed <= sums.stop or view.first_dropped:
        return None
    first, last = sums[start], sums[closed]
    tokens = PROMPT_TOKENS + view.header_tokens - tool_tokens + last.tokens - first.tokens
    if head.compaction is not None:
        tokens += count_message(head.compaction, ledger.recounted)
    asked = last.asked is not None and last.asked >= start
    for round_, unit in view.growing:
        tokens += sum(view.costs(round_, unit))
        asked = asked or unit.from_user
    if not asked or tokens > limit:
        return None
    messages = head.messages()
    for kept in view.kept_among(range(start, closed)):
        if kept is None:
            return None
        messages += kept.own_messages()
    for _, unit in view.growing:
        messages += map(own, unit.messages)
    return Fitted(messages, tokens, tokens)
