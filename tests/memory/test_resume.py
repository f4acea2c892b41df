"""A session is opened from its newest checkpoint and its tail, and is what reading the whole log would make it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexed import Indexed, Plain, Unreachable, shown, with_rounds
from logged import record

from memory import CompactedMessage, Memory, Reduction, StaleCompaction, UnknownReference, open_store
from memory.log.checkpoint import make_checkpoint
from memory.stores import Checkpoint

#: Entries between two checkpoints.
CHECKPOINT_EVERY = 1_000
ROLES = ("Planner", "Coder")


class Teller:
    """Makes a history by chance, on two Memories of one session that find out about each other by writing."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = Indexed()
        self.memories = [Memory("s", store=self.store), Memory("s", store=self.store)]
        self.texts = 0

    def emit(self, steps: int) -> Indexed:
        acts = [
            *[self.open] * 4,
            *[self.say] * 8,
            *[self.close] * 3,
            *[self.reduce] * 3,
            *[self.publish] * 2,
            *[self.prepare] * 2,
            self.fail,
            self.revert,
            self.withdraw,
            self.pin,
            self.redact,
            self.use,
            self.head,
        ]
        for _ in range(steps):
            self.memory = self.chance.choice(self.memories)
            self.role = self.chance.choice(ROLES)
            self.chance.choice(acts)()
        return self.store

    def text(self) -> str:
        self.texts += 1
        return f"text {self.texts}"

    def head(self) -> None:
        self.memory.append({"role": "system", "content": self.text()})

    def open(self) -> None:
        self.memory.create_round(self.text())

    def say(self) -> None:
        taking = self.memory.open_rounds
        if taking:
            self.memory.refresh()
            taking = self.memory.open_rounds
        if taking:
            message = self.chance.choice(["", self.text()])
            self.memory.add_post(self.chance.choice(taking), send_from=self.role, send_to="User", message=message)

    def close(self) -> None:
        self.memory.refresh()
        if self.memory.open_rounds:
            state = self.chance.choice(["finished", "finished", "failed"])
            self.memory.finish_round(self.chance.choice(self.memory.open_rounds), state=state)

    def fail(self) -> None:
        rounds = self.memory.conversation.rounds
        if rounds:
            self.memory.finish_round(rounds[self.chance.randrange(len(rounds))], state="failed")

    def publish(self) -> None:
        rounds, compaction = self.memory.get_role_rounds(self.role)
        start = compaction.end_index if compaction is not None else 0
        covered = rounds[start : min(rounds.closed, start + self.chance.randint(1, 3))]
        if covered:
            made = CompactedMessage(
                start_index=1, end_index=start + len(covered), end_round_id=covered[-1].id, summary=self.text()
            )
            journal = self.memory.journal(self.role)
            self.unless_stale(
                lambda: journal.publish(made, base=journal.read().generation, round_ids=[one.id for one in covered])
            )

    def prepare(self) -> None:
        journal = self.memory.journal(self.role)
        journal.prepare(
            record("compaction prepared", role=self.role, digest="d", base=journal.read().generation, text=self.text())
        )

    def revert(self) -> None:
        self.memory.journal(self.role).revert()

    def reduce(self) -> None:
        rounds = [one for one in self.memory.rounds_getter(self.role)()[-4:] if one.post_list]
        if rounds:
            round_ = self.chance.choice(rounds)
            first = self.chance.randrange(len(round_.post_list))
            posts = round_.post_list[first : first + self.chance.randint(1, 2)]
            journal = self.memory.journal(self.role)
            made = Reduction.over(round_, posts, "summarised", self.text())
            self.unless_stale(lambda: journal.reduce(made, base=journal.read().generation))

    def withdraw(self) -> None:
        live = [one for many in self.memory.rounds_getter(self.role)().reductions.by_round.values() for one in many]
        if live:
            self.memory.journal(self.role).withdraw(self.chance.choice(live))

    def pin(self) -> None:
        act = self.memory.pin if self.chance.random() < 0.7 else self.memory.unpin
        self.at_some_place(act)

    def redact(self) -> None:
        self.at_some_place(self.memory.redact)

    def use(self) -> None:
        tokens, cached = self.chance.choice(((50, None), (5_000, 0)))
        tokens, counted = self.chance.randint(0, tokens), self.chance.randint(0, tokens)
        self.memory.record_usage(self.role, tokens, counted=counted, cached_tokens=cached)

    def at_some_place(self, act: object) -> None:
        place = f"r{self.chance.randint(1, len(self.memory.conversation.rounds) + 1)}.p{self.chance.randint(0, 2)}"
        try:
            act(place)  # type: ignore[operator]
        except UnknownReference:
            pass

    @staticmethod
    def unless_stale(act: object) -> None:
        try:
            act()  # type: ignore[operator]
        except StaleCompaction:
            pass


def checkpoints_of(store: Indexed) -> list[Checkpoint]:
    """Return a checkpoint of each moment of a session: those of a reader that follows one entry at a time."""
    made = []

    class Until(Indexed):
        def read(self, session: str, after: int = 0, limit: int | None = None) -> object:
            left = self.upto - after
            return store.read(session, after, left if limit is None else min(left, limit))

        read_rounds = staticmethod(store.read_rounds)
        find_round_number = staticmethod(store.find_round_number)
        upto = 0

    until = Until()
    reader = Memory("s", store=until)
    end = len(list(store.read("s")))
    for until.upto in range(1, end + 1):
        reader.refresh()
        made.append(make_checkpoint(reader.snapshot))
    return made


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_whatever_happened_and_wherever_it_is_taken_a_checkpoint_gives_what_the_whole_log_gives(seed: int) -> None:
    """Rounds of each role, compactions with what a revert leads back to, reductions, pins, usage, prepared answers."""
    store = Teller(seed).emit(60)
    whole = shown(Memory("s", store=Plain(store)), *ROLES)
    assert shown(Memory("s", store=store), *ROLES) == whole, "read from the store, with no checkpoint"
    for checkpoint in checkpoints_of(store):
        store.checkpoints["s"] = checkpoint
        memory = Memory("s", store=store)
        assert memory._checkpoint == checkpoint.number or not checkpoint.number, "it was made use of"
        assert shown(memory, *ROLES) == whole
    reopened, replayed = Memory("s", store=store), Memory("s", store=Plain(store))
    for memory in (reopened, replayed):
        for role in ROLES:
            memory.journal(role).revert()
    assert shown(reopened, *ROLES) == shown(replayed, *ROLES), "what a revert leads back to"


def test_on_sqlite_it_is_the_same(tmp_path: Path) -> None:
    """What holds of the tests' own store holds of a database."""
    history = Teller(7).emit(80)
    whole = shown(Memory("s", store=Plain(history)), *ROLES)
    store = open_store(f"sqlite:///{tmp_path / 'chat.db'}")
    try:
        store.append("s", list(history.read("s")), 0)
        for checkpoint in checkpoints_of(history)[::12]:
            store.save_checkpoint("s", checkpoint)
            assert store.get_checkpoint("s") == checkpoint
            assert shown(Memory("s", store=store), *ROLES) == whole
    finally:
        store.close()


@pytest.mark.slow
def test_opening_reads_what_is_new_since_the_checkpoint_and_what_the_tail_needs() -> None:
    """However long the history is: nothing of a closed round before it is read."""
    handed_out = []
    for rounds in (50, 400):
        store = Indexed()
        memory = with_rounds(store, rounds)
        memory.create_round("open")
        store.checkpoints["s"] = make_checkpoint(memory.snapshot)
        memory.add_post(memory.open_rounds[0], send_from="Planner", send_to="User", message="new")
        store.handed_out = 0
        opened = Memory("s", store=store)
        handed_out.append(store.handed_out)
        assert len(opened.conversation.rounds) == rounds + 1
        assert opened.open_rounds[0].post_list[0].message == "new"
        assert opened.conversation.rounds[17].post_list[0].message == "answer 18"
    assert handed_out[0] == handed_out[1] < 10


def test_a_checkpoint_is_kept_now_and_then_and_holds_no_text() -> None:
    """So a session that was never closed properly opens fast, and erasing need not look there."""
    store = Indexed()
    memory = Memory("s", store=store)
    memory.append({"role": "system", "content": "SECRET"})
    memory.create_round("SECRET", extra={"note": "SECRET"})
    while memory.snapshot.number < CHECKPOINT_EVERY - 1:
        memory.add_post(memory.open_rounds[0], send_from="Planner", send_to="User", message="SECRET")
    assert store.checkpoints == {}
    memory.add_post(memory.open_rounds[0], send_from="Planner", send_to="User", message="SECRET")
    assert store.checkpoints["s"].number == CHECKPOINT_EVERY
    assert "SECRET" not in store.checkpoints["s"].body
    assert store.checkpoints["s"].body.isascii()
    assert Memory("s", store=store).header == memory.header


@pytest.mark.slow
def test_an_opening_that_read_much_keeps_a_checkpoint() -> None:
    """Also of a session that was imported: the next opening is fast."""
    store = Indexed()
    copied = list(with_rounds(Indexed(), CHECKPOINT_EVERY // 3 + 1)._store.read("s"))
    store.append("s", copied, 0)
    Memory("s", store=store)
    assert store.checkpoints["s"].number == len(copied) >= CHECKPOINT_EVERY


def test_a_checkpoint_that_cannot_be_kept_is_no_failure_of_the_append() -> None:
    """What was appended is in the log; the next opening reads a little more."""
    store = Indexed()
    memory = Memory("s", store=store)
    store.save_checkpoint = lambda *_: (_ for _ in ()).throw(Unreachable("full"))  # type: ignore[method-assign]
    round_ = memory.create_round("q")
    for number in range(CHECKPOINT_EVERY):
        memory.add_post(round_, send_from="Planner", send_to="User", message=str(number))
    assert len(Memory("s", store=store).open_rounds[0].post_list) == CHECKPOINT_EVERY


def test_a_checkpoint_that_cannot_be_kept_is_told_of_once_and_again_when_the_cause_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a host learns why openings are slow; the call that tried it has succeeded, whatever was raised."""
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 1)
    store, events = Indexed(), []
    keep = store.save_checkpoint
    faults = iter([None, Unreachable("no"), Unreachable("no"), OSError("no"), OSError("no"), None, OSError("no")])

    def kept(session: str, made: Checkpoint) -> None:
        fault = next(faults)
        if fault is not None:
            raise fault
        keep(session, made)

    memory = Memory("s", store=store)
    memory.on_event(events.append)
    store.save_checkpoint = kept  # type: ignore[method-assign]
    told = []
    for number in range(1, 8):
        assert memory.create_round(str(number)).number > 0
        told.append([(event.name, event.error) for event in events])
        events.clear()
    name = "memory.checkpoint_failed"
    assert told == [[], [(name, "Unreachable")], [], [(name, "OSError")], [], [], [(name, "OSError")]]


def _spoiled(body: str, **fields: object) -> str:
    return json.dumps({**json.loads(body), **fields})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: "{",
        lambda _: "[]",
        lambda body: _spoiled(body, version=2),
        lambda body: _spoiled(body, unknown=1),
        lambda body: _spoiled(body, header=[2]),
        lambda body: _spoiled(body, total=99),
        lambda body: _spoiled(body, settled=1),
        lambda body: _spoiled(body, roles={"Planner": {"generation": 1, "published": [[1, 1]]}}),
    ],
    ids=["no JSON", "a list", "newer", "unknown field", "no header there", "rounds too many", "torn", "no compaction"],
)
def test_a_checkpoint_that_cannot_be_used_is_passed_over(spoil: object) -> None:
    """The whole log is read instead; it is never an error, and never half of a session."""
    store = Indexed()
    memory = with_rounds(store, 3)
    memory.create_round("open")
    good = make_checkpoint(memory.snapshot)
    store.checkpoints["s"] = Checkpoint(good.number, spoil(good.body))  # type: ignore[operator]
    assert shown(Memory("s", store=store), *ROLES) == shown(Memory("s", store=Plain(store)), *ROLES)


def test_a_checkpoint_of_a_longer_log_is_passed_over() -> None:
    """A session that was purged and began anew is not taken for the old one."""
    store = Indexed()
    old = make_checkpoint(with_rounds(store, 9).snapshot)
    store.purge("s")
    with_rounds(store, 2)
    store.checkpoints["s"] = old
    assert len(Memory("s", store=store).conversation.rounds) == 2


def test_a_fault_while_a_checkpoint_is_read_is_told_and_nothing_is_spoiled() -> None:
    """A store that cannot be reached is no reason to read everything, nor to begin an empty session."""
    store = Indexed()
    with_rounds(store, 3)
    store.fault = Unreachable("gone")
    with pytest.raises(Unreachable):
        Memory("s", store=store)
    store.fault = None
    assert len(Memory("s", store=store).conversation.rounds) == 3


def test_an_erasing_that_was_interrupted_is_not_hidden_by_a_checkpoint() -> None:
    """Until the text is erased from the store no checkpoint is kept; who opens the session goes on with the erasing."""
    store = Indexed()
    memory = with_rounds(store, 3)
    redact = store.redact
    store.redact = lambda *_: (_ for _ in ()).throw(Unreachable("gone"))  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        memory.redact("r1.p1")
    round_ = memory.create_round("q")
    for number in range(CHECKPOINT_EVERY):
        memory.add_post(round_, send_from="Planner", send_to="User", message=str(number))
    assert store.checkpoints == {}
    store.redact = redact  # type: ignore[method-assign]
    assert "answer 1" in "".join(entry.body for entry in store.read_rounds("s", 1, 1))
    assert Memory("s", store=store).conversation.rounds[0].post_list[0].message == "[Redacted]"
    assert "answer 1" not in "".join(entry.body for entry in store.read_rounds("s", 1, 1))
    assert store.checkpoints["s"].number > CHECKPOINT_EVERY
