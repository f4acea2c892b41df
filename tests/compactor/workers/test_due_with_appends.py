"""A dispatcher whose jobs are in the store's database: the append that makes a compaction due enqueues its job."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest
from executors import ManualExecutor
from forks import needs_fork, run
from scene import CONFIG, ROLE, add_round, on_command

from compactor import (
    CompactorConfig,
    Condition,
    ContextCompactor,
    Skip,
    after_rounds,
    compose,
    cost_optimal,
    over_tokens,
    over_usage,
)
from compactor.cost import Prices
from compactor.testing import FakeClock
from memory import Entry, Memory, StoreBusy
from memory.stores import InMemoryStore, Store


class Shared(InMemoryStore):
    """A store in a database called ``here``. Fails after the work that it is given, if it is told to."""

    fails = False

    def is_in(self, database: object) -> bool:
        return database == "here"

    def append_with(
        self, session: str, entries: Sequence[Entry], after: int, work: Sequence[Callable[[Any], object]]
    ) -> int:
        for do in work:
            do("the connection")
        if self.fails:
            raise StoreBusy("the transaction was rolled back")
        return self.append(session, entries, after)


class Jobs:
    """A dispatcher with a database, that keeps what it was asked for."""

    def __init__(self, database: str = "here", *, takes: bool = True) -> None:
        self.database, self.takes = database, takes
        self.joined: list[tuple[object, str, str]] = []
        self.asked: list[tuple[str, str]] = []

    def due(self, session: str, role: str, _not_before: datetime | None = None) -> None:
        self.asked.append((session, role))

    def due_in(self, connection: object, session: str, role: str) -> bool:
        self.joined.append((connection, session, role))
        return self.takes


JOINED = [("the connection", "s", ROLE)]


def open_host(
    jobs: Jobs, rounds: int = 7, store: Store | None = None, config: CompactorConfig = CONFIG, **options: Any
) -> tuple[Memory, ContextCompactor, ManualExecutor, FakeClock]:
    """Return a host that has evaluated so many rounds."""
    memory = Memory("s", store=Shared() if store is None else store)
    for _ in range(rounds):
        add_round(memory)
    compactor, executor, clock = on_command(memory, None, config, dispatcher=jobs, **options)
    compactor.start()
    executor.run_all()
    return memory, compactor, executor, clock


def test_an_append_that_makes_it_due_enqueues_a_job_and_the_evaluation_no_second_one() -> None:
    jobs = Jobs()
    memory, compactor, executor, _ = open_host(jobs, 6)
    add_round(memory)
    executor.run_all()
    assert jobs.joined == []
    memory.append({"role": "user", "content": "And item-8?"})
    assert jobs.joined == JOINED
    executor.run_all()
    assert (compactor.status().skip_reason, jobs.asked) == (Skip.DISPATCHED, [])
    add_round(memory)
    executor.run_all()
    assert (jobs.joined, jobs.asked) == (JOINED, [])


def test_a_job_that_has_not_come_of_it_is_enqueued_after_the_evaluation() -> None:
    """As where a job waits already: a worker may take that before it can see the append."""
    jobs = Jobs(takes=False)
    memory, _, executor, _ = open_host(jobs)
    add_round(memory)
    executor.run_all()
    assert jobs.asked == [("s", ROLE)]


def test_what_was_appended_since_has_a_job_of_its_own() -> None:
    """The first may have run before."""
    jobs = Jobs()
    memory, _, executor, _ = open_host(jobs)
    memory.append({"role": "user", "content": "And item-8?"})
    memory.append({"role": "assistant", "content": "It costs 88 euros."})
    executor.run_all()
    assert (jobs.joined, jobs.asked) == (JOINED, [("s", ROLE)])


@pytest.mark.parametrize("others_append", [False, True])
def test_an_append_that_fails_counts_for_nothing(others_append: bool) -> None:
    """It is enqueued with the append that succeeds; if another process appends instead, after the evaluation."""
    store, jobs = Shared(), Jobs()
    memory, _, executor, _ = open_host(jobs, store=store)
    store.fails = True
    with pytest.raises(StoreBusy):
        memory.append({"role": "user", "content": "And item-8?"})
    store.fails = False
    if others_append:
        Memory("s", store=store).append({"role": "user", "content": "And item-9?"})
        memory.refresh()
    executor.run_all()
    assert (jobs.joined, jobs.asked) == (JOINED, [("s", ROLE)] if others_append else [])
    if not others_append:
        memory.append({"role": "user", "content": "And item-8?"})
        executor.run_all()
        assert (jobs.joined, jobs.asked) == (2 * JOINED, [])


def test_a_job_of_an_append_that_came_to_nothing_is_enqueued_again() -> None:
    jobs = Jobs()
    memory, _, executor, clock = open_host(jobs)
    memory.append({"role": "user", "content": "And item-8?"})
    executor.run_all()
    assert (jobs.joined, jobs.asked) == (JOINED, [])
    clock.advance(61)
    executor.run_all()
    assert jobs.asked == [("s", ROLE)]


@pytest.mark.parametrize("store", [Shared(), InMemoryStore()], ids=["another database", "no database"])
def test_jobs_elsewhere_are_enqueued_after_the_append(store: Store) -> None:
    jobs = Jobs("elsewhere" if isinstance(store, Shared) else "here")
    memory, _, executor, _ = open_host(jobs, store=store)
    add_round(memory)
    executor.run_all()
    assert (jobs.joined, jobs.asked) == ([], [("s", ROLE)])


def test_a_compactor_that_has_stopped_enqueues_nothing() -> None:
    jobs = Jobs()
    memory, compactor, _, _ = open_host(jobs)
    compactor.stop(0)
    add_round(memory)
    assert (jobs.joined, jobs.asked) == ([], [])


def test_a_compactor_that_was_started_twice_at_once_enqueues_nothing_once_it_has_stopped() -> None:
    jobs, begin = Jobs(), list[Callable[[], None]]()

    class Meeting(Shared):
        def listen(self, session: str, listener: Callable[[], object]) -> Callable[[], None]:
            if begin:
                begin.pop()()  # as another thread may
            return super().listen(session, listener)

    memory = Memory("s", store=Meeting())
    for _ in range(7):
        add_round(memory)
    compactor, executor, _ = on_command(memory, None, CONFIG, dispatcher=jobs)
    begin.append(compactor.start)
    compactor.start()
    executor.run_all()
    assert compactor.status().skip_reason == Skip.BELOW_TRIGGER
    compactor.stop(0)
    add_round(memory)
    assert (begin, jobs.joined, jobs.asked) == ([], [], [])


def test_a_compactor_that_was_dropped_enqueues_nothing() -> None:
    jobs, memory, executor = Jobs(), Memory("s", store=Shared()), ManualExecutor()
    for _ in range(7):
        add_round(memory)
    compactor = ContextCompactor(
        CONFIG,
        rounds_getter=memory.rounds_getter(ROLE),
        role=ROLE,
        journal=memory.journal(ROLE),
        executor=executor,
        dispatcher=jobs,
    )
    compactor.start()
    executor.run_all()
    assert compactor.status().skip_reason == Skip.BELOW_TRIGGER
    del compactor
    gc.collect()
    memory.append({"role": "user", "content": "And item-8?"})
    assert (jobs.joined, jobs.asked) == ([], [])


TEXT = "The order waits for its papers at the customs in Lisbon. " * 20


@pytest.mark.parametrize(
    "trigger",
    [
        over_tokens(3_000),
        over_usage(3_000),
        after_rounds(100) | over_tokens(3_000),
        after_rounds(9) & over_tokens(500),
        cost_optimal(Prices(), budget=4_000),
    ],
    ids=repr,
)
def test_triggers_tell_in_time_that_they_will_be_due(trigger: Condition) -> None:
    """By an estimate: a job or two may find nothing due."""
    jobs = Jobs()
    memory, compactor, executor, _ = open_host(jobs, 0, trigger=trigger)
    for number in range(40):
        round_ = memory.create_round(f"Where is order {number}? {TEXT}")
        executor.run_all()
        memory.add_post(round_, send_from=ROLE, send_to="User", message=TEXT)
        executor.run_all()
        if compactor.status().skip_reason == Skip.DISPATCHED:
            break
    assert (compactor.status().skip_reason, jobs.asked) == (Skip.DISPATCHED, [])
    assert 1 <= len(jobs.joined) <= 3


class Named:
    model = "gpt-5-mini"

    def __call__(self, _request: object) -> str:
        raise AssertionError("workers compact")


def test_the_trigger_of_a_compactor_without_settings_tells_so_too() -> None:
    jobs, memory = Jobs(), Memory("s", store=Shared())
    compactor, executor, _ = on_command(memory, Named(), CompactorConfig(), dispatcher=jobs)
    compactor.start()
    for number in range(60):
        compose(memory, ROLE, budget=16_000)
        round_ = memory.create_round(f"Where is order {number}? {TEXT}")
        executor.run_all()
        memory.add_post(round_, send_from=ROLE, send_to="User", message=TEXT)
        executor.run_all()
        if compactor.status().skip_reason == Skip.DISPATCHED:
            break
    assert (compactor.status().skip_reason, jobs.asked) == (Skip.DISPATCHED, [])
    assert 1 <= len(jobs.joined) <= 3


def test_what_the_role_does_not_see_enqueues_nothing() -> None:
    jobs = Jobs()
    memory, _, executor, _ = open_host(jobs, 0, trigger=over_tokens(1_000))
    round_ = memory.create_round(f"Where is order 1? {TEXT}")
    memory.add_post(round_, send_from=ROLE, send_to="User", message=2 * TEXT)
    executor.run_all()
    for _ in range(10):
        memory.add_post(round_, send_from="Another", send_to="User", message=TEXT)
        executor.run_all()
    assert (jobs.joined, jobs.asked) == ([], [])


def test_a_condition_of_the_hosts_is_not_foreseen() -> None:
    jobs = Jobs()
    memory, _, executor, _ = open_host(jobs, 0, trigger=lambda view: view.total > 3)
    for _ in range(4):
        add_round(memory)
        executor.run_all()
    assert (jobs.joined, jobs.asked) == ([], [("s", ROLE)])


FORKED = """
import sys, threading
from contextlib import closing
from memory import Memory, open_store
from compactor import CompactorConfig, ContextCompactor, Settings
from compactor.testing import ScriptedSummarizer
from compactor.workers import run_due

class Jobs:
    def due(self, session, role, not_before=None):
        pass

config = CompactorConfig(threshold=7, retain_recent=3)
memory = Memory("s", store=open_store(sys.argv[1]))
for number in range(10):
    memory.append({"role": "user", "content": f"What about item-{number}?"})
    memory.append({"role": "assistant", "content": f"It costs {number * 11} euros. " * 3})
compactor = ContextCompactor.for_role(memory, "assistant", config, dispatcher=Jobs())
compactor.start()
assert compactor.wait_idle(20)

def work():
    heard = threading.Event()
    compactor.on_event(lambda _: heard.set() if compactor.get_compaction() else None)
    compactor.start()
    assert compactor.wait_idle(20)
    with closing(open_store(sys.argv[1])) as there:
        settings = Settings(config)
        assert run_due(there, "s", "assistant", settings=settings, summarizer=ScriptedSummarizer()).published
    assert heard.wait(20)

assert exit_code(in_child(work)) == 0
print("well")
"""


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_host_hears_of_what_workers_publish(postgres_url: str) -> None:
    run(FORKED, "", postgres_url)


JOINING = """
from memory import Memory
from memory.stores import InMemoryStore
from compactor import CompactorConfig, ContextCompactor

class Shared(InMemoryStore):
    def is_in(self, database):
        return True

    def append_with(self, session, entries, after, work):
        for do in work:
            do(None)
        return self.append(session, entries, after)

class Jobs:
    database, count = "here", 0

    def due(self, session, role, not_before=None):
        pass

    def due_in(self, connection, session, role):
        self.count += 1
        return True

jobs, memory = Jobs(), Memory("s", store=Shared())
for number in range(7):
    memory.append({"role": "user", "content": f"What about item-{number}?"})
    memory.append({"role": "assistant", "content": f"It costs {number * 11} euros. " * 3})
compactor = ContextCompactor.for_role(memory, "assistant", CompactorConfig(threshold=7), dispatcher=jobs)
compactor.start()
assert compactor.wait_idle(20)

def work():
    compactor.start()
    assert compactor.wait_idle(20)
    memory.append({"role": "user", "content": "And item-7?"})
    assert jobs.count == 1, jobs.count

assert exit_code(in_child(work)) == 0
print("well")
"""


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_host_enqueues_one_job() -> None:
    run(JOINING, "")
