"""Rounds start..end become the one CompactedMessage: old summary + new rounds → new summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memory.overlays import CompactedMessage
from memory.rounds import Round

from ..config import CompactorConfig
from ..view import View, Work
from .folding import Asking, fold

__all__ = ["compact_rounds", "compact_view", "due_end", "planned_end"]


def compact_rounds(view: View) -> Iterator[CompactedMessage]:
    """Yield the compaction that is due; several, each reaching further, where one request cannot hold all new rounds.

    Made from the log: what was offloaded, dropped or summarised is read in full. Yields none where retaining the recent
    rounds leaves nothing to cover.
    """
    work, span = _planned(view, "compact_rounds")
    return _compacted(view, work, view.rounds[span.start : span.stop])


def compact_view(view: View) -> Iterator[CompactedMessage]:
    """Yield the same made from what the view shows, so that nothing is read in full again that was reduced before.

    What the user forbade is carried on from the log all the same.
    """
    work, span = _planned(view, "compact_view")
    return _compacted(view, work, [view.round(place) for place in span], view.rounds[span.start : span.stop])


def _planned(view: View, strategy: str) -> tuple[Work, range]:
    """Return what to ask with, and the places of the rounds that are due."""
    if view.work is None:
        raise RuntimeError(f"{strategy} asks a model, so it runs in a compactor, not where a prompt is composed")
    return view.work, range(view.end, planned_end(view, view.work))


def _compacted(
    view: View, work: Work, rounds: Sequence[Round], logged: Sequence[Round] = ()
) -> Iterator[CompactedMessage]:
    if not rounds:
        return
    asking = Asking(work.config.prompt, target_tokens=work.config.target_tokens)
    made = fold(view, work, asking, rounds, start=view.end, previous=view.compaction, logged=logged)
    yield from (compaction for compaction, at_boundary in made if at_boundary)


def planned_end(view: View, work: Work) -> int:
    """Return how many visible rounds the next compaction should cover, as many as the present one at least.

    All closed ones but the newest ``retain_recent``, the open round counted among those retained. Where the trigger
    names a number of tokens that the prompt has passed, fewer are retained: as few as it takes to reach half of it.
    """
    return due_end(view, work.config, work.mark)


def due_end(view: View, config: CompactorConfig, mark: int | None = None) -> int:
    """Return the same for whoever only looks; *mark* is the number of tokens that the prompt has passed."""
    end = max(min(view.closed, view.total - config.retain_recent), view.end)
    if mark is not None:
        ahead = view.header_tokens + (config.target_tokens or view.compaction_tokens)
        while end < view.closed and ahead + view.tokens_behind(end) > mark // 2:
            end += 1
    return end
