"""OpenAI chat messages to rounds and posts, and back, with nothing lost on the way.

A post has fields for a message's text, calls and ids, also for those in content parts as AgentScope and Anthropic write
them (``tool_use``, ``tool_result``). Everything that these fields alone would not restore (a name, content in parts,
``content: null``, unknown keys) is kept under ``extra["openai"]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .arguments import name_kind
from .errors import MessageError
from .rounds import EMPTY, USER, FrozenMapping, Post, Round, ToolCall, copy_with, create_unchecked, freeze_mapping, thaw

#: The role of the agent in a host that speaks OpenAI's format.
ASSISTANT = "assistant"
TOOL = "tool"
#: Sender of results in the form before tool calls: with the name of the tool, without an id.
FUNCTION = "function"
SYSTEM = ("system", "developer")
#: The kind of a post that was given none.
MESSAGE = "message"

_SENDERS = {"user": USER, "assistant": ASSISTANT, "tool": TOOL, FUNCTION: FUNCTION} | {role: role for role in SYSTEM}
#: The roles of senders that are no agents.
_ROLES = {sender: role for role, sender in _SENDERS.items() if sender != ASSISTANT}
SPEAK_FOR_NO_AGENT = tuple(_ROLES)
#: The key with what a message in another provider's format has beyond a chat message: ``compactor.formats`` writes it,
#: and takes it off again before the request.
NATIVE = "native"
#: The version of what is in there, which it names as ``v``.
NATIVE_VERSION = 1
#: The keys of messages that prompts carry: those of OpenAI's chat API, and those that vendors want back or read. Any
#: other is the host's own, as ``id`` or ``metadata``: it comes back from the log, and no provider gets it, for many
#: refuse a message with a key that they do not know.
CHAT_KEYS = frozenset(
    (
        # OpenAI. With annotations, OpenRouter does not parse a file again.
        *("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "audio", "annotations"),
        # What the model thought: DeepSeek, Moonshot, Qwen; Groq, vLLM; OpenRouter, MiniMax; GitHub; Ollama; LiteLLM.
        *("reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "reasoning_opaque"),
        *("thinking", "thinking_blocks"),
        # Signatures of Gemini, in its own interface for OpenAI's clients and in LiteLLM's.
        *("extra_content", "provider_specific_fields"),
        # Where a cache ends: LiteLLM, OpenRouter; GitHub.
        *("cache_control", "copilot_cache_control"),
        # The beginning of an answer that the model goes on from: DeepSeek, Mistral; Moonshot, Qwen.
        *("prefix", "partial"),
        # Ollama; Cohere.
        *("images", "tool_name", "tool_plan"),
        # Other formats.
        NATIVE,
    )
)
#: Keys of content parts and of calls that prompts carry, whatever their kind: where a cache ends, Gemini's signatures.
_VENDOR_KEYS = frozenset(
    ("cache_control", "copilot_cache_control", "prompt_cache_breakpoint", "extra_content", "provider_specific_fields")
)
#: All keys that prompts carry of parts and calls of the kinds that OpenAI has. Any other kind stays as it is.
NESTED_KEYS = {
    kind: _VENDOR_KEYS | {"type", kind, *keys}
    for kind, keys in {
        "text": ["citations"],  # Anthropic
        "refusal": [],
        "image_url": ["uuid", "min_pixels", "max_pixels"],  # vLLM; Qwen
        "input_audio": ["uuid"],
        "file": [],
        "function": ["id"],
        "custom": ["id"],
    }.items()
}
#: Those of the function that a call names.
CALLED_KEYS = _VENDOR_KEYS | {"name", "arguments", "input"}
#: Keys of a post's extra: values that differ from its fields, and keys that the message did not have.
OPENAI_FIELDS = "openai"
_ABSENT = "openai_absent"
#: The extra of most user messages, shared by all of them.
NO_FIELDS = freeze_mapping({OPENAI_FIELDS: {}})
#: Fields that most posts share.
NO_POST = Post.model_construct(id="", send_from="", send_to="", created_at=datetime.min.replace(tzinfo=UTC)).__dict__


def parse(message: Mapping[str, Any]) -> Post:
    """Return *message* as a post outside of any log, without id and time. Raises ``MessageError``, which names the
    fault."""
    if not isinstance(message, (dict, Mapping)):  # fast for a dict, slow for any other mapping
        kind = type(message).__name__
        raise MessageError(f"a chat message is a mapping with a role, not {kind}; many give one by model_dump()")
    role = message.get("role")
    if not isinstance(role, str) or role not in _SENDERS:
        raise MessageError(f"the message's role must be one of {', '.join(_SENDERS)}")
    content = message.get("content")
    if len(message) == 2 and type(content) is str:  # most have a role and a text, and that is all
        send_to, extra = USER if role == ASSISTANT else ASSISTANT, NO_FIELDS if role == "user" else EMPTY
        said = {"send_from": _SENDERS[role], "send_to": send_to, "message": content, "extra": extra}
        return create_unchecked(Post, NO_POST | said)
    if content is None and isinstance(message.get("parts"), (list, tuple)):
        raise MessageError("the message has parts and no content: convert it to a chat message, see compactor.formats")
    parts = () if isinstance(content, str) or content is None else _read_parts(content)
    if role != ASSISTANT and any(map(_is_result, parts)):
        role = TOOL  # also in a user message: a tool's result is neither the user's word nor the host's
    text = _read_text(parts, role) if parts else content if isinstance(content, str) else ""
    # In another role's message, the keys of calls say nothing about calls, and are kept as they are.
    calls = _read_calls(message, parts) if role == ASSISTANT else ()
    if role == ASSISTANT and isinstance(called := message.get("function_call"), Mapping):  # the old form, without an id
        text = "\n".join([*([text] if text else []), f"[call of {_call_text(called)}]"])
    if not text and isinstance(message.get("refusal"), str):
        text = message["refusal"]
    fields = {
        **NO_POST,
        "send_from": _SENDERS[role],
        "send_to": USER if role == ASSISTANT else ASSISTANT,
        "message": text,
        "tool_calls": calls,
        "tool_call_id": _read_answered_id(message, parts) if role == TOOL else None,
    }
    post = create_unchecked(Post, fields)
    fields["extra"] = _keep_difference(message, _make_plain_message(post, role))
    return post


def _keep_difference(message: Mapping[str, Any], plain: Mapping[str, Any]) -> FrozenMapping:
    """Return the ``extra`` of a post: what *message* has otherwise than *plain*, which is made of the fields alone."""
    kept = {key: value for key, value in message.items() if key not in plain or plain[key] != value}
    absent = [key for key in plain if key not in message]
    # A user message always has it: an empty one leaves a trace, and one sent twice is not taken for a repetition.
    more = ({OPENAI_FIELDS: kept} if kept or plain["role"] == "user" else {}) | ({_ABSENT: absent} if absent else {})
    return freeze_mapping(more) if more != {OPENAI_FIELDS: {}} else NO_FIELDS


def parse_all(messages: Iterable[Mapping[str, Any]]) -> list[Post]:
    """Return *messages* as posts. Raises ``MessageError`` with the place of the first that is no chat message."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise TypeError(f"give a list of chat messages, not {name_kind(messages)}; put a single one into a list")
    posts = []
    for place, message in enumerate(messages, 1):
        try:
            posts.append(parse(message))
        except MessageError as error:
            raise MessageError(f"message {place}: {error}") from error
    return posts


def came_as_message(extra: Mapping[str, Any]) -> bool:
    """Return whether a post or round with this ``extra`` came in as a chat message."""
    return OPENAI_FIELDS in extra


def from_round(round_: Round, role: str) -> Iterator[dict[str, Any]]:
    """Yield the chat messages of one round as *role* would send them to a model: the user's query, then the posts."""
    asked = make_query_message(round_)
    if asked is not None:
        yield asked
    for place, post in enumerate(round_.post_list):
        if not (place == 0 and asked is not None and repeats_query(post, round_)):
            yield from_post(post, role)


def make_query_message(round_: Round, *, only_known: bool = False) -> dict[str, Any] | None:
    """Return the user's query as a chat message; None if the user did not open the round.
    *only_known*: see ``keep_known``."""
    if not round_.user_query and not came_as_message(round_.extra):
        return None
    if round_.post_list and round_.post_list[0].attachment_list and repeats_query(round_.post_list[0], round_):
        return {"role": "user", "content": join_text(round_.post_list[0])}
    return _restore({"role": "user", "content": round_.user_query}, round_.extra, only_known)


def repeats_query(post: Post, round_: Round) -> bool:
    """Return whether *post* hands the round's query to an agent: multi-agent hosts say it in both places."""
    same = post.send_from == USER and bool(post.message) and post.message == round_.user_query
    return same and not came_as_message(post.extra)


def from_post(post: Post, role: str = ASSISTANT, *, only_known: bool = False) -> dict[str, Any]:
    """Return *post* as the chat message that *role* would send to a model. *only_known*: see ``keep_known``.

    The role's own posts are the assistant's. Posts of other agents are user messages that name them.
    """
    sender = post.send_from
    if sender == role:
        return _restore(_make_plain_message(post, "assistant"), post.extra, only_known)
    if sender in _ROLES:
        return _restore(_make_plain_message(post, _ROLES[sender]), post.extra, only_known)
    if post.tool_call_id is not None:
        return _make_plain_message(post, "tool")
    return {"role": "user", "content": f"{sender}: {join_text_with_calls(post)}"}


def pair_results(posts: Sequence[Post], role: str) -> dict[int, dict[int, int]]:
    """Return the places of tool results: for the place of each post with calls, by the call's number, in log order. A
    repeated id means the newest call with that id."""
    answers: dict[int, dict[int, int]] = {}
    waiting: dict[str, list[tuple[int, int]]] = {}
    for place, post in enumerate(posts):
        if post.tool_calls and post.send_from == role:
            answers[place] = {}
            waiting |= {call.id: [] for call in post.tool_calls}
            for number, call in enumerate(post.tool_calls):
                waiting[call.id].append((place, number))
        elif post.tool_call_id is not None:
            # One post may answer several calls, if the results are parts of its content.
            for call_id in dict.fromkeys((post.tool_call_id, *_list_answered_ids(_list_parts(post)))):
                if waiting.get(call_id):
                    at, number = waiting[call_id].pop(0)
                    answers[at][number] = place
    return answers


def has_result_parts(post: Post) -> bool:
    """Return whether *post* carries results as parts of its content. Its message must, too."""
    return post.tool_call_id is not None and any(map(_is_result, _list_parts(post)))


def split_results(post: Post) -> tuple[Post, ...]:
    """Return *post* itself, or one post for each result if it carries several as parts of its content.

    Other parts follow as one more post, which answers nothing. A post is not split if its text has been changed since,
    because its parts still have the old text.
    """
    parts = _list_parts(post) if post.tool_call_id is not None else ()
    results = [part for part in parts if _is_result(part)]
    if len(results) < 2 or _read_text(parts, TOOL) != post.message:
        return (post,)
    texts = [(_read_result_text(part), _read_result_id(part) or post.tool_call_id) for part in results]
    if others := _read_text([part for part in parts if not _is_result(part)], TOOL):
        texts.append((others, None))
    posts = [
        copy_with(post, id=f"{post.id}/{place}", message=text, tool_call_id=call_id, extra=EMPTY, attachment_list=())
        for place, (text, call_id) in enumerate(texts, 1)
    ]
    return (*posts[:-1], copy_with(posts[-1], attachment_list=post.attachment_list))


def with_text(extra: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the ``extra`` of a post whose text is *text* now: without the content of its message. A tool's result
    keeps its form; calls and ids that the content had are restored from the post's own fields."""
    kept = extra.get(OPENAI_FIELDS)
    if not isinstance(kept, Mapping) or "content" not in kept:
        return dict(extra)
    if find_text_result(kept["content"]) is not None:
        return {**extra, OPENAI_FIELDS: {**kept, "content": replace_text(kept["content"], text)}}
    fields = {key: value for key, value in kept.items() if key != "content"}
    if not any(_is_call(part) or _is_result(part) for part in _read_parts(kept["content"])):
        return {**extra, OPENAI_FIELDS: fields}
    fields.pop("role", None)
    absent = tuple(key for key in extra.get(_ABSENT, ()) if key not in ("tool_calls", "tool_call_id"))
    return {**extra, OPENAI_FIELDS: fields, _ABSENT: absent}


def without_calls(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``extra`` of a post without the calls of its message; they are restored from the post's field."""
    kept = extra.get(OPENAI_FIELDS)
    if not isinstance(kept, Mapping):
        return dict(extra)
    return {**extra, OPENAI_FIELDS: {key: value for key, value in kept.items() if key != "tool_calls"}}


def replace_text(content: Any, text: str) -> Any:
    """Return the *content* of a message with its text replaced by *text*. A tool's result keeps its form, so that its
    call is found; anything else becomes text."""
    part = find_text_result(content)
    return text if part is None else [{**part, "output" if "output" in part else "content": text}]


def find_text_result(content: Any) -> Mapping[str, Any] | None:
    """Return the only part of a message's *content*, if it is a tool's result of text alone; else None."""
    parts = _read_parts(content)
    if len(parts) != 1 or not _is_result(parts[0]):
        return None
    given = parts[0].get("output", parts[0].get("content"))
    items = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    texts = (one["text"] if isinstance(one, Mapping) and "text" in one else one for one in items)
    return parts[0] if all(isinstance(text, str) for text in texts) else None


def join_text(post: Post) -> str:
    """Return all the text that a post carries: its message, then each attachment under its type."""
    if not post.attachment_list:
        return post.message
    parts = [post.message] if post.message else []
    parts += [f"[{attachment.type}]\n{attachment.content}" for attachment in post.attachment_list]
    return "\n\n".join(parts)


def join_text_with_calls(post: Post) -> str:
    """Return the text of a post and its tool calls, one a line, for readers that cannot be handed calls."""
    text = join_text(post)
    calls = [f"{post.send_from} calls {call.name}({call.arguments}) as {call.id}" for call in post.tool_calls]
    return "\n".join([*([text] if text else []), *calls])


def _make_plain_message(post: Post, role: str) -> dict[str, Any]:
    """Return a post's own fields as a message in OpenAI's usual form."""
    content = join_text(post) if post.attachment_list else post.message
    message: dict[str, Any] = {"role": role, "content": content}
    if post.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in post.tool_calls
        ]
    if post.tool_call_id is not None:
        message["tool_call_id"] = post.tool_call_id
    return message


def _restore(plain: dict[str, Any], extra: Mapping[str, Any], only_known: bool) -> dict[str, Any]:
    kept, absent = extra.get(OPENAI_FIELDS), extra.get(_ABSENT)
    if kept and isinstance(kept, Mapping):  # a host may have its own idea of these keys
        plain.update(thaw(keep_known(kept) if only_known else kept))
    for key in absent if isinstance(absent, tuple) else ():
        plain.pop(key, None)
    return plain


def keep_known(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return *message* with ``CHAT_KEYS`` alone, and its content parts and calls with ``NESTED_KEYS``."""
    known = {key: message[key] for key in message if key in CHAT_KEYS}
    for key in ("content", "tool_calls"):
        given = known.get(key)
        if isinstance(given, (list, tuple)):
            known[key] = [_keep_nested(one) for one in given]
        elif isinstance(given, Mapping):
            known[key] = _keep_nested(given)
    return known


def _keep_nested(one: Any) -> Any:
    """Return a part or call with ``NESTED_KEYS`` alone; *one* itself if it has no others."""
    kind = one.get("type", "function") if isinstance(one, Mapping) else None  # a call may lack it
    keys = NESTED_KEYS.get(kind) if isinstance(kind, str) and kind in one else None
    if keys is None:
        return one
    kept = one if one.keys() <= keys else {key: one[key] for key in one if key in keys}
    called = one[kind] if kind in ("function", "custom") else None
    if isinstance(called, Mapping) and not called.keys() <= CALLED_KEYS:
        kept = {**kept, kind: {key: called[key] for key in called if key in CALLED_KEYS}}
    return kept


def _read_parts(content: Any) -> tuple[Any, ...]:
    """Return the parts of a message's content, unless it is text."""
    if isinstance(content, Mapping):
        return (content,)
    if content is None or isinstance(content, str):
        return ()
    if not isinstance(content, Sequence):
        kind = type(content).__name__
        raise MessageError(f"content must be a string, null, an object or a list of parts, not {kind}")
    return tuple(content)


def _list_parts(post: Post) -> tuple[Any, ...]:
    kept = post.extra.get(OPENAI_FIELDS)
    return _read_parts(kept.get("content")) if isinstance(kept, Mapping) else ()


def _is_call(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_use"


def _is_result(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_result"


def _read_result_id(part: Mapping[str, Any]) -> str | None:
    call_id = part.get("tool_use_id", part.get("id"))
    return call_id if isinstance(call_id, str) else None


def _list_answered_ids(parts: Iterable[Any]) -> Iterator[str]:
    """Yield the ids of the calls that results among *parts* answer."""
    for part in parts:
        if _is_result(part) and (call_id := _read_result_id(part)) is not None:
            yield call_id


def _read_answered_id(message: Mapping[str, Any], parts: Iterable[Any]) -> str | None:
    """Return the id of the call that a tool's *message* answers, or the first one that a result in its parts does."""
    answers = message.get("tool_call_id")
    if answers is None:
        return next(_list_answered_ids(parts), None)
    if not isinstance(answers, str):
        raise MessageError("tool_call_id must be a string: the id of the call that this answers")
    return answers


def _read_calls(message: Mapping[str, Any], parts: Sequence[Any]) -> tuple[ToolCall, ...]:
    """Return the calls of the assistant's *message*: those under ``tool_calls``, then others in its parts."""
    given = message.get("tool_calls")
    calls = tuple(_read_tool_calls(given)) if given is not None else ()
    if not parts:
        return calls
    known = {call.id for call in calls}
    others = [one for one in _list_unanswered_calls(parts, ASSISTANT) if one["id"] not in known]
    return (*calls, *[_read_tool_call(one["id"], one) for one in others])


def _list_unanswered_calls(parts: Sequence[Any], role: str) -> list[Mapping[str, Any]]:
    """Return the calls in the parts of the assistant's message, except those that it answers itself: they get no field,
    so no other result is paired with them."""
    calls = [part for part in parts if _is_call(part) and isinstance(part.get("id"), str)] if role == ASSISTANT else []
    answered = set(_list_answered_ids(parts)) if calls else ()
    return [part for part in calls if part["id"] not in answered]


def _read_tool_calls(calls: Any) -> Iterator[ToolCall]:
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise MessageError(f"tool_calls must be a list, not {type(calls).__name__}")
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(call.get("id"), str):
            raise MessageError("each of tool_calls must be a mapping with an id, a string")
        asked = call.get("function") or call.get("custom") or call
        if not isinstance(asked, Mapping):
            raise MessageError("a tool call's function must be a mapping with a name and arguments")
        yield _read_tool_call(call["id"], asked)


def _read_tool_call(call_id: str, asked: Mapping[str, Any]) -> ToolCall:
    name, arguments = read_call(asked)
    return create_unchecked(ToolCall, {"id": call_id, "name": name, "arguments": _dump_arguments(arguments)})


def read_call(asked: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of a call, and its arguments as they are, under any of their usual keys."""
    try:
        name = str(asked.get("name") or "")
    except ValueError as error:  # an integer of thousands of digits
        raise MessageError("a tool call's name must be text") from error
    return name, next((asked[key] for key in ("arguments", "input", "args") if key in asked), "")


def _dump_arguments(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(thaw(arguments), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError("a tool call's arguments must be text or JSON") from error


def _call_text(asked: Mapping[str, Any]) -> str:
    name, arguments = read_call(asked)
    return f"{name}({_dump_arguments(arguments)})"


def _read_text(parts: Sequence[Any], role: str) -> str:
    """Return the text of *parts*, one a line: marks for parts of other kinds, nothing for calls that have a field."""
    with_field = {part["id"] for part in _list_unanswered_calls(parts, role)}
    is_only_result = role == TOOL and sum(map(_is_result, parts)) == 1
    lines: list[str] = []
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
        elif not isinstance(part, Mapping):
            raise MessageError(f"a content part must be a mapping or a string, not {type(part).__name__}")
        elif _is_call(part):
            call_id = part["id"] if isinstance(part.get("id"), str) else None
            if call_id not in with_field:
                lines.append(f"[call of {_call_text(part)}{f' as {call_id}' if call_id is not None else ''}]")
        elif not _is_result(part):
            lines.append(_read_other_text(part))
        elif is_only_result:
            lines.append(_read_result_text(part))
        else:
            names = [word for word in (_read_result_id(part), part.get("name")) if isinstance(word, str) and word]
            lines.append(f"[result of {', '.join(names) or 'a call'}]\n{_read_result_text(part)}")
    return "\n".join(lines)


def _read_result_text(part: Mapping[str, Any]) -> str:
    given = part.get("output", part.get("content"))
    items = given if isinstance(given, Sequence) and not isinstance(given, str) else () if given is None else (given,)
    return "\n".join(one if isinstance(one, str) else _read_other_text(one) for one in items)


#: Words in the names of part types whose content is no readable text.
_MEDIA = frozenset(("image", "audio", "video", "file", "document", "screenshot"))


def _read_other_text(part: Any) -> str:
    """Return the text of a part that is neither a call nor a result: its JSON if it has no text, a mark for media."""
    if not isinstance(part, Mapping):
        return _write_json(part, "")
    kind = part.get("type", "part")
    for key in ("text", "refusal", kind if isinstance(kind, str) else ""):
        if isinstance(part.get(key), str):
            return str(part[key])
    words = str(kind).lower().replace("-", "_").split("_")
    is_media = isinstance(part.get("source"), Mapping) or not _MEDIA.isdisjoint(words)
    is_empty = all(value in (None, "", [], {}) for key, value in part.items() if key != "type")
    return f"[{kind}]" if is_media or is_empty else _write_json(part, f"[{kind}]")


def _write_json(value: Any, otherwise: str) -> str:
    try:
        return json.dumps(thaw(value), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # refused later, with a reason
        return otherwise
