"""The partitions of a PostgreSQL store: entries and indexed texts are in several tables each, by a hash of the session.

An older store gets them while others use it. Triggers repeat each write to the tables in copies that have partitions;
what was written before is copied in batches; then the copies take the tables' place, in a moment. A batch and the
place that it reached are one transaction, so a killed migration continues where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, text

from ..errors import StoreBusy, StoreError
from .connections import Connections, lock_schema

Result = TypeVar("Result")

#: More make each statement slower: PostgreSQL locks every partition that the plan of a statement may need, and more
#: than sixteen locks of a transaction are in a table that all connections share.
PARTITIONS = 8
#: Maximum rows of a batch.
BATCH = 2_000
#: Seconds that hosts may wait behind a change of the tables, seconds between attempts, and their number.
LOCK_TIMEOUT, PAUSE, ATTEMPTS = 0.2, 0.3, 100

#: What orders the rows of a session, by table, sorted.
_ORDERS = {"compactor_entries": "number", "compactor_texts": "id"}
_REFERENCE = "FOREIGN KEY (session) REFERENCES compactor_sessions (id)"
# A change of a row waits for a batch that has read it, and the next batch for the change.
_CREATE_TRIGGER = (
    """CREATE FUNCTION {table}_copied() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP <> 'INSERT' THEN
            PERFORM FROM compactor_sessions WHERE id = OLD.session FOR UPDATE;
            DELETE FROM {table}_copy WHERE session = OLD.session AND {order} = OLD.{order};
        END IF;
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO {table}_copy VALUES (NEW.*);
        END IF;
        RETURN NULL;
    END $$""",
    """CREATE TRIGGER {table}_copied AFTER INSERT OR UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION {table}_copied()""",
)
_INDEXES = """SELECT indexname, indexdef FROM pg_indexes
    WHERE schemaname = current_schema() AND tablename = :table AND indexname <> tablename || '_pkey'"""
_GRANTS = """
    SELECT format('ALTER TABLE %s OWNER TO %s', made, relowner::regrole)
    FROM pg_class, unnest(CAST(:created AS text[])) made WHERE oid = to_regclass('{table}')
    UNION ALL SELECT format('GRANT %s ON {table}_copy TO %s', privilege_type,
        CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
    FROM pg_class, aclexplode(relacl) WHERE oid = to_regclass('{table}')"""
_RENAMES = """SELECT format('ALTER INDEX %I RENAME TO %I', indexname, replace(indexname, '_copy', ''))
    FROM pg_indexes WHERE tablename IN ('compactor_entries', 'compactor_texts') AND schemaname = current_schema()
    AND indexname LIKE '%\\_copy%'"""
_BEGIN = """INSERT INTO compactor_copied (name, session, place, last, done)
    SELECT :name, -1, 0, coalesce(max(id), 0), FALSE FROM compactor_sessions"""
_FIND_BEGIN = "SELECT name, session, place, last FROM compactor_copied WHERE NOT done ORDER BY name LIMIT 1"
_FOUND_END = "UPDATE compactor_copied SET session = :session, place = :place, done = :done WHERE name = :name"
_FIND_END = """SELECT session, {order} FROM {table} WHERE (session, {order}) > (:session, :place) AND session <= :last
    ORDER BY session, {order} OFFSET :skipped LIMIT 1"""
# Sessions that are being purged are waited for, and are not there then.
_LOCK_SESSIONS = """SELECT id FROM compactor_sessions WHERE id IN (SELECT DISTINCT session FROM {table}
    WHERE (session, {order}) > (:session, :place) AND (session, {order}) <= (:end, :end_place)) ORDER BY id
    FOR KEY SHARE"""
_COPY = """INSERT INTO {table}_copy SELECT * FROM {table} WHERE session = ANY(:sessions)
    AND (session, {order}) > (:session, :place) AND (session, {order}) <= (:end, :end_place) ON CONFLICT DO NOTHING"""

_GREATEST = 2**63 - 1
_ANOTHER = "another process has changed the tables in the meantime; run this again"


def are_partitioned(connection: Connection) -> bool:
    found = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass('compactor_entries')"
    return bool(connection.exec_driver_sql(found).scalar())


def create_copies(connection: Connection) -> None:
    """Create empty copies with partitions, with the tables' indexes, owner and grants; part of a transaction."""
    for table, order in _ORDERS.items():
        copy, *created = [f"{table}_copy", *(f"{table}_{number}" for number in range(PARTITIONS))]
        keys = f"PRIMARY KEY (session, {order})" + f", {_REFERENCE}" * (table == "compactor_entries")
        columns = f"LIKE {table} INCLUDING DEFAULTS, {keys}"
        connection.exec_driver_sql(f"CREATE TABLE {copy} ({columns}) PARTITION BY HASH (session)")
        for number, partition in enumerate(created):
            values = f"VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number})"
            connection.exec_driver_sql(f"CREATE TABLE {partition} PARTITION OF {copy} FOR {values}")
        for name, definition in connection.execute(text(_INDEXES), {"table": table}).all():
            named = definition.replace(f" {name} ON ", f" {name}_copy ON ")
            connection.exec_driver_sql(named.replace(f".{table} USING", f".{copy} USING"))
        where = {"created": [copy, *created]}
        for statement in connection.execute(text(_GRANTS.format(table=table)), where).scalars().all():
            connection.exec_driver_sql(statement.replace("%", "%%"))


def replace_tables(connection: Connection) -> None:
    """Give the tables' names to their copies; part of a transaction."""
    connection.exec_driver_sql(f"DROP TABLE {', '.join(_ORDERS)}")
    for table in _ORDERS:
        connection.exec_driver_sql(f"ALTER TABLE {table}_copy RENAME TO {table}")
    for statement in connection.execute(text(_RENAMES)).scalars().all():
        connection.exec_driver_sql(statement)


def drop_copies(connection: Connection) -> None:
    """Give up a migration that did not come to its end; part of a transaction."""
    if _is_under_way(connection):
        _drop_triggers(connection)
        connection.exec_driver_sql(f"DROP TABLE compactor_copied, {', '.join(f'{table}_copy' for table in _ORDERS)}")


def partition_tables(connections: Connections) -> Iterator[float]:
    """Partition the tables while others use them; yield how much is done, from 0 to 1, after each batch."""
    if not _change_briefly(connections, _begin):
        return
    done = 0.0
    while done < 1:
        yield (done := _change_briefly(connections, _copy_batch))
    _change_briefly(connections, _analyze)
    _change_briefly(connections, _end)


def _change_briefly(connections: Connections, work: Callable[[Connection], Result]) -> Result:
    """Return the result of *work*, which waits for locks only as long as others may wait behind it, but many times."""

    def change(connection: Connection) -> Result:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}s'")
        return work(connection)

    attempt = 1
    while True:
        try:
            return connections.change(change, long=True)
        except StoreBusy:
            if (attempt := attempt + 1) > ATTEMPTS:
                raise
            time.sleep(PAUSE)


def _begin(connection: Connection) -> bool:
    """Have all writes from now on repeated in the copies; return whether there is anything to copy."""
    lock_schema(connection)
    if are_partitioned(connection):
        return False
    if not _is_under_way(connection):
        create_copies(connection)
        for table, order in _ORDERS.items():
            for statement in _CREATE_TRIGGER:
                connection.exec_driver_sql(statement.format(table=table, order=order))
        connection.exec_driver_sql("""CREATE TABLE compactor_copied (name TEXT PRIMARY KEY, session BIGINT NOT NULL,
            place BIGINT NOT NULL, last BIGINT NOT NULL, done BOOLEAN NOT NULL)""")
        for table in _ORDERS:
            connection.execute(text(_BEGIN), {"name": table})
    return True


def _copy_batch(connection: Connection) -> float:
    """Copy the next rows; return how much is done then, 1 for all."""
    if not _is_under_way(connection):
        return _require_partitioned(connection)
    connection.exec_driver_sql("LOCK TABLE compactor_copied IN EXCLUSIVE MODE")  # two may migrate at once
    found = connection.exec_driver_sql(_FIND_BEGIN).first()
    if found is None:
        return 1.0
    table: str = found.name

    def run(statement: str, **more: Any) -> CursorResult[Any]:
        values = {"session": found.session, "place": found.place, **more}
        return connection.execute(text(statement.format(table=table, order=_ORDERS[table])), values)

    row = run(_FIND_END, last=found.last, skipped=BATCH - 1).first()
    end, end_place = (found.last, _GREATEST) if row is None else tuple(row)
    sessions = run(_LOCK_SESSIONS, end=end, end_place=end_place).scalars().all()
    if sessions:
        run(_COPY, end=end, end_place=end_place, sessions=sessions)
    connection.execute(text(_FOUND_END), {"session": end, "place": end_place, "done": row is None, "name": table})
    share = 1.0 if row is None else min(end / (found.last + 1), 0.99)
    return ([*_ORDERS].index(table) + share) / len(_ORDERS)


def _analyze(connection: Connection) -> None:
    for table in _ORDERS if _is_under_way(connection) else ():
        connection.exec_driver_sql(f"ANALYZE {table}_copy")


def _end(connection: Connection) -> None:
    lock_schema(connection)
    if not _is_under_way(connection):
        _require_partitioned(connection)
        return
    connection.exec_driver_sql(f"LOCK TABLE compactor_sessions, {', '.join(_ORDERS)} IN ACCESS EXCLUSIVE MODE")
    if not connection.exec_driver_sql("SELECT bool_and(done) FROM compactor_copied").scalar():
        raise StoreError(_ANOTHER)
    _drop_triggers(connection)
    connection.exec_driver_sql("DROP TABLE compactor_copied")
    replace_tables(connection)


def _drop_triggers(connection: Connection) -> None:
    for table in _ORDERS:
        connection.exec_driver_sql(f"DROP FUNCTION {table}_copied CASCADE")


def _is_under_way(connection: Connection) -> bool:
    return bool(connection.exec_driver_sql("SELECT to_regclass('compactor_copied') IS NOT NULL").scalar())


def _require_partitioned(connection: Connection) -> float:
    if not are_partitioned(connection):
        raise StoreError(_ANOTHER)
    return 1.0
