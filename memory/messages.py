"""OpenAI chat messages to rounds and posts, and back, with nothing lost on the way.

A post keeps a message's text, calls and ids in fields of their own. Whatever those fields alone would not give back
(a name, content in parts, ``content: null``, keys nobody has heard of) is kept beside them, under ``extra["openai"]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from .errors import MessageError
from .frozen import FrozenMapping, freeze_mapping, thaw
from .rounds import USER, Post, Round, ToolCall, assembled

__all__ = [
    "ASSISTANT",
    "FUNCTION",
    "KEPT",
    "SPEAK_FOR_NO_AGENT",
    "TOOL",
    "Parsed",
    "came_as_message",
    "from_post",
    "from_round",
    "paired",
    "parse",
    "query_message",
    "repeats_query",
    "text_of",
    "text_with_calls",
]

#: The role of the agent in a host that speaks OpenAI's format.
ASSISTANT = "assistant"
TOOL = "tool"
#: Who sends results in the form that came before tool calls: by the name of the tool, without an id.
FUNCTION = "function"

_SYSTEM = ("system", "developer")
_SENDERS = {"user": USER, "assistant": ASSISTANT, "tool": TOOL, FUNCTION: FUNCTION} | {role: role for role in _SYSTEM}
#: Senders that are no agents: where posts of all roles are read as one, what else says something is an agent.
SPEAK_FOR_NO_AGENT = (USER, TOOL, FUNCTION, *_SYSTEM)
#: Where a post keeps what its fields do not say: values that differ, and keys that the message did not have.
KEPT = "openai"
_ABSENT = "openai_absent"


#: What most of the user's messages leave behind, one for all of them.
_NOTHING_KEPT = freeze_mapping({KEPT: {}})
#: What posts of messages have alike.
_ALIKE = Post(id="", send_from="", send_to="", created_at=datetime.min.replace(tzinfo=UTC)).__dict__


class Parsed(NamedTuple):
    """A chat message as a post, and what it does to the log."""

    #: The fields of its post, all but its id, its time and its number.
    said: Mapping[str, Any]
    #: A system message: part of the header where no round has been opened.
    is_header: bool
    #: A user message: opens a round.
    is_query: bool

    @property
    def post(self) -> Post:
        """It as a post that is in no log: it has no id, and is of no time."""
        return assembled(Post, {**self.said})

    def posted(self, post_id: str, made_at: datetime, number: int = 0) -> Post:
        """Return the post as the log has it."""
        return assembled(Post, {**self.said, "id": post_id, "created_at": made_at, "number": number})


def parse(message: Mapping[str, Any]) -> Parsed:
    """Return what *message* says, which is checked here. Raises ``MessageError`` naming what is wrong with it."""
    if not isinstance(message, (dict, Mapping)):  # a dict is told at once, any other mapping by looking it up
        raise MessageError(
            f"a chat message is a mapping with a role, not {type(message).__name__}; many give one by model_dump()"
        )
    role = message.get("role")
    if not isinstance(role, str) or role not in _SENDERS:
        raise MessageError(f"the message's role must be one of {', '.join(_SENDERS)}")
    sender, content = _SENDERS[role], message.get("content")
    text = _text_in(content) or _refusal(message)
    # Where another role's message has such a key, it says nothing about calls, and is kept as it is.
    calls = message.get("tool_calls") if role == ASSISTANT else None
    said = {
        **_ALIKE,
        "send_from": sender,
        "send_to": USER if sender == ASSISTANT else ASSISTANT,
        "message": text,
        "tool_calls": () if calls is None else tuple(_tool_calls(calls)),
        "tool_call_id": _tool_call_id(message) if role == TOOL else None,
    }
    if len(message) > 2 or content != text:  # most have a role and a text, and that is all
        said["extra"] = _extra(message, _plain(assembled(Post, said), role))
    elif role == "user":
        said["extra"] = _NOTHING_KEPT
    return Parsed(said, role in _SYSTEM, role == "user")


def _extra(message: Mapping[str, Any], plain: Mapping[str, Any]) -> FrozenMapping:
    """Return what is to be kept of *message* beside what its post's own fields say, which is *plain*."""
    kept = {key: value for key, value in message.items() if key not in plain or plain[key] != value}
    absent = [key for key in plain if key not in message]
    # A user's message always has it: so an empty one leaves a trace, and one said twice is not taken for a repetition.
    extra = ({KEPT: kept} if kept or plain["role"] == "user" else {}) | ({_ABSENT: absent} if absent else {})
    return freeze_mapping(extra) if extra != {KEPT: {}} else _NOTHING_KEPT


def came_as_message(extra: Mapping[str, Any]) -> bool:
    """Return whether what has this ``extra`` came in as a user's chat message."""
    return KEPT in extra


def from_round(round_: Round, role: str) -> Iterator[dict[str, Any]]:
    """Give the chat messages of one round as *role* would send them to a model: the user's query, then the posts."""
    asked = query_message(round_)
    if asked is not None:
        yield asked
    for place, post in enumerate(round_.post_list):
        if not (place == 0 and asked is not None and repeats_query(post, round_)):
            yield from_post(post, role)


def query_message(round_: Round) -> dict[str, Any] | None:
    """Return the user's query as a chat message; None for a round that the user did not open."""
    if not round_.user_query and not came_as_message(round_.extra):
        return None
    if round_.post_list and repeats_query(round_.post_list[0], round_) and round_.post_list[0].attachment_list:
        return {"role": "user", "content": text_of(round_.post_list[0])}
    return _restored({"role": "user", "content": round_.user_query}, round_.extra)


def repeats_query(post: Post, round_: Round) -> bool:
    """Return whether *post* hands the round's query to an agent: multi-agent hosts say it in both places."""
    same = post.send_from == USER and bool(post.message) and post.message == round_.user_query
    return same and not came_as_message(post.extra)


def from_post(post: Post, role: str = ASSISTANT) -> dict[str, Any]:
    """Return *post* as the chat message that *role* would send to a model.

    What the role said itself is the assistant's; what other agents said is a user message that names them.
    """
    sender = post.send_from
    if sender == role:
        return _restored(_plain(post, "assistant"), post.extra)
    for known, name in _SENDERS.items():
        if sender == name and known != "assistant":
            return _restored(_plain(post, known), post.extra)
    if post.tool_call_id is not None:
        return _plain(post, "tool")
    return {"role": "user", "content": f"{sender}: {text_with_calls(post)}"}


def paired(posts: Sequence[Post], role: str) -> dict[int, dict[int, int]]:
    """Return, for the place of each post with calls, where the results stand: place by the call's number, in the order
    of the log. An id that is used again means the newest call of that id.
    """
    answers: dict[int, dict[int, int]] = {}
    waiting: dict[str, list[tuple[int, int]]] = {}
    for place, post in enumerate(posts):
        if post.tool_calls and post.send_from == role:
            answers[place] = {}
            waiting |= {call.id: [] for call in post.tool_calls}
            for number, call in enumerate(post.tool_calls):
                waiting[call.id].append((place, number))
        elif post.tool_call_id is not None and waiting.get(post.tool_call_id):
            at, number = waiting[post.tool_call_id].pop(0)
            answers[at][number] = place
    return answers


def text_of(post: Post) -> str:
    """Return all the text that a post carries: its message, then each attachment under its type."""
    if not post.attachment_list:
        return post.message
    parts = [post.message] if post.message else []
    parts += [f"[{attachment.type}]\n{attachment.content}" for attachment in post.attachment_list]
    return "\n\n".join(parts)


def text_with_calls(post: Post) -> str:
    """Return the same with the tool calls, one a line: for readers who cannot be handed calls."""
    calls = [f"{post.send_from} calls {call.name}({call.arguments}) as {call.id}" for call in post.tool_calls]
    return "\n".join([*([text_of(post)] if text_of(post) else []), *calls])


def _plain(post: Post, role: str) -> dict[str, Any]:
    """Return what a post's own fields say, in OpenAI's most usual form."""
    message: dict[str, Any] = {"role": role, "content": text_of(post)}
    if post.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in post.tool_calls
        ]
    if post.tool_call_id is not None:
        message["tool_call_id"] = post.tool_call_id
    return message


def _restored(plain: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    kept, absent = extra.get(KEPT), extra.get(_ABSENT)
    if kept and isinstance(kept, Mapping):  # a host may have its own idea of these keys
        plain.update(thaw(kept))
    for key in absent if isinstance(absent, tuple) else ():
        plain.pop(key, None)
    return plain


def _text_in(content: Any) -> str:
    """Return the text in a message's content, with a mark where something else stands."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, Sequence):
        raise MessageError(f"content must be a string, null or a list of parts, not {type(content).__name__}")
    return "\n".join(_text_in_part(part) for part in content)


def _text_in_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise MessageError(f"a content part must be a mapping or a string, not {type(part).__name__}")
    for key in ("text", "refusal"):
        if isinstance(part.get(key), str):
            return str(part[key])
    return f"[{part.get('type', 'part')}]"


def _refusal(message: Mapping[str, Any]) -> str:
    refusal = message.get("refusal")
    return refusal if isinstance(refusal, str) else ""


def _tool_call_id(message: Mapping[str, Any]) -> str | None:
    answers = message.get("tool_call_id")
    if answers is not None and not isinstance(answers, str):
        raise MessageError("tool_call_id must be a string: the id of the call that this answers")
    return answers


def _tool_calls(calls: Any) -> Iterator[ToolCall]:
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise MessageError(f"tool_calls must be a list, not {type(calls).__name__}")
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(call.get("id"), str):
            raise MessageError("each of tool_calls must be a mapping with an id, a string")
        asked = call.get("function") or call.get("custom") or {}
        if not isinstance(asked, Mapping):
            raise MessageError("a tool call's function must be a mapping with a name and arguments")
        arguments = asked.get("arguments", asked.get("input", ""))
        try:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise MessageError("a tool call's arguments must be text or JSON") from error
        yield assembled(ToolCall, {"id": call["id"], "name": str(asked.get("name") or ""), "arguments": text})
