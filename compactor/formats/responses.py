"""Input items of OpenAI's Responses API: all that the model says in one turn becomes one chat message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from .native import (
    Block,
    Dialect,
    Message,
    UnknownFormat,
    add_native,
    describe,
    find_difference,
    give_unique_ids,
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
from .parts import make_call

__all__ = ["NAME", "from_chat", "to_chat"]

NAME = "responses"
_ROLES = ("user", "system", "developer")
#: Forms of the model's message, whose content is a text or a list, and of a call whose input is free text.
_LISTED, _CUSTOM = "listed", "custom"
#: Ends of the types of outputs that answer a call. Any other, such as a program's, is an item of the model's turn.
_OUTPUTS = ("_call_output", "tool_search_output")


def to_chat(items: Iterable[Any], *, instructions: str | None = None) -> list[Message]:
    """Return *items*, and the request's *instructions* before them, as chat messages for a ``Memory``.

    The model's items of one turn (reasoning, messages, calls) become one message. Takes mappings, and objects of the
    SDK such as ``response.output``. Raises ``UnknownFormat``, which describes the item.
    """
    front: list[Message] = []
    if instructions is not None:
        front.append(add_native({"role": "system", "content": instructions}, NAME, instructions=True))
    return [*front, *chain.from_iterable(read_each(items))]


def read_each(items: Iterable[Any]) -> list[list[Message]]:
    """Return for each of *items* the messages that begin with it: ``to_chat``, in parts."""
    each: list[list[Message]] = []
    run: list[Block] = []
    shells: dict[str, str] = {}  # a local shell's output names its call by one of these ids as its own
    for place, item in enumerate(read_items(items, NAME), 1):
        kind, role = item.get("type") or _guess_type(item), item.get("role")
        if not isinstance(kind, str) or (
            kind == "message" and (role not in (*_ROLES, "assistant") or "content" not in item)
        ):
            raise UnknownFormat(
                f"item {place} is no responses item, with a type, or a role and a content: {describe(item)}"
                f"{suggest_format(item, NAME)}"
            )
        if kind == "message" and role != "assistant":
            message = _read_message(item)
        elif kind.endswith(_OUTPUTS) and isinstance(
            call_id := item.get("call_id") or shells.get(str(item.get("id"))), str
        ):
            message = _read_output(item, call_id)
        else:
            if kind == "local_shell_call" and isinstance(call_id := item.get("call_id"), str):
                shells |= {str(item.get("id")): call_id, call_id: call_id}
            run.append(item)
            each.append([])
            continue
        if run:
            each[-len(run)].append(_read_run(run))
            run = []
        each.append([message])
    if run:
        each[-len(run)].append(_read_run(run))
    return each


def _guess_type(item: Block) -> str:
    """Return the type of an *item* that names none: a reference has an id, and neither role nor content."""
    return "item_reference" if "id" in item and item.keys() <= {"id", "type"} else "message"


def from_chat(messages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``{"instructions": ..., "input": [...]}`` of a prompt's *messages*, for ``client.responses.create``.

    Without pressure these equal the input of ``to_chat``. ``instructions`` is missing if it got none; other system
    messages, such as a summary, are items. Reasoning stays with the items that it led to.
    """
    request: dict[str, Any] = {}
    items: list[Block] = []
    for given in give_unique_ids(read_messages(messages, NAME)):
        message = show_payload(given, NAME)
        native = read_native(message, NAME)
        if native.get("instructions") and isinstance(message.get("content"), str):
            request["instructions"] = message["content"]
        elif message["role"] == "assistant":
            items += write_blocks(RUN, message, native)
        elif message["role"] == "tool":
            items.append(_write_output(message, native, items))
        else:
            items += _write_message(message, native)
    return {**request, "input": items}


def _read_run(items: list[Block]) -> Message:
    content, calls, kept = read_blocks(RUN, items)
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    return add_native(message, NAME, **kept)


def _read_message(item: Block) -> Message:
    content = item.get("content")
    if isinstance(content, str) and list(item) == ["role", "content"]:  # most
        return item
    kept: dict[str, Any] = {}
    if isinstance(content, list):
        content, _, kept = read_blocks(CONTENT, content)
    plain = {"role": item["role"], "content": item.get("content")}
    kept["item"] = find_difference(item, plain)
    return add_native({"role": item["role"], "content": content}, NAME, **kept)


def _write_message(message: Mapping[str, Any], native: Mapping[str, Any]) -> list[Block]:
    content = message.get("content")
    if not isinstance(content, str) or "blocks" in native:
        content = write_blocks(CONTENT, message, native)
    plain = {"role": message["role"], "content": content}
    return [restore_difference(plain, native.get("item"))] if content or content == "" else []


def _read_output(item: Block, call_id: str) -> Message:
    output = item.get("output")
    kept: dict[str, Any] = {}
    if isinstance(output, list) and all(isinstance(one, dict) and "type" in one for one in output):
        content, _, kept = read_blocks(CONTENT, output)
    elif isinstance(output, str):
        content = output
    else:  # of a tool of OpenAI's own, which takes no text instead
        content, kept = json.dumps(output, ensure_ascii=False), {"as_is": item}
    plain = {"type": "function_call_output", "call_id": call_id, "output": output}
    kept["item"] = find_difference(item, plain) if "as_is" not in kept else None
    return add_native({"role": "tool", "tool_call_id": call_id, "content": content or ""}, NAME, **kept)


def _write_output(message: Mapping[str, Any], native: Mapping[str, Any], items: list[Block]) -> Block:
    """Return the item of a tool's result. If a tool of OpenAI's own cannot take the shortened text, the call in *items*
    and its result read as those of a function."""
    content, as_is = message.get("content"), native.get("as_is")
    call_id = message.get("tool_call_id")
    if as_is is not None:
        if content == json.dumps(as_is.get("output"), ensure_ascii=False):
            return dict(to_plain(as_is))
        for place, item in enumerate(items):
            if item.get("call_id") == call_id and "type" in item:
                arguments = json.dumps(
                    {key: one for key, one in item.items() if key not in ("id", "status", "call_id")}
                )
                name = str(item["type"]).removesuffix("_call")
                items[place] = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    elif not isinstance(content, str) or "blocks" in native:
        content = write_blocks(CONTENT, message, native)
    plain = {"type": "function_call_output", "call_id": call_id, "output": content}
    return dict(restore_difference(plain, native.get("item")))


def _read_item(item: Block) -> list[Block] | Block | None:
    """Return the parts or the call of an item of the model; None for any other item."""
    kind = item.get("type", "message")
    if kind == "message":
        content = item.get("content")
        if isinstance(content, str) and content:
            return [{"type": "text", "text": content}]
        given = content if isinstance(content, list) else []
        parts = [_read_said(one) for one in given if isinstance(one, dict)]
        said = [part for part in parts if part is not None]
        return said if said and len(said) == len(given) else None
    call_id, name = item.get("call_id"), item.get("name")
    if not isinstance(call_id, str):
        return None
    if kind == "function_call" and isinstance(name, str) and isinstance(item.get("arguments"), str):
        return make_call(call_id, name, item["arguments"])
    if kind == "custom_tool_call" and isinstance(name, str) and isinstance(item.get("input"), str):
        return {"id": call_id, "type": "custom", "custom": {"name": name, "input": item["input"]}}
    if kind.endswith("_call"):  # of a tool of OpenAI's own that the host runs
        rest = {key: one for key, one in item.items() if key not in ("id", "status", "call_id", "type")}
        return make_call(call_id, kind.removesuffix("_call"), rest)
    return None


def _read_said(part: Block) -> Block | None:
    for kind, key in (("output_text", "text"), ("refusal", "refusal")):
        if part.get("type") == kind and isinstance(part.get(key), str) and part[key]:
            return {"type": key, key: part[key]}
    return None


def _find_form(item: Block) -> str:
    if item.get("type") == "custom_tool_call":
        return _CUSTOM
    return _LISTED if isinstance(item.get("content"), list) else ""


def _write_items(parts: Sequence[Block], form: str) -> Block | None:
    if not form:
        text = read_part_text(parts[0])
        return {"role": "assistant", "content": text} if text else None
    said = [
        {"type": "refusal", "refusal": part["refusal"]}
        if isinstance(part.get("refusal"), str)
        else {"type": "output_text", "text": read_part_text(part), "annotations": []}
        for part in parts
    ]
    return {"type": "message", "role": "assistant", "content": said}


def _write_call(call: Block, form: str) -> Block:
    name, given = read_call(call)
    text = given if isinstance(given, str) else json.dumps(to_plain(given), ensure_ascii=False)
    own = {"call_id": call.get("id"), "name": name}
    if form == _CUSTOM or call.get("type") == "custom":
        return {"type": "custom_tool_call", **own, "input": text}
    return {"type": "function_call", **own, "arguments": text}


def _read_content(block: Block) -> list[Block] | None:
    """Return the chat part of a user's or a tool's part."""
    kind = block.get("type")
    if kind in ("input_text", "output_text") and isinstance(block.get("text"), str) and block["text"]:
        return [{"type": "text", "text": block["text"]}]
    rest = {key: one for key, one in block.items() if key != "type"}
    if kind == "input_image" and isinstance(rest.get("image_url"), str):
        detail = {"detail": rest["detail"]} if "detail" in rest else {}
        return [{"type": "image_url", "image_url": {"url": rest["image_url"], **detail}}]
    if kind == "input_audio" and "input_audio" in block:
        return [{"type": kind, kind: block[kind]}]
    return [{"type": "file", "file": rest}] if kind == "input_file" else None


def _write_content(parts: Sequence[Block], _: str) -> Block | None:
    part = parts[0]
    kind = part.get("type")
    given: Any = part.get(kind) if isinstance(kind, str) else None
    if kind == "input_audio":
        return dict(to_plain(part))
    if isinstance(given, Mapping) and kind == "image_url":
        detail = {"detail": given["detail"]} if "detail" in given else {}
        return {"type": "input_image", "image_url": given.get("url"), **detail}
    if isinstance(given, Mapping) and kind == "file":
        return {"type": "input_file", **given}
    text = read_part_text(part)
    return {"type": "input_text", "text": text} if text else None


RUN = Dialect(NAME, _read_item, _write_items, _write_call, _find_form)
CONTENT = Dialect(NAME, _read_content, _write_content, _write_call, writes_texts=True)
