"""A Memory at one moment, and what each entry of the log makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Literal

from .entries import (
    CompactionPublished,
    CompactionReverted,
    HeaderAdded,
    PostAdded,
    ReductionPublished,
    ReductionWithdrawn,
    RoundFailed,
    RoundFinished,
    RoundOpened,
    UsageRecorded,
)
from .errors import StoreError
from .frozen import FrozenMapping
from .messages import came_as_message
from .overlay_rule import laid
from .overlays import CompactedMessage, JournalState, Reduction, Reductions
from .rounds import USER, Post, Record, Round
from .usage import Usage
from .visibility import Rounds

__all__ = ["LiveRound", "Snapshot", "applied"]


@dataclass(frozen=True)  # no slots: `round` is worked out once and kept
class LiveRound:
    """A round that may still change. It shares its growing list of posts with its successors and knows how far it
    reaches, so that adding the thousandth post costs what the first did."""

    opened: Round
    #: Whether anybody but the user has said something in it.
    answered: bool
    posts: list[Post] = field(default_factory=list)
    count: int = 0

    @cached_property
    def round(self) -> Round:
        return self.opened.model_copy(update={"post_list": tuple(self.posts[: self.count])})

    def with_post(self, post: Post) -> LiveRound:
        # Not append(): a writer that was interrupted may have left a post behind the last one that counts.
        self.posts[self.count :] = [post]
        return replace(self, count=self.count + 1, answered=self.answered or post.send_from != USER)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A Memory at one moment. Nothing in it changes: lists that it shares with its successors only ever grow, and it
    knows how much of them is its own; where something in them must change, its successor goes on with a copy."""

    #: Number of the last log entry that it holds.
    number: int = 0
    header: tuple[Post, ...] = ()
    #: The rounds before the first open one, in log order.
    settled: list[Round] = field(default_factory=list)
    settled_count: int = 0
    #: The same without the failed ones.
    visible: list[Round] = field(default_factory=list)
    visible_count: int = 0
    #: The rounds from the first open one on.
    live: tuple[LiveRound, ...] = ()
    #: Numbers of the failed rounds, ascending.
    failed: tuple[int, ...] = ()
    #: Grows whenever a settled round changed, so that what was worked out from an earlier one is worked out again.
    epoch: int = 0
    #: The number of a round by its id; shared and growing like the lists.
    numbers: dict[str, int] = field(default_factory=dict)
    #: What each role has published, and which of it was not reverted, oldest first.
    journals: Mapping[str, JournalState] = field(default_factory=dict)
    published: Mapping[str, tuple[CompactedMessage, ...]] = field(default_factory=dict)
    #: Each role's live reductions, and what its provider counted of its prompts.
    reductions: Mapping[str, Reductions] = field(default_factory=dict)
    usages: Mapping[str, Usage] = field(default_factory=dict)
    #: Round id and number of each pinned post.
    pins: frozenset[tuple[str, int]] = frozenset()

    @property
    def total(self) -> int:
        return self.settled_count + len(self.live)

    def rounds(self, role: str = "", *, include_failed: bool = False) -> Rounds:
        """Return the rounds as *role* sees them."""
        if include_failed:
            return Rounds(self, self.settled, self.settled_count, self.live, role, include_failed=True)
        live = self.live
        if self.failed and self.failed[-1] > self.settled_count:
            live = tuple(item for item in live if item.opened.state != "failed")
        return Rounds(self, self.visible, self.visible_count, live, role, include_failed=False)

    def round(self, round_id: str) -> Round | None:
        """Return a round, failed or not; None where there is none of that id."""
        number = self.numbers.get(round_id, 0)
        return self.rounds(include_failed=True)[number - 1] if 1 <= number <= self.total else None

    def open_round(self, round_id: str) -> LiveRound | None:
        """Return a round that takes posts; None where there is none of that id."""
        place = self.numbers.get(round_id, 0) - self.settled_count - 1
        found = self.live[place] if 0 <= place < len(self.live) else None
        return found if found is not None and not found.opened.closed else None

    @property
    def newest_open(self) -> LiveRound | None:
        """The newest round if it takes posts."""
        return self.live[-1] if self.live and not self.live[-1].opened.closed else None

    def journal(self, role: str) -> JournalState:
        return self.journals.get(role, JournalState())

    def reductions_of(self, role: str) -> Reductions:
        return self.reductions.get(role, _NO_REDUCTIONS)

    def overlays_of(self, role: str) -> tuple[int, int]:
        """Return what changes whenever *role*'s overlays do."""
        return self.journal(role).generation, self.reductions_of(role).version

    def usage(self, role: str) -> Usage:
        return self.usages.get(role, _NO_USAGE)


_NO_REDUCTIONS, _NO_USAGE = Reductions(), Usage()


def applied(before: Snapshot, record: Record | None, number: int) -> Snapshot:
    """Return the snapshot after one more entry of the log. Raises ``StoreError`` for one that does not fit there."""
    now = replace(before, number=number)
    match record:
        case HeaderAdded(post=post):
            return replace(now, header=(*now.header, post))
        case RoundOpened():
            return _with_opened(now, record)
        case PostAdded(round_id=round_id, post=post):
            taking = now.open_round(round_id)
            if taking is None:
                raise StoreError(f"entry {number} of the log adds to a round that is not open; restore the session")
            return _with_live(now, taking.with_post(post))
        case RoundFinished(round_id=round_id):
            return _with_closed(now, round_id, "finished")
        case RoundFailed(round_id=round_id):
            return _with_closed(now, round_id, "failed")
        case CompactionPublished(role=role, compaction=compaction):
            kept = (*now.published.get(role, ()), compaction)
            return _with_journal(now, role, JournalState(compaction.generation, compaction), kept)
        case CompactionReverted(role=role, generation=generation):
            kept = now.published.get(role, ())[:-1]
            newest = now.rounds(include_failed=True)[-1].id if now.total else ""
            return _with_journal(now, role, JournalState(generation, kept[-1] if kept else None, newest), kept)
        case ReductionPublished(role=role, reduction=reduction):
            of_round = laid(now.reductions_of(role).of(reduction.round_id), reduction)
            return now if of_round is None else _with_reductions(now, role, reduction.round_id, of_round)
        case ReductionWithdrawn(role=role, round_id=round_id, first_number=first, last_number=last):
            live = now.reductions_of(role).of(round_id)
            left = tuple(one for one in live if (one.first_number, one.last_number) != (first, last))
            return now if len(left) == len(live) else _with_reductions(now, role, round_id, left)
        case UsageRecorded(role=role, input_tokens=tokens, counted=counted, current=current):
            after = now.usage(role).after(tokens, counted, current=current)
            return replace(now, usages={**now.usages, role: after})
        case _:  # an entry that only a newer version knows
            return now


def _with_opened(now: Snapshot, record: RoundOpened) -> Snapshot:
    number = now.total + 1
    now.numbers[record.round_id] = number
    opened = Round(
        id=record.round_id,
        user_query=record.user_query,
        created_at=record.created_at,
        extra=record.extra,
        number=number,
    )
    # What the user did not open has nothing that waits for an answer.
    answered = not (opened.user_query or came_as_message(opened.extra))
    return replace(now, live=(*now.live, LiveRound(opened, answered)))


def _with_live(now: Snapshot, changed: LiveRound) -> Snapshot:
    place = changed.opened.number - now.settled_count - 1
    return replace(now, live=(*now.live[:place], changed, *now.live[place + 1 :]))


def _with_closed(now: Snapshot, round_id: str, state: Literal["finished", "failed"]) -> Snapshot:
    present = now.round(round_id)
    if present is None:
        raise StoreError(f"entry {now.number} of the log closes a round that it does not have; restore the session")
    if present.state in ("failed", state):
        return now
    if state == "failed":
        now = replace(now, failed=tuple(sorted((*now.failed, present.number))))
    if present.number <= now.settled_count:
        return _with_settled_failed(now, present.number)
    live = now.live[present.number - now.settled_count - 1]
    return _settle(_with_live(now, replace(live, opened=live.opened.model_copy(update={"state": state}))))


def _settle(now: Snapshot) -> Snapshot:
    """Move the closed rounds at the head of the live ones to the settled, where they stay as they are."""
    closed = [item.round for item in takewhile(lambda item: item.opened.closed, now.live)]
    visible = [round_ for round_ in closed if round_.state != "failed"]
    now.settled[now.settled_count :] = closed  # not extend(), for the same reason as above
    now.visible[now.visible_count :] = visible
    return replace(
        now,
        settled_count=now.settled_count + len(closed),
        visible_count=now.visible_count + len(visible),
        live=now.live[len(closed) :],
    )


def _with_settled_failed(now: Snapshot, number: int) -> Snapshot:
    """Hide a settled round. Readers hold the lists, so they are copied: rare, and the only step that costs O(n)."""
    settled = now.settled[: now.settled_count]
    settled[number - 1] = settled[number - 1].model_copy(update={"state": "failed"})
    visible = [round_ for round_ in settled if round_.state != "failed"]
    return replace(now, settled=settled, visible=visible, visible_count=len(visible), epoch=now.epoch + 1)


def _with_journal(now: Snapshot, role: str, state: JournalState, kept: tuple[CompactedMessage, ...]) -> Snapshot:
    now = replace(now, journals={**now.journals, role: state}, published={**now.published, role: kept})
    return _with_other_prompt(now, role)


def _with_reductions(now: Snapshot, role: str, round_id: str, of_round: tuple[Reduction, ...]) -> Snapshot:
    others = {key: value for key, value in now.reductions_of(role).by_round.items() if key != round_id}
    by_round = FrozenMapping({**others, round_id: of_round} if of_round else others)
    settled = now.numbers[round_id] <= now.settled_count
    changed = replace(
        now,
        reductions={**now.reductions, role: Reductions(now.number, by_round)},
        epoch=now.epoch + settled,
    )
    return _with_other_prompt(changed, role)


def _with_other_prompt(now: Snapshot, role: str) -> Snapshot:
    """Forget how long the newest prompt was: the next one begins otherwise."""
    if now.usage(role).input_tokens is None:
        return now
    return replace(now, usages={**now.usages, role: replace(now.usage(role), input_tokens=None)})
