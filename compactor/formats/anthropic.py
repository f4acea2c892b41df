"""Messages of Anthropic's API: content blocks, and a ``system`` of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from memory.messages import SYSTEM

from ..media import make_data_url, split_data_url
from .native import (
    CONTINUES,
    Block,
    Dialect,
    Message,
    UnknownFormat,
    add_native,
    describe,
    find_difference,
    give_unique_ids,
    list_calls,
    read_arguments,
    read_blocks,
    read_call,
    read_items,
    read_messages,
    read_native,
    read_part_text,
    restore_difference,
    show_payload,
    suggest_format,
    to_plain,
    write_blocks,
)
from .parts import make_call, make_file

__all__ = ["MAX_CACHE_BREAKPOINTS", "NAME", "from_chat", "to_chat"]

NAME = "anthropic"
#: Anthropic's limit for one request.
MAX_CACHE_BREAKPOINTS = 4


def to_chat(messages: Iterable[Any], *, system: str | Sequence[Any] | None = None) -> list[Message]:
    """Return *messages*, and the request's *system* before them, as chat messages for a ``Memory``.

    Each result in a user message becomes a message of its own. Takes mappings, and objects of the SDK. Raises
    ``UnknownFormat``, which describes the item.
    """
    front: list[Message] = []
    if isinstance(system, str):
        front.append({"role": "system", "content": system})
    elif system is not None:
        content, _, kept = read_blocks(DIALECT, list(read_items(system, NAME)))
        front.append(add_native({"role": "system", "content": content}, NAME, **kept))
    return [*front, *chain.from_iterable(read_each(messages))]


def read_each(messages: Iterable[Any]) -> Iterator[list[Message]]:
    """Yield for each of *messages* its chat messages: ``to_chat``, in parts."""
    role_before = ""
    for place, item in enumerate(read_items(messages, NAME), 1):
        role, content = item.get("role"), item.get("content")
        if role not in ("user", "assistant", "system") or not isinstance(content, (str, list)):
            raise UnknownFormat(
                f"message {place} is no anthropic message, with a role and a content that is a text or a list of"
                f" blocks: {describe(item)}{suggest_format(item, NAME)}"
            )
        side = "assistant" if role == "assistant" else "user"
        plain = {"role": side, "content": content}
        chat = _split(role, content, place)
        for number, message in enumerate(chat):
            native = message.pop("native", {})
            native["item"] = find_difference(item, plain) if number == 0 else None
            native["joined"] = False if number == 0 and side == role_before else None
            add_native(message, NAME, **native)
        yield chat
        role_before = side


def from_chat(
    messages: Iterable[Mapping[str, Any]], *, max_cache_breakpoints: int = MAX_CACHE_BREAKPOINTS
) -> dict[str, Any]:
    """Return ``{"system": ..., "messages": ...}`` of a prompt's *messages*, for ``client.messages.create``.

    Without pressure these equal the input of ``to_chat``. ``system`` is missing if there is none. Messages that
    Anthropic would refuse are not made: the user begins, and nobody says a blank text. Of more blocks with
    ``cache_control`` than *max_cache_breakpoints*, those of ``system`` keep it, and the newest: a host that moves it on
    with each turn leaves it behind in the log. Give less if your tools have some.
    """
    system: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    made: list[Block] = []
    for given in give_unique_ids(read_messages(messages, NAME)):
        message = given if made else show_payload(given, NAME)  # only the first block may be one
        native = read_native(message, NAME)
        if message["role"] in SYSTEM and not made:
            system.append((message, native))
        else:
            _append(made, message, native)
    if made and made[0]["role"] != "user" and not _is_compaction(made[0]["content"]):
        made.insert(0, {"role": "user", "content": CONTINUES})
    request = {**_write_system(system), "messages": made}
    limit_breakpoints(max_cache_breakpoints, made, request.get("system"))
    return request


def _is_compaction(content: Any) -> bool:
    """Return whether *content* begins with a block that stands for all before it, which must be the first."""
    return isinstance(content, list) and content[0].get("type") == "compaction"


def limit_breakpoints(maximum: int, *contents: Any) -> None:
    """Leave ``cache_control`` on *maximum* blocks of *contents*, the last ones."""
    found = [block for content in contents for block in find_breakpoints(content)]
    for block in found[: max(len(found) - maximum, 0)]:
        del block["cache_control"]


def find_breakpoints(value: Any) -> Iterator[Block]:
    """Yield the blocks with ``cache_control`` in *value*, also within messages and results."""
    for block in value if isinstance(value, list) else ():
        if isinstance(block, dict):
            if block.get("cache_control"):
                yield block
            yield from find_breakpoints(block.get("content"))


def _split(role: str, content: str | list[Any], index: int) -> list[Message]:
    """Return the chat messages of one message: each result alone, and the blocks between them."""
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    runs: list[list[Block]] = []
    for block in content:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise UnknownFormat(
                f"message {index}.content has what is {describe(block)}, and no anthropic block with a type"
            )
        is_result = role == "user" and _is_result(block)
        if is_result or not runs or _is_result(runs[-1][0]):
            runs.append([])
        runs[-1].append(block)
    return [_read_result(run[0]) if role == "user" and _is_result(run[0]) else _read_run(role, run) for run in runs]


def _read_run(role: str, blocks: list[Block]) -> Message:
    content, calls, kept = read_blocks(DIALECT, blocks)
    message: Message = {"role": role, "content": content}
    if calls:
        message["tool_calls"] = calls
    return {**message, "native": kept}


def _is_result(block: Block) -> bool:
    return block["type"] == "tool_result" and isinstance(block.get("tool_use_id"), str)


def _read_result(block: Block) -> Message:
    content = block.get("content")
    kept: dict[str, Any] = {}
    if isinstance(content, list):
        content, _, kept = read_blocks(DIALECT, content)
    message: Message = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content or ""}
    plain = _write_result(message)
    if block.get("content"):  # any other, such as an empty list, is part of the difference
        plain["content"] = block["content"]
    return {**message, "native": {**kept, "result": find_difference(block, plain)}}


def _write_result(message: Mapping[str, Any]) -> Block:
    return {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": message.get("content")}


def _append(messages: list[Block], message: Mapping[str, Any], native: Mapping[str, Any]) -> None:
    """Add the blocks of *message* to *messages*: to its last message, or as a new one."""
    role = "assistant" if message["role"] == "assistant" else "user"
    content: Any = message.get("content")
    if message["role"] == "tool":
        result = _write_result(message)
        if not isinstance(content, str) or native.get("blocks") is not None:
            result["content"] = write_blocks(DIALECT, message, native)
        content = [restore_difference(result, native.get("result"))]
    elif not isinstance(content, str) or list_calls(message) or "blocks" in native:
        content = write_blocks(DIALECT, message, native)
    if not (content.strip() if isinstance(content, str) else content):
        return
    is_joined = native.get("joined", True) and bool(messages) and messages[-1]["role"] == role
    if not is_joined:
        messages.append(restore_difference({"role": role, "content": content}, native.get("item")))
        return
    before = messages[-1]
    messages[-1] = {**before, "content": [*_list_blocks(before["content"]), *_list_blocks(content)]}


def _list_blocks(content: str | list[Block]) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _write_system(system: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    if len(system) == 1 and isinstance(system[0][0].get("content"), str) and not system[0][1]:
        return {"system": system[0][0]["content"]}
    blocks = [block for message, native in system for block in write_blocks(DIALECT, message, native)]
    return {"system": blocks} if system else {}


def _read(block: Block) -> list[Block] | Block | None:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return [{"type": "text", "text": block["text"]}]
    if kind == "tool_use" and isinstance(block.get("id"), str) and isinstance(block.get("name"), str):
        return make_call(block["id"], block["name"], block.get("input"))
    if kind not in ("image", "document", "search_result"):
        return None
    source = block.get("source")
    if not isinstance(source, dict):
        return [block]
    media_type = source.get("media_type")
    if source.get("type") == "base64" and isinstance(source.get("data"), str) and isinstance(media_type, str):
        url = make_data_url(media_type, source["data"])
    elif source.get("type") == "url" and isinstance(source.get("url"), str) and kind == "image":
        url = source["url"]
    else:
        return [block]
    return [make_file(url, is_image=kind == "image")]


def _write_parts(parts: Sequence[Block], _: str) -> Block | None:
    part = parts[0]
    kind = part.get("type")
    given: Any = part.get(kind) if isinstance(kind, str) else None
    if kind == "image_url" and isinstance(given, Mapping) and isinstance(given.get("url"), str):
        data = split_data_url(given["url"])
        if data is None:
            return {"type": "image", "source": {"type": "url", "url": given["url"]}}
        return {"type": "image", "source": {"type": "base64", "media_type": data[0], "data": data[1]}}
    if kind == "file" and isinstance(given, Mapping) and (data := split_data_url(given.get("file_data"))) is not None:
        return {"type": "document", "source": {"type": "base64", "media_type": data[0], "data": data[1]}}
    if kind in ("image", "document", "search_result"):
        return dict(to_plain(part))
    text = read_part_text(part)
    return {"type": "text", "text": text} if text.strip() else None  # models say a line break before a call


def _write_call(call: Block, _: str) -> Block:
    name, given = read_call(call)
    return {"type": "tool_use", "id": call.get("id"), "name": name, "input": read_arguments(given)}


DIALECT = Dialect(NAME, _read, _write_parts, _write_call, writes_texts=True)
