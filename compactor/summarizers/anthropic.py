"""A summarizer on Anthropic's API; it checks every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from .answers import field, make_summary, read_counts
from .base import Continued, SummarizerError, Summary
from .model import Arguments, ModelSummarizer, make_sendable

#: Tokens of an answer where no limit is given; the API demands one.
DEFAULT_OUTPUT_TOKENS = 8_192
#: Places that a request may mark for the cache.
_MAX_MARKS = 4
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


class AnthropicSummarizer(ModelSummarizer):
    """Return Claude's summary for a request; raise ``SummarizerError`` if there is none.

    As ``OpenAISummarizer``, on the official client, which the extra ``anthropic`` installs. *style* None continues the
    agent's last prompt only if ``compose`` was told that it is for this *model*. Then the request is what
    ``compactor.formats.anthropic`` makes of that prompt, marked for the cache where it ends, with the instruction
    behind it: it costs a fraction if the agent sends its prompts so, with the cache on. Give the agent's ``thinking``
    in *extra*, because it is part of the cache's key.

    *max_output_tokens* includes thoughts. *client* is an ``anthropic.Anthropic``, or one for Bedrock or Vertex. *extra*
    goes to ``messages.create``.
    """

    _KEYS = ("ANTHROPIC_API_KEY",)
    _BASE_URLS = ("ANTHROPIC_BASE_URL",)
    _DEFAULT_URL = "https://api.anthropic.com"
    _EXAMPLE = "claude-haiku-4-5"
    _NOT_EXTRA: ClassVar[Mapping[str, str]] = {
        "messages": "they are the request's",
        "system": "it is the request's",
        "model": "use model=",
        "max_tokens": "use max_output_tokens=",
        "stream": "an answer is read as a whole",
        "timeout": "use timeout=",
    }
    _SCHEMA_WORDS = ("output_config", "output_format", "json_schema")
    _EXTRA = "anthropic"
    _CLIENT = ("anthropic", "Anthropic")
    _METHOD = "messages.create"

    def _make_arguments(self, max_output_tokens: int | None, extra: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": max_output_tokens or DEFAULT_OUTPUT_TOKENS, **extra}

    def _write_messages(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        from ..formats.anthropic import from_chat

        return {name: make_sendable(value) for name, value in from_chat(messages).items()}

    def _is_cached(self, continued: Continued) -> bool:
        choice = _read_choice(continued.tool_choice)
        # A model that must call a tool writes no summary.
        return super()._is_cached(continued) and (choice is None or choice.get("type") in ("auto", "none"))

    def _continue(self, continued: Continued) -> dict[str, Any]:
        given: dict[str, Any] = (
            {"tools": list(map(_read_tool, make_sendable(continued.tools)))} if continued.tools else {}
        )
        if (choice := _read_choice(continued.tool_choice)) is not None:
            given["tool_choice"] = choice
        return _mark_for_cache(given | self._arguments | self._write_messages(continued.messages))

    def _format(self, arguments: Arguments, name: str, schema: Any) -> dict[str, Any] | None:  # noqa: ARG002
        config = dict(arguments.get("output_config") or {})
        if "format" in config:
            return None
        config["format"] = {"type": "json_schema", "schema": schema}
        # In the body: older clients do not know the argument.
        return {**arguments, "extra_body": {**(arguments.get("extra_body") or {}), "output_config": config}}

    def _read(self, answer: Any) -> Summary:
        return read_message(answer, self.model)

    def _is_too_long(self, error: Any, said: str) -> bool:
        return getattr(error, "status_code", None) == 413 or "prompt is too long" in said

    def _name_remedy(self, status: int, error: Any, said: str, arguments: Arguments) -> str:
        if "credit balance is too low" in said:
            status = 402
        return super()._name_remedy(status, error, said, arguments)


def read_message(answer: Any, model: str) -> Summary:
    """Return the summary in an answer of Anthropic's, given as an object or as JSON. Raises as ``make_summary``."""
    usage, stopped, blocks = field(answer, "usage"), field(answer, "stop_reason"), field(answer, "content")
    cached = field(usage, "cache_read_input_tokens")
    read = [field(usage, "input_tokens"), cached, field(usage, "cache_creation_input_tokens")]
    counts = read_counts(
        # Its input_tokens are those beside the cache.
        input_tokens=sum(count for count in read if type(count) is int) if usage is not None else None,
        output_tokens=field(usage, "output_tokens"),
        cached_tokens=cached,
    )
    if stopped == "model_context_window_exceeded":
        raise SummarizerError("the answer was cut off at the end of the model's window: lower summarizer_input_tokens")
    blocks = blocks if isinstance(blocks, Sequence) and not isinstance(blocks, str) else None
    texts = [field(block, "text") for block in blocks or () if field(block, "type") == "text"]
    return make_summary(
        None if blocks is None else "".join(text for text in texts if isinstance(text, str)),
        counts,
        (field(answer, "model"), model),
        has_called=stopped in ("tool_use", "pause_turn")
        or any(field(one, "type") == "tool_use" for one in blocks or ()),
        is_cut=stopped == "max_tokens",
        is_refused=stopped == "refusal",
    )


def _read_tool(tool: Any) -> Any:
    """Return *tool* as Anthropic takes it, also if it was described for OpenAI."""
    function = field(tool, "function")
    if not isinstance(function, Mapping):
        return tool
    made = {"name": function.get("name"), "description": function.get("description")}
    made["input_schema"] = function.get("parameters") or {"type": "object", "properties": {}}
    return {name: value for name, value in made.items() if value is not None}


def _read_choice(choice: Any) -> Mapping[str, Any] | None:
    if isinstance(choice, str):
        return {"type": _CHOICES[choice]} if choice in _CHOICES else None
    if not isinstance(choice, Mapping):
        return None
    named = choice.get("function")
    return {"type": "tool", "name": named.get("name")} if isinstance(named, Mapping) else choice


def _mark_for_cache(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return *arguments* with a mark before the instruction, the last block: the cache is looked up from there."""
    messages = [dict(message) for message in arguments["messages"]]
    for message in messages[-2:]:
        text = message["content"]
        message["content"] = [{"type": "text", "text": text}] if isinstance(text, str) else list(text)
    blocks = [(message["content"], place) for message in messages[-2:] for place in range(len(message["content"]))]
    if len(blocks) < 2 or _count_marks(arguments) >= _MAX_MARKS:
        return arguments
    content, place = blocks[-2]
    if content[place].get("type") in ("thinking", "redacted_thinking"):
        return arguments
    content[place] = {**content[place], "cache_control": {"type": "ephemeral"}}
    return {**arguments, "messages": messages}


def _count_marks(value: Any) -> int:
    if isinstance(value, Mapping):
        return ("cache_control" in value) + sum(map(_count_marks, value.values()))
    return sum(map(_count_marks, value)) if isinstance(value, (list, tuple)) else 0
