"""``run_due``: one cycle from the log alone, on the caller's thread; hosts hand over to it, and a sweep finds the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from scene import CONFIG, PRICES, ROLE, SOON, HurriedClock, add_round, end_of, of_kind, on_command

from compactor import (
    CompactorConfig,
    ConfigError,
    ContextCompactor,
    Failed,
    Settings,
    Skip,
    Skipped,
    Started,
    State,
    Summary,
    SummaryRequest,
    compose,
)
from compactor.testing import FakeClock, ScriptedSummarizer, summarize_by_terms
from compactor.workers import Outcome, Worker, run_due, sweep
from memory import (
    InMemoryStore,
    Memory,
    Store,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    open_store,
)

RULE = Settings(CONFIG)
#: The name of the lease that its compactor holds, and how long that lasts.
LEASE = f"compact:{ROLE}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path / 'log.db'}")
    yield store
    store.close()


def write(store: Store, rounds: int, name: str = "s") -> Memory:
    memory = Memory(name, store=store)
    for _ in range(rounds):
        add_round(memory)
    return memory


class Jobs:
    """A dispatcher that keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, datetime | None]] = []
        self.raises: Exception | None = None
        #: How many it keeps before it raises.
        self.takes = 0

    def due(self, session: str, role: str, not_before: datetime | None = None) -> None:
        if self.raises is not None and len(self.asked) >= self.takes:
            raise self.raises
        self.asked.append((session, role, not_before))


@pytest.mark.parametrize("error", [StoreUnreachable, StoreReadOnly, StoreBusy])
def test_an_answer_that_arrives_while_the_store_is_away_is_not_asked_for_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[StoreError]
) -> None:
    """The job has it alone, and offers it again until the store is back."""
    write(store, 10)
    append, faults = store.append, list[Exception]()

    def fail_twice(*arguments: Any, **options: Any) -> Any:
        if faults:
            raise faults.pop()
        return append(*arguments, **options)

    def answer(_request: SummaryRequest) -> str:
        faults.extend(error("the server is gone; start it") for _ in range(2))
        return PRICES

    monkeypatch.setattr(store, "append", fail_twice)
    asked = ScriptedSummarizer(default=answer)
    outcome = run_due(store, "s", ROLE, settings=RULE, summarizer=asked, clock=HurriedClock())
    assert outcome.published is not None
    assert not faults
    assert len(asked.requests) == 1


def test_no_model_is_asked_while_the_store_takes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would be lost, and paid for again each second."""
    write(store, 10)
    asked = ScriptedSummarizer()
    with monkeypatch.context() as patched:
        for name in ("append", "lease"):
            patched.setattr(store, name, refuse)
        outcome = run_due(store, "s", ROLE, settings=RULE, summarizer=asked)
    assert (outcome.published, outcome.reason, outcome.retry_in, asked.requests) == (None, "failed", 3.0, [])
    assert run_due(store, "s", ROLE, settings=RULE, summarizer=asked).published is not None


def test_a_failure_that_is_not_in_the_log_is_retried_late(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk that still takes leases: the next run does not know how often it failed, nor has its answer."""
    write(store, 10)
    asked = ScriptedSummarizer()
    monkeypatch.setattr(store, "append", refuse)
    outcome = run_due(store, "s", ROLE, settings=RULE, summarizer=asked)
    assert (outcome.reason, outcome.retry_in, len(asked.requests)) == ("failed", CONFIG.backoff_max, 1)


def refuse(*_arguments: object, **_options: object) -> None:
    raise StoreFull("there is no room left; free some")


def test_what_is_due_is_compacted_on_this_thread(store: Store) -> None:
    """From the log alone, and a process that has it open shows it when it reads what is new."""
    memory = write(store, 10)
    threads: list[threading.Thread] = []

    def answer(request: SummaryRequest) -> Summary:
        threads.append(threading.current_thread())
        return Summary(PRICES, {"input_tokens": 1_000_000, "output_tokens": 100_000}, "gpt-5-mini")

    outcome = run_due(store, "s", ROLE, settings=RULE, summarizer=answer)
    assert outcome.published is not None
    assert (outcome.published.end_index, outcome.reason, outcome.retry_in) == (7, "", None)
    assert outcome.spent == pytest.approx(0.25 + 0.2)
    assert threads == [threading.current_thread()]
    assert memory.refresh()
    assert PRICES in str(compose(memory, ROLE, budget=4_000))


def test_nothing_is_asked_where_nothing_is_due(store: Store) -> None:
    """Nor anything written; an unknown session is not created."""
    write(store, 3)
    asked, before = ScriptedSummarizer(), store.get_extent("s")
    assert run_due(store, "s", ROLE, settings=RULE, summarizer=asked) == Outcome(reason=Skip.BELOW_TRIGGER)
    assert run_due(store, "unknown", ROLE, settings=RULE, summarizer=asked) == Outcome(reason=Skip.EMPTY)
    assert (asked.requests, store.get_extent("s"), list(store.sessions())) == ([], before, ["s"])


def test_it_goes_on_until_nothing_is_due(store: Store) -> None:
    """And the second call finds nothing to do."""
    write(store, 10)
    assert run_due(store, "s", ROLE, settings=RULE, summarizer=ScriptedSummarizer()).published
    assert run_due(store, "s", ROLE, settings=RULE).reason == Skip.BELOW_TRIGGER


def test_the_budget_of_the_process_makes_it_due(store: Store) -> None:
    """As that of ``compose`` does in a host."""
    memory = Memory("s", store=store)
    for number in range(8):
        memory.append({"role": "user", "content": f"Where is order {number}? " + "It was to be here on Friday. " * 20})
        memory.append({"role": "assistant", "content": f"Order {number} is in Lisbon. " + "It waits for papers. " * 20})
    model = ScriptedSummarizer(default=summarize_by_terms)
    assert run_due(store, "s", "assistant", summarizer=model, budget=100_000).reason == Skip.BELOW_TRIGGER
    assert run_due(store, "s", "assistant", summarizer=model, budget=2_000).published is not None
    with pytest.raises(ConfigError, match="budget"):
        run_due(store, "s", "assistant", budget=0)


def test_a_failure_is_waited_out_by_all_that_read_the_log(store: Store) -> None:
    """Whoever runs next asks no model before the time, and knows how often it has failed."""
    write(store, 10)
    clock, asked = FakeClock(datetime.now().astimezone()), ScriptedSummarizer(default=RuntimeError("no"))
    waits = []
    for _ in range(3):
        outcome = run_due(store, "s", ROLE, settings=RULE, summarizer=asked, clock=clock, rng=lambda: 1.0)
        assert (outcome.published, outcome.reason) == (None, "failed")
        assert outcome.retry_in is not None
        waits.append(outcome.retry_in)
        again = run_due(store, "s", ROLE, settings=RULE, summarizer=asked, clock=clock)
        assert again.reason == "backing_off"
        assert again.retry_in == pytest.approx(outcome.retry_in)
        clock.advance(outcome.retry_in)
    assert waits[0] < waits[1] < waits[2]
    assert len(asked.requests) == 3
    assert run_due(store, "s", ROLE, settings=RULE, summarizer=ScriptedSummarizer(), clock=clock).published


def test_two_at_once_ask_once(store: Store) -> None:
    """The second returns at once, and says when the lease ends."""
    write(store, 10)
    others: list[Outcome] = []
    asked = ScriptedSummarizer()

    def answer(request: SummaryRequest) -> str:
        others.append(run_due(store, "s", ROLE, settings=RULE, summarizer=asked))
        return PRICES

    assert run_due(store, "s", ROLE, settings=RULE, summarizer=answer).published
    (other,) = others
    assert (other.published, other.reason, asked.requests) == (None, "leased", [])
    assert 0 < (other.retry_in or 0) <= 8


def test_an_answer_that_was_paid_for_by_a_killed_process_is_not_asked_for_again(store: Store) -> None:
    """It is in the log."""
    write(store, 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memory.journal.RoleJournal.publish", be_killed)
        run_due(store, "s", ROLE, settings=RULE, summarizer=lambda _: PRICES)
    asked = ScriptedSummarizer()
    later = FakeClock(datetime.now().astimezone() + timedelta(hours=1))
    outcome = run_due(store, "s", ROLE, settings=RULE, summarizer=asked, clock=later)
    assert (outcome.published is not None, asked.requests, outcome.spent) == (True, [], 0.0)


def be_killed(*_: object, **__: object) -> None:
    raise SystemExit


def test_a_rejected_answer_is_paid_for_too(store: Store) -> None:
    """Its price is part of what was spent."""
    write(store, 10)
    usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    outcome = run_due(store, "s", ROLE, settings=RULE, summarizer=lambda _: Summary("", usage, "gpt-5-mini"))
    assert (outcome.published, outcome.reason) == (None, "failed")
    assert outcome.spent >= 0.25


def test_a_worker_tells_all_hooks(store: Store) -> None:
    """That of its options, and those that were added."""
    write(store, 10)
    first, second = list[object](), list[object]()
    worker = Worker(store=store, settings=RULE, summarizer=lambda _: PRICES, options={"on_event": first.append})
    remove = worker.on_event(second.append, (Started,))
    assert worker.run("s", ROLE).published
    assert [type(event) for event in second] == [Started]
    assert second[0] in first
    remove()


def test_a_purged_session_is_no_error(store: Store) -> None:
    """A job for it may still be there."""
    write(store, 10)
    outcome = Worker(store=store, roles=(ROLE,), settings=RULE, summarizer=_purging(store)).run("s", ROLE)
    assert (outcome.published, outcome.reason, outcome.retry_in) == (None, "session_purged", None)


def _purging(store: Store) -> Any:
    def answer(_request: SummaryRequest) -> str:
        store.purge("s")
        return PRICES

    return answer


# A host with a dispatcher.


def dispatching(memory: Memory, jobs: Jobs, **more: Any) -> tuple[ContextCompactor, Any, FakeClock, ScriptedSummarizer]:
    asked = ScriptedSummarizer()
    compactor, executor, clock = on_command(memory, asked, dispatcher=jobs, **more)
    compactor.start()
    executor.run_all()
    return compactor, executor, clock, asked


def test_a_host_with_a_dispatcher_hands_over_what_is_due() -> None:
    """Once, however much is appended; it asks no model itself, and is not failing."""
    memory, jobs = Memory("s"), Jobs()
    compactor, executor, _, asked = dispatching(memory, jobs)
    for _ in range(12):
        add_round(memory)
        executor.run_all()
    assert jobs.asked == [("s", ROLE, None)]
    assert (asked.requests, of_kind(compactor.events, Started)) == ([], [])
    status = compactor.status()
    assert (status.state, status.skip_reason, status.failures) == (State.IDLE, Skip.DISPATCHED, 0)


def test_it_shows_what_the_worker_made_and_hands_over_the_next() -> None:
    store, jobs = InMemoryStore(), Jobs()
    memory = write(store, 10)
    compactor, executor, _, _ = dispatching(memory, jobs)
    assert run_due(store, "s", ROLE, settings=RULE, summarizer=ScriptedSummarizer()).published
    add_round(memory)
    executor.run_all()
    assert end_of(compactor) == 7
    assert len(jobs.asked) == 1
    for _ in range(7):
        add_round(memory)
    executor.run_all()
    assert len(jobs.asked) == 2


def test_after_a_minute_without_a_result_it_asks_again() -> None:
    """And if there is one, it reads that and is content."""
    store, jobs = InMemoryStore(), Jobs()
    compactor, executor, clock, _ = dispatching(write(store, 10), jobs)
    clock.advance(60)
    executor.run_all()
    assert len(jobs.asked) == 2
    assert run_due(store, "s", ROLE, settings=RULE, summarizer=ScriptedSummarizer()).published
    clock.advance(60)
    executor.run_all()
    assert (len(jobs.asked), end_of(compactor), clock.pending) == (2, 7, [])


def test_an_engine_that_is_down_is_asked_again_later() -> None:
    """That is a failure, as a model's is; prompts go on fitting."""
    jobs = Jobs()
    jobs.raises = ConnectionError("no broker")
    compactor, executor, clock, _ = dispatching(write(InMemoryStore(), 10), jobs)
    assert [event.error for event in of_kind(compactor.events, Failed)] == ["ConnectionError"]
    jobs.raises = None
    clock.advance(of_kind(compactor.events, Failed)[0].retry_in)
    executor.run_all()
    assert jobs.asked == [("s", ROLE, None)]


def test_compact_now_compacts_here() -> None:
    """Whoever waits for it need not wait for a worker."""
    jobs = Jobs()
    memory = write(InMemoryStore(), 10)
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), dispatcher=jobs)
    with compactor:
        assert compactor.wait_idle(SOON)
        found = compactor.compact_now(SOON)
    assert found is not None
    assert found.end_index == 7
    reasons = [event.reason for event in of_kind(compactor.events, Skipped)]
    assert [reason for reason in reasons if reason is not Skip.BELOW_TRIGGER] == [Skip.DISPATCHED]


def test_only_a_dispatcher_is_one() -> None:
    with pytest.raises(TypeError, match="dispatcher: must be a Dispatcher"):
        ContextCompactor.for_role(Memory(), ROLE, dispatcher=lambda: None)  # type: ignore[arg-type]


def test_a_host_hears_of_what_a_worker_published(postgres_url: str) -> None:
    """Without writing, composing or waiting for its minute."""
    with closing(open_store(postgres_url)) as here, closing(open_store(postgres_url)) as there:
        memory, seen = write(here, 10), threading.Event()
        compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, dispatcher=Jobs())
        compactor.on_event(lambda _: seen.set() if compactor.get_compaction() else None)
        with compactor:
            assert compactor.wait_idle(SOON)
            assert run_due(there, "s", ROLE, settings=RULE, summarizer=ScriptedSummarizer()).published
            assert seen.wait(SOON)
        assert end_of(compactor) == 7


# The sweep.


def test_a_crash_between_append_and_dispatch_loses_nothing(store: Store) -> None:
    """The append has marked its session, and the sweep has a worker look at it, once it is left alone."""
    write(store, 10, "left")
    jobs, now = Jobs(), datetime.now().astimezone()
    assert sweep(store, jobs, ["a", "b"], now=now) == 0, "its host may still be there"
    assert sweep(store, jobs, ["a", "b"], now=now + timedelta(minutes=3)) == 1
    assert [(session, role) for session, role, _ in jobs.asked] == [("left", "a"), ("left", "b")]
    assert sweep(store, jobs, ["a", "b"], now=now + timedelta(minutes=9)) == 0


def test_a_session_that_no_engine_took_is_swept_again(store: Store) -> None:
    write(store, 1)
    jobs, later = Jobs(), datetime.now().astimezone() + timedelta(minutes=3)
    jobs.raises = ConnectionError("no broker")
    with pytest.raises(ConnectionError):
        sweep(store, jobs, [ROLE], now=later)
    jobs.raises = None
    assert sweep(store, jobs, [ROLE], now=later) == 1


def test_what_was_handed_over_before_a_fault_is_not_handed_over_again(store: Store) -> None:
    for name in ("a", "b", "c"):
        write(store, 1, name)
    jobs, later = Jobs(), datetime.now().astimezone() + timedelta(minutes=5)
    jobs.takes, jobs.raises = 2, ConnectionError("no broker any more")
    with pytest.raises(ConnectionError):
        sweep(store, jobs, [ROLE], now=later)
    jobs.raises = None
    assert sweep(store, jobs, [ROLE], now=later) == 1
    assert [session for session, _, _ in jobs.asked] == ["a", "b", "c"]


def test_a_sweep_takes_no_more_than_its_limit(store: Store) -> None:
    for name in "abc":
        write(store, 1, name)
    jobs, later = Jobs(), datetime.now().astimezone() + timedelta(minutes=3)
    assert [sweep(store, jobs, [ROLE], now=later, limit=2) for _ in range(3)] == [2, 1, 0]
    assert [session for session, _, _ in jobs.asked] == ["a", "b", "c"]


def test_a_store_that_fails_is_the_callers_affair() -> None:
    """The engine tries again."""

    class Gone(InMemoryStore):
        def read(self, *_: Any, **__: Any) -> Any:
            raise StoreUnreachable("the server is gone; start it")

    with pytest.raises(StoreUnreachable):
        run_due(Gone(), "s", ROLE, settings=Settings(CompactorConfig()))


def test_a_configuration_of_one_role_is_not_taken_for_settings(store: Store) -> None:
    """The error says what to pass."""
    with pytest.raises(ConfigError, match=r"settings: must be Settings, such as Settings\(CompactorConfig"):
        run_due(store, "s", ROLE, settings=CONFIG)  # type: ignore[arg-type]


def test_a_host_on_sqlite_sees_with_its_next_prompt_what_a_worker_published(store: Store, tmp_path: Path) -> None:
    """Without writing, and also where another of its threads holds the writer's lock for nothing new."""
    memory = write(store, 10)
    with (
        closing(open_store(f"sqlite:///{tmp_path / 'log.db'}")) as theirs,
        ContextCompactor.for_role(memory, ROLE, CONFIG, dispatcher=Jobs()),
    ):
        assert PRICES not in str(compose(memory, ROLE, budget=4_000))
        outcome = run_due(theirs, "s", ROLE, settings=RULE, summarizer=lambda _request: PRICES)
        assert outcome.published is not None
        assert PRICES in str(compose(memory, ROLE, budget=4_000).messages)
        composed: list[object] = []
        composing = threading.Thread(target=lambda: composed.append(compose(memory, ROLE, budget=4_000)))
        with memory._lock:
            composing.start()
            composing.join(60)
        assert composed


def test_a_prompt_is_made_where_the_store_cannot_be_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = write(store, 10)
    with ContextCompactor.for_role(memory, ROLE, CONFIG, dispatcher=Jobs()):
        before = compose(memory, ROLE, budget=4_000).messages

        def fail(*_arguments: object) -> object:
            raise StoreUnreachable("away")

        monkeypatch.setattr(store, "read", fail)
        assert compose(memory, ROLE, budget=4_000).messages == before


def test_a_host_that_compacts_by_itself_does_not_refresh(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = write(store, 3)
    with ContextCompactor.for_role(memory, ROLE, CompactorConfig(threshold=100)) as compactor:
        assert compactor.wait_idle(60)
        monkeypatch.setattr(store, "read", None)
        assert compose(memory, ROLE, budget=4_000).messages
