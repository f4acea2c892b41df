"""Anthropic's SDK: for a loop of your own, makes each request short, and changes nothing that you keep."""

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
        """Return *request* within the budget; *messages* is the whole history. A summary stands behind its ``system``.

        Messages and blocks that are shown whole come back as they are, with signatures and marks for the cache. A
        summary that the request's ``model`` made itself is shown as its block. Raises as ``compose``, and
        ``UnknownFormat``.
        """
        fitted = self.fit(self.name_session(session_id, session_id), messages, **_read(**request))
        return _change(request, fitted)

    async def aprepare(self, session_id: str, *, messages: Sequence[Item], **request: Any) -> dict[str, Any]:
        """``prepare``, without holding up the event loop."""
        fitted = await self.afit(self.name_session(session_id, session_id), messages, **_read(**request))
        return _change(request, fitted)

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        return [Group([item], messages) for item, messages in zip(items, anthropic.read_each(items), strict=True)]

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return list(anthropic.from_chat(messages)["messages"])

    def write_for(self, items: Sequence[Item], messages: Sequence[Message]) -> Iterable[Item]:
        made = list(self.write(messages))
        marks = sum(1 for _ in anthropic.find_breakpoints(to_plain(items)))
        anthropic.limit_breakpoints(marks, made)  # of messages that the host dropped, the log has those of their time
        return made

    def print_item(self, item: Item) -> str:
        return repr(to_plain(item))  # answers hold objects of the SDK


def _read(system: Any = "", tools: Any = (), model: str = "", **_rest: Any) -> dict[str, Any]:
    text = read_text(anthropic.to_chat([], system=system)[0]) if system else ""
    schemas = [make_tool(one.get("name", ""), one.get("description"), one.get("input_schema")) for one in tools or ()]
    return {"system": text, "tools": schemas, "model": model}


def _change(request: Mapping[str, Any], fitted: Fitted[Item]) -> dict[str, Any]:
    changed = {**request, "messages": fitted.items}
    if fitted.added:
        changed["system"] = fitted.extend(request.get("system") or "")
    return changed
