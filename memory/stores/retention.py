"""What is kept no longer: sessions that nobody has written to, and files beside a store that hold a session's texts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta

from ..entries import EventRecorded, kinds_of
from ..errors import NewerVersion, StoreDamaged, StoreError
from ..rounds import utc_now
from .base import Store, adapt_store

#: The event by which a session's log says that files in a folder belong to it; its facts: ``session`` and ``folder``.
FILES_KEPT = "files.kept"
_EVENTS = kinds_of(EventRecorded)
_FILE = r"[a-z0-9_-]{1,40}-[0-9a-f]{16}(-\d{1,3})?\.[a-z]{1,8}"
#: Files that we wrote: a name, the hash of what it holds, an ending; and drafts of those.
_OURS = re.compile(rf"{_FILE}|\.({_FILE}\.)?[0-9a-f]{{32}}\.tmp", re.ASCII)


def expired(store: Store, older_than: timedelta, *, now: datetime | None = None) -> list[str]:
    """Return the sessions that nobody has written to for longer than *older_than*, sorted. *now*: by default, now."""
    before = (utc_now() if now is None else now) - older_than
    return sorted(name for name, extent in adapt_store(store).extents().items() if extent.created_at < before)


def expire(
    store: Store, older_than: timedelta, *, now: datetime | None = None, sessions: Iterable[str] | None = None
) -> list[str]:
    """Purge the sessions that nobody has written to for longer than *older_than*, files included; return their names.

    Nothing expires by itself: whoever wants it calls this, once a day for instance. Only of *sessions*, where they are
    given. One that is written to at the same moment is purged all the same. Raises ``StoreError``; what was purged by
    then stays so.
    """
    given = None if sessions is None else set(sessions)
    gone = [one for one in expired(store, older_than, now=now) if given is None or one in given]
    for session in gone:
        store.purge(session)
    return gone


def folders_of(store: Store, session: str) -> tuple[str, ...]:
    """Return the folders with files of *session*, as its log names them; not those of the session it is a copy of."""
    folders: dict[str, None] = {}
    for entry in adapt_store(store).read_kinds(session, _EVENTS):
        with suppress(StoreDamaged, NewerVersion):  # a session may be purged because it is damaged
            record = entry.record
            if isinstance(record, EventRecorded) and record.name == FILES_KEPT:
                folder = record.facts.get("folder")
                if record.facts.get("session") == session and isinstance(folder, str) and os.path.isabs(folder):
                    folders[folder] = None
    return tuple(folders)


def delete_files(store: Store, session: str) -> int:
    """Remove the files of *session* and return how many there were: what ``purge`` of our stores begins with, and what
    that of others should. Raises ``StoreError`` where one cannot be removed."""
    removed = 0
    for folder in folders_of(store, session):
        try:
            removed += remove_files(folder)
        except OSError as error:
            raise StoreError(
                f"files of the session in {folder} cannot be removed ({error.strerror}), so it was not purged;"
                " allow it, and purge again"
            ) from error
    return removed


def remove_files(folder: str, *, before: float | None = None) -> int:
    """Remove the files that we wrote into *folder*, and the folder where nothing else is in it; return their number.

    Only those not written since *before*, in seconds since 1970, where that is given. Nobody else's files, and nothing
    behind a link. Raises ``OSError``; a folder that is not there has none.
    """
    if os.path.realpath(folder) != os.path.join(os.path.realpath(os.path.dirname(folder)), os.path.basename(folder)):
        return 0
    removed = 0
    with suppress(FileNotFoundError, NotADirectoryError):
        with os.scandir(folder) as entries:
            ours = [one for one in entries if _OURS.fullmatch(one.name) and one.is_file(follow_symlinks=False)]
        for one in ours:
            with suppress(FileNotFoundError):  # somebody else was faster
                if before is None or one.stat(follow_symlinks=False).st_mtime < before:
                    os.unlink(one.path)
                    removed += 1
        with suppress(OSError):  # others' files are in it
            os.rmdir(folder)
    return removed
