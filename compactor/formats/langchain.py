"""LangChain's messages, read by their attributes: nothing of LangChain is imported here.

Every message that LangChain takes is read. The model's blocks that are neither text nor files nor calls, such as signed
thinking, are kept beside the chat message. Such blocks of others become text, if only as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memory.messages import FUNCTION, SYSTEM, TOOL

from .native import Block, Message, add_native, list_parts, read_messages, read_native
from .parts import dump_json, make_call, make_jsonable, make_text, read_calls, read_file

NAME = "langchain"

_ROLES = {"human": "user", "ai": "assistant", "assistant": "assistant", **{role: role for role in SYSTEM}}
_KINDS = {"user": "human", "assistant": "ai", TOOL: TOOL, FUNCTION: FUNCTION}
#: Blocks that repeat a call; those that say nothing by themselves.
_CALLS = ("tool_use", "tool_call", "function_call")
_SILENT = ("invalid_tool_call", "tool_call_chunk", "input_json_delta")
#: What of LangChain's own keys a message says elsewhere, and what tells how blocks are to be read.
_REPEATED = ("tool_calls", "refusal", "parsed")
_VERSIONS = ("output_version", "model_provider")


def to_chat(items: Iterable[Any]) -> list[Message]:
    """Return *items*, messages of LangChain, as chat messages: one for each."""
    return list(map(_read_message, items))


def from_chat(messages: Iterable[Mapping[str, Any]]) -> list[Block]:
    """Return a prompt's *messages* for LangChain's ``messages_from_dict``."""
    return list(map(_write_message, read_messages(messages, NAME)))


def _read_message(item: Any) -> Message:
    kind = item.type.removesuffix("MessageChunk").lower()
    role = kind if kind in (TOOL, FUNCTION) else _ROLES.get(item.role if kind == "chat" else kind, "user")
    content = item.content
    blocks = content if isinstance(content, list) else [content] if content else []
    calls = _list_calls(item, blocks) if role == "assistant" else []
    parts, kept = _read_blocks(blocks, role)
    # No result can answer a call without an id.
    parts += [make_text(f"[call of {name}({dump_json(given)})]") for call_id, name, given in calls if not call_id]
    is_text = not parts or (len(parts) == 1 and parts[0]["type"] == "text")
    message: Message = {"role": role, "content": parts if not is_text else parts[0]["text"] if parts else ""}
    if item.name:
        message["name"] = item.name
    if role == "assistant":
        if named := [make_call(*call) for call in calls if call[0]]:
            message["tool_calls"] = named
        if refusal := item.additional_kwargs.get("refusal"):
            message["refusal"] = str(refusal)
        told = {key: one for key, one in item.response_metadata.items() if key in _VERSIONS} if kept else {}
        return add_native(message, NAME, blocks=kept or None, kwargs=_read_kwargs(item), metadata=told or None)
    if role == TOOL:
        message["tool_call_id"] = item.tool_call_id
        status = "error" if item.status == "error" else None
        return add_native(message, NAME, status=status, kwargs=_read_kwargs(item))
    return message


def _read_blocks(blocks: Iterable[Any], role: str) -> tuple[list[Block], list[Block]]:
    """Return *blocks* as parts of a message, and those of the assistant's that are kept as they are."""
    parts, kept = list[Block](), list[Block]()
    for block in blocks:
        if isinstance(block, str):
            parts.append(make_text(block))
        elif (part := read_file(block)) is not None:
            parts.append(part)
        elif isinstance(block.get("text"), str) and (role != "assistant" or block.get("type") == "text"):
            parts.append(make_text(block["text"]))
        elif role != "assistant":
            parts += _read_unknown(block)
        elif block.get("type") not in (*_CALLS, *_SILENT):
            kept.append({"as_is": make_jsonable(block)})
    return parts, kept


def _list_calls(item: Any, blocks: Iterable[Any]) -> list[tuple[str, str, Any]]:
    """Return id, name and arguments of each call. Some LangChain could not parse, some it has in blocks alone.
    An id is empty if there is none."""
    said = [*getattr(item, "tool_calls", ()), *getattr(item, "invalid_tool_calls", ())]
    known = [one.get("id") for one in said]
    said += [
        one
        for one in blocks
        if isinstance(one, dict) and one.get("type") in _CALLS and one.get("call_id", one.get("id")) not in known
    ]
    calls = []
    for one in said:
        given = next((one[key] for key in ("args", "input", "arguments") if one.get(key) is not None), "")
        calls.append((str(one.get("call_id") or one.get("id") or ""), str(one.get("name") or ""), given))
    return calls


def _read_unknown(block: Block) -> list[Block]:
    """Return the parts of a tool's or the user's *block* of an unknown kind; none for marks of a cache."""
    if block.get("type") == "tool_result":  # a chat message may have it
        return [make_jsonable(block)]
    said = {key: one for key, one in block.items() if key not in ("cache_control", "cachePoint")}
    return [make_text(dump_json(said))] if said else []


def _read_kwargs(item: Any) -> Any:
    if not item.additional_kwargs:
        return None
    kwargs = {key: one for key, one in item.additional_kwargs.items() if key not in _REPEATED and one is not None}
    return make_jsonable(kwargs) if kwargs else None


def _write_message(message: Mapping[str, Any]) -> Block:
    role, native = message["role"], read_native(message, NAME)
    data: Block = {"content": message.get("content") or "", "name": message.get("name")}
    data |= {"additional_kwargs": dict(native.get("kwargs") or {}), "response_metadata": native.get("metadata") or {}}
    if role == "assistant":
        # OpenAI's reasoning is refused without the very items that came behind it.
        kept = [one["as_is"] for one in native.get("blocks") or () if not str(one["as_is"].get("id")).startswith("rs_")]
        data["content"] = [*kept, *list_parts(message)] if kept else data["content"]
        data["tool_calls"] = [{"id": one, "name": name, "args": args} for one, name, args in read_calls(message)]
    if role == TOOL:
        data |= {"tool_call_id": message.get("tool_call_id") or "", "status": native.get("status") or "success"}
    return {"type": _KINDS.get(role, "system"), "data": data}
