"""A summarizer on Google's Gemini API; it checks every answer."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from .answers import NoSummary, make_summary, read_counts, read_field
from .base import ContinuedPrompt, Summary
from .model import MAX_RETRY_AFTER, Arguments, ModelSummarizer, Options, make_http_options, make_sendable
from .response_limits import Limit, limit_connections

_CUT = ("MAX_TOKENS", "CONTINUATION")
_CALLED = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS")
_ENDED = ("STOP", "FINISH_REASON_UNSPECIFIED", "")
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


class GeminiSummarizer(ModelSummarizer):
    """Return Gemini's summary for a request; raise ``SummarizerError`` if there is none.

    As ``OpenAISummarizer``, on the official client, which the extra ``gemini`` installs. *style* None continues the
    agent's last prompt only if ``compose`` was told that it is for this *model*. Then the request is what
    ``compactor.formats.gemini`` makes of that prompt, with the instruction behind it: Gemini finds the beginning of
    prompts in its cache by itself, and it costs a fraction if the agent sends its prompts so.

    *max_output_tokens* includes thoughts. *client* is a ``google.genai.Client``, also for Vertex AI. *extra* are more
    fields of ``GenerateContentConfig``, such as ``thinking_config``.
    """

    _KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    _BASE_URLS = ("GOOGLE_GEMINI_BASE_URL",)
    _DEFAULT_URL = "https://generativelanguage.googleapis.com"
    _EXAMPLE = "gemini-2.5-flash"
    _NOT_EXTRA: ClassVar[Mapping[str, str]] = {
        "contents": "they are the request's",
        "system_instruction": "it is the request's",
        "model": "use model=",
        "http_options": "use timeout=, or give a client=",
        "max_output_tokens": "use max_output_tokens=",
        "temperature": "use temperature=",
    }
    _EXTRA = "gemini"
    _CLIENT = ("google.genai", "Client")
    _METHOD = "models.generate_content"

    def __init__(self, model: str, *, temperature: float | None = None, **options: Unpack[Options]) -> None:
        self._temperature = temperature
        super().__init__(model, **options)

    def _make_arguments(self, max_output_tokens: int | None, extra: Mapping[str, Any]) -> dict[str, Any]:
        # Functions of the host's are never called here.
        arguments: dict[str, Any] = {"automatic_function_calling": {"disable": True}, **extra}
        given = {"temperature": self._temperature, "max_output_tokens": max_output_tokens}
        return {name: value for name, value in given.items() if value is not None} | arguments

    def _make_client(self, key: str, base_url: str) -> Any:
        from google.genai import Client

        options: Any = {"base_url": base_url, "client_args": make_http_options(), "retry_options": {"attempts": 1}}
        # Not Vertex AI, whatever the environment says: the key belongs to this address.
        client = Client(vertexai=False, api_key=key, http_options=options)
        # Its option for connections of one's own wants httpx or httpx2, by its version and the environment.
        connections = getattr(client._api_client, "_httpx_client", None)
        if connections is not None:
            limit_connections(connections)
            weakref.finalize(client, connections.close)
        return client

    def _adapt_given(self, client: Any) -> Any:
        return client

    def _write_messages(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        from ..formats.gemini import from_chat

        return {name: make_sendable(value) for name, value in from_chat(messages).items()}

    def _continue(self, continued: ContinuedPrompt) -> dict[str, Any]:
        given: dict[str, Any] = {"tools": _read_tools(make_sendable(continued.tools))} if continued.tools else {}
        choice = continued.tool_choice
        if isinstance(choice, str) and choice in _MODES:
            given["tool_config"] = {"function_calling_config": {"mode": _MODES[choice]}}
        elif isinstance(choice, Mapping) and "function" not in choice:
            given["tool_config"] = choice
        return given | self._arguments | self._write_messages(continued.messages)

    def _send(self, client: Any, method: str, limit: Limit, arguments: Arguments, timeout: float) -> Any:  # noqa: ARG002
        config = {name: value for name, value in arguments.items() if name != "contents"}
        config["http_options"] = {"timeout": max(1, int(timeout * 1_000))}
        try:
            return client.models.generate_content(model=self.model, contents=arguments["contents"], config=config)
        except ValueError as error:
            if type(error).__name__ != "ValidationError":
                raise
            # Its text quotes the request.
            raise NoSummary(
                "the client refuses an argument: check extra= and the tools, or update google-genai"
            ) from None

    def _read(self, answer: Any) -> Summary:
        return read_response(answer, self.model)

    def _name_remedy(self, status: int, error: Any, said: str, arguments: Arguments) -> str:
        if "API_KEY_INVALID" in said or "API key not valid" in said:
            status = 401
        return super()._name_remedy(status, error, said, arguments)

    def _read_retry_after(self, error: Any) -> float | None:
        named = super()._read_retry_after(error)
        if named is not None:
            return named
        details = read_field(read_field(getattr(error, "details", None), "error"), "details")
        for detail in details if isinstance(details, list) else ():
            delay = read_field(detail, "retryDelay")
            if isinstance(delay, str) and (seconds := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)s", delay)):
                return min(float(seconds[1]), MAX_RETRY_AFTER)
        return None


def read_response(answer: Any, model: str) -> Summary:
    """Return the summary in an answer of Gemini's. Raises as ``make_summary``."""
    usage = read_field(answer, "usage_metadata")
    written = [read_field(usage, "candidates_token_count"), read_field(usage, "thoughts_token_count")]
    counts = read_counts(
        input_tokens=read_field(usage, "prompt_token_count"),
        output_tokens=sum(count for count in written if type(count) is int) if usage is not None else None,
        cached_tokens=read_field(usage, "cached_content_token_count"),
    )
    blocked = _name(read_field(read_field(answer, "prompt_feedback"), "block_reason"))
    candidates = read_field(answer, "candidates")
    if blocked:
        raise NoSummary(f"a filter blocked the request ({blocked}): choose another model= or prompt", counts)
    first = candidates[0] if isinstance(candidates, Sequence) and candidates else None
    ended = _name(read_field(first, "finish_reason"))
    parts = read_field(read_field(first, "content"), "parts") or ()
    texts = [read_field(part, "text") for part in parts if not read_field(part, "thought")]
    if not (ended in _ENDED or ended in _CUT or ended in _CALLED):
        raise NoSummary(f"the model refused, or a filter stopped it ({ended}): choose another model= or prompt", counts)
    return make_summary(
        None if first is None else "".join(text for text in texts if isinstance(text, str)),
        counts,
        (read_field(answer, "model_version"), model),
        has_called=ended in _CALLED or any(read_field(part, "function_call") is not None for part in parts),
        is_cut=ended in _CUT,
    )


def _name(reason: object) -> str:
    """Return the name of a *reason*, or an empty text; a new one may be any text."""
    name = str(getattr(reason, "value", reason) or "")
    return name if re.fullmatch(r"[A-Z_]{0,40}", name) else "OTHER"


def _read_tools(tools: Sequence[Any]) -> list[Any]:
    """Return *tools* as Gemini takes them, also if they were described for OpenAI."""
    keys = {"name": "name", "description": "description", "parameters_json_schema": "parameters"}
    made, rest = list[Any](), list[Any]()
    for tool in tools:
        if isinstance(function := read_field(tool, "function"), Mapping):
            made.append({name: function.get(key) for name, key in keys.items()})
        else:
            rest.append(tool)
    return [*rest, {"function_declarations": made}] if made else rest
