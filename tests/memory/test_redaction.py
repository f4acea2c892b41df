"""A redacted text is nowhere any more, nor is anything that was made from it; everything else is as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from histories import cover, read_again
from indexed import Indexed
from threads import at_once

from memory import (
    Attachment,
    CompactedMessage,
    Entry,
    InMemoryStore,
    JournalState,
    Memory,
    Note,
    Post,
    Reduction,
    SessionPurged,
    StaleCompaction,
    StoreError,
    ToolCall,
    UnknownReference,
)
from memory.entries import (
    KINDS,
    NAMES,
    CompactionPrepared,
    CompactionPublished,
    EventRecorded,
    HeaderAdded,
    PostAdded,
    PostRedacted,
    ReductionPublished,
    RoundFinished,
    RoundOpened,
    ShownRecorded,
    StandIn,
)
from memory.rounds import Record, utc_now

ROLE = "assistant"
REDACTED = "[Redacted]"
SECRET = "swordfish"


def memory_of(rounds: int = 4, store: InMemoryStore | None = None, *, last: str = "finished") -> Memory:
    """Return a Memory of rounds "1", "2", ... with a call and its result in each; everything says the secret."""
    memory = Memory("s", store=store)
    for number in range(1, rounds + 1):
        memory.create_round(f"{SECRET} q{number}", id=str(number), extra={"note": SECRET})
        called = (ToolCall(id=f"c{number}", name="look", arguments=f'"{SECRET}"'),)
        memory.add_post(str(number), send_from=ROLE, send_to="tool", message=SECRET, tool_calls=called)
        memory.add_post(
            str(number), send_from="tool", send_to=ROLE, message=SECRET, tool_call_id=f"c{number}", kind="tool_result",
            attachment_list=(Attachment(type="plan", content=SECRET),), extra={"k": [SECRET]},
        )  # fmt: skip
        memory.add_post(str(number), send_from=ROLE, send_to="User", message=f"public {number}")
        if number < rounds or last == "finished":
            memory.finish_round(str(number))
    return memory


publish = partial(cover, role=ROLE, summary=SECRET, extra={"k": SECRET})


def reduce(memory: Memory, round_id: str, first: int, last: int, kind: str = "summarised", role: str = ROLE) -> None:
    journal, round_ = memory.journal(role), memory.conversation.rounds[int(round_id) - 1]
    posts = [None if number == 0 else round_.post_list[number - 1] for number in (first, last)]
    made = Reduction.over(round_, posts, kind, "" if kind == "dropped" else SECRET, extra={"k": SECRET})
    assert journal.reduce(made, base=journal.read().generation) is not None


def everything(memory: Memory, *roles: str) -> tuple[Any, ...]:
    """Return all that there is to know of a Memory."""
    rounds = memory.conversation.rounds
    return (
        memory.header,
        list(rounds),
        [memory.messages(role) for role in roles],
        [memory.reload(f"r{round_.number}") for round_ in rounds],
        [memory.get_role_rounds(role) for role in roles],
        [memory.journal(role).read() for role in roles],
        [memory.rounds_getter(role)().reductions for role in roles],
        [memory.usage(role) for role in roles],
        memory.pins(),
        memory.snapshot,
    )


def occurs(memory: Memory, store: InMemoryStore, text: str = SECRET) -> bool:
    """Return whether *text* is anywhere: in an entry's body or record, or in what a Memory shows."""
    stored = any(text in entry.body or text in repr(entry.record) for entry in store.read("s"))
    return stored or text in repr(everything(memory, ROLE, "Coder", ""))


# -- the text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["finished", "open"])
def test_what_was_redacted_occurs_nowhere(last: str) -> None:
    """Not in the log's text, not in memory, not behind a reference; and every other word stays."""
    store = InMemoryStore()
    memory = memory_of(3, store, last=last)
    publish(memory, 1)
    publish(memory, 1, role="Coder")
    reduce(memory, "3", 1, 2)
    memory.pin("r3.p1")
    for number in (1, 2, 3):
        for place in (0, 1, 2):
            memory.redact(f"r{number}.p{place}")
    assert not occurs(memory, store)
    assert [round_.post_list[2].message for round_ in memory.conversation.rounds] == [
        "public 1",
        "public 2",
        "public 3",
    ]
    assert memory.reload("r2.p1") == f"{REDACTED}\nassistant calls look({{}}) as c2"
    assert everything(read_again(store), ROLE, "Coder") == everything(memory, ROLE, "Coder")


def test_a_redacted_post_keeps_its_place_and_its_pairing() -> None:
    """Ids, senders, kinds and the names of tools stay: no call loses its result."""
    memory = memory_of(1)
    before = memory.conversation.rounds[0].post_list
    memory.redact(before[0])
    memory.redact(before[1])
    call, result, said = memory.conversation.rounds[0].post_list
    emptied = {"message": REDACTED, "attachment_list": (), "extra": {}}
    calls = (ToolCall(id="c1", name="look", arguments="{}"),)
    assert call == before[0].model_copy(update=emptied | {"tool_calls": calls})
    assert result == before[1].model_copy(update=emptied)
    assert said == before[2]
    shapes = [(message["role"], message.get("tool_call_id")) for message in memory.messages()]
    assert shapes == [("user", None), ("assistant", None), ("tool", "c1"), ("assistant", None)]


def test_messages_lose_what_was_kept_beside_their_text() -> None:
    """Parts, names, unknown keys; old-style functions keep what pairs them, and a user's message stays one."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    memory.append({"role": "user", "name": SECRET, "content": [{"type": "text", "text": SECRET}]})
    memory.append({"role": "user", "content": SECRET})
    memory.append({"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": SECRET}})
    memory.append({"role": "function", "name": "look", "content": SECRET, "more": SECRET})
    memory.append({"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "run", "input": SECRET}}]})  # fmt: skip
    memory.append({"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": SECRET}]})
    for place in range(6):
        memory.redact(f"r1.p{place}")
    assert not occurs(memory, store)
    assert memory.messages() == [
        {"role": "user", "content": REDACTED},
        {"role": "user", "content": REDACTED},
        {"role": "assistant", "content": REDACTED, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": REDACTED},
        {"role": "assistant", "content": REDACTED, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": REDACTED},
    ]  # fmt: skip
    assert read_again(store).messages() == memory.messages()


def test_a_hosts_own_idea_of_what_is_kept_is_erased_too() -> None:
    """Whatever it put there."""
    memory = Memory("s")
    memory.create_round("q", extra={"openai": SECRET, "openai_absent": SECRET})
    memory.redact("r1.p0")
    (round_,) = memory.conversation.rounds
    assert (round_.user_query, round_.extra) == (REDACTED, {"openai": {}})


@pytest.mark.parametrize("place", [0, 1])
def test_where_a_first_post_repeats_the_query_both_go(place: int) -> None:
    """The text would be left in the other; and the same again from a resume."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    memory.create_round(SECRET, id="1")
    memory.add_post("1", send_from="User", send_to=ROLE, message=SECRET)
    memory.add_post("1", send_from="User", send_to=ROLE, message="another thing")
    memory.redact(f"r1.p{place}")
    assert not occurs(memory, store)
    (round_,) = memory.conversation.rounds
    assert (round_.user_query, [post.message for post in round_.post_list]) == (REDACTED, [REDACTED, "another thing"])
    assert everything(read_again(store), ROLE) == everything(memory, ROLE)


def test_a_query_alone_leaves_the_posts() -> None:
    """They say something else."""
    memory = memory_of(1)
    posts = memory.conversation.rounds[0].post_list
    memory.redact("r1.p0")
    (round_,) = memory.conversation.rounds
    assert (round_.user_query, round_.extra, round_.post_list) == (REDACTED, {}, posts)


def test_a_failed_round_is_redacted_too() -> None:
    """It is hidden, and in the log all the same."""
    store = InMemoryStore()
    memory = memory_of(2, store)
    memory.finish_round("1", state="failed")
    memory.redact("r2.p0")
    for place in (0, 1, 2):
        memory.redact(f"r1.p{place}")
        if place:
            memory.redact(f"r2.p{place}")
    assert not occurs(memory, store)
    assert [round_.state for round_ in memory.conversation.rounds] == ["failed", "finished"]
    assert len(memory.rounds_getter(ROLE)()) == 1


def test_an_open_round_goes_on_after_a_redaction() -> None:
    """It takes posts, also where its query is what waits for an answer."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    memory.append({"role": "user", "content": SECRET})
    taken = memory.rounds_getter(ROLE)()
    memory.redact("r1.p0")
    memory.append({"role": "user", "content": "second"})
    memory.append({"role": "assistant", "content": "answer"})
    assert [message["content"] for message in memory.messages()] == [REDACTED, "second", "answer"]
    assert taken[0].user_query == SECRET  # a snapshot that was taken is what was there
    assert read_again(store).messages() == memory.messages()


def test_a_redaction_is_seen_in_the_epoch() -> None:
    """Whatever was worked out from the text is worked out again."""
    memory = memory_of(2, last="open")
    epochs = [memory.rounds_getter(ROLE)().epoch]
    for ref in ("r1.p1", "r2.p1"):
        memory.redact(ref)
        epochs.append(memory.rounds_getter(ROLE)().epoch)
    assert epochs[0] < epochs[1] < epochs[2]


# -- what was made from it ---------------------------------------------------------------------------------------------


def test_compactions_that_cover_it_are_withdrawn() -> None:
    """The newest that does not is current again, in a new generation, and the trigger need not wait for a new round."""
    store = InMemoryStore()
    memory = memory_of(6, store)
    first = publish(memory, 2, summary="of two")
    publish(memory, 4)
    publish(memory, 5)
    memory.journal(ROLE).revert()
    memory.redact("r3.p1")
    state = memory.journal(ROLE).read()
    assert state == JournalState(generation=5, current=first, revert_round_id=None)
    assert memory.get_role_rounds(ROLE)[1] == first
    summaries = [e.record.compaction.summary for e in store.read("s") if e.kind == "compaction published"]
    assert summaries == ["of two", REDACTED, REDACTED]
    memory.redact("r1.p1")
    assert memory.journal(ROLE).read() == JournalState(6)
    assert memory.journal(ROLE).revert() is None


def test_each_redaction_erases_what_covers_its_own_round() -> None:
    """Whichever round the one before was in."""
    store = InMemoryStore()
    memory = memory_of(4, store)
    publish(memory, 2)
    for ref, summary in (("r3.p1", SECRET), ("r1.p1", REDACTED), ("r4.p1", REDACTED)):
        memory.redact(ref)
        assert [e.record.compaction.summary for e in store.read("s") if e.kind == "compaction published"] == [summary]


def test_a_compaction_that_ends_before_it_stays_current() -> None:
    """With a new generation all the same, for the next may be in the making."""
    memory = memory_of(4)
    current = publish(memory, 2, summary="of two")
    memory.redact("r3.p1")
    assert memory.journal(ROLE).read() == JournalState(2, current)


def test_every_role_gets_a_new_generation() -> None:
    """Also one that has not published anything: its compaction may be in the making."""
    memory = memory_of(4)
    publish(memory, 1, role="Coder")
    memory.redact("r2.p1")
    generations = [memory.journal(role).read().generation for role in (ROLE, "Coder", "Stranger")]
    assert generations == [1, 2, 1]
    assert publish(memory, 1).generation == 2


@pytest.mark.parametrize("kind", ["compaction", "reduction"])
def test_what_is_in_the_making_is_stale(kind: str) -> None:
    """It was made from a text that is no more."""
    store = InMemoryStore()
    memory = memory_of(4, store)
    other = Memory("s", store=store)  # which has not read of the redaction when it publishes
    made = CompactedMessage(start_index=1, end_index=1, end_round_id="1", summary=SECRET)
    reduction = Reduction.over(memory.conversation.rounds[2], memory.conversation.rounds[2].post_list, "dropped")
    memory.redact("r1.p1")
    for writer in (memory, other):
        journal = writer.journal(ROLE)
        with pytest.raises(StaleCompaction) as raised:
            journal.publish(made, base=0, round_ids=["1"]) if kind == "compaction" else journal.reduce(
                reduction, base=0
            )
        assert raised.value.reason == "generation"


def test_reductions_that_cover_it_are_withdrawn() -> None:
    """Of every role, live or not; those of other posts stay."""
    store = InMemoryStore()
    memory = memory_of(3, store)
    reduce(memory, "2", 3, 3, "offloaded")
    reduce(memory, "2", 1, 2)
    reduce(memory, "3", 1, 2, "dropped")
    memory.redact("r2.p1")
    left = memory.rounds_getter(ROLE)().reductions
    assert [(one.first_number, one.text) for one in left.of("2")] == [(3, SECRET)]
    assert len(left.of("3")) == 1
    texts = [e.record.reduction.text for e in store.read("s") if e.kind == "reduction published"]
    assert texts == [SECRET, REDACTED, ""]
    memory.redact("r2.p3")
    memory.redact("r3.p2")
    last = memory.rounds_getter(ROLE)().reductions
    assert last.by_round == {}
    assert last.version > left.version  # whoever cached something by it looks again
    assert [e.record.reduction.text for e in store.read("s") if e.kind == "reduction published"] == [
        REDACTED,
        REDACTED,
        "",
    ]
    assert read_again(store).rounds_getter(ROLE)().reductions == memory.rounds_getter(ROLE)().reductions


def test_what_is_made_afterwards_stays() -> None:
    """It is made from what is left: neither another redaction of the same nor a resume takes it away."""
    store = InMemoryStore()
    memory = memory_of(3, store)
    memory.redact("r1.p1")
    current = publish(memory, 2, summary="of what is left")
    reduce(memory, "3", 1, 2)
    memory.redact("r1.p1")
    assert memory.journal(ROLE).read().current == current
    resumed = Memory("s", store=store)
    assert resumed.journal(ROLE).read() == memory.journal(ROLE).read()
    assert len(resumed.rounds_getter(ROLE)().reductions.of("3")) == 1


# -- asking for it -----------------------------------------------------------------------------------------------------


def test_redacting_twice_writes_nothing() -> None:
    """What is gone is gone; no cycle is disturbed."""
    memory = memory_of(1)
    memory.redact("r1.p1")
    number = memory.snapshot.number
    memory.redact("r1.p1")
    memory.redact(memory.conversation.rounds[0].post_list[0])
    assert memory.snapshot.number == number


def test_an_unknown_post_is_an_error_and_tells_nobody() -> None:
    """Nobody believes that a text is gone which is still there."""
    memory, told = memory_of(1), Provider()
    memory.register_compaction_provider(ROLE, told)
    for wrong in ("r1", "r9.p1", Post(send_from=ROLE, send_to="User")):
        with pytest.raises(UnknownReference):
            memory.redact(wrong)
    assert told.calls == []


class Provider:
    """Notes how often it is told, and what it could read then."""

    def __init__(self, look: Callable[[], object] = lambda: None) -> None:
        self.calls: list[object] = []
        self.look = look

    def get_compaction(self) -> None:
        return None

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        self.calls.append(self.look())


def test_providers_are_told_when_it_is_done() -> None:
    """They may compact again at once, and find nothing of it."""
    store = InMemoryStore()
    memory = memory_of(1, store)
    told = Provider(lambda: any('swordfish q1"' in entry.body for entry in store.read("s")))
    assert told.look() is True
    memory.register_compaction_provider(ROLE, told)
    memory.redact("r1.p0")
    assert told.calls == [False]


# -- interrupted, and in several processes -----------------------------------------------------------------------------


class FragileStore(InMemoryStore):
    """Breaks off after so many erasures."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 10_000

    def redact(self, session: str, number: int, body: str = "") -> None:
        if self.left == 0:
            raise StoreError("the disk is full; make room")
        self.left -= 1
        super().redact(session, number, body)


@pytest.mark.parametrize("again", ["resume", "another Memory", "call"])
@pytest.mark.parametrize("erased", [0, 1, 2, 3])
def test_an_interrupted_redaction_is_taken_up_again(erased: int, again: str) -> None:
    """By whoever reads of it next: what stands in the log to be erased is erased."""
    store = FragileStore()
    memory = Memory("s", store=store)
    memory.create_round(SECRET, id="1")
    memory.add_post("1", send_from="User", send_to=ROLE, message=SECRET)
    memory.add_post("1", send_from=ROLE, send_to="User", message="answer")
    memory.create_round("what is asked now", id="2")  # the query before may be reduced
    reduce(memory, "1", 1, 1)
    publish(memory, 1)
    other, told = Memory("s", store=store), Provider()
    memory.register_compaction_provider(ROLE, told)
    store.left = erased
    with pytest.raises(StoreError, match="disk is full"):
        memory.redact("r1.p1")
    assert told.calls == [None]  # it is gone from here in any case
    assert memory.conversation.rounds[0].user_query == REDACTED
    store.left = 10_000
    if again == "resume":
        memory = Memory("s", store=store)
    elif again == "another Memory":
        other.create_round("next")
    else:
        memory.redact("r1.p0")
    assert not occurs(memory, store)


def test_a_finished_redaction_costs_a_resume_nothing() -> None:
    """Nothing is left to erase, so nothing is written."""
    store = FragileStore()
    memory_of(2, store).redact("r1.p1")
    store.left = 0
    assert Memory("s", store=store).conversation.rounds[0].post_list[0].message == REDACTED


def test_a_redaction_costs_the_same_however_many_were_before() -> None:
    """What they erased is not read again; compactions, which may hold a text of any round, are few."""
    store = Indexed()
    memory = memory_of(30, store)
    publish(memory, 20)
    memory.redact("r20.p1")
    read = []
    for number in range(1, 30):
        before = store.handed_out
        memory.redact(f"r{number}.p2")
        read.append(store.handed_out - before)
    assert max(read) <= 2 * min(read)
    assert not any(SECRET in entry.body for entry in store.read("s") if entry.kind == "compaction published")


@pytest.mark.parametrize("store", [InMemoryStore, Indexed])
def test_a_redaction_that_was_left_undone_is_done_with_the_next(
    store: type[InMemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever round that is about; until then no checkpoint hides it."""
    kept = store()
    memory = memory_of(3, kept)

    def full(*_: object) -> None:
        raise StoreError("the disk is full; make room")

    with monkeypatch.context() as patched:
        patched.setattr(InMemoryStore, "redact", full)
        with pytest.raises(StoreError, match="disk is full"):
            memory.redact("r1.p1")

    def first_post() -> str:
        return next(entry.body for entry in kept.read("s") if (entry.round, entry.kind) == (1, "post added"))

    assert SECRET in first_post()
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 1)
    memory.append({"role": "user", "content": "and on"})
    assert not getattr(kept, "checkpoints", {})
    memory.redact("r2.p1")
    assert SECRET not in first_post()
    memory.append({"role": "assistant", "content": "yes"})
    assert list(getattr(kept, "checkpoints", {"s": None})) == ["s"]


def test_another_process_learns_of_a_redaction() -> None:
    """When it reads on: both have the same then."""
    store = InMemoryStore()
    one = memory_of(3, store, last="open")
    two = Memory("s", store=store)
    publish(one, 1)
    one.redact("r1.p1")
    one.redact("r3.p1")
    two.add_post("3", send_from=ROLE, send_to="User", message="more")
    one.add_post("3", send_from=ROLE, send_to="User", message="and more")
    two.finish_round("3")
    one.finish_round("3")
    assert everything(one, ROLE) == everything(two, ROLE) == everything(read_again(store), ROLE)


def test_the_log_of_a_redaction_has_one_entry_more_and_the_others_keep_their_kinds() -> None:
    """So it can be read again, in order."""
    store = InMemoryStore()
    memory = memory_of(2, store)
    publish(memory, 1)
    before = [(entry.id, entry.kind, entry.created_at) for entry in store.read("s")]
    memory.redact("r1.p2")
    *others, newest = store.read("s")
    assert [(entry.id, entry.kind, entry.created_at) for entry in others] == before
    assert newest.record == PostRedacted(round_id="1", numbers=(2,))


def test_an_entry_that_erases_in_an_unknown_round_is_an_error() -> None:
    """Such a log was not written by a Memory."""
    store = InMemoryStore()
    store.append("s", [Entry.of(PostRedacted(round_id="9", numbers=(1,)))], after=0)
    with pytest.raises(StoreError, match="restore the session"):
        Memory("s", store=store)


def test_redactions_from_several_threads_are_all_done() -> None:
    """While others publish: nothing that covers an erased text stays."""
    store = InMemoryStore()
    memory = memory_of(4, store)
    raised: list[str] = []

    def redact(number: int) -> None:
        for place in (0, 1, 2):
            memory.redact(f"r{number}.p{place}")
            try:
                publish(memory, 4)
            except StaleCompaction as stale:
                raised.append(stale.reason)

    at_once(*(partial(redact, number) for number in (1, 2, 3, 4)))
    assert set(raised) <= {"generation", "behind"}
    memory.journal(ROLE).revert()
    texts = [entry.body for entry in store.read("s") if entry.kind in ("round opened", "post added")]
    assert not any(SECRET in text for text in texts)
    assert memory.snapshot.redactions == 12
    assert everything(read_again(store), ROLE) == everything(memory, ROLE)


def test_a_session_that_is_purged_during_a_redaction_is_purged() -> None:
    class PurgedMeanwhile(InMemoryStore):
        def redact_all(self, session: str, bodies: Mapping[int, str]) -> None:
            self.purge(session)
            super().redact_all(session, bodies)

    with pytest.raises(SessionPurged):
        memory_of(2, PurgedMeanwhile()).redact("r1.p1")


def test_hooks_hear_of_what_was_erased_by_its_place() -> None:
    """Whoever keeps texts elsewhere, in files say, erases them there, and tries again when it is asked for again;
    nothing is told of what is not there."""
    memory, heard = memory_of(2), []
    memory.on_event(heard.append)
    memory.redact("r2.p2")
    memory.redact("r2.p2")
    with pytest.raises(UnknownReference):
        memory.redact("r2.p9")
    assert [(event.name, event.references) for event in heard] == [("memory.redacted", ("r2.p2",))] * 2


@pytest.mark.parametrize("store", [InMemoryStore, Indexed])
def test_hooks_hear_of_what_others_erased_when_it_is_read(store: type[InMemoryStore]) -> None:
    """Once, by a refresh or before a write; so a process that keeps texts elsewhere erases them whoever redacts."""
    kept = store()
    one = memory_of(3, kept)
    memory, heard = Memory("s", store=kept), []
    memory.on_event(
        lambda event: heard.append((event.name, getattr(event, "references", ()), memory._lock._is_owned()))
    )
    one.redact("r1.p2")
    one.redact("r2.p1")
    one.redact("r2.p1")
    assert heard == []
    assert memory.refresh()
    assert not memory.refresh()
    told = [("memory.redacted", ("r1.p2",), False), ("memory.redacted", ("r2.p1",), False)]
    assert heard == told
    one.redact("r3.p2")
    memory.create_round("next")
    memory.create_round("after next")
    assert heard == [*told, ("memory.redacted", ("r3.p2",), False)]
    memory.redact("r1.p0")
    one.refresh()
    assert heard[3:] == [("memory.redacted", ("r1.p0",), False)]


def test_what_was_erased_before_the_opening_is_told_to_nobody() -> None:
    """Whoever asks for events comes later."""
    store = InMemoryStore()
    memory_of(3, store).redact("r1.p2")
    memory, heard = Memory("s", store=store), []
    memory.on_event(heard.append)
    memory.create_round("next")
    assert heard == []


@pytest.mark.parametrize("store", [InMemoryStore, Indexed])
def test_what_was_erased_can_be_asked_for(store: type[InMemoryStore]) -> None:
    """By whoever comes too late to hear of it: in the order in which it was done, and each place once."""
    kept = store()
    memory = memory_of(3, kept)
    assert memory.redacted() == ()
    memory.redact("r3.p2")
    memory.redact("r1.p0")
    memory.redact("r3.p2")
    memory.redact("r3.p1")
    assert memory.redacted() == Memory("s", store=kept).redacted() == ("r3.p2", "r1.p0", "r3.p1")


#: Fields that hold ids, numbers and names that the host or the provider gave, and nothing that anybody said.
NOTHING_SAID = {
    "round_id", "round_ids", "role", "digest", "base", "kind", "strategy", "model", "usage", "checks",
    "generation", "number", "numbers", "first_number", "last_number", "pinned", "tokens_before", "tokens_after",
    "input_tokens", "counted", "current", "cached_tokens", "created_at", "name", "continued_in", "copied",
}  # fmt: skip
#: A system message is of no round, so nobody can erase it by one; events hold facts without content.
NOT_OF_POSTS = {HeaderAdded, EventRecorded}
NOTES = (Note(text=SECRET, section=SECRET),)
MADE = CompactedMessage(start_index=1, end_index=1, end_number=1, summary=SECRET, notes=NOTES, extra={"k": SECRET})
SAYING: dict[type[Record], Record] = {
    RoundOpened: RoundOpened(round_id="1", user_query=SECRET, created_at=utc_now(), extra={"k": SECRET}),
    PostAdded: PostAdded(
        round_id="1",
        post=Post(
            number=1, send_from=ROLE, send_to="tool", message=SECRET, extra={"k": SECRET},
            attachment_list=(Attachment(type="plan", content=SECRET),),
            tool_calls=(ToolCall(id="c", name="look", arguments=SECRET),),
        ),
    ),
    CompactionPrepared: CompactionPrepared(role=ROLE, digest="d", base=0, text=SECRET, compaction=MADE),
    CompactionPublished: CompactionPublished(role=ROLE, compaction=MADE),
    ShownRecorded: ShownRecorded(
        role=ROLE,
        made=(
            StandIn(id="a", message={"role": "user", "content": SECRET}, sources=("1.0-1",)),
            StandIn(id="b", message={"role": "user", "content": SECRET}, sources=("=a", "2.0")),
        ),
        shown=("=b",),
    ),
    ReductionPublished: ReductionPublished(
        role=ROLE,
        reduction=Reduction(
            round_id="1", first_post_id="", last_post_id="", kind="offloaded", text=SECRET, extra={"k": SECRET}
        ),
    ),
}  # fmt: skip


def test_every_record_that_can_hold_what_was_said_is_read() -> None:
    """One that is new, or has a new field, is erased too, or stands here with the reason why it need not be."""
    saying = {record for record in KINDS.values() if not NOTHING_SAID.issuperset(record.model_fields)}
    assert saying - NOT_OF_POSTS == set(SAYING)


@pytest.mark.parametrize("kind", [NAMES[record] for record in SAYING])
def test_nothing_is_left_in_any_field_of_a_record(kind: str) -> None:
    """Whichever of its fields it stands in."""
    store = InMemoryStore()
    begun = (SAYING[RoundOpened], SAYING[PostAdded], RoundFinished(round_id="1"), SAYING[KINDS[kind]])
    store.append("s", [Entry.of(record, round=1) for record in dict.fromkeys(begun)], 0)
    assert any(SECRET in entry.body for entry in store.read("s") if entry.kind == kind)
    memory = Memory("s", store=store)
    memory.redact("r1.p0")
    memory.redact("r1.p1")
    assert not any(SECRET in entry.body for entry in store.read("s"))
