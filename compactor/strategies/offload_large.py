"""Shortens large posts to their beginning, or to a summary, with the reference that reloads them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator

from memory.arguments import check_whole_number, require
from memory.overlays import Reduction, ReductionKind
from memory.references import make_post_reference
from memory.rounds import Post, copy_with
from prompts import PromptTemplate, load

from ..acceptance.prohibitions import find_lost
from ..errors import SummaryRejected
from ..prompt.groups import parse_kind
from ..prompt.shorten import (
    OffloadRule,
    append_prohibitions,
    describe_size,
    is_result,
    make_summary_text,
    measure_reduction,
)
from ..transcript import find_answered_calls
from ..view import View
from .incremental import SummaryQuestion, needs_compactor, quote_query, summarize_in_steps
from .tail import Tail, TailGroup

#: Limits of a summary in tokens. Its target is a tenth of the post; the minimum never exceeds half of the post.
MIN_SUMMARY, MAX_SUMMARY = 100, 500


def offload_large(
    threshold: int = 5_120,
    keep_last: int = 0,
    preview: int = 200,
    *,
    ending: int = 0,
    arguments: bool = True,
    tokens: bool = False,
    kinds: str | Iterable[str] | None = None,
    summarize: bool = False,
    users_too: bool = False,
    prompt: str | os.PathLike[str] | PromptTemplate = "large_post",
) -> Callable[[View], Iterator[Reduction]]:
    """Return a strategy that offloads posts of more than *threshold* characters, oldest first.

    The prompt then shows the first *preview* characters, the size, the reference that reloads the post, and the last
    *ending* characters, which often hold the error. With *tokens*, all these numbers are tokens. With *arguments*,
    equally large arguments of tool calls are offloaded too, and stay valid JSON.

    The newest *keep_last* posts and the latest answer to the user stay. *kinds* limits the strategy to kinds of
    ``OffloadRule``; None: all. With *users_too*, user messages of any kind are offloaded too, but last, and never the
    newest query. If the trigger names a number of tokens, user messages are offloaded only while the prompt is above
    it. Sentences in which the user forbids something stay word for word.

    With *summarize*, a model writes a summary that replaces the beginning; *prompt* is a shipped name, a file or a
    template. The summary is marked, so nobody takes it for the role's own words. The beginning is shown instead if the
    summary is rejected, or if the role's text accompanies a tool call. The strategy then raises the summarizer's
    errors, and ``RuntimeError`` outside a compactor, where no model may be called.

    The strategy does nothing if the prompt exceeds only its limit of messages: shorter posts are no fewer.
    """
    require("kinds", kinds, str | Iterable | None, "a kind or several, such as 'tool_result'; None for all")
    chosen = None if kinds is None else tuple(map(parse_kind, (kinds,) if isinstance(kinds, str) else kinds))
    rule = OffloadRule(threshold, preview, tokens, chosen, users_too=users_too, ending=ending, arguments=arguments)
    kept = check_whole_number("keep_last", keep_last)
    template = (prompt if isinstance(prompt, PromptTemplate) else load(prompt)) if summarize else None

    def strategy(view: View) -> Iterator[Reduction]:
        mine, count = copy_with(rule, role=view.role), view.token_cache.count
        work = view.work
        if summarize and work is None:
            raise needs_compactor("offload_large(summarize=True)")
        if work is not None and work.exceeds is not None and "tokens" not in work.exceeds:
            return  # offloading does not lower the number of messages
        over = view.tokens - work.token_threshold if work is not None and work.token_threshold is not None else math.inf
        for group, post in _find_candidates(Tail(view), kept, users_too=users_too):
            if group.group.from_user and over <= 0:
                return
            reduction = mine.apply(group.round_, post, count)
            if reduction is None:
                continue
            if template is not None and work is not None and reduction.text != group.read_text(post):
                summary = _summarize(view, SummaryQuestion(work, template, "large_post"), group, post)
                reduction = reduction if summary is None else copy_with(summary, extra=reduction.extra)
            if sentences := find_lost(group.prohibitions, [reduction.text]):
                reduction = copy_with(reduction, text=append_prohibitions(reduction.text, sentences))
            measured = measure_reduction(group.round_, reduction, count)
            if measured.tokens_after < measured.tokens_before:
                over -= measured.tokens_before - measured.tokens_after
                yield reduction

    strategy.__name__ = strategy.__qualname__ = "offload_large"
    return strategy


def _find_candidates(tail: Tail, keep_last: int, *, users_too: bool) -> Iterator[tuple[TailGroup, Post | None]]:
    """Yield the posts that may be offloaded, user messages last."""
    stays = {*tail.find_newest(keep_last), tail.latest_answer}
    for from_user in (False, True) if users_too else (False,):
        for group in tail.groups:
            if group.group.from_user != from_user or (from_user and group.round_index == tail.view.newest_query):
                continue
            if tail.view.is_reducible(group.round_, group.group):
                yield from ((group, post) for post in group.posts if group.locate(post) not in stays)


def _summarize(view: View, question: SummaryQuestion, group: TailGroup, post: Post | None) -> Reduction | None:
    """Return the reduction of *post* to its summary.

    None if the summary is rejected or saves nothing, or if the post is the role's own and calls tools.
    """
    own = post is not None and post.send_from == view.role and not is_result(post)
    if own and post is not None and post.tool_calls:
        return None
    text, count = group.read_text(post), view.token_cache.count
    tokens = count(text)
    target = max(min(tokens // 10, MAX_SUMMARY), min(tokens // 2, MIN_SUMMARY))
    # Tool calls of other senders stay as they are, so they are not summarized.
    alone = group.isolate(None if post is None else copy_with(post, tool_calls=()))
    lead = "" if post is None else quote_query(group.round_)
    question = copy_with(question, target_tokens=target, lead=lead)
    try:
        *_, made = summarize_in_steps(
            view, question, [alone], start=group.round_index, calls=find_answered_calls(group.round_)
        )
    except SummaryRejected:
        return None
    stands_for = f"the {describe_size(len(text), tokens)}, that {f'{view.role} said' if own else 'stood'} here"
    shown = make_summary_text(made.summary, stands_for, make_post_reference(group.round_, post))
    if count(shown) >= tokens:
        return None
    kind: ReductionKind = "summarised" if own else "offloaded"
    return Reduction.over(group.round_, [post], kind, shown, usage=made.usage, model=made.model)
