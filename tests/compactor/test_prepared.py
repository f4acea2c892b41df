"""What was paid for is not paid for again: after a crash, a failed publication, a failed step, a stop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from deferred_session import FullStore
from hypothesis import example, given
from hypothesis import strategies as st
from logged import record
from scene import ROLE, ManualExecutor, add_round, end_of, of_kind, on_command, prices

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Discarded,
    ExtractiveSummarizer,
    Failed,
    Prepared,
    Published,
    Rejected,
    Summary,
    SummaryRequest,
    compress_tool_runs,
    count_tokens,
)
from compactor import journal as keeping_module
from compactor.acceptance.checks import CHECKS, Source
from compactor.host_rounds import HostRounds
from compactor.journal import JournalWriter, LocalJournal
from compactor.summarize import SummaryTask, Work, compute_digest
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage, InMemoryStore, Memory, StaleCompaction

USAGE = {"input_tokens": 900, "output_tokens": 90}
PAID = Summary(prices("Paid for"), USAGE, "gpt-x")
NOBODY = ScriptedSummarizer(default=AssertionError("nobody is to be asked"))


def session_of(count: int, store: InMemoryStore) -> Memory:
    memory = Memory("session", store=store)
    for _ in range(count):
        add_round(memory)
    return memory


def records(store: InMemoryStore, kind: str) -> list[Any]:
    return [entry.record for entry in store.read("session") if entry.kind == kind]


def crashed_before_publishing(store: FullStore, rounds: int = 10) -> ScriptedSummarizer:
    """Leave a session behind whose last process was gone between the answer and its publication."""
    summarizer = ScriptedSummarizer([PAID])
    store.refused = frozenset({"compaction published"})
    compactor, executor, _ = on_command(session_of(rounds, store), summarizer)
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Failed)[0].error == "StoreFull"
    store.refused = frozenset()
    return summarizer


def resumed(store: InMemoryStore, summarizer: object = NOBODY, **more: Any) -> tuple[ContextCompactor, ManualExecutor]:
    """Return what the next process has: a compactor that has begun to work."""
    compactor, executor, _ = on_command(Memory("session", store=store), summarizer, **more)
    compactor.start()
    return compactor, executor


def test_an_answer_is_in_the_log_before_it_is_published() -> None:
    """With all that it takes to publish it: what was asked, what came, which rounds it covers."""
    store, summarizer = InMemoryStore(), ScriptedSummarizer([PAID])
    session_of(10, store)
    _, executor = resumed(store, summarizer)
    executor.run_all()
    messages = summarizer.requests[0].messages
    (prepared,), (published,) = records(store, "compaction prepared"), records(store, "compaction published")
    assert prepared.digest == hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
    assert (prepared.role, prepared.base, prepared.kind, prepared.strategy) == (ROLE, 0, "rounds", "compact_rounds")
    assert (prepared.text, prepared.model, dict(prepared.usage)) == (PAID.text, "gpt-x", USAGE)
    assert (prepared.compaction.end_index, prepared.compaction.summary) == (7, PAID.text)
    assert prepared.checks == published.checks == tuple(CHECKS)
    assert prepared.round_ids == published.round_ids == tuple(f"r{number}" for number in range(1, 8))
    assert (published.digest, published.strategy) == (prepared.digest, "compact_rounds")
    assert published.tokens_before > published.tokens_after > 0
    kinds = [entry.kind for entry in store.read("session")]
    assert kinds.index("compaction prepared") < kinds.index("compaction published")


@pytest.mark.parametrize("more", [0, 1, 5])
def test_after_a_crash_what_was_paid_for_is_published_without_asking(more: int) -> None:
    """Also where rounds were added meanwhile; what it took is told, and that it was spent before."""
    store = FullStore()
    crashed_before_publishing(store)
    session_of(more, store)
    compactor, executor = resumed(store)
    executor.run_all()
    (published,) = of_kind(compactor.events, Published)
    assert (published.reused, published.requests, published.usage, published.strategy) == (
        True, 0, USAGE, "compact_rounds",
    )  # fmt: skip
    assert (end_of(compactor), compactor.get_compaction().summary) == (7, PAID.text)  # type: ignore[union-attr]
    assert Memory("session", store=store).snapshot.prepared == {}


def test_what_is_due_beside_it_is_asked_for() -> None:
    """It covers seven rounds of thirty; the others are asked for with it as the summary before."""
    store, summarizer = FullStore(), ScriptedSummarizer()
    crashed_before_publishing(store)
    session_of(20, store)
    compactor, executor = resumed(store, summarizer)
    executor.run_all()
    assert [event.reused for event in of_kind(compactor.events, Published)] == [True, False]
    assert [(one.previous.summary, one.start_index) for one in summarizer.requests if one.previous] == [(PAID.text, 8)]
    assert end_of(compactor) == 27


def test_what_was_made_from_a_round_that_failed_since_is_not_published() -> None:
    """What failed must not reach a prompt through the summary: it is asked anew."""
    store, summarizer = FullStore(), ScriptedSummarizer()
    crashed_before_publishing(store)
    Memory("session", store=store).finish_round("r3", state="failed")
    session_of(1, store)
    compactor, executor = resumed(store, summarizer)
    executor.run_all()
    assert len(summarizer.requests) == 1
    assert of_kind(compactor.events, Published)[0].reused is False


def test_what_was_made_before_a_redaction_or_a_publication_is_stale() -> None:
    """It may hold the text, or lacks what the newer one says."""
    store = FullStore()
    crashed_before_publishing(store)
    memory = Memory("session", store=store)
    journal = memory.journal(ROLE)
    (answer,) = journal.read().prepared
    memory.redact("r1.p2")
    assert journal.read().prepared == ()
    assert journal.prepare(answer) is False
    assert len(records(store, "compaction prepared")) == 1, "a stale one is not even written"
    assert all(PAID.text not in entry.body for entry in store.read("session"))


@pytest.mark.parametrize("first", [1, 2])
def test_one_answer_is_published_once_by_whoever_is_first(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may find what another has just prepared: the second of them has failed at nothing."""
    store = InMemoryStore()
    memories = [Memory("session", store=store) for _ in range(2)]
    for _ in range(10):
        add_round(memories[0])
    memories[1].refresh()
    asked = ScriptedSummarizer()
    one, run_one, _ = on_command(memories[0], asked)
    two, run_two, _ = on_command(memories[1], asked)
    publish_one, publish_two = one._journal.publish, two._journal.publish
    published: list[CompactedMessage] = []

    def of_one(*what: Any, **how: Any) -> CompactedMessage:
        def of_two(*same: Any, **way: Any) -> CompactedMessage:
            if first == 1:
                published.append(publish_one(*what, **how))
            return publish_two(*same, **way)

        monkeypatch.setattr(two._journal, "publish", of_two)
        memories[1].refresh()
        two.start()
        run_two.run_all()
        return published[0] if published else publish_one(*what, **how)

    monkeypatch.setattr(one._journal, "publish", of_one)
    one.start()
    run_one.run_all()
    assert len(asked.requests) == 1
    assert [end_of(one), end_of(two)] == [7, 7]
    assert [memory.journal(ROLE).read().generation for memory in memories] == [1, 1]
    for compactor in (one, two):
        assert not of_kind(compactor.events, Discarded)
        assert compactor.status().failures == 0
        compactor.stop(0)


def test_who_comes_late_with_an_answer_of_the_log_has_failed_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others published it and the next one before this process could: nothing was paid here, and it looks again."""
    store, summarizer = FullStore(), ScriptedSummarizer()
    crashed_before_publishing(store)
    other = Memory("session", store=store)
    compactor, executor = resumed(store, summarizer)
    publish, overtaken = compactor._journal.publish, False

    def late(*what: Any, **how: Any) -> CompactedMessage:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            journal = other.journal(ROLE)
            (answer,) = journal.read().prepared
            assert answer.compaction is not None
            journal.publish(answer.compaction, base=0, round_ids=answer.round_ids)
            further = answer.compaction.model_copy(update={"summary": "The next one.", "end_round_id": "r8"})
            journal.publish(further, base=1, round_ids=["r8"])
        return publish(*what, **how)

    monkeypatch.setattr(compactor._journal, "publish", late)
    executor.run_all()
    assert overtaken
    assert not of_kind(compactor.events, Discarded)
    assert compactor.status().failures == 0
    assert compactor.status().generation == 2
    assert not summarizer.requests


def test_a_trigger_that_no_longer_holds_is_heeded() -> None:
    """Nothing is published that nobody needs."""
    store = FullStore()
    crashed_before_publishing(store)
    compactor, executor = resumed(store, config=CompactorConfig(threshold=50))
    executor.run_all()
    assert compactor.get_compaction() is None


def test_a_publication_that_failed_is_made_up_for_without_asking() -> None:
    """In the same process, after the back-off."""
    store = FullStore()
    store.refused = frozenset({"compaction published"})
    summarizer = ScriptedSummarizer([PAID])
    compactor, executor, clock = on_command(session_of(10, store), summarizer)
    compactor.start()
    executor.run_all()
    store.refused = frozenset()
    clock.advance(60)
    executor.run_all()
    assert (end_of(compactor), len(summarizer.requests)) == (7, 1)


def test_where_the_store_has_no_room_for_an_answer_the_process_keeps_it() -> None:
    """Until the fault is gone: a full disk is not paid for at every try."""
    store = FullStore()
    store.refused = frozenset({"compaction prepared", "compaction published", "event"})
    summarizer = ScriptedSummarizer([PAID])
    compactor, executor, clock = on_command(session_of(10, store), summarizer)
    compactor.start()
    for _ in range(3):
        executor.run_all()
        clock.advance(600)
    assert end_of(compactor) == 0
    store.refused = frozenset()
    executor.run_all()
    assert (end_of(compactor), len(summarizer.requests)) == (7, 1)


def long_round(memory: Memory) -> None:
    round_ = memory.create_round("Read all of it.", id="long")
    for number in range(12):
        text = " ".join(f"Page {number} says that part {number * 40 + part} costs {part} euros." for part in range(30))
        memory.add_post(round_, send_from="User", send_to=ROLE, message=text)
    memory.finish_round(round_)


def test_steps_of_a_fold_before_one_that_failed_are_not_asked_for_again() -> None:
    """Long material takes many requests; each is paid for once, whatever becomes of the others."""
    store, config = InMemoryStore(), CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=1_500)
    long_round(Memory("session", store=store))
    failing = ScriptedSummarizer(
        ["Step one: each part has its price.", "Step two: each part has its price.", OSError()]
    )
    _, executor = resumed(store, failing, config=config)
    executor.run_all()
    assert len(failing.requests) == 3
    summarizer = ScriptedSummarizer(
        default=lambda request: f"Step {len(summarizer.requests)} to {request.end_index}: each part has its price."
    )
    compactor, executor = resumed(store, summarizer, config=config)
    executor.run_all()
    assert end_of(compactor) == 1
    paid = [compute_digest(request) for request in failing.requests[:2]]
    asked = [compute_digest(request) for request in summarizer.requests]
    assert asked[0] == compute_digest(failing.requests[2])
    assert not {*paid} & {*asked}
    assert [event.reused for event in of_kind(compactor.events, Prepared)] == [True, True, *[False] * len(asked)]
    steps = records(store, "compaction prepared")
    assert [step.compaction is not None for step in steps] == [*[False] * (len(steps) - 1), True]


def test_a_tool_run_is_not_summarised_again_where_its_reduction_was_not_published() -> None:
    """Found by what was asked."""
    store = FullStore()
    store.refused = frozenset({"reduction published"})
    memory = Memory("session", store=store)
    memory.append({"role": "user", "content": "Look all of it up."})
    for number in range(6):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        memory.append({"role": "assistant", "content": None, "tool_calls": [call]})
        memory.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"It is number {number}. " * 60})
    memory.append({"role": "assistant", "content": "Done."})
    memory.append({"role": "user", "content": "Thanks."})
    summarizer, executor, clock = (
        ScriptedSummarizer(default="Calls of look gave numbers 0 to 5."),
        ManualExecutor(),
        FakeClock(),
    )
    compactor = ContextCompactor.for_role(
        memory, "assistant", CompactorConfig(), summarizer, trigger=lambda view: view.tail_length > 1,
        strategies=(compress_tool_runs(2),), executor=executor, clock=clock,
    )  # fmt: skip
    compactor.start()
    executor.run_all()
    store.refused = frozenset()
    clock.advance(600)
    executor.run_all()
    assert len(summarizer.requests) == 1
    assert memory.rounds_getter("assistant")().reductions.by_round
    assert records(store, "compaction prepared")[0].kind == "tool_run"


def test_the_newest_answers_are_at_hand_and_no_more() -> None:
    """Where only single posts are summarised, nothing is published that would make them stale."""
    memory = session_of(1, InMemoryStore())
    journal = memory.journal(ROLE)
    for number in range(70):
        journal.prepare(record("compaction prepared", role=ROLE, digest=str(number), base=0, kind="tool_run", text="t"))
    assert [one.digest for one in journal.read().prepared] == [str(number) for number in range(6, 70)]


def test_refused_answers_are_not_kept() -> None:
    """Only what passed the checks is worth anything."""
    store = InMemoryStore()
    session_of(10, store)
    compactor, executor = resumed(store, ScriptedSummarizer(default=""))
    executor.run_all()
    assert of_kind(compactor.events, Rejected)
    assert records(store, "compaction prepared") == []


def test_what_costs_nothing_is_not_kept() -> None:
    """An offline summarizer would answer the same again, and the log is no place for what can be made anew."""
    store = InMemoryStore()
    session_of(10, store)
    compactor, executor = resumed(store, ExtractiveSummarizer())
    executor.run_all()
    assert end_of(compactor) == 7
    assert records(store, "compaction prepared") == []


def test_an_answer_that_comes_after_stop_is_kept_for_the_next_process() -> None:
    """It is not published, and told as discarded."""
    store = InMemoryStore()
    memory = session_of(10, store)

    def summarizer(_request: SummaryRequest) -> Summary:
        compactor.stop(0)
        return PAID

    compactor, executor, _ = on_command(memory, summarizer)
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Discarded)[0].reason == "stopped"
    assert compactor.get_compaction() is None
    after, executor = resumed(store)
    executor.run_all()
    assert after.get_compaction().summary == PAID.text  # type: ignore[union-attr]


def test_while_the_interpreter_exits_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store's modules may be half gone."""
    monkeypatch.setattr(keeping_module, "interpreter_is_exiting", lambda: True)
    store = InMemoryStore()
    session_of(10, store)
    _, executor = resumed(store, ScriptedSummarizer())
    executor.run_all()
    assert records(store, "compaction prepared") == []


def test_an_answer_that_fails_the_checks_of_today_is_asked_for_again() -> None:
    """A newer version may know more of what is wrong with one."""
    request = SummaryRequest(messages=[{"role": "user", "content": "Summarise."}])
    kept, asked = JournalWriter(LocalJournal(lambda: None), "", print), []  # type: ignore[arg-type, return-value]
    kept.prepare(
        record(
            "compaction prepared", role="", digest=compute_digest(request), base=0, text="Hello! How can I help you?"
        )
    )

    def ask(request: SummaryRequest) -> str:
        asked.append(request)
        return "It was said fifty times."

    rounds = HostRounds([], "")
    work = Work(summarizer=ask, count=count_tokens, journal=kept, rounds=rounds)  # type: ignore[arg-type]
    assert work.summarize(SummaryTask(request, Source("What was said. " * 50, 200))).text == "It was said fifty times."
    assert len(asked) == 1
    assert work.summarize(SummaryTask(request, Source("What was said. " * 50, 200))).text == "It was said fifty times."
    assert len(asked) == 1


def test_a_hosts_own_journal_needs_no_more_than_before() -> None:
    """What it does not keep, this process does; reverting goes by what it reads."""
    memory = session_of(10, InMemoryStore())
    inner = memory.journal(ROLE)

    class Plain:
        read, revert = inner.read, inner.revert
        failing = True

        def publish(self, made: Any, *, base: int, round_ids: Sequence[str]) -> Any:
            if self.failing:
                raise OSError
            return inner.publish(made, base=base, round_ids=round_ids)

    journal, summarizer = Plain(), ScriptedSummarizer()
    compactor, executor, clock = on_command(memory, summarizer, journal=journal)
    compactor.start()
    executor.run_all()
    journal.failing = False
    clock.advance(60)
    executor.run_all()
    assert (end_of(compactor), len(summarizer.requests)) == (7, 1)
    assert of_kind(compactor.events, Published)[0].reused
    with pytest.raises(StaleCompaction, match="nothing was reverted"):
        compactor.revert(generation=0)
    assert compactor.revert() is None
    assert (compactor.status().generation, compactor.history()) == (2, ())


# -- two processes -----------------------------------------------------------------------------------------------------

ACTIONS = st.sampled_from(["add", "add", "add", "run", "run", "wait", "revert", "stop", "start", "fail"])
STEPS = st.lists(
    st.tuples(ACTIONS, st.integers(0, 1), st.lists(st.tuples(ACTIONS, st.integers(0, 1)), max_size=2)), max_size=25
)


class Two:
    """Two processes at one session, with what they do to each other while a model thinks."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = InMemoryStore(self.clock.monotonic)
        self.memories = [Memory("session", store=self.store) for _ in range(2)]
        self.during: list[tuple[str, int]] = []
        self.answered: set[tuple[int, str]] = set()
        self.failing, self.stopped, self.in_flight = False, False, 0
        self.wrong: list[str] = []  # not raised where it is found: a compactor takes that for a failing model
        made = [on_command(memory, self.asked_by(memory), clock=self.clock) for memory in self.memories]
        self.compactors, self.executors = [one[0] for one in made], [one[1] for one in made]
        for compactor in self.compactors:
            compactor.start()

    def asked_by(self, memory: Memory) -> Callable[[SummaryRequest], str]:
        def summarizer(request: SummaryRequest) -> str:
            question = (memory.journal(ROLE).read().generation, compute_digest(request))
            if question in self.answered:
                self.wrong.append("an answer is paid for twice")
            if self.in_flight and not self.stopped:
                self.wrong.append("both ask at once, though nobody gave the lease back")
            self.in_flight += 1
            during, self.during = self.during, []
            for name, which in during:
                self.do(name, which)
            self.in_flight -= 1
            if self.failing:
                self.failing = False
                raise OSError
            self.answered.add(question)
            return prices(f"Up to {request.end_index}")

        return summarizer

    def do(self, name: str, which: int) -> None:
        compactor, memory = self.compactors[which], self.memories[which]
        if name == "add":
            memory.refresh()
            add_round(memory)
        elif name == "run":
            self.executors[which].run_next()
        elif name == "wait":
            self.clock.advance(10.0)
        elif name == "revert":
            with suppress(StaleCompaction):  # the other one published since
                compactor.revert()
        elif name == "stop":
            self.stopped = True
            compactor.stop(0)
        elif name == "start":
            compactor.start()
        else:
            self.failing = True

    def generations(self) -> Iterator[int]:
        for entry in self.store.read("session"):
            if entry.kind == "compaction published":
                yield entry.record.compaction.generation  # type: ignore[union-attr]
            elif entry.kind == "compaction reverted":
                yield entry.record.generation  # type: ignore[union-attr]


@example(steps=[("run", 0, [("stop", 0)]), ("start", 0, []), ("run", 0, [])])
@example(steps=[("run", 0, [("stop", 0)]), ("run", 1, []), ("run", 1, [])])
@given(steps=STEPS)
def test_two_processes_pay_once_and_show_the_same(steps: list[tuple[str, int, list[tuple[str, int]]]]) -> None:
    """Whatever the interleaving: generations grow one by one, and both show what was published last."""
    two = Two()
    for _ in range(8):
        two.do("add", 0)
    for name, which, during in steps:
        two.during = during
        two.do(name, which)
        two.during = []
    assert not two.wrong
    generations = list(two.generations())
    assert generations == list(range(1, len(generations) + 1))
    for memory in two.memories:
        memory.refresh()
    states = [memory.journal(ROLE).read() for memory in two.memories]
    assert states[0] == states[1] == Memory("session", store=two.store).journal(ROLE).read()
    assert states[0].generation == len(generations)
