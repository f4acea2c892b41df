"""Where a session's log is kept."""

from __future__ import annotations

import re

from ..arguments import require
from ..errors import StoreError
from .base import (
    Checkpoint,
    Extent,
    FoundText,
    FoundTexts,
    Store,
    StoredText,
)
from .inmemory import InMemoryStore
from .retention import delete_files, expire, expired

__all__ = [
    "Checkpoint",
    "Extent",
    "FoundText",
    "FoundTexts",
    "InMemoryStore",
    "Store",
    "StoredText",
    "delete_files",
    "expire",
    "expired",
    "open_store",
]


def open_store(url: str = "memory://", *, migrate: bool = True) -> Store:
    """Return the store behind *url*, ready for use. Raises ``StoreError`` for one that this version cannot open.

    ``memory://`` lasts as long as the process. ``sqlite:///chat.db`` is a file, from the working folder on;
    ``sqlite:////srv/chat.db`` and ``sqlite:///C:/chat.db`` are files from the root on. ``?synchronous=normal`` and
    ``?timeout=`` are explained at ``memory.stores.sqlite.Sqlite``. ``postgresql+psycopg://user:password@host/database``
    is a database on a server, with libpq's options behind a question mark. SQL stores have all ``capabilities``.

    A database that an older version made is brought up to date, and older versions refuse it from then on. Without
    *migrate* nothing is changed: it raises ``OlderVersion``, and ``StoreError`` where nothing was ever stored.
    """
    require("url", url, str, "a text, such as sqlite:///chat.db")
    scheme, found, _ = url.partition("://")
    if scheme == "memory" and found:
        return InMemoryStore()
    if found and scheme in ("sqlite", "postgresql", "postgresql+psycopg"):
        # Only now: who keeps nothing in a database does not wait for SQLAlchemy.
        from .postgres import Postgres
        from .sql import SqlStore
        from .sqlite import Sqlite

        store = SqlStore(Sqlite(url) if scheme == "sqlite" else Postgres(url))
        try:
            store.open(migrate=migrate)
        except BaseException:
            store.close()
            raise
        return store
    # Only the scheme is shown: the rest of a URL may hold a password.
    wrong = f"there is no store for {scheme + found!r}" if found else "the store's URL has no scheme, such as sqlite://"
    raise StoreError(
        f"{wrong}; {_meant(url)}the URL must be memory://, sqlite:///file.db"
        f" or postgresql+psycopg://user:password@host/database"
    )


def _meant(url: str) -> str:
    """Return what to write for a *url* that is a path, and nothing for another, which may hold a password."""
    path = url.replace("\\", "/")
    if re.fullmatch(r"([A-Za-z]:)?[^:@=?#]+\.(db|sqlite|sqlite3)", path) is None:
        return ""
    return f"for a file write sqlite:///{path}; "
