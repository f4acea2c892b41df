"""A fork reads as the session did, up to a round, and neither ever shows what is written to the other."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from histories import eventful, everything, publish, reduce
from logged import record

from compactor import compose
from memory import Entry, InMemoryStore, Memory, StoreError, UnknownRound, open_store, purge_tenant
from memory.stores import join_name, split_name


def compaction(memory: Memory, role: str = "Planner") -> str | None:
    current = memory.journal(role).read().current
    return current.summary if current is not None else None


def answered(count: int, store: InMemoryStore | None = None) -> Memory:
    """Return a Memory of so many closed rounds."""
    memory = Memory("s", store=store)
    for number in range(1, count + 1):
        opened = memory.create_round(f"query {number}", id=f"round-{number}")
        memory.add_post(opened, send_from="Planner", send_to="User", message=f"answer {number}")
        memory.finish_round(opened)
    return memory


def test_a_fork_at_the_last_round_reads_as_the_session() -> None:
    """Header, rounds, overlays, pins, usage, what was erased: all of it, under another name."""
    memory = eventful(InMemoryStore())
    fork = memory.fork(6)
    assert everything(fork) == everything(memory)
    assert fork.session_id != memory.session_id
    for role in ("Planner", "Coder"):
        assert compose(fork, role=role, budget=3_000).messages == compose(memory, role=role, budget=3_000).messages


@pytest.mark.parametrize("at_round", [1, 2, 3, 4, 5])
def test_a_fork_holds_what_is_up_to_a_round(at_round: int) -> None:
    """Rounds with the posts and the states that they have now; pins and the compaction that ends there or before."""
    memory = eventful(InMemoryStore())
    fork = memory.fork(at_round)
    assert list(fork.conversation.rounds) == list(memory.conversation.rounds[:at_round])
    assert fork.header == memory.header
    assert compaction(fork) == ("up to 2" if at_round >= 2 else None)
    assert fork.pins() == tuple(pin for pin in memory.pins() if int(pin[1]) <= at_round)
    assert fork.usage("Planner").steps == memory.usage("Planner").steps
    assert fork.snapshot.redactions == (at_round >= 3)


def test_a_fork_belongs_to_the_tenant_of_its_session() -> None:
    """So nothing of a purged tenant is left in it."""
    store = InMemoryStore()
    memory = Memory(join_name("acme", "s"), store=store)
    memory.append({"role": "user", "content": "Where is order 17?"})
    assert split_name(memory.fork(1).session_id)[0] == "acme"
    assert purge_tenant(store, "acme") == 2
    assert not store.sessions()


def test_a_round_that_was_open_has_what_it_has_now() -> None:
    """A fork is made of what the log says today: posts that came after the next round was opened are in it."""
    store = InMemoryStore()
    memory, other = Memory("s", store=store), Memory("s", store=store)
    first = memory.create_round("first")
    other.create_round("second")
    memory.add_post(first, send_from="Planner", send_to="User", message="late")
    assert [round_.state for round_ in memory.fork(1).conversation.rounds] == ["created"]
    memory.finish_round(first, state="failed")
    (kept,) = memory.fork(1).conversation.rounds
    assert (kept.state, kept.post_list[0].message) == ("failed", "late")


def test_an_open_round_is_finished_by_the_next() -> None:
    """In the fork as in the session that it was made of."""
    memory = answered(1)
    memory.create_round("open")
    fork = memory.fork(2)
    assert fork.conversation.rounds[1].state == "created"
    fork.create_round("next")
    assert fork.conversation.rounds[1].state == "finished"
    assert memory.conversation.rounds[1].state == "created"


def test_a_fork_shares_nothing() -> None:
    """Writing to one never shows in the other, in a store that both use."""
    store = InMemoryStore()
    memory = eventful(store)
    fork = memory.fork(6, "fork")
    for written, other in ((memory, fork), (fork, memory)):
        before, log = everything(other), [(entry.number, entry.body) for entry in store.read(other.session_id)]
        written.add_post("round-6", send_from="Planner", send_to="User", message="more")
        written.pin("r2.p1")
        written.redact("r1.p3")
        written.finish_round("round-5", state="failed")
        written.create_round("only here")
        publish(written, 1, role="Coder")
        assert everything(other) == before
        assert [(entry.number, entry.body) for entry in store.read(other.session_id)] == log
        assert everything(Memory(other.session_id, store=store)) == before


def test_a_fork_in_another_store_may_have_the_same_name() -> None:
    """In the same store it has a name of its own; one that is taken is refused, and that session left alone."""
    store, elsewhere = InMemoryStore(), InMemoryStore()
    memory = answered(2, store)
    assert everything(memory.fork(2, "s", store=elsewhere)) == everything(memory)
    before = list(store.read("s"))
    with pytest.raises(StoreError, match=r"already.*another name"):
        memory.fork(1, "s")
    assert list(store.read("s")) == before
    assert store.sessions() == ["s"]


@pytest.mark.parametrize("at_round", [1, 3, 5, 6])
def test_a_database_forks_alike(tmp_path: Path, at_round: int) -> None:
    """Within one database, and out of it; where rounds are read when somebody asks, what is published as well."""
    with closing(open_store(f"sqlite:///{tmp_path / 'chat.db'}")) as store:
        memory = eventful(store)
        fork, elsewhere = memory.fork(at_round, "fork"), memory.fork(at_round, store=InMemoryStore())
        assert everything(fork) == everything(elsewhere) == everything(Memory("fork", store=store))
        fork.create_round("only here")
        assert everything(memory) == everything(Memory("s", store=store))


def test_entries_of_a_fork_are_new_ones() -> None:
    """With ids of their own; rounds, posts and time stamps keep theirs, and entries say which round they belong to."""
    store = InMemoryStore()
    memory = eventful(store)
    fork = memory.fork(5, "fork")
    ids = {entry.id for entry in store.read("s")}
    entries = list(store.read("fork"))
    assert not any(entry.id in ids for entry in entries)
    assert len({entry.id for entry in entries}) == len(entries)
    assert {entry.created_at for entry in entries[:10]} <= {entry.created_at for entry in store.read("s")}
    assert [entry.round for entry in entries if entry.kind == "round opened"] == [1, 2, 3, 4, 5]
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    assert fork.conversation.rounds[0].post_list[0].id == memory.conversation.rounds[0].post_list[0].id


@pytest.mark.parametrize("at_round", [0, -1, 3, True, None, "1", 1.0])
def test_a_round_that_is_not_there_is_an_error(at_round: Any) -> None:
    """Which says what rounds there are; nothing is written."""
    store = InMemoryStore()
    memory = answered(2, store)
    with pytest.raises(UnknownRound, match="this session has 2"):
        memory.fork(at_round)
    assert store.sessions() == ["s"]


def test_a_purged_session_has_no_fork() -> None:
    """An error says so."""
    store = InMemoryStore()
    memory = answered(2, store)
    store.purge("s")
    with pytest.raises(StoreError, match="purged"):
        memory.fork(1)


def test_the_newest_compaction_before_the_round_is_current() -> None:
    """With those that it had replaced: reverting goes back through them, and publishing goes on."""
    memory = answered(6)
    for last in (1, 3, 5):
        publish(memory, last)
    fork = memory.fork(4)
    assert compaction(fork) == "up to 3"
    assert publish(fork, 4).generation > 2
    fork.journal("Planner").revert()
    assert compaction(fork) == "up to 3"
    fork.journal("Planner").revert()
    assert compaction(fork) == "up to 1"
    assert compaction(memory) == "up to 5"


def test_what_was_reverted_stays_so() -> None:
    """Whichever of the compactions before it and behind it a fork has."""
    memory = answered(6)
    publish(memory, 1)
    publish(memory, 5)
    memory.journal("Planner").revert()
    publish(memory, 3)
    memory.journal("Planner").revert()
    publish(memory, 2)
    found = {at_round: compaction(memory.fork(at_round)) for at_round in range(1, 7)}
    assert found == {1: "up to 1", 2: "up to 2", 3: "up to 2", 4: "up to 2", 5: "up to 2", 6: "up to 2"}


def test_a_revert_in_a_session_without_compactions_is_left_out() -> None:
    """A log may hold one that was made of nothing."""
    store = InMemoryStore()
    answered(1, store)
    body = '{"role":"Planner","generation":1}'
    store.append("s", [Entry("compaction reverted", body=body)], len(list(store.read("s"))))
    fork = Memory("s", store=store).fork(1, "fork")
    assert "compaction reverted" not in {entry.kind for entry in store.read("fork")}
    assert compaction(fork) is None


def test_the_words_that_are_the_newest_again_are_shown() -> None:
    """A reduction on the user's words is withdrawn where they end the fork; others stay."""
    memory = answered(3)
    reduce(memory, 1, [None], "summarised")
    reduce(memory, 2, [None], "summarised")
    reduce(memory, 2, memory.conversation.rounds[1].post_list[:1], "offloaded")
    fork = memory.fork(2)
    live = fork.rounds_getter("Planner")().reductions
    assert [one.kind for one in live.of("round-1")] == ["summarised"]
    assert [one.kind for one in live.of("round-2")] == ["offloaded"]
    assert "query 2" in compose(fork, role="Planner", budget=1_000).messages[-2]["content"]
    assert len(memory.rounds_getter("Planner")().reductions.of("round-2")) == 2


def test_reductions_that_were_replaced_withdrawn_or_erased_stay_so() -> None:
    """Also where the words that they were on are the newest again."""
    memory = answered(3)
    posts = memory.conversation.rounds[1].post_list
    for number in (2, 1):
        reduce(memory, number, [None], "summarised")
    memory.journal("Planner").withdraw(memory.rounds_getter("Planner")().reductions.of("round-2")[0])
    reduce(memory, 2, posts, "offloaded")
    memory.redact("r2.p1")
    reduce(memory, 2, [None], "dropped", role="Coder")
    fork = memory.fork(2)
    for role in ("Planner", "Coder"):
        assert fork.rounds_getter(role)().reductions.of("round-2") == ()
    assert len(fork.rounds_getter("Planner")().reductions.of("round-1")) == 1


def test_erased_words_are_not_in_the_fork() -> None:
    """Nor in anything that was made from them."""
    store = InMemoryStore()
    memory = answered(3, store)
    publish(memory, 2)
    memory.redact("r2.p1")
    fork = memory.fork(3, "fork")
    log = "".join(entry.body for entry in store.read("fork"))
    assert "answer 2" not in log
    assert "up to 2" not in log
    assert compaction(fork) is None


def test_how_long_a_later_prompt_was_stays_behind() -> None:
    """It says nothing of a shorter session; by how much we count too little does."""
    memory = answered(1)
    memory.record_usage("Planner", 120, counted=100)
    memory.create_round("later")
    memory.record_usage("Planner", 900, counted=600)
    assert memory.usage("Planner").input_tokens == 900
    fork = memory.fork(1)
    assert (fork.usage("Planner").input_tokens, fork.usage("Planner").steps) == (None, 10)
    assert memory.fork(2).usage("Planner") == memory.usage("Planner")


def test_what_is_about_no_round_stays_where_it_was_written_before_the_next() -> None:
    """And answers that were only prepared stay behind: nobody knows which rounds went into them."""
    store = InMemoryStore()
    memory = answered(1, store)
    prepared = record("compaction prepared", role="Planner", digest="d", base=0, text="t")
    before = [Entry("starred", body="{}"), Entry.of(prepared)]
    store.append("s", before, memory.snapshot.number)
    memory = Memory("s", store=store)
    memory.create_round("second")
    store.append("s", [Entry("flagged", body="{}"), Entry("tagged", body="{}", round=1)], memory.snapshot.number)
    memory = Memory("s", store=store)
    for at_round, expected in ((1, {"starred", "tagged"}), (2, {"starred", "flagged", "tagged"})):
        memory.fork(at_round, f"fork {at_round}")
        kinds = {entry.kind for entry in store.read(f"fork {at_round}")}
        assert kinds - {"round opened", "post added", "round closed"} == expected
