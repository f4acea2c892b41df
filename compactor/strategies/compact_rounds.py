"""Rounds start..end become the one CompactedMessage: old summary + new rounds → new summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memory.overlays import CompactedMessage

from ..acceptance import Source
from ..standing import carried
from ..summarizers.base import SummaryRequest
from ..transcript import Room, Step, steps
from ..units import PROMPT_TOKENS, count_message
from ..view import View, Work

__all__ = ["compact_rounds", "planned_end"]


def compact_rounds(view: View) -> Iterator[CompactedMessage]:
    """Yield the compaction that is due; several, each reaching further, where one request cannot hold all new rounds.

    Yields none where retaining the recent rounds leaves nothing to cover.
    """
    work = view.work
    if work is None:
        raise RuntimeError("compact_rounds asks a model, so it runs in a compactor, not where a prompt is composed")
    start, end = view.end, planned_end(view, work)
    if end <= start:
        return
    previous, reached = view.compaction, start
    room = Room(_room(view, work, previous))
    usage: dict[str, int] = {}
    taken_in, published = 0, _summary_tokens(view, previous)
    for step in steps(view.rounds[start:end], room, view.ledger.count):
        first, reached = reached + 1, start + step.whole
        request = _request(view, work, step, previous, (first, reached if step.at_boundary else reached + 1))
        # All since the last publication: the last piece of a long round may be short, and the summary may not be that.
        taken_in += step.tokens
        summary = work.summarize(request, Source(step.text, taken_in, published), view)
        _add(usage, summary.usage)
        previous = CompactedMessage(
            start_index=1,
            end_index=max(reached, 1),
            summary=summary.text,
            end_round_id=view.rounds[reached - 1].id if reached else None,
            end_number=view.rounds[reached - 1].number or None if reached else None,
            generation=previous.generation if previous else 0,
            model=summary.model,
            usage=dict(usage) or None,
            extra=carried(request),
        )
        room.tokens = _room(view, work, previous)
        if step.at_boundary:
            yield previous
            usage, taken_in, published = {}, 0, _summary_tokens(view, previous)


def planned_end(view: View, work: Work) -> int:
    """Return how many visible rounds the next compaction should cover.

    All closed ones but the newest ``retain_recent``, the open round counted among those retained. Where the trigger
    names a number of tokens that the prompt has passed, fewer are retained: as few as it takes to reach half of it.
    """
    end = min(view.closed, view.total - work.config.retain_recent)
    mark = work.mark
    if mark is not None:
        ahead = view.header_tokens + (work.config.target_tokens or view.compaction_tokens)
        while end < view.closed and ahead + view.tokens_behind(max(end, 0)) > mark // 2:
            end += 1
    return end


def _request(
    view: View, work: Work, step: Step, previous: CompactedMessage | None, span: tuple[int, int]
) -> SummaryRequest:
    target = work.config.target_tokens
    messages = work.config.prompt.render(
        step.text,
        previous_summary=previous.summary if previous else None,
        role=view.role,
        target_tokens=target,
        plan=work.plan,
    )
    return SummaryRequest(
        role=view.role,
        previous=previous,
        rounds=tuple(step.rounds),
        start_index=span[0],
        end_index=span[1],
        target_tokens=target,
        plan=work.plan,
        messages=messages,
    )


def _room(view: View, work: Work, previous: CompactedMessage | None) -> int:
    """Return the tokens that the conversation may take in the next request: what instructions and summary leave."""
    config = work.config
    empty = config.prompt.render(
        Step().text,
        previous_summary=previous.summary if previous else None,
        role=view.role,
        target_tokens=config.target_tokens,
        plan=work.plan,
    )
    taken = PROMPT_TOKENS + sum(count_message(message, view.ledger.count) for message in empty)
    return config.summarizer_input_tokens - taken


def _summary_tokens(view: View, compaction: CompactedMessage | None) -> int:
    return view.ledger.count(compaction.summary) if compaction else 0


def _add(total: dict[str, int], usage: Mapping[str, int] | None) -> None:
    for key, tokens in (usage or {}).items():
        total[key] = total.get(key, 0) + tokens
