"""What each closed round costs in a prompt, counted once and summed up: no prompt pays for the length of the past."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence, Set
from operator import add
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from memory import Memory
from memory.forking import renewed_after_fork
from memory.overlays import Reduction, Reductions
from memory.rounds import USER, Post, Round
from memory.visibility import Rounds

from ..tokens import TokenCounter
from .kept_rounds import CountedTexts, KeptRound, KeptRounds
from .overlaid import overlaid, tells_of_drops
from .pieces import Piece
from .rungs import RUNGS, costs_by_rung, is_pinned, lighter
from .units import Unit, count_message, units_of

__all__ = ["Ledger", "Sums", "calls_in", "ledger_of"]

#: Rounds that are counted in one go between two looks at the lock.
COUNTED_AT_ONCE = 64
#: Costs of open rounds' units that are remembered; more, and all are forgotten.
MOST_OPEN_UNITS = 20_000
#: Counters of one role whose ledgers are kept: a host that makes a new one for each prompt does not fill the memory.
MOST_COUNTERS = 8


#: A unit: its round's id, then of each of its posts the number and the hash of what it says.
_Key = tuple[object, ...]


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


class Overlaid(NamedTuple):
    """What a round is overlaid with: a round whose is the same costs the same."""

    reductions: tuple[Reduction, ...]
    #: Numbers of its pinned posts; 0 is the query.
    pinned: frozenset[int]


_PLAIN = Overlaid((), frozenset())


class Cost(NamedTuple):
    """What one closed round is in a prompt, as it reads now."""

    round_id: str
    number: int
    tokens: int
    messages: int
    #: Whether the user speaks in it.
    from_user: bool
    #: Tokens on each rung of the ladder, and of what stays when the round is left out: what is pinned.
    by_rung: tuple[int, ...]
    kept: int
    overlaid: Overlaid
    #: How often the role's model was called in it, going by what the role said itself.
    calls: int = 0


class Before(NamedTuple):
    """What there is between the place where sums begin and another: of two of them, the difference counts."""

    tokens: int = 0
    messages: int = 0
    #: The place of the newest round in which the user speaks; None where he does in none of these.
    asked: int | None = None
    #: For each rung of the ladder, and for what is pinned.
    by_rung: tuple[int, ...] = (0,) * len(RUNGS)
    kept: int = 0
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
                tuple(map(add, last.by_rung, cost.by_rung)),
                last.kept + cost.kept,
                last.dropped + tells_of_drops(cost.overlaid.reductions),
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


class Summed(NamedTuple):
    """What a ledger has summed up."""

    sums: Sums
    #: What it was made from, and from where on it was asked for last.
    seen: tuple[object, int, int, object] = (None, 0, 0, None)
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
        self._open: dict[_Key, tuple[int, ...]] = {}
        self._lighter: dict[_Key, tuple[tuple[int, ...], ...]] = {}
        self._renew()
        renewed_after_fork(self)

    def _renew(self) -> None:
        """Begin anew: another thread of the parent may have been in the middle of adding a round."""
        self._lock = threading.Lock()  # guards _summed and its sums, and _kept; never held while counting
        self._summed = Summed(Sums())
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
        seen = (rounds.epoch, rounds.redactions, reductions.version, pins)
        with self._lock:
            summed = self._summed
        if summed.seen == seen and origin == summed.origin and summed.sums.stop >= settled:  # as most of the time
            return summed.sums
        pinned: dict[str, frozenset[int]] = {}
        for round_id, number in pins:
            pinned[round_id] = pinned.get(round_id, frozenset()) | {number}

        def overlaid_with(round_id: str) -> Overlaid:
            over = reductions.of(round_id)
            if not over and round_id not in pinned:
                return _PLAIN
            return Overlaid(over, pinned.get(round_id, frozenset()))

        def read(place: int) -> tuple[Cost, list[Piece]]:
            round_ = rounds[place]
            return self._read(round_, overlaid_with(round_.id))

        def cost_at(place: int) -> Cost:
            return read(place)[0]

        while True:
            with self._lock:
                summed = self._summed
            if summed.seen == seen:
                sums = _beginning_at(origin, settled, summed, cost_at)
            else:
                old = summed.sums if summed.seen[1] == seen[1] else Sums()  # what was erased is not looked for
                sums = _shared(old, rounds, range(origin, settled), overlaid_with, cost_at)
            done = sums.stop
            if sums is summed.sums and done >= settled and origin == summed.origin:
                return sums
            fresh = [read(place) for place in range(done, min(settled, done + COUNTED_AT_ONCE))]
            with self._lock:
                if sums is summed.sums and (self._summed.sums is not sums or sums.stop != done):
                    continue  # another thread was here meanwhile; go on from what it has counted
                if summed.seen[1] != seen[1]:  # something was erased
                    self._kept = KeptRounds()
                for cost, pieces in fresh:
                    sums.add(cost)
                    if isinstance(rounds, Rounds):  # nobody promises that another host's stay as they are
                        self._kept.add(KeptRound.of(cost, pieces))
                if origin != summed.origin:
                    self._kept.limit_to({cost.round_id for cost in sums.costs[max(origin - sums.start, 0) :]})
                self._summed = Summed(sums, seen, origin)
                if sums.stop >= settled:
                    return sums

    def kept_of(self, costs: Sequence[Cost]) -> list[KeptRound | None]:
        """Return the rounds that *costs* are of, as they read in prompts; None where one must be read and made anew."""
        return self._kept.of(costs)

    def _read(self, raw: Round, over: Overlaid) -> tuple[Cost, list[Piece]]:
        """Return what a closed round costs, and its units with their costs."""
        round_ = overlaid(raw, over.reductions, self.role)
        pieces: list[Piece] = []
        tokens = messages = kept = 0
        from_user = False
        for unit in units_of(round_, self.role):
            # What was counted while the round was open is not counted again.
            costs = self._open.pop(_key_of(round_, unit), ()) or self.costs(unit)
            piece = Piece(round_, unit, costs, pinned=is_pinned(unit, over.pinned))
            pieces.append(piece)
            tokens += sum(costs)
            messages += len(costs)
            kept += sum(costs) if piece.pinned else 0
            from_user = from_user or unit.from_user
        by_rung = costs_by_rung(pieces, self.count)
        calls = calls_in(raw, self.role)
        return Cost(round_.id, round_.number, tokens, messages, from_user, by_rung, kept, over, calls), pieces

    def costs(self, unit: Unit) -> tuple[int, ...]:
        """Return the tokens of each of *unit*'s messages."""
        return tuple([count_message(message, self.count) for message in unit.messages])

    def open_costs(self, round_: Round, unit: Unit) -> tuple[int, ...]:
        """Return the same for a unit of a round of the log that may still grow, and remember it."""
        key = _key_of(round_, unit)
        costs = self._open.get(key)
        if costs is None:
            if len(self._open) >= MOST_OPEN_UNITS:
                self._open = {}
            costs = self._open[key] = self.costs(unit)
        return costs

    def lighter_costs(self, round_: Round, unit: Unit, costs: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the same on each rung of the ladder, and remember it; *costs* are those before the first rung."""
        key = _key_of(round_, unit)
        found = self._lighter.get(key)
        if found is None:
            if len(self._lighter) >= MOST_OPEN_UNITS:
                self._lighter = {}
            found = self._lighter[key] = lighter(round_, unit, costs, self.count)
        return found


def calls_in(round_: Round, role: str) -> int:
    """Return how many messages in *round_* are by *role* itself: each is an answer of its model. The empty role, which
    sees everything, stands for all but the user."""
    if role:
        return sum(post.send_from == role for post in round_.post_list)
    return sum(post.send_from != USER and post.tool_call_id is None for post in round_.post_list)


def _beginning_at(origin: int, settled: int, summed: Summed, cost_at: Callable[[int], Cost]) -> Sums:
    """Return the sums of *summed*, or such as begin at *origin*, where those begin after it or long before it."""
    sums = summed.sums
    if origin > sums.stop or settled < sums.start:  # nothing in common: with an older moment, or a newer one
        return Sums(origin)
    if origin < sums.start:
        back = Sums(origin)
        for cost in (*map(cost_at, range(origin, sums.start)), *sums.costs):
            back.add(cost)
        return back
    # Only what lay before the origin already when it moved last: who began a prompt just before the newest publication
    # still asks from there. And only where that is more than what is left, so that no round is copied over and over.
    if origin > summed.origin and summed.origin - sums.start > sums.stop - summed.origin:
        return sums.part(summed.origin)
    return sums


def _shared(
    old: Sums,
    rounds: RoundsByPlace,
    places: range,
    overlaid_with: Callable[[str], Overlaid],
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
            if rounds.end_of(cost.round_id) != place + 1 or overlaid_with(cost.round_id) != cost.overlaid:
                break
            place += 1
    sums, left = Sums(places.start), known
    if place > places.start:
        sums, left = old.part(places.start, place), known[place - old.start :]
    for cost in left:
        if sums.stop < places.stop and rounds.end_of(cost.round_id) == sums.stop + 1:
            if not sums.costs and rounds[sums.stop].id != cost.round_id:
                continue  # it has failed, and the one before it, which ends there as well, is not known
            sums.add(cost if overlaid_with(cost.round_id) == cost.overlaid else cost_at(sums.stop))
    return sums


def _key_of(round_: Round, unit: Unit) -> _Key:
    """Return what tells a unit from all others, and from itself before it was overlaid or erased."""
    posts = unit.posts
    if len(posts) == 1:
        return round_.id, _name(round_, posts[0])
    return round_.id, *[_name(round_, post) for post in posts]


def _name(round_: Round, post: Post | None) -> tuple[int, int]:
    return (post.number, hash(post.message)) if post is not None else (0, hash(round_.user_query))


_ledgers: WeakKeyDictionary[Memory, dict[str, dict[object, Ledger]]] = WeakKeyDictionary()


def ledger_of(memory: Memory, role: str, count: TokenCounter) -> Ledger:
    """Return the one ledger that all who read *memory* as *role* share, so that a round is counted once in all."""
    # No lock: the worst that two threads can do is to count a round twice.
    ledgers = _ledgers.setdefault(memory, {}).setdefault(role, {})
    key = _key(count)
    found = ledgers.get(key)
    if found is None:
        for oldest in list(ledgers)[: max(len(ledgers) + 1 - MOST_COUNTERS, 0)]:
            ledgers.pop(oldest, None)
        found = ledgers.setdefault(key, Ledger(role, count))
    return found


def _key(count: TokenCounter) -> object:
    """Return what two equal counters have in common: a bound method is another object each time it is named."""
    try:
        hash(count)
    except TypeError:
        return id(count)  # the ledger keeps the counter, so the number stays its own
    return count
