"""An agent's own asynchronous loop, stopped where it calls its model: for libraries whose compaction is part of it.

The library is given a model that asks `AgentLoop.answer_to`, and tools that ask `AgentLoop.result_of`; what the driver
says next goes on from there. The event loop runs while the driver waits for it, or all the time in a thread of its own
where the library does something in the background.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from .adapter import Message

__all__ = ["AgentLoop"]

T = TypeVar("T")


class AgentLoop:
    """Runs a library's agent from one call of its model to the next."""

    def __init__(self, *, background: bool = False) -> None:
        self._events = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._events.run_forever, daemon=True) if background else None
        if self._thread is not None:
            self._thread.start()
        self._run: asyncio.Task[Any] | None = None
        self._asked = asyncio.Event()
        self._prompt: list[Message] = []
        self._answer: asyncio.Future[Message] | None = None
        self._results: dict[str, asyncio.Future[str]] = {}

    # -- for the driver's side ----------------------------------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what *work* returns, done in the event loop."""
        if self._thread is None:
            return self._events.run_until_complete(work)
        return asyncio.run_coroutine_threadsafe(work, self._events).result()

    def prompt(self, new: list[Message], run: Callable[[str], Coroutine[Any, Any, Any]]) -> list[Message]:
        """Return the messages of the next call of the model: of a new *run* with what the user says, or of the one that
        waits for the results of its tools."""
        said = "\n\n".join(message["content"] for message in new if message["role"] == "user")
        results = {message["tool_call_id"]: message["content"] for message in new if message["role"] == "tool"}
        return self.do(self._next_prompt(run(said) if said else None, results))

    def answered(self, message: Message) -> None:
        """Go on with what the model said; to the end of the run where it calls no tool."""
        self.do(self._go_on(message))

    def close(self) -> None:
        self.do(self._end())
        if self._thread is not None:
            self._events.call_soon_threadsafe(self._events.stop)
            self._thread.join()
        self._events.close()

    async def _next_prompt(self, run: Coroutine[Any, Any, Any] | None, results: Mapping[str, str]) -> list[Message]:
        if run is not None:
            await self._end()
            self._asked.clear()
            self._run = asyncio.create_task(run)
        if self._run is None:
            raise RuntimeError("results of tools came, and no run waits for any")
        for call, result in results.items():
            self._result(call).set_result(result)
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait([self._run, asked], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if self._run.done():
            self._run.result()
            raise RuntimeError("the agent's run ended without a call of its model")
        return self._prompt

    async def _go_on(self, message: Message) -> None:
        if self._answer is None or self._run is None:
            raise RuntimeError("the agent's run waits for no answer")
        answer, self._answer = self._answer, None
        self._asked.clear()  # before the run goes on: it may ask again while the driver is elsewhere
        answer.set_result(message)
        if not message.get("tool_calls"):
            await self._run

    async def _end(self) -> None:
        """A run that failed midway, or whose answer never came, is over."""
        self._results.clear()
        if self._run is not None and not self._run.done():
            self._run.cancel()
            await asyncio.wait([self._run])
        self._run = None

    # -- for the library's side ---------------------------------------------------------------------------------------

    async def answer_to(self, prompt: list[Message]) -> Message:
        """Return what the agent's model answers to *prompt*."""
        self._prompt, self._answer = prompt, asyncio.get_running_loop().create_future()
        self._asked.set()
        return await self._answer

    async def result_of(self, call: str) -> str:
        """Return what the tool's *call* gives."""
        return await self._result(call)

    def _result(self, call: str) -> asyncio.Future[str]:
        if call not in self._results:
            self._results[call] = asyncio.get_running_loop().create_future()
        return self._results[call]
