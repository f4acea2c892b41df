"""Messages as plain text, which a search finds things in and a person reads, and exactly the same messages back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from memory.errors import ContextError

from ...prompt.groups import Message

#: Under these keys stands what was said; it is never written as JSON, which would escape it.
_SAID = frozenset({"arguments", "content", "text"})
_BELOW = "(below)"
_HEADING = "--- message "
_UNNAMED = "?"


class NotAnArchive(ContextError, ValueError):
    """A text is not what ``archive_of`` returned."""


def archive_of(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return *messages* as plain text: of each one line with its fields as JSON, and below it, line by line and as they
    are, its texts and tool arguments, and whatever else JSON would escape."""
    given = list(messages)
    lines: list[str] = []
    for place, message in enumerate(given, 1):
        texts: list[tuple[str, str]] = []
        fields = json.dumps(_without_texts(message, "", texts), ensure_ascii=False, default=str)
        lines.append(f"{_HEADING}{place} of {len(given)}: {fields}")
        for path, text in texts:
            said = text.split("\n")
            lines += [f"{path}, {len(said)} {'line' if len(said) == 1 else 'lines'}:", *said]
    return "\n".join([*lines, ""])


def messages_in(archive: str) -> list[Message]:
    """Return the messages that ``archive_of`` was given. Raises ``NotAnArchive`` for any other text."""
    if not isinstance(archive, str):
        raise NotAnArchive(f"an archive is a text, not {type(archive).__name__}")
    lines = iter(archive.split("\n"))
    found: list[Message] = []
    try:
        for line in lines:
            if line.startswith(_HEADING):
                found.append(json.loads(line.partition(": ")[2]))
            elif line:
                path, _, size = line.removesuffix(":").rpartition(", ")
                count = int(size.partition(" ")[0])
                said = list(islice(lines, count))
                if not 0 < len(said) == count:
                    raise ValueError(path)
                *folders, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
                where: Any = found[-1]
                for key in folders:
                    where = where[key]
                _ = where[last]
                where[last] = "\n".join(said)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise NotAnArchive("this is no archive of messages, or somebody has changed it") from error
    return found


def _without_texts(value: Any, path: str, texts: list[tuple[str, str]]) -> Any:
    """Return *value* with a mark in the place of each text, which goes to *texts* with its path."""
    if isinstance(value, Mapping):
        return {key: _without_texts(one, _path(path, key), texts) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [
            _without_texts(one, path if path == _UNNAMED else f"{path}/{place}", texts)
            for place, one in enumerate(value)
        ]
    if (
        isinstance(value, str)
        and value
        and path != _UNNAMED
        and (path.rpartition("/")[2] in _SAID or _is_escaped(value))
    ):
        texts.append((path, value))
        return _BELOW
    return value


def _path(folder: str, key: object) -> str:
    """Return where a value stands; below a key that is no plain name, that its texts stay in the line of fields."""
    plain = isinstance(key, str) and key.isascii() and key.replace("_", "").isalnum() and not key.isdecimal()
    if not plain or folder == _UNNAMED:
        return _UNNAMED
    return f"{folder}/{key}" if folder else str(key)


def _is_escaped(text: str) -> bool:
    return json.dumps(text, ensure_ascii=False) != f'"{text}"'
