"""This library, at its documented settings: by its defaults, and by each of the ways that it has to be cheap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean
from typing import Any

import openai  # noqa: F401  (the summarizer imports it when it is first asked: in somebody's turn)

from benchmarks.comparison.adapter import Adapter, Message, Setting
from compactor import (
    CompactorConfig,
    ContextCompactor,
    OpenAISummarizer,
    State,
    Strategy,
    compact_view,
    compose,
    count_tokens,
    offload_large,
)
from compactor.cost import Prices, cost_optimal
from compactor.cost.publication import deferred
from compactor.events import CostEvaluated, Failed, Prepared, Published
from compactor.strategies.compact_notes import compact_notes
from compactor.summarizers.base import Style
from compactor.testing import FakeClock
from memory import Memory
from memory.events import Event

__all__ = ["VARIANTS", "Ours", "make"]

#: The share of the budget at which a compaction is due at the latest: one result of a tool may be the rest.
USED = 0.85
#: Tokens by which notes may grow, change by change, before they are all written anew.
GROWTH = 1_200
#: Seconds in which a model writes a token, about.
WRITING = 0.015
_START = datetime(2026, 1, 1, tzinfo=UTC)
_AT_WORK = (State.LOOKING, State.COMPACTING)


class Ours(Adapter):
    """A Memory, a compactor beside it and compose(), as the README has them; time is the server's."""

    background = True

    def __init__(self, setting: Setting, name: str, config: CompactorConfig, style: str | None, **more: Any) -> None:
        self.name = name
        self.version = _version()
        self._setting, self._config = setting, config
        self._clock = FakeClock(_START)
        self._now = _START
        self._memory = Memory(clock=lambda: self._now)
        asking: dict[str, Any] = {"style": style} if style is not None else {}
        self._summarizer = OpenAISummarizer(setting.model, base_url=setting.base_url, api_key="none", **asking)
        self._compactor = ContextCompactor.for_role(
            self._memory, "assistant", config, self._summarizer, clock=self._clock, rng=lambda: 0.5, **more
        )
        self._continues = float(style != "separate")
        self._published: list[Published] = []
        self._weighed: list[CostEvaluated] = []
        self._asked: list[range] = []
        self._failures = 0
        self._compactor.on_event(self._note)
        self._compactor.start()

    def _note(self, event: Event) -> None:
        if isinstance(event, Published):
            self._published.append(event)
        elif isinstance(event, Prepared) and not event.major and not event.reused:
            self._asked.append(range(event.start - 1, event.end))
        elif isinstance(event, CostEvaluated):
            self._weighed.append(event)
        elif isinstance(event, Failed):
            self._failures += 1

    def prompt(self, new: list[Message]) -> list[Message]:
        for message in new:
            self._memory.append(message)
        setting = self._setting
        return compose(self._memory, budget=setting.budget, system=setting.system, tools=setting.tools).messages

    def answered(self, message: Message) -> None:
        self._memory.append(message)
        if not message.get("tool_calls"):  # the turn is over: it may be compacted before the user says more
            self._memory.finish_round(self._memory.conversation.rounds[-1])

    def wait_idle(self, timeout: float) -> bool:
        # While it backs off, all that it can do now is done.
        return self._compactor.wait_idle(timeout) or self._compactor.status().state not in _AT_WORK

    def advanced(self, now: float) -> None:
        self._clock.advance(max(now - self._clock.monotonic(), 0.0))
        self._now = _START + timedelta(seconds=self._clock.monotonic())

    def wakes_at(self) -> float | None:
        return next((self._clock.monotonic() + seconds for seconds in self._clock.waiting), None)

    def kept(self) -> list[str]:
        return [message["content"] or "" for message in self._memory.messages()]

    def measures(self) -> dict[str, float]:
        made = self._published
        minor = [one for one in made if not one.major]
        sizes = [one for one in self._weighed if one.is_due]
        found: dict[str, float] = {
            "continues": self._continues,
            "compactions": len(made),
            "majors": len(made) - len(minor),
            "failures": self._failures,
            "retained": 1 * float(self._setting.options["round"]),
            "sent_minor": sum(one.sent_tokens for one in minor),
            "sent_major": sum(one.sent_tokens for one in made if one.major),
        }
        if self._asked:
            found["sent_times"] = self._sent_times()
        if sizes:
            found |= {
                "retained": fmean(one.retained for one in sizes),
                "summary": fmean(one.summary for one in sizes),
                "price": fmean(one.price for one in sizes),
                "best": fmean(one.best or 0 for one in sizes),
                "grown": fmean(one.grown for one in sizes),
                "latency_calls": fmean(one.latency_calls for one in sizes),
                "per_call": fmean(one.per_call for one in sizes),
            }
        return found

    def _sent_times(self) -> float:
        """Return how often a token that a minor compaction covered was sent for that, on average."""
        rounds = self._memory.conversation.rounds
        length = [sum(count_tokens(post.message) for post in round_.post_list) for round_ in rounds]
        sent = sum(length[place] for places in self._asked for place in places)
        return sent / max(sum(length[place] for place in set().union(*self._asked)), 1)

    def close(self) -> None:
        self._compactor.stop(timeout=0)  # a request that is held is answered when the server ends, which waits for us
        self._summarizer.close()


def _version() -> str:
    try:
        return version("context-compactor")
    except PackageNotFoundError:
        return "this tree"


def _default(setting: Setting) -> Adapter:
    return Ours(setting, "ours, by default", CompactorConfig(max_tokens=setting.budget, model=setting.model), None)


def _cost_optimal(
    name: str, style: Style, *, notes: int | None = None, is_deferred: bool = False, strategies: Sequence[Strategy] = ()
) -> Callable[[Setting], Adapter]:
    """Return the maker of a variant with ``cost_optimal``: it asks in *style*; *notes* is how many tokens of changes it
    expects, if it keeps notes; with *is_deferred*, a compaction is shown when that is cost-optimal, too."""
    if notes is not None:
        strategies = [compact_notes]

    def make(setting: Setting) -> Adapter:
        prices = Prices(**setting.options["prices"])
        more: dict[str, Any] = {"strategies": strategies} if strategies else {}
        if is_deferred:
            more["publish"] = deferred(prices, budget=setting.budget)
        return Ours(
            setting,
            f"ours, {name}",
            CompactorConfig(
                retain_recent=_rounds_of(setting, setting.summary_tokens if notes is None else notes),
                target_tokens=setting.summary_tokens + (0 if notes is None else GROWTH),
                summarizer_input_tokens=min(setting.window, 100_000),
                model=setting.model,
            ),
            style,
            trigger=cost_optimal(prices, budget=int(USED * setting.budget), style=style, delta_tokens=notes),
            **more,
        )

    return make


def _rounds_of(setting: Setting, answer: int) -> int:
    """Return how many of the newest rounds stay as they are, the open one included.

    So many that at least what the scenario wants retained stands behind a summary when it is shown; the turns that go
    by while a model writes *answer* tokens are part of that. That one alone, where nothing is asked for.
    """
    retained = setting.options["retained"]
    if retained is None:
        return 1
    meanwhile = WRITING * answer / float(setting.options["seconds"])
    return max(round(float(retained) / float(setting.options["round"]) - meanwhile) + 1, 1)


def _auto(setting: Setting) -> Adapter:
    return Ours(setting, "ours, newcomer", None, None)


VARIANTS: dict[str, Callable[[Setting], Adapter]] = {
    "default": _default,
    "auto": _auto,
    "auto_other": lambda setting: _auto(__import__("dataclasses").replace(setting, model="other")),
    "separate": _cost_optimal("cost-optimal, separate", "separate"),
    "continue": _cost_optimal("cost-optimal, continuing", "continue"),
    "notes": _cost_optimal("cost-optimal, notes", "separate", notes=60),
    "notes_continue": _cost_optimal("cost-optimal, notes, continuing", "continue", notes=60),
    "deferred": _cost_optimal("cost-optimal, separate, deferred", "separate", is_deferred=True),
    "offload": _cost_optimal("cost-optimal, offloading", "separate", strategies=[offload_large(), compact_view]),
}


def make(setting: Setting) -> Adapter:
    return VARIANTS[setting.variant or "default"](setting)
