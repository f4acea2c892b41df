"""Stores in SQL databases for tests, ways to look behind their back, and what each must keep to after a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from histories import texts_of
from sqlalchemy import Engine, event, text

from memory import Entry, Memory
from memory.stores.connections import Connections, Dialect
from memory.stores.postgres import Postgres
from memory.stores.schema import MIGRATIONS, read_version
from memory.stores.sql import SqlStore
from memory.stores.sqlite import Sqlite

__all__ = ["MIGRATIONS", "Connections", "Dialect", "Postgres", "SqlStore", "Sqlite", "read_version"]

#: For tests that make many appends and no claim about power failures.
QUICK = "?synchronous=normal"


def sqlite_url(folder: Path, options: str = "") -> str:
    return f"sqlite:///{(folder / 'chat.db').as_posix()}{options}"


def dialect_of(url: str) -> Dialect:
    return Sqlite(url) if url.startswith("sqlite") else Postgres(url)


@contextmanager
def opened(url: str, *, migrations: Any = MIGRATIONS) -> Iterator[SqlStore]:
    with closing(SqlStore(dialect_of(url))) as store:
        store.open(migrations)
        yield store


def on(store: SqlStore, statement: str, **values: Any) -> Any:
    """Run one statement behind the store's back, on the connection that it uses."""

    def run(connection: Any) -> Any:
        result = connection.execute(text(statement), values)
        return result.all() if result.returns_rows else None

    return store._connections.write(run)


@contextmanager
def told(listener: Callable[..., object]) -> Iterator[None]:
    """Have *listener* called before each statement, as SQLAlchemy's ``before_cursor_execute``."""
    event.listen(Engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", listener)


def on_connecting(monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Any], object]) -> None:
    """Have each connection of SQLite stores that are made from now on prepared, after the store has."""
    engine = Sqlite.create_engine

    def prepared(self: Sqlite) -> Engine:
        made = engine(self)
        event.listen(made, "connect", lambda connection, _record: prepare(connection))
        return made

    monkeypatch.setattr(Sqlite, "create_engine", prepared)


def entry(body: str = "{}", **more: Any) -> Entry:
    return Entry("round closed", body=body, **more)


def bodies(store: SqlStore, session: str = "s") -> list[str]:
    return [found.body for found in store.read(session)]


def turn(memory: Memory, said: str) -> None:
    """One round of a chat."""
    round_ = memory.create_round(f"question {said}", id=said)
    memory.add_post(round_, send_from="Planner", send_to="User", message=f"answer {said}")
    memory.finish_round(round_)


def log_of(store: Any, session: str = "s") -> list[Entry]:
    """Return the log, of which every entry can be read, at its place and once."""
    entries = list(store.read(session))
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    assert len({entry.id for entry in entries}) == len(entries)
    assert all(entry.record is not None for entry in entries)
    return entries


def same_as_resumed(memory: Memory, store: Any) -> None:
    """What a Memory shows is what another makes of the log."""
    log_of(store)
    assert texts_of(memory) == texts_of(Memory("s", store=store))
