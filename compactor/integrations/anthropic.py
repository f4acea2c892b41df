"""Anthropic's SDK: shortens each request of your own loop, and leaves your history unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..formats import anthropic
from ..formats.native import to_plain
from ..formats.parts import make_tool, read_text
from .base import Converted, Fitted, Group, Message

__all__ = ["Compaction"]

Item = Any  # one of the request's messages: a mapping


class Compaction(Converted[Item]):
    """Makes requests: ``client.messages.create(**compaction.prepare("session", model=..., messages=messages, ...))``.

    Arguments are those of ``Conversations``. The first argument of ``prepare`` names the session, or *session_id* may
    be a function of it. Imports no SDK: the clients for Bedrock and Vertex take the same request.
    """

    provider = anthropic.NAME

    def prepare(self, session_id: str, *, messages: Sequence[Item], **request: Any) -> dict[str, Any]:
        """Return *request* within the budget; *messages* is the whole history. A summary is appended to its ``system``.

        Messages and blocks that fit unshortened are returned as they are, with signatures and cache marks. A summary
        made by the request's own ``model`` is returned as its block. Raises the errors of ``compose``, and
        ``UnknownFormat``.
        """
        fitted = self.fit(self.name_session(session_id, session_id), messages, **_read_request(**request))
        return _change_request(request, fitted)

    async def aprepare(self, session_id: str, *, messages: Sequence[Item], **request: Any) -> dict[str, Any]:
        """``prepare``, without blocking the event loop."""
        fitted = await self.afit(self.name_session(session_id, session_id), messages, **_read_request(**request))
        return _change_request(request, fitted)

    def tools(self) -> list[dict[str, Any]]:
        """Return the definitions of ``Recall``'s tools, for the request's ``tools``. ``call_tool`` answers a call."""
        return [{"name": one[0], "description": one[1], "input_schema": one[2]} for one in self.describe_tools()]

    def call_tool(self, session_id: str, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Return the text for the ``tool_result`` of a block that calls one; *session_id* is that of ``prepare``."""
        return super().call_tool(self.name_session(session_id, session_id), name, arguments)

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        return [Group([item], messages) for item, messages in zip(items, anthropic.read_each(items), strict=True)]

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return list(anthropic.from_chat(messages)["messages"])

    def write_for(self, items: Sequence[Item], messages: Sequence[Message]) -> Iterable[Item]:
        new = list(self.write(messages))
        marks = sum(1 for _ in anthropic.find_breakpoints(to_plain(items)))
        anthropic.limit_breakpoints(marks, new)  # dropped messages still have theirs in the log
        return new

    def print_item(self, item: Item) -> str:
        return repr(to_plain(item))  # answers hold objects of the SDK


def _read_request(system: Any = "", tools: Any = (), model: str = "", **_rest: Any) -> dict[str, Any]:
    text = read_text(anthropic.to_chat([], system=system)[0]) if system else ""
    schemas = [make_tool(one.get("name", ""), one.get("description"), one.get("input_schema")) for one in tools or ()]
    return {"system": text, "tools": schemas, "model": model}


def _change_request(request: Mapping[str, Any], fitted: Fitted[Item]) -> dict[str, Any]:
    changed = {**request, "messages": fitted.items}
    if fitted.added:
        changed["system"] = fitted.extend(request.get("system") or "")
    return changed
