"""Open rounds, read in blocks: so the thousandth post of a round costs as much as the first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from memory.messages import FUNCTION, has_result_parts
from memory.overlays import Reduction
from memory.rounds import EMPTY, Post, Round, copy_with, thaw
from memory.values import ValueObject

from .groups import (
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
    EPHEMERAL,
    NO_RESULT,
    OVERLAY,
    Message,
    MessageGroup,
    apply_overlays,
    copy_messages,
    group_messages,
    tells_of_drops,
)
from .layout import PromptPart

#: How many posts a block has at least, and how many of the newest are in none: the next post may change how they read.
MIN_BLOCK, MIN_REST = 16, 8

#: The overlays of a round: its reductions, and the numbers of its pinned posts (0 is the query) and of its erased ones.
#: With equal overlays, it costs the same.
Overlays = tuple[tuple[Reduction, ...], frozenset[int], tuple[int, ...]]
_NO_OVERLAYS: Overlays = (), frozenset(), ()


class RunningTotals(NamedTuple):
    """Totals of one round or block, or of all closed rounds from the start of the prefix sums to a place: these are
    meaningful as differences."""

    tokens: int = 0
    messages: int = 0
    #: How often the role's model was called: the messages of the role itself.
    calls: int = 0
    #: Tokens on the heaviest level of shortening.
    shortest: int = 0
    #: Tokens of pinned groups, which stay when their round is left out.
    pinned: int = 0
    #: Rounds of which posts were dropped.
    dropped: int = 0
    #: The place of the newest round in which the user speaks; None: in none of these.
    last_query: int | None = None


class Block(NamedTuple):
    """Neighbouring posts of an open round. Later posts do not change how they read."""

    posts: tuple[Post, ...]
    overlays: Overlays
    parts: tuple[PromptPart, ...]
    totals: RunningTotals
    #: The calls up to its end that have no result: if one comes, it belongs there.
    unanswered: frozenset[str]
    #: The tokens of its largest part on the heaviest level; None if one of its parts has to be shown.
    largest: int | None


class Blocks(NamedTuple):
    """The beginning of an open round in blocks, and their totals."""

    blocks: tuple[Block, ...] = ()
    posts: tuple[Post, ...] = ()
    parts: tuple[PromptPart, ...] = ()
    totals: RunningTotals = RunningTotals()
    #: Those parts in which the user speaks.
    spoken: tuple[PromptPart, ...] = ()
    #: Their messages, and the copies of these that prompts hand out.
    messages: tuple[Message, ...] = ()
    handed_out: tuple[Message, ...] = ()

    def extend(self, blocks: Sequence[Block]) -> Blocks:
        """Return these blocks and more behind them."""
        if not blocks:
            return self
        parts = [part for block in blocks for part in block.parts]
        messages = [message for part in parts for message in part.messages]
        copies = copy_messages(messages, b"".join([part.depths for part in parts]))
        return Blocks(
            (*self.blocks, *blocks),
            (*self.posts, *[post for block in blocks for post in block.posts]),
            (*self.parts, *parts),
            add_totals(self.totals, *[block.totals for block in blocks]),
            (*self.spoken, *[part for part in parts if part.group.from_user]),
            (*self.messages, *messages),
            (*self.handed_out, *copies),
        )


class OpenRoundTokens(NamedTuple):
    """The tokens of a round that may still grow, as it reads now."""

    #: What it was read through.
    overlays: Overlays
    #: Its beginning; empty while it is short.
    blocks: Blocks
    #: The parts behind these.
    rest: tuple[PromptPart, ...]
    #: The totals of all parts.
    totals: RunningTotals

    @property
    def parts(self) -> tuple[PromptPart, ...]:
        return (*self.blocks.parts, *self.rest)

    def hand_out(self) -> list[Message]:
        """Return copies of its messages for a prompt, whose receiver may change them.

        Prompts share the copies of blocks, since to compare thousands of them takes a fraction of the time of copying
        them. A message that a host changed is copied anew: the change shows in no later prompt.
        """
        blocks, rest = self.blocks, [message for part in self.rest for message in part.messages]
        newest = copy_messages(rest, b"".join([part.depths for part in self.rest]))
        if _are_equal(blocks.handed_out, blocks.messages):
            return [*blocks.handed_out, *newest]
        pairs = zip(blocks.handed_out, blocks.messages, strict=True)
        return [*[copy if _are_equal(copy, message) else thaw(message) for copy, message in pairs], *newest]

    @property
    def spoken(self) -> tuple[PromptPart, ...]:
        """Those parts in which the user speaks."""
        return (*self.blocks.spoken, *[part for part in self.rest if part.group.from_user])


#: Returns the parts of message groups, and their totals. Called with some posts of a round as the log has them, the
#: round as it reads, the groups of these posts, and their overlays.
CountGroups = Callable[[Round, Round, Sequence[MessageGroup], Overlays], tuple[tuple[PromptPart, ...], RunningTotals]]


def add_totals(*totals: RunningTotals) -> RunningTotals:
    """Return the totals of blocks of one round."""
    sums = map(sum, zip(*[one[:-1] for one in totals], strict=True))
    last_query = next((one.last_query for one in totals if one.last_query is not None), None)
    return RunningTotals._make((*sums, last_query))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockReader(ValueObject):
    """Reads an open round as *role* sees it through its overlays, in blocks."""

    raw: Round
    overlays: Overlays
    role: str
    #: It is the newest round.
    is_last: bool
    count_groups: CountGroups

    def read(self, known: OpenRoundTokens | None) -> OpenRoundTokens:
        """Return the round's tokens. Of *known*, its last one, the blocks that read otherwise now are made anew."""
        blocks = known.blocks if known is not None else Blocks()
        is_same = known is not None and self.overlays == known.overlays
        if not is_same or self.raw.post_list[: len(blocks.posts)] != blocks.posts:  # seldom
            blocks = self._renew(blocks.blocks)
        counted = self._read_behind(blocks)
        dropped = known.totals.dropped if known is not None and is_same else int(tells_of_drops(self.overlays[0]))
        return copy_with(counted, totals=copy_with(counted.totals, dropped=dropped))

    def _read_behind(self, blocks: Blocks) -> OpenRoundTokens:
        """Return the round's tokens, of which *blocks* are known to be right."""
        start, posts = len(blocks.posts), self.raw.post_list[len(blocks.posts) :]
        reductions = self._cut_overlays(start, posts)[0]
        shown = apply_overlays(self._cut_round(start, posts), reductions, self.role)
        groups = group_messages(shown, self.role, last=self.is_last)
        if start and _reaches_back(groups, blocks.blocks[-1].unanswered):
            return self._read_behind(Blocks())
        new: list[Block] = []
        first_group = first_post = 0
        for end_group, end_post in _find_cuts(groups, posts, reductions):
            before = new[-1:] or blocks.blocks[-1:]
            cut = groups[first_group:end_group]
            new.append(self._make_block(start + first_post, posts[first_post:end_post], shown, cut, before))
            first_group, first_post = end_group, end_post
        blocks = blocks.extend(new)
        rest, totals = self._count(start + first_post, posts[first_post:], shown, groups[first_group:])
        return OpenRoundTokens(self.overlays, blocks, rest, add_totals(blocks.totals, totals))

    def _renew(self, blocks: Sequence[Block]) -> Blocks:
        """Return *blocks* as they read now, up to the first behind which posts may read otherwise as well."""
        renewed: list[Block] = []
        start = 0
        for block in blocks:
            posts = self.raw.post_list[start : start + len(block.posts)]
            if posts != block.posts:
                break
            overlays = self._cut_overlays(start, posts)
            if overlays != block.overlays:
                reductions = overlays[0]
                reaches_out = bool(reductions) and reductions[-1].last_number > posts[-1].number
                if reaches_out or any(post.kind.startswith(EPHEMERAL) for post in posts):
                    break
                shown = apply_overlays(self._cut_round(start, posts), reductions, self.role)
                groups = group_messages(shown, self.role, last=False)
                read = self._make_block(start, posts, shown, groups, renewed[-1:])
                if read.unanswered != block.unanswered:
                    break
                if read.unanswered and _list_calls(read) != _list_calls(block):
                    break  # a later result may belong to an earlier call now, whose id was used again
                renewed.append(read)
            else:
                renewed.append(block)
            start += len(posts)
        return Blocks().extend(renewed)

    def _make_block(
        self,
        start: int,
        posts: tuple[Post, ...],
        shown: Round,
        groups: Sequence[MessageGroup],
        previous: Sequence[Block],
    ) -> Block:
        """Return the block of the *posts* from place *start* on, which read as *groups*."""
        parts, totals = self._count(start, posts, shown, groups)
        called = {call.id for group in groups for call in group.calls}
        missing = {one["tool_call_id"] for group in groups for one in group.messages if one.get("content") == NO_RESULT}
        unanswered = (previous[0].unanswered - called) | missing if previous else frozenset(missing)
        shortest = [part.levels[-1].tokens if part.levels else part.tokens for part in parts]
        largest = None if any(map(_has_to_stay, parts)) else max(shortest, default=0)
        return Block(posts, self._cut_overlays(start, posts), parts, totals, unanswered, largest)

    def _count(
        self, start: int, posts: tuple[Post, ...], shown: Round, groups: Sequence[MessageGroup]
    ) -> tuple[tuple[PromptPart, ...], RunningTotals]:
        # Without its posts, which change with each post: else each block would keep a state of the round alive.
        read = copy_with(self.raw if start else shown, post_list=())
        return self.count_groups(self._cut_round(start, posts), read, groups, self._cut_overlays(start, posts))

    def _cut_round(self, start: int, posts: tuple[Post, ...]) -> Round:
        """Return the round with only the *posts* from place *start* on; without the query, unless they begin it."""
        if not start:
            return copy_with(self.raw, post_list=posts)
        return copy_with(self.raw, post_list=posts, user_query="", extra=EMPTY)

    def _cut_overlays(self, start: int, posts: Sequence[Post]) -> Overlays:
        """Return the overlays that begin or end in the *posts* from place *start* on, or in the query if they begin
        the round."""
        reductions, pinned, _ = self.overlays
        if not reductions and not pinned:
            return _NO_OVERLAYS
        first = posts[0].number if start and posts else 0
        last = posts[-1].number if posts else 0
        own = reductions[bisect_left(reductions, first, key=attrgetter("last_number")) :]
        own = own[: bisect_left(own, last + 1, key=attrgetter("first_number"))]
        return own, frozenset([number for number in pinned if first <= number <= last]), ()


def _are_equal(one: object, other: object) -> bool:
    """Return whether two values are equal; False if something that a host put in there cannot be compared."""
    try:
        return one == other
    except Exception:  # noqa: BLE001  (an array, for instance, has no one truth; or a message was put into itself)
        return False


def _list_calls(block: Block) -> list[str]:
    return [call.id for part in block.parts for call in part.group.calls]


def _has_to_stay(part: PromptPart) -> bool:
    """Return whether *part* is left out last of all, or never."""
    group = part.group
    return part.pinned or group.pending or group.from_user or group.recalls


def _reaches_back(groups: Sequence[MessageGroup], unanswered: frozenset[str]) -> bool:
    """Return whether one of *groups* may belong to one before them, because it has the result of an *unanswered* call
    there."""
    if not groups or (groups[0].posts[0] is not None and groups[0].posts[0].send_from == FUNCTION):
        return True
    return bool(unanswered) and any(
        group.posts[0] is not None
        and (group.posts[0].tool_call_id is not None or any(has_result_parts(post) for post in group.posts if post))
        for group in groups
    )


def _find_cuts(
    groups: Sequence[MessageGroup], posts: Sequence[Post], reductions: Sequence[Reduction]
) -> list[tuple[int, int]]:
    """Return where blocks end: before which of *groups*, and before which of their *posts*."""
    cuts: list[tuple[int, int]] = []
    if len(posts) < MIN_BLOCK + MIN_REST:
        return cuts
    start, furthest, unapproved = 0, -1, 0
    for number, group in enumerate(groups):
        first, low = group.posts[0], group.number
        if low > posts[-MIN_REST].number:
            break
        if furthest < low and not unapproved and first is not None and first.send_from != FUNCTION:
            place = bisect_left(posts, low, key=attrgetter("number"))
            over = bisect_left(reductions, low, key=attrgetter("last_number"))
            is_within = over < len(reductions) and reductions[over].first_number < low
            if place - start >= MIN_BLOCK and not is_within:
                cuts.append((number, place))
                start = place
        for place, post in enumerate(group.posts):
            if post is None or (place and post is first):  # a call stands for each result that it lacks
                continue
            if post.kind.startswith(EPHEMERAL) and not post.tool_calls and post.extra.get(OVERLAY) != "ephemeral":
                return cuts  # it is still to be left out
            furthest = max(furthest, post.number)
            unapproved += (post.kind == APPROVAL_REQUEST) - (post.kind == APPROVAL_RESPONSE)
    return cuts
