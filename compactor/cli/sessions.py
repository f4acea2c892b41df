"""The sessions of a store: how long each is and when it was last written to. No session is opened for that."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

from memory import expire as purge_expired
from memory import expired
from memory.stores import Extent, Store

from ..events import visible
from .stores import unknown
from .terminal import CannotRun, counted, one_line, screen

#: Entries that are read at once at the end of a log.


@dataclass(frozen=True, slots=True)
class SessionFacts:
    session: str
    rounds: int
    entries: int
    last_activity: datetime

    def figures(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "rounds": self.rounds,
            "entries": self.entries,
            "last_activity": self.last_activity.isoformat(),
        }

    def __str__(self) -> str:
        rounds, entries = counted(self.rounds, "round"), counted(self.entries, "entry", "entries")
        return f"{rounds} in {entries}, the last of {when(self.last_activity)} UTC"


def overview(store: Store) -> list[SessionFacts]:
    """Return what there is to say of each session, by name."""
    extents = store.extents()
    return [_facts(store, session, extents[session]) for session in sorted(extents)]


def facts_of(store: Store, session: str) -> SessionFacts:
    """Return what there is to say of *session* without reading all of it.

    No body is looked at: so it works on a session that is damaged, too. Raises ``CannotRun`` where there is none.
    """
    extent = store.extent(session)
    if extent is None:
        raise unknown(store, session)
    return _facts(store, session, extent)


def _facts(store: Store, session: str, extent: Extent) -> SessionFacts:
    rounds = extent.rounds or _counted(store, session)
    return SessionFacts(session, rounds, extent.number, extent.created_at)


def _counted(store: Store, session: str) -> int:
    """Return how many rounds there are where entries do not know theirs."""
    return sum(one.kind == "round opened" for one in store.read(session))


def table(sessions: Sequence[SessionFacts], console: Console) -> None:
    """Print a row for each session."""
    if not sessions:
        console.print("no sessions")
        return
    rows = Table()
    rows.add_column("session", overflow="fold")
    for name in ("rounds", "entries"):
        rows.add_column(name, justify="right")
    rows.add_column("last activity (UTC)", no_wrap=True)
    for one in sessions:
        rows.add_row(one_line(one.session), f"{one.rounds:,}", f"{one.entries:,}", when(one.last_activity))
    console.print(rows)


def when(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def purge(store: Store, session: str, *, yes: bool) -> SessionFacts:
    """Erase a session and return what it was, after somebody said so: at the terminal, or by *yes*."""
    facts = facts_of(store, session)
    confirm(f"session '{one_line(session, 80)}': {facts}. Erase all of it, for good?", "nothing was erased", yes=yes)
    store.purge(session)
    return facts


def expire(store: Store, older_than: timedelta, *, yes: bool) -> list[str]:
    """Erase the sessions that nobody has written to for that long, after somebody said so; return their names."""
    found = expired(store, older_than)
    if found:
        named = ", ".join(one_line(session, 80) for session in found[:10]) + (", ..." if len(found) > 10 else "")
        question = f"{counted(len(found), 'session')}: {named}. Erase all of this, for good?"
        confirm(question, "nothing was erased", yes=yes)
    return purge_expired(store, older_than, sessions=found)


def confirm(question: str, otherwise: str, *, yes: bool) -> None:
    """Return when somebody at the terminal says yes to *question*, or *yes* says so already.

    Raises ``CannotRun``, with *otherwise*, for any other answer and where nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CannotRun(f"{otherwise}: there is no terminal to ask at; --yes does it without asking")
    screen(sys.stderr).print(f"{visible(question)} [y/N] ", end="", soft_wrap=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CannotRun(otherwise)
