"""Conversations for tests of ``auto_context`` and ``AutoContextMemory``, and both at numbers that a test can reach."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from chats import answer, calls, memory_of, result, user

from compactor import Summary, SummaryRequest
from compactor.presets import AutoContextMemory
from compactor.testing import ScriptedSummarizer
from memory import Memory

ROLE = "assistant"
#: Reductions of five steps would have to take far more than a test wants to write.
SMALL = {"msg_threshold": 10, "max_token": 4_000, "last_keep": 4, "large_payload_threshold": 200}


def summary(request: SummaryRequest) -> Summary:
    """Name the request's kind and two terms of it: shorter than anything that these tests have summarised."""
    said = " ".join(post.message for round_ in request.rounds for post in round_.post_list)
    named = ", ".join(sorted(set(re.findall(r"\b[a-z]+\d+\w*|[A-Z]\w+", said)))[:2]) or "small talk"
    return Summary(f"Told of {request.kind}: {named}.", {"input_tokens": 90, "output_tokens": 9}, "tiny")


def long_text(word: str, characters: int = 600) -> str:
    """Words that are all different, as in real results: nothing that a check takes for an echo."""
    text = " ".join(f"{word}{number}" for number in range(characters // 4))
    return text[:characters]


def tool_run(first: int, count: int, characters: int = 60) -> Iterator[dict[str, Any]]:
    for number in range(first, first + count):
        yield calls(f"c{number}", arguments=json.dumps({"item": number}))
        yield result(f"c{number}", long_text(f"v{number}w", characters))


#: An answer that a summary can be shorter than, and not so large that it is offloaded.
LONG = long_text("told", 190)


def past(*posts: dict[str, Any], question: str = "What of it?", reply: str = "That of it.") -> list[dict[str, Any]]:
    """A round that was answered."""
    return [user(question), *posts, answer(reply)]


def context_of(*messages: dict[str, Any], **options: Any) -> AutoContextMemory:
    return AutoContextMemory(memory_of(*messages), **options)


def worked(context: AutoContextMemory) -> AutoContextMemory:
    """Have the compactor of *context* do all there is to do."""
    with context:
        assert context.compactor.wait_idle(20)
    return context


def small(memory: Memory, summarizer: object = None, **options: Any) -> AutoContextMemory:
    preset = {**SMALL, "summarizer": summarizer or ScriptedSummarizer(default=summary), **options}
    return AutoContextMemory(memory, **preset)
