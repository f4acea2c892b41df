"""Retention: purges unused sessions and whole tenants, and deletes a session's files outside the store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from ..entries import Entry, EventRecorded, list_kinds
from ..errors import NewerVersion, StoreDamaged, StoreError
from ..patterns import compile_later
from ..rounds import utc_now
from .base import MAX_SKEW, Store, adapt_store, round_to_minute
from .tenants import require_tenant

#: The event in a session's log that names a folder with its files; facts: ``session`` and ``folder``.
FILES_KEPT = "files.kept"
#: Sessions that are looked at at once.
_PAGE = 1_000
_FILE = r"[a-z0-9_-]{1,40}-[0-9a-f]{16}(-\d{1,3})?\.[a-z]{1,8}"
#: Our files: a name, the hash of the content and an extension; and their temporary files.
_OURS = compile_later(rf"{_FILE}|\.({_FILE}\.)?[0-9a-f]{{32}}\.tmp", re.ASCII)


def list_expired(
    store: Store, older_than: timedelta, *, now: datetime | None = None, tenant: str | None = None
) -> list[str]:
    """Return the sessions without an append for longer than *older_than*, sorted, of one *tenant* ("": those without)
    or of all (None). *now* defaults to the present."""
    store, now = adapt_store(store), utc_now() if now is None else now
    cutoff, found = now - older_than, list[str]()
    minute = timedelta(minutes=1)  # the next one may be after the last of all
    after = f"{round_to_minute(min(cutoff, datetime.max.replace(tzinfo=UTC) - minute) + minute)} ~"  # behind most there
    while rows := store.list_sessions(tenant, after=after, limit=_PAGE, order="activity"):
        # The log decides: activity is to the minute, and older versions did not write it.
        extents = ((row.name, store.get_extent(row.name)) for row in rows)
        old = [name for name, extent in extents if extent is not None and extent.created_at < cutoff]
        found += [name for name in old if "marking" in store.capabilities or not _is_used(store, name, cutoff, now)]
        after = rows[-1].cursor
    return sorted(found)


def _is_used(store: Store, session: str, cutoff: datetime, now: datetime) -> bool:
    """Return whether any entry is newer than *cutoff*, though the last one is not: a clock may have been slow then.

    A SQL store lists no such session; others keep no activity beside the log."""
    return any(cutoff <= entry.created_at and entry.created_at - now <= MAX_SKEW for entry in store.read(session))


def expire(
    store: Store,
    older_than: timedelta,
    *,
    now: datetime | None = None,
    sessions: Iterable[str] | None = None,
    tenant: str | None = None,
) -> list[str]:
    """Purge the sessions without an append for longer than *older_than*, files included, and return their names.

    Nothing expires by itself: call this regularly, such as once a day. *tenant* and *sessions* limit it to one tenant
    and to these names. A session with an append during the call is still purged. Raises ``StoreError``; sessions purged
    before it stay purged.
    """
    wanted = None if sessions is None else set(sessions)
    expired = list_expired(store, older_than, now=now, tenant=tenant)
    purged = [name for name in expired if wanted is None or name in wanted]
    for session in purged:
        store.purge(session)
    return purged


def purge_tenant(store: Store, tenant: str) -> int:
    """Purge every session of *tenant*, files included, and return their number.

    When this returns, no session of the tenant was left. Stop what writes or compacts for the tenant before. Raises
    ``ConfigError`` for a name that no tenant has, and ``StoreError`` if the tenant's sessions are written to meanwhile;
    sessions purged before it stay purged.
    """
    require_tenant(tenant)
    store, purged, after = adapt_store(store), 0, None
    while rows := store.list_sessions(tenant, after=after, limit=_PAGE):
        for row in rows:
            store.purge(row.name)
        purged, after = purged + len(rows), rows[-1].name
    if store.list_sessions(tenant, limit=1):
        raise StoreError(
            f"sessions of the tenant {tenant!r} were written to while they were purged; {purged} are gone: stop what"
            " writes for this tenant, and purge it again"
        )
    return purged


def delete_files(store: Store, session: str) -> int:
    """Delete the files of *session* and return their number; not those of a session it was copied from. Every store's
    ``purge`` should begin with this.

    Raises ``StoreError`` if a file cannot be deleted.
    """
    return delete_named_files(adapt_store(store).read_kinds(session, list_kinds(EventRecorded)), session)


def delete_named_files(events: Iterable[Entry], session: str) -> int:
    """Delete the files of *session* that these entries name, and return their number. Raises ``StoreError``."""
    folders: dict[str, None] = {}
    for entry in events:
        with suppress(StoreDamaged, NewerVersion):  # a session may be purged because it is damaged
            record = entry.record
            if isinstance(record, EventRecorded) and record.name == FILES_KEPT:
                folder = record.facts.get("folder")
                if record.facts.get("session") == session and isinstance(folder, str) and os.path.isabs(folder):
                    folders[folder] = None
    removed = 0
    for folder in folders:
        try:
            removed += remove_files(folder)
        except OSError as error:
            raise StoreError(
                f"files of the session in {folder} cannot be removed ({error.strerror}), so it was not purged;"
                " allow it, and purge again"
            ) from error
    return removed


def remove_files(folder: str, *, cutoff: float | None = None) -> int:
    """Delete our files in *folder*, then the folder if it is empty, and return the number of deleted files.

    *cutoff* (seconds since 1970) keeps files modified at or after it. Other files stay, and links are not followed. A
    missing folder counts as empty. Raises ``OSError``.
    """
    if os.path.realpath(folder) != os.path.join(os.path.realpath(os.path.dirname(folder)), os.path.basename(folder)):
        return 0
    removed = 0
    with suppress(FileNotFoundError, NotADirectoryError):
        with os.scandir(folder) as entries:
            ours = [one for one in entries if _OURS.fullmatch(one.name) and one.is_file(follow_symlinks=False)]
        for one in ours:
            with suppress(FileNotFoundError):  # another process was faster
                if cutoff is None or one.stat(follow_symlinks=False).st_mtime < cutoff:
                    os.unlink(one.path)
                    removed += 1
        with suppress(OSError):  # it holds files of others
            os.rmdir(folder)
    return removed
