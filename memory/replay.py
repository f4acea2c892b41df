"""What each entry of the log makes of a Memory, live and when the log is read again."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Literal

from .entries import (
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
from .errors import StoreError
from .messages import came_as_message
from .overlay_rule import laid
from .overlays import CompactedMessage, JournalState
from .redaction import with_redacted
from .rounds import Record, Round
from .snapshot import LiveRound, Snapshot

__all__ = ["applied"]


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
        case PostRedacted():
            return with_redacted(now, record)
        case _:
            return _with_overlay(now, record)


def _with_overlay(now: Snapshot, record: Record | None) -> Snapshot:
    """Return the snapshot after an entry that says how the log reads, or by how much to correct a count."""
    match record:
        case CompactionPrepared(role=role, base=base):
            if base != now.journal(role).generation:
                return now
            return replace(now, prepared={**now.prepared, role: (*now.prepared.get(role, ()), record)})
        case CompactionPublished(role=role, compaction=compaction):
            kept = (*now.published.get(role, ()), compaction)
            return _with_journal(now, role, JournalState(compaction.generation, compaction), kept)
        case CompactionReverted(role=role, generation=generation):
            kept = now.published.get(role, ())[:-1]
            newest = now.rounds(include_failed=True)[-1].id if now.total else ""
            return _with_journal(now, role, JournalState(generation, kept[-1] if kept else None, newest), kept)
        case ReductionPublished(role=role, reduction=reduction):
            of_round = laid(now.reductions_of(role).of(reduction.round_id), reduction)
            return now if of_round is None else now.with_reductions(role, reduction.round_id, of_round)
        case ReductionWithdrawn(role=role, round_id=round_id, first_number=first, last_number=last):
            live = now.reductions_of(role).of(round_id)
            left = tuple(one for one in live if (one.first_number, one.last_number) != (first, last))
            return now if len(left) == len(live) else now.with_reductions(role, round_id, left)
        case UsageRecorded(role=role, input_tokens=tokens, counted=counted, current=current):
            after = now.usage(role).after(tokens, counted, current=current)
            return replace(now, usages={**now.usages, role: after})
        case PostPinned(round_id=round_id, number=place, pinned=pinned):
            pin = {(round_id, place)}
            return replace(now, pins=now.pins | pin if pinned else now.pins - pin)
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
        return now.with_changed(present.model_copy(update={"state": "failed"}))
    live = now.live[present.number - now.settled_count - 1]
    return _settle(_with_live(now, replace(live, opened=live.opened.model_copy(update={"state": state}))))


def _settle(now: Snapshot) -> Snapshot:
    """Move the closed rounds at the head of the live ones to the settled, where they stay as they are."""
    closed = [item.round for item in takewhile(lambda item: item.opened.closed, now.live)]
    visible = [round_ for round_ in closed if round_.state != "failed"]
    now.settled[now.settled_count :] = closed  # not extend(): an interrupted writer may have left more
    now.visible[now.visible_count :] = visible
    return replace(
        now,
        settled_count=now.settled_count + len(closed),
        visible_count=now.visible_count + len(visible),
        live=now.live[len(closed) :],
    )


def _with_journal(now: Snapshot, role: str, state: JournalState, kept: tuple[CompactedMessage, ...]) -> Snapshot:
    prepared = {other: answers for other, answers in now.prepared.items() if other != role}
    now = replace(
        now, journals={**now.journals, role: state}, published={**now.published, role: kept}, prepared=prepared
    )
    return now.with_other_prompt(role)
