"""Marks of sessions that somebody is to look at."""

from __future__ import annotations

from datetime import timedelta

from ...entries import Entry, RoundFinished
from ..base import DueSession
from ._samples import NAMES, STAMP
from .logs import StoreContract

_SOON, _LATER = STAMP + timedelta(minutes=1), STAMP + timedelta(minutes=4)


class MarkingStoreContract(StoreContract):
    """For a store whose appends mark their sessions."""

    capability = "marking"

    def _write(self, name: str, after: int, seconds: float = 0.0) -> None:
        self.store.append(
            name, [Entry.of(RoundFinished(round_id="r"), created_at=STAMP + timedelta(seconds=seconds))], after
        )

    def test_a_session_is_due_two_minutes_after_its_newest_append(self) -> None:
        """To the minute, and under any name; the earliest comes first."""
        for name in NAMES:
            self._write(name, 0)
        self._write("late", 0, 90)
        store = self.reopen()
        assert store.list_due(_SOON) == []
        assert {one.name for one in store.list_due(_LATER)} == {*NAMES, "late"}
        assert store.list_due(_LATER)[-1].name == "late"
        assert len(store.list_due(_LATER, 3)) == 3
        self._write(NAMES[0], 1, 120)
        assert NAMES[0] not in {one.name for one in store.list_due(STAMP + timedelta(minutes=2))}

    def test_a_mark_that_was_cleared_does_not_come_back_by_itself(self) -> None:
        """The next append makes another."""
        self._write("s", 0)
        (marked,) = self.store.list_due(_LATER)
        assert self.reopen().clear_due([marked]) == 1
        assert self.store.list_due(_LATER) == []
        self._write("s", 1, 180)
        assert [one.name for one in self.reopen().list_due(STAMP + timedelta(minutes=6))] == ["s"]

    def test_a_mark_that_was_renewed_meanwhile_stays(self) -> None:
        """Somebody wrote since, and nobody has looked at that."""
        self._write("s", 0)
        (marked,) = self.store.list_due(_LATER)
        self._write("s", 1, 100)
        self._write("left", 0)
        left = DueSession("left", marked.due_at)
        assert self.store.clear_due([marked, DueSession("none", marked.due_at), left]) == 1
        assert self.store.clear_due([]) == 0
        assert [one.name for one in self.store.list_due(STAMP + timedelta(minutes=4))] == ["s"]

    def test_many_marks_are_cleared_at_once(self) -> None:
        """Of any names and several minutes."""
        names = [*NAMES, *(f"s{number}" for number in range(1_100))]
        for number, name in enumerate(names):
            self._write(name, 0, number % 3 * 60)
        marked = self.store.list_due(STAMP + timedelta(minutes=6), 10_000)
        assert {one.name for one in marked} == set(names)
        assert self.reopen().clear_due(marked) == len(names)
        assert self.store.list_due(STAMP + timedelta(minutes=6)) == []

    def test_a_purged_session_is_not_due(self) -> None:
        """Nor is it when it starts again, before its time."""
        self._write("s", 0)
        self.store.purge("s")
        assert self.store.list_due(_LATER) == []
        self._write("s", 0, 600)
        assert self.store.list_due(_LATER) == []
