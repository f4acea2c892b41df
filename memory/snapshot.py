"""A Memory at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from .entries import CompactionPrepared
from .frozen import FrozenMapping
from .overlays import CompactedMessage, JournalState, Reduction, Reductions
from .rounds import USER, Post, Round
from .usage import Usage
from .visibility import Rounds

__all__ = ["LiveRound", "Snapshot"]


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
    #: Grows whenever a settled round or what stands for it changed, or a text was erased, so that what was worked out
    #: from an earlier one is worked out again.
    epoch: int = 0
    #: The number of a round by its id; shared and growing like the lists.
    numbers: dict[str, int] = field(default_factory=dict)
    #: What each role has published, and which of it was not reverted, oldest first.
    journals: Mapping[str, JournalState] = field(default_factory=dict)
    published: Mapping[str, tuple[CompactedMessage, ...]] = field(default_factory=dict)
    #: Each role's answers of a summarizer that were paid for since its last publication.
    prepared: Mapping[str, tuple[CompactionPrepared, ...]] = field(default_factory=dict)
    #: Each role's live reductions, and what its provider counted of its prompts.
    reductions: Mapping[str, Reductions] = field(default_factory=dict)
    usages: Mapping[str, Usage] = field(default_factory=dict)
    #: Round id and number of each pinned post.
    pins: frozenset[tuple[str, int]] = frozenset()
    #: How often something was erased; each time every role got a new generation, also those of which nothing is known.
    redactions: int = 0

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
        return self.journals.get(role, JournalState(self.redactions))

    def reductions_of(self, role: str) -> Reductions:
        return self.reductions.get(role, _NO_REDUCTIONS)

    def overlays_of(self, role: str) -> tuple[int, int]:
        """Return what changes whenever *role*'s overlays do."""
        return self.journal(role).generation, self.reductions_of(role).version

    def usage(self, role: str) -> Usage:
        return self.usages.get(role, _NO_USAGE)

    def with_changed(self, round_: Round) -> Snapshot:
        """Return the snapshot with *round_* in the place of that with its number. Readers hold the lists, so they are
        copied: rare, and the only step that costs O(n)."""
        place = round_.number - self.settled_count - 1
        if place >= 0:
            found = self.live[place]
            opened = round_.model_copy(update={"post_list": ()})
            changed = replace(found, opened=opened, posts=list(round_.post_list))
            return replace(self, live=(*self.live[:place], changed, *self.live[place + 1 :]), epoch=self.epoch + 1)
        settled = self.settled[: self.settled_count]
        settled[place] = round_
        visible = [one for one in settled if one.state != "failed"]
        return replace(self, settled=settled, visible=visible, visible_count=len(visible), epoch=self.epoch + 1)

    def with_reductions(self, role: str, round_id: str, of_round: tuple[Reduction, ...]) -> Snapshot:
        """Return the snapshot with *of_round* as what *role* reads in the place of that round's posts."""
        by_round = dict(self.reductions_of(role).by_round)
        by_round[round_id] = of_round
        if not of_round:
            del by_round[round_id]
        changed = replace(
            self,
            reductions={**self.reductions, role: Reductions(self.number, FrozenMapping(by_round))},
            epoch=self.epoch + (self.numbers[round_id] <= self.settled_count),
        )
        return changed.with_other_prompt(role)

    def with_other_prompt(self, role: str) -> Snapshot:
        """Return the snapshot without the length of *role*'s newest prompt: the next one reads otherwise."""
        if self.usage(role).input_tokens is None:
            return self
        return replace(self, usages={**self.usages, role: replace(self.usage(role), input_tokens=None)})


_NO_REDUCTIONS, _NO_USAGE = Reductions(), Usage()
