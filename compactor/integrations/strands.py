"""Strands Agents: a middleware that shortens each model call, and nothing that the agent keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from strands.middleware.stages import InvokeModelContext

from ..formats.native import add_native, read_native
from ..formats.parts import dump_json, make_answer, make_content, make_tool, read_calls, read_file, read_text
from .base import Conversations, Group, Message

__all__ = ["Compaction"]

NAME = "strands"
Item = Any  # one of the agent's messages: a mapping


class Compaction(Conversations[Item]):
    """Middleware of an agent: ``agent.add_middleware(InvokeModelStage.Input, Compaction(budget=100_000))``.

    Arguments are those of ``Conversations``. *session_id* may be a function of the agent; by default the ids of its
    session manager and of itself name the session. An agent without a session manager gets a new one.
    """

    def __init__(self, budget: int, **options: Any) -> None:
        super().__init__(budget, **options)
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    async def __call__(self, context: InvokeModelContext) -> InvokeModelContext:
        given = context.system_prompt or []
        blocks = [{"text": given}] if isinstance(given, str) else list(given)
        system = "\n\n".join(block["text"] for block in blocks if "text" in block)
        tools = [make_tool(one["name"], one["description"], one["inputSchema"]["json"]) for one in context.tool_specs]
        session_id = self.name_session(context.agent, self._read_ids(context.agent))
        fitted = await self.afit(session_id, context.messages, system=system, tools=tools)
        if fitted.added:
            return context.replace(messages=fitted.items, system_prompt=[*blocks, {"text": fitted.added}])
        return context.replace(messages=fitted.items)

    def _read_ids(self, agent: Any) -> str:
        kept = getattr(getattr(agent, "_session_manager", None), "session_id", None)
        return f"{kept}/{agent.agent_id}" if kept else self._names.setdefault(agent, uuid4().hex)

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        for item in items:
            calls, results = (
                [block[kind] for block in item["content"] if kind in block] for kind in ("toolUse", "toolResult")
            )
            messages: list[Message] = [*map(_read_result, results)]
            content = make_content(map(_read, item["content"]))
            if item["role"] == "assistant":
                messages.append(make_answer(content, [(one["toolUseId"], one["name"], one["input"]) for one in calls]))
            elif content or not results:
                messages.append({"role": "user", "content": content})
            yield Group([item], messages)

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        for is_answer, run in groupby(messages, lambda message: message["role"] == "assistant"):
            blocks = [block for message in run for block in _write(message)]
            yield {"role": "assistant" if is_answer else "user", "content": blocks}


def _read_result(result: Mapping[str, Any]) -> Message:
    content = make_content(map(_read, result["content"]))
    message = {"role": "tool", "tool_call_id": result["toolUseId"], "content": content}
    return add_native(message, NAME, status="error" if result.get("status") == "error" else None)


def _read(block: Mapping[str, Any]) -> str | Message:
    return read_file(block) or dump_json(block.get("json", block.get("text", "")))


def _write(message: Message) -> list[Any]:
    said = [{"text": text}] if (text := read_text(message)) else []
    if message["role"] == "tool":
        status = read_native(message, NAME).get("status", "success")
        return [{"toolResult": {"toolUseId": message["tool_call_id"], "status": status, "content": said}}]
    calls = [{"toolUseId": call_id, "name": name, "input": given} for call_id, name, given in read_calls(message)]
    return [*said, *({"toolUse": call} for call in calls)]
