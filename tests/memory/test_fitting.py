"""Entries that came from elsewhere are taken where they fit those before, and only there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from histories import eventful

from memory import CompactedMessage, Entry, InMemoryStore, Memory, Post, Reduction, StoreDamaged
from memory.entries import (
    CompactionPrepared,
    CompactionPublished,
    CompactionReverted,
    HeaderAdded,
    PostAdded,
    PostPinned,
    PostRedacted,
    ReductionPublished,
    ReductionWithdrawn,
    RoundFailed,
    RoundFinished,
    RoundOpened,
    UsageRecorded,
)
from memory.rounds import Record, utc_now


def opened(round_id: str) -> RoundOpened:
    return RoundOpened(round_id=round_id, user_query="q", created_at=utc_now())


def post(round_id: str, number: int) -> PostAdded:
    return PostAdded(round_id=round_id, post=Post(send_from="Planner", send_to="User", message="m", number=number))


def published(end: str | None = "a", number: int | None = 1, generation: int = 1, covers: Any = ("a",)) -> Record:
    made = CompactedMessage(
        start_index=1, end_index=1, summary="s", end_round_id=end, end_number=number, generation=generation
    )
    return CompactionPublished(role="Planner", compaction=made, round_ids=covers)


def reduced(first: int, last: int, kind: Any = "dropped", round_id: str = "b") -> Record:
    made = Reduction(
        round_id=round_id, first_post_id="x", last_post_id="y", kind=kind, first_number=first, last_number=last
    )
    return ReductionPublished(role="Planner", reduction=made)


#: A closed round of two posts, and an open one of one.
BEGINNING: list[Record] = [
    opened("a"),
    post("a", 1),
    post("a", 2),
    RoundFinished(round_id="a"),
    opened("b"),
    post("b", 1),
]


def taken(*records: Record) -> list[int]:
    """Return the rounds of the last entries when *records* follow the beginning."""
    values = []
    for number, record in enumerate((*BEGINNING, *records), 1):
        entry = Entry.of(record)
        values.append(
            {"id": entry.id, "kind": entry.kind, "number": number, "version": 1, "body": json.loads(entry.body)}
        )
        values[-1]["created_at"] = entry.created_at.isoformat()
    store = InMemoryStore()
    head = {"format": "context-compactor state", "version": 1, "session": "s"}
    Memory.from_state_dict({**head, "entries": values}, store=store)
    return [entry.round for entry in store.read("s", len(BEGINNING))]


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (HeaderAdded(post=Post(send_from="system", send_to="", message="m")), "the header"),
        (opened("a"), "a round of that id"),
        (post("c", 1), "no round of that id"),
        (post("a", 3), "the round is closed"),
        (post("b", 1), "number is not the next"),
        (post("b", 0), "number is not the next"),
        (post("b", 1 << 70), "number is not the next"),
        (RoundFinished(round_id="c"), "no round"),
        (RoundFailed(round_id=""), "no round"),
        (PostPinned(round_id="b", number=2), "no such post"),
        (PostPinned(round_id="b", number=-1), "no such post"),
        (PostPinned(round_id="c", number=0), "no round"),
        (PostRedacted(round_id="b", numbers=(0, 2)), "no such post"),
        (PostRedacted(round_id="c", numbers=(0,)), "no round"),
        (reduced(0, 2), "no such posts"),
        (reduced(1, 0), "no such posts"),
        (reduced(0, 1, "offloaded"), "more than one post"),
        (reduced(0, 0, round_id="c"), "no round"),
        (ReductionWithdrawn(role="Planner", round_id="c", first_number=0, last_number=0), "no round"),
        (published(end=None), "not there"),
        (published(end="c", number=3), "not there"),
        (published(number=2), "not there"),
        (published(number=None), "not there"),
        (published(covers=("a", "c")), "not there"),
        (published(end="b", number=2), "a round that is open"),
        (published(generation=0), "generation is behind"),
        (CompactionReverted(role="Planner", generation=0), "generation is behind"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(record: Record, fault: str) -> None:
    """By its number and kind, why, and what to do."""
    with pytest.raises(StoreDamaged, match=rf"entry 7 \([a-z ]+\) does not fit .*{fault}.*undamaged copy"):
        taken(record)


@pytest.mark.parametrize(
    ("records", "rounds"),
    [
        ([post("b", 2), post("b", 4), RoundFailed(round_id="b")], [2, 2, 2]),  # one was erased, number and all
        ([RoundFailed(round_id="a"), RoundFinished(round_id="a")], [1, 1]),
        ([PostPinned(round_id="a", number=2), PostRedacted(round_id="a", numbers=(0, 1))], [1, 1]),
        ([reduced(0, 1), reduced(1, 1, "offloaded"), reduced(0, 0, round_id="a")], [2, 2, 1]),
        ([ReductionWithdrawn(role="Planner", round_id="a", first_number=0, last_number=0)], [1]),
        ([published(), CompactionReverted(role="Planner", generation=2), published(generation=5)], [0, 0, 0]),
        ([UsageRecorded(role="Planner", input_tokens=1)], [0]),
        ([CompactionPrepared(role="Planner", digest="d", base=0, text="t")], [0]),
        ([RoundFinished(round_id="b"), published("b", 2, covers=("a", "b")), opened("c"), post("c", 1)], [2, 0, 3, 3]),
    ],
)  # fmt: skip
def test_what_fits_is_taken_and_filed(records: list[Record], rounds: list[int]) -> None:
    """Under the number of its round; what is about none, under 0."""
    assert taken(*records) == rounds


@pytest.mark.parametrize("first", [(published(),), ()])
def test_an_erasure_is_a_new_generation_of_every_role(first: tuple[Record, ...]) -> None:
    """Of those that have published and of those that have not."""
    erased = PostRedacted(round_id="b", numbers=(1,))
    present = 1 + len(first)
    assert taken(*first, erased, published(generation=present + 1))[-1] == 0
    with pytest.raises(StoreDamaged, match="generation is behind"):
        taken(*first, erased, published(generation=present))


def test_whatever_a_memory_writes_fits() -> None:
    """All kinds of entries of a session in which everything happened."""
    store, copy = InMemoryStore(), InMemoryStore()
    Memory.from_state_dict(eventful(store).state_dict(), store=copy)
    assert list(copy.read("s")) == list(store.read("s"))
