"""Runs of tool calls, and ``compress_tool_runs`` over them, for its tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from chats import Message, answer, assert_paired, calls, result, words
from views import reduced

from compactor import CompactorConfig, SummaryRequest, View, compose, compress_tool_runs, count_prompt, count_tokens
from compactor.summarize import Work
from compactor.testing import ScriptedSummarizer
from memory import Memory, Reduction

ROLE = "assistant"
LONG = words(150)
CONFIG = CompactorConfig(summary_attempts=1)
CURRENT = compress_tool_runs(scope="current")
#: What the role says when it has read the results.
ON = answer("On.")


def pair(*names: str, text: str = LONG) -> list[Message]:
    """Return one message with a call by each of *names*, and the results."""
    return [calls(*names), *(result(name, f"{name}: {text}") for name in names)]


def pairs(count: int, first: int = 0, text: str = LONG) -> list[Message]:
    return [message for number in range(first, first + count) for message in pair(f"c{number}", text=text)]


def memory_of(*messages: Message, closed: bool = True) -> Memory:
    memory = Memory.from_messages(messages)
    if closed:
        memory.finish_round(memory.conversation.rounds[-1])
    return memory


def work_of(
    ask: Callable[[SummaryRequest], Any],
    config: CompactorConfig = CONFIG,
    *,
    token_threshold: int | None = None,
    plan: str | None = None,
) -> Work:
    return Work(
        summarizer=ask,
        count=count_tokens,
        config=config,
        token_threshold=token_threshold,
        plan=plan,
        monotonic=lambda: 0.0,
    )


def apply(
    memory: Memory,
    strategy: Callable[[View], Iterable[Reduction]],
    summarizer: Callable[[SummaryRequest], Any] | None = None,
    config: CompactorConfig = CONFIG,
    **more: Any,
) -> tuple[list[Reduction], list[SummaryRequest]]:
    """Publish what the strategy gives as it gives it; all of it must be published."""
    requests: list[SummaryRequest] = []
    summarizer = summarizer or ScriptedSummarizer(default="f was called; its results were long.")

    def ask(request: SummaryRequest) -> Any:
        requests.append(request)
        assert count_prompt(request.messages, count_tokens) <= (config.summarizer_input_tokens)
        return summarizer(request)

    return reduced(memory, strategy, work=work_of(ask, config, **more)), requests


def shown(memory: Memory) -> list[Message]:
    """The prompt where there is room for everything."""
    messages = compose(memory, ROLE, budget=10**9).messages
    assert_paired(messages)
    return messages


def quoted(request: SummaryRequest) -> str:
    (message,) = request.messages
    return str(message["content"]).partition("<conversation>\n")[2].partition("\n</conversation>")[0]


def references(messages: Iterable[Message]) -> list[str]:
    return re.findall(r"reload (r\d+(?:\.p\d+(?:-p\d+)?)?)", "\n".join(str(message["content"]) for message in messages))
