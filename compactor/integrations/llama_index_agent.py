"""LlamaIndex: an agent that keeps each model call within the budget, also during a long turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, FunctionAgent
from llama_index.core.llms import ChatMessage

from ..formats.parts import make_tool
from .llama_index import History

__all__ = ["CompactingAgent"]


class CompactingAgent(FunctionAgent):
    """A ``FunctionAgent`` for memories of ``Compaction.make_memory``. With other memories, it adds nothing.

    A ``FunctionAgent`` keeps the running turn's calls and results outside its memory and always sends all of them. This
    one lets the memory's ``Compaction`` fit them into the budget, together with history, system prompt and tools. The
    kept messages do not change. By default, its own model summarizes.
    """

    async def take_step(self, ctx: Any, llm_input: list[ChatMessage], tools: Sequence[Any], memory: Any) -> AgentOutput:
        turn = await ctx.store.get(self.scratchpad_key, default=[])
        history = await memory.aget_all() if isinstance(memory, History) else []
        if not history or llm_input[-1] != history[-1]:  # not the memory's messages
            return await super().take_step(ctx, llm_input, tools, memory)
        metadata = [one.metadata for one in tools]
        fitted = await memory.compaction.afit(
            memory.chat_store_key,
            [*history, *turn],
            system=self.system_prompt or "",
            model=self.llm,
            tools=[make_tool(one.get_name(), one.description, one.get_parameters_dict()) for one in metadata],
        )
        shown = [*([ChatMessage(fitted.system, role="system")] if fitted.system else []), *fitted.items]
        await ctx.store.set(self.scratchpad_key, [])  # the base class would add its contents to the prompt
        try:
            return await super().take_step(ctx, shown, tools, memory)
        finally:
            added = await ctx.store.get(self.scratchpad_key, default=[])
            await ctx.store.set(self.scratchpad_key, [*turn, *added])
