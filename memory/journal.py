"""A role's overlays, published in the log beside the rounds that they stand for."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from weakref import ref

from .entries import (
    CompactionPrepared,
    CompactionPublished,
    CompactionReverted,
    Entry,
    EventRecorded,
    PostRedacted,
    ReductionPublished,
    ReductionWithdrawn,
    RoundFailed,
    RoundUndone,
    ShownRecorded,
    list_kinds,
)
from .errors import StaleCompaction
from .hooks import renew_after_fork
from .log.state import Snapshot, revert_publication
from .overlays import (
    CompactedMessage,
    JournalState,
    Origin,
    Reduction,
    Reductions,
    find_newest_query,
    hides_words,
    is_over,
    is_torn,
    merge_reductions,
    tie_calls,
)
from .rounds import Record, Round, copy_with, make_id
from .stores.base import Joiner
from .values import ValueObject
from .visibility import Rounds, filter_posts, sees

if TYPE_CHECKING:
    from .memory import Memory

#: The kinds of entries that make up a role's history.
HISTORY_KINDS = list_kinds(
    CompactionPrepared, CompactionPublished, CompactionReverted, PostRedacted, RoundFailed, RoundUndone
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CompactionRecord(ValueObject):
    """One thing that happened to a role's compactions."""

    #: ``published``; ``reverted``: taken back; ``withdrawn``: its source was redacted, failed or was undone;
    #: ``prepared``: paid for and not published, perhaps an intermediate step.
    happened: Literal["prepared", "published", "reverted", "withdrawn"]
    at: datetime
    #: The role's generation from then on; for a prepared one, the generation that it was made from.
    generation: int
    #: The compaction; None for an intermediate step. Its text is gone if its source was redacted.
    compaction: CompactedMessage | None
    #: Whether prompts show it now; true for at most one record.
    current: bool = False
    #: The rounds that it covers in addition to the one before it.
    round_ids: tuple[str, ...] = ()
    #: Digest of the answered request, in hexadecimal digits; empty if no model was asked.
    digest: str = ""
    #: Names of the checks that the answer passed.
    checks: tuple[str, ...] = ()
    strategy: str = ""
    model: str | None = None
    usage: Mapping[str, int] | None = None
    #: Tokens of the messages that it replaces in prompts, and its own; None: not counted.
    tokens_before: int | None = None
    tokens_after: int | None = None
    #: Number of the log's entry; 0 if there is no log.
    number: int = 0

    @property
    def rounds(self) -> tuple[int, int] | None:
        """Numbers of the first and the last round that it covers in all; None for an intermediate step."""
        return None if self.compaction is None else (self.compaction.start_index, self.compaction.last_round)


def history_of(entries: Iterable[Entry], role: str, number_of: Callable[[str], int]) -> tuple[CompactionRecord, ...]:
    """Return the history of *role*'s compactions from *entries* of ``HISTORY_KINDS``, oldest first. *number_of* gives a
    round's number."""
    log = [(entry, record) for entry in entries if getattr(record := entry.record, "role", role) == role]
    published = {
        (record.compaction.generation - 1, digest)
        for _, record in log
        if isinstance(record, CompactionPublished)
        for digest in ("", record.digest)  # the empty one stands for all its steps
    }
    records: list[CompactionRecord] = []
    in_force: list[CompactionRecord] = []  # published and not taken back, oldest first
    hidden: set[str] = set()
    generation = 0
    for entry, record in log:
        left, how = in_force, "withdrawn"
        match record:
            case CompactionPrepared(base=base, digest=digest, compaction=made):
                if record.kind in ("rounds", "changes") and (base, digest if made is not None else "") not in published:
                    records.append(_record_of(entry, record))
                continue
            case CompactionPublished():
                generation = record.compaction.generation
                in_force = [*in_force, _record_of(entry, record)]
                records.append(in_force[-1])
                continue
            case CompactionReverted():
                left, how, generation = in_force[:-1], "reverted", record.generation
            case PostRedacted(round_id=round_id) | RoundFailed(round_id=round_id) | RoundUndone(round_id=round_id):
                number = number_of(round_id)
                # Publications reach further and further, so those that cover the round are the last ones.
                left = [one for one in in_force if one.compaction and (one.compaction.end_number or 0) < number]
                if not isinstance(record, PostRedacted):
                    known, hidden = round_id in hidden, hidden | {round_id}
                    if known or len(left) == len(in_force):
                        continue
                generation += 1  # by a redaction, every role's
        for one in in_force[len(left) :]:
            at, number = entry.created_at, entry.number
            records.append(copy_with(one, happened=how, at=at, generation=generation, number=number))
        in_force = left
    return tuple(copy_with(one, current=True) if in_force and one is in_force[-1] else one for one in records)


def _record_of(entry: Entry, record: CompactionPrepared | CompactionPublished) -> CompactionRecord:
    made = record if isinstance(record, CompactionPrepared) else record.compaction
    fields: dict[str, Any] = {"model": made.model, "usage": made.usage}
    if isinstance(record, CompactionPrepared):
        fields |= {"happened": "prepared", "generation": record.base}
    else:
        fields |= {"happened": "published", "generation": record.compaction.generation}
        fields |= {"tokens_before": record.tokens_before, "tokens_after": record.tokens_after}
    return CompactionRecord(
        at=entry.created_at,
        compaction=record.compaction,
        round_ids=record.round_ids,
        digest=record.digest,
        checks=record.checks,
        strategy=record.strategy,
        number=entry.number,
        **fields,
    )


#: Rounds that are handed to an index for searching in one step.
INDEXED_AT_ONCE = 200
#: Who holds the leases of a session that nobody else is at work on, whichever process that is: a process that was
#: killed and the one that takes over from it are the same holder, so that it need not wait for the lease to expire.
SOLE = "sole"
#: The error of a refused revert.
OVERTAKEN = (
    "nothing was reverted: another compaction or revert was published since this one was looked at;"
    " look at what stands now, and revert again if that is meant"
)


class Journal(ABC):
    """Where one role's overlays are published and kept.

    A journal of your own implements ``read``, ``publish`` and ``revert``; every other method has a default that keeps
    nothing. An object that has those three methods without being a subclass serves a compactor as well.
    """

    #: Whether ``reduce`` ever keeps any.
    keeps_reductions: bool = False
    #: Whether ``prepare`` ever keeps any.
    keeps_answers: bool = False
    #: Whether what is published is in the snapshots of a Memory.
    is_in_log: bool = False
    #: Whether a lease ends by itself, so that it must be renewed; and whether that takes no I/O.
    has_leases: bool = False
    is_resident: bool = True
    #: Whether ``index_texts`` ever has anything to do.
    has_index: bool = True

    @abstractmethod
    def read(self) -> JournalState:
        """Return the present state; must not block."""

    @abstractmethod
    def publish(
        self, compaction: CompactedMessage, *, base: int, round_ids: Sequence[str], origin: Origin | None = None
    ) -> CompactedMessage:
        """Make *compaction* current and return it with its generation; *round_ids* are the newly covered rounds.

        Raises ``StaleCompaction`` unless *base* is the current generation, all of *round_ids* are still closed and
        visible, no open round lies before the end, and the end moves forward.
        """

    @abstractmethod
    def revert(self, *, base: int | None = None) -> CompactedMessage | None:
        """Make the compaction before the current one current again, and return it; None if there is none.

        Raises ``StaleCompaction`` if a *base* is given that is not the current generation.
        """

    def reduce(self, reduction: Reduction, *, base: int) -> Reductions | None:  # noqa: ARG002
        """Make *reduction* one of the role's, and return all of them; None if it is ignored, because it equals a live
        one, lies inside it or partly overlaps it. It replaces those that it contains.

        Raises ``StaleCompaction`` unless *base* is the current generation, the round is visible and behind the
        compaction, the role sees the first and the last post, and no call is torn from its results.
        """
        return None

    def withdraw(self, reduction: Reduction) -> bool:  # noqa: ARG002
        """Take out the live reduction of the same posts, and return whether there was one."""
        return False

    def prepare(self, answer: CompactionPrepared) -> bool:  # noqa: ARG002
        """Keep an accepted answer until its role publishes; return False, and keep nothing, if its base is stale."""
        return False

    def lease(self, seconds: float) -> float:  # noqa: ARG002
        """Take or renew the sole right to have this role's history summarised, and return 0.0; if somebody else has
        it, the seconds until that expires. It saves money: publishing never depends on it."""
        return 0.0

    def release(self) -> None:  # noqa: B027  (nothing, by default)
        """Give that right back; nothing changes if it is somebody else's."""

    def refresh(self) -> bool:
        """Read the entries that others wrote; return whether there were any."""
        return False

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:  # noqa: ARG002
        """Call *listener*, which must be quick, when somebody else has published; return a function that ends that."""
        return lambda: None

    def join_appends(self, database: object, joiner: Joiner) -> Callable[[], object]:  # noqa: ARG002
        """Ask *joiner* before each append what is to be done in its transaction, if the log is in *database*; return a
        function that ends that."""
        return lambda: None

    def is_behind(self) -> bool:
        """Return whether others wrote what ``listen`` does not tell of; a short read. May raise ``StoreError``."""
        return False

    def withdraw_lost(self, rounds: Any) -> bool:  # noqa: ARG002
        """Withdraw every compaction that covers a failed round of *rounds*, unless the journal does so by itself;
        return whether there was any."""
        return False

    def note(self, name: str, facts: Mapping[str, Any]) -> None:  # noqa: B027  (nothing, by default)
        """Keep an event."""

    def history(self) -> tuple[CompactionRecord, ...]:
        """Return what became of the role's compactions, oldest first."""
        return ()

    def index_texts(self) -> bool:
        """Do one step of indexing old rounds for search; return whether there is more to do."""
        return False


class RoleJournal(Journal):
    """One role's overlays in a Memory's log. Their indices are those of the present.

    *holder* is its name for the store's leases; by default a random one.
    """

    keeps_answers = True
    is_in_log = True

    def __init__(self, memory: Memory, role: str, *, holder: str = "") -> None:
        self._memory = memory
        self._role = role
        self.keeps_reductions = bool(role)  # the empty role sees everything, as it was
        self._store = memory._store
        self.has_index = "searchable" in self._store.capabilities
        self.is_resident = self._store.is_resident
        self.has_leases = "leasing" in self._store.capabilities
        self._is_notified = "notifying" in self._store.capabilities
        #: Its lease: session, name, holder.
        self._lease = (memory.session_id, f"compact:{role}", holder or make_id())
        #: Whether a lease that exists before its first one belongs to a dead process.
        self._takes_over = holder == SOLE
        #: The round that was reduced last, and its ``tie_calls``. Written while the Memory is locked.
        self._ties: tuple[ref[Round], Mapping[int, tuple[int, int]]] | None = None
        renew_after_fork(self)

    def _after_fork(self) -> None:  # a child is somebody else
        session, name, holder = self._lease
        self._lease, self._takes_over = (session, name, f"{holder}:{os.getpid()}"), False

    def read(self) -> JournalState:
        now = self._memory.snapshot
        state = now.get_journal(self._role)
        current = state.current
        if current is not None:
            current = Rounds(now, self._role, include_hidden=False).anchor(current)
        prepared = [one for one in now.prepared.get(self._role, {}).values() if one.base == state.generation]
        return JournalState(state.generation, current, state.revert_round_id, tuple(prepared))

    def publish(
        self, compaction: CompactedMessage, *, base: int, round_ids: Sequence[str], origin: Origin | None = None
    ) -> CompactedMessage:
        made_at, published = self._memory._clock(), compaction

        def records(now: Snapshot) -> Iterable[Record]:
            nonlocal published
            state, rounds = now.get_journal(self._role), Rounds(now, self._role, include_hidden=False)
            if state.generation != base:
                raise StaleCompaction("generation")
            last = now.find_number(compaction.end_round_id or "")
            # Not past an open round, even one that another process opened: it will take more posts.
            if not 1 <= last <= now.closed_prefix or set(map(now.find_state, round_ids)) - {"finished"}:
                raise StaleCompaction("rounds_changed")
            published = copy_with(compaction, created_at=made_at, generation=base + 1, end_number=last)
            published = rounds.anchor(published)
            if (current := state.current) is not None:
                before, replaces = current.end_number or 0, current.is_offline and not compaction.is_offline
                if last < before or (last == before and not replaces):
                    raise StaleCompaction("behind")
            stored, how = copy_with(published, pinned=()), (origin or Origin())._asdict()
            yield CompactionPublished(role=self._role, compaction=stored, round_ids=tuple(round_ids), **how)

        self._memory._write(records, made_at)
        return published

    def revert(self, *, base: int | None = None) -> CompactedMessage | None:
        before = self._memory.snapshot
        # Reads what is shown instead, so that nothing is left to read under the lock.
        revert_publication(before, self._role, 0)

        def records(now: Snapshot) -> Iterable[Record]:
            state = now.get_journal(self._role)
            if base is not None and state.generation != base:
                raise StaleCompaction("generation", OVERTAKEN)
            if state.current is not None:
                revert_publication(now, self._role, state.generation + 1)  # raises if the one before cannot be read
                yield CompactionReverted(role=self._role, generation=state.generation + 1)

        now, _ = self._memory._write(records)
        return now.get_rounds(self._role).anchor(now.get_journal(self._role).current)

    def reduce(self, reduction: Reduction, *, base: int) -> Reductions | None:
        if not self._role:
            return None
        made_at = self._memory._clock()

        def records(now: Snapshot) -> Iterable[Record]:
            new = copy_with(self._check_reduction(now, reduction, base), created_at=made_at)
            if merge_reductions(now.list_reductions(self._role, new.round_id), new) is not None:
                yield ReductionPublished(role=self._role, reduction=new)

        return self._write_reductions(records)

    def withdraw(self, reduction: Reduction) -> bool:
        ends = (reduction.first_post_id, reduction.last_post_id)

        def records(now: Snapshot) -> Iterable[Record]:
            live = now.list_reductions(self._role, reduction.round_id)
            return withdraw_reductions(
                self._role, (one for one in live if (one.first_post_id, one.last_post_id) == ends)
            )

        return self._write_reductions(records) is not None

    def _write_reductions(self, records: Callable[[Snapshot], Iterable[Record]]) -> Reductions | None:
        """Append the records, and return the role's reductions; None if there were no records."""
        written: list[Record] = []

        def keep(now: Snapshot) -> Iterable[Record]:
            written[:] = records(now)
            return written

        now, _ = self._memory._write(keep)
        return now.reductions.get(self._role, Reductions()) if written else None

    def prepare(self, answer: CompactionPrepared) -> bool:
        written, compaction = False, answer.compaction
        # Copies of ours: records that a host made say which of their fields were set, and the log would keep that.
        answer = copy_with(answer, role=self._role, compaction=None if compaction is None else copy_with(compaction))

        def records(now: Snapshot) -> Iterable[Record]:
            nonlocal written
            written = now.get_journal(self._role).generation == answer.base
            return [answer] if written else []

        self._memory._write(records)
        return written

    def lease(self, seconds: float) -> float:
        if not self._takes_over:
            return self._store.lease(*self._lease, seconds)
        wait = self._store.lease(*self._lease, seconds, take_over=True)
        self._takes_over = False
        return wait

    def release(self) -> None:
        self._store.release(*self._lease)

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        return self._store.listen(self._memory.session_id, listener)

    def join_appends(self, database: object, joiner: Joiner) -> Callable[[], object]:
        return self._memory._join_appends(database, joiner)

    def is_behind(self) -> bool:  # one read, which waits for no writer
        memory = self._memory
        newer = () if self._is_notified else self._store.read(memory.session_id, memory.snapshot.number, 1)
        return next(iter(newer), None) is not None

    def refresh(self) -> bool:
        return self._memory._write(None)[1]

    def note(self, name: str, facts: Mapping[str, Any]) -> None:
        record = EventRecorded(role=self._role, name=name, facts=facts)
        self._memory._write(lambda _now: [record])

    def notes(self, name: str) -> Iterator[Mapping[str, Any]]:
        """Yield the facts of the events of that *name* that were kept, oldest first. May raise ``StoreError``."""
        for entry in self._store.read_kinds(self._memory.session_id, list_kinds(EventRecorded)):
            record = entry.record
            if isinstance(record, EventRecorded) and (record.role, record.name) == (self._role, name):
                yield record.facts

    def keep(self, records: Callable[[Snapshot], Iterable[Record]]) -> None:
        """Append the records that *records* returns for the present snapshot. It is called under the lock, so it must
        not wait."""
        self._memory._write(records)

    def shown(self) -> Iterator[ShownRecorded | PostRedacted]:
        """Yield the records of shown messages and of redactions, in the order of the log."""
        for entry in self._store.read_kinds(self._memory.session_id, list_kinds(ShownRecorded, PostRedacted)):
            record = entry.record
            if isinstance(record, PostRedacted) or (isinstance(record, ShownRecorded) and record.role == self._role):
                yield record

    def history(self) -> tuple[CompactionRecord, ...]:
        now = self._memory.snapshot
        log = self._store.read_kinds(self._memory.session_id, HISTORY_KINDS)
        return history_of((entry for entry in log if entry.number <= now.number), self._role, now.find_number)

    def index_texts(self) -> bool:
        return not self._memory.index_texts(most_rounds=INDEXED_AT_ONCE)

    def _check_reduction(self, now: Snapshot, reduction: Reduction, base: int) -> Reduction:
        """Return *reduction* with its posts' numbers. Raises ``StaleCompaction`` if it may not be published."""
        state, round_ = now.get_journal(self._role), now.find_round(reduction.round_id)
        if state.generation != base:
            raise StaleCompaction("generation")
        covered = (state.current.end_number or 0) if state.current is not None else 0
        if round_ is None or round_.is_hidden or round_.number <= covered:
            raise StaleCompaction("rounds_changed")
        if self._ties is None or self._ties[0]() is not round_:  # the same for many reductions, until the round grows
            self._ties = (ref(round_), tie_calls(filter_posts(self._role, round_), self._role))
        first = self._number_of(round_, reduction.first_post_id, reduction.first_number)
        last = self._number_of(round_, reduction.last_post_id, reduction.last_number)
        if not 0 <= first <= last:
            raise StaleCompaction("rounds_changed")
        reduction = copy_with(reduction, first_number=first, last_number=last)
        if reduction.kind == "offloaded" and first != last:
            raise ValueError("an offloaded reduction stands for one post; make one for each")
        if is_torn(reduction, self._ties[1]):
            raise StaleCompaction("torn")
        if any(round_id == round_.id and is_over(reduction, number, round_) for round_id, number in now.pins):
            raise StaleCompaction("pinned")
        newest = find_newest_query(reversed(now.get_rounds(self._role)))
        if newest is not None and newest.id == round_.id and hides_words(reduction, newest):
            raise StaleCompaction("newest_query")
        return reduction

    def _number_of(self, round_: Round, post_id: str, number: int) -> int:
        """Return the number of the post of that id that the role sees; 0 for the query, which has no id, -1 if there is
        none. *number* decides if several posts have that id."""
        if not post_id:
            return 0
        for posts in (round_.post_list[max(number - 1, 0) : number], round_.post_list):  # nearly always the first
            if same := [post.number for post in posts if post.id == post_id and sees(self._role, post)]:
                return max(same)
        return -1


def show_newest_query(now: Snapshot, last: int, *, except_id: str = "") -> Iterator[ReductionWithdrawn]:
    """Yield the records that withdraw reductions of the user's newest query in the first *last* rounds of the log
    without the round *except_id*: it is another one than before, and perhaps was reduced."""
    for role in now.reductions:
        rounds = now.get_rounds(role)
        places = range(last - bisect_right(now.hidden, last) - 1, -1, -1)
        asked = find_newest_query(one for one in map(rounds.__getitem__, places) if one.id != except_id)
        if asked is not None:
            live = now.list_reductions(role, asked.id)
            yield from withdraw_reductions(role, (one for one in live if hides_words(one, asked)))


def withdraw_reductions(role: str, reductions: Iterable[Reduction]) -> Iterator[ReductionWithdrawn]:
    """Yield the records that withdraw live *reductions* of *role*."""
    for one in reductions:
        ends = {"first_number": one.first_number, "last_number": one.last_number}
        yield ReductionWithdrawn(role=role, round_id=one.round_id, **ends)
