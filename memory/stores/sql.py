"""A store in a SQL database: SQLite's file, or a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Connection, Select, Text, TextClause, bindparam, column, select, table, text

from ..entries import BODY_VERSION, Entry, RoundOpened
from ..errors import Conflict, ContextError, OlderVersion, StoreDamaged, StoreError
from .base import Checkpoint, Extent, FoundTexts, Store, StoredText, escaped, key_of, unescaped
from .connections import Connections
from .dialects import VERSIONS, Dialect
from .retention import delete_files
from .schema import MIGRATIONS, Migration, bring_up_to_date, known_version, version_of
from .text_index import erase_texts, find_texts, keep_texts, merge_texts, texts_reach

Result = TypeVar("Result")

#: A page that is read at once has at most as many entries, and about as many characters.
PAGE, PAGE_CHARACTERS = 1_000, 2_000_000

_ADD_SESSION = text("INSERT INTO compactor_sessions (key, name) VALUES (:key, :name) ON CONFLICT DO NOTHING")
# One statement, so that an append of one entry is one round trip: nothing is inserted where the log does not end just
# before it and with the entry that is known, and of two who insert at once the primary key refuses one.
_APPEND = """INSERT INTO compactor_entries (session, number, id, kind, round, round_key, version, created_at, body)
    SELECT s.id, :number, :id, :kind, :round, :round_key, :version, :created_at, :body FROM compactor_sessions s
    WHERE s.key = :key
    AND (SELECT coalesce(max(e.number), 0) FROM compactor_entries e WHERE e.session = s.id) = :before
    AND (:follows = '' OR :follows = (
        SELECT e.id FROM compactor_entries e WHERE e.session = s.id AND e.number = :before
    ))"""
# The rest of what is appended: its place is settled with the first.
_COLUMNS = ("session", "number", "id", "kind", "round", "round_key", "version", "created_at", "body")
_ENTRY = "SELECT e.number, e.id, e.kind, e.round, e.version, e.created_at, e.body"
_OF_SESSION = "FROM compactor_entries e WHERE e.session = (SELECT id FROM compactor_sessions WHERE key = :key)"
_END = text(f"SELECT coalesce(max(e.number), 0) {_OF_SESSION}")
_IDS = text(f"SELECT e.id {_OF_SESSION} AND e.number > :after ORDER BY e.number LIMIT :limit")
_READ = text(f"{_ENTRY} {_OF_SESSION} AND e.number > :after ORDER BY e.number LIMIT :limit")
_READ_NUMBERS = text(f"{_ENTRY} {_OF_SESSION} AND e.number IN :numbers ORDER BY e.number").bindparams(
    bindparam("numbers", type_=BigInteger, expanding=True)
)
_NUMBERS_OF_ROUNDS = text(f"SELECT e.number {_OF_SESSION} AND e.round BETWEEN :first AND :last")
_NUMBERS_OF_KINDS = text(f"SELECT e.number {_OF_SESSION} AND e.kind IN :kinds").bindparams(
    bindparam("kinds", type_=Text, expanding=True)
)
# The number first, which is in the index: SQLite would go through the session for the round.
_ROUND_NUMBER = text(
    f"SELECT e.round {_OF_SESSION} AND e.number = (SELECT e.number {_OF_SESSION} AND e.round_key = :round_key LIMIT 1)"
)
_SESSIONS = text("SELECT name FROM compactor_sessions")
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
_RELEASE = text("DELETE FROM compactor_leases WHERE session = :session AND name = :name AND holder = :holder")
_PURGE_LEASES = text("DELETE FROM compactor_leases WHERE session = :key")
_PURGE_ENTRIES = text("DELETE FROM compactor_entries WHERE session = :session")
_PURGE_SESSION = text("DELETE FROM compactor_sessions WHERE id = :session")

_sessions = table("compactor_sessions", column("id"), column("key"))


class SqlStore(Store):
    """Sessions in the tables of one database; it must be opened before it is used.

    Any number of threads and processes may use it at once. An append is one transaction and durable before it returns,
    as far as the database is set to be (see ``Sqlite`` and ``Postgres``). What is redacted or purged is overwritten in
    a SQLite file and its log at once, and leaves a PostgreSQL server's disk with the next VACUUM.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._connections = Connections(dialect)
        self._append = dialect.driver_sql(_APPEND)
        now = dialect.now
        self._seize_lease = text(
            f"""INSERT INTO compactor_leases (session, name, holder, expires)
            VALUES (:session, :name, :holder, {now} + :seconds)
            ON CONFLICT (session, name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires"""  # noqa: S608
        )
        self._take_lease = text(
            f"""INSERT INTO compactor_leases AS l (session, name, holder, expires)
            VALUES (:session, :name, :holder, {now} + :seconds)
            ON CONFLICT (session, name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
            WHERE l.holder = excluded.holder OR l.expires <= {now}"""  # noqa: S608  (the dialect's own words)
        )
        self._lease_left = text(
            f"SELECT expires - {now} FROM compactor_leases WHERE session = :session AND name = :name"  # noqa: S608
        )

    def __repr__(self) -> str:
        return f"<SqlStore on {self._dialect.where}>"

    def open(self, migrations: Sequence[Migration] = MIGRATIONS, *, migrate: bool = True) -> None:
        """Make the tables, or bring those of an older version up to date, where that is needed; without *migrate*,
        raise then."""
        connections, dialect, newest = self._connections, self._dialect, len(migrations)

        def seen(versions: Sequence[object] | None) -> int:
            return 0 if versions is None else known_version(versions, dialect.where, newest)

        def version(connection: Connection) -> int:
            dialect.require_fit(connection)
            return version_of(connection, dialect, newest)

        def up_to_date(connection: Connection) -> None:
            dialect.lock_schema(connection)
            bring_up_to_date(connection, dialect, migrations)

        try:
            found = seen(connections.look()) if dialect.in_file else connections.read(version)
            if found == newest:
                if dialect.in_file:  # what lets nobody connect is said now
                    seen(connections.read(lambda connection: connection.exec_driver_sql(VERSIONS).scalars().all()))
            elif not migrate:
                raise _outdated(dialect.where, found, newest)
            else:
                dialect.create()
                connections.write(dialect.prepare)
                connections.change(up_to_date, patient=True)
        except BaseException:
            connections.keep_log()
            raise
        dialect.note_opened()

    def close(self) -> None:
        self._connections.close()

    # -- the log -------------------------------------------------------------------------------------------------------

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        key = key_of(session)

        def insert(connection: Connection) -> None:
            if after == 0:
                connection.execute(_ADD_SESSION, {"key": key, "name": escaped(session)})
            if not self._dialect.insert(connection, self._append, _row(key, after + 1, entries[0])):
                raise Conflict("the log does not end there")
            if len(entries) > 1:
                self._append_rest(connection, connection.scalar(_session_id(key)), entries, after)

        if entries:
            try:
                # Done again where the connection broke, it finds the log grown if it had been stored.
                (self._connections.change if after == 0 or len(entries) > 1 else self._connections.write)(insert)
                return after + len(entries)
            except Conflict:
                pass
        return self._stored_before(key, entries, after)

    def _append_rest(self, connection: Connection, session: int | None, entries: Sequence[Entry], after: int) -> None:
        """Insert all *entries* but the first, of which a few at a time are made rows: there may be very many."""
        start, size = 1, 100
        while start < len(entries):
            page = entries[start : start + size]
            rows = [
                _row("", number, entry) | {"session": session} for number, entry in enumerate(page, after + start + 1)
            ]
            self._dialect.insert_all(
                connection, "compactor_entries", _COLUMNS, [[row[name] for name in _COLUMNS] for row in rows]
            )
            start, size = start + len(page), _size_after(page)

    def _stored_before(self, key: str, entries: Sequence[Entry], after: int) -> int:
        """Return the number of the last of *entries* where they are stored behind *after*, else raise ``Conflict``."""

        def ids_and_end(connection: Connection) -> tuple[Sequence[str], int]:
            where = {"key": key, "after": after, "limit": len(entries)}
            return connection.execute(_IDS, where).scalars().all(), int(connection.execute(_END, where).scalar_one())

        ids, end = self._read(ids_and_end)
        if end >= after and ids == [escaped(entry.id) for entry in entries]:
            return after + len(entries)
        if end == after:
            raise Conflict(f"entry {after} of the log is another one than is known; open the session anew")
        raise Conflict(f"the log ends at {end}, not at {after}; read what is new and append after it")

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        key, after = key_of(session), max(after, 0)

        def pages() -> Iterator[Sequence[Entry]]:
            last, left, size = after, limit, PAGE
            while left is None or left > 0:
                wanted = size if left is None else min(size, left)
                page = self._entries(_READ, {"key": key, "after": last, "limit": wanted})
                for number, entry in enumerate(page, last + 1):
                    if entry.number != number:
                        raise self._damaged(f"entry {number} of the log is missing")
                yield page
                if len(page) < wanted:
                    return
                last, left, size = last + wanted, None if left is None else left - wanted, _size_after(page)

        return _flattened(pages())

    def sessions(self) -> Sequence[str]:
        return self._read(lambda connection: sorted(map(unescaped, connection.execute(_SESSIONS).scalars())))

    def extent(self, session: str) -> Extent | None:
        return self._extents(_EXTENT, {"key": key_of(session)}).get(session)

    def extents(self) -> Mapping[str, Extent]:
        return self._extents(_EXTENTS, {})

    def _extents(self, statement: str, where: dict[str, Any]) -> dict[str, Extent]:
        def extents(connection: Connection) -> dict[str, Extent]:
            rows = connection.execute(text(statement), where)
            return {
                unescaped(row.name): Extent(int(row.number), datetime.fromisoformat(row.created_at), int(row.rounds))
                for row in rows
            }

        return self._read(extents)

    def redact(self, session: str, number: int, body: str = "") -> None:
        self.redact_all(session, {number: body})

    def redact_all(self, session: str, bodies: Mapping[int, str]) -> None:
        key = key_of(session)

        def erase(connection: Connection) -> None:
            for number, body in bodies.items():
                values = {"body": body or "{}", "kind": None if body else "redacted", "version": BODY_VERSION}
                where = {"key": key, "number": number}
                if not connection.execute(_REDACT, values | where).rowcount:
                    end = connection.execute(_END, where).scalar_one()
                    raise KeyError(f"this session has no entry {number}; it has {end}")

        if bodies:
            self._connections.change(erase, patient=True)
            self._connections.write(self._dialect.after_erasing)

    def purge(self, session: str) -> None:
        delete_files(self, session)  # first: which files there are is in the log
        key = key_of(session)

        def erase(connection: Connection) -> bool:
            connection.execute(_PURGE_LEASES, {"key": key})
            number = connection.scalar(_session_id(key).with_for_update())
            if number is None:
                return False
            erased = erase_texts(connection, number)
            connection.execute(_PURGE_ENTRIES, {"session": number})
            connection.execute(_PURGE_SESSION, {"session": number})
            return erased

        if self._connections.change(erase, patient=True):
            self._merge_texts()
        self._connections.write(self._dialect.after_erasing)

    # -- parts of it ---------------------------------------------------------------------------------------------------

    def read_rounds(self, session: str, first: int, last: int) -> Iterator[Entry]:
        return self._read_numbers(key_of(session), _NUMBERS_OF_ROUNDS, {"first": first, "last": last})

    def read_kinds(self, session: str, kinds: Collection[str]) -> Iterator[Entry]:
        return self._read_numbers(key_of(session), _NUMBERS_OF_KINDS, {"kinds": [*map(escaped, kinds)]})

    def _read_numbers(self, key: str, found_by: TextClause, where: dict[str, Any]) -> Iterator[Entry]:
        """Give the entries whose numbers an index finds: to find them by page would go through it for every page."""
        numbers = self._read(
            lambda connection: sorted(map(int, connection.execute(found_by, where | {"key": key}).scalars()))
        )

        def pages() -> Iterator[Sequence[Entry]]:
            start, size = 0, 100
            while start < len(numbers):
                page = self._entries(_READ_NUMBERS, {"key": key, "numbers": numbers[start : start + size]})
                yield page
                start, size = start + size, _size_after(page)

        return _flattened(pages())

    def round_number(self, session: str, round_id: str) -> int:
        where = {"key": key_of(session), "round_key": key_of(round_id)}
        return self._read(lambda connection: int(connection.execute(_ROUND_NUMBER, where).scalar() or 0))

    def checkpoint(self, session: str) -> Checkpoint | None:
        where = {"key": key_of(session)}
        found = self._read(lambda connection: connection.execute(_CHECKPOINT, where).first())
        kept = found is not None and isinstance(found.checkpoint, str) and isinstance(found.checkpoint_number, int)
        return Checkpoint(found.checkpoint_number, found.checkpoint) if found and kept else None

    def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        values = {"key": key_of(session), "number": checkpoint.number, "body": checkpoint.body}
        self._connections.write(lambda connection: connection.execute(_KEEP_CHECKPOINT, values))

    def _entries(self, statement: TextClause, where: dict[str, Any]) -> Sequence[Entry]:
        def read(connection: Connection) -> list[Entry]:
            entries = []
            for row in connection.execute(statement, where):
                number, id_, kind, round_, version, created_at, body = row
                # SQLite accepts any type in any column, and a damaged file may return any.
                if not (type(number) is type(round_) is type(version) is int and type(body) is str):
                    raise TypeError("a column of another type")
                # The usual case is spelled out: a log has as many rows as a session has events.
                if "\\" in (names := kind + id_) or not names.isascii():
                    kind, id_ = unescaped(kind), unescaped(id_)
                at = datetime.fromisoformat(created_at)
                entries.append(
                    Entry(kind, body=body, id=id_, created_at=at, number=number, round=round_, version=version)
                )
            return entries

        return self._read(read)

    def _read(self, work: Callable[[Connection], Result]) -> Result:
        with self._sound():
            return self._connections.read(work)

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Raise ``StoreDamaged`` for what no store has written."""
        try:
            yield
        except (ValueError, TypeError, AttributeError):  # whose text may quote what is stored
            raise self._damaged("what is stored there cannot be read") from None

    def _damaged(self, what: str) -> StoreDamaged:
        self._connections.keep_log()
        return StoreDamaged(f"{what} ({self._dialect.where}); nothing was changed: restore a backup")

    # -- leases --------------------------------------------------------------------------------------------------------

    def lease(self, session: str, name: str, holder: str, seconds: float, *, take_over: bool = False) -> float:
        where = {"session": key_of(session), "name": key_of(name), "holder": key_of(holder), "seconds": seconds}

        def take(connection: Connection) -> float:
            if connection.execute(self._seize_lease if take_over else self._take_lease, where).rowcount:
                return 0.0
            # More than nothing, also where it has run out since: who holds it was not asked again.
            return max(0.001, float(connection.execute(self._lease_left, where).scalar_one()))

        with self._sound():
            return self._connections.change(take)

    def release(self, session: str, name: str, holder: str) -> None:
        where = {"session": key_of(session), "name": key_of(name), "holder": key_of(holder)}
        self._connections.write(lambda connection: connection.execute(_RELEASE, where))

    # -- texts ---------------------------------------------------------------------------------------------------------

    def texts_reach(self, session: str) -> int:
        def reach(connection: Connection) -> int:
            number = connection.scalar(_session_id(key_of(session)))
            return 0 if number is None else texts_reach(connection, number)

        return self._read(reach)

    def keep_texts(self, session: str, first: int, last: int, texts: Sequence[StoredText]) -> None:
        def keep(connection: Connection) -> bool:
            # Appends may pass, a purge may not.
            number = connection.scalar(_session_id(key_of(session)).with_for_update(key_share=True))
            return number is not None and keep_texts(connection, number, first, last, texts)

        with self._sound():
            kept = self._connections.change(keep, patient=True)
        if kept:
            self._merge_texts()
            self._connections.write(self._dialect.after_erasing)

    def find_texts(self, session: str, words: Sequence[str], role: str) -> FoundTexts:
        def find(connection: Connection) -> FoundTexts:
            number = connection.scalar(_session_id(key_of(session)))
            if number is None:
                return FoundTexts((), 0, 0)
            return find_texts(connection, number, words, role)

        return self._read(find)

    def _merge_texts(self) -> None:
        """Leave nothing of deleted texts in the index, step by step, so that nobody waits long to write."""
        more = self._connections.write(lambda connection: merge_texts(connection, begin=True))
        while more:
            more = self._connections.write(lambda connection: merge_texts(connection, begin=False))


def _outdated(where: str, version: int, newest: int) -> StoreError:
    if not version:
        return StoreError(f"nothing was ever stored in {where}; check the URL, or write to it first")
    return OlderVersion(
        f"{where} was made by an older version of context-compactor (its tables are of version {version}, and now they"
        f" are of {newest}); nothing was changed: open it once to write, as open_store(url) and `compactor chat` do,"
        f" and it is brought up to date; older versions refuse it then"
    )


# -- entries as rows ---------------------------------------------------------------------------------------------------


def _row(key: str, number: int, entry: Entry) -> dict[str, Any]:
    at = entry.created_at
    return {
        "key": key,
        "before": number - 1,
        "follows": escaped(entry.follows),
        "number": number,
        "id": escaped(entry.id),
        "kind": escaped(entry.kind),
        "round": entry.round,
        "round_key": _round_key(entry) if entry.kind == "round opened" else None,
        "version": entry.version,
        "created_at": (at.astimezone(UTC) if at.tzinfo else at).isoformat(),
        "body": entry.body,
    }


def _round_key(entry: Entry) -> str | None:
    try:
        record = entry.record
    except ContextError:  # kept as it is for a version that can read it; this one could not show the round either
        return None
    return key_of(record.round_id) if isinstance(record, RoundOpened) else None


def _session_id(key: str) -> Select[int]:
    return select(_sessions.c.id).where(_sessions.c.key == key)


def _size_after(page: Sequence[Entry]) -> int:
    """Return how many entries the next page should have, if they are as long as those of *page*."""
    characters = sum(len(entry.body) for entry in page)
    return max(1, min(PAGE, PAGE_CHARACTERS * len(page) // max(1, characters)))


def _flattened(pages: Iterator[Sequence[Entry]]) -> Iterator[Entry]:
    """Give the entries of *pages*. The first is read at once, so that a fault is raised where it was asked for."""
    return chain(next(pages, ()), chain.from_iterable(pages))


# -- names as the database holds them ----------------------------------------------------------------------------------
