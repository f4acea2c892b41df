"""Memory: the raw rounds of one session, unchanged, for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from . import messages as chat
from .entries import (
    CompactionPublished,
    CompactionReverted,
    Entry,
    HeaderAdded,
    PostAdded,
    RoundClosing,
    RoundFailed,
    RoundOpened,
)
from .errors import Conflict, RoundClosed, StaleCompaction
from .events import Event, EventHook, HookFailed, ProviderFailed
from .forking import renewed_after_fork
from .hooks import Hooks, Notifications, describe
from .overlays import CompactedMessage, CompactionProvider, JournalState
from .recall import text_behind
from .rounds import Clock, Post, Record, Round, new_id, utc_now
from .stores import InMemoryStore, Store
from .visibility import LiveRound, Rounds, Snapshot, sees

__all__ = ["Conversation", "Memory", "RoleJournal"]

T = TypeVar("T")


class Conversation:
    """The session's rounds as they are now."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @property
    def rounds(self) -> Rounds:
        """Every round with every post, failed ones included: a snapshot, taken in O(1)."""
        return self._memory.snapshot.rounds(include_failed=True)


class Memory:
    """Holds the rounds of one session and tells whoever asked when one is added.

    Writers take turns; readers take an immutable snapshot and no lock. *new_id* and *clock* make the ids and the time
    stamps. A session that the store already holds is resumed.
    """

    def __init__(
        self,
        session_id: str | None = None,
        *,
        store: Store | None = None,
        clock: Clock = utc_now,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self.session_id = session_id if session_id is not None else new_id()
        self.conversation = Conversation(self)
        self._store: Store = InMemoryStore() if store is None else store
        self._clock = clock
        self._new_id = new_id
        self._lock = threading.Lock()  # one writer at a time: held over an append, guards all below it
        self._numbers: dict[str, int] = {}
        self._own_open: str | None = None  # the round that this Memory opened and did not close
        self._journals: dict[str, JournalState] = {}
        self._published: dict[str, tuple[CompactedMessage, ...]] = {}
        self.snapshot = Snapshot(numbers=self._numbers)  # replaced under the lock, read without
        self._providers: dict[str, CompactionProvider] = {}  # replaced, never changed
        self._notifications = Notifications()
        self._event_hooks: Hooks[[Event]] = Hooks(lambda _callback, _error: None)
        self._round_hooks: Hooks[[int]] = Hooks(self._report_hook)
        renewed_after_fork(self)
        with self._lock:
            self._catch_up()

    # -- writing -----------------------------------------------------------------------------------------------------

    def create_round(
        self,
        user_query: str,
        *,
        id: str | None = None,  # noqa: A002  (the record's name for it)
        extra: Mapping[str, Any] | None = None,
    ) -> Round:
        """Open a round and return it; the one before is finished, if this Memory opened it and it is still open."""
        opened = self._opening(user_query, id, extra)
        round_ = self._write(lambda: self._open(opened), lambda: self._round(opened.round_id))
        self._announce(opened=True)
        return round_

    def add_post(
        self,
        round_: Round | str,
        post: Post | None = None,
        /,
        *,
        send_from: str = "",
        send_to: str = "",
        message: str = "",
        **fields: Any,
    ) -> Post:
        """Add a post to an open round and return it. Raises ``RoundClosed`` for a closed one, and writes nothing.

        Give its fields (those of ``Post``), or a ready ``Post``. Costs the same however many posts the round has.
        """
        round_id = round_ if isinstance(round_, str) else round_.id
        if post is None:
            fields.setdefault("id", self._new_id())
            fields.setdefault("created_at", self._clock())
            post = Post(send_from=send_from, send_to=send_to, message=message, **fields)
        added = self._write(lambda: (self._adding(round_id, post),), lambda: self._require_open(round_id).posts[-1])
        self._announce()
        return added

    def finish_round(self, round_: Round | str, state: Literal["finished", "failed"] = "finished") -> Round:
        """Close a round, or hide it by ``state="failed"``, which a finished round may still become; return it.

        Finishing what is finished, and failing what has failed, changes nothing. Raises ``RoundClosed`` for finishing
        a failed round, ``KeyError`` for one that is not of this session.
        """
        round_id = round_ if isinstance(round_, str) else round_.id
        if state not in ("finished", "failed"):
            raise ValueError(f"a round ends as 'finished' or 'failed', not {state!r}")

        def records() -> Iterable[Record]:
            present = self._round(round_id)
            if present.state == state:
                return
            if present.state == "failed":
                raise RoundClosed(f"round {present.number} has failed and stays failed; open a new round instead")
            yield RoundFailed(round_id=round_id) if state == "failed" else RoundClosing(round_id=round_id)

        closed = self._write(records, lambda: self._round(round_id))
        self._announce()
        return closed

    def append(self, message: Mapping[str, Any]) -> None:
        """Add one message in OpenAI's chat format: a user message opens a round, others join the open one.

        System messages before the first round are the header. A message that comes while no round is open (the first
        of all, or after ``finish_round``) opens one with an empty ``user_query``; user messages in a row share one.
        Raises ``MessageError`` for what is not a chat message; nothing is written then.
        """
        parsed = chat.parse(message)
        post = parsed.post.model_copy(update={"id": self._new_id(), "created_at": self._clock()})
        query = self._opening(post.message, None, chat.query_extra(post))
        empty = self._opening("", None, None)

        def records() -> Iterable[Record]:
            live = self.snapshot.live
            newest = live[-1] if live and not live[-1].opened.closed else None
            if parsed.is_header and self.snapshot.total == 0:
                yield HeaderAdded(post=post)
            elif parsed.is_query and (newest is None or chat.has_answer(newest)):
                yield from self._open(query)
            elif newest is None:
                yield from self._open(empty)
                yield PostAdded(round_id=empty.round_id, post=post.model_copy(update={"number": 1}))
            else:
                yield self._adding(newest.opened.id, post)

        before = self.snapshot.total
        self._announce(opened=self._write(records, lambda: self.snapshot.total) > before)

    @classmethod
    def from_messages(
        cls, conversation: Iterable[Mapping[str, Any]], session_id: str | None = None, **options: Any
    ) -> Memory:
        """Return a Memory that holds *conversation*, messages in OpenAI's format. Takes the options of ``Memory``."""
        memory = cls(session_id, **options)
        for message in conversation:
            memory.append(message)
        return memory

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def header(self) -> tuple[Post, ...]:
        """The system messages before the first user message."""
        return self.snapshot.header

    def get_role_rounds(
        self, role: str, include_failure_rounds: bool = False
    ) -> tuple[Rounds, CompactedMessage | None]:
        """Return the rounds as *role* sees them, and the compaction that covers their beginning.

        One consistent snapshot in O(1): ``rounds[compaction.end_index:]`` is exactly the tail.
        """
        compaction = self._compaction_of(role)  # first: a round that is added in between only lengthens the tail
        rounds = self.snapshot.rounds(role, include_failed=include_failure_rounds)
        return rounds, rounds.anchored(compaction)

    def rounds_getter(self, role: str) -> Callable[[], Rounds]:
        """Return a callable that gives the rounds as *role* sees them, failed ones left out."""
        return lambda: self.snapshot.rounds(role)

    def messages(self, role: str = chat.ASSISTANT) -> list[dict[str, Any]]:
        """Return the conversation as *role* sees it, whole, as chat messages: header first, failed rounds left out."""
        result = [chat.from_post(post, role) for post in self.header if sees(role, post)]
        for round_ in self.snapshot.rounds(role):
            result.extend(chat.from_round(round_, role))
        return result

    def reload(self, ref: str, *, role: str = "") -> str:
        """Return the original text behind a reference: ``r12`` a round, ``r3-r9`` several, ``r12.p3`` a post.

        With *role*, only what that role sees. Raises ``KeyError`` where there is nothing.
        """
        return text_behind(self.snapshot.rounds(role, include_failed=True), ref, hide_failed=bool(role))

    # -- hooks and providers ------------------------------------------------------------------------------------------

    def on_round_added(self, callback: Callable[[int], object]) -> Callable[[], None]:
        """Call ``callback(total_rounds)`` after each ``create_round``, in its thread; return what stops that."""
        return self._round_hooks.add(callback)

    def on_event(self, callback: EventHook) -> Callable[[], None]:
        """Call *callback* with each event of this Memory (a hook or provider that failed)."""
        return self._event_hooks.add(callback)

    def register_compaction_provider(self, role: str, provider: CompactionProvider) -> Callable[[], None]:
        """Have *provider* say how the beginning of *role*'s history reads, and tell it of all that happens.

        One a role: a new one takes the old one's place. Returns a function that takes it out again.
        """
        with self._lock:
            self._providers = {**self._providers, role: provider}

        def detach() -> None:
            with self._lock:
                if self._providers.get(role) is provider:
                    self._providers = {name: other for name, other in self._providers.items() if name != role}

        return detach

    def journal(self, role: str) -> RoleJournal:
        """Return the part of the log where *role*'s compactions are published."""
        return RoleJournal(self, role)

    def _compaction_of(self, role: str) -> CompactedMessage | None:
        provider = self._providers.get(role)
        if provider is not None:
            try:
                return provider.get_compaction()
            except Exception as error:  # noqa: BLE001  (a broken provider must not break the chat)
                self._event_hooks(ProviderFailed(session=self.session_id, role=role, error=describe(error)))
        return self._journals.get(role, JournalState()).current

    def _notify_providers(self) -> None:
        total = self.snapshot.total
        told: set[int] = set()
        for role, provider in self._providers.items():
            if id(provider) in told:  # one provider may serve several roles
                continue
            told.add(id(provider))
            try:
                provider.notify_rounds_changed(total)
            except Exception as error:  # noqa: BLE001
                self._event_hooks(ProviderFailed(session=self.session_id, role=role, error=describe(error)))

    def _report_hook(self, callback: Callable[..., object], error: Exception) -> None:
        self._event_hooks(HookFailed(session=self.session_id, hook=describe(callback), error=describe(error)))

    # -- the log ------------------------------------------------------------------------------------------------------

    def _write(self, records: Callable[[], Iterable[Record]], done: Callable[[], T]) -> T:
        """Append what *records* gives and return ``done()``, both under the lock.

        When another writer was faster, what it wrote is read first and *records* is asked again.
        """
        with self._lock:
            while True:
                entries = [Entry.of(record, created_at=self._clock()) for record in records()]
                if not entries:
                    return done()
                try:
                    self._store.append(self.session_id, entries, self.snapshot.number)
                except Conflict:
                    self._catch_up()
                    continue
                for number, entry in enumerate(entries, self.snapshot.number + 1):
                    self._apply(entry.record, number)
                    if isinstance(entry.record, RoundOpened):
                        self._own_open = entry.record.round_id
                return done()

    def _catch_up(self) -> None:
        for entry in self._store.read(self.session_id, self.snapshot.number):
            self._apply(entry.record, entry.number)

    def _opening(self, user_query: str, round_id: str | None, extra: Mapping[str, Any] | None) -> RoundOpened:
        return RoundOpened(
            round_id=self._new_id() if round_id is None else round_id,
            user_query=user_query,
            created_at=self._clock(),
            extra=extra or {},
        )

    def _open(self, opened: RoundOpened) -> Iterable[Record]:
        if opened.round_id in self._numbers:
            raise RoundClosed(f"there is a round {opened.round_id!r} already; give another id, or none")
        before = self._live(self._own_open)
        if before is not None and not before.opened.closed:
            yield RoundClosing(round_id=before.opened.id)
        yield opened

    def _adding(self, round_id: str, post: Post) -> PostAdded:
        number = self._require_open(round_id).count + 1
        return PostAdded(round_id=round_id, post=post.model_copy(update={"number": number}))

    def _announce(self, *, opened: bool = False) -> None:
        total = self.snapshot.total

        def notify() -> None:
            if opened:
                self._round_hooks(total)
            self._notify_providers()

        self._notifications.send(notify)

    def _round(self, round_id: str) -> Round:
        number = self._numbers.get(round_id)
        if number is None:
            raise KeyError(f"no round {round_id!r} in this session; use one that create_round() returned")
        return self.snapshot.rounds(include_failed=True)[number - 1]

    def _live(self, round_id: str | None) -> LiveRound | None:
        return next((item for item in self.snapshot.live if item.opened.id == round_id), None)

    def _require_open(self, round_id: str) -> LiveRound:
        live = self._live(round_id)
        if live is None or live.opened.closed:
            number = self._numbers.get(round_id)
            if number is None:
                raise KeyError(f"no round {round_id!r} in this session; use one that create_round() returned")
            raise RoundClosed(f"round {number} is closed; open a new one with create_round(), nothing was written")
        return live

    def _apply(self, record: Record | None, number: int) -> None:
        """Take one entry of the log into the snapshot. The only place where anything changes."""
        before = replace(self.snapshot, number=number)
        match record:
            case HeaderAdded(post=post):
                self.snapshot = replace(before, header=(*before.header, post))
            case RoundOpened():
                self.snapshot = self._opened(before, record)
            case PostAdded(round_id=round_id, post=post):
                live = self._require_open(round_id)
                live.posts.append(post)
                self.snapshot = self._with_live(before, replace(live, count=live.count + 1))
            case RoundClosing(round_id=round_id):
                self.snapshot = self._closed(before, round_id, "finished")
            case RoundFailed(round_id=round_id):
                self.snapshot = self._closed(before, round_id, "failed")
            case CompactionPublished(role=role, compaction=compaction):
                self._published[role] = (*self._published.get(role, ()), compaction)
                self._journals[role] = JournalState(compaction.generation, compaction)
                self.snapshot = before
            case CompactionReverted(role=role, generation=generation):
                self._published[role] = kept = self._published.get(role, ())[:-1]
                newest = before.rounds(include_failed=True)[-1].id if before.total else ""
                self._journals[role] = JournalState(generation, kept[-1] if kept else None, newest)
                self.snapshot = before
            case _:  # an entry that only a newer version knows
                self.snapshot = before

    def _opened(self, before: Snapshot, record: RoundOpened) -> Snapshot:
        number = before.total + 1
        self._numbers[record.round_id] = number
        opened = Round(
            id=record.round_id,
            user_query=record.user_query,
            created_at=record.created_at,
            extra=record.extra,
            number=number,
        )
        return replace(before, live=(*before.live, LiveRound(opened, [], 0)))

    def _with_live(self, before: Snapshot, changed: LiveRound) -> Snapshot:
        live = tuple(changed if item.opened.id == changed.opened.id else item for item in before.live)
        return replace(before, live=live)

    def _closed(self, before: Snapshot, round_id: str, state: Literal["finished", "failed"]) -> Snapshot:
        number = self._numbers[round_id]
        after = before
        if state == "failed":
            after = replace(after, failed=tuple(sorted((*after.failed, number))))
        live = self._live(round_id)
        if live is None:
            return self._settled_failed(after, number)
        after = self._with_live(after, replace(live, opened=live.opened.model_copy(update={"state": state})))
        return self._settle(after)

    @staticmethod
    def _settle(after: Snapshot) -> Snapshot:
        """Move the closed rounds at the head of the live ones to the settled, where they stay as they are."""
        settled, visible, live = after.settled_count, after.visible_count, after.live
        while live and live[0].opened.closed:
            round_, live = live[0].round, live[1:]
            after.settled.append(round_)
            settled += 1
            if round_.state != "failed":
                after.visible.append(round_)
                visible += 1
        return replace(after, settled_count=settled, visible_count=visible, live=live)

    @staticmethod
    def _settled_failed(after: Snapshot, number: int) -> Snapshot:
        """Hide a settled round. Readers hold the lists, so they are copied: rare, and the only step that costs O(n)."""
        settled = after.settled[: after.settled_count]
        settled[number - 1] = settled[number - 1].model_copy(update={"state": "failed"})
        visible = [round_ for round_ in settled if round_.state != "failed"]
        return replace(after, settled=settled, visible=visible, visible_count=len(visible), epoch=after.epoch + 1)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._notifications = Notifications()


class RoleJournal:
    """One role's compactions in a Memory's log."""

    def __init__(self, memory: Memory, role: str) -> None:
        self._memory = memory
        self._role = role

    def read(self) -> JournalState:
        memory = self._memory
        state = memory._journals.get(self._role, JournalState())
        return state._replace(current=memory.snapshot.rounds(self._role).anchored(state.current))

    def publish(self, compaction: CompactedMessage, *, base: int, round_ids: Sequence[str]) -> CompactedMessage:
        memory, role = self._memory, self._role
        published = compaction

        def records() -> Iterable[Record]:
            nonlocal published
            state = memory._journals.get(role, JournalState())
            rounds = memory.snapshot.rounds(include_failed=True)
            if state.generation != base:
                raise StaleCompaction("generation")
            if not all(self._still_covered(rounds, round_id) for round_id in round_ids):
                raise StaleCompaction("rounds_changed")
            end = memory._numbers.get(compaction.end_round_id or "", 0)
            current = state.current.end_number if state.current else 0
            if end <= (current or 0):
                raise StaleCompaction("behind")
            published = compaction.model_copy(
                update={"generation": base + 1, "end_number": end, "created_at": memory._clock()}
            )
            yield CompactionPublished(role=role, compaction=published)

        return memory._write(records, lambda: published)

    @staticmethod
    def _still_covered(rounds: Rounds, round_id: str) -> bool:
        end = rounds.end_of(round_id)
        return end is not None and rounds[end - 1].state == "finished"

    def revert(self) -> CompactedMessage | None:
        memory, role = self._memory, self._role

        def records() -> Iterable[Record]:
            state = memory._journals.get(role, JournalState())
            if state.current is not None:
                yield CompactionReverted(role=role, generation=state.generation + 1)

        memory._write(records, lambda: None)
        return self.read().current
