"""Anthropic's SDK: for a loop of your own, makes each request short, and changes nothing that you keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..formats import anthropic
from ..formats.native import to_plain
from ..formats.parts import make_tool, read_text
from .base import Converted, Group, Message

__all__ = ["Compaction"]

Item = Any  # one of the request's messages: a mapping


class Compaction(Converted[Item]):
    """Makes requests: ``client.messages.create(model=..., **await compaction.prepare("session", messages=messages))``.

    Arguments are those of ``Conversations``. *session_id* may be a function of what ``prepare`` is given first; by
    default that names the session. Imports no SDK: the clients for Bedrock and Vertex take the same request.
    """

    provider = anthropic.NAME

    async def prepare(
        self,
        session_id: str,
        *,
        messages: Sequence[Item],
        system: str | Sequence[Mapping[str, Any]] = "",
        tools: Sequence[Mapping[str, Any]] = (),
        model: str = "",
    ) -> dict[str, Any]:
        """Return *messages*, *system* and *tools* for a request, within the budget; *messages* is the whole history.

        Messages and blocks that are shown whole come back as they are, with what is signed or marked for the cache.
        *model* is the name of the one that is asked: a summary that it made itself is shown as its block then. Raises
        as ``compose``, and ``UnknownFormat``.
        """
        given = read_text(anthropic.to_chat([], system=system)[0]) if system else ""
        schemas = [make_tool(str(one.get("name")), one.get("description"), one.get("input_schema")) for one in tools]
        name = self.name_session(session_id, session_id)
        fitted = await self.afit(name, messages, system=given, tools=schemas, model=model)
        request: dict[str, Any] = {"messages": fitted.items, **({"tools": tools} if tools else {})}
        if fitted.added:
            added = {"type": "text", "text": fitted.added}
            request["system"] = fitted.system if isinstance(system, str) else [*system, added]
        elif system:
            request["system"] = system
        return request

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        return [Group(items, anthropic.to_chat(items))]

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return list(anthropic.from_chat(messages)["messages"])

    def show_equal(self, items: Sequence[Item], made: Iterable[Item]) -> list[Item]:
        plain = [to_plain(item) for item in items]  # answers hold objects of the SDK
        own = {id(one): item for one, item in zip(plain, items, strict=True)}
        made = list(made)
        marks = sum(1 for _ in anthropic.find_breakpoints(plain))
        anthropic.limit_breakpoints(marks, made)  # of messages that the host dropped, the log has those of their time
        return [own.get(id(one), one) for one in super().show_equal(plain, made)]
