"""What is shown of a log: its messages, and texts that stand for some of them. The log itself never changes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from memory import Memory
from memory.entries import EventRecorded, PostRedacted, ShownRecorded, StandIn, items_in, runs_of
from memory.errors import MessageError
from memory.events import Event
from memory.hooks import renewed_after_fork
from memory.log.state import Snapshot
from memory.messages import ASSISTANT, TOOL, from_post, paired, parse, query_message, repeats_query
from memory.references import posts_reference, range_reference
from memory.rounds import FrozenMapping, Record, dumped, freeze_mapping, new_id, thaw

from ...prompt.groups import Message


class NotAMessage(MessageError, TypeError):
    """What was handed over is no chat message; nothing was stored."""


@dataclass(frozen=True, slots=True, order=True)
class Said:
    """A message of the log: its place there."""

    #: Number of its round; 0 for the header.
    round: int
    #: Number of its post in the round, 0 for the user's query; or its place in the header.
    post: int


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A message that is not in the log."""

    message: FrozenMapping
    #: What it stands for, oldest first, some of which may stand for others. Empty where the host put it there.
    sources: tuple[Item, ...] = ()
    #: What it may tell of as well, for who made it read that; it was shown by itself.
    beside: tuple[Item, ...] = ()
    id: str = field(default_factory=new_id)


Item = Said | Made


def originals(items: Iterable[Item]) -> Iterator[Item]:
    """Give what *items* stand for: messages of the log, and those that a host put there."""
    todo = [iter(items)]
    while todo:  # no recursion: what was compressed a thousand times is a thousand deep
        item = next(todo[-1], None)
        if item is None:
            todo.pop()
        elif isinstance(item, Made) and item.sources:
            todo.append(iter(item.sources))
        else:
            yield item


def beside(item: Item) -> Iterator[Said]:
    """Give the places in the log of what *item* may tell of and does not stand for, each once."""
    found = dict.fromkeys(places_of([item]))
    todo = [item]
    while todo:
        one = todo.pop()
        if isinstance(one, Made):
            todo += one.sources + one.beside
        elif one not in found:
            found[one] = None
            yield one


def places_of(items: Iterable[Item]) -> Iterator[Said]:
    """Give the places in the log that *items* are, or stand for."""
    yield from (item for item in originals(items) if isinstance(item, Said))


@dataclass(frozen=True, slots=True)
class Shown:
    """One message as it is shown."""

    item: Item
    message: Message
    #: Whether it keeps its words through every compression.
    pinned: bool = False

    @property
    def is_header(self) -> bool:
        return isinstance(self.item, Said) and self.item.round == 0

    @property
    def compressed(self) -> bool:
        """Whether it stands for others."""
        return isinstance(self.item, Made) and bool(self.item.sources)


class Log:
    """The messages of a Memory at one moment, by place."""

    def __init__(self, memory: Memory) -> None:
        self.snapshot = snapshot = memory.snapshot
        self._header = snapshot.header
        self.rounds = snapshot.rounds(ASSISTANT, include_failed=True)
        self._read: dict[int, dict[int, Message]] = {}

    def message(self, item: Said) -> Message | None:
        """Return a message as it reads now; None where its round has failed."""
        if item.round not in self._read:
            self._read[item.round] = dict(self.messages_of(item.round))
        return self._read[item.round].get(item.post)

    def read(self, item: Item) -> Message | None:
        """Return the message of an item; None where its round has failed."""
        return self.message(item) if isinstance(item, Said) else thaw(item.message)

    def is_pinned(self, item: Item) -> bool:
        if isinstance(item, Made) or item.round == 0:
            return False
        return (self.rounds[item.round - 1].id, item.post) in self.rounds.pins

    def messages_of(self, number: int) -> Iterator[tuple[int, Message]]:
        """Give the messages of a round that has not failed, each with its post's number; of the header for 0."""
        if number == 0:
            yield from ((place, from_post(post)) for place, post in enumerate(self._header, 1))
            return
        round_ = self.rounds[number - 1] if number <= len(self.rounds) else None
        if round_ is None or round_.state == "failed":
            return
        asked = query_message(round_)
        if asked is not None:
            yield 0, asked
        for place, post in enumerate(round_.post_list):
            if not (place == 0 and asked is not None and repeats_query(post, round_)):
                yield post.number, from_post(post)

    def places(self, first: int = 0) -> Iterator[Said]:
        """Give all places, of the header and of the rounds from *first* on, in their order."""
        for number in (0, *range(max(first, 1), len(self.rounds) + 1)):
            yield from (Said(number, post) for post, _ in self.messages_of(number))


def to_messages(given: object) -> list[Message]:
    """Return what was *given*, one message or several, as copies. Raises ``NotAMessage``, a ``TypeError``."""
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    checked = []
    for place, message in enumerate(given if several else (given,), 1):  # type: ignore[arg-type, var-annotated]
        try:
            parse(message)
            checked.append(thaw(freeze_mapping(message)))
        except MessageError as error:
            raise NotAMessage(f"message {place}: {error}; nothing was stored") from error
    return checked


def with_orphan_told(messages: Sequence[Message]) -> list[Message]:
    """Return *messages*, a result that answers no call among them as a message that says what it is."""
    posts = [parse(message).post for message in messages]
    answers = {place for results in paired(posts, ASSISTANT).values() for place in results.values()}
    return [
        {"role": "user", "content": f"[Late result of a tool call]\n{posts[place].message}"}
        if message["role"] == TOOL and place not in answers
        else message
        for place, message in enumerate(messages)
    ]


def references(places: Iterable[Said], log: Log) -> tuple[str, ...]:
    """Return references for all from the first to the last of *places*: whole rounds in one, a part of a round each."""
    found = sorted(place for place in places if place.round)
    refs: dict[str, str] = {}
    whole: list[int] = []
    for number in range(found[0].round, found[-1].round + 1) if found else ():
        posts = [post for post, _ in log.messages_of(number)]
        inside = [post for post in posts if found[0] <= Said(number, post) <= found[-1]]
        if inside == posts:
            whole.append(number)
            refs["whole"] = range_reference(whole[0], number)
        else:
            refs[str(number)] = posts_reference(log.rounds[number - 1], inside[0], inside[-1])
    return tuple(refs.values())


class Window:
    """What is shown now. It takes what is new in the log whenever it is asked, and leaves out what has failed."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._items: tuple[Item, ...] = ()
        self._settled = 0  # rounds of the log that are closed and taken
        self._taken: dict[int, int] = {}  # the last post that was taken: of the header, and by round after those
        self._cleared = Said(0, 0)  # the last message when it was cleared last
        #: What only the host put there, oldest first, whatever became of it.
        self.direct: tuple[Made, ...] = ()
        #: What was tried to be made shorter, in vain.
        self.in_vain: tuple[Item, ...] = ()
        self._seen = memory.snapshot  # when it was looked at last: what was erased or failed since is not told of
        self._journal = memory.journal(ASSISTANT)
        self._changes = 0  # beside messages that were added
        self._written: set[str] = set()  # ids of what the log has
        self._direct_written: tuple[Made, ...] = ()
        self._resume()
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        #: Guards what is shown. Whoever does several things that belong together holds it; nobody who waits or appends.
        self.lock = threading.RLock()

    def log(self) -> Log:
        return Log(self._memory)

    def history(self, log: Log) -> list[Said]:
        """Return all messages of the log since it was cleared last, shown or not."""
        return [item for item in log.places() if item > self._cleared]

    def now(self, log: Log | None = None) -> list[Shown]:
        """Return what is shown; a result whose call is not shown any more as a message that says what it is.

        Of the *log* as it was read under the lock, for who goes on with it; None: as it is now.
        """
        with self.lock:
            log = self.log() if log is None else log
            self._let_go(log.snapshot)
            new = [item for item in log.places(self._settled + 1) if item.post > self._taken.get(item.round, -1)]
            read = [(item, log.read(item)) for item in (*self._items, *new)]
            self.show((item for item, message in read if message is not None), log)
            messages = with_orphan_told([message for _, message in read if message is not None])
            pairs = zip(self._items, messages, strict=True)
            return [Shown(item, message, log.is_pinned(item)) for item, message in pairs]

    @property
    def redactions(self) -> int:
        """Erasures in the log when it was read last: a text that was read before one may hold what is erased."""
        return self._seen.redactions

    def _let_go(self, now: Snapshot) -> None:
        """Show what texts were made from in the place of those that tell of what was erased or failed by *now*."""
        erased, failed = _erased_since(self._seen, now), frozenset(now.failed).difference(self._seen.failed)
        self._seen = now
        if erased or failed:
            self._items = tuple(left for item in self._items for left in _unless_gone(item, erased, failed))
            # Never shown again, but what of it is not in the log yet would be written there.
            self.in_vain = tuple(left for item in self.in_vain for left in _unless_gone(item, erased, failed))

    def show(self, items: Iterable[Item], log: Log) -> None:
        """Show *items* instead of all that is shown of *log*; what is appended after that comes behind them."""
        with self.lock:
            self._items = tuple(items)
            self._settled = log.rounds.settled
            self._taken = {item.round: item.post for item in log.places(self._settled + 1)}

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Write to the log what the block has changed. Where that fails everything is as it was: who tries again
        counts as before."""
        with self.lock:
            before = self._items, self._settled, self._taken, self._cleared, self.direct, self._seen, self.in_vain
            self._changes = mark = self._changes + 1
        try:
            yield
            self.keep()
        except BaseException:
            with self.lock:
                if self._changes == mark:  # else somebody went on from it
                    self._items, self._settled, self._taken, self._cleared, self.direct, self._seen, self.in_vain = (
                        before
                    )
            raise

    def clear(self) -> None:
        """Show nothing, and let history begin anew."""
        with self.lock:
            log = self.log()
            self.show((), log)
            self._cleared = max(log.places(), default=self._cleared)

    def replace(self, old: Sequence[Item], new: Sequence[Item], redactions: int) -> bool:
        """Show *new* for *old*, and return whether that was possible.

        It is not where *old* is not shown any more, or something was erased since there were so many *redactions*.
        """
        with self.lock:
            self.now()
            start = self._items.index(old[0]) if old[0] in self._items else len(self._items)
            end = start + len(old)
            if self._items[start:end] != tuple(old) or self.redactions != redactions:
                return False
            self._items = (*self._items[:start], *new, *self._items[end:])
            self._changes += 1
            return True

    # -- in the log ----------------------------------------------------------------------------------------------------

    def keep(self, event: Event | None = None) -> None:
        """Write to the log what is shown now, and beside it the *event*. Raises ``StoreError``: then what is shown is
        as it is, and written with the next change."""
        written: list[Made] = []
        direct: tuple[Made, ...] = ()

        def records(now: Snapshot) -> Iterator[Record]:
            nonlocal direct
            with self.lock:  # nobody who holds it waits for the log
                if now.redactions != self.redactions:  # or a text would be written after what it says was erased
                    self.now()
                written[:] = self._unwritten((*self._items, *self.in_vain, *self.direct))
                direct = self.direct
                yield self._record(written)
            if event is not None:
                facts = dumped(partial(event.model_dump, mode="json"))
                yield EventRecorded(role=ASSISTANT, name=event.name, facts=facts)

        self._journal.keep(records)
        with self.lock:
            self._written.update(made.id for made in written)
            self._direct_written = direct

    def _unwritten(self, items: Iterable[Item]) -> list[Made]:
        """Return what the log does not have yet of *items*, each behind what it stands for."""
        found: dict[str, Made] = {}
        for item in items:
            if isinstance(item, Made) and item.id not in self._written and item.id not in found:
                found |= {
                    made.id: made for made in self._unwritten((*item.sources, *item.beside)) if made.id not in found
                }
                found[item.id] = item
        return list(found.values())

    def _record(self, unwritten: Iterable[Made]) -> ShownRecorded:
        kept = 0
        for before, now in zip(self._direct_written, self.direct, strict=False):
            if before is not now:
                break
            kept += 1
        return ShownRecorded(
            role=ASSISTANT,
            made=tuple(
                StandIn(id=one.id, message=one.message, sources=_runs(one.sources), beside=_runs(one.beside))
                for one in unwritten
            ),
            shown=_runs(self._items),
            direct=tuple(made.id for made in self.direct[kept:]),
            direct_before=kept,
            in_vain=_runs(self.in_vain),
            settled=self._settled,
            taken=tuple(self._taken.items()),
            cleared=(self._cleared.round, self._cleared.post),
        )

    def _resume(self) -> None:
        """Show what was shown when the log was written to last, as far as it may still be read."""
        made: dict[str, Made] = {}
        entries, newest = enumerate(self._journal.shown()), None
        numbers, failed = self._seen.numbers, frozenset(self._seen.failed)
        made_at: dict[str, int] = {}
        erased: list[tuple[int, Said]] = []
        for place, record in entries:
            if isinstance(record, PostRedacted):
                number = numbers.get(record.round_id, 0)
                erased += [(place, Said(number, post)) for post in record.numbers]
                continue
            newest = record
            for one in record.made:
                sources, beside = (tuple(_items(runs, made)) for runs in (one.sources, one.beside))
                made[one.id] = Made(freeze_mapping(one.message), sources, beside, one.id)
                made_at[one.id] = place
            before = self.direct[: record.direct_before]
            self.direct = (*before, *(made[id_] for id_ in record.direct if id_ in made))
        self._written, self._direct_written = set(made), self.direct
        if newest is None:
            return
        self._items = tuple(
            left
            for item in _items(newest.shown, made)
            for left in _unless_gone(item, {place for at, place in erased if at > made_at.get(_id(item), at)}, failed)
        )
        self.in_vain = tuple(_items(newest.in_vain, made))
        self._settled, self._taken, self._cleared = newest.settled, dict(newest.taken), Said(*newest.cleared)


def _id(item: Item) -> str:
    return item.id if isinstance(item, Made) else ""


def _runs(items: Iterable[Item]) -> tuple[str, ...]:
    return runs_of(item.id if isinstance(item, Made) else (item.round, item.post) for item in items)


def _items(runs: Iterable[str], made: Mapping[str, Made]) -> Iterator[Item]:
    for item in items_in(runs):
        if not isinstance(item, str):
            yield Said(*item)
        elif item in made:
            yield made[item]


def _unless_gone(item: Item, erased: Set[Said], failed: Set[int]) -> tuple[Item, ...]:
    """Return *item*; what it was made from where something of that was *erased* since, or is in a *failed* round."""
    if not _tells_of(item, erased, failed):
        return (item,)
    assert isinstance(item, Made)  # noqa: S101  (what was said tells of itself alone)
    return tuple(left for left in originals(item.sources) if not _tells_of(left, erased, failed))


def _tells_of(item: Item, erased: Set[Said], failed: Set[int]) -> bool:
    """Return whether *item* is a text that was made by who had read something of that."""
    todo = [item] if isinstance(item, Made) else []
    while todo:
        for one in (found := todo.pop()).sources + found.beside:
            if isinstance(one, Made):
                todo.append(one)
            elif one in erased or one.round in failed:
                return True
    return False


def _erased_since(before: Snapshot, now: Snapshot) -> frozenset[Said]:
    """Return the places of what was erased between two moments of one Memory, in failed rounds as well."""
    return frozenset(
        Said(now.numbers[round_id], post)
        for round_id, posts in now.erased.items()
        for post in posts[len(before.erased.get(round_id, ())) :]
    )
