"""OpenAI Agents SDK: a filter that shortens each model call, and nothing that the session keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agents.run import CallModelData, ModelInputData

from ..formats import responses
from .base import Converted, Group, Message

__all__ = ["Compaction"]

Item = Any  # one of the SDK's input items: a mapping


class Compaction(Converted[Item]):
    """Filter of a run: ``RunConfig(call_model_input_filter=Compaction(budget=100_000))``.

    The SDK does not tell a filter whose conversation it is: use one object for each conversation, or give all of
    them *session_id*, a function of the run's context.
    """

    def __init__(self, budget: int, *, session_id: Any = "default", **options: Any) -> None:
        super().__init__(budget, **options)
        self._session_id = session_id

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        session_id = self._session_id(data.context) if callable(self._session_id) else self._session_id
        given = data.model_data
        system, items = await self.afit(session_id, given.input, system=given.instructions)
        return ModelInputData(input=items, instructions=system or None)

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        return [Group(items, responses.to_chat(items))]

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return list(responses.from_chat(messages)["input"])
