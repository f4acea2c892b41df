"""Replaces many tool calls and their results by one summary, in past rounds or in the open one."""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from memory.overlays import CompactedMessage, Reduction
from memory.references import beginning, posts_reference
from memory.rounds import Post, Round, cached_property
from prompts import PromptTemplate, load

from ..acceptance.checks import MIN_SAVING
from ..config import whole_number
from ..errors import SummaryRejected
from ..prompt.groups import OVERLAY, MessageGroup, is_summary
from ..prompt.shorten import is_result
from ..tokens import MESSAGE_TOKENS
from ..transcript import answered_calls, quote
from ..view import View
from .incremental import SummaryQuestion, fold, quote_query, require_work, summary_text
from .tail import Location, Tail

if TYPE_CHECKING:
    from ..summarize import Work

#: The part of a block in a stretch: calls with results, a summary of such calls, other text of the role, or the end of
#: the stretch.
_Part = Literal["tools", "summary", "said", "end"]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """Adjacent message groups of one round; their posts may have been recorded in any order."""

    place: int
    #: The round in the log, and with overlays applied.
    logged: Round
    round_: Round
    groups: tuple[MessageGroup, ...]
    #: Numbers of the first and the last covered post, including posts that a summary in it replaces.
    first_number: int
    last_number: int

    @property
    def posts(self) -> list[Post]:
        """The posts with overlays applied, in the order of the log, each once."""
        posts = {post.number: post for group in self.groups for post in group.posts if post is not None}
        return [posts[number] for number in sorted(posts)]


@dataclass(frozen=True, slots=True)
class _Block:
    """Message groups that cannot be separated, because their posts interleave."""

    round_: Round
    groups: tuple[MessageGroup, ...]
    first: int
    last: int
    part: _Part

    def joined(self, other: _Block) -> _Block:
        together: _Part = "tools" if {self.part, other.part} <= {"tools", "said"} else "end"
        groups = (*self.groups, *other.groups)
        return _Block(self.round_, groups, self.first, max(self.last, other.last), together)


def find_past_runs(view: View, more_than: int, keep_last: int) -> Iterator[ToolRun]:
    """Yield the runs of more than *more_than* calls and results in the tail's closed rounds, oldest first.

    A run ends at any other message, a summary, a post that may not be reduced, or one of the newest *keep_last* posts.
    """
    kept = _newest(view, keep_last)
    for place in range(view.places.start, min(view.closed, view.places.stop)):
        logged = view.rounds[place]
        if len(logged.post_list) <= more_than:
            continue
        for part, found in groupby(_blocks(view, logged, place, kept), key=lambda block: block.part):
            if part == "tools":
                run = _stretch(place, logged, list(found))
                if len(run.posts) > max(more_than, 1):
                    yield run


def find_open_runs(view: View, keep_last: int) -> Iterator[ToolRun]:
    """Yield stretches of the open round, from a first call to a last one, with the role's text in between.

    A stretch ends at a message of another sender, a post that may not be reduced, or one of the newest *keep_last*
    posts. It also ends at the role's newest post: the role has not read the results of that call yet. A stretch with no
    call beyond those already summarized is left out.
    """
    place = view.total - 1
    if place < view.closed or view.rounds[place].closed:
        return
    logged = view.rounds[place]
    said = max((post.number for post in logged.post_list if post.send_from == view.role), default=0)
    unread = {(place, post.number) for post in logged.post_list if post.number >= said}
    blocks = _blocks(view, logged, place, unread.union(_newest(view, keep_last)))
    for at_end, found in groupby(blocks, key=lambda block: block.part == "end"):
        stretch = [] if at_end else _without_ends(list(found))
        if any(block.part == "tools" for block in stretch):
            made = _stretch(place, logged, stretch)
            if made.first_number < made.last_number:
                yield made


def _newest(view: View, number: int) -> Collection[Location]:
    return Tail(view).newest(number) if number else ()


def _blocks(view: View, logged: Round, place: int, kept: Collection[Location]) -> list[_Block]:
    """Return the message groups of a round as blocks that do not overlap in the log, in its order."""
    blocks: list[_Block] = []
    for block in sorted(_single_blocks(view, logged, place, kept), key=lambda block: block.first):
        if blocks and block.first <= blocks[-1].last:
            blocks.append(blocks.pop().joined(block))
        else:
            blocks.append(block)
    return blocks


def _single_blocks(view: View, logged: Round, place: int, kept: Collection[Location]) -> Iterator[_Block]:
    last_of = {one.first_number: one.last_number for one in view.reductions.of(logged.id)}
    for round_, group in view.groups(place):
        numbers = [post.number if post is not None else 0 for post in group.posts]
        part = _part(view, group)
        if not view.reducible(round_, group) or any((place, number) in kept for number in numbers):
            part = "end"
        if part == "summary":
            numbers.append(last_of.get(numbers[0], numbers[0]))
            # A host's summary that includes the query stays: it holds the user's words.
            part = part if numbers[0] else "end"
        yield _Block(round_, (group,), min(numbers), max(numbers), part)


def _part(view: View, group: MessageGroup) -> _Part:
    first = group.posts[0]
    if first is None:
        return "end"
    if is_summary(first):
        return "summary"
    own = first.send_from == view.role
    if (
        (own and first.tool_calls)
        or is_result(first)
        or (own and any(post and is_result(post) for post in group.posts))
    ):
        return "tools"
    return "said" if own else "end"


def _without_ends(blocks: list[_Block]) -> list[_Block]:
    """Return *blocks* without the role's text before the first call and after the last."""
    places = [place for place, block in enumerate(blocks) if block.part != "said"]
    return blocks[places[0] : places[-1] + 1] if places else []


def _stretch(place: int, logged: Round, blocks: list[_Block]) -> ToolRun:
    groups = tuple(group for block in blocks for group in block.groups)
    return ToolRun(place, logged, blocks[0].round_, groups, blocks[0].first, blocks[-1].last)


# --- the strategy: one summary for each run or stretch ------------------------------------------------------------


Scope = Literal["past", "current"]

#: Maximum characters that a summarizer sees of a plan tool's arguments, and of its result. Each request contains the
#: current plan, so no summary has to keep it.
BRIEF = 160
#: Limits of a summary's target: tokens, and a share of the tokens of a request.
MIN_TARGET, MAX_OF_INPUT = 64, 0.25
#: The text that a summary replaces, as its first line names it.
STANDS_FOR = "tool calls that were made already and are not to be made again, and of their results"


def compress_tool_runs(
    min_consecutive: int = 6,
    keep_last: int = 0,
    *,
    scope: Scope = "past",
    ratio: float = 0.3,
    prompt: str | os.PathLike[str] | PromptTemplate | None = None,
    plan_tools: str | Iterable[str] = (),
    reread: bool = True,
) -> Callable[[View], Iterator[Reduction]]:
    """Return a strategy that summarizes tool calls and their results with a model, to *ratio* of their tokens.

    ``scope="past"`` summarizes runs of more than *min_consecutive* such posts in the tail's closed rounds, oldest
    first. ``scope="current"`` summarizes the open round from the first complete call to the last; a new summary
    replaces an earlier one, and is made from it and the calls since. User messages, pinned posts, the newest
    *keep_last* posts, calls without an answer, and results that the role has not read yet (with their calls) stay.

    *prompt* is a name, a path or a template; None: the shipped ``tool_run`` or ``current_round``. *plan_tools* names
    the tools that keep the agent's plan; the model sees only one line of their arguments and results. Offloaded posts
    are read in full again if they fit in a request, unless *reread* is False.
    """
    if scope not in ("past", "current"):
        raise ValueError(f"scope must be 'past' or 'current', not {scope!r}")
    if not 0 < ratio < MIN_SAVING:
        raise ValueError(f"ratio must be above 0 and below {MIN_SAVING}, to save anything; it is {ratio!r}")
    more_than, kept = whole_number("min_consecutive", min_consecutive), whole_number("keep_last", keep_last)
    if not isinstance(prompt, PromptTemplate):
        prompt = load(prompt or ("tool_run" if scope == "past" else "current_round"))
    names = frozenset((plan_tools,) if isinstance(plan_tools, str) else plan_tools)
    options = _Options(prompt, ratio, names, reread)

    def strategy(view: View) -> Iterator[Reduction]:
        work = require_work(view, "compress_tool_runs")
        if not view.keeps_reductions:
            return
        rejected: SummaryRejected | None = None
        for stretch in find_past_runs(view, more_than, kept) if scope == "past" else find_open_runs(view, kept):
            try:
                reduction = _Run(view, work, stretch, options).summarised()
            except SummaryRejected as error:
                rejected = error  # raised at the end, after the other runs
                continue
            if reduction is not None:
                yield reduction
        if rejected is not None:
            raise rejected

    strategy.__name__ = strategy.__qualname__ = "compress_tool_runs"
    return strategy


@dataclass(frozen=True, slots=True)
class _Options:
    prompt: PromptTemplate
    ratio: float
    #: The names of the tools that keep a plan.
    plan_tools: frozenset[str]
    #: Whether offloaded posts are read in full again.
    reread: bool


@dataclass(frozen=True)
class _Run:
    """Summarizes one stretch of calls."""

    view: View
    work: Work
    stretch: ToolRun
    options: _Options

    def summarised(self) -> Reduction | None:
        """Return the reduction to a summary; None if it cannot save a tenth. Raises ``SummaryRejected``."""
        most = int(self.tokens * MIN_SAVING)
        if self._cost("") + self.target > most:
            return None
        calls = self.logged.model_copy(update={"user_query": "", "post_list": tuple(self._quoted())})
        *_, made = fold(
            self.view,
            self.asking,
            [calls],
            start=self.stretch.place,
            previous=self.earlier,
            calls=answered_calls(self.logged),
        )
        if self._cost(made.summary) > most:
            rejected = SummaryRejected(
                "no_progress", f"the summary of tool calls that have {self.tokens} tokens saves under a tenth of them"
            )
            rejected.tokens = self.tokens
            raise rejected
        ends = (self.posts[0], self.posts[-1])
        return Reduction.over(
            self.logged, ends, "summarised", self._text(made.summary), model=made.model, usage=made.usage
        )

    @property
    def logged(self) -> Round:
        """The round in the log."""
        return self.stretch.logged

    @cached_property
    def posts(self) -> tuple[Post, ...]:
        """The posts in the log that the stretch covers."""
        posts, number = self.logged.post_list, attrgetter("number")
        first = bisect_left(posts, self.stretch.first_number, key=number)
        return posts[first : bisect_right(posts, self.stretch.last_number, key=number)]

    @cached_property
    def tokens(self) -> int:
        """Tokens of the stretch in a prompt now."""
        return sum(map(self._tokens, self.stretch.groups))

    @cached_property
    def replaced(self) -> tuple[Reduction, ...]:
        """The earlier summaries of some of the calls, which the new one replaces."""
        first, last = self.stretch.first_number, self.stretch.last_number
        live = self.view.reductions.of(self.logged.id)
        return tuple(one for one in live if one.kind == "summarised" and first <= one.first_number <= last)

    @cached_property
    def earlier(self) -> CompactedMessage | None:
        """The text of these summaries, without their first lines."""
        said = "\n\n".join(_HEAD.sub("", one.text) for one in self.replaced)
        number = self.stretch.place + 1
        return CompactedMessage(start_index=number, end_index=number, summary=said) if said.strip() else None

    @cached_property
    def target(self) -> int:
        """Target tokens of the summary: those of the earlier one, so it does not shrink at each step, and a share of
        the new posts."""
        new = sum(self._tokens(group) for group in self.stretch.groups if not self._is_replaced(group))
        before = self.view.ledger.count(self.earlier.summary) if self.earlier is not None else 0
        most = int(self.work.config.summarizer_input_tokens * MAX_OF_INPUT)
        if self.work.mark is not None:
            most = min(most, self.work.mark // 2)  # a longer summary would make the next compaction due at once
        return max(min(before + int(self.options.ratio * new), most), MIN_TARGET)

    @cached_property
    def asking(self) -> SummaryQuestion:
        return SummaryQuestion(self.work, self.options.prompt, "tool_run", self.target, quote_query(self.logged))

    def _quoted(self) -> Iterator[Post]:
        """Yield the new posts as the model reads them."""
        room = self.asking.room(self.view, self.earlier)
        plans = {
            call.id
            for group in self.stretch.groups
            for post in group.posts
            for call in (post.tool_calls if post else ())
            if call.name in self.options.plan_tools
        }
        logged = {post.number: post for post in self.posts}
        for post in self.stretch.posts:
            if any(one.covers(post.number) for one in self.replaced):
                continue
            if post.tool_call_id in plans or any(call.id in plans for call in post.tool_calls):
                yield _in_brief(post, plans)
            elif self._is_reread(post) and self._fits(logged[post.number], room):
                yield logged[post.number]
            else:
                yield post

    def _is_reread(self, post: Post) -> bool:
        return self.options.reread and post.extra.get(OVERLAY) == "offloaded"

    def _fits(self, post: Post, room: int) -> bool:
        alone = self.logged.model_copy(update={"user_query": "", "post_list": (post,)})
        return self.view.ledger.count(quote(alone, partial=True)) < room

    def _is_replaced(self, group: MessageGroup) -> bool:
        return any(post is not None and one.covers(post.number) for one in self.replaced for post in group.posts)

    def _tokens(self, group: MessageGroup) -> int:
        return sum(self.view.costs(self.stretch.round_, group))

    def _cost(self, summary: str) -> int:
        return MESSAGE_TOKENS + self.view.ledger.count(self._text(summary))

    def _text(self, summary: str) -> str:
        reference = posts_reference(self.logged, self.stretch.first_number, self.stretch.last_number)
        return summary_text(summary, STANDS_FOR, reference)


#: The first line of such a summary; a summary made by the host may lack it.
_HEAD = re.compile(r"\A\[Summary of [^\n]*\n")


def _in_brief(post: Post, plans: Collection[str | None]) -> Post:
    """Return *post* with the arguments and results of the calls in *plans* (ids) cut to one line."""
    calls = tuple(
        call.model_copy(update={"arguments": _line(call.arguments)}) if call.id in plans else call
        for call in post.tool_calls
    )
    if post.tool_call_id not in plans:
        return post.model_copy(update={"tool_calls": calls})
    return post.model_copy(update={"message": _line(post.message), "attachment_list": (), "tool_calls": calls})


def _line(text: str) -> str:
    line = " ".join(text[: 4 * BRIEF].split())
    return line if len(line) <= BRIEF and len(text) <= 4 * BRIEF else f"{beginning(line, BRIEF)} [...]"
