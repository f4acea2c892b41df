"""Replaces many tool calls and their results by one summary, in past rounds or in the open one."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Literal

from memory.arguments import check_whole_number
from memory.overlays import CompactedMessage, Reduction
from memory.references import make_posts_reference
from memory.rounds import Post, Round, copy_with
from memory.values import ValueObject
from prompts import PromptTemplate, load

from ..acceptance.checks import MIN_SAVING
from ..cost.cost_optimal import Sizes, repays
from ..cost.prices import Prices
from ..errors import SummaryRejected
from ..prompt.groups import OVERLAY, MessageGroup, is_summary
from ..prompt.shorten import CALLS, is_result, make_summary_text, strip_marks
from ..summarize import Work
from ..summarizers.base import Style
from ..tokens import MESSAGE_TOKENS, PROMPT_TOKENS
from ..transcript import begin_line, find_answered_calls, quote
from ..view import View
from .incremental import SummaryQuestion, needs_compactor, quote_query, summarize_in_steps
from .tail import Location, Tail

Scope = Literal["past", "current"]
#: Calls with results, a summary of such calls, other text of the role, or the end of a run.
_Part = Literal["tools", "summary", "said", "end"]

#: Share of a run's tokens that its summary is assumed to take, and is asked to, in a compactor without settings.
OPEN_RATIO = 0.1
#: Limits of a summary's target: tokens, and a share of the tokens of a request.
MIN_TARGET, MAX_OF_INPUT = 64, 0.25


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
    more_than, kept = check_whole_number("min_consecutive", min_consecutive), check_whole_number("keep_last", keep_last)
    name = prompt or ("tool_run" if scope == "past" else "current_round")
    template = name if isinstance(name, PromptTemplate) else load(name)
    plans = frozenset((plan_tools,) if isinstance(plan_tools, str) else plan_tools)

    def strategy(view: View) -> Iterator[Reduction]:
        if (work := view.work) is None:
            raise needs_compactor("compress_tool_runs")
        if not view.keeps_reductions:
            return
        rejected: SummaryRejected | None = None
        for run in find_past_runs(view, more_than, kept) if scope == "past" else find_open_runs(view, kept):
            try:
                reduction = _summarize(view, work, run, template, ratio, plans, reread=reread)
            except SummaryRejected as error:
                rejected = error  # raised at the end, after the other runs
                continue
            if reduction is not None:
                yield reduction
        if rejected is not None:
            raise rejected

    strategy.__name__ = strategy.__qualname__ = "compress_tool_runs"
    return strategy


def compress_open_round(view: View) -> Iterator[Reduction]:
    """Yield the summary of the open round's tool calls, made from the round as the view shows it, if the prompt is near
    its budget and the summary costs no more than what prompts save until as many calls have come again."""
    if (work := view.work) is None:
        raise needs_compactor("compress_open_round")
    threshold = work.token_threshold
    if threshold is None or not view.keeps_reductions:
        return
    for run in find_open_runs(view, 0):
        if _is_repaid(view, work, run, threshold):
            reduction = _summarize(view, work, run, load("current_round"), OPEN_RATIO, frozenset(), reread=False)
            yield from (reduction,) if reduction is not None else ()


def _is_repaid(view: View, work: Work, run: ToolRun, threshold: int) -> bool:
    prices, shown = work.prices if isinstance(work.prices, Prices) else Prices(), _show_up_to(view, run)
    may_continue = bool(shown and work.continue_prompt is not None and work.continue_prompt(view.compaction, shown, ""))
    tokens = sum(sum(view.list_costs(run.round_, group)) for group in run.groups)
    calls = sum(post.send_from == view.role and not is_result(post) and not is_summary(post) for post in run.posts)
    summary, system = OPEN_RATIO * tokens, PROMPT_TOKENS + view.header_tokens
    sizes = Sizes(per_call=tokens / max(calls, 1), system=system, summary=summary, retained=0)
    saved = calls * (min(tokens, threshold) - summary)  # a longer prompt would have been cut
    style: Style = "continue" if may_continue else "separate"
    return repays(prices.with_cold(view.usage.cold), sizes, tokens, saved, style)


def _show_up_to(view: View, run: ToolRun) -> tuple[Round, ...]:
    """Return the tail up to the end of *run*, as prompts show it; empty if the round is closed or has earlier calls."""
    if run.index < view.closed or any(post.tool_calls for post in run.logged.post_list if post.number < run.first):
        return ()
    *before, last = (view.get_round(place) for place in range(view.end, run.index + 1))
    return (*before, copy_with(last, post_list=tuple(post for post in last.post_list if post.number <= run.last)))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolRun(ValueObject):
    """Adjacent message groups of one round; their posts may have been recorded in any order."""

    index: int
    #: The round in the log, and with overlays applied.
    logged: Round
    round_: Round
    groups: tuple[MessageGroup, ...]
    #: Numbers of the first and the last covered post, including posts that a summary in it replaces.
    first: int
    last: int
    part: _Part

    @property
    def posts(self) -> list[Post]:
        """The posts with overlays applied, in the order of the log, each once."""
        posts = {post.number: post for group in self.groups for post in group.posts if post is not None}
        return [posts[number] for number in sorted(posts)]

    def extend(self, *others: ToolRun, part: _Part = "tools") -> ToolRun:
        groups = tuple(group for run in (self, *others) for group in run.groups)
        return copy_with(self, groups=groups, last=max(run.last for run in (self, *others)), part=part)


def find_past_runs(view: View, more_than: int, keep_last: int) -> Iterator[ToolRun]:
    """Yield the runs of more than *more_than* calls and results in the tail's closed rounds, oldest first.

    A run ends at any other message, a summary, a post that may not be reduced, or one of the newest *keep_last* posts.
    """
    kept = Tail(view).find_newest(keep_last)
    for place in range(view.places.start, min(view.closed, view.places.stop)):
        logged = view.rounds[place]
        if len(logged.post_list) <= more_than:
            continue
        for part, (first, *others) in groupby(_split(view, logged, place, kept), attrgetter("part")):
            if part == "tools" and len((run := first.extend(*others)).posts) > max(more_than, 1):
                yield run


def find_open_runs(view: View, keep_last: int) -> Iterator[ToolRun]:
    """Yield runs of the open round, from a first call to a last one, with the role's text in between.

    A run ends at a message of another sender, a post that may not be reduced, or one of the newest *keep_last* posts.
    It also ends at the role's newest post: the role has not read the results of that call yet. A run with no call
    beyond those already summarized is left out.
    """
    place = view.total - 1
    if place < view.closed or view.rounds[place].closed:
        return
    logged = view.rounds[place]
    kept = Tail(view).find_newest(keep_last)
    for is_end, found in groupby(_split(view, logged, place, kept), lambda run: run.part == "end"):
        runs = [] if is_end else list(found)
        # Without the role's text before the first call and after the last.
        ends = [number for number, run in enumerate(runs) if run.part != "said"]
        if any(run.part == "tools" for run in runs):
            first, *others = runs[ends[0] : ends[-1] + 1]
            if (run := first.extend(*others)).first < run.last:
                yield run


def _split(view: View, logged: Round, index: int, kept: Collection[Location]) -> list[ToolRun]:
    """Return the message groups of a round, each as a run, in the order of the log.

    Groups whose posts interleave cannot be separated: they are one run.
    """
    last_of = {one.first_number: one.last_number for one in view.reductions.of(logged.id)}
    single: list[ToolRun] = []
    for round_, group in view.list_groups(index):
        numbers = [post.number if post is not None else 0 for post in group.posts]
        part = _read_part(group, view.role)
        if not view.is_reducible(round_, group) or any((index, number) in kept for number in numbers):
            part = "end"
        if part == "summary":
            numbers.append(last_of.get(numbers[0], numbers[0]))
            # A host's summary that includes the query stays: it holds the user's words.
            part = part if numbers[0] else "end"
        single.append(ToolRun(index, logged, round_, (group,), min(numbers), max(numbers), part))
    runs: list[ToolRun] = []
    for run in sorted(single, key=attrgetter("first")):
        if runs and run.first <= runs[-1].last:
            before = runs.pop()
            is_own = {before.part, run.part} <= {"tools", "said"}
            runs.append(before.extend(run, part="tools" if is_own else "end"))
        else:
            runs.append(run)
    return runs


def _read_part(group: MessageGroup, role: str) -> _Part:
    first = group.posts[0]
    if first is None:
        return "end"
    if is_summary(first):
        return "summary"
    own = first.send_from == role
    if is_result(first) or (own and (first.tool_calls or any(post and is_result(post) for post in group.posts))):
        return "tools"
    return "said" if own else "end"


def _summarize(
    view: View,
    work: Work,
    run: ToolRun,
    prompt: PromptTemplate,
    ratio: float,
    plan_tools: frozenset[str],
    *,
    reread: bool,
) -> Reduction | None:
    """Return the reduction of *run* to a summary; None if it cannot save a tenth. Raises ``SummaryRejected``."""
    logged, count = run.logged, view.token_cache.count
    reference = make_posts_reference(logged, run.first, run.last)
    # Earlier summaries of some of the calls, which the new one continues and replaces.
    replaced = [one for one in view.reductions.of(logged.id) if one.kind == "summarised"]
    replaced = [one for one in replaced if run.first <= one.first_number <= run.last]
    said = "\n\n".join(strip_marks(one.text) for one in replaced)
    number = run.index + 1
    previous = CompactedMessage(start_index=number, end_index=number, summary=said) if said.strip() else None
    tokens, new = _count_tokens(view, run, replaced)
    target = _choose_target(work, count(said) if previous is not None else 0, int(ratio * new))
    most = int(tokens * MIN_SAVING)
    if MESSAGE_TOKENS + count(make_summary_text("", CALLS, reference)) + target > most:
        return None

    question = SummaryQuestion(work, prompt, "tool_run", target, quote_query(logged))
    room = question.count_free_tokens(view, previous) if reread else 0
    quoted = [_with_posts(logged, *_list_quoted(view, run, replaced, plan_tools, room))]
    if not reread or all(post.extra.get(OVERLAY) != "offloaded" for post in run.posts):
        question = copy_with(question, shown=_show_up_to(view, run))
    calls = find_answered_calls(logged)
    *_, made = summarize_in_steps(view, question, quoted, start=run.index, previous=previous, calls=calls)
    text = make_summary_text(made.summary, CALLS, reference)
    if MESSAGE_TOKENS + count(text) > most:
        message = f"the summary saves under a tenth of {tokens} tokens of tool calls"
        raise SummaryRejected("no_progress", message, tokens=tokens)
    covered = [post for post in logged.post_list if run.first <= post.number <= run.last]
    return Reduction.over(logged, (covered[0], covered[-1]), "summarised", text, model=made.model, usage=made.usage)


def _is_in(post: Post | None, reductions: Iterable[Reduction]) -> bool:
    return post is not None and any(one.covers(post.number) for one in reductions)


def _count_tokens(view: View, run: ToolRun, replaced: Sequence[Reduction]) -> tuple[int, int]:
    """Return the tokens of *run*, and those of its groups of which nothing is in the *replaced* summaries."""
    costs = [(group, sum(view.list_costs(run.round_, group))) for group in run.groups]
    new = sum(cost for group, cost in costs if not any(_is_in(post, replaced) for post in group.posts))
    return sum(cost for _, cost in costs), new


def _choose_target(work: Work, before: int, share: int) -> int:
    """Return the tokens of a summary: as many as *before*, so it does not shrink at each step, and a *share* of the new
    posts."""
    limit = int(work.config.summarizer_input_tokens * MAX_OF_INPUT)
    if work.token_threshold is not None:
        limit = min(limit, work.token_threshold // 2)  # a longer summary would make the next compaction due at once
    return max(min(before + share, limit), MIN_TARGET)


def _list_quoted(
    view: View, run: ToolRun, replaced: Sequence[Reduction], plan_tools: Collection[str], room: int
) -> Iterator[Post]:
    """Yield the posts that are in no *replaced* summary, as the summarizer reads them: calls about the plan shortened,
    offloaded ones in full if they fit into *room* tokens."""
    originals = {post.number: post for post in run.logged.post_list}
    plans = {call.id for post in run.posts for call in post.tool_calls if call.name in plan_tools}
    for post in run.posts:
        if _is_in(post, replaced):
            continue
        if post.tool_call_id in plans or any(call.id in plans for call in post.tool_calls):
            yield _shorten_plan(post, plans)
        elif room > 0 and post.extra.get(OVERLAY) == "offloaded":
            original = originals[post.number]
            fits = view.token_cache.count(quote(_with_posts(run.logged, original), partial=True)) < room
            yield original if fits else post
        else:
            yield post


def _with_posts(round_: Round, *posts: Post) -> Round:
    return copy_with(round_, user_query="", post_list=posts)


def _shorten_plan(post: Post, plans: Collection[str | None]) -> Post:
    """Return *post* with the arguments and results of the calls in *plans* (ids) cut to one line: each request contains
    the current plan, so no summary has to keep it."""
    calls = tuple(
        copy_with(call, arguments=begin_line(call.arguments)) if call.id in plans else call for call in post.tool_calls
    )
    if post.tool_call_id not in plans:
        return copy_with(post, tool_calls=calls)
    return copy_with(post, message=begin_line(post.message), attachment_list=(), tool_calls=calls)
