"""Connections to one database: faults as a ``StoreError``, a lost connection made anew, none left open in a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoneFree

from ..errors import StoreBusy, StoreClosed, StoreDamaged, StoreError, StoreUnreachable
from ..forking import renewed_after_fork
from .dialects import Closeable, Dialect

__all__ = ["Connections"]

Result = TypeVar("Result")

#: How often the same is done where a connection breaks or is too old: the pool may hold several that a restart of the
#: server broke, or that were made when a file could only be read.
TRIES = 3


class Connections:
    """What a store does, it does by ``read``, ``write`` or ``change``: by a function of a connection.

    That is called again where the connection broke, so it must come to the same when it is done twice. It keeps
    nothing of the connection; that is another's as soon as it returns.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._closed = False
        self._after_fork()
        renewed_after_fork(self)
        with _forking:
            _all.add(self)

    def _after_fork(self) -> None:
        self._wrote = self._log_stays = False
        self._turn = threading.Condition()  # guards _users, _paused, _closed
        self._users = 0
        self._paused = False
        self._engine: Engine = self.dialect.engine()
        self._keeper: Closeable | None = None  # keeps the last connection from moving the log into the database
        self._writing = threading.Lock()  # held while writing where there is one writer: it waits without polling
        self._writer: Connection | None = None  # for whoever writes next; guarded by _writing

    def look(self, work: Callable[[Connection], Result]) -> Result | None:
        """Return what *work* returns of a database that nothing of this changes; None where there is nothing to see."""
        try:
            return self.dialect.look(work)
        except (SQLAlchemyError, UnicodeDecodeError) as error:
            raise self._fault(error) from error

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Return what *work* returns. Each of its statements sees what is stored at that moment."""
        return self._done(work, writes=False, begin=False)

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Return what *work* returns, which is one statement, durable before this returns."""
        return self._done(work, writes=True, begin=False)

    def change(self, work: Callable[[Connection], Result], *, patient: bool = False) -> Result:
        """Return what *work* returns, all of whose statements are one transaction; none happened where it raises.

        *patient*: they may take long, as those do that change as much as a session has.
        """

        def patiently(connection: Connection) -> Result:
            return self.dialect.patiently(connection, work)

        return self._done(patiently if patient else work, writes=True, begin=True)

    def close(self) -> None:
        """Close all connections, once those who use one are done."""
        with self._turn:
            self._closed = True
        self._let_go()

    def _done(self, work: Callable[[Connection], Result], *, writes: bool, begin: bool) -> Result:
        sent = False
        for left in reversed(range(TRIES)):
            try:
                with self._used(), self._connected(writes=writes) as connection:
                    sent = True
                    result = self._worked(connection, work, begin=begin)
                    self._wrote |= writes
                    return result
            except (SQLAlchemyError, UnicodeDecodeError) as error:
                if left and isinstance(error, DBAPIError) and self.dialect.another_may(error):
                    continue
                raise self._fault(error, unsure=sent and writes) from error
        raise AssertionError

    def _worked(self, connection: Connection, work: Callable[[Connection], Result], *, begin: bool) -> Result:
        try:
            if begin:
                connection.exec_driver_sql(self.dialect.begin)
            result = work(connection)
            if begin:
                connection.commit()
            return result
        except DBAPIError as error:
            if self.dialect.another_may(error):
                connection.invalidate(error)  # else it would be given to somebody when the fault is over
            raise

    def _fault(self, error: SQLAlchemyError | UnicodeDecodeError, *, unsure: bool = False) -> StoreError:
        where = self.dialect.where
        if isinstance(error, UnicodeDecodeError):  # the driver's, of names and messages out of a damaged file
            self.keep_log()
            return StoreDamaged(f"{where} cannot be read as a store; restore a backup")
        if isinstance(error, NoneFree):
            return StoreBusy("all connections to the store are in use; try again, or write less at once")
        if not isinstance(error, DBAPIError):
            return StoreError(f"{where} could not be read or written to: {error}")
        fault = self.dialect.fault(error)
        # A traceback prints the cause as well, and its text may quote what is stored.
        for cause in (error, error.orig):
            if cause is not None:
                cause.args = (type(error.orig).__name__,)
        if isinstance(fault, StoreDamaged):
            self.keep_log()
            return fault
        if unsure and isinstance(fault, StoreUnreachable):
            return StoreUnreachable(
                f"{fault}. It is not known whether what was being written is stored: the same entries can be appended"
                f" at the same place again, and are stored once"
            )
        return fault

    def keep_log(self) -> None:
        """Leave the log beside a database as it is from now on: it may be all that is left to put behind a backup."""
        self._log_stays = True
        pool: Any = self._engine.pool
        if self._keeper is not None or not pool.checkedin() + pool.checkedout():
            return  # to open one beside no other would make files there
        self._keeper = self.dialect.keep_log()
        if self._keeper is not None:
            _keepers.add(self._keeper)

    @contextmanager
    def _connected(self, *, writes: bool) -> Iterator[Connection]:
        if not (writes and self.dialect.one_writer):
            self.dialect.require_same()
            with self._engine.connect() as connection:
                yield connection
            return
        if not self._writing.acquire(timeout=self.dialect.patience):
            raise StoreBusy(
                f"other threads wrote to {self.dialect.where} for more than {self.dialect.patience:g} s;"
                f" nothing was written: try again"
            )
        try:
            self.dialect.require_same()
            # Kept for the next write: the pool's way there and back takes half as long as the writing itself.
            connection, self._writer = self._writer or self._engine.connect(), None
            try:
                yield connection
                if connection.in_transaction():
                    connection.commit()
            except BaseException:
                connection.close()
                raise
            if self._paused or self._closed:
                connection.close()
            else:
                self._writer = connection
        finally:
            self._writing.release()

    # -- closing and forking -------------------------------------------------------------------------------------------

    @contextmanager
    def _used(self) -> Iterator[None]:
        turn = self._turn
        with turn:
            if self._paused:
                turn.wait_for(lambda: not self._paused)
            if self._closed:
                raise StoreClosed(f"the store on {self.dialect.where} was closed; open another on the same URL")
            self._users += 1
        try:
            yield
        finally:
            with turn:
                self._users -= 1
                if not self._users:
                    turn.notify_all()

    def _let_go(self) -> None:
        # What is in use for longer is closed with its last use. In a child it stays open for ever, as it must:
        # for SQLite, to close it there would be to let go of the parent's locks.
        with self._turn:
            self._turn.wait_for(lambda: not self._users, timeout=self.dialect.patience)
        if self._writing.acquire(blocking=False):
            try:
                if self._writer is not None:
                    self._writer.close()
                self._writer = None
            finally:
                self._writing.release()
        if not self._wrote:
            self.keep_log()
        self._engine.dispose()
        if self._keeper is not None:
            self._keeper.close()
            _keepers.discard(self._keeper)
            self._keeper = None

    def _before_fork(self) -> None:
        with self._turn:
            self._paused = True
        self._let_go()

    def _after_fork_in_parent(self) -> None:
        with self._turn:
            self._paused = False
            self._turn.notify_all()
        if self._log_stays:
            self.keep_log()


#: Not only where they were opened: a program may end without closing its store.
_keepers: set[Closeable] = set()
_all: WeakSet[Connections] = WeakSet()
_forking = threading.Lock()  # guards _all, and is held over a fork, that none is added meanwhile and not paused

# A connection must not be open in two processes, not even unused: SQLite would believe that the child holds the locks
# that the parent holds, and a child's new connection could lose its log to the parent's closing.


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


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_forking.release)
