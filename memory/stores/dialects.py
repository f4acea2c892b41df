"""What is different between SQLite and PostgreSQL: all of it, and nothing else."""

from __future__ import annotations

import math
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.pool import QueuePool

from ..errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)

Result = TypeVar("Result")

#: Seconds to wait for what another process has locked, where the URL says nothing else.
PATIENCE = 5.0
#: Milliseconds that erasing waits for those who read a SQLite file, and keeps others from writing.
PATIENCE_ERASING = 100

#: Seconds beyond that after which a server that says nothing is given up.
SILENCE = 30.0
#: Seconds in which it may say nothing over a statement that changes very much.
LONG_SILENCE = 3600.0

#: Says of which version the tables are, in one row.
VERSIONS = "SELECT version FROM compactor_schema"
#: Of PostgreSQL's advisory locks, which have numbers for names, this library's own.
SCHEMA_LOCK = 4_846_531_073


class Closeable(Protocol):
    def close(self) -> None: ...


class Dialect(Protocol):
    """One kind of database. Its drivers are in autocommit: a transaction is begun by hand."""

    #: The database, for messages; without a password.
    where: str
    #: Seconds to wait for a lock.
    patience: float
    #: Whether only one connection can write at a time.
    one_writer: bool
    #: Whether it is a file, which even those who only read may change.
    in_file: bool
    #: Begins a transaction that writes.
    begin: str
    #: The seconds since 1970 by the database's clock.
    now: str
    #: The type of a column that numbers its rows and never gives a number twice.
    identity: str
    #: Ends the definition of a table that is read by its primary key.
    clustered: str

    def driver_sql(self, statement: str) -> str:
        """Return a *statement* with ``:name`` as the driver takes it, for what is too often asked to be compiled."""

    def insert(self, connection: Connection, statement: str, row: Mapping[str, Any]) -> int:
        """Return how many rows a *statement* inserted that ``driver_sql`` returned; 0 where another writer inserted
        the same at that moment."""

    def insert_all(
        self, connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        """Insert *rows* into *columns* of a *table*, both of which are the library's own words."""

    def engine(self) -> Engine:
        """Return a new engine; it connects when it is first used."""

    def look(self) -> Sequence[object] | None:
        """Return the versions that the database says its tables are of, and change nothing of it; None where there is
        nothing to see. Raises where there can be no store."""

    def create(self) -> None:
        """Make what can be connected to where there is nothing, and readable by its owner alone."""

    def keep_log(self) -> Closeable | None:
        """Return what keeps a log beside the database as it is, until it is closed after all connections."""

    def require_fit(self, connection: Connection) -> None:
        """Raise where the database cannot hold every text."""

    def note_opened(self) -> None:
        """Take note of which database this is, now that there is one."""

    def require_same(self) -> None:
        """Raise where what stands in its place now is another one."""

    def prepare(self, connection: Connection) -> None:
        """Ready a database for its tables, which it need not have yet."""

    def lock_schema(self, connection: Connection) -> None:
        """Keep all others from changing the tables until this transaction ends."""

    def patiently(self, connection: Connection, work: Callable[[Connection], Result]) -> Result:
        """Return what *work* returns, whose statements may take long: they change as much as a session has."""

    def after_erasing(self, connection: Connection) -> None:
        """Let go of copies of what was erased, as far as the database can."""

    def another_may(self, error: DBAPIError) -> bool:
        """Return whether what failed with *error* may go well on a new connection, at once."""

    def gave_way(self, error: DBAPIError) -> bool:
        """Return whether nothing of it happened because another's transaction did, so that it may go well at once."""

    def fault(self, error: DBAPIError) -> StoreError:
        """Return *error* as one of ours."""


# -- SQLite ------------------------------------------------------------------------------------------------------------


class _Connection(sqlite3.Connection):
    """One that ends its transaction before it is closed.

    SQLite keeps the file locked for as long as there is a cursor that was reading. An interrupt has one in its
    traceback, and SQLAlchemy closes the connection that it was interrupted in: that alone ends nothing.
    """

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.rollback()
        super().close()


class Sqlite:
    """A file, in WAL mode. ``sqlite:///chat.db``, ``sqlite:////srv/chat.db``, ``sqlite:///C:/chats/chat.db``.

    ``?synchronous=full`` is how it is opened where nothing is said: what was appended outlasts a power failure. With
    ``normal`` an append takes no wait for the disk: it outlasts the end of the process, also a sudden one, and a power
    failure may take the last ones with it, whole; the file is sound in either case. ``extra`` is for file systems that
    may lose a file's name in a power failure.

    ``?timeout=5`` are the seconds for which it waits while another process writes.
    """

    one_writer = in_file = True
    begin = "BEGIN IMMEDIATE"
    # julianday has fractions of a second in every version of SQLite; its epoch is noon, 4714 BC.
    now = "((julianday('now') - 2440587.5) * 86400.0)"
    identity = "INTEGER PRIMARY KEY AUTOINCREMENT"
    clustered = "WITHOUT ROWID"

    def __init__(self, url: str) -> None:
        place, _, options = url.partition("://")[2].partition("?")
        if not place.startswith("/") or place in ("/", "/:memory:"):
            raise StoreError("a SQLite URL is sqlite:///file.db, or sqlite:////folder/file.db; memory:// keeps no file")
        # Not left to the driver, which would follow a change of the working folder.
        self.path = Path(place[1:]).absolute()
        self.where = str(self.path)
        self._opened: tuple[int, int] | None = None  # the file's device and number there
        self.patience, self._synchronous = PATIENCE, "full"
        for name, value in parse_qsl(options, keep_blank_values=True):
            match name:
                case "synchronous":
                    self._synchronous = _one_of(name, value.lower(), ("normal", "full", "extra"))
                case "timeout":
                    self.patience = _seconds(name, value)
                case _:
                    raise StoreError(f"a SQLite URL has no option {name!r}; there are synchronous= and timeout=")

    def driver_sql(self, statement: str) -> str:
        return statement

    def insert(self, connection: Connection, statement: str, row: Mapping[str, Any]) -> int:
        # Past SQLAlchemy, which takes as long to make a result as SQLite does to insert.
        driver: Any = connection.connection.driver_connection
        try:
            return int(driver.execute(statement, row).rowcount)
        except sqlite3.Error as error:
            raise DBAPIError(statement, None, error, hide_parameters=True) from error

    def insert_all(
        self, connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        marks = ", ".join("?" * len(columns))
        driver: Any = connection.connection.driver_connection
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608
        try:
            driver.executemany(statement, rows)
        except sqlite3.Error as error:
            raise DBAPIError(statement, None, error, hide_parameters=True) from error

    def engine(self) -> Engine:
        engine = create_engine(
            URL.create("sqlite+pysqlite", database=str(self.path)),
            connect_args={
                "timeout": self.patience,
                "isolation_level": None,
                "check_same_thread": False,
                "factory": _Connection,
            },
            poolclass=QueuePool,
            max_overflow=-1,
            hide_parameters=True,
        )
        event.listen(engine, "connect", self._connected)
        return engine

    def _connected(self, connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA synchronous = {self._synchronous}")  # one of three words
        cursor.execute("PRAGMA secure_delete = ON")  # what is redacted or purged is overwritten, not only let go
        cursor.execute("PRAGMA cell_size_check = ON")  # a damaged page is refused, before the damage can spread
        cursor.close()

    def look(self) -> Sequence[object] | None:
        try:
            return self._looked() if self._is_there() else None
        except sqlite3.Error as error:
            raise DBAPIError(None, None, error, hide_parameters=True) from error

    def _looked(self) -> Sequence[object] | None:
        # Who reads beside others makes two files there, so this comes first. Nobody has the database open who uses its
        # log and has no table of locks; somebody who comes meanwhile is seen by what has changed.
        if not self._beside("-shm").exists() and not _size(self._beside("-journal")):
            before = self._stamps()
            with suppress(OSError):
                try:
                    return self._versions("mode=ro&immutable=1" if not _size(self._beside("-wal")) else None)
                except (sqlite3.Error, StoreError):
                    if self._stamps() == before:
                        raise
        try:
            return self._versions("mode=ro")
        except sqlite3.Error as error:
            if _code(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                raise
            with suppress(OSError):  # it may take a repair to read it, which a copy bears as well
                return self._versions(None)
            raise

    def _versions(self, options: str | None) -> Sequence[object] | None:
        """Return the versions in the database, opened with SQLite's *options*; None: in a copy of it."""
        with (
            TemporaryDirectory(prefix="compactor-", ignore_cleanup_errors=True)
            if options is None
            else nullcontext() as folder
        ):
            path = self.path
            if folder is not None:
                path = Path(folder, "copy.db")
                for end in ("", "-wal", "-journal"):
                    if self._beside(end).exists():
                        shutil.copyfile(self._beside(end), f"{path}{end}")
            uri = f"{path.as_uri()}?{options or 'mode=rw'}"
            # Not by SQLAlchemy, which takes several times as long to connect and to ask.
            with closing(sqlite3.connect(uri, uri=True, timeout=self.patience, isolation_level=None)) as connection:
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
                self._refuse_others(tables)
                return [version for (version,) in connection.execute(VERSIONS)] if tables else None

    def create(self) -> None:
        # What SQLite puts beside it, now or later, gets the same permissions.
        with suppress(OSError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def _beside(self, end: str) -> Path:
        return Path(f"{self.path}{end}")

    def _stamps(self) -> list[tuple[int, int] | None]:
        files = (self.path, *map(self._beside, ("-wal", "-shm", "-journal")))
        return [(found.st_size, found.st_mtime_ns) if (found := _stat(file)) else None for file in files]

    def keep_log(self) -> Closeable | None:
        if not _size(self._beside("-wal")):
            return None
        # The last connection to be closed moves the log into the database and removes it, unless it may only read.
        keeper = None
        with suppress(sqlite3.Error):
            keeper = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=0, check_same_thread=False)
            keeper.execute("SELECT count(*) FROM sqlite_master").fetchall()
        return keeper

    def _is_there(self) -> bool:
        """Return whether there is a file that is not empty. Raises where there cannot be one, or it is no database."""
        try:
            if self.path.is_dir():
                raise StoreError(f"{self.path} is a folder; name a file in it")
            if not self.path.parent.is_dir():
                raise StoreError(f"the folder {self.path.parent} does not exist; create it")
            wal = self._beside("-wal")
            logged = wal.exists() and wal.stat().st_size  # asked first: whoever makes both begins with the file
            size = self.path.stat().st_size if self.path.exists() else 0
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be opened ({error.strerror}); allow reading and writing to it and to its folder,"
                f" or name another"
            ) from error
        if logged and not size:  # SQLite would remove the log, which may hold the whole session
            raise StoreDamaged(
                f"{self.path} is empty or missing, and {wal.name} beside it is not; nothing was changed: restore both"
                f" from a backup, or remove that too and begin anew"
            )
        if 0 < size < 512:  # the smallest page; SQLite itself would take a file of one byte for an empty one
            raise StoreDamaged(f"{self.path} is not a SQLite database; nothing was changed: name another file")
        return size > 0

    def require_fit(self, connection: Connection) -> None:
        """Each of SQLite's encodings can."""

    def note_opened(self) -> None:
        self._opened = self._present()

    def require_same(self) -> None:
        # On most systems an open file can be removed, and is written to until it is closed: then all of it is lost.
        if self._opened is None or (present := self._present()) == self._opened:
            return
        if present is None:
            raise StoreDamaged(
                f"{self.path} was removed while it was open; nothing was written: put it back, or close the store and"
                f" open it anew"
            )
        raise StoreDamaged(
            f"{self.path} is not the file that was opened, by the number that its file system gives it; nothing was"
            f" written: put that one back, or close the store and open it anew, which is all it takes where a network"
            f" file system has numbered its files anew"
        )

    def _present(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnreachable(
                f"{self.path} cannot be looked at ({error.strerror}); nothing was written: try again once its folder"
                f" is there again"
            ) from error
        return found.st_dev, found.st_ino

    def prepare(self, connection: Connection) -> None:
        self._refuse_others(set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars()))
        last = time.monotonic() + self.patience
        while connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
            try:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                return  # also where the file system has no WAL: a rollback journal is as safe, and slower
            except DBAPIError:
                if time.monotonic() > last:
                    raise
                # The switch answers "locked" at once, where this waits until nobody reads or writes any more.
                connection.exec_driver_sql("BEGIN EXCLUSIVE")
                connection.rollback()

    def lock_schema(self, connection: Connection) -> None:
        """The transaction itself does."""

    def patiently(self, connection: Connection, work: Callable[[Connection], Result]) -> Result:
        return work(connection)  # a file is never silent

    def after_erasing(self, connection: Connection) -> None:
        # Else the text would stand in the WAL until others have written over it. Somebody who reads may prevent that:
        # then it is left to the next one, because meanwhile nobody can write.
        patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {min(patience, PATIENCE_ERASING)}").all()
        try:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").all()
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience}").all()

    def another_may(self, error: DBAPIError) -> bool:
        # One that was made while the file could only be read stays so.
        return _code(error.orig) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

    def gave_way(self, error: DBAPIError) -> bool:
        return _extended(error.orig) == sqlite3.SQLITE_BUSY_SNAPSHOT  # what it had read is another by now

    def fault(self, error: DBAPIError) -> StoreError:
        return self._fault(error.orig)

    def _fault(self, error: BaseException | None) -> StoreError:
        code, said = _code(error), _said(error)
        if code == sqlite3.SQLITE_FULL or _extended(error) == sqlite3.SQLITE_IOERR_SHMSIZE:
            return StoreFull(f"there is no room left for {self.path}; nothing was written: free some and try again")
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (
            code == sqlite3.SQLITE_CANTOPEN and not self._writable()
        ):
            return StoreReadOnly(
                f"{self.path} cannot be written to; allow writing to it, to {self.path.name}-wal and -shm beside it and"
                f" to its folder, or name another"
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusy(
                f"another process kept {self.path} locked for more than {self.patience:g} s; nothing was written:"
                f" try again, or wait for longer with ?timeout="
            )
        if code in _DAMAGED or any(missing in str(error) for missing in _MISSING):
            return StoreDamaged(
                f"{self.path} cannot be read as a store ({said}); nothing was changed: restore a backup, or name"
                f" another file"
            )
        return StoreError(f"SQLite could not read or write {self.path}: {said}")

    def _writable(self) -> bool:
        return os.access(self.path.parent, os.W_OK) and (not self.path.exists() or os.access(self.path, os.W_OK))

    def _refuse_others(self, tables: set[str]) -> None:
        if tables and "compactor_schema" not in tables:
            raise StoreError(f"{self.path} is the database of another program; nothing was changed: name another file")


_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_OWN_WORDS = (
    "database disk image is malformed",
    "disk I/O error",
    "file is not a database",
    "unable to open database file",
    "unsupported file format",
)
#: What SQLite has no code for.
_MISSING = (
    "no such table",
    "no such column",
    "no column named",
    "not decode to UTF-8",
    "malformed",
    "unsupported file format",
)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _size(path: Path) -> int:
    found = _stat(path)
    return found.st_size if found else 0


def _said(error: BaseException | None) -> str:
    """Return what SQLite said where that is its own words alone: others quote texts and names out of the file."""
    said = str(error)
    if said in _OWN_WORDS or re.fullmatch(r"no such (table|column): [\w.]{1,100}", said):
        return said
    return getattr(error, "sqlite_errorname", "") or type(error).__name__


def _extended(error: BaseException | None) -> int:
    return int(getattr(error, "sqlite_errorcode", 0))


def _code(error: BaseException | None) -> int:
    """Return the kind of an error; the higher bits say more than that."""
    return _extended(error) & 0xFF


def _one_of(name: str, value: str, values: tuple[str, ...]) -> str:
    if value not in values:
        raise StoreError(f"{name}= is {', '.join(values[:-1])} or {values[-1]}")
    return value


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise StoreError(f"{name}= is a number of seconds, 0 or more")
    return seconds


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


class Postgres:
    """A server, by psycopg 3. ``postgresql+psycopg://user:password@host/database``, and libpq's options behind it.

    ``?timeout=5`` are the seconds for which it waits where another process has locked what it needs. A server that is
    cut off, or that says nothing for half a minute longer than that, is given up: ``StoreUnreachable``. How durable an
    append is, the server's own ``synchronous_commit`` says.
    """

    one_writer = in_file = False
    begin = "BEGIN"
    now = "extract(epoch FROM clock_timestamp())"
    identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    clustered = ""

    def __init__(self, url: str) -> None:
        place, mark, options = url.partition("://")[2].partition("?")
        # Taken for a part of the host's name or the database's, the password's end would be in every message.
        if place.count("@") > 1 or "@" in place.partition("/")[2]:
            raise StoreError("a PostgreSQL URL has one @, before the host; in a password write %40 for it, %2F for /")
        try:
            self._url = make_url(f"postgresql+psycopg://{place}{mark}{options}")
        except Exception:  # noqa: BLE001  (whatever it is, its message may show the password)
            raise StoreError(f"the URL {_URL_IS_WRONG}") from None
        patience = self._url.query.get("timeout", str(PATIENCE))
        self.patience = _seconds("timeout", patience if isinstance(patience, str) else patience[-1])
        self._url = self._url.difference_update_query(["timeout"])
        host = self._url.host or self._url.query.get("host") or "this machine"
        self.where = f"the PostgreSQL database {self._url.database or ''!r} on {host}"

    def driver_sql(self, statement: str) -> str:
        return re.sub(r":(\w+)", r"%(\1)s", statement)

    def insert(self, connection: Connection, statement: str, row: Mapping[str, Any]) -> int:
        try:
            return connection.exec_driver_sql(statement, dict(row)).rowcount
        except IntegrityError:
            return 0

    def insert_all(
        self, connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        # In one statement: of many, psycopg writes to stderr where the connection breaks in the middle of them.
        row = f"({', '.join(['%s'] * len(columns))})"
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * len(rows))}"  # noqa: S608
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(rows)))

    def engine(self) -> Engine:
        unless_said: dict[str, Any] = {
            "connect_timeout": 10,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 25_000,
            "client_encoding": "utf8",
            "application_name": "context-compactor",
        }
        more = {name: value for name, value in unless_said.items() if name not in self._url.query}
        try:
            from .idle_timeout import connection_class

            engine = create_engine(
                self._url,
                connect_args=more,
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
                pool_timeout=self.patience,
            )
        except ImportError as error:
            raise StoreError(
                'psycopg, the driver for PostgreSQL, is not installed: pip install "context-compactor[postgresql]"'
            ) from error
        except ArgumentError:  # whose message may show the password
            raise StoreError(f"the URL of {self.where} {_URL_IS_WRONG}") from None
        made = connection_class(self.patience + SILENCE)
        event.listen(engine, "do_connect", lambda _dialect, _record, place, options: made.connect(*place, **options))
        event.listen(engine, "connect", self._connected)
        return engine

    def _connected(self, connection: Any, _record: Any) -> None:
        # A writer that is cut off in the middle must not hold up the others for ever: neither here nor on the server.
        was, connection.autocommit = connection.autocommit, True
        connection.execute(
            """SELECT set_config(name, wanted, false) FROM (VALUES
                ('lock_timeout', %s), ('idle_in_transaction_session_timeout', '60s')) AS timeouts (name, wanted)
                WHERE current_setting(name) = '0'""",
            [f"{max(1, round(self.patience * 1000))}ms"],
        )
        connection.autocommit = was

    def look(self) -> None:
        """Who reads changes nothing there: one may connect at once."""

    def create(self) -> None:
        """Whoever has a server makes the database."""

    def keep_log(self) -> None:
        """A server's log is its own."""

    def require_fit(self, connection: Connection) -> None:
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
        if encoding != "UTF8":
            raise StoreError(
                f"{self.where} has the encoding {encoding}, which does not hold every text; nothing was changed: make"
                f" another with createdb --encoding=UTF8 --template=template0, and name that"
            )

    def note_opened(self) -> None:
        """A server says itself where a database is gone."""

    def require_same(self) -> None:
        """It does so with every answer."""

    def prepare(self, connection: Connection) -> None:
        """A database needs nothing but its tables, which may stand among those of others."""

    def lock_schema(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": SCHEMA_LOCK})

    def patiently(self, connection: Connection, work: Callable[[Connection], Result]) -> Result:
        driver: Any = connection.connection.driver_connection
        driver.given_up_after, usual = LONG_SILENCE, driver.given_up_after
        try:
            return work(connection)
        finally:
            driver.given_up_after = usual

    def after_erasing(self, connection: Connection) -> None:
        """What was erased is gone for every reader, and from the disk with the server's next VACUUM."""

    def another_may(self, error: DBAPIError) -> bool:
        # One that is read-only stays so, whatever becomes of the server; and of several hosts another may take it.
        if error.connection_invalidated:
            return not getattr(error.orig, "silent", False)  # else everybody would wait as long again
        return getattr(error.orig, "sqlstate", None) == "25006"

    def gave_way(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in _GAVE_WAY

    def fault(self, error: DBAPIError) -> StoreError:
        code = getattr(error.orig, "sqlstate", None) or ""
        said = str(error.orig).strip().partition("\n")[0]
        if code[:2] in _QUOTING:
            said = f"{type(error.orig).__name__}, {code}"
        connecting = not code and isinstance(error, OperationalError) and not error.connection_invalidated
        if code in _NO_ENTRY or (connecting and _REFUSED.search(said)):
            return StoreError(
                f"{self.where} cannot be connected to ({said}); nothing was changed: check the URL's user, password and"
                f" options and what the server allows, or make the database with createdb"
            )
        if code in _HELD_UP or (connecting and _TOO_MANY.search(said)):
            return StoreBusy(f"{self.where} was held up by others ({said}); nothing was written: try again")
        if connecting:
            return StoreUnreachable(
                f"{self.where} does not answer ({said}); try again once the server is back, or check the URL if it has"
                f" never answered: host, port, database, user, password"
            )
        if error.connection_invalidated or code[:2] == "08" or code in _GOING_AWAY:
            return StoreUnreachable(f"{self.where} does not answer ({said}); try again once the server is back")
        if code == "53100":
            return StoreFull(f"there is no room left for {self.where}; nothing was written: free some and try again")
        if code in _NOT_ALLOWED:
            return StoreReadOnly(f"{self.where} cannot be written to ({said}); nothing was written: allow it there")
        if code in _UNREADABLE or code[:2] == "XX":
            return StoreDamaged(
                f"{self.where} cannot be read as a store ({said}); nothing was changed: restore a backup, or name"
                f" another database"
            )
        return StoreError(f"PostgreSQL could not read or write {self.where}: {said}")


_URL_IS_WRONG = (
    "is not postgresql+psycopg://user:password@host:port/database, whose port is a number; in a password write %40 for"
    " @, %2F for /, %3A for : and %23 for #"
)
#: invalid_catalog_name, invalid_authorization_specification, invalid_password.
_NO_ENTRY = ("3D000", "28000", "28P01")
#: The same, and what else no waiting mends, in the words of a server and a libpq that speak English: neither gives a
#: code while one connects.
_REFUSED = re.compile(
    r"does not exist|no password supplied|authentication failed|pg_hba\.conf|permission denied for database"
    r"|not permitted to log in|does not support SSL|invalid (?:port number|\w+ value)"
)
#: What passes by itself, of a server that is there.
_TOO_MANY = re.compile(r"too many (?:connections|clients)|remaining connection slots are reserved")
#: admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped; idle_in_transaction_session_timeout.
_GOING_AWAY = ("57P01", "57P02", "57P03", "57P04", "25P03")
#: read_only_sql_transaction, insufficient_privilege.
_NOT_ALLOWED = ("25006", "42501")
#: lock_not_available, query_canceled (by a time-out), serialization_failure, deadlock_detected, too_many_connections.
_HELD_UP = ("55P03", "57014", "40001", "40P01", "53300")
#: Classes of data exceptions and violated constraints, whose messages quote what is stored or was to be.
_QUOTING = ("22", "23")
#: serialization_failure, deadlock_detected.
_GAVE_WAY = ("40001", "40P01")
#: undefined_table, undefined_column, data_corrupted, index_corrupted (and all of XX).
_UNREADABLE = ("42P01", "42703")
