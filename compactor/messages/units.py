"""A round as the messages a model reads, in units that may not be torn: a tool call stays with its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from memory.messages import FUNCTION, TOOL, from_post, has_result_parts, paired, query_message, repeats_query
from memory.once import once
from memory.rounds import USER, Post, Round

from ..tokens import TokenCounter
from .overlaid import is_summary

__all__ = ["MESSAGE_TOKENS", "PROMPT_TOKENS", "Unit", "count_message", "dump", "reading", "units_of"]

Message = dict[str, Any]

#: What the chat format adds to each message, and once to the prompt: OpenAI's cookbook counts 3 and 3 for its models.
MESSAGE_TOKENS = 4
PROMPT_TOKENS = 3
#: An image at high detail, at most; at low detail. Nothing is decoded to find out.
IMAGE_TOKENS, SMALL_IMAGE_TOKENS = 1_105, 85

#: The kinds of posts that ask somebody to approve of a call, and that answer; the first request by the first response.
APPROVAL_REQUEST, APPROVAL_RESPONSE = "approval_request", "approval_response"
NO_RESULT = "[No result was recorded for this tool call.]"


@dataclass(frozen=True)  # no slots: messages are made when they are first asked for, and most units are never shown
class Unit:
    """Messages that stand or fall together."""

    #: The post that each message comes from; None stands for the user's query.
    posts: tuple[Post | None, ...]
    make: Callable[[], Sequence[Message]]
    #: Something the user said.
    from_user: bool = False
    #: A call that waits for its results, or for somebody's approval.
    pending: bool = False

    @property
    def number(self) -> int:
        """The number of its first post in the round; 0 for the query."""
        return self.posts[0].number if self.posts[0] is not None else 0

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that are called in it."""
        post = self.posts[0]
        return tuple(call.name for call in post.tool_calls) if post is not None else ()

    @once
    def messages(self) -> tuple[Message, ...]:
        return tuple(self.make())


def reading(unit: Unit, messages: tuple[Message, ...]) -> Unit:
    """Return *unit* with other *messages*, one for each of its posts."""
    return Unit(unit.posts, lambda: messages, unit.from_user, unit.pending)


def units_of(round_: Round, role: str, *, last: bool = True) -> list[Unit]:
    """Return a round as *role* would send it to a model, in a form that providers accept.

    A call is followed by all its results at once, wherever in the round they were recorded; a call that was left
    unanswered gets a result that says so; a result that answers no call becomes a message that says what it is. Only
    calls at the end of the *last* round, while that is open, may wait for their results: the host is about to run them.
    """
    units: list[Unit] = []
    posts = list(round_.post_list)
    asked = query_message(round_)
    if asked is not None:
        again = posts.pop(0) if posts and repeats_query(posts[0], round_) else None
        source = again if again is not None and again.attachment_list else None  # what it carries is in the query then
        units.append(Unit((source,), partial(_only, asked), from_user=True))
    if not posts:
        return units
    answers = paired(posts, role)
    taken = {place for found in answers.values() for place in found.values()}
    newest = max((at for at in range(len(posts)) if at not in taken), default=-1) if answers else -1
    approvals = set() if round_.closed else _unapproved(posts)
    for place, post in enumerate(posts):
        pending = place in approvals
        if place in answers:
            results = {number: posts[at] for number, at in answers[place].items()}
            waits = last and not round_.closed and place == newest
            units.append(_call_unit(post, results, role, waits=waits, pending=pending))
        elif place in taken:
            continue
        elif post.tool_call_id is not None or post.send_from == TOOL:
            units.append(Unit((post,), partial(_orphan, post, role)))
        elif post.send_from == FUNCTION and units and not units[-1].from_user:  # answers the call before it
            units.append(_joined(units.pop(), Unit((post,), partial(_said, post, role))))
        else:
            units.append(Unit((post,), partial(_said, post, role), from_user=post.send_from == USER, pending=pending))
    return units


def _unapproved(posts: Sequence[Post]) -> set[int]:
    """Return where the approvals were asked for that nobody has given or refused: the newest, one for each that lacks
    a response."""
    asked = [place for place, post in enumerate(posts) if post.kind == APPROVAL_REQUEST]
    given = sum(post.kind == APPROVAL_RESPONSE for post in posts)
    return set(asked[given:])


def _call_unit(post: Post, results: Mapping[int, Post], role: str, *, waits: bool, pending: bool) -> Unit:
    """Return a message with calls and its *results*, by the call's number; unless it *waits*, a note for each other."""
    answers = list({result.number: result for result in results.values()}.values())  # one may answer several calls
    missing = [] if waits else [call.id for number, call in enumerate(post.tool_calls) if number not in results]

    def messages() -> Iterator[Message]:
        yield from_post(post, role)
        for found in answers:
            yield from_post(found, role) if has_result_parts(found) else {**from_post(found, role), "role": TOOL}
        for call_id in missing:
            yield {"role": TOOL, "tool_call_id": call_id, "content": NO_RESULT}

    pending = pending or (waits and len(results) < len(post.tool_calls))
    return Unit((post, *answers, *(post for _ in missing)), lambda: tuple(messages()), pending=pending)


def _joined(first: Unit, second: Unit) -> Unit:
    return Unit((*first.posts, *second.posts), lambda: (*first.messages, *second.messages), pending=first.pending)


def _only(message: Message) -> tuple[Message]:
    return (message,)


def _said(post: Post, role: str) -> tuple[Message]:
    if is_summary(post):  # never in the assistant's voice, which would repeat it to the user as its own words
        return ({"role": "user", "content": post.message},)
    message = from_post(post, role)
    if not message.get("tool_calls", True):  # an empty list, which providers refuse; and no content without one
        del message["tool_calls"]
        message["content"] = message.get("content") or ""
    return (message,)


def _orphan(post: Post, role: str) -> tuple[Message]:
    content = from_post(post, role).get("content")
    text = content if isinstance(content, str) else post.message
    return ({"role": "user", "content": f"[Late result of a tool call]\n{text}"},)


def count_message(message: Mapping[str, Any], count: TokenCounter) -> int:
    """Return the tokens of one chat message: its texts, its calls, and what the format adds. An upper estimate:
    providers do not say how they count ids, names and images."""
    content = message.get("content")
    if isinstance(content, str) and len(message) == 2 and "role" in message:  # as most are
        return MESSAGE_TOKENS + count(content)
    return MESSAGE_TOKENS + sum(map(count, _texts(message))) + _image_tokens(content)


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    for key, value in message.items():
        if key == "role" or value is None:
            continue
        if isinstance(value, str):
            yield value
        elif key == "content" and isinstance(value, list):
            for part in value:
                if not _is_image(part):
                    yield (
                        part["text"] if isinstance(part, Mapping) and isinstance(part.get("text"), str) else dump(part)
                    )
        elif key == "tool_calls" and isinstance(value, list):
            for call in value:
                asked = call.get("function") if isinstance(call, Mapping) else None
                if isinstance(asked, Mapping) and isinstance(asked.get("arguments"), str):
                    yield str(call.get("id"))
                    yield str(asked.get("name"))
                    yield asked["arguments"]
                else:
                    yield dump(call)
        else:
            yield dump(value)


def dump(value: object) -> str:
    """Return *value* as the JSON text that counts for it."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image_url", "input_image", "image")


def _image_tokens(content: object) -> int:
    total = 0
    for part in content if isinstance(content, list) else ():
        if _is_image(part):
            image = part.get("image_url")
            small = isinstance(image, Mapping) and image.get("detail") == "low"
            total += SMALL_IMAGE_TOKENS if small else IMAGE_TOKENS
    return total
