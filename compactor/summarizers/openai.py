"""A summarizer for any OpenAI-compatible endpoint; it checks every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from memory.messages import NATIVE
from memory.patterns import compile_later

from .answers import read_answer
from .base import Continued, Summary
from .model import Arguments, ModelSummarizer, Options, make_sendable

_REASONING = compile_later(r"(?:^|[/:])(?:o\d|gpt-[5-9])")
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")


class OpenAISummarizer(ModelSummarizer):
    """Return the model's summary for ``request.messages``; raise ``SummarizerError`` if there is none.

    *style* "separate" sends ``request.messages``. "continue" sends ``request.continued``, if there is one: the
    beginning of the agent's last prompt is in its provider's cache, so most of the conversation costs a fraction. If
    the endpoint refuses the longer request, or the model's answer is no summary (a tool call, for example), the
    summarizer asks again as with "separate". None: "continue" if this is the agent's model, as far as is known.

    ``request.schema`` goes out as ``response_format``, but not with "continue": it would change the beginning of the
    prompt and miss the cache. If the answer is no summary, the summarizer asks again without the schema. Once an
    endpoint refuses a schema, it gets no more of them. Other failures may be due to either; after one, the next call
    for the same rounds uses neither.

    *timeout* limits the whole call, in seconds. With an ``openai.OpenAI`` given as *client*, it covers only the body of
    a successful answer, which may take one read longer; the owner controls everything else about that client. *extra*
    goes to ``chat.completions.create`` unchanged and overrides every other argument. Reasoning models get no
    *temperature*, because they refuse it; their *max_output_tokens* includes their thoughts. One summarizer serves any
    number of threads.
    """

    _KEYS = ("OPENAI_API_KEY",)
    _BASE_URLS = ("OPENAI_BASE_URL",)
    _DEFAULT_URL = "https://api.openai.com/v1"
    _ENDING = ", which usually ends in /v1"
    _EXAMPLE = "gpt-5-mini"
    _NOT_EXTRA: ClassVar[Mapping[str, str]] = {
        "messages": "they are the request's",
        "model": "use model=",
        "stream": "an answer is read as a whole",
        "timeout": "use timeout=",
    }
    _SCHEMA_WORDS = ("response_format", "json_schema")
    _EXTRA = "openai"
    _CLIENT = ("openai", "OpenAI")
    _METHOD = "chat.completions.create"

    def __init__(
        self,
        model: str,
        *,
        temperature: float | None = None,
        reasoning_effort: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._temperature, self._reasoning_effort = temperature, reasoning_effort
        super().__init__(model, **options)

    def _make_arguments(self, max_output_tokens: int | None, extra: Mapping[str, Any]) -> dict[str, Any]:
        reasoning = _REASONING.search(self.model) is not None
        limit = "max_completion_tokens" if reasoning else "max_tokens"
        arguments = {
            "model": self.model,
            "temperature": None if reasoning else self._temperature,
            "reasoning_effort": self._reasoning_effort,
            # No limit from target_tokens: a limit would cut the answer off, not make it shorter.
            limit: None if extra.keys() & set(_OUTPUT_LIMITS) else max_output_tokens,
        }
        return {name: value for name, value in arguments.items() if value is not None} | dict(extra)

    def _write_messages(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"messages": make_sendable(messages)}

    def _is_cached(self, continued: Continued) -> bool:
        return continued.model in ("", self.model)

    def _continue(self, continued: Continued) -> dict[str, Any]:
        # The agent's own tools and choice are part of its provider's cache key.
        given = {"tools": make_sendable(continued.tools)} if continued.tools else {}
        if continued.tool_choice is not None:
            given["tool_choice"] = make_sendable(continued.tool_choice)
        plain = [{key: message[key] for key in message if key != NATIVE} for message in continued.messages]
        return given | self._arguments | self._write_messages(plain)

    def _format(self, arguments: Arguments, name: str, schema: Any) -> dict[str, Any] | None:
        if "response_format" in arguments:
            return None
        form = {"name": name, "schema": schema, "strict": True}
        return {**arguments, "response_format": {"type": "json_schema", "json_schema": form}}

    def _read(self, answer: Any) -> Summary:
        return read_answer(answer, self.model)

    def _is_too_long(self, error: Any, said: str) -> bool:  # noqa: ARG002  (its code says it)
        return getattr(error, "code", None) == "context_length_exceeded"

    def _name_remedy(self, status: int, error: Any, said: str, arguments: Arguments) -> str:
        param = getattr(error, "param", None)
        if getattr(error, "code", None) == "insufficient_quota":
            return "the account has no credit left; add some, or use another key"
        if isinstance(param, str) and param in _OUTPUT_LIMITS and param in arguments:
            other = _OUTPUT_LIMITS[1 - _OUTPUT_LIMITS.index(param)]
            return f"it refuses {param!r}; pass extra={{{other!r}: ...}} instead"
        if isinstance(param, str) and param in arguments and not self._is_too_long(error, said):
            return f"it refuses this {param!r}; leave it out, or give another value"
        return super()._name_remedy(status, error, said, arguments)
