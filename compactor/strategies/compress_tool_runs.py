"""Many tool calls become one summary of what was called and what it gave: in past rounds, or in the open one."""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from memory.graphemes import beginning
from memory.once import once
from memory.overlays import CompactedMessage, Reduction
from memory.reading.references import posts_reference
from memory.rounds import Post, Round
from prompts import PromptTemplate, load

from ..acceptance import LEAST_SAVING
from ..config import whole_number
from ..errors import SummaryRejected
from ..messages.overlaid import OVERLAY
from ..messages.units import MESSAGE_TOKENS, Unit
from ..transcript import answered_calls, quote
from ..view import View, Work
from .folding import Asking, fold, quote_query
from .stretches import Stretch, open_stretches, past_runs
from .wording import summary_text

__all__ = ["Scope", "compress_tool_runs"]

Scope = Literal["past", "current"]

#: How many characters a summarizer sees of the arguments and the result of a tool that keeps a plan: that is told anew
#: each time, so no summary has to hold it.
BRIEF = 160
#: No summary is asked to be shorter, in tokens; nor to be longer than this share of a request's.
LEAST_TARGET, MOST_OF_INPUT = 64, 0.25
#: What a summary says that it stands for.
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
    """Return the strategy that has a model summarise tool calls and their results, to *ratio* of their tokens.

    ``scope="past"``: in the tail's closed rounds, runs of more than *min_consecutive* such posts, oldest first.
    ``scope="current"``: in the open round, from the first complete call to the last; where a summary stands for some of
    them already, the next is made from that and the new ones, and takes its place. The newest *keep_last* posts, what
    the user said, what is pinned, what waits for an answer, and results that the role has yet to read with their call,
    stay.

    *prompt* is a name, a path or a template; None: the shipped ``tool_run`` or ``current_round``. *plan_tools* are
    names of tools that keep the agent's plan; the model sees only a line of what these were told and gave. What was
    offloaded before is read in full again where it fits a request, unless *reread* is False.
    """
    if scope not in ("past", "current"):
        raise ValueError(f"scope must be 'past' or 'current', not {scope!r}")
    if not 0 < ratio < LEAST_SAVING:
        raise ValueError(f"ratio must be above 0 and below {LEAST_SAVING}, to save anything; it is {ratio!r}")
    more_than, kept = whole_number("min_consecutive", min_consecutive), whole_number("keep_last", keep_last)
    if not isinstance(prompt, PromptTemplate):
        prompt = load(prompt or ("tool_run" if scope == "past" else "current_round"))
    names = frozenset((plan_tools,) if isinstance(plan_tools, str) else plan_tools)
    options = _Options(prompt, ratio, names, reread)

    def strategy(view: View) -> Iterator[Reduction]:
        if view.work is None:
            raise RuntimeError(
                "compress_tool_runs asks a model, so it runs in a compactor, not where a prompt is composed"
            )
        if not view.keeps_reductions:
            return
        rejected: SummaryRejected | None = None
        for stretch in past_runs(view, more_than, kept) if scope == "past" else open_stretches(view, kept):
            try:
                reduction = _Run(view, view.work, stretch, options).summarised()
            except SummaryRejected as error:
                rejected = error  # told at the end: the other runs are no worse for it
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
    #: Whether what was offloaded is read in full again.
    reread: bool


@dataclass(frozen=True)
class _Run:
    """A stretch of calls on its way to a summary."""

    view: View
    work: Work
    stretch: Stretch
    options: _Options

    def summarised(self) -> Reduction | None:
        """Return the reduction to a summary. None where it would save under a tenth; may raise ``SummaryRejected``."""
        most = int(self.tokens * LEAST_SAVING)
        if self._cost("") + self.target > most:
            return None
        calls = self.logged.model_copy(update={"user_query": "", "post_list": tuple(self._quoted())})
        made, _ = list(
            fold(
                self.view,
                self.work,
                self.asking,
                [calls],
                start=self.stretch.place,
                previous=self.earlier,
                calls=answered_calls(self.logged),
            )
        )[-1]
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
        """The round as the log has it."""
        return self.stretch.logged

    @once
    def posts(self) -> tuple[Post, ...]:
        """Its posts that the stretch reaches over, as the log has them."""
        posts, number = self.logged.post_list, attrgetter("number")
        first = bisect_left(posts, self.stretch.first_number, key=number)
        return posts[first : bisect_right(posts, self.stretch.last_number, key=number)]

    @once
    def tokens(self) -> int:
        """What the stretch takes in a prompt now."""
        return sum(map(self._tokens, self.stretch.units))

    @once
    def replaced(self) -> tuple[Reduction, ...]:
        """The summaries that stand for some of the calls, in whose place the new one comes."""
        first, last = self.stretch.first_number, self.stretch.last_number
        live = self.view.reductions.of(self.logged.id)
        return tuple(one for one in live if one.kind == "summarised" and first <= one.first_number <= last)

    @once
    def earlier(self) -> CompactedMessage | None:
        """What these say, without the line above each."""
        said = "\n\n".join(_HEAD.sub("", one.text) for one in self.replaced)
        number = self.stretch.place + 1
        return CompactedMessage(start_index=number, end_index=number, summary=said) if said.strip() else None

    @once
    def target(self) -> int:
        """How long the summary should be: as the earlier one, which must not shrink at each step, and more for what is
        new."""
        new = sum(self._tokens(unit) for unit in self.stretch.units if not self._is_replaced(unit))
        before = self.view.ledger.count(self.earlier.summary) if self.earlier is not None else 0
        most = int(self.work.config.summarizer_input_tokens * MOST_OF_INPUT)
        if self.work.mark is not None:
            most = min(most, self.work.mark // 2)  # one that fills the prompt would be due again at once
        return max(min(before + int(self.options.ratio * new), most), LEAST_TARGET)

    @once
    def asking(self) -> Asking:
        return Asking(self.options.prompt, "tool_run", self.target, quote_query(self.logged))

    def _quoted(self) -> Iterator[Post]:
        """Give the new posts as the model is to read them."""
        room = self.asking.room(self.view, self.work, self.earlier)
        plans = {
            call.id
            for unit in self.stretch.units
            for post in unit.posts
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

    def _is_replaced(self, unit: Unit) -> bool:
        return any(post is not None and one.covers(post.number) for one in self.replaced for post in unit.posts)

    def _tokens(self, unit: Unit) -> int:
        return sum(self.view.costs(self.stretch.round_, unit))

    def _cost(self, summary: str) -> int:
        return MESSAGE_TOKENS + self.view.ledger.count(self._text(summary))

    def _text(self, summary: str) -> str:
        reference = posts_reference(self.logged, self.stretch.first_number, self.stretch.last_number)
        return summary_text(summary, STANDS_FOR, reference)


#: The first line of such a summary; one of a host's own need not have it.
_HEAD = re.compile(r"\A\[Summary of [^\n]*\n")


def _in_brief(post: Post, plans: Collection[str | None]) -> Post:
    """Return *post* with a line left of what was said to and by the tools whose calls' ids are among *plans*."""
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
