"""A round as the messages a model reads, in units that may not be torn: a tool call stays with its results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory.messages import from_post, query_message, repeats_query
from memory.rounds import USER, Post, Round

from .tokens import TokenCounter

__all__ = ["MESSAGE_TOKENS", "PROMPT_TOKENS", "Unit", "count_message", "units_of"]

Message = dict[str, Any]

#: What the chat format adds to each message, and once to the prompt: OpenAI's cookbook counts 3 and 3 for its models.
MESSAGE_TOKENS = 4
PROMPT_TOKENS = 3
#: An image at high detail, at most; at low detail. Nothing is decoded to find out.
IMAGE_TOKENS, SMALL_IMAGE_TOKENS = 1_105, 85

NO_RESULT = "[No result was recorded for this tool call.]"


@dataclass(frozen=True, slots=True)
class Unit:
    """Messages that stand or fall together, with the posts they come from; None stands for the user's query."""

    messages: tuple[Message, ...]
    posts: tuple[Post | None, ...]
    #: Something the user said.
    from_user: bool = False


def units_of(round_: Round, role: str) -> list[Unit]:
    """Return a round as *role* would send it to a model, in a form that providers accept.

    A call is followed by all its results at once, wherever in the round they were recorded; a call that a closed round
    left unanswered gets a result that says so; a result that answers no call becomes a message that says what it is.
    """
    result: list[Unit] = []
    posts = list(round_.post_list)
    asked = query_message(round_)
    if asked is not None:
        result.append(Unit((asked,), (None,), from_user=True))
        if posts and repeats_query(posts[0], round_):
            del posts[0]
    answers: dict[str, list[int]] = {}
    for place, post in enumerate(posts):
        if post.tool_call_id is not None:
            answers.setdefault(post.tool_call_id, []).append(place)
    taken: set[int] = set()
    for place, post in enumerate(posts):
        if place in taken:
            continue
        if post.tool_calls and post.send_from == role:
            pending = not round_.closed and all(later.tool_call_id is not None for later in posts[place + 1 :])
            result.append(_call_unit(post, place, posts, answers, taken, role, pending=pending))
        elif post.tool_call_id is not None:
            result.append(Unit((_orphan(post, role),), (post,)))
        else:
            result.append(Unit((from_post(post, role),), (post,), from_user=post.send_from == USER))
    return result


def _call_unit(
    post: Post,
    place: int,
    posts: Sequence[Post],
    answers: Mapping[str, list[int]],
    taken: set[int],
    role: str,
    *,
    pending: bool,
) -> Unit:
    """Return a message with tool calls and the results of all of them.

    While *pending*, calls without a result are left as they are: the host is about to run them.
    """
    messages, sources = [from_post(post, role)], [post]
    for call in post.tool_calls:
        found = next((at for at in answers.get(call.id, ()) if at > place and at not in taken), None)
        if found is not None:
            taken.add(found)
            messages.append({**from_post(posts[found], role), "role": _result_role(posts[found])})
            sources.append(posts[found])
        elif not pending:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": NO_RESULT})
            sources.append(post)
    return Unit(tuple(messages), tuple(sources))


def _result_role(post: Post) -> str:
    return "function" if post.send_from == "function" else "tool"


def _orphan(post: Post, role: str) -> Message:
    content = from_post(post, role).get("content")
    text = content if isinstance(content, str) else post.message
    return {"role": "user", "content": f"[Result of a tool call that is not in this conversation]\n{text}"}


def count_message(message: Mapping[str, Any], count: TokenCounter) -> int:
    """Return the tokens of one chat message: its texts, its calls, and what the format adds. An upper estimate:
    providers do not say how they count ids, names and images."""
    return MESSAGE_TOKENS + sum(map(count, _texts(message))) + _image_tokens(message.get("content"))


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
                        part["text"] if isinstance(part, Mapping) and isinstance(part.get("text"), str) else _dump(part)
                    )
        elif key == "tool_calls" and isinstance(value, list):
            for call in value:
                asked = call.get("function") if isinstance(call, Mapping) else None
                if isinstance(asked, Mapping) and isinstance(asked.get("arguments"), str):
                    yield str(call.get("id"))
                    yield str(asked.get("name"))
                    yield asked["arguments"]
                else:
                    yield _dump(call)
        else:
            yield _dump(value)


def _dump(value: object) -> str:
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
