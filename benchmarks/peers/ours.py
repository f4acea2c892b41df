"""This library, at its documented settings: by its defaults, and by each of the ways that it has to be cheap."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting
from compactor import CompactorConfig, ContextCompactor, OpenAISummarizer, State, compose
from compactor.events import Published
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
        self._compactor.on_event(self._note)
        self._compactor.start()

    def _note(self, event: Event) -> None:
        if isinstance(event, Published):
            self._published.append(event)

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
        return {"compactions": len(self._published)}

    def close(self) -> None:
        self._compactor.stop()
        self._summarizer.close()


def _version() -> str:
    try:
        return version("context-compactor")
    except PackageNotFoundError:
        return "this tree"


def _by_default(setting: Setting) -> Adapter:
    config = CompactorConfig(max_tokens=setting.budget, model=setting.model)
    return Ours(setting, "ours, by default", config, None)


VARIANTS: dict[str, Callable[[Setting], Adapter]] = {"default": _by_default}


def make(setting: Setting) -> Adapter:
    return VARIANTS[setting.variant or "default"](setting)
