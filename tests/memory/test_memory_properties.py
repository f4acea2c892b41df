"""Whatever is done in whatever order, two Memories of one session agree with a list of what happened."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from indexed import Indexed, forgetful

from memory import CompactedMessage, Entry, InMemoryStore, Memory, RoundClosed, Rounds, StaleCompaction

ROLES = ("Planner", "CodeInterpreter")


@dataclass(frozen=True)
class Told:
    """A round as the model of the test knows it."""

    id: str
    opener: int
    state: str = "created"
    posts: tuple[tuple[str, str], ...] = ()

    def as_role(self, role: str) -> tuple[str, str, tuple[str, ...]]:
        return (self.id, self.state, tuple(text for sender, text in self.posts if role in ("", sender)))


@dataclass
class Publications:
    """What the model knows of one role's compactions: the numbers of their last rounds."""

    generation: int = 0
    ends: list[int] = field(default_factory=list)
    held: str | None = None


def plain(rounds: object) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(round_.id, round_.state, tuple(post.message for post in round_.post_list)) for round_ in rounds]


class Log(RuleBasedStateMachine):
    """Two Memories on one store, beside a list of rounds."""

    make_store: type[InMemoryStore] = InMemoryStore

    def __init__(self) -> None:
        super().__init__()
        self.store = self.make_store()
        self.memories = [Memory("s", store=self.store), Memory("s", store=self.store)]
        self.rounds: list[Told] = []
        self.published = {role: Publications() for role in ROLES}
        self.newest: dict[int, str] = {}  # the newest round that each Memory opened
        self.taken: list[tuple[Rounds, list]] = []
        self.entries: list[Entry] = []
        self.texts = 0

    def change(self, place: int, **more: object) -> None:
        self.rounds[place] = replace(self.rounds[place], **more)

    def fail(self, place: int) -> None:
        """Take note that a round failed: what covered it is withdrawn, as a new generation of that role."""
        if self.rounds[place].state != "failed":
            for known in self.published.values():
                kept = [end for end in known.ends if end <= place]
                known.generation += len(kept) < len(known.ends)
                known.ends = kept
        self.change(place, state="failed")

    def open(self) -> list[Told]:
        return [round_ for round_ in self.rounds if round_.state == "created"]

    # -- writing -------------------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1))
    def create_round(self, who: int) -> None:
        created = self.memories[who].create_round("q")
        for place, round_ in enumerate(self.rounds):
            if round_.state == "created" and round_.id == self.newest.get(who):
                self.change(place, state="finished")
        self.newest[who] = created.id
        self.rounds.append(Told(created.id, who))
        assert created.number == len(self.rounds)

    @precondition(lambda self: self.rounds)
    @rule(who=st.integers(0, 1), role=st.sampled_from(ROLES), data=st.data())
    def add_post(self, who: int, role: str, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.rounds) - 1))
        told = self.rounds[place]
        self.texts += 1
        text = f"{role} {self.texts}"
        if told.state != "created":
            with pytest.raises(RoundClosed):
                self.memories[who].add_post(told.id, send_from=role, send_to="User", message=text)
            return
        post = self.memories[who].add_post(told.id, send_from=role, send_to="User", message=text)
        self.change(place, posts=(*told.posts, (role, text)))
        assert (post.message, post.number) == (text, len(told.posts) + 1)

    @precondition(lambda self: self.open())
    @rule(who=st.integers(0, 1), failed=st.booleans(), data=st.data())
    def close_round(self, who: int, failed: bool, data: st.DataObject) -> None:
        told = data.draw(st.sampled_from(self.open()))
        state = "failed" if failed else "finished"
        assert self.memories[who].finish_round(told.id, state=state).state == state
        self.change(self.rounds.index(told), state=state)

    @precondition(lambda self: self.rounds)
    @rule(who=st.integers(0, 1), data=st.data())
    def fail_round(self, who: int, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.rounds) - 1))
        self.memories[who].finish_round(self.rounds[place].id, state="failed")
        self.fail(place)

    @precondition(lambda self: self.rounds)
    @rule(role=st.sampled_from(ROLES), who=st.integers(0, 1), data=st.data())
    def publish(self, role: str, who: int, data: st.DataObject) -> None:
        journal, known = self.memories[who].journal(role), self.published[role]
        end = data.draw(st.integers(1, len(self.rounds)))
        base = data.draw(st.sampled_from([known.generation, known.generation, known.generation, 0]))
        start = known.ends[-1] if known.ends else 0
        covered = [round_ for round_ in self.rounds[start:end] if round_.state != "failed"]
        compaction = CompactedMessage(
            start_index=1, end_index=end, end_round_id=self.rounds[end - 1].id, summary=str(end)
        )
        sound = base == known.generation and end > start and all(one.state != "created" for one in self.rounds[:end])
        if not sound:
            with pytest.raises(StaleCompaction):
                journal.publish(compaction, base=base, round_ids=[round_.id for round_ in covered])
            return
        try:
            published = journal.publish(compaction, base=base, round_ids=[round_.id for round_ in covered])
        except StaleCompaction:
            # This Memory has not read yet that the rounds are closed; it has when it has written something.
            assert len(list(self.store.read("s"))) > self.memories[who].snapshot.number
            return
        known.generation, known.held = base + 1, None
        known.ends.append(end)
        visible = [round_ for round_ in self.rounds[:end] if round_.state != "failed"]
        assert (published.generation, published.end_number, published.end_index) == (base + 1, end, len(visible))

    @rule(role=st.sampled_from(ROLES))
    def revert(self, role: str) -> None:
        self.catch_up()
        known = self.published[role]
        current = self.memories[0].journal(role).revert()
        if known.ends:
            known.ends.pop()
            known.generation += 1
            known.held = self.rounds[-1].id
        assert (current.end_number if current else 0) == (known.ends[-1] if known.ends else 0)

    def catch_up(self) -> None:
        """Have both Memories read everything: the first by a conflict, if it is behind, the second by another."""
        for memory in self.memories:
            created = memory.create_round("q")
            memory.finish_round(created.id, state="failed")
            who = self.memories.index(memory)
            for place, round_ in enumerate(self.rounds):
                if round_.state == "created" and round_.id == self.newest.get(who):
                    self.change(place, state="finished")
            self.newest[who] = created.id
            self.rounds.append(Told(created.id, who, "failed"))

    # -- reading -------------------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1), role=st.sampled_from(["", *ROLES]), failed=st.booleans())
    def take_a_snapshot(self, who: int, role: str, failed: bool) -> None:
        rounds, _ = self.memories[who].get_role_rounds(role, include_failure_rounds=failed)
        self.taken.append((rounds, list(rounds)))

    @rule()
    def resume(self) -> None:
        """A Memory that reads the log from its text is equal to one that wrote it."""
        disk = InMemoryStore()
        entries = list(self.store.read("s"))
        disk.append("s", [Entry(entry.kind, body=entry.body, id=entry.id) for entry in entries], after=0)
        self.agrees(Memory("s", store=disk))

    def agrees(self, memory: Memory) -> None:
        assert plain(memory.conversation.rounds) == [round_.as_role("") for round_ in self.rounds]
        first_open = next((place for place, one in enumerate(self.rounds) if one.state == "created"), len(self.rounds))
        assert memory.conversation.rounds.closed == first_open
        for role, known in self.published.items():
            visible = [round_.as_role(role) for round_ in self.rounds if round_.state != "failed"]
            rounds, compaction = memory.get_role_rounds(role)
            assert plain(rounds) == visible
            state = memory.journal(role).read()
            assert (state.generation, state.revert_round_id) == (known.generation, known.held)
            assert state.current == compaction
            end = known.ends[-1] if known.ends else 0
            assert (compaction.end_number if compaction else 0) == end
            tail = [round_.as_role(role) for round_ in self.rounds[end:] if round_.state != "failed"]
            assert plain(rounds[compaction.end_index if compaction else 0 :]) == tail

    @invariant()
    def a_memory_that_has_read_everything_agrees_with_the_list(self) -> None:
        end = len(list(self.store.read("s")))
        for memory in self.memories:
            if memory.snapshot.number == end:
                self.agrees(memory)

    @invariant()
    def one_of_them_has_read_everything(self) -> None:
        """Whoever wrote last."""
        assert max(memory.snapshot.number for memory in self.memories) == len(list(self.store.read("s")))

    @invariant()
    def snapshots_that_were_taken_never_change(self) -> None:
        for rounds, seen in self.taken[-5:]:
            assert list(rounds) == seen

    @invariant()
    def the_log_is_only_appended_to(self) -> None:
        entries = list(self.store.read("s"))
        assert entries[: len(self.entries)] == self.entries
        self.entries = entries


TestLog = Log.TestCase
TestLog.settings = settings(deadline=None, max_examples=30, stateful_step_count=25)


class LogOnIndexedStore(Log):
    """The same where closed rounds are read from the store when somebody asks, and hardly any are kept."""

    make_store = Indexed

    def __init__(self) -> None:
        super().__init__()
        forgetful(*self.memories)


TestLogOnIndexedStore = LogOnIndexedStore.TestCase
TestLogOnIndexedStore.pytestmark = [pytest.mark.slow]
TestLogOnIndexedStore.pytestmark = [pytest.mark.slow]
TestLogOnIndexedStore.settings = settings(deadline=None, max_examples=20, stateful_step_count=25)
