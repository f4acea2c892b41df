"""Other providers' message formats, in and out: histories become chat messages, prompts become requests.

Each format is a module with ``to_chat`` and ``from_chat``. A chat message cannot say everything: signed thinking, for
example, is kept beside it, and comes back as it was. Import this package only if you need it; of ours, summarizers on
those providers' clients do, at their first request. Modules for frameworks' messages serve their adapters alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import anthropic, chat, gemini, responses
from .native import Message, UnknownFormat, describe, name_format, read_items

__all__ = ["FORMATS", "UnknownFormat", "anthropic", "chat", "detect", "from_chat", "gemini", "responses", "to_chat"]

_MODULES = {module.NAME: module for module in (chat, responses, anthropic, gemini)}
#: The names of the known formats.
FORMATS = tuple(_MODULES)


def detect(items: Iterable[Any]) -> str:
    """Return the name of the format of *items*; ``chat`` for plain messages, which several formats share.

    Raises ``UnknownFormat``, which names the first item that is of none, or two that are of different ones.
    """
    known = ", ".join(FORMATS)
    found, at = "", 0
    for place, item in enumerate(read_items(items, "messages"), 1):
        name = name_format(item)
        if name is None:
            raise UnknownFormat(f"item {place} is {describe(item)}: of no known format; the known ones are {known}")
        if name and found and name != found:
            raise UnknownFormat(f"item {at} is of the format {found}, item {place} of {name}; convert each by its own")
        if name and not found:
            found, at = name, place
    return found or chat.NAME


def to_chat(items: Iterable[Any], format: str = "") -> list[Message]:  # noqa: A002  (the word that hosts look for)
    """Return *items* as chat messages for a ``Memory``; detects the *format*. Raises ``UnknownFormat``."""
    items = list(items) if isinstance(items, Iterator) else items
    return list(_find(format or detect(items)).to_chat(items))


def from_chat(messages: Iterable[Mapping[str, Any]], format: str) -> dict[str, Any]:  # noqa: A002
    """Return a prompt's *messages* as part of a request in that *format*. Raises ``UnknownFormat``."""
    return dict(_find(format).from_chat(messages))


def _find(name: str) -> Any:
    if name not in _MODULES:
        raise UnknownFormat(f"there is no format {name!r}; the known ones are {', '.join(FORMATS)}")
    return _MODULES[name]
