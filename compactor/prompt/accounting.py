"""The token costs of one role's rounds: each closed round is counted once, and summed up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from memory import Memory
from memory.hooks import renew_after_fork
from memory.overlays import Reduction, Reductions
from memory.rounds import USER, Round, thaw
from memory.visibility import Rounds

from ..tokens import TokenCounter, count_message
from .groups import Message, MessageGroup, apply_overlays, group_messages, tells_of_drops
from .shorten import LEVELS, Level, Reduced, shorten_group

#: Closed rounds of one role whose messages are kept at most, and their tokens: older ones are read and made anew.
MAX_ROUNDS, MAX_TOKENS = 256, 1_000_000
#: Texts whose counts are remembered; at one more, all are forgotten.
MAX_TEXTS = 64
#: Rounds that are counted between two looks at the lock.
COUNTED_AT_ONCE = 64
#: Accounts of closed rounds are kept up to twice the number in the sums, plus this many.
MIN_ACCOUNTS = 1_024
#: Costs of open rounds' groups that are remembered, their levels, and reports of reductions; at one more, all are
#: forgotten.
MAX_OPEN_GROUPS = 20_000
#: Counters of one role whose ledgers are kept: a host that makes a new one for each prompt does not fill the memory.
MAX_COUNTERS = 8


class OverlayKey(NamedTuple):
    """The overlays of a round: with an equal key, it costs the same."""

    reductions: tuple[Reduction, ...]
    #: Numbers of its pinned posts; 0 is the query.
    pinned: frozenset[int]
    #: Numbers of its erased posts.
    erased: tuple[int, ...] = ()


NO_OVERLAYS = OverlayKey((), frozenset())


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A message group of the tail, as it is shown."""

    round_: Round
    group: MessageGroup
    messages: tuple[Message, ...]
    #: Tokens of each message, and of all.
    costs: tuple[int, ...]
    tokens: int
    #: Neither shortened nor left out: one of its posts is pinned; or it is the user's newest query.
    pinned: bool = False
    fixed: bool = False
    #: The group on each level of shortening; empty where nothing makes it shorter, None where nobody has looked.
    levels: tuple[Level, ...] | None = None
    reductions: tuple[Reduced, ...] = ()


@dataclass(slots=True)
class RoundAccount:
    """The cost of one closed round as it reads now, and its parts while they are kept."""

    round_id: str
    number: int
    tokens: int
    messages: int
    #: The user speaks in it.
    from_user: bool
    #: Tokens on each level of shortening.
    by_level: tuple[int, ...]
    #: Tokens of its pinned groups, which stay when the round is left out.
    pinned: int
    overlays: OverlayKey
    #: How often the role's model was called in it: the messages of the role itself.
    calls: int = 0
    #: The round as it is shown; None where it must be read and made anew.
    parts: tuple[PromptPart, ...] | None = field(default=None, repr=False, compare=False)
    #: There is nothing but text in its messages.
    plain: bool = field(default=False, repr=False, compare=False)
    #: Tokens of the parts and of what stands for them on each level.
    kept_tokens: int = field(default=0, repr=False, compare=False)


def own(message: Mapping[str, Any]) -> Message:
    """Return a copy of *message* that its receiver may change, however deep."""
    for value in message.values():
        if not isinstance(value, str):
            return {key: thaw(value) for key, value in message.items()}
    return {**message}


def is_pinned(group: MessageGroup, pinned: Collection[int]) -> bool:
    """Return whether one of *group*'s posts is *pinned*, by number; 0 is the query."""
    return bool(pinned) and any((post.number if post else 0) in pinned for post in group.posts)


def calls_in(round_: Round, role: str) -> int:
    """Return how many messages in *round_* are by *role* itself: each is an answer of its model. The empty role, which
    sees everything, stands for all but the user."""
    if role:
        return len([post for post in round_.post_list if post.send_from == role])
    return len([post for post in round_.post_list if post.send_from != USER and post.tool_call_id is None])


def by_round(pins: Iterable[tuple[str, int]]) -> dict[str, frozenset[int]]:
    """Return the numbers of pinned posts by the id of their round."""
    found: dict[str, frozenset[int]] = {}
    for round_id, number in pins:
        found[round_id] = found.get(round_id, frozenset()) | {number}
    return found


# --- running totals: no prompt pays for the length of the past --------------------------------------------------


class RunningTotals(NamedTuple):
    """Totals of the closed rounds from the start of the sums to a place. The difference of two of them counts."""

    tokens: int = 0
    messages: int = 0
    #: The place of the newest round in which the user speaks; None: in none of these.
    asked: int | None = None
    by_level: tuple[int, ...] = (0,) * len(LEVELS)
    pinned: int = 0
    #: The number of rounds of which posts were dropped.
    dropped: int = 0
    calls: int = 0


class PrefixSums:
    """The accounts of closed rounds from the place *start* on, and their running totals. They only grow.

    Rounds before *start* were not even read.
    """

    def __init__(
        self,
        start: int = 0,
        totals: Iterable[RunningTotals] = (RunningTotals(),),
        accounts: Iterable[RoundAccount] = (),
    ) -> None:
        self.start = start
        #: The place of the newest round before these in which the user speaks, once somebody looked; -1: in none.
        self.asked_before: int | None = None
        #: The totals before each place from ``start`` on, one more than there are rounds.
        self.totals = list(totals)
        self.accounts = list(accounts)
        self._numbers = [account.number for account in self.accounts]
        #: The place up to which rounds are counted.
        self.stop = start + len(self.accounts)

    def __getitem__(self, place: int) -> RunningTotals:
        """Return the totals before *place*. Raises ``IndexError`` for one before ``start``."""
        return self.totals[self._index(place)]

    def account(self, place: int) -> RoundAccount:
        """Return the account of the round at *place*. Raises ``IndexError`` for one before ``start``."""
        return self.accounts[self._index(place)]

    def numbers(self, places: range) -> list[int]:
        """Return the log numbers of the rounds at *places*."""
        return self._numbers[self._index(places.start) : self._index(places.stop)] if places else []

    def _index(self, place: int) -> int:
        if place < self.start:
            raise IndexError(f"sums begin at place {self.start}, not at {place}; ask the ledger for some from there on")
        return place - self.start

    def add(self, account: RoundAccount) -> None:
        last = self.totals[-1]
        asked = self.stop if account.from_user else last.asked
        self.accounts.append(account)
        self._numbers.append(account.number)
        self.totals.append(
            RunningTotals(
                last.tokens + account.tokens,
                last.messages + account.messages,
                asked,
                tuple(map(add, last.by_level, account.by_level)),
                last.pinned + account.pinned,
                last.dropped + (tells_of_drops(account.overlays.reductions) if account.overlays.reductions else 0),
                last.calls + account.calls,
            )
        )
        self.stop += 1  # last: readers hold no lock, and go by it

    def part(self, start: int, stop: int | None = None) -> PrefixSums:
        """Return sums of their own over the places *start* to *stop*."""
        first, last = self._index(start), self._index(self.stop if stop is None else stop)
        totals = self.totals[first : last + 1]
        for at, item in enumerate(totals):
            if item.asked is None or item.asked >= start:
                break
            totals[at] = item._replace(asked=None)
        return PrefixSums(start, totals, self.accounts[first:last])


class RoundsByPlace(Protocol):
    """Rounds by their place, places by the rounds' ids, and everything that changes how they read."""

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


def _move_start(
    sums: PrefixSums, origin: int, asked_from: int, settled: int, account_at: Callable[[int], RoundAccount]
) -> PrefixSums:
    """Return *sums*, or others that begin at *origin* if *sums* begin after it or long before it. The last call asked
    for *asked_from*."""
    if origin > sums.stop or settled < sums.start:  # nothing in common: with an older moment, or a newer one
        return PrefixSums(origin)
    if origin < sums.start:
        back = PrefixSums(origin)
        for account in [*map(account_at, range(origin, sums.start)), *sums.accounts]:
            back.add(account)
        return back
    # Only what lay before the origin already when it moved last: a prompt begun just before the newest publication
    # still asks from there. And only where that is more than what is left, so that no round is copied over and over.
    if origin > asked_from and asked_from - sums.start > sums.stop - asked_from:
        return sums.part(asked_from)
    return sums


def _reuse(
    old: PrefixSums,
    rounds: RoundsByPlace,
    places: range,
    overlays_of: Callable[[str], OverlayKey],
    account_at: Callable[[int], RoundAccount],
) -> PrefixSums:
    """Return sums over the rounds at *places* that *old* knows. Rounds that read the same are not counted again; up to
    the first that reads otherwise, they are not even added again.

    The newest round is left out: another host's rounds may say that they are closed, and grow. Memory's own rounds
    come here only when a closed round has failed or its overlays have changed.
    """
    known, place = old.accounts[:-1], places.start
    if place >= old.start:
        for account in known[place - old.start : places.stop - old.start]:
            if rounds.end_of(account.round_id) != place + 1 or overlays_of(account.round_id) != account.overlays:
                break
            place += 1
    sums, left = PrefixSums(places.start), known
    if place > places.start:
        sums, left = old.part(places.start, place), known[place - old.start :]
    for account in left:
        stop = sums.stop
        if stop < places.stop and rounds.end_of(account.round_id) == stop + 1:
            if not sums.accounts and rounds[stop].id != account.round_id:
                continue  # it has failed, and the one before it, which ends there as well, is not known
            sums.add(account if overlays_of(account.round_id) == account.overlays else account_at(stop))
    return sums


# --- the ledger: one for all who read a session as one role -----------------------------------------------------


class CountedTexts:
    """A counter for texts that are the same in each prompt: it remembers counts, by length and hash, but no text."""

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


#: A group: its round's id, then of each of its posts the number and the hash of what it says.
_GroupKey = tuple[object, ...]


class _Seen(NamedTuple):
    """The source of sums: they hold as long as it is equal."""

    epoch: object = None
    redactions: int = 0
    #: Of the reductions.
    version: int = 0
    pins: object = None


class _Summed(NamedTuple):
    """The sums that the next call goes on from."""

    sums: PrefixSums
    seen: _Seen = _Seen()
    #: From where on they were asked for last.
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
        # Of open rounds' groups. No lock: the worst that two threads can do is to count a group twice.
        self._open: dict[_GroupKey, tuple[int, ...]] = {}
        self._shortened: dict[_GroupKey, tuple[Level, ...]] = {}
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        """Begin anew: another thread of the parent may have been in the middle of adding a round."""
        # Guards all below it and all sums; never held while counting. A thread may enter it again, as in a signal's
        # handler; what that would add in the middle is refused.
        self._lock = threading.RLock()
        self._adding = False
        self._summed = _Summed(PrefixSums())
        #: The accounts of closed rounds by their numbers, also of such as lie before the sums' origin.
        self._accounts: dict[int, RoundAccount] = {}
        #: Those whose parts are kept, oldest first, and the tokens of these.
        self._kept: dict[int, RoundAccount] = {}
        self._kept_tokens = 0

    def sums(self, rounds: RoundsByPlace, settled: int, reductions: Reductions, origin: int = 0) -> PrefixSums:
        """Return sums over the first *settled* of *rounds*, each read through *reductions*, that begin at the place
        *origin* or before it.

        Counts the rounds that are new since the last call and those that read otherwise now; reads none before
        *origin*. When *origin* moves forward, as with each compaction, older accounts are let go sooner or later; when
        it moves back, by a revert, they are counted anew.
        """
        origin, pins = min(origin, settled), rounds.pins
        seen = _Seen(rounds.epoch, rounds.redactions, reductions.version, pins)
        with self._lock:
            summed = self._summed
        if summed.seen == seen and origin == summed.origin and summed.sums.stop >= settled:  # as most of the time
            return summed.sums
        pinned, erased = by_round(pins) if pins else {}, rounds.erased

        def overlays_of(round_id: str) -> OverlayKey:
            over, gone = reductions.by_round.get(round_id, ()), erased.get(round_id, ())
            if not over and not gone and round_id not in pinned:
                return NO_OVERLAYS
            return OverlayKey(over, pinned.get(round_id, frozenset()), gone)

        def account_at(place: int) -> RoundAccount:
            known = self._accounts.get(rounds.number_at(place)) if isinstance(rounds, Rounds) else None
            if known is not None and overlays_of(known.round_id) == known.overlays:
                return known
            round_ = rounds[place]
            account = self._account_of(round_, overlays_of(round_.id))
            if not isinstance(rounds, Rounds):  # nobody promises that another host's rounds stay as they are
                account.parts = None
            return account

        # Worked out once: whoever counts another moment's rounds meanwhile puts others in the place of these sums, and
        # what is counted here is still right.
        if summed.seen != seen:
            sums = _reuse(summed.sums, rounds, range(origin, settled), overlays_of, account_at)
        else:
            moved = origin != summed.origin
            sums = _move_start(summed.sums, origin, summed.origin, settled, account_at) if moved else summed.sums
        if sums is summed.sums and sums.stop >= settled and origin == summed.origin:
            return sums
        while True:
            done = sums.stop
            fresh = [account_at(place) for place in range(done, min(settled, done + COUNTED_AT_ONCE))]
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
                    for account in fresh:
                        sums.add(account)
                    self._keep(fresh)
                    if sums.stop >= settled:
                        before, self._summed = self._summed, _Summed(sums, seen, origin)
                        if (origin, seen.redactions) != (before.origin, before.seen.redactions):
                            self._let_go(before, overlays_of)
                        return sums
                finally:
                    self._adding = False

    def _keep(self, fresh: Iterable[RoundAccount]) -> None:
        """Keep new accounts and their parts in the place of older ones of the same rounds. Called with the lock."""
        for account in fresh:
            number = account.number
            if account.parts is None or self._accounts.get(number) is account:
                continue
            if number in self._kept:
                self._drop_parts([number])
            self._accounts[number] = self._kept[number] = account
            self._kept_tokens += account.kept_tokens
            while len(self._kept) > MAX_ROUNDS or (self._kept_tokens > MAX_TOKENS and len(self._kept) > 1):
                self._drop_parts([next(iter(self._kept))])

    def _drop_parts(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            account = self._kept.pop(number, None)
            if account is not None:
                account.parts = None
                self._kept_tokens -= account.kept_tokens

    def _let_go(self, before: _Summed, overlays_of: Callable[[str], OverlayKey]) -> None:
        """Let go of everything that only the sums *before* needed. Called with the lock."""
        sums, seen, origin = self._summed
        if before.seen.redactions != seen.redactions:  # nothing that was erased is kept
            self._shortened = {}
            accounts = [*self._accounts.items(), *self._kept.items()]
            gone = {number for number, one in accounts if overlays_of(one.round_id) != one.overlays}
            self._drop_parts(gone)
            self._accounts = {number: one for number, one in self._accounts.items() if number not in gone}
        if origin != before.origin:
            tail = {account.number for account in sums.accounts[max(origin - sums.start, 0) :]}
            self._drop_parts([number for number in self._kept if number not in tail])
        if len(self._accounts) > 2 * len(sums.accounts) + MIN_ACCOUNTS:
            self._accounts = {account.number: account for account in sums.accounts}

    def _account_of(self, raw: Round, overlays: OverlayKey) -> RoundAccount:
        """Count a closed round, and return its account with its parts."""
        round_ = apply_overlays(raw, overlays.reductions, self.role)
        parts: list[PromptPart] = []
        by_level = [0] * len(LEVELS)
        tokens = messages = pinned_tokens = kept_tokens = 0
        from_user, plain = False, True
        for group in group_messages(round_, self.role):
            key = _key_of(round_, group)
            # What was counted while the round was open is not counted again.
            costs = self._open.pop(key, ()) or tuple([count_message(message, self.count) for message in group.messages])
            cost, pinned = sum(costs), bool(overlays.pinned) and is_pinned(group, overlays.pinned)
            levels = self._shortened.pop(key, None)
            if pinned or group.pending or group.from_user:
                levels = ()
            elif levels is None:
                levels = shorten_group(round_, group, costs, self.count)
            parts.append(PromptPart(round_, group, group.messages, costs, cost, pinned, levels=levels))
            for at in range(len(LEVELS)):
                by_level[at] += levels[at].tokens if levels else cost
            kept_tokens += cost + sum([one.tokens_after for level in levels for one in level.reductions])
            tokens += cost
            messages += len(costs)
            pinned_tokens += cost if pinned else 0
            from_user = from_user or group.from_user
            plain = plain and {type(value) for message in group.messages for value in message.values()} <= {str}
        return RoundAccount(
            round_.id,
            round_.number,
            tokens,
            messages,
            from_user,
            tuple(by_level),
            pinned_tokens,
            overlays,
            calls_in(raw, self.role),
            tuple(parts),
            plain,
            kept_tokens,
        )

    def costs(self, round_: Round, group: MessageGroup) -> tuple[int, ...]:
        """Return the tokens of each message of a group in a round of the log, which may still grow; and remember it."""
        key = _key_of(round_, group)
        costs = self._open.get(key)
        if costs is None:
            if len(self._open) >= MAX_OPEN_GROUPS:
                self._open = {}
            costs = self._open[key] = tuple([count_message(message, self.count) for message in group.messages])
        return costs

    def levels(self, part: PromptPart) -> tuple[Level, ...]:
        """Return *part*'s group on each level of shortening, and remember it; nothing if no level makes it shorter."""
        if part.levels is not None:
            return part.levels
        key = _key_of(part.round_, part.group)
        levels = self._shortened.get(key)
        if levels is None:
            if len(self._shortened) >= MAX_OPEN_GROUPS:
                self._shortened = {}
            levels = self._shortened[key] = shorten_group(part.round_, part.group, part.costs, self.count)
        return levels


def _key_of(round_: Round, group: MessageGroup) -> _GroupKey:
    """Return a key that tells a group from all others, and from itself before it was overlaid or erased."""
    key: list[object] = [round_.id]
    for post in group.posts:
        if post is None:
            key.append((0, hash(round_.user_query)))
        elif post.tool_calls:  # whose arguments may be offloaded while the words stay
            key.append((post.number, hash((post.message, *[call.arguments for call in post.tool_calls]))))
        else:
            key.append((post.number, hash(post.message)))
    return tuple(key)


_ledgers: WeakKeyDictionary[Memory, dict[str, dict[object, Ledger]]] = WeakKeyDictionary()


def ledger_of(memory: Memory, role: str, count: TokenCounter) -> Ledger:
    """Return the one ledger that all who read *memory* as *role* share, so that a round is counted once in all."""
    # No lock: the worst that two threads can do is to count a round twice.
    ledgers = _ledgers.setdefault(memory, {}).setdefault(role, {})
    try:
        hash(count)
        key: object = count  # equal counters share one: a bound method is another object each time it is named
    except TypeError:
        key = id(count)  # the ledger keeps the counter, so the number stays its own
    found = ledgers.get(key)
    if found is None:
        for oldest in list(ledgers)[: max(len(ledgers) + 1 - MAX_COUNTERS, 0)]:
            ledgers.pop(oldest, None)
        found = ledgers.setdefault(key, Ledger(role, count))
    return found
