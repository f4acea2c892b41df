"""Commands for archives of closed sessions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memory import list_expired
from memory.transfer.archive import ArchivedSession, archive_sessions, list_archive, restore_session

from . import sessions
from .session_commands import AsJson, NewName, Session, Store, make_option, parse_age, print_result
from .sessions import open_named, show_name
from .terminal import make_console, render_quantity

_WHERE = "The archive: a folder, or a URL such as s3://bucket/chats."
_REASONS = {
    "active": "somebody has written to it in the meantime",
    "busy": "another process is archiving, restoring or erasing it, or the store is locked; run this again",
    "gone": "it was purged or archived in the meantime",
    "name_taken": "the archive has another session of that name; restore that one with --as, or purge it",
    "too_large": "it is too large; use `compactor export`",
    "unreadable": "its log is damaged or of a newer version",
}

app = typer.Typer()


@app.command("archive", short_help="Move old sessions to an archive.")
def archive(
    to: Annotated[str, make_option("WHERE", _WHERE, "--to")],
    older_than: Annotated[str, make_option("AGE", "Minimum time since the last write: 30d, 12h or 45m.")],
    store: Store = None,
    tenant: Annotated[str | None, make_option("NAME", "Only sessions of this tenant.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the sessions that are that old.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move sessions without recent writes from the store to compressed files or object storage.

    Nothing is archived automatically: run this once a day. Each session is read back from the archive before it leaves
    the store, and stays if somebody writes to it in the meantime. After a crash, run this again. URLs need the extra
    "archive" and the fsspec driver for their scheme.

    JSON: {"archived": [session, ...], "skipped": {session: reason}}; with --dry-run {"would_archive": [session, ...]}.
    """
    age = parse_age(older_than)
    with open_named(store, write=not dry_run) as opened:
        if dry_run:
            old = list_expired(opened, age, tenant=tenant)
            listed = "".join(f"\n  {show_name(session, 80)}" for session in old)
            print_result(
                as_json, {"would_archive": old}, f"{render_quantity(len(old), 'session')} would be archived{listed}"
            )
            return
        result = archive_sessions(opened, to, age, tenant=tenant)
    skipped = "".join(
        f"\n  {show_name(name, 80)} was not: {_REASONS[reason]}" for name, reason in result.skipped.items()
    )
    shown = f"{render_quantity(len(result.archived), 'session')} archived{skipped}"
    print_result(as_json, result._asdict(), shown)


@app.command("archived", short_help="List the sessions of an archive.")
def list_archived(
    where: Annotated[str, typer.Argument(metavar="WHERE", help=_WHERE)],
    tenant: Annotated[str | None, make_option("NAME", "Only this tenant's; '': none.", "--tenant")] = None,
    as_json: AsJson = False,
) -> None:
    """List the sessions of an archive: rounds, entries and time of the last write.

    Reads the beginning of each object.

    JSON: {"sessions": [{"session", "rounds", "entries", "last_activity", "tenant", "object"}], "unreadable":
    [{"object", "fault"}]}.
    """
    found = list(list_archive(where, tenant=tenant))
    readable = [_describe(one) for one in found if not one.fault]
    unreadable = [{"object": one.key, "fault": one.fault} for one in found if one.fault]
    print_result(as_json, {"sessions": readable, "unreadable": unreadable}, sessions.make_session_table(readable))
    for one in [] if as_json else unreadable:
        make_console().print(one["fault"], soft_wrap=True)


def _describe(one: ArchivedSession) -> dict[str, Any]:
    size = {"session": one.session, "rounds": one.rounds, "entries": one.entries}
    return size | {"last_activity": one.last_activity.isoformat(), "tenant": one.tenant, "object": one.key}


@app.command("restore", short_help="Move a session back from an archive.")
def restore(
    session: Session,
    where: Annotated[str, make_option("WHERE", _WHERE, "--from")],
    store: Store = None,
    name: NewName = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave a copy in the archive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a whole session from an archive back to a store. On any error, nothing is restored.

    Never changes an existing session or creates a database file. Text that is erased from the session later is not
    erased from a copy left by --keep.

    JSON: {"session", "entries"}.
    """
    with open_named(store, write=True) as opened:
        restored = restore_session(opened, where, session, name, keep=keep)
    message = f"{render_quantity(restored.entries, 'entry', 'entries')} restored; session {show_name(restored.session)}"
    print_result(as_json, restored._asdict(), message)
