"""The text index of a SQL store: its tables and queries, on a connection from the store.

A word matches anywhere in a text, in any script and with any characters: words are bound parameters, never part of a
statement. Without a trigram index, and for words of fewer than three characters, the database scans the session's
texts, which is slower but gives the same results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from sqlite3 import sqlite_version_info
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, column, delete, func, insert, or_, select, table, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from ..entries import RoundFailed, RoundUndone, list_kinds
from .base import FoundText, FoundTexts, StoredText, escape, make_key, make_storable, unescape

#: A text's id is its session's number times this, plus a counter, so each session is a range of SQLite's trigram index.
TEXTS_A_SESSION = 2**32
#: Maximum trigrams of a word that SQLite looks up; each match is verified against the text.
MAX_TRIGRAMS = 24
#: Maximum texts in memory during a search.
PAGE = 100
#: Pages of SQLite's index that one merge step writes: about a tenth of a second.
MAX_MERGED_PAGES = 500
#: Bytes of the description of SQLite's index, with which it is built anew: each rewriting adds two levels, of two bytes
#: each, and with more than 2,000 levels, SQLite takes the whole index for damaged.
MAX_DESCRIPTION = 3_000
#: Maximum texts, and approximate maximum characters, of one step of building it anew: about a tenth of a second.
MAX_BUILT, MAX_BUILT_CHARACTERS = 1_000, 400_000
_FIRST_SQLITE_WITH_TRIGRAMS = (3, 34)

_NAMES = ("id", "session", "round", "number", "sender", "receiver", "length", "text")
_TEXTS = table("compactor_texts", *map(column, _NAMES))
_REACHES = table("compactor_texts_reach", column("session"), column("reach"))
_TOTALS = table("compactor_texts_totals", *map(column, ("session", "name", "texts", "characters")))
_HIDING = list_kinds(RoundFailed, RoundUndone)
_ENTRIES = table("compactor_entries", column("session"), column("kind"), column("round"))
_SESSIONS = table("compactor_sessions", column("id"), column("key"))
_TRIGRAMS = table("compactor_trigrams", column("rowid"), column("compactor_trigrams"))

_CREATE_TABLES = (
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
# pg_trgm comes with PostgreSQL but may not be installed. Names are too long for PostgreSQL's index of places.
_CREATE_ON_POSTGRES = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm",
    "CREATE INDEX compactor_trigrams ON compactor_texts USING gin (text gin_trgm_ops)",
)
_PLACES_ON_POSTGRES = "CREATE INDEX compactor_texts_places ON compactor_texts (session, round, number)"
# An FTS5 table, updated by triggers. It lists texts without positions, which takes a third of the space.
_CREATE_ON_SQLITE = (
    "CREATE VIRTUAL TABLE compactor_trigrams USING fts5(text, content='compactor_texts', content_rowid='id',"
    " tokenize='trigram case_sensitive 1', detail=none, columnsize=0)",
    "CREATE TRIGGER compactor_texts_kept AFTER INSERT ON compactor_texts BEGIN"
    " INSERT INTO compactor_trigrams(rowid, text) VALUES (new.id, new.text); END",
    "CREATE TRIGGER compactor_texts_deleted AFTER DELETE ON compactor_texts BEGIN"
    " INSERT INTO compactor_trigrams(compactor_trigrams, rowid, text) VALUES ('delete', old.id, old.text); END",
)
# The index that replaces another one. It has the texts up to an id; triggers keep these in step.
_BEGIN_BUILDING = (
    _CREATE_ON_SQLITE[0].replace("compactor_trigrams", "compactor_trigrams_new"),
    "CREATE TABLE compactor_trigrams_built (last INTEGER NOT NULL)",
    "INSERT INTO compactor_trigrams_built VALUES (-1)",
    "CREATE TRIGGER compactor_texts_kept_new AFTER INSERT ON compactor_texts"
    " WHEN new.id <= (SELECT last FROM compactor_trigrams_built) BEGIN"
    " INSERT INTO compactor_trigrams_new(rowid, text) VALUES (new.id, new.text); END",
    "CREATE TRIGGER compactor_texts_deleted_new AFTER DELETE ON compactor_texts"
    " WHEN old.id <= (SELECT last FROM compactor_trigrams_built) BEGIN"
    " INSERT INTO compactor_trigrams_new(compactor_trigrams_new, rowid, text)"
    " VALUES ('delete', old.id, old.text); END",
)
_DROP_TRIGGERS = tuple(
    f"DROP TRIGGER IF EXISTS compactor_texts_{name}" for name in ("kept", "deleted", "kept_new", "deleted_new")
)
_END_BUILDING = (
    *_DROP_TRIGGERS,  # the new ones name the new table and its column
    "DROP TABLE compactor_trigrams",
    "ALTER TABLE compactor_trigrams_new RENAME TO compactor_trigrams",
    "DROP TABLE compactor_trigrams_built",
    *_CREATE_ON_SQLITE[1:],
)
# Covers the queries for totals, which then read no text.
_PLACES_ON_SQLITE = (
    "CREATE INDEX compactor_texts_places ON compactor_texts (session, round, number, sender, receiver, length)"
)

#: In place of a name: all texts, and texts without sender and receiver. No escaped name is a single backslash.
_ALL, _ANYBODY = "", "\\"
#: Round, number, sender, receiver, length and text, as they are in the table.
_Row = tuple[int, int, str, str, int, str]


def create_texts(connection: Connection) -> None:
    """Create the tables, and the trigram index if the database can; part of a transaction."""
    on_postgres = _is_postgres(connection)
    for statement in (*_CREATE_TABLES, _PLACES_ON_POSTGRES if on_postgres else _PLACES_ON_SQLITE):
        connection.exec_driver_sql(
            statement if on_postgres else statement.replace("id BIGINT PRIMARY KEY", "id INTEGER PRIMARY KEY")
        )
    if not on_postgres:
        for statement in _CREATE_ON_SQLITE if _has_trigrams(connection) else ():
            connection.exec_driver_sql(statement)
        return
    connection.exec_driver_sql("SAVEPOINT trigrams")
    try:
        for statement in _CREATE_ON_POSTGRES:
            connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        # The extension is missing or not allowed: words are found without it.
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT trigrams")
    connection.exec_driver_sql("RELEASE SAVEPOINT trigrams")


def find_session(connection: Connection, key: str, *, lock: bool = False, allow_appends: bool = False) -> int | None:
    """Return the session's number in the database. A *lock* blocks purges, and appends unless *allow_appends*."""
    query = select(_SESSIONS.c.id).where(_SESSIONS.c.key == key)
    number: int | None = connection.scalar(query.with_for_update(key_share=allow_appends) if lock else query)
    return number


def get_last_indexed_round(connection: Connection, key: str) -> int:
    """Return the number of the last indexed round; 0: none."""
    reach = select(_REACHES.c.reach).join(_SESSIONS, _SESSIONS.c.id == _REACHES.c.session)
    return int(connection.scalar(reach.where(_SESSIONS.c.key == key)) or 0)


def save_texts(connection: Connection, key: str, first: int, last: int, texts: Sequence[StoredText]) -> bool:
    """Replace the texts of the rounds *first* to *last*; part of a transaction.

    Returns whether texts were deleted; if so, run ``merge_texts``. Ignored for an unknown session and after a gap: the
    texts belong to a session that was purged in the meantime.
    """
    session = find_session(connection, key, lock=True, allow_appends=True)
    if session is None:
        return False
    # Locks the session's row in the table until the transaction ends.
    connection.execute(_upsert(connection, _REACHES).values(session=session, reach=0).on_conflict_do_nothing())
    locked = select(_REACHES.c.reach).where(_REACHES.c.session == session).with_for_update()
    reach = int(connection.scalars(locked).one())
    if first > reach + 1:
        return False
    _empty_unusable_index(connection)
    rows: list[_Row] = [
        (one.round, one.number, escape(one.send_from), escape(one.send_to), len(one.text), make_storable(one.text))
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
        ids = [_is_in_session(c.id, session), *[c.session == session] * _is_postgres(connection)]  # one partition
        newest = connection.scalar(select(func.max(c.id)).where(*ids))
        first_id = session * TEXTS_A_SESSION if newest is None else int(newest)
        values = [dict(zip(_NAMES, (id_, session, *row), strict=True)) for id_, row in enumerate(rows, first_id + 1)]
        connection.execute(insert(_TEXTS), values)
    _count(connection, session, rows, 1)
    if last > reach:
        connection.execute(update(_REACHES).where(_REACHES.c.session == session).values(reach=last))
    return deleted > 0


def find_texts(connection: Connection, key: str, words: Sequence[str], role: str) -> FoundTexts:
    """Return the texts that contain any of *words*, as *role* sees them, without those of hidden rounds.

    The empty role sees all texts. Holds at most a page of texts at a time. Not for use in a transaction.
    """
    session = find_session(connection, key)
    if session is None:
        return FoundTexts((), 0, 0)
    c, entries, totals = _TEXTS.c, _ENTRIES.c, _TOTALS.c
    hidden = select(entries.round).where(entries.session == session, entries.kind.in_(_HIDING))
    seen: list[ColumnElement[bool]] = []
    names = [_ALL]
    if role:
        name, names = escape(role), [_ANYBODY, make_key(role)]
        seen.append(or_(and_(c.sender == "", c.receiver == ""), c.sender == name, c.receiver == name))
    sums = select(func.sum(totals.texts), func.sum(totals.characters))
    total, characters = connection.execute(sums.where(totals.session == session, totals.name.in_(names))).one()
    # Few: a round that was hidden before its texts were indexed has none.
    gone = select(func.count(), func.sum(c.length)).where(c.session == session, c.round.in_(hidden), *seen)
    gone_texts, gone_characters = connection.execute(gone).one()
    total = int(total or 0) - int(gone_texts)
    characters = int(characters or 0) - int(gone_characters or 0)
    if not words:
        return FoundTexts((), total, characters)
    words = [*map(make_storable, words)]
    matching = match_words(connection, session, words)
    query = select(c.round, c.number, c.length, c.text).where(*matching, c.round.not_in(hidden), *seen)
    if _is_postgres(connection):
        connection.exec_driver_sql("BEGIN")  # its cursors end with their transaction
    with connection.execute(query, execution_options={"yield_per": PAGE}) as rows:
        # Counted in Python: with many words, a database takes three times as long.
        found = [FoundText(one.round, one.number, one.length, tuple(map(one.text.count, words))) for one in rows]
    connection.commit()
    return FoundTexts(found, total, characters)


def match_words(connection: Connection, session: int, words: Sequence[str]) -> list[ColumnElement[bool]]:
    """Return the conditions for texts of *session* that contain any of *words*."""
    c = _TEXTS.c
    if _is_postgres(connection):
        literal = [re.sub("[!%_]", r"!\g<0>", word) for word in words]
        return [c.session == session, or_(*(c.text.like(f"%{word}%", escape="!") for word in literal))]
    has_any = or_(*(func.instr(c.text, word) > 0 for word in words))
    if min(map(len, words)) < 3 or not (_has_index(connection) and _has_trigrams(connection)):
        return [c.session == session, has_any]
    asked = _TRIGRAMS.c.compactor_trigrams.op("MATCH")(" OR ".join(map(_make_phrase_query, words)))
    # No condition on the session's column: SQLite would scan the session and look each text up in the matches.
    return [c.id.in_(select(_TRIGRAMS.c.rowid).where(asked, _is_in_session(_TRIGRAMS.c.rowid, session))), has_any]


def erase_texts(connection: Connection, session: int) -> bool:
    """Erase the texts of a session before the session itself; part of a transaction.

    Returns whether there were any; if so, run ``merge_texts``.
    """
    _empty_unusable_index(connection)
    connection.execute(delete(_REACHES).where(_REACHES.c.session == session))
    connection.execute(delete(_TOTALS).where(_TOTALS.c.session == session))
    return connection.execute(delete(_TEXTS).where(_TEXTS.c.session == session)).rowcount > 0


def build_texts(connection: Connection) -> bool:
    """Run one step of building SQLite's index anew if that is due or has begun, and return whether more remain.

    Each step is a transaction, so that others can write in between; any process may run the next one.
    """
    if not (_has_index(connection) and _has_trigrams(connection)):
        return False
    if not _exists(connection, "compactor_trigrams_built"):
        description = "SELECT length(block) FROM compactor_trigrams_data WHERE id = 10"
        is_due = (connection.exec_driver_sql(description).scalar() or 0) > MAX_DESCRIPTION
        for statement in _BEGIN_BUILDING if is_due else ():
            connection.exec_driver_sql(statement)
        return is_due
    last = connection.exec_driver_sql("SELECT last FROM compactor_trigrams_built").scalar_one()
    c, end, left = _TEXTS.c, None, MAX_BUILT_CHARACTERS
    for id_, length in connection.execute(select(c.id, c.length).where(c.id > last).order_by(c.id).limit(MAX_BUILT)):
        if end is not None and left < length:
            break
        end, left = id_, left - length
    for statement in _END_BUILDING if end is None else ():
        connection.exec_driver_sql(statement)
    if end is not None:
        texts = "SELECT id, text FROM compactor_texts WHERE id > ? AND id <= ?"
        connection.exec_driver_sql(f"INSERT INTO compactor_trigrams_new(rowid, text) {texts}", (last, end))
        connection.exec_driver_sql("UPDATE compactor_trigrams_built SET last = ?", (end,))
    return end is not None


def merge_texts(connection: Connection, *, begin: bool) -> bool:
    """Run one step of rewriting SQLite's index without deleted texts, and return whether more remain.

    *begin*: the first step. Each step is a transaction, so that others can write in between.
    """
    if not (_has_index(connection) and _has_trigrams(connection)):
        return False
    # Deleted texts are only marked until the whole index is rewritten; a negative number starts that.
    changes = "SELECT total_changes()"
    before = connection.exec_driver_sql(changes).scalar_one()
    pages = -MAX_MERGED_PAGES if begin else MAX_MERGED_PAGES
    merge = "INSERT INTO compactor_trigrams(compactor_trigrams, rank) VALUES ('merge', ?)"
    connection.exec_driver_sql(merge, (pages,))
    return int(connection.exec_driver_sql(changes).scalar_one()) - int(before) > 1


def _count(connection: Connection, session: int, rows: Sequence[_Row], sign: int) -> None:
    """Add *rows* to the totals, or subtract them; *sign* is 1 or -1."""
    totals_by_name: dict[str, tuple[int, int]] = {}
    for _, _, sender, receiver, length, _ in rows:
        names = {make_key(name) for name in map(unescape, (sender, receiver)) if name} or {_ANYBODY}
        for name in (_ALL, *names):
            texts, characters = totals_by_name.get(name, (0, 0))
            totals_by_name[name] = (texts + sign, characters + sign * length)
    if not totals_by_name:
        return
    c, added = _TOTALS.c, _upsert(connection, _TOTALS)
    sum_up = {c.texts: c.texts + added.excluded.texts, c.characters: c.characters + added.excluded.characters}
    connection.execute(
        added.on_conflict_do_update(index_elements=[c.session, c.name], set_=sum_up),
        [
            {"session": session, "name": name, "texts": n, "characters": length}
            for name, (n, length) in totals_by_name.items()
        ],
    )
    if sign < 0:
        connection.execute(delete(_TOTALS).where(c.session == session, c.texts == 0))


def _is_postgres(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"


def _upsert(connection: Connection, into: Any) -> Any:
    return postgresql.insert(into) if _is_postgres(connection) else sqlite.insert(into)


def _has_index(connection: Connection) -> bool:
    """Return whether the SQLite file has the trigram index and its triggers."""
    return _exists(connection, "compactor_texts_kept")


def _exists(connection: Connection, name: str) -> bool:
    """Return whether the SQLite file has a table or trigger of that *name*."""
    return connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).first() is not None


def _has_trigrams(connection: Connection) -> bool:
    """Return whether this SQLite can have trigrams; the file may come from another."""
    modules = connection.exec_driver_sql("PRAGMA module_list").scalars().all()
    return sqlite_version_info >= _FIRST_SQLITE_WITH_TRIGRAMS and "fts5" in modules


def _empty_unusable_index(connection: Connection) -> None:
    """Empty an index that this SQLite cannot maintain, before texts are written; part of a transaction. It cannot drop
    the table either, and texts erased from now on would stay in it."""
    if _is_postgres(connection) or _has_trigrams(connection) or not _has_index(connection):
        return
    tables = ["compactor_trigrams", *["compactor_trigrams_new"] * _exists(connection, "compactor_trigrams_built")]
    emptied = (f"DELETE FROM {table}_{part}" for table in tables for part in ("data", "idx"))  # noqa: S608
    for statement in (*_DROP_TRIGGERS, *emptied):
        connection.exec_driver_sql(statement)


def _make_phrase_query(word: str) -> str:
    """Return the FTS5 query for texts with all trigrams of *word*, or its first ones."""
    last = min(len(word) - 2, MAX_TRIGRAMS)
    quoted = ('"' + word[at : at + 3].replace('"', '""') + '"' for at in range(last))
    return f"({' AND '.join(dict.fromkeys(quoted))})"


def _is_in_session(id_: ColumnElement[int], session: int) -> ColumnElement[bool]:
    return id_.between(session * TEXTS_A_SESSION, (session + 1) * TEXTS_A_SESSION - 1)
