"""The messages that a ``MemoryWithCompress`` shows: those of the log, and texts in the place of some. The log never
changes.

Three parts: which messages may be compressed, a saved state, the window.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise, takewhile
from operator import eq
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from memory import ContextError, Event, Memory
from memory.entries import (
    EventRecorded,
    Location,
    PostRedacted,
    ShownRecorded,
    StandIn,
    covers,
    pack_spans,
    unpack_spans,
)
from memory.hooks import renew_after_fork
from memory.log.state import Snapshot
from memory.messages import ASSISTANT, SYSTEM, from_post, from_round, make_query_message
from memory.references import make_posts_reference, make_range_reference
from memory.rounds import EMPTY, Record, copy_with, make_id, run_dump, thaw
from memory.visibility import Rounds

from ...prompt.groups import Message
from .messages import awaits_result, check_list, count_calls, format_msgs, group_messages, label_orphan

#: Where a message stands in the log, or the id of a message that is not in it: a ``StandIn``.
Item = Location | str

#: The posts of a failed round.
_ALL_POSTS = range(1 << 31)


class StateError(ContextError, KeyError, ValueError):
    """A state cannot be loaded; nothing changed."""

    __str__ = Exception.__str__  # KeyError's would put the sentence in quotation marks


class WindowMessage(NamedTuple):
    """One message of the window."""

    item: Item
    message: Message
    #: The places in the window of a call and its results; its own place for any other message.
    group: set[int]
    #: It replaces others.
    is_compressed: bool
    #: It may not be compressed: it is pinned, or a system message before the first round.
    is_fixed: bool


# --- which messages may be compressed ---------------------------------------------------------------------------------


def find_compressible(shown: Sequence[WindowMessage]) -> list[tuple[slice, bool]]:
    """Return the spans that may be compressed, oldest first, and whether each lies before the open question's calls.

    No span separates a call from its results.

    None has a fixed message, an unanswered question, a result that no model has read, or a call that waits for results.
    """
    groups = [one.group for one in shown]
    read = max((place for place, one in enumerate(shown) if one.message["role"] == ASSISTANT), default=-1)
    stays = [one.is_fixed for one in shown]
    answered = _find_end_of_answered(shown)
    for place in range(answered, len(shown)):
        message = shown[place].message
        is_question = message["role"] == "user" and not shown[place].is_compressed
        stays[place] |= is_question or place > read or awaits_result(message, groups[place])

    def is_split(group: set[int]) -> bool:
        return any(stays[min(group) : max(group) + 1]) and not all(stays[place] for place in group)

    while split := [group for group in groups if is_split(group)]:
        for place in set().union(*split):
            stays[place] = True
    edges = [place for place, (one, next_) in enumerate(pairwise([True, *stays, True])) if one != next_]
    return [(slice(start, end), start < answered) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _find_end_of_answered(shown: Sequence[WindowMessage]) -> int:
    """Return the place behind the newest answer that ends a turn.

    An answer ends a turn if it has no calls, and nothing or a user message follows it.
    """
    following = "user"
    for place in range(len(shown) - 1, -1, -1):
        role = shown[place].message["role"]
        if following == "user" and role == ASSISTANT and not count_calls(shown[place].message):
            return place + 1
        following = following if role in SYSTEM else role
    return 0


# --- a saved state ----------------------------------------------------------------------------------------------------


_Number = Annotated[int, Field(strict=True, ge=0)]
_Message = Annotated[Message, BeforeValidator(lambda one: format_msgs([one])[0])]
_Messages = Annotated[list[Message], BeforeValidator(check_list)]


class SavedWindow(BaseModel):
    """A state as ``state_dict`` returns it. Loading leaves unchanged what is None."""

    max_token: Annotated[int, Field(strict=True, ge=1)] | None = None
    chat_history_storage: _Messages | None = None
    memory_storage: _Messages | None = None
    #: Of each shown message its number in the history, or the messages that it replaces. None: a state of the original
    #: class, in which messages of the same words are the same.
    sources: list[_Number | list[_Number | _Message]] | None = None
    #: Of each shown message the numbers of those that its author read and did not replace.
    beside: list[list[_Number]] | None = None
    direct_updates: _Messages | None = None

    @classmethod
    def parse(cls, state: Mapping[str, Any], *, strict: bool) -> Self:
        """Return *state* as it can be loaded. If *strict*, it needs the keys of the original class, and has no unknown
        ones. Raises ``StateError``."""
        if not isinstance(state, Mapping):
            raise StateError(f"a state is a mapping, as state_dict() returns it, not {type(state).__name__}")
        missing = [key for key in ("max_token", "chat_history_storage", "memory_storage") if key not in state]
        unknown = [key for key in state if key not in cls.model_fields]
        if strict and (missing or unknown):
            fault = f"the state lacks {missing or 'nothing'} and has unknown keys: {unknown or 'none'}"
            raise StateError(f"{fault}; load what state_dict() returned, or pass strict=False to take what there is")
        try:
            return cls.model_validate(dict(state))
        except ValidationError as error:
            wrong = ", ".join(sorted({str(fault["loc"][0]) for fault in error.errors(include_input=False)}))
        raise StateError(f"the state's {wrong} cannot be read; correct it, or load what state_dict() returned")

    def check_sources(self, history: int) -> None:
        """Raise ``StateError`` unless each shown message has sources, all in a history of so many messages."""
        if self.sources is None:
            return
        given = [one for source in self.sources for one in (source if isinstance(source, list) else [source])]
        given += [one for numbers in self.beside or () for one in numbers]
        lengths = {len(self.sources), len(self.sources if self.beside is None else self.beside)}
        if lengths != {len(self.memory_storage or ())} or any(isinstance(one, int) and one >= history for one in given):
            fault = "the state's sources do not fit its storages"
            raise StateError(f"{fault}; load it as state_dict() returned it, or without its sources")


# --- the window -------------------------------------------------------------------------------------------------------


class Window:
    """The messages shown now. Each reading adds the log's new messages and removes those of failed rounds."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._journal = memory.journal(ASSISTANT)
        self._version = 0  # all but the adding of new messages
        self._look(memory.snapshot)
        #: What is shown, as the log keeps it; ``direct`` has all ids.
        self._state = ShownRecorded(role=ASSISTANT)
        #: All messages that are not in the log, by id, each behind those that it replaces.
        self._stand_ins: dict[Item, StandIn] = {}
        self._resume()
        self._recorded = set(self._stand_ins)
        self._direct_written = self._state.direct
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        #: Guards all of it. A caller may hold it over several steps, but must not append or wait meanwhile.
        self.lock = threading.RLock()

    def _look(self, now: Snapshot) -> None:
        """Read the log as it is *now*, from here on."""
        #: Erasures and failures since then are not yet applied.
        self._snapshot = now
        self._rounds = now.get_rounds(ASSISTANT, include_hidden=True)
        #: Returns the messages of a round by their posts' numbers, 0 for the query; round 0 is the header.
        self._read_round = cache(partial(_read_round, now, self._rounds))

    def _list_places(self, first: int = 0) -> list[Location]:
        """Return all places, in order: of the header, and of the rounds from *first* on."""
        numbers = (0, *range(max(first, 1), len(self._rounds) + 1))
        return [(number, post) for number in numbers for post in self._read_round(number)]

    def _list_history(self) -> list[Location]:
        return [place for place in self._list_places() if place > self._state.cleared]

    @property
    def history(self) -> list[Message]:
        """All messages of the log since the last ``clear``, as they were added."""
        with self.lock:
            self.read()
            return [self._read_round(number)[post] for number, post in self._list_history()]

    def read(self) -> list[WindowMessage]:
        """Return what is shown of the log as it is now."""
        with self.lock:
            self._apply_erasures(self._memory.snapshot)
            taken = dict(self._state.taken)
            new = [place for place in self._list_places(self._state.settled + 1) if place[1] > taken.get(place[0], -1)]
            items = (*unpack_spans(self._state.shown), *new)
            found = [(item, message) for item in items if (message := self.read_item(item)) is not None]
            self.show(item for item, _ in found)
            groups = group_messages(message for _, message in found)
            shown = []
            for (item, message), group in zip(found, groups, strict=True):
                is_compressed, labelled = bool(self._list_sources(item)), label_orphan(message, group)
                shown.append(WindowMessage(item, labelled, group, is_compressed, self._is_fixed(item)))
            return shown

    def _is_fixed(self, item: Item) -> bool:
        """Return whether it is a message of the header, or a pinned one."""
        if isinstance(item, str):
            return False
        number, post = item
        return number == 0 or (self._rounds[number - 1].id, post) in self._rounds.pins

    def read_item(self, item: Item) -> Message | None:
        """Return a message as it reads now; None if its round has failed."""
        if isinstance(item, tuple):
            return self._read_round(item[0]).get(item[1])
        return thaw(self._stand_ins[item].message) if item in self._stand_ins else None

    def find_originals(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the messages that *items* replace, down to those of the log and of the host."""
        todo = [*items][::-1]
        while todo:  # no recursion: a text may be compressed a thousand times
            item = todo.pop()
            if sources := self._list_sources(item):
                todo += reversed(sources)
            else:
                yield item

    def make_references(self, items: Iterable[Item]) -> tuple[str, ...]:
        """Return references to the log from the first to the last of *items*, or of the messages that they replace: one
        for all complete rounds, and one for each partial round. The header has none."""
        places = sorted(item for item in self.find_originals(items) if isinstance(item, tuple) and item[0])
        references: dict[str, str] = {}
        first_complete = 0
        for number in range(places[0][0], places[-1][0] + 1) if places else ():
            posts = list(self._read_round(number))
            inside = [post for post in posts if places[0] <= (number, post) <= places[-1]]
            if inside == posts:
                first_complete = first_complete or number
                references["complete"] = make_range_reference(first_complete, number)
            else:
                references[str(number)] = make_posts_reference(self._rounds[number - 1], inside[0], inside[-1])
        return tuple(references.values())

    @property
    def direct(self) -> list[Message]:
        """All messages that the host put into the window, oldest first, shown or not."""
        with self.lock:
            return [thaw(self._stand_ins[id_].message) for id_ in self._state.direct]

    @property
    def redactions(self) -> int:
        """Number of redactions when the log was read last."""
        return self._snapshot.redactions

    def is_in_vain(self, items: Iterable[Item]) -> bool:
        """Return whether *items* are those of the last compression that saved nothing."""
        return pack_spans(items) == self._state.in_vain

    def _list_sources(self, item: Item) -> list[Item]:
        """Return what *item* replaces; a message of the log or of the host replaces nothing."""
        return list(unpack_spans(self._stand_ins[item].sources)) if item in self._stand_ins else []

    def _list_beside(self, item: Item) -> list[Item]:
        """Return what the author of *item* read and did not replace."""
        return list(unpack_spans(self._stand_ins[item].beside)) if item in self._stand_ins else []

    # -- changing what is shown ----------------------------------------------------------------------------------------

    def show(self, items: Iterable[Item], direct: Iterable[str] | None = None) -> None:
        """Show *items* instead of all that was read of the log; messages appended later follow them.

        *direct* is the new list of the host's messages; None: it stays.
        """
        with self.lock:
            settled = self._rounds.closed
            taken = tuple(dict(self._list_places(settled + 1)).items())
            direct = self._state.direct if direct is None else tuple(direct)
            self._state = copy_with(self._state, shown=pack_spans(items), settled=settled, taken=taken, direct=direct)

    def add(self, message: Message, sources: Iterable[Item] = (), beside: Iterable[Item] = ()) -> str:
        """Make a message that is not in the log and replaces *sources*; return its id. Its author read *beside* as
        well."""
        one = StandIn(id=make_id(), message=message, sources=pack_spans(sources), beside=pack_spans(beside))
        self._stand_ins[one.id] = one
        return one.id

    def update(self, messages: Iterable[Message]) -> None:
        """Show *messages* of the host instead of all others."""
        with self.transaction(), self.lock:
            known: list[tuple[Message | None, Item]] = [(one.message, one.item) for one in self.read()]
            known += [(self.read_item(place), place) for place in self._list_places()]
            items: list[Item] = []
            direct = list(self._state.direct)
            for message in messages:
                same = next((item for old, item in known if old == message and item not in items), None)
                if same is None:
                    same = self.add(message)
                    direct.append(same)
                items.append(same)
            self.show(items, direct)

    def clear(self) -> None:
        """Show nothing, and let history begin anew."""
        with self.lock:
            self.read()
            self.show(())
            self._state = copy_with(self._state, cleared=max(self._list_places(), default=self._state.cleared))

    def substitute(self, old: Sequence[WindowMessage], messages: Sequence[Message], redactions: int) -> bool:
        """Show *messages* for *old*; their last ones, if they are the last of *old*, stay as they were.

        Return False if *old* is no longer shown, or the log had a redaction after the first *redactions*.
        """
        same = _count_equal(reversed(messages), (one.message for one in reversed(old)))
        replaced = [one.item for one in old]
        sources, beside = replaced[: len(old) - same], replaced[len(old) - same :]
        with self.lock:
            self.read()
            items: list[Item] = list(unpack_spans(self._state.shown))
            start = items.index(replaced[0]) if replaced[0] in items else len(items)
            if items[start : start + len(old)] != replaced or self.redactions != redactions:
                return False
            items[start : start + len(sources)] = [
                self.add(message, sources, beside) for message in messages[: len(messages) - same]
            ]
            self._state = copy_with(self._state, shown=pack_spans(items))
            self._version += 1
            return True

    def note_in_vain(self, items: Iterable[Item]) -> None:
        """Remember that a compression of *items* saved nothing."""
        with self.lock:
            self._state = copy_with(self._state, in_vain=pack_spans(items))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write the block's changes to the log; if the block or the store fails, take them back."""
        with self.lock:
            before = self._state, self._snapshot, dict(self._stand_ins)
            self._version = mark = self._version + 1
        try:
            yield
            self.write()
        except BaseException:
            with self.lock:
                if self._version == mark:  # else another change builds on this one
                    self._state, self._snapshot, self._stand_ins = before
            raise

    # -- erasures ------------------------------------------------------------------------------------------------------

    def _apply_erasures(self, now: Snapshot) -> None:
        """Show the originals instead of texts whose authors read what was erased or failed by *now*."""
        before = self._snapshot
        self._look(now)
        erased: dict[int, Sequence[int]] = {}
        for round_id, posts in now.erased.items():
            if new := posts[len(before.erased.get(round_id, ())) :]:
                erased[now.find_number(round_id)] = new
        erased |= dict.fromkeys(set(now.hidden).difference(before.hidden), _ALL_POSTS)
        if erased:
            self._drop(self._find_stale(erased))

    def _find_stale(self, erased: Mapping[int, Sequence[int]]) -> set[str]:
        """Return the ids of the texts whose authors read an *erased* message, given by round and post."""
        read = {str(id_): one.sources + one.beside for id_, one in self._stand_ins.items()}
        return {id_ for id_, runs in read.items() if covers(runs, read, erased)}

    def _drop(self, stale: set[str]) -> None:
        """Show the originals of *stale* texts, and forget those texts. They may still have to be written to the log."""

        def show_originals(spans: Iterable[str]) -> tuple[str, ...]:
            kept: list[Item] = []
            for item in unpack_spans(spans):
                if item in stale:
                    kept += (one for one in self.find_originals(self._list_sources(item)) if one not in stale)
                else:
                    kept.append(item)
            return pack_spans(kept)

        state = self._state
        self._state = copy_with(state, shown=show_originals(state.shown), in_vain=show_originals(state.in_vain))
        for id_ in stale:
            self._stand_ins[id_] = copy_with(self._stand_ins[id_], message=EMPTY)

    # -- in the log ----------------------------------------------------------------------------------------------------

    def write(self, event: Event | None = None) -> None:
        """Write the window to the log, with *event*. Raises ``StoreError``; the next change then writes both."""
        state = self._state
        new: list[StandIn] = []

        def make_records(now: Snapshot) -> Iterator[Record]:
            nonlocal state
            with self.lock:  # its holders never wait for the log
                if now.redactions != self.redactions:  # else an erased text would be written anew
                    self.read()
                state = self._state
                new[:] = [one for id_, one in self._stand_ins.items() if id_ not in self._recorded]
                same = _count_equal(self._direct_written, state.direct)
                yield copy_with(state, made=tuple(new), direct=state.direct[same:], direct_before=same)
            if event is not None:
                facts = run_dump(partial(event.model_dump, mode="json", exclude={"session", "role"}))
                yield EventRecorded(role=ASSISTANT, name=event.name, facts=facts)

        self._journal.keep(make_records)
        with self.lock:
            self._recorded.update(one.id for one in new)
            self._direct_written = state.direct

    def _resume(self) -> None:
        """Take the state that was written last, without what has been erased or failed since."""
        stale: set[str] = set()
        for record in self._journal.shown():
            if isinstance(record, PostRedacted):
                stale |= self._find_stale({self._snapshot.find_number(record.round_id): record.numbers})
                continue
            self._stand_ins.update((one.id, one) for one in record.made)
            direct = self._state.direct[: record.direct_before] + record.direct
            direct = tuple(id_ for id_ in direct if id_ in self._stand_ins)
            self._state = copy_with(record, made=(), direct=direct, direct_before=0)
        self._drop(stale | self._find_stale(dict.fromkeys(self._snapshot.hidden, _ALL_POSTS)))

    # -- as a state dict -----------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Return the window as plain JSON values."""
        with self.lock:
            shown, history = self.read(), self._list_history()
            numbers: dict[Item, int] = {place: number for number, place in enumerate(history)}

            def number_sources(item: Item) -> int | list[Any]:
                if item in numbers or not self._list_sources(item):
                    return numbers.get(item, [])
                # Not a text that stood beside messages it tells of: these are in the history, and may be erased.
                originals = [one for one in self.find_originals([item]) if not self._list_beside(one)]
                return [numbers.get(one, self.read_item(one)) for one in originals]

            def number_beside(item: Item) -> list[int]:
                """Return the messages that the authors of *item* read and did not replace."""
                todo, read = [item], set[Item]()
                while todo:
                    one = todo.pop()
                    todo += self._list_sources(one) + self._list_beside(one)
                    read.add(one)
                return sorted(numbers[one] for one in read.difference(self.find_originals([item])) if one in numbers)

            return {
                "chat_history_storage": [self.read_item(place) for place in history],
                "memory_storage": [self.read_item(one.item) for one in shown],
                "sources": [number_sources(one.item) for one in shown],
                "beside": [number_beside(one.item) for one in shown],
                "direct_updates": self.direct,
            }

    def load(self, saved: SavedWindow) -> None:
        """Show what *saved* shows, and append its history unless the log has it. Raises ``StateError``."""
        given = saved.chat_history_storage
        history = self.history
        known = len(history) if given is None else len(given)
        saved.check_sources(known)
        if given is not None and history[:known] != given:
            self.clear()
            for message in given:
                self._memory.append(message)
        with self.lock:  # only now: appending calls hooks
            shown, places = self.read(), self._list_history()
            items: list[Item] = [one.item for one in shown] if given is None else [*places[:known]]
            if saved.memory_storage is not None:
                items = list(self._find_saved(saved, saved.memory_storage, places[:known]))
            items += places[known:] if given is not None else []
            direct = saved.direct_updates
            self.show(items, None if direct is None else [self.add(message) for message in direct])

    def _find_saved(self, saved: SavedWindow, messages: list[Message], history: list[Location]) -> Iterator[Item]:
        if saved.sources is None:
            left = [*history]
            for message in messages:
                same = next((place for place in left if self.read_item(place) == message), None)
                yield self.add(message) if same is None else same
                left = left if same is None else left[left.index(same) + 1 :]
            return
        beside = saved.beside or [[]] * len(messages)
        for message, source, numbers in zip(messages, saved.sources, beside, strict=True):
            if isinstance(source, int):
                yield history[source]
            else:
                originals = [history[one] if isinstance(one, int) else self.add(one) for one in source]
                yield self.add(message, originals, [history[number] for number in numbers])


def _read_round(snapshot: Snapshot, rounds: Rounds, number: int) -> dict[int, Message]:
    """Return the messages of a round by their posts' numbers; none if it is hidden."""
    if number == 0:
        return dict(enumerate(map(from_post, snapshot.header), 1))
    round_ = rounds[number - 1] if number <= len(rounds) else None
    if round_ is None or round_.is_hidden:
        return {}
    messages, numbers = list(from_round(round_, ASSISTANT)), [post.number for post in round_.post_list]
    if make_query_message(round_) is not None:  # a post that repeats it is no message
        numbers = [0, *numbers[len(numbers) + 1 - len(messages) :]]
    return dict(zip(numbers, messages, strict=True))


def _count_equal(one: Iterable[object], other: Iterable[object]) -> int:
    """Return how many items at the beginnings are equal."""
    return len(list(takewhile(bool, map(eq, one, other))))
