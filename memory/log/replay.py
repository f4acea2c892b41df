"""What each entry of the log makes of a Memory, live and when the log is read again."""

from __future__ import annotations

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
from ..errors import StoreError
from ..overlay_rule import laid, without_span
from ..rounds import Record, Round, RoundState
from .live import LiveRound
from .redaction import with_redacted
from .snapshot import Publication, Snapshot

__all__ = ["applied", "reverted", "without_failed"]

#: So many of a role's newest answers are at hand, and so many of its newest compactions that are not published yet:
#: where single posts are summarised meanwhile, their answers would pile up, and push out what is held.
MOST_PREPARED = 64


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
        return before.but(number=number, last=last, live=(*before.live, LiveRound.of(record, total)))
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
            of_round = laid(now.reductions_of(role).of(reduction.round_id), reduction)
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
    out = alike[0] if len(alike) > MOST_PREPARED else len(answers)
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
    place, settled = now.numbers[round_id], now.settled_count
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


def _settled(before: Snapshot, live: tuple[LiveRound, ...], number: int, last: str) -> Snapshot:
    """Return the snapshot whose rounds that may still change are *live*, but for the closed ones at their head: those
    move to the settled, where they stay as they are."""
    closed: list[Round] = []
    for item in live:
        if item.is_open:
            break
        closed.append(item.round)
    if closed:
        before.archive.settle(before.settled_count, closed)
    settled = before.settled_count + len(closed)
    return before.but(number=number, last=last, settled_count=settled, live=live[len(closed) :])


def _without_stale(now: Snapshot, role: str) -> Snapshot:
    """Return the snapshot without what was prepared for *role*: it was made from another generation."""
    return now.but(
        prepared={other: answers for other, answers in now.prepared.items() if other != role},
        prepared_entries={other: entries for other, entries in now.prepared_entries.items() if other != role},
    )
