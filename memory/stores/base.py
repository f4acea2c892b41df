"""What Memory asks of a store: one append-only log of entries per session; and what it can make use of beside that."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable

from ..entries import Entry


@runtime_checkable
class Store(Protocol):
    """One append-only log of entries per session, numbered from 1 without gaps."""

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        """Store *entries* behind number *after*, all or none, and return the last one's number.

        Durable before it returns. Raises ``Conflict`` if the log has grown past *after*, unless it grew by these very
        entries (same ids): then they were stored before, and their number is returned. Also raises it if the entry at
        *after* has another id than the first of *entries* ``follows``, unless that is empty: the session was purged
        since, and begun anew. Who leaves that out lets an outdated Memory write into a new session of the same length.
        """

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Give the entries behind number *after* in order, at most *limit*; none for a session that does not exist."""

    def sessions(self) -> Sequence[str]:
        """Return the names of the sessions that have entries, sorted."""

    def redact(self, session: str, number: int, body: str = "") -> None:
        """Put *body* in the place of one entry's body, so that the old one is no more; id, kind and number stay.

        Without one it becomes an entry of the kind ``redacted`` that says nothing. Raises ``KeyError`` where there is
        no such entry.
        """

    def purge(self, session: str) -> None:
        """Erase a session, entries and all; one that does not exist is no error.

        ``retention.delete_files`` first: what the session has in files beside the store goes with it.
        """

    def close(self) -> None:
        """Let go of what the store holds; using it afterwards is an error."""


@runtime_checkable
class ErasingStore(Store, Protocol):
    """A store that erases several entries in the time that one takes."""

    def redact_all(self, session: str, bodies: Mapping[int, str]) -> None:
        """Do what ``redact`` does for each number in *bodies*, all or none."""


class Extent(NamedTuple):
    """How far a session's log reaches."""

    #: Of the last entry.
    number: int
    created_at: datetime
    #: The number of the round that was opened last, as its entry says; 0 where it does not, or there is none.
    rounds: int


@runtime_checkable
class MeasuredStore(Store, Protocol):
    """A store that says how far its logs reach without reading them."""

    def extent(self, session: str) -> Extent | None:
        """Return how far one session reaches; None where there is none of that name."""

    def extents(self) -> Mapping[str, Extent]:
        """Return that of all sessions, by their names."""


class Checkpoint(NamedTuple):
    """What a Memory was after one entry, so that nobody need read the log before it to know. It holds no texts."""

    #: Of the last entry that it takes into account.
    number: int
    #: ASCII-escaped JSON.
    body: str


@runtime_checkable
class IndexedStore(Store, Protocol):
    """A store from which part of a log can be read: a Memory on it keeps no history, and opens without reading it.

    It files each entry under ``entry.round``, and "round opened" under the round's id too.
    """

    def read_rounds(self, session: str, first: int, last: int) -> Iterator[Entry]:
        """Give all entries of the rounds *first* to *last*, both inclusive, in the order of the log."""

    def round_number(self, session: str, round_id: str) -> int:
        """Return the number of a round; 0 where there is none of that id."""

    def read_kinds(self, session: str, kinds: Collection[str]) -> Iterator[Entry]:
        """Give all entries of these kinds, in the order of the log."""

    def checkpoint(self, session: str) -> Checkpoint | None:
        """Return the session's newest checkpoint; None where there is none."""

    def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        """Keep *checkpoint* in place of the one before; ignored where that is newer, or the session is gone."""


class StoredText(NamedTuple):
    """A text that a search may find, and where it stands."""

    round: int
    #: Of the post in the round; 0 is the user's query.
    number: int
    #: Both empty: every role sees it.
    send_from: str
    send_to: str
    #: Folded, as the words that are searched are; it need not be the original to the letter.
    text: str


class FoundText(NamedTuple):
    """A text in which a word was found, without the text: there can be as many as a session has."""

    round: int
    #: Of the post in the round; 0 is the user's query.
    number: int
    #: Of the stored text, in characters.
    length: int
    #: How often each word stands in it, as ``str.count`` counts; one of them at least does.
    counts: tuple[int, ...]


class FoundTexts(NamedTuple):
    """Where words were found, and how many texts there are in all, for weighing the words."""

    texts: Sequence[FoundText]
    #: Texts that the role sees, in rounds that have not failed, and their length in characters.
    total: int
    characters: int


@runtime_checkable
class SearchableStore(Store, Protocol):
    """A store that finds words in the texts of a session's rounds. Memory hands it the texts of settled rounds."""

    def texts_reach(self, session: str) -> int:
        """Return the number of the last round whose texts were handed over, it and all before; 0: none yet."""

    def keep_texts(self, session: str, first: int, last: int, texts: Sequence[StoredText]) -> None:
        """Take over the *texts* of the rounds *first* to *last*, in place of what is kept of them."""

    def find_texts(self, session: str, words: Sequence[str], role: str) -> FoundTexts:
        """Return which texts have any of *words* in them, also inside of a longer one, as *role* sees them; the empty
        role sees all. Words are folded, none is empty, and they are taken literally whatever is in them."""


@runtime_checkable
class LeasingStore(Store, Protocol):
    """A store by which one process tells others that it is at some work, so that it is not done and paid for twice.

    By the clock of the database. It saves money: correctness never rests on it.
    """

    def lease(self, session: str, name: str, holder: str, seconds: float, *, take_over: bool = False) -> float:
        """Take or renew the lease of that *name* for *seconds*, and return 0.0; where another holder has it, the
        seconds until it expires, unless it is to be taken over."""

    def release(self, session: str, name: str, holder: str) -> None:
        """Give the lease back; one that is not *holder*'s is left alone."""


# --- names and texts as a database holds them: they may have characters that it cannot, and names be of any length


# Found now: who looks for it first imports it, and a child that is forked at that moment would wait for it for ever.
codecs.lookup("unicode_escape")

#: What PostgreSQL cannot hold, or UTF-8 not at all.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def escaped(name: str) -> str:
    """Return *name* in ASCII: NUL and halves of characters are legal in names, and not in a database. No two names
    become one."""
    return name.encode("unicode_escape").decode("ascii")


def unescaped(name: str) -> str:
    return name.encode("ascii").decode("unicode_escape")


def key_of(name: str) -> str:
    """Return what stands for *name* in an index: the name itself unless it is long. No two names have the same."""
    ascii_ = escaped(name)
    if len(ascii_) <= 100:
        return ascii_
    # With its 129 characters it is none of those; and their beginning tells people what it is.
    return f"{ascii_[:64]}:{hashlib.sha256(ascii_.encode()).hexdigest()}"


def storable(text: str) -> str:
    """Return *text* with what not every database can hold replaced, each character in its place."""
    return _UNSTORABLE.sub("\ufffd", text)
