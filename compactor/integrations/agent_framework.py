"""Microsoft Agent Framework: a middleware that shortens each model call, and nothing that the session keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from agent_framework import ChatContext, ChatMiddleware, ChatResponse, Content
from agent_framework import Message as Item

from ..formats.parts import make_answer, make_content, make_file, make_tool, read_calls, read_text
from .base import Conversations, Group, Message

__all__ = ["Compaction"]

#: What the framework has in place of a service's id where it keeps the history itself.
LOCAL = "agent_framework_local_history_persistence"


class Compaction(Conversations[Item], ChatMiddleware):
    """Middleware of an agent: ``Agent(client=client, middleware=[Compaction(budget=100_000)])``.

    Arguments are those of ``Conversations``. *session_id* may be a function of the chat's context; by default the id of
    the agent's session names the session. Where the service keeps the conversation, requests are sent as they are.
    """

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        options = dict(context.options or {})
        if options.get("conversation_id") not in (None, "", LOCAL):  # the messages only add to what the service keeps
            await call_next()
            return
        given = options.get("instructions") or ""
        offered = [tool for tool in options.get("tools") or () if hasattr(tool, "parameters")]
        tools = [make_tool(tool.name, tool.description, tool.parameters()) for tool in offered]
        session_id = self.name_session(context, getattr(context.session, "session_id", None))
        fitted = await self.afit(session_id, context.messages, system=given, tools=tools)
        context.messages = fitted.items
        if fitted.added:
            context.options = {**options, "instructions": fitted.system}

        async def keep(answer: ChatResponse[Any]) -> ChatResponse[Any]:
            await self.akeep(session_id, answer.messages)
            return answer

        if context.stream:
            context.stream_result_hooks.append(keep)
        await call_next()
        if isinstance(context.result, ChatResponse):
            await keep(context.result)

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        for item in items:
            said = make_content(map(_read, item.contents))
            if item.role == "assistant":
                calls = [one for one in item.contents if one.type == "function_call"]
                asked = [(one.call_id or "", one.name or "", one.arguments or {}) for one in calls]
                yield Group([item], [make_answer(said, asked)])
                continue
            results = [one for one in item.contents if one.type == "function_result"]
            made = [{"role": "tool", "tool_call_id": one.call_id, "content": _read_result(one)} for one in results]
            yield Group([item], [*made, *([{"role": item.role, "content": said}] if said or not made else [])])

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return [Item(role=message["role"], contents=_write(message)) for message in messages]


def _read(content: Content) -> str | Message:
    if content.type in ("data", "uri"):
        return make_file(content.uri or "", is_image=(content.media_type or "").startswith("image/"))
    return (content.text or "") if content.type == "text" else ""


def _read_result(content: Content) -> Any:
    said = [_read(one) for one in content.items or ()]
    return make_content(said) if said else str(content.result or content.exception or "")


def _write(message: Message) -> list[Content]:
    text = read_text(message)
    if message["role"] == "tool":
        return [Content.from_function_result(message["tool_call_id"], result=text)]
    calls = [Content.from_function_call(call_id, name, arguments=given) for call_id, name, given in read_calls(message)]
    return [*([Content.from_text(text)] if text else []), *calls]
