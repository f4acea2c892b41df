"""A long session, written straight into a store: what a chat loop and a compactor have left there after many rounds."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from memory import CompactedMessage, Entry, Post, Store, ToolCall
from memory.entries import CompactionPrepared, CompactionPublished, PostAdded, RoundFinished, RoundOpened
from memory.rounds import Record, make_id

ROLE = "assistant"
#: What the default trigger leaves: a compaction every eight rounds, and three rounds behind it.
EVERY, RETAINED = 8, 3
SUMMARY_WORDS = 250
BEGAN = datetime(2024, 5, 1, tzinfo=UTC)
#: Entries that are stored at once.
BATCH = 5_000

_rng = random.Random(7)
WORDS = tuple("".join(_rng.choices("abcdefghijklmnopqrstuvwxyz", k=_rng.randint(3, 9))) for _ in range(4_000))


def text(rng: random.Random, words: int) -> str:
    """Return a text of so many *words*, some seven characters each."""
    return " ".join(rng.choices(WORDS, k=words))


def build(store: Store, session: str, rounds: int) -> int:
    """Store a session of so many *rounds*, and return the number of its entries. There is no checkpoint yet."""
    return keep(store, session, entries_of(rounds))


def keep(store: Store, session: str, entries: Iterable[Entry]) -> int:
    """Store *entries* as a new session, and return their number."""
    written, left = 0, iter(entries)
    while batch := list(islice(left, BATCH)):
        written = store.append(session, batch, written)
    return written


def entries_of(rounds: int) -> Iterator[Entry]:
    """Give the log of so many *rounds* of one question, a tool call, its result and an answer, and of the compactions
    that were made meanwhile."""
    rng, ids = random.Random(rounds), [""]
    covered = generation = 0
    for number in range(1, rounds + 1):
        at = BEGAN + timedelta(minutes=number)
        ids.append(make_id())
        for record in _round(rng, ids[-1], number, at):
            yield Entry.of(record, created_at=at, round=number)
        if number - covered >= EVERY + RETAINED:
            covered, generation = covered + EVERY, generation + 1
            for record in _compaction(rng, ids, covered, generation, at):
                yield Entry.of(record, created_at=at)


def _round(rng: random.Random, round_id: str, number: int, at: datetime) -> Iterator[Record]:
    query, call = f"Case {number}: {text(rng, 15)}?", make_id()
    yield RoundOpened(round_id=round_id, user_query=query, created_at=at)
    look_up = ToolCall(id=call, name="look_up", arguments=f'{{"case": {number}}}')
    for place, post in enumerate(
        (
            Post(send_from=ROLE, send_to="User", tool_calls=(look_up,)),
            Post(send_from="tool", send_to=ROLE, tool_call_id=call, message=text(rng, 60)),
            Post(send_from=ROLE, send_to="User", message=f"Case {number} is {text(rng, 40)}."),
        ),
        1,
    ):
        yield PostAdded(round_id=round_id, post=post.model_copy(update={"number": place, "created_at": at}))
    yield RoundFinished(round_id=round_id)


def _compaction(rng: random.Random, ids: list[str], end: int, generation: int, at: datetime) -> Iterator[Record]:
    made = CompactedMessage(
        start_index=1, end_index=end, summary=text(rng, SUMMARY_WORDS), end_round_id=ids[end], end_number=end
    )
    round_ids, digest = tuple(ids[end - EVERY + 1 : end + 1]), f"{generation:064x}"
    yield CompactionPrepared(
        role=ROLE,
        digest=digest,
        base=generation - 1,
        strategy="compact_rounds",
        text=made.summary,
        compaction=made,
        round_ids=round_ids,
    )
    published = made.model_copy(update={"generation": generation, "created_at": at})
    yield CompactionPublished(role=ROLE, compaction=published, round_ids=round_ids, digest=digest)
