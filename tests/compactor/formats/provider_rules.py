"""What providers refuse, as functions that raise ``AssertionError``: the rules that their API references state."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def check_anthropic(request: Mapping[str, Any]) -> None:
    """The user begins; every call is answered in the next message; no result without its call; no text is blank."""
    assert request.keys() <= {"system", "messages"}
    assert _is_text_or_blocks(request.get("system", "-"), {"text"})
    messages = request["messages"]
    assert messages[0]["role"] == "user"
    merged: list[tuple[str, list[Any]]] = []  # as the API joins neighbours of one role
    for message in messages:
        assert message.keys() == {"role", "content"}
        assert message["role"] in ("user", "assistant")
        assert _is_text_or_blocks(message["content"], None)
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if merged and merged[-1][0] == message["role"]:
            merged[-1][1].extend(blocks)
        else:
            merged.append((message["role"], list(blocks)))
    assert json.dumps(request).count('"cache_control"') <= 4
    used = [block["id"] for _, blocks in merged for block in blocks if block["type"] == "tool_use"]
    assert len(used) == len(set(used))
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", one) for one in used)
    for place, (role, blocks) in enumerate(merged):
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert role == "assistant" or not calls
        assert role == "user" or not results
        asked = [one["id"] for one in merged[place - 1][1] if one["type"] == "tool_use"] if place else []
        assert sorted(results) == sorted(asked)
        assert [block["type"] for block in blocks][: len(results)] == ["tool_result"] * len(results)
        assert not (calls and place == len(merged) - 1)
        for block in blocks:
            if block["type"] == "tool_use":
                assert isinstance(block["input"], dict)
            if block["type"] == "tool_result":
                assert block.keys() <= {"type", "tool_use_id", "content", "is_error", "cache_control"}
                given = block.get("content", "-")
                assert isinstance(given, str) or given == [] or _is_text_or_blocks(given, {"text", "image"})
            if block["type"] == "server_tool_use":
                assert role == "assistant"
                assert [one["type"].endswith("_tool_result") for one in blocks if one.get("tool_use_id") == block["id"]]
            if block["type"].endswith("_tool_result") and block["type"] != "tool_result":
                assert [one for one in blocks if one["type"] == "server_tool_use" and one["id"] == block["tool_use_id"]]
            if block["type"] == "thinking":
                assert role == "assistant"
                assert block["signature"] == f"signed {block['thinking']}"  # untouched


def _is_text_or_blocks(content: Any, types: set[str] | None) -> bool:
    if isinstance(content, str):
        return bool(content.strip())
    return bool(content) and all(
        (types is None or block["type"] in types) and (block["type"] != "text" or block["text"].strip())
        for block in content
    )


#: Items of tools on OpenAI's side, whole in themselves.
SERVED = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call")
SERVED += ("mcp_list_tools", "mcp_call", "compaction")


def check_responses(request: Mapping[str, Any]) -> None:
    """Every output has its call before it and every call its output behind it; reasoning is followed by what it led to."""
    assert request.keys() <= {"instructions", "input"}
    called: dict[str, str] = {}
    items = request["input"]
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "message":
            assert item["role"] in ("user", "assistant", "system", "developer")
            assert item["content"]
            allowed = {"output_text", "refusal"} if item["role"] == "assistant" else {"input_text", "input_image"}
            assert isinstance(item["content"], str) or {part["type"] for part in item["content"]} <= allowed
        elif kind in ("function_call", "custom_tool_call"):
            assert item["call_id"] not in called
            if kind == "function_call":
                json.loads(item["arguments"])
            called[item["call_id"]] = kind
        elif kind.endswith("_call_output"):
            assert called[item["call_id"]] == kind.removesuffix("_output")
            called[item["call_id"]] = "answered"
        elif kind != "reasoning":
            assert kind in SERVED
            assert item["id"]
        else:
            after = items[place + 1].get("type", "message")
            assert after in ("function_call", "custom_tool_call", "message", "reasoning", *SERVED)
            assert items[place + 1].get("role", "assistant") == "assistant"
            assert item["encrypted_content"] == f"sealed {item['id']}"
    assert set(called.values()) <= {"answered"}


def check_gemini(request: Mapping[str, Any]) -> None:
    """The user begins, roles alternate unless the host's did not, and responses answer the calls before them by name."""
    assert request.keys() <= {"system_instruction", "contents"}
    contents = request["contents"]
    assert contents[0]["role"] == "user"
    merged: list[tuple[str, list[Any]]] = []
    for content in contents:
        assert content["role"] in ("user", "model")
        assert content["parts"]
        if merged and merged[-1][0] == content["role"]:
            merged[-1][1].extend(content["parts"])
        else:
            merged.append((content["role"], list(content["parts"])))
    for place, (role, parts) in enumerate(merged):
        assert all(part.get("text", "-") for part in parts)
        calls, responses = (
            _named(parts, "function_call", "functionCall"),
            _named(parts, "function_response", "functionResponse"),
        )
        assert role == "model" or not calls
        assert role == "user" or not responses
        asked = _named(merged[place - 1][1], "function_call", "functionCall") if place else []
        assert responses == asked
        assert not (calls and place == len(merged) - 1)
        signed = [part for part in parts if "function_call" in part or "functionCall" in part]
        assert not signed or signed[0].get("thought_signature", signed[0].get("thoughtSignature")) == "c2lnbmVk"


def _named(parts: list[Any], *keys: str) -> list[str]:
    return [part[key]["name"] for part in parts for key in keys if key in part]
