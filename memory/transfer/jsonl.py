"""A session as a file of JSON lines in ASCII: a head, then one line per entry."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple, TextIO

from ..entries import Entry
from ..errors import StoreDamaged, StoreError
from ..stores import Store
from ..stores.base import adapt_store
from .state_dict import (
    REMEDY,
    STATE_VERSION,
    LogValidator,
    append_session,
    check_head,
    read_entry,
    refuse_existing,
    require_number,
    write_value,
)

#: The ``format`` in the first line.
JSONL_FORMAT = "context-compactor session"

#: Bytes of an import that are held in memory; the rest waits in a temporary file.
MAX_IN_MEMORY = 16_000_000


class Imported(NamedTuple):
    session: str
    #: Number of entries in its log.
    entries: int


def export_session(store: Store, session: str, stream: TextIO) -> int:
    """Write the present log of *session* to *stream* in ASCII, and return the number of entries.

    Holds one entry at a time. Raises ``StoreError`` if there is no such session or it is purged meanwhile; an import
    refuses the truncated file.
    """
    store = adapt_store(store)
    extent = store.get_extent(session)
    if extent is None:
        raise StoreError(f"there is no session {session[:40]!r} in this store; its sessions are those it lists")
    head = {"format": JSONL_FORMAT, "version": STATE_VERSION, "session": session, "entries": extent.number}
    stream.write(_write_line(head))
    count = 0
    for entry in store.read(session, 0, extent.number):
        stream.write(_write_line(write_value(entry)))
        count += 1
    if count != extent.number:
        raise StoreError(f"session {session[:40]!r} was purged while it was exported; what was written is not whole")
    return count


def import_session(store: Store, stream: Iterable[str], session: str | None = None) -> Imported:
    """Write the session in *stream* to *store*, all or nothing, and return its name and length.

    *stream* is a text file or any lines. *session* replaces the session's own name. Every line is checked before the
    first is written; meanwhile the entries wait in a temporary file, and the store takes them in one append. Raises
    ``StoreDamaged``, with the line's number, for a truncated or damaged file or another format, ``NewerVersion`` for a
    file of a newer version, and ``StoreError`` if the store has the session already.
    """
    with read_session(stream, session, into=store) as (name, entries):
        append_session(store, name, entries)
        return Imported(name, len(entries))


@contextmanager
def read_session(
    stream: Iterable[str], session: str | None = None, *, into: Store | None = None
) -> Iterator[tuple[str, Sequence[Entry]]]:
    """Yield the name and the checked entries of the session in *stream*, for callers without a store.

    If *into* is a store that has the session already, raises after the first line.
    """
    lines = _number_lines(stream)
    line, text = next(lines, (1, ""))
    head = _parse(text, f"line {line}")
    if not isinstance(head, Mapping):
        raise StoreDamaged(f"line 1 is not the head of a {JSONL_FORMAT}; nothing was stored, take an exported file")
    own, count = check_head(head, "line 1", JSONL_FORMAT), require_number(head, "entries", "line 1")
    name = own if session is None else session
    if into is not None:
        refuse_existing(into, name)
    with SpooledTemporaryFile(max_size=MAX_IN_MEMORY) as file:
        entries, validator = SpooledEntries(file), LogValidator()
        for line, text in lines:
            if len(entries) == count:
                raise StoreDamaged(f"line {line} is one more than line 1 says there are; {REMEDY}")
            entry = read_entry(_parse(text, f"line {line}"), f"line {line}")
            try:
                validator.add(entry)
            except StoreDamaged as error:
                raise StoreDamaged(f"line {line}: {error}") from error
            entries.add(entry)
        if len(entries) < count:
            raise StoreDamaged(
                f"the file is cut off: line {line} ends it after {len(entries)} of {count} entries; {REMEDY}"
            )
        yield name, entries


def _number_lines(stream: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of *stream* with their numbers, without blank ones."""
    number = 0
    try:
        for number, text in enumerate(stream, 1):
            if text.strip():
                yield number, text
    except UnicodeDecodeError as error:
        raise StoreDamaged(f"near line {number + 1} the file is no text; nothing was stored, take another") from error


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"{where} is not whole, or no JSON; nothing was stored, export the session again") from error


def _write_line(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


class SpooledEntries(Sequence[Entry]):
    """Entries in a file; each access reads one."""

    def __init__(self, file: SpooledTemporaryFile[bytes]) -> None:
        self._file = file
        self._offsets = array("Q")

    def add(self, entry: Entry) -> None:
        self._offsets.append(self._file.tell())
        numbers = {"number": entry.number, "round": entry.round, "version": entry.version}
        fields = [entry.kind, entry.body, entry.id, entry.created_at.isoformat(), numbers]
        self._file.write(_write_line(fields).encode("ascii"))

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        self._file.seek(self._offsets[index])
        kind, body, id_, stamp, numbers = json.loads(self._file.readline())
        return Entry(kind, body=body, id=id_, created_at=datetime.fromisoformat(stamp), **numbers)
