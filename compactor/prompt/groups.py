"""A round as the messages a model reads: overlays applied, and in groups that stay together."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_
from typing import Any

from memory.arguments import find_near
from memory.messages import (
    FUNCTION,
    TOOL,
    from_post,
    has_result_parts,
    make_query_message,
    pair_results,
    repeats_query,
    with_text,
    without_calls,
)
from memory.overlays import Reduction
from memory.references import make_post_reference
from memory.rounds import ATOMS, USER, Post, Round, ToolCall, copy_with, freeze_mapping, thaw
from memory.search import RECALL_TOOLS
from memory.values import ValueObject

#: How a kind begins that means posts with an attachment of that type: ``attachment:plan``.
ATTACHMENT = "attachment:"
#: Calls all of whose results say that they failed, with these results.
FAILED_CALL = "failed_call"
#: The kinds by the letters of their names, other spellings included.
_KIND_BY_SPELLING = {
    **dict.fromkeys(("toolresult", "toolmessage"), "tool_result"),
    **dict.fromkeys(("assistant", "assistantmessage"), "assistant"),
    **dict.fromkeys(("user", "usermessage"), "user"),
    **dict.fromkeys(("failedcall", "failedtoolcall"), FAILED_CALL),
    "skillprompt": "skill_prompt",
    "skillmetadata": "skill_metadata",
}
#: What no rule reduces: header and summary.
_STAYS = {"systemprompt", "systemmessage", "system", "developer"}
_STAYS |= {"subagentstrategy", "skillstrategy", "compactionsummary"}


def parse_kind(name: object, *, stays: bool = False) -> str:
    """Return the kind that *name* means: ``tool_result`` for ``TOOL_RESULT``, ``ToolResult`` and an enum's member; a
    host's own ``Post.kind`` as it is.

    Raises ``ValueError`` for a name that is no kind, with a suggestion; and unless *stays*, for the header and the
    summary, which no rule reduces.
    """
    name = getattr(name, "value", name)
    if not isinstance(name, str) or not name.strip() or name.lower() == ATTACHMENT:
        raise ValueError(f"a kind is a name such as 'tool_result' or 'attachment:plan', not {name!r}")
    if name[: len(ATTACHMENT)].lower() == ATTACHMENT:
        return ATTACHMENT + name[len(ATTACHMENT) :]
    letters = re.sub(r"[\W_]+", "", name).lower()
    for spelled in (letters, letters.removesuffix("s")):
        if spelled in _KIND_BY_SPELLING:
            return _KIND_BY_SPELLING[spelled]
        if spelled in _STAYS and not stays:
            raise ValueError(f"{name!r} stays whatever a rule says: leave it out")
    if letters in _STAYS:
        return name
    if near := find_near(letters, _KIND_BY_SPELLING, 0.8):
        raise ValueError(f"there is no kind {name!r}; did you mean {_KIND_BY_SPELLING[near]!r}?")
    if name != name.lower():
        kinds = ", ".join(dict.fromkeys(_KIND_BY_SPELLING.values()))
        raise ValueError(
            f"there is no kind {name!r}; there are {kinds}, attachment:<type>, and any Post.kind in small letters"
        )
    return name


#: Under this key of its ``extra``, a post that reads otherwise than the log has it says why.
OVERLAY = "compactor.overlay"
#: Under this key of its ``extra``, a post that stands for several has the number of the last.
LAST_NUMBER = "compactor.last_number"
#: Under this key of its ``extra``, a reduction has what stands for the arguments of calls, by the call's number from 0.
ARGUMENTS = "arguments"
#: How the kind of a post begins that leaves the prompt after the next model call: ``ephemeral:screenshot``. The newest
#: ``extra["keep"]`` of a name, none by default, stay until their round is closed.
EPHEMERAL = "ephemeral:"
#: Under this key of its ``extra``, a reduction says whether prompts tell that it dropped something: unless it is False.
TELLS_DROP = "told"


def apply_overlays(round_: Round, reductions: Sequence[Reduction], role: str) -> Round:
    """Return *round_* as *role* reads it now; the same object if nothing in it reads otherwise."""
    if not reductions and not [post for post in round_.post_list if post.kind.startswith(EPHEMERAL)]:
        return round_
    shown = _overlay_query(round_, reductions)
    # What stands for the query stands before all else; so does what stands for the post that repeats it alone.
    again = round_.post_list[0].number if len(shown.post_list) < len(round_.post_list) else 0
    before = [one for one in reductions if one.kind == "summarised" and (one.covers(0) or one.covers(again))]
    posts = [_make_summary(one, round_, role) for one in before]
    for post in shown.post_list:
        reduction = _find_covering(reductions, post.number)
        if reduction is None:
            posts.append(post)
        elif reduction.kind == "offloaded":
            posts.append(_offload(post, reduction))
        elif reduction.kind == "summarised" and not (posts and posts[-1].id == _make_summary_id(reduction)):
            posts.append(_make_summary(reduction, round_, role))
    kept = _drop_ephemeral(round_, posts, role)
    if shown is round_ and len(kept) == len(round_.post_list) and all(map(is_, kept, round_.post_list)):
        return round_
    return copy_with(shown, post_list=tuple(kept))


def tells_of_drops(reductions: Sequence[Reduction]) -> bool:
    """Return whether a round has posts that were dropped, and prompts are to say so."""
    return any(one.kind == "dropped" and one.extra.get(TELLS_DROP) is not False for one in reductions)


def is_summary(post: Post) -> bool:
    """Return whether *post* stands for several others, and was said by nobody."""
    return post.extra.get(OVERLAY) == "summarised"


def _find_covering(reductions: Sequence[Reduction], number: int) -> Reduction | None:
    """Return which of *reductions*, in the order of their posts, covers the post of that number."""
    place = bisect_left(reductions, number, key=lambda one: one.last_number)
    return reductions[place] if place < len(reductions) and reductions[place].covers(number) else None


def _overlay_query(round_: Round, reductions: Sequence[Reduction]) -> Round:
    """Return *round_* with its query as it reads now. A post that hands the query on stands or falls with it."""
    again = bool(round_.post_list) and repeats_query(round_.post_list[0], round_)
    for reduction in reductions:
        if reduction.covers(0) or (again and reduction.covers(round_.post_list[0].number)):
            text = reduction.text if reduction.kind == "offloaded" else ""
            extra = with_text(round_.extra, text) if text else {}
            changed = copy_with(round_, user_query=text, extra=freeze_mapping({**extra, OVERLAY: reduction.kind}))
            return copy_with(changed, post_list=round_.post_list[1:]) if again else changed
    return round_


def _offload(post: Post, reduction: Reduction) -> Post:
    """Return *post* with its text, and the arguments of its calls, as they read now."""
    left = reduction.extra.get(ARGUMENTS)
    if isinstance(left, Mapping):
        calls = tuple(
            copy_with(call, arguments=left.get(str(number), call.arguments))
            for number, call in enumerate(post.tool_calls)
        )
        post = copy_with(post, tool_calls=calls, extra=freeze_mapping(without_calls(post.extra)))
    return _replace_text(post, reduction.text, reduction.kind)


def _replace_text(post: Post, text: str, reason: str) -> Post:
    extra = freeze_mapping({**with_text(post.extra, text), OVERLAY: reason})
    return copy_with(post, message=text, attachment_list=(), extra=extra)


def _make_summary_id(reduction: Reduction) -> str:
    return f"{reduction.first_post_id}..{reduction.last_post_id}"


def _make_summary(reduction: Reduction, round_: Round, role: str) -> Post:
    return Post(
        id=_make_summary_id(reduction),
        send_from="context",
        send_to=role,
        message=reduction.text,
        kind="summary",
        number=reduction.first_number,
        created_at=round_.created_at,
        extra=freeze_mapping({OVERLAY: reduction.kind, LAST_NUMBER: reduction.last_number}),
    )


def _drop_ephemeral(round_: Round, posts: list[Post], role: str) -> list[Post]:
    """Return *posts* without the ephemeral ones that the role has seen: those before its last word."""
    if not [post for post in posts if post.kind.startswith(EPHEMERAL)]:
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
        keep = post.extra.get("keep", 0)
        is_kept = isinstance(keep, int) and newer[post.kind] <= keep
        if not round_.closed and (post.number > said or is_kept):
            shown.append(post)
        elif post.tool_call_id is not None:  # its call would be left without an answer
            line = f"[Was to be seen once, and is left out now; reload {make_post_reference(round_, post)}]"
            shown.append(_replace_text(post, line, "ephemeral"))
    return shown[::-1]


Message = dict[str, Any]

#: The kinds of posts that ask somebody to approve of a call, and that answer; the first request by the first response.
APPROVAL_REQUEST, APPROVAL_RESPONSE = "approval_request", "approval_response"
NO_RESULT = "[No result was recorded for this tool call.]"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MessageGroup(ValueObject):
    """Messages that stay together: a tool call and its results, or a single message."""

    #: The post of each message; None stands for the user's query.
    posts: tuple[Post | None, ...]
    messages: tuple[Message, ...]
    #: The user speaks in it.
    from_user: bool = False
    #: A call that waits for its results or for an approval.
    pending: bool = False
    #: A call that reloads or searches the log.
    recalls: bool = False

    @property
    def number(self) -> int:
        """The number of its first post in the round; 0 for the query."""
        return self.posts[0].number if self.posts[0] is not None else 0

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of its first post."""
        post = self.posts[0]
        return post.tool_calls if post is not None else ()

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that it calls."""
        return tuple([call.name for call in self.calls])


def group_messages(round_: Round, role: str, *, last: bool = True) -> list[MessageGroup]:
    """Return a round as *role* would send it to a model, in a form that providers accept.

    All results of a call follow it at once, even if other posts were recorded between them. An unanswered call gets a
    result that says so; a result without a call becomes a message that says so. Only calls at the end of the *last*
    round, while that is open, may wait for their results: the host is about to run them.
    """
    groups: list[MessageGroup] = []
    posts = list(round_.post_list)
    asked = make_query_message(round_, only_known=True)
    if asked is not None:
        is_again = posts and posts[0].send_from == USER and repeats_query(posts[0], round_)
        again = posts.pop(0) if is_again else None
        source = again if again is not None and again.attachment_list else None  # the query has its attachments then
        groups.append(MessageGroup((source,), (asked,), from_user=True))
    if not posts:
        return groups
    answers = pair_results(posts, role) if [post for post in posts if post.tool_calls] else {}
    taken = {place for results in answers.values() for place in results.values()}
    newest = max((at for at in range(len(posts)) if at not in taken), default=-1) if answers else -1
    unapproved: list[int] = []
    is_open = round_.state == "created"
    if is_open:  # the first request belongs to the first response
        requests = [place for place, post in enumerate(posts) if post.kind == APPROVAL_REQUEST]
        unapproved = requests[len([post for post in posts if post.kind == APPROVAL_RESPONSE]) :] if requests else []
    for place, post in enumerate(posts):
        pending = place in unapproved
        if place in answers:
            results = {number: posts[at] for number, at in answers[place].items()}
            waits = last and is_open and place == newest
            groups.append(_group_call(post, results, role, waits=waits, pending=pending))
        elif place in taken:
            continue
        elif post.tool_call_id is not None or post.send_from == TOOL:  # a result whose call is not in this round
            content = from_post(post, role).get("content")
            text = content if isinstance(content, str) else post.message
            late = {"role": "user", "content": f"[Late result of a tool call]\n{text}"}
            groups.append(MessageGroup((post,), (late,), recalls=_is_recall(post)))
        elif post.send_from == FUNCTION and groups and not groups[-1].from_user:  # answers the call before it
            call = groups.pop()
            messages = (*call.messages, _make_message(post, role))
            groups.append(MessageGroup((*call.posts, post), messages, pending=call.pending, recalls=call.recalls))
        else:
            from_user = post.send_from == USER
            recalls = bool(post.tool_calls) and _is_recall(post)
            groups.append(MessageGroup((post,), (_make_message(post, role),), from_user, pending, recalls))
    return groups


def _group_call(post: Post, results: Mapping[int, Post], role: str, *, waits: bool, pending: bool) -> MessageGroup:
    """Return a message with calls and its *results* by the call's number. A call without one gets a note in its place,
    unless it *waits*."""
    answers = list({result.number: result for result in results.values()}.values())  # one may answer several calls
    missing = [] if waits else [call.id for number, call in enumerate(post.tool_calls) if number not in results]
    messages = [from_post(post, role, only_known=True)]
    for answer in answers:
        message = from_post(answer, role, only_known=True)
        messages.append(message if has_result_parts(answer) else {**message, "role": TOOL})
    messages += [{"role": TOOL, "tool_call_id": call_id, "content": NO_RESULT} for call_id in missing]
    pending = pending or (waits and len(results) < len(post.tool_calls))
    posts = (post, *answers, *[post] * len(missing))
    return MessageGroup(posts, tuple(messages), pending=pending, recalls=_is_recall(post))


def _is_recall(post: Post) -> bool:
    return any(call.name in RECALL_TOOLS for call in post.tool_calls)


def _make_message(post: Post, role: str) -> Message:
    if post.extra.get(OVERLAY) == "summarised":  # never as the assistant, which would repeat it to the user as its own
        return {"role": "user", "content": post.message}
    message = from_post(post, role, only_known=True)
    if not message.get("tool_calls", True):  # providers refuse an empty list, and a message without content
        if message["tool_calls"] is not None:  # as clients' own objects give it
            del message["tool_calls"]
        message["content"] = message.get("content") or ""
    return message


#: How deep the copy of a message must be: its own values are atoms; so are those of its calls; or any other.
SHALLOW, CALLS, DEEP = range(3)


def measure_depth(message: Message) -> int:
    """Return how deep copies of *message* must be, so that nothing in them is shared."""
    if {*map(type, message.values())} <= ATOMS:
        return SHALLOW
    calls = message.get("tool_calls")
    is_plain = type(calls) is list and all(
        type(value) in ATOMS or (key == "tool_calls" and all(map(_is_plain_call, calls)))
        for key, value in message.items()
    )
    return CALLS if is_plain else DEEP


def _is_plain_call(call: Any) -> bool:
    function = call.get("function") if type(call) is dict else None
    return (
        type(function) is dict
        and {*map(type, function.values())} <= ATOMS
        and all(type(value) in ATOMS or key == "function" for key, value in call.items())
    )


def copy_messages(messages: Sequence[Message], depths: Sequence[int]) -> list[Message]:
    """Return copies of *messages* that their receiver may change, however deep. *depths* are those of each."""
    copies = [*map(dict.copy, messages)]
    for place in compress(range(len(copies)), depths):
        if depths[place] == DEEP:
            copies[place] = thaw(messages[place])
            continue
        calls = []
        for call in copies[place]["tool_calls"]:
            call = call.copy()  # noqa: PLW2901  (half the time of a display: prompts may have thousands)
            call["function"] = call["function"].copy()
            calls.append(call)
        copies[place]["tool_calls"] = calls
    return copies
