"""A Memory at one moment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..entries import CompactionPrepared
from ..errors import NewerVersion, StoreDamaged, StoreError
from ..overlays import CompactedMessage, JournalState, Reduction, Reductions
from ..pins import Pinned, said_at, unreadable
from ..rounds import Post, Round, RoundState
from ..usage import Usage
from ..visibility import Rounds
from .archive import Archive, InLists, Numbers
from .live import LiveRound
from .shelf import Shelf

__all__ = ["LiveRound", "Publication", "Snapshot"]


class Publication(NamedTuple):
    """Where a published compaction stands in the log."""

    entry: int
    #: Number of the last round that it covers; 0: not known.
    end_number: int


@dataclass(frozen=True)  # no slots: every entry of the log makes a new one, which is the copy of a dict then
class Snapshot:
    """A Memory at one moment. Nothing in it changes: what it shares with its successors only ever grows, and it knows
    how much of that is its own; where something in it must change, its successor goes on with another."""

    #: Number of the last log entry that it holds.
    number: int = 0
    #: And that entry's id: a session that was purged and begun anew has another one in its place. Empty: not known.
    last: str = ""
    header: tuple[Post, ...] = ()
    #: Where the rounds before the first open one are found, and how many they are.
    archive: Archive = field(default_factory=InLists)
    settled_count: int = 0
    #: The rounds from the first open one on.
    live: tuple[LiveRound, ...] = ()
    #: Numbers of the failed rounds, ascending.
    failed: tuple[int, ...] = ()
    #: Grows whenever a settled round or what stands for it changed, or a text was erased, so that what was worked out
    #: from an earlier one is worked out again.
    epoch: int = 0
    #: What each role has published, and which of it was not reverted, oldest first.
    journals: Mapping[str, JournalState] = field(default_factory=dict)
    published: Mapping[str, tuple[Publication, ...]] = field(default_factory=dict)
    #: Each role's answers of a summarizer that were paid for since its last publication.
    prepared: Mapping[str, tuple[CompactionPrepared, ...]] = field(default_factory=dict)
    #: Each role's live reductions, and what its provider counted of its prompts.
    reductions: Mapping[str, Reductions] = field(default_factory=dict)
    usages: Mapping[str, Usage] = field(default_factory=dict)
    #: Round id and number of each pinned post.
    pins: frozenset[tuple[str, int]] = frozenset()
    #: What they say, in the order of the log: prompts show it, and for that no store is asked.
    pinned: tuple[Pinned, ...] = ()
    #: The numbers of their rounds by their ids.
    pinned_rounds: Mapping[str, int] = field(default_factory=dict)
    #: How often something was erased; each time every role got a new generation, also those of which nothing is known.
    redactions: int = 0
    #: And which posts of each round since this Memory was opened, by its id, in the order in which that was done: what
    #: was worked out from others still holds.
    erased: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: Where the header and what is prepared stand in the log.
    header_entries: tuple[int, ...] = ()
    prepared_entries: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def but(self, **changes: Any) -> Snapshot:
        """Return the snapshot with these *changes* to its fields; ``dataclasses.replace`` takes ten times as long."""
        made = object.__new__(Snapshot)
        object.__setattr__(made, "__dict__", self.__dict__ | changes)  # it is frozen
        return made

    @property
    def total(self) -> int:
        return self.settled_count + len(self.live)

    @property
    def numbers(self) -> Numbers:
        """The number of a round by its id; it may know of newer ones than this snapshot has."""
        return self.archive.numbers

    def number_of(self, round_id: str) -> int:
        """Return the number of a round of this snapshot; 0 where there is none of that id. Of one in which something is
        pinned, no store is asked: every prompt looks for these."""
        number = self.pinned_rounds.get(round_id, 0) or self.numbers.get(round_id, 0)
        return number if number <= self.total else 0

    def rounds(self, role: str = "", *, include_failed: bool = False) -> Rounds:
        """Return the rounds as *role* sees them."""
        return Rounds(self, role, include_failed=include_failed)

    def round_at(self, number: int) -> Round:
        """Return the round of that number, failed or not; there must be one. May raise ``StoreError``."""
        if number > self.settled_count:
            return self.live[number - self.settled_count - 1].round
        return self.archive.round(number, self.settled_count, self.failed)

    def round(self, round_id: str) -> Round | None:
        """Return a round, failed or not; None where there is none of that id."""
        number = self.numbers.get(round_id, 0)
        return self.round_at(number) if 1 <= number <= self.total else None

    def state_of(self, round_id: str) -> RoundState | None:
        """Return a round's state, for which its posts are not read; None where there is none of that id."""
        number = self.numbers.get(round_id, 0)
        if not 1 <= number <= self.total:
            return None
        if number > self.settled_count:
            return self.live[number - self.settled_count - 1].opened.state
        return "failed" if self.has_failed(number) else "finished"

    def has_failed(self, number: int) -> bool:
        """Return whether the round of that number has failed, for which it is not read."""
        place = bisect_left(self.failed, number)
        return place < len(self.failed) and self.failed[place] == number

    def open_round(self, round_id: str) -> LiveRound | None:
        """Return a round that takes posts; None where there is none of that id."""
        newest = self.live[-1] if self.live else None
        if newest is not None and newest.opened.id == round_id:  # as most often
            return newest if newest.is_open else None
        place = self.numbers.get(round_id, 0) - self.settled_count - 1
        found = self.live[place] if 0 <= place < len(self.live) else None
        return found if found is not None and found.is_open else None

    @property
    def newest_open(self) -> LiveRound | None:
        """The newest round if it takes posts."""
        return self.live[-1] if self.live and self.live[-1].is_open else None

    def journal(self, role: str) -> JournalState:
        return self.journals.get(role) or JournalState(self.redactions)

    def covered(self, role: str) -> int:
        """Return the number of the last round that *role*'s compaction covers; 0 where there is none."""
        kept = self.published.get(role, ())
        return kept[-1].end_number if kept else 0

    def reductions_of(self, role: str) -> Reductions:
        return self.reductions.get(role, _NO_REDUCTIONS)

    def overlays_of(self, role: str) -> tuple[int, int]:
        """Return what changes whenever *role*'s overlays do."""
        return self.journal(role).generation, self.reductions_of(role).version

    def usage(self, role: str) -> Usage:
        return self.usages.get(role, _NO_USAGE)

    def live_with(self, changed: LiveRound) -> tuple[LiveRound, ...]:
        """Return the rounds that may still change, with *changed* in that round's place."""
        place = changed.opened.number - self.settled_count - 1
        return (*self.live[:place], changed, *self.live[place + 1 :])

    def without_posts(self, number: int, posts: Iterable[int]) -> Snapshot:
        """Return the snapshot in which those *posts* of the round of that *number* are erased."""
        now = self.but(epoch=self.epoch + 1)
        if number > self.settled_count:
            return now.but(live=self.live_with(self.live[number - self.settled_count - 1].without(posts)))
        return now.but(archive=self.archive.with_redacted(self.settled_count, number, posts))

    def with_pin(self, round_id: str, number: int) -> Snapshot:
        """Return the snapshot in which a post is pinned. May raise ``StoreError``, for it reads what the post says."""
        if (round_id, number) in self.pins:
            return self
        place = self.numbers.get(round_id, 0)
        if not 1 <= place <= self.total:
            raise StoreError(f"entry {self.number} of the log pins in a round that is not there; restore the session")
        try:
            found = said_at(self.round_at(place), number)
        except (StoreDamaged, NewerVersion):
            found = unreadable(round_id, place, number)
        return self.with_pinned((*self.pinned, found))

    def without_pins(self, round_id: str, numbers: Iterable[int]) -> Snapshot:
        """Return the snapshot in which those posts of a round are not pinned."""
        gone = {(round_id, number) for number in numbers}
        if self.pins.isdisjoint(gone):
            return self
        return self.with_pinned(one for one in self.pinned if (one.round_id, one.number) not in gone)

    def with_pinned(self, posts: Iterable[Pinned]) -> Snapshot:
        """Return the snapshot in which those *posts* are pinned, and no others."""
        pinned = tuple(sorted(posts))
        return self.but(
            pins=frozenset((one.round_id, one.number) for one in pinned),
            pinned=pinned,
            pinned_rounds={one.round_id: one.round for one in pinned},
        )

    def with_publications(
        self,
        role: str,
        generation: int,
        kept: tuple[Publication, ...],
        *,
        current: CompactedMessage | None = None,
        held_round_id: str | None = None,
    ) -> Snapshot:
        """Return the snapshot in which *role* has published what *kept* says; the last of it is *current*.

        Its text is read from the log where it is not given and was not current before. May raise ``StoreError``.
        """
        if kept and current is None:
            same = kept[-1:] == self.published.get(role, ())[-1:]
            current = self.journal(role).current if same else self.archive.compaction(kept[-1].entry)
        changed = self.but(
            journals={**self.journals, role: JournalState(generation, current, held_round_id)},
            published={**self.published, role: kept},
        )
        return changed.with_shown_reductions(role)

    def published_before(self, role: str, number: int) -> tuple[Publication, ...]:
        """Return what *role* published that does not cover the round of that *number*."""
        return tuple(one for one in self.published.get(role, ()) if one.end_number < number)

    def reading_ahead_of(self, number: int) -> Snapshot:
        """Return the snapshot that has at hand what each role is shown once what covers the round of that *number* is
        withdrawn. May raise ``StoreError``, and takes its time: no lock is needed."""
        now = self
        for role in self.journals:
            now = now.reading_ahead(role, self.published_before(role, number))
        return now

    def reading_ahead(self, role: str, kept: tuple[Publication, ...]) -> Snapshot:
        """Return the snapshot that has at hand what *role* is shown where only *kept* is left of what it published.

        May raise ``StoreError``, and takes its time: no lock is needed.
        """
        if kept != self.published.get(role, ()) and kept:
            self.archive.compaction(kept[-1].entry)
        return self.with_shown_reductions(role, kept[-1].end_number if kept else 0)

    def with_at_hand(self, ahead: Snapshot) -> Snapshot:
        """Return the snapshot that has in memory what *ahead*, another one of the same Memory, has."""
        same = {
            role: ahead.reductions[role]
            for role, held in self.reductions.items()
            if role in ahead.reductions and ahead.reductions[role].version == held.version
        }
        return self.but(reductions={**self.reductions, **same})

    def count_reductions(self, role: str) -> int:
        """Return how many live reductions *role* has, for which none is read."""
        live = self.reductions_of(role).by_round
        return live.count if isinstance(live, Shelf) else sum(map(len, live.values()))

    def with_shown_reductions(self, role: str, covered: int | None = None) -> Snapshot:
        """Return the snapshot that holds those of *role*'s reductions in memory that its prompts may show, where they
        begin behind the round of that number; None: behind what its compaction covers."""
        held = self.reductions.get(role)
        if held is None or not isinstance(held.by_round, Shelf) or self.archive.keeps_all:
            return self
        shelf = held.by_round.reaching_back_to(self.covered(role) if covered is None else covered)
        return self.but(reductions={**self.reductions, role: replace(held, by_round=shelf)})

    def with_reductions(self, role: str, round_id: str, of_round: tuple[Reduction, ...]) -> Snapshot:
        """Return the snapshot with *of_round* as what *role* reads in the place of that round's posts."""
        before, number = self.reductions_of(role).by_round, self.numbers[round_id]
        shelf = before if isinstance(before, Shelf) else Shelf(self.archive)
        changed = self.but(
            reductions={
                **self.reductions,
                role: Reductions(self.number, shelf.with_round(round_id, number, of_round, self.number)),
            },
            epoch=self.epoch + (number <= self.settled_count),
        )
        return changed.with_other_prompt(role)

    def with_other_prompt(self, role: str) -> Snapshot:
        """Return the snapshot without the length of *role*'s newest prompt: the next one reads otherwise."""
        if self.usage(role).input_tokens is None:
            return self
        return self.but(usages={**self.usages, role: replace(self.usage(role), input_tokens=None)})


_NO_REDUCTIONS, _NO_USAGE = Reductions(), Usage()
