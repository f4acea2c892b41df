"""The control that every cost is relative to: the whole conversation, each time."""

from __future__ import annotations

from benchmarks.comparison.adapter import Adapter, Message, Setting

__all__ = ["Nothing", "make"]


class Nothing(Adapter):
    name = "no compaction"
    settings = "every message, each time"

    def __init__(self, setting: Setting) -> None:
        self._messages: list[Message] = [{"role": "system", "content": setting.system}]

    def prompt(self, new: list[Message]) -> list[Message]:
        self._messages += new
        return list(self._messages)

    def answered(self, message: Message) -> None:
        self._messages.append(message)

    def kept(self) -> list[str]:
        return [message["content"] or "" for message in self._messages]


def make(setting: Setting) -> Adapter:
    return Nothing(setting)
