"""This library, at its documented settings: by its defaults, and by each of the ways that it has to be cheap."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean
from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting
from compactor import CompactorConfig, ContextCompactor, OpenAISummarizer, State, compose
from compactor.cost import Prices, cheapest
from compactor.cost.publication import when_cheapest
from compactor.events import Failed, Published, Weighed
from compactor.strategies.compact_notes import compact_notes
from compactor.testing import FakeClock
from memory import Memory
from memory.events import Event

__all__ = ["VARIANTS", "Ours", "make"]

_START = datetime(2026, 1, 1, tzinfo=UTC)


class Ours(Adapter):
    """A Memory, a compactor beside it and compose(), as the README has them; time is the server's."""

    background = True

    def __init__(self, setting: Setting, name: str, config: CompactorConfig, style: str | None, **more: Any) -> None:
        self.name = name
        self.version = _version()
        self._setting = setting
        self._clock = FakeClock(_START)
        self._memory = Memory(clock=lambda: _START + timedelta(seconds=self._clock.monotonic()))
        asking: dict[str, Any] = {"style": style} if style is not None else {}
        self._summarizer = OpenAISummarizer(setting.model, base_url=setting.base_url, api_key="none", **asking)
        self._compactor = ContextCompactor.for_role(
            self._memory, "assistant", config, self._summarizer, clock=self._clock, rng=lambda: 0.5, **more
        )
        self._published: list[Published] = []
        self._weighed: list[Weighed] = []
        self._failures = 0
        self._compactor.on_event(self._note)
        self._compactor.start()

    def _note(self, event: Event) -> None:
        if isinstance(event, Published):
            self._published.append(event)
        elif isinstance(event, Weighed):
            self._weighed.append(event)
        elif isinstance(event, Failed):
            self._failures += 1

    def prompt(self, new: list[Message]) -> list[Message]:
        for message in new:
            self._memory.append(message)
        setting = self._setting
        return compose(
            self._memory, budget=setting.budget, system=setting.system, tools=setting.tools, model=setting.model
        ).messages

    def answered(self, message: Message) -> None:
        self._memory.append(message)
        if not message.get("tool_calls"):  # the turn is over: it may be compacted before the user says more
            self._memory.finish_round(self._memory.conversation.rounds[-1])

    def busy(self) -> int:
        return int(self._compactor.status().state is State.COMPACTING)

    def advanced(self, now: float) -> None:
        self._clock.advance(now - self._clock.monotonic())

    def kept(self) -> list[str]:
        return [message["content"] or "" for message in self._memory.messages()]

    def measures(self) -> dict[str, float]:
        made = self._published
        minor = [one for one in made if not one.major]
        sizes = [one for one in self._weighed if one.holds]
        found: dict[str, float] = {
            "compactions": len(made),
            "majors": len(made) - len(minor),
            "failures": self._failures,
            "sent_minor": sum(one.sent_tokens for one in minor),
            "sent_major": sum(one.sent_tokens for one in made if one.major),
        }
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

    def close(self) -> None:
        self._compactor.stop()
        self._summarizer.close()


def _version() -> str:
    try:
        return version("context-compactor")
    except PackageNotFoundError:
        return "this tree"


def _prices() -> Prices:
    return Prices(cached=0.1, written=1.0, output=4.0, summarizer_input=1.0, summarizer_output=4.0)


def _by_default(setting: Setting) -> Adapter:
    return Ours(setting, "ours, by default", CompactorConfig(max_tokens=setting.budget, model=setting.model), None)


def _config(setting: Setting) -> CompactorConfig:
    """The defaults, but that summaries are as long as the model makes them, and requests as long as its window."""
    return CompactorConfig(
        retain_recent=setting.options.get("retain_recent", 1),
        target_tokens=setting.summary_tokens,
        summarizer_input_tokens=min(setting.window, 100_000),
        model=setting.model,
    )


def _separate(setting: Setting) -> Adapter:
    trigger = cheapest(_prices(), budget=setting.budget)
    return Ours(setting, "ours, cheapest, separate", _config(setting), "separate", trigger=trigger)


def _continue(setting: Setting) -> Adapter:
    trigger = cheapest(_prices(), budget=setting.budget, style="continue")
    return Ours(setting, "ours, cheapest, continue", _config(setting), "continue", trigger=trigger)


def _notes(setting: Setting) -> Adapter:
    trigger = cheapest(_prices(), budget=setting.budget, delta_tokens=60)
    return Ours(
        setting,
        "ours, cheapest, notes",
        _config(setting).model_copy(update={"target_tokens": 2 * setting.summary_tokens}),
        "separate",
        trigger=trigger,
        strategies=[compact_notes],
    )


def _notes_continue(setting: Setting) -> Adapter:
    trigger = cheapest(_prices(), budget=setting.budget, style="continue", delta_tokens=60)
    return Ours(
        setting,
        "ours, cheapest, notes, continue",
        _config(setting).model_copy(update={"target_tokens": 2 * setting.summary_tokens}),
        "continue",
        trigger=trigger,
        strategies=[compact_notes],
    )


def _held(setting: Setting) -> Adapter:
    trigger = cheapest(_prices(), budget=setting.budget)
    return Ours(
        setting,
        "ours, cheapest, published when cheapest",
        _config(setting),
        "separate",
        trigger=trigger,
        publish=when_cheapest(_prices(), budget=setting.budget),
    )


VARIANTS: dict[str, Callable[[Setting], Adapter]] = {
    "default": _by_default,
    "separate": _separate,
    "continue": _continue,
    "notes": _notes,
    "notes_continue": _notes_continue,
    "held": _held,
}


def make(setting: Setting) -> Adapter:
    return VARIANTS[setting.variant or "default"](setting)
