"""A round that may still change, and rounds as their entries make them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from ..entries import Entry, PostAdded, PostRedacted, RoundFailed, RoundFinished, RoundOpened, kinds_of
from ..errors import StoreDamaged
from ..messages import came_as_message
from ..rounds import USER, Post, Record, Round, assembled, changed, once
from .redaction import without

_TELLING = kinds_of(RoundOpened, PostAdded, RoundFinished, RoundFailed, PostRedacted)


@dataclass  # no slots: `round` is worked out once and kept
class OpenRound:
    """A round that may still change. It shares its growing list of posts with its successors and knows how far it
    reaches, so that adding the thousandth post costs what the first did.

    Nobody writes to one, for which its fields are final. It is not frozen all the same: most entries of the log make
    one, and that would take thrice as long.
    """

    opened: Final[Round]
    #: Whether anybody but the user has said something in it.
    answered: Final[bool]
    posts: Final[list[Post]] = field(default_factory=list)
    count: Final[int] = 0

    @classmethod
    def of(cls, record: RoundOpened, number: int) -> OpenRound:
        # The entry's fields were checked.
        opened = assembled(
            Round,
            {
                "id": record.round_id,
                "user_query": record.user_query,
                "state": "created",
                "post_list": (),
                "created_at": record.created_at,
                "number": number,
                "extra": record.extra,
            },
        )
        # What the user did not open has nothing that waits for an answer.
        return cls(opened, answered=not (opened.user_query or came_as_message(opened.extra)))

    @once
    def round(self) -> Round:
        return changed(self.opened, post_list=tuple(self.posts[: self.count]))

    def with_post(self, post: Post) -> OpenRound:
        # Not append(): a writer that was interrupted may have left a post behind the last one that counts.
        self.posts[self.count :] = [post]
        return OpenRound(self.opened, self.answered or post.send_from != USER, self.posts, self.count + 1)

    @property
    def is_open(self) -> bool:
        """Whether it takes posts."""
        return self.opened.state == "created"

    def closed_as(self, state: Literal["finished", "failed"]) -> OpenRound:
        if self.opened.state in ("failed", state):
            return self
        return OpenRound(changed(self.opened, state=state), self.answered, self.posts, self.count)

    def without(self, numbers: Iterable[int]) -> OpenRound:
        """Return it with the posts of these *numbers* erased; readers hold the list, so this one has its own."""
        left = without(self.round, numbers)
        return OpenRound(changed(left, post_list=()), self.answered, list(left.post_list), self.count)


def rebuilt(entries: Iterable[Entry]) -> dict[int, OpenRound]:
    """Return rounds by their numbers: those that are opened in *entries*, which are theirs, in the order of the log.

    Raises ``StoreDamaged`` where an entry's round is not opened before it.
    """
    found: dict[int, OpenRound] = {}
    for entry in entries:
        if entry.kind not in _TELLING:
            continue
        record = entry.record
        if isinstance(record, RoundOpened):
            found[entry.round] = OpenRound.of(record, entry.round)
        elif entry.round in found:
            found[entry.round] = _after(found[entry.round], record)
        else:
            raise StoreDamaged(
                f"entry {entry.number} of the log is of round {entry.round}, which is not there; restore the session"
            )
    return found


def _after(before: OpenRound, record: Record | None) -> OpenRound:
    if isinstance(record, PostAdded):
        return before.with_post(record.post)
    if isinstance(record, PostRedacted):
        return before.without(record.numbers)
    return before.closed_as("failed" if isinstance(record, RoundFailed) else "finished")
