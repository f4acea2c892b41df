"""What a strategy that asks a model may use while one cycle lasts: it asks, checks the answer and tells of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from memory.events import Event

from .acceptance import Source, accept
from .config import CompactorConfig
from .events import Prepared, Started
from .summarizers.base import Summary, SummaryRequest
from .view import View

__all__ = ["Ask", "CycleWork"]

#: Asks the summarizer, within its deadline; raises what the summarizer raises.
Ask = Callable[[SummaryRequest], "str | Summary"]


@dataclass
class CycleWork:
    """The ``Work`` of one cycle."""

    config: CompactorConfig
    mark: int | None
    plan: str | None
    _ask: Ask
    _emit: Callable[[Event], None]
    _monotonic: Callable[[], float]
    #: Since the last publication: when it began, and the requests that were made.
    began: float = field(default=0.0, init=False)
    requests: int = field(default=0, init=False)

    def summarize(self, request: SummaryRequest, source: Source, view: View) -> Summary:
        before = source.previous_tokens + source.tokens
        generation = view.compaction.generation if view.compaction else 0
        span = {"role": view.role, "generation": generation, "start": request.start_index, "end": request.end_index}
        self._emit(Started(**span, tokens_before=before))
        self.requests += 1
        began = self._monotonic()
        summary, tokens = accept(
            self._ask(request), source, target_tokens=request.target_tokens, count=view.ledger.count
        )
        self._emit(
            Prepared(
                **span,
                tokens_before=before,
                tokens_after=tokens,
                seconds=self._monotonic() - began,
                usage=summary.usage,
                model=summary.model,
            )
        )
        return summary
