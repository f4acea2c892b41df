"""Places in the log as numbers, and what ``Memory.sync`` returns. Most processes never load ``sync`` itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .arguments import require
from .references import make_reference, parse_reference
from .values import ValueObject

#: The place of skipped messages at the end of the host's list.
NOWHERE = 2**64 - 1


def pack_place(number: int, post: int) -> int:
    """Return the place of a post in the log as one number: 8 bytes in an array, and ordered as the log."""
    return number << 32 | post


def unpack_place(place: int) -> tuple[int, int]:
    """Return the round number and the post number of *place*."""
    return place >> 32, place & 0xFFFF_FFFF


def make_place_reference(place: int) -> str:
    """Return the reference of the post at *place*."""
    return make_reference(*unpack_place(place))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Synced(ValueObject):
    """The result of ``sync``."""

    #: Number of the host's messages that were written now, and that the log had already.
    appended: int
    kept: int
    #: Number of log messages that the host has dropped. They stay in the log.
    dropped: int = 0
    #: Number of log messages that are hidden now, because the host's history continued without them.
    undone: int = 0
    #: Number of the host's messages that replace dropped ones, such as a summary. They are not in the log.
    skipped: int = 0
    _header_size: int = field(default=0, repr=False, compare=False)
    #: A skipped message has the place of the next message that is in the log.
    _places: Sequence[int] = field(default=(), repr=False, compare=False)

    @property
    def references(self) -> list[str | None]:
        """The reference of each of the host's messages, such as ``r3.p2``; None for leading system messages and for
        skipped ones."""
        pairs = pairwise([*self._places, NOWHERE])
        return [None] * self._header_size + [
            None if place == after else make_place_reference(place) for place, after in pairs
        ]

    def find(self, reference: str) -> int | None:
        """Return the index in the host's list of the message with that *reference*; None if it is missing, or if the
        reference covers several messages.

        Raises ``UnknownReference`` for a text that is no reference.
        """
        require("reference", reference, str, "a text such as r5.p3")
        wanted = parse_reference(reference)
        if wanted.first_post is None or wanted.first_post != wanted.last_post:
            return None
        place = pack_place(wanted.first, wanted.first_post)
        at = bisect_right(self._places, place) - 1
        return self._header_size + at if at >= 0 and self._places[at] == place else None
