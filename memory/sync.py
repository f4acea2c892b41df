"""Makes the log match the history that a host holds: appends new messages, undoes those that are gone.

``align`` matches the two histories. Messages that the host dropped, and its replacements for them, change nothing in
the log; a divergent continuation rewinds the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise, repeat
from operator import is_
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import messages as chat
from .arguments import name_kind, require
from .entries import HEADER_MESSAGE, HEADER_PART
from .errors import HistoryDiverged, MessageError
from .fingerprints import (
    ERASED,
    OPTIONAL,
    SIZE,
    Fingerprinter,
    LogFingerprints,
    Message,
    begins,
    find_kind,
    get_print,
    is_result,
    pack_place,
    read_log,
    unpack_place,
)
from .log.rewind import find_cut
from .log.state import Snapshot
from .references import make_reference, parse_reference
from .rounds import EMPTY, Post, copy_with
from .values import ValueObject

if TYPE_CHECKING:
    from .memory import Memory

#: Messages at the end of the host's list that are compared by content, even if they are the objects of the last call.
NEWEST = 50
#: Maximum messages that replace dropped ones: a summary, perhaps with its request or an acknowledgement.
MAX_OWN = 2
#: Minimum shared messages in a row after messages of the host's own, or before the two histories diverge.
ENOUGH = 4
#: Maximum positions after a hole that are tried, the newest first, if a message repeats that often.
MAX_PLACES = 1_000
#: The keys that give a message content, and those by which a result without an id names its tool.
SAYS = chat.CHAT_KEYS - {"role", "name", "tool_call_id"}
TOOL_NAMES = frozenset(("name", "tool_name"))
#: Start of a matching stretch: an index in the host's list, and one in the log.
Start = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Synced(ValueObject):
    """The result of ``sync``."""

    #: Number of the host's messages that were written now, and that the log had already.
    appended: int
    kept: int
    #: Number of log messages that the host has dropped. They stay in the log.
    dropped: int = 0
    #: Number of log messages that are hidden now, because the host's history continued without them.
    undone: int = 0
    #: Number of the host's messages that replace dropped ones, such as a summary. They are not in the log.
    skipped: int = 0
    _lead: int = field(default=0, repr=False, compare=False)
    #: A skipped message has the place of the next message that is in the log.
    _places: Sequence[int] = field(default=(), repr=False, compare=False)

    @property
    def references(self) -> list[str | None]:
        """The reference of each of the host's messages, such as ``r3.p2``; None for leading system messages and for
        skipped ones."""
        pairs = pairwise([*self._places, -1])
        return [None] * self._lead + [None if place == after else _make_reference(place) for place, after in pairs]

    def find(self, reference: str) -> int | None:
        """Return the index in the host's list of the message with that *reference*; None if it is missing, or if the
        reference covers several messages.

        Raises ``UnknownReference`` for a text that is no reference.
        """
        require("reference", reference, str, "a text such as r5.p3")
        wanted = parse_reference(reference)
        if wanted.first_post is None or wanted.first_post != wanted.last_post:
            return None
        place = pack_place(wanted.first, wanted.first_post)
        at = bisect_right(self._places, place) - 1
        return self._lead + at if at >= 0 and self._places[at] == place else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SyncState(ValueObject):
    """The state that a Memory keeps between two calls of ``sync``. Holds the host's objects only if it gives them
    again."""

    log: LogFingerprints = field(default_factory=LogFingerprints)
    held: Sequence[Message] = ()
    prints: bytes = b""
    #: The last alignment of the host's list.
    starts: Sequence[Start] = ()


class Run(NamedTuple):
    """Consecutive messages that match: the first one's index in the host's list and in the log, and their number."""

    there: int
    here: int
    size: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Alignment(ValueObject):
    """The alignment of the host's messages with those of the log."""

    #: Where matching begins, and resumes after holes; and all runs, which notes and erased messages also separate.
    starts: Sequence[Start]
    runs: Sequence[Run]
    #: Indexes of the first messages after the match: the host's and the log's.
    there: int
    here: int
    is_diverged: bool

    @property
    def kept(self) -> int:
        return sum(run.size for run in self.runs)


def sync_messages(
    memory: Memory, messages: Iterable[Message], on_divergence: Literal["rewind", "raise"], *, newest: int
) -> Synced:
    """See ``Memory.sync``. The *newest* of the messages are compared even if they are the objects of the last call."""
    if on_divergence not in ("rewind", "raise"):
        raise ValueError(f"on_divergence is 'rewind' or 'raise', not {on_divergence!r}")
    given = list_messages(messages)
    lead = next((place for place, one in enumerate(given) if not _is_system(one)), len(given))
    body = given[lead:]
    front = [_parse(one, place) for place, one in enumerate(given[:lead])]
    state = memory._sync_state or SyncState()
    prints, same, first = _print_host(body, lead, state, newest)
    former = state.held[first:] if same and len(state.held) * SIZE == len(state.prints) else ()
    starts, last, rewound, undone = _shift(state.starts, first), state.prints[first * SIZE :], False, 0
    held: Sequence[Message] = body if same or not state.held else body[:1]
    while True:
        now = memory.snapshot
        log = read_log(now, state.log)
        state = memory._sync_state = copy_with(state, log=log)
        # Keep the alignment: after an undone call with its results, nothing may be left to match.
        is_known = rewound and starts[-1][1] <= len(log.kinds)
        found = _follow(log, prints, body, starts) if is_known else align(log, prints, body, starts, last, former)
        if found.is_diverged:
            if on_divergence == "raise":
                raise HistoryDiverged(lead + found.there, _make_reference(log.places[found.here]))
            for place, one in enumerate(body[found.there :], lead + found.there):
                _parse(one, place)  # refused before anything is undone
            end, reference = _find_way_back(now, log, found.here)
            rewound = bool(memory._rewind(reference, only_at=now.number))
            if rewound:
                starts, undone = _cut_starts(found.starts, end, body), undone + len(log.kinds) - end
            continue
        starts, runs, there = [*found.starts], found.runs, found.there
        dropped = _count_dropped(log, found)
        # Leading system messages may come from the middle of the history.
        begin = starts[0][1] if starts[0][0] == 0 else 0
        while lead and begin and Fingerprinter()(given[lead - 1]) == get_print(log.prints, begin - 1):
            lead, begin, there, dropped = lead - 1, begin - 1, there + 1, dropped - 1
            runs = [Run(0, begin, 1), *(Run(run.there + 1, run.here, run.size) for run in runs)]
        changes = _find_header_changes(memory, given[:lead], front)
        new = _list_new(now, log, runs, given[lead:], there)
        added = [*changes, *(_parse(one, place) for place, one in enumerate(new, lead + there))]
        places = memory._extend(added, only_at=now.number) if added else []
        if len(places) == len(added):
            break
    written = array("Q", (pack_place(one.round_number, one.post_number) for one in places[len(changes) :]))
    log = log.add(prints[len(prints) - SIZE * len(written) :], written)
    memory._sync_state = SyncState(log, held, log.prints if log.prints == prints else prints, starts)
    shown = array("Q")
    for run in runs:
        shown.extend(log.places[run.here : run.here + 1] * (run.there - len(shown)))
        shown += log.places[run.here : run.here + run.size]
    skipped = there - sum(run.size for run in runs)
    shown.extend(written[:1] * (there - len(shown)))
    shown += written
    appended = len(added) - sum(not post.message and not post.extra for post in changes)
    return Synced(appended, len(given) - appended - skipped, dropped, undone, skipped, lead, shown)


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


def _make_reference(place: int) -> str:
    return make_reference(*unpack_place(place))


def _list_new(
    now: Snapshot, log: LogFingerprints, runs: Sequence[Run], body: Sequence[Message], there: int
) -> Iterator[Message]:
    """Yield the host's messages from index *there* on, which the log lacks.

    Results of calls in the log get the ids of these calls in the log, which may differ from the host's.
    """
    last, new = there, body[there:]
    while last and not begins(body[last - 1]):
        last -= 1
    ids: dict[str, str] = {}
    if last and new and not begins(new[0]):
        index = next((run.here + last - 1 - run.there for run in runs if 0 <= last - 1 - run.there < run.size), None)
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
    parts = _list_parts(renamed)
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


def _find_header_changes(memory: Memory, lead: Sequence[Message], posts: Sequence[Post]) -> list[Post]:
    """Return the parts that turn the header from *posts* into *lead*; none if the host gives no system message.

    It may have dropped them with its oldest messages, or pass them elsewhere.
    """
    if not lead:
        return []
    own = [post for post in memory.header if post.send_to == chat.ASSISTANT]
    present = [post for post in own if post.kind.startswith(HEADER_MESSAGE) or not post.kind.startswith(HEADER_PART)]
    changes, fingerprint = list[Post](), Fingerprinter()
    for place in range(max(len(lead), len(present))):
        kind = f"{HEADER_MESSAGE}{place + 1}"
        if place >= len(lead):
            changes.append(copy_with(present[place], message="", extra=EMPTY, kind=kind))
        elif place >= len(present) or fingerprint(chat.from_post(present[place])) != fingerprint(lead[place]):
            changes.append(copy_with(posts[place], kind=kind))
    return changes


def _print_host(body: Sequence[Message], lead: int, state: SyncState, newest: int) -> tuple[bytes, int, int]:
    """Return the fingerprints of the host's messages; the number of leading messages that are objects of the last call,
    which are not read again (except the *newest*); and the first one's index in that call's list."""
    same = start = 0
    if body and state.held:
        start = next((place for place, one in enumerate(state.held) if one is body[0]), 0)
        again = list(map(is_, body, islice(state.held, start, None)))
        same = again.index(False) if False in again else len(again)
    fresh = max(same - newest, 0)
    while 0 < fresh < len(body) and not begins(body[fresh]):
        fresh -= 1
    fingerprint, prints = Fingerprinter(), [state.prints[start * SIZE : (start + fresh) * SIZE]]
    for place in range(fresh, len(body)):
        try:
            prints.append(fingerprint(body[place]))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            _parse(body[place], lead + place)  # raises an error that names the fault
            raise MessageError(f"message {lead + place + 1} cannot be stored as JSON") from error
    return b"".join(prints), same, start


def align(
    log: LogFingerprints,
    prints: bytes,
    body: Sequence[Message],
    starts: Sequence[Start] = (),
    last: bytes = b"",
    former: Sequence[Message] = (),
) -> Alignment:
    """Return the alignment of the host's messages, with these *prints*, that matches the most messages of the log.

    At a tie, the host has the whole log rather than its newest part. *last* is the fingerprints of the last call's
    list, and *starts* its alignment, which still holds if nothing is undone with it. *former* is that list from the
    object on that is the first of this one; empty if that is unknown.
    """
    if not prints:
        return _follow(log, prints, body, [(0, len(log.kinds))])
    found = []
    known = _follow(log, prints, body, starts)
    if _is_known(log, prints, known, starts, last):
        if not known.is_diverged:
            return known
        if known.kept and starts[-1][0] < len(body) and former and not _has(former[1:], body[0]):
            return _pass_holes(log, prints, body, known, starts, former)  # it begins with the very object that it did
        found.append(known)
    best = whole = _follow(log, prints, body, [(0, 0)])
    if not whole.is_diverged:
        return whole
    # Where the list begins as before, few messages more are words that repeat, and not what is left of the history.
    least = max((one.kept + ENOUGH for one in (whole, *found) if one.kept), default=1)
    for start in _find_starts(log, prints):
        if len(log.kinds) - start >= best.kept:
            window = _follow(log, prints, body, [(0, start)])
            is_whole = not window.is_diverged and ((window.kept > 1 and 2 * window.kept >= len(body)) or len(body) <= 2)
            if window.kept >= least and (window.kept >= ENOUGH or is_whole):
                best = max(best, window, key=_rate)
    found.append(best)
    return max((_pass_holes(log, prints, body, one, starts) for one in found), key=_rate)


def _rate(found: Alignment) -> tuple[int, bool, int]:
    return found.kept, not found.is_diverged, -found.there


def _is_known(log: LogFingerprints, prints: bytes, known: Alignment, starts: Sequence[Start], last: bytes) -> bool:
    """Return whether the alignment *starts* may still be valid.

    The log must be unchanged there. In the host's list, everything before the last start must be unchanged; or only the
    host's own messages changed there, with enough shared messages after it. If nothing precedes the last start, one of
    the first two messages must be unchanged.
    """
    for there, here in starts:
        if here > len(log.kinds) or (
            here < len(log.kinds) and log.kinds[here] < ERASED and get_print(log.prints, here) != get_print(last, there)
        ):
            return False
    there = starts[-1][0] if starts else 0
    if there and prints[: there * SIZE] != last[: there * SIZE]:
        changed = (get_print(last, at) for at in range(there) if get_print(prints, at) != get_print(last, at))
        is_own = all(next(_find_last(log.prints, one, 0), None) is None for one in changed)
        return is_own and sum(run.size for run in known.runs if run.there >= there) >= ENOUGH
    return bool(starts) and (there > 0 or any(get_print(prints, at) == get_print(last, at) != b"" for at in (0, 1)))


def _pass_holes(
    log: LogFingerprints,
    prints: bytes,
    body: Sequence[Message],
    found: Alignment,
    starts: Sequence[Start],
    former: Sequence[Message] = (),
) -> Alignment:
    """Return *found*, extended past holes: messages that the host dropped, and replaced by fewer of its own or none."""
    while found.is_diverged:
        start = _find_end_of_hole(log, prints, body, found, starts, former)
        if start is None and (not former or _has(former[found.there :], body[found.there - 1])):
            start = _find_newest(log, prints, body, found)
        if start is None:
            break
        found = _follow(log, prints, body, [*(one for one in found.starts if found.runs and one[0] < start[0]), start])
    return found


def _find_end_of_hole(
    log: LogFingerprints,
    prints: bytes,
    body: Sequence[Message],
    found: Alignment,
    starts: Sequence[Start],
    former: Sequence[Message],
) -> Start | None:
    """Return the first place after *found* from which both continue alike, past as few unknown messages as possible.

    In doubt, unknown messages are the user's and are not skipped. A summary makes no calls, makes the list shorter than
    in the last call, and precedes a shared query of the user.
    """
    for there in range(found.there, min(found.there + MAX_OWN + 1, len(body))):
        is_own = there > found.there
        if is_own and _is_paired(body[there - 1]):
            return None
        if there and _is_answer(body[there]):
            continue  # a result is shared only with its call
        places = islice(_find_last(log.prints, get_print(prints, there), found.here), MAX_PLACES)
        best = max((_follow(log, prints, body, [(there, here)]) for here in places), key=_rate, default=None)
        if best is None or best.kept < (ENOUGH if is_own or best.is_diverged else 2):
            continue
        if not is_own and best.kept < 2 * ENOUGH and not _is_unique(log, best):
            continue
        if former and not _has(former, body[there]):
            continue  # made after the last call, though its text is in the log
        here = best.starts[0][1]
        if not is_own:
            return (there, here) if here > found.here else None
        missing = here - found.here - log.kinds.count(OPTIONAL, found.here, here)
        has_query = any(one["role"] == "user" and not _is_paired(one) for one in body[there : best.there])
        if has_query and there - found.there < missing and there < _find_former(log, starts, here):
            return there, here
    return None


def _has(messages: Sequence[Message], message: Message) -> bool:
    return any(map(is_, messages, repeat(message)))


def _is_unique(log: LogFingerprints, found: Alignment) -> bool:
    """Return whether the log says nowhere else what enough of the messages say that match in *found*."""
    shared = (get_print(log.prints, here) for run in found.runs for here in range(run.here, run.here + run.size))
    unique = (one for one in shared if len([*islice(_find_last(log.prints, one, 0), 2)]) == 1)
    least = min(found.kept, ENOUGH)
    return len([*islice(unique, least)]) == least


def _find_former(log: LogFingerprints, starts: Sequence[Start], here: int) -> int:
    """Return the index that the log's message *here* had in the last call's list, aligned by *starts*."""
    there, begin = max((one for one in starts or [(0, 0)] if one[1] <= here), default=(0, here))
    return there + here - begin - log.kinds.count(OPTIONAL, begin, here)


def _is_answer(message: Message) -> bool:
    return message["role"] in (chat.TOOL, chat.FUNCTION) or any(map(is_result, _list_parts(message)))


def _is_paired(message: Message) -> bool:
    """Return whether *message* makes a call, or answers one."""
    is_call = message.get("tool_calls") or message.get("function_call")
    is_part = any(isinstance(one, Mapping) and one.get("type") == "tool_use" for one in _list_parts(message))
    return bool(is_call) or is_part or _is_answer(message)


def _list_parts(message: Message) -> Sequence[Any]:
    content = message.get("content")
    return (
        () if content is None or isinstance(content, str) else (content,) if isinstance(content, Mapping) else content
    )


def _find_newest(log: LogFingerprints, prints: bytes, body: Sequence[Message], found: Alignment) -> Start | None:
    """Return the start of the log's newest messages in the host's list, for histories that repeat themselves.

    The last match in *found* must also fit there, and the host must have every text of the log after *found*.
    """
    first, there, newest = found.runs[-1].there if found.runs else 0, found.there, len(log.kinds)
    back = newest - there  # from the one list to the other
    while there > first and get_print(prints, there - 1) == get_print(log.prints, there + back - 1):
        there -= 1
    while there < found.there and _is_answer(body[there]):
        there += 1
    if found.there - there < ENOUGH or back <= found.here - found.there:
        return None
    said = {get_print(prints, index) for index in range(found.there)}
    is_again = all(get_print(log.prints, index) in said for index in range(found.here, newest))
    return (there, there + back) if is_again else None


def _find_last(prints: bytes, wanted: bytes, first: int) -> Iterator[int]:
    """Yield the indexes of *wanted* from index *first* on, last one first."""
    end = len(prints)
    while (place := prints.rfind(wanted, first * SIZE, end)) >= 0:
        if place % SIZE == 0:
            yield place // SIZE
        end = place + len(wanted) - 1


def _find_starts(log: LogFingerprints, prints: bytes) -> Iterator[int]:
    """Yield the log's indexes above 0 that match the host's first message, or its second after an erased message."""
    for behind in range(min(len(prints) // SIZE, 2)):
        wanted, place = get_print(prints, behind), 0
        while (place := log.prints.find(wanted, place + 1)) >= 0:
            start = place // SIZE - behind
            if place % SIZE == 0 and start > 0 and (not behind or log.kinds[start] >= ERASED):
                yield start


def _follow(log: LogFingerprints, prints: bytes, body: Sequence[Message], starts: Sequence[Start]) -> Alignment:
    """Return the alignment that follows from each of *starts*, up to the next."""
    there, here, runs, begun = 0, 0, list[Run](), list[Start]()
    length = len(log.kinds)
    for start, (end_there, end_here) in pairwise([*starts, (len(body), length)]):
        there, here = start
        known = len(runs)
        while True:
            same = _count_equal(log.prints, here, prints, there, min(end_here - here, end_there - there))
            if same:
                runs.append(Run(there, here, same))
            there, here = there + same, here + same
            if here >= end_here:
                break
            kind = log.kinds[here]
            if kind >= ERASED and there < end_there and kind == find_kind(chat.parse(body[there])):
                runs.append(Run(there, here, 1))
                there, here = there + 1, here + 1
            elif kind == OPTIONAL:
                here += 1
            else:
                break
        begun += [run[:2] for run in runs[known : known + 1]] or [start]
    return Alignment(begun, runs, there, here, is_diverged=here < length)


def _shift(starts: Sequence[Start], first: int) -> list[Start]:
    """Return *starts* for a list that begins at index *first* of the list that they belong to."""
    ends = [*(there for there, _ in starts[1:]), first + 1]
    shifted = zip(starts, ends, strict=False)
    return [(max(there - first, 0), here + max(first - there, 0)) for (there, here), end in shifted if end > first]


def _cut_starts(starts: Sequence[Start], end: int, body: Sequence[Message]) -> list[Start]:
    """Return *starts* for a log that now ends at index *end*.

    A start at a result moves back to the call, because the call was undone with its result.
    """
    left = [start for start in starts if start[1] < end]
    if len(left) < len(starts):
        there, here = starts[len(left)]
        while here > end and there and not begins(body[there]):
            there -= 1
        left.append((there, end))
    return left


def _count_dropped(log: LogFingerprints, found: Alignment) -> int:
    """Return how many log messages the host dropped; messages that it never had do not count."""
    dropped = before = 0
    for here, count in [*((run.here, run.size) for run in found.runs), (found.here, 0)]:
        dropped += here - before - log.kinds.count(OPTIONAL, before, here)
        before = here + count
    return dropped


def _count_equal(one: bytes, at: int, other: bytes, there: int, left: int) -> int:
    """Return how many of *left* fingerprints of *one*, from index *at* on, equal those of *other* from *there* on."""
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
