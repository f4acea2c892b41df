"""The messages that a ``MemoryWithCompress`` shows: those of the log, and texts in the place of some. The log never
changes.

Four parts: items, the log as messages, the window itself, and a window as a state dict.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from memory import Memory
from memory.entries import EventRecorded, PostRedacted, ShownRecorded, StandIn, items_in, runs_of
from memory.errors import ContextError, MessageError
from memory.events import Event
from memory.hooks import renew_after_fork
from memory.log.state import Snapshot
from memory.messages import ASSISTANT, FUNCTION, TOOL, from_post, pair_results, parse, query_message, repeats_query
from memory.references import posts_reference, range_reference
from memory.rounds import FrozenMapping, Post, Record, freeze_mapping, new_id, run_dump, thaw

from ...prompt.groups import Message

_SYSTEM = ("system", "developer")


class NotAMessage(MessageError, TypeError):
    """A value is not a chat message; nothing was stored."""


class StateError(ContextError, KeyError, ValueError):
    """A state cannot be loaded; nothing changed."""

    __str__ = Exception.__str__  # KeyError's would put the sentence in quotation marks


def parse_messages(given: object) -> list[Message]:
    """Return copies of one message or several. Raises ``NotAMessage``, a ``TypeError``."""
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    messages = []
    for place, message in enumerate(given if several else (given,), 1):  # type: ignore[arg-type, var-annotated]
        try:
            parse(message)
            messages.append(thaw(freeze_mapping(message)))
        except MessageError as error:
            raise NotAMessage(f"message {place}: {error}; nothing was stored") from error
    return messages


# --- items: a message of the log by its location, or a synthetic message ---------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """Where a message stands in the log."""

    #: Number of its round; 0: the header.
    round: int
    #: Number of its post in the round, 0: the user's query. In the header: its place.
    post: int


@dataclass(frozen=True, slots=True, eq=False)
class Synthetic:
    """A message that is not in the log: a compressed text, or one that the host put into the window."""

    message: FrozenMapping
    #: The items that it replaces, oldest first. Empty: the host put it there.
    sources: tuple[Item, ...] = ()
    #: Items that its author read as well; they stay in the window.
    beside: tuple[Item, ...] = ()
    id: str = field(default_factory=new_id)


Item = Location | Synthetic


def find_originals(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the messages that *items* replace, down to those of the log and of the host."""
    todo = [iter(items)]
    while todo:  # no recursion: a text may be compressed a thousand times
        item = next(todo[-1], None)
        if item is None:
            todo.pop()
        elif isinstance(item, Synthetic) and item.sources:
            todo.append(iter(item.sources))
        else:
            yield item


def find_locations(items: Iterable[Item]) -> Iterator[Location]:
    """Yield where in the log *items*, or the messages that they replace, stand."""
    yield from (item for item in find_originals(items) if isinstance(item, Location))


def _is_stale(item: Item, erased: Set[Location], failed: Set[int]) -> bool:
    """Return whether the author of *item* read an *erased* message or one of a *failed* round."""
    todo = [item] if isinstance(item, Synthetic) else []
    while todo:
        text = todo.pop()
        for source in text.sources + text.beside:
            if isinstance(source, Synthetic):
                todo.append(source)
            elif source in erased or source.round in failed:
                return True
    return False


def _replace_stale(items: Iterable[Item], erased: Set[Location], failed: Set[int]) -> tuple[Item, ...]:
    """Return *items*; a text whose author read an erased or failed message gives way to the originals."""
    kept: list[Item] = []
    for item in items:
        if isinstance(item, Synthetic) and _is_stale(item, erased, failed):
            kept += (one for one in find_originals(item.sources) if not _is_stale(one, erased, failed))
        else:
            kept.append(item)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class WindowMessage:
    """One message of the window."""

    item: Item
    message: Message
    #: No compression may change its words.
    pinned: bool = False

    @property
    def is_header(self) -> bool:
        return isinstance(self.item, Location) and self.item.round == 0

    @property
    def is_compressed(self) -> bool:
        return isinstance(self.item, Synthetic) and bool(self.item.sources)


# --- which messages belong together, and which may be compressed ------------------------------------------------------


def group_posts(posts: Sequence[Post]) -> list[set[int]]:
    """Return, for each post, the places of its group: a call and its results.

    A result in OpenAI's older function form has no id: it belongs to the agent's message right before it.
    """
    groups = [{place} for place in range(len(posts))]
    pairs = [(call, result) for call, results in pair_results(posts, ASSISTANT).items() for result in results.values()]
    spoken = [place for place, post in enumerate(posts) if post.send_from not in _SYSTEM]
    for earlier, place in pairwise(spoken):
        if posts[place].send_from == FUNCTION and posts[earlier].send_from == ASSISTANT:
            pairs.append((earlier, place))
    for one, other in pairs:
        groups[one] |= groups[other]
        for place in groups[one]:
            groups[place] = groups[one]
    return groups


def group_messages(messages: Sequence[Message]) -> list[set[int]]:
    """Return the same for messages."""
    return group_posts([parse(message).post for message in messages])


def is_torn(message: Message, group: set[int]) -> bool:
    """Return whether *message* is a result without its call, or has a call without its result."""
    return (message["role"] == TOOL and len(group) == 1) or awaits_result(message, group)


def awaits_result(message: Message, group: set[int]) -> bool:
    """Return whether *message* has a call without its result."""
    return _count_calls(message) >= len(group)  # the group has the message itself, too


def _count_calls(message: Message) -> int:
    if message["role"] != ASSISTANT:
        return 0
    return len(message.get("tool_calls") or ()) or int(bool(message.get("function_call")))


def find_compressible(shown: Sequence[WindowMessage]) -> list[tuple[int, int]]:
    """Return the spans that may be compressed, oldest first, as slices. No span separates a call from its results.

    None has the header, a pinned message, an unanswered question, a result that no model has read, or a call that waits
    for results.
    """
    messages = [one.message for one in shown]
    groups = group_messages(messages)
    opened = find_end_of_answered(shown)
    read = max((place for place, message in enumerate(messages) if message["role"] == ASSISTANT), default=-1)
    stays = [one.is_header or one.pinned for one in shown]
    for place in range(opened, len(shown)):
        asked = messages[place]["role"] == "user" and not shown[place].is_compressed
        stays[place] |= asked or place > read or awaits_result(messages[place], groups[place])

    def is_split(group: set[int]) -> bool:
        return any(stays[min(group) : max(group) + 1]) and not all(stays[place] for place in group)

    while split := [group for group in groups if is_split(group)]:
        for place in set().union(*split):
            stays[place] = True
    bounds = [True, *stays, True]
    edges = [place for place in range(len(shown) + 1) if bounds[place] != bounds[place + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def find_end_of_answered(shown: Sequence[WindowMessage]) -> int:
    """Return the place behind the newest answer that ends a turn.

    An answer ends a turn if it has no calls, and nothing or a user message follows it.
    """
    following = "user"
    for place in range(len(shown) - 1, -1, -1):
        role = shown[place].message["role"]
        if following == "user" and role == ASSISTANT and not _count_calls(shown[place].message):
            return place + 1
        following = following if role in _SYSTEM else role
    return 0


def _label_orphans(messages: Sequence[Message]) -> list[Message]:
    """Return *messages*; a result without its call becomes a user message that says so, as providers refuse it."""
    posts = [parse(message).post for message in messages]
    answers = {place for results in pair_results(posts, ASSISTANT).values() for place in results.values()}
    return [
        {"role": "user", "content": f"[Late result of a tool call]\n{posts[place].message}"}
        if message["role"] == TOOL and place not in answers
        else message
        for place, message in enumerate(messages)
    ]


# --- the log as messages ----------------------------------------------------------------------------------------------


class LogReader:
    """The messages of a Memory at one moment, by location."""

    def __init__(self, memory: Memory) -> None:
        self.snapshot = memory.snapshot
        self.rounds = self.snapshot.rounds(ASSISTANT, include_failed=True)
        self._cache: dict[int, dict[int, Message]] = {}

    def read(self, item: Item) -> Message | None:
        """Return a message as it reads now; None if its round has failed."""
        if isinstance(item, Synthetic):
            message: Message = thaw(item.message)
            return message
        if item.round not in self._cache:
            self._cache[item.round] = dict(self.read_round(item.round))
        return self._cache[item.round].get(item.post)

    def read_round(self, number: int) -> Iterator[tuple[int, Message]]:
        """Yield the messages of a round with their posts' numbers, none if it has failed; 0: of the header."""
        if number == 0:
            yield from ((place, from_post(post)) for place, post in enumerate(self.snapshot.header, 1))
            return
        round_ = self.rounds[number - 1] if number <= len(self.rounds) else None
        if round_ is None or round_.state == "failed":
            return
        query = query_message(round_)
        if query is not None:
            yield 0, query
        for place, post in enumerate(round_.post_list):
            if not (place == 0 and query is not None and repeats_query(post, round_)):
                yield post.number, from_post(post)

    def find_all(self, first: int = 0) -> Iterator[Location]:
        """Yield all locations, in order: of the header, and of the rounds from *first* on."""
        for number in (0, *range(max(first, 1), len(self.rounds) + 1)):
            yield from (Location(number, post) for post, _ in self.read_round(number))

    def is_pinned(self, item: Item) -> bool:
        if isinstance(item, Synthetic) or item.round == 0:
            return False
        return (self.rounds[item.round - 1].id, item.post) in self.rounds.pins

    def make_references(self, items: Iterable[Item]) -> tuple[str, ...]:
        """Return references for the log from the first to the last of *items*: one for all complete rounds, and one for
        each partial round."""
        locations = sorted(location for location in find_locations(items) if location.round)
        references: dict[str, str] = {}
        complete: list[int] = []
        for number in range(locations[0].round, locations[-1].round + 1) if locations else ():
            posts = [post for post, _ in self.read_round(number)]
            inside = [post for post in posts if locations[0] <= Location(number, post) <= locations[-1]]
            if inside == posts:
                complete.append(number)
                references["complete"] = range_reference(complete[0], number)
            else:
                references[str(number)] = posts_reference(self.rounds[number - 1], inside[0], inside[-1])
        return tuple(references.values())


# --- the window -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WindowState:
    """A window at one moment."""

    #: The log when it was read last; erasures and failures since then are not yet applied.
    snapshot: Snapshot
    items: tuple[Item, ...] = ()
    #: How many closed rounds of the log were taken in full.
    settled: int = 0
    #: The last post that was taken, by round; of the header, and of the rounds after those.
    taken: Mapping[int, int] = field(default_factory=dict)
    #: The last message at the time of the last ``clear``.
    cleared: Location = Location(0, 0)
    #: All messages that the host put into the window, oldest first, shown or not.
    direct: tuple[Synthetic, ...] = ()
    #: The items of the last compression that saved nothing.
    in_vain: tuple[Item, ...] = ()


class Window:
    """The messages shown now. Each reading adds the log's new messages and removes those of failed rounds."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._journal = memory.journal(ASSISTANT)
        self._changes = 0  # all but the adding of new messages
        self._written: set[str] = set()  # ids of the synthetic messages in the log
        self._direct_written: tuple[Synthetic, ...] = ()
        self.state = self._resume(WindowState(memory.snapshot))
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        #: Guards ``state``. A caller may hold it over several steps, but must not append or wait meanwhile.
        self.lock = threading.RLock()

    def read_log(self) -> LogReader:
        return LogReader(self._memory)

    def list_history(self, log: LogReader) -> list[Location]:
        """Return all messages of the log since the last ``clear``, shown or not."""
        return [item for item in log.find_all() if item > self.state.cleared]

    def read(self, log: LogReader | None = None) -> list[WindowMessage]:
        """Return what is shown. *log*: one that was read under the lock; None: as the log is now."""
        with self.lock:
            log = self.read_log() if log is None else log
            self._apply_erasures(log.snapshot)
            state = self.state
            new = [item for item in log.find_all(state.settled + 1) if item.post > state.taken.get(item.round, -1)]
            found = [(item, message) for item in (*state.items, *new) if (message := log.read(item)) is not None]
            self.show((item for item, _ in found), log)
            messages = _label_orphans([message for _, message in found])
            shown = zip(self.state.items, messages, strict=True)
            return [WindowMessage(item, message, log.is_pinned(item)) for item, message in shown]

    @property
    def redactions(self) -> int:
        """Number of redactions when the log was read last."""
        return self.state.snapshot.redactions

    def _apply_erasures(self, now: Snapshot) -> None:
        """Show the originals instead of texts whose authors read what was erased or failed by *now*."""
        state, before = self.state, self.state.snapshot
        failed = frozenset(now.failed).difference(before.failed)
        erased = frozenset(
            Location(now.numbers[round_id], post)
            for round_id, posts in now.erased.items()
            for post in posts[len(before.erased.get(round_id, ())) :]
        )
        if erased or failed:
            # What was compressed in vain is never shown again, but it may still have to be written to the log.
            items, in_vain = (_replace_stale(one, erased, failed) for one in (state.items, state.in_vain))
            state = replace(state, items=items, in_vain=in_vain)
        self.state = replace(state, snapshot=now)

    def show(self, items: Iterable[Item], log: LogReader, direct: Iterable[Synthetic] | None = None) -> None:
        """Show *items* instead of all that is shown of *log*; messages appended later follow them.

        *direct* is the new list of the host's messages; None: it stays.
        """
        with self.lock:
            settled = log.rounds.settled
            taken = {item.round: item.post for item in log.find_all(settled + 1)}
            direct = self.state.direct if direct is None else tuple(direct)
            self.state = replace(self.state, items=tuple(items), settled=settled, taken=taken, direct=direct)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write the block's changes to the log; if the block or the store fails, take them back."""
        with self.lock:
            before = self.state
            self._changes = mark = self._changes + 1
        try:
            yield
            self.write()
        except BaseException:
            with self.lock:
                if self._changes == mark:  # else another change builds on this one
                    self.state = before
            raise

    def clear(self) -> None:
        """Show nothing, and let history begin anew."""
        with self.lock:
            log = self.read_log()
            self.show((), log)
            self.state = replace(self.state, cleared=max(log.find_all(), default=self.state.cleared))

    def substitute(self, old: Sequence[Item], new: Sequence[Item], redactions: int) -> bool:
        """Show *new* for *old*. Return False if *old* is no longer shown, or the log had a redaction after the first
        *redactions*."""
        with self.lock:
            self.read()
            items = self.state.items
            start = items.index(old[0]) if old[0] in items else len(items)
            end = start + len(old)
            if items[start:end] != tuple(old) or self.redactions != redactions:
                return False
            self.state = replace(self.state, items=(*items[:start], *new, *items[end:]))
            self._changes += 1
            return True

    def note_in_vain(self, items: tuple[Item, ...]) -> None:
        """Remember that a compression of *items* saved nothing."""
        with self.lock:
            self.state = replace(self.state, in_vain=items)

    # -- in the log ----------------------------------------------------------------------------------------------------

    def write(self, event: Event | None = None) -> None:
        """Write the window to the log, with *event*. Raises ``StoreError``; the next change then writes both."""
        new: list[Synthetic] = []
        direct: tuple[Synthetic, ...] = ()

        def make_records(now: Snapshot) -> Iterator[Record]:
            nonlocal direct
            with self.lock:  # its holders never wait for the log
                if now.redactions != self.redactions:  # else an erased text would be written anew
                    self.read()
                state = self.state
                new[:] = self._find_unwritten((*state.items, *state.in_vain, *state.direct))
                direct = state.direct
                yield self._make_record(state, new)
            if event is not None:
                facts = run_dump(partial(event.model_dump, mode="json"))
                yield EventRecorded(role=ASSISTANT, name=event.name, facts=facts)

        self._journal.keep(make_records)
        with self.lock:
            self._written.update(one.id for one in new)
            self._direct_written = direct

    def _find_unwritten(self, items: Iterable[Item]) -> list[Synthetic]:
        """Return the synthetic messages of *items* that the log lacks, each behind its sources."""
        found: dict[str, Synthetic] = {}
        for item in items:
            if isinstance(item, Synthetic) and item.id not in self._written and item.id not in found:
                for source in (*self._find_unwritten((*item.sources, *item.beside)), item):
                    found.setdefault(source.id, source)
        return list(found.values())

    def _make_record(self, state: WindowState, new: Iterable[Synthetic]) -> ShownRecorded:
        same = 0
        for before, now in zip(self._direct_written, state.direct, strict=False):
            if before is not now:
                break
            same += 1
        return ShownRecorded(
            role=ASSISTANT,
            made=tuple(
                StandIn(id=one.id, message=one.message, sources=_encode(one.sources), beside=_encode(one.beside))
                for one in new
            ),
            shown=_encode(state.items),
            direct=tuple(one.id for one in state.direct[same:]),
            direct_before=same,
            in_vain=_encode(state.in_vain),
            settled=state.settled,
            taken=tuple(state.taken.items()),
            cleared=(state.cleared.round, state.cleared.post),
        )

    def _resume(self, state: WindowState) -> WindowState:
        """Return the state that was written last, without what has been erased or failed since."""
        known: dict[str, Synthetic] = {}
        made_at: dict[str, int] = {}
        erased: list[tuple[int, Location]] = []
        direct: tuple[Synthetic, ...] = ()
        newest = None
        for place, record in enumerate(self._journal.shown()):
            if isinstance(record, PostRedacted):
                number = state.snapshot.numbers.get(record.round_id, 0)
                erased += [(place, Location(number, post)) for post in record.numbers]
                continue
            newest = record
            for one in record.made:
                sources, beside = (_decode(runs, known) for runs in (one.sources, one.beside))
                known[one.id] = Synthetic(freeze_mapping(one.message), sources, beside, one.id)
                made_at[one.id] = place
            direct = direct[: record.direct_before] + tuple(known[id_] for id_ in record.direct if id_ in known)
        self._written, self._direct_written = set(known), direct
        if newest is None:
            return state
        failed = frozenset(state.snapshot.failed)
        items: list[Item] = []
        for item in _decode(newest.shown, known):
            made = made_at[item.id] if isinstance(item, Synthetic) else -1
            items += _replace_stale([item], {location for at, location in erased if at > made}, failed)
        return replace(
            state,
            items=tuple(items),
            settled=newest.settled,
            taken=dict(newest.taken),
            cleared=Location(*newest.cleared),
            direct=direct,
            in_vain=_decode(newest.in_vain, known),
        )


def _encode(items: Iterable[Item]) -> tuple[str, ...]:
    return runs_of(item.id if isinstance(item, Synthetic) else (item.round, item.post) for item in items)


def _decode(runs: Iterable[str], known: Mapping[str, Synthetic]) -> tuple[Item, ...]:
    items: list[Item] = []
    for one in items_in(runs):
        if not isinstance(one, str):
            items.append(Location(*one))
        elif one in known:
            items.append(known[one])
    return tuple(items)


# --- a window as a state dict, and back -------------------------------------------------------------------------------


_REQUIRED = ("max_token", "chat_history_storage", "memory_storage")
_KNOWN = (*_REQUIRED, "sources", "beside", "direct_updates")
_UNFIT = "the state's sources do not fit its storages; load it as state_dict() returned it, or without its sources"


def dump_window(window: Window) -> dict[str, Any]:
    """Return the window as plain JSON values."""
    with window.lock:
        log = window.read_log()
        shown = window.read(log)
        history = window.list_history(log)
    numbers: dict[Item, int] = {item: number for number, item in enumerate(history)}

    def number_sources(item: Item) -> int | list[Any]:
        if item in numbers:
            return numbers[item]
        if not isinstance(item, Synthetic) or not item.sources:
            return []
        # Not a text that stood beside messages it tells of: these are in the history, and may be erased.
        originals = (one for one in find_originals([item]) if isinstance(one, Location) or not one.beside)
        return [numbers.get(one, log.read(one)) for one in originals]

    return {
        "chat_history_storage": [log.read(item) for item in history],
        "memory_storage": [log.read(one.item) for one in shown],
        "sources": [number_sources(one.item) for one in shown],
        "beside": [sorted(numbers[one] for one in _find_beside(one.item) if one in numbers) for one in shown],
        "direct_updates": [thaw(one.message) for one in window.state.direct],
    }


def _find_beside(item: Item) -> set[Location]:
    """Return the messages that the authors of *item* read and did not replace."""
    found: set[Location] = set()
    todo = [item]
    while todo:
        one = todo.pop()
        if isinstance(one, Synthetic):
            todo += one.sources + one.beside
        else:
            found.add(one)
    return found.difference(find_locations([item]))


@dataclass(frozen=True, slots=True)
class SavedWindow:
    """A state dict, checked; None for missing parts."""

    max_token: int | None
    history: list[Message] | None
    shown: list[Message] | None
    #: For each shown message its number in the history, or the messages that it replaces.
    sources: list[Any] | None
    #: For each shown message the numbers of ``Synthetic.beside``; None without sources, and in an older state.
    beside: list[Any] | None
    direct: list[Message] | None

    @classmethod
    def parse(cls, state: Mapping[str, Any], *, strict: bool) -> SavedWindow:
        if not isinstance(state, Mapping):
            raise StateError(f"a state is a mapping, as state_dict() returns it, not {type(state).__name__}")
        missing, unknown = [key for key in _REQUIRED if key not in state], [key for key in state if key not in _KNOWN]
        if strict and (missing or unknown):
            raise StateError(
                f"the state lacks {missing or 'nothing'} and has unknown keys: {unknown or 'none'}; load what"
                " state_dict() returned, or pass strict=False to take what there is"
            )
        limit, sources = state.get("max_token"), state.get("sources")
        beside = None if sources is None else state.get("beside")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise StateError("the state's max_token is no whole number from 1 on; correct it, or leave it out")
        history, shown, direct = (
            _parse_list(state, key) for key in ("chat_history_storage", "memory_storage", "direct_updates")
        )
        for one in (sources, beside):
            if one is not None and (not isinstance(one, list) or len(one) != len(shown or ())):
                raise StateError(_UNFIT)
        return cls(limit, history, shown, sources, beside, direct)

    def check_sources(self, count: int) -> None:
        """Raise ``StateError`` unless each source is a number in a history of *count* messages, or a message."""
        for source in self.sources or ():
            for one in source if isinstance(source, list) else [source]:
                if not _is_number(one, count) and not (isinstance(source, list) and _is_message(one)):
                    raise StateError(_UNFIT)
        for numbers in self.beside or ():
            if not isinstance(numbers, list) or not all(_is_number(one, count) for one in numbers):
                raise StateError(_UNFIT)

    def find_items(self, history: Sequence[Location], log: LogReader) -> list[Item]:
        """Return the items that were shown, over the log's *history*."""
        if self.shown is None:
            return list(history)
        items: list[Item] = []
        if self.sources is None:  # a state of the original class: messages of the same words are the same
            left = list(history)
            for message in self.shown:
                same = next((item for item in left if log.read(item) == message), None)
                items.append(Synthetic(freeze_mapping(message)) if same is None else same)
                left = left if same is None else left[left.index(same) + 1 :]
            return items
        for message, source, numbers in zip(
            self.shown, self.sources, self.beside or [[]] * len(self.shown), strict=True
        ):
            if isinstance(source, int):
                items.append(history[source])
                continue
            sources = tuple(history[one] if isinstance(one, int) else Synthetic(freeze_mapping(one)) for one in source)
            items.append(Synthetic(freeze_mapping(message), sources, tuple(history[one] for one in numbers)))
        return items


def _parse_list(state: Mapping[str, Any], key: str) -> list[Message] | None:
    if state.get(key) is None:
        return None
    try:
        return parse_messages(list(state[key]))
    except (NotAMessage, TypeError) as error:
        raise StateError(f"the state's {key} is no list of messages; load it as state_dict() returned it") from error


def _is_number(value: object, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count


def _is_message(value: object) -> bool:
    try:
        parse_messages([value])
    except NotAMessage:
        return False
    return True
