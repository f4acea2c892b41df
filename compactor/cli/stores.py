"""The store that a command is told to use: never made or migrated by a command that only reads, and closed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memory import stores
from memory.stores import Store

from .terminal import CannotRun, one_line

_EXAMPLES = "sqlite:///chat.db or postgresql+psycopg://user@host/database"


@contextmanager
def opened(url: str | None, *, write: bool = False, create: bool = False) -> Iterator[Store]:
    """Give the store behind *url*: to *write* to it, which brings one of an older version up to date, or only to read.
    With *create* a database file may be made that is not there yet.

    Raises ``CannotRun`` where nothing is named or nothing is there, ``StoreError`` where it cannot be opened.
    """
    url = (url or "").strip()
    if not url:
        raise CannotRun(f"no store is named: pass --store URL, such as {_EXAMPLES}, or set COMPACTOR_STORE")
    path = _file_of(url)
    if url.partition(":")[0] == "memory" or path in ("", ":memory:"):
        raise CannotRun(f"what is kept in memory ends with the process that keeps it; pass --store {_EXAMPLES}")
    if path is not None and not create:
        _require_file(path)
    store = stores.open_store(url, migrate=write or create)
    try:
        yield store
    finally:
        store.close()


def missing(url: str | None) -> bool:
    """Return whether *url* names a database file that is not there yet."""
    path = _file_of((url or "").strip())
    return path is not None and path not in ("", ":memory:") and not _is_file(path)


def require(store: Store, session: str) -> None:
    """Raise ``CannotRun`` unless *store* has that session."""
    if next(iter(store.read(session, 0, 1)), None) is None:
        raise unknown(store, session)


def unknown(store: Store, session: str) -> CannotRun:
    """Return what is raised where *store* has no such session."""
    known = "others; `compactor sessions` lists them" if store.sessions() else "none at all"
    return CannotRun(f"there is no session '{one_line(session, 80)}' in this store, which has {known}")


def _file_of(url: str) -> str | None:
    """Return the path of an SQLite database, empty for one in memory; None for other stores, and for a wrong URL."""
    scheme, _, rest = url.partition("://")
    rest = rest.partition("?")[0]
    if scheme.partition("+")[0].lower() != "sqlite" or (rest and not rest.startswith("/")):
        return None
    return rest.removeprefix("/")


def _require_file(path: str) -> None:
    if not _is_file(path):
        raise CannotRun(
            f"there is no database file {one_line(path, 200)}; check --store (sqlite:////... is an absolute path)"
        )


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a NUL in it, or a name that is too long
        return False
