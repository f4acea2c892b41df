"""The control with no model: as many of the newest messages as fit the budget, and no answer of a tool alone."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting

__all__ = ["SlidingWindow", "make"]


class SlidingWindow(Adapter):
    name = "sliding window"
    settings = "the newest messages that fit the budget, counted exactly"

    def __init__(self, setting: Setting) -> None:
        from compactor import count_message, count_tokens
        from compactor.tokens import MESSAGE_TOKENS, PROMPT_TOKENS

        self._count = lambda message: count_message(message, count_tokens)
        self._system: Message = {"role": "system", "content": setting.system}
        tools = sum(MESSAGE_TOKENS + count_tokens(_dumped(tool)) for tool in setting.tools)
        self._room = setting.budget - PROMPT_TOKENS - tools - self._count(self._system)
        self._window: list[Message] = []
        self._costs: list[int] = []

    def prompt(self, new: list[Message]) -> list[Message]:
        for message in new:
            self._add(message)
        cut, left = 0, sum(self._costs)
        while left > self._room or (cut < len(self._window) and self._window[cut]["role"] != "user"):
            left -= self._costs[cut]
            cut += 1
        del self._window[:cut], self._costs[:cut]
        return [self._system, *self._window]

    def answered(self, message: Message) -> None:
        self._add(message)

    def _add(self, message: Message) -> None:
        self._window.append(message)
        self._costs.append(self._count(message))

    def kept(self) -> list[str]:
        return [message["content"] or "" for message in self._window]


def _dumped(tool: Any) -> str:
    return json.dumps(tool, ensure_ascii=False)


def make(setting: Setting) -> Adapter:
    return SlidingWindow(setting)
