"""What pinned posts say: kept at hand, so that prompts show them also while the store is away."""

from __future__ import annotations

from typing import NamedTuple

from .messages import text_with_calls
from .reading.references import place_reference
from .rounds import USER, Round

__all__ = ["Pinned", "said_at", "unreadable"]


class Pinned(NamedTuple):
    """A pinned post. They sort as they stand in the log."""

    #: Number of its round, and its own in the round; 0 is the user's query.
    round: int
    number: int
    round_id: str
    #: What it says, and who says it; empty where there is no such post.
    text: str
    #: Who sent and who received it; empty: every role sees it.
    ends: tuple[str, ...] = ()

    def shown_to(self, role: str) -> bool:
        """Return whether *role* sees that it says something; the empty role sees everything."""
        return bool(self.text) and (not role or not self.ends or role in self.ends)


def said_at(round_: Round, number: int) -> Pinned:
    """Return what *round_* says in the post of that *number*."""
    if number == 0:
        return Pinned(round_.number, 0, round_.id, f"{USER}: {round_.user_query}")
    for post in round_.post_list:
        if post.number == number:
            text = f"{post.send_from}: {text_with_calls(post)}"
            return Pinned(round_.number, number, round_.id, text, (post.send_from, post.send_to))
    return Pinned(round_.number, number, round_.id, "")


def unreadable(round_id: str, place: int, number: int) -> Pinned:
    """Return what is shown of a pinned post that is damaged, of the round at that *place*: nobody is stopped by it."""
    return Pinned(place, number, round_id, f"{place_reference(place, number)}: cannot be read any more")
