"""The text index of a SQL store: its tables and queries, on a connection from the store.

A word matches anywhere in a text, in any script and with any characters: words are bound parameters, never part of a
statement. Without a trigram index, and for words of fewer than three characters, the database scans the session's
texts, which is slower but gives the same results. Sessions are identified by their number in the database.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    TableClause,
    and_,
    column,
    delete,
    func,
    insert,
    or_,
    select,
    table,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from ..entries import RoundFailed, kinds_of
from .base import FoundText, FoundTexts, StoredText, escaped, key_of, storable, unescaped

#: A text's id is its session's number times this, plus a counter, so each session is a range of SQLite's trigram index.
TEXTS_A_SESSION = 2**32
#: Maximum trigrams of a word that SQLite looks up; each match is verified against the text.
MAX_TRIGRAMS = 24

#: Maximum texts in memory during a search.
PAGE = 100
#: Pages of SQLite's index that one merge step writes: about a tenth of a second.
MAX_MERGED_PAGES = 500
_FIRST_SQLITE_WITH_TRIGRAMS = (3, 34)

_NAMES = ("id", "session", "round", "number", "sender", "receiver", "length", "text")
_TEXTS = table("compactor_texts", *map(column, _NAMES))
_REACHES = table("compactor_texts_reach", column("session"), column("reach"))
_TOTALS = table("compactor_texts_totals", *map(column, ("session", "name", "texts", "characters")))
_FAILED = kinds_of(RoundFailed)
_ENTRIES = table("compactor_entries", column("session"), column("kind"), column("round"))

_TABLES = (
    """CREATE TABLE compactor_texts (
        id BIGINT PRIMARY KEY,
        session BIGINT NOT NULL,
        round BIGINT NOT NULL,
        number BIGINT NOT NULL,
        sender TEXT NOT NULL,
        receiver TEXT NOT NULL,
        length BIGINT NOT NULL,
        text TEXT NOT NULL
    )""",
    # The reference to the session blocks new texts during a purge, as for entries.
    """CREATE TABLE compactor_texts_reach (
        session BIGINT PRIMARY KEY REFERENCES compactor_sessions (id),
        reach BIGINT NOT NULL
    )""",
    # Saves each search a count of all texts. A text counts for its sender, its receiver and _ALL, or for _ANYBODY.
    """CREATE TABLE compactor_texts_totals (
        session BIGINT NOT NULL,
        name TEXT NOT NULL,
        texts BIGINT NOT NULL,
        characters BIGINT NOT NULL,
        PRIMARY KEY (session, name)
    )""",
)

#: In place of a name: all texts, and texts without sender and receiver. No escaped name is a single backslash.
_ALL, _ANYBODY = "", "\\"


def create_texts(connection: Connection) -> None:
    """Create the tables and the trigram index; part of a transaction."""
    trigrams = _trigrams(connection)
    for statement in (*_TABLES, *trigrams.tables):
        connection.exec_driver_sql(statement.replace("id BIGINT PRIMARY KEY", trigrams.id))
    trigrams.create(connection)


def texts_reach(connection: Connection, session: int) -> int:
    """Return the number of the last indexed round; 0: none."""
    reaches = _REACHES.c
    return int(connection.scalar(select(reaches.reach).where(reaches.session == session)) or 0)


def keep_texts(connection: Connection, session: int, first: int, last: int, texts: Sequence[StoredText]) -> bool:
    """Replace the texts of the rounds *first* to *last*; part of a transaction.

    Returns whether texts were deleted; if so, run ``merge_texts``. Ignored after a gap: the texts belong to a session
    that was purged in the meantime.
    """
    # Locks the session's row in the table until the transaction ends.
    connection.execute(_upsert(connection)(_REACHES).values(session=session, reach=0).on_conflict_do_nothing())
    locked = select(_REACHES.c.reach).where(_REACHES.c.session == session).with_for_update()
    reach = int(connection.scalars(locked).one())
    if first > reach + 1:
        return False
    _trigrams(connection).drop_unusable(connection)
    rows: list[_Row] = [
        (one.round, one.number, escaped(one.send_from), escaped(one.send_to), len(one.text), storable(one.text))
        for one in texts
    ]
    c, deleted = _TEXTS.c, 0
    if first <= reach:
        theirs = (c.session == session, c.round.between(first, last))
        columns = (c.round, c.number, c.sender, c.receiver, c.length, c.text)
        kept: list[_Row] = [tuple(row) for row in connection.execute(select(*columns).where(*theirs))]
        if sorted(kept) == sorted(rows):  # another process was faster
            rows = []
        else:
            deleted = connection.execute(delete(_TEXTS).where(*theirs)).rowcount
            _count(connection, session, kept, -1)
    if rows:
        first_id = session * TEXTS_A_SESSION
        newest = connection.scalar(select(func.max(c.id)).where(_is_of_session(c.id, session)))
        values = [
            dict(zip(_NAMES, (id_, session, *row), strict=True))
            for id_, row in enumerate(rows, (first_id if newest is None else int(newest)) + 1)
        ]
        connection.execute(insert(_TEXTS), values)
    _count(connection, session, rows, 1)
    if last > reach:
        connection.execute(update(_REACHES).where(_REACHES.c.session == session).values(reach=last))
    return deleted > 0


def find_texts(connection: Connection, session: int, words: Sequence[str], role: str) -> FoundTexts:
    """Return the texts that contain any of *words*, as *role* sees them, without those of failed rounds.

    The empty role sees all texts. Holds at most a page of texts at a time. Not for use in a transaction.
    """
    c, entries, totals = _TEXTS.c, _ENTRIES.c, _TOTALS.c
    failed = select(entries.round).where(entries.session == session, entries.kind.in_(_FAILED))
    seen: list[ColumnElement[bool]] = []
    names = [_ALL]
    if role:
        name, names = escaped(role), [_ANYBODY, key_of(role)]
        seen.append(or_(and_(c.sender == "", c.receiver == ""), c.sender == name, c.receiver == name))
    sums = select(func.sum(totals.texts), func.sum(totals.characters))
    total, characters = connection.execute(sums.where(totals.session == session, totals.name.in_(names))).one()
    # Few: a round that failed before its texts were indexed has none.
    gone = select(func.count(), func.sum(c.length)).where(c.session == session, c.round.in_(failed), *seen)
    gone_texts, gone_characters = connection.execute(gone).one()
    total = int(total or 0) - int(gone_texts)
    characters = int(characters or 0) - int(gone_characters or 0)
    if not words:
        return FoundTexts((), total, characters)
    words = [*map(storable, words)]
    matching = _trigrams(connection).matching(connection, session, words)
    query = select(c.round, c.number, c.length, c.text).where(*matching, c.round.not_in(failed), *seen)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("BEGIN")  # its cursors end with their transaction
    with connection.execute(query, execution_options={"yield_per": PAGE}) as rows:
        # Counted in Python: with many words, a database takes three times as long.
        found = [
            FoundText(round_, number, length, tuple(map(text.count, words))) for round_, number, length, text in rows
        ]
    connection.commit()
    return FoundTexts(found, total, characters)


def erase_texts(connection: Connection, session: int) -> bool:
    """Erase the texts of a session before the session itself; part of a transaction.

    Returns whether there were any; if so, run ``merge_texts``.
    """
    _trigrams(connection).drop_unusable(connection)
    connection.execute(delete(_REACHES).where(_REACHES.c.session == session))
    connection.execute(delete(_TOTALS).where(_TOTALS.c.session == session))
    return connection.execute(delete(_TEXTS).where(_TEXTS.c.session == session)).rowcount > 0


def merge_texts(connection: Connection, *, begin: bool) -> bool:
    """Run one step of rewriting the index without deleted texts, and return whether more remain.

    *begin*: the first step. Each step is a transaction, so that others can write in between.
    """
    return _trigrams(connection).merge(connection, begin=begin)


#: Round, number, sender, receiver, length and text, as they are in the table.
_Row = tuple[int, int, str, str, int, str]


def _count(connection: Connection, session: int, rows: Sequence[_Row], sign: int) -> None:
    """Add *rows* to the totals, or subtract them; *sign* is 1 or -1."""
    sums: dict[str, tuple[int, int]] = {}
    for _, _, sender, receiver, length, _ in rows:
        names = {key_of(name) for name in map(unescaped, (sender, receiver)) if name} or {_ANYBODY}
        for name in (_ALL, *names):
            texts, characters = sums.get(name, (0, 0))
            sums[name] = (texts + sign, characters + sign * length)
    if not sums:
        return
    c, added = _TOTALS.c, _upsert(connection)(_TOTALS)
    sum_up = {c.texts: c.texts + added.excluded.texts, c.characters: c.characters + added.excluded.characters}
    connection.execute(
        added.on_conflict_do_update(index_elements=[c.session, c.name], set_=sum_up),
        [
            {"session": session, "name": name, "texts": texts, "characters": characters}
            for name, (texts, characters) in sums.items()
        ],
    )
    if sign < 0:
        connection.execute(delete(_TOTALS).where(c.session == session, c.texts == 0))


# --- the trigram indexes of the two databases ---


class _Trigrams(ABC):
    """An index of the three-character sequences in all texts."""

    #: Defines the column for the number of a text.
    id: str
    #: Indexes that a store always has.
    tables: Sequence[str]

    @abstractmethod
    def create(self, connection: Connection) -> None:
        """Create the index if the database can."""

    @abstractmethod
    def matching(self, connection: Connection, session: int, words: Sequence[str]) -> list[ColumnElement[bool]]:
        """Return the conditions for texts of *session* that contain any of *words*."""

    def drop_unusable(self, connection: Connection) -> None:  # noqa: B027
        """Drop an index that this database cannot maintain, before texts are written; part of a transaction."""

    def merge(self, connection: Connection, *, begin: bool) -> bool:  # noqa: ARG002
        """Remove some deleted texts from the index, and return whether more remain."""
        return False


class _SqliteTrigrams(_Trigrams):
    """An FTS5 table, updated by triggers. It lists texts without positions, which takes a third of the space."""

    id = "id INTEGER PRIMARY KEY"
    # Covers the queries for totals, which then read no text.
    tables = (
        "CREATE INDEX compactor_texts_places ON compactor_texts (session, round, number, sender, receiver, length)",
    )
    index = (
        "CREATE VIRTUAL TABLE compactor_trigrams USING fts5(text, content='compactor_texts', content_rowid='id',"
        " tokenize='trigram case_sensitive 1', detail=none, columnsize=0)",
        "CREATE TRIGGER compactor_texts_kept AFTER INSERT ON compactor_texts BEGIN"
        " INSERT INTO compactor_trigrams(rowid, text) VALUES (new.id, new.text); END",
        "CREATE TRIGGER compactor_texts_deleted AFTER DELETE ON compactor_texts BEGIN"
        " INSERT INTO compactor_trigrams(compactor_trigrams, rowid, text) VALUES ('delete', old.id, old.text); END",
    )
    _TRIGGERS = ("compactor_texts_kept", "compactor_texts_deleted")
    _TRIGRAMS = table("compactor_trigrams", column("rowid"), column("compactor_trigrams"))

    def create(self, connection: Connection) -> None:
        if self._is_able(connection):
            for statement in self.index:
                connection.exec_driver_sql(statement)

    def drop_unusable(self, connection: Connection) -> None:
        if self._is_able(connection) or not self._exists(connection):
            return
        # A SQLite without FTS5 cannot drop the table, so empty it: texts erased from now on would stay in it.
        for trigger in self._TRIGGERS:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger}")
        for part in ("data", "idx"):
            connection.exec_driver_sql(f"DELETE FROM compactor_trigrams_{part}")  # noqa: S608

    def matching(self, connection: Connection, session: int, words: Sequence[str]) -> list[ColumnElement[bool]]:
        has_any = or_(*(func.instr(_TEXTS.c.text, word) > 0 for word in words))
        if min(map(len, words)) >= 3 and self._is_usable(connection):
            c = self._TRIGRAMS.c
            asked = c.compactor_trigrams.op("MATCH")(" OR ".join(map(_phrases, words)))
            # No condition on the session's column: SQLite would scan the session and look each text up in the matches.
            return [_TEXTS.c.id.in_(select(c.rowid).where(asked, _is_of_session(c.rowid, session))), has_any]
        return [_TEXTS.c.session == session, has_any]

    def merge(self, connection: Connection, *, begin: bool) -> bool:
        if not self._is_usable(connection):
            return False
        # Deleted texts are only marked until the whole index is rewritten; a negative number starts that.
        changes = "SELECT total_changes()"
        before = connection.exec_driver_sql(changes).scalar_one()
        pages = -MAX_MERGED_PAGES if begin else MAX_MERGED_PAGES
        merge = "INSERT INTO compactor_trigrams(compactor_trigrams, rank) VALUES ('merge', ?)"
        connection.exec_driver_sql(merge, (pages,))
        return int(connection.exec_driver_sql(changes).scalar_one()) - int(before) > 1

    def _is_usable(self, connection: Connection) -> bool:
        return self._exists(connection) and self._is_able(connection)

    def _exists(self, connection: Connection) -> bool:
        """Return whether the file has the index and its triggers."""
        found = "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name = ?"
        return connection.exec_driver_sql(found, (self._TRIGGERS[0],)).first() is not None

    def _is_able(self, connection: Connection) -> bool:
        """Return whether this SQLite has trigrams; the file may come from another."""
        version = connection.exec_driver_sql("SELECT sqlite_version()").scalar_one()
        if tuple(map(int, version.split(".")[:2])) < _FIRST_SQLITE_WITH_TRIGRAMS:
            return False
        return "fts5" in connection.exec_driver_sql("PRAGMA module_list").scalars().all()


class _PostgresTrigrams(_Trigrams):
    """An index of pg_trgm, which comes with PostgreSQL but may not be installed."""

    id = "id BIGINT PRIMARY KEY"
    # Without names, which are too long for an index.
    tables = ("CREATE INDEX compactor_texts_places ON compactor_texts (session, round, number)",)
    index = (
        "CREATE EXTENSION IF NOT EXISTS pg_trgm",
        "CREATE INDEX compactor_trigrams ON compactor_texts USING gin (text gin_trgm_ops)",
    )

    def create(self, connection: Connection) -> None:
        connection.exec_driver_sql("SAVEPOINT trigrams")
        try:
            for statement in self.index:
                connection.exec_driver_sql(statement)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            # The extension is missing or not allowed: words are found without it.
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT trigrams")
        connection.exec_driver_sql("RELEASE SAVEPOINT trigrams")

    def matching(self, connection: Connection, session: int, words: Sequence[str]) -> list[ColumnElement[bool]]:  # noqa: ARG002
        literal = [re.sub("[!%_]", r"!\g<0>", word) for word in words]
        has_any = or_(*(_TEXTS.c.text.like(f"%{word}%", escape="!") for word in literal))
        return [_TEXTS.c.session == session, has_any]


def _upsert(connection: Connection) -> Callable[[TableClause], Any]:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def _trigrams(connection: Connection) -> _Trigrams:
    return _PostgresTrigrams() if connection.dialect.name == "postgresql" else _SqliteTrigrams()


def _phrases(word: str) -> str:
    """Return the FTS5 query for texts with all trigrams of *word*, or its first ones."""
    last = min(len(word) - 2, MAX_TRIGRAMS)
    quoted = ('"' + word[at : at + 3].replace('"', '""') + '"' for at in range(last))
    return f"({' AND '.join(dict.fromkeys(quoted))})"


def _is_of_session(id_: ColumnElement[int], session: int) -> ColumnElement[bool]:
    return id_.between(session * TEXTS_A_SESSION, (session + 1) * TEXTS_A_SESSION - 1)
