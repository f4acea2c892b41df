"""Stores: in memory, in a SQLite file or on a PostgreSQL server."""

from __future__ import annotations

import re

from ..arguments import require
from ..errors import StoreError
from .base import Checkpoint, DueSession, Extent, FoundText, FoundTexts, SessionRow, Store, StoredText
from .inmemory import InMemoryStore
from .retention import delete_files, expire, list_expired, purge_tenant
from .tenants import join_name, split_name

__all__ = [
    "Checkpoint",
    "DueSession",
    "Extent",
    "FoundText",
    "FoundTexts",
    "InMemoryStore",
    "SessionRow",
    "Store",
    "StoredText",
    "delete_files",
    "expire",
    "join_name",
    "list_expired",
    "open_store",
    "purge_tenant",
    "split_name",
]


def open_store(url: str = "memory://", *, migrate: bool = True) -> Store:
    """Return the store behind *url*, ready for use. Raises ``StoreError`` if this version cannot open it.

    ``memory://`` lasts as long as the process. ``sqlite:///chat.db`` is a file relative to the working directory;
    ``sqlite:////srv/chat.db`` and ``sqlite:///C:/chat.db`` are absolute. ``memory.stores.sqlite.Sqlite`` explains
    ``?synchronous=normal`` and ``?timeout=``. ``postgresql+psycopg://user:password@host/database`` is a database on a
    server, with libpq's options behind a question mark. SQL stores have all ``capabilities``.

    A database of an older version is migrated; older versions refuse it from then on. With ``migrate=False`` nothing is
    changed: this raises ``OlderVersion``, or ``StoreError`` if nothing was ever stored.
    """
    require("url", url, str, "a text, such as sqlite:///chat.db")
    scheme, separator, _ = url.partition("://")
    if scheme == "memory" and separator:
        return InMemoryStore()
    if separator and scheme in ("sqlite", "postgresql", "postgresql+psycopg"):
        # Imported here: programs without a database do not wait for SQLAlchemy.
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
    path, hint = url.replace("\\", "/"), ""
    if re.fullmatch(r"([A-Za-z]:)?[^:@=?#]+\.(db|sqlite|sqlite3)", path):
        hint = f"for a file write sqlite:///{path}; "
    wrong = "the store's URL has no scheme, such as sqlite://"
    if separator:  # nothing but the scheme: the rest of a URL may hold a password
        wrong = f"there is no store for {scheme + separator!r}"
    known = "memory://, sqlite:///file.db or postgresql+psycopg://user:password@host/database"
    raise StoreError(f"{wrong}; {hint}the URL must be {known}")
