"""Matches the messages of a host's list with those of the log. ``sync`` uses it, and the search for a session.

The list begins where it began at the last call, or with the log. Where it stops matching, either the host has dropped
messages (a hole in the list), or its history has changed. It is a hole if there is evidence behind it, until the log's
end or beyond doubt:

- an object of the last call is evidence enough;
- texts that the log has once are ``UNIQUE`` evidence, and others are ``REPEATED``: a hole needs ``ENOUGH``, and
  ``MADE_ANEW`` if the host gives other objects again but not these;
- a summary in the hole needs ``STRONG`` evidence. It says what nobody said before, and makes the list shorter;
- messages that the host has elsewhere in its list were moved: nothing is evidence that they were dropped.

Otherwise the alignment ends there, and is diverged: ``sync`` then undoes the log's messages behind it and writes the
host's. So a prompt shows what the host has in either case; evidence decides whether what it lacks stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from operator import attrgetter, is_
from struct import iter_unpack
from typing import Any, NamedTuple

from . import messages as chat
from .fingerprints import (
    ERASED,
    OPTIONAL,
    SIZE,
    USUAL,
    LogFingerprints,
    Message,
    find_kind,
    get_print,
    is_result,
)
from .rounds import cached_property, copy_with
from .values import ValueObject

#: Maximum messages that replace dropped ones: a summary, perhaps with its request or an acknowledgement.
MAX_SUMMARY = 2
#: Evidence of a message behind a hole: one that the log has once, and one that it has several times. The latter counts
#: only if the host makes copies of its objects, because a new object with such words says them again.
UNIQUE, REPEATED = 4, 1
#: Minimum evidence behind a hole; and if it has a summary, or the histories diverge later.
ENOUGH, STRONG = 2 * UNIQUE, 3 * UNIQUE
#: Minimum evidence of new objects if the host gives others again: more than a turn has that the agent does once more.
MADE_ANEW = 6 * UNIQUE
#: Minimum matching messages behind a summary, and of a list that repeats itself, see ``_find_newest``.
MIN_MATCHING = 4
#: Maximum log messages with the same text that are tried as the end of a hole, the newest first.
MAX_TRIED = 1_000


class Anchor(NamedTuple):
    """Two messages that match where the list begins, or behind a hole."""

    host_index: int
    log_index: int


class MatchingSpan(NamedTuple):
    """Consecutive messages that match."""

    host_start: int
    log_start: int
    size: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HostList(ValueObject):
    """The list that a host gave, and its alignment."""

    prints: bytes = b""
    anchors: Sequence[Anchor] = ()
    #: The host's objects; all, the first one alone, or none.
    messages: Sequence[Message] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Alignment(ValueObject):
    """The alignment of the host's messages with those of the log."""

    #: Where matching begins, and resumes behind holes.
    anchors: Sequence[Anchor]
    #: The log's optional and erased messages also separate spans.
    spans: Sequence[MatchingSpan]
    #: Indexes of the first messages behind the last match.
    host_end: int
    log_end: int
    is_diverged: bool

    @property
    def kept(self) -> int:
        return sum(span.size for span in self.spans)


def find_log_index(spans: Iterable[MatchingSpan], host_index: int) -> int | None:
    """Return the index of the log's message that matches the host's at *host_index*."""
    places = (
        span.log_start + host_index - span.host_start for span in spans if 0 <= host_index - span.host_start < span.size
    )
    return next(places, None)


def count_same(messages: Sequence[Message], others: Sequence[Message]) -> int:
    """Return how many of the first *messages* are the same objects as *others*."""
    same = list(map(is_, messages, others))
    return same.index(False) if False in same else len(same)


def align(log: LogFingerprints, prints: bytes, messages: Sequence[Message], last: HostList | None = None) -> Alignment:
    """Return the alignment of the host's *messages*, with these *prints*. *last* is its list of the last call."""
    last = last or HostList()
    if not prints:
        return follow(log, prints, messages, [Anchor(0, len(log.kinds))])
    anchors = _list_known(log, prints, last) or [Anchor(0, 0)]
    known = follow(log, prints, messages, anchors)
    if known.host_end == len(messages) and find_log_index(known.spans, len(messages) - 1) is None:
        # A prompt needs the last message, so it cannot be skipped as a summary of the host's own.
        anchors[-1] = Anchor(len(messages) - 1, anchors[-1].log_index)
        known = follow(log, prints, messages, anchors)
    return _Aligner(log, prints, messages, last).align(anchors) if known.is_diverged else known


def follow(
    log: LogFingerprints,
    prints: bytes,
    messages: Sequence[Message],
    anchors: Sequence[Anchor],
    *,
    has_erased: bool = True,
) -> Alignment:
    """Return the alignment that follows from each of *anchors*, up to the next. *has_erased*: the host may still have
    the erased messages."""
    host, here, spans, begun = 0, 0, list[MatchingSpan](), list[Anchor]()
    length = len(log.kinds)
    for anchor, (host_end, log_end) in pairwise([*anchors, Anchor(len(messages), length)]):
        host, here = anchor
        known = len(spans)
        while True:
            same = _count_equal(log.prints, here, prints, host, min(log_end - here, host_end - host))
            if same:
                spans.append(MatchingSpan(host, here, same))
            host, here = host + same, here + same
            if here >= log_end:
                break
            kind = log.kinds[here]
            is_given = kind >= ERASED and has_erased and host < host_end
            if is_given and kind == find_kind(chat.parse(messages[host])):
                spans.append(MatchingSpan(host, here, 1))
                host, here = host + 1, here + 1
            elif kind == OPTIONAL or (kind >= ERASED and not has_erased):
                here += 1
            else:
                break
        begun += [Anchor(span.host_start, span.log_start) for span in spans[known : known + 1]] or [anchor]
    return Alignment(begun, spans, host, here, is_diverged=here < length)


def _list_known(log: LogFingerprints, prints: bytes, last: HostList) -> list[Anchor]:
    """Return the anchors of the *last* call that are still valid: the log is unchanged there, and the host's list up to
    there. A list may begin with an edited message if the next one is unchanged."""
    same = _count_equal(last.prints, 0, prints, 0, min(len(last.prints), len(prints)) // SIZE)
    if not same and not 0 < len(prints) > SIZE < len(last.prints):
        return []
    if not same and get_print(last.prints, 1) != get_print(prints, 1):
        return []
    valid = list[Anchor]()
    for anchor in last.anchors:
        index, log_index = anchor
        is_in_log = log_index < len(log.kinds) and (
            log.kinds[log_index] >= ERASED or get_print(log.prints, log_index) == get_print(last.prints, index)
        )
        if index > same or not (is_in_log or log_index == len(log.kinds)):
            break
        valid.append(anchor)
    return valid


def cut_list(log: LogFingerprints, last: HostList, first: int, messages: Sequence[Message]) -> HostList:
    """Return the *last* list without what stood before its object at index *first*; whole if an object of that part has
    moved elsewhere in *messages*."""
    if not first:
        return last
    moved = {*map(id, last.messages[:first])}.intersection(map(id, messages))
    if moved.difference(map(id, last.messages[first:])):
        return last
    known = follow(log, last.prints, last.messages, _list_known(log, last.prints, last) or [Anchor(0, 0)])
    log_index = find_log_index(known.spans, first)
    anchors = [Anchor(0, log_index)] if log_index is not None else []
    anchors += [Anchor(index - first, place) for index, place in known.anchors if index > first]
    return HostList(last.prints[first * SIZE :], anchors, last.messages[first:])


class _Aligner:
    """Aligns a list that does not continue the log as it is."""

    def __init__(self, log: LogFingerprints, prints: bytes, messages: Sequence[Message], last: HostList) -> None:
        self.log, self.prints, self.messages, self.last = log, prints, messages, last
        self.log_prints = log.prints
        #: Index of the first object of the last call that had another index there.
        self.displaced = len(messages)
        self.has_erased = max(log.kinds, default=0) >= ERASED
        #: Indexes, in this list and in the log, of the objects of the last call that are elsewhere in this list.
        self.moved, self.moved_from = set[int](), set[int]()
        #: Whether this list has objects of the last call.
        self.has_objects, self.repeated = False, REPEATED
        if len(last.messages) * SIZE == len(last.prints):
            self._mark_objects()

    @cached_property
    def _occurrences(self) -> Counter[bytes]:
        """How often the log has each fingerprint; counted once, because a list may have thousands of holes."""
        return _count_prints(self.log_prints)

    @cached_property
    def _said(self) -> Counter[bytes]:
        """How often the host's list has each fingerprint."""
        return _count_prints(self.prints)

    @cached_property
    def _last_said(self) -> Counter[bytes]:
        """How often the host's last list had each fingerprint; the log, if there was no list."""
        return _count_prints(self.last.prints or self.log_prints)

    def _mark_objects(self) -> None:
        """Give moved objects and their messages in the log fingerprints of their own, so that they match no others."""
        messages, former = self.messages, self.last.messages
        unmoved = count_same(messages, former)
        self.has_objects = unmoved > 0
        indexes = {id(one): at for at, one in enumerate(former[unmoved:], unmoved)}
        times = Counter(map(id, chain(former[unmoved:], messages[unmoved:])))
        known = follow(self.log, self.last.prints, former, _list_known(self.log, self.last.prints, self.last))
        prints, log_prints, kinds = bytearray(self.prints), bytearray(self.log.prints), bytearray(self.log.kinds)
        for index, message in enumerate(messages[unmoved:], unmoved):
            before = indexes.get(id(message))
            if before is None or get_print(self.last.prints, before) != get_print(self.prints, index):
                continue
            self.has_objects = True
            log_index = find_log_index(known.spans, before)
            if log_index is not None and times[id(message)] == 2:
                mark = log_index.to_bytes(SIZE, "big")
                self.moved.add(index)
                self.moved_from.add(log_index)
                self.displaced = min(self.displaced, index if index != before else self.displaced)
                prints[index * SIZE : (index + 1) * SIZE] = log_prints[log_index * SIZE : (log_index + 1) * SIZE] = mark
                kinds[log_index] = USUAL if kinds[log_index] >= ERASED else kinds[log_index]
        self.repeated = 0 if self.has_objects else REPEATED
        if self.moved:
            self.prints = bytes(prints)
            self.log = copy_with(self.log, prints=bytes(log_prints), kinds=bytes(kinds))

    def align(self, known: Sequence[Anchor]) -> Alignment:
        """Return the alignment that begins at the anchors *known*, or with the log, and passes holes with evidence."""
        known = [one for one in known if one.host_index <= self.displaced] or [Anchor(0, 0)]
        found = self._follow(known)
        if found.is_diverged and self.has_erased:  # the host may have dropped what was erased
            without = follow(self.log, self.prints, self.messages, known, has_erased=False)
            if not without.is_diverged or without.kept >= found.kept:
                resumed = [Anchor(one.host_start, one.log_start) for one in without.spans]
                found = copy_with(without, anchors=resumed or without.anchors)
        if known[1:] or known[0].log_index:
            whole = self._follow([Anchor(0, 0)])
            if self._count_evidence(whole, self.repeated, found.host_end) >= ENOUGH:
                found = whole  # the host has older messages again
        certain, surplus = found, 0  # what stands if no more evidence is found
        while found.is_diverged and (hole := self._find_end_of_hole(found)) is not None:
            behind, more = hole
            found, surplus = _join(found, behind), surplus + more
            if surplus >= (UNIQUE if found.is_diverged else 0):
                certain, surplus = found, 0
        return self._find_newest(certain) if certain.is_diverged and not self.has_objects else certain

    def _follow(self, anchors: Sequence[Anchor]) -> Alignment:
        return follow(self.log, self.prints, self.messages, anchors)

    def _find_end_of_hole(self, found: Alignment) -> tuple[Alignment, int] | None:
        """Return what matches behind the hole at the end of *found*, and its evidence beyond what a hole needs.

        The hole ends at the first message that has evidence. A call stays with its results.
        """
        host_end, log_end = found.host_end, found.log_end
        while 0 < host_end < len(self.messages) and is_answer(self.messages[host_end]):
            host_end -= 1
        if host_end < found.host_end:
            call = find_log_index(found.spans, host_end)
            if call is None:
                return None
            log_end = call
        if host_end == len(self.messages) or is_answer(self.messages[host_end]):
            return None
        if (behind := self._find_behind(host_end, log_end)) is not None:
            if host_end in self.moved:
                return behind, UNIQUE
            evidence = self._count_evidence(behind, self.repeated)
            if evidence >= UNIQUE:
                is_short = host_end == 0 and len(self.messages) <= 2
                return behind, evidence - (UNIQUE if is_short else MADE_ANEW if self.has_objects else ENOUGH)
        for index in range(host_end + 1, min(host_end + MAX_SUMMARY + 1, len(self.messages))):
            if not self._may_be_summary(index - 1) or is_answer(self.messages[index]):
                return None
            if (behind := self._find_behind_summary(host_end, log_end, index)) is not None:
                return behind, UNIQUE
        return None

    def _find_behind_summary(self, host_end: int, log_end: int, index: int) -> Alignment | None:
        """Return what matches from *index* of the host's list on, if the messages in front of it are a summary."""
        if (behind := self._find_behind_reworded(host_end, log_end, index)) is not None:
            return behind
        behind = self._find_behind(index, log_end)
        if behind is None or behind.kept < MIN_MATCHING or self._count_evidence(behind, 0) < STRONG:
            return None
        return behind if self._is_summarized(host_end, log_end, behind) else None

    def _find_behind(self, index: int, log_end: int) -> Alignment | None:
        """Return what matches from *index* of the host's list on, behind a hole in the log from *log_end* on."""
        tried = (self._follow([Anchor(index, place)]) for place in self._list_places(index, log_end + 1))
        best = max(tried, key=_rate, default=None)
        return None if best is None or self._has_moved(log_end, best) else best

    def _has_moved(self, first: int, behind: Alignment) -> bool:
        """Return whether the host has messages of the log from index *first* to before *behind* elsewhere in its list.

        One of its objects is enough. In new objects, all that its last list had are there, as often as it had them.
        """
        end = behind.anchors[0].log_index
        if not self.moved_from.isdisjoint(range(first, end)):
            return True
        begin = max(first, self.last.anchors[0].log_index) if self.last.anchors else first
        hole = [at for at in range(begin, end) if self.log.kinds[at] != OPTIONAL]
        if len(hole) == 1 and not behind.is_diverged:
            return False  # the host may drop one message, and say the same again at its list's end
        prints = {get_print(self.log_prints, at) for at in hole if self.log.kinds[at] == USUAL} & self._last_said.keys()
        if all(self._occurrences[one] > 1 for one in prints):
            return False  # words that repeat are no evidence
        return all(self._said[one] >= self._last_said[one] for one in prints)

    def _list_places(self, index: int, first: int) -> Iterator[int]:
        """Yield the log's indexes from *first* on that match the host's message at *index*, the newest first."""
        places = _find_last(self.log.prints, get_print(self.prints, index), first)
        if self.has_erased and index not in self.moved:
            erased = bytes([find_kind(chat.parse(self.messages[index]))])
            places = chain(places, _find_last(self.log.kinds, erased, first))
        return islice(places, MAX_TRIED)

    def _count_evidence(self, found: Alignment, repeated: int, first: int = 0) -> int:
        """Return the evidence from index *first* of the host's list on that *found* is no coincidence, at most
        ``MADE_ANEW``; *repeated* for each text that repeats.

        Erased messages are no evidence; nor are results that repeat, because the same call often has the same one.
        """
        evidence = 0
        for host_start, log_start, size in found.spans:
            for index in range(max(host_start, first), host_start + size):
                if evidence >= MADE_ANEW:
                    return evidence
                log_index = log_start + index - host_start
                if self.log.kinds[log_index] >= ERASED:
                    continue
                if index in self.moved or self._occurrences[get_print(self.log_prints, log_index)] == 1:
                    evidence += UNIQUE
                elif not is_answer(self.messages[index]):
                    evidence += repeated
        return evidence

    def _may_be_summary(self, index: int) -> bool:
        """Return whether the host's message at *index* may be its own: it makes and answers no call, and nobody said it
        before."""
        if index in self.moved or _is_paired(self.messages[index]):
            return False
        return get_print(self.prints, index) not in self._occurrences

    def _find_behind_reworded(self, host_end: int, log_end: int, index: int) -> Alignment | None:
        """Return what matches behind a hole of the last call, if the host has reworded its summary there."""
        hole = next((one for one in self.last.anchors if one.host_index == index and one.log_index > log_end), None)
        if hole is None or get_print(self.last.prints, host_end) == get_print(self.log_prints, log_end):
            return None
        behind = self._follow([hole])
        return behind if behind.spans else None

    def _is_summarized(self, host_end: int, log_end: int, behind: Alignment) -> bool:
        """Return whether the messages in front of *behind* are fewer than those that they replace, in the log and in
        the last call's list, and the matching ones have a query of the user."""
        index, log_index = behind.anchors[0]
        dropped = log_index - log_end - self.log.kinds.count(OPTIONAL, log_end, log_index)
        begins = self.last.anchors or [Anchor(0, 0)]
        begin, first = max((one for one in begins if one.log_index <= log_index), default=Anchor(0, log_index))
        before = begin + log_index - first - self.log.kinds.count(OPTIONAL, first, log_index)
        has_query = any(one["role"] == "user" and not _is_paired(one) for one in self.messages[index : behind.host_end])
        return has_query and index - host_end < dropped and index < before

    def _find_newest(self, found: Alignment) -> Alignment:
        """Return *found*, or an alignment with the log's newest messages if only words that repeat would be undone.

        The last messages of *found* must also match there, and the host must have every text of the log behind *found*.
        """
        first = found.spans[-1].host_start if found.spans else 0
        start, offset = found.host_end, len(self.log.kinds) - found.host_end
        while start > first and get_print(self.prints, start - 1) == get_print(self.log_prints, start + offset - 1):
            start -= 1
        while start < found.host_end and is_answer(self.messages[start]):
            start += 1
        if found.host_end - start < MIN_MATCHING:
            return found
        said = {get_print(self.prints, index) for index in range(found.host_end)}
        if any(get_print(self.log_prints, index) not in said for index in range(found.log_end, len(self.log.kinds))):
            return found
        return self._follow([*(one for one in found.anchors if one.host_index < start), Anchor(start, start + offset)])


def _join(found: Alignment, behind: Alignment) -> Alignment:
    """Return *found* up to where *behind* begins, and *behind*."""
    index = behind.anchors[0].host_index
    spans = [*found.spans[: bisect_left(found.spans, index, key=attrgetter("host_start"))]]
    anchors = [*found.anchors[: bisect_left(found.anchors, index, key=attrgetter("host_index"))]]
    if spans:
        spans[-1] = spans[-1]._replace(size=min(spans[-1].size, index - spans[-1].host_start))
    if anchors and not (spans and spans[-1].host_start >= anchors[-1].host_index):
        anchors.pop()  # nothing matched there
    return copy_with(behind, anchors=[*anchors, *behind.anchors], spans=[*spans, *behind.spans])


def _rate(found: Alignment) -> tuple[int, bool]:
    return found.kept, not found.is_diverged


def is_answer(message: Message) -> bool:
    """Return whether *message* answers a call."""
    return message["role"] in (chat.TOOL, chat.FUNCTION) or any(map(is_result, list_parts(message)))


def _is_paired(message: Message) -> bool:
    """Return whether *message* makes a call, or answers one."""
    is_call = message.get("tool_calls") or message.get("function_call")
    is_part = any(isinstance(one, Mapping) and one.get("type") == "tool_use" for one in list_parts(message))
    return bool(is_call) or is_part or is_answer(message)


def list_parts(message: Message) -> Sequence[Any]:
    """Return the parts of a message's content; none if it is a text."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return ()
    return (content,) if isinstance(content, Mapping) else content


def _count_prints(prints: bytes) -> Counter[bytes]:
    return Counter(one for (one,) in iter_unpack(f"{SIZE}s", prints))


def _find_last(prints: bytes, wanted: bytes, first: int = 0) -> Iterator[int]:
    """Yield the indexes of *wanted*, a fingerprint or a kind, from index *first* on, last one first."""
    size, end = len(wanted), len(prints)
    while (place := prints.rfind(wanted, first * size, end)) >= 0:
        if place % size == 0:
            yield place // size
        end = place + size - 1


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
