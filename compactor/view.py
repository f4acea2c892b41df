"""A View: the log and its overlays as one role sees them, with token counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

from memory.frozen import FrozenMapping
from memory.overlays import CompactedMessage
from memory.rounds import Attachment, Post, Round, RoundState
from memory.visibility import Rounds, seen_by

from .config import CompactorConfig
from .ledger import Ledger
from .summarizers.base import Summary, SummaryRequest
from .tokens import DEFAULT_WINDOW, window_of
from .units import MESSAGE_TOKENS, PROMPT_TOKENS, units_of

__all__ = ["HostRounds", "View", "Work", "rounds_for"]


def rounds_for(rounds: Sequence[Any], role: str) -> Rounds | HostRounds:
    """Return what a ``rounds_getter`` gave as rounds of ours that hold only the posts which *role* sees."""
    if isinstance(rounds, Rounds):
        return rounds.seen_as(role)
    return HostRounds(rounds, role)


class HostRounds(Sequence[Round]):
    """Another host's rounds, each turned into one of ours when it is read.

    They need ``user_query`` and ``post_list``, their posts ``send_from``, ``send_to`` and ``message``; a round without
    ``state`` is closed. Those without ``id`` are told apart by their place.
    """

    def __init__(self, rounds: Sequence[Any], role: str) -> None:
        self._rounds = rounds
        self.role = role
        #: Equal to nothing else: nobody promises that another host's rounds stay as they are.
        self.epoch = object()
        self.settled = next((place for place, item in enumerate(rounds) if _state(item) == "created"), len(rounds))

    def __len__(self) -> int:
        return len(self._rounds)

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, index: int | slice) -> Round | tuple[Round, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        return seen_by(self.role, _round(self._rounds[place], place))

    def end_of(self, round_id: str) -> int | None:
        """Return how many rounds there are up to and including *round_id*; None where it is not there."""
        for place in range(len(self) - 1, -1, -1):
            if _round_id(self._rounds[place], place) == round_id:
                return place + 1
        return None

    def anchored(self, compaction: CompactedMessage | None) -> CompactedMessage | None:
        """Return *compaction* with its end where its last round is now."""
        if compaction is None:
            return None
        end = self.end_of(compaction.end_round_id) if compaction.end_round_id is not None else None
        return compaction.model_copy(update={"end_index": min(compaction.end_index, len(self)) if end is None else end})


def _state(item: Any) -> RoundState:
    state = getattr(item, "state", "finished")
    state = getattr(state, "value", state)  # an enum's
    return "created" if state == "created" else "failed" if state == "failed" else "finished"


def _round_id(item: Any, place: int) -> str:
    return str(getattr(item, "id", None) or f"#{place + 1}")


def _round(item: Any, place: int) -> Round:
    if isinstance(item, Round):
        return item
    posts = tuple(_post(post, number) for number, post in enumerate(getattr(item, "post_list", None) or (), 1))
    return Round(
        id=_round_id(item, place),
        user_query=str(getattr(item, "user_query", None) or ""),
        state=_state(item),
        post_list=posts,
        number=place + 1,
    )


def _post(item: Any, number: int) -> Post:
    if isinstance(item, Post):
        return item
    attachments = tuple(
        Attachment(type=_word(attachment, "type"), content=str(getattr(attachment, "content", "") or ""))
        for attachment in getattr(item, "attachment_list", None) or ()
    )
    return Post(
        id=str(getattr(item, "id", None) or f"p{number}"),
        send_from=_word(item, "send_from"),
        send_to=_word(item, "send_to"),
        message=str(getattr(item, "message", "") or ""),
        attachment_list=attachments,
        number=number,
        extra=FrozenMapping(),
    )


def _word(item: Any, name: str) -> str:
    word = getattr(item, name, "")
    return str(getattr(word, "value", word) or "")


class Work(Protocol):
    """What a strategy that asks a model may use, for as long as one cycle lasts."""

    @property
    def config(self) -> CompactorConfig: ...

    @property
    def mark(self) -> int | None:
        """The number of tokens that the prompt has passed, where that is why there is work."""

    @property
    def plan(self) -> str | None:
        """The agent's plan as text, where there is one."""

    def summarize(self, request: SummaryRequest, *, source: str, source_tokens: int, view: View) -> Summary:
        """Return an accepted summary of *source*, what *request* replaces. Raises what the summarizer raises, or
        ``SummaryRejected``."""


@dataclass(frozen=True)
class View:
    """The log and its overlays as one role sees them, at one moment."""

    rounds: Rounds | HostRounds
    #: The published compaction, its indices in the numbering of ``rounds``.
    compaction: CompactedMessage | None
    ledger: Ledger
    #: Tokens of what always stands in front: system messages.
    header_tokens: int = 0
    #: Whose window counts; empty: the default's.
    model: str = ""
    #: What a strategy that asks a model may use; None where no model may be asked.
    work: Work | None = None

    @property
    def role(self) -> str:
        return self.ledger.role

    @property
    def total(self) -> int:
        """Visible rounds, the open one included."""
        return len(self.rounds)

    @property
    def closed(self) -> int:
        """Closed rounds before the first open one: as far as a compaction may reach."""
        return self.rounds.settled

    @property
    def end(self) -> int:
        """Visible rounds that the compaction covers."""
        return self.compaction.end_index if self.compaction else 0

    @property
    def tail_length(self) -> int:
        return self.total - self.end

    @property
    def tail(self) -> tuple[Round, ...]:
        return self.rounds[self.end :]

    @property
    def compaction_tokens(self) -> int:
        if self.compaction is None:
            return 0
        return MESSAGE_TOKENS + self.ledger.count(self.compaction.to_prompt())

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt: what stands in front, the compaction and the tail."""
        return PROMPT_TOKENS + self.header_tokens + self.compaction_tokens + self.tokens_behind(self.end)

    @property
    def messages(self) -> int:
        """Messages of the tail."""
        sums = self.ledger.sums(self.rounds, self.closed, self.rounds.epoch)
        closed = sums.messages[self.closed] - sums.messages[min(self.end, self.closed)]
        return closed + sum(len(unit.messages) for round_ in self._growing() for unit in units_of(round_, self.role))

    @property
    def window(self) -> int:
        """The model's context window in tokens."""
        return window_of(self.model) or DEFAULT_WINDOW

    def tokens_behind(self, end: int) -> int:
        """Return the tokens of all rounds after the first *end*."""
        return self.closed_tokens(end, self.closed) + sum(
            self.ledger.open_unit_tokens(round_, unit)
            for round_ in self._growing()
            for unit in units_of(round_, self.role)
        )

    def closed_tokens(self, start: int, stop: int) -> int:
        """Return the tokens of closed rounds *start* to *stop*, as a slice counts them."""
        sums = self.ledger.sums(self.rounds, self.closed, self.rounds.epoch)
        return sums.tokens[stop] - sums.tokens[min(start, stop)]

    def _growing(self) -> Iterator[Round]:
        for place in range(max(self.closed, self.end), self.total):
            yield self.rounds[place]
