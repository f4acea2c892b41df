"""The rest of a provider's own item that its chat message cannot say, kept beside it under one key.

A chat message made of a provider's item has a key ``native`` if the item cannot be made of the message alone: with the
name of the format, and with the differences. The message's own words are not in there again, so a message that was
shortened since gives an item with the shorter text. A message whose item is plain has no such key.

``native`` has some of these keys:

- ``format``: the item's format. Another format ignores the rest.
- ``v``: the version of this language. A prompt with another one is refused, for its items would come back changed.
- ``item``: how the item differs from the plain one.
- ``blocks``: how each block of the item is made: of parts of the message's content, of one of its calls, or as it is.
- ``parts``: how many parts the content had; absent: it was a text. Otherwise it was shortened, and is one text.
- ``result``: how the block of a tool's result differs from the plain one; ``as_is``: an item whose result is no text.
- ``form``, ``key``: which of several ways the item used to say the same.
- ``legacy``, ``instructions``: the message was one of the old form, or the request's instructions.
- ``status``: a framework's word for a tool's call that did not succeed.
- ``payload``: the blocks or items that stand for the whole message, which is a summary that its provider made.
- ``joined``: whether the message continues the item of the message before it; absent: if the roles are the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory import messages as chat
from memory.errors import MessageError
from memory.messages import FUNCTION, NATIVE, NATIVE_VERSION, SYSTEM, TOOL
from memory.rounds import MAX_BITS, MAX_DEPTH

#: Stands first where the prompt begins with a message of the model: providers want the user to begin.
CONTINUES = "[The conversation goes on from here.]"
CHAT_ROLES = ("user", "assistant", TOOL, FUNCTION, *SYSTEM)

Message = dict[str, Any]
Block = dict[str, Any]


#: What JSON has for a key, or writes as one.
_KEYS = frozenset((str, int, float, bool, type(None)))


class UnknownFormat(MessageError):
    """Messages are of no known format, or not of the format that was named."""


#: The types of parts and blocks that one format alone has.
_KINDS = {
    "anthropic": {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "search_result"}
    | {"server_tool_use", "web_search_tool_result", "container_upload"},
    "responses": {"input_text", "output_text", "input_image", "input_file"},
    "chat": {"image_url", "file", "refusal"},
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one format writes the blocks that a chat message can say."""

    name: str
    #: Gives the chat parts of a block, or its chat call; None for a block that no chat message can say.
    read: Callable[[Block], list[Block] | Block | None]
    #: Gives the block of chat parts that ``read`` gave, or of one foreign part, in a form; None if it says nothing.
    write_parts: Callable[[Sequence[Block], str], Block | None]
    write_call: Callable[[Block, str], Block]
    #: Gives the form of a block, where there are several ways to write one; "" is that of new blocks.
    find_form: Callable[[Block], str] = lambda _: ""
    #: Writes a text alone as a text, and not as a list of one block.
    writes_texts: bool = False


def read_items(items: Iterable[Any], name: str) -> Iterator[Block]:
    """Yield *items* as plain mappings. Raises ``UnknownFormat`` with the place of one that is none."""
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise UnknownFormat(f"give a list of {name} items, not {describe(items)}; put a single one into a list")
    for place, item in enumerate(items, 1):
        try:
            plain = to_plain(item)
        except UnknownFormat as error:
            raise UnknownFormat(f"{name}: item {place}{_find_fault(item, 8)} {error}") from error.__cause__
        if not isinstance(plain, dict):
            raise UnknownFormat(f"item {place} is {describe(plain)}, and no {name} item")
        yield plain


def to_plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a copy of *value* in JSON's types. Objects of the providers' SDKs give theirs by ``model_dump``.

    Raises ``UnknownFormat`` for a value that is no JSON, and below *depth* levels.
    """
    if isinstance(value, (str, float, bool, type(None))):
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise UnknownFormat(f"is an integer of more than {MAX_BITS:,} bits; give it as a text")
        return value
    if depth == 0:
        raise UnknownFormat("holds itself, or is nested too deep; give it as a text")
    if isinstance(value, (list, tuple)):
        return [to_plain(one, depth - 1) for one in value]
    if isinstance(value, (dict, Mapping)):  # dict first: it is found faster
        if not _KEYS.issuperset(map(type, value)):
            raise UnknownFormat("is a mapping with a key that is no text; make texts of its keys")
        return {key: one if type(one) is str else to_plain(one, depth - 1) for key, one in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if not callable(dump := getattr(value, "model_dump", None)):
        raise UnknownFormat(f"is {describe(value)}, which is no JSON; convert it to text first")
    try:
        dumped = dump(mode="json", exclude_none=True)
    except Exception as error:  # objects of hosts may raise anything
        raise UnknownFormat(f"is {describe(value)}, whose model_dump failed; give it as a mapping") from error
    return to_plain(dumped, depth - 1)


def _find_fault(value: Any, steps: int) -> str:
    """Return the path in *value* to the part that ``to_plain`` refuses, or its first *steps*."""
    inner = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    for key, one in inner if steps else ():
        try:
            to_plain(one)
        except UnknownFormat:
            step = f".{key[:40]}" if isinstance(key, str) else f"[{key}]"
            return step + _find_fault(one, steps - 1)
    return ""


def read_messages(messages: Iterable[Mapping[str, Any]], name: str) -> Iterator[Mapping[str, Any]]:
    """Yield *messages* of a prompt for the format of that *name*. Raises ``UnknownFormat`` with the place of one that
    is no chat message, or that another version of this language converted."""
    if not isinstance(messages, Iterable):
        raise UnknownFormat(f"give the messages of a prompt, prompt.messages, and not what is {describe(messages)}")
    for place, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or message.get("role") not in CHAT_ROLES:
            raise UnknownFormat(f"message {place} is {describe(message)}; give chat messages, such as prompt.messages")
        native = read_native(message, name)
        if native and native.get("v") != NATIVE_VERSION:
            raise UnknownFormat(
                f"message {place} was converted from {name} by another release: its native has v"
                f" {native.get('v')!r:.20}, this one reads {NATIVE_VERSION}. Upgrade context-compactor, or convert the"
                " history again"
            )
        yield message


def describe(value: object) -> str:
    """Return a description of *value*, without its content."""
    if not isinstance(value, Mapping):
        return f"of type {type(value).__name__}"
    kinds = [f"{key} {str(value[key])[:40]!r}" for key in ("role", "type") if isinstance(value.get(key), str)]
    keys = ", ".join(sorted(str(key)[:40] for key in value)[:8])
    return f"a mapping with {' and '.join(kinds) or 'neither role nor type'} (keys: {keys})"


def name_format(item: Mapping[str, Any]) -> str | None:
    """Return the format of *item*; empty if it may be of several, None if it is of none."""
    role, kind, content = item.get("role"), item.get("type"), item.get("content")
    if isinstance(item.get("parts"), list) and role in ("user", "model", "function", "tool", None):
        return "gemini"
    if isinstance(kind, str):
        return "responses" if role in ("user", "assistant", "system", "developer", None) else None
    if role not in ("user", "assistant", "system", "developer", "tool", "function"):
        return None
    if role in ("tool", "function") or item.keys() & {"tool_calls", "function_call", "refusal", "audio"}:
        return "chat"
    given = content if isinstance(content, list) else ()
    kinds = {str(part.get("type")) for part in given if isinstance(part, Mapping)}
    return next((name for name, own in _KINDS.items() if kinds & own), "")


def suggest_format(item: Mapping[str, Any], name: str) -> str:
    """Return the end of an error's text, a guess at the format of an *item* that is none of the format *name*."""
    other = name_format(item)
    return f"; it looks like {other}: convert it with compactor.formats.{other}" if other and other != name else ""


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON, the order of keys included."""
    return find_difference(one, other) is None


def find_difference(native: Any, plain: Any) -> Any:
    """Return how *native* differs from *plain*: None if not at all, ``[value]`` for another value, else by key or by
    place."""
    if type(native) is not type(plain):
        return [native]
    if isinstance(native, dict):
        keys = {}
        for key, one in native.items():
            other = plain.get(key, _MISSING)
            is_known = one is other or (type(one) is str and one == other)  # most
            keys[key] = None if is_known else find_difference(one, other)
        return {"keys": keys} if any(keys.values()) or list(native) != list(plain) else None
    if isinstance(native, list) and len(native) == len(plain):
        each = list(map(find_difference, native, plain))
        return {"each": each} if any(each) else None
    return None if native == plain else [native]


_MISSING = object()


def restore_difference(plain: Any, difference: Any) -> Any:
    """Return the value that ``find_difference`` compared with *plain*, which may have been shortened since."""
    match difference:
        case [value]:
            return to_plain(value)
        case {"each": [*each]} if isinstance(plain, list) and len(plain) == len(each):
            return list(map(restore_difference, plain, each))
        case {"keys": dict(keys)} if isinstance(plain, dict):
            left = {key: kept for key, kept in keys.items() if kept is not None or key in plain}
            return {key: restore_difference(plain.get(key), kept) for key, kept in left.items()}
    return plain


def give_unique_ids(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield *messages*, in which no two calls have one id: other formats, and calls without ids, may repeat them."""
    taken: set[str] = set()
    newest: dict[str, str] = {}
    for message in messages:
        if calls := list_calls(message):
            for call in calls:
                given, number = str(call["id"]), 2
                newest[given] = given
                while newest[given] in taken:
                    newest[given] = f"{given}-{number}"
                    number += 1
                taken.add(newest[given])
            yield {**message, "tool_calls": [{**call, "id": newest[str(call["id"])]} for call in calls]}
        elif isinstance(call_id := message.get("tool_call_id"), str) and newest.get(call_id, call_id) != call_id:
            yield {**message, "tool_call_id": newest[call_id]}
        else:
            yield message


def read_native(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the rest of an item that *message* keeps in the format of that *name*; empty if nothing."""
    native = message.get(NATIVE)
    return native if isinstance(native, Mapping) and native.get("format") == name else {}


def show_payload(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return *message*, or a message of the model in its place: with the blocks that the provider made, as they are."""
    payload = read_native(message, name).get("payload")
    if not isinstance(payload, list):
        return message
    blocks = [{"as_is": block} for block in payload]
    return {"role": "assistant", "content": None, NATIVE: {"format": name, "blocks": blocks}}


def add_native(message: Message, name: str, **kept: Any) -> Message:
    """Add the rest of the item to *message*, unless there is nothing."""
    native = {key: value for key, value in kept.items() if value is not None}
    if native:
        message[NATIVE] = {"format": name, "v": NATIVE_VERSION, **native}
    return message


def read_blocks(dialect: Dialect, blocks: Sequence[Block]) -> tuple[Any, list[Block], dict[str, Any]]:
    """Return the content and the calls of a chat message that says *blocks*, and the fields of its ``native``."""
    parts: list[Block] = []
    calls: list[Block] = []
    made: list[Block] = []
    for block in blocks:
        said = dialect.read(block) if isinstance(block, dict) else None
        if said is None:
            made.append({"as_is": block})
            continue
        form = dialect.find_form(block)
        if isinstance(said, list):
            one: Block = {"parts": [len(parts), len(said)]}
            other = dialect.write_parts(said, form)
            parts += said
        else:
            one, other = {"call": len(calls)}, dialect.write_call(said, form)
            calls.append(said)
        kept = {"form": form, "but": find_difference(block, other)}
        made.append(one | {key: value for key, value in kept.items() if value})
    is_text_alone = len(parts) == 1 and is_text(parts[0])
    plain = [*[{"parts": [number, 1]} for number in range(len(parts))], *[{"call": n} for n in range(len(calls))]]
    needed: dict[str, Any] = {}
    if made != plain or (dialect.writes_texts and is_text_alone and not calls):
        needed = {"blocks": made} if is_text_alone else {"blocks": made, "parts": len(parts)}
    return parts[0]["text"] if is_text_alone else parts or None, calls, needed


def write_blocks(dialect: Dialect, message: Mapping[str, Any], native: Mapping[str, Any]) -> list[Block]:
    """Return the blocks that *message* says, with everything that *native* keeps of them."""
    content, parts = message.get("content"), list_parts(message)
    calls = list_calls(message)
    is_whole = native.get("parts") == (None if isinstance(content, str) else len(parts))
    made = native.get("blocks")
    if not isinstance(made, list):
        made = [{"parts": [number, 1]} for number in range(len(parts))]
        made += [{"call": number} for number in range(len(calls))]
    elif not is_whole:  # one text stands for all parts now
        made = [one for one in made if isinstance(one, dict)]
        texts = [place for place, one in enumerate(made) if "parts" in one]
        first_call = next((place for place, one in enumerate(made) if "call" in one), len(made))
        at = texts[0] if texts else first_call
        text: list[Block] = [{"parts": [number, 1]} for number in range(len(parts))]
        made = [*made[:at], *text, *[one for one in made[at:] if "parts" not in one]]
    blocks: list[Block] = []
    for one in made:
        match one:
            case {"as_is": block}:
                blocks.append(to_plain(block))
            case {"parts": [int(first), int(count)], **rest} if parts[first : first + count]:
                written = dialect.write_parts(parts[first : first + count], str(rest.get("form", "")))
                if written is not None:
                    blocks.append(restore_difference(written, rest.get("but") if is_whole else None))
            case {"call": int(number), **rest} if number < len(calls):
                written = dialect.write_call(calls[number], str(rest.get("form", "")))
                blocks.append(restore_difference(written, rest.get("but")))
    return blocks


def list_parts(message: Mapping[str, Any]) -> list[Block]:
    """Return the parts of a chat message's content; a text is one."""
    content = message.get("content")
    given = [content] if isinstance(content, (str, Mapping)) else content or ()
    return [dict(part) if isinstance(part, Mapping) else {"type": "text", "text": str(part)} for part in given]


def is_text(part: Any) -> bool:
    """Return whether a chat part is a text and nothing else."""
    return isinstance(part, Mapping) and part.keys() == {"type", "text"} and isinstance(part["text"], str)


def read_part_text(part: Mapping[str, Any]) -> str:
    """Return a chat part as text, for a format that has no block for it: a mark for media."""
    text = next((part[key] for key in ("text", "refusal") if isinstance(part.get(key), str)), None)
    return text if text is not None else f"[{part.get('type', 'part')}]"


def list_calls(message: Mapping[str, Any]) -> list[Block]:
    """Return the calls of a chat message; in another role's than the model's, the key says nothing."""
    calls = message.get("tool_calls") if message.get("role") == "assistant" else None
    return [call for call in calls if isinstance(call, dict) and "id" in call] if isinstance(calls, list) else []


def read_call(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of a chat call, and its arguments or its input as they are."""
    return chat.read_call(call.get("function") or call.get("custom") or call)


def read_arguments(given: Any) -> dict[str, Any]:
    """Return the arguments of a call as an object, as providers that do not send text want them."""
    try:
        arguments = json.loads(given or "{}") if isinstance(given, str) else to_plain(given)
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": given}
