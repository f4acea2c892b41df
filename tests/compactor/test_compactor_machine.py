"""Whatever happens, in whatever order: every visible round is covered exactly once, and nothing goes back by itself.

Jobs run only when the machine says so, time passes only when it says so, and what happens during a call to the
summarizer happens in that call: so Hypothesis decides every interleaving, and a failure can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scene import ROLE, ManualExecutor, PanicException

from compactor import (
    CompactionTimeout,
    CompactorConfig,
    ContextCompactor,
    Event,
    Failed,
    Published,
    Reverted,
    State,
    SummaryRequest,
)
from compactor.testing import FakeClock
from memory import CompactedMessage, Memory

CONFIG = CompactorConfig(threshold=3, summarizer_input_tokens=1_000, target_tokens=None, circuit_breaker_failures=3)
#: What the summarizer answers, if it is not what it should; exceptions are raised.
BAD: dict[str, Any] = {
    "empty": "",
    "greeting": "Hello! How can I help you?",
    "no text": b"bytes",
    "an error": OSError("down"),
    "a panic": PanicException("index out of bounds"),
}
ANSWERS = st.sampled_from(["good", "good", "good", *BAD])
DURING = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "close", "fail", "notify", "stop", "start", "restart", "revert", "deadline", "wait", "run"]
        ),
        st.integers(0, 3),
    ),
    max_size=3,
)


@dataclass
class Call:
    """A call to the summarizer that is in flight, or was."""

    began: float
    stopped: bool = False
    late: bool = False


def numbers_in(summary: str) -> list[int]:
    """Which rounds a good summary covers, by their numbers in the log."""
    spans = [span.split("-") for span in re.findall(r"\d+-\d+", summary)]
    return [number for first, last in spans for number in range(int(first), int(last) + 1)]


def text_of(compaction: CompactedMessage) -> str:
    """Return what the model wrote of it: the rest was extracted without one."""
    place = compaction.extra.get("offline")
    return compaction.summary if place is None else compaction.summary[: place["characters"]]


def good_summary(request: SummaryRequest) -> str:
    """Return a summary that says which rounds it covers; pieces of one round count once."""
    numbers = numbers_in(request.previous.summary) if request.previous else []
    for round_ in request.rounds:
        assert round_.state == "finished", "only closed rounds that did not fail are sent"
        numbers.append(round_.number)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "Covers " + ", ".join(f"{first}-{last}" for first, last in spans)


class Compaction(RuleBasedStateMachine):
    @initialize(rounds=st.integers(0, 9), retain=st.integers(0, 2), start=st.sampled_from([True, True, True, False]))
    def begin(self, rounds: int, retain: int, start: bool) -> None:
        self.config = CONFIG.copy_with(retain_recent=retain)
        self.memory = Memory("s")
        self.executor, self.clock = ManualExecutor(), FakeClock()
        self.states: list[str] = []  # of each round, in the order of the log
        self.said: list[list[str]] = []  # in each round
        self.kept: list[tuple[int, str]] = []  # what was published and not reverted: last round and summary
        self.generation = 0
        self.reverted_at = 0  # how many rounds there were at a revert that nothing was published after
        self.wrong: list[AssertionError] = []
        self.calls: list[Call] = []  # in flight
        self.newest = Call(0.0)
        self.answered = self.newest
        self.rest_until = 0.0  # the end of the back-off
        self.script: list[
            tuple[str, list[tuple[str, int]]]
        ] = []  # for the next calls: the answer, and what happens during it
        self.wanted = False  # started and not stopped since
        self.asked = False  # by compact_now, whose run may still be to come
        self.compactor = ContextCompactor.for_role(
            self.memory,
            ROLE,
            self.config,
            self.summarizer,
            executor=self.executor,
            clock=self.clock,
            rng=lambda: 1.0,
            on_event=self.note,
            history=10_000,
        )
        for _ in range(rounds):
            self._add()
        if start:
            self._start()

    @property
    def replaceable(self) -> bool:
        """Whether what was current before the newest publication may be replaced by one that reaches no further."""
        records = [one for one in self.memory.journal(ROLE).history() if one.happened == "published"]
        before = {
            (one.compaction.end_number, one.compaction.summary): one.compaction for one in records if one.compaction
        }
        return bool(self.kept) and before[self.kept[-1]].is_offline

    # -- what it is told, and asked

    def note(self, event: Event) -> None:
        with self.kept_for_later():
            self.check(event)

    @contextmanager
    def kept_for_later(self) -> Iterator[None]:
        """Keep what does not hold: the compactor lets nothing out that a hook or a summarizer raises."""
        try:
            yield
        except AssertionError as error:
            self.wrong.append(error)
            raise

    def check(self, event: Event) -> None:
        current = self.memory.journal(ROLE).read().current
        if isinstance(event, Published):
            assert self.wanted or self.asked, "nothing is published after stop()"
            assert self.asked or not self._waits_after_revert(), "after a revert it waits for a newer round"
            if not event.reused and not event.offline:
                assert not self.answered.stopped, "an answer to a call that was in flight at stop() is only kept"
                assert not self.answered.late, "one that comes after its deadline is discarded"
            assert current is not None
            assert event.offline is current.is_offline
            if event.offline:
                assert self.compactor.status().circuit_open, "the published summary stays while retries run"
            new = set(numbers_in(text_of(current))) - set(numbers_in(self.kept[-1][1] if self.kept else ""))
            assert not [number for number in new if self.states[number - 1] == "failed"], "nothing that failed is shown"
            assert current.end_number is not None
            at_least = self.kept[-1][0] + (not self.replaceable or event.offline) if self.kept else 1
            assert current.end_number >= at_least, "the end never goes back"
            self.kept.append((current.end_number, current.summary))
            self.reverted_at = 0
        elif isinstance(event, Reverted):
            self.kept.pop()
            self.reverted_at = len(self.states)
        elif isinstance(event, Failed) and not self.newest.stopped:  # else it begins anew when it is started
            self.rest_until = self.clock.monotonic() + event.retry_in
        if isinstance(event, Published | Reverted):
            self.generation += 1
            assert event.generation == self.generation, "each publication and each revert is one generation"

    def summarizer(self, request: SummaryRequest) -> Any:
        with self.kept_for_later():
            assert all(call.late for call in self.calls), "one call at a time, but for those that were given up"
            assert self.asked or self.clock.monotonic() >= self.rest_until, "a back-off is not cut short"
        answer, during = self.script.pop() if self.script else ("good", [])
        self.newest = call = Call(self.clock.monotonic())
        self.calls.append(call)
        try:
            for name, pick in during:
                self.do(name, pick)
        finally:
            self.calls.remove(call)
            self.answered = call
        if answer == "good":
            with self.kept_for_later():
                return good_summary(request)
        if isinstance(BAD[answer], BaseException):
            raise BAD[answer]
        return BAD[answer]

    # -- what may happen at any time, also during a call

    def do(self, name: str, pick: int = 0) -> None:
        actions: dict[str, Callable[[], object]] = {
            "add": self._add,
            "post": self._post,
            "close": lambda: self._end_round(len(self.states), "finished"),
            "fail": lambda: self._end_round(len(self.states) - pick, "failed"),  # counted from the newest
            "notify": lambda: self.compactor.notify_rounds_changed(pick),
            "start": self._start,
            "stop": self._stop,
            "restart": lambda: (self._stop(), self._start()),
            "revert": self.compactor.revert,
            "deadline": lambda: self._advance(CONFIG.call_timeout),
            "wait": lambda: self._advance(0.7 * (1 + pick)),
            "run": self.executor.run_next,
        }
        actions[name]()

    def _add(self) -> None:
        if self.states and self.states[-1] == "created":
            self.states[-1] = "finished"
        number = len(self.states) + 1
        self.memory.create_round(f"question {number} " * 30, id=f"r{number}")
        self.states.append("created")
        self.said.append([])

    def _post(self) -> None:
        if self.states and self.states[-1] == "created":
            text = f"answer {len(self.said[-1])} of round {len(self.states)}"
            self.memory.add_post(f"r{len(self.states)}", send_from=ROLE, send_to="User", message=text)
            self.said[-1].append(text)

    def _end_round(self, number: int, state: Any) -> None:
        if number < 1 or (state == "finished" and self.states[-1] != "created"):
            return
        failed = state == "failed" != self.states[number - 1]
        self.memory.finish_round(f"r{number}", state=state)
        self.states[number - 1] = state
        if failed and self.kept and self.kept[-1][0] >= number:  # what covers it gives way, as a new generation
            self.kept = [one for one in self.kept if one[0] < number]
            self.generation += 1

    def _advance(self, seconds: float) -> None:
        for call in self.calls:
            call.late |= self.clock.monotonic() + seconds - call.began >= CONFIG.call_timeout
        self.clock.advance(seconds)

    def _start(self) -> None:
        if not self.wanted:
            self.rest_until = 0.0  # who starts it wants to see it try
        self.wanted = True
        self.compactor.start()

    def _stop(self) -> None:
        self.wanted = self.asked = False
        for call in self.calls:
            call.stopped = True
        assert self.compactor.stop(0) is not bool(self.calls), "True when no worker is left"

    # -- rules

    @rule(count=st.integers(1, 5))
    def rounds_are_added(self, count: int) -> None:
        for _ in range(count):
            self._add()
            self._post()

    @rule(name=st.sampled_from(["post", "close", "notify", "start", "stop", "revert", "wait", "deadline"]))
    def something_happens(self, name: str) -> None:
        self.do(name)

    @rule(pick=st.integers(0, 6))
    def a_round_fails(self, pick: int) -> None:
        """Open or closed, compacted or not."""
        self.do("fail", pick)

    @precondition(lambda self: self.executor.jobs)
    @rule()
    def all_jobs_run(self) -> None:
        self.executor.run_all()
        self.asked = False

    @precondition(lambda self: self.executor.jobs)
    @rule(answer=ANSWERS, during=DURING)
    def a_job_runs(self, answer: str, during: list[tuple[str, int]]) -> None:
        self.script = [(answer, during)]
        self.executor.run_next()
        self.script = []
        self.asked &= bool(self.executor.jobs)

    @rule()
    def compact_now(self) -> None:
        """It does not wait, so the run goes on without it."""
        self.asked, self.rest_until = True, 0.0
        with pytest.raises(CompactionTimeout):
            self.compactor.compact_now(0)

    # -- what always holds

    @invariant()
    def nothing_was_wrong_on_the_way(self) -> None:
        for error in self.wrong:
            raise error

    @invariant()
    def every_visible_round_is_covered_exactly_once(self) -> None:
        rounds, compaction = self.memory.get_role_rounds(ROLE)
        visible = [number for number, state in enumerate(self.states, 1) if state != "failed"]
        assert [round_.number for round_ in rounds] == visible
        end = compaction.end_index if compaction else 0
        covered = numbers_in(text_of(compaction)) if compaction else []
        if compaction is not None and compaction.is_offline:  # behind the model's text, what was extracted since
            folded = compaction.extra["offline"]["rounds"]
            assert folded == end - len(covered)
            covered += visible[len(covered) : end]
        assert len(covered) == len(set(covered)), "no round twice"
        assert covered == visible[:end], "and none that has failed"
        assert [round_.number for round_ in rounds[end:]] == visible[end:]

    @invariant()
    def the_published_one_is_the_newest_that_was_not_reverted(self) -> None:
        state = self.memory.journal(ROLE).read()
        assert state.generation == self.generation == self.compactor.status().generation
        current = state.current
        assert (current and (current.end_number, current.summary)) == (self.kept[-1] if self.kept else None)

    @invariant()
    def raw_rounds_never_change(self) -> None:
        rounds = self.memory.conversation.rounds
        assert [round_.state for round_ in rounds] == self.states
        assert [[post.message for post in round_.post_list] for round_ in rounds] == self.said

    @invariant()
    def nothing_that_is_due_is_forgotten(self) -> None:
        """Idle means that there is nothing to do; all other states have something that ends them."""
        status = self.compactor.status()
        if status.state in (State.EVALUATING, State.COMPACTING):
            assert self.executor.jobs
        elif status.state is State.BACKING_OFF:
            assert self.clock.pending
        elif status.state is State.IDLE:
            assert self.compactor.wait_idle(0)
            assert not self._due()
        else:
            assert not self.wanted

    def _due(self) -> bool:
        rounds, compaction = self.memory.get_role_rounds(ROLE)
        if self._waits_after_revert():
            return False
        if compaction is not None and compaction.is_offline:  # until a good answer replaces it
            return True
        end = compaction.end_index if compaction else 0
        planned = min(rounds.closed, len(rounds) - self.config.retain_recent)
        return len(rounds) - end > CONFIG.threshold and planned > end

    def _waits_after_revert(self) -> bool:
        newer = self.states[self.reverted_at :]
        return self.reverted_at > 0 and all(state == "failed" for state in newer)

    def teardown(self) -> None:
        """Once the model answers, all that is due is done, whatever happened before."""
        if not hasattr(self, "compactor"):
            return
        self._start()
        for _ in range(7):
            self._add()
        for _ in range(10):
            self.executor.run_all()
            self.clock.advance(CONFIG.circuit_breaker_reset)
        assert self.compactor.status().state is State.IDLE
        assert not self._due()
        self._stop()


TestCompaction = Compaction.TestCase
TestCompaction.pytestmark = [pytest.mark.slow]
TestCompaction.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining a failure takes minutes
)
TestCompaction = pytest.mark.timeout(300)(TestCompaction)


def test_a_good_summary_says_what_it_covers() -> None:
    """The machine's own yardstick."""
    assert numbers_in("Covers 1-3, 5-5, 7-8") == [1, 2, 3, 5, 7, 8]
