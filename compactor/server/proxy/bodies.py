"""Request bodies: finds the conversation in one, and puts a shorter one in its place. The rest stays as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from json.decoder import scanstring  # type: ignore[attr-defined]
from operator import itemgetter
from typing import Any, ClassVar

from memory.messages import SYSTEM

from ...formats import anthropic, chat, responses
from ...formats.native import to_plain
from ...formats.parts import make_text, make_tool, read_text
from ...integrations.anthropic import Compaction as MessagesCompaction
from ...integrations.base import Conversations, Converted, Fitted, Group, Message
from ...integrations.history import list_messages

Item = Any
#: Start and end in a body, and the bytes that replace what is there.
Edit = tuple[int, int, bytes]
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_PLAIN = frozenset(("user", "assistant", "tool", *SYSTEM))
_match_space: Any = re.compile(r"[ \t\n\r]*").match


class InvalidBody(ValueError):
    """A body is not a JSON object, or has a duplicate key."""


class Body:
    """A parsed JSON object. ``list_edits`` changes the values of some keys, and no byte of the other values or of array
    items that stay."""

    def __init__(self, raw: bytes) -> None:
        self._text = raw.decode()
        self.values: dict[str, Any] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        self._items: dict[int, tuple[int, int]] = {}  # by id; ``values`` keeps the items alive
        at = self._skip(0, "{")
        while self._text[at : at + 1] == '"':
            key, at = scanstring(self._text, at + 1)
            start = self._skip(at, ":")
            if key in self.values:
                raise InvalidBody("a key is there twice")  # the provider may take either
            self.values[key], at = self._read_array(start) if self._text.startswith("[", start) else self._read(start)
            self._spans[key] = start, at
            at = self._skip(at, "")
            if self._text[at : at + 1] != ",":
                break
            at = self._skip(at, ",")
        if self._skip(at, "}") != len(self._text):
            raise InvalidBody("more follows the object")

    def find_end(self, key: str) -> int:
        """Return where the last item, a dictionary, of the array at *key* ends."""
        return self._count_bytes(self._items[id(self.values[key][-1])][1])

    def _count_bytes(self, at: int) -> int:
        return at if self._text.isascii() else len(self._text[:at].encode())

    def _read(self, at: int) -> tuple[Any, int]:
        try:
            return _scan(self._text, at)  # type: ignore[no-any-return]
        except StopIteration:  # a future cannot carry StopIteration
            raise InvalidBody("a value is no JSON") from None

    def _read_array(self, at: int) -> tuple[list[Any], int]:
        items, text = list[Any](), self._text
        at = self._skip(at, "[")
        while not text.startswith("]", at) or items:
            item, end = self._read(at)
            items.append(item)
            if isinstance(item, dict):
                self._items[id(item)] = at, end
            if text.startswith((",{", ", {"), end):  # usually
                at = end + 1 + (text[end + 1] == " ")
                continue
            at = _match_space(text, end).end()
            if not text.startswith(",", at):
                break
            at = _match_space(text, at + 1).end()
        self._skip(at, "]")
        return items, at + 1

    def _skip(self, at: int, sign: str) -> int:
        """Return the position after white space, *sign*, and white space."""
        text = self._text
        at = _match_space(text, at).end()
        if not text.startswith(sign, at):
            raise InvalidBody(f"there is no {sign}")
        return _match_space(text, at + len(sign)).end()  # type: ignore[no-any-return]

    def list_edits(self, changes: Mapping[str, Any]) -> list[Edit]:
        """Return what puts the values in *changes* into the body, new keys first; the last edit comes first. Items at
        the end of an array that stay are not edited, nor is the space between them."""
        edits: list[tuple[int, int, str]] = []
        for key, value in changes.items():
            if key not in self._spans:
                at = self._text.index("{") + 1
                edits.append((at, at, f"{_write(key)}:{self._write(value)},"))
                continue
            start, end = self._spans[key]
            kept = _count_kept(self.values[key], value)
            if kept and (span := self._items.get(id(value[-kept]))) is not None:
                new = f"[{''.join(f'{self._write_item(one)},' for one in value[:-kept])}"
                end = span[0]
            else:
                new = self._write(value)
            edits.append((start, end, new))
        edits.sort(reverse=True, key=itemgetter(0))
        return [(self._count_bytes(start), self._count_bytes(end), new.encode()) for start, end, new in edits]

    def _write(self, value: Any) -> str:
        if isinstance(value, list):
            return f"[{','.join(map(self._write_item, value))}]"
        return _write(value)

    def _write_item(self, item: Any) -> str:
        span = self._items.get(id(item))
        return self._text[slice(*span)] if span is not None else _write(item)


def apply_edits(raw: bytes, edits: Iterable[Edit]) -> bytes:
    for start, end, new in edits:
        raw = b"".join((raw[:start], new, raw[end:]))
    return raw


def _count_kept(old: Any, new: Any) -> int:
    """Return how many items at the end of an array stay."""
    if not isinstance(old, list) or not isinstance(new, list):
        return 0
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(reversed(old), reversed(new), strict=False)))


def _write(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        text = json.dumps(value, separators=(",", ":"))
    return text


@dataclass(frozen=True, slots=True)
class RequestConversation:
    """The conversation in a request."""

    #: The leading system messages, and the messages after them.
    leading: Sequence[Item]
    items: Sequence[Item]
    #: The text of the system prompt, and the schemas of the tools.
    system: str
    tools: Sequence[Mapping[str, Any]]
    #: Maximum tokens of the answer; None: the request sets no limit.
    reserve: int | None


class _Format:
    """How the requests of one path encode a conversation. Classes in ``FORMATS`` are adapters as well."""

    #: Key of the conversation, and keys of the maximum tokens of the answer.
    key: ClassVar[str]
    max_tokens_keys: ClassVar[Sequence[str]] = ("max_tokens",)
    #: Keys that refer to state kept by the provider: a body with one does not hold the whole conversation.
    state_keys: ClassVar[Sequence[str]] = ()

    @classmethod
    def find(cls, body: Mapping[str, Any]) -> RequestConversation | None:
        """Return the conversation in *body*; None if it is not the whole one."""
        items = body.get(cls.key)
        if not isinstance(items, list) or any(body.get(key) is not None for key in cls.state_keys):
            return None
        if not is_conversation(items):
            return None
        leading = list(takewhile(_is_system, items))
        given = [body.get(key) for key in cls.max_tokens_keys]
        reserve = next((one for one in given if type(one) is int and one > 0), None)
        tools = body.get("tools")
        schemas = [_read_tool(one) for one in tools if isinstance(one, Mapping)] if isinstance(tools, list) else []
        return RequestConversation(leading, items[len(leading) :], cls.read_system(body, leading), schemas, reserve)

    @classmethod
    def read_system(cls, body: Mapping[str, Any], leading: Sequence[Item]) -> str:  # noqa: ARG003
        return "\n\n".join(read_text(one) for one in chat.to_chat(leading))

    @classmethod
    def change(cls, body: Mapping[str, Any], given: RequestConversation, fitted: Fitted[Item]) -> dict[str, Any]:  # noqa: ARG003
        """Return the values that replace those in *body*."""
        leading = [*given.leading]
        if fitted.added and leading and isinstance(leading[-1].get("content"), (str, list)):
            old = leading[-1]["content"]
            new = f"{old}\n\n{fitted.added}" if isinstance(old, str) else [*old, make_text(fitted.added)]
            leading[-1] = {**leading[-1], "content": new}  # merged: many servers accept only one
        elif fitted.added:
            leading.append({"role": "system", "content": fitted.added})
        return {cls.key: [*leading, *fitted.items]}


class ChatFormat(_Format, Conversations[Item]):
    """``/v1/chat/completions``"""

    key = "messages"
    max_tokens_keys = ("max_completion_tokens", "max_tokens")

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        return [Group([item], [message]) for item, message in zip(items, self.list_messages(items), strict=True)]

    def list_messages(self, items: Sequence[Item]) -> Sequence[Message]:
        # Most items are chat messages in plain JSON already, and need no copy.
        return items if all(map(_is_plain, items)) else chat.to_chat(items)

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return list(chat.from_chat(messages)["messages"])


class ResponsesFormat(_Format, Converted[Item]):
    """``/v1/responses``"""

    provider = responses.NAME
    key = "input"
    max_tokens_keys = ("max_output_tokens",)
    state_keys = ("previous_response_id", "conversation", "prompt")

    @classmethod
    def read_system(cls, body: Mapping[str, Any], leading: Sequence[Item]) -> str:
        instructions = body.get("instructions")
        content = [read_text(one) for one in responses.to_chat(leading)]
        return "\n\n".join([instructions, *content] if isinstance(instructions, str) and instructions else content)

    @classmethod
    def change(cls, body: Mapping[str, Any], given: RequestConversation, fitted: Fitted[Item]) -> dict[str, Any]:  # noqa: ARG003
        role = given.leading[-1]["role"] if given.leading else "developer"
        added = [{"role": role, "content": fitted.added}] if fitted.added else []
        return {cls.key: [*given.leading, *added, *fitted.items]}

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        return [Group([item], messages) for item, messages in zip(items, responses.read_each(items), strict=True)]

    def list_messages(self, items: Sequence[Item]) -> Sequence[Message]:
        return list_messages(self.read(items))

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        return list(responses.from_chat(messages)["input"])

    def print_item(self, item: Item) -> str:
        return repr(to_plain(item))


class MessagesFormat(_Format, MessagesCompaction):
    """``/v1/messages``"""

    key = "messages"

    def list_messages(self, items: Sequence[Item]) -> Sequence[Message]:
        return list_messages(self.read(items))

    @classmethod
    def read_system(cls, body: Mapping[str, Any], leading: Sequence[Item]) -> str:
        system = body.get("system")
        content = anthropic.to_chat(leading, system=system or None)
        return "\n\n".join(map(read_text, content))

    @classmethod
    def change(cls, body: Mapping[str, Any], given: RequestConversation, fitted: Fitted[Item]) -> dict[str, Any]:
        changes: dict[str, Any] = {cls.key: [*given.leading, *fitted.items]}
        if fitted.added:
            system = body.get("system") or ""
            changes["system"] = (
                f"{system}\n\n{fitted.added}".strip() if isinstance(system, str) else fitted.extend(system)
            )
        return changes


#: By path.
FORMATS: Mapping[str, type[ChatFormat | ResponsesFormat | MessagesFormat]] = {
    "/v1/chat/completions": ChatFormat,
    "/v1/responses": ResponsesFormat,
    "/v1/messages": MessagesFormat,
}


def _is_plain(item: Item) -> bool:
    return item.get("role") in _PLAIN and "function_call" not in item and "parts" not in item


def _is_system(item: Item) -> bool:
    return isinstance(item, dict) and item.get("role") in SYSTEM


def is_conversation(items: Iterable[Item]) -> bool:
    """Return whether *items* hold their whole conversation, and refer to nothing that the provider keeps or has
    compacted."""
    odd = (one for one in items if type(one) is not dict or "type" in one or type(one.get("content")) is not str)
    return not any(map(_is_state, odd))  # few


def _is_state(item: Item) -> bool:
    if not isinstance(item, dict):
        return True
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content and isinstance(content[0], dict) else {}
    return "compaction" in (item.get("type"), first.get("type")) or item.get("type") == "item_reference"


def _read_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool's schema as ``compose`` counts it and summarizers send it."""
    if not isinstance(tool.get("name"), str) or "function" in tool:
        return tool
    return make_tool(tool["name"], tool.get("description"), tool.get("parameters", tool.get("input_schema")))
