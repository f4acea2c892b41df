"""The PostgreSQL dialect: a server, through psycopg 3."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    TextClause,
    column,
    create_engine,
    event,
    insert,
    make_url,
    table,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError

from ..errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly, StoreUnreachable
from .connections import DEFAULT_PATIENCE, MAX_APPENDED, Dialect, EntryRow, choose_page_size, parse_seconds
from .notices import CHANNEL, Notices
from .text_index import find_session

Result = TypeVar("Result")

#: Seconds beyond the patience after which a silent server is given up.
IDLE_TIMEOUT = 30.0
#: The same for a statement that changes a whole session.
LONG_IDLE_TIMEOUT = 3600.0

_URL_IS_WRONG = (
    "is not postgresql+psycopg://user:password@host:port/database, whose port is a number; in a password write %40 for"
    " @, %2F for /, %3A for : and %23 for #"
)
#: invalid_catalog_name, invalid_authorization_specification, invalid_password.
_NO_ENTRY = ("3D000", "28000", "28P01")
#: The same and other lasting faults while connecting, in English words: neither server nor libpq gives a code then.
_REFUSED = re.compile(
    r"does not exist|no password supplied|authentication failed|pg_hba\.conf|permission denied for database"
    r"|not permitted to log in|unsupported startup parameter|does not support SSL|invalid (?:port number|\w+ value)"
)
#: Transient faults while connecting.
_TOO_MANY = re.compile(r"too many (?:connections|clients)|remaining connection slots are reserved")
#: admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped; idle_in_transaction_session_timeout.
_GOING_AWAY = ("57P01", "57P02", "57P03", "57P04", "25P03")
#: read_only_sql_transaction.
_READ_ONLY = "25006"
#: The same, and insufficient_privilege.
_NOT_ALLOWED = (_READ_ONLY, "42501")
#: libpq's options: a server that is cut off is given up.
_TIMEOUTS = {
    "connect_timeout": 10,
    "tcp_user_timeout": 25_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
#: serialization_failure, deadlock_detected.
_CONFLICTS = ("40001", "40P01")
#: The same, and lock_not_available, query_canceled (by a time-out), too_many_connections.
_BUSY = (*_CONFLICTS, "55P03", "57014", "53300")
#: Classes of data exceptions and violated constraints; their messages quote the data.
_QUOTING = ("22", "23")
#: undefined_table, undefined_column; class XX is corrupted data.
_UNREADABLE = ("42P01", "42703")


# One statement, so that an append takes one round trip and one commit. It inserts only if the log ends just before,
# with the entry that the writer knows. The primary key refuses one of two concurrent inserts.
_APPEND = """INSERT INTO compactor_entries (session, {columns})
    SELECT s.id, v.* FROM compactor_sessions s, (VALUES {rows}) v WHERE s.key = :key
    AND (SELECT coalesce(max(e.number), 0) FROM compactor_entries e WHERE e.session = s.id) = :before"""
# Not in the same statement: the server would plan it anew each time, because it is less work without a known entry.
_FOLLOWS = " AND :follows = (SELECT e.id FROM compactor_entries e WHERE e.session = s.id AND e.number = :before)"
_COLUMNS = ("number", "id", "kind", "round", "round_key", "version", "created_at", "body")  # of an EntryRow
_NAMES = [[f"{name}{place}" for name in _COLUMNS] for place in range(MAX_APPENDED)]
_INTEGERS = (column(name, BigInteger) for name in ("session", "number", "round", "version"))
_entries = table("compactor_entries", *_INTEGERS, *map(column, ("id", "kind", "round_key", "created_at", "body")))
_NOTIFY = text("SELECT pg_notify(:channel, :key)")


class Postgres(Dialect):
    """A server: ``postgresql+psycopg://user:password@host/database``, followed by libpq's options. With several hosts,
    the writable one is used: ``...@a:5432,b:5432/database?target_session_attrs=read-write``.

    ``?timeout=5`` sets the seconds to wait for another process's lock. Raises ``StoreUnreachable`` if the server is cut
    off, or silent for half a minute longer than that. The server's ``synchronous_commit`` decides how durable an append
    is.

    Behind PgBouncer, connections keep no state: no prepared statements, settings or notices.
    """

    notifies = True  # until a connection goes through a pooler

    in_file = False
    begin = "BEGIN"
    now = "extract(epoch FROM clock_timestamp())"
    in_an_hour = """to_char(timezone('UTC', clock_timestamp()) + interval '1 hour', 'YYYY-MM-DD"T"HH24:MI')"""
    identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    clustered = ""

    def __init__(self, url: str) -> None:
        place, mark, options = url.partition("://")[2].partition("?")
        # Parsed as part of the host or database name, the end of the password would appear in every message.
        if place.count("@") > 1 or "@" in place.partition("/")[2]:
            raise StoreError("a PostgreSQL URL has one @, before the host; in a password write %40 for @, %2F for /")
        entry, at, place = place.rpartition("@")
        hosts, slash, database = place.partition("/")
        if "," in hosts:  # SQLAlchemy takes several hosts only as options
            options = "&".join([f"host={host}" for host in hosts.split(",")] + [options] * bool(options))
            hosts, mark = "", "?"
        try:
            self._url = make_url(f"postgresql+psycopg://{entry}{at}{hosts}{slash}{database}{mark}{options}")
        except Exception:  # noqa: BLE001  (any message may show the password)
            raise StoreError(f"the URL {_URL_IS_WRONG}") from None
        patience = self._url.query.get("timeout", str(DEFAULT_PATIENCE))
        self.patience = parse_seconds("timeout", patience if isinstance(patience, str) else patience[-1])
        self._url = self._url.difference_update_query(["timeout"])
        self._notices = Notices(self._connect)
        host = self._url.host or self._url.query.get("host") or "this machine"
        hosts = host if isinstance(host, str) else " or ".join(host)
        self.where = f"the PostgreSQL database {self._url.database or ''!r} on {hosts}"

    def __eq__(self, other: object) -> bool:
        """Return whether *other* is the same database, connected to in the same way."""
        return isinstance(other, Postgres) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    @property
    def conninfo(self) -> str:
        """The URL as libpq and other libraries read it, with the password."""
        from psycopg.conninfo import make_conninfo  # here: psycopg is an extra

        return make_conninfo(**self._url.get_dialect()().create_connect_args(self._url)[1])

    @property
    def timeouts(self) -> dict[str, Any]:
        """libpq's options that give up a server that is cut off, except those in the URL."""
        return {name: value for name, value in _TIMEOUTS.items() if name not in self._url.query}

    def make_connection_class(self, base: Any) -> Any:
        """Return psycopg's class *base* with an ``idle_timeout``: its connections fail after so many seconds of silence
        from the server.

        TCP notices a dead machine, but not a stopped server, nor a middlebox that accepts everything and forwards
        nothing. All of psycopg's waiting goes through ``wait``, which resumes several times a second since 3.2.13.
        """
        return type(f"IdleTimeout{base.__name__}", (_IdleTimeout, base), {"idle_timeout": self.patience + IDLE_TIMEOUT})

    def append(self, connection: Connection, key: str, after: int, follows: str, rows: Iterator[EntryRow]) -> bool:
        page = list(islice(rows, MAX_APPENDED))
        where: dict[str, Any] = {"key": key, "before": after}
        if follows:
            where["follows"] = follows
        for names, row in zip(_NAMES, page, strict=False):
            where |= zip(names, row, strict=True)
        try:
            if not connection.execute(_make_append(len(page), bool(follows)), where).rowcount:
                return False
        except IntegrityError:
            return False
        session = None  # the first page has reserved a place for the others; there may be very many
        while page := list(islice(rows, choose_page_size([row[-1] for row in page]))):
            session = session or find_session(connection, key)
            values = [dict(zip(("session", *_COLUMNS), (session, *row), strict=True)) for row in page]
            # One statement: with many, psycopg writes to stderr if the connection breaks among them.
            connection.execute(insert(_entries).values(values))
        return True

    def listen(self, key: str, listener: Callable[[], object]) -> Callable[[], None]:
        if not self.notifies:  # notices would go to whichever client has that connection
            return super().listen(key, listener)
        return self._notices.listen(key, listener)

    def notify(self, connection: Connection, key: str) -> None:
        connection.execute(_NOTIFY, {"channel": CHANNEL, "key": key})

    @property
    def is_listening(self) -> bool:  # type: ignore[override]
        return self._notices.is_listening

    def close(self) -> None:
        self._notices.close()

    def _connect(self) -> Any:
        from psycopg import connect  # here: psycopg is an extra

        return connect(self.conninfo, autocommit=True, **self.timeouts)

    def create_engine(self) -> Engine:
        defaults = {"client_encoding": "utf8", "application_name": "context-compactor"}
        others = {name: value for name, value in defaults.items() if name not in self._url.query}
        try:
            from psycopg import Connection as DriverConnection  # here: psycopg is an extra

            connect = self.make_connection_class(DriverConnection).connect
            engine = create_engine(
                self._url,
                connect_args={**self.timeouts, **others},
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
                pool_timeout=self.patience,
            )
        except ImportError as error:
            remedy = 'pip install "context-compactor[postgresql]"'
            raise StoreError(f"psycopg, the driver for PostgreSQL, is not installed: {remedy}") from error
        except ArgumentError:  # its message may show the password
            raise StoreError(f"the URL of {self.where} {_URL_IS_WRONG}") from None
        event.listen(engine, "do_connect", lambda _dialect, _record, place, options: connect(*place, **options))
        event.listen(engine, "connect", self._configure)
        return engine

    def _configure(self, connection: Any, _record: Any) -> None:
        # The timeouts keep a writer that is cut off from blocking others forever, here or on the server. A pooler shows
        # in the process number, because it gives clients numbers of its own. Its connections are shared with other
        # programs: settings would affect those, and names of prepared statements could collide.
        autocommit, connection.autocommit = connection.autocommit, True
        here = connection.info.backend_pid
        ((there, _),) = connection.execute(
            """SELECT pg_backend_pid(), (SELECT count(set_config(name, wanted, false)) FROM (VALUES
                ('lock_timeout', %s), ('idle_in_transaction_session_timeout', '60s')) AS timeouts (name, wanted)
                WHERE current_setting(name) = '0' AND pg_backend_pid() = %s)""",
            [f"{max(1, round(self.patience * 1000))}ms", here],
        )
        self.notifies = there == here
        if not self.notifies:
            connection.prepare_threshold = None
        connection.autocommit = autocommit

    def run_long(self, connection: Connection, work: Callable[[Connection], Result]) -> Result:
        driver: Any = connection.connection.driver_connection
        driver.idle_timeout, before = LONG_IDLE_TIMEOUT, driver.idle_timeout
        try:
            return work(connection)
        finally:
            driver.idle_timeout = before

    def may_retry(self, error: DBAPIError) -> bool:
        if error.connection_invalidated:
            return not getattr(error.orig, "silent", False)  # a retry would wait as long again
        # A connection stays read-only when its server is promoted later; with several hosts, another may be writable.
        return getattr(error.orig, "sqlstate", None) == _READ_ONLY

    def is_conflict(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in _CONFLICTS

    def convert_error(self, error: DBAPIError) -> StoreError:
        code = getattr(error.orig, "sqlstate", None) or ""
        message, again = str(error.orig).strip().partition("\n")[0], "try again once the server is back"
        if code[:2] in _QUOTING:
            message = f"{type(error.orig).__name__}, {code}"
        connecting = not code and isinstance(error, OperationalError) and not error.connection_invalidated
        if code in _NO_ENTRY or (connecting and _REFUSED.search(message)):
            remedy = "check the URL's user, password and options and what the server allows"
            wrong = f"{self.where} cannot be connected to ({message}); nothing was changed"
            return StoreError(f"{wrong}: {remedy}, or make the database with createdb")
        if code in _BUSY or (connecting and _TOO_MANY.search(message)):
            return StoreBusy(f"{self.where} was held up by others ({message}); nothing was written: try again")
        if connecting:
            remedy = "or check the URL if it has never answered: host, port, database, user, password"
            return StoreUnreachable(f"{self.where} does not answer ({message}); {again}, {remedy}")
        if error.connection_invalidated or code[:2] == "08" or code in _GOING_AWAY:
            return StoreUnreachable(f"{self.where} does not answer ({message}); {again}: its log says why it went")
        if code == "53100":
            return StoreFull(f"there is no room left for {self.where}; nothing was written: free some and try again")
        if code in _NOT_ALLOWED:
            return StoreReadOnly(f"{self.where} cannot be written to ({message}); nothing was written: allow it there")
        if code in _UNREADABLE or code[:2] == "XX":
            remedy = "nothing was changed: restore a backup, or name another database"
            return StoreDamaged(f"{self.where} cannot be read as a store ({message}); {remedy}")
        return StoreError(f"PostgreSQL could not read or write {self.where}: {message}")


@cache
def _make_append(size: int, follows: bool) -> TextClause:
    """Return the statement that appends *size* entries, after a known one if it *follows* any."""
    rows = (", ".join(f":{name}" for name in names) for names in _NAMES[:size])
    statement = _APPEND + _FOLLOWS * follows
    return text(statement.format(columns=", ".join(_COLUMNS), rows=", ".join(f"({row})" for row in rows)))


class _IdleTimeout:
    """What ``make_connection_class`` adds to a connection, which may be an asynchronous one."""

    idle_timeout: float
    pgconn: Any

    def wait(self, gen: Generator[Any, Any, Any], *more: Any, **options: Any) -> Any:
        return super().wait(self._watch(gen), *more, **options)  # type: ignore[misc]

    def _watch(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        # The driver resumes the generator without a result several times a second, to let signals through.
        seconds = self.idle_timeout
        deadline = time.monotonic() + seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    deadline = time.monotonic() + seconds
                elif time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise _make_silent(seconds)
                wanted = gen.send(ready)
        except StopIteration as end:
            result: Result = end.value
            return result


def _make_silent(seconds: float) -> Exception:
    """Return the error of a server that was silent for too long; the statement may have been executed or not."""
    from psycopg import OperationalError as DriverError  # here: psycopg is an extra

    error = DriverError(f"it has said nothing for {seconds:g} s")
    error.silent = True  # type: ignore[attr-defined]
    return error
