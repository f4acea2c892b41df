"""One role's rounds, counted once: what closed ones cost is summed up, what open ones do remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, Literal, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from memory import Memory
from memory.hooks import renewed_after_fork
from memory.messages import reads, text_of
from memory.overlays import Reduction, Reductions
from memory.references import place_reference, post_reference, range_reference
from memory.rounds import USER, Post, Round, thaw
from memory.visibility import Rounds

from ..tokens import TokenCounter
from .groups import (
    OVERLAY,
    Message,
    MessageGroup,
    apply_overlays,
    count_message,
    group_messages,
    reading,
    tells_of_drops,
)
from .shorten import OffloadRule, is_result

#: What shortened a text: a preview stands for it, or a line, or its head and tail do; published reductions also drop
#: posts, or have a summary stand for them.
By = Literal["offloaded", "cleared", "clipped", "dropped", "summarised"]


@dataclass(frozen=True, slots=True)
class Reduced:
    """A text, or several posts, that the prompt shows shortened, or not at all."""

    #: Reloads the original: ``memory.reload(ref)``.
    ref: str
    tokens_before: int
    tokens_after: int
    #: The heaviest that was done to it.
    by: By
    #: Whether every prompt shows it so, for it is in the log; else it was done for this prompt alone.
    published: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the tail: system messages, then the compaction. And the plan, which stands in the tail."""

    system: tuple[Message, ...] = ()
    compaction: Message | None = None
    plan: Message | None = None

    def messages(self) -> list[Message]:
        return [*self.system, *([self.compaction] if self.compaction is not None else [])]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What becomes the prompt, and what was done for it."""

    messages: list[Message]
    tokens: int
    #: Tokens of the same without the ladder.
    tokens_before: int
    omitted_rounds: tuple[int, ...] = ()
    reductions: tuple[Reduced, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A unit of the tail, as it is shown, and what its messages cost."""

    round_: Round
    group: MessageGroup
    costs: tuple[int, ...]
    #: The newest query, and what is pinned: neither left out nor shortened.
    fixed: bool = False
    pinned: bool = False
    #: On how many rungs its texts were shortened: ``costs`` says so, and ``unit`` only once it is made.
    levels: int = 0
    reductions: tuple[Reduced, ...] = ()

    @property
    def verbatim(self) -> bool:
        return self.fixed or self.pinned

    @property
    def stays(self) -> bool:
        """Whether it is left out only where it alone is too much; a call that waits may be clipped."""
        return self.verbatim or self.group.pending

    @property
    def tokens(self) -> int:
        return sum(self.costs)

    def reading(self, group: MessageGroup, costs: tuple[int, ...], places: Iterable[int], by: By) -> PromptPart:
        """Return the piece with *unit* in the place of its own, whose messages at *places* are shorter *by* that."""
        known = {reduced.ref: reduced for reduced in self.reductions}
        for place in places:
            ref = post_reference(self.round_, self.group.posts[place])
            before = known[ref].tokens_before if ref in known else self.costs[place]
            known[ref] = Reduced(ref, before, costs[place], by)
        return replace(self, group=group, costs=costs, reductions=tuple(known.values()))


@dataclass(slots=True)
class Draft:
    """What the tail becomes, in this order."""

    #: What stands before all that is shown and is shown all the same.
    ahead: Sequence[PromptPart] = ()
    #: The places of rounds that are shown as they are, whose costs the ledger has summed up; then units one by one.
    counted: range = field(default_factory=lambda: range(0))
    pieces: Sequence[PromptPart] = ()
    #: Places of the rounds that are left out, and the units of others.
    rounds: range = field(default_factory=lambda: range(0))
    groups: Sequence[PromptPart] = ()
    #: Whether a line tells of them.
    says_so: bool = True

    @property
    def shown(self) -> list[PromptPart]:
        return [*self.ahead, *self.pieces]


def ends(pieces: Sequence[PromptPart]) -> tuple[str, ...]:
    """Return the references of the first and the last post in *pieces*, as the log has them; none where there are none.

    Not those at their ends: a result that came late stands behind its call.
    """
    if not pieces:
        return ()
    numbers = [
        (piece.round_.number, post.number if post is not None else 0) for piece in pieces for post in piece.group.posts
    ]
    return place_reference(*min(numbers)), place_reference(*max(numbers))


def note(rounds: Sequence[int], first_post: str = "", last_post: str = "", *, dropped_from: int = 0) -> Message:
    """Return the line that says what is left out, and how to read it: whole rounds, then posts, then those that were
    dropped here and there from round *dropped_from* on. Of these it names no end, which would move with each."""
    said: list[str] = []
    if rounds:
        said.append(f"rounds {rounds[0]} to {rounds[-1]} (reload {range_reference(rounds[0], rounds[-1])})")
    if first_post:
        said.append(f"the posts from {first_post} to {last_post} (reload each by that name)")
    if dropped_from:
        said.append(
            f"single posts from round {dropped_from} on (reload r{dropped_from} or any other round by its number)"
        )
    return {"role": "system", "content": f"[Left out here to save space, and kept in full: {', '.join(said)}.]"}


# --- the rungs of the prompt's ladder that shorten a text and leave the message: large payloads, then old tool result


#: From light to heavy: large payloads are offloaded, then smaller tool results, then tool results are cleared, previews
#: of large ones as well: so that of no small one less is shown than of a large one. The strategies are the same rules,
#: run in the background.
_LARGE = OffloadRule()
LEVELS = (
    _LARGE,
    OffloadRule(threshold=400, up_to=_LARGE.threshold, kinds=("tool_result",)),
    OffloadRule(threshold=120, preview=0, kinds=("tool_result",), again=True),
)


#: The place of the heaviest.
LAST = len(LEVELS) - 1


class Shortened(NamedTuple):
    """A unit some of whose messages read shorter, and what each of its messages costs then."""

    group: MessageGroup
    costs: tuple[int, ...]
    #: Which of its messages do, by their places.
    places: tuple[int, ...]


def shortened(
    round_: Round, group: MessageGroup, costs: Sequence[int], rule: OffloadRule, count: TokenCounter
) -> Shortened:
    """Return *unit* with the texts that *rule* takes out of it replaced, none by a longer one."""
    messages: list[Message] = []
    after = list(costs)
    changed: list[int] = []
    for place, post in enumerate(group.posts):
        if post is None or (place and post is group.posts[0]):  # a call stands for each result that it lacks
            continue
        reduction = rule.applied(round_, post, count, cost=costs[place])
        if reduction is None:
            continue
        if not messages:
            messages = list(group.messages)
        message = {**messages[place], "content": reads(messages[place].get("content"), reduction.text)}
        tokens = count_message(message, count)
        if tokens < costs[place]:
            messages[place], after[place] = message, tokens
            changed.append(place)
    if not changed:
        return Shortened(group, tuple(costs), ())
    return Shortened(reading(group, tuple(messages)), tuple(after), tuple(changed))


def lighter(
    round_: Round, group: MessageGroup, costs: Sequence[int], count: TokenCounter
) -> tuple[tuple[int, ...], ...]:
    """Return what each of *unit*'s messages costs on each rung; *costs* are what they cost before the first."""
    if not any(map(_may_be_long, group.posts)):
        return (tuple(costs),) * len(LEVELS)
    found: list[tuple[int, ...]] = []
    for rule in LEVELS:
        group, costs, _ = shortened(round_, group, costs, rule, count)
        found.append(tuple(costs))
    return tuple(found)


def shows_preview(group: MessageGroup) -> bool:
    """Return whether the first rung, or a strategy before, has left but the beginning of a result in *unit*."""
    results = [post for post in group.posts if post is not None and is_result(post)]
    return any(OVERLAY in post.extra or len(text_of(post)) > _LARGE.threshold for post in results)


def _may_be_long(post: Post | None) -> bool:
    """Return whether a rule is worth asking: of most posts, none is."""
    return post is not None and (
        len(post.message) > LEVELS[0].threshold or bool(post.attachment_list) or is_result(post)
    )


def costs_by_level(pieces: Sequence[PromptPart], count: TokenCounter) -> tuple[int, ...]:
    """Return the tokens of a round in *pieces* on each rung; what waits or is pinned is not shortened."""
    totals = [0] * len(LEVELS)
    for piece in pieces:
        group, costs = piece.group, piece.costs
        stays = group.pending or piece.pinned
        by_level = (costs,) * len(LEVELS) if stays else lighter(piece.round_, group, costs, count)
        totals = [total + sum(shorter) for total, shorter in zip(totals, by_level, strict=True)]
    return tuple(totals)


def is_pinned(group: MessageGroup, pinned: Collection[int]) -> bool:
    """Return whether one of *unit*'s posts is *pinned*, by number; 0 is the query."""
    return bool(pinned) and any((post.number if post else 0) in pinned for post in group.posts)


# --- what each closed round costs, summed up from a place on: so that no prompt pays for the length of the past ---


class RoundsByPlace(Protocol):
    """Rounds by their place, places by the rounds' ids, and what is to stay as it is."""

    def __getitem__(self, index: int, /) -> Round: ...
    def end_of(self, round_id: str) -> int | None: ...
    @property
    def pins(self) -> Set[tuple[str, int]]: ...
    @property
    def epoch(self) -> object: ...
    @property
    def redactions(self) -> int: ...
    @property
    def erased(self) -> Mapping[str, tuple[int, ...]]: ...


class OverlayKey(NamedTuple):
    """What a round is overlaid with: a round whose is the same costs the same."""

    reductions: tuple[Reduction, ...]
    #: Numbers of its pinned posts; 0 is the query.
    pinned: frozenset[int]
    #: Which of its posts were erased.
    erased: tuple[int, ...] = ()


PLAIN = OverlayKey((), frozenset())


class Cost(NamedTuple):
    """What one closed round is in a prompt, as it reads now."""

    round_id: str
    number: int
    tokens: int
    messages: int
    #: Whether the user speaks in it.
    from_user: bool
    #: Tokens on each rung of the ladder, and of what stays when the round is left out: what is pinned.
    by_level: tuple[int, ...]
    pinned: int
    apply_overlays: OverlayKey
    #: How often the role's model was called in it, going by what the role said itself.
    calls: int = 0


class Before(NamedTuple):
    """What there is between the place where sums begin and another: of two of them, the difference counts."""

    tokens: int = 0
    messages: int = 0
    #: The place of the newest round in which the user speaks; None where he does in none of these.
    asked: int | None = None
    #: For each rung of the ladder, and for what is pinned.
    by_level: tuple[int, ...] = (0,) * len(LEVELS)
    pinned: int = 0
    #: Of how many rounds posts were dropped.
    dropped: int = 0
    calls: int = 0


class Sums:
    """What closed rounds cost, from the place *start* on: what lies before that was not even read. It only grows."""

    def __init__(self, start: int = 0, before: Iterable[Before] = (Before(),), costs: Iterable[Cost] = ()) -> None:
        self.start = start
        #: The place of the newest round before these in which the user speaks, once somebody looked; -1: in none.
        self.asked_before: int | None = None
        self._before = list(before)
        self._costs = list(costs)
        self._numbers = [cost.number for cost in self._costs]

    @property
    def stop(self) -> int:
        """The place up to which rounds are counted."""
        return self.start + len(self._before) - 1

    @property
    def costs(self) -> Sequence[Cost]:
        """What was counted, from ``start`` on."""
        return self._costs

    def __getitem__(self, place: int) -> Before:
        """Return what there is before *place*. Raises ``IndexError`` for one before ``start``."""
        return self._before[self._at(place)]

    def cost(self, place: int) -> Cost:
        """Return what the round at *place* costs. Raises ``IndexError`` for one before ``start``."""
        return self._costs[self._at(place)]

    def numbers(self, places: range) -> list[int]:
        """Return the log numbers of the rounds at *places*."""
        return self._numbers[self._at(places.start) : self._at(places.stop)] if places else []

    def _at(self, place: int) -> int:
        if place < self.start:
            raise IndexError(f"sums begin at place {self.start}, not at {place}; ask the ledger for some from there on")
        return place - self.start

    def add(self, cost: Cost) -> None:
        last = self._before[-1]
        asked = self.stop if cost.from_user else last.asked
        self._costs.append(cost)
        self._numbers.append(cost.number)
        self._before.append(  # last: it tells readers, who hold no lock, how far all of it reaches
            Before(
                last.tokens + cost.tokens,
                last.messages + cost.messages,
                asked,
                tuple(map(add, last.by_level, cost.by_level)),
                last.pinned + cost.pinned,
                last.dropped + tells_of_drops(cost.apply_overlays.reductions),
                last.calls + cost.calls,
            )
        )

    def part(self, start: int, stop: int | None = None) -> Sums:
        """Return the same over the places *start* to *stop*, to go on from: who holds this one keeps it as it is."""
        first, last = self._at(start), self._at(self.stop if stop is None else stop)
        before = self._before[first : last + 1]
        for at, item in enumerate(before):
            if item.asked is None or item.asked >= start:
                break
            before[at] = item._replace(asked=None)
        return Sums(start, before, self._costs[first:last])


def calls_in(round_: Round, role: str) -> int:
    """Return how many messages in *round_* are by *role* itself: each is an answer of its model. The empty role, which
    sees everything, stands for all but the user."""
    if role:
        return sum(post.send_from == role for post in round_.post_list)
    return sum(post.send_from != USER and post.tool_call_id is None for post in round_.post_list)


def beginning_at(origin: int, settled: int, sums: Sums, asked_from: int, cost_at: Callable[[int], Cost]) -> Sums:
    """Return *sums*, or such as begin at *origin*, where those begin after it or long before it. They were asked for
    *asked_from* on when they were last."""
    if origin > sums.stop or settled < sums.start:  # nothing in common: with an older moment, or a newer one
        return Sums(origin)
    if origin < sums.start:
        back = Sums(origin)
        for cost in (*map(cost_at, range(origin, sums.start)), *sums.costs):
            back.add(cost)
        return back
    # Only what lay before the origin already when it moved last: who began a prompt just before the newest publication
    # still asks from there. And only where that is more than what is left, so that no round is copied over and over.
    if origin > asked_from and asked_from - sums.start > sums.stop - asked_from:
        return sums.part(asked_from)
    return sums


def shared(
    old: Sums,
    rounds: RoundsByPlace,
    places: range,
    overlaid_with: Callable[[str], OverlayKey],
    cost_at: Callable[[int], Cost],
) -> Sums:
    """Return what *old* says of the rounds at *places* that are still there; those that read the same are not counted
    again, and where all before them do too, they are not even added again.

    Without the newest: another host's rounds may say that they are closed and grow all the same. Memory's own come
    here only when a closed round has failed, or is overlaid with something else.
    """
    known, place = old.costs[:-1], places.start
    if place >= old.start:
        for cost in known[place - old.start : places.stop - old.start]:
            if rounds.end_of(cost.round_id) != place + 1 or overlaid_with(cost.round_id) != cost.apply_overlays:
                break
            place += 1
    sums, left = Sums(places.start), known
    if place > places.start:
        sums, left = old.part(places.start, place), known[place - old.start :]
    for cost in left:
        if sums.stop < places.stop and rounds.end_of(cost.round_id) == sums.stop + 1:
            if not sums.costs and rounds[sums.stop].id != cost.round_id:
                continue  # it has failed, and the one before it, which ends there as well, is not known
            sums.add(cost if overlaid_with(cost.round_id) == cost.apply_overlays else cost_at(sums.stop))
    return sums


def by_round(pins: Iterable[tuple[str, int]]) -> dict[str, frozenset[int]]:
    """Return the numbers of pinned posts by the id of their round."""
    found: dict[str, frozenset[int]] = {}
    for round_id, number in pins:
        found[round_id] = found.get(round_id, frozenset()) | {number}
    return found


# --- what prompts have in common with the one before, kept: how the newest closed rounds read, what stands in front


#: Rounds of one role that are kept at most, and their tokens: beyond that they are read and made anew.
MAX_ROUNDS, MAX_TOKENS = 256, 1_000_000
#: Texts whose counts are remembered; more, and all are forgotten.
MAX_TEXTS = 64


def own(message: Mapping[str, Any]) -> Message:
    """Return a copy of *message* that its receiver may change, however deep."""
    for value in message.values():
        if not isinstance(value, str):
            return {key: thaw(value) for key, value in message.items()}
    return {**message}


@dataclass(frozen=True, slots=True)
class KeptRound:
    """A closed round as it reads in prompts."""

    #: What the ledger counted: the round reads so for as long as this very object counts.
    cost: Cost
    pieces: tuple[PromptPart, ...]
    #: The same messages, and whether there is nothing in them but text.
    messages: tuple[Message, ...]
    plain: bool

    @classmethod
    def of(cls, cost: Cost, pieces: Collection[PromptPart]) -> KeptRound:
        messages = tuple([message for piece in pieces for message in piece.group.messages])
        plain = {type(value) for message in messages for value in message.values()} <= {str}
        return cls(cost, tuple(pieces), messages, plain)

    def own_messages(self) -> list[Message]:
        """Return its messages as copies that their receiver may change."""
        return list(map(dict.copy, self.messages)) if self.plain else [own(one) for one in self.messages]


class KeptRounds:
    """The newest closed rounds of one role. Who changes it holds the ledger's lock; any number may read."""

    def __init__(self) -> None:
        self._rounds: dict[str, KeptRound] = {}
        self._tokens = 0

    def of(self, costs: Iterable[Cost]) -> list[KeptRound | None]:
        """Return the rounds that *costs* are of; None for one that is not kept, or reads otherwise than when it was
        counted."""
        found = [(self._rounds.get(cost.round_id), cost) for cost in costs]
        return [kept if kept is not None and kept.cost is cost else None for kept, cost in found]

    def add(self, kept: KeptRound) -> None:
        self._drop(kept.cost.round_id)
        self._rounds[kept.cost.round_id] = kept
        self._tokens += kept.cost.tokens
        while len(self._rounds) > MAX_ROUNDS or (self._tokens > MAX_TOKENS and len(self._rounds) > 1):
            self._drop(next(iter(self._rounds)))

    def limit_to(self, round_ids: Collection[str]) -> None:
        """Let go of all but the rounds of those ids."""
        for round_id in [one for one in self._rounds if one not in round_ids]:
            self._drop(round_id)

    def limit_by(self, reads_so: Callable[[Cost], bool]) -> None:
        """Let go of all but the rounds that still read as they were counted."""
        for round_id in [one for one, kept in self._rounds.items() if not reads_so(kept.cost)]:
            self._drop(round_id)

    def _drop(self, round_id: str) -> None:
        gone = self._rounds.pop(round_id, None)
        self._tokens -= gone.cost.tokens if gone is not None else 0


class CountedTexts:
    """A counter that remembers what it counted: for texts that are the same in each prompt. It keeps none of them."""

    def __init__(self, count: TokenCounter) -> None:
        self._count = count
        self._known: dict[tuple[int, int], int] = {}

    def __call__(self, text: str, /) -> int:
        key = len(text), hash(text)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_TEXTS:
                self._known = {}
            found = self._known[key] = self._count(text)
        return found


# --- one role's rounds, counted once: what closed ones cost is summed up, what open ones do remembered ------------


#: Rounds that are counted in one go between two looks at the lock.
COUNTED_AT_ONCE = 64
#: At least as many costs of closed rounds are remembered as there are in the sums, twice, and so many.
MIN_COSTS = 1_024
#: Costs of open rounds' units that are remembered, and reports of reductions; more, and all are forgotten.
MAX_OPEN_UNITS = 20_000
#: Counters of one role whose ledgers are kept: a host that makes a new one for each prompt does not fill the memory.
MAX_COUNTERS = 8

#: A unit: its round's id, then of each of its posts the number and the hash of what it says.
_UnitKey = tuple[object, ...]


class _Seen(NamedTuple):
    """What sums were made from: others of it are others."""

    epoch: object = None
    redactions: int = 0
    #: Of the reductions.
    version: int = 0
    pins: object = None


class _Summed(NamedTuple):
    """What a ledger has summed up."""

    sums: Sums
    seen: _Seen = _Seen()
    #: From where on it was asked for last.
    origin: int = 0


class Ledger:
    """The costs of one role's rounds under one token counter. Any number of threads may ask it."""

    def __init__(self, role: str, count: TokenCounter) -> None:
        self.role = role
        self.count = count
        #: Counts what stands in every prompt, and remembers that.
        self.recounted = CountedTexts(count)
        #: Tokens of what the last prompt had in front of the compaction: only whoever composes knows it all.
        self.header_tokens = 0
        #: And of the schemas of tools that went with it.
        self.tool_tokens = 0
        #: What reports say of published reductions, each counted once.
        self.reduced: dict[object, Reduced] = {}
        # Of open rounds' units. No lock: the worst that two threads can do is to count a unit twice.
        self._open: dict[_UnitKey, tuple[int, ...]] = {}
        self._lighter: dict[_UnitKey, tuple[tuple[int, ...], ...]] = {}
        self._renew()
        renewed_after_fork(self)

    def _renew(self) -> None:
        """Begin anew: another thread of the parent may have been in the middle of adding a round."""
        # Guards all below it and all sums; never held while counting. A thread may enter it again, as in a signal's
        # handler; what that would add in the middle is refused.
        self._lock = threading.RLock()
        self._adding = False
        self._summed = _Summed(Sums())
        #: What was counted of closed rounds, by their numbers: also of such as lie before the sums' origin.
        self._costs: dict[int, Cost] = {}
        self._kept = KeptRounds()

    _after_fork = _renew

    def sums(self, rounds: RoundsByPlace, settled: int, reductions: Reductions, origin: int = 0) -> Sums:
        """Return sums over the first *settled* of *rounds*, each read through *reductions*, that begin at the place
        *origin* or before it.

        Those new since the last call are counted, and those that read otherwise now; what lies before *origin* is not
        read. Where *origin* has moved forward, as with each compaction, what lies before is let go sooner or later;
        where it has moved back, by a revert, it is counted anew.
        """
        origin, pins = min(origin, settled), rounds.pins
        seen = _Seen(rounds.epoch, rounds.redactions, reductions.version, pins)
        with self._lock:
            summed = self._summed
        if summed.seen == seen and origin == summed.origin and summed.sums.stop >= settled:  # as most of the time
            return summed.sums
        pinned, erased = by_round(pins), rounds.erased

        def overlaid_with(round_id: str) -> OverlayKey:
            over, gone = reductions.of(round_id), erased.get(round_id, ())
            if not over and not gone and round_id not in pinned:
                return PLAIN
            return OverlayKey(over, pinned.get(round_id, frozenset()), gone)

        def reads_so(cost: Cost) -> bool:
            return overlaid_with(cost.round_id) == cost.apply_overlays

        def read(place: int) -> tuple[Cost, list[PromptPart] | None]:
            known = self._costs.get(rounds.number_at(place)) if isinstance(rounds, Rounds) else None
            if known is not None and reads_so(known):
                return known, None
            round_ = rounds[place]
            return self._read(round_, overlaid_with(round_.id))

        def cost_at(place: int) -> Cost:
            return read(place)[0]

        # Worked out once: whoever counts another moment's rounds meanwhile puts others in the place of these sums, and
        # what is counted here is still right.
        if summed.seen == seen:
            sums = beginning_at(origin, settled, summed.sums, summed.origin, cost_at)
        else:
            sums = shared(summed.sums, rounds, range(origin, settled), overlaid_with, cost_at)
        if sums is summed.sums and sums.stop >= settled and origin == summed.origin:
            return sums
        while True:
            done = sums.stop
            fresh = [read(place) for place in range(done, min(settled, done + COUNTED_AT_ONCE))]
            with self._lock:
                if self._adding:
                    raise RuntimeError(
                        "this thread is in the middle of counting, as where a signal's handler composes a prompt; set a"
                        " flag in the handler, and compose when it has returned"
                    )
                if sums.stop != done:
                    continue  # another thread adds to the same sums; go on from what it has counted
                self._adding = True
                try:
                    for cost, pieces in fresh:
                        sums.add(cost)
                        if pieces is not None and isinstance(rounds, Rounds):  # others' need not stay as they are
                            self._costs[cost.number] = cost
                            self._kept.add(KeptRound.of(cost, pieces))
                    if sums.stop >= settled:
                        self._keep(_Summed(sums, seen, origin), reads_so)
                        return sums
                finally:
                    self._adding = False

    def _keep(self, summed: _Summed, reads_so: Callable[[Cost], bool]) -> None:
        """Make *summed* what the next call goes on from; let go of what it has no use for. Called with the lock."""
        before, self._summed = self._summed, summed
        sums, origin = summed.sums, summed.origin
        if before.seen.redactions != summed.seen.redactions:  # something was erased: no note is kept of that
            self._kept.limit_by(reads_so)
            self._costs = {number: cost for number, cost in self._costs.items() if reads_so(cost)}
        if origin != before.origin:
            self._kept.limit_to({cost.round_id for cost in sums.costs[max(origin - sums.start, 0) :]})
        if len(self._costs) > 2 * len(sums.costs) + MIN_COSTS:
            self._costs = {cost.number: cost for cost in sums.costs}

    def kept_of(self, costs: Sequence[Cost]) -> list[KeptRound | None]:
        """Return the rounds that *costs* are of, as they read in prompts; None where one must be read and made anew."""
        return self._kept.of(costs)

    def _read(self, raw: Round, over: OverlayKey) -> tuple[Cost, list[PromptPart]]:
        """Return what a closed round costs, and its units with their costs."""
        round_ = apply_overlays(raw, over.reductions, self.role)
        pieces: list[PromptPart] = []
        tokens = messages = pinned = 0
        from_user = False
        for group in group_messages(round_, self.role):
            # What was counted while the round was open is not counted again.
            costs = self._open.pop(_unit_key(round_, group), ()) or self.costs(group)
            piece = PromptPart(round_, group, costs, pinned=is_pinned(group, over.pinned))
            pieces.append(piece)
            tokens += sum(costs)
            messages += len(costs)
            pinned += sum(costs) if piece.pinned else 0
            from_user = from_user or group.from_user
        by_level = costs_by_level(pieces, self.count)
        calls = calls_in(raw, self.role)
        return Cost(round_.id, round_.number, tokens, messages, from_user, by_level, pinned, over, calls), pieces

    def costs(self, group: MessageGroup) -> tuple[int, ...]:
        """Return the tokens of each of *unit*'s messages."""
        return tuple([count_message(message, self.count) for message in group.messages])

    def open_costs(self, round_: Round, group: MessageGroup) -> tuple[int, ...]:
        """Return the same for a unit of a round of the log that may still grow, and remember it."""
        key = _unit_key(round_, group)
        costs = self._open.get(key)
        if costs is None:
            if len(self._open) >= MAX_OPEN_UNITS:
                self._open = {}
            costs = self._open[key] = self.costs(group)
        return costs

    def lighter_costs(self, round_: Round, group: MessageGroup, costs: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the same on each rung of the ladder, and remember it; *costs* are those before the first rung."""
        key = _unit_key(round_, group)
        found = self._lighter.get(key)
        if found is None:
            if len(self._lighter) >= MAX_OPEN_UNITS:
                self._lighter = {}
            found = self._lighter[key] = lighter(round_, group, costs, self.count)
        return found


def _unit_key(round_: Round, group: MessageGroup) -> _UnitKey:
    """Return what tells a unit from all others, and from itself before it was overlaid or erased."""
    posts = group.posts
    if len(posts) == 1:
        return round_.id, _name(round_, posts[0])
    return round_.id, *[_name(round_, post) for post in posts]


def _name(round_: Round, post: Post | None) -> tuple[int, int]:
    if post is None:
        return 0, hash(round_.user_query)
    if post.tool_calls:  # whose arguments may be offloaded while the words stay
        return post.number, hash((post.message, *[call.arguments for call in post.tool_calls]))
    return post.number, hash(post.message)


_ledgers: WeakKeyDictionary[Memory, dict[str, dict[object, Ledger]]] = WeakKeyDictionary()


def ledger_of(memory: Memory, role: str, count: TokenCounter) -> Ledger:
    """Return the one ledger that all who read *memory* as *role* share, so that a round is counted once in all."""
    # No lock: the worst that two threads can do is to count a round twice.
    ledgers = _ledgers.setdefault(memory, {}).setdefault(role, {})
    key = _counter_key(count)
    found = ledgers.get(key)
    if found is None:
        for oldest in list(ledgers)[: max(len(ledgers) + 1 - MAX_COUNTERS, 0)]:
            ledgers.pop(oldest, None)
        found = ledgers.setdefault(key, Ledger(role, count))
    return found


def _counter_key(count: TokenCounter) -> object:
    """Return what two equal counters have in common: a bound method is another object each time it is named."""
    try:
        hash(count)
    except TypeError:
        return id(count)  # the ledger keeps the counter, so the number stays its own
    return count
