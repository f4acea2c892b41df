"""The tables of a SQL store, and the steps that bring those of an older version up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, inspect, text

from ..errors import NewerVersion, StoreDamaged
from .dialects import VERSIONS, Dialect
from .text_index import create_texts

#: Brings the tables from one version to the next, inside of the transaction of whoever calls it.
Migration = Callable[[Connection, Dialect], None]


def _create_tables(connection: Connection, dialect: Dialect) -> None:
    """0 to 1: an empty database becomes a store."""
    for statement in (
        "CREATE TABLE compactor_schema (version INTEGER NOT NULL)",
        # Names are of any length, and an index is not: `key` is short and as unique (see sql.py).
        f"""CREATE TABLE compactor_sessions (
            id {dialect.identity},
            key TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            checkpoint_number BIGINT NOT NULL DEFAULT 0,
            checkpoint TEXT
        )""",
        # The session's row is referred to so that PostgreSQL lets no append pass a purge that is under way.
        f"""CREATE TABLE compactor_entries (
            session BIGINT NOT NULL REFERENCES compactor_sessions (id),
            number BIGINT NOT NULL,
            id TEXT NOT NULL,
            kind TEXT NOT NULL,
            round BIGINT NOT NULL,
            round_key TEXT,
            version INTEGER NOT NULL,
            created_at TEXT NOT NULL,
            body TEXT NOT NULL,
            PRIMARY KEY (session, number)
        ) {dialect.clustered}""",
        "CREATE INDEX compactor_entries_round ON compactor_entries (session, round, number)",
        "CREATE INDEX compactor_entries_kind ON compactor_entries (session, kind, number)",
        """CREATE INDEX compactor_entries_round_key ON compactor_entries (session, round_key)
            WHERE round_key IS NOT NULL""",
        # By the session's key and not its id: a lease may be taken before the first entry.
        f"""CREATE TABLE compactor_leases (
            session TEXT NOT NULL,
            name TEXT NOT NULL,
            holder TEXT NOT NULL,
            expires DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (session, name)
        ) {dialect.clustered}""",
    ):
        connection.execute(text(statement))
    create_texts(connection)


#: In order: the first makes version 1 of an empty database, the next 2 of 1. Those that were released never change.
MIGRATIONS: Sequence[Migration] = (_create_tables,)


def version_of(connection: Connection, dialect: Dialect, known: int = len(MIGRATIONS)) -> int:
    """Return the version of the tables, 0 where there are none. Raises ``NewerVersion`` for more than *known*."""
    if not inspect(connection).has_table("compactor_schema"):
        return 0
    return known_version(connection.exec_driver_sql(VERSIONS).scalars().all(), dialect.where, known)


def known_version(found: Sequence[object], where: str, known: int = len(MIGRATIONS)) -> int:
    """Return the one version that was *found* in the tables. Raises ``NewerVersion`` for more than *known*."""
    version = found[0] if len(found) == 1 else None
    if not isinstance(version, int) or version < 1:
        raise StoreDamaged(
            f"{where} does not say which version its tables are of; nothing was changed: restore a backup"
        )
    if version > known:
        raise NewerVersion(
            f"{where} was written by a newer version of context-compactor (its tables are of version {version}, and"
            f" this one knows them up to {known}); nothing was changed: upgrade to open it"
        )
    return version


def bring_up_to_date(connection: Connection, dialect: Dialect, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Run those of *migrations* that the tables still lack. For a transaction in which nobody else does so."""
    version = version_of(connection, dialect, len(migrations))
    for migration in migrations[version:]:
        migration(connection, dialect)
    if version == 0:
        connection.execute(text("INSERT INTO compactor_schema (version) VALUES (:new)"), {"new": len(migrations)})
    elif version < len(migrations):
        connection.execute(text("UPDATE compactor_schema SET version = :new"), {"new": len(migrations)})
