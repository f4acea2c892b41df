"""What each closed round costs, summed up from a place on: so that no prompt pays for the length of the past."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import add
from typing import NamedTuple, Protocol

from memory.overlays import Reduction
from memory.rounds import USER, Round

from .overlaid import tells_of_drops
from .rungs import RUNGS

__all__ = [
    "PLAIN",
    "Before",
    "Cost",
    "Overlaid",
    "RoundsByPlace",
    "Sums",
    "beginning_at",
    "by_round",
    "calls_in",
    "shared",
]


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


class Overlaid(NamedTuple):
    """What a round is overlaid with: a round whose is the same costs the same."""

    reductions: tuple[Reduction, ...]
    #: Numbers of its pinned posts; 0 is the query.
    pinned: frozenset[int]
    #: Which of its posts were erased.
    erased: tuple[int, ...] = ()


PLAIN = Overlaid((), frozenset())


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
    pinned: int
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
                tuple(map(add, last.by_rung, cost.by_rung)),
                last.pinned + cost.pinned,
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


def by_round(pins: Iterable[tuple[str, int]]) -> dict[str, frozenset[int]]:
    """Return the numbers of pinned posts by the id of their round."""
    found: dict[str, frozenset[int]] = {}
    for round_id, number in pins:
        found[round_id] = found.get(round_id, frozenset()) | {number}
    return found
