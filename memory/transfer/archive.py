"""Archives: move closed sessions to compressed objects in a folder or in object storage, and back.

A session is in the store or in the archive; after a crash it may be in both, but never in neither.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from tempfile import SpooledTemporaryFile
from typing import Literal, NamedTuple

from ..entries import Entry, EventRecorded, PostRedacted, list_kinds
from ..errors import ArchiveBusy, NewerVersion, StoreBusy, StoreDamaged, StoreError
from ..log.session_log import Log
from ..rounds import make_id, utc_now
from ..stores import Store, list_expired
from ..stores.base import adapt_store
from ..stores.retention import delete_named_files
from ..stores.tenants import require_tenant, split_name
from .archive_object import (
    ArchivedSession,
    NotArchived,
    ObjectReader,
    hash_name,
    make_archive_key,
    parse_entry,
    write_object,
)
from .archive_storage import Storage, convert_errors, open_storage
from .jsonl import MAX_IN_MEMORY, Imported, SpooledEntries
from .state_dict import LogValidator, append_session, refuse_existing

__all__ = [
    "ArchiveResult",
    "ArchivedSession",
    "PurgeResult",
    "SkipReason",
    "archive_sessions",
    "check_archive",
    "expire_archive",
    "find_archived",
    "list_archive",
    "purge_archived",
    "purge_archived_tenant",
    "purge_session",
    "restore_session",
]

Where = str | os.PathLike[str]

#: The lease that keeps two processes from archiving, restoring or erasing the same session at once.
_LEASE, _LEASE_SECONDS, _RENEW_AFTER = "\x1farchive", 120.0, 30.0
_PART = ".part"
SkipReason = Literal[
    "active",  # somebody wrote to it in the meantime
    "busy",  # another process is archiving, restoring or erasing it, or the store is locked
    "gone",  # it was purged, or archived by another process
    "name_taken",  # the archive has another session of this name, or an unreadable object under its key
    "too_large",  # an entry has more than 64 MB, or the session more than 8 GB
    "unreadable",  # the log is damaged or of a newer version, so it could not be restored
]


class ArchiveResult(NamedTuple):
    #: Sessions that were moved to the archive.
    archived: list[str]
    #: Sessions that were not moved, and the reason for each.
    skipped: dict[str, SkipReason]


class PurgeResult(NamedTuple):
    #: Whether the store had the session, and whether the archive had it.
    stored: bool
    archived: bool


def archive_sessions(
    store: Store,
    where: Where,
    older_than: timedelta,
    *,
    now: datetime | None = None,
    tenant: str | None = None,
    sessions: Iterable[str] | None = None,
) -> ArchiveResult:
    """Move sessions that had no append for longer than *older_than* from *store* to the archive at *where*.

    *where* is a folder, or a URL for fsspec such as ``s3://bucket/chats``. *tenant* ("": sessions without a tenant) and
    *sessions* restrict the selection. Each object is written, read back and renamed to its final key before the session
    leaves the store. The session stays if anybody writes to it in the meantime. Its files outside the store are not
    moved. If the process is killed, nothing is lost: run it again. A Memory that still has such a session open raises
    ``SessionPurged`` when it writes.

    Raises ``StoreError`` if the store or the archive fails; sessions already moved stay archived.
    """
    store, cutoff = adapt_store(store), (utc_now() if now is None else now) - older_than
    wanted = None if sessions is None else set(sessions)
    result = ArchiveResult([], {})
    with convert_errors(where):
        storage = open_storage(where)
        for session in list_expired(store, older_than, now=now, tenant=tenant):
            if wanted is None or session in wanted:
                reason = _archive(store, storage, session, cutoff)
                if reason is None:
                    result.archived.append(session)
                else:
                    result.skipped[session] = reason
    return result


def _archive(store: Store, storage: Storage, session: str, cutoff: datetime) -> SkipReason | None:
    """Move one session to the archive. Return None, or the reason why it was not moved."""
    key = make_archive_key(session)
    try:
        with _hold_lease(store, session) as (holder, renew_lease):
            head = _make_head(store, session, cutoff)
            archived = _read_head(storage, key)
            if archived is not None and not _has_entire_log(store, archived):
                return "name_taken"
            with storage.write(key + _PART) as raw:
                digest = write_object(raw, head, store, renew_lease)
            try:
                with storage.open(key + _PART) as raw:
                    reader = ObjectReader(raw, key)
                    for _ in reader.read_entries():
                        renew_lease()
                    if reader.digest != digest:
                        raise StoreDamaged(f"{key} reads back differently; no session was lost: check the storage")
                renew_lease()
                storage.rename(key + _PART, key)
                is_kept = _read_head(storage, key) == head
            except FileNotFoundError:
                is_kept = False
            except StoreBusy:  # the session may be erased by now
                storage.delete(key + _PART)
                raise
            if not is_kept:  # the archive was expired or purged in between
                return "gone" if store.get_extent(session) is None else "busy"
            renew_lease()
            lease = {"lease_name": _LEASE, "holder": holder} if "leasing" in store.capabilities else {}
            if store.evict(session, head.entries, head.last, **lease):
                return None
            # The store keeps the session, or it was purged, so delete the object: later redactions would not reach it.
            # But if this process slept until its lease expired, another may have archived the session: then the object
            # is the only copy.
            if _read_head(storage, key) == head:
                storage.delete(key)
            return "gone" if store.get_extent(session) is None else "active"
    except StoreBusy:
        return "busy"
    except NotArchived as error:
        reason: SkipReason = error.args[0]
        return reason


def _make_head(store: Store, session: str, cutoff: datetime) -> ArchivedSession:
    """Return the head for the object of *session*. Raises ``NotArchived`` if the session cannot be archived now."""
    try:
        redactions = next(iter(store.read_kinds(session, list_kinds(PostRedacted))), None)
        # Opening the log finishes an interrupted redaction, so that erased text does not get into the archive.
        if redactions is not None and Log(session, store, utc_now).has_unfinished_redactions:
            raise NotArchived("unreadable")
        extent = store.get_extent(session)
        last = None if extent is None else next(store.read(session, extent.number - 1, 1), None)
    except (StoreDamaged, NewerVersion) as error:
        raise NotArchived("unreadable") from error
    if extent is None or last is None:
        raise NotArchived("gone")
    if extent.created_at >= cutoff:
        raise NotArchived("active")
    key, at = make_archive_key(session), extent.created_at
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return ArchivedSession(session, split_name(session)[0], at, extent.number, extent.rounds, key, last.id, make_id())


def _has_entire_log(store: Store, archived: ArchivedSession) -> bool:
    """Return whether *store* still has the entire log of the object *archived*, as after a killed run."""
    last = None if archived.fault else next(store.read(archived.session, archived.entries - 1, 1), None)
    return last is not None and last.id == archived.last


def restore_session(
    store: Store, where: Where, session: str, session_id: str | None = None, *, keep: bool = False
) -> Imported:
    """Move *session* from the archive to *store* with exactly the same log. Return its name and number of entries.

    *session_id* gives it another name. The whole object is checked first and then written in one append. After that the
    object is deleted, unless *keep* is set or the store is in memory. Text that is erased from the session later is
    still in a kept object.

    Raises ``StoreError`` if the archive does not have the session or the store already has one of that name,
    ``StoreDamaged`` for a damaged object, ``NewerVersion`` for an object of a newer version, and ``ArchiveBusy`` while
    another process archives, restores or erases the session.
    """
    store, name, key = adapt_store(store), session if session_id is None else session_id, make_archive_key(session)
    with convert_errors(where), _hold_lease(store, session) as (_, renew_lease):
        storage = open_storage(where)
        refuse_existing(store, name)
        try:
            raw = storage.open(key)
        except FileNotFoundError as error:
            raise StoreError(
                f"there is no session {session[:40]!r} in this archive; `compactor archived` lists those it has"
            ) from error
        with raw, SpooledTemporaryFile(max_size=MAX_IN_MEMORY) as file:
            entries, validator = SpooledEntries(file), LogValidator()
            reader = ObjectReader(raw, key)
            for value in reader.read_entries():
                renew_lease()
                entry = parse_entry(value)
                validator.add(entry)
                entries.add(entry)
            renew_lease()
            append_session(store, name, entries)
        if not keep and not store.is_resident:
            with suppress(StoreBusy):  # the session is restored; the next archive run replaces the object
                renew_lease()
                if _read_head(storage, key) == reader.head:  # otherwise it was archived again
                    storage.delete(key)
        return Imported(name, len(entries))


def check_archive(where: Where) -> None:
    """Raise ``StoreError`` if *where* is invalid, lacks a driver, or is a folder that does not exist."""
    with convert_errors(where):
        open_storage(where).check()


def find_archived(where: Where, session: str) -> ArchivedSession | None:
    """Return the archive's record of *session*, or None if it has none. Reads the head of one object."""
    with convert_errors(where):
        return _read_head(open_storage(where), make_archive_key(session))


def list_archive(where: Where, *, tenant: str | None = None) -> Iterator[ArchivedSession]:
    """Yield the sessions in the archive, of one *tenant* ("": sessions without a tenant) or of all (None).

    Reads the head of each object. An unreadable object is included, with its ``fault``.
    """
    with convert_errors(where):
        storage = open_storage(where)
        for key in storage.list_keys(None if tenant is None else hash_name(tenant)):
            if not key.endswith(_PART) and (found := _read_head(storage, key)) is not None:
                yield found


def purge_session(
    store: Store, where: Where, session: str, *, purge: Callable[[str], object] | None = None
) -> PurgeResult:
    """Erase *session* with its files from *store* and from the archive, for good: nobody restores it in between.

    *purge* erases it from the store, if that has it, instead of ``store.purge``, such as ``Sessions.purge``. If the
    object cannot be read, its files are not found. Raises ``ArchiveBusy`` while another process archives, restores or
    erases the session; one that was killed blocks it for two minutes at most.
    """
    store = adapt_store(store)
    with convert_errors(where), _hold_lease(store, session) as (_, renew_lease):
        # The archive first: purging the session in the store ends the lease.
        archived = _delete(open_storage(where), make_archive_key(session), renew_lease)
        if stored := store.get_extent(session) is not None:
            (store.purge if purge is None else purge)(session)
        return PurgeResult(stored, archived)


def purge_archived(where: Where, session: str) -> bool:
    """Erase *session* and its files outside the store from the archive. Return whether it was there.

    ``store.purge`` does not reach an archive, and ``purge_session`` reaches both. If the object cannot be read, its
    files are not found.
    """
    with convert_errors(where):
        return _delete(open_storage(where), make_archive_key(session))


def purge_archived_tenant(where: Where, tenant: str) -> int:
    """Erase every session of *tenant* from the archive, as ``purge_archived`` does, and return their number.

    No object of the tenant is left when this returns. First stop archiving and restoring for the tenant, and call
    ``purge_tenant``. Raises ``ConfigError`` for an invalid tenant name, and ``StoreError`` if sessions of the tenant
    are archived in the meantime.
    """
    require_tenant(tenant)
    with convert_errors(where):
        storage, folder = open_storage(where), hash_name(tenant)
        # Unfinished objects are deleted with the object of their session.
        purged = sum([_delete(storage, key) for key in {one.removesuffix(_PART) for one in storage.list_keys(folder)}])
        if storage.list_keys(folder):
            raise StoreError(
                f"sessions of the tenant {tenant!r} were archived during this purge, which erased {purged}: stop"
                " archiving for this tenant, and purge it again"
            )
    return purged


def expire_archive(
    where: Where, older_than: timedelta, *, now: datetime | None = None, tenant: str | None = None
) -> list[str]:
    """Erase archived sessions that had no append for longer than *older_than*, and return their names.

    This is ``expire`` for an archive. It also deletes unfinished objects of such sessions, left by killed runs.
    Unreadable objects stay. Do not run it at the same time as ``archive_sessions``.
    """
    cutoff, expired = (utc_now() if now is None else now) - older_than, list[str]()
    with convert_errors(where):
        storage = open_storage(where)
        for key in storage.list_keys(None if tenant is None else hash_name(tenant)):
            archived = _read_head(storage, key)
            if archived is None:
                continue
            if key.endswith(_PART) and (archived.fault or archived.last_activity < cutoff):
                storage.delete(key)
            elif not archived.fault and archived.last_activity < cutoff and _delete(storage, key):
                expired.append(archived.session)
    return sorted(expired)


@contextmanager
def _hold_lease(store: Store, session: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Hold the lease of *session*; yield its holder and a function that renews it.

    Raises ``ArchiveBusy`` if another holds it.
    """
    holder, renewed_at = make_id(), time.monotonic()
    wait = store.lease(session, _LEASE, holder, _LEASE_SECONDS)
    busy = f"another process is archiving, restoring or erasing the session {session[:40]!r}; nothing was changed"
    if wait:
        raise ArchiveBusy(f"{busy}: try again in {wait:.0f} seconds")

    def renew_lease() -> None:
        nonlocal renewed_at
        now = time.monotonic()
        if now - renewed_at < _RENEW_AFTER:
            return
        # Once the lease has expired, another process may have held it, even if it is free now.
        if now - renewed_at >= _LEASE_SECONDS or store.lease(session, _LEASE, holder, _LEASE_SECONDS):
            raise ArchiveBusy(f"{busy}: try again later")
        renewed_at = now

    try:
        yield holder, renew_lease
    finally:
        store.release(session, _LEASE, holder)


def _delete(storage: Storage, key: str, renew_lease: Callable[[], None] = lambda: None) -> bool:
    """Delete an object, its unfinished copy, and the files that its log names. Return whether the object existed."""
    with suppress(FileNotFoundError), storage.open(key) as raw:
        session, events = "", list[Entry]()
        with suppress(StoreDamaged, NewerVersion):  # a damaged object must be deletable
            reader = ObjectReader(raw, key)
            session, kinds = reader.head.session, list_kinds(EventRecorded)
            for one in reader.read_entries():
                renew_lease()
                if one.get("kind") in kinds:
                    events.append(parse_entry(one))
        delete_named_files(events, session)
    storage.delete(key + _PART)
    return storage.delete(key)


def _read_head(storage: Storage, key: str) -> ArchivedSession | None:
    """Return the head of an object, or None if there is no object."""
    try:
        with storage.open(key) as raw:
            return ObjectReader(raw, key.removesuffix(_PART)).head
    except FileNotFoundError:
        return None
    except (StoreDamaged, NewerVersion) as error:
        return ArchivedSession("", "", datetime.min.replace(tzinfo=UTC), 0, 0, key, "", "", str(error))
