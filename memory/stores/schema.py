"""The tables of a SQL store, and the migrations of older ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, inspect, text

from ..errors import NewerVersion, StoreDamaged, StoreError
from .base import unescape
from .connections import SELECT_VERSION, Dialect, lock_schema
from .partitions import create_copies, drop_copies, replace_tables
from .tenants import split_name
from .text_index import create_texts

#: Brings the tables from one version to the next, inside the caller's transaction.
Migration = Callable[[Connection, Dialect], None]


def _create_tables(connection: Connection, dialect: Dialect) -> None:
    """0 to 1: an empty database becomes a store."""
    for statement in (
        "CREATE TABLE compactor_schema (version INTEGER NOT NULL)",
        # Names may be longer than an index key can be: `key` is short and still unique (see make_key in base.py).
        f"""CREATE TABLE compactor_sessions (
            id {dialect.identity},
            key TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            checkpoint_number BIGINT NOT NULL DEFAULT 0,
            checkpoint TEXT
        )""",
        # The reference to the session's row makes PostgreSQL hold back appends while a purge is under way.
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
        # By the session's key, not its id: a lease may be taken before the first entry creates the session.
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


def _add_activity(connection: Connection, dialect: Dialect) -> None:
    """1 to 2: sessions know their tenant, and the minute of their newest entry (UTC)."""
    if not dialect.in_file:  # as Python and SQLite sort
        connection.execute(text('ALTER TABLE compactor_sessions ALTER COLUMN key TYPE TEXT COLLATE "C"'))
    for statement in (
        "ALTER TABLE compactor_sessions ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
        # The default is for sessions that a process of the older version, still running, makes.
        "ALTER TABLE compactor_sessions ADD COLUMN last_activity TEXT NOT NULL DEFAULT '1970-01-01T00:00'",
        """UPDATE compactor_sessions SET last_activity = coalesce((SELECT substr(e.created_at, 1, 16)
            FROM compactor_entries e WHERE e.session = compactor_sessions.id ORDER BY e.number DESC LIMIT 1),
            last_activity)""",
        "CREATE INDEX compactor_sessions_activity ON compactor_sessions (last_activity DESC, key)",
        "CREATE INDEX compactor_sessions_tenant ON compactor_sessions (tenant, key)",
        "CREATE INDEX compactor_sessions_tenant_activity ON compactor_sessions (tenant, last_activity DESC, key)",
    ):
        connection.execute(text(statement))
    # Names are stored escaped, and so is the separator.
    separated = text("SELECT id, name FROM compactor_sessions WHERE name LIKE '%x1f%'")
    for number, name in connection.execute(separated).all():
        tenant = text("UPDATE compactor_sessions SET tenant = :tenant WHERE id = :id")
        connection.execute(tenant, {"tenant": split_name(unescape(name))[0], "id": number})


def _add_due(connection: Connection, _dialect: Dialect) -> None:
    """2 to 3: sessions know the minute (UTC) from which on somebody is to look at them; NULL: nobody need."""
    connection.execute(text("ALTER TABLE compactor_sessions ADD COLUMN due_at TEXT"))
    due = "CREATE INDEX compactor_sessions_due ON compactor_sessions (due_at, key) WHERE due_at IS NOT NULL"
    connection.execute(text(due))


def _add_limits(connection: Connection, dialect: Dialect) -> None:
    """3 to 4: what processes share of limits on calls and spend; see ``limiting``."""
    as_python_sorts = "" if dialect.in_file else ' COLLATE "C"'
    for statement in (
        f"""CREATE TABLE compactor_limits (
            kind TEXT NOT NULL,
            key TEXT{as_python_sorts} NOT NULL,
            lane TEXT{as_python_sorts} NOT NULL,
            at DOUBLE PRECISION NOT NULL,
            body TEXT NOT NULL,
            session TEXT,
            PRIMARY KEY (kind, key)
        ) {dialect.clustered}""",
        "CREATE INDEX compactor_limits_lane ON compactor_limits (kind, lane, at, key)",
        "CREATE INDEX compactor_limits_session ON compactor_limits (session) WHERE session IS NOT NULL",
    ):
        connection.execute(text(statement))


def _partition_new(connection: Connection, dialect: Dialect) -> None:
    """4 to 5: on a server, an empty store has partitions; any other gets them from ``SqlStore.partition``."""
    is_empty = text("SELECT NOT EXISTS (SELECT FROM compactor_sessions)")
    if dialect.in_file or not connection.scalar(is_empty):
        return
    connection.execute(text("LOCK TABLE compactor_sessions IN ACCESS EXCLUSIVE MODE"))
    if connection.scalar(is_empty):
        create_copies(connection)
        replace_tables(connection)


#: Migration n makes version n from version n - 1; version 0 is an empty database. Released migrations never change.
MIGRATIONS: Sequence[Migration] = (_create_tables, _add_activity, _add_due, _add_limits, _partition_new)


def read_version(connection: Connection, where: str, newest: int = len(MIGRATIONS)) -> int:
    """Return the version of the tables, 0 if there are none. Raises ``NewerVersion`` above *newest*, and ``StoreError``
    if the database cannot hold every text."""
    if connection.dialect.name == "postgresql":
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
        if encoding != "UTF8":
            wrong = f"{where} has the encoding {encoding}, which does not hold every text; nothing was changed"
            remedy = "make another with createdb --encoding=UTF8 --template=template0, and name that"
            raise StoreError(f"{wrong}: {remedy}")
    if not inspect(connection).has_table("compactor_schema"):
        return 0
    return require_known(connection.exec_driver_sql(SELECT_VERSION).scalars().all(), where, newest)


def require_known(versions: Sequence[object], where: str, newest: int) -> int:
    """Return the one version in *versions*. Raises ``NewerVersion`` above *newest*."""
    version = versions[0] if len(versions) == 1 else None
    if not isinstance(version, int) or version < 1:
        raise StoreDamaged(f"{where} does not say which version its tables have; nothing was changed: restore a backup")
    if version > newest:
        known = f"its tables are of version {version}, and this one knows them up to {newest}"
        wrong = f"{where} was written by a newer version of context-compactor ({known})"
        raise NewerVersion(f"{wrong}; nothing was changed: upgrade to open it")
    return version


def migrate_tables(connection: Connection, dialect: Dialect, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Run the *migrations* that the tables lack, in the caller's transaction, with the schema locked."""
    if connection.dialect.name == "postgresql":
        lock_schema(connection)
    version = read_version(connection, dialect.where, len(migrations))
    if 0 < version < len(migrations) and not dialect.in_file:
        drop_copies(connection)  # they would lack what a migration adds to the tables
    for migration in migrations[version:]:
        migration(connection, dialect)
    if version == 0:
        connection.execute(text("INSERT INTO compactor_schema (version) VALUES (:new)"), {"new": len(migrations)})
    elif version < len(migrations):
        connection.execute(text("UPDATE compactor_schema SET version = :new"), {"new": len(migrations)})
