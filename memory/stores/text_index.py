"""The text index of a SQL store: its tables, and what is asked of them on a connection that the store gives.

A word is found wherever it is in a text, also in scripts without spaces, and whatever characters are in it: words are
bound, never part of a statement. Where the database has no index of trigrams, or a word has fewer than three
characters, the texts of the session are gone through: that takes longer, and the answers are the same.

A session is given by its number in the database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
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

#: Ids of texts begin with the number of their session, so that SQLite's trigrams can be asked for one session alone.
TEXTS_A_SESSION = 2**32
#: Trigrams of a word that SQLite is asked for; the text is looked at in any case.
MAX_TRIGRAMS = 24

#: Texts that a search reads at a time.
PAGE = 100
#: Pages that SQLite writes at most in one step of rewriting them: about a tenth of a second.
MERGED_AT_ONCE = 500
#: The first SQLite that has them.
_FIRST_WITH_TRIGRAMS = (3, 34)

_NAMES = ("id", "session", "round", "number", "sender", "receiver", "length", "text")
_TEXTS = table("compactor_texts", *map(column, _NAMES))
_REACHES = table("compactor_texts_reach", column("session"), column("reach"))
_TOTALS = table("compactor_texts_totals", *map(column, ("session", "name", "texts", "characters")))
#: Of the entries by which a round fails.
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
    # Refers to the session, as entries do: whoever hands over texts cannot pass a purge that is under way.
    """CREATE TABLE compactor_texts_reach (
        session BIGINT PRIMARY KEY REFERENCES compactor_sessions (id),
        reach BIGINT NOT NULL
    )""",
    # So that no search counts all texts anew. Each text counts for its sender, its receiver and _ALL, or for _ANYBODY.
    """CREATE TABLE compactor_texts_totals (
        session BIGINT NOT NULL,
        name TEXT NOT NULL,
        texts BIGINT NOT NULL,
        characters BIGINT NOT NULL,
        PRIMARY KEY (session, name)
    )""",
)

#: In the place of a name: all texts, and those without sender and receiver. No escaped name is a single backslash.
_ALL, _ANYBODY = "", "\\"


def create_texts(connection: Connection) -> None:
    """Make the tables and what finds words in them, beside those of sessions and entries; part of a transaction."""
    trigrams = _trigrams(connection)
    for statement in (*_TABLES, *trigrams.tables):
        connection.exec_driver_sql(statement.replace("id BIGINT PRIMARY KEY", trigrams.id))
    trigrams.create(connection)


def texts_reach(connection: Connection, session: int) -> int:
    """Return the number of the last round whose texts were handed over; 0: none yet."""
    reaches = _REACHES.c
    return int(connection.scalar(select(reaches.reach).where(reaches.session == session)) or 0)


def keep_texts(connection: Connection, session: int, first: int, last: int, texts: Sequence[StoredText]) -> bool:
    """Take over the *texts* of the rounds *first* to *last*, in place of what is kept of them; part of a transaction.

    Returns whether texts were deleted: then ``merge_texts`` has work. Ignored behind a gap: the session is not the one
    of which they were read.
    """
    reach = _locked_reach(connection, session)
    if first > reach + 1:
        return False
    _trigrams(connection).give_up_unusable(connection)
    rows = [(text.round, text.number, *_written(text), len(text.text), storable(text.text)) for text in texts]
    c, deleted = _TEXTS.c, 0
    if first <= reach:
        theirs = (c.session == session, c.round.between(first, last))
        columns = (c.round, c.number, c.sender, c.receiver, c.length, c.text)
        kept: list[_Row] = [tuple(row) for row in connection.execute(select(*columns).where(*theirs))]
        if sorted(kept) == sorted(rows):  # as when another process was quicker
            rows = []
        else:
            deleted = connection.execute(delete(_TEXTS).where(*theirs)).rowcount
            _count(connection, session, kept, -1)
    _insert(connection, session, rows)
    _count(connection, session, rows, 1)
    if last > reach:
        connection.execute(update(_REACHES).where(_REACHES.c.session == session).values(reach=last))
    return deleted > 0


def find_texts(connection: Connection, session: int, words: Sequence[str], role: str) -> FoundTexts:
    """Return which texts have any of *words* in them, as *role* sees them, in rounds that have not failed; the empty
    role sees all. No more than a page of texts is held at a time. Not for a transaction."""
    c, entries = _TEXTS.c, _ENTRIES.c
    failed = select(entries.round).where(entries.session == session, entries.kind.in_(_FAILED))
    seen: list[ColumnElement[bool]] = []
    if role:
        name = escaped(role)
        seen.append(or_(and_(c.sender == "", c.receiver == ""), c.sender == name, c.receiver == name))
    # Few: a round that had failed when its texts were handed over has none.
    gone = select(func.count(), func.sum(c.length)).where(c.session == session, c.round.in_(failed), *seen)
    texts, characters = connection.execute(gone).one()
    total, all_characters = _totals(connection, session, role)
    total, characters = total - int(texts), all_characters - int(characters or 0)
    if not words:
        return FoundTexts((), total, characters)
    words = [*map(storable, words)]
    matching = _trigrams(connection).matching(connection, session, words)
    asked = select(c.round, c.number, c.length, c.text).where(*matching, c.round.not_in(failed), *seen)
    # Counted here: a database takes three times as long where there are many words.
    found = [
        FoundText(round_, number, length, tuple(map(text.count, words)))
        for round_, number, length, text in _streamed(connection, asked)
    ]
    return FoundTexts(found, total, characters)


def erase_texts(connection: Connection, session: int) -> bool:
    """Erase the texts of a session; part of a transaction, before the session itself goes. Returns whether there were
    any: then ``merge_texts`` has work."""
    _trigrams(connection).give_up_unusable(connection)
    connection.execute(delete(_REACHES).where(_REACHES.c.session == session))
    connection.execute(delete(_TOTALS).where(_TOTALS.c.session == session))
    return connection.execute(delete(_TEXTS).where(_TEXTS.c.session == session)).rowcount > 0


def merge_texts(connection: Connection, *, begin: bool) -> bool:
    """Do a step of writing the index anew, so that nothing of deleted texts is left in it, and return whether there is
    more to do. Only the first one is to *begin*. Each is a transaction of its own, so that others may write between."""
    return _trigrams(connection).merge(connection, begin=begin)


#: Round, number, sender, receiver, length and text, as they are in the table.
_Row = tuple[int, int, str, str, int, str]


def _locked_reach(connection: Connection, session: int) -> int:
    """Return the session's reach, which nobody else changes before the transaction ends."""
    connection.execute(_upsert(connection)(_REACHES).values(session=session, reach=0).on_conflict_do_nothing())
    reaches = _REACHES.c
    return int(connection.scalars(select(reaches.reach).where(reaches.session == session).with_for_update()).one())


def _insert(connection: Connection, session: int, rows: list[_Row]) -> None:
    if not rows:
        return
    last = connection.scalar(select(func.max(_TEXTS.c.id)).where(_of_session(_TEXTS.c.id, session)))
    free = (_ids(session)[0] if last is None else int(last)) + 1
    values = [dict(zip(_NAMES, (id_, session, *row), strict=True)) for id_, row in enumerate(rows, free)]
    connection.execute(insert(_TEXTS), values)


def _count(connection: Connection, session: int, rows: Sequence[_Row], sign: int) -> None:
    """Add *rows* to the totals, or take them away."""
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


def _totals(connection: Connection, session: int, role: str) -> tuple[int, int]:
    """Return how many texts *role* sees, those in failed rounds included, and their length in all."""
    c, names = _TOTALS.c, [_ANYBODY, key_of(role)] if role else [_ALL]
    sums = select(func.sum(c.texts), func.sum(c.characters)).where(c.session == session, c.name.in_(names))
    texts, characters = connection.execute(sums).one()
    return int(texts or 0), int(characters or 0)


def _streamed(connection: Connection, asked: Select[Any, Any, Any, Any]) -> Iterator[Row[Any, Any, Any, Any]]:
    """Give the rows of *asked*, and hold no more than a page of them."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("BEGIN")  # its cursors end with their transaction
    with connection.execute(asked, execution_options={"yield_per": PAGE}) as rows:
        yield from rows
    connection.commit()


# -- what the two databases do differently ---------------------------------------------------------------------------


class _Trigrams(Protocol):
    """An index of all that stands in texts, three characters at a time."""

    #: Defines the number of a text.
    id: str
    #: Statements for what always belongs to the tables.
    tables: Sequence[str]

    def create(self, connection: Connection) -> None:
        """Make the index, if the database can."""

    def give_up_unusable(self, connection: Connection) -> None:
        """Part with an index that is there and cannot be kept, before texts are written; part of a transaction."""

    def matching(self, connection: Connection, session: int, words: Sequence[str]) -> list[ColumnElement[bool]]:
        """Return what holds, all of it, for those texts of *session* that have any of *words*."""

    def merge(self, connection: Connection, *, begin: bool) -> bool:
        """Do a step of taking deleted texts out of the index, and return whether there is more to do."""


class _SqliteTrigrams:
    """FTS5's, kept by triggers. It holds which texts have a trigram and not where: a third of the size."""

    id = "id INTEGER PRIMARY KEY"
    # All that the totals need, so that no text is read for them.
    tables: Sequence[str] = (
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
        if self._able(connection):
            for statement in self.index:
                connection.exec_driver_sql(statement)

    def give_up_unusable(self, connection: Connection) -> None:
        if self._able(connection) or not self._there(connection):
            return
        # The table itself can only be dropped by a SQLite that knows its kind. All that it holds goes: what is erased
        # from now on would stay in it.
        for trigger in self._TRIGGERS:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger}")
        for part in ("data", "idx"):
            connection.exec_driver_sql(f"DELETE FROM compactor_trigrams_{part}")  # noqa: S608

    def matching(self, connection: Connection, session: int, words: Sequence[str]) -> list[ColumnElement[bool]]:
        has_any = or_(*(func.instr(_TEXTS.c.text, word) > 0 for word in words))
        if min(map(len, words)) >= 3 and self._usable(connection):
            c = self._TRIGRAMS.c
            asked = c.compactor_trigrams.op("MATCH")(" OR ".join(map(_phrases, words)))
            # Without the session: SQLite would go through all of it, and look which texts are among those found.
            return [_TEXTS.c.id.in_(select(c.rowid).where(asked, _of_session(c.rowid, session))), has_any]
        return [_TEXTS.c.session == session, has_any]

    def merge(self, connection: Connection, *, begin: bool) -> bool:
        if not self._usable(connection):
            return False
        # Deleted texts are only marked, until all is written anew. A negative number says: all of it.
        changes = "SELECT total_changes()"
        before = connection.exec_driver_sql(changes).scalar_one()
        pages = -MERGED_AT_ONCE if begin else MERGED_AT_ONCE
        merge = "INSERT INTO compactor_trigrams(compactor_trigrams, rank) VALUES ('merge', ?)"
        connection.exec_driver_sql(merge, (pages,))
        return int(connection.exec_driver_sql(changes).scalar_one()) - int(before) > 1

    def _usable(self, connection: Connection) -> bool:
        return self._there(connection) and self._able(connection)

    def _there(self, connection: Connection) -> bool:
        """Return whether the file has the index, and it is kept."""
        found = "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name = ?"
        return connection.exec_driver_sql(found, (self._TRIGGERS[0],)).first() is not None

    def _able(self, connection: Connection) -> bool:
        """Return whether this SQLite has trigrams, whoever made the file."""
        version = connection.exec_driver_sql("SELECT sqlite_version()").scalar_one()
        if tuple(map(int, version.split(".")[:2])) < _FIRST_WITH_TRIGRAMS:
            return False
        return "fts5" in connection.exec_driver_sql("PRAGMA module_list").scalars().all()


class _PostgresTrigrams:
    """Those of pg_trgm, which comes with PostgreSQL but need not be installed."""

    id = "id BIGINT PRIMARY KEY"
    # Without names, which are of any length, and an index is not.
    tables: Sequence[str] = ("CREATE INDEX compactor_texts_places ON compactor_texts (session, round, number)",)
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
            # The extension is not there, or this user may not: words are found without it.
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT trigrams")
        connection.exec_driver_sql("RELEASE SAVEPOINT trigrams")

    def give_up_unusable(self, connection: Connection) -> None:
        """A server keeps what it has."""

    def matching(self, connection: Connection, session: int, words: Sequence[str]) -> list[ColumnElement[bool]]:  # noqa: ARG002
        has_any = or_(*(_TEXTS.c.text.like(f"%{_literally(word)}%", escape="!") for word in words))
        return [_TEXTS.c.session == session, has_any]

    def merge(self, connection: Connection, *, begin: bool) -> bool:  # noqa: ARG002
        return False  # what was deleted goes with the server's next VACUUM


def _upsert(connection: Connection) -> Callable[[TableClause], Any]:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def _trigrams(connection: Connection) -> _Trigrams:
    return _PostgresTrigrams() if connection.dialect.name == "postgresql" else _SqliteTrigrams()


def _phrases(word: str) -> str:
    """Return what asks FTS5 for texts with all trigrams of *word*, or with the first of them."""
    last = min(len(word) - 2, MAX_TRIGRAMS)
    quoted = ('"' + word[at : at + 3].replace('"', '""') + '"' for at in range(last))
    return f"({' AND '.join(dict.fromkeys(quoted))})"


def _literally(word: str) -> str:
    """Return *word* for LIKE, where it is to be found as it is."""
    return re.sub("[!%_]", r"!\g<0>", word)


# -- as the database holds it ----------------------------------------------------------------------------------------


def _written(text: StoredText) -> tuple[str, str]:
    return escaped(text.send_from), escaped(text.send_to)


def _ids(session: int) -> tuple[int, int]:
    return session * TEXTS_A_SESSION, (session + 1) * TEXTS_A_SESSION - 1


def _of_session(id_: ColumnElement[int], session: int) -> ColumnElement[bool]:
    """Return whether the text of that id is of *session*."""
    return id_.between(*_ids(session))
