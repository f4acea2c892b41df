"""Whatever happens while compactions are deferred: what is shown is the log's beginning in other words, and prompts fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from executors import ManualExecutor
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scene import ROLE

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Deferred,
    Event,
    Failed,
    Prices,
    Published,
    SummaryRequest,
    compose,
    deferred,
)
from compactor.testing import FakeClock
from memory import CompactedMessage, HookFailed, InMemoryStore, Memory

CONFIG = CompactorConfig(threshold=4, retain_recent=2)
#: Nothing is left out of a prompt of so many tokens; the newest round alone fits into so few.
WIDE, NARROW = 10_000, 250


def telling(request: SummaryRequest) -> str:
    """A summary that says which rounds it was made from."""
    before = told(request.previous)
    return f"It tells of rounds {', '.join([*before, *(round_.id for round_ in request.rounds)])}."


def told(compaction: CompactedMessage | None) -> list[str]:
    return re.findall(r"q\d+", compaction.summary) if compaction is not None else []


class Deferral(RuleBasedStateMachine):
    """One session, one process after the other, and a host that does what it likes."""

    @initialize(
        written=st.sampled_from([0.15, 1.0, 1_000.0]),
        budget=st.sampled_from([None, 300, 600]),
        rounds=st.integers(0, 12),
    )
    def begin(self, written: float, budget: int | None, rounds: int) -> None:
        self.clock, self.store = FakeClock(), InMemoryStore()
        self.publish = deferred(Prices(cached_input=0.1, cache_write=written), budget=budget)
        self.count = 0
        self.wrong: list[Any] = []
        self.before: Sequence[dict[str, Any]] = []
        self.changes = 0
        self.told: set[str] = set()
        self.process()
        self.talk(rounds)

    def process(self) -> None:
        self.memory = Memory("session", store=self.store, clock=self.clock.now, take_over=True)
        self.executor = ManualExecutor()
        self.compactor = ContextCompactor.for_role(
            self.memory, ROLE, CONFIG, telling, publish=self.publish,
            executor=self.executor, clock=self.clock, rng=lambda: 1.0, on_event=self.heard,
        )  # fmt: skip
        self.compactor.start()

    def heard(self, event: Event) -> None:
        """What is published tells of exactly the rounds that it covers, and for a reason that was told."""
        if isinstance(event, (Failed, HookFailed)):
            self.wrong.append(event)
        elif isinstance(event, Deferred):
            self.cost_evaluation = event
        elif isinstance(event, Published):
            rounds, shown = self.memory.get_role_rounds(ROLE)
            covered = [round_.id for round_ in rounds[: shown.end_index]] if shown is not None else []
            # What was shown before tells of rounds that failed since.
            if [one for one in told(shown) if one in covered or one not in self.told] != covered:
                self.wrong.append(event)
            self.told.update(told(shown))
            if (
                not self.cost_evaluation.shows
                or not self.cost_evaluation.tokens_after < self.cost_evaluation.tokens_before
            ):
                self.wrong.append(self.cost_evaluation)

    @rule(rounds=st.integers(1, 7))
    def talk(self, rounds: int) -> None:
        """Each round is looked at before it is closed, and after it."""
        for _ in range(rounds):
            self.add_round(look=True)
            self.look()

    @rule(look=st.booleans())
    def add_round(self, look: bool) -> None:
        self.count += 1
        round_ = self.memory.create_round(f"Question {self.count}: what of it?", id=f"q{self.count}")
        self.memory.add_post(round_, send_from=ROLE, send_to="User", message=f"It is item-{self.count}. " * 8)
        if look:
            self.look()
        self.memory.finish_round(round_)

    @rule()
    def open_round(self) -> None:
        """One that the next closes."""
        self.count += 1
        self.memory.create_round(f"Question {self.count}?", id=f"q{self.count}")

    @rule()
    def look(self) -> None:
        self.executor.run_all()

    @rule(seconds=st.sampled_from([1.0, 200.0, 300.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.look()

    @rule()
    def prompt_that_is_short(self) -> None:
        assert compose(self.memory, ROLE, budget=NARROW).tokens <= NARROW

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """One of the newest, which may be covered by what is deferred."""
        self.memory.finish_round(f"q{data.draw(st.integers(max(self.count - 7, 1), self.count))}", state="failed")
        self.before = []

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def redact(self, data: st.DataObject) -> None:
        self.memory.redact(f"r{data.draw(st.integers(1, self.count))}.p0")
        self.before = []

    @rule()
    def revert(self) -> None:
        self.compactor.revert()

    @rule(crash=st.booleans())
    def next_process(self, crash: bool) -> None:
        if not crash:
            self.compactor.stop(0)
        self.process()

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert self.wrong == []

    @invariant()
    def what_is_shown_covers_the_beginning(self) -> None:
        """Every round is told of or in the tail, in order; those that failed afterwards may still be told of."""
        rounds, shown = self.memory.get_role_rounds(ROLE)
        covered = [round_.id for round_ in rounds[: shown.end_index]] if shown is not None else []
        failed = {round_.id for round_ in self.memory.conversation.rounds if round_.state == "failed"}
        assert [one for one in told(shown) if one not in failed] == covered

    @invariant()
    def a_prompt_goes_on_from_the_one_before(self) -> None:
        """Unless something was published, or taken back: what is deferred breaks nothing."""
        messages = compose(self.memory, ROLE, budget=WIDE).messages
        changes = sum(
            entry.kind in ("compaction published", "compaction reverted", "post redacted")
            for entry in self.store.read("session")
        )
        if changes == self.changes:
            assert messages[: len(self.before)] == self.before
        rounds, shown = self.memory.get_role_rounds(ROLE)
        # Where all behind the compaction has failed, its last query is repeated: until there is another one.
        repeats = shown is not None and shown.end_index == len(rounds)
        self.before, self.changes = [] if repeats else messages, changes

    def teardown(self) -> None:
        self.compactor.stop(0)


TestHolding = Deferral.TestCase
TestHolding.pytestmark = [pytest.mark.slow]
TestHolding.pytestmark = [pytest.mark.slow]
TestHolding.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
