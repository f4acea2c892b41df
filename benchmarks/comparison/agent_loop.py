"""An agent's own asynchronous loop, stopped where it calls its model: for libraries whose compaction is part of it.

The library is given a model that asks `AgentLoop.answer_to`, and tools that ask `AgentLoop.result_of`; what the driver
says next goes on from there. One thread and one event loop, so nothing waits for another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from .adapter import Message

__all__ = ["AgentLoop"]


class AgentLoop:
    """Runs a library's agent from one call of its model to the next."""

    def __init__(self) -> None:
        self.events = asyncio.new_event_loop()
        self._run: asyncio.Task[Any] | None = None
        self._prompt: list[Message] | None = None
        self._answer: asyncio.Future[Message] | None = None
        self._results: dict[str, asyncio.Future[str]] = {}

    # -- for the driver's side ----------------------------------------------------------------------------------------

    def prompt(self, run: Coroutine[Any, Any, Any] | None, results: dict[str, str]) -> list[Message]:
        """Return the messages of the next call of the model: of a new *run*, or of one that waits for *results*."""
        self._prompt = None
        if run is not None:
            self._end()
            self._run = self.events.create_task(run)
        for call, result in results.items():
            self._result(call).set_result(result)
        self.events.run_until_complete(self._until_asked())
        if self._prompt is None:
            raise RuntimeError("the agent's loop ended without a call of its model")
        return self._prompt

    def answered(self, message: Message) -> None:
        """Go on with what the model said; to the end of the run where it calls no tool."""
        if self._answer is None or self._run is None:
            raise RuntimeError("the agent's loop waits for no answer")
        answer, self._answer = self._answer, None
        answer.set_result(message)
        if not message.get("tool_calls"):
            self.events.run_until_complete(self._run)

    def close(self) -> None:
        self._end()
        self.events.close()

    def _end(self) -> None:
        """A run that failed midway, or whose answer never came, is over."""
        self._results.clear()
        if self._run is not None and not self._run.done():
            self._run.cancel()
            self.events.run_until_complete(asyncio.wait([self._run]))
        self._run = None

    async def _until_asked(self) -> None:
        assert self._run is not None
        self._asked = asyncio.Event()
        asked = asyncio.ensure_future(self._asked.wait())
        await asyncio.wait([self._run, asked], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if self._run.done():
            self._run.result()

    # -- for the library's side ---------------------------------------------------------------------------------------

    async def answer_to(self, prompt: list[Message]) -> Message:
        """Return what the agent's model answers to *prompt*."""
        self._prompt, self._answer = prompt, self.events.create_future()
        self._asked.set()
        return await self._answer

    async def result_of(self, call: str) -> str:
        """Return what the tool's *call* gives."""
        return await self._result(call)

    def _result(self, call: str) -> asyncio.Future[str]:
        if call not in self._results:
            self._results[call] = self.events.create_future()
        return self._results[call]
