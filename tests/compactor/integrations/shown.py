"""What an adapter shows of a few messages: promises that several adapters' own tests check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compactor.integrations.base import Conversations


def read_parts(compaction: Conversations[Any], asked: Any) -> list[str]:
    """Return the types of the parts that the log has of *asked*, which must come back as it is."""
    with compaction:
        shown = compaction.fit("s", [asked]).items
        with compaction.sessions().open("s") as session:
            parts = session.memory.messages()[0]["content"]
    assert shown[0] is asked
    return [part["type"] for part in parts]


def check_turn_made_again(compaction: Conversations[Any], make: Callable[[str], Sequence[Any]]) -> None:
    """Of two turns that differ in what *make* puts its tag in, the newest is shown."""
    with compaction:
        compaction.fit("s", make("old"))
        newest = make("new")
        shown = compaction.fit("s", newest).items
    assert all(one is own for one, own in zip(shown, newest, strict=True))


#: A conversation that is too long for ``RECALL_BUDGET``, as roles and texts; what its first message says is asked for.
TALK = [
    (role, text)
    for asked in ("The code is QX-4711.", *(f"{number} " + "word " * 100 for number in range(30)))
    for role, text in (("user", asked), ("assistant", "I see."))
]
RECALL_BUDGET = 2_500
#: Arguments of a call of ``read_rounds`` that reads it back.
FIRST_ROUND = {"start": 1, "end": None, "offset": None, "limit": None}
