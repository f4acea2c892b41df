"""A user's own transcripts: conversations in OpenAI's chat format, out of a JSON or JSONL file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory import MessageError
from memory.messages import parse

from .terminal import CannotRun, one_line

_SHAPES = 'a list of messages, {"messages": [...]}, a list of such conversations, or one message or conversation a line'


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in OpenAI's format, each of them one that Memory takes."""

    #: Its ``id`` in the file, else its number there.
    name: str
    messages: tuple[Mapping[str, Any], ...]


def read(path: str) -> list[Conversation]:
    """Return the conversations in the file at *path*, or on standard input for ``-``; there is at least one.

    Raises ``CannotRun``, naming line, conversation and message, for what cannot be used.
    """
    name = "standard input" if path == "-" else path
    text = _text(path, name)
    if not text.strip():
        raise CannotRun(f"{name}: is empty; it needs {_SHAPES}")
    found = list(_conversations(_values(text, name), name))
    if not found:
        raise CannotRun(f"{name}: holds no conversation; it needs {_SHAPES}")
    return found


def joined(conversations: list[Conversation]) -> Conversation:
    """Return all *conversations* as one, in their order, with every message as it stands.

    A later conversation's system messages are messages in the middle then: nothing is left out.
    """
    name = conversations[0].name if len(conversations) == 1 else f"1-{len(conversations)} joined"
    return Conversation(name, tuple(message for one in conversations for message in one.messages))


# -- text -------------------------------------------------------------------------------------------------------------


def _text(path: str, name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = "is a folder" if Path(path).is_dir() else getattr(error, "strerror", None) or "no such file"
        raise CannotRun(f"{name}: cannot be read ({reason}); give the path of a JSON or JSONL file") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CannotRun(f"{name}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if "\0" in text:
        raise CannotRun(f"{name}: is binary, not text; give a JSON or JSONL file")
    return text


def _values(text: str, name: str) -> list[tuple[str, Any]]:
    """Return the JSON values in *text* and where each stands: the file's one value, or one of each line."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        return [(f"line {number}", _value(line, name, number)) for number, line in lines]
    value = _value(text, name, 1)
    if isinstance(value, list) and not (value and _is_message(value[0])):
        return [(f"conversation {number}", one) for number, one in enumerate(value, 1)]
    return [("", value)]


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _value(text: str, name: str, first_line: int) -> Any:
    # None of these is kept as a cause: they carry the whole text.
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise CannotRun(f"{name}: is not JSON (line {line}, column {error.colno}: {error.msg})") from None
    except RecursionError:
        raise CannotRun(f"{name}: is nested too deeply to be read (line {first_line})") from None
    except ValueError:  # a number of thousands of digits
        raise CannotRun(f"{name}: holds a number too long to be read (line {first_line})") from None


# -- shapes -----------------------------------------------------------------------------------------------------------


def _conversations(values: list[tuple[str, Any]], name: str) -> Iterator[Conversation]:
    if values and all(_is_message(value) for _, value in values):  # one a line
        yield Conversation("1", tuple(_checked(value, f"{name}, {where}") for where, value in values))
        return
    for number, (where, value) in enumerate(values, 1):
        yield _conversation(value, number, f"{name}, {where}" if where else name)


def _conversation(value: Any, number: int, where: str) -> Conversation:
    known_as = value.get("id") if isinstance(value, dict) else None
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list):
        if _is_message(value):
            raise CannotRun(f"{where}: is a message among conversations; the file must hold the one or the other")
        raise CannotRun(f"{where}: is no conversation but {_kind(value)}; needed is {_SHAPES}")
    shown = one_line(str(known_as), 40) if isinstance(known_as, (str, int)) else str(number)
    checked = tuple(_checked(message, f"{where}, message {place}") for place, message in enumerate(messages, 1))
    return Conversation(shown, checked)


def _checked(message: Any, where: str) -> Mapping[str, Any]:
    try:
        parse(message)
    except MessageError as error:
        raise CannotRun(f"{where}: {error}") from error
    return message  # type: ignore[no-any-return]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "messages" not in value


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "an object without a list of messages"
    return {str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")
