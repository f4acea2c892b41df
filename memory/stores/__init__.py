"""Where a session's log is kept."""

from __future__ import annotations

from ..errors import StoreError
from .base import Checkpoint, FoundTexts, IndexedStore, LeasingStore, SearchableStore, Store, StoredText
from .inmemory import InMemoryStore

__all__ = [
    "Checkpoint",
    "FoundTexts",
    "InMemoryStore",
    "IndexedStore",
    "LeasingStore",
    "SearchableStore",
    "Store",
    "StoredText",
    "open_store",
]


def open_store(url: str = "memory://") -> Store:
    """Return the store behind *url*. Raises ``StoreError`` for one that this version cannot open."""
    scheme, found, _ = url.partition("://")
    if scheme == "memory" and found:
        return InMemoryStore()
    # Only the scheme is shown: the rest of a URL may hold a password.
    raise StoreError(f"there is no store for {scheme + found if found else 'this'!r}; the URL must be memory://")
