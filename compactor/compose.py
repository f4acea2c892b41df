"""The prompt: log and overlays merged, at most the budget, and the same beginning for as long as it can be."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory import Memory
from memory.messages import ASSISTANT, from_post
from memory.references import post_reference, range_reference
from memory.rounds import Round
from memory.visibility import sees

from .clipping import clip_message
from .errors import BudgetExceeded
from .ledger import ledger_of
from .tokens import TokenCounter, counter_for
from .units import PROMPT_TOKENS, Message, Unit, count_message
from .view import View

__all__ = ["GRID", "Prompt", "Reduced", "Report", "compose"]

#: Cuts fall on multiples of this share of the budget, counted in tail tokens from the compaction's end.
GRID = 0.3
#: The most that one text may take of what the head leaves of the budget, once not everything fits.
LARGEST_SHARE = 0.5
#: No text is clipped to fewer tokens than this.
SHORTEST_CLIP = 24


@dataclass(frozen=True, slots=True)
class Reduced:
    """A text that the prompt shows shortened."""

    #: Reloads the original: ``memory.reload(ref)``.
    ref: str
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class Report:
    """What was done to make the prompt fit."""

    #: Tokens of the prompt without cuts: system messages, compaction and the whole tail.
    tokens_before: int
    tokens_after: int
    #: Log numbers of the rounds after the compaction that are left out, some in part.
    omitted_rounds: tuple[int, ...] = ()
    reductions: tuple[Reduced, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Chat messages in OpenAI's format, and what they cost."""

    messages: list[Message]
    tokens: int
    report: Report


@dataclass(frozen=True, slots=True)
class _Piece:
    """A unit of the tail and what its messages cost. A fixed one, the newest query, is never left out or clipped."""

    round_: Round
    unit: Unit
    costs: tuple[int, ...]
    fixed: bool = False
    #: What was clipped in it.
    reductions: tuple[Reduced, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(self.costs)


@dataclass(frozen=True, slots=True)
class _Draft:
    """What may become the prompt, in this order, behind what stands at its head."""

    #: Log numbers of the rounds that are left out, some in part, and the line that says so.
    omitted: tuple[int, ...]
    note: Sequence[Message]
    #: The newest query, where it stands before all that is shown.
    asked: Sequence[_Piece]
    #: The places of the rounds that are shown whole, whose costs the ledger has summed up.
    whole: range
    #: Units of the rounds behind them.
    pieces: Sequence[_Piece]


def compose(
    memory: Memory,
    role: str = ASSISTANT,
    *,
    budget: int,
    system: str | Sequence[Mapping[str, Any]] | None = None,
    model: str = "",
    counter: TokenCounter | None = None,
) -> Prompt:
    """Return *role*'s prompt: system messages, compaction, tail; at most *budget* tokens.

    Never waits for a model. Where all of the tail does not fit, its oldest rounds are left out with a line that says
    which, in steps of ``GRID`` so that the beginning rarely changes; where a round alone is too long, its large texts
    are clipped and its oldest posts left out likewise. A tool call keeps its results, and the newest user query stays
    whole. Raises ``BudgetExceeded`` where even that query does not fit. *counter* takes the place of *model*'s
    tokenizer; keep one and give it each time, since what it counted is remembered for as long as it is the same.
    """
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ValueError(f"the budget is a number of tokens, at least 1, not {budget!r}")
    count = counter if counter is not None else counter_for(model)
    rounds, compaction = memory.get_role_rounds(role)
    head = _head(memory, role, system)
    header_tokens = sum(count_message(message, count) for message in head)
    ledger = ledger_of(memory, role, count)
    ledger.header_tokens = header_tokens
    view = View(rounds, compaction, ledger, header_tokens, model)
    if compaction is not None:
        head.append({"role": "system", "content": compaction.to_prompt()})
    return _Composition(view, head, budget).prompt()


def _head(memory: Memory, role: str, system: str | Sequence[Mapping[str, Any]] | None) -> list[Message]:
    if isinstance(system, Mapping):
        raise TypeError("system is a text or a list of messages; put the one message into a list")
    if isinstance(system, str):
        system = [{"role": "system", "content": system}] if system else []
    return [*map(dict, system or ()), *(from_post(post, role) for post in memory.header if sees(role, post))]


class _Composition:
    """One prompt in the making.

    Rounds are left out as a whole while that will do; only from one round on, usually the newest, is the tail looked at
    unit by unit. So a cut costs a search among sums, however long the tail is.
    """

    def __init__(self, view: View, head: list[Message], budget: int) -> None:
        self._view = view
        self._head = head
        self._head_tokens = PROMPT_TOKENS + view.header_tokens + view.compaction_tokens
        self._budget = budget
        self._step = max(1, int(budget * GRID))
        self._count = view.ledger.count
        #: Kept free for the line that says what is left out, at its longest: so the grid does not move with it.
        self._note_tokens = count_message(_note((10**9, 10**9 + 1), *["r999999999.p999999"] * 2), self._count)
        self._seen: dict[int, list[tuple[Round, Unit]]] = {}
        #: The newest round, or the first open one.
        self._newest = max(view.end, min(view.closed, view.total - 1))
        self._asked = self._newest_query()

    def prompt(self) -> Prompt:
        """Return the longest prompt that the ladder allows. Raises ``BudgetExceeded``."""
        draft = self._from_round(self._view.end)
        before = tokens = self._tokens(draft)
        if before > self._budget:
            draft = self._cut(before)
            tokens = self._tokens(draft)
        whole = (unit for place in draft.whole for _, unit in self._units(place))
        units = [*(piece.unit for piece in draft.asked), *whole, *(piece.unit for piece in draft.pieces)]
        messages = [*self._head, *draft.note, *(message for unit in units for message in unit.messages)]
        reductions = tuple(reduced for piece in draft.pieces for reduced in piece.reductions)
        return Prompt(messages, tokens, Report(before, tokens, draft.omitted, reductions))

    def _tokens(self, draft: _Draft) -> int:
        note = sum(count_message(message, self._count) for message in draft.note)
        whole = self._view.closed_tokens(draft.whole.start, draft.whole.stop)
        return self._head_tokens + note + _cost(draft.asked) + whole + _cost(draft.pieces)

    def _units(self, place: int) -> list[tuple[Round, Unit]]:
        if place not in self._seen:
            self._seen[place] = list(self._view.units(place))
        return self._seen[place]

    # -- the newest query ---------------------------------------------------------------------------------------------

    def _newest_query(self) -> int:
        """Return the place of the newest round in which the user speaks; -1 where there is none."""
        view = self._view
        for place in range(view.total - 1, view.closed - 1, -1):
            if any(unit.from_user for _, unit in self._units(place)):
                return place
        return view.sums.asked[view.closed]

    def _query_before(self, first: int) -> list[_Piece]:
        """Return the newest query where it stands before round *first*: it is shown all the same."""
        return [piece for piece in self._pieces(self._asked) if piece.fixed] if 0 <= self._asked < first else []

    def _pieces(self, place: int) -> list[_Piece]:
        """Return a round's units with their costs; what the user asks in the newest round where he speaks is fixed."""
        units = self._units(place)
        spoken = [number for number, (_, unit) in enumerate(units) if unit.from_user] if place == self._asked else []
        fixed = spoken[:1] + spoken[-1:]
        return [
            _Piece(round_, unit, self._view.open_costs(round_, unit), number in fixed)
            for number, (round_, unit) in enumerate(units)
        ]

    # -- leaving out --------------------------------------------------------------------------------------------------

    def _from_round(self, first: int) -> _Draft:
        """Return the tail from round *first* on."""
        pieces = [piece for place in range(self._newest, self._view.total) for piece in self._pieces(place)]
        omitted = self._numbers(first)
        note = [_note(omitted)] if omitted else []
        return _Draft(omitted, note, self._query_before(first), range(first, self._newest), pieces)

    def _cut(self, before: int) -> _Draft:
        """Return what stands behind the first mark of the grid that makes the prompt fit."""
        view = self._view
        repeated = _cost(self._query_before(self._newest)) if self._asked >= view.end else 0
        mark = self._mark(before + self._note_tokens + repeated - self._budget)
        first = self._boundary(mark)
        left_out = view.closed_tokens(view.end, first)
        if mark <= left_out <= mark + self._step:
            return self._from_round(first)
        # Whole rounds are not enough, or one alone is so long that too much would go with it.
        return self._cut_within(first if left_out < mark else first - 1)

    def _mark(self, excess: int) -> int:
        return -(-excess // self._step) * self._step

    def _boundary(self, mark: int) -> int:
        """Return the first place with at least *mark* tail tokens before it, at most that of the newest round."""
        start = self._view.end
        places = range(start, self._newest)
        return start + bisect_left(places, mark, key=lambda place: self._view.closed_tokens(start, place))

    def _numbers(self, first: int) -> tuple[int, ...]:
        """Return the log numbers of the rounds between the compaction and round *first*."""
        return tuple(self._view.sums.numbers[self._view.end : first])

    def _cut_within(self, first: int) -> _Draft:
        """Return the tail from round *first* on, which is too long: large texts clipped, the oldest units left out.

        Raises ``BudgetExceeded`` where even the newest query is too long.
        """
        asked = self._query_before(first)
        pieces = [piece for place in range(first, self._view.total) for piece in self._pieces(place)]
        needed = self._head_tokens + _cost(asked) + sum(piece.tokens for piece in pieces if piece.fixed)
        if needed > self._budget:
            raise BudgetExceeded(needed, self._budget)
        room = self._budget - needed - self._note_tokens
        pieces = self._clip(pieces, room)
        gone = self._too_old(pieces, room)
        kept = [piece for number, piece in enumerate(pieces) if number not in gone]
        left_out = [pieces[number] for number in sorted(gone)]
        rounds = self._numbers(first)
        omitted = tuple(dict.fromkeys((*rounds, *(piece.round_.number for piece in left_out))))
        # Where not even the line fits, the query alone is better than no prompt.
        note = [_note(rounds, *_ends(left_out))] if omitted and room >= 0 else []
        return _Draft(omitted, note, asked, range(first, first), kept)

    def _too_old(self, pieces: Sequence[_Piece], room: int) -> set[int]:
        """Return which of *pieces* go, by number: the oldest, by a step of the grid, so that those kept fit *room*."""
        free = [(number, piece.tokens) for number, piece in enumerate(pieces) if not piece.fixed]
        mark = self._mark(sum(tokens for _, tokens in free) - room)
        gone: set[int] = set()
        for number, tokens in free:
            # The newest stays where it fits by itself, though the mark may be behind it.
            if mark <= 0 or (number == free[-1][0] and tokens <= room):
                break
            gone.add(number)
            mark -= tokens
        return gone

    # -- clipping -----------------------------------------------------------------------------------------------------

    def _clip(self, pieces: Sequence[_Piece], room: int) -> list[_Piece]:
        """Return *pieces* with no text over a share of the budget, those of the newest so short that it fits *room*."""
        limit = max(int((self._budget - self._head_tokens) * LARGEST_SHARE), SHORTEST_CLIP)
        clipped = [self._clipped(piece, limit) for piece in pieces]
        newest = max((number for number, piece in enumerate(pieces) if not piece.fixed), default=None)
        while newest is not None and clipped[newest].tokens > room and limit > SHORTEST_CLIP:
            limit = max(limit // 2, SHORTEST_CLIP)
            clipped[newest] = self._clipped(pieces[newest], limit)
        return clipped

    def _clipped(self, piece: _Piece, limit: int) -> _Piece:
        """Return *piece* with each text of more than *limit* tokens clipped; as it is where it is fixed."""
        if piece.fixed or piece.tokens <= limit:
            return piece
        messages, costs, reductions = [], [], []
        for message, post, tokens in zip(piece.unit.messages, piece.unit.posts, piece.costs, strict=True):
            ref = post_reference(piece.round_, post)
            shorter = clip_message(message, limit, ref, self._count) if tokens > limit else message
            after = tokens if shorter is message else count_message(shorter, self._count)
            if after < tokens:
                reductions.append(Reduced(ref, tokens, after))
            messages.append(shorter if after < tokens else message)
            costs.append(min(tokens, after))
        return _Piece(
            piece.round_, Unit(piece.unit.posts, lambda: messages), tuple(costs), reductions=tuple(reductions)
        )


def _cost(pieces: Iterable[_Piece]) -> int:
    return sum(piece.tokens for piece in pieces)


def _ends(pieces: Sequence[_Piece]) -> tuple[str, ...]:
    """Return the references of the first and the last post in *pieces*, as the log has them; none where there are none.

    Not those at their ends: a result that came late stands behind its call.
    """
    places = [
        (piece.round_.number, post.number if post else 0, post_reference(piece.round_, post))
        for piece in pieces
        for post in piece.unit.posts
    ]
    return (min(places)[2], max(places)[2]) if places else ()


def _note(rounds: Sequence[int], first_post: str = "", last_post: str = "") -> Message:
    """Return the line that says what is left out, whole rounds and then posts, and how to read it."""
    said: list[str] = []
    if rounds:
        said.append(f"rounds {rounds[0]} to {rounds[-1]} (reload {range_reference(rounds[0], rounds[-1])})")
    if first_post:
        said.append(f"the posts from {first_post} to {last_post} (reload each by that name)")
    return {"role": "system", "content": f"[Left out here to save space, and kept in full: {', '.join(said)}.]"}
