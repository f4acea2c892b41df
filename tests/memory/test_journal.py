"""Publishing is a compare-and-set on the generation; a revert is a new generation too, and all of it is in the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from logged import record

from memory import CompactedMessage, InMemoryStore, Journal, JournalState, Memory, Origin, StaleCompaction

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
#: Answers of each kind that are kept for a role.
MAX_PREPARED = 64


def memory_of(count: int, store: InMemoryStore | None = None) -> Memory:
    memory = Memory("s", store=store, clock=lambda: NOON)
    for number in range(1, count + 1):
        memory.finish_round(memory.create_round(f"query {number}", id=str(number)))
    return memory


def made(end: int, summary: str = "s", **more: object) -> CompactedMessage:
    return CompactedMessage(start_index=1, end_index=end, end_round_id=str(end), summary=summary, **more)


def publish(
    memory: Memory, start: int, end: int, *, base: int, role: str = "Planner", **more: object
) -> CompactedMessage:
    """Publish what covers rounds *start* to *end* of the log, on top of what covered those before."""
    ids = [str(number) for number in range(start, end + 1)]
    return memory.journal(role).publish(made(end, **more), base=base, round_ids=ids)


def kinds(store: InMemoryStore) -> list[str]:
    return [entry.kind for entry in store.read("s") if entry.kind.startswith("compaction")]


def test_a_memorys_journal_is_a_journal() -> None:
    """Compactors are written against the protocol."""
    journal: Journal = memory_of(0).journal("Planner")
    assert journal.read() == JournalState(generation=0, current=None, revert_round_id=None)


def test_what_is_published_becomes_current_and_is_in_the_log() -> None:
    """With its generation, its stamp and the number of its last round, what it covers newly and how it came about; all
    else is as it was made."""
    store = InMemoryStore()
    memory = memory_of(6, store)
    published = memory.journal("Planner").publish(
        made(4, "{they}", model="m", usage={"input_tokens": 9}, extra={"k": 1}),
        base=0,
        round_ids=["1", "2", "3", "4"],
        origin=Origin("d", ("echo",), tokens_after=3),
    )
    assert published == made(4, "{they}", model="m", usage={"input_tokens": 9}, extra={"k": 1}).model_copy(
        update={"generation": 1, "end_number": 4, "created_at": NOON}
    )
    assert memory.journal("Planner").read() == JournalState(1, published, None)
    assert memory.get_role_rounds("Planner")[1] == published
    *_, entry = store.read("s")
    assert entry.record == record(
        "compaction published",
        role="Planner",
        compaction=published,
        round_ids=("1", "2", "3", "4"),
        digest="d",
        checks=("echo",),
        tokens_after=3,
    )


def test_roles_publish_apart() -> None:
    """Each has generations of its own."""
    memory = memory_of(6)
    publish(memory, 1, 2, base=0)
    publish(memory, 3, 4, base=1)
    publish(memory, 1, 3, base=0, role="CodeInterpreter")
    assert memory.journal("Planner").read().generation == 2
    assert memory.journal("CodeInterpreter").read().generation == 1
    assert memory.journal("Stranger").read() == JournalState()


@pytest.mark.parametrize("base", [0, 2])
def test_a_compaction_from_another_generation_is_stale(base: int) -> None:
    """Nothing is written; what is current stays."""
    store = InMemoryStore()
    memory = memory_of(6, store)
    current = publish(memory, 1, 2, base=0)
    with pytest.raises(StaleCompaction, match="generation") as raised:
        publish(memory, 3, 4, base=base)
    assert raised.value.reason == "generation"
    assert memory.journal("Planner").read().current == current
    assert kinds(store) == ["compaction published"]


@pytest.mark.parametrize("end", [2, 3])
def test_a_compaction_that_does_not_move_forward_is_behind(end: int) -> None:
    """The anchor never goes back, nor stays."""
    memory = memory_of(6)
    publish(memory, 1, 3, base=0)
    with pytest.raises(StaleCompaction) as raised:
        memory.journal("Planner").publish(made(end), base=1, round_ids=[])
    assert raised.value.reason == "behind"


@pytest.mark.parametrize("failed", ["2", "4"])
def test_a_compaction_one_of_whose_rounds_failed_meanwhile_is_discarded(failed: str) -> None:
    """What failed must not reach a prompt through the summary."""
    memory = memory_of(6)
    memory.finish_round(failed, state="failed")
    with pytest.raises(StaleCompaction) as raised:
        publish(memory, 1, 4, base=0)
    assert raised.value.reason == "rounds_changed"


def test_a_summary_is_not_made_from_one_of_which_a_round_has_failed() -> None:
    """It would tell of what was undone: it is stale, and made again from what does not."""
    memory = memory_of(6)
    publish(memory, 1, 3, base=0)
    memory.finish_round("2", state="failed")
    with pytest.raises(StaleCompaction, match="generation"):
        publish(memory, 4, 5, base=1)
    made_anew = memory.journal("Planner").publish(made(5), base=2, round_ids=["1", "3", "4", "5"])
    assert (made_anew.end_index, made_anew.last_round) == (4, 5)


def test_rounds_added_meanwhile_do_not_make_a_compaction_stale() -> None:
    """The chat goes on while a model summarises."""
    memory = memory_of(4)
    for name in ("5", "6"):
        memory.create_round("meanwhile", id=name)
    assert publish(memory, 1, 4, base=0).generation == 1


@pytest.mark.parametrize(
    ("end_round_id", "round_ids"),
    [("4", ["4"]), ("5", ["5"]), ("3", ["2", "4"]), ("unknown", []), (None, []), ("3", ["unknown"])],
    ids=["open", "behind an open one", "covers an open one", "unknown end", "no end", "unknown round"],
)
def test_a_compaction_ends_before_the_first_open_round(end_round_id: str | None, round_ids: list[str]) -> None:
    """Also where another Memory has it open; and at a round of this session."""
    store = InMemoryStore()
    memory_of(3, store)
    Memory("s", store=store).create_round("open elsewhere", id="4")
    memory = Memory("s", store=store)
    memory.finish_round(memory.create_round("mine", id="5"))
    compaction = made(3).model_copy(update={"end_round_id": end_round_id})
    with pytest.raises(StaleCompaction) as raised:
        memory.journal("Planner").publish(compaction, base=0, round_ids=round_ids)
    assert raised.value.reason == "rounds_changed"
    assert publish(memory, 1, 3, base=0).end_index == 3


def test_indices_are_those_of_the_present() -> None:
    """What is read back fits the rounds that are read with it, whatever has failed since."""
    memory = memory_of(6)
    memory.finish_round("1", state="failed")
    published = memory.journal("Planner").publish(made(5), base=0, round_ids=["2", "3", "4", "5"])
    assert (published.end_index, published.last_round) == (4, 5)
    memory.finish_round("3", state="failed")
    assert memory.journal("Planner").read() == JournalState(2, None, None)


# -- reverting ---------------------------------------------------------------------------------------------------------


def test_a_revert_brings_the_compaction_before_back() -> None:
    """As a new generation; the newest round of that moment is what the trigger waits to be passed."""
    memory = memory_of(6)
    first = publish(memory, 1, 2, base=0)
    publish(memory, 3, 4, base=1)
    assert memory.journal("Planner").revert() == first
    assert memory.journal("Planner").read() == JournalState(3, first, revert_round_id="6")
    assert memory.get_role_rounds("Planner")[1] == first


def test_reverting_goes_back_to_nothing_and_stays_there() -> None:
    """Then there is nothing to write."""
    store = InMemoryStore()
    memory = memory_of(6, store)
    publish(memory, 1, 2, base=0)
    journal = memory.journal("Planner")
    assert journal.revert() is None
    assert journal.read() == JournalState(2, None, revert_round_id="6")
    assert memory.get_role_rounds("Planner")[1] is None
    assert journal.revert() is None
    assert kinds(store) == ["compaction published", "compaction reverted"]


def test_a_compaction_made_before_a_revert_is_stale() -> None:
    """A late result does not undo what a person has undone."""
    memory = memory_of(6)
    publish(memory, 1, 2, base=0)
    memory.journal("Planner").revert()
    with pytest.raises(StaleCompaction) as raised:
        publish(memory, 3, 4, base=1)
    assert raised.value.reason == "generation"


def test_publishing_goes_on_after_a_revert() -> None:
    """From the anchor that was reverted to, which may lie before the one that was withdrawn."""
    memory = memory_of(6)
    first = publish(memory, 1, 2, base=0)
    publish(memory, 3, 5, base=1)
    memory.journal("Planner").revert()
    third = publish(memory, 3, 4, base=3)
    assert memory.journal("Planner").read() == JournalState(4, third, revert_round_id=None)
    assert memory.journal("Planner").revert() == first
    assert memory.journal("Planner").revert() is None
    assert memory.journal("Planner").read().generation == 6


def test_publications_and_reverts_survive_a_resume() -> None:
    """The log has all of them, so a revert after a restart goes where it would have gone before."""
    store = InMemoryStore()
    memory = memory_of(6, store)
    first = publish(memory, 1, 2, base=0)
    publish(memory, 3, 4, base=1)
    publish(memory, 5, 6, base=2)
    memory.journal("Planner").revert()
    resumed = Memory("s", store=store)
    assert resumed.journal("Planner").read() == memory.journal("Planner").read()
    assert resumed.journal("Planner").revert() == first


# -- several writers ---------------------------------------------------------------------------------------------------


def test_of_two_memories_that_publish_on_one_generation_one_wins() -> None:
    """The other learns of it by the conflict, though it had not read the log."""
    store = InMemoryStore()
    one, two = memory_of(6, store), Memory("s", store=store)
    won = publish(one, 1, 4, base=0)
    with pytest.raises(StaleCompaction) as raised:
        publish(two, 1, 5, base=0)
    assert raised.value.reason == "generation"
    assert two.journal("Planner").read().current == won
    assert kinds(store) == ["compaction published"]


def test_a_round_that_failed_elsewhere_makes_a_compaction_stale() -> None:
    """Though this Memory had not heard of it."""
    store = InMemoryStore()
    one, two = memory_of(6, store), Memory("s", store=store)
    one.finish_round("3", state="failed")
    with pytest.raises(StaleCompaction) as raised:
        publish(two, 1, 4, base=0)
    assert raised.value.reason == "rounds_changed"


def test_a_publication_survives_a_conflict_that_does_not_concern_it() -> None:
    """Its indices are those after what was added meanwhile."""
    store = InMemoryStore()
    one, two = memory_of(6, store), Memory("s", store=store)
    one.finish_round("6", state="failed")
    one.create_round("new")
    assert publish(two, 1, 4, base=0).generation == 1
    assert two.get_role_rounds("Planner")[0].find_end("6") == 5


def prepared(text: str, compaction: CompactedMessage | None = None) -> Any:
    return record("compaction prepared", role="A", digest=text, base=0, text=text, compaction=compaction)


def test_answers_about_single_posts_do_not_push_out_a_deferred_compaction() -> None:
    """However many of them come meanwhile: of either the newest are at hand, in the order in which they came."""
    store = InMemoryStore()
    journal = memory_of(3, store).journal("A")
    for text in ("held", *map(str, range(MAX_PREPARED + 2)), "held again"):
        journal.prepare(prepared(text, made(2, text) if "held" in text else None))
    for kept in (journal.read().prepared, Memory("s", store=store).journal("A").read().prepared):
        assert [one.text for one in kept] == ["held", *map(str, range(2, MAX_PREPARED + 2)), "held again"]


def test_of_deferred_compactions_only_the_newest_are_at_hand() -> None:
    """So nobody carries along what was prepared hundreds of times and never shown; answers of other kinds stay."""
    journal = memory_of(3).journal("A")
    journal.prepare(prepared("answer"))
    for number in range(MAX_PREPARED + 1):
        journal.prepare(prepared(f"held {number}", made(2)))
    assert [one.text for one in journal.read().prepared] == [
        "answer",
        *(f"held {number}" for number in range(1, MAX_PREPARED + 1)),
    ]


def test_what_is_published_does_not_carry_along_which_of_its_fields_were_set() -> None:
    """Nobody asks for that, and it is as large as all else of it but its text: once for each compactor there is."""
    memory = memory_of(3)
    memory.journal("Planner").prepare(prepared("text", made(2)))
    (answer,) = memory.journal("Planner").read().prepared
    assert answer.compaction is not None
    assert answer.model_fields_set | answer.compaction.model_fields_set == set()
    assert answer.compaction == made(2)
    publish(memory, 1, 2, base=0)
    current = memory.journal("Planner").read().current
    assert current is not None
    assert current.model_fields_set == set()
    assert current == made(2, end_number=2, generation=1, created_at=NOON)
