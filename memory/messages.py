"""OpenAI chat messages to rounds and posts, and back, with nothing lost on the way.

A post has fields for a message's text, calls and ids, also for those in content parts as AgentScope and Anthropic write
them (``tool_use``, ``tool_result``). Everything that these fields alone would not restore (a name, content in parts,
``content: null``, unknown keys) is kept under ``extra["openai"]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from .errors import MessageError
from .rounds import EMPTY, USER, FrozenMapping, Post, Round, ToolCall, copy_with, create_unchecked, freeze_mapping, thaw

#: The role of the agent in a host that speaks OpenAI's format.
ASSISTANT = "assistant"
TOOL = "tool"
#: Sender of results in the form before tool calls: with the name of the tool, without an id.
FUNCTION = "function"

_SYSTEM = ("system", "developer")
_SENDERS = {"user": USER, "assistant": ASSISTANT, "tool": TOOL, FUNCTION: FUNCTION} | {role: role for role in _SYSTEM}
#: Senders that are no agents.
SPEAK_FOR_NO_AGENT = (USER, TOOL, FUNCTION, *_SYSTEM)
#: Keys of a post's extra: values that differ from its fields, and keys that the message did not have.
KEPT = "openai"
_ABSENT = "openai_absent"


#: The extra of most user messages, shared by all of them.
_NOTHING_KEPT = freeze_mapping({KEPT: {}})
#: Fields that all posts made from messages share.
_ALIKE = Post(id="", send_from="", send_to="", created_at=datetime.min.replace(tzinfo=UTC)).__dict__


class Parsed(NamedTuple):
    """A chat message as a post, and its effect on the log."""

    #: The fields of its post, except for id, time and number.
    said: Mapping[str, Any]
    #: A system message: part of the header if no round has been opened.
    is_header: bool
    #: A user message: opens a round.
    is_query: bool

    @property
    def post(self) -> Post:
        """The post, outside of any log: without id and time."""
        return create_unchecked(Post, {**self.said})


def parse(message: Mapping[str, Any]) -> Parsed:
    """Check and parse *message*. Raises ``MessageError``, which names the fault."""
    if not isinstance(message, (dict, Mapping)):  # fast for a dict, slow for any other mapping
        raise MessageError(
            f"a chat message is a mapping with a role, not {type(message).__name__}; many give one by model_dump()"
        )
    role = message.get("role")
    if not isinstance(role, str) or role not in _SENDERS:
        raise MessageError(f"the message's role must be one of {', '.join(_SENDERS)}")
    content = message.get("content")
    blocks = () if isinstance(content, str) or content is None else _blocks(content)
    if role != ASSISTANT and any(map(_is_result, blocks)):
        role = TOOL  # also in a user message: a tool's result is neither the user's word nor the host's
    sender = _SENDERS[role]
    text = _text_of_message(message, role, blocks)
    # In another role's message this key says nothing about calls, and is kept as it is.
    calls = message.get("tool_calls") if role == ASSISTANT else None
    said = {
        **_ALIKE,
        "send_from": sender,
        "send_to": USER if sender == ASSISTANT else ASSISTANT,
        "message": text,
        "tool_calls": () if calls is None else tuple(_tool_calls(calls)),
        "tool_call_id": _tool_call_id(message) if role == TOOL else None,
    }
    if blocks:
        known = {call.id for call in said["tool_calls"]}
        said["tool_calls"] += tuple(call for call in _calls_in(blocks, role) if call.id not in known)
        if said["tool_call_id"] is None and role == TOOL:
            said["tool_call_id"] = next(_answered_ids(blocks), None)
    if len(message) > 2 or content != text:  # most have a role and a text, and that is all
        said["extra"] = _extra(message, _plain(create_unchecked(Post, said), role))
    elif role == "user":
        said["extra"] = _NOTHING_KEPT
    return Parsed(said, role in _SYSTEM, role == "user")


def _extra(message: Mapping[str, Any], plain: Mapping[str, Any]) -> FrozenMapping:
    """Return the parts of *message* that its post's own fields, as *plain* has them, do not restore."""
    kept = {key: value for key, value in message.items() if key not in plain or plain[key] != value}
    absent = [key for key in plain if key not in message]
    # A user message always has it: so an empty one leaves a trace, and one sent twice is not taken for a repetition.
    extra = ({KEPT: kept} if kept or plain["role"] == "user" else {}) | ({_ABSENT: absent} if absent else {})
    return freeze_mapping(extra) if extra != {KEPT: {}} else _NOTHING_KEPT


def came_as_message(extra: Mapping[str, Any]) -> bool:
    """Return whether a post or round with this ``extra`` came in as a chat message."""
    return KEPT in extra


def from_round(round_: Round, role: str) -> Iterator[dict[str, Any]]:
    """Yield the chat messages of one round as *role* would send them to a model: the user's query, then the posts."""
    asked = query_message(round_)
    if asked is not None:
        yield asked
    for place, post in enumerate(round_.post_list):
        if not (place == 0 and asked is not None and repeats_query(post, round_)):
            yield from_post(post, role)


def query_message(round_: Round) -> dict[str, Any] | None:
    """Return the user's query as a chat message; None if the user did not open the round."""
    if not round_.user_query and not came_as_message(round_.extra):
        return None
    if round_.post_list and repeats_query(round_.post_list[0], round_) and round_.post_list[0].attachment_list:
        return {"role": "user", "content": text_of(round_.post_list[0])}
    return _restore({"role": "user", "content": round_.user_query}, round_.extra)


def repeats_query(post: Post, round_: Round) -> bool:
    """Return whether *post* hands the round's query to an agent: multi-agent hosts say it in both places."""
    same = post.send_from == USER and bool(post.message) and post.message == round_.user_query
    return same and not came_as_message(post.extra)


def from_post(post: Post, role: str = ASSISTANT) -> dict[str, Any]:
    """Return *post* as the chat message that *role* would send to a model.

    The role's own posts are the assistant's. Posts of other agents are user messages that name them.
    """
    sender = post.send_from
    if sender == role:
        return _restore(_plain(post, "assistant"), post.extra)
    for known, name in _SENDERS.items():
        if sender == name and known != "assistant":
            return _restore(_plain(post, known), post.extra)
    if post.tool_call_id is not None:
        return _plain(post, "tool")
    return {"role": "user", "content": f"{sender}: {text_with_calls(post)}"}


def pair_results(posts: Sequence[Post], role: str) -> dict[int, dict[int, int]]:
    """Return the places of tool results: for the place of each post with calls, by the call's number, in log order. A
    repeated id means the newest call with that id.
    """
    answers: dict[int, dict[int, int]] = {}
    waiting: dict[str, list[tuple[int, int]]] = {}
    for place, post in enumerate(posts):
        if post.tool_calls and post.send_from == role:
            answers[place] = {}
            waiting |= {call.id: [] for call in post.tool_calls}
            for number, call in enumerate(post.tool_calls):
                waiting[call.id].append((place, number))
        elif post.tool_call_id is not None:
            for call_id in answered_by(post):
                if waiting.get(call_id):
                    at, number = waiting[call_id].pop(0)
                    answers[at][number] = place
    return answers


def answered_by(post: Post) -> tuple[str, ...]:
    """Return the ids of the calls that *post* answers: several, if the results are parts of its content."""
    if post.tool_call_id is None:
        return ()
    return tuple(dict.fromkeys((post.tool_call_id, *_answered_ids(_blocks_of(post)))))


def has_result_parts(post: Post) -> bool:
    """Return whether *post* carries results as parts of its content. Its message must, too."""
    return post.tool_call_id is not None and any(map(_is_result, _blocks_of(post)))


def results_apart(post: Post) -> tuple[Post, ...]:
    """Return *post* itself, or one post for each result if it carries several as parts of its content.

    Other parts follow as one more post, which answers nothing. A post is not split if its text has been changed since,
    because its parts still have the old text.
    """
    blocks = _blocks_of(post) if post.tool_call_id is not None else ()
    results = [part for part in blocks if _is_result(part)]
    if len(results) < 2 or _text_in(blocks, TOOL) != post.message:
        return (post,)
    others = _text_in(tuple(part for part in blocks if not _is_result(part)), TOOL)
    said = [(_text_in_result(part), _result_id(part) or post.tool_call_id) for part in results]
    said += [(others, None)] if others else []
    bare = copy_with(post, extra=EMPTY, attachment_list=())
    *first, last = (
        copy_with(bare, id=f"{post.id}/{place}", message=text, tool_call_id=call_id)
        for place, (text, call_id) in enumerate(said, 1)
    )
    return (*first, copy_with(last, attachment_list=post.attachment_list))


def without_content(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``extra`` of a post whose text has changed: without the content of its message. Calls and ids that the
    content had are restored from the post's own fields."""
    kept = extra.get(KEPT)
    if not isinstance(kept, Mapping) or "content" not in kept:
        return dict(extra)
    fields = {key: value for key, value in kept.items() if key != "content"}
    if not any(map(_is_block, _blocks(kept["content"]))):
        return {**extra, KEPT: fields}
    fields.pop("role", None)
    absent = tuple(key for key in extra.get(_ABSENT, ()) if key not in ("tool_calls", "tool_call_id"))
    return {**extra, KEPT: fields, _ABSENT: absent}


def reads(content: Any, text: str) -> Any:
    """Return the *content* of a message with its text replaced by *text*. A tool's result keeps its form, so that its
    call is found; anything else becomes text."""
    part = result_of_text(content)
    if part is None:
        return text
    return [{**part, "output" if "output" in part else "content": text}]


def result_of_text(content: Any) -> Mapping[str, Any] | None:
    """Return the only part of a message's *content*, if it is a tool's result of text alone; else None."""
    parts = () if content is None or isinstance(content, str) else _blocks(content)
    if len(parts) != 1 or not _is_result(parts[0]):
        return None
    given = parts[0].get("output", parts[0].get("content"))
    texts = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    is_text = all(isinstance(one["text"] if _has_text(one) else one, str) for one in texts)
    return parts[0] if is_text else None


def _has_text(part: Any) -> bool:
    return isinstance(part, Mapping) and "text" in part


def with_text(extra: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the ``extra`` of a post whose text is *text* now: as ``without_content``, but a tool's result keeps its
    form."""
    kept = extra.get(KEPT)
    if not isinstance(kept, Mapping) or result_of_text(kept.get("content")) is None:
        return without_content(extra)
    return {**extra, KEPT: {**kept, "content": reads(kept["content"], text)}}


def without_calls(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``extra`` of a post without the calls of its message; they are restored from the post's field."""
    kept = extra.get(KEPT)
    if not isinstance(kept, Mapping) or "tool_calls" not in kept:
        return dict(extra)
    return {**extra, KEPT: {key: value for key, value in kept.items() if key != "tool_calls"}}


def _blocks_of(post: Post) -> tuple[Any, ...]:
    kept = post.extra.get(KEPT)
    return _blocks(kept.get("content")) if isinstance(kept, Mapping) else ()


def text_of(post: Post) -> str:
    """Return all the text that a post carries: its message, then each attachment under its type."""
    if not post.attachment_list:
        return post.message
    parts = [post.message] if post.message else []
    parts += [f"[{attachment.type}]\n{attachment.content}" for attachment in post.attachment_list]
    return "\n\n".join(parts)


def text_with_calls(post: Post) -> str:
    """Return the same with the tool calls, one a line, for readers that cannot be handed calls."""
    calls = [f"{post.send_from} calls {call.name}({call.arguments}) as {call.id}" for call in post.tool_calls]
    return "\n".join([*([text_of(post)] if text_of(post) else []), *calls])


def _plain(post: Post, role: str) -> dict[str, Any]:
    """Return a post's own fields as a message in OpenAI's usual form."""
    message: dict[str, Any] = {"role": role, "content": text_of(post)}
    if post.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in post.tool_calls
        ]
    if post.tool_call_id is not None:
        message["tool_call_id"] = post.tool_call_id
    return message


def _restore(plain: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    kept, absent = extra.get(KEPT), extra.get(_ABSENT)
    if kept and isinstance(kept, Mapping):  # a host may have its own idea of these keys
        plain.update(thaw(kept))
    for key in absent if isinstance(absent, tuple) else ():
        plain.pop(key, None)
    return plain


def _text_of_message(message: Mapping[str, Any], role: str, blocks: tuple[Any, ...]) -> str:
    """Return the text in *message* that has no field of its own."""
    content = message.get("content")
    text = _text_in(blocks, role) if blocks else content if isinstance(content, str) else ""
    called = message.get("function_call")
    if role == ASSISTANT and isinstance(called, Mapping):  # from before tool calls, without an id
        text = "\n".join([*([text] if text else []), f"[call of {_call_text(called, called)}]"])
    return text or _refusal(message)


def _text_in(blocks: tuple[Any, ...], role: str) -> str:
    return "\n".join(text for part in blocks if (text := _text_in_part(part, role, blocks)) is not None)


def _blocks(content: Any) -> tuple[Any, ...]:
    """Return the parts of a message's content, unless it is text."""
    if isinstance(content, Mapping):
        return (content,)
    if content is None or isinstance(content, str):
        return ()
    if not isinstance(content, Sequence):
        said = type(content).__name__
        raise MessageError(f"content must be a string, null, an object or a list of parts, not {said}")
    return tuple(content)


def _text_in_part(part: Any, role: str, blocks: tuple[Any, ...]) -> str | None:
    """Return the text of one of *blocks*, or a mark for another kind of part; None for a call that has a field."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise MessageError(f"a content part must be a mapping or a string, not {type(part).__name__}")
    if _is_call(part):
        known = any(call.id == part.get("id") for call in _calls_in((part,), role)) and not _is_answered(part, blocks)
        which = f" as {part['id']}" if isinstance(part.get("id"), str) else ""
        return None if known else f"[call of {_call_text(part, part)}{which}]"
    if _is_result(part):
        text = _text_in_result(part)
        if role == TOOL and len([one for one in blocks if _is_result(one)]) == 1:
            return text
        which = ", ".join(str(word) for word in (_result_id(part), part.get("name")) if isinstance(word, str) and word)
        return f"[result of {which or 'a call'}]\n{text}"
    return _text_in_other(part)


def _text_in_other(part: Mapping[str, Any]) -> str:
    kind = part.get("type", "part")
    for key in ("text", "refusal", kind if isinstance(kind, str) else ""):
        if isinstance(part.get(key), str):
            return str(part[key])
    rest = any(value not in (None, "", [], {}) for key, value in part.items() if key != "type")
    is_media = isinstance(part.get("source"), Mapping) or not _MEDIA.isdisjoint(_words(str(kind)))
    return f"[{kind}]" if is_media or not rest else _as_json(part, f"[{kind}]")


#: Words in the names of part types whose content is no readable text.
_MEDIA = frozenset(("image", "audio", "video", "file", "document", "screenshot"))


def _words(kind: str) -> list[str]:
    return kind.lower().replace("-", "_").split("_")


def _text_in_result(part: Mapping[str, Any]) -> str:
    given = part.get("output", part.get("content"))
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, Sequence):
        return _text_in_other(given) if isinstance(given, Mapping) else _as_json(given, "")
    texts = (_text_in_other(one) if isinstance(one, Mapping) else _as_json(one, "") for one in given)
    return "\n".join(one if isinstance(one, str) else text for one, text in zip(given, texts, strict=True))


def _is_call(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_use"


def _is_result(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_result"


def _is_block(part: Any) -> bool:
    return _is_call(part) or _is_result(part)


def _result_id(part: Mapping[str, Any]) -> str | None:
    found = part.get("tool_use_id", part.get("id"))
    return found if isinstance(found, str) else None


def _answered_ids(blocks: tuple[Any, ...]) -> Iterator[str]:
    """Yield the ids of the calls that results among *blocks* answer."""
    ids = (_result_id(part) for part in blocks if _is_result(part))
    return (call_id for call_id in ids if call_id is not None)


def _is_answered(part: Mapping[str, Any], blocks: tuple[Any, ...]) -> bool:
    """Return whether the message with a call answers it, too: then nothing else is paired with it."""
    return part.get("id") in set(_answered_ids(blocks))


def _calls_in(blocks: tuple[Any, ...], role: str) -> Iterator[ToolCall]:
    """Yield the calls in the parts of the assistant's message."""
    for part in blocks if role == ASSISTANT else ():
        if _is_call(part) and isinstance(part.get("id"), str) and not _is_answered(part, blocks):
            yield create_unchecked(ToolCall, {"id": part["id"], "name": _name(part), "arguments": _arguments(part)})


def _call_text(asked: Mapping[str, Any], flat: Mapping[str, Any]) -> str:
    return f"{_name(asked)}({_arguments(flat)})"


def _name(asked: Mapping[str, Any]) -> str:
    return str(asked.get("name") or "")


def _arguments(asked: Mapping[str, Any]) -> str:
    """Return the arguments of a call as text, under any of their usual keys."""
    arguments = next((asked[key] for key in ("arguments", "input", "args") if key in asked), "")
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(thaw(arguments), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError("a tool call's arguments must be text or JSON") from error


def _as_json(value: Any, otherwise: str) -> str:
    try:
        return json.dumps(thaw(value), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # refused later, with a reason
        return otherwise


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
        asked = call.get("function") or call.get("custom") or call
        if not isinstance(asked, Mapping):
            raise MessageError("a tool call's function must be a mapping with a name and arguments")
        yield create_unchecked(ToolCall, {"id": call["id"], "name": _name(asked), "arguments": _arguments(asked)})
