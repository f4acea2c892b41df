"""What a journal fails at beside publications stops nothing, and is told of; one object a compactor keeps it."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, datetime
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from scene import PRICES, ROLE, SOON, HurriedClock, in_thread, memory_of, of_kind, on_command

from compactor import Discarded, Failed, PersistFailed
from compactor.host_rounds import COVERED, HostRounds
from compactor.journal import ANCHORS, JournalWriter, LocalJournal
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import (
    CompactedMessage,
    Event,
    InMemoryStore,
    Journal,
    JournalState,
    Memory,
    Reduction,
    StaleCompaction,
    StoreFull,
    StoreUnreachable,
)
from memory.entries import CompactionPrepared
from memory.rounds import copy_with


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


GONE = StoreUnreachable("the server is gone; start it")


@pytest.mark.parametrize(
    ("raises", "patience", "is_in_log"),
    [
        ([GONE] * 9, 10.0, True),
        ([GONE] * 9, 2.0, False),
        ([GONE], 0.0, False),
        ([GONE, StoreFull("no room; make some")], 10.0, False),
    ],
    ids=["away for 4.5 seconds", "away for longer", "told not to wait", "a fault that waiting does not mend"],
)
def test_an_answer_waits_for_a_store_that_is_away(raises: list[Exception], patience: float, is_in_log: bool) -> None:
    """Only so long, and only for that; what the log does not take stays in the process."""
    journal, heard, clock = Failing(), list[Event](), HurriedClock()
    writer = JournalWriter(journal, ROLE, heard.append, clock)  # type: ignore[arg-type]
    writer.patience, journal.raises = patience, list[Exception | None](raises)
    writer.prepare(answer("Paid for."))
    kept = [one.text for one in journal.read().prepared]
    assert kept == (["Paid for."] if is_in_log else [])
    assert [one.text for one in writer.read().prepared] == ["Paid for."]
    assert [event.error for event in of_kind(heard, PersistFailed)] == [
        *(["StoreUnreachable"]),
        *(["StoreFull"] if len(raises) == 2 else []),
    ]
    assert clock.monotonic() <= patience + 0.5


def test_an_answer_that_was_stored_without_a_reply_is_kept_once() -> None:
    """Its server failed between the two; a second entry would count its price twice."""

    class Unheard(Failing):
        def prepare(self, made: CompactionPrepared) -> bool:
            self._inner.prepare(made)
            raise GONE

    journal = Unheard()
    writer = JournalWriter(journal, ROLE, lambda _: None, HurriedClock())  # type: ignore[arg-type]
    writer.patience = 10.0
    writer.prepare(answer("Paid for."))
    assert [one.text for one in writer.read().prepared] == ["Paid for."]


def test_an_answer_is_stored_beside_an_older_one_to_the_same_request() -> None:
    """The log keeps an answer that newer checks have refused; it stands for no other."""
    journal = Failing()
    writer = JournalWriter(journal, ROLE, lambda _: None, HurriedClock())  # type: ignore[arg-type]
    writer.patience = 10.0
    writer.prepare(answer("Refused."))
    journal.raises = [GONE]
    writer.prepare(copy_with(answer("Refused."), text="Paid for."))
    assert [one.text for one in journal.read().prepared] == ["Refused.", "Paid for."]


def test_a_store_that_answers_slowly_gets_longer_leases() -> None:
    """The next renewal may come as late as the last one did; once the store is fast again, leases are short again."""
    clock, asked, delays = FakeClock(), list[float](), iter([3.0, 0.0, 0.0])

    class Slow(LocalJournal):
        has_leases = True

        def lease(self, seconds: float) -> float:
            asked.append(seconds)
            clock.advance(next(delays))
            return 0.0

    writer = JournalWriter(Slow(lambda: None), "", lambda _: None, clock)  # type: ignore[arg-type, return-value]
    writer.lease()
    for _ in range(2):
        clock.advance(1.0)
    writer.release()
    assert asked == [4.0, 4.0 + 2 * 3.0, 4.0]


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


# -- the journal of a compactor without a Memory ---------------------------------------------------------------------


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Host:
    """Another framework's list of rounds, and a journal over it."""

    def __init__(self, count: int) -> None:
        self.rounds: list[Any] = [self.round(number) for number in range(1, count + 1)]
        self.journal = LocalJournal(lambda: HostRounds(self.rounds, ""), lambda: NOON)

    @staticmethod
    def round(number: int, state: str = "finished") -> SimpleNamespace:
        return SimpleNamespace(id=f"r{number}", user_query=f"q{number}", post_list=[], state=state)

    def publish(self, first: int, last: int, *, base: int, summary: str = "s") -> CompactedMessage:
        made = CompactedMessage(start_index=1, end_index=last, end_round_id=f"r{last}", summary=summary)
        ids = [f"r{number}" for number in range(first, last + 1)]
        return self.journal.publish(made, base=base, round_ids=ids)


def test_it_begins_with_nothing() -> None:
    """Generation 0, nothing current, nothing held back."""
    journal: Journal = Host(3).journal
    assert journal.read() == JournalState(generation=0, current=None, revert_round_id=None)


def test_what_is_published_becomes_current() -> None:
    """With its generation and its stamp; all else is as it was made."""
    host = Host(8)
    first = host.publish(1, 4, base=0, summary="one")
    assert (first.generation, first.created_at, first.end_index, first.summary) == (1, NOON, 4, "one")
    assert first.extra == {COVERED: ("r4", "r3", "r2", "r1")}
    second = host.publish(5, 6, base=1, summary="two")
    assert second.extra == {COVERED: ("r6", "r5", "r4", "r3", "r2", "r1")}
    assert host.journal.read() == JournalState(2, second, None)


@pytest.mark.parametrize("base", [0, 2, -1])
def test_publishing_on_another_generation_is_refused(base: int) -> None:
    """Compare-and-set: a stale result never replaces a newer one."""
    host = Host(8)
    first = host.publish(1, 4, base=0)
    with pytest.raises(StaleCompaction) as caught:
        host.publish(5, 6, base=base)
    assert caught.value.reason == "generation"
    assert host.journal.read().current == first


@pytest.mark.parametrize("change", ["hidden", "open again"])
def test_rounds_that_changed_meanwhile_are_refused(change: str) -> None:
    """A covered round that was hidden or is open again is not what was summarised."""
    host = Host(8)
    if change == "hidden":
        del host.rounds[2]
    else:
        host.rounds[2] = host.round(3, "created")
    with pytest.raises(StaleCompaction) as caught:
        host.publish(1, 4, base=0)
    assert caught.value.reason == "rounds_changed"
    assert host.journal.read().generation == 0


@pytest.mark.parametrize(("first", "last"), [(1, 4), (2, 3), (5, 4)])
def test_the_end_never_goes_back(first: int, last: int) -> None:
    """Nor does it stay where it is; nothing new is nothing to publish."""
    host = Host(8)
    host.publish(1, 4, base=0)
    with pytest.raises(StaleCompaction) as caught:
        host.publish(first, last, base=1)
    assert caught.value.reason == "behind"


@pytest.mark.parametrize("way", ["hidden", "its state"])
def test_a_summary_of_what_failed_gives_way_to_the_newest_that_does_not_cover_it(way: str) -> None:
    """As a new generation, kept in the history; what was made from it is stale."""
    host = Host(8)
    first = host.publish(1, 2, base=0, summary="one")
    host.publish(3, 4, base=1, summary="two")
    host.publish(5, 6, base=2, summary="three")
    if way == "hidden":
        del host.rounds[3]
    else:
        host.rounds[3] = host.round(4, "failed")
    with pytest.raises(StaleCompaction, match="generation"):
        host.publish(7, 7, base=3)
    assert host.journal.read() == JournalState(4, first, None)
    assert not host.journal.withdraw_lost(HostRounds(host.rounds, ""))
    assert [one.happened for one in host.journal.history()] == ["published"] * 3 + ["withdrawn"] * 2
    assert [one.current for one in host.journal.history()] == [True, False, False, False, False]
    assert [one.round_ids for one in host.journal.history()[2:]] == [("r5", "r6"), ("r5", "r6"), ("r3", "r4")]
    assert host.journal.revert() is None


def test_rounds_that_the_host_drops_take_no_summary_with_them() -> None:
    """The oldest are gone, and what they said is nowhere but in the summary."""
    host = Host(8)
    published = host.publish(1, 4, base=0)
    del host.rounds[:3]
    assert not host.journal.withdraw_lost(HostRounds(host.rounds, ""))
    assert host.journal.read().current == published
    del host.rounds[0]
    assert not host.journal.withdraw_lost(HostRounds(host.rounds, ""))


def test_a_host_that_shows_what_has_failed_keeps_its_summary() -> None:
    """What had failed before was covered with open eyes; only what fails later is undone."""
    host = Host(8)
    host.rounds[1] = host.round(2, "failed")
    published = host.publish(1, 4, base=0)
    assert not host.journal.withdraw_lost(HostRounds(host.rounds, ""))
    assert host.journal.read().current == published


def test_the_rounds_of_a_memory_serve_as_well() -> None:
    """A round that failed is hidden there."""
    memory = memory_of(8)
    journal = LocalJournal(memory.rounds_getter(""))
    made = CompactedMessage(start_index=1, end_index=4, end_round_id="r4", summary="s")
    memory.finish_round("r2", state="failed")
    with pytest.raises(StaleCompaction):
        journal.publish(made, base=0, round_ids=["r1", "r2", "r3", "r4"])
    assert journal.publish(made, base=0, round_ids=["r1", "r3", "r4"]).end_index == 3


def test_a_revert_is_a_new_generation_and_brings_the_one_before_back() -> None:
    """It names the newest round there was, as often as it is called."""
    host = Host(8)
    first = host.publish(1, 4, base=0)
    host.publish(5, 6, base=1)
    assert host.journal.revert() == first
    assert host.journal.read() == JournalState(3, first, "r8")
    host.rounds.append(host.round(9))
    assert host.journal.revert() is None
    assert host.journal.read() == JournalState(4, None, "r9")


def test_a_revert_of_nothing_changes_nothing() -> None:
    """No generation, no hold."""
    host = Host(8)
    assert host.journal.revert() is None
    assert host.journal.read() == JournalState()


def test_a_revert_without_rounds_holds_nothing() -> None:
    """There is none to be newer than."""
    host = Host(2)
    host.publish(1, 2, base=0)
    host.rounds.clear()
    host.journal.revert()
    assert host.journal.read() == JournalState(2, None, "")


def test_a_publication_after_a_revert_goes_on_from_what_is_current() -> None:
    """The reverted one is not brought back by a second revert."""
    host = Host(8)
    first = host.publish(1, 2, base=0)
    host.publish(3, 6, base=1)
    host.journal.revert()
    third = host.publish(3, 5, base=3)
    assert host.journal.read() == JournalState(4, third, None)
    assert host.journal.revert() == first


def test_of_two_publications_at_once_one_is_refused() -> None:
    """Whatever the interleaving."""
    for _ in range(20):
        host, barrier = Host(8), threading.Barrier(2)

        def publish(last: int, host: Host = host, barrier: threading.Barrier = barrier) -> str:
            barrier.wait(SOON)
            try:
                return host.publish(1, last, base=0).summary
            except StaleCompaction as stale:
                return stale.reason

        waits = [in_thread(lambda last=last: publish(last)) for last in (4, 6)]  # type: ignore[misc]
        assert sorted(wait() for wait in waits) == ["generation", "s"]
        assert host.journal.read().generation == 1


def test_a_backlog_is_checked_in_one_look_at_the_rounds() -> None:
    """Not once for each of ten thousand."""
    looks = 0
    host = Host(0)

    class Counted(SimpleNamespace):
        @property
        def id(self) -> str:
            nonlocal looks
            looks += 1
            return self.name

    host.rounds = [Counted(name=f"r{n}", user_query="", post_list=()) for n in range(1, 2_001)]
    published = host.publish(1, 2_000, base=0)
    assert looks < 20_000
    assert len(published.extra[COVERED]) == ANCHORS


def test_it_keeps_no_reductions() -> None:
    """Prompts are composed from a Memory's log, which alone could show them: each is ignored."""
    host = Host(3)
    journal: Journal = host.journal
    reduction = Reduction(round_id="r1", first_post_id="", last_post_id="", kind="offloaded", text="t")
    assert journal.reduce(reduction, base=0) is None
    assert not journal.withdraw(reduction)
    assert journal.read() == JournalState()


def test_a_journal_that_lacks_a_method_is_refused_when_it_is_made() -> None:
    """Not when the first summary is published, by an error that names nothing."""

    class ReadOnly(Journal):
        def read(self) -> JournalState:
            return JournalState(0)

    with pytest.raises(TypeError, match="publish"):
        ReadOnly()  # type: ignore[abstract]
