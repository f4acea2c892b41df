"""Stored sessions for the tests of commands on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from command_line import dialogue

from memory import CompactedMessage, Memory, Origin, Reduction, open_store

#: Stands in every text that the commands must not show unasked.
SECRET = "hall"
SUMMARY = "Stock was counted in every hall; figures are never rounded."


def url_of(path: Path) -> str:
    return f"sqlite:///{path.as_posix()}?synchronous=normal"  # nobody pulls the plug here


@contextmanager
def session(url: str, name: str = "shop", rounds: int = 6) -> Iterator[Memory]:
    """Give a session in the store at *url*, with so many rounds of an agent and its tool where it is new."""
    store = open_store(url)
    memory = Memory(name, store=store)
    if not len(memory.conversation.rounds):
        for message in dialogue(rounds):
            memory.append(message)
    yield memory
    store.close()


def summarise(
    memory: Memory, end: int, *, role: str = "assistant", summary: str = SUMMARY, **more: Any
) -> CompactedMessage:
    """Publish a compaction of *role*'s first *end* rounds."""
    journal, rounds = memory.journal(role), memory.conversation.rounds
    made = CompactedMessage(
        start_index=1,
        end_index=end,
        summary=summary,
        end_round_id=rounds[end - 1].id,
        model="small-1",
        usage={"input_tokens": 900, "output_tokens": 80},
    )
    before = journal.read()
    start = before.current.last_round if before.current is not None else 0
    ids = [one.id for one in rounds[start:end] if one.state != "failed"]
    return journal.publish(made, base=before.generation, round_ids=ids, origin=Origin(**more))


def offload(memory: Memory, number: int) -> None:
    """Publish a reduction of the tool's result in a round."""
    round_ = memory.conversation.rounds[number - 1]
    journal = memory.journal("assistant")
    base = journal.read().generation
    preview = f"a preview of what is in the {SECRET}"
    made = Reduction.over(round_, [round_.post_list[1]], "offloaded", preview, generation=base)
    assert journal.reduce(made, base=base) is not None
