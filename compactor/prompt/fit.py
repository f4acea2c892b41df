"""Fits the tail into a prompt: all of it if it fits, else as much as the budget allows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from memory.messages import text_of
from memory.overlays import PINNED, CompactedMessage, Reduction
from memory.references import place_reference, post_reference, posts_reference, range_reference
from memory.rounds import Post, Round

from ..acceptance.prohibitions import PROHIBITIONS, find_lost, restore_sentences
from ..tokens import PROMPT_TOKENS, TokenCounter, count_message
from ..view import View
from .accounting import MAX_OPEN_GROUPS
from .groups import ARGUMENTS, Message, copy_message
from .shorten import LEVELS, PromptPart, Reduced, clip_message, clip_text, omission_note

#: Cuts fall on multiples of this share of the budget, counted in tail tokens from the compaction's end.
GRID = 0.3
#: Where what stands in front takes most of the budget, a step is this share of what it leaves: else a cut would leave
#: next to nothing.
LARGEST_STEP = 2 / 3
#: The newest posts that fill this share of the tail's room are neither offloaded nor cleared; clipped, if it must be.
PROTECTED_SHARE = 0.25
#: The most that one text may take of what the head leaves, once posts must be left out.
LARGEST_SHARE = 0.5
#: No text is clipped to fewer tokens than this.
SHORTEST_CLIP = 24
#: What has to be shorter still is clipped to a multiple of so many: so it does not change with every message.
CLIP_STEP = 8


@dataclass(frozen=True, slots=True)
class Head:
    """The messages before the tail: system messages, then the compaction. And the plan, which stands in the tail."""

    system: tuple[Message, ...] = ()
    compaction: Message | None = None
    plan: Message | None = None

    def messages(self) -> list[Message]:
        return [*self.system, *([self.compaction] if self.compaction is not None else [])]


@dataclass(frozen=True, slots=True)
class Fitted:
    """The messages of a prompt, and the reductions that make them fit."""

    messages: list[Message]
    tokens: int
    #: Tokens of the same with nothing shortened or left out.
    tokens_before: int
    omitted_rounds: tuple[int, ...] = ()
    reductions: tuple[Reduced, ...] = ()


def fits_entirely(view: View, head: Head, limit: int, tool_tokens: int) -> Fitted | None:
    """Return the prompt of *head* and the whole tail if that is at most *limit* tokens beside those of tools.

    The fast path. None if the prompt is longer, or if ``fit`` has more to do: with a plan, with a line about dropped
    posts, with a covered round in front because the user has not spoken since, or with a round that must be made anew.
    """
    start, closed = view.end, view.closed
    if head.plan is not None or start > closed or (view.reductions.version and view.first_dropped):
        return None
    sums, growing = view.prefix_sums, view.growing
    first, last = sums.totals[start - sums.start], sums.totals[closed - sums.start]
    tokens = PROMPT_TOKENS + view.header_tokens - tool_tokens + last.tokens - first.tokens
    if head.compaction is not None:
        tokens += count_message(head.compaction, view.ledger.count_again)
    asked = last.asked is not None and last.asked >= start
    for round_, group in growing:
        tokens += sum(view.ledger.costs(round_, group))
        asked = asked or group.from_user
    if not asked or tokens > limit:
        return None
    messages = [*head.system, *([head.compaction] if head.compaction is not None else [])]
    for account in sums.accounts[start - sums.start : closed - sums.start]:
        parts = account.parts
        if parts is None:
            return None
        if account.plain:
            messages += [message.copy() for part in parts for message in part.messages]
        else:
            messages += [copy_message(message) for part in parts for message in part.messages]
    messages += [copy_message(message) for _, group in growing for message in group.messages]
    return Fitted(messages, tokens, tokens)


# --- a tail that is too long, from light to heavy and only as far as needed -------------------------------------
#
# Everything that is decided here follows from the tail's tokens in whole steps, and from posts older than that. So what
# is appended changes the beginning of the prompt only when the next step is due.


@dataclass(slots=True)
class _Draft:
    """The tail as a prompt will show it."""

    #: Parts that stand before all others: what is pinned in rounds that are left out, and the newest query.
    ahead: Sequence[PromptPart] = ()
    #: The places of rounds that are shown as they are, and whose costs are summed up; then parts one by one.
    counted: range = field(default_factory=lambda: range(0))
    parts: list[PromptPart] = field(default_factory=list)
    #: The places of the rounds that are left out, and the parts of others.
    omitted: range = field(default_factory=lambda: range(0))
    omitted_parts: Sequence[PromptPart] = ()
    #: A line tells what is left out.
    has_note: bool = True

    @property
    def shown(self) -> list[PromptPart]:
        return [*self.ahead, *self.parts]


class _Tail:
    """The tail's rounds in parts, each made when it is first asked for. The newest query in them is fixed."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._sums = view.prefix_sums
        #: The newest round, or the first open one: from here on there are no sums.
        self.newest = max(view.end, min(view.closed, view.total - 1))
        #: The place of the newest round in which the user speaks; -1: in none.
        for place in range(view.total - 1, view.closed - 1, -1):
            if any(group.from_user for _, group in view.groups(place)):
                self.asked = place
                break
        else:
            self.asked = view.asked
        self._parts: dict[int, list[PromptPart]] = {}

    def parts_from(self, first: int) -> list[PromptPart]:
        return [part for place in range(first, self.view.total) for part in self.parts_of(place)]

    def parts_of(self, place: int) -> list[PromptPart]:
        parts = self._parts.get(place)
        if parts is not None:
            return parts
        view, sums = self.view, self._sums
        kept = sums.accounts[place - sums.start].parts if sums.start <= place < view.closed else None
        parts = list(kept) if kept is not None else []
        for round_, group in view.groups(place) if kept is None else ():
            costs = view.costs(round_, group)
            pinned = view.is_pinned(round_, group)
            levels = () if pinned or group.pending or group.from_user else None
            parts.append(PromptPart(round_, group, group.messages, costs, sum(costs), pinned, levels=levels))
        if place == self.asked:  # the user's first words there and his last
            spoken = [number for number, part in enumerate(parts) if part.group.from_user]
            for number in {*spoken[:1], *spoken[-1:]}:
                parts[number] = replace(parts[number], fixed=True, levels=())
        self._parts[place] = parts
        return parts

    def ahead_of(self, first: int) -> list[PromptPart]:
        """Return the parts before round *first* that are shown all the same: the newest query and pinned posts."""
        view = self.view
        ahead = [part for part in self.parts_of(self.asked) if part.fixed] if 0 <= self.asked < first else []
        for round_id in view.pinned:
            place = (view.rounds.end_of(round_id) or 0) - 1
            if view.end <= place < first and view.rounds[place].id == round_id:
                ahead += [part for part in self.parts_of(place) if part.pinned and not part.fixed]
        return sorted(ahead, key=lambda part: (part.round_.number, part.group.number))


class _Frame:
    """The messages around the tail and the room that they leave, in a prompt of at most *limit* tokens that is cut in
    steps of at most *step* tokens."""

    def __init__(self, view: View, head: Head, limit: int, step: int) -> None:
        self.view = view
        self.count = view.ledger.count
        self.limit = limit
        self.largest_step = step
        self.dropped_from = view.first_dropped
        # Kept free for the line that says what is left out, at its longest: so the grid does not move with it.
        longest = omission_note((10**9, 10**9 + 1), *["r999999999.p999999"] * 2, dropped_from=self.dropped_from)
        self.note_tokens = count_message(longest, view.ledger.count_again)
        #: What was done to the compaction, and the covered rounds of which nothing is shown then.
        self.reductions: tuple[Reduced, ...] = ()
        self.omitted_rounds: tuple[int, ...] = ()
        self.put(head)

    def put(self, head: Head) -> None:
        recount = self.view.ledger.count_again
        self.head = head
        in_front = PROMPT_TOKENS + sum([count_message(message, recount) for message in head.messages()])
        self.tokens = in_front + (count_message(head.plan, recount) if head.plan is not None else 0)
        room = self.limit - in_front - self.note_tokens
        self.step = min(self.largest_step, max(int(room * LARGEST_STEP), 1))

    def note(self, draft: _Draft) -> Message | None:
        """Return the line about everything that *draft* leaves out; None if there is nothing to say."""
        numbers = self.view.prefix_sums.numbers
        rounds = [*self.omitted_rounds[:1], *self.omitted_rounds[-1:]]
        rounds += [*numbers(draft.omitted[:1]), *numbers(draft.omitted[-1:])]
        if not draft.has_note or not (rounds or draft.omitted_parts or self.dropped_from):
            return None
        if not draft.omitted_parts:
            return omission_note(rounds, dropped_from=self.dropped_from)
        # As the log has them, and not those at the ends: a result that came late stands behind its call.
        posts = [
            (part.round_.number, post.number if post is not None else 0)
            for part in draft.omitted_parts
            for post in part.group.posts
        ]
        first, last = place_reference(*min(posts)), place_reference(*max(posts))
        return omission_note(rounds, first, last, dropped_from=self.dropped_from)

    def tokens_of(self, draft: _Draft) -> int:
        """Return the tokens of the prompt that *draft* makes."""
        note = self.note(draft)
        noted = count_message(note, self.view.ledger.count_again) if note is not None else 0
        counted = self.view.closed_tokens(draft.counted.start, draft.counted.stop)
        return self.tokens + noted + counted + sum([part.tokens for part in draft.shown])


def fit(view: View, head: Head, limit: int, step: int) -> tuple[Fitted, int]:
    """Return the longest prompt of *head* and *view*'s tail in at most *limit* tokens, cut in steps of *step* tokens,
    and by how many tokens even the shortest one is over the limit."""
    frame, tail = _Frame(view, head, limit, step), _Tail(view)
    draft = _Draft(tail.ahead_of(view.end), range(view.end, tail.newest), tail.parts_from(tail.newest))
    before = tokens = frame.tokens_of(draft)
    if before > limit:
        _shorten_head(frame, tail)
        draft = _cut(frame, tail)
        tokens = frame.tokens_of(draft)
    if tokens > limit and frame.note(draft) is not None:
        draft.has_note = False  # where not even the line fits, the query alone is better than no prompt
        tokens = frame.tokens_of(draft)
    reductions = tuple([reduced for part in draft.shown for reduced in part.reductions])
    in_part = dict.fromkeys([part.round_.number for part in draft.omitted_parts])
    omitted = (*frame.omitted_rounds, *view.prefix_sums.numbers(draft.omitted), *in_part)
    messages = _messages_of(frame, tail, draft)
    return Fitted(messages, tokens, before, omitted, (*frame.reductions, *reductions)), max(tokens - limit, 0)


def _messages_of(frame: _Frame, tail: _Tail, draft: _Draft) -> list[Message]:
    """Return all messages; the plan stands before the newest thing that the user said."""
    view, note = frame.view, frame.note(draft)
    in_front = [*frame.head.messages(), *([note] if note is not None else [])]
    shared: list[Message] = []
    plan_at = len(in_front)

    def add(parts: Iterable[PromptPart]) -> None:
        nonlocal plan_at
        for part in parts:
            if part.fixed:
                plan_at = len(in_front) + len(shared)
            shared.extend(part.messages)

    add(draft.ahead)
    for place in draft.counted:
        account = view.prefix_sums.accounts[place - view.prefix_sums.start]
        if place == tail.asked:
            add(tail.parts_of(place))
        elif (kept := account.parts) is not None:
            add(kept)
        elif account.messages:  # else all of it was dropped
            shared += [message for _, group in view.groups(place) for message in group.messages]
    add(draft.parts)
    messages = [*in_front, *[copy_message(message) for message in shared]]
    if frame.head.plan is not None:
        messages.insert(plan_at, frame.head.plan)
    return messages


# --- the head ---------------------------------------------------------------------------------------------------


def _shorten_head(frame: _Frame, tail: _Tail) -> None:
    """Make room for everything that must be shown: leave out the plan, then shorten the compaction."""
    newest = tail.parts_from(tail.newest)
    must = sum([part.tokens for part in (*tail.ahead_of(tail.newest), *newest) if part.fixed or part.pinned])
    system = sum([count_message(message, frame.view.ledger.count_again) for message in frame.head.system])
    must += _least_unread(frame, newest, frame.limit - must - system - PROMPT_TOKENS)
    if frame.tokens + must <= frame.limit:
        return
    frame.put(replace(frame.head, plan=None))
    compaction, message = frame.view.compaction, frame.head.compaction
    room = frame.limit - must - frame.tokens
    if room >= 0 or compaction is None or message is None:
        return
    ref, whole = range_reference(1, compaction.last_round), count_message(message, frame.count)
    # Half of what there is, so that something of the tail is shown, where that is enough for a summary at all.
    half = (whole + room - frame.note_tokens) // 2
    for most in (half, whole + room):
        shorter = _clip_compaction(message, compaction, most, ref, frame.count)
        if shorter is not None:
            frame.reductions = (Reduced(ref, whole, count_message(shorter, frame.count), "clipped"),)
            frame.put(replace(frame.head, compaction=shorter))
            return
    frame.omitted_rounds = tuple(range(1, compaction.last_round + 1))
    pinned = {**message, "content": "\n".join((PINNED, *compaction.pinned))} if compaction.pinned else None
    frame.put(replace(frame.head, compaction=pinned))


def _least_unread(frame: _Frame, newest: Sequence[PromptPart], room: int) -> int:
    """Return the minimum tokens of the results that the agent has yet to read, with the line beside them. 0 if there
    are none or they do not fit into *room*: an agent that never sees its results makes the same calls again."""
    free = [part for part in newest if not (part.fixed or part.pinned or part.group.pending)]
    if not free or not frame.view.is_unread(free[-1].round_, free[-1].group):
        return 0
    least = _clip_to(frame, free[-1], free[-1].tokens, 0).tokens + frame.note_tokens
    return least if least <= room else 0


def _clip_compaction(
    message: Message, compaction: CompactedMessage, limit: int, ref: str, count: TokenCounter
) -> Message | None:
    """Return the compaction's *message* in at most *limit* tokens, with all its pinned texts and prohibitions. None if
    there is no room for these and some of the summary."""

    def reads(summary: str) -> Message:
        return {**message, "content": compaction.model_copy(update={"summary": summary}).to_prompt()}

    prohibitions = compaction.extra.get(PROHIBITIONS, ())
    asked = limit + SHORTEST_CLIP - count_message(reads(""), count)
    while asked >= SHORTEST_CLIP:
        text = clip_text(compaction.summary, asked, ref, count)
        text, _ = restore_sentences(text, find_lost(prohibitions, (text, *compaction.pinned)), limit, count)
        shorter = reads(text)
        over = count_message(shorter, count) - limit
        if over <= 0:
            return shorter
        asked -= max(over, 8)
    return None


# --- the cut ----------------------------------------------------------------------------------------------------


def _cut(frame: _Frame, tail: _Tail) -> _Draft:
    """Return the tail from the first mark of the grid on that makes the prompt fit."""
    view, sums, start, newest = frame.view, frame.view.prefix_sums, frame.view.end, tail.newest
    newest_parts = tail.parts_from(newest)
    repeated = sum([part.tokens for part in tail.ahead_of(newest) if part.fixed])
    room = frame.limit - frame.tokens - frame.note_tokens - repeated
    tokens = view.closed_tokens(start, newest) + sum([part.tokens for part in newest_parts])
    mark = -(-(tokens - room) // frame.step) * frame.step
    # Tail tokens up to which texts may be shortened: like the mark, it moves by whole steps alone.
    boundary = room + mark - frame.step - int(max(room, 0) * PROTECTED_SHARE)
    if start == newest:
        return _shorten_tail(frame, tail, start, mark, boundary)

    totals, offset = sums.totals, sums.start
    first_totals = totals[start - offset]

    def behind(place: int) -> int:
        return totals[place - offset].tokens - first_totals.tokens

    # What clearing the newest rounds' texts takes off, as far as they lie within the boundary.
    within = [newest_parts[number] for number in _within(view, newest_parts, boundary - behind(newest))]
    saved_in_newest = sum([part.tokens - levels[-1].tokens for part in within if (levels := view.ledger.levels(part))])
    places = range(start, newest)
    cleared = start + bisect_right(places, boundary, key=lambda place: behind(place + 1))

    def left_out(first: int) -> int:
        return behind(first) - (totals[first - offset].pinned - first_totals.pinned)

    def saved(first: int) -> int:
        """Return the tokens saved by leaving out the rounds before *first* and clearing all within the boundary."""
        if first >= cleared:
            return left_out(first) + saved_in_newest
        lightest = totals[cleared - offset].shortest - totals[first - offset].shortest
        return left_out(first) + saved_in_newest + behind(cleared) - behind(first) - lightest

    first = start + bisect_left(places, mark, key=saved)
    if first > start and saved(first) > mark + frame.step:
        first -= 1  # one round is so long that too much would go with it
    return _shorten_tail(frame, tail, first, mark - left_out(first), boundary - behind(first))


def _within(view: View, parts: Sequence[PromptPart], boundary: int) -> list[int]:
    """Return the numbers of the *parts* that may be shortened and lie within *boundary* tokens."""
    ends, newest_id = accumulate([part.tokens for part in parts]), view.newest_id
    within = [n for n, (part, end) in enumerate(zip(parts, ends, strict=True)) if end <= boundary and part.levels != ()]
    return [
        n for n in within if (part := parts[n]).round_.id != newest_id or not view.read_back(part.round_, part.group)
    ]


def _shorten_tail(frame: _Frame, tail: _Tail, first: int, target: int, boundary: int) -> _Draft:
    """Return the tail from round *first* on, made *target* tokens shorter: texts that lie within *boundary* tokens
    from there are shortened, level by level, the oldest first; then parts are left out."""
    parts = tail.parts_from(first)
    within = _within(frame.view, parts, boundary)
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
            part = parts[number]
            if number not in levels:
                levels[number] = part.levels if part.levels is not None else frame.view.ledger.levels(part)
            if levels[number] and (level := levels[number][at]).costs != part.costs:
                target -= part.tokens - level.tokens
                parts[number] = level
    draft = _Draft(tail.ahead_of(first), parts=parts, omitted=range(frame.view.end, first))
    if target > 0:
        _leave_out(frame, draft, target)
    return draft


def _leave_out(frame: _Frame, draft: _Draft, target: int) -> None:
    """Clip the largest texts in *draft*, and leave out its oldest parts until it is *target* tokens shorter. The newest
    part stays if it can, clipped as far as it takes."""
    view = frame.view
    limit = max(int((frame.limit - frame.tokens) * LARGEST_SHARE), SHORTEST_CLIP)
    room = frame.limit - frame.tokens - frame.note_tokens - sum([part.tokens for part in draft.ahead])
    # What the agent has just read back is not taken from it again, but for lack of any room.
    newest_id = view.newest_id
    last = [number for number, part in enumerate(draft.parts) if part.round_.id == newest_id]
    back = {number for number in last if view.read_back(draft.parts[number].round_, draft.parts[number].group)}
    parts = [part if number in back else _clip(frame, part, limit) for number, part in enumerate(draft.parts)]
    room -= sum([part.tokens for part in parts if part.fixed or part.pinned])
    free = [n for n, part in enumerate(parts) if not (part.fixed or part.pinned or part.group.pending)]
    free = [*(n for n in free[:-1] if n not in back), *(n for n in free[:-1] if n in back), *free[-1:]]
    waiting = [n for n, part in enumerate(parts) if part.group.pending and not (part.fixed or part.pinned)]
    gone: list[int] = []
    for number in waiting:  # what waits before the newest
        parts[number] = _clip_to(frame, draft.parts[number], limit, room)
        if parts[number].tokens > room:
            gone.append(number)
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
        gone.append(number)
        target -= part.tokens
    left = set(gone)
    draft.parts = [part for number, part in enumerate(parts) if number not in left]
    draft.omitted_parts = [parts[number] for number in sorted(gone)]


def _clip_to(frame: _Frame, part: PromptPart, limit: int, room: int) -> PromptPart:
    """Return *part* with its texts clipped until it is at most *room* tokens, or as short as may be."""
    clipped = _clip(frame, part, limit)
    if clipped.tokens > room:  # begin where it might just fit: one call may have hundreds of results
        costs, share = sorted(part.costs, reverse=True), room
        while len(costs) > 1 and costs[-1] <= share // len(costs):
            share -= costs.pop()
        limit = _step_dcopy_message(min(limit, share // len(costs)))
        clipped = _clip(frame, part, limit)
    while clipped.tokens > room and limit > SHORTEST_CLIP:
        limit = _step_dcopy_message(limit * 3 // 4)
        clipped = _clip(frame, part, limit)
    return clipped


def _step_dcopy_message(limit: int) -> int:
    """Return the *limit* of a clip, or the next shorter that there is."""
    return max(limit - limit % CLIP_STEP, SHORTEST_CLIP)


def _clip(frame: _Frame, part: PromptPart, limit: int) -> PromptPart:
    """Return *part* with each text of more than *limit* tokens clipped; the same object if it is fixed or pinned."""
    if part.fixed or part.pinned or part.tokens <= limit:
        return part
    shorter: dict[int, tuple[Message, int]] = {}
    for place, (message, post) in enumerate(zip(part.messages, part.group.posts, strict=True)):
        if part.costs[place] > limit:
            clipped = clip_message(message, limit, post_reference(part.round_, post), frame.count)
            tokens = count_message(clipped, frame.count)
            if tokens < part.costs[place]:
                shorter[place] = clipped, tokens
    return part.with_messages(shorter, "clipped")


# --- published reductions that a prompt shows, reported like those that were made for it ------------------------


def published_reductions(view: View, fitted: Fitted) -> tuple[Reduced, ...]:
    """Return the published reductions that the prompt *fitted* shows, in the order of the log.

    Without those that were shortened further for this prompt, which are in ``fitted.reductions``, and those that are
    left out with their round. Each is counted once; takes time in proportion to the reductions of the tail.
    """
    if not view.reductions.by_round:
        return ()
    own, omitted = {one.ref for one in fitted.reductions}, frozenset(fitted.omitted_rounds)
    found = [one for one in _in_tail(view) if one[1].ref not in own]
    shown = {str(message.get("content")) for message in fitted.messages} if omitted else set()
    return tuple(told for round_, told, text in found if round_.number not in omitted or (text and text in shown))


def _in_tail(view: View) -> Iterator[tuple[Round, Reduced, str]]:
    """Give each reduction of the tail with its round and the text that it shows."""
    known, redactions = view.ledger.reduced, view.rounds.redactions
    places = {round_id: (view.rounds.end_of(round_id) or 0) - 1 for round_id in view.reductions.by_round}
    for round_id, place in sorted(places.items(), key=lambda item: item[1]):
        if place not in view.places:
            continue
        round_ = view.rounds[place]
        for reduction in view.reductions.of(round_id):
            key = (round_id, reduction.first_number, reduction.last_number, redactions, hash(reduction.text))
            told = known.get(key)
            if told is None:
                if len(known) >= MAX_OPEN_GROUPS:
                    known.clear()
                told = known[key] = _told(round_, reduction, view.ledger.count)
            yield round_, told, reduction.text


def _told(round_: Round, reduction: Reduction, count: TokenCounter) -> Reduced:
    posts = [post for post in round_.post_list if reduction.covers(post.number)]
    before = sum(count(text) for post in posts for text in (text_of(post), *_arguments(post)))
    if reduction.covers(0) and not any(post.message == round_.user_query for post in posts):
        before += count(round_.user_query)
    after = count(reduction.text)
    if reduction.kind == "offloaded":
        left = reduction.extra.get(ARGUMENTS, {})
        after += sum(
            count(left.get(str(number), arguments))
            for post in posts
            for number, arguments in enumerate(_arguments(post))
        )
    ref = posts_reference(round_, reduction.first_number, reduction.last_number)
    return Reduced(ref, before, after, reduction.kind, published=True)


def _arguments(post: Post) -> list[str]:
    return [call.arguments for call in post.tool_calls]
