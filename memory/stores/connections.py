"""Connections to one database: errors become ``StoreError``, broken connections are replaced, a fork closes all.

``Dialect`` is the base class for the differences between databases; see ``sqlite`` and ``postgres``.
"""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet, ref

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from ..errors import StoreBusy, StoreClosed, StoreDamaged, StoreError, StoreUnreachable
from ..hooks import renew_after_fork
from .base import INTERRUPTED

Result = TypeVar("Result")

#: Seconds to wait for another process's lock, unless the URL says otherwise.
DEFAULT_PATIENCE = 5.0
#: Attempts on broken or outdated connections: a server restart breaks several connections of the pool, and so does
#: making a read-only file writable.
MAX_TRIES = 3
#: Attempts after losing to another transaction; that one has ended by the next attempt.
MAX_TRIES_AFTER_CONFLICT = 10

#: An entry: number, id, kind, round, key of the round that it opens, version, created_at and body.
EntryRow = tuple[int, str, str, int, str | None, int, str, str]
#: Maximum entries that are appended without a transaction around them.
MAX_APPENDED = 20
#: Maximum entries and approximate maximum characters of a page, which is read at once.
PAGE, PAGE_CHARACTERS = 1_000, 2_000_000

#: Selects the version of the tables, one row.
SELECT_VERSION = "SELECT version FROM compactor_schema"
#: The number of this library's advisory lock on a PostgreSQL server.
SCHEMA_LOCK = 4_846_531_073


class Dialect(ABC):
    """One kind of database. Its drivers run in autocommit; transactions begin explicitly."""

    #: The database, for messages; without a password.
    where: str
    #: Seconds to wait for a lock.
    patience: float
    #: Somebody listens to notices.
    is_listening = False
    #: ``listen`` tells of what other processes publish. Known once connected.
    notifies = False
    #: The database is a file: only one connection can write at a time, and even a reader may change it.
    in_file: bool
    #: Begins a transaction that writes.
    begin: str
    #: Seconds since 1970 by the database's clock.
    now: str
    #: The minute in an hour by the database's clock, as ``round_to_minute`` returns it.
    in_an_hour: str
    #: Type of a primary key that numbers its rows and never reuses a number.
    identity: str
    #: Ends the definition of a table that is read by its primary key.
    clustered: str

    @abstractmethod
    def append(self, connection: Connection, key: str, after: int, follows: str, rows: Iterator[EntryRow]) -> bool:
        """Insert *rows* behind number *after* of the session *key*, all or none. Return False if its log does not end
        there, or with another id than *follows*, unless that is empty.

        Without a transaction around it, it is one by itself; then at most ``MAX_APPENDED`` rows are given.
        """

    @abstractmethod
    def create_engine(self) -> Engine:
        """Return a new engine; it connects on first use."""

    @abstractmethod
    def may_retry(self, error: DBAPIError) -> bool:
        """Return whether a new connection may succeed at once."""

    @abstractmethod
    def is_conflict(self, error: DBAPIError) -> bool:
        """Return whether another transaction won and this one changed nothing, so that a retry may succeed at once."""

    @abstractmethod
    def convert_error(self, error: DBAPIError) -> StoreError:
        """Return the ``StoreError`` for *error*."""

    def listen(self, key: str, listener: Callable[[], object]) -> Callable[[], None]:  # noqa: ARG002
        """Call *listener* at each notice of the session *key*; return a function that ends that."""
        return lambda: None

    def notify(self, connection: Connection, key: str) -> None:  # noqa: B027
        """Send a notice of the session *key*."""

    def close(self) -> None:  # noqa: B027
        """Listen no more."""

    def read_versions(self) -> Sequence[object] | None:
        """Return the versions recorded in the tables, without changing anything; None if there are no tables.

        Raises if the place cannot hold a store.
        """
        return None

    def create(self) -> None:  # noqa: B027
        """Create a missing database, readable by its owner alone."""

    def keep_log(self) -> Callable[[], None] | None:
        """Keep the log beside the database even after all connections close; return the function that ends this."""
        return None

    def require_same(self) -> None:  # noqa: B027
        """Raise if another database has replaced the one that was connected to first."""

    def prepare(self, connection: Connection) -> None:  # noqa: B027
        """Prepare a database that may have no tables yet."""

    def run_long(self, connection: Connection, work: Callable[[Connection], Result]) -> Result:
        """Return ``work(connection)``; its statements may change a whole session and take long."""
        return work(connection)

    def finish_erasing(self, connection: Connection) -> None:  # noqa: B027
        """Drop copies of erased texts as far as the database can."""


def parse_seconds(name: str, value: str) -> float:
    """Return the seconds in the option *name* of a URL. Raises ``StoreError`` unless *value* is 0 or more."""
    with suppress(ValueError):
        if 0 <= float(value) < math.inf:
            return float(value)
    raise StoreError(f"{name}= is a number of seconds, 0 or more")


def choose_page_size(bodies: Sequence[str]) -> int:
    """Return how many entries to read or write at once, assuming that they are as long as *bodies*."""
    return max(1, min(PAGE, PAGE_CHARACTERS * len(bodies) // max(1, sum(map(len, bodies)))))


def lock_schema(connection: Connection) -> None:
    """Let no other process change the tables of a PostgreSQL server until the transaction ends."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")


class _ConnectionUser:
    """A caller who is using a connection."""

    __slots__ = ("__weakref__",)


class Connections:
    """Runs a store's work on a connection, with ``read``, ``write`` or ``change``.

    *work* runs again if the connection breaks, so it must have the same effect when it runs twice. It must not keep the
    connection: another caller gets it afterwards.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._closed = False
        self._after_fork()
        renew_after_fork(self)
        with _forking:
            _all.add(self)

    def _after_fork(self) -> None:
        self._has_written = self._keeps_log = False
        self._serialized = False  # all writers queue: set after the first conflict of two transactions
        self._lock = threading.RLock()  # guards _users, _paused, _closed; entered itself, see _create_permit
        self._idle = threading.Condition(self._lock)
        self._users: set[ref[_ConnectionUser]] = set()  # weak: an interrupted caller disappears by itself
        self._paused = False
        self._engine: Engine = self.dialect.create_engine()
        self._release_log: Callable[[], None] | None = None  # until called, the log stays out of the database
        self._permits: SimpleQueue[object] = SimpleQueue()  # holds one unless somebody writes: no writer polls
        self._permits.put(None)
        self._permit = self._create_permit(self.dialect.patience)
        self._writer: Connection | None = None  # kept for the next write; the permit guards it and _writer_is_clean
        self._writer_is_clean = True  # the last writer left no transaction behind
        self._writing_thread = 0  # the writer with the permit; stale if that one was interrupted

    def read_versions(self) -> Sequence[object] | None:
        """Return the versions recorded in the tables, without changing anything; None if there are no tables."""
        try:
            return self.dialect.read_versions()
        except (SQLAlchemyError, UnicodeDecodeError) as error:
            raise self._convert_error(error) from error

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Return the result of *work*. Each of its statements sees the data at its start."""
        return self._run(work, writes=False)

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Return the result of *work*, which is atomic by itself, as a single statement is; it is durable when this
        returns."""
        return self._run(work, writes=True)

    def change(self, work: Callable[[Connection], Result], *, long: bool = False) -> Result:
        """Return the result of *work*, one transaction; nothing happened if it raises.

        *long*: its statements may change a whole session.
        """
        return self._run(partial(self.dialect.run_long, work=work) if long else work, writes=True, begin=True)

    def close(self) -> None:
        """Close all connections once their users are done."""
        with self._lock:
            self._closed = True
        self._release_all()

    def _run(self, work: Callable[[Connection], Result], *, writes: bool, begin: bool = False) -> Result:
        dialect, sent, tries, user = self.dialect, False, 0, _ConnectionUser()
        while True:
            tries += 1
            try:
                self._enter(user)
                if not writes or not (dialect.in_file or self._serialized):
                    dialect.require_same()
                    with self._engine.connect() as connection:
                        sent = True
                        try:
                            return self._run_on(connection, work, begin=begin)
                        finally:
                            self._leave_emptied_pool(connection)
                if self._writing_thread == threading.get_ident() and self._permits.empty():
                    raise StoreBusy(INTERRUPTED.format(dialect.where))
                with self._permit:
                    sent = True
                    return self._write(work, begin=begin)
            except Empty:
                waited = f"other threads wrote to {dialect.where} for more than {dialect.patience:g} s"
                raise StoreBusy(f"{waited}; nothing was written: try again") from None
            except (SQLAlchemyError, UnicodeDecodeError) as error:
                if isinstance(error, DBAPIError):
                    conflict = dialect.is_conflict(error)
                    max_tries = MAX_TRIES if dialect.may_retry(error) else MAX_TRIES_AFTER_CONFLICT if conflict else 1
                    if tries < max_tries:
                        self._serialized = self._serialized or conflict
                        continue
                raise self._convert_error(error, unsure=sent and writes) from error
            finally:
                self._leave(user)

    def _create_permit(self, seconds: float) -> AbstractContextManager[object]:
        """Return what admits one writer at a time: to enter waits, and raises ``Empty`` after *seconds*.

        Only C code runs between taking and recording the permit: in Python, an interrupt in between would lose it
        forever. For the same reason there is no generator and no condition here.
        """
        enter, leave = partial(self._permits.get, True, seconds), self._permits.put  # put ignores __exit__'s arguments
        permit = type("Permit", (), {"__enter__": staticmethod(enter), "__exit__": staticmethod(leave)})
        return permit()  # type: ignore[no-any-return]

    def _run_on(self, connection: Connection, work: Callable[[Connection], Result], *, begin: bool) -> Result:
        try:
            if begin:
                connection.exec_driver_sql(self.dialect.begin)
            result = work(connection)
            if begin:
                connection.commit()
            return result
        except DBAPIError as error:
            if self.dialect.may_retry(error):
                connection.invalidate(error)  # otherwise the pool would hand it out again after the fault
            raise

    def _write(self, work: Callable[[Connection], Result], *, begin: bool) -> Result:
        """Return the result of *work* on the single writing connection; the caller holds the permit."""
        self._writing_thread = threading.get_ident()
        try:  # in a function of its own: an interrupt at the line of a "try" inside a "with" skips its "finally"
            self.dialect.require_same()
            if not self._writer_is_clean:  # the last writer was interrupted, and again while cleaning up
                self._drop_writer(broken=True)
            # Kept for the next write: taking a connection from the pool costs half as much as the write itself.
            if self._writer is None:
                self._writer = self._engine.connect()
            self._writer_is_clean = False
            try:
                result = self._run_on(self._writer, work, begin=begin)
                if self._writer.in_transaction():
                    self._writer.commit()
                self._has_written = self._writer_is_clean = True
            except BaseException as error:
                self._drop_writer(broken=not isinstance(error, Exception))
                raise
            if self._paused or self._closed:
                self._drop_writer()
            return result
        finally:
            self._writing_thread = 0

    def _drop_writer(self, *, broken: bool = False) -> None:
        if self._writer is not None:
            if broken:
                # Two steps: SQLAlchemy may not be able to close a connection that was interrupted inside it.
                with suppress(Exception):
                    self._writer.invalidate()
            self._leave_emptied_pool(self._writer)
            with suppress(Exception if broken else SQLAlchemyError):
                self._writer.close()
            self._writer = None
        self._writer_is_clean = True

    def _leave_emptied_pool(self, connection: Connection) -> None:
        """Have *connection* closed when it is given back, if the pool was emptied meanwhile: nobody would close it."""
        if self._paused or self._closed:
            with suppress(Exception):  # it is invalid, and so closed already
                connection.detach()

    def _convert_error(self, error: SQLAlchemyError | UnicodeDecodeError, *, unsure: bool = False) -> StoreError:
        """Return the ``StoreError`` for *error*; *unsure*: a write had begun."""
        where = self.dialect.where
        if isinstance(error, UnicodeDecodeError):  # the driver's, on names and messages of a damaged file
            self.keep_log()
            return StoreDamaged(f"{where} cannot be read as a store; restore a backup")
        if isinstance(error, PoolExhausted):
            return StoreBusy("all connections to the store are in use; try again, or write less at once")
        if not isinstance(error, DBAPIError):
            return StoreError(f"{where} could not be read or written to: {error}")
        fault = self.dialect.convert_error(error)
        # A traceback prints the cause too, and its text may quote the conversation.
        for cause in (error, error.orig):
            if cause is not None:
                cause.args = (type(error.orig).__name__,)
        if isinstance(fault, StoreDamaged):
            self.keep_log()
        elif unsure and isinstance(fault, StoreUnreachable):
            remedy = "the same entries can be appended at the same place again, and are stored once"
            return StoreUnreachable(f"{fault}. It is not known whether the entries are stored: {remedy}")
        return fault

    def keep_log(self) -> None:
        """Keep the log beside the database untouched from now on: with a backup, it may restore the session."""
        self._keeps_log = True
        pool: Any = self._engine.pool
        if self._release_log is not None or not pool.checkedin() + pool.checkedout():
            return  # with no connection open, opening one would create files there
        self._release_log = self.dialect.keep_log()
        if self._release_log is not None:
            _log_releases.add(self._release_log)

    def _enter(self, user: _ConnectionUser) -> None:
        with self._lock:
            if self._paused:
                self._idle.wait_for(lambda: not self._paused)
            if self._closed:
                raise StoreClosed(f"the store on {self.dialect.where} was closed; open another on the same URL")
            self._users.add(ref(user, self._users.discard))

    def _leave(self, user: _ConnectionUser) -> None:
        with self._lock:
            self._users.discard(ref(user))
            if not self._users and (self._paused or self._closed):
                self._idle.notify_all()

    def _release_all(self) -> None:
        # A connection still in use after the wait closes when its user is done. A child process must not close it: with
        # SQLite, that would release the parent's locks.
        with self._lock:
            self._idle.wait_for(lambda: not self._users, timeout=self.dialect.patience)
        with suppress(Empty), self._create_permit(0):
            self._drop_writer()
        if not self._has_written:
            self.keep_log()
        self._engine.dispose()
        if self._release_log is not None:
            self._release_log()
            _log_releases.discard(self._release_log)
            self._release_log = None

    def _before_fork(self) -> None:
        with self._lock:
            self._paused = True
        self._release_all()

    def _after_fork_in_parent(self) -> None:
        with self._lock:
            self._paused = False
            self._idle.notify_all()
        if self._keeps_log:
            self.keep_log()


#: Referenced here too: a program may end without closing its store.
_log_releases: set[Callable[[], None]] = set()
_all: WeakSet[Connections] = WeakSet()
_forking = threading.Lock()  # guards _all; held during a fork, so that no store is added meanwhile

# No connection may be open in two processes, even if idle: SQLite would assume that the child holds the parent's locks,
# and a close in the parent could delete the log of a new connection in the child.


def _before_fork() -> None:
    _forking.acquire()
    for connections in tuple(_all):
        connections._before_fork()


def _after_fork_in_parent() -> None:
    try:
        for connections in tuple(_all):
            connections._after_fork_in_parent()
    finally:
        _forking.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_forking.release)
