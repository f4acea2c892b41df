"""A session as a file of lines: one that says what follows, then one an entry, each of them JSON in ASCII."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple, TextIO, overload

from ..entries import Entry
from ..errors import StoreDamaged, StoreError
from ..stores import Store
from ..stores.base import adapt_store
from .state_dict import STATE_VERSION, append_new, check_head, entry_of, number_of, refuse_present, value_of
from .validate import REMEDY, Fitting

#: What the first line says that the file is.
JSONL_FORMAT = "context-compactor session"

#: Up to so many bytes are kept in memory while they are checked, and more in a temporary file.
_IN_MEMORY = 16_000_000


class Imported(NamedTuple):
    """What an import made."""

    session: str
    #: How many there are in its log.
    entries: int


def export_session(store: Store, session: str, stream: TextIO) -> int:
    """Write *session* to *stream*, as long as its log is now, and return how many entries that is.

    Holds one entry at a time. What is written is ASCII. Raises ``StoreError`` where there is no such session, or it
    is purged meanwhile: the file that is left is refused when it is read.
    """
    store = adapt_store(store)
    extent = store.extent(session)
    if extent is None:
        raise StoreError(f"there is no session {session[:40]!r} in this store; its sessions are those it lists")
    head = {"format": JSONL_FORMAT, "version": STATE_VERSION, "session": session, "entries": extent.number}
    stream.write(_line(head))
    written = 0
    for entry in store.read(session, 0, extent.number):
        stream.write(_line(value_of(entry)))
        written += 1
    if written != extent.number:
        raise StoreError(f"session {session[:40]!r} was purged while it was exported; what was written is not whole")
    return written


def import_session(store: Store, stream: Iterable[str], session: str | None = None) -> Imported:
    """Write the session that *stream* holds to *store*, all or nothing, and return its name and length.

    *stream* is a text file, or any lines. *session* is the name to give it, if not its own. Every line is checked
    before the first is written, and entries wait in a temporary file until all are: only the store may hold them all,
    for the one append that writes them. Raises ``StoreDamaged`` for a file that is cut off, damaged or of another
    format, with the number of the line, ``NewerVersion`` for one that a newer version wrote, and ``StoreError`` where
    the store has a session of that name already.
    """
    with whole_session(stream, session, into=store) as (name, entries):
        append_new(store, name, entries)
        return Imported(name, len(entries))


@contextmanager
def whole_session(
    stream: Iterable[str], session: str | None = None, *, into: Store | None = None
) -> Iterator[tuple[str, Sequence[Entry]]]:
    """Give the name and the entries of the session that *stream* holds, once every line of it is checked.

    As ``import_session`` reads it, for whoever has no store before; where *into* is one that has that session, the
    lines behind the first are not read.
    """
    lines = _numbered(stream)
    line, text = next(lines, (1, ""))
    head = _parsed(text, f"line {line}")
    if not isinstance(head, Mapping):
        raise StoreDamaged(f"line 1 is not the head of a {JSONL_FORMAT}; nothing was stored, take an exported file")
    own, count = check_head(head, "line 1", JSONL_FORMAT), number_of(head, "entries", "line 1")
    name = own if session is None else session
    if into is not None:
        refuse_present(into, name)
    with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
        kept, fitting = _KeptAside(file), Fitting()
        for line, text in lines:
            if len(kept) == count:
                raise StoreDamaged(f"line {line} is one more than line 1 says there are; {REMEDY}")
            entry = entry_of(_parsed(text, f"line {line}"), f"line {line}")
            try:
                fitting.take(entry)
            except StoreDamaged as error:
                raise StoreDamaged(f"line {line}: {error}") from error
            kept.add(entry)
        if len(kept) < count:
            raise StoreDamaged(
                f"the file is cut off: it ends at line {line}, after {len(kept)} of {count} entries; nothing was"
                f" stored, export the session again"
            )
        yield name, kept


def _numbered(stream: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Give the lines of *stream* with their numbers; blank ones are left out."""
    number, lines = 0, iter(stream)
    while True:
        number += 1
        try:
            text = next(lines)
        except StopIteration:
            return
        except UnicodeDecodeError as error:
            raise StoreDamaged(f"near line {number} the file is no text; nothing was stored, take another") from error
        if text.strip():
            yield number, text


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"{where} is not whole, or no JSON; nothing was stored, export the session again") from error


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


class _KeptAside(Sequence[Entry]):
    """Entries in a file, each of them made again when it is asked for."""

    def __init__(self, file: SpooledTemporaryFile[bytes]) -> None:
        self._file = file
        self._places = array("Q")

    def add(self, entry: Entry) -> None:
        self._places.append(self._file.tell())
        fields = [entry.kind, entry.body, entry.id, entry.created_at.isoformat()]
        self._file.write(_line([*fields, entry.number, entry.round, entry.version]).encode("ascii"))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        self._file.seek(self._places[index])
        kind, body, id_, made, number, round_, version = json.loads(self._file.readline())
        made_at = datetime.fromisoformat(made)
        return Entry(kind, body=body, id=id_, created_at=made_at, number=number, round=round_, version=version)
