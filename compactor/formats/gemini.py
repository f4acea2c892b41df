"""Contents of Google's Gemini API: parts, calls that need no ids, and a ``system_instruction`` of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from memory.messages import SYSTEM
from memory.rounds import run_dump

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
    is_same,
    list_calls,
    list_parts,
    read_arguments,
    read_blocks,
    read_call,
    read_items,
    read_messages,
    read_native,
    read_part_text,
    restore_difference,
    suggest_format,
    write_blocks,
)
from .parts import make_call, make_file

__all__ = ["NAME", "from_chat", "to_chat"]

NAME = "gemini"
#: The form of a part with keys as REST writes them. Python's SDK writes ``function_call``; Google reads both.
CAMEL = "camel"
_SPELLINGS = {
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "inline_data": "inlineData",
    "file_data": "fileData",
    "mime_type": "mimeType",
    "file_uri": "fileUri",
}
_CAMELS = frozenset(_SPELLINGS.values())
#: The fields that a part of text alone was made with.
_TEXT = {"text"}
#: The key of a function's response that is a text alone.
_RESULT = "result"


def to_chat(contents: Iterable[Any], *, system: str | Mapping[str, Any] | None = None) -> list[Message]:
    """Return *contents*, and the request's *system* instruction before them, as chat messages for a ``Memory``.

    Each function response becomes a message of its own. A call without an id gets one made of its name. Takes mappings,
    in either spelling of their keys, and objects of the SDK. Raises ``UnknownFormat``, which describes the item.
    """
    front: list[Message] = []
    if isinstance(system, str):
        front.append({"role": "system", "content": system})
    elif system is not None:
        item = next(read_items([system], NAME))
        parts = _read_parts(item, "the system instruction")
        content, _, kept = read_blocks(DIALECT, parts)
        kept |= {"item": find_difference(item, {"parts": parts}), "form": "content"}
        front.append(add_native({"role": "system", "content": content}, NAME, **kept))
    return [*front, *chain.from_iterable(read_each(contents))]


def read_each(contents: Iterable[Any]) -> Iterator[list[Message]]:
    """Yield for each of *contents* its messages: ``to_chat``, in parts."""
    role_before = ""
    waiting: dict[str, list[str]] = {}
    for place, item in enumerate(read_items(contents, NAME), 1):
        parts = _read_parts(item, f"content {place}")
        role = "assistant" if item.get("role") == "model" else "user"
        plain = {"role": "model" if role == "assistant" else "user", "parts": parts}
        messages = []
        for number, (message, kept) in enumerate(_split(role, parts, waiting)):
            kept["item"] = find_difference(item, plain) if number == 0 else None
            kept["joined"] = False if number == 0 and role == role_before else None
            messages.append(add_native(message, NAME, **kept))
        yield messages
        role_before = role


def open_content(item: Any) -> dict[str, Any]:
    """Return the SDK's *item* as a mapping that has its own parts, but for those of text alone: ``read_each`` takes it
    in less time."""
    parts = [{"text": one.text} if one.model_fields_set == _TEXT and one.text else one for one in item.parts or ()]
    return {"role": item.role, "parts": parts} if item.role else {"parts": parts}


def print_content(item: Any) -> str:
    """Return a text that equal contents of the SDK share, and no others."""
    return str(run_dump(partial(item.model_dump_json, exclude_none=True)))


def from_chat(messages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``{"system_instruction": ..., "contents": ...}`` of a prompt's *messages*.

    Without pressure these equal the input of ``to_chat``. ``system_instruction`` is missing if there is none. The user
    begins, and nobody says an empty text.
    """
    system: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    contents: list[Block] = []
    names: dict[str, str] = {}
    for message in read_messages(messages, NAME):
        native = read_native(message, NAME)
        if message["role"] in SYSTEM and not contents:
            system.append((message, native))
            continue
        for call in list_calls(message):
            names[call["id"]] = read_call(call)[0]
        _append(contents, message, native, names)
    if contents and contents[0].get("role") == "model":
        contents.insert(0, {"role": "user", "parts": [{"text": CONTINUES}]})
    return {**_write_system(system), "contents": contents}


def _read_parts(item: Block, where: str) -> list[Block]:
    parts = item.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise UnknownFormat(
            f"{where} is no gemini content with a list of parts: {describe(item)}{suggest_format(item, NAME)}"
        )
    return parts


def _get(part: Mapping[str, Any], key: str) -> Any:
    """Return the value of *key* in either spelling."""
    return part.get(key, part.get(_SPELLINGS[key]))


def _spell(block: Block, form: str) -> Block:
    """Return *block* with its keys as *form* spells them, also one level down."""
    if form != CAMEL:
        return block
    respelled = {_SPELLINGS.get(key, key): value for key, value in block.items()}
    for key in respelled.keys() & {"inlineData", "fileData"}:
        respelled[key] = {_SPELLINGS.get(inner, inner): one for inner, one in respelled[key].items()}
    return respelled


def _find_form(block: Block) -> str:
    return "" if _CAMELS.isdisjoint(block) else CAMEL


def _split(role: str, parts: list[Block], open_calls: dict[str, list[str]]) -> list[tuple[Message, dict[str, Any]]]:
    """Return the chat messages of one content, each with the fields for ``native``. *open_calls* has the ids of calls
    without a response, by name."""
    match parts:
        case [{"text": str(text), **rest}] if text and not rest:  # most
            return [({"role": role, "content": text}, {})]
    runs: list[list[Block]] = []
    for part in parts:
        response = isinstance(_get(part, "function_response"), dict)
        if response or not runs or _get(runs[-1][0], "function_response"):
            runs.append([])
        runs[-1].append(part)
    answered: set[str] = set()
    return [
        _read_response(run[0], open_calls, answered)
        if isinstance(_get(run[0], "function_response"), dict)
        else _read_run(role, run, open_calls)
        for run in runs
    ]


def _read_run(role: str, parts: list[Block], open_calls: dict[str, list[str]]) -> tuple[Message, dict[str, Any]]:
    content, calls, kept = read_blocks(DIALECT, parts)
    message: Message = {"role": role, "content": content}
    if calls and role == "assistant":
        open_calls.clear()
        taken = {call["id"] for call in calls}
        for call in calls:
            name = call["function"]["name"]
            call["id"] = call["id"] or _make_id(name, taken)
            taken.add(call["id"])
            open_calls.setdefault(name, []).append(call["id"])
        message["tool_calls"] = calls
    return message, kept


def _make_id(name: str, taken: Collection[str] = ()) -> str:
    """Return an id made of a function's *name*, in letters that every provider takes."""
    plain, number = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:40], 1
    while (made := plain if number == 1 else f"{plain}-{number}") in taken:
        number += 1
    return made


def _read_response(part: Block, open_calls: dict[str, list[str]], answered: set[str]) -> tuple[Message, dict[str, Any]]:
    """Return a response as a message. If its call is not in *open_calls*, because it was converted before, it gets
    the id that the call got: *answered* has those of the responses beside it."""
    given = _get(part, "function_response")
    name, response = str(given.get("name")), given.get("response")
    ids = open_calls.get(name) or []
    call_id = given["id"] if isinstance(given.get("id"), str) else (ids[0] if ids else _make_id(name, answered))
    answered.add(call_id)
    if call_id in ids:
        ids.remove(call_id)
    key = None
    if isinstance(response, dict) and len(response) == 1 and isinstance(text := next(iter(response.values())), str):
        content = text
        key = None if is_same(_make_response(text, None), response) else next(iter(response))
    else:
        content = json.dumps(response, ensure_ascii=False)
    message: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
    kept: dict[str, Any] = {"key": key, "form": _find_form(part) or None}
    kept["result"] = find_difference(part, _write_response(message, kept, name))
    return message, kept


def _make_response(text: str, key: str | None) -> Any:
    """Return the response that *text* says: an object if it is one as JSON, else under *key*."""
    if key is None and text.lstrip().startswith("{"):
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            given = None
        if isinstance(given, dict):
            return given
    return {key or _RESULT: text}


def _write_response(message: Mapping[str, Any], native: Mapping[str, Any], name: str) -> Block:
    text = "\n".join(map(read_part_text, list_parts(message)))
    response = {"name": name, "response": _make_response(text, native.get("key"))}
    return _spell({"function_response": response}, native.get("form") or "")


def _append(
    contents: list[Block], message: Mapping[str, Any], native: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """Add the parts of *message* to *contents*: to the last one, or as a new one."""
    role = "model" if message["role"] == "assistant" else "user"
    if message["role"] == "tool":
        call_id = str(message.get("tool_call_id"))
        response = _write_response(message, native, names.get(call_id, call_id))
        parts = [restore_difference(response, native.get("result"))]
    else:
        parts = write_blocks(DIALECT, message, native)
    if not parts:
        return
    # Results may have a role of their own: whoever is not the model is the user.
    if native.get("joined", True) and contents and (contents[-1].get("role") == "model") == (role == "model"):
        contents[-1] = {**contents[-1], "parts": [*contents[-1]["parts"], *parts]}
    else:
        contents.append(restore_difference({"role": role, "parts": parts}, native.get("item")))


def _write_system(system: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    if len(system) == 1 and isinstance(system[0][0].get("content"), str) and not system[0][1]:
        return {"system_instruction": system[0][0]["content"]}
    parts = [part for message, native in system for part in write_blocks(DIALECT, message, native)]
    item = system[0][1].get("item") if system else None
    return {"system_instruction": restore_difference({"parts": parts}, item)} if system else {}


def _read(part: Block) -> list[Block] | Block | None:
    if part.get("thought"):
        return None
    if isinstance(part.get("text"), str) and part["text"]:
        return [{"type": "text", "text": part["text"]}]
    if isinstance(called := _get(part, "function_call"), dict) and isinstance(called.get("name"), str):
        given = called["id"] if isinstance(called.get("id"), str) else ""
        return make_call(given, called["name"], called.get("args") or {})
    for key, value in (("inline_data", "data"), ("file_data", "file_uri")):
        blob = _get(part, key)
        if isinstance(blob, dict):
            media_type = str(blob.get("mime_type", blob.get("mimeType", "")))
            given = blob.get(value, blob.get("fileUri"))
            if isinstance(given, str):
                return [_read_media(media_type, given, is_inline=key == "inline_data")]
    return None


def _read_media(media_type: str, given: str, *, is_inline: bool) -> Block:
    if is_inline and media_type.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": given, "format": media_type.removeprefix("audio/")}}
    url = make_data_url(media_type, given) if is_inline else given
    return make_file(url, is_image=media_type.startswith("image/"))


def _write_parts(parts: Sequence[Block], form: str) -> Block | None:
    part = parts[0]
    kind = part.get("type")
    given: Any = part.get(kind) if isinstance(kind, str) else None
    if isinstance(given, Mapping):
        if kind == "input_audio":
            blob = {"mime_type": f"audio/{given.get('format')}", "data": given.get("data")}
            return _spell({"inline_data": blob}, form)
        url = next((given[key] for key in ("url", "file_data", "file_id") if isinstance(given.get(key), str)), None)
        if (data := split_data_url(url)) is not None:
            return _spell({"inline_data": {"mime_type": data[0], "data": data[1]}}, form)
        if url is not None:
            return _spell({"file_data": {"file_uri": url}}, form)
    text = read_part_text(part)
    return {"text": text} if text else None


def _write_call(call: Block, form: str) -> Block:
    name, given = read_call(call)
    return _spell({"function_call": {"name": name, "args": read_arguments(given)}}, form)


DIALECT = Dialect(NAME, _read, _write_parts, _write_call, _find_form)
