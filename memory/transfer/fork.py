"""A new session that starts as a copy of another one, up to one of its rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from ..entries import (
    CompactionPrepared,
    CompactionPublished,
    CompactionReverted,
    Entry,
    PostAdded,
    PostRedacted,
    RoundFailed,
    RoundFinished,
    RoundOpened,
    RoundUndone,
    UsageRecorded,
    list_kinds,
)
from ..errors import SessionPurged, UnknownRound
from ..journal import show_newest_query
from ..rounds import copy_with
from ..stores import InMemoryStore, Store, join_name, split_name
from .state_dict import append_session, find_round_id, refuse_existing

if TYPE_CHECKING:
    from ..memory import Memory

M = TypeVar("M", bound="Memory")

_POSTS = list_kinds(PostAdded)


def fork_session(memory: M, at_round: int, session_id: str | None = None, store: Store | None = None) -> M:
    """Return a Memory of a new session with the rounds of *memory* up to and including number *at_round*.

    The rounds are copied in their present state, including later posts; an open round stays open. Their reductions,
    pins and redactions are copied. Each role gets its newest compaction that is not reverted and ends by that round,
    with the compactions that a revert leads back to. Token counts by providers still correct ours. Ids of rounds and
    posts, time stamps and generations stay; the entries of the log get new ids. Prepared answers are not copied: they
    may include later rounds. Written in one append.
    """
    now = memory.snapshot
    if not isinstance(at_round, int) or isinstance(at_round, bool) or not 1 <= at_round <= now.total:
        raise UnknownRound(f"there is no round {at_round!r} to fork at; this session has {now.total}, from 1")
    session = join_name(split_name(memory.session_id)[0], memory._new_id()) if session_id is None else session_id
    target = memory._store if store is None else store
    refuse_existing(target, session)
    log = list(memory._store.read(memory.session_id, 0, now.number))
    if len(log) != now.number or log[-1].id != now.last:
        raise SessionPurged.at(now.number)
    entries = list(_copy_entries(log, at_round))
    if now.reductions:
        entries = [*entries, *_show_newest_query(type(memory), session, entries, created_at=memory._clock())]
    append_session(target, session, entries)
    fork = type(memory)(session, store=target, clock=memory._clock, new_id=memory._new_id)
    fork.adopt_rounds(memory._own_rounds)  # the next round finishes them, as in the original
    return fork


def _show_newest_query(
    cls: type[Memory], session: str, entries: Sequence[Entry], *, created_at: datetime
) -> Iterator[Entry]:
    """Yield withdrawals of the reductions that hide the user's newest query: in the fork it is another one."""
    draft = InMemoryStore()
    draft.append(session, entries, 0)
    copied = cls(session, store=draft).snapshot
    for record in show_newest_query(copied, copied.total):
        yield Entry.of(record, created_at=created_at, round=copied.find_number(record.round_id))


def _copy_entries(log: Iterable[Entry], at_round: int) -> Iterator[Entry]:
    """Yield copies of the entries about rounds up to *at_round*, with the overlays on them.

    Entries without a round are copied if they were written before the next round was opened.
    """
    numbers: dict[str, int] = {}
    ends_by_role: dict[str, list[int]] = {}  # the last rounds of its compactions that are not reverted
    hidden: set[str] = set()
    for entry in log:
        if entry.kind in _POSTS and entry.round > at_round:
            continue  # not even read: a fork before a damaged post is a way to go on
        record = entry.record
        if type(record) is RoundOpened:  # isinstance() is slow for pydantic's classes
            numbers[record.round_id] = len(numbers) + 1
        about = find_round_id(record)
        number = entry.round if about is None else numbers.get(about, 0)
        hides = type(record) in (RoundFailed, RoundUndone) and about not in hidden
        if hides or type(record) is PostRedacted:
            hidden |= {about or ""} if hides else set()
            for role, ends in ends_by_role.items():
                ends_by_role[role] = [end for end in ends if end < number]
        stays = (number or len(numbers)) <= at_round
        match record:
            case PostAdded() | RoundOpened() | RoundFinished():  # most entries
                pass
            case CompactionPrepared():
                stays = False
            case CompactionPublished(role=role, compaction=compaction):
                ends_by_role.setdefault(role, []).append(compaction.end_number or 0)
                stays = ends_by_role[role][-1] <= at_round
            case CompactionReverted(role=role):
                stays = bool(ends_by_role.get(role)) and ends_by_role[role].pop() <= at_round
            case UsageRecorded() if len(numbers) > at_round:
                # The correction of our counts is worth keeping; the length of a later prompt means nothing here.
                yield Entry.of(copy_with(record, current=False), created_at=entry.created_at)
                stays = False
        if stays:
            yield Entry(
                entry.kind,
                record=record,
                body=entry._body,
                created_at=entry.created_at,
                round=number,
                version=entry.version,
            )
