"""Whatever is undone, and whenever: no word of it is told again, in any process, and everything else is told."""

from __future__ import annotations

import re
from typing import Any

import pytest
from executors import ManualExecutor
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Discarded,
    Memory,
    Published,
    SummaryRequest,
    after_rounds,
    compact_rounds,
    compose,
    deferred,
    offload_large,
    over_tokens,
)
from compactor.testing import FakeClock
from memory import Event, InMemoryStore, Recall, UnknownReference

ROLE = "assistant"
CONFIG = CompactorConfig(threshold=3, retain_recent=1)
WIDE, NARROW = 100_000, 2_500
FILLING = " and so on, as everybody here knows very well by now" * 6


def words_in(value: object) -> list[str]:
    """Return the words that stand for one message each, in order."""
    return re.findall(r"word\d+x", str(value))


class Rewinding(RuleBasedStateMachine):
    """One session, two processes, and a host that changes its mind."""

    published = discarded = 0

    @initialize(defers=st.booleans())
    def begin(self, defers: bool) -> None:
        self.clock, self.store, self.defers = FakeClock(), InMemoryStore(), defers
        self.count, self.undone, self.asked = 0, set[str](), list[set[str]]()
        self.during: str | None = None
        self.process()
        self.other = Memory("session", store=self.store, clock=self.clock.now)
        self.talk(3, 1)

    def process(self) -> None:
        self.memory = Memory("session", store=self.store, clock=self.clock.now, take_over=True)
        self.executor = ManualExecutor()
        self.compactor = ContextCompactor.for_role(
            self.memory, ROLE, CONFIG, self.summarize, strategies=(offload_large(60, keep_last=0), compact_rounds),
            trigger=after_rounds(3) | over_tokens(1_500), publish=deferred() if self.defers else "immediately", executor=self.executor, clock=self.clock,
            rng=lambda: 1.0, on_event=self.hear,
        )  # fmt: skip
        self.compactor.start()

    def summarize(self, request: SummaryRequest) -> str:
        """Repeat every word that was told, perhaps after the host has undone some."""
        told = words_in([request.messages, request.previous, request.rounds])
        if self.undone.intersection(told):
            raise AssertionError(f"asked about {self.undone.intersection(told)}")
        if self.during is not None:
            ref, self.during = self.during, None
            self.rewind(ref)
        return f"The user asked for {', '.join(dict.fromkeys(told))}, and was answered."

    def hear(self, event: Event) -> None:
        type(self).published += isinstance(event, Published)
        type(self).discarded += isinstance(event, Discarded)

    def word(self) -> str:
        self.count += 1
        return f"word{self.count}x"

    @rule(rounds=st.integers(1, 5), calls=st.integers(0, 2))
    def talk(self, rounds: int, calls: int) -> None:
        """Rounds, with a look at each."""
        for _ in range(rounds):
            self.turn(calls)
            self.look()

    def turn(self, calls: int) -> None:
        """A query, calls of a tool, and an answer."""
        self.memory.append({"role": "user", "content": f"What of {self.word()}{FILLING}?"})
        for _ in range(calls):
            asked = {"id": f"c{self.count}", "type": "function"}
            asked |= {"function": {"name": "look", "arguments": f'{{"for": "{self.word()}"}}'}}
            self.memory.append({"role": "assistant", "content": None, "tool_calls": [asked]})
            found = {"role": "tool", "tool_call_id": asked["id"], "content": f"{self.word()}{FILLING}. " * 4}
            self.memory.append(found)
        self.memory.append({"role": "assistant", "content": f"It is {self.word()}{FILLING}."})

    @rule()
    def speak(self) -> None:
        self.memory.append({"role": "assistant", "content": f"And it is {self.word()}."})

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        self.memory.pin(data.draw(st.sampled_from(self.places(rounds=False) or ["r1.p0"])))

    @rule()
    def look(self) -> None:
        self.executor.run_all()

    @rule()
    def wait(self) -> None:
        self.clock.advance(1_000)
        self.look()

    @rule()
    def revert(self) -> None:
        self.compactor.revert()

    def places(self, *, rounds: bool = True) -> list[str]:
        """Return the references of places in rounds that are shown."""
        found = ["r0"] if rounds else []
        for round_ in self.memory.get_role_rounds("")[0]:
            found += [f"r{round_.number}"] if rounds else []
            found += [f"r{round_.number}.p0"] if round_.user_query else []
            found += [f"r{round_.number}.p{post.number}" for post in round_.post_list]
        return found

    @rule(data=st.data(), from_other=st.booleans())
    def go_back(self, data: st.DataObject, from_other: bool) -> None:
        self.rewind(data.draw(st.sampled_from(self.places())), from_other=from_other)

    @rule(data=st.data())
    def go_back_during_a_call(self, data: st.DataObject) -> None:
        """The rewind comes while a summarizer is at work, if one is asked."""
        self.during = data.draw(st.sampled_from(self.places()))
        self.talk(3, 0)
        self.during = None

    def rewind(self, ref: str, *, from_other: bool = False) -> None:
        place = re.fullmatch(r"r(\d+)(?:\.p(\d+))?", ref)
        assert place is not None
        number, post = int(place[1]), place[2]
        kept: list[str] = []
        for round_ in self.memory.get_role_rounds("")[0]:
            if round_.number < number or (round_.number == number and post is None):
                kept += words_in(round_)
            elif round_.number == number:
                posts = [one for one in round_.post_list if one.number <= int(post)]
                kept += words_in([round_.user_query, *posts])
        before = words_in(self.memory.messages())
        if from_other:
            self.other.refresh()
        try:
            (self.other if from_other else self.memory).rewind(ref)
        except UnknownReference as error:
            assert "stands between a call and its results" in str(error)  # noqa: PT017
            kept = before
        self.memory.refresh()
        after = words_in(self.memory.messages())
        assert after == kept
        self.undone |= set(before).difference(after)

    @rule()
    def next_process(self) -> None:
        self.compactor.stop(0)
        self.process()

    @rule()
    def copy(self) -> None:
        """From here on it is a copy of the session, as plain values."""
        self.compactor.stop(0)
        state, self.store = self.memory.state_dict(), InMemoryStore()
        Memory.from_state_dict(state, store=self.store)
        self.other = Memory("session", store=self.store, clock=self.clock.now)
        self.process()

    @precondition(lambda self: self.memory.snapshot.total)
    @rule()
    def fork(self) -> None:
        """All of it, with its overlays."""
        self.tell_nothing(self.memory.fork(self.memory.snapshot.total))

    @invariant()
    def nothing_is_told(self) -> None:
        self.other.refresh()
        for memory in (self.memory, self.other):
            self.tell_nothing(memory)
        assert not self.memory.snapshot.hidden or "undone" in {one.state for one in self.memory.conversation.rounds}

    def tell_nothing(self, memory: Memory) -> None:
        messages: list[Any] = [memory.messages(), memory.get_role_rounds(ROLE), memory.journal(ROLE).read().current]
        for budget in (NARROW, WIDE):
            messages.append(compose(memory, ROLE, budget=budget).messages)
        recall = Recall(memory, ROLE)
        for number in range(1, memory.snapshot.total + 1):
            messages.append(recall.call("read_rounds", {"start": number, "limit": 19_000}))
            messages.append(recall.call("context_reload", {"ref": f"r{number}.p1"}))
        told = words_in([list(one) if isinstance(one, tuple) else one for one in messages])
        assert self.undone.isdisjoint(told), self.undone.intersection(told)
        for word in sorted(self.undone)[:5]:
            assert memory.search(word) == [] or word + "x" in str(memory.messages())
            assert word not in recall.call("search_history", {"query": word})
            assert word not in recall.call("context_reload", {"ref": "r1", "pattern": word}).partition("\n")[2]


def test_a_compactor_without_a_journal_forgets_too() -> None:
    """One that has a getter alone withdraws what covers an undone round, and makes the next without it."""
    memory, config = Memory(), CompactorConfig(threshold=2, retain_recent=1)

    def repeat(request: SummaryRequest) -> str:
        return f"The user asked for {', '.join(dict.fromkeys(words_in([request.messages, request.previous])))}."

    compactor = ContextCompactor(config, repeat, memory.rounds_getter(ROLE), role=ROLE)
    for number in range(1, 5):
        memory.append({"role": "user", "content": f"What of word{number}x{FILLING}?"})
        memory.append({"role": "assistant", "content": f"It is here{FILLING}."})
    assert words_in(compactor.compact_now()) == ["word1x", "word2x", "word3x"]
    memory.rewind("r1")
    assert compactor.get_compaction() is None
    for number in (5, 6):
        memory.append({"role": "user", "content": f"What of word{number}x{FILLING}?"})
        memory.append({"role": "assistant", "content": f"It is here{FILLING}."})
    assert words_in(compactor.compact_now()) == ["word1x", "word5x"]


@pytest.mark.parametrize(("ref", "discards"), [("r2", True), ("r3.p0", True), ("r3", False), ("r4.p0", False)])
def test_what_is_in_the_making_of_undone_rounds_is_discarded(ref: str, discards: bool) -> None:
    """With an event, and made again from those that are left; what is made of earlier rounds alone is shown."""
    memory, asked = Memory(), []

    def repeat(request: SummaryRequest) -> str:
        told = words_in(request.messages)
        asked.append(told)
        if len(asked) == 1:
            memory.rewind(ref)
        return f"The user asked for {', '.join(told)}."

    heard: list[Event] = []
    config = CompactorConfig(threshold=1, retain_recent=1)
    compactor = ContextCompactor.for_role(memory, ROLE, config, repeat, on_event=heard.append)
    for number in range(1, 5):
        memory.append({"role": "user", "content": f"What of word{number}x{FILLING}?"})
        memory.append({"role": "assistant", "content": f"It is here{FILLING}."})
    made = compactor.compact_now()
    assert asked[0] == ["word1x", "word2x", "word3x"]
    assert [one.reason for one in heard if isinstance(one, Discarded)] == ["rounds_changed"] * discards
    left = asked[0] if not discards else ["word1x"] if ref == "r2" else ["word1x", "word2x"]
    assert words_in(made) == left == words_in(compactor.get_compaction())


@pytest.mark.slow
def test_no_word_of_what_was_undone_is_told() -> None:
    """In no prompt, recall, search or later request to a summarizer, whatever came before, between and meanwhile."""
    Rewinding.published = Rewinding.discarded = 0
    case = Rewinding.TestCase()
    case.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
    case.runTest()
    assert Rewinding.published > 0, "else nothing was tried"
    assert Rewinding.discarded > 0
