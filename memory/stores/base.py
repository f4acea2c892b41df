"""The store: one append-only log of entries per session, and optional abilities with working defaults."""

from __future__ import annotations

import codecs
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

from ..arguments import ConfigError, check_whole_number, require
from ..entries import Entry, RoundOpened, list_kinds
from ..errors import StoreError
from ..patterns import compile_later
from ..rounds import Round
from .limiting import LimitRows
from .tenants import split_name

#: Returns what is to be done in the transaction that appends the entries, with its connection; None: nothing.
Joiner = Callable[[Sequence[Entry]], Callable[[Any], object] | None]

Result = TypeVar("Result")


class Extent(NamedTuple):
    """The length of a session's log."""

    #: Number of the last entry.
    number: int
    created_at: datetime
    #: Number of the newest round, read from its entry; 0 if there is none or the entry does not give it.
    rounds: int


class SessionRow(NamedTuple):
    """One session in a list."""

    #: The name in the store; it begins with the tenant's.
    name: str
    #: Empty: none.
    tenant: str
    #: When its newest entry was made, in UTC and without seconds.
    last_activity: datetime
    #: The length of the log.
    entries: int
    #: Number of the newest round; see ``Extent.rounds``.
    rounds: int

    @property
    def cursor(self) -> str:
        """The place of this row in a list ordered by activity, for ``list_sessions(after=)``."""
        return f"{round_to_minute(self.last_activity)} {self.name}"


#: How ``list_sessions`` sorts: by name, as its key in a store; or the most recently used first, then by name.
Order = Literal["name", "activity"]


class DueSession(NamedTuple):
    """A session that somebody is to look at: whether a compaction is due."""

    #: The name in the store; it begins with the tenant's.
    name: str
    #: The time from which on that is to be done, in UTC and without seconds.
    due_at: datetime


class Checkpoint(NamedTuple):
    """The state of a Memory after one entry; opening from it skips the earlier log. It holds no texts."""

    #: Number of the last included entry.
    number: int
    #: ASCII-escaped JSON.
    body: str


class StoredText(NamedTuple):
    """A searchable text and its place."""

    round: int
    #: Number of the post in its round; 0 is the user's query.
    number: int
    #: Sender and receiver; if both are empty, every role sees the text.
    send_from: str
    send_to: str
    #: Folded (normalized) like the words of a query; it may differ from the original.
    text: str


class FoundText(NamedTuple):
    """A match, without its text: a search may match every text of a session."""

    round: int
    #: Number of the post in its round; 0 is the user's query.
    number: int
    #: Length of the stored text in characters.
    length: int
    #: Occurrences of each word, as ``str.count`` counts; at least one is positive.
    counts: tuple[int, ...]


class FoundTexts(NamedTuple):
    """All matches, and the totals that rank them."""

    texts: Sequence[FoundText]
    #: Number and total length of the texts that the role sees, without those of failed rounds.
    total: int
    characters: int


#: The optional abilities of a store; a store has one if it overrides all its methods.
CAPABILITIES: Mapping[str, tuple[str, ...]] = {
    # Old rounds stay in the store: Memory holds no history and opens without reading it.
    "indexed": ("read_rounds", "find_round_number", "read_kinds", "get_checkpoint", "save_checkpoint"),
    # The store finds words; Memory hands it the texts of closed rounds.
    "searchable": ("get_last_indexed_round", "save_texts", "find_texts"),
    # Processes see each other's claims on work.
    "leasing": ("lease", "release"),
    # Several entries are erased in one transaction.
    "erasing": ("redact_all",),
    # The store knows the length of a log without reading it.
    "measured": ("get_extent", "list_extents"),
    # A process hears of what another publishes.
    "notifying": ("listen",),
    # An append marks its session in its own transaction, until somebody has looked whether a compaction is due.
    "marking": ("list_due", "clear_due"),
    # Processes share limits on calls and spend.
    "limiting": ("change_limits",),
}


def _find_capabilities(has: Callable[[str], bool]) -> frozenset[str]:
    return frozenset(name for name, methods in CAPABILITIES.items() if all(map(has, methods)))


#: Clocks of hosts may differ by less; an activity so far ahead of the store's clock was written by a wrong one.
MAX_SKEW = timedelta(hours=1)
#: The error of a write in a signal's handler that interrupted a write of the same thread.
INTERRUPTED = (
    "this thread is in the middle of writing to {}, as where a signal's handler writes; nothing was written:"
    " set a flag in the handler, and write when it has returned"
)


class Store(ABC):
    """One append-only log of entries per session, numbered from 1 without gaps.

    A store implements the six abstract methods; any number of threads call them at once. The other methods work on top
    of them; a store that can do better overrides all methods of one ability in ``CAPABILITIES``.
    """

    #: Keys of ``CAPABILITIES``; derived from the overridden methods.
    capabilities: frozenset[str] = frozenset()
    #: Whether the logs are in this process's memory, so that a Memory keeps no copy: it asks ``read_round``.
    is_resident = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.capabilities = _find_capabilities(lambda method: getattr(cls, method) is not getattr(Store, method))

    @abstractmethod
    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        """Store *entries* after entry number *after*, all or none and durably, and return the number of the last one.

        Entries come with the number 0: store copies numbered ``after + 1`` and so on. Without entries, return *after*.
        Raises ``Conflict`` if the log has grown past *after*; if it grew by these very entries (same ids), the append
        is a repetition and returns their number. Also raises ``Conflict`` if the id of entry *after* differs from
        ``entries[0].follows`` and that is not empty: the session was purged and started again. Without this check an
        outdated Memory writes into a new session of the same length.
        """

    @abstractmethod
    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Yield the entries after number *after* in order, at most *limit*; none for an unknown session."""

    @abstractmethod
    def sessions(self) -> Sequence[str]:
        """Return the names of all sessions with entries, sorted."""

    @abstractmethod
    def redact(self, session: str, number: int, body: str = "") -> None:
        """Replace the body of one entry and destroy the old one; id, kind and number stay.

        Without a *body* it becomes an empty entry of the kind ``redacted``. Raises ``KeyError`` for an unknown number.
        """

    @abstractmethod
    def purge(self, session: str) -> None:
        """Erase a session with all its entries; an unknown one is no error.

        Call ``delete_files`` first: it removes the session's files outside the store.
        """

    def evict(self, session: str, number: int, id: str, *, lease_name: str = "", holder: str = "") -> bool:  # noqa: A002, ARG002  (the field's name in the log)
        """Erase a session whose log ends with entry *number* of that *id*, and return whether it did. Its files stay:
        the log is elsewhere, in an archive.

        In one transaction: whoever appends meanwhile either keeps the session, or writes to none. With a *lease_name*,
        only if *holder* has that lease, expired or not, and still has it when the session is erased: else another
        process may have archived the session, or restored it since. An empty holder has none. If the outcome is not
        known, raise: where this returns False, the caller deletes what it has archived. This default raises
        ``StoreError``: a store without it takes part in no archive.
        """
        raise StoreError(
            "this store cannot let a session go without losing what is written to it meanwhile: implement evict(), or"
            " export the session and purge it"
        )

    @abstractmethod
    def close(self) -> None:
        """Release all resources; using the store afterwards is an error."""

    def redact_all(self, session: str, bodies: Mapping[int, str]) -> None:
        """Redact each entry in *bodies*. A store with this ability redacts all or none."""
        for number, body in bodies.items():
            self.redact(session, number, body)

    def get_extent(self, session: str) -> Extent | None:
        """Return the length of one session; None for an unknown one."""
        last, rounds = None, 0
        for last in self.read(session):
            rounds = last.round if last.kind == "round opened" else rounds
        return None if last is None else Extent(last.number, last.created_at, rounds)

    def list_extents(self) -> Mapping[str, Extent]:
        """Return the length of every session by name."""
        return {session: extent for session in self.sessions() if (extent := self.get_extent(session)) is not None}

    def list_sessions(
        self, tenant: str | None = None, *, after: str | None = None, limit: int = 100, order: Order = "name"
    ) -> Sequence[SessionRow]:
        """Return at most *limit* sessions, of one *tenant* ("": those without) or of all (None).

        Pages: *after* is the last row's ``name``, or its ``cursor`` if ordered by activity. A session that is used
        meanwhile moves to the front there, and is not on later pages. Raises ``ConfigError`` for a wrong argument.
        """
        minute, key = find_page_start(after, limit, order)

        def make_rows(extents: Iterable[tuple[str, Extent | None]]) -> Iterator[SessionRow]:
            for name, one in extents:
                if one is not None:
                    used = parse_minute(round_to_minute(one.created_at))
                    yield SessionRow(name, split_name(name)[0], used, one.number, one.rounds)

        names = sorted((name for name in self.sessions() if tenant in (None, split_name(name)[0])), key=make_key)
        if order == "name":
            behind = (name for name in names if key is None or make_key(name) > key)
            return [*islice(make_rows((name, self.get_extent(name)) for name in behind), limit)]
        extents = self.list_extents()
        found = sorted(
            make_rows((name, extents.get(name)) for name in names), key=lambda one: one.last_activity, reverse=True
        )
        if key is not None:
            found = [
                one for one in found if (at := one.cursor[:16]) < minute or (at == minute and make_key(one.name) > key)
            ]
        return found[:limit]

    def listen(self, session: str, listener: Callable[[], object]) -> Callable[[], None]:  # noqa: ARG002
        """Call *listener*, which must be quick, when something was published in *session*, on any thread and perhaps
        without need; return a function that ends that."""
        return lambda: None

    def list_due(self, now: datetime, limit: int = 1_000) -> Sequence[DueSession]:  # noqa: ARG002
        """Return at most *limit* sessions with a mark of *now* or before, the earliest first; none if this store marks
        none. An append marks its session with the time two minutes from then, in its own transaction."""
        return []

    def clear_due(self, marked: Sequence[DueSession]) -> int:  # noqa: ARG002
        """Take their marks from the sessions *marked*, and return how many had these: others were written to since."""
        return 0

    def is_in(self, database: object) -> bool:  # noqa: ARG002
        """Return whether this store is in *database*, and ``append_with`` can do other work there."""
        return False

    def append_with(
        self,
        session: str,
        entries: Sequence[Entry],
        after: int,
        work: Sequence[Callable[[Any], object]],  # noqa: ARG002
    ) -> int:
        """Append, and call each of *work* with the driver's connection, in the transaction of the append and after its
        entries. They may be called again if the connection breaks. Only a store that ``is_in`` a database calls them.
        """
        return self.append(session, entries, after)

    def read_rounds(self, session: str, first: int, last: int) -> Iterator[Entry]:
        """Yield all entries whose ``round`` is one of *first* to *last*, both inclusive, in the order of the log."""
        return (entry for entry in self.read(session) if first <= entry.round <= last)

    def read_round(self, session: str, number: int, first: int, last: int) -> Round | None:  # noqa: ARG002
        """Return the round of that *number*, which the entries *first* to *last* opened and closed; None if entries are
        to be read. A Memory asks no store but a resident one."""
        return None

    def find_round_number(self, session: str, round_id: str) -> int:
        """Return the number of a round; 0 for an unknown id."""
        for number, entry in enumerate(self.read_kinds(session, list_kinds(RoundOpened)), 1):
            if isinstance(record := entry.record, RoundOpened) and record.round_id == round_id:
                return number
        return 0

    def read_kinds(self, session: str, kinds: Collection[str]) -> Iterator[Entry]:
        """Yield all entries of these kinds in the order of the log."""
        return (entry for entry in self.read(session) if entry.kind in kinds)

    def get_checkpoint(self, session: str) -> Checkpoint | None:  # noqa: ARG002
        """Return the newest checkpoint of a session, or None."""
        return None

    def save_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:  # noqa: B027
        """Replace the checkpoint of a session; ignored if the stored one is newer or the session is gone."""

    def get_last_indexed_round(self, session: str) -> int:  # noqa: ARG002
        """Return the number of the last indexed round; all rounds before it are indexed too. 0: none."""
        return 0

    def save_texts(self, session: str, first: int, last: int, texts: Sequence[StoredText]) -> None:  # noqa: B027
        """Index *texts* as all texts of the rounds *first* to *last*, replacing older ones."""

    def find_texts(self, session: str, words: Sequence[str], role: str) -> FoundTexts:  # noqa: ARG002
        """Return the texts that contain any of *words* and are visible to *role*; the empty role sees all.

        A word also matches inside a longer word. Words are folded and not empty; no character has a special meaning.
        """
        return FoundTexts((), 0, 0)

    def lease(self, session: str, name: str, holder: str, seconds: float, *, take_over: bool = False) -> float:  # noqa: ARG002
        """Take or renew a lease for *seconds* and return 0.0. It saves money; correctness does not depend on it.

        If another *holder* has it, return the seconds until it expires; with *take_over*, take it anyway.
        """
        return 0.0

    def release(self, session: str, name: str, holder: str) -> None:  # noqa: B027
        """Release a lease; ignored if *holder* does not have it."""

    def change_limits(self, work: Callable[[LimitRows], Result]) -> Result:  # noqa: ARG002
        """Return the result of *work* on the rows of shared limits, one transaction; nothing happened if it raises.

        *work* calls nobody, and may be called again if the connection breaks. Raises ``StoreError`` for a store without
        this ability.
        """
        raise StoreError(f"{type(self).__name__} cannot share limits; open another store")


class AdaptedStore(Store):
    """A host's object that has the methods of ``Store`` but does not subclass it. They are found when it is opened."""

    append: Any = None
    read: Any = None
    sessions: Any = None
    redact: Any = None
    purge: Any = None
    close: Any = None

    def __init__(self, store: Any) -> None:
        self._store = store
        self.capabilities = _find_capabilities(lambda method: callable(getattr(store, method, None)))
        for methods in (Store.__abstractmethods__, *map(CAPABILITIES.__getitem__, self.capabilities)):
            vars(self).update({method: getattr(store, method) for method in methods})
        if callable(evict := getattr(store, "evict", None)):
            vars(self)["evict"] = evict

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AdaptedStore) and other._store is self._store

    def __hash__(self) -> int:
        return hash(id(self._store))


def adapt_store(store: object) -> Store:
    """Return *store* as a ``Store``. Raises ``TypeError`` if it lacks a store's methods."""
    if isinstance(store, Store):
        return store
    require("store", store, tuple(sorted(Store.__abstractmethods__)), "what open_store(url) gives")
    return AdaptedStore(store)


_MINUTE = compile_later(r"\d{4}-\d\d-\d\dT\d\d:\d\d", re.ASCII)
# The first lookup imports the codec; a child forked during that import would wait for its lock forever.
codecs.lookup("unicode_escape")

#: Characters that PostgreSQL (NUL) or UTF-8 (lone surrogates) cannot hold.
_UNSTORABLE = compile_later("[\0\ud800-\udfff]")


def escape(name: str) -> str:
    """Return *name* as reversible ASCII: names may contain NUL and lone surrogates, which databases cannot store."""
    if name.isascii() and name.isprintable() and "\\" not in name:
        return name
    return name.encode("unicode_escape").decode("ascii")


def unescape(name: str) -> str:
    return name if "\\" not in name and name.isascii() else name.encode("ascii").decode("unicode_escape")


def make_key(name: str) -> str:
    """Return a unique index key for *name*: the escaped name itself unless it is long."""
    name = escape(name)
    # 64 + ":" + 64 hex = 129 characters: never equal to a short key, and still recognisable.
    return name if len(name) <= 100 else f"{name[:64]}:{hashlib.sha256(name.encode()).hexdigest()}"


def make_storable(text: str) -> str:
    """Return *text* with each character that a database may not be able to store replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def format_stamp(at: datetime) -> str:
    """Return *at* as the databases have it: in UTC, unless it has no zone."""
    return (at.astimezone(UTC) if at.tzinfo else at).isoformat()


def round_to_minute(at: datetime) -> str:
    return format_stamp(at)[:16]


def parse_minute(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def find_page_start(after: str | None, limit: int, order: Order) -> tuple[str, str | None]:
    """Return minute and key of the row before a page of ``list_sessions``; the key is None for the first page.

    Raises ``ConfigError`` for a wrong argument.
    """
    check_whole_number("limit", limit, 1)
    if order not in ("name", "activity"):
        raise ConfigError(("order", "must be name or activity"))
    if after is None or order == "name":
        return "", None if after is None else make_key(after)
    minute, separator, name = after.partition(" ")
    if not (separator and _MINUTE.fullmatch(minute)):
        raise ConfigError(("after", "must be the cursor of a row, in a list ordered by activity"))
    return minute, make_key(name)
