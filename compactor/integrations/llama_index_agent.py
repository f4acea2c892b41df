"""LlamaIndex: an agent whose model reads within the budget also while a turn goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, FunctionAgent
from llama_index.core.llms import ChatMessage

from ..formats.parts import make_tool
from .llama_index import History

__all__ = ["CompactingAgent"]


class CompactingAgent(FunctionAgent):
    """A ``FunctionAgent`` for memories of ``Compaction.make_memory``; with others it is one.

    That keeps the calls and results of the running turn beside its memory, and shows them whole. Here the model reads
    what the memory's ``Compaction`` makes of them, the history, the system prompt and the tools; they stay where they
    are.
    """

    async def take_step(self, ctx: Any, llm_input: list[ChatMessage], tools: Sequence[Any], memory: Any) -> AgentOutput:
        turn = await ctx.store.get(self.scratchpad_key, default=[])
        history = await memory.aget_all() if isinstance(memory, History) else []
        if not turn or not history or llm_input[-1] != history[-1]:  # the framework asks with messages of its own
            return await super().take_step(ctx, llm_input, tools, memory)
        told = [one.metadata for one in tools]
        fitted = await memory.compaction.afit(
            memory.chat_store_key,
            [*history, *turn],
            system=self.system_prompt or "",
            tools=[make_tool(one.get_name(), one.description, one.get_parameters_dict()) for one in told],
        )
        shown = [*([ChatMessage(fitted.system, role="system")] if fitted.system else []), *fitted.items]
        await ctx.store.set(self.scratchpad_key, [])  # what is in there would be added
        try:
            return await super().take_step(ctx, shown, tools, memory)
        finally:
            added = await ctx.store.get(self.scratchpad_key, default=[])
            await ctx.store.set(self.scratchpad_key, [*turn, *added])
