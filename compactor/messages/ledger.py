"""One role's rounds, counted once: what closed ones cost is summed up, what open ones do remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from memory import Memory
from memory.forking import renewed_after_fork
from memory.overlays import Reductions
from memory.rounds import Post, Round
from memory.visibility import Rounds

from ..tokens import TokenCounter
from .kept_rounds import CountedTexts, KeptRound, KeptRounds
from .overlaid import overlaid
from .pieces import Piece, Reduced
from .rungs import costs_by_rung, is_pinned, lighter
from .sums import PLAIN, Cost, Overlaid, RoundsByPlace, Sums, beginning_at, by_round, calls_in, shared
from .units import Unit, count_message, units_of

__all__ = ["Ledger", "ledger_of"]

#: Rounds that are counted in one go between two looks at the lock.
COUNTED_AT_ONCE = 64
#: At least as many costs of closed rounds are remembered as there are in the sums, twice, and so many.
MIN_COSTS = 1_024
#: Costs of open rounds' units that are remembered, and reports of reductions; more, and all are forgotten.
MOST_OPEN_UNITS = 20_000
#: Counters of one role whose ledgers are kept: a host that makes a new one for each prompt does not fill the memory.
MOST_COUNTERS = 8

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

        def overlaid_with(round_id: str) -> Overlaid:
            over, gone = reductions.of(round_id), erased.get(round_id, ())
            if not over and not gone and round_id not in pinned:
                return PLAIN
            return Overlaid(over, pinned.get(round_id, frozenset()), gone)

        def reads_so(cost: Cost) -> bool:
            return overlaid_with(cost.round_id) == cost.overlaid

        def read(place: int) -> tuple[Cost, list[Piece] | None]:
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

    def _read(self, raw: Round, over: Overlaid) -> tuple[Cost, list[Piece]]:
        """Return what a closed round costs, and its units with their costs."""
        round_ = overlaid(raw, over.reductions, self.role)
        pieces: list[Piece] = []
        tokens = messages = pinned = 0
        from_user = False
        for unit in units_of(round_, self.role):
            # What was counted while the round was open is not counted again.
            costs = self._open.pop(_unit_key(round_, unit), ()) or self.costs(unit)
            piece = Piece(round_, unit, costs, pinned=is_pinned(unit, over.pinned))
            pieces.append(piece)
            tokens += sum(costs)
            messages += len(costs)
            pinned += sum(costs) if piece.pinned else 0
            from_user = from_user or unit.from_user
        by_rung = costs_by_rung(pieces, self.count)
        calls = calls_in(raw, self.role)
        return Cost(round_.id, round_.number, tokens, messages, from_user, by_rung, pinned, over, calls), pieces

    def costs(self, unit: Unit) -> tuple[int, ...]:
        """Return the tokens of each of *unit*'s messages."""
        return tuple([count_message(message, self.count) for message in unit.messages])

    def open_costs(self, round_: Round, unit: Unit) -> tuple[int, ...]:
        """Return the same for a unit of a round of the log that may still grow, and remember it."""
        key = _unit_key(round_, unit)
        costs = self._open.get(key)
        if costs is None:
            if len(self._open) >= MOST_OPEN_UNITS:
                self._open = {}
            costs = self._open[key] = self.costs(unit)
        return costs

    def lighter_costs(self, round_: Round, unit: Unit, costs: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the same on each rung of the ladder, and remember it; *costs* are those before the first rung."""
        key = _unit_key(round_, unit)
        found = self._lighter.get(key)
        if found is None:
            if len(self._lighter) >= MOST_OPEN_UNITS:
                self._lighter = {}
            found = self._lighter[key] = lighter(round_, unit, costs, self.count)
        return found


def _unit_key(round_: Round, unit: Unit) -> _UnitKey:
    """Return what tells a unit from all others, and from itself before it was overlaid or erased."""
    posts = unit.posts
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
        for oldest in list(ledgers)[: max(len(ledgers) + 1 - MOST_COUNTERS, 0)]:
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
