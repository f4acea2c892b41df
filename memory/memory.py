"""Memory: the raw rounds of one session, kept unchanged."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, Self, TypeVar, overload

from . import messages as chat
from .arguments import name_kind, read_round_id, require, require_role, takes
from .entries import (
    HEADER_MESSAGE,
    HEADER_PART,
    HeaderAdded,
    PostAdded,
    PostPinned,
    RoundFailed,
    RoundFinished,
    RoundOpened,
    UsageRecorded,
)
from .errors import MessageError, RoundClosed, UnknownRound
from .events import CheckpointFailed, Event, EventHook, HookFailed, ProviderFailed, Redacted, Rewound
from .hooks import Hooks, describe, describe_error
from .io_threads import Lane
from .journal import SOLE, RoleJournal, show_newest_query, withdraw_reductions
from .log import redaction, rewind
from .log.session_log import Log, News
from .log.state import OpenRound, Snapshot, preview_records, withdraw_covering
from .overlays import CompactedMessage, CompactionProvider, find_newest_query, is_over
from .places import Synced
from .references import make_range_reference, make_reference, reload_text
from .rounds import EMPTY, USER, Clock, Post, Record, Round, copy_with, create_unchecked, make_id, utc_now
from .search import Hit, find_hits, split_query, sync_index
from .stores import InMemoryStore, Store
from .stores.base import adapt_store
from .usage import Usage
from .values import ValueObject
from .visibility import Rounds, sees

if TYPE_CHECKING:
    from .sync import SyncState

P = ParamSpec("P")
R = TypeVar("R")
#: What ``add_post`` is given most of the time. Texts need no validation, which would take longer than the rest of it.
_COMMON_FIELDS = {"send_from", "send_to", "message"}


class Conversation:
    """The session's rounds as they are now."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @property
    def rounds(self) -> Rounds:
        """Every round with every post, failed and undone rounds included. A snapshot, taken in O(1)."""
        return self._memory.snapshot.get_rounds(include_hidden=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RoundsGetter(ValueObject):
    """Returns the rounds of one Memory as one role sees them, without hidden rounds. O(1), from any thread."""

    memory: Memory
    role: str

    def __call__(self) -> Rounds:
        return Rounds(self.memory.snapshot, self.role, include_hidden=False)


class Appended(NamedTuple):
    """Where a message stands in the log, as ``append`` returns it. Reads from the log what it is asked for."""

    memory: Memory
    #: Number of its round, from 1; 0: it is in the header.
    round_number: int
    #: Its number in the round, 0 for the query that opened it; in the header its place there, from 1.
    post_number: int

    @property
    def reference(self) -> str | None:
        """Its reference, such as ``r3.p2``, for ``pin``, ``reload`` and the like; None in the header."""
        return make_reference(self.round_number, self.post_number) if self.round_number else None

    @property
    def round(self) -> Round | None:
        """Its round as it is now; None in the header. May raise ``StoreError``."""
        return self.memory.snapshot.get_round_at(self.round_number) if self.round_number else None

    @property
    def post(self) -> Post | None:
        """The post as it is now; None if the message is the query of its round. May raise ``StoreError``."""
        round_ = self.round
        if round_ is None:
            return self.memory.snapshot.header[self.post_number - 1]
        return round_.post_list[self.post_number - 1] if self.post_number else None


class Memory(Log):
    """Holds the rounds of one session, and calls hooks when a round is added.

    *new_id* and *clock* make the ids and the time stamps. A session that the store already has is resumed. On a store
    that can read parts of a log, this takes as long as reading the newest rounds; older rounds are read on demand.
    *take_over* is for hosts in which no other process works on the session: the next ``create_round`` finishes the
    rounds that an ended process left open, and a lease that it left behind is taken over.

    Any number of threads may use it. Writers take turns, and return when the store has their entries. Readers take an
    immutable snapshot and no lock. Both may wait for a database; in asyncio, await ``aappend``, and call the other
    methods that write through ``to_thread``.

    Faults of the store raise ``StoreError``. In most cases nothing was written, and the same call may be repeated.
    After ``StoreUnreachable`` the entries may have been written, because the server can fail before it replies. Then
    call ``refresh()`` and look, or use ids of your own (``create_round(id=...)``, a ready ``Post``): they are not
    written twice.
    """

    _lane: Lane

    def __init__(
        self,
        session_id: str | None = None,
        *,
        store: Store | None = None,
        clock: Clock = utc_now,
        new_id: Callable[[], str] = make_id,
        take_over: bool = False,
    ) -> None:
        require("session_id", session_id, str | None, "the session's name, as a text; give a store as store=")
        require("clock", clock, Callable, "a function that gives the time as a datetime")
        require("new_id", new_id, Callable, "a function that gives a new id")
        self.conversation = Conversation(self)
        self._new_id = new_id
        self._providers: dict[str, CompactionProvider] = {}  # replaced under the lock, never changed
        self._sync_state: SyncState | None = None  # replaced, never changed
        self._prompts: dict[str, tuple[int, object]] = {}  # by role: tokens and overlays of the newest prompt
        self._event_hooks: Hooks[[Event]] = Hooks(lambda _callback, _error: None)
        self._round_hooks: Hooks[[int]] = Hooks(
            lambda callback, error: self._emit(HookFailed, hook=describe(callback), error=describe(error))
        )
        session_id = session_id if session_id is not None else new_id()
        store = InMemoryStore() if store is None else adapt_store(store)
        super().__init__(session_id, store, clock, take_over=take_over)
        self._holder = SOLE if take_over else ""

    def _after_fork(self) -> None:
        super()._after_fork()
        self._announcing: dict[int, deque[Iterable[int]]] = {}  # by thread; a local of threads takes more memory
        vars(self).pop("_lane", None)  # made when it is first needed
        self._holder = ""  # of leases: a random one for each journal

    def is_same_session(self, other: Memory) -> bool:
        """Return whether *other* appends to this log: the same session on the same store."""
        return other.session_id == self.session_id and other._store == self._store

    def create_round(
        self,
        user_query: str,
        *,
        id: str | None = None,  # noqa: A002  (the record's name for it)
        extra: Mapping[str, Any] | None = None,
    ) -> Round:
        """Open a round and return it. The round before is finished if this Memory opened it and it is still open.

        A round that another process opened stays open. A repeated call, with the *id* and the query of the newest
        round, returns that round. Raises ``MessageError`` if another round has the *id*, and for values that cannot be
        stored.
        """
        made_at = self._clock()
        round_id = self._new_id() if id is None else id
        extra = EMPTY if extra is None else extra
        fields = {"round_id": round_id, "user_query": user_query, "created_at": made_at, "extra": extra}
        is_usual = type(made_at) is datetime and made_at.tzinfo is UTC and extra is EMPTY
        is_usual = is_usual and type(round_id) is type(user_query) is str
        opened = create_unchecked(RoundOpened, fields) if is_usual else RoundOpened(**fields)

        def make_records(now: Snapshot) -> Iterable[Record]:
            same = now.find_open_round(round_id) if self._own_rounds[-1:] == (id,) else None
            # A repeated call, because the reply was lost.
            if same is not None and not same.count and copy_with(same.opened, created_at=made_at) == opened:
                return []
            return self._open(now, opened, given=id is not None)

        return _find_round(self._write(make_records, made_at, emit=True)[0], round_id)

    @overload
    def add_post(self, round_: Round | str, post: Post) -> Post: ...
    @overload
    def add_post(
        self, round_: Round | str, *, send_from: str, send_to: str, message: str = "", **fields: Any
    ) -> Post: ...
    def add_post(self, round_: Round | str, post: Post | None = None, **fields: Any) -> Post:
        """Add a post to an open round and return it.

        Give the fields of a ``Post``, or a ready ``Post``. A ready one that is the round's last post already is not
        added again. The cost does not depend on the number of posts in the round. Raises ``RoundClosed`` for a closed
        round, ``UnknownRound`` for one of another session, and ``MessageError`` for a post without an id or with a
        wrong field; nothing is written then.
        """
        made_at = self._clock()
        if post is None:
            made: dict[str, Any] = {"id": self._new_id(), "created_at": made_at}
            is_usual = fields.keys() == _COMMON_FIELDS and type(made_at) is datetime and made_at.tzinfo is UTC
            if is_usual and {type(value) for value in (made["id"], *fields.values())} == {str}:
                post = create_unchecked(Post, chat.NO_POST | made | fields)
            else:
                post = Post(**made | fields)
        elif fields or not isinstance(post, Post):
            both = "both" if fields else name_kind(post)
            raise TypeError(f"give add_post() a ready Post, or its fields by name: send_from=, message=; not {both}")
        if not post.id:
            raise MessageError("a post needs an id: give one that is not empty, or none, and one is made")
        round_id = read_round_id(round_)
        ready, added = post, post

        def make_records(now: Snapshot) -> Iterable[Record]:
            nonlocal added
            taking = now.find_open_round(round_id)
            if taking is None:
                number = _find_round(now, round_id).number
                raise RoundClosed(f"round {number} is closed; open a new one with create_round(), nothing was written")
            last = taking.posts[taking.count - 1] if taking.count else None
            # A repeated call, because the reply was lost.
            if last is not None and last.id == ready.id and last == copy_with(ready, number=last.number):
                added = last
                return []
            added = copy_with(ready, number=taking.count + 1)
            return [create_unchecked(PostAdded, {"round_id": round_id, "post": added})]

        self._write(make_records, made_at, emit=True)
        return added

    def finish_round(self, round_: Round | str, state: Literal["finished", "failed"] = "finished") -> Round:
        """Close a round and return it. ``state="failed"`` hides it; a finished round may still fail.

        A failing round takes the compactions that cover it along: the newest one that does not cover it is shown again,
        or none. A repeated call changes nothing. Raises ``RoundClosed`` for finishing a hidden round, ``UnknownRound``
        for a round of another session, ``ValueError`` for another *state*.
        """
        if state not in ("finished", "failed"):
            raise ValueError(f"a round ends as 'finished' or 'failed', not {state!r}")
        round_id = read_round_id(round_)
        number = self.snapshot.find_number(round_id) if state == "failed" else 0
        if number:
            withdraw_covering(self.snapshot, number)  # reads what is shown instead, before the lock is taken

        def make_records(now: Snapshot) -> Iterable[Record]:
            taking = now.find_open_round(round_id)
            if taking is None:
                present = _find_round(now, round_id)
                if present.state == state or (present.is_hidden and state == "failed"):
                    return
                if present.is_hidden:
                    what = f"round {present.number} is {present.state} and stays {present.state}"
                    raise RoundClosed(f"{what}; open a new round instead")
            elif state == "finished":
                yield create_unchecked(RoundFinished, {"round_id": taking.opened.round_id})
                return
            if number:
                withdraw_covering(now, number)  # raises if the compaction to be shown instead cannot be read
            yield RoundFailed(round_id=round_id)
            yield from show_newest_query(now, now.total, except_id=round_id)

        return _find_round(self._write(make_records, emit=True)[0], round_id)

    def append(self, message: Mapping[str, Any], *, kind: str = chat.MESSAGE) -> Appended:
        """Add one message in OpenAI's chat format and return its place: a user message opens a round, others join the
        open one.

        System messages before the first round are the header. User messages in a row share a round. Any other message
        that comes while no round is open opens one with an empty ``user_query``. Opening a round finishes the newest
        one, even if another process opened it, because the user's messages alone separate the rounds.

        *kind* is the host's own word for the message, as in ``Post.kind``; ``drop`` and ``sync`` look at it. A user
        message of a kind of its own, such as a reminder, is no query: it opens no round of its own. Raises
        ``MessageError`` for anything but a chat message, and writes nothing.
        """
        post = chat.parse(message)
        made_at = self._clock()
        make_records, place = self._add_message(post if kind == chat.MESSAGE else copy_with(post, kind=kind), made_at)
        self._write(make_records, made_at, emit=True)
        return tuple.__new__(Appended, (self, *place))  # takes half as long as calling it

    def extend(self, messages: Iterable[Mapping[str, Any]], *, kind: str = chat.MESSAGE) -> list[Appended]:
        """Add *messages* as ``append`` does, all or none, in one write. Return the place of each.

        Raises ``MessageError`` with the place of the first item that is no chat message, and writes nothing.
        """
        posts = chat.parse_all(messages)
        return self._extend(posts if kind == chat.MESSAGE else [copy_with(post, kind=kind) for post in posts])

    async def aappend(self, message: Mapping[str, Any], *, kind: str = chat.MESSAGE) -> Appended:
        """Add one message and return its place, as ``append`` does, without holding up the event loop.

        Calls that were begun in an order land in that order, even if the caller of one is cancelled: its message is in
        the log or it is not, and the next one follows.
        """
        post = chat.parse(message)
        return (await self.to_thread(self._extend, [post if kind == chat.MESSAGE else copy_with(post, kind=kind)]))[0]

    async def to_thread(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what *function*, a call that reads or writes this Memory, returns, without holding up the event loop.

        As ``asyncio.to_thread``, with a few threads for the whole process: the calls of one Memory run one at a time,
        in the order in which they were begun. If the store is in memory nothing waits, and the call is made at once.
        """
        lane = self._lane if "_lane" in vars(self) else None
        if self._store.is_resident and (lane is None or not lane.is_busy):
            import asyncio  # a program without an event loop should not pay for it

            result = function(*args, **kwargs)
            await asyncio.sleep(0)  # or a host that appends a long history would let nobody else have a turn
            return result
        return await self._find_lane().run(partial(function, *args, **kwargs))

    def _find_lane(self) -> Lane:
        # Made by the first who needs it, also where two event loops do at the same time.
        return self._lane if "_lane" in vars(self) else vars(self).setdefault("_lane", Lane())

    def rewind(self, ref: str) -> tuple[str, ...]:
        """Go on from an earlier place of the conversation, and return the references of the rounds that are undone,
        oldest first; none if nothing lies behind that place.

        *ref* is a round, ``r5``: the next message comes after it; a post, ``r5.p3``, or a query, ``r5.p0``: the next
        message comes after that; or ``r0``, the beginning. From then on no prompt, recall, search or summary tells of
        what is undone. The newest compaction that was not made from it is shown again, or none; compactions in the
        making are discarded. The log keeps it all: ``conversation.rounds`` has those rounds, in the state ``undone``.
        The header stays.

        A place inside a round undoes the whole round, and a new open one begins with copies of its posts, with their
        pins and reductions. Emits ``Rewound``. Raises ``UnknownReference``, and writes nothing, if there is no such
        place, if it is in a round that failed or was undone, or if it stands between a call and its results; the error
        names the nearest place before it.
        """
        return self._rewind(ref)

    def _rewind(self, ref: str, *, only_at: int | None = None) -> tuple[str, ...]:
        """Rewind to *ref*; do nothing if the log is not at entry number *only_at* any more."""
        require("ref", ref, str, "a text such as r5 or r5.p3")
        if self._behind:
            self.refresh()
        made_at, round_id = self._clock(), self._new_id()
        ids: dict[int, str] = {}
        references: tuple[str, ...] = ()

        def make_records(now: Snapshot) -> Iterable[Record]:
            nonlocal references
            if only_at not in (None, now.number):
                return
            place = rewind.resolve_rewind_point(now, ref)
            part = rewind.find_part_to_copy(now, place)
            last = place.first if part is None else place.first - 1
            undone = rewind.undo_after(now, last, ids)
            references = tuple(make_range_reference(number, number) for number in undone)
            if not undone:
                return
            withdraw_covering(now, last + 1)  # raises if the compaction to be shown instead cannot be read
            if part is not None:
                copied = rewind.find_last_number(part)
                undone[part.number] = copy_with(undone[part.number], continued_in=round_id, copied=copied)
            yield from undone.values()
            if part is None or find_newest_query([part]) is None:
                yield from show_newest_query(now, last)
            if part is not None:
                fields = {"user_query": part.user_query, "created_at": part.created_at, "extra": part.extra}
                gone = {one.round_id for one in undone.values()}
                for one in self._open(now, RoundOpened(round_id=round_id, **fields)):
                    if one.round_id not in gone:
                        yield one
                yield from rewind.copy_part(now, part, round_id)

        list(make_records(self.snapshot))  # reads what is needed before the lock is taken
        self._write(make_records, made_at)
        if references:
            self._announce(news=[(Rewound, references)])
        return references

    def _extend(self, posts: Sequence[Post], *, only_at: int | None = None) -> list[Appended]:
        """Add *posts* in one write and return their places; none, and nothing is written, if the log is not at entry
        number *only_at* any more."""
        made_at = self._clock()
        added = [self._add_message(post, made_at) for post in posts]

        def make_records(now: Snapshot) -> Iterable[Record]:
            if only_at not in (None, now.number):
                added.clear()
            for add, _ in added:
                said = add(now)
                now = preview_records(now, said)
                yield from said

        self._write(make_records, made_at, emit=True)
        return [Appended(self, *place) for _, place in added]

    def _add_message(self, post: Post, made_at: datetime) -> tuple[Callable[[Snapshot], Sequence[Record]], list[int]]:
        """Return a function that gives the records that add *post*, and a list for its place: the numbers of its round
        and of the post, which the function puts there."""
        # Made here, though few messages need both: the host's functions for ids and time are not called under the lock.
        post_id, round_id = self._new_id(), self._new_id()
        is_usual = type(made_at) is datetime and made_at.tzinfo is UTC
        if not is_usual or not type(post_id) is type(round_id) is type(post.kind) is str:
            made_at = RoundOpened(round_id=round_id, user_query="", created_at=made_at).created_at
            Post(id=post_id, send_from="", send_to="", kind=post.kind)
        is_query = post.send_from == USER and post.kind == chat.MESSAGE
        place = [0, 0]

        def make_records(now: Snapshot) -> Sequence[Record]:
            fields = post.__dict__ | {"id": post_id, "created_at": made_at}
            if post.send_from in chat.SYSTEM and (now.total == 0 or post.kind.startswith(HEADER_PART)):
                place[:] = 0, len(now.header) + 1
                return [HeaderAdded(post=create_unchecked(Post, fields))]
            newest = now.open_rounds.get(now.total)
            if newest is not None and newest.state == "undone":
                newest = next((one for one in reversed(now.open_rounds.values()) if one.state != "undone"), None)
            if newest is not None and newest.state != "created":
                newest = None
            opening: Sequence[Record] = ()
            if newest is None or (is_query and newest.answered):
                query, extra = (post.message, post.extra) if is_query else ("", EMPTY)
                opened = {"round_id": round_id, "user_query": query, "created_at": made_at, "extra": extra}
                opening = self._open(now, create_unchecked(RoundOpened, opened), newest)
                place[:] = now.total + 1, 1 - is_query
                if is_query:
                    return opening
                taking, fields["number"] = round_id, 1
            else:
                taking, fields["number"] = newest.opened.round_id, newest.count + 1
                place[:] = newest.number, newest.count + 1
            added = {"round_id": taking, "post": create_unchecked(Post, fields)}
            return [*opening, create_unchecked(PostAdded, added)]

        return make_records, place

    def _open(
        self, now: Snapshot, opened: RoundOpened, previous: OpenRound | None = None, *, given: bool = False
    ) -> list[RoundFinished | RoundOpened]:
        """Return the records that open a round, after those that finish *previous* and the rounds that this Memory has
        open. *given*: the host chose the round's id."""
        # Random ids are not looked up: a database would be asked before every round.
        if (given or self._new_id is not make_id) and now.find_number(opened.round_id):
            raise MessageError(f"there is a round {opened.round_id!r} already; give another id, or none")
        ends = {} if previous is None else {previous.number: previous.opened.round_id}
        for round_id in set(self._own_rounds).difference(ends.values()) if now.open_rounds else ():
            if (own := now.find_open_round(round_id)) is not None:
                ends[own.number] = round_id
        finished = [create_unchecked(RoundFinished, {"round_id": ends[number]}) for number in sorted(ends)]
        return [*finished, opened]

    def list_own_rounds(self) -> tuple[str, ...]:
        """Return the ids of the open rounds that the next ``create_round`` finishes: this Memory opened them."""
        live = [item.opened for item in self.snapshot.open_rounds.values() if item.state == "created"]
        return tuple(
            [one.round_id for one in live if one.round_id in self._own_rounds and not chat.came_as_message(one.extra)]
        )

    def adopt_rounds(self, round_ids: Iterable[str]) -> None:
        """Have the next ``create_round`` finish these rounds, too: the Memory that opened them is not used any more."""
        self._own_rounds += tuple(round_ids)

    def sync(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        on_divergence: Literal["rewind", "raise"] = "rewind",
        verify: bool = False,
    ) -> Synced:
        """Make the log the same as *messages*, the whole history that a host holds, and return what was done.

        For hosts that keep their own history, as agent frameworks do: call it before each prompt. What the log has is
        not written again, also after a restart or by another process. Messages are compared by what they say (role,
        content, calls), not by ids; calls and results by how they are paired.

        System messages in front are the header; one that changed replaces the old one. What the host has dropped, its
        oldest messages or those behind its first ones, stays in the log, and a summary that it put in their place is
        not taken. A message that was appended with a *kind* of its own stays too, though the host does not have it. If
        the history goes on otherwise than the log (an edit, a fork, a regenerated answer), the log is rewound to the
        last message before that, as by ``rewind``, or with ``on_divergence="raise"``, ``HistoryDiverged`` is raised and
        nothing is written.

        Objects of the last call are not compared again, apart from the newest 50; with *verify*, all are. Raises
        ``MessageError`` with the place of the first item that is no chat message, and writes nothing.
        """
        from .sync import NEWEST, sync_messages

        return sync_messages(self, messages, on_divergence, newest=sys.maxsize if verify else NEWEST)

    async def async_sync(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        on_divergence: Literal["rewind", "raise"] = "rewind",
        verify: bool = False,
    ) -> Synced:
        """Do what ``sync`` does, always on another thread: to compare thousands of messages takes long. It is in order
        with ``aappend``. Do not change the messages before it returns."""
        from .sync import list_messages

        call = partial(self.sync, list_messages(messages), on_divergence=on_divergence, verify=verify)
        return await self._find_lane().run(call)

    def set_header(self, name: str, text: str, *, role: str = chat.ASSISTANT) -> None:
        """Set the part *name* of *role*'s header: a system message that stands before the first round.

        May be called at any time. A new text replaces the old one in its place, and an empty *text* removes the part.
        The log keeps the old texts. Raises ``MessageError`` for a value that cannot be stored.
        """
        if not isinstance(name, str) or not name:
            raise MessageError("a part of the header has a name; give a text that is not empty")
        made_at = self._clock()
        fields = {"id": self._new_id(), "created_at": made_at, "message": text, "kind": f"{HEADER_PART}{name}"}
        post = Post(send_from="system", send_to=role, **fields)

        def make_records(now: Snapshot) -> Iterable[Record]:
            same = [one for one in now.header if (one.kind, one.send_to) == (post.kind, role)]
            return [] if same and same[-1].message == text else [HeaderAdded(post=post)]

        self._write(make_records, made_at, emit=True)

    @classmethod
    def from_messages(
        cls, conversation: Iterable[Mapping[str, Any]], session_id: str | None = None, **options: Any
    ) -> Memory:
        """Return a Memory that holds *conversation*, messages in OpenAI's format. Takes the options of ``Memory``.

        Raises ``MessageError`` with the place of the first item that is no chat message, and writes nothing.
        """
        posts = chat.parse_all(conversation)
        memory = cls(session_id, **options)
        memory._extend(posts)
        return memory

    def pin(self, post: Post | str) -> None:
        """Keep a post's words through every compaction. Give the post, or its reference, such as ``r12.p3``.

        ``r12.p0`` is the user's query; a post that only repeats the query stands for it. Raises ``UnknownReference`` if
        there is no such post.
        """
        self._pin(post, pinned=True)

    def unpin(self, post: Post | str) -> None:
        """Let compactions put a post in other words again. A post that is not pinned is no error."""
        self._pin(post, pinned=False)

    def pins(self) -> tuple[str, ...]:
        """Return the references of the pinned posts, in the order of the log."""
        return tuple(make_reference(one.round, one.number) for one in self.snapshot.pinned)

    def _pin(self, post: Post | str, *, pinned: bool) -> None:
        place, asked = self._find_post(post)

        def make_records(now: Snapshot) -> Iterable[Record]:
            round_, number = now.get_round_at(place), asked
            first = round_.post_list[0] if number == 1 else None
            if first is not None and chat.repeats_query(first, round_) and not first.attachment_list:
                number = 0  # prompts show the query in its place
            if ((round_.id, number) in now.pins) is not pinned:
                yield PostPinned(round_id=round_.id, number=number, pinned=pinned)
                for role in now.reductions if pinned else ():  # its words are shown again at once
                    live = now.list_reductions(role, round_.id)
                    yield from withdraw_reductions(role, (one for one in live if is_over(one, number, round_)))

        self._write(make_records, emit=True)

    def _find_post(self, post: Post | str) -> tuple[int, int]:
        """Return the numbers of a post's round and of the post. Looked up before the lock is taken."""
        require("post", post, Post | str, "the post that add_post() returned, or its reference, such as r12.p3")
        if self._behind:  # it may have been stored without a reply
            self.refresh()
        round_, number = redaction.find_post(self.snapshot.get_rounds(include_hidden=True), post)
        return round_.number, number

    def redact(self, post: Post | str) -> None:
        """Erase the words of a post, for privacy: in this Memory, in every entry of the log, and in all compactions and
        reductions that were made from them. Compactions in the making are discarded. Takes a post as ``pin`` does.

        Ids, senders and the names of tools stay. If a round's first post repeats the user's query, both are erased. The
        header cannot be erased alone: purge the session. Reads the post's round and all compactions, or the whole log
        of a store that cannot read parts of it. If the store fails, call it again; a resume completes it, too. A
        ``Redacted`` event tells hosts that keep texts elsewhere, in other processes when they read the log. Raises
        ``UnknownReference`` if there is no such post.
        """
        place, asked = self._find_post(post)
        before = self.snapshot  # what is shown instead is read before the lock is taken
        erased = redaction.create_redactions(before, place, asked)
        for record in erased.values():
            redaction.withdraw_redacted(before, record)
        references: tuple[str, ...] = ()

        def make_records(now: Snapshot) -> Iterable[Record]:
            nonlocal references, erased
            erased = redaction.create_redactions(now, place, asked)
            references = tuple(
                ref for number, record in erased.items() for ref in redaction.list_references(record, number)
            )
            for number, record in erased.items():
                if redaction.has_erased_text(now.get_round_at(number), record):
                    redaction.withdraw_redacted(now, record)  # raises if the compaction shown instead is unreadable
                    yield record

        self._write(make_records)
        try:
            self._erase(*erased)
        finally:
            self._announce(news=[(Redacted, references)])

    def redacted(self) -> tuple[str, ...]:
        """Return the references of all erased posts, in the order of erasing. For hosts that keep texts elsewhere and
        missed the events. Asks the store only if posts were erased. May raise ``StoreError``.
        """
        now = self.snapshot
        return redaction.read_erased_references(self._store, self.session_id, now.find_number) if now.redactions else ()

    def note_prompt(self, role: str, tokens: int) -> None:
        """Remember the length of *role*'s newest prompt by our own count. It is not logged. ``compose`` calls it."""
        self._prompts[role] = (tokens, self.snapshot.get_overlay_version(role))

    def record_usage(
        self, role: str, input_tokens: int, *, counted: int | None = None, cached_tokens: int | None = None
    ) -> None:
        """Record the provider's count of *role*'s newest prompt. It corrects our own count, upwards only.

        *counted* is our count of the same prompt, by default that of the newest composed prompt. If overlays were
        published since then, the length is forgotten at once, because the next prompt will differ. *cached_tokens* is
        the number of tokens that the provider found in its cache; None: not known. Raises ``MessageError`` for a number
        that is none or negative.
        """
        if any(isinstance(tokens, bool) for tokens in (input_tokens, counted, cached_tokens)):
            raise MessageError(
                "input_tokens, counted and cached_tokens are numbers of tokens, as the provider's usage has them"
            )
        composed, shown = self._prompts.get(role, (None, None))
        counted = composed if counted is None else counted
        usage = UsageRecorded(role=role, input_tokens=input_tokens, counted=counted, cached_tokens=cached_tokens)

        def make_records(now: Snapshot) -> Iterable[Record]:
            yield copy_with(usage, current=shown in (None, now.get_overlay_version(role)))

        self._write(make_records, emit=True)

    def usage(self, role: str) -> Usage:
        """Return *role*'s usage by its provider's count. It survives a resume."""
        return self.snapshot.usages.get(role) or Usage()

    @property
    def header(self) -> tuple[Post, ...]:
        """The system messages before the first user message, and the newest text of each named part.

        The messages without a name are the parts ``message 1``, ``message 2`` and so on.
        """
        parts: dict[tuple[str, str], Post] = {}  # a part keeps the place where it was set first
        unnamed = 0
        for post in self.snapshot.header:
            kind = post.kind if post.kind.startswith(HEADER_PART) else f"{HEADER_MESSAGE}{unnamed + 1}"
            if kind.startswith(HEADER_MESSAGE) and (kind, post.send_to) not in parts:
                unnamed += 1
            parts[kind, post.send_to] = post
        return tuple([post for post in parts.values() if post.message or not post.kind.startswith(HEADER_PART)])

    def get_role_rounds(
        self, role: str, include_failure_rounds: bool = False
    ) -> tuple[Rounds, CompactedMessage | None]:
        """Return the rounds as *role* sees them, and the compaction that covers their beginning.

        One consistent snapshot, in O(1): ``rounds[compaction.end_index:]`` is exactly the tail. The empty role sees
        everything.
        """
        require_role(role)
        while True:
            before = self.snapshot
            provider = self._providers.get(role)
            compaction: CompactedMessage | None = None
            try:  # first: a round that is added in between only lengthens the tail
                given: object = None if provider is None else provider.get_compaction()
                compaction = given if given is None or isinstance(given, CompactedMessage) else _read_compaction(given)
            except Exception as error:  # noqa: BLE001  (a broken provider must not break the chat)
                self._emit(ProviderFailed, role=role, error=describe_error(error))
                provider = None
            if provider is None:
                compaction = before.get_journal(role).current
            now = self.snapshot
            # Else again: it may tell of a round that is hidden by now, or reductions behind its end may be gone.
            if (
                now.hidden is before.hidden
                and now.redactions == before.redactions
                and now.publications.get(role) is before.publications.get(role)
            ):
                rounds = Rounds(now, role, include_hidden=include_failure_rounds)
                return rounds, rounds.anchor(compaction)

    def rounds_getter(self, role: str) -> RoundsGetter:
        """Return a callable that returns the rounds as *role* sees them, without those that failed or were undone."""
        require_role(role)
        return RoundsGetter(self, role)

    def messages(self, role: str = chat.ASSISTANT) -> list[dict[str, Any]]:
        """Return the conversation as *role* sees it, as chat messages: the header, then all rounds but hidden
        ones."""
        require_role(role)
        result = [chat.from_post(post, role) for post in self.header if sees(role, post)]
        for round_ in self.snapshot.get_rounds(role):
            result.extend(chat.from_round(round_, role))
        return result

    def reload(self, ref: str, *, role: str = "") -> str:
        """Return the original text behind a reference: ``r12`` a round, ``r3-r9`` several, ``r12.p3`` a post,
        ``r12.p3-p17`` several of a round's.

        With *role*, only posts that the role sees. Raises ``UnknownReference``, a ``KeyError``, if there are none.
        """
        require("ref", ref, str, "a text such as r12.p3")
        require_role(role)
        return reload_text(self.snapshot.get_rounds(role, include_hidden=True), ref, hide_failed=bool(role))

    @property
    def open_rounds(self) -> tuple[Round, ...]:
        """The rounds that take posts, in all processes. A compaction ends before the first of them."""
        return tuple(item.round for item in self.snapshot.open_rounds.values() if item.state == "created")

    def search(self, query: str, *, role: str = "", limit: int = 20) -> list[Hit]:
        """Return the places of words of *query* in posts that *role* sees: at most *limit*, the best match first.

        Rounds that failed or were undone are not searched. May raise ``StoreError``.
        """
        require("query", query, str, "a text: the words to look for")
        require_role(role)
        words = split_query(query)
        return find_hits(self._store, self.session_id, self.snapshot, words, role)[:limit] if words else []

    def index_texts(self, *, most_rounds: int | None = None) -> bool:
        """Add closed rounds to the store's search index, at most *most_rounds*; return whether it has all of them now.

        Call it when there is time to spare; a search does the rest."""
        if "searchable" not in self._store.capabilities:
            return True
        return sync_index(self._store, self.session_id, self.snapshot, most_rounds=most_rounds)

    def state_dict(self) -> dict[str, Any]:
        """Return all data of this Memory as plain JSON values, for ``from_state_dict``.

        Reads the whole log. May raise ``StoreError``.
        """
        from .transfer.state_dict import dump_memory

        return dump_memory(self)

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], session_id: str | None = None, *, store: Store | None = None, **options: Any
    ) -> Self:
        """Return a Memory that goes on from *state*, a value of ``state_dict``.

        *session_id* is the name of the session, by default the one in the state; the rest is as for ``Memory``. Raises
        ``StoreError`` if the store has that session already, or the state cannot be read, and writes nothing.
        """
        store = None if store is None else adapt_store(store)
        from .transfer.state_dict import load_memory

        return load_memory(cls, state, session_id, store=store, **options)

    def fork(self, at_round: int, session_id: str | None = None, *, store: Store | None = None) -> Self:
        """Return a Memory of a new session that holds this one up to round *at_round*, with the newest overlays that
        lie wholly before its end. The two share nothing afterwards.

        *session_id* is a new one of the same tenant by default, *store* the same. Raises ``UnknownRound`` if there is
        no such round, and ``StoreError`` if the store has the new session already.
        """
        from .transfer.fork import fork_session

        return fork_session(self, at_round, session_id, store)

    def on_round_added(self, callback: Callable[[int], object]) -> Callable[[], None]:
        """Call ``callback(total_rounds)`` once for each new round, in the writer's thread. Return a function that
        removes the callback.

        A round of another process is announced when it is read: by the next write, or by ``refresh()``.
        """
        return self._round_hooks.add(callback)

    def on_event(self, callback: EventHook) -> Callable[[], None]:
        """Call *callback* with each event of this Memory: a redaction, or a failed hook, provider or checkpoint.

        Returns a function that removes the callback."""
        return self._event_hooks.add(callback)

    def emit(self, event: Event) -> None:
        """Call the callbacks of ``on_event`` with *event*."""
        self._event_hooks(event)

    def provider(self, role: str) -> CompactionProvider | None:
        """Return the compaction provider of *role*; None if none is registered."""
        return self._providers.get(role)

    def register_compaction_provider(self, role: str, provider: CompactionProvider) -> Callable[[], None]:
        """Read *role*'s compaction from *provider*, and notify it of every change. Return a function that removes it.

        A role has one provider; a new one replaces the old. A ``ContextCompactor`` without a role takes this one, and
        publishes in this log. Raises ``ValueError`` for a compactor of another role, ``RuntimeError`` for one that
        would have to change and has started, ``TypeError`` for an object without a provider's methods.
        """
        require_role(role)
        wanted = "a ContextCompactor, or an object with its methods"
        require("provider", provider, ("get_compaction", "notify_rounds_changed"), wanted)
        if not takes(provider.notify_rounds_changed, 0):
            raise TypeError("provider.notify_rounds_changed takes the number of rounds: (self, total_rounds)")
        bind = getattr(provider, "bind", None)
        if callable(bind):
            bind(self, role)
        with self._lock:
            self._providers = {**self._providers, role: provider}

        def detach() -> None:
            with self._lock:
                if self._providers.get(role) is provider:
                    self._providers = {name: other for name, other in self._providers.items() if name != role}

        return detach

    def journal(self, role: str) -> RoleJournal:
        """Return the part of the log to which *role*'s compactions are published."""
        require_role(role)
        return RoleJournal(self, role, holder=self._holder)

    def _announce(self, rounds: Iterable[int] = (), news: Iterable[News] = ()) -> None:
        """Call hooks with *news* and with numbers of new *rounds*, and notify providers."""
        for kind, references in news:
            self._emit(kind, references=references)
        if not self._providers and not self._round_hooks.entries:
            return
        thread = threading.get_ident()
        waiting = self._announcing.get(thread)
        if waiting is not None:  # a hook of this thread is writing: announce that when the hook has returned
            waiting.append(rounds)
            return
        waiting = self._announcing[thread] = deque([rounds])
        try:
            while waiting:
                try:
                    for number in waiting.popleft():
                        if self._round_hooks.entries:
                            self._round_hooks(number)
                finally:
                    total, providers = self.snapshot.total, self._providers.items()
                    # One provider may serve several roles.
                    for role, provider in {id(provider): (role, provider) for role, provider in providers}.values():
                        try:
                            provider.notify_rounds_changed(total)
                        except Exception as error:  # noqa: BLE001
                            self._emit(ProviderFailed, role=role, error=describe_error(error))
        finally:
            del self._announcing[thread]

    def _report_checkpoint(self, error: str) -> None:
        self._emit(CheckpointFailed, error=error)

    def _emit(self, kind: type[Event], **facts: Any) -> None:
        self._event_hooks(kind(at=self._clock(), session=self.session_id, **facts))


def _find_round(now: Snapshot, round_id: str) -> Round:
    round_ = now.find_round(round_id)
    if round_ is None:
        raise UnknownRound(f"no round {round_id!r} in this session; use one that create_round() returned")
    return round_


def _read_compaction(given: object) -> CompactedMessage:
    """Return an object that has the three fields of a compaction as one. Raises ``MessageError`` if it lacks any."""
    start, end, summary = (getattr(given, name, None) for name in ("start_index", "end_index", "summary"))
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(summary, str)):
        raise MessageError(
            "get_compaction() must return None or an object with start_index, end_index and summary: two whole numbers"
            f" and a text; not {name_kind(given)}"
        )
    return CompactedMessage(start, end, summary)
