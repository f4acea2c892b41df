"""Cuts a prompt that is too long, from light to heavy and only as far as needed.

Every decision follows from the tail's tokens in whole steps, and from posts older than that. So new messages change the
beginning of the prompt only when the next step is due.

``fit`` tries the whole tail first. If that is too long, ``_Head.shorten`` makes room for the parts that must be
shown, and ``_cut`` finds the first round that stays. ``_shorten_tail`` then goes level by level: it shortens texts from
there on, and ``_leave_out`` leaves out posts if that is not enough. An open round may have thousands of posts, so its
blocks are judged by their totals (``_sum_saved_in_newest``, ``_find_omitted``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile

from memory.overlays import PINNED, CompactedMessage, Reduction
from memory.references import make_post_reference, make_range_reference, make_reference
from memory.rounds import Round, cached_property, copy_with
from memory.values import ValueObject

from ..tokens import PROMPT_TOKENS, count_message
from ..view import View
from .groups import Message, MessageGroup, copy_messages, measure_depth
from .layout import Layout, PromptPart, ShortenedPart, SummaryAs, count_added, place_in_front
from .open_rounds import Block, OpenRoundTokens
from .shorten import LEVELS, clip_message, clip_text, make_omission_note, measure_reduction
from .token_cache import MAX_OPEN_GROUPS, PublishedReductions

#: Where what stands in front takes most of the budget, a step is this share of what it leaves: else a cut would leave
#: next to nothing.
MAX_STEP_SHARE = 2 / 3
#: The newest posts that fill this share of the tail's room are neither offloaded nor cleared; clipped, if it must be.
PROTECTED_SHARE = 0.25
#: The most that one text may take of what the head leaves, once posts must be left out.
MAX_TEXT_SHARE = 0.5
#: No text is clipped to fewer tokens than this.
MIN_CLIP = 24
#: Texts are clipped to multiples of this many tokens, so that a clip does not change with every message.
CLIP_STEP = 8


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Report(ValueObject):
    """The reductions that make the prompt fit."""

    #: Tokens of the prompt without cuts: system messages, compaction and the whole tail.
    tokens_before: int
    tokens_after: int
    #: Log numbers of the rounds that are left out though no summary tells of them, some in part.
    omitted_rounds: tuple[int, ...] = ()
    #: Published ones first, then what was done for this prompt alone.
    reductions: tuple[ShortenedPart, ...] = ()
    #: By how many tokens the prompt is over the budget: never, but with ``on_overflow="warn"``.
    tokens_over: int = 0


def fit(
    view: View,
    system: Sequence[Message],
    plan: Message | None,
    limit: int,
    step: int,
    summary_as: SummaryAs = "system",
    *,
    keeps_first: bool = True,
) -> tuple[list[Message], Report, Layout]:
    """Return the longest prompt of *system*, compaction and tail in at most *limit* tokens, cut in steps of *step*
    tokens. *plan* stands in the tail. ``tokens_over`` is 0 unless even the shortest prompt is longer.

    Of the round that the newest query is in, the user's first words stay whole as his last do; without *keeps_first*,
    or without room for both, they are shortened as other texts are.
    """
    head = _Head(view, system, plan, limit, step, summary_as, keeps_first)
    draft = _Draft(head.list_parts_ahead(view.end), range(view.end, max(view.end, view.closed)), view.open_tail)
    note = head.make_note(draft)
    before = tokens = head.count_draft(draft, note)
    if before > limit:
        head.shorten()
        draft = _cut(head)
        note = head.make_note(draft)
        tokens = head.count_draft(draft, note)
    if tokens > limit and note is not None:
        note = None  # where not even the line fits, the query alone is better than no prompt
        tokens = head.count_draft(draft, note)
    if tokens > limit and keeps_first:
        return fit(view, system, plan, limit, step, summary_as, keeps_first=False)
    shown = [*draft.ahead, *draft.parts]
    reductions = (*head.reductions, *[reduced for part in shown for reduced in part.reductions])
    in_part = sorted({part.round_.number for part in draft.omitted_parts})
    omitted = (*head.omitted_rounds, *head.prefix_sums.list_numbers(draft.omitted), *in_part)
    messages, layout = head.show(draft, note)
    return messages, Report(before, tokens, omitted, reductions, max(tokens - limit, 0)), layout


@dataclass(slots=True, eq=False, repr=False)
class _Draft:
    """The tail as a prompt will show it."""

    #: Parts that stand before all others: what is pinned in rounds that are left out, and the newest query.
    ahead: Sequence[PromptPart] = ()
    #: Rounds that are shown as they are, and whose costs are summed up: the places of closed ones, then open ones.
    closed: range = range(0)
    open_rounds: Sequence[OpenRoundTokens] = ()
    #: Parts one by one, where rounds are cut.
    parts: list[PromptPart] = field(default_factory=list)
    #: The places of the rounds that are left out, and the parts of others.
    omitted: range = range(0)
    omitted_parts: Sequence[PromptPart] = ()


@dataclass(eq=False, repr=False)
class _Head:
    """The messages around the tail, the room that they leave for it, and the tail's rounds in parts."""

    view: View
    system: Sequence[Message]
    plan: Message | None
    limit: int
    max_step: int
    summary_as: SummaryAs
    #: The user's first words in the round of the newest query are fixed, beside his last.
    keeps_first: bool

    def __post_init__(self) -> None:
        view = self.view
        self.prefix_sums, self.count = view.prefix_sums, view.token_cache.count
        self.dropped_from = view.first_dropped
        # Kept free for the line that says what is left out, at its longest: so the grid does not move with it.
        ends = ["r999999999.p999999"] * 2
        self.longest_note = make_omission_note((10**9, 10**9 + 1), *ends, dropped_from=self.dropped_from)
        #: The reduction of the compaction, and the covered rounds if it is left out.
        self.reductions: tuple[ShortenedPart, ...] = ()
        self.omitted_rounds: tuple[int, ...] = ()
        self.set_summary(view.summary, self.plan)
        #: The newest round, or the first open one: from here on there are no sums.
        self.newest = max(view.end, min(view.closed, view.total - 1))
        self._parts: dict[int, list[PromptPart]] = {}

    def set_summary(self, summary: Message | None, plan: Message | None) -> None:
        """Show this *summary* and *plan*, and measure the room that they leave."""
        self.summary, self.plan = summary, plan
        in_front = PROMPT_TOKENS + self.view.header_tokens + self.count_added(summary)
        self.tokens = in_front + (count_message(plan, self.view.token_cache.count_again) if plan is not None else 0)
        self.note_tokens = self.count_note(self.longest_note)
        room = self.limit - in_front - self.note_tokens
        self.step = min(self.max_step, max(int(room * MAX_STEP_SHARE), 1))

    @cached_property
    def spoken(self) -> tuple[PromptPart, ...]:
        """The fixed parts of the newest query's round, if that is an open one of the tail."""
        view = self.view
        is_open = view.newest_query >= max(view.closed, view.end)
        spoken = view.open_rounds[view.newest_query - view.closed].spoken if is_open else ()
        return (*spoken[:1], *spoken[1:][-1:]) if self.keeps_first else spoken[-1:]

    @property
    def clip_limit(self) -> int:
        """The most tokens that a text may take once posts are left out."""
        return max(int((self.limit - self.tokens) * MAX_TEXT_SHARE), MIN_CLIP)

    def count_added(self, *added: Message | None) -> int:
        """Return the tokens that *added* add to the system messages in front."""
        shown = [message for message in added if message is not None]
        return count_added(self.system, shown, self.summary_as, self.view.token_cache.count_again)

    def count_note(self, note: Message | None) -> int:
        """Return the tokens that the line about omitted rounds adds to all that stands before it."""
        return self.count_added(self.summary, note) - self.count_added(self.summary) if note is not None else 0

    def get_parts(self, index: int) -> list[PromptPart]:
        """Return the parts of a round, made when they are first asked for. The newest query in them is fixed."""
        if index in self._parts:
            return self._parts[index]
        view, sums = self.view, self.prefix_sums
        parts: Sequence[PromptPart] | None = None
        if index >= view.closed:
            parts = view.open_rounds[index - view.closed].parts
        elif index >= sums.start:
            parts = sums.round_tokens[index - sums.start].parts
        if parts is None:
            parts = [self._make_part(round_, group) for round_, group in view.list_groups(index)]
        self._parts[index] = self.fix_query(index, list(parts))
        return self._parts[index]

    def _make_part(self, round_: Round, group: MessageGroup) -> PromptPart:
        costs, pinned = self.view.list_costs(round_, group), self.view.is_pinned(round_, group)
        levels = () if pinned or group.pending or group.from_user else None
        depths = bytes(map(measure_depth, group.messages))
        return PromptPart(round_, group, group.messages, costs, sum(costs), pinned, levels=levels, depths=depths)

    def fix_query(self, index: int, parts: list[PromptPart]) -> list[PromptPart]:
        """Return *parts* of the round at *index*. In that of the newest query, the user's first words and his last are
        fixed."""
        spoken = [n for n, part in enumerate(parts) if part.group.from_user] if index == self.view.newest_query else []
        for number in {*(spoken[:1] if self.keeps_first else ()), *spoken[-1:]}:
            parts[number] = copy_with(parts[number], fixed=True, pinned=True, levels=())
        return parts

    def list_parts(self, first: int, omitted: Collection[tuple[int, int]] = ()) -> list[PromptPart]:
        """Return the parts of round *first* and of those behind it, without the *omitted* blocks of open rounds: each
        is identified by its round's place and its own number in there."""
        view = self.view
        parts = [part for place in range(first, view.closed) for part in self.get_parts(place)]
        for place in range(max(first, view.closed), view.total):
            counted = view.open_rounds[place - view.closed]
            blocks = [block for n, block in enumerate(counted.blocks.blocks) if (place, n) not in omitted]
            parts += self.fix_query(place, [*[part for block in blocks for part in block.parts], *counted.rest])
        return parts

    def list_parts_ahead(self, first: int) -> list[PromptPart]:
        """Return the parts before round *first* that are shown all the same: the newest query and pinned posts."""
        view = self.view
        query = view.newest_query
        ahead = [part for part in self.get_parts(query) if part.fixed] if 0 <= query < first else []
        for round_id in view.pinned:
            place = view.rounds.find_place(round_id)
            if place is not None and view.end <= place < first:
                ahead += [part for part in self.get_parts(place) if part.pinned and not part.fixed]
        return sorted(ahead, key=lambda part: (part.round_.number, part.group.number))

    def make_note(self, draft: _Draft) -> Message | None:
        """Return the line about everything that *draft* leaves out; None if there is nothing to say."""
        numbers = self.prefix_sums.list_numbers
        rounds = [*self.omitted_rounds, *numbers(draft.omitted[:1]), *numbers(draft.omitted[-1:])]
        if not (rounds or draft.omitted_parts or self.dropped_from):
            return None
        # As the log has them, and not those at the ends: a result that came late stands behind its call.
        places = [
            (part.round_.number, post.number if post is not None else 0)
            for part in draft.omitted_parts
            for post in part.group.posts
        ]
        ends = [make_reference(*min(places)), make_reference(*max(places))] if places else []
        return make_omission_note(rounds, *ends, dropped_from=self.dropped_from)

    def count_draft(self, draft: _Draft, note: Message | None) -> int:
        """Return the tokens of the prompt that *draft* makes with *note*, the line about what it leaves out."""
        tokens = self.view.count_closed_tokens(draft.closed.start, draft.closed.stop)
        tokens += sum([one.totals.tokens for one in draft.open_rounds])
        parts = sum([part.tokens for part in (*draft.ahead, *draft.parts)])
        return self.tokens + self.count_note(note) + tokens + parts

    def show(self, draft: _Draft, note: Message | None) -> tuple[list[Message], Layout]:
        """Return all messages with *note*, and their layout; the plan stands before the user's newest words."""
        parts = list(draft.ahead)
        for place in draft.closed:
            counted = self.prefix_sums.round_tokens[place - self.prefix_sums.start]
            kept = counted.parts  # asked once: another thread may drop them meanwhile
            if place == self.view.newest_query:
                parts += self.get_parts(place)
            elif kept is not None:
                parts += kept
            elif counted.totals.messages:  # else all of it was dropped
                for round_, group in self.view.list_groups(place):  # made anew, but not counted again
                    own = bytes(map(measure_depth, group.messages))
                    parts.append(PromptPart(round_, group, group.messages, (), 0, depths=own))
        shared: list[Message] = []
        depths = bytearray()
        plan_at = 0
        for part in (*parts, *draft.parts):
            plan_at = len(shared) if part.fixed else plan_at
            shared += part.messages
            depths += part.depths
        tail = copy_messages(shared, depths)
        runs: list[Sequence[PromptPart]] = [parts, draft.parts]
        for open_round in draft.open_rounds:
            runs += open_round.blocks.parts, open_round.rest
            if self.plan is not None and any(part is self.spoken[-1] for part in open_round.spoken if self.spoken):
                before = takewhile(lambda part: part is not self.spoken[-1], open_round.parts)
                plan_at = len(tail) + sum([len(part.messages) for part in before])
            tail += open_round.hand_out()
        if self.plan is not None:
            tail.insert(plan_at, self.plan)
        compaction = self.view.compaction if self.summary is not None else None
        added = [message for message in (self.summary, note) if message is not None]
        omitted = [*self.omitted_rounds, *self.prefix_sums.list_numbers(draft.omitted)] if note is not None else []
        if note is not None:
            omitted += [part.round_.number for part in draft.omitted_parts]
            omitted += [self.dropped_from] if self.dropped_from else []
        before_plan = plan_at if self.plan is not None else None
        layout = Layout(self.system, self.summary_as, compaction, runs, omitted, before_plan)
        return [*place_in_front(self.system, added, self.summary_as), *tail], layout

    def shorten(self) -> None:
        """Make room for everything that must be shown: leave out the plan, then shorten the compaction."""
        must = sum([part.tokens for part in self.list_parts_ahead(self.newest)])
        for place in range(self.newest, self.view.closed):
            must += sum([part.tokens for part in self.get_parts(place) if part.pinned])
        must += sum([counted.totals.pinned for counted in self.view.open_tail])
        must += sum([part.tokens for part in self.spoken if not part.pinned])
        must += _count_min_unread(self, self.limit - must - PROMPT_TOKENS - self.view.header_tokens)
        if self.tokens + must <= self.limit:
            return
        self.set_summary(self.summary, None)
        compaction, message = self.view.compaction, self.summary
        room = self.limit - must - self.tokens
        if room >= 0 or compaction is None or message is None:
            return
        ref, whole = make_range_reference(1, compaction.last_round), self.count_added(message)
        # Half of what there is, so that something of the tail is shown, where that is enough for a summary at all.
        half = (whole + room - self.note_tokens) // 2
        for most in (half, whole + room):
            shorter = _clip_compaction(self, message, compaction, most, ref)
            if shorter is not None:
                self.reductions = (ShortenedPart(ref, whole, self.count_added(shorter), "clipped"),)
                self.set_summary(shorter, None)
                return
        self.omitted_rounds = tuple(range(1, compaction.last_round + 1))
        pinned = {**message, "content": "\n".join((PINNED, *compaction.pinned))} if compaction.pinned else None
        self.set_summary(pinned, None)


def _count_min_unread(head: _Head, max_tokens: int) -> int:
    """Return the minimum tokens of the results that the agent has yet to read, with the line beside them. 0 if there
    are none or they do not fit into *max_tokens*: an agent that never sees its results makes the same calls again."""
    view = head.view
    open_parts = chain.from_iterable(
        [reversed(one.rest), reversed(one.blocks.parts)] for one in reversed(view.open_tail)
    )
    closed = [reversed(head.get_parts(place)) for place in reversed(range(head.newest, view.closed))]
    for part in chain.from_iterable([*open_parts, *closed]):
        if not (part.pinned or part.group.pending or any(part is one for one in head.spoken)):
            if not view.is_unread(part.round_, part.group):
                return 0
            least = _clip_to(head, part, part.tokens, 0).tokens + head.note_tokens
            return least if least <= max_tokens else 0
    return 0


def _clip_compaction(
    head: _Head, message: Message, compaction: CompactedMessage, limit: int, ref: str
) -> Message | None:
    """Return the compaction's *message* in at most *limit* tokens, with all its pinned texts and prohibitions. None if
    there is no room for these and some of the summary."""
    count = head.count

    def with_summary(summary: str) -> Message:
        return {"role": message["role"], "content": copy_with(compaction, summary=summary).to_prompt()}

    from ..acceptance.prohibitions import PROHIBITIONS, find_lost, restore_sentences

    prohibitions = compaction.extra.get(PROHIBITIONS, ())
    tokens = limit + MIN_CLIP - head.count_added(with_summary(""))
    while tokens >= MIN_CLIP:
        text = clip_text(compaction.summary, tokens, ref, count)
        text, _ = restore_sentences(text, find_lost(prohibitions, (text, *compaction.pinned)), limit, count)
        shorter = with_summary(text)
        over = head.count_added(shorter) - limit
        if over <= 0:
            return shorter
        tokens -= max(over, 8)
    return None


def _cut(head: _Head) -> _Draft:
    """Return the tail from the first step of the grid on that makes the prompt fit."""
    view, sums, start, newest = head.view, head.prefix_sums, head.view.end, head.newest
    repeated = sum([part.tokens for part in head.list_parts_ahead(newest) if part.fixed])
    room = head.limit - head.tokens - head.note_tokens - repeated
    tokens = view.count_tokens_after(start)
    excess = -(-(tokens - room) // head.step) * head.step
    # Tail tokens up to which texts may be shortened: like the excess, it moves by whole steps alone.
    boundary = room + excess - head.step - int(max(room, 0) * PROTECTED_SHARE)
    if start == newest:
        return _shorten_tail(head, start, excess, boundary)

    def sum_before(index: int) -> int:
        """Return the tokens of the tail's rounds before *index*."""
        return sums[index].tokens - sums[start].tokens

    saved_in_newest = _sum_saved_in_newest(head, boundary - sum_before(newest))
    places = range(start, newest)
    cleared = start + bisect_right(places, boundary, key=lambda index: sum_before(index + 1))

    def sum_left_out(first: int) -> int:
        """Return the tokens saved by leaving out the rounds before *first*, apart from pinned posts."""
        return sum_before(first) - (sums[first].pinned - sums[start].pinned)

    def sum_saved(first: int) -> int:
        """Return the tokens saved by leaving out the rounds before *first* and clearing all within the boundary."""
        saved = sum_left_out(first) + saved_in_newest
        if first < cleared:
            shortest = sums[cleared].shortest - sums[first].shortest
            saved += sum_before(cleared) - sum_before(first) - shortest
        return saved

    first = start + bisect_left(places, excess, key=sum_saved)
    if first > start and sum_saved(first) > excess + head.step:
        first -= 1  # one round is so long that too much would go with it
    return _shorten_tail(head, first, excess - sum_left_out(first), boundary - sum_before(first))


def _sum_saved_in_newest(head: _Head, boundary: int) -> int:
    """Return the tokens saved by clearing the newest rounds' texts that lie within *boundary* tokens."""
    view, end, saved = head.view, 0, 0
    runs: list[tuple[Sequence[PromptPart], Block | None]] = []
    runs += [(head.get_parts(place), None) for place in range(head.newest, view.closed)]
    for counted in view.open_tail:
        runs += [*[(block.parts, block) for block in counted.blocks.blocks], (counted.rest, None)]
    for parts, block in runs:
        if end > boundary:
            break
        tokens = sum([part.tokens for part in parts]) if block is None else block.totals.tokens
        if block is not None and block.largest is not None and end + tokens <= boundary:
            saved += tokens - block.totals.shortest
        else:
            for number in _find_shortenable(view, parts, boundary - end):
                if levels := view.token_cache.list_levels(parts[number]):
                    saved += parts[number].tokens - levels[-1].tokens
        end += tokens
    return saved


def _find_shortenable(view: View, parts: Sequence[PromptPart], boundary: int) -> list[int]:
    """Return the numbers of the *parts* that may be shortened and lie within *boundary* tokens."""
    within, end, newest_id = [], 0, view.newest_id
    for number, part in enumerate(parts):
        end += part.tokens
        if end > boundary:
            break
        # What the agent has just read back is not taken from it again.
        if part.levels != () and not (part.group.recalls and part.round_.id == newest_id):
            within.append(number)
    return within


def _shorten_tail(head: _Head, first: int, target: int, boundary: int) -> _Draft:
    """Return the tail from round *first* on, made *target* tokens shorter: texts that lie within *boundary* tokens
    from there are shortened, level by level, the oldest first; then parts are left out."""
    omitted = _find_omitted(head, first, target, boundary)
    parts = head.list_parts(first, omitted)
    gone: list[PromptPart] = []
    before = -1
    for number, ((place, _), block) in enumerate(omitted.items()):
        # The line about what is left out needs the first and the last of them, and their rounds.
        gone += block.parts if place != before or number == len(omitted) - 1 else ()
        before = place
        target -= block.totals.tokens
        boundary -= block.totals.tokens
    within = _find_shortenable(head.view, parts, boundary)
    levels: dict[int, tuple[PromptPart, ...]] = {}
    for at in range(len(LEVELS)):
        if target <= 0:
            break
        if at == len(LEVELS) - 1:
            # Large results, of which a preview is left, become a line first: else they would show more than small ones.
            within.sort(key=lambda number: not (levels[number] and levels[number][-1].shows_preview))
        for number in within:
            if target <= 0:
                break
            if number not in levels:
                known = parts[number].levels
                levels[number] = known if known is not None else head.view.token_cache.list_levels(parts[number])
            if levels[number]:
                level = levels[number][at]
                target -= parts[number].tokens - level.tokens
                parts[number] = level
    draft = _Draft(head.list_parts_ahead(first), parts=parts, omitted=range(head.view.end, first))
    if target > 0:
        _leave_out(head, draft, target)
        draft.omitted_parts = [*gone, *draft.omitted_parts]
    return draft


def _find_omitted(head: _Head, first: int, target: int, boundary: int) -> dict[tuple[int, int], Block]:
    """Return blocks of open rounds that ``_leave_out`` would leave out as a whole, however much shortening the rest
    saves; by their rounds' places and their numbers in there. In a round of thousands of posts these are most."""
    view = head.view
    start = max(view.closed, view.end)
    if target <= 0 or first != start:
        return {}
    limit, end = min(head.clip_limit, head.step), 0
    # The most that everything but leaving out the free blocks can save: shortening them, and whatever happens to the
    # rest. The rest within the boundary counts twice: it may be shortened, and left out before the free blocks.
    most_saved = 0
    free: dict[tuple[int, int], Block] = {}
    for place, counted in enumerate(view.open_tail, start):
        for number, block in enumerate(counted.blocks.blocks):
            totals = block.totals
            end += totals.tokens
            if block.parts and block.largest is not None and block.largest <= limit and end <= boundary:
                free[place, number] = block
                most_saved += totals.tokens - totals.shortest
            else:
                most_saved += totals.tokens * (1 if end > boundary else 2)
        rest = counted.totals.tokens - counted.blocks.totals.tokens
        end += rest
        most_saved += rest * (1 if end > boundary else 2)
    missing, omitted = target - most_saved, {}
    for key, block in free.items():
        missing -= block.totals.shortest
        if missing <= 0:
            break
        omitted[key] = block
    return omitted


def _leave_out(head: _Head, draft: _Draft, target: int) -> None:
    """Clip the largest texts in *draft*, and leave out its oldest parts until it is *target* tokens shorter. The newest
    part stays if it can, clipped as far as it takes."""
    view = head.view
    limit = head.clip_limit
    room = head.limit - head.tokens - head.note_tokens - sum([part.tokens for part in draft.ahead])
    newest_id = view.newest_id
    parts: list[PromptPart] = []
    back: set[int] = set()
    waiting: list[int] = []
    free: list[int] = []
    for number, part in enumerate(draft.parts):
        # What the agent has just read back is not taken from it again, but for lack of any room.
        if part.group.recalls and part.round_.id == newest_id:
            back.add(number)
        parts.append(part if number in back or part.tokens <= limit else _clip(head, part, limit))
        if part.pinned:
            room -= part.tokens
        else:
            (waiting if part.group.pending else free).append(number)
    free[:-1] = sorted(free[:-1], key=back.__contains__)
    gone: set[int] = set()
    for number in waiting:  # what waits before the newest
        parts[number] = _clip_to(head, draft.parts[number], limit, room)
        if parts[number].tokens > room:
            gone.add(number)
        else:
            room -= parts[number].tokens
    if free:
        newest = draft.parts[free[-1]]
        # Whole when the agent reads it for the first time; later, it is a text like any other.
        is_whole = view.is_unread(newest.round_, newest.group) and newest.tokens <= room
        most = max(limit, room) if free[-1] in back or is_whole else limit
        parts[free[-1]] = _clip_to(head, newest, most, room)
    target -= sum([part.tokens for part in draft.parts]) - sum([part.tokens for part in parts])
    target -= sum([parts[number].tokens for number in gone])
    for number in free:
        # The newest stays where it fits by itself, though the cut may be behind it.
        if target <= 0 or (number == free[-1] and parts[number].tokens <= room):
            break
        part, rest = parts[number], parts[number].tokens - target
        if rest > head.step:  # it is so long that too much would go with it
            clipped = _clip_to(head, draft.parts[number], part.tokens, rest)
            if clipped.tokens <= rest:
                parts[number] = clipped
                break
        gone.add(number)
        target -= part.tokens
    draft.parts = [part for number, part in enumerate(parts) if number not in gone]
    draft.omitted_parts = [parts[number] for number in sorted(gone)]


def _clip_to(head: _Head, part: PromptPart, limit: int, max_tokens: int) -> PromptPart:
    """Return *part* with its texts clipped until it is at most *max_tokens* tokens, or as short as may be."""
    clipped = _clip(head, part, limit)
    if clipped.tokens > max_tokens:  # begin where it might just fit: one call may have hundreds of results
        costs, share = sorted(part.costs, reverse=True), max_tokens
        while len(costs) > 1 and costs[-1] <= share // len(costs):
            share -= costs.pop()
        limit = _step_down(min(limit, share // len(costs)))
        clipped = _clip(head, part, limit)
    while clipped.tokens > max_tokens and limit > MIN_CLIP:
        limit = _step_down(limit * 3 // 4)
        clipped = _clip(head, part, limit)
    return clipped


def _step_down(limit: int) -> int:
    """Return the *limit* of a clip, or the next shorter that there is."""
    return max(limit - limit % CLIP_STEP, MIN_CLIP)


def _clip(head: _Head, part: PromptPart, limit: int) -> PromptPart:
    """Return *part* with each text of more than *limit* tokens clipped; the same object if it is pinned."""
    if part.pinned or part.tokens <= limit:
        return part
    clipped = {
        place: clip_message(message, limit, make_post_reference(part.round_, post), head.count)
        for place, (message, post) in enumerate(zip(part.messages, part.group.posts, strict=True))
        if part.costs[place] > limit
    }
    return part.with_messages(clipped, "clipped", head.count)


def list_published(view: View, messages: Sequence[Message], report: Report) -> tuple[ShortenedPart, ...]:
    """Return the published reductions that a prompt shows, in the order of the log.

    Without those that were shortened further for this prompt, which *report* has, and those that are left out with
    their round. Takes time in proportion to the rounds that have some, and to new ones.
    """
    further, omitted = {one.ref for one in report.reductions}, frozenset(report.omitted_rounds)
    contents = {str(message.get("content")) for message in messages} if omitted else set()
    token_cache, published = view.token_cache, list[ShortenedPart]()
    known, token_cache.published_reductions = token_cache.published_reductions, {}
    places = [(view.rounds.find_place(round_id), round_id) for round_id in view.reductions.by_round]
    for place, round_id in sorted((place, one) for place, one in places if place is not None and place in view.places):
        moment, reductions = view.rounds.redactions, view.reductions.of(round_id)
        found = known.get(round_id)
        if found is None or found.moment != moment or found.reductions is not reductions:
            found = _measure_published(view, view.rounds[place], reductions)
        token_cache.published_reductions[round_id] = found
        if found.number in omitted:
            pairs = zip(reductions, found.reduced, strict=True)
            reduced = [one for reduction, one in pairs if reduction.text and reduction.text in contents]
        else:
            reduced = list(found.reduced)
        published += [one for one in reduced if one.ref not in further] if further else reduced
    return tuple(published)


def _measure_published(view: View, round_: Round, reductions: tuple[Reduction, ...]) -> PublishedReductions:
    """Return the reports on the published *reductions* of a round. Each is counted once."""
    known, moment, reduced = view.token_cache.reduced, view.rounds.redactions, list[ShortenedPart]()
    for reduction in reductions:
        key = (round_.id, reduction.first_number, reduction.last_number, moment, hash(reduction.text))
        measured = known.get(key)
        if measured is None:
            if len(known) >= MAX_OPEN_GROUPS:
                known.clear()  # another thread may be at this too, so nothing is read back from there
            known[key] = measured = measure_reduction(round_, reduction, view.token_cache.count)
        reduced.append(measured)
    return PublishedReductions(round_.number, moment, reductions, tuple(reduced))
