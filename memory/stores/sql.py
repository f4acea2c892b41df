"""A store in the tables of a SQL database: a SQLite file or a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, count
from time import monotonic, sleep
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Connection, Text, TextClause, bindparam, text

from ..entries import CompactionPublished, CompactionReverted, Entry, ReductionPublished, RoundOpened, list_kinds
from ..errors import Conflict, ContextError, OlderVersion, StoreDamaged, StoreError
from .base import (
    MAX_SKEW,
    Checkpoint,
    DueSession,
    Extent,
    FoundTexts,
    Order,
    SessionRow,
    Store,
    StoredText,
    escape,
    find_page_start,
    format_stamp,
    make_key,
    parse_minute,
    round_to_minute,
    unescape,
)
from .connections import MAX_APPENDED, PAGE, SELECT_VERSION, Connections, Dialect, EntryRow, choose_page_size
from .limiting import LimitRows
from .partitions import partition_tables
from .retention import delete_files
from .schema import MIGRATIONS, Migration, migrate_tables, read_version, require_known
from .sql_limits import SqlLimitRows
from .tenants import split_name
from .text_index import (
    build_texts,
    erase_texts,
    find_session,
    find_texts,
    get_last_indexed_round,
    merge_texts,
    save_texts,
)

Result = TypeVar("Result")

#: Maximum sessions whose last written minute of activity is known.
MAX_ACTIVE = 10_000
#: Seconds between two pauses in the work on SQLite's index, and of a pause. Another process that waits for the lock
#: asks for it every tenth of a second, and would not get it without them.
PAUSE_SECONDS = 0.1
_MINUTE, _NEVER = timedelta(minutes=1), datetime.min.replace(tzinfo=UTC)
#: A session's mark asks for a look at it so long after its newest append. At least two minutes: all appends of one
#: minute share a mark, and none of them may come after it was cleared.
_UNTIL_DUE = timedelta(minutes=2)

_ADD_SESSION = text(
    """INSERT INTO compactor_sessions (key, name, tenant, last_activity, due_at)
    VALUES (:key, :name, :tenant, :minute, :due_at) ON CONFLICT DO NOTHING"""
)
# Of two hosts' clocks, only the database's says which is wrong: a slow one must not let a session in use expire.
_ADD_ACTIVITY = """UPDATE compactor_sessions SET last_activity = :minute, due_at = :due_at
    WHERE key = :key AND (last_activity < :minute OR last_activity > {in_an_hour})"""
_LIST_DUE = text(
    """SELECT name, due_at FROM compactor_sessions WHERE due_at IS NOT NULL AND due_at <= :minute
    ORDER BY due_at, key LIMIT :limit"""
)
_CLEAR_DUE = text("UPDATE compactor_sessions SET due_at = NULL WHERE key IN :keys AND due_at = :due_at").bindparams(
    bindparam("keys", type_=Text, expanding=True)
)
_ENTRY = "SELECT e.number, e.id, e.kind, e.round, e.version, e.created_at, e.body"
_OF_SESSION = "FROM compactor_entries e WHERE e.session = (SELECT id FROM compactor_sessions WHERE key = :key)"
_END = text(f"SELECT coalesce(max(e.number), 0) {_OF_SESSION}")
_END_AND_ID = text(f"SELECT e.number, e.id {_OF_SESSION} ORDER BY e.number DESC LIMIT 1")
_IDS = text(f"SELECT e.id {_OF_SESSION} AND e.number > :after ORDER BY e.number LIMIT :limit")
_READ = text(f"{_ENTRY} {_OF_SESSION} AND e.number > :after ORDER BY e.number LIMIT :limit")
_READ_NUMBERS = text(f"{_ENTRY} {_OF_SESSION} AND e.number IN :numbers ORDER BY e.number").bindparams(
    bindparam("numbers", type_=BigInteger, expanding=True)
)
_NUMBERS_OF_ROUNDS = text(f"SELECT e.number {_OF_SESSION} AND e.round BETWEEN :first AND :last")
_NUMBERS_OF_KINDS = text(f"SELECT e.number {_OF_SESSION} AND e.kind IN :kinds").bindparams(
    bindparam("kinds", type_=Text, expanding=True)
)
# By the number, which is in the index: SQLite would scan the session for the round.
_ROUND_NUMBER = text(
    f"SELECT e.round {_OF_SESSION} AND e.number = (SELECT e.number {_OF_SESSION} AND e.round_key = :round_key LIMIT 1)"
)
_SESSIONS = text("SELECT name FROM compactor_sessions")
# The page first: only its sessions are looked up in the log.
_LIST = """SELECT p.name, p.tenant, p.last_activity,
    coalesce((SELECT max(e.number) FROM compactor_entries e WHERE e.session = p.id), 0),
    coalesce((SELECT o.round FROM compactor_entries o WHERE o.session = p.id AND o.kind = 'round opened'
        ORDER BY o.number DESC LIMIT 1), 0)
    FROM (SELECT id, key, name, tenant, last_activity FROM compactor_sessions WHERE {where}
        ORDER BY {order} LIMIT :limit) p ORDER BY {order}"""
_ORDERS = {"name": "key", "activity": "last_activity DESC, key"}
_PAGE_CONDITIONS = {
    "name": "key > :key",
    "activity": "last_activity <= :minute AND (last_activity < :minute OR key > :key)",
}
_EXTENTS = """SELECT s.name, e.number, e.created_at,
    coalesce((SELECT o.round FROM compactor_entries o WHERE o.session = s.id AND o.kind = 'round opened'
        ORDER BY o.number DESC LIMIT 1), 0) AS rounds
    FROM compactor_sessions s JOIN compactor_entries e ON e.session = s.id
        AND e.number = (SELECT max(m.number) FROM compactor_entries m WHERE m.session = s.id)"""
_EXTENT = f"{_EXTENTS} WHERE s.key = :key"
_REDACT = text(
    """UPDATE compactor_entries SET body = :body, version = :version, kind = coalesce(:kind, kind)
    WHERE number = :number AND session = (SELECT id FROM compactor_sessions WHERE key = :key)"""
)
_CHECKPOINT = text("SELECT checkpoint_number, checkpoint FROM compactor_sessions WHERE key = :key")
_KEEP_CHECKPOINT = text(
    """UPDATE compactor_sessions SET checkpoint_number = :number, checkpoint = :body
    WHERE key = :key AND checkpoint_number <= :number"""
)
_TAKE_LEASE = """INSERT INTO compactor_leases AS l (session, name, holder, expires)
    VALUES (:session, :name, :holder, {now} + :seconds)
    ON CONFLICT (session, name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
    WHERE l.holder = excluded.holder OR l.expires <= {now} OR :take_over"""
_LEASE_LEFT = "SELECT expires - {now} FROM compactor_leases WHERE session = :session AND name = :name"
_RELEASE = text("DELETE FROM compactor_leases WHERE session = :session AND name = :name AND holder = :holder")
# Locks the lease until the end of the transaction.
_LOCK_LEASE = text(
    "UPDATE compactor_leases SET holder = holder WHERE session = :session AND name = :name AND holder = :holder"
)
# A compactor may have renewed its lease after the session was purged: the next purge takes that along.
_PURGE_LEASES = "DELETE FROM compactor_leases WHERE session = :key OR expires <= {now}"
_PURGE_LIMITS = text("DELETE FROM compactor_limits WHERE session = :key")
_PURGE_ENTRIES = text("DELETE FROM compactor_entries WHERE session = :session")
_PURGE_SESSION = text("DELETE FROM compactor_sessions WHERE id = :session")


#: Kinds of entries that other processes are told of at once.
PUBLICATIONS = list_kinds(CompactionPublished, CompactionReverted, ReductionPublished)


class SqlStore(Store):
    """Sessions in the tables of one database; call ``open`` before use.

    Any number of threads and processes may use it at once. An append is one transaction; its durability depends on the
    database's settings (see ``Sqlite`` and ``Postgres``). Redacted and purged text is overwritten at once in a SQLite
    file and its log; it leaves a PostgreSQL server's disk with the next VACUUM.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._connections = Connections(dialect)
        #: By session: its activity is stored at least up to this minute. Only the first append of a minute writes it.
        self._active: dict[str, datetime] = {}
        self._add_activity = text(_ADD_ACTIVITY.format(in_an_hour=dialect.in_an_hour))
        leasing = (_TAKE_LEASE, _LEASE_LEFT, _PURGE_LEASES)
        self._take_lease, self._lease_left, self._purge_leases = (text(one.format(now=dialect.now)) for one in leasing)

    def __repr__(self) -> str:
        return f"<SqlStore on {self._dialect.where}>"

    def open(self, migrations: Sequence[Migration] = MIGRATIONS, *, migrate: bool = True) -> None:
        """Create missing tables and migrate old ones; without *migrate*, raise if that is needed."""
        connections, dialect, newest = self._connections, self._dialect, len(migrations)

        def read_again(connection: Connection) -> None:
            require_known(connection.exec_driver_sql(SELECT_VERSION).scalars().all(), dialect.where, newest)

        try:
            if dialect.in_file:
                versions = connections.read_versions()
                version = 0 if versions is None else require_known(versions, dialect.where, newest)
            else:
                version = connections.read(lambda connection: read_version(connection, dialect.where, newest))
            if version == newest:
                if dialect.in_file:
                    connections.read(read_again)  # read_versions() took no lock; this raises if connecting fails
            elif not migrate and not version:
                raise StoreError(f"nothing was ever stored in {dialect.where}; check the URL, or write to it first")
            elif not migrate:
                raise OlderVersion(
                    f"{dialect.where} was made by an older version of context-compactor (its tables are of version"
                    f" {version}, and now they are of {newest}); nothing was changed: open it once to write, as"
                    f" open_store(url) and `compactor chat` do, and it is migrated; older versions refuse it then"
                )
            else:
                dialect.create()
                connections.write(dialect.prepare)
                connections.change(lambda connection: migrate_tables(connection, dialect, migrations), long=True)
        except BaseException:
            connections.keep_log()
            raise
        if not dialect.notifies:
            self.capabilities = self.capabilities - {"notifying"}

    def partition(self) -> Iterator[float]:
        """Partition the tables of an older store on a server, while others use it; yield how much is done, from 0 to 1.

        Continues where an interrupted call stopped. Yields nothing if the tables have partitions, or if the store is a
        file.
        """
        return iter(()) if self._dialect.in_file else partition_tables(self._connections)

    def close(self) -> None:
        if self._dialect.is_listening:
            self._dialect.close()
            with suppress(StoreError):  # wakes the thread that listens
                self._connections.write(lambda connection: self._dialect.notify(connection, ""))
        self._connections.close()

    def listen(self, session: str, listener: Callable[[], object]) -> Callable[[], None]:
        return self._dialect.listen(make_key(session), listener)

    def is_in(self, database: object) -> bool:
        return self._dialect == database

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        return self.append_with(session, entries, after, ())

    def append_with(
        self, session: str, entries: Sequence[Entry], after: int, work: Sequence[Callable[[Any], object]]
    ) -> int:
        key = make_key(session)
        at = entries[-1].created_at if entries else _NEVER
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        active = -MAX_SKEW < at - self._active.get(key, _NEVER) < _MINUTE

        def add(connection: Connection) -> None:
            activity = {}
            if not active or after == 0:  # one append a minute
                activity = {"key": key, "minute": round_to_minute(at), "due_at": round_to_minute(at + _UNTIL_DUE)}
            if after == 0:
                new = {"name": escape(session), "tenant": split_name(session)[0]}
                connection.execute(_ADD_SESSION, activity | new)
            rows = map(_make_row, count(after + 1), entries)  # as they are inserted: there may be very many
            if not self._dialect.append(connection, key, after, escape(entries[0].follows), rows):
                raise Conflict("the log does not end there")
            if after and not active:
                connection.execute(self._add_activity, activity)
            if not PUBLICATIONS.isdisjoint([entry.kind for entry in entries[:MAX_APPENDED]]):  # an import is alone
                self._dialect.notify(connection, key)
            for do in work:
                do(connection.connection.driver_connection)

        def read_ids_and_end(connection: Connection) -> tuple[Sequence[str], int]:
            where = {"key": key, "after": after, "limit": len(entries)}
            return connection.execute(_IDS, where).scalars().all(), int(connection.execute(_END, where).scalar_one())

        if entries:
            try:
                # A repetition after a broken connection conflicts if the first attempt was stored; see below.
                alone = after > 0 and len(entries) <= MAX_APPENDED and active and not work
                (self._connections.write if alone else self._connections.change)(add)
                if not active:
                    if len(self._active) >= MAX_ACTIVE:
                        self._active.clear()
                    self._active[key] = at.replace(second=0, microsecond=0)
                return after + len(entries)
            except Conflict:
                self._active.pop(key, None)  # where the log has lost entries, so may the activity
        ids, end = self._read(read_ids_and_end)
        if end >= after and ids == [escape(entry.id) for entry in entries]:
            return after + len(entries)
        if end == after:
            raise Conflict(f"entry {after} of the log is another one than is known; open the session anew")
        raise Conflict(f"the log ends at {end}, not at {after}; read what is new and append after it")

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        key, after = make_key(session), max(after, 0)

        def read_pages() -> Iterator[Sequence[Entry]]:
            last, left, size = after, limit, PAGE
            while left is None or left > 0:
                wanted = size if left is None else min(size, left)
                page = self._read_entries(_READ, {"key": key, "after": last, "limit": wanted})
                for number, entry in enumerate(page, last + 1):
                    if entry.number != number:
                        raise self._make_damage_error(f"entry {number} of the log is missing")
                yield page
                if len(page) < wanted:
                    return
                last, left = last + wanted, None if left is None else left - wanted
                size = choose_page_size([entry.body for entry in page])

        return _chain_pages(read_pages())

    def sessions(self) -> Sequence[str]:
        return self._read(lambda connection: sorted(map(unescape, connection.execute(_SESSIONS).scalars())))

    def list_sessions(
        self, tenant: str | None = None, *, after: str | None = None, limit: int = 100, order: Order = "name"
    ) -> Sequence[SessionRow]:
        minute, key = find_page_start(after, limit, order)
        where = ["tenant = :tenant"] * (tenant is not None) + [_PAGE_CONDITIONS[order]] * (key is not None)
        statement = text(_LIST.format(where=" AND ".join(where) or "TRUE", order=_ORDERS[order]))
        values = {"tenant": tenant, "minute": minute, "key": key, "limit": limit}
        given = {name: values[name] for name in statement.compile().params}

        def read(connection: Connection) -> list[SessionRow]:
            return [
                SessionRow(unescape(name), owner, parse_minute(used), int(entries), int(rounds))
                for name, owner, used, entries, rounds in connection.execute(statement, given)
            ]

        return self._read(read)

    def list_due(self, now: datetime, limit: int = 1_000) -> Sequence[DueSession]:
        where = {"minute": round_to_minute(now), "limit": limit}

        def read(connection: Connection) -> list[DueSession]:
            return [DueSession(unescape(name), parse_minute(at)) for name, at in connection.execute(_LIST_DUE, where)]

        return self._read(read)

    def clear_due(self, marked: Sequence[DueSession]) -> int:
        by_minute: dict[str, list[str]] = {}
        for name, due_at in marked:
            by_minute.setdefault(round_to_minute(due_at), []).append(make_key(name))
        wheres = [
            {"due_at": minute, "keys": keys[start : start + PAGE]}
            for minute, keys in by_minute.items()
            for start in range(0, len(keys), PAGE)
        ]

        def clear(connection: Connection) -> int:
            return sum(connection.execute(_CLEAR_DUE, where).rowcount for where in wheres)

        return self._connections.change(clear) if wheres else 0

    def get_extent(self, session: str) -> Extent | None:
        return self._read_extents(_EXTENT, {"key": make_key(session)}).get(session)

    def list_extents(self) -> Mapping[str, Extent]:
        return self._read_extents(_EXTENTS, {})

    def _read_extents(self, statement: str, where: dict[str, Any]) -> dict[str, Extent]:
        def read(connection: Connection) -> dict[str, Extent]:
            rows = connection.execute(text(statement), where)
            return {
                unescape(name): Extent(int(n), datetime.fromisoformat(at), int(rounds)) for name, n, at, rounds in rows
            }

        return self._read(read)

    def redact(self, session: str, number: int, body: str = "") -> None:
        self.redact_all(session, {number: body})

    def redact_all(self, session: str, bodies: Mapping[int, str]) -> None:
        key = make_key(session)

        def erase(connection: Connection) -> None:
            for number, body in bodies.items():
                values = {"body": body or "{}", "kind": None if body else "redacted", "version": 1}
                where = {"key": key, "number": number}
                if not connection.execute(_REDACT, values | where).rowcount:
                    end = connection.execute(_END, where).scalar_one()
                    raise KeyError(f"this session has no entry {number}; it has {end}")

        if bodies:
            self._connections.change(erase, long=True)
            self._connections.write(self._dialect.finish_erasing)

    def purge(self, session: str) -> None:
        delete_files(self, session)  # first: the log names the files
        key = make_key(session)

        def erase(connection: Connection) -> bool:
            connection.execute(self._purge_leases, {"key": key})
            connection.execute(_PURGE_LIMITS, {"key": key})
            number = find_session(connection, key, lock=True)
            return number is not None and _erase_session(connection, number)

        if self._connections.change(erase, long=True):
            self._merge_texts()
        self._connections.write(self._dialect.finish_erasing)

    def evict(self, session: str, number: int, id: str, *, lease_name: str = "", holder: str = "") -> bool:  # noqa: A002
        key, tried = make_key(session), False
        lease = {"session": key, "name": make_key(lease_name), "holder": make_key(holder)}

        def erase(connection: Connection) -> tuple[bool, bool]:
            nonlocal tried
            found = find_session(connection, key, lock=True)  # until the end, nobody appends
            if found is None:
                return tried, tried  # repeated because the connection broke: the first attempt was committed
            if lease_name and not (holder and connection.execute(_LOCK_LEASE, lease).rowcount):
                return False, False
            end = connection.execute(_END_AND_ID, {"key": key}).first()
            if end is None or (int(end.number), end.id) != (number, escape(id)):
                return False, False
            connection.execute(self._purge_leases, {"key": key})
            had_texts, tried = _erase_session(connection, found), True
            return True, had_texts

        evicted, had_texts = self._require_sound(lambda: self._connections.change(erase, long=True))
        if had_texts:
            self._merge_texts()
        if evicted:
            self._connections.write(self._dialect.finish_erasing)
        return evicted

    def read_rounds(self, session: str, first: int, last: int) -> Iterator[Entry]:
        return self._read_selected(make_key(session), _NUMBERS_OF_ROUNDS, {"first": first, "last": last})

    def read_kinds(self, session: str, kinds: Collection[str]) -> Iterator[Entry]:
        return self._read_selected(make_key(session), _NUMBERS_OF_KINDS, {"kinds": [*map(escape, kinds)]})

    def _read_selected(self, key: str, select_numbers: TextClause, where: dict[str, Any]) -> Iterator[Entry]:
        """Yield the entries that an index selects. Reads all numbers first: each page would scan the index again."""

        where |= {"key": key}
        numbers = self._read(lambda connection: sorted(map(int, connection.execute(select_numbers, where).scalars())))

        def read_pages() -> Iterator[Sequence[Entry]]:
            start, size = 0, 100
            while start < len(numbers):
                page = self._read_entries(_READ_NUMBERS, {"key": key, "numbers": numbers[start : start + size]})
                yield page
                start, size = start + size, choose_page_size([entry.body for entry in page])

        return _chain_pages(read_pages())

    def find_round_number(self, session: str, round_id: str) -> int:
        where = {"key": make_key(session), "round_key": make_key(round_id)}
        return self._read(lambda connection: int(connection.execute(_ROUND_NUMBER, where).scalar() or 0))

    def get_checkpoint(self, session: str) -> Checkpoint | None:
        where = {"key": make_key(session)}
        row = self._read(lambda connection: connection.execute(_CHECKPOINT, where).first())
        if row is None or not isinstance(row.checkpoint, str) or not isinstance(row.checkpoint_number, int):
            return None
        return Checkpoint(row.checkpoint_number, row.checkpoint)

    def save_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        values = {"key": make_key(session), "number": checkpoint.number, "body": checkpoint.body}
        self._connections.write(lambda connection: connection.execute(_KEEP_CHECKPOINT, values))

    def _read_entries(self, statement: TextClause, where: dict[str, Any]) -> Sequence[Entry]:
        def read(connection: Connection) -> list[Entry]:
            entries = []
            for row in connection.execute(statement, where):
                number, id_, kind, round_, version, created_at, body = row
                # SQLite accepts any type in any column, and a damaged file may return any.
                if not (type(number) is type(round_) is type(version) is int and type(body) is str):
                    raise TypeError("a column of another type")
                # Skips two calls in the usual case: this loop runs once for every event of a session.
                if "\\" in (names := kind + id_) or not names.isascii():
                    kind, id_ = unescape(kind), unescape(id_)
                at = datetime.fromisoformat(created_at)
                entries.append(
                    Entry(kind, body=body, id=id_, created_at=at, number=number, round=round_, version=version)
                )
            return entries

        return self._read(read)

    def _read(self, work: Callable[[Connection], Result]) -> Result:
        return self._require_sound(lambda: self._connections.read(work))

    def _require_sound(self, call: Callable[[], Result]) -> Result:
        """Return the result of *call*. Raises ``StoreDamaged`` for values that no store has written."""
        try:
            return call()
        except (ValueError, TypeError, AttributeError):  # their text may quote the conversation
            raise self._make_damage_error("what is stored there cannot be read") from None

    def _make_damage_error(self, message: str) -> StoreDamaged:
        self._connections.keep_log()
        return StoreDamaged(f"{message} ({self._dialect.where}); nothing was changed: restore a backup")

    def lease(self, session: str, name: str, holder: str, seconds: float, *, take_over: bool = False) -> float:
        where = {"session": make_key(session), "name": make_key(name), "holder": make_key(holder)}

        def take(connection: Connection) -> float:
            if connection.execute(self._take_lease, where | {"seconds": seconds, "take_over": take_over}).rowcount:
                return 0.0
            # Positive even if the lease has just expired: this caller did not get it.
            return max(0.001, float(connection.execute(self._lease_left, where).scalar_one()))

        return self._require_sound(lambda: self._connections.change(take))

    def release(self, session: str, name: str, holder: str) -> None:
        where = {"session": make_key(session), "name": make_key(name), "holder": make_key(holder)}
        self._connections.write(lambda connection: connection.execute(_RELEASE, where))

    def change_limits(self, work: Callable[[LimitRows], Result]) -> Result:
        return self._connections.change(lambda connection: work(SqlLimitRows(connection, self._dialect)))

    def get_last_indexed_round(self, session: str) -> int:
        return self._read(lambda connection: get_last_indexed_round(connection, make_key(session)))

    def save_texts(self, session: str, first: int, last: int, texts: Sequence[StoredText]) -> None:
        def keep(connection: Connection) -> bool:
            return save_texts(connection, make_key(session), first, last, texts)

        if self._require_sound(lambda: self._connections.change(keep, long=True)):
            self._merge_texts()
            self._connections.write(self._dialect.finish_erasing)

    def find_texts(self, session: str, words: Sequence[str], role: str) -> FoundTexts:
        return self._read(lambda connection: find_texts(connection, make_key(session), words, role))

    def _merge_texts(self) -> None:
        """Remove deleted texts from SQLite's index, step by step so that no writer waits long."""
        if not self._dialect.in_file:
            return
        since = monotonic()
        for _ in self._run_steps():
            if monotonic() - since > PAUSE_SECONDS:
                sleep(PAUSE_SECONDS)
                since = monotonic()

    def _run_steps(self) -> Iterator[None]:
        while self._connections.change(build_texts):
            yield
        begin = True
        while self._connections.write(partial(merge_texts, begin=begin)):
            begin = False
            yield


def _erase_session(connection: Connection, number: int) -> bool:
    """Erase the session of that *number* in the database; part of a transaction. Return whether texts were deleted."""
    erased = erase_texts(connection, number)
    connection.execute(_PURGE_ENTRIES, {"session": number})
    connection.execute(_PURGE_SESSION, {"session": number})
    return erased


def _make_row(number: int, entry: Entry) -> EntryRow:
    round_key = None
    if entry.kind == "round opened":
        try:
            record = entry.record
            round_key = make_key(record.round_id) if isinstance(record, RoundOpened) else None
        except ContextError:
            pass  # stored as it is for a newer version; this version could not show the round either
    id_, kind, at = escape(entry.id), escape(entry.kind), format_stamp(entry.created_at)
    return number, id_, kind, entry.round, round_key, entry.version, at, entry.body


def _chain_pages(pages: Iterator[Sequence[Entry]]) -> Iterator[Entry]:
    """Return the entries of *pages*. Reads the first page at once, so that the call itself raises its errors."""
    return chain(next(pages, ()), chain.from_iterable(pages))
