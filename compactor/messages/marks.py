"""What compaction wrote into messages, taken off for whoever chooses lines of them: nobody said it."""

from __future__ import annotations

import json
import re

from memory.rounds import USER, Post, Round, ToolCall

from .offloading import LEFT_OUT
from .overlaid import OVERLAY

__all__ = ["FORBIDS", "as_said", "without_marks"]

#: Heads what the user forbade in a message that reads shorter.
FORBIDS = "[In it the user forbids, word for word:]"
#: One of these is in each line that stands for what is left out.
_WORDS = ("kept in full", "left out; reload ", "Left out; reload ", "left out now; reload ")
#: No such line is longer, in characters.
_LONGEST = 600

_RELOAD = r"reload r\d{1,12}(?:-r\d{1,12}|\.p\d{1,12}(?:-p\d{1,12})?)?"
_CHARACTERS = r"\d{1,3}(?:,\d{3})* characters"
_SIZE = rf"{_CHARACTERS}, about [\d,]{{1,20}} tokens"
_IN_FILE = rf" in the file .+; (?:{_RELOAD}|read_file gives it, grep searches it)"
_CALLS = "tool calls that were made already and are not to be made again, and of their results"
#: Every form of such a line, strictly: others may say in brackets, too, that something is kept in full.
_FORMS = (
    rf"(?:{_SIZE}|.{{1,200}}, {_CHARACTERS}), left out here and kept in full(?:; {_RELOAD}|{_IN_FILE}| by the host)",
    rf"Summary of (?:{_CALLS}|the {_SIZE}, that .{{1,200}} here), kept in full; {_RELOAD}",
    rf"(?:Left out|{_CHARACTERS} left out|Was to be seen once, and is left out now); {_RELOAD}",
    rf"\.\.\. [\d,]{{1,20}} of {_CHARACTERS} left out; {_RELOAD} \.\.\.",
    r"Left out here to save space, and kept in full: .{1,400}\(reload .{1,60}\)\.",
)
_LINE = re.compile(rf"\[(?:{'|'.join(_FORMS)})\]")


def as_said(round_: Round) -> Round:
    """Return *round_* without the lines that compaction put into it; the same object where there are none.

    What the user said stays as it is, unless an overlay has shortened it.
    """
    query = without_marks(round_.user_query) if OVERLAY in round_.extra else round_.user_query
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
    return line == FORBIDS or _LINE.fullmatch(line) is not None


def _post_as_said(post: Post) -> Post:
    if post.send_from == USER and OVERLAY not in post.extra:
        return post
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
