"""What is in a model's answer: everything is checked, because endpoints send everything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .base import SummarizerError, Summary
from .limits import MAX_ANSWER_BYTES, TOO_LARGE, Limit
from .tags import strip_tags, unfenced

__all__ = ["NoSummary", "parse_body", "read_answer", "read_body"]

#: How tool calls begin and end that a server has left in the text: each family of models writes its own.
_CALL_BEGINS = re.compile(
    r"\s*(?:<(?:\w+:)?(?:tool_call|function_calls?)>|<function=|<invoke |<\|(?:python_tag|tool_call)"
    r"|\[TOOL_CALLS\]|<｜tool|functions\.\w+\()"
)
#: And the fields of one that is an object of JSON and nothing else.
_CALL_KEYS = {"id", "type", "name", "tool", "tool_name", "function", "action"} | {
    *("arguments", "parameters", "args", "input", "tool_input", "action_input")
}
_CALL_ENDS = re.compile(r"</(?:\w+:)?(?:tool_call|function_calls?|function)>\s*$")


class NoSummary(SummarizerError):
    """There was an answer, and no summary in it; asked in another way, there may be one."""

    def __init__(
        self, message: str, usage: Mapping[str, int] | None = None, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        #: What that took, where it is known.
        self.usage = usage


def read_answer(answer: Any, model: str | None) -> Summary:
    """Return the summary in a chat completion, an object or its JSON; raise ``NoSummary`` if there is none, and
    ``SummarizerError`` if it was cut off."""
    choices, usage = _field(answer, "choices"), _usage(_field(answer, "usage"))
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        inside = "an error" if _field(answer, "error") is not None else "no choices"
        raise NoSummary(f"the answer holds {inside}: check that model= and base_url= are right", usage)
    finish, message = _field(choices[0], "finish_reason"), _field(choices[0], "message")
    if message is None:
        raise NoSummary("the answer's first choice holds no message: check that base_url= is a chat endpoint", usage)
    text = strip_tags(_text(_field(message, "content")))
    called = finish in ("tool_calls", "function_call") or _field(message, "tool_calls")
    if called or _field(message, "function_call") or _is_call(text):  # before its length: a call may be cut off
        raise NoSummary("the model called a tool instead of answering: do not offer tools in extra=", usage)
    if finish == "length":
        raise SummarizerError(
            "the answer was cut off at its limit of tokens: raise max_output_tokens= (a reasoning model's thoughts"
            " count), or ask for a shorter summary"
        )
    if finish == "content_filter" or _field(message, "refusal"):
        raise NoSummary("the model refused, or a filter stopped it: choose another model= or another prompt", usage)
    if not text:
        raise NoSummary("empty answer: check that model= is a chat model, and raise max_output_tokens= if set", usage)
    named = _field(answer, "model")
    return Summary(text, usage, named if isinstance(named, str) and named else model)


def _is_call(text: str) -> bool:
    """Return whether *text* is a tool call, or ends in one."""
    if _CALL_BEGINS.match(text) or _CALL_ENDS.search(text):
        return True
    said = unfenced(text)
    try:
        value = json.loads(said) if said.startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        return False
    calls = value if isinstance(value, list) else [value]
    return bool(calls) and all(isinstance(call, dict) and call and call.keys() <= _CALL_KEYS for call in calls)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _text(content: Any) -> str:
    """Return what is text in *content*; some servers answer in parts, thoughts among them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = (_field(part, "text") for part in content if _field(part, "type") in ("text", "output_text"))
    return "".join(part for part in parts if isinstance(part, str))


def _usage(usage: Any) -> dict[str, int] | None:
    """Return the counts that are there and are counts; None where there are none."""
    counts = {
        "input_tokens": _field(usage, "prompt_tokens"),
        "output_tokens": _field(usage, "completion_tokens"),
        "cached_tokens": _field(_field(usage, "prompt_tokens_details"), "cached_tokens"),
    }
    return {name: n for name, n in counts.items() if type(n) is int and n >= 0} or None


def read_body(chunks: Iterable[bytes], limit: Limit) -> bytes:
    """Return a response's body. Raises ``SummarizerError`` where it is too late or too large."""
    body = bytearray()
    for chunk in chunks:
        limit.left()
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise SummarizerError(TOO_LARGE)
    return bytes(body)


def parse_body(body: bytes) -> Any:
    """Return the JSON in *body*. Raises ``SummarizerError`` naming what it is instead."""
    if not body.strip():
        raise SummarizerError("the answer is empty: check the server's own log")
    if body.lstrip().startswith(b"<"):
        raise SummarizerError("the answer is a web page: check that base_url= is right; it usually ends in /v1")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise SummarizerError(f"the answer is not JSON ({type(exc).__name__}): check the server's own log") from exc
