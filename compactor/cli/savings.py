"""The figures of demo and replay: what the events of a compactor and the prompts of its role add up to.

Prompts are counted and checked from their messages alone; the report of ``compose`` is used for its savings only.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from rich.table import Table

from memory.events import Event

from ..compose import Prompt
from ..cycle import Strategy
from ..events import (
    Discarded,
    Exhausted,
    Failed,
    Published,
    Reduced,
    Rejected,
    Reverted,
    Started,
    Stopped,
    StrategyFailed,
)
from .terminal import NARROW, make_one_line, make_table

Messages = Sequence[Mapping[str, Any]]
#: Numbers by the names of the JSON document, some of them in nested mappings.
Figures = dict[str, Any]

#: The levels at which ``compose`` shortens a prompt, from light to heavy, and what each does.
LEVELS = {
    "offloaded": "large texts shown as a preview",
    "cleared": "old tool results shown as a line",
    "left_out": "rounds left out, entirely or in part",
    "clipped": "texts clipped to head and tail",
}
#: The work of one level. It stores nothing, so it repeats the same work for each prompt. ``times`` counts shortened
#: texts, or rounds left out entirely or in part.
NO_WORK: Figures = {"prompts": 0, "times": 0, "tokens_saved": 0}
#: The savings of one strategy. ``overlays`` are published compactions and reductions. Tokens are counted when each is
#: published: of a compaction those of the covered rounds and the previous summary, of a reduction those of its round.
#: ``requests`` include those whose answer was rejected; the time is that from the first request to publication.
_OF_STRATEGIES = ("overlays", "tokens_before", "tokens_after", "requests", "tokens_saved", "background_seconds")
NO_SAVING: Figures = dict.fromkeys(_OF_STRATEGIES, 0)
_OF_EVENTS = ("compactions", "reductions", "failures", "background_seconds")
_OF_PROMPTS = (
    "prompt_tokens",  # of the last prompt
    "raw_tokens",  # of the same messages with nothing compacted
    "prompts",
    "prompts_over_budget",
    "orphaned_calls",  # calls without their result and results without their call, in any prompt
    "queries_not_verbatim",  # prompts that lack the newest user message, or do not show it as it was said
    "tokens_of_all_prompts",
    "raw_tokens_of_all_prompts",
)
#: Longer names of strategies are folded: on a terminal of 80 columns the figures beside them need the room.
_MAX_NAME = 18


def add_figures(totals: Figures, more: Mapping[str, Any]) -> None:
    """Add the numbers in *more* to those of the same names in *totals*."""
    for name, value in more.items():
        if isinstance(value, Mapping):
            add_figures(totals.setdefault(name, {}), value)
        elif isinstance(value, int | float):
            totals[name] = round(totals.get(name, 0) + value, 3)


class StatsCollector:
    """The figures of one role: sums over the events of its compactor, as its event hook, and over its prompts.

    Each of *strategies* is listed, also one that saves nothing. Thread-safe.
    """

    def __init__(self, strategies: Sequence[Strategy] = ()) -> None:
        self._lock = threading.Lock()  # guards all below
        self._figures: Figures = dict.fromkeys((*_OF_EVENTS, *_OF_PROMPTS), 0) | {
            "strategies": {getattr(one, "__name__", type(one).__name__): dict(NO_SAVING) for one in strategies},
            "levels": {name: dict(NO_WORK) for name in LEVELS},
            "sizes": [],  # of each prompt: raw tokens and tokens
        }
        self._news: list[str] = []

    def __call__(self, event: Event) -> None:
        with self._lock:
            if text := describe_event(event):
                self._news.append(text)
            match event:
                case Published() | Reduced():
                    kind = "compactions" if isinstance(event, Published) else "reductions"
                    seconds, before, after = round(event.seconds, 3), event.tokens_before, event.tokens_after
                    saving = {"tokens_before": before, "tokens_after": after, "tokens_saved": before - after}
                    self._add_to_strategy(event.strategy, {"overlays": 1, "background_seconds": seconds} | saving)
                    add_figures(self._figures, {kind: 1, "background_seconds": seconds})
                case Failed():
                    self._figures["failures"] += 1
                case Started():
                    self._add_to_strategy(event.strategy, {"requests": 1})
                case Rejected() if event.attempt < event.attempts:  # the summarizer is asked again
                    self._add_to_strategy(event.strategy, {"requests": 1})

    def _add_to_strategy(self, name: str, more: Figures) -> None:
        add_figures(self._figures["strategies"].setdefault(name, dict(NO_SAVING)), more)

    def add_prompt(
        self, prompt: Prompt, tokens: int, raw_tokens: int, *, budget: int, orphaned: int, has_query: bool
    ) -> None:
        figures = {
            "prompts": 1,
            "prompts_over_budget": int(tokens > budget),
            "orphaned_calls": orphaned,
            "queries_not_verbatim": int(not has_query),
            "tokens_of_all_prompts": tokens,
            "raw_tokens_of_all_prompts": raw_tokens,
            "levels": count_levels(prompt),
        }
        with self._lock:
            self._figures |= {"prompt_tokens": tokens, "raw_tokens": raw_tokens}
            self._figures["sizes"].append([raw_tokens, tokens])
            add_figures(self._figures, figures)

    def get_figures(self) -> Figures:
        """Return a copy of all figures, as the JSON document has them."""
        with self._lock:
            return deepcopy(self._figures)

    def take_news(self) -> list[str]:
        """Return the sentences of the events since the last call, oldest first."""
        with self._lock:
            news, self._news = self._news, []
            return news


def count_levels(prompt: Prompt) -> dict[str, Figures]:
    """Return the work of each level for *prompt*. A text counts for the heaviest level applied to it."""
    report, levels = prompt.report, {name: dict(NO_WORK) for name in LEVELS}
    for reduced in report.reductions:
        if not reduced.published:  # a published one counts for its strategy
            saved = reduced.tokens_before - reduced.tokens_after
            levels[reduced.by]["prompts"] = 1
            add_figures(levels[reduced.by], {"times": 1, "tokens_saved": saved})
    if report.omitted_rounds:
        rest = report.tokens_before - report.tokens_after - sum(level["tokens_saved"] for level in levels.values())
        levels["left_out"] = {"prompts": 1, "times": len(report.omitted_rounds), "tokens_saved": rest}
    return levels


def count_orphaned_calls(messages: Messages) -> int:
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


def _call_ids(message: Mapping[str, Any]) -> Counter[str]:
    calls = message.get("tool_calls") if message["role"] == "assistant" else None
    return Counter(str(call["id"]) for call in calls or () if isinstance(call, Mapping) and "id" in call)


def is_verbatim(message: Mapping[str, Any], messages: Messages, earlier: Iterable[Mapping[str, Any]] = ()) -> bool:
    """Return whether *messages* contain *message* unchanged, with none of the *earlier* user messages after it.

    The order matters because users repeat themselves: an old "yes" must not count as the newest one.
    """
    index = max((index for index, one in enumerate(messages) if one == message), default=None)
    return index is not None and not any(one in earlier for one in messages[index + 1 :] if one["role"] == "user")


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
        case Discarded() if event.reason != "already_covered":  # else something shorter is already there
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


def make_strategy_table(strategies: Mapping[str, Figures]) -> Table:
    """Return a table of the ``strategies`` in a role's figures."""
    columns = ("strategy", "overlays", "before", "after", "saved", "requests", "time")
    names = ("overlays", "tokens_before", "tokens_after", "tokens_saved", "requests")
    rows = []
    for strategy, saving in strategies.items():
        label = make_one_line(strategy)
        if len(label) > _MAX_NAME:  # break the line after underscores
            label = re.sub(rf".{{1,{_MAX_NAME - 1}}}_(?=.)", r"\g<0>\n", label)
        rows.append((label, *(saving[name] for name in names), f"{saving['background_seconds']:.1f} s"))
    return make_table(columns, rows, title="saved by strategies in the background", **NARROW)


def make_level_table(levels: Mapping[str, Figures]) -> Table:
    """Return a table of the ``levels`` in a role's figures."""
    rows = [(LEVELS[name], *level.values()) for name, level in levels.items()]
    return make_table(("level", "prompts", "times", "tokens saved"), rows, title="shortened anew in each prompt")
