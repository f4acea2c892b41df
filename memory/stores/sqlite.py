"""The SQLite dialect: a file in WAL mode."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from ..errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly, StoreUnreachable
from .connections import DEFAULT_PATIENCE, MAX_APPENDED, SELECT_VERSION, Dialect, EntryRow, parse_seconds

#: Milliseconds that erasing waits for readers of the file; nobody can write meanwhile.
MAX_ERASING_WAIT = 100

#: Messages of SQLite's own that quote nothing.
_SAFE_MESSAGES = re.compile(
    r"database disk image is malformed|disk I/O error|file is not a database|unable to open database file"
    r"|unsupported file format|no such (?:table|column): [\w.]{1,100}"
)
#: Parts of messages about damage for which SQLite has no code.
_DAMAGE_MESSAGES = re.compile(
    r"no such table|no such column|no column named|not decode to UTF-8|malformed|unsupported file format"
)

#: The end of a log, beside the number of its session.
_END = """SELECT s.id, e.number, e.id FROM compactor_sessions s LEFT JOIN compactor_entries e ON e.session = s.id
    WHERE s.key = ? ORDER BY e.number DESC LIMIT 1"""
_INSERT = """INSERT INTO compactor_entries (session, number, id, kind, round, round_key, version, created_at, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""


class _Connection(sqlite3.Connection):
    """Ends its transaction before it closes.

    SQLite keeps the file locked while a cursor is reading. The traceback of an interrupt holds such a cursor, and
    SQLAlchemy closes the interrupted connection: closing alone ends no transaction.
    """

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.rollback()
        super().close()


class Sqlite(Dialect):
    """A file in WAL mode: ``sqlite:///chat.db``, ``sqlite:////srv/chat.db``, ``sqlite:///C:/chats/chat.db``.

    ``?synchronous=full`` is the default: appends survive a power failure. With ``normal`` an append does not wait for
    the disk. It survives a killed process, but a power failure may drop the last appends, each as a whole; the file
    stays intact. ``extra`` is for file systems that may lose a file's name in a power failure.

    ``?timeout=5`` sets the seconds to wait while another process writes.
    """

    in_file = True
    begin = "BEGIN IMMEDIATE"
    # julianday has fractions of a second in every version of SQLite; its epoch is noon, 4714 BC.
    now = "((julianday('now') - 2440587.5) * 86400.0)"
    in_an_hour = "strftime('%Y-%m-%dT%H:%M', 'now', '+1 hour')"
    identity = "INTEGER PRIMARY KEY AUTOINCREMENT"
    clustered = "WITHOUT ROWID"

    def __init__(self, url: str) -> None:
        place, _, options = url.partition("://")[2].partition("?")
        if not place.startswith("/") or place in ("/", "/:memory:"):
            raise StoreError("a SQLite URL is sqlite:///file.db, or sqlite:////folder/file.db; memory:// keeps no file")
        # Made absolute here: the driver would follow a later change of the working directory.
        self.path = Path(place[1:]).absolute()
        self.where = str(self.path)
        self._opened: tuple[int, int] | None = None  # device and inode of the file that was connected to first
        self.patience, self._synchronous = DEFAULT_PATIENCE, "full"
        for name, value in parse_qsl(options, keep_blank_values=True):
            if name == "timeout":
                self.patience = parse_seconds(name, value)
            elif name != "synchronous":
                raise StoreError(f"a SQLite URL has no option {name!r}; there are synchronous= and timeout=")
            elif value.lower() not in ("normal", "full", "extra"):
                raise StoreError("synchronous= is normal, full or extra")
            else:
                self._synchronous = value.lower()

    def append(self, connection: Connection, key: str, after: int, follows: str, rows: Iterator[EntryRow]) -> bool:
        # Not through SQLAlchemy, which takes as long for a statement as SQLite. Not in one statement either: that takes
        # longer than these, and for many rows much longer.
        driver: Any = connection.connection.dbapi_connection
        rows = chain(list(islice(rows, MAX_APPENDED)), rows)  # makes these now, before other processes have to wait
        try:
            alone = not driver.in_transaction
            if alone:
                driver.execute(self.begin)
            session, *end = driver.execute(_END, (key,)).fetchone() or (None, None, None)
            fits = session is not None and end == [after or None, follows or end[1]]
            if fits:
                driver.executemany(_INSERT, ((session, *row) for row in rows))
            if alone:
                driver.commit()
            return fits
        except sqlite3.Error as error:
            raise DBAPIError(_INSERT, None, error, hide_parameters=True) from error

    def create_engine(self) -> Engine:
        options = {"isolation_level": None, "check_same_thread": False, "factory": _Connection}
        engine = create_engine(
            URL.create("sqlite+pysqlite", database=str(self.path)),
            connect_args={"timeout": self.patience, **options},
            poolclass=QueuePool,
            max_overflow=-1,
            hide_parameters=True,
        )
        event.listen(engine, "connect", self._configure)
        return engine

    def _configure(self, connection: Any, _record: Any) -> None:
        self._opened = self._opened or self._identify()
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA secure_delete = ON")  # overwrites redacted and purged text
        connection.execute("PRAGMA cell_size_check = ON")  # refuses a damaged page before the damage can spread

    def read_versions(self) -> Sequence[object] | None:
        try:
            return self._read_file_versions() if self._exists() else None
        except sqlite3.Error as error:
            raise DBAPIError(None, None, error, hide_parameters=True) from error

    def _read_file_versions(self) -> Sequence[object] | None:
        # An ordinary reader creates two files beside the database, so try without first. No "-shm" means that nobody
        # has the database open in WAL mode; the stamps reveal anyone who opens it meanwhile.
        _, log, shared, journal = before = self._read_stamps()
        if shared is None and not (journal and journal[0]):
            with suppress(OSError):
                try:
                    if log and log[0]:
                        return self._copy_and_read()
                    return self._connect_and_read(self.path, "mode=ro&immutable=1")
                except (sqlite3.Error, StoreError):
                    if self._read_stamps() == before:
                        raise
        try:
            return self._connect_and_read(self.path, "mode=ro")
        except sqlite3.Error as error:
            if _get_code(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                raise
            with suppress(OSError):  # reading may need a repair; a copy can be repaired as well
                return self._copy_and_read()
            raise

    def _copy_and_read(self) -> Sequence[object] | None:
        with TemporaryDirectory(prefix="compactor-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, "copy.db")
            for end in ("", "-wal", "-journal"):
                if self._get_path(end).exists():
                    shutil.copyfile(self._get_path(end), f"{path}{end}")
            return self._connect_and_read(path, "mode=rw")

    def _connect_and_read(self, path: Path, options: str) -> Sequence[object] | None:
        """Return the versions recorded in the tables of the file or a copy, opened with SQLite's *options*."""
        uri = f"{path.as_uri()}?{options}"
        # Not with SQLAlchemy, which takes several times as long to connect and to query.
        with closing(sqlite3.connect(uri, uri=True, timeout=self.patience, isolation_level=None)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            self._require_own(tables)
            return [version for (version,) in connection.execute(SELECT_VERSION)] if tables else None

    def _require_own(self, tables: set[str]) -> None:
        if tables and "compactor_schema" not in tables:
            raise StoreError(f"{self.path} is the database of another program; nothing was changed: name another file")

    def _exists(self) -> bool:
        """Return whether the file exists and is not empty. Raises if it cannot be a database."""
        try:
            if self.path.is_dir():
                raise StoreError(f"{self.path} is a folder; name a file in it")
            if not self.path.parent.is_dir():
                raise StoreError(f"the folder {self.path.parent} does not exist; create it")
            wal = self._get_path("-wal")
            logged = wal.exists() and wal.stat().st_size  # before the file: a writer creates the file first
            size = self.path.stat().st_size if self.path.exists() else 0
        except OSError as error:
            remedy = "allow reading and writing to it and to its folder, or name another"
            raise StoreError(f"{self.path} cannot be opened ({error.strerror}); {remedy}") from error
        if logged and not size:  # SQLite would delete the log, which may hold the whole session
            remedy = f"restore both from a backup, or remove {wal.name} too and start again"
            wrong = f"{self.path} is empty or missing, and {wal.name} beside it is not"
            raise StoreDamaged(f"{wrong}; nothing was changed: {remedy}")
        if 0 < size < 512:  # the smallest page; SQLite treats a file of one byte as empty
            raise StoreDamaged(f"{self.path} is not a SQLite database; nothing was changed: name another file")
        return size > 0

    def create(self) -> None:
        # Files that SQLite puts beside it get the same permissions.
        with suppress(OSError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def prepare(self, connection: Connection) -> None:
        self._require_own(set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars()))
        deadline = time.monotonic() + self.patience
        while connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
            try:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                return  # even if the file system does not support WAL: a rollback journal is as safe, but slower
            except DBAPIError:
                if time.monotonic() > deadline:
                    raise
                # The switch fails at once with "locked"; this waits until nobody reads or writes any more.
                connection.exec_driver_sql("BEGIN EXCLUSIVE")
                connection.rollback()

    def _get_path(self, end: str) -> Path:
        return Path(f"{self.path}{end}")

    def _read_stamps(self) -> list[tuple[int, int] | None]:
        """Return size and time of change of the file, its log, the log's index and a rollback journal."""
        statuses = map(_read_status, map(self._get_path, ("", "-wal", "-shm", "-journal")))
        return [(status.st_size, status.st_mtime_ns) if status else None for status in statuses]

    def keep_log(self) -> Callable[[], None] | None:
        log = _read_status(self._get_path("-wal"))
        if log is None or not log.st_size:
            return None
        # The last connection to close moves the log into the database and deletes it, unless it is read-only.
        keeper = None
        with suppress(sqlite3.Error):
            keeper = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=0, check_same_thread=False)
            keeper.execute("SELECT count(*) FROM sqlite_master").fetchall()
        return None if keeper is None else keeper.close

    def require_same(self) -> None:
        # On most systems an open file can be deleted. It still accepts writes, and loses all of them when it is closed.
        if self._opened is None or (present := self._identify()) == self._opened:
            return
        remedy = "nothing was written: put it back, or close the store and open it anew"
        if present is None:
            raise StoreDamaged(f"{self.path} was removed while it was open; {remedy}")
        raise StoreDamaged(
            f"{self.path} is not the file that was opened: its file system gives it another number; {remedy}, which is"
            f" all it takes if a network file system has renumbered its files"
        )

    def _identify(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.where)  # a text: every write asks, and a Path takes longer than the file system
        except FileNotFoundError:
            return None
        except OSError as error:
            remedy = "nothing was written: try again once its folder is there again"
            raise StoreUnreachable(f"{self.path} cannot be looked at ({error.strerror}); {remedy}") from error
        return status.st_dev, status.st_ino

    def finish_erasing(self, connection: Connection) -> None:
        # Otherwise the WAL keeps the text until it is overwritten. A reader may prevent the truncation; then the next
        # erasure does it, because waiting for the reader would block all writers.
        patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {min(patience, MAX_ERASING_WAIT)}").all()
        try:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").all()
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience}").all()

    def may_retry(self, error: DBAPIError) -> bool:
        # A connection made while the file was read-only stays read-only.
        return _get_code(error.orig) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

    def is_conflict(self, error: DBAPIError) -> bool:
        return _get_extended_code(error.orig) == sqlite3.SQLITE_BUSY_SNAPSHOT  # its snapshot is outdated

    def convert_error(self, error: DBAPIError) -> StoreError:
        cause, code, path = error.orig, _get_code(error.orig), self.path
        if code == sqlite3.SQLITE_FULL or _get_extended_code(cause) == sqlite3.SQLITE_IOERR_SHMSIZE:
            return StoreFull(f"there is no room left for {path}; nothing was written: free some and try again")
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (
            code == sqlite3.SQLITE_CANTOPEN and not self._is_writable()
        ):
            files = f"to it, to {path.name}-wal and -shm beside it and to its folder"
            return StoreReadOnly(f"{path} cannot be written to; allow writing {files}, or name another")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            remedy = "nothing was written: try again, or wait for longer with ?timeout="
            return StoreBusy(f"another process kept {path} locked for more than {self.patience:g} s; {remedy}")
        message = str(cause)
        is_damage = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _DAMAGE_MESSAGES.search(message)
        if not _SAFE_MESSAGES.fullmatch(message):  # it may quote what is in the file
            message = getattr(cause, "sqlite_errorname", "") or type(cause).__name__
        if is_damage:
            remedy = "nothing was changed: restore a backup, or name another file"
            return StoreDamaged(f"{path} cannot be read as a store ({message}); {remedy}")
        return StoreError(f"SQLite could not read or write {path}: {message}")

    def _is_writable(self) -> bool:
        return os.access(self.path.parent, os.W_OK) and (not self.path.exists() or os.access(self.path, os.W_OK))


def _read_status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _get_extended_code(error: BaseException | None) -> int:
    return int(getattr(error, "sqlite_errorcode", 0))


def _get_code(error: BaseException | None) -> int:
    """Return the primary code of an error; the higher bits of the extended one refine it."""
    return _get_extended_code(error) & 0xFF
