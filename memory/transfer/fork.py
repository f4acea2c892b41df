"""A new session that begins as another one did, up to one of its rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..entries import (
    CompactionPrepared,
    CompactionPublished,
    CompactionReverted,
    Entry,
    PostAdded,
    PostRedacted,
    ReductionPublished,
    ReductionWithdrawn,
    RoundFailed,
    RoundOpened,
    UsageRecorded,
    kinds_of,
)
from ..errors import SessionPurged, UnknownRound
from ..journal import withdrawals
from ..log.round_store import PURGED
from ..log.state import Snapshot
from ..overlays import Reduction, hides_words, merge_reductions, newest_asked, without_posts, without_span
from ..rounds import new_id
from ..stores import Store
from .state_dict import append_new, refuse_present
from .validate import round_id_of

if TYPE_CHECKING:
    from ..memory import Memory

M = TypeVar("M", bound="Memory")

_POSTS = kinds_of(PostAdded)


def forked(memory: M, at_round: int, session_id: str | None = None, store: Store | None = None) -> M:
    """Return a Memory of a new session that holds *memory* up to and including round number *at_round*.

    The rounds come as they are now: with posts that were added and states that changed after a later round was opened;
    one that is open stays open. So do their reductions and pins, what was redacted stays so, and each role has the
    newest compaction that was not reverted and ends at that round or before, with what reverting it leads back to.
    What providers counted still corrects our counts. Ids of rounds and posts, time stamps and generations are kept;
    entries of the log are new ones, with ids of their own. Answers that were prepared and not published stay behind:
    what went into them may lie behind the round. From here on nothing is shared.

    *session_id*: None makes a name. *store*: None is that of *memory*. Written in one append. Raises ``UnknownRound``
    where there is no such round, and ``StoreError`` where the store has a session of that name already.
    """
    now = memory.snapshot
    if not isinstance(at_round, int) or isinstance(at_round, bool) or not 1 <= at_round <= now.total:
        raise UnknownRound(f"there is no round {at_round!r} to fork at; this session has {now.total}, from 1")
    session = memory._new_id() if session_id is None else session_id
    kept = memory._store if store is None else store
    refuse_present(kept, session)
    log = list(memory._store.read(memory.session_id, 0, now.number))
    if len(log) != now.number or log[-1].id != now.last:
        raise SessionPurged(PURGED.format(now.number))
    entries, made_at = list(_until(log, at_round)), memory._clock()
    over = list(_over_newest_query(now, at_round, entries))
    entries += [Entry.of(one, created_at=made_at, round=now.numbers[one.round_id]) for one in over]
    append_new(kept, session, entries)
    fork = type(memory)(session, store=kept, clock=memory._clock, new_id=memory._new_id)
    fork._taken_over = (memory._own_round, *memory._taken_over)  # which the next one finishes, here as there
    return fork


def _until(log: Iterable[Entry], at_round: int) -> Iterator[Entry]:
    """Give those entries of *log* anew that are about the rounds up to *at_round*, and what was published of them.

    What is about no round is kept where it was written before the next one was opened.
    """
    numbers: dict[str, int] = {}
    standing: dict[str, list[int]] = {}  # of each role: the last rounds of what was published and not taken back
    failed: set[str] = set()
    for entry in log:
        if entry.kind in _POSTS and entry.round > at_round:
            continue  # unread: behind one that is damaged, the rounds before it are a way to go on
        record = entry.record
        if isinstance(record, RoundOpened):
            numbers[record.round_id] = len(numbers) + 1
        about = round_id_of(record)
        place = entry.round if about is None else numbers.get(about, 0)
        fails = isinstance(record, RoundFailed) and about not in failed
        if fails or isinstance(record, PostRedacted):
            failed |= {about or ""} if fails else set()
            for role, ends in standing.items():
                standing[role] = [end for end in ends if end < place]
        match record:
            case CompactionPrepared():
                stays = False
            case CompactionPublished(role=role, compaction=compaction):
                standing.setdefault(role, []).append(compaction.end_number or 0)
                stays = standing[role][-1] <= at_round
            case CompactionReverted(role=role):
                stays = bool(standing.get(role)) and standing[role].pop() <= at_round
            case UsageRecorded() if len(numbers) > at_round:
                # By how much we count too little is worth knowing; how long a later prompt was says nothing here.
                yield Entry.of(record.model_copy(update={"current": False}), created_at=entry.created_at)
                stays = False
            case _:
                stays = (place or len(numbers)) <= at_round
        if stays:
            yield _anew(entry, place)


def _anew(entry: Entry, place: int) -> Entry:
    """Return *entry* as one of another log, with an id of its own."""
    again = entry.numbered(0)
    again.id, again.round = new_id(), place
    return again


def _over_newest_query(now: Snapshot, at_round: int, log: Sequence[Entry]) -> Iterator[ReductionWithdrawn]:
    """Give what takes reductions off the user's words that are the newest again, as there the *log* ends."""
    for role in now.reductions:
        asked = newest_asked(one for one in reversed(now.rounds(role)) if one.number <= at_round)
        if asked is not None:
            yield from withdrawals(role, (one for one in _live(log, role, asked.number) if hides_words(one, asked)))


def _live(log: Iterable[Entry], role: str, number: int) -> tuple[Reduction, ...]:
    """Return *role*'s reductions of the round of that *number*, as *log* makes them."""
    live: tuple[Reduction, ...] = ()
    for entry in log:
        if entry.round != number:
            continue
        match entry.record:
            case ReductionPublished(role=whose, reduction=new) if whose == role:
                live = merge_reductions(live, new) or live
            case ReductionWithdrawn(role=whose, first_number=first, last_number=last) if whose == role:
                live = without_span(live, first, last)
            case PostRedacted(numbers=erased):
                live = without_posts(live, erased)
    return live
