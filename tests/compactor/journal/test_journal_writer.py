"""What a journal fails at beside publications stops nothing, and is told of; one object a compactor keeps it."""

from __future__ import annotations

import os
import signal
from threading import Thread
from typing import Any

import pytest
from scene import PRICES, ROLE, memory_of, of_kind, on_command

from compactor import Discarded, Failed, PersistFailed
from compactor.journal import JournalWriter, LocalJournal
from compactor.testing import ScriptedSummarizer
from memory import Event, InMemoryStore, Memory, StoreFull, StoreUnreachable
from memory.entries import CompactionPrepared


def answer(text: str = PRICES) -> CompactionPrepared:
    return CompactionPrepared(role=ROLE, digest=text, base=0, kind="rounds", text=text)


class Failing:
    """A Memory's journal whose next calls raise what a test lists; None: they work."""

    def __init__(self) -> None:
        self._inner = memory_of(3).journal(ROLE)
        self.raises: list[Exception | None] = []
        self.released = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _next(self) -> None:
        if self.raises and (error := self.raises.pop(0)) is not None:
            raise error

    def prepare(self, made: CompactionPrepared) -> bool:
        self._next()
        return self._inner.prepare(made)

    def lease(self, seconds: float) -> float:
        self._next()
        return self._inner.lease(seconds)

    def release(self) -> None:
        self.released += 1
        self._next()

    def note(self, name: str, facts: Any) -> None:
        self._next()
        self._inner.note(name, facts)


def scene() -> tuple[JournalWriter, Failing, list[Any]]:
    told: list[Any] = []
    journal = Failing()
    return JournalWriter(journal, ROLE, told.append), journal, told


def test_what_fails_is_told_when_it_begins_and_when_it_is_another_error() -> None:
    """By its class; the tenth time says no more than the first, and what worked in between may say so again."""
    writer, journal, told = scene()
    full, gone = StoreFull("no room; make some"), StoreUnreachable("the server is gone; start it")
    journal.raises = [full, full, gone, gone, None, gone, TypeError("a host's own")]
    for _ in range(7):
        writer.prepare(answer())
    assert {(event.role, event.what) for event in told} == {(ROLE, "answer")}
    assert [event.error for event in told] == ["StoreFull", "StoreUnreachable", "StoreUnreachable", "TypeError"]


def test_each_thing_that_fails_is_told_by_itself() -> None:
    """A lease that cannot be had is ours, one that cannot be given back expires, and an answer is there all the same."""
    writer, journal, told = scene()
    gone = StoreUnreachable("the server is gone; start it")
    assert writer.lease() == 0.0
    journal.raises = [gone] * 4
    writer.release()
    assert writer.lease() == 0.0
    writer.prepare(answer("Paid for."))
    writer.record_failure(Discarded(role=ROLE, reason="late"))
    assert [(event.what, event.error) for event in told] == [
        (what, "StoreUnreachable") for what in ("lease", "answer", "event")
    ]
    assert [found.text for found in writer.read().prepared] == ["Paid for."]


def test_what_a_compactor_cannot_keep_is_told_to_its_hooks() -> None:
    """And to whoever looks at its events later."""
    journal, heard = Failing(), list[Event]()
    compactor, _, _ = on_command(memory_of(1), ScriptedSummarizer(), journal=journal, on_event=heard.append)
    journal.raises = [StoreFull("no room; make some")]
    compactor._journal.prepare(answer())
    assert [event.error for event in of_kind(heard, PersistFailed)] == ["StoreFull"]
    assert of_kind(compactor.events, PersistFailed) == of_kind(heard, PersistFailed)


def test_opening_the_circuit_is_noted_at_once() -> None:
    """Not only at the eighth failure; a failure that says the same is noted the 1st, 2nd, 4th, 8th time."""
    store = InMemoryStore()
    writer = JournalWriter(Memory("s", store=store).journal(ROLE), ROLE, lambda _: None)
    for number in range(1, 8):
        writer.record_failure(
            Failed(role=ROLE, failures=number, retry_in=1.0, error="APIStatusError", circuit_open=number >= 5)
        )
    noted = [entry.record.facts for entry in store.read("s")]  # type: ignore[union-attr]
    assert [(one["failures"], one["circuit_open"]) for one in noted] == [
        (1, False),
        (2, False),
        (4, False),
        (5, True),
        (6, True),
    ]


def test_a_compactor_has_one() -> None:
    """So what a run has leased, stop() gives back, and what it could not write, the next run finds."""
    compactor, _, _ = on_command(memory_of(1), ScriptedSummarizer())
    assert compactor._journal is compactor._runner._cycle.journal


def test_an_answer_that_comes_while_others_are_looked_through_is_not_lost() -> None:
    """A late run may keep one while the next run looks for those that are still of use."""
    writer = JournalWriter(LocalJournal(lambda: None), "", lambda _: None)  # type: ignore[arg-type, return-value]
    late = Thread(target=writer.prepare, args=(answer("late"),), daemon=True)

    class Early:
        digest, kind = "early", "rounds"

        @property
        def base(self) -> int:
            if late.ident is None:
                late.start()
                late.join(0.1)  # it waits for its turn
            return 0

    writer.prepare(Early())  # type: ignore[arg-type]
    assert "early" in [found.digest for found in writer.read().prepared]
    late.join()
    assert "late" in [found.digest for found in writer.read().prepared]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gives_back_no_lease_of_its_parents() -> None:
    """Nor does it wait for a lock that a thread of the parent held."""
    writer, journal, _ = scene()
    writer.lease()
    with writer._lock:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(10)
                writer.release()
                os._exit(journal.released)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.release()
    assert journal.released == 1
