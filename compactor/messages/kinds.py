"""The kinds of posts that rules name, by any spelling of theirs."""

from __future__ import annotations

import difflib
import re

__all__ = ["ATTACHMENT", "FAILED_CALL", "kind_named"]

#: How a kind begins that means posts with an attachment of that type: ``attachment:plan``.
ATTACHMENT = "attachment:"
#: Calls all of whose results say that they failed, with these results.
FAILED_CALL = "failed_call"
#: What is known, by its letters alone, and what else it is called.
_KNOWN = {
    **dict.fromkeys(("toolresult", "toolmessage"), "tool_result"),
    **dict.fromkeys(("assistant", "assistantmessage"), "assistant"),
    **dict.fromkeys(("user", "usermessage"), "user"),
    **dict.fromkeys(("failedcall", "failedtoolcall"), FAILED_CALL),
    "skillprompt": "skill_prompt",
    "skillmetadata": "skill_metadata",
}
#: What no rule reduces: header and summary.
_STAYS = {
    "systemprompt",
    "systemmessage",
    "system",
    "developer",
    "subagentstrategy",
    "skillstrategy",
    "compactionsummary",
}


def kind_named(name: object, *, stays: bool = False) -> str:
    """Return the kind that *name* means: ``tool_result`` for ``TOOL_RESULT``, ``ToolResult`` and an enum's member; a
    host's own ``Post.kind`` as it is.

    Raises ``ValueError`` for what is no kind, with what may have been meant; and unless *stays*, for the header and the
    summary, which no rule reduces.
    """
    name = getattr(name, "value", name)
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"a kind is a name such as 'tool_result' or 'attachment:plan', not {name!r}")
    if name[: len(ATTACHMENT)].lower() == ATTACHMENT:
        if not name[len(ATTACHMENT) :]:
            raise ValueError(f"a kind is a name such as 'tool_result' or 'attachment:plan', not {name!r}")
        return ATTACHMENT + name[len(ATTACHMENT) :]
    letters = re.sub(r"[\W_]+", "", name).lower()
    for spelled in (letters, letters.removesuffix("s")):
        if spelled in _KNOWN:
            return _KNOWN[spelled]
        if spelled in _STAYS and not stays:
            raise ValueError(f"{name!r} stays whatever a rule says: leave it out")
    if letters in _STAYS:
        return name
    near = difflib.get_close_matches(letters, _KNOWN, 1, 0.8)
    if near:
        raise ValueError(f"there is no kind {name!r}; did you mean {_KNOWN[near[0]]!r}?")
    if name != name.lower():
        kinds = ", ".join(dict.fromkeys(_KNOWN.values()))
        raise ValueError(
            f"there is no kind {name!r}; there are {kinds}, attachment:<type>, and any Post.kind in small letters"
        )
    return name
