"""The prompt: log and overlays merged, at most the budget, and the same beginning for as long as it can be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory import Memory
from memory.messages import ASSISTANT, from_post
from memory.recall import post_reference, range_reference
from memory.rounds import Round
from memory.visibility import sees

from .errors import BudgetExceeded
from .ledger import ledger_of
from .tokens import TokenCounter, counter_for
from .units import PROMPT_TOKENS, Message, Unit, count_message, units_of
from .view import View

__all__ = ["GRID", "Prompt", "Reduced", "Report", "compose"]

#: Cuts fall on multiples of this share of the budget, counted in tail tokens from the compaction's end.
GRID = 0.3
#: Kept free for the line that says what is left out.
NOTE_TOKENS = 80
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
    """A unit of the tail with its cost. A fixed one, the newest query, is never left out and never clipped."""

    round_: Round
    unit: Unit
    tokens: int
    fixed: bool = False


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
    which, in steps of ``GRID`` so that the beginning rarely changes; then the newest texts are clipped. A tool call
    keeps its results, and the newest user query stays whole. Raises ``BudgetExceeded`` where even that is too long.
    """
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ValueError(f"the budget is a number of tokens, at least 1, not {budget!r}")
    count = counter if counter is not None else counter_for(model)
    rounds, compaction = memory.get_role_rounds(role)
    head = _head(memory, role, system)
    header_tokens = sum(count_message(message, count) for message in head)
    view = View(rounds, compaction, ledger_of(memory, role, count), header_tokens, model)
    if compaction is not None:
        head.append({"role": "system", "content": compaction.to_prompt()})
    return _Composition(view, head, budget).prompt()


def _head(memory: Memory, role: str, system: str | Sequence[Mapping[str, Any]] | None) -> list[Message]:
    head: list[Message] = []
    if isinstance(system, str):
        head.append({"role": "system", "content": system})
    elif system is not None:
        head.extend(dict(message) for message in system)
    head.extend(from_post(post, role) for post in memory.header if sees(role, post))
    return head


class _Composition:
    """One prompt in the making.

    The tail is seen as whole rounds first, whose costs the ledger has summed up, and as single units from the newest
    (or the first open) round on. So cutting costs a search, however long the tail is.
    """

    def __init__(self, view: View, head: list[Message], budget: int) -> None:
        self._view = view
        self._rounds = view.rounds
        self._head = head
        self._budget = budget
        self._asked = self._newest_query()
        #: The first round that is seen as units; those between the compaction's end and it are seen whole.
        self._fine = max(view.end, min(view.closed, view.total - 1))
        self._pieces = [piece for place in range(self._fine, view.total) for piece in self._pieces_of(place)]
        self._whole_tokens = view.closed_tokens(view.end, self._fine)
        self._head_tokens = PROMPT_TOKENS + view.header_tokens + view.compaction_tokens

    def prompt(self) -> Prompt:
        """Return the longest prompt that the ladder allows. Raises ``BudgetExceeded``."""
        asked = self._asked_before(self._view.end)
        before = self._head_tokens + self._whole_tokens + _cost(self._pieces) + _cost(asked)
        note: list[Message] = []
        omitted: tuple[int, ...] = ()
        if before <= self._budget:
            pieces = [*asked, *self._shown(self._view.end)]
        else:
            pieces, note, omitted = self._cut(before)
        tokens = self._tokens(pieces, note)
        reductions: tuple[Reduced, ...] = ()
        if tokens > self._budget:
            pieces, reductions = self._clip(pieces, note)
            tokens = self._tokens(pieces, note)
        messages = [*self._head, *note, *(message for piece in pieces for message in piece.unit.messages)]
        return Prompt(messages, tokens, Report(before, tokens, omitted, reductions))

    def _tokens(self, pieces: Sequence[_Piece], note: Sequence[Message]) -> int:
        count = self._view.ledger.count
        return self._head_tokens + _cost(pieces) + sum(count_message(message, count) for message in note)

    def _newest_query(self) -> int:
        """Return the place of the newest round in which the user speaks; -1 where there is none."""
        for place in range(self._view.total - 1, -1, -1):
            if any(unit.from_user for unit in units_of(self._rounds[place], self._view.role)):
                return place
        return -1

    def _pieces_of(self, place: int) -> list[_Piece]:
        """Return a round's units with their costs; what the user asks in the newest round where he speaks is fixed."""
        round_ = self._rounds[place]
        units = units_of(round_, self._view.role)
        spoken = [number for number, unit in enumerate(units) if unit.from_user] if place == self._asked else []
        ledger = self._view.ledger
        return [
            _Piece(
                round_, unit, ledger.open_unit_tokens(round_, unit), bool(spoken) and number in (spoken[0], spoken[-1])
            )
            for number, unit in enumerate(units)
        ]

    def _shown(self, first: int) -> list[_Piece]:
        """Return the tail from round *first* on."""
        return [piece for place in range(first, self._fine) for piece in self._pieces_of(place)] + self._pieces

    def _asked_before(self, first: int) -> list[_Piece]:
        """Return the newest query where it stands before round *first*: it is shown all the same."""
        if not 0 <= self._asked < first:
            return []
        return [piece for piece in self._pieces_of(self._asked) if piece.fixed]

    # -- leaving out --------------------------------------------------------------------------------------------------

    def _cut(self, before: int) -> tuple[list[_Piece], list[Message], tuple[int, ...]]:
        """Return what stands behind the first mark of the grid that makes the prompt fit, and the line that says so."""
        step = max(1, int(self._budget * GRID))
        repeated = _cost(self._asked_before(self._fine)) if self._asked >= self._view.end else 0
        excess = before + NOTE_TOKENS + repeated - self._budget
        mark = -(-excess // step) * step
        if mark <= self._whole_tokens:
            first = self._boundary(mark)
            omitted = tuple(self._rounds[place].number for place in range(self._view.end, first))
            return [*self._asked_before(first), *self._shown(first)], [_note(omitted, [])], omitted
        dropped = self._droppable(mark - self._whole_tokens)
        kept = [piece for number, piece in enumerate(self._pieces) if number not in dropped]
        gone = [self._pieces[number] for number in sorted(dropped)]
        whole = tuple(self._rounds[place].number for place in range(self._view.end, self._fine))
        if not whole and not gone:
            return [*self._asked_before(self._fine), *kept], [], ()
        omitted = tuple(dict.fromkeys((*whole, *(piece.round_.number for piece in gone))))
        return [*self._asked_before(self._fine), *kept], [_note(whole, gone)], omitted

    def _boundary(self, mark: int) -> int:
        """Return the first place among the whole rounds with at least *mark* tail tokens before it."""
        low, high = self._view.end, self._fine
        while low < high:
            middle = (low + high) // 2
            if self._view.closed_tokens(self._view.end, middle) >= mark:
                high = middle
            else:
                low = middle + 1
        return low

    def _droppable(self, mark: int) -> set[int]:
        """Return the oldest units that add up to *mark* tokens, without the last one there is."""
        free = [number for number, piece in enumerate(self._pieces) if not piece.fixed]
        dropped: set[int] = set()
        for number in free[:-1]:
            if mark <= 0:
                break
            dropped.add(number)
            mark -= self._pieces[number].tokens
        return dropped

    # -- clipping -----------------------------------------------------------------------------------------------------

    def _clip(self, pieces: list[_Piece], note: list[Message]) -> tuple[list[_Piece], tuple[Reduced, ...]]:
        """Return *pieces* with their texts clipped to one length, the longest of a halving series that fits."""
        longest = self._budget // 2
        while True:
            limit = max(longest, SHORTEST_CLIP)
            reductions: list[Reduced] = []
            clipped = [piece if piece.fixed else self._clipped(piece, limit, reductions) for piece in pieces]
            tokens = self._tokens(clipped, note)
            if tokens <= self._budget:
                return clipped, tuple(reductions)
            if limit == SHORTEST_CLIP:
                raise BudgetExceeded(tokens, self._budget)
            longest //= 2

    def _clipped(self, piece: _Piece, limit: int, reductions: list[Reduced]) -> _Piece:
        count = self._view.ledger.count
        messages = []
        for message, post in zip(piece.unit.messages, piece.unit.posts, strict=True):
            ref = post_reference(piece.round_, post)
            shorter = clip_message(message, limit, ref, count)
            messages.append(shorter)
            if shorter is not message:
                reductions.append(Reduced(ref, count_message(message, count), count_message(shorter, count)))
        unit = Unit(tuple(messages), piece.unit.posts, piece.unit.from_user)
        return _Piece(piece.round_, unit, self._view.ledger.unit_tokens(unit))


def _cost(pieces: Sequence[_Piece]) -> int:
    return sum(piece.tokens for piece in pieces)


def _note(whole: Sequence[int], gone: Sequence[_Piece]) -> Message:
    """Return the line that says what is left out and how to read it."""
    said: list[str] = []
    if whole:
        said.append(f"rounds {whole[0]} to {whole[-1]} (reload {range_reference(whole[0], whole[-1])})")
    if gone:
        first = post_reference(gone[0].round_, gone[0].unit.posts[0])
        last = post_reference(gone[-1].round_, gone[-1].unit.posts[-1])
        said.append(f"the posts from {first} to {last} (reload each by that name)")
    return {"role": "system", "content": f"[Left out here to save space, and kept in full: {', '.join(said)}.]"}


def clip_message(message: Message, limit: int, ref: str, count: TokenCounter) -> Message:
    """Return *message* with each text of more than *limit* tokens clipped to its head and tail around a reference.

    The same object where nothing is that long. A tool call's arguments stay valid JSON.
    """
    changed: Message = {}
    content = message.get("content")
    text = content if isinstance(content, str) else _joined(content)
    if text is not None and count_message({"content": content}, count) > limit:
        changed["content"] = clip_text(text, limit, ref, count)
    calls = message.get("tool_calls")
    if isinstance(calls, list) and any(count(_arguments(call)) > limit for call in calls):
        changed["tool_calls"] = [_clip_call(call, limit, ref, count) for call in calls]
    return {**message, **changed} if changed else message


def clip_text(text: str, limit: int, ref: str, count: TokenCounter) -> str:
    """Return head and tail of *text*, about *limit* tokens with the line between them that says what is missing."""
    mark = f"\n[... {{}} of {len(text):,} characters left out; reload {ref} ...]\n"
    room = max(limit - count(mark) - 4, 0)
    head = _end_of(text, room * 2 // 3, count)
    tail = _end_of(text[::-1], room // 3, count)[::-1] if len(head) < len(text) else ""
    missing = len(text) - len(head) - len(tail)
    return text if missing <= 0 else head + mark.format(f"{missing:,}") + tail


def _end_of(text: str, tokens: int, count: TokenCounter) -> str:
    """Return a beginning of *text* of at most *tokens*; only a few times as much of it is looked at."""
    length = min(len(text), 4 * tokens)
    while length and (found := count(text[:length])) > tokens:
        length = min(length - 1, length * tokens // found)
    return text[:length]


def _joined(content: object) -> str | None:
    """Return the text of content in parts, with a mark for each part that is none; None where there is no content."""
    if not isinstance(content, list):
        return None
    return "\n".join(part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type')}]" for part in content)


def _arguments(call: Any) -> str:
    asked = call.get("function") if isinstance(call, Mapping) else None
    arguments = asked.get("arguments") if isinstance(asked, Mapping) else None
    return arguments if isinstance(arguments, str) else ""


def _clip_call(call: Any, limit: int, ref: str, count: TokenCounter) -> Any:
    arguments = _arguments(call)
    if count(arguments) <= limit:
        return call
    shown = json.dumps({"left_out": f"{len(arguments):,} characters; reload {ref}"})
    return {**call, "function": {**call["function"], "arguments": shown}}
