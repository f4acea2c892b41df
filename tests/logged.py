"""Entries of a log as a store has them: a kind, and the fields of its body."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from memory import Entry


def entry(kind: str, /, **fields: Any) -> Entry:
    return Entry(kind, body=to_json(fields).decode())


def record(kind: str, /, **fields: Any) -> Any:
    """Return what the library reads from such an entry."""
    return entry(kind, **fields).record
