"""Other people's model APIs as summarizers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memory.arguments import takes

from .answers import read_answer
from .base import Summarizer, SummarizerError, Summary, SummaryRequest
from .tags import strip_tags

__all__ = ["as_summarizer"]


def as_summarizer(source: Any) -> Summarizer:
    """Return a summarizer that asks *source*'s ``chat_completion(messages)``; *source* itself if it has none and is a
    callable.

    The former is what TaskWeaver calls an LLM API. Raises ``TypeError`` for anything else.
    """
    chat = getattr(source, "chat_completion", None)
    if isinstance(source, type):
        raise TypeError(f"{source.__name__} is a class; make a summarizer of it: {source.__name__}(...)")
    if any(inspect.iscoroutinefunction(call) for call in (source, getattr(source, "__call__", None), chat)):  # noqa: B004
        raise TypeError(f"{type(source).__name__} is asynchronous; pass a plain function, which may wait")
    if callable(chat):  # first: a mock is callable, too
        return _ChatSummarizer(chat)
    if callable(source):
        if not takes(source, None):
            raise TypeError("a summarizer is called with one SummaryRequest, whose messages are those to send")
        return source  # type: ignore[no-any-return]
    raise TypeError(
        f"{type(source).__name__} is no summarizer; pass a function of a SummaryRequest that returns text,"
        " an object with chat_completion(messages), OpenAISummarizer(...) or ExtractiveSummarizer()"
    )


class _ChatSummarizer:
    """Asks ``chat_completion(messages)`` and takes the text that comes back: in a message, plain, or in pieces."""

    #: What it asks is always the same.
    takes_continued = False

    def __init__(self, chat: Any) -> None:
        self._chat = chat

    def __repr__(self) -> str:
        return f"as_summarizer({type(getattr(self._chat, '__self__', self._chat)).__name__})"

    def __call__(self, request: SummaryRequest) -> Summary:
        try:
            # A copy: some of these APIs put messages in between, and change roles, in the list they are given.
            answer = self._chat(copy.deepcopy(request.messages))
            if isinstance(_field(answer, "choices"), Sequence):
                return read_answer(answer, None)
            in_pieces = isinstance(answer, Iterator) and _field(answer, "content") is None
            text = "".join(map(_content, answer)) if in_pieces else _content(answer)
        except SummarizerError:
            raise
        except Exception as exc:  # whatever a foreign API raises is a failure of this call, and only that
            raise SummarizerError(
                f"chat_completion failed ({type(exc).__name__}): check the LLM API's own configuration"
            ) from exc
        text = strip_tags(text)
        if not text:
            raise SummarizerError("chat_completion gave an empty answer: check the LLM API's model and token limit")
        return Summary(text)


def _content(message: Any) -> str:
    """Return the text in one message or piece of one."""
    if isinstance(message, str):
        return message
    if _field(message, "role") == "function":  # how TaskWeaver marks a call, which it puts into the content as JSON
        raise SummarizerError("chat_completion answered with a tool call: configure it without tools")
    content = _field(message, "content")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise SummarizerError(
            f"chat_completion answered with {type(content).__name__} as content: it must return"
            " text, or a message whose content is text"
        )
    return content


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
