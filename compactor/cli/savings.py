"""The figures of demo and replay: sums over a compactor's events, and counts and checks of its prompts.

Prompts are counted and checked from their messages alone; the report of ``compose`` is used for its savings only.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, Self, TypeVar

from rich.table import Table

from memory.events import Event

from ..compose import Prompt
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
from .terminal import make_table, one_line

Messages = Sequence[Mapping[str, Any]]

#: The levels at which ``compose`` shortens a prompt, from light to heavy, and what each does.
LEVELS = {
    "offloaded": "large texts shown as a preview",
    "cleared": "old tool results shown as a line",
    "left_out": "rounds left out, entirely or in part",
    "clipped": "texts clipped to head and tail",
}
#: Longer names are folded: on a terminal of 80 columns the figures beside them need the room.
_MAX_NAME = 18


@dataclass(frozen=True, slots=True)
class _Sums:
    def __add__(self, other: Self) -> Self:
        return type(self)(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Saving(_Sums):
    """The savings of one strategy: tokens before and after, as counted when each overlay was published.

    For a compaction these are the tokens of the covered rounds and the previous summary; for a reduction, of its round.
    """

    #: Published compactions and reductions.
    overlays: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    #: Requests to the summarizer, including those whose answer was rejected.
    requests: int = 0
    seconds: float = 0.0

    @property
    def tokens_saved(self) -> int:
        return self.tokens_before - self.tokens_after

    def figures(self) -> dict[str, Any]:
        plain = asdict(self)
        seconds = plain.pop("seconds")
        return plain | {"tokens_saved": self.tokens_saved, "background_seconds": round(seconds, 3)}


@dataclass(frozen=True, slots=True)
class LevelSaving(_Sums):
    """The work of one level of shortening. It stores nothing, so it repeats the same work for each prompt."""

    prompts: int = 0
    #: Shortened texts, or rounds left out entirely or in part.
    times: int = 0
    tokens_saved: int = 0


def count_levels(prompt: Prompt) -> dict[str, LevelSaving]:
    """Return the work of each level for *prompt*. A text counts for the heaviest level applied to it."""
    report = prompt.report
    saved: dict[str, list[int]] = {name: [] for name in LEVELS}
    for reduced in report.reductions:
        if not reduced.published:  # a published one counts for its strategy
            saved[reduced.by].append(reduced.tokens_before - reduced.tokens_after)
    levels = {name: LevelSaving(int(bool(tokens)), len(tokens), sum(tokens)) for name, tokens in saved.items()}
    if report.omitted_rounds:
        rest = report.tokens_before - report.tokens_after - sum(level.tokens_saved for level in levels.values())
        levels["left_out"] = LevelSaving(1, len(report.omitted_rounds), rest)
    return levels


SumsT = TypeVar("SumsT", bound=_Sums)


def sum_by_name(parts: Iterable[Mapping[str, SumsT]]) -> dict[str, SumsT]:
    """Add up the values that have the same name. Names keep the order of their first appearance."""
    sums: dict[str, SumsT] = {}
    for part in parts:
        for name, more in part.items():
            sums[name] = sums[name] + more if name in sums else more
    return sums


def saving_figures(strategies: Mapping[str, Saving], levels: Mapping[str, LevelSaving]) -> dict[str, Any]:
    return {
        "strategies": {name: saving.figures() for name, saving in strategies.items()},
        "ladder": {name: asdict(level) for name, level in levels.items()},
    }


# --- prompts: counts and promises, taken from the messages ---


@dataclass
class PromptFigures:
    """Sums over all prompts of one role."""

    #: Tokens of the last prompt, and of the same messages with nothing compacted.
    prompt_tokens: int = 0
    raw_tokens: int = 0
    prompts: int = 0
    prompts_over_budget: int = 0
    #: Tool calls without their result and results without their call, in any prompt.
    torn_calls: int = 0
    #: Prompts that lack the newest user message, or do not show it as it was said.
    queries_not_whole: int = 0
    #: Tokens of all prompts, and of the same messages with nothing compacted.
    tokens_of_all_prompts: int = 0
    raw_tokens_of_all_prompts: int = 0
    levels: dict[str, LevelSaving] = field(default_factory=lambda: dict.fromkeys(LEVELS, LevelSaving()))

    def add(self, prompt: Prompt, tokens: int, raw_tokens: int, *, budget: int, torn: int, whole: bool) -> None:
        self.prompt_tokens, self.raw_tokens = tokens, raw_tokens
        self.prompts += 1
        self.prompts_over_budget += tokens > budget
        self.torn_calls += torn
        self.queries_not_whole += not whole
        self.tokens_of_all_prompts += tokens
        self.raw_tokens_of_all_prompts += raw_tokens
        self.levels = sum_by_name((self.levels, count_levels(prompt)))

    def figures(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "levels"}


def count_torn_calls(messages: Messages) -> int:
    """Return how many tool calls lack their result, and how many results their call.

    As for a provider, results must follow their call at once. Results of the last call may still be missing.
    """
    wrong, unanswered = 0, Counter[str]()
    for message in messages:
        if message["role"] == "tool":
            call_id = str(message.get("tool_call_id"))
            wrong += unanswered[call_id] < 1
            unanswered[call_id] = max(unanswered[call_id] - 1, 0)
        else:
            wrong += unanswered.total()
            unanswered = _call_ids(message)
    return wrong


def count_open_calls(messages: Messages) -> int:
    """Return how many calls at the end of *messages* have no result yet."""
    answered = Counter[str]()
    for message in reversed(messages):
        if message["role"] != "tool":
            return (_call_ids(message) - answered).total()
        answered[str(message.get("tool_call_id"))] += 1
    return 0


def is_whole(message: Mapping[str, Any], messages: Messages, earlier: Messages = ()) -> bool:
    """Return whether *messages* contain *message* unchanged, with none of the *earlier* user messages after it.

    The order matters because users repeat themselves: an old "yes" must not count as the newest one.
    """
    index = max((index for index, one in enumerate(messages) if one == message), default=None)
    return index is not None and not any(one in earlier for one in messages[index + 1 :] if one["role"] == "user")


def _call_ids(message: Mapping[str, Any]) -> Counter[str]:
    calls = message.get("tool_calls") if message["role"] == "assistant" else None
    return Counter(str(call["id"]) for call in calls or () if isinstance(call, Mapping) and "id" in call)


# --- events: counts, and one sentence for each ---


@dataclass(eq=False)
class Watch:
    """An event hook that counts the events of one compactor. Thread-safe."""

    #: Listed among the savings in this order, even when they save nothing.
    strategies: Sequence[Strategy] = ()
    compactions: int = 0
    failures: int = 0
    #: Published reductions.
    reductions: int = 0
    #: Time from the first request to publication, all on the compactor's own thread.
    seconds: float = 0.0
    #: The sentence of the newest event that has one.
    last: str = ""
    _news: list[str] = field(default_factory=list)
    _outcomes: int = 0
    _savings: dict[str, Saving] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)  # guards all but `strategies`

    def __call__(self, event: Event) -> None:
        with self._changed:
            if text := describe_event(event):
                self.last = text
                self._news.append(text)
            self.compactions += isinstance(event, Published)
            self.reductions += isinstance(event, Reduced)
            self.failures += isinstance(event, Failed)
            if isinstance(event, (Published, Reduced)):
                self.seconds += event.seconds
                self._add(event.strategy, Saving(1, event.tokens_before, event.tokens_after, seconds=event.seconds))
            elif isinstance(event, Started) or (isinstance(event, Rejected) and event.attempt < event.attempts):
                self._add(event.strategy, Saving(requests=1))  # a rejected answer is asked for again
            if isinstance(event, (Published, Failed, Discarded, Skipped, Stopped)):
                self._outcomes += 1
                self._changed.notify_all()

    def _add(self, strategy: str, more: Saving) -> None:
        self._savings[strategy] = self._savings.get(strategy, Saving()) + more

    @property
    def savings(self) -> dict[str, Saving]:
        """The savings of each strategy so far."""
        with self._changed:
            return {name_of(strategy): Saving() for strategy in self.strategies} | self._savings

    def figures(self) -> dict[str, Any]:
        with self._changed:
            return {"compactions": self.compactions, "reductions": self.reductions, "failures": self.failures}

    def take_news(self) -> list[str]:
        """Return the sentences of the events since the last call, oldest first."""
        with self._changed:
            news, self._news = self._news, []
            return news

    @property
    def outcomes(self) -> int:
        """Number of finished cycles, whatever their outcome."""
        with self._changed:
            return self._outcomes

    def wait_for_outcome(self, after: int, timeout: float) -> bool:
        """Wait until more than *after* cycles have finished; return False after *timeout* seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._outcomes > after, timeout)


def describe_event(event: Event) -> str:
    """Return a sentence that describes *event*; "" for events that only say why there was nothing to do."""
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
        case Discarded() if event.reason != "overlaid":  # else something shorter is already there
            return f"a summary came too late and was discarded ({event.reason})"
        case Stopped():
            return f"stopped ({event.reason})"
        case Reduced():
            posts = "a post reads shorter" if event.posts < 2 else f"{event.posts} posts {event.kind}"
            return f"{event.strategy}: {posts}, {event.tokens_before:,} -> {event.tokens_after:,} tokens"
        case StrategyFailed():
            return f"{event.strategy} made nothing this time ({event.error}); the next strategy is tried"
        case Exhausted():
            return f"all {event.strategies} strategies together were not enough ({event.tokens:,} tokens)"
        case _:
            return ""


# --- tables ---


def strategy_table(savings: Mapping[str, Saving]) -> Table:
    rows = [
        (
            _fold_name(one_line(name)),
            *astuple(saving)[:3],
            saving.tokens_saved,
            saving.requests,
            f"{saving.seconds:.1f} s",
        )
        for name, saving in savings.items()
    ]
    columns = ("strategy", "overlays", "before", "after", "saved", "requests", "time")
    return make_table(columns, rows, title="saved by strategies in the background", pad_edge=False)


def level_table(levels: Mapping[str, LevelSaving]) -> Table:
    rows = [(LEVELS[name], *astuple(level)) for name, level in levels.items()]
    return make_table(("level", "prompts", "times", "tokens saved"), rows, title="shortened anew in each prompt")


def _fold_name(name: str) -> str:
    """Break *name* after underscores into lines of at most ``_MAX_NAME`` characters if possible."""
    lines = [""]
    for word in re.findall(r"[^_]*_+|[^_]+", name):
        if lines[-1] and len(lines[-1] + word) > _MAX_NAME:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)
