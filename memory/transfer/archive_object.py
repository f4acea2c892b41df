"""The format of an archived session: gzipped JSON lines in ASCII, a head, one line per entry, and a digest of all."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import IO, Any, NamedTuple

from ..entries import Entry
from ..errors import NewerVersion, StoreDamaged
from ..stores import Store
from ..stores.tenants import split_name
from .state_dict import LogValidator, read_entry, require_number

#: The ``format`` in the first line of an object, and the newest ``version`` that this code writes and reads.
ARCHIVE_FORMAT = "context-compactor archive"
ARCHIVE_VERSION = 1
#: Maximum uncompressed bytes of a line, which is one entry, and of an object. Larger sessions stay in their store.
MAX_LINE, MAX_TOTAL = 64_000_000, 8_000_000_000
_TORN = (EOFError, zlib.error, gzip.BadGzipFile)
_REMEDY = "nothing was changed: put an undamaged copy of the object back"


class ArchivedSession(NamedTuple):
    """One object of an archive."""

    #: The session's name in a store, with its tenant as prefix. Empty if the object cannot be read.
    session: str
    #: Empty: no tenant.
    tenant: str
    #: Time of the newest entry.
    last_activity: datetime
    #: Number of log entries.
    entries: int
    #: Number of the newest round; see ``Extent.rounds``.
    rounds: int
    #: The object's path within the archive.
    key: str
    #: Id of the last entry.
    last: str
    #: Unique to this object: archiving the session again gives a new id.
    id: str
    #: Why the object cannot be read. Empty: its head is readable.
    fault: str = ""


class NotArchived(Exception):
    """A session cannot be archived. The argument is the reason."""


def make_archive_key(session: str) -> str:
    """Return the key of a session's object: lower case and of a fixed length, for any name."""
    return f"{hash_name(split_name(session)[0])}/{hash_name(session)}.jsonl.gz"


def hash_name(name: str) -> str:
    """Return the hash of a name. That of a tenant's name is the tenant's folder."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def write_object(raw: IO[bytes], head: ArchivedSession, store: Store, renew_lease: Callable[[], None]) -> str:
    """Write a session's object and return its digest. Raises ``NotArchived`` if it could not be restored."""
    digest, size, validator = sha256(), 0, LogValidator()
    with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:

        def write_line(value: Mapping[str, Any]) -> None:
            nonlocal size
            line = json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
            size += len(line)
            if len(line) > MAX_LINE or size > MAX_TOTAL:
                raise NotArchived("too_large")
            digest.update(line)
            packed.write(line)

        facts = {"session": head.session, "tenant": head.tenant, "last_activity": head.last_activity.isoformat()}
        numbers = {"entries": head.entries, "rounds": head.rounds, "last": head.last, "id": head.id}
        write_line({"format": ARCHIVE_FORMAT, "version": ARCHIVE_VERSION} | facts | numbers)
        try:
            for entry in store.read(head.session, 0, head.entries):
                renew_lease()
                # The body's JSON text is kept exactly as stored.
                value = {"id": entry.id, "kind": entry.kind, "number": entry.number, "round": entry.round}
                value |= {"created_at": entry.created_at.isoformat(), "version": entry.version, "body": entry.body}
                validator.add(parse_entry(value))
                write_line(value)
        except (StoreDamaged, NewerVersion) as error:
            raise NotArchived("unreadable") from error
        if validator.number != head.entries:
            raise NotArchived("gone")
        sealed = digest.hexdigest()
        write_line({"sha256": sealed})
    return sealed


def parse_entry(value: Mapping[str, Any]) -> Entry:
    """Return the entry in a line's *value*. Raises ``StoreDamaged`` if there is none."""
    where, body = f"entry {value.get('number')!r}"[:40], value.get("body")
    try:
        if not isinstance(body, str) or not body.isascii():
            raise ValueError("not a stored body")
        entry = read_entry({**value, "body": json.loads(body)}, where)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"{where} has a body that cannot be read; {_REMEDY}") from error
    entry._body = body
    return entry


class ObjectReader:
    """Reads an object line by line. The limits on lines and objects keep a gzip bomb from filling memory or disk.

    Raises ``StoreDamaged`` if the object is cut off, damaged or too large, and ``NewerVersion`` for a newer version.
    """

    #: Set when all entries have been read and match the archived digest.
    digest = ""

    def __init__(self, raw: IO[bytes], key: str) -> None:
        self._packed = gzip.GzipFile(fileobj=raw)
        self._key, self._sum, self._size = key, sha256(), 0
        first = self._read_line()
        if first.get("format") != ARCHIVE_FORMAT:
            raise self._make_error("is not an archived session")
        if require_number(first, "version", key) > ARCHIVE_VERSION:
            raise NewerVersion(
                f"{key} was written by a newer version of context-compactor; nothing was changed: upgrade to read it"
            )
        try:
            session, last, id_ = first["session"], first["last"], first["id"]
            at = datetime.fromisoformat(first["last_activity"]).astimezone(UTC)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._make_error("has an incomplete or invalid head") from error
        entries, rounds = (require_number(first, name, key) for name in ("entries", "rounds"))
        texts = isinstance(session, str) and isinstance(last, str) and isinstance(id_, str)
        if not texts or make_archive_key(session) != key:
            raise self._make_error("holds a session that does not belong to this key")
        self.head = ArchivedSession(session, split_name(session)[0], at, entries, rounds, key, last, id_)

    def read_entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries as plain values. Raises at the end if the digest does not match."""
        value: dict[str, Any] = {}
        for _ in range(self.head.entries):
            value = self._read_line()
            yield value
        self.digest = self._sum.hexdigest()
        if value.get("id") != self.head.last or self._read_line().get("sha256") != self.digest or self._unpack(1):
            raise self._make_error("does not match its digest")

    def _read_line(self) -> dict[str, Any]:
        line = self._unpack(MAX_LINE + 1)
        self._size += len(line)
        if len(line) > MAX_LINE or self._size > MAX_TOTAL:
            raise self._make_error(f"is too large: the limits are {MAX_LINE:,} bytes a line and {MAX_TOTAL:,} in all")
        if not line.endswith(b"\n"):
            raise self._make_error("is cut off")
        self._sum.update(line)
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._make_error("has a line that is not JSON") from error
        if not isinstance(value, dict):
            raise self._make_error("has a line that is not a JSON object")
        return value

    def _unpack(self, limit: int) -> bytes:
        try:
            return self._packed.readline(limit)
        except _TORN as error:
            raise self._make_error("is cut off or damaged") from error

    def _make_error(self, what: str) -> StoreDamaged:
        return StoreDamaged(f"{self._key} {what}; {_REMEDY}")
