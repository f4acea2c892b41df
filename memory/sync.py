"""Makes the log match the history that a host holds: appends new messages, undoes those that are gone.

``alignment`` matches the two histories. Messages that the host dropped, and its replacements for them, change nothing
in the log; a divergent continuation rewinds the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from . import messages as chat
from .alignment import (
    Alignment,
    Anchor,
    HostList,
    MatchingSpan,
    align,
    count_same,
    cut_list,
    find_log_index,
    follow,
    list_parts,
)
from .arguments import name_kind
from .entries import HEADER_MESSAGE, HEADER_PART
from .errors import HistoryDiverged, MessageError
from .fingerprints import (
    OPTIONAL,
    SIZE,
    Fingerprinter,
    LogFingerprints,
    Message,
    begins,
    get_print,
    is_result,
    read_log,
)
from .log.rewind import find_cut
from .log.state import Snapshot
from .places import NOWHERE, Synced, make_place_reference, pack_place, unpack_place
from .references import make_reference
from .rounds import EMPTY, Post, copy_with
from .values import ValueObject

if TYPE_CHECKING:
    from .memory import Memory

#: Messages at the end of the host's list that are compared by content, even if they are the objects of the last call.
NEWEST = 50
#: The keys that give a message content, and those by which a result without an id names its tool.
SAYS = chat.CHAT_KEYS - {"role", "name", "tool_call_id"}
TOOL_NAMES = frozenset(("name", "tool_name"))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SyncState(ValueObject):
    """The state that a Memory keeps between two calls of ``sync``. Holds the host's objects only if it gives them
    again."""

    log: LogFingerprints = field(default_factory=LogFingerprints)
    last: HostList = field(default_factory=HostList)


def sync_messages(
    memory: Memory, messages: Iterable[Message], on_divergence: Literal["rewind", "raise"], *, newest: int
) -> Synced:
    """See ``Memory.sync``. The *newest* of the messages are compared even if they are the objects of the last call."""
    if on_divergence not in ("rewind", "raise"):
        raise ValueError(f"on_divergence is 'rewind' or 'raise', not {on_divergence!r}")
    given = list_messages(messages)
    header_size = next((place for place, one in enumerate(given) if not _is_system(one)), len(given))
    header, body = given[:header_size], given[header_size:]
    header_posts = [_parse(one, place) for place, one in enumerate(header)]
    state = memory._sync_state or SyncState()
    prints, same, first = _print_host(body, header_size, state.last, newest)
    anchors: Sequence[Anchor] = ()
    undone = 0
    while True:  # until nobody has written between reading and writing
        now = memory.snapshot
        log = read_log(now, state.log)
        state = memory._sync_state = copy_with(state, log=log)
        if anchors and anchors[-1].log_index <= len(log.kinds):
            # Keep the alignment: after an undone call with its results, nothing may be left to match.
            found = follow(log, prints, body, anchors)
        else:
            found = align(log, prints, body, cut_list(log, state.last, first, body))
        if found.is_diverged:
            if on_divergence == "raise":
                raise HistoryDiverged(header_size + found.host_end, make_place_reference(log.places[found.log_end]))
            for place, one in enumerate(body[found.host_end :], header_size + found.host_end):
                _parse(one, place)  # refused before anything is undone
            end, reference = _find_way_back(now, log, found.log_end)
            anchors = ()
            if memory._rewind(reference, only_at=now.number):
                anchors, undone = _cut_anchors(found.anchors, end, body), undone + len(log.kinds) - end
            continue
        matched, spans = _match_header(log, found, header)
        kept, outside = matched + found.host_end, header_size - matched
        changes = _find_header_changes(memory, header[:outside], header_posts)
        new = _list_new(now, log, spans, given[outside:], kept)
        added = [*changes, *(_parse(one, place) for place, one in enumerate(new, outside + kept))]
        places = memory._extend(added, only_at=now.number) if added else []
        if len(places) == len(added):
            break
    written = array("Q", (pack_place(one.round_number, one.post_number) for one in places[len(changes) :]))
    log = log.add(prints[len(prints) - SIZE * len(written) :], written)
    again = same or not state.last.messages or not {*map(id, body)}.isdisjoint(map(id, state.last.messages))
    memory._sync_state = SyncState(
        log, HostList(log.prints if log.prints == prints else prints, found.anchors, body if again else body[:1])
    )
    appended = len(added) - sum(not post.message and not post.extra for post in changes)
    skipped = kept - sum(one.size for one in spans)
    return Synced(
        appended,
        len(given) - appended - skipped,
        _count_dropped(log, spans, found.log_end),
        undone,
        skipped,
        outside,
        _list_places(log, spans, kept, written),
    )


def read_prints(memory: Memory) -> bytes:
    """Return the fingerprints of the log's messages as ``sync`` compares them, 16 bytes each. Raises ``StoreError``."""
    state = memory._sync_state or SyncState()
    memory._sync_state = copy_with(state, log=read_log(memory.snapshot, state.log))
    return memory._sync_state.log.prints


def list_messages(messages: Iterable[Message]) -> list[Message]:
    """Return *messages* as a new list. Raises ``TypeError`` if they are not a collection of messages."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise TypeError(f"give the list of all chat messages, not {name_kind(messages)}")
    return list(messages)


def _list_new(
    now: Snapshot, log: LogFingerprints, spans: Sequence[MatchingSpan], body: Sequence[Message], first: int
) -> Iterator[Message]:
    """Yield the host's messages from index *first* on, which the log lacks.

    Results of calls in the log get the ids of these calls in the log, which may differ from the host's.
    """
    last, new = first, body[first:]
    while last and not begins(body[last - 1]):
        last -= 1
    ids: dict[str, str] = {}
    if last and new and not begins(new[0]):
        index = find_log_index(spans, last - 1)
        if index is not None:
            number, post = unpack_place(log.places[index])
            posts = [one for one in now.get_round_at(number).post_list if one.number == post]
            known = [call.id for one in posts for call in one.tool_calls]
            ids = {one.id: id_ for one, id_ in zip(chat.parse(body[last - 1]).tool_calls, known, strict=False)}
    for message in new:
        if begins(message):
            ids = {}
        yield rename_calls(message, ids) if any(one != other for one, other in ids.items()) else message


def rename_calls(message: Message, ids: Mapping[str, str]) -> Message:
    """Return *message* with the ids of its calls, and of the calls that it answers, replaced as *ids* says."""
    renamed = dict(message)
    if renamed.get("tool_call_id") in ids:
        renamed["tool_call_id"] = ids[renamed["tool_call_id"]]
    if calls := renamed.get("tool_calls"):
        renamed["tool_calls"] = [{**call, "id": ids.get(call["id"], call["id"])} for call in calls]
    parts = list_parts(renamed)
    if any(map(is_result, parts)):
        renamed["content"] = [
            {key: ids.get(value, value) if key in ("tool_use_id", "id") else value for key, value in part.items()}
            if is_result(part)
            else part
            for part in parts
        ]
    return renamed


def _find_way_back(now: Snapshot, log: LogFingerprints, end: int) -> tuple[int, str]:
    """Return how many log messages remain if those from index *end* on are undone, and the reference of the last one.

    It may be fewer than *end*: no call is separated from its results.
    """
    while end:
        number, post = unpack_place(log.places[end - 1])
        safe = find_cut(now.get_round_at(number), post)
        if safe == post:
            return end, make_reference(number, post)
        end = bisect_right(log.places, pack_place(number, safe))
    return 0, "r0"


def _is_system(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") in chat.SYSTEM


def _parse(message: Message, place: int) -> Post:
    """Return *message* as a post. Raises ``MessageError`` also for what ``append`` keeps though it says nothing: no
    history is undone for that."""
    try:
        post = chat.parse(message)
        if SAYS.isdisjoint(message):
            raise MessageError("the message has no content; give it one, be it null or an empty text")
        if message["role"] == chat.TOOL and post.tool_call_id is None and not TOOL_NAMES & message.keys():
            raise MessageError("the result names no call; give it the call's id as tool_call_id")
        return post
    except MessageError as error:
        raise MessageError(f"message {place + 1}: {error}") from error


def _find_header_changes(memory: Memory, given: Sequence[Message], posts: Sequence[Post]) -> list[Post]:
    """Return the parts that turn the header from *posts* into *given*; none if the host gives no system message.

    It may have dropped them with its oldest messages, or pass them elsewhere.
    """
    if not given:
        return []
    own = [post for post in memory.header if post.send_to == chat.ASSISTANT]
    present = [post for post in own if post.kind.startswith(HEADER_MESSAGE) or not post.kind.startswith(HEADER_PART)]
    changes, fingerprint = list[Post](), Fingerprinter()
    for place in range(max(len(given), len(present))):
        kind = f"{HEADER_MESSAGE}{place + 1}"
        if place >= len(given):
            changes.append(copy_with(present[place], message="", extra=EMPTY, kind=kind))
        elif place >= len(present) or fingerprint(chat.from_post(present[place])) != fingerprint(given[place]):
            changes.append(copy_with(posts[place], kind=kind))
    return changes


def _print_host(body: Sequence[Message], header_size: int, last: HostList, newest: int) -> tuple[bytes, int, int]:
    """Return the fingerprints of the host's messages; the number of leading messages that are objects of the last call,
    which are not read again (except the *newest*); and the first one's index in that call's list."""
    same = first = 0
    if body and last.messages:
        first = next((place for place, one in enumerate(last.messages) if one is body[0]), 0)
        same = count_same(body, last.messages[first:])
    fresh = max(same - newest, 0)
    while 0 < fresh < len(body) and not begins(body[fresh]):
        fresh -= 1
    fingerprint, prints = Fingerprinter(), [last.prints[first * SIZE : (first + fresh) * SIZE]]
    for place in range(fresh, len(body)):
        try:
            prints.append(fingerprint(body[place]))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            _parse(body[place], header_size + place)  # raises an error that names the fault
            raise MessageError(f"message {header_size + place + 1} cannot be stored as JSON") from error
    return b"".join(prints), same, first


def _cut_anchors(anchors: Sequence[Anchor], end: int, body: Sequence[Message]) -> list[Anchor]:
    """Return *anchors* for a log that now ends at index *end*.

    An anchor at a result moves back to the call, because the call was undone with its result.
    """
    left = [one for one in anchors if one.log_index < end]
    if len(left) < len(anchors):
        index, log_index = anchors[len(left)]
        while log_index > end and index and not begins(body[index]):
            index -= 1
        left.append(Anchor(index, end))
    return left


def _match_header(
    log: LogFingerprints, found: Alignment, header: Sequence[Message]
) -> tuple[int, Sequence[MatchingSpan]]:
    """Return how many of the last *header* messages the log has just before the match, and the spans with them: a host
    that dropped its oldest messages may begin with system messages from the middle of the history."""
    index, begin = found.anchors[0]
    count, fingerprint = 0, Fingerprinter()
    while index == 0 and count < min(begin, len(header)):
        if fingerprint(header[-1 - count]) != get_print(log.prints, begin - 1 - count):
            break
        count += 1
    spans = [one._replace(host_start=one.host_start + count) for one in found.spans]
    return count, [MatchingSpan(0, begin - count, count), *spans]


def _count_dropped(log: LogFingerprints, spans: Sequence[MatchingSpan], log_end: int) -> int:
    """Return how many log messages the host dropped; messages that it never had do not count."""
    dropped = before = 0
    for log_start, size in [*((one.log_start, one.size) for one in spans), (log_end, 0)]:
        dropped += log_start - before - log.kinds.count(OPTIONAL, before, log_start)
        before = log_start + size
    return dropped


def _list_places(log: LogFingerprints, spans: Sequence[MatchingSpan], kept: int, written: array[int]) -> array[int]:
    """Return the place of each of the host's messages: of *kept* ones, and of those *written*. One that was skipped has
    the place of the next."""
    places = array("Q")
    for host_start, log_start, size in spans:
        places.extend(log.places[log_start : log_start + 1] * (host_start - len(places)))
        places += log.places[log_start : log_start + size]
    places.extend([*(written[:1] or [NOWHERE])] * (kept - len(places)))
    return places + written
