"""What compaction wrote into messages, taken off for whoever chooses lines of them: nobody said it."""

from __future__ import annotations

import json

from memory.rounds import Post, Round, ToolCall

from .offloading import LEFT_OUT

__all__ = ["FORBIDS", "as_said", "without_marks"]

#: Heads what the user forbade in a message that reads shorter.
FORBIDS = "[In it the user forbids, word for word:]"
#: One of these is in each line that stands for what is left out.
_WORDS = ("kept in full", "left out; reload ", "Left out; reload ", "left out now; reload ")
#: No such line is longer, in characters.
_LONGEST = 600


def as_said(round_: Round) -> Round:
    """Return *round_* without the lines that compaction put into it; the same object where there are none."""
    query = without_marks(round_.user_query)
    posts = tuple(map(_post_as_said, round_.post_list))
    if query == round_.user_query and all(map(lambda new, old: new is old, posts, round_.post_list)):
        return round_
    return round_.model_copy(update={"user_query": query, "post_list": posts})


def without_marks(text: str) -> str:
    """Return *text* without the lines that say what is left out of it, or what it stands for."""
    if not any(words in text for words in (*_WORDS, FORBIDS)):
        return text
    return "\n".join(line for line in text.split("\n") if not _is_mark(line))


def _is_mark(line: str) -> bool:
    if len(line) > _LONGEST or not (line.startswith("[") and line.endswith("]")):
        return False
    return line == FORBIDS or any(words in line for words in _WORDS)


def _post_as_said(post: Post) -> Post:
    message, calls = without_marks(post.message), tuple(map(_call_as_said, post.tool_calls))
    if message == post.message and calls == post.tool_calls:
        return post
    return post.model_copy(update={"message": message, "tool_calls": calls})


def _call_as_said(call: ToolCall) -> ToolCall:
    """Return *call* with the beginning of its arguments where only that is left of them."""
    if not call.arguments.startswith(f'{{"{LEFT_OUT}": '):
        return call
    try:
        left = json.loads(call.arguments)
    except ValueError:
        return call
    begins = left.get("begins", "")
    if left.keys() - {LEFT_OUT, "begins"} or not isinstance(begins, str):
        return call
    return call.model_copy(update={"arguments": f"{begins}…"})
