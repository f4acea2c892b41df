"""The rows of shared limits in a SQL store's table."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Text, bindparam, text

from .base import make_key
from .connections import Dialect
from .limiting import LimitRow, LimitRows, get_sort_key

#: The number of the advisory lock that limits take on a PostgreSQL server.
LIMITS_LOCK = 4_846_531_074
_COLUMNS = "SELECT kind, key, lane, at, body, session"
_OF_KIND = "FROM compactor_limits WHERE kind = :kind"
_KINDS = bindparam("kinds", type_=Text, expanding=True)
_READ = text(f"{_COLUMNS} FROM compactor_limits WHERE kind IN :kinds").bindparams(_KINDS)
_READ_LANES = text(f"{_COLUMNS} FROM compactor_limits WHERE kind IN :kinds AND lane IN :lanes").bindparams(
    _KINDS, bindparam("lanes", type_=Text, expanding=True)
)
_FIND = text(f"{_COLUMNS} {_OF_KIND} AND key = :key")
# From lane to lane through the index: a lane may have thousands of rows.
_READ_FIRSTS = text(
    """WITH RECURSIVE lanes (lane) AS (
        SELECT min(lane) FROM compactor_limits WHERE kind = :kind
        UNION ALL SELECT (SELECT min(l.lane) FROM compactor_limits l WHERE l.kind = :kind AND l.lane > lanes.lane)
            FROM lanes WHERE lanes.lane IS NOT NULL
    ) SELECT kind, key, lane, at, body, session FROM compactor_limits WHERE kind = :kind AND key IN (
        SELECT (SELECT l.key FROM compactor_limits l WHERE l.kind = :kind AND l.lane = lanes.lane
            ORDER BY l.at, l.key LIMIT 1) FROM lanes WHERE lanes.lane IS NOT NULL
    )"""
)
_COUNT = text(f"SELECT count(*) {_OF_KIND}")
_COUNT_BEFORE = text(f"SELECT count(*) {_OF_KIND} AND lane = :lane AND at < :before")
_PUT = text(
    """INSERT INTO compactor_limits (kind, key, lane, at, body, session)
    VALUES (:kind, :key, :lane, :at, :body, :session) ON CONFLICT (kind, key) DO UPDATE
    SET lane = excluded.lane, at = excluded.at, body = excluded.body, session = excluded.session"""
)
_DROP = text("DELETE FROM compactor_limits WHERE kind = :kind AND key IN :keys").bindparams(
    bindparam("keys", type_=Text, expanding=True)
)
_DROP_BEFORE = text("DELETE FROM compactor_limits WHERE kind = :kind AND at < :before")
#: Lanes or keys in one statement.
_PAGE = 500


class SqlLimitRows(LimitRows):
    """Rows of the table ``compactor_limits``. The first statement takes the lock, which ends with the transaction."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect
        lock = "" if dialect.in_file else f"pg_advisory_xact_lock({LIMITS_LOCK}), "  # SQLite has one writer anyway
        self.now = float(connection.exec_driver_sql(f"SELECT {lock}{dialect.now}").one()[-1])

    def read(self, kinds: Collection[str], lanes: Collection[str] | None = None) -> Sequence[LimitRow]:
        if lanes is None:
            return self._select(_READ, {"kinds": [*kinds]})
        names = sorted(lanes)
        pages = [{"kinds": [*kinds], "lanes": names[at : at + _PAGE]} for at in range(0, len(names), _PAGE)]
        return sorted((row for page in pages for row in self._select(_READ_LANES, page)), key=get_sort_key)

    def find(self, kind: str, key: str) -> LimitRow | None:
        found = self._select(_FIND, {"kind": kind, "key": key})
        return found[0] if found else None

    def read_firsts(self, kind: str) -> Sequence[LimitRow]:
        return self._select(_READ_FIRSTS, {"kind": kind})

    def _select(self, statement: Any, where: Mapping[str, Any]) -> Sequence[LimitRow]:
        return sorted((LimitRow(*row) for row in self._connection.execute(statement, where)), key=get_sort_key)

    def count(self, kind: str, lane: str | None = None, cutoff: float = math.inf) -> int:
        statement, where = (_COUNT, {}) if lane is None else (_COUNT_BEFORE, {"lane": lane, "before": cutoff})
        return int(self._connection.execute(statement, {"kind": kind, **where}).scalar_one())

    def put(self, row: LimitRow) -> None:
        self._connection.execute(_PUT, row._asdict())

    def drop(self, kind: str, keys: Collection[str]) -> None:
        names = sorted(keys)
        for at in range(0, len(names), _PAGE):
            self._connection.execute(_DROP, {"kind": kind, "keys": names[at : at + _PAGE]})

    def drop_before(self, kind: str, at: float) -> None:
        self._connection.execute(_DROP_BEFORE, {"kind": kind, "before": at})

    def notify(self, name: str) -> None:
        self._dialect.notify(self._connection, make_key(name))
