"""The tokens of one role's rounds: each closed round is counted once, and summed up; an open one in blocks."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from memory import Memory
from memory.hooks import renew_after_fork
from memory.messages import FUNCTION
from memory.overlays import Reduction, Reductions
from memory.rounds import ATOMS, USER, Round, copy_with
from memory.visibility import Rounds

from ..host_rounds import HostRounds
from ..tokens import TokenCounter, count_message
from .groups import OVERLAY, Message, MessageGroup, apply_overlays, group_messages, measure_depth, tells_of_drops
from .layout import PromptPart, ShortenedPart, SummaryAs
from .open_rounds import MIN_BLOCK, MIN_REST, BlockReader, Blocks, OpenRoundTokens, Overlays, RunningTotals
from .shorten import LARGE, shorten_part

if TYPE_CHECKING:
    from ..view import LastPrompt

#: Maximum closed rounds of one role whose messages are kept, and their tokens: older ones are read and made anew.
MAX_ROUNDS, MAX_TOKENS = 256, 1_000_000
#: Texts whose counts are remembered; at one more, all are forgotten.
MAX_TEXTS = 64
#: Rounds that are counted between two checks of what other threads have counted.
COUNT_BATCH_SIZE = 64
#: Tokens of closed rounds are kept up to twice the number in the prefix sums, plus this many.
MIN_ROUNDS = 1_024
#: Groups of open rounds whose costs are remembered, their levels, and reports of reductions; at one more, all are
#: forgotten.
MAX_OPEN_GROUPS = 20_000
#: Open rounds of one role whose blocks are kept.
MAX_OPEN_ROUNDS = 16
#: Counters of one role whose caches are kept: a host that makes a new one for each prompt does not fill the memory.
MAX_COUNTERS = 8
#: It is remembered of at least so many rounds, and at most twice as many, how long their prompts took.
TIMED_ROUNDS = 200

#: The redactions, the rounds' epoch, the reductions' version and the pins: sums hold as long as it is equal.
_Moment = tuple[object, ...]
_NO_BLOCKS = Blocks()


@dataclass(slots=True, repr=False)
class RoundTokens:
    """The tokens of one closed round as it reads now, and its parts while they are kept."""

    round_id: str
    number: int
    overlays: Overlays
    totals: RunningTotals
    #: The round as it is shown; None where it must be read and made anew.
    parts: tuple[PromptPart, ...] | None = field(repr=False, compare=False)
    #: Tokens of the parts and of their replacements on each level.
    kept_tokens: int = field(repr=False, compare=False)


@dataclass(slots=True, eq=False, repr=False)
class PrefixSums:
    """The tokens of closed rounds from the place *start* on, and their running totals. They only grow.

    Rounds before *start* were not even read.
    """

    start: int = 0
    #: The place up to which rounds are counted.
    stop: int = 0
    round_tokens: list[RoundTokens] = field(default_factory=list)
    #: The log numbers of the rounds in ``round_tokens``.
    round_numbers: list[int] = field(default_factory=list)
    #: The totals before each place from ``start`` on, one more than there are rounds.
    totals: list[RunningTotals] = field(default_factory=lambda: [RunningTotals()])
    #: The place of the newest round before these in which the user speaks, once that was looked up; -1: in none.
    query_before: int | None = None

    def __getitem__(self, index: int) -> RunningTotals:
        """Return the totals before *index*. Raises ``IndexError`` for one before ``start``."""
        if index < self.start:
            raise IndexError(f"they begin at place {self.start}, not at {index}; ask the cache for earlier sums")
        return self.totals[index - self.start]

    def list_numbers(self, places: range) -> list[int]:
        """Return the log numbers of the rounds at *places*."""
        return self.round_numbers[places.start - self.start : places.stop - self.start]


class HostParts(NamedTuple):
    """What only the host knows of a prompt, and the log does not tell."""

    system: tuple[Message, ...] = ()
    plan: Message | None = None
    summary_as: SummaryAs = "system"


NO_HOST_PARTS = HostParts()


@dataclass(slots=True, eq=False, repr=False)
class PromptLimits:
    """The limits of a role's last prompt, for its compactor, and how long prompts took."""

    #: The tokens that it could take, and the one before it: a short prompt now and then, such as for a title, is not
    #: what the conversation has to fit. Empty: unknown.
    budgets: tuple[int, ...] = ()
    #: The model that it was for; empty: unknown.
    model: str = ""
    #: Whether the role's compactor is to evaluate when one of these, or what stands before the rounds, has changed.
    is_watched: bool = False
    #: The prompt itself, if a summarizer may go on from it.
    last_prompt: LastPrompt | None = None
    #: The host's parts of the last prompt, for who shows it.
    host: HostParts = NO_HOST_PARTS
    #: Seconds that composing took at most, by the number of the newest round then.
    seconds: dict[int, float] = field(default_factory=dict)


class PublishedReductions(NamedTuple):
    """The published reductions of a round, as reports list them."""

    #: The round's number in the log.
    number: int
    #: How often something had been erased from the log when they were counted.
    moment: int
    reductions: tuple[Reduction, ...]
    reduced: tuple[ShortenedPart, ...]


class TokenCache:
    """The tokens of one role's rounds by one token counter. Any number of threads may ask it."""

    def __init__(self, role: str, count: TokenCounter, prompt_limits: PromptLimits | None = None) -> None:
        self.role = role
        self.count = count
        #: What the role's last prompt was to fit, with whatever counter it was counted.
        self.prompt_limits = prompt_limits if prompt_limits is not None else PromptLimits()
        #: Tokens of the last prompt's messages before the compaction, and of its tools; only the composer knows them.
        self.header_tokens = 0
        self.tool_tokens = 0
        #: What reports say of published reductions, each counted once; and of those in the last prompt, by round.
        self.reduced: dict[object, ShortenedPart] = {}
        self.published_reductions: dict[str, PublishedReductions] = {}
        # No lock for these: the worst that two threads can do is to count something twice.
        self._texts: dict[tuple[int, int], int] = {}
        self._open: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._shortened: dict[tuple[object, ...], tuple[PromptPart, ...]] = {}
        #: The tokens of open rounds that are read in blocks, by the rounds' ids.
        self._open_rounds: dict[str, OpenRoundTokens] = {}
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        """Begin anew: another thread of the parent may have been in the middle of adding a round."""
        # Guards all below it and all prefix sums; never held while counting. A thread may enter it again, as in a
        # signal's handler; what that would add in the middle is refused.
        self._lock = threading.RLock()
        self._adding = False
        #: The prefix sums that the next call goes on from, their moment, and the origin that was asked for last.
        self._summed: tuple[PrefixSums, _Moment, int] = (PrefixSums(), (), 0)
        #: The tokens of closed rounds by their numbers, also of rounds before the origin.
        self._round_tokens: dict[int, RoundTokens] = {}
        #: Those whose parts are kept, oldest first, and the tokens of these.
        self._kept: dict[int, RoundTokens] = {}
        self._kept_tokens = 0

    def compute_prefix_sums(
        self, rounds: Rounds | HostRounds, closed: int, reductions: Reductions, origin: int = 0
    ) -> PrefixSums:
        """Return sums over the first *closed* of *rounds*, each read through *reductions*, that begin at the place
        *origin* or before it.

        Counts the rounds that are new since the last call and those that read otherwise now; reads none before
        *origin*. That moves forward with each compaction, and back by a revert.
        """
        origin, pins = min(origin, closed), rounds.pins
        moment: _Moment = (rounds.redactions, rounds.epoch, reductions.version, pins)
        prefix, summed_moment, last_origin = self._summed
        if summed_moment == moment and origin == last_origin and prefix.stop >= closed:  # as most of the time
            return prefix
        pinned, erased, by_round = group_pins(pins) if pins else {}, rounds.erased, reductions.by_round
        known, keeps = self._round_tokens, rounds.snapshot is not None
        if not keeps:  # the newest may say that it is closed, and grow
            known = {rounds.find_end(counted.round_id) or 0: counted for counted in prefix.round_tokens[:-1]}

        if summed_moment != moment or not prefix.start <= origin <= prefix.stop:
            prefix = PrefixSums(origin, origin)
        elif last_origin < origin and last_origin - prefix.start > prefix.stop - last_origin:
            # Only what lay before the origin already when it moved last: a prompt begun just before the newest
            # publication still asks from there. And only if that is most of it: so no round is added over and over.
            prefix = PrefixSums(last_origin, last_origin)
        while True:
            done = prefix.stop
            fresh: list[RoundTokens] = []
            for place in range(done, min(closed, done + COUNT_BATCH_SIZE)):
                counted, round_ = known.get(rounds.get_number(place)), None
                round_id = counted.round_id if counted is not None else (round_ := rounds[place]).id
                overlays = by_round.get(round_id, ()), pinned.get(round_id, frozenset()), erased.get(round_id, ())
                if counted is None or overlays != counted.overlays:
                    counted = self._count_round(round_ or rounds[place], overlays, keeps=keeps)
                fresh.append(counted)
            with self._lock:
                if self._adding:
                    raise RuntimeError(
                        "this thread is in the middle of counting, as where a signal's handler composes a prompt; set a"
                        " flag in the handler, and compose when it has returned"
                    )
                if prefix.stop != done:
                    continue  # another thread adds to the same sums; go on from what it has counted
                self._adding = True
                try:
                    for counted in fresh:
                        self._add(prefix, counted)
                    if prefix.stop >= closed:
                        self._publish(prefix, moment, origin, erased)
                        return prefix
                finally:
                    self._adding = False

    def _publish(self, prefix: PrefixSums, moment: _Moment, origin: int, erased: Mapping[str, tuple[int, ...]]) -> None:
        """Have the next call go on from *prefix*, and let go of everything else. Called with the lock."""
        (_, before, last_origin), self._summed = self._summed, (prefix, moment, origin)
        if before and before[0] != moment[0]:  # nothing that was erased is kept
            self._shortened, self.published_reductions = {}, {}
            if (last := self.prompt_limits.last_prompt) is not None and last.rounds.redactions != moment[0]:
                self.prompt_limits.last_prompt = None
            for round_id in erased:
                self._open_rounds.pop(round_id, None)
            kept = [*self._round_tokens.items(), *self._kept.items()]
            changed = {number for number, one in kept if one.overlays[2] != erased.get(one.round_id, ())}
            self._drop_parts(changed)
            # Not all others: readers of two snapshots may take turns, and would have one another begin anew.
            self._round_tokens = {number: one for number, one in self._round_tokens.items() if number not in changed}
        if origin != last_origin:
            self._drop_parts(
                self._kept.keys() - {counted.number for counted in prefix.round_tokens[origin - prefix.start :]}
            )
        if len(self._round_tokens) > 2 * len(prefix.round_tokens) + MIN_ROUNDS:
            self._round_tokens = {counted.number: counted for counted in prefix.round_tokens}

    def _add(self, prefix: PrefixSums, counted: RoundTokens) -> None:
        """Add a closed round to *prefix*; keep a new one, with its parts, in the place of an older one of the same
        round. Called with the lock."""
        last, own = prefix.totals[-1], counted.totals
        prefix.round_tokens.append(counted)
        prefix.round_numbers.append(counted.number)
        last_query = prefix.stop if own.last_query is not None else last.last_query
        prefix.totals.append(RunningTotals._make((*map(add, last[:-1], own[:-1]), last_query)))
        prefix.stop += 1  # last: readers hold no lock, and go by it
        number = counted.number
        if counted.parts is None or self._round_tokens.get(number) is counted:
            return
        if number in self._kept:
            self._drop_parts([number])
        self._round_tokens[number] = self._kept[number] = counted
        self._kept_tokens += counted.kept_tokens
        while len(self._kept) > MAX_ROUNDS or (self._kept_tokens > MAX_TOKENS and len(self._kept) > 1):
            self._drop_parts([next(iter(self._kept))])

    def _drop_parts(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            counted = self._kept.pop(number, None)
            if counted is not None:
                counted.parts = None
                self._kept_tokens -= counted.kept_tokens

    def _count_round(self, raw: Round, overlays: Overlays, *, keeps: bool) -> RoundTokens:
        """Count a closed round, and return its tokens, with its parts if it *keeps* them."""
        self._open_rounds.pop(raw.id, None)
        round_ = apply_overlays(raw, overlays[0], self.role)
        parts, totals = self._count_groups(raw, round_, group_messages(round_, self.role), overlays, is_closed=True)
        shortened = [one.tokens_after for part in parts for level in part.levels or () for one in level.reductions]
        kept_tokens = totals.tokens + sum(shortened)
        return RoundTokens(round_.id, round_.number, overlays, totals, parts if keeps else None, kept_tokens)

    def count_open(
        self, raw: Round, overlays: Overlays, *, is_last: bool = True, keeps: bool = True
    ) -> OpenRoundTokens:
        """Return the tokens of a round that may still grow, as it reads now. *is_last*: it is the newest round.

        With *keeps*, the counts are remembered: so the thousandth post costs as much as the first.
        """
        known = self._open_rounds.get(raw.id) if keeps else None
        if known is None and (not keeps or len(raw.post_list) < MIN_BLOCK + MIN_REST):
            shown = apply_overlays(raw, overlays[0], self.role)
            groups, read = group_messages(shown, self.role, last=is_last), copy_with(shown, post_list=())
            parts_and_totals = self._count_groups(raw, read, groups, overlays, remembers=keeps)
            return OpenRoundTokens(overlays, _NO_BLOCKS, *parts_and_totals)
        counted = BlockReader(raw, overlays, self.role, is_last, self._count_groups).read(known)
        if known is None or len(counted.blocks.posts) >= len(known.blocks.posts):  # else it is of an older snapshot
            self._open_rounds[raw.id] = counted
            for oldest in list(self._open_rounds)[: max(len(self._open_rounds) - MAX_OPEN_ROUNDS, 0)]:
                self._open_rounds.pop(oldest, None)
        return counted

    def _count_groups(
        self,
        raw: Round,
        round_: Round,
        groups: Sequence[MessageGroup],
        overlays: Overlays,
        *,
        is_closed: bool = False,
        remembers: bool = True,
    ) -> tuple[tuple[PromptPart, ...], RunningTotals]:
        """Return the parts of *groups*, which is how the posts of *raw* read, and their totals. Once *round_*, which
        has them, *is_closed*, their tokens are no longer remembered."""
        reductions, pinned, _ = overlays
        parts: list[PromptPart] = []
        all_costs = self.list_costs(round_, groups, remembers=remembers and not is_closed)
        for group, costs in zip(groups, all_costs, strict=True):
            stays = bool(pinned) and is_pinned(group, pinned)
            depths = bytes([measure_depth(one) if {*map(type, one.values())} - ATOMS else 0 for one in group.messages])
            tokens, posts = sum(costs), () if stays or group.pending or group.from_user else group.posts
            levels: tuple[PromptPart, ...] | None = ()
            for post in posts:
                if post is not None and (
                    post.tool_call_id is not None
                    or post.send_from == FUNCTION
                    or post.attachment_list
                    or len(post.message) > LARGE.threshold
                ):  # no level of shortening has a rule for other posts
                    part = PromptPart(round_, group, group.messages, costs, tokens, depths=depths)
                    if is_closed:
                        levels = self._shortened.pop(_make_key(round_, group), None)
                        levels = shorten_part(part, self.count) if levels is None else levels
                    else:
                        levels = self.list_levels(part) if remembers else None
                    break
            parts.append(PromptPart(round_, group, group.messages, costs, tokens, stays, levels=levels, depths=depths))
        totals = RunningTotals(
            tokens=sum([part.tokens for part in parts]),
            messages=sum([len(part.costs) for part in parts]),
            calls=count_calls(raw, self.role),
            shortest=sum([part.levels[-1].tokens if part.levels else part.tokens for part in parts]),
            pinned=sum([part.tokens for part in parts if part.pinned]),
            dropped=int(tells_of_drops(reductions)) if reductions else 0,
            last_query=0 if any(part.group.from_user for part in parts) else None,
        )
        return tuple(parts), totals

    def count_again(self, text: str, /) -> int:
        """Return the tokens of a text that is the same in each prompt. Its count is remembered, but not the text."""
        key = len(text), hash(text)
        tokens = self._texts.get(key)
        if tokens is None:
            if len(self._texts) >= MAX_TEXTS:
                self._texts = {}
            tokens = self._texts[key] = self.count(text)
        return tokens

    def list_costs(
        self, round_: Round, groups: Iterable[MessageGroup], *, remembers: bool = True
    ) -> list[tuple[int, ...]]:
        """Return the tokens of each message of *groups* in a round of the log, which may still grow; and remember them,
        or else forget them."""
        all_costs: list[tuple[int, ...]] = []
        for key, group in [(_make_key(round_, group), group) for group in groups]:
            costs = self._open.get(key) if remembers else self._open.pop(key, None)
            if costs is None:
                costs = tuple(map(count_message, group.messages, repeat(self.count)))
                if remembers:
                    self._open = self._open if len(self._open) < MAX_OPEN_GROUPS else {}
                    self._open[key] = costs
            all_costs.append(costs)
        return all_costs

    def list_levels(self, part: PromptPart) -> tuple[PromptPart, ...]:
        """Return *part* on each level of shortening, and remember it; nothing if no level makes it shorter."""
        if part.levels is not None:
            return part.levels
        key = _make_key(part.round_, part.group)
        levels = self._shortened.get(key)
        if levels is None:
            if len(self._shortened) >= MAX_OPEN_GROUPS:
                self._shortened = {}
            # Without its posts, which change with each post: else each of them would keep a round of its own alive.
            levels = shorten_part(copy_with(part, round_=copy_with(part.round_, post_list=())), self.count)
            self._shortened[key] = levels
        return levels


def is_pinned(group: MessageGroup, pinned: Collection[int]) -> bool:
    """Return whether one of *group*'s posts is *pinned*, by number; 0 is the query."""
    return any((post.number if post else 0) in pinned for post in group.posts)


def count_calls(round_: Round, role: str) -> int:
    """Return how many messages in *round_* are by *role* itself: each is an answer of its model. The empty role, which
    sees everything, stands for all but the user."""
    if role:
        return len([post for post in round_.post_list if post.send_from == role])
    return len([post for post in round_.post_list if post.send_from != USER and post.tool_call_id is None])


def group_pins(pins: Iterable[tuple[str, int]]) -> dict[str, frozenset[int]]:
    """Return the numbers of pinned posts by the id of their round."""
    by_round: dict[str, frozenset[int]] = {}
    for round_id, number in pins:
        by_round[round_id] = by_round.get(round_id, frozenset()) | {number}
    return by_round


def _make_key(round_: Round, group: MessageGroup) -> tuple[object, ...]:
    """Return a key that tells a group from all others, and from itself before it was overlaid or erased: its round's
    id, then of each post the number, the hash of its texts and its overlay."""
    key: list[object] = [round_.id]
    for post in group.posts:
        if post is None:
            key.append((0, hash(round_.user_query)))
        elif post.tool_calls:  # whose arguments may be offloaded while the words stay
            texts = (post.message, *[call.arguments for call in post.tool_calls])
            key.append((post.number, hash(texts), post.extra.get(OVERLAY)))
        else:
            key.append((post.number, hash(post.message), post.extra.get(OVERLAY)))
    return tuple(key)


_token_caches: WeakKeyDictionary[Memory, dict[str, dict[object, TokenCache]]] = WeakKeyDictionary()


def get_token_cache(memory: Memory, role: str, count: TokenCounter) -> TokenCache:
    """Return the one cache that all who read *memory* as *role* share, so that a round is counted once in all."""
    # No lock: the worst that two threads can do is to count a round twice.
    token_caches = _token_caches.setdefault(memory, {}).setdefault(role, {})
    try:
        hash(count)
        key: object = count  # equal counters share one: a bound method is another object each time it is named
    except TypeError:
        key = id(count)  # the cache keeps the counter, so the number stays its own
    token_cache = token_caches.get(key)
    if token_cache is None:
        for oldest in list(token_caches)[: max(len(token_caches) + 1 - MAX_COUNTERS, 0)]:
            token_caches.pop(oldest, None)
        limits = next(iter(token_caches.values())).prompt_limits if token_caches else None
        token_cache = token_caches.setdefault(key, TokenCache(role, count, limits))
    return token_cache
