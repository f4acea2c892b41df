"""Messages as plain text that people can read and search, and exactly the same messages back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from memory import ContextError

from ...prompt.groups import Message

#: The keys of texts, which are never written as JSON: that would escape them.
_TEXT_KEYS = frozenset({"arguments", "content", "text"})
_BELOW = "(below)"
_HEADING = "--- message "
_UNNAMED = "?"


class NotAnArchive(ContextError, ValueError):
    """A text is not a result of ``archive_of``."""


def archive_of(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return *messages* as plain text: for each, one line with its fields as JSON, and below it, unescaped, its texts,
    its tool arguments, and all other strings that JSON would escape."""
    given = list(messages)
    lines: list[str] = []
    for place, message in enumerate(given, 1):
        texts: list[tuple[str, str]] = []
        fields = json.dumps(_extract_texts(message, "", texts), ensure_ascii=False, default=str)
        lines.append(f"{_HEADING}{place} of {len(given)}: {fields}")
        for path, text in texts:
            below = text.split("\n")
            lines += [f"{path}, {len(below)} {'line' if len(below) == 1 else 'lines'}:", *below]
    return "\n".join([*lines, ""])


def messages_in(archive: str) -> list[Message]:
    """Return the messages that ``archive_of`` was given. Raises ``NotAnArchive`` for any other text."""
    if not isinstance(archive, str):
        raise NotAnArchive(f"an archive is a text, not {type(archive).__name__}")
    lines = iter(archive.split("\n"))
    messages: list[Message] = []
    try:
        for line in lines:
            if line.startswith(_HEADING):
                messages.append(json.loads(line.partition(": ")[2]))
            elif line:
                path, _, size = line.removesuffix(":").rpartition(", ")
                count = int(size.partition(" ")[0])
                below = list(islice(lines, count))
                if not 0 < len(below) == count:
                    raise ValueError(path)
                *folders, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
                where: Any = messages[-1]
                for key in folders:
                    where = where[key]
                _ = where[last]
                where[last] = "\n".join(below)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise NotAnArchive("this is no archive of messages, or somebody has changed it") from error
    return messages


def _extract_texts(value: Any, path: str, texts: list[tuple[str, str]]) -> Any:
    """Return *value* with a mark instead of each text; the texts are appended to *texts* with their paths."""
    if isinstance(value, Mapping):
        return {key: _extract_texts(one, _join_path(path, key), texts) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [
            _extract_texts(one, path if path == _UNNAMED else f"{path}/{place}", texts)
            for place, one in enumerate(value)
        ]
    if not isinstance(value, str) or not value or path == _UNNAMED:
        return value
    if path.rpartition("/")[2] not in _TEXT_KEYS and json.dumps(value, ensure_ascii=False) == f'"{value}"':
        return value  # JSON would escape nothing in it
    texts.append((path, value))
    return _BELOW


def _join_path(folder: str, key: object) -> str:
    """Return the path of a value. Below a key that is not a plain name it is unknown, and texts stay in the JSON."""
    plain = isinstance(key, str) and key.isascii() and key.replace("_", "").isalnum() and not key.isdecimal()
    if not plain or folder == _UNNAMED:
        return _UNNAMED
    return f"{folder}/{key}" if folder else str(key)
