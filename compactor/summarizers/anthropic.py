"""A summarizer on Anthropic's API; it checks every answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from memory.rounds import copy_with

from ..formats.anthropic import NAME, from_chat
from ..formats.native import to_plain
from .answers import NoSummary, make_summary, read_counts, read_field
from .base import ContinuedPrompt, SummarizerError, Summary, SummaryRequest
from .model import Arguments, Form, ModelSummarizer, Options, make_sendable

#: Tokens of an answer where no limit is given; the API demands one.
DEFAULT_OUTPUT_TOKENS = 8_192
#: The header of a request that asks for a compaction block, or that has one.
_BETA, _COMPACTION = "anthropic-beta", "compact-2026-09-04"
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

    *provider_compaction* asks for a signed compaction block where it would continue the agent's prompt. The block's
    content is the summary, and the block its payload. A model that refuses is asked as usual from then on.
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
    _EXTRA = "anthropic"
    _CLIENT = ("anthropic", "Anthropic")
    _METHOD = "messages.create"

    def __init__(self, model: str, *, provider_compaction: bool = False, **options: Unpack[Options]) -> None:
        self._provider = NAME if provider_compaction else ""
        super().__init__(model, **options)

    def _make_arguments(self, max_output_tokens: int | None, extra: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": max_output_tokens or DEFAULT_OUTPUT_TOKENS, **extra}

    def _write_messages(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {name: make_sendable(value) for name, value in from_chat(messages).items()}

    def _is_cached(self, continued: ContinuedPrompt) -> bool:
        choice = _read_choice(continued.tool_choice)
        # A model that must call a tool writes no summary.
        return super()._is_cached(continued) and (choice is None or choice.get("type") in ("auto", "none"))

    def _list_forms(self, request: SummaryRequest) -> Iterator[Form]:
        continued = self._find_compacted(request)
        if continued is not None and self._is_cached(continued):
            asked = {"type": "summarize", "instructions": str(continued.messages[-1]["content"])}
            yield Form(_add_to_body(self._begin(continued), compaction=asked), is_continued=True, needs="compaction")
        yield from super()._list_forms(request)

    def _continue(self, continued: ContinuedPrompt) -> dict[str, Any]:
        arguments = self._begin(continued)
        instruction = self._write_messages(continued.messages[-1:])["messages"]
        return {**arguments, "messages": [*arguments["messages"], *instruction]}

    def _begin(self, continued: ContinuedPrompt) -> dict[str, Any]:
        """Return the arguments of the agent's prompt, without the instruction, marked for the cache at the end."""
        tools = list(map(_read_tool, make_sendable(continued.tools)))
        given: dict[str, Any] = {"tools": tools} if tools else {}
        if (choice := _read_choice(continued.tool_choice)) is not None:
            given["tool_choice"] = choice
        arguments = given | self._arguments | self._write_messages(continued.messages[:-1])
        if self.provider:
            headers = dict(arguments.get("extra_headers") or {})
            others = headers.get(_BETA) or dict(getattr(self._given, "default_headers", {})).get(_BETA)
            headers[_BETA] = f"{others},{_COMPACTION}" if others else _COMPACTION
            arguments["extra_headers"] = headers
        return _mark_for_cache(arguments)

    def _read(self, answer: Any) -> Summary:
        return read_message(answer, self.model)

    def _is_of_request(self, error: Any, said: str) -> bool:
        # Such a code comes from an endpoint that can compact.
        return "compaction_" in said or super()._is_of_request(error, said)

    def _name_remedy(self, status: int, error: Any, said: str, arguments: Arguments) -> str:
        if "credit balance is too low" in said:
            status = 402
        return super()._name_remedy(status, error, said, arguments)


def read_message(answer: Any, model: str) -> Summary:
    """Return the summary in an answer of Anthropic's, given as an object or as JSON; with a payload for *model* if it
    is a compaction block. Raises as ``make_summary``."""
    stopped, blocks = read_field(answer, "stop_reason"), read_field(answer, "content")
    counts = _read_usage(read_field(answer, "usage"))
    if stopped == "model_context_window_exceeded":
        reason = "the answer was cut off at the end of the model's window: lower summarizer_input_tokens"
        raise SummarizerError(reason, counts)
    given = list(blocks) if isinstance(blocks, Sequence) and not isinstance(blocks, str) else None
    compacted = [block for block in given or () if read_field(block, "type") == "compaction"]
    texts = [read_field(block, "text") for block in given or () if read_field(block, "type") == "text"]
    texts += [read_field(block, "content") for block in compacted]
    if compacted and not any(isinstance(text, str) and text for text in texts):
        raise NoSummary("the provider's compaction failed", counts)
    summary = make_summary(
        None if given is None else "".join(text for text in texts if isinstance(text, str)),
        counts,
        (read_field(answer, "model"), model),
        has_called=stopped in ("tool_use", "pause_turn")
        or any(read_field(one, "type") == "tool_use" for one in given or ()),
        is_cut=stopped == "max_tokens",
        is_refused=stopped == "refusal",
    )
    if not compacted:
        return summary
    return copy_with(summary, payload={"provider": NAME, "model": model, "data": list(map(to_plain, compacted))})


def _read_usage(usage: Any) -> dict[str, int] | None:
    """Return the tokens in a message's *usage*. Those of a compaction, and of the cache, it has beside the others."""
    rounds = read_field(usage, "iterations")
    passes = [usage, *[one for one in rounds or () if read_field(one, "type") == "compaction"]]

    def add(*names: str) -> int | None:
        counts = [count for one in passes for name in names if type(count := read_field(one, name)) is int]
        return sum(counts) if counts else None

    cached, new = "cache_read_input_tokens", "cache_creation_input_tokens"
    return read_counts(
        input_tokens=add("input_tokens", cached, new), output_tokens=add("output_tokens"), cached_tokens=add(cached)
    )


def _add_to_body(arguments: Arguments, **more: Any) -> dict[str, Any]:
    """Return *arguments* with *more* that older clients do not know."""
    return {**arguments, "extra_body": {**(arguments.get("extra_body") or {}), **more}}


def _read_tool(tool: Any) -> Any:
    """Return *tool* as Anthropic takes it, also if it was described for OpenAI."""
    function = read_field(tool, "function")
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
    """Return *arguments* with a mark at the end of the messages: the cache is looked up from there."""
    if not arguments["messages"] or _count_marks(arguments) >= _MAX_MARKS:
        return arguments
    *before, last = arguments["messages"]
    text = last["content"]
    blocks = [{"type": "text", "text": text}] if isinstance(text, str) else text
    if blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        return arguments
    blocks = [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]
    return {**arguments, "messages": [*before, {**last, "content": blocks}]}


def _count_marks(value: Any) -> int:
    if isinstance(value, Mapping):
        return ("cache_control" in value) + sum(map(_count_marks, value.values()))
    return sum(map(_count_marks, value)) if isinstance(value, (list, tuple)) else 0
