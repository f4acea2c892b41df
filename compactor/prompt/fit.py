"""Cuts a prompt that is too long, from light to heavy and only as far as needed.

Every decision follows from the tail's tokens in whole steps, and from posts older than that. So new messages change the
beginning of the prompt only when the next step is due.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from memory.overlays import PINNED, CompactedMessage
from memory.references import place_reference, post_reference, range_reference
from memory.rounds import copy_with

from ..acceptance.prohibitions import PROHIBITIONS, find_lost, restore_sentences
from ..tokens import PROMPT_TOKENS, TokenCounter, count_message
from ..view import View
from .accounting import MAX_OPEN_GROUPS, Block
from .groups import Message, copy_messages
from .shorten import LEVELS, PromptPart, Reduced, clip_message, clip_text, measure_reduction, omission_note

#: Where what stands in front takes most of the budget, a step is this share of what it leaves: else a cut would leave
#: next to nothing.
MAX_STEP_SHARE = 2 / 3
#: The newest posts that fill this share of the tail's room are neither offloaded nor cleared; clipped, if it must be.
PROTECTED_SHARE = 0.25
#: The most that one text may take of what the head leaves, once posts must be left out.
MAX_TEXT_SHARE = 0.5
#: No text is clipped to fewer tokens than this.
MIN_CLIP = 24
#: What has to be shorter still is clipped to a multiple of so many: so it does not change with every message.
CLIP_STEP = 8


@dataclass(frozen=True, slots=True)
class Report:
    """The reductions that make the prompt fit."""

    #: Tokens of the prompt without cuts: system messages, compaction and the whole tail.
    tokens_before: int
    tokens_after: int
    #: Log numbers of the rounds that are left out though no summary tells of them, some in part.
    omitted_rounds: tuple[int, ...] = ()
    #: Published ones first, then what was done for this prompt alone.
    reductions: tuple[Reduced, ...] = ()
    #: By how many tokens the prompt is over the budget: never, but with ``on_overflow="warn"``.
    tokens_over: int = 0


def fit(
    view: View, system: Sequence[Message], plan: Message | None, limit: int, step: int
) -> tuple[list[Message], Report]:
    """Return the longest prompt of *system*, compaction and tail in at most *limit* tokens, cut in steps of *step*
    tokens. *plan* stands in the tail. ``tokens_over`` is 0 unless even the shortest prompt is longer."""
    frame = _Frame(view, system, plan, limit, step)
    draft = _Draft(frame.list_parts_ahead(view.end), range(view.end, frame.newest), frame.list_parts(frame.newest))
    before = tokens = frame.count_draft(draft)
    if before > limit:
        frame.shorten_head()
        draft = _cut(frame)
        tokens = frame.count_draft(draft)
    if tokens > limit and frame.make_note(draft) is not None:
        draft.has_note = False  # where not even the line fits, the query alone is better than no prompt
        tokens = frame.count_draft(draft)
    shown = [*draft.ahead, *draft.parts]
    reductions = (*frame.reductions, *[reduced for part in shown for reduced in part.reductions])
    in_part = sorted({part.round_.number for part in draft.omitted_parts})
    omitted = (*frame.omitted_rounds, *frame.sums.numbers(draft.omitted), *in_part)
    return frame.show(draft), Report(before, tokens, omitted, reductions, max(tokens - limit, 0))


@dataclass(slots=True)
class _Draft:
    """The tail as a prompt will show it."""

    #: Parts that stand before all others: what is pinned in rounds that are left out, and the newest query.
    ahead: Sequence[PromptPart] = ()
    #: The places of rounds that are shown as they are, and whose costs are summed up; then parts one by one.
    counted: range = range(0)
    parts: list[PromptPart] = field(default_factory=list)
    #: The places of the rounds that are left out, and the parts of others.
    omitted: range = range(0)
    omitted_parts: Sequence[PromptPart] = ()
    #: A line tells what is left out.
    has_note: bool = True


@dataclass
class _Frame:
    """The messages around the tail, the room that they leave for it, and the tail's rounds in parts."""

    view: View
    system: Sequence[Message]
    plan: Message | None
    limit: int
    max_step: int

    def __post_init__(self) -> None:
        view = self.view
        self.sums, self.count = view.prefix_sums, view.ledger.count
        self.dropped_from = view.first_dropped
        # Kept free for the line that says what is left out, at its longest: so the grid does not move with it.
        longest = omission_note((10**9, 10**9 + 1), *["r999999999.p999999"] * 2, dropped_from=self.dropped_from)
        self.note_tokens = self._count_message(longest)
        #: The reduction of the compaction, and the covered rounds if it is left out.
        self.reductions: tuple[Reduced, ...] = ()
        self.omitted_rounds: tuple[int, ...] = ()
        self.put_head(view.summary, self.plan)
        #: The newest round, or the first open one: from here on there are no sums.
        self.newest = max(view.end, min(view.closed, view.total - 1))
        self._parts: dict[int, list[PromptPart]] = {}

    def put_head(self, summary: Message | None, plan: Message | None) -> None:
        """Show this *summary* and *plan*, and measure the room that they leave."""
        self.summary, self.plan = summary, plan
        in_front = PROMPT_TOKENS + self.view.header_tokens + self._count_message(summary)
        self.tokens = in_front + self._count_message(plan)
        room = self.limit - in_front - self.note_tokens
        self.step = min(self.max_step, max(int(room * MAX_STEP_SHARE), 1))

    @property
    def clip_limit(self) -> int:
        """The most tokens that a text may take once posts are left out."""
        return max(int((self.limit - self.tokens) * MAX_TEXT_SHARE), MIN_CLIP)

    def _count_message(self, message: Message | None) -> int:
        return count_message(message, self.view.ledger.count_again) if message is not None else 0

    def list_parts(self, first: int) -> list[PromptPart]:
        return [part for place in range(first, self.view.total) for part in self.get_parts(place)]

    def get_parts(self, place: int) -> list[PromptPart]:
        """Return the parts of a round, made when they are first asked for. The newest query in them is fixed."""
        if place in self._parts:
            return self._parts[place]
        view, sums = self.view, self.sums
        kept = sums.accounts[place - sums.start].parts if sums.start <= place < view.closed else None
        parts = list(kept or ())
        if place >= view.closed:
            parts = [part for block in view.blocks(place) for part in block.parts]
        for round_, group in view.groups(place) if kept is None and place < view.closed else ():
            costs, pinned = view.costs(round_, group), view.is_pinned(round_, group)
            levels = () if pinned or group.pending or group.from_user else None
            parts.append(PromptPart(round_, group, group.messages, costs, sum(costs), pinned, levels=levels))
        if place == view.asked:  # the user's first words there and his last
            spoken = [number for number, part in enumerate(parts) if part.group.from_user]
            for number in {*spoken[:1], *spoken[-1:]}:
                parts[number] = copy_with(parts[number], fixed=True, pinned=True, levels=())
        self._parts[place] = parts
        return parts

    def list_parts_ahead(self, first: int) -> list[PromptPart]:
        """Return the parts before round *first* that are shown all the same: the newest query and pinned posts."""
        view = self.view
        ahead = [part for part in self.get_parts(view.asked) if part.fixed] if 0 <= view.asked < first else []
        for round_id in view.pinned:
            place = (view.rounds.end_of(round_id) or 0) - 1
            if view.end <= place < first and view.rounds[place].id == round_id:
                ahead += [part for part in self.get_parts(place) if part.pinned and not part.fixed]
        return sorted(ahead, key=lambda part: (part.round_.number, part.group.number))

    def make_note(self, draft: _Draft) -> Message | None:
        """Return the line about everything that *draft* leaves out; None if there is nothing to say."""
        numbers = self.sums.numbers
        rounds = [*self.omitted_rounds, *numbers(draft.omitted[:1]), *numbers(draft.omitted[-1:])]
        if not draft.has_note or not (rounds or draft.omitted_parts or self.dropped_from):
            return None
        # As the log has them, and not those at the ends: a result that came late stands behind its call.
        places = [
            (part.round_.number, post.number if post is not None else 0)
            for part in draft.omitted_parts
            for post in part.group.posts
        ]
        ends = [place_reference(*min(places)), place_reference(*max(places))] if places else []
        return omission_note(rounds, *ends, dropped_from=self.dropped_from)

    def count_draft(self, draft: _Draft) -> int:
        """Return the tokens of the prompt that *draft* makes."""
        counted = self.view.closed_tokens(draft.counted.start, draft.counted.stop)
        parts = sum([part.tokens for part in (*draft.ahead, *draft.parts)])
        return self.tokens + self._count_message(self.make_note(draft)) + counted + parts

    def show(self, draft: _Draft) -> list[Message]:
        """Return all messages; the plan stands before the newest thing that the user said."""
        shown = [(part.messages, part.fixed) for part in draft.ahead]
        for place in draft.counted:
            account = self.sums.accounts[place - self.sums.start]
            parts = self.get_parts(place) if place == self.view.asked else account.parts
            if parts is not None:
                shown += [(part.messages, part.fixed) for part in parts]
            elif account.totals.messages:  # else all of it was dropped
                shown += [(group.messages, False) for _, group in self.view.groups(place)]
        shown += [(part.messages, part.fixed) for part in draft.parts]
        in_front = [message for message in (*self.system, self.summary, self.make_note(draft)) if message is not None]
        shared: list[Message] = []
        plan_at = 0
        for group, is_fixed in shown:
            plan_at = len(shared) if is_fixed else plan_at
            shared += group
        messages = [*in_front, *copy_messages(shared)]
        if self.plan is not None:
            messages.insert(len(in_front) + plan_at, self.plan)
        return messages

    def shorten_head(self) -> None:
        """Make room for everything that must be shown: leave out the plan, then shorten the compaction."""
        newest = self.list_parts(self.newest)
        stays = [part for part in (*self.list_parts_ahead(self.newest), *newest) if part.pinned]
        must = sum([part.tokens for part in stays])
        must += _least_unread(self, newest, self.limit - must - PROMPT_TOKENS - self.view.header_tokens)
        if self.tokens + must <= self.limit:
            return
        self.put_head(self.summary, None)
        compaction, message = self.view.compaction, self.summary
        room = self.limit - must - self.tokens
        if room >= 0 or compaction is None or message is None:
            return
        ref, whole = range_reference(1, compaction.last_round), count_message(message, self.count)
        # Half of what there is, so that something of the tail is shown, where that is enough for a summary at all.
        half = (whole + room - self.note_tokens) // 2
        for most in (half, whole + room):
            shorter = _clip_compaction(message, compaction, most, ref, self.count)
            if shorter is not None:
                self.reductions = (Reduced(ref, whole, count_message(shorter, self.count), "clipped"),)
                self.put_head(shorter, None)
                return
        self.omitted_rounds = tuple(range(1, compaction.last_round + 1))
        pinned = {**message, "content": "\n".join((PINNED, *compaction.pinned))} if compaction.pinned else None
        self.put_head(pinned, None)


def _least_unread(frame: _Frame, newest: Sequence[PromptPart], room: int) -> int:
    """Return the minimum tokens of the results that the agent has yet to read, with the line beside them. 0 if there
    are none or they do not fit into *room*: an agent that never sees its results makes the same calls again."""
    free = [part for part in newest if not (part.pinned or part.group.pending)]
    if not free or not frame.view.is_unread(free[-1].round_, free[-1].group):
        return 0
    least = _clip_to(frame, free[-1], free[-1].tokens, 0).tokens + frame.note_tokens
    return least if least <= room else 0


def _clip_compaction(
    message: Message, compaction: CompactedMessage, limit: int, ref: str, count: TokenCounter
) -> Message | None:
    """Return the compaction's *message* in at most *limit* tokens, with all its pinned texts and prohibitions. None if
    there is no room for these and some of the summary."""

    def with_summary(summary: str) -> Message:
        return {**message, "content": copy_with(compaction, summary=summary).to_prompt()}

    prohibitions = compaction.extra.get(PROHIBITIONS, ())
    tokens = limit + MIN_CLIP - count_message(with_summary(""), count)
    while tokens >= MIN_CLIP:
        text = clip_text(compaction.summary, tokens, ref, count)
        text, _ = restore_sentences(text, find_lost(prohibitions, (text, *compaction.pinned)), limit, count)
        shorter = with_summary(text)
        over = count_message(shorter, count) - limit
        if over <= 0:
            return shorter
        tokens -= max(over, 8)
    return None


def _cut(frame: _Frame) -> _Draft:
    """Return the tail from the first mark of the grid on that makes the prompt fit."""
    view, sums, start, newest = frame.view, frame.sums, frame.view.end, frame.newest
    newest_parts = frame.list_parts(newest)
    repeated = sum([part.tokens for part in frame.list_parts_ahead(newest) if part.fixed])
    room = frame.limit - frame.tokens - frame.note_tokens - repeated
    tokens = view.closed_tokens(start, newest) + sum([part.tokens for part in newest_parts])
    mark = -(-(tokens - room) // frame.step) * frame.step
    # Tail tokens up to which texts may be shortened: like the mark, it moves by whole steps alone.
    boundary = room + mark - frame.step - int(max(room, 0) * PROTECTED_SHARE)
    if start == newest:
        return _shorten_tail(frame, start, mark, boundary)

    totals, offset = sums.totals, sums.start
    at_start = totals[start - offset]

    def sum_behind(place: int) -> int:
        return totals[place - offset].tokens - at_start.tokens

    # What clearing the newest rounds' texts takes off, as far as they lie within the boundary.
    within = [newest_parts[number] for number in _find_shortenable(view, newest_parts, boundary - sum_behind(newest))]
    saved_in_newest = sum([part.tokens - levels[-1].tokens for part in within if (levels := view.ledger.levels(part))])
    places = range(start, newest)
    cleared = start + bisect_right(places, boundary, key=lambda place: sum_behind(place + 1))

    def sum_left_out(first: int) -> int:
        return sum_behind(first) - (totals[first - offset].pinned - at_start.pinned)

    def sum_saved(first: int) -> int:
        """Return the tokens saved by leaving out the rounds before *first* and clearing all within the boundary."""
        if first >= cleared:
            return sum_left_out(first) + saved_in_newest
        shortest = totals[cleared - offset].shortest - totals[first - offset].shortest
        return sum_left_out(first) + saved_in_newest + sum_behind(cleared) - sum_behind(first) - shortest

    first = start + bisect_left(places, mark, key=sum_saved)
    if first > start and sum_saved(first) > mark + frame.step:
        first -= 1  # one round is so long that too much would go with it
    return _shorten_tail(frame, first, mark - sum_left_out(first), boundary - sum_behind(first))


def _find_shortenable(view: View, parts: Sequence[PromptPart], boundary: int) -> list[int]:
    """Return the numbers of the *parts* that may be shortened and lie within *boundary* tokens."""
    ends, newest_id = accumulate([part.tokens for part in parts]), view.newest_id
    within = [n for n, (part, end) in enumerate(zip(parts, ends, strict=True)) if end <= boundary and part.levels != ()]
    return [
        n for n in within if (part := parts[n]).round_.id != newest_id or not view.read_back(part.round_, part.group)
    ]


def _shorten_tail(frame: _Frame, first: int, target: int, boundary: int) -> _Draft:
    """Return the tail from round *first* on, made *target* tokens shorter: texts that lie within *boundary* tokens
    from there are shortened, level by level, the oldest first; then parts are left out."""
    parts = frame.list_parts(first)
    skipped = _find_omitted(frame, first, target, boundary)
    gone: list[PromptPart] = []
    for place, (block, start) in reversed(list(enumerate(skipped))):
        # The line about what is left out needs the first and the last of them, and their rounds.
        gone += block.parts if place in (0, len(skipped) - 1) else block.parts[:1]
        del parts[start : start + len(block.parts)]
        target -= block.account.totals.tokens
        boundary -= block.account.totals.tokens
    within = _find_shortenable(frame.view, parts, boundary)
    levels: dict[int, tuple[PromptPart, ...]] = {}
    for at in range(len(LEVELS)):
        if target <= 0:
            break
        if at == len(LEVELS) - 1:
            # Nobody is to see less of a small result than of a large one: of that, all but a line goes first.
            within.sort(key=lambda number: not (levels[number] and levels[number][-1].shows_preview))
        for number in within:
            if target <= 0:
                break
            if number not in levels:
                known = parts[number].levels
                levels[number] = known if known is not None else frame.view.ledger.levels(parts[number])
            if levels[number]:
                level = levels[number][at]
                target -= parts[number].tokens - level.tokens
                parts[number] = level
    draft = _Draft(frame.list_parts_ahead(first), parts=parts, omitted=range(frame.view.end, first))
    if target > 0:
        _leave_out(frame, draft, target)
        draft.omitted_parts = [*gone, *draft.omitted_parts]
    return draft


def _find_omitted(frame: _Frame, first: int, target: int, boundary: int) -> list[tuple[Block, int]]:
    """Return blocks of open rounds that ``_leave_out`` would leave out as a whole, however much shortening the rest
    saves; each with the number of its first part behind round *first*. In a round of thousands of posts these are most.
    """
    view = frame.view
    if target <= 0 or first != max(view.closed, view.end):
        return []
    limit, end, start, most = min(frame.clip_limit, frame.step), 0, 0, 0
    free: list[tuple[Block, int]] = []
    for block in view.growing:
        totals, is_whole = block.account.totals, block.largest is not None and block.largest <= limit
        end += totals.tokens
        if is_whole and end <= boundary and block.parts:
            free.append((block, start))
            most += totals.tokens - totals.shortest
        else:  # all of it may be saved; and if it comes before the others, it goes before them
            most += totals.tokens * (1 if end > boundary else 2)
        start += len(block.parts)
    left, omitted = target - most, []
    for block, start in free:
        left -= block.account.totals.shortest
        if left <= 0:
            break
        omitted.append((block, start))
    return omitted


def _leave_out(frame: _Frame, draft: _Draft, target: int) -> None:
    """Clip the largest texts in *draft*, and leave out its oldest parts until it is *target* tokens shorter. The newest
    part stays if it can, clipped as far as it takes."""
    view = frame.view
    limit = frame.clip_limit
    room = frame.limit - frame.tokens - frame.note_tokens - sum([part.tokens for part in draft.ahead])
    # What the agent has just read back is not taken from it again, but for lack of any room.
    newest_id = view.newest_id
    last = [number for number, part in enumerate(draft.parts) if part.round_.id == newest_id]
    back = {number for number in last if view.read_back(draft.parts[number].round_, draft.parts[number].group)}
    parts = [part if number in back else _clip(frame, part, limit) for number, part in enumerate(draft.parts)]
    room -= sum([part.tokens for part in parts if part.pinned])
    free = [n for n, part in enumerate(parts) if not (part.pinned or part.group.pending)]
    free = [*(n for n in free[:-1] if n not in back), *(n for n in free[:-1] if n in back), *free[-1:]]
    waiting = [n for n, part in enumerate(parts) if part.group.pending and not part.pinned]
    gone: set[int] = set()
    for number in waiting:  # what waits before the newest
        parts[number] = _clip_to(frame, draft.parts[number], limit, room)
        if parts[number].tokens > room:
            gone.add(number)
        else:
            room -= parts[number].tokens
    if free:
        newest = draft.parts[free[-1]]
        # Whole when the agent reads it for the first time; later, it is a text like any other.
        is_whole = view.is_unread(newest.round_, newest.group) and newest.tokens <= room
        most = max(limit, room) if free[-1] in back or is_whole else limit
        parts[free[-1]] = _clip_to(frame, newest, most, room)
    target -= sum([part.tokens for part in draft.parts]) - sum([part.tokens for part in parts])
    target -= sum([parts[number].tokens for number in gone])
    for number in free:
        # The newest stays where it fits by itself, though the mark may be behind it.
        if target <= 0 or (number == free[-1] and parts[number].tokens <= room):
            break
        part, rest = parts[number], parts[number].tokens - target
        if rest > frame.step:  # it is so long that too much would go with it
            clipped = _clip_to(frame, draft.parts[number], part.tokens, rest)
            if clipped.tokens <= rest:
                parts[number] = clipped
                break
        gone.add(number)
        target -= part.tokens
    draft.parts = [part for number, part in enumerate(parts) if number not in gone]
    draft.omitted_parts = [parts[number] for number in sorted(gone)]


def _clip_to(frame: _Frame, part: PromptPart, limit: int, room: int) -> PromptPart:
    """Return *part* with its texts clipped until it is at most *room* tokens, or as short as may be."""
    clipped = _clip(frame, part, limit)
    if clipped.tokens > room:  # begin where it might just fit: one call may have hundreds of results
        costs, share = sorted(part.costs, reverse=True), room
        while len(costs) > 1 and costs[-1] <= share // len(costs):
            share -= costs.pop()
        limit = _step_down(min(limit, share // len(costs)))
        clipped = _clip(frame, part, limit)
    while clipped.tokens > room and limit > MIN_CLIP:
        limit = _step_down(limit * 3 // 4)
        clipped = _clip(frame, part, limit)
    return clipped


def _step_down(limit: int) -> int:
    """Return the *limit* of a clip, or the next shorter that there is."""
    return max(limit - limit % CLIP_STEP, MIN_CLIP)


def _clip(frame: _Frame, part: PromptPart, limit: int) -> PromptPart:
    """Return *part* with each text of more than *limit* tokens clipped; the same object if it is pinned."""
    if part.pinned or part.tokens <= limit:
        return part
    clipped = {
        place: clip_message(message, limit, post_reference(part.round_, post), frame.count)
        for place, (message, post) in enumerate(zip(part.messages, part.group.posts, strict=True))
        if part.costs[place] > limit
    }
    return part.with_messages(clipped, "clipped", frame.count)


def list_published(view: View, messages: Sequence[Message], report: Report) -> tuple[Reduced, ...]:
    """Return the published reductions that a prompt shows, in the order of the log.

    Without those that were shortened further for this prompt, which *report* has, and those that are left out with
    their round. Each is counted once; takes time in proportion to the reductions of the tail.
    """
    further, omitted = {one.ref for one in report.reductions}, frozenset(report.omitted_rounds)
    contents = {str(message.get("content")) for message in messages} if omitted else set()
    known, published = view.ledger.reduced, []
    places = {round_id: (view.rounds.end_of(round_id) or 0) - 1 for round_id in view.reductions.by_round}
    for round_id, place in sorted(places.items(), key=lambda item: item[1]):
        if place not in view.places:
            continue
        round_ = view.rounds[place]
        for reduction in view.reductions.of(round_id):
            text = reduction.text
            key = (round_id, reduction.first_number, reduction.last_number, view.rounds.redactions, hash(text))
            reduced = known.get(key)
            if reduced is None:
                if len(known) >= MAX_OPEN_GROUPS:
                    known.clear()
                reduced = known[key] = measure_reduction(round_, reduction, view.ledger.count)
            is_shown = round_.number not in omitted or (text and text in contents)
            if is_shown and reduced.ref not in further:
                published.append(reduced)
    return tuple(published)
