"""Makes the log the same as the history that a host holds: appends what is new, undoes what is gone.

Messages are compared by what they say, because frameworks give messages and calls new ids when they replay them. A
fingerprint is 16 bytes, and is made once for each message as long as the host gives the same objects.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from operator import is_
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import from_json

from . import messages as chat
from .arguments import kind_of
from .entries import HEADER_MESSAGE, HEADER_PART
from .errors import HistoryDiverged, MessageError
from .log.redaction import REDACTED
from .log.rewind import find_cut
from .log.state import Snapshot
from .references import parse_reference, place_reference
from .rounds import EMPTY, USER, Post, Round, copy_with, thaw
from .values import ValueObject
from .visibility import filter_posts

if TYPE_CHECKING:
    from .memory import Memory

Message = Mapping[str, Any]

#: Messages at the end of the host's list that are compared by content, even if they are the objects of the last call.
NEWEST = 50
#: Bytes of a fingerprint.
SIZE = 16
#: A place is the number of a round, shifted by 32 bits, and that of a post.
NUMBER = 0xFFFF_FFFF
#: What a message of the log may be. The host may lack it, because the agent appended it with a kind of its own. From
#: ``_ERASED`` on its words were erased: it equals any message of the same kind, see ``_find_kind``.
_USUAL, _OPTIONAL, _ERASED = 0, 1, 2
_SENDERS = (chat.ASSISTANT, USER, chat.TOOL, chat.FUNCTION, *chat.SYSTEM)
#: Who sends messages that answer no call.
_BEGIN = (chat.ASSISTANT, USER)
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Synced(ValueObject):
    """What ``sync`` did."""

    #: How many of the host's messages were written now, and how many the log had.
    appended: int
    kept: int
    #: How many of the log's oldest messages the host has dropped. They stay in the log.
    dropped: int = 0
    #: How many messages of the log are hidden now, because the host's history went on without them.
    undone: int = 0
    _lead: int = field(default=0, repr=False, compare=False)
    _places: Sequence[int] = field(default=(), repr=False, compare=False)

    @property
    def references(self) -> list[str | None]:
        """For each of the host's messages its reference, such as ``r3.p2``; None for system messages in front."""
        return [None] * self._lead + [*map(_make_reference, self._places)]

    def find(self, reference: str) -> int | None:
        """Return the index in the host's list of the message with that *reference*; None if it is not there, or if the
        reference is one of several messages.

        Raises ``UnknownReference`` for a text that is no reference.
        """
        wanted = parse_reference(reference)
        if wanted.first_post is None or wanted.first_post != wanted.last_post:
            return None
        place = wanted.first << 32 | wanted.first_post
        at = bisect_left(self._places, place)
        return self._lead + at if at < len(self._places) and self._places[at] == place else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogPrints(ValueObject):
    """What the messages of the log say that the host's agent sees, behind the header, up to a snapshot."""

    prints: bytes = b""
    places: array[int] = field(default_factory=lambda: array("Q"))
    kinds: bytes = b""
    #: The snapshot's numbers by which changes are noticed: of the last entry, of redactions, of hidden rounds.
    number: int = 0
    redactions: int = 0
    hidden: tuple[int, ...] = ()
    #: How many posts the rounds had that could still grow, by number; and how many rounds there were.
    growing: tuple[tuple[int, int], ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SyncState(ValueObject):
    """What a Memory remembers from one ``sync`` to the next. Holds the host's objects only if it gives them again."""

    log: LogPrints = field(default_factory=LogPrints)
    held: Sequence[Message] = ()
    prints: bytes = b""
    #: Index in the log of the host's first message; -1: not known.
    start: int = -1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Alignment(ValueObject):
    """How the host's messages lie over those of the log."""

    #: How many of the log's oldest the host does not have.
    dropped: int
    #: The log's message behind those that match, and how many of the host's match.
    end: int
    kept: int
    #: Indexes of the matching messages in the log, as runs.
    runs: tuple[range, ...]
    is_diverged: bool


def sync_messages(
    memory: Memory, messages: Iterable[Message], on_divergence: Literal["rewind", "raise"], *, verify: bool
) -> Synced:
    """See ``Memory.sync``."""
    if on_divergence not in ("rewind", "raise"):
        raise ValueError(f"on_divergence is 'rewind' or 'raise', not {on_divergence!r}")
    given = list_messages(messages)
    lead = next((place for place, one in enumerate(given) if not _is_system(one)), len(given))
    body = given[lead:]
    state = memory._sync_state or SyncState()
    prints, repeated = _print_host(body, lead, state, verify=verify)
    before = state.start if prints == state.prints else -1
    held: Sequence[Message] = body if repeated or not state.held else body[:1]
    undone, start = 0, -1
    while True:
        now = memory.snapshot
        log = read_log(now, state.log)
        state = memory._sync_state = SyncState(log, held, prints)
        found = align(log, prints, body, before) if start < 0 else _match(log, prints, body, start)
        if found.is_diverged:
            if on_divergence == "raise":
                raise HistoryDiverged(lead + found.kept, _make_reference(log.places[found.end]))
            end, reference = _find_way_back(now, log, found.end)
            rewound = memory._rewind(reference, only_at=now.number)
            # Not looked for again: behind a call that is undone with its results, nothing may be left that matches.
            start, undone = (min(found.dropped, end), undone + len(log.kinds) - end) if rewound else (-1, undone)
            continue
        placed_at = found.dropped
        # The host's first messages may be system messages from the middle of the history.
        while lead and found.dropped and _Reader()(given[lead - 1]) == log.prints[: found.dropped * SIZE][-SIZE:]:
            runs = (range(found.dropped - 1, found.dropped), *found.runs)
            lead, found = lead - 1, copy_with(found, dropped=found.dropped - 1, kept=found.kept + 1, runs=runs)
        front = _find_header_changes(memory, given[:lead])
        new = _list_new(now, log, found, given[lead:])
        added = [*front, *(_parse(one, place) for place, one in enumerate(new, lead + found.kept))]
        places = memory._extend(added, only_at=now.number) if added else []
        if len(places) == len(added):
            break
    memory._sync_state = SyncState(log, held, prints, placed_at)
    shown = array("Q")
    for run in found.runs:
        shown += log.places[run.start : run.stop]
    shown.extend(one.round_number << 32 | one.post_number for one in places[len(front) :])
    dropped = found.dropped - log.kinds.count(_OPTIONAL, 0, found.dropped)  # the host never had those
    appended = len(added) - sum(not post.message and not post.extra for post in front)
    return Synced(appended, len(given) - appended, dropped, undone, lead, shown)


def list_messages(messages: Iterable[Message]) -> list[Message]:
    """Return *messages* as a new list. Raises ``TypeError`` for what is none."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise TypeError(f"give the list of all chat messages, not {kind_of(messages)}")
    return list(messages)


def _make_reference(place: int) -> str:
    return place_reference(place >> 32, place & NUMBER)


def _list_new(now: Snapshot, log: LogPrints, found: Alignment, body: Sequence[Message]) -> Iterator[Message]:
    """Yield the host's messages that the log does not have. Results of calls that it has answer these by their ids in
    the log, which may be others than the host's."""
    last, new = found.kept, body[found.kept :]
    while last and not _begins(body[last - 1]):
        last -= 1
    ids: dict[str, str] = {}
    if last and new and not _begins(new[0]):
        place = log.places[next(islice(chain.from_iterable(found.runs), last - 1, None))]
        posts = [post for post in now.round_at(place >> 32).post_list if post.number == place & NUMBER]
        known = [call.id for post in posts for call in post.tool_calls]
        ids = {one.id: id_ for one, id_ in zip(chat.parse(body[last - 1]).tool_calls, known, strict=False)}
    for message in new:
        if _begins(message):
            ids = {}
        yield rename_calls(message, ids) if any(one != other for one, other in ids.items()) else message


def rename_calls(message: Message, ids: Mapping[str, str]) -> Message:
    """Return *message* with the ids of its calls, and of those that it answers, replaced by those that *ids* has for
    them."""
    renamed = dict(message)
    if renamed.get("tool_call_id") in ids:
        renamed["tool_call_id"] = ids[renamed["tool_call_id"]]
    if calls := renamed.get("tool_calls"):
        renamed["tool_calls"] = [{**call, "id": ids.get(call["id"], call["id"])} for call in calls]
    content = renamed.get("content")
    parts = (
        () if content is None or isinstance(content, str) else (content,) if isinstance(content, Mapping) else content
    )
    if any(map(_is_result, parts)):
        renamed["content"] = [
            {key: ids.get(value, value) if key in ("tool_use_id", "id") else value for key, value in part.items()}
            if _is_result(part)
            else part
            for part in parts
        ]
    return renamed


def _find_way_back(now: Snapshot, log: LogPrints, end: int) -> tuple[int, str]:
    """Return how many of the log's messages stay if those from index *end* on are undone, and the reference of the last
    one. It may be fewer: no call is parted from its results."""
    while end:
        number, post = log.places[end - 1] >> 32, log.places[end - 1] & NUMBER
        safe = find_cut(now.round_at(number), post)
        if safe == post:
            return end, place_reference(number, post)
        end = bisect_left(log.places, (number << 32 | safe) + 1)
    return 0, "r0"


def _is_system(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") in chat.SYSTEM


def _parse(message: Message, place: int) -> Post:
    try:
        return chat.parse(message)
    except MessageError as error:
        raise MessageError(f"message {place + 1}: {error}") from error


def _find_header_changes(memory: Memory, lead: Sequence[Message]) -> list[Post]:
    """Return the parts of the header that make it say what *lead* says; none if the host gives no system message: it
    may have dropped them with its oldest messages, or pass them elsewhere."""
    if not lead:
        return []
    own = [post for post in memory.header if post.send_to == chat.ASSISTANT]
    present = [post for post in own if post.kind.startswith(HEADER_MESSAGE) or not post.kind.startswith(HEADER_PART)]
    changes, read = list[Post](), _Reader()
    for place in range(max(len(lead), len(present))):
        kind = f"{HEADER_MESSAGE}{place + 1}"
        if place >= len(lead):
            changes.append(copy_with(present[place], message="", extra=EMPTY, kind=kind))
        elif place >= len(present) or read(chat.from_post(present[place])) != read(lead[place]):
            changes.append(copy_with(_parse(lead[place], place), kind=kind))
    return changes


def _print_host(body: Sequence[Message], lead: int, state: SyncState, *, verify: bool) -> tuple[bytes, bool]:
    """Return the fingerprints of the host's messages, and whether it gave objects of the last call again: those are
    not read again, apart from the newest."""
    same = start = 0
    if body and state.held and not verify:
        start = next((place for place, one in enumerate(state.held) if one is body[0]), 0)
        again = list(map(is_, body, islice(state.held, start, None)))
        same = again.index(False) if False in again else len(again)
    fresh = max(same - NEWEST, 0)
    while fresh and not _begins(body[fresh]):
        fresh -= 1
    read, prints = _Reader(), [state.prints[start * SIZE : (start + fresh) * SIZE]]
    for place in range(fresh, len(body)):
        try:
            prints.append(read(body[place]))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            _parse(body[place], lead + place)  # says what is wrong
            raise MessageError(f"message {lead + place + 1} cannot be stored as JSON") from error
    return b"".join(prints), same > 0


def _begins(message: Message) -> bool:
    """Return whether pairing begins anew at *message*: whether it certainly answers no call."""
    return message.get("role") == chat.ASSISTANT or (
        message.get("role") == "user" and type(message.get("content")) is str
    )


class _Reader:
    """Makes the fingerprints of messages in order. It knows the calls that the next messages may answer."""

    __slots__ = ("_answered", "_calls")

    def __init__(self) -> None:
        self._calls: Mapping[str, int] = {}
        self._answered = 0

    def __call__(self, message: Message) -> bytes:
        role, content = message["role"], message.get("content")
        if role == chat.TOOL and type(content) is str:
            is_plain = self._calls.get(message.get("tool_call_id") or "", self._answered) == self._answered
            self._answered += is_plain
        elif is_plain := len(message) == 2 and type(content) is str:  # most
            self._calls = {}
        said = f"{role}\n{content}" if is_plain else self._read(role, _list_parts(content), message)
        return blake2b(said.encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()

    def _read(self, role: str, parts: Sequence[Any], message: Message) -> str:
        """Return the role and text of *message* if they say it all, else everything as JSON."""
        is_agent = role == chat.ASSISTANT  # else these are keys of the host's own, whatever they hold
        calls = (message.get("tool_calls") or ()) if is_agent else ()
        results = list(filter(_is_result, parts))
        said: list[Any] = []
        if results or role in (chat.TOOL, chat.FUNCTION):
            ids = [part.get("tool_use_id", part.get("id")) for part in results] or [message.get("tool_call_id")]
            at = [self._calls.get(str(one), self._answered + place) for place, one in enumerate(ids)]
            if at != [*range(self._answered, self._answered + len(at))]:
                said.append(["answers", at])  # not in the order of the calls
            self._answered += len(at)
        else:
            asked = [*calls, *(one for one in parts if isinstance(one, Mapping) and one.get("type") == "tool_use")]
            self._calls, self._answered = (
                {str(call["id"]): place for place, call in enumerate(asked) if "id" in call},
                0,
            )
        said += [_read_call(call.get("function") or call.get("custom") or call) for call in calls]
        if is_agent and (called := message.get("function_call")):
            said.append(["called", *_read_call(called)])
        for key in ("name", "refusal") if role != chat.TOOL else ("refusal",):  # a result may name its tool or not
            if value := message.get(key):
                said.append([key, value])
        if not said and len(parts) < 2 and all(isinstance(one, str) for one in parts):
            return f"{role}\n{''.join(parts)}"
        whole = [[_read_part(one) for one in parts], said]
        try:
            return f"{role}:\n{_JSON.encode(whole)}"
        except TypeError:  # mappings that are no dicts
            return f"{role}:\n{_JSON.encode(thaw(whole))}"


def _is_result(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_result"


def _list_parts(content: Any) -> Sequence[Any]:
    """Return the parts of a message's content; a text is one."""
    if content is None or content == "":
        return ()
    if isinstance(content, (str, Mapping)):
        content = (content,)
    # A text in a part is what it would be without.
    return [
        one["text"]
        if isinstance(one, Mapping) and one.get("type") == "text" and isinstance(one.get("text"), str)
        else one
        for one in content
    ]


def _read_part(part: Any) -> Any:
    """Return what a part of a message's content says: without ids, marks for the provider's cache, and empty fields."""
    if not isinstance(part, Mapping):
        return part
    match part.get("type"):
        case "tool_use":
            return {"call": _read_call(part)}
        case "tool_result":
            given = part.get("output", part.get("content"))
            return {"result": [_read_part(one) for one in _list_parts(given)], "error": bool(part.get("is_error"))}
    return {key: value for key, value in part.items() if key not in ("id", "cache_control") and value is not None}


def _read_call(asked: Mapping[str, Any]) -> list[Any]:
    """Return the name and the arguments of a call, parsed if they are JSON: a framework may write them anew."""
    name, arguments = chat.read_call(asked)
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = from_json(arguments or "{}")
    return [name, arguments]


def read_log(now: Snapshot, known: LogPrints) -> LogPrints:
    """Return the fingerprints of the log's messages at *now*; *known* are those of an earlier moment. Reads the rounds
    that are new or were changed since. May raise ``StoreError``."""
    if now.number == known.number:
        return known
    since, post = _find_change(now, known)
    cut = bisect_left(known.places, since << 32 | post)
    prints, kinds, places = [known.prints[: cut * SIZE]], bytearray(known.kinds[:cut]), known.places[:cut]
    hidden = set(now.hidden)
    for number in range(since, now.total + 1):
        if number in hidden:
            continue
        read = _Reader()
        for place, kind, message in _list_messages(filter_posts(chat.ASSISTANT, now.round_at(number)), post):
            fingerprint = (_Reader() if kind == _OPTIONAL else read)(message)
            if place >= post:
                prints.append(fingerprint)
                kinds.append(kind)
                places.append(number << 32 | place)
        post = 0
    growing = tuple((number, one.count) for number, one in now.live.items())
    return LogPrints(b"".join(prints), places, bytes(kinds), now.number, now.redactions, now.hidden, growing, now.total)


def _find_change(now: Snapshot, known: LogPrints) -> tuple[int, int]:
    """Return the numbers of the first round and post that *known* does not have as they are at *now*."""
    if now.redactions != known.redactions or now.number < known.number:
        return 1, 0
    changed = [(known.total + 1, 0)]
    if now.hidden is not known.hidden:
        changed += [(number, 0) for number in set(now.hidden).symmetric_difference(known.hidden)]
    for number, count in known.growing:
        live = now.live.get(number)
        if (live.count if live is not None else len(now.round_at(number).post_list)) != count:
            changed.append((number, count + 1))
    return min(changed)


def _list_messages(round_: Round, first: int) -> Iterator[tuple[int, int, Message]]:
    """Yield number, kind and message of the query and of the posts of *round_*, from post number *first* on, or earlier
    from the calls that it may answer."""
    asked = chat.query_message(round_)
    if asked is not None and first == 0:
        yield 0, _find_kind(chat.parse(asked)) if round_.user_query == REDACTED else _USUAL, asked
    posts = round_.post_list
    start = bisect_left(posts, first, key=lambda post: post.number)
    while 0 < start < len(posts) and (posts[start].send_from not in _BEGIN or posts[start].kind != chat.MESSAGE):
        start -= 1
    for place in range(start, len(posts)):
        post = posts[place]
        if place == 0 and asked is not None and chat.repeats_query(post, round_):
            continue
        kind = _find_kind(post) if post.message == REDACTED else _USUAL if post.kind == chat.MESSAGE else _OPTIONAL
        yield post.number, kind, chat.from_post(post)


def _find_kind(post: Post) -> int:
    """Return the kind of an erased message, by who sends it and how many calls it makes."""
    sender = post.send_from if post.send_from in _SENDERS else USER  # another agent's name
    return _ERASED + _SENDERS.index(sender) + len(_SENDERS) * min(len(post.tool_calls), 40)


def align(log: LogPrints, prints: bytes, body: Sequence[Message], before: int = -1) -> Alignment:
    """Return how the host's messages, with these *prints*, lie over those of the log: as many as possible match, from
    the host's first on.

    If equally many do in two places, the host has all of the log rather than the newest part of it; else the place
    after which nothing is undone comes first. *before* is where the same history began in the log at the last call; it
    begins there still, if all of it matches.
    """
    length = len(log.kinds)
    if not prints:
        return Alignment(length, length, 0, (), is_diverged=False)
    if 0 <= before < length:
        best = _match(log, prints, body, before)
        if not best.is_diverged and best.kept == len(body):
            return best
    best = _match(log, prints, body, 0)
    for start in _find_starts(log, prints):
        if not best.is_diverged:
            break
        if length - start < best.kept:
            continue
        found = _match(log, prints, body, start)
        if (found.kept, not found.is_diverged) > (best.kept, best.dropped == 0 or not best.is_diverged):
            best = found
    return best


def _find_starts(log: LogPrints, prints: bytes) -> Iterator[int]:
    """Yield the indexes behind 0 at which the log says what the host says first, or second behind an erased message."""
    for behind in range(min(len(prints) // SIZE, 2)):
        wanted, place = prints[behind * SIZE :][:SIZE], 0
        while (place := log.prints.find(wanted, place + 1)) >= 0:
            start = place // SIZE - behind
            if place % SIZE == 0 and start > 0 and (not behind or log.kinds[start] >= _ERASED):
                yield start


def _match(log: LogPrints, prints: bytes, body: Sequence[Message], start: int) -> Alignment:
    """Return how the host's messages lie over the log's from index *start* on."""
    here, there, runs = start, 0, list[range]()
    length = len(log.kinds)
    while True:
        same = _count_equal(log.prints, here, prints, there)
        if same:
            runs.append(range(here, here + same))
        here, there = here + same, there + same
        if here == length:
            break
        kind = log.kinds[here]
        if kind >= _ERASED and there < len(body) and kind == _find_kind(chat.parse(body[there])):
            runs.append(range(here, here + 1))
            here, there = here + 1, there + 1
        elif kind == _OPTIONAL:
            here += 1
        else:
            break
    return Alignment(start, here, there, tuple(runs), is_diverged=here < length)


def _count_equal(one: bytes, at: int, other: bytes, there: int) -> int:
    """Return how many fingerprints of *one* from index *at* on equal those of *other* from *there* on."""
    left = min(len(one) // SIZE - at, len(other) // SIZE - there)
    count, step = 0, 64
    while left > count and step:
        end = min(count + step, left)
        a, b = one[(at + count) * SIZE : (at + end) * SIZE], other[(there + count) * SIZE : (there + end) * SIZE]
        if a == b:
            count, step = end, step * 2
        elif end - count == 1:
            break
        else:
            left, step = end, max((end - count) // 2, 1)
    return count
