"""A summarizer for any OpenAI-compatible endpoint; it checks every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

from memory.messages import NATIVE
from memory.patterns import compile_later
from memory.rounds import copy_with

from ..formats.native import to_plain
from ..formats.responses import NAME, from_chat
from .answers import NoSummary, read_answer, read_counts, read_field
from .base import ContinuedPrompt, SummarizerError, Summary, SummaryRequest, add_usage
from .model import Arguments, Form, ModelSummarizer, Options, make_sendable
from .response_limits import Limit

_REASONING = compile_later(r"(?:^|[/:])(?:o\d|gpt-[5-9])")
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")


class OpenAISummarizer(ModelSummarizer):
    """Return the model's summary for ``request.messages``; raise ``SummarizerError`` if there is none.

    *style* "separate" sends ``request.messages``. "continue" sends ``request.continued_prompt``, if there is one: the
    beginning of the agent's last prompt is in its provider's cache, so most of the conversation costs a fraction. If
    the endpoint refuses the longer request, or the model's answer is no summary (a tool call, for example), the
    summarizer asks again as with "separate". After another failure, the next call for the same rounds does so. None:
    "continue" if this is the agent's model, as far as is known.

    *timeout* limits the whole call, in seconds. With an ``openai.OpenAI`` given as *client*, it covers only the body of
    a successful answer, which may take one read longer; the owner controls everything else about that client. *extra*
    goes to ``chat.completions.create`` unchanged and overrides every other argument. Reasoning models get no
    *temperature*, because they refuse it; their *max_output_tokens* includes their thoughts. One summarizer serves any
    number of threads.

    *provider_compaction* asks ``responses.compact`` too, for an agent on the Responses API whose prompts ``compose``
    makes for this *model*. The summary then has a payload beside its text. That is a second request for each summary,
    as long as the agent's prompt. If it fails, the text is all there is; an endpoint that refuses is not asked again.
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
    _EXTRA = "openai"
    _CLIENT = ("openai", "OpenAI")
    _METHOD = "chat.completions.create"

    def __init__(
        self,
        model: str,
        *,
        temperature: float | None = None,
        reasoning_effort: str | None = None,
        provider_compaction: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self._provider = NAME if provider_compaction else ""
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

    def _is_cached(self, continued: ContinuedPrompt) -> bool:
        return continued.model in ("", self.model)

    def _continue(self, continued: ContinuedPrompt) -> dict[str, Any]:
        # The agent's own tools and choice are part of its provider's cache key.
        given = {"tools": make_sendable(continued.tools)} if continued.tools else {}
        if continued.tool_choice is not None:
            given["tool_choice"] = make_sendable(continued.tool_choice)
        plain = [{key: message[key] for key in message if key != NATIVE} for message in continued.messages]
        return given | self._arguments | self._write_messages(plain)

    def _read(self, answer: Any) -> Summary:
        return read_answer(answer, self.model)

    def _ask(self, client: Any, limit: Limit, request: SummaryRequest, forms: Sequence[Form]) -> Summary:
        summary = super()._ask(client, limit, request, forms)
        if (continued := self._find_compacted(request)) is None:
            return summary
        arguments = {"model": self.model, **make_sendable(from_chat(continued.messages[:-1]))}
        read = partial(_read_compaction, self.model)
        try:
            payload, usage = self._call(
                client, "responses.compact", limit, arguments, read, timeout=limit.get_seconds_left()
            )
        except SummarizerError as failed:  # the text alone will do
            if isinstance(failed.__cause__, AttributeError):
                raise SummarizerError("provider_compaction= needs responses.compact: update openai") from None
            if isinstance(failed, NoSummary) and not self._is_of_request(failed.__cause__, ""):
                self._refused |= {"compaction"}
            return summary
        return copy_with(summary, payload=payload, usage=add_usage(summary.usage, usage))

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


def _read_compaction(model: str, answer: Any) -> tuple[dict[str, Any], dict[str, int] | None]:
    """Return the payload that ``responses.compact`` gave, and its usage. Raises ``NoSummary`` if there is none."""
    usage, items = read_field(answer, "usage"), read_field(answer, "output")
    counts = read_counts(
        input_tokens=read_field(usage, "input_tokens"),
        output_tokens=read_field(usage, "output_tokens"),
        cached_tokens=read_field(read_field(usage, "input_tokens_details"), "cached_tokens"),
    )
    kinds = [read_field(item, "type") for item in items] if isinstance(items, Sequence) else ()
    if "compaction" not in kinds:
        raise NoSummary("the answer holds no compaction: leave provider_compaction= out", counts)
    payload: dict[str, Any] = {"provider": NAME, "model": model, "data": [to_plain(item) for item in items]}
    if counts is not None and "output_tokens" in counts:
        payload["tokens"] = counts["output_tokens"]
    return payload, counts
