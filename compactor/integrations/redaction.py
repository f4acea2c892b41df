"""Applies a host's redactor to each text of a message, and leaves ids and files as they are."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

#: Keys of a message or a block with values that are not conversation text.
_METADATA_KEYS = frozenset(("role", "type", "id", "tool_call_id", "call_id", "tool_use_id", "format", "signature"))
#: Keys below which every text is conversation text, under any key: tools' arguments and unknown items' contents.
_TEXT_KEYS = frozenset(("input", "arguments", "args", "payload", "action", "operation"))
#: Keys with values that may be files.
_FILE_KEYS = frozenset(("data", "file_data", "url", "image_url", "file_url"))
#: Media types of files in which no text can be replaced.
_match_media: Any = re.compile(
    r"(?:image|audio|video)/.+|application/(?:pdf|zip|gzip|msword|vnd\.[\w.+-]+)", re.ASCII
).fullmatch
#: Formats of ``input_audio``.
_AUDIO_FORMATS = frozenset(("wav", "mp3", "flac", "opus", "pcm16", "aac", "ogg", "webm", "m4a"))
#: Matches a file as a data URL. Text may begin with ``data:``, too.
_match_file: Any = re.compile(
    r"(data:([\w.+-]+/[\w.+-]+)(?:;[\w.=-]+)*;base64,)([A-Za-z0-9+/=_-]*)", re.ASCII
).fullmatch


def redact(value: Any, redactor: Callable[[str], str]) -> Any:
    """Return a copy of a message, or of a part of one, with *redactor* applied to each text.

    Text files are decoded for it. Ids do not change, nor does the data of pictures, audio, video and documents.
    """
    return _redact(value, redactor, is_text=False)


def _redact(value: Any, redactor: Callable[[str], str], *, is_text: bool) -> Any:
    if isinstance(value, str):
        return redactor(value)
    if isinstance(value, Mapping):
        if is_text:
            return {
                redactor(key) if isinstance(key, str) else key: _redact(one, redactor, is_text=True)
                for key, one in value.items()
            }
        return {key: _redact_at(key, one, value, redactor) for key, one in value.items()}
    return [_redact(one, redactor, is_text=is_text) for one in value] if isinstance(value, (list, tuple)) else value


def _redact_at(key: Any, value: Any, block: Mapping[Any, Any], redactor: Callable[[str], str]) -> Any:
    """Return the *value* under *key* of a *block*, redacted."""
    # A changed id is recorded as a list, in ``native``.
    if key in _METADATA_KEYS and (
        isinstance(value, str) or (isinstance(value, list) and not any(map(_is_nested, value)))
    ):
        return value
    if key in _FILE_KEYS and isinstance(value, str):
        if (found := _match_file(value)) is not None:
            return value if _match_media(found[2]) else found[1] + _redact_encoded(found[3], redactor)
        if key == "data" and _contains_file(block):
            kind = block.get("media_type", block.get("mime_type", ""))
            return _redact_encoded(value, redactor) if str(kind).startswith("text/") else value
    # A provider's compaction is not text, and its blocks must stay whole.
    is_text = key in _TEXT_KEYS and not (key == "payload" and "v" in block)
    return _redact(value, redactor, is_text=is_text)


def _contains_file(block: Mapping[Any, Any]) -> bool:
    """Return whether the ``data`` of *block* is a file or encrypted."""
    media = block.get("media_type", block.get("mime_type"))
    kind = block.get("type")
    if kind in ("base64", "redacted_thinking"):
        return True
    is_audio = kind is None and block.get("format") in _AUDIO_FORMATS
    return is_audio or (kind != "text" and isinstance(media, str) and _match_media(media) is not None)


def _redact_encoded(encoded: str, redactor: Callable[[str], str]) -> str:
    """Return base64 text with *redactor* applied to the encoded text, or to *encoded* itself if that is not UTF-8."""
    try:
        text = b64decode(encoded, validate=True).decode()
    except ValueError:
        return redactor(encoded)
    redacted = redactor(text)
    return encoded if redacted == text else b64encode(redacted.encode("utf-8", "replace")).decode()


def _is_nested(value: object) -> bool:
    return isinstance(value, (Mapping, list, tuple))
