"""Pydantic AI Harness' compaction, a capability of an agent that Pydantic AI runs (pydantic-ai-harness 0.62.0).

Settings, as its page shows background compaction: `FallbackCompaction(max_fraction=0.85, background_start=0.85)` of the
budget as `context_window`, over `SummarizingCompaction` and `SlidingWindowCompaction` which keep a tenth of it (the
page's 20,000 tokens of its default window of 200,000). The summary is begun at 0.72 of the budget and taken at 0.85.
https://pydantic.dev/docs/ai/harness/compaction/
https://github.com/pydantic/pydantic-ai-harness/tree/main/pydantic_ai_harness/compaction

The agent's model is `OpenAIChatModel` over a transport that gives the driver's answers and tells no usage, so the
trigger is compared with the harness' own estimate. The messages of the run are the history of the next one.

Variants:
- `blocking`: `SummarizingCompaction(max_fraction=0.85)` alone, with the newest 20 messages, its default.
- `tiered`: `TieredCompaction` of `ClearToolResults` and `SummarizingCompaction`, cheap to expensive, as its page has
  it, at 0.85 of the budget.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting
from benchmarks.comparison.agent_loop import AgentLoop

VARIANTS = ("", "blocking", "tiered")


def make(setting: Setting) -> Adapter:
    return PydanticAI(setting)


class PydanticAI(Adapter):
    name = "pydantic-ai-harness"
    settings = "FallbackCompaction(max_fraction=0.85, background_start=0.85, context_window = budget), a tenth kept"
    background = True

    def __init__(self, setting: Setting) -> None:
        from importlib.metadata import version

        import httpx2
        from pydantic_ai import Agent, RunContext, Tool
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider
        from pydantic_ai_harness import FallbackCompaction, SlidingWindowCompaction, SummarizingCompaction
        from pydantic_ai_harness.compaction import ClearToolResults, TieredCompaction

        self.version = version("pydantic-ai-harness")
        self.background = not setting.variant
        self._loop = loop = AgentLoop(background=self.background)

        class Driven(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                answer = await loop.answer_to(json.loads(await request.aread())["messages"])
                choice = {
                    "index": 0,
                    "message": answer,
                    "finish_reason": "tool_calls" if answer.get("tool_calls") else "stop",
                }
                return httpx2.Response(
                    200,
                    json={"id": "1", "object": "chat.completion", "created": 0, "model": "agent", "choices": [choice]},
                )

        async def result(ctx: RunContext[None], **_: Any) -> str:
            return await loop.result_of(ctx.tool_call_id or "")

        driven = OpenAIProvider(
            base_url=setting.base_url, api_key="unused", http_client=httpx2.AsyncClient(transport=Driven())
        )
        asked = OpenAIProvider(base_url=setting.base_url, api_key="unused")
        summarizer = OpenAIChatModel(setting.model, provider=asked)
        kept = setting.budget // 10
        self._compaction: Any
        if self.background:
            self._compaction = FallbackCompaction[None](
                max_fraction=0.85,
                context_window=setting.budget,
                background_start=0.85,
                fallback_chain=[
                    SummarizingCompaction[None](model=summarizer, max_messages=1, keep_tokens=kept),
                    SlidingWindowCompaction[None](max_messages=1, keep_tokens=kept),
                ],
            )
        elif setting.variant == "tiered":
            self.name = f"{self.name}, tiered"
            self.settings = (
                "TieredCompaction(ClearToolResults, SummarizingCompaction, target_fraction=0.85 of the budget)"
            )
            self._compaction = TieredCompaction[None](
                tiers=[
                    ClearToolResults[None](max_tokens=1),
                    SummarizingCompaction[None](model=summarizer, max_messages=1),
                ],
                target_fraction=0.85,
                context_window=setting.budget,
            )
        else:
            self.name, self.settings = (
                f"{self.name}, blocking",
                "SummarizingCompaction(max_fraction=0.85 of the budget)",
            )
            self._compaction = SummarizingCompaction[None](
                model=summarizer, max_fraction=0.85, context_window=setting.budget
            )
        functions = [tool["function"] for tool in setting.tools]
        self._agent = Agent(
            OpenAIChatModel(setting.model, provider=driven),
            instructions=setting.system,
            tools=[
                Tool.from_schema(
                    result, one["name"], one.get("description", ""), json_schema=one["parameters"], takes_ctx=True
                )
                for one in functions
            ],
            capabilities=[self._compaction],
        )
        self._history: list[Any] = []

    async def _run(self, said: str) -> None:
        result = await self._agent.run(said, message_history=self._history, conversation_id="1")
        self._history = result.all_messages()

    def prompt(self, new: list[Message]) -> list[Message]:
        return self._loop.prompt(new, self._run)

    def answered(self, message: Message) -> None:
        self._loop.answered(message)

    def wait_idle(self, timeout: float) -> bool:
        tasks = self._tasks()
        if tasks and timeout:
            self._loop.do(asyncio.wait(tasks, timeout=timeout))
            tasks = self._tasks()
        return not tasks

    def _tasks(self) -> list[Any]:
        """Return the background compactions that have not ended."""
        if not self.background:
            return []
        return [job.task for job in list(self._compaction._background.values()) if not job.task.done()]

    def kept(self) -> list[str]:
        return [str(getattr(part, "content", "")) for message in self._history for part in message.parts]

    def close(self) -> None:
        if self.background:
            self._loop.do(self._compaction.aclose())
        self._loop.close()
