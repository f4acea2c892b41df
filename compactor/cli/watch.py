"""What a compactor's events add up to, and how they read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from memory.events import Event

from ..cycle import Strategy, name_of
from ..events import (
    Discarded,
    Exhausted,
    Failed,
    Published,
    Reduced,
    Rejected,
    Reverted,
    Skipped,
    Started,
    Stopped,
    StrategyFailed,
)
from .savings import Saving


@dataclass(eq=False)
class Watch:
    """Counts one compactor's events, from whatever thread they come. A hook: ``on_event=Watch()``."""

    #: Those that have a place among the savings, in this order, though they may save nothing.
    strategies: Sequence[Strategy] = ()
    compactions: int = 0
    failures: int = 0
    #: Reductions that were published.
    reductions: int = 0
    #: Seconds from first requests to publications, all of them on the compactor's own thread.
    seconds: float = 0.0
    #: Its last event that says something to a reader.
    last: str = ""
    _news: list[str] = field(default_factory=list)
    _outcomes: int = 0
    _savings: dict[str, Saving] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)  # guards all above but the first

    def __call__(self, event: Event) -> None:
        with self._changed:
            if said := sentence(event):
                self.last = said
                self._news.append(said)
            if isinstance(event, Published):
                self.compactions += 1
            elif isinstance(event, Reduced):
                self.reductions += 1
            elif isinstance(event, Failed):
                self.failures += 1
            self._count(event)
            if isinstance(event, (Published, Failed, Discarded, Skipped, Stopped)):
                self._outcomes += 1
                self._changed.notify_all()

    def _count(self, event: Event) -> None:
        """Add *event* to what its strategy saved. Called with the lock held."""
        if isinstance(event, (Published, Reduced)):
            more = Saving(1, event.tokens_before, event.tokens_after, seconds=event.seconds)
            self.seconds += event.seconds
        elif isinstance(event, Started) or (isinstance(event, Rejected) and event.attempt < event.attempts):
            more = Saving(requests=1)  # what is refused is asked for again
        else:
            return
        self._savings[event.strategy] = self._savings.get(event.strategy, Saving()) + more

    @property
    def savings(self) -> dict[str, Saving]:
        """What each strategy has saved so far."""
        with self._changed:
            return {name_of(strategy): Saving() for strategy in self.strategies} | self._savings

    def news(self) -> list[str]:
        """Return what its events since the last call say, oldest first."""
        with self._changed:
            said, self._news = self._news, []
            return said

    @property
    def outcomes(self) -> int:
        """How many cycles have come to an end, one way or another."""
        with self._changed:
            return self._outcomes

    def wait_for_outcome(self, after: int, timeout: float) -> bool:
        """Return True as soon as more than *after* cycles have ended; False if none does in *timeout* seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._outcomes > after, timeout)


def sentence(event: Event) -> str:
    """Return what *event* says to a reader; nothing for those that only say why nothing was to be done."""
    match event:
        case Started():
            return f"compacting rounds {event.start}-{event.end} in the background ({event.tokens_before:,} tokens)"
        case Published():
            return (
                f"rounds {event.start}-{event.end} now read as a summary:"
                f" {event.tokens_before:,} -> {event.tokens_after:,} tokens, {event.seconds:.1f} s"
            )
        case Failed():
            return f"no summary this time ({event.error}); next try in {event.retry_in:.0f} s"
        case Reverted(end=0):
            return "reverted: all rounds are as they were said again"
        case Reverted():
            return f"reverted: the summary covers rounds 1-{event.end} again"
        case Discarded(reason="overlaid"):
            return ""  # something that reads shorter stands there already
        case Discarded():
            return f"a summary came too late and was discarded ({event.reason})"
        case Stopped():
            return f"stopped ({event.reason})"
        case _:
            return _of_strategies(event)


def _of_strategies(event: Event) -> str:
    match event:
        case Reduced() if event.posts < 2:
            return f"{event.strategy}: a post reads shorter, {event.tokens_before:,} -> {event.tokens_after:,} tokens"
        case Reduced():
            return (
                f"{event.strategy}: {event.posts} posts {event.kind},"
                f" {event.tokens_before:,} -> {event.tokens_after:,} tokens"
            )
        case StrategyFailed():
            return f"{event.strategy} made nothing this time ({event.error}); the next strategy is tried"
        case Exhausted():
            return f"all {event.strategies} strategies together were not enough ({event.tokens:,} tokens)"
        case _:
            return ""
