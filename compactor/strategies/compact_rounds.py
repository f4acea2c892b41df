"""Rounds start..end become the one CompactedMessage: old summary + new rounds → new summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memory.overlays import CompactedMessage
from memory.rounds import Round

from ..view import View, Work
from .folding import Asking, fold

__all__ = ["compact_rounds", "compact_view"]


def compact_rounds(view: View) -> Iterator[CompactedMessage]:
    """Yield the compaction that is due; several, each reaching further, where one request cannot hold all new rounds.

    Made from the log: what was offloaded, dropped or summarised is read in full. Yields none where retaining the recent
    rounds leaves nothing to cover.
    """
    view = view.as_summarised
    work, span = _planned(view, "compact_rounds")
    return _compacted(view, work, view.rounds[span.start : span.stop])


def compact_view(view: View) -> Iterator[CompactedMessage]:
    """Yield the same made from what the view shows, so that nothing is read in full again that was reduced before.

    What the user forbade is carried on from the log all the same.
    """
    view = view.as_summarised
    work, span = _planned(view, "compact_view")
    return _compacted(view, work, [view.round(place) for place in span], view.rounds[span.start : span.stop])


def _planned(view: View, strategy: str) -> tuple[Work, range]:
    """Return what to ask with, and the places of the rounds that are due."""
    if view.work is None:
        raise RuntimeError(f"{strategy} asks a model, so it runs in a compactor, not where a prompt is composed")
    return view.work, range(view.end, view.due_end(view.work.config, view.work.mark))


def _compacted(
    view: View, work: Work, rounds: Sequence[Round], logged: Sequence[Round] = ()
) -> Iterator[CompactedMessage]:
    if not rounds:
        return
    asking = Asking(work.config.prompt, target_tokens=work.config.target_tokens)
    made = fold(view, work, asking, rounds, start=view.end, previous=view.compaction, logged=logged)
    yield from (one for one, at_boundary in made if at_boundary and one.end_index >= view.least_end)
