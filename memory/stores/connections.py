"""Connections to one database: faults as a ``StoreError``, a lost connection made anew, none left open in a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoneFree

from ..errors import StoreBusy, StoreClosed, StoreDamaged, StoreError, StoreUnreachable
from ..hooks import renewed_after_fork
from .dialects import Closeable, Dialect

Result = TypeVar("Result")

#: How often the same is done where a connection breaks or is too old: the pool may hold several that a restart of the
#: server broke, or that were made when a file could only be read.
TRIES = 3
#: And where it gave way to another's transaction, which is done by then.
TRIES_IN_TURN = 10


class _User:
    """Somebody who is at work with a connection."""


class _WriterQueue:
    """Whose turn it is. ``with turns.wait(seconds)`` has it, or raises ``Empty``.

    Of C alone: where Python takes a lock, an interrupt may come when it has it and knows nothing of it, and nobody ever
    gets it again. For the same reason nothing here is entered that is a generator, or a condition.
    """

    def __init__(self) -> None:
        self._free: SimpleQueue[object] = SimpleQueue()
        self._free.put(None)

    def wait(self, seconds: float) -> AbstractContextManager[object]:
        enter, leave = partial(self._free.get, True, seconds), self._free.put  # which ignores what it is left with
        made: AbstractContextManager[object] = type(
            "Turn", (), {"__enter__": staticmethod(enter), "__exit__": staticmethod(leave)}
        )()
        return made

    def is_taken(self) -> bool:
        return self._free.empty()


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
        self._in_turn = False  # whether all write one after the other: from when one gave way to another on
        self._lock = threading.RLock()  # guards _users, _paused, _closed; entered itself, see _Turns
        self._turn = threading.Condition(self._lock)
        self._users: WeakSet[_User] = WeakSet()  # who is interrupted at the wrong moment is none any more, all the same
        self._paused = False
        self._engine: Engine = self.dialect.engine()
        self._keeper: Closeable | None = None  # keeps the last connection from moving the log into the database
        self._writing = _WriterQueue()  # had while writing where there is one writer: it waits without polling
        self._writer: Connection | None = None  # for whoever writes next; that and _left are had with the turn
        self._left = True  # whether whoever wrote last left it with no transaction
        self._written_by = 0  # the thread that has the turn; one that had it, where that was interrupted

    def look(self) -> Sequence[object] | None:
        """Return the versions that the database says its tables are of, and change nothing of it; None where there is
        nothing to see."""
        try:
            return self.dialect.look()
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
        with self._lock:
            self._closed = True
        self._let_go()

    def _done(self, work: Callable[[Connection], Result], *, writes: bool, begin: bool) -> Result:
        sent, tries, user = False, 0, _User()
        while True:
            tries += 1
            try:
                self._use(user)
                if not writes or not (self.dialect.one_writer or self._in_turn):
                    self.dialect.require_same()
                    with self._engine.connect() as connection:
                        sent = True
                        return self._worked(connection, work, begin=begin)
                if self._written_by == threading.get_ident() and self._writing.is_taken():
                    raise StoreBusy(
                        f"this thread is in the middle of writing to {self.dialect.where}, as where a signal's handler"
                        f" writes; nothing was written: set a flag in the handler, and write when it has returned"
                    )
                with self._writing.wait(self.dialect.patience):
                    sent = True
                    return self._write(work, begin=begin)
            except Empty:
                raise StoreBusy(
                    f"other threads wrote to {self.dialect.where} for more than {self.dialect.patience:g} s;"
                    f" nothing was written: try again"
                ) from None
            except (SQLAlchemyError, UnicodeDecodeError) as error:
                if isinstance(error, DBAPIError) and tries < self._tries(error):
                    self._in_turn = self._in_turn or self.dialect.gave_way(error)
                    continue
                raise self._fault(error, unsure=sent and writes) from error
            finally:
                self._leave(user)

    def _tries(self, error: DBAPIError) -> int:
        if self.dialect.another_may(error):
            return TRIES
        return TRIES_IN_TURN if self.dialect.gave_way(error) else 1

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

    def _write(self, work: Callable[[Connection], Result], *, begin: bool) -> Result:
        """Return what *work* returns of the one connection that writes; for whoever has the turn."""
        self._written_by = threading.get_ident()
        try:  # here, not where the turn is had: Python looks after nothing at the line of a "try" within a "with"
            self.dialect.require_same()
            return self._written(work, begin=begin)
        finally:
            self._written_by = 0

    def _written(self, work: Callable[[Connection], Result], *, begin: bool) -> Result:
        if not self._left:  # somebody was interrupted, and once more while he cleared up
            self._drop_writer(broken=True)
        # Kept for the next write: the pool's way there and back takes half as long as the writing itself.
        if self._writer is None:
            self._writer = self._engine.connect()
        self._left = False
        try:
            result = self._worked(self._writer, work, begin=begin)
            if self._writer.in_transaction():
                self._writer.commit()
            self._wrote = self._left = True
        except BaseException as error:
            self._drop_writer(broken=not isinstance(error, Exception))
            raise
        if self._paused or self._closed:
            self._drop_writer()
        return result

    def _drop_writer(self, *, broken: bool = False) -> None:
        if self._writer is not None:
            if broken:
                # Two steps: what was interrupted within SQLAlchemy may be in no state to be closed.
                with suppress(Exception):
                    self._writer.invalidate()
            with suppress(Exception if broken else SQLAlchemyError):
                self._writer.close()
            self._writer = None
        self._left = True

    # -- closing and forking -------------------------------------------------------------------------------------------

    def _use(self, user: _User) -> None:
        with self._lock:
            if self._paused:
                self._turn.wait_for(lambda: not self._paused)
            if self._closed:
                raise StoreClosed(f"the store on {self.dialect.where} was closed; open another on the same URL")
            self._users.add(user)

    def _leave(self, user: _User) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self._turn.notify_all()

    def _let_go(self) -> None:
        # What is in use for longer is closed with its last use. In a child it stays open for ever, as it must:
        # for SQLite, to close it there would be to let go of the parent's locks.
        with self._lock:
            self._turn.wait_for(lambda: not self._users, timeout=self.dialect.patience)
        with suppress(Empty), self._writing.wait(0):
            self._drop_writer()
        if not self._wrote:
            self.keep_log()
        self._engine.dispose()
        if self._keeper is not None:
            self._keeper.close()
            _keepers.discard(self._keeper)
            self._keeper = None

    def _before_fork(self) -> None:
        with self._lock:
            self._paused = True
        self._let_go()

    def _after_fork_in_parent(self) -> None:
        with self._lock:
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
