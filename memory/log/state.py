"""A Memory at one moment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..entries import (
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
from ..errors import NewerVersion, StoreDamaged, StoreError
from ..overlays import CompactedMessage, JournalState, Reduction, Reductions, merge_reductions, without_span
from ..rounds import Post, Record, Round, RoundState
from ..usage import Pinned, Usage, said_at, unreadable
from ..visibility import Rounds
from .open_round import OpenRound
from .redaction import with_redacted
from .round_store import Archive, Numbers, ResidentRounds, Shelf


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
    archive: Archive = field(default_factory=ResidentRounds)
    closed_prefix: int = 0
    #: The rounds from the first open one on.
    live: tuple[OpenRound, ...] = ()
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
        return self.closed_prefix + len(self.live)

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
        if number > self.closed_prefix:
            return self.live[number - self.closed_prefix - 1].round
        return self.archive.round(number, self.closed_prefix, self.failed)

    def round(self, round_id: str) -> Round | None:
        """Return a round, failed or not; None where there is none of that id."""
        number = self.numbers.get(round_id, 0)
        return self.round_at(number) if 1 <= number <= self.total else None

    def state_of(self, round_id: str) -> RoundState | None:
        """Return a round's state, for which its posts are not read; None where there is none of that id."""
        number = self.numbers.get(round_id, 0)
        if not 1 <= number <= self.total:
            return None
        if number > self.closed_prefix:
            return self.live[number - self.closed_prefix - 1].opened.state
        return "failed" if self.has_failed(number) else "finished"

    def has_failed(self, number: int) -> bool:
        """Return whether the round of that number has failed, for which it is not read."""
        place = bisect_left(self.failed, number)
        return place < len(self.failed) and self.failed[place] == number

    def open_round(self, round_id: str) -> OpenRound | None:
        """Return a round that takes posts; None where there is none of that id."""
        newest = self.live[-1] if self.live else None
        if newest is not None and newest.opened.id == round_id:  # as most often
            return newest if newest.is_open else None
        place = self.numbers.get(round_id, 0) - self.closed_prefix - 1
        found = self.live[place] if 0 <= place < len(self.live) else None
        return found if found is not None and found.is_open else None

    @property
    def newest_open(self) -> OpenRound | None:
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

    def live_with(self, changed: OpenRound) -> tuple[OpenRound, ...]:
        """Return the rounds that may still change, with *changed* in that round's place."""
        place = changed.opened.number - self.closed_prefix - 1
        return (*self.live[:place], changed, *self.live[place + 1 :])

    def without_posts(self, number: int, posts: Iterable[int]) -> Snapshot:
        """Return the snapshot in which those *posts* of the round of that *number* are erased."""
        now = self.but(epoch=self.epoch + 1)
        if number > self.closed_prefix:
            return now.but(live=self.live_with(self.live[number - self.closed_prefix - 1].without(posts)))
        return now.but(archive=self.archive.with_redacted(self.closed_prefix, number, posts))

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
            epoch=self.epoch + (number <= self.closed_prefix),
        )
        return changed.with_other_prompt(role)

    def with_other_prompt(self, role: str) -> Snapshot:
        """Return the snapshot without the length of *role*'s newest prompt: the next one reads otherwise."""
        if self.usage(role).input_tokens is None:
            return self
        return self.but(usages={**self.usages, role: replace(self.usage(role), input_tokens=None)})


_NO_REDUCTIONS, _NO_USAGE = Reductions(), Usage()


# --- what each entry of the log makes of a Memory, live and when the log is read again ----------------------------


#: So many of a role's newest answers are at hand, and so many of its newest compactions that are not published yet:
#: where single posts are summarised meanwhile, their answers would pile up, and push out what is held.
MAX_PREPARED = 64


def applied(before: Snapshot, record: Record | None, number: int, last: str) -> Snapshot:
    """Return the snapshot after one more entry of the log, whose id is *last*. Raises ``StoreError`` for one that does
    not fit there."""
    # What every turn has comes first, and is told by its class alone: a record is not asked through pydantic what it is
    # an instance of. One snapshot is made for each.
    if type(record) is PostAdded:
        taking = before.open_round(record.round_id)
        if taking is None:
            raise StoreError(f"entry {number} of the log adds to a round that is not open; restore the session")
        return before.but(number=number, last=last, live=before.live_with(taking.with_post(record.post)))
    if type(record) is RoundOpened:
        total = before.total + 1
        before.archive.note(record.round_id, total)
        return before.but(number=number, last=last, live=(*before.live, OpenRound.of(record, total)))
    if type(record) is RoundFinished:
        return _finished(before, record.round_id, number, last)
    now = before.but(number=number, last=last)
    match record:
        case HeaderAdded(post=post):
            return now.but(header=(*now.header, post), header_entries=(*now.header_entries, number))
        case RoundFailed(round_id=round_id):
            return _failed(now, round_id)
        case PostRedacted():
            return with_redacted(now, record)
        case _:
            return _with_overlay(now, record)


def _with_overlay(now: Snapshot, record: Record | None) -> Snapshot:
    """Return the snapshot after an entry that says how the log reads, or by how much to correct a count."""
    match record:
        case CompactionPrepared(role=role, base=base):
            return now if base != now.journal(role).generation else _with_prepared(now, role, record)
        case CompactionPublished(role=role, compaction=compaction):
            kept = (*now.published.get(role, ()), Publication(now.number, compaction.end_number or 0))
            made = _without_stale(now, role).with_publications(role, compaction.generation, kept, current=compaction)
            return made.with_other_prompt(role)
        case CompactionReverted(role=role, generation=generation):
            return reverted(now, role, generation)
        case ReductionPublished(role=role, reduction=reduction):
            of_round = merge_reductions(now.reductions_of(role).of(reduction.round_id), reduction)
            return now if of_round is None else now.with_reductions(role, reduction.round_id, of_round)
        case ReductionWithdrawn(role=role, round_id=round_id, first_number=first, last_number=last):
            live = now.reductions_of(role).of(round_id)
            left = without_span(live, first, last)
            return now if len(left) == len(live) else now.with_reductions(role, round_id, left)
        case UsageRecorded(role=role, input_tokens=tokens, counted=counted, current=current):
            after = now.usage(role).after(tokens, counted, current=current, cached_tokens=record.cached_tokens)
            return now.but(usages={**now.usages, role: after})
        case PostPinned(round_id=round_id, number=place, pinned=pinned):
            return now.with_pin(round_id, place) if pinned else now.without_pins(round_id, (place,))
        case _:  # an entry that only a newer version knows
            return now


def _with_prepared(now: Snapshot, role: str, record: CompactionPrepared) -> Snapshot:
    answers = (*now.prepared.get(role, ()), record)
    alike = [at for at, one in enumerate(answers) if (one.compaction is None) == (record.compaction is None)]
    out = alike[0] if len(alike) > MAX_PREPARED else len(answers)
    entries = (*now.prepared_entries.get(role, ()), now.number)
    return now.but(
        prepared={**now.prepared, role: answers[:out] + answers[out + 1 :]},
        prepared_entries={**now.prepared_entries, role: entries[:out] + entries[out + 1 :]},
    )


def reverted(now: Snapshot, role: str, generation: int) -> Snapshot:
    """Return the snapshot in which *role*'s last publication is taken back. May raise ``StoreError``, for it reads the
    one before: so it is asked before that is written, too, since nobody could read on behind it."""
    newest = now.round_at(now.total).id if now.total else ""
    kept = now.published.get(role, ())[:-1]
    made = _without_stale(now, role).with_publications(role, generation, kept, held_round_id=newest)
    return made.with_other_prompt(role)


def _finished(before: Snapshot, round_id: str, number: int, last: str) -> Snapshot:
    """Return the snapshot after one more entry, which says that a round has ended."""
    closing = before.open_round(round_id)
    if closing is not None:
        return _settled(before, before.live_with(closing.closed_as("finished")), number, last)
    now = before.but(number=number, last=last)
    _require_round(now, round_id)  # one that is closed stays as it is
    return now


def _failed(now: Snapshot, round_id: str) -> Snapshot:
    """Return the snapshot after its last entry, which says that a round has failed."""
    if _require_round(now, round_id) == "failed":
        return now
    place, settled = now.numbers[round_id], now.closed_prefix
    now = without_failed(now.but(failed=tuple(sorted((*now.failed, place)))), place)
    if place <= settled:
        return now.but(archive=now.archive.with_failed(settled, place), epoch=now.epoch + 1)
    return _settled(now, now.live_with(now.live[place - settled - 1].closed_as("failed")), now.number, now.last)


def without_failed(now: Snapshot, number: int) -> Snapshot:
    """Return the snapshot without the publications that cover the round of that *number*, which has failed: what failed
    is told nowhere. Each role that loses one gets a new generation, for what is made from that one tells of it too.

    May raise ``StoreError``, for it reads what is shown instead: so it is asked before the failure is written, too.
    """
    for role, state in now.journals.items():
        kept = now.published_before(role, number)
        if len(kept) < len(now.published.get(role, ())):
            made = _without_stale(now, role).with_publications(
                role, state.generation + 1, kept, held_round_id=state.held_round_id
            )
            now = made.with_other_prompt(role)
    return now


def _require_round(now: Snapshot, round_id: str) -> RoundState:
    """Return the state of the round that the last entry closes. Raises ``StoreError`` where there is none."""
    state = now.state_of(round_id)
    if state is None:
        raise StoreError(f"entry {now.number} of the log closes a round that it does not have; restore the session")
    return state


def _settled(before: Snapshot, live: tuple[OpenRound, ...], number: int, last: str) -> Snapshot:
    """Return the snapshot whose rounds that may still change are *live*, but for the closed ones at their head: those
    move to the settled, where they stay as they are."""
    closed: list[Round] = []
    for item in live:
        if item.is_open:
            break
        closed.append(item.round)
    if closed:
        before.archive.settle(before.closed_prefix, closed)
    settled = before.closed_prefix + len(closed)
    return before.but(number=number, last=last, closed_prefix=settled, live=live[len(closed) :])


def _without_stale(now: Snapshot, role: str) -> Snapshot:
    """Return the snapshot without what was prepared for *role*: it was made from another generation."""
    return now.but(
        prepared={other: answers for other, answers in now.prepared.items() if other != role},
        prepared_entries={other: entries for other, entries in now.prepared_entries.items() if other != role},
    )
