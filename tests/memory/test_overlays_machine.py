"""Whatever is published, withdrawn, pinned, failed, undone and redacted in whatever order, overlays stay sound and the log
says all there is to say of them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from histories import read_again
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from indexed import Indexed, forgetful
from threads import at_once

from memory import (
    CompactedMessage,
    InMemoryStore,
    Memory,
    Post,
    Reduction,
    Round,
    RoundClosed,
    StaleCompaction,
    ToolCall,
    UnknownReference,
)

ROLES = ("Planner", "Coder")
numbers = st.integers(0, 6)
whose, roles = st.integers(0, 1), st.sampled_from(ROLES)


def overlays(memory: Memory) -> list[object]:
    """Return all that a Memory knows of overlays, pins and usage, and what it makes its readers read."""
    known: list[object] = [
        memory.pins(),
        memory.snapshot.redactions,
        memory.messages(),
        list(memory.conversation.rounds),
    ]
    for role in (*ROLES, "Stranger"):
        rounds, compaction = memory.get_role_rounds(role)
        known += [memory.journal(role).read(), compaction, rounds.reductions, rounds.pins, memory.usage(role)]
    return known


def overlap(one: Reduction, first: int, last: int) -> bool:
    return one.first_number <= last and first <= one.last_number


def assert_sound(memory: Memory) -> None:
    """The reductions of a round are in order and apart, and stand for posts that are there."""
    for role in ROLES:
        for round_id, live in memory.rounds_getter(role)().reductions.by_round.items():
            assert live
            assert all(one.last_number < other.first_number for one, other in pairwise(live))
            round_ = memory.snapshot.find_round(round_id)
            assert round_ is not None
            ids = ["", *(post.id for post in round_.post_list)]
            for one in live:
                assert (ids[one.first_number], ids[one.last_number]) == (one.first_post_id, one.last_post_id)


def torn(round_: Round, first: int, last: int) -> bool:
    """Return whether a call and one of its results, both of which there are, lie on two sides."""
    sides: dict[str, set[bool]] = {}
    for post in round_.post_list:
        for call_id in (*(call.id for call in post.tool_calls), *([post.tool_call_id] if post.tool_call_id else [])):
            sides.setdefault(call_id, set()).add(first <= post.number <= last)
    return any(len(both) == 2 for both in sides.values())


class Overlays(RuleBasedStateMachine):
    """Two Memories on one store. Every text is another, so that each can be looked for."""

    make_store: type[InMemoryStore] = InMemoryStore

    def __init__(self) -> None:
        super().__init__()
        self.store = self.make_store()
        self.memories = [Memory("s", store=self.store), Memory("s", store=self.store)]
        self.texts = 0
        self.calls: list[str] = []  # without a result, in the newest round
        self.erased: set[str] = set()
        self.covers: dict[str, set[int]] = {}  # of each published summary: the rounds that it was made from

    def text(self) -> str:
        self.texts += 1
        return f"<{self.texts}>"

    def newest(self, who: int) -> Round | None:
        rounds = self.memories[who].conversation.rounds
        return rounds[-1] if len(rounds) and not rounds[-1].closed else None

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(who=whose, posts=st.integers(0, 4))
    def open_round(self, who: int, posts: int) -> None:
        for memory in self.memories:  # one round is open at a time, and all know of it
            if memory.conversation.rounds and not memory.conversation.rounds[-1].closed:
                with suppress(RoundClosed):  # it has failed elsewhere
                    memory.finish_round(memory.conversation.rounds[-1].id)
        opened = self.memories[who].create_round(self.text())
        self.calls = []
        for _ in range(posts):
            self.memories[who].add_post(opened, send_from="Planner", send_to="Coder", message=self.text())

    @precondition(lambda self: self.newest(0) or self.newest(1))
    @rule(who=whose, calls=st.integers(1, 2))
    def call(self, who: int, calls: int) -> None:
        asked = tuple(ToolCall(id=self.text(), name="f", arguments=self.text()) for _ in range(calls))
        if self.say(who, send_from="Planner", send_to="tool", tool_calls=asked):
            self.calls += [call.id for call in asked]

    @precondition(lambda self: self.calls)
    @rule(who=whose)
    def answer(self, who: int) -> None:
        if self.say(who, send_from="tool", send_to="Planner", message=self.text(), tool_call_id=self.calls[0]):
            del self.calls[0]

    def say(self, who: int, **fields: Any) -> bool:
        opened = self.newest(who)
        if opened is None:
            return False
        with suppress(RoundClosed):
            self.memories[who].add_post(opened, **fields)
            return True
        return False

    @rule(who=whose, data=st.data())
    def fail(self, who: int, data: st.DataObject) -> None:
        rounds = self.memories[who].conversation.rounds
        if len(rounds):
            self.memories[who].finish_round(data.draw(st.sampled_from(rounds[:])).id, state="failed")

    @rule(who=whose, back=st.integers(0, 3), number=st.none() | numbers)
    def rewind(self, who: int, back: int, number: int | None) -> None:
        memory = self.memories[who]
        place = max(len(memory.conversation.rounds) - back, 0)
        with suppress(UnknownReference):
            memory.rewind(f"r{place}" if number is None else f"r{place}.p{number}")
            self.calls = []

    # -- overlays ------------------------------------------------------------------------------------------------------

    @rule(who=whose, role=roles, stale=st.booleans(), rounds=st.integers(1, 3))
    def publish(self, who: int, role: str, stale: bool, rounds: int) -> None:
        journal, seen = self.memories[who].journal(role), self.memories[who].rounds_getter(role)()
        state = journal.read()
        start = state.current.end_index if state.current is not None else 0
        covered = seen[start : start + rounds]
        if covered:
            made = CompactedMessage(
                start_index=1, end_index=start + len(covered), end_round_id=covered[-1].id, summary=self.text()
            )
            try:
                published = journal.publish(made, base=state.generation - stale, round_ids=[one.id for one in covered])
            except StaleCompaction:
                return
            assert not stale
            self.covers[made.summary] = {one.number for one in seen[: made.end_index]}
            assert journal.read()[:3] == (state.generation + 1, published, None)

    @rule(who=whose, role=roles)
    def revert(self, who: int, role: str) -> None:
        self.memories[who].journal(role).revert()

    @rule(who=whose, role=roles, first=numbers, length=st.integers(1, 4), data=st.data())
    def reduce(self, who: int, role: str, first: int, length: int, data: st.DataObject) -> None:
        memory = self.memories[who]
        seen = memory.rounds_getter(role)()
        if not len(seen):
            return
        round_ = seen[data.draw(st.integers(max(0, len(seen) - 2), len(seen) - 1))]
        posts: list[Post | None] = [None, *round_.post_list][first : first + length]
        if not posts:
            return
        kind = data.draw(st.sampled_from(["dropped", "summarised", *(["offloaded"] if len(posts) == 1 else [])]))
        made = Reduction.over(round_, posts, kind, "" if kind == "dropped" else self.text())
        before = seen.reductions.of(round_.id)
        generation = memory.journal(role).read().generation
        try:
            after = memory.journal(role).reduce(
                made, base=data.draw(st.sampled_from([generation] * 5 + [generation - 1]))
            )
        except StaleCompaction:
            assert memory.rounds_getter(role)().reductions.of(round_.id) == before or self.behind(who)
            return
        assert kind == "offloaded" or not torn(round_, made.first_number, made.last_number)
        met = [one for one in before if overlap(one, made.first_number, made.last_number)]
        if after is None:
            assert met or self.behind(who)
            return
        live = after.of(round_.id)
        assert [one.text for one in live if overlap(one, made.first_number, made.last_number)] == [made.text]
        assert all(made.first_number <= one.first_number and one.last_number <= made.last_number for one in met)
        assert set(before) - set(met) <= set(live) or self.behind(who)

    @rule(who=whose, role=roles, data=st.data())
    def withdraw(self, who: int, role: str, data: st.DataObject) -> None:
        live = [one for many in self.memories[who].rounds_getter(role)().reductions.by_round.values() for one in many]
        if live:
            chosen = data.draw(st.sampled_from(live))
            self.memories[who].journal(role).withdraw(chosen)
            assert chosen not in self.memories[who].rounds_getter(role)().reductions.of(chosen.round_id) or self.behind(
                who
            )

    @rule(who=whose, role=roles, told=st.integers(0, 50), counted=st.integers(0, 50))
    def use(self, who: int, role: str, told: int, counted: int) -> None:
        self.memories[who].note_prompt(role, counted)
        self.memories[who].record_usage(role, told)

    @rule(who=whose, place=st.integers(1, 6), number=numbers, pinned=st.booleans())
    def pin(self, who: int, place: int, number: int, pinned: bool) -> None:
        memory = self.memories[who]
        try:
            (memory.pin if pinned else memory.unpin)(f"r{place}.p{number}")
        except UnknownReference:
            return
        assert (f"r{place}.p{number}" in memory.pins()) == pinned

    @rule(who=whose, back=st.integers(1, 3), number=numbers)
    def redact(self, who: int, back: int, number: int) -> None:
        memory = self.memories[who]
        place = len(memory.conversation.rounds) - back
        if place < 0 or number > len(memory.conversation.rounds[place].post_list):
            return
        round_ = memory.conversation.rounds[place]
        texts = self.made_from(round_.number, round_.id, number)
        texts += [call.arguments for call in round_.post_list[number - 1].tool_calls] if number else []
        texts.append(round_.post_list[number - 1].message if number else round_.user_query)
        memory.redact(f"r{place + 1}.p{number}")
        self.erased |= {text for text in texts if text.startswith("<")}

    def made_from(self, round_number: int, round_id: str, number: int) -> list[str]:
        """Return the texts of all overlays in the log that were made from a post."""
        made = []
        for entry in self.store.read("s"):
            if entry.kind == "compaction published" and entry.record.compaction.end_number >= round_number:
                made.append(entry.record.compaction.summary)
            if entry.kind == "reduction published" and entry.record.reduction.round_id == round_id:
                made += [entry.record.reduction.text] if entry.record.reduction.covers(number) else []
        return made

    def behind(self, who: int) -> bool:
        """Return whether a Memory had to read on first; then what it knew before says nothing."""
        return self.memories[who].snapshot.number != self.known[who]

    # -- what holds ----------------------------------------------------------------------------------------------------

    @invariant()
    def each_memory_is_sound(self) -> None:
        for memory in self.memories:
            assert_sound(memory)
        self.known = [memory.snapshot.number for memory in self.memories]

    @invariant()
    def whoever_has_read_everything_agrees_with_the_log(self) -> None:
        end = len(list(self.store.read("s")))
        again = overlays(read_again(self.store))
        upto = [memory for memory in self.memories if memory.snapshot.number == end]
        assert upto
        assert all(overlays(memory) == again for memory in upto)

    @invariant()
    def what_is_hidden_is_told_nowhere(self) -> None:
        """What is shown covers no round that failed or was undone, as far as whoever shows it has read."""
        for memory in self.memories:
            hidden = {one.number for one in memory.conversation.rounds if one.is_hidden}
            shown = [memory.get_role_rounds(role)[1] for role in ROLES]
            assert all(hidden.isdisjoint(self.covers[one.summary]) for one in shown if one is not None)

    @invariant()
    def what_was_erased_is_nowhere(self) -> None:
        end = len(list(self.store.read("s")))
        log = " ".join(entry.body for entry in self.store.read("s"))
        shown = " ".join(repr(overlays(memory)) for memory in self.memories if memory.snapshot.number == end)
        assert not any(text in log or text in shown for text in self.erased)


TestOverlays = Overlays.TestCase
TestOverlays.settings = settings(deadline=None, max_examples=20, stateful_step_count=30)


class OverlaysOnIndexedStore(Overlays):
    """The same where closed rounds are read from the store when somebody asks, and hardly any are kept."""

    make_store = Indexed

    def __init__(self) -> None:
        super().__init__()
        forgetful(*self.memories)


TestOverlaysOnIndexedStore = OverlaysOnIndexedStore.TestCase
TestOverlaysOnIndexedStore.pytestmark = [pytest.mark.slow]
TestOverlaysOnIndexedStore.pytestmark = [pytest.mark.slow]
TestOverlaysOnIndexedStore.settings = settings(deadline=None, max_examples=12, stateful_step_count=30)


def test_results_from_several_threads_never_hide_one_another() -> None:
    """In whatever order they arrive, on two Memories, with reverts and failures between them."""
    store = InMemoryStore()
    first = Memory("s", store=store)
    for number in range(1, 5):
        opened = first.create_round("q", id=str(number))
        for _ in range(10):
            first.add_post(opened, send_from="Planner", send_to="User", message="m")
        first.finish_round(opened)
    memories, wrong = [first, Memory("s", store=store)], []

    def work(seed: int) -> None:
        memory = memories[seed % 2]
        journal = memory.journal("Planner")
        for step in range(60):
            round_ = memory.conversation.rounds[(seed + step) % 4]
            start, length = (seed * 7 + step * 5) % 9, 1 + (seed + step * 3) % 4
            made = Reduction.over(round_, round_.post_list[start : start + length], "summarised", f"{seed} {step}")
            try:
                after = journal.reduce(made, base=journal.read().generation)
            except StaleCompaction:
                continue
            if after is not None and made.text not in [one.text for one in after.of(round_.id)]:
                wrong.append(made)
            if step % 10 == seed:
                journal.withdraw(made)
            if step == 30 and seed == 1:
                memory.finish_round("4", state="failed")
            if step == 20 and seed == 2:
                memory.redact("r1.p5")

    at_once(*(partial(work, seed) for seed in range(4)))
    assert wrong == []
    for memory in memories:
        memory.create_round("so that both have read everything")
        assert_sound(memory)
    for memory in memories:
        memory.finish_round(memory.conversation.rounds[-1].id)
    assert overlays(read_again(store)) == overlays(memories[1])
    assert any(len(live) > 1 for live in memories[1].rounds_getter("Planner")().reductions.by_round.values())
