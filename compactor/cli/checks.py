"""What a prompt promises, looked up in its messages: nothing here is taken from who made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..prompt.groups import PROMPT_TOKENS, count_message
from ..tokens import TokenCounter

Messages = Sequence[Mapping[str, Any]]


def tokens_of(messages: Messages, count: TokenCounter) -> int:
    """Return what *messages* cost, counted anew."""
    return PROMPT_TOKENS + sum(count_message(message, count) for message in messages)


def torn(messages: Messages) -> int:
    """Return how many tool calls lack their result, and how many results their call.

    As providers look at it: a call's results follow it at once. Those of the last call may still be to come.
    """
    wrong, unanswered = 0, Counter[str]()
    for message in messages:
        if message["role"] == "tool":
            call_id = str(message.get("tool_call_id"))
            wrong += unanswered[call_id] < 1
            unanswered[call_id] = max(unanswered[call_id] - 1, 0)
        else:
            wrong += unanswered.total()
            unanswered = _calls(message)
    return wrong


def waiting(messages: Messages) -> int:
    """Return how many calls at the end of *messages* have no result yet."""
    answered = Counter[str]()
    for message in reversed(messages):
        if message["role"] != "tool":
            return (_calls(message) - answered).total()
        answered[str(message.get("tool_call_id"))] += 1
    return 0


def is_whole(message: Mapping[str, Any], messages: Messages, earlier: Messages = ()) -> bool:
    """Return whether *message* stands among *messages* as it is, and none of those *earlier* behind it: an earlier one
    that says the same, "yes" for instance, does not stand for it."""
    place = max((place for place, one in enumerate(messages) if one == message), default=None)
    return place is not None and not any(one in earlier for one in messages[place + 1 :] if one["role"] == "user")


def _calls(message: Mapping[str, Any]) -> Counter[str]:
    calls = message.get("tool_calls") if message["role"] == "assistant" else None
    return Counter(str(call["id"]) for call in calls or () if isinstance(call, Mapping) and "id" in call)
