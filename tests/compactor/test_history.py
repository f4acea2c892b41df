"""What became of a role's compactions can be read, reverted and compared later, by another process too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from logged import record
from scene import CONFIG, ROLE, add_round, end_of, in_thread, of_kind, on_command

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Discarded,
    Exhausted,
    Failed,
    IndexingFailed,
    PersistFailed,
    Reduced,
    Reverted,
    Skip,
    State,
    StrategyFailed,
    Summary,
    SummaryRequest,
    compare,
)
from compactor.testing import ScriptedSummarizer
from memory import (
    CompactedMessage,
    CompactionRecord,
    InMemoryStore,
    Memory,
    StaleCompaction,
    Store,
    StoreFull,
    open_store,
)

USAGE = {"input_tokens": 900, "output_tokens": 90}


def answer(request: SummaryRequest) -> Summary:
    return Summary(f"Rounds to {request.end_index} were about prices.", USAGE, "gpt-x")


def process(store: Store, *, rounds: int = 0, **more: Any) -> tuple[Memory, ContextCompactor]:
    """Return what one process has of the session, with all that was due done."""
    memory = Memory("session", store=store)
    for _ in range(rounds):
        add_round(memory)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer(default=answer), **more)
    compactor.start()
    executor.run_all()
    return memory, compactor


def told(compactor: ContextCompactor) -> list[tuple[str, int, tuple[int, int] | None, bool]]:
    return [(one.happened, one.generation, one.rounds, one.current) for one in compactor.history()]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One that is read from the beginning, and one that finds what is asked for."""
    opened = InMemoryStore() if request.param == "memory" else open_store(f"sqlite:///{tmp_path / 'chat.db'}")
    yield opened
    opened.close()


# -- history -----------------------------------------------------------------------------------------------------------


def test_history_tells_what_was_published_and_reverted_by_every_process(store: Store) -> None:
    """Oldest first, with what it took, and which one prompts show now."""
    process(store, rounds=10)
    _, second = process(store, rounds=5)
    second.revert()
    _, third = process(store)
    assert told(third) == [
        ("published", 1, (1, 7), True),
        ("published", 2, (1, 12), False),
        ("reverted", 3, (1, 12), False),
    ]
    first, after, reverted = third.history()
    assert first.round_ids == tuple(f"r{number}" for number in range(1, 8))
    assert after.round_ids == tuple(f"r{number}" for number in range(8, 13))
    assert (after.model, after.usage, after.strategy, len(after.digest)) == ("gpt-x", USAGE, "compact_rounds", 64)
    assert "echo" in after.checks
    assert after.tokens_before is not None
    assert 0 < (after.tokens_after or 0) < after.tokens_before
    assert first.number < after.number < reverted.number
    assert first.at <= after.at <= reverted.at
    assert str(compare(first.compaction, after.compaction)).startswith("Covers rounds 8-12 more: 1 came in, 1 dropped")
    assert third.get_compaction().summary == first.compaction.summary  # type: ignore[union-attr]


def test_a_redaction_withdraws_what_was_made_from_the_post(store: Store) -> None:
    """With every later one, and their texts are gone."""
    process(store, rounds=10)
    memory, compactor = process(store, rounds=5)
    assert told(compactor) == [("published", 1, (1, 7), False), ("published", 2, (1, 12), True)]
    memory.redact("r9.p2")
    _, after = process(store, config=CompactorConfig(threshold=100))
    assert told(after) == [
        ("published", 1, (1, 7), True),
        ("published", 2, (1, 12), False),
        ("withdrawn", 3, (1, 12), False),
    ]
    assert "prices" in after.history()[0].compaction.summary  # type: ignore[union-attr]
    assert all("prices" not in one.compaction.summary for one in after.history()[1:] if one.compaction)


def test_what_was_prepared_and_never_published_is_told() -> None:
    """The step of a long request as well, until what it led to is published; answers about single posts are no compactions."""
    memory, compactor = process(InMemoryStore(), rounds=3)
    journal = memory.journal(ROLE)
    made = CompactedMessage(start_index=1, end_index=2, end_round_id="r2", summary="Two.")
    step = record("compaction prepared", role=ROLE, digest="a", base=0, text="One.", usage={"input_tokens": 5})
    assert journal.prepare(step)
    assert journal.prepare(step.model_copy(update={"digest": "b", "kind": "tool_run"}))
    assert journal.prepare(step.model_copy(update={"digest": "c", "text": "Two.", "compaction": made}))
    assert told(compactor) == [("prepared", 0, None, False), ("prepared", 0, (1, 2), False)]
    assert compactor.history()[0].usage == {"input_tokens": 5}
    journal.publish(made, base=0, round_ids=["r1", "r2"])
    assert told(compactor) == [("prepared", 0, (1, 2), False), ("published", 1, (1, 2), True)]


def test_roles_have_histories_of_their_own() -> None:
    """And a role that never had a compaction has none."""
    memory, _ = process(InMemoryStore(), rounds=10)
    assert memory.journal("CodeInterpreter").history() == ()
    memory.redact("r1.p1")
    assert [one.happened for one in memory.journal(ROLE).history()] == ["published", "withdrawn"]
    assert memory.journal("CodeInterpreter").history() == ()


def test_without_a_memory_history_is_that_of_the_process() -> None:
    """What a host's rounds were compacted to, and what was taken back."""
    memory = Memory("session")
    for _ in range(10):
        add_round(memory)
    compactor = ContextCompactor(CONFIG, ScriptedSummarizer(default=answer), lambda: list(memory.conversation.rounds))
    wait = in_thread(lambda: compactor.compact_now(20))
    assert wait().end_index == 7
    assert told(compactor) == [("published", 1, (1, 7), True)]
    assert compactor.revert() is None
    assert told(compactor) == [("published", 1, (1, 7), False), ("reverted", 2, (1, 7), False)]
    published: CompactionRecord = compactor.history()[0]
    assert (published.round_ids[0], published.usage, published.model) == ("r1", USAGE, "gpt-x")
    assert compactor.stop()


# -- reverting ---------------------------------------------------------------------------------------------------------


def test_a_revert_after_a_restart_goes_where_it_would_have_gone_before(store: Store) -> None:
    """And holds in the process after that, too: nothing is compacted until a round is newer."""
    process(store, rounds=10)
    process(store, rounds=5)
    _, compactor = process(store)
    assert compactor.revert().end_index == 7  # type: ignore[union-attr]
    assert of_kind(compactor.events, Reverted)[0].generation == 3
    memory, after = process(store)
    assert (after.status().generation, after.status().skip_reason, end_of(after)) == (3, Skip.REVERTED, 7)
    add_round(memory)
    _, last = process(store)
    assert (last.status().generation, end_of(last)) == (4, 13)


def test_a_revert_of_what_another_process_has_replaced_is_refused() -> None:
    """It would take back what nobody has looked at. What stands now is shown then, and can be reverted."""
    store = InMemoryStore()
    memory, one = process(store, rounds=10)
    _, two = process(store, rounds=5)
    assert two.status().generation == 2
    assert one.status().generation == 1
    with pytest.raises(StaleCompaction, match="look at what stands now") as raised:
        one.revert()
    assert raised.value.reason == "generation"
    assert one.status().generation == 2
    with pytest.raises(StaleCompaction):
        one.revert(generation=1)
    assert one.revert(generation=2).end_index == 7  # type: ignore[union-attr]
    assert memory.journal(ROLE).read().generation == 3


def test_a_local_journal_reverts_by_compare_and_set_as_well() -> None:
    """Between the look and the revert the compactor's own thread may have published."""
    memory = Memory("session")
    for _ in range(10):
        add_round(memory)
    compactor = ContextCompactor(CONFIG, ScriptedSummarizer(), lambda: list(memory.conversation.rounds))
    in_thread(lambda: compactor.compact_now(20))()
    with pytest.raises(StaleCompaction):
        compactor.revert(generation=0)
    assert compactor.status().generation == 1
    assert compactor.stop()


# -- events in the log -------------------------------------------------------------------------------------------------


def noted(store: Store) -> list[Any]:
    return [entry.record for entry in store.read("session") if entry.kind == "event"]


def test_failures_are_in_the_log_and_do_not_fill_it() -> None:
    """The 1st, 2nd, 4th, 8th of a row, anew from the one that opens the circuit: a month without an endpoint is a few
    lines."""
    store = InMemoryStore()
    memory = Memory("session", store=store)
    for _ in range(10):
        add_round(memory)
    compactor, executor, clock = on_command(memory, ScriptedSummarizer([ConnectionError("secret")] * 20))
    compactor.start()
    for _ in range(20):
        executor.run_all()
        clock.advance(CONFIG.circuit_breaker_reset)
    assert [record.facts["failures"] for record in noted(store)] == [1, 2, 4, 5, 6, 8, 12, 20]
    assert {(record.role, record.name) for record in noted(store)} == {(ROLE, "compaction.failed")}
    assert noted(store)[0].facts["error"] == "ConnectionError"
    assert all("secret" not in entry.body for entry in store.read("session") if entry.kind == "event")


def test_which_events_are_kept() -> None:
    """Those that no other entry tells; after a publication each counts anew."""
    store = InMemoryStore()
    _, compactor = process(store, rounds=10)
    note = compactor._journal.record_failure
    kept = [
        Discarded(role=ROLE, reason="late"),
        Failed(role=ROLE, error="OSError", failures=1, retry_in=1.0),
        StrategyFailed(role=ROLE, strategy="drop", error="ValueError"),
        Exhausted(role=ROLE, strategies=2, tokens=9),
    ]
    for _ in range(3):
        for event in (*kept, Reverted(role=ROLE, end=0)):
            note(event)
    assert [record.name for record in noted(store)] == [event.name for event in (*kept, *kept)]
    for event in compactor.events:  # a publication is among them
        note(event)
    note(kept[0])
    assert len(noted(store)) == 9
    reduced = Reduced(role=ROLE, strategy="s", kind="dropped", round_id="r1", first_post_id="", last_post_id="", posts=1, tokens_before=1, tokens_after=0)  # fmt: skip
    note(reduced)
    assert len(noted(store)) == 9


def test_a_store_without_room_for_an_event_loses_nothing() -> None:
    """It was told to those who asked."""

    class NoEvents(InMemoryStore):
        def append(self, session: str, entries: Any, after: int) -> int:
            if entries[0].kind == "event":
                raise StoreFull("no room; make some")
            return super().append(session, entries, after)

    store = NoEvents()
    memory = Memory("session", store=store)
    for _ in range(10):
        add_round(memory)
    compactor, executor, clock = on_command(memory, ScriptedSummarizer([OSError(), OSError()]))
    compactor.start()
    for _ in range(3):
        executor.run_all()
        clock.advance(60)
    assert len(of_kind(compactor.events, Failed)) == 2
    assert (noted(store), end_of(compactor)) == ([], 7)
    assert [(event.what, event.error) for event in of_kind(compactor.events, PersistFailed)] == [("event", "StoreFull")]


# -- old rounds quick to search ----------------------------------------------------------------------------------------


def searchable() -> InMemoryStore:
    """Return a store that seems to have an index; what is done with it is patched."""
    store = InMemoryStore()
    store.capabilities |= {"searchable"}
    return store


def test_after_a_publication_old_rounds_are_made_quick_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step by step, on the compactor's thread, once there is nothing to compact; and not again until the next."""
    memory = Memory("session", store=searchable())
    for _ in range(10):
        add_round(memory)
    steps: list[int | None] = []

    def index_texts(*, most_rounds: int | None = None) -> bool:
        steps.append(most_rounds)
        return len(steps) >= 3

    monkeypatch.setattr(memory, "index_texts", index_texts)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    executor.run_next()
    assert (end_of(compactor), steps) == (7, []), "what may be due comes first"
    executor.run_all()
    assert len(steps) == 3
    assert all(steps), "bounded steps"
    compactor.notify_rounds_changed()
    executor.run_all()
    assert len(steps) == 3


def test_what_is_due_interrupts_it_and_it_goes_on_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does stop() wait for more than a step."""
    memory = Memory("session", store=searchable())
    for _ in range(10):
        add_round(memory)
    steps: list[int] = []

    def index_texts(*, most_rounds: int | None = None) -> bool:
        steps.append(1)
        if len(steps) == 1:
            compactor.notify_rounds_changed()
        elif len(steps) == 2:
            compactor.stop(0)
        return False

    monkeypatch.setattr(memory, "index_texts", index_texts)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    executor.run_next()
    executor.run_next()
    assert len(steps) == 1
    executor.run_all()
    assert len(steps) == 2


def test_an_executor_has_its_slot_back_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog of a long session does not keep other agents' work waiting."""
    memory = Memory("session", store=searchable())
    for _ in range(10):
        add_round(memory)
    done: list[str] = []

    def index_texts(*, most_rounds: int | None = None) -> bool:
        done.append("step")
        return done.count("step") >= 3

    monkeypatch.setattr(memory, "index_texts", index_texts)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    executor.run_next()
    executor.submit(done.append, "another's")
    executor.run_all()
    assert done == ["step", "another's", "step", "step"]


def test_what_is_published_during_a_step_is_made_quick_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the worker that is at it: two are not at once."""
    memory = Memory("session", store=searchable())
    for _ in range(10):
        add_round(memory)
    steps: list[str] = []

    def index_texts(*, most_rounds: int | None = None) -> bool:
        steps.append(f"begun at {end_of(compactor)}")
        if len(steps) == 1:
            for _ in range(5):
                add_round(memory)
            compactor.notify_rounds_changed()
            while executor.jobs:  # other slots of the executor are free
                in_thread(executor.run_next)()
        steps.append("done")
        return True

    monkeypatch.setattr(memory, "index_texts", index_texts)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    executor.run_all()
    assert (steps, end_of(compactor)) == (["begun at 7", "done", "begun at 12", "done"], 12)


def test_an_executor_that_takes_no_more_steps_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is done after the next run, or when somebody searches."""
    memory = Memory("session", store=searchable())
    for _ in range(10):
        add_round(memory)
    steps: list[int] = []

    def index_texts(*, most_rounds: int | None = None) -> bool:
        steps.append(1)
        executor.is_shut_down = len(steps) == 1
        return len(steps) == 3

    monkeypatch.setattr(memory, "index_texts", index_texts)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    executor.run_all()
    assert (end_of(compactor), len(steps), compactor.status().state) == (7, 1, State.IDLE)
    executor.is_shut_down = False
    compactor.notify_rounds_changed()
    executor.run_all()
    assert len(steps) == 3


def test_a_failing_index_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compaction stands, and a search does what is left."""
    memory = Memory("session", store=searchable())
    for _ in range(10):
        add_round(memory)

    def index_texts(*, most_rounds: int | None = None) -> bool:
        raise StoreFull("no room; make some")

    monkeypatch.setattr(memory, "index_texts", index_texts)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    executor.run_all()
    assert [event.error for event in of_kind(compactor.events, IndexingFailed)] == ["StoreFull"]
    assert (end_of(compactor), compactor.status().failures) == (7, 0)
