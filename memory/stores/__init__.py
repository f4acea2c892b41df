"""Where a session's log is kept."""

from __future__ import annotations

from ..errors import StoreError
from .base import Store
from .inmemory import InMemoryStore

__all__ = ["InMemoryStore", "Store", "open_store"]


def open_store(url: str = "memory://") -> Store:
    """Return the store behind *url*. Raises ``StoreError`` for one that this version cannot open."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return InMemoryStore()
    # The rest of a URL may hold a password.
    raise StoreError(f"no store for {scheme!r} URLs; use memory://")
