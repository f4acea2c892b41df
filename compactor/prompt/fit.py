"""What a prompt shows of a tail that is too long for it: the ladder, light to heavy, only as far as needed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from memory.messages import text_of
from memory.overlays import PINNED, CompactedMessage, Reduction
from memory.references import post_reference, posts_reference, range_reference
from memory.rounds import Post, Round

from ..acceptance.prohibitions import PROHIBITIONS, lost, restored
from ..tokens import TokenCounter
from ..view import View
from .accounting import (
    LAST,
    LEVELS,
    MAX_OPEN_UNITS,
    By,
    Draft,
    Fitted,
    Head,
    PromptPart,
    Reduced,
    ends,
    note,
    own,
    shortened,
    shows_preview,
)
from .groups import ARGUMENTS, PROMPT_TOKENS, Message, MessageGroup, count_message, reading
from .shorten import clip_message, clip_text

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
#: What each of ``RUNGS`` does to a text.
_DONE_BY: tuple[By, ...] = ("offloaded", "offloaded", "cleared")


class Ladder:
    """One prompt in the making: *head* and *view*'s tail in at most *limit* tokens, cut in steps of *step* tokens.

    Everything it decides follows from the tail's tokens in whole steps, and from posts older than that: so what is
    appended changes the beginning of the prompt only when the next step is due.
    """

    def __init__(self, view: View, head: Head, limit: int, step: int) -> None:
        self._view = view
        self._limit = limit
        self._largest_step = step
        self._count = view.ledger.count
        self._seen: dict[int, list[tuple[Round, MessageGroup]]] = {}
        self._known: dict[int, list[PromptPart]] = {}
        self._dropped_from = view.first_dropped
        #: Kept free for the line that says what is left out, at its longest: so the grid does not move with it.
        longest = note((10**9, 10**9 + 1), *["r999999999.p999999"] * 2, dropped_from=self._dropped_from)
        self._note_tokens = self._known_cost(longest)
        self._put(head)
        #: The newest round, or the first open one: from here on there are no sums.
        self._newest = max(view.end, min(view.closed, view.total - 1))
        self._asked = self._newest_query()
        self._clipped_head: tuple[Reduced, ...] = ()
        self._covered_omitted: tuple[int, ...] = ()

    def fitted(self) -> tuple[Fitted, int]:
        """Return the longest prompt that the ladder allows, and by how many tokens even that is over the limit."""
        end, newest = self._view.end, self._newest
        draft = Draft(self._ahead(end), range(end, newest), self._pieces_from(newest))
        before = tokens = self._tokens(draft)
        if before > self._limit:
            self._shorten_head()
            draft = self._cut()
            tokens = self._tokens(draft)
        if tokens > self._limit and self._note(draft):
            draft.says_so = False  # where not even the line fits, the query alone is better than no prompt
            tokens = self._tokens(draft)
        reductions = tuple(reduced for piece in draft.shown for reduced in piece.reductions)
        omitted = (*self._covered_omitted, *self._omitted(draft))
        fitted = Fitted(self._messages(draft), tokens, before, omitted, (*self._clipped_head, *reductions))
        return fitted, max(tokens - self._limit, 0)

    # -- what it costs, and what it is in messages --------------------------------------------------------------------

    def _cost(self, *messages: Message) -> int:
        return sum(count_message(message, self._count) for message in messages)

    def _known_cost(self, *messages: Message) -> int:
        """Return the same of messages that the prompts before had as well."""
        return sum(count_message(message, self._view.ledger.recounted) for message in messages)

    def _tokens(self, draft: Draft) -> int:
        whole = self._view.closed_tokens(draft.counted.start, draft.counted.stop)
        return self._head_tokens + self._known_cost(*self._note(draft)) + whole + _sum(draft.shown)

    def _messages(self, draft: Draft) -> list[Message]:
        """Return all messages; the plan stands before the newest thing that the user said."""
        messages = [*self._head.messages(), *self._note(draft)]
        plan_at = len(messages)

        def add(pieces: Iterable[PromptPart]) -> None:
            nonlocal plan_at
            for piece in pieces:
                if piece.fixed:
                    plan_at = len(messages)
                messages.extend(map(own, piece.group.messages))

        add(draft.ahead)
        for place, kept in zip(draft.counted, self._view.kept_among(draft.counted), strict=True):
            if kept is not None and place != self._asked:
                messages += kept.own_messages()
            else:
                add(self._uncounted(place))
        add(draft.pieces)
        if self._head.plan is not None:
            messages.insert(plan_at, self._head.plan)
        return messages

    def _note(self, draft: Draft) -> list[Message]:
        rounds = [*self._covered_omitted[:1], *self._covered_omitted[-1:]]
        rounds += [*self._view.sums.numbers(draft.rounds[:1]), *self._view.sums.numbers(draft.rounds[-1:])]
        if not draft.says_so or not (rounds or draft.groups or self._dropped_from):
            return []
        first, last = ends(draft.groups) or ("", "")
        return [note(rounds, first, last, dropped_from=self._dropped_from)]

    def _omitted(self, draft: Draft) -> tuple[int, ...]:
        """Return the log numbers of the rounds that are left out, some in part."""
        rounds = self._view.sums.numbers(draft.rounds)
        return (*rounds, *dict.fromkeys(piece.round_.number for piece in draft.groups))

    # -- the tail in pieces -------------------------------------------------------------------------------------------

    def _pieces(self, place: int) -> list[PromptPart]:
        """Return a round's units; what the user asks in the newest round where he speaks is fixed: his first words and
        his last."""
        if place not in self._known:
            self._known[place] = self._made_pieces(place)
        return self._known[place]

    def _made_pieces(self, place: int) -> list[PromptPart]:
        kept = self._view.kept(place)
        pieces = list(kept.pieces) if kept is not None else self._new_pieces(place)
        if place == self._asked:
            spoken = [number for number, piece in enumerate(pieces) if piece.group.from_user]
            for number in {*spoken[:1], *spoken[-1:]}:
                pieces[number] = replace(pieces[number], fixed=True)
        return pieces

    def _new_pieces(self, place: int) -> list[PromptPart]:
        view = self._view
        return [
            PromptPart(round_, group, view.costs(round_, group), pinned=view.is_pinned(round_, group))
            for round_, group in self._units(place)
        ]

    def _uncounted(self, place: int) -> list[PromptPart]:
        """Return a round's units for their messages alone: the ledger knows what all of them cost."""
        if place == self._asked:
            return self._pieces(place)
        if not self._view.sums.cost(place).messages:  # all of it was dropped
            return []
        return [PromptPart(round_, group, ()) for round_, group in self._units(place)]

    def _units(self, place: int) -> list[tuple[Round, MessageGroup]]:
        if place not in self._seen:
            self._seen[place] = self._view.groups(place)
        return self._seen[place]

    def _pieces_from(self, first: int) -> list[PromptPart]:
        return [piece for place in range(first, self._view.total) for piece in self._pieces(place)]

    def _newest_query(self) -> int:
        """Return the place of the newest round in which the user speaks; -1 where there is none in the tail."""
        view = self._view
        for place in range(view.total - 1, view.closed - 1, -1):
            if any(group.from_user for _, group in self._units(place)):
                return place
        return view.asked

    def _ahead(self, first: int) -> list[PromptPart]:
        """Return what stands before round *first* and is shown all the same: the newest query, and what is pinned."""
        view = self._view
        found = [piece for piece in self._pieces(self._asked) if piece.fixed] if 0 <= self._asked < first else []
        for round_id in view.pinned:
            place = (view.rounds.end_of(round_id) or 0) - 1
            if view.end <= place < first and view.rounds[place].id == round_id:
                found += [piece for piece in self._pieces(place) if piece.pinned and not piece.fixed]
        return sorted(found, key=lambda piece: (piece.round_.number, piece.group.number))

    # -- the head -----------------------------------------------------------------------------------------------------

    def _shorten_head(self) -> None:
        """Take from the head what leaves no room for that which must be shown: the plan, then of the compaction."""
        newest = self._pieces_from(self._newest)
        must = _sum(piece for piece in (*self._ahead(self._newest), *newest) if piece.verbatim)
        must += self._least_unread(newest, self._limit - must - self._known_cost(*self._head.system) - PROMPT_TOKENS)
        if self._head_tokens + must <= self._limit:
            return
        self._put(replace(self._head, plan=None))
        compaction, message = self._view.compaction, self._head.compaction
        room = self._limit - must - self._head_tokens
        if room >= 0 or compaction is None or message is None:
            return
        ref, whole = range_reference(1, compaction.last_round), self._cost(message)
        # Half of what there is, so that something of the tail is shown, where that is enough for a summary at all.
        half = (whole + room - self._note_tokens) // 2
        shorter = self._clipped_compaction(half, ref) or self._clipped_compaction(whole + room, ref)
        if shorter is not None:
            self._clipped_head = (Reduced(ref, whole, self._cost(shorter), "clipped"),)
            return self._put(replace(self._head, compaction=shorter))
        self._covered_omitted = tuple(range(1, compaction.last_round + 1))
        pinned = {**message, "content": "\n".join((PINNED, *compaction.pinned))} if compaction.pinned else None
        return self._put(replace(self._head, compaction=pinned))

    def _least_unread(self, newest: Sequence[PromptPart], room: int) -> int:
        """Return the least that the results which the agent has yet to read take, with the line beside them; 0 where
        there are none, or not even *room* for that: an agent that never sees them calls for them again and again."""
        last = next((piece for piece in reversed(newest) if not piece.stays), None)
        if last is None or not self._is_unread(last):
            return 0
        least = self._clipped_to(last, last.tokens, 0).tokens + self._note_tokens
        return least if least <= room else 0

    def _is_unread(self, piece: PromptPart) -> bool:
        return self._view.is_unread(piece.round_, piece.group)

    def _clipped_compaction(self, limit: int, ref: str) -> Message | None:
        """Return the compaction's message in at most *limit* tokens, all that is pinned and was forbidden in it. None
        where there is no room for that and some of the summary."""
        compaction, message = self._view.compaction, self._head.compaction
        assert compaction is not None  # noqa: S101  (only then is there a message)
        assert message is not None  # noqa: S101  (as above)
        prohibitions = compaction.extra.get(PROHIBITIONS, ())
        asked = limit + SHORTEST_CLIP - self._cost(_reading(message, compaction, ""))
        while asked >= SHORTEST_CLIP:
            text = clip_text(compaction.summary, asked, ref, self._count)
            text, _ = restored(text, lost(prohibitions, (text, *compaction.pinned)), limit, self._count)
            shorter = _reading(message, compaction, text)
            over = self._cost(shorter) - limit
            if over <= 0:
                return shorter
            asked -= max(over, 8)
        return None

    def _put(self, head: Head) -> None:
        self._head = head
        in_front = PROMPT_TOKENS + self._known_cost(*head.messages())
        self._head_tokens = in_front + (self._known_cost(head.plan) if head.plan is not None else 0)
        room = self._limit - in_front - self._note_tokens
        self._step = min(self._largest_step, max(int(room * LARGEST_STEP), 1))

    # -- the ladder ---------------------------------------------------------------------------------------------------

    def _cut(self) -> Draft:
        """Return what stands behind the first mark of the grid that makes the prompt fit."""
        view, sums, start, newest = self._view, self._view.sums, self._view.end, self._newest
        repeated = _sum(piece for piece in self._ahead(newest) if piece.fixed)
        room = self._limit - self._head_tokens - self._note_tokens - repeated
        tail = view.closed_tokens(start, newest) + _sum(self._pieces_from(newest))
        mark = -(-(tail - room) // self._step) * self._step
        # Tail tokens up to which texts may be shortened: like the mark, it moves by whole steps alone.
        boundary = room + mark - self._step - int(max(room, 0) * PROTECTED_SHARE)

        if start == newest:
            return self._lighten(start, mark, boundary)

        def behind(place: int) -> int:
            return sums[place].tokens - sums[start].tokens

        light = self._saved_in_newest(boundary - behind(newest))
        places = range(start, newest)
        cleared = start + bisect_right(places, boundary, key=lambda place: behind(place + 1))

        def left_out(first: int) -> int:
            return behind(first) - (sums[first].pinned - sums[start].pinned)

        def saved(first: int) -> int:
            """Return what leaving out the rounds before *first* and clearing what is within the boundary takes off."""
            if first >= cleared:
                return left_out(first) + light
            lightest = sums[cleared].by_level[-1] - sums[first].by_level[-1]
            return left_out(first) + light + behind(cleared) - behind(first) - lightest

        first = start + bisect_left(places, mark, key=saved)
        if first > start and saved(first) > mark + self._step:
            first -= 1  # one round is so long that too much would go with it
        return self._lighten(first, mark - left_out(first), boundary - behind(first))

    def _saved_in_newest(self, boundary: int) -> int:
        """Return what clearing the newest rounds' texts takes off, as far as they lie within *boundary* tokens."""
        pieces = self._pieces_from(self._newest)
        within = [pieces[number] for number in self._within(pieces, boundary)]
        return sum(piece.tokens - sum(self._lighter(piece)[-1]) for piece in within)

    def _lighter(self, piece: PromptPart) -> tuple[tuple[int, ...], ...]:
        return self._view.ledger.lighter_costs(piece.round_, piece.group, piece.costs)

    def _lighten(self, first: int, target: int, boundary: int) -> Draft:
        """Return the tail from round *first* on, made *target* tokens shorter: texts that lie within *boundary* tokens
        from there are shortened, rung by rung, the oldest first; then units are left out."""
        pieces = self._pieces_from(first)
        within = self._within(pieces, boundary)
        for level in range(len(LEVELS)):
            # Nobody is to see less of a small result than of a large one: of that, all but a line goes first.
            ordered = (
                sorted(within, key=lambda number: not shows_preview(pieces[number].group)) if level == LAST else within
            )
            for number in ordered:
                if target <= 0:
                    break
                piece = pieces[number]
                costs = self._lighter(piece)[level]
                if costs != piece.costs:
                    target -= piece.tokens - sum(costs)
                    pieces[number] = replace(piece, costs=costs, levels=level + 1)
        draft = Draft(ahead=self._ahead(first), pieces=pieces, rounds=range(self._view.end, first))
        draft = self._leave_out(draft, target) if target > 0 else draft
        return replace(draft, pieces=[self._shortened(piece) for piece in draft.pieces])

    def _shortened(self, piece: PromptPart) -> PromptPart:
        """Return *piece* with the texts that its costs already tell of."""
        if not piece.levels:
            return piece
        made = replace(piece, costs=self._view.costs(piece.round_, piece.group), levels=0)
        for rule, by in list(zip(LEVELS, _DONE_BY, strict=True))[: piece.levels]:
            shorter = shortened(made.round_, made.group, made.costs, rule, self._count)
            made = made.reading(*shorter, by) if shorter.places else made
        return made

    def _within(self, pieces: Sequence[PromptPart], boundary: int) -> list[int]:
        """Return the places of those that may be shortened and lie within *boundary* tokens."""
        ends = accumulate(piece.tokens for piece in pieces)
        return [place for place, end in enumerate(ends) if end <= boundary and self._may_shorten(pieces[place])]

    def _may_shorten(self, piece: PromptPart) -> bool:
        return not (piece.fixed or piece.group.from_user) and self._view.shortenable(piece.round_, piece.group)

    def _leave_out(self, draft: Draft, target: int) -> Draft:
        """Return *draft* with its largest texts clipped, and its oldest units left out until it is *target* tokens
        shorter. The newest stays, clipped as far as it takes, where it can."""
        limit = max(int((self._limit - self._head_tokens) * LARGEST_SHARE), SHORTEST_CLIP)
        room = self._limit - self._head_tokens - self._note_tokens - _sum(draft.ahead)
        # What the agent has just read back is not taken from it again, but for lack of any room.
        back = {number for number, piece in enumerate(draft.pieces) if self._view.read_back(piece.round_, piece.group)}
        pieces = [piece if number in back else self._clipped(piece, limit) for number, piece in enumerate(draft.pieces)]
        room -= _sum(piece for piece in pieces if piece.verbatim)
        free = [number for number, piece in enumerate(pieces) if not piece.stays]
        free = [*(n for n in free[:-1] if n not in back), *(n for n in free[:-1] if n in back), *free[-1:]]
        waiting = [number for number, piece in enumerate(pieces) if piece.group.pending and not piece.verbatim]
        gone: list[int] = []
        for number in waiting:  # what waits before the newest
            pieces[number] = self._clipped_to(pieces[number], limit, room)
            if pieces[number].tokens > room:
                gone.append(number)
            else:
                room -= pieces[number].tokens
        if free:
            newest = draft.pieces[free[-1]]
            is_whole = self._is_unread(newest) and newest.tokens <= room  # once; when it was read, as any other text
            most = max(limit, room) if free[-1] in back or is_whole else limit
            pieces[free[-1]] = self._clipped_to(newest, most, room)
        target -= _sum(draft.pieces) - _sum(pieces) + sum(pieces[number].tokens for number in gone)
        for number in free:
            # The newest stays where it fits by itself, though the mark may be behind it.
            if target <= 0 or (number == free[-1] and pieces[number].tokens <= room):
                break
            piece, rest = pieces[number], pieces[number].tokens - target
            if rest > self._step:  # it is so long that too much would go with it
                clipped = self._clipped_to(piece, piece.tokens, rest)
                if clipped.tokens <= rest:
                    pieces[number] = clipped
                    break
            gone.append(number)
            target -= piece.tokens
        left = set(gone)
        kept = [piece for number, piece in enumerate(pieces) if number not in left]
        return replace(draft, pieces=kept, groups=[pieces[number] for number in sorted(gone)])

    def _clipped_to(self, piece: PromptPart, limit: int, room: int) -> PromptPart:
        """Return *piece* with its texts clipped until it is at most *room* tokens, or as short as may be."""
        clipped = self._clipped(piece, limit)
        if clipped.tokens > room:  # begin where it might just fit: one call may have hundreds of results
            limit = _stepped(min(limit, _level(piece.costs, room)))
            clipped = self._clipped(piece, limit)
        while clipped.tokens > room and limit > SHORTEST_CLIP:
            limit = _stepped(limit * 3 // 4)
            clipped = self._clipped(piece, limit)
        return clipped

    def _clipped(self, piece: PromptPart, limit: int) -> PromptPart:
        """Return *piece* with each text of more than *limit* tokens clipped; as it is where it is not to be touched."""
        if piece.verbatim or piece.tokens <= limit:
            return piece
        piece = self._shortened(piece)
        messages, costs, changed = list(piece.group.messages), list(piece.costs), []
        for place, (message, post) in enumerate(zip(messages, piece.group.posts, strict=True)):
            if costs[place] <= limit:
                continue
            shorter = clip_message(message, limit, post_reference(piece.round_, post), self._count)
            after = self._cost(shorter)
            if after < costs[place]:
                messages[place], costs[place] = shorter, after
                changed.append(place)
        return piece.reading(reading(piece.group, tuple(messages)), tuple(costs), changed, "clipped")


def _reading(message: Message, compaction: CompactedMessage, summary: str) -> Message:
    """Return a compaction's *message* with another *summary*; what is pinned stays."""
    return {**message, "content": compaction.model_copy(update={"summary": summary}).to_prompt()}


def _sum(pieces: Iterable[PromptPart]) -> int:
    return sum(piece.tokens for piece in pieces)


def _stepped(limit: int) -> int:
    """Return the *limit* of a clip, or the next shorter that there is."""
    return max(limit - limit % CLIP_STEP, SHORTEST_CLIP)


def _level(costs: Iterable[int], room: int) -> int:
    """Return to how much each of *costs* must be cut, those that are more, to make them *room* together."""
    rest = sorted(costs, reverse=True)
    while len(rest) > 1 and rest[-1] <= room // len(rest):
        room -= rest.pop()
    return room // len(rest)


# --- the published reductions that a prompt shows, told as those of the prompt's own ladder are -------------------


def published_reductions(view: View, fitted: Fitted) -> tuple[Reduced, ...]:
    """Return what stands for posts of the tail in the prompt *fitted*, in the order of the log.

    Without what the ladder has shortened further, which it tells of itself, and what is left out with its round. Each
    is counted once; takes time in proportion to the reductions of the tail.
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
                if len(known) >= MAX_OPEN_UNITS:
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


# --- what a prompt shows of a tail that fits: all of it. As most do, so this is short; else there is ``ladder`` ---


def whole(view: View, head: Head, limit: int, tool_tokens: int) -> Fitted | None:
    """Return the prompt of *head* and the tail as it reads, where that is at most *limit* tokens beside those of tools.

    None where it is longer; and where it is not made of these alone, in this order: with a plan in between, with a line
    that tells of dropped posts, with a covered round in front because the user has not spoken since, or with a round
    that is not known from the prompt before.
    """
    start, closed, sums, ledger = view.end, view.closed, view.sums, view.ledger
    if head.plan is not None or not start <= closed <= sums.stop or view.first_dropped:
        return None
    first, last = sums[start], sums[closed]
    tokens = PROMPT_TOKENS + view.header_tokens - tool_tokens + last.tokens - first.tokens
    if head.compaction is not None:
        tokens += count_message(head.compaction, ledger.recounted)
    asked = last.asked is not None and last.asked >= start
    for round_, group in view.growing:
        tokens += sum(view.costs(round_, group))
        asked = asked or group.from_user
    if not asked or tokens > limit:
        return None
    messages = head.messages()
    for kept in view.kept_among(range(start, closed)):
        if kept is None:
            return None
        messages += kept.own_messages()
    for _, group in view.growing:
        messages += map(own, group.messages)
    return Fitted(messages, tokens, tokens)
