"""What a chat message cannot say of a provider's own item, kept beside it under one key.

A chat message made of a provider's item has a key ``native`` if the item cannot be made of the message alone: with the
name of the format, and with what differs. Text is never in there, so a message that was shortened since gives an item
with the shorter text. A message whose item is plain has no such key.

``native`` has some of these keys:

- ``format``: whose item it was. Another format ignores the rest.
- ``item``: how the item differs from the plain one.
- ``blocks``: how each block of the item is made: of parts of the message's content, of one of its calls, or as it is.
- ``parts``: how many parts the content had; absent: it was a text. Otherwise it was shortened, and is one text.
- ``result``: how the block of a tool's result differs from the plain one.
- ``joined``: whether the message continues the item of the message before it; absent: if the roles are the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory.errors import MessageError
from memory.messages import NATIVE

#: Stands first where the prompt begins with a message of the model: providers want the user to begin.
CONTINUES = "[The conversation goes on from here.]"

Message = dict[str, Any]
Block = dict[str, Any]


class UnknownFormat(MessageError):
    """Messages are of no known format, or not of the format that was named."""


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
    form_of: Callable[[Block], str] = lambda _: ""
    #: Writes a text alone as a text, and not as a list of one block.
    writes_texts: bool = False


def read_items(items: Iterable[Any], name: str) -> Iterator[Block]:
    """Yield *items* as plain mappings. Raises ``UnknownFormat`` with the place of one that is none."""
    if isinstance(items, (str, bytes, Mapping)):
        raise UnknownFormat(f"give a list of {name} items, not {describe(items)}; put a single one into a list")
    for place, item in enumerate(items, 1):
        plain = to_plain(item)
        if not isinstance(plain, dict):
            raise UnknownFormat(f"item {place} is {describe(plain)}, and no {name} item")
        yield plain


def to_plain(value: Any) -> Any:
    """Return a copy of *value* in JSON's types. Objects of the providers' SDKs give theirs by ``model_dump``."""
    if isinstance(value, (str, int, float, type(None))):
        return value
    if isinstance(value, Mapping):
        return {key: to_plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json", exclude_none=True)
    return value


def describe(value: object) -> str:
    """Return what *value* is, in words, without its content."""
    if not isinstance(value, Mapping):
        return f"of type {type(value).__name__}"
    kinds = [f"{key} {str(value[key])[:40]!r}" for key in ("role", "type") if isinstance(value.get(key), str)]
    keys = ", ".join(sorted(str(key)[:40] for key in value)[:8])
    return f"a mapping with {' and '.join(kinds) or 'neither role nor type'} (keys: {keys})"


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON, the order of keys included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(is_same, one.values(), other.values()))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def find_difference(native: Any, plain: Any) -> Any:
    """Return how *native* differs from *plain*: None if not at all, ``[value]`` for another value, else by key or by
    place."""
    if is_same(native, plain):
        return None
    if isinstance(native, dict) and isinstance(plain, dict):
        return {"keys": {key: find_difference(one, plain.get(key, _MISSING)) for key, one in native.items()}}
    if isinstance(native, list) and isinstance(plain, list) and len(native) == len(plain):
        return {"each": list(map(find_difference, native, plain))}
    return [native]


_MISSING = object()


def restore_difference(plain: Any, difference: Any) -> Any:
    """Return what ``find_difference`` was given, or the same of a *plain* value that was shortened since."""
    if difference is None:
        return plain
    if isinstance(difference, list):
        return to_plain(difference[0])
    if "each" in difference:
        if not isinstance(plain, list) or len(plain) != len(difference["each"]):
            return plain
        return list(map(restore_difference, plain, difference["each"]))
    if not isinstance(plain, dict):
        return plain
    keys = difference["keys"].items()
    return {key: restore_difference(plain.get(key), kept) for key, kept in keys if kept is not None or key in plain}


def native_of(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return what *message* keeps of an item in the format of that *name*; empty if nothing."""
    native = message.get(NATIVE)
    return native if isinstance(native, Mapping) and native.get("format") == name else {}


def add_native(message: Message, name: str, **kept: Any) -> Message:
    """Add what the item of *message* has beyond it, unless there is nothing."""
    native = {key: value for key, value in kept.items() if value is not None}
    if native:
        message[NATIVE] = {"format": name, **native}
    return message


def read_blocks(dialect: Dialect, blocks: Sequence[Block]) -> tuple[Any, list[Block], dict[str, Any]]:
    """Return the content and the calls of a chat message that says *blocks*, and what its ``native`` needs."""
    parts: list[Block] = []
    calls: list[Block] = []
    made: list[Block] = []
    for block in blocks:
        said = dialect.read(block)
        if said is None:
            made.append({"as_is": block})
            continue
        form = dialect.form_of(block)
        if isinstance(said, list):
            one: Block = {"parts": [len(parts), len(said)]}
            other = dialect.write_parts(said, form)
            parts += said
        else:
            one, other = {"call": len(calls)}, dialect.write_call(said, form)
            calls.append(said)
        made.append(one | _drop_empty({"form": form, "but": find_difference(block, other)}))
    is_text_alone = len(parts) == 1 and is_text(parts[0])
    plain = [*[{"parts": [number, 1]} for number in range(len(parts))], *[{"call": n} for n in range(len(calls))]]
    needed: dict[str, Any] = {}
    if made != plain or (dialect.writes_texts and is_text_alone and not calls):
        needed = {"blocks": made} if is_text_alone else {"blocks": made, "parts": len(parts)}
    return parts[0]["text"] if is_text_alone else parts or None, calls, needed


def _drop_empty(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value}


def write_blocks(dialect: Dialect, message: Mapping[str, Any], native: Mapping[str, Any]) -> list[Block]:
    """Return the blocks that *message* says, with everything that *native* keeps of them."""
    content = message.get("content")
    given = [content] if isinstance(content, str) else content or ()
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in given]
    calls = list(message.get("tool_calls") or ()) if message.get("role") == "assistant" else []
    is_whole = native.get("parts") == (None if isinstance(content, str) else len(parts))
    made = native.get("blocks")
    if made is None:
        made = [{"parts": [number, 1]} for number in range(len(parts))]
        made += [{"call": number} for number in range(len(calls))]
    elif not is_whole:  # one text stands for all parts now
        texts = [place for place, one in enumerate(made) if "parts" in one]
        first_call = next((place for place, one in enumerate(made) if "call" in one), len(made))
        at = texts[0] if texts else first_call
        text: list[Block] = [{"parts": [number, 1]} for number in range(len(parts))]
        made = [*made[:at], *text, *[one for one in made[at:] if "parts" not in one]]
    blocks: list[Block] = []
    for one in made:
        if "as_is" in one:
            blocks.append(to_plain(one["as_is"]))
        elif "parts" in one:
            first, count = one["parts"]
            block = dialect.write_parts(parts[first : first + count], one.get("form", ""))
            if block is not None:
                blocks.append(restore_difference(block, one.get("but") if is_whole else None))
        elif one["call"] < len(calls):
            call = dialect.write_call(calls[one["call"]], one.get("form", ""))
            blocks.append(restore_difference(call, one.get("but")))
    return blocks


def is_text(part: Any) -> bool:
    """Return whether a chat part is a text and nothing else."""
    return isinstance(part, Mapping) and part.keys() == {"type", "text"} and isinstance(part["text"], str)


def text_of_part(part: Mapping[str, Any]) -> str:
    """Return a chat part as text, for a format that has no block for it: a mark for media."""
    text = next((part[key] for key in ("text", "refusal") if isinstance(part.get(key), str)), None)
    return text if text is not None else f"[{part.get('type', 'part')}]"


def split_data_url(url: object) -> tuple[str, str] | None:
    """Return the media type and the base64 text of a data URL; None for any other."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return None
    head, comma, data = url[5:].partition(",")
    return (head.removesuffix(";base64"), data) if comma and head.endswith(";base64") else None


def make_data_url(media_type: str, data: str) -> str:
    """Return the data URL of a base64 text."""
    return f"data:{media_type};base64,{data}"


def read_arguments(asked: Mapping[str, Any]) -> Any:
    """Return the arguments of a chat call as an object, as providers that do not send text want them."""
    text = asked.get("arguments", asked.get("input"))
    try:
        arguments = json.loads(text) if text else {}
    except (TypeError, ValueError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": text}
