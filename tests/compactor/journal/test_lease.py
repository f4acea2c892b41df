"""Only one process at a time has a role's history summarised: the others wait for its lease, and pay nothing."""

from __future__ import annotations

import gc
import os
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scene import CONFIG, PRICES, ROLE, ManualExecutor, add_round, end_of, of_kind, on_command, prices

from compactor import (
    CompactionFailed,
    CompactorConfig,
    ContextCompactor,
    Discarded,
    Evaluated,
    ExtractiveSummarizer,
    Failed,
    Published,
    Skip,
    Skipped,
    Started,
    State,
    SummaryRequest,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import InMemoryStore, Memory, StoreUnreachable, open_store

#: How long a lease lasts, and how often it is renewed while a call runs.
LASTS, RENEWED = 4.0, 1.0


class Leases(InMemoryStore):
    """A store that counts leases, and fails at them when it is told to."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock.monotonic)
        self.taken: list[tuple[str, str, float]] = []
        self.released: list[str] = []
        self.failing = False

    def lease(self, session: str, name: str, holder: str, seconds: float, *, take_over: bool = False) -> float:
        if self.failing:
            raise StoreUnreachable("the server is gone; start it")
        self.taken.append((name, holder, seconds))
        return super().lease(session, name, holder, seconds, take_over=take_over)

    def release(self, session: str, name: str, holder: str) -> None:
        if self.failing:
            raise StoreUnreachable("the server is gone; start it")
        self.released.append(holder)
        super().release(session, name, holder)


class Pair:
    """Two processes at one session of ten rounds; what happens while the first one's model thinks is up to a test."""

    def __init__(self, rounds: int = 10, **more: Any) -> None:
        self.clock = FakeClock()
        self.store = Leases(self.clock)
        first, second = (Memory("session", store=self.store) for _ in range(2))
        for _ in range(rounds):
            add_round(first)
        second.refresh()
        self.during: Any = lambda: None
        self.asked = ScriptedSummarizer()
        self.one, self.run_one, _ = on_command(first, self._thinks, clock=self.clock, **more)
        self.two, self.run_two, _ = on_command(second, self.asked, clock=self.clock, **more)
        self.memories = (first, second)

    def _thinks(self, request: SummaryRequest) -> str:
        self.during()
        return prices(f"1-{request.end_index}")

    def start(self) -> None:
        self.one.start()
        self.two.start()


def test_while_one_process_asks_the_other_waits_for_its_lease() -> None:
    """It says why and for how long, counts no failure, and looks again when the lease would expire."""
    pair = Pair()
    pair.start()
    pair.during = pair.run_two.run_all
    pair.run_one.run_all()
    (skipped,) = (event for event in of_kind(pair.two.events, Skipped) if event.reason is Skip.LEASED)
    assert skipped.retry_in == LASTS
    status = pair.two.status()
    assert (status.state, status.skip_reason, status.failures, status.last_error) == (State.IDLE, Skip.LEASED, 0, None)
    assert not of_kind(pair.two.events, Started)
    assert pair.two.wait_idle(0)
    assert end_of(pair.one) == 7
    assert pair.clock.pending == [LASTS]
    pair.clock.advance(LASTS)
    pair.run_two.run_all()
    assert pair.asked.requests == []
    assert end_of(pair.two) == 7, "and it shows what the other one published"


def test_it_looks_at_the_next_event_too_and_one_timer_is_enough() -> None:
    """Nobody waits for a lease that was given back."""
    pair = Pair()
    pair.start()

    def twice() -> None:
        pair.run_two.run_all()
        pair.clock.advance(1)
        pair.two.notify_rounds_changed()
        pair.run_two.run_all()
        assert pair.clock.pending == [RENEWED - 1, LASTS - 1, CONFIG.call_timeout - 1]  # the first two are leases

    pair.during = twice
    pair.run_one.run_all()
    for _ in range(5):
        add_round(pair.memories[1])
    pair.run_two.run_all()
    assert (end_of(pair.two), len(pair.asked.requests)) == (12, 1)


def test_a_process_that_died_is_waited_for_until_its_lease_expires() -> None:
    """Then its work is done by another."""
    pair = Pair()
    pair.memories[0].journal(ROLE).lease(LASTS)
    pair.two.start()
    pair.run_two.run_all()
    assert pair.two.status().skip_reason is Skip.LEASED
    pair.clock.advance(LASTS - 0.5)
    assert pair.run_two.run_all() == 0
    pair.clock.advance(0.5)
    pair.run_two.run_all()
    assert (end_of(pair.two), len(pair.asked.requests)) == (7, 1)


def test_what_others_published_meanwhile_is_read_before_anybody_is_asked() -> None:
    """The trigger is judged anew, and holds no longer."""
    pair = Pair()
    pair.one.start()
    pair.run_one.run_all()
    assert pair.memories[1].journal(ROLE).read().generation == 0, "it has heard of nothing"
    pair.two.start()
    pair.run_two.run_all()
    assert pair.asked.requests == []
    assert [event.is_due for event in of_kind(pair.two.events, Evaluated)][:2] == [True, False]
    assert not of_kind(pair.two.events, Started)
    assert pair.two.status().skip_reason is Skip.BELOW_TRIGGER
    assert end_of(pair.two) == 7
    assert not of_kind(pair.two.events, Discarded)


@pytest.mark.parametrize("published", [True, False])
def test_what_another_thread_has_read_meanwhile_counts_too(published: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A post that is written while a cycle looks reads what others published: it is not paid for again."""
    pair = Pair()
    if not published:  # for that process comes to an end before

        def killed(*_: Any, **__: Any) -> None:
            raise StoreUnreachable("the server is gone; start it")

        monkeypatch.setattr(pair.one._journal, "publish", killed)
    pair.one.start()
    pair.run_one.run_all()
    lease = pair.store.lease

    def meanwhile(*arguments: Any) -> float:
        add_round(pair.memories[1])
        return lease(*arguments)

    monkeypatch.setattr(pair.store, "lease", meanwhile)
    pair.two.start()
    pair.run_two.run_next()
    assert pair.asked.requests == []
    assert end_of(pair.two) == 7
    assert not of_kind(pair.two.events, Discarded)


def test_rounds_that_others_added_are_taken_in() -> None:
    """What is asked is what is there now."""
    pair = Pair()
    for _ in range(5):
        add_round(pair.memories[0])
    pair.two.start()
    pair.run_two.run_all()
    assert [request.end_index for request in pair.asked.requests] == [12]


def test_compact_now_says_at_once_that_another_process_is_at_it() -> None:
    """With the seconds; whoever asked decides whether that is worth waiting for."""
    pair = Pair()
    pair.memories[0].journal(ROLE).lease(90.0)
    executor = pair.run_two

    def submit_and_run(fn: Any, /, *args: Any) -> Any:
        future = ManualExecutor.submit(executor, fn, *args)
        executor.run_all()
        return future

    executor.submit = submit_and_run  # type: ignore[method-assign]
    with pytest.raises(CompactionFailed, match=r"or ended while it did, .* in 90 seconds at the latest") as raised:
        pair.two.compact_now()
    assert raised.value.seconds == 90.0
    assert pair.asked.requests == []
    pair.clock.advance(90)
    assert pair.two.compact_now().end_index == 7  # type: ignore[union-attr]


def test_it_is_renewed_before_each_call_and_given_back_after_the_last() -> None:
    """A refused answer's next attempt included."""
    pair = Pair(config=CompactorConfig(threshold=7, retain_recent=3, summary_attempts=3))
    answers = iter(["", "", PRICES])
    seen: list[int] = []
    pair.one._runner._summarizer = lambda request: seen.append(len(pair.store.taken)) or next(answers)
    pair.one.start()
    pair.run_one.run_all()
    assert seen == [1, 2, 3]
    assert len({holder for _, holder, _ in pair.store.taken}) == 1
    assert {(name, seconds) for name, _, seconds in pair.store.taken} == {(f"compact:{ROLE}", LASTS)}
    assert pair.store.released == [pair.store.taken[0][1]]


def test_it_is_renewed_for_as_long_as_a_call_runs() -> None:
    """However long that takes, no other asks; and once it was given back, nothing is renewed."""
    pair = Pair()
    pair.start()

    def think_long() -> None:
        pair.clock.advance(10 * LASTS)
        pair.run_two.run_all()

    pair.during = think_long
    pair.run_one.run_all()
    assert len(pair.store.taken) >= 1 + 10 * LASTS / RENEWED
    assert (end_of(pair.one), pair.asked.requests, len(pair.store.released)) == (7, [], 1)
    taken = len(pair.store.taken)
    pair.clock.advance(LASTS)
    assert len(pair.store.taken) == taken


def test_a_killed_process_is_waited_for_no_longer_than_its_lease_lasts() -> None:
    """Its call was in flight, and it renews nothing any more."""
    pair = Pair()
    pair.start()

    def be_killed() -> None:
        pair.one._journal.release(expires=True)
        pair.run_two.run_all()
        assert pair.two.status().skip_reason is Skip.LEASED
        pair.clock.advance(LASTS)
        pair.run_two.run_all()
        assert (end_of(pair.two), len(pair.asked.requests)) == (7, 1)

    pair.during = be_killed
    pair.run_one.run_all()
    assert not of_kind(pair.one.events, Failed), "what is asserted within the call held"


def test_a_process_that_was_stopped_for_too_long_does_not_take_the_lease_back() -> None:
    """The other that has it by now is not disturbed."""
    pair = Pair()
    pair.start()
    other = pair.memories[1].journal(ROLE)

    def be_stopped() -> None:
        pair.store.lease("session", f"compact:{ROLE}", "another", LASTS, take_over=True)
        pair.clock.advance(RENEWED)
        assert other.lease(LASTS) == LASTS - RENEWED
        taken = len(pair.store.taken)
        pair.clock.advance(RENEWED)
        assert len(pair.store.taken) == taken, "and it asks for it no more"

    pair.during = be_stopped
    pair.run_one.run_all()
    assert not of_kind(pair.one.events, Failed), "what is asserted within the call held"


def test_a_lease_that_was_given_back_while_it_was_renewed_is_free() -> None:
    """The renewal was on its way to the store, and took it once more."""
    pair = Pair()
    pair.start()
    lease = pair.store.lease

    def give_back_first(*given: Any, **more: Any) -> float:
        pair.one._journal.release()
        return lease(*given, **more)

    def think() -> None:
        pair.store.lease = give_back_first  # type: ignore[method-assign]
        pair.clock.advance(RENEWED)
        pair.store.lease = lease  # type: ignore[method-assign]
        assert pair.memories[1].journal(ROLE).lease(LASTS) == 0.0

    pair.during = think
    pair.run_one.run_all()
    assert not of_kind(pair.one.events, Failed), "what is asserted within the call held"


def test_a_renewal_that_fails_is_tried_again() -> None:
    """The store may be back before the lease ends."""
    pair = Pair()
    pair.start()

    def think() -> None:
        pair.store.failing = True
        pair.clock.advance(RENEWED)
        pair.store.failing = False
        pair.clock.advance(2 * LASTS)
        pair.run_two.run_all()

    pair.during = think
    pair.run_one.run_all()
    assert (end_of(pair.one), pair.asked.requests) == (7, [])


def test_nothing_is_leased_where_nobody_is_asked() -> None:
    """A trigger that does not hold, nothing to cover, an offline summarizer that costs nothing: no write for those."""
    clock = FakeClock()
    store = Leases(clock)
    memory = Memory("session", store=store)
    for _ in range(10):
        add_round(memory)
    for summarizer, config in [
        (ScriptedSummarizer(), CompactorConfig(threshold=50)),
        (ScriptedSummarizer(), CompactorConfig(threshold=5, retain_recent=10)),
        (ExtractiveSummarizer(), CONFIG),
    ]:
        compactor, executor, _ = on_command(memory, summarizer, config, clock=clock)
        compactor.start()
        executor.run_all()
        assert compactor.stop(0)
    assert end_of(compactor) == 7
    assert (store.taken, store.released) == ([], [])


def test_a_store_that_fails_at_leasing_does_not_stop_the_work() -> None:
    """A lease saves money; what is published never rests on it."""
    pair = Pair()
    pair.store.failing = True
    pair.one.start()
    pair.run_one.run_all()
    assert end_of(pair.one) == 7
    assert not of_kind(pair.one.events, Failed)


def test_a_release_that_fails_is_no_failure() -> None:
    """The lease expires by itself."""
    pair = Pair()

    def fail() -> None:
        pair.store.failing = True

    pair.during = fail
    pair.one.start()
    pair.run_one.run_all()
    assert end_of(pair.one) == 7
    assert not of_kind(pair.one.events, Failed)


def test_where_the_log_cannot_be_read_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be published is not paid for."""
    pair = Pair()

    def read(*_given: object) -> object:
        raise StoreUnreachable("the server is gone; start it")

    monkeypatch.setattr(pair.store, "read", read)
    pair.two.start()
    pair.run_two.run_all()
    assert of_kind(pair.two.events, Failed)[0].error == "StoreUnreachable"
    assert pair.asked.requests == []


def test_stop_gives_the_lease_back_though_the_model_has_not_answered() -> None:
    """The process may end before it does, and another one need not wait for that."""
    pair = Pair()
    pair.start()

    def stop() -> None:
        assert pair.one.stop(0) is False
        assert len(pair.store.released) == 1
        pair.run_two.run_all()

    pair.during = stop
    pair.run_one.run_all()
    assert (end_of(pair.two), len(pair.asked.requests)) == (7, 1)


def test_a_stopped_compactor_does_not_look_again_when_the_lease_expires() -> None:
    """Its timer is taken back."""
    pair = Pair()
    pair.memories[0].journal(ROLE).lease(LASTS)
    pair.two.start()
    pair.run_two.run_all()
    assert pair.clock.pending == [LASTS]
    assert pair.two.stop()
    assert pair.clock.pending == []


def test_a_call_that_was_given_up_does_not_give_the_next_ones_lease_back() -> None:
    """It belongs to the run that came after, whose call is in flight."""
    pair = Pair()
    calls: list[int] = []

    def thinks() -> None:
        calls.append(len(pair.store.released))
        if len(calls) == 1:
            pair.clock.advance(CONFIG.call_timeout)  # given up, and the back-off begins
            pair.clock.advance(10)
            pair.run_one.run_next()  # the next run asks, and answers
            assert end_of(pair.one) == 7
            assert len(pair.store.released) == 1

    pair.during = thinks
    pair.one.start()
    pair.run_one.run_next()
    assert calls == [0, 0]
    assert len(pair.store.released) == 1
    assert of_kind(pair.one.events, Discarded)[-1].reason == "late"


@pytest.mark.parametrize("take_over", [True, False])
def test_who_takes_over_does_not_wait_for_the_lease_of_the_process_before(take_over: bool) -> None:
    """However that had opened the session: it was killed in a call, nobody else is at work, and what is due is asked for
    at once."""
    pair = Pair()
    assert Memory("session", store=pair.store, take_over=take_over).journal(ROLE).lease(LASTS) == 0.0
    assert pair.memories[0].journal(ROLE).lease(LASTS) == LASTS, "a process that others may be beside waits"
    again, executor, _ = on_command(Memory("session", store=pair.store, take_over=True), pair.asked, clock=pair.clock)
    again.start()
    executor.run_all()
    assert (end_of(again), len(pair.asked.requests)) == (7, 1)
    assert pair.memories[0].journal(ROLE).lease(LASTS) == 0.0, "and it was given back"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("take_over", [True, False])
def test_a_forked_child_is_another_holder(tmp_path: Path, take_over: bool) -> None:
    """It has the same objects; its parent goes on. It takes nothing from that, by a journal of before or a new one, and
    gives nothing back."""
    with closing(open_store(f"sqlite:///{(tmp_path / 'chat.db').as_posix()}")) as store:
        memory = Memory("session", store=store, take_over=take_over)
        before = memory.journal(ROLE)
        assert before.lease(LASTS) == 0.0
        child = os.fork()
        if child == 0:
            try:
                before.release()
                os._exit(0 if before.lease(LASTS) > 0 and memory.journal(ROLE).lease(LASTS) > 0 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert before.lease(LASTS) == 0.0


def test_a_store_without_leases_gives_everybody_a_turn() -> None:
    """As before: the compare-and-set of the generation sees to it that one publication counts."""

    class Plain:
        def __init__(self, inner: InMemoryStore) -> None:
            self.append, self.read, self.sessions = inner.append, inner.read, inner.sessions
            self.redact, self.purge, self.close = inner.redact, inner.purge, inner.close

    store = Plain(InMemoryStore())
    memories = [Memory("session", store=store) for _ in range(2)]
    assert [memory.journal(ROLE).lease(60.0) for memory in memories] == [0.0, 0.0]
    memories[0].journal(ROLE).release()


def test_a_dropped_compactor_is_not_kept_alive_by_a_lease() -> None:
    """Its look at the lease's end finds nobody."""
    pair = Pair()
    pair.memories[0].journal(ROLE).lease(LASTS)
    compactor = ContextCompactor(
        CONFIG, pair.asked, pair.memories[1].rounds_getter(ROLE), role=ROLE, journal=pair.memories[1].journal(ROLE),
        executor=pair.run_two, clock=pair.clock,
    )  # fmt: skip
    compactor.start()
    pair.run_two.run_all()
    assert of_kind(compactor.events, Skipped)[-1].reason is Skip.LEASED
    dropped = weakref.ref(compactor)
    del compactor
    gc.collect()
    assert dropped() is None
    pair.clock.advance(LASTS)
    assert pair.run_two.run_all() == 0
    assert not of_kind(pair.two.events, Published)
