"""The sessions of a store: how long each is and when it was last written to. No session is opened for that."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from memory.entries import Entry
from memory.stores import IndexedStore, Store

from .stores import unknown
from .terminal import CannotRun, one_line, screen, visible

__all__ = ["SessionFacts", "confirm", "facts_of", "overview", "purge", "table", "when"]

#: Entries that are looked through at the end of a log for the round that was opened last; then more and more.
_LAST = 32


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
        return f"{self.rounds:,} rounds in {self.entries:,} entries, the last of {when(self.last_activity)} UTC"


def overview(store: Store) -> list[SessionFacts]:
    """Return what there is to say of each session, by name."""
    found = []
    for session in store.sessions():
        with suppress(CannotRun):  # purged meanwhile
            found.append(facts_of(store, session))
    return found


def facts_of(store: Store, session: str) -> SessionFacts:
    """Return what there is to say of *session* without reading all of it.

    No body is looked at: so it works on a session that is damaged, too. Raises ``CannotRun`` where there is none.
    """
    last = _last_entry(store, session)
    if last is None:
        raise unknown(store, session)
    return SessionFacts(session, _rounds(store, session, last.number), last.number, last.created_at)


def _last_entry(store: Store, session: str) -> Entry | None:
    """Return the newest entry. Numbers have no gaps: so it is found by looking here and there."""

    def entry(number: int) -> Entry | None:
        return next(iter(store.read(session, number - 1, 1)), None)

    checkpoint = store.checkpoint(session) if isinstance(store, IndexedStore) else None
    last, step = entry(checkpoint.number if checkpoint is not None else 1), 16
    if last is None:
        return None
    while (later := entry(last.number + step)) is not None:
        last, step = later, 2 * step
    while step > 1:
        half = step // 2
        later = entry(last.number + half)
        last, step = (last, half) if later is None else (later, step - half)
    return last


def _rounds(store: Store, session: str, last: int) -> int:
    """Return how many rounds a log of *last* entries has: the number of the newest, where entries know theirs."""
    for start, stop in _backwards(last):
        opened = [one.round for one in store.read(session, start, stop - start) if one.kind == "round opened"]
        if opened and opened[-1]:
            return opened[-1]
        if opened:
            break
    return sum(one.kind == "round opened" for one in store.read(session))


def _backwards(last: int) -> Iterator[tuple[int, int]]:
    size = _LAST
    while last > 0:
        start = max(0, last - size)
        yield start, last
        last, size = start, 4 * size


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
