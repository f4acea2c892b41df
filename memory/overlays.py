"""Overlays: records that say "this span now reads as that". Memory knows nothing else of compaction."""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

from pydantic import AfterValidator, Field

from .messages import make_query_message, pair_results, repeats_query
from .rounds import EMPTY, USER, Extra, FieldMapping, Post, Record, Round, Stamp, Text, freeze_mapping
from .values import ValueObject

if TYPE_CHECKING:
    from .entries import CompactionPrepared

UsageCounts = Annotated[FieldMapping[str, int], AfterValidator(freeze_mapping)]


class Note(Record):
    """One statement of a summary, kept byte for byte until a change names it."""

    text: Text
    #: Its heading; empty: none.
    section: Text = ""
    #: The rounds that it was made from, by their numbers in the log; both inclusive.
    first_round: int = Field(default=0, ge=0)
    last_round: int = Field(default=0, ge=0)


class CompactedMessage(Record):
    """The one compaction of a role: its first rounds now read as ``summary``."""

    #: First covered round, counted from 1.
    start_index: int = Field(ge=1)
    #: Last covered round, inclusive, counted from 1 in the sequence it was returned with. Where covered rounds
    #: failed afterwards it shrinks, down to ``start_index - 1`` when none is left to see.
    end_index: int = Field(ge=0)
    #: What prompts show instead of the covered rounds.
    summary: Text
    #: The last covered round. Indices shift when a round fails; this does not.
    end_round_id: Text | None = None
    #: Which publication of its role made it current, from 1; 0 before it is published.
    generation: int = Field(default=0, ge=0)
    #: The last covered round's number in the log, if there is a log. Models read this number.
    end_number: int | None = None
    #: When it was made; None: not known.
    created_at: Stamp | None = None
    #: The summarizer's model, if known.
    model: Text | None = None
    #: Its cost, if known: ``input_tokens``, ``output_tokens``, ``cached_tokens``.
    usage: UsageCounts | None = None
    #: The notes of ``summary``, if it is a list of notes.
    notes: tuple[Note, ...] = ()
    extra: Extra = EMPTY
    #: The covered pinned posts that its role sees. Filled in by readers, and not stored.
    pinned: tuple[Text, ...] = Field(default=(), exclude=True)

    #: As in TaskWeaver's dataclass.
    by_place: ClassVar[tuple[str, ...]] = ("start_index", "end_index", "summary")
    example: ClassVar[str] = "CompactedMessage(1, 7, 'What rounds 1 to 7 say')"

    if TYPE_CHECKING:

        def __init__(self, start_index: int, end_index: int, summary: str, **fields: Any) -> None: ...
    else:

        def __init__(self, *leading, **fields) -> None:
            super().__init__(*leading, **fields)
            if self.end_index < self.start_index - 1:
                raise self._make_refusal(f"end_index, {self.end_index}, lies before start_index, {self.start_index}")

        __init__.__pydantic_base_init__ = True  # as in Record: stored ones are not checked

    @property
    def last_round(self) -> int:
        """The last covered round as models read it: its number in the log, if known."""
        return self.end_index if self.end_number is None else self.end_number

    @property
    def is_offline(self) -> bool:
        """Whether its end was extracted without a model. The model's next good answer replaces all of it."""
        place = self.extra.get(OFFLINE)
        if not isinstance(place, Mapping) or not {"end_round_id", "end_number"} <= place.keys():
            return False
        return isinstance(place.get("characters"), int) and isinstance(place.get("rounds"), int)

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """A provider's own form of the summary, if prompts may show it: ``provider``, ``model`` and ``data``. None
        while the text says more: with pinned posts, or with an end that was extracted without a model."""
        found = self.extra.get(PAYLOAD)
        return found if isinstance(found, Mapping) and not self.pinned and not self.is_offline else None

    @property
    def model_end_number(self) -> int:
        """The last round in the model's own text, by its number in the log; 0 if there is none. The rounds after it
        are summarised again, with their reductions."""
        return (self.extra[OFFLINE]["end_number"] if self.is_offline else self.end_number) or 0

    def to_system_message(self) -> str:
        """Return the summary as text for a system message, headed by the rounds that it covers."""
        pins = "\n".join((PINNED, *self.pinned, "", "")) if self.pinned else ""
        heading = f"[Conversation History Summary (Rounds {self.start_index}-{self.last_round})]"
        return f"{pins}{heading}\n{self.summary}\n\n{BACKGROUND}"

    def to_prompt(self) -> str:
        """Return the summary as ``compose`` shows it, with the reference that reloads what it covers. Text that changes
        with each publication stands on the last line, so that a provider's prefix cache keeps as much as possible."""
        first, last = self.start_index, self.last_round
        pins = "\n".join((PINNED, *self.pinned, "", "")) if self.pinned else ""
        covered = f"Covers rounds {first}-{last}, kept in full: reload r{first}-r{last}."
        return f"{pins}[Conversation History Summary]\n{self.summary}\n\n{BACKGROUND} {covered}"


#: Key of a compaction's ``extra`` if its end was extracted without a model. The value says where the model's text ends.
OFFLINE = "offline"
#: Key of a compaction's ``extra`` for a provider's own form of it. There, and no field: older versions read the text.
PAYLOAD = "payload"
PINNED = "[Pinned: word for word]"
BACKGROUND = "[Background only: messages after it are newer and prevail, and nothing in it is a new request.]"


ReductionKind = Literal["offloaded", "dropped", "summarised"]


class Reduction(Record):
    """An overlay on posts inside one round of the tail.

    ``offloaded``: one post keeps its place, sender and calls, and reads as ``text``. ``dropped``: the posts are not
    shown. ``summarised``: all of them read as one message, ``text``, which has no author in the conversation.
    """

    round_id: Text
    #: First and last post it covers, by id; both inclusive. Empty: the round's user query.
    first_post_id: Text
    last_post_id: Text
    kind: ReductionKind
    #: The text in the prompt instead; empty if dropped.
    text: Text = ""
    #: The role's generation when it was made. A reduction does not raise it.
    generation: int = Field(default=0, ge=0)
    #: The same posts by their numbers in the round; 0 is the query.
    first_number: int = Field(default=0, ge=0)
    last_number: int = Field(default=0, ge=0)
    created_at: Stamp | None = None
    #: The summarizer's model and cost, if one was asked.
    model: Text | None = None
    usage: UsageCounts | None = None
    extra: Extra = EMPTY

    @classmethod
    def over(
        cls, round_: Round, posts: Iterable[Post | None], kind: ReductionKind, text: str = "", **fields: Any
    ) -> Self:
        """Return a reduction from the first to the last of *posts*, in the order of the log; None is the query."""
        ends = sorted((post.number, post.id) if post is not None else (0, "") for post in posts)
        return cls(
            round_id=round_.id,
            first_post_id=ends[0][1],
            last_post_id=ends[-1][1],
            kind=kind,
            text=text,
            first_number=ends[0][0],
            last_number=ends[-1][0],
            **fields,
        )

    def covers(self, number: int) -> bool:
        """Return whether the post of that number in the round is among those it covers."""
        return self.first_number <= number <= self.last_number


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reductions(ValueObject):
    """One role's reductions at one moment: no two of a round overlap."""

    #: Number of the log entry that last changed them. Equal versions of one role are the same reductions.
    version: int = 0
    #: By the round's id, in the order of their posts.
    by_round: Mapping[str, tuple[Reduction, ...]] = EMPTY

    def of(self, round_id: str) -> tuple[Reduction, ...]:
        """Return those of one round, in the order of their posts."""
        return self.by_round.get(round_id, ())


Overlay = CompactedMessage | Reduction


@runtime_checkable
class CompactionProvider(Protocol):
    """Gives a role's compaction: usually a ``ContextCompactor``.

    It may also have these methods: ``bind(memory, role)`` is called when it is registered; ``publish_deferred()`` when
    a prompt is too long, and returns whether another compaction is shown now; ``current_plan()`` gives a plan.
    """

    def get_compaction(self) -> CompactedMessage | None:
        """Return the published compaction; must not block."""

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        """Note that something happened; must neither block nor raise."""


class JournalState(NamedTuple):
    """One consistent reading of a role's publications."""

    #: Counts the role's publications and reverts.
    generation: int = 0
    #: The compaction that prompts show; None: none.
    current: CompactedMessage | None = None
    #: The newest round there was when the last revert happened; None unless the newest entry is a revert.
    revert_round_id: str | None = None
    #: The answers that were paid for and made from this generation, oldest first.
    prepared: tuple["CompactionPrepared", ...] = ()


class Origin(NamedTuple):
    """How a compaction came about, for the history."""

    #: Digest of the answered request: see ``CompactionPrepared``.
    digest: str = ""
    #: Names of the checks that the answer passed.
    checks: tuple[str, ...] = ()
    strategy: str = ""
    #: Tokens of the messages that it replaces in prompts, and its own.
    tokens_before: int | None = None
    tokens_after: int | None = None


def merge_reductions(current: Sequence[Reduction], new: Reduction) -> tuple[Reduction, ...] | None:
    """Return a round's *current* reductions with *new* among them, in the order of their posts; None: *new* is ignored.

    *new* replaces the live ones that it strictly contains. It is ignored if it equals a live one, lies inside it or
    partly overlaps it, so that a late result never hides a newer one.
    """
    # No two live ones overlap, so the ones that *new* meets stand side by side.
    start = bisect_left(current, new.first_number, key=lambda one: one.last_number)
    stop = bisect_right(current, new.last_number, key=lambda one: one.first_number)
    span = (new.first_number, new.last_number)
    for old in current[start:stop]:
        if span == (old.first_number, old.last_number) or not span[0] <= old.first_number <= old.last_number <= span[1]:
            return None
    return (*current[:start], new, *current[stop:])


def without_span(reductions: Iterable[Reduction], first: int, last: int) -> tuple[Reduction, ...]:
    """Return a round's *reductions* reductions without the one from post *first* to *last*."""
    return tuple(one for one in reductions if (one.first_number, one.last_number) != (first, last))


def without_posts(reductions: Iterable[Reduction], numbers: Iterable[int]) -> tuple[Reduction, ...]:
    """Return a round's *reductions* reductions without those that cover any post of these *numbers*."""
    erased = tuple(numbers)
    return tuple(one for one in reductions if not any(map(one.covers, erased)))


def find_newest_query(newest_first: Iterable[Round]) -> Round | None:
    """Return the first of these rounds in which the user speaks."""
    for round_ in newest_first:
        if make_query_message(round_) is not None or any(post.send_from == USER for post in round_.post_list):
            return round_
    return None


def hides_words(reduction: Reduction, round_: Round) -> bool:
    """Return whether *reduction* covers any words of the user in *round_*."""
    if reduction.covers(0) and make_query_message(round_) is not None:
        return True
    posts = round_.post_list[: reduction.last_number]
    return any(post.send_from == USER and reduction.covers(post.number) for post in posts)


def is_over(reduction: Reduction, number: int, round_: Round) -> bool:
    """Return whether *reduction* covers the post of that *number*; a query and a post that repeats it count as one."""
    first = round_.post_list[0] if number == 0 and round_.post_list else None
    again = first is not None and repeats_query(first, round_) and reduction.covers(first.number)
    return reduction.covers(number) or again


def tie_calls(round_: Round, role: str) -> dict[int, tuple[int, int]]:
    """Return the spans of posts that must stay together as *role* sees *round_*: by the number of each call and result,
    the first and the last number among the call and its results.

    The span of a call at the end of an open round that waits for results has no end.
    """
    posts = round_.post_list
    pairs = pair_results(posts, role)
    spans: dict[int, tuple[int, int]] = {}
    for place, results in pairs.items():
        together = [posts[at].number for at in (place, *results.values())]
        spans |= dict.fromkeys(together, (min(together), max(together)))
    answers = {at for results in pairs.values() for at in results.values()}
    last = max((at for at in range(len(posts)) if at not in answers), default=-1)
    if not round_.closed and last in pairs and len(pairs[last]) < len(posts[last].tool_calls):
        spans[posts[last].number] = (posts[last].number, sys.maxsize)
    return spans


def is_torn(reduction: Reduction, spans: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether *reduction* hides a call and not all of its results, or a result and not its call."""
    if reduction.kind == "offloaded":
        return False  # message and calls stay, only the text is another
    for number in range(reduction.first_number, reduction.last_number + 1):
        first, last = spans.get(number, (number, number))
        if not (reduction.covers(first) and reduction.covers(last)):
            return True
    return False
