"""Health: failing and lagging roles, from the log alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from memory import Store
from memory.entries import CompactionPrepared, CompactionPublished, Entry, EventRecorded, ReductionPublished, list_kinds
from memory.errors import NewerVersion, StoreDamaged
from memory.journal import HISTORY_KINDS, CompactionRecord, history_of
from memory.stores import SessionRow
from memory.values import ValueObject

from .errors import FailureKind
from .events import Failed, StrategyFailed

#: Failures outside the model: a reduction without a model ends a streak of these.
_OTHERS = frozenset({FailureKind.STORE, FailureKind.CHANGED, FailureKind.OTHER})
_KINDS = HISTORY_KINDS | list_kinds(EventRecorded, ReductionPublished)
#: Number of newest publications whose longest step defines being behind, and the minimum rounds behind.
_STEPS, _MIN_BEHIND = 8, 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RoleHealth(ValueObject):
    """The problems of one role of a session."""

    session: str
    role: str
    #: Whether a compaction is due and none is running.
    behind: bool = False
    #: Number of rounds that no compaction covers.
    uncovered: int = 0
    #: Failures in a row.
    failures: int = 0
    #: Whether attempts are rare, after many failures.
    circuit_open: bool = False
    #: The class of the last failure, or the check that its answer failed.
    error: str | None = None
    #: Start of these failures, or of the first uncovered round, if known.
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Health(ValueObject):
    """The problems of a store's sessions, or of those that a ``Sessions`` has open."""

    #: Number of sessions that were examined.
    sessions: int
    #: The roles with problems, worst first.
    worst: tuple[RoleHealth, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether no role has a problem."""
        return not self.worst

    @property
    def behind(self) -> int:
        """Sessions that are behind."""
        return len({one.session for one in self.worst if one.behind})

    @property
    def failing(self) -> int:
        """Sessions with a failing role."""
        return len({one.session for one in self.worst if one.failures})

    @property
    def circuits_open(self) -> int:
        """Sessions with an open circuit."""
        return len({one.session for one in self.worst if one.circuit_open})


def sort_worst_first(roles: Iterator[RoleHealth]) -> tuple[RoleHealth, ...]:
    """Return *roles* ordered by open circuits, then failures, then uncovered rounds."""
    return tuple(
        sorted(roles, key=lambda one: (not one.circuit_open, -one.failures, -one.uncovered, one.session, one.role))
    )


def examine_session(store: Store, row: SessionRow, max_uncovered: int | None = None) -> Iterator[RoleHealth]:
    """Yield the problems of each role of the session, from its log. An unreadable log is reported as a failure.

    A role is behind if more than *max_uncovered* rounds are uncovered. The default is twice the most rounds that one of
    its last eight publications added, but at least 10; a role without a publication is then never behind.
    """
    try:
        entries = [*store.read_kinds(row.name, _KINDS)]
        records = [entry.record for entry in entries]
        for role in sorted({role for record in records if (role := getattr(record, "role", None)) is not None}):
            history = history_of(entries, role, partial(store.find_round_number, row.name))
            found = _examine_role(row, role, entries, history, max_uncovered)
            if found.failures or found.behind:
                yield found
    except (StoreDamaged, NewerVersion) as error:
        yield RoleHealth(session=row.name, role="", failures=1, error=type(error).__name__)


class Failures(NamedTuple):
    """A streak of failures that has not ended."""

    number: int
    #: Time of the next attempt; None: at once.
    retry_at: datetime | None


def find_failures(store: Store, session: str, role: str) -> Failures:
    """Return the failures of *role* since its last success, from the log."""
    events = (entry.record for entry in store.read_kinds(session, list_kinds(EventRecorded)))
    if not any(isinstance(one, EventRecorded) and one.role == role and one.name == Failed.name for one in events):
        return Failures(0, None)
    streak, failures = _find_streak([*store.read_kinds(session, _KINDS)], role)
    retry_at = None
    for entry in streak[-1:]:
        seconds = entry.record.facts.get("retry_in") if isinstance(entry.record, EventRecorded) else None
        retry_at = entry.created_at + timedelta(seconds=seconds) if isinstance(seconds, int | float) else None
    return Failures(failures, retry_at)


def _examine_role(
    row: SessionRow,
    role: str,
    entries: Sequence[Entry],
    history: Sequence[CompactionRecord],
    max_uncovered: int | None,
) -> RoleHealth:
    current = next((one.compaction for one in history if one.current), None)
    uncovered = max(0, row.rounds - (current.last_round if current is not None else 0))
    if max_uncovered is None:
        steps = [len(one.round_ids) for one in history if one.happened == "published"][-_STEPS:]
        max_uncovered = max(_MIN_BEHIND, 2 * max(steps)) if steps else None
    streak, failures = _find_streak(entries, role)
    events = [entry.record for entry in streak if isinstance(entry.record, EventRecorded)]
    error = events[-1].facts.get("error") if events else None
    return RoleHealth(
        session=row.name,
        role=role,
        behind=max_uncovered is not None and uncovered > max_uncovered,
        uncovered=uncovered,
        failures=failures,
        circuit_open=any(one.facts.get("circuit_open") is True for one in events),
        error=error if isinstance(error, str) else None,
        since=streak[0].created_at if streak else None,
    )


def _find_streak(entries: Sequence[Entry], role: str) -> tuple[Sequence[Entry], int]:
    """Return the entries of *role*'s failures since its last success, and their number."""
    streak, failures = list[Entry](), 0
    for entry in entries:
        match entry.record:
            case EventRecorded(role=of, name=Failed.name | StrategyFailed.name, facts=facts) if of == role:
                streak.append(entry)
                counted = facts.get("failures")
                failures = max(failures + 1, counted if isinstance(counted, int) else 0)
            case CompactionPrepared(role=of) if of == role:
                streak, failures = [], 0
            case CompactionPublished(role=of, compaction=made) if of == role and not made.is_offline:
                streak, failures = [], 0
            case ReductionPublished(role=of, reduction=made) if of == role and (
                made.model or (streak and _is_others(streak[-1]))
            ):
                streak, failures = [], 0
    return streak, failures


def _is_others(entry: Entry) -> bool:
    return isinstance(entry.record, EventRecorded) and entry.record.facts.get("kind") in _OTHERS
